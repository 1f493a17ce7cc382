/* How operations on the device end, on the stand-ins: every code of NCCL, the first error and what
 * is asked after it, limits, handles given back early, callbacks, and many threads at once. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <dtr/tensor.h>

#include "nccl_data.h"

static int calls(const char *text) {
    return dtr_fake_cuda_log_count(text);
}

static dtr_group *new_group(void) {
    dtr_group *g = NULL;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), NULL, &g), DTR_OK);
    allreduce_good(g);
    TH_AGREE();
    return g;
}

/* ---- NCCL's codes ---- */

/* How an allreduce ends. */
static dtr_status ended(dtr_group *g, dtr_buffer b) {
    dtr_work *w = NULL;
    dtr_status s = dtr_allreduce(g, b, b, DTR_MAX, NULL, &w);
    s = s == DTR_OK ? dtr_work_synchronize(w, -1) : s;
    TH_IS(dtr_work_release(w), DTR_OK);
    return s;
}

/* H2, H8, collectives:NCC1, NCC2: each code is a status, and the text has its number, NCCL's words
 * and where it came from, also of those that nobody knows; "in progress" is no error. */
START_TEST(H8_every_code) {
    static const struct {
        int code;
        dtr_status status;
        const char *words;
    } t[] = { { 1, DTR_ERR_NCCL, "unhandled cuda error" },
              { 2, DTR_ERR_NCCL, "unhandled system error" },
              { 3, DTR_ERR_NCCL, "internal error" },
              { 4, DTR_ERR_ARG, "invalid argument" },
              { 5, DTR_ERR_NCCL, "invalid usage" },
              { 6, DTR_ERR_REMOTE, "remote process exited" },
              { 7, DTR_OK, "" },
              { 8, DTR_ERR_NCCL, "unknown result code" },
              { 99, DTR_ERR_NCCL, "unknown result code" } };
    dtr_buffer b = filled(N, 1);
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        char setting[64], text[64];
        dtr_group *g = new_group();
        snprintf(setting, sizeof setting, "ncclAllReduce:1:%d", t[i].code);
        snprintf(text, sizeof text, "ncclAllReduce: NCCL error %d (%s", t[i].code, t[i].words);
        if (t[i].code == 7) { /* then nothing has been launched, on no rank */
            fault("DTR_FAKE_NCCL_ERR", setting);
            TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL), DTR_OK);
        } else {
            fault_on_culprit("DTR_FAKE_NCCL_ERR", setting);
            dtr_status s = ended(g, b);
            TH_CHECK(th_rank() == culprit() ? s == t[i].status : s < 0, "code %d: %s", t[i].code,
                     dtr_status_name(s));
            TH_MESSAGE(text);
        }
        fault("DTR_FAKE_NCCL_ERR", NULL);
        end_group(g);
    }
    drop(b);
    TH_AGREE();
}
END_TEST

/* H4, H5, H7, D17: after the first error, NCCL's own or an abort, everything has that error, with
 * its rank, and neither the state of the communicator is asked for again nor its handle used. */
START_TEST(H5_H7_after_the_first_error) {
    for (int abort = 0; abort < 2; abort++) {
        dtr_group *g = new_group();
        dtr_buffer b = filled(N, 1);
        dtr_work *w = NULL;
        char where[64];
        dtr_status s = DTR_OK;
        snprintf(where, sizeof where, "%d@ncclAllReduce", culprit());
        if (abort) {
            TH_IS(th_rank() == culprit() ? dtr_group_abort(g, "enough") : DTR_OK, DTR_OK);
            while (dtr_group_status(g) == DTR_OK) {
                th_sleep(0.001);
            }
        } else {
            fault("DTR_FAKE_NCCL_ASYNC_ERR_RANK", where);
        }
        s = dtr_allreduce(g, b, b, DTR_SUM, NULL, &w);
        s = s == DTR_OK ? dtr_work_synchronize(w, -1) : s;
        TH_CHECK(abort ? s == DTR_ERR_ABORTED : s < 0, "%s", dtr_status_name(s));
        fault("DTR_FAKE_NCCL_ASYNC_ERR_RANK", NULL);
        snprintf(where, sizeof where, "rank %d", culprit());
        dtr_fake_cuda_log_start();
        for (int i = 0; i < 4; i++) {
            dtr_status again = i == 0      ? dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL)
                               : i == 1    ? dtr_broadcast(g, b, 0, NULL, NULL)
                               : i == 2    ? dtr_group_connect(g, gpu)
                               : w != NULL ? dtr_work_synchronize(w, -1)
                                           : s;
            TH_CHECK(again == s, "%s after %s", dtr_status_name(again), dtr_status_name(s));
            TH_MESSAGE(abort ? "enough" : "injected asynchronous error");
            TH_MESSAGE(where);
        }
        TH_IS(dtr_work_release(w), DTR_OK);
        end_group(g);
        TH_CHECK(calls("nccl") == calls("ncclCommAbort") + calls("nccl error:"), "%s",
                 dtr_fake_cuda_log_text());
        drop(b);
        TH_AGREE();
    }
}
END_TEST

