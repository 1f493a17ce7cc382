/* What a rank works out about all ranks, for worlds that nobody can start here: the result is
 * right, and the steps grow as the ranks do. The files under test are compiled to count their basic
 * blocks (tests.cmake), so no clock is asked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../runtime/control/control_internal.h"
#include "core/nodes.h"
#include "directory.h"
#include "group/gpu_choice.h"
#include "steps.h"
#include "unit.h"
#include "world/nodes.h"

enum { LOCAL = 8 };

/* ---- nodes ---- */

/* Node of a rank, where the ranks of a node follow each other, and where they go round the nodes.
 */
static int in_blocks(int r, int n) {
    (void)n;
    return r / LOCAL;
}

static int in_turn(int r, int n) {
    return r % (n / LOCAL);
}

static dtr_world numbered(int n, int (*node_at)(int r, int n)) {
    dtr_world w = { .size = n, .rank = n - 1 };
    dtr__rank_facts *facts = calloc((size_t)n, sizeof *facts);
    w.node_of = malloc((size_t)n * sizeof(int));
    w.local_rank_of = malloc((size_t)n * sizeof(int));
    w.local_world = malloc((size_t)n * sizeof(int));
    ck_assert(facts != NULL && w.node_of && w.local_rank_of && w.local_world);
    for (int r = 0; r < n; r++) {
        facts[r].leader = node_at == in_blocks ? r / LOCAL * LOCAL : r % (n / LOCAL);
    }
    dtr__number_nodes(&w, facts);
    free(facts);
    return w;
}

static void forget(dtr_world *w) {
    free(w->node_of);
    free(w->local_rank_of);
    free(w->local_world);
}

static void number(int n, int (*node_at)(int r, int n)) {
    dtr_world w = numbered(n, node_at);
    ck_assert_int_eq(w.node_count, n / LOCAL);
    ck_assert_int_eq(w.node, n / LOCAL - 1);
    for (int r = 0; r < n; r++) {
        ck_assert_int_eq(w.node_of[r], node_at(r, n));
        ck_assert_int_eq(w.local_rank_of[r], node_at == in_blocks ? r % LOCAL : r / (n / LOCAL));
    }
    for (int i = 0; i < LOCAL; i++) {
        ck_assert_int_eq(w.local_world[i],
                         node_at == in_blocks ? n - LOCAL + i : (i + 1) * (n / LOCAL) - 1);
    }
    forget(&w);
}

static void number_blocks(int n) {
    number(n, in_blocks);
}

static void number_in_turn(int n) {
    number(n, in_turn);
}

START_TEST(nodes_are_numbered) {
    grows_like_ranks(number_blocks);
    grows_like_ranks(number_in_turn);
}
END_TEST

/* A group of every second rank, so that each node has half of its ranks in it, without the last. */
static void find_nodes(int n, int (*node_at)(int r, int n)) {
    dtr_world w = numbered(2 * n, node_at);
    dtr_group *g = calloc(1, sizeof *g);
    dtr__nodes *nodes = NULL;
    ck_assert_ptr_nonnull(g);
    int *ranks = calloc((size_t)n, sizeof *ranks);
    ck_assert_ptr_nonnull(ranks);
    for (int i = 0; i < n; i++) {
        ranks[i] = 2 * i + 1;
    }
    g->world = &w;
    g->size = n - 1;
    g->world_ranks = ranks;
    ck_assert(dtr__nodes_new(g, &nodes));
    ck_assert_ptr_nonnull(nodes);
    const bool blocks = node_at == in_blocks;
    const int here = blocks ? LOCAL / 2 : LOCAL;
    ck_assert_int_eq(nodes->n, n / here);
    ck_assert_int_eq(nodes->least, here - 1);
    ck_assert_int_eq(nodes->contiguous, blocks);
    for (int d = 0; d < nodes->n; d++) {
        ck_assert_int_eq(dtr__nodes_count(nodes, d), here - (d == nodes->n - 1));
    }
    for (int i = 0; i < g->size; i++) {
        const int of = blocks ? i / here : i % nodes->n, place = blocks ? i % here : i / nodes->n;
        ck_assert_int_eq(dtr__nodes_of(nodes, i), of);
        ck_assert_int_eq(dtr__nodes_place(nodes, i), place);
        ck_assert_int_eq(dtr__nodes_member(nodes, of, place), i);
    }
    free(nodes);
    free(ranks);
    free(g);
    forget(&w);
}

