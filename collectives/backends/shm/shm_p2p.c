/* Point to point: the messages of works. */
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "core/call_site.h"
#include "core/work.h"
#include "engine/engine.h"
#include "engine/fast_entry.h"
#include "shm_p2p.h"

/* Of a message that does not fit, before that is told. Every thread and rank may end all works
 * then, at once; those whose messages were found with it, and fit, have ended well within two
 * steps. */
enum { POLLS_MORE = 2 };

static const char *site_of(const dtr_work *w) {
    return w->memory.like != NULL ? w->memory.like->record.site : dtr__call_site_cached(&w->call);
}

/* A new message, put at **tail; NULL when out of memory. What the other side says is not read
 * before it has come. */
static dtr__shm_msg *add(dtr__shm_p2p *p, const dtr_p2p *op, size_t index, const dtr_work *w,
                         void ***tail) {
    const size_t own = offsetof(dtr__shm_msg, next);
    dtr__shm_msg *m = dtr__message_new(&p->pool, sizeof *m, offsetof(dtr__message, own), op, index);
    if (m != NULL) {
        memset((char *)m + own, 0, sizeof *m - own);
        memcpy(m->base.own.site, site_of(w), sizeof m->base.own.site);
        **tail = m;
        *tail = &m->base.sibling;
    }
    return m;
}

/* ---- sends ---- */

static bool push(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_out *out, dtr__shm_msg *m) {
    if (m->base.nbytes > p->short_max) {
        return dtr__shm_push_long(g, p, out, m);
    }
    const dtr__terms *own = &m->base.own;
    const dtr_p2p op = { .buf = dtr_cpu(m->base.data, own->count, (dtr_dtype)own->dtype),
                         .tag = m->base.tag };
    m->done = dtr__shm_push_short(p, out, &op, m->base.nbytes, own->site);
    return m->done;
}

/* An earlier message with the same tag, which must not be overtaken. */
static bool is_behind(const dtr__shm_out *out, const dtr__shm_msg *m) {
    const dtr__shm_msg *i = out->queue.head;
    while (i != m && i->base.tag != m->base.tag) {
        i = i->next;
    }
    return i != m;
}

/* What waits for space in the ring, in order; a long message that finds no slot lets other tags
 * pass, since the slots may be those of messages that are received after them. */
static void flush(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_out *out) {
    bool stuck = false;
    for (dtr__shm_msg *m = out->queue.head, *next; m != NULL; m = next) {
        next = m->next;
        if (stuck && (m->base.nbytes > p->short_max || is_behind(out, m))) {
            continue;
        }
        if (m->base.nbytes > p->short_max && out->busy == UINT64_MAX) {
            stuck = true;
        } else if (push(g, p, out, m)) {
            dtr__shm_unpost(&out->queue, m);
        } else {
            return;
        }
    }
}

static void queue_send(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_msg *m) {
    dtr__shm_out *out = &p->out[m->base.peer];
    m->next = NULL;
    m->queued = true;
    *(out->queue.tail != NULL ? &out->queue.tail->next : &out->queue.head) = m;
    out->queue.tail = m;
    flush(g, p, out);
}

static void leave_slot(dtr__shm_out *out, const dtr__shm_msg *m) {
    out->slot[m->slot] = NULL;
    out->busy &= ~(UINT64_C(1) << m->slot);
}

/* What the receivers answer about long messages. */
static void receive_answers(dtr__shm_p2p *p, dtr__shm_out *out) {
    for (uint64_t left = out->busy; left != 0; left &= left - 1) {
        dtr__shm_msg *m = out->slot[__builtin_ctzll(left)];
        uint32_t answer =
            atomic_load_explicit(&out->channel->answer[m->slot], memory_order_acquire);
        if (answer == DTR__SHM_SEND_PIECES) {
            dtr__shm_push_pieces(p, out, m);
            m->done = m->moved == m->base.nbytes;
        } else if (answer == DTR__SHM_REFUSES) {
            m->base.other = out->channel->refused;
            m->differs = true;
        } else {
            m->done = answer == DTR__SHM_HAS_IT;
        }
        if (m->done || m->differs) {
            leave_slot(out, m);
            p->moves++;
        }
    }
}

/* ---- works ---- */

static dtr_status take_from_all(const dtr_group *g, dtr__shm_state *s) {
    for (int r = 0; r < g->size; r++) {
        DTR_TRY(dtr__shm_take(g, s, r));
    }
    return DTR_OK;
}

