/* Groups over several nodes: which backend serves them, sums rounded once, groups whose ranks lie
 * in any order on the nodes, ranks that disagree or do not come, and how much crosses the wire.
 * Runs on real hosts, or where DTR_NODE_RANKS makes several nodes of one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/tune.h"
#include "base/world.h"
#include "data.h"
#include "harness.h"
#include "settings.h"

static dtr_group_info info_of(dtr_group *g) {
    dtr_group_info info = { .struct_size = sizeof info };
    TH_IS(dtr_group_get_info(g, &info), DTR_OK);
    return info;
}

/* Node and number of ranks there, of every world rank. */
static void layout(int *node, int *ranks) {
    uint64_t all[64];
    th_gather_u64((uint64_t)dtr_world_node(th_world()), all);
    for (int r = 0; r < th_size(); r++) {
        node[r] = (int)all[r];
        ranks[r] = 0;
        for (int j = 0; j < th_size(); j++) {
            ranks[r] += all[j] == all[r];
        }
    }
}

static bool over_nodes(void) {
    int node[64], ranks[64], most = 0;
    layout(node, ranks);
    for (int r = 0; r < th_size(); r++) {
        most = ranks[r] > most ? ranks[r] : most;
    }
    return dtr_world_node_count(th_world()) > 1 && most > 1;
}

