/* Rules of works, communicators and versions on the stand-ins that are no matter of values: limits,
 * ends, what is called when, and what is left alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dtr/mpi.h>

#include "group/groups.h"
#include "nccl_data.h"
#include "settings.h"
#include "threads.h"

static int calls(const char *name) {
    return dtr_fake_cuda_log_count(name);
}

static void let_go(cudaStream_t stream, cudaEvent_t open) {
    dtr_fake_cuda_hold(open, 0);
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
}

static const char *rank_text(void) {
    static char text[16];
    snprintf(text, sizeof text, "%d", th_rank());
    return text;
}

static dtr_group *new_group(void) {
    dtr_group *g = NULL;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), NULL, &g), DTR_OK);
    TH_AGREE();
    return g;
}

/* L5, I7: the limit of a stream's wait becomes the work's, whose communicator is then aborted and
 * not destroyed. */
START_TEST(L5_limit_of_a_stream_wait) {
    dtr_group *g = new_group();
    cudaEvent_t open;
    dtr_buffer b = filled(N, 1);
    allreduce_good(g);
    cudaStream_t stream = held_stream(&open);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    o.stream = stream;
    o.timeout_s = 600; /* longer than the test may take */
    dtr_fake_cuda_log_start();
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, &w), DTR_OK);
    th_barrier();
    if (th_rank() == 0) { /* counted from the issue, so that it may have passed */
        dtr_status s = dtr_work_wait(w, 0.2);
        TH_CHECK(s == DTR_OK || s == DTR_ERR_TIMEOUT, "%s", dtr_status_name(s));
    }
    while (dtr_group_status(g) == DTR_OK) { /* found though nobody waits on the host */
        th_sleep(0.001);
    }
    TH_IS(dtr_work_synchronize(w, -1), DTR_ERR_TIMEOUT);
    TH_IS(dtr_work_release(w), DTR_OK);
    th_barrier();
    let_go(stream, open);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(calls("ncclCommDestroy") == 0, "%s", dtr_fake_cuda_log_text());
    drop(b);
    TH_AGREE();
}
END_TEST

/* I10: a group ends in order: NCCL is told, then ended, and streams and events go last. */
START_TEST(I10_end_of_a_group) {
    dtr_group *g = new_group();
    allreduce_good(g);
    TH_IS(dtr_group_drain(g, -1), DTR_OK);
    dtr_fake_cuda_log_start();
    TH_OK(dtr_group_destroy(g));
    while (calls("cudaStreamDestroy") == 0) { /* the thread that ended NCCL's part may do it */
        th_sleep(0.001);
    }
    const char *log = dtr_fake_cuda_log_text();
    const char *finalize = strstr(log, "ncclCommFinalize"), *end = strstr(log, "ncclCommDestroy");
    const char *event = strstr(log, "cudaEventDestroy"), *stream = strstr(log, "cudaStreamDestroy");
    if (th_size() > 1) {
        TH_CHECK(finalize != NULL && end != NULL && finalize < end, "%s", log);
        TH_CHECK(end != NULL && event > end && stream > end, "%s", log);
        TH_CHECK(calls("ncclCommAbort") == 0, "it was aborted");
    }
    TH_CHECK(event != NULL && stream != NULL, "%s", log);
    TH_AGREE();
}
END_TEST

/* D20: the first batch of a group needs all members, later ones only those that exchange. */
START_TEST(D20_who_must_come) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.timeout_s = 2;
    dtr_group *g = th_hasty_group(th_world(), &o);
    dtr_buffer b = filled(N, 1);
    dtr_p2p op = { th_rank() == 0, b, 1 - th_rank(), 0 };
    bool comes = th_rank() < 2;
    if (comes) {
        TH_IS(dtr_batch_p2p(g, &op, 1, NULL, NULL), DTR_ERR_TIMEOUT);
    }
    th_barrier();
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
    allreduce_good(th_group());
    if (comes) {
        TH_IS(dtr_batch_p2p(th_group(), &op, 1, NULL, NULL), DTR_OK);
        check(b, 1, 1, "message");
    }
    drop(b);
    TH_AGREE();
}
END_TEST

/* GP10, J16, J20: an error of the program's own call is not taken for one of ours, waits may be
 * repeated, and no copy makes the host wait. */
