/* Row-sparse allreduce: values against a serial loop, empty ranks, what is refused and what ranks
 * must agree on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor_views.h"

static int W, r;

static dtr_tensor *new_tensor(dtr_dtype d, int ndim, const int64_t *shape) {
    dtr_device cpu = { DTR_CPU, 0 };
    dtr_tensor *t = NULL;
    TH_IS(dtr_tensor_empty(th_world(), d, cpu, DTR_MEM_DEFAULT, ndim, shape, &t), DTR_OK);
    return t;
}

static int64_t *ints(const dtr_tensor *t) {
    return dtr_tensor_data(t);
}

static void shuffle(th_rng *g, int64_t *list, size_t n) {
    for (size_t i = n; i > 1; i--) {
        size_t j = th_next(g) % i;
        int64_t keep = list[i - 1];
        list[i - 1] = list[j];
        list[j] = keep;
    }
}

/* T18: generator of tests.md 2.4, N inputs per rank, s sparse and d dense dimensions, entries
 * shuffled. `idle`: this rank gives nothing. */
static void basic_case(int N, int s, int d, bool async, int idle) {
    int64_t all = N * W, step = 1, n_rows = 1, nnz = 0, at = 0;
    int64_t shape[4] = { 0, 2, 2, 2 };
    for (int i = 0; i < s; i++) {
        step = n_rows;
        n_rows *= all;
    }
    for (int n = 0; n < N && r != idle; n++) {
        nnz += N * r + n + 1;
    }
    shape[0] = nnz;
    dtr_tensor *indices = new_tensor(DTR_I64, 1, shape),
               *values = new_tensor(DTR_F32, 1 + d, shape);
    for (int n = 0; n < N && r != idle; n++) {
        for (int64_t e = 0; e <= N * r + n; e++) {
            ints(indices)[at++] = e * step;
        }
    }
    th_rng g = { 100 + (uint64_t)r };
    shuffle(&g, ints(indices), (size_t)nnz);
    int64_t *before = malloc((size_t)nnz * 8 + 1);
    memcpy(before, ints(indices), (size_t)nnz * 8);
    TH_IS(dtr_tensor_fill(values, 1, NULL), DTR_OK);
    dtr_tensor *oi = NULL, *ov = NULL;
    uint64_t seq = dtr_group_seq(th_group());
    RUN(async, DTR_OK,
        dtr_sparse_allreduce(th_group(), indices, values, n_rows, DTR_SUM, NULL, &oi, &ov, work));
    TH_CHECK(dtr_group_seq(th_group()) == seq + 1, "counts as %d collectives",
             (int)(dtr_group_seq(th_group()) - seq));
    TH_CHECK(memcmp(before, ints(indices), (size_t)nnz * 8) == 0, "indices changed");
    /* Every input q holds entries 0..q; those of the idle rank are missing. */
    size_t rows = 0, row = (size_t)1 << d;
    for (int64_t e = 0; e < all; e++) {
        int64_t want = 0;
        for (int64_t q = e; q < all; q++) {
            want += q / N != idle;
        }
        if (want == 0) {
            continue;
        }
        bool here = rows < dtr_tensor_numel(oi);
        TH_CHECK(here && ints(oi)[rows] == e * step, "row %zu is not %lld", rows,
                 (long long)(e * step));
        for (size_t k = 0; here && k < row; k++) {
            float got = ((float *)dtr_tensor_data(ov))[rows * row + k];
            TH_CHECK(got == (float)want, "row %zu: %g, not %lld", rows, got, (long long)want);
        }
        rows++;
    }
    TH_CHECK(dtr_tensor_numel(oi) == rows && dtr_tensor_ndim(ov) == 1 + d &&
                 dtr_tensor_shape(ov)[0] == (int64_t)rows,
             "%zu rows, not %zu", dtr_tensor_numel(oi), rows);
    free(before);
    dtr_tensor_release(oi);
    dtr_tensor_release(ov);
    dtr_tensor_release(indices);
    dtr_tensor_release(values);
    TH_AGREE();
}

/* SPA1, SPA2: every row once, ascending; one rank without entries. */
START_TEST(sparse_basics) {
    for (int N = 1; N <= 2; N++) {
        for (int k = 0; k < 6; k++) {
            int s = k < 3 ? k + 1 : 1, d = k < 3 ? 0 : k - 2;
            basic_case(N, s, d, k % 2 == 1, -1);
            basic_case(N, s, d, k % 2 == 0, W - 1); /* the last has the most */
            basic_case(N, s, d, false, 0);
        }
    }
}
END_TEST

