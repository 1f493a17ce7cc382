/* dtr_group_create: what it refuses, what it makes, and how groups are named. */
#include "core/team.h"
#include "groups_common.h"

/* ---- refusals ---- */

static void refused(const int *ranks, int n, dtr_status want, const char *word) {
    dtr_group *g = UNTOUCHED;
    TH_IS(dtr_group_create(th_world(), ranks, n, NULL, &g), want);
    TH_MESSAGE(word);
    TH_CHECK(g == UNTOUCHED, "output touched by a refused call (%s)", word);
}

START_TEST(NEW1_null_list) {
    dtr_group *g = made(NULL, th_size(), NULL);
    TH_CHECK(dtr_group_size(g) == th_size() && dtr_group_rank(g) == th_rank(), "0..n-1");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    refused(NULL, 0, DTR_ERR_ARG, "world_ranks is NULL");
    refused(NULL, th_size() + 1, DTR_ERR_ARG, "world_ranks is NULL");
    refused(NULL, -1, DTR_ERR_ARG, "world_ranks is NULL");
    TH_AGREE();
}
END_TEST

/* NEW8, NEW9, NEW10, NEW11 */
START_TEST(NEW8_to_NEW11_bad_lists) {
    int many[32] = { 0 }, size = th_size();
    many[1] = -5; /* NEW8: not looked at when the list is too long */
    refused(many, size + 1, DTR_ERR_ARG, "more than the world's");
    refused(LIST(-1), DTR_ERR_RANK, "entry 0");
    refused(&size, 1, DTR_ERR_RANK, "world ranks are 0 to");
    refused(LIST(0, 0), DTR_ERR_ARG, "more than once");
    refused(many, 0, DTR_ERR_ARG, "at least one");
    refused(many, -1, DTR_ERR_ARG, "at least one");
    TH_AGREE();
}
END_TEST

START_TEST(NEW12_a_refused_call_moves_nothing) {
    unsigned long next = next_number();
    int count = dtr_world_group_count(th_world());
    refused(LIST(0, 0), DTR_ERR_ARG, "more than once");
    dtr_group_options o = options(0, "7");
    dtr_group *g = UNTOUCHED;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_ARG);
    o = options(0, NULL);
    o.backend = "cpu:nope"; /* CFG5, NEW17 */
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("self, ");
    o.backend = "cuda:nccl";
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("nccl");
    o.backend = "cpu:nccl"; /* ENU5 */
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_UNSUPPORTED);
    o.backend = "cpu:mpi,cpu:mpi";
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_ARG);
    TH_CHECK(g == UNTOUCHED, "output touched");
    TH_CHECK(dtr_world_group_count(th_world()) == count, "something was made");
    TH_AGREE();
    g = made(NULL, th_size(), NULL);
    TH_CHECK(is_named(g, next), "named %s, want %lu", dtr_group_name(g), next);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* Outsiders learn of a backend that nobody has, too. */
START_TEST(NEW17_outsiders_get_the_same_status) {
    dtr_group_options o = options(0, NULL);
    o.backend = "cpu:nope";
    dtr_group *g = UNTOUCHED;
    TH_IS(dtr_group_create(th_world(), LIST(1), &o, &g), DTR_ERR_UNSUPPORTED);
    TH_CHECK(g == UNTOUCHED, "output touched");
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

START_TEST(Y1_options) {
    dtr_group *g = UNTOUCHED;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.struct_size = 0;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_ARG);
    struct {
        dtr_group_options o;
        char tail[16];
    } longer = { .o = DTR_GROUP_OPTIONS_INIT };
    longer.o.struct_size = sizeof longer;
    longer.tail[3] = 1;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &longer.o, &g), DTR_ERR_ARG);
    o = options(0, NULL);
    o.flags = 1;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_ARG);
    o = options(0, NULL);
    o.nan_check = 2;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_ARG);
    o = options(0, NULL);
    o.has_device = true;
    o.device = (dtr_device){ DTR_CPU, 1 };
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_DEVICE);
    o.device = (dtr_device){ DTR_CUDA, 99 };
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_DEVICE);
    TH_CHECK(g == UNTOUCHED, "output touched");
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), NULL, NULL), DTR_ERR_ARG);
    TH_AGREE();
    longer.tail[3] = 0; /* a longer struct with nothing in its tail is fine */
    g = NULL;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &longer.o, &g), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- what is made ---- */

/* nccl:C3: the members of a group have one number for it, which no other group of the world has. */
static void check_number(const dtr_group *g, uint64_t *seen, int before) {
    uint64_t own = g != NULL ? dtr__group_number(g) : UINT64_MAX, all[16];
    th_gather_u64(own, all);
    for (int r = 0; r < th_size(); r++) {
        TH_CHECK(all[r] == own || all[r] == UINT64_MAX || g == NULL, "rank %d has another number",
                 r);
        seen[before] = all[r] != UINT64_MAX ? all[r] : seen[before];
    }
    for (int i = 0; i < before; i++) {
        TH_CHECK(seen[i] != seen[before], "groups %d and %d have one number", i, before);
    }
}

