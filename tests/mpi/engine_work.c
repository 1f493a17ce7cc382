/* Work handles: waiting, testing, sources, sequence numbers, callbacks, limits (WRK rows). */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "data.h"
#include "harness.h"

static dtr_buffer i32s(int32_t *x, size_t n) {
    return dtr_cpu(x, n, DTR_I32);
}

static int32_t triangle(int n) {
    return n * (n + 1) / 2;
}

/* The test has broken its group on some ranks: let all know, so that its end is local. */
static void all_break(void) {
    TH_AGREE();
    TH_IS(dtr_group_abort(th_group(), "the test is over"), DTR_OK);
    th_good_allreduce(dtr_world_group(th_world()));
}

/* WRK1: with a work the call returns a handle, without one it blocks; a refused call leaves *work.
 */
START_TEST(handle_or_block) {
    int32_t x = th_rank() + 1, y = 0;
    dtr_work *w = NULL, *const untouched = (dtr_work *)&x;
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL, NULL), DTR_OK);
    TH_CHECK(y == triangle(th_size()), "blocking result is %d", y);
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_MAX, NULL, &w), DTR_OK);
    TH_CHECK(w != NULL, "no handle");
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(y == th_size(), "asynchronous result is %d", y);
    TH_IS(dtr_work_release(w), DTR_OK);
    w = untouched;
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(NULL, 1), DTR_SUM, NULL, &w), DTR_ERR_ARG);
    TH_CHECK(w == untouched, "a refused call wrote *work");
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* WRK1, GRP2, Y2: outsiders get DTR_NOT_MEMBER and a NULL handle, also with bad arguments. */
START_TEST(not_a_member) {
    int32_t x = 7;
    dtr_work *w = (dtr_work *)&x;
    TH_IS(dtr_allreduce(NULL, i32s(NULL, 1), i32s(&x, 9), DTR_SUM, NULL, &w), DTR_NOT_MEMBER);
    TH_CHECK(w == NULL, "*work is not NULL");
    w = (dtr_work *)&x;
    TH_IS(dtr_send(NULL, i32s(&x, 1), -5, -5, NULL, &w), DTR_NOT_MEMBER);
    TH_CHECK(w == NULL, "*work is not NULL");
    TH_IS(dtr_barrier(NULL, NULL, NULL), DTR_NOT_MEMBER);
    TH_ALL(x == 7, "a buffer was touched");
}
END_TEST

/* WRK16, nccl:L9: the NULL work. */
START_TEST(null_work) {
    bool done = false;
    TH_IS(dtr_work_wait(NULL, -1), DTR_OK);
    TH_IS(dtr_work_synchronize(NULL, 0), DTR_OK);
    TH_IS(dtr_work_release(NULL), DTR_OK);
    TH_IS(dtr_work_test(NULL, &done), DTR_OK);
    TH_CHECK(done, "a NULL work is not done");
    TH_CHECK(dtr_work_seq(NULL) == 0 && dtr_work_source(NULL) == -1, "seq or source of NULL");
    TH_IS(dtr_work_on_complete(NULL, NULL, NULL), DTR_ERR_ARG);
    TH_AGREE();
}
END_TEST

enum { MANY = 50 };

typedef struct waiter {
    dtr_work **works;
    int bad;
} waiter;

static void *wait_backwards(void *arg) {
    waiter *me = arg;
    for (int i = MANY - 1; i >= 0; i--) {
        me->bad += dtr_work_wait(me->works[i], -1) != DTR_OK;
    }
    return NULL;
}

