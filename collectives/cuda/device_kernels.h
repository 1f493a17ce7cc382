/* The kernels for device memory: their list and the one argument all of them take. Plain C, for the
 * code that launches them, for the kernels and for the stand-in that runs their bodies. */
#ifndef DTR_DEVICE_KERNELS_H
#define DTR_DEVICE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* X(name): y = pattern; T(type, compute type): y *= alpha, y += alpha * x, sums of squares and
 * largest magnitudes by thread; C(to, from): conversions. */
/* clang-format off */
#define DTR__KERNEL_TYPES(T) T(f16, float) T(bf16, float) T(f32, float) T(f64, double)
#define DTR__KERNEL_CASTS(C)                        \
    C(f16, bf16) C(f16, f32) C(f16, f64)            \
    C(bf16, f16) C(bf16, f32) C(bf16, f64)          \
    C(f32, f16) C(f32, bf16) C(f32, f64)            \
    C(f64, f16) C(f64, bf16) C(f64, f32)
#define DTR__KERNELS_OF_TYPE(t, c) \
    DTR__KERNEL(scale_##t) DTR__KERNEL(axpy_##t) DTR__KERNEL(squares_##t) DTR__KERNEL(largest_##t)
/* clang-format on */
#define DTR__KERNEL_OF_CAST(to, from) DTR__KERNEL(to##_from_##from)
/* Every kernel, in order; define DTR__KERNEL(name) first. */
#define DTR__ALL_KERNELS \
    DTR__KERNEL(fill)    \
    DTR__KERNEL_TYPES(DTR__KERNELS_OF_TYPE) DTR__KERNEL_CASTS(DTR__KERNEL_OF_CAST)

#define DTR__KERNEL(name) DTR__KERNEL_##name,
typedef enum dtr__kernel { DTR__ALL_KERNELS DTR__N_KERNELS } dtr__kernel;
#undef DTR__KERNEL

/* Elements are handled in groups of 8, which are read and written 16 bytes at a time; `groups` of
 * them from the first on, 0 where an address is no multiple of 16, and then one by one up to n. */
enum { DTR__GROUP = 8, DTR__KERNEL_THREADS = 256 };
typedef struct dtr__kernel_args {
    void *y;
    const void *x;
    uint64_t n, groups;
    double alpha;
    uint64_t pattern[2]; /* of fill, whose elements are bytes and groups are 16 of them */
    uint64_t head;       /* bytes of fill before the first multiple of 16 */
} dtr__kernel_args;

#endif /* DTR_DEVICE_KERNELS_H */
