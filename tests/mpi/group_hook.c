/* The completion hook of a group: every operation is reported once, however it is made and ends. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "data.h"
#include "harness.h"

enum { MOST = 64, N = 3 };

/* What the hook was told, in its order. */
typedef struct told {
    pthread_mutex_t lock;
    int n;
    dtr_op_report of[MOST];
    char kind[MOST][32], label[MOST][40];
} told;
static told all = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void hook(dtr_group *g, const dtr_op_report *r, void *arg) {
    told *t = arg;
    pthread_mutex_lock(&t->lock);
    if (t->n < MOST && dtr_group_rank(g) >= 0 && r->struct_size == sizeof *r) {
        t->of[t->n] = *r;
        snprintf(t->kind[t->n], sizeof t->kind[0], "%s", r->kind);
        snprintf(t->label[t->n], sizeof t->label[0], "%s", r->label);
    }
    t->n++;
    pthread_mutex_unlock(&t->lock);
}

static void set(dtr_group *g) {
    all.n = 0;
    TH_IS(dtr_group_on_complete(g, hook, &all), DTR_OK);
}

/* One report since the last look, of this; forgets it. */
static const dtr_op_report *one_report(const char *kind, size_t nbytes, int peer, dtr_status s,
                                       double from) {
    static const dtr_op_report none;
    const dtr_op_report *r = &all.of[0];
    TH_CHECK(all.n == 1, "%s: %d reports", kind, all.n);
    if (all.n < 1) {
        return &none;
    }
    all.n = 0;
    TH_CHECK(strcmp(all.kind[0], kind) == 0, "%s is reported as %s", kind, all.kind[0]);
    TH_CHECK(r->nbytes == nbytes, "%s has %zu bytes, not %zu", kind, r->nbytes, nbytes);
    TH_CHECK(r->peer == peer, "%s has peer %d, not %d", kind, r->peer, peer);
    TH_CHECK(r->status == s, "%s ends with %s", kind, dtr_status_name(r->status));
    const double issued = (double)r->issued_ns * 1e-9;
    /* Stamps are of a clock that is tied to this one every few milliseconds. */
    TH_CHECK(issued >= from - 1e-4 && r->duration_s >= 0 &&
                 issued + r->duration_s <= th_now() + 1e-4,
             "%s: %.9f s and %.9f s, not since %.9f s", kind, issued, r->duration_s, from);
    return r;
}

/* ---- every kind, blocking and asynchronous ---- */

static int32_t in[16 * N], out[16 * N];
static size_t counts[16];

static dtr_buffer ints(int32_t *x, int n) {
    return dtr_cpu(x, (size_t)n, DTR_I32);
}

static dtr_status call(dtr_group *g, int kind, const dtr_coll_options *o, dtr_work **w) {
    const int size = dtr_group_size(g), me = dtr_group_rank(g), whole = N * size, root = size - 1;
    const dtr_buffer few = ints(in, N), few_out = ints(out, N), many = ints(in, whole),
                     many_out = ints(out, whole), at_0 = me == 0 ? many : ints(NULL, 0),
                     at_0_out = me == 0 ? many_out : ints(NULL, 0);
    dtr_p2p both[2] = { { .is_send = true, .peer = me, .tag = 1, .buf = few },
                        { .is_send = false, .peer = me, .tag = 1, .buf = few_out } };
    switch (kind) {
    case 0:
        return dtr_broadcast(g, few, root, o, w);
    case 1:
        return dtr_reduce(g, few, few_out, DTR_SUM, root, o, w);
    case 2:
        return dtr_allreduce(g, few, few_out, DTR_SUM, o, w);
    case 3:
        return dtr_allgather(g, few, many_out, o, w);
    case 4:
        return dtr_allgatherv(g, few, many_out, counts, o, w);
    case 5:
        return dtr_gather(g, few, at_0_out, 0, o, w);
    case 6:
        return dtr_scatter(g, at_0, few_out, 0, o, w);
    case 7:
        return dtr_reduce_scatter(g, many, few_out, DTR_SUM, o, w);
    case 8:
        return dtr_reduce_scatterv(g, many, counts, few_out, DTR_SUM, o, w);
    case 9:
        return dtr_alltoall(g, many, many_out, o, w);
    case 10:
        return dtr_alltoallv(g, many, counts, many_out, counts, o, w);
    case 11:
        return dtr_scan(g, few, few_out, DTR_SUM, o, w);
    case 12:
        return dtr_exscan(g, few, few_out, DTR_SUM, o, w);
    case 13:
        return dtr_barrier(g, o, w);
    default:
        return dtr_batch_p2p(g, both, 2, o, w);
    }
}

