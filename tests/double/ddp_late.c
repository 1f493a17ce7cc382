/* Errors of a module on the device that are known one synchronised step later
 * (DTR_DDP_LATE_ERRORS), beside the same module on the host. A rank that comes to
 * dtr_ddp_backward_end after all others have left it shows that they ask it for nothing. The same
 * program runs over nccl and over stage (DTR_TEST_STAGE=1), where the host waits for the data of
 * all ranks. */
#include <dtr/optim.h>

#include "ddp_pair.h"
#include "delay.h"
#include "fake_cuda.h"

enum { SIDES = 2, NOBODY = -1 };
static const size_t delayed[] = { 1, 2 };

typedef struct fixture {
    pair m;
    bool delays;
    dtr_tensor *sum[SIDES][PARAMS]; /* of all averages, in the order of the stream */
} fixture;

static void open_fixture(fixture *f, dtr_ddp_options o, dtr_dtype type) {
    o.flags |= DTR_DDP_LATE_ERRORS;
    f->delays = o.n_delayed > 0;
    pair_open(&f->m, &o, type);
    for (int side = 0; side < SIDES; side++) {
        for (int i = 0; i < PARAMS; i++) {
            f->sum[side][i] = side == HOST ? on_host(type, pair_numel[i], DTR_MEM_DEFAULT)
                                           : on_gpu(type, pair_numel[i], 0, f->m.stream);
            TH_IS(dtr_tensor_fill(f->sum[side][i], 0, stream_of(&f->m, side)), DTR_OK);
        }
    }
}

static void close_fixture(fixture *f) {
    pair_close(&f->m);
    for (int i = 0; i < SIDES * PARAMS; i++) {
        dtr_tensor_release(f->sum[i / PARAMS][i % PARAMS]);
    }
    TH_CHECK(dtr_fake_cuda_hidden_syncs() == 0, "a copy has made the host wait");
}

static void forward(const fixture *f, int side) {
    TH_IS(dtr_ddp_forward_begin(f->m.ddp[side]), DTR_OK);
    TH_IS(dtr_ddp_forward_end(f->m.ddp[side], NULL, 0), DTR_OK);
}

/* A multiple of the number of ranks, whose average is exact whichever way it is made. */
static int gradient(const fixture *f, int rank, size_t i) {
    return th_size() * (rank + f->m.step + (int)i + 1);
}

/* Delayed ones are not: the last parameter stands for them. */
static bool reported(const fixture *f, size_t i) {
    return !f->delays || (i != delayed[0] && i != delayed[1]);
}

static void write_all(const fixture *f, int side) {
    for (size_t i = PARAMS; i-- > 0;) {
        TH_IS(dtr_tensor_fill(dtr_ddp_grad(f->m.ddp[side], i), gradient(f, th_rank(), i),
                              stream_of(&f->m, side)),
              DTR_OK);
    }
}

/* All but one, last to first. */
static void report(const fixture *f, int side, int missing) {
    for (size_t i = PARAMS; i-- > 0;) {
        if ((int)i != missing && reported(f, i)) {
            TH_IS(dtr_ddp_grad_ready(f->m.ddp[side], i, stream_of(&f->m, side)), DTR_OK);
        }
    }
}

static void gradients(const fixture *f, int side, int missing) {
    write_all(f, side);
    report(f, side, missing);
}

static dtr_status end(const fixture *f, int side) {
    return dtr_ddp_backward_end(f->m.ddp[side], stream_of(&f->m, side));
}

static void use(const fixture *f, int side) {
    for (size_t i = 0; i < PARAMS; i++) {
        TH_IS(dtr_tensor_axpy(f->sum[side][i], 1, dtr_ddp_full_grad(f->m.ddp[side], i),
                              stream_of(&f->m, side)),
              DTR_OK);
    }
}

static dtr_status whole(const fixture *f, int side, int missing) {
    forward(f, side);
    gradients(f, side, missing);
    return end(f, side);
}

