/* Schedules of the mpi backend for more ranks than can be started here, all of which are built and
 * played in one process (pretended_players.h): results, messages and memory of each algorithm. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "backends/hier/hier_internal.h"
#include "harness.h"
#include "pretended_players.h"
#include "unit.h"

/* ---- calls ---- */

static dtr__mpi_state state;
static int rows; /* of a call in rank order; 0: it is none */

typedef struct variant {
    const char *name;
    size_t doubling, ring, segment, staging, message, parts; /* the last three: 0: as usual */
} variant;

static const variant variants[] = {
    { "doubling", SIZE_MAX, 1, 64 },
    { "halves", 0, SIZE_MAX, 1 << 20 },
    { "halves, segments", 0, SIZE_MAX, 64 },
    { "ring", 0, 1, 64 },
};

static size_t block_of(int rank, size_t each) { /* one is empty, one twice as long */
    return rank == 1 ? 0 : rank == 2 ? 2 * each : each + (size_t)rank % 3;
}

static double value(int rank, size_t i) {
    return (double)(rank + 1) * (double)(i % 19 + 1);
}

static void build(const dtr__mpi_build *b) {
    if (b->call->rows > 0) {
        dtr__mpi_build_ordered(b);
        return;
    }
    if (dtr__mpi_build_tree(b)) {
        return;
    }
    switch (b->call->kind) {
    case DTR__K_ALLREDUCE:
        dtr__mpi_build_allreduce(b);
        break;
    case DTR__K_ALLGATHERV:
        dtr__mpi_build_allgather(b);
        break;
    case DTR__K_REDUCE:
        dtr__mpi_build_reduce(b);
        break;
    case DTR__K_BROADCAST:
        dtr__mpi_build_broadcast(b);
        break;
    case DTR__K_GATHER:
        dtr__mpi_build_gather(b);
        break;
    case DTR__K_SCATTER:
        dtr__mpi_build_scatter(b);
        break;
    default:
        dtr__mpi_build_reduce_scatter(b);
    }
}

static void count_elements(dtr__call *c, int rank, size_t count, size_t *blocks) {
    size_t all = 0;
    for (int r = 0; r < n_players; r++) {
        all += blocks[r];
    }
    c->in_count = c->out_count = count;
    if (rows > 0 && c->kind == DTR__K_REDUCE && count % 2 == 1) {
        c->root = n_players - 1;
        c->in_count = all;
        c->out_count = rank == c->root ? all : 0;
        c->in_counts = blocks;
    } else if (c->kind == DTR__K_REDUCE_SCATTERV) {
        c->in_count = all;
        c->out_count = blocks[rank];
        c->in_counts = blocks;
    } else if (c->kind == DTR__K_ALLGATHERV) {
        c->in_count = blocks[rank];
        c->out_count = all;
        c->out_counts = blocks;
    } else if (c->kind == DTR__K_BROADCAST) {
        c->root = n_players / 2;
    } else if (c->kind == DTR__K_SCATTER) {
        c->root = n_players / 2;
        c->in_count = rank == c->root ? count * (size_t)n_players : 0;
    } else if (c->kind == DTR__K_REDUCE || c->kind == DTR__K_GATHER) {
        c->root = n_players / 2;
        c->out_count = rank != c->root            ? 0
                       : c->kind == DTR__K_REDUCE ? count
                                                  : count * (size_t)n_players;
    }
}

/* Of each block the rows of this rank, as if each were a rank's. */
static void fill_rows(player *p, int rank) {
    const dtr__call *c = &p->call;
    double *in = p->in;
    for (size_t block = 0, begin = 0; begin < c->in_count; block++) {
        const size_t n = c->in_counts != NULL ? c->in_counts[block] : c->in_count;
        for (int row = 0; row < rows; row++) {
            for (size_t i = 0; i < n; i++) {
                *in++ = value(rank * rows + row, begin + i);
            }
        }
        begin += n;
    }
}

