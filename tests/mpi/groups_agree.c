/* Callers that do not agree, or do not come: what they are told, when, and what is left. */
#include "data.h"
#include "groups_common.h"

static dtr_group *worlds_own(void) {
    return dtr_world_group(th_world());
}

/* Nothing was made, no number moved, world and groups still work. */
static void all_is_well(int count, unsigned long next) {
    TH_CHECK(dtr_world_group_count(th_world()) == count, "something was made");
    TH_AGREE();
    th_good_allreduce(worlds_own());
    th_good_allreduce(th_group());
    TH_CHECK(next_number() == next + 1, "a counter moved");
    TH_AGREE();
}

/* ---- disagreement ---- */

/* The last rank asks for something else than the others. */
static void disagree(const int *ranks, int n, const dtr_group_options *mine, const char *both[2]) {
    unsigned long next = next_number();
    int count = dtr_world_group_count(th_world());
    dtr_group *g = UNTOUCHED;
    TH_IS(dtr_group_create(th_world(), ranks, n, mine, &g), DTR_ERR_MISMATCH);
    TH_MESSAGE(both[0]);
    TH_MESSAGE(both[1]);
    TH_CHECK(g == UNTOUCHED, "output touched");
    all_is_well(count, next);
}

START_TEST(NEW37_lists) {
    bool odd = th_rank() == th_size() - 1;
    const char *both[] = { "{0,1} on rank", "{1,0} on rank" };
    disagree(odd ? (int[]){ 1, 0 } : (int[]){ 0, 1 }, 2, NULL, both);
}
END_TEST

START_TEST(NEW37_names) {
    bool odd = th_rank() == th_size() - 1;
    dtr_group_options o = options(0, odd ? "anna" : "bert");
    disagree(NULL, th_size(), &o, (const char *[]){ "anna on rank", "bert on rank" });
    o = options(0, odd ? "anna" : NULL);
    disagree(NULL, th_size(), &o, (const char *[]){ "anna on rank", "none on rank" });
}
END_TEST

START_TEST(NEW37_tags) {
    dtr_group_options o = options(0, NULL);
    o.tag = th_rank() == th_size() - 1 ? "t1" : "t2";
    disagree(NULL, th_size(), &o, (const char *[]){ "t1 on rank", "t2 on rank" });
}
END_TEST

START_TEST(CFG16_backends) {
    dtr_group_options o = options(0, NULL);
    o.backend = th_rank() == th_size() - 1 ? "cpu:auto" : "cpu:mpi";
    disagree(NULL, th_size(), &o, (const char *[]){ "cpu:mpi on rank", "cpu:auto on rank" });
    o.backend = th_rank() == th_size() - 1 ? "cpu:nope" : "cpu:mpi";
    disagree(NULL, th_size(), &o,
             (const char *[]){ "cpu:mpi on rank", "cpu:nope (nope not registered) on rank" });
}
END_TEST

START_TEST(NEW37_flags) {
    dtr_group_options o = options(0, NULL);
    o.deterministic = th_rank() == th_size() - 1;
    disagree(NULL, th_size(), &o, (const char *[]){ "deterministic: ", "true on rank" });
    o = options(0, NULL);
    o.reproducible = th_rank() == th_size() - 1;
    disagree(NULL, th_size(), &o, (const char *[]){ "reproducible: ", "true on rank" });
    o = options(0, NULL);
    o.local_sync = th_rank() == th_size() - 1;
    disagree(NULL, th_size(), &o, (const char *[]){ "local_sync: ", "true on rank" });
}
END_TEST

/* One listed rank says local_sync: the outsiders, whom it does not expect, learn of it too. */
START_TEST(NEW37_local_sync_with_outsiders) {
    for (int odd = 0; odd < 2; odd++) {
        dtr_group_options o = options(0, NULL);
        o.local_sync = th_rank() == odd;
        disagree((int[]){ 0, 1 }, 2, &o, (const char *[]){ "local_sync: ", "true on rank" });
    }
}
END_TEST

START_TEST(NEW37_other_calls) {
    unsigned long next = next_number();
    int count = dtr_world_group_count(th_world()), index = -9;
    dtr_group *g = UNTOUCHED;
    if (th_rank() == th_size() - 1) {
        TH_IS(dtr_group_split(worlds_own(), 0, 0, NULL, &g), DTR_ERR_MISMATCH);
    } else {
        TH_IS(dtr_group_create(th_world(), NULL, th_size(), NULL, &g), DTR_ERR_MISMATCH);
    }
    TH_MESSAGE("dtr_group_split");
    TH_MESSAGE("dtr_group_create on rank");
    all_is_well(count, next);
    int size = th_rank() == 0 ? 1 : th_size();
    TH_IS(dtr_group_subgroups(worlds_own(), size, NULL, &g, &index), DTR_ERR_MISMATCH);
    TH_MESSAGE("chunks of 1");
    TH_CHECK(g == UNTOUCHED && index == -9, "outputs touched");
    all_is_well(count, next + 1);
}
END_TEST

/* A destroy that meets a creation leaves the group as it is. */
START_TEST(NEW37_destroy_against_create) {
    dtr_group *g = made(NULL, th_size(), NULL), *h = UNTOUCHED;
    if (th_rank() == 0) {
        TH_IS(dtr_group_destroy(g), DTR_ERR_MISMATCH);
    } else {
        TH_IS(dtr_group_create(th_world(), NULL, th_size(), NULL, &h), DTR_ERR_MISMATCH);
    }
    TH_MESSAGE("dtr_group_destroy");
    TH_AGREE();
    th_good_allreduce(g);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- absence ---- */

/* All but `absent` create a group with a limit; the missing one is named. */
static void absent_once(int absent, double limit_s) {
    char who[40], counts[32], limit[24];
    snprintf(who, sizeof who, "missing: rank %d.", absent);
    snprintf(counts, sizeof counts, "%d of %d", th_size() - 1, th_size());
    snprintf(limit, sizeof limit, "%g s", limit_s);
    th_barrier();
    if (th_rank() != absent) {
        dtr_group_options o = options(limit_s, "absent one");
        dtr_group *g = UNTOUCHED;
        TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_TIMEOUT);
        TH_MESSAGE("absent one");
        TH_MESSAGE(who);
        TH_MESSAGE(counts);
        TH_MESSAGE(limit);
        TH_CHECK(g == UNTOUCHED, "output touched");
    }
    th_barrier();
}

