/* Models for the DDP tests. */
#include "ddp_models.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"

/* ---- Synth ---- */

synth synth_new(size_t n, const size_t *sizes, dtr_dtype dtype) {
    synth s = { n, dtype, calloc(n, sizeof(dtr_param)), calloc(n, sizeof *s.names) };
    for (size_t i = 0; i < n; i++) {
        int64_t shape[] = { (int64_t)sizes[i] };
        snprintf(s.names[i], sizeof s.names[i], "p%zu", i);
        s.params[i].name = s.names[i];
        ck_assert_int_eq(dtr_tensor_empty(th_world(), dtype, (dtr_device){ DTR_CPU, 0 },
                                          DTR_MEM_DEFAULT, 1, shape, &s.params[i].value),
                         DTR_OK);
        ck_assert_int_eq(dtr_tensor_fill(s.params[i].value, (double)(i + 1), NULL), DTR_OK);
    }
    return s;
}

synth synth_equal(size_t n, size_t size) {
    size_t *sizes = malloc(n * sizeof *sizes);
    for (size_t i = 0; i < n; i++) {
        sizes[i] = size;
    }
    synth s = synth_new(n, sizes, DTR_F32);
    free(sizes);
    return s;
}

void synth_free(synth *s) {
    for (size_t i = 0; i < s->n; i++) {
        dtr_tensor_release(s->params[i].value);
    }
    free(s->params);
    free(s->names);
}

/* Elements after which the inputs of a parameter begin again. */
enum { SYNTH_PERIOD = 17 };

double synth_input(size_t i, size_t k, int r, int step) {
    return (double)((7 * k + 13 * (size_t)r) % SYNTH_PERIOD) - 8.0 + 17.0 * (double)i + step;
}

double synth_mean(size_t i, size_t k, int W, int step, int divisor, dtr_dtype dtype) {
    double sum = 0;
    for (int r = 0; r < W; r++) {
        sum += synth_input(i, k, r, step); /* small integers: exact */
    }
    return dtype == DTR_F64 || dtype == DTR_C128 ? sum / divisor
                                                 : (double)((float)sum / (float)divisor);
}

void synth_write(dtr_ddp *ddp, const synth *s, size_t i, int step, bool add) {
    dtr_tensor *g = dtr_ddp_grad(ddp, i);
    double input[SYNTH_PERIOD];
    TH_CHECK(g != NULL, "no gradient tensor for %zu: %s", i, dtr_last_error_message());
    for (size_t k = 0; k < SYNTH_PERIOD; k++) {
        input[k] = synth_input(i, k, th_rank(), step);
    }
    for (size_t k = 0; g != NULL && k < dtr_tensor_numel(g); k++) {
        double old = add ? th_get(dtr_tensor_data(g), s->dtype, k, false) : 0;
        th_set(dtr_tensor_data(g), s->dtype, k, old + input[k % SYNTH_PERIOD], 0);
    }
}

void synth_check(dtr_ddp *ddp, const synth *s, size_t i, int step, int divisor) {
    dtr_tensor *g = dtr_ddp_grad(ddp, i);
    double want[SYNTH_PERIOD];
    TH_CHECK(g != NULL, "no gradient tensor for %zu", i);
    for (size_t k = 0; k < SYNTH_PERIOD; k++) {
        char bytes[16] = { 0 };
        th_set(bytes, s->dtype, 0, synth_mean(i, k, th_size(), step, divisor, s->dtype), 0);
        want[k] = th_get(bytes, s->dtype, 0, false);
    }
    for (size_t k = 0; g != NULL && k < dtr_tensor_numel(g); k++) {
        const double got = th_get(dtr_tensor_data(g), s->dtype, k, false);
        TH_CHECK(got == want[k % SYNTH_PERIOD], "p%zu[%zu] in step %d is %.9g, want %.9g", i, k,
                 step, got, want[k % SYNTH_PERIOD]);
    }
}

void synth_check_all(dtr_ddp *ddp, const synth *s, int step, int divisor) {
    for (size_t i = 0; i < s->n; i++) {
        synth_check(ddp, s, i, step, divisor);
        TH_CHECK(dtr_ddp_grad_defined(ddp, i), "p%zu is not defined", i);
    }
}

void synth_backward(dtr_ddp *ddp, const synth *s, int step) {
    for (size_t i = s->n; i-- > 0;) {
        synth_write(ddp, s, i, step, false);
        TH_IS(dtr_ddp_grad_ready(ddp, i, NULL), DTR_OK);
    }
}

