/* Reductions over nodes: allreduce, reduce, reduce_scatter(v), scan and exscan.
 *
 * The ranks of a node reduce a chunk together, each its slice; the slices are reduced between nodes
 * among the ranks of equal place; then neighbours bring the slices together. Sums of 16-bit and
 * 8-bit floats are made in float32 from the first addition to the last and rounded once. The order
 * of additions (inside the nodes first) is the same in every run and the result the same on all
 * ranks.
 *
 * Where sums are to be made in rank order, the ranks of a node do not add: each gets its slice of
 * all their inputs, as rows, and the ranks of equal place add theirs one node after the other. The
 * last node has the result and passes it on. */
#include "hier_internal.h"

typedef struct plan {
    const dtr__hier_build *b;
    bool wide;      /* sums in float32, of a smaller type */
    dtr_dtype type; /* that sums are made in */
    size_t size;    /* of an element of it */
    size_t chunk;   /* elements */
    dtr_op intra, inter;
    int rows;         /* 0, or in rank order: of `part` */
    char *in;         /* wide: the chunk in float32 */
    char *part[2];    /* what the own node makes of the own slices */
    char *all[2];     /* in rank order: the sums of all regions */
    char *sum[2];     /* the own slice over all nodes */
    char *rounded[2]; /* the same in the caller's type */
    size_t sent[2];   /* steps of the inter until `part` is free and `sum` is there */
} plan;

static bool is_small_float(dtr_dtype d) {
    return d == DTR_F16 || d == DTR_BF16 || d == DTR_F8E4M3 || d == DTR_F8E5M2;
}

static bool is_sum(dtr_op op) {
    return op == DTR_SUM || op == DTR_AVG || op == DTR_PROD || op == DTR_PREMUL_SUM;
}

/* `regions`: how many chunks of the input are prepared at a time. Sums are made in place where the
 * exchange allows it. */
static bool begin(plan *p, const dtr__hier_build *b, size_t regions, bool in_place) {
    const dtr__call *c = b->call;
    *p = (plan){ .b = b, .type = c->dtype, .size = b->esize };
    p->wide = is_small_float(c->dtype) && is_sum(c->op);
    if (p->wide) {
        p->type = DTR_F32;
        p->size = sizeof(float);
    }
    bool scaled = c->op == DTR_PREMUL_SUM;
    p->intra = c->op == DTR_AVG || (scaled && p->wide) ? DTR_SUM : c->op;
    p->inter = scaled ? DTR_SUM : c->op;
    p->rows = b->ordered ? b->intra : 0;
    p->chunk = regions > 1 ? dtr__hier_chunk_of_region(b->s, p->size, b->ordered)
                           : dtr__hier_chunk(p->size);
    size_t slice = dtr__hier_slice(b->s, p->chunk, p->size, 0).n;
    size_t line = DTR__HIER_LINE, one = (slice * p->size + line - 1) / line * line;
    size_t in = p->wide ? (p->chunk * p->size + line - 1) / line * line : 0;
    const size_t parts = regions * (p->rows > 0 ? (size_t)p->rows + 1 : 1) * one;
    char *at = dtr__hier_scratch(b, in + 2 * (parts + 2 * one));
    p->in = at;
    for (int i = 0; i < 2 && at != NULL; i++) {
        p->part[i] = p->in + in + (size_t)i * (parts + 2 * one);
        p->all[i] = p->part[i] + parts - regions * one;
        p->sum[i] = in_place && p->rows == 0 ? p->part[i] : p->part[i] + parts;
        p->rounded[i] = p->wide ? p->part[i] + parts + one : p->sum[i];
    }
    return at != NULL;
}

/* Elements [at, at + n) of the input, in the type sums are made in. */
static const void *input(const plan *p, size_t at, size_t n) {
    const dtr__call *c = p->b->call;
    const char *in = (const char *)c->in + at * p->b->esize;
    if (!p->wide) {
        return in;
    }
    dtr__hier_add(p->b->s, DTR__HIER_INTRA,
                  (dtr__hier_step){ .converts = true,
                                    .dtype = p->type,
                                    .from = c->dtype,
                                    .op = c->op,
                                    .premul = c->premul,
                                    .in = in,
                                    .out = p->in,
                                    .in_count = n });
    return p->in;
}

/* Every rank of the node gets its slice of elements [at, at + n) of all, or has reduced it. Returns
 * the slice's length. */
