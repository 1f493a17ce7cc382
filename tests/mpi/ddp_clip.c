/* Clipping by the norm of the averages (SH4, X5, H8, U5, S2, D1): in every mode parameters follow a
 * run of one rank that has the mean gradient, and the norm has the same bits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp_clip_model.h"

#define F32 DTR_F32, DTR_F32, DTR_F32
static const mode same_sums[] = {
    { "plain", BY_HAND, F32 },
    { "view", BY_HAND, F32, .view = true },
    { "strides", BY_HAND, F32, .strided = true },
    { "static", BY_HAND, F32, .fixed = true },
    { "static, view", BY_HAND, F32, .fixed = true, .view = true },
    { "one by one", BY_HAND, F32, .flags = DTR_DDP_PER_PARAM },
    { "delayed", BY_HAND, F32, .delayed = true },
    { "hook", BY_HAND, F32, .hook = DTR_HOOK_ALLREDUCE + 1 },
    { "optim", BY_OPTIM, F32 },
    { "optim, view", BY_OPTIM, F32, .view = true },
    { "optim, strides", BY_OPTIM, F32, .strided = true },
    { "upward", BY_HAND, F32, .upward = true },
    { "zero, upward", BY_ZERO_OPTIM, F32, .upward = true },
    { "zero", BY_ZERO, F32 },
    { "zero, view", BY_ZERO, F32, .view = true },
    { "zero, strides", BY_ZERO, F32, .strided = true },
    { "zero, overlap", BY_ZERO, F32, .zero_flags = DTR_ZERO_OVERLAP },
    { "zero, static", BY_ZERO, F32, .fixed = true },
    { "zero, static, view", BY_ZERO, F32, .fixed = true, .view = true },
    { "zero, optim", BY_ZERO_OPTIM, F32 },
    { "zero, optim, view", BY_ZERO_OPTIM, F32, .view = true },
};

/* Bits of the norm do not depend on the mode, nor on who holds which slice. */
START_TEST(same_bits) {
    double norms[STEPS] = { 0 };
    for (size_t k = 0; k < sizeof same_sums / sizeof same_sums[0]; k++) {
        clip_train(&same_sums[k], norms);
    }
}
END_TEST

START_TEST(other_gradients) {
    static const mode all[] = {
        { "unused", BY_HAND, F32, .dynamic = true },
        { "unused, view", BY_HAND, F32, .dynamic = true, .view = true },
        { "optim, unused", BY_OPTIM, F32, .dynamic = true },
        { "rows", BY_HAND, F32, .rows = true },
        { "rows, view", BY_HAND, F32, .rows = true, .view = true },
        { "accumulated", BY_HAND, F32, .accumulate = true },
        { "zero, accumulated", BY_ZERO, F32, .accumulate = true },
        { "f64", BY_HAND, DTR_F64, DTR_F64, DTR_F64 },
        { "zero, f64", BY_ZERO, DTR_F64, DTR_F64, DTR_F64 },
    };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        clip_train(&all[k], NULL);
    }
}
END_TEST

START_TEST(mixed) {
    static const mode all[] = {
        { "bf16", BY_HAND, DTR_BF16, DTR_BF16, DTR_BF16 },
        { "param bf16", BY_HAND, DTR_F32, DTR_BF16, DTR_BF16 },
        { "param bf16, view", BY_HAND, DTR_F32, DTR_BF16, DTR_BF16, .view = true },
        { "param f16, reduce f32", BY_HAND, DTR_F32, DTR_F16, DTR_F32 },
        { "reduce bf16", BY_HAND, DTR_F32, DTR_F32, DTR_BF16 },
        { "optim, param bf16", BY_OPTIM, DTR_F32, DTR_BF16, DTR_BF16 },
        { "zero, bf16", BY_ZERO, DTR_BF16, DTR_BF16, DTR_BF16 },
        { "zero, param bf16", BY_ZERO, DTR_F32, DTR_BF16, DTR_BF16 },
        { "zero, param bf16, view", BY_ZERO, DTR_F32, DTR_BF16, DTR_BF16, .view = true },
        { "zero, param bf16, strides", BY_ZERO, DTR_F32, DTR_BF16, DTR_BF16, .strided = true },
        { "zero, param f16, reduce f32", BY_ZERO, DTR_F32, DTR_F16, DTR_F32 },
        { "zero, reduce bf16", BY_ZERO, DTR_F32, DTR_F32, DTR_BF16 },
        { "zero, bf16, reduce f32", BY_ZERO, DTR_BF16, DTR_BF16, DTR_F32 },
        { "zero, param f32, view", BY_ZERO, DTR_BF16, DTR_F32, DTR_F32, .view = true },
        { "zero, optim, param bf16", BY_ZERO_OPTIM, DTR_F32, DTR_BF16, DTR_BF16 },
    };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        clip_train(&all[k], NULL);
    }
}
END_TEST