/* G1: both kinds of communicator serve. G7: a communicator that is still busy is no error for who
 * asks in the background. */
START_TEST(G1_G7_both_kinds) {
    for (int blocking = 0; blocking < 2; blocking++) {
        char text[32];
        fault("NCCL_COMM_BLOCKING", blocking ? "1" : "0");
        snprintf(text, sizeof text, "blocking %d", blocking);
        dtr_fake_cuda_log_start();
        dtr_group *g = new_group();
        TH_CHECK(calls(text) == 1, "%s", dtr_fake_cuda_log_text());
        dtr_buffer b = filled(N, 1);
        dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
        dtr_work *w = NULL;
        cudaEvent_t open;
        o.stream = held_stream(&open);
        TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, &w), DTR_OK);
        dtr_fake_cuda_log_start();
        fault("DTR_FAKE_NCCL_ERR", "ncclCommGetAsyncError:1:7");
        while (calls("ncclCommGetAsyncError") < 3) {
            TH_IS(dtr_work_synchronize(w, 0), DTR_IN_PROGRESS);
            th_sleep(0.001);
        }
        fault("DTR_FAKE_NCCL_ERR", NULL);
        dtr_fake_cuda_hold(open, 0);
        TH_IS(dtr_work_synchronize(w, -1), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
        check(b, 1, (float)th_size(), "sum");
        cudaEventDestroy(open);
        cudaStreamDestroy(o.stream);
        drop(b);
        end_group(g);
    }
    fault("NCCL_COMM_BLOCKING", NULL);
}
END_TEST

/* ---- limits and handles ---- */

/* When no rank needs the stream held any more. */
static void end_held(dtr_group *g, cudaEvent_t open, cudaStream_t stream) {
    th_barrier();
    dtr_fake_cuda_hold(open, 0);
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    end_group(g);
    cudaEventDestroy(open);
    cudaStreamDestroy(stream);
}

typedef struct told {
    _Atomic int times, status;
    dtr_group *group;
    dtr_buffer buffer;
    cudaStream_t held; /* so that what is issued on it cannot be over when it is waited for */
    uint64_t seq;
    dtr_status waited, blocked, issued;
    dtr_work *next;
} told;

/* R2, R3: what a callback sees and may do. */
static void tell(dtr_work *w, dtr_status s, void *arg) {
    told *t = arg;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.stream = t->held;
    t->seq = dtr_work_seq(w);
    if (s == DTR_OK) {
        t->blocked = dtr_allreduce(t->group, t->buffer, t->buffer, DTR_MAX, NULL, NULL);
        t->issued = dtr_allreduce(t->group, t->buffer, t->buffer, DTR_MAX, &o, &t->next);
        t->waited = dtr_work_synchronize(t->next, -1);
    }
    atomic_store(&t->status, (int)s);
    atomic_fetch_add(&t->times, 1);
}

static void await(told *t) {
    while (atomic_load(&t->times) == 0) {
        th_sleep(0.001);
    }
}

/* K20, R2, R3: a handle given back at once: the operation goes on and its callback is called. L4,
 * K20, R2, W5, W8: it is watched too, with its limit, whoever waits. */
