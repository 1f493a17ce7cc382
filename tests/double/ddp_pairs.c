/* What DDP can do with parameters in host memory, on device memory: the same values, and what is
 * queued for it. The same program runs over nccl and over stage (DTR_TEST_STAGE=1). */
#include <math.h>
#include <stdlib.h>

#include "ddp_pair.h"
#include "fake_cuda.h"

/* ---- statistics ---- */

/* Steps of 12 whose times are known: 10, and with DTR_DDP_STATS_EVERY=2 the twelfth. */
static uint64_t timed_of_12(void) {
    return getenv("DTR_DDP_STATS_EVERY") != NULL ? 11 : 10;
}

static dtr_ddp_stats stats_of(const pair *m, int side) {
    dtr_ddp_stats st = DTR_DDP_STATS_INIT;
    TH_IS(dtr_ddp_get_stats(m->ddp[side], &st), DTR_OK);
    return st;
}

/* LG7, reliability:T31: steps are timed by events; nobody waits for them, neither the step nor who
 * asks. */
START_TEST(LG7_times_from_events) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    cudaEvent_t open;
    pair m;
    pair_open(&m, &o, DTR_F32);
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    for (int k = 0; k < 12; k++) {
        TH_IS(backward_of(&m, HOST), DTR_OK);
    }
    for (int k = 0; k < 12; k++) {
        if (k == 1 && !staged()) { /* behind the rebuild, which waits */
            TH_CHECK(cudaDeviceSynchronize() == cudaSuccess, "synchronize");
            TH_CHECK(stats_of(&m, DEVICE).timed_steps == 1, "the first step is not counted");
            dtr_fake_cuda_hold(open, 1);
            cudaEventRecord(open, m.stream);
            cudaStreamWaitEvent(m.stream, open, 0);
        }
        TH_IS(dtr_ddp_forward_begin(m.ddp[DEVICE]), DTR_OK);
        TH_IS(dtr_ddp_forward_end(m.ddp[DEVICE], NULL, 0), DTR_OK);
        for (size_t i = 0; i < PARAMS; i++) {
            TH_IS(dtr_ddp_grad_ready(m.ddp[DEVICE], i, m.stream), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(m.ddp[DEVICE], m.stream), DTR_OK);
    }
    dtr_ddp_stats st = stats_of(&m, DEVICE);
    TH_CHECK(st.steps == 12, "%d steps", (int)st.steps);
    TH_CHECK(staged() || st.timed_steps == 1, "%d steps are timed, the device has done one",
             (int)st.timed_steps);
    if (!staged()) {
        dtr_fake_cuda_hold(open, 0);
    }
    TH_CHECK(cudaDeviceSynchronize() == cudaSuccess, "synchronize");
    st = stats_of(&m, DEVICE);
    TH_CHECK(st.timed_steps == timed_of_12(), "%d timed steps", (int)st.timed_steps);
    for (int k = 0; k < 2; k++) {
        const dtr_ddp_step *s = k == 0 ? &st.last : &st.average;
        TH_CHECK((s->comm_s > 0) == (th_size() > 1), "%g s of communication", s->comm_s);
        TH_CHECK(s->exposed_comm_s >= 0 && s->exposed_comm_s <= s->comm_s + 1e-3 &&
                     s->overlap >= 0 && s->overlap <= 1,
                 "%g s exposed of %g s, overlap %g", s->exposed_comm_s, s->comm_s, s->overlap);
        TH_CHECK(s->bytes == stats_of(&m, HOST).last.bytes, "%zu bytes", s->bytes);
    }
    TH_CHECK(st.average.forward_s > 0 && st.average.backward_s > 0, "%g s forward, %g s backward",
             st.average.forward_s, st.average.backward_s);
    TH_CHECK(stats_of(&m, HOST).timed_steps == 12, "not all steps of the host are timed");
    cudaEventDestroy(open);
    pair_close(&m);
}
END_TEST

/* ---- mixed precision ---- */

/* What compute reads: values in param_dtype, on the stream it names. */
static void same_shadows(const pair *m) {
    for (size_t i = 0; i < PARAMS; i++) {
        dtr_tensor *host = dtr_ddp_param(m->ddp[HOST], i, NULL);
        dtr_tensor *there = dtr_ddp_param(m->ddp[DEVICE], i, m->stream);
        TH_CHECK(host != NULL && there != NULL, "%s", dtr_last_error_message());
        dtr_tensor *read = on_gpu(dtr_tensor_dtype(there), pair_numel[i], 0, m->stream);
        TH_IS(dtr_tensor_copy(read, there, m->stream), DTR_OK); /* as compute does: no host waits */
        same_bytes(host, read, "cast parameter");
        dtr_tensor_release(read);
    }
}

