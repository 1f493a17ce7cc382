/* A time limit means the same in every call that waits and in all options, as dtr/status.h says. */
#include <math.h>
#include <mpi.h>

#include <dtr/mpi.h>

#include "core/ddp_internal.h"
#include "core/work.h"
#include "ddp_models.h"
#include "harness.h"
#include "zero/zero.h"

static int32_t from, to;

static dtr_buffer one(int32_t *x) {
    return dtr_cpu(x, 1, DTR_I32);
}

/* ---- calls that wait ---- */

static dtr_status wait_all(dtr_work *w, double limit) {
    dtr_work *const works[] = { NULL, w };
    return dtr_work_wait_all(works, 2, limit);
}

static dtr_status wait_any(dtr_work *w, double limit) {
    dtr_work *const works[] = { NULL, w };
    size_t index = 0;
    return dtr_work_wait_any(works, 2, limit, &index);
}

static dtr_status drain(dtr_work *w, double limit) {
    return dtr_group_drain(w->group, limit);
}

static const struct {
    const char *name;
    dtr_status (*call)(dtr_work *, double);
} waiting[] = { { "dtr_work_wait", dtr_work_wait },
                { "dtr_work_synchronize", dtr_work_synchronize },
                { "dtr_work_wait_all", wait_all },
                { "dtr_work_wait_any", wait_any },
                { "dtr_group_drain", drain } };
enum { WAITING = sizeof waiting / sizeof waiting[0] };

START_TEST(calls_that_wait) {
    static const double enough[] = { -1, -0.25, -INFINITY, 600, INFINITY };
    for (int k = 0; k < WAITING; k++) {
        const char *name = waiting[k].name;
        for (size_t i = 0; i < sizeof enough / sizeof enough[0]; i++) {
            dtr_work *got = NULL, *sent = NULL;
            TH_IS(dtr_recv(th_group(), one(&to), th_rank(), 1, NULL, &got), DTR_OK);
            TH_CHECK(waiting[k].call(got, 0) == DTR_IN_PROGRESS, "%s does not look", name);
            TH_CHECK(waiting[k].call(got, -0.0) == DTR_IN_PROGRESS, "%s does not look", name);
            TH_CHECK(waiting[k].call(got, NAN) == DTR_ERR_ARG, "%s takes NaN", name);
            TH_MESSAGE("timeout_s is not a number");
            TH_IS(dtr_send(th_group(), one(&from), th_rank(), 1, NULL, &sent), DTR_OK);
            dtr_status s = waiting[k].call(got, enough[i]);
            TH_CHECK(s == DTR_OK, "%s with %g: %s", name, enough[i], dtr_status_name(s));
            TH_IS(dtr_work_wait(sent, -1), DTR_OK);
            TH_IS(dtr_work_release(got), DTR_OK);
            TH_IS(dtr_work_release(sent), DTR_OK);
        }
        dtr_group *g = NULL;
        dtr_work *got = NULL;
        TH_IS(dtr_group_split(th_group(), th_rank(), 0, NULL, &g), DTR_OK);
        TH_IS(dtr_recv(g, one(&to), 0, 1, NULL, &got), DTR_OK);
        TH_CHECK(waiting[k].call(got, 0.01) == DTR_ERR_TIMEOUT, "%s has no limit", name);
        TH_IS(dtr_work_release(got), DTR_OK);
        (void)dtr_group_destroy(g);
        TH_AGREE();
    }
}
END_TEST

START_TEST(monitored_barrier) {
    static const double enough[] = { -1, -INFINITY, 600, INFINITY };
    int missing[64], n = -1;
    for (size_t i = 0; i < sizeof enough / sizeof enough[0]; i++) {
        TH_IS(dtr_monitored_barrier(th_group(), enough[i], true, NULL, NULL), DTR_OK);
    }
    TH_IS(dtr_monitored_barrier(th_group(), NAN, true, NULL, NULL), DTR_ERR_ARG);
    TH_MESSAGE("timeout_s is not a number");
    TH_AGREE();
    dtr_status want = th_size() == 1 ? DTR_OK : DTR_ERR_TIMEOUT;
    if (th_rank() == 0) { /* nobody else has come */
        TH_IS(dtr_monitored_barrier(th_group(), 0, true, missing, &n), want);
        TH_CHECK(n == th_size() - 1, "%d ranks are missing", n);
        if (n > 0) {
            TH_MESSAGE("(0 s here)");
        }
    }
    th_barrier();
    if (th_rank() != 0) {
        TH_IS(dtr_monitored_barrier(th_group(), -1, true, missing, &n), want);
        TH_CHECK(n == th_size() - 1, "%d ranks were missing", n);
    }
    TH_OK(dtr_monitored_barrier(th_group(), -1, true, NULL, NULL));
}
END_TEST

/* ---- options ---- */

