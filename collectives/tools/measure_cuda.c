#include "measure_cuda.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

int measure_cuda_index(int count) {
    int local = 0;
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local);
    MPI_Comm_free(&host);
    return count > 0 ? local % count : 0;
}

#ifndef DTR_MEASURE_CUDA

const measure_cuda_ops *const measure_cuda = NULL;

#else

#include <cuda_runtime_api.h>

/* Two steps, because headers give some functions another name by a macro. */
#define TEXT_(f) #f
#define TEXT(f) TEXT_(f)
#define MEMBER(f) __typeof__(&f) f;
#define FIND(f) *(void **)&cuda.f = measure_symbol(program, library, TEXT(f));
#define ALL_CUDA(X)                 \
    X(cudaGetErrorString)           \
    X(cudaSetDevice)                \
    X(cudaGetDeviceProperties)      \
    X(cudaMalloc)                   \
    X(cudaFree)                     \
    X(cudaMemcpyAsync)              \
    X(cudaStreamCreateWithPriority) \
    X(cudaStreamDestroy)            \
    X(cudaStreamSynchronize)        \
    X(cudaEventCreateWithFlags)     \
    X(cudaEventDestroy)             \
    X(cudaEventRecord)              \
    X(cudaEventElapsedTime)

enum {
    UNIT = 16 << 20
}; /* bytes of a copy that stands for compute: takes longer than its launch */

static struct {
    ALL_CUDA(MEMBER)
    const char *program;
    cudaStream_t stream;
    cudaEvent_t from, to;
    void *scratch[2];
    double unit_s; /* a copy of UNIT bytes takes */
    char name[300];
} cuda;

static void fail(const char *program, const char *what, const char *why) {
    fprintf(stderr, "%s: %s: %s\n", program, what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

void *measure_symbol(const char *program, void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fail(program, name, "not in the library that was found");
    }
    return symbol;
}

static void require(cudaError_t e, const char *what) {
    if (e != cudaSuccess) {
        fail(cuda.program, what, cuda.cudaGetErrorString(e));
    }
}

static double cuda_elapsed(void) {
    float ms = 0;
    require(cuda.cudaEventElapsedTime(&ms, cuda.from, cuda.to), "cudaEventElapsedTime");
    return 1e-3 * (double)ms;
}

static void cuda_begin(void) {
    require(cuda.cudaEventRecord(cuda.from, cuda.stream), "cudaEventRecord");
}

static void cuda_end(void) {
    require(cuda.cudaEventRecord(cuda.to, cuda.stream), "cudaEventRecord");
}

static void cuda_synchronize(void) {
    require(cuda.cudaStreamSynchronize(cuda.stream), "cudaStreamSynchronize");
}

static void copy(void *to, const void *from, size_t nbytes, enum cudaMemcpyKind kind) {
    require(cuda.cudaMemcpyAsync(to, from, nbytes, kind, cuda.stream), "cudaMemcpyAsync");
}

static void cuda_upload(void *to, const void *from, size_t nbytes) {
    copy(to, from, nbytes, cudaMemcpyHostToDevice);
}

static void cuda_download(void *to, const void *from, size_t nbytes) {
    copy(to, from, nbytes, cudaMemcpyDeviceToHost);
}

static void cuda_compute(long copies) {
    for (long i = 0; i < copies; i++) {
        copy(cuda.scratch[0], cuda.scratch[1], UNIT, cudaMemcpyDeviceToDevice);
    }
}

/* How long one copy takes among others. */
static void calibrate(void) {
    enum { TIMES = 16 };
    require(cuda.cudaMalloc(&cuda.scratch[0], UNIT), "cudaMalloc");
    require(cuda.cudaMalloc(&cuda.scratch[1], UNIT), "cudaMalloc");
    for (int copies = 1; copies <= TIMES; copies += TIMES - 1) { /* the first one warms up */
        cuda_begin();
        cuda_compute(copies);
        cuda_end();
        cuda_synchronize();
    }
    cuda.unit_s = measure_slowest(cuda_elapsed()) / TIMES;
    cuda.unit_s = cuda.unit_s > 0 ? cuda.unit_s : 1e-9;
}

static void cuda_open(const char *program, int device) {
    struct cudaDeviceProp p;
    char file[32];
    snprintf(file, sizeof file, "libcudart.so.%d", CUDART_VERSION / 1000);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL); /* the one that the library has opened */
    if (library == NULL) {
        fail(program, file, dlerror());
    }
    ALL_CUDA(FIND)
    cuda.program = program;
    require(cuda.cudaSetDevice(device), "cudaSetDevice");
    require(cuda.cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
    snprintf(cuda.name, sizeof cuda.name, "%s", p.name);
    require(cuda.cudaStreamCreateWithPriority(&cuda.stream, cudaStreamNonBlocking, 0),
            "cudaStreamCreateWithPriority");
    require(cuda.cudaEventCreateWithFlags(&cuda.from, cudaEventDefault), "cudaEventCreate");
    require(cuda.cudaEventCreateWithFlags(&cuda.to, cudaEventDefault), "cudaEventCreate");
    calibrate();
}

static void cuda_close(void) {
    require(cuda.cudaFree(cuda.scratch[0]), "cudaFree");
    require(cuda.cudaFree(cuda.scratch[1]), "cudaFree");
    require(cuda.cudaEventDestroy(cuda.from), "cudaEventDestroy");
    require(cuda.cudaEventDestroy(cuda.to), "cudaEventDestroy");
    require(cuda.cudaStreamDestroy(cuda.stream), "cudaStreamDestroy");
}

static const char *cuda_name(void) {
    return cuda.name;
}

static void *cuda_stream(void) {
    return cuda.stream;
}

static double cuda_copy_s(void) {
    return cuda.unit_s;
}

static const measure_cuda_ops ops = {
    .open = cuda_open,
    .close = cuda_close,
    .name = cuda_name,
    .stream = cuda_stream,
    .upload = cuda_upload,
    .download = cuda_download,
    .begin = cuda_begin,
    .end = cuda_end,
    .elapsed = cuda_elapsed,
    .synchronize = cuda_synchronize,
    .copy_s = cuda_copy_s,
    .compute = cuda_compute,
};
const measure_cuda_ops *const measure_cuda = &ops;

#endif