/* CFG1, CFG15: auto takes hier over nodes and shm inside one; a name given never falls back. */
START_TEST(chosen_over_nodes) {
    static const char *const names[] = { "cpu:shm", "cpu:hier" };
    dtr_group *g = NULL, *mine = NULL;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    TH_CHECK(dtr_world_node_count(th_world()) > 1, "this test needs several nodes");
    TH_CHECK(dtr_backend_available(NULL, "hier"), "hier is built in");
    TH_CHECK(strcmp(info_of(th_group()).backend, over_nodes() ? "cpu:hier" : "cpu:mpi") == 0,
             "all ranks: %s", info_of(th_group()).backend);
    for (int i = 0; i < 2; i++) {
        o.backend = names[i];
        dtr_status s = dtr_group_split(th_group(), 0, th_rank(), &o, &g);
        bool fits = i == 1 && over_nodes();
        TH_CHECK(s == (fits ? DTR_OK : DTR_ERR_UNSUPPORTED), "%s: %s: %s", names[i],
                 dtr_status_name(s), dtr_last_error_message());
        if (s != DTR_OK) {
            TH_MESSAGE(i == 0 ? "its ranks are on several nodes" : "has a node to itself");
        }
        TH_AGREE();
        if (s == DTR_OK) {
            th_good_allreduce(g);
            TH_OK(dtr_group_destroy(g));
        }
    }
    TH_OK(dtr_group_split(th_group(), dtr_world_node(th_world()), 0, NULL, &mine));
    int node[64], ranks[64];
    layout(node, ranks);
    TH_CHECK(strcmp(info_of(mine).backend, ranks[th_rank()] > 1 ? "cpu:shm" : "cpu:self") == 0,
             "one node: %s", info_of(mine).backend);
    o.backend = "hier";
    TH_STATUS(dtr_group_split(mine, 0, 0, &o, &g), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("its ranks are on one node");
    TH_AGREE();
    TH_OK(dtr_group_destroy(mine));
}
END_TEST

/* collectives:section 0: 16-bit sums are made in float32 and rounded once, also over nodes. One
 * rank has 256, the others 1/4 each: rounded on the way, bf16 would lose every quarter. */
START_TEST(small_floats_are_rounded_once) {
    enum { COUNT = 70001 };
    static const dtr_op ops[] = { DTR_SUM, DTR_AVG, DTR_PREMUL_SUM };
    uint16_t *x = malloc(2 * COUNT * sizeof *x), *y = x + COUNT, want;
    int W = th_size();
    for (int big = 0; big < W; big++) {
        for (int i = 0; i < 3; i++) {
            dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
            o.premul = ops[i] == DTR_PREMUL_SUM ? 2 : 0;
            double sum = 256 + 0.75 * (W - 1);
            th_set(&want, DTR_BF16, 0,
                   ops[i] == DTR_AVG ? (float)sum / (float)W
                   : i == 2          ? 2 * sum
                                     : sum,
                   0);
            for (size_t k = 0; k < COUNT; k++) {
                th_set(x, DTR_BF16, k, th_rank() == big ? 256 : 0.75, 0);
            }
            TH_IS(dtr_allreduce(th_group(), dtr_cpu(x, COUNT, DTR_BF16),
                                dtr_cpu(y, COUNT, DTR_BF16), ops[i], &o, NULL),
                  DTR_OK);
            for (size_t k = 0; k < COUNT; k++) {
                TH_CHECK(y[k] == want, "op %d, big %d: element %zu is %g, want %g", (int)ops[i],
                         big, k, th_get(y, DTR_BF16, k, false), th_get(&want, DTR_BF16, 0, false));
            }
        }
    }
    free(x);
    TH_AGREE();
}
END_TEST

static void check_order(dtr_group *g) {
    enum { COUNT = 5003 };
    int W = dtr_group_size(g), me = dtr_group_rank(g);
    int32_t *x = malloc(sizeof *x * COUNT * (size_t)W), *y = malloc(sizeof *y * COUNT * (size_t)W);
    for (int root = 0; root < W; root++) {
        for (int k = 0; k < COUNT * W; k++) {
            x[k] = me * 1000003 + k;
            y[k] = -1;
        }
        TH_IS(dtr_allgather(g, dtr_cpu(x, COUNT, DTR_I32), dtr_cpu(y, (size_t)(COUNT * W), DTR_I32),
                            NULL, NULL),
              DTR_OK);
        for (int k = 0; k < COUNT * W; k++) {
            TH_CHECK(y[k] == k / COUNT * 1000003 + k % COUNT, "allgather: element %d is %d", k,
                     y[k]);
        }
        TH_IS(dtr_reduce_scatter(g, dtr_cpu(x, (size_t)(COUNT * W), DTR_I32),
                                 dtr_cpu(y, COUNT, DTR_I32), DTR_SUM, NULL, NULL),
              DTR_OK);
        for (int k = 0; k < COUNT; k++) {
            int want = W * (W - 1) / 2 * 1000003 + W * (me * COUNT + k);
            TH_CHECK(y[k] == want, "reduce_scatter: element %d is %d, want %d", k, y[k], want);
        }
        TH_IS(dtr_reduce(g, dtr_cpu(x, COUNT, DTR_I32), dtr_cpu(y, COUNT, DTR_I32), DTR_MAX, root,
                         NULL, NULL),
              DTR_OK);
        for (int k = 0; k < COUNT && me == root; k++) {
            TH_CHECK(y[k] == (W - 1) * 1000003 + k, "reduce: element %d is %d", k, y[k]);
        }
        TH_IS(dtr_broadcast(g, dtr_cpu(x, COUNT, DTR_I32), root, NULL, NULL), DTR_OK);
        for (int k = 0; k < COUNT; k++) {
            TH_CHECK(x[k] == root * 1000003 + k, "broadcast: element %d is %d", k, x[k]);
        }
        TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
    }
    free(x);
    free(y);
    TH_AGREE();
}

/* NEW4: group ranks follow the caller's list, however they lie on the nodes. */
START_TEST(ranks_in_any_order) {
    for (int form = 0; form < 4; form++) { /* the last one: second of the first node behind all */
        dtr_group *g = NULL;
        int W = th_size(), r = th_rank();
        int key = form == 0   ? -r
                  : form == 1 ? r % 2 * W + r
                  : form == 2 ? r * 5 % W
                  : r == 1    ? W
                              : r;
        TH_OK(dtr_group_split(th_group(), 0, key, NULL, &g));
        check_order(g);
        TH_OK(dtr_group_destroy(g));
    }
}
END_TEST

/* Ranks of one node disagree: the error names the calls as the program made them, on every rank. */
START_TEST(disagreement_is_named) {
    dtr_group *g = NULL;
    float x[8] = { 0 }, y[8];
    TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g));
    int last = th_size() - 1, node[64], ranks[64];
    layout(node, ranks);
    while (ranks[last] == 1) {
        last--;
    }
    dtr_status s = th_rank() == last ? dtr_broadcast(g, dtr_cpu(x, 8, DTR_F32), 0, NULL, NULL)
                                     : dtr_allreduce(g, dtr_cpu(x, 8, DTR_F32),
                                                     dtr_cpu(y, 8, DTR_F32), DTR_SUM, NULL, NULL);
    TH_CHECK(s == DTR_ERR_MISMATCH, "%s: %s", dtr_status_name(s), dtr_last_error_message());
    TH_MESSAGE("allreduce");
    TH_MESSAGE("broadcast");
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
    th_good_allreduce(th_group());
}
END_TEST

