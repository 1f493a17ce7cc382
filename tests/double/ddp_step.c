/* Steps per bucket of a module on the device, beside the same on the host. A gradient depends on
 * the parameter's value, so that what is stepped too early or too late goes on into all that
 * follows. The same program runs over nccl and over stage (DTR_TEST_STAGE=1). */
#include <pthread.h>
#include <stdatomic.h>

#include "ddp_pair.h"
#include "fake_cuda.h"

enum { STREAMS = 2, SIDES = 2, MAX_CALLS = 400 };
static const size_t everything[PARAMS] = { 0, 1, 2, 3 };

typedef struct stepper {
    dtr_tensor *moment[PARAMS], *scratch[PARAMS]; /* scratch: a gradient of another type, cast */
    _Atomic int calls, inside;
    int overlapping, fail_at;
    size_t order[MAX_CALLS];
    void *stream; /* NULL on the host */
} stepper;

typedef struct fixture {
    pair m;
    cudaStream_t stream[STREAMS]; /* the first is the pair's */
    cudaEvent_t ended;
    stepper s[SIDES];
} fixture;

/* value = gradient - value, and a moment that follows it: whole numbers, exact in f32. */
static dtr_status step(void *state, size_t i, dtr_tensor *value, dtr_tensor *grad, void *stream) {
    stepper *s = state;
    s->overlapping += atomic_fetch_add(&s->inside, 1) != 0;
    s->order[atomic_fetch_add(&s->calls, 1) % MAX_CALLS] = i;
    s->stream = stream;
    dtr_status e = s->fail_at == (int)i ? DTR_ERR_IO : dtr_tensor_scale(value, -1, stream);
    if (e == DTR_OK && dtr_tensor_dtype(grad) != DTR_F32) {
        e = dtr_tensor_copy(s->scratch[i], grad, stream);
        grad = s->scratch[i];
    }
    e = e < 0 ? e : dtr_tensor_axpy(value, 1, grad, stream);
    e = e < 0 ? e : dtr_tensor_scale(s->moment[i], -1, stream);
    e = e < 0 ? e : dtr_tensor_axpy(s->moment[i], 1, value, stream);
    atomic_fetch_sub(&s->inside, 1);
    return e;
}

static void open_fixture(fixture *f, const dtr_ddp_options *o, const size_t *params, size_t n) {
    *f = (fixture){ .s = { { .fail_at = -1 }, { .fail_at = -1 } } };
    pair_open(&f->m, o, DTR_F32);
    f->stream[0] = f->m.stream;
    TH_CHECK(cudaStreamCreateWithFlags(&f->stream[1], cudaStreamNonBlocking) == cudaSuccess &&
                 cudaEventCreateWithFlags(&f->ended, cudaEventDisableTiming) == cudaSuccess,
             "stream and event");
    for (int side = 0; side < SIDES; side++) {
        for (int i = 0; i < SIDES * PARAMS; i++) {
            stepper *p = &f->s[side];
            dtr_tensor **t = i < PARAMS ? &p->moment[i] : &p->scratch[i - PARAMS];
            *t = side == HOST ? on_host(DTR_F32, pair_numel[i % PARAMS], DTR_MEM_DEFAULT)
                              : on_gpu(DTR_F32, pair_numel[i % PARAMS], 0, f->m.stream);
            TH_IS(dtr_tensor_fill(*t, 0, stream_of(&f->m, side)), DTR_OK);
        }
    }
    TH_CHECK(cudaStreamSynchronize(f->m.stream) == cudaSuccess, "synchronize");
    for (int side = 0; side < SIDES; side++) {
        TH_IS(dtr_ddp_set_step(f->m.ddp[side], step, &f->s[side], params, n), DTR_OK);
    }
}

static void close_fixture(fixture *f) {
    for (int side = 0; side < SIDES; side++) {
        TH_CHECK(f->s[side].overlapping == 0, "two steps at a time");
        TH_CHECK((f->s[side].stream != NULL) == (side == DEVICE && f->s[side].calls > 0),
                 "the stream of a step is %p", f->s[side].stream);
    }
    pair_close(&f->m);
    for (int i = 0; i < SIDES * PARAMS; i++) {
        dtr_tensor_release(f->s[i / PARAMS].moment[i % PARAMS]);
        dtr_tensor_release(f->s[i / PARAMS].scratch[i % PARAMS]);
    }
    cudaStreamDestroy(f->stream[1]);
    cudaEventDestroy(f->ended);
    TH_AGREE();
}

static cudaStream_t stream_for(const fixture *f, int side, size_t i) {
    return side == DEVICE ? f->stream[i % STREAMS] : NULL;
}

