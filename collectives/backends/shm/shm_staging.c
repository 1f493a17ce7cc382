/* Staging buffers: a ring in the arena of each rank, filled as the readers get through. How long a
 * buffer is each operation says anew.
 *
 * A line that a reader still holds in its cache is expensive to write: little where the two cores
 * share their last cache, several times the copy itself where they do not. Written by non-temporal
 * stores it costs the same everywhere, but the readers get it from memory. Which is better depends
 * on where the ranks run, and in a virtual machine that changes while they do, so both ways are
 * timed every now and then. */
#include <string.h>

#include "kernels/kernels.h"
#include "shm_internal.h"

#define WORTH 2.0 /* as much faster must it be, because the readers pay for it */

enum {
    TRIAL_LEAST = 8 * 1024,        /* bytes of a chunk worth timing */
    TRIAL_EVERY_NS = 20 * 1000000, /* from the end of one trial to the next */
    /* A trial: one chunk by the cache for each buffer, so that it is as such chunks leave it, two
     * that are timed, and two by non-temporal stores, timed too. */
    TRIAL_BUFFERS = 2, /* unless it is answer */
    TRIAL_TIMED = 2
};

static int cached_from(const dtr__shm_trial *t) {
    return t->buffers > 0 ? t->buffers : TRIAL_BUFFERS;
}

static int nontemporal_step(const dtr__shm_trial *t) {
    return cached_from(t) + TRIAL_TIMED;
}

static int end_of(const dtr__shm_trial *t) {
    return nontemporal_step(t) + TRIAL_TIMED;
}

dtr_status dtr__shm_stage_need(dtr_group *g, dtr__shm_state *s) {
    int owner = 0;
    uint64_t offset = 0;
    if (s->own_stage != NULL) {
        return DTR_OK;
    }
    s->own_stage = dtr__arena_alloc(g->world, 2 * s->chunk, 4096);
    if (s->own_stage == NULL || !dtr__arena_find(g->world, s->own_stage, 1, &owner, &offset)) {
        return DTR_FAIL(
            NULL, DTR_ERR_NOMEM,
            "group '%s': no node-shared memory for a staging buffer of %zu KiB; raise DTR_ARENA",
            g->name, 2 * s->chunk / 1024);
    }
    s->stage_at = dtr__shm_pack(owner, offset);
    return DTR_OK;
}

/* Those in which a rank gets as many chunks as it gives. */
bool dtr__shm_may_lap(const dtr_group *g, dtr__kind k) {
    return g->size == 2 && (k == DTR__K_ALLREDUCE || k == DTR__K_REDUCE_SCATTER ||
                            k == DTR__K_ALLGATHER || k == DTR__K_ALLTOALL);
}

/* Two of a reduction in several chunks, at each of which all wait, so that they stay in the cache;
 * of an allreduce too, in which nobody gets ahead. Where two ranks may change memory, so many that
 * what has just been read is still in the core's own caches when it is written again. */
size_t dtr__shm_stages(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                       size_t nbytes) {
    const bool laps = dtr__shm_may_lap(g, c->kind),
               few = c->kind == DTR__K_ALLREDUCE ||
                     (!laps && dtr__kind_reduces(c->kind) && c->in_count * s->op.size > nbytes);
    const size_t most = few                         ? 2
                        : laps                      ? DTR__SHM_STAGES_LAPPED
                        : dtr__shm_one_way(c->kind) ? DTR__SHM_STAGES
                                                    : DTR__SHM_STAGES_USUAL,
                 fit = 2 * s->chunk / nbytes;
    return fit < most ? fit : most;
}

/* Buffers of another length overlap any of those before, so all of them are used as of the newest
 * chunk. */
void dtr__shm_stage_cut(dtr__shm_state *s, size_t nbytes) {
    uint64_t newest = 0;
    if (nbytes == s->stage_bytes) {
        return;
    }
    for (int i = 0; i < DTR__SHM_STAGES; i++) {
        newest = s->stage_used[i] > newest ? s->stage_used[i] : newest;
    }
    for (int i = 0; i < DTR__SHM_STAGES; i++) {
        s->stage_used[i] = newest;
    }
    s->stage_bytes = nbytes;
}

/* Who shows an operation has finished the one before, which it says of its own accord only if it
 * knows that somebody has staged something for it. */
static bool is_through(const dtr__shm_state *s, int r, uint64_t used) {
    const uint64_t next = (used >> 20) + 1;
    return dtr__shm_has_finished(s, r, used) ||
           dtr__shm_has_posted(&s->rank[r]->slot[next % DTR__SHM_SLOT_COUNT],
                               dtr__shm_mark(next, 0));
}

/* The staging buffer of the next chunk, when all readers of what was in it last are through. */
static bool is_free(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                    size_t buffer) {
    uint64_t used = s->stage_used[buffer];
    if (used == 0 || used >> 20 < s->seen) {
        return true;
    }
    for (int r = 0; r < g->size; r++) {
        /* Of the same call as this one, which in a row it is. */
        bool reads =
            (used >> 20 != s->op.n && !s->op.ahead) || dtr__shm_reads_from(g, c, r, g->rank);
        if (r != g->rank && reads && !is_through(s, r, used)) {
            return false;
        }
    }
    return true;
}

/* The same for a chunk behind the first time round. Where two ranks may change memory neither gets
 * there before it knows whether they do; if so, it has to have read itself what is there. */
