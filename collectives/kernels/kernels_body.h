/* The loops of one instruction set; included by kernels_<set>.c, which is compiled for that set and
 * has defined
 *   VECTOR_BYTES              length of a vector (and included vectors.h)
 *   KERNEL_SET, KERNEL_NAME   the table and its name
 *   u16_widen, u32_narrow     half_v to u32_v and back (the lower halves)
 *   f16_widen, f16_narrow     half_v to f32_v and back, rounding to nearest even, if HAVE_F16
 *   bf16_round                f32_v to bf16 in the upper halves of u32_v, if HAVE_BF16_ROUND
 *   load_part, store_part     a vector of which only a part is in memory, if HAVE_PARTS
 *   leave_vectors             what code without wide vectors wants to find, if HAVE_LEAVE
 *   stream_vector, _half      an aligned non-temporal store of a vector or half of one, if
 *                             HAVE_STREAM
 * Every set gives the same bits: no contraction to fused operations, no other order of a sum. */
#include "formats.h"
#include "kernels_set.h"
#include "operators.h"

/* ---- whole and short vectors ---- */

#ifndef HAVE_PARTS
/* nbytes at p, at most a vector; the rest of it is zero. */
static ALWAYS_INLINE void load_part(void *vector, size_t size, const void *p, size_t nbytes) {
    if (nbytes < size) {
        memset(vector, 0, size);
    }
    memcpy(vector, p, nbytes);
}

static ALWAYS_INLINE void store_part(void *p, size_t nbytes, const void *vector, size_t size) {
    (void)size;
    memcpy(p, vector, nbytes);
}
#endif

#ifndef HAVE_LEAVE
static ALWAYS_INLINE void leave_vectors(void) {
}
#endif

#ifdef HAVE_STREAM
/* To memory aligned to 64 bytes, a vector or half of one. */
static ALWAYS_INLINE void store_nontemporal(void *p, const void *vector, size_t size) {
    if (size == VECTOR_BYTES) {
        stream_vector(p, vector);
    } else {
        stream_half(p, vector);
    }
}

/* Non-temporal stores are ordered by this only, not by a later release. */
static ALWAYS_INLINE void fence_nontemporal(void) {
    _mm_sfence();
}

/* What memcpy does where it does not take the string instructions. */
static void vector_copy(void *dst, const void *src, size_t nbytes) {
    char *d = dst;
    const char *s = src;
    size_t at = 0;
    for (; at + 2 * VECTOR_BYTES <= nbytes; at += 2 * VECTOR_BYTES) {
        u8_v first, second;
        memcpy(&first, s + at, VECTOR_BYTES);
        memcpy(&second, s + at + VECTOR_BYTES, VECTOR_BYTES);
        memcpy(d + at, &first, VECTOR_BYTES);
        memcpy(d + at + VECTOR_BYTES, &second, VECTOR_BYTES);
        __asm__ volatile("" ::: "memory"); /* or the compiler makes a call of memcpy of it */
    }
    memcpy(d + at, s + at, nbytes - at);
    leave_vectors();
}

/* Copy by non-temporal stores. */
static void stream_copy(void *dst, const void *src, size_t nbytes) {
    char *d = dst;
    const char *s = src;
    const size_t to_boundary = -(uintptr_t)d % VECTOR_BYTES;
    const size_t head = to_boundary < nbytes ? to_boundary : nbytes;
    memcpy(d, s, head);
    size_t at = head;
    for (; at + VECTOR_BYTES <= nbytes; at += VECTOR_BYTES) {
        stream_vector(d + at, s + at);
    }
    memcpy(d + at, s + at, nbytes - at);
    fence_nontemporal();
}
#else
static ALWAYS_INLINE void store_nontemporal(void *p, const void *vector, size_t size) {
    memcpy(p, vector, size);
}

static ALWAYS_INLINE void fence_nontemporal(void) {
}

#define stream_copy NULL
#define vector_copy NULL
#endif

/* ---- reductions ---- */

#define SAME(e) (e)

/* Means of integers, toward zero. No instruction set divides vectors of integers, but all divide
 * floats: with a sum of fewer bits than the float holds, the quotient differs from the next whole
 * number by more than rounding can move it. Left to the compiler's vectoriser. */
