/* Device buffers through the stage backend: point to point, options, refusals, failures. On the
 * stand-in, whose events the test can hold and whose log it reads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <dtr/mpi.h>

#include "memory/arena.h"
#include "nccl_data.h"

static void finish(dtr_work *w) {
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
}

/* ST1, W1: messages with and without tags, many under way to one peer, in a batch, and from
 * anybody. */
START_TEST(ST1_point_to_point) {
    enum { MANY = 8 };
    int size = th_size(), next = (th_rank() + 1) % size, before = (th_rank() + size - 1) % size;
    dtr_buffer out[MANY], in[MANY];
    dtr_work *sent[MANY], *got[MANY];
    for (int i = 0; i < MANY; i++) {
        out[i] = filled(N + (size_t)i, (float)(10 * th_rank() + i));
        in[i] = device_f32(N + (size_t)i);
        TH_IS(dtr_send(th_group(), out[i], next, i / 4, NULL, &sent[i]), DTR_OK);
        TH_IS(dtr_recv(th_group(), in[i], i < 4 ? before : DTR_ANY_SOURCE, i / 4, NULL, &got[i]),
              DTR_OK);
    }
    for (int i = 0; i < MANY; i++) {
        finish(sent[i]);
        TH_IS(dtr_work_wait(got[i], -1), DTR_OK);
        TH_CHECK(dtr_work_source(got[i]) == before, "source %d", dtr_work_source(got[i]));
        TH_IS(dtr_work_release(got[i]), DTR_OK);
        check(in[i], (float)(10 * before + i), 1, "message");
    }
    TH_AGREE();
    dtr_p2p ops[] = { { true, out[0], next, 5 },
                      { false, in[0], before, 5 },
                      { true, out[1], next, 6 },
                      { false, in[1], before, 6 } };
    TH_OK(dtr_batch_p2p(th_group(), ops, 4, NULL, NULL));
    check(in[0], (float)(10 * before), 1, "batch");
    check(in[1], (float)(10 * before + 1), 1, "batch");
    for (int i = 0; i < MANY; i++) {
        drop(out[i]);
        drop(in[i]);
    }
    TH_AGREE();
}
END_TEST

/* ST1: a message that is nothing waits for no stream, and no buffer is touched. */
START_TEST(ST1_nobody) {
    int size = th_size(), up = th_rank() + 1 < size ? th_rank() + 1 : DTR_PEER_NONE;
    int down = th_rank() > 0 ? th_rank() - 1 : DTR_PEER_NONE;
    dtr_buffer out = filled(N, (float)th_rank()), in = filled(N, 50);
    dtr_work *w = NULL;
    bool done = false;
    TH_IS(dtr_send(th_group(), out, DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_recv(th_group(), in, DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_recv(th_group(), in, DTR_PEER_NONE, 3, NULL, &w), DTR_OK);
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(done && dtr_work_source(w) == DTR_PEER_NONE, "source %d", dtr_work_source(w));
    TH_IS(dtr_work_release(w), DTR_OK);
    dtr_p2p ops[] = { { false, in, down, 0 }, { true, out, up, 0 } };
    TH_IS(dtr_batch_p2p(th_group(), ops, 2, NULL, NULL), DTR_OK);
    check(in, down >= 0 ? (float)down : 50, 1, "along a line");
    drop(out);
    drop(in);
    TH_AGREE();
}
END_TEST

/* J2, ST2: what the caller's stream holds at the call comes first, however long that takes; the
 * call and the one after it do not wait for it. */
START_TEST(ST2_the_stream_comes_first) {
    cudaStream_t stream, slow;
    cudaEvent_t open;
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_CHECK(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, slow);
    cudaStreamWaitEvent(stream, open, 0);
    dtr_buffer b = device_f32(N);
    float *pinned = NULL;
    TH_CHECK(cudaHostAlloc((void **)&pinned, N * sizeof(float), 0) == cudaSuccess, "pinned");
    for (size_t i = 0; i < N; i++) {
        pinned[i] = 1 + (float)(i % 7);
    }
    cudaMemcpyAsync(b.data, pinned, N * sizeof(float), cudaMemcpyHostToDevice, stream);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.stream = stream;
    dtr_work *w = NULL;
    bool done = true;
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, &o, &w), DTR_OK);
    TH_CHECK(cudaStreamQuery(stream) == cudaErrorNotReady, "the stream is not held");
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(!done, "the operation did not wait for the stream");
    TH_IS(dtr_work_wait(w, 0), DTR_IN_PROGRESS);
    dtr_fake_cuda_hold(open, 0);
    finish(w);
    check(b, 1, (float)th_size(), "sum");
    cudaStreamSynchronize(stream);
    cudaFreeHost(pinned);
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(slow);
    drop(b);
    TH_AGREE();
}
END_TEST

