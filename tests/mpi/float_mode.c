/* Results have the same bits whatever floating-point mode a program has set, in whichever thread
 * they are made (COL3, COL45). */
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/loss_scale.h>
#include <dtr/tensor.h>

#include "ddp_models.h"
#include "harness.h"

enum { N = 1 << 20 };

/* ---- modes ---- */

typedef struct mode {
    const char *name;
    int rounding;
    bool flush, traps;
} mode;

static const mode modes[] = {
    { "flush to zero", FE_TONEAREST, true, false },
    { "upward", FE_UPWARD, false, false },
    { "toward zero, flushed", FE_TOWARDZERO, true, false },
    { "with traps", FE_TONEAREST, false, true },
};
enum { N_MODES = sizeof modes / sizeof modes[0] };

/* Without the flags. */
static uint64_t register_now(void) {
#if defined(__x86_64__)
    uint32_t csr;
    __asm__ volatile("stmxcsr %0" : "=m"(csr));
    return csr & ~UINT32_C(0x3f);
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
#else
    return (uint64_t)fegetround();
#endif
}

static void flush_denormals(void) {
#if defined(__x86_64__)
    uint32_t csr = (uint32_t)register_now() | 0x8040;
    __asm__ volatile("ldmxcsr %0" : : "m"(csr));
#elif defined(__aarch64__)
    uint64_t fpcr = register_now() | (UINT64_C(1) << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
#endif
}

static void enter(const mode *m) {
    feclearexcept(FE_ALL_EXCEPT);
    fesetround(m->rounding);
    if (m->flush) {
        flush_denormals();
    }
    if (m->traps) {
        feenableexcept(FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW | FE_DIVBYZERO);
    }
}

static void leave(void) {
    fesetenv(FE_DFL_ENV);
}

/* ---- collectives ---- */

/* Denormals of both signs, numbers whose sums round, and a few that overflow and cancel. */
static void fill(float *x, int rank) {
    for (size_t k = 0; k < N; k++) {
        uint32_t bits = (uint32_t)(k * 2654435761u + (uint32_t)rank * 40503u);
        bits = k % 3 == 0 ? (bits & 0x807fffff) : (bits & 0xbfffffff) % 0x7f000000;
        memcpy(&x[k], &bits, sizeof bits);
        if (k % 1024 == 7) {
            x[k] = rank % 2 == 0 ? INFINITY : -INFINITY;
        }
    }
}

/* A NaN has whatever sign and payload. */
static size_t first_difference(const float *a, const float *b, size_t n) {
    for (size_t k = 0; k < n; k++) {
        if (memcmp(&a[k], &b[k], sizeof a[k]) != 0 && !(isnan(a[k]) && isnan(b[k]))) {
            return k;
        }
    }
    return n;
}

static void allreduce(float *x, float *y, size_t n, dtr_dtype d, dtr_op op, bool blocking) {
    dtr_work *w = NULL;
    dtr_buffer in = dtr_cpu(x, n, d), out = dtr_cpu(y, n, d);
    TH_IS(dtr_allreduce(th_group(), in, out, op, NULL, blocking ? NULL : &w), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
}

static void compare_modes(dtr_dtype d, dtr_op op, size_t n) {
    float *x = malloc(N * sizeof *x), *want = calloc(N, sizeof *want), *y = calloc(N, sizeof *y);
    fill(x, th_rank());
    allreduce(x, want, n, d, op, true);
    for (int i = 0; i < N_MODES; i++) {
        for (int way = 0; way < 2; way++) { /* then the other way round */
            enter(&modes[i]);
            const uint64_t before = register_now();
            allreduce(x, y, n, d, op, (th_rank() + way) % 2 == 0);
            const uint64_t after = register_now();
            leave();
            TH_CHECK(before == after, "%s: the mode was 0x%llx and is 0x%llx", modes[i].name,
                     (unsigned long long)before, (unsigned long long)after);
            size_t words = n * dtr_dtype_size(d) / sizeof *y;
            size_t k = d == DTR_F32                              ? first_difference(y, want, words)
                       : memcmp(y, want, words * sizeof *y) == 0 ? words
                                                                 : 0;
            TH_CHECK(k == words, "%s: element %zu is %a, not %a", modes[i].name, k, (double)y[k],
                     (double)want[k]);
        }
    }
    TH_AGREE();
    free(x);
    free(want);
    free(y);
}

START_TEST(sums_of_denormals) {
    compare_modes(DTR_F32, DTR_SUM, N);
}
END_TEST

START_TEST(averages_of_16_bits) {
    compare_modes(DTR_BF16, DTR_AVG, N);
    compare_modes(DTR_F16, DTR_SUM, N);
}
END_TEST

/* ---- exact sums ---- */

/* Which numbers an array has. Of the tiny ones no square is left, so that they are scaled; those
 * that are the largest come last, and behind a whole number of vectors. */
typedef enum numbers { DENORMAL, TINY, HUGE_ONES, ORDINARY, WITH_NAN, N_NUMBERS } numbers;

static void fill_doubles(double *x, size_t n, numbers which, int rank) {
    for (size_t k = 0; k < n; k++) {
        const double some = (double)((k * 2654435761u + (uint32_t)rank * 40503u) % 1000003 + 1);
        x[k] = which == DENORMAL    ? some * 0x1p-1074
               : which == TINY      ? (k == n - 1 ? some * 0x1p-1060 : some * 0x1p-1070)
               : which == HUGE_ONES ? some * 0x1p990
                                    : (k % 7 == 0 ? some * 0x1p-1074 : some / 3);
        x[k] = k % 2 == 0 ? x[k] : -x[k];
    }
    if (which == WITH_NAN && rank == 0) {
        x[n / 2] = NAN;
    }
}

/* Every rank in another mode, or in none. */
static void exactly(const double *x, size_t n, numbers which, bool moded, double got[3]) {
    static const char *const name[] = { "dtr_sum", "dtr_dot", "dtr_norm2" };
    const dtr_buffer b = dtr_cpu_in(x, n, DTR_F64);
    const int m = (th_rank() + (int)n) % (N_MODES + 1); /* N_MODES: the one it begins with */
    dtr_status s[3];
    if (moded && m < N_MODES) {
        enter(&modes[m]);
    }
    const uint64_t before = register_now();
    s[0] = dtr_sum(th_group(), b, NULL, &got[0]);
    s[1] = dtr_dot(th_group(), b, b, NULL, &got[1]);
    s[2] = dtr_norm2(th_group(), b, NULL, &got[2]);
    const uint64_t after = register_now();
    leave();
    TH_CHECK(before == after, "the mode was 0x%llx and is 0x%llx", (unsigned long long)before,
             (unsigned long long)after);
    for (int k = 0; k < 3; k++) {
        TH_CHECK(s[k] == DTR_OK, "%s of numbers %d gave %s: %s", name[k], (int)which,
                 dtr_status_name(s[k]), dtr_last_error_message());
    }
}

START_TEST(exact_sums) {
    double x[67];
    for (int which = 0; which < N_NUMBERS; which++) {
        for (size_t n = 61; n <= 67; n++) {
            double want[3] = { 0 }, got[3] = { 0 };
            fill_doubles(x, n, (numbers)which, th_rank());
            exactly(x, n, (numbers)which, false, want);
            exactly(x, n, (numbers)which, true, got);
            for (int k = 0; k < 3; k++) {
                TH_CHECK(memcmp(&got[k], &want[k], sizeof want[k]) == 0 ||
                             (isnan(got[k]) && isnan(want[k])),
                         "%zu numbers %d, result %d: %a, not %a", n, which, k, got[k], want[k]);
            }
        }
        TH_AGREE();
    }
}
END_TEST

/* Short calls from one place, which take the short way. */
static __attribute__((noinline)) dtr_status sum_few(float *x, float *y) {
    return dtr_allreduce(th_group(), dtr_cpu(x, 2, DTR_F32), dtr_cpu(y, 2, DTR_F32), DTR_SUM, NULL,
                         NULL);
}

START_TEST(short_calls) {
    const float tiny = 0x1p-140f;
    float want = tiny * (float)th_size();
    for (int i = 0; i < 40; i++) {
        float x[2] = { tiny, 1 }, y[2] = { 0 };
        const mode *m = &modes[i % N_MODES];
        enter(m);
        const uint64_t before = register_now();
        dtr_status s = sum_few(x, y);
        const uint64_t after = register_now();
        leave();
        TH_IS(s, DTR_OK);
        TH_CHECK(before == after, "call %d: the mode was 0x%llx and is 0x%llx", i,
                 (unsigned long long)before, (unsigned long long)after);
        TH_CHECK(memcmp(&y[0], &want, sizeof want) == 0, "call %d, %s: %a, not %a", i, m->name,
                 (double)y[0], (double)want);
    }
    TH_AGREE();
}
END_TEST

/* ---- what one rank computes ---- */

static void compute(const mode *m, double *norm, float *f, int64_t *i, uint16_t *half) {
    static const int64_t shape[1] = { 1024 };
    dtr_tensor *a = NULL, *b = NULL, *c = NULL, *h = NULL;
    const dtr_device cpu = { DTR_CPU, 0 };
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, cpu, DTR_MEM_DEFAULT, 1, shape, &a), DTR_OK);
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, cpu, DTR_MEM_DEFAULT, 1, shape, &b), DTR_OK);
    TH_IS(dtr_tensor_empty(th_world(), DTR_I64, cpu, DTR_MEM_DEFAULT, 1, shape, &c), DTR_OK);
    TH_IS(dtr_tensor_empty(th_world(), DTR_BF16, cpu, DTR_MEM_DEFAULT, 1, shape, &h), DTR_OK);
    for (int k = 0; k < 1024; k++) {
        ((float *)dtr_tensor_data(a))[k] = 0x1p-130f + (float)k * 0x1p-149f;
        ((float *)dtr_tensor_data(b))[k] = 1.0f + (float)k * 0x1p-20f;
        ((int64_t *)dtr_tensor_data(c))[k] = 1000000007LL * k * k;
    }
    if (m != NULL) {
        enter(m);
    }
    const dtr_status s[] = { dtr_tensor_axpy(b, 0.1, a, NULL), dtr_tensor_scale(a, 0.3, NULL),
                             dtr_tensor_scale(c, 0.3, NULL), dtr_tensor_copy(h, b, NULL),
                             dtr_tensor_norm(b, NULL, norm) };
    leave();
    for (int k = 0; k < 5; k++) {
        TH_CHECK(s[k] == DTR_OK, "call %d gave %s", k, dtr_status_name(s[k]));
    }
    memcpy(f, dtr_tensor_data(a), 1024 * sizeof *f);
    memcpy(f + 1024, dtr_tensor_data(b), 1024 * sizeof *f);
    memcpy(i, dtr_tensor_data(c), 1024 * sizeof *i);
    memcpy(half, dtr_tensor_data(h), 1024 * sizeof *half);
    dtr_tensor_release(a);
    dtr_tensor_release(b);
    dtr_tensor_release(c);
    dtr_tensor_release(h);
}

