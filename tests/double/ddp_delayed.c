/* Delayed parameters of a module on the device, beside the same on the host. Their gradients are
 * written on another stream than the buckets', which alone reports the trigger. The same program
 * runs over nccl and over stage (DTR_TEST_STAGE=1). */
#include <dtr/optim.h>
#include <math.h>

#include "ddp_pair.h"
#include "delay.h"
#include "fake_cuda.h"

enum { SIDES = 2 };
static const size_t two[] = { 1, 2 }, all[] = { 0, 1, 2, 3 };

typedef struct fixture {
    pair m;
    const dtr_ddp_options *o;
    cudaStream_t other; /* delayed gradients; the pair's stream: the rest */
    cudaEvent_t event;
    dtr_tensor *sum[SIDES][PARAMS]; /* of all averages */
    dtr_tensor *one[SIDES][PARAMS]; /* a gradient that does not change */
} fixture;

static bool listed(const fixture *f, size_t i) {
    for (size_t k = 0; k < f->o->n_delayed; k++) {
        if (f->o->delayed[k] == i) {
            return true;
        }
    }
    return false;
}

static void open_fixture(fixture *f, const dtr_ddp_options *o, dtr_dtype type) {
    *f = (fixture){ .o = o };
    pair_open(&f->m, o, type);
    TH_CHECK(cudaStreamCreateWithFlags(&f->other, cudaStreamNonBlocking) == cudaSuccess &&
                 cudaEventCreateWithFlags(&f->event, cudaEventDisableTiming) == cudaSuccess,
             "stream and event");
    for (int k = 0; k < 2 * SIDES * PARAMS; k++) {
        const int side = k / PARAMS % SIDES, i = k % PARAMS;
        const bool sum = k < SIDES * PARAMS;
        dtr_tensor **t = sum ? &f->sum[side][i] : &f->one[side][i];
        *t = side == HOST ? on_host(type, pair_numel[i], DTR_MEM_DEFAULT)
                          : on_gpu(type, pair_numel[i], 0, f->m.stream);
        TH_IS(dtr_tensor_fill(*t, sum ? 0 : th_size() * (th_rank() + 1), stream_of(&f->m, side)),
              DTR_OK);
    }
}

static void close_fixture(fixture *f) {
    pair_close(&f->m);
    for (int k = 0; k < SIDES * PARAMS; k++) {
        dtr_tensor_release(f->sum[k / PARAMS][k % PARAMS]);
        dtr_tensor_release(f->one[k / PARAMS][k % PARAMS]);
    }
    cudaStreamDestroy(f->other);
    cudaEventDestroy(f->event);
    TH_AGREE();
}

static cudaStream_t stream_for(const fixture *f, int side, size_t i) {
    return side == HOST ? NULL : listed(f, i) ? f->other : f->m.stream;
}

/* A multiple of the number of ranks, whose average is exact whichever way it is made. */
static void write_gradient(const fixture *f, int side, size_t i) {
    TH_IS(dtr_tensor_fill(dtr_ddp_grad(f->m.ddp[side], i),
                          th_size() * (th_rank() + f->m.step + (int)i), stream_for(f, side, i)),
          DTR_OK);
}

/* Reports the trigger on the stream that wrote what it stands for. */
static dtr_status report(const fixture *f, int side, size_t i) {
    const bool stands = i == f->o->delayed_trigger;
    cudaStream_t stream = side == DEVICE && stands ? f->other : stream_for(f, side, i);
    if (side == DEVICE && stands && !listed(f, i)) { /* its own gradient is on the first one */
        TH_CHECK(cudaEventRecord(f->event, f->m.stream) == cudaSuccess &&
                     cudaStreamWaitEvent(f->other, f->event, 0) == cudaSuccess,
                 "order");
    }
    return dtr_ddp_grad_ready(f->m.ddp[side], i, stream);
}