#define DEFINE_DIVIDE(name, C, F, Q)                           \
    static void divide_##name(C *sum, size_t n, int divisor) { \
        const F by = (F)divisor;                               \
        INDEPENDENT for (size_t k = 0; k < n; k++) {           \
            sum[k] = (C)(Q)((F)sum[k] / by);                   \
        }                                                      \
    }
DEFINE_DIVIDE(u8, uint8_t, float, int32_t)
DEFINE_DIVIDE(i8, int8_t, float, int32_t)
DEFINE_DIVIDE(i16, int16_t, float, int32_t)
DEFINE_DIVIDE(i32, int32_t, double, int32_t)
DEFINE_DIVIDE(u16, uint16_t, float, int32_t)
DEFINE_DIVIDE(u32, uint32_t, double, uint32_t)

/* A double whose last place is 1: added to a whole number of up to 51 bits, it makes the bits of
 * the sum count like the number. */
#define WHOLE 0x1.8p52
#define WHOLE_BITS UINT64_C(0x4338000000000000)

static void divide_i64(int64_t *sum, size_t n, int divisor) {
    const uint64_t limit = UINT64_C(1) << 51;
    const double by = divisor;
    uint64_t high = 0;
    INDEPENDENT for (size_t k = 0; k < n; k++) {
        high |= ((uint64_t)sum[k] + limit) >> 52;
    }
    if (high != 0) {
        for (size_t k = 0; k < n; k++) {
            sum[k] /= divisor;
        }
        return;
    }
    INDEPENDENT for (size_t k = 0; k < n; k++) {
        const double q = (f64_from_bits((uint64_t)sum[k] + WHOLE_BITS) - WHOLE) / by;
        const double near = (q + WHOLE) - WHOLE, one = q < 0 ? -1 : 1;
        const double cut = fabs(near) > fabs(q) ? near - one : near;
        sum[k] = (int64_t)(f64_bits(cut + WHOLE) - WHOLE_BITS);
    }
}

/* Numbers that the signed division takes are far from its limits; others are divided one by one. */
static void divide_u64(uint64_t *sum, size_t n, int divisor) {
    uint64_t high = 0;
    INDEPENDENT for (size_t k = 0; k < n; k++) {
        high |= sum[k] >> 51;
    }
    if (high == 0) {
        divide_i64((int64_t *)sum, n, divisor);
        return;
    }
    for (size_t k = 0; k < n; k++) {
        sum[k] /= (uint64_t)divisor;
    }
}

#define T truth
#define ELEM uint8_t
#define RAW u8_v
#define SUM u8_v
#define REAL uint8_t
#define DECODE(raw) ((u8_v)((raw) != 0) & 1)
#define ENCODE SAME
#define COMBINE(op, a, b) BIT_COMBINE(op, a, b)
#define OPS(X) BIT_OPS(X) LOGICAL_OPS(X) X(DTR_SUM) X(DTR_PROD) X(DTR_MIN) X(DTR_MAX)
#include "reduce_type.h"

/* Logical operators on wider whole numbers. */
#define T truth_16
#define ELEM uint16_t
#define RAW u16_v
#define SUM u16_v
#define REAL uint16_t
#define DECODE(raw) ((u16_v)((raw) != 0) & 1)
#define ENCODE SAME
#define COMBINE(op, a, b) BIT_COMBINE(op, a, b)
#define OPS LOGICAL_OPS
#include "reduce_type.h"

#define T truth_32
#define ELEM uint32_t
#define RAW u32_v
#define SUM u32_v
#define REAL uint32_t
#define DECODE(raw) ((u32_v)((raw) != 0) & 1)
#define ENCODE SAME
#define COMBINE(op, a, b) BIT_COMBINE(op, a, b)
#define OPS LOGICAL_OPS
#include "reduce_type.h"

#define T truth_64
#define ELEM uint64_t
#define RAW u64_v
#define SUM u64_v
#define REAL uint64_t
#define DECODE(raw) ((u64_v)((raw) != 0) & 1)
#define ENCODE SAME
#define COMBINE(op, a, b) BIT_COMBINE(op, a, b)
#define OPS LOGICAL_OPS
#include "reduce_type.h"

/* Bitwise operators on any integer type: its bytes. */
#define T bits
#define ELEM uint8_t
#define SUM u8_v
#define COMBINE(op, a, b) BIT_COMBINE(op, a, b)
#define OPS BIT_OPS
#include "reduce_type.h"

