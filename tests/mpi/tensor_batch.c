/* Batches of tensors: halos that are columns of an array, and bad lists. */
#include <string.h>

#include "tensor_views.h"

static int W, r;

enum { ROWS = 5, COLUMNS = 6 };
static const dtr_dtype dtypes[] = { DTR_I64, DTR_F32, DTR_C128 };

static double inner(int rank, int row, int column) {
    return 1000.0 * rank + 10 * row + column;
}

static dtr_tensor *column(dtr_tensor *array, int64_t at) {
    dtr_tensor *one = NULL;
    TH_IS(dtr_tensor_narrow(array, 1, at, 1, &one), DTR_OK);
    return one;
}

/* Left and right neighbours on a line, or on a ring, whose first and last columns are halos. */
static void exchange(dtr_dtype d, layout l, bool ring, bool async) {
    view v = view_new(d, l, 2, SHAPE(ROWS, COLUMNS));
    for (int k = 0; k < ROWS * COLUMNS; k++) {
        view_set(&v, (size_t)k, inner(r, k / COLUMNS, k % COLUMNS));
    }
    int left = r > 0 ? r - 1 : ring ? W - 1 : DTR_PEER_NONE;
    int right = r < W - 1 ? r + 1 : ring ? 0 : DTR_PEER_NONE;
    dtr_tensor *at[4] = { column(v.t, 1), column(v.t, COLUMNS - 2), column(v.t, 0),
                          column(v.t, COLUMNS - 1) };
    const dtr_tensor_p2p ops[] = {
        { true, at[0], left, 1 },
        { false, at[2], left, 2 },
        { true, at[1], right, 2 },
        { false, at[3], right, 1 },
    };
    RUN(async, DTR_OK, dtr_tensor_batch_p2p(th_group(), ops, 4, NULL, work));
    for (int k = 0; k < ROWS * COLUMNS; k++) {
        int row = k / COLUMNS, col = k % COLUMNS;
        double want = col == 0 && left >= 0              ? inner(left, row, COLUMNS - 2)
                      : col == COLUMNS - 1 && right >= 0 ? inner(right, row, 1)
                                                         : inner(r, row, col);
        TH_CHECK(view_get(&v, (size_t)k) == want, "%d, %d: %g, not %g", row, col,
                 view_get(&v, (size_t)k), want);
    }
    TH_CHECK(view_gaps_ok(&v, false), "gaps written");
    for (int i = 0; i < 4; i++) {
        dtr_tensor_release(at[i]);
    }
    view_free(&v);
    TH_AGREE();
}

START_TEST(halos) {
    for (int i = 0; i < N_LAYOUTS * 4; i++) {
        exchange(dtypes[i % 3], (layout)(i % N_LAYOUTS), i / N_LAYOUTS % 2, i / N_LAYOUTS > 1);
    }
}
END_TEST

/* What is sent is read when the call is made: the same strided tensor goes out and comes in. */
START_TEST(in_and_out_of_one_tensor) {
    view v = view_new(DTR_F64, COLUMN, 1, SHAPE(1000)),
         dense = view_new(DTR_I32, DENSE, 1, SHAPE(7));
    view got = view_new(DTR_I32, DENSE, 1, SHAPE(7));
    for (size_t k = 0; k < 1000; k++) {
        view_set(&v, k, (double)k + 5000 * r);
        view_set(&dense, k % 7, (double)(k % 7) + r);
    }
    int from = (r + W - 1) % W, to = (r + 1) % W;
    const dtr_tensor_p2p ops[] = { { true, v.t, to, 3 },
                                   { true, dense.t, to, 3 },
                                   { false, v.t, from, 3 },
                                   { false, got.t, from, 3 } };
    TH_OK(dtr_tensor_batch_p2p(th_group(), ops, 4, NULL, NULL));
    for (size_t k = 0; k < 1000; k++) {
        TH_CHECK(view_get(&v, k) == (double)k + 5000 * from, "element %zu", k);
        TH_CHECK(view_get(&got, k % 7) == (double)(k % 7) + from, "dense %zu", k % 7);
    }
    TH_CHECK(view_gaps_ok(&v, false), "gaps written");
    TH_AGREE();
    view_free(&v);
    view_free(&dense);
    view_free(&got);
}
END_TEST

/* Nothing starts, and the group goes on. */
START_TEST(bad_lists) {
    view v = view_new(DTR_F32, COLUMN, 1, SHAPE(4));
    dtr_tensor *repeated = NULL;
    const int64_t none[] = { 0 };
    TH_OK(dtr_tensor_from_buffer(dtr_cpu(v.memory, 4, DTR_F32), 1, SHAPE(4), none, NULL, NULL,
                                 &repeated));
    const dtr_tensor_p2p hole[] = { { true, v.t, r, 0 }, { false, NULL, r, 0 } };
    const dtr_tensor_p2p shared[] = { { false, repeated, r, 0 } };
    const dtr_tensor_p2p far[] = { { true, v.t, W, 0 } };
    const dtr_tensor_p2p tag[] = { { false, v.t, r, 0 }, { true, v.t, r, -1 } };
    dtr_group *g = th_group();
    TH_STATUS(dtr_tensor_batch_p2p(g, NULL, 1, NULL, NULL), DTR_ERR_ARG);
    TH_MESSAGE("ops is NULL");
    TH_STATUS(dtr_tensor_batch_p2p(g, hole, 2, NULL, NULL), DTR_ERR_ARG);
    TH_MESSAGE("ops[1].tensor");
    TH_STATUS(dtr_tensor_batch_p2p(g, shared, 1, NULL, NULL), DTR_ERR_LAYOUT);
    TH_STATUS(dtr_tensor_batch_p2p(g, far, 1, NULL, NULL), DTR_ERR_RANK);
    TH_STATUS(dtr_tensor_batch_p2p(g, tag, 2, NULL, NULL), DTR_ERR_ARG);
    TH_CHECK(view_gaps_ok(&v, true), "a bad list wrote");
    TH_OK(dtr_tensor_batch_p2p(g, NULL, 0, NULL, NULL));
    th_good_allreduce(g);
    dtr_tensor_release(repeated);
    view_free(&v);
}
END_TEST

static void make(Suite *s) {
    W = th_size();
    r = th_rank();
    TCase *tc = th_case(s, "tensor_batch", 60);
    th_add(tc, halos, 1, 0);
    th_add(tc, in_and_out_of_one_tensor, 1, 0);
    th_add(tc, bad_lists, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "tensor_batch", make);
}
