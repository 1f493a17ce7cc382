/* Exact sums: the fixed-point number, blocks of one long sum, and sums element by element. */
#include "exact.h"

#include <math.h>
#include <string.h>

#include "base/float_mode.h"
#include "kernels_set.h"
#include "loops.h"

enum {
    BLOCK = 1024,       /* 8 KiB: what is left of it stays in the first-level cache */
    BLOCK_WIDTH = 42,   /* bits between cuts: 1024 sums of 2^42 units are exact */
    HIGHEST = 2046,     /* exponent field of the largest double */
    ADDITIONS = 1 << 22 /* of digits below 2^40 */
};
#define RADIX (INT64_C(1) << DTR__EXACT_RADIX)
#define EXPONENT(bits) ((int)((bits) >> 52 & 0x7ff))

static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- the fixed-point number ---- */

void dtr__exact_settle(dtr__exact_sum *sum) {
    for (int i = 0; i < DTR__EXACT_DIGITS - 1; i++) {
        const int64_t carry = sum->digit[i] >> DTR__EXACT_RADIX;
        sum->digit[i] -= carry * RADIX;
        sum->digit[i + 1] += carry;
    }
    sum->unsettled = 0;
}

/* The mantissa of a finite number, at its place. */
static void add_finite(dtr__exact_sum *sum, uint64_t bits) {
    const int exponent = EXPONENT(bits), at = exponent > 0 ? exponent - 1 : 0;
    const int shift = at % DTR__EXACT_RADIX;
    const uint64_t hidden = exponent > 0 ? UINT64_C(1) << 52 : 0;
    const uint64_t mantissa = (bits & ((UINT64_C(1) << 52) - 1)) | hidden;
    const uint64_t low = mantissa << shift, high = shift > 0 ? mantissa >> (64 - shift) : 0;
    const int64_t sign = (bits >> 63) != 0 ? -1 : 1;
    int64_t *d = &sum->digit[at / DTR__EXACT_RADIX];
    d[0] += sign * (int64_t)(low & (uint64_t)(RADIX - 1));
    d[1] += sign * (int64_t)((low >> DTR__EXACT_RADIX | high << 24) & (uint64_t)(RADIX - 1));
    d[2] += sign * (int64_t)(high >> 16);
    if (++sum->unsettled == ADDITIONS) {
        dtr__exact_settle(sum);
    }
}

void dtr__exact_add_one(dtr__exact_sum *sum, double x) {
    const uint64_t bits = bits_of(x);
    if (EXPONENT(bits) > HIGHEST) {
        const bool nan = (bits << 12) != 0, minus = (bits >> 63) != 0;
        *(nan ? &sum->nan : minus ? &sum->minus_infinity : &sum->plus_infinity) = 1;
    } else if (bits == UINT64_C(1) << 63) {
        sum->minus_zero = 1;
    } else {
        sum->other = 1;
        add_finite(sum, bits);
    }
}

/* What a settled magnitude is made of: the 64 bits that begin with its highest one, whether any bit
 * below them is set, and how many bits it has. */
typedef struct leading {
    uint64_t bits;
    bool more;
    int length;
} leading;

static leading leading_bits(const int64_t *digit) {
    int top = DTR__EXACT_DIGITS - 1;
    while (top > 0 && digit[top] == 0) {
        top--;
    }
    leading l = { (uint64_t)digit[top], false, DTR__EXACT_RADIX * top };
    int free = l.bits == 0 ? 64 : __builtin_clzll(l.bits);
    l.length += 64 - free;
    l.bits = free < 64 ? l.bits << free : 0;
    for (int i = top - 1; i >= 0; i--) {
        const uint64_t d = (uint64_t)digit[i];
        free -= DTR__EXACT_RADIX;
        if (free >= 0) {
            l.bits |= d << free;
        } else if (free > -DTR__EXACT_RADIX) {
            l.bits |= d >> -free;
            l.more |= (d & ((UINT64_C(1) << -free) - 1)) != 0;
        } else {
            l.more |= d != 0;
        }
    }
    return l;
}

