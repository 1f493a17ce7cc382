/* T73: the sharded optimizer (SH1-SH11). */
#include <dtr/zero.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"

enum { N = 6, CAP = 8192 }; /* more than any shard here */
static const size_t sizes[N] = { 1, 63, 64, 65, 1000, 4097 };

typedef enum rule { SGD, MOMENTUM, ADAM } rule;
typedef struct optimizer {
    rule rule;
    float m[CAP], v[CAP];
    int calls;
    size_t next;   /* where the next call should begin */
    int fail_call; /* -1: none */
    bool padding_bad;
} optimizer;

static optimizer *optimizer_new(rule r) {
    optimizer *o = calloc(1, sizeof *o);
    o->rule = r;
    o->fail_call = -1;
    return o;
}

static float updated(optimizer *o, size_t at, float p, float g) {
    if (o->rule == SGD) {
        return p - 0.01f * g;
    }
    o->m[at] = 0.9f * o->m[at] + 0.1f * g;
    if (o->rule == MOMENTUM) {
        return p - 0.01f * o->m[at];
    }
    o->v[at] = 0.99f * o->v[at] + 0.01f * g * g;
    return p - 0.01f * o->m[at] / (sqrtf(o->v[at]) + 1e-8f);
}

static dtr_status on_update(void *state, size_t first, dtr_buffer param, dtr_buffer grad) {
    optimizer *o = state;
    TH_CHECK(param.count == grad.count && param.dtype == grad.dtype, "slices differ in kind");
    TH_CHECK(first == o->next, "slice begins at %zu, want %zu", first, o->next);
    o->next += param.count;
    if (o->calls++ == o->fail_call) {
        return DTR_ERR_IO;
    }
    for (size_t k = 0; k < param.count; k++) {
        double p = th_get(param.data, param.dtype, k, false);
        double g = th_get(grad.data, grad.dtype, k, false);
        th_set(param.data, param.dtype, k, updated(o, first + k, (float)p, (float)g), 0);
    }
    return DTR_OK;
}

/* The same on whole parameters after plain averaging; the state of parameter i begins at `at`. */
static void step_plain(dtr_ddp *ddp, const synth *s, optimizer *o) {
    size_t at = 0;
    for (size_t i = 0; i < s->n; i++) {
        dtr_tensor *g = dtr_ddp_full_grad(ddp, i);
        void *p = dtr_tensor_data(s->params[i].value);
        for (size_t k = 0; k < dtr_tensor_numel(g); k++, at++) {
            th_set(p, s->dtype, k,
                   updated(o, at, (float)th_get(p, s->dtype, k, false),
                           (float)th_get(dtr_tensor_data(g), s->dtype, k, false)),
                   0);
        }
    }
}

static dtr_status step_zero(dtr_zero *z, optimizer *o) {
    o->calls = 0;
    o->next = 0;
    return dtr_zero_step(z, on_update, o);
}