START_TEST(GP10_left_alone) {
    float host[4] = { 0 };
    size_t syncs = dtr_fake_cuda_hidden_syncs();
    dtr_buffer b = filled(N, 1);
    dtr_buffer whole = { b.data, (size_t)th_size() * 8, DTR_I32, gpu };
    cudaError_t stale = cudaMemcpy(b.data, host, sizeof host, cudaMemcpyDeviceToHost);
    TH_CHECK(stale != cudaSuccess && cudaPeekAtLastError() == stale, "%d", (int)stale);
    dtr_work *w[4] = { NULL };
    TH_IS(dtr_allreduce(th_group(), whole, whole, DTR_AVG, NULL, &w[0]), DTR_OK);
    TH_IS(dtr_alltoall(th_group(), whole, whole, NULL, &w[1]), DTR_OK);
    TH_IS(dtr_work_wait(w[1], -1), DTR_OK); /* the next one goes by stage, on other streams */
    TH_IS(dtr_allreduce(th_group(), whole, whole, DTR_BOR, NULL, &w[2]), DTR_OK);
    TH_IS(dtr_work_wait(w[2], -1), DTR_OK);
    TH_IS(dtr_broadcast(th_group(), b, 0, NULL, &w[3]), DTR_OK);
    for (int i = 0; i < 8; i++) {
        TH_IS(dtr_work_wait(w[i / 2], -1), DTR_OK);
        TH_IS(dtr_work_synchronize(w[i / 2], -1), DTR_OK);
    }
    for (int i = 0; i < 4; i++) {
        TH_IS(dtr_work_release(w[i]), DTR_OK);
    }
    TH_CHECK(cudaGetLastError() != cudaSuccess, "the program's error was cleared");
    TH_CHECK(dtr_fake_cuda_hidden_syncs() == syncs, "a copy with pageable memory");
    drop(b);
    TH_AGREE();
}
END_TEST

enum { SLOT = 9 };

/* Slot `slot` of what `filled` gave to rank `rank` with its rank as value. */
static void check_slot(const float *v, int rank, int slot, const char *what) {
    for (int k = 0; k < SLOT; k++) {
        float want = (float)(rank + (slot * SLOT + k) % 7);
        TH_CHECK(v[k] == want, "%s: element %d of slot %d of rank %d is %g, not %g", what, k, slot,
                 rank, (double)v[k], (double)want);
    }
}

/* GP7, X19, X23, collectives:NCO6, NCO19: newer calls of NCCL where it has them, the older way
 * otherwise. */
