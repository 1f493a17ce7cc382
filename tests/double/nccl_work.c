/* What goes with an operation on the stand-ins: kernels of the library before and behind NCCL's,
 * that is averages of whole numbers and looks for NaN; memory that it still uses; its time; and
 * operators that it lacks. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "nccl_data.h"
#include "recorder/recorder.h"

/* `count` elements on the device, `skip` elements behind a multiple of 16 bytes. */
static dtr_buffer elements(dtr_dtype d, size_t count, size_t skip, const void *from) {
    size_t size = dtr_dtype_size(d);
    void *p = NULL;
    TH_IS(dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, (count + skip) * size, &p), DTR_OK);
    dtr_buffer b = { (char *)p + skip * size, count, d, gpu };
    cudaError_t e = cudaMemcpy(b.data, from, count * size, cudaMemcpyHostToDevice);
    TH_CHECK(e == cudaSuccess, "copy to the device: %d", (int)e);
    return b;
}

static void drop_from(dtr_buffer b, size_t skip) {
    b.data = (char *)b.data - skip * dtr_dtype_size(b.dtype);
    drop(b);
}

/* ---- averages of whole numbers ---- */

enum { COUNT = 300, MOST = COUNT * 4 };

static int64_t number(int rank, size_t i) {
    return (rank % 2 ? 1 : -1) * (int64_t)(rank * 40 + (int)(i % 97));
}

static void to_bytes(dtr_dtype d, void *to, size_t i, int64_t v) {
    memcpy((char *)to + i * dtr_dtype_size(d), &v, dtr_dtype_size(d)); /* little endian */
}

static int64_t from_bytes(dtr_dtype d, const void *from, size_t i) {
    return d == DTR_I32                   ? ((const int32_t *)from)[i]
           : d == DTR_U32                 ? ((const uint32_t *)from)[i]
           : d == DTR_I64 || d == DTR_U64 ? ((const int64_t *)from)[i]
           : d == DTR_I8                  ? ((const int8_t *)from)[i]
                                          : ((const uint8_t *)from)[i];
}

/* The sum wraps in its type and is then divided toward zero. */
static void check_average(dtr_buffer b, size_t first, const char *what) {
    static int64_t got[MOST];
    cudaError_t e =
        cudaMemcpy(got, b.data, b.count * dtr_dtype_size(b.dtype), cudaMemcpyDeviceToHost);
    TH_CHECK(e == cudaSuccess, "copy from the device: %d", (int)e);
    for (size_t i = 0; i < b.count; i++) {
        int64_t sum = 0;
        for (int r = 0; r < th_size(); r++) {
            sum += number(r, first + i);
        }
        int64_t wrapped;
        to_bytes(b.dtype, &wrapped, 0, sum);
        int64_t want = from_bytes(b.dtype, &wrapped, 0);
        want =
            b.dtype == DTR_U64 ? (int64_t)((uint64_t)want / (uint64_t)th_size()) : want / th_size();
        TH_CHECK(from_bytes(b.dtype, got, i) == want, "%s %s: element %zu is %lld, not %lld", what,
                 dtr_dtype_name(b.dtype), i, (long long)from_bytes(b.dtype, got, i),
                 (long long)want);
    }
}

static dtr_buffer numbers(dtr_dtype d, size_t count, size_t skip) {
    static int64_t own[MOST];
    for (size_t i = 0; i < count; i++) {
        to_bytes(d, own, i, number(th_rank(), i));
    }
    return elements(d, count, skip, own);
}

static int divisions(void) {
    return dtr_fake_cuda_log_count("dtr_kernel_divide_");
}

/* A2, collectives:NCC11: NCCL adds, and the sum is divided behind it, also at odd addresses, at the
 * root alone, in a scope and with the block of a scattered sum. */