/* Gradients whose sum depends on the order of adding. */
static void backward(dtr_ddp *ddp, const synth *s, int step, bool add) {
    for (size_t i = s->n; i-- > 0;) {
        float mine[4097];
        th_rng g = { (uint64_t)(1 + th_rank() * 100 + step * 10 + (int)i) };
        dtr_tensor *t = dtr_ddp_grad(ddp, i);
        dtr_dtype d = dtr_tensor_dtype(t);
        th_random_floats(mine, DTR_F32, dtr_tensor_numel(t), &g, -8, 3);
        for (size_t k = 0; k < dtr_tensor_numel(t); k++) {
            double old = add ? th_get(dtr_tensor_data(t), d, k, false) : 0;
            th_set(dtr_tensor_data(t), d, k, old + mine[k], 0);
        }
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
}

static void check_values(const synth *a, const synth *b, const char *what, int step) {
    for (size_t i = 0; i < a->n; i++) {
        size_t n = dtr_tensor_numel(a->params[i].value) * dtr_dtype_size(a->dtype);
        TH_CHECK(memcmp(dtr_tensor_data(a->params[i].value), dtr_tensor_data(b->params[i].value),
                        n) == 0,
                 "%s, step %d: p%zu differs", what, step, i);
    }
    TH_AGREE();
}

static dtr_ddp_options small_buckets(void) {
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    o.bucket_cap_bytes = 4096;
    o.first_bucket_bytes = 256;
    return o;
}

static dtr_zero *zero_new(dtr_ddp *ddp, uint32_t flags) {
    dtr_zero_options o = DTR_ZERO_OPTIONS_INIT;
    dtr_zero *z = NULL;
    o.flags = flags;
    TH_OK(dtr_zero_create(ddp, &o, &z));
    return z;
}

typedef struct variant {
    const char *name;
    rule rule;
    dtr_dtype dtype, reduce;
    int before; /* plain iterations before sharding */
    bool view, fixed, reduced;
    uint32_t flags;
} variant;

/* SH4: the same bits as the same optimizer on averaged gradients. */
static void compare(const variant *v) {
    synth a = synth_new(N, sizes, v->dtype), b = synth_new(N, sizes, v->dtype);
    dtr_ddp_options o = small_buckets();
    o.grad_as_bucket_view = v->view;
    o.static_graph = v->fixed;
    o.has_reduce_dtype = v->reduced;
    o.reduce_dtype = v->reduce;
    dtr_ddp *plain = ddp_new(&a, &o), *sharded = ddp_new(&b, &o);
    optimizer *x = optimizer_new(v->rule), *y = optimizer_new(v->rule);
    for (int step = 0; step < v->before; step++) {
        backward(plain, &a, step, false);
        backward(sharded, &b, step, false);
    }
    dtr_zero *z = zero_new(sharded, v->flags);
    uint64_t hash = dtr_plan_hash(dtr_ddp_plan(sharded));
    for (int step = v->before; step < 20; step++) {
        backward(plain, &a, step, false);
        backward(sharded, &b, step, false);
        step_plain(plain, &a, x);
        TH_IS(step_zero(z, y), DTR_OK);
        for (size_t i = 0; i < N; i++) { /* nothing to wait for without DTR_ZERO_OVERLAP */
            TH_IS(dtr_zero_wait(z, i), DTR_OK);
        }
        TH_CHECK(y->calls == (int)dtr_plan_bucket_count(dtr_ddp_plan(sharded)), "%d calls",
                 y->calls);
        TH_CHECK(hash == dtr_plan_hash(dtr_ddp_plan(sharded)), "the plan changed (SH1)");
        check_values(&a, &b, v->name, step);
    }
    TH_IS(dtr_ddp_check_equal(sharded), DTR_OK);
    TH_OK(dtr_zero_destroy(z));
    synth_good_step(sharded, &b, 30); /* SH12: averages again */
    TH_OK(dtr_ddp_destroy(plain));
    TH_OK(dtr_ddp_destroy(sharded));
    free(x);
    free(y);
    synth_free(&a);
    synth_free(&b);
}

START_TEST(same_bits) {
    static const variant all[] = {
        { "sgd", SGD, DTR_F32, DTR_F32, 0, false, false, false, 0 },
        { "momentum, view", MOMENTUM, DTR_F32, DTR_F32, 0, true, false, false, 0 },
        { "adam after 3", ADAM, DTR_F32, DTR_F32, 3, true, false, false, 0 },
        { "adam, overlap", ADAM, DTR_F32, DTR_F32, 1, false, false, false, DTR_ZERO_OVERLAP },
        { "adam, overlap, view", ADAM, DTR_F32, DTR_F32, 0, true, false, false, DTR_ZERO_OVERLAP },
        { "static", ADAM, DTR_F32, DTR_F32, 0, false, true, false, 0 },
        { "bf16", SGD, DTR_BF16, DTR_BF16, 0, true, false, false, 0 },
        { "f64", SGD, DTR_F64, DTR_F64, 0, false, false, false, 0 },
    };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        compare(&all[k]);
    }
}
END_TEST