static dtr_status move_one(const dtr_group *g, dtr__shm_state *s, dtr_work *w, dtr__shm_msg *m) {
    dtr__shm_p2p *p = s->p2p;
    if (m->base.is_send && !m->done) {
        flush(g, p, &p->out[m->base.peer]);
        receive_answers(p, &p->out[m->base.peer]);
    }
    if (!m->base.is_send && !m->done && !m->differs) {
        DTR_TRY(m->base.peer == DTR_ANY_SOURCE ? take_from_all(g, s)
                                               : dtr__shm_take(g, s, m->base.peer));
    }
    if (!m->base.is_send && !m->done && m->base.announced && !m->differs &&
        m->where != DTR__SHM_BY_PIECES) {
        dtr__shm_fetch(g, p, m);
    }
    if (m->differs) {
        w->moved = true;
        return m->polls++ < POLLS_MORE ? DTR_OK : dtr__p2p_mismatch(w, &m->base);
    }
    if (m->done && w->call.kind == DTR__K_RECV) {
        w->source = m->base.peer;
    }
    return DTR_OK;
}

/* A failed work is given up at once. */
static dtr_status move(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done) {
    const uint64_t before = s->p2p->moves;
    dtr_status status = DTR_OK;
    for (void **link = &w->request; *link != NULL && status == DTR_OK;) {
        dtr__shm_msg *m = *link;
        status = move_one(g, s, w, m);
        if (status == DTR_OK && m->done) {
            *link = m->base.sibling;
            dtr__message_free(&s->p2p->pool, m);
        } else {
            link = &m->base.sibling;
        }
    }
    w->moved = w->moved || s->p2p->moves != before;
    *done = w->request == NULL && status == DTR_OK;
    if (status < 0) {
        dtr__work_give_up(g, &dtr__backend_shm, s, w, status);
    }
    return status;
}

static void queue_either(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_msg *m) {
    if (m->base.is_send) {
        queue_send(g, p, m);
    } else {
        dtr__shm_p2p_queue_receive(g, p, m);
    }
}

/* A message, begun and put at **tail. */
static dtr_status begin(const dtr_group *g, dtr__shm_state *s, const dtr_work *w, const dtr_p2p *op,
                        size_t index, void ***tail) {
    if (op->is_send) {
        DTR_TRY(dtr__shm_out_open(g, s, op->peer));
    }
    dtr__shm_msg *m = add(s->p2p, op, index, w, tail);
    if (m == NULL) {
        return dtr__message_no_memory(w, index, sizeof *m);
    }
    m->waits = w->inline_call && w->call.kind == DTR__K_SEND;
    queue_either(g, s->p2p, m);
    return DTR_OK;
}

dtr_status dtr__shm_p2p_add(const dtr_group *g, dtr__shm_state *s, dtr_work *w, const dtr_p2p *op,
                            size_t index, dtr__shm_msg **message) {
    void *first = NULL, **tail = &first;
    (void)dtr__shm_enter(s->boards[g->rank]); /* nothing is delivered if the works have ended */
    dtr_status status = begin(g, s, w, op, index, &tail);
    dtr__shm_leave(s->boards[g->rank]);
    DTR_TRY(status);
    *tail = w->request;
    w->request = *message = first;
    return DTR_OK;
}

void dtr__shm_p2p_take_back(dtr__shm_state *s, dtr_work *w, dtr__shm_msg *m) {
    void **link = &w->request;
    while (*link != m) {
        link = &((dtr__message *)*link)->sibling;
    }
    *link = m->base.sibling;
    dtr__shm_unpost(&s->p2p->posted, m);
    dtr__message_free(&s->p2p->pool, m);
}

static dtr_status start_list(const dtr_group *g, dtr__shm_state *s, dtr_work *w) {
    dtr__p2p_walk walk = dtr__p2p_begin(&w->call);
    void **tail = &w->request;
    for (const dtr_p2p *op; (op = dtr__p2p_next(&walk)) != NULL;) {
        DTR_TRY(begin(g, s, w, op, walk.index, &tail));
    }
    return DTR_OK;
}

dtr_status dtr__shm_p2p_start(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done) {
    DTR_TRY(dtr__shm_p2p_need(g, s));
    if (!dtr__shm_enter(s->boards[g->rank])) {
        return DTR_OK; /* its works have ended */
    }
    dtr_status status = start_list(g, s, w);
    if (status < 0) {
        dtr__work_give_up(g, &dtr__backend_shm, s, w, status);
    } else {
        status = move(g, s, w, done);
    }
    dtr__shm_leave(s->boards[g->rank]);
    return status;
}

