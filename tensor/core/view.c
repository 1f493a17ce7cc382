/* Shapes and strides: checks, arithmetic, and the views made of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/tensor_internal.h"

/* ---- shapes ---- */

const char *dtr__shape_text(int ndim, const int64_t *shape, char text[DTR__SHAPE_TEXT]) {
    size_t at = 0;
    text[at++] = '[';
    for (int d = 0; d < ndim; d++) {
        char number[32];
        int n = snprintf(number, sizeof(number), "%s%lld", d > 0 ? ", " : "", (long long)shape[d]);
        if (at + (size_t)n + sizeof(", ...]") > DTR__SHAPE_TEXT) {
            memcpy(text + at, ", ...", 5);
            at += 5;
            break;
        }
        memcpy(text + at, number, (size_t)n);
        at += (size_t)n;
    }
    text[at++] = ']';
    text[at] = '\0';
    return text;
}

dtr_status dtr__shape_numel(int ndim, const int64_t *shape, dtr_dtype dtype, size_t *numel) {
    DTR_REQUIRE(ndim >= 0 && ndim <= DTR_MAX_NDIM, NULL, DTR_ERR_ARG,
                "ndim %d is out of range: 0 to %d dimensions are possible", ndim, DTR_MAX_NDIM);
    DTR_REQUIRE(ndim == 0 || shape != NULL, NULL, DTR_ERR_ARG,
                "shape is NULL, but ndim is %d; it needs that many sizes", ndim);
    char text[DTR__SHAPE_TEXT];
    bool empty = false, over = false;
    /* Sizes of 0 count as 1, so that strides of empty tensors stay in range, too. */
    int64_t elements = 1, nbytes = 0;
    for (int d = 0; d < ndim; d++) {
        DTR_REQUIRE(shape[d] >= 0, NULL, DTR_ERR_SHAPE, "size %lld of dimension %d is negative",
                    (long long)shape[d], d);
        empty = empty || shape[d] == 0;
        over = over || __builtin_mul_overflow(elements, shape[d] == 0 ? 1 : shape[d], &elements);
    }
    over = over || __builtin_mul_overflow(elements, (int64_t)dtr_dtype_size(dtype), &nbytes);
    DTR_REQUIRE(!over && nbytes <= PTRDIFF_MAX, NULL, DTR_ERR_OVERFLOW,
                "shape %s of %s is more bytes than an address can hold",
                dtr__shape_text(ndim, shape, text), dtr_dtype_name(dtype));
    *numel = empty ? 0 : (size_t)elements;
    return DTR_OK;
}

void dtr__shape_strides(int ndim, const int64_t *shape, int64_t *strides) {
    int64_t step = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        strides[d] = step;
        step *= shape[d] == 0 ? 1 : shape[d];
    }
}

bool dtr__same_shape(const dtr_tensor *a, const dtr_tensor *b) {
    return a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(a->shape[0])) == 0;
}

/* ---- where elements lie ---- */

void dtr__tensor_span(const dtr_tensor *t, ptrdiff_t *lo, ptrdiff_t *hi) {
    *lo = 0;
    *hi = 0;
    if (t->numel == 0) {
        return;
    }
    ptrdiff_t size = (ptrdiff_t)dtr_dtype_size(t->dtype);
    for (int d = 0; d < t->ndim; d++) {
        ptrdiff_t reach = (ptrdiff_t)(t->shape[d] - 1) * (ptrdiff_t)t->strides[d] * size;
        *(reach < 0 ? lo : hi) += reach;
    }
    *hi += size;
}

bool dtr__tensor_overlap(const dtr_tensor *a, const dtr_tensor *b) {
    ptrdiff_t a_lo, a_hi, b_lo, b_hi;
    dtr__tensor_span(a, &a_lo, &a_hi);
    dtr__tensor_span(b, &b_lo, &b_hi);
    if (a_lo == a_hi || b_lo == b_hi || a->device.type != b->device.type ||
        a->device.index != b->device.index) {
        return false;
    }
    uintptr_t pa = (uintptr_t)a->data, pb = (uintptr_t)b->data;
    return pa + (uintptr_t)a_lo < pb + (uintptr_t)b_hi &&
           pb + (uintptr_t)b_lo < pa + (uintptr_t)a_hi;
}

/* Sorted by stride, each dimension must step over everything the smaller ones reach. Layouts that
 * interleave without sharing but do not nest count as overlapping, too. */
bool dtr__tensor_self_overlap(const dtr_tensor *t) {
    if (t->contiguous) {
        return false;
    }
    int order[DTR_MAX_NDIM], n = 0;
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] == 1) {
            continue;
        }
        int at = n++;
        for (; at > 0 && llabs(t->strides[order[at - 1]]) > llabs(t->strides[d]); at--) {
            order[at] = order[at - 1];
        }
        order[at] = d;
    }
    int64_t reach = 0;
    for (int i = 0; i < n; i++) {
        int64_t step = llabs(t->strides[order[i]]);
        if (step <= reach) {
            return true;
        }
        reach += step * (t->shape[order[i]] - 1);
    }
    return false;
}

dtr_status dtr__tensor_check_writable(const dtr_tensor *t, const char *name) {
    char shape[DTR__SHAPE_TEXT], strides[DTR__SHAPE_TEXT];
    DTR_REQUIRE(
        !dtr__tensor_self_overlap(t), NULL, DTR_ERR_LAYOUT,
        "%s of shape %s has strides %s: several indices share memory, so it can only be read; "
        "write to a contiguous copy",
        name, dtr__shape_text(t->ndim, t->shape, shape),
        dtr__shape_text(t->ndim, t->strides, strides));
    return DTR_OK;
}

