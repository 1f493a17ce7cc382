/* Works: their memory, how they end, and the calls of dtr/work.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/call_site.h"
#include "core/team.h"
#include "engine/engine.h"
#include "engine/turn.h"
#include "kernels/user_ops.h"
#include "recorder/counters.h"
#include "wait.h"

enum { KEEP_FREE = 256 };

/* ---- memory ---- */

dtr__pool *dtr__pool_new(void) {
    dtr__pool *pool = calloc(1, sizeof *pool);
    if (pool != NULL) {
        atomic_init(&pool->refs, 1);
        pthread_mutex_init(&pool->lock, NULL);
    }
    return pool;
}

static void pool_unref(dtr__pool *pool) {
    if (atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) == 1) {
        pthread_mutex_destroy(&pool->lock);
        dtr__error_copy_free(pool->broken);
        free(pool);
    }
}

static void work_free(dtr_work *w) {
    dtr__pool *pool = w->memory.pool;
    free(w->memory.arrays);
    free(w);
    pool_unref(pool);
}

void dtr__works_free(dtr_work *list) {
    while (list != NULL) {
        dtr_work *next = list->next;
        work_free(list);
        list = next;
    }
}

/* What an idle list begins with once the group is gone. */
static dtr_work closed;

/* All idle works at once, so that nobody can be in the midst of taking the first one. */
static dtr_work *take_idle(dtr__pool *pool) {
    if (atomic_load_explicit(&pool->idle, memory_order_relaxed) == NULL) {
        return NULL;
    }
    atomic_store_explicit(&pool->n_idle, 0, memory_order_relaxed);
    return atomic_exchange_explicit(&pool->idle, NULL, memory_order_acquire);
}

/* The number is a rough one where several threads give back at once. */
static bool give_idle(dtr__pool *pool, dtr_work *w) {
    const int n = atomic_load_explicit(&pool->n_idle, memory_order_relaxed);
    dtr_work *first = atomic_load_explicit(&pool->idle, memory_order_relaxed);
    if (n >= KEEP_FREE) {
        return false;
    }
    atomic_store_explicit(&pool->n_idle, n + 1, memory_order_relaxed);
    do {
        if (first == &closed) {
            return false;
        }
        w->next = first;
    } while (!atomic_compare_exchange_weak_explicit(&pool->idle, &first, w, memory_order_release,
                                                    memory_order_relaxed));
    return true;
}

void dtr__pool_close(dtr__pool *pool) {
    dtr_work *idle = atomic_exchange_explicit(&pool->idle, &closed, memory_order_acquire);
    dtr__works_free(idle);
    pthread_mutex_lock(&pool->lock);
    idle = pool->taken;
    pool->taken = NULL;
    pthread_mutex_unlock(&pool->lock);
    dtr__works_free(idle);
    pool_unref(pool);
}

dtr_work *dtr__work_new(dtr__pool *pool, int refs) {
    pthread_mutex_lock(&pool->lock);
    dtr_work *w = pool->taken != NULL ? pool->taken : take_idle(pool);
    pool->taken = w != NULL ? w->next : NULL;
    pthread_mutex_unlock(&pool->lock);
    if (w == NULL) {
        w = calloc(1, sizeof *w);
        if (w == NULL) {
            return NULL;
        }
        w->memory.pool = pool;
        atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
    }
    return dtr__work_begin_life(w, refs);
}

dtr_work *dtr__works_take_idle(dtr__group_engine *e) {
    return take_idle(e->pool);
}

