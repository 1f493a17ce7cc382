/* Coalescing scopes: recording calls, and ending or abandoning the scope. */
#include "api/coalesce.h"
#include "api/issue.h"
#include "core/call_site.h"
#include "core/message.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "engine/stream_dependency.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void scope_free(dtr__composite *self) {
    dtr__scope *scope = (dtr__scope *)self;
    for (size_t i = 0; i < scope->n; i++) {
        dtr__work_unref(scope->calls[i]);
    }
    for (size_t i = 0; i < scope->n_runs; i++) {
        if (scope->runs[i].count > 1) {
            dtr__work_unref(scope->runs[i].work);
            free(scope->runs[i].pack);
        }
    }
    if (scope->native != NULL) {
        dtr__work_unref(scope->native);
    }
    free(scope->calls);
    free(scope->spans);
    free(scope->runs);
    dtr__error_copy_free(scope->error);
    free(scope);
}

static void defer_finish(dtr_group *g, dtr_work *whole) {
    dtr__scope *scope = (dtr__scope *)whole->composite;
    for (size_t i = 0; i < scope->n; i++) {
        if (!dtr__part_ended(scope->calls[i])) { /* it has never been started */
            dtr__work_mark(scope->calls[i], DTR__REC_FAILED, whole->status);
        }
        dtr__work_defer_finish(g, scope->calls[i]);
    }
    for (size_t i = 0; i < scope->n_runs; i++) {
        if (scope->runs[i].pack != NULL) {
            scope->runs[i].work->finish = &scope->runs[i].pack->finish;
            scope->runs[i].pack = NULL;
            dtr__work_defer_finish(g, scope->runs[i].work);
        }
    }
}

/* The record of a scope has the elements of all its calls. */
static void sizes(const dtr_work *whole, dtr__record *r) {
    const dtr__scope *scope = (const dtr__scope *)whole->composite;
    for (size_t i = 0; i < scope->n; i++) {
        r->count_in += scope->calls[i]->call.in_count;
        r->count_out += scope->calls[i]->call.out_count;
    }
}

/* The calls of an admitted scope get its number and their records. */
static void number(dtr_work *whole) {
    dtr__scope *scope = (dtr__scope *)whole->composite;
    for (size_t i = 0; i < scope->n; i++) {
        dtr_work *w = scope->calls[i];
        w->seq = whole->seq;
        w->issue = whole->issue;
        dtr__work_write_record(w, dtr__call_site_cached(&w->call), DTR__REC_MEMBER);
        if (w->input.status != DTR_OK && whole->error == NULL) {
            dtr__work_write_nan_error(whole, w);
        }
    }
    for (size_t i = 0; i < scope->n_runs; i++) {
        scope->runs[i].work->seq = whole->seq;
        scope->runs[i].work->issue = whole->issue;
    }
}

/* ---- begin ---- */

static dtr_status new_scope(dtr_group *g, dtr__scope **out) {
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    dtr__call c = { .kind = DTR__K_COALESCED, .root = -1, .tag = -1, .timeout_s = INFINITY };
    dtr__request r = { .kind = DTR__K_COALESCED };
    dtr__scope *scope = calloc(1, sizeof *scope);
    DTR_REQUIRE(scope != NULL, &ctx, DTR_ERR_NOMEM,
                "no memory for a coalescing scope of group '%s'", g->name);
    dtr_status s = dtr__work_make(g, 1, &scope->whole);
    if (s < 0) {
        free(scope);
        return s;
    }
    scope->composite = (dtr__composite){ .number = number,
                                         .defer_finish = defer_finish,
                                         .free = scope_free,
                                         .uses = dtr__scope_uses,
                                         .sizes = sizes };
    scope->group = g;
    scope->owner = pthread_self();
    (void)dtr__work_describe(scope->whole, g, &c, &r, 0, false);
    scope->whole->backend = &dtr__backend_scope;
    scope->whole->backend_state = NULL;
    scope->whole->seq = scope->whole->report.record = 0;
    atomic_store_explicit(&scope->whole->scope.recording, DTR__RECORDING_SCOPE,
                          memory_order_relaxed);
    *out = scope;
    return DTR_OK;
}

static dtr_status live_group(dtr_group *g, const char *entry) {
    dtr_status s = dtr__group_check(g, entry);
    return s != DTR_OK || atomic_load_explicit(&g->status, memory_order_acquire) == DTR_OK
               ? s
               : dtr__group_broken(g);
}

