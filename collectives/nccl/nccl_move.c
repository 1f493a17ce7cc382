/* A call of the library as native calls of NCCL and copies on the device. */
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/kernels_set.h"
#include "nccl/nccl_internal.h"

/* Native calls of one operation, under the communicator's lock. After a failure nothing more is
 * called but what ends a group and gives a factor back. */
typedef struct series {
    dtr__nccl_comm *comm;
    const dtr__call *call;
    int depth;    /* of groups begun here; only the outermost is NCCL's */
    bool grouped; /* NCCL's has begun */
    size_t aside; /* bytes of the room in use */
    int code;     /* of NCCL: the first that is not success */
    const char *function;
    int cuda; /* of CUDA */
} series;

static size_t bytes_of(const dtr__call *c, size_t n) {
    return n * dtr_dtype_size(c->dtype);
}

static const char *at(const void *base, const dtr__call *c, size_t n) {
    return base != NULL ? (const char *)base + bytes_of(c, n) : NULL;
}

static char *at_out(void *base, const dtr__call *c, size_t n) {
    return base != NULL ? (char *)base + bytes_of(c, n) : NULL;
}

static void note(series *s, int code, const char *function) {
    bool worse = s->code == 0 || s->code == s->comm->ops->in_progress();
    if (code != 0 && worse) {
        s->code = code;
        s->function = function;
    }
}

static bool good(const series *s) {
    return s->cuda == 0 && (s->code == 0 || s->code == s->comm->ops->in_progress());
}

/* What a time-out says of a thread that does not come back; NULL: it has. */
static void enter_call(const series *s, const char *function) {
    if (function != NULL) {
        atomic_store_explicit(&s->comm->inside_ns, dtr__stamp_ns(), memory_order_relaxed);
    }
    atomic_store_explicit(&s->comm->inside, function, memory_order_release);
}

static void put(series *s, dtr__nccl_move m) {
    const dtr__nccl_comm *c = s->comm;
    if (good(s)) {
        const char *function = c->ops->move_name(m.kind);
        enter_call(s, function);
        note(s, c->ops->move(c->device, c->handle, &m, c->stream), function);
        enter_call(s, NULL);
    }
}

static void copy(series *s, void *to, const void *from, size_t nbytes) {
    const dtr__nccl_comm *c = s->comm;
    if (good(s) && nbytes > 0 && to != from) {
        s->cuda = c->cuda->copy(c->device, to, from, nbytes, DTR__COPY_ON_DEVICE, c->stream);
    }
}

static void open_group(series *s) {
    if (s->depth++ == 0 && good(s)) {
        note(s, s->comm->ops->group_start(), "ncclGroupStart");
        s->grouped = good(s);
    }
}

static void close_group(series *s) {
    if (--s->depth == 0 && s->grouped) {
        /* also after a failure inside, or the next call would join this group */
        enter_call(s, "ncclGroupEnd");
        note(s, s->comm->ops->group_end(s->comm->device), "ncclGroupEnd");
        enter_call(s, NULL);
        s->grouped = false;
    }
}

/* ---- forms with blocks ---- */

static dtr__nccl_move message(const dtr__call *c, bool send, const void *p, size_t n, int peer) {
    dtr__nccl_move m = {
        .kind = send ? DTR__NCCL_SEND : DTR__NCCL_RECV, .count = n, .dtype = c->dtype, .root = peer
    };
    m.in = send ? p : NULL;
    m.out = send ? NULL : (void *)(uintptr_t)p;
    return m;
}

static void reduce_scatterv(series *s, int op) {
    const dtr__call *c = s->call;
    dtr__blocks b = dtr__blocks_in(c, s->comm->size);
    open_group(s);
    for (int r = 0; r < s->comm->size; r++) {
        put(s, (dtr__nccl_move){ DTR__NCCL_REDUCE, at(c->in, c, dtr__block_offset(&b, r)),
                                 r == s->comm->rank ? c->out : NULL, dtr__block_count(&b, r),
                                 c->dtype, op, r });
    }
    close_group(s);
}

