/* Limits by a clock that the test sets, and periods (reliability: DL2, DL4, O4, T9, T10, T27): the
 * linker puts the functions below in the place of the library's three, so that the library itself
 * knows nothing of it. */
#include <math.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <string.h>

#include <dtr/backend.h>
#include <dtr/mpi.h>

#include "control/peers.h"
#include "core/team.h"
#include "diagnosis/dump.h"
#include "diagnosis/heartbeat.h"
#include "diagnosis/watchdog.h"
#include "engine/engine.h"
#include "groups_common.h"
#include "recorder/recording.h"
#include "settings.h"
#include "world/world.h"

/* ---- the clock ---- */

int64_t real_now_ns(void) __asm__("__real_dtr__now_ns");
int64_t real_stamp_ns(void) __asm__("__real_dtr__stamp_ns");
int64_t our_now_ns(void) __asm__("__wrap_dtr__now_ns");
int64_t our_stamp_ns(void) __asm__("__wrap_dtr__stamp_ns");
double our_now(void) __asm__("__wrap_dtr__now");

static _Atomic int64_t stands_at; /* for all threads; 0: it goes */
static _Atomic int64_t ahead_ns;  /* once it has stood: it never goes back */

/* Of one thread: the n-th look at a limit finds that much more. 0: none does. */
static _Thread_local struct {
    int jump_at, looks;
    int64_t by_ns;
} mine;
static atomic_bool jumped;

int64_t our_now_ns(void) {
    const int64_t at = atomic_load(&stands_at);
    return at != 0 ? at : real_now_ns() + atomic_load(&ahead_ns);
}

int64_t our_stamp_ns(void) {
    const int64_t at = atomic_load(&stands_at);
    return at != 0 ? at : real_stamp_ns() + atomic_load(&ahead_ns);
}

double our_now(void) {
    const bool jumps = mine.jump_at > 0 && ++mine.looks >= mine.jump_at;
    if (jumps) {
        atomic_store(&jumped, true);
    }
    return (double)(our_now_ns() + (jumps ? mine.by_ns : 0)) * 1e-9;
}

static int64_t of_seconds(double s) {
    return (int64_t)(s * 1e9);
}

/* The same instant on all ranks. */
static int64_t stop_clock(void) {
    const int64_t at = of_seconds(th_latest((double)our_now_ns() * 1e-9));
    atomic_store(&stands_at, at);
    th_barrier();
    return at;
}

static void start_clock(void) {
    th_barrier();
    atomic_store(&ahead_ns, atomic_load(&stands_at) - real_now_ns());
    atomic_store(&stands_at, 0);
}

/* ---- a backend whose operations end when the test says so ---- */

static bool never(void) {
    return false;
}

static bool once_jumped(void) {
    return atomic_load(&jumped);
}

static bool (*_Atomic over)(void);

static dtr_status held_create(const dtr_backend_args *a, void **state) {
    (void)a;
    *state = &over;
    return DTR_OK;
}

static dtr_status held_allreduce(void *state, const dtr_backend_call *c, void **request) {
    (void)c;
    *request = state;
    return DTR_OK;
}

static dtr_status held_test(void *state, void *request, bool *done, int *source) {
    (void)state;
    (void)request;
    (void)source;
    *done = atomic_load(&over)();
    return DTR_OK;
}

static dtr_group *held_group(void) {
    static bool known;
    dtr_backend_ops ops = DTR_BACKEND_OPS_INIT;
    dtr_group_options o = options(600, NULL);
    dtr_group *g = NULL;
    ops.create = held_create;
    ops.test = held_test;
    ops.allreduce = held_allreduce;
    if (!known) {
        TH_IS(dtr_backend_register(th_world(), "held", &ops, DTR_BACKEND_CPU), DTR_OK);
        known = true;
    }
    o.backend = "cpu:held";
    TH_IS(dtr_group_split(dtr_world_group(th_world()), 0, 0, &o, &g), DTR_OK);
    return g;
}

static float value = 1;

static dtr_work *issue(dtr_group *g, double limit_s) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_buffer b = dtr_cpu(&value, 1, DTR_F32);
    dtr_work *w = NULL;
    o.timeout_s = limit_s;
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, &w), DTR_OK);
    return w;
}

