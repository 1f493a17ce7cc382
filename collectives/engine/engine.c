/* The engine: issue order, progress, deadlines and breaking of a group. The holder of a group's
 * progress lock moves it: the caller of a blocking call or of a wait, else the progress thread. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/call_site.h"
#include "core/team.h"
#include "engine/engine.h"
#include "engine/stream_dependency.h"
#include "kernels/user_ops.h"

enum {
    P2P_PER_PASS = 64,   /* of many outstanding ones, a pass polls some, in turn */
    PASSES_PER_LOOK = 16 /* passes for each reading of the clock */
};

/* How long to try for the progress lock before a limit counts as passed. */
static const double LAST_LOOK_S = 0.2;

/* ---- running lists; progress lock held ---- */

/* The last step of a failed work waits until nothing can touch its buffers. queue_lock held. */
void dtr__work_defer_finish(dtr_group *g, dtr_work *w) {
    if (w->composite != NULL && w->composite->defer_finish != NULL) {
        w->composite->defer_finish(g, w);
    }
    if (w->finish != NULL) {
        w->finish->next = g->engine->deferred;
        g->engine->deferred = w->finish;
        w->finish = NULL;
    }
}

/* The list of those that do not wait for each other, or of those that take turns. */
static dtr__queue *running_list(dtr_group *g, const dtr_work *w) {
    return dtr__kind_is_p2p(w->call.kind) || w->backend->overlaps ? &g->engine->p2p
                                                                  : &g->engine->collectives;
}

static void link_running(dtr_group *g, dtr_work *w) {
    dtr__queue *q = running_list(g, w);
    w->run.bound = !w->backend->without_mpi || dtr__op_is_user(w->call.op);
    g->engine->bound += w->run.bound;
    w->run.next = NULL;
    w->run.prev = q->tail;
    *(q->tail != NULL ? &q->tail->run.next : &q->head) = w;
    q->tail = w;
    atomic_store_explicit(&w->run.linked, true, memory_order_relaxed);
    g->engine->running += !w->inline_call;
    if (q == &g->engine->p2p && g->engine->p2p_unstarted == NULL && !w->started) {
        g->engine->p2p_unstarted = w;
    }
    double deadline = atomic_load_explicit(&w->limit.deadline, memory_order_relaxed);
    if (deadline < g->engine->next_deadline) {
        g->engine->next_deadline = deadline;
    }
}

/* Gives the engine's reference back. Returns what is to be taken off `active`. */
static int take_out(dtr_group *g, dtr_work *w) {
    const int counted = !w->inline_call;
    dtr__queue *q = running_list(g, w);
    g->engine->bound -= w->run.bound;
    if (g->engine->p2p_unstarted == w) {
        g->engine->p2p_unstarted = w->run.next;
    }
    if (g->engine->p2p_cursor == w) {
        g->engine->p2p_cursor = w->run.next;
    }
    *(w->run.prev != NULL ? &w->run.prev->run.next : &q->head) = w->run.next;
    *(w->run.next != NULL ? &w->run.next->run.prev : &q->tail) = w->run.prev;
    atomic_store_explicit(&w->run.linked, false, memory_order_release);
    if (w->finish != NULL || w->composite != NULL) {
        pthread_mutex_lock(&g->engine->queue_lock);
        dtr__work_defer_finish(g, w);
        pthread_mutex_unlock(&g->engine->queue_lock);
    }
    g->engine->running -= counted;
    dtr__work_unref(w);
    return counted;
}

static void unlink_running(dtr_group *g, dtr_work *w) {
    if (take_out(g, w) > 0) {
        atomic_fetch_sub_explicit(&g->engine->active, 1, memory_order_release);
    }
}

