/* The library's optimizers: their rules, and the sharded form against the whole one (SH4, SH5). */
#include <dtr/optim.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"

enum { N = 5 };
/* Vectors and matrices, mixed so that slices begin and end inside of both. */
static const int64_t shapes[N][2] = { { 1, 0 }, { 33, 31 }, { 65, 0 }, { 70, 40 }, { 129, 0 } };

static synth model(dtr_dtype d) {
    static const size_t any[N] = { 1, 1, 1, 1, 1 };
    synth s = synth_new(N, any, d);
    for (size_t i = 0; i < N; i++) {
        dtr_tensor *value = NULL;
        ck_assert_int_eq(dtr_tensor_empty(th_world(), d, (dtr_device){ DTR_CPU, 0 },
                                          DTR_MEM_DEFAULT, shapes[i][1] > 0 ? 2 : 1, shapes[i],
                                          &value),
                         DTR_OK);
        for (size_t k = 0; k < dtr_tensor_numel(value); k++) {
            th_set(dtr_tensor_data(value), d, k, (double)(k % 23) / 16 - 0.5, 0);
        }
        dtr_tensor_release(s.params[i].value);
        s.params[i].value = value;
    }
    return s;
}

/* Where `apart`, the parameters of `late` are averaged apart: only their trigger is reported. */
static const size_t late[] = { 1, 2 };

static void backward(dtr_ddp *ddp, const synth *s, int step, bool apart) {
    for (size_t i = s->n; i-- > 0;) {
        float mine[2800];
        th_rng g = { (uint64_t)(1 + th_rank() * 100 + step * 10 + (int)i) };
        dtr_tensor *t = dtr_ddp_grad(ddp, i);
        th_random_floats(mine, DTR_F32, dtr_tensor_numel(t), &g, -8, 0);
        for (size_t k = 0; k < dtr_tensor_numel(t); k++) {
            th_set(dtr_tensor_data(t), s->dtype, k, mine[k], 0);
        }
        if (!apart || (i != late[0] && i != late[1])) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
}

static dtr_ddp_options small_buckets(void) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 4096;
    o.first_bucket_bytes = 256;
    return o;
}

static dtr_optim_options rule(dtr_optim_rule r, double momentum, double decay, bool nesterov) {
    dtr_optim_options o = DTR_OPTIM_OPTIONS_INIT;
    o.rule = r;
    o.rate = 0.01;
    o.momentum = momentum;
    o.weight_decay = decay;
    o.decay_min_ndim = decay > 0 ? 2 : 0;
    o.nesterov = nesterov;
    return o;
}

static void compare(const dtr_optim_options *oo, dtr_dtype d) {
    synth a = model(d), b = model(d);
    dtr_ddp_options o = small_buckets();
    dtr_ddp *whole = ddp_new(&a, &o), *sharded = ddp_new(&b, &o);
    dtr_zero *z = NULL;
    dtr_optim *x = NULL, *y = NULL;
    TH_OK(dtr_zero_create(sharded, NULL, &z));
    TH_OK(dtr_optim_create(whole, NULL, oo, &x));
    TH_OK(dtr_optim_create(sharded, z, oo, &y));
    for (int step = 0; step < 8; step++) {
        backward(whole, &a, step, false);
        backward(sharded, &b, step, false);
        if (step == 4) {
            TH_IS(dtr_optim_set_rate(x, 0.002), DTR_OK);
            TH_IS(dtr_optim_set_rate(y, 0.002), DTR_OK);
        }
        TH_IS(dtr_optim_step(x), DTR_OK);
        TH_IS(dtr_optim_step(y), DTR_OK);
        for (size_t i = 0; i < N; i++) {
            size_t n = dtr_tensor_numel(a.params[i].value) * dtr_dtype_size(d);
            TH_CHECK(memcmp(dtr_tensor_data(a.params[i].value), dtr_tensor_data(b.params[i].value),
                            n) == 0,
                     "rule %d, %s, step %d: p%zu differs", (int)oo->rule, dtr_dtype_name(d), step,
                     i);
        }
        TH_AGREE();
    }
    TH_CHECK(dtr_optim_steps(y) == 8, "%llu steps", (unsigned long long)dtr_optim_steps(y));
    TH_IS(dtr_optim_step(y), DTR_ERR_STATE);
    TH_CHECK(dtr_optim_steps(y) == 8, "a failed step was counted");
    size_t want = 0;
    for (size_t k = 0; k < dtr_optim_state_count(y); k++) {
        dtr_zero_state st;
        TH_IS(dtr_optim_state(y, k, &st), DTR_OK);
        TH_CHECK(st.data.count == dtr_zero_shard_count(z, d) && st.param_dtype == d, "'%s'",
                 st.name);
        want += st.data.count * dtr_dtype_size(st.data.dtype);
    }
    TH_CHECK(dtr_optim_state_nbytes(y) == want, "%zu bytes, want %zu", dtr_optim_state_nbytes(y),
             want);
    TH_OK(dtr_optim_destroy(x));
    TH_OK(dtr_optim_destroy(y));
    TH_OK(dtr_zero_destroy(z));
    TH_OK(dtr_ddp_destroy(whole));
    TH_OK(dtr_ddp_destroy(sharded));
    synth_free(&a);
    synth_free(&b);
}