#define T u8
#define ELEM uint8_t
#define SUM u8_v
#define COMBINE(op, a, b) INT_COMBINE(u8_v, u8_v, op, a, b)
#define DIVIDE divide_u8
#define OPS INT_OPS
#include "reduce_type.h"

#define T i8
#define ELEM int8_t
#define SUM u8_v
#define COMBINE(op, a, b) INT_COMBINE(u8_v, i8_v, op, a, b)
#define DIVIDE divide_i8
#define OPS INT_OPS
#include "reduce_type.h"

#define T i16
#define ELEM int16_t
#define SUM u16_v
#define COMBINE(op, a, b) INT_COMBINE(u16_v, i16_v, op, a, b)
#define DIVIDE divide_i16
#define OPS INT_OPS
#include "reduce_type.h"

#define T i32
#define ELEM int32_t
#define SUM u32_v
#define COMBINE(op, a, b) INT_COMBINE(u32_v, i32_v, op, a, b)
#define DIVIDE divide_i32
#define OPS INT_OPS
#include "reduce_type.h"

#define T i64
#define ELEM int64_t
#define SUM u64_v
#define COMBINE(op, a, b) INT_COMBINE(u64_v, i64_v, op, a, b)
#define DIVIDE divide_i64
#define OPS INT_OPS
#include "reduce_type.h"

#define T u16
#define ELEM uint16_t
#define SUM u16_v
#define COMBINE(op, a, b) INT_COMBINE(u16_v, u16_v, op, a, b)
#define DIVIDE divide_u16
#define OPS INT_OPS
#include "reduce_type.h"

#define T u32
#define ELEM uint32_t
#define SUM u32_v
#define COMBINE(op, a, b) INT_COMBINE(u32_v, u32_v, op, a, b)
#define DIVIDE divide_u32
#define OPS INT_OPS
#include "reduce_type.h"

#define T u64
#define ELEM uint64_t
#define SUM u64_v
#define COMBINE(op, a, b) INT_COMBINE(u64_v, u64_v, op, a, b)
#define DIVIDE divide_u64
#define OPS INT_OPS
#include "reduce_type.h"

#define T f32
#define ELEM float
#define SUM f32_v
#define COMBINE(op, a, b) FLOAT_COMBINE(f32_v, u32_v, op, a, b)
#define MEAN(s, divisor) ((s) / (float)(divisor))
#define OPS FLOAT_OPS
#include "reduce_type.h"

#define T f64
#define ELEM double
#define SUM f64_v
#define COMBINE(op, a, b) FLOAT_COMBINE(f64_v, u64_v, op, a, b)
#define MEAN(s, divisor) ((s) / (double)(divisor))
#define OPS FLOAT_OPS
#include "reduce_type.h"

/* bfloat16 is the upper half of a float32. */
static ALWAYS_INLINE f32_v bf16_widen(half_v raw) {
    return (f32_v)(u16_widen(raw) << 16);
}

#ifndef HAVE_BF16_ROUND
/* The result is in the upper halves. A NaN becomes the one with all bits set: the cheapest. */
static ALWAYS_INLINE u32_v bf16_round(f32_v f) {
    const u32_v bits = (u32_v)f;
    return (bits + 0x7fff + ((bits >> 16) & 1)) | (u32_v)NAN_LANES(f);
}
#endif

/* Conversion keeps the sign and the upper bits of a NaN. */
static ALWAYS_INLINE half_v bf16_narrow(f32_v f) {
    return u32_narrow(SELECT(u32_v, NAN_LANES(f), (u32_v)f | 0x400000, bf16_round(f)) >> 16);
}

/* Two of them in 32 bits become two vectors without moving a lane: the lower and the upper halves.
 */
typedef struct bf16_pair {
    f32_v low, high;
} bf16_pair;

static ALWAYS_INLINE bf16_pair bf16_split(u32_v raw) {
    return (bf16_pair){ (f32_v)(raw << 16), (f32_v)(raw & 0xffff0000u) };
}

static ALWAYS_INLINE u32_v bf16_join(bf16_pair p) {
    return (bf16_round(p.low) >> 16) | (bf16_round(p.high) & 0xffff0000u);
}

static ALWAYS_INLINE bf16_pair bf16_combine(dtr_op op, bf16_pair a, bf16_pair b) {
    return (bf16_pair){ FLOAT_COMBINE(f32_v, u32_v, op, a.low, b.low),
                        FLOAT_COMBINE(f32_v, u32_v, op, a.high, b.high) };
}

