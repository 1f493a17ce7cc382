/* Issuing an operation: what may refuse it, then either inline in a blocking caller or handed to
 * the queue (engine/submit.c). */
#include <stdlib.h>

#include "api/coalesce.h"
#include "api/fast_path.h"
#include "api/issue.h"
#include "api_internal.h"
#include "core/call_site.h"
#include "core/message.h"
#include "core/team.h"
#include "core/work.h"
#include "engine/engine.h"
#include "engine/stream_dependency.h"
#include "engine/turn.h"
#include "failure/failure.h"
#include "failure/notify.h"
#include "group/groups.h"

/* A blocking call in a work that this thread alone has; progress lock held, and afterwards *held.
 */
static dtr_status run_inline(dtr_group *g, dtr_work *w, const dtr__request *r, int backend,
                             bool *held) {
    DTR_TRY(dtr__work_describe(w, g, &w->call, r, backend, true));
    atomic_store_explicit(&w->refs, 2, memory_order_relaxed);
    if (!dtr__work_admit(g, w, dtr__call_site_cached(&w->call), false)) {
        atomic_store_explicit(&w->refs, 1, memory_order_relaxed);
        return dtr__group_broken(g);
    }
    dtr__group_enter(g, w);
    *held = dtr__work_finish_inline(g, w);
    if (*held && w->status == DTR_OK && !dtr__wants_nan_check(g, &w->call)) {
        dtr__fast_path_learn(g, r, w, backend);
    }
    return dtr__work_result(w);
}

static dtr_status run_async(dtr_group *g, const dtr__call *c, const dtr__request *r, int backend,
                            const char *site, dtr_work **work) {
    dtr_work *w;
    DTR_TRY(dtr__work_make(g, 2, &w));
    dtr_status s = dtr__work_describe(w, g, c, r, backend, false);
    s = s == DTR_OK && dtr__stream_dependency_wanted(r) ? dtr__stream_dependency_make(g, w) : s;
    if (s == DTR_OK && !dtr__work_admit(g, w, site, false)) {
        s = dtr__group_broken(g);
    }
    if (s != DTR_OK) {
        atomic_store_explicit(&w->refs, 1, memory_order_relaxed);
        dtr__work_unref(w);
        return s;
    }
    *work = w;
    dtr__work_hand_over(g, w);
    dtr__fast_path_learn_message(g, r, w, backend);
    return DTR_OK;
}

/* Finished before it begins, and takes no number: none of its buffers is checked. */
static dtr_status run_nothing(dtr_group *g, const dtr__call *c, const dtr__request *r,
                              dtr_work **work) {
    dtr_work *w;
    dtr__call empty = *c;
    if (work == NULL) {
        return DTR_OK;
    }
    empty.in = empty.out = NULL;
    empty.in_count = empty.out_count = 0;
    empty.device = (dtr_device){ DTR_CPU, 0 };
    DTR_TRY(dtr__work_make(g, 1, &w));
    (void)dtr__work_describe(w, g, &empty, r, 0, true);
    w->seq = 0;
    w->report.ended_ns = w->call.issued_ns;
    atomic_store_explicit(&w->source, c->root, memory_order_relaxed);
    atomic_store_explicit(&w->ended, 1, memory_order_relaxed);
    atomic_store_explicit(&w->done, 1, memory_order_release);
    *work = w;
    return DTR_OK;
}

static dtr_status refuse_in_callback(const dtr_group *g, const dtr__request *r) {
    const char *kind = dtr__kind_name(r->kind);
    dtr__error_context ctx = { g->world, kind, g->name };
    return DTR_FAIL(
        &ctx, DTR_ERR_STATE,
        "%s on group '%s' without a work blocks, and this thread is inside a completion "
        "callback, or an operator, of the same world; ask for a work",
        kind, g->name);
}

/* Everything that may refuse a call before it gets its number. */
static dtr_status examine(dtr_group *g, const dtr__request *r, bool blocking, int64_t now,
                          dtr__call *c, int *backend) {
    dtr_status s = blocking && dtr__in_callback(g->world) ? refuse_in_callback(g, r)
                                                          : dtr__coll_check(g, r, blocking, c);
    if (s == DTR_OK && !dtr__p2p_is_nothing(c)) {
        s = dtr__choose_backend(g, c, backend);
    }
    if (s != DTR_OK) {
        dtr__call_site_drop();
        dtr__rec_refused(g->world, s);
        return s;
    }
    c->issued_ns = now;
    dtr__call_site_take(c, r->return_address);
    return DTR_OK;
}

/* The progress lock was free: the caller moves the group itself, in a work kept for that. Gives the
 * lock back. */
static dtr_status issue_inline(dtr_group *g, const dtr__request *r, int64_t now) {
    int backend = 0;
    bool held = true;
    dtr_work *w = g->engine->spare;
    dtr_status s = w != NULL ? DTR_OK : dtr__work_make(g, 1, &w);
    g->engine->spare = NULL;
    if (s == DTR_OK) {
        s = examine(g, r, true, now, &w->call, &backend);
        if (s == DTR_OK && !dtr__p2p_is_nothing(&w->call)) {
            s = run_inline(g, w, r, backend, &held);
        }
        dtr__work_keep_spare(g, w, held);
    }
    if (held) {
        dtr__progress_lock_release(g->engine->progress);
    }
    if (s < 0 && atomic_load_explicit(&g->status, memory_order_relaxed) != DTR_OK) {
        dtr__notifier_visit(g->world); /* others may wait to be notified */
    }
    return s;
}