void synth_good_step(dtr_ddp *ddp, const synth *s, int step) {
    synth_backward(ddp, s, step);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    synth_check_all(ddp, s, step, th_size());
}

dtr_ddp *ddp_new(const synth *s, const dtr_ddp_options *o) {
    dtr_ddp *ddp = NULL;
    TH_OK(dtr_ddp_create(th_group(), s->params, s->n, o, &ddp));
    return ddp;
}

float *grad_of(dtr_ddp *ddp, size_t i) {
    return dtr_tensor_data(dtr_ddp_grad(ddp, i));
}

dtr_ddp_stats stats_of(const dtr_ddp *ddp) {
    dtr_ddp_stats s = DTR_DDP_STATS_INIT;
    TH_IS(dtr_ddp_get_stats(ddp, &s), DTR_OK);
    return s;
}

void plan_text(const dtr_plan *plan, char *text, size_t cap) {
    size_t at = 0;
    text[0] = '\0';
    for (size_t b = 0; b < dtr_plan_bucket_count(plan) && at < cap; b++) {
        const dtr_plan_bucket *k = dtr_plan_get_bucket(plan, b);
        for (size_t i = 0; i < k->n_slots && at < cap; i++) {
            at += (size_t)snprintf(text + at, cap - at, "%s%zu",
                                   i > 0   ? ","
                                   : b > 0 ? "|"
                                           : "",
                                   k->slots[i].param);
        }
    }
}

/* ---- Net ---- */

static const int width[NET_PARAMS + 1] = { NET_IN, 10, 50, NET_OUT };
static const char *const names[NET_PARAMS] = { "fc1", "fc2", "fc3" };
enum { WIDEST = 50 };

size_t net_numel(int layer) {
    return (size_t)(width[layer] * width[layer + 1]);
}

net net_new(uint64_t seed) {
    net n;
    th_rng g = { seed };
    for (int l = 0; l < NET_PARAMS; l++) {
        n.weight[l] = malloc(net_numel(l) * sizeof(float));
        for (size_t k = 0; k < net_numel(l); k++) {
            n.weight[l][k] = (float)(th_uniform(&g) - 0.4) * 0.7f;
        }
        int64_t shape[] = { width[l + 1], width[l] };
        ck_assert_int_eq(dtr_tensor_from_buffer(dtr_cpu(n.weight[l], net_numel(l), DTR_F32), 2,
                                                shape, NULL, NULL, NULL, &n.value[l]),
                         DTR_OK);
        n.params[l] = (dtr_param){ names[l], n.value[l], NULL, 0 };
    }
    return n;
}

void net_free(net *n) {
    for (int l = 0; l < NET_PARAMS; l++) {
        dtr_tensor_release(n->value[l]);
        free(n->weight[l]);
    }
}

static void forward_layer(const float *w, const float *in, float *out, int n_in, int n_out,
                          bool relu) {
    for (int o = 0; o < n_out; o++) {
        float sum = 0;
        for (int i = 0; i < n_in; i++) {
            sum += w[o * n_in + i] * in[i];
        }
        out[o] = relu && sum < 0 ? 0 : sum;
    }
}

static void softmax(float *v, int n) {
    float top = v[0], sum = 0;
    for (int k = 1; k < n; k++) {
        top = v[k] > top ? v[k] : top;
    }
    for (int k = 0; k < n; k++) {
        v[k] = expf(v[k] - top);
        sum += v[k];
    }
    for (int k = 0; k < n; k++) {
        v[k] /= sum;
    }
}

/* d(mean square error)/d(softmax input) of one row of `batch`. */
static void loss_gradient(const float *p, const float *y, float *delta, int batch) {
    float d[NET_OUT], dot = 0;
    for (int k = 0; k < NET_OUT; k++) {
        d[k] = 2 * (p[k] - y[k]) / (float)(NET_OUT * batch);
        dot += d[k] * p[k];
    }
    for (int k = 0; k < NET_OUT; k++) {
        delta[k] = p[k] * (d[k] - dot);
    }
}

static void backward_row(const net *n, float act[][WIDEST], const float *y, int batch,
                         float *const *grad, int layer, float *delta) {
    float before[WIDEST] = { 0 };
    (void)y;
    (void)batch;
    for (int o = 0; o < width[layer + 1]; o++) {
        for (int i = 0; i < width[layer]; i++) {
            grad[layer][o * width[layer] + i] += delta[o] * act[layer][i];
            before[i] += n->weight[layer][o * width[layer] + i] * delta[o];
        }
    }
    for (int i = 0; i < width[layer]; i++) {
        delta[i] = act[layer][i] > 0 ? before[i] : 0;
    }
}

