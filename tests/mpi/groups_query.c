/* What groups say about themselves: ranks, names, lists, options as they were resolved. */
#include "groups_common.h"

/* ---- ranks ---- */

START_TEST(INI7_the_worlds_group) {
    dtr_group *g = dtr_world_group(th_world());
    dtr_group_info i = info_of(g);
    TH_CHECK(g == dtr_world_group(th_world()), "two handles of one group"); /* ENU11 */
    TH_CHECK(strcmp(dtr_group_name(g), "world") == 0, "named %s", dtr_group_name(g));
    TH_CHECK(i.desc[0] == '\0' && i.tag[0] == '\0', "desc '%s', tag '%s'", i.desc, i.tag);
    TH_CHECK(dtr_group_rank(g) == th_rank() && dtr_group_size(g) == th_size(), "rank or size");
    TH_CHECK(dtr_group_rank_of(g, th_size()) == -1 && dtr_group_rank_of(g, -1) == -1, "GRP7");
    TH_AGREE();
}
END_TEST

START_TEST(GRP5_sizes) {
    int list[16];
    for (int n = 1; n <= th_size(); n++) {
        list[n - 1] = n - 1;
        dtr_group *g = made(list, n, NULL);
        int want = th_rank() < n ? n : -1;
        TH_CHECK(dtr_group_size(g) == want, "size %d, want %d", dtr_group_size(g), want);
        TH_CHECK((g != NULL) == (th_rank() < n), "GRP1: handle of rank %d", th_rank());
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

/* {3,1}: list order is rank order (GRP4, GRP6, GRP7, GRP8, GRP10, NEW3, NEW4, ENU10, nccl:C6). */
START_TEST(GRP6_list_order_is_rank_order) {
    int me = th_rank();
    dtr_group *g = made(LIST(3, 1), NULL);
    TH_CHECK((g != NULL) == (me == 3 || me == 1), "membership of rank %d", me);
    TH_CHECK(dtr_group_rank(g) == (me == 3 ? 0 : me == 1 ? 1 : -1), "rank %d", dtr_group_rank(g));
    if (g != NULL) {
        const int of[5][2] = { { 3, 0 }, { 1, 1 }, { 2, -1 }, { 99, -1 }, { -1, -1 } };
        for (int i = 0; i < 5; i++) {
            TH_CHECK(dtr_group_rank_of(g, of[i][0]) == of[i][1], "rank of %d", of[i][0]);
        }
        const int world[4][2] = { { 0, 3 }, { 1, 1 }, { 2, -1 }, { -1, -1 } };
        for (int i = 0; i < 4; i++) {
            TH_CHECK(dtr_group_world_rank(g, world[i][0]) == world[i][1], "world rank of %d",
                     world[i][0]);
        }
        dtr_group_info info = info_of(g);
        TH_CHECK(info.world_ranks[0] == 3 && info.world_ranks[1] == 1, "GRP10");
        TH_CHECK(info.rank == dtr_group_rank(g) && info.size == 2, "info");
        int32_t x = me;
        TH_IS(dtr_broadcast(g, dtr_cpu(&x, 1, DTR_I32), 0, NULL, NULL), DTR_OK);
        TH_CHECK(x == 3, "root 0 is world rank 3, its data came as %d", x);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- lists and names ---- */

START_TEST(GRP12_count) {
    int before = dtr_world_group_count(th_world());
    dtr_group_options tagged = DTR_GROUP_OPTIONS_INIT;
    tagged.tag = "grp12";
    dtr_group *a = made(LIST(0, 1), NULL);
    dtr_group *b = made(NULL, th_size(), &tagged);
    dtr_group *again = made(NULL, th_size(), &tagged);
    int mine = th_rank() < 2 ? 2 : 1;
    TH_CHECK(dtr_world_group_count(th_world()) == before + mine, "outsiders do not count it");
    TH_CHECK(b == again, "one group, counted once");
    TH_IS(dtr_group_destroy(a), DTR_OK);
    TH_CHECK(dtr_world_group_count(th_world()) == before + 1, "the count falls");
    TH_IS(dtr_group_destroy(b), DTR_OK);
    TH_IS(dtr_group_destroy(again), DTR_OK);
    TH_CHECK(dtr_world_group_count(th_world()) == before, "the count is back");
    TH_AGREE();
}
END_TEST

START_TEST(GRP13_info_by_struct_size) {
    dtr_group *g = th_group();
    dtr_group_info cut;
    memset(&cut, 0x5a, sizeof cut);
    cut.struct_size = offsetof(dtr_group_info, rank);
    TH_IS(dtr_group_get_info(g, &cut), DTR_OK);
    TH_CHECK(strcmp(cut.name, dtr_group_name(g)) == 0, "leading fields");
    TH_CHECK(cut.struct_size == offsetof(dtr_group_info, rank), "struct_size is the caller's");
    unsigned char *tail = (unsigned char *)&cut + offsetof(dtr_group_info, rank);
    for (size_t i = 0; i < sizeof cut - offsetof(dtr_group_info, rank); i++) {
        TH_CHECK(tail[i] == 0x5a, "byte %zu of the tail was written", i);
    }
    cut.struct_size = 0;
    TH_IS(dtr_group_get_info(g, &cut), DTR_ERR_ARG);
    TH_IS(dtr_group_get_info(g, NULL), DTR_ERR_ARG);
    dtr_group_info i = info_of(g);
    TH_CHECK(i.timeout_cpu_s == 50 && i.seq == dtr_group_seq(g) && i.status == DTR_OK, "facts");
    TH_AGREE();
}
END_TEST

START_TEST(GRP14_list) {
    dtr_group *list[8] = { UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED }, *g[3];
    int n = -1, before = dtr_world_group_count(th_world());
    for (int i = 0; i < 3; i++) {
        g[i] = made(NULL, th_size(), NULL);
    }
    TH_IS(dtr_world_list_groups(th_world(), list, 8, &n), DTR_OK);
    TH_CHECK(n == before + 3 && list[0] == dtr_world_group(th_world()), "%d groups", n);
    for (int i = 0; i < 3; i++) {
        TH_CHECK(list[before + i] == g[i], "creation order");
    }
    list[1] = list[2] = UNTOUCHED;
    TH_IS(dtr_world_list_groups(th_world(), list, 1, &n), DTR_OK);
    TH_CHECK(n == before + 3 && list[1] == UNTOUCHED, "needed count, nothing past cap");
    TH_IS(dtr_world_list_groups(th_world(), NULL, 0, &n), DTR_OK);
    TH_CHECK(n == before + 3, "count alone");
    n = -7;
    TH_IS(dtr_world_list_groups(th_world(), list, -1, &n), DTR_ERR_ARG);
    TH_IS(dtr_world_list_groups(th_world(), NULL, 1, &n), DTR_ERR_ARG);
    TH_IS(dtr_world_list_groups(th_world(), list, 1, NULL), DTR_ERR_ARG);
    TH_CHECK(n == -7, "output touched by a refused call");
    for (int i = 0; i < 3; i++) {
        TH_IS(dtr_group_destroy(g[i]), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

START_TEST(GRP19_find_by_name) {
    dtr_world *w = th_world();
    dtr_group_options o = options(0, "fred");
    dtr_group *named = made(NULL, th_size(), &o), *unnamed = made(NULL, th_size(), NULL);
    char number[64];
    snprintf(number, sizeof number, "%s", dtr_group_name(unnamed));
    TH_CHECK(dtr_world_find_group(w, "world") == dtr_world_group(w), "world");
    TH_CHECK(dtr_world_find_group(w, "fred") == named, "named");
    TH_CHECK(dtr_world_find_group(w, number) == unnamed, "unnamed");
    TH_CHECK(dtr_world_find_group(w, "Fred") == NULL, "names compare with case");
    TH_CHECK(dtr_world_find_group(w, "nobody") == NULL && dtr_world_find_group(w, NULL) == NULL,
             "unknown and NULL");
    TH_IS(dtr_group_destroy(named), DTR_OK);
    TH_IS(dtr_group_destroy(unnamed), DTR_OK);
    TH_CHECK(dtr_world_find_group(w, "fred") == NULL && dtr_world_find_group(w, number) == NULL,
             "destroyed");
    TH_AGREE();
}
END_TEST

START_TEST(GRP22_desc_and_NEW25_tag) {
    char desc[] = "what it is for", tag[] = "t25";
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.desc = desc;
    o.tag = tag;
    dtr_group *g = made(NULL, th_size(), &o), *plain = made(NULL, th_size(), NULL);
    memset(desc, 'x', sizeof desc - 1); /* the group has its own copies */
    memset(tag, 'x', sizeof tag - 1);
    dtr_group_info i = info_of(g), p = info_of(plain);
    TH_CHECK(strcmp(i.desc, "what it is for") == 0 && strcmp(i.tag, "t25") == 0, "copies");
    TH_CHECK(p.desc[0] == '\0' && p.tag[0] == '\0', "\"\" when not given");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_group_destroy(plain), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(GRP24_find_by_tag) {
    dtr_world *w = th_world();
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.tag = "grp24";
    dtr_group *g = made(LIST(1, 0), &o);
    TH_CHECK(dtr_world_find_tagged(w, "grp24", LIST(1, 0)) == g, "found");
    TH_CHECK(dtr_world_find_tagged(w, "grp24", LIST(0, 1)) == NULL, "NEW26: order counts");
    TH_CHECK(dtr_world_find_tagged(w, "grp24", LIST(1)) == NULL, "shorter list");
    TH_CHECK(dtr_world_find_tagged(w, "other", LIST(1, 0)) == NULL, "other tag");
    TH_CHECK(dtr_world_find_tagged(w, NULL, LIST(1, 0)) == NULL, "NULL tag");
    TH_CHECK(dtr_world_find_tagged(w, "", LIST(1, 0)) == NULL, "empty tag");
    TH_CHECK(dtr_world_find_tagged(w, "grp24", NULL, 2) == NULL, "NULL list");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(dtr_world_find_tagged(w, "grp24", LIST(1, 0)) == NULL, "destroyed");
    TH_AGREE();
}
END_TEST

START_TEST(GRP25_sequence) {
    dtr_group *g = made(NULL, th_size(), NULL);
    uint64_t all[16];
    float x = 1;
    TH_CHECK(dtr_group_seq(g) == 0, "starts at %llu", (unsigned long long)dtr_group_seq(g));
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
    TH_IS(dtr_broadcast(g, dtr_cpu(&x, 1, DTR_F32), th_size(), NULL, NULL), DTR_ERR_RANK);
    dtr_work *w = NULL;
    int next = (th_rank() + 1) % th_size(), last = (th_rank() + th_size() - 1) % th_size();
    float y = 0;
    TH_IS(dtr_recv(g, dtr_cpu(&y, 1, DTR_F32), last, 0, NULL, &w), DTR_OK);
    dtr_work *sent = NULL;
    TH_IS(dtr_send(g, dtr_cpu(&x, 1, DTR_F32), next, 0, NULL, &sent), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_wait(sent, -1), DTR_OK);
    dtr_work_release(w);
    dtr_work_release(sent);
    dtr_group *other = NULL;
    TH_IS(dtr_group_split(g, 0, 0, NULL, &other), DTR_OK);
    TH_IS(dtr_group_destroy(other), DTR_OK);
    th_gather_u64(dtr_group_seq(g), all);
    for (int i = 0; i < th_size(); i++) {
        TH_CHECK(all[i] == 1, "rank %d is at %llu", i, (unsigned long long)all[i]);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- options as resolved ---- */

START_TEST(CFG13_asked_and_chosen) {
    const char *const texts[][2] = { { "CPU:MPI", "cpu:mpi" }, /* ENU2 */
                                     { "Cpu:Auto", "cpu:auto" },
                                     { "mpi", "mpi" } };
    for (int i = 0; i < 3; i++) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        o.backend = texts[i][0];
        dtr_group *g = made(NULL, th_size(), &o);
        dtr_group_info a = info_of(g);
        TH_CHECK(strcmp(a.backend_asked, texts[i][1]) == 0, "asked '%s'", a.backend_asked);
        TH_CHECK(strncmp(a.backend, "cpu:", 4) == 0 && strchr(a.backend, ',') == NULL,
                 "chosen '%s'", a.backend);
        /* CFG7: the text of what was chosen selects the same again. */
        o.backend = a.backend;
        dtr_group *h = made(NULL, th_size(), &o);
        TH_CHECK(strcmp(info_of(h).backend, a.backend) == 0, "round trip");
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_IS(dtr_group_destroy(h), DTR_OK);
        TH_AGREE();
    }
    dtr_group *g = made(NULL, th_size(), NULL);
    TH_CHECK(strcmp(info_of(g).backend_asked, "cpu:auto,cuda:auto") == 0, "ENU4");
    bool one_node = dtr_world_node_count(th_world()) == 1;
    TH_CHECK(th_size() > 1 || strcmp(info_of(g).backend, "cpu:self") == 0, "CFG1: one rank");
    TH_CHECK(th_size() == 1 || !one_node || strcmp(info_of(g).backend, "cpu:shm") == 0,
             "CFG1: one node has %s", info_of(g).backend);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(CFG2_single_name) {
    dtr_group_options o = options(0, NULL);
    o.backend = "mpi";
    dtr_group *g = made(NULL, th_size(), &o);
    TH_CHECK(strcmp(info_of(g).backend, "cpu:mpi") == 0, "chosen %s", info_of(g).backend);
    TH_AGREE();
    th_good_allreduce(g);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(ENV9_timeouts) {
    dtr_group *plain = made(NULL, th_size(), NULL);
    dtr_group_info i = info_of(plain);
    TH_CHECK(i.timeout_cpu_s == 1800 && i.timeout_cuda_s == 600, "ENV10: %g and %g",
             i.timeout_cpu_s, i.timeout_cuda_s);
    dtr_group_options o = options(23, NULL), inf = options(INFINITY, NULL);
    dtr_group *g = made(NULL, th_size(), &o), *h = made(NULL, th_size(), &inf);
    /* NEW19: one number for all backends. */
    TH_CHECK(info_of(g).timeout_cpu_s == 23 && info_of(g).timeout_cuda_s == 23, "own");
    TH_CHECK(isinf(info_of(h).timeout_cpu_s), "no limit");
    dtr_group *child = NULL;
    TH_IS(dtr_group_split(g, 0, 0, NULL, &child), DTR_OK);
    TH_CHECK(info_of(child).timeout_cpu_s == 23, "a split takes its parent's");
    TH_IS(dtr_group_destroy(child), DTR_OK);
    TH_IS(dtr_group_destroy(h), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_group_destroy(plain), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(ENV11_bad_timeouts) {
    dtr_group_options o = options(NAN, NULL);
    dtr_group *g = UNTOUCHED;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_ARG);
    TH_MESSAGE("timeout_s");
    TH_CHECK(g == UNTOUCHED, "output touched");
    TH_AGREE();
}
END_TEST

START_TEST(GRP18_local_ranks) {
    dtr_world *w = th_world();
    TH_CHECK(dtr_world_local_size(w) >= 1 && dtr_world_local_size(w) <= th_size(), "local size");
    TH_CHECK(dtr_world_local_rank(w) >= 0 && dtr_world_local_rank(w) < dtr_world_local_size(w),
             "local rank");
    if (dtr_world_node_count(w) == 1) {
        TH_CHECK(dtr_world_local_rank(w) == th_rank() && dtr_world_local_size(w) == th_size(),
                 "one node");
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_query", 60);
    th_add(tc, INI7_the_worlds_group, 1, 0);
    th_add(tc, GRP5_sizes, 1, 0);
    th_add(tc, GRP6_list_order_is_rank_order, 4, 0);
    th_add(tc, GRP12_count, 2, 0);
    th_add(tc, GRP13_info_by_struct_size, 1, 0);
    th_add(tc, GRP14_list, 1, 0);
    th_add(tc, GRP19_find_by_name, 1, 0);
    th_add(tc, GRP22_desc_and_NEW25_tag, 1, 0);
    th_add(tc, GRP24_find_by_tag, 2, 0);
    th_add(tc, GRP25_sequence, 2, 0);
    th_add(tc, CFG13_asked_and_chosen, 1, 0);
    th_add(tc, CFG2_single_name, 1, 0);
    th_add(tc, ENV9_timeouts, 1, 0);
    th_add(tc, ENV11_bad_timeouts, 1, 0);
    th_add(tc, GRP18_local_ranks, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_query", make);
}
