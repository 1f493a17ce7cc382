/* Destroying and aborting groups and worlds, and what their handles are afterwards. */
#include <pthread.h>
#include <stdatomic.h>

#include <dtr/mpi.h>

#include "groups_common.h"

static void good(dtr_group *g) {
    int64_t in = 1, out = 0;
    TH_IS(
        dtr_allreduce(g, dtr_cpu(&in, 1, DTR_I64), dtr_cpu(&out, 1, DTR_I64), DTR_SUM, NULL, NULL),
        DTR_OK);
    TH_CHECK(out == dtr_group_size(g), "%lld members", (long long)out);
}

/* ---- handles ---- */

/* Of reliability:N16: operations of what has ended are refused. */
START_TEST(DES4_destroyed_handles) {
    dtr_group *g = made(NULL, th_size(), NULL), *h = UNTOUCHED;
    float x = 1;
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_ERR_STATE);
    TH_MESSAGE("destroyed");
    TH_CHECK(dtr_group_rank(g) == -1 && dtr_group_size(g) == -1 && dtr_group_seq(g) == 0 &&
                 dtr_group_world_rank(g, 0) == -1 && dtr_group_rank_of(g, 0) == -1 &&
                 dtr_group_name(g)[0] == '\0',
             "queries of a destroyed group");
    TH_IS(dtr_group_get_info(g, &info), DTR_ERR_STATE);
    TH_IS(dtr_group_status(g), DTR_ERR_STATE);
    TH_IS(dtr_group_abort(g, "late"), DTR_ERR_STATE);
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_STATE);
    TH_IS(dtr_allreduce(g, dtr_cpu(&x, 1, DTR_F32), dtr_cpu(&x, 1, DTR_F32), DTR_SUM, NULL, NULL),
          DTR_ERR_STATE);
    TH_IS(dtr_group_split(g, 0, 0, NULL, &h), DTR_ERR_STATE);
    TH_IS(dtr_group_subgroups(g, 1, NULL, &h, NULL), DTR_ERR_STATE);
    TH_CHECK(h == UNTOUCHED, "output touched");
    TH_AGREE();
}
END_TEST

