/* dtr-bench --device cuda: the CUDA runtime as a program uses it, opened when the option asks for
 * it, so that a host without CUDA can run all the rest. */
#include "bench.h"

#ifndef DTR_BENCH_CUDA

const bench_device_ops *const bench_device = NULL;

#else

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>

#include "bench_cuda.h"

/* Two steps, because headers give some functions another name by a macro. */
#define TEXT_(f) #f
#define TEXT(f) TEXT_(f)
#define MEMBER(f) __typeof__(&f) f;
#define FIND(f) *(void **)&cuda.f = bench_symbol(library, TEXT(f));
#define ALL_CUDA(X)                 \
    X(cudaGetErrorString)           \
    X(cudaSetDevice)                \
    X(cudaGetDeviceProperties)      \
    X(cudaMemcpyAsync)              \
    X(cudaStreamCreateWithPriority) \
    X(cudaStreamDestroy)            \
    X(cudaStreamSynchronize)        \
    X(cudaEventCreateWithFlags)     \
    X(cudaEventDestroy)             \
    X(cudaEventRecord)              \
    X(cudaEventElapsedTime)

enum {
    AT_ONCE = 512, /* calls before the clocks stop and the stream is emptied: queues are finite */
    UNIT = 4 << 20 /* bytes of a copy that stands for compute */
};

static struct {
    ALL_CUDA(MEMBER)
    cudaStream_t stream;
    cudaEvent_t from, to;
    dtr_world *world;
    void *scratch[2];
    double unit_s;     /* a copy of UNIT bytes takes */
    bool peer, paired; /* NCCL was asked for; it can be had */
    char name[300];
    dtr_coll_options options;
} cuda;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "dtr-bench: %s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

void *bench_symbol(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fail(name, "not in the library that was found");
    }
    return symbol;
}

static void require(cudaError_t e, const char *what) {
    if (e != cudaSuccess) {
        fail(what, cuda.cudaGetErrorString(e));
    }
}

static void *device_room(dtr_device d, size_t nbytes) {
    void *p = NULL;
    if (dtr_alloc(cuda.world, d, DTR_MEM_DEFAULT, nbytes, &p) != DTR_OK) {
        fail("device memory", dtr_last_error_message());
    }
    return p;
}

static double elapsed(void) {
    float ms = 0;
    require(cuda.cudaEventElapsedTime(&ms, cuda.from, cuda.to), "cudaEventElapsedTime");
    return 1e-3 * (double)ms;
}

static void record(cudaEvent_t event) {
    require(cuda.cudaEventRecord(event, cuda.stream), "cudaEventRecord");
}

static void synchronize(void) {
    require(cuda.cudaStreamSynchronize(cuda.stream), "cudaStreamSynchronize");
}

static void copy(void *to, const void *from, size_t nbytes, enum cudaMemcpyKind kind) {
    require(cuda.cudaMemcpyAsync(to, from, nbytes, kind, cuda.stream), "cudaMemcpyAsync");
}

/* ---- the table ---- */

static void device_compute(double seconds) {
    long n = lround(seconds / cuda.unit_s);
    for (long i = 0; seconds > 0 && i < (n > 0 ? n : 1); i++) {
        copy(cuda.scratch[0], cuda.scratch[1], UNIT, cudaMemcpyDeviceToDevice);
    }
}

/* How long one copy takes among others. */
static void calibrate(dtr_device d) {
    enum { TIMES = 16 };
    cuda.scratch[0] = device_room(d, UNIT);
    cuda.scratch[1] = device_room(d, UNIT);
    cuda.unit_s = 1;
    for (int round = 0; round < 2; round++) { /* the first one warms up */
        record(cuda.from);
        for (int i = 0; i < TIMES; i++) {
            device_compute(cuda.unit_s);
        }
        record(cuda.to);
        synchronize();
    }
    cuda.unit_s = measure_slowest(elapsed()) / TIMES;
    cuda.unit_s = cuda.unit_s > 0 ? cuda.unit_s : 1e-9;
}

