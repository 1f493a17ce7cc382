/* The nccl backend on the stand-ins: what failures of NCCL, of a device and of other ranks come to,
 * on every rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "nccl_data.h"

/* Every member has the error, and the group stays broken. */
static void check_broken(dtr_group *g, dtr_status own, int culprit, const char *text) {
    dtr_buffer b = filled(N, 1);
    dtr_work *w = NULL;
    dtr_status s = dtr_allreduce(g, b, b, DTR_SUM, NULL, &w);
    if (s == DTR_OK) {
        s = dtr_work_synchronize(w, -1);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_CHECK(th_rank() == culprit ? s == own : s < 0, "%s: %s", dtr_status_name(s),
             dtr_last_error_message());
    TH_CHECK(strstr(dtr_last_error_message(), text) != NULL, "\"%s\" does not say %s",
             dtr_last_error_message(), text);
    th_barrier();
    TH_CHECK(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL) == s, "it was rebuilt");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    drop(b);
    TH_AGREE();
    allreduce_good(th_group());
    TH_AGREE();
}

/* H1, H8, D18, G5: a native call that fails on one rank breaks the group on all, with one text. */
START_TEST(H1_native_error) {
    int last = th_size() - 1;
    char who[32];
    snprintf(who, sizeof who, "on rank %d", last);
    dtr_group *g = group_of(NULL, 0);
    allreduce_good(g);
    TH_AGREE();
    fault_on_culprit("DTR_FAKE_CUDA_ERR", "cudaEventRecord:1:700");
    dtr_buffer b = filled(N, 1);
    dtr_status s = dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL);
    fault("DTR_FAKE_CUDA_ERR", NULL);
    drop(b);
    check_broken(g, s, last, "CUDA error 700");
    TH_AGREE();
}
END_TEST

/* D24, reliability:FI30: NCCL does not start on one rank. */
START_TEST(D24_failed_init) {
    int last = th_size() - 1;
    char rank[16];
    snprintf(rank, sizeof rank, "%d", last);
    fault("DTR_FAKE_NCCL_INIT_FAIL_RANK", rank);
    dtr_group *g = group_of(NULL, 0);
    dtr_buffer b = filled(N, 1);
    dtr_status s = dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL);
    TH_CHECK(th_rank() == last ? s == DTR_ERR_NCCL : s < 0, "%s", dtr_status_name(s));
    TH_MESSAGE("injected failure of init");
    th_barrier();
    fault("DTR_FAKE_NCCL_INIT_FAIL_RANK", NULL);
    drop(b);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
    allreduce_good(th_group());
    TH_AGREE();
}
END_TEST

/* GP8: NCCL refuses the devices of an automatic group, which then goes by stage on all ranks. */
START_TEST(GP8_refused_devices) {
    dtr_group *g = group_of(NULL, 0);
    th_log_clear();
    fault("DTR_FAKE_NCCL_ERR", th_rank() == 0 ? "ncclCommInitRankConfig:1:5" : NULL);
    allreduce_good(g);
    allreduce_good(g);
    fault("DTR_FAKE_NCCL_ERR", NULL);
    int warnings = th_log_count("travel through host memory");
    TH_CHECK(warnings == (dtr_group_rank(g) == 0), "%d warnings", warnings);
    TH_CHECK(dtr_group_seq(g) == 2, "two operations, but the sequence is %d",
             (int)dtr_group_seq(g));
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* I1, L8, FI35, reliability:FI32, collectives:NCM12: works under way end with the reason when the
 * group is aborted. */
START_TEST(I1_abort) {
    dtr_group *g = group_of(NULL, 0);
    cudaStream_t stream;
    cudaEvent_t open;
    allreduce_good(g);
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.stream = stream;
    dtr_work *w = NULL;
    if (th_rank() == 0) { /* this rank's part cannot start, so nobody's can end */
        dtr_fake_cuda_hold(open, 1);
        cudaEventRecord(open, stream);
    }
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, &w), DTR_OK);
    th_barrier();
    if (th_rank() == 0) {
        TH_IS(dtr_group_abort(g, "enough"), DTR_OK);
    }
    TH_IS(dtr_work_synchronize(w, -1), DTR_ERR_ABORTED);
    TH_MESSAGE("enough");
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_ABORTED);
    TH_IS(dtr_work_release(w), DTR_OK);
    th_barrier(); /* the stand-in would still run what was aborted before it began */
    dtr_fake_cuda_hold(open, 0);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
    drop(b);
    TH_AGREE();
    allreduce_good(th_group());
    TH_AGREE();
}
END_TEST

