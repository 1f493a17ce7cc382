/* What a rank copies out of the memory of another one's work that has ended meanwhile may be
 * anything, so it is never handed out as a result (reliability:EA3). The owner has its memory back
 * as soon as its work has ended, also while another of its threads holds the lock of the group, or
 * is in the midst of copying. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "coll_internal.h"
#include "harness.h"
#include "rt_internal.h"
#include "settings.h"
#include "shm_faults.h"

enum { PAGE = 4096, LONG = 600 * 1024, SHORT = 3 * PAGE, TAG = 4, GO_ON = 77 };

static void tell(int rank) {
    int word = 0;
    MPI_Send(&word, 1, MPI_INT, rank, GO_ON, MPI_COMM_WORLD);
}

static void hear(int rank) {
    int word = 0;
    MPI_Recv(&word, 1, MPI_INT, rank, GO_ON, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

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

/* A page that whoever touches it first has to wait at. */
static struct {
    char *page;
    void (*wait)(void);
    struct sigaction before;
    bool on;
} gate;

static void open_gate(void) {
    (void)mprotect(gate.page, PAGE, PROT_READ | PROT_WRITE);
}

static void at_gate(int signal, siginfo_t *info, void *context) {
    (void)context;
    if ((uintptr_t)info->si_addr - (uintptr_t)gate.page >= PAGE) {
        (void)sigaction(signal, &gate.before, NULL); /* a true fault: it comes again */
        return;
    }
    gate.wait();
    open_gate();
}

static void close_gate(char *page, void (*wait)(void)) {
    struct sigaction here = { .sa_sigaction = at_gate, .sa_flags = SA_SIGINFO };
    gate.page = page;
    gate.wait = wait;
    gate.on = true;
    TH_CHECK(sigaction(SIGSEGV, &here, &gate.before) == 0 && mprotect(page, PAGE, PROT_NONE) == 0,
             "no gate");
}

static void remove_gate(void) {
    if (gate.on) {
        open_gate();
        (void)sigaction(SIGSEGV, &gate.before, NULL);
        gate.on = false;
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
        dtr__latch_take(g->world, g->progress);
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
        dtr__latch_drop(g->progress);
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
 * group, and the news of the broken group is looked for behind the read. */
static void withdrawn(how h, bool locked) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_TUNE", "cma_p2p=1,cma_copy=1", "DTR_PROGRESS_THREAD",
                                 "0", "DTR_WATCHDOG_MS", "60000");
    const bool possible = by_kernel(h) ? dtr__cma_usable(w) : dtr__arena_usable(w);
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
        sched_yield();
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
        dtr__latch_take(w, g->progress); /* so that this thread does not copy it */
        TH_IS(dtr_send(g, dtr_cpu(x, SHORT, DTR_U8), 1, TAG, NULL, &work), DTR_OK);
        dtr__latch_drop(g->progress);
        TH_CHECK(pthread_create(&mover, NULL, move, work) == 0, "no thread");
        while (atomic_load(&copying) == 0) {
            sched_yield();
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

static void make(Suite *s) {
    TCase *tc = th_case(s, "withdrawn", 60);
    th_add(tc, message, 2, 0);
    th_add(tc, message_under_a_lock, 2, 0);
    th_add(tc, shared_message_under_a_lock, 2, 0);
    th_add(tc, broadcast_under_a_lock, 2, 0);
    th_add(tc, shared_broadcast_under_a_lock, 2, 0);
    th_add(tc, copied_while_it_ends, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "withdrawn", make);
}
