/* The engine: issue order, progress, deadlines and breaking of a group. Whoever holds a group's
 * progress lock moves it: the caller of a blocking call or of a wait, else the progress thread. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "death.h"
#include "declare.h"
#include "engine.h"
#include "fence.h"
#include "nccl/nccl_calls.h"

enum {
    P2P_PER_PASS = 64,       /* of many outstanding ones, a pass polls some, in turn */
    PASSES_PER_LOOK = 16,    /* between two looks at the clock */
    WAITS_WITHOUT_CLOCK = 64 /* loops of a waiter between two looks at the clock */
};

/* For the progress lock, before a limit is said to have passed. */
static const double LAST_LOOK_S = 0.2;

/* ---- running lists; progress lock held ---- */

/* The last step of a failed work waits until nothing can touch its buffers. queue_lock held. */
void dtr__work_keep_late(dtr_group *g, dtr_work *w) {
    if (w->composite != NULL) {
        w->composite->keep_late(g, w);
    }
    if (w->finish != NULL) {
        w->finish->next = g->late;
        g->late = w->finish;
        w->finish = NULL;
    }
}

/* The list of those that do not wait for each other, or of those that take turns. */
static dtr__queue *running_list(dtr_group *g, const dtr_work *w) {
    return dtr__kind_is_p2p(w->call.kind) || w->backend->overlaps ? &g->p2p : &g->collectives;
}

static void link_running(dtr_group *g, dtr_work *w) {
    dtr__queue *q = running_list(g, w);
    w->run_next = NULL;
    w->run_prev = q->tail;
    *(q->tail != NULL ? &q->tail->run_next : &q->head) = w;
    q->tail = w;
    w->linked = true;
    g->running += !w->inline_call;
    if (q == &g->p2p && g->p2p_unstarted == NULL && !w->started) {
        g->p2p_unstarted = w;
    }
    double deadline = atomic_load_explicit(&w->deadline, memory_order_relaxed);
    if (deadline < g->next_deadline) {
        g->next_deadline = deadline;
    }
}

/* Gives the engine's reference back. */
static void unlink_running(dtr_group *g, dtr_work *w) {
    dtr__queue *q = running_list(g, w);
    if (g->p2p_unstarted == w) {
        g->p2p_unstarted = w->run_next;
    }
    if (g->p2p_cursor == w) {
        g->p2p_cursor = w->run_next;
    }
    *(w->run_prev != NULL ? &w->run_prev->run_next : &q->head) = w->run_next;
    *(w->run_next != NULL ? &w->run_next->run_prev : &q->tail) = w->run_prev;
    w->linked = false;
    if (w->finish != NULL || w->composite != NULL) {
        pthread_mutex_lock(&g->queue_lock);
        dtr__work_keep_late(g, w);
        pthread_mutex_unlock(&g->queue_lock);
    }
    if (!w->inline_call) {
        g->running--;
        atomic_fetch_sub_explicit(&g->active, 1, memory_order_release);
    }
    dtr__work_unref(w);
}

static void take_incoming(dtr_group *g) {
    if (atomic_load_explicit(&g->active, memory_order_acquire) == g->running) {
        return;
    }
    pthread_mutex_lock(&g->queue_lock);
    dtr_work *w = g->incoming.head;
    g->incoming = (dtr__queue){ NULL, NULL };
    pthread_mutex_unlock(&g->queue_lock);
    while (w != NULL) {
        dtr_work *next = w->run_next;
        link_running(g, w);
        w = next;
    }
}

void dtr__group_enter(dtr_group *g, dtr_work *w) {
    take_incoming(g);
    link_running(g, w);
}

void dtr__group_enter_started(dtr_group *g, dtr_work *w) {
    link_running(g, w);
}

/* ---- breaking ---- */

