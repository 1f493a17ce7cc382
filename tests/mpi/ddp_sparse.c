/* Gradients that are lists of rows (T49, T54; H8, H9, A4). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"

enum { ROWS = 10, DIM = 3, MOST = 4, WIDTH = 20 };

static const dtr_device cpu = { DTR_CPU, 0 };

static dtr_tensor *tensor(dtr_dtype d, int ndim, const int64_t *shape) {
    dtr_tensor *t = NULL;
    ck_assert_int_eq(dtr_tensor_empty(th_world(), d, cpu, DTR_MEM_DEFAULT, ndim, shape, &t),
                     DTR_OK);
    ck_assert_int_eq(dtr_tensor_fill(t, 1, NULL), DTR_OK);
    return t;
}

/* A model of dense 'a', sparse 'e' [ROWS, DIM], dense 'b'; or of 'e' alone. */
typedef struct model {
    dtr_param params[3];
    size_t n, e;
} model;

static model model_new(dtr_dtype d, bool alone) {
    const int64_t dense = WIDTH, rows[] = { ROWS, DIM };
    model m = { .n = alone ? 1 : 3, .e = alone ? 0 : 1 };
    m.params[m.e] = (dtr_param){ "e", tensor(d, 2, rows), NULL, DTR_PARAM_SPARSE };
    if (!alone) {
        m.params[0] = (dtr_param){ "a", tensor(d, 1, &dense), NULL, 0 };
        m.params[2] = (dtr_param){ "b", tensor(d, 1, &dense), NULL, 0 };
    }
    return m;
}

static void model_free(model *m) {
    for (size_t i = 0; i < m->n; i++) {
        dtr_tensor_release(m->params[i].value);
    }
}

static dtr_ddp *create(const model *m, const dtr_ddp_options *o) {
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(th_group(), m->params, m->n, o, &ddp));
    return ddp;
}

/* Rank r's rows in a step: MOST of them, one twice, in no order; none on the rank `none`. */
static int row_of(int r, int step, int k) {
    return k == 3 ? row_of(r, step, 0) : (7 * r + 3 * step + 4 * k) % ROWS;
}

static double value_of(int r, int step, int k, int j) {
    return r + 2 * step + 3 * k + j - 4;
}

static void give_rows(dtr_ddp *ddp, size_t e, dtr_dtype d, int step, int none) {
    int64_t n = th_rank() == none ? 0 : MOST, shape[] = { n, DIM };
    dtr_tensor *rows = tensor(DTR_I64, 1, shape), *values = tensor(d, 2, shape);
    for (int k = 0; k < n; k++) {
        ((int64_t *)dtr_tensor_data(rows))[k] = row_of(th_rank(), step, k);
        for (int j = 0; j < DIM; j++) {
            th_set(dtr_tensor_data(values), d, (size_t)(k * DIM + j),
                   value_of(th_rank(), step, k, j), 0);
        }
    }
    TH_IS(dtr_ddp_set_sparse_grad(ddp, e, rows, values), DTR_OK);
    dtr_tensor_release(rows);
    dtr_tensor_release(values);
}

/* All W ranks but `none` gave rows; the sum is divided by `divisor`. */
static void check_rows(dtr_ddp *ddp, size_t e, dtr_dtype d, int step, int none, int divisor) {
    double sum[ROWS][DIM] = { { 0 } };
    bool there[ROWS] = { false };
    for (int r = 0; r < th_size(); r++) {
        for (int k = 0; k < MOST && r != none; k++) {
            there[row_of(r, step, k)] = true;
            for (int j = 0; j < DIM; j++) {
                sum[row_of(r, step, k)][j] += value_of(r, step, k, j);
            }
        }
    }
    dtr_tensor *rows = NULL, *values = NULL;
    TH_IS(dtr_ddp_sparse_grad(ddp, e, &rows, &values), DTR_OK);
    TH_CHECK(dtr_ddp_grad_defined(ddp, e), "not defined");
    size_t at = 0, n = rows != NULL ? dtr_tensor_numel(rows) : 0;
    for (int row = 0; row < ROWS; row++) {
        if (!there[row]) {
            continue;
        }
        TH_CHECK(at < n && ((int64_t *)dtr_tensor_data(rows))[at] == row, "row %d is missing", row);
        for (int j = 0; at < n && j < DIM; j++) {
            char want[16] = { 0 };
            th_set(want, d, 0, (double)((float)sum[row][j] / (float)divisor), 0);
            double got = th_get(dtr_tensor_data(values), d, at * DIM + (size_t)j, false);
            TH_CHECK(got == th_get(want, d, 0, false), "step %d: [%d][%d] is %g, want %g", step,
                     row, j, got, th_get(want, d, 0, false));
        }
        at++;
    }
    TH_CHECK(at == n, "%zu rows, want %zu", n, at);
}

