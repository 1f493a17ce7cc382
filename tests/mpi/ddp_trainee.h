/* What tests of checkpoints train: a module with an optimizer, whole or sharded, on gradients that
 * are the same on all ranks; and their files. */
#ifndef DDP_TRAINEE_H
#define DDP_TRAINEE_H

#include <dtr/optim.h>

#include "ddp_models.h"

enum { TRAINEE_PARAMS = 6 };

typedef struct trainee {
    synth s;
    dtr_ddp *ddp;
    dtr_zero *zero;
    dtr_optim *optim;
} trainee;

/* from: the values it begins with, by which loaded ones can be told. One parameter is a transposed
 * view: dense, and not by rows. */
trainee trainee_make(dtr_group *g, dtr_dtype d, bool sharded, const dtr_ddp_options *o,
                     const dtr_optim_options *oo, int from);
/* AdamW, with buckets of `cap` bytes. */
trainee trainee_new(dtr_group *g, dtr_dtype d, bool sharded, size_t cap, int from);
void trainee_free(trainee *t);
size_t trainee_numel(size_t i);
void trainee_train(const trainee *t, int first, int steps);
/* Parameters and number of steps are bitwise equal. */
void trainee_compare(const trainee *a, const trainee *b, const char *what);

/* The index of a checkpoint of this number of ranks. */
void trainee_path(char *path, size_t cap, const char *what);
/* How many files it has; collective. */
size_t trainee_files(const char *path, bool remove_them);

#endif /* DDP_TRAINEE_H */
