/* NCCL behind the neutral table: part of libdtr_cuda. The library is opened by name, so that a host
 * without NCCL can use everything else. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <nccl.h>

#include "backends/nccl/nccl_ops.h"
#include "memory/cuda/cuda_scope.h"
#include "nccl_names.h"

#if NCCL_VERSION_CODE < 21800
#error "NCCL 2.18 or newer is needed: it has communicator split and non-blocking communicators"
#endif

/* ---- the library ---- */

/* X(function): all that the oldest version has; Y(function, member, version): what is used where it
 * is found. */
#define ALL_FUNCTIONS(X, Y)     \
    DTR__NCCL_COMMON(X)         \
    X(ncclCommSplit)            \
    X(ncclCommFinalize)         \
    X(ncclCommGetAsyncError)    \
    X(ncclGetLastError)         \
    X(ncclRedOpCreatePreMulSum) \
    X(ncclRedOpDestroy)         \
    DTR__NCCL_LATER(Y)

typedef ncclResult_t (*alltoall_fn)(const void *, void *, size_t, ncclDataType_t, ncclComm_t,
                                    cudaStream_t);
typedef ncclResult_t (*rooted_fn)(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t,
                                  cudaStream_t);
typedef ncclResult_t (*memory_new_fn)(void **, size_t);
typedef ncclResult_t (*memory_free_fn)(void *);
typedef ncclResult_t (*register_fn)(ncclComm_t, void *, size_t, void **);
typedef ncclResult_t (*deregister_fn)(ncclComm_t, void *);
#if NCCL_VERSION_CODE < 22700
typedef struct ncclWindow_vidmem *ncclWindow_t;
#define NCCL_WIN_COLL_SYMMETRIC 1
#endif
typedef ncclResult_t (*window_fn)(ncclComm_t, void *, size_t, ncclWindow_t *, int);
typedef ncclResult_t (*window_end_fn)(ncclComm_t, ncclWindow_t);

/* Functions that the floor's header may lack have their types above; a header that has them must
 * agree. */
#define SAME_TYPE(f, type) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&f), type), #f " has another type")
#if NCCL_VERSION_CODE >= 21900
SAME_TYPE(ncclMemAlloc, memory_new_fn);
SAME_TYPE(ncclMemFree, memory_free_fn);
SAME_TYPE(ncclCommRegister, register_fn);
SAME_TYPE(ncclCommDeregister, deregister_fn);
#endif
#if NCCL_VERSION_CODE >= 22700
SAME_TYPE(ncclCommWindowRegister, window_fn);
SAME_TYPE(ncclCommWindowDeregister, window_end_fn);
#endif
#if NCCL_VERSION_CODE >= 22800
SAME_TYPE(ncclAlltoAll, alltoall_fn);
SAME_TYPE(ncclGather, rooted_fn);
SAME_TYPE(ncclScatter, rooted_fn);
#endif

#define MEMBER(f) __typeof__(&f) f;
#define NO_MEMBER(f, name, since)
static struct {
    ALL_FUNCTIONS(MEMBER, NO_MEMBER)
    alltoall_fn AlltoAll;
    rooted_fn Gather, Scatter;
    memory_new_fn MemAlloc;
    memory_free_fn MemFree;
    register_fn CommRegister;
    deregister_fn CommDeregister;
    window_fn WindowRegister;
    window_end_fn WindowDeregister;
} nccl;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int found_version;
static char reason[512];

static void *find(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL && reason[0] == '\0') {
        snprintf(reason, sizeof reason, "libnccl.so.2 has no %s", name);
    }
    return symbol;
}

static void find_all(void *library) {
/* A pointer to a function is read from dlsym's through its address, as POSIX shows. */
#define FIND(f) *(void **)&nccl.f = find(library, #f);
#define FIND_LATER(f, member, since) \
    *(void **)&nccl.member = found_version >= (since) ? dlsym(library, #f) : NULL;
    ALL_FUNCTIONS(FIND, FIND_LATER)
}

static void open_library(void) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *why = dlerror();
        snprintf(reason, sizeof reason, "%s", why != NULL ? why : "libnccl.so.2 cannot be loaded");
        return;
    }
    *(void **)&nccl.ncclGetVersion = find(library, "ncclGetVersion");
    if (nccl.ncclGetVersion == NULL || nccl.ncclGetVersion(&found_version) != ncclSuccess) {
        found_version = 0;
        snprintf(reason, sizeof reason, "libnccl.so.2 does not tell its version");
        return;
    }
    if (found_version < DTR__NCCL_FLOOR) {
        snprintf(reason, sizeof reason, "libnccl.so.2 is version %d.%d.%d, 2.18 is needed",
                 found_version / 10000, found_version / 100 % 100, found_version % 100);
        return;
    }
    find_all(library);
}

