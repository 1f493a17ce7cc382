/* Element kernels: conversion between types and reduction, for every dtype and operator, chosen
 * once per process by CPU (scalar, AVX2, AVX-512, NEON). Pure functions on memory; no MPI, no
 * allocation.
 *
 * Reduction goes through an accumulator type so that 16-bit and fp8 sums are rounded once:
 *   bool, integers, f32, f64, complex   accumulate in their own type
 *   f16, bf16, f8e4m3, f8e5m2           accumulate in float32
 *
 * Every set gives the same bits: sums run in the order of the sources, no multiply and add is
 * fused. The one exception: where a NaN comes out, it is a NaN in every set, with whatever sign and
 * payload. MIN and MAX give NaN when any input is NaN, and of equal values (-0 and +0) the first.
 */
#ifndef DTR_KERNELS_H
#define DTR_KERNELS_H

#include <dtr/coll.h>

struct dtr__reduce_job;

/* Reduce `n` sources in the order given: dst[k] = finish(src[0][k] op src[1][k] op ... op
 * src[n-1][k]), k < count. finish: AVG divides by `divisor` (integers: toward zero), 16-bit types
 * are rounded here, bool gives 0/1. PREMUL_SUM is SUM of inputs that dtr__premul has scaled, or,
 * with `factors` (one per source) given, scales while summing. dst may be exactly one of the
 * sources, else it must not overlap them. The pair must be legal by dtr_op_supports; n >= 1. */
void dtr__reduce(void *dst, const void *const *src, int n, size_t count, dtr_dtype dtype, dtr_op op,
                 int divisor, const double *factors);

/* The same to several destinations in one pass: what a zero-copy allreduce needs when each rank
 * writes its slice to all peers. dst[0..n_dst-1] get the same bits; each may be exactly one of the
 * sources. A job larger than the last cache is written past it when nothing is in place, so pass
 * it whole. */
void dtr__reduce_to(void *const *dst, int n_dst, const void *const *src, int n, size_t count,
                    dtr_dtype dtype, dtr_op op, int divisor, const double *factors);

/* Which results are written past the caches. */
typedef enum dtr__past {
    DTR__PAST_NONE,
    DTR__PAST_ALL,   /* unless a destination is a source */
    DTR__PAST_OTHERS /* all but the first, whose reader is the writer */
} dtr__past;

/* The same of a piece of something larger: the caller knows how large the whole is and who reads
 * what. */
void dtr__reduce_piece(void *const *dst, int n_dst, const void *const *src, int n, size_t count,
                       dtr_dtype dtype, dtr_op op, int divisor, const double *factors,
                       dtr__past past);

/* memcpy of large pieces: as fast wherever in their pages the two begin. */
void dtr__copy(void *dst, const void *src, size_t nbytes);
/* memcpy whose result is not wanted in the caches. */
void dtr__copy_past(void *dst, const void *src, size_t nbytes);

/* A reduction that comes again and again: what dtr__reduce looks up, once. False: it cannot be
 * kept, use dtr__reduce. */
typedef struct dtr__reducer {
    void (*few)(void *dst, const void *const *src, int n, size_t count); /* NULL: take `loop` */
    void (*loop)(const struct dtr__reduce_job *job, size_t count);
    size_t count;
    dtr_op op;
} dtr__reducer;
bool dtr__reduce_keep(dtr__reducer *r, size_t count, dtr_dtype dtype, dtr_op op);
void dtr__reduce_kept(const dtr__reducer *r, void *dst, const void *const *src, int n, int divisor);

/* dst[k] = round(factor * src[k]) in the accumulator type; complex: both parts. dst == src is
 * legal. */
void dtr__premul(void *dst, const void *src, size_t count, dtr_dtype dtype, double factor);

/* Convert `count` elements. Floats round to nearest even; float to integer truncates toward zero
 * and saturates, NaN gives 0; integer to integer wraps; anything to bool is != 0; complex to real
 * takes the real part (to bool: either part), real to complex adds a zero imaginary part. To f8e4m3
 * out of range saturates to NaN as its format has no infinity. Equal types copy bits. dst == src
 * only when the types have one size. */
void dtr__convert(void *dst, dtr_dtype to, const void *src, dtr_dtype from, size_t count);

/* dst[k] = round(alpha * (float or double) src[k]) with conversion: one pass for DDP's copy-in and
 * copy-out. The product is taken in float32 when both types are at most that, else in double. */
void dtr__convert_scale(void *dst, dtr_dtype to, const void *src, dtr_dtype from, size_t count,
                        double alpha);

/* Scalar conversions. */
float dtr__f16_to_f32(uint16_t h);
uint16_t dtr__f32_to_f16(float f);
float dtr__bf16_to_f32(uint16_t h);
uint16_t dtr__f32_to_bf16(float f);
float dtr__f8e4m3_to_f32(uint8_t h);
uint8_t dtr__f32_to_f8e4m3(float f);
float dtr__f8e5m2_to_f32(uint8_t h);
uint8_t dtr__f32_to_f8e5m2(float f);

/* Index of the first NaN, count when there is none (integers: always count). */
size_t dtr__find_nan(const void *src, size_t count, dtr_dtype dtype);

/* "avx512", "avx2", "neon", "scalar": the set in use; DTR_KERNELS in the environment (tests) forces
 * a lower one. */
const char *dtr__kernels_name(void);

#endif /* DTR_KERNELS_H */
