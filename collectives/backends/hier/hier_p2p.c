/* Messages of a group over several nodes: between ranks of one node they go over its channels, to
 * others over MPI. A sender knows which way its message goes; a receive from anybody waits on both,
 * and is taken back from the one when the other has a message for it. What MPI has must not pass it
 * meanwhile, so later receives of its tag from other nodes wait for their turn. */
#include <stdlib.h>
#include <string.h>

#include "backends/hier/hier.h"
#include "backends/mpi/mpi.h"
#include "backends/shm/shm.h"
#include "backends/shm/shm_p2p.h"
#include "core/call_site.h"
#include "core/work.h"
#include "engine/fast_entry.h"
#include "hier_internal.h"

/* What a work waits for: its request. */
typedef struct dtr__hier_messages {
    struct dtr__hier_messages *next; /* in the idle list */
    void *node, *remote;             /* requests of the two backends */
} dtr__hier_messages;

typedef struct dtr__hier_turn {
    struct dtr__hier_turn *next;
    dtr_work *work;
    dtr_p2p op;
    size_t index;
    dtr__shm_msg *node; /* from anybody: the half of it that waits on the node, NULL once it has
                           its message */
} dtr__hier_turn;

dtr_status dtr__hier_p2p_open(dtr_group *g, dtr__hier_state *s) {
    const dtr__hier_lane *intra = &s->lane[DTR__HIER_INTRA];
    if (intra->backend != &dtr__backend_shm || !dtr__shm_has_channels(&intra->group)) {
        return DTR_OK;
    }
    return dtr__shm_lend(g, &intra->group, intra->state, &s->node);
}

void dtr__hier_p2p_close(dtr_group *g, dtr__hier_state *s) {
    if (s->node != NULL) {
        dtr__shm_lend_end(g, s->node);
    }
    for (dtr__hier_messages *m = s->idle, *next; m != NULL; m = next) {
        next = m->next;
        free(m);
    }
    for (dtr__hier_turn *t = s->idle_turns, *next; t != NULL; t = next) {
        next = t->next;
        free(t);
    }
}

static bool is_on_node(const dtr__hier_state *s, int peer) {
    return s->node->place[peer] >= 0;
}

/* ---- memory ---- */

static dtr__hier_messages *take_messages(dtr__hier_state *s) {
    dtr__hier_messages *m = s->idle;
    if (m == NULL) {
        return calloc(1, sizeof *m);
    }
    s->idle = m->next;
    m->node = m->remote = NULL;
    return m;
}

static void give_back(dtr__hier_state *s, dtr__hier_messages *m) {
    m->next = s->idle;
    s->idle = m;
}

static dtr_status no_memory(const dtr_work *w) {
    dtr__error_context ctx = dtr__work_context(w);
    return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for what it waits for");
}

/* ---- turns ---- */

static dtr_status add_turn(dtr__hier_state *s, dtr_work *w, const dtr_p2p *op, size_t index,
                           dtr__shm_msg *node) {
    dtr__hier_turn *t = s->idle_turns, **link = &s->turns;
    if (t != NULL) {
        s->idle_turns = t->next;
    } else if ((t = malloc(sizeof *t)) == NULL) {
        return no_memory(w);
    }
    *t = (dtr__hier_turn){ .work = w, .op = *op, .index = index, .node = node };
    if (node != NULL) {
        node->watch = &t->node;
    }
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = t;
    return DTR_OK;
}

static void drop_turn(dtr__hier_state *s, dtr__hier_turn **link) {
    dtr__hier_turn *t = *link;
    *link = t->next;
    t->next = s->idle_turns;
    s->idle_turns = t;
}

static bool is_served(const dtr__hier_turn *t) {
    return t->op.peer == DTR_ANY_SOURCE && t->node == NULL;
}

/* Does one before `until` (NULL: any) wait for a message with this tag? */
static bool is_awaited(const dtr__hier_state *s, int tag, const dtr__hier_turn *until) {
    const dtr__hier_turn *t = s->turns;
    while (t != until && (t->op.tag != tag || is_served(t))) {
        t = t->next;
    }
    return t != until;
}

