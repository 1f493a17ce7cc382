/* DDP: local steps, evaluation, buffers, averaging modes, statistics, the caller's own collectives,
 * and the end of a module. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"
#include "parts.h"
#include "world/world.h"

/* ---- T63: no_sync ---- */

static void fill_grads(dtr_ddp *ddp, size_t n, float add) {
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < dtr_tensor_numel(dtr_ddp_grad(ddp, i)); k++) {
            grad_of(ddp, i)[k] += add;
        }
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
}

START_TEST(accumulate) { /* N3, G4 */
    for (int k = 0; k < 12; k++) {
        int K = 1 + k % 3;
        synth s = synth_equal(3, 17);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.grad_as_bucket_view = k / 3 % 2 == 1;
        o.find_unused = k / 6 == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        for (int round = 0; round < 2; round++) {
            for (size_t i = 0; i < 3; i++) {
                memset(grad_of(ddp, i), 0, 17 * 4);
            }
            bool before = dtr_ddp_sync(ddp); /* N1: save and restore */
            TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK);
            for (int step = 0; step < K; step++) {
                TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK); /* and again: G4 */
                fill_grads(ddp, 3, (float)th_rank() + 1);
                TH_CHECK(grad_of(ddp, 1)[3] == (float)((step + 1) * (th_rank() + 1)),
                         "a local gradient was touched");
            }
            TH_IS(dtr_ddp_set_sync(ddp, before), DTR_OK);
            fill_grads(ddp, 3, (float)th_rank() + 1);
            float want = (float)((K + 1) * (th_size() + 1)) / 2;
            TH_CHECK(grad_of(ddp, 2)[16] == want, "K = %d: %g, want %g", K, grad_of(ddp, 2)[16],
                     want);
        }
        dtr_ddp_stats st = stats_of(ddp);
        TH_CHECK(st.steps == 2 && st.local_steps == 2 * (uint64_t)K, "%d, %d", (int)st.steps,
                 (int)st.local_steps);
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* U3: ready in a local step, whose memory nobody asked for, then unused: it is all zeros. */
START_TEST(ready_without_memory) {
    for (int view = 0; view < 2; view++) {
        synth s = synth_equal(3, 17);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.grad_as_bucket_view = view == 1;
        o.find_unused = true;
        dtr_ddp *ddp = ddp_new(&s, &o);
        TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK);
        for (size_t i = 0; i < 3; i++) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_CHECK(grad_of(ddp, 1)[16] == 0, "%g", grad_of(ddp, 1)[16]);
        synth_good_step(ddp, &s, 3);
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* N2, F3: the flag of the opening call counts. */
START_TEST(flag_is_read_once) {
    synth s = synth_equal(2, 5);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK);
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
    TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    fill_grads(ddp, 2, (float)th_rank());
    TH_CHECK(grad_of(ddp, 0)[0] == (float)th_rank(), "synchronised");
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK);
    TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    fill_grads(ddp, 2, (float)th_rank());
    TH_CHECK(grad_of(ddp, 0)[0] == (float)(th_size() - 1), "%g", grad_of(ddp, 0)[0]);
    TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
    TH_AGREE();
    /* N5: one rank evaluates alone. */
    if (th_rank() == 0) {
        TH_IS(dtr_ddp_set_eval(ddp, true), DTR_OK);
        for (int k = 0; k < 3; k++) {
            TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
            TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
            TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_ERR_STATE);
        }
        TH_IS(dtr_ddp_set_eval(ddp, false), DTR_OK);
    }
    synth_good_step(ddp, &s, 3);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* ---- T67, O5: buffers ---- */

enum { BUFFERS = 8 };
static const dtr_dtype buffer_types[BUFFERS] = { DTR_F32,  DTR_F64, DTR_I64, DTR_F32,
                                                 DTR_BOOL, DTR_I64, DTR_F64, DTR_F32 };

static void set_buffers(dtr_param *b, double base) {
    for (int k = 0; k < BUFFERS; k++) {
        TH_IS(dtr_tensor_fill(b[k].value, base + th_rank(), NULL), DTR_OK);
    }
}

static void check_buffers(dtr_param *b, double base, bool sent) {
    for (int k = 0; k < BUFFERS; k++) {
        bool ignored = k == BUFFERS - 1;
        double want = base + (sent && !ignored ? 0 : th_rank());
        if (buffer_types[k] == DTR_BOOL) {
            want = want != 0;
        }
        double got = th_get(dtr_tensor_data(b[k].value), buffer_types[k], 2, false);
        TH_CHECK(got == want, "buffer %d is %g, want %g", k, got, want);
    }
}

