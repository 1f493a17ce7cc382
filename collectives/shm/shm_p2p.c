/* Point to point: the messages of works. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "shm/shm_p2p.h"

enum { IDLE_MAX = 1024 /* messages kept for reuse per group */ };

/* ---- memory ---- */

static dtr__shm_msg *take_idle(dtr__shm_p2p *p) {
    dtr__shm_msg *m = p->idle;
    if (m != NULL) {
        p->idle = m->sibling;
        p->n_idle--;
        return m;
    }
    return malloc(sizeof *m);
}

static void give_back(dtr__shm_p2p *p, dtr__shm_msg *m) {
    if (p->n_idle >= IDLE_MAX) {
        free(m);
        return;
    }
    m->sibling = p->idle;
    p->idle = m;
    p->n_idle++;
}

/* A new message, put at **tail; NULL when out of memory. */
static dtr__shm_msg *add(dtr__shm_p2p *p, const dtr_p2p *op, size_t index, const dtr__call *c,
                         dtr__shm_msg ***tail) {
    dtr__shm_msg *m = take_idle(p);
    if (m == NULL) {
        return NULL;
    }
    memset(m, 0, offsetof(dtr__shm_msg, own));
    m->is_send = op->is_send;
    m->peer = op->peer;
    m->tag = op->tag;
    m->index = index;
    m->data = op->buf.data;
    m->nbytes = op->buf.count * dtr_dtype_size(op->buf.dtype);
    m->own.count = op->buf.count;
    m->own.dtype = op->buf.dtype;
    memcpy(m->own.site, dtr__call_site_cached(c), sizeof m->own.site);
    **tail = m;
    *tail = &m->sibling;
    return m;
}

/* ---- sends ---- */

static bool push(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_out *out, dtr__shm_msg *m) {
    if (m->nbytes > p->short_max) {
        return dtr__shm_push_long(g, p, out, m);
    }
    m->done = dtr__shm_push_short(p, out, &m->own, m->tag, m->data, m->nbytes);
    return m->done;
}

/* An earlier message with the same tag, which must not be overtaken. */
static bool is_behind(const dtr__shm_out *out, const dtr__shm_msg *m) {
    const dtr__shm_msg *i = out->queue.head;
    while (i != m && i->tag != m->tag) {
        i = i->next;
    }
    return i != m;
}

/* What waits for room, in order; a long message that finds no slot lets other tags pass, since the
 * slots may be those of messages that are received after them. */
static void flush(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_out *out) {
    bool stuck = false;
    for (dtr__shm_msg *m = out->queue.head, *next; m != NULL; m = next) {
        next = m->next;
        if (stuck && (m->nbytes > p->short_max || is_behind(out, m))) {
            continue;
        }
        if (m->nbytes > p->short_max && out->busy == UINT64_MAX) {
            stuck = true;
        } else if (push(g, p, out, m)) {
            dtr__shm_unpost(&out->queue, m);
        } else {
            return;
        }
    }
}

static void post_send(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_msg *m) {
    dtr__shm_out *out = &p->out[m->peer];
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

/* What the receiver says about long messages. */
static void hear(dtr__shm_p2p *p, dtr__shm_out *out) {
    for (uint64_t left = out->busy; left != 0; left &= left - 1) {
        dtr__shm_msg *m = out->slot[__builtin_ctzll(left)];
        uint32_t said = atomic_load_explicit(&out->channel->answer[m->slot], memory_order_acquire);
        if (said == DTR__SHM_SEND_PIECES) {
            dtr__shm_push_pieces(p, out, m);
            m->done = m->moved == m->nbytes;
        } else if (said == DTR__SHM_REFUSES) {
            m->other = out->channel->refused;
            m->differs = true;
        } else {
            m->done = said == DTR__SHM_HAS_IT;
        }
        if (m->done || m->differs) {
            leave_slot(out, m);
            p->moves++;
        }
    }
}

/* ---- works ---- */

static dtr__message message_of(const dtr__shm_msg *m) {
    return (dtr__message){ m->is_send, m->arrived, m->peer, m->tag, m->index };
}

static dtr_status take_from_all(const dtr_group *g, dtr__shm_state *s) {
    for (int r = 0; r < g->size; r++) {
        DTR_TRY(dtr__shm_take(g, s, r));
    }
    return DTR_OK;
}

static dtr_status move_one(const dtr_group *g, dtr__shm_state *s, dtr_work *w, dtr__shm_msg *m) {
    dtr__shm_p2p *p = s->p2p;
    if (m->is_send && !m->done) {
        flush(g, p, &p->out[m->peer]);
        hear(p, &p->out[m->peer]);
    }
    if (!m->is_send && !m->done && !m->differs) {
        DTR_TRY(m->peer == DTR_ANY_SOURCE ? take_from_all(g, s) : dtr__shm_take(g, s, m->peer));
    }
    if (!m->is_send && !m->done && m->arrived && !m->differs && m->where != DTR__SHM_BY_PIECES) {
        dtr__shm_fetch(g, p, m);
    }
    if (m->differs) {
        dtr__message text = message_of(m);
        return dtr__p2p_mismatch(w, &text, &m->own, &m->other);
    }
    if (m->done && w->call.kind == DTR__K_RECV) {
        w->source = m->peer;
    }
    return DTR_OK;
}

/* A failed work is given up at once. */
static dtr_status move(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done) {
    dtr__shm_msg *first = w->request, **link = &first;
    const uint64_t before = s->p2p->moves;
    dtr_status status = DTR_OK;
    while (*link != NULL && status == DTR_OK) {
        dtr__shm_msg *m = *link;
        status = move_one(g, s, w, m);
        if (status == DTR_OK && m->done) {
            *link = m->sibling;
            give_back(s->p2p, m);
        } else {
            link = &m->sibling;
        }
    }
    w->request = first;
    w->moved = w->moved || s->p2p->moves != before;
    *done = first == NULL && status == DTR_OK;
    if (status < 0) {
        dtr__work_give_up(g, &dtr__backend_shm, s, w, status);
    }
    return status;
}

/* A message, begun and put at **tail. */
static dtr_status begin(const dtr_group *g, dtr__shm_state *s, const dtr_work *w, const dtr_p2p *op,
                        size_t index, dtr__shm_msg ***tail) {
    if (op->is_send) {
        DTR_TRY(dtr__shm_out_open(g, s, op->peer));
    }
    dtr__shm_msg *m = add(s->p2p, op, index, &w->call, tail);
    if (m == NULL) {
        dtr__error_context ctx = dtr__work_context(w);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for message %zu of a call (%zu bytes each)",
                        index + 1, sizeof *m);
    }
    m->waits = w->inline_call && w->call.kind == DTR__K_SEND;
    if (op->is_send) {
        post_send(g, s->p2p, m);
    } else {
        dtr__shm_post_receive(g, s->p2p, m);
    }
    return DTR_OK;
}

