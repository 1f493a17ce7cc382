/* Where the model is trained: on the CPU (engine_cpu.c, the program train_gpt) or on a GPU
 * (../05_train_gpt_gpu/engine_gpu.c, the program train_gpt_gpu). */
#ifndef GPT_ENGINE_H
#define GPT_ENGINE_H

#include <dtr/dtr.h>

#include "gpt.h"

typedef struct engine {
    gpt *model; /* values and gradients of its parameters lie on `device` */
    dtr_device device;
    void *stream; /* where all work is queued; NULL on the CPU */
    struct engine_own *own;
} engine;

/* On failure the reason is in `why`, and engine_close is still to be called. */
bool engine_open(engine *e, dtr_world *world, gpt_config config, int batch, uint64_t seed,
                 char *why, size_t cap);
void engine_close(engine *e);
/* What computes the products. */
const char *engine_name(void);

/* As gpt_forward and gpt_backward, but on a GPU they only queue. The arrays stay as they are until
 * engine_loss has returned. */
void engine_forward(engine *e, const uint8_t *tokens, const uint8_t *target);
void engine_backward(engine *e, gpt_ready ready, void *arg);
/* Waits for the last forward pass, not for what was queued behind it. */
dtr_status engine_loss(engine *e, float *loss);

/* The model with its parameters in host memory; waits for all that is queued. NULL on failure. */
gpt *engine_fetch(engine *e);

#endif /* GPT_ENGINE_H */