/* The schedule of one rank, with memory of its own. */
static void prepare(int rank, dtr__kind kind, dtr_op op, size_t count, size_t *blocks,
                    bool in_place) {
    player *p = &players[rank];
    p->group.rank = rank;
    p->group.size = n_players;
    p->call = (dtr__call){ .kind = kind, .dtype = DTR_F64, .op = op, .root = -1, .premul = 0.5 };
    count_elements(&p->call, rank, count, blocks);
    p->call.rows = rows;
    p->in = malloc((p->call.in_count + 1) * (size_t)(rows > 0 ? rows : 1) * sizeof(double));
    p->out = in_place ? p->in : calloc(p->call.out_count + 1, sizeof(double));
    ck_assert(p->in != NULL && p->out != NULL);
    for (size_t i = 0; i < p->call.in_count; i++) {
        p->in[i] = value(rank, i);
    }
    if (rows > 0) {
        fill_rows(p, rank);
    }
    p->call.in = p->in;
    p->call.out = p->out;
    p->s = dtr__mpi_sched_new();
    ck_assert_ptr_nonnull(p->s);
    dtr__mpi_sched_begin(p->s, &p->group, &p->call, 7);
    const dtr__mpi_build b = { .state = &state,
                               .call = &p->call,
                               .s = p->s,
                               .rank = rank,
                               .size = n_players,
                               .esize = sizeof(double),
                               .free_order = true };
    build(&b);
    ck_assert(!p->s->no_memory);
    p->posted = calloc(p->s->n_transfers + 1, sizeof *p->posted);
    p->over = calloc(p->s->n_transfers + 1, sizeof *p->over);
    ck_assert(p->posted != NULL && p->over != NULL);
}

static double expected(dtr__kind kind, dtr_op op, int rank, size_t i, const size_t *blocks) {
    double n = n_players, sum = n * (n + 1) / 2;
    if (rows > 0) {
        const double m = (kind == DTR__K_EXSCAN ? rank : n_players) * rows;
        return value(0, i) * m * (m + 1) / 2 / (op == DTR_AVG ? n : 1);
    }
    if (kind == DTR__K_ALLGATHERV) {
        for (rank = 0; i >= blocks[rank]; rank++) {
            i -= blocks[rank];
        }
        return value(rank, i);
    }
    if (kind == DTR__K_GATHER) {
        const size_t each = players[0].call.in_count;
        return value((int)(i / each), i % each);
    }
    if (kind == DTR__K_BROADCAST) {
        return value(n_players / 2, i);
    }
    if (kind == DTR__K_SCATTER) {
        return value(n_players / 2, (size_t)rank * players[0].call.out_count + i);
    }
    for (int r = 0; r < rank && kind == DTR__K_REDUCE_SCATTERV; r++) {
        i += blocks[r];
    }
    return value(0, i) * (op == DTR_AVG ? sum / n : op == DTR_PREMUL_SUM ? sum / 2 : sum);
}

static size_t staged; /* bytes, the most of a rank in the last run */
static size_t
    unasked; /* likewise: messages in a row to one rank that are over before they are here */

static size_t in_a_row(const player *p, int peer) {
    size_t most = 0, n = 0;
    for (size_t i = 0; i < p->s->n_transfers; i++) {
        const dtr__mpi_transfer *t = &p->s->transfers[i];
        if (t->is_send && t->peer == peer) {
            n = t->accepted ? 0 : n + 1;
            most = n > most ? n : most;
        }
    }
    return most;
}

/* The most messages that a rank sends or receives. */
static size_t run(const variant *v, dtr__kind kind, dtr_op op, int n, size_t count, bool in_place) {
    staged = unasked = 0;
    size_t most = 0, *blocks = calloc((size_t)n, sizeof *blocks);
    players = calloc((size_t)n, sizeof *players);
    ck_assert(players != NULL && blocks != NULL);
    n_players = n;
    state.tuning = dtr__mpi_tuning_default;
    state.tuning.whole = state.tuning.gather_log = state.tuning.piece = 0;
    state.tuning.gather_ranks = 2;
    state.tuning.doubling = v->doubling;
    state.tuning.ring = v->ring;
    state.tuning.segment = v->segment;
    state.tuning.staging = v->staging != 0 ? v->staging : state.tuning.staging;
    if (v->parts != 0) {
        state.tuning.tree_parts = v->parts;
        state.tuning.tree_ranks = 2;
    }
    if (v->message != 0) {
        state.tuning.message = v->message;
        state.tuning.reduce_direct = 0;
    }
    for (int r = 0; r < n; r++) {
        blocks[r] = block_of(r, count);
    }
    for (int r = 0; r < n; r++) {
        prepare(r, kind, op, count, blocks, in_place);
    }
    play_all(count % 2 == 0, v->name);
    for (int r = 0; r < n; r++) {
        player *p = &players[r];
        for (size_t i = 0; i < p->call.out_count; i++) {
            const double should = expected(kind, op, r, i, blocks);
            ck_assert_msg(fabs(p->out[i] - should) <= 1e-12 * should,
                          "%s, kind %d, %zu of %d ranks: element %zu of rank %d is %g, not %g",
                          v->name, (int)kind, count, n, i, r, p->out[i], should);
        }
        staged = p->s->cap_staging > staged ? p->s->cap_staging : staged;
        for (int to = 0; to < n; to++) {
            unasked = in_a_row(p, to) > unasked ? in_a_row(p, to) : unasked;
        }
        most = p->sent > most ? p->sent : most;
        most = p->received > most ? p->received : most;
        if (p->out != p->in) {
            free(p->out);
        }
        free(p->in);
        free(p->posted);
        free(p->over);
        dtr__mpi_sched_free(p->s);
    }
    free(players);
    free(blocks);
    return most;
}