START_TEST(A2_averages_of_whole_numbers) {
    static const dtr_dtype types[] = { DTR_U8, DTR_I8, DTR_I32, DTR_I64, DTR_U32, DTR_U64 };
    int many = th_size() > 1;
    for (int t = 0; t < 6; t++) {
        dtr_dtype d = types[t];
        size_t n = (size_t)th_size() * COUNT;
        dtr_buffer even = numbers(d, COUNT, 0), odd = numbers(d, COUNT, 1);
        dtr_buffer all = numbers(d, n, 0), part = numbers(d, COUNT, 0);
        dtr_fake_cuda_log_start();
        TH_IS(dtr_allreduce(th_group(), even, even, DTR_AVG, NULL, NULL), DTR_OK);
        TH_CHECK(divisions() == many, "%d divisions: %s", divisions(), dtr_fake_cuda_log_text());
        TH_CHECK(dtr_fake_cuda_log_count(", op 0, ") == many, "it is no sum: %s",
                 dtr_fake_cuda_log_text());
        TH_IS(dtr_reduce_scatter(th_group(), all, part, DTR_AVG, NULL, NULL), DTR_OK);
        TH_CHECK(divisions() == 2 * many, "%d divisions", divisions());
        TH_IS(dtr_reduce(th_group(), odd, odd, DTR_AVG, 0, NULL, NULL), DTR_OK);
        TH_CHECK(divisions() == (th_rank() == 0 ? 3 : 2) * many, "away from the root too");
        check_average(even, 0, "allreduce");
        check_average(part, (size_t)th_rank() * COUNT, "reduce_scatter");
        if (th_rank() == 0) {
            check_average(odd, 0, "reduce");
        }
        drop(even);
        drop_from(odd, 1);
        drop(all);
        drop(part);
        TH_AGREE();
    }
    dtr_buffer a = numbers(DTR_I32, COUNT, 1), b = numbers(DTR_I64, COUNT, 0);
    dtr_fake_cuda_log_start();
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), a, a, DTR_AVG, NULL, NULL), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_AVG, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_OK);
    TH_CHECK(divisions() == 2 * many, "%d divisions", divisions());
    check_average(a, 0, "scope");
    check_average(b, 0, "scope");
    drop_from(a, 1);
    drop(b);
    TH_AGREE();
}
END_TEST

/* ---- NaN ---- */

static dtr_group *looking_group(int check) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    o.nan_check = check;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_OK);
    TH_AGREE();
    return g;
}

static int looks(void) {
    return dtr_fake_cuda_log_count("dtr_kernel_nan_");
}

/* The bits of infinity, which is none, and of the NaN next to it. */
static const struct {
    dtr_dtype type;
    int width, per;
    uint64_t infinity, nan;
} floats[] = {
    { DTR_F16, 2, 1, 0xfc00, 0xfc01 },
    { DTR_BF16, 2, 1, 0xff80, 0x7f81 },
    { DTR_F32, 4, 1, 0xff800000, 0xff800001 },
    { DTR_F64, 8, 1, UINT64_C(0xfff0000000000000), UINT64_C(0x7ff0000000000001) },
    { DTR_C64, 4, 2, 0xff800000, 0x7f800001 },
    { DTR_C128, 8, 2, UINT64_C(0x7ff0000000000000), UINT64_C(0xfff0000000000001) },
    { DTR_F8E5M2, 1, 1, 0xfc, 0xfd },
    { DTR_F8E4M3, 1, 1, 0xfe, 0xff },
};

/* Infinities, and in element `nan` of the culprit a NaN; SIZE_MAX: nowhere. */
static dtr_buffer infinities(int f, size_t count, size_t skip, size_t nan) {
    static char own[MOST * 16];
    for (size_t i = 0; i < count * (size_t)floats[f].per; i++) {
        bool bad = th_rank() == culprit() && nan != SIZE_MAX &&
                   i == nan * (size_t)floats[f].per + (size_t)floats[f].per - 1;
        uint64_t bits = bad ? floats[f].nan : floats[f].infinity;
        memcpy(own + i * (size_t)floats[f].width, &bits, (size_t)floats[f].width);
    }
    return elements(floats[f].type, count, skip, own);
}

static void check_end(dtr_work *w, bool own, const char *text) {
    TH_IS(dtr_work_synchronize(w, -1), own ? DTR_ERR_NAN : DTR_OK);
    if (own) {
        TH_MESSAGE(text);
        TH_IS(dtr_work_wait(w, -1), DTR_ERR_NAN); /* L8 */
    }
    TH_IS(dtr_work_release(w), DTR_OK);
}

/* Z1, Z2, Z3, J20, FI28: a kernel on the communicator's stream looks; the operation runs, nobody
 * waits for the look, and the rank whose input it is gets the status. */