/* Buckets of another type than the parameters: narrower and wider ones. */
START_TEST(reduced) {
    static const variant all[] = {
        { "f32 in bf16, bf16", ADAM, DTR_F32, DTR_BF16, 0, false, false, false, 0 },
        { "f32 in bf16, view", ADAM, DTR_F32, DTR_BF16, 0, true, false, false, 0 },
        { "f32 in bf16", ADAM, DTR_F32, DTR_BF16, 0, false, false, true, 0 },
        { "bf16 in f32", SGD, DTR_BF16, DTR_F32, 2, false, false, true, DTR_ZERO_OVERLAP },
    };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        synth a = synth_new(N, sizes, all[k].dtype), b = synth_new(N, sizes, all[k].dtype);
        dtr_ddp_options o = small_buckets();
        o.has_reduce_dtype = all[k].reduced;
        o.has_param_dtype = !all[k].reduced;
        o.reduce_dtype = o.param_dtype = all[k].reduce;
        o.grad_as_bucket_view = all[k].view;
        dtr_ddp *plain = ddp_new(&a, &o), *sharded = ddp_new(&b, &o);
        optimizer *x = optimizer_new(all[k].rule), *y = optimizer_new(all[k].rule);
        dtr_zero *z = zero_new(sharded, all[k].flags);
        for (int step = 0; step < 6; step++) {
            backward(plain, &a, step, false);
            backward(sharded, &b, step, false);
            step_plain(plain, &a, x);
            TH_IS(step_zero(z, y), DTR_OK);
            TH_IS(dtr_zero_wait(z, SIZE_MAX), DTR_OK);
            check_values(&a, &b, all[k].name, step);
        }
        TH_OK(dtr_ddp_destroy(sharded)); /* the module first */
        TH_IS(step_zero(z, y), DTR_ERR_STATE);
        TH_MESSAGE("destroyed");
        TH_OK(dtr_zero_destroy(z));
        TH_OK(dtr_ddp_destroy(plain));
        free(x);
        free(y);
        synth_free(&a);
        synth_free(&b);
    }
}
END_TEST

/* SH2, SH5, SH6: shards add up to the model, and a step moves as much as averaging does. */
START_TEST(shards) {
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = small_buckets();
    dtr_ddp *ddp = ddp_new(&s, &o);
    dtr_zero *z = zero_new(ddp, 0);
    size_t W = (size_t)th_size(), buckets = dtr_plan_bucket_count(dtr_ddp_plan(ddp)), total = 0,
           want = 0;
    for (size_t i = 0; i < N; i++) {
        total += sizes[i] * 4;
    }
    for (size_t b = 0; b < buckets; b++) {
        size_t n = dtr_plan_get_bucket(dtr_ddp_plan(ddp), b)->nbytes;
        want += (n + 64 * W - 1) / (64 * W) * 16;
    }
    size_t mine = dtr_zero_shard_count(z, DTR_F32);
    TH_CHECK(mine == want, "shard of %zu elements, want %zu", mine, want);
    TH_CHECK(mine * 4 * W >= total && mine * 4 * W - total < 64 * (N + W * buckets),
             "%zu ranks x %zu elements for %zu bytes", W, mine, total);
    TH_CHECK(dtr_zero_shard_count(z, DTR_F64) == 0 && dtr_zero_shard_count(NULL, DTR_F32) == 0,
             "a shard of nothing");
    optimizer *y = optimizer_new(SGD);
    synth_backward(ddp, &s, 0);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    dtr_ddp_stats stats = stats_of(ddp);
    TH_CHECK(stats.last.bytes == total, "%zu bytes", stats.last.bytes);
    TH_CHECK(W == 1 || stats.last.collectives == buckets, "%zu collectives",
             stats.last.collectives);
    TH_IS(step_zero(z, y), DTR_OK);
    TH_CHECK(y->next == mine, "slices have %zu elements, the shard %zu", y->next, mine);
    TH_OK(dtr_zero_destroy(z));
    TH_OK(dtr_ddp_destroy(ddp));
    free(y);
    synth_free(&s);
}
END_TEST

