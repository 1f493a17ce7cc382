/* The engine on the CPU: nothing is queued, all is done at once. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>

struct engine_own {
    const uint8_t *tokens, *target;
    float loss;
};

bool engine_open(engine *e, dtr_world *world, gpt_config config, int batch, uint64_t seed,
                 char *why, size_t cap) {
    (void)world;
    *e = (engine){ .model = gpt_create(config, batch, seed), .own = calloc(1, sizeof *e->own) };
    bool ok = e->model != NULL && e->own != NULL;
    if (!ok) {
        snprintf(why, cap, "out of memory");
    }
    return ok;
}

void engine_close(engine *e) {
    gpt_free(e->model);
    free(e->own);
}

const char *engine_name(void) {
    return gpt_matmul_name();
}

void engine_forward(engine *e, const uint8_t *tokens, const uint8_t *target) {
    *e->own = (struct engine_own){ tokens, target, gpt_forward(e->model, tokens, target) };
}

void engine_backward(engine *e, gpt_ready ready, void *arg) {
    gpt_backward(e->model, e->own->tokens, e->own->target, ready, arg);
}

dtr_status engine_loss(engine *e, float *loss) {
    *loss = e->own->loss;
    return DTR_OK;
}

gpt *engine_fetch(engine *e) {
    return e->model;
}
