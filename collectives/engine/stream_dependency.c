/* Barriers behind a stream of the caller: each has an event, which the engine polls before it
 * starts the barrier. */
#include "engine/stream_dependency.h"
#include "core/team.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/engine.h"

#include "memory/device.h"

typedef struct dependency {
    dtr__composite composite; /* first */
    const dtr__device_ops *ops;
    int device;
    void *event;
    int code;         /* CUDA's last answer; progress_lock */
    int64_t asked_ns; /* when that was; progress_lock */
} dependency;

bool dtr__stream_dependency_wanted(const dtr__request *r) {
    return r->kind == DTR__K_BARRIER && r->options != NULL && r->options->stream != NULL;
}

static void dependency_free(dtr__composite *self) {
    dependency *d = (dependency *)self;
    if (d->event != NULL) {
        (void)d->ops->event_free(d->device, d->event);
    }
    free(d);
}

static dependency *dependency_of(const dtr_work *w) {
    bool own = w->composite != NULL && w->composite->free == dependency_free;
    return own ? (dependency *)w->composite : NULL;
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

dtr_status dtr__stream_dependency_make(dtr_group *g, dtr_work *w) {
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    if (ops == NULL) {
        return DTR_OK; /* without a device no stream holds anything */
    }
    int device = 0;
    DTR_TRY(find_device(g, w, &device));
    DTR_TRY(check(g, w, ops, device));
    dependency *d = calloc(1, sizeof *d);
    DTR_REQUIRE(d != NULL, NULL, DTR_ERR_NOMEM, "out of memory for a barrier behind a stream");
    *d = (dependency){ .composite = { .free = dependency_free },
                       .ops = ops,
                       .device = device,
                       .code = ops->not_ready };
    int code = ops->event_new(d->device, false, &d->event);
    code = code == 0 ? ops->event_record(d->device, d->event, w->call.stream) : code;
    if (code != 0) {
        dependency_free(&d->composite);
    } else {
        w->composite = &d->composite;
    }
    DTR_CUDA_TRY(code, DTR_ERR_CUDA);
    return DTR_OK;
}

const char *dtr__stream_dependency_text(const dtr_work *w, char *text, size_t cap) {
    const dependency *d = dependency_of(w);
    snprintf(text, cap, "it waits for what the stream of its options holds on cuda:%d",
             d != NULL ? d->device : -1);
    return text;
}

bool dtr__event_due(const dtr_world *world, int64_t *asked_ns) {
    enum { LEAST_NS = 100000 };
    const int64_t now = dtr__progress_in_thread(world) ? dtr__now_ns() : 0;
    if (now == 0) {
        return true;
    }
    const bool due = now - *asked_ns >= LEAST_NS;
    *asked_ns = due ? now : *asked_ns;
    return due;
}

bool dtr__stream_dependency_waits(const dtr_work *w) {
    dependency *d = dependency_of(w);
    if (d != NULL && d->code == d->ops->not_ready && dtr__event_due(w->world, &d->asked_ns)) {
        d->code = DTR_INSIDE_AS("cudaEventQuery", d->ops->event_query(d->device, d->event));
    }
    return d != NULL && d->code == d->ops->not_ready;
}

dtr_status dtr__stream_dependency_status(const dtr_work *w) {
    const dependency *d = dependency_of(w);
    DTR_CUDA_TRY(d != NULL ? d->code : 0, DTR_ERR_CUDA);
    return DTR_OK;
}
