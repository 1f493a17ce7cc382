/* Exact test data and guarded buffers. */
#include "data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

const dtr_dtype th_all_dtypes[TH_DTYPES] = {
    DTR_BOOL,   DTR_U8,  DTR_I8,   DTR_I16,       DTR_I32,       DTR_I64,      DTR_F8E4M3,
    DTR_F8E5M2, DTR_F16, DTR_BF16, DTR_F32,       DTR_F64,       DTR_C64,      DTR_C128,
    DTR_U16,    DTR_U32, DTR_U64,  DTR_F32_INDEX, DTR_F64_INDEX, DTR_I64_INDEX
};
const dtr_op th_all_ops[TH_OPS] = {
    DTR_SUM, DTR_AVG,  DTR_PROD,       DTR_MIN,  DTR_MAX, DTR_BAND,
    DTR_BOR, DTR_BXOR, DTR_PREMUL_SUM, DTR_LAND, DTR_LOR, DTR_LXOR
};

/* ---- small float formats, by arithmetic on doubles, independent of the library's bit tricks ----
 */

typedef struct format {
    int mantissa, bias,
        max_exp; /* stored mantissa bits, exponent bias, largest unbiased exponent */
    double max;
    unsigned inf, nan;
    int sign_bit;
} format;

static const format f16 = { 10, 15, 15, 65504.0, 0x7c00, 0x7e00, 15 };
static const format bf16 = { 7, 127, 127, 3.3895313892515355e38, 0x7f80, 0x7fc0, 15 };
static const format e4m3 = { 3, 7, 8, 448.0, 0x7f, 0x7f, 7 };
static const format e5m2 = { 2, 15, 15, 57344.0, 0x7c, 0x7f, 7 };

static unsigned encode(const format *f, double v) {
    unsigned sign = signbit(v) ? 1u << f->sign_bit : 0;
    double a = fabs(v);
    if (isnan(v)) {
        return sign | f->nan;
    }
    int exp = 0;
    frexp(a, &exp);
    int e =
        exp - 1 < 1 - f->bias ? 1 - f->bias : exp - 1; /* subnormals share the lowest exponent */
    double unit = ldexp(1.0, e - f->mantissa);
    double rounded = nearbyint(a / unit) * unit;
    if (isinf(a) || rounded > f->max) {
        return sign | f->inf;
    }
    if (rounded == 0) {
        return sign;
    }
    frexp(rounded, &exp);
    e = exp - 1 < 1 - f->bias ? 1 - f->bias : exp - 1;
    unsigned m = (unsigned)(rounded / ldexp(1.0, e - f->mantissa));
    unsigned hidden = 1u << f->mantissa;
    return m < hidden ? sign | m : sign | (unsigned)(e + f->bias) << f->mantissa | (m - hidden);
}

static double decode(const format *f, unsigned bits) {
    double s = bits >> f->sign_bit & 1 ? -1.0 : 1.0;
    unsigned mag = bits & ((1u << f->sign_bit) - 1), m = mag & ((1u << f->mantissa) - 1);
    int e = (int)(mag >> f->mantissa);
    if (f == &e4m3 ? mag == 0x7f : mag >= f->inf) {
        return f != &e4m3 && mag == f->inf ? s * INFINITY : NAN;
    }
    return e == 0 ? s * ldexp(m, 1 - f->bias - f->mantissa)
                  : s * ldexp((1u << f->mantissa) + m, e - f->bias - f->mantissa);
}

static const format *format_of(dtr_dtype d) {
    switch (d) {
    case DTR_F16:
        return &f16;
    case DTR_BF16:
        return &bf16;
    case DTR_F8E4M3:
        return &e4m3;
    case DTR_F8E5M2:
        return &e5m2;
    default:
        return NULL;
    }
}

static bool is_complex(dtr_dtype d) {
    return d == DTR_C64 || d == DTR_C128;
}

static bool is_unsigned(dtr_dtype d) {
    return d == DTR_U8 || d == DTR_U16 || d == DTR_U32 || d == DTR_U64;
}

static bool is_integer(dtr_dtype d) {
    return is_unsigned(d) || d == DTR_I8 || d == DTR_I16 || d == DTR_I32 || d == DTR_I64;
}

static void put_int(void *array, dtr_dtype d, size_t k, uint64_t v) {
    size_t size =
        dtr_dtype_size(d); /* little-endian hosts: the low bytes are the truncated value */
    memcpy((char *)array + k * size, &v, size);
}

