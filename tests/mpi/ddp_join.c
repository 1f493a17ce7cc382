/* T64: uneven inputs (J1-J16). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"
#include "world/world.h"

enum { N = 4, SIZE = 50 };

static int inputs_of(int rank) {
    return 5 + rank;
}

static int active_at(int step) {
    int n = 0;
    for (int r = 0; r < th_size(); r++) {
        n += inputs_of(r) > step;
    }
    return n;
}

/* One iteration with gradient 1 everywhere. */
static dtr_status ones_step(dtr_ddp *ddp, size_t n) {
    dtr_status s = dtr_ddp_forward_begin(ddp);
    if (s < 0) {
        return s;
    }
    TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    for (size_t i = n; i-- > 0;) {
        float *g = grad_of(ddp, i);
        for (int k = 0; k < SIZE; k++) {
            g[k] = 1;
        }
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    return dtr_ddp_backward_end(ddp, NULL);
}

/* Hash of this rank's collectives with a label of the module layer: kind, type, counts. */
static uint64_t trace(uint64_t since, uint64_t *last) {
    static dtr__record records[4096];
    size_t n = dtr__rec_read(th_world(), records, 4096);
    uint64_t h = 1;
    for (size_t k = 0; k < n; k++) {
        const dtr__record *r = &records[k];
        *last = r->number;
        if (r->number > since && strncmp(r->label, "ddp", 3) == 0 && r->p2p_seq == 0) {
            h = (h ^ r->kind) * 1099511628211u;
            h = (h ^ r->dtype) * 1099511628211u;
            h = (h ^ r->count_in) * 1099511628211u;
            h = (h ^ r->count_out) * 1099511628211u;
            h = (h ^ (r->flags & 2)) * 1099511628211u;
        }
    }
    return h;
}

static void same_trace(uint64_t since) {
    uint64_t all[16], last = 0;
    th_gather_u64(trace(since, &last), all);
    for (int r = 1; r < th_size(); r++) {
        TH_CHECK(all[r] == all[0], "ranks 0 and %d issued different collectives", r);
    }
}

static uint64_t now_in_trace(void) {
    uint64_t last = 0;
    (void)trace(0, &last);
    return last;
}

/* J1, J3, J4, J6, M5. Modes: hook, find_unused, view, by active, static. */
static void uneven(int mode) {
    synth s = synth_equal(N, SIZE);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 400;
    o.find_unused = mode == 1;
    o.static_graph = mode == 2;
    o.grad_as_bucket_view = mode == 3;
    o.flags = mode == 5 ? DTR_DDP_PER_PARAM : 0;
    dtr_ddp *ddp = ddp_new(&s, &o);
    if (mode == 4) {
        TH_IS(dtr_ddp_register_builtin_hook(ddp, DTR_HOOK_ALLREDUCE, NULL), DTR_OK);
    }
    dtr_join_options jo = DTR_JOIN_OPTIONS_INIT;
    jo.divide_by_active = mode == 6 || mode == 3;
    bool by_active = jo.divide_by_active;
    for (int epoch = 0; epoch < 2; epoch++) {
        uint64_t since = now_in_trace();
        TH_IS(dtr_ddp_join_begin(ddp, &jo), DTR_OK);
        for (int step = 0; step < inputs_of(th_rank()); step++) {
            TH_IS(ones_step(ddp, N), DTR_OK);
            float want = by_active ? 1 : (float)active_at(step) / (float)th_size();
            for (size_t i = 0; i < N; i++) {
                TH_CHECK(grad_of(ddp, i)[SIZE - 1] == want, "mode %d step %d: %g, want %g", mode,
                         step, grad_of(ddp, i)[SIZE - 1], want);
                float *p = dtr_tensor_data(s.params[i].value);
                p[3] -= grad_of(ddp, i)[3];
            }
        }
        TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
        same_trace(since);
        TH_IS(dtr_ddp_check_equal(ddp), DTR_OK);
        TH_AGREE();
    }
    dtr_ddp_stats st = stats_of(ddp);
    uint64_t mine = 2 * (uint64_t)inputs_of(th_rank()),
             most = 2 * (uint64_t)inputs_of(th_size() - 1);
    TH_CHECK(st.steps == mine && st.shadow_steps == most - mine, "%d steps, %d shadows",
             (int)st.steps, (int)st.shadow_steps);
    synth_good_step(ddp, &s, 3); /* even again, without forward */
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}

START_TEST(uneven_inputs) {
    for (int mode = 0; mode < 7; mode++) {
        uneven(mode);
    }
}
END_TEST

/* Ranks without any input, rank 0 among them: the plan stays (R8), learning works later. */
START_TEST(no_inputs) {
    for (int mode = 0; mode < 3; mode++) {
        synth s = synth_equal(N, SIZE);
        dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
        o.bucket_cap_bytes = 200;
        o.static_graph = mode == 1;
        dtr_ddp *ddp = ddp_new(&s, &o);
        uint64_t hash = dtr_plan_hash(dtr_ddp_plan(ddp));
        TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_OK);
        for (int step = 0; step < 2 && th_rank() == th_size() - 1; step++) {
            TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
            TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
            for (size_t i = 0; i < N; i++) {
                synth_write(ddp, &s, i, step, false);
                TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
            }
            TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
            float want = (float)synth_input(2, 5, th_rank(), step) / (float)th_size();
            TH_CHECK(grad_of(ddp, 2)[5] == want, "%g, want %g", grad_of(ddp, 2)[5], want);
        }
        if (mode == 2 && th_rank() == th_size() - 1) { /* the last joiner's values win (J6) */
            ((float *)dtr_tensor_data(s.params[1].value))[7] = 42;
        }
        TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
        TH_CHECK(((float *)dtr_tensor_data(s.params[1].value))[7] == (mode == 2 ? 42 : 2), "J6");
        TH_CHECK(th_size() == 1 || dtr_plan_hash(dtr_ddp_plan(ddp)) == hash, "the plan changed");
        TH_AGREE();
        for (int step = 0; step < 3; step++) {
            synth_good_step(ddp, &s, step);
            TH_AGREE();
        }
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* J5, ER9 */
START_TEST(stop_early) {
    synth s = synth_equal(N, SIZE);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    dtr_join_options jo = DTR_JOIN_OPTIONS_INIT;
    jo.stop_early = true;
    for (int epoch = 0; epoch < 2; epoch++) {
        TH_IS(dtr_ddp_join_begin(ddp, &jo), DTR_OK);
        dtr_status s1 = DTR_OK;
        int done = 0;
        for (; done < inputs_of(th_rank()) && s1 == DTR_OK; done += s1 == DTR_OK) {
            s1 = ones_step(ddp, N);
        }
        if (s1 == DTR_OK) {
            s1 = dtr_ddp_join_end(ddp);
        }
        TH_CHECK(s1 == (th_size() == 1 ? DTR_OK : DTR_ERR_STATE), "%s", dtr_status_name(s1));
        if (th_size() > 1) {
            TH_MESSAGE("rank 0 has no more inputs");
        }
        TH_CHECK(done == inputs_of(0), "%d steps", done);
        TH_IS(dtr_ddp_join_end(ddp), DTR_ERR_STATE); /* it is over */
        TH_AGREE();
        synth_good_step(ddp, &s, epoch);
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* J7, J9, J12, and the rules of calls. */
START_TEST(rules) {
    synth s = synth_equal(N, SIZE);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    dtr_join_options jo = DTR_JOIN_OPTIONS_INIT;
    TH_IS(dtr_ddp_join_end(ddp), DTR_ERR_STATE);
    jo.disable = true;
    TH_IS(dtr_ddp_join_begin(ddp, &jo), DTR_OK);
    TH_IS(dtr_ddp_join_begin(ddp, &jo), DTR_ERR_STATE);
    synth_good_step(ddp, &s, 0);
    synth_good_step(ddp, &s, 1);
    TH_CHECK(th_size() == 1 || stats_of(ddp).last.collectives == stats_of(ddp).last.buckets,
             "%zu collectives", stats_of(ddp).last.collectives);
    TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
    TH_AGREE();
    TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_ERR_STATE); /* J2 */
    TH_MESSAGE("forward_begin");
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_ERR_STATE);
    TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    TH_IS(dtr_ddp_join_end(ddp), DTR_ERR_STATE);
    synth_good_step(ddp, &s, 2);
    TH_CHECK(stats_of(ddp).last.collectives == stats_of(ddp).last.buckets * (th_size() > 1) + 1,
             "%zu collectives with the header", stats_of(ddp).last.collectives);
    /* Evaluation needs no header. */
    TH_IS(dtr_ddp_set_eval(ddp, true), DTR_OK);
    for (int k = 0; k < th_rank(); k++) {
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    }
    TH_IS(dtr_ddp_set_eval(ddp, false), DTR_OK);
    TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.static_graph = o.find_unused = true;
    ddp = ddp_new(&s, &o);
    TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_ERR_STATE);
    synth_good_step(ddp, &s, 0);
    TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_OK);
    TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* J13: steps without sync are announced; ranks that disagree are told. */
START_TEST(local_steps) {
    synth s = synth_equal(N, SIZE);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_OK);
    for (int step = 0; step < inputs_of(th_rank()); step++) {
        TH_IS(dtr_ddp_set_sync(ddp, step % 2 == 1), DTR_OK);
        TH_IS(ones_step(ddp, N), DTR_OK);
        float want = step % 2 == 1 ? (float)active_at(step) / (float)th_size() : 1;
        TH_CHECK(grad_of(ddp, 0)[0] == want, "step %d: %g, want %g", step, grad_of(ddp, 0)[0],
                 want);
    }
    TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
    TH_AGREE();
    TH_IS(dtr_ddp_set_sync(ddp, th_rank() != 1), DTR_OK);
    TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_OK);
    TH_IS(dtr_ddp_forward_begin(ddp), th_size() > 1 ? DTR_ERR_MISMATCH : DTR_OK);
    if (th_size() > 1) {
        TH_MESSAGE("rank 1 without");
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_ERR_MISMATCH);
    }
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
    th_good_allreduce(th_group());
}
END_TEST