/* Every gradient, last to first; the trigger at a time that depends on the rank. */
static void gradients(const fixture *f, int side) {
    const size_t trigger = f->o->delayed_trigger;
    const size_t when = (size_t)(th_rank() + f->m.step) % PARAMS;
    for (size_t i = 0; i < PARAMS; i++) {
        if (listed(f, i) || i == trigger) {
            write_gradient(f, side, i);
        }
    }
    for (size_t k = PARAMS; k-- > 0;) {
        if (k == when) {
            TH_IS(report(f, side, trigger), DTR_OK);
        }
        if (!listed(f, k) && k != trigger) {
            write_gradient(f, side, k);
            TH_IS(report(f, side, k), DTR_OK);
        }
    }
}

/* The other stream goes on behind the first, as a program has to see to. */
static void order(const fixture *f, int side) {
    if (side == DEVICE) {
        TH_CHECK(cudaEventRecord(f->event, f->m.stream) == cudaSuccess &&
                     cudaStreamWaitEvent(f->other, f->event, 0) == cudaSuccess,
                 "order");
    }
}

/* And the first behind the other, where nobody reports what that has written. */
static void tell(const fixture *f, int side) {
    if (side == DEVICE) {
        TH_CHECK(cudaEventRecord(f->event, f->other) == cudaSuccess &&
                     cudaStreamWaitEvent(f->m.stream, f->event, 0) == cudaSuccess,
                 "order");
    }
}

static dtr_status end(const fixture *f, int side) {
    dtr_status s = dtr_ddp_backward_end(f->m.ddp[side], stream_of(&f->m, side));
    order(f, side);
    return s;
}

/* The averages are used on the stream of backward_end. */
static void use(const fixture *f, int side) {
    for (size_t i = 0; i < PARAMS; i++) {
        dtr_tensor *g = dtr_ddp_full_grad(f->m.ddp[side], i);
        TH_IS(dtr_tensor_axpy(f->sum[side][i], 1, g, stream_of(&f->m, side)), DTR_OK);
        TH_CHECK(dtr_ddp_grad_defined(f->m.ddp[side], i), "'%s' has no gradient", pair_names[i]);
    }
    order(f, side);
}

static void step_sides(fixture *f) {
    for (int side = 0; side < SIDES; side++) {
        gradients(f, side);
        TH_IS(end(f, side), DTR_OK);
        use(f, side);
    }
    f->m.step++;
}

static void same_sums(const fixture *f) {
    for (size_t i = 0; i < PARAMS; i++) {
        same_bytes(f->sum[HOST][i], f->sum[DEVICE][i], "sum of averages");
        same_bytes(dtr_ddp_full_grad(f->m.ddp[HOST], i), dtr_ddp_full_grad(f->m.ddp[DEVICE], i),
                   "average");
    }
}

/* ---- modes ---- */

static dtr_status average(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    dtr_buffer buffer = dtr_ddp_bucket_buffer(b);
    (void)state;
    o.stream = dtr_ddp_bucket_stream(b);
    return dtr_allreduce(dtr_ddp_bucket_group(b), buffer, buffer, DTR_AVG, &o, work);
}

typedef enum mode { PLAIN, VIEW, PER_PARAM, STATIC, DYNAMIC, CAST, WIDE, HOOK, MODES } mode;

static dtr_ddp_options options_of(mode k, const size_t *list, size_t n, size_t trigger) {
    dtr_ddp_options o = delay(list, n, trigger);
    o.grad_as_bucket_view = k == VIEW;
    o.flags = k == PER_PARAM ? DTR_DDP_PER_PARAM : 0;
    o.static_graph = k == STATIC;
    o.find_unused = k == DYNAMIC;
    o.has_param_dtype = k == CAST;
    o.param_dtype = DTR_BF16;
    o.has_reduce_dtype = k == WIDE;
    o.reduce_dtype = DTR_F64;
    return o;
}

/* D1, D3: whatever the buckets do; the host waits for nothing, and what the trigger stands for is
 * reduced behind all buckets, once. */
