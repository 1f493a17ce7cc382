/* What a rank has of a checkpoint's arrays: its slices, or with a whole optimizer all of them. */
#include <stdlib.h>

#include "zero_file.h"

bool dtr__share_has(const dtr__share *sh, size_t i) {
    const dtr__ddp_param *p = &sh->ddp->params[i];
    return p->same_as == i &&
           (sh->zero != NULL ? p->trainable && p->bucket != DTR__NONE : p->trainable || p->delayed);
}

bool dtr__share_piece(const dtr__share *sh, size_t i, dtr__zero_piece *p) {
    const dtr_zero *z = sh->zero;
    if (!dtr__share_has(sh, i)) {
        return false;
    }
    if (z == NULL) {
        const size_t numel = sh->ddp->params[i].value->numel;
        *p = (dtr__zero_piece){ .param = i, .count = numel, .at = sh->begin[i] };
        return numel > 0;
    }
    const size_t b = sh->ddp->params[i].bucket;
    for (size_t s = 0; dtr__zero_next(z, b, z->ddp->rank, &s, p);) {
        if (p->param == i) {
            p->at += z->buckets[b].first;
            return true;
        }
    }
    return false;
}

size_t dtr__share_count(const dtr__share *sh, dtr_dtype param_dtype) {
    return sh->zero != NULL                          ? dtr_zero_shard_count(sh->zero, param_dtype)
           : (unsigned)param_dtype < DTR__ZERO_TYPES ? sh->count[param_dtype]
                                                     : 0;
}

/* ---- the order of elements in files ---- */

void dtr__share_strides(const dtr__ddp_param *p, int64_t *strides) {
    dtr__ddp_dense_strides(p->value, strides);
}

void dtr__share_order_free(dtr__share_order *o) {
    dtr_tensor_release(o->files);
    dtr_tensor_release(o->rows);
    *o = (dtr__share_order){ NULL, NULL };
}

dtr_status dtr__share_order_make(const dtr__share *sh, size_t i, dtr__share_order *o) {
    const dtr__ddp_param *p = &sh->ddp->params[i];
    const dtr_tensor *v = p->value;
    const dtr_device cpu = { DTR_CPU, 0 };
    int64_t files[DTR_MAX_NDIM], rows[DTR_MAX_NDIM];
    dtr__share_strides(p, files);
    dtr__shape_strides(v->ndim, v->shape, rows);
    *o = (dtr__share_order){ NULL, NULL };
    dtr_status s =
        dtr__tensor_wrap(NULL, v->dtype, cpu, v->ndim, v->shape, files, NULL, NULL, &o->files);
    if (s == DTR_OK && sh->zero == NULL &&
        memcmp(files, rows, sizeof *rows * (size_t)v->ndim) != 0) {
        s = dtr__tensor_wrap(NULL, v->dtype, cpu, v->ndim, v->shape, rows, NULL, NULL, &o->rows);
    }
    if (s < 0) {
        dtr__share_order_free(o);
    }
    return s;
}

/* The state of a whole optimizer lies as the elements of its parameters do by rows. */
static const dtr_tensor *as_rows(const dtr__share_order *o, const dtr_buffer *data, size_t at) {
    o->rows->dtype = data->dtype;
    o->rows->data = (char *)data->data + at * dtr_dtype_size(data->dtype);
    return o->rows;
}

void dtr__share_read_state(const dtr__share_order *o, const dtr_buffer *data,
                           const dtr__zero_piece *p, void *to) {
    const size_t size = dtr_dtype_size(data->dtype);
    if (o->rows != NULL) {
        dtr__zero_read(as_rows(o, data, p->at), o->files, 0, p->count, to);
    } else {
        memcpy(to, (const char *)data->data + p->at * size, p->count * size);
    }
}

void dtr__share_write_state(const dtr__share_order *o, const dtr_buffer *data,
                            const dtr__zero_piece *p, const void *from) {
    const size_t size = dtr_dtype_size(data->dtype);
    if (o->rows != NULL) {
        dtr__zero_write(as_rows(o, data, p->at), o->files, 0, p->count, from);
    } else {
        memcpy((char *)data->data + p->at * size, from, p->count * size);
    }
}
