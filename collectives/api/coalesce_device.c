/* Coalescing scopes with buffers on a device. The calls that NCCL serves are one native group,
 * launched when the scope ends; the others follow one after another through host memory. */
#include <stdlib.h>

#include "api/coalesce.h"
#include "core/call_site.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "group/device_select.h"

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

dtr_status dtr__scope_choose(dtr__scope *scope, dtr__call *c, const dtr__request *r, int *backend) {
    bool captured;
    DTR_TRY(check_place(scope, c));
    return c->device.type == DTR_CPU
               ? dtr__choose_backend(scope->group, c, backend)
               : dtr__device_select(scope->group, c, r, true, backend, &captured);
}

static bool is_native(const dtr_work *w) {
    return w->backend->launch != NULL;
}

/* NULL: all calls go through host memory, or through the host. */
static const dtr_work *first_native(const dtr__scope *scope) {
    for (size_t i = 0; i < scope->n; i++) {
        if (is_native(scope->calls[i])) {
            return scope->calls[i];
        }
    }
    return NULL;
}

static dtr_status fall_back(dtr__scope *scope) {
    dtr_group *g = scope->group;
    for (size_t i = 0; i < scope->n; i++) {
        dtr_work *w = scope->calls[i];
        int backend = 0;
        if (is_native(w)) {
            DTR_TRY(dtr__device_select_again(g, &w->call, &backend));
            w->backend = g->backends.table[backend];
            w->backend_state = g->backends.state[backend];
        }
    }
    return DTR_OK;
}

/* The part that stands for the calls of `first`'s backend, all at once; none where that cannot
 * serve the devices. */
static dtr_status open_native(dtr__scope *scope, const dtr_work *first) {
    dtr_group *g = scope->group;
    const dtr__backend *b = first->backend;
    dtr__call c = { .kind = DTR__K_BATCH, .device = scope->device, .stream = scope->stream };
    dtr__request r = { .kind = DTR__K_BATCH };
    bool served = true;
    dtr_work *part;
    DTR_TRY(b->connect != NULL ? b->connect(g, first->backend_state, &c, &served) : DTR_OK);
    if (!served) {
        return fall_back(scope);
    }
    DTR_TRY(dtr__work_make(g, 1, &part));
    (void)dtr__work_describe(part, g, &c, &r, 0, false);
    part->backend = b;
    part->backend_state = first->backend_state;
    part->seq = part->issue = part->report.record = 0;
    dtr_status s = b->prepare(g, part->backend_state, part, scope->whole, scope->calls, scope->n);
    if (s < 0) {
        dtr__work_drop(part);
        return s;
    }
    scope->native = part;
    return DTR_OK;
}

/* What runs where. */
static dtr_status plan(dtr__scope *scope) {
    for (size_t i = 0; i < scope->n; i++) {
        dtr_work *w = scope->calls[i];
        scope->host_only = scope->host_only || w->finish != NULL;
        if (is_native(w)) {
            continue;
        }
        if (w->call.device.type != DTR_CPU) {
            DTR_TRY(w->backend->prepare(scope->group, w->backend_state, w, w, &w, 1));
        }
        if (dtr__kind_is_p2p(w->call.kind)) {
            scope->p2p_left++;
        } else {
            scope->runs[scope->n_runs++] = (dtr__run){ w, i, 1, NULL };
        }
    }
    return DTR_OK;
}

static dtr_status prepare(dtr__scope *scope, const dtr_work *native) {
    dtr_group *g = scope->group;
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    scope->runs = calloc(scope->n, sizeof *scope->runs);
    DTR_REQUIRE(scope->runs != NULL, &ctx, DTR_ERR_NOMEM,
                "no memory for the plan of a coalescing scope");
    DTR_TRY(native != NULL ? open_native(scope, native) : DTR_OK); /* no native group is open yet */
    DTR_TRY(plan(scope));
    bool only = scope->native != NULL && scope->n_runs == 0 && scope->p2p_left == 0;
    scope->whole->backend = only ? &dtr__backend_scope_native : &dtr__backend_scope;
    return DTR_OK;
}

/* The right to issue is held where there is something native. The engine's reference to the whole
 * has been counted. */
static dtr_status begin(dtr__scope *scope, const dtr_work *native) {
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
    dtr_work *part = scope->native;
    dtr_status s = part != NULL ? part->backend->launch(g, part->backend_state, part) : DTR_OK;
    if (s < 0) { /* the others have launched it, or are about to */
        dtr__group_break(g, s);
    }
    return DTR_OK;
}

dtr_status dtr__scope_launch_device(dtr__scope *scope) {
    dtr_group *g = scope->group;
    const dtr_work *native = first_native(scope);
    const dtr__backend *b = native != NULL ? native->backend : NULL;
    void *state = native != NULL ? native->backend_state : NULL;
    bool takes_turns = b != NULL && b->issue_begin != NULL;
    DTR_TRY(takes_turns ? b->issue_begin(g, state) : DTR_OK);
    atomic_fetch_add_explicit(&scope->whole->refs, 1, memory_order_relaxed);
    dtr_status s = begin(scope, native);
    if (takes_turns) {
        b->issue_end(g, state);
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
    return !scope->host_only && scope->native->backend->stream_wait(scope->native, stream, s);
}

bool dtr__scope_uses(const dtr_work *whole, const void *block, size_t nbytes) {
    const dtr__scope *scope = (const dtr__scope *)whole->composite;
    for (size_t i = 0; i < scope->n; i++) {
        if (dtr__call_uses(&scope->calls[i]->call, block, nbytes)) {
            return true;
        }
    }
    return false;
}