/* SPA2 */
START_TEST(nothing_anywhere) {
    dtr_tensor *indices = new_tensor(DTR_I64, 1, SHAPE(0)), *oi = NULL, *ov = NULL;
    dtr_tensor *values = new_tensor(DTR_BF16, 3, SHAPE(0, 4, 2));
    RUN(true, DTR_OK,
        dtr_sparse_allreduce(th_group(), indices, values, 0, DTR_AVG, NULL, &oi, &ov, work));
    TH_CHECK(dtr_tensor_numel(oi) == 0 && dtr_tensor_ndim(ov) == 3 &&
                 dtr_tensor_shape(ov)[1] == 4 && dtr_tensor_dtype(ov) == DTR_BF16,
             "not empty");
    dtr_tensor_release(oi);
    dtr_tensor_release(ov);
    dtr_tensor_release(indices);
    dtr_tensor_release(values);
    TH_AGREE();
}
END_TEST

/* ---- SPA3: order and rounding ---- */

enum { MAX_NNZ = 40, ROWS = 12, ROW = 5 };

typedef struct input {
    int64_t nnz, indices[MAX_NNZ];
    double values[MAX_NNZ * ROW];
} input;

/* Every rank can make every rank's input. */
static void make_input(input *in, int rank, dtr_dtype d, int round) {
    th_rng g = { 1000 * (uint64_t)round + (uint64_t)rank };
    in->nnz = (int64_t)(th_next(&g) % (MAX_NNZ + 1));
    for (int64_t i = 0; i < in->nnz; i++) {
        in->indices[i] = (int64_t)(th_next(&g) % ROWS);
    }
    for (int64_t k = 0; k < in->nnz * ROW; k++) {
        unsigned char raw[16];
        double v = (th_uniform(&g) - 0.5) * (double)((int64_t)1 << (th_next(&g) % 12));
        th_set(raw, d, 0, d == DTR_I64 ? (double)(int64_t)(100 * v) : v, 0);
        in->values[k] = th_get(raw, d, 0, false);
    }
}

static void serial(dtr_dtype d, dtr_op op, int round, bool *there, void *want) {
    static float f[ROWS * ROW];
    static int64_t n[ROWS * ROW];
    input in;
    memset(f, 0, sizeof(f));
    memset(n, 0, sizeof(n));
    memset(there, 0, ROWS);
    for (int rank = 0; rank < W; rank++) {
        make_input(&in, rank, d, round);
        for (int64_t i = 0; i < in.nnz; i++) {
            for (int k = 0; k < ROW; k++) {
                size_t at = (size_t)in.indices[i] * ROW + (size_t)k;
                float v = (float)in.values[i * ROW + k];
                f[at] = there[in.indices[i]] ? f[at] + v : v;
                n[at] += (int64_t)in.values[i * ROW + k];
            }
            there[in.indices[i]] = true;
        }
    }
    for (size_t at = 0; at < ROWS * ROW; at++) {
        float mean = op == DTR_AVG ? f[at] / (float)W : f[at];
        th_set(want, d, at,
               d == DTR_I64 ? (double)(op == DTR_AVG ? n[at] / W : n[at]) : (double)mean, 0);
    }
}

static void random_case(dtr_dtype d, dtr_op op, int round) {
    input in;
    unsigned char want[ROWS * ROW * 8];
    bool there[ROWS];
    size_t rows = 0, nbytes = ROW * dtr_dtype_size(d);
    make_input(&in, r, d, round);
    serial(d, op, round, there, want);
    dtr_tensor *indices = new_tensor(DTR_I64, 1, SHAPE(in.nnz)), *oi = NULL, *ov = NULL;
    dtr_tensor *values = new_tensor(d, 2, SHAPE(in.nnz, ROW));
    memcpy(dtr_tensor_data(indices), in.indices, (size_t)in.nnz * 8);
    for (size_t k = 0; k < (size_t)in.nnz * ROW; k++) {
        th_set(dtr_tensor_data(values), d, k, in.values[k], 0);
    }
    RUN(round % 2 == 0, DTR_OK,
        dtr_sparse_allreduce(th_group(), indices, values, ROWS, op, NULL, &oi, &ov, work));
    for (int i = 0; i < ROWS; i++) {
        if (!there[i]) {
            continue;
        }
        TH_CHECK(rows < dtr_tensor_numel(oi) && ints(oi)[rows] == i, "row %d is missing", i);
        TH_CHECK(memcmp((char *)dtr_tensor_data(ov) + rows * nbytes, want + (size_t)i * nbytes,
                        nbytes) == 0,
                 "%s: row %d differs from the serial loop", dtr_dtype_name(d), i);
        rows++;
    }
    TH_CHECK(rows == dtr_tensor_numel(oi), "%zu rows too many", dtr_tensor_numel(oi) - rows);
    dtr_tensor_release(oi);
    dtr_tensor_release(ov);
    dtr_tensor_release(indices);
    dtr_tensor_release(values);
    TH_AGREE();
}