static void last_of(void *inout, const void *in, size_t count, dtr_dtype dtype, void *arg) {
    TH_CHECK(dtype == DTR_F32 && arg == NULL, "dtype %d", (int)dtype);
    memcpy(inout, in, count * sizeof(float));
}

/* An operator of the program is applied on the host, in rank order; a prefix over nobody leaves the
 * device's memory as it is. */
START_TEST(operators_of_the_program) {
    dtr_buffer a = filled(N, (float)(10 * th_rank())), b = filled(N, 50);
    dtr_op op = DTR_SUM;
    dtr_work *w = NULL;
    TH_OK(dtr_op_create(th_world(), last_of, NULL, false, &op));
    TH_IS(dtr_exscan(th_group(), a, b, op, NULL, NULL), DTR_OK);
    check(b, th_rank() > 0 ? (float)(10 * (th_rank() - 1)) : 50, 1, "the rank below");
    TH_IS(dtr_allreduce(th_group(), a, a, op, NULL, &w), DTR_OK);
    finish(w);
    check(a, (float)(10 * (th_size() - 1)), 1, "the last rank");
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), a, a, op, NULL, NULL), DTR_OK);
    TH_IS(dtr_op_free(th_world(), op), DTR_ERR_STATE);
    TH_IS(dtr_coalesce_end(th_group(), &w), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_op_free(th_world(), op), DTR_OK); /* though the handle is still held */
    finish(w);
    TH_AGREE();
    drop(a);
    drop(b);
    TH_AGREE();
}
END_TEST

/* A10: a factor in device memory wins over the one by value. */
START_TEST(A10_factor_on_the_device) {
    float half = 0.5f;
    dtr_buffer b = filled(N, 1), f = device_f32(1);
    put(f, &half);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.premul = 100;
    o.premul_device = f.data;
    TH_OK(dtr_allreduce(th_group(), b, b, DTR_PREMUL_SUM, &o, NULL));
    check(b, 1, 0.5f * (float)th_size(), "half the sum");
    drop(b);
    drop(f);
    TH_AGREE();
}
END_TEST

/* Z3: the rank with NaN learns of it, with the position; the group goes on. */
START_TEST(Z3_nan) {
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    go.nan_check = 1;
    dtr_group *g = NULL;
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), &go, &g));
    dtr_buffer b = filled(N, 1);
    float *h = malloc(N * sizeof *h);
    get(h, b);
    h[1234] = NAN;
    if (th_rank() == 0) {
        put(b, h);
    }
    free(h);
    dtr_status want = th_rank() == 0 ? DTR_ERR_NAN : DTR_OK;
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), want);
    if (th_rank() == 0) {
        TH_MESSAGE("element 1234");
    }
    TH_AGREE();
    th_good_allreduce(g);
    drop(b);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* ST5, A20, reliability:EA1: what is refused, pinned memory included, takes no number. */
START_TEST(ST5_refusals_take_no_number) {
    dtr_buffer b = filled(N, 1), none = { b.data, N, DTR_F32, { DTR_CUDA, 63 } };
    float host[1] = { 0 };
    uint64_t seq = dtr_group_seq(th_group());
    TH_IS(dtr_allreduce(th_group(), none, none, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
    TH_MESSAGE("cuda:63");
    TH_IS(dtr_allreduce(th_group(), b, dtr_cpu(host, N, DTR_F32), DTR_SUM, NULL, NULL),
          DTR_ERR_DEVICE);
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_BAND, NULL, NULL), DTR_ERR_DTYPE);
    setenv("DTR_FAKE_CUDA_ERR", "cudaHostRegister:1:2,cudaHostAlloc:1:2", 1);
    dtr_fake_cuda_reload();
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, NULL, NULL), DTR_ERR_NOMEM);
    unsetenv("DTR_FAKE_CUDA_ERR");
    dtr_fake_cuda_reload();
    TH_IS(dtr_coalesce_begin(th_group()), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), none, none, DTR_SUM, NULL, NULL), DTR_ERR_DEVICE);
    TH_IS(dtr_coalesce_end(th_group(), NULL), DTR_ERR_DEVICE);
    TH_CHECK(dtr_group_seq(th_group()) == seq, "the sequence moved");
    TH_AGREE();
    TH_OK(dtr_allreduce(th_group(), b, b, DTR_SUM, NULL, NULL));
    check(b, 1, (float)th_size(), "sum");
    drop(b);
    TH_AGREE();
}
END_TEST

