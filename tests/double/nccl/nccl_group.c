/* Groups and the calls that move data: arguments are checked when a call is made, everything runs
 * at the end of the outermost group; a call outside any group is a group of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "double_nccl.h"

typedef struct waiting {
    struct ncclComm *comm;
    void *(*fn)(void *);
    void *arg;
} waiting;

static _Thread_local struct {
    int depth;
    ncclResult_t failed;
    dn_call *calls;
    size_t n, cap;
    waiting threads[DN_MAX_RANKS];
    size_t n_threads;
} group;

static _Atomic uint64_t numbers;

bool dn_in_group(void) {
    return group.depth > 0;
}

ncclResult_t dn_group_failed(ncclResult_t r) {
    if (group.depth > 0 && group.failed == ncclSuccess) {
        group.failed = r;
    }
    return r;
}

ncclResult_t dn_group_add_thread(struct ncclComm *c, void *(*fn)(void *), void *arg) {
    if (group.n_threads == DN_MAX_RANKS) {
        return dn_group_failed(ncclInternalError);
    }
    group.threads[group.n_threads++] = (waiting){ c, fn, arg };
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    DN_ENTER("ncclGroupStart");
    group.depth++;
    return ncclSuccess;
}

/* ---- end of a group ---- */

typedef struct late_calls {
    struct ncclComm *comm;
    size_t n;
    dn_call calls[];
} late_calls;

static void *launch_late(void *arg) {
    late_calls *l = arg;
    dtr_fake_cuda_delay();
    ncclResult_t r = dn_launch(l->comm, l->calls, l->n);
    if (r != ncclSuccess) {
        dn_fail(l->comm, r);
    }
    free(l);
    return NULL;
}

/* The calls of communicator `c`, in their order; takes them out of the list. */
static late_calls *collect(struct ncclComm *c) {
    late_calls *l = malloc(sizeof *l + group.n * sizeof *group.calls);
    if (l == NULL) {
        return NULL;
    }
    l->comm = c;
    l->n = 0;
    for (size_t i = 0; i < group.n; i++) {
        if (group.calls[i].comm == c) {
            l->calls[l->n++] = group.calls[i];
            group.calls[i].comm = NULL;
        }
    }
    return l;
}

static void hang_in_call(struct ncclComm *c) {
    for (unsigned turn = 0; !dn_pause(c, turn); turn++) {
    }
}

static ncclResult_t launch_one(struct ncclComm *c) {
    late_calls *l = collect(c);
    if (l == NULL) {
        return ncclSystemError;
    }
    for (size_t i = 1; i < l->n; i++) {
        if (l->calls[i].stream != l->calls[0].stream) {
            dn_set_error(c, "one group uses two streams of a communicator");
            free(l);
            return ncclInvalidUsage;
        }
    }
    if (dn_blocks_in_call()) {
        dn_inside(c, 1);
        hang_in_call(c);
        dn_inside(c, -1);
        free(l);
        return ncclSystemError;
    }
    if (!c->blocking) {
        return dn_run_late(c, launch_late, l);
    }
    dn_inside(c, 1);
    ncclResult_t r = dn_launch(c, l->calls, l->n);
    dn_inside(c, -1);
    free(l);
    return r;
}

static ncclResult_t start_threads(void) {
    ncclResult_t r = ncclSuccess;
    bool started[DN_MAX_RANKS] = { false };
    for (size_t i = 0; i < group.n_threads; i++) {
        waiting *w = &group.threads[i];
        ncclResult_t one = dn_run_late(w->comm, w->fn, w->arg);
        started[i] = one == ncclInProgress;
        r = one == ncclInProgress || r != ncclSuccess ? r : one;
    }
    bool open = false;
    for (size_t i = 0; i < group.n_threads; i++) {
        struct ncclComm *c = group.threads[i].comm;
        open |= started[i] && !c->blocking;
        for (unsigned turn = 0; started[i] && c->blocking &&
                                atomic_load(&c->state) == ncclInProgress && !dn_pause(c, turn);
             turn++) {
        }
        int state = atomic_load(&c->state);
        if (c->blocking && state != ncclSuccess && r == ncclSuccess) {
            r = (ncclResult_t)state;
        }
    }
    group.n_threads = 0;
    return r == ncclSuccess && open ? ncclInProgress : r;
}

