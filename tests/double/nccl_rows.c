/* What every call hands to NCCL, on which device and in which order, as the log of the stand-ins
 * has it; and what groups, handles, numbers and records say of calls on device buffers. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <dtr/tensor.h>

#include "agreement/key_value.h"
#include "core/team.h"
#include "engine/engine.h"
#include "nccl_data.h"

enum { FEW = 5, LINES = 512 };

static int calls(const char *text) {
    return dtr_fake_cuda_log_count(text);
}

/* ---- what is handed to NCCL ---- */

typedef struct native {
    char name[32];
    size_t count;
    int type, op;
} native;

/* The native calls in the log. */
static int native_calls(native list[LINES]) {
    int n = 0;
    char line[160];
    for (const char *at = dtr_fake_cuda_log_text(); *at != '\0' && n < LINES;
         at += strcspn(at, "\n"), at += *at == '\n') {
        native *c = &list[n];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        n += sscanf(line, "%31s rank %*d of %*d, %zu x type %d, op %d", c->name, &c->count,
                    &c->type, &c->op) == 4;
    }
    return n;
}

/* Every call that moves or reduces data, each rank's share of `n` elements, or `n` and its number.
 * Returns how many calls. */
static int every_call(dtr_group *g, dtr_dtype d, size_t n) {
    enum { RANKS = 8 };
    int size = th_size(), next = (th_rank() + 1) % size, before = (th_rank() + size - 1) % size;
    size_t more[RANKS], equal[RANKS], all = 0;
    dtr_buffer a = device_f32(4096), b = device_f32(4096), c = device_f32(4096);
    for (int r = 0; r < size; r++) {
        equal[r] = n;
        more[r] = n > 0 ? n + (size_t)r : 0;
        all += more[r];
    }
    dtr_buffer in = { a.data, n, d, gpu }, out = { b.data, n, d, gpu };
    dtr_buffer own = { a.data, more[th_rank()], d, gpu }, got = own;
    dtr_buffer wide_in = { a.data, n * (size_t)size, d, gpu }, wide_out = wide_in;
    dtr_buffer list_in = { a.data, all, d, gpu }, list_out = { b.data, all, d, gpu };
    dtr_buffer none = { NULL, 0, d, gpu };
    bool root = th_rank() == 0;
    wide_out.data = got.data = b.data;
    dtr_p2p ring[] = { { true, in, next, 0 }, { false, out, before, 0 } };
    TH_IS(dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_reduce(g, in, out, DTR_SUM, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_reduce_scatter(g, wide_in, out, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_reduce_scatterv(g, list_in, more, got, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_broadcast(g, in, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_allgather(g, in, wide_out, NULL, NULL), DTR_OK);
    TH_IS(dtr_allgatherv(g, own, list_out, more, NULL, NULL), DTR_OK);
    TH_IS(dtr_gather(g, in, root ? wide_out : none, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_gatherv(g, own, root ? list_out : none, root ? more : NULL, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_scatter(g, root ? wide_in : none, out, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_scatterv(g, root ? list_in : none, root ? more : NULL, got, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_alltoall(g, wide_in, wide_out, NULL, NULL), DTR_OK);
    TH_IS(dtr_alltoallv(g, wide_in, equal, wide_out, equal, NULL, NULL), DTR_OK);
    TH_IS(dtr_batch_p2p(g, ring, 2, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_broadcast(g, (dtr_buffer){ c.data, n, d, gpu }, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(g, NULL), DTR_OK);
    int lone = th_rank() ^ 1;
    if (lone < size) {
        TH_IS(th_rank() < lone ? dtr_send(g, in, lone, 0, NULL, NULL)
                               : dtr_recv(g, out, lone, 0, NULL, NULL),
              DTR_OK);
    }
    drop(a);
    drop(b);
    drop(c);
    TH_AGREE();
    return 16 + (lone < size);
}

/* A5, A12, A19, collectives:NCC9, NCO4: bool travels as bytes and complex numbers as pairs of their
 * parts, in every call. B11, NCO5: no elements are as many native calls as some. */
START_TEST(A19_what_carries_an_element) {
    enum { U8 = 1, F32 = 7, F64 = 8, MAX = 2 };
    static const struct {
        dtr_dtype type;
        int carrier;
        size_t per;
    } t[] = { { DTR_BOOL, U8, 1 }, { DTR_C64, F32, 2 }, { DTR_C128, F64, 2 } };
    static native list[LINES];
    int issued = 0;
    for (int i = 0; i < 3; i++) {
        dtr_fake_cuda_log_start();
        int made = every_call(th_group(), t[i].type, FEW);
        issued = native_calls(list);
        TH_CHECK(issued >= made, "%d native calls for %d", issued, made);
        for (int k = 0; k < issued; k++) {
            bool sum = strstr(list[k].name, "Reduce") != NULL;
            TH_CHECK(list[k].type == t[i].carrier && list[k].count % t[i].per == 0 &&
                         list[k].count / t[i].per - FEW < (size_t)th_size(),
                     "%s of %s: %zu x type %d", list[k].name, dtr_dtype_name(t[i].type),
                     list[k].count, list[k].type);
            TH_CHECK(!sum || (list[k].op == MAX) == (t[i].type == DTR_BOOL), "%s: op %d",
                     list[k].name, list[k].op);
        }
        TH_AGREE();
    }
    dtr_fake_cuda_log_start();
    (void)every_call(th_group(), DTR_C128, 0);
    int empty = native_calls(list);
    issued -= th_size() - 1; /* of allgatherv, whose counts are equal now */
    TH_CHECK(empty == issued, "%d native calls without elements, %d with", empty, issued);
    for (int k = 0; k < empty; k++) {
        TH_CHECK(list[k].count == 0, "%s has %zu", list[k].name, list[k].count);
    }
    TH_AGREE();
}
END_TEST

/* B11, collectives:NCC16: a count beyond 32 bits reaches NCCL as it is; here it is more than there
 * is memory, so that the call itself is refused. */
START_TEST(B11_large_count) {
    dtr_group *g = NULL;
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), NULL, &g));
    allreduce_good(g);
    th_barrier(); /* or what is refused may end that too */
    dtr_buffer b = device_f32(1), large = { b.data, (size_t)1 << 33, DTR_U8, gpu };
    dtr_fake_cuda_log_start();
    dtr_status s = dtr_allreduce(g, large, large, DTR_SUM, NULL, NULL);
    TH_CHECK(s < 0, "%s", dtr_status_name(s));
    uint64_t all[64], seen = 0; /* the first one's error may have reached the others before */
    th_gather_u64((uint64_t)calls("8589934592 x type 1"), all);
    for (int r = 0; r < th_size(); r++) {
        seen += all[r];
    }
    TH_CHECK(seen > 0, "%s", dtr_fake_cuda_log_text());
    TH_IS(dtr_group_destroy(g), DTR_OK);
    drop(b);
    TH_AGREE();
}
END_TEST

/* A14, A15: no small float reaches a reduction of NCCL, whatever stands around it in a scope. */
START_TEST(A14_A15_small_floats) {
    size_t n = FEW * (size_t)th_size(), counts[8];
    dtr_buffer a = filled(4096, 0), x = { a.data, FEW, DTR_F8E4M3, gpu }, wide = x, f = a;
    for (int r = 0; r < th_size(); r++) {
        counts[r] = FEW;
    }
    wide.count = n;
    f.count = 8;
    for (int i = 0; i < 2; i++) {
        x.dtype = wide.dtype = i == 0 ? DTR_F8E4M3 : DTR_F8E5M2;
        dtr_buffer out = x, far = f;
        out.data = (char *)a.data + 1024;
        far.data = (char *)a.data + 2048;
        dtr_fake_cuda_log_start();
        TH_IS(dtr_allreduce(th_group(), x, x, DTR_SUM, NULL, NULL), DTR_OK);
        TH_IS(dtr_reduce(th_group(), x, x, DTR_SUM, 0, NULL, NULL), DTR_OK);
        TH_IS(dtr_reduce_scatter(th_group(), wide, out, DTR_SUM, NULL, NULL), DTR_OK);
        TH_IS(dtr_reduce_scatterv(th_group(), wide, counts, out, DTR_SUM, NULL, NULL), DTR_OK);
        TH_CHECK(calls("nccl") == 0, "%s", dtr_fake_cuda_log_text());
        TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
        TH_IS(dtr_allreduce(th_group(), f, f, DTR_SUM, NULL, NULL), DTR_OK);
        TH_IS(dtr_allreduce(th_group(), out, out, DTR_SUM, NULL, NULL), DTR_OK);
        TH_IS(dtr_allreduce(th_group(), far, far, DTR_SUM, NULL, NULL), DTR_OK);
        TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
        TH_CHECK(calls("Reduce rank") == 2 && calls("8 x type 7, op 0") == 2, "%s",
                 dtr_fake_cuda_log_text());
    }
    drop(a);
    TH_AGREE();
}
END_TEST

static int thread_of(const char *line) {
    const char *at = line != NULL ? strstr(line, "thread=") : NULL;
    return at != NULL ? atoi(at + 7) : -1;
}

/* The lines of this thread, and of the one that started NCCL for it, before which this one waits.
 */
static char *own_log(void) {
    const char *all = dtr_fake_cuda_log_text();
    char *own = calloc(1, strlen(all) + 1), *end = own;
    const int starter = thread_of(strstr(all, "ncclCommInitRankConfig rank"));
    for (const char *at = all; *at != '\0';) {
        size_t length = strcspn(at, "\n") + 1;
        if (thread_of(at) == (int)gettid() || thread_of(at) == starter) {
            memcpy(end, at, length);
            end += length;
        }
        at += length;
    }
    return own;
}

/* Whether this thread's log has these, one after the other. */
static void check_order(const char *const *words, int n) {
    char *log = own_log();
    const char *at = log;
    for (int i = 0; i < n && at != NULL; i++) {
        at = strstr(at, words[i]);
        TH_CHECK(at != NULL, "no %s (%d) in its place: %s", words[i], i, log);
        at = at != NULL ? at + strcspn(at, "\n") : NULL;
    }
    free(log);
}

/* D2, D3, D7, E2: a communicator for each device, also for batches, scopes and pairs, with messages
 * of its own while it is made; calls run with the buffers' device current, and the caller's comes
 * back. I3: so does an abort, on the device that the communicator was made for. */
START_TEST(D2_D7_two_devices) {
    static const char *const guarded[] = {
        "cuCtxPushCurrent device=1", "ncclCommInitRankConfig rank", "cuCtxPopCurrent device=1",
        "cuCtxPushCurrent device=1", "ncclAllReduce rank",          "cuCtxPopCurrent device=1"
    };
    const dtr_device second = { DTR_CUDA, 1 };
    dtr_group *g = NULL;
    dtr_buffer one = filled(FEW, 1), two = one;
    int peer = th_rank() ^ 1, now = -1, pairs = peer < th_size(), next, before;
    next = (th_rank() + 1) % th_size();
    before = (th_rank() + th_size() - 1) % th_size();
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), NULL, &g));
    TH_IS(dtr_alloc(th_world(), second, DTR_MEM_DEFAULT, 2 * FEW * sizeof(float), &two.data),
          DTR_OK);
    two.device = second;
    dtr_buffer in = { (float *)two.data + FEW, FEW, DTR_F32, second };
    dtr_p2p ring[] = { { true, two, next, 0 }, { false, in, before, 0 } };
    dtr_fake_cuda_log_start();
    TH_IS(dtr_allreduce(g, two, two, DTR_SUM, NULL, NULL), DTR_OK);
    check_order(guarded, 6);
    TH_CHECK(cudaGetDevice(&now) == cudaSuccess && now == 0, "cuda:%d is current", now);
    TH_IS(dtr_allreduce(g, one, one, DTR_SUM, NULL, NULL), DTR_OK);
    TH_CHECK(calls("ncclCommInitRankConfig rank") == 2, "%s", dtr_fake_cuda_log_text());
    TH_IS(dtr_batch_p2p(g, ring, 2, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_send(g, two, next, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_recv(g, in, before, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(g, NULL), DTR_OK);
    TH_CHECK(calls("ncclCommInitRankConfig rank") == 2, "%s", dtr_fake_cuda_log_text());
    for (int i = 0; i < 2 && pairs; i++) {
        TH_IS(th_rank() < peer ? dtr_send(g, i == 0 ? one : two, peer, 0, NULL, NULL)
                               : dtr_recv(g, i == 0 ? one : in, peer, 0, NULL, NULL),
              DTR_OK);
    }
    TH_CHECK(calls("ncclCommInitRankConfig rank") == 2 + 2 * pairs, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(cudaGetDevice(&now) == cudaSuccess && now == 0, "cuda:%d is current", now);
    TH_IS(dtr_group_drain(g, -1), DTR_OK);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), NULL, &g));
    if (pairs) {
        TH_IS(th_rank() < peer ? dtr_send(g, two, peer, 0, NULL, NULL)
                               : dtr_recv(g, in, peer, 0, NULL, NULL),
              DTR_OK);
    }
    TH_IS(dtr_group_drain(g, -1), DTR_OK);
    dtr_fake_cuda_log_start(); /* before any rank can abort */
    TH_AGREE();
    TH_IS(dtr_group_abort(g, "enough"), DTR_OK);
    while (pairs && calls("ncclCommAbort") == 0) {
        th_sleep(0.001);
    }
    const char *log = dtr_fake_cuda_log_text(), *set = strstr(log, "cuCtxPushCurrent device=1");
    TH_CHECK(!pairs || (set != NULL && set < strstr(log, "ncclCommAbort")), "%s", log);
    th_barrier();
    TH_IS(dtr_group_destroy(g), DTR_OK);
    drop(one);
    drop(two);
    TH_AGREE();
}
END_TEST

/* X26: the order inside one call, with all that there can be. */
START_TEST(X26_order_in_one_call) {
    static const char *const moved[] = {
        "ncclCommInitRankConfig rank", "cudaEventRecord", "cudaStreamWaitEvent",
        "dtr_kernel_nan_32",           "cudaEventRecord", "cudaMemcpyAsync",
        "ncclAlltoAll rank",           "cudaEventRecord"
    };
    static const char *const averaged[] = { "cudaEventRecord",    "cudaStreamWaitEvent",
                                            "cudaEventRecord",    "ncclAllReduce rank",
                                            "dtr_kernel_divide_", "cudaEventRecord" };
    dtr_world *w = NULL;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    dtr_buffer b = filled(FEW * (size_t)th_size(), 1), whole = b, none = b;
    whole.dtype = DTR_I32;
    none.device.index = 77;
    setenv("DTR_TIMING", "1", 1);
    TH_IS(dtr_world_create(&o, &w), DTR_OK);
    unsetenv("DTR_TIMING");
    go.nan_check = 1;
    TH_OK(dtr_group_create(w, NULL, th_size(), &go, &g));
    dtr_fake_cuda_log_start();
    TH_IS(dtr_alltoall(g, none, none, NULL, NULL), DTR_ERR_DEVICE);
    TH_CHECK(calls("nccl") + calls("cudaEvent") == 0 && dtr_group_seq(g) == 0, "%s",
             dtr_fake_cuda_log_text());
    TH_IS(dtr_alltoall(g, b, b, NULL, NULL), DTR_OK);
    check_order(moved, 8);
    dtr_fake_cuda_log_start();
    TH_IS(dtr_allreduce(g, whole, whole, DTR_AVG, NULL, NULL), DTR_OK);
    check_order(averaged, 6);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
    TH_OK(dtr_world_destroy(w));
    drop(b);
}
END_TEST

/* ---- refusals ---- */

/* B9: peers are looked at before anything is issued, those of each entry of a batch. B3: a tensor
 * with gaps is never sent in the order of its memory. */
START_TEST(B3_B9_refusals) {
    const int64_t shape[2] = { 4, 2 }, strides[2] = { 4, 1 };
    int size = th_size(), next = (th_rank() + 1) % size, bad[] = { size, -7 };
    dtr_buffer b = filled(64, 1), part = { b.data, 4, DTR_F32, gpu };
    dtr_tensor *t = NULL;
    dtr_fake_cuda_log_start();
    for (int i = 0; i < 2; i++) {
        dtr_p2p entries[] = { { true, part, next, 0 }, { false, part, bad[i], 0 } };
        TH_IS(dtr_send(th_group(), part, bad[i], 0, NULL, NULL), DTR_ERR_RANK);
        TH_IS(dtr_recv(th_group(), part, bad[i], 0, NULL, NULL), DTR_ERR_RANK);
        TH_IS(dtr_batch_p2p(th_group(), entries, 2, NULL, NULL), DTR_ERR_RANK);
    }
    TH_IS(dtr_tensor_from_buffer(b, 2, shape, strides, NULL, NULL, &t), DTR_OK);
    TH_IS(dtr_tensor_allreduce(th_group(), t, DTR_SUM, NULL, NULL), DTR_ERR_LAYOUT);
    TH_IS(dtr_tensor_broadcast(th_group(), t, 0, NULL, NULL), DTR_ERR_LAYOUT);
    TH_IS(dtr_tensor_send(th_group(), t, next, 0, NULL, NULL), DTR_ERR_LAYOUT);
    TH_IS(dtr_tensor_recv(th_group(), t, next, 0, NULL, NULL), DTR_ERR_LAYOUT);
    if (size == 2 || size == 4) {
        TH_IS(dtr_tensor_alltoall(th_group(), t, t, NULL, NULL), DTR_ERR_LAYOUT);
    }
    TH_CHECK(calls("nccl") == 0, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(dtr_group_seq(th_group()) == 0, "a refused call took a number");
    dtr_tensor_release(t);
    drop(b);
    TH_AGREE();
    allreduce_good(th_group());
    TH_AGREE();
}
END_TEST

/* ---- groups ---- */

static dtr__record all_records[4096];

/* The newest record of a kind in a group. */
static dtr__record newest(const dtr_group *g, dtr__kind kind) {
    dtr__record found = { 0 };
    size_t n = dtr__rec_read(g->world, all_records, 4096);
    for (size_t i = 0; i < n; i++) {
        bool it = all_records[i].kind == kind && all_records[i].group == g->id &&
                  (all_records[i].flags & DTR__REC_MEMBER) == 0;
        found = it ? all_records[i] : found;
    }
    TH_CHECK(found.number != 0, "no record of %s", dtr__kind_name(kind));
    return found;
}

static void check_limit(dtr_group *g, dtr_buffer b, double want_s) {
    TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL), DTR_OK);
    dtr__record r = newest(g, DTR__K_ALLREDUCE);
    double limit = (double)(r.deadline - r.t_issued) * 1e-9;
    TH_CHECK(limit > want_s - 1 && limit < want_s + 60, "limit %g s, not %g", limit, want_s);
}

/* C2: what a group has whose options say nothing. C3: its number is its own, and the same on all
 * ranks; the world's is 0. C4: so are its messages, whatever the names and members. C11: names are
 * copied. E1, E2, E6: who makes the identifier, and the times in the record. */
START_TEST(C2_C3_C4_C11_groups) {
    dtr_group *g[3] = { NULL };
    char name[] = "as it was";
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_buffer b = filled(FEW, 1), host = dtr_cpu(name, 1, DTR_I8);
    uint64_t ids[8], last = dtr__group_number(dtr_world_group(th_world()));
    TH_CHECK(last == 0, "the world's group has number %d", (int)last);
    for (int i = 0; i < 3; i++) {
        o.name = i == 0 ? name : NULL;
        o.backend = i == 1 ? "cpu:auto,cuda:stage" : NULL;
        TH_OK(dtr_group_create(th_world(), NULL, th_size(), i < 2 ? &o : NULL, &g[i]));
        th_gather_u64(dtr__group_number(g[i]), ids);
        TH_CHECK(ids[0] > last && ids[th_rank()] == ids[0] && ids[th_size() - 1] == ids[0],
                 "number %d after %d", (int)ids[0], (int)last);
        last = ids[0];
    }
    memset(name, 'x', sizeof name - 1);
    dtr_fake_cuda_log_start();
    check_limit(g[0], b, 600);
    TH_CHECK(calls("CTAs -1 to -1, name as it was") == 1, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(calls("ncclGetUniqueId") == (th_rank() == 0), "%s", dtr_fake_cuda_log_text());
    dtr__record r = newest(g[0], DTR__K_CONNECT);
    TH_CHECK(r.t_issued > 0 && r.t_started >= r.t_issued && r.t_finished > r.t_started &&
                 r.device == 0,
             "issued %lld, started %lld, finished %lld", (long long)r.t_issued,
             (long long)r.t_started, (long long)r.t_finished);
    TH_AGREE();
    check_limit(g[1], b, 1800);
    check_limit(g[0], host, 1800);
    TH_AGREE();
    for (int i = 0; i < 2; i++) {
        char mine = (char)('a' + i), got = 0;
        size_t nbytes = 0;
        bool found = true;
        if (th_rank() == 0) {
            TH_IS(dtr__key_value_put(g[i], DTR_CUDA, "one key", &mine, 1), DTR_OK);
        }
        TH_IS(dtr__key_value_get(g[i], DTR_CUDA, "one key", &got, 1, &nbytes, 50), DTR_OK);
        TH_CHECK(got == mine, "group %d has '%c'", i, got);
        TH_IS(dtr__key_value_poll(g[2], DTR_CUDA, "one key", &got, 1, &nbytes, &found), DTR_OK);
        TH_CHECK(!found, "another group's message");
        TH_AGREE();
    }
    for (int i = 0; i < 3; i++) {
        TH_OK(dtr_group_destroy(g[i]));
    }
    TH_OK(dtr_group_split(th_group(), 0, -th_rank(), NULL, &g[0])); /* the last one comes first */
    dtr_fake_cuda_log_start();
    allreduce_good(g[0]);
    TH_CHECK(calls("ncclGetUniqueId") == (th_rank() == th_size() - 1), "%s",
             dtr_fake_cuda_log_text());
    drop(b);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g[0]));
}
END_TEST

/* ---- numbers and records ---- */

static void end_all(dtr_work **w, int n) {
    for (int i = 0; i < n; i++) {
        TH_IS(dtr_work_synchronize(w[i], -1), DTR_OK);
        TH_IS(dtr_work_release(w[i]), DTR_OK);
    }
}

/* K1, K10, K14, K15, U4, W5: each call's handle and record have its number, of collectives or of
 * messages; a scope is one number, of either kind, and its record has the sizes of its members;
 * nothing is counted where there was nothing or it was given up. */
START_TEST(K10_U4_numbers) {
    int size = th_size(), next = (th_rank() + 1) % size, before = (th_rank() + size - 1) % size;
    dtr_group *g = NULL;
    dtr_buffer a = filled(7, 1), b = filled(9, 1), c = device_f32(9), host = a;
    dtr_p2p ring[] = { { true, b, next, 0 }, { false, c, before, 0 } };
    dtr_work *w[4] = { NULL };
    host.device = (dtr_device){ DTR_CPU, 0 };
    TH_OK(dtr_group_create(th_world(), NULL, size, NULL, &g));
    TH_IS(dtr_allreduce(g, a, a, DTR_SUM, NULL, &w[0]), DTR_OK);
    TH_IS(dtr_batch_p2p(g, ring, 2, NULL, &w[1]), DTR_OK);
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_send(g, b, next, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_recv(g, c, before, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(g, &w[2]), DTR_OK);
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_coalesce_end(g, NULL), DTR_OK);
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_allreduce(g, a, a, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_allreduce(g, host, host, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
    TH_IS(dtr_coalesce_end(g, NULL), DTR_ERR_DEVICE);
    TH_CHECK(dtr_group_seq(g) == 1, "%d collectives", (int)dtr_group_seq(g));
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_allreduce(g, a, a, DTR_SUM, NULL, NULL), DTR_OK);
    TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(g, &w[3]), DTR_OK);
    static const uint64_t numbers[] = { 1, 1, 2, 2 };
    static const dtr__kind kinds[] = { DTR__K_ALLREDUCE, DTR__K_BATCH, DTR__K_COALESCED_P2P,
                                       DTR__K_COALESCED };
    static const uint64_t counts[] = { 7, 0, 0, 16 };
    static const char *const names[] = {
        [DTR__K_BROADCAST] = "broadcast",
        [DTR__K_REDUCE] = "reduce",
        [DTR__K_ALLREDUCE] = "allreduce",
        [DTR__K_ALLGATHER] = "allgather",
        [DTR__K_ALLGATHERV] = "allgatherv",
        [DTR__K_GATHER] = "gather",
        [DTR__K_GATHERV] = "gatherv",
        [DTR__K_SCATTER] = "scatter",
        [DTR__K_SCATTERV] = "scatterv",
        [DTR__K_REDUCE_SCATTER] = "reduce_scatter",
        [DTR__K_REDUCE_SCATTERV] = "reduce_scatterv",
        [DTR__K_ALLTOALL] = "alltoall",
        [DTR__K_ALLTOALLV] = "alltoallv",
        [DTR__K_BARRIER] = "barrier",
        [DTR__K_SEND] = "send",
        [DTR__K_RECV] = "recv",
        [DTR__K_BATCH] = "batch_p2p",
        [DTR__K_COALESCED] = "coalesced",
        [DTR__K_CONNECT] = "connect",
    };
    for (int k = 0; k <= DTR__K_CONNECT; k++) {
        TH_CHECK(names[k] == NULL || strcmp(dtr__kind_name((dtr__kind)k), names[k]) == 0,
                 "kind %d is called %s", k, dtr__kind_name((dtr__kind)k));
    }
    for (int i = 0; i < 4; i++) {
        dtr__record r = newest(g, kinds[i]);
        bool message = i == 1 || i == 2;
        TH_CHECK(dtr_work_seq(w[i]) == numbers[i], "%s has number %d", dtr__kind_name(kinds[i]),
                 (int)dtr_work_seq(w[i]));
        TH_CHECK((message ? r.p2p_seq : r.seq) == numbers[i], "record %d of %s",
                 (int)(message ? r.p2p_seq : r.seq), dtr__kind_name(kinds[i]));
        TH_CHECK(counts[i] == 0 || r.count_in == counts[i], "%d elements of %s", (int)r.count_in,
                 dtr__kind_name(kinds[i]));
        TH_CHECK(r.device == 0 && r.deadline > r.t_issued, "device %d", r.device);
    }
    TH_CHECK(dtr_group_seq(g) == 2, "%d collectives", (int)dtr_group_seq(g));
    end_all(w, 4);
    drop(a);
    drop(b);
    drop(c);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* ---- barriers ---- */

static _Atomic uint64_t callback_thread;

static void note_thread(dtr_work *w, dtr_status s, void *arg) {
    (void)w;
    (void)s;
    (void)arg;
    atomic_store(&callback_thread, (uint64_t)gettid());
}

/* Y2: a barrier of a group that has used no device makes no call of CUDA. Y4: it holds the host
 * until all have come, or ends on the thread that moves works along. Y6: its limit counts while it
 * waits for works of devices too. First of all: other tests leave threads that end. */
START_TEST(Y2_Y4_Y6_barriers) {
    dtr_work *w = NULL, *held = NULL;
    dtr_group *g = NULL;
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), NULL, &g));
    dtr_fake_cuda_log_start();
    double came = th_now();
    TH_IS(dtr_barrier(g, NULL, NULL), DTR_OK);
    double left = th_now();
    TH_CHECK(left >= th_latest(came), "left before all had come");
    TH_IS(dtr_barrier(g, NULL, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, note_thread, NULL), DTR_OK);
    while (atomic_load(&callback_thread) == 0) {
        th_sleep(0.001);
    }
    TH_CHECK(calls("") == 0, "%s", dtr_fake_cuda_log_text());
    TH_IS(dtr_work_synchronize(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    dtr_buffer b = filled(FEW, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT, limit = DTR_COLL_OPTIONS_INIT;
    cudaEvent_t open;
    allreduce_good(g);
    TH_AGREE();
    o.stream = held_stream(&open);
    limit.timeout_s = 0.3;
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, &held), DTR_OK);
    th_barrier(); /* the limit may pass before the others are in the next call */
    TH_IS(dtr_barrier(g, &limit, NULL), DTR_ERR_TIMEOUT);
    TH_MESSAGE("barrier #5");
    TH_IS(dtr_work_release(held), DTR_OK);
    th_barrier();
    dtr_fake_cuda_hold(open, 0);
    TH_CHECK(cudaStreamSynchronize(o.stream) == cudaSuccess, "synchronize");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    cudaEventDestroy(open);
    cudaStreamDestroy(o.stream);
    drop(b);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl rows", 110);
    th_add(tc, Y2_Y4_Y6_barriers, 2, 0);
    th_add(tc, A19_what_carries_an_element, 2, 8);
    th_add(tc, B11_large_count, 2, 0);
    th_add(tc, A14_A15_small_floats, 2, 8);
    th_add(tc, D2_D7_two_devices, 2, 0);
    th_add(tc, X26_order_in_one_call, 2, 0);
    th_add(tc, B3_B9_refusals, 2, 0);
    th_add(tc, C2_C3_C4_C11_groups, 2, 8);
    th_add(tc, K10_U4_numbers, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl rows", make);
}