/* A multiple of the number of ranks, whose average is exact whichever way it is made. */
static void write_gradient(const fixture *f, int side, size_t i) {
    dtr_tensor *g = dtr_ddp_grad(f->m.ddp[side], i);
    cudaStream_t stream = stream_for(f, side, i);
    TH_IS(dtr_tensor_fill(g, th_size() * (th_rank() + f->m.step + (int)i), stream), DTR_OK);
    TH_IS(dtr_tensor_axpy(g, th_size(), f->m.value[side][i], stream), DTR_OK);
}

static void ready(const fixture *f, int side, size_t i) {
    write_gradient(f, side, i);
    TH_IS(dtr_ddp_grad_ready(f->m.ddp[side], i, stream_for(f, side, i)), DTR_OK);
}

/* The second stream goes on behind the first, as a program has to see to. */
static dtr_status end(const fixture *f, int side) {
    dtr_status s = dtr_ddp_backward_end(f->m.ddp[side], stream_of(&f->m, side));
    if (side == DEVICE) {
        TH_CHECK(cudaEventRecord(f->ended, f->stream[0]) == cudaSuccess &&
                     cudaStreamWaitEvent(f->stream[1], f->ended, 0) == cudaSuccess,
                 "order");
    }
    return s;
}

static void backward(const fixture *f, int side) {
    for (size_t i = PARAMS; i-- > 0;) {
        ready(f, side, i);
    }
    TH_IS(end(f, side), DTR_OK);
}

static void same_values(const fixture *f, const char *what) {
    for (size_t i = 0; i < PARAMS; i++) {
        same_bytes(f->m.value[HOST][i], f->m.value[DEVICE][i], what);
        same_bytes(f->s[HOST].moment[i], f->s[DEVICE].moment[i], what);
    }
}

/* ---- modes ---- */

typedef enum mode {
    PLAIN,
    VIEW,
    WIDE,
    PER_PARAM,
    STATIC,
    DYNAMIC,
    HOOK,
    TWO_STEPS,
    DYNAMIC_VIEW,
    MODES
} mode;

static dtr_ddp_options options_of(mode k) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.grad_as_bucket_view = k == VIEW || k == DYNAMIC_VIEW;
    o.has_reduce_dtype = k == WIDE;
    o.reduce_dtype = DTR_F64;
    o.flags = k == PER_PARAM ? DTR_DDP_PER_PARAM : 0;
    o.static_graph = k == STATIC;
    o.find_unused = k == DYNAMIC || k == DYNAMIC_VIEW;
    return o;
}

static void add_hooks(const fixture *f, mode k) {
    for (int side = 0; side < SIDES; side++) {
        if (k == HOOK) {
            TH_IS(dtr_ddp_register_builtin_hook(f->m.ddp[side], DTR_HOOK_ALLREDUCE, NULL), DTR_OK);
        } else if (k == TWO_STEPS) {
            TH_IS(dtr_ddp_register_hook(f->m.ddp[side], pair_sum_then_divide, NULL, "two"), DTR_OK);
        }
    }
}

static void in_launch_order(const fixture *f, int first) {
    const dtr_plan *plan = dtr_ddp_plan(f->m.ddp[DEVICE]);
    size_t at = (size_t)first;
    for (size_t b = 0; b < dtr_plan_bucket_count(plan); b++) {
        const dtr_plan_bucket *k = dtr_plan_get_bucket(plan, b);
        for (size_t i = 0; i < k->n_slots; i++, at++) {
            TH_CHECK(f->s[DEVICE].order[at] == k->slots[i].param, "call %zu was %zu, not %zu", at,
                     f->s[DEVICE].order[at], k->slots[i].param);
        }
    }
}

/* Z1-Z5: every way that buckets travel, on two streams; the host waits for nothing, and where
 * streams can wait the steps are queued before the backward pass ends. */
static void stepped(mode k) {
    enum { STEPS = 7 };
    const dtr_ddp_options o = options_of(k);
    fixture f;
    open_fixture(&f, &o, everything, PARAMS);
    add_hooks(&f, k);
    for (f.m.step = 0; f.m.step < STEPS; f.m.step++) {
        const int before = f.s[DEVICE].calls;
        backward(&f, HOST);
        dtr_fake_cuda_log_start();
        for (size_t i = PARAMS; i-- > 0;) {
            ready(&f, DEVICE, i);
        }
        const int queued = f.s[DEVICE].calls - before;
        TH_CHECK(k > WIDE || staged() || queued == (th_size() > 1 ? PARAMS : 0),
                 "mode %d: %d steps are queued before the end", (int)k, queued);
        TH_IS(end(&f, DEVICE), DTR_OK);
        TH_CHECK(f.m.step < 2 || staged() || dtr_fake_cuda_log_count("Synchronize") == 0,
                 "mode %d: %s", (int)k, dtr_fake_cuda_log_text());
        TH_CHECK(f.s[DEVICE].calls == before + PARAMS, "mode %d: %d calls", (int)k,
                 f.s[DEVICE].calls - before);
        for (size_t i = 0; i < PARAMS; i++) {
            TH_CHECK(!dtr_ddp_grad_defined(f.m.ddp[DEVICE], i), "'%s' is defined", pair_names[i]);
        }
        if (f.m.step > 0) {
            in_launch_order(&f, before);
        }
    }
    same_values(&f, "stepped value");
    close_fixture(&f);
}