static const char *load(int *version) {
    pthread_once(&once, open_library);
    *version = found_version;
    return reason[0] != '\0' ? reason : NULL;
}

/* ---- tables ---- */

/* What carries an element of each type: `per` of them. */
static const struct {
    ncclDataType_t type;
    unsigned per;
} carriers[] = {
    [DTR_BOOL] = { ncclUint8, 1 },
    [DTR_U8] = { ncclUint8, 1 },
    [DTR_I8] = { ncclInt8, 1 },
    [DTR_I16] = { ncclUint8, 2 },
    [DTR_I32] = { ncclInt32, 1 },
    [DTR_I64] = { ncclInt64, 1 },
    [DTR_F8E4M3] = { ncclUint8, 1 },
    [DTR_F8E5M2] = { ncclUint8, 1 },
    [DTR_F16] = { ncclFloat16, 1 },
    [DTR_BF16] = { ncclBfloat16, 1 },
    [DTR_F32] = { ncclFloat32, 1 },
    [DTR_F64] = { ncclFloat64, 1 },
    [DTR_C64] = { ncclFloat32, 2 },
    [DTR_C128] = { ncclFloat64, 2 },
    [DTR_U16] = { ncclUint8, 2 },
    [DTR_U32] = { ncclUint32, 1 },
    [DTR_U64] = { ncclUint64, 1 },
    [DTR_F32_INDEX] = { ncclUint8, sizeof(dtr_f32_index) },
    [DTR_F64_INDEX] = { ncclUint8, sizeof(dtr_f64_index) },
    [DTR_I64_INDEX] = { ncclUint8, sizeof(dtr_i64_index) },
};

static bool is_float(dtr_dtype d) {
    return d == DTR_F16 || d == DTR_BF16 || d == DTR_F32 || d == DTR_F64 || d == DTR_C64 ||
           d == DTR_C128;
}

static int native_op(dtr_op op, dtr_dtype d) {
    if (d == DTR_I16 || d == DTR_U16 || d == DTR_F8E4M3 || d == DTR_F8E5M2) {
        return -1;
    }
    switch (op) {
    case DTR_SUM:
        return d == DTR_BOOL ? ncclMax : ncclSum; /* logical or, without overflow */
    case DTR_AVG:
        /* of whole numbers NCCL's versions round in their own ways: the sums are divided here */
        return is_float(d) ? ncclAvg : ncclSum;
    case DTR_PROD:
        return ncclProd;
    case DTR_MIN:
        return ncclMin;
    case DTR_MAX:
        return ncclMax;
    default:
        return -1;
    }
}

static bool has(dtr__nccl_kind kind) {
    switch (kind) {
    case DTR__NCCL_ALLTOALL:
        return nccl.AlltoAll != NULL;
    case DTR__NCCL_GATHER:
        return nccl.Gather != NULL;
    case DTR__NCCL_SCATTER:
        return nccl.Scatter != NULL;
    default:
        return true;
    }
}

static const char *move_name(dtr__nccl_kind kind) {
    static const char *const names[] = {
        [DTR__NCCL_ALLREDUCE] = "ncclAllReduce", [DTR__NCCL_BROADCAST] = "ncclBroadcast",
        [DTR__NCCL_REDUCE] = "ncclReduce",       [DTR__NCCL_ALLGATHER] = "ncclAllGather",
        [DTR__NCCL_ALLTOALL] = "ncclAlltoAll",   [DTR__NCCL_REDUCE_SCATTER] = "ncclReduceScatter",
        [DTR__NCCL_GATHER] = "ncclGather",       [DTR__NCCL_SCATTER] = "ncclScatter",
        [DTR__NCCL_SEND] = "ncclSend",           [DTR__NCCL_RECV] = "ncclRecv",
    };
    return names[kind];
}

/* ---- calls ---- */

#define ON_DEVICE(device, call)                                                \
    do {                                                                       \
        scope scope_;                                                          \
        int code_ = ncclUnhandledCudaError;                                    \
        if (enter(&scope_, (device)) == cudaSuccess) {                         \
            code_ = (int)(call);                                               \
        }                                                                      \
        /* what NCCL's own calls leave behind is not the program's */          \
        (void)scope_end(&scope_, code_ != 0 ? cudaErrorUnknown : cudaSuccess); \
        return code_;                                                          \
    } while (0)

