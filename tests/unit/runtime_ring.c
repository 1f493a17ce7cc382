/* The control plane between many nodes (reliability: CP2, CP3, CP5): how many connections a node
 * has, what all must know reaches all, and a question reaches the one it is for, while nodes die or
 * are cut off. */
#include <stdlib.h>
#include <string.h>

#include "nodes_unit.h"
#include "unit.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LARGE = 200 };
#else
enum { LARGE = 1000 };
#endif
enum { DEAD_MOST = 20 };

static int lg(int n) {
    int k = 0;
    while (1 << k < n) {
        k++;
    }
    return k;
}

/* Rounds until it is so. */
static int rounds_until(bool (*all)(void), int64_t ns, int most) {
    int k = 0;
    while (!all()) {
        ck_assert_msg(k < most, "%d nodes: not after %d rounds", net.n, k);
        rounds(1, ns);
        k++;
    }
    return k;
}

static unsigned seed;

static int random_node(void) {
    seed = seed * 1103515245u + 12345u;
    return (int)(seed >> 8) % net.n;
}

/* Some, never `keep`. */
static int kill_some(int keep) {
    const int want = net.n / 4 < DEAD_MOST ? net.n / 4 : DEAD_MOST;
    for (int k = 0; k < want;) {
        const int i = random_node();
        if (i != keep && !net.node[i].dead) {
            kill_node(i);
            k++;
        }
    }
    return want;
}

/* ---- tests ---- */

/* Both ends have the connection; up to five nodes each has one with each. */
START_TEST(CP2_connections) {
    static const int sizes[] = { 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, LARGE };
    begin(sizes[_i]);
    const int most = net.n <= 5 ? net.n - 1 : 2 * lg(net.n) - 1;
    for (int i = 0; i < net.n; i++) {
        const dtr__control *c = &net.node[i].plane;
        ck_assert_msg(c->n_links <= most && c->n_links == c->n_near, "%d of %d: %d connections, %d",
                      i, net.n, c->n_links, c->n_near);
        ck_assert(net.n > 5 || c->n_links == net.n - 1);
        for (const dtr__link *l = c->links; l != NULL; l = l->next) {
            ck_assert(l->greeted && dtr__ring_is_near(net.n, i, l->rank));
        }
    }
    finish();
}
END_TEST

static bool all_have_lost_the_dead(void) {
    for (int i = 0; i < net.n; i++) {
        for (int k = 0; k < net.n && !net.node[i].dead; k++) {
            if (net.node[k].dead && !net.node[i].lost[k]) {
                return false;
            }
        }
    }
    return true;
}

static const int many[] = { 6, 7, 8, 64, LARGE };

/* FI5: who dies is named to all, whether it had a connection to them or not; nobody else is. */
START_TEST(CP2_who_dies_is_named) {
    begin(many[_i]);
    kill_node(net.n / 2);
    ck_assert_int_le(rounds_until(all_have_lost_the_dead, MS, 100), lg(net.n) / 2 + 3);
    for (int i = 0; i < net.n; i++) {
        ck_assert_int_eq(net.node[i].n_lost, !net.node[i].dead);
    }
    finish();
}
END_TEST

/* Many die at once, while it is being told that one had died. Those who stand in for them as
 * neighbours are connected then. */
START_TEST(CP3_while_others_die) {
    for (seed = 1; seed <= (net.n <= 64 ? 20 : 1); seed += 7) {
        begin(many[_i]);
        kill_node(0);
        rounds(2, MS);
        const int dead = 1 + kill_some(0);
        (void)rounds_until(all_have_lost_the_dead, MS, 100);
        rounds(1000 / 50, 50 * MS);
        for (int i = 0; i < net.n; i++) {
            const pretended *p = &net.node[i];
            ck_assert_int_eq(p->n_lost, p->dead ? p->n_lost : dead);
            for (int k = 0; k < p->plane.n_near && !p->dead; k++) {
                const int at = p->plane.near[k];
                ck_assert_msg(!net.node[at].dead && p->plane.node[at].link != NULL,
                              "%d of %d has no connection to %d", i, net.n, at);
            }
        }
        finish();
    }
}
END_TEST