static bool equal_counts(const dtr__blocks *b, int n) {
    for (int i = 1; i < n; i++) {
        if (dtr__block_count(b, i) != dtr__block_count(b, 0)) {
            return false;
        }
    }
    return true;
}

static void allgather(series *s) {
    const dtr__call *c = s->call;
    dtr__blocks b = dtr__blocks_out(c, s->comm->size);
    if (equal_counts(&b, s->comm->size)) {
        put(s, (dtr__nccl_move){ DTR__NCCL_ALLGATHER, c->in, c->out, c->in_count, c->dtype, 0, 0 });
        return;
    }
    open_group(s);
    for (int r = 0; r < s->comm->size; r++) {
        char *slot = at_out(c->out, c, dtr__block_offset(&b, r));
        put(s, (dtr__nccl_move){ DTR__NCCL_BROADCAST, r == s->comm->rank ? c->in : slot, slot,
                                 dtr__block_count(&b, r), c->dtype, 0, r });
    }
    close_group(s);
}

/* NCCL has the form itself. */
static bool is_one_call(const series *s) {
    dtr__kind k = s->call->kind;
    return (k == DTR__K_GATHER && s->comm->ops->has(DTR__NCCL_GATHER)) ||
           (k == DTR__K_SCATTER && s->comm->ops->has(DTR__NCCL_SCATTER)) ||
           (k == DTR__K_ALLTOALL && s->comm->ops->has(DTR__NCCL_ALLTOALL));
}

static void gather(series *s) {
    const dtr__call *c = s->call;
    int rank = s->comm->rank;
    if (is_one_call(s)) {
        put(s,
            (dtr__nccl_move){ DTR__NCCL_GATHER, c->in, c->out, c->in_count, c->dtype, 0, c->root });
        return;
    }
    dtr__blocks b = dtr__blocks_out(c, s->comm->size);
    open_group(s);
    for (int r = 0; r < s->comm->size && rank == c->root; r++) {
        if (r != rank) {
            put(s, message(c, false, at_out(c->out, c, dtr__block_offset(&b, r)),
                           dtr__block_count(&b, r), r));
        }
    }
    if (rank != c->root) {
        put(s, message(c, true, c->in, c->in_count, c->root));
    }
    close_group(s);
}

static void scatter(series *s) {
    const dtr__call *c = s->call;
    int rank = s->comm->rank;
    if (is_one_call(s)) {
        put(s, (dtr__nccl_move){ DTR__NCCL_SCATTER, c->in, c->out, c->out_count, c->dtype, 0,
                                 c->root });
        return;
    }
    dtr__blocks b = dtr__blocks_in(c, s->comm->size);
    open_group(s);
    for (int r = 0; r < s->comm->size && rank == c->root; r++) {
        if (r != rank) {
            put(s, message(c, true, at(c->in, c, dtr__block_offset(&b, r)), dtr__block_count(&b, r),
                           r));
        }
    }
    if (rank != c->root) {
        put(s, message(c, false, c->out, c->out_count, c->root));
    }
    close_group(s);
}

static void alltoall(series *s, const void *in) {
    const dtr__call *c = s->call;
    const dtr__nccl_comm *comm = s->comm;
    if (is_one_call(s)) {
        put(s, (dtr__nccl_move){ DTR__NCCL_ALLTOALL, in, c->out, c->in_count / (size_t)comm->size,
                                 c->dtype, 0, 0 });
        return;
    }
    dtr__blocks bin = dtr__blocks_in(c, comm->size), bout = dtr__blocks_out(c, comm->size);
    open_group(s);
    for (int r = 0; r < comm->size; r++) {
        if (r != comm->rank) {
            put(s, message(c, true, at(in, c, dtr__block_offset(&bin, r)),
                           dtr__block_count(&bin, r), r));
            put(s, message(c, false, at_out(c->out, c, dtr__block_offset(&bout, r)),
                           dtr__block_count(&bout, r), r));
        }
    }
    close_group(s);
}

