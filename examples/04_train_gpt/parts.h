/* What the model is made of, for those who compute with it: gpt.c on the CPU, and the engine for a
 * GPU (../05_train_gpt_gpu). */
#ifndef GPT_PARTS_H
#define GPT_PARTS_H

#include "gpt.h"

/* Parameters of one block, in order; a block's first index is EMBEDDINGS + layer * PER_BLOCK. */
enum {
    NORM1_G,
    NORM1_B,
    QKV_W,
    QKV_B,
    PROJ_W,
    PROJ_B,
    NORM2_G,
    NORM2_B,
    FC_W,
    FC_B,
    OUT_W,
    OUT_B,
    PER_BLOCK
};
enum { TOKEN, POSITION, EMBEDDINGS };
enum { LAST_G, LAST_B, HEAD_W, HEAD_B, TAIL }; /* after the blocks */

static inline gpt_param *gpt_block_params(const gpt *g, int layer) {
    return g->params + EMBEDDINGS + layer * PER_BLOCK;
}

/* What the backward pass needs of one block. Rows = batch * context, widths in channels. */
typedef struct block_act {
    float *in, *norm1, *mean1, *rstd1, *qkv, *prob, *mix, *mid, *norm2, *mean2, *rstd2, *fc, *gelu;
} block_act;

struct gpt_activations {
    block_act *block; /* one for each layer */
    float *last_in, *last, *mean, *rstd, *logits;
    float *dx, *dmid, *dwide, *dqkv, *dprob; /* gradients on their way down */
    void *memory;
};

/* Lays everything out in `memory` and returns how many floats it takes; with NULL it only measures.
 */
size_t gpt_lay_out(gpt_activations *a, const gpt *g, float *memory);

/* Whom a backward pass tells of final gradients. */
typedef struct gpt_reporter {
    gpt_ready ready;
    void *arg;
    const gpt *g;
} gpt_reporter;

/* The two parameters of a layer, last first. */
static inline void gpt_report(const gpt_reporter *to, const gpt_param *first) {
    to->ready(to->arg, (size_t)(first + 1 - to->g->params));
    to->ready(to->arg, (size_t)(first - to->g->params));
}

#endif /* GPT_PARTS_H */
