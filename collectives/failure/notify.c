/* Sending and receiving notifications of broken groups. Any thread may ask for one to be sent, and
 * the next thread that may call MPI sends it. Threads that wait inside the library receive them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agreement/mailbox.h"
#include "control/peers.h"
#include "engine/engine.h"
#include "failure/failure.h"
#include "failure/notify.h"
#include "failure/peer_failure.h"
#include "failure/released.h"

enum {
    LOOK_EVERY_NS = 500000,
    PAUSE_NS = 250000000, /* from so long without a look on it is a thorough one */
    PROBES = 2,           /* that find nothing, one after another */
    PROBES_AFTER_PAUSE = 64,
    THOROUGH_NS = 5000000, /* ... if they take no longer: where cores are shared, each may yield */
    UNCLAIMED = 16         /* kept for groups that this rank is still making */
};

typedef struct notification {
    uint64_t epoch;
    dtr__failure_record what;
} notification;
_Static_assert(sizeof(notification) != sizeof(dtr__release_message),
               "the receiver tells what came by its size");

typedef struct outgoing {
    struct outgoing *next;
    union {
        notification broken;
        dtr__release_message released;
    } what;
    size_t nbytes; /* of `what` */
    int n;
    int to[]; /* world ranks */
} outgoing;

/* Of a group that this rank has not made yet. */
typedef struct early {
    struct early *next;
    int from;
    dtr__release_message what;
} early;

struct dtr__notifier {
    dtr_world *world;
    uint64_t epoch;
    _Atomic int64_t looked_ns;
    _Atomic int n_out;
    dtr__poller poller;       /* sends where nobody is inside the library */
    pthread_mutex_t out_lock; /* guards out; no other lock is taken under it */
    outgoing *out;
    pthread_mutex_t lock; /* guards the rest; order: groups->lock after it */
    dtr__control_message *messages;
    dtr__arriving *in;
    notification unclaimed[UNCLAIMED];
    unsigned n_unclaimed;
    early *early;
};

static int poll_out(dtr__poller *poller) {
    dtr__notifier *ns = (dtr__notifier *)((char *)poller - offsetof(dtr__notifier, poller));
    dtr__release_poll(ns->world);
    if (atomic_load(&ns->n_out) == 0) {
        return DTR__POLL_IDLE;
    }
    dtr__notifier_visit_now(ns->world);
    return atomic_load(&ns->n_out) == 0 ? DTR__POLL_MOVED : DTR__POLL_WAITING;
}

