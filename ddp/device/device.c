/* Modules on a CUDA device. A bucket is gathered by one kernel on the module's own stream, behind
 * an event of every stream that contributed gradients, and reduced behind that; the stream of
 * backward_end waits for the reduction and gives the averages back by one kernel per bucket. The
 * host only queues all this; it waits where memory is made or moves: at create, at the one rebuild,
 * at the end. */
#include <stdlib.h>

#include "core/call.h"
#include "core/team.h"
#include "device.h"
#include "engine/engine.h"
#include "group/device_select.h"

static dtr_status event_new(const dtr_ddp *ddp, void **event) {
    DTR_CUDA_TRY(ddp->gpu->ops->event_new(ddp->at.device, false, event), DTR_ERR_CUDA);
    return DTR_OK;
}

/* ---- order among streams ---- */

dtr_status dtr__ddp_device_order(dtr_ddp *ddp, void *before, void *after) {
    dtr__ddp_gpu *g = ddp->gpu;
    pthread_mutex_lock(&g->lock);
    int code = g->ops->event_record(g->index, g->event, before);
    code = code == 0 ? g->ops->stream_wait(g->index, after, g->event) : code;
    pthread_mutex_unlock(&g->lock);
    DTR_CUDA_TRY(code, DTR_ERR_CUDA);
    return DTR_OK;
}

dtr_status dtr__ddp_device_follow(dtr_ddp *ddp, void *stream) {
    return dtr__ddp_on_device(ddp) ? dtr__ddp_device_order(ddp, stream, ddp->at.stream) : DTR_OK;
}

dtr_status dtr__ddp_device_lead(dtr_ddp *ddp, void *stream) {
    return dtr__ddp_on_device(ddp) ? dtr__ddp_device_order(ddp, ddp->at.stream, stream) : DTR_OK;
}

dtr_status dtr__ddp_device_synchronize(dtr_ddp *ddp) {
    const dtr__ddp_gpu *g = ddp->gpu;
    if (dtr__ddp_on_device(ddp)) {
        DTR_CUDA_TRY(g->ops->stream_synchronize(g->index, g->stream), DTR_ERR_CUDA);
    }
    return DTR_OK;
}

void dtr__ddp_device_finish(dtr_ddp *ddp) {
    const dtr__ddp_gpu *g = ddp->gpu;
    (void)dtr__ddp_device_synchronize(ddp);
    if (g != NULL && g->step_stream != NULL) {
        (void)g->ops->stream_synchronize(g->index, g->step_stream);
    }
}

dtr_status dtr__ddp_device_step_open(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    if (dtr__ddp_on_device(ddp) && g->step_stream == NULL) {
        DTR_CUDA_TRY(g->ops->stream_new(g->index, false, &g->step_stream), DTR_ERR_CUDA);
    }
    return DTR_OK;
}

/* ---- contributions ---- */

/* There is an entry for a stream; lock held. */
static dtr_status add_feed(const dtr_ddp *ddp, dtr__ddp_feeds *f, void *stream) {
    for (size_t k = 0; k < f->n; k++) {
        if (f->list[k].stream == stream) {
            return DTR_OK;
        }
    }
    if (f->n == f->cap) {
        dtr__ddp_feed *grown = realloc(f->list, (f->cap + 2) * sizeof *grown);
        DTR_REQUIRE(grown != NULL, NULL, DTR_ERR_NOMEM, "no memory for the streams of a bucket");
        f->list = grown;
        for (int more = 0; more < 2; more++) {
            void *event = NULL;
            DTR_TRY(event_new(ddp, &event));
            f->list[f->cap++] = (dtr__ddp_feed){ NULL, event };
        }
    }
    f->list[f->n++].stream = stream;
    return DTR_OK;
}

