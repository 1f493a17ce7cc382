#include "ddp_clip_model.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t shapes[MOST][2] = { { 17, 241 }, { 1, 1 },     { 63, 1 }, { 1000, 1 },
                                         { 9, 14 },   { 50, 1 },    { 5, 1 },  { 6, 1 },
                                         { 17, 241 }, { ROWS, DIM } };

/* ---- gradients ---- */

size_t clip_numel(size_t i) {
    return (size_t)(shapes[i][0] * shapes[i][1]);
}

/* So small that sums over 7 ranks are exact in bf16; some steps are far below the limit. */
static double input(size_t i, size_t k, int r, int step) {
    double x = (double)((7 * k + 13 * (size_t)r) % 17) - 8.0 + 4.0 * (double)i + step % 5;
    return step % 4 == 3 ? x / 1024 : x;
}

static bool uses(const mode *m, size_t i, int r, int step) {
    return i != NEVER && !(m->dynamic && i == 2 && step % 2 == 1 && r != 0);
}

double clip_rounded(dtr_dtype d, double x) {
    char one[16] = { 0 };
    th_set(one, d, 0, x, 0);
    return th_get(one, d, 0, false);
}

/* The mean over the ranks as it arrives in the value's type. */
double clip_mean(const mode *m, size_t i, size_t k, int step) {
    double sum = 0, W = th_size();
    for (int r = 0; r < th_size(); r++) {
        sum += uses(m, i, r, step) ? input(i, k, r, step) * (m->accumulate ? 2 : 1) : 0;
    }
    double one = m->value == DTR_F64 ? sum / W : (double)((float)sum / (float)W);
    return clip_rounded(m->value, clip_rounded(m->reduce, one));
}

/* Rows of the embedding: rank r gives three, one of them rank 0's too. */
static int row_of(int r, int step, int k) {
    return k == 2 ? step % ROWS : (3 * r + 2 * step + 5 * k) % ROWS;
}

static double row_mean(const mode *m, int row, int j, int step) {
    double sum = 0;
    for (int r = 0; r < th_size(); r++) {
        for (int k = 0; k < 3; k++) {
            sum += row_of(r, step, k) == row ? input(1, (size_t)(k * DIM + j), r, step) : 0;
        }
    }
    return clip_rounded(m->value, (double)((float)sum / (float)th_size()));
}

static void give_rows(const run *u, int step) {
    const int64_t shape[2] = { 3, DIM };
    dtr_tensor *rows = NULL, *values = NULL;
    TH_IS(dtr_tensor_empty(th_world(), DTR_I64, cpu, DTR_MEM_DEFAULT, 1, shape, &rows), DTR_OK);
    TH_IS(dtr_tensor_empty(th_world(), u->m->value, cpu, DTR_MEM_DEFAULT, 2, shape, &values),
          DTR_OK);
    for (int k = 0; k < 3; k++) {
        ((int64_t *)dtr_tensor_data(rows))[k] = row_of(th_rank(), step, k);
        for (int j = 0; j < DIM; j++) {
            size_t at = (size_t)(k * DIM + j);
            th_set(dtr_tensor_data(values), u->m->value, at, input(1, at, th_rank(), step), 0);
        }
    }
    TH_IS(dtr_ddp_set_sparse_grad(u->ddp, u->n - 1, rows, values), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(u->ddp, u->n - 1, NULL), DTR_OK);
    dtr_tensor_release(rows);
    dtr_tensor_release(values);
}

/* Element k, counted row by row, of a tensor of any strides. */
static size_t place(const dtr_tensor *t, size_t i, size_t k) {
    const int64_t *strides = dtr_tensor_strides(t);
    int64_t columns = shapes[i][1];
    return (size_t)((int64_t)k / columns * strides[0] + (int64_t)k % columns * strides[1]);
}