/* Writes into the padding as well; counts what is not padding. */
static dtr_status on_dirty(void *state, size_t first, dtr_buffer param, dtr_buffer grad) {
    uint64_t *used = state;
    (void)first;
    for (size_t k = 0; k < param.count; k++) {
        float *p = (float *)param.data + k, g = ((float *)grad.data)[k];
        TH_CHECK((*p == 0) == (g == 0), "element %zu: parameter %g, gradient %g", k, *p, g);
        *used += *p != 0;
        *p += 1;
    }
    return DTR_OK;
}

/* SH2: padding is zero for every step, whatever the update writes there. */
START_TEST(padding) {
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = small_buckets();
    o.grad_as_bucket_view = true;
    dtr_ddp *ddp = ddp_new(&s, &o);
    dtr_zero *z = zero_new(ddp, 0);
    uint64_t all[64], model = 0;
    for (size_t i = 0; i < N; i++) {
        model += sizes[i];
    }
    for (int step = 0; step < 3; step++) {
        uint64_t used = 0, sum = 0;
        for (size_t i = 0; i < N; i++) {
            TH_IS(dtr_tensor_fill(dtr_ddp_grad(ddp, i), 1, NULL), DTR_OK);
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
        TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
        TH_IS(dtr_zero_step(z, on_dirty, &used), DTR_OK);
        th_gather_u64(used, all);
        for (int r = 0; r < th_size(); r++) {
            sum += all[r];
        }
        TH_ALL(sum == model, "%llu elements of %llu", (unsigned long long)sum,
               (unsigned long long)model);
    }
    TH_OK(dtr_zero_destroy(z));
    TH_OK(dtr_ddp_destroy(ddp));
    synth_free(&s);
}
END_TEST

/* SH7, N3: iterations without sync add up. */
START_TEST(accumulate) {
    for (int view = 0; view < 2; view++) {
        synth a = synth_new(N, sizes, DTR_F32), b = synth_new(N, sizes, DTR_F32);
        dtr_ddp_options o = small_buckets();
        o.grad_as_bucket_view = view;
        dtr_ddp *ddp[2] = { ddp_new(&a, &o), ddp_new(&b, &o) };
        optimizer *x = optimizer_new(ADAM), *y = optimizer_new(ADAM);
        dtr_zero *z = zero_new(ddp[1], 0);
        for (int step = 0; step < 9; step++) {
            for (int d = 0; d < 2; d++) {
                TH_IS(dtr_ddp_set_sync(ddp[d], step % 3 == 2), DTR_OK);
                backward(ddp[d], d == 0 ? &a : &b, step, step % 3 != 0);
            }
            if (step % 3 == 2) {
                step_plain(ddp[0], &a, x);
                TH_IS(step_zero(z, y), DTR_OK);
            } else {
                TH_IS(step_zero(z, y), DTR_ERR_STATE);
                TH_MESSAGE("no averages to step with");
            }
            check_values(&a, &b, "accumulate", step);
        }
        TH_OK(dtr_zero_destroy(z));
        TH_OK(dtr_ddp_destroy(ddp[0]));
        TH_OK(dtr_ddp_destroy(ddp[1]));
        free(x);
        free(y);
        synth_free(&a);
        synth_free(&b);
    }
}
END_TEST

/* Values that do not lie densely, or transposed. */
START_TEST(strided) {
    enum { ROWS = 37, COLS = 29 };
    synth a = synth_equal(2, (size_t)ROWS * COLS), b = synth_equal(2, (size_t)ROWS * COLS);
    float *memory[2][2];
    for (int m = 0; m < 2; m++) {
        synth *s = m == 0 ? &a : &b;
        int64_t shape[] = { ROWS, COLS }, strides[] = { 1, ROWS }, gaps[] = { 2 * COLS, 2 };
        for (size_t i = 0; i < 2; i++) {
            size_t n = (size_t)2 * ROWS * COLS;
            memory[m][i] = calloc(n, sizeof(float));
            dtr_tensor_release(s->params[i].value);
            ck_assert_int_eq(dtr_tensor_from_buffer(dtr_cpu(memory[m][i], n, DTR_F32), 2, shape,
                                                    i == 0 ? strides : gaps, NULL, NULL,
                                                    &s->params[i].value),
                             DTR_OK);
            ck_assert_int_eq(dtr_tensor_fill(s->params[i].value, 1.5, NULL), DTR_OK);
        }
    }
    dtr_ddp *plain = ddp_new(&a, NULL), *sharded = ddp_new(&b, NULL);
    dtr_zero *z = zero_new(sharded, 0);
    optimizer *y = optimizer_new(SGD);
    for (int step = 0; step < 3; step++) {
        backward(plain, &a, step, false);
        backward(sharded, &b, step, false);
        for (size_t i = 0; i < 2; i++) { /* same strides or not: element by element */
            dtr_tensor *g = dtr_ddp_grad(plain, i);
            TH_IS(dtr_tensor_axpy(a.params[i].value, 0, g, NULL), DTR_OK);
            const int64_t *sp = dtr_tensor_strides(a.params[i].value), *sg = dtr_tensor_strides(g);
            for (int64_t r = 0; r < ROWS; r++) {
                for (int64_t c = 0; c < COLS; c++) {
                    float *p = &memory[0][i][r * sp[0] + c * sp[1]];
                    *p -= 0.01f * ((float *)dtr_tensor_data(g))[r * sg[0] + c * sg[1]];
                }
            }
        }
        TH_IS(step_zero(z, y), DTR_OK);
        for (size_t i = 0; i < 2; i++) {
            TH_CHECK(memcmp(memory[0][i], memory[1][i], sizeof(float) * 2 * ROWS * COLS) == 0,
                     "step %d: p%zu differs", step, i);
        }
        TH_AGREE();
    }
    TH_OK(dtr_zero_destroy(z));
    TH_OK(dtr_ddp_destroy(plain));
    TH_OK(dtr_ddp_destroy(sharded));
    free(y);
    synth_free(&a);
    synth_free(&b);
    for (int k = 0; k < 4; k++) {
        free(memory[k / 2][k % 2]);
    }
}
END_TEST

/* SH8: the order of calls. */
START_TEST(order) {
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = small_buckets();
    dtr_ddp *ddp = ddp_new(&s, &o);
    dtr_zero *z = NULL;
    optimizer *y = optimizer_new(SGD);
    TH_IS(dtr_zero_create(ddp, NULL, NULL), DTR_ERR_ARG);
    TH_IS(dtr_zero_create(NULL, NULL, &z), DTR_ERR_ARG);
    TH_IS(dtr_zero_step(NULL, on_update, y), DTR_ERR_ARG);
    z = zero_new(ddp, DTR_ZERO_OVERLAP);
    TH_IS(dtr_zero_step(z, NULL, y), DTR_ERR_ARG);
    TH_IS(step_zero(z, y), DTR_ERR_STATE);
    synth_backward(ddp, &s, 0);
    TH_IS(step_zero(z, y), DTR_ERR_STATE);
    TH_IS(dtr_zero_destroy(z), DTR_ERR_STATE);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_IS(step_zero(z, y), DTR_OK);
    TH_IS(step_zero(z, y), DTR_ERR_STATE);
    TH_IS(dtr_ddp_forward_begin(ddp), DTR_OK);
    TH_IS(dtr_ddp_forward_end(ddp, NULL, 0), DTR_OK);
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_ERR_STATE);
    TH_MESSAGE("dtr_zero_wait");
    TH_IS(dtr_zero_wait(z, 99), DTR_ERR_ARG);
    TH_IS(dtr_zero_wait(z, 2), DTR_OK);
    TH_IS(dtr_zero_wait(z, SIZE_MAX), DTR_OK);
    float got = ((float *)dtr_tensor_data(s.params[4].value))[999];
    float want = 5 - 0.01f * (float)synth_mean(4, 999, th_size(), 0, th_size(), DTR_F32);
    TH_CHECK(got == want, "%.9g, want %.9g", got, want); /* SH3 */
    synth_backward(ddp, &s, 1);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_IS(step_zero(z, y), DTR_OK);
    TH_OK(dtr_zero_destroy(z)); /* with parameters on their way */
    TH_IS(dtr_ddp_check_equal(ddp), DTR_OK);
    z = zero_new(ddp, DTR_ZERO_OVERLAP);
    synth_backward(ddp, &s, 2);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_IS(step_zero(z, y), DTR_OK);
    TH_OK(dtr_ddp_destroy(ddp));
    TH_IS(dtr_zero_wait(z, 0), DTR_ERR_STATE);
    TH_OK(dtr_zero_destroy(z));
    TH_OK(dtr_zero_destroy(NULL));
    free(y);
    synth_free(&s);
}
END_TEST

