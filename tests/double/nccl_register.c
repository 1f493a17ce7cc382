/* Device memory that NCCL is told of (DTR_NCCL_REGISTER=1), on the stand-ins, which report whatever
 * is registered twice, taken back twice, or freed too early: "mistake" in the log. Also run as a
 * version that knows nothing of it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/dtr.h>
#include <dtr/mpi.h>

#include "backends/nccl/nccl_internal.h"
#include "device_tensors.h"
#include "group/groups.h"
#include "nccl_data.h"

enum { LARGE = 300000 }; /* elements of a block that is one of NCCL's own */

static bool old_version(void) {
    const char *v = getenv("DTR_FAKE_NCCL_VERSION");
    return v != NULL && atoi(v) < 21900;
}

static int calls(const char *text) {
    return dtr_fake_cuda_log_count(text);
}

static int calls_of(const char *function, const void *ptr) {
    char text[96];
    snprintf(text, sizeof text, "%s ptr %p", function, ptr);
    return calls(text);
}

/* Of any communicator of a device of this rank. */
static int told(int device, const void *ptr) {
    char text[96];
    snprintf(text, sizeof text, "device %d ptr %p", device, ptr);
    return calls(text);
}

static int untold(const void *ptr) {
    char text[96];
    snprintf(text, sizeof text, "ncclCommDeregister rank %d ptr %p", th_rank(), ptr);
    return calls(text);
}

static void no_mistake(void) {
    TH_CHECK(calls("mistake") == 0, "%s", dtr_fake_cuda_log_text());
}

/* In a group of one rank too NCCL's calls are made. */
static dtr_group *new_group(void) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    o.backend = "cpu:auto,cuda:nccl";
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_OK);
    TH_AGREE();
    return g;
}

static dtr_group *connected_group(int device) {
    dtr_group *g = new_group();
    TH_IS(dtr_group_connect(g, (dtr_device){ DTR_CUDA, device }), DTR_OK);
    TH_AGREE();
    return g;
}

static void destroy(dtr_group *g) {
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}

static void sum_good(dtr_group *g, dtr_buffer b) {
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_OK);
    check(b, 1, (float)th_size(), "sum");
    TH_IS(dtr_group_drain(g, -1), DTR_OK); /* the end is noticed, and memory freed at once */
}

typedef struct said {
    int no_effect, why;
} said;

static void keep_said(void *arg, int level, const char *line) {
    said *s = arg;
    s->no_effect += level == DTR_LOG_INFO && strstr(line, "DTR_NCCL_REGISTER=1 has no effect");
    s->why += strstr(line, "needs NCCL 2.19") != NULL && strstr(line, "2.18.5") != NULL;
}

/* AA1, reliability:T14: without the switch, or with a version that has no such calls, nothing is
 * done; the latter is said once in the job. */
START_TEST(AA1_switch) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    void *p = NULL;
    o.log_fn = keep_said;
    for (int on = 0; on < 2; on++) {
        said heard = { 0 };
        o.log_arg = &heard;
        dtr_fake_cuda_log_start();
        setenv("DTR_NCCL_REGISTER", on ? "1" : "0", 1);
        TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_OK);
        TH_IS(dtr_alloc(w, gpu, DTR_MEM_DEFAULT, LARGE * 4, &p), DTR_OK);
        int effect = on && !old_version(), lines = on && old_version() && th_rank() == 0;
        TH_CHECK(calls_of("ncclMemAlloc", p) == effect, "%s", dtr_fake_cuda_log_text());
        TH_CHECK(heard.no_effect == lines && heard.why == lines, "what was said");
        TH_IS(dtr_free(w, p), DTR_OK);
        TH_CHECK(calls_of("ncclMemFree", p) == effect, "%s", dtr_fake_cuda_log_text());
        TH_AGREE();
        TH_IS(dtr_world_destroy(w), DTR_OK);
    }
    if (old_version()) {
        dtr_fake_cuda_log_start();
        dtr_group *g = connected_group(0);
        dtr_buffer b = filled(LARGE, 1);
        sum_good(g, b);
        drop(b);
        TH_CHECK(calls("ncclCommRegister") == 0 && calls("ncclMem") == 0, "a call that is absent");
        destroy(g);
    }
    TH_AGREE();
}
END_TEST

