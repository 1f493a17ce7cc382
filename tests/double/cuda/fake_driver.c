/* libcuda.so.1: what the library calls of the driver itself, which is contexts. Their handles are
 * places of one array. */
#include <stddef.h>

#include <cuda.h>

#include "../fake_cuda.h"

enum { DEVICES = 8 };
static const char places[DEVICES];

static CUcontext handle_of(int device) {
    return device < 0 ? NULL : (CUcontext)(void *)(places + device);
}

/* -1: no handle of ours */
static int device_of(CUcontext c) {
    const char *at = (const char *)(void *)c;
    return at >= places && at < places + DEVICES ? (int)(at - places) : -1;
}

DTR_FAKE_API CUresult cuInit(unsigned flags) {
    (void)flags;
    return CUDA_SUCCESS;
}

DTR_FAKE_API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

DTR_FAKE_API CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice device) {
    CUresult r = (CUresult)dtr_fake_cuda_context_open(device);
    if (r == CUDA_SUCCESS) {
        *c = handle_of(device);
    }
    return r;
}

DTR_FAKE_API CUresult cuCtxGetCurrent(CUcontext *c) {
    int device = -1;
    CUresult r = (CUresult)dtr_fake_cuda_context_current(&device);
    if (r == CUDA_SUCCESS) {
        *c = handle_of(device);
    }
    return r;
}

DTR_FAKE_API CUresult cuCtxPushCurrent(CUcontext c) {
    return (CUresult)dtr_fake_cuda_context_push(device_of(c));
}

DTR_FAKE_API CUresult cuCtxPopCurrent(CUcontext *c) {
    int device = -1;
    CUresult r = (CUresult)dtr_fake_cuda_context_pop(&device);
    if (r == CUDA_SUCCESS && c != NULL) {
        *c = handle_of(device);
    }
    return r;
}