/* ---- messages ---- */

/* The counterpart of a message to this rank itself: the n-th send meets the n-th receive. NULL:
 * there is none, or it differs. */
static const dtr_p2p *counterpart(const dtr__call *c, int rank, size_t index) {
    const dtr_p2p *p = &c->batch[index];
    size_t nth = 0;
    for (size_t i = 0; i < index; i++) {
        nth += c->batch[i].peer == rank && c->batch[i].is_send == p->is_send;
    }
    for (size_t i = 0; i < c->n_batch; i++) {
        const dtr_p2p *o = &c->batch[i];
        if (o->peer == rank && o->is_send != p->is_send && nth-- == 0) {
            bool equal = o->buf.count == p->buf.count && o->buf.dtype == p->buf.dtype;
            return equal ? o : NULL;
        }
    }
    return NULL;
}

static void batch(series *s) {
    const dtr__call *c = s->call;
    open_group(s);
    for (size_t i = 0; i < c->n_batch; i++) {
        const dtr_p2p *p = &c->batch[i];
        dtr__call one = { .dtype = p->buf.dtype };
        if (p->peer != s->comm->rank || counterpart(c, p->peer, i) == NULL) {
            put(s, message(&one, p->is_send, p->buf.data, p->buf.count, p->peer));
        }
    }
    close_group(s);
}

/* ---- what stays on this rank ---- */

/* Memory of the communicator with the bytes of the input, which the output replaces. NULL: none. */
static const void *put_aside(series *s) {
    enum { LEAST = 1 << 16, MOST = 32 };
    dtr__nccl_comm *c = s->comm;
    size_t nbytes = bytes_of(s->call, s->call->in_count);
    if (c->room_size - s->aside < nbytes && c->n_rooms < MOST) {
        size_t size = 2 * c->room_size > LEAST ? 2 * c->room_size : LEAST;
        void *p = NULL;
        size = size > nbytes ? size : nbytes;
        s->cuda = c->cuda->alloc(c->device, size, &p);
        if (s->cuda != 0) {
            return NULL;
        }
        c->room[c->n_rooms++] = p; /* the ones before may still be in use */
        c->room_size = size;
        s->aside = 0;
    }
    void *p = c->n_rooms > 0 ? (char *)c->room[c->n_rooms - 1] + s->aside : NULL;
    s->aside += (nbytes + 255) / 256 * 256;
    s->aside = s->aside < c->room_size ? s->aside : c->room_size;
    copy(s, p, s->call->in, nbytes);
    return p;
}

static void copy_own_block(series *s, const void *in) {
    const dtr__call *c = s->call;
    int n = s->comm->size, rank = s->comm->rank;
    dtr__blocks to = dtr__blocks_out(c, n), from = dtr__blocks_in(c, n);
    bool gathers = c->kind == DTR__K_GATHER || c->kind == DTR__K_GATHERV;
    bool scatters = c->kind == DTR__K_SCATTER || c->kind == DTR__K_SCATTERV;
    if ((gathers || scatters) && rank != c->root) {
        return;
    }
    const void *own = gathers ? in : at(in, c, dtr__block_offset(&from, rank));
    size_t count = gathers ? c->in_count : dtr__block_count(&from, rank);
    copy(s, scatters ? c->out : at_out(c->out, c, dtr__block_offset(&to, rank)), own,
         bytes_of(c, count));
}

static void copy_own_messages(series *s) {
    const dtr__call *c = s->call;
    for (size_t i = 0; i < c->n_batch; i++) {
        const dtr_p2p *p = &c->batch[i];
        dtr__call one = { .dtype = p->buf.dtype };
        const dtr_p2p *own =
            p->is_send && p->peer == s->comm->rank ? counterpart(c, p->peer, i) : NULL;
        if (own != NULL) {
            copy(s, own->buf.data, p->buf.data, bytes_of(&one, p->buf.count));
        }
    }
}

