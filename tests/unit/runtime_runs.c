/* Batches of messages, and messages in turn, that follow each other closely share the records of
 * the first (reliability P9), without MPI. */
#include <stdlib.h>
#include <string.h>

#include "recorder/recording.h"
#include "unit.h"
#include "world/world.h"

enum { CALLS = 7, BATCHES = 8 /* sorts */, ENTRIES = 2 };

static const char *kind(int k) {
    static const char *const kinds[] = { "allreduce", "batch", "send", "recv" };
    return kinds[k];
}

static const char *op(int o) {
    return o == 0 ? "sum" : "max";
}

static dtr__rec_run open_world(dtr_world *w) {
    static const int all[] = { 0, 1 };
    memset(w, 0, sizeof *w);
    w->size = 2;
    setenv("DTR_RECORDER_ENTRIES", "64", 1);
    setenv("DTR_RECORDER_DIR", "none", 1);
    ck_assert_int_eq(dtr__options_read(&w->options), DTR_OK);
    ck_assert_int_eq(dtr__recorder_open(w), DTR_OK);
    dtr__rec_names(w, kind, 4, op, 2);
    dtr__rec_run run = { .words = dtr__rec_group_add(w, 1, 901, "all", 0, 2, all) };
    ck_assert_ptr_nonnull(run.words);
    return run;
}

static void close_world(dtr_world *w) {
    dtr__recorder_close(w);
    dtr__options_free(&w->options);
}

/* A batch with records of its own, which has not ended; returns its number. */
static uint64_t lead(dtr_world *w, dtr__rec_run *run, uint64_t seq, int64_t now) {
    dtr__record r = { .group = 1,
                      .kind = 1,
                      .p2p_seq = seq,
                      .op_id = 100 + seq,
                      .flags = DTR__REC_TOGETHER,
                      .tag = ENTRIES,
                      .t_issued = now,
                      .deadline = now + 9000 };
    uint64_t number = dtr__rec_run_begin(w, run, BATCHES, &r, ENTRIES);
    r.flags |= DTR__REC_MEMBER;
    for (int i = 0; i < ENTRIES; i++) {
        r.kind = (uint8_t)(2 + i);
        r.tag = 40 + i;
        (void)dtr__rec_begin(w, &r);
    }
    return number;
}

/* One batch that is over at once; returns whether it has no records. */
static bool batch(dtr_world *w, dtr__rec_run *run, uint64_t seq, int64_t now) {
    if (dtr__rec_follow(w, run, BATCHES, seq, now)) {
        dtr__rec_follower_ended(run, seq);
        return true;
    }
    dtr__rec_finish(w, lead(w, run, seq, now), now);
    return false;
}

static dtr__recording *read_all(const dtr_world *w) {
    char why[160];
    const dtr__rec_memory *m = dtr__recorder_memory(w);
    dtr__recording *r = dtr__recording_parse(m->header, m->nbytes, why, sizeof why);
    ck_assert_msg(r != NULL, "%s", why);
    return r;
}

/* The `n` newest records are whole batches, the last of them number `seq`, which is `open`. */
static void check_batches(const dtr__recording *r, size_t n, uint64_t seq, bool open) {
    ck_assert_uint_ge(r->n_records, n);
    for (size_t i = 0; i < n; i++) {
        const dtr__record *rec = &r->records[r->n_records - n + i];
        const size_t each = 1 + ENTRIES, part = i % each;
        const uint64_t own = seq + 1 - n / each + i / each;
        ck_assert_uint_eq(rec->p2p_seq, own);
        ck_assert_uint_eq(rec->op_id, 100 + own);
        ck_assert_uint_eq(rec->seq, 0);
        ck_assert_uint_eq(rec->kind, 1 + part);
        ck_assert_int_eq(rec->tag, part == 0 ? ENTRIES : 39 + (int)part);
        ck_assert_int_eq((rec->flags & DTR__REC_MEMBER) != 0, part != 0);
        ck_assert_int_eq(rec->state, open && own == seq ? DTR__REC_ISSUED : DTR__REC_FINISHED);
        ck_assert(dtr__record_over(rec) == (rec->t_finished != 0));
        ck_assert_int_eq(rec->deadline - rec->t_issued, 9000);
        ck_assert(part == 0 ||
                  (rec->number == rec[-1].number + 1 && rec->follower == rec[-1].follower &&
                   rec->t_issued == rec[-1].t_issued));
        ck_assert(i == 0 || rec->t_issued >= rec[-1].t_issued);
    }
}

