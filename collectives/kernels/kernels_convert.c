/* Conversion between any two types. Pairs of f8 to f32 go through float32 by the loops of the set
 * in use; the rest through int64 or double, by loops that exist once. */
#include "base/float_mode.h"
#include "formats.h"
#include "kernels_set.h"
#include "loops.h"

/* ---- lists of types by the rule that converts them: X(..., name, element, elements per value) */
#define TRUTH_TYPE(X, ...) X(__VA_ARGS__, bool, u8, 1)
#define INTEGER_TYPES(X, ...)   \
    X(__VA_ARGS__, u8, u8, 1)   \
    X(__VA_ARGS__, i8, i8, 1)   \
    X(__VA_ARGS__, i16, i16, 1) \
    X(__VA_ARGS__, i32, i32, 1) \
    X(__VA_ARGS__, i64, i64, 1) \
    X(__VA_ARGS__, u16, u16, 1) X(__VA_ARGS__, u32, u32, 1) X(__VA_ARGS__, u64, u64, 1)
#define SMALL_TYPES(X, ...)       \
    X(__VA_ARGS__, f8e4m3, u8, 1) \
    X(__VA_ARGS__, f8e5m2, u8, 1) X(__VA_ARGS__, f16, u16, 1) X(__VA_ARGS__, bf16, u16, 1)
#define WIDE_TYPES(X, ...)      \
    X(__VA_ARGS__, f32, f32, 1) \
    X(__VA_ARGS__, f64, f64, 1) X(__VA_ARGS__, c64, f32, 2) X(__VA_ARGS__, c128, f64, 2)
#define PAIR_TYPES(X, ...) X(__VA_ARGS__, c64, f32, 2) X(__VA_ARGS__, c128, f64, 2)

#define LOAD_PLAIN(name, s) (*(s))
#define LOAD_TRUTH(name, s) (*(s) != 0)
#define LOAD_PAIR_TRUTH(name, s) (((s)[0] != 0) | ((s)[1] != 0))
#define LOAD_SMALL(name, s) name##_decode(*(s))
#define DEFINE_LOAD(MID, HOW, name, elem, width)                        \
    static void name##_to_##MID(void *mid, const void *src, size_t n) { \
        MID##_t *m = mid;                                               \
        const elem##_t *s = src;                                        \
        INDEPENDENT for (size_t k = 0; k < n; k++) {                    \
            m[k] = HOW(name, s + k * (width));                          \
        }                                                               \
    }

#define STORE_PLAIN(name, elem, v) (elem##_t)(v)
#define STORE_TRUTH(name, elem, v) ((v) != 0)
#define STORE_SATURATED(name, elem, v) name##_from_double(v)
#define STORE_SMALL_F64(name, elem, v) name##_encode(f32_odd_from_f64(v))
#define STORE_SMALL_I64(name, elem, v) name##_encode(f32_odd_from_i64(v))
#define STORE_SMALL_U64(name, elem, v) name##_encode(f32_odd_from_u64(v))
#define SCALE_f64(v) (alpha * (v))
#define SCALE_i64(v) (v)
#define SCALE_u64(v) (v)
#define DEFINE_STORE(MID, HOW, name, elem, width)                                       \
    static void name##_from_##MID(void *dst, const void *mid, size_t n, double alpha) { \
        elem##_t *d = dst;                                                              \
        const MID##_t *m = mid;                                                         \
        (void)alpha;                                                                    \
        INDEPENDENT for (size_t k = 0; k < n; k++) {                                    \
            d[k * (width)] = HOW(name, elem, SCALE_##MID(m[k]));                        \
            if ((width) == 2) {                                                         \
                d[k * (width) + (width)-1] = 0; /* the imaginary part */                \
            }                                                                           \
        }                                                                               \
    }

