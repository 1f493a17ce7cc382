/* The life of communicators on the stand-ins: how they are asked for, polled, found broken and
 * given up, and which arguments are refused before NCCL is asked for anything; on two devices. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <dtr/mpi.h>
#include <dtr/nccl.h>

#include "agreement/key_value.h"
#include "backends/nccl/nccl_internal.h"
#include "nccl_data.h"
#include "settings.h"

static const dtr_device second = { DTR_CUDA, 1 };

static int calls(const char *text) {
    return dtr_fake_cuda_log_count(text);
}

static int posed_version(void) {
    const char *v = getenv("DTR_FAKE_NCCL_VERSION");
    return v != NULL ? atoi(v) : 99999;
}

static dtr_group *new_group(void) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    o.backend = "cpu:auto,cuda:nccl"; /* one rank alone calls NCCL too */
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_OK);
    TH_AGREE();
    return g;
}

/* A world with a setting. */
static dtr_world *new_world(const char *name, const char *value) {
    dtr_world *w = TH_WORLD_WITH(NULL, name, value);
    TH_AGREE();
    return w;
}

/* ---- arguments ---- */

/* B2: at DTR_DEBUG=detail memory must be where its buffer says; otherwise nobody asks. */
START_TEST(B2_where_memory_is) {
    static float host[N];
    dtr_world *w = new_world("DTR_DEBUG", "detail");
    dtr_group *g = dtr_world_group(w);
    dtr_buffer good = filled(N, 1), other = good, wrong = good, far = good;
    void *pinned = NULL;
    TH_IS(dtr_alloc(th_world(), second, DTR_MEM_DEFAULT, N * sizeof(float), &far.data), DTR_OK);
    TH_IS(dtr_alloc(th_world(), (dtr_device){ DTR_CPU, 0 }, DTR_MEM_PINNED, N * sizeof(float),
                    &pinned),
          DTR_OK);
    void *const bad[] = { far.data, host, pinned };
    static const char *const said[] = { "is memory of cuda:1", "is memory of no device",
                                        "is memory of no device" };
    for (int i = 0; i < 3; i++) {
        wrong.data = bad[i];
        dtr_p2p entry[] = { { true, good, th_rank(), 0 }, { false, wrong, th_rank(), 0 } };
        TH_IS(dtr_allreduce(g, wrong, wrong, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
        TH_MESSAGE(said[i]);
        TH_MESSAGE("in.data");
        TH_IS(dtr_allreduce(g, good, wrong, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
        TH_MESSAGE("out.data");
        TH_IS(dtr_batch_p2p(g, entry, 2, NULL, NULL), DTR_ERR_DEVICE);
        TH_MESSAGE("ops[1].buf.data");
    }
    other.data = NULL;
    other.count = 0;
    TH_CHECK(dtr_group_seq(g) == 0, "a refused call took a number");
    TH_AGREE();
    TH_IS(dtr_allreduce(g, other, other, DTR_SUM, NULL, NULL), DTR_OK); /* of nothing */
    TH_IS(dtr_allreduce(g, good, good, DTR_SUM, NULL, NULL), DTR_OK);
    check(good, 1, (float)th_size(), "sum");
    dtr_fake_cuda_log_start();
    allreduce_good(th_group());
    TH_CHECK(calls("cudaPointerGetAttributes") == 0, "%s", dtr_fake_cuda_log_text());
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_IS(dtr_free(th_world(), pinned), DTR_OK);
    drop(far);
    drop(good);
    TH_AGREE();
}
END_TEST

typedef struct faulty {
    dtr__kind kind;
    dtr_dtype in, out;
    size_t n_in, n_out;
    int root;
    dtr_status want;
} faulty;

static dtr_status refused(const faulty *f, dtr_device d, void *a, void *b) {
    dtr_group *g = th_group();
    dtr_buffer in = { a, f->n_in, f->in, d }, out = { b, f->n_out, f->out, d };
    switch (f->kind) {
    case DTR__K_REDUCE:
        return dtr_reduce(g, in, out, DTR_SUM, f->root, NULL, NULL);
    case DTR__K_ALLGATHER:
        return dtr_allgather(g, in, out, NULL, NULL);
    case DTR__K_REDUCE_SCATTER:
        return dtr_reduce_scatter(g, in, out, DTR_SUM, NULL, NULL);
    case DTR__K_GATHER:
        return dtr_gather(g, in, out, f->root, NULL, NULL);
    case DTR__K_SCATTER:
        return dtr_scatter(g, in, out, f->root, NULL, NULL);
    default:
        return dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL);
    }
}

/* collectives:NCK1, NCK2, NCK4, NCK5, NCK6, NCK9, NCK10: what is wrong with buffers of a device is
 * found in the order and said in the words of the host's, before NCCL is asked for anything. */
START_TEST(NCK10_as_on_the_host) {
    static char host[2][64];
    const int elsewhere = (th_rank() + 1) % th_size();
    const faulty t[] = {
        { DTR__K_ALLREDUCE, DTR_F32, DTR_I32, 4, 4, 0, DTR_ERR_DTYPE },
        { DTR__K_ALLREDUCE, DTR_F32, DTR_I32, 4, 5, 0, DTR_ERR_DTYPE }, /* two faults */
        { DTR__K_ALLREDUCE, DTR_F32, DTR_F32, 4, 5, 0, DTR_ERR_SHAPE },
        { DTR__K_REDUCE, DTR_F32, DTR_I32, 4, 4, 99, DTR_ERR_RANK }, /* two faults */
        { DTR__K_ALLGATHER, DTR_U8, DTR_U8, SIZE_MAX, 4, 0, DTR_ERR_OVERFLOW },
        { DTR__K_ALLGATHER, DTR_F64, DTR_F64, SIZE_MAX / 4, 4, 0, DTR_ERR_OVERFLOW },
        { DTR__K_ALLGATHER, DTR_F32, DTR_F32, 2, 3, 0, DTR_ERR_SHAPE },
        { DTR__K_REDUCE_SCATTER, DTR_F32, DTR_F32, 3, 2, 0, DTR_ERR_SHAPE },
        { DTR__K_GATHER, DTR_F32, DTR_F32, 2, 4, elsewhere, DTR_ERR_ARG },
        { DTR__K_SCATTER, DTR_F32, DTR_F32, 2, 2, elsewhere, DTR_ERR_ARG },
    };
    dtr_buffer a = filled(16, 1), b = filled(16, 1), x = a, y = b;
    char words[512];
    dtr_fake_cuda_log_start();
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        TH_IS(refused(&t[i], (dtr_device){ DTR_CPU, 0 }, host[0], host[1]), t[i].want);
        snprintf(words, sizeof words, "%s", dtr_last_error_message());
        TH_IS(refused(&t[i], gpu, a.data, b.data), t[i].want);
        TH_CHECK(strcmp(words, dtr_last_error_message()) == 0, "\"%s\", on the host \"%s\"",
                 dtr_last_error_message(), words);
    }
    static const int indices[] = { 2, 77, -1 };
    for (int i = 0; i < 3; i++) {
        x.device.index = indices[i];
        TH_IS(dtr_allreduce(th_group(), x, x, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
    }
    y.device = second;
    TH_IS(dtr_allreduce(th_group(), a, y, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
    y = dtr_cpu(host[0], 16, DTR_F32);
    TH_IS(dtr_allreduce(th_group(), a, y, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
    TH_CHECK(calls("nccl") == 0 && dtr_group_seq(th_group()) == 0, "%s", dtr_fake_cuda_log_text());
    drop(a);
    drop(b);
    TH_AGREE();
    allreduce_good(th_group());
    TH_AGREE();
}
END_TEST

/* ---- tables ---- */

/* A12, collectives:NCC5, NCC6, NCC7, NCC8: what each type travels as. A2, A6, NCC9, NCC11: NCCL's
 * numbers of operators. */
START_TEST(NCC5_tables) {
    static const struct {
        int carrier, per;
    } t[] = { [DTR_BOOL] = { 1, 1 },       [DTR_U8] = { 1, 1 },        [DTR_I8] = { 0, 1 },
              [DTR_I16] = { 1, 2 },        [DTR_I32] = { 2, 1 },       [DTR_I64] = { 4, 1 },
              [DTR_F16] = { 6, 1 },        [DTR_F8E4M3] = { 1, 1 },    [DTR_F8E5M2] = { 1, 1 },
              [DTR_BF16] = { 9, 1 },       [DTR_F32] = { 7, 1 },       [DTR_F64] = { 8, 1 },
              [DTR_C64] = { 7, 2 },        [DTR_C128] = { 8, 2 },      [DTR_U16] = { 1, 2 },
              [DTR_U32] = { 3, 1 },        [DTR_U64] = { 5, 1 },       [DTR_F32_INDEX] = { 1, 16 },
              [DTR_F64_INDEX] = { 1, 16 }, [DTR_I64_INDEX] = { 1, 16 } };
    static const int ops[] = {
        [DTR_SUM] = 0, [DTR_AVG] = 4, [DTR_PROD] = 1, [DTR_MIN] = 3, [DTR_MAX] = 2
    };
    char text[64];
    dtr_buffer a = device_f32(4096), b = device_f32(4096);
    for (int d = 0; d <= DTR_I64_INDEX; d++) {
        dtr_buffer in = { a.data, 5, (dtr_dtype)d, gpu }, out = in;
        out.data = b.data;
        out.count = 5 * (size_t)th_size();
        snprintf(text, sizeof text, "ncclAllGather rank %d of %d, %d x type %d,", th_rank(),
                 th_size(), 5 * t[d].per, t[d].carrier);
        dtr_fake_cuda_log_start();
        TH_IS(dtr_allgather(th_group(), in, out, NULL, NULL), DTR_OK);
        TH_CHECK(calls(text) == 1, "no %s: %s", text, dtr_fake_cuda_log_text());
    }
    for (int op = 0; op <= DTR_PROD + 2; op++) {
        dtr_buffer f = { a.data, 5, DTR_F32, gpu }, flag = { b.data, 5, DTR_BOOL, gpu };
        dtr_fake_cuda_log_start();
        TH_IS(dtr_allreduce(th_group(), f, f, (dtr_op)op, NULL, NULL), DTR_OK);
        snprintf(text, sizeof text, "5 x type 7, op %d,", ops[op]);
        TH_CHECK(calls(text) == 1, "no %s: %s", text, dtr_fake_cuda_log_text());
        TH_IS(dtr_allreduce(th_group(), flag, flag, (dtr_op)op, NULL, NULL),
              op == DTR_AVG ? DTR_ERR_DTYPE : DTR_OK);
        snprintf(text, sizeof text, "5 x type 1, op %d,", op == DTR_SUM ? 2 : ops[op]);
        TH_CHECK(calls(text) == (op != DTR_AVG), "%s: %s", text, dtr_fake_cuda_log_text());
    }
    /* collectives:NCC13 */
    int v = posed_version() == 99999 ? dtr__nccl_get()->version : posed_version();
    uint64_t packed =
        (uint64_t)(v / 10000) << 32 | (uint64_t)(v / 100 % 100) << 16 | (uint64_t)(v % 100);
    TH_CHECK(dtr_nccl_version() == packed, "version %llx of %d",
             (unsigned long long)dtr_nccl_version(), v);
    drop(a);
    drop(b);
    TH_AGREE();
}
END_TEST

/* ---- every entry point fails once ---- */

typedef enum way { FIRST, SUM, AVERAGE, MESSAGES, COPY, ROOTED, SPREAD, ADDED, SCALED } way;

static dtr_status go(dtr_group *g, way what, dtr_buffer a, dtr_buffer b, dtr_work **w) {
    size_t n = (size_t)th_size();
    int next = (th_rank() + 1) % th_size(), before = (th_rank() + th_size() - 1) % th_size();
    dtr_buffer part = { a.data, 8, DTR_F32, gpu }, all = { b.data, 8 * n, DTR_F32, gpu };
    dtr_buffer wide = { a.data, 8 * n, DTR_F32, gpu }, none = { NULL, 0, DTR_F32, gpu };
    dtr_p2p ring[] = { { true, part, next, 0 }, { false, { b.data, 8, DTR_F32, gpu }, before, 0 } };
    dtr_p2p self[] = { { true, part, th_rank(), 0 },
                       { false, { b.data, 8, DTR_F32, gpu }, th_rank(), 0 } };
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    bool root = th_rank() == 0;
    o.premul = 2;
    switch (what) {
    case MESSAGES:
        return dtr_batch_p2p(g, ring, 2, NULL, w);
    case COPY:
        return dtr_batch_p2p(g, self, 2, NULL, w);
    case AVERAGE:
        part.dtype = DTR_I32;
        return dtr_allreduce(g, part, part, DTR_AVG, NULL, w);
    case SCALED:
        return dtr_allreduce(g, part, part, DTR_PREMUL_SUM, &o, w);
    case ROOTED: {
        dtr_status s = dtr_broadcast(g, part, 0, NULL, NULL);
        s = s == DTR_OK ? dtr_reduce(g, part, part, DTR_SUM, 0, NULL, NULL) : s;
        s = s == DTR_OK ? dtr_gather(g, part, root ? all : none, 0, NULL, NULL) : s;
        return s == DTR_OK ? dtr_scatter(g, root ? all : none, part, 0, NULL, w) : s;
    }
    case SPREAD: {
        dtr_status s = dtr_allgather(g, part, all, NULL, NULL);
        return s == DTR_OK ? dtr_alltoall(g, wide, all, NULL, w) : s;
    }
    case ADDED:
        return dtr_reduce_scatter(g, wide, (dtr_buffer){ b.data, 8, DTR_F32, gpu }, DTR_SUM, NULL,
                                  w);
    default:
        return dtr_allreduce(g, part, part, DTR_SUM, NULL, w);
    }
}

/* collectives:NCC4: a call of NCCL or CUDA that fails is reported, with its code, wherever it is.
 * NCM11: the caller's device stays current. */
START_TEST(NCC4_every_call_fails_once) {
    static const struct {
        const char *call;
        way what;
    } t[] = { { "ncclGetUniqueId", FIRST },
              { "ncclCommInitRankConfig", FIRST },
              { "ncclCommGetAsyncError", FIRST },
              { "ncclAllReduce", SUM },
              { "ncclGroupStart", MESSAGES },
              { "ncclGroupEnd", MESSAGES },
              { "ncclSend", MESSAGES },
              { "ncclRecv", MESSAGES },
              { "ncclBroadcast", ROOTED },
              { "ncclReduce", ROOTED },
              { "ncclGather", ROOTED },
              { "ncclScatter", ROOTED },
              { "ncclAllGather", SPREAD },
              { "ncclAlltoAll", SPREAD },
              { "ncclReduceScatter", ADDED },
              { "ncclRedOpCreatePreMulSum", SCALED },
              { "ncclRedOpDestroy", SCALED },
              { "cudaStreamCreateWithPriority", FIRST },
              { "cudaEventCreateWithFlags", FIRST },
              { "cudaEventRecord", SUM },
              { "cudaStreamWaitEvent", SUM },
              { "cudaEventQuery", SUM },
              { "cudaLaunchKernel", AVERAGE },
              { "cudaMemcpyAsync", COPY } };
    dtr_buffer a = filled(512, 1), b = filled(512, 1);
    TH_CHECK(cudaSetDevice(1) == cudaSuccess, "device");
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        bool nccl = t[i].call[0] == 'n', mine = th_rank() == (i == 0 ? 0 : culprit());
        char setting[64], words[64];
        dtr_group *g = new_group();
        dtr_work *w = NULL;
        int now = -1;
        if (t[i].what != FIRST) {
            TH_IS(go(g, SUM, a, b, NULL), DTR_OK);
            TH_IS(dtr_group_drain(g, -1), DTR_OK);
        }
        th_barrier();
        snprintf(setting, sizeof setting, "%s:1:%d", t[i].call, nccl ? 3 : 719);
        bool asked = strcmp(t[i].call, "ncclCommGetAsyncError") == 0; /* about another call */
        snprintf(words, sizeof words, nccl ? "%s: NCCL error 3" : "CUDA error 719",
                 asked ? "ncclCommInitRankConfig" : t[i].call);
        fault("NCCL_COMM_BLOCKING", asked ? "0" : NULL);
        fault(nccl ? "DTR_FAKE_NCCL_ERR" : "DTR_FAKE_CUDA_ERR", mine ? setting : NULL);
        dtr_status s = go(g, t[i].what, a, b, &w);
        s = s == DTR_OK ? dtr_work_synchronize(w, -1) : s;
        TH_CHECK(mine ? s == (nccl ? DTR_ERR_NCCL : DTR_ERR_CUDA) : s <= 0, "%s: %s (%s)",
                 t[i].call, dtr_status_name(s), dtr_last_error_message());
        if (mine) {
            TH_MESSAGE(words);
        }
        TH_CHECK(cudaGetDevice(&now) == cudaSuccess && now == 1, "%s: cuda:%d is current",
                 t[i].call, now);
        TH_IS(dtr_work_release(w), DTR_OK);
        th_barrier();
        fault(nccl ? "DTR_FAKE_NCCL_ERR" : "DTR_FAKE_CUDA_ERR", NULL);
        TH_IS(dtr_group_destroy(g), DTR_OK);
        TH_CHECK(cudaSetDevice(0) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess &&
                     cudaSetDevice(1) == cudaSuccess,
                 "what was launched has ended");
        TH_AGREE();
    }
    TH_CHECK(cudaSetDevice(0) == cudaSuccess, "device");
    drop(a);
    drop(b);
    TH_AGREE();
}
END_TEST

/* ---- polling ---- */

static dtr__nccl_ops polled; /* NCCL's, but for what a test puts into it */
static _Atomic int looks;

static int busy_at_first(void *comm, int *code) {
    if (atomic_fetch_add(&looks, 1) < 3) {
        *code = polled.in_progress;
        return 0;
    }
    return dtr__nccl_get()->ops->state(comm, code);
}

static int no_answer(void *comm, int *code) {
    (void)comm;
    (void)code;
    return atomic_fetch_add(&looks, 1) == 0 ? 3 : 0;
}

/* Says that it goes on when it is over. */
static int slow_init(int device, void **comm, int size, const void *id, int rank,
                     const dtr__nccl_config *config) {
    const dtr__nccl_ops *own = dtr__nccl_get()->ops;
    int code = own->init(device, comm, size, id, rank, config), state = own->in_progress;
    while (code == own->in_progress && state == own->in_progress) {
        th_sleep(0.001);
        code = own->state(*comm, &state) == 0 ? code : -1;
    }
    return own->in_progress;
}

static void ask_instead(const dtr_group *g) {
    polled = *dtr__nccl_get()->ops;
    atomic_store(&looks, 0);
    dtr__nccl_of(g)->ops = &polled;
}

/* collectives:NCP2, NCP7: what goes on is asked for until it has changed; an answer that is none is
 * an error. G2, NCP6: who is ready when looked at has not come too late. */
START_TEST(NCP2_polling) {
    fault("NCCL_COMM_BLOCKING", "0");
    dtr_group *g = new_group();
    dtr_buffer b = filled(N, 1);
    ask_instead(g);
    polled.state = busy_at_first;
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_OK);
    TH_CHECK(atomic_load(&looks) > 3, "%d looks", atomic_load(&looks));
    check(b, 1, (float)th_size(), "sum");
    end_group(g);
    g = new_group();
    ask_instead(g);
    polled.state = no_answer;
    dtr_status s = dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL);
    TH_CHECK(s == DTR_ERR_NCCL || (s == DTR_ERR_REMOTE && th_size() > 1), "%s", dtr_status_name(s));
    TH_MESSAGE("NCCL error 3");
    end_group(g);
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    int self = th_rank();
    setenv("DTR_NCCL_BLOCKING", "0", 1);
    dtr_world *w = new_world("DTR_NCCL_INIT_TIMEOUT", "0.000001");
    unsetenv("DTR_NCCL_BLOCKING");
    o.backend = "cpu:auto,cuda:nccl";
    o.local_sync = true;
    TH_IS(dtr_group_create(w, &self, 1, &o, &g), DTR_OK);
    ask_instead(g);
    polled.init = slow_init;
    TH_IS(dtr_group_connect(g, gpu), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    fault("NCCL_COMM_BLOCKING", NULL);
    drop(b);
    TH_AGREE();
}
END_TEST

static double of_clock(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* collectives:NCP3, NCP5, NCP8: who waits for NCCL leaves the processor to others, the limit counts
 * parts of a second, and names the call. */
START_TEST(NCP8_waiting_costs_little) {
    /* The others' limit could pass before the first rank has come, who then finds it broken. */
    dtr_world *w = new_world("DTR_NCCL_INIT_TIMEOUT", th_rank() == 0 ? "0.4" : "600");
    dtr_group *g = NULL;
    dtr_buffer b = filled(N, 1);
    char rank[16];
    TH_IS(dtr_group_create(w, NULL, th_size(), NULL, &g), DTR_OK);
    snprintf(rank, sizeof rank, "%d", th_rank());
    fault_on_culprit("DTR_FAKE_NCCL_INIT_HANG_RANK", rank);
    th_barrier();
    double used = of_clock(CLOCK_THREAD_CPUTIME_ID), began = of_clock(CLOCK_MONOTONIC);
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_TIMEOUT);
    used = of_clock(CLOCK_THREAD_CPUTIME_ID) - used;
    began = of_clock(CLOCK_MONOTONIC) - began;
    TH_CHECK(th_rank() != 0 || began >= 0.4, "given up after %g s", began);
    TH_CHECK(TH_SANITIZED || used < began / 2, "%g s of %g s", used, began);
    TH_CHECK(strstr(dtr_last_error_message(), "ncclCommInitRankConfig") != NULL ||
                 strstr(dtr_last_error_message(), "has not joined: ") != NULL,
             "%s", dtr_last_error_message());
    th_barrier();
    fault("DTR_FAKE_NCCL_INIT_HANG_RANK", NULL);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    drop(b);
    TH_AGREE();
}
END_TEST

/* ---- setting up and giving up ---- */

static void *abort_main(void *arg) {
    while (calls("ncclCommInitRankConfig rank") == 0) {
        th_sleep(0.001);
    }
    TH_IS(dtr_group_abort(arg, "no longer wanted"), DTR_OK);
    return NULL;
}

/* D8, I1: another thread gives up a group whose communicator never gets ready. */
START_TEST(D8_abort_ends_an_init) {
    dtr_group *g = new_group();
    dtr_buffer b = filled(N, 1);
    pthread_t thread;
    char rank[16];
    bool aborts = th_rank() == 0;
    snprintf(rank, sizeof rank, "%d", th_rank());
    fault_on_culprit("DTR_FAKE_NCCL_INIT_HANG_RANK", rank);
    dtr_fake_cuda_log_start();
    if (aborts) {
        TH_CHECK(pthread_create(&thread, NULL, abort_main, g) == 0, "thread");
    }
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_ABORTED);
    TH_MESSAGE("no longer wanted");
    if (aborts) {
        pthread_join(thread, NULL);
    }
    fault("DTR_FAKE_NCCL_INIT_HANG_RANK", NULL);
    end_group(g);
    drop(b);
    TH_AGREE();
}
END_TEST

static bool is_there(dtr_group *g, const char *key) {
    char value[DTR__VALUE_MAX];
    size_t nbytes = 0;
    bool found = true;
    TH_IS(dtr__key_value_poll(g, DTR_CUDA, key, value, sizeof value, &nbytes, &found), DTR_OK);
    return found;
}

/* E2, E3: a message of another length than it should have is an error with its key. */
START_TEST(E3_wrong_length) {
    dtr_group *g = new_group();
    dtr_buffer b = filled(N, 1);
    bool mine = th_rank() == culprit();
    if (mine) { /* it stays here */
        TH_IS(dtr__key_value_put_to(g, DTR_CUDA, th_rank(), "nccl/0/id/0", "bad", 3), DTR_OK);
    }
    dtr_status s = dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL);
    TH_CHECK(mine ? s == DTR_ERR_INTERNAL : s < 0, "%s", dtr_status_name(s));
    TH_MESSAGE("key \"nccl/0/id/0\" has 3 bytes instead of 128");
    end_group(g);
    drop(b);
    TH_AGREE();
}
END_TEST

/* E2, E8, collectives:NCM1: messages that made a communicator are gone when it is there; a pair
 * that is broken is made again in another group, with an identifier of its own, made by the lower
 * rank. NCM8: NCCL is never asked for size, rank or device. */
START_TEST(E8_used_once) {
    dtr_buffer b = filled(N, 1);
    for (int i = 0; i < 2; i++) {
        dtr_group *g = new_group();
        dtr_fake_cuda_log_start();
        allreduce_good(g);
        TH_CHECK(!is_there(g, "nccl/0/join/1") && !is_there(g, "nccl/0/own/1"), "of all, first");
        TH_CHECK(!is_there(g, "nccl/0/id/0") && !is_there(g, "nccl/0/all/0"), "of all");
        if (th_rank() < 2) {
            TH_IS(th_rank() == 0 ? dtr_send(g, b, 1, 0, NULL, NULL)
                                 : dtr_recv(g, b, 0, 0, NULL, NULL),
                  DTR_OK);
            TH_IS(dtr_group_drain(g, -1), DTR_OK);
            TH_CHECK(!is_there(g, "nccl/0-1/0/join/1") && !is_there(g, "nccl/0-1/0/own/1"),
                     "of the pair, first");
            TH_CHECK(!is_there(g, "nccl/0-1/0/id/0") && !is_there(g, "nccl/0-1/0/all/0"),
                     "of the pair");
        }
        TH_CHECK(calls("ncclGetUniqueId") == (th_rank() == 0 ? 2 : 0), "%s",
                 dtr_fake_cuda_log_text());
        TH_CHECK(calls("ncclCommCount") + calls("ncclCommUserRank") + calls("ncclCommCuDevice") ==
                     0,
                 "%s", dtr_fake_cuda_log_text());
        TH_AGREE();
        TH_IS(i == 0 ? dtr_group_abort(g, "broken") : DTR_OK, DTR_OK);
        end_group(g);
    }
    check(b, 1, 1, "message");
    drop(b);
    TH_AGREE();
}
END_TEST

/* I11: from 2.22 on the communicators of a group are aborted in one native group. */
START_TEST(I11_aborted_together) {
    dtr_group *g = new_group();
    dtr_buffer one = filled(N, 1), two = one;
    bool together = posed_version() >= 22200;
    TH_IS(dtr_alloc(th_world(), second, DTR_MEM_DEFAULT, N * sizeof(float), &two.data), DTR_OK);
    two.device = second;
    TH_IS(dtr_allreduce(g, one, one, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_allreduce(g, two, two, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_group_drain(g, -1), DTR_OK);
    dtr_fake_cuda_log_start(); /* before any rank aborts */
    TH_AGREE();
    TH_IS(dtr_group_abort(g, "enough"), DTR_OK);
    while (calls("ncclCommAbort") < 2 || calls("ncclGroupEnd depth 0") < together) {
        th_sleep(0.001);
    }
    const char *log = dtr_fake_cuda_log_text(), *first = strstr(log, "ncclCommAbort");
    const char *start = strstr(log, "ncclGroupStart"), *end = strstr(log, "ncclGroupEnd");
    const char *last = strstr(first + 1, "ncclCommAbort");
    TH_CHECK(together ? start != NULL && end != NULL && start < first && last < end
                      : start == NULL && end == NULL,
             "%s", log);
    TH_CHECK(calls("mistake") == 0, "%s", log);
    end_group(g);
    drop(one);
    drop(two);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl life", 110);
    if (posed_version() >= 22800) {
        th_add(tc, B2_where_memory_is, 1, 0);
        th_add(tc, NCK10_as_on_the_host, 2, 0);
        th_add(tc, NCC4_every_call_fails_once, 2, 0);
        th_add(tc, NCP2_polling, 1, 0);
        th_add(tc, NCP8_waiting_costs_little, 2, 0);
        th_add(tc, D8_abort_ends_an_init, 2, 0);
        th_add(tc, E3_wrong_length, 2, 0);
        th_add(tc, E8_used_once, 2, 0);
    }
    th_add(tc, NCC5_tables, 2, 0);
    th_add(tc, I11_aborted_together, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl life", make);
}
