/* Prefixes over ranks: rows of small calls in which ranks run ahead, subgroups in any order, what
 * AVG divides by, one rounding, and outsiders. All types, operators and sizes are in matrix.c. */
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "harness.h"

enum { ROW = 100, ROOM = 3000 };

static int32_t mine[ROOM], got[ROOM];

/* Of n elements, in place or not. */
static void call_of_row(dtr_group *g, bool inclusive, bool in_place, size_t n, int i) {
    const int r = dtr_group_rank(g), below = r + inclusive;
    for (size_t k = 0; k < n; k++) {
        mine[k] = r + i + (int32_t)k;
        got[k] = -1;
    }
    dtr_buffer in = dtr_cpu(mine, n, DTR_I32), out = in_place ? in : dtr_cpu(got, n, DTR_I32);
    dtr_status s = inclusive ? dtr_scan(g, in, out, DTR_SUM, NULL, NULL)
                             : dtr_exscan(g, in, out, DTR_SUM, NULL, NULL);
    TH_CHECK(s == DTR_OK, "call %d: %s", i, dtr_last_error_message());
    for (size_t k = 0; k < n; k++) {
        int32_t want = below * (below - 1) / 2 + below * (i + (int32_t)k);
        int32_t is = in_place ? mine[k] : got[k];
        TH_CHECK(is == want, "%d: call %d of %zu gave %d, want %d", inclusive, i, n, is, want);
    }
}

/* In a row of equal calls a rank waits for those below it only: nothing that the others have not
 * read is overwritten, and what comes after the row finds its place. */
START_TEST(rows_that_run_ahead) {
    static const size_t lengths[] = { 1, 2, 12, 100, 400, ROOM };
    uint64_t seq = dtr_group_seq(th_group());
    for (int what = 0; what < 24; what++) {
        for (int i = 0; i < ROW; i++) {
            if (i % 33 == 32 && th_rank() == (what + i) % th_size()) {
                th_sleep(0.001); /* the others get as far ahead as they may */
            }
            call_of_row(th_group(), what % 2 == 0, what / 2 % 2 == 0, lengths[what / 4], i);
        }
        if (what % 3 == 0) {
            th_good_allreduce(th_group());
        }
    }
    TH_CHECK(dtr_group_seq(th_group()) == seq + 24 * ROW + 8, "the sequence moved by %d",
             (int)(dtr_group_seq(th_group()) - seq));
    TH_AGREE();
}
END_TEST

/* DBG6: within a row the last rank calls something else; it says so, and so do those below it, in
 * this call or in the next. */
START_TEST(other_kind_after_a_row) {
    int32_t x = 1, y = -1;
    dtr_buffer in = dtr_cpu(&x, 1, DTR_I32), out = dtr_cpu(&y, 1, DTR_I32);
    dtr_status s = DTR_OK;
    for (int i = 0; i <= 2 * ROW && s == DTR_OK; i++) {
        if (i == ROW) {
            th_barrier();
        }
        s = i == ROW && th_rank() == th_size() - 1
                ? dtr_exscan(th_group(), in, out, DTR_SUM, NULL, NULL)
                : dtr_scan(th_group(), in, out, DTR_SUM, NULL, NULL);
    }
    TH_CHECK(s == DTR_ERR_MISMATCH, "status %s", dtr_status_name(s));
    TH_MESSAGE("exscan");
    TH_MESSAGE("scan.c:");
    TH_AGREE();
    th_good_allreduce(dtr_world_group(th_world()));
}
END_TEST

/* Group ranks count, backwards and in halves. */
START_TEST(subgroups) {
    for (int way = 0; way < 2; way++) {
        dtr_group *g = NULL;
        TH_OK(dtr_group_split(th_group(), way == 0 ? 0 : th_rank() % 2, -th_rank(), NULL, &g));
        for (int i = 0; i < 12; i++) {
            call_of_row(g, i % 2 == 0, i % 3 == 0, i < 6 ? 1 : ROOM, i);
        }
        TH_AGREE();
        TH_OK(dtr_group_destroy(g));
    }
}
END_TEST

/* AVG divides by the ranks that are added up, toward zero where they are whole numbers. */
START_TEST(averages) {
    const int r = th_rank();
    int32_t x = -3 * r - 1, y = -1;
    double f = r + 1, mean = -1;
    for (int i = 0; i < 3; i++) { /* the short way too */
        TH_IS(dtr_scan(th_group(), dtr_cpu(&x, 1, DTR_I32), dtr_cpu(&y, 1, DTR_I32), DTR_AVG, NULL,
                       NULL),
              DTR_OK);
        TH_CHECK(y == (-3 * r * (r + 1) / 2 - r - 1) / (r + 1), "average %d", y);
        TH_IS(dtr_exscan(th_group(), dtr_cpu(&f, 1, DTR_F64), dtr_cpu(&mean, 1, DTR_F64), DTR_AVG,
                         NULL, NULL),
              DTR_OK);
        TH_CHECK(mean == (r == 0 ? 0 : (r + 1) / 2.0), "average below is %g", mean);
    }
    TH_AGREE();
}
END_TEST

/* The same of many elements, which each rank makes for all others, and with a factor of each rank.
 */
