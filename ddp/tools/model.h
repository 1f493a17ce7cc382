/* Parameter lists for measuring: two well-known models, and any list from a file. */
#ifndef DTR_TOOLS_MODEL_H
#define DTR_TOOLS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MODEL_DIMS = 8, MODEL_NAME = 96 };

typedef struct model_param {
    char name[MODEL_NAME];
    int ndim;
    int64_t shape[MODEL_DIMS];
    size_t numel;
} model_param;

typedef struct model {
    model_param *params;
    size_t n, cap, numel;
} model;

/* "gpt2" (124M, 148 tensors), "resnet50" (161 tensors), else the path of a file with one parameter
 * a line, "name d0 d1 ..." or "name d0xd1x...", no sizes for a scalar; '#' begins a comment.
 * false: `error` says what is wrong with which line. */
bool model_open(const char *name, model *m, char *error, size_t cap);
void model_close(model *m);

#endif /* DTR_TOOLS_MODEL_H */
