/* Slow and obvious number formats, independent of the library's: a double holds every element of
 * every type but int64 exactly. Shared by the kernel tests. */
#ifndef KERNELS_REF_H
#define KERNELS_REF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <check.h>

#include "base/dtype.h"
#include "data.h"
#include "kernels/formats.h"
#include "kernels/kernels_set.h"
#include "kernels/operators.h"

typedef struct ref_format {
    const char *name;
    dtr_dtype dtype;
    int E, M;
    unsigned top;  /* first magnitude that is no finite number */
    bool infinite; /* `top` is infinity and NaN lies above; else `top` is NaN */
} ref_format;

static const ref_format ref_formats[] = {
    { "f8e4m3", DTR_F8E4M3, 4, 3, 0x7f, false },
    { "f8e5m2", DTR_F8E5M2, 5, 2, 0x7c, true },
    { "f16", DTR_F16, 5, 10, 0x7c00, true },
    { "bf16", DTR_BF16, 8, 7, 0x7f80, true },
};
enum { REF_FORMATS = sizeof ref_formats / sizeof ref_formats[0] };

static inline const ref_format *ref_format_of(dtr_dtype d) {
    for (int i = 0; i < REF_FORMATS; i++) {
        if (ref_formats[i].dtype == d) {
            return &ref_formats[i];
        }
    }
    return NULL;
}

static inline double ref_decode(const ref_format *f, unsigned code) {
    const int bias = (1 << (f->E - 1)) - 1;
    const unsigned mag = code & ((1u << (f->E + f->M)) - 1);
    const int exponent = (int)(mag >> f->M);
    const double fraction = mag & ((1u << f->M) - 1);
    double v;
    if (mag >= f->top) {
        v = f->infinite && mag == f->top ? (double)INFINITY : (double)NAN;
    } else if (exponent == 0) {
        v = ldexp(fraction, 1 - bias - f->M);
    } else {
        v = ldexp(fraction + ldexp(1, f->M), exponent - bias - f->M);
    }
    return code >> (f->E + f->M) != 0 ? -v : v;
}

/* To nearest, ties to even, by nearbyint on the value scaled to units of its last place. */
static inline unsigned ref_encode(const ref_format *f, double v) {
    const int bias = (1 << (f->E - 1)) - 1;
    const unsigned sign = signbit(v) ? 1u << (f->E + f->M) : 0;
    if (isnan(v)) {
        return sign | f->top | (1u << (f->M - 1));
    }
    const double a = fabs(v);
    if (a == 0) {
        return sign;
    }
    int e = isinf(a) ? 2000 : ilogb(a);
    e = e < 1 - bias ? 1 - bias : e;
    if (e > bias + 1) {
        return sign | f->top;
    }
    const unsigned code =
        (unsigned)nearbyint(ldexp(a, f->M - e)) + ((unsigned)(e + bias - 1) << f->M);
    return sign | (code > f->top ? f->top : code);
}

/* The same for an integer, in integers; `whole`: its bits are those of an unsigned one. */
static inline unsigned ref_encode_int(const ref_format *f, int64_t v, bool whole) {
    const bool negative = v < 0 && !whole;
    const unsigned sign = negative ? 1u << (f->E + f->M) : 0;
    const uint64_t a = negative ? 0 - (uint64_t)v : (uint64_t)v;
    int shift = 0;
    while (a >> shift >= 2u << f->M) {
        shift++;
    }
    const uint64_t cut = a & (((uint64_t)1 << shift) - 1), half = (uint64_t)1 << shift >> 1;
    uint64_t kept = a >> shift;
    kept += shift > 0 && (cut > half || (cut == half && kept % 2 == 1)) ? 1 : 0;
    return sign | ref_encode(f, ldexp((double)kept, shift));
}

/* Element k of an integer type. */
static inline int64_t ref_int(const void *array, dtr_dtype d, size_t k) {
    const char *p = (const char *)array + k * dtr_dtype_size(d);
    const bool negative =
        d >= DTR_I8 && d <= DTR_I64 && p[dtr_dtype_size(d) - 1] < 0; /* little endian */
    int64_t v = negative ? -1 : 0;
    memcpy(&v, p, dtr_dtype_size(d));
    return d == DTR_BOOL ? v != 0 : v;
}

static inline int64_t ref_divide(dtr_dtype d, int64_t v, int by) {
    return d == DTR_U64 ? (int64_t)((uint64_t)v / (uint64_t)by) : v / by;
}

/* Element k as numbers. */
static inline double ref_get(const void *array, dtr_dtype d, size_t k, bool imaginary) {
    const char *p = (const char *)array + k * dtr_dtype_size(d);
    const ref_format *f = ref_format_of(d);
#define READ(C, v) \
    C v;           \
    memcpy(&v, p, sizeof v)
    if (f != NULL) {
        uint16_t code = 0;
        memcpy(&code, p, dtr_dtype_size(d));
        return ref_decode(f, code);
    }
    if (d == DTR_U64) {
        return (double)(uint64_t)ref_int(array, d, k);
    }
    if (d == DTR_BOOL || dtr__is_integer(d)) {
        return (double)ref_int(array, d, k);
    }
    switch (d) {
    case DTR_F32: {
        READ(float, v);
        return v;
    }
    case DTR_F64: {
        READ(double, v);
        return v;
    }
    case DTR_C64: {
        p += imaginary ? 4 : 0;
        READ(float, v);
        return v;
    }
    default: {
        p += imaginary ? 8 : 0;
        READ(double, v);
        return v;
    }
    }
#undef READ
}

/* Whether two elements have the same bits, or are both NaN in the same parts. */
static inline bool ref_same(const void *a, const void *b, dtr_dtype d, size_t k) {
    const size_t size = dtr_dtype_size(d), parts = dtr__real_part(d) == d ? 1 : 2;
    const char *x = (const char *)a + k * size, *y = (const char *)b + k * size;
    for (size_t part = 0; part < parts; part++) {
        const size_t at = part * size / parts;
        if (memcmp(x + at, y + at, size / parts) != 0 &&
            !(isnan(ref_get(x, d, 0, part == 1)) && isnan(ref_get(y, d, 0, part == 1)))) {
            return false;
        }
    }
    return true;
}

/* The sets of this CPU; returns how many. */
static inline int ref_sets(const dtr__kernel_set *sets[4]) {
    static const char *const names[] = { "scalar", "avx2", "avx512", "neon" };
    int n = 0;
    for (int i = 0; i < 4; i++) {
        const dtr__kernel_set *s = dtr__kernels_find(names[i]);
        if (s != NULL) {
            sets[n++] = s;
        }
    }
    return n;
}

/* Random bit patterns (every NaN, infinity and subnormal), or numbers of ordinary size. */
static inline void ref_fill(void *dst, dtr_dtype d, size_t count, bool any_bits, th_rng *g) {
    unsigned char *p = dst;
    if (d == DTR_BOOL) {
        for (size_t k = 0; k < count; k++) {
            p[k] = (unsigned char)(th_next(g) >> 40 & 1);
        }
    } else if (any_bits || dtr__is_integer(d)) {
        for (size_t k = 0; k < count * dtr_dtype_size(d); k++) {
            p[k] = (unsigned char)(th_next(g) >> 33);
        }
    } else {
        th_random_floats(dst, d, count, g, -3, 3);
    }
}

void add_convert_tests(Suite *s); /* kernels_convert.c */

#endif /* KERNELS_REF_H */
