/* Parameters that some ranks leave out: found out or listed, and learned once by a static graph. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"

/* Three Tasks (2x2 ones, local gradient 0.25 everywhere) with their own gradient memory. */
typedef struct tasks {
    dtr_param params[3];
    dtr_tensor *made[6];
    float *grad[3];
} tasks;

static dtr_tensor *square(void) {
    int64_t shape[] = { 2, 2 };
    dtr_tensor *t = NULL;
    ck_assert_int_eq(dtr_tensor_empty(th_world(), DTR_F32, (dtr_device){ DTR_CPU, 0 },
                                      DTR_MEM_DEFAULT, 2, shape, &t),
                     DTR_OK);
    dtr_tensor_fill(t, 1, NULL);
    return t;
}

static tasks tasks_new(void) {
    static const char *const names[] = { "t0", "t1", "t2" };
    tasks t;
    for (int i = 0; i < 3; i++) {
        t.made[i] = square();
        t.made[3 + i] = square();
        t.grad[i] = dtr_tensor_data(t.made[3 + i]);
        memset(t.grad[i], 0xa5, 16); /* poison */
        t.params[i] = (dtr_param){ names[i], t.made[i], t.made[3 + i], 0 };
    }
    return t;
}

static void tasks_free(tasks *t) {
    for (int i = 0; i < 6; i++) {
        dtr_tensor_release(t->made[i]);
    }
}

static void use(dtr_ddp *ddp, size_t i) {
    for (int k = 0; k < 4; k++) {
        grad_of(ddp, i)[k] = 0.25f;
    }
    TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
}

static void expect_value(dtr_ddp *ddp, size_t i, float want) {
    TH_CHECK(dtr_ddp_grad_defined(ddp, i), "t%zu is undefined", i);
    for (int k = 0; k < 4; k++) {
        TH_CHECK(grad_of(ddp, i)[k] == want, "t%zu is %.9g, want %.9g", i, grad_of(ddp, i)[k],
                 want);
    }
}

/* T44, H2: used here, elsewhere, nowhere. */
static void here_elsewhere_nowhere(bool view, bool listed, bool is_static) {
    static const unsigned char poison[16] = { 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5,
                                              0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5 };
    int W = th_size(), mine = th_rank() == 0 ? 0 : 1;
    tasks t = tasks_new();
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.find_unused = !is_static;
    o.static_graph = is_static;
    o.grad_as_bucket_view = view;
    o.bucket_cap_bytes = 16;
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(th_group(), t.params, 3, &o, &ddp));
    for (int step = 0; step < 4; step++) {
        for (size_t i = 0; i < 3 && step == 0; i++) {
            TH_CHECK(!dtr_ddp_grad_defined(ddp, i), "t%zu is defined at the start", i);
        }
        if (listed) {
            size_t unused[] = { (size_t)(1 - mine), 2 };
            TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
            TH_IS(dtr_ddp_forward_end(ddp, unused, 2), DTR_OK);
        }
        TH_IS(dtr_ddp_grad_clear(ddp, SIZE_MAX), DTR_OK);
        use(ddp, (size_t)mine);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        expect_value(ddp, 0, 0.25f / (float)W);
        expect_value(ddp, 1, (float)(0.25 * (W - 1)) / (float)W);
        TH_CHECK(!dtr_ddp_grad_defined(ddp, 2), "t2 is defined");
        TH_CHECK(memcmp(grad_of(ddp, 2), poison, 16) == 0, "t2's memory was written");
        dtr_ddp_stats st = stats_of(ddp);
        TH_CHECK(st.unused_bytes == 32, "%zu unused bytes", st.unused_bytes);
        TH_CHECK(st.can_set_static_graph, "the used set is constant");
        size_t maps = !is_static || step == 0; /* S4 */
        TH_CHECK(st.last.collectives == 3 + maps + (is_static && step == 0), "%zu collectives",
                 st.last.collectives);
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(ddp));
    tasks_free(&t);
}