START_TEST(same_bits) {
    const dtr_optim_options all[] = {
        rule(DTR_OPTIM_SGD, 0, 0, false),     rule(DTR_OPTIM_SGD, 0.9, 0.1, false),
        rule(DTR_OPTIM_SGD, 0.9, 0.1, true),  rule(DTR_OPTIM_ADAM, 0, 0.1, false),
        rule(DTR_OPTIM_ADAMW, 0, 0.1, false),
    };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        compare(&all[k], DTR_F32);
    }
    compare(&all[4], DTR_F64);
    compare(&all[4], DTR_BF16);
    compare(&all[1], DTR_F16);
}
END_TEST

/* One element, by the formulas in double. */
typedef struct reference {
    double p, m, v;
} reference;

static void expect(const dtr_optim_options *o, reference *r, double g, int t, bool decays) {
    double decay = decays ? o->weight_decay : 0;
    if (o->rule == DTR_OPTIM_SGD) {
        g += decay * r->p;
        r->m = o->momentum * r->m + g;
        r->p -= o->rate * (o->nesterov ? g + o->momentum * r->m : r->m);
        return;
    }
    if (o->rule == DTR_OPTIM_ADAMW) {
        r->p -= o->rate * decay * r->p;
    } else {
        g += decay * r->p;
    }
    r->m = 0.9 * r->m + 0.1 * g;
    r->v = 0.999 * r->v + 0.001 * g * g;
    r->p -= o->rate * (r->m / (1 - pow(0.9, t))) / (sqrt(r->v / (1 - pow(0.999, t))) + 1e-8);
}