static size_t reduce_intra(const plan *p, size_t at, size_t n, char *out, size_t after) {
    const dtr__hier_build *b = p->b;
    size_t mine = dtr__hier_slice(b->s, n, p->size, b->s->local).n;
    dtr__hier_step step = { .kind = DTR__K_REDUCE_SCATTERV,
                            .dtype = p->type,
                            .op = p->intra,
                            .root = -1,
                            .premul = b->call->premul,
                            .in = input(p, at, n),
                            .out = out,
                            .in_count = n,
                            .out_count = mine,
                            .in_counts = dtr__hier_slices(b, n, p->size),
                            .after = after };
    if (p->rows > 0) {
        size_t *counts = dtr__hier_numbers(b->s, (size_t)p->rows, &step.out_counts);
        for (int i = 0; counts != NULL && i < p->rows; i++) {
            counts[i] = mine;
        }
        step.kind = DTR__K_ALLTOALLV;
        step.out_count = mine * (size_t)p->rows;
    }
    dtr__hier_add(b->s, DTR__HIER_INTRA, step);
    return mine;
}

/* The finished slice of n elements in the caller's type. */
static const void *result(const plan *p, size_t k, size_t n) {
    if (p->wide) {
        dtr__hier_add(p->b->s, DTR__HIER_INTRA,
                      (dtr__hier_step){ .converts = true,
                                        .dtype = p->b->call->dtype,
                                        .from = p->type,
                                        .in = p->sum[k & 1],
                                        .out = p->rounded[k & 1],
                                        .in_count = n,
                                        .after = p->sent[k & 1] });
    }
    return p->rounded[k & 1];
}

/* ---- allreduce, reduce ---- */

static int last_node(const plan *p) {
    return p->b->s->nodes->n - 1;
}

static dtr__hier_range chunk_of(const plan *p, size_t k) {
    dtr__hier_range all = { 0, p->b->call->in_count }, chunk = { k * p->chunk, p->chunk };
    return dtr__hier_common(all, chunk);
}

static void reduce_chunk(plan *p, size_t k) {
    const dtr__hier_build *b = p->b;
    dtr__hier_state *s = b->s;
    dtr__hier_range chunk = chunk_of(p, k);
    bool to_all = b->call->kind == DTR__K_ALLREDUCE;
    size_t mine = reduce_intra(p, chunk.at, chunk.n, p->part[k & 1], p->sent[k & 1]);
    if (mine != 0) {
        const int root = !to_all       ? dtr__nodes_of(s->nodes, b->call->root)
                         : p->rows > 0 ? last_node(p)
                                       : -1;
        dtr__hier_add(s, DTR__HIER_INTER,
                      (dtr__hier_step){ .kind = root < 0 ? DTR__K_ALLREDUCE : DTR__K_REDUCE,
                                        .dtype = p->type,
                                        .op = p->inter,
                                        .root = root,
                                        .rows = p->rows,
                                        .in = p->part[k & 1],
                                        .out = p->sum[k & 1],
                                        .in_count = mine,
                                        .out_count = mine,
                                        .after = dtr__hier_mark(s, DTR__HIER_INTRA) });
    }
    p->sent[k & 1] = dtr__hier_mark(s, DTR__HIER_INTER);
}

/* From the last node, where it has been made in rank order. */
static void spread_chunk(plan *p, size_t k) {
    dtr__hier_state *s = p->b->s;
    const size_t mine = dtr__hier_slice(s, chunk_of(p, k).n, p->size, s->local).n;
    if (mine != 0) {
        dtr__hier_add(s, DTR__HIER_INTER,
                      (dtr__hier_step){ .kind = DTR__K_BROADCAST,
                                        .dtype = p->type,
                                        .root = last_node(p),
                                        .in = p->sum[k & 1],
                                        .out = p->sum[k & 1],
                                        .in_count = mine,
                                        .out_count = mine });
    }
    p->sent[k & 1] = dtr__hier_mark(s, DTR__HIER_INTER);
}