static uint64_t get_int(const void *array, dtr_dtype d, size_t k) {
    switch (d) {
    case DTR_I8:
        return (uint64_t)(int64_t)((const int8_t *)array)[k];
    case DTR_I16:
        return (uint64_t)(int64_t)((const int16_t *)array)[k];
    case DTR_I32:
        return (uint64_t)(int64_t)((const int32_t *)array)[k];
    case DTR_I64:
        return (uint64_t)((const int64_t *)array)[k];
    case DTR_U16:
        return ((const uint16_t *)array)[k];
    case DTR_U32:
        return ((const uint32_t *)array)[k];
    case DTR_U64:
        return ((const uint64_t *)array)[k];
    default:
        return ((const uint8_t *)array)[k];
    }
}

void th_set(void *array, dtr_dtype d, size_t k, double re, double im) {
    const format *f = format_of(d);
    if (f != NULL) {
        put_int(array, d, k, encode(f, re));
        return;
    }
    switch (d) {
    case DTR_F32:
        ((float *)array)[k] = (float)re;
        break;
    case DTR_F64:
        ((double *)array)[k] = re;
        break;
    case DTR_C64:
        ((float *)array)[2 * k] = (float)re;
        ((float *)array)[2 * k + 1] = (float)im;
        break;
    case DTR_C128:
        ((double *)array)[2 * k] = re;
        ((double *)array)[2 * k + 1] = im;
        break;
    default:
        put_int(array, d, k, re >= 0x1p63 ? (uint64_t)re : (uint64_t)(int64_t)re);
    }
}

double th_get(const void *array, dtr_dtype d, size_t k, bool imag) {
    const format *f = format_of(d);
    if (f != NULL) {
        return decode(f, (unsigned)(dtr_dtype_size(d) == 2 ? ((const uint16_t *)array)[k]
                                                           : ((const uint8_t *)array)[k]));
    }
    switch (d) {
    case DTR_F32:
        return ((const float *)array)[k];
    case DTR_F64:
        return ((const double *)array)[k];
    case DTR_C64:
        return ((const float *)array)[2 * k + imag];
    case DTR_C128:
        return ((const double *)array)[2 * k + imag];
    case DTR_U64:
        return (double)((const uint64_t *)array)[k];
    default:
        return (double)(int64_t)get_int(array, d, k);
    }
}

/* ---- generators of the test catalogue, section 2.6 and 2.7 ---- */

static double exact(dtr_dtype d, size_t k, int r) {
    if (d == DTR_F8E4M3 || d == DTR_F8E5M2) {
        return (double)((k + 2 * (size_t)r) % 4) - 1;
    }
    double x = (double)((7 * k + 13 * (size_t)r) % 17);
    return is_unsigned(d) ? x : x - 8;
}

static bool negated(dtr_op op) {
    return op == DTR_PROD || op == DTR_BAND || op == DTR_MIN || op == DTR_LAND;
}

static bool is_bit_op(dtr_op op) {
    return op == DTR_BAND || op == DTR_BOR || op == DTR_BXOR;
}

static bool is_logical(dtr_op op) {
    return op == DTR_LAND || op == DTR_LOR || op == DTR_LXOR;
}

/* False for one rank in so many elements, or true, with any one bit set. */
static uint64_t truth(dtr_dtype d, dtr_op op, size_t k, int r, int W) {
    bool hit = (k + (size_t)r) % (size_t)(W + 1) == 0;
    return (uint64_t)(hit != negated(op)) << k % (8 * dtr_dtype_size(d));
}

/* ---- pairs ---- */

static bool is_pair(dtr_dtype d) {
    return d >= DTR_F32_INDEX;
}

/* Few values, neighbours having the same, and of floats some NaN. */
static double pair_value(dtr_dtype d, size_t k, int r) {
    return d != DTR_I64_INDEX && (k + 3 * (size_t)r) % 23 == 0
               ? NAN
               : (double)((7 * k + 13 * (size_t)(r / 2)) % 5) - 2;
}

static int64_t pair_index(size_t k, int r) {
    return (int64_t)((31 * k + 7919 * (size_t)r) % 1009) - 300;
}

