/* Receives and messages find each other: in the order of the calls on one side, of arrival from
 * each rank on the other. */
#include <stdlib.h>
#include <string.h>

#include "shm_p2p.h"

enum { FETCH_MOST = 4 << 20 }; /* bytes before others get a turn */

static bool fits(const dtr__shm_msg *m, int source, int tag) {
    return m->base.tag == tag && (m->base.peer == source || m->base.peer == DTR_ANY_SOURCE);
}

void dtr__shm_unpost(dtr__shm_queue *q, dtr__shm_msg *m) {
    dtr__shm_msg *before = NULL;
    for (dtr__shm_msg *i = q->head; i != m; i = i->next) {
        before = i;
    }
    *(before != NULL ? &before->next : &q->head) = m->next;
    q->tail = q->tail == m ? before : q->tail;
    m->queued = false;
    m->next = NULL;
    if (m->watch != NULL) {
        *m->watch = NULL;
        m->watch = NULL;
    }
}

/* ---- a message and its receive ---- */

static void answer(dtr__shm_p2p *p, const dtr__shm_msg *m, dtr__shm_answer what) {
    dtr__shm_channel *channel = p->in[m->base.peer].channel;
    atomic_store_explicit(&channel->answer[m->slot], (uint32_t)what, memory_order_release);
    p->moves++;
}

static void ask_for_pieces(dtr__shm_p2p *p, dtr__shm_msg *m) {
    m->where = DTR__SHM_BY_PIECES;
    m->moved = 0;
    p->in[m->base.peer].slot[m->slot] = m;
    answer(p, m, DTR__SHM_SEND_PIECES);
}

/* The sender ends with the terms of the first message that was refused; the group is broken then.
 */
static void refuse(dtr__shm_p2p *p, const dtr__shm_msg *m) {
    dtr__shm_in *in = &p->in[m->base.peer];
    if (!in->refused) {
        in->channel->refused = m->base.own;
        in->refused = true;
    }
    answer(p, m, DTR__SHM_REFUSES);
}

static void deliver(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_msg *m, int source,
                    const dtr__shm_cell *cell, bool is_short) {
    m->base.peer = source;
    m->base.announced = true;
    m->slot = cell->slot;
    m->base.other.count = cell->count;
    m->base.other.dtype = cell->dtype;
    m->differs = !dtr__terms_fit(&m->base.own, &m->base.other);
    p->moves++;
    if (m->differs) {
        memcpy(m->base.other.site, cell->site, sizeof cell->site);
        if (!is_short) {
            refuse(p, m);
        }
    } else if (is_short) {
        if (dtr__shm_has_withdrawn(p->own, DTR__SHM_BUFFERS)) {
            return; /* its work has ended */
        }
        if (m->base.nbytes > 0) {
            dtr__shm_copy(m->base.data, dtr__shm_cell_data(g, cell, m->base.nbytes),
                          m->base.nbytes);
        }
        m->done = true;
    } else {
        m->where = cell->where;
        m->at = cell->at;
        if (m->where == DTR__SHM_BY_PIECES) {
            ask_for_pieces(p, m);
        }
    }
}

void dtr__shm_p2p_queue_receive(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_msg *m) {
    dtr__shm_early *before = NULL;
    for (dtr__shm_early *e = p->early; e != NULL; before = e, e = e->next) {
        if (fits(m, e->source, e->cell.tag)) {
            *(before != NULL ? &before->next : &p->early) = e->next;
            p->last_early = p->last_early == e ? before : p->last_early;
            deliver(g, p, m, e->source, &e->cell, e->cell.where == DTR__SHM_IN_CELL);
            dtr__shm_early_free(p, e);
            return;
        }
    }
    m->queued = true;
    m->next = NULL;
    *(p->posted.tail != NULL ? &p->posted.tail->next : &p->posted.head) = m;
    p->posted.tail = m;
}

/* ---- the ring ---- */

/* A step of a training program whose peer is a moment ahead must not cost an allocation. */
static dtr__shm_early *early_new(dtr__shm_p2p *p, size_t behind) {
    dtr__shm_early *e = p->spare;
    if (behind == 0 && e != NULL) {
        p->spare = e->next;
        return e;
    }
    return aligned_alloc(DTR__SHM_LINE,
                         (sizeof *e + behind + DTR__SHM_LINE - 1) / DTR__SHM_LINE * DTR__SHM_LINE);
}

void dtr__shm_early_free(dtr__shm_p2p *p, dtr__shm_early *e) {
    if ((uintptr_t)e - (uintptr_t)p->kept >= p->n_kept * sizeof *e) { /* not one of them */
        free(e);
        return;
    }
    e->next = p->spare;
    p->spare = e;
}

