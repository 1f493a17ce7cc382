/* DDP on device memory, on the stand-ins: values, what it queues and when the host waits. The same
 * program runs over nccl and over stage (DTR_TEST_STAGE=1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/dtr.h>

#include "device_tensors.h"
#include "fake_cuda.h"
#include "harness.h"

enum { P = 7, STREAMS = 2, MOST_STEPS = 4 };
static const int64_t numel[P] = { 300, 1, 4100, 7, 64, 2049, 33 };
static const char *const names[P] = { "a", "b", "c", "d", "e", "f", "g" };

typedef struct model {
    dtr_ddp *ddp;
    dtr_dtype dtype;
    dtr_tensor *value[P], *sum[P]; /* sum of all averages, kept on the device */
    float expect[P];
    cudaStream_t stream[STREAMS];
    cudaEvent_t averaged;
    int step;
} model;

static void check_tensor(const dtr_tensor *t, float want, const char *what, size_t i) {
    check_each(t, want, what, names[i]);
}

static void model_open(model *m, dtr_ddp_options *o, dtr_dtype type, uint32_t last_flags) {
    dtr_param params[P] = { 0 };
    *m = (model){ .dtype = type };
    for (int k = 0; k < STREAMS; k++) {
        TH_CHECK(cudaStreamCreateWithFlags(&m->stream[k], cudaStreamNonBlocking) == cudaSuccess,
                 "stream");
    }
    TH_CHECK(cudaEventCreateWithFlags(&m->averaged, cudaEventDisableTiming) == cudaSuccess,
             "event");
    for (int i = 0; i < P; i++) {
        m->value[i] = on_gpu(type, numel[i], th_rank() + i, m->stream[0]);
        m->sum[i] = on_gpu(DTR_F32, numel[i], 0, m->stream[0]);
        params[i] = (dtr_param){ names[i], m->value[i], NULL, i == P - 1 ? last_flags : 0 };
    }
    o->bucket_cap_bytes = o->first_bucket_bytes = 8000;
    TH_IS(dtr_ddp_create(th_group(), params, P, o, &m->ddp), DTR_OK);
}

static void model_close(model *m) {
    TH_IS(dtr_ddp_destroy(m->ddp), DTR_OK);
    for (int i = 0; i < P; i++) {
        dtr_tensor_release(m->value[i]);
        dtr_tensor_release(m->sum[i]);
    }
    for (int k = 0; k < STREAMS; k++) {
        cudaStreamDestroy(m->stream[k]);
    }
    cudaEventDestroy(m->averaged);
}

/* Whole numbers whose average is exact for 1, 2 and 4 ranks, in bf16 too. */
static float gradient(int rank, int step, int i) {
    return (float)((rank + 1) * (1 + step % MOST_STEPS) + i);
}

static float average(int step, int i) {
    float sum = 0;
    for (int r = 0; r < th_size(); r++) {
        sum += gradient(r, step, i);
    }
    return sum / (float)th_size();
}

/* Backward of this rank: gradients written on both streams. */
static void backward(model *m) {
    for (int i = P; i-- > 0;) {
        cudaStream_t s = m->stream[i % STREAMS];
        TH_IS(dtr_tensor_fill(dtr_ddp_grad(m->ddp, (size_t)i), gradient(th_rank(), m->step, i), s),
              DTR_OK);
        TH_IS(dtr_ddp_grad_ready(m->ddp, (size_t)i, s), DTR_OK);
    }
}

/* The averages are used on the first stream, and the second one goes on behind that. */
static void use(model *m) {
    for (int i = 0; i < P && m->dtype == DTR_F32; i++) {
        TH_IS(dtr_tensor_axpy(m->sum[i], 1, dtr_ddp_grad(m->ddp, (size_t)i), m->stream[0]), DTR_OK);
        m->expect[i] += average(m->step, i);
    }
    TH_CHECK(cudaEventRecord(m->averaged, m->stream[0]) == cudaSuccess, "record");
    TH_CHECK(cudaStreamWaitEvent(m->stream[1], m->averaged, 0) == cudaSuccess, "wait");
    m->step++;
}

