/* Communicators: their streams, events and end, and what NCCL's codes mean. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/thread.h"
#include "core/signature.h"
#include "core/team.h"
#include "failure/mismatch.h"
#include "failure/notify.h"
#include "nccl_internal.h"
#include "topology/bind.h"

enum { LOCK_TRIES = 1000 }; /* of a millisecond, for a native call that does not return */

void dtr__nccl_nap_ms(void) {
    struct timespec t = { 0, 1000000 };
    nanosleep(&t, NULL);
}

/* ---- making and freeing ---- */

static void free_events(const dtr__nccl_comm *c, dtr__nccl_event *e) {
    for (dtr__nccl_event *next; e != NULL; e = next) {
        next = e->next;
        (void)c->cuda->event_free(c->device, e->event);
        free(e);
    }
}

static void comm_free(dtr__nccl_comm *c) {
    dtr__nccl_blocks_drop(c, false);
    dtr__nccl_window_sets_free(c);
    free_events(c, c->idle);
    free_events(c, c->kept);
    dtr__nccl_nan_checks_free(c);
    for (int i = 0; i < c->n_scratch; i++) {
        (void)c->cuda->free(c->device, c->scratch[i]);
    }
    if (c->stream != NULL) {
        (void)c->cuda->stream_free(c->device, c->stream);
    }
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->pool_lock);
    dtr__nccl_graphs_unref(c->graphs);
    free(c->messages);
    free(c);
}

void dtr__nccl_comm_unref(dtr__nccl_comm *c) {
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1) {
        comm_free(c);
    }
}

static dtr_status fill(struct dtr__nccl *n, dtr__nccl_comm *c) {
    dtr_group *g = n->group;
    bool pair = c->low >= 0;
    c->group = g;
    c->ops = n->ops;
    c->cuda = n->cuda;
    c->rank = !pair ? g->rank : g->rank == c->low ? 0 : 1;
    c->size = pair ? 2 : g->size;
    c->owner = n;
    c->local = n->copies;
    c->ready = c->local;
    atomic_init(&c->refs, 1);
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->pool_lock, NULL);
    c->messages = calloc(2 * (size_t)c->size, sizeof *c->messages);
    c->graphs = c->local ? NULL : calloc(1, sizeof *c->graphs);
    DTR_REQUIRE(c->messages != NULL && (c->local || c->graphs != NULL), NULL, DTR_ERR_NOMEM,
                "out of memory for a communicator of group '%s'", g->name);
    if (c->graphs != NULL) {
        atomic_init(&c->graphs->refs, 1);
    }
    DTR_CUDA_TRY(c->cuda->stream_new(c->device, n->high_priority, &c->stream), DTR_ERR_CUDA);
    return dtr__nccl_nan_checks_ahead(c);
}

dtr__nccl_comm *dtr__nccl_comm_find(struct dtr__nccl *n, int device, int low, int high) {
    pthread_mutex_lock(&n->lock);
    dtr__nccl_comm *c = n->comms;
    while (c != NULL && (c->device != device || c->low != low || c->high != high || c->replaced)) {
        c = c->next;
    }
    pthread_mutex_unlock(&n->lock);
    return c;
}

dtr_status dtr__nccl_comm_of(struct dtr__nccl *n, int device, int low, int high,
                             dtr__nccl_comm **comm) {
    dtr__nccl_comm *c = dtr__nccl_comm_find(n, device, low, high);
    if (c == NULL) {
        c = calloc(1, sizeof *c);
        DTR_REQUIRE(c != NULL, NULL, DTR_ERR_NOMEM,
                    "out of memory for a communicator of group '%s'", n->group->name);
        c->device = device;
        c->low = low;
        c->high = high;
        dtr_status s = fill(n, c);
        if (s < 0) {
            comm_free(c);
            return s;
        }
        if (!c->local) {
            dtr__bind_check_gpu(n->group->world, device);
        }
        c->number = low < 0 ? n->made++ : 0;
        pthread_mutex_lock(&n->lock);
        c->next = n->comms;
        n->comms = c; /* from here on an abort sees it */
        pthread_mutex_unlock(&n->lock);
    }
    *comm = c;
    return DTR_OK;
}

