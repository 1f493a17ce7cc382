/* Calls that follow each other closely share a record (reliability: P9), without MPI. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "recording_unit.h"

enum { SORT = 9 };

static const dtr__record repeated = { .group = 1,
                                      .kind = 2,
                                      .root_or_peer = -1,
                                      .tag = -1,
                                      .count_in = 2,
                                      .count_out = 2,
                                      .dtype = DTR_F32,
                                      .label = "dot",
                                      .site = "solve.c:7" };

static dtr__rec_run open_run(dtr_world *w) {
    static const int all[] = { 0, 1, 2, 3, 4 };
    dtr__rec_names(w, kind_name, 3, op_name, 2);
    dtr__rec_run run = { .words = dtr__rec_group_add(w, 1, 901, "all", 2, 5, all) };
    ck_assert_ptr_nonnull(run.words);
    return run;
}

/* One call, with a record of its own or not; returns whether it has none. */
static bool call(dtr_world *w, dtr__rec_run *run, uint64_t sort, uint64_t seq, int64_t now) {
    dtr__record r = repeated;
    r.seq = r.op_id = seq;
    r.t_issued = now;
    r.deadline = now + 9000;
    if (dtr__rec_follow(w, run, sort, seq, now)) {
        dtr__rec_follower_ended(run, seq);
        return true;
    }
    uint64_t number = dtr__rec_run_begin(w, run, sort, &r, 0);
    dtr__rec_finish(w, number, now);
    return false;
}

/* P9: what a reader is told of them. Every call once, in order, the last of them `open` or not. */
static void check_calls(const dtr_world *w, uint64_t n, bool open) {
    char why[160], title[256];
    const dtr__rec_memory *m = dtr__recorder_memory(w);
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    ck_assert_msg(r != NULL, "%s", why);
    ck_assert_uint_eq(r->n_records, n);
    for (uint64_t i = 0; i < n; i++) {
        const dtr__record *rec = &r->records[i];
        bool last = i + 1 == n;
        ck_assert_uint_eq(rec->seq, i + 1);
        ck_assert_uint_eq(rec->op_id, i + 1);
        ck_assert_int_eq(rec->state, last && open ? DTR__REC_ISSUED : DTR__REC_FINISHED);
        ck_assert_str_eq(rec->site, "solve.c:7");
        ck_assert_int_ge(rec->t_issued, i > 0 ? rec[-1].t_finished : 1);
        ck_assert(dtr__record_over(rec) == (rec->t_finished != 0));
        ck_assert_int_gt(rec->deadline, rec->t_issued);
    }
    ck_assert_ptr_eq(dtr__recording_open(r), open ? &r->records[n - 1] : NULL);
    ck_assert_uint_eq(dtr__recording_last(r, true)->seq, open ? n - 1 : n);
    snprintf(why, sizeof why, "allreduce #%d f32 x 2 sum 'dot' group 'all'", (int)n);
    ck_assert_str_eq(dtr__recording_title(r, &r->records[n - 1], title, sizeof title), why);
    dtr__recording_free(r);
}

START_TEST(calls_that_follow_closely_share_a_record) {
    dtr_world w;
    dtr__record other = { .group = 2, .kind = 1 };
    open_world(&w, "none", "64");
    dtr__rec_run run = open_run(&w);
    ck_assert(!call(&w, &run, SORT, 1, 1000));
    ck_assert(call(&w, &run, SORT, 2, 2000) && call(&w, &run, SORT, 3, 3000));
    check_calls(&w, 3, false);
    ck_assert(dtr__rec_follow(&w, &run, SORT, 4, 3500));
    check_calls(&w, 4, true);
    dtr__rec_follower_ended(&run, 4);
    check_calls(&w, 4, false);
    ck_assert(!call(&w, &run, SORT + 1, 5, 4000)); /* another sort */
    ck_assert(call(&w, &run, SORT + 1, 6, 4500));
    ck_assert(!call(&w, &run, SORT + 1, 7, 1000000)); /* a pause */
    check_calls(&w, 7, false);
    ck_assert(dtr__rec_follow(&w, &run, SORT + 1, 8, 1000500));
    run.thread++; /* another thread */
    ck_assert(!dtr__rec_follow(&w, &run, SORT + 1, 9, 1000600));
    (void)dtr__rec_begin(&w, &other);
    run.thread--;
    ck_assert(!dtr__rec_follow(&w, &run, SORT + 1, 9, 1000700)); /* another record */
    close_world(&w);
}
END_TEST