static void check_sums(const model *m) {
    for (int i = 0; i < P; i++) {
        check_tensor(m->sum[i], m->expect[i], "sum of averages", (size_t)i);
    }
}

/* GF1, GF2, GF3, M6, H3, K9: two streams; a kernel per bucket and direction, none with views; the
 * host queues and never waits. */
static void one_kernel_per_bucket(bool view) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_ddp_stats st = DTR_DDP_STATS_INIT;
    model m;
    o.grad_as_bucket_view = view;
    model_open(&m, &o, DTR_F32, 0);
    for (int i = 0; i < P; i++) {
        check_tensor(m.value[i], (float)i, "start of rank 0", (size_t)i);
    }
    for (int k = 0; k < 6; k++) {
        dtr_fake_cuda_log_start();
        backward(&m);
        TH_IS(dtr_ddp_backward_end(m.ddp, m.stream[0]), DTR_OK);
        TH_IS(dtr_ddp_get_stats(m.ddp, &st), DTR_OK);
        int moves = dtr_fake_cuda_log_count("cudaLaunchKernel dtr_kernel_few_bytes");
        int waits = dtr_fake_cuda_log_count("Synchronize");
        TH_CHECK(st.buckets > 1, "%zu buckets", st.buckets);
        if (k > 0) { /* the rebuild at the end of the first one waits */
            int want = view || th_size() == 1 ? 0 : 2 * (int)st.buckets;
            TH_CHECK(moves == want, "%d kernels for %zu buckets, not %d: %s", moves, st.buckets,
                     want, dtr_fake_cuda_log_text());
            TH_CHECK(waits == 0, "the host waited: %s", dtr_fake_cuda_log_text());
            TH_CHECK(dtr_fake_cuda_log_count("cudaMalloc") == 0, "%s", dtr_fake_cuda_log_text());
        }
        use(&m);
    }
    check_sums(&m);
    TH_CHECK(strstr(st.description, "device: cuda:0") != NULL, "%s", st.description);
    model_close(&m);
    TH_AGREE();
}

START_TEST(GF1_one_kernel_per_bucket) {
    one_kernel_per_bucket(false);
}
END_TEST

START_TEST(H3_views_need_none) {
    one_kernel_per_bucket(true);
}
END_TEST

