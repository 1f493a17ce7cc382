/* Exact sums: against another way to add without rounding (Shewchuk's partial sums), in any order,
 * in any parts, of anything a double can hold; and element by element, on every instruction set. */
#include "kernels/exact.h"

#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "exact_ref.h"
#include "kernels_ref.h"
#include "unit.h"

enum { LARGEST = 5000 };

static bool same(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static double sum_of(const double *x, size_t n) {
    dtr__exact_sum s = { { 0 }, 0, 0, 0, 0, 0, 0 };
    dtr__exact_add(&s, x, n);
    return dtr__exact_value(&s);
}

static void shuffle(double *x, size_t n, th_rng *g) {
    for (size_t i = n; i > 1; i--) {
        const size_t j = th_next(g) % i;
        const double keep = x[i - 1];
        x[i - 1] = x[j];
        x[j] = keep;
    }
}

/* As it is done between ranks: settled, added up word by word, in parts of any size. */
static double sum_in_parts(const double *x, size_t n, th_rng *g) {
    dtr__exact_sum all = { { 0 }, 0, 0, 0, 0, 0, 0 };
    for (size_t at = 0, m; at < n; at += m) {
        dtr__exact_sum part = { { 0 }, 0, 0, 0, 0, 0, 0 };
        int64_t from[DTR__EXACT_WORDS], to[DTR__EXACT_WORDS];
        m = th_next(g) % 2000;
        m = m < n - at ? m : n - at;
        dtr__exact_add(&part, x + at, m);
        dtr__exact_settle(&part);
        memcpy(from, &part, sizeof from);
        memcpy(to, &all, sizeof to);
        for (int i = 0; i < DTR__EXACT_WORDS; i++) {
            to[i] += from[i];
        }
        memcpy(&all, to, sizeof to);
    }
    return dtr__exact_value(&all);
}

static void check_orders(double *x, size_t n, th_rng *g, const char *what) {
    const double want = th_exact_sum(x, n);
    for (int again = 0; again < 4; again++) {
        const double all = sum_of(x, n), parts = sum_in_parts(x, n, g);
        ck_assert_msg(same(all, want), "%s, %zu numbers: %a, want %a", what, n, all, want);
        ck_assert_msg(same(parts, want), "%s, %zu numbers in parts: %a, want %a", what, n, parts,
                      want);
        shuffle(x, n, g);
    }
}

/* ---- one long sum ---- */

START_TEST(any_order_and_parts) {
    static const struct {
        int low, high;
        const char *what;
    } ranges[] = { { -3, 3, "alike" },
                   { -40, 40, "unlike" },
                   { -300, 300, "very unlike" },
                   { -1074, 1000, "of all sizes" },
                   { -1074, -1000, "denormal" } };
    static const size_t counts[] = { 0, 1, 2, 3, 31, 32, 33, 1023, 1024, 1025, 2047, LARGEST };
    static double x[LARGEST];
    th_rng g = { 7 };
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            for (size_t i = 0; i < counts[c]; i++) {
                const int e = ranges[r].low +
                              (int)(th_next(&g) % (uint64_t)(ranges[r].high - ranges[r].low + 1));
                x[i] = ldexp(2 * th_uniform(&g) - 1, e);
            }
            check_orders(x, counts[c], &g, ranges[r].what);
        }
    }
}
END_TEST

/* Pairs that cancel, and a small sum among them: plain summation has no right digit. */
START_TEST(cancellation) {
    static double x[LARGEST];
    th_rng g = { 8 };
    for (int decades = 2; decades <= 60; decades += 2) {
        for (size_t i = 0; i + 1 < LARGEST; i += 2) {
            x[i] = th_uniform(&g) * pow(10, th_uniform(&g) * decades);
            x[i + 1] = -x[i];
        }
        x[LARGEST / 2] += 1;
        x[0] += th_uniform(&g);
        check_orders(x, LARGEST, &g, "cancelling");
    }
}
END_TEST