/* ---- DL2: from the issue on, and neither earlier nor later ---- */

/* So often that whoever moves the group has looked at the clock many times. */
static void still_open(dtr_work *w) {
    bool done = false;
    for (int i = 0; i < 500; i++) {
        TH_IS(dtr_work_test(w, &done), DTR_OK);
        TH_CHECK(!done, "it has ended");
    }
}

START_TEST(DL2_a_limit_counts_from_the_issue) {
    atomic_store(&over, never);
    dtr_group *g[2] = { held_group(), held_group() };
    const int64_t from = stop_clock();
    dtr_work *at_work = issue(g[0], 5), *before = issue(g[1], 1000);
    dtr_work *queued = issue(g[1], 5); /* which never begins */
    atomic_store(&stands_at, from + of_seconds(4.999));
    still_open(at_work);
    still_open(queued);
    th_barrier();
    atomic_store(&stands_at, from + of_seconds(5) + 1000);
    TH_IS(dtr_work_wait(at_work, -1), DTR_ERR_TIMEOUT);
    TH_MESSAGE("within 5 s");
    TH_IS(dtr_work_wait(queued, -1), DTR_ERR_TIMEOUT);
    TH_MESSAGE("within 5 s");
    TH_IS(dtr_work_wait(before, -1), DTR_ERR_TIMEOUT);
    start_clock();
    dtr_work *all[] = { at_work, before, queued };
    for (int i = 0; i < 3; i++) {
        TH_IS(dtr_work_release(all[i]), DTR_OK);
    }
    TH_IS(dtr_group_destroy(g[0]), DTR_OK);
    TH_IS(dtr_group_destroy(g[1]), DTR_OK);
    TH_AGREE();
}
END_TEST