START_TEST(tensors) {
    static float f[2][2048];
    static int64_t i[2][1024];
    static uint16_t h[2][1024];
    double norm[2];
    compute(NULL, &norm[0], f[0], i[0], h[0]);
    for (int m = 0; m < N_MODES; m++) {
        compute(&modes[m], &norm[1], f[1], i[1], h[1]);
        TH_CHECK(memcmp(f[0], f[1], sizeof f[0]) == 0, "%s: scale or axpy", modes[m].name);
        TH_CHECK(memcmp(i[0], i[1], sizeof i[0]) == 0, "%s: scale of i64", modes[m].name);
        TH_CHECK(memcmp(h[0], h[1], sizeof h[0]) == 0, "%s: conversion", modes[m].name);
        TH_CHECK(memcmp(&norm[0], &norm[1], sizeof norm[0]) == 0, "%s: the norm is %a, not %a",
                 modes[m].name, norm[1], norm[0]);
    }
    TH_AGREE();
}
END_TEST

/* ---- training ---- */

static void everywhere(const void *data, size_t nbytes, const char *what) {
    uint64_t hash = 14695981039346656037u, all[64];
    for (size_t k = 0; k < nbytes; k++) {
        hash = (hash ^ ((const unsigned char *)data)[k]) * 1099511628211u;
    }
    th_gather_u64(hash, all);
    TH_ALL(all[th_rank()] == all[0], "%s differs from rank 0's", what);
}

