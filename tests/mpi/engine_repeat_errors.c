/* Blocking collectives called again and again: what goes wrong in the short way through the engine
 * ends as in the ordinary one (WRK10, DBG6, CHK12, EA4). That way differs for calls of up to 8 KiB,
 * which fit into slots, and for longer ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_repeat.h"

enum { LONG = 5000 }; /* elements of four bytes, of calls that do not fit into slots */

static int32_t ins[LONG + 4], outs[LONG + 4];

static bool on_several_nodes(void) {
    return getenv("DTR_NODE_RANKS") != NULL;
}

static void expect_good(dtr_group *g, size_t n, int times) {
    for (int i = 0; i < times; i++) {
        TH_IS(reduce_here(g, i32s(ins, n), i32s(outs, n), DTR_SUM, NULL), DTR_OK);
    }
}

/* The test has broken its group on some ranks: let all know, so that its end is local. */
static void all_break(void) {
    TH_AGREE();
    TH_IS(dtr_group_abort(th_group(), "the test is over"), DTR_OK);
    th_good_allreduce(dtr_world_group(th_world()));
}

/* DBG6: one rank calls something else after many equal calls; all say so, nothing is written. */
static void disagree(size_t n, dtr_op op, size_t more, dtr_dtype dtype, const char *word) {
    bool odd = th_rank() == th_size() - 1;
    const size_t count = odd ? n + more : n;
    warm_up(th_group());
    expect_good(th_group(), n, 3);
    if (on_several_nodes()) { /* there the end of the group may overtake a result on its way */
        TH_AGREE();
    }
    memset(outs, -1, sizeof outs);
    TH_IS(reduce_here(th_group(), dtr_cpu(ins, count, odd ? dtype : DTR_I32),
                      dtr_cpu(outs, count, odd ? dtype : DTR_I32), odd ? op : DTR_SUM, NULL),
          DTR_ERR_MISMATCH);
    TH_MESSAGE(word);
    TH_MESSAGE("engine_repeat.h:");
    TH_CHECK(outs[0] == -1 && outs[n + 2] == -1, "a buffer was written: %d", outs[0]);
    TH_IS(reduce_here(th_group(), i32s(ins, n), i32s(outs, n), DTR_SUM, NULL), DTR_ERR_MISMATCH);
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}

START_TEST(other_operator) {
    disagree(1, DTR_MAX, 0, DTR_I32, "op");
}
END_TEST

START_TEST(other_operator_long) {
    disagree(LONG, DTR_MAX, 0, DTR_I32, "op");
}
END_TEST

START_TEST(other_count) {
    disagree(1, DTR_SUM, 2, DTR_I32, "count");
}
END_TEST

START_TEST(other_count_long) {
    disagree(LONG, DTR_SUM, 2, DTR_I32, "count");
}
END_TEST

START_TEST(other_dtype) {
    disagree(1, DTR_SUM, 0, DTR_F32, "dtype");
}
END_TEST

