/* The nccl backend on the stand-ins: what it calls and when, waits, messages, and what it leaves to
 * stage. Values for every dtype and operator are in double_matrix. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "nccl_data.h"

/* D1, D4, D9, D10, J1, collectives:NCM2: one communicator for three operations, on a stream of its
 * own; GP11: none for a group of one rank, which only copies. */
START_TEST(D1_one_communicator) {
    dtr_fake_cuda_log_start();
    for (int i = 0; i < 3; i++) {
        allreduce_good(th_group());
    }
    int inits = dtr_fake_cuda_log_count("ncclCommInitRankConfig rank");
    int calls = dtr_fake_cuda_log_count("ncclAllReduce rank");
    int streams = dtr_fake_cuda_log_count("cudaStreamCreateWithPriority flags=1 priority=-5");
    int many = th_size() > 1;
    TH_CHECK(inits == many, "%d communicators: %s", inits, dtr_fake_cuda_log_text());
    TH_CHECK(calls == 3 * many, "%d native calls", calls);
    TH_CHECK(streams == 1, "%d streams: %s", streams, dtr_fake_cuda_log_text());
    TH_AGREE();
    dtr_group *g = group_of("cpu:auto,cuda:nccl", 0);
    dtr_fake_cuda_log_start();
    allreduce_good(g);
    TH_CHECK(dtr_fake_cuda_log_count("ncclCommInitRankConfig rank") == 1, "nccl was named");
    TH_OK(dtr_group_destroy(g));
    TH_CHECK(dtr_fake_cuda_log_count("ncclCommFinalize") > 0, "no finalize before the end");
    TH_AGREE();
}
END_TEST

/* L1, L2, J2, J3, K3, L3, J20, reliability:T1, collectives:NCO16: an operation waits for its stream
 * and is waited for by streams; the host goes on. */
START_TEST(L1_waits_order_streams) {
    cudaStream_t stream, slow, other;
    cudaEvent_t open;
    cudaStream_t *streams[] = { &stream, &slow, &other };
    for (int i = 0; i < 3; i++) {
        TH_CHECK(cudaStreamCreateWithFlags(streams[i], cudaStreamNonBlocking) == cudaSuccess,
                 "stream");
    }
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    allreduce_good(th_group()); /* the communicator is there */
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.stream = stream;
    dtr_work *w = NULL, *second = NULL;
    bool done = true;
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, slow);
    cudaStreamWaitEvent(stream, open, 0);
    dtr_fake_cuda_log_start();
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, &o, &w), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_MAX, &o, &second), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_wait_stream(second, other), DTR_OK);
    TH_CHECK(cudaStreamQuery(other) == cudaErrorNotReady, "the other stream does not wait");
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(!done, "the operation did not wait for the stream");
    TH_IS(dtr_work_synchronize(second, 0), DTR_IN_PROGRESS);
    TH_CHECK(dtr_fake_cuda_log_count("Synchronize") == 0, "the host waited for the device: %s",
             dtr_fake_cuda_log_text());
    dtr_fake_cuda_hold(open, 0);
    TH_IS(dtr_work_synchronize(second, -1), DTR_OK);
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(done, "it was before the one that has ended");
    TH_CHECK(cudaStreamSynchronize(other) == cudaSuccess, "synchronize");
    check(b, 1, (float)th_size(), "sum");
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_work_release(second), DTR_OK);
    TH_IS(dtr_work_wait_stream(NULL, NULL), DTR_OK);
    drop(b);
    cudaEventDestroy(open);
    for (int i = 0; i < 3; i++) {
        cudaStreamDestroy(*streams[i]);
    }
    TH_AGREE();
}
END_TEST

