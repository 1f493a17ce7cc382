/* T62, H1a: how exact averages are, for every gradient type, and that all ranks hold the same bits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"

enum { COUNT = 100000 };
static const dtr_dtype types[] = { DTR_F16, DTR_BF16, DTR_F32, DTR_F64 };

static int mantissa(dtr_dtype d) {
    return d == DTR_F16 ? 10 : d == DTR_BF16 ? 7 : d == DTR_F32 ? 23 : 52;
}

/* Distance of neighbours at |v|. */
static double ulp(dtr_dtype d, double v) {
    int e = v == 0 ? -10000 : ilogb(v), low = d == DTR_F16 ? -14 : d == DTR_F64 ? -1022 : -126;
    return ldexp(1, (e < low ? low : e) - mantissa(d));
}

static void random_gradients(void *dst, dtr_dtype d, int r, int run) {
    th_rng g = { (uint64_t)(1 + r + 100 * run) };
    int top = d == DTR_F16 ? 12 : 15;
    th_random_floats(dst, d, COUNT, &g, top - 30, top);
}

static void check_values(dtr_dtype d, const void *got, unsigned char *const *in) {
    int W = th_size();
    for (size_t k = 0; k < COUNT; k++) {
        long double sum = 0, size = 0;
        for (int r = 0; r < W; r++) {
            double v = th_get(in[r], d, k, false);
            sum += v;
            size += fabs(v);
        }
        double mean = (double)(sum / W), A = (double)(size / W);
        double error = fabs((double)((long double)th_get(got, d, k, false) - sum / W));
        double bound = d == DTR_F64   ? (W + 1) * 0x1p-53 * A + 0x1p-1074
                       : d == DTR_F32 ? (W + 1) * 0x1p-24 * A + 0x1p-149
                                      : ulp(d, mean) / 2 + (W + 1) * 0x1p-24 * A;
        if (W == 2 && d != DTR_F64 && d != DTR_F32) {
            bound = fmin(bound, ulp(d, mean));
        }
        TH_CHECK(error <= bound, "%s[%zu]: off by %g, allowed %g", dtr_dtype_name(d), k, error,
                 bound);
    }
}

static uint64_t hash(const void *data, size_t n) {
    uint64_t h = 1469598103934665603u;
    for (size_t k = 0; k < n; k++) {
        h = (h ^ ((const unsigned char *)data)[k]) * 1099511628211u;
    }
    return h;
}

static uint64_t one_average(dtr_ddp *ddp, dtr_dtype d, int run) {
    random_gradients(grad_of(ddp, 0), d, th_rank(), run);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    return hash(grad_of(ddp, 0), COUNT * dtr_dtype_size(d));
}