/* An allreduce during which a fault of the stand-in hits the last rank; every rank gets `want`, any
 * error where that is DTR_OK, with `text`. */
static void fail_on_last(const char *fault_name, double limit_s, dtr_status want,
                         const char *text) {
    dtr_group *g = group_of(NULL, 0);
    allreduce_good(g);
    TH_AGREE();
    char where[64];
    snprintf(where, sizeof where, "%d@ncclAllReduce", th_size() - 1);
    fault(fault_name, where);
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = limit_s;
    dtr_work *w = NULL;
    dtr_status s = dtr_allreduce(g, b, b, DTR_SUM, &o, &w); /* it may be seen there already */
    s = s == DTR_OK ? dtr_work_synchronize(w, -1) : s;
    TH_CHECK(want == DTR_OK ? s < 0 : s == want, "%s", dtr_status_name(s));
    TH_MESSAGE(text);
    TH_IS(dtr_work_release(w), DTR_OK);
    th_barrier();
    fault(fault_name, NULL);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    drop(b);
    TH_AGREE();
    allreduce_good(th_group());
    TH_AGREE();
}

/* reliability:FI32, collectives:NCM12: an error that NCCL finds by itself on one rank reaches all.
 */
START_TEST(FI32_asynchronous_error) {
    fail_on_last("DTR_FAKE_NCCL_ASYNC_ERR_RANK", 0, DTR_OK, "injected asynchronous error");
}
END_TEST

/* K7, K8, reliability:FI35: a rank's kernel hangs; the limit of the call ends it on all ranks. */
START_TEST(FI35_hanging_kernel) {
    fail_on_last("DTR_FAKE_NCCL_HANG_RANK", 0.5, DTR_ERR_TIMEOUT, "allreduce");
}
END_TEST

/* G2, G3, E9, reliability:FI31, collectives:NCP4: NCCL does not start everywhere within the limit.
 */
START_TEST(FI31_hanging_init) {
    char rank[16];
    snprintf(rank, sizeof rank, "%d", th_size() - 1);
    fault("DTR_FAKE_NCCL_INIT_HANG_RANK", rank);
    dtr_group *g = group_of(NULL, 2);
    dtr_buffer b = filled(N, 1);
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_TIMEOUT);
    TH_MESSAGE("NCCL");
    th_barrier();
    fault("DTR_FAKE_NCCL_INIT_HANG_RANK", NULL);
    drop(b);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
    allreduce_good(th_group());
    TH_AGREE();
}
END_TEST

/* G3, E4: a rank that does not come is named. */
START_TEST(E4_absent_rank) {
    dtr_group *g = group_of(NULL, 2);
    dtr_buffer b = filled(N, 1);
    int last = th_size() - 1;
    if (th_rank() != last) {
        TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_TIMEOUT);
        if (th_size() == 2) { /* of more, the one that waits for rank 0 may be the first */
            TH_MESSAGE("has not joined: rank 1 (world 1)");
        }
    }
    th_barrier();
    drop(b);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "failures", 110);
    th_add(tc, H1_native_error, 1, 0);
    th_add(tc, D24_failed_init, 2, 0);
    th_add(tc, GP8_refused_devices, 2, 0);
    th_add(tc, I1_abort, 2, 0);
    th_add(tc, FI32_asynchronous_error, 2, 0);
    th_add(tc, FI35_hanging_kernel, 2, 0);
    th_add(tc, FI31_hanging_init, 2, 0);
    th_add(tc, E4_absent_rank, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl failures", make);
}