/* A call that takes long gets its record after all, and is told once. */
START_TEST(follower_that_takes_long_has_its_own_record) {
    dtr_world w;
    dtr__record r = repeated;
    open_world(&w, "none", "64");
    dtr__rec_run run = open_run(&w);
    ck_assert(!call(&w, &run, SORT, 1, 1000));
    ck_assert(call(&w, &run, SORT, 2, 1500));
    ck_assert(dtr__rec_follow(&w, &run, SORT, 3, 2000));
    r.seq = r.op_id = 3;
    r.t_issued = 2000;
    r.deadline = 11000;
    uint64_t number = dtr__rec_run_begin(&w, &run, SORT, &r, 0);
    check_calls(&w, 3, true);
    dtr__rec_mark(&w, number, DTR__REC_FINISHED, DTR_OK);
    check_calls(&w, 3, false);
    close_world(&w);
}
END_TEST

/* Long runs are cut at the same numbers on all ranks; of very many calls the newest are told. */
START_TEST(runs_are_cut_and_expanded_as_far_as_there_is_room) {
    enum { CALLS = 20000 };
    dtr_world w;
    char why[160];
    open_world(&w, "none", "64");
    dtr__rec_run run = open_run(&w);
    for (uint64_t i = 1; i <= CALLS; i++) {
        bool follows = call(&w, &run, SORT, i, 1000 + (int64_t)i * 100);
        ck_assert(follows == (i > 1 && i % DTR__REC_RUN_MOST != 0));
    }
    const dtr__rec_memory *m = dtr__recorder_memory(&w);
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    ck_assert_msg(r != NULL, "%s", why);
    ck_assert_uint_eq(r->n_records, 2 * 64 + DTR__REC_RUN_MOST);
    for (size_t i = 1; i <= r->n_records; i++) {
        const dtr__record *rec = &r->records[r->n_records - i];
        ck_assert(i > 64 || rec->seq == CALLS + 1 - i);
        ck_assert(i == 1 || rec->seq < rec[1].seq);
        ck_assert(rec->follower == rec->seq % DTR__REC_RUN_MOST);
    }
    dtr__recording_free(r);
    close_world(&w);
}
END_TEST

/* The last finished and the current call can be told. */
START_TEST(followers_survive_sigkill) {
    char path[400], why[160], doing[640];
    int status = 0;
    make_base();
    pid_t child = fork();
    if (child == 0) {
        dtr_world w;
        open_world(&w, base, "64");
        dtr__rec_run run = open_run(&w);
        for (uint64_t i = 1; i <= 30; i++) {
            call(&w, &run, SORT, i, 1000 + (int64_t)i);
        }
        (void)dtr__rec_follow(&w, &run, SORT, 31, 2000);
        (void)kill(getpid(), SIGKILL);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    find_file(path, sizeof path);
    dtr__recording *r = dtr__recording_load(path, why, sizeof why);
    ck_assert_msg(r != NULL, "%s: %s", path, why);
    ck_assert_uint_eq(r->n_records, 31);
    ck_assert_uint_eq(dtr__recording_last(r, true)->seq, 30);
    dtr__recording_doing(r, 5000, doing, sizeof doing);
    ck_assert_msg(strstr(doing, "it was inside allreduce #31 f32 x 2 sum 'dot'") != NULL &&
                      strstr(doing, "solve.c:7") != NULL,
                  "%s", doing);
    dtr__recording_free(r);
    remove_base();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("followers");
    tcase_add_test(tc, calls_that_follow_closely_share_a_record);
    tcase_add_test(tc, follower_that_takes_long_has_its_own_record);
    tcase_add_test(tc, runs_are_cut_and_expanded_as_far_as_there_is_room);
    tcase_add_test(tc, followers_survive_sigkill);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime followers", make);
}
