/* A network trained on dtr_world_device (tests:T42: T40 and T41 there), on one rank through nccl
 * and on two that share a GPU (ddp:GF6); what a step is without peers (CF4). */
#include <stdlib.h>
#include <string.h>

#include "ddp_models.h"
#include "device_tensors.h"
#include "fake_cuda.h"

typedef struct there {
    dtr_ddp *ddp;
    dtr_tensor *value[NET_PARAMS], *pinned;
    float *grad[NET_PARAMS]; /* of this rank, on the host */
    cudaStream_t stream;
} there;

/* Through pinned memory, done on return. */
static void to_device(const there *t, dtr_tensor *to, const float *from) {
    const size_t n = dtr_tensor_numel(to);
    memcpy(dtr_tensor_data(t->pinned), from, n * sizeof *from);
    TH_CHECK(cudaMemcpyAsync(dtr_tensor_data(to), dtr_tensor_data(t->pinned), n * sizeof *from,
                             cudaMemcpyHostToDevice, t->stream) == cudaSuccess &&
                 cudaStreamSynchronize(t->stream) == cudaSuccess,
             "copy to the device");
}

static void to_host(const there *t, float *to, const dtr_tensor *from) {
    const size_t n = dtr_tensor_numel(from);
    TH_CHECK(cudaMemcpyAsync(dtr_tensor_data(t->pinned), dtr_tensor_data(from), n * sizeof *to,
                             cudaMemcpyDeviceToHost, t->stream) == cudaSuccess &&
                 cudaStreamSynchronize(t->stream) == cudaSuccess,
             "copy to the host");
    memcpy(to, dtr_tensor_data(t->pinned), n * sizeof *to);
}

static void open_there(there *t, const net *n, bool view) {
    dtr_param params[NET_PARAMS];
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    const dtr_device device = dtr_world_device(th_world());
    *t = (there){ .pinned = on_host(DTR_F32, 500, DTR_MEM_PINNED) };
    TH_CHECK(device.type == DTR_CUDA, "the world's device is no GPU");
    TH_CHECK(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    for (int l = 0; l < NET_PARAMS; l++) {
        TH_IS(dtr_tensor_empty(th_world(), DTR_F32, device, DTR_MEM_DEFAULT, 2,
                               dtr_tensor_shape(n->value[l]), &t->value[l]),
              DTR_OK);
        to_device(t, t->value[l], n->weight[l]);
        t->grad[l] = calloc(net_numel(l), sizeof(float));
        params[l] = (dtr_param){ n->params[l].name, t->value[l], NULL, 0 };
    }
    o.bucket_cap_bytes = 1048;
    o.grad_as_bucket_view = view;
    TH_OK(dtr_ddp_create(th_group(), params, NET_PARAMS, &o, &t->ddp));
}

static void close_there(there *t) {
    TH_IS(dtr_ddp_destroy(t->ddp), DTR_OK);
    for (int l = 0; l < NET_PARAMS; l++) {
        dtr_tensor_release(t->value[l]);
        free(t->grad[l]);
    }
    dtr_tensor_release(t->pinned);
    cudaStreamDestroy(t->stream);
}

static void report(void *arg, int layer) {
    there *t = arg;
    to_device(t, dtr_ddp_grad(t->ddp, (size_t)layer), t->grad[layer]);
    TH_IS(dtr_ddp_grad_ready(t->ddp, (size_t)layer, t->stream), DTR_OK);
}

/* Forward and backward on the host, with the values of the device; averages and step there. */
static void step_there(there *t, net *n, const float *x, const float *y) {
    for (int l = 0; l < NET_PARAMS; l++) {
        to_host(t, n->weight[l], t->value[l]);
        memset(t->grad[l], 0, net_numel(l) * sizeof(float));
    }
    TH_IS(dtr_ddp_grad_clear(t->ddp, SIZE_MAX), DTR_OK);
    TH_IS(dtr_ddp_forward_begin(t->ddp), DTR_OK);
    TH_IS(dtr_ddp_forward_end(t->ddp, NULL, 0), DTR_OK);
    net_backward(n, x + NET_IN * th_rank(), y + NET_OUT * th_rank(), 1, t->grad, report, t);
    TH_IS(dtr_ddp_backward_end(t->ddp, t->stream), DTR_OK);
    for (int l = 0; l < NET_PARAMS; l++) {
        TH_IS(dtr_tensor_axpy(t->value[l], -1, dtr_ddp_grad(t->ddp, (size_t)l), t->stream), DTR_OK);
    }
}

static void same_values(const there *t, net *n, const net *plain) {
    for (int l = 0; l < NET_PARAMS; l++) {
        to_host(t, n->weight[l], t->value[l]);
        for (size_t k = 0; k < net_numel(l); k++) {
            TH_CHECK(net_near(n->weight[l][k], plain->weight[l][k]), "fc%d[%zu] is %g, want %g",
                     l + 1, k, (double)n->weight[l][k], (double)plain->weight[l][k]);
        }
    }
}

/* hook: one rank alone reduces as well, by NCCL, which its backend names; else nothing travels. */
static void train(bool view, bool hook) {
    const int W = th_size();
    float x[2 * NET_IN], y[2 * NET_OUT];
    net plain = net_new(5), n = net_new(th_rank() == 0 ? 5 : 77);
    there t;
    th_log_clear();
    dtr_fake_cuda_log_start();
    open_there(&t, &n, view);
    if (hook) {
        TH_OK(dtr_ddp_register_builtin_hook(t.ddp, DTR_HOOK_ALLREDUCE, NULL));
    }
    for (int i = 0; i < 3; i++) {
        net_batch(W, i, x, y);
        net_plain_step(&plain, W, x, y);
        step_there(&t, &n, x, y);
        same_values(&t, &n, &plain);
        TH_AGREE();
    }
    dtr_ddp_stats st = DTR_DDP_STATS_INIT;
    TH_IS(dtr_ddp_get_stats(t.ddp, &st), DTR_OK);
    TH_CHECK(st.last.bytes == 2880 && st.last.buckets == 2, "%zu bytes in %zu buckets",
             st.last.bytes, st.last.buckets);
    const int warnings = th_log_count("travel through host memory"); /* GF6, nccl:GP5 */
    TH_CHECK(warnings == (W > 1 && th_rank() == 0), "%d warnings", warnings);
    const int native = dtr_fake_cuda_log_count("ncclAllReduce rank");
    TH_CHECK((native > 0) == hook, "%d native calls: %s", native, dtr_fake_cuda_log_text());
    close_there(&t);
    net_free(&plain);
    net_free(&n);
    TH_AGREE();
}

START_TEST(T42_one_gpu) {
    train(false, false);
}
END_TEST

START_TEST(T42_one_gpu_view) {
    train(true, false);
}
END_TEST

START_TEST(T42_one_rank_on_nccl) {
    train(false, true);
    train(true, true);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "one gpu", 110);
    th_add(tc, T42_one_gpu, 1, 2);
    th_add(tc, T42_one_gpu_view, 1, 2);
    th_add(tc, T42_one_rank_on_nccl, 1, 1);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp one gpu", make);
}
