/* Movement over nodes: barrier, broadcast and allgather(v). */
#include "hier_internal.h"

void dtr__hier_build_barrier(const dtr__hier_build *b) {
    dtr__hier_step all = { .kind = DTR__K_BARRIER, .root = -1 };
    dtr__hier_add(b->s, DTR__HIER_INTRA, all);
    if (b->s->local == 0) {
        all.after = 1;
        dtr__hier_add(b->s, DTR__HIER_INTER, all);
    }
    dtr__hier_add(b->s, DTR__HIER_INTRA, all);
}

/* ---- broadcast ----
 * On the root's node everybody gets a chunk from the root; then each sends its slice to the other
 * nodes, where the ranks collect the slices. Nothing is copied besides. */

static void broadcast_chunk(const dtr__hier_build *b, size_t at, size_t n) {
    dtr__hier_state *s = b->s;
    int root_node = dtr__nodes_of(s->nodes, b->call->root);
    char *data = (char *)b->call->out + at * b->esize;
    dtr__hier_range mine = dtr__hier_slice(s, n, b->esize, s->local);
    bool sends = dtr__hier_has_inter(s) && mine.n != 0;
    dtr__hier_step inter = { .kind = DTR__K_BROADCAST,
                             .dtype = b->call->dtype,
                             .root = root_node,
                             .in = data + mine.at * b->esize,
                             .out = data + mine.at * b->esize,
                             .in_count = mine.n,
                             .out_count = mine.n };
    dtr__hier_step intra = inter;
    if (s->home == root_node) {
        intra.root = dtr__nodes_place(s->nodes, b->call->root);
        intra.in = intra.out = data;
        intra.in_count = intra.out_count = n;
        dtr__hier_add(s, DTR__HIER_INTRA, intra);
        inter.after = dtr__hier_mark(s, DTR__HIER_INTRA);
    }
    if (sends) {
        dtr__hier_add(s, DTR__HIER_INTER, inter);
    }
    if (s->home != root_node) {
        intra.kind = DTR__K_ALLGATHERV;
        intra.root = -1;
        intra.out = data;
        intra.out_count = n;
        intra.out_counts = dtr__hier_slices(b, n, b->esize);
        intra.after = dtr__hier_mark(s, DTR__HIER_INTER);
        dtr__hier_add(s, DTR__HIER_INTRA, intra);
    }
}

void dtr__hier_build_broadcast(const dtr__hier_build *b) {
    size_t n = b->call->in_count, chunk = dtr__hier_chunk(b->esize), at = 0;
    do {
        broadcast_chunk(b, at, n - at < chunk ? n - at : chunk);
        at += chunk;
    } while (at < n);
}

/* ---- allgather ----
 * Chunk k is elements [k * chunk, (k + 1) * chunk) of every node's region of the result. The ranks
 * of a node bring their region together; each sends its slice of it to its peers on the other
 * nodes; then the neighbours exchange the slices that came. */

typedef struct gathering {
    const dtr__hier_build *b;
    dtr__blocks blocks;
    size_t chunk, n_chunks;
    char *stage[2]; /* what came over the inter, node after node */
    size_t came[2]; /* steps of the inter until it was there */
} gathering;

/* Chunk k of node d's region. */
static dtr__hier_range part_of(const gathering *g, int d, size_t k) {
    dtr__hier_range region = dtr__hier_region(g->b, &g->blocks, d);
    dtr__hier_range chunk = { region.at + k * g->chunk, g->chunk };
    return dtr__hier_common(region, chunk);
}

static char *out_at(const gathering *g, size_t at) {
    return (char *)g->b->call->out + at * g->b->esize;
}

