/* What ranks decide by what they have reported of their GPUs, on the stand-ins: ranks that share a
 * GPU, versions that are too old or differ, no NCCL at all. DTR_TEST_POSE says which of it this run
 * shows; the environment is set before anything of the library is called. */
#include <stdio.h>
#include <string.h>

#include <dtr/nccl.h>

#include "device_data.h"
#include "fake_cuda.h"
#include "harness.h"

enum { N = 500 };

static const char *pose(void) {
    const char *p = getenv("DTR_TEST_POSE");
    return p != NULL ? p : "";
}

static bool poses(const char *what) {
    return strcmp(pose(), what) == 0;
}

/* What the warning and the refusal say of each. */
static const char *reason(void) {
    static char last[128];
    snprintf(last, sizeof last, "NCCL is not available on rank %d (world %d): %s", th_size() - 1,
             th_size() - 1, poses("driver") ? "no driver" : "libnccl.so.2 is version 2.17");
    return poses("last") || poses("driver") ? last
           : poses("old")                   ? "2.18 is needed"
           : poses("mixed")                 ? "different versions of NCCL: rank 0 has"
           : poses("none")                  ? "NCCL is not available on rank 0"
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
    void *handle = NULL;
    TH_IS(dtr_group_nccl_comm(th_group(), gpu, &handle), DTR_ERR_UNSUPPORTED);
    TH_CHECK(handle == NULL, "a refused call has written *comm");
    drop(b);
    TH_AGREE();
}
END_TEST

/* GP4, GP9, CFG15, NCC12, NCC15, NCC17: where nccl is named, the group is refused on all ranks,
 * with the reason and a way out. */
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

/* GP11, GP4: a group of one rank needs no NCCL: not when there is none, not when it is too old.
 * Every collective, without and with a work, and in a scope. */
static dtr_status alone(dtr_group *g, int kind, dtr_buffer in, dtr_buffer out, dtr_work **w) {
    const size_t counts[] = { N };
    switch (kind) {
    case 0:
        return dtr_allreduce(g, in, out, DTR_SUM, NULL, w);
    case 1:
        return dtr_reduce(g, in, out, DTR_AVG, 0, NULL, w);
    case 2:
        return dtr_allgather(g, in, out, NULL, w);
    case 3:
        return dtr_allgatherv(g, in, out, counts, NULL, w);
    case 4:
        return dtr_gather(g, in, out, 0, NULL, w);
    case 5:
        return dtr_gatherv(g, in, out, counts, 0, NULL, w);
    case 6:
        return dtr_scatter(g, in, out, 0, NULL, w);
    case 7:
        return dtr_scatterv(g, in, counts, out, 0, NULL, w);
    case 8:
        return dtr_reduce_scatter(g, in, out, DTR_MAX, NULL, w);
    case 9:
        return dtr_reduce_scatterv(g, in, counts, out, DTR_MIN, NULL, w);
    case 10:
        return dtr_alltoall(g, in, out, NULL, w);
    case 11:
        return dtr_alltoallv(g, in, counts, out, counts, NULL, w);
    default:
        return dtr_broadcast(g, out, 0, NULL, w);
    }
}

START_TEST(GP11_one_rank) {
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), th_rank(), 0, NULL, &g));
    for (int kind = 0; kind <= 12; kind++) {
        for (int how = 0; how < 3; how++) {
            dtr_buffer in = filled(N, (float)kind), out = filled(N, 12);
            dtr_work *w = NULL;
            if (how == 2) {
                TH_IS(dtr_coalesce_begin(g), DTR_OK);
            }
            TH_IS(alone(g, kind, in, out, how == 1 ? &w : NULL), DTR_OK);
            if (how == 2) {
                TH_IS(dtr_coalesce_end(g, &w), DTR_OK);
            }
            TH_IS(w != NULL ? dtr_work_synchronize(w, -1) : DTR_OK, DTR_OK);
            TH_IS(dtr_work_release(w), DTR_OK);
            check(out, kind == 12 ? 12 : (float)kind, 1, "alone");
            drop(in);
            drop(out);
        }
    }
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
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
    if (poses("wanted")) {
        th_add(tc, GP9_wanted_by_the_user, 2, 0);
    } else {
        th_add(tc, GP9_named, 2, 0);
    }
    if (!poses("wanted") && !poses("driver")) { /* all have memory on a device */
        th_add(tc, GP5_automatic, 2, 0);
        th_add(tc, GP11_one_rank, 1, 0);
    }
}

int main(int argc, char **argv) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    rank = rank != NULL ? rank : getenv("PMI_RANK");
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    size = size != NULL ? size : getenv("PMI_SIZE");
    const int last = size != NULL ? atoi(size) - 1 : 0;
    const int r = rank != NULL ? atoi(rank) : -1;
    if (rank != NULL && poses("wanted")) {
        setenv("NCCL_HOSTID", rank, 1);
    } else if (poses("mixed") && r == 1) {
        setenv("DTR_FAKE_NCCL_VERSION", "22203", 1);
    } else if (poses("last") && r == last) {
        setenv("DTR_FAKE_NCCL_VERSION", "21701", 1);
    } else if (poses("driver") && r == last) {
        setenv("DTR_FAKE_CUDA_DRIVER", "0", 1);
    }
    return th_main(argc, argv, "nccl world", make);
}
