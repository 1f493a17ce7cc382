/* Several groups by one call: split, equal chunks, lists. */
#include "groups_common.h"

static void good(dtr_group *g) {
    if (g != NULL) {
        int64_t in = 1, out = 0;
        TH_IS(dtr_allreduce(g, dtr_cpu(&in, 1, DTR_I64), dtr_cpu(&out, 1, DTR_I64), DTR_SUM, NULL,
                            NULL),
              DTR_OK);
        TH_CHECK(out == dtr_group_size(g), "%lld members", (long long)out);
    }
}

/* ---- split ---- */

START_TEST(NEW35_colours_and_keys) {
    unsigned long next = next_number();
    int me = th_rank(), size = th_size(), color = me % 2;
    dtr_group *g = NULL;
    TH_IS(dtr_group_split(dtr_world_group(th_world()), color, -me, NULL, &g), DTR_OK);
    int members = (size + (color == 0)) / 2, place = members - 1 - me / 2;
    TH_CHECK(dtr_group_size(g) == members && dtr_group_rank(g) == place, "rank %d of %d",
             dtr_group_rank(g), dtr_group_size(g));
    /* Numbered in ascending colour order, though colour 1 may have come first. */
    TH_CHECK(is_named(g, next + (unsigned long)color), "named %s", dtr_group_name(g));
    char desc[64];
    snprintf(desc, sizeof desc, "world:split:%d", color);
    TH_CHECK(strcmp(info_of(g).desc, desc) == 0, "desc '%s'", info_of(g).desc);
    good(g);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(next_number() == next + 3 - (size == 1), "counters moved by the groups made");
    TH_AGREE();
}
END_TEST

