/* Graphs of CUDA on the stand-ins (label double): operations inside a capture, the graph run again
 * with other input, what is refused, and a library that leaves captures alone. */
#include <stdio.h>
#include <string.h>

#include <mpi.h>

#include <dtr/mpi.h>

#include "device_data.h"
#include "fake_cuda.h"
#include "harness.h"

enum { N = 3000 };

static cudaStream_t stream;
static int disturbed; /* before the test */

static dtr_group *group_of(const char *backend, int nan_check) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    o.backend = backend;
    o.nan_check = nan_check;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_OK);
    TH_AGREE();
    return g;
}

static void warm(dtr_group *g) {
    dtr_buffer b = filled(N, 1);
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_OK);
    check(b, 1, (float)th_size(), "sum");
    drop(b);
}

static void begin(void) {
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    disturbed = dtr_fake_cuda_disturbed();
    cudaError_t e = cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    TH_CHECK(e == cudaSuccess, "begin: %d", (int)e);
}

/* NULL: the capture was not valid. */
static cudaGraphExec_t end(void) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t e = cudaStreamEndCapture(stream, &graph);
    TH_CHECK(e == cudaSuccess, "end: %d", (int)e);
    TH_CHECK(dtr_fake_cuda_disturbed() == disturbed, "the library disturbed the capture: %s",
             dtr_fake_cuda_log_text());
    if (graph != NULL) {
        e = cudaGraphInstantiate(&exec, graph, 0);
        TH_CHECK(e == cudaSuccess, "instantiate: %d", (int)e);
        cudaGraphDestroy(graph);
    }
    return exec;
}

static void finish(cudaGraphExec_t exec) {
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    TH_CHECK(cudaGraphExecDestroy(exec) == cudaSuccess, "graph");
    cudaStreamDestroy(stream);
    TH_AGREE();
}

static void refill(dtr_buffer b, float value) {
    dtr_buffer other = filled(N, value);
    float h[N];
    get(h, other);
    put(b, h);
    drop(other);
}

static void never(dtr_work *w, dtr_status s, void *arg) {
    (void)w;
    (void)s;
    (void)arg;
    TH_CHECK(false, "a captured operation called back");
}

/* AB2, AB4, AB8, K19: two operations of a graph take their numbers once and run whenever it is
 * launched, with what the buffers hold then; nothing watches them. */
START_TEST(AB2_replay_with_changed_input) {
    dtr_group *g = group_of("cpu:auto,cuda:nccl", 0);
    dtr_buffer in = filled(N, 1), out = device_f32(N), top = device_f32(N);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_work *w = NULL;
    bool done = false;
    warm(g);
    uint64_t seq = dtr_group_seq(g);
    dtr_fake_cuda_log_start();
    begin();
    o.stream = stream;
    o.timeout_s = 0.01; /* of no account: a graph has no limit */
    TH_IS(dtr_allreduce(g, in, out, DTR_SUM, &o, &w), DTR_OK);
    TH_IS(dtr_work_test(w, &done), DTR_ERR_STATE);
    TH_MESSAGE("captured graph");
    TH_IS(dtr_work_synchronize(w, -1), DTR_ERR_STATE);
    TH_IS(dtr_work_on_complete(w, never, NULL), DTR_ERR_STATE);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(dtr_work_seq(w) == seq + 1, "number %d", (int)dtr_work_seq(w));
    TH_IS(dtr_allreduce(g, out, top, DTR_MAX, &o, NULL), DTR_OK); /* does not block the host */
    cudaGraphExec_t exec = end();
    const char *log = dtr_fake_cuda_log_text();
    const char *asked = strstr(log, "cudaStreamIsCapturing"),
               *first = strstr(log, "cudaEventRecord");
    TH_CHECK(asked != NULL && first != NULL && asked < first, "not asked first: %s", log);
    TH_IS(dtr_work_wait(w, -1), DTR_ERR_STATE); /* the capture is over */
    TH_MESSAGE("of the same capture");
    TH_IS(dtr_work_release(w), DTR_OK);
    for (int i = 1; i < 4; i++) {
        refill(in, (float)i);
        TH_CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess, "launch");
        TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
        check(out, (float)i, (float)th_size(), "sum of a graph");
        check(top, (float)i, (float)th_size(), "maximum of a graph");
    }
    TH_CHECK(dtr_group_seq(g) == seq + 2, "launches of the graph moved the sequence");
    warm(g); /* and operations outside go on, after the graph */
    finish(exec);
    drop(in);
    drop(out);
    drop(top);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* The first event that the log has after `from` being recorded. */
