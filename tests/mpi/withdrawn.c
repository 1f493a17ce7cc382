/* What a rank copies out of the memory of another one's work that has ended meanwhile may be
 * anything, so it is never handed out as a result (reliability:EA3). The owner has its memory back
 * as soon as its work has ended, also while another of its threads holds the lock of the group, or
 * is in the midst of copying. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backends/shm/shm_internal.h"
#include "core/team.h"
#include "engine/engine.h"
#include "gate.h"
#include "harness.h"
#include "settings.h"
#include "shm_faults.h"
#include "tell.h"
#include "world/world.h"

enum { PAGE = 4096, LONG = 600 * 1024, SHORT = 3 * PAGE, TAG = 4 };

/* This rank has found the data and is about to read it: its owner may go on, and does with it what
 * it likes before it is read. */
static bool held;
static void hold(void) {
    if (!held) {
        held = true;
        tell(0);
        hear(0);
    }
}

static void hold_kernel(size_t nbytes) {
    if (nbytes >= PAGE) {
        hold();
    }
}

/* ---- the owner gives up while others are about to read ---- */

typedef enum how { MESSAGE, MESSAGE_SHARED, COLLECTIVE, COLLECTIVE_SHARED } how;

static bool by_kernel(how h) {
    return h == MESSAGE || h == COLLECTIVE;
}

static bool is_message(how h) {
    return h <= MESSAGE_SHARED;
}

/* With `locked` another thread of this rank is where the group is moved, for all of it. */
static void give_up(dtr_group *g, how h, bool locked, char *x) {
    dtr_work *work = NULL;
    dtr_buffer all = dtr_cpu(x, LONG, DTR_U8);
    memset(x, 1, LONG);
    TH_IS(is_message(h) ? dtr_send(g, all, 1, TAG, NULL, &work)
                        : dtr_broadcast(g, all, 0, NULL, &work),
          DTR_OK);
    for (int r = 1; r < (is_message(h) ? 2 : th_size()); r++) {
        hear(r);
    }
    if (locked) {
        dtr__progress_lock_acquire(g->world, g->engine->progress);
    }
    TH_IS(dtr_group_abort(g, "the owner has given up"), DTR_OK);
    TH_IS(dtr_work_wait(work, -1), DTR_ERR_ABORTED);
    TH_IS(dtr_work_release(work), DTR_OK);
    memset(x, 2, LONG);
    for (int r = 1; r < (is_message(h) ? 2 : th_size()); r++) {
        tell(r);
    }
    for (int r = 1; r < (is_message(h) ? 2 : th_size()); r++) {
        hear(r);
    }
    if (locked) {
        dtr__progress_lock_release(g->engine->progress);
    }
}

static void read_late(dtr_group *g, how h, char *x) {
    dtr_buffer all = dtr_cpu(x, LONG, DTR_U8);
    held = false;
    if (by_kernel(h)) {
        shm_faults_now.before_readv = hold_kernel;
    } else {
        close_gate(x + LONG / PAGE / 2 * PAGE, hold);
    }
    TH_IS(is_message(h) ? dtr_recv(g, all, 0, TAG, NULL, NULL)
                        : dtr_broadcast(g, all, 0, NULL, NULL),
          DTR_ERR_ABORTED);
    TH_MESSAGE("the owner has given up");
    TH_CHECK(held, "the data was not read where it lies");
    if (!held) {
        hold();
    }
    shm_faults_now = (shm_faults){ 0 };
    remove_gate();
    tell(0);
}

/* Nothing but the reader's own look can know in time: its watchdog sleeps, nobody else moves its
 * group, and the notification of the broken group is polled for behind the read. */
static void withdrawn(how h, bool locked) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_TUNE", "cma_p2p=1,cma_copy=1", "DTR_PROGRESS_THREAD",
                                 "0", "DTR_WATCHDOG_MS", "60000");
    const bool possible = by_kernel(h) ? dtr__cma_usable(w) : dtr__arena_usable(w);
    if (!possible) {
        th_skip("an owner that gives up", "the ranks cannot read each other's memory here");
    }
    dtr_group *g = NULL;
    void *x = NULL;
    TH_OK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, by_kernel(h) ? DTR_MEM_DEFAULT : DTR_MEM_SHARED,
                    LONG, &x));
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g));
    if (possible && th_rank() == 0) {
        give_up(g, h, locked, x);
    } else if (possible && (th_rank() == 1 || !is_message(h))) {
        read_late(g, h, x);
    }
    th_barrier();
    TH_IS(dtr_group_abort(g, "the test is over"), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_free(w, x), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}

START_TEST(message) {
    withdrawn(MESSAGE, false);
}
END_TEST

START_TEST(message_under_a_lock) {
    withdrawn(MESSAGE, true);
}
END_TEST

START_TEST(shared_message_under_a_lock) {
    withdrawn(MESSAGE_SHARED, true);
}
END_TEST

/* Over several nodes it is made of steps, which all move. */
static bool one_node(void) {
    return dtr__backend_shm.score(dtr_world_group(th_world()), NULL, NULL) > 0;
}

START_TEST(broadcast_under_a_lock) {
    if (one_node()) {
        withdrawn(COLLECTIVE, true);
    }
}
END_TEST

START_TEST(shared_broadcast_under_a_lock) {
    if (one_node()) {
        withdrawn(COLLECTIVE_SHARED, true);
    }
}
END_TEST