START_TEST(sums_in_rank_and_list_order) {
    static const dtr_dtype dtypes[] = { DTR_F32, DTR_BF16, DTR_I64 };
    for (int round = 0; round < 30; round++) {
        random_case(dtypes[round % 3], round % 4 == 3 ? DTR_AVG : DTR_SUM, round);
    }
}
END_TEST

/* ---- SPA4, S1-S4: refused here ---- */

START_TEST(bad_arguments_stay_here) {
    dtr_tensor *idx = new_tensor(DTR_I64, 1, SHAPE(3)), *val = new_tensor(DTR_F32, 2, SHAPE(3, 2));
    dtr_tensor *flag = new_tensor(DTR_BOOL, 2, SHAPE(3, 2));
    dtr_tensor *i32 = new_tensor(DTR_I32, 1, SHAPE(3)), *two = new_tensor(DTR_I64, 2, SHAPE(3, 1));
    dtr_tensor *four = new_tensor(DTR_F32, 1, SHAPE(4)), *none = new_tensor(DTR_F32, 0, NULL);
    view odd = view_new(DTR_F32, COLUMN, 2, SHAPE(3, 2)),
         odd_i = view_new(DTR_I32, COLUMN, 2, SHAPE(2, 2));
    dtr_tensor *a = (dtr_tensor *)16, *b = (dtr_tensor *)32;
    dtr_work *w = (dtr_work *)48;
    dtr_coll_options bad = { 0 };
    struct {
        dtr_tensor *i, *v;
        int64_t n;
        dtr_op op;
        const dtr_coll_options *o;
        dtr_status status;
        const char *word;
    } rows[] = {
        { NULL, NULL, 9, DTR_MAX, &bad, DTR_ERR_ARG, "struct_size" },
        { NULL, val, 9, (dtr_op)99, NULL, DTR_ERR_ARG, "op is 99" },
        { NULL, odd.t, 9, DTR_MAX, NULL, DTR_ERR_ARG, "indices is NULL" },
        { idx, NULL, 9, DTR_SUM, NULL, DTR_ERR_ARG, "values is NULL" },
        { odd_i.t, val, 9, DTR_SUM, NULL, DTR_ERR_LAYOUT, "indices" },
        { i32, odd.t, 9, DTR_MAX, NULL, DTR_ERR_LAYOUT, "values" },
        { i32, val, 9, DTR_MAX, NULL, DTR_ERR_DTYPE, "i32" },
        { idx, val, 9, DTR_MAX, NULL, DTR_ERR_UNSUPPORTED, "max" },
        { idx, val, 9, DTR_PREMUL_SUM, NULL, DTR_ERR_UNSUPPORTED, "premul_sum" },
        { two, flag, 9, DTR_AVG, NULL, DTR_ERR_DTYPE, "bool" },
        { two, val, 9, DTR_SUM, NULL, DTR_ERR_SHAPE, "[3, 1]" },
        { idx, four, 9, DTR_SUM, NULL, DTR_ERR_SHAPE, "[4]" },
        { idx, none, 9, DTR_SUM, NULL, DTR_ERR_SHAPE, "[]" },
        { idx, val, -1, DTR_SUM, NULL, DTR_ERR_ARG, "n_rows is -1" },
        { idx, val, 7, DTR_SUM, NULL, DTR_ERR_ARG, "indices[1] is 7" },
    };
    memcpy(ints(idx), SHAPE(0, 7, 1), 24);
    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
        uint64_t seq = dtr_group_seq(th_group());
        for (int one = 0; one < 2; one++) { /* all ranks, then one alone */
            if (one == 0 || r == (int)k % W) {
                TH_IS(dtr_sparse_allreduce(th_group(), rows[k].i, rows[k].v, rows[k].n, rows[k].op,
                                           rows[k].o, &a, &b, one == 0 ? NULL : &w),
                      rows[k].status);
                TH_MESSAGE(rows[k].word);
            }
            TH_CHECK(dtr_group_seq(th_group()) == seq + (uint64_t)one, "row %zu moved the sequence",
                     k);
            th_good_allreduce(th_group());
        }
    }
    TH_IS(dtr_sparse_allreduce(th_group(), idx, val, 9, DTR_SUM, NULL, NULL, &b, &w), DTR_ERR_ARG);
    TH_IS(dtr_sparse_allreduce(NULL, NULL, NULL, -9, DTR_SUM, NULL, &a, &b, NULL), DTR_NOT_MEMBER);
    TH_CHECK(a == (dtr_tensor *)16 && b == (dtr_tensor *)32 && w == (dtr_work *)48,
             "outputs written");
    dtr_work *whole = NULL;
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_sparse_allreduce(th_group(), idx, val, 9, DTR_SUM, NULL, &a, &b, NULL),
          DTR_ERR_STATE);
    TH_IS(dtr_coalesce_end(th_group(), &whole), DTR_ERR_STATE);
    th_good_allreduce(th_group());
    view_free(&odd);
    view_free(&odd_i);
    dtr_tensor *list[] = { idx, val, flag, i32, two, four, none };
    for (size_t k = 0; k < 7; k++) {
        dtr_tensor_release(list[k]);
    }
    TH_AGREE();
}
END_TEST