START_TEST(values_at_the_ends) {
    static const struct {
        double x[4];
        size_t n;
        double want, odd;
    } rows[] = {
        { { 0 }, 0, 0.0, 0.0 },
        { { -0.0, -0.0 }, 2, -0.0, -0.0 },
        { { -0.0, 0.0, -0.0 }, 3, 0.0, 0.0 },
        { { 1, -1 }, 2, 0.0, 0.0 },
        { { -1, 1, -0.0 }, 3, 0.0, 0.0 },
        { { DBL_MAX, DBL_MAX, -DBL_MAX }, 3, DBL_MAX, DBL_MAX },
        { { DBL_MAX, DBL_MAX }, 2, INFINITY, INFINITY },
        { { -DBL_MAX, -0x1p970 }, 2, -INFINITY, -DBL_MAX },
        { { DBL_MAX, 0x1p969 }, 2, DBL_MAX, DBL_MAX },
        { { DBL_MAX, 0x1p970, -0x1p-1074 }, 3, DBL_MAX, DBL_MAX },
        { { 0x1p-1074, 0x1p-1074 }, 2, 0x1p-1073, 0x1p-1073 },
        { { 0x1p-1022, -0x1p-1074 }, 2, 0x0.fffffffffffffp-1022, 0x0.fffffffffffffp-1022 },
        { { 0x1p-1022, 0x1p-1074 }, 2, 0x1.0000000000001p-1022, 0x1.0000000000001p-1022 },
        { { 1, 0x1p-53 }, 2, 1, 0x1.0000000000001p0 },
        { { 1, 0x1p-53, 0x1p-1074 }, 3, 0x1.0000000000001p0, 0x1.0000000000001p0 },
        { { 1, 0x1p-53, -0x1p-1074 }, 3, 1, 0x1.0000000000001p0 },
        { { -1, 0x1p-1074 }, 2, -1, -0x1.fffffffffffffp-1 },
        { { 0x1.0000000000001p0, 0x1p-53 }, 2, 0x1.0000000000002p0, 0x1.0000000000001p0 },
        { { 0x1.fffffffffffffp0, 0x1p-53 }, 2, 2, 0x1.fffffffffffffp0 },
        { { INFINITY, 1, -DBL_MAX }, 3, INFINITY, INFINITY },
        { { 1, -INFINITY }, 2, -INFINITY, -INFINITY },
        { { INFINITY, -INFINITY }, 2, NAN, NAN },
        { { 1, NAN, 2 }, 3, NAN, NAN },
        { { NAN, INFINITY, 0.0 }, 3, NAN, NAN },
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        double x[4];
        for (size_t turn = 0; turn < 4; turn++) { /* every number comes first once */
            dtr__exact_sum s = { { 0 }, 0, 0, 0, 0, 0, 0 }, one = s;
            for (size_t i = 0; i < rows[r].n; i++) {
                x[i] = rows[r].x[(i + turn) % rows[r].n];
                dtr__exact_add_one(&one, x[i]);
            }
            dtr__exact_add(&s, x, rows[r].n);
            ck_assert_msg(same(dtr__exact_value(&s), rows[r].want), "row %zu: %a, want %a", r,
                          dtr__exact_value(&s), rows[r].want);
            ck_assert_msg(same(dtr__exact_value(&one), rows[r].want), "row %zu, singly: %a", r,
                          dtr__exact_value(&one));
            ck_assert_msg(same(dtr__exact_value_odd(&s), rows[r].odd), "row %zu to odd: %a", r,
                          dtr__exact_value_odd(&s));
        }
    }
}
END_TEST

/* One that is no number, somewhere in many. */
START_TEST(one_among_many) {
    static double x[LARGEST];
    static const double odd[] = { INFINITY, -INFINITY, NAN, -DBL_MAX, 0x1p1010, -0x1p-1074 };
    static const size_t places[] = { 0, 100, 1023, 1024, 4999 };
    for (size_t o = 0; o < 6; o++) {
        for (size_t p = 0; p < 5; p++) {
            for (size_t i = 0; i < LARGEST; i++) {
                x[i] = i % 2 == 0 ? 1 : -1;
            }
            const double gone = x[places[p]];
            x[places[p]] = odd[o];
            const double want =
                isfinite(odd[o]) ? th_exact_sum((double[]){ odd[o], -gone }, 2) : odd[o];
            ck_assert_msg(same(sum_of(x, LARGEST), want), "%a at %zu: %a", odd[o], places[p],
                          sum_of(x, LARGEST));
        }
    }
}
END_TEST

/* More additions than a digit can take without carries. */
START_TEST(carries) {
    enum { N = 5000000 };
    const double x = 0x1.fffffffffffffp0;
    dtr__exact_sum s = { { 0 }, 0, 0, 0, 0, 0, 0 };
    for (int i = 0; i < N; i++) {
        dtr__exact_add_one(&s, -x);
    }
    ck_assert(same(dtr__exact_value(&s), -x * N));
}
END_TEST

