/* The loops of exact sums (exact.h), once per instruction set. Every operation but those that round
 * to a cut, (x + s) - s, is exact; that needs the compiler to leave them as they are written. */
#ifndef DTR_EXACT_BODY_H
#define DTR_EXACT_BODY_H

#ifdef __FAST_MATH__
#error "exact sums need the arithmetic of IEEE 754: compile this without -ffast-math"
#endif

#define EXACT_SIGN (UINT64_C(1) << 63)
enum {
    F64_LANES = sizeof(f64_v) / sizeof(double),
    EXACT_AT_ONCE = 4 /* vectors: sums that do not wait for each other */
};
_Static_assert(DTR__EXACT_STEP % (EXACT_AT_ONCE * F64_LANES) == 0, "blocks are whole steps");

/* The largest magnitude; NaN is passed over. The next block is on its way meanwhile. */
static double exact_top(const double *x, size_t n) {
    f64_v top[EXACT_AT_ONCE] = { 0 };
    for (size_t k = 0; k < n; k += EXACT_AT_ONCE * F64_LANES) {
        for (size_t i = 0; i < EXACT_AT_ONCE; i++) {
            u64_v a;
            memcpy(&a, (const char *)x + (k + i * F64_LANES) * sizeof *x, sizeof a);
            __builtin_prefetch((const void *)((uintptr_t)x + (k + i * F64_LANES + n) * sizeof *x));
            a &= ~EXACT_SIGN;
            top[i] = (f64_v)SELECT(u64_v, (f64_v)a > top[i], a, top[i]);
        }
    }
    double most = 0;
    for (size_t i = 0; i < EXACT_AT_ONCE; i++) {
        for (size_t l = 0; l < F64_LANES; l++) {
            most = top[i][l] > most ? top[i][l] : most;
        }
    }
    leave_vectors();
    return most;
}

/* Cut n numbers at two positions: sums[] of what lies above each, and in rest[] what is left.
 * Whether anything is. */
static bool exact_cut(const double *x, double *rest, size_t n, const double at[2], double sums[2]) {
    const f64_v zero = { 0 }, first = zero + at[0], second = zero + at[1];
    f64_v high[EXACT_AT_ONCE] = { zero }, low[EXACT_AT_ONCE] = { zero };
    u64_v left = { 0 };
    for (size_t k = 0; k < n; k += EXACT_AT_ONCE * F64_LANES) {
        for (size_t i = 0; i < EXACT_AT_ONCE; i++) {
            const size_t offset = (k + i * F64_LANES) * sizeof *x;
            f64_v v, q;
            memcpy(&v, (const char *)x + offset, sizeof v);
            q = (v + first) - first;
            high[i] += q;
            v -= q;
            q = (v + second) - second;
            low[i] += q;
            v -= q;
            left |= (u64_v)v;
            memcpy((char *)rest + offset, &v, sizeof v);
        }
    }
    uint64_t any = 0;
    sums[0] = sums[1] = 0;
    for (size_t l = 0; l < F64_LANES; l++) {
        any |= left[l];
        for (size_t i = 0; i < EXACT_AT_ONCE; i++) {
            sums[0] += high[i][l];
            sums[1] += low[i][l];
        }
    }
    leave_vectors();
    return (any & ~EXACT_SIGN) != 0;
}

static void exact_products(double *to, const double *a, const double *b, double scale, size_t n) {
    const f64_t *x = (const f64_t *)a, *y = (const f64_t *)b;
    INDEPENDENT
    for (size_t k = 0; k < n; k++) {
        to[k] = (scale * x[k]) * (scale * y[k]);
    }
}

/* ---- element by element over many sources ---- */

static void exact_look(dtr__exact_tile *t, const double *x, size_t n) {
    const i64_t *bits = (const i64_t *)(const void *)x;
    INDEPENDENT
    for (size_t k = 0; k < n; k++) {
        const int64_t magnitude = bits[k] & INT64_MAX;
        t->top[k] = magnitude > t->top[k] ? magnitude : t->top[k];
        t->sign[k] &= bits[k];
    }
}

/* Cuts `width` bits below the largest magnitude of each element, and as much further down: as bits,
 * 1.5 times the power of two whose last place is the cut. Too large a number for that is marked as
 * having a rest. */
static void exact_place(dtr__exact_tile *t, int width, size_t n) {
    INDEPENDENT
    for (size_t k = 0; k < n; k++) {
        const int64_t top = t->top[k] >> 52, one = 1;
        const int64_t high = (top > one ? top : one) + 53 - width, low = high - width;
        t->rest[k] = high > 2046;
        t->at[0][k] = (high > 2046 ? 2046 : high) << 52 | one << 51;
        t->at[1][k] = (low > one ? low : one) << 52 | one << 51;
        t->sum[0][k] = t->sum[1][k] = 0;
    }
}

static void exact_collect(dtr__exact_tile *t, const double *x, size_t n) {
    const f64_t *from = (const f64_t *)x, *first = (const f64_t *)(const void *)t->at[0],
                *second = (const f64_t *)(const void *)t->at[1];
    INDEPENDENT
    for (size_t k = 0; k < n; k++) {
        const double v = from[k], q = (v + first[k]) - first[k], w = v - q;
        const double p = (w + second[k]) - second[k], left = w - p;
        t->sum[0][k] += q;
        t->sum[1][k] += p;
        t->rest[k] |= left != 0; /* NaN is, too */
    }
}

/* The sum of both, rounded to nearest even, or to odd: one that is not exact gets the neighbour
 * whose last bit is set. Of zeros -0 where all were. */
static void exact_round(dtr__exact_tile *t, bool odd, size_t n) {
    i64_t *bits = (i64_t *)(void *)t->value;
    INDEPENDENT
    for (size_t k = 0; k < n; k++) {
        const double a = t->sum[0][k], b = t->sum[1][k], sum = a + b, part = sum - a;
        const double error = (a - (sum - part)) + (b - part);
        t->value[k] = sum;
        t->sum[0][k] = odd ? error : 0;
    }
    INDEPENDENT
    for (size_t k = 0; k < n; k++) {
        const double error = t->sum[0][k];
        const int64_t up = (error > 0) == (t->value[k] > 0) ? 1 : -1;
        bits[k] += error != 0 && (bits[k] & 1) == 0 ? up : 0;
        bits[k] |= t->top[k] == 0 ? t->sign[k] & INT64_MIN : 0;
    }
}
#endif /* DTR_EXACT_BODY_H */