static void averaged(mode k, const size_t *list, size_t n, size_t trigger) {
    enum { STEPS = 6 };
    const dtr_ddp_options o = options_of(k, list, n, trigger);
    dtr_ddp_stats st = DTR_DDP_STATS_INIT;
    fixture f;
    open_fixture(&f, &o, DTR_F32);
    for (int side = 0; side < SIDES && k == HOOK; side++) {
        TH_IS(dtr_ddp_register_hook(f.m.ddp[side], average, NULL, "average"), DTR_OK);
    }
    while (f.m.step < STEPS) {
        dtr_fake_cuda_log_start();
        gradients(&f, DEVICE);
        const int early = dtr_fake_cuda_log_count("ncclAllReduce rank");
        TH_IS(end(&f, DEVICE), DTR_OK);
        const int late = dtr_fake_cuda_log_count("ncclAllReduce rank");
        TH_IS(dtr_ddp_get_stats(f.m.ddp[DEVICE], &st), DTR_OK);
        TH_CHECK(staged() || k != PLAIN || th_size() == 1 || early < 0 ||
                     (early == (int)st.buckets && late == early + 1),
                 "%d and %d reductions for %zu buckets", early, late, st.buckets);
        TH_CHECK(f.m.step < 2 || staged() || dtr_fake_cuda_log_count("Synchronize") == 0,
                 "mode %d: %s", (int)k, dtr_fake_cuda_log_text());
        use(&f, DEVICE);
        gradients(&f, HOST);
        TH_IS(end(&f, HOST), DTR_OK);
        use(&f, HOST);
        f.m.step++;
    }
    same_sums(&f);
    const size_t bytes = st.last.bytes;
    TH_IS(dtr_ddp_get_stats(f.m.ddp[HOST], &st), DTR_OK);
    TH_CHECK(bytes == st.last.bytes, "%zu bytes a step, on the host %zu", bytes, st.last.bytes);
    close_fixture(&f);
}

START_TEST(D3_trigger_in_a_bucket) {
    for (mode k = PLAIN; k < MODES; k++) {
        averaged(k, two, 2, 3);
    }
}
END_TEST

START_TEST(D3_trigger_delayed) {
    for (mode k = PLAIN; k < MODES; k++) {
        averaged(k, two, 2, 1);
    }
}
END_TEST

START_TEST(D5_all_delayed) {
    static const mode some[] = { VIEW, PER_PARAM, STATIC, DYNAMIC, CAST };
    for (size_t k = 0; k < sizeof some / sizeof some[0]; k++) {
        averaged(some[k], all, PARAMS, 0);
    }
}
END_TEST

/* U1, U3, D3: a trigger in a bucket that no rank uses, listed and not: what it stands for is
 * averaged at the end, with what the stream of backward_end knows of. */
START_TEST(U3_trigger_unused) {
    const dtr_ddp_options o = options_of(DYNAMIC, two, 2, 3);
    fixture f;
    open_fixture(&f, &o, DTR_F32);
    for (f.m.step = 0; f.m.step < 6; f.m.step++) {
        for (int side = 0; side < SIDES; side++) {
            TH_IS(dtr_ddp_forward_begin(f.m.ddp[side]), DTR_OK);
            TH_IS(dtr_ddp_forward_end(f.m.ddp[side], f.m.step % 2 == 0 ? &o.delayed_trigger : NULL,
                                      f.m.step % 2 == 0),
                  DTR_OK);
            for (size_t i = 0; i < PARAMS - 1; i++) {
                write_gradient(&f, side, i);
            }
            TH_IS(report(&f, side, 0), DTR_OK);
            tell(&f, side);
            TH_IS(end(&f, side), DTR_OK);
            for (size_t i = 0; i < PARAMS - 1; i++) {
                TH_IS(dtr_tensor_axpy(f.sum[side][i], 1, dtr_ddp_grad(f.m.ddp[side], i),
                                      stream_of(&f.m, side)),
                      DTR_OK);
            }
            order(&f, side);
        }
    }
    for (size_t i = 0; i < PARAMS - 1; i++) {
        same_bytes(f.sum[HOST][i], f.sum[DEVICE][i], "sum of averages");
    }
    close_fixture(&f);
}
END_TEST

