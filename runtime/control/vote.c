/* One vote for two questions. Each rank writes its votes into its own piece of node-shared memory,
 * and its watchdog writes beside them what it receives from other nodes: merged, with a bit for
 * each voter. Who waits merges all of that again; merging a vote twice changes nothing.
 * In a step vote every member votes, and the result needs all of them; failure_record.c has the
 * other question. */
#include "control/vote.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/exchange.h"
#include "control_internal.h"
#include "memory/arena.h"
#include "progress/progress.h"
#include "seqlock.h"
#include "vote_internal.h"

/* ---- memory ---- */

/* Version, and behind it the words of a sum. */
static _Atomic uint64_t *received_of(const dtr__votes *vs, int local_rank, int k) {
    _Atomic uint64_t *first = (_Atomic uint64_t *)(vs->table[local_rank] + 1);
    return first + (size_t)k * (1 + vs->sum_words);
}

static uint64_t word_at(const entry *e, int at) {
    return atomic_load_explicit(&e->word[at], memory_order_relaxed);
}

static bool is_at(const _Atomic uint64_t *word, uint64_t uid, uint64_t step) {
    return atomic_load_explicit(&word[AT_UID], memory_order_relaxed) == uid &&
           atomic_load_explicit(&word[AT_STEP], memory_order_relaxed) == step;
}

void dtr__vote_end_texts(dtr__vote *v) {
    v->native_text[sizeof v->native_text - 1] = v->text[sizeof v->text - 1] = '\0';
}

bool dtr__vote_read(const entry *e, dtr__vote *v) {
    const bool whole = dtr__seqlock_read(&e->version, e->word, v, VOTE_WORDS);
    if (whole) {
        dtr__vote_end_texts(v);
    }
    return whole;
}

void dtr__vote_write(entry *e, const dtr__vote *v) {
    dtr__seqlock_write(&e->version, e->word, v, VOTE_WORDS);
}

/* ---- merging ---- */

int32_t dtr__vote_order(dtr_status s) {
    return s == DTR_ERR_MISMATCH ? 0 : s == DTR_ERR_TIMEOUT ? 2 : s == DTR_ERR_ABORTED ? 3 : 1;
}

static bool outweighs(const dtr__vote *a, const dtr__vote *b) {
    if ((a->status < 0) != (b->status < 0)) {
        return a->status < 0;
    }
    return a->order != b->order ? a->order < b->order : a->origin < b->origin;
}

void dtr__vote_merge(dtr__vote *all, const dtr__vote *one) {
    const uint64_t low = one->low < all->low ? one->low : all->low,
                   high = one->high > all->high ? one->high : all->high,
                   bits = one->bits | all->bits;
    const int64_t put_ns = one->put_ns > all->put_ns ? one->put_ns : all->put_ns;
    if (outweighs(one, all)) {
        *all = *one;
    }
    all->low = low;
    all->high = high;
    all->bits = bits;
    all->put_ns = put_ns;
}

bool dtr__has_voted(const uint64_t *voter, int i) {
    return (voter[i / 64] >> i % 64 & 1) != 0;
}

void dtr__votes_add(const dtr__votes *vs, sum *s, const dtr__vote *one, int voter) {
    const uint64_t bit = UINT64_C(1) << voter % 64;
    if (s->vote.uid == 0) {
        s->vote = *one;
    } else {
        dtr__vote_merge(&s->vote, one);
    }
    s->voter[voter / 64] |= bit;
    s->voter[vs->voter_words + voter / 64] |= one->status < 0 ? bit : 0;
}