static void put(int i, uint64_t step, dtr_status s) {
    const uint64_t number = 1000 + (uint64_t)i;
    const dtr__vote v = { .uid = NODES_UID,
                          .step = step,
                          .low = number,
                          .high = number,
                          .bits = UINT64_C(1) << i % 64,
                          .status = s,
                          .order = dtr__vote_order(s) };
    ck_assert_int_eq(dtr__vote_put(&net.node[i].world, net.all, net.n, &v), DTR_OK);
}

static uint64_t step;

static dtr_status got(int i, dtr__vote *all) {
    return dtr__vote_get(&net.node[i].world, net.all, net.n, NODES_UID, step, 0, NULL, NULL, all);
}

static bool all_have_got(void) {
    for (int i = 0; i < net.n; i++) {
        dtr__vote all;
        if (!net.node[i].dead && got(i, &all) != DTR_OK) {
            return false;
        }
    }
    return true;
}

static void check_votes(int bad) {
    for (int i = 0; i < net.n; i++) {
        dtr__vote all;
        if (!net.node[i].dead) {
            ck_assert_int_eq(got(i, &all), DTR_OK);
            ck_assert(all.low == 1000 && all.high == 1000 + (uint64_t)net.n - 1);
            ck_assert(all.origin == bad && all.status == DTR_ERR_NAN && all.n_bad == 1);
        }
    }
}

/* CP10: all get the same vote of them all, with a few messages for each neighbour. */
START_TEST(CP10_votes_of_all) {
    begin(many[_i]);
    for (step = 1; step <= 3; step++) {
        const int bad = (int)(step * 31) % net.n;
        for (int i = 0; i < net.n; i++) {
            put(i, step, i == bad ? DTR_ERR_NAN : DTR_OK);
            net.node[i].n_votes = 0;
        }
        ck_assert_int_le(rounds_until(all_have_got, MS, 100), lg(net.n) + 1);
        check_votes(bad);
        rounds(10, MS);
        for (int i = 0; i < net.n; i++) {
            const pretended *p = &net.node[i];
            ck_assert_msg(p->n_votes < net.n && p->n_votes <= p->plane.n_links * lg(net.n) / 2,
                          "%d of %d sends %d votes over %d connections", i, net.n, p->n_votes,
                          p->plane.n_links);
        }
    }
    finish();
}
END_TEST

/* CP10: one that comes alone goes to each once. */
START_TEST(CP10_votes_one_by_one) {
    static const int sizes[] = { 2, 3, 4, 5, 6, 7, 8, 9, 33, 64 };
    int sent = 0;
    begin(sizes[_i]);
    step = 1;
    for (int i = 0; i < net.n; i++) {
        put(i, step, i == 1 ? DTR_ERR_NAN : DTR_OK);
        rounds(lg(net.n) + 1, MS / 100);
    }
    check_votes(1);
    for (int i = 0; i < net.n; i++) {
        sent += net.node[i].n_votes;
    }
    ck_assert_int_eq(sent, net.n * (net.n - 1));
    finish();
}
END_TEST

/* CP10: some die once their neighbours have their votes. */
START_TEST(CP10_voters_die) {
    begin(many[_i]);
    seed = 5;
    step = 1;
    for (int i = 0; i < net.n; i++) {
        put(i, step, i == 1 ? DTR_ERR_NAN : DTR_OK);
    }
    rounds(2, MS);
    (void)kill_some(-1);
    (void)rounds_until(all_have_got, MS, 100);
    check_votes(1);
    finish();
}
END_TEST

/* CP10: who passes votes on to some has lost a connection that the others know nothing of; they go
 * another way with the next period. */
START_TEST(CP10_a_way_is_cut) {
    begin(many[_i]);
    step = 1;
    net.connect_ns = INT64_MAX / 2; /* nothing is connected again */
    cut_link(0, 1);
    for (int i = 0; i < net.n; i++) {
        put(i, step, i == 1 ? DTR_ERR_NAN : DTR_OK);
    }
    (void)rounds_until(all_have_got, 50 * MS, 50);
    check_votes(1);
    finish();
}
END_TEST