static void dense(dtr_ddp *ddp, size_t i, int step) {
    TH_IS(dtr_tensor_fill(dtr_ddp_grad(ddp, i), th_rank() + 1 + step, NULL), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
}

static void check_dense(dtr_ddp *ddp, size_t i, dtr_dtype d, int step) {
    double got = th_get(dtr_tensor_data(dtr_ddp_grad(ddp, i)), d, WIDTH - 1, false);
    double want = (th_size() + 1) / 2.0 + step;
    TH_CHECK(got == want, "dense gradient %zu is %g, want %g", i, got, want);
}

/* One good step, in an order that depends on the step. */
static void step_all(const model *m, dtr_ddp *ddp, dtr_dtype d, int step, int none) {
    static const size_t orders[3][3] = { { 2, 1, 0 }, { 1, 0, 2 }, { 0, 2, 1 } };
    for (size_t k = 0; k < m->n; k++) {
        size_t i = m->n == 1 ? 0 : orders[(step + th_rank()) % 3][k];
        if (i == m->e) {
            give_rows(ddp, i, d, step, none);
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        } else {
            dense(ddp, i, step);
        }
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    check_rows(ddp, m->e, d, step, none, th_size());
    for (size_t i = 0; i < m->n; i++) {
        if (i != m->e) {
            check_dense(ddp, i, d, step);
        }
    }
    TH_AGREE();
}

/* ---- T49: options, positions in the plan, types ---- */

static void train(dtr_dtype d, bool alone, const dtr_ddp_options *o, int none) {
    model m = model_new(d, alone);
    dtr_ddp *ddp = create(&m, o);
    for (int step = 0; step < 4; step++) {
        step_all(&m, ddp, d, step, none);
    }
    dtr_ddp_stats st = stats_of(ddp);
    TH_ALL(st.steps == 4 && !st.has_error, "%llu steps, %s", (unsigned long long)st.steps,
           st.error);
    TH_OK(dtr_ddp_destroy(ddp));
    model_free(&m);
}

START_TEST(options) {
    for (int form = 0; form < 7; form++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.grad_as_bucket_view = form == 1;
        o.find_unused = form == 2;
        o.static_graph = form == 3;
        o.bucket_cap_bytes = form == 4 ? 1 : 0;
        o.flags = form == 5 ? DTR_DDP_PER_PARAM : form == 6 ? DTR_DDP_SMALL_LAST : 0;
        for (int alone = 0; alone < 2; alone++) {
            train(DTR_F32, alone, &o, -1);
            train(DTR_F32, alone, &o, th_size() - 1);
        }
    }
    train(DTR_F16, false, NULL, -1);
    train(DTR_BF16, true, NULL, 0);
}
END_TEST

/* A4: the sparse parameter has a bucket of its own; reduce_dtype is for the others. */
START_TEST(plan) {
    model m = model_new(DTR_F32, false);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.has_reduce_dtype = true;
    o.reduce_dtype = DTR_F64;
    dtr_ddp *ddp = create(&m, &o);
    char text[64];
    plan_text(dtr_ddp_plan(ddp), text, sizeof text);
    TH_ALL(strcmp(text, "1|2,0") == 0, "%s", text);
    TH_ALL(dtr_plan_get_bucket(dtr_ddp_plan(ddp), 0)->limit == 0, "its limit");
    step_all(&m, ddp, DTR_F32, 1, -1);
    TH_OK(dtr_ddp_destroy(ddp));
    model_free(&m);
}
END_TEST

/* DTR_DDP_SUM, and iterations without sync: the caller adds up. */
START_TEST(sums) {
    model m = model_new(DTR_F32, true);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.flags = DTR_DDP_SUM;
    dtr_ddp *ddp = create(&m, &o);
    TH_OK(dtr_ddp_set_sync(ddp, false));
    give_rows(ddp, 0, DTR_F32, 7, -1);
    TH_OK(dtr_ddp_grad_ready(ddp, 0, NULL));
    TH_OK(dtr_ddp_backward_end(ddp, NULL));
    dtr_tensor *rows = NULL, *values = NULL;
    TH_IS(dtr_ddp_sparse_grad(ddp, 0, &rows, &values), DTR_OK);
    TH_ALL(rows != NULL && dtr_tensor_numel(rows) == MOST, "a local gradient was touched");
    TH_OK(dtr_ddp_set_sync(ddp, true));
    give_rows(ddp, 0, DTR_F32, 2, -1);
    TH_OK(dtr_ddp_grad_ready(ddp, 0, NULL));
    TH_OK(dtr_ddp_backward_end(ddp, NULL));
    check_rows(ddp, 0, DTR_F32, 2, -1, 1);
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    model_free(&m);
}
END_TEST

/* U3, U5: used on some ranks, on none. */
START_TEST(unused) {
    for (int list = 0; list < 2; list++) {
        model m = model_new(DTR_F32, false);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.find_unused = true;
        dtr_ddp *ddp = create(&m, &o);
        for (int step = 0; step < 2; step++) { /* rank 0 leaves it out, then everybody */
            bool use = step == 0 && th_rank() > 0;
            TH_IS(dtr_ddp_grad_clear(ddp, SIZE_MAX), DTR_OK);
            TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
            TH_IS(dtr_ddp_forward_end(ddp, list ? &m.e : NULL, list && !use), DTR_OK);
            if (use) {
                give_rows(ddp, m.e, DTR_F32, step, 0);
                TH_IS(dtr_ddp_grad_ready(ddp, m.e, NULL), DTR_OK);
            }
            dense(ddp, 0, step);
            dense(ddp, 2, step);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            if (step == 0 && th_size() > 1) {
                check_rows(ddp, m.e, DTR_F32, step, 0, th_size());
            } else {
                TH_CHECK(!dtr_ddp_grad_defined(ddp, m.e), "defined, although nobody used it");
            }
            check_dense(ddp, 0, DTR_F32, step);
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
        model_free(&m);
    }
}
END_TEST

/* ---- errors ---- */

/* ER10, ER11, and a parameter that is ready without rows: agreed, each rank in turn. */
START_TEST(missing) {
    model m = model_new(DTR_F32, false);
    dtr_ddp *ddp = create(&m, NULL);
    for (int bad = 0; bad < th_size(); bad++) {
        for (int how = 0; how < 3; how++) { /* not reported, no rows, reported twice */
            bool me = bad == th_rank();
            if (!(me && how == 1)) {
                give_rows(ddp, m.e, DTR_F32, 0, -1);
            }
            if (!(me && how == 0)) {
                TH_IS(dtr_ddp_grad_ready(ddp, m.e, NULL), me && how == 1 ? DTR_ERR_STATE : DTR_OK);
            }
            if (me && how == 2) {
                TH_IS(dtr_ddp_grad_ready(ddp, m.e, NULL), DTR_ERR_STATE);
            }
            dense(ddp, 0, 0);
            dense(ddp, 2, 0);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
            char word[32];
            snprintf(word, sizeof word, "rank %d", bad);
            TH_MESSAGE("'e' (1)");
            TH_MESSAGE(word);
            TH_MESSAGE(how < 2 ? "not ready" : "twice");
            TH_AGREE();
            step_all(&m, ddp, DTR_F32, bad, -1);
        }
    }
    TH_OK(dtr_ddp_destroy(ddp));
    model_free(&m);
}
END_TEST

/* What dtr_ddp_set_sparse_grad and create refuse. */
START_TEST(arguments) {
    model m = model_new(DTR_F32, false);
    dtr_ddp *ddp = NULL;
    m.params[1].grad = m.params[1].value;
    TH_IS(dtr_ddp_create(th_group(), m.params, m.n, NULL, &ddp), DTR_ERR_ARG);
    TH_MESSAGE("'e' (1)");
    TH_AGREE();
    m.params[1].grad = NULL;
    ddp = create(&m, NULL);
    const int64_t two = 2, good[] = { 2, DIM }, wide[] = { 2, DIM + 1 }, more[] = { 3, DIM };
    dtr_tensor *rows = tensor(DTR_I64, 1, &two), *ints = tensor(DTR_I32, 1, &two),
               *v = tensor(DTR_F32, 2, good), *v64 = tensor(DTR_F64, 2, good),
               *vw = tensor(DTR_F32, 2, wide), *vm = tensor(DTR_F32, 2, more), *vt = NULL;
    TH_OK(dtr_tensor_transpose(vm, 0, 1, &vt));
    TH_IS(dtr_ddp_set_sparse_grad(ddp, 0, rows, v), DTR_ERR_ARG);
    TH_MESSAGE("DTR_PARAM_SPARSE");
    TH_IS(dtr_ddp_set_sparse_grad(ddp, 1, NULL, v), DTR_ERR_ARG);
    TH_IS(dtr_ddp_set_sparse_grad(ddp, 1, ints, v), DTR_ERR_DTYPE);
    TH_IS(dtr_ddp_set_sparse_grad(ddp, 1, rows, v64), DTR_ERR_DTYPE);
    TH_IS(dtr_ddp_set_sparse_grad(ddp, 1, rows, vw), DTR_ERR_SHAPE);
    TH_IS(dtr_ddp_set_sparse_grad(ddp, 1, rows, vm), DTR_ERR_SHAPE);
    TH_IS(dtr_ddp_set_sparse_grad(ddp, 1, rows, vt), DTR_ERR_LAYOUT);
    ((int64_t *)dtr_tensor_data(rows))[1] = ROWS;
    TH_IS(dtr_ddp_set_sparse_grad(ddp, 1, rows, v), DTR_ERR_ARG);
    TH_MESSAGE("indices[1] is 10");
    TH_CHECK(dtr_ddp_grad(ddp, 1) == NULL, "a dense gradient");
    dtr_tensor *a = NULL, *b = NULL;
    TH_IS(dtr_ddp_sparse_grad(ddp, 1, &a, &b), DTR_ERR_STATE);
    TH_IS(dtr_ddp_sparse_grad(ddp, 1, NULL, &b), DTR_ERR_ARG);
    TH_AGREE();
    step_all(&m, ddp, DTR_F32, 1, -1);
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_tensor *all[] = { rows, ints, v, v64, vw, vm, vt };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        dtr_tensor_release(all[k]);
    }
    model_free(&m);
}
END_TEST

/* ---- H9: rows named beforehand ---- */

START_TEST(agreed_rows) {
    model m = model_new(DTR_F32, false);
    dtr_ddp *ddp = create(&m, NULL);
    int64_t all[ROWS], bad[2] = { 3, 3 };
    for (int k = 0; k < ROWS; k++) {
        all[k] = k;
    }
    TH_STATUS(dtr_ddp_set_sparse_rows(ddp, 1, bad, 2), DTR_ERR_ARG);
    TH_STATUS(dtr_ddp_set_sparse_rows(ddp, 0, all, 2), DTR_ERR_ARG);
    for (int step = 0; step < 2; step++) { /* named, then forgotten */
        if (step == 0) {
            TH_OK(dtr_ddp_set_sparse_rows(ddp, 1, all, ROWS));
        }
        give_rows(ddp, 1, DTR_F32, 0, -1);
        TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_OK);
        dense(ddp, 2, 0);
        dense(ddp, 0, 0);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        dtr_tensor *rows = NULL, *values = NULL;
        TH_IS(dtr_ddp_sparse_grad(ddp, 1, &rows, &values), DTR_OK);
        double sum = 0;
        for (int r = 0; r < th_size(); r++) {
            for (int k = 0; k < MOST; k++) {
                sum += row_of(r, 0, k) == 0 ? value_of(r, 0, k, 2) : 0;
            }
        }
        TH_CHECK(step == 1 || dtr_tensor_numel(rows) == ROWS, "%zu rows", dtr_tensor_numel(rows));
        TH_CHECK(th_get(dtr_tensor_data(values), DTR_F32, 2, false) ==
                     (double)((float)sum / (float)th_size()),
                 "row 0 is %g, want %g / %d", th_get(dtr_tensor_data(values), DTR_F32, 2, false),
                 sum, th_size());
        TH_AGREE();
    }
    check_rows(ddp, 1, DTR_F32, 0, -1, th_size());
    TH_AGREE();
    /* A row that is not among them, on the last rank. */
    int64_t own[ROWS];
    size_t n = 0;
    for (int row = 0; row < ROWS; row++) {
        bool last = false;
        for (int k = 0; k < MOST; k++) {
            last = last || row == row_of(th_size() - 1, 0, k);
        }
        if (!last) {
            own[n++] = row;
        }
    }
    TH_OK(dtr_ddp_set_sparse_rows(ddp, 1, own, n));
    give_rows(ddp, 1, DTR_F32, 0, -1);
    (void)dtr_ddp_grad_ready(ddp, 1, NULL);
    dense(ddp, 2, 0);
    dense(ddp, 0, 0);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
    TH_MESSAGE("is not among");
    TH_AGREE();
    step_all(&m, ddp, DTR_F32, 1, -1);
    TH_OK(dtr_ddp_destroy(ddp));
    model_free(&m);
}
END_TEST

/* Other rows on one rank, as many of them: the operation's fingerprints differ. */
START_TEST(rows_differ) {
    model m = model_new(DTR_F32, true);
    dtr_ddp *ddp = create(&m, NULL);
    const int64_t a[] = { 1, 2 }, b[] = { 1, 3 };
    const int64_t none[] = { 0, DIM };
    dtr_tensor *rows = tensor(DTR_I64, 1, none), *values = tensor(DTR_F32, 2, none);
    TH_OK(dtr_ddp_set_sparse_rows(ddp, 0, th_rank() == 1 ? b : a, 2));
    TH_OK(dtr_ddp_set_sparse_grad(ddp, 0, rows, values));
    dtr_status s = dtr_ddp_grad_ready(ddp, 0, NULL);
    dtr_status end = dtr_ddp_backward_end(ddp, NULL);
    TH_CHECK(end == DTR_ERR_MISMATCH, "ready %s, end %s: %s", dtr_status_name(s),
             dtr_status_name(end), dtr_last_error_message());
    TH_AGREE();
    TH_STATUS(dtr_ddp_forward_begin(ddp), DTR_ERR_MISMATCH);
    (void)dtr_ddp_destroy(ddp);
    th_good_allreduce(th_group());
    dtr_tensor_release(rows);
    dtr_tensor_release(values);
    model_free(&m);
}
END_TEST

/* ---- hooks ---- */

typedef struct hook_state {
    dtr_tensor *rows, *values;
    bool forget;
} hook_state;

static dtr_status divide(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    hook_state *h = state;
    (void)work;
    if (h->forget) {
        return DTR_OK;
    }
    dtr_status s = dtr_tensor_scale(h->values, 1.0 / th_size(), NULL);
    return s < 0 ? s : dtr_ddp_bucket_set_sparse_result(b, h->rows, h->values);
}

static dtr_status sum_rows(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    hook_state *h = state;
    dtr_tensor *rows = NULL, *values = NULL;
    if (dtr_ddp_bucket_sparse(b, &rows, &values) == DTR_ERR_ARG) { /* dense: stays as it is */
        return dtr_ddp_bucket_set_result(b, dtr_ddp_bucket_buffer(b));
    }
    dtr_tensor_release(h->rows);
    dtr_tensor_release(h->values);
    h->rows = h->values = NULL;
    dtr_status s = dtr_sparse_allreduce(dtr_ddp_bucket_group(b), rows, values, ROWS, DTR_SUM, NULL,
                                        &h->rows, &h->values, work);
    return s < 0 ? s : dtr_ddp_bucket_then(b, divide, h);
}

/* T54. W is a power of two: dividing and scaling give the same bits. */
START_TEST(hook) {
    model m = model_new(DTR_F32, true);
    hook_state h = { NULL, NULL, false };
    dtr_ddp *ddp = create(&m, NULL);
    TH_OK(dtr_ddp_register_hook(ddp, sum_rows, &h, "rows"));
    for (int step = 0; step < 3; step++) {
        if (th_size() != 3) {
            step_all(&m, ddp, DTR_F32, step, -1);
        }
    }
    h.forget = th_rank() == th_size() - 1;
    give_rows(ddp, 0, DTR_F32, 0, -1);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
    TH_MESSAGE("'rows'");
    TH_MESSAGE("sparse");
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_tensor_release(h.rows);
    dtr_tensor_release(h.values);
    model_free(&m);
}
END_TEST

START_TEST(builtin_hooks) {
    model m = model_new(DTR_F32, false);
    dtr_ddp *ddp = create(&m, NULL);
    const dtr_ddp_builtin refused[] = { DTR_HOOK_FP16, DTR_HOOK_Q8, DTR_HOOK_POWERSGD,
                                        DTR_HOOK_POST_LOCAL_SGD };
    for (size_t k = 0; k < 4; k++) {
        TH_IS(dtr_ddp_register_builtin_hook(ddp, refused[k], NULL), DTR_ERR_UNSUPPORTED);
        TH_MESSAGE("'e'");
    }
    TH_OK(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_ALLREDUCE, NULL));
    for (int step = 0; step < 3; step++) {
        step_all(&m, ddp, DTR_F32, step, th_size() - 1);
    }
    TH_OK(dtr_ddp_destroy(ddp));
    ddp = create(&m, NULL);
    TH_OK(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_NOOP, NULL));
    give_rows(ddp, 1, DTR_F32, 0, -1);
    TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_OK);
    dense(ddp, 0, 0);
    dense(ddp, 2, 0);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    dtr_tensor *rows = NULL, *values = NULL;
    TH_IS(dtr_ddp_sparse_grad(ddp, 1, &rows, &values), DTR_OK);
    TH_ALL(rows != NULL && dtr_tensor_numel(rows) == MOST, "not this rank's own");
    TH_OK(dtr_ddp_destroy(ddp));
    model_free(&m);
}
END_TEST