static const struct {
    double given, holds; /* 0: what holds without it */
} rows[] = { { 0, 0 },     { -1, 0 },        { -INFINITY, 0 },      { -0.0, 0 },
             { 700, 700 }, { 650.5, 650.5 }, { INFINITY, INFINITY } };
enum { ROWS = sizeof rows / sizeof rows[0] };

static bool holds(double limit, int row, double without) {
    return limit == (rows[row].holds != 0 ? rows[row].holds : without);
}

/* Also on CUDA buffers. */
static double limit_of(const dtr_group *g) {
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    TH_IS(dtr_group_get_info(g, &info), DTR_OK);
    TH_CHECK(info.timeout_cuda_s == info.timeout_cpu_s || info.timeout_cuda_s == 600,
             "on CUDA buffers it is %g", info.timeout_cuda_s);
    return info.timeout_cpu_s;
}

START_TEST(options_of_worlds_and_groups) {
    double without_world = 0, without_group = limit_of(dtr_world_group(th_world()));
    for (int i = 0; i < ROWS; i++) {
        dtr_world_options wo = DTR_WORLD_OPTIONS_INIT;
        dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
        dtr_world *w = NULL;
        dtr_group *g = NULL;
        wo.timeout_s = go.timeout_s = rows[i].given;
        TH_OK(dtr_world_create_from_comm(MPI_COMM_SELF, &wo, &w));
        without_world = i == 0 ? limit_of(dtr_world_group(w)) : without_world;
        TH_CHECK(holds(limit_of(dtr_world_group(w)), i, without_world), "row %d: a world has %g", i,
                 limit_of(dtr_world_group(w)));
        TH_IS(dtr_group_create(w, NULL, 1, &go, &g), DTR_OK);
        TH_CHECK(holds(limit_of(g), i, limit_of(dtr_world_group(w))), "row %d: a group has %g", i,
                 limit_of(g));
        TH_OK(dtr_world_destroy(w));
    }
    dtr_world_options wo = DTR_WORLD_OPTIONS_INIT;
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    dtr_world *w = NULL;
    dtr_group *g = NULL;
    wo.timeout_s = go.timeout_s = NAN;
    TH_IS(dtr_world_create_from_comm(MPI_COMM_SELF, &wo, &w), DTR_ERR_ARG);
    TH_MESSAGE("dtr_world_options.timeout_s is not a number");
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &go, &g), DTR_ERR_ARG);
    TH_MESSAGE("dtr_group_options.timeout_s is not a number");
    TH_CHECK(limit_of(dtr_world_group(th_world())) == without_group, "the world's has changed");
    TH_AGREE();
}
END_TEST

START_TEST(options_of_calls) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    for (int i = 0; i < ROWS; i++) {
        dtr_work *got = NULL, *sent = NULL;
        o.timeout_s = rows[i].given;
        TH_IS(dtr_recv(th_group(), one(&to), th_rank(), 1, &o, &got), DTR_OK);
        double has = got != NULL ? got->call.timeout_s : -1;
        TH_CHECK(holds(has, i, limit_of(th_group())), "row %d: %g", i, has);
        TH_IS(dtr_send(th_group(), one(&from), th_rank(), 1, &o, &sent), DTR_OK);
        TH_IS(dtr_work_wait(got, -1), DTR_OK);
        TH_IS(dtr_work_wait(sent, -1), DTR_OK);
        TH_IS(dtr_work_release(got), DTR_OK);
        TH_IS(dtr_work_release(sent), DTR_OK);
    }
    o.timeout_s = NAN;
    TH_IS(dtr_barrier(th_group(), &o, NULL), DTR_ERR_ARG);
    TH_MESSAGE("timeout_s is not a number");
    TH_AGREE();
}
END_TEST

START_TEST(options_of_modules) {
    synth s = synth_equal(2, 30);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_zero_options zo = DTR_ZERO_OPTIONS_INIT;
    dtr_ddp *ddp = NULL;
    dtr_zero *z = NULL;
    for (int i = 0; i < ROWS; i++) {
        o.timeout_s = zo.timeout_s = rows[i].given;
        TH_OK(dtr_ddp_create(th_group(), s.params, s.n, &o, &ddp));
        TH_CHECK(holds(ddp->group->timeout_s, i, limit_of(th_group())), "row %d: a module has %g",
                 i, ddp->group->timeout_s);
        TH_OK(dtr_zero_create(ddp, &zo, &z));
        TH_CHECK(z->o.timeout_s == rows[i].holds, "row %d: a sharded optimizer has %g", i,
                 z->o.timeout_s);
        TH_OK(dtr_zero_destroy(z));
        TH_OK(dtr_ddp_destroy(ddp));
    }
    o.timeout_s = NAN;
    TH_OK(dtr_ddp_create(th_group(), s.params, s.n, NULL, &ddp));
    zo.timeout_s = NAN;
    TH_IS(dtr_zero_create(ddp, &zo, &z), DTR_ERR_ARG);
    TH_MESSAGE("dtr_zero_options.timeout_s is not a number");
    TH_OK(dtr_ddp_destroy(ddp));
    TH_IS(dtr_ddp_create(th_group(), s.params, s.n, &o, &ddp), DTR_ERR_ARG);
    TH_MESSAGE("dtr_ddp_options.timeout_s is not a number");
    TH_AGREE();
    synth_free(&s);
}
END_TEST