static const int sizes[] = { 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 33 };
static const size_t counts[] = { 1, 2, 17, 331, 1000 };
enum { N_SIZES = TH_SANITIZED ? 9 : 12, N_COUNTS = 5, N_VARIANTS = 4 };

/* COL3 COL10 COL24 */
START_TEST(allreduces) {
    static const dtr_op ops[] = { DTR_SUM, DTR_AVG, DTR_PREMUL_SUM };
    for (int i = 0; i < N_SIZES * N_COUNTS * 3; i++) {
        const variant *v = &variants[_i];
        const size_t count = counts[i % N_COUNTS];
        (void)run(v, DTR__K_ALLREDUCE, ops[i % 3], sizes[i / N_COUNTS / 3], count, i % 2 == 0);
    }
}
END_TEST

/* COL37 COL39 */
START_TEST(blocks) {
    for (int i = 0; i < N_SIZES * N_COUNTS; i++) {
        const variant *v = &variants[1 + _i];
        const size_t count = counts[i % N_COUNTS] / 4;
        const int n = sizes[i / N_COUNTS];
        (void)run(v, DTR__K_REDUCE_SCATTERV, DTR_AVG, n, count, false);
        (void)run(v, DTR__K_REDUCE_SCATTERV, DTR_PREMUL_SUM, n, count, false);
        (void)run(v, DTR__K_ALLGATHERV, DTR_SUM, n, count, false);
    }
}
END_TEST

static size_t lg(int n) {
    size_t rounds = 0;
    while (1 << rounds < n) {
        rounds++;
    }
    return rounds;
}

/* What docs/scaling.md says of messages: a round is one, or two where its blocks go over the end,
 * which those of pairs do not. */
START_TEST(messages) {
    for (int i = 1; i < N_SIZES; i++) {
        const int n = sizes[i];
        const size_t pairs = (n & (n - 1)) != 0; /* hand theirs to a neighbour and get the result */
        ck_assert_uint_eq(run(&variants[0], DTR__K_ALLREDUCE, DTR_SUM, n, 1000, false),
                          lg(n + 1) - (n == (1 << lg(n)) ? 1 : 0) - (pairs ? 1 : 0) + pairs);
        const size_t halves = run(&variants[1], DTR__K_ALLREDUCE, DTR_SUM, n, 1000, false);
        ck_assert_uint_ge(halves, 2 * lg(n));
        ck_assert_uint_le(halves, (n & (n - 1)) == 0 ? 2 * lg(n) : 4 * lg(n));
        ck_assert_uint_le(run(&variants[1], DTR__K_REDUCE_SCATTERV, DTR_SUM, n, 100, false),
                          2 * lg(n));
        ck_assert_uint_le(run(&variants[1], DTR__K_ALLGATHERV, DTR_SUM, n, 100, false), 2 * lg(n));
    }
}
END_TEST

/* What is staged does not grow with the data, nor beyond a line a block with the ranks. */
START_TEST(memory) {
    enum { STAGING = 8 << 10, LINES = 12 * 64, PAGE = 4 << 10 };
    const variant v = { "bounded", 0, SIZE_MAX, 1 << 19, STAGING };
    for (int n = 2; n <= 16; n *= 2) {
        const size_t lines = (size_t)(LINES * (n + 2) + PAGE);
        (void)run(&v, DTR__K_ALLREDUCE, DTR_SUM, n, 10000, false);
        ck_assert_uint_le(staged, STAGING + lines);
        (void)run(&v, DTR__K_REDUCE_SCATTERV, DTR_SUM, n, 10000 / (size_t)n, false);
        ck_assert_uint_le(staged, 3 * STAGING + lines);
    }
}
END_TEST

/* ---- hier ---- */

enum { LOCAL = 4, N = 150 * LOCAL };

