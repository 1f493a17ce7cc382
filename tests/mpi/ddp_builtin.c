/* The built-in communication hooks and their error bounds (T69), PowerSGD (T70). */
#define DTR_NO_CALL_SITE /* places are given by hand here */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"
#include "hooks/hooks.h"
#include "recorder/recording.h"

static dtr_ddp_options small_buckets(bool view) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 1500;
    o.grad_as_bucket_view = view;
    return o;
}

/* ---- T69: built-in hooks ---- */

static void random_gradients(dtr_ddp *ddp, const synth *s, int step, int r, size_t i, float *out) {
    th_rng g = { (uint64_t)(1 + r * 1000 + step * 77 + (int)i) };
    (void)ddp;
    th_random_floats(out, DTR_F32, dtr_tensor_numel(s->params[i].value), &g, -6, 2);
}

static uint64_t bits(const void *data, size_t n) {
    uint64_t h = 1469598103934665603u;
    for (size_t k = 0; k < n; k++) {
        h = (h ^ ((const unsigned char *)data)[k]) * 1099511628211u;
    }
    return h;
}

static void equal_ranks(const float *data, size_t n) {
    uint64_t all[16];
    th_gather_u64(bits(data, n * 4), all);
    for (int r = 1; r < th_size(); r++) {
        TH_CHECK(all[r] == all[0], "rank %d has other bits", r);
    }
}

