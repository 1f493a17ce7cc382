/* The life of a group's engine: open, drain, close. */
#include <math.h>
#include <string.h>

#include "control/vote.h"
#include "core/team.h"
#include "engine/engine.h"

dtr_status dtr__engine_open(dtr_group *g, dtr_group *world_group) {
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    dtr__pool *pool = dtr__pool_new();
    DTR_REQUIRE(pool != NULL, &ctx, DTR_ERR_NOMEM, "out of memory for group '%s'", g->name);
    pthread_mutex_init(&g->engine->queue_lock, NULL);
    g->engine->progress = g->world->mpi.thread_level == MPI_THREAD_MULTIPLE
                              ? &g->engine->progress_lock
                              : &world_group->engine->progress_lock;
    g->engine->pool = pool;
    g->engine->next_deadline = INFINITY;
    g->engine->poller.poll = dtr__group_poll;
    g->engine->poller.without_mpi = true;
    g->engine->failures = dtr__failure_record_mark(g->world, g->uid);
    g->engine->open = true;
    dtr__progress_add(g->world, &g->engine->poller);
    return DTR_OK;
}

static bool unfinished(const dtr_group *g) {
    return atomic_load_explicit(&g->engine->open_works, memory_order_acquire) > 0 ||
           atomic_load_explicit(&g->engine->active, memory_order_acquire) > 0;
}

bool dtr__engine_at_rest(dtr_group *g) {
    if (unfinished(g) || !dtr__progress_lock_try(g->engine->progress)) {
        return false;
    }
    pthread_mutex_lock(&g->engine->queue_lock);
    bool rests = !unfinished(g) && g->engine->works.head == NULL;
    pthread_mutex_unlock(&g->engine->queue_lock);
    dtr__progress_lock_release(g->engine->progress);
    return rests;
}

/* Names what is unfinished when a group is destroyed. */
static void abort_unfinished(dtr_group *g, double limit_s) {
    char title[256] = "none";
    int n = 0;
    pthread_mutex_lock(&g->engine->queue_lock);
    for (dtr_work *w = g->engine->works.head; w != NULL; w = w->next) {
        if (n++ == 0) {
            dtr__work_title(w, title, sizeof title);
        }
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    (void)DTR_FAIL(
        &ctx, DTR_ERR_ABORTED,
        "group '%s' was destroyed on rank %d while %d operation%s had not finished after "
        "%g s; the oldest: %s",
        g->name, g->rank, n, n == 1 ? "" : "s", limit_s, title);
    dtr__group_break(g, DTR_ERR_ABORTED);
}

double dtr__engine_patience(const dtr_group *g, double left_s) {
    enum { LEAST_S = 1, BROKEN_S = 5 };
    bool broken = atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK;
    return fmax(broken ? fmin(g->timeout_s, BROKEN_S) : left_s, LEAST_S);
}

/* Nothing of the group may be touched any more by this thread. */
static dtr_status leave(dtr_group *g, double waited_s) {
    dtr__error_context ctx = { .world = g->world,
                               .operation = "dtr_group_destroy",
                               .group = g->name };
    const bool own = dtr__progress_is_at(g->world, &g->engine->poller);
    const char *inside = own ? dtr__progress_inside(g->world) : NULL;
    if (own) {
        dtr__progress_give_up(g->world);
    } else {
        dtr__progress_give_up_for_good(g->world);
    }
    return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                    "dtr_group_destroy of group '%s' on rank %d: %s has been inside %.*s for more "
                    "than %g s; what it uses is left in place, and the world can only be abandoned",
                    g->name, g->rank, own ? "the progress thread" : "a thread of the program",
                    inside != NULL ? (int)strcspn(inside, "(") : 64,
                    inside != NULL ? inside : "the group's transport", waited_s);
}

dtr_status dtr__engine_drain(dtr_group *g, double limit_s) {
    enum { STUCK_S = 1 };
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    DTR_REQUIRE(!dtr__in_callback(g->world), &ctx, DTR_ERR_STATE,
                "group '%s' cannot be destroyed inside a completion callback of its world",
                g->name);
    atomic_fetch_or(&g->aside, DTR__CLOSING);
    double end = dtr__now() + limit_s, stuck = INFINITY;
    if (atomic_load_explicit(&g->calls.scope, memory_order_acquire) != NULL) {
        g->calls.drop_scope(g);
    }
    bool timed_out = false;
    dtr__backoff backoff = { 0 };
    while (unfinished(g)) {
        if (dtr__group_try_pass(g)) {
            backoff = (dtr__backoff){ 0 };
            continue;
        }
        dtr__progress_poll_all(g->world);
        double now = dtr__now();
        if (atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
            stuck = isinf(stuck) ? now + STUCK_S : stuck;
            if (now >= stuck) {
                DTR_WARN(g->world,
                         "group '%s': a thread is still inside the transport; what it uses is left "
                         "in place",
                         g->name);
                break;
            }
        } else if (now >= end) {
            timed_out = true;
            abort_unfinished(g, limit_s);
        }
        dtr__backoff_pause(g->world, &backoff);
    }
    return timed_out ? dtr__error_restore(g->error, DTR_ERR_TIMEOUT) : DTR_OK;
}

dtr_status dtr__engine_close(dtr_group *g, double limit_s) {
    dtr__backoff backoff = { 0 };
    dtr__queue called = { NULL, NULL };
    const double began = dtr__now();
    if (!dtr__progress_remove(g->world, &g->engine->poller, limit_s) ||
        !dtr__progress_lock_acquire_within(g->world, g->engine->progress,
                                           fmax(began + limit_s - dtr__now(), 0))) {
        return leave(g, limit_s);
    }
    while (g->engine->collectives.head != NULL || g->engine->p2p.head != NULL) {
        dtr__group_pass(g, &called);
        if (atomic_load_explicit(&g->status, memory_order_acquire) == DTR_OK) {
            dtr__progress_lock_release(g->engine->progress);
            abort_unfinished(g, 0);
            dtr__progress_lock_acquire(g->world, g->engine->progress);
        }
    }
    g->engine->open = false;
    if (g->engine->spare != NULL) {
        atomic_store_explicit(&g->engine->spare->refs, 1, memory_order_relaxed);
        dtr__work_unref(g->engine->spare);
        g->engine->spare = NULL;
    }
    if (g->calls.fast_paths != NULL) {
        g->calls.free_fast_paths(g);
    }
    dtr__progress_lock_release(g->engine->progress);
    dtr__callbacks_run(&called);
    while (atomic_load_explicit(&g->engine->waiters, memory_order_acquire) > 0) {
        dtr__backoff_pause(g->world, &backoff);
    }
    for (dtr__finish *f = g->engine->deferred, *next; f != NULL; f = next) {
        next = f->next;
        (void)f->fn(f, (dtr_status)atomic_load_explicit(&g->status, memory_order_relaxed));
    }
    g->engine->deferred = NULL;
    dtr__pool_close(g->engine->pool);
    g->engine->pool = NULL;
    return DTR_OK;
}
