/* Primary contexts through the driver, which is opened by name as the CUDA runtime does it. */
#include <dlfcn.h>
#include <pthread.h>

#include <cuda.h>

#include "memory/cuda/cuda_scope.h"

#define NAME_(name) #name
#define NAME(name) NAME_(name) /* with the version that cuda.h gives it */
#define ALL_FUNCTIONS(X)        \
    X(cuDeviceGet)              \
    X(cuDevicePrimaryCtxRetain) \
    X(cuCtxGetCurrent)          \
    X(cuCtxPushCurrent)         \
    X(cuCtxPopCurrent)

#define MEMBER(f) __typeof__(&f) f##_;
static struct { ALL_FUNCTIONS(MEMBER) } driver; /* constant after `once` */

enum { DEVICES = 128 };
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* while one is made */
static CUcontext primary[DEVICES];                       /* atomic; NULL: not yet */

static void open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library != NULL) {
/* A pointer to a function is read from dlsym's through its address, as POSIX shows. */
#define FIND(f) *(void **)&driver.f##_ = dlsym(library, NAME(f));
        ALL_FUNCTIONS(FIND)
    }
}

extern const void *const dtr__cuda_kernels[]; /* NULL ends it */

/* A kernel that is loaded by its first launch waits for what the context is doing, which may be a
 * collective that waits for a peer. What cannot be loaded says so when it is launched. */
static void load_kernels(CUcontext context) {
    CUcontext was = NULL;
    if (driver.cuCtxPushCurrent_(context) != CUDA_SUCCESS) {
        return;
    }
    const scope s = scope_begin();
    const enum cudaStreamCaptureMode mode = exchange_mode(cudaStreamCaptureModeRelaxed);
    cudaError_t worst = cudaSuccess;
    for (const void *const *k = dtr__cuda_kernels; *k != NULL; k++) {
        struct cudaFuncAttributes a;
        const cudaError_t e = cudaFuncGetAttributes(&a, *k);
        worst = e != cudaSuccess ? e : worst;
    }
    (void)exchange_mode(mode);
    (void)scope_end(&s, worst);
    (void)driver.cuCtxPopCurrent_(&was);
}

/* The driver's codes have the runtime's numbers as far as they say the same. */
static CUresult make(int device, CUcontext *context) {
    CUdevice d = 0;
    CUcontext made = NULL;
    pthread_mutex_lock(&lock);
    CUresult r = CUDA_SUCCESS;
    if (primary[device] == NULL) {
        r = driver.cuDeviceGet_(&d, device);
        r = r == CUDA_SUCCESS ? driver.cuDevicePrimaryCtxRetain_(&made, d) : r;
        if (r == CUDA_SUCCESS) {
            load_kernels(made);
        }
        __atomic_store_n(&primary[device], made, __ATOMIC_RELEASE);
    }
    *context = primary[device];
    pthread_mutex_unlock(&lock);
    return r;
}

cudaError_t dtr__cuda_push(int device, bool *pushed) {
    CUcontext now = NULL, own = NULL;
    pthread_once(&once, open_driver);
    if (device < 0 || device >= DEVICES || driver.cuCtxPopCurrent_ == NULL) {
        return device < 0 || device >= DEVICES ? cudaErrorInvalidDevice
                                               : cudaErrorInsufficientDriver;
    }
    own = __atomic_load_n(&primary[device], __ATOMIC_ACQUIRE);
    CUresult r = own != NULL ? CUDA_SUCCESS : make(device, &own);
    r = r == CUDA_SUCCESS ? driver.cuCtxGetCurrent_(&now) : r;
    if (r == CUDA_SUCCESS && now != own) {
        r = driver.cuCtxPushCurrent_(own);
        *pushed = r == CUDA_SUCCESS;
    }
    return (cudaError_t)r;
}

void dtr__cuda_pop(void) {
    CUcontext was = NULL;
    (void)driver.cuCtxPopCurrent_(&was);
}