static dtr_status hook(void *state, dtr_ddp_bucket *bucket, dtr_work **work) {
    (void)state, (void)bucket, (void)work;
    return DTR_ERR_INTERNAL;
}

static dtr_status callback(void *state, size_t i, dtr_tensor *value, dtr_tensor *grad,
                           void *stream) {
    (void)state, (void)i, (void)value, (void)grad, (void)stream;
    return DTR_OK;
}

/* SH10: what does not go together, on all ranks or on the last one only; agreed. */
START_TEST(refused) {
    synth s = synth_equal(3, 100);
    int last = th_size() - 1;
    static const size_t list[] = { 0 };
    char word[40];
    snprintf(word, sizeof word, "rank %d", last);
    for (int k = 0; k < 10; k++) {
        dtr_ddp_options o = small_buckets();
        o.find_unused = k == 0;
        o.flags = k == 1 ? DTR_DDP_PER_PARAM : 0;
        o.delayed = list;
        o.n_delayed = k == 9 ? 1 : 0;
        o.delayed_trigger = 1;
        o.has_delayed_trigger = k == 9;
        s.params[2].flags = k == 8 ? DTR_PARAM_SPARSE : 0;
        dtr_ddp *ddp = ddp_new(&s, &o);
        dtr_zero *z = NULL, *first = NULL;
        dtr_zero_options zo = DTR_ZERO_OPTIONS_INIT;
        dtr_status want = DTR_ERR_UNSUPPORTED;
        if (k == 2 && th_rank() == last) {
            TH_IS(dtr_ddp_register_hook(ddp, hook, NULL, NULL), DTR_OK);
        } else if (k == 3 && th_rank() == last) {
            TH_IS(dtr_ddp_set_step(ddp, callback, NULL, list, 1), DTR_OK);
        } else if (k == 4 && th_rank() == last) {
            TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_OK);
        } else if (k == 5) {
            want = DTR_ERR_STATE;
            first = zero_new(ddp, 0);
        } else if (k == 6) {
            want = DTR_ERR_ARG;
            zo.struct_size = th_rank() == last ? 0 : sizeof zo;
        } else if (k == 7) {
            want = last == 0 ? DTR_OK : DTR_ERR_MISMATCH;
            zo.flags = th_rank() == last ? DTR_ZERO_OVERLAP : 0;
        }
        TH_IS(dtr_zero_create(ddp, &zo, &z), want);
        if (k >= 2 && k != 5 && k < 8 && want != DTR_OK) {
            TH_MESSAGE(word);
        }
        TH_CHECK((z == NULL) == (want != DTR_OK), "case %d: the output was touched", k);
        TH_AGREE();
        if (k == 5) { /* nor the other way round */
            TH_IS(dtr_ddp_register_hook(ddp, hook, NULL, NULL), DTR_ERR_STATE);
            TH_IS(dtr_ddp_set_step(ddp, callback, NULL, list, 1), DTR_ERR_STATE);
            TH_IS(dtr_ddp_join_begin(ddp, NULL), DTR_ERR_STATE);
            TH_MESSAGE("sharded optimizer");
        }
        TH_OK(dtr_zero_destroy(first != NULL ? first : z));
        TH_OK(dtr_ddp_destroy(ddp));
    }
    synth_free(&s);
}
END_TEST