bool dtr__votes_merge(const dtr__votes *vs, sum *s, const dtr__vote *v, int from, int n,
                      const uint64_t *words) {
    const dtr__vote before = s->vote;
    bool more = false;
    if (s->vote.uid == 0) {
        s->vote = *v;
    } else {
        dtr__vote_merge(&s->vote, v);
    }
    for (int i = 0; i < 2 * n; i++) {
        uint64_t *at = &s->voter[i < n ? from + i : vs->voter_words + from + i - n];
        more = more || (words[i] & ~*at) != 0;
        *at |= words[i];
    }
    return more || before.low != s->vote.low || before.high != s->vote.high ||
           before.bits != s->vote.bits || before.origin != s->vote.origin ||
           before.status != s->vote.status;
}

void dtr__votes_gather(const dtr_world *world, uint64_t uid, uint64_t step, sum *one, sum *all) {
    const dtr__votes *vs = world->control.votes;
    for (int i = 0; i < world->local_size * DTR__VOTE_ENTRIES; i++) {
        const _Atomic uint64_t *at = received_of(vs, i / DTR__VOTE_ENTRIES, i % DTR__VOTE_ENTRIES);
        if (!is_at(at + 1, uid, step) || !dtr__seqlock_read(at, at + 1, one, vs->sum_words) ||
            one->vote.uid != uid || one->vote.step != step) {
            continue;
        }
        dtr__vote_end_texts(&one->vote);
        dtr__vote_merge(&all->vote, &one->vote);
        for (int k = 0; k < 2 * vs->voter_words; k++) {
            all->voter[k] |= one->voter[k];
        }
    }
}

/* ---- step votes: giving one ---- */

static bool is_remote(const dtr_world *world, const int *world_ranks, int n) {
    bool remote = false;
    for (int i = 0; i < n; i++) {
        remote = remote || world->node_of[world_ranks[i]] != world->node;
    }
    return remote;
}

/* Where a vote of this step would be kept, or the place of the oldest: all members have got the
 * step before the last one, because a rank that puts a step has got the one before it, which all
 * had put. */
static bool is_over(uint64_t uid, uint64_t step, const dtr__vote *v) {
    return uid == 0 || (uid == v->uid && step + 2 <= v->step);
}

/* The entry for a vote of this rank; -1: none is free, -2: it has been put. */
static int place(const dtr__votes *vs, const entry *own, const dtr__vote *mine) {
    int at = -1;
    int64_t oldest = INT64_MAX;
    for (int k = 0; k < DTR__VOTES; k++) {
        const uint64_t uid = word_at(&own[k], AT_UID), step = word_at(&own[k], AT_STEP);
        int64_t put_ns = (int64_t)word_at(&own[k], offsetof(dtr__vote, put_ns) / sizeof(uint64_t));
        if (uid == mine->uid && step == mine->step) {
            return -2;
        }
        put_ns = is_over(uid, step, mine) ? INT64_MIN : put_ns;
        if (!vs->busy[k] && put_ns < oldest) {
            oldest = put_ns;
            at = k;
        }
    }
    return at;
}

dtr_status dtr__vote_put(dtr_world *world, const int *world_ranks, int n, const dtr__vote *mine) {
    dtr__error_context ctx = { .world = world };
    dtr__votes *vs = world->control.votes;
    dtr__vote v = *mine;
    v.remote = is_remote(world, world_ranks, n);
    v.origin = world->rank;
    v.n_bad = 0;
    v.n_node = 0;
    for (int i = 0; i < n; i++) {
        v.n_node += world->node_of[world_ranks[i]] == world->node;
    }
    dtr__vote_end_texts(&v);
    pthread_mutex_lock(&vs->lock);
    entry *own = vs->table[world->local_rank]->own;
    const int k = place(vs, own, &v);
    if (k >= 0) {
        v.put_ns = dtr__now_ns();
        dtr__vote_write(&own[k], &v);
    }
    pthread_mutex_unlock(&vs->lock);
    DTR_REQUIRE(k != -1, &ctx, DTR_ERR_NOMEM, "no room for one more vote: %d are waited for",
                DTR__VOTES);
    if (v.remote != 0) {
        dtr__control_wake(world);
    }
    return DTR_OK;
}