static void drop(dtr_group *g);

dtr_status dtr_coalesce_begin(dtr_group *g) {
    dtr_status s = live_group(g, "dtr_coalesce_begin");
    if (s != DTR_OK) {
        return s;
    }
    DTR_TRY(dtr__group_closing(g, "dtr_coalesce_begin"));
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    DTR_REQUIRE(
        atomic_load_explicit(&g->calls.scope, memory_order_acquire) == NULL, &ctx, DTR_ERR_STATE,
        "dtr_coalesce_begin: a coalescing scope of group '%s' is open already; scopes of one "
        "group do not nest",
        g->name);
    dtr__scope *scope;
    DTR_TRY(new_scope(g, &scope));
    if (!dtr__work_list(g, scope->whole)) {
        dtr__work_unref(scope->whole);
        scope_free(&scope->composite);
        return dtr__group_broken(g);
    }
    g->calls.drop_scope = drop;
    atomic_store_explicit(&g->calls.scope, scope, memory_order_release);
    return DTR_OK;
}

/* ---- abandoning ---- */

/* The last steps of calls that will not run. */
static void finish_recorded(dtr__scope *scope) {
    dtr_group *g = scope->group;
    double limit_s = dtr__engine_patience(g, g->timeout_s);
    scope->left = scope->left || dtr__progress_stuck(g->world) ||
                  !dtr__progress_lock_acquire_within(g->world, g->engine->progress, limit_s);
    if (scope->left) {
        return; /* a thread may hold the lock for ever; the group's end reports that */
    }
    for (size_t i = 0; i < scope->n; i++) {
        dtr__finish *f = scope->calls[i]->finish;
        scope->calls[i]->finish = NULL;
        if (f != NULL) {
            (void)f->fn(f, DTR_ERR_ABORTED);
        }
    }
    dtr__progress_lock_release(g->engine->progress);
}

/* This thread's last error is why; it stays that. */
static void abandon(dtr__scope *scope, dtr_status s) {
    dtr_group *g = scope->group;
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    dtr__queue called = { NULL, NULL };
    char why[1024];
    scope->status = s;
    scope->error = dtr__error_save();
    snprintf(why, sizeof why, "%s", dtr_last_error_message());
    (void)DTR_FAIL(&ctx, DTR_ERR_ABORTED, "the coalescing scope of group '%s' was abandoned: %s",
                   g->name, why);
    dtr__work_end(scope->whole, DTR_ERR_ABORTED, dtr__error_save(), &called);
    finish_recorded(scope);
    dtr__callbacks_run(&called);
    (void)dtr__error_restore(scope->error, s);
}

/* Ends a scope of which nothing has started. A thread that breaks the group says so before it has
 * ended the group's works, and holds this lock until it has. */
static void discard(dtr__scope *scope) {
    finish_recorded(scope);
    pthread_mutex_lock(&scope->group->engine->queue_lock);
    pthread_mutex_unlock(&scope->group->engine->queue_lock);
    dtr__work_unref(scope->whole);
    scope_free(&scope->composite);
}

/* What a scope left open at the group's end comes to. */
static void drop(dtr_group *g) {
    dtr__scope *scope = atomic_exchange(&g->calls.scope, NULL);
    if (scope == NULL) {
        return;
    }
    DTR_WARN(g->world,
             "group '%s' is destroyed with an open coalescing scope; its %zu call%s dropped",
             g->name, scope->n, scope->n == 1 ? " is" : "s are");
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    if (scope->status == DTR_OK) {
        (void)DTR_FAIL(&ctx, DTR_ERR_ABORTED, "group '%s' was destroyed before dtr_coalesce_end",
                       g->name);
        abandon(scope, DTR_ERR_ABORTED);
    }
    discard(scope);
}

/* ---- recording ---- */

static dtr_status not_the_owner(const dtr_group *g, const char *entry) {
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    return DTR_FAIL(&ctx, DTR_ERR_STATE,
                    "%s on group '%s': another thread has a coalescing scope of the group open",
                    entry, g->name);
}