/* Each rank in another mode, without traps. */
static void enter_own(void) {
    enter(&modes[th_rank() % (N_MODES - 1)]);
}

/* Ranks in different modes keep equal parameters. */
static void train(const dtr_ddp_options *o, dtr_ddp_builtin hook, bool hooked) {
    static const size_t sizes[3] = { 1000, 17, 4096 };
    synth s = synth_new(3, sizes, DTR_F32);
    dtr_ddp *ddp = ddp_new(&s, o);
    dtr_optim *optim = NULL;
    dtr_optim_options oo = DTR_OPTIM_OPTIONS_INIT;
    oo.rule = DTR_OPTIM_ADAMW;
    oo.weight_decay = 0.01;
    if (hooked) {
        dtr_hook_options ho = DTR_HOOK_OPTIONS_INIT;
        ho.start_iteration = 2;
        TH_OK(dtr_ddp_register_builtin_hook(ddp, hook, &ho));
    }
    TH_OK(dtr_optim_create(ddp, NULL, &oo, &optim));
    for (int step = 0; step < 4; step++) {
        TH_OK(dtr_ddp_forward_begin(ddp));
        TH_OK(dtr_ddp_forward_end(ddp, NULL, 0));
        for (size_t i = s.n; i-- > 0;) {
            float *g = grad_of(ddp, i);
            for (size_t k = 0; k < sizes[i]; k++) {
                g[k] = (float)(th_rank() + 1) * 0x1p-135f * (float)(k % 13 + 1) +
                       (k % 5 == 0 ? 0.1f / (float)(k + 1) : 0);
            }
        }
        enter_own();
        dtr_status status = DTR_OK;
        for (size_t i = s.n; i-- > 0 && status == DTR_OK;) {
            status = dtr_ddp_grad_ready(ddp, i, NULL);
        }
        status = status == DTR_OK ? dtr_ddp_backward_end(ddp, NULL) : status;
        status = status == DTR_OK ? dtr_optim_step(optim) : status;
        leave();
        TH_OK(status);
    }
    for (size_t i = 0; i < s.n; i++) {
        everywhere(dtr_tensor_data(s.params[i].value), sizes[i] * sizeof(float), "a parameter");
    }
    TH_OK(dtr_optim_destroy(optim));
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}

