/* Nothing is written into memory that a rank has back: once its works have ended with an error, a
 * peer that has not heard of it, or stands still in the midst of a store, does not change what the
 * program, or the library, has there since (reliability:EA3). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/shm/shm_internal.h"
#include "engine/engine.h"
#include "gate.h"
#include "harness.h"
#include "settings.h"
#include "tell.h"

enum { PAGE = 4096, TAG = 4, NEW_BLOCKS = 120, FILL = 0x5a };
enum { BYTES = 1 << 20, COUNT = BYTES / 4 };

/* ---- a writer stands still ---- */

static bool held;
static void hold(void) {
    held = true;
    tell(0);
    hear(0);
}

/* The whole process, as a batch system or a debugger stops it. */
static void hold_process(void) {
    held = true;
    tell(0);
    (void)raise(SIGSTOP);
}

static char state_of(int pid) {
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (f != NULL) {
        if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) {
            state = '?';
        }
        fclose(f);
    }
    return state;
}

/* ---- a rank stands still while it stores ---- */

typedef enum how { REDUCED, STAGED, FETCHED, MESSAGE, MESSAGE_SHARED } how;
typedef enum then { FREED, KEPT } then;

static bool is_message(how h) {
    return h >= MESSAGE;
}

static bool is_shared(how h) {
    return h == REDUCED || h == FETCHED || h == MESSAGE_SHARED;
}

static dtr_status issue(dtr_group *g, how h, char *in, char *out, dtr_work **work) {
    if (!is_message(h)) {
        return dtr_allreduce(g, dtr_cpu(in, COUNT, DTR_F32), dtr_cpu(out, COUNT, DTR_F32), DTR_SUM,
                             NULL, work);
    }
    return th_rank() == 0 ? dtr_send(g, dtr_cpu(in, BYTES, DTR_U8), 1, TAG, NULL, work)
                          : dtr_recv(g, dtr_cpu(out, BYTES, DTR_U8), 0, TAG, NULL, work);
}

static size_t changed(const char *p, size_t n) {
    size_t differ = 0;
    for (size_t i = 0; i < n; i++) {
        differ += p[i] != FILL;
    }
    return differ;
}

static size_t new_bytes(size_t n) {
    return n < 4 ? BYTES : n < 20 ? 64 << 10 : PAGE;
}

/* Whatever the freed memory is used for next. */
static void fill_anew(dtr_world *w, char **block) {
    for (size_t n = 0; n < NEW_BLOCKS; n++) {
        void *p = NULL;
        TH_IS(
            dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, n < 4 ? BYTES : 64 << 10, &p),
            DTR_OK);
        block[n] = p;
        memset(p, FILL, new_bytes(n));
    }
}

static void check_new(dtr_world *w, char *const *block) {
    for (size_t n = 0; n < NEW_BLOCKS; n++) {
        const size_t differ = changed(block[n], new_bytes(n));
        TH_CHECK(differ == 0, "%zu bytes of new block %zu were changed", differ, n);
        TH_IS(dtr_free(w, block[n]), DTR_OK);
    }
}

static void go_on(int pid) {
    if (pid != 0) {
        (void)kill(pid, SIGCONT);
    } else {
        tell(1);
    }
}

/* Rank 0 gives up and takes its memory back, while rank 1 stands still. */
static void take_back(dtr_world *w, dtr_group *g, how h, then t, int pid, char *in, char **out) {
    dtr_work *work = NULL;
    char *block[NEW_BLOCKS];
    TH_IS(issue(g, h, in, *out, &work), DTR_OK);
    hear(1);
    while (pid != 0 && state_of(pid) != 'T') {
        th_sleep(0.001);
    }
    for (int r = 2; r < th_size() && is_message(h); r++) {
        tell(r);
    }
    TH_IS(dtr_group_abort(g, "rank 0 has given up"), DTR_OK);
    TH_IS(dtr_work_wait(work, -1), DTR_ERR_ABORTED);
    TH_IS(dtr_work_release(work), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    if (t == FREED && is_shared(h)) {
        TH_IS(dtr_free(w, *out), DTR_OK);
        *out = NULL;
    } else {
        memset(*out, FILL, BYTES);
    }
    fill_anew(w, block);
    go_on(pid);
    hear(1);
    if (*out != NULL) {
        const size_t differ = changed(*out, BYTES);
        TH_CHECK(differ == 0, "%zu bytes were changed after the group had been destroyed", differ);
    }
    check_new(w, block);
}

static void stand_still(dtr_group *g, how h, bool by_signal, char *in, char *out) {
    const size_t slice = (size_t)BYTES / (size_t)th_size();
    held = false;
    close_gate(out + (h == REDUCED ? slice : 0) + 16 * PAGE, by_signal ? hold_process : hold);
    TH_IS(issue(g, h, in, out, NULL), DTR_ERR_ABORTED);
    TH_CHECK(held, "it was not stored where the test expects it");
    if (!held) {
        (by_signal ? hold_process : hold)();
    }
    remove_gate();
    TH_IS(dtr_group_destroy(g), DTR_OK);
    tell(0);
}

/* What became of the memory does not matter to those who use it next. */
static void use_again(dtr_world *w, float *in, float *out) {
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g));
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            in[i] = (float)(th_rank() + 1 + round);
        }
        const float sum = (float)(th_size() * (th_size() + 1) / 2 + round * th_size());
        size_t wrong = 0;
        TH_IS(dtr_allreduce(g, dtr_cpu(in, COUNT, DTR_F32), dtr_cpu(out, COUNT, DTR_F32), DTR_SUM,
                            NULL, NULL),
              DTR_OK);
        for (size_t i = 0; i < COUNT; i++) {
            wrong += out[i] != sum;
        }
        TH_CHECK(wrong == 0, "round %d: %zu of %d sums are wrong", round, wrong, COUNT);
    }
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}