/* ---- J3, J4: ranks that have joined contribute no rows ---- */

START_TEST(uneven) {
    for (int active = 0; active < 2; active++) {
        model m = model_new(DTR_F32, true);
        dtr_ddp *ddp = create(&m, NULL);
        dtr_join_options o = DTR_JOIN_OPTIONS_INIT;
        o.divide_by_active = active;
        TH_OK(dtr_ddp_join_begin(ddp, &o));
        int64_t one[] = { 1, DIM };
        for (int step = 0; step <= th_rank(); step++) {
            dtr_tensor *rows = tensor(DTR_I64, 1, one), *values = tensor(DTR_F32, 2, one);
            TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
            TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
            TH_IS(dtr_ddp_set_sparse_grad(ddp, 0, rows, values), DTR_OK);
            TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            dtr_tensor_release(rows);
            dtr_tensor_release(values);
            TH_IS(dtr_ddp_sparse_grad(ddp, 0, &rows, &values), DTR_OK);
            float got = values != NULL ? *(float *)dtr_tensor_data(values) : 0;
            float n = (float)(th_size() - step), want = active ? 1 : n / (float)th_size();
            TH_CHECK(got > want - 1e-6f && got < want + 1e-6f, "step %d: %g, want %g", step,
                     (double)got, (double)want);
        }
        TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
        TH_AGREE();
        TH_OK(dtr_ddp_destroy(ddp));
        model_free(&m);
    }
}
END_TEST

static void add_tests(Suite *s) {
    TCase *tc = th_case(s, "sparse gradients", 100);
    th_add(tc, options, 0, 0);
    th_add(tc, plan, 0, 0);
    th_add(tc, sums, 0, 0);
    th_add(tc, unused, 0, 0);
    th_add(tc, missing, 0, 0);
    th_add(tc, arguments, 0, 0);
    th_add(tc, agreed_rows, 0, 0);
    th_add(tc, rows_differ, 2, 0);
    th_add(tc, hook, 0, 0);
    th_add(tc, builtin_hooks, 0, 0);
    th_add(tc, uneven, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_sparse", add_tests);
}
