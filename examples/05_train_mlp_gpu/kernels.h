/* What each thread of the example's kernels does. nvcc compiles these bodies into kernels
 * (arith_cuda.cu); on the CPU one thread does it all (arith_cpu.c). */
#ifndef MLP_KERNELS_H
#define MLP_KERNELS_H

#include <math.h>

#ifdef __CUDACC__
#define MLP_BODY static __device__ __forceinline__
#else
#define MLP_BODY static inline
#endif
#ifndef MLP_AT /* where a test finds the bytes of a device address */
#define MLP_AT(p) (p)
#endif

/* X(name): all of them. */
#define MLP_KERNELS(X) X(bias) X(relu_back) X(column_sums) X(loss) X(step)

#define MLP_ENUM(name) MLP_##name,
typedef enum mlp_kernel { MLP_KERNELS(MLP_ENUM) MLP_N_KERNELS } mlp_kernel;
#undef MLP_ENUM

/* One argument for all of them. Matrices have `rows` rows of `columns` numbers. */
typedef struct mlp_args {
    float *y;         /* what is written */
    const float *x;   /* what is read: see each body */
    const int *label; /* the right class of each row */
    float *row_loss;
    long rows, columns;
    float scale;
    int relu;
} mlp_args;

/* y += bias of each column; with relu, nothing stays below zero. */
MLP_BODY void mlp_bias(const mlp_args *a, long tid, long threads) {
    float *y = (float *)MLP_AT(a->y);
    const float *bias = (const float *)MLP_AT(a->x);
    for (long i = tid; i < a->rows * a->columns; i += threads) {
        float v = y[i] + bias[i % a->columns];
        y[i] = a->relu && v < 0 ? 0 : v;
    }
}

/* The gradient y goes on where the output x of the layer was above zero. */
MLP_BODY void mlp_relu_back(const mlp_args *a, long tid, long threads) {
    float *y = (float *)MLP_AT(a->y);
    const float *out = (const float *)MLP_AT(a->x);
    for (long i = tid; i < a->rows * a->columns; i += threads) {
        y[i] = out[i] > 0 ? y[i] : 0;
    }
}

/* y = sums of x's columns: the gradient of a bias. A thread takes whole columns. */
MLP_BODY void mlp_column_sums(const mlp_args *a, long tid, long threads) {
    float *y = (float *)MLP_AT(a->y);
    const float *x = (const float *)MLP_AT(a->x);
    for (long c = tid; c < a->columns; c += threads) {
        float sum = 0;
        for (long r = 0; r < a->rows; r++) {
            sum += x[r * a->columns + c];
        }
        y[c] = sum;
    }
}

/* y holds scores of classes: the loss of each row is -log(probability of its label), and y becomes
 * the gradient of `scale` times the sum of the losses. A thread takes whole rows. */
MLP_BODY void mlp_loss(const mlp_args *a, long tid, long threads) {
    float *scores = (float *)MLP_AT(a->y), *row_loss = (float *)MLP_AT(a->row_loss);
    const int *label = (const int *)MLP_AT(a->label);
    for (long r = tid; r < a->rows; r += threads) {
        float *y = scores + r * a->columns, most = y[0], sum = 0;
        for (long c = 1; c < a->columns; c++) {
            most = y[c] > most ? y[c] : most;
        }
        for (long c = 0; c < a->columns; c++) {
            sum += expf(y[c] - most);
        }
        row_loss[r] = logf(sum) + most - y[label[r]];
        for (long c = 0; c < a->columns; c++) {
            float p = expf(y[c] - most) / sum;
            y[c] = a->scale * (c == label[r] ? p - 1 : p);
        }
    }
}

/* SGD: y -= scale * x. */
MLP_BODY void mlp_step(const mlp_args *a, long tid, long threads) {
    float *y = (float *)MLP_AT(a->y);
    const float *x = (const float *)MLP_AT(a->x);
    for (long i = tid; i < a->rows * a->columns; i += threads) {
        y[i] -= a->scale * x[i];
    }
}

#endif /* MLP_KERNELS_H */
