/* T72: optimizer steps that run per bucket during backward (Z1-Z6). */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"

enum { N = 6, SIZE = 300, MAX_CALLS = 4096 };

/* Adam, or SGD when adam is false; state outside of the tensors. */
typedef struct optimizer {
    bool adam;
    int step;
    float m[N][SIZE], v[N][SIZE];
    _Atomic int inside, calls;
    int overlapping, fail_at;
    size_t order[MAX_CALLS];
} optimizer;

static void update(optimizer *o, size_t i, float *p, const float *g, size_t n) {
    for (size_t k = 0; k < n; k++) {
        if (!o->adam) {
            p[k] -= 0.01f * g[k];
            continue;
        }
        o->m[i][k] = 0.9f * o->m[i][k] + 0.1f * g[k];
        o->v[i][k] = 0.99f * o->v[i][k] + 0.01f * g[k] * g[k];
        p[k] -= 0.01f * o->m[i][k] / (sqrtf(o->v[i][k]) + 1e-8f);
    }
}

static dtr_status on_step(void *state, size_t i, dtr_tensor *value, dtr_tensor *grad,
                          void *stream) {
    optimizer *o = state;
    o->overlapping += atomic_fetch_add(&o->inside, 1) != 0 || stream != NULL;
    int call = atomic_fetch_add(&o->calls, 1);
    o->order[call % MAX_CALLS] = i;
    dtr_status s = DTR_OK;
    if (o->fail_at == (int)i) {
        s = DTR_ERR_IO;
    } else {
        update(o, i, dtr_tensor_data(value), dtr_tensor_data(grad), dtr_tensor_numel(value));
    }
    atomic_fetch_sub(&o->inside, 1);
    return s;
}

static void write_gradients(dtr_ddp *ddp, const synth *s, int step) {
    for (size_t i = 0; i < s->n; i++) {
        th_rng g = { (uint64_t)(1 + th_rank() * 100 + step * 10 + (int)i) };
        th_random_floats(grad_of(ddp, i), DTR_F32, SIZE, &g, -8, 3);
    }
}

