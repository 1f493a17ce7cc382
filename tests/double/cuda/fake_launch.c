/* Kernels: nvcc's objects register theirs by name, and a launch runs the host body of that name,
 * compiled from the header that the kernel itself is made of. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

enum { KERNELS = 512 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const void *host;
    const char *name;
    unsigned loaded;     /* a bit for each device */
} registered[KERNELS];   /* lock */
static int n_registered; /* lock */

/* ---- what objects of nvcc call ---- */

void **__cudaRegisterFatBinary(void *fat);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int threads, void *tid, void *bid, void *block, void *grid, int *warp);
char __cudaInitModule(void **handle);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);

API void **__cudaRegisterFatBinary(void *fat) {
    static void *handle;
    (void)fat;
    return &handle;
}

API void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

API void __cudaUnregisterFatBinary(void **handle) {
    (void)handle;
}

API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                                int threads, void *tid, void *bid, void *block, void *grid,
                                int *warp) {
    (void)handle, (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid;
    (void)warp;
    fake_lock(&lock);
    if (n_registered == KERNELS) {
        fake_die("more than %d kernels are registered", KERNELS);
    }
    registered[n_registered].host = host;
    registered[n_registered++].name = name;
    fake_unlock(&lock);
}

API char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configuration;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared = shared;
    configuration.stream = stream;
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *(cudaStream_t *)stream = configuration.stream;
    return cudaSuccess;
}

API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    *kernel = (cudaKernel_t)(uintptr_t)host;
    return cudaSuccess;
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                                   size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel((const void *)kernel, grid, block, args, shared, stream);
}

/* ---- launches ---- */

typedef struct launch {
    const fake_kernel *kernel;
    const struct ptx_kernel *ptx; /* NULL: the body in C runs */
    unsigned blocks, threads;
    _Alignas(16) char argument[];
} launch;

static void run(const fake_kernel *k, const struct ptx_kernel *ptx, const void *argument,
                unsigned blocks, unsigned threads) {
    if (ptx != NULL) {
        fake_ptx_run(ptx, argument, blocks, threads);
        return;
    }
    for (unsigned tid = 0; tid < blocks * threads; tid++) {
        k->body(argument, tid, blocks * threads);
    }
}

static void run_kernel(void *arg) {
    launch *l = arg;
    run(l->kernel, l->ptx, l->argument, l->blocks, l->threads);
    free(l);
}

API int dtr_fake_cuda_run(const char *name, const void *argument, unsigned blocks, unsigned threads,
                          int ptx) {
    const fake_kernel *k = fake_kernel_named(name);
    const struct ptx_kernel *p = ptx ? fake_ptx_named(name) : NULL;
    if (k == NULL || (ptx && p == NULL)) {
        return -1;
    }
    run(k, p, argument, blocks, threads);
    return 0;
}

static const char *name_of(const void *host) {
    const char *name = NULL;
    fake_lock(&lock);
    for (int i = 0; i < n_registered && name == NULL; i++) {
        name = registered[i].host == host ? registered[i].name : NULL;
    }
    fake_unlock(&lock);
    return name;
}

/* A kernel is loaded when it is first asked for, as CUDA does it, and the context stands still
 * meanwhile: what the device has to do before is waited for. */
static void load(const void *host) {
    const unsigned bit = 1u << fake_device();
    const char *name = NULL;
    fake_lock(&lock);
    for (int i = 0; i < n_registered; i++) {
        if (registered[i].host == host && (registered[i].loaded & bit) == 0) {
            registered[i].loaded |= bit;
            name = registered[i].name;
        }
    }
    fake_unlock(&lock);
    if (name != NULL) {
        dtr_fake_cuda_log("loads-kernel", "%s device=%d", name, fake_device());
        fake_drain_device(fake_device());
    }
}

/* The library's kernels are compiled for 7.5 and later. */
static cudaError_t check_code(void) {
    return fake_set()->capability < 75 ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host) {
    cudaError_t e = fake_enter("cudaFuncGetAttributes", "%p", host);
    if (e == cudaSuccess && name_of(host) == NULL) {
        e = cudaErrorInvalidDeviceFunction;
    }
    e = e == cudaSuccess ? check_code() : e;
    if (e == cudaSuccess) {
        memset(a, 0, sizeof *a);
        a->maxThreadsPerBlock = 1024;
        load(host);
    }
    return fake_result(e);
}

static bool shape_is_legal(dim3 grid, dim3 block) {
    bool some = grid.x > 0 && grid.y > 0 && grid.z > 0 && block.x > 0 && block.y > 0 && block.z > 0;
    return some && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535 && block.z <= 64 &&
           (uint64_t)block.x * block.y * block.z <= 1024;
}

API cudaError_t cudaFuncGetName(const char **name, const void *host) {
    *name = name_of(host);
    return fake_result(*name != NULL ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

API cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args,
                                 size_t shared, cudaStream_t stream) {
    const char *name = name_of(host);
    cudaError_t e = fake_enter("cudaLaunchKernel", "%s grid=%u block=%u stream=%p",
                               name != NULL ? name : "?", grid.x, block.x, (void *)stream);
    if (e != cudaSuccess) {
        return fake_result(e);
    }
    if (check_code() != cudaSuccess) {
        return fake_result(check_code());
    }
    const fake_kernel *k = name != NULL ? fake_kernel_named(name) : NULL;
    if (k == NULL) {
        return fake_result(cudaErrorInvalidDeviceFunction);
    }
    if (!shape_is_legal(grid, block) || shared > 48 * 1024) {
        return fake_result(cudaErrorInvalidConfiguration);
    }
    fake_stream *s = fake_stream_of(stream);
    if (s == NULL || fake_stream_device(s) != fake_device()) {
        return fake_result(cudaErrorInvalidResourceHandle);
    }
    fake_stream_strict(s, name);
    load(host);
    launch *l = malloc(sizeof *l + k->nbytes);
    if (l == NULL) {
        return fake_result(cudaErrorMemoryAllocation);
    }
    l->kernel = k;
    l->ptx = fake_ptx_named(name);
    l->blocks = grid.x * grid.y * grid.z;
    l->threads = block.x * block.y * block.z;
    memcpy(l->argument, args[0], k->nbytes);
    return fake_push(s, k->name, run_kernel, l, sizeof *l + k->nbytes);
}
