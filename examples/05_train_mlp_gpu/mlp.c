/* The network: nothing here knows whether it is on the CPU or on a device. */
#include "mlp.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void mlp_die(const char *what, const char *why) {
    fprintf(stderr, "train_mlp_gpu: %s: %s\n", what, why != NULL ? why : dtr_last_error_message());
    exit(1);
}

void mlp_try(dtr_status s, const char *what) {
    if (DTR_FAILED(s)) {
        mlp_die(what, NULL);
    }
}

static void check(const char *why, const char *what) {
    if (why != NULL) {
        mlp_die(what, why);
    }
}

/* ---- numbers ---- */

/* The same on every machine: a generator of its own for each sample and parameter. */
static float uniform(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

static uint64_t start(uint64_t a, uint64_t b) {
    uint64_t state = a * UINT64_C(0x9e3779b97f4a7c15) ^ (b + 1) * UINT64_C(0xbf58476d1ce4e5b9);
    (void)uniform(&state);
    return state;
}

/* Points around one corner of a cube for each class, so close that it takes some learning. */
static int sample(long step, long index, float *x) {
    uint64_t state = start((uint64_t)step + 1, (uint64_t)index);
    int label = (int)((uniform(&state) + 1) * 0.5f * MLP_CLASSES) % MLP_CLASSES;
    for (int k = 0; k < MLP_INPUTS; k++) {
        float corner = (label >> (k % 2)) & 1 ? 0.5f : -0.5f;
        x[k] = corner + 1.5f * uniform(&state);
    }
    return label;
}

/* ---- memory ---- */

static dtr_tensor *matrix(const mlp *n, dtr_dtype type, int rows, int columns, bool here) {
    const dtr_device cpu = { DTR_CPU, 0 };
    const int64_t shape[] = { rows, columns };
    dtr_tensor *t = NULL;
    mlp_try(dtr_tensor_empty(n->world, type, here ? cpu : n->device,
                             here ? DTR_MEM_PINNED : DTR_MEM_DEFAULT, 2, shape, &t),
            "memory");
    return t;
}

static int outputs_of(const mlp *n, int layer) {
    return layer == MLP_LAYERS ? MLP_CLASSES : layer == 0 ? MLP_INPUTS : n->width;
}

const char *mlp_param_name(int i) {
    static const char *const names[] = { "1.weight", "1.bias",   "2.weight",
                                         "2.bias",   "3.weight", "3.bias" };
    return names[i];
}

/* Weights [inputs, outputs] from a range that keeps the size of the sums, biases zero. */
static void init_param(mlp *n, int i) {
    int inputs = outputs_of(n, i / 2), outputs = outputs_of(n, i / 2 + 1),
        rows = i % 2 ? 1 : inputs;
    dtr_tensor *t = matrix(n, DTR_F32, rows, outputs, true);
    float *v = dtr_tensor_data(t), range = i % 2 ? 0 : sqrtf(3.0f / (float)inputs);
    uint64_t state = start(0, (uint64_t)i);
    for (int k = 0; k < rows * outputs; k++) {
        v[k] = range * uniform(&state);
    }
    n->value[i] = matrix(n, DTR_F32, rows, outputs, false);
    mlp_try(dtr_tensor_copy(n->value[i], t, n->arith->stream), "copying a parameter");
    check(n->arith->wait(n->arith), "copying a parameter");
    dtr_tensor_release(t);
}

void mlp_open(mlp *n, dtr_world *world, dtr_device device, mlp_arith *arith, int width, int rows) {
    *n = (mlp){ .world = world, .device = device, .arith = arith, .width = width, .rows = rows };
    for (int i = 0; i < MLP_PARAMS; i++) {
        init_param(n, i);
    }
    for (int l = 0; l <= MLP_LAYERS; l++) {
        n->out[l] = matrix(n, DTR_F32, rows, outputs_of(n, l), false);
        n->slope[l] = matrix(n, DTR_F32, rows, outputs_of(n, l), false);
    }
    n->label = matrix(n, DTR_I32, rows, 1, false);
    n->row_loss = matrix(n, DTR_F32, rows, 1, false);
    n->here[0] = matrix(n, DTR_F32, rows, MLP_INPUTS, true);
    n->here[1] = matrix(n, DTR_I32, rows, 1, true);
    n->here[2] = matrix(n, DTR_F32, rows, 1, true);
}

void mlp_close(mlp *n) {
    for (int i = 0; i < MLP_PARAMS; i++) {
        dtr_tensor_release(n->value[i]);
        dtr_tensor_release(n->grad[i]);
    }
    for (int l = 0; l <= MLP_LAYERS; l++) {
        dtr_tensor_release(n->out[l]);
        dtr_tensor_release(n->slope[l]);
    }
    dtr_tensor_release(n->label);
    dtr_tensor_release(n->row_loss);
    for (int k = 0; k < 3; k++) {
        dtr_tensor_release(n->here[k]);
    }
}

void mlp_load(mlp *n, long step, long first) {
    check(n->arith->wait(n->arith), "the step before"); /* it may still read the pinned memory */
    float *x = dtr_tensor_data(n->here[0]);
    int *label = dtr_tensor_data(n->here[1]);
    for (long r = 0; r < n->rows; r++) {
        label[r] = sample(step, first + r, x + r * MLP_INPUTS);
    }
    mlp_try(dtr_tensor_copy(n->out[0], n->here[0], n->arith->stream), "copying the input");
    mlp_try(dtr_tensor_copy(n->label, n->here[1], n->arith->stream), "copying the labels");
}

/* ---- the passes ---- */

static mlp_matrix whole(const dtr_tensor *t, int rows, int columns, bool turned) {
    return (mlp_matrix){ dtr_tensor_data(t), rows, columns, turned };
}

void mlp_forward(mlp *n) {
    mlp_arith *m = n->arith;
    for (int l = 0; l < MLP_LAYERS; l++) {
        int inputs = outputs_of(n, l), outputs = outputs_of(n, l + 1);
        float *y = dtr_tensor_data(n->out[l + 1]);
        check(m->multiply(m, whole(n->out[l], n->rows, inputs, false),
                          whole(n->value[2 * l], inputs, outputs, false), y),
              "a product");
        const mlp_args bias = { .y = y,
                                .x = dtr_tensor_data(n->value[2 * l + 1]),
                                .rows = n->rows,
                                .columns = outputs,
                                .relu = l + 1 < MLP_LAYERS };
        check(m->run(m, MLP_bias, &bias), "a bias");
    }
}

static dtr_tensor *grad_of(mlp *n, dtr_ddp *ddp, int i) {
    dtr_tensor *grad = ddp != NULL ? dtr_ddp_grad(ddp, (size_t)i) : n->grad[i];
    if (grad == NULL && ddp != NULL) {
        mlp_die("a gradient", NULL);
    }
    if (grad == NULL) {
        int inputs = outputs_of(n, i / 2), outputs = outputs_of(n, i / 2 + 1);
        grad = n->grad[i] = matrix(n, DTR_F32, i % 2 ? 1 : inputs, outputs, false);
    }
    return grad;
}

static void layer_back(mlp *n, dtr_ddp *ddp, int l) {
    mlp_arith *m = n->arith;
    int inputs = outputs_of(n, l), outputs = outputs_of(n, l + 1);
    mlp_matrix slope = whole(n->slope[l + 1], n->rows, outputs, false);
    const mlp_args bias = { .y = dtr_tensor_data(grad_of(n, ddp, 2 * l + 1)),
                            .x = slope.data,
                            .rows = n->rows,
                            .columns = outputs };
    check(m->run(m, MLP_column_sums, &bias), "the gradient of a bias");
    check(m->multiply(m, whole(n->out[l], n->rows, inputs, true), slope,
                      dtr_tensor_data(grad_of(n, ddp, 2 * l))),
          "the gradient of a weight");
    for (int i = 2 * l + 1; i >= 2 * l && ddp != NULL; i--) {
        mlp_try(dtr_ddp_grad_ready(ddp, (size_t)i, m->stream), "a gradient");
    }
    if (l > 0) {
        const mlp_args relu = { .y = dtr_tensor_data(n->slope[l]),
                                .x = dtr_tensor_data(n->out[l]),
                                .rows = n->rows,
                                .columns = inputs };
        check(m->multiply(m, slope, whole(n->value[2 * l], inputs, outputs, true), relu.y),
              "a gradient");
        check(m->run(m, MLP_relu_back, &relu), "a gradient");
    }
}

void mlp_backward(mlp *n, dtr_ddp *ddp) {
    mlp_arith *m = n->arith;
    mlp_try(dtr_tensor_copy(n->slope[MLP_LAYERS], n->out[MLP_LAYERS], m->stream), "the scores");
    const mlp_args loss = { .y = dtr_tensor_data(n->slope[MLP_LAYERS]),
                            .label = dtr_tensor_data(n->label),
                            .row_loss = dtr_tensor_data(n->row_loss),
                            .rows = n->rows,
                            .columns = MLP_CLASSES,
                            .scale = 1.0f / (float)n->rows };
    check(m->run(m, MLP_loss, &loss), "the loss");
    for (int l = MLP_LAYERS; l-- > 0;) {
        layer_back(n, ddp, l);
    }
    if (ddp != NULL) {
        mlp_try(dtr_ddp_backward_end(ddp, m->stream), "averaging the gradients");
    }
}

void mlp_update(mlp *n, dtr_ddp *ddp, float rate) {
    for (int i = 0; i < MLP_PARAMS; i++) {
        const mlp_args step = { .y = dtr_tensor_data(n->value[i]),
                                .x = dtr_tensor_data(grad_of(n, ddp, i)),
                                .rows = 1,
                                .columns = (long)dtr_tensor_numel(n->value[i]),
                                .scale = rate };
        check(n->arith->run(n->arith, MLP_step, &step), "a step");
    }
}

double mlp_loss_of(mlp *n) {
    double sum = 0;
    mlp_try(dtr_tensor_copy(n->here[2], n->row_loss, n->arith->stream), "copying the losses");
    check(n->arith->wait(n->arith), "copying the losses");
    const float *loss = dtr_tensor_data(n->here[2]);
    for (int r = 0; r < n->rows; r++) {
        sum += (double)loss[r];
    }
    return sum / n->rows;
}

dtr_tensor *mlp_fetch(const mlp *n, int i) {
    int inputs = outputs_of(n, i / 2), outputs = outputs_of(n, i / 2 + 1);
    dtr_tensor *t = matrix(n, DTR_F32, i % 2 ? 1 : inputs, outputs, true);
    mlp_try(dtr_tensor_copy(t, n->value[i], n->arith->stream), "copying a parameter");
    check(n->arith->wait(n->arith), "copying a parameter");
    return t;
}