START_TEST(K20_R3_given_back_at_once) {
    dtr_group *g = new_group();
    dtr_buffer a = filled(N, 1), b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL, *other = NULL;
    cudaEvent_t open, issued;
    told good = { .group = g, .buffer = filled(N, 2), .held = held_stream(&issued) };
    told late = { .group = g };
    o.stream = held_stream(&open);
    TH_IS(dtr_allreduce(g, a, a, DTR_SUM, &o, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, tell, &good), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    dtr_fake_cuda_hold(open, 0);
    await(&good);
    TH_CHECK(good.status == DTR_OK && good.seq == 2 && good.issued == DTR_OK, "%s, #%d, %s",
             dtr_status_name((dtr_status)good.status), (int)good.seq, dtr_status_name(good.issued));
    TH_CHECK(good.blocked == DTR_ERR_STATE && good.waited == DTR_ERR_STATE, "%s and %s",
             dtr_status_name(good.blocked), dtr_status_name(good.waited));
    dtr_fake_cuda_hold(issued, 0);
    TH_IS(dtr_work_synchronize(good.next, -1), DTR_OK);
    TH_IS(dtr_work_release(good.next), DTR_OK);
    cudaEventDestroy(issued);
    cudaStreamDestroy(good.held);
    check(a, 1, (float)th_size(), "sum");
    check(good.buffer, 2, 1, "of the callback");
    drop(good.buffer);
    TH_AGREE();
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, o.stream);
    cudaStreamWaitEvent(o.stream, open, 0);
    o.timeout_s = 600;
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, &other), DTR_OK);
    th_barrier(); /* the limit may pass before the others are in the next call */
    o.timeout_s = th_rank() == culprit() ? 0.5 : 600;
    w = NULL;
    dtr_status s = dtr_allreduce(g, a, a, DTR_SUM, &o, &w);
    if (th_rank() == culprit() || s == DTR_OK) {
        TH_IS(s, DTR_OK);
        TH_IS(dtr_work_on_complete(w, tell, &late), DTR_OK);
    } else {
        tell(NULL, s, &late);
    }
    TH_IS(dtr_work_release(w), DTR_OK);
    await(&late);
    TH_CHECK(late.status == DTR_ERR_TIMEOUT && late.times == 1, "%s",
             dtr_status_name((dtr_status)late.status));
    TH_IS(dtr_work_synchronize(other, -1), DTR_ERR_TIMEOUT);
    TH_MESSAGE("allreduce #5");
    TH_IS(dtr_work_release(other), DTR_OK);
    end_held(g, open, o.stream);
    drop(a);
    drop(b);
    TH_AGREE();
}
END_TEST

/* L4: a limit given to who waits for the device ends the operation everywhere; none is one look. */
START_TEST(L4_limit_of_a_wait) {
    dtr_group *g = new_group();
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    bool done = false;
    cudaEvent_t open;
    o.stream = held_stream(&open);
    o.timeout_s = 20; /* of the operation itself: the message says whose limit it was */
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, &w), DTR_OK);
    TH_IS(dtr_work_synchronize(w, 0), DTR_IN_PROGRESS);
    TH_IS(dtr_group_status(g), DTR_OK);
    th_barrier();
    TH_IS(dtr_work_synchronize(w, th_rank() == culprit() ? 0.3 : -1), DTR_ERR_TIMEOUT);
    TH_MESSAGE("within 0.3 s");
    TH_IS(dtr_work_test(w, &done), DTR_ERR_TIMEOUT);
    TH_CHECK(done, "the operation has ended");
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_ERR_TIMEOUT);
    TH_IS(dtr_work_release(w), DTR_OK);
    end_held(g, open, o.stream);
    drop(b);
    TH_AGREE();
}
END_TEST

/* W5, W8: two ranks that both send first wait for each other until the limit, which names both; a
 * batch of the same completes. */