/* An optimizer step of the program on both sides, with the averages in the values' own type. */
static void update_both(pair *m, bool full) {
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < PARAMS; i++) {
            dtr_tensor *g =
                full ? dtr_ddp_full_grad(m->ddp[side], i) : dtr_ddp_grad(m->ddp[side], i);
            TH_IS(dtr_tensor_axpy(m->value[side][i], -0.125, g, stream_of(m, side)), DTR_OK);
        }
    }
}

/* X2, X3, X5, CF4: casts on a stream of their own, which compute waits for; the average in both
 * types; with and without views and another type of buckets. No step waits for the device. */
START_TEST(X3_param_dtype) {
    static const struct {
        dtr_dtype param, reduce;
        bool view;
    } rows[] = {
        { DTR_BF16, DTR_F32, false },
        { DTR_F16, DTR_F16, true },
    };
    const size_t n = TH_SANITIZED ? 1 : sizeof rows / sizeof rows[0];
    for (size_t r = 0; r < n; r++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        pair m;
        o.has_param_dtype = true;
        o.param_dtype = rows[r].param;
        o.has_reduce_dtype = rows[r].reduce != rows[r].param;
        o.reduce_dtype = rows[r].reduce;
        o.grad_as_bucket_view = rows[r].view;
        pair_open(&m, &o, DTR_F32);
        TH_CHECK(dtr_ddp_param(m.ddp[DEVICE], 0, m.stream) == NULL, "a cast outside an iteration");
        TH_MESSAGE("forward_begin");
        size_t blocks = 0;
        for (int k = 0; k < 4; k++) {
            dtr_fake_cuda_log_start();
            for (int side = 0; side < 2; side++) {
                TH_IS(dtr_ddp_forward_begin(m.ddp[side]), DTR_OK);
            }
            TH_CHECK(k == 0 || dtr_fake_cuda_log_count("Synchronize") == 0, "%s",
                     dtr_fake_cuda_log_text());
            TH_CHECK(k == 0 || dtr_fake_cuda_log_count("cudaMalloc") == 0, "%s",
                     dtr_fake_cuda_log_text());
            same_shadows(&m);
            for (int side = 0; side < 2; side++) {
                TH_IS(dtr_ddp_forward_end(m.ddp[side], NULL, 0), DTR_OK);
            }
            step_both(&m, "average in param_dtype");
            for (size_t i = 0; i < PARAMS; i++) {
                same_bytes(dtr_ddp_full_grad(m.ddp[HOST], i), dtr_ddp_full_grad(m.ddp[DEVICE], i),
                           "average in the parameter's type");
            }
            TH_CHECK(k < 2 || dtr_fake_cuda_live("device") == blocks, "%zu blocks, not %zu",
                     dtr_fake_cuda_live("device"), blocks);
            blocks = dtr_fake_cuda_live("device");
            update_both(&m, true);
        }
        pair_close(&m);
    }
}
END_TEST

/* X7: a floating buffer has the other type from create on, and keeps its values. */
START_TEST(X7_buffer_dtype) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    pair m = { .step = 1 };
    TH_CHECK(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    dtr_tensor *buffer[2] = { on_host(DTR_F32, 70, DTR_MEM_DEFAULT),
                              on_gpu(DTR_F32, 70, 0, m.stream) };
    write_pattern(&m, buffer[HOST], th_rank(), 0);
    write_pattern(&m, buffer[DEVICE], th_rank(), 0);
    cudaStreamDestroy(m.stream);
    o.has_buffer_dtype = true;
    o.buffer_dtype = DTR_BF16;
    pair_open_with(&m, &o, DTR_F32, buffer);
    TH_CHECK(dtr_tensor_dtype(buffer[DEVICE]) == DTR_BF16, "the buffer kept its type");
    same_bytes(buffer[HOST], buffer[DEVICE], "buffer");
    pair_close(&m);
    dtr_tensor_release(buffer[HOST]);
    dtr_tensor_release(buffer[DEVICE]);
}
END_TEST