/* DL2, DL6: a wait's own limit counts from the wait. */
START_TEST(DL2_a_limit_of_a_wait_counts_from_the_wait) {
    atomic_store(&over, never);
    dtr_group *g = held_group();
    const int64_t from = stop_clock();
    dtr_work *w = issue(g, 1000);
    atomic_store(&stands_at, from + of_seconds(900));
    still_open(w);
    th_barrier();
    mine.jump_at = 3; /* after the one that the wait's limit begins with */
    mine.by_ns = of_seconds(5) + 1000;
    TH_IS(dtr_work_wait(w, 5), DTR_ERR_TIMEOUT);
    TH_MESSAGE("within 5 s");
    mine.jump_at = mine.looks = 0;
    start_clock();
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- DL4: what ends while somebody sees that its limit has passed has not failed ---- */

static dtr_status wait_with_jump(dtr_group *g, int look, bool (*ends)(void)) {
    atomic_store(&jumped, false);
    atomic_store(&over, ends);
    dtr_work *w = issue(g, 100);
    th_barrier(); /* the limit breaks the group on all ranks */
    mine.by_ns = of_seconds(200);
    mine.looks = 0;
    mine.jump_at = look;
    dtr_status s = dtr_work_wait(w, -1);
    mine.jump_at = 0;
    TH_IS(dtr_work_release(w), DTR_OK);
    return s;
}

/* Those of the engine's passes and those of the waiter have their turn among so many. */
START_TEST(DL4_a_last_look) {
    enum { LOOKS = 12 };
    for (int look = 1; look <= LOOKS; look++) {
        dtr_group *g = held_group();
        dtr_status s = wait_with_jump(g, look, once_jumped);
        TH_CHECK(s == DTR_OK, "look %d: %s: %s", look, dtr_status_name(s),
                 s < 0 ? dtr_last_error_message() : "");
        if (look % 5 == 1) { /* the limit has passed, if it has not ended */
            TH_IS(wait_with_jump(g, look, never), DTR_ERR_TIMEOUT);
            TH_MESSAGE("within 100 s");
        }
        th_barrier();
        TH_IS(dtr_group_destroy(g), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* ---- O4: a thread that does not move is noticed in time, not before ---- */

static atomic_bool may_return;
static atomic_bool is_inside;

static int hang(dtr__poller *p) {
    (void)p;
    atomic_store(&is_inside, true);
    while (!atomic_load(&may_return)) {
        th_sleep(0.001);
    }
    return DTR__POLL_IDLE;
}

static struct {
    int own, others; /* how often it was told of */
    char text[400];
} lost;

static void note_lost(dtr_world *world, int rank, dtr_status s, const char *text) {
    *(rank == dtr_world_rank(world) ? &lost.own : &lost.others) += s == DTR_ERR_TIMEOUT;
    snprintf(lost.text, sizeof lost.text, "%s", text);
    TH_CHECK(strstr(text, "thread has not moved for more than 10 s") != NULL, "%s", text);
}

/* A watchdog's looks, one every `step_ms`, until it finds somebody. */
static void count_to_limit(dtr_world *w, int step_ms, int own) {
    const int64_t from = atomic_load(&stands_at), limit = of_seconds(10);
    const int64_t step = step_ms * INT64_C(1000000);
    dtr__heartbeats *hs = dtr__heartbeats_new(w);
    memset(&lost, 0, sizeof lost);
    while (own == 0 && atomic_load(&dtr__recorder_header(w)->progress_beat) != 0) {
        th_sleep(0.001); /* until it rests: ten seconds pass faster here than it wakes from a nap */
    }
    int64_t passed = -step;
    while (hs != NULL && lost.own + lost.others == 0 && passed < 3 * limit) {
        passed += step;
        atomic_store(&stands_at, from + passed);
        dtr__heartbeats_round(w, hs, note_lost);
    }
    dtr__heartbeats_free(hs);
    TH_CHECK(lost.own == own && lost.others == dtr_world_local_size(w) - 1, "told of %d and %d: %s",
             lost.own, lost.others, lost.text);
    TH_CHECK(passed >= limit && passed <= limit + of_seconds(0.5),
             "after %.3f s, with a look every %d ms", (double)passed * 1e-9, step_ms);
}

START_TEST(O4_a_thread_that_hangs_is_noticed_in_time) {
    dtr_world *w = TH_WORLD_WITH(NULL, "DTR_HEARTBEAT_LIMIT", "10");
    dtr__poller poller = { .poll = hang };
    while (atomic_load(&dtr__recorder_header(w)->beat_ns) ==
           0) { /* what has not begun cannot hang */
        th_sleep(0.001);
    }
    dtr__watchdog_stop(w); /* its looks are made here, and those of the others find that it hangs */
    (void)stop_clock();
    if (dtr_world_local_size(w) > 1) {
        count_to_limit(w, 100, 0);
        count_to_limit(w, 430, 0);
    }
    if (dtr__progress_has_thread(w)) {
        dtr__progress_add(w, &poller);
        dtr__progress_wake(w);
        while (!atomic_load(&is_inside)) {
            th_sleep(0.001);
        }
        count_to_limit(w, 100, 1);
        atomic_store(&may_return, true);
        while (dtr__progress_stuck(w)) { /* it has been given up, and ends now */
            th_sleep(0.001);
        }
        dtr__progress_remove(w, &poller, INFINITY);
    }
    start_clock();
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- periods: worlds side by side, by what the faster one has done meanwhile ---- */

static int64_t beat_of(const dtr_world *w) {
    return atomic_load(&dtr__recorder_header(w)->beat_ns);
}

static int64_t report_of(const dtr_world *w) {
    dtr__rank_report d = { 0 };
    return dtr__control_report_of(w, (th_rank() + 1) % th_size(), &d) ? d.seen_ns : 0;
}

/* Until the first has changed so often; how often has the second? */
static int changes_beside(const dtr_world *fast, const dtr_world *slow, int n,
                          int64_t (*of)(const dtr_world *)) {
    int64_t before = of(fast), other = of(slow);
    int changes = 0;
    while (n > 0) {
        th_sleep(0.001);
        const int64_t now = of(fast), now_other = of(slow);
        n -= now != before;
        changes += now_other != other;
        before = now;
        other = now_other;
    }
    return changes;
}

START_TEST(T27_rounds_of_the_watchdog) {
    dtr_world *fast = TH_WORLD_WITH(NULL, "DTR_WATCHDOG_MS", "2"),
              *slow = TH_WORLD_WITH(NULL, "DTR_WATCHDOG_MS", "60000");
    const int changes = changes_beside(fast, slow, 20, beat_of);
    TH_CHECK(changes <= 10, "%d rounds with a nap of a minute", changes);
    TH_IS(dtr_world_destroy(fast), DTR_OK);
    TH_IS(dtr_world_destroy(slow), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(T10_reports_between_nodes) {
    dtr_world *none = TH_WORLD_WITH(NULL, "DTR_NODE_RANKS", "1", "DTR_CONTROL_MS", "0");
    dtr_world *fast =
        TH_WORLD_WITH(NULL, "DTR_NODE_RANKS", "1", "DTR_CONTROL_MS", "5", "DTR_WATCHDOG_MS", "2");
    dtr_world *slow = TH_WORLD_WITH(NULL, "DTR_NODE_RANKS", "1", "DTR_CONTROL_MS", "60000",
                                    "DTR_WATCHDOG_MS", "2");
    const int changes = changes_beside(fast, slow, 20, report_of);
    TH_CHECK(changes <= 10, "%d reports with one a minute", changes);
    TH_CHECK(!dtr__control_serves(none) && report_of(none) == 0, "reports although there are none");
    TH_IS(dtr_world_destroy(none), DTR_OK);
    TH_IS(dtr_world_destroy(fast), DTR_OK);
    TH_IS(dtr_world_destroy(slow), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- T9, O9: how long a process that is to end waits for dumps ---- */

void our_abort(void) __asm__("__wrap_abort") __attribute__((noreturn));
static jmp_buf ended;

void our_abort(void) {
    longjmp(ended, 1);
}

static bool ends(const dtr_world *w, int64_t *since_ns) {
    if (setjmp(ended) != 0) {
        return true;
    }
    dtr__abort_round(w, since_ns, false);
    return false;
}

START_TEST(T9_how_long_dumps_are_waited_for) {
    char folder[64] = "/tmp/dtr-test-clock-XXXXXX", command[128];
    int64_t since_ns = 0;
    TH_CHECK(th_rank() != 0 || mkdtemp(folder) != NULL, "no folder");
    MPI_Bcast(folder, sizeof folder, MPI_CHAR, 0, MPI_COMM_WORLD);
    const char *const set[] = { "DTR_ON_ERROR", "abort", "DTR_DUMP_WAIT", "40", "DTR_RECORDER_DIR",
                                folder,         NULL };
    dtr_world *w = th_world_with(NULL, set);
    setenv("DTR_RECORDER_DIR", "none", 1);
    dtr__error_context ctx = { .world = w, .operation = "test" };
    dtr__watchdog_stop(w); /* nobody writes a dump now */
    const int64_t from = stop_clock();
    dtr__group_break(dtr_world_group(w), DTR_FAIL(&ctx, DTR_ERR_TIMEOUT, "too late"));
    TH_CHECK(!ends(w, &since_ns), "without a look at the others");
    atomic_store(&stands_at, from + of_seconds(39.999));
    TH_CHECK(!ends(w, &since_ns), "before DTR_DUMP_WAIT");
    atomic_store(&stands_at, from + of_seconds(40));
    TH_CHECK(ends(w, &since_ns), "not after DTR_DUMP_WAIT");
    start_clock();
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
    snprintf(command, sizeof command, "rm -r %s", folder);
    TH_ALL(th_rank() != 0 || system(command) == 0, "%s", command);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "clock", 110);
    th_add(tc, DL2_a_limit_counts_from_the_issue, 0, 0);
    th_add(tc, DL2_a_limit_of_a_wait_counts_from_the_wait, 0, 0);
    th_add(tc, DL4_a_last_look, 0, 0);
    th_add(tc, O4_a_thread_that_hangs_is_noticed_in_time, 0, 0);
    th_add(tc, T27_rounds_of_the_watchdog, 0, 0);
    th_add(tc, T10_reports_between_nodes, 2, 0);
    th_add(tc, T9_how_long_dumps_are_waited_for, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "clock", make);
}