START_TEST(W8_both_send_first) {
    dtr_group *g = new_group();
    int peer = th_rank() ^ 1;
    dtr_buffer out = filled(N, (float)th_rank()), in = device_f32(N);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    dtr_p2p both[] = { { true, out, peer, 0 }, { false, in, peer, 0 } };
    bool paired = peer < th_size();
    if (paired) {
        TH_IS(dtr_batch_p2p(g, both, 2, NULL, NULL), DTR_OK);
        check(in, (float)peer, 1, "batch");
    }
    for (int turn = 0; turn < 2 && paired; turn++) { /* the pair has met */
        TH_IS((th_rank() < peer) == (turn == 0) ? dtr_send(g, out, peer, 0, NULL, NULL)
                                                : dtr_recv(g, in, peer, 0, NULL, NULL),
              DTR_OK);
    }
    th_barrier();
    o.timeout_s = 600;
    if (paired) {
        dtr_status s = dtr_send(g, out, peer, 0, &o, &w);
        TH_CHECK(s == DTR_OK && w != NULL, "%s", dtr_status_name(s));
    }
    th_barrier();
    if (paired) {
        TH_IS(dtr_work_synchronize(w, 0.5), DTR_ERR_TIMEOUT);
        TH_MESSAGE("send");
        TH_MESSAGE("rank 0");
        TH_MESSAGE("rank 1");
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    end_group(g);
    drop(out);
    drop(in);
    TH_AGREE();
}
END_TEST

static _Atomic uint64_t freed_by;
static _Atomic int freed;

static void note_free(void *data, void *arg) {
    (void)data;
    (void)arg;
    atomic_store(&freed_by, (uint64_t)gettid());
    atomic_fetch_add(&freed, 1);
}

/* J15: what the program does when its memory is released runs on the thread that releases, never on
 * one of the library's, though an operation ends meanwhile. */
START_TEST(J15_deleters_run_here) {
    const int64_t shape[1] = { N };
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    dtr_tensor *t = NULL;
    cudaEvent_t open;
    allreduce_good(th_group());
    atomic_store(&freed, 0);
    TH_IS(dtr_tensor_from_buffer(b, 1, shape, NULL, note_free, NULL, &t), DTR_OK);
    o.stream = held_stream(&open);
    TH_IS(dtr_tensor_allreduce(th_group(), t, DTR_SUM, &o, &w), DTR_OK);
    dtr_fake_cuda_hold(open, 0);
    TH_IS(dtr_work_synchronize(w, -1), DTR_OK);
    TH_CHECK(atomic_load(&freed) == 0, "it is still the program's");
    dtr_tensor_release(t);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_group_drain(th_group(), -1), DTR_OK);
    TH_CHECK(atomic_load(&freed) == 1 && atomic_load(&freed_by) == (uint64_t)gettid(),
             "%d times, the last by thread %d", atomic_load(&freed), (int)freed_by);
    cudaEventDestroy(open);
    cudaStreamDestroy(o.stream);
    drop(b);
    TH_AGREE();
}
END_TEST

/* R7: with nothing under way nobody asks the device for anything. */
START_TEST(R7_nothing_pending) {
    allreduce_good(th_group());
    TH_IS(dtr_group_drain(th_group(), -1), DTR_OK);
    th_barrier();
    dtr_fake_cuda_log_start();
    for (int i = 0; i < 100; i++) {
        th_good_allreduce(th_group());
    }
    TH_CHECK(calls("Query") + calls("ncclComm") == 0, "%s", dtr_fake_cuda_log_text());
    TH_AGREE();
}
END_TEST

/* collectives:NCM10: a kernel before and one after, on a stream of the program's or, where options
 * name none, the default stream: the operation runs on neither, behind the one and before the
 * other, and the host waits for nothing. */
START_TEST(NCM10_streams) {
    int64_t n = N;
    for (int named = 0; named < 2; named++) {
        cudaEvent_t open;
        dtr_tensor *t = NULL, *sum = NULL;
        dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
        cudaStream_t own = held_stream(&open);
        char text[64];
        o.stream = named ? own : NULL;
        TH_IS(dtr_tensor_empty(th_world(), DTR_F32, gpu, DTR_MEM_DEFAULT, 1, &n, &t), DTR_OK);
        TH_IS(dtr_tensor_empty(th_world(), DTR_F32, gpu, DTR_MEM_DEFAULT, 1, &n, &sum), DTR_OK);
        TH_IS(dtr_tensor_fill(sum, 5, o.stream), DTR_OK);
        TH_CHECK(cudaStreamWaitEvent(o.stream, open, 0) == cudaSuccess, "wait");
        dtr_fake_cuda_log_start();
        TH_IS(dtr_tensor_fill(t, th_rank() + 1, o.stream), DTR_OK);
        dtr_buffer b = { dtr_tensor_data(t), N, DTR_F32, gpu };
        TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, &o, NULL), DTR_OK);
        TH_IS(dtr_tensor_axpy(sum, 1, t, o.stream), DTR_OK);
        TH_CHECK(calls("Synchronize") == 0, "the host waited: %s", dtr_fake_cuda_log_text());
        dtr_fake_cuda_hold(open, 0);
        TH_CHECK(cudaStreamSynchronize(o.stream) == cudaSuccess, "synchronize");
        snprintf(text, sizeof text, "ncclAllReduce stream=%p", (void *)o.stream);
        TH_CHECK(calls("ncclAllReduce stream=") == 1 && calls(text) == 0, "%s",
                 dtr_fake_cuda_log_text());
        float got[N], want = 5 + (float)(th_size() * (th_size() + 1) / 2);
        get(got, (dtr_buffer){ dtr_tensor_data(sum), N, DTR_F32, gpu });
        for (int i = 0; i < N; i++) {
            TH_CHECK(got[i] == want, "element %d is %g, not %g", i, (double)got[i], (double)want);
        }
        TH_IS(dtr_group_drain(th_group(), -1), DTR_OK);
        dtr_tensor_release(t);
        dtr_tensor_release(sum);
        cudaEventDestroy(open);
        cudaStreamDestroy(own);
    }
    TH_AGREE();
}
END_TEST

