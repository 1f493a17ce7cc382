/* dtr_zero on the device with DTR_ZERO_OVERLAP: parameters are gathered beside the next forward
 * pass, and neither the step nor a wait for a parameter keeps the host. */
#include <dtr/zero.h>

#include "ddp_pair.h"
#include "fake_cuda.h"

enum { STEPS = 5, HELD = 2 };     /* the first steps ask for memory */
enum { FIRST_HERE = PARAMS - 1 }; /* the parameter in the bucket that is gathered first */

typedef struct module {
    dtr_ddp *ddp;
    dtr_zero *zero;
    dtr_tensor *value[PARAMS];
    cudaStream_t stream;
    cudaEvent_t open;
    double new_value;
    float *pinned;
    int at, buckets; /* the bucket whose update is next, and how many there are */
    bool hold;       /* the stream stops in the last bucket's update */
} module;

static dtr_status fill_slice(void *state, size_t first, dtr_buffer param, dtr_buffer grad) {
    module *m = state;
    const int64_t n = (int64_t)param.count;
    dtr_tensor *slice = NULL;
    (void)first, (void)grad;
    if (++m->at == m->buckets && m->hold) {
        TH_CHECK(cudaEventRecord(m->open, m->stream) == cudaSuccess, "record");
    }
    dtr_status s = dtr_tensor_from_buffer(param, 1, &n, NULL, NULL, NULL, &slice);
    s = s == DTR_OK ? dtr_tensor_fill(slice, m->new_value, m->stream) : s;
    dtr_tensor_release(slice);
    return s;
}

static void open_module(module *m) {
    dtr_param params[PARAMS];
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_zero_options zo = DTR_ZERO_OPTIONS_INIT;
    *m = (module){ .at = 0 };
    TH_CHECK(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    TH_CHECK(cudaEventCreateWithFlags(&m->open, cudaEventDisableTiming) == cudaSuccess, "event");
    TH_CHECK(cudaHostAlloc((void **)&m->pinned, sizeof *m->pinned, 0) == cudaSuccess, "pinned");
    for (int i = 0; i < PARAMS; i++) {
        m->value[i] = on_gpu(DTR_F32, pair_numel[i], 0, m->stream);
        params[i] = (dtr_param){ pair_names[i], m->value[i], NULL, 0 };
    }
    o.bucket_cap_bytes = o.first_bucket_bytes = 9000;
    zo.flags = DTR_ZERO_OVERLAP;
    TH_IS(dtr_ddp_create(th_group(), params, PARAMS, &o, &m->ddp), DTR_OK);
    TH_IS(dtr_zero_create(m->ddp, &zo, &m->zero), DTR_OK);
}

static void close_module(module *m) {
    TH_IS(dtr_zero_destroy(m->zero), DTR_OK);
    TH_IS(dtr_ddp_destroy(m->ddp), DTR_OK);
    for (int i = 0; i < PARAMS; i++) {
        dtr_tensor_release(m->value[i]);
    }
    cudaFreeHost(m->pinned);
    cudaEventDestroy(m->open);
    cudaStreamDestroy(m->stream);
    TH_AGREE();
}

static void backward(module *m) {
    for (size_t i = PARAMS; i-- > 0;) {
        TH_IS(dtr_tensor_fill(dtr_ddp_grad(m->ddp, i), 1, m->stream), DTR_OK);
        TH_IS(dtr_ddp_grad_ready(m->ddp, i, m->stream), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(m->ddp, m->stream), DTR_OK);
}

/* What the stream has of a parameter, read in it; false: the stream does not come so far. */
static bool value_here(module *m, int param) {
    bool here = false;
    TH_CHECK(cudaMemcpyAsync(m->pinned, dtr_tensor_data(m->value[param]), sizeof *m->pinned,
                             cudaMemcpyDeviceToHost, m->stream) == cudaSuccess,
             "copy");
    th_start since = th_begin();
    while (!(here = cudaStreamQuery(m->stream) == cudaSuccess) && th_in_time(since, 5)) {
        th_sleep(0.001);
    }
    (void)cudaGetLastError(); /* "not ready" */
    return here;
}

/* The last rank's stream stops before the last bucket, so nobody's gathering of it can end. The
 * others have a parameter of the first bucket meanwhile, and the host goes on everywhere. */
static void held_step(module *m) {
    const bool stops = th_rank() == th_size() - 1;
    m->hold = stops;
    dtr_fake_cuda_hold(m->open, 1);
    dtr_fake_cuda_log_start();
    TH_IS(dtr_zero_step(m->zero, fill_slice, m), DTR_OK);
    TH_IS(dtr_zero_wait(m->zero, FIRST_HERE), DTR_OK);
    TH_CHECK(dtr_fake_cuda_log_count("Synchronize") == 0, "%s", dtr_fake_cuda_log_text());
    if (!stops) {
        TH_CHECK(value_here(m, FIRST_HERE), "it waits for the last bucket too");
        TH_CHECK(*m->pinned == (float)m->new_value, "it is %g, not %g", (double)*m->pinned,
                 m->new_value);
    }
    dtr_fake_cuda_log_start();
    TH_IS(dtr_zero_wait(m->zero, SIZE_MAX), DTR_OK);
    TH_CHECK(dtr_fake_cuda_log_count("Synchronize") == 0, "%s", dtr_fake_cuda_log_text());
    TH_CHECK(cudaStreamQuery(m->stream) == cudaErrorNotReady, "the last bucket is here already");
    (void)cudaGetLastError();
    th_barrier();
    dtr_fake_cuda_hold(m->open, 0);
    m->hold = false;
}

START_TEST(SH6_gathered_beside_the_forward_pass) {
    module m;
    open_module(&m);
    for (int step = 0; step < STEPS; step++) {
        m.new_value = step + 1;
        m.at = 0;
        backward(&m);
        if (step < HELD) {
            TH_IS(dtr_zero_step(m.zero, fill_slice, &m), DTR_OK);
            m.buckets = m.at;
            TH_CHECK(m.buckets > 1, "one bucket");
        } else {
            held_step(&m);
        }
        TH_IS(dtr_zero_wait(m.zero, SIZE_MAX), DTR_OK);
        for (int i = 0; i < PARAMS; i++) {
            check_each(m.value[i], (float)m.new_value, "value", pair_names[i]);
        }
        TH_AGREE();
    }
    close_module(&m);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "zero", 110);
    th_add(tc, SH6_gathered_beside_the_forward_pass, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_zero_device", make);
}
