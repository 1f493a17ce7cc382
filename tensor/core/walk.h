/* Visits the elements of one tensor, or of two of one shape, as runs along one dimension:
 * dimensions are put in memory order and merged, so that dense tensors are one run. */
#ifndef DTR_TENSOR_WALK_H
#define DTR_TENSOR_WALK_H

#include "core/tensor_internal.h"

/* Dimensions larger than 1 in the order of a's memory, those that go on evenly in both merged;
 * steps in bytes, a's not negative. At least one, unless the tensors are empty. */
typedef struct dtr__dims {
    int ndim;
    bool tiled; /* of dtr__walk */
    int64_t size[DTR_MAX_NDIM];
    ptrdiff_t a_step[DTR_MAX_NDIM], b_step[DTR_MAX_NDIM];
    char *a, *b;
} dtr__dims;
/* Of tensors that are not empty; b as in dtr__walk. */
dtr__dims dtr__walk_dims(const dtr_tensor *a, const dtr_tensor *b);

/* `n` elements at a, a + a_step, ... and b, b + b_step, ... (steps in bytes; b NULL for one
 * tensor). */
typedef void (*dtr__run_fn)(void *arg, char *a, ptrdiff_t a_step, char *b, ptrdiff_t b_step,
                            size_t n);

/* Calls fn for every run. Order follows the memory of `a`. `b` may be NULL, else it has a's shape.
 */
void dtr__walk(const dtr_tensor *a, const dtr_tensor *b, dtr__run_fn fn, void *arg);

/* Elements handled at a time where a run must pass through a buffer on the stack. */
enum { DTR__WALK_BLOCK = 256, DTR__WALK_BYTES = DTR__WALK_BLOCK * 16 };

/* Between a strided run and packed elements of `size` bytes. */
void dtr__gather_run(char *packed, const char *src, ptrdiff_t step, size_t n, size_t size);
void dtr__scatter_run(char *dst, ptrdiff_t step, const char *packed, size_t n, size_t size);

#endif /* DTR_TENSOR_WALK_H */
