/* Messages of a call and what is said about them. */
#include <stdio.h>
#include <string.h>

#include "p2p.h"

const dtr_p2p *dtr__p2p_list(const dtr__call *c, dtr_p2p *room, size_t *n) {
    if (c->kind == DTR__K_BATCH) {
        *n = c->n_batch;
        return c->batch;
    }
    *n = 1;
    *room = (dtr_p2p){ .is_send = c->kind == DTR__K_SEND,
                       .buf = dtr_cpu(c->out, c->in_count, c->dtype),
                       .peer = c->root,
                       .tag = c->tag };
    return room;
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

dtr_status dtr__p2p_mismatch(const dtr_work *w, const dtr__message *m, const dtr__terms *own,
                             const dtr__terms *other) {
    dtr__error_context ctx = dtr__work_context(w);
    char entry[40] = "";
    if (w->call.kind == DTR__K_BATCH) {
        snprintf(entry, sizeof entry, "ops[%zu]: ", m->index);
    }
    return DTR_FAIL(
        &ctx, DTR_ERR_MISMATCH,
        "%srank %d %s %s x %llu (at %.48s), but this rank %s %s x %llu (at %.48s), tag "
        "%d; both sides of a message must give the same dtype and count",
        entry, m->peer, m->is_send ? "receives" : "sends", dtr_dtype_name((dtr_dtype)other->dtype),
        (unsigned long long)other->count, other->site, m->is_send ? "sends" : "receives",
        dtr_dtype_name((dtr_dtype)own->dtype), (unsigned long long)own->count, own->site, m->tag);
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