static double round_finite(const dtr__exact_sum *sum, bool odd) {
    dtr__exact_sum s = *sum;
    dtr__exact_settle(&s);
    const bool minus = s.digit[DTR__EXACT_DIGITS - 1] < 0;
    if (minus) {
        for (int i = 0; i < DTR__EXACT_DIGITS; i++) {
            s.digit[i] = -s.digit[i];
        }
        dtr__exact_settle(&s);
    }
    const leading l = leading_bits(s.digit);
    const uint64_t sign = (uint64_t)minus << 63;
    if (l.length <= 53) { /* as it is: multiples of the smallest number */
        const double units = l.length > 0 ? (double)(l.bits >> (64 - l.length)) : 0;
        return from_bits(sign | bits_of(ldexp(units, -1074)));
    }
    const uint64_t mantissa = l.bits >> 11, below = l.bits & 0x7ff, half = 0x400;
    const bool inexact = below != 0 || l.more;
    const bool up = below > half || (below == half && (l.more || (mantissa & 1) != 0));
    const uint64_t rounded = odd ? mantissa | inexact : mantissa + up;
    const int exponent = l.length - 52; /* a carry out of the mantissa goes into it */
    const uint64_t infinite = UINT64_C(0x7ff) << 52;
    const uint64_t bits = ((uint64_t)(exponent - 1) << 52) + rounded;
    return from_bits(sign | (exponent > HIGHEST || bits > infinite ? infinite : bits));
}

static double value(const dtr__exact_sum *sum, bool odd) {
    if (sum->nan != 0 || (sum->plus_infinity != 0 && sum->minus_infinity != 0)) {
        return NAN;
    }
    if (sum->plus_infinity != 0 || sum->minus_infinity != 0) {
        return sum->plus_infinity != 0 ? INFINITY : -INFINITY;
    }
    if (sum->other == 0) {
        return sum->minus_zero != 0 ? -0.0 : 0.0;
    }
    return round_finite(sum, odd);
}

double dtr__exact_value(const dtr__exact_sum *sum) {
    return value(sum, false);
}

double dtr__exact_value_odd(const dtr__exact_sum *sum) {
    return value(sum, true);
}

/* ---- one long sum ---- */

static void add_singly(dtr__exact_sum *sum, const double *x, size_t n) {
    const f64_t *from = (const f64_t *)x;
    for (size_t k = 0; k < n; k++) {
        dtr__exact_add_one(sum, from[k]);
    }
}

/* The bits of 1.5 times the power of two whose last place is where to cut. */
static double cut_at(int exponent) {
    return from_bits((uint64_t)(exponent > 1 ? exponent : 1) << 52 | UINT64_C(1) << 51);
}

/* n numbers, of which `real` count; the others are zero. */
static void add_block(const dtr__exact_loops *with, dtr__exact_sum *sum, const double *x, size_t n,
                      size_t real) {
    double rest[BLOCK];
    const double *from = x;
    for (bool more = true; more; from = rest) {
        const double top = with->top(from, n);
        const int exponent = EXPONENT(bits_of(top)),
                  high = (exponent > 1 ? exponent : 1) + 53 - BLOCK_WIDTH;
        const double at[2] = { cut_at(high), cut_at(high - BLOCK_WIDTH) };
        double sums[2] = { NAN, NAN };
        if (high <= HIGHEST && (top > 0 || sum->other != 0)) {
            more = with->cut(from, rest, n, at, sums);
        }
        if (EXPONENT(bits_of(sums[0])) > HIGHEST) {
            /* Too large to cut, or with a NaN, or of zeros that may all be -0: in the first round.
             */
            add_singly(sum, x, real);
            return;
        }
        sum->other = 1;
        add_finite(sum, bits_of(sums[0]));
        add_finite(sum, bits_of(sums[1]));
    }
}

/* The arithmetic, in a function of its own (base/float_mode.h). */
static __attribute__((noinline)) void add_all(dtr__exact_sum *sum, const double *x, size_t n) {
    const dtr__exact_loops *with = &dtr__kernels_current()->exact;
    size_t at = 0;
    for (; n - at >= BLOCK; at += BLOCK) {
        add_block(with, sum, x + at, BLOCK, BLOCK);
    }
    const size_t left = n - at, steps = (left + DTR__EXACT_STEP - 1) / DTR__EXACT_STEP;
    if (left > 0) {
        double last[BLOCK];
        memcpy(last, x + at, left * sizeof *x);
        memset(last + left, 0, (steps * DTR__EXACT_STEP - left) * sizeof *last);
        add_block(with, sum, last, steps * DTR__EXACT_STEP, left);
    }
}

void dtr__exact_add(dtr__exact_sum *sum, const double *x, size_t n) {
    const dtr__float_mode mode = dtr__float_enter();
    add_all(sum, x, n);
    dtr__float_leave(mode);
}

/* ---- element by element ---- */