/* What lies between value and index is `gap`. */
static void put_pair(void *array, dtr_dtype d, size_t at, double value, int64_t index, int gap) {
    char *to = (char *)array + at * sizeof(dtr_f64_index);
    const float single = (float)value;
    const int64_t whole = d != DTR_I64_INDEX   ? 0
                          : value == INFINITY  ? INT64_MAX
                          : value == -INFINITY ? INT64_MIN
                                               : (int64_t)value;
    memset(to, gap, offsetof(dtr_f64_index, index));
    memcpy(to,
           d == DTR_F32_INDEX   ? (const void *)&single
           : d == DTR_F64_INDEX ? (const void *)&value
                                : &whole,
           d == DTR_F32_INDEX ? sizeof single : sizeof value);
    memcpy(to + offsetof(dtr_f64_index, index), &index, sizeof index);
}

static void expect_pair(void *dst, size_t at, dtr_dtype d, dtr_op op, size_t k, int n) {
    int best = 0;
    for (int r = 1; r < n; r++) {
        double a = pair_value(d, k, best), b = pair_value(d, k, r);
        bool first = pair_index(k, r) < pair_index(k, best);
        bool beyond = op == DTR_MINLOC ? b < a : b > a;
        bool wins = isnan(a) ? isnan(b) && first : isnan(b) || beyond || (a == b && first);
        best = wins ? r : best;
    }
    put_pair(dst, d, at, pair_value(d, k, best), pair_index(k, best), 0);
}

static void fill_one(void *dst, size_t at, dtr_dtype d, dtr_op op, size_t k, int r, int W) {
    if (d == DTR_BOOL) {
        bool hit = (k + (size_t)r) % (size_t)(W + 1) == 0;
        ((uint8_t *)dst)[at] = hit != negated(op);
        return;
    }
    if (is_pair(d)) {
        put_pair(dst, d, at, pair_value(d, k, r), pair_index(k, r), 0x77);
        return;
    }
    if (is_bit_op(op)) {
        put_int(dst, d, at, UINT64_C(2654435761) * k + UINT64_C(40503) * (uint64_t)r);
        return;
    }
    if (is_logical(op)) {
        put_int(dst, d, at, truth(d, op, k, r, W));
        return;
    }
    if (op == DTR_PROD) {
        th_set(dst, d, at, (k + (size_t)r) % 3 == 0 ? 2 : 1, 0);
        return;
    }
    double by = op == DTR_AVG && !is_integer(d) ? W : op == DTR_PREMUL_SUM ? 2 : 1;
    th_set(dst, d, at, by * exact(d, k, r), -by * exact(d, k + 1, r));
}

/* After how many elements the data begin again; SIZE_MAX: never. */
static size_t period(dtr_dtype d, dtr_op op, int W) {
    if (d == DTR_BOOL) {
        return (size_t)W + 1;
    }
    return is_bit_op(op) || is_logical(op) || is_pair(d) ? SIZE_MAX
           : op == DTR_PROD                              ? 3
                                                         : (size_t)4 * 17;
}

/* The first n of count elements are there: put them again behind themselves, as often as needed. */
static void repeat(void *array, dtr_dtype d, size_t n, size_t count) {
    size_t size = dtr_dtype_size(d);
    for (size_t more = n; n < count; n += more) {
        more = n < count - n ? n : count - n;
        memcpy((char *)array + n * size, array, more * size);
    }
}

void th_fill(void *dst, dtr_dtype d, dtr_op op, size_t first, size_t count, int r, int W) {
    size_t n = period(d, op, W) < count ? period(d, op, W) : count;
    for (size_t i = 0; i < n; i++) {
        fill_one(dst, i, d, op, first + i, r, W);
    }
    repeat(dst, d, n, count);
}

static uint64_t combine_bits(dtr_op op, uint64_t a, uint64_t b) {
    return op == DTR_BAND ? a & b : op == DTR_BOR ? a | b : a ^ b;
}

static void expect_bool(uint8_t *dst, dtr_op op, size_t k, int n, int W) {
    uint8_t acc = 0, one = 0;
    for (int r = 0; r < n; r++) {
        fill_one(&one, 0, DTR_BOOL, op, k, r, W);
        acc = r == 0                             ? one
              : op == DTR_BXOR || op == DTR_LXOR ? acc ^ one
              : negated(op)                      ? acc & one
                                                 : acc | one;
    }
    *dst = acc;
}