/* ---- comparing ---- */

/* V7: what the last steps on the module's stream wrote is compared, and a rank that is off named.
 */
START_TEST(V7_check_equal) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    bool last = th_rank() == th_size() - 1;
    pair m;
    pair_open(&m, &o, DTR_F32);
    TH_IS(dtr_ddp_check_equal(m.ddp[DEVICE]), DTR_OK);
    step_both(&m, "average");
    update_both(&m, false);
    TH_IS(dtr_ddp_check_equal(m.ddp[DEVICE]), DTR_OK);
    TH_IS(
        dtr_tensor_axpy(m.value[DEVICE][2], last ? 1 : 0, dtr_ddp_grad(m.ddp[DEVICE], 2), m.stream),
        DTR_OK);
    dtr_status want = th_size() > 1 ? DTR_ERR_MISMATCH : DTR_OK;
    TH_IS(dtr_ddp_check_equal(m.ddp[DEVICE]), want);
    if (th_size() > 1) {
        char text[64];
        snprintf(text, sizeof text, "parameter 'c' (2) differs between rank 0 and rank %d",
                 th_size() - 1);
        TH_MESSAGE(text);
    }
    pair_close(&m);
}
END_TEST

/* ---- NaN ---- */

/* A step of the device's side with a bad value as element `at` of parameter i on one rank. */
static dtr_status backward_with(pair *m, float value, int bad, size_t i, size_t at) {
    for (int k = 0; k < PARAMS; k++) {
        write_pattern(m, dtr_ddp_grad(m->ddp[DEVICE], (size_t)k), th_rank(), k);
    }
    if (th_rank() == bad) {
        float *there = dtr_tensor_data(dtr_ddp_grad(m->ddp[DEVICE], i));
        TH_CHECK(cudaMemcpyAsync(there + at, &value, sizeof value, cudaMemcpyHostToDevice,
                                 m->stream) == cudaSuccess,
                 "copy");
    }
    for (size_t k = 0; k < PARAMS; k++) {
        TH_IS(dtr_ddp_grad_ready(m->ddp[DEVICE], k, m->stream), DTR_OK);
    }
    return dtr_ddp_backward_end(m->ddp[DEVICE], m->stream);
}

/* I15, ER14: a NaN is an agreed error that names rank and parameter; the next step works. Whatever
 * the buckets are made of. */
START_TEST(I15_check_nan) {
    for (int mode = 0; mode < 4; mode += TH_SANITIZED ? 2 : 1) {
        int bad = mode % th_size();
        char word[80];
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        pair m;
        o.flags = DTR_DDP_CHECK_NAN | (mode == 2 ? DTR_DDP_PER_PARAM : 0);
        o.grad_as_bucket_view = mode == 1;
        o.has_reduce_dtype = mode == 3;
        o.reduce_dtype = DTR_BF16;
        pair_open(&m, &o, DTR_F32);
        for (int k = 0; k < 2 - mode / 2; k++) { /* before the rebuild and after */
            step_both(&m, "average beside looks for NaN");
            TH_IS(backward_with(&m, NAN, bad, 2, 4099), DTR_ERR_NAN);
            snprintf(word, sizeof word, "'c' (2) has a NaN on rank %d (element 4099 in memory",
                     bad);
            TH_MESSAGE(word);
            TH_AGREE();
        }
        step_both(&m, "average after a NaN");
        pair_close(&m);
    }
}
END_TEST

/* ---- clipping ---- */

/* SH4, X5, GF3: norms and scaled averages have the bits of the host's, in the type that a step
 * reads; a NaN is an error that names the parameter, and the next step is right. */