/* AA3, AA7: a block is NCCL's own memory, each communicator of its device knows it from its
 * beginning, and none when it is freed. */
START_TEST(AA3_blocks) {
    dtr_group *a = connected_group(0), *b = connected_group(0);
    dtr_fake_cuda_log_start();
    dtr_buffer m = filled(LARGE, 1);
    TH_CHECK(calls_of("ncclMemAlloc", m.data) == 1, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(told(0, m.data) == 2, "%s", dtr_fake_cuda_log_text());
    sum_good(a, m);
    TH_CHECK(told(0, m.data) == 2, "%s", dtr_fake_cuda_log_text());
    void *p = m.data;
    drop(m);
    TH_CHECK(untold(p) == 2 && calls_of("ncclMemFree", p) == 1, "%s", dtr_fake_cuda_log_text());
    const char *log = dtr_fake_cuda_log_text(), *last = NULL;
    for (const char *at = log; (at = strstr(at, "ncclCommDeregister rank")) != NULL; at++) {
        last = at;
    }
    TH_CHECK(last != NULL && last < strstr(log, "ncclMemFree ptr"), "%s", log);
    TH_IS(dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, 0, &p), DTR_OK); /* of nothing */
    TH_IS(dtr_free(th_world(), p), DTR_OK);
    no_mistake();
    destroy(a);
    destroy(b);
}
END_TEST

static _Atomic int dropped;

/* Lets the held stream go once the block's end waits for it, or has not waited. */
static void *let_go_main(void *event) {
    while (calls("cudaFree p=") == 0 && calls("ncclMemFree ptr") == 0 && !atomic_load(&dropped)) {
        th_sleep(0.001);
    }
    TH_CHECK(calls("ncclMemFree ptr") == 0 && !atomic_load(&dropped),
             "the memory is gone while a stream has to use it");
    dtr_fake_cuda_hold(event, 0);
    return NULL;
}

/* Frees a block that a held stream has to use, and returns that stream. */
static cudaStream_t drop_while_used(dtr_buffer m, cudaEvent_t *open) {
    cudaStream_t stream = held_stream(open);
    pthread_t thread;
    TH_CHECK(cudaMemsetAsync(m.data, 0, N, stream) == cudaSuccess, "fill");
    dtr_fake_cuda_log_start();
    atomic_store(&dropped, 0);
    TH_CHECK(pthread_create(&thread, NULL, let_go_main, *open) == 0, "thread");
    drop(m);
    atomic_store(&dropped, 1);
    pthread_join(thread, NULL);
    return stream;
}

/* AA7: what the program's streams still do with a block is over when its memory goes. */
START_TEST(AA7_free_waits) {
    cudaEvent_t open;
    cudaStream_t stream = drop_while_used(device_f32(LARGE), &open);
    TH_CHECK(calls("ncclMemFree ptr") == 1, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
    TH_AGREE();
}
END_TEST

/* How many blocks have begun since the log did; each is known. */
static int blocks_known(void) {
    int n = 0;
    const char *log = dtr_fake_cuda_log_text(), *at = log;
    for (; (at = strstr(at, "ncclMemAlloc ptr ")) != NULL; n++) {
        void *p = NULL;
        TH_CHECK(sscanf(at, "ncclMemAlloc ptr %p", &p) == 1, "%.60s", at);
        TH_CHECK(told(0, p) > 0, "block %p is not known: %s", p, log);
        at++;
    }
    return n;
}

/* AA3: buckets of DDP. */
START_TEST(AA3_buckets) {
    enum { P = 3 }; /* one bucket each */
    dtr_group *g = connected_group(0);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_param params[P] = { 0 };
    dtr_tensor *value[P];
    dtr_ddp *ddp = NULL;
    cudaStream_t s;
    TH_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess, "stream");
    for (int i = 0; i < P; i++) {
        value[i] = on_gpu(DTR_F32, 1000 + i, i, s);
        params[i] = (dtr_param){ i == 0 ? "a" : i == 1 ? "b" : "c", value[i], NULL, 0 };
    }
    o.bucket_cap_bytes = o.first_bucket_bytes = 4200;
    dtr_fake_cuda_log_start();
    TH_IS(dtr_ddp_create(g, params, P, &o, &ddp), DTR_OK);
    int made = blocks_known(), known = calls("ncclCommRegister rank");
    TH_CHECK(made > 0, "no memory: %s", dtr_fake_cuda_log_text());
    TH_IS(dtr_group_drain(g, -1), DTR_OK);
    TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
    TH_CHECK(calls("ncclCommDeregister rank") == known && calls("ncclMemFree ptr") == made, "%s",
             dtr_fake_cuda_log_text());
    no_mistake();
    for (int i = 0; i < P; i++) {
        dtr_tensor_release(value[i]);
    }
    cudaStreamDestroy(s);
    destroy(g);
}
END_TEST