static void expect_int(void *dst, size_t at, dtr_dtype d, dtr_op op, size_t k, int n, int W) {
    int64_t acc = 0;
    for (int r = 0; r < n; r++) {
        int64_t one = 0;
        fill_one(&one, 0, d, op, k, r, W);
        one = (int64_t)get_int(&one, d, 0);
        one = is_logical(op) ? one != 0 : one;
        if (r == 0) {
            acc = one;
        } else if (is_logical(op)) {
            acc = op == DTR_LXOR ? acc ^ one : op == DTR_LOR ? acc | one : acc & one;
        } else if (is_bit_op(op)) {
            acc = (int64_t)combine_bits(op, (uint64_t)acc, (uint64_t)one);
        } else if (op == DTR_PROD) {
            acc = (int64_t)((uint64_t)acc * (uint64_t)one);
        } else if (op == DTR_MIN || op == DTR_MAX) {
            acc = (op == DTR_MIN) == (one < acc) ? one : acc;
        } else {
            acc = (int64_t)((uint64_t)acc + (uint64_t)one);
        }
    }
    put_int(dst, d, at, (uint64_t)acc); /* wraps to the type */
    if (op == DTR_AVG) {
        put_int(dst, d, at, (uint64_t)((int64_t)get_int(dst, d, at) / n));
    }
}

static double mean(dtr_dtype d, double sum, int n, int W) {
    return n == W                          ? sum /* inputs were W times as large */
           : d == DTR_F64 || d == DTR_C128 ? sum * W / n
                                           : (double)((float)(sum * W) / (float)n);
}

static void expect_float(void *dst, size_t at, dtr_dtype d, dtr_op op, size_t k, int n, int W) {
    double re = 0, im = 0;
    for (int r = 0; r < n; r++) {
        double x = exact(d, k, r);
        if (op == DTR_PROD) {
            re = (r == 0 ? 1 : re) * ((k + (size_t)r) % 3 == 0 ? 2 : 1);
        } else if (op == DTR_MIN || op == DTR_MAX) {
            re = r == 0 || (op == DTR_MIN) == (x < re) ? x : re;
        } else {
            re = r == 0 ? x : re + x; /* so that one rank's -0 stays -0 */
            im = r == 0 ? -exact(d, k + 1, r) : im - exact(d, k + 1, r);
        }
    }
    if (op == DTR_AVG) {
        re = mean(d, re, n, W);
        im = mean(d, im, n, W);
    }
    th_set(dst, d, at, re, im);
}

static void expect_identity(void *dst, dtr_dtype d, dtr_op op) {
    const double most = d == DTR_F8E4M3 ? 448 : INFINITY;
    const size_t bits = 8 * dtr_dtype_size(d);
    const bool high = op == DTR_MIN, one = op == DTR_PROD || op == DTR_LAND;
    if (d == DTR_BOOL) {
        *(uint8_t *)dst = negated(op);
    } else if (is_pair(d)) {
        const double end = op == DTR_MINLOC ? INFINITY : -INFINITY;
        put_pair(dst, d, 0, end, INT64_MAX, 0);
    } else if (!is_integer(d)) {
        th_set(dst, d, 0, high ? most : op == DTR_MAX ? -most : one, 0);
    } else if (op == DTR_BAND || (high && is_unsigned(d))) {
        put_int(dst, d, 0, UINT64_MAX);
    } else if (high || (op == DTR_MAX && !is_unsigned(d))) {
        put_int(dst, d, 0, (UINT64_C(1) << (bits - 1)) - high);
    } else {
        put_int(dst, d, 0, one);
    }
}

void th_expect_prefix(void *dst, dtr_dtype d, dtr_op op, size_t first, size_t count, int n, int W) {
    size_t m = n == 0 ? 1 : period(d, op, W);
    m = m < count ? m : count;
    for (size_t i = 0; i < m; i++) {
        if (n == 0) {
            expect_identity(dst, d, op);
        } else if (d == DTR_BOOL) {
            expect_bool((uint8_t *)dst + i, op, first + i, n, W);
        } else if (is_pair(d)) {
            expect_pair(dst, i, d, op, first + i, n);
        } else if (is_integer(d)) {
            expect_int(dst, i, d, op, first + i, n, W);
        } else {
            expect_float(dst, i, d, op, first + i, n, W);
        }
    }
    repeat(dst, d, m, count);
}

void th_expect(void *dst, dtr_dtype d, dtr_op op, size_t first, size_t count, int W) {
    th_expect_prefix(dst, d, op, first, count, W, W);
}

/* After how many elements of any block the types begin again; SIZE_MAX: never. */
static size_t block_period(dtr_dtype d) {
    const size_t size = dtr_dtype_size(d);
    return d == DTR_BOOL               ? 8
           : format_of(d) != NULL      ? (size == 1 ? 7 : 127)
           : is_integer(d) && size < 4 ? (size_t)1 << 8 * size
                                       : SIZE_MAX;
}