START_TEST(GP7_ways_by_version) {
    const char *posed = getenv("DTR_FAKE_NCCL_VERSION");
    int size = th_size(), own = posed == NULL || atoi(posed) >= 22800;
    bool root = th_rank() == 1;
    float *host = malloc((size_t)size * SLOT * sizeof *host);
    dtr_buffer all = filled((size_t)size * SLOT, (float)th_rank());
    dtr_buffer out = device_f32((size_t)size * SLOT);
    dtr_buffer part = { out.data, SLOT, DTR_F32, gpu }, none = { NULL, 0, DTR_F32, gpu };
    dtr_fake_cuda_log_start();
    TH_IS(dtr_alltoall(th_group(), all, out, NULL, NULL), DTR_OK);
    TH_CHECK(calls("ncclAlltoAll rank") == own, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(calls("ncclSend rank") == (own ? 0 : size - 1), "%s", dtr_fake_cuda_log_text());
    get(host, out);
    for (int r = 0; r < size; r++) {
        check_slot(host + r * SLOT, r, th_rank(), "alltoall");
    }
    dtr_fake_cuda_log_start();
    TH_IS(dtr_scatter(th_group(), root ? all : none, part, 1, NULL, NULL), DTR_OK);
    TH_CHECK(calls("ncclScatter rank") == own, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(calls("ncclSend rank") == (own || !root ? 0 : size - 1), "%s",
             dtr_fake_cuda_log_text());
    get(host, part);
    check_slot(host, 1, th_rank(), "scatter");
    memset(host, 0, (size_t)size * SLOT * sizeof *host);
    put(all, host); /* it has to come back */
    dtr_fake_cuda_log_start();
    TH_IS(dtr_gather(th_group(), part, root ? all : none, 1, NULL, NULL), DTR_OK);
    TH_CHECK(calls("ncclGather rank") == own, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(calls("ncclRecv rank") == (own || !root ? 0 : size - 1), "%s",
             dtr_fake_cuda_log_text());
    get(host, all);
    for (int r = 0; r < size && root; r++) {
        check_slot(host + r * SLOT, 1, r, "gather");
    }
    free(host);
    drop(all);
    drop(out);
    TH_AGREE();
}
END_TEST

/* AD11, and of reliability:N1 that one watchdog serves all: groups have no threads of their own. */
START_TEST(AD11_no_threads_of_groups) {
    enum { GROUPS = 10 };
    dtr_group *g[GROUPS];
    int before = th_threads("");
    for (int i = 0; i < GROUPS; i++) {
        g[i] = new_group();
        th_good_allreduce(g[i]);
    }
    TH_CHECK(th_threads("") <= before, "%d threads, %d before", th_threads(""), before);
    for (int i = 0; i < GROUPS; i++) {
        TH_OK(dtr_group_destroy(g[i]));
    }
}
END_TEST

/* C14, D21, D22, groups:ENV4: what the log says of a group and of communicators made in both ways,
 * for which NCCL is asked alike. */
START_TEST(D21_D22_what_is_asked_and_said) {
    dtr_group *made = NULL, *child = NULL;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    char line[80], asked[40], by_init[40], by_split[40];
    const char *set = getenv("DTR_NCCL_BLOCKING");
    const bool blocking = set == NULL || strcmp(set, "0") != 0;
    snprintf(asked, sizeof asked, "blocking %d, CTAs 2 to 5", blocking);
    snprintf(by_init, sizeof by_init, "by init, %s, this", blocking ? "blocking" : "non-blocking");
    snprintf(by_split, sizeof by_split, "by split, %s, this",
             blocking ? "blocking" : "non-blocking");
    o.name = "said";
    o.nccl_min_ctas = 2;
    o.nccl_max_ctas = 5;
    o.device = gpu;
    o.has_device = true;
    dtr_fake_cuda_log_start();
    th_log_clear();
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &made), DTR_OK);
    TH_CHECK(calls("ncclCommInitRankConfig rank") == 1 && calls(asked) == 1, "%s",
             dtr_fake_cuda_log_text());
    TH_CHECK(th_log_count("communicator of") == 1 && th_log_count(by_init) == 1,
             "nothing was said of init");
    snprintf(line, sizeof line, "%d ranks, this is rank %d on cuda:0; limits ", th_size(),
             th_rank());
    TH_CHECK(th_log_count(line) == 1 && th_log_count("group 'said' (id ") == 1 &&
                 th_log_count("group 'said': ") == 1 &&
                 th_log_count("cuda:nccl as \"cpu:auto,cuda:auto\" asks") == 1,
             "nothing was said of the group");
    o.name = NULL;
    TH_IS(dtr_group_split(made, 0, th_rank(), &o, &child), DTR_OK);
    TH_CHECK(calls("ncclCommSplit rank") == 1 && calls(asked) == 2, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(th_log_count("communicator of") == 2 && th_log_count(by_split) == 1,
             "nothing was said of split");
    TH_AGREE();
    TH_OK(dtr_group_destroy(child));
    TH_OK(dtr_group_destroy(made));
}
END_TEST

/* What the options of a group ask of NCCL, by the version that knows it, and of a duplicate too. */
START_TEST(D23_settings_of_a_group) {
    const char *v = getenv("DTR_FAKE_NCCL_VERSION");
    const int version = v != NULL ? atoi(v) : 22809;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *made = NULL, *again = NULL;
    char asked[160];
    snprintf(asked, sizeof asked, "policy %d, NVLS %d, traffic %d, share 1, net Socket",
             version >= 22700 ? 1 : -1, version >= 22700 ? 6 : -1, version >= 22600 ? 9 : -1);
    o.nccl_cta_policy = 1;
    o.nccl_nvls_ctas = 6;
    o.nccl_traffic_class = 9;
    o.nccl_network = "Socket";
    o.nccl_split_share = true;
    o.nccl_stream_priority = -1;
    o.device = gpu;
    o.has_device = true;
    dtr_fake_cuda_log_start();
    th_log_clear();
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &made), DTR_OK);
    TH_CHECK(calls(asked) == 1 && calls("cudaStreamCreateWithPriority flags=1 priority=0") == 1,
             "%s", dtr_fake_cuda_log_text());
    const int unknown = th_rank() != 0 ? 0 : version < 22600 ? 3 : version < 22700 ? 2 : 0;
    TH_CHECK(th_log_count("has no effect: it needs NCCL") == unknown, "%d lines, not %d",
             th_log_count("has no effect: it needs NCCL"), unknown);
    TH_IS(dtr__group_dup(made, NULL, &again), DTR_OK);
    TH_IS(dtr_group_connect(again, gpu), DTR_OK);
    TH_CHECK(calls(asked) == 2, "%s", dtr_fake_cuda_log_text());
    TH_AGREE();
    TH_OK(dtr_group_destroy(again));
    TH_OK(dtr_group_destroy(made));
    o.nccl_cta_policy = 4;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &made), DTR_ERR_ARG);
    TH_MESSAGE("nccl_cta_policy is 4, it must be 0 to 3");
    o.nccl_cta_policy = 0;
    o.nccl_network = "";
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &made), DTR_ERR_ARG);
    TH_MESSAGE("nccl_network has 0 bytes");
    TH_AGREE();
}
END_TEST