dtr_status dtr__shm_p2p_add(const dtr_group *g, dtr__shm_state *s, dtr_work *w, const dtr_p2p *op,
                            size_t index, dtr__shm_msg **message) {
    dtr__shm_msg *first = NULL, **tail = &first;
    DTR_TRY(begin(g, s, w, op, index, &tail));
    *tail = w->request;
    w->request = *message = first;
    return DTR_OK;
}

void dtr__shm_p2p_take_back(dtr__shm_state *s, dtr_work *w, dtr__shm_msg *m) {
    dtr__shm_msg *first = w->request, **link = &first;
    while (*link != m) {
        link = &(*link)->sibling;
    }
    *link = m->sibling;
    w->request = first;
    dtr__shm_unpost(&s->p2p->posted, m);
    give_back(s->p2p, m);
}

/* Receives first, so that what this rank sends to itself finds them; list order within each. */
static dtr_status start_list(const dtr_group *g, dtr__shm_state *s, dtr_work *w) {
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(&w->call, &single, &n);
    dtr__shm_msg *first = NULL, **tail = &first;
    dtr_status status = DTR_OK;
    for (size_t k = 0; k < 2 * n && status == DTR_OK; k++) {
        const dtr_p2p *op = &ops[k % n];
        if (op->is_send == (k >= n)) {
            status = begin(g, s, w, op, k % n, &tail);
        }
    }
    w->request = first;
    return status;
}

dtr_status dtr__shm_p2p_start(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done) {
    DTR_TRY(dtr__shm_p2p_need(g, s));
    dtr_status status = start_list(g, s, w);
    if (status < 0) {
        dtr__work_give_up(g, &dtr__backend_shm, s, w, status);
        return status;
    }
    return move(g, s, w, done);
}

dtr_status dtr__shm_p2p_progress(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done) {
    return move(g, s, w, done);
}

/* The receiver of an announced message may be reading it: it has been told not to trust what it
 * reads, or the work has not ended yet. */
void dtr__shm_p2p_cancel(dtr__shm_state *s, dtr_work *w) {
    dtr__shm_p2p *p = s->p2p;
    for (dtr__shm_msg *m = w->request, *next; m != NULL; m = next) {
        next = m->sibling;
        dtr__shm_out *out = m->is_send ? &p->out[m->peer] : NULL;
        if (m->queued) {
            dtr__shm_unpost(m->is_send ? &out->queue : &p->posted, m);
        } else if (m->is_send && out->slot[m->slot] == m) {
            leave_slot(out, m);
        } else if (!m->is_send && m->arrived && p->in[m->peer].slot[m->slot] == m) {
            p->in[m->peer].slot[m->slot] = NULL;
        }
        give_back(p, m);
    }
    w->request = NULL;
}

