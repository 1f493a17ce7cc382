/* Messages of a call, and the texts about them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/message.h"
#include "core/team.h"
#include "core/work.h"

const dtr_p2p *dtr__p2p_list(const dtr__call *c, dtr_p2p *single, size_t *n) {
    if (c->kind == DTR__K_BATCH) {
        *n = c->n_batch;
        return c->batch;
    }
    *n = 1;
    *single = (dtr_p2p){ .is_send = c->kind == DTR__K_SEND,
                         .buf = dtr_cpu(c->out, c->in_count, c->dtype),
                         .peer = c->root,
                         .tag = c->tag };
    return single;
}

dtr__p2p_walk dtr__p2p_begin(const dtr__call *c) {
    dtr__p2p_walk walk = { .list = c->kind == DTR__K_BATCH ? c->batch : NULL };
    (void)dtr__p2p_list(c, &walk.single, &walk.n);
    return walk;
}

const dtr_p2p *dtr__p2p_next(dtr__p2p_walk *walk) {
    while (walk->step < 2 * walk->n) {
        const bool sends = walk->step >= walk->n;
        walk->index = walk->step++ % walk->n;
        const dtr_p2p *op = walk->list != NULL ? &walk->list[walk->index] : &walk->single;
        if (op->is_send == sends) {
            return op;
        }
    }
    return NULL;
}

bool dtr__p2p_is_nothing(const dtr__call *c) {
    return c->kind == DTR__K_BATCH ? c->n_batch == 0
                                   : dtr__kind_is_p2p(c->kind) && c->root == DTR_PEER_NONE;
}

bool dtr__p2p_has_nothing(const dtr__request *r) {
    for (size_t i = 0; r->batch != NULL && i < r->n_batch; i++) {
        if (r->batch[i].peer == DTR_PEER_NONE) {
            return true;
        }
    }
    return false;
}

size_t dtr__p2p_leave_out(const dtr__request *r, dtr_p2p *list) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_batch; i++) {
        if (r->batch[i].peer != DTR_PEER_NONE) {
            list[n++] = r->batch[i];
        }
    }
    return n;
}

dtr__p2p_set dtr__p2p_all(const dtr__call *c) {
    const size_t n = c->kind == DTR__K_BATCH ? c->n_batch : 1;
    return (dtr__p2p_set)((UINT64_C(1) << n) - 1);
}

size_t dtr__p2p_set_size(dtr__p2p_set which) {
    size_t n = 0;
    for (; which != 0; which &= which - 1) {
        n++;
    }
    return n;
}

/* ---- messages of works ---- */

enum {
    IDLE_MOST = 1024,      /* messages that are kept, */
    IDLE_BYTES = 16 << 20, /* ... and their bytes */
    WAITS_MOST = 8         /* that a text names */
};

void *dtr__message_new(dtr__message_pool *pool, size_t nbytes, size_t zeroed, const dtr_p2p *op,
                       size_t index) {
    dtr__message *m = pool->idle;
    if (m != NULL) {
        pool->idle = m->sibling;
        pool->n_idle--;
    } else if ((m = malloc(nbytes)) == NULL) {
        return NULL;
    }
    pool->nbytes = nbytes;
    memset((void *)m, 0, zeroed);
    m->is_send = op->is_send;
    m->peer = op->peer;
    m->tag = op->tag;
    m->index = index;
    m->data = op->buf.data;
    m->nbytes = op->buf.count * dtr_dtype_size(op->buf.dtype);
    m->own.count = op->buf.count;
    m->own.dtype = op->buf.dtype;
    return m;
}

void dtr__message_free(dtr__message_pool *pool, void *message) {
    dtr__message *m = message;
    if (pool->n_idle >= IDLE_MOST || pool->n_idle * pool->nbytes >= IDLE_BYTES) {
        free(m);
        return;
    }
    m->sibling = pool->idle;
    pool->idle = m;
    pool->n_idle++;
}

void dtr__message_pool_close(dtr__message_pool *pool) {
    for (dtr__message *m = pool->idle, *next; m != NULL; m = next) {
        next = m->sibling;
        free(m);
    }
    *pool = (dtr__message_pool){ NULL, 0, 0 };
}

dtr_status dtr__message_no_memory(const dtr_work *w, size_t index, size_t nbytes) {
    dtr__error_context ctx = dtr__work_context(w);
    return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for message %zu of a call (%zu bytes each)",
                    index + 1, nbytes);
}

dtr_status dtr__p2p_mismatch(const dtr_work *w, const dtr__message *m) {
    dtr__error_context ctx = dtr__work_context(w);
    char entry[40] = "";
    if (w->call.kind == DTR__K_BATCH) {
        snprintf(entry, sizeof entry, "ops[%zu]: ", m->index);
    }
    return DTR_FAIL(&ctx, DTR_ERR_MISMATCH,
                    "%srank %d %s %s x %llu (at %.48s), but this rank %s %s x %llu (at %.48s), tag "
                    "%d; both sides of a message must give the same dtype and count",
                    entry, m->peer, m->is_send ? "receives" : "sends",
                    dtr_dtype_name((dtr_dtype)m->other.dtype), (unsigned long long)m->other.count,
                    m->other.site, m->is_send ? "sends" : "receives",
                    dtr_dtype_name((dtr_dtype)m->own.dtype), (unsigned long long)m->own.count,
                    m->own.site, m->tag);
}

static int say(const dtr_group *group, const dtr__message *m, char *text, size_t cap) {
    if (m->peer == DTR_ANY_SOURCE) {
        return snprintf(text, cap, "no rank has sent a message with tag %d", m->tag);
    }
    const char *what = m->is_send     ? "has not received the message"
                       : m->announced ? "has announced the message but not sent all of it"
                                      : "has not sent the message";
    return snprintf(text, cap, "rank %d (world %d) %s with tag %d", m->peer,
                    group->world_ranks[m->peer], what, m->tag);
}

size_t dtr__p2p_waits_for(const dtr_group *group, const dtr__message *m, char *text, size_t cap,
                          size_t used) {
    if (used != 0 && used + 3 < cap) {
        memcpy(text + used, "; ", 3);
        used += 2;
    }
    int n = say(group, m, text + used, cap - used);
    return used + (n < 0 ? 0 : (size_t)n < cap - used ? (size_t)n : cap - used - 1);
}

void dtr__messages_wait_for(const dtr_group *group, const void *first, char *text, size_t cap) {
    size_t used = 0;
    int named = 0;
    text[0] = '\0';
    for (const dtr__message *m = first; m != NULL && named < WAITS_MOST; m = m->sibling, named++) {
        used = dtr__p2p_waits_for(group, m, text, cap, used);
    }
}