/* ---- SPA5: what must agree ---- */

static void mismatch(int64_t n_rows, dtr_dtype d, int64_t width, dtr_op op, const char *word) {
    dtr_group *g = NULL;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.timeout_s = 20;
    TH_IS(dtr_group_split(th_group(), 0, r, &o, &g), DTR_OK);
    dtr_tensor *idx = new_tensor(DTR_I64, 1, SHAPE(1)), *val = new_tensor(d, 2, SHAPE(1, width));
    dtr_tensor *a = NULL, *b = NULL;
    ints(idx)[0] = 0;
    TH_IS(dtr_sparse_allreduce(g, idx, val, n_rows, op, NULL, &a, &b, NULL), DTR_ERR_MISMATCH);
    TH_MESSAGE(word);
    TH_MESSAGE("tensor_sparse.c:");
    char who[32];
    snprintf(who, sizeof(who), "rank %d", W - 1);
    TH_MESSAGE(who);
    TH_CHECK(a == NULL && b == NULL, "outputs written");
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_ERR_MISMATCH);
    dtr_group_destroy(g);
    dtr_tensor_release(idx);
    dtr_tensor_release(val);
    TH_AGREE();
}

START_TEST(ranks_must_agree) {
    bool odd = r == W - 1;
    mismatch(odd ? 8 : 9, DTR_F32, 2, DTR_SUM, "n_rows 8");
    mismatch(9, odd ? DTR_F64 : DTR_F32, 2, DTR_SUM, "dtype f64");
    mismatch(9, DTR_F32, odd ? 3 : 2, DTR_SUM, "[3]");
    mismatch(9, DTR_F32, 2, odd ? DTR_AVG : DTR_SUM, "op avg");
}
END_TEST

/* SPA6: handles are there when the callback runs; a failed call leaves them alone. */
typedef struct seen {
    dtr_tensor **where;
    int result;
} seen;

static void see_result(dtr_work *work, dtr_status status, void *arg) {
    seen *s = arg;
    (void)work;
    s->result = status == DTR_OK && *s->where != NULL ? 1 : -1;
}

START_TEST(handles_before_callbacks) {
    dtr_tensor *idx = new_tensor(DTR_I64, 1, SHAPE(1)), *val = new_tensor(DTR_F32, 1, SHAPE(1));
    dtr_tensor *a = NULL, *b = NULL;
    seen arg = { &b, 0 };
    dtr_work *work = NULL;
    ints(idx)[0] = r;
    TH_IS(dtr_tensor_fill(val, 1, NULL), DTR_OK);
    TH_IS(dtr_sparse_allreduce(th_group(), idx, val, W, DTR_SUM, NULL, &a, &b, &work), DTR_OK);
    TH_IS(dtr_work_on_complete(work, see_result, &arg), DTR_OK);
    TH_IS(dtr_work_wait(work, -1), DTR_OK);
    TH_CHECK(arg.result == 1, "callback saw %d", arg.result);
    TH_CHECK(dtr_tensor_numel(a) == (size_t)W, "%zu rows", dtr_tensor_numel(a));
    dtr_work_release(work);
    dtr_tensor_release(a);
    dtr_tensor_release(b);
    dtr_group *g = NULL;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = 0.3;
    a = b = NULL;
    TH_IS(dtr_group_split(th_group(), 0, r, NULL, &g), DTR_OK);
    if (W > 1 && r != 0) { /* rank 0 never comes */
        TH_IS(dtr_sparse_allreduce(g, idx, val, W, DTR_SUM, &o, &a, &b, NULL), DTR_ERR_TIMEOUT);
        TH_CHECK(a == NULL && b == NULL, "outputs written");
    }
    th_barrier();
    dtr_group_destroy(g);
    dtr_tensor_release(idx);
    dtr_tensor_release(val);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    W = th_size();
    r = th_rank();
    TCase *tc = th_case(s, "tensor_sparse", 60);
    th_add(tc, sparse_basics, 1, 0);
    th_add(tc, nothing_anywhere, 1, 0);
    th_add(tc, sums_in_rank_and_list_order, 1, 0);
    th_add(tc, bad_arguments_stay_here, 1, 0);
    th_add(tc, ranks_must_agree, 2, 0);
    th_add(tc, handles_before_callbacks, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "tensor_sparse", make);
}