static void take_incoming(dtr_group *g) {
    if (atomic_load_explicit(&g->engine->active, memory_order_acquire) == g->engine->running) {
        return;
    }
    pthread_mutex_lock(&g->engine->queue_lock);
    dtr_work *w = g->engine->incoming.head;
    g->engine->incoming = (dtr__queue){ NULL, NULL };
    pthread_mutex_unlock(&g->engine->queue_lock);
    while (w != NULL) {
        dtr_work *next = w->run.next;
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
    pthread_mutex_lock(&g->engine->queue_lock);
    if (atomic_load_explicit(&g->status, memory_order_relaxed) != DTR_OK) {
        pthread_mutex_unlock(&g->engine->queue_lock);
        return;
    }
    dtr__error_copy *error = dtr__error_save();
    g->engine->pool->broken = error;
    g->error = dtr__error_save(); /* freed with the group, the pool's with the last work */
    atomic_store_explicit(&g->status, s, memory_order_release);
    dtr__rec_failure(g->world, g->id, s); /* before a waiter returns and may end the world */
    /* Where all works had ended and the others know, they may have given their memory back. */
    const int served = atomic_load(&g->release.reported) ? 0 : g->backends.served;
    for (int i = 0; i < served; i++) {
        const dtr__backend *b = g->backends.table[i];
        if (b->stop != NULL) {
            b->stop(g, g->backends.state[i]);
        }
        if (b->withdraw != NULL) {
            b->withdraw(g, g->backends.state[i]);
        }
    }
    int64_t now = 0;
    int ended = 0;
    while (g->engine->works.head != NULL) {
        ended += dtr__work_end_locked(g->engine->works.head, s, error, called, &now);
    }
    atomic_fetch_sub_explicit(&g->engine->open_works, ended, memory_order_release);
    /* Those in running lists are dropped by the next pass, which may have to cancel them. */
    dtr_work *w = g->engine->incoming.head;
    g->engine->incoming = (dtr__queue){ NULL, NULL };
    for (dtr_work *i = w; i != NULL; i = i->run.next) {
        dtr__work_defer_finish(g, i);
        atomic_fetch_sub_explicit(&g->engine->active, 1, memory_order_release);
    }
    pthread_mutex_unlock(&g->engine->queue_lock);
    dtr__failure_of(g->world)->notify_broken(g, s);
    while (w != NULL) {
        dtr_work *next = w->run.next;
        dtr__work_unref(w);
        w = next;
    }
}

void dtr__group_break(dtr_group *g, dtr_status s) {
    dtr__queue called = { NULL, NULL };
    dtr__failure_of(g->world)->break_with(g, s, &called);
    /* Below thread multiple this thread may not be the one that may call MPI: the next pass of a
     * caller cancels. */
    if (g->world->mpi.thread_level == MPI_THREAD_MULTIPLE) {
        dtr__group_try_pass(g);
        dtr__failure_of(g->world)->visit(g->world);
    }
    dtr__callbacks_run(&called);
}

/* ---- a thread that only helps; progress lock held ---- */

/* By this thread: it may not move all that runs. */
static bool only_helps(const dtr_group *g) {
    return g->engine->bound > 0 && dtr__progress_only_helps(g->world);
}

/* Whether a thread that calls neither MPI nor the program can move it as it stands. One that has
 * failed waits for a thread that may cancel it. */
static bool is_free(dtr_group *g, dtr_work *w) {
    const dtr__backend *b = w->backend;
    return !w->run.bound || (b->needs_mpi != NULL && !dtr__op_is_user(w->call.op) &&
                             !atomic_load_explicit(&w->ended, memory_order_acquire) &&
                             !b->needs_mpi(g, w->backend_state, w));
}

/* A thread of the program has brought it to where the other one can go on. */
static void pass_on(dtr_group *g, dtr_work *w) {
    if (!w->inline_call && g->world->mpi.thread_level < MPI_THREAD_MULTIPLE &&
        !dtr__progress_in_thread(g->world) && is_free(g, w)) {
        dtr__progress_wake_soon(g->world);
    }
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
    dtr_work *head = running_list(g, w) == &g->engine->p2p ? w : g->engine->collectives.head;
    if (head != NULL && head->started && head->backend->waits_for != NULL) {
        head->backend->waits_for(g, head->backend_state, head, why, sizeof why);
    }
    if (head != NULL && head != w) {
        snprintf(text, cap, "it has not started, because %s is still under way%s%s",
                 dtr__work_title(head, title, sizeof title), why[0] != '\0' ? ": " : "", why);
    } else if (why[0] != '\0') {
        snprintf(text, cap, "%s", why);
    } else if (!w->started && dtr__stream_dependency_waits(w)) {
        (void)dtr__stream_dependency_text(w, text, cap);
    } else if (w->call.kind == DTR__K_BARRIER && !w->started) {
        snprintf(text, cap, "it waits for earlier operations of this rank: %s",
                 g->engine->p2p.head != NULL
                     ? dtr__work_title(g->engine->p2p.head, title, sizeof title)
                     : "none");
    } else {
        snprintf(text, cap, "another member has not entered it, or has stopped");
    }
    return text;
}

/* Whether it is known who is missing, as far as it can be; another rank may come meanwhile. */
static bool knows_missing(const dtr_work *w) {
    const double deadline = atomic_load_explicit(&w->limit.deadline, memory_order_relaxed);
    return dtr__failure_of(w->world)->ask_missing(w->group, w, dtr__monotonic_at(deadline));
}

static void expire(dtr_group *g, dtr_work *w, bool locked, dtr__queue *called) {
    char title[256], site[128], why[1024], who[1400];
    dtr__error_context ctx = dtr__work_context(w);
    const dtr__failure_ops *failure = dtr__failure_of(g->world);
    dtr_status mismatch = failure->find_mismatch(w);
    if (mismatch != DTR_OK) {
        failure->break_with(g, mismatch, called);
        return;
    }
    (void)DTR_FAIL(
        &ctx, DTR_ERR_TIMEOUT,
        "%s did not finish within %g s on rank %d: %s; called at %s%s. The group is broken: "
        "outputs of its unfinished operations are undefined",
        dtr__work_title(w, title, sizeof title),
        atomic_load_explicit(&w->limit.seconds, memory_order_relaxed), g->rank,
        say_waits_for(g, w, locked, why, sizeof why),
        dtr__call_site_text(&w->call, site, sizeof site),
        failure->name_missing(g, w, who, sizeof who));
    failure->break_with(g, DTR_ERR_TIMEOUT, called);
}

/* Messages that one pass has found complete, which then end together. */
typedef struct through {
    dtr_work *work[P2P_PER_PASS];
    int n;
} through;

static bool step(dtr_group *g, dtr_work *w, through *t, dtr__queue *called);

/* What waits for MPI may be there, which the last look of a thread that only helps would not find:
 * that limit is the program's next call to keep. */
static bool may_expire(dtr_group *g, const dtr__queue *list, dtr_work *w) {
    return !only_helps(g) ||
           (is_free(g, w) && (list != &g->engine->collectives || is_free(g, list->head)));
}

/* Progress lock held. The first running work whose limit has passed gets a last look, then breaks
 * the group. */
static void look_at_clock(dtr_group *g, dtr__queue *called) {
    double now = dtr__now(), next = INFINITY;
    if (atomic_load_explicit(&g->engine->sooner, memory_order_relaxed)) {
        atomic_store(&g->engine->sooner,
                     false); /* before the limits are read: one set later counts again */
    } else if (now < g->engine->next_deadline) {
        return;
    }
    dtr__queue *lists[] = { &g->engine->collectives, &g->engine->p2p };
    for (int i = 0; i < 2; i++) {
        for (dtr_work *w = lists[i]->head; w != NULL; w = w->run.next) {
            if (dtr__work_expired(w, now) && may_expire(g, lists[i], w) && knows_missing(w)) {
                g->engine->next_deadline = now; /* look at the others next time */
                if (!w->started || !step(g, w, NULL, called) || w->run.linked) {
                    expire(g, w, true, called);
                }
                return;
            }
            double deadline = atomic_load_explicit(&w->limit.deadline, memory_order_relaxed);
            next = deadline < next ? deadline : next;
        }
    }
    g->engine->next_deadline = next;
}

bool dtr__work_expire(dtr_work *w) {
    dtr_group *g = w->group;
    dtr__queue called = { NULL, NULL };
    bool locked = false;
    dtr__backoff backoff = { 0 };
    if (!knows_missing(w)) {
        return false;
    }
    const double end = dtr__now() + LAST_LOOK_S; /* who has the lock may have lost its core */
    while (!(locked = dtr__progress_lock_try(g->engine->progress)) && dtr__now() < end) {
        dtr__backoff_pause(g->world, &backoff);
    }
    if (locked && g->engine->open) {
        dtr__group_pass(g, &called);
    }
    if (dtr__work_expired(w, dtr__now())) {
        expire(g, w, locked, &called);
    }
    if (locked) {
        dtr__group_pass(g, &called); /* cancels what has just ended */
        dtr__progress_lock_release(g->engine->progress);
    }
    dtr__callbacks_run(&called);
    dtr__failure_of(g->world)->visit(g->world);
    return true;
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

static void end_together(dtr_group *g, through *t, dtr__queue *called) {
    int64_t now = 0;
    int ended = 0, out = 0;
    if (t == NULL || t->n == 0) {
        return;
    }
    pthread_mutex_lock(&g->engine->queue_lock);
    for (int i = 0; i < t->n; i++) {
        if (!atomic_load_explicit(&t->work[i]->ended, memory_order_relaxed)) {
            ended += dtr__work_end_locked(t->work[i], DTR_OK, NULL, called, &now);
        }
    }
    atomic_fetch_sub_explicit(&g->engine->open_works, ended, memory_order_release);
    pthread_mutex_unlock(&g->engine->queue_lock);
    for (int i = 0; i < t->n; i++) {
        out += take_out(g, t->work[i]);
    }
    atomic_fetch_sub_explicit(&g->engine->active, out, memory_order_release);
    t->n = 0;
}

/* Members that wait for a rank give up, and what they have sent is there all the same once it goes
 * on: where a rank may end a call without the others, it must not end well what they gave up. */
static bool is_given_up(dtr_group *g, const dtr_work *w, dtr__queue *called) {
    dtr__group_engine *e = g->engine;
    if (e->failures == NULL || w->backend->device != DTR_CPU ||
        !(w->backend->ends_alone || dtr__kind_is_p2p(w->call.kind))) {
        return false;
    }
    const uint64_t now = atomic_load_explicit(e->failures, memory_order_relaxed);
    if (now == e->failures_seen) {
        return false;
    }
    const bool broken = dtr__failure_of(g->world)->look(g, called);
    e->failures_seen = now; /* another group's, unless this one is broken */
    return broken;
}

/* Start or poll one work. True when it moved; it may then be gone. With `t` it may end with others,
 * later in the same pass. */
static bool step(dtr_group *g, dtr_work *w, through *t, dtr__queue *called) {
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
        if (g->engine->p2p_unstarted == w) {
            g->engine->p2p_unstarted = w->run.next;
        }
        if (!w->inline_call || w->world->recording.timing) {
            dtr__work_mark(w, DTR__REC_STARTED, DTR_OK);
        }
        s = dtr__stream_dependency_status(w);
        s = s == DTR_OK ? b->start(g, w->backend_state, w, &done) : s;
    } else {
        s = b->progress(g, w->backend_state, w, &done);
    }
    if (s < 0) {
        end_together(g, t, called);
        dtr__failure_of(g->world)->break_with(g, s, called);
        if (w->run.bound && dtr__progress_only_helps(g->world)) {
            return true; /* a thread of the program cancels what of it is with MPI */
        }
    } else if (done && is_given_up(g, w, called)) {
        end_together(g, t, called); /* that has ended it with all others */
    } else if (done && t != NULL && w->finish == NULL) {
        dtr__work_hash_out(w);
        t->work[t->n++] = w;
        return true;
    } else if (done) {
        dtr__work_hash_out(w);
        s = run_finish(w);
        dtr__work_end(w, s, s < 0 ? dtr__error_save() : NULL, called);
    } else {
        if (w->run.bound && (first || w->moved)) {
            pass_on(g, w);
        }
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
    return (g->engine->p2p.head == NULL || g->engine->p2p.head->issue > w->issue) &&
           !dtr__stream_dependency_waits(w);
}

/* What a thread that only helps has seen end is reported by the program's own. */
static void take_later(dtr_group *g, dtr__queue *called) {
    if (!atomic_load_explicit(&g->engine->has_later, memory_order_acquire) ||
        dtr__progress_only_helps(g->world)) {
        return;
    }
    pthread_mutex_lock(&g->engine->queue_lock);
    dtr__queue *later = &g->engine->later;
    if (later->head != NULL) {
        *(called->tail != NULL ? &called->tail->next : &called->head) = later->head;
        called->tail = later->tail;
        *later = (dtr__queue){ NULL, NULL };
    }
    atomic_store(&g->engine->has_later, false);
    pthread_mutex_unlock(&g->engine->queue_lock);
}

/* Start what may start. True when something did. */
bool dtr__group_start_new(dtr_group *g, dtr__queue *called) {
    bool moved = false;
    take_incoming(g);
    if (only_helps(g)) {
        return false;
    }
    while (g->engine->p2p_unstarted != NULL) {
        moved = step(g, g->engine->p2p_unstarted, NULL, called) || moved;
    }
    while (g->engine->collectives.head != NULL && !g->engine->collectives.head->started &&
           may_start(g, g->engine->collectives.head)) {
        moved = step(g, g->engine->collectives.head, NULL, called) || moved;
    }
    return moved;
}

bool dtr__group_pass(dtr_group *g, dtr__queue *called) {
    g->engine->pass++;
    bool moved = dtr__group_start_new(g, called);
    if (only_helps(g)) {
        return false;
    }
    take_later(g, called);
    through t; /* its list is long, and mostly not used */
    t.n = 0;
    dtr_work *w = g->engine->p2p_cursor != NULL ? g->engine->p2p_cursor : g->engine->p2p.head;
    for (int n = 0; w != NULL && n < P2P_PER_PASS; n++, w = g->engine->p2p_cursor) {
        g->engine->p2p_cursor = w->run.next;
        moved = step(g, w, &t, called) || moved;
    }
    end_together(g, &t, called);
    while (g->engine->collectives.head != NULL && may_start(g, g->engine->collectives.head) &&
           step(g, g->engine->collectives.head, NULL, called)) {
        moved = true;
    }
    if (!moved &&
        (++g->engine->passes % PASSES_PER_LOOK == 0 || !dtr__progress_has_thread(g->world))) {
        look_at_clock(g, called);
    }
    return moved;
}

bool dtr__group_try_pass(dtr_group *g) {
    dtr__queue called = { NULL, NULL };
    if (!dtr__progress_lock_try(g->engine->progress)) {
        if (g->world->cpus.n == 1) {
            sched_yield(); /* who has it needs this CPU */
        }
        return false;
    }
    bool moved = g->engine->open && dtr__group_pass(g, &called);
    dtr__progress_lock_release(g->engine->progress);
    dtr__callbacks_run(&called);
    if (atomic_load_explicit(&g->status, memory_order_relaxed) != DTR_OK) {
        dtr__failure_of(g->world)->visit(g->world); /* others may wait to be notified */
    }
    return moved;
}

/* A pass over what is free, where some is not: each kind starts in its order all the same. Returns
 * what a poller does. */
static int pass_free(dtr_group *g, dtr__queue *called) {
    dtr__group_engine *e = g->engine;
    int found = DTR__POLL_IDLE;
    e->pass++;
    while (e->p2p_unstarted != NULL && is_free(g, e->p2p_unstarted)) {
        (void)step(g, e->p2p_unstarted, NULL, called);
        found = DTR__POLL_MOVED;
    }
    dtr_work *w = e->p2p_cursor != NULL ? e->p2p_cursor : e->p2p.head;
    for (int n = 0; w != NULL && w->started && n < P2P_PER_PASS; w = e->p2p_cursor) {
        e->p2p_cursor = w->run.next;
        if (is_free(g, w)) {
            const int how = step(g, w, NULL, called) ? DTR__POLL_MOVED : DTR__POLL_WAITING;
            found = how > found ? how : found;
            n++;
        }
    }
    e->p2p_cursor = w != NULL && w->started ? w : NULL;
    while ((w = e->collectives.head) != NULL && is_free(g, w) && may_start(g, w)) {
        const int how = step(g, w, NULL, called) ? DTR__POLL_MOVED : DTR__POLL_WAITING;
        found = how > found ? how : found;
        if (how == DTR__POLL_WAITING) {
            break;
        }
    }
    if (found == DTR__POLL_WAITING) {
        look_at_clock(g, called);
    }
    return found;
}

/* A pass without MPI; what breaks is left to the program's next call. */
static int help(dtr_group *g) {
    dtr__queue called = { NULL, NULL };
    int found = DTR__POLL_IDLE;
    if (!dtr__progress_lock_try(g->engine->progress)) {
        return DTR__POLL_LEFT;
    }
    if (g->engine->open) {
        take_incoming(g);
        found = only_helps(g)                 ? pass_free(g, &called)
                : dtr__group_pass(g, &called) ? DTR__POLL_MOVED
                                              : DTR__POLL_WAITING;
    }
    dtr__progress_lock_release(g->engine->progress);
    dtr__callbacks_run(&called);
    return found;
}

int dtr__group_poll(dtr__poller *poller) {
    dtr_group *g =
        ((dtr__group_engine *)((char *)poller - offsetof(dtr__group_engine, poller)))->group;
    const bool helps = dtr__progress_only_helps(g->world);
    if (atomic_load_explicit(&g->engine->active, memory_order_acquire) == 0 &&
        (helps || !atomic_load_explicit(&g->engine->has_later, memory_order_acquire))) {
        return DTR__POLL_IDLE;
    }
    if (atomic_load_explicit(&g->engine->waiters, memory_order_relaxed) > 0 &&
        dtr__progress_in_thread(g->world)) {
        return DTR__POLL_LEFT; /* to somebody who is about to use the result */
    }
    if (helps) {
        return help(g);
    }
    dtr__failure_of(g->world)->visit(g->world);
    return dtr__group_try_pass(g) ? DTR__POLL_MOVED : DTR__POLL_WAITING;
}
