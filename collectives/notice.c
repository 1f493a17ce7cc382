/* Sending and taking news of broken groups. Sending is asked for from any thread and done by the
 * next one that may call MPI; taking is done by whoever waits inside the library. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "death.h"
#include "engine.h"
#include "groups.h"
#include "notice.h"
#include "post.h"
#include "rt_peers.h"
#include "verdict.h"

enum {
    LOOK_EVERY_NS = 500000,
    UNCLAIMED = 16 /* news kept for groups that are still being made here */
};

typedef struct news {
    uint64_t epoch;
    dtr__verdict what;
} news;

typedef struct outgoing {
    struct outgoing *next;
    news news;
    int n;
    int to[]; /* world ranks */
} outgoing;

struct dtr__notices {
    dtr_world *world;
    uint64_t epoch;
    _Atomic int64_t looked_ns;
    _Atomic int n_out;
    dtr__poller poller;       /* sends where nobody is inside the library */
    pthread_mutex_t out_lock; /* guards out; no other lock is taken under it */
    outgoing *out;
    pthread_mutex_t lock; /* guards the rest; order: groups->lock after it */
    dtr__letter *letters;
    news unclaimed[UNCLAIMED];
    unsigned n_unclaimed;
};

static int poll_out(dtr__poller *poller) {
    dtr__notices *ns = (dtr__notices *)((char *)poller - offsetof(dtr__notices, poller));
    if (atomic_load(&ns->n_out) == 0) {
        return DTR__POLL_IDLE;
    }
    dtr__notices_look(ns->world);
    return atomic_load(&ns->n_out) == 0 ? DTR__POLL_MOVED : DTR__POLL_WAITING;
}

dtr__notices *dtr__notices_new(dtr_world *world, uint64_t epoch) {
    dtr__notices *ns = calloc(1, sizeof(*ns));
    if (ns != NULL) {
        ns->world = world;
        ns->epoch = epoch;
        pthread_mutex_init(&ns->lock, NULL);
        pthread_mutex_init(&ns->out_lock, NULL);
        ns->poller.poll = poll_out;
        dtr__progress_add(world, &ns->poller);
    }
    return ns;
}

dtr_status dtr__notices_stop(dtr__notices *ns, double limit_s) {
    dtr__error_context ctx = { .world = ns->world, .operation = "dtr_world_destroy" };
    if (dtr__progress_remove(ns->world, &ns->poller, limit_s)) {
        return DTR_OK;
    }
    dtr__progress_give_up_for_good(ns->world);
    return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                    "dtr_world_destroy: a thread has been sending or taking news of broken groups "
                    "for more than %g s; the world is abandoned",
                    limit_s);
}

void dtr__notices_free(dtr__notices *ns, bool mpi_alive) {
    if (ns == NULL || !dtr__progress_remove(ns->world, &ns->poller, INFINITY)) {
        return;
    }
    if (mpi_alive) {
        dtr__post_end(&ns->letters);
    }
    while (ns->out != NULL) {
        outgoing *next = ns->out->next;
        free(ns->out);
        ns->out = next;
    }
    pthread_mutex_destroy(&ns->lock);
    pthread_mutex_destroy(&ns->out_lock);
    free(ns);
}

static dtr__notices *notices_of(const dtr_world *world) {
    return world->groups != NULL ? world->groups->notices : NULL;
}

/* ---- telling ---- */

/* This thread's last error is to be sent to the other members. */
static void tell(dtr__notices *ns, const dtr_group *g, dtr_status s) {
    outgoing *o = calloc(1, sizeof(*o) + sizeof(int) * (size_t)g->size);
    if (o == NULL) {
        return; /* the others reach their own deadlines */
    }
    o->news.epoch = ns->epoch;
    dtr__verdict_say(g, s, &o->news.what);
    for (int i = 0; i < g->size; i++) {
        if (i != g->rank && !dtr__rank_dead(g->world, g->world_ranks[i])) {
            o->to[o->n++] = g->world_ranks[i];
        }
    }
    pthread_mutex_lock(&ns->out_lock);
    o->next = ns->out;
    ns->out = o;
    pthread_mutex_unlock(&ns->out_lock);
    atomic_fetch_add(&ns->n_out, 1);
    dtr__progress_wake(g->world);
}

void dtr__notice_broken(dtr_group *g, dtr_status s) {
    dtr__notices *ns = notices_of(g->world);
    if (ns != NULL && g->size > 1 && atomic_exchange(&g->told, 1) == 0) {
        tell(ns, g, s);
    }
}

void dtr__notice_nan(dtr_group *g) {
    dtr__notices *ns = notices_of(g->world);
    if (ns != NULL && g->size > 1 && atomic_exchange(&g->nan_told, 1) == 0) {
        tell(ns, g, DTR_ERR_NAN);
    }
}

