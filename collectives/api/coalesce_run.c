/* Running a coalescing scope: a backend of its own whose works consist of other works. Point to
 * point calls are all under way from the start, collectives one after another; small neighbours of
 * one kind, dtype and operator travel as one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/coalesce.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/stream_dependency.h"

enum {
    FUSE_EACH = 32 * 1024,   /* bytes of a call that is still packed */
    FUSE_TOTAL = 1024 * 1024 /* bytes of a pack */
};

/* ---- plan ---- */

static size_t bytes_of(const dtr__call *c) {
    return c->in_count * dtr_dtype_size(c->dtype);
}

/* Elementwise, so that a pack gives what the calls alone would. Every rank must decide alike: only
 * what ranks agree on counts. */
static bool may_pack(const dtr__call *c) {
    bool kind =
        c->kind == DTR__K_BROADCAST || (c->kind == DTR__K_ALLREDUCE && c->op != DTR_PREMUL_SUM);
    return kind && bytes_of(c) <= FUSE_EACH;
}

static bool same_sort(const dtr__call *a, const dtr__call *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->root == b->root;
}

static dtr_status free_pack(dtr__finish *finish, dtr_status status) {
    free((char *)finish - offsetof(dtr__pack, finish));
    return status;
}

static dtr_status make_pack(dtr__scope *scope, dtr__run *run, size_t nbytes) {
    dtr_group *g = scope->group;
    const dtr__call *first = &scope->calls[run->first]->call;
    dtr__call c = *first;
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    dtr__pack *pack = aligned_alloc(64, sizeof *pack + (nbytes + 63) / 64 * 64);
    DTR_REQUIRE(pack != NULL, &ctx, DTR_ERR_NOMEM,
                "no memory to pack %zu calls of a coalescing scope (%zu bytes)", run->count,
                nbytes);
    c.in_count = c.out_count = nbytes / dtr_dtype_size(c.dtype);
    pack->finish = (dtr__finish){ .fn = free_pack };
    c.in = c.out = pack->data;
    c.fingerprint = 0;
    for (size_t i = run->first; i < run->first + run->count; i++) {
        c.fingerprint = dtr__mix(c.fingerprint, scope->calls[i]->call.fingerprint);
    }
    dtr_status s = dtr__part_make(g, &c, &run->work);
    if (s < 0) {
        free(pack);
        return s;
    }
    run->pack = pack;
    return DTR_OK;
}

/* The next run begins at call `at`; returns where the following one begins. */
static dtr_status plan_run(dtr__scope *scope, size_t *at) {
    dtr__run *run = &scope->runs[scope->n_runs];
    const dtr__call *first = &scope->calls[*at]->call;
    size_t nbytes = bytes_of(first), end = *at + 1;
    if (may_pack(first)) {
        while (end < scope->n && may_pack(&scope->calls[end]->call) &&
               same_sort(first, &scope->calls[end]->call) &&
               nbytes + bytes_of(&scope->calls[end]->call) <= FUSE_TOTAL) {
            nbytes += bytes_of(&scope->calls[end++]->call);
        }
    }
    *run = (dtr__run){ scope->calls[*at], *at, end - *at, NULL };
    if (run->count > 1) {
        DTR_TRY(make_pack(scope, run, nbytes));
    }
    scope->n_runs++;
    *at = end;
    return DTR_OK;
}

/* A barrier is to wait for calls before it, which only the engine sees to. */
static bool runs_together(const dtr__scope *scope) {
    for (size_t i = 0; i < scope->n; i++) {
        const dtr_work *w = scope->calls[i];
        if (w->backend != scope->calls[0]->backend || w->call.kind == DTR__K_BARRIER) {
            return false;
        }
    }
    return scope->calls[0]->backend->coalesce_begin != NULL;
}

dtr_status dtr__scope_plan(dtr__scope *scope) {
    dtr__error_context ctx = { scope->group->world, "coalesced", scope->group->name };
    scope->together = runs_together(scope);
    if (scope->together) {
        scope->p2p_left = scope->n;
        return DTR_OK;
    }
    scope->runs = calloc(scope->n, sizeof *scope->runs);
    DTR_REQUIRE(scope->runs != NULL, &ctx, DTR_ERR_NOMEM,
                "no memory for the plan of a coalescing scope");
    for (size_t at = 0; at < scope->n;) {
        if (dtr__kind_is_p2p(scope->calls[at]->call.kind)) {
            scope->p2p_left++;
            at++;
        } else {
            DTR_TRY(plan_run(scope, &at));
        }
    }
    return DTR_OK;
}

/* ---- one call ---- */