/* ---- events ---- */

dtr_status dtr__nccl_event_take(dtr__nccl_comm *c, dtr__nccl_event **event) {
    pthread_mutex_lock(&c->pool_lock);
    dtr__nccl_event *e = c->idle;
    if (e != NULL) {
        c->idle = e->next;
    }
    pthread_mutex_unlock(&c->pool_lock);
    if (e == NULL) {
        e = calloc(1, sizeof *e);
        DTR_REQUIRE(e != NULL, NULL, DTR_ERR_NOMEM, "out of memory for an event");
        int code = c->cuda->event_new(c->device, c->group->world->recording.timing, &e->event);
        if (code != 0) {
            free(e);
            DTR_CUDA_TRY(code, DTR_ERR_CUDA);
        }
    }
    *event = e;
    return DTR_OK;
}

static void put_into(dtr__nccl_comm *c, dtr__nccl_event **list, dtr__nccl_event *e) {
    pthread_mutex_lock(&c->pool_lock);
    e->next = *list;
    *list = e;
    pthread_mutex_unlock(&c->pool_lock);
}

void dtr__nccl_event_give(dtr__nccl_comm *c, dtr__nccl_event *e) {
    put_into(c, &c->idle, e);
}

void dtr__nccl_event_keep(dtr__nccl_comm *c, dtr__nccl_event *e) {
    put_into(c, &c->kept, e);
}

/* ---- giving up ---- */

/* What NCCL is given; a call that makes the communicator sets it at its beginning. */
static void *native(const dtr__nccl_comm *c) {
    return __atomic_load_n(&c->handle, __ATOMIC_ACQUIRE);
}

/* A native call that does not return keeps the lock: after a second the communicator is aborted all
 * the same, which is what ends such a call. One that waits for other ranks need not be waited for.
 */
static bool lock_at_last(dtr__nccl_comm *c, int *tries) {
    while (pthread_mutex_trylock(&c->lock) != 0) {
        const int stage = atomic_load_explicit(&c->apart.stage, memory_order_acquire);
        if (*tries == 0 || (stage == DTR__NCCL_APART_MADE && native(c) != NULL)) {
            return false;
        }
        --*tries;
        dtr__nccl_nap_ms();
    }
    return true;
}

/* Those of a list, in one native group where there are several. */
static void *end_main(void *arg) {
    dtr__nccl_comm *first = arg, *next;
    int tries = LOCK_TRIES;
    for (dtr__nccl_comm *c = first; c != NULL; c = c->with) {
        c->end_locked = lock_at_last(c, &tries);
        dtr__nccl_blocks_drop(c, c->end_locked);
    }
    bool together = first->with != NULL && first->ops->group_start() == 0;
    for (const dtr__nccl_comm *c = first; c != NULL; c = c->with) {
        if (native(c) != NULL) {
            (void)c->ops->abandon(c->device, native(c));
        }
    }
    if (together) {
        (void)first->ops->group_end(first->device);
    }
    for (const dtr__nccl_comm *c = first; c != NULL; c = c->with) {
        if (c->split != NULL) { /* a child that nobody waited for any more */
            (void)c->ops->abandon(c->device, c->split);
        }
    }
    for (dtr__nccl_comm *c = first; c != NULL; c = next) {
        next = c->with;
        if (c->end_locked) {
            c->handle = NULL;
            pthread_mutex_unlock(&c->lock);
        }
        atomic_store_explicit(&c->ended, 1, memory_order_release);
        dtr__nccl_comm_unref(c);
    }
    return NULL;
}

/* False: it has been given up before, or there is nothing to end. */
static bool give_up(dtr__nccl_comm *c) {
    if (c->local || atomic_exchange(&c->aborted, 1) != 0) {
        return false;
    }
    dtr__nccl_blocks_leave(c);
    atomic_store(&c->aborted_at, dtr__now());
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return true;
}

