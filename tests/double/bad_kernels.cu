/* One kernel for each thing that kernels.py looks for. Nothing runs them. */
#include "cuda/device_kernels.h"

extern "C" __global__ void dtr_kernel_narrow(const dtr__kernel_args a) {
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += gridDim.x * blockDim.x) {
        ((float *)a.y)[i] = ((const float *)a.x)[i];
    }
}

/* Stores 16 bytes at a time, and loads one element. */
extern "C" __global__ void dtr_kernel_f32_from_bf16(const dtr__kernel_args a) {
    const uint16_t *x = (const uint16_t *)a.x + 8 * threadIdx.x;
    ((float4 *)a.y)[threadIdx.x] = make_float4(x[0], x[2], x[4], x[6]);
}

/* More live values than the registers of so many threads can hold. */
extern "C" __global__ void __launch_bounds__(1024, 2)
    dtr_kernel_spilling(const dtr__kernel_args a) {
    float kept[96];
    const float *x = (const float *)a.x;
    float *y = (float *)a.y;
#pragma unroll
    for (int i = 0; i < 96; i++) {
        kept[i] = x[i * 1024 + threadIdx.x];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 96; i++) {
        y[i * 1024 + threadIdx.x] = kept[i] * kept[95 - i];
    }
}

/* Without __grid_constant__ an index that is not known copies the table for each thread. */
extern "C" __global__ void dtr_kernel_few_copied(dtr__few_args a) {
    a.stretch[threadIdx.x].end += a.head.n;
    *(uint32_t *)a.stretch[threadIdx.x].to = a.stretch[blockIdx.x].end;
}