/* Copies and memory, which may fail on this rank alone, before a native group begins. Returns the
 * input to be used from then on. */
static const void *prepare(series *s) {
    const dtr__call *c = s->call;
    const void *in = c->in;
    switch (c->kind) {
    case DTR__K_ALLTOALL:
    case DTR__K_ALLTOALLV:
        in = c->in == c->out && c->in_count > 0 ? put_aside(s) : c->in;
        /* fall through */
    case DTR__K_GATHER:
    case DTR__K_GATHERV:
    case DTR__K_SCATTER:
    case DTR__K_SCATTERV:
        if (!is_one_call(s)) {
            copy_own_block(s, in);
        }
        break;
    case DTR__K_BATCH:
        copy_own_messages(s);
        break;
    default:
        break;
    }
    return in;
}

/* ---- one operation ---- */

static void move(series *s, dtr__nccl_ready_call r) {
    const dtr__call *c = s->call;
    int op = r.op;
    switch (c->kind) {
    case DTR__K_ALLREDUCE:
        put(s,
            (dtr__nccl_move){ DTR__NCCL_ALLREDUCE, c->in, c->out, c->in_count, c->dtype, op, 0 });
        break;
    case DTR__K_REDUCE:
        put(s, (dtr__nccl_move){ DTR__NCCL_REDUCE, c->in, c->out, c->in_count, c->dtype, op,
                                 c->root });
        break;
    case DTR__K_REDUCE_SCATTER:
        put(s, (dtr__nccl_move){ DTR__NCCL_REDUCE_SCATTER, c->in, c->out, c->out_count, c->dtype,
                                 op, 0 });
        break;
    case DTR__K_REDUCE_SCATTERV:
        reduce_scatterv(s, op);
        break;
    case DTR__K_BROADCAST:
        put(s, (dtr__nccl_move){ DTR__NCCL_BROADCAST, c->in, c->out, c->in_count, c->dtype, 0,
                                 c->root });
        break;
    case DTR__K_ALLGATHER:
    case DTR__K_ALLGATHERV:
        allgather(s);
        break;
    case DTR__K_GATHER:
    case DTR__K_GATHERV:
        gather(s);
        break;
    case DTR__K_SCATTER:
    case DTR__K_SCATTERV:
        scatter(s);
        break;
    case DTR__K_ALLTOALL:
    case DTR__K_ALLTOALLV:
        alltoall(s, r.in);
        break;
    case DTR__K_SEND:
    case DTR__K_RECV:
        open_group(s); /* before 2.24 a message outside a group could be lost */
        put(s, message(c, c->kind == DTR__K_SEND, c->in, c->in_count,
                       s->comm->low < 0 ? c->root : 1 - s->comm->rank));
        close_group(s);
        break;
    default:
        batch(s);
        break;
    }
}

/* Sum and average of a communicator of one rank are the same. */
static dtr_op effective_op(const dtr__nccl_comm *comm, const dtr__call *c) {
    return comm->size == 1 && c->op == DTR_AVG ? DTR_SUM : c->op;
}

/* The communicator's operator for a call; one with a factor is made for it. */
static int op_of(series *s) {
    const dtr__call *c = s->call;
    const dtr__nccl_comm *comm = s->comm;
    if (!dtr__kind_reduces(c->kind)) {
        return 0;
    }
    if (c->op != DTR_PREMUL_SUM) {
        return comm->ops->op(effective_op(comm, c), c->dtype);
    }
    unsigned char factor[8];
    int op = -1;
    if (good(s)) {
        dtr__convert(factor, dtr__real_part(c->dtype), &c->premul, DTR_F64, 1);
        note(s,
             comm->ops->premul_new(comm->device, comm->handle,
                                   c->premul_device != NULL ? c->premul_device : factor,
                                   c->premul_device != NULL, c->dtype, &op),
             "ncclRedOpCreatePreMulSum");
    }
    return good(s) ? op : -1;
}