static void bring_together(const gathering *g, size_t k) {
    const dtr__hier_build *b = g->b;
    dtr__hier_range part = part_of(g, b->s->home, k), mine = { 0, 0 };
    size_t index = 0, *counts = dtr__hier_numbers(b->s, (size_t)b->intra, &index);
    size_t at = dtr__block_offset(&g->blocks, dtr__nodes_member(b->s->nodes, b->s->home, 0)),
           own_at = 0;
    for (int i = 0; counts != NULL && i < b->intra; i++) {
        size_t n = dtr__block_count(&g->blocks, dtr__nodes_member(b->s->nodes, b->s->home, 0) + i);
        dtr__hier_range common = dtr__hier_common((dtr__hier_range){ at, n }, part);
        counts[i] = common.n;
        if (i == b->s->local) {
            mine = common;
            own_at = common.n != 0 ? common.at - at : 0;
        }
        at += n;
    }
    dtr__hier_add(b->s, DTR__HIER_INTRA,
                  (dtr__hier_step){ .kind = DTR__K_ALLGATHERV,
                                    .dtype = b->call->dtype,
                                    .root = -1,
                                    .in = (const char *)b->call->in + own_at * b->esize,
                                    .out = out_at(g, part.at),
                                    .in_count = mine.n,
                                    .out_count = part.n,
                                    .out_counts = index });
}

static void send_slices(gathering *g, size_t k) {
    const dtr__hier_build *b = g->b;
    dtr__hier_state *s = b->s;
    dtr__hier_range part = part_of(g, s->home, k), mine;
    size_t index = 0, *counts = dtr__hier_numbers(s, (size_t)s->nodes->n, &index), sum = 0;
    for (int d = 0; counts != NULL && d < s->nodes->n; d++) {
        counts[d] = dtr__hier_slice(s, part_of(g, d, k).n, b->esize, s->local).n;
        sum += counts[d];
    }
    mine = dtr__hier_slice(s, part.n, b->esize, s->local);
    if (dtr__hier_has_inter(s) && sum != 0) {
        dtr__hier_add(s, DTR__HIER_INTER,
                      (dtr__hier_step){ .kind = DTR__K_ALLGATHERV,
                                        .dtype = b->call->dtype,
                                        .root = -1,
                                        .in = out_at(g, part.at + mine.at),
                                        .out = g->stage[k & 1],
                                        .in_count = mine.n,
                                        .out_count = sum,
                                        .out_counts = index,
                                        .after = dtr__hier_mark(s, DTR__HIER_INTRA) });
    }
    g->came[k & 1] = dtr__hier_mark(s, DTR__HIER_INTER);
}

static void share_slices(const gathering *g, size_t k) {
    const dtr__hier_build *b = g->b;
    dtr__hier_state *s = b->s;
    char *at = g->stage[k & 1];
    for (int d = 0; d < s->nodes->n; d++) {
        dtr__hier_range part = part_of(g, d, k);
        size_t mine = dtr__hier_slice(s, part.n, b->esize, s->local).n;
        if (d != s->home && part.n != 0) {
            dtr__hier_add(s, DTR__HIER_INTRA,
                          (dtr__hier_step){ .kind = DTR__K_ALLGATHERV,
                                            .dtype = b->call->dtype,
                                            .root = -1,
                                            .in = at,
                                            .out = out_at(g, part.at),
                                            .in_count = mine,
                                            .out_count = part.n,
                                            .out_counts = dtr__hier_slices(b, part.n, b->esize),
                                            .after = g->came[k & 1] });
        }
        at += mine * b->esize;
    }
}

void dtr__hier_build_allgather(const dtr__hier_build *b) {
    gathering g = { .b = b, .blocks = dtr__blocks_out(b->call, b->size) };
    g.chunk = dtr__hier_chunk_of_region(b->s, b->esize, false);
    g.n_chunks = dtr__hier_n_chunks(b, &g.blocks, g.chunk);
    size_t stage =
        dtr__hier_slice(b->s, g.chunk, b->esize, 0).n * (size_t)b->s->nodes->n * b->esize;
    g.stage[0] = dtr__hier_scratch(b, 2 * stage);
    if (g.stage[0] == NULL) {
        return;
    }
    g.stage[1] = g.stage[0] + stage;
    bring_together(&g, 0);
    send_slices(&g, 0);
    for (size_t k = 0; k < g.n_chunks; k++) {
        if (k + 1 < g.n_chunks) {
            bring_together(&g, k + 1);
            send_slices(&g, k + 1);
        }
        share_slices(&g, k);
    }
}
