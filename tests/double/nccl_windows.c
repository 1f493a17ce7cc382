/* Buckets of DDP as windows of NCCL (DTR_NCCL_REGISTER=1, NCCL 2.27), on the stand-ins: all members
 * make them together, and all go without where one cannot. A stand-in compares what the ranks give,
 * and reports as a "mistake" what is registered twice, freed first or left behind. Also run as a
 * version that has no windows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/dtr.h>
#include <dtr/mpi.h>

#include "device_tensors.h"
#include "nccl_data.h"
#include "settings.h"
#include "world/world.h"

enum { P = 3 }; /* parameters, a bucket each */

static bool old_version(void) {
    const char *v = getenv("DTR_FAKE_NCCL_VERSION");
    return v != NULL && atoi(v) < 22700;
}

/* Ranks that have windows at all. */
static bool expected(void) {
    return th_size() > 1 && !old_version();
}

static int calls(const char *text) {
    return dtr_fake_cuda_log_count(text);
}

static void no_mistake(void) {
    TH_CHECK(calls("mistake") == 0, "%s", dtr_fake_cuda_log_text());
}

typedef struct model {
    dtr_world *world;
    dtr_group *group;
    dtr_ddp *ddp;
    dtr_tensor *value[P];
    cudaStream_t stream;
} model;

/* Also of one rank NCCL's calls are made. Not agreed. */
static dtr_status model_open(model *m, dtr_world *w) {
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_param params[P] = { 0 };
    static const char *const names[P] = { "a", "b", "c" };
    *m = (model){ .world = w };
    go.backend = "cpu:auto,cuda:nccl";
    TH_IS(dtr_group_create(w, NULL, th_size(), &go, &m->group), DTR_OK);
    TH_IS(dtr_group_connect(m->group, gpu), DTR_OK);
    TH_CHECK(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    for (int i = 0; i < P; i++) {
        int64_t n = 1000 + i;
        TH_IS(dtr_tensor_empty(w, DTR_F32, gpu, DTR_MEM_DEFAULT, 1, &n, &m->value[i]), DTR_OK);
        TH_IS(dtr_tensor_fill(m->value[i], i, m->stream), DTR_OK);
        params[i] = (dtr_param){ names[i], m->value[i], NULL, 0 };
    }
    TH_CHECK(cudaStreamSynchronize(m->stream) == cudaSuccess, "synchronize");
    o.bucket_cap_bytes = o.first_bucket_bytes = 4000;
    return dtr_ddp_create(m->group, params, P, &o, &m->ddp);
}

static void model_close(model *m) {
    TH_IS(dtr_ddp_destroy(m->ddp), DTR_OK);
    for (int i = 0; i < P; i++) {
        dtr_tensor_release(m->value[i]);
    }
    cudaStreamDestroy(m->stream);
    TH_AGREE();
    TH_IS(dtr_group_destroy(m->group), DTR_OK);
    TH_AGREE();
}

/* The module's own communicator, or the one after it; the group's is there already. */
static model opened(void) {
    model m;
    TH_IS(model_open(&m, th_world()), DTR_OK);
    TH_AGREE();
    return m;
}

/* Gradients come in the order of the first plan, or against it. */
static void report(const model *m, bool as_planned) {
    for (int k = 0; k < P; k++) {
        size_t i = (size_t)(as_planned ? P - 1 - k : k);
        dtr_tensor *g = dtr_ddp_grad(m->ddp, i);
        TH_IS(dtr_tensor_fill(g, th_rank() + (double)i, m->stream), DTR_OK);
        TH_IS(dtr_ddp_grad_ready(m->ddp, i, m->stream), DTR_OK);
    }
}

static void step(const model *m, bool as_planned) {
    report(m, as_planned);
    TH_IS(dtr_ddp_backward_end(m->ddp, m->stream), DTR_OK);
    for (size_t i = 0; i < P; i++) {
        float want = (float)(th_size() - 1) / 2 + (float)i;
        check_each(dtr_ddp_grad(m->ddp, i), want, "average", "parameter");
    }
}

static void way_is(const model *m, const char *want) {
    dtr_ddp_stats st = DTR_DDP_STATS_INIT;
    TH_IS(dtr_ddp_get_stats(m->ddp, &st), DTR_OK);
    TH_CHECK(strcmp(st.bucket_memory, want) == 0, "\"%s\", not \"%s\": %s", st.bucket_memory, want,
             dtr_fake_cuda_log_text());
}

static const char *usual_way(void) {
    return th_size() == 1 ? "" : old_version() ? "registered" : "windows";
}

/* AA3, GP7, AE: all buckets are windows on all ranks, symmetric ones, and sums run in them; they
 * end before the communicator is finalized, and that before their memory is freed. Versions without
 * them and single ranks never call for one. */
START_TEST(AA3_windows) {
    dtr_fake_cuda_log_start();
    th_log_clear();
    model m = opened();
    int n = expected() ? P : 0;
    way_is(&m, usual_way());
    TH_CHECK(calls("ncclCommWindowRegister rank") == n && calls("flags 1") == n, "%s",
             dtr_fake_cuda_log_text());
    TH_CHECK(th_log_count("are windows of NCCL on all ranks") == (n > 0 && th_rank() == 0), "said");
    step(&m, true);
    TH_CHECK(calls("in windows") == n, "%s", dtr_fake_cuda_log_text());
    dtr_fake_cuda_log_start();
    model_close(&m);
    const char *log = dtr_fake_cuda_log_text();
    const char *gone = strstr(log, "ncclCommWindowDeregister rank");
    TH_CHECK(calls("ncclCommWindowDeregister rank") == n, "%s", log);
    TH_CHECK(n == 0 ||
                 (gone < strstr(log, "ncclCommFinalize") && gone < strstr(log, "ncclMemFree")),
             "order: %s", log);
    no_mistake();
    TH_AGREE();
}
END_TEST

/* AA3: the rebuild of the buckets has other memory: windows of that, before the next sums, and none
 * of what is freed. */
START_TEST(AA3_windows_rebuilt) {
    model m = opened();
    int n = expected() ? P : 0;
    dtr_fake_cuda_log_start();
    step(&m, false);
    TH_CHECK(calls("ncclCommWindowRegister rank") == n &&
                 calls("ncclCommWindowDeregister rank") == n && calls("in windows") == n,
             "%s", dtr_fake_cuda_log_text());
    dtr_fake_cuda_log_start();
    step(&m, false);
    TH_CHECK(calls("in windows") == n && calls("Window") == 0, "%s", dtr_fake_cuda_log_text());
    way_is(&m, usual_way());
    no_mistake();
    model_close(&m);
}
END_TEST

/* AA6: what one rank cannot, none has: the peers wait for it inside NCCL, so all give that
 * communicator up and go on over another, registered as without windows. Said once. */
START_TEST(AA6_window_fails) {
    const char *const faults[] = { "ncclCommWindowRegister:1:3", "ncclCommWindowRegister:2:1" };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0] && expected(); i++) {
        dtr_fake_cuda_log_start();
        th_log_clear();
        fault_on_culprit("DTR_FAKE_NCCL_ERR", faults[i]);
        model m;
        dtr_status s = model_open(&m, th_world());
        fault("DTR_FAKE_NCCL_ERR", NULL);
        TH_ALL(s == DTR_OK, "%s", dtr_last_error_message());
        way_is(&m, "registered");
        TH_CHECK(calls("ncclCommInitRankConfig rank") + calls("ncclCommSplit rank") == 3 &&
                     calls("ncclCommAbort done") == 1,
                 "%s", dtr_fake_cuda_log_text());
        TH_CHECK(th_log_count("do not become windows of NCCL") == (th_rank() == 0), "said");
        dtr_fake_cuda_log_start();
        step(&m, false);
        step(&m, true);
        TH_CHECK(calls("in windows") == 0 && calls("ncclCommWindow") == 0, "%s",
                 dtr_fake_cuda_log_text());
        way_is(&m, "registered");
        no_mistake();
        model_close(&m);
    }
    TH_AGREE();
}
END_TEST