static ncclResult_t end_group(void) {
    ncclResult_t r = group.failed;
    if (r == ncclSuccess) {
        r = start_threads();
        for (size_t i = 0; i < group.n; i++) {
            struct ncclComm *c = group.calls[i].comm;
            ncclResult_t one = c != NULL ? launch_one(c) : ncclSuccess;
            r = one != ncclSuccess && (r == ncclSuccess || r == ncclInProgress) ? one : r;
        }
    }
    group.failed = ncclSuccess;
    group.n = group.n_threads = 0;
    return r;
}

ncclResult_t ncclGroupEnd(void) {
    if (group.depth == 0) {
        dn_set_error(NULL, "ncclGroupEnd: not in a group call");
        return ncclInvalidUsage;
    }
    group.depth--; /* the group is over even where the end fails */
    ncclResult_t injected = dn_injected("ncclGroupEnd");
    dtr_fake_cuda_log("ncclGroupEnd", "depth %d", group.depth);
    if (group.depth > 0) {
        return injected;
    }
    if (injected != ncclSuccess) {
        group.failed = injected;
    }
    return end_group();
}

/* ---- the calls ---- */

static ncclResult_t refuse(struct ncclComm *c, const dn_call *k, const char *what) {
    dn_set_error(c, "%s: invalid %s", k->name, what);
    return dn_group_failed(ncclInvalidArgument);
}

static bool takes_op(const dn_call *k) {
    return k->kind == DN_ALLREDUCE || k->kind == DN_REDUCE || k->kind == DN_REDUCE_SCATTER;
}

/* Elements that this rank reads and writes; 0 where the buffer is not looked at. */
static void extents(const dn_call *k, size_t *in, size_t *out) {
    size_t n = (size_t)k->comm->nranks;
    bool root = k->comm->rank == k->root;
    bool blocks_in =
        k->kind == DN_REDUCE_SCATTER || k->kind == DN_ALLTOALL || k->kind == DN_SCATTER;
    bool blocks_out = k->kind == DN_ALLGATHER || k->kind == DN_ALLTOALL || k->kind == DN_GATHER;
    bool reads =
        !(k->kind == DN_RECV || ((k->kind == DN_BROADCAST || k->kind == DN_SCATTER) && !root));
    bool writes =
        !(k->kind == DN_SEND || ((k->kind == DN_REDUCE || k->kind == DN_GATHER) && !root));
    *in = reads ? k->count * (blocks_in ? n : 1) : 0;
    *out = writes ? k->count * (blocks_out ? n : 1) : 0;
}

/* Check, translate addresses, and put into the group. */
static ncclResult_t prepare(dn_call *k, struct ncclComm *c) {
    if ((unsigned)k->type >= (dn_version() >= 22403 ? ncclNumTypes : 10u)) {
        return refuse(c, k, "data type");
    }
    bool rooted = k->root >= 0 || k->kind == DN_BROADCAST || k->kind == DN_REDUCE ||
                  k->kind == DN_GATHER || k->kind == DN_SCATTER || k->kind == DN_SEND ||
                  k->kind == DN_RECV;
    if (rooted && (k->root < 0 || k->root >= c->nranks)) {
        return refuse(c, k, k->kind == DN_SEND || k->kind == DN_RECV ? "peer" : "root");
    }
    if (takes_op(k)) {
        unsigned custom = (unsigned)k->given_op - ncclNumOps;
        if (k->given_op < 0 ||
            (k->given_op >= ncclNumOps && (custom >= DN_MAX_OPS || !c->op_used[custom]))) {
            return refuse(c, k, "reduction operation");
        }
        static const dn_op_kind builtin[ncclNumOps] = { DN_SUM, DN_PROD, DN_MAX, DN_MIN, DN_AVG };
        k->op = k->given_op < ncclNumOps ? (dn_op){ .kind = builtin[k->given_op] } : c->ops[custom];
        if (k->op.kind == DN_PREMUL && k->op.type != k->type) {
            return refuse(c, k, "data type of the reduction operation");
        }
    }
    size_t in, out, size = dn_type_size(k->type);
    extents(k, &in, &out);
    if (in > 0 && (k->in = dtr_fake_cuda_host(k->in, in * size)) == NULL) {
        return refuse(c, k, "send buffer: not memory of a device");
    }
    unsigned char *known = out > 0 ? dtr_fake_cuda_known(k->out, out * size) : NULL;
    if (known != NULL) { /* before the operation runs: what only waits for it is not found */
        memset(known, 1, out * size);
    }
    if (out > 0 && (k->out = dtr_fake_cuda_host(k->out, out * size)) == NULL) {
        return refuse(c, k, "receive buffer: not memory of a device");
    }
    if (group.n == group.cap) {
        size_t cap = group.cap == 0 ? 64 : 2 * group.cap;
        dn_call *grown = realloc(group.calls, cap * sizeof *grown);
        if (grown == NULL) {
            return dn_group_failed(ncclSystemError);
        }
        group.calls = grown;
        group.cap = cap;
    }
    k->comm = c;
    k->number = atomic_fetch_add(&numbers, 1) + 1;
    group.calls[group.n++] = *k;
    return ncclSuccess;
}