START_TEST(clipped) {
    static const struct {
        dtr_dtype value, param;
        bool view;
    } rows[] = {
        { DTR_F32, DTR_F32, false }, { DTR_F32, DTR_F32, true },  { DTR_F32, DTR_BF16, false },
        { DTR_F32, DTR_F16, true },  { DTR_F64, DTR_F64, false }, { DTR_BF16, DTR_BF16, true },
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        double norm[2] = { -1, -2 };
        pair m;
        o.grad_as_bucket_view = rows[r].view;
        o.has_param_dtype = rows[r].param != rows[r].value;
        o.param_dtype = rows[r].param;
        pair_open(&m, &o, rows[r].value);
        for (m.step = 0; m.step < 4; m.step++) {
            for (int side = 0; side < 2; side++) {
                TH_IS(backward_of(&m, side), DTR_OK);
                TH_IS(
                    dtr_ddp_clip_grad_norm(m.ddp[side], NULL, m.step == 2 ? 1e6 : 10, &norm[side]),
                    DTR_OK);
            }
            TH_CHECK(norm[HOST] == norm[DEVICE] && norm[HOST] > 100,
                     "the norm is %.17g, on the host %.17g", norm[DEVICE], norm[HOST]);
            for (size_t i = 0; i < PARAMS; i++) {
                same_bytes(dtr_ddp_full_grad(m.ddp[HOST], i), dtr_ddp_full_grad(m.ddp[DEVICE], i),
                           "clipped average");
            }
            TH_IS(dtr_ddp_clip_grad_norm(m.ddp[DEVICE], NULL, 0, &norm[DEVICE]), DTR_OK);
            TH_CHECK(m.step == 2 ? norm[HOST] == norm[DEVICE] : fabs(norm[DEVICE] - 10) < 0.05,
                     "the norm is %g after clipping", norm[DEVICE]);
            TH_AGREE();
        }
        if (rows[r].param == DTR_F32) {
            TH_IS(backward_with(&m, NAN, th_size() - 1, 2, 4099), DTR_OK);
            TH_IS(dtr_ddp_clip_grad_norm(m.ddp[DEVICE], NULL, 10, NULL), DTR_ERR_NAN);
            TH_MESSAGE("1 NaN and 0 infinite elements, the first in parameter 'c' (2)");
            step_both(&m, "average after a NaN");
        }
        pair_close(&m);
    }
}
END_TEST

/* ---- hooks ---- */

/* *state: fail on the last rank. */
static dtr_status sum_then_divide(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    return *(bool *)state && th_rank() == th_size() - 1 ? DTR_ERR_STATE
                                                        : pair_sum_then_divide(NULL, b, work);
}