TRUTH_TYPE(DEFINE_LOAD, f64, LOAD_TRUTH)
INTEGER_TYPES(DEFINE_LOAD, f64, LOAD_PLAIN)
SMALL_TYPES(DEFINE_LOAD, f64, LOAD_SMALL)
WIDE_TYPES(DEFINE_LOAD, f64, LOAD_PLAIN)
TRUTH_TYPE(DEFINE_STORE, f64, STORE_TRUTH)
INTEGER_TYPES(DEFINE_STORE, f64, STORE_SATURATED)
SMALL_TYPES(DEFINE_STORE, f64, STORE_SMALL_F64)
WIDE_TYPES(DEFINE_STORE, f64, STORE_PLAIN)

TRUTH_TYPE(DEFINE_LOAD, i64, LOAD_TRUTH)
INTEGER_TYPES(DEFINE_LOAD, i64, LOAD_PLAIN)
PAIR_TYPES(DEFINE_LOAD, i64, LOAD_PAIR_TRUTH)
TRUTH_TYPE(DEFINE_STORE, i64, STORE_TRUTH)
INTEGER_TYPES(DEFINE_STORE, i64, STORE_PLAIN)
SMALL_TYPES(DEFINE_STORE, i64, STORE_SMALL_I64)
WIDE_TYPES(DEFINE_STORE, i64, STORE_PLAIN)

SMALL_TYPES(DEFINE_STORE, u64, STORE_SMALL_U64)
WIDE_TYPES(DEFINE_STORE, u64, STORE_PLAIN)

/* ---- tables ---- */

typedef void (*load_fn)(void *mid, const void *src, size_t n);
typedef void (*store_fn)(void *dst, const void *mid, size_t n, double alpha);

#define ALL(F)                                                                                \
    {                                                                                         \
        [DTR_BOOL] = bool_##F, [DTR_U8] = u8_##F, [DTR_I8] = i8_##F, [DTR_I16] = i16_##F,     \
        [DTR_I32] = i32_##F, [DTR_I64] = i64_##F, [DTR_F8E4M3] = f8e4m3_##F,                  \
        [DTR_F8E5M2] = f8e5m2_##F, [DTR_F16] = f16_##F, [DTR_BF16] = bf16_##F,                \
        [DTR_F32] = f32_##F, [DTR_F64] = f64_##F, [DTR_C64] = c64_##F, [DTR_C128] = c128_##F, \
        [DTR_U16] = u16_##F, [DTR_U32] = u32_##F, [DTR_U64] = u64_##F                         \
    }
static const load_fn to_f64[DTR__N_DTYPES] = ALL(to_f64);
static const store_fn from_f64[DTR__N_DTYPES] = ALL(from_f64);
static const store_fn from_i64[DTR__N_DTYPES] = ALL(from_i64);
static const load_fn to_i64[DTR__N_DTYPES] = {
    [DTR_BOOL] = bool_to_i64, [DTR_U8] = u8_to_i64,     [DTR_I8] = i8_to_i64,
    [DTR_I16] = i16_to_i64,   [DTR_I32] = i32_to_i64,   [DTR_I64] = i64_to_i64,
    [DTR_C64] = c64_to_i64,   [DTR_C128] = c128_to_i64, [DTR_U16] = u16_to_i64,
    [DTR_U32] = u32_to_i64,   [DTR_U64] = u64_to_i64, /* wraps, as between whole numbers */
};
/* Numbers that int64 does not hold; to whole numbers they wrap. */
static const store_fn from_u64[DTR__N_DTYPES] = {
    [DTR_F8E4M3] = f8e4m3_from_u64, [DTR_F8E5M2] = f8e5m2_from_u64, [DTR_F16] = f16_from_u64,
    [DTR_BF16] = bf16_from_u64,     [DTR_F32] = f32_from_u64,       [DTR_F64] = f64_from_u64,
    [DTR_C64] = c64_from_u64,       [DTR_C128] = c128_from_u64,
};

/* ---- choice of the way ---- */

typedef struct way {
    dtr_dtype middle;
    load_fn load;
    store_fn store;
} way;