/* A receive that another work's step has found the message of. */
static bool was_delivered(const dtr__shm_state *s, dtr_work *w) {
    dtr__shm_msg *m = w->request;
    if (w->call.kind != DTR__K_RECV || m == NULL || !m->done) {
        return false;
    }
    atomic_store_explicit(&w->source, m->base.peer, memory_order_relaxed);
    w->request = NULL;
    dtr__message_free(&s->p2p->pool, m);
    return true;
}

/* A receive, without a message, of what has not come: many of one step ask that in turn. */
static bool waits_still(const dtr_group *g, dtr__shm_state *s, const dtr_work *w) {
    const dtr__shm_msg *m = w->request;
    return w->call.kind == DTR__K_RECV && m != NULL && m->queued && m->base.peer >= 0 &&
           dtr__shm_cell_next(g, s, m->base.peer) == NULL;
}

dtr_status dtr__shm_p2p_progress(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done) {
    *done = was_delivered(s, w);
    if (*done || waits_still(g, s, w)) {
        return DTR_OK;
    }
    if (!dtr__shm_enter(s->boards[g->rank])) {
        return DTR_OK;
    }
    dtr_status status = move(g, s, w, done);
    dtr__shm_leave(s->boards[g->rank]);
    return status;
}

/* The receiver of an announced message may be reading it: it knows that it must not trust what it
 * reads, or the work has not ended yet. */
void dtr__shm_p2p_cancel(dtr__shm_state *s, dtr_work *w) {
    dtr__shm_p2p *p = s->p2p;
    for (dtr__shm_msg *m = w->request, *next; m != NULL; m = next) {
        next = m->base.sibling;
        dtr__shm_out *out = m->base.is_send ? &p->out[m->base.peer] : NULL;
        if (m->queued) {
            dtr__shm_unpost(m->base.is_send ? &out->queue : &p->posted, m);
        } else if (m->base.is_send && out->slot[m->slot] == m) {
            leave_slot(out, m);
        } else if (!m->base.is_send && m->base.announced &&
                   p->in[m->base.peer].slot[m->slot] == m) {
            p->in[m->base.peer].slot[m->slot] = NULL;
        }
        dtr__message_free(&p->pool, m);
    }
    w->request = NULL;
}

void dtr__shm_p2p_relieve(const dtr_group *g, dtr__shm_state *s) {
    bool any = s->p2p != NULL;
    if (s->lent) {
        return;
    }
    for (int r = 0; !any && r < g->size; r++) {
        const _Atomic uint64_t *offer = dtr__shm_offer(s, g->rank, r);
        any = offer != NULL && atomic_load_explicit(offer, memory_order_relaxed) != 0;
    }
    if (any && dtr__shm_p2p_need(g, s) == DTR_OK && dtr__shm_enter(s->boards[g->rank])) {
        (void)take_from_all(g, s); /* what finds no memory is still in the ring for a receive */
        dtr__shm_leave(s->boards[g->rank]);
    }
}

/* ---- the fast path: short messages, polled without a work ---- */

bool dtr__shm_p2p_fast_accept(const dtr__shm_state *s, const dtr__call *c) {
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(c, &single, &n);
    for (size_t i = 0; i < n && s->p2p != NULL; i++) {
        if (ops[i].buf.count * dtr_dtype_size(ops[i].buf.dtype) > s->p2p->short_max ||
            (n > 1 && ops[i].peer == DTR_ANY_SOURCE)) {
            return false;
        }
    }
    return n <= DTR__P2P_SET_MOST && s->p2p != NULL;
}

static size_t bytes_of(const dtr_p2p *op) {
    return op->buf.count * dtr_dtype_size(op->buf.dtype);
}

static bool send_now(dtr__shm_p2p *p, const char *site, const dtr_p2p *op) {
    return dtr__shm_push_short(p, &p->out[op->peer], op, bytes_of(op), site);
}

/* An earlier message of the list, to or from the same rank, that is not through yet. */
static bool must_wait(const dtr_p2p *ops, size_t i, dtr__p2p_set pending) {
    for (size_t k = 0; k < i; k++) {
        if (dtr__p2p_set_has(pending, k) && ops[k].is_send == ops[i].is_send &&
            ops[k].peer == ops[i].peer) {
            return true;
        }
    }
    return false;
}