/* A step in which one rank leaves a parameter out; it alone is told at once. */
static void step_without(const fixture *f, bool me, int param) {
    TH_IS(whole(f, DEVICE, me ? param : NOBODY), me ? DTR_ERR_STATE : DTR_OK);
}

static void step_sides(fixture *f) {
    for (int side = 0; side < SIDES; side++) {
        TH_IS(whole(f, side, NOBODY), DTR_OK);
        use(f, side);
    }
    f->m.step++;
}

static void same_sums(const fixture *f) {
    for (size_t i = 0; i < PARAMS; i++) {
        same_bytes(f->sum[HOST][i], f->sum[DEVICE][i], "sum of averages");
    }
}

/* All ranks have the same last error, which says this. */
static void same_text(const char *word) {
    uint64_t all[16] = { 0 }, hash = 14695981039346656037u;
    TH_MESSAGE(word);
    for (const char *c = dtr_last_error_message(); *c != '\0'; c++) {
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    }
    th_gather_u64(hash, all);
    for (int r = 1; r < th_size(); r++) {
        TH_CHECK(all[r] == all[0], "rank %d has another text than rank 0: %s", r,
                 dtr_last_error_message());
    }
}

static const char *text_of(int rank, int param, char *text, size_t cap) {
    snprintf(text, cap,
             "in the synchronised step before: parameter '%s' (%d) was not ready on rank %d",
             pair_names[param], param, rank);
    return text;
}

/* ---- ways that buckets travel ---- */

typedef enum mode { PLAIN, VIEW, WIDE, NARROW, SUM, STATIC, CAST, DELAYED, MODES } mode;

static dtr_ddp_options options_of(mode k) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    if (k == DELAYED) {
        o = delay(delayed, 2, 3);
    }
    o.grad_as_bucket_view = k == VIEW;
    o.has_reduce_dtype = k == WIDE || k == NARROW;
    o.reduce_dtype = k == WIDE ? DTR_F64 : DTR_F16;
    o.flags = k == SUM ? DTR_DDP_SUM : 0;
    o.static_graph = k == STATIC;
    o.has_param_dtype = k == CAST;
    o.param_dtype = DTR_BF16;
    return o;
}

/* ER10, Y3 with the flag: the same bits as on the host, though another rank of them in turn
 * begins to end its backward pass when the others have left theirs. The host waits for no device.
 */
static void asks_nobody(mode k) {
    enum { STEPS = 7 };
    dtr_ddp_options o = options_of(k);
    dtr_ddp_stats st = DTR_DDP_STATS_INIT;
    fixture f = { .m = { .step = 0 } };
    o.timeout_s = 20;
    open_fixture(&f, o, DTR_F32);
    while (f.m.step < STEPS) {
        const bool early = f.m.step % th_size() != th_rank();
        TH_IS(whole(&f, HOST, NOBODY), DTR_OK);
        use(&f, HOST);
        forward(&f, DEVICE);
        write_all(&f, DEVICE);
        const bool waits = f.m.step == 0 || staged(); /* for the rebuild, or for the data */
        if (!waits && !early) {
            th_barrier();
        }
        report(&f, DEVICE, NOBODY);
        dtr_fake_cuda_log_start();
        TH_IS(end(&f, DEVICE), DTR_OK);
        TH_CHECK(waits || dtr_fake_cuda_log_count("Synchronize") == 0, "mode %d: %s", (int)k,
                 dtr_fake_cuda_log_text());
        if (!waits && early) {
            th_barrier();
        }
        use(&f, DEVICE);
        f.m.step++;
    }
    same_sums(&f);
    TH_IS(dtr_ddp_get_stats(f.m.ddp[DEVICE], &st), DTR_OK);
    TH_CHECK(st.steps == STEPS && !st.has_error && strstr(st.description, " late_errors") != NULL,
             "%d steps: %s", (int)st.steps, st.description);
    close_fixture(&f);
}

START_TEST(ER10_asks_nobody) {
    for (mode k = PLAIN; k < MODES; k++) {
        asks_nobody(k);
    }
}
END_TEST