/* reliability:T15, D23: the stream on which NCCL runs, and that of a group that asks for the other
 * priority. */
START_TEST(T15_priority_of_the_stream) {
    for (int high = 0; high < 2; high++) {
        dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
        dtr_group *g = NULL;
        dtr_world *w = TH_WORLD_WITH(NULL, "DTR_STREAM_PRIORITY", high ? "high" : "normal");
        dtr_fake_cuda_log_start();
        allreduce_good(dtr_world_group(w));
        TH_CHECK(calls("priority=-5") == high && calls("priority=0") == 1 - high, "%s",
                 dtr_fake_cuda_log_text());
        o.nccl_stream_priority = high ? -1 : 1;
        TH_IS(dtr_group_create(w, NULL, th_size(), &o, &g), DTR_OK);
        dtr_fake_cuda_log_start();
        allreduce_good(g);
        TH_CHECK(calls("priority=-5") == 1 - high && calls("priority=0") == high, "%s",
                 dtr_fake_cuda_log_text());
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_IS(dtr_world_destroy(w), DTR_OK);
        TH_AGREE();
    }
}
END_TEST

/* The line that tells of a new communicator. */
static void keep_connection(void *arg, int level, const char *line) {
    (void)level;
    if (strstr(line, "communicator of") != NULL) {
        snprintf(arg, 1024, "%s", line);
    }
}

static int settings_of_nccl(void) {
    int n = 0;
    for (char **e = environ; *e != NULL; e++) {
        n += strncmp(*e, "NCCL_", 5) == 0;
    }
    return n;
}

/* reliability:T17: what the user sets for NCCL is told when a communicator is made, is in dumps,
 * and stays what it was; the library adds nothing. */
START_TEST(T17_settings_of_nccl) {
    char folder[64] = "/tmp/dtr-test-rules-XXXXXX", command[256];
    const int before = settings_of_nccl();
    TH_CHECK(th_rank() != 0 || mkdtemp(folder) != NULL, "no folder");
    MPI_Bcast(folder, sizeof folder, MPI_CHAR, 0, MPI_COMM_WORLD);
    setenv("NCCL_TEST_ONLY", "some", 1);
    setenv("DTR_RECORDER_DIR", folder, 1);
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    char said[1024] = "";
    o.log_fn = keep_connection;
    o.log_arg = said;
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_OK);
    setenv("DTR_RECORDER_DIR", "none", 1);
    allreduce_good(dtr_world_group(w));
    TH_CHECK(strcmp(getenv("NCCL_TEST_ONLY"), "some") == 0 && settings_of_nccl() == before + 1,
             "the library sets NCCL's");
    unsetenv("NCCL_TEST_ONLY");
    TH_IS(dtr_world_dump(w, "look"), DTR_OK);
    TH_CHECK(strstr(said, " by init") != NULL && strstr(said, "; set: ") != NULL &&
                 strstr(said, "NCCL_TEST_ONLY=some") != NULL,
             "said: %s", said);
    snprintf(command, sizeof command, "grep -q 'NCCL_TEST_ONLY=some' %s/*-rank%d.dump.json", folder,
             th_rank());
    TH_CHECK(system(command) == 0, "%s", command);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    snprintf(command, sizeof command, "rm -r %s", folder);
    TH_ALL(th_rank() != 0 || system(command) == 0, "%s", command);
}
END_TEST