static void recorded_event(const char *from, char *text, size_t cap) {
    const char *at = strstr(from, "cudaEventRecord event=");
    snprintf(text, cap, "%.*s", at != NULL ? (int)strcspn(at, "\n") : 0, at != NULL ? at : "");
    *(strstr(text, " stream=") != NULL ? strstr(text, " stream=") : text) = '\0';
}

/* AB7: an event of a graph is never recorded again, whatever becomes of the handle. */
START_TEST(AB7_events_of_a_graph_are_kept) {
    dtr_group *g = group_of("cpu:auto,cuda:nccl", 0);
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    char event[128];
    warm(g);
    dtr_fake_cuda_log_start();
    begin();
    o.stream = stream;
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, NULL), DTR_OK);
    recorded_event(dtr_fake_cuda_log_text(), event, sizeof event);
    cudaGraphExec_t exec = end();
    dtr_fake_cuda_log_start();
    for (int i = 0; i < 5; i++) {
        warm(g);
    }
    TH_CHECK(event[0] != '\0' && dtr_fake_cuda_log_count(event) == 0, "\"%s\" came again", event);
    finish(exec);
    drop(b);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* AB5: another group is busy all the while, and the thread that looks after its operations asks for
 * events; a capture in global mode stays valid. */
START_TEST(AB5_a_busy_library) {
    dtr_group *g = group_of("cpu:auto,cuda:nccl", 0), *other = group_of("cpu:auto,cuda:nccl", 0);
    dtr_buffer b = filled(N, 1), busy = filled(N, 2);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    cudaStream_t held;
    cudaEvent_t open;
    dtr_work *w = NULL;
    warm(g);
    warm(other);
    TH_CHECK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, held);
    o.stream = held;
    TH_IS(dtr_allreduce(other, busy, busy, DTR_SUM, &o, &w), DTR_OK);
    begin();
    o.stream = stream;
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, NULL), DTR_OK);
    dtr_fake_cuda_log_start();
    for (bool done = false; !done && dtr_fake_cuda_log_count("cudaEventQuery") < 20;) {
        TH_IS(dtr_work_test(w, &done), DTR_OK);
        TH_CHECK(!done, "the operation cannot have ended");
    }
    dtr_buffer more = device_f32(1); /* memory may be asked for meanwhile */
    cudaGraphExec_t exec = end();
    dtr_fake_cuda_hold(open, 0);
    TH_IS(dtr_work_synchronize(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    check(busy, 2, (float)th_size(), "the busy group");
    TH_CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess, "launch");
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    check(b, 1, (float)th_size(), "the graph");
    cudaEventDestroy(open);
    cudaStreamDestroy(held);
    finish(exec);
    drop(b);
    drop(busy);
    drop(more);
    TH_OK(dtr_group_destroy(g));
    TH_OK(dtr_group_destroy(other));
}
END_TEST

