/* Running operations: the task of one launch on a stream's worker. Collectives run in the order of
 * their calls, the sends and receives of a group all at once after them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "double_nccl.h"

typedef struct launch {
    struct ncclComm *comm;
    uint64_t ticket;
    bool replayed; /* part of a graph: takes its ticket when it begins */
    size_t n;
    dn_call calls[];
} launch;

static const char *const kind_names[] = { "allreduce",      "broadcast", "reduce", "allgather",
                                          "reduce_scatter", "alltoall",  "gather", "scatter",
                                          "send",           "recv" };

static void hang(struct ncclComm *c) {
    for (unsigned turn = 0; !dn_pause(c, turn); turn++) {
    }
}

/* ---- collectives ---- */

static void describe(const dn_signature *s, char *text, size_t cap) {
    snprintf(text, cap, "%s of %llu elements of type %u, op %u, root %d", kind_names[s->kind],
             (unsigned long long)s->count, s->type, s->op, s->root);
}

/* True when all ranks run the same operation; a difference, on which NCCL would hang or move
 * rubbish, is an error on all of them. False also when aborted. */
static bool same_on_all(const dn_call *k) {
    struct ncclComm *c = k->comm;
    dn_rank *r = c->shared->rank;
    r[c->rank].signature =
        (dn_signature){ (uint32_t)k->kind, (uint32_t)k->type,
                        k->op.kind == DN_PREMUL ? ncclNumOps : k->given_op, k->root, k->count };
    if (!dn_stream_barrier(c)) {
        return false;
    }
    int other = -1;
    for (int i = c->nranks - 1; i > 0; i--) {
        if (memcmp(&r[i].signature, &r[0].signature, sizeof r[i].signature) != 0) {
            other = i;
        }
    }
    dn_signature a = r[0].signature, b = r[other > 0 ? other : 0].signature;
    if (!dn_stream_barrier(c)) {
        return false;
    }
    if (other < 0) {
        return true;
    }
    char first[160], second[160];
    describe(&a, first, sizeof first);
    describe(&b, second, sizeof second);
    dn_set_error(c, "ranks disagree: rank 0 runs %s, rank %d runs %s", first, other, second);
    fprintf(stderr, "fake nccl: ranks disagree: rank 0 runs %s, rank %d runs %s\n", first, other,
            second);
    dn_fail(c, ncclInvalidUsage);
    return false;
}

/* Bytes that the ranks stage together, position by position. */
static size_t staged_bytes(const dn_call *k) {
    size_t n = k->count * dn_type_size(k->type);
    bool blocks = k->kind == DN_REDUCE_SCATTER || k->kind == DN_ALLTOALL || k->kind == DN_SCATTER;
    return blocks ? n * (size_t)k->comm->nranks : n;
}

/* Take what this rank needs of bytes [at, at + n) of all slots. */
static void take(const dn_call *k, size_t at, size_t n, const char *const *slots) {
    struct ncclComm *c = k->comm;
    size_t size = dn_type_size(k->type), block = k->count * size;
    size_t first = block * (size_t)c->rank; /* of this rank's own block */
    size_t lo = at > first ? at : first, hi = at + n < first + block ? at + n : first + block;
    const char *shifted[DN_MAX_RANKS];
    switch (k->kind) {
    case DN_ALLREDUCE:
        dn_reduce(k->out + at, slots, c->nranks, n / size, k->type, &k->op);
        break;
    case DN_REDUCE:
        if (c->rank == k->root) {
            dn_reduce(k->out + at, slots, c->nranks, n / size, k->type, &k->op);
        }
        break;
    case DN_BROADCAST:
        memcpy(k->out + at, slots[k->root], n);
        break;
    case DN_ALLGATHER:
    case DN_GATHER:
        for (int i = 0; i < c->nranks && (k->kind == DN_ALLGATHER || c->rank == k->root); i++) {
            memcpy(k->out + (size_t)i * block + at, slots[i], n);
        }
        break;
    case DN_REDUCE_SCATTER:
        for (int i = 0; i < c->nranks && lo < hi; i++) {
            shifted[i] = slots[i] + (lo - at);
        }
        if (lo < hi) {
            dn_reduce(k->out + (lo - first), shifted, c->nranks, (hi - lo) / size, k->type, &k->op);
        }
        break;
    case DN_ALLTOALL:
        for (int i = 0; i < c->nranks && lo < hi; i++) {
            memcpy(k->out + (size_t)i * block + (lo - first), slots[i] + (lo - at), hi - lo);
        }
        break;
    case DN_SCATTER:
        if (lo < hi) {
            memcpy(k->out + (lo - first), slots[k->root] + (lo - at), hi - lo);
        }
        break;
    default:
        break;
    }
}

