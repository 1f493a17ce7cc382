/* Test harness: suite runner, agreed verdicts, fixture. */
#include "harness.h"

#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <dtr/mpi.h>

#include "core/team.h"
#include "watchdog.h"

enum { MESSAGE = 512, MAX_TESTS = 512, LOG_LINES = 4096 };

static struct {
    MPI_Comm comm; /* private: verdicts never meet the library's traffic */
    int rank, size, level;
    dtr_world *world;
    dtr_group *group;
    int groups_before;
    int limit_s; /* of the running case */
    bool failed_here;
    char message[MESSAGE];
    int skipped;
    pthread_mutex_t log_lock; /* guards log, log_n */
    char *log[LOG_LINES];
    int log_n;
} th = { .log_lock = PTHREAD_MUTEX_INITIALIZER };

static const struct {
    const char *name;
    int level;
} levels[] = { { "single", MPI_THREAD_SINGLE },
               { "funneled", MPI_THREAD_FUNNELED },
               { "serialized", MPI_THREAD_SERIALIZED },
               { "multiple", MPI_THREAD_MULTIPLE } };

int th_rank(void) {
    return th.rank;
}

int th_size(void) {
    return th.size;
}

dtr_world *th_world(void) {
    return th.world;
}

dtr_group *th_group(void) {
    return th.group;
}

const char *th_thread_level(void) {
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (levels[i].level == th.level) {
            return levels[i].name;
        }
    }
    return "?";
}

void th_note(const char *file, int line, const char *fmt, ...) {
    if (th.failed_here) {
        return;
    }
    th.failed_here = true;
    int n = snprintf(th.message, MESSAGE, "rank %d: %s:%d: ", th.rank, file, line);
    va_list args;
    va_start(args, fmt);
    vsnprintf(th.message + n, (size_t)(MESSAGE - n), fmt, args);
    va_end(args);
}

/* MPI's own waits may spin, which starves the others where ranks outnumber cores. */
static void finish(MPI_Request request) {
    int done = 0;
    for (int n = 0;; n++) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done) {
            return;
        }
        if (n < 20) {
            sched_yield();
        } else {
            th_sleep(0.0002);
        }
    }
}

static void reduce(const void *mine, void *all, MPI_Datatype type, MPI_Op op) {
    MPI_Request request;
    MPI_Iallreduce(mine, all, 1, type, op, th.comm, &request);
    finish(request);
}

void th_agree(const char *file, int line) {
    int mine = th.failed_here ? th.rank : th.size, lowest = th.size;
    reduce(&mine, &lowest, MPI_INT, MPI_MIN);
    if (lowest == th.size) {
        return;
    }
    char text[MESSAGE];
    memcpy(text, th.message, MESSAGE);
    MPI_Bcast(text, MESSAGE, MPI_CHAR, lowest, th.comm);
    th.failed_here = false;
    ck_abort_msg("%s (agreed at %s:%d)", text, file, line);
}

void th_status(const char *file, int line, const char *call, dtr_status got, dtr_status want) {
    if (got != want) {
        th_note(file, line, "%s gave %s, want %s; last error: %s", call, dtr_status_name(got),
                dtr_status_name(want), dtr_last_error_message());
    }
}

void th_message_has(const char *file, int line, const char *word) {
    if (strcasestr(dtr_last_error_message(), word) == NULL) {
        th_note(file, line, "last error lacks '%s': %s", word, dtr_last_error_message());
    }
}

void th_barrier(void) {
    MPI_Request request;
    MPI_Ibarrier(th.comm, &request);
    finish(request);
}

void th_gather_u64(uint64_t mine, uint64_t *all) {
    MPI_Request request;
    MPI_Iallgather(&mine, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, th.comm, &request);
    finish(request);
}

double th_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double th_latest(double mine) {
    double latest = mine;
    reduce(&mine, &latest, MPI_DOUBLE, MPI_MAX);
    return latest;
}

bool th_patience(double *limit_s) {
    int mine = th.failed_here, any = 0;
    reduce(&mine, &any, MPI_INT, MPI_MAX);
    if (any == 0 || *limit_s >= 8) {
        return false;
    }
    th.failed_here = false;
    *limit_s *= 2;
    return true;
}

dtr_group *th_hasty_group(dtr_world *w, const dtr_group_options *o) {
    dtr_group *g = NULL;
    dtr_status s;
    do { /* a creation that reaches its limit does so on all ranks */
        s = dtr_group_create(w, NULL, th.size, o, &g);
    } while (s == DTR_ERR_TIMEOUT);
    TH_IS(s, DTR_OK);
    TH_AGREE();
    return g;
}

void th_sleep(double seconds) {
    struct timespec t = { (time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds)) };
    while (nanosleep(&t, &t) != 0) {
    }
}

void th_good_allreduce(dtr_group *g) {
    int64_t in = dtr_group_rank(g) + 1, out = -1, n = dtr_group_size(g);
    dtr_status s =
        dtr_allreduce(g, dtr_cpu(&in, 1, DTR_I64), dtr_cpu(&out, 1, DTR_I64), DTR_SUM, NULL, NULL);
    TH_CHECK(s == DTR_OK && out == n * (n + 1) / 2, "good allreduce gave %s, %lld, want %lld",
             dtr_status_name(s), (long long)out, (long long)(n * (n + 1) / 2));
    TH_AGREE();
}

