/* A small network of dense layers, its data, and one training step of it. */
#ifndef MLP_H
#define MLP_H

#include <dtr/dtr.h>

#include "arith.h"

enum { MLP_LAYERS = 3, MLP_PARAMS = 2 * MLP_LAYERS, MLP_INPUTS = 16, MLP_CLASSES = 4 };

typedef struct mlp {
    dtr_world *world;
    dtr_device device;
    mlp_arith *arith;
    int width, rows;                 /* of a hidden layer; samples per step */
    dtr_tensor *value[MLP_PARAMS];   /* weight and bias of each layer */
    dtr_tensor *grad[MLP_PARAMS];    /* of a network without DDP, else NULL */
    dtr_tensor *out[MLP_LAYERS + 1]; /* out[0] is the input */
    dtr_tensor *slope[MLP_LAYERS + 1];
    dtr_tensor *label, *row_loss; /* one per row */
    dtr_tensor *here[3];          /* input, labels and losses in pinned host memory */
} mlp;

/* Ends the process, and the job, with the library's last error or `why`. */
_Noreturn void mlp_die(const char *what, const char *why);
void mlp_try(dtr_status s, const char *what);

const char *mlp_param_name(int i);
void mlp_open(mlp *n, dtr_world *world, dtr_device device, mlp_arith *arith, int width, int rows);
void mlp_close(mlp *n);
/* Samples `first` and following of step `step`: the same whoever asks. */
void mlp_load(mlp *n, long step, long first);
void mlp_forward(mlp *n);
/* Gradients of the mean loss, from the last layer to the first, each reported as soon as it is
 * queued. ddp NULL: they stay in n->grad. */
void mlp_backward(mlp *n, dtr_ddp *ddp);
void mlp_update(mlp *n, dtr_ddp *ddp, float rate);
/* The mean loss of the newest forward pass; waits for it. */
double mlp_loss_of(mlp *n);
/* A parameter in host memory, to be released. */
dtr_tensor *mlp_fetch(const mlp *n, int i);

#endif /* MLP_H */
