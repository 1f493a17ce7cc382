/* Buffer hooks of a module on the device, beside the same on the host. What a hook queues is on a
 * stream of its own, so that only the wait of dtr_ddp_backward_end orders it. The same program runs
 * over nccl and over stage (DTR_TEST_STAGE=1). */
#include "ddp_pair.h"
#include "fake_cuda.h"

enum { BUFFER = 1500 };

typedef struct hook {
    cudaStream_t program, own; /* NULL on the host */
    cudaEvent_t written;
    int calls;
    bool fails, idle; /* nothing but an error; nothing at all */
} hook;

static dtr_status average(void *state, dtr_tensor *const *buffers, size_t n, dtr_work **work) {
    hook *h = state;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    h->calls++;
    if (h->fails || h->idle || n != 1) {
        return h->fails || n != 1 ? DTR_ERR_IO : DTR_OK;
    }
    if (h->own != NULL && (cudaEventRecord(h->written, h->program) != cudaSuccess ||
                           cudaStreamWaitEvent(h->own, h->written, 0) != cudaSuccess)) {
        return DTR_ERR_CUDA;
    }
    o.stream = h->own;
    dtr_status s = dtr_tensor_scale(buffers[0], 2, h->own); /* behind the work of a call before */
    return s < 0 ? s : dtr_tensor_allreduce(th_group(), buffers[0], DTR_AVG, &o, work);
}

typedef struct fixture {
    pair m;
    dtr_tensor *buffer[2], *sum[2]; /* all that a buffer was after each step */
    hook hook[2];
} fixture;

static void open_fixture(fixture *f, dtr_ddp_when when) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    *f = (fixture){ .hook = { { 0 } } };
    hook *h = &f->hook[DEVICE];
    for (int side = 0; side < 2; side++) {
        for (int k = 0; k < 2; k++) {
            dtr_tensor **t = k == 0 ? &f->buffer[side] : &f->sum[side];
            *t = side == HOST ? on_host(DTR_F32, BUFFER, DTR_MEM_DEFAULT)
                              : on_gpu(DTR_F32, BUFFER, 0, NULL);
            if (side == HOST) {
                TH_IS(dtr_tensor_fill(*t, 0, NULL), DTR_OK);
            }
        }
    }
    pair_open_with(&f->m, &o, DTR_F32, f->buffer);
    TH_CHECK(cudaStreamCreateWithFlags(&h->own, cudaStreamNonBlocking) == cudaSuccess &&
                 cudaEventCreateWithFlags(&h->written, cudaEventDisableTiming) == cudaSuccess,
             "stream and event");
    h->program = f->m.stream;
    for (int side = 0; side < 2; side++) {
        TH_IS(dtr_ddp_register_buffer_hook(f->m.ddp[side], average, &f->hook[side], when), DTR_OK);
        TH_IS(dtr_ddp_register_buffer_hook(f->m.ddp[side], average, &f->hook[side], when),
              DTR_ERR_STATE);
    }
}

static void close_fixture(fixture *f) {
    pair_close(&f->m);
    for (int side = 0; side < 2; side++) {
        dtr_tensor_release(f->buffer[side]);
        dtr_tensor_release(f->sum[side]);
    }
    cudaStreamDestroy(f->hook[DEVICE].own);
    cudaEventDestroy(f->hook[DEVICE].written);
    TH_AGREE();
}

static void forward(const fixture *f, int side) {
    TH_IS(dtr_ddp_forward_begin(f->m.ddp[side]), DTR_OK);
    TH_IS(dtr_ddp_forward_end(f->m.ddp[side], NULL, 0), DTR_OK);
}

static dtr_status backward(const fixture *f, int side) {
    void *stream = stream_of(&f->m, side);
    for (size_t i = PARAMS; i-- > 0;) {
        TH_IS(dtr_ddp_grad_ready(f->m.ddp[side], i, stream), DTR_OK);
    }
    return dtr_ddp_backward_end(f->m.ddp[side], stream);
}

/* A new value of the buffer, other on each rank; the average is whole on any number of ranks. */
static void fill(const fixture *f, int side, int value) {
    TH_IS(dtr_tensor_fill(f->buffer[side], (value + th_rank()) * th_size(), stream_of(&f->m, side)),
          DTR_OK);
}

static void use(const fixture *f, int side) {
    TH_IS(dtr_tensor_axpy(f->sum[side], 1, f->buffer[side], stream_of(&f->m, side)), DTR_OK);
}

/* P4, P5, GF3: what a hook's work makes of a buffer is there behind the stream of backward_end, for
 * which the host does not wait. */
