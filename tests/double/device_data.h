/* Buffers on the device with known contents, for tests of collectives. */
#ifndef DTR_DEVICE_DATA_H
#define DTR_DEVICE_DATA_H

#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "harness.h"

static const dtr_device gpu = { DTR_CUDA, 0 };

static inline dtr_buffer device_f32(size_t n) {
    void *p = NULL;
    TH_IS(dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, n * sizeof(float), &p), DTR_OK);
    return (dtr_buffer){ p, n, DTR_F32, gpu };
}

static inline void put(dtr_buffer b, const float *from) {
    cudaError_t e = cudaMemcpy(b.data, from, b.count * sizeof(float), cudaMemcpyHostToDevice);
    if (e == cudaSuccess) { /* a copy from pageable memory may go on */
        e = cudaStreamSynchronize(NULL);
    }
    TH_CHECK(e == cudaSuccess, "copy to the device: %d", (int)e);
}

static inline void get(float *to, dtr_buffer b) {
    cudaError_t e = cudaMemcpy(to, b.data, b.count * sizeof(float), cudaMemcpyDeviceToHost);
    TH_CHECK(e == cudaSuccess, "copy from the device: %d", (int)e);
}

static inline dtr_buffer filled(size_t n, float value) {
    float *h = malloc(n * sizeof *h);
    dtr_buffer b = device_f32(n);
    for (size_t i = 0; i < n; i++) {
        h[i] = value + (float)(i % 7);
    }
    put(b, h);
    free(h);
    return b;
}

/* The buffer holds what `filled` gives, times `times`. */
static inline void check(dtr_buffer b, float value, float times, const char *what) {
    float *h = malloc(b.count * sizeof *h);
    get(h, b);
    for (size_t i = 0; i < b.count; i++) {
        float want = times * (value + (float)(i % 7));
        TH_CHECK(h[i] == want, "%s: element %zu is %g, not %g", what, i, (double)h[i],
                 (double)want);
    }
    free(h);
}

static inline void drop(dtr_buffer b) {
    TH_IS(dtr_free(th_world(), b.data), DTR_OK);
}

#endif /* DTR_DEVICE_DATA_H */