static void expect(const dtr_world *w, size_t batches, uint64_t seq, bool open) {
    dtr__recording *r = read_all(w);
    const size_t n = batches * (1 + ENTRIES);
    check_batches(r, n, seq, open);
    ck_assert_uint_eq(r->n_records, 3 + n);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(r->records[i].seq, i + 1);
    }
    dtr__recording_free(r);
}

/* Behind three collectives, the last of which has the number that the first batch has among
 * messages. */
START_TEST(P9_batches_that_follow_closely_share_records) {
    dtr_world w;
    dtr__rec_run run = open_world(&w);
    dtr__record r = { .group = 1, .seq = 1, .op_id = 1, .t_issued = 500 };
    dtr__rec_finish(&w, dtr__rec_run_begin(&w, &run, CALLS, &r, 0), 500);
    for (uint64_t i = 2; i <= 3; i++) {
        ck_assert(dtr__rec_follow(&w, &run, CALLS, i, 600));
        dtr__rec_follower_ended(&run, i);
    }
    ck_assert(!batch(&w, &run, 3, 1000));
    expect(&w, 1, 3, false);
    ck_assert(batch(&w, &run, 4, 2000) && batch(&w, &run, 5, 3000));
    expect(&w, 3, 5, false);
    ck_assert(dtr__rec_follow(&w, &run, BATCHES, 6, 4000));
    expect(&w, 4, 6, true);
    uint64_t number = lead(&w, &run, 6, 4000); /* it takes long */
    expect(&w, 4, 6, true);
    dtr__rec_finish(&w, number, 4500);
    expect(&w, 4, 6, false);
    ck_assert(batch(&w, &run, 7, 5000));
    expect(&w, 5, 7, false);
    close_world(&w);
}
END_TEST

/* Another thread's record between a batch's and its entries': numbers then do not say which are
 * they. */
START_TEST(P9_no_batch_follows_one_with_others_records) {
    dtr_world w;
    dtr__record other = { .group = 2, .kind = 1 };
    dtr__rec_run run = open_world(&w);
    dtr__record r = { .group = 1, .p2p_seq = 1, .t_issued = 1000 };
    (void)dtr__rec_run_begin(&w, &run, BATCHES, &r, ENTRIES);
    ck_assert(!dtr__rec_follow(&w, &run, BATCHES, 2, 1000)); /* they are not there yet */
    for (int i = 0; i <= ENTRIES; i++) {
        (void)dtr__rec_begin(&w, &other);
    }
    ck_assert(!dtr__rec_follow(&w, &run, BATCHES, 2, 1000));
    close_world(&w);
}
END_TEST

/* Of very many batches the newest are told, each whole, with other batches left out. */
START_TEST(P9_batches_are_told_as_far_as_there_is_room) {
    enum { MANY = 5000 };
    dtr_world w;
    dtr__rec_run run = open_world(&w);
    for (uint64_t i = 1; i <= MANY; i++) {
        ck_assert(batch(&w, &run, i, 1000 + 100 * (int64_t)i) ==
                  (i > 1 && i % DTR__REC_RUN_MOST != 0));
        if (i % 97 == 0 || i > MANY - 80) {
            dtr__recording *r = read_all(&w);
            const size_t newest = (i % DTR__REC_RUN_MOST + 1) * (1 + ENTRIES), most = 2 * 64;
            check_batches(r, newest < most / 2 ? newest : most / 2 / 3 * 3, i, false);
            ck_assert_uint_le(r->n_records, 2 * 64 + DTR__REC_RUN_MOST);
            dtr__recording_free(r);
        }
    }
    close_world(&w);
}
END_TEST