/* CP5: every second node has members of a group that breaks; the others pass their records on. */
static bool all_are_settled(void) {
    int members[LARGE], n = 0;
    for (int i = 0; i < net.n; i += 2) {
        members[n++] = i;
    }
    for (int i = 0; i < net.n; i += 2) {
        dtr__failure_record r;
        if (!dtr__failure_record_settled(&net.node[i].world, NODES_UID, members, n, &r)) {
            return false;
        }
        ck_assert(r.origin == 4 % net.n && r.status == DTR_ERR_MISMATCH);
    }
    return true;
}

START_TEST(CP5_records_pass_through_others) {
    begin(many[_i]);
    for (int i = 0; i < net.n; i += 2) {
        const dtr__failure_record r = { .uid = NODES_UID,
                                        .status = i == 4 ? DTR_ERR_MISMATCH : DTR_ERR_TIMEOUT,
                                        .origin = i,
                                        .remote = 1 };
        ck_assert(dtr__failure_record_put(&net.node[i].world, &r));
    }
    ck_assert_int_le(rounds_until(all_are_settled, MS, 100), lg(net.n) + 1);
    for (int i = 1; i < net.n; i += 2) {
        ck_assert(!dtr__failure_record_is_put(&net.node[i].world, NODES_UID));
    }
    finish();
}
END_TEST

/* CP5: the same of all that are left after one has died: no period is waited for. */
static bool living_are_settled(void) {
    int members[LARGE], n = 0;
    dtr__failure_record r;
    for (int i = 0; i < net.n; i++) {
        members[n] = i;
        n += !net.node[i].dead;
    }
    for (int i = 0; i < n; i++) {
        if (!dtr__failure_record_settled(&net.node[members[i]].world, NODES_UID, members, n, &r)) {
            return false;
        }
    }
    return true;
}

START_TEST(CP5_records_after_a_death) {
    begin(many[_i]);
    kill_node(4);
    (void)rounds_until(all_have_lost_the_dead, MS, 100);
    rounds(20, MS);
    for (int i = 0; i < net.n; i++) {
        const dtr__failure_record r = {
            .uid = NODES_UID, .status = DTR_ERR_TIMEOUT, .origin = i, .remote = 1
        };
        ck_assert(net.node[i].dead || dtr__failure_record_put(&net.node[i].world, &r));
    }
    ck_assert_int_le(rounds_until(living_are_settled, MS, 100), lg(net.n) + 2);
    finish();
}
END_TEST

static int64_t asked_ns;

static bool all_have_answered(void) {
    bool known = true;
    for (int r = 1; r < net.n; r++) {
        known =
            net.node[r].dead || dtr__control_ask(&net.node[0].world, r, asked_ns) ? known : false;
    }
    return known;
}

static void ask_all(int rounds_most) {
    asked_ns = net.now_ns;
    net.reports = true;
    ck_assert_int_le(rounds_until(all_have_answered, MS, 500), rounds_most);
    for (int r = 1; r < net.n; r++) {
        dtr__rank_report d;
        if (!net.node[r].dead) {
            ck_assert_msg(dtr__control_report_of(&net.node[0].world, r, &d) &&
                              d.fresh_ns >= asked_ns && d.group[0].seq == NODES_SEQ + (uint64_t)r,
                          "%d of %d has not answered", r, net.n);
        }
    }
    net.reports = false;
}

/* Questions to one node go there and their answers come back, also round those that are dead. */
START_TEST(CP2_questions) {
    begin(many[_i]);
    seed = 3;
    ask_all(2 * (lg(net.n) / 2 + 1) + 2);
    (void)kill_some(0);
    rounds(1000 / 50, 50 * MS);
    ask_all(2 * dtr__control_hops(&net.node[0].world));
    finish();
}
END_TEST

static bool cut_is_seen(void) {
    for (int i = 0; i < net.n; i++) {
        if (net.node[i].n_lost < (i == 0 ? net.n - 1 : 1)) {
            return false;
        }
    }
    return true;
}

/* FI25: a node that is cut off is named to all within the silence and two seconds, and has lost all
 * of them by then, with connections or without. */
START_TEST(CP3_cut_off) {
    begin(many[_i]);
    rounds(5, 100 * MS);
    net.node[0].cut_ns = net.now_ns;
    rounds(95, 100 * MS);
    for (int i = 0; i < net.n; i++) {
        ck_assert_int_eq(net.node[i].n_lost, 0);
    }
    (void)rounds_until(cut_is_seen, 100 * MS, 25);
    for (int i = 1; i < net.n; i++) {
        ck_assert(net.node[i].n_lost == 1 && net.node[i].lost[0]);
    }
    finish();
}
END_TEST

