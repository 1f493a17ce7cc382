/* What groups decide without other ranks: the backend text, names of backends, what an agreement
 * makes of everybody's entries, and calls on NULL handles. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/coll.h>
#include <dtr/nccl.h>

#include "engine/engine.h"
#include "group/groups.h"
#include "unit.h"

/* ---- backend text ---- */

static dtr_status parse(const char *text, const char *cpu, const char *cuda) {
    dtr__selection sel;
    dtr_status s = dtr__select_parse(NULL, text, &sel);
    if (s == DTR_OK) {
        ck_assert_str_eq(sel.name[DTR_CPU], cpu);
        ck_assert_str_eq(sel.name[DTR_CUDA], cuda);
    }
    return s;
}

START_TEST(CFG3_text) {
    ck_assert_int_eq(parse("cpu:mpi,cuda:nccl", "mpi", "nccl"), DTR_OK);
    ck_assert_int_eq(parse("cuda:stage,cpu:shm", "shm", "stage"), DTR_OK);
    const char *bad[] = { "cpu:mpi:x", "cpu:mpi,shm", "tpu:mpi", "cpu:", ",",     ":",
                          "cpu:mpi,",  ",cpu:mpi",    ":mpi",    "",     "cpu :", "mpi,mpi" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_msg(parse(bad[i], "", "") == DTR_ERR_ARG, "\"%s\" was accepted", bad[i]);
        ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), bad[i]));
    }
}
END_TEST

START_TEST(CFG2_single_name) {
    ck_assert_int_eq(parse("mpi", "mpi", ""), DTR_OK);
    ck_assert_int_eq(parse("nccl", "", "nccl"), DTR_OK);
    ck_assert_int_eq(parse("auto", "auto", "auto"), DTR_OK);
}
END_TEST

START_TEST(CFG4_device_twice) {
    ck_assert_int_eq(parse("cpu:mpi,cpu:shm", "", ""), DTR_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "twice"));
    ck_assert_int_eq(parse("cuda:nccl,CUDA:nccl", "", ""), DTR_ERR_ARG);
}
END_TEST

START_TEST(CFG6_mixed_case) {
    ck_assert_int_eq(parse("Cpu:Auto", "auto", ""), DTR_OK);
    ck_assert_int_eq(parse("CUDA:Nccl,cPU:MPI", "mpi", "nccl"), DTR_OK);
    ck_assert_int_eq(parse("Self", "self", ""), DTR_OK);
}
END_TEST

START_TEST(CFG5_unknown_names) {
    ck_assert_int_eq(dtr__select_known(NULL, "cpu:nope"), DTR_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "self, "));
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "mpi"));
    ck_assert_int_eq(dtr__select_known(NULL, "nope"), DTR_ERR_UNSUPPORTED);
    /* ENU5: which backend serves which device is fixed. */
    ck_assert_int_eq(dtr__select_known(NULL, "cpu:nccl"), DTR_ERR_UNSUPPORTED);
    ck_assert_int_eq(dtr__select_known(NULL, "cpu:stage"), DTR_ERR_UNSUPPORTED);
    ck_assert_int_eq(dtr__select_known(NULL, "cuda:mpi"), DTR_ERR_UNSUPPORTED);
    ck_assert_int_eq(dtr__select_known(NULL, DTR__DEFAULT_BACKENDS), DTR_OK);
}
END_TEST

START_TEST(ENU1_names) {
    ck_assert(dtr_backend_available(NULL, "self"));
    ck_assert(dtr_backend_available(NULL, "mpi"));
    ck_assert(dtr_backend_available(NULL, "MPI")); /* ENU2 */
    const char *no[] = { "gloo", "ucc", "nope", "undefined", "auto", "", "cpu:mpi" };
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++) {
        ck_assert_msg(!dtr_backend_available(NULL, no[i]), "\"%s\" is available", no[i]);
    }
    ck_assert(!dtr_backend_available(NULL, NULL));
}
END_TEST