static void *memory(dtr_world *w, bool shared) {
    void *p = NULL;
    TH_IS(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, shared ? DTR_MEM_SHARED : DTR_MEM_DEFAULT, BYTES,
                    &p),
          DTR_OK);
    return p;
}

/* The same on all ranks. */
static bool shm_serves(dtr_world *w, const char *test) {
    const bool serves = dtr__backend_shm.score(dtr_world_group(w), NULL, NULL) > 0;
    if (!serves) {
        th_skip(test, "the ranks share no memory here");
    }
    return serves;
}

static bool ranks_fetch(dtr_world *w) {
    const bool fetch = dtr__cma_usable(w);
    if (!fetch) {
        th_skip("fetched", "the kernel lets no rank read another's memory");
    }
    return fetch;
}

static void stops(how h, then t, bool by_signal) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_TUNE",
                                 h == FETCHED ? "zero_copy=never,cma_reduce=1"
                                              : "cma_p2p=never,cma_reduce=never");
    const bool possible =
        shm_serves(w, "a rank that stands still") && (h != FETCHED || ranks_fetch(w));
    char *in = memory(w, is_shared(h)), *out = memory(w, is_shared(h));
    uint64_t pids[64];
    dtr_group *g = NULL;
    th_gather_u64((uint64_t)getpid(), pids);
    memset(in, 0, BYTES);
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g));
    if (possible && th_rank() == 0) {
        take_back(w, g, h, t, by_signal ? (int)pids[1] : 0, in, &out);
    } else if (possible && th_rank() == 1) {
        stand_still(g, h, by_signal, in, out);
    } else {
        if (possible && !is_message(h)) {
            TH_IS(issue(g, h, in, out, NULL), DTR_ERR_ABORTED);
        } else if (possible) {
            hear(0); /* the others are where they are to be */
        }
        (void)dtr_group_abort(g, "not in it");
        TH_IS(dtr_group_destroy(g), DTR_OK);
    }
    TH_AGREE();
    out = out != NULL ? out : memory(w, true);
    use_again(w, (float *)(void *)in, (float *)(void *)out);
    TH_IS(dtr_free(w, in), DTR_OK);
    TH_IS(dtr_free(w, out), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}

START_TEST(freed_while_reduced) {
    stops(REDUCED, FREED, false);
}
END_TEST

START_TEST(kept_while_reduced) {
    stops(REDUCED, KEPT, false);
}
END_TEST

START_TEST(freed_while_stopped) {
    stops(REDUCED, FREED, true);
}
END_TEST

START_TEST(kept_while_stopped) {
    stops(REDUCED, KEPT, true);
}
END_TEST

START_TEST(staged) {
    stops(STAGED, KEPT, true);
}
END_TEST

START_TEST(fetched) {
    stops(FETCHED, FREED, true);
}
END_TEST

START_TEST(message) {
    stops(MESSAGE, KEPT, true);
}
END_TEST

START_TEST(shared_message) {
    stops(MESSAGE_SHARED, FREED, true);
}
END_TEST

/* ---- another thread of the same rank ---- */

static _Atomic int copying;
static const dtr__shm_board *own_row;

static void hold_until_withdrawn(void) {
    atomic_store(&copying, 1);
    while (atomic_load(&own_row->withdrawn) == 0) {
        th_sleep(0.0002);
    }
    th_sleep(2); /* as a thread that has lost its core: longer than others are waited for */
}

static void *move(void *work) {
    bool done = false;
    while (!done && dtr_work_test(work, &done) == DTR_OK) {
    }
    return NULL;
}