dtr__notifier *dtr__notifier_new(dtr_world *world, uint64_t epoch) {
    dtr__notifier *ns = calloc(1, sizeof(*ns));
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

dtr_status dtr__notifier_stop(dtr__notifier *ns, double limit_s) {
    dtr__error_context ctx = { .world = ns->world, .operation = "dtr_world_destroy" };
    if (dtr__progress_remove(ns->world, &ns->poller, limit_s)) {
        return DTR_OK;
    }
    dtr__progress_give_up_for_good(ns->world);
    return DTR_FAIL(
        &ctx, DTR_ERR_TIMEOUT,
        "dtr_world_destroy: a thread has been sending or receiving notifications of broken groups "
        "for more than %g s; the world is abandoned",
        limit_s);
}

void dtr__notifier_free(dtr__notifier *ns, bool mpi_alive) {
    if (ns == NULL || !dtr__progress_remove(ns->world, &ns->poller, INFINITY)) {
        return;
    }
    if (mpi_alive) {
        dtr__mailbox_flush(&ns->messages);
        dtr__mailbox_close(&ns->in);
    }
    while (ns->out != NULL) {
        outgoing *next = ns->out->next;
        free(ns->out);
        ns->out = next;
    }
    for (early *e = ns->early, *next; e != NULL; e = next) {
        next = e->next;
        free(e);
    }
    pthread_mutex_destroy(&ns->lock);
    pthread_mutex_destroy(&ns->out_lock);
    free(ns);
}

static dtr__notifier *notifier_of(const dtr_world *world) {
    return world->groups != NULL ? world->groups->notifier : NULL;
}

/* ---- asking for a notification ---- */

/* NULL without memory: the others reach their own deadlines. */
static outgoing *new_outgoing(const dtr_group *g) {
    return calloc(1, sizeof(outgoing) + sizeof(int) * (size_t)g->size);
}

/* To the other members. */
static void queue_out(dtr__notifier *ns, const dtr_group *g, outgoing *o) {
    for (int i = 0; i < g->size; i++) {
        if (i != g->rank && !dtr__rank_failed(g->world, g->world_ranks[i])) {
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

/* This thread's last error will be sent. */
static void queue_notification(dtr__notifier *ns, const dtr_group *g, dtr_status s) {
    outgoing *o = new_outgoing(g);
    if (o != NULL) {
        o->what.broken.epoch = ns->epoch;
        dtr__failure_describe(g, s, &o->what.broken.what);
        o->nbytes = sizeof(o->what.broken);
        queue_out(ns, g, o);
    }
}

void dtr__notify_released(dtr_group *g, const dtr__release_message *message) {
    dtr__notifier *ns = notifier_of(g->world);
    outgoing *o = ns != NULL && g->size > 1 ? new_outgoing(g) : NULL;
    if (o != NULL) {
        o->what.released = *message;
        o->what.released.epoch = ns->epoch;
        o->nbytes = sizeof(o->what.released);
        queue_out(ns, g, o);
    }
}

void dtr__notify_broken(dtr_group *g, dtr_status s) {
    dtr__notifier *ns = notifier_of(g->world);
    if (ns != NULL && g->size > 1 && atomic_exchange(&g->failure->notified, 1) == 0) {
        queue_notification(ns, g, s);
    }
}

void dtr__notify_nan(dtr_group *g) {
    dtr__notifier *ns = notifier_of(g->world);
    if (ns != NULL && g->size > 1 && atomic_exchange(&g->failure->nan_notified, 1) == 0) {
        queue_notification(ns, g, DTR_ERR_NAN);
    }
}

/* ns->lock and the right to call MPI are held. */
static void send_out(dtr__notifier *ns) {
    pthread_mutex_lock(&ns->out_lock);
    outgoing *next = ns->out;
    ns->out = NULL;
    pthread_mutex_unlock(&ns->out_lock);
    for (outgoing *o = next; o != NULL; o = next) {
        next = o->next;
        for (int i = 0; i < o->n; i++) {
            (void)dtr__mailbox_send(ns->world, &ns->messages, o->to[i], DTR__TAG_NOTIFY, &o->what,
                                    o->nbytes, NULL, 0);
        }
        free(o);
        atomic_fetch_sub(&ns->n_out, 1);
    }
    dtr__mailbox_reap(&ns->messages);
}

/* ---- receiving ---- */

bool dtr__status_shared(dtr_status s) {
    return s == DTR_ERR_TIMEOUT || s == DTR_ERR_MISMATCH || s == DTR_ERR_ABORTED ||
           s == DTR_ERR_REMOTE;
}

static dtr_group *find_uid(dtr_group *first, uint64_t uid) {
    dtr_group *g = first;
    while (g != NULL && g->uid != uid) {
        g = g->next;
    }
    return g;
}

/* groups->lock keeps the group from being taken apart meanwhile. */
static bool deliver(dtr__notifier *ns, const notification *n, dtr__queue *called) {
    dtr__groups *gs = ns->world->groups;
    pthread_mutex_lock(&gs->lock);
    dtr_group *g = find_uid(gs->first, n->what.uid);
    if (g != NULL && n->what.status == DTR_ERR_NAN) {
        DTR_WARN(ns->world, "%s (reported once per group and rank)", n->what.text);
    } else if (g != NULL) {
        dtr__failure_apply(g, &n->what, called);
    }
    pthread_mutex_unlock(&gs->lock);
    return g != NULL;
}

/* What comes before this rank has made the group is kept; of one that is gone here nothing is of
 * interest. */
static void receive_release(dtr__notifier *ns, const dtr__release_message *n, int from) {
    dtr__groups *gs = ns->world->groups;
    pthread_mutex_lock(&gs->lock);
    dtr_group *g = find_uid(gs->first, n->uid);
    if (g != NULL) {
        dtr__release_receive(g, from, n);
    } else if (find_uid(gs->gone, n->uid) == NULL) {
        early *e = malloc(sizeof(*e));
        if (e != NULL) {
            *e = (early){ .next = ns->early, .from = from, .what = *n };
            ns->early = e;
        }
    }
    pthread_mutex_unlock(&gs->lock);
}

static void claim_early(dtr__notifier *ns, dtr_group *g) {
    dtr__groups *gs = ns->world->groups;
    for (early **at = &ns->early; *at != NULL;) {
        early *e = *at;
        if (e->what.uid != g->uid) {
            at = &e->next;
            continue;
        }
        pthread_mutex_lock(&gs->lock);
        dtr__release_receive(g, e->from, &e->what);
        pthread_mutex_unlock(&gs->lock);
        *at = e->next;
        free(e);
    }
}

/* A probe of MPI may only bring in what the next one finds, and of what others have sent meanwhile
 * one message alone (MPICH 5): a notification behind some more needs as many probes. */
static void take_in(dtr__notifier *ns, int probes, dtr__queue *called) {
    const int64_t end = dtr__now_ns() + THOROUGH_NS;
    void *message = NULL;
    size_t nbytes = 0;
    int from = -1;
    for (int empty = 0; empty < PROBES || (empty < probes && dtr__now_ns() < end);) {
        if (dtr__mailbox_receive(ns->world, &ns->in, DTR__TAG_NOTIFY, &message, &nbytes, &from) <
            0) {
            return;
        }
        notification *n = message;
        if (n == NULL) {
            empty++;
        } else if (nbytes == sizeof(dtr__release_message) && n->epoch == ns->epoch) {
            receive_release(ns, message, from);
        } else if (nbytes == sizeof(*n) && n->epoch == ns->epoch) {
            const dtr__failure_record *v = &n->what;
            bool delivered = deliver(ns, n, called);
            if (v->failed_rank > 0 && v->failed_rank <= ns->world->size) {
                dtr__peer_failed(ns->world, v->failed_rank - 1,
                                 v->status == DTR_ERR_TIMEOUT ? DTR_ERR_TIMEOUT : DTR_ERR_REMOTE,
                                 v->text, false, called);
            } else if (!delivered && v->status != DTR_ERR_NAN) {
                ns->unclaimed[ns->n_unclaimed++ % UNCLAIMED] = *n;
            }
        }
        free(message);
    }
}

void dtr__notifier_claim(dtr_group *group) {
    dtr__notifier *ns = notifier_of(group->world);
    dtr__queue called = { NULL, NULL };
    pthread_mutex_lock(&ns->lock);
    for (int i = 0; i < UNCLAIMED; i++) {
        if (ns->unclaimed[i].what.uid == group->uid) {
            deliver(ns, &ns->unclaimed[i], &called);
            ns->unclaimed[i].what.uid = 0;
        }
    }
    claim_early(ns, group);
    pthread_mutex_unlock(&ns->lock);
    dtr__callbacks_run(&called);
}

/* ---- polling ---- */

/* How many probes are due, 0: no look is. */
static int due(dtr__notifier *ns, int64_t now) {
    int64_t looked = atomic_load(&ns->looked_ns);
    if (now - looked >= LOOK_EVERY_NS &&
        atomic_compare_exchange_strong(&ns->looked_ns, &looked, now)) {
        return now - looked >= PAUSE_NS ? PROBES_AFTER_PAUSE : PROBES;
    }
    return atomic_load(&ns->n_out) > 0 ? PROBES : 0;
}

static void look(dtr__notifier *ns, int probes, dtr__queue *called) {
    if (!dtr__ranks_reachable(ns->world) || pthread_mutex_trylock(&ns->lock) != 0) {
        return;
    }
    send_out(ns);
    take_in(ns, probes, called);
    atomic_store(&ns->looked_ns, dtr__now_ns()); /* or long looks would follow each other */
    if (atomic_load(&ns->world->groups->n_released) > 0) {
        pthread_mutex_lock(&ns->world->groups->lock);
        dtr__release_check(ns->world, called);
        pthread_mutex_unlock(&ns->world->groups->lock);
    }
    pthread_mutex_unlock(&ns->lock);
}

void dtr__notifier_poll(dtr_world *world, dtr__queue *called) {
    dtr__notifier *ns = notifier_of(world);
    const int probes = ns != NULL ? due(ns, dtr__now_ns()) : 0;
    if (probes > 0) {
        look(ns, probes, called);
    }
}

static void visit(dtr__notifier *ns, int probes) {
    dtr_world *world = ns->world;
    dtr__queue called = { NULL, NULL };
    if (!dtr__ranks_reachable(world) || !dtr__mpi_trylock(world)) {
        return;
    }
    look(ns, probes, &called);
    dtr__mpi_unlock(world);
    dtr__callbacks_run(&called);
}

void dtr__notifier_visit(dtr_world *world) {
    dtr__notifier_visit_at(world, dtr__now_ns());
}

void dtr__notifier_visit_at(dtr_world *world, int64_t now_ns) {
    dtr__notifier *ns = notifier_of(world);
    const int probes = ns != NULL ? due(ns, now_ns) : 0;
    if (probes > 0) {
        visit(ns, probes);
    }
}

void dtr__notifier_visit_now(dtr_world *world) {
    dtr__notifier *ns = notifier_of(world);
    if (ns != NULL) {
        visit(ns, PROBES);
    }
}