/* ---- many threads ---- */

enum { THREADS = 3, TURNS = 6 };

typedef struct user {
    pthread_t thread;
    dtr_group *shared, *own;
    cudaStream_t
        stream[2]; /* for each group its own: the shared one's order is none of the other's */
    dtr_buffer buffer[2];
    dtr_work *awaited; /* by all threads at once */
    _Atomic int *ended;
    dtr_status first_bad;
} user;

static void count(dtr_work *w, dtr_status s, void *arg) {
    (void)w;
    atomic_fetch_add((_Atomic int *)arg, s == DTR_OK);
}

static void keep(user *u, dtr_status s) {
    u->first_bad = u->first_bad == DTR_OK ? s : u->first_bad;
}

static void *use(void *arg) {
    user *u = arg;
    dtr_group_stats stats = DTR_GROUP_STATS_INIT;
    dtr_coll_options o[2] = { DTR_COLL_OPTIONS_INIT, DTR_COLL_OPTIONS_INIT };
    bool done = false;
    o[0].stream = u->stream[0];
    o[1].stream = u->stream[1];
    for (int i = 0; i < TURNS; i++) {
        dtr_work *w = NULL;
        keep(u, dtr_allreduce(u->shared, u->buffer[0], u->buffer[0], DTR_MAX, &o[0], &w));
        keep(u, dtr_work_on_complete(w, count, u->ended));
        keep(u, dtr_work_wait(w, -1));
        keep(u, i % 2 ? DTR_OK : dtr_work_test(w, &done));
        keep(u, dtr_group_get_stats(u->shared, &stats));
        keep(u, dtr_broadcast(u->own, u->buffer[1], 0, &o[1], NULL));
        keep(u, i % 2 ? DTR_OK : dtr_work_synchronize(w, -1));
        keep(u, dtr_work_release(w));
    }
    for (done = false; !done;) {
        keep(u, dtr_work_test(u->awaited, &done));
        th_sleep(0.0001);
    }
    keep(u, dtr_work_wait(u->awaited, -1));
    keep(u, dtr_work_synchronize(u->awaited, -1));
    return NULL;
}

static void open_user(user *u, dtr_group *shared, dtr_work *awaited, _Atomic int *ended) {
    *u = (user){ .shared = shared, .awaited = awaited, .ended = ended };
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), NULL, &u->own));
    for (int i = 0; i < 2; i++) {
        u->buffer[i] = filled(N, 1);
        TH_CHECK(cudaStreamCreateWithFlags(&u->stream[i], cudaStreamNonBlocking) == cudaSuccess,
                 "stream");
    }
}

static void close_user(user *u) {
    for (int i = 0; i < 2; i++) {
        TH_CHECK(cudaStreamSynchronize(u->stream[i]) == cudaSuccess, "synchronize");
        check(u->buffer[i], 1, 1, i == 0 ? "a maximum" : "a broadcast");
        cudaStreamDestroy(u->stream[i]);
        drop(u->buffer[i]);
    }
    TH_AGREE();
    TH_OK(dtr_group_destroy(u->own));
}

/* AD1, AD5, AD9, C15, L11, X29, D19: threads that issue on one group, equal calls, so that any
 * order is the same on all ranks, and each on one of its own, whose first operation makes the
 * communicator; while they look, wait, give back and are called back. collectives:NCM1, NCM6: the
 * first use by all threads at once makes one communicator, with one identifier. Under the thread
 * sanitizer, which also knows locks taken in two orders. */