typedef enum bytes { FEW, MANY, MANY_AT_0, NOTHING, BOTH } bytes;
static const struct {
    const char *name;
    bytes bytes;
    int root; /* -1: none, 1: the last rank */
    bool p2p;
} kinds[] = { { "broadcast", FEW, 1, false },         { "reduce", FEW, 1, false },
              { "allreduce", FEW, -1, false },        { "allgather", MANY, -1, false },
              { "allgatherv", MANY, -1, false },      { "gather", MANY_AT_0, 0, false },
              { "scatter", MANY_AT_0, 0, false },     { "reduce_scatter", MANY, -1, false },
              { "reduce_scatterv", MANY, -1, false }, { "alltoall", MANY, -1, false },
              { "alltoallv", MANY, -1, false },       { "scan", FEW, -1, false },
              { "exscan", FEW, -1, false },           { "barrier", NOTHING, -1, false },
              { "batch_p2p", BOTH, -1, true } };
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static size_t bytes_of(bytes b) {
    const size_t few = N * sizeof(int32_t), many = few * (size_t)th_size();
    return b == FEW                                          ? few
           : b == MANY || (b == MANY_AT_0 && th_rank() == 0) ? many
           : b == MANY_AT_0                                  ? few
           : b == BOTH                                       ? 2 * few
                                                             : 0;
}

