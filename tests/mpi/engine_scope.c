/* Coalescing scopes (COA rows). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/op.h"
#include "harness.h"
#include "recorder/recorder.h"
#include "settings.h"

static dtr_buffer i32s(int32_t *x, size_t n) {
    return dtr_cpu(x, n, DTR_I32);
}

static int triangle(int n) {
    return n * (n + 1) / 2;
}

/* COA1, COA4, COA6, COA14: recorded calls return at once and move nothing; the end runs them as
 * one. */
START_TEST(records_then_runs) {
    int32_t a = th_rank() + 1, b = th_rank() + 2, x = -1, y = -1;
    uint64_t seq = dtr_group_seq(th_group());
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), i32s(&a, 1), i32s(&x, 1), DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), i32s(&b, 1), i32s(&y, 1), DTR_MAX, NULL, NULL), DTR_OK);
    TH_CHECK(x == -1 && y == -1, "values changed inside the scope");
    TH_CHECK(dtr_group_seq(th_group()) == seq, "the sequence moved inside the scope");
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    TH_CHECK(x == triangle(th_size()) && y == th_size() + 1, "results %d and %d", x, y);
    TH_CHECK(dtr_group_seq(th_group()) == seq + 1, "the sequence moved by %d",
             (int)(dtr_group_seq(th_group()) - seq));
    TH_AGREE();
}
END_TEST

/* COA7: every kind in one scope, each run as what it is, with a work. */
START_TEST(mixed_kinds) {
    int n = th_size(), me = th_rank(), next = (me + 1) % n, before = (me + n - 1) % n;
    int32_t bc = me, ar = 1, s = me, r = -1, s2 = 100 + me, r2 = -1, up = 2, below = -1,
            *ag = calloc((size_t)n, 4);
    float rs[64], got = -1;
    dtr_work *w = NULL;
    for (int i = 0; i < n; i++) {
        rs[i] = (float)i;
    }
    uint64_t seq = dtr_group_seq(th_group());
    dtr_p2p ops[] = { { true, i32s(&s2, 1), next, 8 }, { false, i32s(&r2, 1), before, 8 } };
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_broadcast(th_group(), i32s(&bc, 1), n - 1, NULL, NULL), DTR_OK);
    TH_IS(dtr_send(th_group(), i32s(&s, 1), next, 7, NULL, NULL), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), i32s(&ar, 1), i32s(&ar, 1), DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_recv(th_group(), i32s(&r, 1), before, 7, NULL, NULL), DTR_OK);
    TH_IS(dtr_scan(th_group(), i32s(&up, 1), i32s(&up, 1), DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_exscan(th_group(), i32s(&s2, 1), i32s(&below, 1), DTR_MAX, NULL, NULL), DTR_OK);
    TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
    TH_IS(dtr_batch_p2p(th_group(), ops, 2, NULL, NULL), DTR_OK);
    TH_IS(dtr_allgather(th_group(), i32s(&s, 1), i32s(ag, (size_t)n), NULL, NULL), DTR_OK);
    TH_IS(dtr_reduce_scatter(th_group(), dtr_cpu(rs, (size_t)n, DTR_F32), dtr_cpu(&got, 1, DTR_F32),
                             DTR_SUM, NULL, NULL),
          DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), &w), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(dtr_work_seq(w) == seq + 1 && dtr_group_seq(th_group()) == seq + 1, "seq %d",
             (int)dtr_work_seq(w));
    TH_CHECK(dtr_work_source(w) == -1, "a scope has source %d", dtr_work_source(w));
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(bc == n - 1 && ar == n && r == before && r2 == 100 + before, "%d %d %d %d", bc, ar, r,
             r2);
    for (int i = 0; i < n; i++) {
        TH_CHECK(ag[i] == i, "block %d is %d", i, ag[i]);
    }
    TH_CHECK(up == 2 * (me + 1) && below == (me == 0 ? INT32_MIN : 99 + me), "scans gave %d, %d",
             up, below);
    TH_CHECK(got == (float)(me * n), "reduce_scatter gave %g", got);
    free(ag);
    TH_AGREE();
}
END_TEST

