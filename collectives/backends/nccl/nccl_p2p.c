/* Messages that NCCL carries. It does not compare what the two ends give: one of them hangs, or
 * takes bytes for what they are not. So each message gets a number that its other end has too, in
 * its record, and records are compared: by the watchdog, and when something has failed. */
#include <string.h>

#include "control/peers.h"
#include "core/signature.h"
#include "core/team.h"
#include "nccl_internal.h"

#define MS INT64_C(1000000)
enum {
    CHANNEL_SHIFT = 40,
    EVERY_MS = 150, /* between two rounds of the watchdog, */
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

typedef struct search {
    const dtr_group *group;
    const dtr__recording *own;
    uint64_t from; /* records of this rank after this one are compared, */
    uint64_t left; /* of which this is the first whose other end is not known yet; 0: none */
} search;

static bool is_other_end(const search *l, const dtr__called *mine, const dtr__called *other) {
    dtr__kind kind = mine->kind == DTR__K_SEND ? DTR__K_RECV : DTR__K_SEND;
    return other->uid == l->group->uid && other->kind == (uint8_t)kind &&
           other->root == l->group->rank && other->fingerprint == mine->fingerprint;
}

/* `theirs` NULL: the peer is on another node, which reports one message at a time. */
static bool find_other_end(const search *l, const dtr__recording *theirs, const dtr__called *mine,
                           dtr__called *other) {
    dtr__rank_report d;
    if (theirs == NULL) {
        bool known = dtr__control_report_of(l->group->world, l->group->world_ranks[mine->root], &d);
        *other = known ? d.message : (dtr__called){ 0 };
        return known && is_other_end(l, mine, other);
    }
    for (size_t i = theirs->n_records; i > 0; i--) {
        const dtr__record *r = &theirs->records[i - 1];
        if (r->fingerprint == mine->fingerprint && dtr__record_message(theirs, r, other) &&
            is_other_end(l, mine, other)) {
            return true;
        }
    }
    return false;
}

static bool agree(const dtr__called *a, const dtr__called *b) {
    return a->count_in == b->count_in && a->dtype == b->dtype;
}

static dtr_status disagree(const dtr_group *g, const dtr__called *mine, const dtr__called *other) {
    bool sends = mine->kind == DTR__K_SEND;
    const dtr__called *s = sends ? mine : other, *r = sends ? other : mine;
    int from = sends ? g->rank : mine->root, to = sends ? mine->root : g->rank;
    dtr__error_context ctx = { g->world, dtr__kind_name((dtr__kind)mine->kind), g->name };
    return DTR_FAIL(&ctx, DTR_ERR_MISMATCH,
                    "rank %d sends %s x %llu to rank %d of group '%s' (called at %.48s), which "
                    "receives %s x %llu (called at %.48s); both ends of a message must give the "
                    "same dtype and count. The group is broken: outputs of its unfinished "
                    "operations are undefined",
                    dtr__reported_rank(g, from), dtr_dtype_name((dtr_dtype)s->dtype),
                    (unsigned long long)s->count_in, dtr__reported_rank(g, to), g->name, s->site,
                    dtr_dtype_name((dtr_dtype)r->dtype), (unsigned long long)r->count_in, r->site);
}

/* It ended so long ago that the other end's record is gone. */
static bool is_expired(const dtr__record *r) {
    return dtr__record_over(r) && dtr__stamp_ns() - r->t_finished > KEEP_MS * MS;
}

static dtr_status compare_with(search *l, int peer) {
    const dtr_group *g = l->group;
    dtr__recording *theirs = NULL;
    bool read = false;
    dtr_status s = DTR_OK;
    for (size_t i = 0; i < l->own->n_records && s == DTR_OK; i++) {
        const dtr__record *r = &l->own->records[i];
        dtr__called mine, other;
        if (r->group != g->id || r->number <= l->from || r->root_or_peer != peer ||
            !dtr__record_message(l->own, r, &mine)) {
            continue;
        }
        theirs = read ? theirs : dtr__peer_glance(g->world, g->world_ranks[peer]);
        read = true;
        if (find_other_end(l, theirs, &mine, &other)) {
            s = agree(&mine, &other) ? DTR_OK : disagree(g, &mine, &other);
        } else if (!is_expired(r) && (l->left == 0 || r->number < l->left)) {
            l->left = r->number;
        }
    }
    dtr__recording_free(theirs);
    return s;
}

static dtr_status compare_all(search *l) {
    dtr_status s = DTR_OK;
    for (int peer = 0; peer < l->group->size && s == DTR_OK; peer++) {
        s = compare_with(l, peer);
    }
    return s;
}

dtr_status dtr__nccl_find_mismatch(dtr_group *g, void *state, int64_t now_ns) {
    struct dtr__nccl *n = state;
    uint64_t all = atomic_load_explicit(&n->paired, memory_order_acquire);
    bool watches = now_ns != 0;
    if (all == 0 || (watches && (all == n->watched.paired || now_ns < n->watched.look_ns))) {
        return DTR_OK;
    }
    dtr__recording *own = dtr__peer_glance(g->world, g->world->rank);
    search l = { .group = g, .own = own, .from = watches ? n->watched.record : 0 };
    dtr_status s = own != NULL ? compare_all(&l) : DTR_OK;
    if (watches) {
        int64_t every_ms = EVERY_MS + EVERY_PER_RANK_MS * (int64_t)g->world->local_size;
        n->watched.look_ns = now_ns + every_ms * MS;
    }
    if (watches && own != NULL && own->n_records > 0) {
        n->watched.record = l.left != 0 ? l.left - 1 : own->records[own->n_records - 1].number;
        n->watched.paired = l.left != 0 ? n->watched.paired : all;
    }
    dtr__recording_free(own);
    return s;
}
