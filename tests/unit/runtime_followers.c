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

/* ---- messages that are left under way ---- */

/* A message in turn, as the short way notes it; returns its record, 0: it follows. */
static uint64_t message(dtr_world *w, dtr__rec_run *run, uint64_t seq, bool over) {
    const uint64_t sort = SORT + seq % 2;
    dtr__record r = repeated;
    r.flags = DTR__REC_P2P;
    r.tag = (int32_t)(seq % 2);
    r.p2p_seq = r.op_id = seq;
    r.t_issued = r.t_started = (int64_t)seq * 100;
    r.t_finished = over ? r.t_issued : 0;
    r.state = over ? DTR__REC_FINISHED : DTR__REC_STARTED;
    r.deadline = r.t_issued + 9000;
    return dtr__rec_follow_message(w, run, sort, seq, r.t_issued, over)
               ? 0
               : dtr__rec_run_message(w, run, sort, &r);
}

/* Instead of what follows, as the engine writes it. */
static uint64_t set_apart(dtr_world *w, uint64_t seq) {
    dtr__record r = repeated;
    r.flags = DTR__REC_P2P | DTR__REC_APART;
    r.p2p_seq = r.op_id = seq;
    r.t_issued = r.t_started = (int64_t)seq * 100;
    r.state = DTR__REC_STARTED;
    return dtr__rec_begin(w, &r);
}

/* Each number from 1 to n is told once, and those of the bits are under way. */
static void check_messages(const dtr_world *w, uint64_t n, uint64_t waiting) {
    char why[160];
    uint64_t told = 0;
    const dtr__rec_memory *m = dtr__recorder_memory(w);
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    ck_assert_msg(r != NULL, "%s", why);
    for (size_t i = 0; i < r->n_records; i++) {
        const dtr__record *rec = &r->records[i];
        const bool waits = (waiting >> rec->p2p_seq & 1) != 0;
        ck_assert_uint_le(rec->p2p_seq, n);
        ck_assert_msg((told >> rec->p2p_seq & 1) == 0, "number %d twice", (int)rec->p2p_seq);
        told |= UINT64_C(1) << rec->p2p_seq;
        ck_assert_msg(rec->state == (waits ? DTR__REC_STARTED : DTR__REC_FINISHED),
                      "number %d: state %d", (int)rec->p2p_seq, rec->state);
        ck_assert(dtr__record_over(rec) == !waits && (rec->t_finished == 0) == waits);
        ck_assert(rec->t_started == rec->t_issued && rec->t_issued <= (int64_t)n * 100);
    }
    ck_assert_uint_eq(r->n_records, n);
    dtr__recording_free(r);
}

static uint64_t bits(uint64_t a, uint64_t b, uint64_t c) {
    return UINT64_C(1) << a | UINT64_C(1) << b | UINT64_C(1) << c;
}

static dtr__rec_run begin_messages(dtr_world *w) {
    open_world(w, "none", "64");
    dtr__rec_run run = open_run(w);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        ck_assert_uint_ne(message(w, &run, seq, true), 0);
    }
    return run;
}

/* They follow, and come in any order; until then they are told to be under way. */
START_TEST(messages_under_way_follow) {
    dtr_world w;
    dtr__rec_run run = begin_messages(&w);
    for (uint64_t seq = 4; seq <= 12; seq++) {
        ck_assert_uint_eq(message(&w, &run, seq, seq % 3 != 0), 0);
    }
    check_messages(&w, 12, bits(6, 9, 12));
    dtr__rec_message_came(&run, 9);
    check_messages(&w, 12, bits(6, 6, 12));
    dtr__rec_message_came(&run, 12);
    check_messages(&w, 12, bits(6, 6, 6));
    dtr__rec_message_came(&run, 6);
    check_messages(&w, 12, 0);
    ck_assert_uint_eq(message(&w, &run, 13, true), 0);
    check_messages(&w, 13, 0);
    close_world(&w);
}
END_TEST

/* Those that are under way when the run ends have records of their own, and are told once. */
START_TEST(messages_are_set_apart) {
    dtr_world w;
    dtr__rec_run run = begin_messages(&w);
    for (uint64_t seq = 4; seq <= 10; seq++) {
        ck_assert_uint_eq(message(&w, &run, seq, seq % 3 != 0), 0);
    }
    const uint64_t six = set_apart(&w, 6), nine = set_apart(&w, 9);
    check_messages(&w, 10, bits(6, 9, 9));
    for (uint64_t seq = 11; seq <= 20; seq++) {
        ck_assert((message(&w, &run, seq, true) != 0) == (seq <= 13));
    }
    check_messages(&w, 20, bits(6, 9, 9));
    dtr__rec_finish(&w, nine, 3000);
    dtr__rec_finish(&w, six, 3000);
    check_messages(&w, 20, 0);
    close_world(&w);
}
END_TEST

/* A run ends before it is full where that sets none apart, and at last in any case. */
START_TEST(runs_of_messages_end) {
    for (int behind = 0; behind < 2; behind++) {
        dtr_world w;
        dtr__rec_run run = begin_messages(&w);
        uint64_t seq = 4;
        for (; message(&w, &run, seq, false) == 0; seq++) {
            if (seq > 4 || behind == 0) {
                dtr__rec_message_came(&run, seq - (uint64_t)behind);
            }
        }
        ck_assert_uint_eq(seq - 3, behind == 0 ? DTR__REC_RUN_MOST / 4 * 3 : DTR__REC_RUN_MOST);
        close_world(&w);
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("followers");
    tcase_add_test(tc, calls_that_follow_closely_share_a_record);
    tcase_add_test(tc, follower_that_takes_long_has_its_own_record);
    tcase_add_test(tc, runs_are_cut_and_expanded_as_far_as_there_is_room);
    tcase_add_test(tc, followers_survive_sigkill);
    suite_add_tcase(s, tc);
    tc = tcase_create("messages");
    tcase_add_test(tc, messages_under_way_follow);
    tcase_add_test(tc, messages_are_set_apart);
    tcase_add_test(tc, runs_of_messages_end);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime followers", make);
}
