/* Words of upper layers. Each rank writes its own into its own piece of node-shared memory, and its
 * watchdog beside them what it hears from other nodes: merged, with a bit for each rank heard. Who
 * waits merges all of that again; merging a word twice changes nothing. */
#include "rt_ballot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rt_control.h"
#include "rt_control_parts.h"
#include "rt_internal.h"
#include "rt_peers.h"
#include "rt_words.h"

enum { WORDS = sizeof(dtr__ballot) / sizeof(uint64_t), AT_UID = 0, AT_STEP = 1 };
_Static_assert(offsetof(dtr__ballot, step) == AT_STEP * sizeof(uint64_t),
               "found by its first words");

/* In shared memory, one writer at a time. */
typedef struct entry {
    _Atomic uint64_t version;
    _Atomic uint64_t word[WORDS];
} entry;

/* A word and the world ranks whose words are in it, and those of them with a bad status. */
typedef struct sum {
    dtr__ballot word;
    uint64_t rank[]; /* [2][rank_words] */
} sum;

struct dtr__ballots {
    pthread_mutex_t lock; /* own entries, which any thread may write, and `busy` */
    int rank_words;
    size_t sum_words;        /* of a sum */
    bool busy[DTR__BALLOTS]; /* somebody waits for what belongs to that own entry */
    bool shared;
    sum *heard[DTR__BALLOTS]; /* what is in shared memory too; the watchdog's */
    uint64_t *scratch;        /* memory of all those */
    void *table[]; /* [local size] entry own[DTR__BALLOTS], then sums with a version each */
};

/* ---- memory ---- */

static entry *own_of(const dtr__ballots *ws, int local_rank) {
    return ws->table[local_rank];
}

/* Version, and behind it the words of a sum. */
static _Atomic uint64_t *heard_of(const dtr__ballots *ws, int local_rank, int k) {
    _Atomic uint64_t *first = (_Atomic uint64_t *)(own_of(ws, local_rank) + DTR__BALLOTS);
    return first + (size_t)k * (1 + ws->sum_words);
}

static bool is_at(const _Atomic uint64_t *word, uint64_t uid, uint64_t step) {
    return atomic_load_explicit(&word[AT_UID], memory_order_relaxed) == uid &&
           atomic_load_explicit(&word[AT_STEP], memory_order_relaxed) == step;
}

static void end_texts(dtr__ballot *w) {
    w->native_text[sizeof w->native_text - 1] = w->text[sizeof w->text - 1] = '\0';
}

/* ---- merging ---- */

int32_t dtr__ballot_order(dtr_status s) {
    return s == DTR_ERR_MISMATCH ? 0 : s == DTR_ERR_TIMEOUT ? 2 : s == DTR_ERR_ABORTED ? 3 : 1;
}

static bool outweighs(const dtr__ballot *a, const dtr__ballot *b) {
    if ((a->status < 0) != (b->status < 0)) {
        return a->status < 0;
    }
    return a->order != b->order ? a->order < b->order : a->origin < b->origin;
}

