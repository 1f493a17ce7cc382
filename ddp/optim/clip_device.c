/* The norm of gradients on a CUDA device: squares are added up there without rounding, as on the
 * host, so the norm has the same bits; the host gets the digits of the sum. */
#include "clip_device.h"

#include <stdlib.h>

#include "step_device.h"

dtr_status dtr__device_pass_add(dtr__device_pass *pass, size_t i, void *data, size_t count,
                                dtr_dtype dtype) {
    if (pass->n == pass->cap) {
        const size_t cap = 2 * pass->cap + pass->ddp->n;
        dtr__ddp_piece *pieces = realloc(pass->pieces, cap * sizeof *pieces);
        pass->pieces = pieces != NULL ? pieces : pass->pieces;
        size_t *params = realloc(pass->params, cap * sizeof *params);
        pass->params = params != NULL ? params : pass->params;
        DTR_REQUIRE(pieces != NULL && params != NULL, NULL, DTR_ERR_NOMEM,
                    "no memory to list %zu gradients", cap);
        pass->cap = cap;
    }
    const dtr_dtype real = dtr__real_of(dtype);
    pass->params[pass->n] = i;
    pass->pieces[pass->n++] =
        (dtr__ddp_piece){ data, data, count * dtr__reals_in(dtype), real, real };
    return DTR_OK;
}

void dtr__device_pass_free(dtr__device_pass *pass) {
    free(pass->pieces);
    free(pass->params);
}

/* ---- sums ---- */

static dtr_status open_sums(dtr__ddp_gpu *g) {
    if (g->sums_there == NULL) {
        DTR_CUDA_TRY(g->ops->alloc(g->index, sizeof(dtr__exact_squares), &g->sums_there),
                     DTR_ERR_NOMEM);
    }
    if (g->sums_here == NULL) {
        DTR_CUDA_TRY(g->ops->pinned_alloc(g->index, sizeof(dtr__exact_squares), &g->sums_here),
                     DTR_ERR_NOMEM);
    }
    return DTR_OK;
}

/* All pieces of one type; `t` is made for each anew. */
static dtr_status add_squares(const dtr__device_pass *pass, dtr_dtype dtype) {
    dtr__stretches t = { .kernel = DTR__STEP_KERNEL(exact, dtype) };
    t.args.head.m = pass->ddp->gpu->sums_there;
    for (size_t k = 0; k < pass->n; k++) {
        const dtr__ddp_piece *piece = &pass->pieces[k];
        if (piece->to_type == dtype) {
            DTR_TRY(dtr__stretches_add(pass->ddp, &t, NULL, piece->from, piece->count,
                                       pass->params[k]));
        }
    }
    return dtr__stretches_launch(pass->ddp, &t);
}

static dtr_status find_sums(const dtr__device_pass *pass) {
    static const dtr_dtype types[] = { DTR_F16, DTR_BF16, DTR_F32, DTR_F64 };
    dtr_ddp *ddp = pass->ddp;
    dtr__ddp_gpu *g = ddp->gpu;
    DTR_TRY(open_sums(g));
    const size_t all = sizeof(dtr__exact_squares), sums = offsetof(dtr__exact_squares, first);
    char *there = g->sums_there;
    void *stream = ddp->out.stream;
    DTR_CUDA_TRY(g->ops->fill(g->index, there, 0, sums, stream), DTR_ERR_CUDA);
    DTR_CUDA_TRY(g->ops->fill(g->index, there + sums, 0xff, all - sums, stream), DTR_ERR_CUDA);
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        DTR_TRY(add_squares(pass, types[k]));
    }
    DTR_CUDA_TRY(g->ops->copy(g->index, g->sums_here, there, all, DTR__COPY_TO_HOST, stream),
                 DTR_ERR_CUDA);
    DTR_CUDA_TRY(g->ops->stream_synchronize(g->index, stream), DTR_ERR_CUDA);
    return DTR_OK;
}

dtr_status dtr__device_pass_run(const dtr__device_pass *pass, dtr__grads_pass *p) {
    const dtr__ddp_at at = { pass->ddp->at.device, pass->ddp->out.stream };
    if (pass->n == 0) {
        return DTR_OK;
    }
    if (p->what == DTR__GRADS_SCALE) {
        return pass->ddp->mover->move(pass->pieces, pass->n, p->factor, &at);
    }
    DTR_TRY(find_sums(pass));
    const dtr__exact_squares *found = pass->ddp->gpu->sums_here;
    p->n_nonfinite = found->sum.nan + found->sum.infinite;
    p->nonfinite = found->first == UINT64_MAX ? DTR__NONE : (size_t)found->first;
    if (p->what == DTR__GRADS_SQUARES) {
        *p->sum = found->sum;
    }
    return DTR_OK;
}
