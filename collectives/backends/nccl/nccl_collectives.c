/* A call of the library as native calls of NCCL and copies on the device. */
#include <string.h>

#include "core/check.h"
#include "core/team.h"
#include "kernels/kernels.h"
#include "kernels/kernels_set.h"
#include "nccl_internal.h"

/* Native calls of one operation, under the communicator's lock. After a failure nothing more is
 * called but what ends a group and gives a factor back. */
typedef struct series {
    dtr__nccl_comm *comm;
    const dtr__call *call;
    int depth;    /* of groups begun here; only the outermost is NCCL's */
    bool grouped; /* NCCL's has begun */
    size_t aside; /* bytes of the scratch memory in use */
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
    bool worse = s->code == 0 || s->code == s->comm->ops->in_progress;
    if (code != 0 && worse) {
        s->code = code;
        s->function = function;
    }
}

static bool good(const series *s) {
    return s->cuda == 0 && (s->code == 0 || s->code == s->comm->ops->in_progress);
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

static void reduce_scatterv(series *s, dtr__nccl_ready_call ready) {
    const dtr__call *c = s->call;
    dtr__blocks b = dtr__blocks_in(c, s->comm->size);
    open_group(s);
    for (int r = 0; r < s->comm->size; r++) {
        put(s, (dtr__nccl_move){ DTR__NCCL_REDUCE, at(ready.in, c, dtr__block_offset(&b, r)),
                                 r == s->comm->rank ? c->out : NULL, dtr__block_count(&b, r),
                                 c->dtype, ready.op, r });
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

static void allgather(series *s, dtr__nccl_ready_call ready) {
    const dtr__call *c = s->call;
    dtr__blocks b = dtr__blocks_out(c, s->comm->size);
    if (equal_counts(&b, s->comm->size)) {
        put(s,
            (dtr__nccl_move){ DTR__NCCL_ALLGATHER, ready.in, c->out, c->in_count, c->dtype, 0, 0 });
        return;
    }
    open_group(s);
    for (int r = 0; r < s->comm->size; r++) {
        char *slot = at_out(c->out, c, dtr__block_offset(&b, r));
        put(s, (dtr__nccl_move){ DTR__NCCL_BROADCAST, r == s->comm->rank ? ready.in : slot, slot,
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

/* Blocks between the root and the others, as messages where NCCL does not have the form. */
static void rooted(series *s, int kind, const void *in, size_t count) {
    const dtr__call *c = s->call;
    int rank = s->comm->rank;
    bool gathers = kind == DTR__NCCL_GATHER;
    if (is_one_call(s)) {
        put(s, (dtr__nccl_move){ kind, in, c->out, count, c->dtype, 0, c->root });
        return;
    }
    dtr__blocks b = gathers ? dtr__blocks_out(c, s->comm->size) : dtr__blocks_in(c, s->comm->size);
    open_group(s);
    for (int r = 0; r < s->comm->size && rank == c->root; r++) {
        if (r != rank) {
            put(s, message(c, !gathers, at(gathers ? c->out : in, c, dtr__block_offset(&b, r)),
                           dtr__block_count(&b, r), r));
        }
    }
    if (rank != c->root) {
        put(s, message(c, gathers, gathers ? in : c->out, count, c->root));
    }
    close_group(s);
}

static void gather(series *s, dtr__nccl_ready_call ready) {
    rooted(s, DTR__NCCL_GATHER, ready.in, s->call->in_count);
}

static void scatter(series *s, dtr__nccl_ready_call ready) {
    rooted(s, DTR__NCCL_SCATTER, ready.in, s->call->out_count);
}

static void alltoall(series *s, dtr__nccl_ready_call ready) {
    const dtr__call *c = s->call;
    const dtr__nccl_comm *comm = s->comm;
    if (is_one_call(s)) {
        put(s, (dtr__nccl_move){ DTR__NCCL_ALLTOALL, ready.in, c->out,
                                 c->in_count / (size_t)comm->size, c->dtype, 0, 0 });
        return;
    }
    dtr__blocks bin = dtr__blocks_in(c, comm->size), bout = dtr__blocks_out(c, comm->size);
    open_group(s);
    for (int r = 0; r < comm->size; r++) {
        if (r != comm->rank) {
            put(s, message(c, true, at(ready.in, c, dtr__block_offset(&bin, r)),
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

static void batch(series *s, dtr__nccl_ready_call ready) {
    (void)ready; /* its entries have buffers of their own */
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
    if (c->scratch_size - s->aside < nbytes && c->n_scratch < MOST) {
        size_t size = 2 * c->scratch_size > LEAST ? 2 * c->scratch_size : LEAST;
        void *p = NULL;
        size = size > nbytes ? size : nbytes;
        s->cuda = c->cuda->alloc_beside(c->device, size, &p);
        if (s->cuda != 0) {
            return NULL;
        }
        c->scratch[c->n_scratch++] = p; /* the ones before may still be in use */
        c->scratch_size = size;
        s->aside = 0;
    }
    void *p = c->n_scratch > 0 ? (char *)c->scratch[c->n_scratch - 1] + s->aside : NULL;
    s->aside += (nbytes + 255) / 256 * 256;
    s->aside = s->aside < c->scratch_size ? s->aside : c->scratch_size;
    copy(s, p, s->call->in, nbytes);
    return p;
}

static void copy_own_block(series *s, const void *in) {
    const dtr__call *c = s->call;
    int n = s->comm->size, rank = s->comm->rank;
    dtr__blocks to = dtr__blocks_out(c, n), from = dtr__blocks_in(c, n);
    bool gathers = dtr__root_takes(c->kind), scatters = dtr__root_gives(c->kind);
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

/* Copies and memory, which may fail on this rank alone, before a native group begins. `in`: the
 * input to be used from then on. */
static void prepare_nothing(series *s, const void **in) {
    (void)s, (void)in;
}

static void prepare_own_block(series *s, const void **in) {
    if (!is_one_call(s)) {
        copy_own_block(s, *in);
    }
}

static void prepare_exchange(series *s, const void **in) {
    if (s->call->in == s->call->out && s->call->in_count > 0) {
        *in = put_aside(s);
    }
    prepare_own_block(s, in);
}

static void prepare_messages(series *s, const void **in) {
    (void)in;
    copy_own_messages(s);
}

/* ---- one operation ---- */

static void one_call(series *s, int kind, size_t count, int op) {
    const dtr__call *c = s->call;
    int root = kind == DTR__NCCL_REDUCE || kind == DTR__NCCL_BROADCAST ? c->root : 0;
    put(s, (dtr__nccl_move){ kind, c->in, c->out, count, c->dtype, op, root });
}

static void allreduce(series *s, dtr__nccl_ready_call r) {
    one_call(s, DTR__NCCL_ALLREDUCE, s->call->in_count, r.op);
}

static void reduce(series *s, dtr__nccl_ready_call r) {
    one_call(s, DTR__NCCL_REDUCE, s->call->in_count, r.op);
}

static void reduce_scatter(series *s, dtr__nccl_ready_call r) {
    one_call(s, DTR__NCCL_REDUCE_SCATTER, s->call->out_count, r.op);
}

static void broadcast(series *s, dtr__nccl_ready_call r) {
    one_call(s, DTR__NCCL_BROADCAST, s->call->in_count, r.op);
}

static void lone_message(series *s, dtr__nccl_ready_call r) {
    const dtr__call *c = s->call;
    open_group(s); /* before 2.24 a message outside a group could be lost */
    put(s, message(c, c->kind == DTR__K_SEND, r.in, c->in_count,
                   s->comm->low < 0 ? c->root : 1 - s->comm->rank));
    close_group(s);
}

#define FORM(KIND, preparation, function) \
    [DTR__K_##KIND] = { .prepare = prepare_##preparation, .move = (function) },
static const struct {
    void (*prepare)(series *s, const void **in);
    void (*move)(series *s, dtr__nccl_ready_call r);
} forms[DTR__K_COUNT] = { DTR__NCCL_FORMS(FORM) };

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
        forms[s->call->kind].prepare(s, &r.in);
    }
    return r;
}

/* A group of one rank: what goes in comes out. */
static void move_alone(series *s) {
    const dtr__call *c = s->call;
    if (c->out != NULL && c->in != NULL) {
        copy(s, c->out, c->in, bytes_of(c, c->in_count));
    }
}

/* The next of the operation's calls that are this backend's; false: there is none. */
static bool next_call(series *s, const dtr__nccl_op *op, size_t *i) {
    while (*i < op->n && op->calls[*i]->backend != &dtr__backend_nccl) {
        ++*i;
    }
    s->call = *i < op->n ? &op->calls[*i]->call : s->call;
    return *i < op->n;
}

/* Calls of a scope are one native group, before which comes what may fail on this rank alone. */
static void move(series *s, dtr__nccl_op *op) {
    bool scope = op->calls[0] != op->whole;
    for (size_t i = 0; next_call(s, op, &i); i++) {
        op->ready[i] = make_ready(s);
    }
    if (scope) {
        open_group(s);
    }
    for (size_t i = 0; good(s) && next_call(s, op, &i); i++) {
        forms[s->call->kind].move(s, op->ready[i]);
    }
    if (scope) {
        close_group(s);
    }
    for (size_t i = 0; next_call(s, op, &i); i++) {
        free_op(s, op->ready[i].op);
    }
}

dtr_status dtr__nccl_run(dtr__nccl_op *op) {
    dtr__nccl_comm *comm = op->comm;
    series s = { .comm = comm, .call = &op->whole->call, .function = "" };
    if (comm->local) {
        for (size_t i = 0; next_call(&s, op, &i); i++) {
            move_alone(&s);
        }
    } else {
        if (!dtr__nccl_enter(comm)) {
            return dtr__group_broken(comm->group);
        }
        move(&s, op);
        pthread_mutex_unlock(&comm->lock);
    }
    DTR_CUDA_TRY(s.cuda, DTR_ERR_CUDA);
    DTR_TRY(dtr__nccl_settle(comm, op->whole, s.function, s.code));
    for (size_t i = 0; next_call(&s, op, &i); i++) {
        DTR_TRY(dtr__nccl_divide(comm, s.call));
    }
    return DTR_OK;
}