/* AB6: what a graph cannot hold is refused, takes no number, and leaves the capture as it was. */
START_TEST(AB6_refusals_leave_the_capture) {
    dtr_group *cold = group_of("cpu:auto,cuda:nccl", 0), *g = group_of("cpu:auto,cuda:nccl", 0);
    dtr_group *stage = group_of("cpu:auto,cuda:stage", 0), *nan = group_of(NULL, 1);
    dtr_buffer b = filled(N, 1), whole = { b.data, N, DTR_I32, gpu };
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    warm(g);
    warm(stage);
    begin();
    o.stream = stream;
    TH_IS(dtr_allreduce(cold, b, b, DTR_SUM, &o, NULL), DTR_ERR_STATE);
    TH_MESSAGE("before the capture");
    TH_IS(dtr_allreduce(stage, b, b, DTR_SUM, &o, NULL), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("captures a graph");
    TH_IS(dtr_allreduce(nan, b, b, DTR_SUM, &o, NULL), DTR_ERR_UNSUPPORTED);
    TH_IS(dtr_allreduce(g, whole, whole, DTR_BXOR, &o, NULL), DTR_ERR_UNSUPPORTED);
    TH_CHECK(dtr_group_seq(cold) == 0 && dtr_group_seq(stage) == 1 && dtr_group_seq(g) == 1,
             "a refused call took a number");
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, NULL), DTR_OK);
    o.stream = NULL;
    dtr_status s = dtr_allreduce(g, b, b, DTR_SUM, &o, NULL);
    TH_IS(s, DTR_ERR_STATE);
    TH_MESSAGE("still being captured");
    TH_CHECK(dtr_group_seq(g) == 2, "%d operations", (int)dtr_group_seq(g));
    cudaGraphExec_t exec = end();
    warm(g);
    finish(exec);
    drop(b);
    TH_OK(dtr_group_destroy(cold));
    TH_OK(dtr_group_destroy(stage));
    TH_OK(dtr_group_destroy(nan));
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* A graph that is there keeps the group, because NCCL would wait for it without an end. */
START_TEST(AB9_a_graph_keeps_its_group) {
    dtr_group *g = group_of("cpu:auto,cuda:nccl", 0);
    dtr_buffer b = filled(N, 1);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    warm(g);
    begin();
    o.stream = stream;
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, NULL), DTR_OK);
    cudaGraphExec_t exec = end();
    TH_IS(dtr_group_destroy(g), DTR_ERR_STATE);
    TH_MESSAGE("graph");
    warm(g); /* it goes on */
    TH_CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess, "launch");
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    check(b, 1, (float)th_size(), "the graph");
    finish(exec);
    drop(b);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* A world that ends with a graph of one of its groups leaves the communicator to the graph's end.
 */
START_TEST(AB9_a_world_ends_before_a_graph) {
    dtr_world *w = NULL;
    dtr_group *g = NULL;
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_buffer b = filled(N, 1);
    go.backend = "cpu:auto,cuda:nccl";
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w), DTR_OK);
    TH_IS(dtr_group_create(w, NULL, th_size(), &go, &g), DTR_OK);
    TH_IS(dtr_allreduce(g, b, b, DTR_MAX, NULL, NULL), DTR_OK);
    TH_IS(dtr_group_drain(g, -1), DTR_OK);
    dtr_fake_cuda_log_start();
    begin();
    o.stream = stream;
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, NULL), DTR_OK);
    cudaGraphExec_t exec = end();
    TH_AGREE();
    th_start since = th_begin();
    (void)dtr_world_destroy(w);
    TH_CHECK(th_in_time(since, 5), "it waited for the graph");
    TH_CHECK(dtr_fake_cuda_log_count("ncclCommAbort done") == 0, "%s", dtr_fake_cuda_log_text());
    cudaGraphExecDestroy(exec);
    since = th_begin();
    while (dtr_fake_cuda_log_count("ncclCommAbort done") == 0 && th_in_time(since, 5)) {
        th_sleep(0.001);
    }
    TH_CHECK(dtr_fake_cuda_log_count("ncclCommAbort done") == 1, "%s", dtr_fake_cuda_log_text());
    cudaStreamDestroy(stream);
    drop(b);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "capture", 110);
    th_add(tc, AB2_replay_with_changed_input, 1, 0);
    th_add(tc, AB7_events_of_a_graph_are_kept, 1, 0);
    th_add(tc, AB5_a_busy_library, 1, 0);
    th_add(tc, AB6_refusals_leave_the_capture, 1, 0);
    th_add(tc, AB9_a_graph_keeps_its_group, 1, 0);
    th_add(tc, AB9_a_world_ends_before_a_graph, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "capture", make);
}
