/* Facts about a machine with GPUs, before anything of dtr runs there: speed of copies, whether
 * processes can share device memory, what NCCL says. Started under the launcher; rank 0 prints
 * lines "key value". Status 0: the step worked; 1: it did not, with the reason; 77: cannot be
 * asked here. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

enum { SKIPPED = 77, ROUNDS = 20 };

static int rank, ranks;

/* Whether all ranks got through a step; the first to fail says why. */
static bool all_well(const char *step, int code, const char *text) {
    int mine = code == 0 ? ranks : rank, first = 0;
    MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first == rank && code != 0) {
        printf("error rank %d: %s gave %d: %s\n", rank, step, code, text);
        fflush(stdout);
    }
    return first == ranks;
}

static bool cuda_well(const char *step, cudaError_t code) {
    return all_well(step, (int)code, cudaGetErrorString(code));
}

/* ---- copies ---- */

typedef struct copies {
    char *device[2], *host[2];
    size_t nbytes;
    cudaStream_t stream[2];
    cudaEvent_t begin, end;
} copies;

/* One repetition of a kind of copy: "both" moves data in two directions at once. */
static cudaError_t copy_once(copies *c, const char *kind) {
    if (strcmp(kind, "d2d") == 0) {
        return cudaMemcpyAsync(c->device[1], c->device[0], c->nbytes, cudaMemcpyDeviceToDevice,
                               c->stream[0]);
    }
    if (strcmp(kind, "h2d") == 0) {
        return cudaMemcpyAsync(c->device[0], c->host[0], c->nbytes, cudaMemcpyHostToDevice,
                               c->stream[0]);
    }
    if (strcmp(kind, "d2h") == 0) {
        return cudaMemcpyAsync(c->host[0], c->device[0], c->nbytes, cudaMemcpyDeviceToHost,
                               c->stream[0]);
    }
    cudaError_t e =
        cudaMemcpyAsync(c->device[0], c->host[0], c->nbytes, cudaMemcpyHostToDevice, c->stream[0]);
    return e != cudaSuccess ? e
                            : cudaMemcpyAsync(c->host[1], c->device[1], c->nbytes,
                                              cudaMemcpyDeviceToHost, c->stream[1]);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of one repetition, from before its first copy to after its last. */
static cudaError_t time_copies(copies *c, const char *kind, double *seconds) {
    double took[ROUNDS];
    cudaError_t e = copy_once(c, kind); /* warms up */
    for (int i = 0; i < ROUNDS && e == cudaSuccess; i++) {
        float ms = 0;
        e = cudaStreamSynchronize(c->stream[1]);
        e = e == cudaSuccess ? cudaStreamSynchronize(c->stream[0]) : e;
        e = e == cudaSuccess ? cudaEventRecord(c->begin, c->stream[0]) : e;
        e = e == cudaSuccess ? cudaStreamWaitEvent(c->stream[1], c->begin, 0) : e;
        e = e == cudaSuccess ? copy_once(c, kind) : e;
        e = e == cudaSuccess ? cudaEventRecord(c->end, c->stream[1]) : e;
        e = e == cudaSuccess ? cudaStreamWaitEvent(c->stream[0], c->end, 0) : e;
        e = e == cudaSuccess ? cudaEventRecord(c->end, c->stream[0]) : e;
        e = e == cudaSuccess ? cudaEventSynchronize(c->end) : e;
        e = e == cudaSuccess ? cudaEventElapsedTime(&ms, c->begin, c->end) : e;
        took[i] = ms * 1e-3;
    }
    qsort(took, ROUNDS, sizeof *took, ascending);
    *seconds = took[ROUNDS / 2];
    return e;
}

static cudaError_t copies_open(copies *c, size_t nbytes) {
    cudaError_t e = cudaSuccess;
    c->nbytes = nbytes;
    for (int i = 0; i < 2 && e == cudaSuccess; i++) {
        e = cudaMalloc((void **)&c->device[i], nbytes);
        e = e == cudaSuccess ? cudaHostAlloc((void **)&c->host[i], nbytes, cudaHostAllocDefault)
                             : e;
        e = e == cudaSuccess ? cudaStreamCreateWithPriority(&c->stream[i], cudaStreamNonBlocking, 0)
                             : e;
        if (e == cudaSuccess) {
            memset(c->host[i], 0x5a + i, nbytes);
            e = cudaMemcpyAsync(c->device[i], c->host[i], nbytes, cudaMemcpyHostToDevice,
                                c->stream[i]);
        }
    }
    e = e == cudaSuccess ? cudaEventCreateWithFlags(&c->begin, cudaEventDefault) : e;
    return e == cudaSuccess ? cudaEventCreateWithFlags(&c->end, cudaEventDefault) : e;
}

static void copies_close(copies *c) {
    for (int i = 0; i < 2; i++) {
        if (c->stream[i] != NULL) {
            cudaStreamDestroy(c->stream[i]);
        }
        cudaFree(c->device[i]);
        cudaFreeHost(c->host[i]);
    }
    if (c->begin != NULL) {
        cudaEventDestroy(c->begin);
    }
    if (c->end != NULL) {
        cudaEventDestroy(c->end);
    }
}

/* Bytes read and written in device memory count once each, as the memory's bandwidth does; over
 * the link to the host each byte counts once. */
static int probe_copies(size_t mib) {
    static const char *const kinds[] = { "d2d", "h2d", "d2h", "both" };
    static const int counted[] = { 2, 1, 1, 2 };
    copies c = { 0 };
    bool well = cuda_well("allocating", copies_open(&c, mib << 20));
    for (int k = 0; k < 4 && well; k++) {
        double seconds = 0;
        well = cuda_well(kinds[k], time_copies(&c, kinds[k], &seconds));
        if (well && rank == 0) {
            printf("%s_gb_per_s %.1f\n", kinds[k],
                   (double)c.nbytes * counted[k] / (seconds > 0 ? seconds : 1e-9) * 1e-9);
        }
    }
    copies_close(&c);
    return well ? 0 : 1;
}

/* ---- device memory between processes ---- */

typedef cudaError_t get_handle(cudaIpcMemHandle_t *, void *);
typedef cudaError_t open_handle(void **, cudaIpcMemHandle_t, unsigned);
typedef cudaError_t close_handle(void *);

/* POSIX promises that an object pointer of dlsym can become a function pointer; C does not. */
static bool find(void *in, const char *name, void *to) {
    void *found = dlsym(in, name);
    memcpy(to, &found, sizeof found);
    return found != NULL;
}

static int probe_ipc(void) {
    enum { NBYTES = 1 << 16 };
    get_handle *get = NULL;
    open_handle *open = NULL;
    close_handle *close = NULL;
    if (!find(RTLD_DEFAULT, "cudaIpcGetMemHandle", &get) ||
        !find(RTLD_DEFAULT, "cudaIpcOpenMemHandle", &open) ||
        !find(RTLD_DEFAULT, "cudaIpcCloseMemHandle", &close)) {
        return SKIPPED;
    }
    char *mine = NULL, *shared = NULL, back[NBYTES];
    cudaIpcMemHandle_t handle;
    memset(&handle, 0, sizeof handle);
    bool well = cuda_well("cudaMalloc", cudaMalloc((void **)&mine, NBYTES));
    well = well && cuda_well("cudaIpcGetMemHandle", rank == 0 ? get(&handle, mine) : cudaSuccess);
    MPI_Bcast(&handle, sizeof handle, MPI_BYTE, 0, MPI_COMM_WORLD);
    well = well && cuda_well("cudaIpcOpenMemHandle",
                             rank == 0 ? cudaSuccess : open((void **)&shared, handle, 1));
    memset(back, 7, sizeof back);
    well = well && cuda_well("writing a peer's memory",
                             rank != ranks - 1 || rank == 0
                                 ? cudaSuccess
                                 : cudaMemcpy(shared, back, NBYTES, cudaMemcpyHostToDevice));
    /* A copy from pageable memory may return before it is over. */
    well = well && cuda_well("cudaDeviceSynchronize", cudaDeviceSynchronize());
    memset(back, 0, sizeof back);
    well = well && cuda_well("reading it where it is",
                             rank != 0 ? cudaSuccess
                                       : cudaMemcpy(back, mine, NBYTES, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; rank == 0 && ranks > 1 && i < NBYTES; i++) {
        wrong += back[i] != 7;
    }
    well = well && all_well("comparing", wrong, "bytes differ from what the peer wrote");
    if (shared != NULL) {
        close(shared);
    }
    MPI_Barrier(MPI_COMM_WORLD); /* the owner frees last */
    cudaFree(mine);
    return well ? 0 : 1;
}

/* ---- what calls cost the host ---- */

enum { CALLS = 2000 };
static const char *const calls[] = { "get_context", "is_capturing", "stream_device", "event_record",
                                     "stream_wait", "event_query",  "stream_query",  "small_fill" };
typedef struct asked {
    int (*get_context)(void **); /* NULL: not found */
    cudaStream_t stream, other;
    cudaEvent_t event;
    void *memory;
} asked;

static cudaError_t ask(const asked *a, int which) {
    enum cudaStreamCaptureStatus status;
    void *context = NULL;
    int device = 0;
    cudaError_t e = cudaSuccess;
    switch (which) {
    case 0:
        return a->get_context != NULL ? (cudaError_t)a->get_context(&context) : cudaSuccess;
    case 1:
        return cudaStreamIsCapturing(a->stream, &status);
    case 2:
#if CUDART_VERSION >= 12080
        e = cudaStreamGetDevice(a->stream, &device);
#endif
        (void)device;
        return e;
    case 3:
        return cudaEventRecord(a->event, a->stream);
    case 4:
        return cudaStreamWaitEvent(a->other, a->event, 0);
    case 5:
        return cudaEventQuery(a->event);
    case 6:
        return cudaStreamQuery(a->stream);
    default:
        return cudaMemsetAsync(a->memory, 0, 4, a->stream);
    }
}

/* The stream is idle before each kind, and what a kind leaves there is part of its time. */
static int probe_calls(void) {
    asked a = { .memory = NULL };
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL || !find(driver, "cuCtxGetCurrent", &a.get_context)) {
        a.get_context = NULL;
    }
    bool well = cuda_well("cudaMalloc", cudaMalloc(&a.memory, 64));
    well = well &&
           cuda_well("a stream", cudaStreamCreateWithPriority(&a.stream, cudaStreamNonBlocking, 0));
    well = well && cuda_well("another stream",
                             cudaStreamCreateWithPriority(&a.other, cudaStreamNonBlocking, 0));
    well =
        well && cuda_well("an event", cudaEventCreateWithFlags(&a.event, cudaEventDisableTiming));
    for (int k = 0; k < (int)(sizeof calls / sizeof calls[0]) && well; k++) {
        cudaError_t e = cudaDeviceSynchronize();
        const double begin = MPI_Wtime();
        for (int i = 0; i < CALLS && e == cudaSuccess; i++) {
            e = ask(&a, k);
        }
        const double each = (MPI_Wtime() - begin) / CALLS;
        well = cuda_well(calls[k], e);
        if (well && rank == 0) {
            printf("%s_us %.2f\n", calls[k], 1e6 * each);
        }
    }
    cudaStreamDestroy(a.other);
    cudaStreamDestroy(a.stream);
    cudaEventDestroy(a.event);
    cudaFree(a.memory);
    return well ? 0 : 1;
}

/* ---- NCCL ---- */

typedef struct nccl {
    ncclResult_t (*version)(int *);
    ncclResult_t (*id)(ncclUniqueId *);
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
    ncclResult_t (*allreduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                              cudaStream_t);
    ncclResult_t (*destroy)(ncclComm_t);
    ncclResult_t (*abort)(ncclComm_t);
    const char *(*text)(ncclResult_t);
} nccl;

static bool nccl_open(nccl *n) {
    void *in = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    return in != NULL && find(in, "ncclGetVersion", &n->version) &&
           find(in, "ncclGetUniqueId", &n->id) && find(in, "ncclCommInitRankConfig", &n->init) &&
           find(in, "ncclAllReduce", &n->allreduce) && find(in, "ncclCommDestroy", &n->destroy) &&
           find(in, "ncclCommAbort", &n->abort) && find(in, "ncclGetErrorString", &n->text);
}

/* The sum of rank + 1 over the ranks, of many elements; every one is compared. */
static bool nccl_sum(const nccl *n, ncclComm_t comm) {
    enum { N = 1 << 16 };
    float *host = malloc(N * sizeof *host), *device = NULL;
    cudaStream_t stream = NULL;
    for (int i = 0; host != NULL && i < N; i++) {
        host[i] = (float)(rank + 1);
    }
    cudaError_t e =
        host != NULL ? cudaMalloc((void **)&device, N * sizeof *device) : cudaErrorMemoryAllocation;
    e = e == cudaSuccess ? cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) : e;
    e = e == cudaSuccess
            ? cudaMemcpyAsync(device, host, N * sizeof *host, cudaMemcpyHostToDevice, stream)
            : e;
    bool well = cuda_well("allocating", e);
    if (well) {
        ncclResult_t r = n->allreduce(device, device, N, ncclFloat32, ncclSum, comm, stream);
        well = all_well("ncclAllReduce", (int)r, n->text(r));
    }
    e = well ? cudaMemcpyAsync(host, device, N * sizeof *host, cudaMemcpyDeviceToHost, stream)
             : cudaSuccess;
    e = well && e == cudaSuccess ? cudaStreamSynchronize(stream) : e;
    well = cuda_well("reading the result", e) && well;
    int wrong = 0;
    for (int i = 0; well && i < N; i++) {
        wrong += host[i] != (float)(ranks * (ranks + 1)) / 2;
    }
    well = all_well("comparing", wrong, "elements of the sum are wrong") && well;
    if (stream != NULL) {
        cudaStreamDestroy(stream);
    }
    cudaFree(device);
    free(host);
    return well;
}