/* ---- the owner's work ends while its own thread copies ---- */

static _Atomic int copying, go_on;

static void hold_copy(void) {
    atomic_store(&copying, 1);
    while (atomic_load(&go_on) == 0) {
        th_sleep(0.0002);
    }
}

static void *move(void *work) {
    bool done = false;
    (void)dtr_work_test(work, &done);
    return NULL;
}

/* A thread of the sender is in the midst of copying a short message when another one ends the work
 * and has the memory changed. */
START_TEST(copied_while_it_ends) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_PROGRESS_THREAD", "0", "DTR_WATCHDOG_MS", "60000");
    const bool possible = dtr__arena_usable(w);
    if (!possible) {
        th_skip("copied_while_it_ends", "no node-shared memory here");
    }
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g));
    char *x = mmap(NULL, SHORT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TH_ALL(x != MAP_FAILED, "no memory");
    if (possible && th_rank() == 0) {
        dtr_work *work = NULL;
        pthread_t mover;
        memset(x, 1, SHORT);
        atomic_store(&copying, 0);
        atomic_store(&go_on, 0);
        close_gate(x + PAGE, hold_copy);
        dtr__progress_lock_acquire(w,
                                   g->engine->progress); /* so that this thread does not copy it */
        TH_IS(dtr_send(g, dtr_cpu(x, SHORT, DTR_U8), 1, TAG, NULL, &work), DTR_OK);
        dtr__progress_lock_release(g->engine->progress);
        TH_CHECK(pthread_create(&mover, NULL, move, work) == 0, "no thread");
        while (atomic_load(&copying) == 0) {
            th_sleep(0.0002);
        }
        TH_IS(dtr_group_abort(g, "the owner has given up"), DTR_OK);
        TH_IS(dtr_work_wait(work, -1), DTR_ERR_ABORTED);
        open_gate();
        memset(x, 2, SHORT);
        atomic_store(&go_on, 1);
        pthread_join(mover, NULL);
        TH_IS(dtr_work_release(work), DTR_OK);
        remove_gate();
        tell(1);
    } else if (possible && th_rank() == 1) {
        hear(0);
        TH_IS(dtr_recv(g, dtr_cpu(x, SHORT, DTR_U8), 0, TAG, NULL, NULL), DTR_ERR_ABORTED);
        TH_MESSAGE("the owner has given up");
    }
    th_barrier();
    TH_IS(dtr_group_abort(g, "the test is over"), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    munmap(x, SHORT);
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* ---- a collective is given up because something beside it has failed ---- */

/* A message of a scope does not fit while an allreduce of it waits for the others: they learn from
 * the control block of the node what has failed, before the group has broken. */
START_TEST(given_up_for_its_neighbour) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_PROGRESS_THREAD", "0", "DTR_WATCHDOG_MS", "60000");
    const bool possible = dtr__backend_shm.score(dtr_world_group(w), NULL, NULL) > 0;
    if (!possible) {
        th_skip("given_up_for_its_neighbour", "the ranks share no memory here");
    }
    const dtr__shm_state *state = NULL;
    dtr_group *g = NULL;
    float x[4] = { 0 }, got[4], sum[4];
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g));
    for (int b = 0; b < g->backends.n; b++) {
        state = g->backends.table[b] == &dtr__backend_shm ? g->backends.state[b] : state;
    }
    if (possible && th_rank() == 0) {
        dtr_work *work = NULL;
        bool done = false;
        TH_IS(dtr_coalesce_begin(g), DTR_OK);
        TH_IS(dtr_recv(g, dtr_cpu(got, 4, DTR_F32), 1, TAG, NULL, NULL), DTR_OK);
        TH_IS(
            dtr_allreduce(g, dtr_cpu(x, 4, DTR_F32), dtr_cpu(sum, 4, DTR_F32), DTR_SUM, NULL, NULL),
            DTR_OK);
        TH_IS(dtr_coalesce_end(g, &work), DTR_OK);
        TH_IS(dtr_work_test(work, &done), DTR_OK); /* both have begun */
        tell(1);
        TH_IS(dtr_work_wait(work, -1), DTR_ERR_MISMATCH);
        TH_IS(dtr_work_release(work), DTR_OK);
    } else if (possible && th_rank() == 1) {
        hear(0); /* a short message may be on its way before anybody has looked at it */
        (void)dtr_send(g, dtr_cpu(x, 3, DTR_F32), 0, TAG, NULL, NULL);
    }
    th_barrier();
    if (possible) {
        TH_CHECK(state->control->status == DTR_ERR_MISMATCH &&
                     strstr(state->control->text, "DTR_OK") == NULL,
                 "the node reads: status %d, %s", (int)state->control->status,
                 state->control->text);
    }
    TH_IS(dtr_group_abort(g, "the test is over"), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "withdrawn", 60);
    th_add(tc, message, 2, 0);
    th_add(tc, message_under_a_lock, 2, 0);
    th_add(tc, shared_message_under_a_lock, 2, 0);
    th_add(tc, broadcast_under_a_lock, 2, 0);
    th_add(tc, shared_broadcast_under_a_lock, 2, 0);
    th_add(tc, copied_while_it_ends, 2, 0);
    th_add(tc, given_up_for_its_neighbour, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "withdrawn", make);
}
