/* The vote on what broke a group. Each node has one vote, its first record: a rank writes its
 * record first and then names it in the node's table of first records, by one exchange, so that a
 * rank that is killed at any moment leaves either nothing or the whole. */
#include <stdlib.h>
#include <string.h>

#include "control_internal.h"
#include "vote_internal.h"

#define TAG (~UINT64_C(0xffff)) /* of a group, in that table; below it the local rank + 1 */

/* ---- this node's record ---- */

static int failure_place(uint64_t uid) {
    return (int)((uid + 7 * (uid >> 40)) % DTR__FAILURE_RECORDS); /* uids: agreement/agree.c */
}

static entry *failure_entry(const dtr__votes *vs, int local_rank, int k) {
    return &vs->table[local_rank]->own[DTR__VOTES + k];
}

static uint64_t tag(uint64_t uid) {
    uint64_t h = (uid ^ uid >> 29) * UINT64_C(0x9e3779b97f4a7c15);
    return (h & TAG) != 0 ? h & TAG : ~TAG + 1;
}

static bool has_tag(uint64_t first, uint64_t uid) {
    return (first & TAG) == tag(uid);
}

bool dtr__failure_records_serve(const dtr_world *world) {
    return world->control.votes != NULL;
}

void dtr__failure_record_wait_for(dtr_world *world, int64_t patience_ns) {
    if (world->control.votes != NULL) {
        atomic_store(&world->control.votes->patience_ns, patience_ns);
    }
}

int64_t dtr__failure_record_patience(const dtr_world *world) {
    return atomic_load(&world->control.votes->patience_ns);
}

int dtr__failure_writer(const dtr__votes *vs, uint64_t uid) {
    const uint64_t first = atomic_load(&vs->table[0]->first[failure_place(uid)]);
    return has_tag(first, uid) ? (int)(first & ~TAG) - 1 : -1;
}

bool dtr__failure_record_is_put(const dtr_world *world, uint64_t uid) {
    return world->control.votes != NULL && dtr__failure_writer(world->control.votes, uid) >= 0;
}

const _Atomic uint64_t *dtr__failure_record_mark(const dtr_world *world, uint64_t uid) {
    const dtr__votes *vs = world->control.votes;
    return vs != NULL ? &vs->table[0]->first[failure_place(uid)] : NULL;
}

bool dtr__failure_record_put(dtr_world *world, const dtr__failure_record *v) {
    dtr__votes *vs = world->control.votes;
    if (vs == NULL) {
        return false;
    }
    const int k = failure_place(v->uid);
    const uint64_t mine = tag(v->uid) | (uint64_t)(world->local_rank + 1);
    pthread_mutex_lock(&vs->lock);
    uint64_t first = atomic_load(&vs->table[0]->first[k]);
    if (!has_tag(first, v->uid)) {
        dtr__failure_record now = *v;
        now.step = DTR__FAILURE_STEP;
        now.order = dtr__vote_order((dtr_status)v->status);
        now.put_ns = dtr__now_ns();
        dtr__vote_end_texts(&now);
        dtr__vote_write(failure_entry(vs, world->local_rank, k), &now);
        while (!has_tag(first, v->uid) &&
               !atomic_compare_exchange_weak(&vs->table[0]->first[k], &first, mine)) {
        }
    }
    pthread_mutex_unlock(&vs->lock);
    if (v->remote != 0) {
        dtr__control_wake(world);
    }
    return true;
}

/* ---- the result ---- */

/* Merges what other nodes have sent; true: the nodes of all living members have. */
static bool all_received(const dtr_world *world, dtr__votes *vs, const int *world_ranks, int n,
                         dtr__failure_record *out) {
    bool all_have = true;
    pthread_mutex_lock(&vs->lock);
    sum *all = dtr__votes_scratch(vs, DTR__VOTES, 0);
    memset(all, 0, vs->sum_words * sizeof(uint64_t));
    all->vote = *out;
    dtr__votes_gather(world, out->uid, DTR__FAILURE_STEP, dtr__votes_scratch(vs, DTR__VOTES, 1),
                      all);
    *out = all->vote;
    for (int i = 0; i < n && all_have; i++) {
        const int at = world->node_of[world_ranks[i]];
        all_have = at == world->node || dtr__has_voted(all->voter, at) ||
                   dtr__rank_failed(world, world_ranks[i]);
    }
    pthread_mutex_unlock(&vs->lock);
    return all_have;
}

/* `put_ns`: when this node had it, on its clock. */
static bool settled_alone(const dtr_world *world, uint64_t uid, const int *world_ranks, int n,
                          dtr__failure_record *out, int64_t *put_ns) {
    dtr__votes *vs = world->control.votes;
    const int writer = vs != NULL ? dtr__failure_writer(vs, uid) : -1;
    if (writer < 0 || !dtr__vote_read(failure_entry(vs, writer, failure_place(uid)), out) ||
        out->uid != uid) {
        return false;
    }
    *put_ns = out->put_ns;
    if (out->remote == 0 || !dtr__control_serves(world)) {
        return true;
    }
    return all_received(world, vs, world_ranks, n, out) ||
           dtr__now_ns() - *put_ns >= atomic_load(&vs->patience_ns);
}

/* A rank that is released from one of two groups may go on to the other at once, so all members
 * must know before that the other is broken, too. */
bool dtr__failure_record_settled(const dtr_world *world, uint64_t uid, const int *world_ranks,
                                 int n, dtr__failure_record *out) {
    dtr__failure_record other;
    int64_t put_ns = 0, other_ns = 0;
    if (!settled_alone(world, uid, world_ranks, n, out, &put_ns)) {
        return false;
    }
    return out->also == 0 || settled_alone(world, out->also, world_ranks, n, &other, &other_ns) ||
           dtr__now_ns() - put_ns >= dtr__failure_record_patience(world);
}

void dtr__failure_record_receive_sum(dtr_world *world, const sum *s) {
    dtr__votes_receive_at(world, DTR__VOTES + failure_place(s->vote.uid), s);
    (void)dtr__failure_record_put(world, &s->vote); /* it is this node's too, unless there is one */
}

void dtr__failure_record_receive(dtr_world *world, int from, const dtr__failure_record *v) {
    const dtr__votes *vs = world->control.votes;
    sum *s = vs != NULL && world->node_count > 1 ? calloc(vs->sum_words, sizeof(uint64_t)) : NULL;
    if (s != NULL) {
        dtr__failure_record one = *v;
        one.step = DTR__FAILURE_STEP;
        one.order = dtr__vote_order((dtr_status)v->status);
        dtr__votes_add(vs, s, &one, from);
        dtr__failure_record_receive_sum(world, s);
        free(s);
    }
}
