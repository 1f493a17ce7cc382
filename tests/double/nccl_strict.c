/* Mistakes that the NCCL stand-in is to notice, made on purpose: were it to let them pass, tests
 * that look for none would say nothing (nccl:DB5). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "nccl_raw.h"
#include "threads.h"

/* ---- calls that wait, in a thread of their own ---- */

typedef struct call {
    ncclResult_t (*fn)(ncclComm_t);
    void (*free)(void *memory);
    void *arg;
    ncclResult_t result;
    _Atomic int over;
    pthread_t thread;
} call;

static void *run(void *arg) {
    call *c = arg;
    if (c->fn != NULL) {
        c->result = c->fn(c->arg);
    } else {
        c->free(c->arg);
    }
    atomic_store(&c->over, 1);
    return NULL;
}

/* Whether it is over: soon, or within a time in which nothing would keep it. */
static bool returns(call *c, bool soon) {
    TH_CHECK(pthread_create(&c->thread, NULL, run, c) == 0, "no thread");
    th_start since = th_begin();
    for (int i = 0; atomic_load(&c->over) == 0 && (soon ? th_in_time(since, 5) : i < 500); i++) {
        nap();
    }
    return atomic_load(&c->over) != 0;
}

/* ---- memory ---- */

/* NCCL's memory comes in granules of the device: a call that counts it must count these. */
START_TEST(DB5_memory_comes_in_granules) {
    const size_t granule = (size_t)2 << 20, sizes[] = { 1, granule, granule + 1 };
    for (size_t i = 0; i < 3; i++) {
        const size_t whole = i < 2 ? granule : 2 * granule;
        void *p = NULL;
        TH_CHECK(ncclMemAlloc(&p, sizes[i]) == ncclSuccess, "ncclMemAlloc");
        TH_CHECK(dtr_fake_cuda_host(p, whole) != NULL && dtr_fake_cuda_host(p, whole + 1) == NULL,
                 "%zu bytes do not take %zu", sizes[i], whole);
        TH_CHECK(ncclMemFree(p) == ncclSuccess, "ncclMemFree");
    }
    TH_AGREE();
}
END_TEST

static void free_of_nccl(void *memory) {
    TH_CHECK(ncclMemFree(memory) == ncclSuccess, "ncclMemFree");
}

static void free_of_cuda(void *memory) {
    TH_CHECK(cudaFree(memory) == cudaSuccess, "cudaFree");
}

/* ncclMemFree takes memory away from kernels that still run, where cudaFree waits for them. */
START_TEST(DB5_memory_is_freed_at_once) {
    for (int waits = 0; waits < 2; waits++) {
        cudaEvent_t open;
        call c = { .free = waits ? free_of_cuda : free_of_nccl };
        begin(1);
        TH_CHECK((waits ? (int)cudaMalloc(&c.arg, 64) : (int)ncclMemAlloc(&c.arg, 64)) == 0,
                 "memory");
        TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
        dtr_fake_cuda_hold(open, 1);
        TH_CHECK(cudaEventRecord(open, stream) == cudaSuccess, "record");
        TH_CHECK(returns(&c, !waits) == !waits, "%s",
                 waits ? "cudaFree did not wait" : "ncclMemFree waited");
        TH_CHECK(cudaStreamQuery(stream) == cudaErrorNotReady, "nothing was running");
        TH_CHECK(waits || dtr_fake_cuda_host(c.arg, 1) == NULL, "the memory is still there");
        dtr_fake_cuda_hold(open, 0);
        pthread_join(c.thread, NULL);
        finish();
        cudaEventDestroy(open);
    }
}
END_TEST

/* ---- windows ---- */

/* One registration and one call on it, with a setting of NCCL's or the stand-in's. */
static void one_window(const char *name, const char *value, bool shared) {
    const bool none = name != NULL && strcmp(name, "DTR_FAKE_NCCL_NO_WINDOW") == 0;
    ncclWindow_t win = NULL;
    int *block = NULL;
    if (name != NULL) {
        setenv(name, value, 1);
    }
    begin(1);
    TH_CHECK(ncclMemAlloc((void **)&block, 4096) == ncclSuccess, "ncclMemAlloc");
    ncclResult_t r = ncclCommWindowRegister(comm, block, 4096, &win, NCCL_WIN_COLL_SYMMETRIC);
    TH_CHECK(r == ncclSuccess && (win == NULL) == none, "%s: result %d", name, (int)r);
    dtr_fake_cuda_log_start();
    r = ncclAllReduce(block, block, 8, ncclInt32, ncclSum, comm, stream);
    TH_CHECK(r == ncclSuccess && cudaStreamSynchronize(stream) == cudaSuccess, "call");
    TH_CHECK(dtr_fake_cuda_log_count("in windows") == shared, "%s: %s", name,
             dtr_fake_cuda_log_text());
    TH_CHECK(ncclCommWindowDeregister(comm, win) == ncclSuccess, "deregister");
    finish();
    TH_CHECK(ncclMemFree(block) == ncclSuccess, "ncclMemFree");
    if (name != NULL) {
        unsetenv(name);
    }
    TH_AGREE();
}

