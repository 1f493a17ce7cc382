/* A small decoder-only transformer in plain C: byte embedding, causal attention, MLP, layer norm,
 * cross-entropy, with hand-written forward and backward. One process, no communication: backward
 * reports each parameter whose gradient is final, and what happens then is the caller's business.
 */
#ifndef GPT_H
#define GPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GPT_VOCAB = 256 }; /* bytes */

typedef struct gpt_config {
    int context, layers, heads,
        width; /* tokens, blocks, heads per block, channels (a multiple of heads) */
} gpt_config;

/* One named array of float parameters. */
typedef struct gpt_param {
    char name[32];
    int ndim;
    int64_t shape[2];
    size_t count;
    float *value, *grad;
} gpt_param;

typedef struct gpt_activations gpt_activations;

typedef struct gpt {
    gpt_config config;
    size_t n_params;
    gpt_param *params; /* in forward order, so backward finishes them back to front */
    float *memory;     /* all values */
    gpt_activations *act;
    int batch; /* sequences that the activations have room for */
} gpt;

/* NULL when out of memory. Values are initialised from `seed`; gradients are NULL until the caller
 * sets them. */
gpt *gpt_create(gpt_config config, int batch, uint64_t seed);
void gpt_free(gpt *g);

/* Mean cross-entropy in nats per byte of predicting target[i] from tokens[..i]; both are
 * [batch][context] bytes. */
float gpt_forward(gpt *g, const uint8_t *tokens, const uint8_t *target);
/* Gradients of the last forward's loss, written to params[i].grad; `ready` is told as each becomes
 * final. */
typedef void (*gpt_ready)(void *arg, size_t param);
void gpt_backward(gpt *g, const uint8_t *tokens, const uint8_t *target, gpt_ready ready, void *arg);

/* Continue `text` (at least one byte, `filled` long) up to `length` bytes by sampling. */
void gpt_sample(gpt *g, uint8_t *text, size_t filled, size_t length, float temperature,
                uint64_t seed);

/* Scale gradients down to this norm of them all where theirs is larger. */
void gpt_clip(gpt *g, float max_norm);

/* AdamW on all parameters; m and v are [total] arrays in parameter order, step counts from 1. */
size_t gpt_count(const gpt *g);
void gpt_adamw(gpt *g, float *m, float *v, long step, float rate);

/* 64-bit hash of all parameter bits. */
uint64_t gpt_hash(const gpt *g);

/* out[m][n] (+)= op(a) op(b), row-major; OpenBLAS when built with it, else a blocked loop
 * (matmul.c). */
void gpt_matmul(bool trans_a, bool trans_b, int m, int n, int k, const float *a, const float *b,
                float beta, float *out);
const char *gpt_matmul_name(void);

/* splitmix64: small, and the same everywhere. */
uint64_t gpt_random(uint64_t *state);

#endif /* GPT_H */