static void fill_block_one(void *dst, dtr_dtype d, size_t k, uint64_t v) {
    if (d == DTR_BOOL) {
        ((uint8_t *)dst)[k] = (uint8_t)(v >> 2 ^ v) & 1;
    } else if (is_pair(d)) {
        put_pair(dst, d, k, (double)v, -(int64_t)v, 0x77);
    } else if (is_integer(d)) {
        put_int(dst, d, k, v);
    } else {
        double x =
            format_of(d) != NULL ? (double)(v % (dtr_dtype_size(d) == 1 ? 7 : 127)) : (double)v;
        th_set(dst, d, k, x, is_complex(d) ? -x - 1 : 0);
    }
}

void th_fill_block(void *dst, dtr_dtype d, size_t count, int j, int b) {
    const uint64_t first = (uint64_t)(10000 * j + 100 * b);
    const size_t n = block_period(d) < count ? block_period(d) : count;
    if (d == DTR_F32) { /* the type of large blocks */
        for (size_t k = 0; k < count; k++) {
            ((float *)dst)[k] = (float)(first + k);
        }
        return;
    }
    for (size_t k = 0; k < n; k++) {
        fill_block_one(dst, d, k, first + k);
    }
    repeat(dst, d, n, count);
}

size_t th_differs(const void *a, const void *b, dtr_dtype d, size_t count) {
    size_t size = dtr_dtype_size(d), k = 0;
    if (count == 0 || memcmp(a, b, count * size) == 0) {
        return count;
    }
    while (memcmp((const char *)a + k * size, (const char *)b + k * size, size) == 0) {
        k++;
    }
    return k;
}

/* ---- guarded buffers (HR11) ---- */

enum { GUARD = 64, POISON = 0xA5, GUARD_BYTE = 0x5C };

th_buf th_buf_new(size_t count, dtr_dtype d, dtr_mem kind, size_t shift) {
    th_buf b = { .nbytes = count * dtr_dtype_size(d), .shared = kind == DTR_MEM_SHARED };
    b.total = b.nbytes + shift + (size_t)2 * GUARD;
    if (b.shared) {
        void *p = NULL;
        ck_assert_int_eq(dtr_alloc(th_world(), (dtr_device){ DTR_CPU, 0 }, kind, b.total, &p),
                         DTR_OK);
        b.base = p;
    } else {
        b.base = aligned_alloc(64, (b.total + 63) / 64 * 64);
    }
    memset(b.base, GUARD_BYTE, b.total);
    b.data = b.base + GUARD + shift;
    memset(b.data, POISON, b.nbytes);
    return b;
}

static bool all_are(const unsigned char *from, const unsigned char *end, unsigned char byte) {
    return from == end || (*from == byte && memcmp(from, from + 1, (size_t)(end - from) - 1) == 0);
}

bool th_buf_ok(const th_buf *b, bool whole) {
    const unsigned char *first = b->data, *end = first + b->nbytes;
    return all_are(b->base, first, GUARD_BYTE) && all_are(end, b->base + b->total, GUARD_BYTE) &&
           (!whole || all_are(first, end, POISON));
}

void th_buf_free(th_buf *b) {
    if (b->shared) {
        dtr_free(th_world(), b->base);
    } else {
        free(b->base);
    }
    b->base = NULL;
}

/* ---- generator (splitmix64) ---- */

uint64_t th_next(th_rng *g) {
    uint64_t z = g->s += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

double th_uniform(th_rng *g) {
    return (double)(th_next(g) >> 11) * 0x1p-53;
}

/* 2^e of a normal number. */
static double power(int e) {
    const uint64_t bits = (uint64_t)(e + 1023) << 52;
    double p;
    memcpy(&p, &bits, sizeof p);
    return p;
}

void th_random_floats(void *dst, dtr_dtype d, size_t count, th_rng *g, int min_exp, int max_exp) {
    for (size_t k = 0; k < count; k++) {
        double part[2];
        for (int i = 0; i < 2; i++) {
            int e = min_exp + (int)(th_next(g) % (uint64_t)(max_exp - min_exp + 1));
            part[i] = (1 + th_uniform(g)) * power(e) * (th_next(g) & 1 ? 1 : -1);
        }
        th_set(dst, d, k, part[0], part[1]);
    }
}