/* GF3: a step is queued before the device has begun, and the forward pass of the next one. */
START_TEST(GF3_the_host_goes_on) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    cudaEvent_t open;
    cudaStream_t slow;
    fixture f = { .m = { .step = 0 } };
    if (staged()) {
        return; /* the host moves the data and waits for it */
    }
    open_fixture(&f, o, DTR_F32);
    step_sides(&f); /* with the rebuild */
    TH_CHECK(cudaEventCreateWithFlags(&open, cudaEventDisableTiming) == cudaSuccess, "event");
    TH_CHECK(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking) == cudaSuccess, "stream");
    for (int k = 0; k < 3; k++) {
        dtr_fake_cuda_hold(open, 1);
        cudaEventRecord(open, slow);
        cudaStreamWaitEvent(f.m.stream, open, 0);
        TH_IS(whole(&f, HOST, NOBODY), DTR_OK);
        use(&f, HOST);
        TH_IS(whole(&f, DEVICE, NOBODY), DTR_OK);
        use(&f, DEVICE);
        f.m.step++;
        forward(&f, DEVICE);
        gradients(&f, DEVICE, NOBODY);
        TH_CHECK(cudaStreamQuery(f.m.stream) == cudaErrorNotReady, "it has run");
        dtr_fake_cuda_hold(open, 0);
        TH_IS(whole(&f, HOST, NOBODY), DTR_OK);
        use(&f, HOST);
        TH_IS(end(&f, DEVICE), DTR_OK);
        use(&f, DEVICE);
        f.m.step++;
    }
    same_sums(&f);
    close_fixture(&f);
    cudaEventDestroy(open);
    cudaStreamDestroy(slow);
}
END_TEST

/* ---- errors ---- */

/* What the averages are when rank `bad` has contributed zeros for one parameter. */
static void check_averages(const fixture *f, const dtr_ddp_options *o, int bad, int missing) {
    const float share = o->flags & DTR_DDP_SUM ? 1 : (float)th_size();
    for (int i = 0; i < PARAMS; i++) {
        float sum = 0;
        for (int r = 0; r < th_size(); r++) {
            sum += i == missing && r == bad ? 0 : (float)gradient(f, r, (size_t)i);
        }
        check_each(dtr_ddp_full_grad(f->m.ddp[DEVICE], (size_t)i), sum / share, "average",
                   pair_names[i]);
    }
}

/* ER10: a gradient that one rank does not report is told by that rank at once, and by all ranks at
 * the end of the next step, with one text; that step and the ones behind it are right. Y3: as many
 * collectives as ever. */
static void one_later(mode k, dtr_dtype type) {
    const dtr_ddp_options o = options_of(k);
    char text[160];
    fixture f = { .m = { .step = 0 } };
    const bool alone = th_size() == 1, graph = k == STATIC;
    const dtr_status want = graph ? DTR_ERR_GRAPH : DTR_ERR_STATE;
    open_fixture(&f, o, type);
    step_sides(&f);
    for (int bad = 0; bad < th_size(); bad++) {
        const bool me = bad == th_rank();
        dtr_ddp_stats st = DTR_DDP_STATS_INIT;
        TH_IS(whole(&f, DEVICE, me ? 1 : NOBODY), me ? want : DTR_OK);
        TH_CHECK(!me || strncmp(dtr_last_error_message(), "in the", 6) != 0, "%s",
                 dtr_last_error_message());
        if (!alone) {
            check_averages(&f, &o, bad, 1);
        }
        f.m.step++;
        TH_IS(whole(&f, DEVICE, NOBODY), alone ? DTR_OK : want);
        if (!alone && graph) {
            snprintf(text, sizeof text, "before: parameter 'b' (1) was reported 0 times on rank %d",
                     bad);
        }
        if (!alone) {
            same_text(graph ? text : text_of(bad, 1, text, sizeof text));
        }
        TH_IS(dtr_ddp_get_stats(f.m.ddp[DEVICE], &st), DTR_OK);
        TH_CHECK(alone || staged() || st.last.collectives == st.last.buckets,
                 "%zu collectives for %zu buckets", st.last.collectives, st.last.buckets);
        check_averages(&f, &o, NOBODY, NOBODY);
        f.m.step++;
        step_sides(&f);
        step_sides(&f);
        same_sums(&f);
        TH_AGREE();
    }
    close_fixture(&f);
}