/* For five seconds: nobody is lost, and what was to be told in that time is told afterwards. */
START_TEST(CP3_cut_for_a_while) {
    begin(many[_i]);
    rounds(5, 100 * MS);
    net.node[0].cut_ns = net.now_ns;
    step = 1;
    for (int i = 0; i < net.n; i++) {
        put(i, step, i == 0 ? DTR_ERR_NAN : DTR_OK);
    }
    rounds(50, 100 * MS);
    net.node[0].cut_ns = 0;
    /* What TCP would have sent again is lost here: connections that are made anew make up for it.
     */
    close_links(0);
    (void)rounds_until(all_have_got, 100 * MS, 20);
    check_votes(0);
    for (int i = 0; i < net.n; i++) {
        ck_assert_int_eq(net.node[i].n_lost, 0);
    }
    finish();
}
END_TEST

/* All neighbours of a node go silent at once: the others are still reached, and not lost, however
 * long their connections take. */
START_TEST(CP3_all_neighbours_are_cut_off) {
    begin(64);
    rounds(5, 100 * MS);
    net.connect_ns = 2000 * MS;
    for (int i = 1; i < net.n; i++) {
        net.node[i].cut_ns = dtr__ring_is_near(net.n, 0, i) ? net.now_ns : 0;
    }
    rounds(140, 100 * MS);
    for (int i = 1; i < net.n; i++) {
        ck_assert_msg(net.node[0].lost[i] == (net.node[i].cut_ns != 0), "node %d", i);
    }
    finish();
}
END_TEST

/* One of two neighbours cannot reach the other: who hears from both believes neither. */
START_TEST(CP3_other_eyes) {
    begin(5);
    const dtr__wire_rank_failure d = { .rank = 1, .status = DTR_ERR_REMOTE, .text = "no" };
    for (dtr__link *l = net.node[2].plane.links; l != NULL; l = l->next) {
        if (l->rank == 0) {
            net.at = &net.node[2];
            dtr__link_send(l, DTR__WIRE_RANK_FAILURE, &d, sizeof d);
        }
    }
    rounds(5, MS);
    ck_assert_int_eq(net.node[0].n_lost, 0);
    finish();
}
END_TEST

/* Where nodes are numbered on: neighbours of neighbours, by arithmetic alone. */
START_TEST(ring_of_any_size) {
    for (int n = 2; n <= 2000; n = n < 70 ? n + 1 : n * 3 / 2) {
        for (int a = 0; a < n; a += 1 + n / 50) {
            for (int b = 0; b < n; b += 1 + n / 50) {
                ck_assert(dtr__ring_distance(n, a, b) == dtr__ring_distance(n, b, a));
                ck_assert(dtr__ring_distance(n, a, b) <= n / 2);
                ck_assert(n > 5 || a == b || dtr__ring_is_near(n, a, b));
            }
        }
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("ring");
    const int n = (int)(sizeof many / sizeof *many);
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, ring_of_any_size);
    tcase_add_loop_test(tc, CP2_connections, 0, 12);
    tcase_add_loop_test(tc, CP2_who_dies_is_named, 0, n);
    tcase_add_loop_test(tc, CP3_while_others_die, 0, n);
    tcase_add_loop_test(tc, CP10_votes_of_all, 0, n);
    tcase_add_loop_test(tc, CP10_votes_one_by_one, 0, 10);
    tcase_add_loop_test(tc, CP10_voters_die, 0, n);
    tcase_add_loop_test(tc, CP10_a_way_is_cut, 0, n);
    tcase_add_loop_test(tc, CP5_records_pass_through_others, 0, n);
    tcase_add_loop_test(tc, CP5_records_after_a_death, 0, n);
    tcase_add_loop_test(tc, CP2_questions, 0, n);
    tcase_add_loop_test(tc, CP3_cut_off, 0, n);
    tcase_add_loop_test(tc, CP3_cut_for_a_while, 0, n);
    tcase_add_test(tc, CP3_all_neighbours_are_cut_off);
    tcase_add_test(tc, CP3_other_eyes);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime ring", make);
}
