/* Roots are ranks of the group, a refused call leaves the others alone, barriers hold (CHK10,
 * CHK12, COL20, COL21, COL23, OBJ9, BAR4, BAR5, BAR11, DBG13, ENU7). */
#include <stdio.h>
#include <string.h>

#include "harness.h"

/* A group of world ranks 3 and 1, in that order; NULL elsewhere. */
static dtr_group *three_and_one(void) {
    const int ranks[] = { 3, 1 };
    dtr_group *g = NULL;
    TH_OK(dtr_group_create(th_world(), ranks, 2, NULL, &g));
    return g;
}

START_TEST(CHK10_COL20_roots_are_group_ranks) {
    dtr_group *g = three_and_one();
    if (g != NULL) {
        int32_t x = th_rank(), sum = 0, both[2] = { 0 };
        TH_IS(dtr_broadcast(g, dtr_cpu(&x, 1, DTR_I32), 1, NULL, NULL), DTR_OK);
        TH_CHECK(x == 1, "root 1 gave %d", x);
        x = th_rank();
        dtr_buffer in = dtr_cpu(&x, 1, DTR_I32), out = dtr_cpu(&sum, 1, DTR_I32);
        TH_IS(dtr_reduce(g, in, out, DTR_SUM, 0, NULL, NULL), DTR_OK);
        TH_CHECK(sum == (th_rank() == 3 ? 4 : 0), "the sum is %d", sum);
        bool root = dtr_group_rank(g) == 1;
        dtr_buffer all = root ? dtr_cpu(both, 2, DTR_I32) : dtr_cpu(NULL, 0, DTR_I32);
        TH_IS(dtr_gather(g, in, all, 1, NULL, NULL), DTR_OK); /* COL23: count 0 is "not given" */
        TH_CHECK(!root || (both[0] == 3 && both[1] == 1), "gathered %d %d", both[0], both[1]);
        uint64_t before = dtr_group_seq(g);
        const int bad[] = { 2, 3, -1 };
        for (int i = 0; i < 3; i++) {
            TH_IS(dtr_broadcast(g, in, bad[i], NULL, NULL), DTR_ERR_RANK);
            TH_IS(dtr_reduce(g, in, out, DTR_SUM, bad[i], NULL, NULL), DTR_ERR_RANK);
        }
        TH_CHECK(dtr_group_seq(g) == before, "a refused call was counted");
    }
    TH_OK(dtr_group_destroy(g));
}
END_TEST

START_TEST(OBJ9_strings_from_a_group_rank) {
    dtr_group *g = three_and_one();
    if (g != NULL) {
        char text[] = "from world rank 1";
        dtr_bytes in = { text, sizeof text }, out = { NULL, 0 };
        TH_IS(dtr_broadcast_bytes(g, dtr_group_rank(g) == 1 ? &in : NULL, 1, 1, NULL, &out),
              DTR_OK);
        TH_CHECK(out.nbytes == sizeof text && memcmp(out.data, text, sizeof text) == 0,
                 "%zu bytes came", out.nbytes);
        dtr_bytes_free(&out, 1);
        TH_IS(dtr_gather_bytes(g, in, 2, NULL, &out), DTR_ERR_RANK);
    }
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* COL21: counts are read at the root only. */
START_TEST(COL21_counts_at_the_root) {
    int root = th_size() - 1;
    int32_t in[8], out[8 * 8];
    size_t counts[8], n = 0;
    for (int i = 0; i < th_size(); i++) {
        counts[i] = (size_t)i % 3;
        n += counts[i];
    }
    for (int i = 0; i < 8; i++) {
        in[i] = 100 * th_rank() + i;
    }
    bool at_root = th_rank() == root;
    TH_IS(dtr_gatherv(th_group(), dtr_cpu(in, counts[th_rank()], DTR_I32),
                      dtr_cpu(out, at_root ? n : 0, DTR_I32), at_root ? counts : NULL, root, NULL,
                      NULL),
          DTR_OK);
    for (int r = 0, k = 0; r < th_size() && at_root; r++) {
        for (int i = 0; i < (int)counts[r]; i++, k++) {
            TH_CHECK(out[k] == 100 * r + i, "element %d is %d", k, out[k]);
        }
    }
    TH_AGREE();
}
END_TEST

/* "rank 2 (host a, pid 7) has not entered allreduce": of the last rank and no other. */
static bool says_last_has_not_entered(const char *text) {
    char who[32];
    snprintf(who, sizeof who, "rank %d (", th_size() - 1);
    for (const char *at = text; (at = strstr(at, who)) != NULL; at++) {
        const char *end = strchr(at, ')');
        if (end != NULL && strncmp(end, ") has not entered allreduce", 27) == 0) {
            return true;
        }
    }
    return false;
}

/* CHK12, DBG13: no mismatch; the others see who has not come, also where they wait for somebody who
 * waits for it. */
static void refused_on_one_rank(const char *backend) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_coll_options soon = DTR_COLL_OPTIONS_INIT; /* the group's would be its creation's too */
    soon.timeout_s = 0.5;
    o.backend = backend;
    dtr_group *g = NULL;
    float x = 1, y = 0;
    TH_OK(dtr_group_split(th_group(), 0, 0, &o, &g));
    uint64_t before = dtr_group_seq(g);
    dtr_buffer in = dtr_cpu(&x, 1, DTR_F32), out = dtr_cpu(&y, 1, DTR_F32);
    if (th_rank() == th_size() - 1) {
        in.count = 0;
        TH_IS(dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL), DTR_ERR_SHAPE);
        TH_CHECK(dtr_group_seq(g) == before, "the refused call was counted");
    } else {
        TH_IS(dtr_allreduce(g, in, out, DTR_SUM, &soon, NULL), DTR_ERR_TIMEOUT);
        TH_CHECK(says_last_has_not_entered(dtr_last_error_message()), "'%s'",
                 dtr_last_error_message());
    }
    th_barrier();
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}