dtr_status dtr__scope_look(const dtr_group *g, const char *entry) {
    const dtr__scope *scope = atomic_load_explicit(&g->calls.scope, memory_order_acquire);
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    if (scope != NULL && !pthread_equal(scope->owner, pthread_self())) {
        return not_the_owner(g, entry);
    }
    DTR_REQUIRE(scope == NULL || scope->status == DTR_OK, &ctx, DTR_ERR_STATE,
                "%s on group '%s': an earlier call has failed the open coalescing scope (%s); end "
                "it with dtr_coalesce_end",
                entry, g->name, dtr_status_name(scope->status));
    return DTR_OK;
}

dtr_status dtr__scope_refuse(dtr_group *g, const char *entry) {
    dtr__scope *scope = atomic_load_explicit(&g->calls.scope, memory_order_acquire);
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    DTR_TRY(dtr__scope_look(g, entry));
    if (scope == NULL) {
        return DTR_OK;
    }
    dtr_status s = DTR_FAIL(&ctx, DTR_ERR_STATE,
                            "%s on group '%s' needs an answer at once and cannot be part of a "
                            "coalescing scope",
                            entry, g->name);
    abandon(scope, s);
    return s;
}

/* The failure of a call names its position. */
static dtr_status fail_call(dtr__scope *scope, dtr_status s, dtr__kind kind) {
    char why[1024];
    dtr__error_context ctx = { scope->group->world, dtr__kind_name(kind), scope->group->name };
    snprintf(why, sizeof why, "%s", dtr_last_error_message());
    (void)DTR_FAIL(&ctx, s, "call %zu of the coalescing scope: %s", scope->n + 1, why);
    abandon(scope, s);
    return s;
}

dtr_status dtr__scope_fail(dtr_group *g, dtr_status s, dtr__kind kind) {
    dtr__scope *scope = atomic_load_explicit(&g->calls.scope, memory_order_acquire);
    return scope != NULL ? fail_call(scope, s, kind) : s;
}

static bool grow(void **array, size_t *cap, size_t need, size_t size) {
    if (need <= *cap) {
        return true;
    }
    size_t n = need < 8 ? 8 : need * 2;
    void *p = realloc(*array, n * size);
    if (p == NULL) {
        return false;
    }
    *array = p;
    *cap = n;
    return true;
}

/* ---- overlap of calls ---- */

static bool add_span(dtr__scope *scope, const void *data, size_t nbytes, bool writes) {
    if (nbytes == 0) {
        return true;
    }
    if (!grow((void **)&scope->spans, &scope->cap_spans, scope->n_spans + 1, sizeof(dtr__span))) {
        return false;
    }
    uintptr_t from = (uintptr_t)data;
    scope->spans[scope->n_spans++] = (dtr__span){ from, from + nbytes, scope->n, writes };
    return true;
}

/* What the next call reads and writes on this rank; a broadcast counts as writing everywhere. */
static bool add_spans(dtr__scope *scope, const dtr__call *c, const dtr__request *r) {
    size_t size = dtr_dtype_size(c->dtype);
    bool ok = true;
    for (size_t i = 0; i < r->n_touched; i++) {
        ok = ok && add_span(scope, r->touched[i].data, r->touched[i].nbytes, r->touched[i].writes);
    }
    if (c->kind == DTR__K_BATCH) {
        for (size_t i = 0; i < c->n_batch; i++) {
            const dtr_buffer *b = &c->batch[i].buf;
            ok = ok && add_span(scope, b->data, b->count * dtr_dtype_size(b->dtype),
                                !c->batch[i].is_send);
        }
        return ok;
    }
    if (c->kind != DTR__K_BROADCAST && c->kind != DTR__K_RECV) {
        ok = add_span(scope, c->in, c->in_count * size, false);
    }
    if (c->kind != DTR__K_SEND) {
        ok = ok && add_span(scope, c->out, c->out_count * size, true);
    }
    return ok;
}

static dtr_status check_spans(const dtr__scope *scope, size_t first) {
    for (size_t i = first; i < scope->n_spans; i++) {
        const dtr__span *mine = &scope->spans[i];
        for (size_t j = 0; j < first; j++) {
            const dtr__span *other = &scope->spans[j];
            if ((mine->writes || other->writes) && mine->from < other->to &&
                other->from < mine->to) {
                dtr__error_context ctx = { scope->group->world, "coalesced", scope->group->name };
                char site[64];
                const dtr_work *w = scope->calls[other->call];
                return DTR_FAIL(&ctx, DTR_ERR_ARG,
                                "it %s memory that call %zu (%s at %s) %s; calls of one scope may "
                                "overlap in what they read only",
                                mine->writes ? "writes" : "reads", other->call + 1,
                                dtr__kind_name(w->call.kind),
                                dtr__call_site_text(&w->call, site, sizeof site),
                                other->writes ? "writes" : "reads");
            }
        }
    }
    return DTR_OK;
}

