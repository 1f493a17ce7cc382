/* The peer of dtr-bench --device cuda: bare calls of NCCL on a communicator of its own, each built
 * from the native calls that a program without this library would make. */
#include <dlfcn.h>
#include <stdlib.h>

#include <nccl.h>

#include "backends/nccl/nccl_names.h"
#include "bench_cuda.h"
#include "measure_cuda.h"

#define MEMBER(f) __typeof__(&f) f;
#define FIND(f) *(void **)&nccl.f = measure_symbol("dtr-bench", library, #f);

static struct {
    DTR__NCCL_COMMON(MEMBER)
    ncclComm_t comm;
    char text[300];
} nccl;

static void require(ncclResult_t r, const char *what) {
    if (r != ncclSuccess) {
        fprintf(stderr, "dtr-bench: %s: %s (NCCL error %d)\n", what, nccl.ncclGetErrorString(r),
                (int)r);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
}

/* ---- the communicator ---- */

static bool everywhere(bool here) {
    int mine = here, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all != 0;
}

static bool refuse(const char *why) {
    snprintf(nccl.text, sizeof nccl.text, "none: %s", why);
    return false;
}

bool bench_nccl_open(int rank, int size) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    int version = 0;
    if (!everywhere(library != NULL)) {
        return refuse("libnccl.so.2 cannot be loaded on every rank");
    }
    DTR__NCCL_COMMON(FIND)
    require(nccl.ncclGetVersion(&version), "ncclGetVersion");
    if (rank == 0) {
        require(nccl.ncclGetUniqueId(&id), "ncclGetUniqueId");
    }
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    ncclResult_t r = nccl.ncclCommInitRankConfig(&nccl.comm, size, id, rank, &config);
    int worst = (int)r, mine = worst;
    MPI_Allreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (worst != ncclSuccess) {
        if (nccl.comm != NULL) {
            (void)nccl.ncclCommAbort(nccl.comm);
            nccl.comm = NULL;
        }
        return refuse(nccl.ncclGetErrorString((ncclResult_t)worst));
    }
    snprintf(nccl.text, sizeof nccl.text, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return true;
}

void bench_nccl_close(void) {
    if (nccl.comm != NULL) {
        require(nccl.ncclCommDestroy(nccl.comm), "ncclCommDestroy");
        nccl.comm = NULL;
    }
}

const char *bench_nccl_text(void) {
    return nccl.text;
}

/* ---- calls ---- */

static bool native_type(dtr_dtype d, ncclDataType_t *t) {
    static const struct {
        bool there;
        ncclDataType_t type;
    } types[BENCH_DTYPES] = {
        [DTR_U8] = { true, ncclUint8 },    [DTR_I8] = { true, ncclInt8 },
        [DTR_I32] = { true, ncclInt32 },   [DTR_I64] = { true, ncclInt64 },
        [DTR_F16] = { true, ncclFloat16 }, [DTR_BF16] = { true, ncclBfloat16 },
        [DTR_F32] = { true, ncclFloat32 }, [DTR_F64] = { true, ncclFloat64 },
        [DTR_U32] = { true, ncclUint32 },  [DTR_U64] = { true, ncclUint64 },
    };
    *t = types[d].type;
    return types[d].there;
}

static ncclRedOp_t native_op(dtr_op op) {
    static const ncclRedOp_t ops[] = { ncclSum, ncclAvg, ncclProd, ncclMin, ncclMax };
    return ops[op];
}

bool bench_nccl_has(const bench_case *c) {
    ncclDataType_t t;
    bool whole =
        c->dtype < DTR_F8E4M3 || c->dtype > DTR_C128; /* averages of whole numbers differ */
    return c->kind < BENCH_BARRIER &&
           (!bench_reduces(c->kind) ||
            (c->op <= DTR_MAX && native_type(c->dtype, &t) && !(c->op == DTR_AVG && whole)));
}

static char *at(void *base, const bench_case *c, int block, size_t size) {
    return (char *)base + bench_block_at(c, c->rank, block) * size;
}

static void send(const void *from, size_t nbytes, int peer, cudaStream_t stream) {
    require(nccl.ncclSend(from, nbytes, ncclUint8, peer, nccl.comm, stream), "ncclSend");
}

static void recv(void *to, size_t nbytes, int peer, cudaStream_t stream) {
    require(nccl.ncclRecv(to, nbytes, ncclUint8, peer, nccl.comm, stream), "ncclRecv");
}

/* Blocks that are sent and received in one group: to and from everybody, or the root. */
static void exchange(const bench_case *c, const contender *who, cudaStream_t stream) {
    size_t size = dtr_dtype_size(who->dtype);
    bool all = c->kind == BENCH_ALLTOALL || c->kind == BENCH_ALLTOALLV;
    bool gather = c->kind == BENCH_GATHER || c->kind == BENCH_GATHERV, root = c->rank == c->root;
    require(nccl.ncclGroupStart(), "ncclGroupStart");
    if (gather) {
        send(who->in, c->in_count * size, c->root, stream);
    } else if (!all) {
        recv(who->out, c->out_count * size, c->root, stream);
    }
    for (int r = 0; (all || root) && r < c->size; r++) {
        size_t nbytes = c->counts[r] * size;
        if (!gather) {
            send(at(who->in, c, r, size), nbytes, r, stream);
        }
        if (all || gather) {
            recv(at(who->out, c, r, size), nbytes, r, stream);
        }
    }
    require(nccl.ncclGroupEnd(), "ncclGroupEnd");
}

/* Of different lengths: a call with each rank as root. */
static void by_roots(const bench_case *c, const contender *who, cudaStream_t stream) {
    size_t size = dtr_dtype_size(who->dtype);
    ncclDataType_t t = ncclUint8;
    native_type(who->dtype, &t);
    require(nccl.ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < c->size; r++) {
        if (c->kind == BENCH_ALLGATHERV) {
            require(nccl.ncclBroadcast(who->in, at(who->out, c, r, size), c->counts[r] * size,
                                       ncclUint8, r, nccl.comm, stream),
                    "ncclBroadcast");
        } else {
            require(nccl.ncclReduce(at(who->in, c, r, size), who->out, c->counts[r], t,
                                    native_op(c->op), r, nccl.comm, stream),
                    "ncclReduce");
        }
    }
    require(nccl.ncclGroupEnd(), "ncclGroupEnd");
}

static void messages(const bench_case *c, const contender *who, cudaStream_t stream) {
    size_t nbytes = c->in_count * dtr_dtype_size(who->dtype);
    if (c->kind == BENCH_SENDRECV) {
        require(nccl.ncclGroupStart(), "ncclGroupStart");
        send(who->in, nbytes, (c->rank + 1) % c->size, stream);
        recv(who->out, nbytes, (c->rank + c->size - 1) % c->size, stream);
        require(nccl.ncclGroupEnd(), "ncclGroupEnd");
    }
    for (int turn = 0; c->kind == BENCH_PINGPONG && c->in_count > 0 && turn < 2; turn++) {
        if (turn == c->rank % 2) {
            send(who->in, nbytes, c->rank ^ 1, stream);
        } else {
            recv(who->out, nbytes, c->rank ^ 1, stream);
        }
    }
}

void bench_nccl_call(const bench_case *c, const contender *who, cudaStream_t stream) {
    ncclDataType_t t = ncclUint8;
    ncclRedOp_t op = native_op(c->op);
    size_t n = c->count, nbytes = n * dtr_dtype_size(who->dtype);
    native_type(who->dtype, &t);
    switch (c->kind) {
    case BENCH_ALLREDUCE:
        require(nccl.ncclAllReduce(who->in, c->in_place ? who->in : who->out, n, t, op, nccl.comm,
                                   stream),
                "ncclAllReduce");
        break;
    case BENCH_REDUCE:
        require(nccl.ncclReduce(who->in, who->out, n, t, op, c->root, nccl.comm, stream),
                "ncclReduce");
        break;
    case BENCH_BROADCAST:
        require(nccl.ncclBroadcast(who->in, who->in, nbytes, ncclUint8, c->root, nccl.comm, stream),
                "ncclBroadcast");
        break;
    case BENCH_ALLGATHER:
        require(nccl.ncclAllGather(who->in, who->out, nbytes, ncclUint8, nccl.comm, stream),
                "ncclAllGather");
        break;
    case BENCH_REDUCE_SCATTER:
        require(nccl.ncclReduceScatter(who->in, who->out, n, t, op, nccl.comm, stream),
                "ncclReduceScatter");
        break;
    case BENCH_ALLGATHERV:
    case BENCH_REDUCE_SCATTERV:
        by_roots(c, who, stream);
        break;
    case BENCH_SENDRECV:
    case BENCH_PINGPONG:
        messages(c, who, stream);
        break;
    default:
        exchange(c, who, stream);
    }
}
