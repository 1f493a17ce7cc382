/* The hook of a group: the program is told of every operation that has ended. */
#include <math.h>

#include "core/team.h"
#include "engine.h"

/* A receive from any rank says who it was. */
static int peer_of(const dtr_work *w) {
    const bool found = w->call.kind == DTR__K_RECV && w->status == DTR_OK;
    return found ? atomic_load_explicit(&w->source, memory_order_relaxed) : w->call.root;
}

void dtr__hook_run(dtr_work *w) {
    dtr_group *g = w->group;
    dtr__callback_frame frame;
    pthread_mutex_lock(&g->engine->queue_lock);
    void (*fn)(dtr_group *, const dtr_op_report *, void *) = g->engine->hook.fn;
    void *arg = g->engine->hook.arg;
    pthread_mutex_unlock(&g->engine->queue_lock);
    if (fn == NULL) { /* taken off meanwhile */
        return;
    }
    const dtr_op_report report = {
        .struct_size = sizeof report,
        .kind = dtr__kind_name(w->call.kind),
        .label = w->call.label,
        .seq = w->seq,
        .status = w->status,
        .peer = peer_of(w),
        .nbytes = dtr__work_nbytes(w),
        .issued_ns = w->call.issued_ns,
        .duration_s = fmax((double)(w->report.ended_ns - w->call.issued_ns) * 1e-9, 0),
    };
    dtr__callback_begin(&frame, g->world);
    fn(g, &report, arg);
    dtr__callback_end(&frame);
}

/* The lists of a group and its hook have one lock, so an operation that ends later is reported. */
static dtr_status on_complete(dtr_group *g, void (*fn)(dtr_group *, const dtr_op_report *, void *),
                              void *arg) {
    dtr_status s = dtr__group_check(g, "dtr_group_on_complete");
    if (s != DTR_OK) {
        return s;
    }
    pthread_mutex_lock(&g->engine->queue_lock);
    g->engine->hook.fn = fn;
    g->engine->hook.arg = arg;
    if (fn != NULL) {
        atomic_fetch_or(&g->aside, DTR__HOOKED);
    } else {
        atomic_fetch_and(&g->aside, ~(unsigned)DTR__HOOKED);
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    return DTR_OK;
}

dtr_status dtr_group_on_complete(dtr_group *group,
                                 void (*fn)(dtr_group *, const dtr_op_report *, void *),
                                 void *arg) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_group_on_complete", group->name,
                      on_complete(group, fn, arg));
}