/* It copies results into the program's memory when the work ends. */
START_TEST(own_thread) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_PROGRESS_THREAD", "0", "DTR_WATCHDOG_MS", "60000");
    const bool possible = shm_serves(w, "own_thread");
    char *in = memory(w, false), *out = memory(w, false);
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g));
    memset(in, 0, BYTES);
    if (possible && th_rank() == 0) {
        dtr_work *work = NULL;
        pthread_t mover;
        for (int i = 0; i < g->backends.n; i++) {
            if (g->backends.table[i] == &dtr__backend_shm) {
                own_row = ((const dtr__shm_state *)g->backends.state[i])->boards[g->rank];
            }
        }
        atomic_store(&copying, 0);
        close_gate(out + 2 * PAGE, hold_until_withdrawn);
        dtr__progress_lock_acquire(w,
                                   g->engine->progress); /* so that this thread does not copy it */
        TH_IS(issue(g, STAGED, in, out, &work), DTR_OK);
        dtr__progress_lock_release(g->engine->progress);
        TH_CHECK(pthread_create(&mover, NULL, move, work) == 0, "no thread");
        while (atomic_load(&copying) == 0) {
            th_sleep(0.0002);
        }
        TH_IS(dtr_group_abort(g, "rank 0 has given up"), DTR_OK);
        TH_IS(dtr_work_wait(work, -1), DTR_ERR_ABORTED);
        memset(out + 4 * PAGE, FILL, BYTES - 4 * PAGE); /* behind the gate */
        pthread_join(mover, NULL);
        const size_t differ = changed(out + 4 * PAGE, BYTES - 4 * PAGE);
        TH_CHECK(differ == 0, "%zu bytes were changed after the work had ended", differ);
        TH_IS(dtr_work_release(work), DTR_OK);
        remove_gate();
    } else if (possible) {
        TH_IS(issue(g, STAGED, in, out, NULL), DTR_ERR_ABORTED);
    }
    (void)dtr_group_abort(g, "the test is over");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_free(w, in), DTR_OK);
    TH_IS(dtr_free(w, out), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* ---- another group's output in the same page ---- */

/* Rank 1 stands still in the last piece of what it stores for one group, whose output ends in the
 * page in which that of another group begins. */
START_TEST(neighbour) {
    enum { FIRST = BYTES - PAGE / 2, FIRST_COUNT = FIRST / 4 };
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_TUNE", "cma_reduce=never");
    const bool possible = shm_serves(w, "neighbour");
    dtr_group *g = NULL, *other = NULL;
    void *in = NULL, *out = NULL;
    dtr_work *first = NULL, *second = NULL;
    TH_OK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, 2 * BYTES, &in));
    TH_OK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, 2 * BYTES, &out));
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g));
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &other));
    memset(in, 0, 2 * BYTES);
    memset(out, FILL, 2 * BYTES);
    const dtr_buffer from = dtr_cpu(in, FIRST_COUNT, DTR_F32),
                     to = dtr_cpu(out, FIRST_COUNT, DTR_F32),
                     from2 = dtr_cpu((char *)in + FIRST, COUNT, DTR_F32),
                     to2 = dtr_cpu((char *)out + FIRST, COUNT, DTR_F32);
    if (possible && th_rank() == 0) {
        TH_IS(dtr_allreduce(other, from2, to2, DTR_SUM, NULL, &second), DTR_OK);
        TH_IS(dtr_allreduce(g, from, to, DTR_SUM, NULL, &first), DTR_OK);
        hear(1);
        TH_IS(dtr_group_abort(g, "rank 0 has given up"), DTR_OK);
        TH_IS(dtr_work_wait(first, -1), DTR_ERR_ABORTED);
        memset(out, FILL, FIRST);
        tell(1);
        const dtr_status s = dtr_work_wait(second, -1);
        TH_CHECK(s == DTR_ERR_SYSTEM, "ended with %s", dtr_status_name(s));
        TH_MESSAGE("no longer shared");
        TH_CHECK(changed(out, FIRST) == 0, "memory was changed after its work had ended");
        TH_IS(dtr_work_release(first), DTR_OK);
        TH_IS(dtr_work_release(second), DTR_OK);
    } else if (possible) {
        close_gate((char *)out + FIRST - 2 * PAGE, hold);
        TH_IS(dtr_allreduce(g, from, to, DTR_SUM, NULL, NULL), DTR_ERR_ABORTED);
        remove_gate();
        (void)dtr_allreduce(other, from2, to2, DTR_SUM, NULL, NULL); /* its own output is right */
    }
    th_barrier();
    (void)dtr_group_abort(g, "the test is over");
    (void)dtr_group_abort(other, "the test is over");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_group_destroy(other), DTR_OK);
    TH_AGREE();
    use_again(w, in, (float *)(void *)((char *)out + FIRST));
    TH_IS(dtr_free(w, in), DTR_OK);
    TH_IS(dtr_free(w, out), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* ---- a group that one rank has left ---- */

/* The other goes on in it, in blocks and channels that the first one has kept for it. */
START_TEST(left_alone) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_LOG", "error");
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    char *block[NEW_BLOCKS];
    char some[64] = { 0 };
    o.timeout_s = 1;
    g = th_hasty_group(w, &o);
    const int to = 1 - th_rank();
    if (th_rank() == 0) { /* a channel each way */
        TH_IS(dtr_send(g, dtr_cpu(some, 64, DTR_U8), to, TAG, NULL, NULL), DTR_OK);
        TH_IS(dtr_recv(g, dtr_cpu(some, 64, DTR_U8), to, TAG, NULL, NULL), DTR_OK);
        TH_IS(dtr_group_destroy(g), DTR_ERR_TIMEOUT);
        fill_anew(w, block);
        tell(1);
        hear(1);
        check_new(w, block);
    } else {
        TH_IS(dtr_recv(g, dtr_cpu(some, 64, DTR_U8), to, TAG, NULL, NULL), DTR_OK);
        TH_IS(dtr_send(g, dtr_cpu(some, 64, DTR_U8), to, TAG, NULL, NULL), DTR_OK);
        hear(0);
        dtr_status s = dtr_allreduce(g, dtr_cpu(some, 64, DTR_U8), dtr_cpu(some, 64, DTR_U8),
                                     DTR_MAX, NULL, NULL);
        TH_CHECK(s < 0, "an allreduce with nobody ended well");
        tell(0);
        (void)dtr_group_destroy(g);
    }
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}
END_TEST

