/* Votes (control/vote.h) between nodes, on the watchdog thread. The votes of one step, or the
 * nodes' records of one failure, are one fact (control/facts.c): a sum of all that this rank knows
 * of, merged with a bit for each voter, which grows until it has all and is the same whatever way
 * it has come. Nodes without members pass it on, too. */
#include <stdlib.h>
#include <string.h>

#include "facts.h"

enum { SUMS_MOST = 4096 }; /* the one that has not changed for longest makes place */

/* ---- sums ---- */

static bool is_sum_of(const fact *f, uint64_t uid, uint64_t step) {
    return f->kind == FACT_SUM && dtr__fact_sum(f)->vote.uid == uid &&
           dtr__fact_sum(f)->vote.step == step;
}

static bool is_failure(const fact *f) {
    return f->kind == FACT_SUM && dtr__fact_sum(f)->vote.step == DTR__FAILURE_STEP;
}

/* Who votes on a step has got the result of the one before, which all had voted on by then. */
static bool is_over(const fact *f, uint64_t uid, uint64_t step) {
    return f->kind == FACT_SUM && !is_failure(f) && step != DTR__FAILURE_STEP &&
           dtr__fact_sum(f)->vote.uid == uid && dtr__fact_sum(f)->vote.step + 2 <= step;
}

static void make_place(dtr__control *c, uint64_t uid, uint64_t step) {
    fact *oldest = NULL;
    for (fact *f = c->facts.newest, *next; f != NULL; f = next) {
        next = f->older;
        if (is_over(f, uid, step)) {
            dtr__facts_remove(c, f);
        } else {
            oldest = f->kind == FACT_SUM ? f : oldest;
        }
    }
    if (c->facts.n_sums >= SUMS_MOST && oldest != NULL) {
        dtr__facts_remove(c, oldest);
    }
}

/* An empty one where there is none; NULL: no memory. */
static fact *sum_of(const dtr_world *world, dtr__control *c, const dtr__vote *v) {
    fact *f = c->facts.newest;
    while (f != NULL && !is_sum_of(f, v->uid, v->step)) {
        f = f->older;
    }
    if (f == NULL) {
        make_place(c, v->uid, v->step);
        const dtr__votes *vs = world->control.votes;
        f = dtr__facts_add(c, FACT_SUM, vs->sum_words + (size_t)vs->voter_words);
        if (f != NULL) {
            dtr__vote *none = &dtr__fact_sum(f)->vote;
            none->uid = v->uid;
            none->step = v->step;
            none->low = UINT64_MAX;
            none->origin = none->order = INT32_MAX;
            f->until_ns = dtr__now_ns() + EARLY_NS;
        }
    }
    return f;
}

static void add_fresh(const dtr_world *world, fact *f, int word, uint64_t voters) {
    dtr__fact_fresh(world->control.votes, f)[word] |= voters & ~dtr__fact_sum(f)->voter[word];
}

/* Of this node. */
static int n_voters_here(const dtr_world *world, const fact *f) {
    int n = 0;
    for (int i = 0; i < world->local_size; i++) {
        n += dtr__has_voted(dtr__fact_sum(f)->voter, world->local_world[i]);
    }
    return n;
}

static bool has_members(const dtr_world *world, uint64_t uid) {
    bool found = false;
    for (int i = 0; i < world->local_size && !found; i++) {
        dtr__recording *r = dtr__peer_glance(world, world->local_world[i]);
        found = r != NULL && dtr__recording_group_uid(r, uid) != NULL;
        dtr__recording_free(r);
    }
    return found;
}

/* To this node's ranks, where they have a use for it: votes on a step once one of them has voted, a
 * failure record once one of them has the group, which members elsewhere may be done with creating
 * before those here. */
static void deliver(dtr_world *world, fact *f) {
    if (!is_failure(f)) {
        if (n_voters_here(world, f) > 0) {
            dtr__vote_receive(world, dtr__fact_sum(f));
        }
        return;
    }
    f->delivered = f->delivered || has_members(world, dtr__fact_sum(f)->vote.uid);
    if (f->delivered) {
        dtr__failure_record_receive_sum(world, dtr__fact_sum(f));
    }
}

/* ---- sending ---- */

static void send_words(dtr__link *l, const fact *f, const void *vote, size_t vote_bytes,
                       size_t n_words, uint32_t from, uint32_t n) {
    char data[DTR__WIRE_MOST];
    const dtr__wire_vote head = { .vote_bytes = (uint32_t)vote_bytes, .from = from, .n = n };
    const uint64_t *voted = dtr__fact_sum(f)->voter + from, *bad = voted + n_words;
    char *at = data;
    memcpy(at, &head, sizeof head);
    memcpy(at += sizeof head, vote, vote_bytes);
    memcpy(at += vote_bytes, voted, n * sizeof *voted);
    memcpy(at += n * sizeof *voted, bad, n * sizeof *bad);
    dtr__link_send(l, DTR__WIRE_VOTE, data, (size_t)(at - data) + n * sizeof *bad);
}