/* GF1: CUDA is told of a stream once for each bucket, however many gradients it wrote there. */
START_TEST(GF1_one_event_per_bucket) {
    enum { STEPS = 13 }; /* the first ten are timed, by more events */
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_ddp_stats st = DTR_DDP_STATS_INIT;
    model m;
    char text[64];
    model_open(&m, &o, DTR_F32, 0);
    snprintf(text, sizeof text, "stream=%p", (void *)m.stream[1]);
    for (int k = 0; k < STEPS; k++) {
        dtr_fake_cuda_log_start();
        for (int i = P; i-- > 0;) {
            TH_IS(dtr_tensor_fill(dtr_ddp_grad(m.ddp, (size_t)i), gradient(th_rank(), m.step, i),
                                  m.stream[1]),
                  DTR_OK);
            TH_IS(dtr_ddp_grad_ready(m.ddp, (size_t)i, m.stream[1]), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(m.ddp, m.stream[0]), DTR_OK);
        int records = 0;
        for (const char *at = dtr_fake_cuda_log_text();
             (at = strstr(at, "cudaEventRecord")) != NULL; at++) {
            const char *end = strchr(at, '\n'), *found = strstr(at, text);
            records += found != NULL && (end == NULL || found < end);
        }
        TH_IS(dtr_ddp_get_stats(m.ddp, &st), DTR_OK);
        TH_CHECK(st.buckets > 1 && st.buckets < P, "%zu buckets", st.buckets);
        TH_CHECK(k < STEPS - 1 || records == (int)st.buckets, "%d events for %zu buckets: %s",
                 records, st.buckets, dtr_fake_cuda_log_text());
        use(&m);
    }
    check_sums(&m);
    model_close(&m);
    TH_AGREE();
}
END_TEST

/* GF4: bucket memory and gradients are used again only behind what reads them. */
START_TEST(GF4_many_iterations_without_a_wait) {
    int steps = TH_SANITIZED ? 40 : th_size() != 2 || staged() ? 80 : 1000;
    for (int view = 0; view < 2; view++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        model m;
        o.grad_as_bucket_view = view;
        model_open(&m, &o, DTR_F32, 0);
        for (int k = 0; k < (view ? steps / 10 : steps); k++) {
            backward(&m);
            TH_IS(dtr_ddp_backward_end(m.ddp, m.stream[0]), DTR_OK);
            use(&m);
        }
        check_sums(&m);
        model_close(&m);
        TH_AGREE();
    }
}
END_TEST

/* GF3, of Y6 the device: backward_end returns although nothing of the backward pass has run yet,
 * and what is queued later on its stream reads averages. */
START_TEST(GF3_the_host_goes_on) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    cudaEvent_t open;
    cudaStream_t slow;
    model m;
    if (staged()) {
        return; /* the host moves the data and waits for it */
    }
    model_open(&m, &o, DTR_F32, 0);
    backward(&m);
    TH_IS(dtr_ddp_backward_end(m.ddp, m.stream[0]), DTR_OK); /* with the rebuild */
    use(&m);
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    TH_CHECK(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking) == cudaSuccess, "stream");
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, slow);
    for (int k = 0; k < STREAMS; k++) {
        cudaStreamWaitEvent(m.stream[k], open, 0);
    }
    for (int k = 0; k < 3; k++) {
        backward(&m);
        TH_IS(dtr_ddp_backward_end(m.ddp, m.stream[0]), DTR_OK);
        use(&m);
    }
    TH_CHECK(cudaStreamQuery(m.stream[0]) == cudaErrorNotReady, "it has run");
    dtr_fake_cuda_hold(open, 0);
    check_sums(&m);
    model_close(&m);
    cudaEventDestroy(open);
    cudaStreamDestroy(slow);
    TH_AGREE();
}
END_TEST

/* X1, H1b, I13: buckets in another type, gathered and given back with the cast; no buckets at all.
 */
START_TEST(X1_reduce_dtype) {
    for (int mode = 0; mode < 3; mode++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        model m;
        o.has_reduce_dtype = mode == 0;
        o.reduce_dtype = DTR_F32;
        o.flags = mode == 2 ? DTR_DDP_PER_PARAM : 0;
        model_open(&m, &o, DTR_BF16, 0);
        for (int k = 0; k < 3; k++) {
            dtr_fake_cuda_log_start();
            backward(&m);
            TH_IS(dtr_ddp_backward_end(m.ddp, m.stream[0]), DTR_OK);
            int down = dtr_fake_cuda_log_count("few_bf16_from_f32");
            TH_CHECK((down > 0) == (mode == 0 && th_size() > 1), "%d casts", down);
            for (size_t i = 0; i < P; i++) {
                check_tensor(dtr_ddp_grad(m.ddp, i), average(m.step, (int)i), "average", i);
            }
            use(&m);
        }
        model_close(&m);
        TH_AGREE();
    }
}
END_TEST

/* U3, U5: used on some ranks, on all, nowhere; with and without views. */
START_TEST(U5_unused) {
    for (int view = 0; view < 2; view++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        model m;
        o.find_unused = true;
        o.grad_as_bucket_view = view;
        model_open(&m, &o, DTR_F32, 0);
        for (int k = 0; k < 3; k++) {
            TH_IS(dtr_ddp_grad_clear(m.ddp, SIZE_MAX), DTR_OK);
            for (size_t i = 0; i < P; i++) {
                dtr_tensor *g = dtr_ddp_grad(m.ddp, i);
                TH_IS(dtr_tensor_fill(g, i == 1 ? 77 : 8, m.stream[0]), DTR_OK);
                if (i != 1 && (i != 2 || th_rank() == 0)) {
                    TH_IS(dtr_ddp_grad_ready(m.ddp, i, m.stream[0]), DTR_OK);
                }
            }
            TH_IS(dtr_ddp_backward_end(m.ddp, m.stream[0]), DTR_OK);
            for (size_t i = 0; i < P; i++) {
                float want = i == 1 ? 77 : i == 2 ? 8 / (float)th_size() : 8;
                check_tensor(dtr_ddp_grad(m.ddp, i), want, view ? "view" : "gradient", i);
                TH_CHECK(dtr_ddp_grad_defined(m.ddp, i) == (i != 1), "defined: %zu", i);
            }
            TH_AGREE();
        }
        model_close(&m);
    }
}
END_TEST