static void every_kind(dtr_group *g, bool blocking, const char *label) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.label = label;
    for (int k = 0; k < KINDS; k++) {
        dtr_work *w = NULL;
        const double from = th_now();
        const int root = kinds[k].root == 1 ? th_size() - 1 : kinds[k].root;
        TH_IS(call(g, k, label != NULL ? &o : NULL, blocking ? NULL : &w), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        const dtr_op_report *r =
            one_report(kinds[k].name, bytes_of(kinds[k].bytes), root, DTR_OK, from);
        TH_CHECK(strcmp(all.label[0], label != NULL ? label : "") == 0, "%s has label '%s'",
                 kinds[k].name, all.label[0]);
        TH_CHECK(kinds[k].p2p || r->seq == dtr_group_seq(g), "%s is number %llu", kinds[k].name,
                 (unsigned long long)r->seq);
        TH_CHECK(blocking || (r->seq == dtr_work_seq(w) && r->duration_s == dtr_work_duration(w)),
                 "%s: its work says something else", kinds[k].name);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_AGREE();
}

START_TEST(every_operation) {
    for (int i = 0; i < 16; i++) {
        counts[i] = N;
    }
    set(th_group());
    for (int turn = 0; turn < 3; turn++) { /* small calls that come again */
        every_kind(th_group(), true, NULL);
    }
    every_kind(th_group(), false, NULL);
    every_kind(th_group(), true, "step 7");
    every_kind(th_group(), false, "step 8");
}
END_TEST

/* Around the ring, also from anybody. The two end in any order. */
START_TEST(messages) {
    const int next = (th_rank() + 1) % th_size(), before = (th_rank() + th_size() - 1) % th_size();
    set(th_group());
    for (int i = 0; i < 4; i++) {
        dtr_work *works[2] = { NULL, NULL };
        bool sent = false, received = false;
        TH_IS(dtr_recv(th_group(), ints(out, N), i % 2 == 0 ? before : DTR_ANY_SOURCE, 5, NULL,
                       &works[0]),
              DTR_OK);
        TH_IS(dtr_send(th_group(), ints(in, N), next, 5, NULL, &works[1]), DTR_OK);
        TH_IS(dtr_work_wait_all(works, 2, -1), DTR_OK);
        for (int k = 0; k < all.n && k < 2; k++) {
            const dtr_op_report *r = &all.of[k];
            const bool send = strcmp(all.kind[k], "send") == 0;
            const size_t nbytes = N * sizeof(int32_t);
            sent = sent || send;
            received = received || strcmp(all.kind[k], "recv") == 0;
            TH_CHECK(r->status == DTR_OK && r->nbytes == nbytes, "%s of %zu bytes: %s", all.kind[k],
                     r->nbytes, dtr_status_name(r->status));
            TH_CHECK(r->peer == (send ? next : before), "%s has peer %d", all.kind[k], r->peer);
            TH_CHECK(r->seq == dtr_work_seq(works[send]), "%s is number %llu", all.kind[k],
                     (unsigned long long)r->seq);
        }
        TH_CHECK(all.n == 2 && sent && received, "%d reports", all.n);
        all.n = 0;
        TH_IS(dtr_work_release(works[0]), DTR_OK);
        TH_IS(dtr_work_release(works[1]), DTR_OK);
        TH_AGREE();
    }
    TH_IS(dtr_recv(th_group(), ints(out, N), DTR_PEER_NONE, 5, NULL, NULL), DTR_OK);
    TH_IS(dtr_recv(th_group(), ints(out, N), th_size(), 5, NULL, NULL), DTR_ERR_RANK);
    TH_CHECK(all.n == 0, "what has no number is reported as %s", all.kind[0]);
    TH_AGREE();
}
END_TEST

/* A scope is one operation; one that is empty or has failed is none. */
START_TEST(scopes) {
    dtr_work *w = NULL;
    set(th_group());
    for (int i = 0; i < 2; i++) {
        const double from = th_now();
        TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
        TH_IS(dtr_allreduce(th_group(), ints(in, N), ints(out, N), DTR_SUM, NULL, NULL), DTR_OK);
        TH_IS(dtr_broadcast(th_group(), ints(in + N, 1), 0, NULL, NULL), DTR_OK);
        TH_IS(dtr_coalesce_end(th_group(), i == 0 ? NULL : &w), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        (void)one_report("coalesced", (N + 1) * sizeof(int32_t), -1, DTR_OK, from);
        TH_AGREE();
    }
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), ints(NULL, N), ints(out, N), DTR_SUM, NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_ERR_ARG);
    TH_CHECK(all.n == 0, "a scope without operations is reported as %s", all.kind[0]);
    TH_AGREE();
}
END_TEST

START_TEST(byte_strings) {
    dtr_bytes got[16];
    const double from = th_now();
    memset(got, 0, sizeof got);
    set(th_group());
    TH_IS(dtr_allgather_bytes(th_group(), dtr_bytes_in("12345", 5), NULL, got), DTR_OK);
    (void)one_report("allgather_bytes", 5, -1, DTR_OK, from);
    dtr_bytes_free(got, (size_t)th_size());
    TH_AGREE();
}
END_TEST

/* ---- setting it and taking it off ---- */

static dtr_status again(dtr_group *g) {
    return dtr_allreduce(g, ints(in, 1), ints(out, 1), DTR_SUM, NULL, NULL);
}