/* One step of random gradients; mean and mean magnitude of every element by brute force. */
static void random_step(dtr_ddp *ddp, const synth *s, int step) {
    for (size_t i = s->n; i-- > 0;) {
        random_gradients(ddp, s, step, th_rank(), i, grad_of(ddp, i));
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
}

static void brute(const synth *s, int step, size_t i, double *mean, double *size) {
    size_t n = dtr_tensor_numel(s->params[i].value);
    float *one = malloc(n * sizeof *one);
    memset(mean, 0, n * sizeof *mean);
    memset(size, 0, n * sizeof *size);
    for (int r = 0; r < th_size(); r++) {
        random_gradients(NULL, s, step, r, i, one);
        for (size_t k = 0; k < n; k++) {
            mean[k] += (double)one[k] / th_size();
            size[k] += fabs((double)one[k]) / th_size();
        }
    }
    free(one);
}

START_TEST(average_hook) { /* Q5 */
    synth s = synth_equal(5, 200);
    dtr_ddp_options o = small_buckets(false);
    dtr_ddp *plain = ddp_new(&s, &o), *hooked = ddp_new(&s, &o);
    TH_IS(dtr_ddp_register_builtin_hook(hooked, DTR_HOOK_ALLREDUCE, NULL), DTR_OK);
    TH_CHECK(strcmp(stats_of(hooked).hook, "allreduce") == 0, "name");
    for (int step = 0; step < 3; step++) {
        random_step(plain, &s, step);
        random_step(hooked, &s, step);
        for (size_t i = 0; i < 5; i++) {
            TH_CHECK(memcmp(grad_of(plain, i), grad_of(hooked, i), 800) == 0, "p%zu differs", i);
        }
    }
    TH_OK(dtr_ddp_destroy(plain));
    TH_OK(dtr_ddp_destroy(hooked));
    synth_free(&s);
}
END_TEST

START_TEST(cast_hooks) { /* Q6, Q8, Q9 */
    for (int k = 0; k < 4; k++) {
        dtr_dtype d = k % 2 ? DTR_BF16 : DTR_F16;
        synth s = synth_equal(5, 200);
        dtr_ddp_options o = small_buckets(k == 3);
        dtr_ddp *ddp = ddp_new(&s, &o);
        if (k < 2) {
            TH_IS(dtr_ddp_register_builtin_hook(ddp, k ? DTR_HOOK_BF16 : DTR_HOOK_FP16, NULL),
                  DTR_OK);
        } else {
            dtr_ddp_hook fn = NULL;
            void *state = NULL;
            TH_IS(dtr_ddp_wrap_hook(DTR_F32, hook_of_three_steps, NULL, &fn, &state), DTR_ERR_ARG);
            TH_IS(dtr_ddp_wrap_hook(d, NULL, NULL, &fn, &state), DTR_ERR_ARG);
            TH_IS(dtr_ddp_wrap_hook(d, hook_of_three_steps, NULL, &fn, &state),
                  DTR_OK); /* sum of means */
            TH_IS(dtr_ddp_register_hook(ddp, fn, state, "wrapped"), DTR_OK);
        }
        for (int step = 0; step < 3; step++) {
            synth_backward(ddp, &s, step); /* small integers: exact in both types */
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            for (size_t i = 0; i < 5; i++) {
                for (size_t e = 0; e < 200; e++) {
                    uint16_t h = 0;
                    th_set(&h, d, 0, synth_mean(i, e, th_size(), step, th_size(), DTR_F32), 0);
                    double want = th_get(&h, d, 0, false);
                    if (k >= 2) {
                        th_set(&h, d, 0, (double)((float)want * (float)th_size()), 0);
                        want = th_get(&h, d, 0, false);
                    }
                    TH_CHECK(grad_of(ddp, i)[e] == want, "%s: %g, want %g", dtr_dtype_name(d),
                             grad_of(ddp, i)[e], want);
                }
            }
            TH_AGREE();
        }
        if (k == 1) { /* 1 + 2^-9 is 1 in bf16 */
            for (size_t i = 5; i-- > 0;) {
                grad_of(ddp, i)[0] = 1 + 0x1p-9f;
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            }
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            TH_CHECK(grad_of(ddp, 2)[0] == 1, "%.9g", grad_of(ddp, 2)[0]);
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

START_TEST(code_hook) { /* Q10 */
    synth s = synth_equal(5, 200);
    static const size_t one[] = { 1 };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.plan_limits = one; /* a bucket for each parameter */
    o.n_plan_limits = 1;
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_Q8, NULL), DTR_OK);
    double mean[200], size[200];
    float part[200];
    for (int step = 0; step < 4; step++) {
        random_step(ddp, &s, step);
        for (size_t i = 0; i < 5; i++) {
            double scales = 0;
            for (int r = 0; r < th_size(); r++) {
                float low = 0, high = 0;
                random_gradients(ddp, &s, step, r, i, part);
                for (int k = 0; k < 200; k++) {
                    low = fminf(low, part[k]);
                    high = fmaxf(high, part[k]);
                }
                scales += ((double)high - (double)low) / 255;
            }
            brute(&s, step, i, mean, size);
            for (int k = 0; k < 200; k++) {
                double bound =
                    scales * (0.5 + 0x1p-14) / th_size() + (th_size() + 4) * 0x1p-24 * size[k];
                TH_CHECK(fabs(grad_of(ddp, i)[k] - mean[k]) <= bound, "off by %g, allowed %g",
                         fabs(grad_of(ddp, i)[k] - mean[k]), bound);
            }
            equal_ranks(grad_of(ddp, i), 200);
        }
        TH_AGREE();
    }
    for (size_t i = 5; i-- > 0;) { /* all zero stays zero */
        memset(grad_of(ddp, i), 0, 800);
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_CHECK(grad_of(ddp, 3)[9] == 0, "%g", grad_of(ddp, 3)[9]);
    TH_AGREE();
    for (int bad = 0; bad < th_size(); bad++) {
        synth_backward(ddp, &s, 0); /* reports; the value is read when the bucket is launched */
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        for (size_t i = 5; i-- > 0;) {
            synth_write(ddp, &s, i, 0, false);
            if (i == 2 && th_rank() == bad) {
                grad_of(ddp, i)[50] = bad % 2 ? INFINITY : NAN;
            }
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_NAN);
        TH_MESSAGE("'p2' (2)");
        char word[32];
        snprintf(word, sizeof word, "on rank %d", bad);
        TH_MESSAGE(word);
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

START_TEST(no_communication) { /* Q13 */
    synth s = synth_equal(3, 20);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_NOOP, NULL), DTR_OK);
    for (int step = 0; step < 3; step++) {
        synth_backward(ddp, &s, step);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_CHECK(grad_of(ddp, 1)[3] == (float)synth_input(1, 3, th_rank(), step), "not local");
    }
    TH_CHECK(stats_of(ddp).last.collectives == 0, "%zu collectives",
             stats_of(ddp).last.collectives);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

START_TEST(local_sgd) { /* Q14 */
    dtr_group *pair = NULL;
    TH_OK(dtr_group_split(th_group(), th_rank() / 2, 0, NULL, &pair));
    for (int k = 0; k < 2; k++) {
        synth s = synth_equal(3, 20);
        dtr_ddp *ddp = ddp_new(&s, NULL);
        dtr_hook_options ho = DTR_HOOK_OPTIONS_INIT;
        ho.subgroup = k == 0 ? pair : NULL;
        ho.start_iteration = 2;
        TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_POST_LOCAL_SGD, &ho), DTR_OK);
        for (int step = 0; step < 5; step++) {
            synth_backward(ddp, &s, step);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            float want = 0;
            int from = step < 2 ? 0 : k == 1 ? th_rank() : th_rank() / 2 * 2;
            int n = step < 2 ? th_size() : k == 1 ? 1 : dtr_group_size(pair);
            for (int r = from; r < from + n; r++) {
                want += (float)synth_input(2, 5, r, step);
            }
            want /= (float)n;
            TH_CHECK(grad_of(ddp, 2)[5] == want, "step %d: %g, want %g", step, grad_of(ddp, 2)[5],
                     want);
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
    TH_OK(dtr_group_destroy(pair));
}
END_TEST

/* ---- T70: PowerSGD ---- */

enum { MATRICES = 3 };
typedef struct matrices {
    dtr_param params[MATRICES];
} matrices;

static matrices matrices_new(void) {
    static const int64_t shapes[MATRICES][2] = { { 64, 64 }, { 3, 100 }, { 50, 1 } };
    static const char *const names[MATRICES] = { "square", "flat", "bias" };
    matrices m;
    for (int i = 0; i < MATRICES; i++) {
        dtr_tensor *t = NULL;
        ck_assert_int_eq(dtr_tensor_empty(th_world(), DTR_F32, (dtr_device){ DTR_CPU, 0 },
                                          DTR_MEM_DEFAULT, i == 2 ? 1 : 2, shapes[i], &t),
                         DTR_OK);
        dtr_tensor_fill(t, 1, NULL);
        m.params[i] = (dtr_param){ names[i], t, NULL, 0 };
    }
    return m;
}

static void matrices_free(matrices *m) {
    for (int i = 0; i < MATRICES; i++) {
        dtr_tensor_release(m->params[i].value);
    }
}

static dtr_ddp *power_new(const matrices *m, int rank, uint64_t start, bool feedback, bool view) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.grad_as_bucket_view = view;
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(th_group(), m->params, MATRICES, &o, &ddp));
    dtr_hook_options ho = DTR_HOOK_OPTIONS_INIT;
    ho.rank = rank;
    ho.start_iteration = start;
    ho.no_error_feedback = !feedback;
    ho.generator_start = 5;
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_POWERSGD, &ho), DTR_OK);
    return ddp;
}