/* N3, ER10, S2: steps without sync add up; a missing gradient is named and the next step works. */
START_TEST(N3_local_steps_and_errors) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    model m;
    model_open(&m, &o, DTR_F32, 0);
    dtr_tensor *one = on_gpu(DTR_F32, numel[2], th_rank() + 1, m.stream[0]);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < P; i++) {
            TH_IS(dtr_tensor_fill(dtr_ddp_grad(m.ddp, i), 0, m.stream[0]), DTR_OK);
        }
        for (int k = 0; k < 3; k++) {
            TH_IS(dtr_ddp_set_sync(m.ddp, k == 2), DTR_OK);
            TH_IS(dtr_tensor_axpy(dtr_ddp_grad(m.ddp, 2), 1, one, m.stream[0]), DTR_OK);
            for (size_t i = 0; i < P; i++) {
                TH_IS(dtr_ddp_grad_ready(m.ddp, i, m.stream[0]), DTR_OK);
            }
            TH_IS(dtr_ddp_backward_end(m.ddp, m.stream[0]), DTR_OK);
        }
        check_tensor(dtr_ddp_grad(m.ddp, 2), 3 * (float)(th_size() + 1) / 2, "sum", 2);
        check_tensor(dtr_ddp_grad(m.ddp, 3), 0, "sum", 3);
        for (size_t i = 0; i < P; i++) {
            if (i != 5 || th_rank() != th_size() - 1) {
                TH_IS(dtr_ddp_grad_ready(m.ddp, i, m.stream[0]), DTR_OK);
            }
        }
        TH_IS(dtr_ddp_backward_end(m.ddp, m.stream[0]), DTR_ERR_STATE);
        TH_MESSAGE("parameter 'f' (5) was not ready");
        TH_AGREE();
    }
    dtr_tensor_release(one);
    model_close(&m);
    TH_AGREE();
}
END_TEST

/* P1, P2: buffers of several types follow rank 0, in one message, without a wait of the host. */
START_TEST(P2_buffers) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    model m;
    dtr_param buffers[3] = { { "x", NULL, NULL, 0 },
                             { "y", NULL, NULL, 0 },
                             { "z", NULL, NULL, 0 } };
    static const dtr_dtype types[] = { DTR_F32, DTR_BF16, DTR_F64 };
    cudaStream_t s;
    TH_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess, "stream");
    for (int k = 0; k < 3; k++) {
        buffers[k].value = on_gpu(types[k], 11, th_rank(), s);
    }
    o.buffers = buffers;
    o.n_buffers = 3;
    model_open(&m, &o, DTR_F32, 0);
    for (int k = 0; k < 3; k++) {
        for (int b = 0; b < 3; b++) {
            TH_IS(dtr_tensor_fill(buffers[b].value, th_rank() + 10 * k, m.stream[0]), DTR_OK);
        }
        if (k == 0) { /* no stream is known before the first backward_end */
            TH_CHECK(cudaStreamSynchronize(m.stream[0]) == cudaSuccess, "synchronize");
        }
        dtr_fake_cuda_log_start();
        TH_IS(dtr_ddp_forward_begin(m.ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(m.ddp, NULL, 0), DTR_OK);
        TH_CHECK(k == 0 || dtr_fake_cuda_log_count("Synchronize") == 0, "%s",
                 dtr_fake_cuda_log_text());
        int sent = dtr_fake_cuda_log_count("ncclBroadcast rank");
        TH_CHECK(staged() || sent < 0 || sent == (th_size() > 1), "%d broadcasts", sent);
        backward(&m);
        TH_IS(dtr_ddp_backward_end(m.ddp, m.stream[0]), DTR_OK);
        use(&m);
        for (size_t b = 0; b < 3; b++) {
            check_tensor(buffers[b].value, 10 * (float)k, "buffer", b);
        }
        TH_AGREE();
    }
    model_close(&m);
    for (int k = 0; k < 3; k++) {
        dtr_tensor_release(buffers[k].value);
    }
    cudaStreamDestroy(s);
    TH_AGREE();
}
END_TEST

