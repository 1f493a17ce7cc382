/* The library itself on NCCL (label double): what a machine with a GPU has to show, and the
 * stand-ins do. Several ranks may share the GPU, by a host id each; nothing here knows of the
 * stand-ins. nccl: ST1, F1, AB2, AB4; reliability: FI3; ddp: LG1, SH1. */
#include <dtr/optim.h>
#include <string.h>

#include "ddp_pair.h"

enum { N = 3000, SEVERAL = 2, LIMIT_S = 5 };

static dtr_group *made(double timeout_s, const char *name) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    o.backend = "cpu:auto,cuda:nccl";
    o.timeout_s = timeout_s;
    o.name = name;
    if (timeout_s > 0) {
        return th_hasty_group(th_world(), &o);
    }
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_OK);
    TH_AGREE();
    return g;
}

static void good(dtr_group *g) {
    dtr_buffer b = filled(N, 1);
    TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, NULL), DTR_OK);
    check(b, 1, (float)dtr_group_size(g), "sum");
    drop(b);
}

static cudaStream_t new_stream(void) {
    cudaStream_t stream = NULL;
    TH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    return stream;
}

/* ---- operations ---- */

/* Behind each other on a stream of the program, while the host goes on; and a ring of messages. */
START_TEST(on_a_stream) {
    dtr_group *g = made(0, "on a stream");
    const int size = th_size(), left = (th_rank() + size - 1) % size,
              right = (th_rank() + 1) % size;
    dtr_buffer a = filled(N, 1), b = device_f32(N), from = filled(N, (float)(1 + th_rank()));
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    cudaStream_t stream = new_stream();
    dtr_work *w = NULL;
    o.stream = stream;
    for (int i = 0; i < 3; i++) {
        TH_IS(dtr_allreduce(g, i % 2 == 0 ? a : b, i % 2 == 0 ? b : a, DTR_MAX, &o, &w), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_OK);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    check(b, 1, 1, "maximum of maxima");
    if (size > 1) {
        const dtr_p2p ring[] = { { .is_send = true, .buf = from, .peer = right },
                                 { .buf = a, .peer = left } };
        TH_IS(dtr_batch_p2p(g, ring, 2, NULL, NULL), DTR_OK);
        check(a, (float)(1 + left), 1, "message of the left neighbour");
    }
    cudaStreamDestroy(stream);
    drop(a);
    drop(b);
    drop(from);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* A group of some of the ranks beside the one of all, each with a communicator of its own. */
START_TEST(split) {
    dtr_group *all = made(0, "parent"), *half = NULL;
    const int last = th_size() - 1;
    good(all);
    TH_IS(dtr_group_split(all, th_rank() == last ? 1 : 0, -th_rank(), NULL, &half), DTR_OK);
    TH_AGREE();
    good(half);
    good(all);
    TH_CHECK(dtr_group_rank(half) == (th_rank() == last ? 0 : last - 1 - th_rank()),
             "rank %d in the order of the keys", dtr_group_rank(half));
    TH_AGREE();
    TH_OK(dtr_group_destroy(half));
    TH_OK(dtr_group_destroy(all));
}
END_TEST

/* A graph runs with what the buffers hold when it is launched. */
START_TEST(captured) {
    dtr_group *g = made(0, "captured");
    dtr_buffer in = filled(N, 1), out = device_f32(N);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    cudaStream_t stream = new_stream();
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    good(g);
    TH_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess, "begin");
    o.stream = stream;
    TH_IS(dtr_allreduce(g, in, out, DTR_SUM, &o, NULL), DTR_OK);
    TH_CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "end");
    TH_CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "instantiate");
    cudaGraphDestroy(graph);
    TH_AGREE();
    for (int i = 1; i < 4; i++) {
        dtr_buffer other = filled(N, (float)i);
        TH_CHECK(cudaMemcpyAsync(in.data, other.data, N * sizeof(float), cudaMemcpyDeviceToDevice,
                                 stream) == cudaSuccess,
                 "copy");
        TH_CHECK(cudaGraphLaunch(exec, stream) == cudaSuccess, "launch");
        TH_CHECK(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
        check(out, (float)i, (float)th_size(), "sum of a graph");
        drop(other);
    }
    TH_CHECK(cudaGraphExecDestroy(exec) == cudaSuccess, "graph");
    cudaStreamDestroy(stream);
    TH_AGREE();
    good(g);
    drop(in);
    drop(out);
    TH_OK(dtr_group_destroy(g));
}
END_TEST

