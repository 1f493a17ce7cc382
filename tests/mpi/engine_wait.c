/* Waiting for several works, all or any, and giving a world a turn (WRK5, WRK10, WRK12, WRK13,
 * WRK16, WRK18). */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/mpi.h>

#include "core/work.h"
#include "harness.h"
#include "world/world.h"

static dtr_buffer i32s(int32_t *x, size_t n) {
    return dtr_cpu(x, n, DTR_I32);
}

static bool has_threads(void) {
    return strcmp(th_thread_level(), "multiple") == 0;
}

/* A group of this rank alone: what happens there is nobody else's. */
static dtr_group *own_group(void) {
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), th_rank(), 0, NULL, &g));
    return g;
}

static dtr_work *receive(dtr_group *g, int32_t *x, int tag, double limit_s) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    o.timeout_s = limit_s;
    TH_IS(dtr_recv(g, i32s(x, 1), 0, tag, &o, &w), DTR_OK);
    return w;
}

static void send_to_self(dtr_group *g, int32_t x, int tag) {
    dtr_work *w = NULL;
    TH_IS(dtr_send(g, i32s(&x, 1), 0, tag, NULL, &w), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
}

static void release_all(dtr_work **works, size_t n) {
    for (size_t i = 0; i < n; i++) {
        TH_IS(dtr_work_release(works[i]), DTR_OK);
    }
}

START_TEST(nothing_to_wait_for) {
    dtr_work *none[3] = { NULL, NULL, NULL }, *bad[2] = { NULL, NULL };
    size_t index = 7;
    unsigned char memory[sizeof(dtr_work)];
    memset(memory, 0, sizeof memory);
    bad[1] = (dtr_work *)(void *)memory;
    TH_IS(dtr_work_wait_all(NULL, 0, -1), DTR_OK);
    TH_IS(dtr_work_wait_all(none, 3, -1), DTR_OK);
    TH_IS(dtr_work_wait_all(none, 3, 0), DTR_OK);
    TH_IS(dtr_work_wait_all(NULL, 3, -1), DTR_ERR_ARG);
    TH_MESSAGE("works is NULL, and n is 3");
    TH_IS(dtr_work_wait_all(none, 3, NAN), DTR_ERR_ARG);
    TH_MESSAGE("timeout_s");
    TH_IS(dtr_work_wait_all(bad, 2, -1), DTR_ERR_ARG);
    TH_MESSAGE("dtr_work_wait_all: works[1] is no work");
    TH_IS(dtr_work_wait_any(none, 0, -1, &index), DTR_ERR_ARG);
    TH_MESSAGE("none of the 0 entries");
    TH_IS(dtr_work_wait_any(none, 3, 0, &index), DTR_ERR_ARG);
    TH_MESSAGE("none of the 3 entries");
    TH_IS(dtr_work_wait_any(bad, 2, -1, &index), DTR_ERR_ARG);
    TH_MESSAGE("dtr_work_wait_any: works[1] is no work");
    TH_CHECK(index == 7, "a refused call wrote %zu", index);
    TH_AGREE();
}
END_TEST

/* Works of several groups, given in another order on each rank; complete ones cost nothing. */
START_TEST(all_of_several_groups) {
    enum { GROUPS = 3, EACH = 40, N = GROUPS * EACH };
    static const double limits[] = { -1, 40, INFINITY, 0 };
    dtr_group *g[GROUPS] = { th_group(), dtr_world_group(th_world()), NULL };
    dtr_work *works[N + 2] = { NULL };
    int32_t x[N];
    TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g[2]));
    for (int i = 0; i < N; i++) {
        dtr_work **w = &works[(i * 7 + th_rank() * 11) % N];
        x[i] = i;
        TH_IS(dtr_allreduce(g[i % GROUPS], i32s(&x[i], 1), i32s(&x[i], 1), DTR_SUM, NULL, w),
              DTR_OK);
    }
    works[N + 1] = works[5]; /* twice */
    for (int i = 0; i < 4; i++) {
        TH_IS(dtr_work_wait_all(works, N + 2, limits[i]), DTR_OK);
    }
    for (int i = 0; i < N; i++) {
        TH_CHECK(x[i] == i * th_size(), "work %d gave %d", i, x[i]);
    }
    TH_AGREE();
    TH_OK(dtr_group_destroy(g[2]));
    TH_IS(dtr_work_wait_all(works, N + 2, -1), DTR_OK); /* those of an ended group too */
    release_all(works, N);
    TH_AGREE();
}
END_TEST