void dtr__ddp_device_feed(dtr_ddp *ddp, dtr__ddp_feeds *feeds, size_t i, void *stream) {
    if (!dtr__ddp_on_device(ddp)) {
        return;
    }
    pthread_mutex_lock(&ddp->gpu->lock);
    dtr_status s = add_feed(ddp, feeds, stream);
    pthread_mutex_unlock(&ddp->gpu->lock);
    (void)dtr__ddp_note_last(ddp, s, i);
}

static int wait_for_feed(const dtr__ddp_gpu *g, const dtr__ddp_feed *feed, void *stream) {
    if (feed->stream == stream) {
        return 0;
    }
    int code = g->ops->event_record(g->index, feed->event, feed->stream);
    return code == 0 ? g->ops->stream_wait(g->index, stream, feed->event) : code;
}

/* One event for each stream of a bucket, and not for each gradient: what a stream got since then
 * comes first too, but nearly always nothing has, as the bucket goes with its last gradient. */

dtr_status dtr__ddp_device_wait_for_feeds(dtr_ddp *ddp, dtr__ddp_feeds *feeds, void *stream) {
    int code = 0;
    pthread_mutex_lock(&ddp->gpu->lock);
    for (size_t k = 0; k < feeds->n && code == 0; k++) {
        code = wait_for_feed(ddp->gpu, &feeds->list[k], stream);
    }
    feeds->n = 0;
    pthread_mutex_unlock(&ddp->gpu->lock);
    DTR_CUDA_TRY(code, DTR_ERR_CUDA);
    return DTR_OK;
}

void dtr__ddp_device_feeds_free(dtr_ddp *ddp, dtr__ddp_feeds *feeds) {
    for (size_t k = 0; k < feeds->cap; k++) {
        (void)ddp->gpu->ops->event_free(ddp->at.device, feeds->list[k].event);
    }
    free(feeds->list);
    *feeds = (dtr__ddp_feeds){ 0 };
}

static dtr_status pack(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    size_t n = 0;
    const dtr__ddp_at at = ddp->at;
    DTR_TRY(dtr__ddp_device_wait_for_feeds(ddp, &b->feeds, ddp->at.stream));
    for (size_t k = 0; k < b->plan->n_slots && b->sparse == NULL; k++) {
        dtr__ddp_param *p = &ddp->params[b->plan->slots[k].param];
        int put = atomic_exchange(&p->put, DTR__PUT_NOTHING);
        const dtr_tensor *grad = atomic_load(&p->grad);
        if (put == DTR__PUT_ZERO) {
            DTR_TRY(ddp->mover->zero(p->slot->data, b->plan->slots[k].nbytes, &at));
        } else if (put == DTR__PUT_GRADIENT) {
            b->pieces[n++] = (dtr__ddp_piece){ p->slot->data, grad->data, p->slot->numel,
                                               p->slot->dtype, grad->dtype };
        }
        DTR_TRY(dtr__ddp_device_find_nan(ddp, b->plan->slots[k].param));
    }
    return n > 0 ? ddp->mover->move(b->pieces, n, 1, &at) : DTR_OK;
}

dtr_status dtr__ddp_device_pack(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    dtr_status s = dtr__ddp_on_device(ddp) ? pack(ddp, b) : DTR_OK;
    if (s < 0) {
        dtr__group_break(ddp->group, s); /* the others wait for this bucket */
    }
    return s;
}

/* ---- one backward ---- */

dtr_status dtr__ddp_device_enter(dtr_ddp *ddp, void *stream) {
    if (!dtr__ddp_on_device(ddp)) {
        return DTR_OK;
    }
    ddp->out.stream = stream;
    ddp->gpu->has_out = true;
    dtr__ddp_timing_mark(ddp, DTR__AT_ENTER, stream);
    /* What is settled now was written before the call, as far as this stream knows. */
    return ddp->it.sync && ddp->it.next < ddp->n_buckets
               ? dtr__ddp_device_order(ddp, stream, ddp->at.stream)
               : DTR_OK;
}

