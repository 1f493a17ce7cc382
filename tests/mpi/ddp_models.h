/* Models for the DDP tests: Synth has exact gradients and no forward; Net is a small network with a
 * hand-written backward pass. */
#ifndef DDP_MODELS_H
#define DDP_MODELS_H

#include <dtr/ddp.h>

#include "harness.h"

/* ---- Synth: gradient of parameter i, element k, rank r, step t = x_r[k] + 17 i + t ---- */
typedef struct synth {
    size_t n;
    dtr_dtype dtype;
    dtr_param *params;
    char (*names)[24];
} synth;
synth synth_new(size_t n, const size_t *sizes, dtr_dtype dtype);
synth synth_equal(size_t n, size_t size); /* f32, all of one size */
void synth_free(synth *s);
double synth_input(size_t i, size_t k, int r, int step);
/* Sum over the ranks, divided by `divisor` in float32 (or the type's own precision). */
double synth_mean(size_t i, size_t k, int W, int step, int divisor, dtr_dtype dtype);
/* Write this rank's gradient of parameter i where the module wants it; `add`: onto what is there.
 */
void synth_write(dtr_ddp *ddp, const synth *s, size_t i, int step, bool add);
/* Note a failure unless the gradient is bitwise the mean of all ranks. */
void synth_check(dtr_ddp *ddp, const synth *s, size_t i, int step, int divisor);
void synth_check_all(dtr_ddp *ddp, const synth *s, int step, int divisor);
/* Write and report every parameter, last to first. */
void synth_backward(dtr_ddp *ddp, const synth *s, int step);
/* One good step: shows that the module still works. */
void synth_good_step(dtr_ddp *ddp, const synth *s, int step);

dtr_ddp *ddp_new(const synth *s, const dtr_ddp_options *o); /* on th_group, must succeed */
float *grad_of(dtr_ddp *ddp, size_t i);
dtr_ddp_stats stats_of(const dtr_ddp *ddp);
/* "0,2|1" */
void plan_text(const dtr_plan *plan, char *text, size_t cap);

/* A communication hook: average, sum, minimum, a collective each. */
dtr_status hook_of_three_steps(void *state, dtr_ddp_bucket *b, dtr_work **work);

/* ---- Net: linear 2->10->50->4 without bias, ReLU, ReLU, softmax, MSE ---- */
enum { NET_PARAMS = 3, NET_IN = 2, NET_OUT = 4 };
typedef struct net {
    float *weight[NET_PARAMS];
    dtr_tensor *value[NET_PARAMS];
    dtr_param params[NET_PARAMS];
} net;
net net_new(uint64_t seed);
void net_free(net *n);
size_t net_numel(int layer);
/* Adds the gradient of mean((softmax(net(x)) - y)^2) over `batch` rows into grad[layer], which
 * becomes final last layer first; `ready` is called at that moment. */
void net_backward(const net *n, const float *x, const float *y, int batch, float *const *grad,
                  void (*ready)(void *arg, int layer), void *arg);
/* T40: inputs and targets of a global batch of W, the same on all ranks, turned by one row in each
 * iteration; weight -= grad; both with the gradient of the whole batch; as exact as it asks for. */
void net_batch(int W, int iteration, float *x, float *y);
void net_descend(net *n, float *const *grad);
void net_plain_step(net *n, int W, const float *x, const float *y);
bool net_near(float a, float b);

#endif /* DDP_MODELS_H */
