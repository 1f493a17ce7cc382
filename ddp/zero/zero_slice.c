/* The geometry of a sharded optimizer: which elements of which parameter lie in which rank's slice
 * of a bucket, and copies between such stretches and tensors of any strides. */
#include "zero.h"

size_t dtr__zero_slice_nbytes(size_t nbytes, int size) {
    size_t lines = (nbytes + DTR__PLAN_ALIGN - 1) / DTR__PLAN_ALIGN;
    return (lines + (size_t)size - 1) / (size_t)size * DTR__PLAN_ALIGN;
}

bool dtr__zero_next(const dtr_zero *z, size_t b, int rank, size_t *s, dtr__zero_piece *piece) {
    const dtr_plan_bucket *plan = z->ddp->buckets[b].plan;
    size_t size = dtr_dtype_size(plan->dtype), slice = z->buckets[b].slice;
    size_t lo = slice * (size_t)rank, hi = lo + slice;
    while (*s < plan->n_slots) {
        const dtr_plan_slot *slot = &plan->slots[(*s)++];
        size_t begin = slot->offset / size, end = begin + slot->nbytes / size;
        size_t from = begin > lo ? begin : lo, to = end < hi ? end : hi;
        if (from < to) {
            *piece = (dtr__zero_piece){ slot->param, from - begin, to - from, from - lo };
            return true;
        }
    }
    return false;
}

/* ---- stretches of tensors ---- */

static bool lies_alike(const dtr_tensor *t, const dtr_tensor *slot) {
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] > 1 && t->strides[d] != slot->strides[d]) {
            return false;
        }
    }
    return true;
}

/* Dimensions of a dense tensor, the longest stride first; those of size 1 are left out. */
static int outermost_first(const dtr_tensor *slot, int *order) {
    int n = 0;
    for (int d = 0; d < slot->ndim; d++) {
        if (slot->shape[d] > 1) {
            int at = n++;
            for (; at > 0 && slot->strides[order[at - 1]] < slot->strides[d]; at--) {
                order[at] = order[at - 1];
            }
            order[at] = d;
        }
    }
    return n;
}

/* Where element k of `slot` lies in `t`. */
static char *element(const dtr_tensor *t, const dtr_tensor *slot, const int *order, int n,
                     size_t k) {
    int64_t rest = (int64_t)k;
    ptrdiff_t at = 0;
    for (int j = 0; j < n; j++) {
        int64_t index = rest / slot->strides[order[j]];
        rest -= index * slot->strides[order[j]];
        at += (ptrdiff_t)(index * t->strides[order[j]]);
    }
    return t->data + at * (ptrdiff_t)dtr_dtype_size(t->dtype);
}

char *dtr__zero_stretch(const dtr_tensor *t, const dtr_tensor *slot, size_t from) {
    return lies_alike(t, slot) ? t->data + from * dtr_dtype_size(t->dtype) : NULL;
}

static void copy(const dtr_tensor *t, const dtr_tensor *slot, size_t from, size_t count,
                 char *memory, bool read) {
    size_t size = dtr_dtype_size(t->dtype);
    int order[DTR_MAX_NDIM];
    if (lies_alike(t, slot)) {
        char *at = t->data + from * size;
        memcpy(read ? memory : at, read ? at : memory, count * size);
        return;
    }
    int n = outermost_first(slot, order);
    for (size_t k = 0; k < count; k++) {
        char *at = element(t, slot, order, n, from + k);
        memcpy(read ? memory + k * size : at, read ? at : memory + k * size, size);
    }
}

void dtr__zero_read(const dtr_tensor *t, const dtr_tensor *slot, size_t from, size_t count,
                    void *to) {
    copy(t, slot, from, count, to, true);
}

void dtr__zero_write(const dtr_tensor *t, const dtr_tensor *slot, size_t from, size_t count,
                     const void *from_memory) {
    copy(t, slot, from, count, (char *)(uintptr_t)from_memory, false);
}

/* ---- copies of a step ---- */

/* What lies on a device lies there as its slot does. */
void dtr__zero_copy_to(dtr__zero_copies *c, const dtr_tensor *t, const dtr_tensor *slot,
                       size_t from, size_t count, void *to) {
    if (dtr__ddp_on_device(c->ddp)) {
        c->pieces[c->n++] =
            (dtr__ddp_piece){ to, dtr__zero_stretch(t, slot, from), count, t->dtype, t->dtype };
    } else {
        dtr__zero_read(t, slot, from, count, to);
    }
}