/* WRK5, WRK13: 50 works, in reverse order, by two threads, several times. */
START_TEST(any_order_any_thread) {
    int32_t x[MANY], y[MANY];
    dtr_work *works[MANY];
    for (int i = 0; i < MANY; i++) {
        x[i] = i + th_rank();
        TH_IS(dtr_allreduce(th_group(), i32s(&x[i], 1), i32s(&y[i], 1), DTR_SUM, NULL, &works[i]),
              DTR_OK);
    }
    waiter me = { works, 0 }, other = { works, 0 };
    pthread_t thread;
    bool threads = strcmp(th_thread_level(), "multiple") == 0;
    if (threads) {
        pthread_create(&thread, NULL, wait_backwards, &other);
    }
    wait_backwards(&me);
    if (threads) {
        pthread_join(thread, NULL);
    }
    wait_backwards(&me);
    TH_CHECK(me.bad == 0 && other.bad == 0, "%d and %d waits failed", me.bad, other.bad);
    for (int i = 0; i < MANY; i++) {
        int want = i * th_size() + triangle(th_size() - 1);
        TH_CHECK(y[i] == want, "work %d gave %d, not %d", i, y[i], want);
        TH_IS(dtr_work_release(works[i]), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* WRK12: wait 0 and test look only; the group is unharmed. */
START_TEST(looking_is_harmless) {
    int32_t x = 0, y = 5;
    dtr_work *w = NULL;
    bool done = true;
    if (th_rank() == 0) {
        TH_IS(dtr_recv(th_group(), i32s(&x, 1), 1, 3, NULL, &w), DTR_OK);
        TH_IS(dtr_work_wait(w, 0), DTR_IN_PROGRESS);
        TH_IS(dtr_work_test(w, &done), DTR_OK);
        TH_CHECK(!done, "done without a sender");
        TH_IS(dtr_work_test(w, NULL), DTR_ERR_ARG);
        TH_IS(dtr_work_wait(w, NAN), DTR_ERR_ARG);
        TH_CHECK(dtr_work_source(w) == -1, "a source before completion");
    }
    th_barrier();
    if (th_rank() == 1) {
        TH_IS(dtr_send(th_group(), i32s(&y, 1), 0, 3, NULL, NULL), DTR_OK);
    }
    if (th_rank() == 0) {
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_IS(dtr_work_wait(w, 0), DTR_OK);
        TH_IS(dtr_work_test(w, &done), DTR_OK);
        TH_CHECK(done && x == 5, "done %d, value %d", done, x);
        TH_CHECK(dtr_work_source(w) == 1, "source is %d", dtr_work_source(w));
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* WRK17, GRP25: collectives count in the group, point to point on this rank; refused calls do not.
 */
START_TEST(sequence_numbers) {
    dtr_group *g = th_group();
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    uint64_t first = dtr_group_seq(g);
    int32_t x = 1, y;
    dtr_work *a, *b, *s, *r;
    TH_IS(dtr_allreduce(g, i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL, &a), DTR_OK);
    TH_IS(dtr_send(g, i32s(&x, 1), next, 0, NULL, &s), DTR_OK);
    TH_IS(dtr_recv(g, i32s(&y, 1), before, 0, NULL, &r), DTR_OK);
    TH_IS(dtr_allreduce(g, i32s(&x, 1), i32s(&y, 2), DTR_SUM, NULL, NULL), DTR_ERR_SHAPE);
    TH_IS(dtr_barrier(g, NULL, &b), DTR_OK);
    TH_CHECK(dtr_work_seq(a) == first + 1 && dtr_work_seq(b) == first + 2, "collectives %d and %d",
             (int)dtr_work_seq(a), (int)dtr_work_seq(b));
    TH_CHECK(dtr_work_seq(r) == dtr_work_seq(s) + 1, "p2p %d and %d", (int)dtr_work_seq(s),
             (int)dtr_work_seq(r));
    TH_CHECK(dtr_group_seq(g) == first + 2, "group seq moved by %d",
             (int)(dtr_group_seq(g) - first));
    dtr_work *all[] = { a, s, r, b };
    for (int i = 0; i < 4; i++) {
        TH_IS(dtr_work_wait(all[i], -1), DTR_OK);
        TH_IS(dtr_work_release(all[i]), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* ---- callbacks ---- */

typedef struct calls {
    atomic_int n, bad;
    dtr_status want;
    dtr_group *group;
    atomic_int blocking;
} calls;

static void count(dtr_work *w, dtr_status s, void *arg) {
    calls *c = arg;
    bool done = false;
    atomic_fetch_add(&c->n, 1);
    if (s != c->want || dtr_work_test(w, &done) != s || !done) {
        atomic_fetch_add(&c->bad, 1);
    }
}

/* WRK14, nccl:R1: 1000 works, one call each, with several registrations on the first. */
START_TEST(callbacks_once) {
    enum { N = 1000 };
    static int32_t x[N];
    static dtr_work *works[N];
    calls c = { .want = DTR_OK };
    for (int i = 0; i < N; i++) {
        x[i] = 1;
        TH_IS(dtr_allreduce(th_group(), i32s(&x[i], 1), i32s(&x[i], 1), DTR_SUM, NULL, &works[i]),
              DTR_OK);
        TH_IS(dtr_work_on_complete(works[i], count, &c), DTR_OK);
        if (i % 2 == 0) {
            TH_IS(dtr_work_release(works[i]), DTR_OK);
        }
    }
    for (int i = 1; i < N; i += 2) {
        TH_IS(dtr_work_wait(works[i], -1), DTR_OK);
    }
    TH_CHECK(c.n == N && c.bad == 0, "%d calls, %d bad", c.n, c.bad);
    TH_IS(dtr_work_on_complete(works[1], count, &c), DTR_OK);
    TH_CHECK(c.n == N + 1, "a finished work did not call back at once");
    for (int i = 1; i < N; i += 2) {
        TH_IS(dtr_work_release(works[i]), DTR_OK);
        TH_CHECK(x[i] == th_size(), "work %d gave %d", i, x[i]);
    }
    TH_AGREE();
}
END_TEST

static void block_inside(dtr_work *w, dtr_status s, void *arg) {
    calls *c = arg;
    int32_t x = 1;
    (void)w;
    (void)s;
    c->blocking = dtr_allreduce(c->group, i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, NULL);
    atomic_fetch_add(&c->n, 1);
}

static int32_t started_inside = 1;
static dtr_work *work_inside;

static void start_inside(dtr_work *w, dtr_status s, void *arg) {
    calls *c = arg;
    (void)w;
    (void)s;
    c->bad = dtr_allreduce(c->group, i32s(&started_inside, 1), i32s(&started_inside, 1), DTR_SUM,
                           NULL, &work_inside) != DTR_OK;
    atomic_fetch_add(&c->n, 1);
}

/* WRK14, T130, nccl:R1: a blocking call inside is DTR_ERR_STATE, an asynchronous one is legal. */
START_TEST(callbacks_and_calls) {
    int32_t x = 1;
    dtr_work *w;
    calls blocking = { .group = th_group() }, starting = { .group = th_group() };
    started_inside = 1;
    TH_IS(dtr_barrier(th_group(), NULL, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, block_inside, &blocking), DTR_OK);
    TH_IS(dtr_work_on_complete(w, start_inside, &starting), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(blocking.n == 1 && blocking.blocking == DTR_ERR_STATE, "%d calls, status %d",
             blocking.n, blocking.blocking);
    TH_CHECK(starting.n == 1 && starting.bad == 0, "asynchronous call inside failed");
    TH_IS(dtr_work_wait(work_inside, -1), DTR_OK);
    TH_CHECK(started_inside == th_size(), "it gave %d", started_inside);
    TH_IS(dtr_work_release(work_inside), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
    th_good_allreduce(th_group());
    (void)x;
}
END_TEST

/* WRK15: released at once, the operations go on; T08: the barrier completes them. */
START_TEST(released_before_completion) {
    enum { N = 16, COUNT = 10000 };
    static float x[N][COUNT];
    for (int i = 0; i < N; i++) {
        dtr_work *w;
        for (int k = 0; k < COUNT; k++) {
            x[i][k] = (float)i;
        }
        dtr_buffer b = dtr_cpu(x[i], COUNT, DTR_F32);
        TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, NULL, &w), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
    for (int i = 0; i < N; i++) {
        TH_CHECK(x[i][0] == (float)(i * th_size()) && x[i][COUNT - 1] == x[i][0],
                 "tensor %d has %g", i, x[i][0]);
    }
    TH_AGREE();
}
END_TEST

/* BAR3: a barrier waits for this rank's earlier point to point works. */
START_TEST(barrier_waits_for_p2p) {
    int32_t x = 0, y = th_rank();
    int n = th_size();
    dtr_work *r, *s;
    bool done = false;
    TH_IS(dtr_recv(th_group(), i32s(&x, 1), (th_rank() + n - 1) % n, 9, NULL, &r), DTR_OK);
    TH_IS(dtr_send(th_group(), i32s(&y, 1), (th_rank() + 1) % n, 9, NULL, &s), DTR_OK);
    TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
    TH_IS(dtr_work_test(r, &done), DTR_OK);
    TH_CHECK(done, "the receive is unfinished after the barrier");
    TH_IS(dtr_work_test(s, &done), DTR_OK);
    TH_CHECK(done, "the send is unfinished after the barrier");
    TH_CHECK(x == (th_rank() + n - 1) % n, "received %d", x);
    TH_IS(dtr_work_release(r), DTR_OK);
    TH_IS(dtr_work_release(s), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- limits ---- */

/* WRK10, ENV8, DL1: a reached limit breaks the group; later calls return the same status and text.
 */
START_TEST(limit_breaks_the_group) {
    int32_t x = 1, y = 0;
    char first[1024] = "";
    dtr_work *pending = NULL;
    if (th_rank() != 0) {
        TH_IS(dtr_recv(th_group(), i32s(&y, 1), 0, 1, NULL, &pending), DTR_OK);
    }
    th_barrier(); /* the first limit ends the group for all */
    if (th_rank() != 0) {
        dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
        o.timeout_s = 0.3;
        o.label = "late";
        dtr_work *later = NULL;
        TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, &o, NULL),
              DTR_ERR_TIMEOUT);
        TH_MESSAGE("allreduce #");
        TH_MESSAGE("'late'");
        TH_MESSAGE("0.3 s");
        TH_MESSAGE("engine_work.c:");
        strncpy(first, dtr_last_error_message(), sizeof first - 1);
        TH_IS(dtr_work_wait(pending, 10), DTR_ERR_TIMEOUT);
        TH_CHECK(strcmp(first, dtr_last_error_message()) == 0, "a pending work says \"%s\"",
                 dtr_last_error_message());
        TH_IS(dtr_barrier(th_group(), NULL, &later), DTR_ERR_TIMEOUT);
        TH_CHECK(strcmp(first, dtr_last_error_message()) == 0, "a later call says \"%s\"",
                 dtr_last_error_message());
        TH_CHECK(later == NULL, "a later call gave a handle");
        TH_CHECK(dtr_group_status(th_group()) == DTR_ERR_TIMEOUT, "group status is %d",
                 dtr_group_status(th_group()));
        TH_IS(dtr_work_release(pending), DTR_OK);
    }
    all_break();
}
END_TEST

/* T02, DL1: a positive wait replaces the operation's limit, both ways; negative keeps it. */
START_TEST(wait_replaces_the_limit) {
    int32_t y = 0;
    dtr_work *w;
    if (th_rank() == 0) {
        TH_IS(dtr_recv(th_group(), i32s(&y, 1), th_size() - 1, 1, NULL, &w), DTR_OK);
        TH_IS(dtr_work_wait(w, 0), DTR_IN_PROGRESS);
        TH_IS(dtr_work_wait(w, 0.2), DTR_ERR_TIMEOUT);
        TH_MESSAGE("0.2 s");
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    all_break();
}
END_TEST

/* DL3, nccl:K3: what nobody waits for has its limit too (where there is a progress thread). */
START_TEST(limit_without_waiter) {
    int32_t y = 0;
    dtr_work *w;
    calls c = { .want = DTR_ERR_TIMEOUT };
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    bool threads = strcmp(th_thread_level(), "multiple") == 0;
    if (th_rank() == 0) { /* its limit ends the group for all, who have begun before */
        th_barrier();
        o.timeout_s = 0.2;
    }
    TH_IS(dtr_recv(th_group(), i32s(&y, 1), DTR_ANY_SOURCE, 1, &o, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, count, &c), DTR_OK);
    if (th_rank() != 0) {
        th_barrier();
    }
    while (c.n == 0) {
        bool done;
        th_sleep(0.01);
        if (!threads) {
            (void)dtr_work_test(w, &done);
        }
    }
    TH_CHECK(c.n == 1 && c.bad == 0, "%d calls, %d bad", c.n, c.bad);
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_TIMEOUT);
    TH_IS(dtr_work_release(w), DTR_OK);
    all_break();
}
END_TEST

/* ENV11: what is no limit. */
START_TEST(bad_limits) {
    int32_t x = 1;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = NAN;
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&x, 1), DTR_SUM, &o, NULL), DTR_ERR_ARG);
    TH_MESSAGE("timeout_s");
    o.timeout_s = INFINITY;
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&x, 1), DTR_SUM, &o, NULL), DTR_OK);
    TH_ALL(x == th_size(), "result %d", x);
}
END_TEST

/* ---- abort ---- */

static void *abort_soon(void *arg) {
    th_sleep(0.1);
    (void)dtr_group_abort(arg, "enough of it");
    return NULL;
}

/* DES12, Y2 on this rank, nccl:K3, nccl:K6: from a second thread while all wait; waiting, pending
 * and later calls agree, and the first reason stays. */
START_TEST(abort_releases_waiters) {
    int32_t x = 1, y = 0;
    dtr_work *pending, *queued;
    pthread_t thread;
    calls c = { .want = DTR_ERR_ABORTED };
    TH_IS(dtr_recv(th_group(), i32s(&x, 1), DTR_ANY_SOURCE, 2, NULL, &pending), DTR_OK);
    TH_IS(dtr_work_on_complete(pending, count, &c), DTR_OK);
    TH_IS(dtr_recv(th_group(), i32s(&y, 1), DTR_ANY_SOURCE, 4, NULL, &queued), DTR_OK);
    th_barrier(); /* one rank's abort reaches the others */
    pthread_create(&thread, NULL, abort_soon, th_group());
    TH_IS(dtr_recv(th_group(), i32s(&x, 1), DTR_ANY_SOURCE, 3, NULL, NULL), DTR_ERR_ABORTED);
    TH_MESSAGE("enough of it");
    pthread_join(thread, NULL);
    TH_IS(dtr_work_wait(pending, -1), DTR_ERR_ABORTED);
    TH_MESSAGE("enough of it");
    TH_IS(dtr_work_wait(queued, -1), DTR_ERR_ABORTED);
    TH_CHECK(c.n == 1 && c.bad == 0, "%d calls, %d bad", c.n, c.bad);
    TH_IS(dtr_group_abort(th_group(), "again"), DTR_OK);
    TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_ERR_ABORTED);
    TH_MESSAGE("enough of it");
    TH_IS(dtr_work_release(pending), DTR_OK);
    TH_IS(dtr_work_release(queued), DTR_OK);
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* ---- independence ---- */

/* WRK18, nccl:R1: group A waits for ranks that do not come, B finishes; works complete, and call
 * back, while callers sleep. */
START_TEST(groups_are_independent) {
    dtr_group *b = dtr_world_group(th_world());
    int32_t x = 1, y = 0, z = 1;
    dtr_work *stuck = NULL, *w;
    calls c = { .want = DTR_OK };
    if (th_rank() != 0) {
        TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL, &stuck), DTR_OK);
    }
    TH_IS(dtr_allreduce(b, i32s(&z, 1), i32s(&z, 1), DTR_SUM, NULL, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, count, &c), DTR_OK);
    while (c.n == 0) {
        bool done;
        th_sleep(0.005);
        if (strcmp(th_thread_level(), "multiple") != 0) {
            TH_IS(dtr_work_test(w, &done), DTR_OK);
        }
    }
    TH_CHECK(c.n == 1 && z == th_size(), "B gave %d (%d calls)", z, c.n);
    TH_IS(dtr_work_release(w), DTR_OK);
    if (th_rank() == 0) {
        TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL, NULL), DTR_OK);
    } else {
        TH_IS(dtr_work_wait(stuck, -1), DTR_OK);
        TH_IS(dtr_work_release(stuck), DTR_OK);
    }
    TH_ALL(y == th_size(), "A gave %d", y);
}
END_TEST