dtr_status dtr__ddp_device_alone(dtr_ddp *ddp, bool fill) {
    for (size_t b = 0; b < ddp->n_buckets && dtr__ddp_on_device(ddp); b++) {
        bool packs = fill || ddp->it.copies_out || ddp->gpu->nan_there != NULL;
        DTR_TRY(packs
                    ? pack(ddp, &ddp->buckets[b])
                    : dtr__ddp_device_wait_for_feeds(ddp, &ddp->buckets[b].feeds, ddp->out.stream));
    }
    return dtr__ddp_device_lead(ddp, ddp->out.stream); /* copies of slots, where any were made */
}

void dtr__ddp_device_forget_out(dtr_ddp *ddp) {
    if (dtr__ddp_on_device(ddp)) {
        ddp->out.stream = ddp->at.stream;
        ddp->gpu->has_out = false;
    }
}

/* Buckets are filled again behind the averages' way out. */
dtr_status dtr__ddp_device_leave(dtr_ddp *ddp) {
    return dtr__ddp_device_follow(ddp, ddp->out.stream);
}

/* ---- many tensors from one rank ---- */

enum { SEND_PIECE = 32 << 20 };

static size_t bytes_of(const dtr_tensor *t) {
    return t->numel * dtr_dtype_size(t->dtype);
}

static dtr_status broadcast(dtr_ddp *ddp, void *data, size_t nbytes, int root) {
    dtr__request r = { .kind = DTR__K_BROADCAST,
                       .root = root,
                       .in = { data, nbytes, DTR_U8, ddp->device } };
    return dtr__ddp_issue(ddp, &r, "ddp sync", DTR__PART_SYNC, NULL);
}

static dtr_status staging(dtr_ddp *ddp, size_t nbytes) {
    dtr_tensor **t = &ddp->gpu->staging;
    int64_t count = (int64_t)nbytes;
    if (*t != NULL && (*t)->numel >= nbytes) {
        return DTR_OK;
    }
    DTR_TRY(dtr__ddp_device_synchronize(ddp)); /* the old one may be in use */
    dtr_tensor_release(*t);
    *t = NULL;
    return dtr_tensor_empty(ddp->world, DTR_U8, ddp->device, DTR_MEM_DEFAULT, 1, &count, t);
}

/* Gather, send, give back. A single tensor travels from its own memory. */
static dtr_status send_piece(dtr_ddp *ddp, dtr_tensor *const *list, size_t n, size_t nbytes,
                             int root) {
    const dtr__ddp_at at = ddp->at;
    if (n == 1) {
        return nbytes > 0 ? broadcast(ddp, list[0]->data, bytes_of(list[0]), root) : DTR_OK;
    }
    dtr__ddp_piece *pieces = calloc(n, sizeof *pieces);
    DTR_REQUIRE(pieces != NULL, NULL, DTR_ERR_NOMEM, "no memory for a list of %zu tensors", n);
    dtr_status s = staging(ddp, nbytes);
    char *place = s == DTR_OK ? ddp->gpu->staging->data : NULL;
    for (size_t k = 0; k < n && s == DTR_OK; k++) {
        void *own = list[k]->data;
        bool mine = ddp->rank == root;
        pieces[k] = (dtr__ddp_piece){ mine ? place : own, mine ? own : place, bytes_of(list[k]),
                                      DTR_U8, DTR_U8 };
        place += dtr__plan_round(bytes_of(list[k]));
    }
    if (s == DTR_OK && ddp->rank == root) {
        s = ddp->mover->move(pieces, n, 1, &at);
    }
    if (s == DTR_OK && nbytes > 0) {
        s = broadcast(ddp, ddp->gpu->staging->data, nbytes, root);
    }
    if (s == DTR_OK && ddp->rank != root) {
        s = ddp->mover->move(pieces, n, 1, &at);
    }
    free(pieces);
    return s;
}

