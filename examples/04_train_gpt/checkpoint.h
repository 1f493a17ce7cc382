/* Checkpoints of train_gpt: one safetensors file with parameters, AdamW state and the step, written
 * to a temporary name and renamed, so that a killed job leaves the old file or the new one, never
 * half of one. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>

#include "gpt.h"

bool checkpoint_save(const char *path, const gpt *g, const float *m, const float *v, long step,
                     char *why, size_t cap);
/* A file that does not exist is no failure: the training starts at step 0. */
bool checkpoint_load(const char *path, gpt *g, float *m, float *v, long *step, char *why,
                     size_t cap);

#endif /* CHECKPOINT_H */