#define T bf16
#define ELEM uint16_t
#define RAW u32_v
#define SUM bf16_pair
#define REAL float
#define DECODE bf16_split
#define ENCODE bf16_join
#define SCALE(s, factor) ((bf16_pair){ (s).low * (factor), (s).high * (factor) })
#define COMBINE bf16_combine
#define MEAN(s, divisor) ((bf16_pair){ (s).low / (float)(divisor), (s).high / (float)(divisor) })
#define OPS FLOAT_OPS
#include "reduce_type.h"

#ifdef HAVE_F16
#define T f16
#define ELEM uint16_t
#define RAW half_v
#define SUM f32_v
#define REAL float
#define DECODE f16_widen
#define ENCODE f16_narrow
#define COMBINE(op, a, b) FLOAT_COMBINE(f32_v, u32_v, op, a, b)
#define MEAN(s, divisor) ((s) / (float)(divisor))
#define OPS FLOAT_OPS
#include "reduce_type.h"
#else
#define reduce_f16 NULL /* goes through float32, tile by tile */
#endif

static void reduce_u8_or_bits(const dtr__reduce_job *job, size_t count) {
    (dtr__is_bitwise(job->op) ? reduce_bits : reduce_u8)(job, count);
}

#define DEFINE_NUMBERS_OR_TRUTH(width)                                                   \
    static void reduce_u##width##_or_truth(const dtr__reduce_job *job, size_t count) {   \
        (dtr__is_logical(job->op) ? reduce_truth_##width : reduce_u##width)(job, count); \
    }
DEFINE_NUMBERS_OR_TRUTH(16)
DEFINE_NUMBERS_OR_TRUTH(32)
DEFINE_NUMBERS_OR_TRUTH(64)

/* ---- conversion to and from float32 ---- */

/* Single elements, left to the compiler's vectoriser. dst may be src, so no iteration depends on
 * another. */
#define DEFINE_F32_LOOPS(name, C, LOAD, STORE)                                        \
    static void name##_to_f32(void *mid, const void *src, size_t n) {                 \
        f32_t *m = mid;                                                               \
        const C *s = src;                                                             \
        INDEPENDENT for (size_t k = 0; k < n; k++) {                                  \
            m[k] = LOAD(s[k]);                                                        \
        }                                                                             \
    }                                                                                 \
    static void name##_from_f32(void *dst, const void *mid, size_t n, double alpha) { \
        C *d = dst;                                                                   \
        const f32_t *m = mid;                                                         \
        const float scale = (float)alpha;                                             \
        INDEPENDENT for (size_t k = 0; k < n; k++) {                                  \
            d[k] = STORE(scale * m[k]);                                               \
        }                                                                             \
    }
DEFINE_F32_LOOPS(f8e4m3, u8_t, f8e4m3_decode, f8e4m3_encode)
DEFINE_F32_LOOPS(f8e5m2, u8_t, f8e5m2_decode, f8e5m2_encode)
DEFINE_F32_LOOPS(f32, f32_t, SAME, SAME)

/* 16-bit elements, a vector at a time; the last one may be short. */
#define DEFINE_F32_VECTORS(name)                                                              \
    static ALWAYS_INLINE void load_##name(f32_t *m, const u16_t *s, size_t n) {               \
        half_v raw;                                                                           \
        load_part(&raw, sizeof raw, s, n * sizeof *s);                                        \
        const f32_v f = name##_widen(raw);                                                    \
        store_part(m, n * sizeof *m, &f, sizeof f);                                           \
    }                                                                                         \
    static ALWAYS_INLINE void store_##name(u16_t *d, const f32_t *m, size_t n, float scale) { \
        f32_v f;                                                                              \
        load_part(&f, sizeof f, m, n * sizeof *m);                                            \
        const half_v raw = name##_narrow(f * scale);                                          \
        store_part(d, n * sizeof *d, &raw, sizeof raw);                                       \
    }                                                                                         \
    static void name##_to_f32(void *mid, const void *src, size_t n) {                         \
        f32_t *m = mid;                                                                       \
        const u16_t *s = src;                                                                 \
        size_t k = 0;                                                                         \
        for (; k + F32_LANES <= n; k += F32_LANES) {                                          \
            load_##name(m + k, s + k, F32_LANES);                                             \
        }                                                                                     \
        load_##name(m + k, s + k, n - k);                                                     \
        leave_vectors();                                                                      \
    }                                                                                         \
    static void name##_from_f32(void *dst, const void *mid, size_t n, double alpha) {         \
        u16_t *d = dst;                                                                       \
        const f32_t *m = mid;                                                                 \
        size_t k = 0;                                                                         \
        for (; k + F32_LANES <= n; k += F32_LANES) {                                          \
            store_##name(d + k, m + k, F32_LANES, (float)alpha);                              \
        }                                                                                     \
        store_##name(d + k, m + k, n - k, (float)alpha);                                      \
        leave_vectors();                                                                      \
    }