void dtr__group_release_all(dtr_group *g, dtr_status s, dtr__queue *called) {
    pthread_mutex_lock(&g->queue_lock);
    if (atomic_load_explicit(&g->status, memory_order_relaxed) != DTR_OK) {
        pthread_mutex_unlock(&g->queue_lock);
        return;
    }
    dtr__error_copy *error = dtr__error_save();
    g->pool->broken = error;
    g->error = dtr__error_save(); /* freed with the group, the pool's with the last work */
    atomic_store_explicit(&g->status, s, memory_order_release);
    dtr__rec_failure(g->world, g->id, s); /* before a waiter returns and may end the world */
    dtr__nccl_stop(g);
    for (int i = 0; i < g->n_backends; i++) {
        if (g->backend[i]->withdraw != NULL) {
            g->backend[i]->withdraw(g, g->backend_state[i]);
        }
    }
    while (g->works.head != NULL) {
        dtr__work_end_locked(g->works.head, s, error, called);
    }
    /* Those in running lists are dropped by the next pass, which may have to cancel them. */
    dtr_work *w = g->incoming.head;
    g->incoming = (dtr__queue){ NULL, NULL };
    for (dtr_work *i = w; i != NULL; i = i->run_next) {
        dtr__work_keep_late(g, i);
        atomic_fetch_sub_explicit(&g->active, 1, memory_order_release);
    }
    pthread_mutex_unlock(&g->queue_lock);
    dtr__notice_broken(g, s);
    while (w != NULL) {
        dtr_work *next = w->run_next;
        dtr__work_unref(w);
        w = next;
    }
}

void dtr__group_break(dtr_group *g, dtr_status s) {
    dtr__queue called = { NULL, NULL };
    dtr__group_break_with(g, s, &called);
    /* Below thread multiple this thread may not be the one that may call MPI: the next pass of a
     * caller cancels. */
    if (g->world->thread_level == MPI_THREAD_MULTIPLE) {
        dtr__group_try_pass(g);
        dtr__notices_visit(g->world);
    }
    dtr__callbacks_run(&called);
}

/* ---- limits ---- */

/* Writes why `w` has not finished, as far as this rank knows. `locked`: the progress lock is held.
 */
static const char *say_waits_for(dtr_group *g, dtr_work *w, bool locked, char *text, size_t cap) {
    char title[256], why[512] = "";
    text[0] = '\0';
    if (!locked) {
        snprintf(text, cap, "a thread is still inside the transport");
        return text;
    }
    dtr_work *head = running_list(g, w) == &g->p2p ? w : g->collectives.head;
    if (head != NULL && head->started && head->backend->waits_for != NULL) {
        head->backend->waits_for(g, head->backend_state, head, why, sizeof why);
    }
    if (head != NULL && head != w) {
        snprintf(text, cap, "it has not started, because %s is still under way%s%s",
                 dtr__work_title(head, title, sizeof title), why[0] != '\0' ? ": " : "", why);
    } else if (why[0] != '\0') {
        snprintf(text, cap, "%s", why);
    } else if (!w->started && dtr__fence_waits(w)) {
        (void)dtr__fence_text(w, text, cap);
    } else if (w->call.kind == DTR__K_BARRIER && !w->started) {
        snprintf(text, cap, "it waits for earlier operations of this rank: %s",
                 g->p2p.head != NULL ? dtr__work_title(g->p2p.head, title, sizeof title) : "none");
    } else {
        snprintf(text, cap, "another member has not entered it, or has stopped");
    }
    return text;
}

static void expire(dtr_group *g, dtr_work *w, bool locked, dtr__queue *called) {
    char title[256], site[128], why[1024], who[1400];
    dtr__error_context ctx = dtr__work_context(w);
    dtr_status odd = dtr__find_odd(w);
    if (odd != DTR_OK) {
        dtr__group_break_with(g, odd, called);
        return;
    }
    (void)DTR_FAIL(
        &ctx, DTR_ERR_TIMEOUT,
        "%s did not finish within %g s on rank %d: %s; called at %s%s. The group is broken: "
        "outputs of its unfinished operations are undefined",
        dtr__work_title(w, title, sizeof title),
        atomic_load_explicit(&w->limit, memory_order_relaxed), g->rank,
        say_waits_for(g, w, locked, why, sizeof why),
        dtr__call_site_text(&w->call, site, sizeof site), dtr__blame(g, w, who, sizeof who));
    dtr__group_break_with(g, DTR_ERR_TIMEOUT, called);
}