static void find_blocks(int n) {
    find_nodes(n, in_blocks);
}

static void find_in_turn(int n) {
    find_nodes(n, in_turn);
}

START_TEST(nodes_of_a_group_are_found) {
    grows_like_ranks(find_blocks);
    grows_like_ranks(find_in_turn);
}
END_TEST

/* ---- GPUs ---- */

static dtr__gpu_rank *hosts_with_gpus(int n) {
    dtr__gpu_rank *rank = calloc((size_t)n, sizeof *rank);
    ck_assert_ptr_nonnull(rank);
    for (int r = 0; r < n; r++) {
        rank[r].host = (uint64_t)(r / LOCAL) * 7919;
        rank[r].devices = LOCAL;
        rank[r].named = DTR__ANY_DEVICE;
        for (int d = 0; d < LOCAL; d++) {
            const int32_t id[2] = { r / LOCAL, d };
            memcpy(rank[r].uuid[d], id, sizeof id);
        }
    }
    return rank;
}

static void choose(int n) {
    dtr__gpu_rank *rank = hosts_with_gpus(n);
    rank[n - 2].named = 6; /* by its options, as rank n - 1 would have had 7 */
    rank[n - 3].named = 7;
    ck_assert_int_eq(dtr__gpu_choose(rank, n, n - 1), LOCAL - 3);
    ck_assert_int_eq(dtr__gpu_choose(rank, n, n - LOCAL - 1), LOCAL - 1);
    ck_assert_int_eq(dtr__gpu_choose(rank, n, LOCAL), 0);
    free(rank);
}

START_TEST(every_rank_takes_its_gpu) {
    grows_like_ranks(choose);
}
END_TEST

/* Every rank has a GPU of its own but two of one host, and two ranks of a host before them that the
 * user lets share one. */
static void share(int n) {
    dtr__gpu_rank *rank = hosts_with_gpus(n);
    dtr__gpu_seat *seat = calloc((size_t)n, sizeof *seat);
    ck_assert_ptr_nonnull(seat);
    for (int pass = 0; pass < 3; pass++) { /* nobody shares; those two do; and two more */
        for (int r = 0; r < n; r++) {
            const int d = (pass > 0 && r == 1) || (pass > 1 && r == n - 1) ? 0 : r % LOCAL;
            dtr__gpu_seat *s = &seat[n - 1 - r];
            *s = (dtr__gpu_seat){ .host = rank[r].host, .several = r < 2, .rank = r };
            memcpy(s->uuid, rank[r].uuid[d], sizeof s->uuid);
        }
        dtr__gpu_seats_sort(seat, n);
        const int any = dtr__gpu_first_shared(seat, n, false);
        const int unwanted = dtr__gpu_first_shared(seat, n, true);
        ck_assert_int_eq(any < 0 ? -1 : seat[any].rank, pass > 0 ? 0 : -1);
        ck_assert_int_eq(unwanted < 0 ? -1 : seat[unwanted].rank, pass > 1 ? n - LOCAL : -1);
    }
    free(seat);
    free(rank);
}

START_TEST(ranks_that_share_a_gpu_are_found) {
    grows_like_ranks(share);
}
END_TEST

/* ---- where ranks are ---- */