static dtr_status put_aside(const dtr_group *g, dtr__shm_p2p *p, int source,
                            const dtr__shm_cell *cell, bool is_short) {
    size_t nbytes = is_short ? cell->count * dtr_dtype_size((dtr_dtype)cell->dtype) : 0;
    size_t behind = nbytes > DTR__SHM_CELL_FIRST ? nbytes : 0;
    dtr__shm_early *e = early_new(p, behind);
    DTR_REQUIRE(e != NULL, NULL, DTR_ERR_NOMEM,
                "group '%s': no memory for a message of %zu bytes from rank %d that came before "
                "its receive",
                g->name, nbytes, source);
    *e = (dtr__shm_early){ .source = source };
    memcpy(&e->cell, cell, sizeof e->cell);
    if (behind > 0) {
        memcpy(&e->cell + 1, dtr__shm_cell_data(g, cell, nbytes), behind);
    }
    e->cell.where = is_short ? DTR__SHM_IN_CELL : cell->where;
    *(p->last_early != NULL ? &p->last_early->next : &p->early) = e;
    p->last_early = e;
    return DTR_OK;
}

static void take_piece(dtr__shm_in *in, const dtr__shm_cell *cell) {
    dtr__shm_msg *m = in->slot[cell->slot];
    if (m == NULL) { /* given up */
        return;
    }
    memcpy(m->base.data + m->moved, (const unsigned char *)cell + DTR__SHM_LINE, cell->count);
    m->moved += cell->count;
    if (m->moved == m->base.nbytes) {
        m->done = true;
        in->slot[cell->slot] = NULL;
    }
}

static dtr__shm_msg *wanted_by(const dtr__shm_p2p *p, int source, int tag) {
    dtr__shm_msg *m = p->posted.head;
    while (m != NULL && !fits(m, source, tag)) {
        m = m->next;
    }
    return m;
}

dtr_status dtr__shm_take(const dtr_group *g, dtr__shm_state *s, int peer) {
    dtr__shm_p2p *p = s->p2p;
    dtr__shm_in *in = &p->in[peer];
    const dtr__shm_cell *cell;
    uint64_t until = in->taken + FETCH_MOST / DTR__SHM_LINE;
    /* Once nothing is asked for the rest is left to the next receive, which need not look aside. */
    for (bool last = false;
         !last && in->taken < until && (cell = dtr__shm_cell_next(g, s, peer)) != NULL;) {
        dtr__shm_cell_kind kind = dtr__shm_cell_kind_of(cell);
        dtr__shm_msg *m = kind == DTR__SHM_PIECE ? NULL : wanted_by(p, peer, cell->tag);
        if (kind == DTR__SHM_PIECE) {
            take_piece(in, cell);
        } else if (m == NULL) {
            DTR_TRY(put_aside(g, p, peer, cell, kind == DTR__SHM_SHORT));
        } else {
            dtr__shm_unpost(&p->posted, m);
            deliver(g, p, m, peer, cell, kind == DTR__SHM_SHORT);
            last = p->posted.head == NULL;
        }
        dtr__shm_cell_taken(g, p, peer, cell);
    }
    return DTR_OK;
}

/* ---- long messages in the sender's memory ---- */

/* Up to nbytes of it; false when the kernel will not read it. */
static bool copy_some(const dtr_group *g, dtr__shm_msg *m, size_t nbytes) {
    char *to = m->base.data + m->moved;
    if (m->where == DTR__SHM_BY_KERNEL) {
        return dtr__cma_read(g->world, g->world->local_rank_of[g->world_ranks[m->base.peer]], to,
                             m->at + m->moved, nbytes);
    }
    const char *from = m->where == DTR__SHM_OWN ? (const char *)(uintptr_t)m->at
                                                : dtr__shm_unpack(g->world, m->at);
    memmove(to, from + m->moved, nbytes);
    return true;
}

/* As receives_meanwhile in shm_p2p_channel.c. */
static bool sends_meanwhile(const dtr_group *g, const dtr__shm_p2p *p) {
    int r = 0;
    while (r < g->size && p->out[r].busy == 0) {
        r++;
    }
    return r < g->size;
}

void dtr__shm_fetch(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_msg *m) {
    size_t nbytes = m->base.nbytes - m->moved;
    if (nbytes == 0) {
        return; /* the sender had given it up */
    }
    if (m->where == DTR__SHM_BY_EITHER) {
        if (!sends_meanwhile(g, p)) {
            ask_for_pieces(p, m);
            return;
        }
        m->where = DTR__SHM_BY_KERNEL;
    }
    nbytes = nbytes < FETCH_MOST ? nbytes : FETCH_MOST;
    if (!copy_some(g, m, nbytes)) {
        ask_for_pieces(p, m);
        return;
    }
    m->moved += nbytes;
    p->moves++;
    if (m->moved == m->base.nbytes &&
        !dtr__shm_has_withdrawn(p->boards[m->base.peer], DTR__SHM_BUFFERS)) {
        m->done = true;
        answer(p, m, DTR__SHM_HAS_IT);
    }
}