/* ---- aborts under load ---- */

static struct {
    dtr_group *g;
    double after_s;
} aborter;

static void *abort_later(void *unused) {
    th_sleep(aborter.after_s);
    (void)dtr_group_abort(aborter.g, "another thread has given up");
    return unused;
}

static size_t round_of(dtr_world *w, size_t nbytes, char *in, char *out, int who, double after_s) {
    const dtr_buffer all = dtr_cpu(in, nbytes / 4, DTR_F32),
                     sum = dtr_cpu(out, nbytes / 4, DTR_F32);
    pthread_t thread;
    TH_OK(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &aborter.g));
    aborter.after_s = after_s;
    if (th_rank() == who) {
        TH_CHECK(pthread_create(&thread, NULL, abort_later, NULL) == 0, "no thread");
    }
    dtr_status s = DTR_OK;
    while (s == DTR_OK) {
        s = dtr_allreduce(aborter.g, all, sum, DTR_SUM, NULL, NULL);
    }
    if (th_rank() == who) {
        pthread_join(thread, NULL);
    }
    TH_CHECK(s == DTR_ERR_ABORTED, "ended with %s", dtr_status_name(s));
    TH_IS(dtr_group_destroy(aborter.g), DTR_OK);
    memset(out, FILL, nbytes);
    th_barrier();
    return changed(out, nbytes);
}

START_TEST(aborted_under_load) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_LOG", "error");
    const char *asked = getenv("LENT_ROUNDS"), *size = getenv("LENT_MIB");
    const int rounds = asked != NULL ? atoi(asked) : TH_SANITIZED ? 4 : 12;
    const size_t nbytes = (size_t)(size != NULL ? atoi(size) : TH_SANITIZED ? 2 : 16) << 20;
    void *in = NULL, *out = NULL;
    int hurt = 0;
    TH_OK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, nbytes, &in));
    TH_OK(dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, nbytes, &out));
    memset(in, 0, nbytes);
    srand(1);
    for (int round = 0; round < rounds; round++) {
        const double after_s = rand() % 2000 * 1e-5;
        hurt += round_of(w, nbytes, in, out, round % th_size(), after_s) > 0;
        TH_AGREE();
    }
    TH_CHECK(hurt == 0, "memory was changed after %d of %d destructions", hurt, rounds);
    TH_IS(dtr_free(w, in), DTR_OK);
    TH_IS(dtr_free(w, out), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_world_destroy(w));
}
END_TEST

static void make(Suite *s) {
    const char *asked = getenv("LENT_ROUNDS");
    TCase *tc = th_case(s, "lent", asked != NULL ? 1500 : 120);
    th_add(tc, aborted_under_load, 2, 0);
    if (asked != NULL) {
        return;
    }
    th_add(tc, freed_while_reduced, 2, 0);
    th_add(tc, kept_while_reduced, 2, 0);
    th_add(tc, freed_while_stopped, 2, 0);
    th_add(tc, kept_while_stopped, 2, 0);
    th_add(tc, staged, 2, 0);
    th_add(tc, fetched, 2, 0);
    th_add(tc, message, 2, 0);
    th_add(tc, shared_message, 2, 0);
    th_add(tc, own_thread, 2, 0);
    th_add(tc, neighbour, 2, 2);
    th_add(tc, left_alone, 2, 2);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "lent", make);
}