START_TEST(Z1_buckets) {
    for (mode k = PLAIN; k <= PER_PARAM; k++) {
        stepped(k);
    }
}
END_TEST

START_TEST(Z4_graphs_and_hooks) {
    for (mode k = STATIC; k < MODES; k++) {
        stepped(k);
    }
}
END_TEST

/* Z5, GF3: three steps are queued before the device has begun; the values are right behind the
 * stream of backward_end. */
START_TEST(Z5_the_host_goes_on) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    cudaEvent_t open;
    cudaStream_t slow;
    fixture f;
    if (staged()) {
        return; /* the host moves the data and waits for it */
    }
    open_fixture(&f, &o, everything, PARAMS);
    for (int side = 0; side < SIDES; side++) {
        backward(&f, side); /* with the rebuild */
    }
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    TH_CHECK(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking) == cudaSuccess, "stream");
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, slow);
    for (int k = 0; k < STREAMS; k++) {
        cudaStreamWaitEvent(f.stream[k], open, 0);
    }
    for (f.m.step = 1; f.m.step < 4; f.m.step++) {
        backward(&f, HOST);
        backward(&f, DEVICE);
    }
    TH_CHECK(cudaStreamQuery(f.stream[0]) == cudaErrorNotReady, "it has run");
    dtr_fake_cuda_hold(open, 0);
    same_values(&f, "value queued");
    close_fixture(&f);
    cudaEventDestroy(open);
    cudaStreamDestroy(slow);
}
END_TEST

/* ---- some parameters ---- */

/* Z4: the others get their averages as ever; steps without sync are refused; off again. */
START_TEST(Z4_subset) {
    static const size_t some[] = { 1, 2 };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    fixture f;
    open_fixture(&f, &o, some, 2);
    for (f.m.step = 0; f.m.step < 4; f.m.step++) {
        for (int side = 0; side < SIDES; side++) {
            backward(&f, side);
        }
        for (size_t i = 0; i < PARAMS; i += 3) {
            same_bytes(dtr_ddp_grad(f.m.ddp[HOST], i), dtr_ddp_grad(f.m.ddp[DEVICE], i), "average");
        }
    }
    same_values(&f, "stepped value");
    TH_CHECK(f.s[DEVICE].calls == 8, "%d calls", f.s[DEVICE].calls);
    TH_IS(dtr_ddp_set_sync(f.m.ddp[DEVICE], false), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(f.m.ddp[DEVICE], 0, f.m.stream), DTR_ERR_STATE);
    TH_MESSAGE("sync is off");
    for (int side = 0; side < SIDES; side++) {
        TH_IS(dtr_ddp_set_sync(f.m.ddp[side], true), DTR_OK);
        TH_IS(dtr_ddp_set_step(f.m.ddp[side], NULL, NULL, NULL, 0), DTR_OK);
        backward(&f, side);
    }
    same_gradients(&f.m, "average without steps");
    TH_CHECK(f.s[DEVICE].calls == 8, "%d calls", f.s[DEVICE].calls);
    close_fixture(&f);
}
END_TEST

/* U5, Z2: a parameter that only other ranks used is stepped here too, one of nobody's is not. */
START_TEST(Z2_used_elsewhere) {
    for (int view = 0; view < 2; view++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.find_unused = true;
        o.grad_as_bucket_view = view;
        fixture f;
        open_fixture(&f, &o, everything, PARAMS);
        for (f.m.step = 0; f.m.step < 5; f.m.step++) {
            const size_t only = (size_t)f.m.step % PARAMS;
            for (int side = 0; side < SIDES; side++) {
                if (th_rank() == f.m.step % th_size()) {
                    ready(&f, side, only);
                    ready(&f, side, (only + 2) % PARAMS);
                }
                TH_IS(end(&f, side), DTR_OK);
            }
        }
        same_values(&f, "stepped value");
        TH_CHECK(f.s[DEVICE].calls == 10, "%d calls", f.s[DEVICE].calls);
        close_fixture(&f);
    }
}
END_TEST