/* SH11: an update that fails on one rank changes nothing anywhere, and the next step works. */
START_TEST(failing) {
    for (int bad = 0; bad < th_size(); bad++) {
        synth a = synth_new(N, sizes, DTR_F32), b = synth_new(N, sizes, DTR_F32);
        dtr_ddp_options o = small_buckets();
        o.grad_as_bucket_view = bad & 1;
        dtr_ddp *ddp = ddp_new(&a, &o), *spare = ddp_new(&b, &o);
        dtr_zero *z = zero_new(ddp, bad & 1 ? DTR_ZERO_OVERLAP : 0);
        optimizer *x = optimizer_new(SGD), *y = optimizer_new(SGD);
        backward(ddp, &a, 0, false);
        y->fail_call = th_rank() == bad ? 1 : -1;
        TH_IS(step_zero(z, y), DTR_ERR_IO);
        char word[80];
        snprintf(word, sizeof word, "the update of bucket 1 failed on rank %d", bad);
        TH_MESSAGE(word);
        TH_MESSAGE("no parameter has changed");
        check_values(&a, &b, "failing", 0);
        TH_IS(step_zero(z, y), DTR_ERR_STATE);
        y->fail_call = -1;
        for (int step = 1; step < 3; step++) {
            backward(ddp, &a, step, false);
            backward(spare, &b, step, false);
            TH_IS(step_zero(z, y), DTR_OK);
            TH_IS(dtr_zero_wait(z, SIZE_MAX), DTR_OK);
            step_plain(spare, &b, x);
            check_values(&a, &b, "failing", step);
        }
        TH_OK(dtr_zero_destroy(z));
        TH_OK(dtr_ddp_destroy(ddp));
        TH_OK(dtr_ddp_destroy(spare));
        free(x);
        free(y);
        synth_free(&a);
        synth_free(&b);
    }
}
END_TEST