static bool is_whole(dtr_dtype d) {
    return d == DTR_BOOL || dtr__is_integer(d);
}

static bool is_complex(dtr_dtype d) {
    return d == DTR_C64 || d == DTR_C128;
}

static bool fits_f32(dtr_dtype d) {
    return d >= DTR_F8E4M3 && d <= DTR_F32;
}

static way choose_way(const dtr__kernel_set *set, dtr_dtype to, dtr_dtype from, bool scale) {
    if (fits_f32(from) && fits_f32(to)) {
        return (way){ DTR_F32, set->to_f32[from], set->from_f32[to] };
    }
    if (!scale && from == DTR_U64 && from_u64[to] != NULL) {
        return (way){ DTR_U64, NULL, from_u64[to] };
    }
    if (!scale && (is_whole(from) || (is_complex(from) && to == DTR_BOOL))) {
        return (way){ DTR_I64, to_i64[from], from_i64[to] };
    }
    return (way){ DTR_F64, to_f64[from], from_f64[to] };
}

static void run(const way *w, void *dst, dtr_dtype to, const void *src, dtr_dtype from,
                size_t count, double alpha, bool scale) {
    const size_t from_size = dtr_dtype_size(from), to_size = dtr_dtype_size(to);
    if (from == w->middle) {
        w->store(dst, src, count, alpha);
        return;
    }
    if (to == w->middle && !scale) {
        w->load(dst, src, count);
        return;
    }
    int64_t middle[DTR__TILE]; /* or double, or float */
    for (size_t at = 0; at < count; at += DTR__TILE) {
        const size_t m = count - at < DTR__TILE ? count - at : DTR__TILE;
        w->load(middle, (const char *)src + at * from_size, m);
        w->store((char *)dst + at * to_size, middle, m, alpha);
    }
}

void dtr__convert_with(const dtr__kernel_set *set, void *dst, dtr_dtype to, const void *src,
                       dtr_dtype from, size_t count, double alpha, bool scale) {
    if (is_complex(from) && is_complex(to)) {
        count *= 2;
        from = dtr__real_part(from);
        to = dtr__real_part(to);
    }
    if (from == to && !scale) {
        memmove(dst, src, count * dtr_dtype_size(to));
        return;
    }
    const way w = choose_way(set, to, from, scale);
    const dtr__float_mode mode = dtr__float_enter();
    run(&w, dst, to, src, from, count, alpha, scale);
    dtr__float_leave(mode);
}

void dtr__convert(void *dst, dtr_dtype to, const void *src, dtr_dtype from, size_t count) {
    dtr__convert_with(dtr__kernels_current(), dst, to, src, from, count, 1, false);
}

void dtr__convert_scale(void *dst, dtr_dtype to, const void *src, dtr_dtype from, size_t count,
                        double alpha) {
    dtr__convert_with(dtr__kernels_current(), dst, to, src, from, count, alpha, true);
}

void dtr__premul(void *dst, const void *src, size_t count, dtr_dtype dtype, double factor) {
    dtr__convert_with(dtr__kernels_current(), dst, dtype, src, dtype, count, factor, true);
}

/* ---- single numbers ---- */

/* In functions of their own (base/float_mode.h). */
static __attribute__((noinline)) void multiply(const double *a, const double *b, double *product) {
    *product = *a * *b;
}

static __attribute__((noinline)) void divide(const double *a, const double *b, double *quotient) {
    *quotient = *a / *b;
}

double dtr__product(double a, double b) {
    double product = 0;
    const dtr__float_mode mode = dtr__float_enter();
    multiply(&a, &b, &product);
    dtr__float_leave(mode);
    return product;
}

double dtr__quotient(double a, double b) {
    double quotient = 0;
    const dtr__float_mode mode = dtr__float_enter();
    divide(&a, &b, &quotient);
    dtr__float_leave(mode);
    return quotient;
}
