/* Small operations with a root in groups over several nodes: one message between two nodes, and
 * nobody waits for more than its own part of a tree. First comes a tree over the nodes,
 * the root's at its top, below each node's first rank one over its others. Ranks in the order of
 * the tree, its *line*, have every subtree in one piece, so that what a message holds is a range of
 * blocks. Sums are made at the root, in rank order, as they are without a tree. */
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

bool dtr__mpi_tree_fits(const dtr__call *c, int size) {
    switch (c->kind) {
    case DTR__K_BROADCAST:
        return c->in_count <= BROADCAST_MOST / dtr_dtype_size(c->dtype);
    case DTR__K_REDUCE:
        return c->in_count <= fitting(REDUCE_MOST, size, c->dtype);
    case DTR__K_GATHER:
        return c->in_count <= fitting(GATHER_MOST, size, c->dtype);
    case DTR__K_SCATTER:
        return c->out_count <= fitting(SCATTER_MOST, size, c->dtype);
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
    const dtr__nodes *nodes;
    int home;             /* the root's node */
    int parent;           /* -1: this is the root */
    size_t n;             /* ranks of the own subtree, this one included */
    edge child[CHILDREN]; /* nodes first */
    int n_children;
    size_t block; /* bytes of a rank's data */
} tree;

/* The node that is v-th in the line, how many ranks it has, and its j-th. */
static int node_at(const tree *t, int v) {
    return (v + t->home) % t->nodes->n;
}

static int ranks_at(const tree *t, int v) {
    return dtr__nodes_count(t->nodes, node_at(t, v));
}

static int rank_at(const tree *t, int v, int j) {
    int d = node_at(t, v), turn = v == 0 ? dtr__nodes_place(t->nodes, t->b->call->root) : 0;
    return dtr__nodes_member(t->nodes, d, (j + turn) % dtr__nodes_count(t->nodes, d));
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
        .b = b, .nodes = nodes, .home = dtr__nodes_of(nodes, b->call->root), .block = block
    };
    int v = (dtr__nodes_of(nodes, b->rank) - t.home + nodes->n) % nodes->n, n = ranks_at(&t, v);
    int turn = v == 0 ? dtr__nodes_place(nodes, b->call->root) : 0;
    int j = (dtr__nodes_place(nodes, b->rank) - turn + n) % n;
    const dtr__mpi_tree_place among = dtr__mpi_tree_place_of(v, nodes->n);
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

static void scatter(const tree *t) {
    const dtr__mpi_build *b = t->b;
    const char *in = b->call->in;
    char *stage = t->n_children > 0 ? dtr__mpi_stage(b->s, t->n * t->block) : b->call->out;
    if (b->s->no_memory) { /* not when stage is NULL: nothing is a message too */
        return;
    }
    if (t->parent >= 0) {
        dtr__mpi_recv(b->s, stage, t->n * t->block, t->parent);
        dtr__mpi_wait_all(b->s);
    }
    for (int v = 0, i = 0; t->parent < 0 && v < t->nodes->n; v++) {
        for (int j = 0; j < ranks_at(t, v); j++, i++) {
            dtr__mpi_copy(b->s, stage + (size_t)i * t->block,
                          in + (size_t)rank_at(t, v, j) * t->block, t->block);
        }
    }
    for (int i = 0; i < t->n_children; i++) {
        const edge *e = &t->child[i];
        dtr__mpi_send(b->s, stage + e->at * t->block, e->n * t->block, e->peer);
    }
    dtr__mpi_copy(b->s, b->call->out, stage, t->block);
    dtr__mpi_wait_all(b->s);
}

/* The blocks of the own subtree, in the order of the line. */
static const char *collect(const tree *t) {
    const dtr__mpi_build *b = t->b;
    const bool scaled = b->call->kind == DTR__K_REDUCE && dtr__mpi_prepares(b->call);
    if (t->n_children == 0 && t->parent >= 0 && !scaled) {
        return b->call->in;
    }
    char *stage = dtr__mpi_stage(b->s, t->n * t->block);
    if (stage == NULL) {
        return NULL;
    }
    for (int i = 0; i < t->n_children; i++) {
        const edge *e = &t->child[i];
        dtr__mpi_recv(b->s, stage + e->at * t->block, e->n * t->block, e->peer);
    }
    if (scaled) {
        dtr__mpi_premul(b->s, stage, b->call->in, b->call->in_count);
    } else {
        dtr__mpi_copy(b->s, stage, b->call->in, t->block);
    }
    dtr__mpi_wait_all(b->s);
    return stage;
}

static void put_blocks(const tree *t, const char *stage) {
    char *out = t->b->call->out;
    for (int v = 0, i = 0; v < t->nodes->n; v++) {
        for (int j = 0; j < ranks_at(t, v); j++, i++) {
            dtr__mpi_copy(t->b->s, out + (size_t)rank_at(t, v, j) * t->block,
                          stage + (size_t)i * t->block, t->block);
        }
    }
}

static void sum_blocks(const tree *t, const char *stage) {
    const dtr__mpi_build *b = t->b;
    size_t *position = dtr__mpi_slices(b->s, b->size);
    if (position == NULL || t->block == 0) {
        return;
    }
    for (int v = 0, i = 0; v < t->nodes->n; v++) {
        for (int j = 0; j < ranks_at(t, v); j++, i++) {
            position[rank_at(t, v, j)] = (size_t)i;
        }
    }
    dtr__mpi_reduce(b->s, b->call->out, b->call->in_count, b->size, b->s->divisor);
    for (int r = 0; r < b->size; r++) {
        dtr__mpi_source(b->s, stage + position[r] * t->block);
    }
}

static void gather(const tree *t) {
    const char *stage = collect(t);
    if (t->b->s->no_memory) {
        return;
    }
    if (t->parent >= 0) {
        dtr__mpi_send(t->b->s, stage, t->n * t->block, t->parent);
        dtr__mpi_wait_all(t->b->s);
    } else if (t->b->call->kind == DTR__K_GATHER) {
        put_blocks(t, stage);
    } else {
        sum_blocks(t, stage);
    }
}

bool dtr__mpi_build_tree(const dtr__mpi_build *b) {
    const dtr__call *c = b->call;
    if (b->state->nodes == NULL || !dtr__mpi_tree_fits(c, b->size)) {
        return false;
    }
    tree t = plant(b, (c->kind == DTR__K_SCATTER ? c->out_count : c->in_count) * b->esize);
    if (c->kind == DTR__K_BROADCAST) {
        broadcast(&t);
    } else if (c->kind == DTR__K_SCATTER) {
        scatter(&t);
    } else {
        gather(&t);
    }
    return true;
}