START_TEST(training) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    train(&o, DTR_HOOK_Q8, false);
    train(&o, DTR_HOOK_Q8, true);
    train(&o, DTR_HOOK_POWERSGD, true);
    train(&o, DTR_HOOK_BF16, true);
}
END_TEST

/* Rows that are divided by the number of ranks that have inputs. */
START_TEST(sparse_rows) {
    enum { ROWS = 64 };
    static const int64_t shape[2] = { ROWS, 1 };
    const dtr_device cpu = { DTR_CPU, 0 };
    dtr_tensor *value = NULL, *rows = NULL, *grad = NULL;
    dtr_join_options o = DTR_JOIN_OPTIONS_INIT;
    dtr_ddp *ddp = NULL;
    o.divide_by_active = true;
    TH_OK(dtr_tensor_empty(th_world(), DTR_F64, cpu, DTR_MEM_DEFAULT, 2, shape, &value));
    TH_OK(dtr_tensor_empty(th_world(), DTR_I64, cpu, DTR_MEM_DEFAULT, 1, shape, &rows));
    TH_OK(dtr_tensor_empty(th_world(), DTR_F64, cpu, DTR_MEM_DEFAULT, 2, shape, &grad));
    TH_OK(dtr_tensor_fill(value, 1, NULL));
    for (int k = 0; k < ROWS; k++) {
        ((int64_t *)dtr_tensor_data(rows))[k] = k;
        ((double *)dtr_tensor_data(grad))[k] = 1.0 / (k + 3);
    }
    const dtr_param param = { "rows", value, NULL, DTR_PARAM_SPARSE };
    TH_OK(dtr_ddp_create(th_group(), &param, 1, NULL, &ddp));
    TH_OK(dtr_ddp_join_begin(ddp, &o));
    TH_OK(dtr_ddp_forward_begin(ddp));
    TH_OK(dtr_ddp_forward_end(ddp, NULL, 0));
    TH_OK(dtr_ddp_set_sparse_grad(ddp, 0, rows, grad));
    enter_own();
    dtr_status status = dtr_ddp_grad_ready(ddp, 0, NULL);
    status = status == DTR_OK ? dtr_ddp_backward_end(ddp, NULL) : status;
    leave();
    TH_OK(status);
    dtr_tensor_release(rows);
    dtr_tensor_release(grad);
    TH_OK(dtr_ddp_sparse_grad(ddp, 0, &rows, &grad));
    everywhere(dtr_tensor_data(grad), ROWS * sizeof(double), "an average of rows");
    TH_OK(dtr_ddp_join_end(ddp));
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_tensor_release(value);
}
END_TEST