/* COA7, DBG7, DBG10: messages are of the ranks they concern: at detail, where all compare first, a
 * scope in which one rank sends, one receives and others do neither is no mismatch. */
START_TEST(messages_of_some_ranks) {
    static const char *const backend[] = { "cpu:auto", "cpu:mpi" };
    dtr_world *world = TH_WORLD_WITH(NULL, "DTR_DEBUG", "detail");
    TH_AGREE();
    for (int i = 0; i < 2; i++) {
        int32_t sum[2] = { 1, 1 }, from = 7, to = -1;
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        dtr_group *g = NULL;
        o.backend = backend[i];
        TH_IS(dtr_group_create(world, NULL, th_size(), &o, &g), DTR_OK);
        TH_IS(dtr_coalesce_begin(g), DTR_OK);
        if (th_rank() == 0) {
            TH_IS(dtr_send(g, i32s(&from, 1), 1, 0, NULL, NULL), DTR_OK);
        }
        TH_IS(dtr_allreduce(g, i32s(&sum[0], 1), i32s(&sum[0], 1), DTR_SUM, NULL, NULL), DTR_OK);
        if (th_rank() == 1) {
            TH_IS(dtr_recv(g, i32s(&to, 1), 0, 0, NULL, NULL), DTR_OK);
        }
        TH_IS(dtr_allreduce(g, i32s(&sum[1], 1), i32s(&sum[1], 1), DTR_PROD, NULL, NULL), DTR_OK);
        TH_IS(dtr_coalesce_end(g, NULL), DTR_OK);
        TH_CHECK(sum[0] == th_size() && sum[1] == 1 && to == (th_rank() == 1 ? 7 : -1),
                 "%s: %d %d %d", backend[i], sum[0], sum[1], to);
        TH_AGREE();
        TH_IS(dtr_group_destroy(g), DTR_OK);
    }
    TH_IS(dtr_world_destroy(world), DTR_OK);
    TH_AGREE();
}
END_TEST

/* COA8, COA9, COL7, C2: mixed operators and types; 50 buffers of mixed sizes equal single calls. */
START_TEST(equal_to_single_calls) {
    enum { N = 50, MOST = 20000 };
    const dtr_dtype types[] = { DTR_F32, DTR_I64, DTR_F32, DTR_F32 };
    const dtr_op ops[] = { DTR_SUM, DTR_SUM, DTR_MAX, DTR_SUM, DTR_AVG };
    static char *in[N], *one[N], *many[N];
    size_t count[N];
    for (int i = 0; i < N; i++) {
        dtr_dtype d = types[i % 4 / 2 * (i % 3)];
        size_t size = dtr_dtype_size(d);
        count[i] = i % 7 == 6 ? MOST : (size_t)(i * 13 % 257);
        in[i] = malloc(count[i] * size + 1);
        one[i] = malloc(count[i] * size + 1);
        many[i] = malloc(count[i] * size + 1);
        for (size_t k = 0; k < count[i]; k++) {
            if (d == DTR_F32) {
                ((float *)in[i])[k] = (float)((int)(k * 7 + (size_t)th_rank() * 13) % 17 - 8);
            } else {
                ((int64_t *)in[i])[k] = (int64_t)(k * 7) + th_rank();
            }
        }
        TH_IS(dtr_allreduce(th_group(), dtr_cpu(in[i], count[i], d), dtr_cpu(one[i], count[i], d),
                            ops[i / 4 % 5], NULL, NULL),
              DTR_OK);
    }
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    for (int i = 0; i < N; i++) {
        dtr_dtype d = types[i % 4 / 2 * (i % 3)];
        TH_IS(dtr_allreduce(th_group(), dtr_cpu(in[i], count[i], d), dtr_cpu(many[i], count[i], d),
                            ops[i / 4 % 5], NULL, NULL),
              DTR_OK);
    }
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    for (int i = 0; i < N; i++) {
        dtr_dtype d = types[i % 4 / 2 * (i % 3)];
        TH_CHECK(memcmp(one[i], many[i], count[i] * dtr_dtype_size(d)) == 0, "buffer %d differs",
                 i);
        free(in[i]);
        free(one[i]);
        free(many[i]);
    }
    TH_AGREE();
}
END_TEST