/* GP9: no warning where the backend was named. */
START_TEST(GP9_backend_texts) {
    const char *const texts[] = { "cpu:auto,cuda:stage", "cuda:stage" };
    for (int i = 0; i < 2; i++) {
        dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
        go.backend = texts[i];
        dtr_group *g = NULL;
        dtr_buffer b = filled(N, 2);
        TH_OK(dtr_group_create(th_world(), NULL, th_size(), &go, &g));
        th_log_clear();
        TH_OK(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL));
        TH_OK(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL));
        check(b, 2, 1, texts[i]);
        TH_CHECK(th_log_count("travel through host memory") == 0, "a warning");
        drop(b);
        TH_OK(dtr_group_destroy(g));
    }
}
END_TEST

/* ST8: an abort while the copy from the device is held releases the waiter with the reason; the
 * pinned memory is left alone until the copy has ended. */
START_TEST(ST8_abort_in_mid_transfer) {
    dtr_group *g = NULL;
    cudaStream_t stream;
    cudaEvent_t open;
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), NULL, &g));
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, stream);
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.stream = stream;
    dtr_work *w = NULL;
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, &w), DTR_OK);
    th_barrier();
    if (th_rank() == 0) {
        TH_IS(dtr_group_abort(g, "enough"), DTR_OK);
    }
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_ABORTED);
    TH_MESSAGE("enough");
    TH_IS(dtr_work_release(w), DTR_OK);
    dtr_fake_cuda_hold(open, 0);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
    drop(b);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* reliability:EA2: an error of CUDA in mid-transfer breaks the group on every rank with one error.
 */
START_TEST(an_error_of_cuda_breaks_the_group) {
    dtr_group *g = NULL;
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), NULL, &g));
    dtr_buffer b = filled(N, 1);
    if (th_rank() == th_size() - 1) {
        setenv("DTR_FAKE_CUDA_ERR", "cudaMemcpyAsync:1:700", 1);
        dtr_fake_cuda_reload();
    }
    dtr_status s = dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL);
    TH_CHECK(s == DTR_ERR_CUDA || (s < 0 && th_rank() != th_size() - 1), "%s", dtr_status_name(s));
    unsetenv("DTR_FAKE_CUDA_ERR");
    dtr_fake_cuda_reload();
    th_barrier();
    TH_CHECK(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL) == s, "a broken group stays broken");
    TH_IS(dtr_group_destroy(g), DTR_OK);
    drop(b);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

/* reliability:T30: a chunk is a copy off the device and one to it. */
START_TEST(T30_chunks) {
    static const struct {
        const char *chunk;
        int copies;
    } rows[] = { { "1KiB", 24 }, { "4KiB", 6 }, { "1MiB", 2 } };
    for (int i = 0; i < 3; i++) {
        dtr_world *w = NULL;
        dtr_buffer b = filled(N, 1);
        const char *const before = getenv("DTR_STAGE_CHUNK");
        char keep[32];
        snprintf(keep, sizeof keep, "%s", before != NULL ? before : "");
        setenv("DTR_STAGE_CHUNK", rows[i].chunk, 1);
        TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w), DTR_OK);
        setenv("DTR_STAGE_CHUNK", keep, 1);
        dtr_fake_cuda_log_start();
        TH_IS(dtr_allreduce(dtr_world_group(w), b, b, DTR_SUM, NULL, NULL), DTR_OK);
        TH_IS(dtr_world_destroy(w), DTR_OK);
        const int copies = dtr_fake_cuda_log_count("cudaMemcpyAsync to=");
        TH_CHECK(copies == rows[i].copies, "%d copies in chunks of %s", copies, rows[i].chunk);
        check(b, 1, (float)th_size(), "sum");
        drop(b);
        TH_AGREE();
    }
}
END_TEST

/* Growing messages take more pinned memory and free none: that would wait for all devices, and with
 * it for other ranks, in the midst of issuing. What is there serves again. Two messages are under
 * way at a time, or one after the other where a neighbour is late, hence the most of each size. */