static dtr_status issue_queued(dtr_group *g, const dtr__request *r, int64_t now, dtr_work **work) {
    dtr__call c;
    dtr_work *w = NULL;
    int backend = 0;
    DTR_TRY(examine(g, r, work == NULL, now, &c, &backend));
    if (dtr__p2p_is_nothing(&c)) {
        return run_nothing(g, &c, r, work);
    }
    const char *site = dtr__call_site_cached(&c);
    DTR_TRY(c.device.type != DTR_CPU ? dtr__issue_on_device(g, &c, r, site, &w)
                                     : run_async(g, &c, r, backend, site, &w));
    if (work != NULL) {
        *work = w;
        return DTR_OK;
    }
    dtr_status s = dtr_work_wait(w, -1); /* on a device the stream waits */
    dtr__work_unref(w);
    return s;
}

static dtr_status refuse_handle(const dtr_group *g, const dtr__request *r, dtr_work **work) {
    dtr__call_site_drop();
    dtr_status s = dtr__group_check(g, dtr__kind_entry(r->kind));
    if (s == DTR_NOT_MEMBER && work != NULL) {
        *work = NULL;
    }
    return s;
}

static dtr_status issue(dtr_group *g, const dtr__request *r, int64_t now, dtr_work **work) {
    dtr__scope *scope = atomic_load_explicit(&g->calls.scope, memory_order_acquire);
    if (scope != NULL) {
        return dtr__scope_record(g, scope, r, work);
    }
    if (work == NULL && !dtr__request_on_device(r) && !dtr__stream_dependency_wanted(r) &&
        dtr__progress_lock_try(g->engine->progress)) {
        return issue_inline(g, r, now);
    }
    return issue_queued(g, r, now, work);
}

/* The entries that are something. A list with a bad entry stays as it is, because messages number
 * the entries as the program does. */
static dtr_status issue_batch(dtr_group *g, const dtr__request *r, int64_t now, dtr_work **work) {
    dtr__error_context ctx = { g->world, dtr__kind_name(r->kind), g->name };
    dtr__call c;
    if (!dtr__p2p_has_nothing(r) || dtr__coll_check(g, r, false, &c) < 0) {
        return issue(g, r, now, work);
    }
    dtr_p2p *list = malloc(r->n_batch * sizeof *list);
    DTR_REQUIRE(list != NULL, &ctx, DTR_ERR_NOMEM,
                "%s on group '%s': out of memory for the list of operations", ctx.operation,
                g->name);
    dtr__request some = *r;
    some.batch = list;
    some.n_batch = dtr__p2p_leave_out(r, list);
    dtr_status s = issue(g, &some, now, work);
    free(list);
    return s;
}

/* What others have agreed on meanwhile, before the call has a number: it must not come to anything,
 * nor wait for those who have given up. */
static bool others_have_failed(dtr_group *g) {
    dtr__queue called = { NULL, NULL };
    const bool broken = dtr__group_look_for_failure(g, &called);
    dtr__callbacks_run(&called);
    return broken;
}

/* What no fast path has taken. */
static dtr_status issue_live(dtr_group *g, const dtr__request *r, dtr_work **work) {
    int64_t now = dtr__stamp_ns();
    dtr__notifier_visit_at(g->world, now); /* a late rank learns what the others have agreed on */
    if (atomic_load_explicit(&g->world->groups->n_parked, memory_order_relaxed) > 0) {
        dtr__groups_sweep(g->world);
    }
    if (others_have_failed(g)) {
        dtr__call_site_drop();
        return dtr__group_broken(g);
    }
    if (dtr__group_is_closing(g)) {
        dtr__call_site_drop();
        return dtr__group_closing(g, dtr__kind_entry(r->kind));
    }
    return r->kind == DTR__K_BATCH ? issue_batch(g, r, now, work) : issue(g, r, now, work);
}

static bool issue_again(dtr_group *g, const dtr__request *r, dtr_work **work, dtr_status *s) {
    return work == NULL ? dtr__fast_path_call(g, r, s) : dtr__fast_path_issue(g, r, work, s);
}

static dtr_status issue_in_turn(dtr_group *g, const dtr__request *r, dtr_work **work) {
    dtr_world *world = g->world;
    char site[64];
    dtr_status s = dtr__turn_begin(world, dtr__kind_entry(r->kind),
                                   dtr__call_site_peek(r->return_address, site, sizeof site));
    if (s < 0) {
        dtr__call_site_drop();
        return s;
    }
    if (!issue_again(g, r, work, &s)) {
        s = issue_live(g, r, work);
    }
    dtr__turn_end(world);
    return s;
}

dtr_status dtr__coll_issue(dtr_group *g, const dtr__request *r, dtr_work **work) {
    dtr_status s;
    if (g == NULL || g->magic != DTR__GROUP_MAGIC || dtr__is_forked()) {
        return refuse_handle(g, r, work);
    }
    if (g->world->turn != NULL) {
        return issue_in_turn(g, r, work);
    }
    return issue_again(g, r, work, &s) ? s : issue_live(g, r, work);
}
