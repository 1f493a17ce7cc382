/* Operations with a root in groups over several nodes, where the number of messages counts: small
 * ones, and gather and scatter of many ranks. There is one message between two nodes, and nobody
 * waits for more than its own part of a tree. First comes a tree over the nodes, the root's at its
 * top, below each node's first rank one over its others. Ranks in the order of the tree, its
 * *line*, have every subtree in one piece, so that what a message holds is a range of blocks. Of
 * large blocks the first parts of all go before the second ones, so that a part is passed on while
 * the next one comes. Sums are made at the root, in rank order, as they are without a tree. */
#include <stdlib.h>

#include "core/nodes.h"
#include "mpi_internal.h"

/* Bytes at the root, all ranks together: above, ranks that wait for each other are faster than a
 * tree that its leaves fill, unless each has so little that the number of messages is what counts.
 */
enum {
    BLOCK_LEAST = 16, /* bytes of a rank */
    BROADCAST_MOST = 256,
    REDUCE_MOST = 1 << 10,
    GATHER_MOST = 2 << 10,
    SCATTER_MOST = 64 << 10
};

/* Elements of a rank, where `most` bytes are the limit of the root. */
static size_t fitting(size_t most, int size, dtr_dtype dtype) {
    const size_t share = most / (size_t)size;
    return (share > BLOCK_LEAST ? share : BLOCK_LEAST) / dtr_dtype_size(dtype);
}

static bool has_many_ranks(const dtr__mpi_tuning *t, const dtr__call *c, int size) {
    return size > t->tree_ranks && (c->kind == DTR__K_GATHER || c->kind == DTR__K_SCATTER);
}

bool dtr__mpi_tree_fits(const dtr__mpi_tuning *t, const dtr__call *c, int size) {
    const size_t block = has_many_ranks(t, c, size) ? t->tree_block / dtr_dtype_size(c->dtype) : 0;
    switch (c->kind) {
    case DTR__K_BROADCAST:
        return c->in_count <= BROADCAST_MOST / dtr_dtype_size(c->dtype);
    case DTR__K_REDUCE:
        return c->in_count <= fitting(REDUCE_MOST, size, c->dtype);
    case DTR__K_GATHER:
        return c->in_count <= block || c->in_count <= fitting(GATHER_MOST, size, c->dtype);
    case DTR__K_SCATTER:
        return c->out_count <= block || c->out_count <= fitting(SCATTER_MOST, size, c->dtype);
    default: /* of the v-forms only the root knows all lengths */
        return false;
    }
}

/* ---- the line ---- */

/* The own part of the tree. Positions and lengths are ranks of the line, from the own one on. */
typedef struct edge {
    int peer;
    size_t at, n;
} edge;

enum { CHILDREN = 4 /* two nodes, two ranks of the own one */ };
typedef struct tree {
    const dtr__mpi_build *b;
    const dtr__nodes *nodes; /* NULL: each rank is one */
    int n_nodes;
    int home;             /* the root's node */
    int parent;           /* -1: this is the root */
    size_t n;             /* ranks of the own subtree, this one included */
    edge child[CHILDREN]; /* nodes first */
    int n_children;
    size_t block; /* bytes of a rank's data */
} tree;

/* A rank's node, and its place there. */
static int node_of(const tree *t, int rank) {
    return t->nodes != NULL ? dtr__nodes_of(t->nodes, rank) : rank;
}

static int place_of(const tree *t, int rank) {
    return t->nodes != NULL ? dtr__nodes_place(t->nodes, rank) : 0;
}

/* The node that is v-th in the line, how many ranks it has, and its j-th. */
static int node_at(const tree *t, int v) {
    return (v + t->home) % t->n_nodes;
}

static int ranks_at(const tree *t, int v) {
    return t->nodes != NULL ? dtr__nodes_count(t->nodes, node_at(t, v)) : 1;
}

static int rank_at(const tree *t, int v, int j) {
    const int d = node_at(t, v), turn = v == 0 ? place_of(t, t->b->call->root) : 0;
    return t->nodes != NULL ? dtr__nodes_member(t->nodes, d, (j + turn) % ranks_at(t, v)) : d;
}

static size_t ranks_between(const tree *t, int v, int end) {
    size_t n = 0;
    for (; v < end; v++) {
        n += (size_t)ranks_at(t, v);
    }
    return n;
}

static void add_child(tree *t, int peer, size_t at, size_t n) {
    t->child[t->n_children++] = (edge){ .peer = peer, .at = at, .n = n };
}