START_TEST(buffers) {
    static const char *const names[BUFFERS] = { "a", "b", "c", "d", "e", "f", "g", "h" };
    synth s = synth_equal(2, 5);
    dtr_param b[BUFFERS];
    for (int k = 0; k < BUFFERS; k++) {
        int64_t n = 3 + 40 * k;
        b[k] = (dtr_param){ names[k], NULL, NULL, k == BUFFERS - 1 ? DTR_PARAM_IGNORED : 0 };
        TH_IS(dtr_tensor_empty(th_world(), buffer_types[k], (dtr_device){ DTR_CPU, 0 },
                               DTR_MEM_DEFAULT, 1, &n, &b[k].value),
              DTR_OK);
    }
    for (int off = 0; off < 2; off++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.buffers = b;
        o.n_buffers = BUFFERS;
        o.no_broadcast_buffers = off == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        th_log_clear();
        set_buffers(b, 0);
        synth_good_step(ddp, &s, 0); /* without forward: nothing is sent, one warning */
        synth_good_step(ddp, &s, 1);
        check_buffers(b, 0, false);
        TH_CHECK(th_log_count("forward_begin") == !off, "%d warnings",
                 th_log_count("forward_begin"));
        for (int step = 0; step < 5; step++) { /* S L L S, then evaluation: 1 0 0 1 0 (N4) */
            bool sync = step == 0 || step >= 3, eval = step == 4;
            TH_IS(dtr_ddp_set_sync(ddp, sync), DTR_OK);
            TH_IS(dtr_ddp_set_eval(ddp, eval), DTR_OK);
            set_buffers(b, 10 * step);
            TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
            check_buffers(b, 10 * step, sync && !eval && !off);
            TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
            if (!eval) {
                synth_backward(ddp, &s, step);
                TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            }
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
    }
    for (int k = 0; k < BUFFERS; k++) {
        dtr_tensor_release(b[k].value);
    }
    synth_free(&s);
}
END_TEST

/* ---- T66, H7: averaging modes ---- */

START_TEST(modes) {
    static const size_t sizes[] = { 300, 7, 0, 129, 64 }, limits[] = { 100, 700 };
    dtr_group *fixed = NULL;
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    go.deterministic = true;
    TH_OK(dtr_group_split(th_group(), 0, 0, &go, &fixed));
    float *reference = calloc(5 * 300, sizeof *reference);
    for (int mode = 0; mode < 6; mode++) {
        synth s = synth_new(5, sizes, DTR_F32);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.flags = mode == 1   ? DTR_DDP_PER_PARAM
                  : mode == 2 ? DTR_DDP_SMALL_LAST
                  : mode == 3 ? DTR_DDP_SUM
                              : 0;
        o.has_reduce_dtype = mode == 4;
        o.reduce_dtype = DTR_F64;
        o.plan_limits = mode == 5 ? limits : NULL;
        o.n_plan_limits = mode == 5 ? 2 : 0;
        dtr_ddp *ddp = NULL;
        TH_OK(dtr_ddp_create(fixed, s.params, 5, &o, &ddp));
        for (int step = 0; step < 3; step++) {
            th_rng g = { 3 + (uint64_t)th_rank() };
            for (size_t i = 0; i < 5; i++) {
                th_random_floats(grad_of(ddp, i), DTR_F32, sizes[i], &g, -10, 10);
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            }
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        }
        dtr_ddp_step last = stats_of(ddp).last;
        TH_CHECK(th_size() == 1 || last.collectives == (mode == 1 ? 5 : last.buckets),
                 "mode %d: %zu collectives", mode, last.collectives);
        for (size_t i = 0; i < 5; i++) {
            for (size_t k = 0; k < sizes[i]; k++) {
                float got = grad_of(ddp, i)[k] / (mode == 3 ? (float)th_size() : 1);
                float want = mode == 0 ? got : reference[i * 300 + k];
                reference[i * 300 + k] = want;
                bool exact = mode == 1 || mode == 2 || mode == 5;
                TH_CHECK(exact ? got == want : fabsf(got - want) <= 1e-6f * 1024,
                         "mode %d: p%zu[%zu] is %.9g, want %.9g", mode, i, k, got, want);
            }
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
    free(reference);
    TH_OK(dtr_group_destroy(fixed));
}
END_TEST

/* ---- T75, CF5: the caller's collectives in the middle of backward ---- */

START_TEST(user_collectives) {
    synth s = synth_equal(12, 500);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 4000;
    dtr_ddp *ddp = ddp_new(&s, &o);
    th_rng g = { 50 + (uint64_t)th_rank() };
    for (int step = 0; step < 100; step++) {
        size_t place = th_next(&g) % 12;
        for (size_t i = 12; i-- > 0;) {
            synth_write(ddp, &s, i, step, false);
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            if (i == place) {
                int64_t v = th_rank();
                TH_IS(dtr_allreduce(th_group(), dtr_cpu(&v, 1, DTR_I64), dtr_cpu(&v, 1, DTR_I64),
                                    DTR_SUM, NULL, NULL),
                      DTR_OK);
                TH_CHECK(v == th_size() * (th_size() - 1) / 2, "%d", (int)v);
            }
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        synth_check_all(ddp, &s, step, th_size());
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* Two modules over one group at the same time. */
START_TEST(two_modules) {
    synth s = synth_equal(4, 300), t = synth_equal(3, 200);
    dtr_ddp *a = ddp_new(&s, NULL), *b = ddp_new(&t, NULL);
    for (int step = 0; step < 10; step++) {
        for (size_t i = 4; i-- > 0;) {
            synth_write(a, &s, i, step, false);
            TH_IS(dtr_ddp_grad_ready(a, i, NULL), DTR_OK);
            if (i < 3) {
                synth_write(b, &t, i, step + 1, false);
                TH_IS(dtr_ddp_grad_ready(b, i, NULL), DTR_OK);
            }
        }
        TH_IS(dtr_ddp_backward_end(step % 2 == 1 ? b : a, NULL), DTR_OK);
        TH_IS(dtr_ddp_backward_end(step % 2 == 1 ? a : b, NULL), DTR_OK);
        synth_check_all(a, &s, step, th_size());
        synth_check_all(b, &t, step + 1, th_size());
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(a));
    TH_OK(dtr_ddp_destroy(b));
    synth_free(&s);
    synth_free(&t);
}
END_TEST

/* CF6: 1,000 buckets outstanding. */
START_TEST(many_buckets) {
    synth s = synth_equal(1000, 3);
    static const size_t limit[] = { 1 };
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.plan_limits = limit;
    o.n_plan_limits = 1;
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_CHECK(stats_of(ddp).buckets == 1000, "%zu buckets", stats_of(ddp).buckets);
    for (int step = 0; step < 3; step++) {
        synth_good_step(ddp, &s, step);
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* ---- T76: the end ---- */

START_TEST(cycles) { /* TD1, I9 */
    synth s = synth_equal(4, 1000);
    size_t used = 0;
    for (int k = 0; k < 100; k++) {
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.grad_as_bucket_view = k % 2 == 1;
        bool shared = dtr__arena_usable(th_world());
        size_t before = shared ? dtr__arena_used(th_world()) : 0;
        dtr_ddp *ddp = ddp_new(&s, &o);
        TH_CHECK(!shared || dtr__arena_used(th_world()) >= before + 4 * 4000,
                 "the buckets are not in node-shared memory (K11)");
        if (k % 3 == 0) {
            synth_good_step(ddp, &s, k);
        }
        TH_OK(dtr_ddp_destroy(ddp));
        if (shared) {
            size_t now = dtr__arena_used(th_world());
            TH_CHECK(k < 2 || now == used, "%zu bytes of node-shared memory, before %zu", now,
                     used);
            used = now;
        }
    }
    TH_CHECK(dtr_world_group_count(th_world()) == 2, "%d groups",
             dtr_world_group_count(th_world()));
    synth_free(&s);
    TH_AGREE();
}
END_TEST

/* TD3: the parent group goes first; the module works on. */
START_TEST(parent_first) {
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), 0, 0, NULL, &g));
    synth s = synth_equal(3, 100);
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(g, s.params, 3, NULL, &ddp));
    synth_good_step(ddp, &s, 0);
    TH_OK(dtr_group_destroy(g));
    synth_good_step(ddp, &s, 1);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* TD2: destroyed by all ranks in an open backward pass. */
START_TEST(in_backward) {
    for (int k = 0; k < 3; k++) {
        synth s = synth_equal(5, 1000);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = 4000;
        dtr_ddp *ddp = ddp_new(&s, &o);
        synth_good_step(ddp, &s, 0);
        for (size_t i = 4; i > (size_t)k; i--) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
        th_good_allreduce(th_group());
    }
}
END_TEST

/* TD3: the world goes first; the handle only answers and can be destroyed. */
START_TEST(world_first) {
    for (int view = 0; view < 2; view++) {
        dtr_world *w = NULL;
        dtr_world_options wo = DTR_WORLD_OPTIONS_INIT;
        wo.keep_mpi = true;
        TH_OK(dtr_world_create(&wo, &w));
        synth s = synth_equal(2, 10);
        dtr_tensor *mine = NULL;
        TH_IS(dtr_tensor_clone(s.params[1].value, &mine), DTR_OK);
        s.params[1].grad = mine;
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.grad_as_bucket_view = view == 1;
        dtr_ddp *ddp = NULL;
        TH_OK(dtr_ddp_create(dtr_world_group(w), s.params, 2, &o, &ddp));
        synth_good_step(ddp, &s, 3);
        dtr_tensor *kept = dtr_tensor_retain(dtr_ddp_grad(ddp, 0));
        TH_OK(dtr_world_destroy(w));
        TH_CHECK(((float *)dtr_tensor_data(mine))[9] ==
                     (float)synth_mean(1, 9, th_size(), 3, th_size(), DTR_F32),
                 "the caller's gradient is %g", ((float *)dtr_tensor_data(mine))[9]);
        TH_CHECK(((float *)dtr_tensor_data(kept))[9] ==
                     (float)synth_mean(0, 9, th_size(), 3, th_size(), DTR_F32),
                 "the retained gradient is gone");
        TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_ERR_STATE);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_ERR_STATE);
        TH_IS(dtr_ddp_set_sync(ddp, false), DTR_ERR_STATE);
        TH_CHECK(dtr_ddp_grad(ddp, 0) == NULL && dtr_ddp_plan(ddp) == NULL &&
                     !dtr_ddp_grad_defined(ddp, 0) && stats_of(ddp).steps == 1,
                 "what is left of the module");
        TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
        dtr_tensor_release(kept);
        dtr_tensor_release(mine);
        synth_free(&s);
        TH_AGREE();
    }
}
END_TEST

static void leave_out_rank_1(dtr_group *g, const synth *s, double limit) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.timeout_s = limit;
    dtr_ddp *ddp = NULL;
    dtr_status made = dtr_ddp_create(g, s->params, 3, &o, &ddp);
    TH_CHECK(made == DTR_OK, "%s: %s", dtr_status_name(made), dtr_last_error_message());
    if (made == DTR_OK) {
        synth_backward(ddp, s, 0);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    }
    if (made == DTR_OK && th_rank() != 1) {
        synth_backward(ddp, s, 1);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_TIMEOUT);
        TH_MESSAGE("rank 1 (host "); /* reliability:FI1 */
        TH_MESSAGE("has not entered allreduce #");
        TH_MESSAGE("it is outside the library since");
        TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_ERR_TIMEOUT);
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_ERR_TIMEOUT);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_TIMEOUT);
        TH_CHECK(stats_of(ddp).has_error, "no error in the statistics");
    }
    th_barrier();
    (void)dtr_ddp_destroy(ddp); /* rank 1's may time out: its peers are gone */
    th_barrier();
}