/* Y1: a barrier comes after what this rank has under way on its devices. */
START_TEST(Y1_barrier_waits_for_works) {
    cudaStream_t stream;
    cudaEvent_t open;
    allreduce_good(th_group());
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.stream = stream;
    dtr_work *w = NULL, *barrier = NULL;
    bool done = true;
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, stream);
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, &o, &w), DTR_OK);
    dtr_fake_cuda_log_start();
    TH_IS(dtr_barrier(th_group(), NULL, &barrier), DTR_OK);
    for (int i = 0; i < 50; i++) {
        TH_IS(dtr_work_test(barrier, &done), DTR_OK);
        TH_CHECK(!done, "the barrier ended before the work");
    }
    TH_CHECK(dtr_fake_cuda_log_count("ncclAllReduce") == 0, "it called NCCL");
    dtr_fake_cuda_hold(open, 0);
    TH_IS(dtr_work_wait(barrier, -1), DTR_OK);
    TH_IS(dtr_work_test(w, &done), DTR_OK);
    TH_CHECK(done, "the work has not ended after the barrier");
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_work_release(barrier), DTR_OK);
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
    drop(b);
    TH_AGREE();
}
END_TEST

typedef struct gated {
    cudaStream_t stream;
    cudaEvent_t open;
} gated;