static void keep_log(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    pthread_mutex_lock(&th.log_lock);
    if (th.log_n < LOG_LINES) {
        th.log[th.log_n++] = strdup(line);
    }
    pthread_mutex_unlock(&th.log_lock);
    if (getenv("DTR_TEST_VERBOSE") != NULL) {
        fprintf(stderr, "%s\n", line);
    }
}

int th_log_count(const char *containing) {
    int n = 0;
    pthread_mutex_lock(&th.log_lock);
    for (int i = 0; i < th.log_n; i++) {
        n += strstr(th.log[i], containing) != NULL;
    }
    pthread_mutex_unlock(&th.log_lock);
    return n;
}

void th_log_clear(void) {
    pthread_mutex_lock(&th.log_lock);
    for (int i = 0; i < th.log_n; i++) {
        free(th.log[i]);
    }
    th.log_n = 0;
    pthread_mutex_unlock(&th.log_lock);
}

/* ---- fixture (HR7) ---- */

static void setup(void) {
    th_watchdog_start(th.rank);
    th.failed_here = false;
    th_log_clear();
    th.groups_before = dtr_world_group_count(th.world);
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.timeout_s = 50;
    th.group = NULL;
    TH_IS(dtr_group_split(dtr_world_group(th.world), 0, th.rank, &o, &th.group), DTR_OK);
    TH_AGREE();
    th_barrier();
}

/* Whoever sends what nobody receives makes later messages of that rank look as if one was lost. */
static void check_nothing_left(void) {
    int there = 0;
    MPI_Status left = { .MPI_SOURCE = -1, .MPI_TAG = -1 };
    if (th.level == MPI_THREAD_MULTIPLE && th.size > 1) {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, th.group->comm, &there, &left);
    }
    TH_CHECK(!there, "a message of rank %d with tag %d was never received", left.MPI_SOURCE,
             left.MPI_TAG);
}

static void teardown(void) {
    TH_CHECK(!th.failed_here, "a check was noted but never agreed: %s", th.message);
    th_barrier();
    if (dtr_group_status(th.group) == DTR_OK) {
        check_nothing_left();
        TH_IS(dtr_group_destroy(th.group), DTR_OK);
    } else {
        dtr_group_destroy(th.group);
    }
    int now = dtr_world_group_count(th.world);
    TH_CHECK(now == th.groups_before, "%d groups after the test, %d before", now, th.groups_before);
    th_watchdog_stop();
    TH_AGREE();
}

TCase *th_case(Suite *s, const char *name, int limit_s) {
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 0);
    tcase_add_checked_fixture(tc, setup, teardown);
    th_watchdog_limit(limit_s > 200 ? limit_s : 200); /* for the slowest machine */
    suite_add_tcase(s, tc);
    return tc;
}

void th_skip(const char *name, const char *why) {
    th.skipped++;
    if (th.rank == 0) {
        printf("skipped: %s: %s\n", name, why);
    }
}

void th_add_sized(TCase *tc, const char *name, const TTest *test, int min, int max) {
    if (th.size < min || (max != 0 && th.size > max)) {
        th.skipped++;
        if (th.rank == 0) {
            printf("skipped: %s needs %d%s%.0d ranks, here %d\n", name, min,
                   max == 0 ? " or more" : "..", max, th.size);
        }
        return;
    }
    tcase_add_test(tc, test);
}

/* ---- main ---- */

/* The variable goes: worlds would warn that it is no setting, which tests of warnings count. */
static int wanted_level(void) {
    const char *text = getenv("DTR_TEST_THREAD_LEVEL");
    int level = MPI_THREAD_MULTIPLE;
    for (size_t i = 0; text != NULL && i < sizeof levels / sizeof levels[0]; i++) {
        level = strcasecmp(text, levels[i].name) == 0 ? levels[i].level : level;
    }
    (void)unsetenv("DTR_TEST_THREAD_LEVEL");
    return level;
}

static int run(Suite *s) {
    SRunner *runner = srunner_create(s);
    srunner_set_fork_status(runner, CK_NOFORK);
    /* Verdicts are agreed, so one rank's report tells the whole story. */
    srunner_run_all(runner, th.rank == 0 ? CK_NORMAL : CK_SILENT);
    int failed = srunner_ntests_failed(runner), worst = 0;
    reduce(&failed, &worst, MPI_INT, MPI_MAX);
    if (th.rank == 0) {
        printf("ranks: %d, MPI thread level: %s, tests run: %d, skipped: %d, failed: %d\n", th.size,
               th_thread_level(), srunner_ntests_run(runner), th.skipped, worst);
    }
    srunner_free(runner);
    return worst;
}

int th_main(int argc, char **argv, const char *suite, void (*make)(Suite *s)) {
    MPI_Init_thread(&argc, &argv, wanted_level(), &th.level);
    MPI_Comm_dup(MPI_COMM_WORLD, &th.comm);
    MPI_Comm_rank(th.comm, &th.rank);
    MPI_Comm_size(th.comm, &th.size);
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    o.log_fn = keep_log;
    dtr_status status = dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &th.world);
    if (status != DTR_OK) {
        fprintf(stderr, "rank %d: world: %s: %s\n", th.rank, dtr_status_name(status),
                dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    Suite *s = suite_create(suite);
    make(s);
    int failed = run(s);
    status = dtr_world_destroy(th.world);
    if (status != DTR_OK) {
        fprintf(stderr, "rank %d: world destroy: %s: %s\n", th.rank, dtr_status_name(status),
                dtr_last_error_message());
        failed++;
    }
    th_log_clear();
    MPI_Comm_free(&th.comm);
    MPI_Finalize();
    return failed == 0 ? 0 : 1;
}
