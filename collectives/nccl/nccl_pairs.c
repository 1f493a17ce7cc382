/* Messages that NCCL carries. It does not compare what the two ends give: one of them hangs, or
 * takes bytes for what they are not. So each message gets a number that its other end has too, in
 * its record, and records are compared: by the watchdog, and when something has failed. */
#include <string.h>

#include "compare_pairs.h"
#include "declare.h"
#include "nccl/nccl_internal.h"
#include "rt_peers.h"
#include "verdict.h"

#define MS INT64_C(1000000)
enum {
    CHANNEL_SHIFT = 40,
    EVERY_MS = 150, /* between two looks of the watchdog, */
    EVERY_PER_RANK_MS = 5,
    KEEP_MS = 10000 /* a message that has ended is looked for so long at its other end */
};
#define LONE (UINT64_C(1) << 23) /* in a channel: of a pair */

/* ---- numbers ---- */

/* The communicator, the same at both ends, and the position among the messages there between these
 * two in this direction. */
static uint64_t next_number(const dtr__nccl_comm *c, bool send, int peer) {
    uint64_t channel = c->low < 0 ? c->number : LONE | (uint64_t)c->device;
    int there = c->low < 0 ? peer : 1 - c->rank;
    return channel << CHANNEL_SHIFT | ++c->messages[2 * there + (send ? 1 : 0)];
}

bool dtr__nccl_number(const dtr__nccl_comm *c, dtr_work *w) {
    dtr__call *call = &w->call;
    uint64_t *numbers = call->kind == DTR__K_BATCH ? dtr__batch_records(w) : NULL;
    if (c->local || w->backend != &dtr__backend_nccl) {
        return false;
    }
    if (call->kind == DTR__K_SEND || call->kind == DTR__K_RECV) {
        call->fingerprint = next_number(c, call->kind == DTR__K_SEND, call->root);
        return w->paired = true;
    }
    for (size_t i = 0; numbers != NULL && i < call->n_batch; i++) {
        numbers[i] = next_number(c, call->batch[i].is_send, call->batch[i].peer);
    }
    return w->paired = numbers != NULL;
}

/* ---- comparing ---- */

typedef struct look {
    const dtr_group *group;
    const dtr__recording *own;
    uint64_t from; /* records of this rank after this one are compared, */
    uint64_t left; /* of which this is the first whose other end is not known yet; 0: none */
} look;

static bool is_other_end(const look *l, const dtr__said *mine, const dtr__said *said) {
    dtr__kind kind = mine->kind == DTR__K_SEND ? DTR__K_RECV : DTR__K_SEND;
    return said->uid == l->group->uid && said->kind == (uint8_t)kind &&
           said->root == l->group->rank && said->fingerprint == mine->fingerprint;
}

/* `theirs` NULL: the peer is on another node, which reports one message at a time. */
static bool find_other_end(const look *l, const dtr__recording *theirs, const dtr__said *mine,
                           dtr__said *said) {
    dtr__digest d;
    if (theirs == NULL) {
        bool known = dtr__control_look(l->group->world, l->group->world_ranks[mine->root], &d);
        *said = known ? d.message : (dtr__said){ 0 };
        return known && is_other_end(l, mine, said);
    }
    for (size_t i = theirs->n_records; i > 0; i--) {
        const dtr__record *r = &theirs->records[i - 1];
        if (r->fingerprint == mine->fingerprint && dtr__record_message(theirs, r, said) &&
            is_other_end(l, mine, said)) {
            return true;
        }
    }
    return false;
}

static bool agree(const dtr__said *a, const dtr__said *b) {
    return a->count_in == b->count_in && (a->dtype_op & 15) == (b->dtype_op & 15);
}