START_TEST(NEW35_equal_keys_keep_the_parents_order) {
    dtr_group *parent = made(LIST(2, 0, 1), NULL), *g = NULL;
    if (parent != NULL) {
        TH_IS(dtr_group_split(parent, 4, 9, NULL, &g), DTR_OK);
        for (int i = 0; i < 3; i++) {
            TH_CHECK(dtr_group_world_rank(g, i) == dtr_group_world_rank(parent, i), "rank %d", i);
        }
        good(g);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_group_destroy(parent), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(NEW35_no_colour) {
    dtr_group *g = UNTOUCHED;
    int out = th_rank() == th_size() - 1;
    TH_IS(dtr_group_split(dtr_world_group(th_world()), out ? DTR_COLOR_NONE : 3, 0, NULL, &g),
          DTR_OK);
    TH_CHECK((g == NULL) == out, "handle of the rank without colour");
    TH_CHECK(out || dtr_group_size(g) == th_size() - 1, "size %d", dtr_group_size(g));
    good(g);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    /* Nobody has a colour: nothing is made, nothing numbered. */
    unsigned long next = next_number();
    g = UNTOUCHED;
    TH_IS(dtr_group_split(dtr_world_group(th_world()), -th_rank() - 1, 0, NULL, &g), DTR_OK);
    TH_CHECK(g == NULL && next_number() == next + 1, "nothing should have been made");
    TH_AGREE();
}
END_TEST

START_TEST(NEW35_settings) {
    dtr_group_options o = options(7, "halves");
    o.desc = "mine";
    dtr_group *g = NULL, *all = NULL;
    TH_IS(dtr_group_split(dtr_world_group(th_world()), th_rank() % 2, 0, &o, &g), DTR_OK);
    TH_CHECK(strcmp(dtr_group_name(g), "halves") == 0 && strcmp(info_of(g).desc, "mine") == 0,
             "name '%s', desc '%s'", dtr_group_name(g), info_of(g).desc);
    TH_CHECK(info_of(g).timeout_cpu_s == 7, "timeout");
    TH_IS(dtr_group_split(dtr_world_group(th_world()), 0, 0, &o, &all), DTR_ERR_STATE);
    TH_IS(dtr_group_split(dtr_world_group(th_world()), 0, 0, NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(NEW23_split_with_tag) {
    dtr_group_options o = options(0, NULL);
    o.tag = "split23";
    dtr_group *world = dtr_world_group(th_world()), *g = NULL, *again = NULL;
    TH_IS(dtr_group_split(world, th_rank() % 2, 0, &o, &g), DTR_OK);
    TH_IS(dtr_group_split(world, th_rank() % 2, 0, &o, &again), DTR_OK);
    TH_CHECK(g == again, "not the same handle");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    good(again);
    TH_IS(dtr_group_destroy(again), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- chunks ---- */

START_TEST(NEW28_chunks) {
    unsigned long next = next_number();
    dtr_group *g = NULL;
    int index = -9;
    TH_IS(dtr_group_subgroups(dtr_world_group(th_world()), 2, NULL, &g, &index), DTR_OK);
    TH_CHECK(index == th_rank() / 2 && dtr_group_rank(g) == th_rank() % 2, "chunk %d, rank %d",
             index, dtr_group_rank(g));
    TH_CHECK(is_named(g, next + (unsigned long)index), "NEW34: named %s", dtr_group_name(g));
    good(g);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(next_number() == next + (unsigned long)th_size() / 2 + 1, "NEW34: counters");
    TH_AGREE();
}
END_TEST

START_TEST(NEW28_chunks_of_a_list) {
    dtr_group *parent = made(LIST(3, 1, 0, 2), NULL), *g = NULL;
    int index = -9;
    if (parent != NULL) {
        TH_IS(dtr_group_subgroups(parent, 2, NULL, &g, &index), DTR_OK);
        bool first = th_rank() == 3 || th_rank() == 1;
        TH_CHECK(index == !first, "index %d", index);
        TH_CHECK(dtr_group_world_rank(g, 0) == (first ? 3 : 0), "first member");
        TH_CHECK(dtr_group_world_rank(g, 1) == (first ? 1 : 2), "second member");
        good(g);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_group_destroy(parent), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(NEW27_chunks_with_tag) {
    dtr_group_options o = options(0, NULL);
    o.tag = "new27";
    dtr_group *world = dtr_world_group(th_world()), *g = NULL, *again = NULL;
    int count = dtr_world_group_count(th_world());
    TH_IS(dtr_group_subgroups(world, 2, &o, &g, NULL), DTR_OK);
    TH_IS(dtr_group_subgroups(world, 2, &o, &again, NULL), DTR_OK);
    TH_CHECK(g == again && dtr_world_group_count(th_world()) == count + 1, "find or create");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_group_destroy(again), DTR_OK);
    TH_AGREE();
}
END_TEST

static void chunks_refused(dtr_group *parent, int size, const char *word) {
    dtr_group *g = UNTOUCHED;
    int index = -9;
    TH_IS(dtr_group_subgroups(parent, size, NULL, &g, &index), DTR_ERR_ARG);
    TH_MESSAGE(word);
    TH_CHECK(g == UNTOUCHED && index == -9, "outputs touched");
}

START_TEST(NEW30_bad_sizes) {
    dtr_group *world = dtr_world_group(th_world());
    chunks_refused(world, -1, "positive");
    chunks_refused(world, th_size() + 1, "only");
    if (th_size() > 2) {
        chunks_refused(world, th_size() - 1, "divide");
    }
    if (dtr_device_count(DTR_CUDA) == 0) {
        chunks_refused(world, 0, "CUDA"); /* NEW29 */
    }
    TH_AGREE();
}
END_TEST

START_TEST(NEW31_any_parent) {
    dtr_group *parent = made(LIST(1, 0), NULL), *g = NULL;
    int index = -9;
    if (parent != NULL) {
        TH_IS(dtr_group_subgroups(parent, 1, NULL, &g, &index), DTR_OK);
        TH_CHECK(dtr_group_size(g) == 1 && index == 1 - th_rank(), "index %d", index);
        good(g);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_group_destroy(parent), DTR_OK);
    TH_AGREE();
}
END_TEST

START_TEST(NEW34_settings) {
    dtr_group_options o = options(9, NULL), sub = options(0, "part");
    o.backend = "CPU:mpi";
    o.desc = "whole";
    dtr_group *parent = made(NULL, th_size(), &o), *g = NULL;
    unsigned long next = next_number();
    int index = -9;
    TH_IS(dtr_group_subgroups(parent, 1, &sub, &g, &index), DTR_OK);
    dtr_group_info i = info_of(g);
    char name[32];
    snprintf(name, sizeof name, "part.%d", index);
    TH_CHECK(strcmp(i.name, name) == 0, "named %s", i.name);
    TH_CHECK(i.timeout_cpu_s == 9 && strcmp(i.backend_asked, "cpu:mpi") == 0, "%g s on %s",
             i.timeout_cpu_s, i.backend_asked);
    TH_CHECK(strcmp(i.desc, "whole") == 0, "desc '%s'", i.desc);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(next_number() == next + 1, "named groups take no number");
    TH_IS(dtr_group_destroy(parent), DTR_OK);
    char longest[64];
    memset(longest, 'n', 63);
    longest[63] = '\0';
    sub.name = longest;
    g = UNTOUCHED;
    TH_IS(dtr_group_subgroups(dtr_world_group(th_world()), 1, &sub, &g, &index), DTR_ERR_ARG);
    TH_CHECK(g == UNTOUCHED, "output touched");
    TH_AGREE();
}
END_TEST

/* ---- lists ---- */

START_TEST(NEW32_lists) {
    const int a[] = { 0, 2 }, b[] = { 1 };
    const int *lists[] = { a, b };
    const int lens[] = { 2, 1 };
    unsigned long next = next_number();
    dtr_group *g = UNTOUCHED;
    int index = -9, me = th_rank(), want = me == 1 ? 1 : me == 0 || me == 2 ? 0 : -1;
    TH_IS(dtr_group_subgroups_by_list(th_world(), lists, lens, 2, NULL, &g, &index), DTR_OK);
    TH_CHECK(index == want && (g == NULL) == (want < 0), "index %d of rank %d", index, me);
    TH_CHECK(g == NULL || is_named(g, next + (unsigned long)index), "named %s", dtr_group_name(g));
    good(g);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(next_number() == next + 3, "NEW34: counters of all callers");
    TH_AGREE();
}
END_TEST

static void lists_refused(const int *const *lists, const int *lens, int n, dtr_status want,
                          const char *word) {
    dtr_group *g = UNTOUCHED;
    int index = -9;
    TH_IS(dtr_group_subgroups_by_list(th_world(), lists, lens, n, NULL, &g, &index), want);
    TH_MESSAGE(word);
    TH_CHECK(g == UNTOUCHED && index == -9, "outputs touched (%s)", word);
}

START_TEST(NEW33_bad_lists) {
    const int a[] = { 0, 1 }, b[] = { 1, 2 }, far[] = { 99 };
    const int *twice[] = { a, b }, *beyond[] = { a, far }, *none[] = { a, NULL };
    const int lens[] = { 2, 2 }, one[] = { 2, 1 }, empty[] = { 2, 0 };
    unsigned long next = next_number();
    int count = dtr_world_group_count(th_world());
    lists_refused(twice, lens, 2, DTR_ERR_ARG, "list 1");
    lists_refused(beyond, one, 2, DTR_ERR_RANK, "list 1");
    lists_refused(twice, empty, 2, DTR_ERR_ARG, "at least one");
    lists_refused(none, lens, 2, DTR_ERR_ARG, "NULL");
    lists_refused(twice, lens, 0, DTR_ERR_ARG, "n_lists"); /* NEW32 */
    lists_refused(NULL, lens, 2, DTR_ERR_ARG, "lists");
    lists_refused(twice, NULL, 2, DTR_ERR_ARG, "lens");
    TH_CHECK(dtr_world_group_count(th_world()) == count, "something was made");
    TH_CHECK(next_number() == next + 1, "a counter moved");
    TH_AGREE();
}
END_TEST

START_TEST(NEW34_lists_with_name) {
    const int a[] = { 1 }, b[] = { 0 };
    const int *lists[] = { a, b };
    const int lens[] = { 1, 1 };
    dtr_group_options o = options(3, "shard");
    dtr_group *g = NULL;
    int index = -9;
    TH_IS(dtr_group_subgroups_by_list(th_world(), lists, lens, 2, &o, &g, &index), DTR_OK);
    TH_CHECK(th_rank() > 1 ||
                 strcmp(dtr_group_name(g), th_rank() == 1 ? "shard.0" : "shard.1") == 0,
             "named %s", dtr_group_name(g));
    TH_CHECK(g == NULL || info_of(g).timeout_cpu_s == 3, "timeout");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "groups_split", 60);
    th_add(tc, NEW35_colours_and_keys, 1, 0);
    th_add(tc, NEW35_equal_keys_keep_the_parents_order, 3, 0);
    th_add(tc, NEW35_no_colour, 2, 0);
    th_add(tc, NEW35_settings, 1, 0);
    th_add(tc, NEW23_split_with_tag, 1, 0);
    if (th_size() % 2 == 0) {
        th_add(tc, NEW28_chunks, 2, 0);
        th_add(tc, NEW27_chunks_with_tag, 2, 0);
    }
    th_add(tc, NEW28_chunks_of_a_list, 4, 0);
    th_add(tc, NEW30_bad_sizes, 1, 0);
    th_add(tc, NEW31_any_parent, 2, 0);
    th_add(tc, NEW34_settings, 1, 0);
    th_add(tc, NEW32_lists, 3, 0);
    th_add(tc, NEW33_bad_lists, 3, 0);
    th_add(tc, NEW34_lists_with_name, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "groups_split", make);
}
