/* One call on a device, for what is behind the tables of libdtr_cuda: makes the device's context
 * current and puts back what the caller had. The driver's stack of contexts does both:
 * cudaSetDevice would make a context on the device that it puts back, device 0 for a thread that
 * never chose one.
 */
#ifndef DTR_CUDA_SCOPE_H
#define DTR_CUDA_SCOPE_H

#include <stdbool.h>

#include <cuda_runtime_api.h>

typedef struct scope {
    bool pushed;       /* the device's context, which has to go again */
    cudaError_t stale; /* what the program's own calls left behind */
} scope;

/* Makes the primary context of the device current, unless it is; it is made when first asked for
 * and stays for the life of the process. */
cudaError_t dtr__cuda_push(int device, bool *pushed);
void dtr__cuda_pop(void);

static inline scope scope_begin(void) {
    return (scope){ .stale = cudaPeekAtLastError() };
}

/* Our failure is returned, so it must not stay behind as the program's; an older error of the
 * program stays. */
static inline int scope_end(const scope *s, cudaError_t e) {
    if (e != cudaSuccess && s->stale == cudaSuccess) {
        (void)cudaGetLastError();
    }
    if (s->pushed) {
        dtr__cuda_pop();
    }
    return (int)e;
}

static inline cudaError_t enter(scope *s, int device) {
    *s = scope_begin();
    return dtr__cuda_push(device, &s->pushed);
}

/* A thread of the library that looks at an event, or frees memory, must not ruin the capture of a
 * graph by whoever: CUDA forbids such calls to threads that have not said that they know. */
static inline enum cudaStreamCaptureMode exchange_mode(enum cudaStreamCaptureMode mode) {
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

#endif /* DTR_CUDA_SCOPE_H */