/* The caller's rounding and flushing of denormals are its own. */
START_TEST(any_mode) {
    static double x[LARGEST];
    th_rng g = { 9 };
    for (size_t i = 0; i < LARGEST; i++) {
        x[i] = ldexp(th_uniform(&g), (int)(th_next(&g) % 60) - 1060);
    }
    const double want = sum_of(x, LARGEST);
    static const int modes[] = { FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
    for (int m = 0; m < 3; m++) {
        fesetround(modes[m]);
        const double got = sum_of(x, LARGEST);
        fesetround(FE_TONEAREST);
        ck_assert(same(got, want));
    }
}
END_TEST

START_TEST(products_and_largest) {
    double a[37], b[37], p[37];
    th_rng g = { 10 };
    for (int i = 0; i < 37; i++) {
        a[i] = th_uniform(&g) - 0.5;
        b[i] = th_uniform(&g) - 0.5;
    }
    a[35] = -8;
    dtr__exact_products(p, a, b, 0.25, 37);
    for (int i = 0; i < 37; i++) {
        ck_assert(same(p[i], (0.25 * a[i]) * (0.25 * b[i])));
    }
    ck_assert(same(dtr__exact_top(a, 37), 8));
    ck_assert(same(dtr__exact_top(a, 0), 0));
    a[3] = NAN;
    ck_assert(same(dtr__exact_top(a, 37), 8));
}
END_TEST

/* ---- element by element ---- */

enum { SOURCES = 40, ELEMENTS = 600 };

static void reduce_in_set(const dtr__kernel_set *set, void *dst, const void *const *src, int n,
                          dtr_dtype d, dtr_op op, const double *factors) {
    void *both[2] = { dst, calloc(ELEMENTS, 16) };
    const dtr__reduce_job job = { both, 2, src, n, op, n, factors, false, true };
    dtr__reduce_with(set, job, ELEMENTS, d, DTR__NONTEMPORAL_NONE);
    ck_assert(memcmp(both[0], both[1], ELEMENTS * dtr_dtype_size(d)) == 0);
    free(both[1]);
}

/* Element k of source i: every tenth element is hard (of all sizes, with cancellation), some are
 * special. */
static double number(size_t k, int i, th_rng *g) {
    const int spread = k % 10 == 0 ? 2000 : k % 10 == 1 ? 200 : 10;
    if (k % 100 == 33) {
        return i == 2 ? (k % 200 == 33 ? INFINITY : NAN) : 1;
    }
    if (k % 100 == 34) {
        return k % 200 == 34 || i == 1 ? -0.0 : 0.0;
    }
    return ldexp(2 * th_uniform(g) - 1, (int)(th_next(g) % (uint64_t)spread) - spread / 2);
}

START_TEST(f64_elements) {
    static double x[SOURCES][ELEMENTS], got[ELEMENTS];
    const dtr__kernel_set *sets[4];
    const int n_sets = ref_sets(sets);
    th_rng g = { 11 };
    for (int n = 1; n <= SOURCES; n += n < 9 ? 1 : 31) {
        for (int i = 0; i < n; i++) {
            for (size_t k = 0; k < ELEMENTS; k++) {
                x[i][k] = number(k, i, &g);
            }
        }
        for (int turn = 0; turn < 3 * n_sets; turn++) {
            const void *src[SOURCES];
            double column[SOURCES];
            for (int i = 0; i < n; i++) { /* rotated, then backwards */
                src[i] = x[turn % 3 == 0 ? i : turn % 3 == 1 ? (i + 1) % n : n - 1 - i];
            }
            reduce_in_set(sets[turn / 3], got, src, n, DTR_F64, DTR_SUM, NULL);
            for (size_t k = 0; k < ELEMENTS; k++) {
                for (int i = 0; i < n; i++) {
                    column[i] = x[i][k];
                }
                const double want = k % 100 == 33 && n > 2 ? column[2]
                                    : k % 100 == 34        ? (k % 200 == 34 ? -0.0 : 0.0)
                                                           : th_exact_sum(column, (size_t)n);
                ck_assert_msg(same(got[k], want),
                              "%s, %d sources, order %d, element %zu: %a, want %a",
                              sets[turn / 3]->name, n, turn % 3, k, got[k], want);
            }
        }
    }
}
END_TEST

/* Numbers that are whole: their sum is one of 62 bits, which is rounded to float once. */
START_TEST(f32_elements) {
    static float x[SOURCES][ELEMENTS], got[ELEMENTS];
    const dtr__kernel_set *sets[4];
    const int n_sets = ref_sets(sets);
    th_rng g = { 12 };
    for (int n = 3; n <= SOURCES; n += 37) {
        int64_t want[ELEMENTS] = { 0 };
        const void *src[SOURCES];
        for (int i = 0; i < n; i++) {
            src[n - 1 - i] = x[i];
            for (size_t k = 0; k < ELEMENTS; k++) {
                const int64_t v = ((int64_t)(th_next(&g) % (1 << 24)) - (1 << 23)) *
                                  ((int64_t)1 << th_next(&g) % 30);
                x[i][k] = (float)v;
                want[k] += v;
            }
        }
        for (int s = 0; s < n_sets; s++) {
            reduce_in_set(sets[s], got, src, n, DTR_F32, DTR_SUM, NULL);
            for (size_t k = 0; k < ELEMENTS; k++) {
                ck_assert_msg(got[k] == (float)want[k], "%s, %d sources, element %zu: %a, want %a",
                              sets[s]->name, n, k, (double)got[k], (double)(float)want[k]);
            }
        }
    }
}
END_TEST

/* All types and sums: the same bits in any order and set; what is rounded in between otherwise, the
 * mean and the scaled sum, is that of the exact sum. */
START_TEST(any_type_in_any_order) {
    static const dtr_dtype types[] = { DTR_F8E4M3, DTR_F8E5M2, DTR_F16, DTR_BF16,
                                       DTR_F32,    DTR_F64,    DTR_C64, DTR_C128 };
    static const dtr_op ops[] = { DTR_SUM, DTR_AVG, DTR_PREMUL_SUM };
    static char x[5][ELEMENTS * 16], first[ELEMENTS * 16], got[ELEMENTS * 16];
    const dtr__kernel_set *sets[4];
    const int n_sets = ref_sets(sets);
    th_rng g = { 13 };
    for (int t = 0; t < 8 * 3; t++) {
        const dtr_dtype d = types[t / 3];
        if (!dtr_op_supports(ops[t % 3], d)) {
            continue;
        }
        double factors[5], turned[5];
        for (int i = 0; i < 5; i++) {
            factors[i] = 0.3 * (i + 1);
            for (size_t k = 0; k < ELEMENTS; k++) {
                th_set(x[i], d, k, ldexp(th_uniform(&g), (int)(th_next(&g) % 12) - 6),
                       ldexp(-th_uniform(&g), (int)(th_next(&g) % 12) - 6));
            }
        }
        for (int turn = 0; turn < 5 * n_sets; turn++) {
            const void *src[5];
            for (int i = 0; i < 5; i++) {
                src[i] = x[(i + turn) % 5];
                turned[i] = factors[(i + turn) % 5];
            }
            reduce_in_set(sets[turn / 5], got, src, 5, d, ops[t % 3],
                          ops[t % 3] == DTR_PREMUL_SUM ? turned : NULL);
            if (turn == 0) {
                memcpy(first, got, sizeof first);
            }
            const size_t at = th_differs(got, first, d, ELEMENTS);
            ck_assert_msg(at == ELEMENTS, "%s of %s on %s: element %zu differs", dtr_dtype_name(d),
                          t % 3 == 0   ? "sum"
                          : t % 3 == 1 ? "mean"
                                       : "scaled sum",
                          sets[turn / 5]->name, at);
        }
    }
}
END_TEST

/* What is not asked to be exact, and what cannot be: in the order of the sources, as ever. */
START_TEST(others_as_ever) {
    const float x[3] = { 1, 0x1p-24F, 0x1p-24F };
    const void *src[3] = { &x[0], &x[1], &x[2] };
    float sum;
    dtr__reduce(&sum, src, 3, 1, DTR_F32, DTR_SUM, 3, NULL);
    ck_assert(sum == 1);
    dtr__reduce(&sum, src, 3, 1, DTR_F32, (dtr_op)(DTR_SUM | DTR__EXACT), 3, NULL);
    ck_assert(sum == 0x1.000002p0F);
    dtr__reduce(&sum, src, 3, 1, DTR_F32, (dtr_op)(DTR_MAX | DTR__EXACT), 3, NULL);
    ck_assert(sum == 1);
    const int32_t y[3] = { 1, 2, 3 };
    const void *whole[3] = { &y[0], &y[1], &y[2] };
    int32_t total;
    dtr__reduce(&total, whole, 3, 1, DTR_I32, (dtr_op)(DTR_SUM | DTR__EXACT), 3, NULL);
    ck_assert_int_eq(total, 6);
    dtr__reducer r;
    ck_assert(!dtr__reduce_keep(&r, 1, DTR_F32, (dtr_op)(DTR_SUM | DTR__EXACT)));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("exact");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, any_order_and_parts);
    tcase_add_test(tc, cancellation);
    tcase_add_test(tc, values_at_the_ends);
    tcase_add_test(tc, one_among_many);
    tcase_add_test(tc, carries);
    tcase_add_test(tc, any_mode);
    tcase_add_test(tc, products_and_largest);
    tcase_add_test(tc, f64_elements);
    tcase_add_test(tc, f32_elements);
    tcase_add_test(tc, any_type_in_any_order);
    tcase_add_test(tc, others_as_ever);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("exact", make);
}
