/* Copies between gradients and buckets, what they cost, and the host's way to make them. */
#include "device/device.h"
#include "kernels/kernels.h"
#include "reducer_internal.h"

/* ---- the host ---- */

static dtr_status host_make(dtr_world *world, dtr_device cpu, dtr_dtype dtype, int64_t count,
                            dtr_tensor **memory, bool *plain) {
    *plain = dtr_tensor_empty(world, dtype, cpu, DTR_MEM_SHARED, 1, &count, memory) < 0;
    if (*plain) {
        dtr__error_copy *why = dtr__error_save();
        dtr_status s = dtr_tensor_empty(world, dtype, cpu, DTR_MEM_DEFAULT, 1, &count, memory);
        (void)dtr__error_put_back(why, s == DTR_OK ? DTR_ERR_NOMEM : DTR_OK);
        DTR_TRY(s);
    }
    if (count > 0) {
        memset((*memory)->data, 0, (size_t)count * dtr_dtype_size(dtype));
    }
    return DTR_OK;
}

static dtr_status host_move(const dtr__ddp_piece *p, size_t n, double scale,
                            const dtr__ddp_at *at) {
    (void)at;
    for (size_t k = 0; k < n; k++) {
        if (scale == 1) {
            dtr__convert(p[k].to, p[k].to_type, p[k].from, p[k].from_type, p[k].count);
        } else {
            dtr__convert_scale(p[k].to, p[k].to_type, p[k].from, p[k].from_type, p[k].count, scale);
        }
    }
    return DTR_OK;
}

static dtr_status host_walk(dtr_tensor *to, const dtr_tensor *from, const dtr__ddp_at *at) {
    (void)at;
    dtr__tensor_copy_raw(to, from);
    return DTR_OK;
}

static dtr_status host_zero(void *to, size_t nbytes, const dtr__ddp_at *at) {
    (void)at;
    if (nbytes > 0) {
        memset(to, 0, nbytes);
    }
    return DTR_OK;
}

static size_t host_find_nan(const void *at, size_t count, dtr_dtype dtype) {
    return dtr__find_nan(at, count, dtype);
}

static uint64_t host_hash(const void *at, size_t nbytes) {
    return dtr__hash_bytes(DTR__HASH_START, at, nbytes);
}

const dtr__ddp_mover dtr__ddp_host_mover = {
    .make = host_make,
    .move = host_move,
    .walk = host_walk,
    .zero = host_zero,
    .find_nan = host_find_nan,
    .hash = host_hash,
};

/* ---- one parameter ---- */

/* Where buckets are written, and where averages go out. */
static dtr__ddp_at inward(const dtr_ddp *ddp) {
    return (dtr__ddp_at)ddp->at;
}

static dtr__ddp_at outward(const dtr_ddp *ddp) {
    return (dtr__ddp_at){ ddp->at.device, ddp->out.stream };
}

static size_t slot_nbytes(const dtr__ddp_param *p) {
    return p->slot->numel * dtr_dtype_size(p->slot->dtype);
}

/* A failure is noted, or, once the ranks have agreed on their statuses, breaks the module. */
static void note(dtr_ddp *ddp, dtr_status s, size_t param) {
    (void)dtr__ddp_note_last(ddp, s, param);
}

static dtr__ddp_piece whole(const dtr_tensor *to, const dtr_tensor *from) {
    return (dtr__ddp_piece){ to->data, from->data, from->numel, to->dtype, from->dtype };
}

/* Noting a copy of fewer bytes would cost more than the copy. */
enum { WORTH_NOTING = 16 << 10 };

void dtr__ddp_copy_in(dtr_ddp *ddp, dtr__ddp_param *p) {
    dtr_tensor *grad = atomic_load_explicit(&p->grad, memory_order_relaxed), *slot = p->slot;
    size_t nbytes = slot_nbytes(p);
    if (grad->data == slot->data || nbytes == 0) {
        return;
    }
    atomic_fetch_add_explicit(&ddp->it.copied_in, nbytes, memory_order_relaxed);
    if (dtr__ddp_on_device(ddp)) { /* with the whole bucket */
        atomic_store(&p->put, DTR__PUT_GRADIENT);
        return;
    }
    int64_t begin = nbytes >= WORTH_NOTING ? dtr__stamp_ns() : 0;
    dtr__ddp_piece piece = whole(slot, grad);
    dtr__ddp_check_unsent(ddp, p->bucket);
    note(ddp,
         p->same_layout ? ddp->mover->move(&piece, 1, 1, NULL) : ddp->mover->walk(slot, grad, NULL),
         (size_t)(p - ddp->params));
    if (nbytes >= WORTH_NOTING) {
        dtr__ddp_span(ddp, "ddp_copy_in", p->name, begin, nbytes);
    }
}

void dtr__ddp_fill_zero(dtr_ddp *ddp, dtr__ddp_param *p) {
    dtr__ddp_check_unsent(ddp, p->bucket);
    if (dtr__ddp_on_device(ddp)) {
        atomic_store(&p->put, DTR__PUT_ZERO);
        return;
    }
    note(ddp, ddp->mover->zero(p->slot->data, slot_nbytes(p), NULL), (size_t)(p - ddp->params));
}