/* ---- messages in turn ---- */

enum { SEND = 2, RECV, BARRIERS, ROOM = 100 /* messages that are always told */, LAST = 211 };

/* Message `seq`, of which `turns` come in turn: sends to 1 and on, and at last a receive. */
static dtr__record message(uint64_t seq, uint64_t turns, int64_t now) {
    const uint64_t turn = seq % turns;
    return (dtr__record){ .group = 1,
                          .kind = turn + 1 == turns ? RECV : SEND,
                          .root_or_peer = (int32_t)turn,
                          .p2p_seq = seq,
                          .op_id = 100 + seq,
                          .tag = 40 + (int32_t)turn,
                          .state = DTR__REC_FINISHED,
                          .t_issued = now,
                          .t_finished = now,
                          .deadline = now + 9000 };
}

/* Returns whether it has no record. */
static bool pass(dtr_world *w, dtr__rec_run *run, uint64_t seq, uint64_t turns, int64_t now) {
    dtr__record r = message(seq, turns, now);
    const uint64_t sort = 50 + seq % turns;
    if (dtr__rec_follow(w, run, sort, seq, now)) {
        dtr__rec_follower_ended(run, seq);
        return true;
    }
    (void)dtr__rec_run_message(w, run, sort, &r);
    return false;
}

/* Messages `first` to `last` are told, each as it was; the last one is `open`. */
static void expect_messages(const dtr_world *w, uint64_t first, uint64_t last, uint64_t turns,
                            bool open) {
    dtr__recording *r = read_all(w);
    size_t n = 0;
    for (size_t i = 0; i < r->n_records; i++) {
        const dtr__record *rec = &r->records[i];
        if (rec->p2p_seq < first) {
            continue;
        }
        const uint64_t seq = first + n++;
        const dtr__record like = message(seq, turns, 0);
        ck_assert_uint_eq(rec->p2p_seq, seq);
        ck_assert_uint_eq(rec->op_id, like.op_id);
        ck_assert_int_eq(rec->kind, like.kind);
        ck_assert_int_eq(rec->root_or_peer, like.root_or_peer);
        ck_assert_int_eq(rec->tag, like.tag);
        ck_assert_int_eq(dtr__record_over(rec), !(open && seq == last));
        ck_assert_int_eq(rec->deadline - rec->t_issued, 9000);
        ck_assert(i == 0 || rec->t_issued >= rec[-1].t_issued);
    }
    ck_assert_uint_eq(n, last + 1 - first);
    dtr__recording_free(r);
}

START_TEST(P9_messages_in_turn_follow_each_other) {
    const uint64_t turns = (uint64_t)_i;
    dtr_world w;
    dtr__rec_run run = open_world(&w);
    for (uint64_t i = 1; i < LAST; i++) {
        /* A run begins when the first one comes again. */
        const bool follows = (i - 1) % (DTR__REC_RUN_MOST + turns) > turns;
        ck_assert_msg(pass(&w, &run, i, turns, 1000 * (int64_t)i) == follows, "message %d", (int)i);
        expect_messages(&w, i > ROOM ? i - ROOM : 1, i, turns, false);
    }
    /* One that takes long, first without a record and then with one. */
    dtr__record r = message(LAST, turns, 1000 * LAST);
    r.state = DTR__REC_STARTED;
    r.t_finished = 0;
    ck_assert(dtr__rec_follow(&w, &run, 50 + LAST % turns, LAST, 1000 * LAST));
    expect_messages(&w, LAST - ROOM, LAST, turns, true);
    const uint64_t number = dtr__rec_run_message(&w, &run, 50 + LAST % turns, &r);
    expect_messages(&w, LAST - ROOM, LAST, turns, true);
    dtr__rec_finish(&w, number, 1000 * LAST + 500);
    expect_messages(&w, LAST - ROOM, LAST, turns, false);
    ck_assert(!pass(&w, &run, LAST + 1, turns, 1000 * LAST + 1000) || turns == 1);
    close_world(&w);
}
END_TEST

