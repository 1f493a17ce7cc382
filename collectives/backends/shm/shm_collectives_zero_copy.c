/* Reductions of node-shared buffers without copies: every rank reduces its slice straight out of
 * all inputs and writes it to all outputs; two rounds of flags. */
#include "kernels/kernels.h"
#include "shm_internal.h"
#include "topology/cache.h"

/* Non-temporal stores may take a little longer, for what they write is read sooner. */
#define WORTH 0.9

bool dtr__shm_zero_fits(const dtr_group *g, const dtr__call *c) {
    return g->size > 1 && (c->kind == DTR__K_ALLREDUCE || c->kind == DTR__K_REDUCE);
}

/* Where the results of all ranks together do not stay in the cache they share. What an alltoall
 * moves, all of which is read once and written once at the same time, is better there much
 * earlier. */
bool dtr__shm_streams(const dtr_group *g, dtr__kind kind, size_t nbytes) {
    const uint64_t from = g->world->tune.value[DTR__TUNE_STREAM];
    const size_t share = dtr__last_cache() / (size_t)g->world->local_size;
    if (from != 0) {
        return nbytes >= from;
    }
    return kind == DTR__K_ALLTOALL || kind == DTR__K_ALLTOALLV ? nbytes >= share / 4
                                                               : nbytes > 2 * share;
}

/* The same of a reduction. Of two ranks it costs more at any size to make results in a buffer and
 * copy them. */
bool dtr__shm_streams_reduced(const dtr_group *g, dtr__kind kind, size_t nbytes) {
    const bool set = g->world->tune.value[DTR__TUNE_STREAM] != 0;
    return (set || g->size > 2) && dtr__shm_streams(g, kind, nbytes);
}

/* Rank r's slice in elements, cut at multiples of 64 bytes so that no two ranks write one cache
 * line. */
static size_t slice_at(const dtr_group *g, const dtr__call *c, size_t size, int r) {
    size_t line = 64 / size, lines = (c->in_count + line - 1) / line;
    size_t at = lines * (size_t)r / (size_t)g->size * line;
    return at < c->in_count ? at : c->in_count;
}

/* The own result first. */
static int pointers(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, size_t offset,
                    const void **from, void **to, double *factors) {
    int n_to = 1;
    to[0] = NULL;
    for (int r = 0; r < g->size; r++) {
        const dtr__shm_detail *detail = dtr__shm_detail_of(s, r);
        from[r] = (const char *)dtr__shm_unpack(g->world, detail->in_at) + offset;
        factors[r] = detail->premul;
        if (c->kind != DTR__K_REDUCE || r == c->root) {
            void *at = (char *)dtr__shm_unpack(g->world, detail->out_at) + offset;
            to[r == g->rank || c->kind == DTR__K_REDUCE ? 0 : n_to++] = at;
        }
    }
    return n_to;
}

static dtr__shm_trial *trial_of(dtr__shm_state *s, size_t nbytes) {
    int k = 0;
    while (k < DTR__SHM_SIZES - 1 && nbytes >> (k + 15) != 0) {
        k++;
    }
    return &s->spread[k];
}

/* How the results of an operation are written. *trial: which notes how long it took, if any.
 *
 * A line of another rank's result that this rank has written lies in this rank's cache, and the
 * other has to get it from there to read it, which between cores that share no cache takes longer
 * than all else; and if it has read the last one, this rank has to take it away first. Written by
 * non-temporal stores it is read from memory. Where cores share a cache and nobody reads the result
 * that takes longer, so both ways are timed every now and then. */
static dtr__nontemporal choose(const dtr_group *g, dtr__shm_state *s, const dtr__call *c,
                               dtr__shm_trial **trial, int64_t now) {
    const size_t nbytes = c->in_count * s->op.size;
    const uint64_t tune = g->world->tune.value[DTR__TUNE_ZERO_NONTEMPORAL];
    *trial = NULL;
    if (c->in != c->out && dtr__shm_streams_reduced(g, c->kind, nbytes)) {
        return DTR__NONTEMPORAL_ALL;
    }
    if (c->kind == DTR__K_REDUCE) {
        return DTR__NONTEMPORAL_NONE;
    }
    if (tune != 0) {
        return nbytes >= tune ? DTR__NONTEMPORAL_OTHERS : DTR__NONTEMPORAL_NONE;
    }
    *trial = trial_of(s, nbytes);
    return dtr__shm_trial_nontemporal(*trial, now) ? DTR__NONTEMPORAL_OTHERS
                                                   : DTR__NONTEMPORAL_NONE;
}

/* Before each piece, in no other rank's output before, all are asked whether they still lend it. */
static bool pull(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t budget,
                 bool *moved) {
    dtr__shm_op *op = &s->op;
    const void *from[DTR__SHM_MAX_RANKS];
    void *to[DTR__SHM_MAX_RANKS];
    double factors[DTR__SHM_MAX_RANKS];
    size_t first = slice_at(g, c, op->size, g->rank), end = slice_at(g, c, op->size, g->rank + 1);
    size_t count = DTR__SHM_AT_ONCE / op->size;
    dtr__shm_trial *trial = NULL; /* of the first piece */
    for (size_t total = 0; total < budget; total += DTR__SHM_AT_ONCE * (size_t)g->size) {
        size_t at = first + op->pulled * count, n = end - at < count ? end - at : count;
        if (at >= end) {
            return true;
        }
        if (!dtr__shm_may_write(g, s, at * op->size, n * op->size)) {
            op->lost = true; /* the group breaks, which ends the operation */
            return true;
        }
        const int64_t began = op->pulled == 0 ? dtr__now_ns() : 0;
        if (op->pulled == 0) {
            op->nontemporal = choose(g, s, c, &trial, began);
        }
        int n_to = pointers(g, s, c, at * op->size, from, to, factors);
        dtr__reduce_piece(to, n_to, from, g->size, n, c->dtype, dtr__kernel_op(g, c), c->divisor,
                          c->op == DTR_PREMUL_SUM ? factors : NULL,
                          (dtr__nontemporal)op->nontemporal);
        if (op->pulled == 0 && trial != NULL && !dtr__shm_trial_over(trial)) {
            dtr__shm_trial_took(trial, began, dtr__now_ns(), n * op->size, WORTH);
        }
        op->pulled++;
        *moved = true;
    }
    return first + op->pulled * count >= end;
}

bool dtr__shm_zero_pull(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t budget,
                        bool *moved) {
    const bool complete = pull(g, s, c, budget, moved);
    dtr__shm_has_written(g, s);
    return complete;
}