/* A program that scales the gradients it sees, each element by itself, is heard in every mode. */
START_TEST(scaled_by_hand) {
    static const mode all[] = {
        { "plain", BY_HAND, F32 },
        { "zero", BY_ZERO, F32 },
        { "zero, view", BY_ZERO, F32, .view = true },
        { "zero, strides", BY_ZERO, F32, .strided = true },
        { "zero, param bf16", BY_ZERO, DTR_F32, DTR_BF16, DTR_BF16 },
        { "zero, reduce bf16", BY_ZERO, DTR_F32, DTR_F32, DTR_BF16 },
    };
    for (size_t c = 0; c < sizeof all / sizeof all[0]; c++) {
        run u = clip_run_new(&all[c]);
        for (int step = 0; step < 3; step++) {
            clip_backward(&u, step, false);
            for (size_t i = 0; i < DENSE; i++) {
                TH_IS(dtr_tensor_scale(dtr_ddp_full_grad(u.ddp, i), 0.25, NULL), DTR_OK);
                for (size_t k = 0; k < clip_numel(i); k++) {
                    u.value[i][k] = clip_rounded(
                        DTR_F32, u.value[i][k] - rate * 0.25 * clip_mean(&all[c], i, k, step));
                }
            }
            if (all[c].who == BY_ZERO) {
                TH_IS(dtr_zero_step(u.zero, clip_on_update, NULL), DTR_OK);
            } else {
                clip_step_dense(&u);
            }
            clip_check_values(&u, step);
            TH_AGREE();
        }
        clip_run_free(&u);
    }
}
END_TEST

/* ---- what cannot be scaled ---- */