/* T10; T90's heart: many small broadcasts; the root's buffers are only read. */
START_TEST(broadcasts) {
    enum { N = 20 };
    int32_t x[N][3];
    for (int root = 0; root < th_size(); root++) {
        for (int i = 0; i < N; i++) {
            x[i][0] = x[i][1] = x[i][2] = th_rank() * 1000 + i;
        }
        TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
        for (int i = 0; i < N; i++) {
            TH_IS(dtr_broadcast(th_group(), i32s(x[i], 3), root, NULL, NULL), DTR_OK);
        }
        TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
        for (int i = 0; i < N; i++) {
            TH_CHECK(x[i][0] == root * 1000 + i && x[i][2] == x[i][0], "%d is %d", i, x[i][0]);
        }
    }
    TH_AGREE();
}
END_TEST

static void *call_elsewhere(void *arg) {
    int32_t x = 1;
    dtr_status *s = arg;
    s[0] = dtr_allreduce(th_group(), i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, NULL);
    s[1] = dtr_coalesce_end(th_group(), NULL);
    s[2] = dtr_coalesce_begin(th_group());
    return NULL;
}

/* COA2, COA3, C3, C4: begin inside, calls from another thread, end without begin. */
START_TEST(states) {
    int32_t x = 1;
    dtr_status other[3] = { DTR_OK, DTR_OK, DTR_OK };
    pthread_t thread;
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_ERR_STATE);
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_coalesce_begin(th_group()), DTR_ERR_STATE);
    pthread_create(&thread, NULL, call_elsewhere, other);
    pthread_join(thread, NULL);
    for (int i = 0; i < 3; i++) {
        TH_CHECK(other[i] == DTR_ERR_STATE, "call %d of another thread: %s", i,
                 dtr_status_name(other[i]));
    }
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    TH_CHECK(x == th_size(), "the open scope did not go on: %d", x);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_ERR_STATE);
    dtr_work *w = (dtr_work *)&x;
    TH_IS(dtr_coalesce_begin(NULL), DTR_NOT_MEMBER);
    TH_IS(dtr_coalesce_end(NULL, &w), DTR_NOT_MEMBER);
    TH_CHECK(w == NULL, "*work is not NULL");
    TH_AGREE();
}
END_TEST

/* COA5: other groups run normally meanwhile. */
START_TEST(other_groups) {
    int32_t x = 1;
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, NULL), DTR_OK);
    th_good_allreduce(dtr_world_group(th_world()));
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    TH_ALL(x == th_size(), "result %d", x);
}
END_TEST

static void count(dtr_work *w, dtr_status s, void *arg) {
    atomic_int *calls = arg; /* [0] number, [1] last status */
    (void)w;
    atomic_fetch_add(&calls[0], 1);
    atomic_store(&calls[1], s);
}