/* J15: an error of the active ranks is what join_end returns elsewhere. */
START_TEST(errors) {
    synth s = synth_equal(N, SIZE);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_OK);
    int last = th_size() - 1;
    if (th_rank() == last) {
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
        TH_IS(ones_step(ddp, N), DTR_OK); /* and goes on */
        TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
    } else {
        TH_IS(dtr_ddp_join_end(ddp), DTR_ERR_STATE);
        TH_MESSAGE("'p1' (1) was not ready on rank");
    }
    TH_AGREE();
    synth_good_step(ddp, &s, 1);
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* J16: two modules in turn, buffers from the highest active rank (J2). */
START_TEST(two_modules) {
    synth a = synth_equal(N, SIZE), b = synth_equal(3, SIZE);
    int64_t n = 2;
    dtr_param buffer = { "count", NULL, NULL, 0 };
    TH_IS(dtr_tensor_empty(th_world(), DTR_I64, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1, &n,
                           &buffer.value),
          DTR_OK);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.buffers = &buffer;
    o.n_buffers = 1;
    dtr_ddp *x = ddp_new(&a, NULL), *y = ddp_new(&b, &o);
    for (int epoch = 0; epoch < 2; epoch++) {
        TH_IS(dtr_ddp_join_begin(x, NULL), DTR_OK);
        TH_IS(dtr_ddp_join_begin(y, NULL), DTR_OK);
        for (int step = 0; step < inputs_of(th_rank()); step++) {
            float want = (float)active_at(step) / (float)th_size();
            dtr_tensor_fill(buffer.value, 10 * step + th_rank(), NULL);
            TH_IS(ones_step(x, N), DTR_OK);
            TH_IS(ones_step(y, 3), DTR_OK);
            TH_CHECK(grad_of(x, 1)[1] == want && grad_of(y, 1)[1] == want, "step %d: %g %g", step,
                     grad_of(x, 1)[1], grad_of(y, 1)[1]);
            TH_CHECK(((int64_t *)dtr_tensor_data(buffer.value))[1] == 10 * step + th_size() - 1,
                     "buffer %d", (int)((int64_t *)dtr_tensor_data(buffer.value))[1]);
        }
        TH_IS(dtr_ddp_join_end(x), DTR_OK);
        TH_IS(dtr_ddp_join_end(y), DTR_OK);
        TH_IS(dtr_ddp_check_equal(x), DTR_OK);
        TH_IS(dtr_ddp_check_equal(y), DTR_OK);
        TH_AGREE();
    }
    TH_OK(dtr_ddp_destroy(x));
    TH_OK(dtr_ddp_destroy(y));
    dtr_tensor_release(buffer.value);
    synth_free(&a);
    synth_free(&b);
}
END_TEST

