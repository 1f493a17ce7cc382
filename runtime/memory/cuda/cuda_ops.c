/* The CUDA runtime behind the neutral table: the C part of libdtr_cuda. */
#include <stdio.h>
#include <string.h>

#include "memory/cuda/cuda_scope.h"
#include "memory/device.h"

#define ON_DEVICE(device, call)                     \
    do {                                            \
        scope scope_;                               \
        cudaError_t code_ = enter(&scope_, device); \
        if (code_ == cudaSuccess) {                 \
            code_ = (call);                         \
        }                                           \
        return scope_end(&scope_, code_);           \
    } while (0)

#define ANYWHERE(call)                     \
    do {                                   \
        scope scope_ = scope_begin();      \
        return scope_end(&scope_, (call)); \
    } while (0)

/* The mode is exchanged on the device: that call, too, makes a context where none is current. */
#define ON_DEVICE_RELAXED(device, call)                                                     \
    do {                                                                                    \
        scope scope_;                                                                       \
        cudaError_t code_ = enter(&scope_, device);                                         \
        if (code_ == cudaSuccess) {                                                         \
            enum cudaStreamCaptureMode mode_ = exchange_mode(cudaStreamCaptureModeRelaxed); \
            code_ = (call);                                                                 \
            (void)exchange_mode(mode_);                                                     \
        }                                                                                   \
        return scope_end(&scope_, code_);                                                   \
    } while (0)

/* ---- facts ---- */

static const char *error_text(int code) {
    return cudaGetErrorString((cudaError_t)code);
}

static int runtime_version(int *version) {
    ANYWHERE(cudaRuntimeGetVersion(version));
}

static int driver_version(int *version) {
    ANYWHERE(cudaDriverGetVersion(version));
}

static int count(int *n) {
    ANYWHERE(cudaGetDeviceCount(n));
}

static int current(int *device) {
    ANYWHERE(cudaGetDevice(device));
}

static int facts(int device, dtr__device_facts *f) {
    struct cudaDeviceProp p;
    scope s = scope_begin();
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e == cudaSuccess) {
        memset(f, 0, sizeof *f);
        snprintf(f->name, sizeof f->name, "%.*s", (int)sizeof f->name - 1, p.name);
        memcpy(f->uuid, p.uuid.bytes, sizeof f->uuid);
        f->nbytes = p.totalGlobalMem;
        f->multiprocessors = p.multiProcessorCount;
        f->major = p.major;
        f->minor = p.minor;
        f->pci = (dtr__pci){ p.pciDomainID, p.pciBusID, p.pciDeviceID };
    }
    return scope_end(&s, e);
}

/* ---- memory ---- */

static int device_alloc(int device, size_t nbytes, void **ptr) {
    ON_DEVICE_RELAXED(device, cudaMalloc(ptr, nbytes > 0 ? nbytes : 1));
}

/* On a stream of its own, that has nothing to wait for. */
static cudaError_t alloc_beside(int device, size_t nbytes, void **ptr) {
    int pools = 0;
    void *made = NULL;
    cudaStream_t stream = NULL;
    cudaError_t e = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device);
    if (e != cudaSuccess || pools == 0) {
        return cudaMalloc(ptr, nbytes);
    }
    e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) {
        return e;
    }
    e = cudaMallocAsync(&made, nbytes, stream);
    e = e == cudaSuccess ? cudaStreamSynchronize(stream) : e; /* all streams may use it then */
    (void)cudaStreamDestroy(stream);
    if (e == cudaSuccess) {
        *ptr = made;
    }
    return e;
}

static int device_alloc_beside(int device, size_t nbytes, void **ptr) {
    ON_DEVICE_RELAXED(device, alloc_beside(device, nbytes > 0 ? nbytes : 1, ptr));
}

static int device_free(int device, void *ptr) {
    ON_DEVICE_RELAXED(device, cudaFree(ptr));
}