START_TEST(averages_of_many) {
    static const dtr_op ops[] = { DTR_AVG, DTR_PREMUL_SUM };
    const size_t n = 60001;
    const int r = th_rank();
    double *x = malloc(2 * n * sizeof *x), *y = x + n;
    for (int i = 0; i < 8; i++) {
        const dtr_op op = ops[i % 2];
        const bool inclusive = i / 2 % 2 == 0, in_place = i >= 4;
        const int below = r + inclusive;
        dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
        o.premul = op == DTR_AVG ? 0 : r + 1;
        for (size_t k = 0; k < n; k++) {
            x[k] = op == DTR_AVG ? r + 1 : 2;
        }
        dtr_buffer in = dtr_cpu(x, n, DTR_F64), out = in_place ? in : dtr_cpu(y, n, DTR_F64);
        TH_IS(inclusive ? dtr_scan(th_group(), in, out, op, &o, NULL)
                        : dtr_exscan(th_group(), in, out, op, &o, NULL),
              DTR_OK);
        const double sum = below * (below + 1);
        const double want = op != DTR_AVG ? sum : below == 0 ? 0 : sum / 2 / below;
        const double *is = out.data;
        for (size_t k = 0; k < n; k++) {
            TH_CHECK(is[k] == want, "call %d: element %zu is %g, want %g", i, k, is[k], want);
        }
    }
    free(x);
    TH_AGREE();
}
END_TEST

/* Sums of 16 bits are made in float32 and rounded once: rank 0 has 256, the others 1/4 each. */
START_TEST(rounded_once) {
    const size_t count = 70001;
    uint16_t *x = malloc(2 * count * sizeof *x), *y = x + count, want[1];
    th_set(want, DTR_BF16, 0, (double)(float)(256 + 0.25 * th_rank()), 0);
    for (size_t k = 0; k < count; k++) {
        th_set(x, DTR_BF16, k, th_rank() == 0 ? 256 : 0.25, 0);
    }
    for (size_t n = 1; n <= count; n = n < 70      ? n * 10
                                       : n < 7000  ? 7000
                                       : n == 7000 ? count
                                                   : n + 1) {
        TH_IS(dtr_scan(th_group(), dtr_cpu(x, n, DTR_BF16), dtr_cpu(y, n, DTR_BF16), DTR_SUM, NULL,
                       NULL),
              DTR_OK);
        for (size_t k = 0; k < n; k++) {
            TH_CHECK(y[k] == want[0], "%zu of %zu is %g, want %g", k, n,
                     th_get(y, DTR_BF16, k, false), th_get(want, DTR_BF16, 0, false));
        }
    }
    free(x);
    TH_AGREE();
}
END_TEST

/* The bits of a sum that rounds: equal in every run, and where the group is deterministic those of
 * one addition after the other. */
START_TEST(same_bits) {
    const size_t count = 50000;
    float *x = malloc(4 * count * sizeof *x), *first = x + count, *again = x + 2 * count,
          *one = x + 3 * count;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.deterministic = true;
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), 0, 0, &o, &g));
    for (int i = 0; i < 2; i++) {
        dtr_group *in = i == 0 ? th_group() : g;
        th_rng seed = { 7 + (uint64_t)th_rank() };
        th_random_floats(x, DTR_F32, count, &seed, -8, 8);
        TH_IS(dtr_scan(in, dtr_cpu(x, count, DTR_F32), dtr_cpu(first, count, DTR_F32), DTR_SUM,
                       NULL, NULL),
              DTR_OK);
        TH_IS(dtr_scan(in, dtr_cpu(x, count, DTR_F32), dtr_cpu(again, count, DTR_F32), DTR_SUM,
                       NULL, NULL),
              DTR_OK);
        TH_CHECK(memcmp(first, again, count * sizeof *x) == 0, "other bits in the second run");
    }
    memset(again, 0, count * sizeof *x);
    for (int r = 0; r <= th_rank(); r++) {
        th_rng seed = { 7 + (uint64_t)r };
        th_random_floats(one, DTR_F32, count, &seed, -8, 8);
        for (size_t k = 0; k < count; k++) {
            again[k] = r == 0 ? one[k] : again[k] + one[k];
        }
    }
    TH_CHECK(memcmp(first, again, count * sizeof *x) == 0, "not in rank order");
    free(x);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

START_TEST(not_a_member) {
    int32_t x = 7;
    dtr_work *w = (dtr_work *)&x;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_I32);
    TH_IS(dtr_scan(NULL, b, b, DTR_SUM, NULL, &w), DTR_NOT_MEMBER);
    TH_IS(dtr_exscan(NULL, b, b, DTR_SUM, NULL, NULL), DTR_NOT_MEMBER);
    TH_ALL(w == NULL && x == 7, "a buffer was touched");
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "scan", 120);
    th_add(tc, rows_that_run_ahead, 0, 0);
    if (getenv("DTR_NODE_RANKS") == NULL && getenv("DTR_BACKEND") == NULL) {
        th_add(tc, other_kind_after_a_row, 2, 0);
    } else { /* a rank that takes nothing from others learns of it by the watchdog */
        th_skip("other_kind_after_a_row", "messages compare no calls");
    }
    th_add(tc, subgroups, 0, 0);
    th_add(tc, averages, 0, 0);
    th_add(tc, averages_of_many, 0, 0);
    th_add(tc, rounded_once, 0, 0);
    th_add(tc, same_bits, 0, 0);
    th_add(tc, not_a_member, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "scan", make);
}