START_TEST(Z3_nan_in_an_input) {
    bool own = th_rank() == culprit();
    char text[64];
    snprintf(text, sizeof text, "element 277 of the input of rank %d is NaN", culprit());
    dtr_group *g = looking_group(1);
    for (int f = 0; f < (int)(sizeof floats / sizeof floats[0]); f++) {
        for (size_t skip = 0; skip < 2; skip++) {
            dtr_buffer good = infinities(f, COUNT, skip, SIZE_MAX);
            dtr_buffer bad = infinities(f, COUNT, skip, 277);
            dtr_work *w = NULL;
            TH_IS(dtr_broadcast(g, good, culprit(), NULL, &w), DTR_OK);
            check_end(w, false, "");
            dtr_fake_cuda_log_start();
            TH_IS(dtr_broadcast(g, bad, culprit(), NULL, &w), DTR_OK);
            TH_CHECK(dtr_fake_cuda_log_count("Synchronize") == 0, "%s", dtr_fake_cuda_log_text());
            TH_CHECK(looks() == own, "%d looks: Z4: at the root only", looks());
            check_end(w, own, text);
            drop_from(good, skip);
            drop_from(bad, skip);
        }
        TH_AGREE();
    }
    int calls = dtr_fake_cuda_log_count("ncclBroadcast rank");
    TH_CHECK(calls == (th_size() > 1), "it was not issued: %s", dtr_fake_cuda_log_text());
    dtr_buffer one = infinities(2, MOST, 0, 0);
    dtr_work *wide = NULL;
    snprintf(text, sizeof text, "element 0 of the input of rank %d is NaN", culprit());
    dtr_fake_cuda_log_start();
    TH_IS(dtr_allreduce(g, one, one, DTR_MAX, NULL, &wide), DTR_OK);
    TH_CHECK(dtr_fake_cuda_log_count("dtr_kernel_nan_32 grid=2 block=256") == 1, "%s",
             dtr_fake_cuda_log_text());
    check_end(wide, own, text);
    dtr_fake_cuda_log_start(); /* Z5, and whole numbers */
    TH_IS(dtr_allreduce(g, (dtr_buffer){ one.data, 0, DTR_F32, gpu },
                        (dtr_buffer){ one.data, 0, DTR_F32, gpu }, DTR_SUM, NULL, NULL),
          DTR_OK);
    TH_IS(dtr_broadcast(g, (dtr_buffer){ one.data, 9, DTR_I32, gpu }, 0, NULL, NULL), DTR_OK);
    TH_CHECK(looks() == 0, "%s", dtr_fake_cuda_log_text());
    drop(one);
    allreduce_good(g);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
    g = looking_group(-1);
    one = infinities(2, COUNT, 0, 0);
    dtr_fake_cuda_log_start();
    TH_IS(dtr_broadcast(g, one, culprit(), NULL, NULL), DTR_OK);
    TH_CHECK(looks() == 0, "it was off");
    drop(one);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* Z4, W6: every member of a scope, every send, and no receive. */
START_TEST(Z4_whose_inputs) {
    bool own = th_rank() == culprit();
    int size = th_size(), next = (th_rank() + 1) % size, before = (th_rank() + size - 1) % size;
    char text[64];
    dtr_group *g = looking_group(1);
    dtr_buffer bad = infinities(2, COUNT, 0, 11), good = infinities(3, COUNT, 0, SIZE_MAX);
    dtr_buffer in = device_f32(COUNT), also = infinities(3, COUNT, 0, SIZE_MAX);
    dtr_work *w = NULL;
    snprintf(text, sizeof text, "element 11 of the input of rank %d is NaN", culprit());
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_broadcast(g, good, culprit(), NULL, NULL), DTR_OK);
    TH_IS(dtr_broadcast(g, bad, culprit(), NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(g, &w), DTR_OK);
    check_end(w, own, text);
    TH_AGREE();
    if (size > 1) { /* `in` is full of NaN: what is received is not looked at */
        snprintf(text, sizeof text, "element %d of the input of rank %d", COUNT + 11, culprit());
        drop(bad);
        bad = infinities(2, COUNT, 0, 11);
        dtr_p2p ring[] = { { true, good, next, 0 },
                           { false, also, before, 0 },
                           { false, in, before, 0 },
                           { true, bad, next, 0 } };
        dtr_fake_cuda_log_start();
        TH_IS(dtr_batch_p2p(g, ring, 4, NULL, &w), DTR_OK);
        TH_CHECK(looks() == 2, "%d looks: %s", looks(), dtr_fake_cuda_log_text());
        check_end(w, own, text);
        ring[0].tag = ring[1].tag = ring[2].tag = ring[3].tag = 5; /* by stage */
        TH_IS(dtr_batch_p2p(g, ring, 4, NULL, &w), DTR_OK);
        check_end(w, own, text);
        TH_AGREE();
        dtr_fake_cuda_log_start();
        w = NULL;
        if (own) {
            TH_IS(dtr_send(g, bad, 0, 0, NULL, &w), DTR_OK);
        } else if (th_rank() == 0) {
            TH_IS(dtr_recv(g, in, culprit(), 0, NULL, &w), DTR_OK);
        }
        TH_CHECK(looks() == own, "%d looks", looks());
        snprintf(text, sizeof text, "element 11 of the input of rank %d", culprit());
        check_end(w, own, text);
    }
    drop(bad);
    drop(good);
    drop(in);
    drop(also);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* ---- memory in use ---- */

/* Nothing of earlier tests is under way, or waits to be freed. */
static void settle(void) {
    TH_IS(dtr_group_drain(th_group(), -1), DTR_OK);
    drop(filled(1, 1));
}

static void expect_live(size_t want, const char *what) {
    size_t live = dtr_fake_cuda_live("device");
    TH_CHECK(live == want, "%s: %zu blocks, not %zu", what, live, want);
}

/* J4, J5, J9, J14, J18, J19: a block that an operation uses, as input, output, factor, entry of a
 * batch or member of a scope, is taken back without waiting and freed when the operation has ended.
 */
START_TEST(J4_a_used_block_is_freed_later) {
    enum { BLOCKS = 8 };
    int size = th_size(), next = (th_rank() + 1) % size, before = (th_rank() + size - 1) % size;
    bool alone = size == 1; /* no factor and no messages */
    dtr_buffer b[BLOCKS], unused = filled(N, 1);
    float half = 0.5f;
    for (int i = 0; i < BLOCKS; i++) {
        b[i] = i == 2 ? device_f32(1) : filled(N, 1);
    }
    put(b[2], &half);
    allreduce_good(th_group());
    settle();
    cudaEvent_t open;
    cudaStream_t stream = held_stream(&open);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT, factor = DTR_COLL_OPTIONS_INIT;
    factor.stream = o.stream = stream;
    factor.premul_device = b[2].data;
    dtr_work *w[3] = { NULL, NULL, NULL };
    dtr_p2p ring[] = { { true, b[3], next, 0 }, { false, b[4], before, 0 } };
    TH_IS(dtr_allreduce(th_group(), b[0], b[1], alone ? DTR_SUM : DTR_PREMUL_SUM, &factor, &w[0]),
          DTR_OK);
    if (!alone) {
        TH_IS(dtr_batch_p2p(th_group(), ring, 2, &o, &w[1]), DTR_OK);
    }
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), b[5], b[5], DTR_SUM, &o, NULL), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), b[6], b[7], DTR_SUM, &o, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(th_group(), &w[2]), DTR_OK);
    TH_CHECK(cudaStreamDestroy(stream) == cudaSuccess, "the operations do not need it");
    size_t live = dtr_fake_cuda_live("device");
    dtr_fake_cuda_log_start();
    for (int i = 0; i < BLOCKS; i++) {
        if (!alone || i < 2 || i > 4) {
            drop(b[i]);
            expect_live(live, "a block in use was freed");
            TH_IS(dtr_free(th_world(), b[i].data), DTR_ERR_ARG); /* it is gone for the program */
        }
    }
    dtr_fake_cuda_hold(open, 0);
    for (int i = 0; i < 3; i++) {
        TH_IS(dtr_work_synchronize(w[i], -1), DTR_OK);
        TH_IS(dtr_work_release(w[i]), DTR_OK);
    }
    drop(unused);
    expect_live(live - (alone ? 6 : 9), "blocks were kept after the operations");
    for (int i = 2; alone && i < 5; i++) {
        drop(b[i]);
    }
    TH_CHECK(cudaEventDestroy(open) == cudaSuccess, "event");
    TH_AGREE();
}
END_TEST

