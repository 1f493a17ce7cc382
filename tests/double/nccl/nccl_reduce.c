/* Reduction in rank order. Small floats are rounded after every step, as a chain of ranks would:
 * what needs more accuracy than that must not count on NCCL. */
#include <math.h>
#include <string.h>

#include "double_nccl.h"

size_t dn_type_size(ncclDataType_t t) {
    static const size_t sizes[ncclNumTypes] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
    return (unsigned)t < ncclNumTypes ? sizes[t] : 0;
}

/* ---- 16 and 8 bit floats: `e` exponent bits, `m` mantissa bits below the sign ---- */

static float widen(unsigned bits, int e, int m, bool has_infinity) {
    int bias = (1 << (e - 1)) - 1;
    unsigned mask = (1u << m) - 1, field = (bits >> m) & ((1u << e) - 1), frac = bits & mask;
    float sign = (bits >> (e + m)) & 1 ? -1.0f : 1.0f;
    if (field == (1u << e) - 1 && (has_infinity || frac == mask)) {
        return frac != 0 ? NAN : sign * INFINITY;
    }
    if (field == 0) {
        return sign * ldexpf((float)frac, 1 - bias - m);
    }
    return sign * ldexpf((float)(frac | (1u << m)), (int)field - bias - m);
}

static unsigned narrow(float x, int e, int m, bool has_infinity) {
    int bias = (1 << (e - 1)) - 1, top = (1 << e) - 1;
    unsigned sign = signbit(x) ? 1u << (e + m) : 0, mask = (1u << m) - 1;
    unsigned nan = ((unsigned)top << m) | (has_infinity ? 1u << (m - 1) : mask);
    unsigned over = has_infinity ? (unsigned)top << m : nan;
    if (isnan(x)) {
        return sign | nan;
    }
    x = fabsf(x);
    if (isinf(x)) {
        return sign | over;
    }
    int exponent = 0;
    if (x != 0) {
        frexpf(x, &exponent);
    }
    exponent = exponent - 1 < 1 - bias || x == 0 ? 1 - bias : exponent - 1;
    /* steps of the last place at this exponent, ties to even */
    float steps = nearbyintf(ldexpf(x, m - exponent));
    unsigned n = (unsigned)steps;
    unsigned bits = n < (1u << m) ? n : n + ((unsigned)(exponent + bias - 1) << m);
    unsigned limit = has_infinity ? (unsigned)top << m : (((unsigned)top << m) | mask);
    return sign | (bits >= limit ? over : bits);
}

static float load_f16(uint16_t b) {
    return widen(b, 5, 10, true);
}
static uint16_t store_f16(float x) {
    return (uint16_t)narrow(x, 5, 10, true);
}
static float load_e4m3(uint8_t b) {
    return widen(b, 4, 3, false);
}
static uint8_t store_e4m3(float x) {
    return (uint8_t)narrow(x, 4, 3, false);
}
static float load_e5m2(uint8_t b) {
    return widen(b, 5, 2, true);
}
static uint8_t store_e5m2(float x) {
    return (uint8_t)narrow(x, 5, 2, true);
}

static float load_bf16(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint16_t store_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if (isnan(x)) {
        return (uint16_t)((u >> 16) | 0x40);
    }
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* ---- one function per type ---- */

/* W: unsigned type in which sums and products wrap */
#define INTEGER(name, T, W)                                                                     \
    static void name(void *to, const char *const *from, int n, size_t count, const dn_op *op) { \
        T *out = to;                                                                            \
        for (size_t e = 0; e < count; e++) {                                                    \
            T a = ((const T *)from[0])[e];                                                      \
            for (int r = 1; r < n; r++) {                                                       \
                T b = ((const T *)from[r])[e];                                                  \
                if (op->kind == DN_PROD) {                                                      \
                    a = (T)((W)a * (W)b);                                                       \
                } else if (op->kind == DN_MAX) {                                                \
                    a = b > a ? b : a;                                                          \
                } else if (op->kind == DN_MIN) {                                                \
                    a = b < a ? b : a;                                                          \
                } else {                                                                        \
                    a = (T)((W)a + (W)b);                                                       \
                }                                                                               \
            }                                                                                   \
            out[e] = op->kind == DN_AVG ? (T)(a / (T)n) : a;                                    \
        }                                                                                       \
    }
INTEGER(reduce_i8, int8_t, uint32_t)
INTEGER(reduce_u8, uint8_t, uint32_t)
INTEGER(reduce_i32, int32_t, uint32_t)
INTEGER(reduce_u32, uint32_t, uint32_t)
INTEGER(reduce_i64, int64_t, uint64_t)
INTEGER(reduce_u64, uint64_t, uint64_t)

#define SAME(x) (x)
/* T is stored, F computed in; an average multiplies by 1/n before it adds, as NCCL's does */
#define FLOATING(name, T, F, LOAD, STORE)                                                       \
    static void name(void *to, const char *const *from, int n, size_t count, const dn_op *op) { \
        T *out = to;                                                                            \
        T factor = STORE((F)1 / (F)n);                                                          \
        bool scaled = op->kind == DN_AVG || op->kind == DN_PREMUL;                              \
        if (op->kind == DN_PREMUL) {                                                            \
            memcpy(&factor, op->device != NULL ? op->device : op->factor, sizeof factor);       \
        }                                                                                       \
        F by = LOAD(factor);                                                                    \
        for (size_t e = 0; e < count; e++) {                                                    \
            T a = ((const T *)from[0])[e];                                                      \
            a = scaled ? STORE(LOAD(a) * by) : a;                                               \
            for (int r = 1; r < n; r++) {                                                       \
                F x = LOAD(a), y = LOAD(((const T *)from[r])[e]);                               \
                if (op->kind == DN_PROD) {                                                      \
                    x = x * y;                                                                  \
                } else if (op->kind == DN_MAX) {                                                \
                    x = y > x ? y : x;                                                          \
                } else if (op->kind == DN_MIN) {                                                \
                    x = y < x ? y : x;                                                          \
                } else {                                                                        \
                    x = x + (scaled ? LOAD(STORE(y * by)) : y);                                 \
                }                                                                               \
                a = STORE(x);                                                                   \
            }                                                                                   \
            out[e] = a;                                                                         \
        }                                                                                       \
    }
FLOATING(reduce_f32, float, float, SAME, SAME)
FLOATING(reduce_f64, double, double, SAME, SAME)
FLOATING(reduce_f16, uint16_t, float, load_f16, store_f16)
FLOATING(reduce_bf16, uint16_t, float, load_bf16, store_bf16)
FLOATING(reduce_e4m3, uint8_t, float, load_e4m3, store_e4m3)
FLOATING(reduce_e5m2, uint8_t, float, load_e5m2, store_e5m2)

void dn_reduce(void *out, const char *const *in, int n, size_t count, ncclDataType_t t,
               const dn_op *op) {
    static void (*const by_type[ncclNumTypes])(void *, const char *const *, int, size_t,
                                               const dn_op *) = {
        reduce_i8,  reduce_u8,  reduce_i32, reduce_u32,  reduce_i64,  reduce_u64,
        reduce_f16, reduce_f32, reduce_f64, reduce_bf16, reduce_e4m3, reduce_e5m2
    };
    by_type[t](out, in, n, count, op);
}