/* A scale that is no power of two, and a norm that is measured against it. */
static void scale_loss(bool sharded, double max_norm) {
    static const size_t sizes[2] = { 1000, 17 };
    synth s = synth_new(2, sizes, DTR_F32);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    dtr_zero *zero = NULL;
    dtr_optim *optim = NULL;
    dtr_loss_scale *scale = NULL;
    dtr_optim_options oo = DTR_OPTIM_OPTIONS_INIT;
    dtr_loss_scale_options so = DTR_LOSS_SCALE_OPTIONS_INIT;
    oo.rate = 0.1;
    oo.max_norm = max_norm;
    so.initial = 1000.0 / 3;
    so.least = 0x1p-20;
    so.backoff = 0.3;
    so.growth = 1.7;
    so.interval = 2;
    if (sharded) {
        TH_OK(dtr_zero_create(ddp, NULL, &zero));
    }
    TH_OK(dtr_optim_create(ddp, zero, &oo, &optim));
    TH_OK(dtr_loss_scale_create(ddp, &so, &scale));
    for (int step = 0; step < 12; step++) {
        TH_OK(dtr_ddp_forward_begin(ddp));
        TH_OK(dtr_ddp_forward_end(ddp, NULL, 0));
        for (size_t i = s.n; i-- > 0;) {
            for (size_t k = 0; k < sizes[i]; k++) {
                grad_of(ddp, i)[k] = step % 3 == 1 ? INFINITY : (float)(th_rank() + 1) / 7;
            }
            TH_OK(dtr_ddp_grad_ready(ddp, i, NULL));
        }
        TH_OK(dtr_ddp_backward_end(ddp, NULL));
        enter_own();
        dtr_status status = dtr_loss_scale_step(scale, optim, NULL);
        leave();
        TH_OK(status);
        const double now = dtr_loss_scale_value(scale);
        everywhere(&now, sizeof now, "the loss scale");
    }
    for (size_t i = 0; i < s.n; i++) {
        everywhere(dtr_tensor_data(s.params[i].value), sizes[i] * sizeof(float), "a parameter");
    }
    TH_OK(dtr_loss_scale_destroy(scale));
    TH_OK(dtr_optim_destroy(optim));
    TH_OK(dtr_zero_destroy(zero));
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}

START_TEST(loss_scales) {
    scale_loss(false, 0);
    scale_loss(false, 0.1);
    scale_loss(true, 0.1);
}
END_TEST