void net_backward(const net *n, const float *x, const float *y, int batch, float *const *grad,
                  void (*ready)(void *arg, int layer), void *arg) {
    float(*act)[NET_PARAMS + 1][WIDEST] = calloc((size_t)batch, sizeof *act);
    float(*delta)[WIDEST] = calloc((size_t)batch, sizeof *delta);
    for (int b = 0; b < batch; b++) {
        memcpy(act[b][0], x + b * NET_IN, NET_IN * sizeof(float));
        for (int l = 0; l < NET_PARAMS; l++) {
            forward_layer(n->weight[l], act[b][l], act[b][l + 1], width[l], width[l + 1],
                          l + 1 < NET_PARAMS);
        }
        softmax(act[b][NET_PARAMS], NET_OUT);
        loss_gradient(act[b][NET_PARAMS], y + b * NET_OUT, delta[b], batch);
    }
    for (int l = NET_PARAMS - 1; l >= 0; l--) {
        for (int b = 0; b < batch; b++) {
            backward_row(n, act[b], y, batch, grad, l, delta[b]);
        }
        if (ready != NULL) {
            ready(arg, l);
        }
    }
    free(act);
    free(delta);
}

/* ---- hooks ---- */

static dtr_status third(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)state;
    dtr_buffer buffer = dtr_ddp_bucket_buffer(b);
    return dtr_allreduce(dtr_ddp_bucket_group(b), buffer, buffer, DTR_MIN, NULL, work);
}

static dtr_status second(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)state;
    dtr_buffer buffer = dtr_ddp_bucket_buffer(b);
    dtr_status s = dtr_ddp_bucket_then(b, third, NULL);
    return s < 0 ? s : dtr_allreduce(dtr_ddp_bucket_group(b), buffer, buffer, DTR_SUM, NULL, work);
}

dtr_status hook_of_three_steps(void *state, dtr_ddp_bucket *b, dtr_work **work) {
    (void)state;
    dtr_buffer buffer = dtr_ddp_bucket_buffer(b);
    dtr_status s = dtr_ddp_bucket_then(b, second, NULL);
    TH_CHECK(dtr_ddp_bucket_then(b, second, NULL) == DTR_ERR_STATE, "two next steps");
    return s < 0 ? s : dtr_allreduce(dtr_ddp_bucket_group(b), buffer, buffer, DTR_AVG, NULL, work);
}

/* ---- T40 ---- */

void net_batch(int W, int iteration, float *x, float *y) {
    th_rng g = { 99 };
    for (int k = 0; k < W * NET_IN; k++) {
        x[k] = (float)th_uniform(&g) * 2 - 1;
    }
    for (int k = 0; k < W * NET_OUT; k++) {
        y[k] = (float)th_uniform(&g);
    }
    for (int i = 0; i < iteration && W > 1; i++) { /* permuted alike on all ranks */
        float row_x[NET_IN], row_y[NET_OUT];
        memcpy(row_x, x, sizeof row_x);
        memcpy(row_y, y, sizeof row_y);
        memmove(x, x + NET_IN, sizeof row_x * (size_t)(W - 1));
        memmove(y, y + NET_OUT, sizeof row_y * (size_t)(W - 1));
        memcpy(x + NET_IN * (W - 1), row_x, sizeof row_x);
        memcpy(y + NET_OUT * (W - 1), row_y, sizeof row_y);
    }
}

void net_descend(net *n, float *const *grad) {
    for (int l = 0; l < NET_PARAMS; l++) {
        for (size_t k = 0; k < net_numel(l); k++) {
            n->weight[l][k] -= grad[l][k];
        }
    }
}

void net_plain_step(net *n, int W, const float *x, const float *y) {
    float *grad[NET_PARAMS];
    for (int l = 0; l < NET_PARAMS; l++) {
        grad[l] = calloc(net_numel(l), sizeof(float));
    }
    net_backward(n, x, y, W, grad, NULL, NULL);
    net_descend(n, grad);
    for (int l = 0; l < NET_PARAMS; l++) {
        free(grad[l]);
    }
}

bool net_near(float a, float b) {
    return fabsf(a - b) <= 5e-5f + 1.3e-6f * fabsf(b);
}