/* AA6: where NCCL has no windows, its communicator stays; where one rank's memory is not NCCL's, no
 * rank asks for one, until the rebuild has other memory. */
START_TEST(AA6_window_declined) {
    for (int memory = 0; memory < 2 && expected(); memory++) {
        dtr_fake_cuda_log_start();
        if (memory) {
            fault_on_culprit("DTR_FAKE_NCCL_ERR", "ncclMemAlloc:2:1"); /* the first bucket's */
        } else {
            fault("DTR_FAKE_NCCL_NO_WINDOW", "1");
        }
        model m;
        dtr_status s = model_open(&m, th_world());
        fault("DTR_FAKE_NCCL_ERR", NULL);
        fault("DTR_FAKE_NCCL_NO_WINDOW", NULL);
        TH_ALL(s == DTR_OK, "%s", dtr_last_error_message());
        way_is(&m, "registered");
        TH_CHECK(calls("ncclCommAbort") == 0 &&
                     calls("ncclCommWindowRegister rank") == (memory ? 0 : 1),
                 "%s", dtr_fake_cuda_log_text());
        step(&m, false);
        step(&m, true);
        TH_CHECK(calls("in windows") == P, "%s", dtr_fake_cuda_log_text());
        way_is(&m, "windows");
        no_mistake();
        model_close(&m);
    }
    TH_AGREE();
}
END_TEST

/* AA6: where NCCL's windows would be local ones, of which it says nothing, none is asked for, and
 * no window is claimed. */