/* What is not the next in turn, comes late, or has something between does not follow. */
START_TEST(P9_messages_out_of_turn_have_records) {
    dtr_world w;
    dtr__rec_run run = open_world(&w);
    for (uint64_t i = 1; i <= 3; i++) {
        ck_assert(!pass(&w, &run, i, 2, 1000));
    }
    ck_assert(!dtr__rec_follow(&w, &run, 51, 4, 1000)); /* 50 is next */
    ck_assert(!dtr__rec_follow(&w, &run, 50, 5, 1000));
    ck_assert(!dtr__rec_follow(&w, &run, 50, 4, 9000));
    ck_assert(pass(&w, &run, 4, 2, 1000) && pass(&w, &run, 5, 2, 1000));
    dtr__record other = { .group = 1, .kind = 0, .seq = 1, .t_issued = 1000, .state = 1 };
    (void)dtr__rec_run_begin(&w, &run, BARRIERS, &other, 0);
    ck_assert(!pass(&w, &run, 6, 2, 1100) && !pass(&w, &run, 7, 2, 1100));
    ck_assert(!pass(&w, &run, 8, 2, 1100) && pass(&w, &run, 9, 2, 1100));
    dtr__recording *r = read_all(&w);
    ck_assert_uint_eq(r->n_records, 10);
    ck_assert_uint_eq(r->records[5].seq, 1); /* in its place */
    ck_assert_uint_eq(r->records[4].p2p_seq, 5);
    ck_assert_int_eq(r->records[4].kind, RECV);
    ck_assert_uint_eq(r->records[9].p2p_seq, 9);
    ck_assert_int_eq(r->records[9].kind, RECV);
    dtr__recording_free(r);
    (void)dtr__rec_begin(&w, &other);
    ck_assert(!pass(&w, &run, 10, 2, 1200) && !pass(&w, &run, 11, 2, 1200));
    (void)dtr__rec_begin(&w, &other); /* so that the records of two in turn are apart */
    ck_assert(!pass(&w, &run, 12, 2, 1200) && !pass(&w, &run, 13, 2, 1200));
    ck_assert(!pass(&w, &run, 14, 2, 1200) && pass(&w, &run, 15, 2, 1200));
    close_world(&w);
}
END_TEST

/* Where a reader finds the records of only some that come in turn it tells nothing of those that
 * follow, rather than something wrong. */
START_TEST(P9_turns_without_their_records_are_not_told) {
    dtr_world w;
    dtr__rec_run run = open_world(&w);
    for (uint64_t i = 1; i <= 6; i++) {
        (void)pass(&w, &run, i, 2, 1000);
    }
    expect_messages(&w, 1, 6, 2, false);
    dtr__record other = { .group = 1, .kind = 0, .state = DTR__REC_FINISHED, .t_issued = 1000 };
    for (uint64_t i = 1; i <= 62; i++) { /* the ring has room for 64 */
        other.seq = i;
        (void)dtr__rec_begin(&w, &other);
    }
    expect_messages(&w, 2, 6, 2, false); /* of the first three records the first is gone */
    other.seq++;
    (void)dtr__rec_begin(&w, &other);
    dtr__recording *r = read_all(&w);
    ck_assert_uint_eq(r->n_records, 64);
    ck_assert_uint_eq(r->records[0].p2p_seq, 3);
    ck_assert_uint_eq(r->records[1].seq, 1);
    dtr__recording_free(r);
    close_world(&w);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("runs");
    tcase_add_test(tc, P9_batches_that_follow_closely_share_records);
    tcase_add_test(tc, P9_no_batch_follows_one_with_others_records);
    tcase_add_test(tc, P9_batches_are_told_as_far_as_there_is_room);
    tcase_add_loop_test(tc, P9_messages_in_turn_follow_each_other, 1, DTR__REC_RUN_TURNS + 1);
    tcase_add_test(tc, P9_messages_out_of_turn_have_records);
    tcase_add_test(tc, P9_turns_without_their_records_are_not_told);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime runs", make);
}
