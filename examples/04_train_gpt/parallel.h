/* What makes the training of train_gpt parallel: the module that averages gradients, its optimizer,
 * whole or sharded, and their checkpoints. */
#ifndef PARALLEL_H
#define PARALLEL_H

#include <dtr/dtr.h>

#include "engine.h"
#include "options.h"

typedef struct parallel {
    dtr_world *world;
    dtr_group *group;
    const train_options *options;
    const engine *engine;
    dtr_param *params; /* one per model parameter, tensors over the model's memory */
    dtr_ddp *ddp;
    dtr_zero *zero; /* NULL: every rank has the whole state */
    dtr_optim *optim;
    dtr_tensor **scratch; /* --accumulate: where backward writes before it is added */
} parallel;

dtr_status parallel_make(parallel *p, const engine *e, const train_options *o);
void parallel_free(parallel *p);

/* Where backward is to write, before each backward pass: buckets move once, when the module has
 * learned the ready order. */
void parallel_point(const parallel *p);
/* Gradient `param` of one of `parts` backward passes is final, the first of them or a later one. */
dtr_status parallel_ready(const parallel *p, size_t param, int parts, bool first);

/* An index, and beside it files of parameters and optimizer, of every rank if that is sharded. */
bool parallel_save(const parallel *p, const char *path, char *why, size_t cap);
bool parallel_load(const parallel *p, const char *path, long *step, char *why, size_t cap);

/* All ranks learn whether any of them failed, so that none goes on alone. */
bool parallel_all(const parallel *p, bool mine);

#endif /* PARALLEL_H */