/* Where this rank is: nodes first, since what goes to other nodes takes longest. */
static tree plant(const dtr__mpi_build *b, size_t block) {
    const dtr__nodes *nodes = b->state->nodes;
    tree t = {
        .b = b, .nodes = nodes, .n_nodes = nodes != NULL ? nodes->n : b->size, .block = block
    };
    t.home = node_of(&t, b->call->root);
    const int v = (node_of(&t, b->rank) - t.home + t.n_nodes) % t.n_nodes, n = ranks_at(&t, v);
    const int turn = v == 0 ? place_of(&t, b->call->root) : 0;
    const int j = (place_of(&t, b->rank) - turn + n) % n;
    const dtr__mpi_tree_place among = dtr__mpi_tree_place_of(v, t.n_nodes);
    const dtr__mpi_tree_place inside = dtr__mpi_tree_place_of(j, n);
    t.parent = j > 0 ? rank_at(&t, v, inside.parent) : v > 0 ? rank_at(&t, among.parent, 0) : -1;
    t.n = (size_t)inside.n + (j == 0 ? ranks_between(&t, v + 1, v + among.n) : 0);
    for (int i = 0; i < among.n_children && j == 0; i++) {
        const int first = among.child[i];
        add_child(&t, rank_at(&t, first, 0), ranks_between(&t, v, first),
                  ranks_between(&t, first, first + among.n_below[i]));
    }
    for (int i = 0; i < inside.n_children; i++) {
        add_child(&t, rank_at(&t, v, inside.child[i]), (size_t)(inside.child[i] - j),
                  (size_t)inside.n_below[i]);
    }
    return t;
}

/* ---- what goes along it ---- */

static void broadcast(const tree *t) {
    const dtr__mpi_build *b = t->b;
    if (t->parent >= 0) {
        dtr__mpi_recv(b->s, b->call->out, t->block, t->parent);
        dtr__mpi_wait_all(b->s);
    }
    for (int i = 0; i < t->n_children; i++) { /* the root's memory is only read */
        dtr__mpi_send(b->s, b->call->out, t->block, t->child[i].peer);
    }
    dtr__mpi_wait_all(b->s);
}

static char *move_rows(const tree *t, char *stage, char *block, size_t rows, size_t n, bool packs) {
    dtr__mpi_copy_rows(t->b->s, packs ? DTR__MPI_PACK : DTR__MPI_UNPACK, packs ? stage : block,
                       packs ? block : stage, rows, n, t->block);
    return stage + rows * n;
}

/* All blocks between the root's memory and `stage`, where `n` bytes of each lie in the order of the
 * line: ranks that follow each other in both at a time. */
static void move_blocks(const tree *t, char *stage, char *blocks, size_t n, bool packs) {
    int first = 0;
    size_t rows = 0;
    for (int v = 0; v < t->n_nodes; v++) {
        for (int j = 0; j < ranks_at(t, v); j++) {
            const int rank = rank_at(t, v, j);
            if (rows > 0 && rank == first + (int)rows) {
                rows++;
                continue;
            }
            stage = move_rows(t, stage, blocks + (size_t)first * t->block, rows, n, packs);
            first = rank;
            rows = 1;
        }
    }
    (void)move_rows(t, stage, blocks + (size_t)first * t->block, rows, n, packs);
}

/* ---- scatter, gather, reduce: parts ---- */

/* A bank has a part of each rank of the own subtree. */
typedef struct parts {
    const tree *t;
    size_t most, n;                /* bytes of a part, parts */
    char *bank[2];                 /* NULL: the caller's memory serves */
    size_t came[2][2], sent[2][2]; /* transfers [first, last) */
} parts;

static size_t part_at(const parts *p, size_t k) {
    return k * p->most;
}

static size_t part_of(const parts *p, size_t k) {
    return dtr__mpi_min(p->most, p->t->block - part_at(p, k));
}

static bool sums_prepared(const dtr__call *c) {
    return c->kind == DTR__K_REDUCE && dtr__mpi_prepares(c);
}

/* False: no memory. */
static bool cut(parts *p, const tree *t) {
    const dtr__mpi_build *b = t->b;
    const size_t most = b->state->tuning.tree_parts / (size_t)b->size / BLOCK_LEAST * BLOCK_LEAST;
    *p = (parts){ .t = t, .most = most > 0 ? most : BLOCK_LEAST, .n = 1 };
    p->most = dtr__mpi_min(p->most, t->block);
    if (p->most > 0) {
        p->n = (t->block - 1) / p->most + 1;
    }
    if (t->n_children > 0 || t->parent < 0 || sums_prepared(b->call)) {
        const size_t bank = t->n * p->most;
        p->bank[0] = dtr__mpi_stage(b->s, p->n > 1 ? 2 * bank : bank);
        p->bank[1] = p->bank[0] != NULL && p->n > 1 ? p->bank[0] + bank : p->bank[0];
    }
    return !b->s->no_memory;
}

static void await(const parts *p, const size_t marks[2]) {
    dtr__mpi_wait(p->t->b->s, marks[0], marks[1]);
}

/* What has been sent from part k's bank may be written. */
static void await_sent(const parts *p, size_t k) {
    if (k >= 2) {
        await(p, p->sent[k & 1]);
    }
}

/* Part k comes from the parent. */
static void scatter_take(parts *p, size_t k) {
    const tree *t = p->t;
    const dtr__mpi_build *b = t->b;
    char *bank = p->bank[k & 1], *out = (char *)b->call->out + part_at(p, k);
    if (t->parent >= 0) {
        await_sent(p, k);
        p->came[k & 1][0] = dtr__mpi_mark(b->s);
        dtr__mpi_recv(b->s, bank != NULL ? bank : out, t->n * part_of(p, k), t->parent);
        p->came[k & 1][1] = dtr__mpi_mark(b->s);
    }
}