void dtr__work_unref(dtr_work *w) {
    /* Who has the last reference needs no locked instruction to give it back. */
    if (atomic_load_explicit(&w->refs, memory_order_acquire) != 1 &&
        atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    dtr__pool *pool = w->memory.pool;
    if (w->error != NULL && w->error != pool->broken) {
        dtr__error_copy_free(w->error);
    }
    w->error = NULL;
    dtr__work_give_op(w);
    if (w->composite != NULL) {
        w->composite->free(w->composite);
        w->composite = NULL;
    }
    w->magic = 0;
    if (!give_idle(pool, w)) {
        work_free(w);
    }
}

static void *reserve(dtr_work *w, size_t nbytes) {
    if (w->memory.size < nbytes) {
        void *p = realloc(w->memory.arrays, nbytes);
        if (p == NULL) {
            return NULL;
        }
        w->memory.arrays = p;
        w->memory.size = nbytes;
    }
    return w->memory.arrays;
}

bool dtr__work_reserve_counts(dtr_work *w, int size) {
    return reserve(w, 2 * (size_t)size * sizeof(size_t)) != NULL;
}

bool dtr__work_reserve_batch(dtr_work *w, size_t n) {
    return reserve(w, n * (sizeof(dtr_p2p) + sizeof(uint64_t))) != NULL;
}

bool dtr__work_own_arrays(dtr_work *w, int size) {
    dtr__call *c = &w->call;
    size_t n = (size_t)size, counts = (c->in_counts != NULL) + (c->out_counts != NULL);
    if (c->kind == DTR__K_BATCH) {
        dtr_p2p *batch = reserve(w, c->n_batch * (sizeof *batch + sizeof(uint64_t)));
        if (batch == NULL) {
            return false;
        }
        c->batch = memcpy(batch, c->batch, c->n_batch * sizeof *batch);
    } else if (counts > 0) {
        size_t *own = reserve(w, counts * n * sizeof *own);
        if (own == NULL) {
            return false;
        }
        if (c->in_counts != NULL) {
            c->in_counts = memcpy(own, c->in_counts, n * sizeof *own);
            own += n;
        }
        if (c->out_counts != NULL) {
            c->out_counts = memcpy(own, c->out_counts, n * sizeof *own);
        }
    }
    return true;
}

/* ---- the end of a work ---- */

bool dtr__work_end_locked(dtr_work *w, dtr_status s, dtr__error_copy *error, dtr__queue *called,
                          int64_t *now) {
    dtr_group *g = w->group;
    *(w->prev != NULL ? &w->prev->next : &g->engine->works.head) = w->next;
    *(w->next != NULL ? &w->next->prev : &g->engine->works.tail) = w->prev;
    if (s == DTR_OK && w->input.status != DTR_OK) {
        s = w->input.status;
    } else {
        if (w->error != NULL) {
            dtr__error_copy_free(w->error);
        }
        w->error = error;
    }
    w->status = s;
    dtr__work_give_op(w);
    if (s < 0) {
        atomic_fetch_add_explicit(&g->count.errors, 1, memory_order_relaxed);
    }
    w->report.wanted = g->engine->hook.fn != NULL && w->seq != 0;
    if (!w->inline_call || w->report.wanted) {
        w->report.ended_ns = *now = *now != 0 ? *now : dtr__stamp_ns();
    }
    dtr__work_mark_end(w, s);
    if (w->inline_call && w->report.wanted) {
        atomic_fetch_add_explicit(&g->engine->open_works, 1, memory_order_relaxed);
    }
    atomic_store_explicit(&w->ended, 1, memory_order_release);
    if (w->callbacks != NULL || w->report.wanted) {
        if (!w->inline_call) { /* else its caller waits until it is done */
            atomic_fetch_add_explicit(&w->refs, 1, memory_order_relaxed);
        }
        w->next = NULL;
        *(called->tail != NULL ? &called->tail->next : &called->head) = w;
        called->tail = w;
        return false;
    }
    const bool counted = !w->inline_call;
    atomic_store_explicit(&w->done, 1, memory_order_release); /* the handle may be released now */
    return counted;
}

bool dtr__work_end(dtr_work *w, dtr_status s, dtr__error_copy *error, dtr__queue *called) {
    dtr_group *g = w->group;
    pthread_mutex_lock(&g->engine->queue_lock);
    bool mine = !atomic_load_explicit(&w->ended, memory_order_relaxed);
    int64_t now = 0;
    if (mine && dtr__work_end_locked(w, s, error, called, &now)) {
        atomic_fetch_sub_explicit(&g->engine->open_works, 1, memory_order_release);
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    if (!mine && error != NULL && error != w->memory.pool->broken) {
        dtr__error_copy_free(error);
    }
    return mine;
}

/* ---- callbacks ---- */

static _Thread_local __attribute__((tls_model("initial-exec"))) dtr__callback_frame *innermost;

bool dtr__in_callback(const dtr_world *world) {
    for (const dtr__callback_frame *i = innermost; i != NULL; i = i->outer) {
        if (i->world == world) {
            return true;
        }
    }
    return dtr__user_op_depth > 0;
}

void dtr__callback_begin(dtr__callback_frame *frame, const dtr_world *world) {
    *frame = (dtr__callback_frame){ world, innermost };
    innermost = frame;
    dtr__inside("a completion callback");
}

void dtr__callback_end(const dtr__callback_frame *frame) {
    dtr__inside(NULL);
    innermost = frame->outer;
}

static void call_back(dtr_work *w, void (*fn)(dtr_work *, dtr_status, void *), void *arg) {
    dtr__callback_frame frame;
    dtr__callback_begin(&frame, w->world);
    fn(w, w->status, arg);
    dtr__callback_end(&frame);
}

/* The program's functions are not called by a thread that may not call MPI, as they may. */
static void keep_for_later(const dtr__queue *called) {
    for (dtr_work *w = called->head, *following; w != NULL; w = following) {
        dtr__group_engine *e = w->group->engine;
        following = w->next;
        pthread_mutex_lock(&e->queue_lock);
        w->next = NULL;
        *(e->later.tail != NULL ? &e->later.tail->next : &e->later.head) = w;
        e->later.tail = w;
        atomic_store_explicit(&e->has_later, true, memory_order_release);
        pthread_mutex_unlock(&e->queue_lock);
    }
}

void dtr__callbacks_run(const dtr__queue *called) {
    if (called->head != NULL && dtr__progress_only_helps(called->head->world)) {
        keep_for_later(called);
        return;
    }
    for (dtr_work *w = called->head, *following; w != NULL; w = following) {
        dtr_group *g = w->group;
        const bool inlined = w->inline_call;
        following = w->next;
        if (g->world->mpi.thread_level == MPI_THREAD_MULTIPLE) { /* else it may be another's turn */
            dtr__work_let_go(w);
        }
        if (w->report.wanted) {
            dtr__hook_run(w);
        }
        for (dtr__callback *c = w->callbacks, *next; c != NULL; c = next) {
            next = c->next;
            call_back(w, c->fn, c->arg);
            free(c);
        }
        w->callbacks = NULL;
        atomic_store_explicit(&w->done, 1, memory_order_release);
        atomic_fetch_sub_explicit(&g->engine->open_works, 1, memory_order_release);
        if (!inlined) {
            dtr__work_unref(w);
        }
    }
}

/* ---- dtr/work.h ---- */

static dtr_status check_handle(const dtr_work *w, const char *entry) {
    DTR_TRY(dtr__fork_check(entry));
    DTR_REQUIRE(w->magic == DTR__WORK_MAGIC, NULL, DTR_ERR_ARG,
                "%s: the handle is no work, or has been released", entry);
    return DTR_OK;
}

dtr_status dtr__work_result(const dtr_work *w) {
    return w->status < 0 ? dtr__error_restore(w->error, w->status) : w->status;
}

/* Inside a callback of the work itself the status is final, though not all callbacks have run. */
bool dtr__work_is_final(const dtr_work *w) {
    return dtr__work_is_done(w) || (dtr__in_callback(w->world) &&
                                    atomic_load_explicit(&w->ended, memory_order_acquire) != 0);
}

/* What is over needs no communication, and its world may be gone. */
dtr__trace *dtr__work_trace(const dtr_work *w) {
    const bool under_way = w != NULL && w->magic == DTR__WORK_MAGIC && !dtr__work_is_done(w);
    return under_way ? w->world->diagnosis.trace : NULL;
}

/* The group may end meanwhile, so the operation stands for it. */
static const char *traced_work(const dtr_work *w, char text[48]) {
    snprintf(text, 48, "%s #%llu", dtr__kind_name(w->call.kind), (unsigned long long)w->seq);
    return text;
}

/* A work handed out by a coalescing scope stands for the whole scope and begins with its end. */
dtr_status dtr__work_check_recorded(const dtr_work *w, const char *entry) {
    if (atomic_load_explicit(&w->scope.recording, memory_order_acquire) == DTR__RECORDING_NOT) {
        return DTR_OK;
    }
    dtr__error_context ctx = { w->world, "coalesced", w->group->name };
    return DTR_FAIL(&ctx, DTR_ERR_STATE,
                    "%s: the work belongs to a coalescing scope of group '%s' that is still open; "
                    "call dtr_coalesce_end first",
                    entry, w->group->name);
}

bool dtr__work_is_captured(const dtr_work *w) {
    return atomic_load_explicit(&w->scope.recording, memory_order_acquire) == DTR__RECORDING_GRAPH;
}

/* Its group may have ended, so neither is named. */
dtr_status dtr__work_refuse_captured(const dtr_work *w, const char *entry) {
    return DTR_FAIL(
        NULL, DTR_ERR_STATE,
        "%s: %s #%llu is part of a captured graph, which runs when the program launches "
        "it and as often; wait for the stream the graph is launched on",
        entry, dtr__kind_name(w->call.kind), (unsigned long long)w->seq);
}

static bool stream_waits(dtr_work *w, void *stream, dtr_status *s) {
    return w->backend->stream_wait != NULL && w->backend->stream_wait(w, stream, s);
}

/* Inside the capture: what the stream is given next comes after the operation in the graph too. */
static dtr_status wait_captured(dtr_work *w, const dtr__waiter *how) {
    dtr_status s = DTR_OK;
    if (how->host) {
        return dtr__work_refuse_captured(w, how->entry);
    }
    (void)stream_waits(w, how->stream, &s);
    DTR_REQUIRE(s == DTR_OK, NULL, DTR_ERR_STATE,
                "%s: %s #%llu is part of a captured graph, and only a stream of the same capture "
                "can wait for it, before the capture ends",
                how->entry, dtr__kind_name(w->call.kind), (unsigned long long)w->seq);
    return DTR_OK;
}

void dtr__work_set_limit(dtr_work *w, double timeout_s, double from) {
    atomic_store_explicit(&w->limit.seconds, timeout_s, memory_order_relaxed);
    atomic_store_explicit(&w->limit.deadline, from + timeout_s, memory_order_relaxed);
    atomic_store(&w->group->engine->sooner, true); /* nobody may wait on the host for this one */
}

double dtr__work_limit_counts_from(const dtr_work *w, bool host) {
    const bool on_stream = !host && w->call.device.type != DTR_CPU;
    return on_stream ? dtr__now_at(w->call.issued_ns) : dtr__now();
}

/* A wait has no call site: the message names the operation's. */
dtr_status dtr__work_take_turn(const dtr_work *w, const char *entry) {
    char call[64], site[64];
    if (w->world->turn == NULL) {
        return DTR_OK;
    }
    snprintf(call, sizeof call, "%s of the %s", entry, dtr__kind_name(w->call.kind));
    return dtr__turn_begin(w->world, call, dtr__call_site_text(&w->call, site, sizeof site));
}

dtr_status dtr__work_check_callback(const dtr_work *w, const char *entry) {
    if (!dtr__in_callback(w->world)) {
        return DTR_OK;
    }
    char title[256];
    dtr__error_context ctx = dtr__work_context(w);
    return DTR_FAIL(
        &ctx, DTR_ERR_STATE,
        "%s of %s inside a completion callback, or an operator, of the same world would "
        "block the thread that moves it; use dtr_work_test or another callback",
        entry, dtr__work_title(w, title, sizeof title));
}

static dtr_status wait_unfinished(dtr_work *w, double timeout_s, const dtr__waiter *how) {
    const char *entry = how->entry;
    DTR_TRY(dtr__work_check_recorded(w, entry));
    if (timeout_s == 0) {
        dtr__group_try_pass(w->group);
        if (!dtr__work_is_final(w)) {
            return DTR_IN_PROGRESS;
        }
        dtr__work_let_go(w);
        return dtr__work_result(w);
    }
    const bool on_stream = !how->host && w->call.device.type != DTR_CPU;
    if (timeout_s > 0 && on_stream) {
        dtr__work_set_limit(w, timeout_s, dtr__work_limit_counts_from(w, false));
    }
    dtr_status s = DTR_OK;
    if (on_stream && stream_waits(w, how->stream, &s)) {
        return s;
    }
    DTR_TRY(dtr__work_check_callback(w, entry));
    if (timeout_s > 0) {
        dtr__work_set_limit(w, timeout_s, dtr__now());
    }
    bool counts = w->world->recording.counters != NULL;
    int64_t began = counts ? dtr__now_ns() : 0;
    dtr__work_block_among(w, how->others, how->n_others);
    if (counts) {
        dtr__count_waited(w->world, dtr__now_ns() - began);
    }
    return dtr__work_result(w);
}

dtr_status dtr__work_wait(dtr_work *w, double timeout_s, const dtr__waiter *how) {
    const char *entry = how->entry;
    if (w == NULL) {
        return DTR_OK;
    }
    DTR_TRY(check_handle(w, entry));
    DTR_TRY(dtr__limit_check(NULL, entry, timeout_s));
    if (dtr__work_is_captured(w)) {
        return wait_captured(w, how);
    }
    if (dtr__work_is_final(w)) {
        dtr__work_let_go(w);
        return dtr__work_result(w);
    }
    dtr_world *world = w->world;
    DTR_TRY(dtr__work_take_turn(w, entry));
    dtr_status s = wait_unfinished(w, timeout_s, how);
    if (world->turn != NULL) {
        dtr__turn_end(world);
    }
    return s;
}

void *dtr__work_own_stream(const dtr_work *w) {
    return w != NULL && w->magic == DTR__WORK_MAGIC ? w->call.stream : NULL;
}

dtr_status dtr_work_wait(dtr_work *work, double timeout_s) {
    return DTR_TRACED(
        dtr__work_trace(work), "dtr_work_wait", traced_work(work, (char[48]){ "" }),
        dtr__work_wait(work, timeout_s,
                       &(dtr__waiter){ "dtr_work_wait", .stream = dtr__work_own_stream(work) }));
}

dtr_status dtr_work_wait_stream(dtr_work *work, void *stream) {
    return DTR_TRACED(
        dtr__work_trace(work), "dtr_work_wait_stream", traced_work(work, (char[48]){ "" }),
        dtr__work_wait(work, -1, &(dtr__waiter){ "dtr_work_wait_stream", .stream = stream }));
}

dtr_status dtr_work_synchronize(dtr_work *work, double timeout_s) {
    return DTR_TRACED(
        dtr__work_trace(work), "dtr_work_synchronize", traced_work(work, (char[48]){ "" }),
        dtr__work_wait(work, timeout_s, &(dtr__waiter){ "dtr_work_synchronize", .host = true }));
}

static dtr_status work_test(dtr_work *w, bool *done) {
    DTR_REQUIRE(done != NULL, NULL, DTR_ERR_ARG, "dtr_work_test: done is NULL");
    if (w == NULL) {
        *done = true;
        return DTR_OK;
    }
    DTR_TRY(check_handle(w, "dtr_work_test"));
    if (dtr__work_is_captured(w)) {
        return dtr__work_refuse_captured(w, "dtr_work_test");
    }
    if (!dtr__work_is_final(w)) {
        dtr_world *world = w->world;
        DTR_TRY(dtr__work_check_recorded(w, "dtr_work_test"));
        DTR_TRY(dtr__work_take_turn(w, "dtr_work_test"));
        dtr__group_try_pass(w->group);
        if (world->turn != NULL) {
            dtr__turn_end(world);
        }
    }
    *done = dtr__work_is_final(w);
    if (*done) {
        dtr__work_let_go(w);
    }
    return *done ? dtr__work_result(w) : DTR_OK;
}

dtr_status dtr_work_test(dtr_work *w, bool *done) {
    return DTR_TRACED(dtr__work_trace(w), "dtr_work_test", traced_work(w, (char[48]){ "" }),
                      work_test(w, done));
}

uint64_t dtr_work_seq(const dtr_work *w) {
    return w != NULL && w->magic == DTR__WORK_MAGIC ? w->seq : 0;
}

int dtr_work_source(const dtr_work *w) {
    bool received = w != NULL && w->magic == DTR__WORK_MAGIC && w->call.kind == DTR__K_RECV &&
                    dtr__work_is_final(w) && w->status == DTR_OK;
    return received ? atomic_load_explicit(&w->source, memory_order_relaxed) : -1;
}

/* The clock of records is not the same to the nanosecond on two threads. */
double dtr_work_duration(const dtr_work *w) {
    bool ended = w != NULL && w->magic == DTR__WORK_MAGIC && !dtr__work_is_captured(w) &&
                 dtr__work_is_final(w);
    return ended ? fmax((double)(w->report.ended_ns - w->call.issued_ns) * 1e-9, 0) : NAN;
}

dtr_status dtr_work_on_complete(dtr_work *w, void (*fn)(dtr_work *, dtr_status, void *),
                                void *arg) {
    DTR_REQUIRE(w != NULL, NULL, DTR_ERR_ARG, "dtr_work_on_complete: work is NULL");
    DTR_REQUIRE(fn != NULL, NULL, DTR_ERR_ARG, "dtr_work_on_complete: fn is NULL");
    DTR_TRY(check_handle(w, "dtr_work_on_complete"));
    if (dtr__work_is_captured(w)) {
        return dtr__work_refuse_captured(w, "dtr_work_on_complete");
    }
    if (!dtr__work_is_done(w)) {
        dtr__callback *c = malloc(sizeof *c);
        DTR_REQUIRE(c != NULL, NULL, DTR_ERR_NOMEM, "dtr_work_on_complete: out of memory");
        *c = (dtr__callback){ NULL, fn, arg };
        pthread_mutex_lock(&w->group->engine->queue_lock);
        bool open = !atomic_load_explicit(&w->ended, memory_order_relaxed);
        if (open) {
            dtr__callback **end = &w->callbacks;
            while (*end != NULL) {
                end = &(*end)->next;
            }
            *end = c;
        }
        if (open) { /* it may not know of it yet */
            dtr__progress_wake(w->world);
        }
        pthread_mutex_unlock(&w->group->engine->queue_lock);
        if (open) {
            return DTR_OK;
        }
        free(c);
    }
    call_back(w, fn, arg);
    return DTR_OK;
}

dtr_status dtr_work_release(dtr_work *w) {
    if (w != NULL) {
        DTR_TRY(check_handle(w, "dtr_work_release"));
        dtr__work_unref(w);
    }
    return DTR_OK;
}
