/* One call on a device, for what is behind the tables of libdtr_cuda: makes the device current and
 * puts the caller's back. */
#ifndef DTR_CUDA_SCOPE_H
#define DTR_CUDA_SCOPE_H

#include <stdbool.h>

#include <cuda_runtime_api.h>

typedef struct scope {
    int before;        /* device of the caller */
    bool moved;        /* it has to be put back */
    cudaError_t stale; /* what the program's own calls left behind */
} scope;

static inline scope scope_begin(void) {
    return (scope){ .stale = cudaPeekAtLastError() };
}

/* Our failure is returned, so it must not stay behind as the program's; an older error of the
 * program stays. */
static inline int scope_end(const scope *s, cudaError_t e) {
    if (s->moved) {
        (void)cudaSetDevice(s->before);
    }
    if (e != cudaSuccess && s->stale == cudaSuccess) {
        (void)cudaGetLastError();
    }
    return (int)e;
}

static inline cudaError_t enter(scope *s, int device) {
    *s = scope_begin();
    cudaError_t e = cudaGetDevice(&s->before);
    if (e == cudaSuccess && s->before != device) {
        e = cudaSetDevice(device);
        s->moved = e == cudaSuccess;
    }
    return e;
}

#endif /* DTR_CUDA_SCOPE_H */
