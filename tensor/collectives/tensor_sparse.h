/* One row-sparse allreduce: a work of its own whose parts gather what ranks have, then their rows.
 */
#ifndef DTR_TENSOR_SPARSE_H
#define DTR_TENSOR_SPARSE_H

#include "core/backend.h"
#include "core/call.h"
#include "core/tensor_internal.h"
#include "engine/staged.h"

/* What every rank sends the others first. All but nnz and site must be equal. */
typedef struct dtr__sparse_head {
    int64_t nnz, op, dtype, n_rows;
    struct {
        int64_t ndim, shape[DTR_MAX_NDIM - 1];
    } rows;
    uint64_t tag_word; /* of a layer above, 0 in public calls */
    char site[48];
} dtr__sparse_head;

typedef struct dtr__sparse_op {
    dtr__staged staged;
    /* What was asked for; the caller's memory, as in every asynchronous call. */
    const int64_t *indices;
    const void *values;
    dtr_dtype dtype;
    dtr_op op;
    size_t row; /* elements */
    dtr__sparse_head own;
    dtr_tensor **out_indices, **out_values;
    dtr_device device;   /* of the results */
    dtr_tensor *host[2]; /* copies of what lies on a device, indices and values; else NULL */
    /* Under way; progress lock. */
    dtr__sparse_head *heads;
    size_t *counts, *value_counts;
    int64_t *all_indices;
    char *all_values;
    size_t total;
    dtr_tensor *result_indices, *result_values;
} dtr__sparse_op;

extern const dtr__backend dtr__backend_sparse;
/* NULL: out of memory. Takes references of its own to the host copies. */
dtr__sparse_op *dtr__sparse_new(dtr_group *g, const dtr__sparse_op *asked);

/* dtr_sparse_allreduce for a layer above, with the word by which it tells its operations apart. */
dtr_status dtr__sparse_allreduce(dtr_group *group, dtr_tensor *indices, dtr_tensor *values,
                                 int64_t n_rows, dtr_op op, const dtr_coll_options *options,
                                 uint64_t tag_word, dtr_tensor **out_indices,
                                 dtr_tensor **out_values, dtr_work **work);

/* Sum equal rows of a gathered list in the order of the list into two new tensors
 * (collectives/merge.c). Averages are divided by `divisor`. */
dtr_status dtr__sparse_merge(const int64_t *indices, const void *values, size_t n, size_t row,
                             dtr_dtype dtype, dtr_op op, int divisor, int row_ndim,
                             const int64_t *row_shape, dtr_tensor **out_indices,
                             dtr_tensor **out_values);

#endif /* DTR_TENSOR_SPARSE_H */