/* ---- small calls with a root: one message between two nodes, and calls in rows ---- */

/* What rank r gives as element i of call number `turn`. */
static int32_t given(int r, size_t i, int turn) {
    return 1000 * r + 10 * (int32_t)i + turn;
}

/* A row of calls from one place, each with other data; counts about where trees end. */
typedef enum { BROADCAST_ROW, REDUCE_ROW, GATHER_ROW, SCATTER_ROW } rooted;

static void row_of(dtr_group *g, rooted kind, int root, size_t count) {
    enum { TURNS = 6, MOST = 600 };
    static int32_t in[MOST * 8], out[MOST * 8];
    const int me = dtr_group_rank(g), n = dtr_group_size(g);
    const bool at_root = me == root;
    for (int turn = 0; turn < TURNS; turn++) {
        const size_t all = count * (size_t)n;
        const dtr_buffer one = dtr_cpu(in, count, DTR_I32), got = dtr_cpu(out, count, DTR_I32);
        memset(out, -1, sizeof out);
        for (size_t i = 0; i < all; i++) {
            in[i] =
                kind == SCATTER_ROW ? given((int)(i / count), i % count, turn) : given(me, i, turn);
        }
        TH_IS(kind == BROADCAST_ROW ? dtr_broadcast(g, one, root, NULL, NULL)
              : kind == REDUCE_ROW  ? dtr_reduce(g, one, at_root ? got : dtr_cpu(NULL, 0, DTR_I32),
                                                 DTR_SUM, root, NULL, NULL)
              : kind == GATHER_ROW
                  ? dtr_gather(g, one, dtr_cpu(out, at_root ? all : 0, DTR_I32), root, NULL, NULL)
                  : dtr_scatter(g, dtr_cpu(in, at_root ? all : 0, DTR_I32), got, root, NULL, NULL),
              DTR_OK);
        for (size_t i = 0; i < (kind == GATHER_ROW ? all : count); i++) {
            const int32_t sum = n * (n - 1) / 2 * 1000 + n * (10 * (int32_t)i + turn);
            const int32_t want = kind == BROADCAST_ROW ? given(root, i, turn)
                                 : kind == REDUCE_ROW  ? sum
                                 : kind == GATHER_ROW  ? given((int)(i / count), i % count, turn)
                                                       : given(me, i, turn);
            const int32_t have = kind == BROADCAST_ROW ? in[i] : out[i];
            TH_CHECK((!at_root && (kind == REDUCE_ROW || kind == GATHER_ROW)) || have == want,
                     "call %d of kind %d, root %d, %zu elements: element %zu is %d, not %d", turn,
                     (int)kind, root, count, i, have, want);
        }
    }
}

/* Every root, ranks in the order of the nodes and across them, sizes on either side of the
 * limits. */
