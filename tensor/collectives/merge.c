/* Merging gathered sparse rows: each row number once, ascending, its rows summed in list order. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/tensor_sparse.h"
#include "kernels/kernels.h"

typedef struct entry {
    int64_t index;
    size_t at; /* position in the list: keeps equal ones in order */
} entry;

static int by_index(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->index != y->index) {
        return x->index < y->index ? -1 : 1;
    }
    return x->at < y->at ? -1 : x->at > y->at;
}

static size_t count_rows(const entry *p, size_t n) {
    size_t rows = 0;
    for (size_t i = 0; i < n; i++) {
        rows += i == 0 || p[i].index != p[i - 1].index;
    }
    return rows;
}

/* Two tensors for `rows` rows; nothing is left on failure. */
static dtr_status make_outputs(size_t rows, dtr_dtype dtype, int row_ndim, const int64_t *row_shape,
                               dtr_tensor **indices, dtr_tensor **values) {
    int64_t shape[DTR_MAX_NDIM] = { (int64_t)rows };
    for (int d = 0; d < row_ndim; d++) {
        shape[d + 1] = row_shape[d];
    }
    DTR_TRY(dtr__tensor_new(DTR_I64, 1, shape, indices));
    dtr_status s = dtr__tensor_new(dtype, row_ndim + 1, shape, values);
    if (s < 0) {
        dtr_tensor_release(*indices);
        *indices = NULL;
    }
    return s;
}

dtr_status dtr__sparse_merge(const int64_t *indices, const void *values, size_t n, size_t row,
                             dtr_dtype dtype, dtr_op op, int divisor, int row_ndim,
                             const int64_t *row_shape, dtr_tensor **out_indices,
                             dtr_tensor **out_values) {
    DTR_REQUIRE(n <= INT_MAX, NULL, DTR_ERR_OVERFLOW,
                "%zu sparse rows from all ranks are too many; %d can be merged", n, INT_MAX);
    size_t nbytes = row * dtr_dtype_size(dtype);
    entry *p = malloc((n + 1) * sizeof(p[0]));
    const void **src = malloc((n + 1) * sizeof(src[0]));
    dtr_status s = DTR_OK;
    if (p == NULL || src == NULL) {
        s = DTR_FAIL(NULL, DTR_ERR_NOMEM, "out of memory for merging %zu sparse rows", n);
    }
    for (size_t i = 0; s == DTR_OK && i < n; i++) {
        p[i] = (entry){ indices[i], i };
    }
    if (s == DTR_OK) {
        qsort(p, n, sizeof(p[0]), by_index);
        s = make_outputs(count_rows(p, n), dtype, row_ndim, row_shape, out_indices, out_values);
    }
    size_t k = 0;
    for (size_t i = 0, end; s == DTR_OK && i < n; i = end, k++) {
        for (end = i; end < n && p[end].index == p[i].index; end++) {
            src[end - i] = (const char *)values + p[end].at * nbytes;
        }
        ((int64_t *)(void *)(*out_indices)->data)[k] = p[i].index;
        if (row > 0) {
            dtr__reduce((*out_values)->data + k * nbytes, src, (int)(end - i), row, dtype, op,
                        divisor, NULL);
        }
    }
    free(p);
    free(src);
    return s;
}