static int probe_nccl(void) {
    nccl n = { 0 };
    int version = 0, there = nccl_open(&n), everywhere = 0;
    MPI_Allreduce(&there, &everywhere, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!everywhere) {
        if (!there) {
            printf("skipped rank %d: no libnccl.so.2 here (LD_LIBRARY_PATH)\n", rank);
        }
        return SKIPPED;
    }
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    memset(&id, 0, sizeof id);
    ncclResult_t r = n.version(&version);
    r = r == ncclSuccess && rank == 0 ? n.id(&id) : r;
    if (rank == 0) {
        printf("nccl_version %d\n", version);
    }
    bool well = all_well("ncclGetUniqueId", (int)r, n.text(r));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (well) {
        r = n.init(&comm, ranks, id, rank, &config);
        well = all_well("ncclCommInitRankConfig", (int)r, n.text(r));
    }
    well = well && nccl_sum(&n, comm);
    if (comm != NULL) {
        r = well ? n.destroy(comm) : n.abort(comm);
    }
    return well ? 0 : 1;
}

/* ---- */

int main(int argc, char **argv) {
    int status = 2, devices = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    cudaError_t e = cudaGetDeviceCount(&devices);
    if (!cuda_well("cudaGetDeviceCount", e) ||
        !cuda_well("cudaSetDevice", cudaSetDevice(rank % (devices > 0 ? devices : 1)))) {
        status = SKIPPED;
    } else if (argc == 2 && strcmp(argv[1], "copies") == 0) {
        status = probe_copies(256);
    } else if (argc == 2 && strcmp(argv[1], "copies-small") == 0) {
        status = probe_copies(1);
    } else if (argc == 2 && strcmp(argv[1], "ipc") == 0) {
        status = probe_ipc();
    } else if (argc == 2 && strcmp(argv[1], "calls") == 0) {
        status = probe_calls();
    } else if (argc == 2 && strcmp(argv[1], "nccl") == 0) {
        status = probe_nccl();
    } else if (rank == 0) {
        fprintf(stderr, "usage: gpu_probe copies|copies-small|calls|ipc|nccl\n");
    }
    MPI_Finalize();
    return status;
}