START_TEST(three_tasks) {
    for (int k = 0; k < 4; k++) {
        here_elsewhere_nowhere(k & 1, k & 2, false);
        if (k < 2) {
            here_elsewhere_nowhere(k & 1, false, true);
        }
    }
}
END_TEST

/* T45, U8, U9: rank 0 uses both, the others one; later rank 1 uses none at all. */
START_TEST(empty_list) {
    float W = (float)th_size();
    for (int k = 0; k < 4; k++) {
        synth s = synth_equal(2, 8);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.find_unused = true;
        o.grad_as_bucket_view = k & 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        if (k & 2) {
            TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
            size_t unused[] = { 0 };
            TH_IS(dtr_ddp_forward_end(ddp, unused, th_rank() == 0 ? 0 : 1), DTR_OK);
        }
        for (size_t i = th_rank() == 0 ? 0 : 1; i < 2; i++) {
            for (int e = 0; e < 8; e++) {
                grad_of(ddp, i)[e] = 0.25f;
            }
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_CHECK(grad_of(ddp, 1)[3] == 0.25f, "t1 %g", grad_of(ddp, 1)[3]);
        TH_CHECK(grad_of(ddp, 0)[3] == 0.25f / W, "t0 %g", grad_of(ddp, 0)[3]);
        TH_IS(dtr_ddp_grad_clear(ddp, SIZE_MAX), DTR_OK);
        TH_AGREE();
        for (size_t i = 0; i < 2 && th_rank() != 1; i++) {
            synth_write(ddp, &s, i, 5, false);
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        double sum = 0;
        for (int r = 0; r < th_size(); r++) {
            sum += r == 1 ? 0 : synth_input(1, 4, r, 5);
        }
        TH_CHECK(th_size() == 1 || grad_of(ddp, 1)[4] == (float)sum / W, "%g, want %g",
                 grad_of(ddp, 1)[4], sum / W);
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* U3, U5: an unused parameter contributes the gradient it has; one used nowhere keeps it. */
START_TEST(old_gradients) {
    for (int view = 0; view < 2; view++) {
        synth s = synth_equal(3, 4);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.find_unused = true;
        o.grad_as_bucket_view = view == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK); /* a local step defines all three */
        for (size_t i = 0; i < 3; i++) {
            for (int k = 0; k < 4; k++) {
                grad_of(ddp, i)[k] = i == 2 ? 7.0f + (float)th_rank() : 6;
            }
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK); /* U6: used in the local step */
        TH_CHECK(grad_of(ddp, 0)[0] == 6, "the sum of the steps is averaged: %g",
                 grad_of(ddp, 0)[0]);
        float mean = 7 + (float)(th_size() - 1) / 2;
        TH_CHECK(grad_of(ddp, 2)[1] == mean, "%g, want %g", grad_of(ddp, 2)[1], mean);
        /* Now only p0, only on the last rank; p1 and p2 are defined and used nowhere. */
        for (int k = 0; k < 4; k++) {
            grad_of(ddp, 2)[k] = 7.0f + (float)th_rank();
            grad_of(ddp, 0)[k] = th_rank() == th_size() - 1 ? 2 : 6;
        }
        if (th_rank() == th_size() - 1) {
            TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        float want = (float)(6 * (th_size() - 1) + 2) / (float)th_size();
        TH_CHECK(grad_of(ddp, 0)[2] == want, "%g, want %g", grad_of(ddp, 0)[2], want);
        TH_CHECK(grad_of(ddp, 1)[2] == 6 && grad_of(ddp, 2)[2] == 7.0f + (float)th_rank(),
                 "used nowhere, but changed: %g %g", grad_of(ddp, 1)[2], grad_of(ddp, 2)[2]);
        TH_CHECK(dtr_ddp_grad_defined(ddp, 2), "the flag was dropped");
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* U1, U2, ER11: what the list allows and forbids; T47: dropped outputs with a list. */
START_TEST(lists) {
    synth s = synth_equal(4, 20);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.find_unused = true;
    o.bucket_cap_bytes = 80;
    dtr_ddp *ddp = ddp_new(&s, &o);
    size_t list[] = { 3 }, far[] = { 4 };
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_forward_end(ddp, far, 1), DTR_ERR_ARG);
    TH_IS(dtr_ddp_forward_end(ddp, NULL, 1), DTR_ERR_ARG);
    for (int k = 0; k < 3; k++) { /* dropped */
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, list, 1), DTR_OK);
    }
    TH_CHECK(stats_of(ddp).last.collectives == 0, "communication before backward");
    for (size_t i = 0; i < 3; i++) {
        synth_write(ddp, &s, i, 0, false);
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    for (size_t i = 0; i < 3; i++) {
        synth_check(ddp, &s, i, 0, th_size());
    }
    TH_AGREE();
    /* Listed, but ready on the last rank. */
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_forward_end(ddp, list, 1), DTR_OK);
    for (size_t i = 0; i < 3; i++) {
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    if (th_rank() == th_size() - 1) {
        TH_IS(dtr_ddp_grad_ready(ddp, 3, NULL), DTR_ERR_STATE);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
    TH_MESSAGE("'p3' (3)");
    TH_MESSAGE("listed as unused");
    TH_AGREE();
    /* Neither listed nor ready. */
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_forward_end(ddp, list, 0), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
    TH_MESSAGE("'p0' (0) was not ready on rank 0 (3 more)");
    TH_AGREE();
    TH_OK(dtr_ddp_destroy(ddp));
    o.find_unused = false;
    ddp = ddp_new(&s, &o);
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_forward_end(ddp, list, 1), DTR_ERR_STATE);
    TH_IS(dtr_ddp_forward_end(ddp, list, 0), DTR_OK);
    synth_good_step(ddp, &s, 0);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* U6: used in the first of three micro-steps only. */
START_TEST(micro_steps) {
    for (int view = 0; view < 2; view++) {
        synth s = synth_equal(2, 6);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.find_unused = true;
        o.grad_as_bucket_view = view == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (int micro = 0; micro < 3; micro++) {
            TH_IS(dtr_ddp_set_sync(ddp, micro == 2), DTR_OK);
            for (size_t i = micro == 0 ? 0 : 1; i < 2; i++) {
                synth_write(ddp, &s, i, micro, micro > 0 && i == 1);
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            }
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        }
        synth_check(ddp, &s, 0, 0, th_size());
        double sum = 0;
        for (int r = 0; r < th_size(); r++) {
            sum += synth_input(1, 3, r, 0) + synth_input(1, 3, r, 1) + synth_input(1, 3, r, 2);
        }
        TH_CHECK(grad_of(ddp, 1)[3] == (float)sum / (float)th_size(), "%g", grad_of(ddp, 1)[3]);
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* U7: one warning when nothing is unused; the used set changes at step 3. */
START_TEST(advice) {
    synth s = synth_equal(2, 6);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.find_unused = true;
    dtr_ddp *ddp = ddp_new(&s, &o);
    th_log_clear();
    TH_CHECK(!stats_of(ddp).can_set_static_graph, "known before the first step");
    for (int step = 0; step < 5; step++) {
        synth_good_step(ddp, &s, step);
        TH_CHECK(stats_of(ddp).can_set_static_graph, "step %d", step);
    }
    TH_CHECK(th_log_count("find_unused") == 1, "%d warnings", th_log_count("find_unused"));
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_CHECK(!stats_of(ddp).can_set_static_graph, "it has changed");
    TH_CHECK(stats_of(ddp).unused_bytes == 24, "%zu", stats_of(ddp).unused_bytes);
    synth_good_step(ddp, &s, 7);
    TH_CHECK(!stats_of(ddp).can_set_static_graph && stats_of(ddp).unused_bytes == 0, "for good");
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* U10, T77: 1,000 fast iterations of random used sets; flat memory is looked at elsewhere. The
 * flags are set again at once while the map may still be under way. */
START_TEST(random_sets) {
    enum { N = 6 };
    const int steps = TH_SANITIZED ? 60 : 500;
    synth s = synth_equal(N, 11);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.find_unused = true;
    o.bucket_cap_bytes = 90;
    th_rng g = { 17 };
    for (int view = 0; view < 2; view++) {
        o.grad_as_bucket_view = view == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (int step = 0; step < steps; step++) {
            bool used[8][N], any[N] = { false };
            for (int r = 0; r < th_size(); r++) {
                for (int i = 0; i < N; i++) {
                    used[r][i] = th_next(&g) % 3 == 0;
                    any[i] = any[i] || used[r][i];
                }
            }
            TH_IS(dtr_ddp_grad_clear(ddp, SIZE_MAX), DTR_OK);
            for (size_t i = 0; i < N; i++) {
                memset(grad_of(ddp, i), 0x5a, 44);
                if (used[th_rank()][i]) {
                    synth_write(ddp, &s, i, step, false);
                    TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
                }
            }
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            for (size_t i = 0; i < N; i++) {
                double sum = 0;
                for (int r = 0; r < th_size(); r++) {
                    sum += used[r][i] ? synth_input(i, 10, r, step) : 0;
                }
                float want = (float)sum / (float)th_size();
                uint32_t bits;
                memcpy(&bits, &grad_of(ddp, i)[10], 4);
                TH_CHECK(dtr_ddp_grad_defined(ddp, i) == any[i], "p%zu flag in step %d", i, step);
                TH_CHECK(any[i] ? grad_of(ddp, i)[10] == want : bits == 0x5a5a5a5a,
                         "p%zu in step %d is %g, want %g", i, step, grad_of(ddp, i)[10], want);
            }
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
    }
    synth_free(&s);
}
END_TEST

/* S1, S7: when the static graph may be set. */
START_TEST(static_rules) {
    synth s = synth_equal(2, 6);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_ddp *ddp = ddp_new(&s, &o);
    th_log_clear();
    TH_IS(dtr_ddp_set_static_graph(ddp), DTR_OK);
    TH_CHECK(th_log_count("static graph") == 0, "a warning too early");
    TH_IS(dtr_ddp_set_static_graph(ddp), DTR_OK);
    TH_CHECK(th_log_count("static graph") == 1, "no warning");
    TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_ERR_STATE);
    TH_MESSAGE("first iteration");
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_ERR_STATE);
    TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
    synth_good_step(ddp, &s, 0);
    TH_IS(dtr_ddp_set_static_graph(ddp), DTR_ERR_STATE);
    TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK); /* later local steps are not counted */
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
    synth_good_step(ddp, &s, 2);
    TH_OK(dtr_ddp_destroy(ddp));
    o.static_graph = o.find_unused = true;
    th_log_clear();
    ddp = ddp_new(&s, &o);
    TH_CHECK(th_log_count("static_graph") == 1, "no warning of both");
    synth_good_step(ddp, &s, 0);
    synth_good_step(ddp, &s, 1);
    TH_CHECK(th_size() == 1 || stats_of(ddp).last.collectives == 1, "a map in step 2");
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* S5, ER12: the set changes on one rank. */
START_TEST(static_changes) {
    for (int bad = 0; bad < th_size(); bad++) {
        synth s = synth_equal(3, 6);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.static_graph = true;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (int step = 0; step < 6; step++) {
            bool extra = th_rank() == bad && step == 2, lacks = th_rank() == bad && step == 4;
            for (size_t i = 0; i < 3; i++) { /* p2 is not used in the first iteration */
                if (i != 2 && !(lacks && i == 1)) {
                    synth_write(ddp, &s, i, step, false);
                    TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
                }
            }
            if (extra) {
                TH_IS(dtr_ddp_grad_ready(ddp, 2, NULL), DTR_ERR_GRAPH);
            }
            bool wrong = step == 2 || step == 4;
            TH_IS(dtr_ddp_backward_end(ddp, NULL), wrong ? DTR_ERR_GRAPH : DTR_OK);
            if (wrong) {
                char word[96];
                snprintf(word, sizeof word,
                         step == 2 ? "'p2' (2) was reported 1 times on rank %d, but 0"
                                   : "'p1' (1) was reported 0 times on rank %d, but 1",
                         bad);
                TH_MESSAGE(word);
            } else {
                synth_check(ddp, &s, 0, step, th_size());
                synth_check(ddp, &s, 1, step, th_size());
                TH_CHECK(!dtr_ddp_grad_defined(ddp, 2), "p2 is defined");
            }
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* ---- T83: one rank, nothing but the bookkeeping ---- */

enum { LAYERS = 3, BATCH = 10 };
static const int widths[LAYERS + 1] = { 2, 10, 4, 4 };
typedef struct net3 {
    double weight[LAYERS][40], moment[LAYERS][40], square[LAYERS][40];
    int steps[LAYERS];
} net3;

static int elements(int layer) {
    return widths[layer] * widths[layer + 1];
}

static net3 net3_new(void) {
    net3 n = { 0 };
    th_rng g = { 83 };
    for (int l = 0; l < LAYERS; l++) {
        for (int k = 0; k < elements(l); k++) {
            n.weight[l][k] = th_uniform(&g) - 0.5;
        }
    }
    return n;
}

/* Adds the gradient of one row's squared error to grad[layer], of `used` layers in a row. */
static void net3_row(const net3 *n, int used, const double *x, double (*grad)[40]) {
    double act[LAYERS + 1][10] = { { x[0], x[1] } }, delta[10] = { 0 }, sum = 0;
    for (int l = 0; l < used; l++) {
        for (int o = 0; o < widths[l + 1]; o++) {
            for (int i = 0; i < widths[l]; i++) {
                act[l + 1][o] += n->weight[l][o * widths[l] + i] * act[l][i];
            }
        }
    }
    for (int o = 0; o < widths[used]; o++) {
        sum += exp(act[used][o]);
    }
    for (int o = 0; o < widths[used]; o++) { /* cross-entropy with class 1 */
        delta[o] = exp(act[used][o]) / sum - (o == 1);
    }
    for (int l = used; l-- > 0;) {
        double before[10] = { 0 };
        for (int o = 0; o < widths[l + 1]; o++) {
            for (int i = 0; i < widths[l]; i++) {
                grad[l][o * widths[l] + i] += delta[o] * act[l][i] / BATCH;
                before[i] += n->weight[l][o * widths[l] + i] * delta[o];
            }
        }
        memcpy(delta, before, sizeof delta);
    }
}

static void net3_gradients(const net3 *n, int used, int iteration, double (*grad)[40]) {
    th_rng g = { 1000 + (uint64_t)iteration };
    memset(grad, 0, LAYERS * sizeof grad[0]);
    for (int b = 0; b < BATCH; b++) {
        const double x[2] = { th_uniform(&g), th_uniform(&g) };
        net3_row(n, used, x, grad);
    }
}

static void adam(net3 *n, int l, const double *grad) {
    const int t = ++n->steps[l];
    for (int k = 0; k < elements(l); k++) {
        n->moment[l][k] = 0.9 * n->moment[l][k] + 0.1 * grad[k];
        n->square[l][k] = 0.999 * n->square[l][k] + 0.001 * grad[k] * grad[k];
        n->weight[l][k] -= 0.01 * (n->moment[l][k] / (1 - pow(0.9, t))) /
                           (sqrt(n->square[l][k] / (1 - pow(0.999, t))) + 1e-8);
    }
}

static dtr_ddp *net3_ddp(net3 *n, bool view, bool find_unused, dtr_tensor **value) {
    static const char *const names[LAYERS] = { "a", "b", "c" };
    dtr_param params[LAYERS];
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_ddp *ddp = NULL;
    for (int l = 0; l < LAYERS; l++) {
        const int64_t shape[2] = { widths[l + 1], widths[l] };
        TH_OK(dtr_tensor_from_buffer(dtr_cpu(n->weight[l], (size_t)elements(l), DTR_F64), 2, shape,
                                     NULL, NULL, NULL, &value[l]));
        params[l] = (dtr_param){ names[l], value[l], NULL, 0 };
    }
    o.grad_as_bucket_view = view;
    o.find_unused = find_unused;
    TH_OK(dtr_ddp_create(th_group(), params, LAYERS, &o, &ddp));
    return ddp;
}

/* One iteration; every gradient the module has is the plain one, bit by bit. */
static void net3_step(dtr_ddp *ddp, const net3 *n, int used, int iteration) {
    double grad[LAYERS][40];
    net3_gradients(n, used, iteration, grad);
    TH_IS(dtr_ddp_grad_clear(ddp, SIZE_MAX), DTR_OK);
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    for (int l = used; l-- > 0;) {
        double *place = dtr_tensor_data(dtr_ddp_grad(ddp, (size_t)l));
        memcpy(place, grad[l], (size_t)elements(l) * sizeof *place);
        TH_IS(dtr_ddp_grad_ready(ddp, (size_t)l, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    for (int l = 0; l < LAYERS; l++) {
        TH_CHECK(dtr_ddp_grad_defined(ddp, (size_t)l) == (l < used), "layer %d of %d is %s", l,
                 used, l < used ? "undefined" : "defined");
        TH_CHECK(l >= used || memcmp(dtr_tensor_data(dtr_ddp_grad(ddp, (size_t)l)), grad[l],
                                     (size_t)elements(l) * sizeof grad[0][0]) == 0,
                 "layer %d of %d has another gradient", l, used);
    }
}

static void net3_train(bool view, bool find_unused, int used_at_first) {
    net3 n = net3_new(), plain = net3_new();
    double grad[LAYERS][40];
    dtr_tensor *value[LAYERS];
    dtr_ddp *ddp = net3_ddp(&n, view, find_unused, value);
    for (int l = 0; l < LAYERS; l++) {
        TH_CHECK(!dtr_ddp_grad_defined(ddp, (size_t)l), "layer %d begins defined", l);
    }
    for (int i = 0; i < 3; i++) {
        const int used = i == 0 ? used_at_first : LAYERS;
        net3_step(ddp, &n, used, i);
        net3_gradients(&plain, used, i, grad);
        for (int l = 0; l < LAYERS; l++) {
            if (dtr_ddp_grad_defined(ddp, (size_t)l)) {
                adam(&n, l, dtr_tensor_data(dtr_ddp_grad(ddp, (size_t)l)));
            }
            if (l < used) {
                adam(&plain, l, grad[l]);
            }
            TH_CHECK(memcmp(n.weight[l], plain.weight[l], sizeof n.weight[l]) == 0,
                     "layer %d differs after iteration %d", l, i);
        }
    }
    TH_OK(dtr_ddp_destroy(ddp));
    for (int l = 0; l < LAYERS; l++) {
        dtr_tensor_release(value[l]);
    }
}

START_TEST(reducer_w1) {
    for (int view = 0; view < 2; view++) {
        net3_train(view, false, LAYERS);
        net3_train(view, true, LAYERS);
        net3_train(view, true, LAYERS - 1);
    }
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp unused", 100);
    th_add(tc, three_tasks, 2, 0);
    th_add(tc, empty_list, 0, 0);
    th_add(tc, old_gradients, 0, 0);
    th_add(tc, lists, 0, 0);
    th_add(tc, micro_steps, 0, 0);
    th_add(tc, advice, 0, 0);
    th_add(tc, random_sets, 0, 0);
    th_add(tc, static_rules, 0, 0);
    th_add(tc, static_changes, 0, 0);
    th_add(tc, reducer_w1, 1, 1);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_unused", make);
}