static int pinned_alloc(int device, size_t nbytes, void **ptr) {
    ON_DEVICE_RELAXED(device, cudaHostAlloc(ptr, nbytes > 0 ? nbytes : 1, cudaHostAllocPortable));
}

static int pinned_free(int device, void *ptr) {
    ON_DEVICE_RELAXED(device, cudaFreeHost(ptr));
}

static int pin(int device, void *ptr, size_t nbytes) {
    ON_DEVICE_RELAXED(device, cudaHostRegister(ptr, nbytes, cudaHostRegisterPortable));
}

static int unpin(int device, void *ptr) {
    ON_DEVICE_RELAXED(device, cudaHostUnregister(ptr));
}

static int owner(const void *ptr, int *device) {
    struct cudaPointerAttributes a;
    scope s = scope_begin();
    cudaError_t e = cudaPointerGetAttributes(&a, ptr);
    if (e == cudaSuccess) {
        bool owned = a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged;
        *device = owned ? a.device : -1;
    }
    return scope_end(&s, e);
}

static int copy(int device, void *to, const void *from, size_t nbytes, dtr__copy_kind kind,
                void *stream) {
    static const enum cudaMemcpyKind kinds[] = {
        [DTR__COPY_TO_DEVICE] = cudaMemcpyHostToDevice,
        [DTR__COPY_TO_HOST] = cudaMemcpyDeviceToHost,
        [DTR__COPY_ON_DEVICE] = cudaMemcpyDeviceToDevice,
    };
    ON_DEVICE(device, cudaMemcpyAsync(to, from, nbytes, kinds[kind], stream));
}

static int fill(int device, void *ptr, int byte, size_t nbytes, void *stream) {
    ON_DEVICE(device, cudaMemsetAsync(ptr, byte, nbytes, stream));
}

/* ---- kernels ---- */

enum { KERNEL_THREADS = 256 };
extern const void *const dtr__cuda_kernels[];

/* The call returns its own status, where <<<>>> would leave it to cudaGetLastError. */
static int launch(int device, int kernel, const void *args, unsigned blocks, void *stream) {
    void *arguments[] = { (void *)(uintptr_t)args };
    dim3 grid = { .x = blocks, .y = 1, .z = 1 }, block = { .x = KERNEL_THREADS, .y = 1, .z = 1 };
    ON_DEVICE(device,
              cudaLaunchKernel(dtr__cuda_kernels[kernel], grid, block, arguments, 0, stream));
}

/* ---- streams and events ---- */

static cudaError_t new_stream(bool high_priority, cudaStream_t *stream) {
    int least = 0, greatest = 0;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    return e != cudaSuccess ? e
                            : cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking,
                                                           high_priority ? greatest : least);
}

static int stream_new(int device, bool high_priority, void **stream) {
    ON_DEVICE(device, new_stream(high_priority, (cudaStream_t *)stream));
}

static int stream_free(int device, void *stream) {
    ON_DEVICE(device, cudaStreamDestroy(stream));
}

static int stream_query(int device, void *stream) {
    ON_DEVICE_RELAXED(device, cudaStreamQuery(stream));
}

static int stream_synchronize(int device, void *stream) {
    ON_DEVICE_RELAXED(device, cudaStreamSynchronize(stream));
}

static int stream_wait(int device, void *stream, void *event) {
    ON_DEVICE(device, cudaStreamWaitEvent(stream, event, 0));
}

/* A stream of another device is as good as none; the default ones have no device of their own. CUDA
 * does not say it of one that captures, and would ruin the capture. */
static cudaError_t check_device_of(int device, void *stream) {
    int of = device;
    cudaError_t e = cudaSuccess;
#if CUDART_VERSION >= 12080
    if (stream != NULL && stream != cudaStreamLegacy && stream != cudaStreamPerThread) {
        e = cudaStreamGetDevice(stream, &of);
    }
#else
    (void)stream;
#endif
    return e == cudaSuccess && of != device ? cudaErrorInvalidResourceHandle : e;
}