/* J4: an allocation that fails is tried again once such blocks have been freed. */
START_TEST(J4_memory_comes_back) {
    cudaEvent_t open;
    dtr_buffer b = filled(N, 1);
    allreduce_good(th_group());
    settle();
    cudaStream_t stream = held_stream(&open);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.stream = stream;
    dtr_work *w = NULL;
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, &o, &w), DTR_OK);
    drop(b);
    fault("DTR_FAKE_CUDA_ERR", "cudaMalloc:1:2,cudaMalloc:2:2");
    void *p = NULL;
    TH_IS(dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, 64, &p), DTR_ERR_NOMEM);
    dtr_fake_cuda_hold(open, 0);
    TH_IS(dtr_work_synchronize(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    size_t live = dtr_fake_cuda_live("device");
    TH_IS(dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, 64, &p), DTR_OK);
    expect_live(live, "one went, one came");
    fault("DTR_FAKE_CUDA_ERR", NULL);
    TH_IS(dtr_free(th_world(), p), DTR_OK);
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
    TH_AGREE();
}
END_TEST

/* ---- time ---- */

static int events(const char *flags) {
    char text[64];
    snprintf(text, sizeof text, "cudaEventCreateWithFlags flags=%s", flags);
    return dtr_fake_cuda_log_count(text);
}