START_TEST(AA6_local_windows) {
    static const char *const off[][2] = { { "NCCL_WIN_ENABLE", "0" },
                                          { "NCCL_CUMEM_ENABLE", "0" },
                                          { "NCCL_P2P_DISABLE", "1" },
                                          { "NCCL_HOSTID", NULL } }; /* several nodes */
    for (size_t i = 0; i < sizeof off / sizeof off[0] && expected(); i++) {
        char rank[16];
        model m;
        dtr_world *w = NULL;
        snprintf(rank, sizeof rank, "%d", th_rank());
        setenv(off[i][0], off[i][1] != NULL ? off[i][1] : rank, 1);
        TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w), DTR_OK);
        dtr_fake_cuda_log_start();
        TH_IS(model_open(&m, w), DTR_OK);
        TH_AGREE();
        way_is(&m, "registered");
        step(&m, false);
        TH_CHECK(calls("ncclCommWindowRegister") == 0 && calls("in windows") == 0, "%s",
                 dtr_fake_cuda_log_text());
        no_mistake();
        model_close(&m);
        TH_IS(dtr_world_destroy(w), DTR_OK);
        unsetenv(off[i][0]);
        TH_AGREE();
    }
}
END_TEST

/* I2, AA5: with a communicator that is aborted its windows go too: ending one may wait for the
 * device, which may never get there. */
START_TEST(AA5_window_abort) {
    model m = opened();
    dtr_fake_cuda_log_start();
    TH_IS(dtr_ddp_grad_ready(m.ddp, 0, m.stream), DTR_OK);
    TH_AGREE();      /* a rank that closes has the others abort at once, before they look */
    model_close(&m); /* in an open backward pass */
    TH_CHECK(calls("ncclCommAbort done") == (th_size() > 1) && calls("ncclCommWindow") == 0, "%s",
             dtr_fake_cuda_log_text());
    no_mistake();
    TH_AGREE();
}
END_TEST

/* G3: a rank whose window never comes keeps nobody longer than the limit. Those of the rebuild: the
 * limit is that of making communicators too, which may take longer here. */
START_TEST(G3_window_limit) {
    static const dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = TH_WORLD_WITH(&o, "DTR_NCCL_INIT_TIMEOUT", "600");
    if (expected()) {
        model m;
        TH_IS(model_open(&m, w), DTR_OK);
        TH_AGREE();
        w->options.value[DTR__OPT_NCCL_INIT_TIMEOUT].seconds = 0.5;
        fault_on_culprit("DTR_FAKE_NCCL_ERR", "ncclCommWindowRegister:1:7"); /* "in progress" */
        report(&m, false);
        dtr_status s = dtr_ddp_backward_end(m.ddp, m.stream);
        fault("DTR_FAKE_NCCL_ERR", NULL);
        TH_CHECK(s == DTR_ERR_TIMEOUT, "%s: %s", dtr_status_name(s), dtr_last_error_message());
        TH_MESSAGE("windows of NCCL within 0.5 s");
        TH_AGREE();
        model_close(&m);
    }
    TH_AGREE();
    TH_IS(dtr_world_destroy(w), DTR_OK);
}
END_TEST

/* GP4: ranks with different settings decide alike: none asks for windows. */
START_TEST(GP4_windows_by_all) {
    static const dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    const char *before = getenv("DTR_NCCL_REGISTER");
    char kept[8];
    snprintf(kept, sizeof kept, "%s", before != NULL ? before : "");
    dtr_world *w = TH_WORLD_WITH(&o, "DTR_NCCL_REGISTER", th_rank() == 0 ? "0" : "1");
    setenv("DTR_NCCL_REGISTER", kept, 1);
    model m;
    dtr_fake_cuda_log_start();
    TH_IS(model_open(&m, w), DTR_OK);
    TH_AGREE();
    TH_CHECK(calls("ncclCommWindow") == 0, "%s", dtr_fake_cuda_log_text());
    way_is(&m, th_rank() == 0 || th_size() == 1 ? "" : "registered");
    model_close(&m);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* What a group says of memory that its communicators know. */
START_TEST(F5_blocks_in_statistics) {
    dtr_group_stats st = DTR_GROUP_STATS_INIT;
    model m = opened();
    dtr_buffer b = filled(N, 1);
    TH_IS(dtr_allreduce(m.group, b, b, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_group_get_stats(m.group, &st), DTR_OK);
    TH_CHECK(st.blocks_registered > P && st.blocks_windows == 0, "%llu blocks, %llu windows",
             (unsigned long long)st.blocks_registered, (unsigned long long)st.blocks_windows);
    TH_IS(dtr_group_drain(m.group, -1), DTR_OK);
    drop(b);
    model_close(&m);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl windows", 110);
    th_add(tc, AA3_windows, 1, 0);
    th_add(tc, AA3_windows_rebuilt, 1, 0);
    th_add(tc, AA6_window_fails, 1, 0);
    th_add(tc, AA6_local_windows, 1, 0);
    th_add(tc, AA6_window_declined, 1, 0);
    th_add(tc, AA5_window_abort, 1, 0);
    th_add(tc, G3_window_limit, 1, 0);
    th_add(tc, GP4_windows_by_all, 1, 0);
    th_add(tc, F5_blocks_in_statistics, 1, 0);
}

int main(int argc, char **argv) {
    setenv("DTR_LOG", "info", 0); /* AA3_windows */
    return th_main(argc, argv, "nccl windows", make);
}