static void start_end(dtr__nccl_comm *first) {
    if (dtr__thread_start(NULL, "", true, end_main, first) != 0) {
        (void)end_main(first);
    }
}

void dtr__nccl_abort(dtr__nccl_comm *c) {
    if (give_up(c)) {
        start_end(c);
    }
}

bool dtr__nccl_ended(const dtr__nccl_comm *c, double limit_s) {
    double end = dtr__now() + limit_s;
    while (dtr__nccl_aborted(c) && atomic_load_explicit(&c->ended, memory_order_acquire) == 0) {
        if (dtr__now() >= end) {
            return false;
        }
        dtr__nccl_nap_ms();
    }
    return true;
}

uint64_t dtr__nccl_helpers(const dtr_group *g) {
    uint64_t left = dtr__group_is_world(g) ? (uint64_t)atomic_load(&g->world->groups->helpers) : 0;
    struct dtr__nccl *n = dtr__nccl_of(g);
    if (n != NULL) {
        pthread_mutex_lock(&n->lock);
        for (const dtr__nccl_comm *c = n->comms; c != NULL; c = c->next) {
            double at = atomic_load(&c->aborted_at);
            left += at > 0 && atomic_load(&c->ended) == 0 && dtr__now() - at >= 1;
        }
        pthread_mutex_unlock(&n->lock);
    }
    return left;
}

static void abort_all(struct dtr__nccl *n) {
    bool together = dtr__nccl_get()->version >= DTR__NCCL_ABORTS;
    dtr__nccl_comm *all = NULL;
    pthread_mutex_lock(&n->lock);
    for (dtr__nccl_comm *c = n->comms; c != NULL; c = c->next) {
        if (give_up(c)) {
            c->with = together ? all : NULL;
            all = c;
            if (!together) {
                start_end(c);
            }
        }
    }
    pthread_mutex_unlock(&n->lock);
    if (together && all != NULL) {
        start_end(all);
    }
}

void dtr__nccl_stop(dtr_group *g, void *state) {
    (void)g;
    abort_all(state);
}

void dtr__nccl_await_stop(dtr_group *g, void *state) {
    struct dtr__nccl *n = state;
    (void)g;
    pthread_mutex_lock(&n->lock);
    const dtr__nccl_comm *c = n->comms; /* they stay until the group ends */
    pthread_mutex_unlock(&n->lock);
    for (; c != NULL; c = c->next) {
        (void)dtr__nccl_ended(c, atomic_load(&c->aborted_at) + 1 - dtr__now());
    }
}

/* ---- the end of a group ---- */

/* The end in good order: all members take part, so NCCL can exchange what it must. An abort does
 * what is left then. */
static void *finalize_main(void *arg) {
    dtr__nccl_comm *c = arg;
    int busy = c->ops->in_progress, code;
    pthread_mutex_lock(&c->lock);
    dtr__nccl_blocks_drop(c, true);
    code = c->ops->finalize(c->device, c->handle);
    pthread_mutex_unlock(&c->lock);
    while (code == busy && dtr__nccl_poll(c, &code) && code == busy) {
        dtr__nccl_nap_ms();
    }
    pthread_mutex_lock(&c->lock);
    if (atomic_load(&c->aborted) == 0) {
        (void)(code == 0 ? c->ops->destroy : c->ops->abandon)(c->device, c->handle);
        c->handle = NULL;
        atomic_store_explicit(&c->ended, 1, memory_order_release);
    }
    pthread_mutex_unlock(&c->lock);
    dtr__nccl_comm_unref(c);
    return NULL;
}

static bool finalize(dtr__nccl_comm *c) {
    if (!c->ready || c->handle == NULL) {
        return true;
    }
    dtr__nccl_blocks_leave(c);
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    if (dtr__thread_start(NULL, "", true, finalize_main, c) != 0) {
        (void)finalize_main(c);
        return true;
    }
    return false;
}