/* WRK4, COA15, WRK8: works asked for inside stand for the scope and wait for its end. */
START_TEST(works_inside) {
    int32_t x = 1, y = 2;
    dtr_work *inside[2], *whole;
    bool done;
    atomic_int calls[2] = { 0, 7 };
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, &inside[0]), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), i32s(&y, 1), i32s(&y, 1), DTR_SUM, NULL, &inside[1]), DTR_OK);
    TH_IS(dtr_work_wait(inside[0], -1), DTR_ERR_STATE);
    TH_IS(dtr_work_wait(inside[0], 0), DTR_ERR_STATE);
    TH_IS(dtr_work_synchronize(inside[1], -1), DTR_ERR_STATE);
    TH_IS(dtr_work_test(inside[1], &done), DTR_ERR_STATE);
    TH_CHECK(dtr_work_seq(inside[0]) == 0, "seq %d", (int)dtr_work_seq(inside[0]));
    TH_IS(dtr_work_on_complete(inside[0], count, calls), DTR_OK);
    TH_IS(dtr_work_release(inside[0]), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), &whole), DTR_OK);
    TH_IS(dtr_work_wait(inside[1], -1), DTR_OK);
    TH_CHECK(x == th_size() && y == 2 * th_size(), "results %d and %d", x, y);
    TH_CHECK(dtr_work_seq(inside[1]) == dtr_work_seq(whole), "two numbers");
    TH_IS(dtr_work_wait(whole, -1), DTR_OK);
    TH_CHECK(calls[0] == 1 && calls[1] == DTR_OK, "%d calls, status %d", calls[0], calls[1]);
    TH_IS(dtr_work_release(inside[1]), DTR_OK);
    TH_IS(dtr_work_release(whole), DTR_OK);
    TH_AGREE();
}
END_TEST

/* COA13, C1: an empty scope, one rank alone. */
START_TEST(empty_scope) {
    if (th_rank() == 0) {
        dtr_work *w = NULL;
        bool done = false;
        uint64_t seq = dtr_group_seq(th_group());
        TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
        TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
        TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
        TH_IS(dtr_batch_p2p(th_group(), NULL, 0, NULL, NULL), DTR_OK);
        TH_IS(dtr_coalesce_end(th_group(), &w), DTR_OK);
        TH_IS(dtr_work_test(w, &done), DTR_OK);
        TH_CHECK(done, "an empty scope is not done");
        TH_IS(dtr_work_release(w), DTR_OK);
        TH_CHECK(dtr_group_seq(th_group()) == seq, "the sequence moved");
    }
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* COA14, WRK17: a scope of point to point only counts as such. */
START_TEST(p2p_only) {
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    int32_t x = th_rank(), y = -1;
    uint64_t seq = dtr_group_seq(th_group());
    dtr_work *w;
    for (uint64_t i = 1; i <= 2; i++) {
        TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
        TH_IS(dtr_send(th_group(), i32s(&x, 1), next, 0, NULL, NULL), DTR_OK);
        TH_IS(dtr_recv(th_group(), i32s(&y, 1), before, 0, NULL, NULL), DTR_OK);
        TH_IS(dtr_coalesce_end(th_group(), &w), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_CHECK(dtr_work_seq(w) == i, "p2p number %d", (int)dtr_work_seq(w));
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_CHECK(y == before, "received %d", y);
    TH_ALL(dtr_group_seq(th_group()) == seq, "the sequence moved");
}
END_TEST

/* COA16: a failing call aborts the scope; works end, later calls are refused, the group is fine. */
START_TEST(failing_call) {
    int32_t x = 1, y = 1;
    dtr_work *w, *none = (dtr_work *)&x;
    bool done = false;
    atomic_int calls[2] = { 0, 7 };
    uint64_t seq = dtr_group_seq(th_group());
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, count, calls), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), i32s(&y, 1), dtr_cpu(&y, 1, DTR_F32), DTR_SUM, NULL, NULL),
          DTR_ERR_DTYPE);
    TH_MESSAGE("call 2");
    TH_MESSAGE("i32");
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_ABORTED);
    TH_MESSAGE("call 2");
    TH_IS(dtr_work_test(w, &done), DTR_ERR_ABORTED);
    TH_CHECK(done && calls[0] == 1 && calls[1] == DTR_ERR_ABORTED, "%d calls", calls[0]);
    TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_ERR_STATE);
    TH_IS(dtr_coalesce_end(th_group(), &none), DTR_ERR_DTYPE);
    TH_MESSAGE("call 2");
    TH_CHECK(none == (dtr_work *)&x, "a failing end wrote *work");
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(x == 1, "something was reduced");
    TH_CHECK(dtr_group_seq(th_group()) == seq, "the sequence moved");
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_ERR_STATE);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* COA18, T16: one buffer in place twice, out of one as in of the next; shared inputs are legal. */
START_TEST(overlapping_calls) {
    int32_t x[4] = { 1, 1, 1, 1 }, y[4] = { 0 }, z[4] = { 0 };
    dtr_group *g = th_group();
    for (int way = 0; way < 3; way++) {
        TH_IS(dtr_coalesce_begin(g), DTR_OK);
        if (way == 0) {
            TH_IS(dtr_allreduce(g, i32s(x, 4), i32s(x, 4), DTR_SUM, NULL, NULL), DTR_OK);
            TH_IS(dtr_allreduce(g, i32s(x, 4), i32s(x, 4), DTR_SUM, NULL, NULL), DTR_ERR_ARG);
        } else if (way == 1) {
            TH_IS(dtr_allreduce(g, i32s(x, 2), i32s(y, 2), DTR_SUM, NULL, NULL), DTR_OK);
            TH_IS(dtr_allreduce(g, i32s(y + 1, 2), i32s(z, 2), DTR_SUM, NULL, NULL), DTR_ERR_ARG);
        } else {
            TH_IS(dtr_allreduce(g, i32s(x, 2), i32s(y, 2), DTR_SUM, NULL, NULL), DTR_OK);
            TH_IS(dtr_broadcast(g, i32s(x + 1, 2), 0, NULL, NULL), DTR_ERR_ARG);
        }
        TH_MESSAGE("overlap");
        TH_MESSAGE("engine_scope.c:");
        TH_IS(dtr_coalesce_end(g, NULL), DTR_ERR_ARG);
    }
    TH_CHECK(x[0] == 1 && y[0] == 0, "buffers were touched");
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_allreduce(g, i32s(x, 4), i32s(y, 4), DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_allreduce(g, i32s(x, 4), i32s(z, 4), DTR_MAX, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(g, NULL), DTR_OK);
    TH_ALL(y[3] == th_size() && z[3] == 1, "results %d %d", y[3], z[3]);
}
END_TEST

/* A scope left open at destroy: one warning, its works end aborted (DES10). */
START_TEST(dropped_scope) {
    dtr_group *g = NULL;
    int32_t x = 1;
    dtr_work *w;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
    th_log_clear();
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_allreduce(g, i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, &w), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_ABORTED);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(th_log_count("open coalescing scope") == 1, "%d warnings",
             th_log_count("open coalescing scope"));
    TH_ALL(x == 1, "value %d", x);
}
END_TEST