/* AA4: a new communicator knows the blocks of its own device that are there, split ones too. */
START_TEST(AA4_new_communicator) {
    const dtr_device second = { DTR_CUDA, 1 };
    void *own = NULL, *other = NULL;
    dtr_group *half = NULL;
    TH_IS(dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, LARGE * 4, &own), DTR_OK);
    TH_IS(dtr_alloc(th_world(), second, DTR_MEM_DEFAULT, LARGE * 4, &other), DTR_OK);
    dtr_fake_cuda_log_start();
    dtr_group *g = connected_group(0);
    TH_CHECK(told(0, own) == 1 && told(0, other) == 0, "%s", dtr_fake_cuda_log_text());
    TH_IS(dtr_group_connect(g, second), DTR_OK);
    TH_CHECK(told(1, other) == 1 && told(1, own) == 0, "%s", dtr_fake_cuda_log_text());
    destroy(g);
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.backend = "cpu:auto,cuda:nccl";
    o.device = gpu;
    o.has_device = true;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_OK);
    TH_IS(dtr_group_split(g, 0, th_rank(), &o, &half), DTR_OK);
    TH_CHECK(calls("ncclCommSplit rank") == 1, "not split: %s", dtr_fake_cuda_log_text());
    TH_CHECK(told(0, own) == 3 && told(0, other) == 0, "%s", dtr_fake_cuda_log_text());
    no_mistake();
    destroy(half);
    destroy(g);
    TH_IS(dtr_free(th_world(), own), DTR_OK);
    TH_IS(dtr_free(th_world(), other), DTR_OK);
    TH_AGREE();
}
END_TEST

static void await_call(const char *text) {
    while (calls(text) == 0) { /* on a thread of the library */
        th_sleep(0.001);
    }
}

/* AA5, I2: before a communicator ends or is aborted, it knows no block any more. */
START_TEST(AA5_teardown) {
    dtr_buffer m = filled(LARGE, 1);
    for (int abort_it = 0; abort_it < 2; abort_it++) {
        const char *end = abort_it ? "ncclCommAbort" : "ncclCommFinalize";
        dtr_group *g = connected_group(0);
        TH_IS(dtr_group_drain(g, -1), DTR_OK);
        dtr_fake_cuda_log_start();
        if (abort_it) {
            th_barrier(); /* a peer's abort ends this rank's too: it shall be in the log */
            TH_IS(dtr_group_abort(g, "enough"), DTR_OK);
            th_barrier();
        }
        TH_IS(dtr_group_destroy(g), DTR_OK);
        await_call(end);
        const char *log = dtr_fake_cuda_log_text(), *gone = strstr(log, "ncclCommDeregister rank");
        TH_CHECK(untold(m.data) == 1 && gone != NULL && gone < strstr(log, end), "%s", log);
        no_mistake();
        TH_AGREE();
    }
    void *p = m.data;
    dtr_fake_cuda_log_start();
    drop(m);
    TH_CHECK(untold(p) == 0 && calls_of("ncclMemFree", p) == 1, "%s", dtr_fake_cuda_log_text());
    no_mistake();
    TH_AGREE();
}
END_TEST

/* AA6: what is known already or is not known is an error inside; what NCCL does not take is moved
 * all the same, with one warning of each communicator. */
