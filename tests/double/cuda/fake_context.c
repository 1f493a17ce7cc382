/* Primary contexts: which call makes that of which device. As in CUDA 13.0: cudaSetDevice notes its
 * choice for the thread and makes the device's context current; a call that needs a context and
 * finds none current makes that of the thread's choice current, of device 0 where it never chose.
 * On a GPU each context takes hundreds of megabytes, and device 0 would have those of all ranks. */
#include "fake.h"

#include <stdatomic.h>
#include <string.h>

enum { DEPTH = 16 };
static _Atomic int opened[FAKE_DEVICES];
static _Thread_local int chosen; /* by cudaSetDevice */
static _Thread_local struct {
    int device[DEPTH];
    int n;
} stack; /* of the driver: the last is current */

int fake_device(void) {
    return stack.n > 0 ? stack.device[stack.n - 1] : chosen;
}

static void make_current(int device) {
    atomic_store(&opened[device], 1);
    stack.n += stack.n == 0 ? 1 : 0;
    stack.device[stack.n - 1] = device;
}

void fake_choose(int device) {
    chosen = device;
    make_current(device);
}

/* The calls whose code in CUDA 13.0 does not ask for a context. */
static bool needs_context(const char *function) {
    static const char *const free_of_it[] = {
        "cudaGetDevice",          "cudaGetDeviceCount",    "cudaGetDeviceProperties",
        "cudaDeviceGetAttribute", "cudaEventQuery",        "cudaPointerGetAttributes",
        "cudaEventSynchronize",   "cudaSetDevice",         "cudaEventElapsedTime",
        "cudaUserObjectCreate",   "cudaUserObjectRelease", "cudaGraphRetainUserObject",
    };
    for (size_t i = 0; i < sizeof free_of_it / sizeof free_of_it[0]; i++) {
        if (strcmp(free_of_it[i], function) == 0) {
            return false;
        }
    }
    return true;
}

void fake_context_enter(const char *function) {
    if (stack.n == 0 && needs_context(function)) {
        make_current(chosen);
    }
}

API int dtr_fake_cuda_context(int device) {
    return device >= 0 && device < FAKE_DEVICES && atomic_load(&opened[device]);
}

/* ---- what the driver's library calls ---- */

API int dtr_fake_cuda_context_open(int device) {
    cudaError_t e = fake_enter_any("cuDevicePrimaryCtxRetain", "device=%d", device);
    if (e == cudaSuccess && (device < 0 || device >= fake_set()->n_devices)) {
        e = cudaErrorInvalidDevice;
    }
    if (e == cudaSuccess) {
        atomic_store(&opened[device], 1);
    }
    return (int)e;
}

API int dtr_fake_cuda_context_current(int *device) {
    cudaError_t e = fake_enter_any("cuCtxGetCurrent", "%s", "");
    if (e == cudaSuccess) {
        *device = stack.n > 0 ? stack.device[stack.n - 1] : -1;
    }
    return (int)e;
}

API int dtr_fake_cuda_context_push(int device) {
    cudaError_t e = fake_enter_any("cuCtxPushCurrent", "device=%d", device);
    if (e == cudaSuccess && (device < 0 || device >= FAKE_DEVICES || !opened[device])) {
        e = (cudaError_t)201; /* CUDA_ERROR_INVALID_CONTEXT */
    }
    if (e == cudaSuccess && stack.n == DEPTH) {
        fake_die("more than %d contexts are pushed", DEPTH);
    }
    if (e == cudaSuccess) {
        stack.device[stack.n++] = device;
    }
    return (int)e;
}

API int dtr_fake_cuda_context_pop(int *device) {
    cudaError_t e = fake_enter_any("cuCtxPopCurrent", "device=%d", fake_device());
    if (e == cudaSuccess && stack.n == 0) {
        e = (cudaError_t)201;
    }
    if (e == cudaSuccess) {
        *device = stack.device[--stack.n];
    }
    return (int)e;
}