/* Where ranks are, kept by the eight ranks of a node: one rank of each node listens elsewhere. */
static void keep_places(int n, int (*node_at)(int r, int n)) {
    dtr_world w = numbered(n, node_at);
    introduction *said = calloc((size_t)n, sizeof *said);
    node_ranks *nodes = calloc((size_t)w.node_count, sizeof *nodes);
    char *part[LOCAL];
    dtr__directory d = { .part = part };
    ck_assert(said != NULL && nodes != NULL);
    for (int r = 0; r < n; r++) {
        const int at = w.node_of[r];
        said[r].offer = (offer){ .pid = (uint32_t)r + 1, .port = { (uint16_t)r } };
        said[r].place.machine = (uint64_t)at;
        said[r].place.n_addresses = w.local_rank_of[r] == 3;
        snprintf(said[r].place.host, sizeof said[r].place.host, "host%d", at);
    }
    const size_t nbytes = dtr__directory_plan(&d, &w, said, nodes, LOCAL);
    ck_assert_uint_le(nbytes, sizeof(offer) * (size_t)n / LOCAL +
                                  2 * sizeof(location) * (size_t)n / LOCAL / LOCAL +
                                  sizeof(node_ranks) * (size_t)n / LOCAL / LOCAL + 192);
    for (int i = 0; i < LOCAL; i++) {
        part[i] = calloc(1, nbytes);
        ck_assert_ptr_nonnull(part[i]);
        dtr__directory_write(&d, &w, said, nodes, i);
    }
    for (int r = 0; r < n; r++) {
        const location *place = dtr__directory_place(&d, r);
        const node_ranks *at = dtr__directory_node(&d, w.node_of[r]);
        ck_assert_uint_eq(dtr__directory_offer(&d, r)->pid, (uint32_t)r + 1);
        ck_assert_uint_eq(dtr__directory_offer(&d, r)->port[0], (uint16_t)r);
        ck_assert_str_eq(place->host, said[r].place.host);
        ck_assert_uint_eq(place->n_addresses, w.local_rank_of[r] == 3);
        ck_assert_int_eq(at->n, LOCAL);
        ck_assert_int_eq(at->lowest, node_at == in_blocks ? r / LOCAL * LOCAL : r % (n / LOCAL));
    }
    for (int i = 0; i < LOCAL; i++) {
        free(part[i]);
    }
    free(said);
    free(nodes);
    forget(&w);
}

static void keep_blocks(int n) {
    keep_places(n, in_blocks);
}

static void keep_in_turn(int n) {
    keep_places(n, in_turn);
}

START_TEST(places_are_kept) {
    grows_like_ranks(keep_blocks);
    grows_like_ranks(keep_in_turn);
}
END_TEST

/* ---- suspects ---- */

/* A round of the watchdog of the last node, which has connections to all nodes and dials none,
 * while rank 0 is suspect and refuses. */
static void suspect(int n) {
    dtr_world w = numbered(n, in_blocks);
    dtr__control *c = calloc(1, sizeof *c);
    dtr__link *link = calloc(1, sizeof *link);
    ck_assert(c != NULL && link != NULL);
    w.control.plane = c;
    c->alone = true;
    c->node = calloc((size_t)w.node_count, sizeof *c->node);
    c->notes = calloc((size_t)n, sizeof *c->notes);
    ck_assert(c->node != NULL && c->notes != NULL);
    for (int at = 0; at < w.node_count; at++) {
        c->node[at].link = link;
    }
    c->directory = directory_new(&w, NULL);
    c->notes[0].suspect_ns = 1;
    c->notes[0].refused = true;
    c->n_suspects = c->node[0].n_suspects = 1;
    dtr__control_dial_nodes(&w, c, 0);
    ck_assert_ptr_null(c->node[0].call);
    directory_free(&c->directory);
    free(c->notes);
    free(c->node);
    free(link);
    free(c);
    forget(&w);
}

START_TEST(a_suspect_is_looked_for_on_its_node) {
    grows_like_ranks(suspect);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("steps");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, nodes_are_numbered);
    tcase_add_test(tc, nodes_of_a_group_are_found);
    tcase_add_test(tc, every_rank_takes_its_gpu);
    tcase_add_test(tc, ranks_that_share_a_gpu_are_found);
    tcase_add_test(tc, places_are_kept);
    tcase_add_test(tc, a_suspect_is_looked_for_on_its_node);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("many ranks", make);
}
