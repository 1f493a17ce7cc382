/* Element kernels: conversion between types and reduction, for every dtype and operator, chosen
 * once per process by CPU (scalar, AVX2, AVX-512, NEON). Pure functions on memory, but for those
 * of the program's own operators; no MPI, no allocation.
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

/* With an operator: sums of floats are exact and rounded once, so that their bits do not depend on
 * the order of the sources (exact.h). Without effect on others. */
enum { DTR__EXACT = 1 << 6 };

/* Reduce `n` sources in the order given: dst[k] = finish(src[0][k] op src[1][k] op ... op
 * src[n-1][k]), k < count. finish: AVG divides by `divisor` (integers: toward zero), 16-bit types
 * are rounded here, bool gives 0/1. PREMUL_SUM is SUM of inputs that dtr__premul has scaled, or,
 * with `factors` (one per source) given, scales while summing. dst may be exactly one of the
 * sources, else it must not overlap them. The pair must be legal by dtr_op_supports; n >= 1. A
 * result larger than the last cache is written by non-temporal stores when nothing is in place, so
 * pass it whole. Operators of the program go to user_ops.h. */
void dtr__reduce(void *dst, const void *const *src, int n, size_t count, dtr_dtype dtype, dtr_op op,
                 int divisor, const double *factors);

/* Which results are written by non-temporal stores. */
typedef enum dtr__nontemporal {
    DTR__NONTEMPORAL_NONE,
    DTR__NONTEMPORAL_ALL,   /* unless a destination is a source */
    DTR__NONTEMPORAL_OTHERS /* all but the first, whose reader is the writer */
} dtr__nontemporal;

/* The same of a piece of something larger to several destinations in one pass, which get the same
 * bits: what a zero-copy allreduce needs, where each rank writes its slice to all peers. Each may
 * be exactly one of the sources. The caller knows how large the whole is and who reads what. */
void dtr__reduce_piece(void *const *dst, int n_dst, const void *const *src, int n, size_t count,
                       dtr_dtype dtype, dtr_op op, int divisor, const double *factors,
                       dtr__nontemporal nontemporal);

/* memcpy of large pieces: as fast wherever in their pages the two begin. */
void dtr__copy(void *dst, const void *src, size_t nbytes);
/* memcpy whose result is not wanted in the caches. */
void dtr__copy_nontemporal(void *dst, const void *src, size_t nbytes);

/* A reduction that comes again and again: what dtr__reduce looks up, once. False: it cannot be
 * kept, use dtr__reduce. */
typedef struct dtr__reducer {
    void (*few)(void *dst, const void *const *src, int n, size_t count); /* NULL: take `loop` */
    void (*loop)(const struct dtr__reduce_job *job, size_t count);
    size_t count;
    dtr_op op;
} dtr__reducer;
bool dtr__reduce_keep(dtr__reducer *r, size_t count, dtr_dtype dtype, dtr_op op);
/* Unlike all others it leaves the floating-point mode (base/float_mode.h) to its caller. */
void dtr__reduce_kept(const dtr__reducer *r, void *dst, const void *const *src, int n, int divisor);

/* dst[k] = round(factor * src[k]) in the accumulator type; complex: both parts. dst == src is
 * legal. */
void dtr__premul(void *dst, const void *src, size_t count, dtr_dtype dtype, double factor);

/* A copy in which bytes that belong to no part of a pair are 0; dst == src is legal. */
void dtr__copy_clean(void *dst, const void *src, size_t count, dtr_dtype dtype);

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

/* The element that leaves every other as it is (bool and logical operators: 0 and 1) when both are
 * combined; false: the operator is not defined for the type, or is the program's, which has none.
 */
bool dtr__op_identity(dtr_op op, dtr_dtype dtype, void *element);
/* `count` of them, a piece of a result of `whole`; without one dst stays as it is. From so many
 * bytes on it is not wanted in the caches. */
enum { DTR__FILL_NONTEMPORAL = 8 << 20 };
void dtr__fill_identity(void *dst, size_t count, size_t whole, dtr_dtype dtype, dtr_op op);

/* Index of the first NaN, count when there is none (integers: always count). */
size_t dtr__find_nan(const void *src, size_t count, dtr_dtype dtype);

/* "avx512", "avx2", "neon", "scalar": the set in use; DTR_KERNELS in the environment (tests) forces
 * a lower one. */
const char *dtr__kernels_name(void);

/* One product, one quotient: factors that all ranks must find alike, in whichever floating-point
 * mode the program is. */
double dtr__product(double a, double b);
double dtr__quotient(double a, double b);

#endif /* DTR_KERNELS_H */