void dtr__ddp_zero(dtr_ddp *ddp, void *at, size_t nbytes) {
    const dtr__ddp_at where = inward(ddp);
    note(ddp, ddp->mover->zero(at, nbytes, &where), DTR__NONE);
}

uint64_t dtr__ddp_grad_hash(const dtr_ddp *ddp, const dtr__ddp_param *p) {
    const dtr_tensor *grad = atomic_load(&p->grad);
    if (!p->same_layout && grad->data != p->slot->data) {
        return 0;
    }
    return ddp->mover->hash(grad->data, grad->numel * dtr_dtype_size(grad->dtype));
}

void dtr__ddp_check_nan(dtr_ddp *ddp, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    if ((ddp->set.flags & DTR_DDP_CHECK_NAN) == 0) {
        return;
    }
    if (dtr__ddp_on_device(ddp)) {
        atomic_store(&p->find_nan, true);
        return;
    }
    size_t at = ddp->mover->find_nan(p->slot->data, p->slot->numel, p->slot->dtype);
    if (at < p->slot->numel) {
        dtr__ddp_note_nan(ddp, i, at);
    }
}

/* ---- averages back to where they belong ---- */

/* Pieces of one parameter; those of other strides are copied at once. Bytes of the slot read. */
static size_t add_pieces(dtr_ddp *ddp, dtr__ddp_param *p, dtr__ddp_piece *pieces, size_t *n) {
    dtr_tensor *grad = atomic_load_explicit(&p->grad, memory_order_relaxed), *slot = p->slot;
    size_t nbytes = 0;
    if (p->full != NULL) {
        pieces[(*n)++] = whole(p->full, slot);
        nbytes += slot_nbytes(p);
    }
    if (grad->data == slot->data) {
        return nbytes;
    }
    if (p->same_layout) {
        pieces[(*n)++] = whole(grad, slot);
    } else {
        note(ddp, ddp->mover->walk(grad, slot, NULL), (size_t)(p - ddp->params));
    }
    return nbytes + slot_nbytes(p);
}

void dtr__ddp_move_out(dtr_ddp *ddp, const dtr__ddp_piece *pieces, size_t n, size_t nbytes,
                       const char *label, int64_t begin) {
    if (n > 0) {
        const dtr__ddp_at where = outward(ddp);
        note(ddp, ddp->mover->move(pieces, n, 1, &where), DTR__NONE);
    }
    if (nbytes > 0) {
        atomic_fetch_add_explicit(&ddp->it.copied_out, nbytes, memory_order_relaxed);
        dtr__ddp_span(ddp, "ddp_copy_out", label, begin, nbytes);
    }
}

void dtr__ddp_copy_out(dtr_ddp *ddp, dtr__ddp_param *p) {
    dtr__ddp_piece pieces[2];
    size_t n = 0;
    int64_t begin = dtr__stamp_ns();
    size_t nbytes = add_pieces(ddp, p, pieces, &n);
    dtr__ddp_move_out(ddp, pieces, n, nbytes, p->name, begin);
}

bool dtr__ddp_concerns_all(const dtr_ddp *ddp, const dtr__ddp_param *p) {
    return ddp->it.mode == DTR__MODE_PLAIN || atomic_load(&p->mark) == DTR__MARK_READY;
}

void dtr__ddp_bucket_out(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    size_t n = 0, nbytes = 0;
    int64_t begin = dtr__stamp_ns();
    for (size_t s = 0; ddp->it.copies_out && s < b->plan->n_slots; s++) {
        dtr__ddp_param *p = &ddp->params[b->plan->slots[s].param];
        if (!p->step && dtr__ddp_concerns_all(ddp, p) && atomic_load(&p->grad) != NULL) {
            nbytes += add_pieces(ddp, p, b->pieces, &n);
        }
    }
    dtr__ddp_move_out(ddp, b->pieces, n, nbytes, b->label, begin);
}

void dtr__ddp_bucket_take(dtr_ddp_bucket *b, dtr_buffer from) {
    dtr_ddp *ddp = b->ddp;
    dtr__ddp_piece piece = { b->data, from.data, from.count, b->plan->dtype, from.dtype };
    const dtr__ddp_at where = inward(ddp);
    note(ddp, ddp->mover->move(&piece, 1, 1, &where), DTR__NONE);
    atomic_fetch_add_explicit(&ddp->it.copied_in, from.count * dtr_dtype_size(b->plan->dtype),
                              memory_order_relaxed);
}

/* ---- slots that nobody may turn out to have used ---- */

void dtr__ddp_slot_keep(dtr_ddp *ddp, const dtr__ddp_param *p, void *kept, bool back) {
    dtr__ddp_piece piece = { kept, p->slot->data, p->slot->numel, p->slot->dtype, p->slot->dtype };
    if (back) {
        piece.to = p->slot->data;
        piece.from = kept;
    }
    const dtr__ddp_at where = back ? outward(ddp) : inward(ddp);
    note(ddp, ddp->mover->move(&piece, 1, 1, &where), (size_t)(p - ddp->params));
    atomic_fetch_add_explicit(back ? &ddp->it.copied_in : &ddp->it.copied_out, slot_nbytes(p),
                              memory_order_relaxed);
}