static const char *error_text(int code) {
    return nccl.ncclGetErrorString((ncclResult_t)code);
}

static const char *last_error(void *comm) {
    return nccl.ncclGetLastError(comm);
}

static int unique_id(void *id) {
    _Static_assert(sizeof(ncclUniqueId) == DTR__NCCL_ID, "it is sent as so many bytes");
    return (int)nccl.ncclGetUniqueId(id);
}

static int or_default(int n) {
    return n > 0 ? n : NCCL_CONFIG_UNDEF_INT;
}

static ncclConfig_t native_config(const dtr__nccl_config *c) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = c->blocking;
    config.minCTAs = or_default(c->min_ctas);
    config.maxCTAs = or_default(c->max_ctas);
    config.cgaClusterSize = or_default(c->cga_cluster);
    if (c->split_share) {
        config.splitShare = 1;
    }
    if (c->network[0] != '\0') {
        config.netName = c->network; /* NCCL takes a copy */
    }
#if NCCL_VERSION_CODE >= 22600
    if (found_version >= DTR__NCCL_TRAFFIC) {
        config.trafficClass = or_default(c->traffic_class);
    }
#endif
#if NCCL_VERSION_CODE >= 22700
    if (found_version >= DTR__NCCL_POLICY) {
        config.commName = c->name;
        config.CTAPolicy = or_default(c->cta_policy);
        config.nvlsCTAs = or_default(c->nvls_ctas);
    }
#endif
    return config;
}

static int init(int device, void **comm, int size, const void *id, int rank,
                const dtr__nccl_config *c) {
    ncclConfig_t config = native_config(c);
    ncclUniqueId copy;
    memcpy(&copy, id, sizeof copy);
    ON_DEVICE(device, nccl.ncclCommInitRankConfig((ncclComm_t *)comm, size, copy, rank, &config));
}

static int split(int device, void *comm, int color, int key, void **child,
                 const dtr__nccl_config *c) {
    ncclConfig_t config = native_config(c);
    ON_DEVICE(device, nccl.ncclCommSplit(comm, color >= 0 ? color : NCCL_SPLIT_NOCOLOR, key,
                                         (ncclComm_t *)child, &config));
}

static int finalize(int device, void *comm) {
    ON_DEVICE(device, nccl.ncclCommFinalize(comm));
}

static int destroy(int device, void *comm) {
    ON_DEVICE(device, nccl.ncclCommDestroy(comm));
}

static int abandon(int device, void *comm) {
    ON_DEVICE(device, nccl.ncclCommAbort(comm));
}

static int state(void *comm, int *code) {
    ncclResult_t s = ncclSuccess;
    ncclResult_t r = nccl.ncclCommGetAsyncError(comm, &s);
    *code = (int)s;
    return (int)r;
}

static int group_start(void) {
    return (int)nccl.ncclGroupStart();
}

static int group_end(int device) {
    ON_DEVICE(device, nccl.ncclGroupEnd());
}

static int premul_new(int device, void *comm, const void *factor, bool on_device, dtr_dtype d,
                      int *op) {
    ncclRedOp_t made = ncclSum;
    scope s;
    int code = ncclUnhandledCudaError;
    if (enter(&s, device) == cudaSuccess) {
        code = (int)nccl.ncclRedOpCreatePreMulSum(
            &made, (void *)(uintptr_t)factor, carriers[d].type,
            on_device ? ncclScalarDevice : ncclScalarHostImmediate, comm);
    }
    (void)scope_end(&s, code != 0 ? cudaErrorUnknown : cudaSuccess);
    *op = (int)made;
    return code;
}

static int premul_free(int device, void *comm, int op) {
    ON_DEVICE(device, nccl.ncclRedOpDestroy((ncclRedOp_t)op, comm));
}