/* J10: what a joined rank had used before does not count; J8: one warning. */
START_TEST(long_shadow) {
    synth s = synth_equal(2, SIZE);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.find_unused = true;
    dtr_ddp *ddp = ddp_new(&s, &o);
    TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK);
    if (th_rank() != th_size() - 1) { /* used in a local step, never synchronised */
        TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
    th_log_clear();
    TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_OK);
    for (int step = 0; step < 1003 && th_rank() == th_size() - 1; step++) {
        TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
        TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
        TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_CHECK(dtr_ddp_grad_defined(ddp, 0) && !dtr_ddp_grad_defined(ddp, 1), "flags");
    }
    TH_IS(dtr_ddp_join_end(ddp), DTR_OK);
    TH_CHECK(th_log_count("shadowed") == (th_rank() != th_size() - 1), "%d warnings",
             th_log_count("shadowed"));
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp join", 100);
    th_add(tc, uneven_inputs, 0, 0);
    th_add(tc, no_inputs, 0, 0);
    th_add(tc, stop_early, 0, 0);
    th_add(tc, rules, 0, 0);
    th_add(tc, local_steps, 0, 0);
    th_add(tc, errors, 2, 0);
    th_add(tc, two_modules, 0, 0);
    th_add(tc, long_shadow, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_join", make);
}