/* The same call from the same place, before, with, and after the hook. */
START_TEST(calls_that_come_again) {
    enum { TIMES = 6 };
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < TIMES; i++) {
            TH_IS(again(th_group()), DTR_OK);
        }
        TH_CHECK(all.n == 0, "turn %d: %d reports without a hook", turn, all.n);
        set(th_group());
        for (int i = 0; i < TIMES; i++) {
            const double from = th_now();
            TH_IS(again(th_group()), DTR_OK);
            const dtr_op_report *r = one_report("allreduce", sizeof in[0], -1, DTR_OK, from);
            TH_CHECK(r->seq == dtr_group_seq(th_group()), "number %llu",
                     (unsigned long long)r->seq);
        }
        TH_IS(dtr_group_on_complete(th_group(), NULL, NULL), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

static void other_hook(dtr_group *g, const dtr_op_report *r, void *arg) {
    (void)g;
    (void)r;
    atomic_fetch_add((atomic_int *)arg, 1);
}

START_TEST(whose_hook) {
    atomic_int n = 0;
    dtr_group *part = NULL;
    TH_IS(dtr_group_on_complete(NULL, hook, &all), DTR_NOT_MEMBER);
    set(th_group());
    TH_OK(dtr_group_split(th_group(), th_rank(), 0, NULL, &part));
    TH_IS(again(part), DTR_OK);
    TH_CHECK(all.n == 0, "a part of the group has its hook");
    TH_IS(dtr_group_on_complete(part, other_hook, &n), DTR_OK);
    TH_IS(again(part), DTR_OK);
    TH_CHECK(all.n == 0 && atomic_load(&n) == 1, "%d and %d reports", all.n, atomic_load(&n));
    TH_IS(dtr_group_on_complete(th_group(), other_hook, &n), DTR_OK);
    TH_IS(again(th_group()), DTR_OK);
    TH_CHECK(all.n == 0 && atomic_load(&n) == 2, "%d and %d reports", all.n, atomic_load(&n));
    TH_IS(dtr_group_destroy(part), DTR_OK);
    TH_IS(dtr_group_on_complete(part, hook, &all), DTR_ERR_STATE);
    set(dtr_world_group(th_world()));
    TH_IS(dtr_node_barrier(th_world()), DTR_OK);
    TH_IS(dtr_monitored_barrier(dtr_world_group(th_world()), -1, true, NULL, NULL), DTR_OK);
    TH_CHECK(all.n == 0, "%s of the library is reported", all.kind[0]);
    TH_IS(dtr_group_on_complete(dtr_world_group(th_world()), NULL, NULL), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- inside of it ---- */

typedef struct inner {
    dtr_work *work; /* what it has started */
    int32_t x;
    dtr_status blocking;
} inner;

static void starts_one(dtr_group *g, const dtr_op_report *r, void *arg) {
    inner *i = arg;
    (void)r;
    (void)dtr_group_on_complete(g, NULL, NULL);
    i->blocking = dtr_barrier(g, NULL, NULL);
    (void)dtr_allreduce(g, ints(&i->x, 1), ints(&i->x, 1), DTR_SUM, NULL, &i->work);
}

/* Asynchronous calls and taking the hook off are legal, what blocks is not. */
START_TEST(inside_the_hook) {
    for (int blocking = 0; blocking < 2; blocking++) {
        inner i = { .x = 1, .blocking = DTR_OK };
        dtr_work *w = NULL;
        TH_IS(dtr_group_on_complete(th_group(), starts_one, &i), DTR_OK);
        TH_IS(dtr_barrier(th_group(), NULL, blocking ? NULL : &w), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_CHECK(i.work != NULL, "the hook has not run");
        TH_IS(dtr_work_wait(i.work, -1), DTR_OK);
        TH_CHECK(i.blocking == DTR_ERR_STATE, "a blocking call there is %s",
                 dtr_status_name(i.blocking));
        TH_CHECK(i.x == th_size(), "sum %d", i.x);
        TH_IS(dtr_work_release(w), DTR_OK);
        TH_IS(dtr_work_release(i.work), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

static void later(dtr_work *w, dtr_status s, void *arg) {
    int *seen = arg;
    (void)w;
    *seen = s == DTR_OK ? all.n : -1;
}

/* The work's own callback comes behind it, and finds it complete for itself. */
START_TEST(before_the_callbacks) {
    int32_t x = 0, y = 7;
    int seen = 0;
    dtr_work *w = NULL, *sent = NULL;
    TH_IS(dtr_recv(th_group(), ints(&x, 1), th_rank(), 1, NULL, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, later, &seen), DTR_OK);
    set(th_group()); /* it is under way, and ends later */
    TH_IS(dtr_send(th_group(), ints(&y, 1), th_rank(), 1, NULL, &sent), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_wait(sent, -1), DTR_OK);
    TH_CHECK(seen >= 1 && all.n == 2, "the callback saw %d of %d reports", seen, all.n);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_work_release(sent), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- failures ---- */

/* A message that nobody sends; a rank alone cannot wait for one without a work. */
static dtr_status lonely(dtr_group *g, double limit, bool blocking) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    const int from = (th_rank() + 1) % th_size();
    o.timeout_s = limit;
    blocking = blocking && th_size() > 1;
    dtr_status s = dtr_recv(g, ints(out, N), from, 3, &o, blocking ? NULL : &w);
    s = blocking ? s : dtr_work_wait(w, -1);
    TH_IS(dtr_work_release(w), DTR_OK);
    return s;
}

static void expect_failure(dtr_status s, double from) {
    (void)one_report("recv", N * sizeof(int32_t), (th_rank() + 1) % th_size(), s, from);
}

/* With a longer limit where a rank came too late to make the call. */
static void times_out(bool blocking, double limit) {
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
    set(g);
    const double from = th_now();
    TH_IS(lonely(g, limit, blocking), DTR_ERR_TIMEOUT);
    expect_failure(DTR_ERR_TIMEOUT, from);
    TH_IS(again(g), DTR_ERR_TIMEOUT);
    TH_CHECK(all.n == 0, "a refused call is reported");
    TH_IS(dtr_group_destroy(g), DTR_OK);
}

START_TEST(time_outs) {
    for (int blocking = 0; blocking < 2; blocking++) {
        double limit = 0.5;
        do {
            times_out(blocking, limit);
        } while (th_patience(&limit));
        TH_AGREE();
    }
}
END_TEST

typedef struct aborter {
    dtr_group *g;
    double after;
    dtr_status status;
} aborter;

static void *abort_it(void *arg) {
    aborter *a = arg;
    th_sleep(a->after);
    a->status = dtr_group_abort(a->g, "the test says so");
    return NULL;
}

static void slow_hook(dtr_group *g, const dtr_op_report *r, void *arg) {
    th_sleep(0.05);
    hook(g, r, arg);
}

static void is_aborted(bool blocking, double after) {
    aborter a = { NULL, after, DTR_OK };
    pthread_t thread;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &a.g));
    set(a.g);
    TH_IS(dtr_group_on_complete(a.g, slow_hook, &all), DTR_OK);
    pthread_create(&thread, NULL, abort_it, &a);
    const double from = th_now();
    TH_IS(lonely(a.g, 0, blocking), DTR_ERR_ABORTED);
    expect_failure(DTR_ERR_ABORTED, from);
    pthread_join(thread, NULL);
    TH_IS(a.status, DTR_OK);
    TH_IS(dtr_group_destroy(a.g), DTR_OK);
}

/* Another thread ends what this one waits for, and calls the hook; the call returns behind it. */
START_TEST(aborts) {
    for (int blocking = 0; blocking < 2 && strcmp(th_thread_level(), "multiple") == 0; blocking++) {
        double after = 0.1;
        do {
            is_aborted(blocking, after);
        } while (th_patience(&after));
        TH_AGREE();
    }
}
END_TEST

/* One that fails by itself; the group goes on. */
START_TEST(nan_in_an_input) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    float x = NAN, y = 0;
    o.nan_check = 1;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), &o, &g));
    set(g);
    const double from = th_now();
    TH_IS(dtr_allreduce(g, dtr_cpu(&x, 1, DTR_F32), dtr_cpu(&y, 1, DTR_F32), DTR_SUM, NULL, NULL),
          DTR_ERR_NAN);
    (void)one_report("allreduce", sizeof x, -1, DTR_ERR_NAN, from);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "group_hook", 120);
    th_add(tc, every_operation, 0, 16);
    th_add(tc, messages, 0, 0);
    th_add(tc, scopes, 0, 0);
    th_add(tc, byte_strings, 0, 16);
    th_add(tc, calls_that_come_again, 0, 0);
    th_add(tc, whose_hook, 0, 0);
    th_add(tc, inside_the_hook, 0, 0);
    th_add(tc, before_the_callbacks, 0, 0);
    th_add(tc, time_outs, 0, 0);
    th_add(tc, aborts, 0, 0);
    th_add(tc, nan_in_an_input, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "group_hook", make);
}