/* ENU3, INI18, NCC12: a fact of the build, with a GPU (or a stand-in) and without. */
START_TEST(INI18_of_the_build) {
    ck_assert_int_eq(dtr_backend_available(NULL, "nccl"), TEST_HAVE_NCCL);
    ck_assert_int_eq(dtr_backend_available(NULL, "stage"), TEST_HAVE_CUDA);
    if (!TEST_HAVE_NCCL) {
        ck_assert_uint_eq(dtr_nccl_version(), 0);
    }
    const char *gpus = getenv("DTR_TEST_GPUS"); /* how many this run shows */
    ck_assert(gpus == NULL || dtr_device_count(DTR_CUDA) == atoi(gpus));
}
END_TEST

/* ---- what an agreement decides ---- */

enum { N = 4 };
static dtr__entry entries[N];
static const dtr__entry *entry[N];
static dtr__answer answer[N];
static dtr__sort_key place[N];
static char text[DTR__AGREEMENT_TEXT];
static uint64_t next_uid;
static const int ranks[N] = { 0, 1, 2, 3 };

static void all_alike(void) {
    memset(entries, 0, sizeof(entries));
    next_uid = 100;
    for (int i = 0; i < N; i++) {
        entry[i] = &entries[i];
        for (int f = 0; f < DTR__FIELD_COUNT; f++) {
            dtr__field_set(&entries[i].field[f], "same");
        }
        entries[i].unnamed = 1;
    }
}

static void decide(void) {
    for (int i = 0; i < N; i++) {
        place[i] = dtr__agreement_place(entries[i].index, entries[i].key, i);
    }
    dtr__agreement_decide("dtr_group_x", ranks, entry, N, &next_uid, answer, place, text);
}

START_TEST(NEW13_largest_counter) {
    all_alike();
    uint64_t counters[N] = { 3, 7, 5, 0 };
    for (int i = 0; i < N; i++) {
        entries[i].counter = counters[i];
        entries[i].index = i < 2 ? 0 : -1;
    }
    decide();
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(answer[i].status, DTR_OK);
        ck_assert_uint_eq(answer[i].counter, 8);
    }
    ck_assert_uint_eq(answer[0].number, 8);
    ck_assert_uint_eq(answer[0].uid, answer[1].uid);
}
END_TEST

START_TEST(NEW13_named_groups_leave_the_counter) {
    all_alike();
    for (int i = 0; i < N; i++) {
        entries[i].counter = (uint64_t)i;
        entries[i].unnamed = 0;
    }
    decide();
    for (int i = 0; i < N; i++) {
        ck_assert_uint_eq(answer[i].counter, i);
    }
}
END_TEST

START_TEST(NEW35_colours_are_numbered_ascending) {
    all_alike();
    int colors[N] = { 70, 5, -1, 70 };
    int64_t keys[N] = { 2, 0, 0, 1 };
    for (int i = 0; i < N; i++) {
        entries[i].index = colors[i];
        entries[i].key = keys[i];
    }
    decide();
    ck_assert_uint_eq(answer[1].number, 1);
    ck_assert_uint_eq(answer[0].number, 2);
    ck_assert_uint_eq(answer[3].number, 2);
    ck_assert_uint_eq(answer[2].counter, 2);
    ck_assert_uint_ne(answer[0].uid, answer[1].uid);
    const int in_order[N] = { 2, 1, 3, 0 }, ends[N] = { 1, 2, 4, 4 };
    for (int k = 0; k < N; k++) {
        ck_assert_int_eq(place[k].at, in_order[k]);
        ck_assert_int_eq(dtr__agreement_group_end(place, N, k), ends[k]);
    }
}
END_TEST

START_TEST(NEW37_values_of_both_sides) {
    all_alike();
    dtr__field_set(&entries[2].field[DTR__FIELD_LIST], "{1,0}");
    decide();
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(answer[i].status, DTR_ERR_MISMATCH);
    }
    ck_assert_ptr_nonnull(strstr(text, "same on ranks 0, 1, 3, but {1,0} on rank 2"));
    ck_assert_uint_eq(next_uid, 100);
}
END_TEST