START_TEST(looking_is_harmless) {
    dtr_group *g = own_group();
    int32_t x[2] = { 0, 0 };
    dtr_work *works[2] = { receive(g, &x[0], 1, 0), receive(g, &x[1], 2, 0) };
    size_t index = 7;
    TH_IS(dtr_work_wait_all(works, 2, 0), DTR_IN_PROGRESS);
    TH_IS(dtr_work_wait_any(works, 2, 0, &index), DTR_IN_PROGRESS);
    TH_CHECK(index == 7, "the index became %zu", index);
    send_to_self(g, 5, 2);
    while (dtr_work_wait_any(works, 2, 0, &index) == DTR_IN_PROGRESS) {
        th_sleep(0.001);
    }
    TH_CHECK(index == 1 && x[1] == 5, "index %zu, value %d", index, x[1]);
    TH_IS(dtr_work_wait_all(works, 2, 0), DTR_IN_PROGRESS);
    send_to_self(g, 6, 1);
    TH_IS(dtr_work_wait_all(works, 2, -1), DTR_OK);
    TH_IS(dtr_work_wait_any(works, 2, -1, &index), DTR_OK);
    TH_CHECK(index == 0 && x[0] == 6, "index %zu of two, value %d", index, x[0]);
    works[0] = NULL;
    TH_IS(dtr_work_wait_any(works, 2, INFINITY, &index), DTR_OK);
    TH_CHECK(index == 1, "index %zu where 0 is NULL", index);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    release_all(works, 2);
    TH_AGREE();
}
END_TEST

typedef struct later {
    dtr_group *group;
    int32_t x;
    int tag;
    const dtr_work *until_unlimited; /* NULL, or sent once this work has no limit any more */
    dtr_status status;
} later;

/* Most likely while the other thread waits; the test holds in either order. */
static void *send_later(void *arg) {
    later *me = arg;
    dtr_work *w = NULL;
    th_sleep(0.1);
    while (me->until_unlimited != NULL && !isinf(me->until_unlimited->limit.deadline)) {
        th_sleep(0.001);
    }
    me->status = dtr_send(me->group, i32s(&me->x, 1), 0, me->tag, NULL, &w);
    me->status = me->status == DTR_OK ? dtr_work_wait(w, -1) : me->status;
    (void)dtr_work_release(w);
    return NULL;
}

/* The first failure in the order of the array, whatever the order in time; the others are waited
 * for. */