/* The last rank's element is no number: nothing changes anywhere, and the next step is good. */
static void spoil(const mode *m, double strange, const char *words) {
    run u = clip_run_new(m);
    double norm = 77;
    for (size_t i = DENSE; i-- > 0;) {
        dtr_tensor *t = dtr_ddp_grad(u.ddp, i);
        TH_IS(dtr_tensor_fill(t, 1, NULL), DTR_OK);
        if (i == 3 && th_rank() == th_size() - 1) {
            th_set(dtr_tensor_data(t), m->param, 517, strange, 0);
        }
        TH_IS(dtr_ddp_grad_ready(u.ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(u.ddp, NULL), DTR_OK);
    TH_IS(dtr_ddp_clip_grad_norm(u.ddp, u.zero, 1, &norm), DTR_ERR_NAN);
    TH_MESSAGE("'p3' (3)");
    TH_MESSAGE(words);
    TH_CHECK(norm == 77, "the norm was written: %g", norm);
    if (u.optim != NULL) {
        TH_IS(dtr_optim_step(u.optim), DTR_ERR_NAN);
        TH_MESSAGE("dtr_optim_step");
        TH_CHECK(dtr_optim_steps(u.optim) == 0, "the step was counted");
    }
    clip_check_values(&u, -1);
    TH_AGREE();
    TH_IS(dtr_ddp_grad_clear(u.ddp, SIZE_MAX), DTR_OK);
    clip_backward(&u, 1, false);
    (void)clip_step_run(&u);
    (void)clip_step_alone(&u, 1);
    clip_check_values(&u, 1);
    TH_AGREE();
    clip_run_free(&u);
}

START_TEST(not_finite) {
    static const mode all[] = {
        { "plain", BY_HAND, F32 },
        { "optim", BY_OPTIM, F32 },
        { "zero", BY_ZERO, F32 },
        { "zero, optim", BY_ZERO_OPTIM, F32 },
        { "f64", BY_HAND, DTR_F64, DTR_F64, DTR_F64 },
        { "zero, bf16", BY_ZERO, DTR_BF16, DTR_BF16, DTR_BF16 },
    };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        spoil(&all[k], (double)NAN, "1 NaN and 0 infinite");
        spoil(&all[k], (double)-INFINITY, "0 NaN and 1 infinite");
    }
}
END_TEST

static dtr_status on_step(void *state, size_t i, dtr_tensor *value, dtr_tensor *grad,
                          void *stream) {
    (void)state;
    (void)i;
    (void)value;
    (void)grad;
    (void)stream;
    return DTR_OK;
}

START_TEST(refused) {
    static const mode plain = { "plain", BY_HAND, F32 }, sharded = { "zero", BY_ZERO, F32 };
    static const size_t first[] = { 0 };
    run a = clip_run_new(&plain), b = clip_run_new(&sharded);
    double norm = 77;
    TH_IS(dtr_ddp_clip_grad_norm(NULL, NULL, 1, &norm), DTR_ERR_ARG);
    TH_IS(dtr_ddp_clip_grad_norm(a.ddp, NULL, 1, &norm), DTR_ERR_STATE);
    TH_MESSAGE("there are no averages");
    clip_backward(&a, 0, false);
    clip_backward(&b, 0, false);
    TH_IS(dtr_ddp_clip_grad_norm(a.ddp, NULL, -1, &norm), DTR_ERR_ARG);
    TH_MESSAGE("max_norm is -1");
    TH_IS(dtr_ddp_clip_grad_norm(a.ddp, NULL, (double)NAN, &norm), DTR_ERR_ARG);
    TH_IS(dtr_ddp_clip_grad_norm(a.ddp, b.zero, 1, &norm), DTR_ERR_ARG);
    TH_MESSAGE("not sharded");
    TH_IS(dtr_ddp_clip_grad_norm(b.ddp, NULL, 1, &norm), DTR_ERR_ARG);
    TH_MESSAGE("give its dtr_zero");
    if (th_size() > 1) {
        TH_IS(dtr_ddp_clip_grad_norm(b.ddp, b.zero, th_rank() == 1 ? 2 : 1, &norm),
              DTR_ERR_MISMATCH);
        TH_MESSAGE("max_norm");
    }
    TH_CHECK(norm == 77, "a failure wrote %g", norm);
    TH_IS(dtr_ddp_clip_grad_norm(b.ddp, b.zero, (double)INFINITY, &norm), DTR_OK);
    TH_CHECK(norm > limit, "norm %g", norm);
    TH_IS(dtr_ddp_clip_grad_norm(b.ddp, b.zero, limit, NULL), DTR_OK);
    TH_IS(dtr_ddp_clip_grad_norm(b.ddp, b.zero, limit, &norm), DTR_OK); /* clipped already */
    TH_CHECK(fabs(norm - limit) < 1e-5 * limit, "clipped to %g", norm);
    TH_IS(dtr_zero_step(b.zero, clip_on_update, NULL), DTR_OK);
    TH_IS(dtr_ddp_clip_grad_norm(b.ddp, b.zero, 1, &norm), DTR_ERR_STATE);
    TH_IS(dtr_ddp_set_sync(a.ddp, false), DTR_OK);
    clip_backward(&a, 0, false);
    TH_IS(dtr_ddp_clip_grad_norm(a.ddp, NULL, 1, &norm), DTR_ERR_STATE);
    TH_MESSAGE("with sync");
    TH_IS(dtr_ddp_set_sync(a.ddp, true), DTR_OK);
    TH_IS(dtr_ddp_forward_begin(a.ddp), DTR_OK);
    TH_IS(dtr_ddp_clip_grad_norm(a.ddp, NULL, 1, &norm), DTR_ERR_STATE);
    TH_IS(dtr_ddp_forward_end(a.ddp, NULL, 0), DTR_OK);
    clip_backward(&a, 0, false);
    TH_IS(dtr_ddp_set_step(a.ddp, on_step, NULL, first, 1), DTR_OK);
    TH_IS(dtr_ddp_clip_grad_norm(a.ddp, NULL, 1, &norm), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("dtr_ddp_set_step");
    TH_AGREE();
    clip_run_free(&a);
    clip_run_free(&b);
}
END_TEST

/* ---- the sum itself ---- */

/* The norm of one parameter of W slices that all ranks fill alike. */
static double norm_of(dtr_dtype d, size_t n, const double *re, const double *im, bool shard) {
    const int64_t shape = (int64_t)n;
    dtr_param p = { .name = "p" };
    dtr_ddp *ddp = NULL;
    dtr_zero *z = NULL;
    double norm = -1;
    TH_OK(dtr_tensor_empty(th_world(), d, cpu, DTR_MEM_DEFAULT, 1, &shape, &p.value));
    TH_IS(dtr_tensor_fill(p.value, 0, NULL), DTR_OK);
    TH_OK(dtr_ddp_create(th_group(), &p, 1, NULL, &ddp));
    if (shard) {
        TH_OK(dtr_zero_create(ddp, NULL, &z));
    }
    for (size_t k = 0; k < n; k++) {
        th_set(dtr_tensor_data(dtr_ddp_grad(ddp, 0)), d, k, re[k], im != NULL ? im[k] : 0);
    }
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    for (size_t k = 0; !shard && k < n; k++) { /* averages of 3 ranks may round */
        th_set(dtr_tensor_data(dtr_ddp_grad(ddp, 0)), d, k, re[k], im != NULL ? im[k] : 0);
    }
    TH_IS(dtr_ddp_clip_grad_norm(ddp, z, 0, &norm), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_zero_destroy(z));
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_tensor_release(p.value);
    return norm;
}

START_TEST(sums) {
    enum { N = 200000 };
    const double ends[4] = { 3 * ldexp(1, 700), ldexp(1, 702), 1e-200, 0 },
                 low[2] = { 3e-320, 4e-320 }, tiny[2] = { 3 * ldexp(1, -149), 4 * ldexp(1, -149) },
                 large[2] = { 3 * ldexp(1, 125), ldexp(1, 127) },
                 swamped[3] = { 1, ldexp(1, -60), ldexp(1, -100) };
    double got = norm_of(DTR_F64, 4, ends, NULL, false);
    TH_CHECK(got == 5 * ldexp(1, 700), "squares beyond a double: %.17g", got);
    got = norm_of(DTR_F64, 2, low, NULL, false);
    TH_CHECK(fabs(got - 5e-320) < 1e-323, "squares below a double: %.17g", got);
    got = norm_of(DTR_F32, 2, tiny, NULL, false);
    TH_CHECK(got == 5 * ldexp(1, -149), "subnormal floats: %.17g", got);
    got = norm_of(DTR_F32, 2, large, NULL, false);
    TH_CHECK(got == 5 * ldexp(1, 125), "squares beyond a float: %.17g", got);
    got = norm_of(DTR_F64, 3, swamped, NULL, false);
    TH_CHECK(got == 1, "small beside large: %.17g", got);
    const double three[2] = { 3, 0 }, four[2] = { 4, 0 };
    TH_CHECK(norm_of(DTR_C64, 2, three, four, false) == 5, "c64");
    TH_CHECK(norm_of(DTR_C128, 2, three, four, true) == 5, "c128");
    TH_CHECK(norm_of(DTR_F16, 2, three, four, true) == 3, "f16");
    /* More equal terms than one table of sums takes at a time, and one that rounding would lose. */
    double *x = malloc(N * sizeof *x), one = 2 - ldexp(1, -15);
    for (size_t k = 0; k < N; k++) {
        x[k] = one;
    }
    x[N - 1] = ldexp(1, -20);
    got = norm_of(DTR_F32, N, x, NULL, false);
    double want = (double)sqrtl((N - 1) * (long double)one * (long double)one + ldexpl(1, -40));
    TH_CHECK(got == want, "%.17g, want %.17g", got, want);
    x[N - 1] = one;
    got = norm_of(DTR_F32, N, x, NULL, true);
    TH_CHECK(got == sqrt(N * one * one), "%.17g in slices, want %.17g", got, sqrt(N * one * one));
    TH_AGREE();
    free(x);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp clip", 200);
    th_add(tc, same_bits, 0, 0);
    th_add(tc, other_gradients, 0, 0);
    th_add(tc, mixed, 0, 0);
    th_add(tc, scaled_by_hand, 0, 0);
    th_add(tc, not_finite, 0, 0);
    th_add(tc, refused, 0, 0);
    th_add(tc, sums, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_clip", make);
}
