/* The kernels, and the table by which the C part of libdtr_cuda launches them; NULL ends it. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "device_factor.h"
#include "device_step.h"
#include "device_strided.h"

#define DTR__KERNEL(name)                                                    \
    extern "C" __global__ void __launch_bounds__(DTR__KERNEL_THREADS)        \
        dtr_kernel_##name(const dtr__kernel_args a) {                        \
        dtr__body_##name(&a, (uint64_t)blockIdx.x *blockDim.x + threadIdx.x, \
                         (uint64_t)gridDim.x * blockDim.x);                  \
    }
DTR__ALL_KERNELS
#undef DTR__KERNEL

/* Read where the launch put it: a copy of the table per thread would fill local memory. */
#define DTR__MANY_SIZED(size, name)                                                          \
    extern "C" __global__ void __launch_bounds__(DTR__KERNEL_THREADS)                        \
        dtr_kernel_##size##_##name(const __grid_constant__ dtr__##size##_args a) {           \
        dtr__many_##name(&a.head, a.stretch, (uint64_t)blockIdx.x *blockDim.x + threadIdx.x, \
                         (uint64_t)gridDim.x * blockDim.x);                                  \
    }
#define DTR__MANY(name) DTR__MANY_SIZED(few, name) DTR__MANY_SIZED(most, name)
DTR__MANY_KERNELS(DTR__MANY)
#undef DTR__MANY
#undef DTR__MANY_SIZED

#define DTR__FACTOR(name)                                                           \
    extern "C" __global__ void __launch_bounds__(DTR__KERNEL_THREADS)               \
        dtr_kernel_factor_##name(const dtr__factor_args a) {                        \
        dtr__body_factor_##name(&a, (uint64_t)blockIdx.x *blockDim.x + threadIdx.x, \
                                (uint64_t)gridDim.x * blockDim.x);                  \
    }
DTR__FACTOR_KERNELS(DTR__FACTOR)
#undef DTR__FACTOR

#define DTR__STRIDED(name)                                                           \
    extern "C" __global__ void __launch_bounds__(DTR__KERNEL_THREADS)                \
        dtr_kernel_strided_##name(const __grid_constant__ dtr__strided_args a) {     \
        dtr__body_strided_##name(&a, (uint64_t)blockIdx.x *blockDim.x + threadIdx.x, \
                                 (uint64_t)gridDim.x * blockDim.x);                  \
    }
DTR__STRIDED_KERNELS(DTR__STRIDED)
#undef DTR__STRIDED

#define DTR__MANY_SIZED(size, name)                                                          \
    extern "C" __global__ void __launch_bounds__(DTR__KERNEL_THREADS)                        \
        dtr_kernel_##size##_##name(const __grid_constant__ dtr__##size##_step a) {           \
        dtr__steps_##name(&a.head, a.stretch, a.number,                                       \
                         (uint64_t)blockIdx.x *blockDim.x + threadIdx.x,                     \
                         (uint64_t)gridDim.x * blockDim.x);                                  \
    }
#define DTR__MANY(name) DTR__MANY_SIZED(few, name) DTR__MANY_SIZED(most, name)
DTR__STEP_KERNELS(DTR__MANY)
#undef DTR__MANY
#undef DTR__MANY_SIZED

#define DTR__STRIDED(name) (const void *)dtr_kernel_strided_##name,
#define DTR__FACTOR(name) (const void *)dtr_kernel_factor_##name,
#define DTR__KERNEL(name) (const void *)dtr_kernel_##name,
#define DTR__MANY(name) (const void *)dtr_kernel_few_##name, (const void *)dtr_kernel_most_##name,
extern "C" const void *const dtr__cuda_kernels[];
extern "C" const void *const dtr__cuda_kernels[] = { DTR__ALL_KERNELS DTR__MANY_KERNELS(DTR__MANY)
                                                         DTR__FACTOR_KERNELS(DTR__FACTOR)
                                                             DTR__STRIDED_KERNELS(DTR__STRIDED)
                                                                 DTR__STEP_KERNELS(DTR__MANY)
                                                                 NULL };
#undef DTR__STRIDED
#undef DTR__FACTOR
#undef DTR__KERNEL
#undef DTR__MANY
