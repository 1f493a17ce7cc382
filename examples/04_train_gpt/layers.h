/* Forward and backward of the layers, on plain arrays. Rows are (sequence, position) pairs. */
#ifndef GPT_LAYERS_H
#define GPT_LAYERS_H

#include <stdint.h>

/* out = (x - mean) * rstd * gain + bias per row of `width`; mean and rstd are kept for the backward
 * pass. */
void norm_forward(float *out, float *mean, float *rstd, const float *x, const float *gain,
                  const float *bias, int rows, int width);
/* dx is added to, dgain and dbias are written. */
void norm_backward(float *dx, float *dgain, float *dbias, const float *dout, const float *x,
                   const float *mean, const float *rstd, const float *gain, int rows, int width);

/* Causal self-attention of one batch. qkv is [batch*context][3*width]; prob is
 * [batch][heads][context][context]. */
typedef struct attention_shape {
    int batch, context, heads, width;
} attention_shape;
void attention_forward(float *out, float *prob, const float *qkv, attention_shape s);
void attention_backward(float *dqkv, float *dprob, const float *dout, const float *prob,
                        const float *qkv, attention_shape s);

void gelu_forward(float *out, const float *x, int n);
void gelu_backward(float *dx, const float *dout, const float *x, int n); /* dx may be dout */

/* out = x w^T + bias with w [to][from]; backward writes dw and dbias, and dx (may be NULL). */
void linear_forward(float *out, const float *x, const float *w, const float *bias, int rows,
                    int from, int to);
void linear_backward(float *dx, float *dw, float *dbias, const float *dout, const float *x,
                     const float *w, int rows, int from, int to);

/* Mean cross-entropy over rows; logits become probabilities. Backward turns them into dlogits in
 * place. */
float loss_forward(float *logits, const uint8_t *target, int rows, int classes);
void loss_backward(float *logits, const uint8_t *target, int rows, int classes);

#endif /* GPT_LAYERS_H */