START_TEST(ST10_pools_only_grow) {
    enum { LEAST = 500, MOST = 40000, ROUNDS = 10 };
    int next = (th_rank() + 1) % th_size(), before = (th_rank() + th_size() - 1) % th_size();
    dtr_buffer out = filled(MOST, (float)th_rank()), in = device_f32(MOST);
    int sizes = 0;
    dtr_fake_cuda_log_start();
    for (int round = 0; round < ROUNDS; round++) {
        sizes = 0;
        for (size_t n = LEAST; n <= MOST; n *= 3) {
            dtr_work *sent = NULL;
            out.count = in.count = n;
            TH_IS(dtr_send(th_group(), out, next, 0, NULL, &sent), DTR_OK);
            TH_IS(dtr_recv(th_group(), in, before, 0, NULL, NULL), DTR_OK);
            finish(sent);
            check(in, (float)before, 1, "message");
            sizes++;
        }
    }
    int allocated = dtr_fake_cuda_log_count(dtr__arena_usable(th_world()) ? "cudaHostRegister p="
                                                                          : "cudaHostAlloc");
    TH_CHECK(allocated > 0 && allocated <= 2 * sizes, "%d allocations for %d sizes", allocated,
             sizes);
    TH_CHECK(dtr_fake_cuda_log_count("cudaFreeHost") == 0 &&
                 dtr_fake_cuda_log_count("cudaHostUnregister") == 0,
             "pinned memory was freed");
    drop(out);
    drop(in);
    TH_AGREE();
}
END_TEST

/* Three chunks are on their way: one comes from the device, one is with the CPU backend, one goes
 * back. They lie in memory of the node, where the ranks reduce them without copies of their own;
 * where CUDA cannot pin that, in memory of CUDA's. */
START_TEST(ST11_slots) {
    for (int pins = 0; pins < 2; pins++) {
        dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
        dtr_world *w = NULL;
        dtr_work *work = NULL;
        cudaEvent_t open;
        dtr_buffer b = filled(N, 1);
        const char *const before = getenv("DTR_STAGE_CHUNK");
        char keep[32];
        snprintf(keep, sizeof keep, "%s", before != NULL ? before : "");
        setenv("DTR_STAGE_CHUNK", "1KiB", 1);
        TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w), DTR_OK);
        setenv("DTR_STAGE_CHUNK", keep, 1);
        setenv("DTR_FAKE_CUDA_ERR", pins ? "" : "cudaHostRegister:0:801", 1);
        dtr_fake_cuda_reload();
        cudaStream_t stream = held_stream(&open);
        o.stream = stream;
        dtr_fake_cuda_log_start();
        TH_IS(dtr_allreduce(dtr_world_group(w), b, b, DTR_SUM, &o, &work), DTR_OK);
        while (dtr_fake_cuda_log_count("kind=2") < 3) {
            (void)dtr_work_wait(work, 0); /* where there is no thread */
            th_sleep(0.001);
        }
        th_sleep(0.01);
        TH_CHECK(dtr_fake_cuda_log_count("kind=2") == 3, "%s", dtr_fake_cuda_log_text());
        const char *log = dtr_fake_cuda_log_text(), *at = log;
        void *p = NULL;
        for (int n = 0; n < 3 && (at = strstr(at, "cudaMemcpyAsync to=")) != NULL; n++) {
            uint64_t offset;
            int owner = -1;
            const bool read = sscanf(at, "cudaMemcpyAsync to=%p", &p) == 1;
            const bool inside = read && dtr__arena_find(w, p, 1024, &owner, &offset);
            TH_CHECK(inside == (pins && dtr__arena_usable(w)), "chunk %d at %p: %s", n, p, log);
            at++;
        }
        dtr_fake_cuda_hold(open, 0);
        finish(work);
        check(b, 1, (float)th_size(), "sum");
        unsetenv("DTR_FAKE_CUDA_ERR");
        dtr_fake_cuda_reload();
        TH_IS(dtr_world_destroy(w), DTR_OK);
        cudaEventDestroy(open);
        cudaStreamDestroy(stream);
        drop(b);
        TH_AGREE();
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "stage", 110);
    th_add(tc, ST1_point_to_point, 2, 0);
    th_add(tc, ST1_nobody, 0, 0);
    th_add(tc, ST2_the_stream_comes_first, 1, 0);
    th_add(tc, operators_of_the_program, 0, 0);
    th_add(tc, A10_factor_on_the_device, 1, 0);
    th_add(tc, Z3_nan, 1, 0);
    th_add(tc, ST5_refusals_take_no_number, 1, 0);
    th_add(tc, GP9_backend_texts, 1, 0);
    th_add(tc, ST8_abort_in_mid_transfer, 1, 0);
    th_add(tc, an_error_of_cuda_breaks_the_group, 1, 0);
    th_add(tc, T30_chunks, 1, 0);
    th_add(tc, ST10_pools_only_grow, 2, 0);
    th_add(tc, ST11_slots, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "stage", make);
}