/* ---- views ---- */

static dtr_status check_view_args(const dtr_tensor *t, dtr_tensor **view) {
    DTR_TRY(dtr__tensor_check(t, "tensor"));
    DTR_REQUIRE_RESULT(view);
    return DTR_OK;
}

/* Neighbouring dimensions that step evenly through memory are one block: its number of elements and
 * the stride of its last index. From the last dimension to the first; returns how many. */
typedef struct even_block {
    int64_t size, stride;
} even_block;

static int even_blocks(const dtr_tensor *t, even_block block[DTR_MAX_NDIM]) {
    int n = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->shape[d] == 1) {
            continue;
        }
        if (n > 0 && t->strides[d] == block[n - 1].size * block[n - 1].stride) {
            block[n - 1].size *= t->shape[d];
        } else {
            block[n++] = (even_block){ t->shape[d], t->strides[d] };
        }
    }
    return n;
}

/* Strides that give `shape` the row-major element order of t; false when there are none. Both have
 * the same, non-zero number of elements. */
static bool view_strides(const dtr_tensor *t, int ndim, const int64_t *shape, int64_t *strides) {
    even_block block[DTR_MAX_NDIM];
    int n = even_blocks(t, block), k = 0;
    int64_t cut = 1; /* elements of block k that dimensions of `shape` have taken so far */
    for (int d = ndim - 1; d >= 0; d--) {
        strides[d] = k < n ? block[k].stride * cut : 1;
        if (shape[d] == 1) {
            continue;
        }
        cut *= shape[d];
        if (k == n || cut > block[k].size) {
            return false;
        }
        if (cut == block[k].size) {
            k++;
            cut = 1;
        }
    }
    return true;
}

dtr_status dtr_tensor_reshape(dtr_tensor *t, int ndim, const int64_t *shape, dtr_tensor **view) {
    DTR_TRY(check_view_args(t, view));
    size_t numel = 0;
    DTR_TRY(dtr__shape_numel(ndim, shape, t->dtype, &numel));
    char from[DTR__SHAPE_TEXT], to[DTR__SHAPE_TEXT], by[DTR__SHAPE_TEXT];
    DTR_REQUIRE(numel == t->numel, NULL, DTR_ERR_SHAPE,
                "shape %s has %zu elements, but the tensor of shape %s has %zu",
                dtr__shape_text(ndim, shape, to), numel, dtr__shape_text(t->ndim, t->shape, from),
                t->numel);
    if (t->contiguous) {
        return dtr__tensor_view(t, 0, ndim, shape, NULL, view);
    }
    int64_t strides[DTR_MAX_NDIM];
    DTR_REQUIRE(view_strides(t, ndim, shape, strides), NULL, DTR_ERR_LAYOUT,
                "a tensor of shape %s with strides %s cannot be seen as %s without a copy; call "
                "dtr_tensor_contiguous first",
                dtr__shape_text(t->ndim, t->shape, from), dtr__shape_text(t->ndim, t->strides, by),
                dtr__shape_text(ndim, shape, to));
    return dtr__tensor_view(t, 0, ndim, shape, strides, view);
}

static dtr_status check_dim(const dtr_tensor *t, const char *name, int dim) {
    DTR_REQUIRE(dim >= 0 && dim < t->ndim, NULL, DTR_ERR_ARG,
                "%s %d is out of range: the tensor has %d dimensions", name, dim, t->ndim);
    return DTR_OK;
}

dtr_status dtr_tensor_narrow(dtr_tensor *t, int dim, int64_t start, int64_t length,
                             dtr_tensor **view) {
    DTR_TRY(check_view_args(t, view));
    DTR_TRY(check_dim(t, "dim", dim));
    int64_t size = t->shape[dim];
    DTR_REQUIRE(start >= 0 && length >= 0 && start <= size && length <= size - start, NULL,
                DTR_ERR_ARG, "start %lld, length %lld do not fit into dimension %d of size %lld",
                (long long)start, (long long)length, dim, (long long)size);
    int64_t shape[DTR_MAX_NDIM];
    memcpy(shape, t->shape, sizeof(shape));
    shape[dim] = length;
    ptrdiff_t offset = t->numel == 0 || length == 0 ? 0 : (ptrdiff_t)(start * t->strides[dim]);
    return dtr__tensor_view(t, offset, t->ndim, shape, t->strides, view);
}

dtr_status dtr_tensor_transpose(dtr_tensor *t, int dim0, int dim1, dtr_tensor **view) {
    DTR_TRY(check_view_args(t, view));
    DTR_TRY(check_dim(t, "dim0", dim0));
    DTR_TRY(check_dim(t, "dim1", dim1));
    int64_t shape[DTR_MAX_NDIM], strides[DTR_MAX_NDIM];
    memcpy(shape, t->shape, sizeof(shape));
    memcpy(strides, t->strides, sizeof(strides));
    shape[dim0] = t->shape[dim1];
    shape[dim1] = t->shape[dim0];
    strides[dim0] = t->strides[dim1];
    strides[dim1] = t->strides[dim0];
    return dtr__tensor_view(t, 0, t->ndim, shape, strides, view);
}