static bool all_ended(struct dtr__nccl *n, double limit_s) {
    double end = dtr__now() + limit_s;
    for (dtr__nccl_comm *c = n->comms; c != NULL; c = c->next) {
        bool begun = !c->local && c->ready && atomic_load(&c->aborted) == 0;
        while (begun && atomic_load_explicit(&c->ended, memory_order_acquire) == 0) {
            if (dtr__now() >= end) {
                return false;
            }
            dtr__nccl_nap_ms();
        }
    }
    return true;
}

/* All members end a communicator together, but for one that is in a graph of the program: NCCL
 * waits for the graph's end, and the thread that aborts it with NCCL. */
static void begin_end(dtr_group *g, dtr__nccl_comm *c) {
    if (dtr__nccl_has_graphs(c)) {
        DTR_WARN(g->world,
                 "group '%s' ends while a graph of CUDA holds operations of it; its communicator "
                 "for cuda:%d stays until the graph is destroyed",
                 g->name, c->device);
        dtr__nccl_abort(c);
    } else {
        (void)finalize(c);
    }
}

void dtr__nccl_close(dtr_group *g, void *state) {
    struct dtr__nccl *n = state;
    /* NCCL ends a communicator together; who takes a released group down by himself aborts it, with
     * nothing under way on any rank. */
    bool healthy = atomic_load(&g->status) == DTR_OK && !g->release.taken, clean = true;
    int left = 0;
    if (healthy) {
        for (dtr__nccl_comm *c = n->comms; c != NULL; c = c->next) {
            begin_end(g, c);
        }
        clean = all_ended(n, g->timeout_cuda_s < 60 ? g->timeout_cuda_s : 60);
    }
    if (!healthy || !clean) {
        abort_all(n);
        const double end = dtr__now() + 1; /* of all together */
        for (dtr__nccl_comm *c = n->comms; c != NULL; c = c->next) {
            left += !dtr__nccl_ended(c, end - dtr__now());
        }
        clean = left == 0;
    }
    if (!clean) {
        atomic_fetch_add(&g->world->groups->helpers, left);
        DTR_WARN(g->world,
                 "group '%s': NCCL does not return from ending a communicator; the thread that "
                 "waits for it is left behind",
                 g->name);
    }
    for (dtr__nccl_comm *c = n->comms, *next; c != NULL; c = next) {
        next = c->next;
        dtr__nccl_comm_unref(c);
    }
    pthread_mutex_destroy(&n->turn);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

/* ---- codes ---- */

dtr_status dtr__nccl_failed(dtr__nccl_comm *c, const dtr_work *w, const char *function, int code) {
    enum { INVALID_ARGUMENT = 4 };
    char title[256] = "making the communicator", version[16];
    dtr_group *g = c->group;
    dtr__error_context ctx = { .world = g->world, .group = g->name };
    if (w != NULL) {
        DTR_TRY(dtr__find_mismatch(w)); /* says more than NCCL can */
        ctx = dtr__work_context(w);
        dtr__work_title(w, title, sizeof title);
    }
    const char *text = c->ops->error_text(code), *more = c->ops->last_error(NULL);
    ctx.native = DTR_NATIVE_NCCL;
    ctx.native_code = code;
    ctx.native_text = text;
    dtr_status s = code == c->ops->remote_error ? DTR_ERR_REMOTE
                   : code == INVALID_ARGUMENT   ? DTR_ERR_ARG
                                                : DTR_ERR_NCCL;
    return DTR_FAIL(&ctx, s,
                    "%s of group '%s' on rank %d, cuda:%d: %s: NCCL error %d (%s)%s%s; NCCL %s",
                    title, g->name, g->rank, c->device, function, code, text,
                    more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "",
                    dtr__nccl_version_text(dtr__nccl_get()->version, version));
}

dtr_status dtr__nccl_pause(dtr_group *g, dtr__backoff *backoff) {
    dtr__notifier_visit(g->world);
    if (atomic_load_explicit(&g->status, memory_order_acquire) != DTR_OK) {
        return dtr__group_broken(g);
    }
    if (!dtr__progress_has_thread(g->world)) {
        dtr__progress_poll_all(g->world);
    }
    dtr__backoff_pause(g->world, backoff);
    return DTR_OK;
}

bool dtr__nccl_enter(dtr__nccl_comm *c) {
    dtr__backoff backoff = { 0 };
    while (!dtr__nccl_aborted(c)) {
        if (pthread_mutex_trylock(&c->lock) == 0) {
            if (!dtr__nccl_aborted(c) && c->handle != NULL) {
                return true;
            }
            pthread_mutex_unlock(&c->lock);
            return false;
        }
        dtr__backoff_pause(NULL, &backoff);
    }
    return false;
}

static void make_and_end(dtr__nccl_comm *c) {
    int code = c->ops->in_progress;
    pthread_mutex_lock(&c->lock);
    if (!dtr__nccl_aborted(c)) {
        code = c->apart.make(c);
    }
    pthread_mutex_unlock(&c->lock);
    c->apart.code = code;
    atomic_store_explicit(&c->apart.stage, DTR__NCCL_APART_ENDED, memory_order_release);
}

static void *apart_main(void *arg) {
    dtr__nccl_comm *c = arg, *into = c->apart.into; /* the next call may be another's */
    make_and_end(c);
    if (into != NULL) {
        dtr__nccl_comm_unref(into);
    }
    dtr__nccl_comm_unref(c);
    return NULL;
}

int dtr__nccl_make_apart(dtr__nccl_comm *c, dtr__nccl_comm *into,
                         int (*make)(dtr__nccl_comm *comm)) {
    c->apart.make = make;
    c->apart.into = into;
    if (into != NULL) {
        atomic_fetch_add_explicit(&into->refs, 1, memory_order_relaxed);
    }
    atomic_store_explicit(&c->apart.stage, DTR__NCCL_APART_MADE, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    if (c->owner->config.blocking && dtr__thread_start(NULL, "", true, apart_main, c) == 0) {
        return c->ops->in_progress;
    }
    (void)apart_main(c);
    return c->apart.code;
}

bool dtr__nccl_poll(dtr__nccl_comm *c, int *code) {
    const int stage = atomic_load_explicit(&c->apart.stage, memory_order_acquire);
    bool there = !dtr__nccl_aborted(c);
    if (stage == DTR__NCCL_APART_MADE) {
        return there;
    }
    if (there && stage == DTR__NCCL_APART_ENDED && c->apart.code != c->ops->in_progress) {
        *code = c->apart.code;
        atomic_store_explicit(&c->apart.stage, DTR__NCCL_APART_NONE, memory_order_relaxed);
        return true;
    }
    if (there && pthread_mutex_trylock(&c->lock) == 0) {
        there = !dtr__nccl_aborted(c) && c->handle != NULL;
        if (there) {
            int state = 0, r = c->ops->state(c->handle, &state);
            *code = r != 0 ? r : state;
        }
        pthread_mutex_unlock(&c->lock);
    }
    return there;
}

dtr_status dtr__nccl_settle(dtr__nccl_comm *c, const dtr_work *w, const char *function, int code) {
    if (code == 0) {
        return DTR_OK; /* a group of one rank makes no call, and may have no NCCL to ask */
    }
    int busy = c->ops->in_progress;
    dtr__backoff backoff = { 0 };
    while (code == busy) {
        if (atomic_load(&c->group->status) != DTR_OK || !dtr__nccl_poll(c, &code)) {
            return dtr__group_broken(c->group);
        }
        if (code == busy) {
            dtr__backoff_pause(c->group->world, &backoff);
        }
    }
    if (code != 0 && dtr__nccl_aborted(c)) { /* what a blocking call returned since */
        return dtr__group_broken(c->group);
    }
    return code == 0 ? DTR_OK : dtr__nccl_failed(c, w, function, code);
}