static void collect_chunk(const plan *p, size_t k) {
    const dtr__hier_build *b = p->b;
    dtr__hier_state *s = b->s;
    dtr__hier_range chunk = chunk_of(p, k);
    size_t mine = dtr__hier_slice(s, chunk.n, p->size, s->local).n;
    bool to_all = b->call->kind == DTR__K_ALLREDUCE, takes = to_all || b->rank == b->call->root;
    const void *in = result(p, k, mine);
    dtr__hier_add(
        s, DTR__HIER_INTRA,
        (dtr__hier_step){ .kind = to_all ? DTR__K_ALLGATHERV : DTR__K_GATHERV,
                          .dtype = b->call->dtype,
                          .root = to_all ? -1 : dtr__nodes_place(s->nodes, b->call->root),
                          .in = in,
                          .out = takes ? (char *)b->call->out + chunk.at * b->esize : NULL,
                          .in_count = mine,
                          .out_count = takes ? chunk.n : 0,
                          .out_counts = dtr__hier_slices(b, chunk.n, p->size),
                          .after = p->sent[k & 1] });
}

void dtr__hier_build_allreduce(const dtr__hier_build *b) {
    plan p;
    if (!begin(&p, b, 1, true)) {
        return;
    }
    size_t n = b->call->in_count, n_chunks = n == 0 ? 1 : (n - 1) / p.chunk + 1;
    bool collects = b->call->kind == DTR__K_ALLREDUCE ||
                    dtr__nodes_of(b->s->nodes, b->call->root) == b->s->home;
    reduce_chunk(&p, 0);
    for (size_t k = 0; k < n_chunks; k++) {
        if (k + 1 < n_chunks) {
            reduce_chunk(&p, k + 1);
        }
        if (p.rows > 0 && b->call->kind == DTR__K_ALLREDUCE) {
            spread_chunk(&p, k);
        }
        if (collects) {
            collect_chunk(&p, k);
        }
    }
}

/* ---- reduce_scatter ----
 * Chunk k is elements [k * chunk, (k + 1) * chunk) of every node's region of the input. */

static dtr__hier_range part_of(const plan *p, const dtr__blocks *blocks, int d, size_t k) {
    dtr__hier_range region = dtr__hier_region(p->b, blocks, d);
    return dtr__hier_common(region, (dtr__hier_range){ region.at + k * p->chunk, p->chunk });
}

static void reduce_regions(plan *p, const dtr__blocks *blocks, size_t k) {
    const dtr__hier_build *b = p->b;
    dtr__hier_state *s = b->s;
    const size_t width = p->rows > 0 ? (size_t)p->rows * p->size : p->size;
    size_t index = 0, *counts = dtr__hier_numbers(s, (size_t)s->nodes->n, &index), sum = 0;
    if (counts == NULL) {
        return;
    }
    for (int d = 0; d < s->nodes->n; d++) {
        dtr__hier_range part = part_of(p, blocks, d, k);
        size_t mine = 0;
        if (part.n != 0 || (k == 0 && d == s->home)) {
            mine = reduce_intra(p, part.at, part.n, p->part[k & 1] + sum * width, p->sent[k & 1]);
        }
        if (s->no_memory) {
            return;
        }
        s->numbers[index - 1 + (size_t)d] = mine;
        sum += mine;
    }
    if (sum != 0) {
        const bool rows = p->rows > 0;
        dtr__hier_add(
            s, DTR__HIER_INTER,
            (dtr__hier_step){ .kind = rows ? DTR__K_REDUCE : DTR__K_REDUCE_SCATTERV,
                              .dtype = p->type,
                              .op = p->inter,
                              .root = rows ? last_node(p) : -1,
                              .rows = p->rows,
                              .in = p->part[k & 1],
                              .out = rows ? p->all[k & 1] : p->sum[k & 1],
                              .in_count = sum,
                              .out_count = rows ? sum : s->numbers[index - 1 + (size_t)s->home],
                              .in_counts = index,
                              .after = dtr__hier_mark(s, DTR__HIER_INTRA) });
    }
    p->sent[k & 1] = dtr__hier_mark(s, DTR__HIER_INTER);
}

/* From the last node, where they have been made in rank order, each region's sums go to its node.
 */
static void spread_regions(plan *p, const dtr__blocks *blocks, size_t k) {
    dtr__hier_state *s = p->b->s;
    size_t index = 0, *counts = dtr__hier_numbers(s, (size_t)s->nodes->n, &index), sum = 0;
    for (int d = 0; counts != NULL && d < s->nodes->n; d++) {
        counts[d] = dtr__hier_slice(s, part_of(p, blocks, d, k).n, p->size, s->local).n;
        sum += counts[d];
    }
    if (counts != NULL && sum != 0) {
        dtr__hier_add(s, DTR__HIER_INTER,
                      (dtr__hier_step){ .kind = DTR__K_SCATTERV,
                                        .dtype = p->type,
                                        .root = last_node(p),
                                        .in = p->all[k & 1],
                                        .out = p->sum[k & 1],
                                        .in_count = s->home == last_node(p) ? sum : 0,
                                        .out_count = counts[s->home],
                                        .in_counts = index });
    }
    p->sent[k & 1] = dtr__hier_mark(s, DTR__HIER_INTER);
}