/* Z6: an error on one rank is agreed and says what was stepped there; the next one is right. */
START_TEST(Z6_failing) {
    for (int bad = 0; bad < th_size(); bad++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        char word[80];
        fixture f;
        open_fixture(&f, &o, everything, PARAMS);
        f.s[DEVICE].fail_at = th_rank() == bad ? 2 : -1;
        for (size_t i = PARAMS; i-- > 0;) {
            ready(&f, DEVICE, i);
        }
        TH_IS(end(&f, DEVICE), DTR_ERR_IO);
        snprintf(word, sizeof word, "step of parameter 'c' (2) failed on rank %d", bad);
        TH_MESSAGE(word);
        TH_MESSAGE("before: 'd'");
        TH_AGREE();
        f.s[DEVICE].fail_at = -1;
        backward(&f, DEVICE);
        TH_CHECK(f.s[DEVICE].calls >= 2 * PARAMS - 2, "%d calls", f.s[DEVICE].calls);
        close_fixture(&f);
    }
}
END_TEST

/* TD2: steps are queued behind buckets that one rank never launches; all destroy the module, which
 * takes the streams and the memory back, and the group goes on. */
START_TEST(TD2_destroyed_under_way) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    fixture f;
    o.timeout_s = 2;
    open_fixture(&f, &o, everything, PARAMS);
    for (int side = 0; side < SIDES; side++) {
        backward(&f, side);
    }
    for (size_t i = PARAMS; i-- > 0 && th_rank() < th_size() - 1;) {
        ready(&f, DEVICE, i);
    }
    (void)dtr_ddp_destroy(f.m.ddp[DEVICE]); /* DTR_ERR_TIMEOUT where the last rank came late */
    f.m.ddp[DEVICE] = NULL;
    TH_CHECK(cudaDeviceSynchronize() == cudaSuccess, "synchronize");
    TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
    close_fixture(&f);
}
END_TEST

/* ---- threads, and ranks that have joined ---- */

typedef struct reporter {
    const fixture *f;
    size_t first;
} reporter;

static void *report(void *arg) {
    const reporter *r = arg;
    for (size_t i = r->first; i < PARAMS; i += 2) {
        ready(r->f, DEVICE, i);
    }
    return NULL;
}

/* G1, Z1: two threads report, each on its stream; steps are queued one after the other. */
START_TEST(G1_threads) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    fixture f;
    open_fixture(&f, &o, everything, PARAMS);
    for (f.m.step = 0; f.m.step < 6; f.m.step++) {
        reporter r[2] = { { &f, 0 }, { &f, 1 } };
        pthread_t thread;
        backward(&f, HOST);
        TH_CHECK(pthread_create(&thread, NULL, report, &r[1]) == 0, "no thread");
        report(&r[0]);
        pthread_join(thread, NULL);
        TH_IS(end(&f, DEVICE), DTR_OK);
    }
    same_values(&f, "stepped value");
    close_fixture(&f);
}
END_TEST

/* J3, J4, J6: ranks that have joined step nothing, and take the values of the last one. */
START_TEST(J3_uneven) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    fixture f;
    open_fixture(&f, &o, everything, PARAMS);
    for (int side = 0; side < SIDES; side++) {
        TH_IS(dtr_ddp_join_begin(f.m.ddp[side], NULL), DTR_OK);
        for (f.m.step = 0; f.m.step < 2 + th_rank(); f.m.step++) {
            TH_IS(dtr_ddp_forward_begin(f.m.ddp[side]), DTR_OK);
            TH_IS(dtr_ddp_forward_end(f.m.ddp[side], NULL, 0), DTR_OK);
            backward(&f, side);
        }
        TH_IS(dtr_ddp_join_end(f.m.ddp[side]), DTR_OK);
        TH_CHECK(f.s[side].calls == PARAMS * (2 + th_rank()), "%d calls", f.s[side].calls);
    }
    for (size_t i = 0; i < PARAMS; i++) {
        same_bytes(f.m.value[HOST][i], f.m.value[DEVICE][i], "value after a join");
    }
    close_fixture(&f);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "steps", 110);
    th_add(tc, Z1_buckets, 1, 0);
    th_add(tc, Z4_graphs_and_hooks, 1, 0);
    th_add(tc, Z5_the_host_goes_on, 1, 0);
    th_add(tc, Z4_subset, 1, 0);
    th_add(tc, Z2_used_elsewhere, 1, 0);
    th_add(tc, Z6_failing, 1, 0);
    th_add(tc, TD2_destroyed_under_way, 2, 0);
    th_add(tc, G1_threads, 1, 0);
    th_add(tc, J3_uneven, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_step", make);
}