/* Of so many ranks, four a node, which follow each other or go round the nodes. */
static dtr__nodes *nodes_of(int n, bool in_turn) {
    static int node_of[N], ranks[N];
    static dtr_world world = { .node_of = node_of };
    static dtr_group g = { .world = &world, .world_ranks = ranks };
    world.size = g.size = n;
    for (int r = 0; r < n; r++) {
        node_of[r] = in_turn ? r % (n / LOCAL) : r / LOCAL;
        ranks[r] = r;
    }
    dtr__nodes *nodes = NULL;
    ck_assert(dtr__nodes_new(&g, &nodes));
    return nodes;
}

/* Reduce and gather of 8 bytes go along a tree however many ranks there are, of four a node here,
 * and a reduce between nodes alone does. COL10 COL19 */
START_TEST(roots) {
    dtr__nodes *nodes = nodes_of(N, false);
    state.nodes = nodes;
    const size_t most = lg(N / LOCAL) + lg(LOCAL);
    ck_assert_uint_le(run(&variants[1], DTR__K_REDUCE, DTR_AVG, N, 1, false), most);
    ck_assert_uint_le(run(&variants[1], DTR__K_GATHER, DTR_SUM, N, 1, false), most);
    free(nodes);
    state.nodes = NULL;
    for (size_t count = 1; count < 1000; count += 150) {
        ck_assert_uint_eq(run(&variants[1], DTR__K_REDUCE, DTR_AVG, 13, count, false), 2);
        ck_assert_uint_eq(run(&variants[1], DTR__K_REDUCE, DTR_PREMUL_SUM, 16, count, true), 2);
    }
}
END_TEST

/* Gather and scatter of more than 128 ranks: up to 8 KiB of each along a tree, in parts of which
 * the memory is bounded, on nodes of four ranks, whose ranks follow each other or do not, and of
 * one. COL19 COL22 */
START_TEST(many_ranks) {
    enum { MOST_CHILDREN = 4, KIB = 1024 / sizeof(double) };
    for (int i = 0; i < 6; i++) {
        const dtr__kind kind = i % 2 == 0 ? DTR__K_GATHER : DTR__K_SCATTER;
        dtr__nodes *nodes = i < 4 ? nodes_of(N, i >= 2) : NULL;
        state.nodes = nodes;
        ck_assert_uint_le(run(&variants[1], kind, DTR_SUM, N, KIB, false), MOST_CHILDREN);
        const size_t few = run(&variants[1], kind, DTR_SUM, N, 8 * KIB, false);
        ck_assert_uint_le(few, 5 * MOST_CHILDREN);
        ck_assert_uint_le(staged, (2 << 20) + 4096);
        ck_assert_uint_ge(run(&variants[1], kind, DTR_SUM, N, 8 * KIB + 1, false), N - 1);
        free(nodes);
    }
}
END_TEST

/* The same of few ranks, in parts of all lengths. */
START_TEST(parts) {
    for (int i = 0; i < N_SIZES * N_COUNTS; i++) {
        const int n = sizes[i / N_COUNTS];
        const variant v = { "parts", 0, SIZE_MAX, 64, 0, 0, (size_t)(1 + i % 5) * 16 * (size_t)n };
        const size_t count = counts[i % N_COUNTS];
        dtr__nodes *nodes = n % LOCAL == 0 ? nodes_of(n, i % 2 == 0) : NULL;
        state.nodes = nodes;
        (void)run(&v, DTR__K_GATHER, DTR_SUM, n, count, false);
        (void)run(&v, DTR__K_SCATTER, DTR_SUM, n, count, false);
        free(nodes);
    }
    state.nodes = NULL;
}
END_TEST

/* ---- all of the data along a tree or a chain ---- */

/* Each place but the root's is below its parent, who is one hop nearer to the root. */
START_TEST(trees) {
    for (int n = 1; n < 600; n++) {
        for (int at = 0; at < n; at++) {
            const dtr__mpi_tree_place p = dtr__mpi_tree_place_of(at, n);
            size_t hops = 0;
            ck_assert(p.n == 1 + p.n_below[0] + p.n_below[1] && (p.parent < 0) == (at == 0));
            for (int i = 0; i < p.n_children; i++) {
                const dtr__mpi_tree_place child = dtr__mpi_tree_place_of(p.child[i], n);
                ck_assert(child.parent == at && child.n == p.n_below[i]);
                ck_assert(p.child[i] == (i == 0 ? at + 1 : p.child[0] + p.n_below[0]));
            }
            for (int up = p.parent; up >= 0; up = dtr__mpi_tree_place_of(up, n).parent) {
                hops++;
            }
            ck_assert_uint_le(hops, lg(n));
        }
    }
}
END_TEST