/* The place of the entry, -1: there is none. */
static int set_busy(dtr__votes *vs, const entry *own, uint64_t uid, uint64_t step, bool busy) {
    int at = -1;
    pthread_mutex_lock(&vs->lock);
    for (int k = 0; k < DTR__VOTES; k++) {
        if (is_at(own[k].word, uid, step)) {
            vs->busy[k] = busy;
            at = k;
        }
    }
    pthread_mutex_unlock(&vs->lock);
    return at;
}

/* ---- step votes: getting the result ---- */

static void gather_own(const dtr_world *world, uint64_t uid, uint64_t step, sum *all) {
    const dtr__votes *vs = world->control.votes;
    for (int i = 0; i < world->local_size; i++) {
        const entry *own = vs->table[i]->own;
        for (int k = 0; k < DTR__VOTES; k++) {
            dtr__vote one;
            if (is_at(own[k].word, uid, step) &&
                !dtr__has_voted(all->voter, world->local_world[i]) &&
                dtr__vote_read(&own[k], &one) && one.uid == uid && one.step == step &&
                one.origin == world->local_world[i]) {
                dtr__votes_add(vs, all, &one, one.origin);
            }
        }
    }
}

static int n_ones(const uint64_t *word, int n) {
    int ones = 0;
    for (int i = 0; i < n; i++) {
        ones += __builtin_popcountll(word[i]);
    }
    return ones;
}

/* Who has not voted; among them, where there is one, a rank that has failed. -1: nobody. */
static int missing(const dtr_world *world, const int *world_ranks, int n, const sum *all) {
    int first = -1;
    for (int i = 0; i < n; i++) {
        if (!dtr__has_voted(all->voter, world_ranks[i])) {
            if (dtr__rank_failed(world, world_ranks[i])) {
                return world_ranks[i];
            }
            first = first < 0 ? world_ranks[i] : first;
        }
    }
    return first;
}

static dtr_status time_out(const dtr_world *world, int absent, int n_absent, double limit_s) {
    dtr__error_context ctx = { .world = world };
    char name[160], doing[DTR__REPORT_TEXT], more[48] = "";
    if (n_absent > 1) {
        snprintf(more, sizeof more, " and %d more have", n_absent - 1);
    }
    return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT, "%s%s not put what the ranks agree on within %g s; %s",
                    dtr__peer_name(world, absent, name, sizeof name), n_absent > 1 ? more : " has",
                    limit_s, dtr__peer_doing(world, absent, doing, sizeof doing));
}

/* What waiting needs: two sums, one after the other. */
typedef struct wait {
    sum *all, *one;
    int n_node;      /* votes of this node so far */
    bool look_again; /* a rank has failed: its vote may have come just before */
} wait;

/* One look; DTR_IN_PROGRESS: some are missing, in *absent one of them. */
static dtr_status look(dtr_world *world, const int *world_ranks, int n, uint64_t uid, uint64_t step,
                       wait *w, int *absent) {
    const dtr__votes *vs = world->control.votes;
    dtr__error_context ctx = { .world = world };
    memset(w->all, 0, vs->sum_words * sizeof(uint64_t));
    gather_own(world, uid, step, w->all);
    const int n_node = n_ones(w->all->voter, vs->voter_words);
    if (w->all->vote.remote != 0) {
        dtr__votes_gather(world, uid, step, w->one, w->all);
        if (n_node > w->n_node) { /* this may be the rank that propagates to other nodes */
            dtr__control_wake(world);
        }
    }
    w->n_node = n_node;
    *absent = missing(world, world_ranks, n, w->all);
    if (*absent < 0) {
        return DTR_OK;
    }
    if (!dtr__rank_failed(world, *absent) || !w->look_again) {
        w->look_again = dtr__rank_failed(world, *absent);
        return DTR_IN_PROGRESS;
    }
    return DTR_FAIL(&ctx, dtr__rank_failure_status(world, *absent), "%s",
                    dtr__rank_failure(world, *absent));
}