/* Groups that all ranks make, and those that only their members make. */
START_TEST(NEW2_twenty_groups_between_collectives) {
    enum { GROUPS = 20 };
    dtr_group *g[GROUPS] = { NULL };
    int list[16];
    uint64_t numbers[GROUPS + 1] = { dtr__group_number(dtr_world_group(th_world())) };
    TH_CHECK(numbers[0] == 0, "the world's group has number %d", (int)numbers[0]);
    for (int i = 0; i < GROUPS; i++) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        int n = 1 + i % th_size();
        for (int j = 0; j < n; j++) {
            list[j] = (i + j) % th_size();
        }
        o.local_sync = i % 2 == 1;
        if (!o.local_sync || (th_rank() + th_size() - i % th_size()) % th_size() < n) {
            g[i] = made(list, n, &o);
        }
        TH_AGREE();
        check_number(g[i], numbers, i + 1);
        th_good_allreduce(th_group());
        if (g[i] != NULL) {
            int64_t in = 1, out = 0;
            TH_IS(dtr_allreduce(g[i], dtr_cpu(&in, 1, DTR_I64), dtr_cpu(&out, 1, DTR_I64), DTR_SUM,
                                NULL, NULL),
                  DTR_OK);
            TH_CHECK(out == n, "group %d: %lld of %d", i, (long long)out, n);
        }
        TH_AGREE();
    }
    for (int i = 0; i < GROUPS; i++) {
        TH_IS(dtr_group_destroy(g[i]), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* NEW3 and GRP2: an outsider's handle is NULL, and calls on it do nothing. */
START_TEST(NEW3_outsiders) {
    dtr_group *g = UNTOUCHED;
    TH_IS(dtr_group_create(th_world(), LIST(1), NULL, &g), DTR_OK);
    TH_CHECK((g == NULL) == (th_rank() != 1), "rank %d", th_rank());
    if (th_rank() != 1) {
        int32_t in = 5, out = 6;
        dtr_work *w = (dtr_work *)UNTOUCHED;
        TH_IS(dtr_allreduce(g, dtr_cpu(&in, 1, DTR_I32), dtr_cpu(&out, 1, DTR_I32), DTR_SUM, NULL,
                            &w),
              DTR_NOT_MEMBER);
        TH_CHECK(w == NULL && in == 5 && out == 6, "touched");
        TH_IS(dtr_barrier(g, NULL, NULL), DTR_NOT_MEMBER);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* Two groups of equal members: sends with equal tags, received in swapped group order. */
START_TEST(NEW18_traffic_is_separate) {
    dtr_group *a = made(LIST(0, 1), NULL), *b = made(LIST(0, 1), NULL);
    int32_t x = 11, y = 22, got_a = 0, got_b = 0;
    if (th_rank() == 0) {
        dtr_work *w[2] = { NULL, NULL };
        TH_IS(dtr_send(a, dtr_cpu(&x, 1, DTR_I32), 1, 3, NULL, &w[0]), DTR_OK);
        TH_IS(dtr_send(b, dtr_cpu(&y, 1, DTR_I32), 1, 3, NULL, &w[1]), DTR_OK);
        for (int i = 0; i < 2; i++) {
            TH_IS(dtr_work_wait(w[i], -1), DTR_OK);
            dtr_work_release(w[i]);
        }
    } else if (th_rank() == 1) {
        TH_IS(dtr_recv(b, dtr_cpu(&got_b, 1, DTR_I32), 0, 3, NULL, NULL), DTR_OK);
        TH_IS(dtr_recv(a, dtr_cpu(&got_a, 1, DTR_I32), 0, 3, NULL, NULL), DTR_OK);
        TH_CHECK(got_a == 11 && got_b == 22, "%d on a, %d on b", got_a, got_b);
    }
    TH_IS(dtr_group_destroy(a), DTR_OK);
    TH_IS(dtr_group_destroy(b), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(NEW20_sequences_are_per_group) {
    dtr_group *a = made(NULL, th_size(), NULL), *b = made(NULL, th_size(), NULL);
    for (int i = 0; i < 5; i++) {
        TH_IS(dtr_barrier(a, NULL, NULL), DTR_OK);
        if (i < 2) {
            TH_IS(dtr_barrier(b, NULL, NULL), DTR_OK);
        }
    }
    TH_CHECK(dtr_group_seq(a) == 5 && dtr_group_seq(b) == 2, "%llu and %llu",
             (unsigned long long)dtr_group_seq(a), (unsigned long long)dtr_group_seq(b));
    TH_IS(dtr_group_destroy(a), DTR_OK);
    TH_IS(dtr_group_destroy(b), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- names ---- */

START_TEST(NEW13_names) {
    unsigned long next = next_number();
    dtr_group *a = made(LIST(0), NULL);
    dtr_group_options o = options(0, "own name");
    dtr_group *named = made(NULL, th_size(), &o), *b = made(NULL, th_size(), NULL);
    TH_CHECK(a == NULL || is_named(a, next), "named %s, want %lu", dtr_group_name(a), next);
    TH_CHECK(strcmp(dtr_group_name(named), "own name") == 0, "named %s", dtr_group_name(named));
    /* Outsiders of the first group moved their counter too, a given name moved none. */
    TH_CHECK(is_named(b, next + 1), "named %s, want %lu", dtr_group_name(b), next + 1);
    TH_IS(dtr_group_destroy(b), DTR_OK);
    TH_IS(dtr_group_destroy(named), DTR_OK);
    TH_IS(dtr_group_destroy(a), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(NEW16_refused_names) {
    char longest[65];
    memset(longest, 'n', 64);
    longest[64] = '\0';
    const char *bad[] = { "7", "world", "", "0123", longest };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dtr_group_options o = options(0, bad[i]);
        dtr_group *g = UNTOUCHED;
        TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_ARG);
        TH_CHECK(g == UNTOUCHED, "output touched");
    }
    TH_AGREE();
    longest[63] = '\0';
    dtr_group_options o = options(0, longest);
    dtr_group *g = made(NULL, th_size(), &o), *again = UNTOUCHED;
    TH_CHECK(strcmp(dtr_group_name(g), longest) == 0, "63 bytes");
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &again), DTR_ERR_STATE);
    TH_MESSAGE("name");
    TH_CHECK(again == UNTOUCHED, "output touched");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    g = made(NULL, th_size(), &o); /* free again */
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* Live on one caller only, yet refused on all of them. */
START_TEST(NEW16_name_live_on_one_rank) {
    dtr_group_options o = options(0, "lonely");
    dtr_group *g = made(LIST(1), &o), *h = UNTOUCHED;
    TH_IS(dtr_group_create(th_world(), LIST(0), &o, &h), DTR_ERR_STATE);
    TH_MESSAGE("rank 1");
    TH_CHECK(h == UNTOUCHED, "output touched");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- tags ---- */

START_TEST(NEW23_find_or_create) {
    dtr_group_options o = options(0, NULL);
    o.tag = "new23";
    dtr_group *g = made(LIST(0, 1), &o);
    unsigned long next = next_number();
    int count = dtr_world_group_count(th_world());
    dtr_group *again = made(LIST(0, 1), &o), *other = made(LIST(1, 0), &o);
    TH_CHECK(again == g, "not the same handle");
    TH_CHECK(g == NULL || other != g, "another order is another group");
    TH_CHECK(other == NULL || is_named(other, next), "reuse takes no number");
    TH_CHECK(dtr_world_group_count(th_world()) == count + (g != NULL), "count");
    TH_IS(dtr_group_destroy(other), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(g == NULL || dtr_group_size(g) == 2, "one reference is left");
    if (g != NULL) {
        TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
    }
    TH_IS(dtr_group_destroy(again), DTR_OK);
    TH_CHECK(dtr_world_group_count(th_world()) == count - (g != NULL), "destroyed");
    if (g != NULL) {
        TH_IS(dtr_group_destroy(g), DTR_ERR_STATE);
    }
    TH_AGREE();
}
END_TEST

/* A name given along with the tag belongs to the live group: it is no clash. */
START_TEST(NEW23_tag_with_name) {
    dtr_group_options o = options(0, "tagged and named");
    o.tag = "new23n";
    dtr_group *g = made(NULL, th_size(), &o), *again = made(NULL, th_size(), &o);
    TH_CHECK(g == again, "not the same handle");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_group_destroy(again), DTR_OK);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_create", 60);
    th_add(tc, NEW1_null_list, 1, 0);
    th_add(tc, NEW8_to_NEW11_bad_lists, 2, 0);
    th_add(tc, NEW12_a_refused_call_moves_nothing, 2, 0);
    th_add(tc, NEW17_outsiders_get_the_same_status, 2, 0);
    th_add(tc, Y1_options, 1, 0);
    th_add(tc, NEW2_twenty_groups_between_collectives, 1, 0);
    th_add(tc, NEW3_outsiders, 2, 0);
    th_add(tc, NEW18_traffic_is_separate, 2, 0);
    th_add(tc, NEW20_sequences_are_per_group, 1, 0);
    th_add(tc, NEW13_names, 1, 0);
    th_add(tc, NEW16_refused_names, 1, 0);
    th_add(tc, NEW16_name_live_on_one_rank, 2, 0);
    th_add(tc, NEW23_find_or_create, 2, 0);
    th_add(tc, NEW23_tag_with_name, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_create", make);
}