/* The whole goes on, and ends with the first `s` that a call of it has found. */
static void keep_first(dtr_work *whole, dtr_status s, dtr__error_copy *error) {
    dtr__group_engine *e = whole->group->engine;
    pthread_mutex_lock(&e->queue_lock);
    if (!atomic_load_explicit(&whole->ended, memory_order_relaxed) &&
        whole->input.status == DTR_OK) {
        whole->input.status = s;
        whole->error = error;
        error = NULL;
    }
    pthread_mutex_unlock(&e->queue_lock);
    dtr__error_copy_free(error);
}

void dtr__scope_end_call(dtr_work *whole, dtr_work *w) {
    atomic_store_explicit(&w->ended, 1, memory_order_relaxed);
    dtr__work_give_op(w);
    dtr__work_hash_out(w);
    dtr__work_mark(w, DTR__REC_FINISHED, DTR_OK);
    if (w->input.status !=
        DTR_OK) { /* in an input that only the call's own backend could look at */
        keep_first(whole, w->input.status, w->error);
        w->error = NULL;
    }
    dtr__finish *f = w->finish;
    w->finish = NULL;
    dtr_status s = f != NULL ? f->fn(f, DTR_OK) : DTR_OK;
    if (s < 0) {
        keep_first(whole, s, dtr__error_save());
    }
}

/* ---- packs ---- */

static void copy_pack(const dtr__scope *scope, const dtr__run *run, bool in) {
    char *at = run->pack->data;
    bool broadcast = run->work->call.kind == DTR__K_BROADCAST;
    bool root = run->work->call.root == scope->group->rank;
    if (broadcast && in != root) {
        return; /* the root's buffers are only read, the others' only written */
    }
    for (size_t i = run->first; i < run->first + run->count; i++) {
        const dtr__call *c = &scope->calls[i]->call;
        if (bytes_of(c) > 0) {
            memcpy(in ? at : c->out, in ? c->in : at, bytes_of(c));
        }
        at += bytes_of(c);
    }
}

/* ---- backend ---- */

static void cancel(dtr_group *g, void *state, dtr_work *whole) {
    dtr__scope *scope = (dtr__scope *)whole->composite;
    (void)state;
    if (scope != NULL && scope->native != NULL) {
        dtr__part_cancel(g, scope->native);
    }
    if (scope != NULL && scope->together && whole->request != NULL) {
        const dtr_work *first = scope->calls[0];
        first->backend->cancel(g, first->backend_state, whole);
    }
    for (size_t i = 0; scope != NULL && i < scope->n_runs; i++) {
        dtr__part_cancel(g, scope->runs[i].work);
    }
    for (size_t i = 0; scope != NULL && i < scope->n; i++) {
        dtr__part_cancel(g, scope->calls[i]);
    }
}

/* All calls begin, and then what the backend has made of them. The end comes after a failure, too,
 * and is not to hide it. */
static dtr_status begin_together(dtr_group *g, dtr_work *whole, dtr__scope *scope) {
    const dtr__backend *b = scope->calls[0]->backend;
    void *state = scope->calls[0]->backend_state;
    bool done;
    scope->begun = true;
    DTR_TRY(b->coalesce_begin(g, state, whole));
    dtr_status s = DTR_OK;
    for (size_t i = 0; s == DTR_OK && i < scope->n; i++) {
        s = dtr__part_move(g, whole, scope->calls[i], &done);
    }
    dtr__error_copy *cause = s < 0 ? dtr__error_save() : NULL;
    dtr_status end = b->coalesce_end(g, state, whole);
    return dtr__error_put_back(cause, s) < 0 ? s : end;
}

static dtr_status move_together(dtr_group *g, dtr_work *whole, dtr__scope *scope) {
    const dtr_work *first = scope->calls[0];
    bool done = false;
    if (!scope->begun) {
        return begin_together(g, whole, scope);
    }
    if (whole->request != NULL) {
        DTR_TRY(first->backend->progress(g, first->backend_state, whole, &done));
        whole->moved = whole->moved || done;
    }
    return DTR_OK;
}

/* A call that has left nothing to ask after ends with the whole. */
static dtr_status move_call(dtr_group *g, dtr_work *whole, const dtr__scope *scope, dtr_work *w,
                            bool *done) {
    if (scope->together && w->request == NULL) {
        *done = whole->request == NULL;
        return DTR_OK;
    }
    return dtr__part_move(g, whole, w, done);
}

