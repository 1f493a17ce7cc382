/* Issuing a call with buffers on a device. The thread that calls launches it, because only what it
 * puts onto the stream before it returns comes before what the program does next with that stream.
 */
#include <math.h>

#include "api_internal.h"
#include "core/backend.h"
#include "core/call.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "group/device_select.h"

/* The call has its number: the others have launched it, or are about to. */
static dtr_status launch(dtr_group *g, dtr_work *w, bool captured) {
    const dtr__backend *b = w->backend;
    dtr_status s = b->launch != NULL ? b->launch(g, w->backend_state, w) : DTR_OK;
    if (captured) {
        atomic_store_explicit(&w->refs, 1, memory_order_relaxed); /* the engine has none */
    }
    if (s >= 0) {
        return s;
    }
    if (captured) {
        dtr__work_mark(w, DTR__REC_FAILED, s);
    }
    dtr__group_break(g, s);
    s = dtr__group_broken(g);
    dtr__work_unref(w);
    return s;
}

/* `*work` stays NULL where the backend cannot serve the devices. */
static dtr_status run(dtr_group *g, const dtr__call *c, const dtr__request *r, int backend,
                      bool captured, const char *site, dtr_work **work) {
    const dtr__backend *b = g->backends.table[backend];
    void *state = g->backends.state[backend];
    bool served = true;
    dtr_work *w;
    DTR_TRY(b->connect != NULL && !captured ? b->connect(g, state, c, &served) : DTR_OK);
    if (!served) {
        return DTR_OK;
    }
    DTR_TRY(dtr__work_make(g, 2, &w));
    dtr_status s = dtr__work_describe(w, g, c, r, backend, false);
    if (captured) { /* it runs when the program launches the graph */
        atomic_store_explicit(&w->scope.recording, DTR__RECORDING_GRAPH, memory_order_relaxed);
        atomic_store_explicit(&w->limit.deadline, INFINITY, memory_order_relaxed);
    }
    s = s == DTR_OK ? b->prepare(g, state, w, w, &w, 1) : s;
    if (s == DTR_OK &&
        !(captured ? dtr__work_admit_captured(g, w, site) : dtr__work_admit(g, w, site, false))) {
        s = dtr__group_broken(g);
    }
    if (s < 0) {
        dtr__work_drop(w);
        return s;
    }
    DTR_TRY(launch(g, w, captured));
    *work = w;
    return DTR_OK;
}

dtr_status dtr__issue_on_device(dtr_group *g, dtr__call *c, const dtr__request *r, const char *site,
                                dtr_work **work) {
    int backend = 0;
    bool captured = false;
    *work = NULL;
    DTR_TRY(dtr__device_select(g, c, r, false, &backend, &captured));
    while (*work == NULL) {
        const dtr__backend *b = g->backends.table[backend];
        void *state = g->backends.state[backend];
        DTR_TRY(b->issue_begin != NULL ? b->issue_begin(g, state) : DTR_OK);
        dtr_status s = run(g, c, r, backend, captured, site, work);
        if (b->issue_end != NULL) {
            b->issue_end(g, state);
        }
        DTR_TRY(s);
        DTR_TRY(*work == NULL ? dtr__device_select_again(g, c, &backend) : DTR_OK);
    }
    if (!captured) {
        dtr__work_hand_over(g, *work);
    }
    return DTR_OK;
}