/* ---- failures ---- */

/* Ends a group in which something went wrong; one that is made after it works. */
static void end_broken(dtr_group *g, dtr_buffer b) {
    th_barrier();
    (void)dtr_group_destroy(g);
    TH_AGREE();
    g = made(0, "after it");
    good(g);
    drop(b);
    TH_AGREE();
    TH_OK(dtr_group_destroy(g));
}

/* The last rank does not come; the others are under way inside NCCL, until it gives up. */
START_TEST(aborted) {
    dtr_group *g = made(0, "aborted");
    dtr_buffer b = filled(N, 1);
    dtr_work *w = NULL;
    good(g);
    th_barrier();
    if (th_rank() == th_size() - 1) {
        th_sleep(0.2);
        TH_IS(dtr_group_abort(g, "it has seen enough"), DTR_OK);
    } else {
        TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, &w), DTR_OK);
        TH_IS(dtr_work_synchronize(w, -1), DTR_ERR_ABORTED);
        TH_MESSAGE("it has seen enough");
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    end_broken(g, b);
}
END_TEST

/* The last rank does not come: the others' limit names it. */
START_TEST(late) {
    dtr_group *g = made(LIMIT_S, "late");
    dtr_buffer b = filled(N, 1);
    dtr_work *w = NULL;
    char name[24];
    good(g);
    th_barrier();
    snprintf(name, sizeof name, "rank %d", th_size() - 1);
    if (th_rank() < th_size() - 1) {
        TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, &w), DTR_OK);
        TH_IS(dtr_work_synchronize(w, -1), DTR_ERR_TIMEOUT);
        TH_MESSAGE(name);
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    end_broken(g, b);
}
END_TEST

/* ---- averages ---- */

/* Bit for bit what the host's module gives, where averages are exact, and over a rebuild. */
START_TEST(averages) {
    static const dtr_dtype types[] = { DTR_F32, DTR_BF16 };
    for (int i = 0; i < 2; i++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        pair m;
        pair_open(&m, &o, types[i]);
        for (int k = 0; k < 4; k++) {
            step_both(&m, "average");
        }
        pair_close(&m);
        TH_AGREE();
    }
}
END_TEST

/* ---- optimizers ---- */

/* Parameters after steps, bit for bit those of the host. */
static void steps_of(const dtr_optim_options *rule, bool sharded) {
    const dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_zero *zero[2] = { NULL, NULL };
    dtr_optim *optim[2];
    pair m;
    pair_open(&m, &o, DTR_F32);
    for (int side = 0; side < 2; side++) {
        if (sharded) {
            TH_IS(dtr_zero_create(m.ddp[side], NULL, &zero[side]), DTR_OK);
        }
        TH_IS(dtr_optim_create(m.ddp[side], zero[side], rule, &optim[side]), DTR_OK);
    }
    for (m.step = 0; m.step < 4; m.step++) {
        for (int side = 0; side < 2; side++) {
            TH_IS(backward_of(&m, side), DTR_OK);
            TH_IS(dtr_optim_step(optim[side]), DTR_OK);
        }
        for (int i = 0; i < PARAMS; i++) {
            same_bytes(m.value[HOST][i], m.value[DEVICE][i], pair_names[i]);
        }
    }
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_optim_destroy(optim[side]), DTR_OK);
        TH_IS(dtr_zero_destroy(zero[side]), DTR_OK);
    }
    pair_close(&m);
    TH_AGREE();
}

START_TEST(optimizers) {
    for (int i = 0; i < 6; i++) {
        dtr_optim_options rule = DTR_OPTIM_OPTIONS_INIT;
        rule.rule = i % 3 == 0 ? DTR_OPTIM_SGD : i % 3 == 1 ? DTR_OPTIM_ADAM : DTR_OPTIM_ADAMW;
        rule.rate = 0.013;
        rule.momentum = i == 3 ? 0.9 : 0;
        rule.weight_decay = 0.1;
        rule.max_norm = i > 2 ? 10 : 0;
        steps_of(&rule, false);
        steps_of(&rule, true);
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "library", 120);
    th_add(tc, on_a_stream, 1, 0);
    th_add(tc, split, SEVERAL, 0);
    th_add(tc, captured, 1, 0);
    th_add(tc, aborted, SEVERAL, 0);
    th_add(tc, late, SEVERAL, 0);
    th_add(tc, averages, 1, 2);
    th_add(tc, optimizers, 1, 2);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "gpu library", make);
}