START_TEST(ER10_one_step_later) {
    for (mode k = PLAIN; k < CAST; k++) {
        one_later(k, DTR_F32);
    }
}
END_TEST

START_TEST(ER10_types) {
    static const dtr_dtype types[] = { DTR_F16, DTR_BF16, DTR_F64 };
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        one_later(VIEW, types[k]);
    }
}
END_TEST

/* ER10: errors in steps that follow each other come one after the other; of several ranks the
 * lowest is named. */
START_TEST(ER10_step_after_step) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    char text[160];
    fixture f = { .m = { .step = 0 } };
    open_fixture(&f, o, DTR_F32);
    step_sides(&f);
    const int last = th_size() - 1;
    const bool me = th_rank() == last;
    step_without(&f, me, 1);
    TH_IS(whole(&f, DEVICE, 2), DTR_ERR_STATE); /* on every rank */
    same_text(text_of(last, 1, text, sizeof text));
    TH_IS(whole(&f, DEVICE, th_rank() == 0 ? 3 : NOBODY), DTR_ERR_STATE);
    same_text(text_of(0, 2, text, sizeof text));
    snprintf(text, sizeof text, "(and on %d more of %d ranks)", last, th_size());
    TH_MESSAGE(text);
    TH_IS(whole(&f, DEVICE, NOBODY), DTR_ERR_STATE);
    same_text(text_of(0, 3, text, sizeof text));
    TH_IS(whole(&f, DEVICE, NOBODY), DTR_OK);
    TH_IS(dtr_ddp_check_equal(f.m.ddp[DEVICE]), DTR_OK);
    close_fixture(&f);
}
END_TEST

/* ER10: dtr_ddp_check_equal tells what the last step has left, once; steps without sync and
 * evaluation do not come between. A module may be destroyed, or moved, before anybody has asked. */
START_TEST(ER10_the_last_step) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    char text[160];
    for (int bad = 0; bad < th_size(); bad++) {
        fixture f = { .m = { .step = 0 } };
        const bool me = th_rank() == bad;
        open_fixture(&f, o, DTR_F32);
        dtr_ddp *ddp = f.m.ddp[DEVICE];
        step_sides(&f);
        step_without(&f, me, 1);
        TH_IS(dtr_ddp_check_equal(ddp), DTR_ERR_STATE);
        same_text(text_of(bad, 1, text, sizeof text));
        TH_IS(dtr_ddp_check_equal(ddp), DTR_OK);
        step_without(&f, me, 2);
        TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK);
        TH_IS(whole(&f, DEVICE, NOBODY), DTR_OK);
        TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
        TH_IS(dtr_ddp_set_eval(ddp, true), DTR_OK);
        forward(&f, DEVICE);
        TH_IS(dtr_ddp_set_eval(ddp, false), DTR_OK);
        TH_IS(whole(&f, DEVICE, NOBODY), DTR_ERR_STATE);
        same_text(text_of(bad, 2, text, sizeof text));
        step_without(&f, me, 3);
        TH_IS(dtr_ddp_set_group(ddp, th_group()), DTR_OK);
        TH_IS(whole(&f, DEVICE, NOBODY), DTR_OK);
        step_without(&f, me, 3);
        close_fixture(&f);
    }
}
END_TEST

/* ER10, V7: the rank with the error steps like the others, and the ranks' parameters stay equal; so
 * are the norms that gradients are clipped by. */