/* Where NCCL would make a local window, and hand out a handle all the same, no call is in one. */
START_TEST(DB5_local_windows) {
    char rank[16];
    snprintf(rank, sizeof rank, "node%d", th_rank());
    one_window(NULL, NULL, true);
    one_window("NCCL_WIN_ENABLE", "0", false);
    one_window("NCCL_CUMEM_ENABLE", "0", false);
    one_window("NCCL_P2P_DISABLE", "1", false);
    one_window("NCCL_HOSTID", rank, th_size() == 1);
    one_window("DTR_FAKE_NCCL_NO_WINDOW", "1", false);
}
END_TEST

/* ---- communicators ---- */

/* A place on the stack for a handle that is written late; `grouped`: at the end of a group. */
static void one_split(ncclComm_t *place, bool grouped, bool mistake) {
    dtr_fake_cuda_log_start();
    TH_CHECK(!grouped || ncclGroupStart() == ncclSuccess, "group");
    ncclResult_t r = ncclCommSplit(comm, 0, th_rank(), place, NULL);
    r = grouped ? ncclGroupEnd() : r;
    TH_CHECK(settled(comm, r) == ncclSuccess && settled(*place, r) == ncclSuccess, "split");
    TH_CHECK(dtr_fake_cuda_log_count("mistake: the handle's place is on the stack") == mistake,
             "%s", dtr_fake_cuda_log_text());
    TH_CHECK(ncclCommAbort(*place) == ncclSuccess, "abort");
    TH_AGREE();
}

START_TEST(DB5_handle_on_the_stack) {
    static ncclComm_t lasting;
    for (int blocking = 0; blocking < 2; blocking++) {
        ncclComm_t own = NULL;
        begin(blocking);
        one_split(&lasting, false, false);
        one_split(&own, false, !blocking);
        one_split(&lasting, true, false);
        one_split(&own, true, true);
        finish();
    }
}
END_TEST

/* A communicator does not end before the graphs that have operations of it, whichever way. */
START_TEST(DB5_an_end_waits_for_graphs) {
    static ncclResult_t (*const ends[])(ncclComm_t) = { ncclCommFinalize, ncclCommDestroy,
                                                        ncclCommAbort };
    for (int i = 0; i < 3; i++) {
        cudaGraph_t graph = NULL;
        cudaGraphExec_t exec = NULL;
        call c = { .fn = ends[i] };
        begin(1);
        int *p = device(64);
        TH_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess,
                 "begin");
        ncclResult_t r = ncclAllReduce(p, p, 8, ncclInt32, ncclSum, comm, stream);
        TH_CHECK(r == ncclSuccess && cudaStreamEndCapture(stream, &graph) == cudaSuccess,
                 "capture");
        TH_CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "instantiate");
        TH_CHECK(cudaGraphDestroy(graph) == cudaSuccess, "graph");
        th_barrier();
        c.arg = comm;
        TH_CHECK(!returns(&c, false), "end %d did not wait for the graph", i);
        TH_CHECK(cudaGraphExecDestroy(exec) == cudaSuccess, "graph");
        pthread_join(c.thread, NULL);
        TH_CHECK(c.result == ncclSuccess, "end %d: %d", i, (int)c.result);
        TH_CHECK(i > 0 || ncclCommDestroy(comm) == ncclSuccess, "destroy");
        cudaFree(p);
        cudaStreamDestroy(stream);
        TH_AGREE();
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl stand-in, strict", 110);
    th_add(tc, DB5_memory_comes_in_granules, 1, 0);
    th_add(tc, DB5_memory_is_freed_at_once, 1, 0);
    th_add(tc, DB5_local_windows, 1, 0);
    th_add(tc, DB5_handle_on_the_stack, 1, 0);
    th_add(tc, DB5_an_end_waits_for_graphs, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl_strict", make);
}