static ncclResult_t call(ncclComm_t comm, const dtr__nccl_move *m, cudaStream_t stream) {
    ncclDataType_t t = carriers[m->dtype].type;
    ncclRedOp_t op = (ncclRedOp_t)m->op;
    size_t n;
    if (__builtin_mul_overflow(m->count, (size_t)carriers[m->dtype].per, &n)) {
        return ncclInvalidArgument;
    }
    switch (m->kind) {
    case DTR__NCCL_ALLREDUCE:
        return nccl.ncclAllReduce(m->in, m->out, n, t, op, comm, stream);
    case DTR__NCCL_BROADCAST:
        return nccl.ncclBroadcast(m->in, m->out, n, t, m->root, comm, stream);
    case DTR__NCCL_REDUCE:
        return nccl.ncclReduce(m->in, m->out, n, t, op, m->root, comm, stream);
    case DTR__NCCL_ALLGATHER:
        return nccl.ncclAllGather(m->in, m->out, n, t, comm, stream);
    case DTR__NCCL_REDUCE_SCATTER:
        return nccl.ncclReduceScatter(m->in, m->out, n, t, op, comm, stream);
    case DTR__NCCL_ALLTOALL:
        return nccl.AlltoAll(m->in, m->out, n, t, comm, stream);
    case DTR__NCCL_GATHER:
        return nccl.Gather(m->in, m->out, n, t, m->root, comm, stream);
    case DTR__NCCL_SCATTER:
        return nccl.Scatter(m->in, m->out, n, t, m->root, comm, stream);
    case DTR__NCCL_SEND:
        return nccl.ncclSend(m->in, n, t, m->root, comm, stream);
    case DTR__NCCL_RECV:
        return nccl.ncclRecv(m->out, n, t, m->root, comm, stream);
    }
    return ncclInvalidArgument;
}

static int move(int device, void *comm, const dtr__nccl_move *m, void *stream) {
    ON_DEVICE(device, call(comm, m, stream));
}

/* ---- memory ---- */

static bool registers(void) {
    return NCCL_VERSION_CODE >= DTR__NCCL_REGISTERS && nccl.MemAlloc != NULL &&
           nccl.MemFree != NULL && nccl.CommRegister != NULL && nccl.CommDeregister != NULL;
}

static int memory_new(int device, size_t nbytes, void **ptr) {
    ON_DEVICE(device, nccl.MemAlloc(ptr, nbytes));
}

/* NCCL takes memory away at once, also from what streams have yet to do with it. cudaFree waits for
 * the device, which a synchronization of the device must not while some stream captures a graph. */
static ncclResult_t wait_for_device(void) {
    enum cudaStreamCaptureMode mode = exchange_mode(cudaStreamCaptureModeRelaxed);
    void *small = NULL;
    cudaError_t e = cudaMalloc(&small, 1);
    e = e == cudaSuccess ? cudaFree(small) : cudaDeviceSynchronize();
    (void)exchange_mode(mode);
    return e == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static int memory_wait(int device) {
    ON_DEVICE(device, wait_for_device());
}

static ncclResult_t wait_and_free(void *ptr) {
    const ncclResult_t r = wait_for_device();
    return r == ncclSuccess ? nccl.MemFree(ptr) : r;
}

static int memory_free(int device, void *ptr) {
    ON_DEVICE(device, wait_and_free(ptr));
}

static int memory_add(int device, void *comm, void *ptr, size_t nbytes, void **registration) {
    ON_DEVICE(device, nccl.CommRegister(comm, ptr, nbytes, registration));
}

static int memory_remove(int device, void *comm, void *registration) {
    ON_DEVICE(device, nccl.CommDeregister(comm, registration));
}

static bool windows(void) {
    return NCCL_VERSION_CODE >= DTR__NCCL_WINDOWS && registers() && nccl.WindowRegister != NULL &&
           nccl.WindowDeregister != NULL;
}

static int window_add(int device, void *comm, void *ptr, size_t nbytes, void **window) {
    ON_DEVICE(device, nccl.WindowRegister(comm, ptr, nbytes, (ncclWindow_t *)window,
                                          NCCL_WIN_COLL_SYMMETRIC));
}

static int window_remove(int device, void *comm, void *window) {
    ON_DEVICE(device, nccl.WindowDeregister(comm, window));
}

extern const dtr__nccl_ops dtr_cuda_nccl_ops;
__attribute__((visibility("default"))) const dtr__nccl_ops dtr_cuda_nccl_ops = {
    .abi = DTR__NCCL_ABI,
    .built = NCCL_VERSION_CODE,
    .load = load,
    .error_text = error_text,
    .last_error = last_error,
    .in_progress = ncclInProgress,
    .invalid_usage = ncclInvalidUsage,
    .remote_error = ncclRemoteError,
    .has = has,
    .unique_id = unique_id,
    .init = init,
    .split = split,
    .finalize = finalize,
    .destroy = destroy,
    .abandon = abandon,
    .state = state,
    .group_start = group_start,
    .group_end = group_end,
    .op = native_op,
    .premul_new = premul_new,
    .premul_free = premul_free,
    .move = move,
    .move_name = move_name,
    .registers = registers,
    .memory_new = memory_new,
    .memory_free = memory_free,
    .memory_wait = memory_wait,
    .memory_add = memory_add,
    .memory_remove = memory_remove,
    .windows = windows,
    .window_add = window_add,
    .window_remove = window_remove,
};
