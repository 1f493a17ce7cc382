/* Mixed precision: parameters, gradients, buckets and buffers in other types than the caller's
 * (T68, X1-X9). */
#include <math.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"

enum { N = 4 };
static const size_t sizes[N] = { 5, 100, 1, 33 };

static dtr_tensor *make(dtr_dtype d, int64_t n, double value) {
    dtr_tensor *t = NULL;
    ck_assert_int_eq(
        dtr_tensor_empty(th_world(), d, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1, &n, &t),
        DTR_OK);
    ck_assert_int_eq(dtr_tensor_fill(t, value, NULL), DTR_OK);
    return t;
}

static double at(const dtr_tensor *t, size_t k) {
    return th_get(dtr_tensor_data(t), dtr_tensor_dtype(t), k, false);
}

/* What float32 sums, one division and one rounding to the bucket's type make of the ranks' values,
 * which are small integers. */
static double mean_in(dtr_dtype bucket, size_t i, size_t k, int step) {
    char rounded[16] = { 0 };
    th_set(rounded, bucket, 0, synth_mean(i, k, th_size(), step, th_size(), DTR_F32), 0);
    return th_get(rounded, bucket, 0, false);
}

static void write_low(dtr_ddp *ddp, size_t i, int step) {
    dtr_tensor *g = dtr_ddp_grad(ddp, i);
    for (size_t k = 0; g != NULL && k < dtr_tensor_numel(g); k++) {
        th_set(dtr_tensor_data(g), dtr_tensor_dtype(g), k, synth_input(i, k, th_rank(), step), 0);
    }
}