/* A receive nobody serves must not hold up collectives. */
START_TEST(unserved_receive) {
    int32_t x = 0, y = 3;
    dtr_work *r;
    int n = th_size();
    TH_IS(dtr_recv(th_group(), i32s(&x, 1), (th_rank() + n - 1) % n, 77, NULL, &r), DTR_OK);
    th_good_allreduce(th_group());
    dtr_work *s;
    TH_IS(dtr_send(th_group(), i32s(&y, 1), (th_rank() + 1) % n, 77, NULL, &s), DTR_OK);
    TH_IS(dtr_work_wait(r, -1), DTR_OK);
    TH_IS(dtr_work_wait(s, -1), DTR_OK);
    TH_CHECK(x == 3, "received %d", x);
    TH_IS(dtr_work_release(r), DTR_OK);
    TH_IS(dtr_work_release(s), DTR_OK);
    TH_AGREE();
}
END_TEST

/* DES15, Y2: works stay valid after their group is destroyed. */
START_TEST(works_outlive_groups) {
    dtr_group *g = NULL;
    int32_t x = 1;
    dtr_work *w;
    bool done = false;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
    TH_IS(dtr_allreduce(g, i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, &w), DTR_OK);
    TH_OK(dtr_group_destroy(g));
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(done && x == th_size(), "done %d value %d", done, x);
    TH_CHECK(dtr_work_seq(w) == 1, "seq %d", (int)dtr_work_seq(w));
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_STATE);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "handles", 60);
    th_add(tc, handle_or_block, 0, 0);
    th_add(tc, not_a_member, 0, 0);
    th_add(tc, null_work, 0, 0);
    th_add(tc, any_order_any_thread, 0, 0);
    th_add(tc, looking_is_harmless, 2, 0);
    th_add(tc, sequence_numbers, 0, 0);
    th_add(tc, callbacks_once, 0, 0);
    th_add(tc, callbacks_and_calls, 0, 0);
    th_add(tc, released_before_completion, 0, 0);
    th_add(tc, barrier_waits_for_p2p, 0, 0);
    th_add(tc, groups_are_independent, 2, 0);
    th_add(tc, unserved_receive, 0, 0);
    th_add(tc, works_outlive_groups, 0, 0);
    tc = th_case(s, "limits", 60);
    th_add(tc, limit_breaks_the_group, 2, 0);
    th_add(tc, wait_replaces_the_limit, 0, 0);
    th_add(tc, limit_without_waiter, 0, 0);
    th_add(tc, bad_limits, 0, 0);
    th_add(tc, abort_releases_waiters, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_work", make);
}