START_TEST(P5_final_behind_backward_end) {
    static const dtr_ddp_when when[] = { DTR_PRE_FORWARD, DTR_POST_FORWARD };
    enum { STEPS = 8 };
    for (int k = 0; k < 2; k++) {
        fixture f;
        open_fixture(&f, when[k]);
        for (int step = 0; step < STEPS; step++) {
            for (int side = 0; side < 2; side++) {
                dtr_fake_cuda_log_start();
                fill(&f, side, 3 * step);
                forward(&f, side);
                TH_IS(backward(&f, side), DTR_OK);
                use(&f, side);
            }
            TH_CHECK(step == 0 || staged() || dtr_fake_cuda_log_count("Synchronize") == 0,
                     "step %d: %s", step, dtr_fake_cuda_log_text());
        }
        same_bytes(f.sum[HOST], f.sum[DEVICE], "sum of buffers");
        same_bytes(f.buffer[HOST], f.buffer[DEVICE], "buffer");
        TH_CHECK(f.hook[HOST].calls == STEPS && f.hook[DEVICE].calls == STEPS, "%d calls",
                 f.hook[DEVICE].calls);
        close_fixture(&f);
    }
}
END_TEST

/* P5, N4: a forward pass is dropped, twice, and the backward pass is without sync. */
START_TEST(P5_dropped_and_local) {
    fixture f;
    open_fixture(&f, DTR_PRE_FORWARD);
    for (int step = 0; step < 4; step++) {
        for (int side = 0; side < 2; side++) {
            TH_IS(dtr_ddp_set_sync(f.m.ddp[side], true), DTR_OK);
            fill(&f, side, step);
            forward(&f, side);
            forward(&f, side);
            TH_IS(dtr_ddp_set_sync(f.m.ddp[side], false), DTR_OK);
            forward(&f, side); /* no hook */
            TH_IS(backward(&f, side), DTR_OK);
            use(&f, side);
        }
    }
    same_bytes(f.sum[HOST], f.sum[DEVICE], "sum of buffers");
    TH_CHECK(f.hook[DEVICE].calls == 8, "%d calls", f.hook[DEVICE].calls);
    close_fixture(&f);
}
END_TEST

/* Q4 for buffers: an error on one rank is that of all at the end; the next step is right. */
START_TEST(P4_failing_hook) {
    fixture f;
    open_fixture(&f, DTR_PRE_FORWARD);
    for (int bad = 0; bad < th_size(); bad++) {
        char word[80];
        hook *h = &f.hook[DEVICE];
        h->fails = th_rank() == bad;
        h->idle = true;
        TH_IS(dtr_ddp_forward_begin(f.m.ddp[DEVICE]), h->fails ? DTR_ERR_IO : DTR_OK);
        TH_IS(dtr_ddp_forward_end(f.m.ddp[DEVICE], NULL, 0), DTR_OK);
        TH_IS(backward(&f, DEVICE), DTR_ERR_IO);
        snprintf(word, sizeof word, "buffer hook failed on rank %d", bad);
        TH_MESSAGE(word);
        TH_AGREE();
        h->fails = h->idle = false;
        for (int side = 0; side < 2; side++) {
            fill(&f, side, bad);
            forward(&f, side);
            TH_IS(backward(&f, side), DTR_OK);
            use(&f, side);
        }
        same_bytes(f.sum[HOST], f.sum[DEVICE], "sum of buffers");
    }
    close_fixture(&f);
}
END_TEST

/* TD1, I7: a hook's work that no backward pass has waited for is over, for every stream, when the
 * module has moved to another group, and when it is gone. */
START_TEST(TD1_moved_or_destroyed_with_a_work) {
    cudaStream_t other;
    TH_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess, "stream");
    for (int k = 0; k < 4; k++) {
        fixture f;
        open_fixture(&f, DTR_PRE_FORWARD);
        dtr_ddp **ddp = &f.m.ddp[DEVICE];
        setenv("DTR_FAKE_CUDA_DELAY_US", "5000", 1);
        dtr_fake_cuda_reload();
        fill(&f, DEVICE, k);
        forward(&f, DEVICE);
        TH_IS(dtr_ddp_set_eval(*ddp, true), DTR_OK); /* drops that pass, and none is open behind */
        forward(&f, DEVICE);
        if (k % 2 == 0) {
            TH_IS(dtr_ddp_set_group(*ddp, th_group()), DTR_OK);
        } else {
            TH_IS(dtr_ddp_destroy(*ddp), DTR_OK);
            *ddp = NULL;
        }
        TH_IS(dtr_tensor_axpy(f.sum[DEVICE], 1, f.buffer[DEVICE], other), DTR_OK);
        float sum = 0;
        for (int r = 0; r < th_size(); r++) {
            sum += (float)(2 * (k + r));
        }
        check_each(f.sum[DEVICE], sum, "buffer", "buffer");
        setenv("DTR_FAKE_CUDA_DELAY_US", "30", 1);
        dtr_fake_cuda_reload();
        close_fixture(&f);
    }
    cudaStreamDestroy(other);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "buffer hooks", 110);
    th_add(tc, P5_final_behind_backward_end, 1, 0);
    th_add(tc, P5_dropped_and_local, 1, 0);
    th_add(tc, P4_failing_hook, 1, 0);
    th_add(tc, TD1_moved_or_destroyed_with_a_work, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_buffer_hook", make);
}