/* One step with forward: compute reads casts, writes casts, the caller gets its own type. */
static void mixed_step(dtr_ddp *ddp, const synth *s, dtr_dtype low, dtr_dtype bucket, int step) {
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    for (size_t i = 0; i < N; i++) {
        dtr_tensor *p = dtr_ddp_param(ddp, i, NULL);
        TH_CHECK(p != NULL && dtr_tensor_dtype(p) == low && p != s->params[i].value,
                 "parameter %zu is no cast copy", i);
        TH_CHECK(p == NULL || at(p, 0) == (double)(i + 1), "parameter %zu reads %g", i, at(p, 0));
    }
    TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    for (size_t i = N; i-- > 0;) {
        write_low(ddp, i, step);
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    for (size_t i = 0; i < N; i++) {
        dtr_tensor *full = dtr_ddp_full_grad(ddp, i), *g = dtr_ddp_grad(ddp, i);
        TH_CHECK(full != NULL && dtr_tensor_dtype(full) == DTR_F32, "full gradient %zu", i);
        TH_CHECK(g != NULL && dtr_tensor_dtype(g) == low, "gradient %zu", i);
        for (size_t k = 0; full != NULL && k < sizes[i]; k++) {
            TH_CHECK(at(full, k) == mean_in(bucket, i, k, step), "p%zu[%zu] is %.9g, want %.9g", i,
                     k, at(full, k), mean_in(bucket, i, k, step));
        }
        TH_CHECK(dtr_tensor_dtype(s->params[i].value) == DTR_F32, "parameter %zu was cast", i);
    }
    TH_CHECK(dtr_ddp_param(ddp, 0, NULL) == NULL, "the casts outlive the iteration");
    TH_MESSAGE("dtr_ddp_forward_begin");
    TH_AGREE();
}

/* X1, X2, X5: every combination of param_dtype and reduce_dtype, with and without views. */
START_TEST(combinations) {
    const dtr_dtype lows[] = { DTR_F16, DTR_BF16 };
    for (int c = 0; c < 2; c++) {
        for (int form = 0; form < 4; form++) { /* reduce_dtype: none, f32, low; view */
            synth s = synth_new(N, sizes, DTR_F32);
            dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
            o.has_param_dtype = true;
            o.param_dtype = lows[c];
            o.has_reduce_dtype = form == 1 || form == 2;
            o.reduce_dtype = form == 1 ? DTR_F32 : lows[c];
            o.grad_as_bucket_view = form == 3;
            o.bucket_cap_bytes = 300;
            dtr_ddp *ddp = ddp_new(&s, &o);
            dtr_dtype bucket = form == 1 ? DTR_F32 : lows[c];
            TH_ALL(dtr_plan_get_bucket(dtr_ddp_plan(ddp), 0)->dtype == bucket, "bucket type");
            for (int step = 0; step < 3; step++) {
                mixed_step(ddp, &s, lows[c], bucket, step);
            }
            TH_OK(dtr_ddp_destroy(ddp));
            synth_free(&s);
        }
    }
}
END_TEST

/* X5: the sum is divided before it is rounded. */
START_TEST(large) {
    size_t size = 40;
    synth s = synth_new(1, &size, DTR_F32);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.has_param_dtype = true;
    o.param_dtype = DTR_F16;
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_OK(dtr_tensor_fill(dtr_ddp_grad(ddp, 0), 60000, NULL));
    TH_OK(dtr_ddp_grad_ready(ddp, 0, NULL));
    TH_OK(dtr_ddp_backward_end(ddp, NULL));
    for (size_t k = 0; k < size; k++) {
        TH_CHECK(at(dtr_ddp_full_grad(ddp, 0), k) == 60000, "[%zu] is %g", k,
                 at(dtr_ddp_full_grad(ddp, 0), k));
    }
    TH_AGREE();
    /* X9: what does not fit is infinite on all ranks. */
    TH_OK(dtr_tensor_fill(dtr_ddp_grad(ddp, 0), th_rank() == 0 ? 70000 : 1, NULL));
    TH_OK(dtr_ddp_grad_ready(ddp, 0, NULL));
    TH_OK(dtr_ddp_backward_end(ddp, NULL));
    TH_ALL(isinf(at(dtr_ddp_full_grad(ddp, 0), 7)), "not infinite");
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* X2, T48: frozen, shared, ignored, integer and complex parameters; evaluation; LOCAL iterations.
 */
START_TEST(kinds) {
    dtr_tensor *w = make(DTR_F32, 7, 1.5), *z = make(DTR_C64, 3, 2), *fz = make(DTR_F32, 4, 3),
               *fi = make(DTR_I64, 2, 4), *ig = make(DTR_F32, 1 + th_rank(), 5);
    const dtr_param params[] = {
        { "w", w, NULL, 0 },
        { "z", z, NULL, 0 },
        { "fz", fz, NULL, DTR_PARAM_FROZEN },
        { "fi", fi, NULL, DTR_PARAM_FROZEN },
        { "ig", ig, NULL, DTR_PARAM_IGNORED },
        { "again", w, NULL, 0 },
    };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.has_param_dtype = true;
    o.param_dtype = DTR_BF16;
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(th_group(), params, 6, &o, &ddp));
    for (int round = 0; round < 3; round++) { /* synced, LOCAL, evaluation */
        TH_IS(dtr_ddp_set_sync(ddp, round != 1), DTR_OK);
        TH_IS(dtr_ddp_set_eval(ddp, round == 2), DTR_OK);
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK); /* the first one was dropped */
        TH_CHECK(dtr_ddp_param(ddp, 0, NULL) == dtr_ddp_param(ddp, 5, NULL), "two casts of one");
        TH_CHECK(at(dtr_ddp_param(ddp, 2, NULL), 3) == 3, "frozen");
        TH_CHECK(dtr_tensor_dtype(dtr_ddp_param(ddp, 2, NULL)) == DTR_BF16, "frozen ones are cast");
        TH_CHECK(dtr_ddp_param(ddp, 1, NULL) == z && dtr_ddp_param(ddp, 3, NULL) == fi,
                 "complex and integer values are the caller's");
        TH_CHECK(dtr_ddp_param(ddp, 4, NULL) == NULL, "ignored");
        TH_MESSAGE("'ig' (4) is ignored");
        TH_CHECK(dtr_ddp_param(ddp, 6, NULL) == NULL, "beyond the end");
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        if (round < 2) {
            TH_IS(dtr_tensor_fill(dtr_ddp_grad(ddp, 0), th_rank() + 1, NULL), DTR_OK);
            TH_IS(dtr_tensor_fill(dtr_ddp_grad(ddp, 1), th_rank() + 1, NULL), DTR_OK);
            TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_OK);
            TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        }
        TH_CHECK(dtr_ddp_param(ddp, 0, NULL) == NULL, "a cast is left");
        TH_CHECK(dtr_ddp_full_grad(ddp, 1) == dtr_ddp_grad(ddp, 1), "complex gradients have one");
        TH_CHECK(at(dtr_ddp_full_grad(ddp, 5), 6) == (th_size() + 1) / 2.0, "the average");
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_tensor *all[] = { w, z, fz, fi, ig };
    for (size_t k = 0; k < 5; k++) {
        dtr_tensor_release(all[k]);
    }
}
END_TEST

static dtr_status some_hook(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)state;
    (void)work;
    return dtr_ddp_bucket_set_result(b, dtr_ddp_bucket_buffer(b));
}