/* g_r = a_r u v^T for the matrices, a_r everywhere for the vector. */
static void rank_one(dtr_ddp *ddp, int step) {
    float a = (float)(th_rank() + 1 + step);
    for (size_t i = MATRICES; i-- > 0;) {
        dtr_tensor *g = dtr_ddp_grad(ddp, i);
        int64_t n = dtr_tensor_shape(g)[0];
        int64_t m = dtr_tensor_ndim(g) > 1 ? dtr_tensor_shape(g)[1] : 1;
        for (int64_t r = 0; r < n; r++) {
            for (int64_t c = 0; c < m; c++) {
                ((float *)dtr_tensor_data(g))[r * m + c] =
                    a * (1 + 0.1f * (float)r) * (m == 1 ? 1 : (float)(c % 7) - 2.5f);
            }
        }
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
}

static float rank_one_mean(size_t i, size_t k, int step) {
    float a = (float)(th_size() + 1) / 2 + (float)step;
    int64_t m = i == 0 ? 64 : i == 1 ? 100 : 1, r = (int64_t)k / m, c = (int64_t)k % m;
    return a * (1 + 0.1f * (float)r) * (m == 1 ? 1 : (float)(c % 7) - 2.5f);
}

static void site_of_ready(dtr_ddp *ddp, size_t i) {
    dtr_tensor_fill(dtr_ddp_grad(ddp, i), 1, NULL);
    dtr_call_site("src/train.c", 5);
    TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
}

/* reliability:P13: what a built-in hook starts when its first operation has ended was called where
 * the program reported the gradient, although the progress thread, where there is one, starts it.
 */
START_TEST(P13_called_at_in_a_hook) {
    enum { START = 2, MOST = 4096 };
    static dtr__record all[MOST];
    matrices m = matrices_new();
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_hook_options ho = DTR_HOOK_OPTIONS_INIT;
    dtr_ddp *ddp = NULL;
    ho.rank = 1;
    ho.start_iteration = START;
    o.bucket_cap_bytes = o.first_bucket_bytes = 64; /* one for each */
    TH_OK(dtr_ddp_create(th_group(), m.params, MATRICES, &o, &ddp));
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_POWERSGD, &ho), DTR_OK);
    for (int step = 0; step < START + 3; step++) {
        const bool settled = step > START; /* the first step with it makes the groups of the hook */
        uint64_t begun = settled ? dtr_group_seq(ddp->hook->group[1]) : 0;
        size_t n = dtr__rec_read(th_world(), all, MOST);
        uint64_t before = n > 0 ? all[n - 1].number : 0;
        for (size_t i = MATRICES; i-- > 0;) {
            site_of_ready(ddp, i);
        }
        while (settled && th_size() > 1 && dtr__progress_has_thread(th_world()) &&
               dtr_group_seq(ddp->hook->group[1]) == begun) {
            th_sleep(0.001);
        }
        dtr_call_site("src/train.c", 5);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        n = dtr__rec_read(th_world(), all, MOST);
        for (size_t i = 0; i < n; i++) {
            TH_CHECK(!settled || all[i].number <= before || strcmp(all[i].site, "train.c:5") == 0,
                     "step %d: an operation was called from %s", step, all[i].site);
        }
        TH_CHECK(n > 0 && all[n - 1].number > before, "nothing was recorded");
    }
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    matrices_free(&m);
}
END_TEST

