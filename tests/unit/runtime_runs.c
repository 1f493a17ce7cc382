/* Batches of messages that follow each other closely share the records of one of them (reliability
 * P9), without MPI. */
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

static void make(Suite *s) {
    TCase *tc = tcase_create("runs");
    tcase_add_test(tc, P9_batches_that_follow_closely_share_records);
    tcase_add_test(tc, P9_no_batch_follows_one_with_others_records);
    tcase_add_test(tc, P9_batches_are_told_as_far_as_there_is_room);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime runs", make);
}