START_TEST(small_rows_with_a_root) {
    static const size_t counts[] = { 1, 13, 64, 65, 129, 600 };
    for (int crossed = 0; crossed < 2; crossed++) {
        dtr_group *g = NULL;
        int key = crossed ? th_rank() % 2 * th_size() + th_rank() : th_rank();
        TH_OK(dtr_group_split(th_group(), 0, key, NULL, &g));
        for (int root = 0; root < th_size(); root++) {
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                for (rooted kind = BROADCAST_ROW; kind <= SCATTER_ROW; kind++) {
                    row_of(g, kind, root, counts[i]);
                }
            }
        }
        TH_AGREE();
        TH_OK(dtr_group_destroy(g));
    }
}
END_TEST

/* Sums of a tree are those of rank order: factors and rounding are the same as without nodes. */
START_TEST(small_sums_are_made_in_rank_order) {
    const int n = th_size(), root = n - 1;
    double one = 1 + th_rank(), sum = 0;
    dtr_coll_options scaled = DTR_COLL_OPTIONS_INIT;
    scaled.premul = 0.5;
    TH_IS(dtr_reduce(th_group(), dtr_cpu(&one, 1, DTR_F64), dtr_cpu(&sum, 1, DTR_F64),
                     DTR_PREMUL_SUM, root, &scaled, NULL),
          DTR_OK);
    TH_CHECK(th_rank() != root || sum == 0.25 * n * (n + 1), "the scaled sum is %g", sum);
    TH_IS(dtr_reduce(th_group(), dtr_cpu(&one, 1, DTR_F64), dtr_cpu(&one, 1, DTR_F64), DTR_AVG,
                     root, NULL, NULL),
          DTR_OK);
    TH_CHECK(th_rank() != root || one == 0.5 * (n + 1), "the mean in place is %g", one);
    /* 2^24 + 1 + 1 is 2^24 + 2 in any order but this one, in which each 1 is lost. */
    float big = th_rank() == 0 ? 16777216.0F : 1, all = 0;
    TH_IS(dtr_reduce(th_group(), dtr_cpu(&big, 1, DTR_F32), dtr_cpu(&all, 1, DTR_F32), DTR_SUM, 0,
                     NULL, NULL),
          DTR_OK);
    TH_CHECK(th_rank() != 0 || all == 16777216.0F, "the sum is %.1f", (double)all);
    TH_AGREE();
}
END_TEST

/* DBG1, WRK10: the odd call in a row is an error on all ranks, at the latest at their next call
 * that needs the others. */
START_TEST(disagreement_in_a_row) {
    for (int odd = 0; odd < th_size(); odd += th_size() - 1) {
        dtr_group *g = NULL;
        int32_t x[4] = { 0 }, y[64];
        dtr_status s = DTR_OK;
        TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g));
        for (int turn = 0; turn < 12 && s == DTR_OK; turn++) {
            size_t count = turn == 9 && th_rank() == odd ? 2 : 1;
            size_t all = th_rank() == 1 ? count * (size_t)th_size() : 0;
            s = dtr_gather(g, dtr_cpu(x, count, DTR_I32), dtr_cpu(y, all, DTR_I32), 1, NULL, NULL);
        }
        s = s == DTR_OK ? dtr_barrier(g, NULL, NULL) : s;
        TH_CHECK(s == DTR_ERR_MISMATCH, "%s: %s", dtr_status_name(s), dtr_last_error_message());
        TH_AGREE();
        TH_OK(dtr_group_destroy(g));
    }
    th_good_allreduce(th_group());
}
END_TEST

/* WRK10: a rank that does not come is an agreed error in the end, whichever node it is on. */
START_TEST(missing_rank_is_an_error) {
    for (int absent = 0; absent < th_size(); absent += th_size() - 1) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        o.timeout_s = 1;
        dtr_group *g = th_hasty_group(th_world(), &o);
        float x[8] = { 0 };
        dtr_status s = th_rank() == absent
                           ? DTR_ERR_TIMEOUT
                           : dtr_allreduce(g, dtr_cpu(x, 8, DTR_F32), dtr_cpu(x, 8, DTR_F32),
                                           DTR_SUM, NULL, NULL);
        TH_CHECK(s == DTR_ERR_TIMEOUT, "%s: %s", dtr_status_name(s), dtr_last_error_message());
        TH_AGREE();
        TH_OK(dtr_group_destroy(g));
    }
    th_good_allreduce(th_group());
}
END_TEST