static bool step(dtr_group *g, dtr_work *w, dtr__queue *called);

static bool expired(const dtr_work *w, double now) {
    return now >= atomic_load_explicit(&w->deadline, memory_order_relaxed) &&
           !atomic_load_explicit(&w->ended, memory_order_acquire);
}

/* Progress lock held. The first running work whose limit has passed gets a last look, then breaks
 * the group. */
static void look_at_clock(dtr_group *g, dtr__queue *called) {
    double now = dtr__now(), next = INFINITY;
    if (atomic_load_explicit(&g->sooner, memory_order_relaxed)) {
        atomic_store(&g->sooner,
                     false); /* before the limits are read: one set later counts again */
    } else if (now < g->next_deadline) {
        return;
    }
    dtr__queue *lists[] = { &g->collectives, &g->p2p };
    for (int i = 0; i < 2; i++) {
        for (dtr_work *w = lists[i]->head; w != NULL; w = w->run_next) {
            if (expired(w, now)) {
                g->next_deadline = now; /* look at the others next time */
                if (!w->started || !step(g, w, called) || w->linked) {
                    expire(g, w, true, called);
                }
                return;
            }
            double deadline = atomic_load_explicit(&w->deadline, memory_order_relaxed);
            next = deadline < next ? deadline : next;
        }
    }
    g->next_deadline = next;
}

void dtr__work_expire(dtr_work *w) {
    dtr_group *g = w->group;
    dtr__queue called = { NULL, NULL };
    bool locked = false;
    dtr__backoff backoff = { 0 };
    const double end = dtr__now() + LAST_LOOK_S; /* who has the lock may have lost its core */
    while (!(locked = dtr__latch_try(g->progress)) && dtr__now() < end) {
        dtr__backoff_pause(g->world, &backoff);
    }
    if (locked && g->engine_open) {
        dtr__group_pass(g, &called);
    }
    if (expired(w, dtr__now())) {
        expire(g, w, locked, &called);
    }
    if (locked) {
        dtr__group_pass(g, &called); /* cancels what has just ended */
        dtr__latch_drop(g->progress);
    }
    dtr__callbacks_run(&called);
    dtr__notices_visit(g->world);
}

/* ---- progress; progress lock held ---- */

/* The last step of a work whose transfer is complete. */
static dtr_status run_finish(dtr_work *w) {
    dtr__finish *f = w->finish;
    if (f == NULL || atomic_load_explicit(&w->ended, memory_order_acquire)) {
        return DTR_OK;
    }
    w->finish = NULL;
    return f->fn(f, DTR_OK);
}

/* Start or poll one work. True when it moved; it may then be gone. */
static bool step(dtr_group *g, dtr_work *w, dtr__queue *called) {
    const dtr__backend *b = w->backend;
    if (atomic_load_explicit(&w->ended, memory_order_acquire)) {
        if (w->started && b->cancel != NULL) {
            b->cancel(g, w->backend_state, w);
        }
        unlink_running(g, w);
        return true;
    }
    bool done = false, first = !w->started;
    dtr_status s;
    w->moved = false;
    if (first) {
        w->started = true;
        if (g->p2p_unstarted == w) {
            g->p2p_unstarted = w->run_next;
        }
        if (!w->inline_call || w->world->timing) {
            dtr__work_mark(w, DTR__REC_STARTED, DTR_OK);
        }
        s = dtr__fence_status(w);
        s = s == DTR_OK ? b->start(g, w->backend_state, w, &done) : s;
    } else {
        s = b->progress(g, w->backend_state, w, &done);
    }
    if (s < 0) {
        dtr__group_break_with(g, s, called);
    } else if (done) {
        dtr__work_hash_out(w);
        s = run_finish(w);
        dtr__work_end(w, s, s < 0 ? dtr__error_save() : NULL, called);
    } else {
        return first || w->moved;
    }
    unlink_running(g, w);
    return true;
}