START_TEST(first_failure_of_all) {
    dtr_group *aborted = own_group(), *late = own_group(), *good = own_group();
    int32_t x[4] = { 0 };
    dtr_work *works[4] = { receive(good, &x[0], 1, 0), receive(late, &x[1], 1, 0.2),
                           receive(aborted, &x[2], 1, 0), receive(good, &x[3], 2, 0) };
    pthread_t thread;
    later me = { good, 9, 2, NULL, DTR_OK };
    TH_IS(dtr_group_abort(aborted, "enough"), DTR_OK);
    send_to_self(good, 8, 1);
    if (has_threads()) {
        pthread_create(&thread, NULL, send_later, &me);
    } else {
        send_to_self(good, 9, 2);
    }
    TH_IS(dtr_work_wait_all(works, 4, -1), DTR_ERR_TIMEOUT);
    TH_MESSAGE("0.2 s");
    TH_IS(dtr_work_wait(works[3], 0), DTR_OK);
    TH_CHECK(x[0] == 8 && x[3] == 9, "received %d and %d", x[0], x[3]);
    if (has_threads()) {
        pthread_join(thread, NULL);
        TH_IS(me.status, DTR_OK);
    }
    dtr_work *other_order[] = { works[3], works[2], works[1] };
    TH_IS(dtr_work_wait_all(other_order, 3, 0), DTR_ERR_ABORTED);
    TH_MESSAGE("enough");
    release_all(works, 4);
    TH_IS(dtr_group_destroy(aborted), DTR_OK);
    TH_IS(dtr_group_destroy(late), DTR_OK);
    TH_IS(dtr_group_destroy(good), DTR_OK);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* Whichever comes first, of two groups. No limit means none for all of them. */
START_TEST(any_of_two_groups) {
    dtr_group *g[2] = { own_group(), own_group() };
    for (size_t i = 0; i < 4; i++) {
        int32_t x[2] = { 0, 0 };
        size_t which = i % 2, index = 7;
        dtr_work *works[3] = { receive(g[0], &x[0], 1, 0), NULL, receive(g[1], &x[1], 1, 0) };
        later me = { g[which], 3, 1, i < 2 ? NULL : works[2 - 2 * which], DTR_OK };
        pthread_t thread;
        if (has_threads()) {
            pthread_create(&thread, NULL, send_later, &me);
        } else {
            send_to_self(g[which], 3, 1);
        }
        TH_IS(dtr_work_wait_any(works, 3, i < 2 ? -1 : INFINITY, &index), DTR_OK);
        TH_CHECK(index == 2 * which && x[which] == 3, "index %zu, value %d", index, x[which]);
        if (has_threads()) {
            pthread_join(thread, NULL);
        }
        TH_IS(me.status, DTR_OK);
        const double rest = works[2 - index]->limit.deadline;
        TH_CHECK(i >= 2 || !isinf(rest), "the other has lost its limit");
        send_to_self(g[1 - which], 4, 1);
        TH_IS(dtr_work_wait_all(works, 3, -1), DTR_OK);
        TH_CHECK(x[1 - which] == 4, "the other gave %d", x[1 - which]);
        release_all(works, 3);
    }
    TH_IS(dtr_group_destroy(g[0]), DTR_OK);
    TH_IS(dtr_group_destroy(g[1]), DTR_OK);
    TH_AGREE();
}
END_TEST

/* A positive limit that is reached fails all that are unfinished; a negative one leaves each its
 * own. */
START_TEST(limits_are_those_of_a_wait) {
    for (int any = 0; any < 2; any++) {
        dtr_group *a = own_group(), *b = own_group(), *c = own_group();
        int32_t x[3];
        size_t index = 7;
        dtr_work *works[4] = { NULL, receive(a, &x[0], 1, 0), receive(b, &x[1], 1, 0.2),
                               receive(c, &x[2], 1, 0) };
        TH_IS(any ? dtr_work_wait_any(works, 4, -1, &index) : dtr_work_wait_all(works + 2, 1, -1),
              DTR_ERR_TIMEOUT);
        TH_MESSAGE("0.2 s");
        TH_CHECK(!any || index == 2, "index %zu", index);
        works[2] = NULL;
        TH_IS(any ? dtr_work_wait_any(works, 4, 0.3, &index) : dtr_work_wait_all(works, 4, 0.3),
              DTR_ERR_TIMEOUT);
        TH_MESSAGE("0.3 s");
        TH_CHECK(!any || index == 1, "index %zu", index);
        TH_IS(dtr_group_status(a), DTR_ERR_TIMEOUT);
        TH_IS(dtr_group_status(c), any ? dtr_group_status(c) : DTR_ERR_TIMEOUT);
        TH_IS(dtr_work_wait_all(works, 4, 0.1), DTR_ERR_TIMEOUT);
        TH_IS(dtr_group_status(c), DTR_ERR_TIMEOUT);
        release_all(works, 4);
        TH_IS(dtr_group_destroy(a), DTR_OK);
        TH_IS(dtr_group_destroy(b), DTR_OK);
        TH_IS(dtr_group_destroy(c), DTR_OK);
    }
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

typedef struct seen {
    dtr_work *waited[2];
    dtr_status all, any, done;
    size_t index;
    atomic_int n;
} seen;

static void wait_inside(dtr_work *w, dtr_status s, void *arg) {
    seen *me = arg;
    (void)s;
    me->all = dtr_work_wait_all(me->waited, 2, -1);
    me->any = dtr_work_wait_any(me->waited, 1, -1, &me->index);
    me->waited[0] = NULL;
    me->waited[1] = w;
    me->done = dtr_work_wait_any(me->waited, 2, -1, &me->index);
    atomic_fetch_add(&me->n, 1);
}

/* Inside a callback of the same world only what is complete can be waited for. */
START_TEST(inside_a_callback) {
    dtr_group *g = own_group();
    int32_t x, y;
    dtr_work *pending = receive(g, &x, 1, 0), *w = receive(g, &y, 2, 0);
    seen me = { .waited = { pending, NULL } };
    TH_IS(dtr_work_on_complete(w, wait_inside, &me), DTR_OK);
    send_to_self(g, 1, 2);
    TH_IS(dtr_work_wait_all(&w, 1, -1), DTR_OK);
    TH_CHECK(me.n == 1 && me.all == DTR_ERR_STATE && me.any == DTR_ERR_STATE && me.done == DTR_OK &&
                 me.index == 1,
             "%d calls: %d, %d, %d with index %zu", me.n, me.all, me.any, me.done, me.index);
    send_to_self(g, 1, 1);
    TH_IS(dtr_work_wait_all(&pending, 1, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_work_release(pending), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* WRK4: what belongs to an open scope has not begun. */
START_TEST(inside_a_scope) {
    int32_t x = 1;
    size_t index = 7;
    dtr_work *w[2] = { NULL, NULL };
    TH_OK(dtr_coalesce_begin(th_group()));
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, &w[1]), DTR_OK);
    TH_IS(dtr_work_wait_all(w, 2, -1), DTR_ERR_STATE);
    TH_MESSAGE("dtr_work_wait_all: the work belongs to a coalescing scope");
    TH_IS(dtr_work_wait_any(w, 2, 0, &index), DTR_ERR_STATE);
    TH_OK(dtr_coalesce_end(th_group(), &w[0]));
    TH_IS(dtr_work_wait_all(w, 2, -1), DTR_OK);
    TH_IS(dtr_work_wait_any(w, 2, -1, &index), DTR_OK);
    TH_CHECK(x == th_size() && index == 0, "sum %d, index %zu", x, index);
    release_all(w, 2);
    TH_AGREE();
}
END_TEST

/* Two worlds, waited for in different order: without threads each wait moves both. */
START_TEST(two_worlds) {
    enum { COUNT = 700000 };
    dtr_world *second = NULL;
    TH_OK(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &second));
    float *x = malloc(2 * COUNT * sizeof *x);
    for (int any = 0; any < 2; any++) {
        const int mine = th_rank() % 2;
        dtr_work *works[2];
        for (size_t k = 0; k < 2 * (size_t)COUNT; k++) {
            x[k] = 1;
        }
        for (int i = 0; i < 2; i++) {
            dtr_group *g = i == 0 ? th_group() : dtr_world_group(second);
            dtr_buffer b = dtr_cpu(x + i * COUNT, COUNT, DTR_F32);
            TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, &works[i ^ mine]), DTR_OK);
        }
        for (size_t index = 0; any && (works[0] != NULL || works[1] != NULL);) {
            TH_IS(dtr_work_wait_any(works, 2, -1, &index), DTR_OK);
            TH_IS(dtr_work_release(works[index]), DTR_OK);
            works[index] = NULL;
        }
        TH_IS(dtr_work_wait_all(works, 2, -1), DTR_OK);
        release_all(works, 2);
        for (size_t k = 0; k < 2 * (size_t)COUNT; k++) {
            TH_CHECK(x[k] == (float)th_size(), "element %zu is %g", k, (double)x[k]);
        }
        TH_AGREE();
    }
    free(x);
    TH_OK(dtr_world_destroy(second));
}
END_TEST