static bool is_free_again(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, size_t n,
                          size_t buffer) {
    const dtr__shm_op *op = &s->op;
    if (op->phase < DTR__SHM_PULL && dtr__shm_may_lap(g, c->kind)) {
        return false;
    }
    return op->laps ? op->posted < op->pulled + n : is_free(g, s, c, buffer);
}

size_t dtr__shm_place_of(const dtr_group *g, const dtr__shm_state *s, int giver, int reader) {
    return s->op.n_blocks > 1 ? (size_t)(reader + g->size - giver - 1) % (size_t)g->size : 0;
}

/* Chunk `posted` of every piece of the input that others read; bytes. */
static size_t fill(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                   unsigned char *to, bool nontemporal) {
    const dtr__shm_op *op = &s->op;
    size_t copied = 0;
    for (size_t b = 0; b < op->n_blocks; b++) {
        size_t offset = 0, nbytes = dtr__shm_piece(g, c, b, &offset), from = op->posted * op->step;
        if (from < nbytes && !(op->n_blocks > 1 && b == (size_t)g->rank)) {
            const size_t n = nbytes - from < op->step ? nbytes - from : op->step;
            (nontemporal ? dtr__copy_nontemporal
                         : dtr__copy)(to + dtr__shm_place_of(g, s, g->rank, (int)b) * op->step,
                                      op->in + offset + from, n);
            copied += n;
        }
    }
    return copied;
}

bool dtr__shm_trial_over(const dtr__shm_trial *t) {
    return t->step == end_of(t);
}

bool dtr__shm_trial_nontemporal(dtr__shm_trial *t, int64_t now) {
    if (dtr__shm_trial_over(t) && now >= t->next) {
        t->step = 0;
    }
    return dtr__shm_trial_over(t) ? t->nontemporal : t->step >= nontemporal_step(t);
}

void dtr__shm_trial_took(dtr__shm_trial *t, int64_t from, int64_t until, size_t nbytes,
                         double worth) {
    if (dtr__shm_trial_over(t) || nbytes < TRIAL_LEAST) {
        return;
    }
    const double cost = (double)(until - from) / (double)nbytes;
    double *best = t->step < nontemporal_step(t) ? &t->cached : &t->nontemporal_cost;
    if (t->step >= cached_from(t)) { /* of two, since a rank may lose its core meanwhile */
        const bool first = t->step == cached_from(t) || t->step == nontemporal_step(t);
        *best = first || cost < *best ? cost : *best;
    }
    t->step++;
    if (dtr__shm_trial_over(t)) {
        t->nontemporal = t->cached > worth * t->nontemporal_cost;
        t->next = until + TRIAL_EVERY_NS;
    }
}

void dtr__shm_trial_copy(dtr__shm_trial *t, uint64_t from_on, void *to, const void *from,
                         size_t nbytes) {
    const int64_t began = from_on == 0 ? dtr__now_ns() : 0;
    const bool nontemporal =
        from_on != 0 ? nbytes >= from_on : dtr__shm_trial_nontemporal(t, began);
    (nontemporal ? dtr__copy_nontemporal : dtr__copy)(to, from, nbytes);
    if (from_on == 0 && !dtr__shm_trial_over(t)) {
        dtr__shm_trial_took(t, began, dtr__now_ns(), nbytes, WORTH);
    }
}

/* Two ranks that have read all that the other has staged go on in each other's memory: what a rank
 * has just read is in its cache, and so costs less to write than its own, which the other has read.
 * Who has read it all may write there at once: its owner is through with it. Where they have
 * changed memory meanwhile, the last time round may have left something of this rank's behind. */
void dtr__shm_stage_swap(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    const dtr__shm_op *op = &s->op;
    const size_t nbytes = op->step * op->n_blocks, n = dtr__shm_stages(g, s, c, nbytes),
                 last = dtr__shm_round(dtr__shm_slot_of(s, g->rank), op->chunks_out - 1, n);
    const bool back = op->laps && last / n % 2 != 0;
    s->stage_at = dtr__shm_slot_of(s, back ? g->rank : 1 - g->rank)->at;
    memset(s->stage_used, 0, sizeof s->stage_used);
    for (size_t i = last % n + 1; op->laps && last >= n && i < n; i++) {
        s->stage_used[i] = dtr__shm_mark(op->n, op->chunks_out - 1);
    }
    s->stage_next = 0;
}

bool dtr__shm_stage_chunk(dtr_group *g, dtr__shm_state *s, const dtr__call *c,
                          dtr__shm_slot *slot) {
    dtr__shm_op *op = &s->op;
    const size_t nbytes = op->step * op->n_blocks, n = dtr__shm_stages(g, s, c, nbytes),
                 at = dtr__shm_round(slot, op->posted, n), buffer = at % n;
    const uint64_t tune = g->world->tune.value[DTR__TUNE_STAGE_NONTEMPORAL];
    if (!(at < n ? is_free(g, s, c, buffer) : is_free_again(g, s, c, n, buffer))) {
        return false;
    }
    unsigned char *to = dtr__shm_staged(g, s, c, g->rank, op->posted);
    if (tune != 0) {
        (void)fill(g, s, c, to, c->in_count * op->size >= tune);
    } else {
        const int64_t from = dtr__now_ns();
        const size_t copied = fill(g, s, c, to, dtr__shm_trial_nontemporal(&s->trial, from));
        if (!dtr__shm_trial_over(&s->trial)) {
            dtr__shm_trial_took(&s->trial, from, dtr__now_ns(), copied, WORTH);
        }
    }
    s->stage_used[buffer] = dtr__shm_mark(op->n, op->posted);
    s->stage_next = (buffer + 1) % n;
    op->posted++;
    return true;
}