/* Many operations of three groups under way at once: the lanes of one do not hold up another. */
START_TEST(groups_move_side_by_side) {
    enum { GROUPS = 3, EACH = 8, COUNT = 40000 };
    dtr_group *g[GROUPS];
    dtr_work *work[GROUPS * EACH];
    int32_t *x = malloc(sizeof *x * COUNT * GROUPS * EACH);
    for (int i = 0; i < GROUPS; i++) {
        TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g[i]));
    }
    for (int k = 0; k < COUNT * GROUPS * EACH; k++) {
        x[k] = th_rank() + k;
    }
    for (int i = 0; i < GROUPS * EACH; i++) {
        dtr_buffer b = dtr_cpu(x + (size_t)i * COUNT, COUNT, DTR_I32);
        int group = th_rank() % 2 == 0 ? i % GROUPS : i / EACH;
        int op = th_rank() % 2 == 0 ? i / GROUPS : i % EACH;
        int at = group * EACH + op;
        b.data = x + (size_t)at * COUNT;
        work[at] = NULL;
        TH_IS(dtr_allreduce(g[group], b, b, DTR_SUM, NULL, &work[at]), DTR_OK);
    }
    for (int i = GROUPS * EACH - 1; i >= 0; i--) {
        TH_IS(dtr_work_wait(work[i], -1), DTR_OK);
        TH_IS(dtr_work_release(work[i]), DTR_OK);
    }
    int W = th_size();
    for (int k = 0; k < COUNT * GROUPS * EACH; k++) {
        TH_CHECK(x[k] == W * (W - 1) / 2 + W * k, "element %d is %d", k, x[k]);
    }
    free(x);
    TH_AGREE();
    for (int i = 0; i < GROUPS; i++) {
        TH_OK(dtr_group_destroy(g[i]));
    }
}
END_TEST

/* ---- what crosses the wire ---- */