/* K2, K9: with DTR_TIMING=1 events have times, and the record says when the operation began on the
 * device, after what its stream held before; a scope has one beginning. Otherwise there is no start
 * event. */
START_TEST(K9_time_on_the_device) {
    dtr_world *w = NULL;
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    cudaEvent_t open;
    dtr_fake_cuda_log_start();
    allreduce_good(th_group());
    TH_CHECK(events("2") == 2 && events("0") == 0, "%s", dtr_fake_cuda_log_text());
    setenv("DTR_TIMING", "1", 1);
    TH_IS(dtr_world_create(&o, &w), DTR_OK);
    unsetenv("DTR_TIMING");
    TH_AGREE();
    dtr_group *g = dtr_world_group(w);
    dtr_coll_options c = DTR_COLL_OPTIONS_INIT;
    dtr_buffer b = filled(N, 1);
    for (int scope = 0; scope < 2; scope++) {
        dtr_work *work = NULL;
        dtr_fake_cuda_log_start();
        cudaStream_t stream = held_stream(&open);
        c.stream = stream;
        if (scope) {
            TH_IS(dtr_coalesce_begin(g), DTR_OK);
            TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &c, NULL), DTR_OK);
            TH_IS(dtr_coalesce_end(g, &work), DTR_OK);
        } else {
            TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &c, &work), DTR_OK);
            TH_CHECK(events("0") == 3, "%s", dtr_fake_cuda_log_text());
        }
        int64_t released = dtr__stamp_ns();
        dtr_fake_cuda_hold(open, 0);
        TH_IS(dtr_work_synchronize(work, -1), DTR_OK);
        dtr__record all[2] = { 0 }, r;
        size_t n = dtr__rec_read(w, all, 2); /* of a scope its own and that of its member */
        r = all[scope && (all[1].flags & DTR__REC_MEMBER) != 0 ? 0 : n - 1];
        TH_CHECK(r.t_started >= released && r.t_finished >= r.t_started,
                 "released %lld, started %lld, finished %lld", (long long)released,
                 (long long)r.t_started, (long long)r.t_finished);
        TH_IS(dtr_work_release(work), DTR_OK);
        cudaEventDestroy(open);
        cudaStreamDestroy(stream);
    }
    drop(b);
    TH_IS(dtr_world_destroy(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* ---- operators of the program ---- */

static void last_of(void *inout, const void *in, size_t count, dtr_dtype dtype, void *arg) {
    (void)arg;
    memcpy(inout, in, count * dtr_dtype_size(dtype));
}

/* They are left to stage, and where nccl is named they are refused. */
START_TEST(operators_of_the_program) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    dtr_buffer b = filled(300, (float)(10 * th_rank()));
    dtr_op op = DTR_SUM;
    o.backend = "cpu:auto,cuda:nccl";
    TH_OK(dtr_group_split(th_group(), 0, 0, &o, &g));
    TH_OK(dtr_op_create(th_world(), last_of, NULL, false, &op));
    TH_IS(dtr_allreduce(g, b, b, op, NULL, NULL), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("NCCL has no operators of the program");
    TH_IS(dtr_allreduce(th_group(), b, b, op, NULL, NULL), DTR_OK);
    check(b, (float)(10 * (th_size() - 1)), 1, "the last rank");
    TH_AGREE();
    TH_OK(dtr_op_free(th_world(), op));
    TH_OK(dtr_group_destroy(g));
    drop(b);
}
END_TEST

/* ---- memory ---- */

/* Kernels that are under way wait for other ranks, who may wait for what is issued here: so nothing
 * that does may wait for them, as CUDA may while memory is made or freed. */
START_TEST(issuing_waits_for_no_kernel) {
    enum { ALL = 120000, WORKS = 4 };
    static const char *const backends[] = { "cpu:auto,cuda:nccl", "cpu:auto,cuda:stage" };
    dtr_world_options wo = DTR_WORLD_OPTIONS_INIT;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_world *w = NULL;
    dtr_group *g[2] = { NULL };
    dtr_work *work[WORKS] = { NULL };
    cudaEvent_t open;
    cudaStream_t stream = held_stream(&open);
    dtr_buffer sum = filled(N, 1), all = filled(ALL, 1), host = filled(ALL, 1);
    setenv("DTR_NAN_CHECK", "1", 1);
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, &wo, &w), DTR_OK);
    unsetenv("DTR_NAN_CHECK");
    for (int i = 0; i < 2; i++) {
        dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
        go.backend = backends[i];
        TH_IS(dtr_group_create(w, NULL, th_size(), &go, &g[i]), DTR_OK);
        TH_IS(dtr_group_connect(g[i], gpu), DTR_OK);
    }
    o.stream = stream;
    all.count = (size_t)(ALL / th_size() * th_size());
    dtr_fake_cuda_log_start();
    TH_IS(dtr_allreduce(g[0], sum, sum, DTR_SUM, &o, &work[0]), DTR_OK);
    TH_IS(dtr_allreduce(g[0], all, all, DTR_MAX, &o, &work[1]), DTR_OK);
    TH_IS(dtr_alltoall(g[0], all, all, &o, &work[2]), DTR_OK);
    TH_IS(dtr_allreduce(g[1], host, host, DTR_SUM, &o, &work[3]), DTR_OK);
    TH_CHECK(dtr_fake_cuda_log_count("may wait for kernels") == 0, "%s", dtr_fake_cuda_log_text());
    dtr_fake_cuda_hold(open, 0);
    for (int i = 0; i < WORKS; i++) {
        TH_IS(dtr_work_wait(work[i], -1), DTR_OK);
        TH_IS(dtr_work_release(work[i]), DTR_OK);
    }
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    check(sum, 1, (float)th_size(), "sum");
    check(host, 1, (float)th_size(), "sum through the host");
    TH_AGREE();
    for (int i = 0; i < 2; i++) {
        TH_IS(dtr_group_destroy(g[i]), DTR_OK);
    }
    TH_IS(dtr_world_destroy(w), DTR_OK);
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
    drop(sum);
    drop(all);
    drop(host);
    TH_AGREE();
}
END_TEST