static void device_open(dtr_world *w, dtr_device d, bool peer) {
    struct cudaDeviceProp p;
    char file[32];
    snprintf(file, sizeof file, "libcudart.so.%d", CUDART_VERSION / 1000);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL); /* the one that the library has opened */
    if (library == NULL) {
        fail(file, dlerror());
    }
    ALL_CUDA(FIND)
    cuda.world = w;
    require(cuda.cudaSetDevice(d.index), "cudaSetDevice");
    require(cuda.cudaGetDeviceProperties(&p, d.index), "cudaGetDeviceProperties");
    snprintf(cuda.name, sizeof cuda.name, "%s", p.name);
    require(cuda.cudaStreamCreateWithPriority(&cuda.stream, cudaStreamNonBlocking, 0),
            "cudaStreamCreateWithPriority");
    require(cuda.cudaEventCreateWithFlags(&cuda.from, cudaEventDefault), "cudaEventCreate");
    require(cuda.cudaEventCreateWithFlags(&cuda.to, cudaEventDefault), "cudaEventCreate");
    cuda.options = (dtr_coll_options)DTR_COLL_OPTIONS_INIT;
    cuda.options.stream = cuda.stream;
    calibrate(d);
    cuda.peer = peer;
    cuda.paired = peer && bench_nccl_open(dtr_world_rank(w), dtr_world_size(w));
}

static void device_close(void) {
    bench_nccl_close();
    dtr_free(cuda.world, cuda.scratch[0]);
    dtr_free(cuda.world, cuda.scratch[1]);
    require(cuda.cudaEventDestroy(cuda.from), "cudaEventDestroy");
    require(cuda.cudaEventDestroy(cuda.to), "cudaEventDestroy");
    require(cuda.cudaStreamDestroy(cuda.stream), "cudaStreamDestroy");
}

static const char *device_name(void) {
    return cuda.name;
}

static const char *device_peer(void) {
    return cuda.peer ? bench_nccl_text() : "none";
}

static bool device_has_peer(const bench_case *c) {
    return cuda.paired && bench_nccl_has(c);
}

static void device_call(const bench_case *c, const contender *who) {
    bench_nccl_call(c, who, cuda.stream);
}

static void device_upload(const bench_case *c, const contender *who) {
    copy(who->in, who->fresh, c->in_count * dtr_dtype_size(who->dtype), cudaMemcpyHostToDevice);
    synchronize();
}

static void device_download(const bench_case *c, const contender *who) {
    bool in = c->in_place || c->kind == BENCH_BROADCAST;
    copy(who->back, in ? who->in : who->out, c->out_count * dtr_dtype_size(who->dtype),
         cudaMemcpyDeviceToHost);
    synchronize();
}

static void device_sample(const bench_case *c, const contender *who, dtr_group *g, int calls,
                          double seconds[3]) {
    seconds[0] = seconds[1] = seconds[2] = 0;
    for (int done = 0; done < calls; done += AT_ONCE) {
        record(cuda.from);
        double start = measure_now();
        for (int i = done; i < calls && i < done + AT_ONCE; i++) {
            bench_call(c, who, g);
        }
        seconds[0] += measure_now() - start;
        record(cuda.to);
        synchronize();
        seconds[2] += measure_now() - start;
        seconds[1] += elapsed();
    }
}

static const dtr_coll_options *device_options(void) {
    return &cuda.options;
}

static const bench_device_ops ops = {
    .open = device_open,
    .close = device_close,
    .name = device_name,
    .peer = device_peer,
    .has_peer = device_has_peer,
    .call = device_call,
    .upload = device_upload,
    .download = device_download,
    .sample = device_sample,
    .compute = device_compute,
    .options = device_options,
};
const bench_device_ops *const bench_device = &ops;

#endif