/* O19, ER16, FT6: a rank that never ends its backward pass; the module fails, the parent group
 * works. */
START_TEST(absent_rank) {
    dtr_group_options go = DTR_GROUP_OPTIONS_INIT;
    go.timeout_s = 50;
    dtr_group *g = NULL;
    TH_OK(dtr_group_split(th_group(), 0, 0, &go, &g));
    synth s = synth_equal(3, 100);
    double limit = 0.5;
    do {
        leave_out_rank_1(g, &s, limit);
    } while (th_patience(&limit));
    TH_AGREE();
    th_good_allreduce(g);
    TH_OK(dtr_group_destroy(g));
    synth_free(&s);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp misc", 110);
    th_add(tc, ready_without_memory, 1, 0);
    th_add(tc, accumulate, 0, 0);
    th_add(tc, flag_is_read_once, 0, 0);
    th_add(tc, buffers, 0, 0);
    th_add(tc, modes, 0, 0);
    ddp_misc_statistics(tc);
    th_add(tc, user_collectives, 0, 0);
    th_add(tc, two_modules, 0, 0);
    th_add(tc, many_buckets, 0, 0);
    th_add(tc, cycles, 0, 0);
    th_add(tc, parent_first, 0, 0);
    th_add(tc, in_backward, 0, 0);
    th_add(tc, world_first, 0, 0);
    th_add(tc, absent_rank, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_misc", make);
}
