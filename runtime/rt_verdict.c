/* Verdicts: each rank writes its account into memory of its own first and names it in the group's
 * word then, by one exchange, so that a rank that is killed at any moment leaves either nothing or
 * the whole. */
#include "rt_verdict.h"

#include <stdlib.h>
#include <string.h>

#include "rt_control.h"
#include "rt_internal.h"
#include "rt_peers.h"
#include "rt_words.h"

#define TAG (~UINT64_C(0xffff))

typedef struct entry {
    _Atomic uint64_t version;
    _Atomic uint64_t word[sizeof(dtr__verdict) / sizeof(uint64_t)];
} entry;

/* Of one rank, in memory that the node shares, zeroed at first. */
typedef struct table {
    /* Local rank 0's serve the node: tag of a group, local rank + 1 of whose account counts. */
    _Atomic uint64_t first[DTR__VERDICTS];
    entry own[DTR__VERDICTS]; /* this rank's accounts; dtr__verdicts.lock */
} table;

/* Behind it where there are several nodes: what the rank's watchdog has heard, the weightiest
 * account for a group and a bit per node. */
typedef struct far {
    _Atomic uint64_t uid[DTR__VERDICTS];
    entry heard[DTR__VERDICTS];
    _Atomic uint64_t nodes[]; /* [DTR__VERDICTS][node_words] */
} far;

struct dtr__verdicts {
    pthread_mutex_t lock;        /* own accounts, which any thread may write */
    _Atomic int64_t patience_ns; /* with other nodes */
    int node_words;
    bool shared;
    table *table[]; /* [local size] */
};

/* ---- entries ---- */

static int place(uint64_t uid) {
    return (int)((uid + 7 * (uid >> 40)) % DTR__VERDICTS); /* uids: meet.c */
}

static uint64_t tag(uint64_t uid) {
    uint64_t h = (uid ^ uid >> 29) * UINT64_C(0x9e3779b97f4a7c15);
    return (h & TAG) != 0 ? h & TAG : ~TAG + 1;
}

static void put(entry *e, const dtr__verdict *v) {
    dtr__words_put(&e->version, e->word, v, sizeof *v / sizeof(uint64_t));
}

static bool get(const entry *e, dtr__verdict *v) {
    bool whole = dtr__words_get(&e->version, e->word, v, sizeof *v / sizeof(uint64_t));
    if (whole) {
        v->operation[sizeof v->operation - 1] = v->text[sizeof v->text - 1] = '\0';
    }
    return whole;
}

/* Kinds of errors, the weightiest first; of one kind, the lowest rank. */
static int weight(int32_t status) {
    return status == DTR_ERR_MISMATCH  ? 0
           : status == DTR_ERR_TIMEOUT ? 2
           : status == DTR_ERR_ABORTED ? 3
                                       : 1;
}

static bool outweighs(const dtr__verdict *a, const dtr__verdict *b) {
    int x = weight(a->status), y = weight(b->status);
    return x != y ? x < y : a->origin < b->origin;
}

/* ---- the node's ---- */

static bool at_word(const dtr__verdicts *vs, int k, uint64_t word, dtr__verdict *out) {
    int who = (int)(word & ~TAG) - 1;
    return who >= 0 && get(&vs->table[who]->own[k], out) && tag(out->uid) == (word & TAG);
}

static uint64_t word_of(const dtr__verdicts *vs, uint64_t uid) {
    uint64_t word = atomic_load(&vs->table[0]->first[place(uid)]);
    return (word & TAG) == tag(uid) ? word : 0;
}

void dtr__verdict_wait_for(dtr_world *world, int64_t patience_ns) {
    if (world->verdicts != NULL) {
        atomic_store(&world->verdicts->patience_ns, patience_ns);
    }
}

int64_t dtr__verdict_patience(const dtr_world *world) {
    return atomic_load(&world->verdicts->patience_ns);
}

bool dtr__verdict_is_put(const dtr_world *world, uint64_t uid) {
    return world->verdicts != NULL && word_of(world->verdicts, uid) != 0;
}

bool dtr__verdict_put(dtr_world *world, const dtr__verdict *v) {
    dtr__verdicts *vs = world->verdicts;
    if (vs == NULL) {
        return false;
    }
    int k = place(v->uid);
    const uint64_t mine = tag(v->uid) | (uint64_t)(world->local_rank + 1);
    pthread_mutex_lock(&vs->lock);
    uint64_t word = atomic_load(&vs->table[0]->first[k]);
    if ((word & TAG) != tag(v->uid)) {
        dtr__verdict now = *v;
        now.put_ns = dtr__now_ns();
        put(&vs->table[world->local_rank]->own[k], &now);
        while ((word & TAG) != tag(v->uid) &&
               !atomic_compare_exchange_weak(&vs->table[0]->first[k], &word, mine)) {
        }
    }
    pthread_mutex_unlock(&vs->lock);
    if (v->far != 0) {
        dtr__control_wake(world);
    }
    return true;
}

/* ---- between nodes ---- */

static far *far_of(const dtr__verdicts *vs, int local_rank) {
    return (far *)(vs->table[local_rank] + 1);
}

static _Atomic uint64_t *bits(const dtr__verdicts *vs, far *f, int k) {
    return &f->nodes[(size_t)k * (size_t)vs->node_words];
}

uint64_t dtr__verdict_to_tell(const dtr_world *world, int k, dtr__verdict *out) {
    const dtr__verdicts *vs = world->verdicts;
    uint64_t word = vs != NULL ? atomic_load(&vs->table[0]->first[k]) : 0;
    return word != 0 && at_word(vs, k, word, out) && out->far != 0 ? word : 0;
}