/* ns->lock and the right to call MPI are held. */
static void send_out(dtr__notices *ns) {
    pthread_mutex_lock(&ns->out_lock);
    outgoing *next = ns->out;
    ns->out = NULL;
    pthread_mutex_unlock(&ns->out_lock);
    for (outgoing *o = next; o != NULL; o = next) {
        next = o->next;
        for (int i = 0; i < o->n; i++) {
            (void)dtr__post(ns->world, &ns->letters, o->to[i], DTR__TAG_NOTICE, &o->news,
                            sizeof(o->news), NULL, 0);
        }
        free(o);
        atomic_fetch_sub(&ns->n_out, 1);
    }
    dtr__post_reap(&ns->letters);
}

/* ---- taking ---- */

bool dtr__status_shared(dtr_status s) {
    return s == DTR_ERR_TIMEOUT || s == DTR_ERR_MISMATCH || s == DTR_ERR_ABORTED ||
           s == DTR_ERR_REMOTE;
}

/* groups->lock keeps the group from being taken apart meanwhile. */
static bool deliver(dtr__notices *ns, const news *n, dtr__queue *called) {
    dtr__groups *gs = ns->world->groups;
    pthread_mutex_lock(&gs->lock);
    dtr_group *g = gs->first;
    while (g != NULL && g->uid != n->what.uid) {
        g = g->next;
    }
    if (g != NULL && n->what.status == DTR_ERR_NAN) {
        DTR_WARN(ns->world, "%s (told once per group and rank)", n->what.text);
    } else if (g != NULL) {
        dtr__verdict_execute(g, &n->what, called);
    }
    pthread_mutex_unlock(&gs->lock);
    return g != NULL;
}

static void take_in(dtr__notices *ns, dtr__queue *called) {
    void *message = NULL;
    size_t nbytes = 0;
    int from = -1;
    /* The first probe may only bring in what the second one finds. */
    for (int empty = 0; empty < 2;) {
        if (dtr__receive(ns->world, DTR__TAG_NOTICE, &message, &nbytes, &from) < 0) {
            return;
        }
        news *n = message;
        if (n == NULL) {
            empty++;
        } else if (nbytes == sizeof(*n) && n->epoch == ns->epoch) {
            const dtr__verdict *v = &n->what;
            bool delivered = deliver(ns, n, called);
            if (v->lost > 0 && v->lost <= ns->world->size) {
                dtr__rank_lost(ns->world, v->lost - 1,
                               v->status == DTR_ERR_TIMEOUT ? DTR_ERR_TIMEOUT : DTR_ERR_REMOTE,
                               v->text, false, called);
            } else if (!delivered && v->status != DTR_ERR_NAN) {
                ns->unclaimed[ns->n_unclaimed++ % UNCLAIMED] = *n;
            }
        }
        free(message);
    }
}

void dtr__notices_claim(dtr_group *group) {
    dtr__notices *ns = notices_of(group->world);
    dtr__queue called = { NULL, NULL };
    pthread_mutex_lock(&ns->lock);
    for (int i = 0; i < UNCLAIMED; i++) {
        if (ns->unclaimed[i].what.uid == group->uid) {
            deliver(ns, &ns->unclaimed[i], &called);
            ns->unclaimed[i].what.uid = 0;
        }
    }
    pthread_mutex_unlock(&ns->lock);
    dtr__callbacks_run(&called);
}

/* ---- looking ---- */

static bool due(dtr__notices *ns, int64_t now) {
    int64_t looked = atomic_load(&ns->looked_ns);
    return atomic_load(&ns->n_out) > 0 ||
           (now - looked >= LOOK_EVERY_NS &&
            atomic_compare_exchange_strong(&ns->looked_ns, &looked, now));
}

static void look(dtr__notices *ns, dtr__queue *called) {
    if (!dtr__mpi_alive() || pthread_mutex_trylock(&ns->lock) != 0) {
        return;
    }
    send_out(ns);
    take_in(ns, called);
    pthread_mutex_unlock(&ns->lock);
}

void dtr__notices_poll(dtr_world *world, dtr__queue *called) {
    dtr__notices *ns = notices_of(world);
    if (ns != NULL && due(ns, dtr__now_ns())) {
        look(ns, called);
    }
}

void dtr__notices_visit(dtr_world *world) {
    dtr__notices_visit_at(world, dtr__now_ns());
}

void dtr__notices_visit_at(dtr_world *world, int64_t now_ns) {
    dtr__notices *ns = notices_of(world);
    if (ns != NULL && due(ns, now_ns)) {
        dtr__notices_look(world);
    }
}

void dtr__notices_look(dtr_world *world) {
    dtr__notices *ns = notices_of(world);
    dtr__queue called = { NULL, NULL };
    if (ns == NULL || !dtr__mpi_alive() || !dtr__mpi_trylock(world)) {
        return;
    }
    look(ns, &called);
    dtr__mpi_unlock(world);
    dtr__callbacks_run(&called);
}
