/* Which bytes of whose input a rank wants, for every collective, and where they go. */
#include "shm/shm_internal.h"

bool dtr__shm_scatters(dtr__kind k) {
    return k == DTR__K_SCATTER || k == DTR__K_SCATTERV || k == DTR__K_REDUCE_SCATTER ||
           k == DTR__K_REDUCE_SCATTERV || k == DTR__K_ALLTOALL || k == DTR__K_ALLTOALLV;
}

bool dtr__shm_has_table(dtr__kind k) {
    return k == DTR__K_SCATTERV || k == DTR__K_ALLTOALLV;
}

/* `root`: what holds for the root where data comes from it alone; the opposite where it goes there.
 */
static bool takes_part(const dtr_group *g, const dtr__call *c, int rank, bool root) {
    switch (c->kind) {
    case DTR__K_BARRIER:
        return false;
    case DTR__K_BROADCAST:
    case DTR__K_SCATTER:
    case DTR__K_SCATTERV:
        return (rank == c->root) == root;
    case DTR__K_REDUCE:
    case DTR__K_GATHER:
    case DTR__K_GATHERV:
        return (rank == c->root) != root;
    default:
        return g->size > 1;
    }
}

bool dtr__shm_gives(const dtr_group *g, const dtr__call *c, int rank) {
    return takes_part(g, c, rank, true);
}

bool dtr__shm_reads(const dtr_group *g, const dtr__call *c, int rank) {
    return takes_part(g, c, rank, false);
}

size_t dtr__shm_piece(const dtr_group *g, const dtr__call *c, size_t block, size_t *offset) {
    size_t size = dtr_dtype_size(c->dtype);
    if (!dtr__shm_scatters(c->kind)) {
        *offset = 0;
        return c->in_count * size;
    }
    dtr__blocks b = dtr__blocks_in(c, g->size);
    *offset = dtr__block_offset(&b, (int)block) * size;
    return dtr__block_count(&b, (int)block) * size;
}

size_t dtr__shm_wanted(const dtr_group *g, const dtr__call *c, int source) {
    size_t size = dtr_dtype_size(c->dtype);
    if (!dtr__shm_reads(g, c, g->rank)) {
        return 0;
    }
    switch (c->kind) {
    case DTR__K_ALLGATHER:
    case DTR__K_ALLGATHERV:
    case DTR__K_GATHER:
    case DTR__K_GATHERV:
    case DTR__K_ALLTOALL:
    case DTR__K_ALLTOALLV: {
        dtr__blocks b = dtr__blocks_out(c, g->size);
        return dtr__block_count(&b, source) * size;
    }
    case DTR__K_BROADCAST:
    case DTR__K_SCATTER:
    case DTR__K_SCATTERV:
        return source == c->root ? c->out_count * size : 0;
    default:
        return c->out_count * size;
    }
}

size_t dtr__shm_wanted_at(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                          int source) {
    size_t offset = 0;
    if (dtr__shm_has_table(c->kind)) {
        return dtr__shm_table_row(g, s, source)[g->rank];
    }
    if (c->kind == DTR__K_SCATTER) { /* only the root knows its input's count; blocks are equal */
        return c->out_count * dtr_dtype_size(c->dtype) * (size_t)g->rank;
    }
    if (dtr__shm_scatters(c->kind)) {
        (void)dtr__shm_piece(g, c, (size_t)g->rank, &offset);
    }
    return offset;
}

unsigned char *dtr__shm_target(const dtr_group *g, const dtr__call *c, int source) {
    unsigned char *out = c->out;
    if (c->kind == DTR__K_BROADCAST || c->kind == DTR__K_SCATTER || c->kind == DTR__K_SCATTERV) {
        return out;
    }
    dtr__blocks b = dtr__blocks_out(c, g->size);
    return out + dtr__block_offset(&b, source) * dtr_dtype_size(c->dtype);
}