/* DBG7: after many calls that fit, the last rank gives more than the root takes of it. */
START_TEST(other_block) {
    int32_t x[2] = { 1, 2 }, got[MOST_RANKS + 1];
    size_t ones[MOST_RANKS];
    int n = th_size();
    for (int k = 0; k < n; k++) {
        ones[k] = 1;
    }
    for (int i = 0; i < 20; i++) {
        bool last = i == 19;
        memset(got, -1, sizeof got);
        if (last) {
            th_barrier();
        }
        dtr_status s = dtr_gatherv(th_group(), i32s(x, last && th_rank() == n - 1 ? 2 : 1),
                                   i32s(got, th_rank() == 0 ? (size_t)n : 0), ones, 0, NULL, NULL);
        bool may_miss = last && th_rank() != 0; /* it has given and need not wait for the root */
        TH_CHECK(s == (last ? DTR_ERR_MISMATCH : DTR_OK) || (may_miss && s == DTR_OK),
                 "call %d: %s", i, dtr_last_error_message());
        TH_CHECK(got[n - 1] == (last || th_rank() != 0 ? -1 : 1), "call %d gave %d", i, got[n - 1]);
    }
    TH_IS(reduce_here(th_group(), i32s(x, 1), i32s(got, 1), DTR_SUM, NULL), DTR_ERR_MISMATCH);
    TH_MESSAGE("gatherv");
    TH_MESSAGE("engine_repeat_errors.c:");
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

START_TEST(other_kind) {
    int32_t x = 1, y = -1;
    warm_up(th_group());
    for (int i = 0; i < 3; i++) {
        TH_IS(dtr_broadcast(th_group(), i32s(&x, 1), 0, NULL, NULL), DTR_OK);
    }
    th_barrier();
    if (th_rank() == 0) {
        TH_IS(dtr_broadcast(th_group(), i32s(&x, 1), 0, NULL, NULL), DTR_ERR_MISMATCH);
    } else {
        TH_IS(reduce_here(th_group(), i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL), DTR_ERR_MISMATCH);
    }
    TH_MESSAGE("broadcast");
    TH_MESSAGE("allreduce");
    TH_CHECK(y == -1, "a buffer was written: %d", y);
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* The first calls may reach the limit too where the machine is busy. */
static void leave_out_rank_0(size_t n, double limit) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    dtr_buffer x = i32s(ins, n), y = i32s(outs, n);
    o.timeout_s = limit;
    TH_IS(dtr_group_split(th_group(), 0, th_rank(), &o, &g), DTR_OK);
    expect_good(g, n, 20);
    th_barrier();
    if (th_rank() != 0) {
        TH_IS(reduce_here(g, x, y, DTR_SUM, NULL), DTR_ERR_TIMEOUT);
        TH_MESSAGE("allreduce #21");
        TH_MESSAGE("rank 0");
        TH_MESSAGE("engine_repeat.h:");
    }
    th_barrier();
    TH_IS(reduce_here(g, x, y, DTR_SUM, NULL), DTR_ERR_TIMEOUT);
    TH_MESSAGE("allreduce #21");
    TH_CHECK(dtr_group_status(g) == DTR_ERR_TIMEOUT, "group status %d", dtr_group_status(g));
    TH_IS(dtr_group_destroy(g), DTR_OK);
}

/* WRK10, CHK12: a rank that does not come; who comes late learns it at once. */
static void miss_rank_0(size_t n) {
    double limit = 1;
    do {
        leave_out_rank_0(n, limit);
    } while (th_patience(&limit));
    TH_AGREE();
    th_good_allreduce(th_group());
}

START_TEST(absent_rank) {
    miss_rank_0(1);
}
END_TEST

START_TEST(absent_rank_long) {
    miss_rank_0(LONG);
}
END_TEST

/* Rank 0 aborts while the others wait inside. */
static void abort_inside(size_t n) {
    dtr_buffer x = i32s(ins, n), y = i32s(outs, n);
    warm_up(th_group());
    expect_good(th_group(), n, 3);
    th_barrier();
    if (th_rank() == 0) {
        TH_IS(dtr_group_abort(th_group(), "no more of this"), DTR_OK);
    } else {
        TH_IS(reduce_here(th_group(), x, y, DTR_SUM, NULL), DTR_ERR_ABORTED);
        TH_MESSAGE("no more of this");
    }
    TH_IS(reduce_here(th_group(), x, y, DTR_SUM, NULL), DTR_ERR_ABORTED);
    TH_MESSAGE("no more of this");
    all_break();
}

START_TEST(aborted_inside) {
    abort_inside(1);
}
END_TEST

START_TEST(aborted_inside_long) {
    abort_inside(LONG);
}
END_TEST

static dtr_status send_here(dtr_group *g, size_t n) {
    return dtr_broadcast(g, i32s(ins, n), 0, NULL, NULL);
}

/* DBG6, EA4: within a row the last rank calls something else. It says so, and so does everybody's
 * next call: the others may have left theirs. */
static void leave_a_row(size_t n) {
    dtr_buffer x = i32s(ins, n), y = i32s(outs, n);
    for (int i = 0; i < ROW; i++) {
        TH_IS(send_here(th_group(), n), DTR_OK);
    }
    memset(outs, -1, sizeof outs);
    th_barrier(); /* a rank far behind would learn of the end before it has finished these */
    if (th_rank() == th_size() - 1) {
        TH_IS(reduce_here(th_group(), x, y, DTR_SUM, NULL), DTR_ERR_MISMATCH);
        TH_MESSAGE("broadcast");
        TH_MESSAGE("allreduce");
    } else {
        for (int i = 0; i < ROW && send_here(th_group(), n) == DTR_OK; i++) {
        }
    }
    TH_IS(reduce_here(th_group(), x, y, DTR_SUM, NULL), DTR_ERR_MISMATCH);
    TH_MESSAGE("broadcast");
    TH_MESSAGE("allreduce");
    TH_MESSAGE("engine_repeat_errors.c:");
    TH_CHECK(outs[0] == -1, "a buffer was written: %d", outs[0]);
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}

START_TEST(other_kind_after_a_row) {
    leave_a_row(1);
}
END_TEST

START_TEST(other_kind_after_a_row_long) {
    leave_a_row(LONG);
}
END_TEST

/* CHK12: the root of a row is ahead of a rank that does not come until there is no more room; it
 * names that rank, which then learns it too. */
static void miss_the_last_rank(double limit) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    const bool last = th_rank() == th_size() - 1;
    dtr_status s = DTR_OK;
    char text[32];
    o.timeout_s = limit;
    TH_IS(dtr_group_split(th_group(), 0, th_rank(), &o, &g), DTR_OK);
    for (int i = 0; i < ROW; i++) {
        TH_IS(send_here(g, LONG), DTR_OK);
    }
    th_barrier();
    int sent = 0;
    for (; !last && s == DTR_OK && sent < 2 * ROW; sent += s == DTR_OK) {
        s = send_here(g, LONG);
    }
    TH_CHECK(last || s == DTR_ERR_TIMEOUT, "%d more calls, then %d", sent, s);
    if (th_rank() == 0) {
        snprintf(text, sizeof text, "rank %d (world", th_size() - 1);
        TH_MESSAGE(text);
        TH_CHECK(sent > 2, "only %d calls ahead", sent);
    }
    th_barrier();
    for (int i = 0; last && i <= sent + ROW && s == DTR_OK; i++) {
        s = send_here(g, LONG);
    }
    TH_IS(s, DTR_ERR_TIMEOUT);
    TH_IS(dtr_group_destroy(g), DTR_OK);
}

