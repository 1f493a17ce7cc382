/* Mixed precision on a CUDA device: values are cast on a stream of their own, in pieces, and
 * whoever takes a parameter waits on his stream for the piece it is in. The memory of the casts
 * stays with the module: giving it back would make the host wait. */
#include <stdlib.h>

#include "device.h"

enum { PIECE = 1 << 20, HASHED = 4 << 20 };

static bool is_cast(const dtr_ddp *ddp, size_t i) {
    const dtr__ddp_param *p = &ddp->params[i];
    return p->value != NULL && p->same_as == i && dtr__ddp_grad_dtype(ddp, p) != p->value->dtype;
}

/* Parameters one after the other until a piece is full. */
static size_t share_out(dtr_ddp *ddp) {
    size_t nbytes = 0, n = 0;
    for (size_t i = 0; i < ddp->n; i++) {
        dtr__ddp_param *p = &ddp->params[i];
        if (!is_cast(ddp, i)) {
            continue;
        }
        p->cast_event = n;
        nbytes += p->value->numel * dtr_dtype_size(p->value->dtype);
        if (nbytes >= PIECE) {
            nbytes = 0;
            n++;
        }
    }
    return n + 1;
}

dtr_status dtr__ddp_device_cast_open(dtr_ddp *ddp, int64_t count) {
    dtr__ddp_gpu *g = ddp->gpu;
    bool plain;
    DTR_TRY(
        ddp->mover->make(ddp->world, ddp->device, ddp->set.param_dtype, count, &g->casts, &plain));
    DTR_CUDA_TRY(g->ops->stream_new(g->index, false, &g->cast_stream), DTR_ERR_CUDA);
    size_t n = share_out(ddp);
    g->cast = calloc(n, sizeof *g->cast);
    DTR_REQUIRE(g->cast != NULL, NULL, DTR_ERR_NOMEM, "no memory for %zu events", n);
    for (; g->n_cast < n; g->n_cast++) {
        DTR_CUDA_TRY(g->ops->event_new(g->index, false, &g->cast[g->n_cast]), DTR_ERR_CUDA);
    }
    return DTR_OK;
}

void dtr__ddp_device_cast_close(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    if (g->cast_stream != NULL) {
        (void)g->ops->stream_synchronize(g->index,
                                         g->cast_stream); /* it reads the caller's values */
        (void)g->ops->stream_free(g->index, g->cast_stream);
    }
    for (size_t k = 0; k < g->n_cast; k++) {
        (void)g->ops->event_free(g->index, g->cast[k]);
    }
    free(g->cast);
    dtr_tensor_release(g->casts);
    g->cast_stream = NULL;
    g->cast = NULL;
    g->n_cast = 0;
    g->casts = NULL;
}

static dtr_status cast_piece(dtr_ddp *ddp, const dtr__ddp_piece *pieces, size_t n, size_t which) {
    dtr__ddp_gpu *g = ddp->gpu;
    const dtr__ddp_at at = { g->index, g->cast_stream };
    DTR_TRY(n > 0 ? ddp->mover->move(pieces, n, 1, &at) : DTR_OK);
    DTR_CUDA_TRY(g->ops->event_record(g->index, g->cast[which], g->cast_stream), DTR_ERR_CUDA);
    return DTR_OK;
}

/* What the stream of the newest backward_end holds now has changed the values and read the casts
 * of the iteration before. */
dtr_status dtr__ddp_device_cast_params(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    if (g->has_out) {
        DTR_TRY(dtr__ddp_device_order(ddp, ddp->out.stream, g->cast_stream));
    }
    dtr__ddp_piece *pieces = malloc((ddp->n + 1) * sizeof *pieces);
    DTR_REQUIRE(pieces != NULL, NULL, DTR_ERR_NOMEM, "no memory for a list of %zu parameters",
                ddp->n);
    size_t n = 0, which = 0;
    dtr_status s = DTR_OK;
    for (size_t i = 0; i < ddp->n && s == DTR_OK; i++) {
        const dtr__ddp_param *p = &ddp->params[i];
        if (p->cast == NULL) {
            continue;
        }
        if (p->cast_event != which) {
            s = cast_piece(ddp, pieces, n, which);
            which = p->cast_event;
            n = 0;
        }
        pieces[n++] = (dtr__ddp_piece){ p->cast->data, p->value->data, p->value->numel,
                                        p->cast->dtype, p->value->dtype };
    }
    s = s == DTR_OK ? cast_piece(ddp, pieces, n, which) : s;
    free(pieces);
    return s;
}

dtr_status dtr__ddp_device_cast_wait(dtr_ddp *ddp, const dtr__ddp_param *p, void *stream) {
    dtr__ddp_gpu *g = ddp->gpu;
    DTR_CUDA_TRY(g->ops->stream_wait(g->index, stream, g->cast[p->cast_event]), DTR_ERR_CUDA);
    return DTR_OK;
}

/* ---- comparing ---- */

static dtr_status hash_through(dtr_ddp *ddp, const dtr_tensor *t, char *here, uint64_t *hash) {
    const dtr__ddp_gpu *g = ddp->gpu;
    size_t nbytes = t->numel * dtr_dtype_size(t->dtype);
    uint64_t h = DTR__HASH_START;
    for (size_t at = 0; at < nbytes; at += HASHED) {
        size_t some = nbytes - at < HASHED ? nbytes - at : HASHED;
        DTR_CUDA_TRY(g->ops->copy(g->index, here, t->data + at, some, DTR__COPY_TO_HOST, g->stream),
                     DTR_ERR_CUDA);
        DTR_TRY(dtr__ddp_device_synchronize(ddp));
        h = dtr__hash_bytes(h, here, some);
    }
    *hash = h;
    return DTR_OK;
}

dtr_status dtr__ddp_device_hash(dtr_ddp *ddp, const dtr_tensor *t, uint64_t *hash) {
    void *here = NULL;
    if (ddp->gpu->has_out) {
        DTR_TRY(dtr__ddp_device_follow(ddp, ddp->out.stream));
    }
    DTR_CUDA_TRY(ddp->gpu->ops->pinned_alloc(ddp->gpu->index, HASHED, &here), DTR_ERR_NOMEM);
    dtr_status s = hash_through(ddp, t, here, hash);
    (void)ddp->gpu->ops->pinned_free(ddp->gpu->index, here);
    return s;
}