START_TEST(ER10_all_step) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_optim_options rule = DTR_OPTIM_OPTIONS_INIT;
    char text[160];
    fixture f = { .m = { .step = 0 } };
    dtr_optim *optim = NULL;
    rule.rate = 0.125;
    rule.momentum = 0.5;
    rule.max_norm = 40;
    open_fixture(&f, o, DTR_F32);
    dtr_ddp *ddp = f.m.ddp[DEVICE];
    TH_IS(dtr_optim_create(ddp, NULL, &rule, &optim), DTR_OK);
    TH_IS(whole(&f, DEVICE, NOBODY), DTR_OK);
    TH_IS(dtr_optim_step(optim), DTR_OK);
    for (int bad = 0; bad < th_size(); bad++) {
        const bool me = th_rank() == bad;
        step_without(&f, me, 1);
        TH_IS(dtr_optim_step(optim), DTR_OK);
        TH_IS(whole(&f, DEVICE, NOBODY), DTR_ERR_STATE);
        same_text(text_of(bad, 1, text, sizeof text));
        TH_IS(dtr_optim_step(optim), DTR_OK);
        TH_IS(dtr_ddp_check_equal(ddp), DTR_OK);
        f.m.step++;
    }
    TH_IS(dtr_optim_destroy(optim), DTR_OK);
    close_fixture(&f);
}
END_TEST

/* ---- what keeps the round of messages ---- */

static dtr_status no_step(void *state, size_t i, dtr_tensor *value, dtr_tensor *grad,
                          void *stream) {
    (void)state, (void)i, (void)value, (void)grad, (void)stream;
    return DTR_OK;
}

static dtr_status no_buffers(void *state, dtr_tensor *const *buffers, size_t n, dtr_work **work) {
    (void)state, (void)buffers, (void)n, (void)work;
    return DTR_OK;
}

typedef enum kept {
    FIRST,
    FIRST_STATIC,
    UNUSED,
    PER_PARAM,
    NAN_CHECK,
    STEPS,
    HOOK,
    TWO,
    BUFFERS,
    KEPT
} kept;

static void add(const fixture *f, kept k) {
    static const size_t everything[PARAMS] = { 0, 1, 2, 3 };
    dtr_ddp *ddp = f->m.ddp[DEVICE];
    if (k == STEPS) {
        TH_IS(dtr_ddp_set_step(ddp, no_step, NULL, everything, PARAMS), DTR_OK);
    } else if (k == HOOK) {
        TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_BF16, NULL), DTR_OK);
    } else if (k == TWO) {
        TH_IS(dtr_ddp_register_hook(ddp, pair_sum_then_divide, NULL, "two"), DTR_OK);
    } else if (k == BUFFERS) {
        TH_IS(dtr_ddp_register_buffer_hook(ddp, no_buffers, NULL, DTR_PRE_FORWARD), DTR_OK);
    }
}

/* ER10, ER11: the error is that of the same step where the flag cannot travel, and one that was
 * still to be told comes with that step. */
START_TEST(ER11_same_step) {
    char text[160];
    for (int k = 0; k < KEPT * th_size(); k++) {
        const kept what = (kept)(k / th_size());
        const bool me = th_rank() == k % th_size();
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        fixture f = { .m = { .step = 0 } };
        o.static_graph = what == FIRST_STATIC;
        o.find_unused = what == UNUSED;
        o.flags = what == PER_PARAM ? DTR_DDP_PER_PARAM : what == NAN_CHECK ? DTR_DDP_CHECK_NAN : 0;
        open_fixture(&f, o, DTR_F32);
        if (what > FIRST_STATIC) {
            TH_IS(whole(&f, DEVICE, NOBODY), DTR_OK);
        }
        const bool late = what >= STEPS && th_size() > 1;
        if (late) {
            step_without(&f, me, 1);
        }
        add(&f, what);
        if (late) {
            TH_IS(whole(&f, DEVICE, NOBODY), DTR_ERR_STATE);
            same_text(text_of(k % th_size(), 1, text, sizeof text));
        }
        forward(&f, DEVICE);
        gradients(&f, DEVICE, NOBODY);
        if (me && what == FIRST_STATIC) { /* counts what comes; a wrong index is only local */
            TH_IS(dtr_ddp_grad_ready(f.m.ddp[DEVICE], PARAMS, f.m.stream), DTR_ERR_ARG);
        } else if (me) {
            TH_IS(dtr_ddp_grad_ready(f.m.ddp[DEVICE], 1, f.m.stream), DTR_ERR_STATE);
        }
        TH_IS(end(&f, DEVICE), what == FIRST_STATIC ? DTR_OK : DTR_ERR_STATE);
        if (what != FIRST_STATIC) {
            same_text("parameter 'b' (1) became ready twice on rank");
        }
        TH_IS(whole(&f, DEVICE, NOBODY), DTR_OK);
        close_fixture(&f);
    }
}
END_TEST