void clip_backward(const run *u, int step, bool again) {
    for (size_t i = DENSE; i-- > 0;) {
        if (!uses(u->m, i, th_rank(), step)) {
            continue;
        }
        dtr_tensor *t = dtr_ddp_grad(u->ddp, i);
        TH_CHECK(t != NULL, "%s: %s", u->m->name, dtr_last_error_message());
        dtr_dtype d = t != NULL ? dtr_tensor_dtype(t) : DTR_F32;
        for (size_t k = 0; t != NULL && k < clip_numel(i); k++) {
            size_t at = place(t, i, k);
            double old = again ? th_get(dtr_tensor_data(t), d, at, false) : 0;
            th_set(dtr_tensor_data(t), d, at, old + input(i, k, th_rank(), step), 0);
        }
        if (!u->m->delayed || i < 3) {
            TH_IS(dtr_ddp_grad_ready(u->ddp, i, NULL), DTR_OK);
        }
    }
    if (u->m->rows) {
        give_rows(u, step);
    }
    TH_IS(dtr_ddp_backward_end(u->ddp, NULL), DTR_OK);
}

/* ---- a run ---- */

static dtr_tensor *made(dtr_dtype d, size_t i) {
    dtr_tensor *t = NULL;
    ck_assert_int_eq(dtr_tensor_empty(th_world(), d, cpu, DTR_MEM_DEFAULT, 2, shapes[i], &t),
                     DTR_OK);
    ck_assert_int_eq(dtr_tensor_fill(t, (double)(i + 1), NULL), DTR_OK);
    return t;
}

/* Gradients of the caller: the first transposed, the fifth with gaps between its elements. */
static void give_strided(run *u) {
    dtr_tensor *rows = NULL;
    const int64_t turned[2] = { shapes[0][1], shapes[0][0] }, gaps[2] = { 2 * shapes[GIVEN][1], 2 };
    size_t n = 2 * clip_numel(GIVEN);
    TH_IS(dtr_tensor_empty(th_world(), u->m->param, cpu, DTR_MEM_DEFAULT, 2, turned, &rows),
          DTR_OK);
    TH_IS(dtr_tensor_transpose(rows, 0, 1, &u->params[0].grad), DTR_OK);
    dtr_tensor_release(rows);
    u->memory = malloc(n * dtr_dtype_size(u->m->param));
    for (size_t k = 0; k < n; k++) {
        th_set(u->memory, u->m->param, k, 999, 0);
    }
    TH_IS(dtr_tensor_from_buffer(dtr_cpu(u->memory, n, u->m->param), 2, shapes[GIVEN], gaps, NULL,
                                 NULL, &u->params[GIVEN].grad),
          DTR_OK);
}

static dtr_ddp_options options_of(const mode *m) {
    static const size_t delayed[] = { 3, 4 };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 4096;
    o.first_bucket_bytes = 256;
    o.grad_as_bucket_view = m->view;
    o.static_graph = m->fixed;
    o.find_unused = m->dynamic;
    o.has_param_dtype = m->param != m->value;
    o.param_dtype = m->param;
    o.has_reduce_dtype = m->reduce != m->param;
    o.reduce_dtype = m->reduce;
    o.flags = m->flags;
    o.delayed = m->delayed ? delayed : NULL;
    o.n_delayed = m->delayed ? 2 : 0;
    o.has_delayed_trigger = m->delayed;
    o.delayed_trigger = 0; /* which backward reaches last */
    return o;
}

static void optimizer_new(run *u) {
    dtr_zero_options zo = DTR_ZERO_OPTIONS_INIT;
    dtr_optim_options oo = DTR_OPTIM_OPTIONS_INIT;
    oo.rate = rate;
    oo.max_norm = limit;
    zo.flags = u->m->zero_flags;
    if (u->m->who == BY_ZERO || u->m->who == BY_ZERO_OPTIM) {
        TH_OK(dtr_zero_create(u->ddp, &zo, &u->zero));
    }
    if (u->m->who == BY_OPTIM || u->m->who == BY_ZERO_OPTIM) {
        TH_OK(dtr_optim_create(u->ddp, u->zero, &oo, &u->optim));
    }
}

/* NEVER is listed where a mode allows that nobody uses it; its gradient holds what must not count.
 */