START_TEST(AD1_X29_many_threads) {
    static user u[THREADS];
    dtr_group *shared = NULL;
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    _Atomic int ended = 0;
    dtr_work *w = NULL;
    cudaEvent_t open;
    TH_OK(dtr_group_create(th_world(), NULL, th_size(), NULL, &shared));
    o.stream = held_stream(&open);
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, &o, &w), DTR_OK);
    for (int i = 0; i < THREADS; i++) {
        open_user(&u[i], shared, w, &ended);
    }
    dtr_fake_cuda_log_start();
    for (int i = 0; i < THREADS; i++) {
        TH_CHECK(pthread_create(&u[i].thread, NULL, use, &u[i]) == 0, "thread");
    }
    while (atomic_load(&ended) < THREADS * TURNS) { /* they go on while that one is held */
        th_sleep(0.001);
    }
    dtr_fake_cuda_hold(open, 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(u[i].thread, NULL);
        TH_CHECK(u[i].first_bad == DTR_OK, "thread %d: %s", i, dtr_status_name(u[i].first_bad));
    }
    int ids = calls("ncclGetUniqueId"), made = calls("ncclCommInitRankConfig rank");
    TH_CHECK(made == THREADS + 1 && ids == (th_rank() == 0 ? made : 0), "%d made, %d identifiers",
             made, ids);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(ended == THREADS * TURNS, "%d callbacks", atomic_load(&ended));
    TH_CHECK(dtr_group_seq(shared) == THREADS * TURNS, "%d operations", (int)dtr_group_seq(shared));
    TH_AGREE();
    for (int i = 0; i < THREADS; i++) {
        close_user(&u[i]);
    }
    cudaEventDestroy(open);
    cudaStreamDestroy(o.stream);
    drop(b);
    TH_OK(dtr_group_destroy(shared));
}
END_TEST

/* WRK7: a stream that waits reads the result behind the operation, and the host goes on. BAR6: a
 * barrier does not wait for what other streams hold. */
START_TEST(WRK7_BAR6_who_waits) {
    dtr_buffer b = filled(N, 1), seen = filled(N, 9);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    cudaEvent_t open;
    cudaStream_t other, held;
    dtr_work *w = NULL;
    TH_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess, "stream");
    allreduce_good(th_group()); /* frees memory, for which all streams must be free */
    TH_AGREE();
    held = held_stream(&open);
    TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
    o.stream = other;
    TH_IS(dtr_barrier(th_group(), &o, NULL), DTR_OK);
    TH_CHECK(cudaStreamQuery(held) == cudaErrorNotReady, "the held stream has gone on");
    o.stream = held;
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, &o, &w), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(cudaMemcpyAsync(seen.data, b.data, N * sizeof(float), cudaMemcpyDeviceToDevice,
                             held) == cudaSuccess,
             "copy");
    TH_CHECK(cudaStreamQuery(held) == cudaErrorNotReady, "the host has waited for the operation");
    dtr_fake_cuda_hold(open, 0);
    TH_CHECK(cudaStreamSynchronize(held) == cudaSuccess, "synchronize");
    check(seen, 1, (float)th_size(), "what the stream read behind its wait");
    TH_IS(dtr_work_synchronize(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    cudaEventDestroy(open);
    cudaStreamDestroy(held);
    cudaStreamDestroy(other);
    drop(b);
    drop(seen);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "nccl ends", 110);
    th_add(tc, H8_every_code, 2, 0);
    th_add(tc, H5_H7_after_the_first_error, 2, 0);
    th_add(tc, G1_G7_both_kinds, 2, 0);
    th_add(tc, K20_R3_given_back_at_once, 2, 0);
    th_add(tc, L4_limit_of_a_wait, 2, 0);
    th_add(tc, W8_both_send_first, 2, 0);
    th_add(tc, J15_deleters_run_here, 1, 0);
    th_add(tc, R7_nothing_pending, 1, 0);
    th_add(tc, NCM10_streams, 1, 0);
    th_add(tc, WRK7_BAR6_who_waits, 2, 0);
    th_add(tc, AD1_X29_many_threads, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "nccl ends", make);
}