/* ER16: a rank whose device fails ends the module on all of them, long before the deadline. */
START_TEST(ER16_failing_device) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    bool last = th_rank() == th_size() - 1;
    model m;
    model_open(&m, &o, DTR_F32, 0);
    th_barrier(); /* or the failure may end the creation where it is still under way */
    if (last) {
        setenv("DTR_FAKE_CUDA_ERR", "cudaStreamWaitEvent:1:719", 1);
        dtr_fake_cuda_reload();
    }
    for (size_t i = 0; i < P; i++) { /* the launch fails, which backward_end says */
        (void)dtr_ddp_grad_ready(m.ddp, i, m.stream[0]);
    }
    dtr_status s = dtr_ddp_backward_end(m.ddp, m.stream[0]);
    TH_CHECK(s < 0, "the step went well");
    if (last) {
        TH_IS(s, DTR_ERR_CUDA);
        TH_MESSAGE("719");
        unsetenv("DTR_FAKE_CUDA_ERR");
        dtr_fake_cuda_reload();
    }
    TH_CHECK(dtr_ddp_backward_end(m.ddp, m.stream[0]) == s, "the module goes on");
    model_close(&m);
    TH_AGREE();
}
END_TEST

/* What only loops over single elements could move is refused in words. */
START_TEST(GF0_refused) {
    static const int64_t shape[] = { 6, 5 };
    dtr_ddp *ddp = NULL;
    dtr_tensor *whole = NULL;
    dtr_param p = { "gaps", NULL, NULL, 0 };
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, gpu, DTR_MEM_DEFAULT, 2, shape, &whole), DTR_OK);
    TH_IS(dtr_tensor_fill(whole, 0, NULL), DTR_OK);
    TH_IS(dtr_tensor_narrow(whole, 1, 0, 3, &p.value), DTR_OK);
    TH_IS(dtr_ddp_create(th_group(), &p, 1, NULL, &ddp), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("'gaps' (0) is on a CUDA device and its elements have gaps");
    TH_AGREE();
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_param w = { "w", on_gpu(DTR_F32, 4, 0, NULL), NULL, 0 }, b = { "b", NULL, NULL, 0 };
    TH_IS(dtr_tensor_contiguous(p.value, &b.value), DTR_OK);
    o.buffers = &b;
    o.n_buffers = 1;
    TH_IS(dtr_ddp_create(th_group(), &w, 1, &o, &ddp), DTR_OK);
    TH_IS(dtr_ddp_set_buffer(ddp, 0, p.value), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("buffer 'b' (0) is on a CUDA device and the new one has other strides");
    TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
    TH_AGREE();
    dtr_tensor_release(w.value);
    dtr_tensor_release(b.value);
    dtr_tensor_release(p.value);
    dtr_tensor_release(whole);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "ddp gpu", 110);
    th_add(tc, GF1_one_kernel_per_bucket, 1, 0);
    th_add(tc, GF1_one_event_per_bucket, 1, 0);
    th_add(tc, H3_views_need_none, 1, 0);
    th_add(tc, GF4_many_iterations_without_a_wait, 1, 0);
    th_add(tc, GF3_the_host_goes_on, 1, 0);
    th_add(tc, X1_reduce_dtype, 1, 0);
    th_add(tc, U5_unused, 1, 0);
    th_add(tc, N3_local_steps_and_errors, 1, 0);
    th_add(tc, P2_buffers, 1, 0);
    th_add(tc, ER16_failing_device, 2, 0);
    th_add(tc, GF0_refused, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_gpu", make);
}