START_TEST(NEW37_long_values_differ_beyond_the_cut) {
    char a[600], b[600];
    all_alike();
    memset(a, 'x', sizeof(a) - 1);
    a[sizeof(a) - 1] = '\0';
    memcpy(b, a, sizeof(a));
    b[sizeof(b) - 2] = 'y';
    for (int i = 0; i < N; i++) {
        dtr__field_set(&entries[i].field[DTR__FIELD_LIST], i == 3 ? b : a);
    }
    decide();
    ck_assert_int_eq(answer[0].status, DTR_ERR_MISMATCH);
}
END_TEST

START_TEST(NEW38_a_failure_is_everybodys) {
    all_alike();
    entries[1].status = DTR_ERR_NOMEM;
    snprintf(entries[1].text, sizeof(entries[1].text), "no memory for a pony");
    decide();
    ck_assert_int_eq(answer[1].status, DTR_ERR_NOMEM);
    ck_assert_int_eq(answer[0].status, DTR_ERR_REMOTE);
    ck_assert_ptr_nonnull(strstr(text, "rank 1"));
    ck_assert_ptr_nonnull(strstr(text, "DTR_ERR_NOMEM"));
    ck_assert_ptr_nonnull(strstr(text, "pony"));
}
END_TEST

START_TEST(CFG16_disagreement_comes_before_a_failure) {
    all_alike();
    dtr__field_set(&entries[3].field[DTR__FIELD_BACKEND], "cpu:nope");
    entries[3].status = DTR_ERR_UNSUPPORTED;
    decide();
    ck_assert_int_eq(answer[0].status, DTR_ERR_MISMATCH);
    ck_assert_int_eq(answer[3].status, DTR_ERR_MISMATCH);
}
END_TEST

START_TEST(NEW16_name_live_anywhere) {
    all_alike();
    entries[2].name_live = 1;
    decide();
    ck_assert_int_eq(answer[0].status, DTR_ERR_STATE);
    ck_assert_int_eq(answer[2].status, DTR_ERR_STATE);
    ck_assert_ptr_nonnull(strstr(text, "rank 2"));
}
END_TEST

START_TEST(NEW23_tagged_group_on_all_members_or_none) {
    all_alike();
    for (int i = 0; i < N; i++) {
        entries[i].index = i / 2;
        entries[i].found = i < 2 ? 77 : 0;
    }
    decide();
    ck_assert(answer[0].reuse && answer[1].reuse && !answer[2].reuse);
    ck_assert_uint_eq(answer[0].uid, 77);
    ck_assert_uint_eq(answer[2].number, 1); /* only what is made gets a number */
    entries[1].found = 0;
    decide();
    ck_assert_int_eq(answer[3].status, DTR_ERR_MISMATCH);
}
END_TEST

START_TEST(STO13_many_missing_ranks_are_counted) {
    enum { MANY = 40 };
    dtr__some_ranks some = { 0 };
    char out[256] = "";
    for (int i = 1; i < MANY; i++) {
        dtr__some_ranks_add(&some, i);
    }
    dtr__append_ranks(out, sizeof(out), &some);
    ck_assert_ptr_nonnull(strstr(out, "ranks 1, 2, 3"));
    ck_assert_ptr_nonnull(strstr(out, "and 23 more"));
}
END_TEST

/* ---- NULL handles ---- */

