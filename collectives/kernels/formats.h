/* Number formats, one element at a time, written so that the compiler can vectorise loops over
 * them: f16, bf16, f8e4m3 and f8e5m2 to and from float32, and the conversions from double and int64
 * that have to be rounded once. No step makes or reads a float32 subnormal unless the value is one,
 * so a program that flushes subnormals gets the same 16-bit results. */
#ifndef DTR_FORMATS_H
#define DTR_FORMATS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__ /* kernels for device memory take them too */
#define DTR_FORMAT static __host__ __device__ inline
#else
#define DTR_FORMAT static inline
#endif

DTR_FORMAT uint32_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

DTR_FORMAT float f32_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

DTR_FORMAT uint64_t f64_bits(double d) {
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

DTR_FORMAT double f64_from_bits(uint64_t u) {
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

/* ---- formats with E exponent and M mantissa bits, E + M + 1 <= 16 ----
 * `top` is the first code above the finite numbers: infinity, or NaN where the format has none. */
#define FORMAT_BIAS(E) ((1u << ((E)-1)) - 1)

DTR_FORMAT float small_decode(uint32_t code, int E, int M, uint32_t top) {
    const uint32_t sign = code >> (E + M) << 31;
    const uint32_t mag = code & ((1u << (E + M)) - 1);
    const float smallest = f32_from_bits((128 - FORMAT_BIAS(E) - (uint32_t)M) << 23);
    const uint32_t subnormal = f32_bits((float)(int32_t)mag * smallest);
    const uint32_t normal = (mag << (23 - M)) + ((127 - FORMAT_BIAS(E)) << 23);
    const uint32_t infinite = (mag << (23 - M)) | 0x7f800000u;
    uint32_t bits = mag < 1u << M ? subnormal : normal;
    bits = mag >= top ? infinite : bits;
    bits |= mag > top ? 0x400000u : 0; /* a quiet NaN, whatever the input was */
    return f32_from_bits(sign | bits);
}

DTR_FORMAT uint32_t small_encode(float f, int E, int M, uint32_t top, uint32_t nan) {
    const int shift = 23 - M;
    const uint32_t bits = f32_bits(f), mag = bits & 0x7fffffffu;
    const uint32_t rebias = (127 - FORMAT_BIAS(E)) << 23;
    /* Rounding to nearest even: by integers for normal results; for subnormal ones by the float
     * adder, with a number whose last place is the format's smallest subnormal. */
    const uint32_t normal =
        (mag - rebias + (1u << (shift - 1)) - 1 + ((mag >> shift) & 1)) >> shift;
    const uint32_t magic = (151 - FORMAT_BIAS(E) - (uint32_t)M) << 23;
    const uint32_t subnormal = f32_bits(f32_from_bits(mag) + f32_from_bits(magic)) - magic;
    uint32_t code = mag < rebias + (1u << 23) ? subnormal : normal;
    code = code > top ? top : code;
    code = mag > 0x7f800000u ? nan | ((mag >> shift) & ((1u << M) - 1)) : code;
    return (bits >> 31 << (E + M)) | code;
}

DTR_FORMAT float f16_decode(uint16_t h) {
    return small_decode(h, 5, 10, 0x7c00);
}
DTR_FORMAT uint16_t f16_encode(float f) {
    return (uint16_t)small_encode(f, 5, 10, 0x7c00, 0x7e00);
}
DTR_FORMAT float f8e5m2_decode(uint8_t h) {
    return small_decode(h, 5, 2, 0x7c);
}
DTR_FORMAT uint8_t f8e5m2_encode(float f) {
    return (uint8_t)small_encode(f, 5, 2, 0x7c, 0x7e);
}

/* The one NaN of e4m3 is the code that infinity would have, were there one. */
DTR_FORMAT float f8e4m3_decode(uint8_t h) {
    const float f = small_decode(h, 4, 3, 0x80);
    return (h & 0x7f) == 0x7f ? f32_from_bits((uint32_t)(h & 0x80) << 24 | 0x7fc00000u) : f;
}
DTR_FORMAT uint8_t f8e4m3_encode(float f) {
    return (uint8_t)small_encode(f, 4, 3, 0x7f, 0x7f);
}

DTR_FORMAT float bf16_decode(uint16_t h) {
    return f32_from_bits((uint32_t)h << 16);
}
DTR_FORMAT uint16_t bf16_encode(float f) {
    const uint32_t bits = f32_bits(f);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

/* ---- rounding once from wider types ----
 * A value is first cut to a float32 whose last bit is set when anything was cut off ("round to
 * odd"). float32 has at least two bits more than every format above, so rounding that to nearest
 * even gives what rounding the value itself would have given. */
DTR_FORMAT float f32_odd_from_f64(double d) {
    const float f = (float)d;
    const double back = f;
    uint32_t bits = f32_bits(f);
    bits -= fabs(back) > fabs(d) ? 1 : 0;
    bits |= back != d ? 1 : 0;
    return d != d ? f : f32_from_bits(bits);
}

DTR_FORMAT float f32_odd_from_i64(int64_t x) {
    /* From 2^53 on the lowest 11 bits do not fit in a double: the last bit kept stands for them. */
    const int64_t cut = (x & ~INT64_C(0x7ff)) | ((x & 0x7ff) != 0 ? 0x800 : 0);
    const int fits = x < INT64_C(1) << 53 && x > -(INT64_C(1) << 53);
    return f32_odd_from_f64((double)(fits ? x : cut));
}

DTR_FORMAT float f32_odd_from_u64(uint64_t x) {
    /* A half with its last bit set where anything was cut off has the same number of digits. */
    const uint64_t half = x >> 1 | (x & 1);
    return x >> 63 != 0 ? 2 * f32_odd_from_i64((int64_t)half) : f32_odd_from_i64((int64_t)x);
}

/* ---- doubles to integers: toward zero, saturating, NaN gives 0 ---- */
#define DEFINE_FROM_F64(name, T, low, high)               \
    DTR_FORMAT T name##_from_double(double d) {           \
        d = d < (low) ? (low) : d;                        \
        return (T)(d != d ? 0 : d > (high) ? (high) : d); \
    }
DEFINE_FROM_F64(u8, uint8_t, 0.0, 255.0)
DEFINE_FROM_F64(i8, int8_t, -128.0, 127.0)
DEFINE_FROM_F64(i16, int16_t, -32768.0, 32767.0)
DEFINE_FROM_F64(i32, int32_t, -2147483648.0, 2147483647.0)
DEFINE_FROM_F64(u16, uint16_t, 0.0, 65535.0)
DEFINE_FROM_F64(u32, uint32_t, 0.0, 4294967295.0)

DTR_FORMAT int64_t i64_from_double(double d) {
    const int64_t inside = (int64_t)(fabs(d) < 0x1p63 ? d : 0);
    return d >= 0x1p63 ? INT64_MAX : d <= -0x1p63 ? INT64_MIN : inside;
}

DTR_FORMAT uint64_t u64_from_double(double d) {
    const int64_t low = (int64_t)(d > 0 && d < 0x1p63 ? d : 0);
    const int64_t high = (int64_t)(d >= 0x1p63 && d < 0x1p64 ? d - 0x1p63 : 0);
    return d >= 0x1p64   ? UINT64_MAX
           : d >= 0x1p63 ? (uint64_t)high | UINT64_C(1) << 63
                         : (uint64_t)low;
}

#endif /* DTR_FORMATS_H */
