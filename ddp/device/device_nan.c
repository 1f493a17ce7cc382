/* DTR_DDP_CHECK_NAN on a CUDA device: gradients are looked at by kernels on the module's stream
 * before their bucket travels. What these found is fetched by backward_end, which waits for it: an
 * error has to be known before the ranks agree on errors. */
#include "device.h"

static size_t table_bytes(const dtr_ddp *ddp) {
    return ddp->n * sizeof *ddp->gpu->nan_here;
}

/* No number is less: nothing was found. */
static dtr_status clear(dtr_ddp *ddp) {
    const dtr__ddp_gpu *g = ddp->gpu;
    DTR_CUDA_TRY(g->ops->fill(g->index, g->nan_there, 0xff, table_bytes(ddp), g->stream),
                 DTR_ERR_CUDA);
    return DTR_OK;
}

dtr_status dtr__ddp_device_nan_open(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    void *there = NULL, *here = NULL;
    if ((ddp->set.flags & DTR_DDP_CHECK_NAN) == 0) {
        return DTR_OK;
    }
    DTR_CUDA_TRY(g->ops->alloc(g->index, table_bytes(ddp), &there), DTR_ERR_NOMEM);
    g->nan_there = there;
    DTR_CUDA_TRY(g->ops->pinned_alloc(g->index, table_bytes(ddp), &here), DTR_ERR_NOMEM);
    g->nan_here = here;
    return clear(ddp);
}

void dtr__ddp_device_nan_close(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    if (g->nan_there != NULL) {
        (void)g->ops->stream_synchronize(g->index, g->stream); /* it may be cleared just now */
        (void)g->ops->free(g->index, g->nan_there);
    }
    if (g->nan_here != NULL) {
        (void)g->ops->pinned_free(g->index, g->nan_here);
    }
    g->nan_there = g->nan_here = NULL;
}

dtr_status dtr__ddp_device_find_nan(dtr_ddp *ddp, size_t i) {
    const dtr__ddp_gpu *g = ddp->gpu;
    const dtr_tensor *grad = atomic_load(&ddp->params[i].grad);
    if (g->nan_there == NULL || !atomic_exchange(&ddp->params[i].find_nan, false)) {
        return DTR_OK;
    }
    return dtr__device_find_nan(g->index, grad->data, grad->numel, grad->dtype, g->nan_there + i,
                                g->stream);
}

/* Everything that travels has been launched. */
static dtr_status fetch(dtr_ddp *ddp) {
    const dtr__ddp_gpu *g = ddp->gpu;
    DTR_CUDA_TRY(g->ops->copy(g->index, g->nan_here, g->nan_there, table_bytes(ddp),
                              DTR__COPY_TO_HOST, g->stream),
                 DTR_ERR_CUDA);
    DTR_TRY(dtr__ddp_device_synchronize(ddp));
    return clear(ddp);
}

void dtr__ddp_device_note_nans(dtr_ddp *ddp) {
    const dtr__ddp_gpu *g = ddp->gpu;
    if (g == NULL || g->nan_there == NULL) {
        return;
    }
    dtr_status s = fetch(ddp);
    if (s < 0) {
        dtr__ddp_note_last(ddp, s, DTR__NONE);
        return;
    }
    for (size_t i = 0; i < ddp->n; i++) {
        const dtr_tensor *grad = atomic_load(&ddp->params[i].grad);
        if (g->nan_here[i] != UINT64_MAX) {
            dtr__ddp_note_nan(ddp, i, dtr__device_nan_element(g->nan_here[i], grad->dtype));
        }
    }
}