/* The slices of the own region go to the ranks whose blocks they are. */
static void hand_out(const plan *p, const dtr__blocks *blocks, size_t k) {
    const dtr__hier_build *b = p->b;
    dtr__hier_state *s = b->s;
    dtr__hier_range part = part_of(p, blocks, s->home, k);
    size_t give = 0, take = 0, n = (size_t)b->intra;
    size_t *gives = dtr__hier_numbers(s, 2 * n, &give), *takes = gives == NULL ? NULL : gives + n;
    if (gives == NULL || part.n == 0) {
        return;
    }
    take = give + n;
    dtr__hier_range own = { dtr__block_offset(blocks, b->rank), dtr__block_count(blocks, b->rank) };
    dtr__hier_range mine = dtr__hier_slice(s, part.n, p->size, s->local);
    mine.at += part.at;
    size_t at = dtr__block_offset(blocks, dtr__nodes_member(s->nodes, s->home, 0));
    for (int i = 0; i < b->intra; i++) {
        dtr__hier_range slice = dtr__hier_slice(s, part.n, p->size, i);
        slice.at += part.at;
        dtr__hier_range block = { at, dtr__block_count(
                                          blocks, dtr__nodes_member(s->nodes, s->home, 0) + i) };
        gives[i] = dtr__hier_common(mine, block).n;
        takes[i] = dtr__hier_common(slice, own).n;
        at += block.n;
    }
    dtr__hier_range got = dtr__hier_common(own, part);
    size_t out_at = got.n != 0 ? got.at - own.at : 0;
    const void *in = result(p, k, mine.n);
    dtr__hier_add(s, DTR__HIER_INTRA,
                  (dtr__hier_step){ .kind = DTR__K_ALLTOALLV,
                                    .dtype = b->call->dtype,
                                    .root = -1,
                                    .in = in,
                                    .out = (char *)b->call->out + out_at * b->esize,
                                    .in_count = mine.n,
                                    .out_count = got.n,
                                    .in_counts = give,
                                    .out_counts = take,
                                    .after = p->sent[k & 1] });
}

void dtr__hier_build_reduce_scatter(const dtr__hier_build *b) {
    dtr__blocks blocks = dtr__blocks_in(b->call, b->size);
    plan p;
    if (!begin(&p, b, (size_t)b->s->nodes->n, false)) {
        return;
    }
    size_t n_chunks = dtr__hier_n_chunks(b, &blocks, p.chunk);
    reduce_regions(&p, &blocks, 0);
    for (size_t k = 0; k < n_chunks; k++) {
        if (k + 1 < n_chunks) {
            reduce_regions(&p, &blocks, k + 1);
        }
        if (p.rows > 0) {
            spread_regions(&p, &blocks, k);
        }
        hand_out(&p, &blocks, k);
    }
}

/* ---- scan, exscan ----
 * As in an allreduce, the ranks of a node add up their slices, of which those of equal place then
 * make what lies before each node. The node's first rank adds that to its own input, and the scan
 * of the node does the rest. */

typedef struct prefix {
    plan p;
    char *before;   /* the chunk over all nodes below, at the node's first rank */
    char *combined; /* the same with that rank's input */
    char *wide;     /* the result before it is rounded */
    bool adds;      /* this rank adds what lies before its node */
} prefix;

static bool begin_prefix(prefix *x, const dtr__hier_build *b) {
    if (!begin(&x->p, b, 1, true)) {
        return false;
    }
    const size_t line = DTR__HIER_LINE,
                 chunk_bytes = (x->p.chunk * x->p.size + line - 1) / line * line,
                 used = (size_t)(x->p.part[1] - x->p.in) + (size_t)(x->p.part[1] - x->p.part[0]);
    char *at = dtr__hier_scratch(b, used + 3 * chunk_bytes);
    if (at == NULL || !begin(&x->p, b, 1, true)) { /* the scratch may lie elsewhere now */
        return false;
    }
    x->before = x->p.in + used;
    x->combined = x->before + chunk_bytes;
    x->wide = x->combined + chunk_bytes;
    x->p.inter = x->p.inter == DTR_AVG ? DTR_SUM : x->p.inter;
    x->adds = b->s->local == 0 && b->s->home > 0;
    return true;
}