void dtr__zero_copy_from(dtr__zero_copies *c, const dtr_tensor *t, const dtr_tensor *slot,
                         size_t from, size_t count, const void *memory) {
    if (dtr__ddp_on_device(c->ddp)) {
        c->pieces[c->n++] =
            (dtr__ddp_piece){ dtr__zero_stretch(t, slot, from), memory, count, t->dtype, t->dtype };
    } else {
        dtr__zero_write(t, slot, from, count, memory);
    }
}

dtr_status dtr__zero_copies_end(const dtr__zero_copies *c) {
    const dtr__ddp_at at = dtr__zero_at(c->ddp);
    return c->n > 0 ? c->ddp->mover->move(c->pieces, c->n, 1, &at) : DTR_OK;
}

dtr_status dtr__zero_clear(const dtr_ddp *ddp, void *to, size_t nbytes) {
    const dtr__ddp_at at = dtr__zero_at(ddp);
    return ddp->mover->zero(to, nbytes, &at);
}

dtr_status dtr__zero_read_slice(const dtr_zero *z, size_t b, void *to) {
    const dtr_ddp *ddp = z->ddp;
    dtr__zero_copies c = { ddp, ddp->buckets[b].pieces, 0 };
    size_t size = dtr_dtype_size(z->buckets[b].dtype);
    dtr__zero_piece p;
    DTR_TRY(dtr__zero_clear(ddp, to, z->buckets[b].slice * size));
    for (size_t s = 0; dtr__zero_next(z, b, ddp->rank, &s, &p);) {
        const dtr__ddp_param *param = &ddp->params[p.param];
        dtr__zero_copy_to(&c, param->value, param->slot, p.from, p.count, (char *)to + p.at * size);
    }
    return dtr__zero_copies_end(&c);
}

static dtr_status copy_and_wait(const dtr_ddp *ddp, void *to, const void *from, size_t nbytes,
                                dtr__copy_kind kind) {
    const dtr__ddp_gpu *g = ddp->gpu;
    if (nbytes == 0) {
        return DTR_OK;
    }
    DTR_CUDA_TRY(g->ops->copy(g->index, to, from, nbytes, kind, ddp->out.stream), DTR_ERR_CUDA);
    DTR_CUDA_TRY(g->ops->stream_synchronize(g->index, ddp->out.stream), DTR_ERR_CUDA);
    return DTR_OK;
}

dtr_status dtr__zero_fetch(const dtr_ddp *ddp, void *to, const void *from, size_t nbytes) {
    return copy_and_wait(ddp, to, from, nbytes, DTR__COPY_TO_HOST);
}

dtr_status dtr__zero_store(const dtr_ddp *ddp, void *to, const void *from, size_t nbytes) {
    return copy_and_wait(ddp, to, from, nbytes, DTR__COPY_TO_DEVICE);
}

/* ---- gradients ---- */

/* The averages of this rank's slice go back to the gradients where these lie elsewhere. */
void dtr__zero_copy_out(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    const dtr_zero *z = ddp->zero;
    size_t size = dtr_dtype_size(b->plan->dtype), n = 0, nbytes = 0;
    int64_t begin = dtr__stamp_ns();
    dtr__zero_piece piece;
    for (size_t s = 0; ddp->it.copies_out && dtr__zero_next(z, b->index, ddp->rank, &s, &piece);) {
        dtr__ddp_param *p = &ddp->params[piece.param];
        const char *from = p->slot->data + piece.from * size;
        const dtr_tensor *grad = atomic_load(&p->grad), *to[2] = { p->full, NULL };
        bool apart = grad != NULL && grad->data != p->slot->data;
        if (apart && !p->same_layout) {
            dtr__ddp_copy_out(ddp, p);
            continue;
        }
        to[1] = apart ? grad : NULL;
        for (int k = 0; k < 2; k++) {
            if (to[k] != NULL) {
                b->pieces[n++] =
                    (dtr__ddp_piece){ to[k]->data + piece.from * dtr_dtype_size(to[k]->dtype), from,
                                      piece.count, to[k]->dtype, p->slot->dtype };
                nbytes += piece.count * size;
            }
        }
    }
    dtr__ddp_move_out(ddp, b->pieces, n, nbytes, b->label, begin);
}