/* Begin what has its turn; *over when it need not wait any more. */
static dtr_status take_turn(dtr_group *g, dtr__hier_state *s, dtr_work *w, dtr__hier_messages *m,
                            const dtr__hier_turn *t, bool *over) {
    dtr_status status = DTR_OK;
    *over = is_served(t);
    if (*over || is_awaited(s, t->op.tag, t) || dtr__progress_only_helps(g->world)) {
        return DTR_OK;
    }
    w->request = m->remote;
    if (t->node == NULL) {
        *over = true;
        status = dtr__mpi_p2p_add(g, s->mpi, w, &t->op, t->index);
    } else {
        status = dtr__mpi_p2p_claim(g, s->mpi, w, &t->op, t->index, over);
    }
    m->remote = w->request;
    if (*over && t->node != NULL) {
        w->request = m->node;
        dtr__shm_p2p_take_back(s->node, w, t->node);
        m->node = w->request;
    }
    w->moved |= *over;
    w->request = m;
    return status;
}

static dtr_status take_turns(dtr_group *g, dtr__hier_state *s, dtr_work *w, bool *done) {
    for (dtr__hier_turn **link = &s->turns; *link != NULL;) {
        bool over = false;
        if ((*link)->work == w) {
            DTR_TRY(take_turn(g, s, w, w->request, *link, &over));
            *done &= over;
        }
        if (over) {
            drop_turn(s, link);
        } else {
            link = &(*link)->next;
        }
    }
    return DTR_OK;
}

/* ---- works ---- */

static dtr_status add_one(dtr_group *g, dtr__hier_state *s, dtr_work *w, const dtr_p2p *op,
                          size_t index) {
    dtr__hier_messages *m = w->request;
    dtr__shm_msg *message = NULL;
    dtr_status status = DTR_OK;
    if (op->peer == DTR_ANY_SOURCE || is_on_node(s, op->peer)) {
        w->request = m->node;
        status = dtr__shm_p2p_add(g, s->node, w, op, index, &message);
        m->node = w->request;
    } else if (op->is_send || !is_awaited(s, op->tag, NULL)) {
        w->request = m->remote;
        status = dtr__mpi_p2p_add(g, s->mpi, w, op, index);
        m->remote = w->request;
    } else {
        status = add_turn(s, w, op, index, NULL);
    }
    w->request = m;
    if (status == DTR_OK && op->peer == DTR_ANY_SOURCE && message->queued) {
        status = add_turn(s, w, op, index, message);
    }
    return status;
}

static dtr_status move(dtr_group *g, dtr__hier_state *s, dtr_work *w, bool *done) {
    dtr__hier_messages *m = w->request;
    const bool helps = dtr__progress_only_helps(g->world);
    bool node = true;
    *done = true;
    dtr_status status = take_turns(g, s, w, done);
    if (status == DTR_OK && m->node != NULL) {
        w->request = m->node;
        status = dtr__shm_p2p_progress(g, s->node, w, &node);
        m->node = w->request;
    }
    bool remote = m->remote == NULL;
    if (status == DTR_OK && !remote && !helps) {
        w->request = m->remote;
        status = dtr__backend_mpi.progress(g, s->mpi, w, &remote);
        m->remote = w->request;
    }
    w->request = m;
    *done &= status == DTR_OK && node && remote;
    if (status < 0 && !helps) {
        dtr__work_give_up(g, &dtr__backend_hier, s, w, status);
    } else if (*done) {
        w->request = NULL;
        give_back(s, m);
    }
    return status;
}