static void note_end(dtr_work *w, dtr_status s, void *arg) {
    atomic_int *ended = arg;
    (void)w;
    atomic_store(ended, s == DTR_OK ? 1 : -1);
}

/* Without a thread nothing but these calls moves the operation. */
START_TEST(a_turn_of_the_world) {
    int32_t x = 1;
    dtr_work *w = NULL;
    atomic_int ended = 0;
    TH_IS(dtr_world_progress(NULL), DTR_ERR_ARG);
    TH_IS(dtr_world_progress(th_world()), DTR_OK); /* nothing to do */
    TH_IS(dtr_allreduce(th_group(), i32s(&x, 1), i32s(&x, 1), DTR_SUM, NULL, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, note_end, &ended), DTR_OK);
    while (atomic_load(&ended) == 0) {
        TH_IS(dtr_world_progress(th_world()), DTR_OK);
    }
    TH_CHECK(ended == 1 && x == th_size(), "ended %d, sum %d", ended, x);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- how long a work took ---- */

typedef struct measured {
    double duration; /* as its own callback sees it */
    atomic_int ended;
} measured;

static void note_duration(dtr_work *w, dtr_status s, void *arg) {
    measured *m = arg;
    (void)s;
    m->duration = dtr_work_duration(w);
    atomic_store(&m->ended, 1);
}

/* What begins after `from` and has ended by now; the two clocks agree to a microsecond. */
static void took(const dtr_work *w, const char *what, double least, double from) {
    const double d = dtr_work_duration(w), most = th_now() - from + 1e-5;
    TH_CHECK(d >= least && d <= most, "%s took %g s, not %g to %g", what, d, least, most);
    TH_CHECK(dtr_work_duration(w) == d, "%s takes another time now", what);
}

/* A message of a rank to itself is sent 20 ms after its receive has begun. */
START_TEST(durations) {
    int32_t x = 1, y = 0;
    dtr_work *w = NULL, *sent = NULL;
    measured m = { 0 };
    TH_CHECK(isnan(dtr_work_duration(NULL)), "NULL has a duration");
    const double from = th_now();
    TH_IS(dtr_recv(th_group(), i32s(&y, 1), th_rank(), 1, NULL, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, note_duration, &m), DTR_OK);
    TH_CHECK(isnan(dtr_work_duration(w)), "an unfinished receive has a duration");
    th_sleep(0.02);
    TH_CHECK(isnan(dtr_work_duration(w)), "an unfinished receive has a duration");
    TH_IS(dtr_send(th_group(), i32s(&x, 1), th_rank(), 1, NULL, &sent), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    took(w, "the receive", 0.02 - 1e-5, from);
    TH_CHECK(atomic_load(&m.ended) == 1 && m.duration == dtr_work_duration(w),
             "its callback saw %g", m.duration);
    TH_IS(dtr_work_wait(sent, -1), DTR_OK);
    took(sent, "the send", 0, from);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_work_release(sent), DTR_OK);
    const double then = th_now();
    TH_IS(dtr_recv(th_group(), i32s(&y, 1), DTR_PEER_NONE, 1, NULL, &w), DTR_OK);
    TH_CHECK(dtr_work_duration(w) == 0, "no message took %g s", dtr_work_duration(w));
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_barrier(th_group(), NULL, &w), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    took(w, "a barrier", 0, then);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* A scope takes from its end on, whatever was done before it; with a failure, too. */
START_TEST(durations_of_scopes_and_failures) {
    int32_t x[2] = { 1, 1 };
    dtr_work *w = NULL, *one = NULL;
    dtr_group *g = NULL;
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    for (int i = 0; i < 2; i++) {
        one = NULL;
        TH_IS(dtr_allreduce(th_group(), i32s(&x[i], 1), i32s(&x[i], 1), DTR_SUM, NULL, &one),
              DTR_OK);
        TH_CHECK(isnan(dtr_work_duration(one)), "an open scope has a duration");
        TH_IS(dtr_work_release(one), DTR_OK);
    }
    th_sleep(0.02);
    double from = th_now();
    TH_IS(dtr_coalesce_end(th_group(), &w), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    took(w, "a scope", 0, from);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    th_sleep(0.02);
    from = th_now();
    TH_IS(dtr_coalesce_end(th_group(), &w), DTR_OK);
    took(w, "a scope without calls", 0, from);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_OK(dtr_group_split(th_group(), th_rank(), 0, NULL, &g));
    from = th_now();
    TH_IS(dtr_recv(g, i32s(x, 1), 0, 1, NULL, &w), DTR_OK);
    TH_IS(dtr_work_wait(w, 0.02), DTR_ERR_TIMEOUT);
    took(w, "a receive that failed", 0.02 - 1e-5, from);
    (void)dtr_group_destroy(g);
    took(w, "a receive whose group has ended", 0.02 - 1e-5, from);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "waiting for several", 120);
    th_add(tc, nothing_to_wait_for, 0, 0);
    th_add(tc, all_of_several_groups, 0, 0);
    th_add(tc, looking_is_harmless, 0, 0);
    th_add(tc, first_failure_of_all, 0, 0);
    th_add(tc, any_of_two_groups, 0, 0);
    th_add(tc, limits_are_those_of_a_wait, 0, 0);
    th_add(tc, inside_a_callback, 0, 0);
    th_add(tc, inside_a_scope, 0, 0);
    th_add(tc, two_worlds, 0, 0);
    th_add(tc, a_turn_of_the_world, 0, 0);
    tc = th_case(s, "durations", 120);
    th_add(tc, durations, 0, 0);
    th_add(tc, durations_of_scopes_and_failures, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_wait", make);
}