/* What real kernels look for: both ends of the call in windows of the communicator. */
static bool in_windows(const dn_call *k, const void *in, const void *out) {
    size_t n_in, n_out, size = dn_type_size(k->type);
    extents(k, &n_in, &n_out);
    return n_in + n_out > 0 && (n_in == 0 || dn_in_window(k->comm, in, n_in * size)) &&
           (n_out == 0 || dn_in_window(k->comm, out, n_out * size));
}

static ncclResult_t issue(dn_call k) {
    struct ncclComm *c = k.comm;
    DN_ENTER(k.name);
    ncclResult_t r = dn_check_comm(c, k.name);
    if (r != ncclSuccess) {
        return dn_group_failed(r);
    }
    dtr_fake_cuda_log(k.name, "rank %d of %d, %zu x type %d, op %d, root %d, depth %d%s", c->rank,
                      c->nranks, k.count, (int)k.type, (int)k.given_op, k.root, group.depth,
                      in_windows(&k, k.in, k.out) ? ", in windows" : "");
    group.depth++;
    r = prepare(&k, c);
    if (r != ncclSuccess) {
        group.failed = r;
    }
    if (--group.depth > 0) {
        return r;
    }
    return end_group();
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return issue((dn_call){
        "ncclAllReduce", DN_ALLREDUCE, in, out, count, type, op, { 0 }, -1, comm, stream, 0 });
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return issue((dn_call){ "ncclBroadcast",
                            DN_BROADCAST,
                            in,
                            out,
                            count,
                            type,
                            ncclSum,
                            { 0 },
                            root,
                            comm,
                            stream,
                            0 });
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    return issue((dn_call){
        "ncclReduce", DN_REDUCE, in, out, count, type, op, { 0 }, root, comm, stream, 0 });
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return issue((dn_call){
        "ncclAllGather", DN_ALLGATHER, in, out, count, type, ncclSum, { 0 }, -1, comm, stream, 0 });
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return issue((dn_call){ "ncclReduceScatter",
                            DN_REDUCE_SCATTER,
                            in,
                            out,
                            count,
                            type,
                            op,
                            { 0 },
                            -1,
                            comm,
                            stream,
                            0 });
}

ncclResult_t ncclAlltoAll(const void *in, void *out, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
    dn_since("ncclAlltoAll", 22803);
    return issue((dn_call){
        "ncclAlltoAll", DN_ALLTOALL, in, out, count, type, ncclSum, { 0 }, -1, comm, stream, 0 });
}

ncclResult_t ncclGather(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    dn_since("ncclGather", 22803);
    return issue((dn_call){
        "ncclGather", DN_GATHER, in, out, count, type, ncclSum, { 0 }, root, comm, stream, 0 });
}

ncclResult_t ncclScatter(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
    dn_since("ncclScatter", 22803);
    return issue((dn_call){
        "ncclScatter", DN_SCATTER, in, out, count, type, ncclSum, { 0 }, root, comm, stream, 0 });
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return issue((dn_call){
        "ncclSend", DN_SEND, in, NULL, count, type, ncclSum, { 0 }, peer, comm, stream, 0 });
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return issue((dn_call){
        "ncclRecv", DN_RECV, NULL, out, count, type, ncclSum, { 0 }, peer, comm, stream, 0 });
}