/* Rounded down, the matrix would be just worth compressing; rounded to nearest it is not. */
START_TEST(matrix_of_doubt) {
    static const int64_t shape[2] = { 2, 3 };
    const dtr_device cpu = { DTR_CPU, 0 };
    dtr_hook_options o = DTR_HOOK_OPTIONS_INIT;
    dtr_tensor *value = NULL;
    dtr_ddp *ddp = NULL;
    o.min_rate = 1.2;
    o.start_iteration = 2;
    TH_OK(dtr_tensor_empty(th_world(), DTR_F32, cpu, DTR_MEM_DEFAULT, 2, shape, &value));
    TH_OK(dtr_tensor_fill(value, 1, NULL));
    const dtr_param param = { "matrix", value, NULL, 0 };
    TH_OK(dtr_ddp_create(th_group(), &param, 1, NULL, &ddp));
    TH_OK(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_POWERSGD, &o));
    for (int step = 0; step < 4; step++) {
        TH_OK(dtr_ddp_forward_begin(ddp));
        TH_OK(dtr_ddp_forward_end(ddp, NULL, 0));
        TH_OK(dtr_tensor_fill(dtr_ddp_grad(ddp, 0), th_rank(), NULL));
        enter_own();
        dtr_status status = dtr_ddp_grad_ready(ddp, 0, NULL);
        status = status == DTR_OK ? dtr_ddp_backward_end(ddp, NULL) : status;
        leave();
        TH_OK(status);
    }
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_tensor_release(value);
}
END_TEST

/* The smallest factor is one, also for a program that takes it for zero. */
START_TEST(small_factor) {
    const double x = 0x1p70;
    double y = 0;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.premul = 0x1p-1074;
    enter(&modes[0]);
    dtr_status s = dtr_allreduce(th_group(), dtr_cpu_in(&x, 1, DTR_F64), dtr_cpu(&y, 1, DTR_F64),
                                 DTR_PREMUL_SUM, &o, NULL);
    leave();
    TH_CHECK(s == DTR_OK, "%s: %s", dtr_status_name(s), dtr_last_error_message());
    TH_CHECK(y == th_size() * 0x1p-1004, "%a", y);
    TH_AGREE();
}
END_TEST

/* A flag that the program has raised stays, in every mode. */
START_TEST(flags) {
    for (int m = 0; m < N_MODES; m++) {
        float x[64], y[64];
        for (int k = 0; k < 64; k++) {
            x[k] = 0.1f * (float)k;
        }
        if (modes[m].traps) {
            continue; /* to raise one would trap */
        }
        enter(&modes[m]);
        feraiseexcept(FE_DIVBYZERO | FE_OVERFLOW);
        dtr_status s = dtr_allreduce(th_group(), dtr_cpu(x, 64, DTR_F32), dtr_cpu(y, 64, DTR_F32),
                                     DTR_AVG, NULL, NULL);
        const int kept = fetestexcept(FE_DIVBYZERO | FE_OVERFLOW);
        leave();
        TH_IS(s, DTR_OK);
        TH_CHECK(kept == (FE_DIVBYZERO | FE_OVERFLOW), "%s: of 0x%x flags 0x%x are left",
                 modes[m].name, (unsigned)(FE_DIVBYZERO | FE_OVERFLOW), (unsigned)kept);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "float_mode", 240);
    th_add(tc, sums_of_denormals, 1, 0);
    th_add(tc, averages_of_16_bits, 1, 0);
    th_add(tc, exact_sums, 1, 0);
    th_add(tc, short_calls, 1, 0);
    th_add(tc, tensors, 1, 0);
    th_add(tc, training, 1, 0);
    th_add(tc, sparse_rows, 1, 0);
    th_add(tc, loss_scales, 1, 0);
    th_add(tc, matrix_of_doubt, 1, 0);
    th_add(tc, small_factor, 1, 0);
    th_add(tc, flags, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "float_mode", make);
}