/* Slices of what lies before each node. */
static void begin_chunk(prefix *x, size_t k) {
    plan *p = &x->p;
    dtr__hier_range chunk = chunk_of(p, k);
    size_t mine = reduce_intra(p, chunk.at, chunk.n, p->part[k & 1], p->sent[k & 1]);
    if (mine != 0) {
        dtr__hier_add(p->b->s, DTR__HIER_INTER,
                      (dtr__hier_step){ .kind = DTR__K_EXSCAN,
                                        .dtype = p->type,
                                        .op = p->inter,
                                        .root = -1,
                                        .rows = p->rows,
                                        .in = p->part[k & 1],
                                        .out = p->sum[k & 1],
                                        .in_count = mine,
                                        .out_count = mine,
                                        .after = dtr__hier_mark(p->b->s, DTR__HIER_INTRA) });
    }
    p->sent[k & 1] = dtr__hier_mark(p->b->s, DTR__HIER_INTER);
}

/* All of it to the node's first rank; where it has the only slice it is there. */
static const void *collect_before(const prefix *x, size_t k, size_t n) {
    const plan *p = &x->p;
    dtr__hier_state *s = p->b->s;
    if (dtr__hier_slice(s, n, p->size, 0).n == n) {
        return p->sum[k & 1];
    }
    dtr__hier_add(s, DTR__HIER_INTRA,
                  (dtr__hier_step){ .kind = DTR__K_GATHERV,
                                    .dtype = p->type,
                                    .in = p->sum[k & 1],
                                    .out = s->local == 0 ? x->before : NULL,
                                    .in_count = dtr__hier_slice(s, n, p->size, s->local).n,
                                    .out_count = s->local == 0 ? n : 0,
                                    .out_counts = dtr__hier_slices(p->b, n, p->size),
                                    .after = p->sent[k & 1] });
    return x->before;
}

/* A step of this rank alone. */
static void add_local(const prefix *x, dtr__hier_step step, size_t k) {
    step.after = x->p.sent[k & 1];
    dtr__hier_add(x->p.b->s, DTR__HIER_INTRA, step);
}

static void end_chunk(const prefix *x, size_t k) {
    const plan *p = &x->p;
    const dtr__call *c = p->b->call;
    dtr__hier_range chunk = chunk_of(p, k);
    const bool first_of_exscan = x->adds && c->kind == DTR__K_EXSCAN;
    const void *before = collect_before(x, k, chunk.n), *in = input(p, chunk.at, chunk.n);
    char *out = (char *)c->out + chunk.at * p->b->esize, *to = p->wide ? x->wide : out;
    dtr__hier_step scan = { .kind = c->kind,
                            .dtype = p->type,
                            .op = p->intra,
                            .root = -1,
                            .premul = c->premul,
                            .in = in,
                            .out = first_of_exscan ? x->wide : to,
                            .in_count = chunk.n,
                            .out_count = chunk.n };
    if (x->adds) {
        dtr__hier_step add = scan;
        add.reduces = true;
        add.in = before;
        add.with = in;
        add.out = x->combined;
        add_local(x, add, k);
        scan.in = x->combined;
        scan.premul = 1;
    }
    dtr__hier_add(p->b->s, DTR__HIER_INTRA, scan);
    if (first_of_exscan || c->op == DTR_AVG) {
        add_local(x,
                  (dtr__hier_step){ .reduces = true,
                                    .dtype = p->type,
                                    .op = c->op == DTR_AVG ? DTR_AVG : p->inter,
                                    .in = first_of_exscan ? before : to,
                                    .out = to,
                                    .in_count = chunk.n },
                  k);
    }
    if (p->wide) {
        add_local(x,
                  (dtr__hier_step){ .converts = true,
                                    .dtype = c->dtype,
                                    .from = p->type,
                                    .in = to,
                                    .out = out,
                                    .in_count = chunk.n },
                  k);
    }
}

void dtr__hier_build_scan(const dtr__hier_build *b) {
    prefix x;
    if (!begin_prefix(&x, b)) {
        return;
    }
    size_t n = b->call->in_count, n_chunks = n == 0 ? 1 : (n - 1) / x.p.chunk + 1;
    begin_chunk(&x, 0);
    for (size_t k = 0; k < n_chunks; k++) {
        if (k + 1 < n_chunks) {
            begin_chunk(&x, k + 1);
        }
        end_chunk(&x, k);
    }
}