static dtr_status send_all(dtr_ddp *ddp, dtr_tensor *const *list, size_t n, int root) {
    for (size_t at = 0; at < n;) {
        size_t end = at, nbytes = 0;
        while (end < n && nbytes < SEND_PIECE) {
            nbytes += dtr__plan_round(bytes_of(list[end++]));
        }
        DTR_TRY(send_piece(ddp, list + at, end - at, nbytes, root));
        at = end;
    }
    return DTR_OK;
}

dtr_status dtr__ddp_device_send(dtr_ddp *ddp, dtr_tensor *const *list, size_t n, int root) {
    if (!ddp->gpu->has_out) { /* no stream of the program is known yet */
        DTR_TRY(send_all(ddp, list, n, root));
        return dtr__ddp_device_synchronize(ddp);
    }
    DTR_TRY(dtr__ddp_device_follow(ddp, ddp->out.stream));
    DTR_TRY(send_all(ddp, list, n, root));
    return dtr__ddp_device_lead(ddp, ddp->out.stream);
}

dtr_status dtr__ddp_device_connect(dtr_ddp *ddp) {
    enum { SOME = 64 };
    dtr_status s = staging(ddp, SOME);
    s = s == DTR_OK ? broadcast(ddp, ddp->gpu->staging->data, SOME, 0) : s;
    s = s == DTR_OK ? dtr__ddp_device_synchronize(ddp) : s;
    if (s < 0) {
        dtr__group_break(ddp->group, s); /* the others wait */
    }
    return s;
}

dtr_status dtr__ddp_device_register(dtr_ddp *ddp) {
    const char *way = "";
    size_t n = 0;
    if (!dtr__ddp_on_device(ddp)) {
        return DTR_OK;
    }
    void **list = malloc((ddp->n_buckets + 1) * sizeof *list);
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        const dtr_tensor *memory = ddp->buckets[b].memory;
        if (memory != NULL && memory->numel > 0) { /* else the rows of a sparse parameter */
            n++;
            if (list != NULL) {
                list[n - 1] = memory->data;
            }
        }
    }
    dtr_status s = dtr__device_windows(ddp->group, ddp->at.device, list, n, &way);
    free(list);
    pthread_mutex_lock(&ddp->stats.lock);
    ddp->gpu->registration = way;
    pthread_mutex_unlock(&ddp->stats.lock);
    return s;
}

size_t dtr__ddp_device_whole(const dtr_ddp *ddp, size_t nbytes) {
    return dtr__ddp_on_device(ddp) ? dtr__device_whole(ddp->world, nbytes) : nbytes;
}

/* ---- the table of moves ---- */

static dtr_status device_make(dtr_world *world, dtr_device device, dtr_dtype dtype, int64_t count,
                              dtr_tensor **memory, bool *plain) {
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    dtr_tensor *t = NULL;
    void *stream = NULL;
    *plain = false;
    DTR_TRY(dtr_tensor_empty(world, dtype, device, DTR_MEM_DEFAULT, 1, &count, &t));
    int code = ops->stream_new(device.index, false, &stream);
    if (code == 0) {
        code = ops->fill(device.index, t->data, 0, bytes_of(t), stream);
        code = code == 0 ? ops->stream_synchronize(device.index, stream) : code;
        (void)ops->stream_free(device.index, stream);
    }
    if (code != 0) {
        dtr_tensor_release(t);
        return dtr__cuda_status(code, DTR_ERR_CUDA, "zeroing memory", __FILE__, __LINE__);
    }
    *memory = t;
    return DTR_OK;
}

static dtr_status device_move(const dtr__ddp_piece *pieces, size_t n, double scale,
                              const dtr__ddp_at *at) {
    return dtr__device_move_many(at->device, pieces, n, scale, at->stream);
}

