/* Coalescing scopes with buffers on a device. The calls that NCCL serves are one native group,
 * launched when the scope ends; the others follow one after another through host memory. */
#include <stdlib.h>

#include "scope.h"

/* A scope has one device and one stream, those of its first call with buffers. */
static dtr_status check_place(dtr__scope *scope, const dtr__call *c) {
    dtr__error_context ctx = { scope->group->world, dtr__kind_name(c->kind), scope->group->name };
    if (c->kind == DTR__K_BARRIER || (c->kind == DTR__K_BATCH && c->n_batch == 0)) {
        return DTR_OK;
    }
    if (!scope->placed) {
        scope->placed = true;
        scope->device = c->device;
        scope->stream = c->stream;
        return DTR_OK;
    }
    const dtr_device *own = &scope->device;
    DTR_REQUIRE(own->type == c->device.type && own->index == c->device.index, &ctx, DTR_ERR_DEVICE,
                "its buffers are on %s:%d, and those of the first call of the scope are on %s:%d",
                c->device.type == DTR_CPU ? "cpu" : "cuda", c->device.index,
                own->type == DTR_CPU ? "cpu" : "cuda", own->index);
    DTR_REQUIRE(c->device.type == DTR_CPU || c->stream == scope->stream, &ctx, DTR_ERR_ARG,
                "options.stream is %p, and that of the first call of the scope is %p; calls of one "
                "scope have one stream",
                c->stream, scope->stream);
    return DTR_OK;
}

dtr_status dtr__scope_choose(dtr__scope *scope, dtr__call *c, const dtr__request *r,
                             const dtr__backend **device, int *backend) {
    *device = NULL;
    DTR_TRY(check_place(scope, c));
    return c->device.type == DTR_CPU ? dtr__choose_backend(scope->group, c, backend)
                                     : dtr__device_choose(scope->group, c, r, device);
}

static bool is_native(const dtr_work *w) {
    return w->backend == &dtr__backend_nccl;
}

/* What runs where; `native`: NCCL takes the device. */
static dtr_status plan(dtr__scope *scope, bool native) {
    for (size_t i = 0; i < scope->n; i++) {
        dtr_work *w = scope->calls[i];
        scope->host_only = scope->host_only || w->finish != NULL;
        if (native && is_native(w)) {
            continue;
        }
        if (w->call.device.type != DTR_CPU) {
            DTR_TRY(dtr__stage_part(scope->group, w));
        }
        if (dtr__kind_is_p2p(w->call.kind)) {
            scope->p2p_left++;
        } else {
            scope->runs[scope->n_runs++] = (dtr__run){ w, i, 1, NULL };
        }
    }
    return DTR_OK;
}

static dtr_status prepare(dtr__scope *scope, bool native) {
    dtr_group *g = scope->group;
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    scope->runs = calloc(scope->n, sizeof *scope->runs);
    DTR_REQUIRE(scope->runs != NULL, &ctx, DTR_ERR_NOMEM,
                "no memory for the plan of a coalescing scope");
    if (native) { /* first, and with no native group open */
        DTR_TRY(dtr__native_open(g, scope->device.index, scope->stream, scope->calls, scope->n,
                                 &scope->native));
    }
    DTR_TRY(plan(scope, scope->native != NULL));
    bool only = scope->native != NULL && scope->n_runs == 0 && scope->p2p_left == 0;
    scope->whole->backend = only ? &dtr__backend_scope_native : &dtr__backend_scope;
    return DTR_OK;
}

/* turn held where `native`. The engine's reference to the whole has been counted. */
static dtr_status begin(dtr__scope *scope, bool native) {
    dtr_group *g = scope->group;
    dtr_work *whole = scope->whole;
    DTR_TRY(prepare(scope, native));
    whole->call.device = scope->device;
    whole->call.stream = scope->stream;
    whole->composite = &scope->composite;
    if (!dtr__work_admit(g, whole, dtr__call_site_cached(&whole->call), true)) {
        whole->composite = NULL;
        return dtr__group_broken(g);
    }
    if (scope->native == NULL) {
        return DTR_OK;
    }
    dtr_status s = dtr__native_launch(scope->native, whole, scope->calls, scope->n);
    if (s < 0) { /* the others have launched it, or are about to */
        dtr__group_break(g, s);
    }
    return DTR_OK;
}

dtr_status dtr__scope_launch_device(dtr__scope *scope) {
    bool native = false;
    for (size_t i = 0; i < scope->n; i++) {
        native = native || is_native(scope->calls[i]);
    }
    if (native) {
        DTR_TRY(dtr__native_begin(scope->group));
    }
    atomic_fetch_add_explicit(&scope->whole->refs, 1, memory_order_relaxed);
    dtr_status s = begin(scope, native);
    if (native) {
        dtr__native_end(scope->group);
    }
    if (s < 0) {
        dtr__work_unref(scope->whole);
    }
    return s;
}

/* ---- the native part, in the engine ---- */

dtr_status dtr__scope_move_native(dtr_group *g, dtr_work *whole, dtr__scope *scope) {
    dtr_work *part = scope->native;
    bool done = false;
    if (part == NULL || dtr__part_ended(part)) {
        return DTR_OK;
    }
    DTR_TRY(dtr__part_move(g, whole, part, &done));
    if (done) {
        atomic_store_explicit(&part->ended, 1, memory_order_relaxed);
        for (size_t i = 0; i < scope->n; i++) {
            if (is_native(scope->calls[i])) {
                dtr__scope_end_call(whole, scope->calls[i]);
            }
        }
    }
    return DTR_OK;
}

bool dtr__scope_stream_wait(dtr_work *whole, void *stream, dtr_status *s) {
    const dtr__scope *scope = (const dtr__scope *)whole->composite;
    return !scope->host_only && dtr__device_stream_wait(scope->native, stream, s);
}