static cudaError_t capturing(int device, void *stream, dtr__capture *capture) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t e = cudaStreamIsCapturing(stream, &status);
    e = e == cudaSuccess && status == cudaStreamCaptureStatusNone ? check_device_of(device, stream)
                                                                  : e;
    if (e == cudaSuccess) {
        *capture = status == cudaStreamCaptureStatusNone     ? DTR__NO_CAPTURE
                   : status == cudaStreamCaptureStatusActive ? DTR__CAPTURING
                                                             : DTR__CAPTURE_RUINED;
    }
    return e;
}

static int stream_capturing(int device, void *stream, dtr__capture *capture) {
    ON_DEVICE(device, capturing(device, stream, capture));
}

static cudaError_t watch_graph(void *stream, void (*gone)(void *), void *arg) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = NULL;
    cudaUserObject_t object;
#if CUDART_VERSION >= 13000
    cudaError_t e = cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, NULL);
#else
    cudaError_t e = cudaStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL);
#endif
    e = e == cudaSuccess && graph == NULL ? cudaErrorIllegalState : e;
    e = e == cudaSuccess
            ? cudaUserObjectCreate(&object, arg, gone, 1, cudaUserObjectNoDestructorSync)
            : e;
    if (e != cudaSuccess) {
        gone(arg);
        return e;
    }
    e = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
    if (e != cudaSuccess) {
        (void)cudaUserObjectRelease(object, 1); /* calls it */
    }
    return e;
}

static int capture_gone(int device, void *stream, void (*gone)(void *), void *arg) {
    scope s;
    cudaError_t e = enter(&s, device);
    if (e == cudaSuccess) {
        e = watch_graph(stream, gone, arg);
    } else {
        gone(arg);
    }
    return scope_end(&s, e);
}

static int event_new(int device, bool timed, void **event) {
    ON_DEVICE(device, cudaEventCreateWithFlags((cudaEvent_t *)event,
                                               timed ? cudaEventDefault : cudaEventDisableTiming));
}

static int event_free(int device, void *event) {
    ON_DEVICE(device, cudaEventDestroy(event));
}

static int event_record(int device, void *event, void *stream) {
    ON_DEVICE(device, cudaEventRecord(event, stream));
}

static int ask_event(int device, void *event) {
    ON_DEVICE_RELAXED(device, cudaEventQuery(event));
}

/* At the end of the process CUDA goes before the threads that ask, and nothing comes any more. */
static int event_query(int device, void *event) {
    int code = ask_event(device, event);
    return code == cudaErrorCudartUnloading ? cudaErrorNotReady : code;
}

static int event_elapsed(void *from, void *to, float *ms) {
    ANYWHERE(cudaEventElapsedTime(ms, from, to));
}

extern const dtr__device_ops dtr_cuda_device_ops;
__attribute__((visibility("default"))) const dtr__device_ops dtr_cuda_device_ops = {
    .abi = DTR__DEVICE_ABI,
    .toolkit = CUDART_VERSION,
    .code = DTR_CUDA_CODE,
    .error_text = error_text,
    .not_ready = cudaErrorNotReady,
    .runtime_version = runtime_version,
    .driver_version = driver_version,
    .count = count,
    .current = current,
    .facts = facts,
    .alloc = device_alloc,
    .alloc_beside = device_alloc_beside,
    .free = device_free,
    .pinned_alloc = pinned_alloc,
    .pinned_free = pinned_free,
    .pin = pin,
    .unpin = unpin,
    .owner = owner,
    .copy = copy,
    .fill = fill,
    .launch = launch,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_query = stream_query,
    .stream_synchronize = stream_synchronize,
    .stream_wait = stream_wait,
    .stream_capturing = stream_capturing,
    .capture_gone = capture_gone,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_query = event_query,
    .event_elapsed = event_elapsed,
};