void dtr__shm_p2p_waits_for(const dtr_group *g, const dtr_work *w, char *text, size_t cap) {
    size_t used = 0;
    int named = 0;
    text[0] = '\0';
    for (const dtr__shm_msg *m = w->request; m != NULL && named < DTR__P2P_WAITS_MAX;
         m = m->sibling, named++) {
        dtr__message text_of = message_of(m);
        used = dtr__p2p_waits_for(g, &text_of, text, cap, used);
    }
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
    if (any && dtr__shm_p2p_need(g, s) == DTR_OK) {
        (void)take_from_all(g, s); /* what finds no memory is still there when a receive looks */
    }
}

/* ---- repeats: short messages, looked for without a work ---- */

bool dtr__shm_p2p_repeat_accept(const dtr__shm_state *s, const dtr__call *c) {
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(c, &single, &n);
    for (size_t i = 0; i < n; i++) {
        if (ops[i].buf.count * dtr_dtype_size(ops[i].buf.dtype) > s->p2p->short_max ||
            (n > 1 && ops[i].peer == DTR_ANY_SOURCE)) {
            return false;
        }
    }
    return n <= DTR__P2P_SET_MOST;
}

static size_t bytes_of(const dtr_p2p *op) {
    return op->buf.count * dtr_dtype_size(op->buf.dtype);
}

static bool send_now(dtr__shm_p2p *p, const dtr__call *c, const dtr_p2p *op) {
    dtr__terms terms = { .count = op->buf.count, .dtype = op->buf.dtype };
    memcpy(terms.site, dtr__call_site_cached(c), sizeof terms.site);
    return dtr__shm_push_short(p, &p->out[op->peer], &terms, op->tag, op->buf.data, bytes_of(op));
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

static void send_what_fits(dtr__shm_p2p *p, const dtr__call *c) {
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(c, &single, &n);
    for (size_t i = 0; i < n; i++) {
        if (ops[i].is_send && dtr__p2p_set_has(p->pending, i) && !must_wait(ops, i, p->pending) &&
            send_now(p, c, &ops[i])) {
            p->pending &= ~(UINT32_C(1) << i);
        }
    }
}

/* What is sent goes at once, so that it is on its way while the call is noted. */
bool dtr__shm_p2p_repeat_post(dtr__shm_state *s, const dtr__call *c, dtr__p2p_set which) {
    dtr__shm_p2p *p = s->p2p;
    if (p->n_idle < dtr__p2p_set_size(which) || p->early != NULL) {
        return false;
    }
    p->pending = which;
    send_what_fits(p, c);
    return true;
}

/* 1: it is here; 0: nothing is; -1: something else is. */
static int receive_now(const dtr_group *g, dtr__shm_state *s, const dtr_p2p *op, int peer) {
    const dtr__shm_cell *cell = dtr__shm_cell_next(g, s, peer);
    const size_t nbytes = bytes_of(op);
    if (cell == NULL) {
        return 0;
    }
    if (dtr__shm_cell_kind_of(cell) != DTR__SHM_SHORT || cell->tag != op->tag ||
        cell->count != op->buf.count || cell->dtype != (uint8_t)op->buf.dtype) {
        return -1;
    }
    if (nbytes > 0) {
        memcpy(op->buf.data, dtr__shm_cell_data(cell, nbytes), nbytes);
    }
    dtr__shm_cell_taken(s->p2p, &s->p2p->in[peer], cell);
    return 1;
}

static int receive_from_any(const dtr_group *g, dtr__shm_state *s, const dtr_p2p *op) {
    int found = 0;
    for (int r = 0; r < g->size && found == 0; r++) {
        found = receive_now(g, s, op, r);
    }
    return found;
}

int dtr__shm_p2p_repeat_look(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    dtr__shm_p2p *p = s->p2p;
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(c, &single, &n);
    for (size_t i = 0; i < n; i++) {
        const dtr_p2p *op = &ops[i];
        if (!dtr__p2p_set_has(p->pending, i) || must_wait(ops, i, p->pending)) {
            continue;
        }
        int found = op->is_send                  ? send_now(p, c, op)
                    : op->peer == DTR_ANY_SOURCE ? receive_from_any(g, s, op)
                                                 : receive_now(g, s, op, op->peer);
        if (found < 0) {
            return -1;
        }
        p->pending &= ~((uint32_t)found << i);
    }
    return p->pending == 0;
}

void dtr__shm_p2p_repeat_go_on(const dtr_group *g, dtr__shm_state *s, dtr_work *w) {
    dtr__shm_p2p *p = s->p2p;
    dtr_p2p single;
    size_t n = 0;
    const dtr_p2p *ops = dtr__p2p_list(&w->call, &single, &n);
    dtr__shm_msg *first = NULL, **tail = &first;
    for (size_t k = 0; k < 2 * n; k++) {
        const dtr_p2p *op = &ops[k % n];
        if (op->is_send != (k >= n) || !dtr__p2p_set_has(p->pending, k % n)) {
            continue;
        }
        dtr__shm_msg *m = add(p, op, k % n, &w->call, &tail); /* from the idle ones */
        if (op->is_send) {
            post_send(g, p, m);
        } else {
            dtr__shm_post_receive(g, p, m);
        }
    }
    w->request = first;
}