static bool run_collective(const dn_call *k) {
    struct ncclComm *c = k->comm;
    if (!same_on_all(k)) {
        return false;
    }
    const char *slots[DN_MAX_RANKS];
    for (int i = 0; i < c->nranks; i++) {
        slots[i] = dn_slot(c, i);
    }
    bool rooted_in = k->kind == DN_BROADCAST || k->kind == DN_SCATTER;
    bool stages = !rooted_in || c->rank == k->root;
    size_t total = staged_bytes(k);
    for (size_t at = 0, n; at < total; at += n) {
        n = total - at < DN_SLOT ? total - at : DN_SLOT;
        if (stages) {
            memcpy(dn_slot(c, c->rank), k->in + at, n);
        }
        if (!dn_stream_barrier(c)) {
            return false;
        }
        take(k, at, n, slots);
        if (!dn_stream_barrier(c)) {
            return false;
        }
    }
    return true;
}

/* ---- point to point ---- */

typedef struct transfer {
    const dn_call *call;
    size_t moved;
    bool started, done;
} transfer;

/* A send ends when its last piece has been taken, and not when there is room for it. */
static bool send_some(transfer *t) {
    const dn_call *k = t->call;
    size_t total = k->count * dn_type_size(k->type);
    dn_mail *m = dn_mailbox(k->comm, k->comm->rank, k->root);
    uint64_t sent = atomic_load(&m->sent);
    if (atomic_load(&m->taken) != sent) {
        return false;
    }
    t->done = t->started && t->moved == total;
    if (t->done) {
        return true;
    }
    size_t n = total - t->moved < DN_MAIL ? total - t->moved : DN_MAIL;
    t->started = true;
    if (n > 0) {
        memcpy(m->data, k->in + t->moved, n);
    }
    m->nbytes = n;
    m->count = k->count;
    m->type = (uint32_t)k->type;
    atomic_store(&m->sent, sent + 1);
    t->moved += n;
    return true;
}

static bool recv_some(transfer *t) {
    const dn_call *k = t->call;
    struct ncclComm *c = k->comm;
    size_t total = k->count * dn_type_size(k->type);
    dn_mail *m = dn_mailbox(c, k->root, c->rank);
    uint64_t taken = atomic_load(&m->taken);
    if (atomic_load(&m->sent) == taken) {
        return false;
    }
    if (!t->started && m->count * dn_type_size((ncclDataType_t)m->type) != total) {
        if (dn_odd_ends_hang()) {
            return false;
        }
        dn_set_error(c, "rank %d sends %llu elements of type %u, rank %d receives %zu of type %d",
                     k->root, (unsigned long long)m->count, m->type, c->rank, k->count,
                     (int)k->type);
        fprintf(stderr, "fake nccl: %s\n", c->error);
        dn_fail(c, ncclInvalidUsage);
        t->done = true;
        return true;
    }
    t->started = true;
    if (m->nbytes > 0) {
        memcpy(k->out + t->moved, m->data, m->nbytes);
    }
    t->moved += m->nbytes;
    t->done = t->moved == total;
    atomic_store(&m->taken, taken + 1);
    return true;
}

/* An earlier transfer of the group to the same peer in the same direction goes first. */
static bool is_first(const transfer *list, size_t i) {
    for (size_t j = 0; j < i; j++) {
        if (!list[j].done && list[j].call->kind == list[i].call->kind &&
            list[j].call->root == list[i].call->root) {
            return false;
        }
    }
    return true;
}

static bool run_transfers(struct ncclComm *c, transfer *list, size_t n) {
    for (unsigned turn = 0;; turn++) {
        bool moved = false, left = false;
        for (size_t i = 0; i < n; i++) {
            if (!list[i].done && is_first(list, i)) {
                moved |= list[i].call->kind == DN_SEND ? send_some(&list[i]) : recv_some(&list[i]);
            }
            left |= !list[i].done;
        }
        if (!left) {
            return true;
        }
        turn = moved ? 0 : turn;
        if (!moved && dn_pause(c, turn)) {
            return false;
        }
    }
}

/* ---- the task ---- */

