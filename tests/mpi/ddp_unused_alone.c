/* Parameters left out by one rank alone: nothing but the bookkeeping (T83). */
#include <math.h>
#include <string.h>

#include "data.h"
#include "ddp_models.h"
#include "parts.h"

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

void ddp_unused_alone(TCase *tc) {
    th_add(tc, reducer_w1, 1, 1);
}