static void scatter_pass(parts *p, size_t k) {
    const tree *t = p->t;
    const dtr__mpi_build *b = t->b;
    const size_t n = part_of(p, k);
    char *bank = p->bank[k & 1];
    if (t->parent < 0) {
        await_sent(p, k);
        move_blocks(t, bank, (char *)(uintptr_t)b->call->in + part_at(p, k), n, true);
    } else {
        await(p, p->came[k & 1]);
    }
    p->sent[k & 1][0] = dtr__mpi_mark(b->s);
    for (int i = 0; i < t->n_children; i++) {
        const edge *e = &t->child[i];
        dtr__mpi_send(b->s, bank + e->at * n, e->n * n, e->peer);
    }
    p->sent[k & 1][1] = dtr__mpi_mark(b->s);
    if (bank != NULL) {
        dtr__mpi_copy(b->s, (char *)b->call->out + part_at(p, k), bank, n);
    }
}

/* Part k comes from the children, for a gather or the sum of a reduce. */
static void gather_take(parts *p, size_t k) {
    const tree *t = p->t;
    const dtr__mpi_build *b = t->b;
    const size_t n = part_of(p, k);
    await_sent(p, k);
    p->came[k & 1][0] = dtr__mpi_mark(b->s);
    for (int i = 0; i < t->n_children; i++) {
        const edge *e = &t->child[i];
        dtr__mpi_recv(b->s, p->bank[k & 1] + e->at * n, e->n * n, e->peer);
    }
    p->came[k & 1][1] = dtr__mpi_mark(b->s);
    const char *in = (const char *)b->call->in + part_at(p, k);
    if (sums_prepared(b->call)) {
        dtr__mpi_premul(b->s, p->bank[k & 1], in, n / b->esize);
    } else if (p->bank[0] != NULL) {
        dtr__mpi_copy(b->s, p->bank[k & 1], in, n);
    }
}

/* Of all blocks' part k in `bank`, in rank order. */
static void sum_blocks(const parts *p, size_t k, const char *bank) {
    const tree *t = p->t;
    const dtr__mpi_build *b = t->b;
    const size_t n = part_of(p, k);
    size_t *position = dtr__mpi_slices(b->s, b->size);
    if (position == NULL || n == 0) {
        return;
    }
    for (int v = 0, i = 0; v < t->n_nodes; v++) {
        for (int j = 0; j < ranks_at(t, v); j++, i++) {
            position[rank_at(t, v, j)] = (size_t)i;
        }
    }
    dtr__mpi_reduce(b->s, (char *)b->call->out + part_at(p, k), n / b->esize, b->size,
                    b->s->divisor);
    for (int r = 0; r < b->size; r++) {
        dtr__mpi_source(b->s, bank + position[r] * n);
    }
}

static void gather_pass(parts *p, size_t k) {
    const tree *t = p->t;
    const dtr__mpi_build *b = t->b;
    const size_t n = part_of(p, k);
    char *bank = p->bank[k & 1];
    await(p, p->came[k & 1]);
    p->sent[k & 1][0] = dtr__mpi_mark(b->s);
    if (t->parent < 0 && b->call->kind == DTR__K_REDUCE) {
        sum_blocks(p, k, bank);
    } else if (t->parent < 0) {
        move_blocks(t, bank, (char *)b->call->out + part_at(p, k), n, false);
    } else {
        dtr__mpi_send(b->s, bank != NULL ? bank : (const char *)b->call->in + part_at(p, k),
                      t->n * n, t->parent);
    }
    p->sent[k & 1][1] = dtr__mpi_mark(b->s);
}

static void run(const tree *t, void (*take)(parts *p, size_t k), void (*pass)(parts *p, size_t k)) {
    parts p;
    if (!cut(&p, t)) {
        return;
    }
    take(&p, 0);
    for (size_t k = 0; k < p.n; k++) {
        if (k + 1 < p.n) {
            take(&p, k + 1);
        }
        pass(&p, k);
    }
    dtr__mpi_wait_all(t->b->s);
}

bool dtr__mpi_build_tree(const dtr__mpi_build *b) {
    const dtr__call *c = b->call;
    const dtr__mpi_tuning *tuning = &b->state->tuning;
    if ((b->state->nodes == NULL && !has_many_ranks(tuning, c, b->size)) ||
        !dtr__mpi_tree_fits(tuning, c, b->size)) {
        return false;
    }
    tree t = plant(b, (c->kind == DTR__K_SCATTER ? c->out_count : c->in_count) * b->esize);
    if (c->kind == DTR__K_BROADCAST) {
        broadcast(&t);
    } else if (c->kind == DTR__K_SCATTER) {
        run(&t, scatter_take, scatter_pass);
    } else {
        run(&t, gather_take, gather_pass);
    }
    return true;
}