/* ---- of a live group ---- */

START_TEST(a_live_group_reads_it_alike) {
    dtr_group *g = NULL, *part = NULL;
    const double worlds = limit_of(dtr_world_group(th_world()));
    TH_IS(dtr_group_set_timeout(NULL, 1), DTR_NOT_MEMBER);
    TH_OK(dtr_group_split(th_group(), th_rank(), 0, NULL, &g));
    for (int i = 0; i < ROWS; i++) {
        TH_IS(dtr_group_set_timeout(g, 77), DTR_OK);
        TH_IS(dtr_group_set_timeout(g, rows[i].given), DTR_OK);
        TH_CHECK(holds(limit_of(g), i, worlds), "row %d: the group has %g", i, limit_of(g));
    }
    TH_IS(dtr_group_set_timeout(g, 77), DTR_OK);
    TH_IS(dtr_group_set_timeout(g, NAN), DTR_ERR_ARG);
    TH_MESSAGE("timeout_s is not a number");
    TH_CHECK(limit_of(g) == 77, "a refused call has changed it to %g", limit_of(g));
    TH_OK(dtr_group_split(g, 0, 0, NULL, &part));
    TH_CHECK(limit_of(part) == 77, "a part of it has %g", limit_of(part));
    TH_IS(dtr_group_set_timeout(part, 78), DTR_OK);
    TH_CHECK(limit_of(g) == 77, "the whole has %g", limit_of(g));
    TH_OK(dtr_group_destroy(part));
    TH_IS(dtr_group_abort(g, "broken"), DTR_OK);
    TH_IS(dtr_group_set_timeout(g, 79), DTR_OK); /* for what waits for it */
    TH_OK(dtr_group_destroy(g));
    TH_IS(dtr_group_set_timeout(g, 1), DTR_ERR_STATE);
    TH_AGREE();
}
END_TEST

/* What is under way keeps its limit, what comes later has the new one. */
START_TEST(a_new_limit_holds_for_later_calls) {
    dtr_group *g = NULL;
    dtr_work *before = NULL, *after = NULL;
    TH_OK(dtr_group_split(th_group(), th_rank(), 0, NULL, &g));
    TH_IS(dtr_recv(g, one(&to), 0, 1, NULL, &before), DTR_OK);
    TH_IS(dtr_group_set_timeout(g, 0.05), DTR_OK);
    th_sleep(0.3);
    TH_IS(dtr_work_wait(before, 0), DTR_IN_PROGRESS);
    TH_IS(dtr_recv(g, one(&to), 0, 2, NULL, &after), DTR_OK);
    th_start start = th_begin();
    TH_IS(dtr_work_wait(after, -1), DTR_ERR_TIMEOUT);
    TH_MESSAGE("within 0.05 s");
    TH_CHECK(th_in_time(start, 0.05), "the later call has the earlier limit");
    TH_IS(dtr_work_release(before), DTR_OK);
    TH_IS(dtr_work_release(after), DTR_OK);
    (void)dtr_group_destroy(g);
    TH_AGREE();
}
END_TEST

static dtr_status again(dtr_group *g) {
    return dtr_allreduce(g, one(&from), one(&to), DTR_SUM, NULL, NULL);
}

/* Calls on the fast path, which the group has learned with another limit. */
START_TEST(a_new_limit_reaches_the_fast_path) {
    enum { LEARNED = 5 };
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
    for (int i = 0; i < LEARNED; i++) {
        TH_IS(again(g), DTR_OK);
    }
    TH_AGREE();
    TH_IS(dtr_group_set_timeout(g, 0.2), DTR_OK);
    th_barrier();
    if (th_rank() != 0) {
        th_start start = th_begin();
        TH_IS(again(g), DTR_ERR_TIMEOUT);
        TH_MESSAGE("within 0.2 s");
        TH_CHECK(th_in_time(start, 0.2), "the limit is what it was when the call was learned");
    }
    th_barrier();
    (void)dtr_group_destroy(g);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "time_limits", 120);
    th_add(tc, calls_that_wait, 0, 0);
    th_add(tc, monitored_barrier, 0, 64);
    th_add(tc, options_of_worlds_and_groups, 0, 0);
    th_add(tc, options_of_calls, 0, 0);
    th_add(tc, options_of_modules, 0, 0);
    th_add(tc, a_live_group_reads_it_alike, 0, 0);
    th_add(tc, a_new_limit_holds_for_later_calls, 0, 0);
    th_add(tc, a_new_limit_reaches_the_fast_path, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "time_limits", make);
}