START_TEST(DES14_the_worlds_group) {
    TH_IS(dtr_group_destroy(dtr_world_group(th_world())), DTR_ERR_ARG);
    TH_MESSAGE("dtr_world_destroy");
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

START_TEST(DES9_name_and_number) {
    dtr_group_options o = options(0, "des9");
    dtr_group *g = made(NULL, th_size(), &o);
    unsigned long next = next_number();
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(dtr_world_find_group(th_world(), "des9") == NULL, "still found");
    TH_CHECK(next_number() == next + 1, "numbers do not go back");
    TH_AGREE();
}
END_TEST

START_TEST(DES6_overlapping_groups_end_in_any_creation_order) {
    enum { GROUPS = 12 };
    dtr_group *g[GROUPS];
    int list[16];
    for (int i = 0; i < GROUPS; i++) {
        int n = 1 + (i * 5) % th_size();
        for (int j = 0; j < n; j++) {
            list[j] = (i + j * (th_size() > 1 ? 1 : 0)) % th_size();
        }
        g[i] = made(list, n, NULL);
    }
    for (int i = GROUPS - 1; i >= 0; i--) {
        TH_IS(dtr_group_destroy(g[i]), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* ---- works ---- */

static atomic_int calls;
static void count_call(dtr_work *w, dtr_status s, void *arg) {
    (void)w;
    (void)arg;
    atomic_fetch_add(&calls, s == DTR_OK);
}

START_TEST(DES5_callbacks_have_run_and_DES15_works_outlive) {
    enum { WORKS = 40 };
    dtr_group *g = made(NULL, th_size(), NULL);
    dtr_work *w[WORKS];
    int64_t x[WORKS];
    atomic_store(&calls, 0);
    for (int i = 0; i < WORKS; i++) {
        x[i] = 1;
        w[i] = NULL;
        TH_IS(dtr_allreduce(g, dtr_cpu(&x[i], 1, DTR_I64), dtr_cpu(&x[i], 1, DTR_I64), DTR_SUM,
                            NULL, &w[i]),
              DTR_OK);
        TH_IS(dtr_work_on_complete(w[i], count_call, NULL), DTR_OK);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK); /* completes what is pending */
    TH_CHECK(atomic_load(&calls) == WORKS, "%d callbacks had run", atomic_load(&calls));
    for (int i = 0; i < WORKS; i++) {
        bool done = false;
        TH_IS(dtr_work_test(w[i], &done), DTR_OK);
        TH_CHECK(done && x[i] == th_size(), "work %d", i);
        TH_IS(dtr_work_wait(w[i], -1), DTR_OK);
        TH_IS(dtr_work_release(w[i]), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* DES13, reliability:N16: a receive nobody serves. Its rank is told TIMEOUT, the others do not wait
 * longer. */
START_TEST(DES13_unfinished_at_the_limit) {
    dtr_group_options o = options(0.4, NULL);
    dtr_group *g = th_hasty_group(th_world(), &o);
    float x = 3;
    dtr_work *w = NULL;
    if (th_rank() == 0) {
        dtr_coll_options never = DTR_COLL_OPTIONS_INIT;
        never.timeout_s = INFINITY;
        TH_IS(dtr_recv(g, dtr_cpu(&x, 1, DTR_F32), 1, 0, &never, &w), DTR_OK);
    }
    dtr_status s = dtr_group_destroy(g);
    TH_CHECK(th_rank() != 0 || s == DTR_ERR_TIMEOUT, "%s", dtr_status_name(s));
    TH_IS(dtr_group_destroy(g), DTR_ERR_STATE); /* the handle is gone all the same */
    if (w != NULL) {
        TH_CHECK(dtr_work_wait(w, -1) < 0, "the work did not fail");
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* DES10: an open scope is dropped with one warning, its works are aborted. */
START_TEST(DES10_open_scope) {
    dtr_group_options o = options(0, "scoped");
    dtr_group *g = made(NULL, th_size(), &o);
    float x = 1;
    dtr_work *w = NULL;
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_allreduce(g, dtr_cpu(&x, 1, DTR_F32), dtr_cpu(&x, 1, DTR_F32), DTR_SUM, NULL, &w),
          DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(th_log_count("scoped") == 1, "%d warnings", th_log_count("scoped"));
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_ABORTED);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- broken groups ---- */

/* DES9: after a time-out destroy is local and quick, although one rank never comes. */
START_TEST(DES9_broken_groups_end_alone) {
    dtr_group_options o = options(600, NULL);
    dtr_coll_options soon = DTR_COLL_OPTIONS_INIT;
    soon.timeout_s = 0.4;
    dtr_group *g = made(NULL, th_size(), &o);
    if (th_rank() != th_size() - 1) {
        TH_IS(dtr_barrier(g, &soon, NULL), DTR_ERR_TIMEOUT);
        TH_IS(dtr_group_status(g), DTR_ERR_TIMEOUT);
        TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_TIMEOUT); /* the error that broke it */
        dtr_group *h = UNTOUCHED;
        TH_IS(dtr_group_split(g, 0, 0, NULL, &h), DTR_ERR_TIMEOUT);
        TH_IS(dtr_group_destroy(g), DTR_OK);
    }
    th_barrier();
    if (th_rank() == th_size() - 1) {
        TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_TIMEOUT); /* what the others have agreed on */
        TH_IS(dtr_group_destroy(g), DTR_OK);
    }
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* The same when the last rank destroys without a call before: it need not wait for the others. */
START_TEST(DES9_a_late_destroy_learns_of_the_break) {
    dtr_group_options o = options(600, NULL);
    dtr_group *g = made(NULL, th_size(), &o);
    if (th_rank() == 0) {
        TH_IS(dtr_group_abort(g, "enough"), DTR_OK);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

static void *abort_later(void *group) {
    th_sleep(0.1);
    dtr_group_abort(group, "the reason given");
    return NULL;
}

/* reliability:M9: the group keeps the first error. */
START_TEST(DES12_abort) {
    dtr_group *g = made(NULL, th_size(), NULL);
    int aborting = th_size() - 1;
    bool threads = strcmp(th_thread_level(), "multiple") == 0;
    pthread_t thread;
    char who[32];
    snprintf(who, sizeof who, "rank %d", aborting);
    float x = 1;
    dtr_work *w = NULL;
    TH_IS(dtr_recv(g, dtr_cpu(&x, 1, DTR_F32), (th_rank() + 1) % th_size(), 0, NULL, &w), DTR_OK);
    th_barrier();
    if (th_rank() == aborting && threads) {
        pthread_create(&thread, NULL, abort_later, g);
    } else if (th_rank() == aborting) {
        abort_later(g);
    }
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_ABORTED);
    TH_MESSAGE("the reason given");
    TH_MESSAGE(who);
    if (th_rank() == aborting && threads) {
        pthread_join(thread, NULL);
    }
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_ABORTED);
    TH_MESSAGE("the reason given");
    TH_IS(dtr_group_abort(g, "another reason"), DTR_OK); /* keeps the first */
    TH_IS(dtr_group_status(g), DTR_ERR_ABORTED);
    TH_CHECK(info_of(g).status == DTR_ERR_ABORTED, "info");
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_ABORTED);
    TH_MESSAGE("the reason given");
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world())); /* other groups are untouched */
    th_good_allreduce(th_group());
}
END_TEST

/* ---- worlds ---- */

enum { LINES = 16 };
static char lines[LINES][256];
static atomic_int n_lines;
static void keep_line(void *arg, int level, const char *line) {
    (void)arg;
    (void)level;
    if (strstr(line, "DTR_TEST_") != NULL) {
        return; /* the harness's own settings are none of the library's */
    }
    int at = atomic_fetch_add(&n_lines, 1);
    if (at < LINES) {
        snprintf(lines[at], sizeof lines[at], "%s", line);
    }
}

static dtr_world *another_world(void) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    o.log_fn = keep_line;
    atomic_store(&n_lines, 0);
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_OK);
    return w;
}

START_TEST(DES2_groups_left_at_the_end) {
    dtr_world *w = another_world();
    const char *names[] = { "first", "second", "third" };
    for (int i = 0; i < 3; i++) {
        dtr_group_options o = options(0, names[i]);
        dtr_group *g = NULL;
        TH_IS(dtr_group_create(w, NULL, th_size(), &o, &g), DTR_OK);
    }
    TH_IS(dtr_world_destroy(w), DTR_OK);
    int at = 0;
    for (int i = 2; i >= 0; i--) { /* reverse creation order */
        while (at < LINES && at < atomic_load(&n_lines) && strstr(lines[at], names[i]) == NULL) {
            at++;
        }
        TH_CHECK(at < LINES && strstr(lines[at], names[i]) != NULL, "no warning about %s in order",
                 names[i]);
    }
    TH_CHECK(atomic_load(&n_lines) == 3, "%d lines", atomic_load(&n_lines));
    char prefix[32];
    snprintf(prefix, sizeof prefix, "[rank%d]: ", th_rank());
    TH_CHECK(strncmp(lines[0], prefix, strlen(prefix)) == 0, "ENV14: %s", lines[0]);
    TH_AGREE();
}
END_TEST

START_TEST(DES6_world_ends_overlapping_groups) {
    dtr_world *w = another_world();
    int list[16];
    for (int i = 0; i < 12; i++) {
        int n = 1 + (i * 3) % th_size();
        for (int j = 0; j < n; j++) {
            list[j] = (i + j) % th_size();
        }
        dtr_group *g = NULL;
        TH_IS(dtr_group_create(w, list, n, NULL, &g), DTR_OK);
    }
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(DES8_names_start_again) {
    for (int i = 0; i < 2; i++) {
        dtr_world *w = another_world();
        dtr_group *g = NULL;
        TH_IS(dtr_group_create(w, NULL, th_size(), NULL, &g), DTR_OK);
        TH_CHECK(strcmp(dtr_group_name(g), "1") == 0, "named %s", dtr_group_name(g));
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_IS(dtr_world_destroy(w), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

/* T09: works in flight are finished first. */
START_TEST(DES2_world_drains) {
    dtr_world *w = another_world();
    dtr_work *work[20];
    int64_t x[20];
    for (int i = 0; i < 20; i++) {
        x[i] = 1;
        dtr_buffer b = dtr_cpu(&x[i], 1, DTR_I64);
        TH_IS(dtr_allreduce(dtr_world_group(w), b, b, DTR_SUM, NULL, &work[i]), DTR_OK);
    }
    if (th_rank() == 0) {
        th_sleep(0.2);
    }
    for (int i = 0; i < 20; i++) {
        TH_IS(dtr_work_release(work[i]), DTR_OK);
    }
    TH_IS(dtr_world_destroy(w), DTR_OK);
    for (int i = 0; i < 20; i++) {
        TH_CHECK(x[i] == th_size(), "work %d", i);
    }
    TH_AGREE();
}
END_TEST

START_TEST(DES2_world_limit) {
    dtr_world *w = another_world();
    dtr_group_options o = options(0.4, "stuck");
    dtr_group *g = th_hasty_group(w, &o);
    float x = 3;
    dtr_coll_options never = DTR_COLL_OPTIONS_INIT;
    never.timeout_s = INFINITY;
    dtr_work *work = NULL;
    if (th_rank() == 0) {
        TH_IS(dtr_recv(g, dtr_cpu(&x, 1, DTR_F32), 1, 0, &never, &work), DTR_OK);
        TH_IS(dtr_work_release(work), DTR_OK);
    }
    th_barrier();
    TH_IS(dtr_world_destroy(w), DTR_ERR_TIMEOUT);
    TH_AGREE();
    good(th_group());
    TH_AGREE();
}
END_TEST

/* The linker turns NAME into __wrap_NAME, and __real_NAME into NAME, in the library's own calls. */
int __real_MPI_Comm_free(MPI_Comm *comm);
int __wrap_MPI_Comm_free(MPI_Comm *comm);

static _Atomic int left; /* communicators that were freed with a message in them */

int __wrap_MPI_Comm_free(MPI_Comm *comm) {
    int there = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, *comm, &there, MPI_STATUS_IGNORE);
    left += there;
    return __real_MPI_Comm_free(comm);
}

/* A short message that nobody receives goes with its world. MPICH would give it to a later
 * communicator, or end the job. */
START_TEST(with_a_message_that_nobody_receives) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    o.backend = "cpu:mpi";
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_OK);
    TH_AGREE();
    dtr_group *g = dtr_world_group(w);
    char word[8] = "unheard";
    const int last = th_size() - 1;
    if (th_rank() == 0) {
        TH_IS(dtr_send(g, dtr_cpu_in(word, sizeof word, DTR_U8), last, 1, NULL, NULL), DTR_OK);
    }
    good(g);
    if (th_rank() == last) { /* MPI has it, so that it is there at the end */
        TH_IS(dtr_recv(g, dtr_cpu(word, sizeof word, DTR_U8), 0, 2, NULL, NULL), DTR_OK);
    } else if (th_rank() == 0) {
        TH_IS(dtr_send(g, dtr_cpu_in(word, sizeof word, DTR_U8), last, 2, NULL, NULL), DTR_OK);
    }
    left = 0;
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_CHECK(left == 0, "a message is left in %d communicators", left);
    TH_AGREE();
    good(th_group());
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_destroy", 60);
    th_add(tc, DES4_destroyed_handles, 1, 0);
    th_add(tc, DES14_the_worlds_group, 1, 0);
    th_add(tc, DES9_name_and_number, 1, 0);
    th_add(tc, DES6_overlapping_groups_end_in_any_creation_order, 1, 0);
    th_add(tc, DES5_callbacks_have_run_and_DES15_works_outlive, 1, 0);
    th_add(tc, DES13_unfinished_at_the_limit, 2, 0);
    th_add(tc, DES10_open_scope, 1, 0);
    th_add(tc, DES9_broken_groups_end_alone, 2, 0);
    th_add(tc, DES9_a_late_destroy_learns_of_the_break, 2, 0);
    th_add(tc, with_a_message_that_nobody_receives, 2, 0);
    th_add(tc, DES12_abort, 2, 0);
    th_add(tc, DES2_groups_left_at_the_end, 1, 0);
    th_add(tc, DES6_world_ends_overlapping_groups, 1, 0);
    th_add(tc, DES8_names_start_again, 1, 0);
    th_add(tc, DES2_world_drains, 1, 0);
    th_add(tc, DES2_world_limit, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_destroy", make);
}