START_TEST(CHK12_refused_on_one_rank) {
    refused_on_one_rank("cpu:shm");
    refused_on_one_rank("cpu:mpi");
    th_good_allreduce(th_group());
}
END_TEST

/* BAR5, BAR11: nobody is through before all have entered; one clock for all ranks of a machine. */
START_TEST(BAR5_BAR11_nobody_leaves_early) {
    for (int how = 0; how < 4; how++) {
        const char *backend = how % 2 == 0 ? "cpu:shm" : "cpu:mpi";
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        o.backend = backend;
        dtr_group *g = NULL;
        TH_OK(dtr_group_split(th_group(), 0, 0, &o, &g));
        for (int late = 0; late < th_size(); late++) {
            uint64_t entered[64], left[64];
            dtr_work *w = NULL;
            if (th_rank() == late) {
                th_sleep(0.02);
            }
            uint64_t in = (uint64_t)(th_now() * 1e9);
            TH_IS(dtr_barrier(g, NULL, how < 2 ? NULL : &w), DTR_OK);
            TH_IS(how < 2 ? DTR_OK : dtr_work_wait(w, -1), DTR_OK);
            uint64_t out = (uint64_t)(th_now() * 1e9);
            dtr_work_release(w);
            th_gather_u64(in, entered);
            th_gather_u64(out, left);
            for (int r = 0; r < th_size(); r++) {
                TH_CHECK(left[r] >= entered[late], "rank %d left before %d came (%s)", r, late,
                         backend);
            }
            TH_AGREE();
        }
        TH_OK(dtr_group_destroy(g));
    }
}
END_TEST

/* BAR4, COL46: ranks outside a subgroup go on while its barrier waits for a member. */
START_TEST(BAR4_subgroups_alone) {
    dtr_group *pair = NULL, *rest = NULL;
    TH_OK(dtr_group_split(th_group(), th_rank() < 2 ? 0 : 1, 0, NULL, &pair));
    TH_OK(dtr_group_split(th_group(), th_rank() == 1 ? -1 : 0, 0, NULL, &rest));
    dtr_work *w = NULL;
    if (th_rank() == 0) {
        TH_IS(dtr_barrier(pair, NULL, &w), DTR_OK); /* rank 1 comes last */
    }
    if (th_rank() != 1) {
        bool done = true;
        TH_IS(dtr_barrier(rest, NULL, NULL), DTR_OK);
        if (th_rank() == 0) {
            TH_IS(dtr_work_test(w, &done), DTR_OK);
            TH_CHECK(!done, "the pair's barrier did not wait for rank 1");
        }
    }
    th_barrier();
    if (th_rank() == 1) {
        TH_IS(dtr_barrier(pair, NULL, NULL), DTR_OK);
    } else if (th_rank() == 0) {
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
    }
    TH_AGREE();
    dtr_work_release(w);
    TH_OK(dtr_group_destroy(rest));
    TH_OK(dtr_group_destroy(pair));
}
END_TEST

/* ENU7, nccl:A1: the numbers, and each operator on i32 against a loop. */
static int32_t serial(dtr_op op, int32_t a, int32_t b) {
    switch (op) {
    case DTR_PROD:
        return a * b;
    case DTR_MIN:
        return a < b ? a : b;
    case DTR_MAX:
        return a > b ? a : b;
    case DTR_BAND:
        return a & b;
    case DTR_BOR:
        return a | b;
    case DTR_BXOR:
        return a ^ b;
    default:
        return a + b;
    }
}

START_TEST(ENU7_operators) {
    ck_assert(DTR_SUM == 0 && DTR_AVG == 1 && DTR_PROD == 2 && DTR_MIN == 3 && DTR_MAX == 4 &&
              DTR_BAND == 5 && DTR_BOR == 6 && DTR_BXOR == 7 && DTR_PREMUL_SUM == 8);
    for (int op = DTR_SUM; op <= DTR_BXOR; op++) {
        int32_t x = 3 + 5 * th_rank(), got = 0, want = 3;
        for (int r = 1; r < th_size(); r++) {
            want = serial((dtr_op)op, want, 3 + 5 * r);
        }
        want = op == DTR_AVG ? want / th_size() : want;
        TH_IS(dtr_allreduce(th_group(), dtr_cpu(&x, 1, DTR_I32), dtr_cpu(&got, 1, DTR_I32),
                            (dtr_op)op, NULL, NULL),
              DTR_OK);
        TH_CHECK(got == want, "operator %d gave %d, want %d", op, got, want);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "roots", 110);
    th_add(tc, CHK10_COL20_roots_are_group_ranks, 4, 0);
    th_add(tc, OBJ9_strings_from_a_group_rank, 4, 0);
    th_add(tc, COL21_counts_at_the_root, 0, 8);
    th_add(tc, CHK12_refused_on_one_rank, 2, 0);
    th_add(tc, BAR5_BAR11_nobody_leaves_early, 2, 0);
    th_add(tc, BAR4_subgroups_alone, 2, 0);
    th_add(tc, ENU7_operators, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_roots", make);
}