dtr_status dtr__vote_get(dtr_world *world, const int *world_ranks, int n, uint64_t uid,
                         uint64_t step, double limit_s, dtr__vote_stop stop, void *arg,
                         dtr__vote *agreed) {
    dtr__votes *vs = world->control.votes;
    const entry *own = vs->table[world->local_rank]->own;
    const int k = set_busy(vs, own, uid, step, true);
    DTR_REQUIRE(k >= 0, NULL, DTR_ERR_STATE, "this rank has not put a vote for the step");
    /* What has been put must be got: nothing may fail from here on. */
    wait w = { .all = dtr__votes_scratch(vs, k, 0), .one = dtr__votes_scratch(vs, k, 1) };
    /* A rank that has the result may end what the others wait in because of it: by then all votes
     * of this node can be seen, but those of other nodes may come later than that end. */
    const double start = dtr__now(), grace_s = is_remote(world, world_ranks, n)
                                                   ? (double)atomic_load(&vs->patience_ns) * 1e-9
                                                   : 0;
    double stopped = INFINITY; /* since when `stop` says so */
    dtr__backoff pause = { 0 };
    int absent;
    dtr_status s;
    while ((s = look(world, world_ranks, n, uid, step, &w, &absent)) == DTR_IN_PROGRESS) {
        const double now = dtr__now();
        stopped = stop != NULL && stopped > now && stop(arg) < 0 ? now : stopped;
        const bool over = now - start >= limit_s, end = stop != NULL && now - stopped >= grace_s;
        if ((over || end) &&
            (s = look(world, world_ranks, n, uid, step, &w, &absent)) != DTR_IN_PROGRESS) {
            break;
        }
        if (over || end) {
            s = end ? stop(arg)
                    : time_out(world, absent, n - n_ones(w.all->voter, vs->voter_words), limit_s);
            break;
        }
        if (!dtr__progress_has_thread(world)) {
            dtr__progress_poll_all(world);
        }
        dtr__backoff_pause(world, &pause);
    }
    set_busy(vs, own, uid, step, false);
    if (s == DTR_OK) {
        *agreed = w.all->vote;
        agreed->n_bad = (uint32_t)n_ones(w.all->voter + vs->voter_words, vs->voter_words);
    }
    return s;
}

/* ---- between nodes ---- */

uint64_t dtr__vote_to_propagate(const dtr_world *world, int local_rank, int k, uint64_t sent,
                                dtr__vote *out) {
    const dtr__votes *vs = world->control.votes;
    if (vs == NULL) {
        return 0;
    }
    const entry *e = &vs->table[local_rank]->own[k];
    const uint64_t version = atomic_load(&e->version);
    if (version == sent || !dtr__vote_read(e, out) || out->remote == 0) {
        return 0;
    }
    if (k >= DTR__VOTES && dtr__failure_writer(vs, out->uid) != local_rank) {
        return 0; /* only the node's record counts */
    }
    return version;
}

