/* Tensors on the device, and what is in them, for tests of DDP. */
#ifndef DTR_DEVICE_TENSORS_H
#define DTR_DEVICE_TENSORS_H

#include <dtr/dtr.h>

#include "device_data.h"

static inline bool staged(void) {
    return getenv("DTR_TEST_STAGE") != NULL;
}

static inline dtr_tensor *on_gpu(dtr_dtype type, int64_t n, double value, cudaStream_t stream) {
    dtr_tensor *t = NULL;
    TH_IS(dtr_tensor_empty(th_world(), type, gpu, DTR_MEM_DEFAULT, 1, &n, &t), DTR_OK);
    TH_IS(dtr_tensor_fill(t, value, stream), DTR_OK);
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    return t;
}

static inline dtr_tensor *on_host(dtr_dtype type, int64_t n, dtr_mem kind) {
    const dtr_device cpu = { DTR_CPU, 0 };
    dtr_tensor *t = NULL;
    TH_IS(dtr_tensor_empty(th_world(), type, cpu, kind, 1, &n, &t), DTR_OK);
    return t;
}

/* A copy of it in host memory and another type, when the device has done all it was given. */
static inline dtr_tensor *fetched(const dtr_tensor *t, dtr_dtype type) {
    int64_t n = (int64_t)dtr_tensor_numel(t);
    dtr_tensor *here = on_host(dtr_tensor_dtype(t), n, DTR_MEM_PINNED);
    dtr_tensor *wide = on_host(type, n, DTR_MEM_DEFAULT);
    cudaStream_t s;
    TH_CHECK(cudaDeviceSynchronize() == cudaSuccess, "synchronize");
    TH_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_IS(dtr_tensor_copy(here, t, s), DTR_OK);
    TH_CHECK(cudaStreamSynchronize(s) == cudaSuccess, "synchronize");
    cudaStreamDestroy(s);
    TH_IS(dtr_tensor_copy(wide, here, NULL), DTR_OK);
    dtr_tensor_release(here);
    return wide;
}

static inline void check_each(const dtr_tensor *t, float want, const char *what, const char *name) {
    dtr_tensor *wide = fetched(t, DTR_F32);
    const float *v = dtr_tensor_data(wide);
    for (size_t k = 0; k < dtr_tensor_numel(wide); k++) {
        TH_CHECK(v[k] == want, "%s of '%s': element %zu is %g, not %g", what, name, k, (double)v[k],
                 (double)want);
    }
    dtr_tensor_release(wide);
}

/* A module on the host and one on the device with `n` parameters each, and the stream, end. */
static inline void close_both_sides(dtr_ddp *const ddp[2], dtr_tensor *const *values, int n,
                                    cudaStream_t stream) {
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_ddp_destroy(ddp[side]), DTR_OK);
    }
    for (int i = 0; i < 2 * n; i++) {
        dtr_tensor_release(values[i]);
    }
    cudaStreamDestroy(stream);
    TH_AGREE();
}

#endif /* DTR_DEVICE_TENSORS_H */