/* While nobody waits, CUDA is asked for an event now and then only, right after the launch too. */
START_TEST(events_are_asked_for_seldom) {
    enum { ROUNDS = 20 };
    static const char *const backends[] = { "cpu:auto,cuda:nccl", "cpu:auto,cuda:stage" };
    for (int i = 0; i < 2; i++) {
        dtr_group *g = group_of(backends[i], 0);
        dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
        dtr_buffer b = filled(N, 1);
        int asked = 0;
        double most = 0;
        allreduce_good(g);
        for (int round = 0; round < ROUNDS; round++) {
            dtr_work *work = NULL;
            cudaEvent_t open;
            cudaStream_t stream = held_stream(&open);
            o.stream = stream;
            dtr_fake_cuda_log_start();
            const double began = dtr__now();
            TH_IS(dtr_allreduce(g, b, b, DTR_MAX, &o, &work), DTR_OK);
            th_sleep(0.002);
            asked += dtr_fake_cuda_log_count("cudaEventQuery");
            most += (dtr__now() - began) * 1e4 + 2; /* one in 100 us */
            dtr_fake_cuda_hold(open, 0);
            TH_IS(dtr_work_wait(work, -1), DTR_OK);
            TH_IS(dtr_work_release(work), DTR_OK);
            TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
            cudaEventDestroy(open);
            cudaStreamDestroy(stream);
        }
        TH_CHECK(asked > 0 && asked <= most, "%s: asked %d times, %g at most", backends[i], asked,
                 most);
        check(b, 1, 1, "maximum");
        drop(b);
        end_group(g);
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl work", 110);
    th_add(tc, A2_averages_of_whole_numbers, 1, 4);
    th_add(tc, Z3_nan_in_an_input, 1, 0);
    th_add(tc, Z4_whose_inputs, 1, 0);
    th_add(tc, J4_a_used_block_is_freed_later, 1, 0);
    th_add(tc, J4_memory_comes_back, 1, 0);
    th_add(tc, K9_time_on_the_device, 1, 0);
    th_add(tc, operators_of_the_program, 2, 0);
    th_add(tc, issuing_waits_for_no_kernel, 2, 0);
    th_add(tc, events_are_asked_for_seldom, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl_work", make);
}