/* Gradients lie as their values do: looked at in create. */
static dtr_status device_walk(dtr_tensor *to, const dtr_tensor *from, const dtr__ddp_at *at) {
    (void)at;
    return DTR_FAIL(NULL, DTR_ERR_INTERNAL, "two tensors of %zu and %zu elements differ in strides",
                    to->numel, from->numel);
}

static dtr_status device_zero(void *to, size_t nbytes, const dtr__ddp_at *at) {
    if (nbytes > 0) {
        DTR_CUDA_TRY(dtr__cuda_get()->ops->fill(at->device, to, 0, nbytes, at->stream),
                     DTR_ERR_CUDA);
    }
    return DTR_OK;
}

static const dtr__ddp_mover device_mover = {
    .make = device_make,
    .move = device_move,
    .walk = device_walk,
    .zero = device_zero,
};

/* ---- a module's life ---- */

dtr_status dtr__ddp_device_open(dtr_ddp *ddp) {
    size_t first = 0;
    while (first < ddp->n && ddp->params[first].value == NULL) {
        first++;
    }
    if (first == ddp->n || ddp->params[first].value->device.type == DTR_CPU) {
        return DTR_OK;
    }
    char text[DTR__CUDA_TEXT];
    DTR_REQUIRE(dtr__cuda_get()->ops != NULL, NULL, DTR_ERR_DEVICE,
                "'%s' (%zu) is on a CUDA device, and this process has none it can use: %s",
                ddp->params[first].name, first, dtr__cuda_text(text));
    dtr__ddp_gpu *g = calloc(1, sizeof *g);
    DTR_REQUIRE(g != NULL, NULL, DTR_ERR_NOMEM, "no memory for a module on a CUDA device");
    ddp->gpu = g;
    ddp->device = ddp->params[first].value->device;
    pthread_mutex_init(&g->lock, NULL);
    g->ops = dtr__cuda_get()->ops;
    g->index = ddp->device.index;
    ddp->mover = &device_mover;
    DTR_CUDA_TRY(g->ops->stream_new(g->index, true, &g->stream), DTR_ERR_CUDA);
    ddp->at = ddp->out = (dtr__ddp_at){ g->index, g->stream };
    DTR_TRY(event_new(ddp, &g->event));
    DTR_TRY(dtr__ddp_rows_open(ddp));
    DTR_TRY(dtr__ddp_device_flag_open(ddp));
    return dtr__ddp_device_nan_open(ddp);
}

dtr_status dtr__ddp_device_refuse(dtr_ddp *ddp, const char *entry) {
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    DTR_REQUIRE(!dtr__ddp_on_device(ddp), &ctx, DTR_ERR_UNSUPPORTED,
                "%s: the module's parameters are on cuda:%d, and this works on host memory only",
                entry, ddp->at.device);
    return DTR_OK;
}

void dtr__ddp_device_close(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    if (g == NULL) {
        return;
    }
    dtr__ddp_timing_free(ddp);
    dtr__ddp_device_cast_close(ddp);
    dtr__ddp_device_nan_close(ddp);
    dtr__ddp_device_flag_close(ddp);
    dtr_tensor_release(g->staging);
    g->staging = NULL;
    if (g->sums_here != NULL) {
        (void)g->ops->pinned_free(g->index, g->sums_here);
    }
    if (g->sums_there != NULL) {
        (void)g->ops->free(g->index, g->sums_there);
    }
    g->sums_here = g->sums_there = NULL;
    if (g->step_stream != NULL) {
        (void)g->ops->stream_free(g->index, g->step_stream);
    }
    if (g->stream != NULL) {
        (void)g->ops->stream_free(g->index, g->stream);
    }
    if (g->event != NULL) {
        (void)g->ops->event_free(g->index, g->event);
    }
    g->step_stream = g->stream = g->event = NULL;
}

void dtr__ddp_device_free(dtr_ddp *ddp) {
    if (ddp->gpu != NULL) {
        pthread_mutex_destroy(&ddp->gpu->lock);
        free(ddp->gpu);
    }
}