dtr_status dtr__hier_p2p_start(dtr_group *g, dtr__hier_state *s, dtr_work *w, bool *done) {
    dtr__p2p_walk walk = dtr__p2p_begin(&w->call);
    dtr_status status = DTR_OK;
    if (s->node == NULL) {
        return dtr__backend_mpi.start(g, s->mpi, w, done);
    }
    DTR_TRY(dtr__shm_p2p_need(g, s->node));
    w->request = take_messages(s);
    if (w->request == NULL) {
        return no_memory(w);
    }
    for (const dtr_p2p *op; status == DTR_OK && (op = dtr__p2p_next(&walk)) != NULL;) {
        status = add_one(g, s, w, op, walk.index);
    }
    if (status < 0) {
        dtr__work_give_up(g, &dtr__backend_hier, s, w, status);
        return status;
    }
    return move(g, s, w, done);
}

/* What is on the node, and what that has served, goes without. */
bool dtr__hier_p2p_needs_mpi(const dtr__hier_state *s, const dtr_work *w) {
    const dtr__hier_messages *m = w->request;
    if (s->node == NULL) {
        return true;
    }
    if (!w->started) {
        dtr__p2p_walk walk = dtr__p2p_begin(&w->call);
        const dtr_p2p *op;
        while ((op = dtr__p2p_next(&walk)) != NULL) {
            if (op->peer != DTR_ANY_SOURCE && !is_on_node(s, op->peer)) {
                return true;
            }
        }
        return false;
    }
    bool waits = m != NULL && m->remote != NULL;
    for (const dtr__hier_turn *t = s->turns; t != NULL && !waits; t = t->next) {
        waits = t->work == w && !is_served(t);
    }
    return waits && (m == NULL || m->node == NULL);
}

dtr_status dtr__hier_p2p_progress(dtr_group *g, dtr__hier_state *s, dtr_work *w, bool *done) {
    return s->node == NULL ? dtr__backend_mpi.progress(g, s->mpi, w, done) : move(g, s, w, done);
}

void dtr__hier_p2p_cancel(dtr_group *g, dtr__hier_state *s, dtr_work *w) {
    dtr__hier_messages *m = w->request;
    if (s->node == NULL || m == NULL) {
        dtr__backend_mpi.cancel(g, s->mpi, w);
        return;
    }
    w->request = m->node;
    dtr__shm_p2p_cancel(s->node, w);
    for (dtr__hier_turn **link = &s->turns; *link != NULL;) {
        if ((*link)->work == w) {
            drop_turn(s, link);
        } else {
            link = &(*link)->next;
        }
    }
    w->request = m->remote;
    dtr__backend_mpi.cancel(g, s->mpi, w);
    w->request = NULL;
    give_back(s, m);
}

void dtr__hier_p2p_waits_for(dtr_group *g, dtr__hier_state *s, dtr_work *w, char *text,
                             size_t cap) {
    dtr__hier_messages *m = w->request;
    text[0] = '\0';
    if (s->node == NULL || m == NULL) {
        (void)dtr__backend_mpi.waits_for(g, s->mpi, w, text, cap);
        return;
    }
    w->request = m->node;
    dtr__messages_wait_for(g, w->request, text, cap);
    size_t used = strlen(text), joint = used != 0 ? 2 : 0;
    w->request = m->remote;
    if (m->remote != NULL && used + joint + 1 < cap) {
        memcpy(text + used, "; ", joint);
        (void)dtr__backend_mpi.waits_for(g, s->mpi, w, text + used + joint, cap - used - joint);
    }
    w->request = m;
    used = strlen(text);
    for (const dtr__hier_turn *t = s->turns; t != NULL; t = t->next) {
        if (t->work == w && t->op.peer != DTR_ANY_SOURCE) {
            dtr__message held = { .peer = t->op.peer, .tag = t->op.tag, .index = t->index };
            used = dtr__p2p_waits_for(g, &held, text, cap, used);
        }
    }
}

void dtr__hier_p2p_relieve(const dtr_group *g, dtr__hier_state *s) {
    if (s->node != NULL) {
        dtr__shm_p2p_relieve(g, s->node);
    }
}

/* ---- the fast path ---- */

typedef struct ways {
    bool known; /* not of a receive from anybody, which waits on both */
    dtr__p2p_set node, remote;
} ways;