START_TEST(accuracy) {
    for (int t = 0; t < 4; t++) {
        dtr_dtype d = types[t];
        unsigned char *in[8];
        size_t size[] = { COUNT };
        synth s = synth_new(1, size, d);
        dtr_ddp *ddp = ddp_new(&s, NULL);
        for (int r = 0; r < th_size(); r++) {
            in[r] = malloc(COUNT * 8);
            random_gradients(in[r], d, r, 0);
        }
        uint64_t first = one_average(ddp, d, 0), all[8];
        check_values(d, grad_of(ddp, 0), in);
        for (int k = 0; k < 20; k++) {
            uint64_t h = one_average(ddp, d, 0);
            TH_CHECK(h == first, "%s: repetition %d has other bits", dtr_dtype_name(d), k);
        }
        th_gather_u64(first, all); /* H1c */
        for (int r = 1; r < th_size(); r++) {
            TH_CHECK(all[r] == all[0], "%s: ranks 0 and %d have other bits", dtr_dtype_name(d), r);
        }
        for (int r = 0; r < th_size(); r++) {
            free(in[r]);
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* H1: sums leave the 16-bit range, averages do not. */
START_TEST(large_f16) {
    size_t size[] = { 1000 };
    for (int cast = 0; cast < 2; cast++) {
        synth s = synth_new(1, size, cast ? DTR_F32 : DTR_F16);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.has_reduce_dtype = cast == 1;
        o.reduce_dtype = DTR_F16;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (size_t k = 0; k < size[0]; k++) {
            th_set(grad_of(ddp, 0), s.dtype, k, 60000, 0);
        }
        TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        for (size_t k = 0; k < size[0]; k++) {
            double v = th_get(grad_of(ddp, 0), s.dtype, k, false);
            TH_CHECK(v == 60000, "element %zu is %g", k, v);
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* Complex gradients; X1: a wider or narrower bucket type. */
START_TEST(other_types) {
    static const struct {
        dtr_dtype grad, reduce;
    } pairs[] = { { DTR_C64, DTR_BOOL },  { DTR_C128, DTR_BOOL }, { DTR_F16, DTR_F32 },
                  { DTR_BF16, DTR_F32 },  { DTR_F64, DTR_F32 },   { DTR_F32, DTR_F64 },
                  { DTR_F8E5M2, DTR_F16 } };
    size_t sizes[] = { 40, 3 };
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        synth s = synth_new(2, sizes, pairs[p].grad);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.has_reduce_dtype = pairs[p].reduce != DTR_BOOL;
        o.reduce_dtype = pairs[p].reduce;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (int step = 0; step < 3; step++) {
            for (size_t i = 0; i < 2; i++) {
                for (size_t k = 0; k < sizes[i]; k++) {
                    th_set(grad_of(ddp, i), s.dtype, k, th_rank() % 2 ? 1 : 3, th_rank());
                }
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            }
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            double re = 0, im = 0;
            for (int r = 0; r < th_size(); r++) {
                re += r % 2 ? 1 : 3;
                im += r;
            }
            char want[16] = { 0 };
            dtr_dtype real = pairs[p].reduce == DTR_F64 || s.dtype == DTR_C128 ? DTR_F64 : DTR_F32;
            th_set(want, s.dtype, 0,
                   real == DTR_F64 ? re / th_size() : (double)((float)re / (float)th_size()),
                   real == DTR_F64 ? im / th_size() : (double)((float)im / (float)th_size()));
            double got = th_get(grad_of(ddp, 0), s.dtype, 39, false);
            TH_CHECK(got == th_get(want, s.dtype, 0, false), "%s over %s: %.17g, want %.17g",
                     dtr_dtype_name(s.dtype), dtr_dtype_name(pairs[p].reduce), got,
                     th_get(want, s.dtype, 0, false));
            if (s.dtype == DTR_C64 || s.dtype == DTR_C128) {
                TH_CHECK(th_get(grad_of(ddp, 1), s.dtype, 2, true) ==
                             th_get(want, s.dtype, 0, true),
                         "imaginary part");
            }
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* X9: beyond the range of the bucket's type on one rank: infinity on all. */
START_TEST(infinity) {
    size_t sizes[] = { 8 };
    synth s = synth_new(1, sizes, DTR_F32);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.has_reduce_dtype = true;
    o.reduce_dtype = DTR_F16;
    dtr_ddp *ddp = ddp_new(&s, &o);
    grad_of(ddp, 0)[1] = th_rank() == 0 ? 70000 : 1;
    grad_of(ddp, 0)[2] = th_rank() == th_size() - 1 ? NAN : 1;
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_CHECK(th_size() == 1 || isinf(grad_of(ddp, 0)[1]), "%g", grad_of(ddp, 0)[1]);
    TH_CHECK(isnan(grad_of(ddp, 0)[2]), "%g", grad_of(ddp, 0)[2]);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* I15, ER14: a NaN is an agreed error that names rank and parameter; the next step works. */
START_TEST(nan_check) {
    for (int bad = 0; bad < th_size(); bad++) {
        synth s = synth_equal(3, 50);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.flags = DTR_DDP_CHECK_NAN;
        o.grad_as_bucket_view = bad % 2 == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (size_t i = 0; i < 3; i++) {
            synth_write(ddp, &s, i, 0, false);
            if (i == 1 && th_rank() == bad) {
                grad_of(ddp, i)[42] = NAN;
            }
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_NAN);
        char word[64];
        snprintf(word, sizeof word, "'p1' (1) has a NaN on rank %d", bad);
        TH_MESSAGE(word);
        TH_AGREE();
        synth_good_step(ddp, &s, 1);
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp precision", 100);
    th_add(tc, accuracy, 0, 0);
    th_add(tc, large_f16, 0, 0);
    th_add(tc, other_types, 0, 0);
    th_add(tc, infinity, 0, 0);
    th_add(tc, nan_check, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_precision", make);
}