/* ---- one call ---- */

static dtr_status add_call(dtr__scope *scope, dtr__call *c, const dtr__request *r, int backend) {
    dtr_group *g = scope->group;
    dtr__error_context ctx = { g->world, dtr__kind_name(c->kind), g->name };
    size_t first = scope->n_spans;
    DTR_REQUIRE(add_spans(scope, c, r) &&
                    grow((void **)&scope->calls, &scope->cap, scope->n + 1, sizeof *scope->calls),
                &ctx, DTR_ERR_NOMEM, "no memory to record it");
    DTR_TRY(check_spans(scope, first));
    dtr_work *w;
    DTR_TRY(dtr__work_make(g, 1, &w));
    dtr_status s = dtr__work_describe(w, g, c, r, backend, false);
    s = s == DTR_OK && dtr__stream_dependency_wanted(r) ? dtr__stream_dependency_make(g, w) : s;
    if (s < 0) {
        w->finish = NULL;
        dtr__work_unref(w);
        return s;
    }
    if (w->finish != NULL) {
        w->finish->taken = true;
    }
    scope->calls[scope->n++] = w;
    return DTR_OK;
}

dtr_status dtr__scope_record(dtr_group *g, dtr__scope *scope, const dtr__request *r,
                             dtr_work **work) {
    dtr__call c;
    int backend = 0;
    dtr_status s = dtr__scope_look(g, dtr__kind_entry(r->kind));
    if (s != DTR_OK) {
        dtr__call_site_drop();
        return s;
    }
    s = dtr__coll_check(g, r, false, &c);
    dtr__call_site_take(&c, r->return_address);
    bool nothing = s == DTR_OK && dtr__p2p_is_nothing(&c);
    if (s == DTR_OK && !nothing) {
        s = dtr__scope_choose(scope, &c, r, &backend);
    }
    if (s == DTR_OK && !nothing) {
        s = add_call(scope, &c, r, backend);
    }
    if (s < 0) {
        return fail_call(scope, s, r->kind);
    }
    if (work != NULL) {
        atomic_fetch_add_explicit(&scope->whole->refs, 1, memory_order_relaxed);
        *work = scope->whole;
    }
    return DTR_OK;
}

/* ---- end ---- */

/* The combined call is known: kind, limit, what ranks must agree on, inputs that are NaN. */
static void describe_whole(dtr__scope *scope) {
    dtr_work *whole = scope->whole;
    dtr__call *c = &whole->call;
    uint64_t nth = 0; /* of the collectives, in which alone the ranks must agree */
    c->fingerprint = 0;
    for (size_t i = 0; i < scope->n; i++) {
        dtr_work *w = scope->calls[i];
        c->timeout_s = w->call.timeout_s < c->timeout_s ? w->call.timeout_s : c->timeout_s;
        if (!dtr__kind_is_p2p(w->call.kind)) {
            w->call.fingerprint = dtr__mix(w->call.fingerprint, ++nth);
            c->fingerprint = dtr__mix(c->fingerprint, w->call.fingerprint);
        }
        w->scope.part = (uint32_t)i + 1;
        w->scope.parts = (uint32_t)scope->n;
        whole->scope.nbytes += dtr__work_nbytes(w);
        if (w->input.status != DTR_OK && whole->input.status == DTR_OK) {
            whole->input.status = w->input.status;
        }
    }
    c->kind = nth > 0 ? DTR__K_COALESCED : DTR__K_COALESCED_P2P;
    c->n_batch = scope->n;
    c->issued_ns = dtr__stamp_ns();
    atomic_store_explicit(&whole->limit.seconds, c->timeout_s, memory_order_relaxed);
    atomic_store_explicit(&whole->limit.deadline, dtr__now_at(c->issued_ns) + c->timeout_s,
                          memory_order_relaxed);
}