static void merge(dtr__ballot *all, const dtr__ballot *one) {
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

static bool has(const uint64_t *rank, int r) {
    return (rank[r / 64] >> r % 64 & 1) != 0;
}

static void add(const dtr__ballots *ws, sum *s, const dtr__ballot *one) {
    const uint64_t bit = UINT64_C(1) << one->origin % 64;
    if (s->word.uid == 0) {
        s->word = *one;
    } else {
        merge(&s->word, one);
    }
    s->rank[one->origin / 64] |= bit;
    s->rank[ws->rank_words + one->origin / 64] |= one->status < 0 ? bit : 0;
}

/* ---- own ---- */

static bool is_far(const dtr_world *world, const int *world_ranks, int n) {
    bool far = false;
    for (int i = 0; i < n; i++) {
        far = far || world->node_of[world_ranks[i]] != world->node;
    }
    return far;
}

static uint64_t word_at(const entry *e, int at) {
    return atomic_load_explicit(&e->word[at], memory_order_relaxed);
}

/* The entry for a word of this rank; -1: none is free, -2: it has been put. All members have got
 * the step before the last one: whoever puts a step has got the one before it, which all had put.
 */
static int place(const dtr__ballots *ws, const entry *own, const dtr__ballot *mine) {
    int at = -1;
    int64_t oldest = INT64_MAX;
    for (int k = 0; k < DTR__BALLOTS; k++) {
        const uint64_t uid = word_at(&own[k], AT_UID), step = word_at(&own[k], AT_STEP);
        int64_t put_ns =
            (int64_t)word_at(&own[k], offsetof(dtr__ballot, put_ns) / sizeof(uint64_t));
        if (uid == mine->uid && step == mine->step) {
            return -2;
        }
        put_ns = uid == 0 || (uid == mine->uid && step + 2 <= mine->step) ? INT64_MIN : put_ns;
        if (!ws->busy[k] && put_ns < oldest) {
            oldest = put_ns;
            at = k;
        }
    }
    return at;
}

dtr_status dtr__ballot_put(dtr_world *world, const int *world_ranks, int n,
                           const dtr__ballot *mine) {
    dtr__error_context ctx = { .world = world };
    dtr__ballots *ws = world->ballots;
    dtr__ballot w = *mine;
    w.far = is_far(world, world_ranks, n);
    w.origin = world->rank;
    w.n_bad = 0;
    end_texts(&w);
    pthread_mutex_lock(&ws->lock);
    entry *own = own_of(ws, world->local_rank);
    const int k = place(ws, own, &w);
    if (k >= 0) {
        w.put_ns = dtr__now_ns();
        dtr__words_put(&own[k].version, own[k].word, &w, WORDS);
    }
    pthread_mutex_unlock(&ws->lock);
    DTR_REQUIRE(k != -1, &ctx, DTR_ERR_NOMEM, "no room for one more word: %d are waited for",
                DTR__BALLOTS);
    if (w.far != 0) {
        dtr__control_wake(world);
    }
    return DTR_OK;
}

static void set_busy(dtr__ballots *ws, const entry *own, uint64_t uid, uint64_t step, bool busy) {
    pthread_mutex_lock(&ws->lock);
    for (int k = 0; k < DTR__BALLOTS; k++) {
        ws->busy[k] = is_at(own[k].word, uid, step) ? busy : ws->busy[k];
    }
    pthread_mutex_unlock(&ws->lock);
}

/* ---- getting ---- */

static void gather_own(const dtr_world *world, uint64_t uid, uint64_t step, sum *all) {
    const dtr__ballots *ws = world->ballots;
    for (int i = 0; i < world->local_size; i++) {
        const entry *own = own_of(ws, i);
        for (int k = 0; k < DTR__BALLOTS; k++) {
            dtr__ballot one;
            if (is_at(own[k].word, uid, step) && !has(all->rank, world->local_world[i]) &&
                dtr__words_get(&own[k].version, own[k].word, &one, WORDS) && one.uid == uid &&
                one.step == step && one.origin == world->local_world[i]) {
                end_texts(&one);
                add(ws, all, &one);
            }
        }
    }
}

static void gather_heard(const dtr_world *world, uint64_t uid, uint64_t step, sum *one, sum *all) {
    const dtr__ballots *ws = world->ballots;
    for (int i = 0; i < world->local_size * DTR__BALLOTS; i++) {
        const _Atomic uint64_t *at = heard_of(ws, i / DTR__BALLOTS, i % DTR__BALLOTS);
        if (!is_at(at + 1, uid, step) || !dtr__words_get(at, at + 1, one, ws->sum_words) ||
            one->word.uid != uid || one->word.step != step) {
            continue;
        }
        end_texts(&one->word);
        merge(&all->word, &one->word);
        for (int k = 0; k < 2 * ws->rank_words; k++) {
            all->rank[k] |= one->rank[k];
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

/* Who has not put its word; among them, where there is one, a rank that has died. -1: nobody. */
static int missing(const dtr_world *world, const int *world_ranks, int n, const sum *all) {
    int first = -1;
    for (int i = 0; i < n; i++) {
        if (!has(all->rank, world_ranks[i])) {
            if (dtr__rank_dead(world, world_ranks[i])) {
                return world_ranks[i];
            }
            first = first < 0 ? world_ranks[i] : first;
        }
    }
    return first;
}

static dtr_status late(const dtr_world *world, int absent, int n_absent, double limit_s) {
    dtr__error_context ctx = { .world = world };
    char name[160], doing[DTR__DIGEST_TEXT], more[48] = "";
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
    int n_here;      /* words of this node so far */
    bool look_again; /* a death has been seen: its word may have come just before */
} wait;

/* One look; DTR_IN_PROGRESS: some are missing, in *absent one of them. */
static dtr_status look(dtr_world *world, const int *world_ranks, int n, uint64_t uid, uint64_t step,
                       wait *w, int *absent) {
    const dtr__ballots *ws = world->ballots;
    dtr__error_context ctx = { .world = world };
    memset(w->all, 0, ws->sum_words * sizeof(uint64_t));
    gather_own(world, uid, step, w->all);
    const int n_here = n_ones(w->all->rank, ws->rank_words);
    if (w->all->word.far != 0) {
        gather_heard(world, uid, step, w->one, w->all);
        if (n_here > w->n_here) { /* this may be the rank that tells other nodes */
            dtr__control_wake(world);
        }
    }
    w->n_here = n_here;
    *absent = missing(world, world_ranks, n, w->all);
    if (*absent < 0) {
        return DTR_OK;
    }
    if (!dtr__rank_dead(world, *absent) || !w->look_again) {
        w->look_again = dtr__rank_dead(world, *absent);
        return DTR_IN_PROGRESS;
    }
    return DTR_FAIL(&ctx, dtr__rank_death_status(world, *absent), "%s",
                    dtr__rank_death(world, *absent));
}

dtr_status dtr__ballot_get(dtr_world *world, const int *world_ranks, int n, uint64_t uid,
                           uint64_t step, double limit_s, dtr__ballot_stop stop, void *arg,
                           dtr__ballot *agreed) {
    dtr__ballots *ws = world->ballots;
    const entry *own = own_of(ws, world->local_rank);
    uint64_t memory[2 * ws->sum_words]; /* what has been put must be got: nothing may fail here */
    wait w = { .all = (sum *)memory, .one = (sum *)(memory + ws->sum_words) };
    set_busy(ws, own, uid, step, true);
    const double start = dtr__now();
    dtr__backoff pause = { 0 };
    int absent;
    dtr_status s;
    while ((s = look(world, world_ranks, n, uid, step, &w, &absent)) == DTR_IN_PROGRESS) {
        const bool over = dtr__now() - start >= limit_s;
        if (stop != NULL && (s = stop(arg)) < 0) {
            break;
        }
        if (over && (s = look(world, world_ranks, n, uid, step, &w, &absent)) != DTR_IN_PROGRESS) {
            break;
        }
        if (over) {
            s = late(world, absent, n - n_ones(w.all->rank, ws->rank_words), limit_s);
            break;
        }
        if (!dtr__progress_has_thread(world)) {
            dtr__progress_poll_all(world);
        }
        dtr__backoff_pause(world, &pause);
    }
    set_busy(ws, own, uid, step, false);
    if (s == DTR_OK) {
        *agreed = w.all->word;
        agreed->n_bad = (uint32_t)n_ones(w.all->rank + ws->rank_words, ws->rank_words);
    }
    return s;
}

/* ---- between nodes ---- */

uint64_t dtr__ballot_to_tell(const dtr_world *world, int local_rank, int k, uint64_t told,
                             dtr__ballot *out) {
    const dtr__ballots *ws = world->ballots;
    if (ws == NULL) {
        return 0;
    }
    const entry *e = &own_of(ws, local_rank)[k];
    const uint64_t version = atomic_load(&e->version);
    if (version == told || !dtr__words_get(&e->version, e->word, out, WORDS) || out->far == 0) {
        return 0;
    }
    end_texts(out);
    out->put_ns = dtr__now_ns() - out->put_ns;
    return version;
}

size_t dtr__ballot_bytes(const dtr__ballot *w) {
    const size_t nbytes = offsetof(dtr__ballot, text) + strlen(w->text) + 1;
    return (nbytes + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
}

/* Where it goes, by the rule of own entries; -1: it is older than all that is there. */
static int place_heard(const dtr__ballots *ws, const dtr__ballot *w) {
    int at = -1;
    int64_t oldest = w->put_ns;
    for (int k = 0; k < DTR__BALLOTS; k++) {
        const dtr__ballot *there = &ws->heard[k]->word;
        if (there->uid == w->uid && there->step == w->step) {
            return k;
        }
        if (there->uid == w->uid && there->step >= w->step + 2) {
            return -1;
        }
        int64_t put_ns = there->uid == 0 || (there->uid == w->uid && there->step + 2 <= w->step)
                             ? INT64_MIN
                             : there->put_ns;
        if (put_ns < oldest) {
            oldest = put_ns;
            at = k;
        }
    }
    return at;
}

void dtr__ballot_heard(dtr_world *world, const dtr__ballot *w) {
    dtr__ballots *ws = world->ballots;
    const int k = ws != NULL && world->node_count > 1 ? place_heard(ws, w) : -1;
    if (k < 0) {
        return;
    }
    sum *s = ws->heard[k];
    if (s->word.uid != w->uid || s->word.step != w->step) {
        memset(s, 0, ws->sum_words * sizeof(uint64_t));
    } else if (has(s->rank, w->origin)) {
        return;
    }
    add(ws, s, w);
    _Atomic uint64_t *at = heard_of(ws, world->local_rank, k);
    dtr__words_put(at, at + 1, s, ws->sum_words);
}

/* ---- life ---- */

static dtr__ballots *make(const dtr_world *world) {
    dtr__ballots *ws = calloc(1, sizeof *ws + (size_t)world->local_size * sizeof ws->table[0]);
    if (ws == NULL) {
        return NULL;
    }
    ws->rank_words = (world->size + 63) / 64;
    ws->sum_words = WORDS + 2 * (size_t)ws->rank_words;
    ws->scratch = calloc(DTR__BALLOTS * ws->sum_words, sizeof(uint64_t));
    if (ws->scratch == NULL) {
        free(ws);
        return NULL;
    }
    for (int k = 0; k < DTR__BALLOTS; k++) {
        ws->heard[k] = (sum *)(ws->scratch + (size_t)k * ws->sum_words);
    }
    pthread_mutex_init(&ws->lock, NULL);
    return ws;
}

static size_t table_bytes(const dtr_world *world, const dtr__ballots *ws) {
    size_t nbytes = DTR__BALLOTS * sizeof(entry);
    if (world->node_count > 1) {
        nbytes += DTR__BALLOTS * (1 + ws->sum_words) * sizeof(uint64_t);
    }
    return nbytes;
}

dtr_status dtr__ballots_open(dtr_world *world) {
    dtr__error_context ctx = { .world = world };
    dtr__ballots *ws = world->ballots = make(world);
    void *each[world->local_size];
    int code = MPI_SUCCESS;
    const bool shared =
        dtr__arena_share(world, ws != NULL ? table_bytes(world, ws) : 0, each, &code);
    if (ws != NULL && !shared && world->local_size == 1) {
        each[0] = calloc(1, table_bytes(world, ws));
    }
    int able = ws != NULL && (shared || (world->local_size == 1 && each[0] != NULL)) &&
               (world->node_count == 1 || dtr__control_in_use(world) != NULL);
    int all = 0;
    if (ws != NULL) {
        ws->shared = shared;
        for (int i = 0; i < world->local_size; i++) {
            ws->table[i] = shared || world->local_size == 1 ? each[i] : NULL;
        }
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Allreduce(&able, &all, 1, MPI_INT, MPI_MIN, world->comm);
    }
    if (!all) {
        dtr__ballots_close(world);
    }
    return code == MPI_SUCCESS ? DTR_OK
                               : dtr__error_mpi(&ctx, code, "MPI_Allreduce", __FILE__, __LINE__);
}

bool dtr__ballots_serve(const dtr_world *world) {
    return world->ballots != NULL;
}

void dtr__ballots_close(dtr_world *world) {
    dtr__ballots *ws = world->ballots;
    if (ws == NULL) {
        return;
    }
    if (ws->shared) {
        dtr__arena_free(world, ws->table[world->local_rank]);
    } else if (world->local_size == 1) {
        free(ws->table[0]);
    }
    pthread_mutex_destroy(&ws->lock);
    free(ws->scratch);
    free(ws);
    world->ballots = NULL;
}