void dtr__verdict_heard(dtr_world *world, int node, const dtr__verdict *v) {
    dtr__verdicts *vs = world->verdicts;
    if (vs == NULL || world->node_count == 1) {
        return;
    }
    int k = place(v->uid);
    far *f = far_of(vs, world->local_rank);
    _Atomic uint64_t *said = bits(vs, f, k);
    dtr__verdict before;
    if (atomic_load(&f->uid[k]) != v->uid) {
        atomic_store(&f->uid[k], 0);
        for (int i = 0; i < vs->node_words; i++) {
            atomic_store(&said[i], 0);
        }
        put(&f->heard[k], v);
        atomic_store(&f->uid[k], v->uid);
    } else if (get(&f->heard[k], &before) && outweighs(v, &before)) {
        put(&f->heard[k], v);
    }
    atomic_fetch_or(&said[node / 64], UINT64_C(1) << node % 64);
    (void)dtr__verdict_put(world, v); /* it is this node's too, unless there is one */
}

/* What this node's ranks have heard; the bits before the account, which is put before them. */
static void gather(const dtr_world *world, uint64_t uid, uint64_t *nodes, dtr__verdict *best) {
    const dtr__verdicts *vs = world->verdicts;
    int k = place(uid);
    for (int i = 0; i < world->local_size; i++) {
        far *f = far_of(vs, i);
        dtr__verdict v;
        uint64_t said[vs->node_words];
        if (atomic_load(&f->uid[k]) != uid) {
            continue;
        }
        for (int j = 0; j < vs->node_words; j++) {
            said[j] = atomic_load(&bits(vs, f, k)[j]);
        }
        if (!get(&f->heard[k], &v) || v.uid != uid) {
            continue;
        }
        for (int j = 0; j < vs->node_words; j++) {
            nodes[j] |= said[j];
        }
        *best = outweighs(&v, best) ? v : *best;
    }
}

/* `put_ns`: when this node had it, on its clock. */
static bool settled_alone(const dtr_world *world, uint64_t uid, const int *world_ranks, int n,
                          dtr__verdict *out, int64_t *put_ns) {
    const dtr__verdicts *vs = world->verdicts;
    uint64_t word = vs != NULL ? word_of(vs, uid) : 0;
    if (word == 0 || !at_word(vs, place(uid), word, out) || out->uid != uid) {
        return false;
    }
    *put_ns = out->put_ns;
    if (out->far == 0 || !dtr__control_serves(world)) {
        return true;
    }
    uint64_t nodes[vs->node_words];
    memset(nodes, 0, sizeof nodes);
    gather(world, uid, nodes, out);
    for (int i = 0; i < n; i++) {
        int node = world->node_of[world_ranks[i]];
        if (node != world->node && (nodes[node / 64] >> node % 64 & 1) == 0 &&
            !dtr__rank_dead(world, world_ranks[i])) {
            return dtr__now_ns() - *put_ns >= atomic_load(&vs->patience_ns);
        }
    }
    return true;
}

/* Whoever is released from one of two groups may go on to the other at once, so that has to be
 * known for broken wherever there are members. */
bool dtr__verdict_settled(const dtr_world *world, uint64_t uid, const int *world_ranks, int n,
                          dtr__verdict *out) {
    dtr__verdict other;
    int64_t put_ns = 0, other_ns = 0;
    if (!settled_alone(world, uid, world_ranks, n, out, &put_ns)) {
        return false;
    }
    return out->also == 0 || settled_alone(world, out->also, world_ranks, n, &other, &other_ns) ||
           dtr__now_ns() - put_ns >= dtr__verdict_patience(world);
}

/* ---- life ---- */

dtr_status dtr__verdicts_open(dtr_world *world) {
    dtr__error_context ctx = { .world = world };
    size_t local = (size_t)world->local_size;
    int node_words = (world->node_count + 63) / 64;
    size_t nbytes = sizeof(table);
    if (world->node_count > 1) {
        nbytes += sizeof(far) + sizeof(uint64_t) * DTR__VERDICTS * (size_t)node_words;
    }
    dtr__verdicts *vs = calloc(1, sizeof *vs + local * sizeof vs->table[0]);
    void *each[world->local_size];
    int code = MPI_SUCCESS;
    bool shared = dtr__arena_share(world, vs != NULL ? nbytes : 0, each, &code);
    if (code != MPI_SUCCESS) {
        free(vs);
        return dtr__error_mpi(&ctx, code, "MPI_Allgather", __FILE__, __LINE__);
    }
    if (vs != NULL && !shared && local == 1) {
        each[0] = calloc(1, nbytes);
    }
    if (vs == NULL || (!shared && (local > 1 || each[0] == NULL))) {
        free(vs);
        return DTR_OK;
    }
    memcpy((void *)vs->table, (void *)each, sizeof each);
    pthread_mutex_init(&vs->lock, NULL);
    atomic_init(&vs->patience_ns, DTR__VERDICT_PATIENCE_NS);
    vs->node_words = node_words;
    vs->shared = shared;
    world->verdicts = vs;
    return DTR_OK;
}

void dtr__verdicts_close(dtr_world *world) {
    dtr__verdicts *vs = world->verdicts;
    if (vs == NULL) {
        return;
    }
    if (vs->shared) {
        dtr__arena_free(world, vs->table[world->local_rank]);
    } else {
        free(vs->table[0]);
    }
    pthread_mutex_destroy(&vs->lock);
    free(vs);
    world->verdicts = NULL;
}