START_TEST(AA6_errors) {
    static char memory[8];
    dtr__nccl_blocks *list = th_world()->groups->blocks;
    TH_IS(dtr__nccl_block_remove(list, memory), DTR_ERR_INTERNAL);
    TH_IS(dtr__nccl_block_add(list, 0, memory, sizeof memory, false), DTR_OK);
    TH_IS(dtr__nccl_block_add(list, 0, memory, sizeof memory, false), DTR_ERR_INTERNAL);
    TH_MESSAGE("twice");
    TH_IS(dtr__nccl_block_remove(list, memory), DTR_OK);
    TH_IS(dtr__nccl_block_remove(list, memory), DTR_ERR_INTERNAL);
    dtr_group *g = connected_group(0);
    const char *const faults[] = { "ncclCommRegister:1:3", "ncclCommRegister:1:7" };
    for (int i = 0; i < 2; i++) { /* the second: it is in progress, which is no failure */
        fault("DTR_FAKE_NCCL_ERR", faults[i]);
        th_log_clear();
        dtr_fake_cuda_log_start();
        dtr_buffer m = filled(LARGE, 1);
        fault("DTR_FAKE_NCCL_ERR", NULL);
        sum_good(g, m);
        TH_CHECK(th_log_count("NCCL was not told of a block") == (i == 0), "what was said");
        TH_CHECK(told(0, m.data) == 0, "%s", dtr_fake_cuda_log_text());
        drop(m);
        TH_CHECK(calls("ncclCommDeregister rank") == 0, "%s", dtr_fake_cuda_log_text());
        no_mistake();
    }
    destroy(g);
}
END_TEST

/* AA7: CUDA's memory where NCCL has none, and each back where it came from. */
START_TEST(AA7_other_memory) {
    dtr_group *g = connected_group(0);
    dtr_fake_cuda_log_start();
    fault("DTR_FAKE_NCCL_ERR", "ncclMemAlloc:1:1");
    dtr_buffer m = filled(LARGE, 1);
    fault("DTR_FAKE_NCCL_ERR", NULL);
    TH_CHECK(calls_of("ncclMemAlloc", m.data) == 0 && told(0, m.data) == 1, "%s",
             dtr_fake_cuda_log_text());
    sum_good(g, m);
    void *p = m.data;
    drop(m);
    TH_CHECK(untold(p) == 1 && calls("ncclMemFree") == 0, "%s", dtr_fake_cuda_log_text());
    no_mistake();
    destroy(g);
}
END_TEST

/* AA7, AA3: small blocks share NCCL's memory, which each communicator knows as one; what one of
 * them held is free for the next one. */
START_TEST(AA7_small_blocks) {
    enum { BLOCKS = 600, SMALL = 5000 };
    static char *p[BLOCKS];
    dtr_group *g = connected_group(0);
    dtr_fake_cuda_log_start();
    for (int i = 0; i < BLOCKS; i++) {
        void *ptr = NULL;
        TH_IS(dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, SMALL, &ptr), DTR_OK);
        p[i] = ptr;
        TH_CHECK(cudaMemset(ptr, i & 0x7f, SMALL) == cudaSuccess, "fill");
    }
    const int slabs = calls("ncclMemAlloc ptr");
    TH_CHECK(slabs > 0 && slabs <= 4 && calls("ncclCommRegister rank") == slabs, "%s",
             dtr_fake_cuda_log_text());
    for (int i = 0; i < BLOCKS; i++) { /* none has written into another */
        static char got[SMALL];
        TH_CHECK(cudaMemcpy(got, p[i], SMALL, cudaMemcpyDeviceToHost) == cudaSuccess, "copy");
        TH_CHECK(got[0] == (i & 0x7f) && got[SMALL - 1] == got[0], "block %d", i);
    }
    dtr_buffer m = filled(N, 1);
    sum_good(g, m);
    drop(m);
    for (int i = 0; i < BLOCKS; i += 2) { /* holes serve again */
        TH_IS(dtr_free(th_world(), p[i]), DTR_OK);
    }
    for (int i = 0; i < BLOCKS; i += 2) {
        void *ptr = NULL;
        TH_IS(dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, SMALL, &ptr), DTR_OK);
        p[i] = ptr;
    }
    TH_CHECK(calls("ncclMemAlloc ptr") == slabs && calls("ncclMemFree ptr") == 0, "%s",
             dtr_fake_cuda_log_text());
    for (int i = 0; i < BLOCKS; i++) {
        TH_IS(dtr_free(th_world(), p[i]), DTR_OK);
    }
    TH_CHECK(calls("ncclMemFree ptr") >= slabs - 1 &&
                 calls("ncclCommDeregister rank") == calls("ncclMemFree ptr"),
             "%s", dtr_fake_cuda_log_text());
    no_mistake();
    destroy(g);
}
END_TEST