run clip_run_new(const mode *m) {
    static const char *const names[MOST] = { "p0",    "p1",     "p2",      "p3",    "p4",
                                             "never", "frozen", "ignored", "alias", "embedding" };
    run u = { .m = m, .n = ALIAS + 1 };
    for (size_t i = 0; i < MOST; i++) {
        bool dense = i < DENSE || (i == NEVER && (m->dynamic || m->fixed));
        u.params[i] = (dtr_param){ names[i], i == ALIAS ? u.params[0].value : made(m->value, i),
                                   NULL, dense ? 0 : DTR_PARAM_FROZEN };
        u.value[i] = malloc(clip_numel(i) * sizeof(double));
        for (size_t k = 0; k < clip_numel(i); k++) {
            u.value[i][k] = (double)(i + 1);
        }
    }
    u.params[IGNORED].flags = DTR_PARAM_IGNORED;
    u.params[ALIAS].flags = 0;
    u.params[EMBED].flags = DTR_PARAM_SPARSE;
    u.n += m->rows ? 1 : 0;
    if (m->strided) {
        give_strided(&u);
    }
    u.params[ALIAS].grad = u.params[0].grad;
    dtr_ddp_options o = options_of(m);
    TH_OK(dtr_ddp_create(th_group(), u.params, u.n, &o, &u.ddp));
    if (m->hook > 0) {
        TH_OK(dtr_ddp_register_builtin_hook(u.ddp, (dtr_ddp_builtin)(m->hook - 1), NULL));
    }
    if (m->dynamic || m->fixed) {
        TH_IS(dtr_tensor_fill(dtr_ddp_grad(u.ddp, NEVER), 1000, NULL), DTR_OK);
    }
    optimizer_new(&u);
    return u;
}

void clip_run_free(run *u) {
    TH_OK(dtr_optim_destroy(u->optim));
    TH_OK(dtr_zero_destroy(u->zero));
    TH_OK(dtr_ddp_destroy(u->ddp));
    for (size_t i = 0; i < MOST; i++) {
        dtr_tensor_release(i != ALIAS ? u->params[i].value : NULL);
        dtr_tensor_release(i != ALIAS ? u->params[i].grad : NULL);
        free(u->value[i]);
    }
    free(u->memory);
}

/* ---- steps ---- */

dtr_status clip_on_update(void *state, size_t first, dtr_buffer param, dtr_buffer grad) {
    (void)state;
    (void)first;
    for (size_t k = 0; k < param.count; k++) {
        double p = th_get(param.data, param.dtype, k, false);
        th_set(param.data, param.dtype, k, p - rate * th_get(grad.data, grad.dtype, k, false), 0);
    }
    return DTR_OK;
}

void clip_step_dense(const run *u) {
    for (size_t i = 0; i < DENSE; i++) {
        dtr_tensor *g = dtr_ddp_full_grad(u->ddp, i);
        void *p = dtr_tensor_data(u->params[i].value);
        for (size_t k = 0; g != NULL && k < clip_numel(i); k++) {
            double slope = th_get(dtr_tensor_data(g), u->m->value, place(g, i, k), false);
            th_set(p, u->m->value, k, th_get(p, u->m->value, k, false) - rate * slope, 0);
        }
    }
}

static void step_rows(const run *u) {
    dtr_tensor *rows = NULL, *values = NULL;
    void *p = dtr_tensor_data(u->params[EMBED].value);
    TH_IS(dtr_ddp_sparse_grad(u->ddp, u->n - 1, &rows, &values), DTR_OK);
    for (size_t k = 0; rows != NULL && k < dtr_tensor_numel(values); k++) {
        size_t at = (size_t)((int64_t *)dtr_tensor_data(rows))[k / DIM] * DIM + k % DIM;
        double slope = th_get(dtr_tensor_data(values), u->m->value, k, false);
        th_set(p, u->m->value, at, th_get(p, u->m->value, at, false) - rate * slope, 0);
    }
}

/* Clips and steps as a program of that mode would. The norm before. */
double clip_step_run(const run *u) {
    double norm = -1;
    if (u->m->upward && th_rank() % 2 == 0) { /* odd ranks round as ever */
        fesetround(FE_UPWARD);
    }
    if (u->optim != NULL) {
        TH_IS(dtr_ddp_clip_grad_norm(u->ddp, u->zero, 0, &norm), DTR_OK); /* only measures */
        TH_IS(dtr_optim_step(u->optim), DTR_OK);
    } else {
        TH_IS(dtr_ddp_clip_grad_norm(u->ddp, u->zero, limit, &norm), DTR_OK);
    }
    fesetround(FE_TONEAREST);
    if (u->m->who == BY_ZERO) {
        TH_IS(dtr_zero_step(u->zero, clip_on_update, NULL), DTR_OK);
        TH_IS(dtr_zero_wait(u->zero, SIZE_MAX), DTR_OK);
    } else if (u->m->who == BY_HAND) {
        clip_step_dense(u);
    }
    if (u->m->rows) {
        step_rows(u);
    }
    return norm;
}