/* How wide the pieces between cuts may be: n of them add up exactly, and one does not leave the
 * binade of the number that cuts it. */
static int width_for(int n) {
    int width = 53;
    for (int most = 1; most < n && width > 0; most *= 2) {
        width--;
    }
    return width < 51 ? width : 51;
}

/* Elements at..at + n of source i as doubles, scaled; in `to` unless they are that already. */
static const double *load(const dtr__kernel_set *set, const dtr__reduce_job *job, dtr_dtype dtype,
                          int i, size_t at, size_t n, double *to) {
    const char *from = (const char *)job->src[i] + at * dtr_dtype_size(dtype);
    double scaled[DTR__EXACT_TILE];
    if (job->op == DTR_PREMUL_SUM) {
        dtr__convert_with(set, scaled, dtype, from, dtype, n, job->factors[i], true);
        from = (const char *)scaled;
    }
    if (dtype == DTR_F64 && job->op != DTR_PREMUL_SUM) {
        return (const double *)(const void *)from;
    }
    dtr__convert_with(set, to, DTR_F64, from, dtype, n, 1, false);
    return to;
}

/* Two cuts were not enough for element k. */
static double slow(const dtr__kernel_set *set, const dtr__reduce_job *job, dtr_dtype dtype,
                   size_t k, bool odd) {
    dtr__exact_sum sum = { 0 };
    double x;
    for (int i = 0; i < job->n; i++) {
        dtr__exact_add_one(&sum, *(const f64_t *)load(set, job, dtype, i, k, 1, &x));
    }
    return odd ? dtr__exact_value_odd(&sum) : dtr__exact_value(&sum);
}

/* Elements at..at + n, n <= DTR__EXACT_TILE, as doubles, into t->value. */
static void sum_tile(const dtr__kernel_set *set, const dtr__reduce_job *job, dtr_dtype dtype,
                     size_t at, size_t n, dtr__exact_tile *t) {
    const bool odd = dtype != DTR_F64;
    double x[DTR__EXACT_TILE];
    memset(t->top, 0, n * sizeof t->top[0]);
    memset(t->sign, 0xff, n * sizeof t->sign[0]);
    for (int i = 0; i < job->n; i++) {
        set->exact.look(t, load(set, job, dtype, i, at, n, x), n);
    }
    set->exact.place(t, width_for(job->n), n);
    for (int i = 0; i < job->n; i++) {
        set->exact.collect(t, load(set, job, dtype, i, at, n, x), n);
    }
    set->exact.round(t, odd, n);
    for (size_t k = 0; k < n; k++) {
        t->value[k] = t->rest[k] != 0 ? slow(set, job, dtype, at + k, odd) : t->value[k];
        t->value[k] = job->op == DTR_AVG ? t->value[k] / job->divisor : t->value[k];
    }
}

void dtr__exact_reduce(const dtr__kernel_set *set, const dtr__reduce_job *job, size_t count,
                       dtr_dtype dtype) {
    dtr__exact_tile t;
    const size_t size = dtr_dtype_size(dtype);
    for (size_t at = 0; at < count; at += DTR__EXACT_TILE) {
        const size_t n = count - at < DTR__EXACT_TILE ? count - at : DTR__EXACT_TILE;
        sum_tile(set, job, dtype, at, n, &t);
        for (int j = 0; j < job->n_dst; j++) {
            dtr__convert_with(set, (char *)job->dst[j] + at * size, dtype, t.value, DTR_F64, n, 1,
                              false);
        }
    }
}

void dtr__exact_products(double *to, const double *a, const double *b, double scale, size_t n) {
    const dtr__float_mode mode = dtr__float_enter();
    dtr__kernels_current()->exact.products(to, a, b, scale, n);
    dtr__float_leave(mode);
}

/* In a function of its own (base/float_mode.h). */
static __attribute__((noinline)) void top_of(const double *x, size_t n, double *top) {
    const size_t whole = n / DTR__EXACT_STEP * DTR__EXACT_STEP;
    double last[DTR__EXACT_STEP] = { 0 };
    memcpy(last, x + whole, (n - whole) * sizeof *x);
    const double a = dtr__kernels_current()->exact.top(x, whole),
                 b = dtr__kernels_current()->exact.top(last, DTR__EXACT_STEP);
    *top = a > b ? a : b;
}

double dtr__exact_top(const double *x, size_t n) {
    double top = 0;
    const dtr__float_mode mode = dtr__float_enter();
    top_of(x, n, &top);
    dtr__float_leave(mode);
    return top;
}