START_TEST(power_exact) { /* PS6, PS1, PS2 */
    static const int ranks[] = { 1, 2, 8 };
    for (int k = 0; k < 6; k++) {
        matrices m = matrices_new();
        dtr_ddp *ddp = power_new(&m, ranks[k / 2], 2, true, k % 2 == 1);
        for (int step = 0; step < 6; step++) {
            rank_one(ddp, step);
            for (size_t i = 0; i < MATRICES; i++) {
                float *g = grad_of(ddp, i);
                size_t n = dtr_tensor_numel(dtr_ddp_grad(ddp, i));
                for (size_t e = 0; e < n; e++) {
                    float want = rank_one_mean(i, e, step);
                    TH_CHECK(fabsf(g[e] - want) <= 2e-5f * (fabsf(want) + 10),
                             "r %d step %d %zu[%zu]: %.7g, want %.7g", ranks[k / 2], step, i, e,
                             g[e], want);
                }
                equal_ranks(g, n); /* PS3 */
            }
            TH_CHECK(th_size() == 1 || step == 0 ||
                         stats_of(ddp).last.collectives == (step < 2 ? 1 : 3),
                     "step %d: %zu collectives", step, stats_of(ddp).last.collectives);
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
        matrices_free(&m);
    }
}
END_TEST

static void random_matrices(dtr_ddp *ddp, int salt) {
    for (size_t i = MATRICES; i-- > 0;) {
        th_rng g = { (uint64_t)(salt * 1000 + th_rank() * 10 + (int)i) };
        th_random_floats(grad_of(ddp, i), DTR_F32, dtr_tensor_numel(dtr_ddp_grad(ddp, i)), &g, -4,
                         1);
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
}

static double distance(const double *sum, const float *mean, int n) {
    double d = 0;
    for (int k = 0; k < 64 * 64; k++) {
        d += (sum[k] - n * (double)mean[k]) * (sum[k] - n * (double)mean[k]);
    }
    return sqrt(d);
}

/* PS5: with feedback the sum of outputs follows N G; without it falls behind for ever. */
START_TEST(power_feedback) {
    enum { N = 60 };
    double lag[2][2];
    float mean[64 * 64];
    for (int feedback = 0; feedback < 2; feedback++) {
        matrices m = matrices_new();
        dtr_ddp *ddp = power_new(&m, 8, 2, feedback == 1, false);
        double sum[64 * 64] = { 0 };
        for (int step = 0; step < 2 + 2 * N; step++) {
            random_matrices(ddp, 1); /* the same gradient every time */
            const float *g = grad_of(ddp, 0);
            if (step == 0) {
                memcpy(mean, g, sizeof mean);
            }
            for (int k = 0; k < 64 * 64 && step >= 2; k++) {
                sum[k] += (double)g[k];
            }
            if (step == 1 + N) {
                lag[feedback][0] = distance(sum, mean, N);
            }
        }
        lag[feedback][1] = distance(sum, mean, 2 * N);
        TH_OK(dtr_ddp_destroy(ddp));
        matrices_free(&m);
    }
    TH_CHECK(lag[0][1] > 1.8 * lag[0][0], "without feedback: %g, %g", lag[0][0], lag[0][1]);
    TH_CHECK(lag[1][1] < 1.4 * lag[1][0] && lag[1][1] < 0.5 * lag[0][1],
             "with feedback: %g, %g; without %g", lag[1][0], lag[1][1], lag[0][1]);
    TH_AGREE();
}
END_TEST

/* PS4: the same run twice; PS8, PS9: 3 + 3 = 6. */
START_TEST(power_state) {
    matrices m = matrices_new();
    uint64_t want[8];
    for (int run = 0; run < 3; run++) {
        dtr_ddp *ddp = power_new(&m, 2, 2, true, false);
        for (int step = 0; step < 8; step++) {
            if (run == 2 && step == 5) {
                dtr_bytes state = { NULL, 0 };
                TH_IS(dtr_ddp_hook_state(ddp, &state), DTR_OK);
                random_matrices(ddp, 77); /* disturbs it */
                TH_IS(dtr_ddp_set_hook_state(ddp, state), DTR_OK);
                dtr_bytes cut = { state.data, state.nbytes - 1 };
                TH_IS(dtr_ddp_set_hook_state(ddp, cut), DTR_ERR_ARG);
                TH_IS(dtr_ddp_set_hook_state(ddp, state), DTR_OK);
                dtr_bytes_free(&state, 1);
            }
            random_matrices(ddp, step);
            uint64_t h = bits(grad_of(ddp, 0), 64 * 64 * 4);
            want[step] = run == 0 ? h : want[step];
            TH_CHECK(h == want[step], "run %d step %d differs", run, step);
        }
        TH_OK(dtr_ddp_destroy(ddp));
    }
    matrices_free(&m);
    TH_AGREE();
}
END_TEST

START_TEST(power_arguments) {
    matrices m = matrices_new();
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(th_group(), m.params, MATRICES, NULL, &ddp));
    dtr_hook_options ho = DTR_HOOK_OPTIONS_INIT;
    ho.start_iteration = 1;
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_POWERSGD, &ho), DTR_ERR_ARG);
    ho.no_error_feedback = true;
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_POWERSGD, &ho), DTR_ERR_ARG);
    ho.no_warm_start = true;
    TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_POWERSGD, &ho), DTR_OK);
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < MATRICES; i++) { /* zero gradients: no NaN */
            memset(grad_of(ddp, i), 0, 4 * dtr_tensor_numel(dtr_ddp_grad(ddp, i)));
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_CHECK(grad_of(ddp, 0)[9] == 0 && grad_of(ddp, 1)[9] == 0, "%g", grad_of(ddp, 0)[9]);
    }
    TH_OK(dtr_ddp_destroy(ddp));
    matrices_free(&m);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp builtin", 100);
    th_add(tc, average_hook, 0, 0);
    th_add(tc, cast_hooks, 0, 0);
    th_add(tc, code_hook, 0, 0);
    th_add(tc, no_communication, 0, 0);
    th_add(tc, local_sgd, 0, 0);
    th_add(tc, P13_called_at_in_a_hook, 0, 0);
    th_add(tc, power_exact, 0, 0);
    th_add(tc, power_feedback, 0, 0);
    th_add(tc, power_state, 0, 0);
    th_add(tc, power_arguments, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_builtin", make);
}
