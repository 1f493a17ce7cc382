/* Parameters that some ranks leave out: found out or listed, and learned once by a static graph. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"
#include "parts.h"
#include "resident.h"
#include "world/world.h"

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

typedef struct footprint {
    size_t heap, shared;
    long resident; /* KiB */
} footprint;

static footprint footprint_now(void) {
    footprint f = { 0, 0, th_resident_kib() };
    f.heap = TH_SANITIZED ? 0 : mallinfo2().uordblks;
    f.shared = dtr__arena_usable(th_world()) ? dtr__arena_used(th_world()) : 0;
    return f;
}

/* U10, T77: 1,000 fast iterations of random used sets, values right in each and memory flat: 900
 * iterations that each lost 32 bytes would show. The flags are set again at once while the map may
 * still be under way. */
START_TEST(random_sets) {
    enum { N = 6 };
    const int steps = TH_SANITIZED ? 60 : 1000;
    footprint then = { 0 };
    synth s = synth_equal(N, 11);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.find_unused = true;
    o.bucket_cap_bytes = 90;
    th_rng g = { 17 };
    for (int view = 0; view < 2; view++) {
        o.grad_as_bucket_view = view == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (int step = 0; step < steps; step++) {
            then = step == 100 ? footprint_now() : then;
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
        const footprint now = footprint_now();
        TH_CHECK(TH_SANITIZED || now.heap < then.heap + 28000, "the heap grew by %zd bytes",
                 (ssize_t)(now.heap - then.heap));
        TH_CHECK(TH_SANITIZED || now.shared == then.shared, "node-shared memory grew by %zd bytes",
                 (ssize_t)(now.shared - then.shared));
        TH_CHECK(TH_SANITIZED || now.resident < then.resident + 2048,
                 "resident memory grew by %ld KiB", now.resident - then.resident);
        TH_AGREE();
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
    ddp_unused_alone(tc);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_unused", make);
}