/* G3, reliability:T19, and of groups:ENV5 the limit, not what is refused: the limit of setting up
 * is not that of operations, which is far away here. */
START_TEST(G3_limit_of_setting_up) {
    dtr_world *w = NULL;
    dtr_group *g = NULL;
    dtr_buffer b = filled(N, 1);
    setenv("DTR_NCCL_INIT_TIMEOUT", "0.5", 1);
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w), DTR_OK);
    unsetenv("DTR_NCCL_INIT_TIMEOUT");
    TH_IS(dtr_group_create(w, NULL, th_size(), NULL, &g), DTR_OK);
    fault_on_culprit("DTR_FAKE_NCCL_INIT_HANG_RANK", rank_text());
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_TIMEOUT);
    TH_MESSAGE("0.5 s");
    th_barrier();
    fault("DTR_FAKE_NCCL_INIT_HANG_RANK", NULL);
    drop(b);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* F1: a split that is given up on all ranks, also by the one that gets no group. NCCL writes its
 * handles later: where they are still waited for, and what comes then is aborted too. */
START_TEST(F1_split_given_up) {
    dtr_world *w = NULL;
    dtr_group *g = NULL, *child = NULL;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    const bool outside = th_rank() == th_size() - 1;
    o.has_device = true;
    o.device = gpu;
    setenv("DTR_NCCL_INIT_TIMEOUT", "0.5", 1);
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w), DTR_OK);
    unsetenv("DTR_NCCL_INIT_TIMEOUT");
    TH_IS(dtr_group_create(w, NULL, th_size(), &o, &g), DTR_OK);
    TH_AGREE();
    fault("DTR_FAKE_NCCL_INIT_HANG_RANK", "0"); /* the first of the child's */
    dtr_fake_cuda_log_start();
    dtr_status s = dtr_group_split(g, outside ? DTR_COLOR_NONE : 0, 0, &o, &child);
    TH_CHECK(outside || s < 0, "%s", dtr_status_name(s));
    while (dtr_group_status(g) == DTR_OK) { /* the one outside hears of it */
        th_sleep(0.001);
    }
    th_barrier();
    fault("DTR_FAKE_NCCL_INIT_HANG_RANK", NULL);
    TH_IS(dtr_group_destroy(child), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    const int ended = outside ? 1 : 2;
    th_start since = th_begin();
    while (calls("ncclCommAbort done") < ended && th_in_time(since, 5)) {
        th_sleep(0.001);
    }
    TH_CHECK(calls("ncclCommAbort done") == ended, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(calls("ncclCommSplit has written its handle") == 1, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(calls("mistake") == 0, "%s", dtr_fake_cuda_log_text());
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl rules", 110);
    th_add(tc, AD11_no_threads_of_groups, 1, 0); /* first: later ones leave threads that end */
    th_add(tc, L5_limit_of_a_stream_wait, 1, 0);
    th_add(tc, I10_end_of_a_group, 1, 0);
    th_add(tc, D20_who_must_come, 3, 0);
    th_add(tc, GP10_left_alone, 2, 0);
    th_add(tc, GP7_ways_by_version, 2, 0);
    th_add(tc, D21_D22_what_is_asked_and_said, 2, 0);
    th_add(tc, D23_settings_of_a_group, 2, 0);
    th_add(tc, G3_limit_of_setting_up, 2, 0);
    th_add(tc, F1_split_given_up, 3, 0);
    th_add(tc, T15_priority_of_the_stream, 2, 0);
    th_add(tc, T17_settings_of_nccl, 2, 0);
}

int main(int argc, char **argv) {
    setenv("DTR_LOG", "info", 0); /* D21 */
    return th_main(argc, argv, "nccl rules", make);
}