/* Segments of one, of few and of many, in memory that does not grow with the data. COL7 COL10 */
START_TEST(whole) {
    static const dtr_op ops[] = { DTR_SUM, DTR_AVG, DTR_PREMUL_SUM };
    enum { MESSAGE = 64, STAGING = 1 << 10, ELEMENTS = MESSAGE / (int)sizeof(double) };
    enum { WINDOW = 16 };
    const variant v = { "whole", 0, SIZE_MAX, 64, STAGING, MESSAGE };
    for (int i = 0; i < N_SIZES * N_COUNTS; i++) {
        const size_t count = counts[i % N_COUNTS], segments = (count - 1) / ELEMENTS + 1;
        const int n = sizes[i / N_COUNTS];
        for (int k = 0; k < 3; k++) {
            ck_assert_uint_le(run(&v, DTR__K_REDUCE, ops[k], n, count, k == 0), 2 * segments);
            ck_assert_uint_le(staged, STAGING + 4096);
            ck_assert_uint_lt(unasked, WINDOW);
        }
        const size_t most = run(&v, DTR__K_BROADCAST, DTR_SUM, n, count, true);
        const bool chain = segments > 1 && segments + 2 * lg(n) + 2 >= (size_t)n;
        ck_assert_uint_eq(most, chain || n == 2 ? segments : 2 * segments);
        ck_assert_uint_lt(unasked, WINDOW);
        ck_assert_uint_eq(run(&v, DTR__K_GATHER, DTR_SUM, n, count, false),
                          (size_t)(n - 1) * segments);
        ck_assert_uint_lt(unasked, WINDOW);
    }
    (void)run(&v, DTR__K_BROADCAST, DTR_SUM, 5, 0, true);
}
END_TEST

/* However many nodes of eight ranks there are, all ranks have slices, and what a node's keep for
 * all nodes is bounded. COL24 COL37 */
START_TEST(slices) {
    enum { EIGHT = 8 };
    for (int i = 0; i < 2 * 10000; i++) {
        const int n = 2 + i / 2;
        const bool ordered = i % 2 == 1;
        dtr__nodes nodes = { .n = n, .least = EIGHT };
        dtr__hier_state s = { .nodes = &nodes };
        const size_t chunk = dtr__hier_chunk_of_region(&s, sizeof(float), ordered);
        ck_assert_uint_gt(dtr__hier_slice(&s, chunk, sizeof(float), EIGHT - 1).n, 0);
        ck_assert_uint_le(chunk * (size_t)n * sizeof(float) * (ordered ? EIGHT : 1), 66 << 20);
    }
}
END_TEST

/* Sums in rank order: one message of each segment on each link, and one more to a root that is not
 * the last rank; blocks of any length; in memory that does not grow with the data. COL45 */
START_TEST(in_rank_order) {
    enum { MESSAGE = 64, WINDOW = 16 };
    const variant v = { "ordered", 0, SIZE_MAX, 64, 1 << 10, MESSAGE };
    for (int i = 0; i < N_SIZES * N_COUNTS; i++) {
        const size_t count = counts[i % N_COUNTS];
        const int n = sizes[i / N_COUNTS];
        rows = 1 + i % 3;
        const size_t most = run(&v, DTR__K_REDUCE, i % 2 == 0 ? DTR_SUM : DTR_AVG, n, count, false);
        ck_assert_uint_le(most, count % 2 == 0 ? 2 * (count / 8 + 1) : (size_t)n * (count / 4 + 2));
        ck_assert_uint_lt(unasked, WINDOW);
        ck_assert_uint_le(staged, WINDOW * MESSAGE + 4096);
        ck_assert_uint_le(run(&v, DTR__K_EXSCAN, DTR_SUM, n, count, false), count / 8 + 1);
        ck_assert_uint_lt(unasked, WINDOW);
        rows = 0;
    }
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = tcase_create("schedules");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, allreduces, 0, N_VARIANTS);
    tcase_add_loop_test(tc, blocks, 0, 2);
    tcase_add_test(tc, messages);
    tcase_add_test(tc, memory);
    tcase_add_test(tc, roots);
    tcase_add_test(tc, many_ranks);
    tcase_add_test(tc, parts);
    tcase_add_test(tc, in_rank_order);
    tcase_add_test(tc, trees);
    tcase_add_test(tc, whole);
    tcase_add_test(tc, slices);
    suite_add_tcase(suite, tc);
}

int main(void) {
    return th_unit_main("pretended schedules", make);
}