static gated gate_make(void) {
    gated h;
    TH_CHECK(cudaStreamCreateWithFlags(&h.stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_CHECK(cudaEventCreateWithFlags(&h.open, cudaEventDisableTiming) == cudaSuccess, "event");
    return h;
}

/* What the stream gets from here on waits until the event is let go. */
static void gate_shut(const gated *h) {
    dtr_fake_cuda_hold(h->open, 1);
    cudaEventRecord(h->open, h->stream);
}

static void gate_close(gated *h) {
    dtr_fake_cuda_hold(h->open, 0);
    TH_CHECK(cudaStreamSynchronize(h->stream) == cudaSuccess, "synchronize");
    cudaStreamDestroy(h->stream);
    cudaEventDestroy(h->open);
}

/* One barrier that waits for the last rank's stream; in a scope or not. */
static void barrier_behind(const gated *h, const dtr_coll_options *o, bool in_scope) {
    bool last = th_rank() == th_size() - 1, done = true;
    double let_go = 0;
    dtr_work *w = NULL;
    if (last) {
        gate_shut(h);
    }
    TH_IS(in_scope ? dtr_coalesce_begin(th_group()) : DTR_OK, DTR_OK);
    TH_IS(dtr_barrier(th_group(), o, &w), DTR_OK);
    if (in_scope) {
        dtr_work *whole = NULL;
        TH_IS(dtr_coalesce_end(th_group(), &whole), DTR_OK);
        TH_IS(dtr_work_release(whole), DTR_OK);
    }
    for (int i = 0; i < 50 && last; i++) {
        TH_IS(dtr_work_test(w, &done), DTR_OK);
        TH_CHECK(!done, "the barrier ended before what the stream holds");
    }
    if (last) {
        let_go = th_now();
        dtr_fake_cuda_hold(h->open, 0);
    }
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    double ended = th_now(), latest = th_latest(let_go);
    TH_CHECK(cudaEventQuery(h->open) == cudaSuccess, "what the stream holds has not ended");
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(ended >= latest, "it ended %g s before the last rank's stream", latest - ended);
}

/* Y1, Y2, Y4, U1: a barrier with a stream comes after what that stream holds, on whichever rank,
 * and after nothing that others hold; without one CUDA is not called, also from the same place. */
START_TEST(Y1_barrier_waits_for_its_stream) {
    gated own = gate_make(), other = gate_make();
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    int *here = NULL;
    void *there = NULL;
    o.stream = own.stream;
    gate_shut(&other);
    for (int i = 0; i < 4; i++) {
        barrier_behind(&own, &o, i % 2 == 1);
    }
    TH_CHECK(cudaMallocHost((void **)&here, 8 * sizeof *here) == cudaSuccess, "pinned memory");
    TH_IS(dtr_alloc(th_world(), gpu, DTR_MEM_DEFAULT, sizeof *here, &there), DTR_OK);
    setenv("DTR_FAKE_CUDA_DELAY_US", "3000", 1);
    dtr_fake_cuda_reload();
    for (int i = 0; i < 8; i++) { /* the host reads behind the barrier only */
        bool with = i % 3 == 2;
        cudaMemsetAsync(there, i, sizeof *here, own.stream);
        cudaMemcpyAsync(here + i, there, sizeof *here, cudaMemcpyDeviceToHost, own.stream);
        uint64_t seq = dtr_group_seq(th_group());
        dtr_fake_cuda_log_start();
        TH_IS(dtr_barrier(th_group(), with ? &o : NULL, NULL), DTR_OK);
        TH_CHECK(dtr_group_seq(th_group()) == seq + 1, "not counted once");
        int looks = dtr_fake_cuda_log_count("cudaEventQuery");
        int marks = dtr_fake_cuda_log_count("cudaEventRecord");
        TH_CHECK(marks == with && (looks > 0) == with, "%s", dtr_fake_cuda_log_text());
        TH_CHECK(!with || here[i] == i * 0x01010101, "number %d is %d", i, here[i]);
    }
    unsetenv("DTR_FAKE_CUDA_DELAY_US");
    dtr_fake_cuda_reload();
    TH_CHECK(cudaStreamQuery(other.stream) == cudaErrorNotReady, "the other stream has ended");
    gate_close(&other);
    gate_close(&own);
    TH_IS(dtr_free(th_world(), there), DTR_OK);
    cudaFreeHost(here);
    TH_AGREE();
}
END_TEST

/* Y1, Y6, AB6: the limit counts while the stream is waited for, and says so; a stream that captures
 * is refused without harm to the capture. */
START_TEST(Y6_barrier_behind_a_stream_that_hangs) {
    gated own = gate_make();
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    cudaGraph_t graph = NULL;
    dtr_group *g = group_of(NULL, 0);
    o.stream = own.stream;
    cudaStreamBeginCapture(own.stream, cudaStreamCaptureModeGlobal);
    TH_IS(dtr_barrier(g, &o, NULL), DTR_ERR_STATE);
    TH_MESSAGE("its stream captures a graph");
    TH_CHECK(cudaStreamEndCapture(own.stream, &graph) == cudaSuccess && graph != NULL, "ruined");
    cudaGraphDestroy(graph);
    TH_IS(dtr_barrier(g, &o, NULL), DTR_OK);
    th_barrier(); /* or the limit may end that one too */
    gate_shut(&own);
    o.timeout_s = 0.3;
    TH_IS(dtr_barrier(g, &o, NULL), DTR_ERR_TIMEOUT);
    TH_MESSAGE("what the stream of its options holds on cuda:0");
    gate_close(&own);
    (void)dtr_group_destroy(g);
    TH_AGREE();
}
END_TEST

/* W1, W2, W3, W9, D3, D4, E5, G6, U2: messages of pairs, a ring in a batch; what has a tag goes by
 * stage. F6: a pair's communicator is no split of the group's, which is there already. */
START_TEST(W1_messages) {
    int size = th_size(), next = (th_rank() + 1) % size, before = (th_rank() + size - 1) % size;
    dtr_buffer out = filled(N, (float)th_rank()), in = device_f32(N);
    uint64_t seq = dtr_group_seq(th_group());
    dtr_fake_cuda_log_start();
    dtr_p2p ring[] = { { true, out, next, 0 }, { false, in, before, 0 } };
    TH_IS(dtr_batch_p2p(th_group(), ring, 2, NULL, NULL), DTR_OK);
    check(in, (float)before, 1, "ring");
    TH_CHECK(dtr_fake_cuda_log_count("ncclSend rank") == 1, "%s", dtr_fake_cuda_log_text());
    TH_AGREE();
    dtr_fake_cuda_log_start();
    int peer = th_rank() ^ 1; /* pairs */
    for (int i = 0; i < 2 && peer < size; i++) {
        dtr_status s = th_rank() < peer ? dtr_send(th_group(), out, peer, 0, NULL, NULL)
                                        : dtr_recv(th_group(), in, peer, 0, NULL, NULL);
        TH_IS(s, DTR_OK);
    }
    if (peer < size) {
        TH_CHECK(dtr_fake_cuda_log_count("ncclCommInitRankConfig rank") == 1, "a pair's own");
        char geometry[64];
        snprintf(geometry, sizeof geometry, "ncclCommInitRankConfig rank %d of 2", th_rank() & 1);
        TH_CHECK(dtr_fake_cuda_log_count(geometry) == 1, "%s", dtr_fake_cuda_log_text());
        check(in, (float)(th_rank() < peer ? before : peer), 1, "message");
    }
    TH_AGREE();
    dtr_work *w = NULL;
    dtr_fake_cuda_log_start();
    TH_IS(dtr_recv(th_group(), in, DTR_ANY_SOURCE, 7, NULL, &w), DTR_OK);
    TH_IS(dtr_send(th_group(), out, next, 7, NULL, NULL), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(dtr_work_source(w) == before, "source %d", dtr_work_source(w));
    TH_IS(dtr_work_release(w), DTR_OK);
    check(in, (float)before, 1, "with a tag");
    TH_CHECK(dtr_fake_cuda_log_count("ncclSend") == 0, "NCCL has no tags");
    TH_IS(dtr_recv(th_group(), in, DTR_ANY_SOURCE, 0, NULL, NULL), DTR_ERR_UNSUPPORTED);
    TH_IS(dtr_send(th_group(), out, th_rank(), 0, NULL, NULL), DTR_ERR_RANK);
    TH_CHECK(dtr_group_seq(th_group()) == seq, "messages moved the sequence");
    drop(in);
    drop(out);
    TH_AGREE();
}
END_TEST

/* W1: DTR_PEER_NONE, through NCCL and where it was named: no call of NCCL's for such an entry. */
START_TEST(W1_nobody) {
    int size = th_size(), up = th_rank() + 1 < size ? th_rank() + 1 : DTR_PEER_NONE;
    int down = th_rank() > 0 ? th_rank() - 1 : DTR_PEER_NONE;
    dtr_group *g = group_of("cpu:auto,cuda:nccl", 0);
    dtr_buffer out = filled(N, (float)th_rank()), in = filled(N, 50);
    dtr_p2p ops[] = { { false, in, down, 0 }, { true, out, up, 0 } };
    dtr_work *w = NULL;
    dtr_fake_cuda_log_start();
    TH_IS(dtr_send(g, out, DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_recv(g, in, DTR_PEER_NONE, 7, NULL, NULL), DTR_OK);
    TH_IS(dtr_recv(g, in, DTR_PEER_NONE, 0, NULL, &w), DTR_OK);
    TH_CHECK(dtr_work_source(w) == DTR_PEER_NONE, "source %d", dtr_work_source(w));
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_coalesce_begin(g), DTR_OK);
    TH_IS(dtr_recv(g, in, DTR_PEER_NONE, 0, NULL, NULL), DTR_OK);
    TH_IS(dtr_coalesce_end(g, NULL), DTR_OK);
    TH_CHECK(dtr_fake_cuda_log_count("nccl") == 0, "%s", dtr_fake_cuda_log_text());
    TH_IS(dtr_batch_p2p(g, ops, 2, NULL, NULL), DTR_OK);
    check(in, down >= 0 ? (float)down : 50, 1, "along a line");
    TH_CHECK(dtr_fake_cuda_log_count("ncclSend rank") == (up >= 0), "%s", dtr_fake_cuda_log_text());
    drop(out);
    drop(in);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* W4: in a batch a rank may send to itself. */
START_TEST(W4_oneself_in_a_batch) {
    dtr_group *g = group_of("cpu:auto,cuda:nccl", 0);
    dtr_buffer out = filled(N, (float)th_rank()), in = device_f32(N);
    dtr_p2p own[] = { { true, out, th_rank(), 0 }, { false, in, th_rank(), 0 } };
    TH_IS(dtr_batch_p2p(g, own, 2, NULL, NULL), DTR_OK);
    check(in, (float)th_rank(), 1, "to oneself");
    drop(in);
    drop(out);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* A4, A13, A20, A21, GP9, reliability:S5, collectives:NCC11: what NCCL lacks goes by stage, with
 * one warning for each reason; where nccl was named it is refused, and takes no number. */
START_TEST(A13_what_nccl_lacks) {
    dtr_buffer b = filled(N, 0);
    dtr_buffer whole = { b.data, N, DTR_I32, gpu }, half = { b.data, N, DTR_I16, gpu };
    th_log_clear();
    dtr_fake_cuda_log_start();
    for (int i = 0; i < 2; i++) {
        TH_IS(dtr_allreduce(th_group(), whole, whole, DTR_BXOR, NULL, NULL), DTR_OK);
        TH_IS(dtr_allreduce(th_group(), half, half, DTR_MAX, NULL, NULL), DTR_OK);
    }
    TH_CHECK(dtr_fake_cuda_log_count("ncclAllReduce") == 0, "NCCL was called");
    int warnings = th_log_count("travel through host memory");
    TH_CHECK(warnings == (dtr_group_rank(th_group()) == 0 ? 2 : 0), "%d warnings", warnings);
    TH_AGREE();
    dtr_group *g = group_of("cpu:auto,cuda:nccl", 0);
    TH_IS(dtr_allreduce(g, whole, whole, DTR_BXOR, NULL, NULL), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("bxor");
    TH_IS(dtr_allreduce(g, half, half, DTR_SUM, NULL, NULL), DTR_ERR_UNSUPPORTED);
    TH_IS(dtr_send(g, b, (th_rank() + 1) % th_size(), 3, NULL, NULL), DTR_ERR_UNSUPPORTED);
    TH_CHECK(dtr_group_seq(g) == 0, "a refused call took a number");
    drop(b);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* A10, A11, collectives:NCC11: a factor by value and one on the device; what was made for the call
 * is given back. */
START_TEST(A11_premultiplied) {
    float half = 0.5f;
    dtr_buffer b = filled(N, 1), f = device_f32(1);
    put(f, &half);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.premul = 2;
    dtr_fake_cuda_log_start();
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_PREMUL_SUM, &o, NULL), DTR_OK);
    o.premul_device = f.data;
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_PREMUL_SUM, &o, NULL), DTR_OK);
    check(b, 1, (float)(th_size() * th_size()), "twice and half the sum");
    int many = th_size() > 1;
    TH_CHECK(dtr_fake_cuda_log_count("ncclRedOpCreatePreMulSum type") == 2 * many, "created");
    TH_CHECK(dtr_fake_cuda_log_count("ncclRedOpDestroy") == 2 * many, "not destroyed: %s",
             dtr_fake_cuda_log_text());
    drop(b);
    drop(f);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl", 110);
    th_add(tc, D1_one_communicator, 1, 0);
    th_add(tc, L1_waits_order_streams, 1, 0);
    th_add(tc, Y1_barrier_waits_for_works, 1, 0);
    th_add(tc, W1_messages, 2, 0);
    th_add(tc, W1_nobody, 0, 0);
    th_add(tc, W4_oneself_in_a_batch, 1, 0);
    th_add(tc, A13_what_nccl_lacks, 2, 0);
    th_add(tc, A11_premultiplied, 1, 0);
    TCase *stream = th_case(s, "barrier and stream", 110);
    th_add(stream, Y1_barrier_waits_for_its_stream, 1, 0);
    th_add(stream, Y6_barrier_behind_a_stream_that_hangs, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl", make);
}