/* Bytes sent by this host over eth0 so far; 0 where there is no such interface. */
static uint64_t sent_bytes(void) {
    char line[512];
    uint64_t sent = 0;
    FILE *f = fopen("/proc/self/net/dev", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *at = strstr(line, "eth0:");
        for (int field = 0; at != NULL && field < 9; field++) { /* eight of receiving come first */
            at += field == 0 ? strlen("eth0:") : 0;
            sent = strtoull(at, &at, 10);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return sent;
}

typedef enum { ALLREDUCE, ALLGATHER, BROADCAST, REDUCE_SCATTER } what;

/* Each rank's host sends this much of an operation whose result has `n` bytes, on two hosts. */
static double sent_by(what k, dtr_group *g, size_t n, char *x, char *y) {
    size_t count = n / 4, part = count / (size_t)th_size();
    th_barrier();
    uint64_t before = sent_bytes();
    th_barrier();
    for (int i = 0; i < 4; i++) {
        dtr_buffer all = dtr_cpu(x, count, DTR_F32), mine = dtr_cpu(y, part, DTR_F32);
        TH_IS(k == ALLREDUCE
                  ? dtr_allreduce(g, all, dtr_cpu(y, count, DTR_F32), DTR_SUM, NULL, NULL)
              : k == ALLGATHER ? dtr_allgather(g, mine, all, NULL, NULL)
              : k == BROADCAST ? dtr_broadcast(g, all, 0, NULL, NULL)
                               : dtr_reduce_scatter(g, all, mine, DTR_SUM, NULL, NULL),
              DTR_OK);
    }
    th_barrier();
    return (double)(sent_bytes() - before) / 4 / (double)n;
}

/* performance.md section 1: every byte crosses once for the node, not once for each of its ranks.
 * On two hosts an allreduce of n bytes sends n from each, gathering and scattering send half of it.
 */
START_TEST(bytes_cross_once) {
    enum { N = 6 << 20 };
    static const double want[] = { 1, 0.5, 1, 0.5 };
    char *x = calloc(1, N), *y = calloc(1, N);
    for (what k = ALLREDUCE; k <= REDUCE_SCATTER; k++) {
        double sent = sent_by(k, th_group(), N, x, y);
        bool root_only = k == BROADCAST && dtr_world_node(th_world()) != 0;
        /* Headers and acknowledgements add some; per rank it would be twice as much. */
        TH_CHECK(root_only ? sent < 0.1 : sent > 0.9 * want[k] && sent < 1.25 * want[k],
                 "operation %d: this host sent %.2f of the bytes, want about %.2f", (int)k, sent,
                 root_only ? 0 : want[k]);
        TH_AGREE();
    }
    free(x);
    free(y);
}
END_TEST

/* Nodes may have different thresholds of their own, but between nodes all go by those of rank
 * 0, or ranks would wait for messages of another way. */
START_TEST(thresholds_between_nodes) {
    enum { N = 50000 };
    static const char *const ways[][2] = {
        { "nodes_piece=0,nodes_doubling=0,chunk=64KiB",
          "nodes_piece=0,nodes_doubling=never,chunk=32KiB" },
        { "nodes_piece=0,nodes_doubling=0,nodes_ring=1,nodes_block=0,nodes_segment=1KiB",
          "nodes_block=0" },
        { "nodes_piece=0,nodes_doubling=never", "nodes_doubling=0" },
    };
    float *in = calloc(N, sizeof *in), *out = calloc(N, sizeof *out);
    for (int i = 0; i < 3; i++) {
        const int node = dtr_world_node(th_world()), first = node == 0;
        dtr_world *w = TH_WORLD_WITH(NULL, "DTR_TUNE", ways[i][!first]);
        TH_CHECK(w->tune.value[DTR__TUNE_NODES_DOUBLING] == (i < 2 ? 0 : UINT64_MAX),
                 "way %d: doubling up to %llu", i,
                 (unsigned long long)w->tune.value[DTR__TUNE_NODES_DOUBLING]);
        TH_CHECK(i != 0 || w->tune.value[DTR__TUNE_CHUNK] == (first ? 64 << 10 : 32 << 10),
                 "a threshold of node %d is another's", node);
        for (size_t k = 0; k < N; k++) {
            in[k] = (float)(k % 7);
        }
        TH_IS(dtr_allreduce(dtr_world_group(w), dtr_cpu(in, N, DTR_F32), dtr_cpu(out, N, DTR_F32),
                            DTR_SUM, NULL, NULL),
              DTR_OK);
        for (size_t k = 0; k < N; k++) {
            TH_CHECK(out[k] == in[k] * (float)th_size(), "way %d: element %zu is %g", i, k, out[k]);
        }
        TH_AGREE();
        dtr_world_destroy(w);
    }
    free(in);
    free(out);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "hier", 110);
    th_add(tc, thresholds_between_nodes, 2, 64);
    th_add(tc, chosen_over_nodes, 2, 64);
    th_add(tc, small_floats_are_rounded_once, 1, 64);
    th_add(tc, ranks_in_any_order, 1, 64);
    th_add(tc, disagreement_is_named, 3, 64);
    th_add(tc, small_rows_with_a_root, 1, 8);
    th_add(tc, small_sums_are_made_in_rank_order, 1, 64);
    th_add(tc, disagreement_in_a_row, 2, 8);
    th_add(tc, missing_rank_is_an_error, 2, 64);
    th_add(tc, groups_move_side_by_side, 1, 64);
    if (getenv("DTR_TEST_WIRE") != NULL) {
        th_add(tc, bytes_cross_once, 2, 64);
    }
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "hier", make);
}