/* An agreed error of backward leaves nothing to step with. */
START_TEST(missing) {
    synth s = synth_new(N, sizes, DTR_F32);
    dtr_ddp_options o = small_buckets();
    dtr_ddp *ddp = ddp_new(&s, &o);
    dtr_zero *z = zero_new(ddp, 0);
    optimizer *y = optimizer_new(SGD);
    for (size_t i = 0; i < N; i++) {
        synth_write(ddp, &s, i, 0, false);
        if (i != 3 || th_rank() != th_size() - 1) {
            TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
        }
    }
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_ERR_STATE);
    TH_MESSAGE("parameter 'p3' (3) was not ready");
    TH_AGREE();
    TH_IS(step_zero(z, y), DTR_ERR_STATE);
    synth_backward(ddp, &s, 1);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_IS(step_zero(z, y), DTR_OK);
    TH_OK(dtr_zero_destroy(z));
    TH_OK(dtr_ddp_destroy(ddp));
    free(y);
    synth_free(&s);
}
END_TEST

static void make(Suite *suite) {
    TCase *tc = th_case(suite, "ddp zero", 100);
    th_add(tc, same_bits, 0, 0);
    th_add(tc, reduced, 0, 0);
    th_add(tc, shards, 0, 0);
    th_add(tc, padding, 0, 0);
    th_add(tc, accumulate, 0, 0);
    th_add(tc, strided, 0, 0);
    th_add(tc, order, 0, 0);
    th_add(tc, refused, 0, 0);
    th_add(tc, failing, 0, 0);
    th_add(tc, missing, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "ddp_zero", make);
}