/* GF3: three steps are queued before the device has begun. */
START_TEST(GF3_the_host_goes_on) {
    const dtr_ddp_options o = delay(two, 2, 2);
    cudaEvent_t open;
    cudaStream_t slow;
    fixture f;
    if (staged()) {
        return; /* the host moves the data and waits for it */
    }
    open_fixture(&f, &o, DTR_F32);
    step_sides(&f); /* with the rebuild */
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    TH_CHECK(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking) == cudaSuccess, "stream");
    dtr_fake_cuda_hold(open, 1);
    cudaEventRecord(open, slow);
    cudaStreamWaitEvent(f.other, open, 0); /* what the trigger stands for is late, and no bucket */
    for (int k = 0; k < 3; k++) {
        step_sides(&f);
    }
    TH_CHECK(cudaStreamQuery(f.m.stream) == cudaErrorNotReady, "it has run");
    dtr_fake_cuda_hold(open, 0);
    same_sums(&f);
    close_fixture(&f);
    cudaEventDestroy(open);
    cudaStreamDestroy(slow);
}
END_TEST

/* ---- memory ---- */

/* D1, K6: one zeroed block with offsets of 64 bytes; a caller's gradient moves there and back. */
START_TEST(D1_places) {
    const dtr_ddp_options o = delay(two, 2, 1);
    cudaStream_t s;
    dtr_ddp *ddp = NULL;
    TH_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess, "stream");
    dtr_param p[3] = { { "a", on_gpu(DTR_F32, 5, 0, s), NULL, 0 },
                       { "b", on_gpu(DTR_F32, 21, 0, s), NULL, 0 },
                       { "c", on_gpu(DTR_F32, 8, 0, s), on_gpu(DTR_F32, 8, 3, s), 0 } };
    dtr_tensor *own = p[2].grad, *seen = on_gpu(DTR_F32, 8, 0, s);
    const void *before = dtr_tensor_data(own);
    TH_IS(dtr_ddp_create(th_group(), p, 3, &o, &ddp), DTR_OK);
    TH_IS(dtr_tensor_axpy(seen, 1, own, s), DTR_OK);
    check_each(seen, 3, "the caller's, at once", "c");
    const char *first = dtr_tensor_data(dtr_ddp_grad(ddp, 1)),
               *second = dtr_tensor_data(dtr_ddp_grad(ddp, 2));
    TH_CHECK((uintptr_t)first % 64 == 0 && second - first == 128, "places: %p, +%td",
             (const void *)first, second - first);
    TH_CHECK(dtr_ddp_grad(ddp, 2) == own, "another handle");
    check_each(own, 3, "the caller's", "c");
    check_each(dtr_ddp_grad(ddp, 1), 0, "block", "b");
    TH_IS(dtr_tensor_fill(dtr_ddp_grad(ddp, 0), 0, s), DTR_OK);
    TH_IS(dtr_tensor_fill(own, th_size() * th_rank(), s), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, 1, s), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, s), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, s), DTR_OK);
    TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
    float sum = 0;
    for (int r = 0; r < th_size(); r++) {
        sum += (float)r;
    }
    TH_CHECK(dtr_tensor_data(own) == before, "not moved back");
    check_each(own, sum, "average", "c");
    for (int i = 0; i < 3; i++) {
        dtr_tensor_release(p[i].value);
    }
    dtr_tensor_release(own);
    dtr_tensor_release(seen);
    cudaStreamDestroy(s);
    TH_AGREE();
}
END_TEST

static void add_one(const fixture *f, int side) {
    for (size_t i = 0; i < PARAMS; i++) {
        TH_IS(dtr_tensor_axpy(dtr_ddp_grad(f->m.ddp[side], i), 1, f->one[side][i],
                              stream_of(&f->m, side)),
              DTR_OK);
    }
}