static dtr_status some_step(void *state, size_t i, dtr_tensor *value, dtr_tensor *grad, void *s) {
    (void)state;
    (void)i;
    (void)value;
    (void)grad;
    (void)s;
    return DTR_OK;
}

/* X8, and what create refuses. */
START_TEST(rules) {
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_ddp *ddp = NULL;
    size_t first = 0;
    o.has_param_dtype = true;
    o.param_dtype = DTR_I32;
    TH_STATUS(dtr_ddp_create(th_group(), s.params, N, &o, &ddp), DTR_ERR_DTYPE);
    o.param_dtype = DTR_F16;
    o.has_buffer_dtype = true;
    o.buffer_dtype = DTR_BOOL;
    TH_STATUS(dtr_ddp_create(th_group(), s.params, N, &o, &ddp), DTR_ERR_DTYPE);
    o.has_buffer_dtype = false;
    s.params[1].grad = s.params[1].value;
    TH_IS(dtr_ddp_create(th_group(), s.params, N, &o, &ddp), DTR_ERR_DTYPE);
    TH_MESSAGE("param_dtype is f16, its gradient f32");
    TH_AGREE();
    s.params[1].grad = NULL;
    o.grad_as_bucket_view = o.has_reduce_dtype = true;
    o.reduce_dtype = DTR_F32;
    TH_STATUS(dtr_ddp_create(th_group(), s.params, N, &o, &ddp), DTR_ERR_STATE);
    o.grad_as_bucket_view = o.has_reduce_dtype = false;
    o.param_dtype = th_rank() == 0 ? DTR_F16 : DTR_BF16;
    dtr_status s1 = dtr_ddp_create(th_group(), s.params, N, &o, &ddp);
    TH_ALL(th_size() == 1 || s1 == DTR_ERR_MISMATCH, "%s", dtr_status_name(s1));
    if (th_size() == 1) {
        TH_OK(dtr_ddp_destroy(ddp));
    }
    o.param_dtype = DTR_F16;
    ddp = ddp_new(&s, &o);
    TH_STATUS(dtr_ddp_register_hook(ddp, some_hook, NULL, "h"), DTR_ERR_STATE);
    TH_STATUS(dtr_ddp_set_step(ddp, some_step, NULL, &first, 1), DTR_ERR_STATE);
    TH_OK(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_ALLREDUCE, NULL));
    mixed_step(ddp, &s, DTR_F16, DTR_F16, 2);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* X7, P3 */
START_TEST(buffers) {
    dtr_tensor *mean = make(DTR_F64, 6, th_rank() + 0.5), *count = make(DTR_I64, 1, th_rank()),
               *none = make(DTR_F32, 2, th_rank()), *half = make(DTR_F16, 3, th_rank());
    const dtr_param list[] = { { "mean", mean, NULL, 0 },
                               { "count", count, NULL, 0 },
                               { "none", none, NULL, DTR_PARAM_IGNORED },
                               { "half", half, NULL, 0 } };
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.buffers = list;
    o.n_buffers = 4;
    o.has_buffer_dtype = true;
    o.buffer_dtype = DTR_F16;
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_CHECK(dtr_tensor_dtype(mean) == DTR_F16 && at(mean, 5) == 0.5,
             "mean is not rank 0's in f16");
    TH_CHECK(dtr_tensor_dtype(count) == DTR_I64 && at(count, 0) == 0, "count");
    TH_CHECK(dtr_tensor_dtype(none) == DTR_F32 && at(none, 1) == th_rank(), "ignored");
    TH_IS(dtr_tensor_fill(mean, th_rank() + 2, NULL), DTR_OK);
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_CHECK(at(mean, 0) == 2, "mean is %g after a forward pass", at(mean, 0));
    dtr_tensor *wide = make(DTR_F64, 6, 0);
    TH_IS(dtr_ddp_set_buffer(ddp, 0, wide), DTR_ERR_DTYPE);
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    TH_ALL(dtr_tensor_dtype(mean) == DTR_F16 && at(mean, 5) == 2, "gone with the module");
    dtr_tensor *all[] = { mean, count, none, half, wide };
    for (size_t k = 0; k < 5; k++) {
        dtr_tensor_release(all[k]);
    }
    synth_free(&s);
}
END_TEST

static void add_tests(Suite *s) {
    TCase *tc = th_case(s, "mixed precision", 100);
    th_add(tc, combinations, 0, 0);
    th_add(tc, large, 0, 0);
    th_add(tc, kinds, 0, 0);
    th_add(tc, rules, 0, 0);
    th_add(tc, buffers, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_mixed", add_tests);
}