/* A barrier first waits for this rank's earlier point to point works, and for its stream. */
static bool may_start(const dtr_group *g, const dtr_work *w) {
    if (w->call.kind != DTR__K_BARRIER || w->started ||
        atomic_load_explicit(&w->ended, memory_order_acquire)) {
        return true;
    }
    return (g->p2p.head == NULL || g->p2p.head->issue > w->issue) && !dtr__fence_waits(w);
}

/* Start what may start. True when something did. */
bool dtr__group_start_new(dtr_group *g, dtr__queue *called) {
    bool moved = false;
    take_incoming(g);
    while (g->p2p_unstarted != NULL) {
        moved = step(g, g->p2p_unstarted, called) || moved;
    }
    while (g->collectives.head != NULL && !g->collectives.head->started &&
           may_start(g, g->collectives.head)) {
        moved = step(g, g->collectives.head, called) || moved;
    }
    return moved;
}

bool dtr__group_pass(dtr_group *g, dtr__queue *called) {
    bool moved = dtr__group_start_new(g, called);
    dtr_work *w = g->p2p_cursor != NULL ? g->p2p_cursor : g->p2p.head;
    for (int n = 0; w != NULL && n < P2P_PER_PASS; n++, w = g->p2p_cursor) {
        g->p2p_cursor = w->run_next;
        moved = step(g, w, called) || moved;
    }
    while (g->collectives.head != NULL && may_start(g, g->collectives.head) &&
           step(g, g->collectives.head, called)) {
        moved = true;
    }
    if (!moved && (++g->passes % PASSES_PER_LOOK == 0 || !dtr__progress_has_thread(g->world))) {
        look_at_clock(g, called);
    }
    return moved;
}

bool dtr__group_try_pass(dtr_group *g) {
    dtr__queue called = { NULL, NULL };
    if (!dtr__latch_try(g->progress)) {
        return false;
    }
    bool moved = g->engine_open && dtr__group_pass(g, &called);
    dtr__latch_drop(g->progress);
    dtr__callbacks_run(&called);
    if (atomic_load_explicit(&g->status, memory_order_relaxed) != DTR_OK) {
        dtr__notices_visit(g->world); /* others may wait for the news */
    }
    return moved;
}

int dtr__group_poll(dtr__poller *poller) {
    dtr_group *g = (dtr_group *)((char *)poller - offsetof(dtr_group, poller));
    if (atomic_load_explicit(&g->active, memory_order_acquire) == 0) {
        return DTR__POLL_IDLE;
    }
    if (atomic_load_explicit(&g->waiters, memory_order_relaxed) > 0 &&
        dtr__progress_in_thread(g->world)) {
        return DTR__POLL_WAITING; /* somebody polls it who is about to use the result */
    }
    dtr__notices_visit(g->world);
    return dtr__group_try_pass(g) ? DTR__POLL_MOVED : DTR__POLL_WAITING;
}

void dtr__work_block(dtr_work *w) {
    dtr_group *g = w->group;
    bool help = !dtr__progress_has_thread(g->world);
    dtr__backoff backoff = { 0 };
    atomic_fetch_add_explicit(&g->waiters, 1, memory_order_relaxed);
    for (unsigned n = 1; !atomic_load_explicit(&w->done, memory_order_acquire); n++) {
        bool moved = dtr__group_try_pass(g);
        if (help && n % DTR__PASSES_PER_HELP == 0) {
            dtr__progress_poll_all(g->world);
        }
        if ((n > 64 * WAITS_WITHOUT_CLOCK || n % WAITS_WITHOUT_CLOCK == 0) &&
            expired(w, dtr__now())) {
            dtr__work_expire(w);
        } else if (moved) {
            backoff = (dtr__backoff){ 0 };
        } else {
            if (n % WAITS_WITHOUT_CLOCK == 0) {
                dtr__notices_visit(g->world);
            }
            dtr__backoff_pause(g->world, &backoff);
        }
    }
    if (w->status < 0) { /* the caller may free the buffers now */
        dtr__nccl_await_stop(g);
    }
    atomic_fetch_sub_explicit(&g->waiters, 1, memory_order_release);
}