/* AA7: a small block's place is nobody else's while a stream of the program has to use it. */
START_TEST(AA7_small_free_waits) {
    cudaEvent_t open;
    cudaStream_t stream = drop_while_used(device_f32(N), &open);
    TH_CHECK(cudaStreamQuery(stream) == cudaSuccess, "freed before the stream had used it");
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
    TH_AGREE();
}
END_TEST

/* A small block outlives its world, and the memory it shares goes with it. */
START_TEST(AA7_small_retained) {
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_world *w = NULL;
    void *p = NULL;
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &o, &w), DTR_OK);
    dtr_fake_cuda_log_start();
    TH_IS(dtr_alloc(w, gpu, DTR_MEM_DEFAULT, N, &p), DTR_OK);
    TH_IS(dtr_retain(w, p), DTR_OK);
    TH_AGREE();
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_CHECK(cudaMemset(p, 0, N) == cudaSuccess && calls("ncclMemFree ptr") == 0, "%s",
             dtr_fake_cuda_log_text());
    TH_IS(dtr_free(NULL, p), DTR_OK);
    TH_CHECK(calls("ncclMemFree ptr") == 1, "%s", dtr_fake_cuda_log_text());
    no_mistake();
    TH_AGREE();
}
END_TEST

static _Atomic int enough;

static void *allocate_main(void *arg) {
    dtr_status *s = arg;
    while (*s == DTR_OK && atomic_load(&enough) == 0) {
        void *p = NULL;
        *s = dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, 4096, &p);
        *s = *s == DTR_OK ? dtr_free(th_world(), p) : *s;
    }
    return NULL;
}

/* AA3, AA4, AA5 beside operations: blocks come and go while communicators do. */
START_TEST(AA3_threads) {
    pthread_t thread;
    dtr_status got = DTR_OK;
    dtr_buffer m = filled(LARGE, 0);
    dtr_fake_cuda_log_start();
    atomic_store(&enough, 0);
    TH_CHECK(pthread_create(&thread, NULL, allocate_main, &got) == 0, "thread");
    for (int i = 0; i < 4; i++) {
        dtr_group *g = new_group();
        for (int k = 0; k < 3; k++) {
            TH_IS(dtr_allreduce(g, m, m, DTR_MAX, NULL, NULL), DTR_OK);
        }
        TH_IS(dtr_group_drain(g, -1), DTR_OK);
        destroy(g);
    }
    atomic_store(&enough, 1);
    pthread_join(thread, NULL);
    TH_CHECK(got == DTR_OK, "%s", dtr_status_name(got));
    no_mistake();
    check(m, 0, 1, "maximum");
    drop(m);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl register", 110);
    th_add(tc, AA1_switch, 1, 0);
    if (old_version()) {
        return;
    }
    th_add(tc, AA3_blocks, 1, 0);
    th_add(tc, AA3_buckets, 1, 0);
    th_add(tc, AA4_new_communicator, 1, 0);
    th_add(tc, AA5_teardown, 1, 0);
    th_add(tc, AA6_errors, 1, 0);
    th_add(tc, AA7_other_memory, 1, 0);
    th_add(tc, AA7_free_waits, 1, 0);
    th_add(tc, AA7_small_blocks, 1, 0);
    th_add(tc, AA7_small_free_waits, 1, 0);
    th_add(tc, AA7_small_retained, 1, 0);
    th_add(tc, AA3_threads, 1, 0);
}

int main(int argc, char **argv) {
    setenv("DTR_LOG", "info", 0); /* AA1 */
    return th_main(argc, argv, "nccl register", make);
}