/* A step of both sides that queues all and waits for nothing, but in the first two. */
static void hooked_step(pair *m, const char *name) {
    TH_IS(backward_of(m, HOST), DTR_OK);
    for (int i = PARAMS; i-- > 0;) {
        write_pattern(m, dtr_ddp_grad(m->ddp[DEVICE], (size_t)i), th_rank(), i);
    }
    dtr_fake_cuda_log_start();
    for (size_t i = PARAMS; i-- > 0;) { /* in the host's order, which decides on the buckets */
        TH_IS(dtr_ddp_grad_ready(m->ddp[DEVICE], i, m->stream), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(m->ddp[DEVICE], m->stream), DTR_OK);
    if (m->step > 1 && !staged()) {
        TH_CHECK(dtr_fake_cuda_log_count("Synchronize") == 0, "%s: %s", name,
                 dtr_fake_cuda_log_text());
    }
    same_gradients(m, name);
    m->step++;
}

/* Q1, Q4: a hook of two steps, with and without views; where it fails on one rank all are told,
 * and the next step is right. */
START_TEST(Q1_hook_of_the_program) {
    for (int view = 0; view < 2; view++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        bool fail = false;
        pair m;
        o.grad_as_bucket_view = view;
        pair_open(&m, &o, DTR_F32);
        for (int side = 0; side < 2; side++) {
            TH_IS(dtr_ddp_register_hook(m.ddp[side], sum_then_divide, &fail, "two"), DTR_OK);
        }
        for (int k = 0; k < 4; k++) {
            hooked_step(&m, "hook of two steps");
        }
        fail = true;
        for (int side = 0; side < 2; side++) {
            TH_IS(backward_of(&m, side), DTR_ERR_STATE);
            TH_MESSAGE("hook 'two' failed on bucket");
        }
        fail = false;
        m.step = 0;
        hooked_step(&m, "after a failure");
        dtr_ddp_stats st = stats_of(&m, DEVICE);
        TH_CHECK(st.timed_steps == 5, "%d timed steps", (int)st.timed_steps);
        pair_close(&m);
    }
}
END_TEST

/* Q5-Q7, Q10, Q13, Q14, PS2: the library's own hooks; PowerSGD with what it does not compress. */
START_TEST(Q5_hooks_of_the_library) {
    static const struct {
        dtr_ddp_builtin which;
        const char *name;
        uint64_t start;
    } hooks[] = {
        { DTR_HOOK_ALLREDUCE, "allreduce", 0 },
        { DTR_HOOK_FP16, "fp16", 0 },
        { DTR_HOOK_BF16, "bf16", 0 },
        { DTR_HOOK_NOOP, "noop", 0 },
        { DTR_HOOK_POST_LOCAL_SGD, "local", 2 },
        { DTR_HOOK_Q8, "q8", 0 },
        { DTR_HOOK_POWERSGD, "powersgd", 2 },
    };
    for (size_t h = 0; h < sizeof hooks / sizeof hooks[0]; h++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        dtr_hook_options given = DTR_HOOK_OPTIONS_INIT;
        pair m;
        given.start_iteration = hooks[h].start;
        pair_open(&m, &o, DTR_F32);
        for (int side = 0; side < 2; side++) {
            TH_IS(dtr_ddp_register_builtin_hook(m.ddp[side], hooks[h].which, &given), DTR_OK);
        }
        for (int k = 0; k < (TH_SANITIZED ? 3 : 4); k++) {
            hooked_step(&m, hooks[h].name);
        }
        pair_close(&m);
    }
}
END_TEST

/* Q10, Q8: every type of gradients is coded as on the host; what has no code is an error of all
 * ranks that names the parameter, and the next step works. */
START_TEST(Q10_codes_of_8_bits) {
    static const dtr_dtype types[] = { DTR_F16, DTR_BF16, DTR_F64, DTR_F32 };
    for (size_t t = TH_SANITIZED ? 2 : 0; t < sizeof types / sizeof types[0]; t++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        char word[80];
        pair m;
        pair_open(&m, &o, types[t]);
        for (int side = 0; side < 2; side++) {
            TH_IS(dtr_ddp_register_builtin_hook(m.ddp[side], DTR_HOOK_Q8, NULL), DTR_OK);
        }
        hooked_step(&m, "codes");
        hooked_step(&m, "codes after the rebuild");
        for (int k = 0; k < 2 && types[t] == DTR_F32; k++) {
            int bad = k % th_size();
            TH_IS(backward_with(&m, k == 0 ? NAN : -INFINITY, bad, 2, 4097), DTR_ERR_NAN);
            snprintf(word, sizeof word, "on rank %d: the gradient of parameter 'c' (2) is NaN or",
                     bad);
            TH_MESSAGE(word);
            TH_AGREE();
        }
        hooked_step(&m, "codes after an error");
        pair_close(&m);
    }
}
END_TEST

/* ---- limits of NCCL ---- */

/* GF2: what the caller's group may take of the device, the module's own may as well. */
START_TEST(GF2_limit_of_multiprocessors) {
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    dtr_group *g = NULL;
    dtr_ddp *ddp = NULL;
    o.nccl_min_ctas = 2;
    o.nccl_max_ctas = 3;
    TH_IS(dtr_group_create(th_world(), NULL, th_size(), &o, &g), DTR_OK);
    dtr_param p = { "a", on_gpu(DTR_F32, 64, 1, NULL), NULL, 0 };
    dtr_fake_cuda_log_start();
    TH_IS(dtr_ddp_create(g, &p, 1, NULL, &ddp), DTR_OK);
    int made = dtr_fake_cuda_log_count("ncclCommInitRankConfig rank");
    int limited = dtr_fake_cuda_log_count("CTAs 2 to 3");
    TH_CHECK(made < 0 || (made == limited && made == (th_size() > 1 && !staged())), "%d of %d: %s",
             limited, made, dtr_fake_cuda_log_text());
    TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    dtr_tensor_release(p.value);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "ddp pairs", 110);
    th_add(tc, LG7_times_from_events, 1, 0);
    th_add(tc, X3_param_dtype, 1, 0);
    th_add(tc, X7_buffer_dtype, 1, 0);
    th_add(tc, V7_check_equal, 1, 0);
    th_add(tc, Q1_hook_of_the_program, 1, 0);
    th_add(tc, Q5_hooks_of_the_library, 1, 0);
    TCase *nan = th_case(s, "NaN", 110);
    th_add(nan, I15_check_nan, 1, 0);
    th_add(nan, clipped, 1, 0);
    th_add(nan, Q10_codes_of_8_bits, 1, 0);
    th_add(nan, GF2_limit_of_multiprocessors, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_pairs", make);
}
