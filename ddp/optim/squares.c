/* Sums of squares without rounding. */
#include "ddp_squares.h"

#include <math.h>
#include <string.h>

#include "base/float_mode.h"
#include "kernels/kernels.h"

/* ---- digits ---- */

enum { LEAST = DTR__SQUARES_LEAST, DIGIT = 32 };

/* value * 2^(bit + LEAST). A digit grows by less than 2^32, so 2^31 of them may be added between
 * two calls of carry. */
static void add_at(dtr__squares *sum, uint64_t value, int bit) {
    uint64_t *d = &sum->digit[bit / DIGIT];
    int shift = bit % DIGIT;
    uint64_t low = value << shift, high = shift > 0 ? value >> (64 - shift) : 0;
    d[0] += low & UINT32_MAX;
    d[1] += low >> DIGIT;
    d[2] += high;
}

static void carry(dtr__squares *sum) {
    for (int k = 0; k + 1 < DTR__SQUARES_DIGITS; k++) {
        sum->digit[k + 1] += sum->digit[k] >> DIGIT;
        sum->digit[k] &= UINT32_MAX;
    }
}

/* ---- float ---- */

enum { EXPONENTS = 256, TABLES = 4, BLOCK = 1 << 16, FEW = 256, F32_BIT = 2148 - 300 };

static int f32_bit(uint32_t exponent) { /* of a square of a number with that exponent field */
    return F32_BIT + 2 * (int)(exponent > 0 ? exponent : 1);
}

static uint64_t f32_square(uint32_t bits, uint32_t *exponent) {
    *exponent = bits >> 23 & 0xff;
    uint64_t m = (bits & 0x7fffff) | (*exponent > 0 ? UINT32_C(1) << 23 : 0);
    return m * m;
}

static uint32_t f32_bits(const float *x) {
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    return bits;
}

/* By its bits: looking at a number may trap. */
static void count_nonfinite(dtr__squares *sum, bool is_nan) {
    sum->nan += is_nan ? 1 : 0;
    sum->infinite += is_nan ? 0 : 1;
}

static void add_few_f32(dtr__squares *sum, const float *x, size_t n) {
    for (size_t k = 0; k < n; k++) {
        uint32_t exponent;
        uint64_t square = f32_square(f32_bits(x + k), &exponent);
        if (exponent == EXPONENTS - 1) {
            count_nonfinite(sum, (f32_bits(x + k) & 0x7fffff) != 0);
        } else {
            add_at(sum, square, f32_bit(exponent));
        }
    }
}

/* At most BLOCK squares of less than 2^48: what one exponent sums up to fits 64 bits. Neighbours go
 * to different tables, so that one addition need not wait for the one before. */
static void add_block_f32(dtr__squares *sum, const float *x, size_t n) {
    uint64_t table[TABLES][EXPONENTS];
    memset(table, 0, sizeof table);
    for (size_t k = 0; k < n; k++) {
        uint32_t exponent;
        uint64_t square = f32_square(f32_bits(x + k), &exponent);
        table[k % TABLES][exponent] += square;
    }
    uint64_t nonfinite = 0;
    for (uint32_t e = 0; e < EXPONENTS; e++) {
        uint64_t all = 0;
        for (int t = 0; t < TABLES; t++) {
            all += table[t][e];
        }
        if (e == EXPONENTS - 1) {
            nonfinite = all;
        } else if (all != 0) {
            add_at(sum, all, f32_bit(e));
        }
    }
    for (size_t k = 0; k < n && nonfinite != 0; k++) {
        uint32_t bits = f32_bits(x + k);
        if ((bits >> 23 & 0xff) == EXPONENTS - 1) {
            count_nonfinite(sum, (bits & 0x7fffff) != 0);
        }
    }
}

static void add_f32(dtr__squares *sum, const float *x, size_t n) {
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t m = n - at < BLOCK ? n - at : BLOCK;
        if (m < FEW) {
            add_few_f32(sum, x + at, m);
        } else {
            add_block_f32(sum, x + at, m);
        }
        carry(sum);
    }
}

/* ---- double, and the rest ---- */

static void add_f64(dtr__squares *sum, const double *x, size_t n) {
    for (size_t k = 0; k < n; k++) {
        uint64_t bits;
        memcpy(&bits, x + k, sizeof bits);
        int exponent = (int)(bits >> 52 & 0x7ff);
        if (exponent == 0x7ff) {
            count_nonfinite(sum, bits << 12 != 0);
            continue;
        }
        uint64_t m = (bits & ((UINT64_C(1) << 52) - 1)) | (exponent > 0 ? UINT64_C(1) << 52 : 0);
        uint64_t low = m & UINT32_MAX, high = m >> DIGIT; /* m = high 2^32 + low */
        int bit = 2 * (exponent > 0 ? exponent : 1) - 2;
        add_at(sum, low * low, bit);
        add_at(sum, 2 * low * high, bit + DIGIT);
        add_at(sum, high * high, bit + 2 * DIGIT);
        if (k % BLOCK == BLOCK - 1) {
            carry(sum);
        }
    }
    carry(sum);
}

void dtr__squares_add(dtr__squares *sum, const void *data, size_t count, dtr_dtype dtype) {
    enum { SOME = 2048 };
    float wide[SOME];
    switch (dtype) {
    case DTR_F32:
        add_f32(sum, data, count);
        return;
    case DTR_C64:
        add_f32(sum, data, 2 * count);
        return;
    case DTR_F64:
        add_f64(sum, data, count);
        return;
    case DTR_C128:
        add_f64(sum, data, 2 * count);
        return;
    default:
        break;
    }
    for (size_t at = 0; at < count; at += SOME) {
        size_t n = count - at < SOME ? count - at : SOME;
        dtr__convert(wide, DTR_F32, (const char *)data + at * dtr_dtype_size(dtype), dtype, n);
        add_f32(sum, wide, n);
    }
}

static __attribute__((noinline)) void root_of(const dtr__squares *s, double *root) {
    int top = DTR__SQUARES_DIGITS - 1;
    while (top > 2 && s->digit[top] == 0) {
        top--;
    }
    /* 65 bits or more, of which a double takes 53; what is further down changes nothing it holds.
     */
    double value = ldexp((double)s->digit[top], 2 * DIGIT) +
                   ldexp((double)s->digit[top - 1], DIGIT) + (double)s->digit[top - 2];
    *root = ldexp(sqrt(value), (DIGIT * (top - 2) + LEAST) / 2);
}

double dtr__squares_root(const dtr__squares *sum) {
    dtr__squares s = *sum;
    double root = 0;
    carry(&s);
    const dtr__float_mode mode = dtr__float_enter();
    root_of(&s, &root);
    dtr__float_leave(mode);
    return s.nan > 0 ? (double)NAN : s.infinite > 0 ? (double)INFINITY : root;
}

/* In a function of its own (base/float_mode.h). */
static __attribute__((noinline)) void scale_down(const double *root, const double *most,
                                                 double *factor) {
    *factor = *most > 0 && *root > *most ? *most / *root : 1;
}

double dtr__squares_factor(double root, double most) {
    double factor = 1;
    const dtr__float_mode mode = dtr__float_enter();
    scale_down(&root, &most, &factor);
    dtr__float_leave(mode);
    return factor;
}
