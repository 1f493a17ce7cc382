/* Reductions of node-shared buffers without copies: every rank reduces its slice straight out of
 * all inputs and writes it to all outputs; two rounds of flags. */
#include "kernels/kernels.h"
#include "shm/shm_internal.h"

enum { PIECE = 256 * 1024 }; /* bytes per source and kernel call, so that other groups get a turn */

bool dtr__shm_zero_fits(const dtr_group *g, const dtr__call *c) {
    return g->size > 1 && (c->kind == DTR__K_ALLREDUCE || c->kind == DTR__K_REDUCE);
}

/* Inputs and results of all ranks together, and what else the program has there, do not stay in the
 * cache they share. */
bool dtr__shm_streams(const dtr_group *g, size_t nbytes) {
    const uint64_t from = g->world->tune.value[DTR__TUNE_STREAM];
    return from != 0 ? nbytes >= from
                     : nbytes >= dtr__kernels_cache() / (4 * (size_t)g->world->local_size);
}

/* Rank r's slice in elements, cut at multiples of 64 bytes so that no two ranks write one cache
 * line. */
static size_t slice_at(const dtr_group *g, const dtr__call *c, size_t size, int r) {
    size_t line = 64 / size, lines = (c->in_count + line - 1) / line;
    size_t at = lines * (size_t)r / (size_t)g->size * line;
    return at < c->in_count ? at : c->in_count;
}

static int pointers(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, size_t offset,
                    const void **from, void **to, double *factors) {
    int n_to = 0;
    for (int r = 0; r < g->size; r++) {
        const dtr__shm_more *more = dtr__shm_more_of(s, r);
        from[r] = (const char *)dtr__shm_unpack(g->world, more->in_at) + offset;
        factors[r] = more->premul;
        if (c->kind != DTR__K_REDUCE || r == c->root) {
            to[n_to++] = (char *)dtr__shm_unpack(g->world, more->out_at) + offset;
        }
    }
    return n_to;
}

bool dtr__shm_zero_pull(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t budget,
                        bool *moved) {
    dtr__shm_op *op = &s->op;
    const void *from[DTR__SHM_MAX_RANKS];
    void *to[DTR__SHM_MAX_RANKS];
    double factors[DTR__SHM_MAX_RANKS];
    size_t first = slice_at(g, c, op->size, g->rank), end = slice_at(g, c, op->size, g->rank + 1);
    size_t count = PIECE / op->size;
    const bool stream = dtr__shm_streams(g, c->in_count * op->size);
    for (size_t total = 0; total < budget; total += PIECE * (size_t)g->size) {
        size_t at = first + op->pulled * count;
        if (at >= end) {
            return true;
        }
        int n_to = pointers(g, s, c, at * op->size, from, to, factors);
        dtr__reduce_piece(to, n_to, from, g->size, end - at < count ? end - at : count, c->dtype,
                          c->op, c->divisor, c->op == DTR_PREMUL_SUM ? factors : NULL, stream);
        op->pulled++;
        *moved = true;
    }
    return first + op->pulled * count >= end;
}