/* What one rank does that has the mean. */
double clip_step_alone(const run *u, int step) {
    const mode *m = u->m;
    long double sum = 0;
    for (size_t i = 0; i < DENSE; i++) {
        for (size_t k = 0; k < clip_numel(i); k++) {
            long double g = (long double)clip_mean(m, i, k, step);
            sum += g * g;
        }
    }
    for (int row = 0; m->rows && row < ROWS; row++) {
        for (int j = 0; j < DIM; j++) {
            long double g = (long double)row_mean(m, row, j, step);
            sum += g * g;
        }
    }
    double norm = (double)sqrtl(sum), factor = norm > limit ? limit / norm : 1;
    for (size_t i = 0; i < DENSE; i++) {
        for (size_t k = 0; k < clip_numel(i); k++) {
            double g = clip_rounded(m->value, clip_mean(m, i, k, step) * factor);
            u->value[i][k] = clip_rounded(m->value, u->value[i][k] - rate * g);
        }
    }
    for (int at = 0; m->rows && at < ROWS * DIM; at++) {
        double g = clip_rounded(m->value, row_mean(m, at / DIM, at % DIM, step) * factor);
        u->value[EMBED][at] = clip_rounded(m->value, u->value[EMBED][at] - rate * g);
    }
    return norm;
}

void clip_check_values(const run *u, int step) {
    double unit = u->m->value == DTR_BF16 || u->m->value == DTR_F16 ? 1.0 / 128
                  : u->m->value == DTR_F64                          ? 1e-14
                                                                    : 1e-6;
    for (size_t i = 0; i < (u->m->rows ? MOST : ALIAS); i++) {
        for (size_t k = 0; k < clip_numel(i) && i != ALIAS; k++) {
            double want = u->value[i][k];
            double got = th_get(dtr_tensor_data(u->params[i].value), u->m->value, k, false);
            TH_CHECK(fabs(got - want) <= unit * (fabs(want) + 1),
                     "%s, step %d: p%zu[%zu] is %.12g, on one rank %.12g", u->m->name, step, i, k,
                     got, want);
        }
    }
    for (size_t k = 0; u->memory != NULL && k < 2 * clip_numel(GIVEN); k += 2) {
        TH_CHECK(th_get(u->memory, u->m->param, k + 1, false) == clip_rounded(u->m->param, 999),
                 "%s, step %d: a gap was written", u->m->name, step);
    }
}

/* Bits of `x` are the same on all ranks. */
static void check_same(double x, const char *name) {
    uint64_t mine, all[64] = { 0 };
    memcpy(&mine, &x, sizeof mine);
    th_gather_u64(mine, all);
    for (int r = 0; r < th_size(); r++) {
        TH_CHECK(all[r] == all[0], "%s: the norm is not the same on ranks 0 and %d", name, r);
    }
}

void clip_train(const mode *m, double *norms) {
    run u = clip_run_new(m);
    for (int step = 0; step < STEPS; step++) {
        if (m->accumulate) {
            TH_IS(dtr_ddp_set_sync(u.ddp, false), DTR_OK);
            clip_backward(&u, step, false);
            TH_IS(dtr_ddp_set_sync(u.ddp, true), DTR_OK);
        }
        clip_backward(&u, step, m->accumulate);
        double norm = clip_step_run(&u), want = clip_step_alone(&u, step);
        TH_CHECK(fabs(norm - want) <= 4e-16 * want, "%s, step %d: norm %.17g, on one rank %.17g",
                 m->name, step, norm, want);
        TH_CHECK((want > limit) == (step % 4 != 3), "steps with a limit and without: %g", want);
        check_same(norm, m->name);
        if (norms != NULL) { /* of float32, dense, nothing left out */
            TH_CHECK(norms[step] == 0 || norms[step] == norm,
                     "%s, step %d: norm %.17g, in other modes %.17g", m->name, step, norm,
                     norms[step]);
            norms[step] = norm;
        }
        clip_check_values(&u, step);
        TH_AGREE();
        TH_IS(dtr_ddp_grad_clear(u.ddp, SIZE_MAX), DTR_OK);
    }
    TH_IS(dtr_ddp_check_equal(u.ddp), DTR_OK);
    clip_run_free(&u);
}
