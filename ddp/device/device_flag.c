/* A flag that travels with a bucket on a CUDA device: whether any rank has an error. It is written
 * on the module's stream before the bucket leaves and copied to the host behind its average, by the
 * stream of backward_end; whoever reads it later waits for that copy alone. */
#include "base/backoff.h"
#include "core/team.h"
#include "device.h"
#include "progress/progress.h"

/* A number in every type of gradients, neither lost nor a NaN when ranks are summed or averaged. */
enum { BAD = 0x5c };

static void *place(const dtr_ddp_bucket *b) {
    return b->data + b->plan->nbytes;
}

static char *word(const dtr__ddp_gpu *g, int k) {
    return g->flags + (size_t)k * DTR__PLAN_ALIGN;
}

dtr_status dtr__ddp_device_flag_open(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    void *here = NULL;
    if (!dtr__ddp_on_device(ddp) || (ddp->set.flags & DTR_DDP_LATE_ERRORS) == 0) {
        return DTR_OK;
    }
    DTR_CUDA_TRY(g->ops->pinned_alloc(g->index, (size_t)DTR__FLAGS * DTR__PLAN_ALIGN, &here),
                 DTR_ERR_NOMEM);
    g->flags = here;
    for (int k = 0; k < DTR__FLAGS; k++) {
        DTR_CUDA_TRY(g->ops->event_new(g->index, false, &g->flag_event[k]), DTR_ERR_CUDA);
    }
    return DTR_OK;
}

void dtr__ddp_device_flag_close(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    for (int k = 0; k < DTR__FLAGS && g->flag_event[k] != NULL; k++) {
        /* The iteration may have ended before the module's stream went behind the copy. */
        (void)g->ops->stream_wait(g->index, g->stream, g->flag_event[k]);
        (void)g->ops->stream_synchronize(g->index, g->stream);
        (void)g->ops->event_free(g->index, g->flag_event[k]);
        g->flag_event[k] = NULL;
    }
    if (g->flags != NULL) {
        (void)g->ops->pinned_free(g->index, g->flags);
    }
    g->flags = NULL;
}

dtr_status dtr__ddp_device_flag_write(dtr_ddp *ddp, const dtr_ddp_bucket *b, bool bad) {
    const dtr__ddp_gpu *g = ddp->gpu;
    DTR_CUDA_TRY(g->ops->fill(g->index, place(b), bad ? BAD : 0, DTR__PLAN_ALIGN, g->stream),
                 DTR_ERR_CUDA);
    return DTR_OK;
}

dtr_status dtr__ddp_device_flag_fetch(dtr_ddp *ddp, const dtr_ddp_bucket *b, int k) {
    const dtr__ddp_gpu *g = ddp->gpu;
    DTR_CUDA_TRY(g->ops->copy(g->index, word(g, k), place(b), DTR__PLAN_ALIGN, DTR__COPY_TO_HOST,
                              ddp->out.stream),
                 DTR_ERR_CUDA);
    DTR_CUDA_TRY(g->ops->event_record(g->index, g->flag_event[k], ddp->out.stream), DTR_ERR_CUDA);
    return DTR_OK;
}

/* The operations before it have limits of their own, which end them; this one is for a stream of
 * the program that does not move. */
static dtr_status wait_for(const dtr_ddp *ddp, void *event) {
    const dtr__ddp_gpu *g = ddp->gpu;
    const double limit_s = ddp->group->timeout_cuda_s;
    const int64_t start = dtr__now_ns();
    dtr__backoff pause = { 0 };
    int code;
    while ((code = g->ops->event_query(g->index, event)) == g->ops->not_ready) {
        dtr_status s = dtr_group_status(ddp->group);
        if (s < 0) {
            return dtr__error_restore(ddp->group->error, s);
        }
        DTR_REQUIRE((double)(dtr__now_ns() - start) * 1e-9 < limit_s, NULL, DTR_ERR_TIMEOUT,
                    "the device has not done the averages of the synchronised step before within "
                    "%g s",
                    limit_s);
        if (!dtr__progress_has_thread(ddp->world)) {
            dtr__progress_poll_all(ddp->world);
        }
        dtr__backoff_pause(ddp->world, &pause);
    }
    DTR_CUDA_TRY(code, DTR_ERR_CUDA);
    return DTR_OK;
}

dtr_status dtr__ddp_device_flag_read(dtr_ddp *ddp, size_t nbytes, int k, bool *bad) {
    static const char good[DTR__PLAN_ALIGN] = { 0 };
    DTR_TRY(wait_for(ddp, ddp->gpu->flag_event[k]));
    dtr_status s = dtr_group_status(ddp->group);
    if (s < 0) { /* what was broken off is no average */
        return dtr__error_restore(ddp->group->error, s);
    }
    *bad = memcmp(word(ddp->gpu, k), good, nbytes) != 0;
    return DTR_OK;
}
