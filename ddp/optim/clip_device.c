/* The norm of gradients on a CUDA device: they are brought to the host in pieces and summed up
 * there, so the norm has the same bits as on the host. Scaling is done on the device. */
#include "clip_device.h"

enum { STAGING = 4 << 20 };

/* Gradients there are dense. A complex element is two floats. */
static dtr__ddp_piece in_place(const dtr_tensor *t) {
    bool pair = t->dtype == DTR_C64 || t->dtype == DTR_C128;
    dtr_dtype real = t->dtype == DTR_C64 ? DTR_F32 : t->dtype == DTR_C128 ? DTR_F64 : t->dtype;
    return (dtr__ddp_piece){ t->data, t->data, pair ? 2 * t->numel : t->numel, real, real };
}

dtr_status dtr__clip_device_squares(dtr_ddp *ddp, const dtr_tensor *t, dtr__squares *sum) {
    dtr__ddp_gpu *g = ddp->gpu;
    const dtr__ddp_piece all = in_place(t);
    size_t size = dtr_dtype_size(all.to_type), most = STAGING / size;
    if (g->clip_here == NULL) {
        DTR_CUDA_TRY(g->ops->pinned_alloc(g->index, STAGING, &g->clip_here), DTR_ERR_NOMEM);
    }
    for (size_t from = 0; from < all.count; from += most) {
        size_t n = all.count - from < most ? all.count - from : most;
        DTR_CUDA_TRY(g->ops->copy(g->index, g->clip_here, t->data + from * size, n * size,
                                  DTR__COPY_TO_HOST, ddp->out.stream),
                     DTR_ERR_CUDA);
        DTR_CUDA_TRY(g->ops->stream_synchronize(g->index, ddp->out.stream), DTR_ERR_CUDA);
        dtr__squares_add(sum, g->clip_here, n, all.to_type);
    }
    return DTR_OK;
}

dtr_status dtr__clip_device_scale(dtr_ddp *ddp, const dtr_tensor *t, double factor) {
    const dtr__ddp_piece all = in_place(t);
    const dtr__ddp_at at = { ddp->at.device, ddp->out.stream };
    return ddp->mover->move(&all, 1, factor, &at);
}