START_TEST(NULL_group) {
    ck_assert_int_eq(dtr_group_rank(NULL), -1); /* GRP4 */
    ck_assert_int_eq(dtr_group_size(NULL), -1); /* GRP5 */
    ck_assert_int_eq(dtr_group_world_rank(NULL, 0), -1);
    ck_assert_int_eq(dtr_group_rank_of(NULL, 0), -1);
    ck_assert_uint_eq(dtr_group_seq(NULL), 0);
    ck_assert_str_eq(dtr_group_name(NULL), "");        /* GRP17 */
    ck_assert_int_eq(dtr_group_destroy(NULL), DTR_OK); /* DES1 */
    ck_assert_int_eq(dtr_group_status(NULL), DTR_NOT_MEMBER);
    dtr_group_info info = DTR_GROUP_INFO_INIT;
    info.rank = 77;
    ck_assert_int_eq(dtr_group_get_info(NULL, &info), DTR_NOT_MEMBER); /* CFG14 */
    ck_assert_int_eq(info.rank, 77);
    ck_assert_int_eq(dtr_group_get_info(NULL, NULL), DTR_NOT_MEMBER); /* membership comes first */
    ck_assert_int_eq(dtr_group_abort(NULL, "x"), DTR_NOT_MEMBER);
    dtr_group *g = (dtr_group *)&info;
    ck_assert_int_eq(dtr_group_split(NULL, 0, 0, NULL, &g), DTR_NOT_MEMBER);
    ck_assert_ptr_null(g);
    int index = 5;
    g = (dtr_group *)&info;
    ck_assert_int_eq(dtr_group_subgroups(NULL, -3, NULL, &g, &index), DTR_NOT_MEMBER);
    ck_assert_ptr_null(g);
    ck_assert_int_eq(index, 5);
}
END_TEST

START_TEST(NULL_world) {
    dtr_group *g = (dtr_group *)&g;
    int n = 9, list[1] = { 0 };
    ck_assert_int_eq(dtr_world_destroy(NULL), DTR_OK); /* DES3 */
    ck_assert_ptr_null(dtr_world_group(NULL));         /* ENU11, INI20 */
    ck_assert_int_eq(dtr_group_create(NULL, list, 1, NULL, &g), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_group_subgroups_by_list(NULL, NULL, NULL, 0, NULL, &g, NULL), DTR_ERR_ARG);
    ck_assert_ptr_eq(g, &g);
    ck_assert_int_eq(dtr_world_group_count(NULL), -1); /* INI13 */
    ck_assert_int_eq(dtr_world_list_groups(NULL, NULL, 0, &n), DTR_ERR_ARG);
    ck_assert_int_eq(n, 9);
    ck_assert_ptr_null(dtr_world_find_group(NULL, "world"));
    ck_assert_ptr_null(dtr_world_find_tagged(NULL, "t", list, 1));
}
END_TEST

static int serves_anything(const dtr_group *g, const dtr__call *call, const char **why) {
    (void)g, (void)call, (void)why;
    return 1;
}

/* BKD2: a backend is never handed a kind that it does not list, whatever its score says. */
START_TEST(BKD2_kind_that_a_backend_lacks) {
    const uint64_t kinds = DTR__KINDS_BASIC & ~DTR__KIND_BIT(ALLTOALLV);
    const dtr__backend old = { .name = "old", .kinds = kinds, .score = serves_anything };
    dtr_group g = { .backends = { .table = { &old }, .n = 1, .chosen = "cpu:old" } };
    dtr__call call = { .kind = DTR__K_ALLTOALL };
    int best = -1;
    ck_assert_int_eq(dtr__choose_backend(&g, &call, &best), DTR_OK);
    ck_assert_int_eq(best, 0);
    call.kind = DTR__K_ALLTOALLV;
    ck_assert_int_eq(dtr__choose_backend(&g, &call, &best), DTR_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "alltoallv"));
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "it has no such operation"));
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("groups");
    const TTest *const tests[] = {
        CFG3_text,
        CFG2_single_name,
        CFG4_device_twice,
        CFG6_mixed_case,
        CFG5_unknown_names,
        ENU1_names,
        INI18_of_the_build,
        NEW13_largest_counter,
        NEW13_named_groups_leave_the_counter,
        NEW35_colours_are_numbered_ascending,
        NEW37_values_of_both_sides,
        NEW37_long_values_differ_beyond_the_cut,
        NEW38_a_failure_is_everybodys,
        CFG16_disagreement_comes_before_a_failure,
        NEW16_name_live_anywhere,
        NEW23_tagged_group_on_all_members_or_none,
        STO13_many_missing_ranks_are_counted,
        NULL_group,
        NULL_world,
        BKD2_kind_that_a_backend_lacks,
    };
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        tcase_add_test(tc, tests[i]);
    }
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("groups", make);
}