size_t dtr__vote_bytes(const dtr__vote *v) {
    const size_t nbytes = offsetof(dtr__vote, text) + strlen(v->text) + 1;
    return (nbytes + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
}

/* Where a step vote goes, by the rule of own entries; -1: it is older than all that is there. */
static int place_received(const dtr__votes *vs, const dtr__vote *v) {
    int at = -1;
    int64_t oldest = v->put_ns;
    for (int k = 0; k < DTR__VOTES; k++) {
        const dtr__vote *there = &vs->received[k]->vote;
        if (there->uid == v->uid && there->step == v->step) {
            return k;
        }
        if (there->uid == v->uid && there->step >= v->step + 2) {
            return -1;
        }
        const int64_t put_ns = is_over(there->uid, there->step, v) ? INT64_MIN : there->put_ns;
        if (put_ns < oldest) {
            oldest = put_ns;
            at = k;
        }
    }
    return at;
}

void dtr__votes_receive_at(dtr_world *world, int k, const sum *from) {
    const dtr__votes *vs = world->control.votes;
    sum *s = vs->received[k];
    if (s->vote.uid != from->vote.uid || s->vote.step != from->vote.step) {
        memset(s, 0, vs->sum_words * sizeof(uint64_t));
    }
    (void)dtr__votes_merge(vs, s, &from->vote, 0, vs->voter_words, from->voter);
    _Atomic uint64_t *at = received_of(vs, world->local_rank, k);
    dtr__seqlock_write(at, at + 1, s, vs->sum_words);
}

void dtr__vote_receive(dtr_world *world, const sum *s) {
    const int k = place_received(world->control.votes, &s->vote);
    if (k >= 0) {
        dtr__votes_receive_at(world, k, s);
    }
}

/* ---- life ---- */

static void destroy(dtr__votes *vs) {
    pthread_mutex_destroy(&vs->lock);
    free(vs->scratch);
    free(vs);
}

static dtr__votes *make(const dtr_world *world) {
    dtr__votes *vs = calloc(1, sizeof *vs + (size_t)world->local_size * sizeof vs->table[0]);
    if (vs == NULL) {
        return NULL;
    }
    vs->voter_words = (world->size + 63) / 64;
    vs->sum_words = VOTE_WORDS + 2 * (size_t)vs->voter_words;
    vs->scratch =
        calloc((DTR__VOTE_ENTRIES + 2 * (DTR__VOTES + 1)) * vs->sum_words, sizeof(uint64_t));
    pthread_mutex_init(&vs->lock, NULL);
    if (vs->scratch == NULL) {
        destroy(vs);
        return NULL;
    }
    for (int k = 0; k < DTR__VOTE_ENTRIES; k++) {
        vs->received[k] = (sum *)(vs->scratch + (size_t)k * vs->sum_words);
    }
    atomic_init(&vs->patience_ns, DTR__FAILURE_PATIENCE_NS);
    return vs;
}

static size_t table_bytes(const dtr_world *world, const dtr__votes *vs) {
    const size_t remote = DTR__VOTE_ENTRIES * (1 + vs->sum_words) * sizeof(uint64_t);
    return sizeof(table) + (world->node_count > 1 ? remote : 0);
}

dtr_status dtr__votes_open(dtr_world *world) {
    dtr__votes *vs = make(world);
    dtr_status s = DTR_OK;
    int all = 0;
    void *const *each = dtr__arena_share(world, vs != NULL ? table_bytes(world, vs) : 0, &s);
    if (vs != NULL && each == NULL && world->local_size == 1) {
        vs->table[0] = calloc(1, table_bytes(world, vs));
    }
    for (int i = 0; vs != NULL && each != NULL && i < world->local_size; i++) {
        vs->table[i] = each[i];
    }
    if (vs != NULL && vs->table[0] != NULL) {
        vs->shared = each != NULL;
        world->control.votes = vs;
    } else if (vs != NULL) {
        destroy(vs);
    }
    int able = world->control.votes != NULL &&
               (world->node_count == 1 || dtr__control_in_use(world) != NULL);
    if (s == DTR_OK) {
        s = dtr__exchange_min_of(dtr__members_of(world), able, &all);
    }
    if (world->control.votes != NULL) {
        world->control.votes->steps = all;
    }
    return s;
}

bool dtr__votes_serve(const dtr_world *world) {
    return world->control.votes != NULL && world->control.votes->steps;
}

void dtr__votes_close(dtr_world *world) {
    dtr__votes *vs = world->control.votes;
    if (vs == NULL) {
        return;
    }
    if (vs->shared) {
        dtr__arena_free(world, vs->table[world->local_rank]);
    } else {
        free(vs->table[0]);
    }
    destroy(vs);
    world->control.votes = NULL;
}