static dtr_status disagree(const dtr_group *g, const dtr__said *mine, const dtr__said *other) {
    bool sends = mine->kind == DTR__K_SEND;
    const dtr__said *s = sends ? mine : other, *r = sends ? other : mine;
    int from = sends ? g->rank : mine->root, to = sends ? mine->root : g->rank;
    dtr__error_context ctx = { g->world, dtr__kind_name((dtr__kind)mine->kind), g->name };
    return DTR_FAIL(&ctx, DTR_ERR_MISMATCH,
                    "rank %d sends %s x %llu to rank %d of group '%s' (called at %.48s), which "
                    "receives %s x %llu (called at %.48s); both ends of a message must give the "
                    "same dtype and count. The group is broken: outputs of its unfinished "
                    "operations are undefined",
                    dtr__rank_told(g, from), dtr_dtype_name((dtr_dtype)(s->dtype_op & 15)),
                    (unsigned long long)s->count_in, dtr__rank_told(g, to), g->name, s->site,
                    dtr_dtype_name((dtr_dtype)(r->dtype_op & 15)), (unsigned long long)r->count_in,
                    r->site);
}

/* Not found for long after its end: the other end's record is there no more. */
static bool is_past(const dtr__record *r) {
    return dtr__record_over(r) && dtr__stamp_ns() - r->t_finished > KEEP_MS * MS;
}

static dtr_status compare_with(look *l, int peer) {
    const dtr_group *g = l->group;
    dtr__recording *theirs = NULL;
    bool looked = false;
    dtr_status s = DTR_OK;
    for (size_t i = 0; i < l->own->n_records && s == DTR_OK; i++) {
        const dtr__record *r = &l->own->records[i];
        dtr__said mine, other;
        if (r->group != g->id || r->number <= l->from || r->root_or_peer != peer ||
            !dtr__record_message(l->own, r, &mine)) {
            continue;
        }
        theirs = looked ? theirs : dtr__peer_glance(g->world, g->world_ranks[peer]);
        looked = true;
        if (find_other_end(l, theirs, &mine, &other)) {
            s = agree(&mine, &other) ? DTR_OK : disagree(g, &mine, &other);
        } else if (!is_past(r) && (l->left == 0 || r->number < l->left)) {
            l->left = r->number;
        }
    }
    dtr__recording_free(theirs);
    return s;
}

static dtr_status compare_all(look *l) {
    dtr_status s = DTR_OK;
    for (int peer = 0; peer < l->group->size && s == DTR_OK; peer++) {
        s = compare_with(l, peer);
    }
    return s;
}

dtr_status dtr__pairs_find_odd(const dtr_group *g) {
    dtr_status s = DTR_OK;
    dtr__recording *own = NULL;
    if (atomic_load_explicit(&g->paired, memory_order_acquire) != 0) {
        own = dtr__peer_glance(g->world, g->world->rank);
    }
    if (own != NULL) {
        s = compare_all(&(look){ .group = g, .own = own });
    }
    dtr__recording_free(own);
    return s;
}

void dtr__pairs_watch(dtr_group *g, int64_t now, dtr__queue *called) {
    uint64_t all = atomic_load_explicit(&g->paired, memory_order_acquire);
    if (all == g->watched.paired || now < g->watched.pair_ns) {
        return;
    }
    int64_t every_ms = EVERY_MS + EVERY_PER_RANK_MS * (int64_t)g->world->local_size;
    dtr__recording *own = dtr__peer_glance(g->world, g->world->rank);
    g->watched.pair_ns = now + every_ms * MS;
    if (own == NULL || own->n_records == 0) {
        dtr__recording_free(own);
        return;
    }
    look l = { .group = g, .own = own, .from = g->watched.pair };
    dtr_status s = compare_all(&l);
    g->watched.pair = l.left != 0 ? l.left - 1 : own->records[own->n_records - 1].number;
    g->watched.paired = l.left != 0 ? g->watched.paired : all;
    dtr__recording_free(own);
    if (s < 0) {
        dtr__group_accuse(g, s, called);
    }
}