/* D4, N3: forward_end zeroes cleared gradients, the others go on; steps without sync add up. Before
 * the first backward pass no stream of the program is known. */
START_TEST(D4_cleared) {
    const dtr_ddp_options o = delay(two, 2, 1);
    fixture f;
    open_fixture(&f, &o, DTR_F32);
    for (int side = 0; side < SIDES; side++) {
        for (size_t i = 0; i < PARAMS; i++) {
            TH_IS(dtr_tensor_fill(dtr_ddp_grad(f.m.ddp[side], i), listed(&f, i) ? 9 : 0,
                                  stream_of(&f.m, side)),
                  DTR_OK);
        }
        TH_CHECK(cudaStreamSynchronize(f.m.stream) == cudaSuccess, "synchronize");
        for (int step = 0; step < 7; step++) {
            if (step == 3) {
                TH_IS(dtr_ddp_grad_clear(f.m.ddp[side], 2), DTR_OK);
            }
            TH_IS(dtr_ddp_set_sync(f.m.ddp[side], step % 3 == 2), DTR_OK);
            TH_IS(dtr_ddp_forward_begin(f.m.ddp[side]), DTR_OK);
            TH_IS(dtr_ddp_forward_end(f.m.ddp[side], NULL, 0), DTR_OK);
            add_one(&f, side);
            for (size_t i = 0; i < PARAMS; i++) {
                if (i == 1 || !listed(&f, i)) {
                    TH_IS(dtr_ddp_grad_ready(f.m.ddp[side], i, stream_of(&f.m, side)), DTR_OK);
                }
            }
            TH_IS(end(&f, side), DTR_OK);
            use(&f, side);
        }
    }
    same_sums(&f);
    close_fixture(&f);
}
END_TEST

/* ---- errors ---- */

/* D7, ER11: a trigger that is missing, or reported twice, is an error of all; the next is right. */
START_TEST(D7_errors) {
    const dtr_ddp_options o = delay(two, 2, 1);
    fixture f;
    open_fixture(&f, &o, DTR_F32);
    TH_IS(dtr_ddp_grad_ready(f.m.ddp[DEVICE], 2, f.m.stream), DTR_ERR_ARG);
    TH_MESSAGE("'c' (2) is delayed");
    for (int k = 0; k < 2 * th_size(); k++) {
        const bool me = k / 2 == th_rank(), twice = k % 2 != 0;
        for (size_t i = 0; i < PARAMS; i++) {
            write_gradient(&f, DEVICE, i);
            if (i == 1 ? twice || !me : !listed(&f, i)) {
                TH_IS(report(&f, DEVICE, i), DTR_OK);
            }
        }
        if (me && twice) {
            TH_IS(report(&f, DEVICE, 1), DTR_ERR_STATE);
        }
        tell(&f, DEVICE);
        TH_IS(end(&f, DEVICE), DTR_ERR_STATE);
        TH_MESSAGE("'b' (1)");
        TH_MESSAGE(twice ? "twice" : "trigger");
        TH_AGREE();
        step_sides(&f);
        same_sums(&f);
    }
    close_fixture(&f);
}
END_TEST

/* I15: a NaN in a delayed gradient is named. */
START_TEST(I15_check_nan) {
    for (int k = 0; k < 2; k++) {
        dtr_ddp_options o = delay(two, 2, k == 0 ? 1 : 3);
        char word[64];
        fixture f;
        o.flags = DTR_DDP_CHECK_NAN;
        open_fixture(&f, &o, DTR_F32);
        step_sides(&f);
        for (int bad = 0; bad < th_size(); bad++) {
            for (size_t i = 0; i < PARAMS; i++) {
                write_gradient(&f, DEVICE, i);
            }
            if (bad == th_rank()) {
                TH_IS(dtr_tensor_fill(dtr_ddp_grad(f.m.ddp[DEVICE], 2), NAN, f.other), DTR_OK);
            }
            for (size_t i = PARAMS; i-- > 0;) {
                if (!listed(&f, i) || i == o.delayed_trigger) {
                    TH_IS(report(&f, DEVICE, i), DTR_OK);
                }
            }
            TH_IS(end(&f, DEVICE), DTR_ERR_NAN);
            snprintf(word, sizeof word, "'c' (2) has a NaN on rank %d (element 0", bad);
            TH_MESSAGE(word);
            TH_AGREE();
            step_sides(&f);
            same_sums(&f);
        }
        close_fixture(&f);
    }
}
END_TEST