START_TEST(absent_reader) {
    double limit = 1;
    do {
        miss_the_last_rank(limit);
    } while (th_patience(&limit));
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* DBG6: after rows of two kinds the last rank gives to rank 0, which sends to all. Neither would
 * have to look at the other, so nobody leaves the first call of a row before all have come. */
START_TEST(other_row) {
    int32_t x = 1, y = -1;
    dtr_status s = DTR_OK;
    for (int i = 0; i <= ROW; i++) {
        const bool gives = i == ROW ? th_rank() == th_size() - 1 : i / 4 % 2 == 0;
        dtr_buffer out = i32s(&y, th_rank() == 0);
        TH_CHECK(s == DTR_OK, "call %d: %s", i, dtr_last_error_message());
        if (i == ROW) { /* the rows have ended */
            TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
        }
        s = gives ? dtr_reduce(th_group(), i32s(&x, 1), out, DTR_MAX, 0, NULL, NULL)
                  : send_here(th_group(), 1);
    }
    TH_IS(s, DTR_ERR_MISMATCH);
    TH_MESSAGE("broadcast");
    TH_MESSAGE("reduce");
    TH_MESSAGE("engine_repeat_errors.c:");
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* Between nodes a call may have ended before the ranks' arguments are compared. */
#define ADD_OF_ONE_NODE(tc, test)                                          \
    (on_several_nodes() ? th_skip(#test, "the ranks are on several nodes") \
                        : th_add_sized((tc), #test, (test), 2, 0))

static void make(Suite *s) {
    TCase *tc = th_case(s, "errors", 60);
    th_add(tc, other_operator, 2, 0);
    th_add(tc, other_operator_long, 2, 0);
    th_add(tc, other_count, 2, 0);
    th_add(tc, other_count_long, 2, 0);
    th_add(tc, other_dtype, 2, 0);
    ADD_OF_ONE_NODE(tc, other_kind);
    ADD_OF_ONE_NODE(tc, other_block);
    ADD_OF_ONE_NODE(tc, other_kind_after_a_row);
    ADD_OF_ONE_NODE(tc, other_kind_after_a_row_long);
    ADD_OF_ONE_NODE(tc, absent_reader);
    ADD_OF_ONE_NODE(tc, other_row);
    th_add(tc, absent_rank, 2, 0);
    th_add(tc, absent_rank_long, 2, 0);
    th_add(tc, aborted_inside, 2, 0);
    th_add(tc, aborted_inside_long, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_repeat_errors", make);
}