static void send_what_fits(dtr__shm_p2p *p, const dtr__call *c, const char *site) {
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(c, &single, &n);
    for (size_t i = 0; i < n; i++) {
        if (ops[i].is_send && dtr__p2p_set_has(p->pending, i) && !must_wait(ops, i, p->pending) &&
            send_now(p, site, &ops[i])) {
            p->pending &= ~(UINT32_C(1) << i);
        }
    }
}

/* What is sent goes at once, so that it is on its way while the call is noted. */
bool dtr__shm_p2p_fast_start(dtr__shm_state *s, const dtr__call *c, dtr__p2p_set which,
                             const char *site) {
    dtr__shm_p2p *p = s->p2p;
    if (p->pool.n_idle < dtr__p2p_set_size(which) || p->early != NULL) {
        return false;
    }
    p->pending = which;
    send_what_fits(p, c, site);
    return true;
}

/* 1: it is here; 0: nothing is; -1: something else is. */
static int receive_now(const dtr_group *g, dtr__shm_state *s, const dtr_p2p *op, size_t nbytes,
                       int peer) {
    const dtr__shm_cell *cell = dtr__shm_cell_next(g, s, peer);
    if (cell == NULL) {
        return 0;
    }
    if (dtr__shm_cell_kind_of(cell) != DTR__SHM_SHORT || cell->tag != op->tag ||
        cell->count != op->buf.count || cell->dtype != (uint8_t)op->buf.dtype) {
        return -1;
    }
    if (nbytes > 0) {
        dtr__shm_copy(op->buf.data, dtr__shm_cell_data(g, cell, nbytes), nbytes);
    }
    dtr__shm_cell_taken(g, s->p2p, peer, cell);
    return 1;
}

static int receive_from_any(const dtr_group *g, dtr__shm_state *s, const dtr_p2p *op) {
    int found = 0;
    for (int r = 0; r < g->size && found == 0; r++) {
        found = receive_now(g, s, op, bytes_of(op), r);
    }
    return found;
}

int dtr__shm_p2p_fast_poll(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    dtr__shm_p2p *p = s->p2p;
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(c, &single, &n);
    for (size_t i = 0; i < n; i++) {
        const dtr_p2p *op = &ops[i];
        if (!dtr__p2p_set_has(p->pending, i) || must_wait(ops, i, p->pending)) {
            continue;
        }
        int found = op->is_send                  ? send_now(p, dtr__call_site_cached(c), op)
                    : op->peer == DTR_ANY_SOURCE ? receive_from_any(g, s, op)
                                                 : receive_now(g, s, op, bytes_of(op), op->peer);
        if (found < 0) {
            return -1;
        }
        p->pending &= ~((uint32_t)found << i);
    }
    return p->pending == 0;
}

/* Earlier sends may wait for space in the ring, earlier receives for what is in it. */
int dtr__shm_fast_path_message(dtr_group *g, void *state, const dtr__fast_path *entry) {
    dtr__shm_state *s = state;
    dtr__shm_p2p *p = s->p2p;
    const dtr__call *c = &entry->call;
    const dtr_p2p op = { .is_send = c->kind == DTR__K_SEND,
                         .buf = dtr_cpu(c->out, c->in_count, c->dtype),
                         .peer = c->root,
                         .tag = c->tag };
    if (op.is_send
            ? p->out[op.peer].queue.head == NULL &&
                  dtr__shm_push_short(p, &p->out[op.peer], &op, entry->in_bytes, entry->record.site)
            : p->early == NULL && p->posted.head == NULL &&
                  receive_now(g, s, &op, entry->in_bytes, op.peer) > 0) {
        return 1;
    }
    p->pending = 1;
    return p->pool.n_idle > 0 ? 0 : -1;
}

void dtr__shm_p2p_fast_to_work(const dtr_group *g, dtr__shm_state *s, dtr_work *w) {
    dtr__shm_p2p *p = s->p2p;
    void **tail = &w->request;
    w->request = NULL;
    if (w->call.kind != DTR__K_BATCH && p->pending != 0) {
        dtr_p2p single;
        size_t n = 0;
        queue_either(g, p, add(p, dtr__p2p_list(&w->call, &single, &n), 0, w, &tail));
        return;
    }
    dtr__p2p_walk walk = dtr__p2p_begin(&w->call);
    for (const dtr_p2p *op; (op = dtr__p2p_next(&walk)) != NULL;) {
        if (dtr__p2p_set_has(p->pending, walk.index)) {
            queue_either(g, p, add(p, op, walk.index, w, &tail)); /* from the idle ones */
        }
    }
}