/* ---- what else there is ---- */

/* J3, J4: ranks that have joined contribute zeros. */
START_TEST(J3_uneven) {
    const dtr_ddp_options o = delay(two, 2, 3);
    dtr_join_options j = DTR_JOIN_OPTIONS_INIT;
    fixture f;
    open_fixture(&f, &o, DTR_F32);
    for (int side = 0; side < SIDES; side++) {
        f.m.step = 0;
        TH_IS(dtr_ddp_join_begin(f.m.ddp[side], &j), DTR_OK);
        while (f.m.step < 2 + th_rank()) {
            TH_IS(dtr_ddp_forward_begin(f.m.ddp[side]), DTR_OK);
            TH_IS(dtr_ddp_forward_end(f.m.ddp[side], NULL, 0), DTR_OK);
            gradients(&f, side);
            TH_IS(end(&f, side), DTR_OK);
            use(&f, side);
            f.m.step++;
        }
        TH_IS(dtr_ddp_join_end(f.m.ddp[side]), DTR_OK);
    }
    same_sums(&f);
    step_sides(&f);
    same_sums(&f);
    close_fixture(&f);
}
END_TEST

/* V7, I7: clipped and stepped by the library's optimizer, on the group and on a copy of it. */
START_TEST(V7_clipped_and_stepped) {
    const dtr_ddp_options o = delay(two, 2, 1);
    dtr_optim_options rule = DTR_OPTIM_OPTIONS_INIT;
    dtr_optim *optim[SIDES];
    fixture f;
    open_fixture(&f, &o, DTR_F32);
    rule.rate = 0.125;
    rule.momentum = 0.5;
    rule.max_norm = 40;
    for (int side = 0; side < SIDES; side++) {
        TH_IS(dtr_optim_create(f.m.ddp[side], NULL, &rule, &optim[side]), DTR_OK);
    }
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < 3; k++) {
            for (int side = 0; side < SIDES; side++) {
                gradients(&f, side);
                TH_IS(end(&f, side), DTR_OK);
                TH_IS(dtr_optim_step(optim[side]), DTR_OK);
                use(&f, side);
            }
            f.m.step++;
        }
        for (size_t i = 0; i < PARAMS; i++) {
            same_bytes(f.m.value[HOST][i], f.m.value[DEVICE][i], "stepped value");
        }
        TH_IS(dtr_ddp_check_equal(f.m.ddp[DEVICE]), DTR_OK);
        for (int side = 0; side < SIDES && round == 0; side++) {
            TH_IS(dtr_ddp_set_group(f.m.ddp[side], th_group()), DTR_OK);
        }
    }
    for (int side = 0; side < SIDES; side++) {
        TH_IS(dtr_optim_destroy(optim[side]), DTR_OK);
    }
    close_fixture(&f);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "delayed parameters", 110);
    th_add(tc, D3_trigger_in_a_bucket, 1, 0);
    th_add(tc, D3_trigger_delayed, 1, 0);
    th_add(tc, D5_all_delayed, 1, 0);
    th_add(tc, U3_trigger_unused, 1, 0);
    th_add(tc, GF3_the_host_goes_on, 1, 0);
    th_add(tc, D1_places, 1, 0);
    th_add(tc, D4_cleared, 1, 0);
    th_add(tc, D7_errors, 1, 0);
    th_add(tc, I15_check_nan, 1, 0);
    th_add(tc, J3_uneven, 1, 0);
    th_add(tc, V7_clipped_and_stepped, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_delayed", make);
}
