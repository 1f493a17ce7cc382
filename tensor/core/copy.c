/* Copies between tensors of any strides and types: copy, clone, contiguous, pack, unpack. */
#include <string.h>

#include "core/tensor_device.h"
#include "core/walk.h"
#include "kernels/kernels.h"

typedef struct copy_types {
    dtr_dtype to, from;
    size_t to_size, from_size;
} copy_types;

/* dst[k] = convert(src[k]): dense runs in one go, others in blocks gathered on the stack. */
static void copy_run(void *arg, char *dst, ptrdiff_t dst_step, char *src, ptrdiff_t src_step,
                     size_t n) {
    const copy_types *c = arg;
    bool dst_dense = dst_step == (ptrdiff_t)c->to_size;
    bool src_dense = src_step == (ptrdiff_t)c->from_size;
    if (dst_dense && src_dense) {
        dtr__convert(dst, c->to, src, c->from, n);
        return;
    }
    if (c->to == c->from && dst_dense) {
        dtr__gather_run(dst, src, src_step, n, c->from_size);
        return;
    }
    if (c->to == c->from && src_dense) {
        dtr__scatter_run(dst, dst_step, src, n, c->to_size);
        return;
    }
    char in[DTR__WALK_BYTES], out[DTR__WALK_BYTES];
    for (size_t at = 0; at < n; at += DTR__WALK_BLOCK) {
        size_t m = n - at < DTR__WALK_BLOCK ? n - at : DTR__WALK_BLOCK;
        char *d = dst + (ptrdiff_t)at * dst_step, *s = src + (ptrdiff_t)at * src_step;
        if (!src_dense) {
            dtr__gather_run(in, s, src_step, m, c->from_size);
            s = in;
        }
        if (dst_dense) {
            dtr__convert(d, c->to, s, c->from, m);
        } else {
            dtr__convert(out, c->to, s, c->from, m);
            dtr__scatter_run(d, dst_step, out, m, c->to_size);
        }
    }
}

void dtr__tensor_copy_raw(const dtr_tensor *dst, const dtr_tensor *src) {
    copy_types c = { dst->dtype, src->dtype, dtr_dtype_size(dst->dtype),
                     dtr_dtype_size(src->dtype) };
    dtr__walk(dst, src, copy_run, &c);
}

void dtr__tensor_shallow_copy(dtr_tensor *copy, const dtr_tensor *t) {
    /* Field by field: the reference count may be changing in another thread. */
    copy->magic = t->magic;
    atomic_init(&copy->refs, 1);
    copy->dtype = t->dtype;
    copy->device = t->device;
    copy->ndim = t->ndim;
    copy->contiguous = t->contiguous;
    copy->numel = t->numel;
    copy->data = t->data;
    copy->storage = NULL;
    memcpy(copy->shape, t->shape, sizeof(copy->shape));
    memcpy(copy->strides, t->strides, sizeof(copy->strides));
}

/* A stand-in for packed row-major elements. */
static void packed_like(dtr_tensor *p, const dtr_tensor *t, void *packed) {
    dtr__tensor_shallow_copy(p, t);
    p->data = packed;
    p->contiguous = true;
    dtr__shape_strides(t->ndim, t->shape, p->strides);
}

void dtr__tensor_pack(void *packed, const dtr_tensor *t) {
    dtr_tensor p;
    packed_like(&p, t, packed);
    dtr__tensor_copy_raw(&p, t);
}

void dtr__tensor_unpack(const dtr_tensor *t, const void *packed) {
    dtr_tensor p;
    packed_like(&p, t, (void *)(uintptr_t)packed);
    dtr__tensor_copy_raw(t, &p);
}

dtr_status dtr_tensor_clone(const dtr_tensor *t, dtr_tensor **out) {
    DTR_TRY(dtr__tensor_check(t, "tensor"));
    DTR_REQUIRE_RESULT(out);
    dtr_tensor *copy = NULL;
    dtr_status s = dtr__tensor_new_like(t, &copy);
    if (s == DTR_OK && dtr__tensor_on_device(t)) {
        s = dtr__device_tensor_clone(copy, t);
    } else if (s == DTR_OK) {
        dtr__tensor_copy_raw(copy, t);
    }
    if (s < 0) {
        dtr_tensor_release(copy);
        return s;
    }
    *out = copy;
    return DTR_OK;
}

dtr_status dtr_tensor_contiguous(dtr_tensor *t, dtr_tensor **out) {
    DTR_TRY(dtr__tensor_check(t, "tensor"));
    DTR_REQUIRE_RESULT(out);
    if (!t->contiguous) {
        return dtr_tensor_clone(t, out);
    }
    *out = dtr_tensor_retain(t);
    return DTR_OK;
}

bool dtr__tensor_same_place(const dtr_tensor *a, const dtr_tensor *b) {
    return a->data == b->data && a->dtype == b->dtype &&
           memcmp(a->strides, b->strides, (size_t)a->ndim * sizeof(a->strides[0])) == 0;
}

dtr_status dtr__tensor_check_same_shape(const dtr_tensor *a, const char *a_name,
                                        const dtr_tensor *b, const char *b_name) {
    char a_text[DTR__SHAPE_TEXT], b_text[DTR__SHAPE_TEXT];
    DTR_REQUIRE(dtr__same_shape(a, b), NULL, DTR_ERR_SHAPE,
                "%s has shape %s, but %s has %s; they must be the same", a_name,
                dtr__shape_text(a->ndim, a->shape, a_text), b_name,
                dtr__shape_text(b->ndim, b->shape, b_text));
    return DTR_OK;
}

dtr_status dtr__tensor_unalias(const dtr_tensor *dst, const dtr_tensor *src, dtr_tensor **copy,
                               const dtr_tensor **use) {
    *copy = NULL;
    *use = src;
    if (dtr__tensor_same_place(dst, src) || !dtr__tensor_overlap(dst, src)) {
        return DTR_OK;
    }
    DTR_TRY(dtr__tensor_new(src->dtype, src->ndim, src->shape, copy));
    dtr__tensor_copy_raw(*copy, src);
    *use = *copy;
    return DTR_OK;
}

dtr_status dtr_tensor_copy(dtr_tensor *dst, const dtr_tensor *src, void *stream) {
    DTR_TRY(dtr__tensor_check(dst, "dst"));
    DTR_TRY(dtr__tensor_check(src, "src"));
    DTR_TRY(dtr__tensor_check_writable(dst, "dst"));
    DTR_TRY(dtr__tensor_check_same_shape(dst, "dst", src, "src"));
    if (dst->dtype != src->dtype) {
        DTR_TRY(dtr__tensor_check_numbers(dst, "dst", "made of other elements"));
        DTR_TRY(dtr__tensor_check_numbers(src, "src", "converted"));
    }
    if (dtr__tensor_on_device(dst) || dtr__tensor_on_device(src)) {
        return dtr__device_tensor_copy(dst, src, stream);
    }
    if (dtr__tensor_same_place(dst, src)) {
        return DTR_OK;
    }
    dtr_tensor *copy = NULL;
    const dtr_tensor *from = NULL;
    DTR_TRY(dtr__tensor_unalias(dst, src, &copy, &from));
    dtr__tensor_copy_raw(dst, from);
    dtr_tensor_release(copy);
    return DTR_OK;
}