/* False: nothing more of this communicator may run. */
static bool faults(const dn_call *k) {
    struct ncclComm *c = k->comm;
    long slow = dn_slow_us(c->rank);
    if (slow > 0) {
        struct timespec t = { slow / 1000000, slow % 1000000 * 1000 };
        nanosleep(&t, NULL);
    }
    if (dn_fault_here(DN_FAULT_KILL, c->rank, k)) {
        raise(SIGKILL);
    }
    if (dn_fault_here(DN_FAULT_ASYNC, c->rank, k)) {
        dn_set_error(c, "rank %d: injected asynchronous error in %s", c->rank, k->name);
        dn_fail(c, ncclSystemError);
        return false;
    }
    return !dn_fault_here(DN_FAULT_HANG, c->rank, k);
}

static bool is_p2p(const dn_call *k) {
    return k->kind == DN_SEND || k->kind == DN_RECV;
}

static bool run_all(launch *l) {
    size_t n = 0;
    transfer *list = calloc(l->n, sizeof *list);
    bool good = list != NULL;
    for (size_t i = 0; i < l->n && good; i++) {
        good = faults(&l->calls[i]);
        if (good && is_p2p(&l->calls[i])) {
            list[n++].call = &l->calls[i];
        } else if (good) {
            good = run_collective(&l->calls[i]);
        }
    }
    good = good && run_transfers(l->comm, list, n);
    free(list);
    return good;
}

static void unfinished(struct ncclComm *c, int more) {
    dtr_fake_cuda_kernels(more);
    atomic_fetch_add(&c->unfinished, more);
}

static void run(void *arg) {
    launch *l = arg;
    struct ncclComm *c = l->comm;
    bool good = true;
    if (l->replayed) {
        unfinished(c, 1);
        l->ticket = atomic_fetch_add(&c->tickets, 1);
    }
    for (unsigned turn = 0; atomic_load(&c->turn) != l->ticket && good; turn++) {
        good = !dn_pause(c, turn);
    }
    int state = atomic_load(&c->state);
    good =
        good && atomic_load(&c->aborted) == 0 && (state == ncclSuccess || state == ncclInProgress);
    if (!good || !run_all(l)) {
        hang(c); /* a kernel that lost its peers runs until the communicator is aborted */
    }
    atomic_store(&c->turn, l->ticket + 1);
    free(l);
    fake_before(&c->unfinished); /* the end of a communicator waits for this */
    unfinished(c, -1);
}

static void graph_gone(void *comm) {
    atomic_fetch_sub(&((struct ncclComm *)comm)->graphs, 1);
}

/* The graph that the stream captures counts for the communicator, until it is gone. */
static int note_graph(struct ncclComm *c, void *stream) {
    enum cudaStreamCaptureStatus status;
    cudaGraph_t graph = NULL;
    cudaUserObject_t o;
    cudaError_t e =
        cudaStreamGetCaptureInfo((cudaStream_t)stream, &status, NULL, &graph, NULL, NULL, NULL);
    e = e == cudaSuccess
            ? cudaUserObjectCreate(&o, c, graph_gone, 1, cudaUserObjectNoDestructorSync)
            : e;
    if (e == cudaSuccess) {
        atomic_fetch_add(&c->graphs, 1);
        e = cudaGraphRetainUserObject(graph, o, 1, cudaGraphUserObjectMove);
    }
    return (int)e;
}

ncclResult_t dn_launch(struct ncclComm *c, const dn_call *calls, size_t n) {
    launch *l = malloc(sizeof *l + n * sizeof *calls);
    if (l == NULL) {
        return ncclSystemError;
    }
    l->comm = c;
    l->n = n;
    memcpy(l->calls, calls, n * sizeof *calls);
    l->replayed = dtr_fake_cuda_capturing(calls[0].stream) != 0;
    if (!l->replayed) {
        l->ticket = atomic_fetch_add(&c->tickets, 1);
        unfinished(c, 1);
    }
    int e = l->replayed ? note_graph(c, calls[0].stream) : 0;
    e = e != 0 ? e
               : dtr_fake_cuda_enqueue(calls[0].stream, calls[0].name, run, l,
                                       sizeof *l + n * sizeof *calls);
    if (e != 0) {
        dn_set_error(c, "%s: the stream refuses the task: cuda error %d", calls[0].name, e);
        unfinished(c, l->replayed ? 0 : -1);
        free(l);
        return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}