/* Without calls: finished before it began, no number taken. */
static void end_empty(dtr__scope *scope) {
    dtr__queue called = { NULL, NULL };
    scope->whole->call.issued_ns = dtr__stamp_ns();
    atomic_store_explicit(&scope->whole->scope.recording, DTR__RECORDING_NOT, memory_order_release);
    dtr__work_end(scope->whole, DTR_OK, NULL, &called);
    dtr__callbacks_run(&called);
    scope_free(&scope->composite);
}

static dtr_status give(dtr_work *whole, dtr_work **work) {
    if (work != NULL) {
        *work = whole;
        return DTR_OK;
    }
    dtr_status s;
    if (whole->call.device.type != DTR_CPU) {
        s = dtr_work_wait(whole, -1); /* the stream waits */
    } else {
        dtr__work_block(whole);
        s = dtr__work_result(whole);
    }
    dtr__work_unref(whole);
    return s;
}

static dtr_status launch_host(dtr__scope *scope) {
    dtr_work *whole = scope->whole;
    DTR_TRY(dtr__scope_plan(scope));
    whole->composite = &scope->composite;
    atomic_fetch_add_explicit(&whole->refs, 1, memory_order_relaxed); /* the engine's */
    if (!dtr__work_admit(scope->group, whole, dtr__call_site_cached(&whole->call), true)) {
        whole->composite = NULL;
        dtr__work_unref(whole);
        return dtr__group_broken(scope->group);
    }
    return DTR_OK;
}

static dtr_status launch(dtr__scope *scope, dtr_work **work) {
    dtr_group *g = scope->group;
    dtr_work *whole = scope->whole;
    if (scope->n == 0) {
        end_empty(scope);
        return give(whole, work);
    }
    describe_whole(scope);
    bool device = scope->device.type != DTR_CPU;
    dtr_status s = device ? dtr__scope_launch_device(scope) : launch_host(scope);
    if (s < 0) {
        abandon(scope, s);
        discard(scope);
        return s;
    }
    atomic_store_explicit(&whole->scope.recording, DTR__RECORDING_NOT, memory_order_release);
    if (device && atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
        dtr__work_unref(whole);
        return dtr__group_broken(g);
    }
    dtr__work_hand_over(g, whole);
    return give(whole, work);
}

static dtr_status check_end(dtr_group *g, const dtr__scope *scope, bool blocking) {
    dtr__error_context ctx = { g->world, "coalesced", g->name };
    if (scope == NULL && atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
        return dtr__group_broken(g);
    }
    DTR_REQUIRE(scope != NULL, &ctx, DTR_ERR_STATE,
                "dtr_coalesce_end: group '%s' has no open coalescing scope; begin one with "
                "dtr_coalesce_begin",
                g->name);
    if (!pthread_equal(scope->owner, pthread_self())) {
        return not_the_owner(g, "dtr_coalesce_end");
    }
    DTR_REQUIRE(!blocking || !dtr__in_callback(g->world), &ctx, DTR_ERR_STATE,
                "dtr_coalesce_end on group '%s' without a work blocks, and this thread is inside a "
                "completion callback of the same world; ask for a work",
                g->name);
    return DTR_OK;
}

static dtr_status coalesce_end(dtr_group *g, dtr_work **work, void *return_address) {
    dtr__call site;
    dtr__call_site_take(&site, return_address);
    dtr_status s = dtr__group_check(g, "dtr_coalesce_end");
    if (s != DTR_OK) {
        if (s == DTR_NOT_MEMBER && work != NULL) {
            *work = NULL;
        }
        return s;
    }
    dtr__scope *scope = atomic_load_explicit(&g->calls.scope, memory_order_acquire);
    DTR_TRY(check_end(g, scope, work == NULL));
    atomic_store_explicit(&g->calls.scope, NULL, memory_order_release);
    scope->whole->call.file = site.file;
    scope->whole->call.line = site.line;
    scope->whole->call.return_address = site.return_address;
    if (scope->status != DTR_OK) {
        s = dtr__error_restore(scope->error, scope->status);
        discard(scope);
        return s;
    }
    if (atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
        discard(scope);
        return dtr__group_broken(g);
    }
    return launch(scope, work);
}

dtr_status dtr_coalesce_end(dtr_group *g, dtr_work **work) {
    return DTR_TRACED(dtr__group_trace(g), "dtr_coalesce_end", g->name,
                      coalesce_end(g, work, __builtin_return_address(0)));
}