static void absent(int who) {
    unsigned long next = next_number();
    int count = dtr_world_group_count(th_world());
    double limit_s = 0.4;
    do {
        absent_once(who, limit_s);
    } while (th_patience(&limit_s));
    all_is_well(count, next);
}

START_TEST(STO12_limit_and_STO13_names) {
    for (int who = 0; who < th_size(); who++) {
        absent(who);
    }
}
END_TEST

/* A rank with a short limit ends it for those with a long one, who are told why. */
START_TEST(STO13_shortest_limit_counts) {
    if (th_rank() != th_size() - 1) {
        dtr_group_options o = options(th_rank() == 0 ? 600 : 0.5, NULL);
        dtr_group *g = UNTOUCHED;
        TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_TIMEOUT);
        TH_MESSAGE("0.5 s");
    }
    th_barrier();
    TH_AGREE();
    th_good_allreduce(worlds_own());
}
END_TEST

/* A group that nobody has before all have called. */
static dtr_group *made_together(const int *ranks, int n, const dtr_group_options *o) {
    double came = th_now();
    dtr_group *g = made(ranks, n, o);
    double left = th_now();
    TH_CHECK(left >= th_latest(came), "create returned before the last rank came");
    return g;
}

/* What was sent to a creation that timed out does not count in the next one. */
START_TEST(STO15_leftovers) {
    dtr_group_options o = options(0.3, "again");
    for (int late = 0; late < th_size(); late += th_size() - 1) {
        dtr_group *g = UNTOUCHED;
        if (th_rank() != late) {
            TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_TIMEOUT);
        }
        th_barrier();
        dtr_group_options longer = options(600, "again");
        if (th_rank() == (late + 1) % th_size()) {
            th_sleep(0.2); /* must be waited for, although it came the first time */
        }
        g = made_together(NULL, th_size(), &longer);
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

START_TEST(STO15_equal_names) {
    dtr_group_options o = options(0, "twice");
    for (int i = 0; i < 2; i++) {
        th_barrier();
        if (i == 1 && th_rank() == 0) {
            th_sleep(0.2);
        }
        dtr_group *g = made_together(NULL, th_size(), &o);
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

/* Limits and delays of the same size: whatever happens, it happens to all callers alike. */
START_TEST(STO13_racing_limits) {
    th_rng rng = { 77 + (uint64_t)th_rank() };
    uint64_t all[16];
    for (int i = 0; i < 60; i++) {
        dtr_group_options o = options(0.003 + 0.006 * th_uniform(&rng), NULL);
        dtr_group *g = NULL;
        th_sleep(0.008 * th_uniform(&rng));
        dtr_status s = i % 2 == 0 ? dtr_group_create(th_world(), NULL, th_size(), &o, &g)
                                  : dtr_group_split(worlds_own(), th_rank() % 2, 0, &o, &g);
        th_gather_u64(s == DTR_OK, all);
        for (int r = 0; r < th_size(); r++) {
            TH_CHECK(all[r] == (s == DTR_OK), "attempt %d: rank %d differs", i, r);
        }
        TH_CHECK(s == DTR_OK || s == DTR_ERR_TIMEOUT, "%s: %s", dtr_status_name(s),
                 dtr_last_error_message());
        if (g != NULL) {
            dtr_group_abort(g, "not needed"); /* ends alone, whatever the limit */
            TH_IS(dtr_group_destroy(g), DTR_OK);
        }
        TH_AGREE();
    }
    th_good_allreduce(worlds_own());
}
END_TEST

/* ---- ENV1 ---- */

START_TEST(ENV1_creation_synchronises) {
    dtr_group *g = NULL, *h = NULL;
    th_barrier();
    if (th_rank() == 0) {
        th_sleep(0.2);
    }
    g = made_together(LIST(1), NULL);
    if (th_rank() == 0) {
        th_sleep(0.2);
    }
    double came = th_now();
    TH_IS(dtr_group_split(worlds_own(), th_rank(), 0, NULL, &h), DTR_OK);
    double left = th_now();
    TH_CHECK(left >= th_latest(came), "split returned before the last rank came");
    TH_IS(dtr_group_destroy(h), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_agree", 60);
    th_add(tc, NEW37_lists, 3, 0);
    th_add(tc, NEW37_names, 2, 0);
    th_add(tc, NEW37_tags, 2, 0);
    th_add(tc, CFG16_backends, 2, 0);
    th_add(tc, NEW37_flags, 2, 0);
    th_add(tc, NEW37_local_sync_with_outsiders, 3, 0);
    th_add(tc, NEW37_other_calls, 2, 0);
    th_add(tc, NEW37_destroy_against_create, 2, 0);
    th_add(tc, STO12_limit_and_STO13_names, 2, 0);
    th_add(tc, STO13_shortest_limit_counts, 3, 0);
    th_add(tc, STO13_racing_limits, 2, 0);
    th_add(tc, STO15_leftovers, 2, 0);
    th_add(tc, STO15_equal_names, 2, 0);
    th_add(tc, ENV1_creation_synchronises, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_agree", make);
}