START_TEST(rules) {
    const dtr_optim_options all[] = {
        rule(DTR_OPTIM_SGD, 0, 0.1, false),   rule(DTR_OPTIM_SGD, 0.9, 0.1, false),
        rule(DTR_OPTIM_SGD, 0.9, 0, true),    rule(DTR_OPTIM_ADAM, 0, 0.1, false),
        rule(DTR_OPTIM_ADAMW, 0, 0.1, false),
    };
    for (size_t c = 0; c < sizeof all / sizeof all[0]; c++) {
        synth s = model(DTR_F32);
        dtr_ddp *ddp = ddp_new(&s, NULL);
        dtr_optim *o = NULL;
        TH_OK(dtr_optim_create(ddp, NULL, &all[c], &o));
        reference r[2] = { { 0 } };
        static const size_t at[2][2] = { { 2, 64 }, { 3, 2799 } }; /* a vector, a matrix */
        for (int e = 0; e < 2; e++) {
            r[e].p = (double)((float *)dtr_tensor_data(s.params[at[e][0]].value))[at[e][1]];
        }
        for (int step = 0; step < 10; step++) {
            backward(ddp, &s, step, false);
            for (int e = 0; e < 2; e++) {
                expect(&all[c], &r[e], (double)grad_of(ddp, at[e][0])[at[e][1]], step + 1, e == 1);
            }
            TH_IS(dtr_optim_step(o), DTR_OK);
            for (int e = 0; e < 2; e++) {
                float got = ((float *)dtr_tensor_data(s.params[at[e][0]].value))[at[e][1]];
                TH_CHECK(fabs((double)got - r[e].p) < 2e-6, "rule %zu, step %d: %.9g, want %.9g", c,
                         step, (double)got, r[e].p);
            }
            TH_AGREE();
        }
        TH_OK(dtr_optim_destroy(o));
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* Parameters that are averaged apart from the buckets are stepped as the others are. */
START_TEST(delayed) {
    const dtr_optim_options all[] = { rule(DTR_OPTIM_SGD, 0.9, 0.1, false),
                                      rule(DTR_OPTIM_ADAMW, 0, 0.1, false) };
    for (size_t c = 0; c < sizeof all / sizeof all[0]; c++) {
        synth s = model(DTR_F32);
        dtr_ddp_options op = small_buckets();
        op.delayed = late;
        op.n_delayed = 2;
        op.delayed_trigger = 0;
        op.has_delayed_trigger = true;
        dtr_ddp *ddp = ddp_new(&s, &op);
        dtr_optim *o = NULL;
        TH_OK(dtr_optim_create(ddp, NULL, &all[c], &o));
        size_t elements = 0;
        reference r[N] = { { 0 } }; /* of the last element of each */
        for (size_t i = 0; i < N; i++) {
            size_t n = dtr_tensor_numel(s.params[i].value);
            r[i].p = (double)((float *)dtr_tensor_data(s.params[i].value))[n - 1];
            elements += n;
        }
        TH_CHECK(dtr_optim_state_nbytes(o) == elements * sizeof(float) * dtr_optim_state_count(o),
                 "%zu bytes of state", dtr_optim_state_nbytes(o));
        for (int step = 0; step < 5; step++) {
            backward(ddp, &s, step, true);
            for (size_t i = 0; i < N; i++) {
                size_t n = dtr_tensor_numel(s.params[i].value);
                expect(&all[c], &r[i], (double)grad_of(ddp, i)[n - 1], step + 1, shapes[i][1] > 0);
            }
            TH_IS(dtr_optim_step(o), DTR_OK);
            for (size_t i = 0; i < N; i++) {
                size_t n = dtr_tensor_numel(s.params[i].value);
                float got = ((float *)dtr_tensor_data(s.params[i].value))[n - 1];
                TH_CHECK(fabs((double)got - r[i].p) < 2e-6, "step %d, p%zu: %.9g, want %.9g", step,
                         i, (double)got, r[i].p);
            }
            TH_AGREE();
        }
        TH_OK(dtr_optim_destroy(o));
        TH_OK(dtr_ddp_destroy(ddp));
        synth_free(&s);
    }
}
END_TEST

/* Small steps add up in the master copy of 16-bit parameters, and changes from outside count. */
START_TEST(master) {
    synth s = model(DTR_BF16);
    dtr_ddp *ddp = ddp_new(&s, NULL);
    dtr_zero *z = NULL;
    dtr_optim *o = NULL;
    dtr_optim_options oo = rule(DTR_OPTIM_SGD, 0, 0, false);
    oo.rate = 1.0 / 1024;
    TH_OK(dtr_zero_create(ddp, NULL, &z));
    TH_OK(dtr_optim_create(ddp, z, &oo, &o));
    for (int step = 0; step < 64; step++) {
        if (step == 32) { /* as a broadcast or a checkpoint would */
            TH_IS(dtr_tensor_fill(s.params[1].value, 2, NULL), DTR_OK);
        }
        for (size_t i = 0; i < N; i++) {
            TH_IS(dtr_tensor_fill(dtr_ddp_grad(ddp, i), 1, NULL), DTR_OK);
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        if (step == 0) {
            TH_IS(dtr_tensor_fill(s.params[1].value, 1, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_IS(dtr_optim_step(o), DTR_OK);
        double want = (step < 32 ? 1 : 2) - (step % 32 + 1) / 1024.0;
        char rounded[2];
        th_set(rounded, DTR_BF16, 0, want, 0);
        TH_CHECK(th_get(dtr_tensor_data(s.params[1].value), DTR_BF16, 500, false) ==
                     th_get(rounded, DTR_BF16, 0, false),
                 "step %d: %.9g, want %.9g rounded", step,
                 th_get(dtr_tensor_data(s.params[1].value), DTR_BF16, 500, false), want);
        TH_AGREE();
    }
    TH_OK(dtr_optim_destroy(o));
    TH_OK(dtr_zero_destroy(z));
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* SH5: the state of Adam, divided by the ranks. */
START_TEST(memory) {
    synth s = model(DTR_F32);
    dtr_ddp_options op = small_buckets();
    dtr_ddp *ddp = ddp_new(&s, &op);
    dtr_zero *z = NULL;
    dtr_optim *whole = NULL, *shard = NULL;
    dtr_optim_options oo = rule(DTR_OPTIM_ADAMW, 0, 0, false);
    TH_OK(dtr_optim_create(ddp, NULL, &oo, &whole));
    TH_OK(dtr_zero_create(ddp, NULL, &z));
    TH_OK(dtr_optim_create(ddp, z, &oo, &shard));
    size_t W = (size_t)th_size(), elements = 0;
    for (size_t i = 0; i < N; i++) {
        elements += dtr_tensor_numel(s.params[i].value);
    }
    size_t padding = 2 * 64 * (N + W * dtr_plan_bucket_count(dtr_ddp_plan(ddp)));
    size_t have = dtr_optim_state_nbytes(shard), full = dtr_optim_state_nbytes(whole);
    TH_CHECK(full == elements * 8, "%zu bytes for %zu elements", full, elements);
    TH_CHECK(have >= full / W && have * W < full + padding, "%zu bytes of %zu on %zu ranks", have,
             full, W);
    TH_IS(dtr_optim_step(whole), DTR_ERR_STATE); /* the module is sharded now */
    TH_OK(dtr_optim_destroy(whole));
    TH_OK(dtr_optim_destroy(shard));
    TH_OK(dtr_zero_destroy(z));
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

START_TEST(refused) {
    synth s = model(DTR_F32);
    dtr_ddp *ddp = ddp_new(&s, NULL), *other = ddp_new(&s, NULL);
    dtr_zero *z = NULL;
    dtr_optim *o = NULL;
    TH_OK(dtr_zero_create(other, NULL, &z));
    TH_IS(dtr_optim_create(ddp, NULL, NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_optim_create(NULL, NULL, NULL, &o), DTR_ERR_ARG);
    TH_IS(dtr_optim_create(ddp, z, NULL, &o), DTR_ERR_ARG);
    TH_IS(dtr_optim_create(other, NULL, NULL, &o), DTR_ERR_ARG);
    TH_MESSAGE("sharded");
    dtr_optim_options bad = DTR_OPTIM_OPTIONS_INIT;
    bad.beta2 = 1;
    TH_IS(dtr_optim_create(ddp, NULL, &bad, &o), DTR_ERR_ARG);
    TH_MESSAGE("beta2 is 1");
    bad = (dtr_optim_options)DTR_OPTIM_OPTIONS_INIT;
    bad.nesterov = true;
    TH_IS(dtr_optim_create(ddp, NULL, &bad, &o), DTR_ERR_ARG);
    bad = (dtr_optim_options)DTR_OPTIM_OPTIONS_INIT;
    bad.rate = NAN;
    TH_IS(dtr_optim_create(ddp, NULL, &bad, &o), DTR_ERR_ARG);
    bad = (dtr_optim_options)DTR_OPTIM_OPTIONS_INIT;
    bad.rule = (dtr_optim_rule)7;
    TH_IS(dtr_optim_create(ddp, NULL, &bad, &o), DTR_ERR_ARG);
    bad.struct_size = 0;
    TH_IS(dtr_optim_create(ddp, NULL, &bad, &o), DTR_ERR_ARG);
    TH_CHECK(o == NULL, "the output was touched");
    TH_OK(dtr_optim_create(ddp, NULL, NULL, &o));
    TH_CHECK(dtr_optim_state_count(o) == 0 && dtr_optim_state_nbytes(o) == 0, "SGD has state");
    dtr_zero_state st;
    TH_IS(dtr_optim_state(o, 0, &st), DTR_ERR_ARG);
    TH_IS(dtr_optim_set_rate(o, -1), DTR_ERR_ARG);
    TH_IS(dtr_optim_step(NULL), DTR_ERR_ARG);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_optim_step(o), DTR_ERR_STATE);
    for (size_t i = 1; i < N; i++) {
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_OK(dtr_optim_step(o));
    TH_OK(dtr_optim_destroy(o));
    TH_OK(dtr_optim_destroy(NULL));
    TH_OK(dtr_zero_destroy(z));
    TH_OK(dtr_ddp_destroy(other));
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_param complex = { "c", NULL, NULL, 0 };
    int64_t one = 1;
    TH_OK(dtr_tensor_empty(th_world(), DTR_C64, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1,
                           &one, &complex.value));
    TH_OK(dtr_ddp_create(th_group(), &complex, 1, NULL, &ddp));
    TH_IS(dtr_optim_create(ddp, NULL, NULL, &o), DTR_ERR_UNSUPPORTED);
    TH_MESSAGE("'c' (0) is c64");
    TH_OK(dtr_ddp_destroy(ddp));
    dtr_tensor_release(complex.value);
    synth_free(&s);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp optim", 100);
    th_add(tc, same_bits, 0, 0);
    th_add(tc, rules, 0, 0);
    th_add(tc, delayed, 0, 0);
    th_add(tc, master, 0, 0);
    th_add(tc, memory, 0, 0);
    th_add(tc, refused, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_optim", make);
}
