/* Barriers behind a stream of the caller: an event of each, which the engine looks at before it
 * starts the barrier. */
#include "fence.h"

#include <stdio.h>
#include <stdlib.h>

#include "rt_device.h"

typedef struct fence {
    dtr__composite composite; /* first */
    const dtr__device_ops *ops;
    int device;
    void *event;
    int code; /* CUDA's last answer; progress_lock */
} fence;

bool dtr__fence_wanted(const dtr__request *r) {
    return r->kind == DTR__K_BARRIER && r->options != NULL && r->options->stream != NULL;
}

static void keep_late(dtr_group *g, dtr_work *w) {
    (void)g;
    (void)w; /* the event goes with the handle */
}

static void fence_free(dtr__composite *self) {
    fence *f = (fence *)self;
    if (f->event != NULL) {
        (void)f->ops->event_free(f->device, f->event);
    }
    free(f);
}

static fence *fence_of(const dtr_work *w) {
    bool own = w->composite != NULL && w->composite->free == fence_free;
    return own ? (fence *)w->composite : NULL;
}

/* Of several devices none is guessed: to make an event would set it up for this process. */
static dtr_status find_device(const dtr_group *g, const dtr_work *w, int *device) {
    dtr__error_context ctx = dtr__work_context(w);
    int count = dtr__cuda_get()->count;
    bool named = g->device.type == DTR_CUDA;
    DTR_REQUIRE(named || count == 1, &ctx, DTR_ERR_DEVICE,
                "dtr_barrier on group '%s': options.stream may belong to any of %d CUDA devices, "
                "and neither the group nor the world has one of its own; name it in the options of "
                "either",
                g->name, count);
    *device = named ? g->device.index : 0;
    return DTR_OK;
}

static dtr_status check(const dtr_group *g, const dtr_work *w, const dtr__device_ops *ops,
                        int device) {
    dtr__error_context ctx = dtr__work_context(w);
    dtr__capture capture = DTR__NO_CAPTURE;
    DTR_CUDA_TRY(ops->stream_capturing(device, w->call.stream, &capture), DTR_ERR_CUDA);
    DTR_REQUIRE(capture == DTR__NO_CAPTURE, &ctx, DTR_ERR_STATE,
                "dtr_barrier on group '%s': its stream captures a graph, and a barrier is the "
                "host's; call it outside the capture",
                g->name);
    return DTR_OK;
}

dtr_status dtr__fence_make(dtr_group *g, dtr_work *w) {
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    if (ops == NULL) {
        return DTR_OK; /* without a device no stream holds anything */
    }
    int device = 0;
    DTR_TRY(find_device(g, w, &device));
    DTR_TRY(check(g, w, ops, device));
    fence *f = calloc(1, sizeof *f);
    DTR_REQUIRE(f != NULL, NULL, DTR_ERR_NOMEM, "out of memory for a barrier behind a stream");
    *f = (fence){ { NULL, keep_late, fence_free }, ops, device, NULL, ops->not_ready() };
    int code = ops->event_new(f->device, false, &f->event);
    code = code == 0 ? ops->event_record(f->device, f->event, w->call.stream) : code;
    if (code != 0) {
        fence_free(&f->composite);
    } else {
        w->composite = &f->composite;
    }
    DTR_CUDA_TRY(code, DTR_ERR_CUDA);
    return DTR_OK;
}

const char *dtr__fence_text(const dtr_work *w, char *text, size_t cap) {
    const fence *f = fence_of(w);
    snprintf(text, cap, "it waits for what the stream of its options holds on cuda:%d",
             f != NULL ? f->device : -1);
    return text;
}

bool dtr__fence_waits(const dtr_work *w) {
    fence *f = fence_of(w);
    if (f != NULL && f->code == f->ops->not_ready()) {
        f->code = DTR_INSIDE_AS("cudaEventQuery", f->ops->event_query(f->device, f->event));
    }
    return f != NULL && f->code == f->ops->not_ready();
}

dtr_status dtr__fence_status(const dtr_work *w) {
    const fence *f = fence_of(w);
    DTR_CUDA_TRY(f != NULL ? f->code : 0, DTR_ERR_CUDA);
    return DTR_OK;
}