enum { F32_LANES = sizeof(f32_v) / sizeof(float) };
DEFINE_F32_VECTORS(bf16)
#ifdef HAVE_F16
DEFINE_F32_VECTORS(f16)
#else
DEFINE_F32_LOOPS(f16, u16_t, f16_decode, f16_encode)
#endif

/* ---- search ---- */

/* NaN: what lies above infinity when the sign is off (e4m3: above the largest number). */
#define DEFINE_HAS_NAN(name, C, elem, magnitude, largest)   \
    static bool has_nan_##name(const void *src, size_t n) { \
        const elem##_t *s = src;                            \
        C found = 0;                                        \
        for (size_t k = 0; k < n; k++) {                    \
            found |= (C)((s[k] & (magnitude)) > (largest)); \
        }                                                   \
        return found != 0;                                  \
    }
DEFINE_HAS_NAN(f8e4m3, uint8_t, u8, 0x7f, 0x7e)
DEFINE_HAS_NAN(f8e5m2, uint8_t, u8, 0x7f, 0x7c)
DEFINE_HAS_NAN(f16, uint16_t, u16, 0x7fff, 0x7c00)
DEFINE_HAS_NAN(bf16, uint16_t, u16, 0x7fff, 0x7f80)
DEFINE_HAS_NAN(f32, int32_t, i32, 0x7fffffff, 0x7f800000)
DEFINE_HAS_NAN(f64, int64_t, i64, INT64_MAX, INT64_C(0x7ff0000000000000))

#include "exact_body.h"

/* ---- the table ---- */

const dtr__kernel_set KERNEL_SET = {
    .name = KERNEL_NAME,
    .reduce = { [DTR_BOOL] = reduce_truth,
                [DTR_U8] = reduce_u8_or_bits,
                [DTR_I8] = reduce_i8,
                [DTR_I16] = reduce_i16,
                [DTR_I32] = reduce_i32,
                [DTR_I64] = reduce_i64,
                [DTR_F16] = reduce_f16,
                [DTR_BF16] = reduce_bf16,
                [DTR_F32] = reduce_f32,
                [DTR_F64] = reduce_f64,
                [DTR_U16] = reduce_u16_or_truth,
                [DTR_U32] = reduce_u32_or_truth,
                [DTR_U64] = reduce_u64_or_truth,
                [DTR_F32_INDEX] = dtr__reduce_f32_index,
                [DTR_F64_INDEX] = dtr__reduce_f64_index,
                [DTR_I64_INDEX] = dtr__reduce_i64_index },
    .to_f32 = { [DTR_F8E4M3] = f8e4m3_to_f32,
                [DTR_F8E5M2] = f8e5m2_to_f32,
                [DTR_F16] = f16_to_f32,
                [DTR_BF16] = bf16_to_f32,
                [DTR_F32] = f32_to_f32 },
    .from_f32 = { [DTR_F8E4M3] = f8e4m3_from_f32,
                  [DTR_F8E5M2] = f8e5m2_from_f32,
                  [DTR_F16] = f16_from_f32,
                  [DTR_BF16] = bf16_from_f32,
                  [DTR_F32] = f32_from_f32 },
    .copy = vector_copy,
    .stream = stream_copy,
    .has_nan = { [DTR_F8E4M3] = has_nan_f8e4m3,
                 [DTR_F8E5M2] = has_nan_f8e5m2,
                 [DTR_F16] = has_nan_f16,
                 [DTR_BF16] = has_nan_bf16,
                 [DTR_F32] = has_nan_f32,
                 [DTR_F64] = has_nan_f64 },
    .exact = { exact_top, exact_cut, exact_products, exact_look, exact_place, exact_collect,
               exact_round },
};