static void backward(dtr_ddp *ddp, const synth *s, int step) {
    write_gradients(ddp, s, step);
    for (size_t i = s->n; i-- > 0;) {
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        th_sleep(0.0003);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
}

static const size_t everything[N] = { 0, 1, 2, 3, 4, 5 };

/* Z1-Z3: the same bits as stepping after backward. */
static void compare(int mode) {
    synth a = synth_equal(N, SIZE), b = synth_equal(N, SIZE);
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 2400;
    o.grad_as_bucket_view = mode & 1;
    o.static_graph = mode == 4;
    o.flags = mode == 5 ? DTR_DDP_PER_PARAM : 0;
    dtr_ddp *after = ddp_new(&a, &o), *during = ddp_new(&b, &o);
    optimizer *x = calloc(1, sizeof *x), *y = calloc(1, sizeof *y);
    x->adam = y->adam = mode & 2;
    x->fail_at = y->fail_at = -1;
    if (mode >= 6) {
        TH_IS(dtr_ddp_register_builtin_hook(after, DTR_HOOK_BF16, NULL), DTR_OK);
        TH_IS(dtr_ddp_register_builtin_hook(during, DTR_HOOK_BF16, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_set_step(during, on_step, y, everything, N), DTR_OK);
    for (int step = 0; step < 6; step++) {
        int before = y->calls;
        backward(after, &a, step);
        backward(during, &b, step);
        for (size_t i = 0; i < N; i++) {
            TH_CHECK(!dtr_ddp_grad_defined(during, i), "p%zu is still defined", i);
            update(x, i, dtr_tensor_data(a.params[i].value), grad_of(after, i), SIZE);
            TH_CHECK(memcmp(dtr_tensor_data(a.params[i].value), dtr_tensor_data(b.params[i].value),
                            SIZE * 4) == 0,
                     "mode %d step %d: p%zu differs", mode, step, i);
        }
        TH_CHECK(y->calls == before + N, "%d calls", y->calls - before);
        const dtr_plan *plan = dtr_ddp_plan(during); /* launch order */
        for (size_t c = 0, at = (size_t)before; c < dtr_plan_bucket_count(plan) && step > 0; c++) {
            const dtr_plan_bucket *k = dtr_plan_get_bucket(plan, c);
            for (size_t i = 0; i < k->n_slots; i++, at++) {
                TH_CHECK(y->order[at] == k->slots[i].param, "call %zu was p%zu, want p%zu", at,
                         y->order[at], k->slots[i].param);
            }
        }
        TH_AGREE();
    }
    TH_CHECK(y->overlapping == 0, "called twice at a time");
    TH_OK(dtr_ddp_destroy(after));
    TH_OK(dtr_ddp_destroy(during));
    free(x);
    free(y);
    synth_free(&a);
    synth_free(&b);
}

START_TEST(same_bits) {
    for (int mode = 0; mode < 8; mode++) {
        compare(mode);
    }
}
END_TEST

/* Z4: some parameters only; iterations without sync are refused. */
START_TEST(subset) {
    synth s = synth_equal(N, SIZE);
    dtr_ddp_options op = DTR_DDP_OPTIONS_INIT;
    op.bucket_cap_bytes = 2400;
    dtr_ddp *ddp = ddp_new(&s, &op);
    optimizer *o = calloc(1, sizeof *o);
    o->fail_at = -1;
    static const size_t some[] = { 1, 4 }, wrong[] = { 99 };
    TH_IS(dtr_ddp_set_step(ddp, NULL, o, some, 2), DTR_ERR_ARG);
    TH_IS(dtr_ddp_set_step(ddp, on_step, o, NULL, 2), DTR_ERR_ARG);
    TH_IS(dtr_ddp_set_step(ddp, on_step, o, wrong, 1), DTR_ERR_ARG);
    TH_IS(dtr_ddp_set_step(ddp, on_step, o, some, 2), DTR_OK);
    for (int step = 0; step < 3; step++) {
        synth_backward(ddp, &s, step);
        TH_IS(dtr_ddp_set_step(ddp, on_step, o, some, 1), DTR_ERR_STATE);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        for (size_t i = 0; i < N; i++) {
            bool stepped = i == 1 || i == 4;
            TH_CHECK(dtr_ddp_grad_defined(ddp, i) == !stepped, "p%zu", i);
            if (!stepped) {
                synth_check(ddp, &s, i, step, th_size());
                TH_CHECK(((float *)dtr_tensor_data(s.params[i].value))[3] == (float)(i + 1),
                         "p%zu was stepped", i);
            }
        }
        TH_AGREE();
    }
    TH_CHECK(o->calls == 6, "%d calls", o->calls);
    TH_IS(dtr_ddp_set_sync(ddp, false), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_ERR_STATE);
    TH_MESSAGE("sync is off");
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_ERR_STATE);
    TH_IS(dtr_ddp_set_step(ddp, NULL, NULL, NULL, 0), DTR_OK); /* off again */
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_IS(dtr_ddp_set_sync(ddp, true), DTR_OK);
    synth_good_step(ddp, &s, 3);
    TH_CHECK(o->calls == 6, "%d calls", o->calls);
    TH_OK(dtr_ddp_destroy(ddp));
    free(o);
    synth_free(&s);
}
END_TEST

/* Parameters used elsewhere are stepped here too, those used nowhere are not. */
START_TEST(unused) {
    synth s = synth_equal(3, SIZE);
    dtr_ddp_options op = DTR_DDP_OPTIONS_INIT;
    op.find_unused = true;
    dtr_ddp *ddp = ddp_new(&s, &op);
    optimizer *o = calloc(1, sizeof *o);
    o->fail_at = -1;
    TH_IS(dtr_ddp_set_step(ddp, on_step, o, everything, 3), DTR_OK);
    synth_write(ddp, &s, 0, 0, false);
    if (th_rank() == 0) {
        TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_CHECK(o->calls == 1 && o->order[0] == 0, "%d calls", o->calls);
    float g = (float)synth_input(0, 7, 0, 0) / (float)th_size();
    float got = ((float *)dtr_tensor_data(s.params[0].value))[7];
    TH_CHECK(got == 1 - 0.01f * g, "%.9g, want %.9g", got, 1 - 0.01f * g);
    TH_OK(dtr_ddp_destroy(ddp));
    free(o);
    synth_free(&s);
}
END_TEST

/* Z6: an error on one rank is agreed and says what was stepped; the next iteration works. */
START_TEST(failing) {
    for (int bad = 0; bad < th_size(); bad++) {
        synth s = synth_equal(N, SIZE);
        dtr_ddp_options op = DTR_DDP_OPTIONS_INIT;
        op.bucket_cap_bytes = 1200;
        dtr_ddp *ddp = ddp_new(&s, &op);
        optimizer *o = calloc(1, sizeof *o);
        o->fail_at = th_rank() == bad ? 3 : -1;
        TH_IS(dtr_ddp_set_step(ddp, on_step, o, everything, N), DTR_OK);
        synth_backward(ddp, &s, 0);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_IO);
        char word[80];
        snprintf(word, sizeof word, "step of parameter 'p3' (3) failed on rank %d", bad);
        TH_MESSAGE(word);
        TH_MESSAGE("before: 'p4', 'p5'");
        TH_AGREE();
        o->fail_at = -1;
        synth_backward(ddp, &s, 1);
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_OK(dtr_ddp_destroy(ddp));
        free(o);
        synth_free(&s);
    }
}
END_TEST

/* Z2, Z5, Z6: a step that only other ranks' use calls for is part of what the ranks agree on. */
START_TEST(failing_elsewhere) {
    for (int bad = 0; bad < th_size(); bad++) {
        synth s = synth_equal(3, SIZE);
        dtr_ddp_options op = DTR_DDP_OPTIONS_INIT;
        op.find_unused = true;
        dtr_ddp *ddp = ddp_new(&s, &op);
        optimizer *o = calloc(1, sizeof *o);
        o->fail_at = th_rank() == bad ? 0 : -1;
        TH_IS(dtr_ddp_set_step(ddp, on_step, o, everything, 3), DTR_OK);
        for (int step = 0; step < 2; step++) {
            synth_write(ddp, &s, 0, step, false);
            TH_IS(th_rank() == 0 ? dtr_ddp_grad_ready(ddp, 0, NULL) : DTR_OK, DTR_OK);
            TH_IS(dtr_ddp_backward_end(ddp, NULL), step == 0 ? DTR_ERR_IO : DTR_OK);
            if (step == 0) {
                char word[80];
                snprintf(word, sizeof word, "step of parameter 'p0' (0) failed on rank %d", bad);
                TH_MESSAGE(word);
            }
            TH_AGREE();
            o->fail_at = -1;
        }
        TH_OK(dtr_ddp_destroy(ddp));
        free(o);
        synth_free(&s);
    }
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp step", 100);
    th_add(tc, same_bits, 0, 0);
    th_add(tc, subset, 0, 0);
    th_add(tc, unused, 0, 0);
    th_add(tc, failing, 0, 0);
    th_add(tc, failing_elsewhere, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_step", make);
}