/* In as many messages as its voters take, from the first one to the last one. */
void dtr__facts_send_sum(const dtr_world *world, dtr__link *l, const fact *f) {
    const uint32_t n_words = (uint32_t)world->control.votes->voter_words;
    const uint64_t *voter = dtr__fact_sum(f)->voter;
    dtr__vote v = dtr__fact_sum(f)->vote;
    const size_t nbytes = dtr__vote_bytes(&v);
    const uint32_t most =
        (uint32_t)((DTR__WIRE_MOST - sizeof(dtr__wire_vote) - nbytes) / (2 * sizeof(uint64_t)));
    v.put_ns = dtr__now_ns() - v.put_ns;
    for (uint32_t from = 0; from < n_words;) {
        uint32_t n = voter[from] == 0 ? 0 : n_words - from < most ? n_words - from : most;
        while (n > 0 && voter[from + n - 1] == 0) {
            n--;
        }
        if (n > 0) {
            send_words(l, f, &v, nbytes, n_words, from, n);
        }
        from += n > 0 ? n : 1;
    }
}

/* Also what has gone along the trees, of which a part may be dead. */
static void send_to_all(dtr__control *c, fact *f) {
    if (f->kind == FACT_SUM && f->version != 0 && f->sent_all < f->version) {
        dtr__facts_changed(c, f);
        f->before = UINT64_MAX; /* of which nobody has been sent anything */
        f->sent_all = f->version;
    }
}

/* The votes of a node go when all of its members have voted, so that it sends them once; else with
 * the next period. */
void dtr__control_propagate_votes(dtr_world *world, dtr__control *c) {
    for (int i = 0; i < world->local_size * DTR__VOTE_ENTRIES && c->links != NULL; i++) {
        dtr__vote v;
        const uint64_t number = dtr__vote_to_propagate(world, i / DTR__VOTE_ENTRIES,
                                                       i % DTR__VOTE_ENTRIES, c->sent_votes[i], &v);
        fact *f = number != 0 ? sum_of(world, c, &v) : NULL;
        if (f == NULL) {
            continue;
        }
        c->sent_votes[i] = number;
        const bool failure = v.step == DTR__FAILURE_STEP;
        const int voter = failure ? world->node : v.origin;
        add_fresh(world, f, voter / 64, UINT64_C(1) << voter % 64);
        dtr__votes_add(world->control.votes, dtr__fact_sum(f), &v, voter);
        f->delivered = f->delivered || failure;
        if (failure || n_voters_here(world, f) >= (int)v.n_node) {
            dtr__facts_changed(c, f);
        }
        deliver(world, f);
    }
}

void dtr__control_propagate_waiting(dtr_world *world, dtr__control *c, int64_t now) {
    for (fact *f = c->facts.oldest, *next; f != NULL; f = next) {
        next = f->newer;
        if (f->kind != FACT_SUM) {
            continue;
        }
        if (is_failure(f) && !f->delivered && f->until_ns != 0) {
            deliver(world, f);
            f->until_ns = f->delivered || now >= f->until_ns ? 0 : f->until_ns;
        }
        if (f->version == 0) {
            dtr__facts_changed(c, f);
        } else {
            send_to_all(c, f);
        }
    }
}

/* ---- receiving ---- */

static bool is_sound(const dtr_world *world, const dtr__vote *v, const dtr__wire_vote *head) {
    const bool failure = v->step == DTR__FAILURE_STEP;
    return v->uid != 0 && v->origin >= 0 && v->origin < world->size &&
           head->from + head->n <= (uint32_t)world->control.votes->voter_words &&
           (failure ? v->status < 0 && v->failed_rank >= 0 && v->failed_rank <= world->size
                    : v->status <= 0);
}

static void take_vote(dtr_world *world, const dtr__vote *v, const dtr__wire_vote *head,
                      const uint64_t *words) {
    dtr__control *c = world->control.plane;
    fact *f = sum_of(world, c, v);
    for (uint32_t i = 0; f != NULL && i < head->n; i++) {
        add_fresh(world, f, (int)(head->from + i), words[i]);
    }
    if (f != NULL && dtr__votes_merge(world->control.votes, dtr__fact_sum(f), v, (int)head->from,
                                      (int)head->n, words)) {
        dtr__facts_changed(c, f);
        deliver(world, f);
    }
}

void dtr__control_receive_vote(dtr_world *world, const dtr__link *l, const void *data,
                               size_t nbytes) {
    dtr__wire_vote head;
    dtr__vote v = { .uid = 0 };
    uint64_t words[DTR__WIRE_MOST / sizeof(uint64_t)];
    if (nbytes < sizeof head || world->control.votes == NULL) {
        return;
    }
    memcpy(&head, data, sizeof head);
    if (head.vote_bytes <= offsetof(dtr__vote, text) || head.vote_bytes > sizeof v ||
        head.n > DTR__WIRE_MOST || head.from > (uint32_t)world->size ||
        nbytes != sizeof head + head.vote_bytes + 2 * sizeof *words * head.n) {
        return;
    }
    const char *at = (const char *)data + sizeof head;
    memcpy(&v, at, head.vote_bytes);
    memcpy(words, at + head.vote_bytes, 2 * sizeof *words * head.n);
    dtr__vote_end_texts(&v);
    v.put_ns = l->received_ns - v.put_ns;
    v.remote = 1;
    v.order = v.step == DTR__FAILURE_STEP ? dtr__vote_order((dtr_status)v.status) : v.order;
    if (is_sound(world, &v, &head)) {
        take_vote(world, &v, &head, words);
    }
}