/* Aborting the group while a scope is open, and a scope whose peer does not come. */
START_TEST(broken_groups) {
    int32_t x = 1, y = 0;
    dtr_work *w;
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, &w), DTR_OK);
    th_barrier(); /* one rank's abort reaches the others */
    TH_IS(dtr_group_abort(th_group(), "no more"), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_ABORTED);
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL, NULL),
          DTR_ERR_ABORTED);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_ERR_ABORTED);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(scope_reaches_its_limit) {
    enum { N = 8 };
    int32_t x[N] = { 0 }, y = 0;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w;
    o.timeout_s = 0.3;
    if (th_rank() == 0) {
        TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
        for (int i = 0; i < N; i++) {
            TH_IS(dtr_allreduce(th_group(), i32s(&x[i], 1), i32s(&x[i], 1), DTR_SUM,
                                i == 3 ? &o : NULL, NULL),
                  DTR_OK);
        }
        TH_IS(dtr_recv(th_group(), i32s(&y, 1), 1, 0, NULL, NULL), DTR_OK);
        TH_IS(dtr_coalesce_end(th_group(), &w), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_ERR_TIMEOUT);
        TH_MESSAGE("coalesced #1 (9 operations)"); /* reliability:S6 */
        TH_MESSAGE("0.3 s");
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_AGREE();
    TH_IS(dtr_group_abort(th_group(), "the test is over"), DTR_OK);
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* T16, T21: a thousand asynchronous scopes, waited at the end. */
START_TEST(many_scopes) {
    enum { N = 1000 };
    static int64_t in[N], a[N], b[N];
    static dtr_work *works[N];
    int n = th_size();
    for (int i = 0; i < N; i++) {
        in[i] = i + th_rank();
        TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
        TH_IS(dtr_allreduce(th_group(), dtr_cpu(&in[i], 1, DTR_I64), dtr_cpu(&a[i], 1, DTR_I64),
                            DTR_SUM, NULL, NULL),
              DTR_OK);
        TH_IS(dtr_allreduce(th_group(), dtr_cpu(&in[i], 1, DTR_I64), dtr_cpu(&b[i], 1, DTR_I64),
                            DTR_SUM, NULL, NULL),
              DTR_OK);
        TH_IS(dtr_coalesce_end(th_group(), &works[i]), DTR_OK);
    }
    for (int i = N - 1; i >= 0; i--) {
        int64_t want = (int64_t)i * n + triangle(n - 1);
        TH_IS(dtr_work_wait(works[i], -1), DTR_OK);
        TH_IS(dtr_work_release(works[i]), DTR_OK);
        TH_CHECK(a[i] == want && b[i] == want, "scope %d gave %d and %d", i, (int)a[i], (int)b[i]);
    }
    TH_AGREE();
}
END_TEST

/* T15, reliability P9: one record for the scope, one per call and per batch entry, marked as
 * members, all of them finished. */
START_TEST(records) {
    enum { MOST = 4096 };
    static dtr__record r[MOST];
    int n = th_size(), next = (th_rank() + 1) % n, before = (th_rank() + n - 1) % n;
    int32_t a = 1, b = 2, x = 0;
    dtr_p2p ops[] = { { true, i32s(&a, 1), next, 3 }, { false, i32s(&x, 1), before, 3 } };
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), i32s(&b, 1), i32s(&b, 1), DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_batch_p2p(th_group(), ops, 2, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    size_t found = dtr__rec_read(th_world(), r, MOST), at = found;
    for (size_t i = 0; i < found; i++) {
        at = r[i].kind == DTR__K_COALESCED ? i : at;
    }
    const uint8_t kinds[] = { DTR__K_COALESCED, DTR__K_ALLREDUCE, DTR__K_BATCH, DTR__K_SEND,
                              DTR__K_RECV };
    TH_CHECK(at + 5 <= found, "the scope is at %zu of %zu records", at, found);
    for (size_t i = 0; i < 5 && at + i < found; i++) {
        TH_CHECK(r[at + i].kind == kinds[i] && r[at + i].state == DTR__REC_FINISHED &&
                     ((r[at + i].flags & DTR__REC_MEMBER) != 0) == (i > 0),
                 "record %zu: kind %d, state %d, flags %d", i, r[at + i].kind, r[at + i].state,
                 r[at + i].flags);
        TH_CHECK(strncmp(r[at + i].site, "engine_scope.c:", 15) == 0, "site \"%s\"",
                 r[at + i].site);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "scopes", 60);
    th_add(tc, records_then_runs, 0, 0);
    th_add(tc, mixed_kinds, 0, 0);
    th_add(tc, messages_of_some_ranks, 2, 0);
    th_add(tc, equal_to_single_calls, 0, 0);
    th_add(tc, broadcasts, 0, 0);
    th_add(tc, states, 0, 0);
    th_add(tc, other_groups, 0, 0);
    th_add(tc, works_inside, 0, 0);
    th_add(tc, empty_scope, 0, 0);
    th_add(tc, p2p_only, 0, 0);
    th_add(tc, failing_call, 0, 0);
    th_add(tc, overlapping_calls, 0, 0);
    th_add(tc, dropped_scope, 0, 0);
    th_add(tc, broken_groups, 0, 0);
    th_add(tc, scope_reaches_its_limit, 2, 0);
    th_add(tc, records, 0, 0);
    th_add(tc, many_scopes, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_scope", make);
}
