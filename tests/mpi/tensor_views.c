/* Tensors in guarded memory with a choice of layouts. */
#include "tensor_views.h"

#include <stdlib.h>
#include <string.h>

view view_new(dtr_dtype d, layout l, int ndim, const int64_t *shape) {
    view v = { 0 };
    int64_t strides[DTR_MAX_NDIM], step = l == COLUMN ? 2 : 1;
    for (int i = 0; i < ndim; i++) {
        int dim = l == REVERSED ? i : ndim - 1 - i;
        strides[dim] = step;
        step = step * (shape[dim] > 0 ? shape[dim] : 1) + (l == REVERSED ? 1 : 0);
    }
    size_t count = (size_t)step + 2;
    v.nbytes = count * dtr_dtype_size(d);
    v.memory = malloc(v.nbytes);
    memset(v.memory, 0xA5, v.nbytes);
    dtr_buffer b = dtr_cpu(v.memory + dtr_dtype_size(d), count - 1, d);
    TH_IS(dtr_tensor_from_buffer(b, ndim, shape, strides, NULL, NULL, &v.t), DTR_OK);
    return v;
}

void view_free(view *v) {
    dtr_tensor_release(v->t);
    free(v->memory);
    *v = (view){ 0 };
}

static size_t place(const view *v, size_t k) {
    int64_t at = 1;
    for (int d = dtr_tensor_ndim(v->t) - 1; d >= 0; d--) {
        size_t size = (size_t)dtr_tensor_shape(v->t)[d];
        at += (int64_t)(k % size) * dtr_tensor_strides(v->t)[d];
        k /= size;
    }
    return (size_t)at;
}

void view_set(const view *v, size_t k, double x) {
    th_set(v->memory, dtr_tensor_dtype(v->t), place(v, k), x, -x);
}

double view_get(const view *v, size_t k) {
    dtr_dtype d = dtr_tensor_dtype(v->t);
    double re = th_get(v->memory, d, place(v, k), false);
    if (d == DTR_C64 || d == DTR_C128) {
        TH_CHECK(th_get(v->memory, d, place(v, k), true) == -re, "imaginary part of %zu", k);
    }
    return re;
}

bool view_gaps_ok(const view *v, bool whole) {
    size_t size = dtr_dtype_size(dtr_tensor_dtype(v->t));
    unsigned char *gap = malloc(v->nbytes);
    memset(gap, 1, v->nbytes);
    for (size_t k = 0; !whole && k < dtr_tensor_numel(v->t); k++) {
        memset(gap + place(v, k) * size, 0, size);
    }
    bool ok = true;
    for (size_t i = 0; i < v->nbytes; i++) {
        ok = ok && (!gap[i] || v->memory[i] == 0xA5);
    }
    free(gap);
    return ok;
}