static ways ways_of(const dtr__hier_state *s, const dtr__call *c) {
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(c, &single, &n);
    ways w = { true, 0, dtr__p2p_all(c) };
    if (s->node == NULL) {
        return w;
    }
    for (size_t i = 0; i < n; i++) {
        w.known &= ops[i].peer != DTR_ANY_SOURCE;
        if (w.known && is_on_node(s, ops[i].peer)) {
            w.node |= UINT32_C(1) << i;
        }
    }
    w.remote &= ~w.node;
    return w;
}

/* Collectives that go through the mpi backend take its fast path. */
bool dtr__hier_fast_path_accept(dtr_group *g, void *state, const dtr__call *c, dtr__moves *m) {
    dtr__hier_state *s = state;
    if (!dtr__kind_is_p2p(c->kind)) {
        return !dtr__hier_by_nodes(g, s, c) && dtr__backend_mpi.fast_path_accept(g, s->mpi, c, m);
    }
    ways w = ways_of(s, c);
    return w.known && (w.node == 0 || dtr__shm_p2p_fast_accept(s->node, c)) &&
           (w.remote == 0 || dtr__backend_mpi.fast_path_accept(g, s->mpi, c, m));
}

/* Nothing may be given to one side when the other has no room; what a long one becomes needs its
 * request. */
static bool start_messages(const dtr_group *g, dtr__hier_state *s, const dtr__call *c) {
    ways w = ways_of(s, c);
    return (s->node == NULL || s->idle != NULL) &&
           s->mpi->pool.n_idle >= dtr__p2p_set_size(w.remote) &&
           (w.node == 0 || dtr__shm_p2p_fast_start(s->node, c, w.node, dtr__call_site_cached(c))) &&
           (w.remote == 0 || dtr__mpi_p2p_fast_start(g, s->mpi, c, w.remote));
}

static int look_for_messages(const dtr_group *g, dtr__hier_state *s, const dtr__call *c) {
    ways w = ways_of(s, c);
    int node = w.node == 0 ? 1 : dtr__shm_p2p_fast_poll(g, s->node, c);
    int remote = w.remote == 0 || node < 0 ? 1 : dtr__mpi_p2p_fast_poll(g, s->mpi);
    return node < remote ? node : remote;
}

bool dtr__hier_fast_path_start(dtr_group *g, void *state, const dtr__fast_path *p) {
    dtr__hier_state *s = state;
    return p->p2p ? start_messages(g, s, &p->call) : dtr__backend_mpi.fast_path_start(g, s->mpi, p);
}

int dtr__hier_fast_path_poll(dtr_group *g, void *state, const dtr__fast_path *p) {
    dtr__hier_state *s = state;
    return p->p2p ? look_for_messages(g, s, &p->call)
                  : dtr__backend_mpi.fast_path_poll(g, s->mpi, p);
}

/* What waits for its turn must not be passed. */
int dtr__hier_fast_path_message(dtr_group *g, void *state, const dtr__fast_path *p) {
    dtr__hier_state *s = state;
    if (s->node != NULL && (s->idle == NULL || s->turns != NULL)) {
        return -1;
    }
    return ways_of(s, &p->call).node != 0 ? dtr__shm_fast_path_message(g, s->node, p)
                                          : dtr__backend_mpi.fast_path_message(g, s->mpi, p);
}

void dtr__hier_fast_path_to_work(dtr_group *g, void *state, dtr_work *w) {
    dtr__hier_state *s = state;
    if (s->node == NULL || !dtr__kind_is_p2p(w->call.kind)) {
        dtr__backend_mpi.fast_path_to_work(g, s->mpi, w);
        return;
    }
    dtr__hier_messages *m = take_messages(s); /* from the idle ones */
    ways how = ways_of(s, &w->call);
    if (how.node != 0) {
        dtr__shm_p2p_fast_to_work(g, s->node, w);
        m->node = w->request;
    }
    if (how.remote != 0) {
        dtr__backend_mpi.fast_path_to_work(g, s->mpi, w);
        m->remote = w->request;
    }
    w->request = m;
}
