/* What the table of a world's GPUs decides, on the stand-ins: ranks that share a GPU, versions that
 * are too old or differ, no NCCL at all. DTR_TEST_POSE says which of it this run shows; the
 * environment is set before anything of the library is called. */
#include <stdio.h>
#include <string.h>

#include "device_data.h"
#include "fake_cuda.h"
#include "harness.h"

enum { N = 500 };

static const char *pose(void) {
    const char *p = getenv("DTR_TEST_POSE");
    return p != NULL ? p : "";
}

/* What the warning and the refusal say of each. */
static const char *reason(void) {
    return strcmp(pose(), "old") == 0     ? "2.18 is needed"
           : strcmp(pose(), "mixed") == 0 ? "different versions of NCCL: rank 0 has"
           : strcmp(pose(), "none") == 0  ? "NCCL is not available on rank 0"
                                          : "share one GPU";
}

/* GP4, GP5, GP6, NCC12, NCC15, NCC17, reliability:FI38: an automatic group goes by stage on all
 * ranks, with one warning and without a call of NCCL. */
START_TEST(GP5_automatic) {
    dtr_buffer b = filled(N, 1);
    th_log_clear();
    dtr_fake_cuda_log_start();
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_MAX, NULL, NULL), DTR_OK);
    check(b, 1, (float)th_size(), "sum");
    TH_CHECK(dtr_fake_cuda_log_count("ncclGetUniqueId") == 0, "NCCL was asked");
    TH_CHECK(dtr_fake_cuda_log_count("ncclCommInit") == 0, "NCCL was started");
    int warnings = th_log_count("travel through host memory");
    TH_CHECK(warnings == (dtr_group_rank(th_group()) == 0), "%d warnings", warnings);
    TH_CHECK(warnings == th_log_count(reason()), "the warning does not say: %s", reason());
    TH_CHECK((dtr_nccl_version() == 0) == (strcmp(pose(), "none") == 0), "version %llx",
             (unsigned long long)dtr_nccl_version());
    drop(b);
    TH_AGREE();
}
END_TEST

/* GP9, CFG15, NCC12, NCC15, NCC17: where nccl is named, the group is refused on all ranks, with the
 * reason and a way out. */
START_TEST(GP9_named) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    o.backend = "cpu:auto,cuda:nccl";
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE(reason());
    TH_MESSAGE("cuda:stage");
    TH_CHECK(g == NULL, "there is a group");
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* GP9: the user lets NCCL put several ranks on a GPU: an automatic group does not rely on it, one
 * that names nccl does. */
START_TEST(GP9_wanted_by_the_user) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    dtr_buffer b = filled(N, 1);
    o.backend = "cpu:auto,cuda:nccl";
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), &o, &g));
    dtr_fake_cuda_log_start();
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_OK);
    check(b, 1, (float)th_size(), "sum");
    TH_CHECK(dtr_fake_cuda_log_count("ncclCommInitRankConfig rank") == 1, "NCCL was not started");
    TH_OK(dtr_group_destroy(g));
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_MAX, NULL, NULL), DTR_OK);
    TH_CHECK(dtr_fake_cuda_log_count("ncclAllReduce rank") == 1, "the automatic group used NCCL");
    drop(b);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl world", 110);
    if (strcmp(pose(), "wanted") == 0) {
        th_add(tc, GP9_wanted_by_the_user, 2, 0);
    } else {
        th_add(tc, GP5_automatic, 2, 0);
        th_add(tc, GP9_named, 2, 0);
    }
}

int main(int argc, char **argv) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    rank = rank != NULL ? rank : getenv("PMI_RANK");
    if (rank != NULL && strcmp(pose(), "wanted") == 0) {
        setenv("NCCL_HOSTID", rank, 1);
    } else if (rank != NULL && strcmp(pose(), "mixed") == 0 && atoi(rank) == 1) {
        setenv("DTR_FAKE_NCCL_VERSION", "22203", 1);
    }
    return th_main(argc, argv, "nccl world", make);
}
