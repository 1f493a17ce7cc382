/* Which bytes of whose input a rank wants, for every collective, and where they go. */
#include "core/check.h"
#include "shm_internal.h"

/* What gives and takes, and in which blocks, follows from the rule of a kind: one that is added has
 * its way here without a line. */
bool dtr__shm_scatters(dtr__kind k) {
    return dtr__has_blocks(k, IN_BLOCKS);
}

/* Only who gives knows where the pieces of its input begin. */
bool dtr__shm_has_table(dtr__kind k) {
    return dtr__shm_scatters(k) && dtr__rules[k].arrays && dtr__rules[k].agreed != AGREE_ARRAY;
}

/* `root`: what holds for the root where data comes from it alone; the opposite where it goes there.
 */
static bool takes_part(const dtr_group *g, const dtr__call *c, int rank, bool root) {
    if (dtr__rules[c->kind].rooted) {
        return (rank == c->root) == (dtr__root_gives(c->kind) ? root : !root);
    }
    return dtr__rules[c->kind].in != NOWHERE && g->size > 1;
}

bool dtr__shm_gives(const dtr_group *g, const dtr__call *c, int rank) {
    const bool below_nobody = dtr__rules[c->kind].prefix != NO_PREFIX && rank == g->size - 1;
    return takes_part(g, c, rank, true) && !below_nobody;
}

bool dtr__shm_reads(const dtr_group *g, const dtr__call *c, int rank) {
    return takes_part(g, c, rank, false);
}

bool dtr__shm_one_way(dtr__kind k) {
    return dtr__rules[k].rooted || dtr__rules[k].prefix != NO_PREFIX;
}

size_t dtr__shm_inline_most(const dtr_group *g, dtr__kind k) {
    return dtr__shm_one_way(k) && g->world->cpus.oversubscribed ? DTR__SHM_INLINE_OVERSUBSCRIBED
                                                                : DTR__SHM_INLINE;
}

bool dtr__shm_reads_from(const dtr_group *g, const dtr__call *c, int reader, int source) {
    const bool below = dtr__rules[c->kind].prefix == NO_PREFIX || source < reader;
    return source != reader && below && dtr__shm_reads(g, c, reader) &&
           (!dtr__root_gives(c->kind) || source == c->root);
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
    if (dtr__root_gives(c->kind)) {
        return source == c->root ? c->out_count * size : 0;
    }
    if (dtr__has_blocks(c->kind, OUT_BLOCKS)) {
        dtr__blocks b = dtr__blocks_out(c, g->size);
        return dtr__block_count(&b, source) * size;
    }
    return c->out_count * size;
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
    if (dtr__root_gives(c->kind)) {
        return out;
    }
    dtr__blocks b = dtr__blocks_out(c, g->size);
    return out + dtr__block_offset(&b, source) * dtr_dtype_size(c->dtype);
}
