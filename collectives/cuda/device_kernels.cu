/* The kernels, and the table by which the C part of libdtr_cuda launches them. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cuda/device_bodies.h"

#define DTR__KERNEL(name)                                                    \
    extern "C" __global__ void __launch_bounds__(DTR__KERNEL_THREADS)        \
        dtr_kernel_##name(const dtr__kernel_args a) {                        \
        dtr__body_##name(&a, (uint64_t)blockIdx.x *blockDim.x + threadIdx.x, \
                         (uint64_t)gridDim.x * blockDim.x);                  \
    }
DTR__ALL_KERNELS
#undef DTR__KERNEL

#define DTR__KERNEL(name) (const void *)dtr_kernel_##name,
extern "C" const void *const dtr__cuda_kernels[];
extern "C" const void *const dtr__cuda_kernels[] = { DTR__ALL_KERNELS };
#undef DTR__KERNEL