static dtr_status move_p2p(dtr_group *g, dtr_work *whole, dtr__scope *scope) {
    for (size_t i = 0; scope->p2p_left > 0 && i < scope->n; i++) {
        dtr_work *w = scope->calls[i];
        bool done = false;
        if ((scope->together || dtr__kind_is_p2p(w->call.kind)) && w->backend->launch == NULL &&
            !dtr__part_ended(w)) {
            DTR_TRY(move_call(g, whole, scope, w, &done));
        }
        if (done) {
            dtr__scope_end_call(whole, w);
            scope->p2p_left--;
        }
    }
    return DTR_OK;
}

/* A barrier waits for this rank's earlier point to point, in the scope and before it. */
static bool may_start(const dtr_group *g, const dtr__scope *scope, const dtr_work *w) {
    if (w->started || w->call.kind != DTR__K_BARRIER) {
        return true;
    }
    for (size_t i = 0; i + 1 < w->scope.part; i++) {
        if (!dtr__part_ended(scope->calls[i])) {
            return false;
        }
    }
    return (g->engine->p2p.head == NULL || g->engine->p2p.head->issue > w->issue) &&
           !dtr__stream_dependency_waits(w);
}

static dtr_status move_run(dtr_group *g, dtr_work *whole, dtr__scope *scope, dtr__run *run,
                           bool *done) {
    if (run->pack != NULL && !run->work->started) {
        copy_pack(scope, run, true);
    }
    DTR_TRY(dtr__part_move(g, whole, run->work, done));
    if (!*done) {
        return DTR_OK;
    }
    if (run->pack == NULL) {
        dtr__scope_end_call(whole, run->work);
        return DTR_OK;
    }
    atomic_store_explicit(&run->work->ended, 1, memory_order_relaxed);
    dtr__work_give_op(run->work);
    copy_pack(scope, run, false);
    for (size_t i = run->first; i < run->first + run->count; i++) {
        dtr__scope_end_call(whole, scope->calls[i]);
    }
    return DTR_OK;
}

static dtr_status move(dtr_group *g, dtr_work *whole, dtr__scope *scope) {
    DTR_TRY(dtr__scope_move_native(g, whole, scope));
    if (scope->together) {
        DTR_TRY(move_together(g, whole, scope));
    }
    DTR_TRY(move_p2p(g, whole, scope));
    while (scope->next_run < scope->n_runs) {
        dtr__run *run = &scope->runs[scope->next_run];
        bool done = false;
        if (!may_start(g, scope, run->work)) {
            return DTR_OK;
        }
        DTR_TRY(move_run(g, whole, scope, run, &done));
        if (!done) {
            return DTR_OK;
        }
        scope->next_run++;
    }
    return DTR_OK;
}

static dtr_status progress(dtr_group *g, void *state, dtr_work *whole, bool *done) {
    dtr__scope *scope = (dtr__scope *)whole->composite;
    dtr_status s = move(g, whole, scope);
    if (s < 0) {
        dtr__work_give_up(g, &dtr__backend_scope, state, whole, s);
        return s;
    }
    bool native = scope->native == NULL || dtr__part_ended(scope->native);
    *done = native && scope->p2p_left == 0 && scope->next_run == scope->n_runs;
    if (*done && scope->device.type == DTR_CPU) { /* streams may still ask for the other's event */
        whole->composite = NULL;
        scope->composite.free(&scope->composite);
    }
    return DTR_OK;
}

static const char *waits_for(dtr_group *g, void *state, dtr_work *whole, char *text, size_t cap) {
    const dtr__scope *scope = (const dtr__scope *)whole->composite;
    (void)state;
    for (size_t i = 0; scope != NULL && i < scope->n; i++) {
        if (!dtr__part_ended(scope->calls[i])) {
            bool p2p = dtr__kind_is_p2p(scope->calls[i]->call.kind);
            if (scope->calls[i]->backend->launch != NULL) {
                return dtr__part_waits_for(g, scope->native, false, text, cap);
            }
            dtr_work *served = p2p || scope->next_run >= scope->n_runs
                                   ? scope->calls[i]
                                   : scope->runs[scope->next_run].work;
            return dtr__part_waits_for(g, served, true, text, cap);
        }
    }
    return "";
}

const dtr__backend dtr__backend_scope = { .name = "scope",
                                          .device = DTR_CPU,
                                          .start = progress,
                                          .progress = progress,
                                          .cancel = cancel,
                                          .waits_for = waits_for };

const dtr__backend dtr__backend_scope_native = { .name = "scope",
                                                 .device = DTR_CUDA,
                                                 .overlaps = true,
                                                 .start = progress,
                                                 .progress = progress,
                                                 .cancel = cancel,
                                                 .stream_wait = dtr__scope_stream_wait,
                                                 .waits_for = waits_for };