static void free_op(series *s, int op) {
    if (dtr__kind_reduces(s->call->kind) && s->call->op == DTR_PREMUL_SUM && op >= 0) {
        note(s, s->comm->ops->premul_free(s->comm->device, s->comm->handle, op),
             "ncclRedOpDestroy");
    }
}

static dtr__nccl_ready_call make_ready(series *s) {
    dtr__nccl_ready_call r = { .op = op_of(s), .in = s->call->in };
    if (good(s)) {
        r.in = prepare(s);
    }
    return r;
}

static void move_with_op(series *s) {
    dtr__nccl_ready_call r = make_ready(s);
    if (good(s)) {
        move(s, r);
    }
    free_op(s, r.op);
}

/* A group of one rank: what goes in comes out. */
static void move_alone(series *s) {
    const dtr__call *c = s->call;
    if (c->out != NULL && c->in != NULL) {
        copy(s, c->out, c->in, bytes_of(c, c->in_count));
    }
}

dtr_status dtr__nccl_run(dtr__nccl_comm *comm, dtr_work *w) {
    series s = { .comm = comm, .call = &w->call, .function = "" };
    if (comm->local) {
        move_alone(&s);
    } else {
        if (!dtr__nccl_enter(comm)) {
            return dtr__group_broken(comm->group);
        }
        move_with_op(&s);
        pthread_mutex_unlock(&comm->lock);
    }
    DTR_CUDA_TRY(s.cuda, DTR_ERR_CUDA);
    DTR_TRY(dtr__nccl_settle(comm, w, s.function, s.code));
    return dtr__nccl_divide(comm, &w->call);
}

/* ---- a scope ---- */

static bool is_native(const dtr_work *w) {
    return w->backend == &dtr__backend_nccl;
}

static void move_all(series *s, dtr_work *const *calls, size_t n, dtr__nccl_ready_call *ready) {
    for (size_t i = 0; i < n; i++) { /* what may fail comes before the group */
        s->call = &calls[i]->call;
        ready[i] = is_native(calls[i]) ? make_ready(s) : (dtr__nccl_ready_call){ .op = -1 };
    }
    open_group(s);
    for (size_t i = 0; i < n; i++) {
        s->call = &calls[i]->call;
        if (is_native(calls[i]) && good(s)) {
            move(s, ready[i]);
        }
    }
    close_group(s);
    for (size_t i = 0; i < n; i++) {
        s->call = &calls[i]->call;
        if (is_native(calls[i])) {
            free_op(s, ready[i].op);
        }
    }
}

static void move_all_alone(series *s, dtr_work *const *calls, size_t n) {
    for (size_t i = 0; i < n; i++) {
        s->call = &calls[i]->call;
        if (is_native(calls[i])) {
            move_alone(s);
        }
    }
}

dtr_status dtr__nccl_run_all(dtr__nccl_comm *comm, dtr_work *whole, dtr_work *const *calls,
                             size_t n, dtr__nccl_ready_call *ready) {
    series s = { .comm = comm, .call = &whole->call, .function = "" };
    if (comm->local) {
        move_all_alone(&s, calls, n);
    } else {
        if (!dtr__nccl_enter(comm)) {
            return dtr__group_broken(comm->group);
        }
        move_all(&s, calls, n, ready);
        pthread_mutex_unlock(&comm->lock);
    }
    DTR_CUDA_TRY(s.cuda, DTR_ERR_CUDA);
    DTR_TRY(dtr__nccl_settle(comm, whole, s.function, s.code));
    for (size_t i = 0; i < n; i++) {
        if (is_native(calls[i])) {
            DTR_TRY(dtr__nccl_divide(comm, &calls[i]->call));
        }
    }
    return DTR_OK;
}