/* J15: during a join the steps have their own round, also for what is left of the step before. */
START_TEST(J15_join) {
    char text[160];
    for (int bad = 0; bad < th_size(); bad++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        fixture f = { .m = { .step = 0 } };
        const bool me = th_rank() == bad;
        open_fixture(&f, o, DTR_F32);
        dtr_ddp *ddp = f.m.ddp[DEVICE];
        step_sides(&f);
        step_without(&f, me, 1);
        TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_OK);
        for (int k = 0; k < 1 + th_rank(); k++) {
            TH_IS(whole(&f, DEVICE, NOBODY), k == 0 ? DTR_ERR_STATE : DTR_OK);
            if (k == 0) {
                same_text(text_of(bad, 1, text, sizeof text));
            }
        }
        TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
        step_without(&f, me, 1);
        TH_IS(whole(&f, DEVICE, NOBODY), DTR_ERR_STATE);
        close_fixture(&f);
    }
}
END_TEST

/* ---- groups that break ---- */

/* ER16: a rank that does not come is missed one step later, at the limit; an abort is seen. */
START_TEST(ER16_nobody_comes) {
    for (int k = 0; k < 2; k++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        fixture f = { .m = { .step = 0 } };
        const bool me = th_rank() == th_size() - 1;
        o.timeout_s = 1.5;
        open_fixture(&f, o, DTR_F32);
        step_sides(&f);
        step_sides(&f);
        dtr_status s = DTR_OK;
        for (int step = 0; step < 3 && s == DTR_OK && !me; step++) {
            s = whole(&f, DEVICE, NOBODY);
        }
        TH_CHECK(me || s == DTR_ERR_TIMEOUT || s == DTR_ERR_REMOTE || s == DTR_ERR_ABORTED,
                 "%s: %s", dtr_status_name(s), dtr_last_error_message());
        if (!me) {
            TH_IS(dtr_ddp_forward_begin(f.m.ddp[DEVICE]), s);
        }
        if (k == 0) {
            th_barrier();
        }
        (void)dtr_ddp_destroy(f.m.ddp[DEVICE]);
        f.m.ddp[DEVICE] = NULL;
        TH_CHECK(cudaDeviceSynchronize() == cudaSuccess, "synchronize");
        TH_IS(dtr_barrier(th_group(), NULL, NULL), DTR_OK);
        close_fixture(&f);
    }
}
END_TEST

/* V1: ranks that differ in the option are told. */
START_TEST(V1_differs) {
    const dtr_ddp_options o = { .struct_size = sizeof o,
                                .flags = th_rank() == 0 ? DTR_DDP_LATE_ERRORS : 0 };
    dtr_param p = { "a", on_gpu(DTR_F32, 8, 0, NULL), NULL, 0 };
    dtr_ddp *ddp = NULL;
    TH_IS(dtr_ddp_create(th_group(), &p, 1, &o, &ddp), DTR_ERR_MISMATCH);
    TH_MESSAGE("option flags differs: 16 on rank 0");
    dtr_tensor_release(p.value);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "late errors", 110);
    th_add(tc, ER10_asks_nobody, 1, 0);
    th_add(tc, GF3_the_host_goes_on, 1, 0);
    th_add(tc, ER10_one_step_later, 1, 0);
    th_add(tc, ER10_types, 1, 0);
    th_add(tc, ER10_step_after_step, 2, 0);
    th_add(tc, ER10_the_last_step, 2, 0);
    th_add(tc, ER10_all_step, 2, 0);
    th_add(tc, ER11_same_step, 1, 0);
    th_add(tc, J15_join, 2, 0);
    th_add(tc, ER16_nobody_comes, 2, 0);
    th_add(tc, V1_differs, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_late", make);
}
