/* Bucket memory and the slots in it, and the gradients that look into it. */
#include <stdlib.h>

#include "ddp_internal.h"

/* ---- slots ---- */

/* The value's strides when its elements lie without gaps, else row-major. */
void dtr__ddp_dense_strides(const dtr_tensor *t, int64_t *strides) {
    bool taken[DTR_MAX_NDIM] = { false };
    int64_t expect = 1;
    if (t->numel == 0) {
        dtr__shape_strides(t->ndim, t->shape, strides);
        return;
    }
    memcpy(strides, t->strides, sizeof t->strides);
    for (int k = 0; k < t->ndim; k++) {
        int found = -1;
        for (int d = 0; d < t->ndim && found < 0; d++) {
            found = !taken[d] && (t->shape[d] == 1 || t->strides[d] == expect) ? d : -1;
        }
        if (found < 0) {
            dtr__shape_strides(t->ndim, t->shape, strides);
            return;
        }
        taken[found] = true;
        expect *= t->shape[found];
    }
}

static bool same_strides(const dtr_tensor *a, const dtr_tensor *b) {
    for (int d = 0; d < a->ndim && a->numel > 0; d++) {
        if (a->shape[d] > 1 && a->strides[d] != b->strides[d]) {
            return false;
        }
    }
    return true;
}

static dtr_status slot_make(const dtr__ddp_param *p, const dtr_tensor *memory, size_t offset,
                            dtr_tensor **slot) {
    int64_t strides[DTR_MAX_NDIM];
    dtr__ddp_dense_strides(p->value, strides);
    return dtr__tensor_view(memory, (ptrdiff_t)(offset / dtr_dtype_size(memory->dtype)),
                            p->value->ndim, p->value->shape, strides, slot);
}

/* ---- memory of one bucket ---- */

/* Node-shared where the node can, so that an allreduce needs no copy; else plain. */
static dtr_status bucket_memory(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    size_t size = dtr_dtype_size(b->plan->dtype);
    bool plain = false;
    /* Room for one slice per rank, of so many ranks or fewer, so that a sharded optimizer can be
     * added without moving it. */
    size_t sliced = (b->plan->nbytes + DTR__PLAN_ALIGN * (size_t)(ddp->size - 1)) / size;
    int64_t count = (int64_t)(sliced > b->count ? sliced : b->count);
    DTR_TRY(ddp->mover->make(ddp->world, ddp->device, b->plan->dtype, count, &b->memory, &plain));
    if (plain) {
        dtr__ddp_warn(ddp, DTR__WARN_MEMORY,
                      "no node-shared memory for the gradients (%s); plain memory is used, and "
                      "every reduction costs extra copies",
                      dtr_last_error_message());
    }
    b->data = b->memory->data;
    return DTR_OK;
}

/* Called by the engine when the operation has ended and nothing touches the bucket any more. */
static dtr_status bucket_finished(dtr__finish *self, dtr_status status) {
    dtr_ddp_bucket *b = (dtr_ddp_bucket *)self;
    dtr__ddp_range_end(b);
    if (status == DTR_OK) {
        atomic_store(&b->finished_ns, dtr__now_ns());
    }
    return status;
}

static dtr_status bucket_make(dtr_ddp *ddp, const dtr_plan *plan, size_t index, bool carrier,
                              dtr_ddp_bucket *b) {
    b->finish.fn = bucket_finished;
    b->ddp = ddp;
    b->index = index;
    b->plan = &plan->buckets[index];
    b->pending = b->plan->n_slots;
    b->pieces = calloc(2 * b->plan->n_slots + 1, sizeof *b->pieces);
    DTR_REQUIRE(b->pieces != NULL, NULL, DTR_ERR_NOMEM, "no memory for a bucket of %zu parameters",
                b->plan->n_slots);
    dtr__ddp_param *first = b->plan->n_slots > 0 ? &ddp->params[b->plan->slots[0].param] : NULL;
    if (first != NULL && first->sparse) {
        b->sparse = first; /* rows have memory of their own */
        return DTR_OK;
    }
    b->count = (b->plan->nbytes + (carrier ? DTR__PLAN_ALIGN : 0)) / dtr_dtype_size(b->plan->dtype);
    for (size_t k = 0; k < b->plan->n_slots; k++) {
        b->nbytes += b->plan->slots[k].nbytes;
    }
    return bucket_memory(ddp, b);
}

/* ---- a layout ---- */

/* Handles that switching to the layout needs, so that switching cannot fail: in view mode the
 * gradient's own, or one that remembers the caller's memory. */
static dtr_status make_handles(dtr_ddp *ddp, dtr__ddp_layout *l, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    dtr_tensor *grad = atomic_load(&p->grad), *slot = l->slots[i];
    if (ddp->set.view && grad == NULL) {
        return dtr__tensor_view(slot, 0, slot->ndim, slot->shape, slot->strides, &l->grads[i]);
    }
    if (ddp->set.view && p->grad_given && p->parked == NULL) {
        return dtr__tensor_view(grad, 0, grad->ndim, grad->shape, grad->strides, &l->parked[i]);
    }
    return DTR_OK;
}

static dtr_status fill_layout(dtr_ddp *ddp, dtr__ddp_layout *l) {
    l->buckets = calloc(l->n_buckets + 1, sizeof *l->buckets);
    l->slots = calloc(ddp->n + 1, sizeof(dtr_tensor *));
    l->grads = calloc(ddp->n + 1, sizeof(dtr_tensor *));
    l->parked = calloc(ddp->n + 1, sizeof(dtr_tensor *));
    DTR_REQUIRE(l->buckets != NULL && l->slots != NULL && l->grads != NULL && l->parked != NULL,
                NULL, DTR_ERR_NOMEM, "no memory for %zu gradient buckets", l->n_buckets);
    for (size_t b = 0; b < l->n_buckets; b++) {
        dtr_ddp_bucket *k = &l->buckets[b];
        DTR_TRY(bucket_make(ddp, l->plan, b, b == l->carrier, k));
        for (size_t s = 0; s < k->plan->n_slots && k->sparse == NULL; s++) {
            size_t i = k->plan->slots[s].param;
            DTR_TRY(slot_make(&ddp->params[i], k->memory, k->plan->slots[s].offset, &l->slots[i]));
            DTR_TRY(make_handles(ddp, l, i));
        }
    }
    return DTR_OK;
}

/* The bucket that also carries the status slot. */
static size_t last_dense(const dtr_ddp *ddp, const dtr_plan *plan) {
    bool none = dtr__ddp_per_param(ddp) || dtr__ddp_on_device(ddp); /* the host reads no bucket */
    for (size_t b = plan->n_buckets; b-- > 0 && !none;) {
        if (!ddp->params[plan->buckets[b].slots[0].param].sparse) {
            return b;
        }
    }
    return DTR__NONE;
}

dtr_status dtr__ddp_layout_make(dtr_ddp *ddp, dtr_plan *plan, dtr__ddp_layout *l) {
    *l = (dtr__ddp_layout){ .plan = plan, .n = ddp->n, .n_buckets = plan->n_buckets };
    l->carrier = last_dense(ddp, plan);
    dtr_status s = fill_layout(ddp, l);
    if (s < 0) {
        dtr__error_copy *cause = dtr__error_save();
        dtr__ddp_layout_free(l);
        s = dtr__error_restore(cause, s);
        dtr__error_copy_free(cause);
    }
    return s;
}

static void free_handles(dtr_tensor **list, size_t n) {
    for (size_t i = 0; list != NULL && i < n; i++) {
        dtr_tensor_release(list[i]);
    }
    free(list);
}

static void free_buckets(dtr_ddp_bucket *buckets, size_t n) {
    for (size_t b = 0; buckets != NULL && b < n; b++) {
        dtr__ddp_hook_bucket_free(&buckets[b]);
        dtr__ddp_sparse_bucket_free(&buckets[b]);
        dtr__ddp_device_bucket_free(&buckets[b]);
        dtr_tensor_release(buckets[b].memory);
        free(buckets[b].pieces);
    }
    free(buckets);
}

void dtr__ddp_layout_free(dtr__ddp_layout *l) {
    free_handles(l->slots, l->n);
    free_handles(l->grads, l->n);
    free_handles(l->parked, l->n);
    free_buckets(l->buckets, l->n_buckets);
    dtr_plan_free(l->plan);
    *l = (dtr__ddp_layout){ 0 };
}

/* ---- switching ---- */

void dtr__ddp_label_buckets(dtr_ddp *ddp) {
    snprintf(ddp->label, sizeof ddp->label, "ddp%u", ddp->id);
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        snprintf(ddp->buckets[b].label, sizeof ddp->buckets[b].label, "ddp%u.bucket%zu", ddp->id,
                 b);
    }
}

static dtr_tensor *take(dtr_tensor **from) {
    dtr_tensor *t = *from;
    *from = NULL;
    return t;
}

/* On a device: of one layout, and done once the module's stream has been waited for. */
static void copy_whole(dtr_ddp *ddp, const dtr_tensor *to, const dtr_tensor *from) {
    if (!dtr__ddp_on_device(ddp)) {
        dtr__tensor_copy_raw(to, from);
        return;
    }
    const dtr__ddp_piece piece = { to->data, from->data, to->numel, to->dtype, from->dtype };
    const dtr__ddp_at at = { ddp->gpu.index, ddp->gpu.stream };
    if (ddp->mover->move(&piece, 1, 1, &at) < 0) {
        DTR_WARN(ddp->world, "ddp%u: a gradient lost its value: %s", ddp->id,
                 dtr_last_error_message());
    }
}

static void move_param(dtr_ddp *ddp, dtr__ddp_layout *l, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    dtr_tensor *slot = take(&l->slots[i]), *grad = atomic_load(&p->grad);
    if (ddp->set.view && slot != NULL) {
        if (grad == NULL) {
            grad = take(&l->grads[i]);
            atomic_store(&p->grad, grad);
        } else {
            p->parked = p->parked != NULL ? p->parked : take(&l->parked[i]);
            copy_whole(ddp, slot, grad);
            dtr__tensor_rebind(grad, slot);
        }
    }
    dtr_tensor_release(p->slot);
    p->slot = slot;
    p->bucket = DTR__NONE;
    p->same_layout = slot != NULL && grad != NULL && same_strides(grad, slot);
}

void dtr__ddp_layout_use(dtr_ddp *ddp, dtr__ddp_layout *l) {
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        move_param(ddp, l, ddp->trainable[k]);
    }
    (void)dtr__ddp_device_synchronize(ddp); /* nothing uses the old memory any more */
    free_buckets(ddp->buckets, ddp->n_buckets);
    dtr_plan_free(ddp->plan);
    ddp->plan = l->plan;
    ddp->buckets = l->buckets;
    ddp->n_buckets = l->n_buckets;
    ddp->carrier = l->carrier;
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        for (size_t s = 0; s < ddp->buckets[b].plan->n_slots; s++) {
            ddp->params[ddp->buckets[b].plan->slots[s].param].bucket = b;
        }
    }
    dtr__ddp_label_buckets(ddp);
    l->plan = NULL;
    l->buckets = NULL;
    dtr__ddp_layout_free(l);
}

void dtr__ddp_leave_bucket(dtr_ddp *ddp, dtr__ddp_param *p) {
    dtr_tensor *grad = atomic_load(&p->grad), *own = NULL;
    if (p->parked != NULL) {
        own = dtr_tensor_retain(p->parked);
    } else if (atomic_load(&grad->refs) == 1 ||
               (dtr__ddp_on_device(ddp)
                    ? dtr__ddp_grad_make(ddp, p, grad->dtype, &own)
                    : dtr__tensor_new(grad->dtype, grad->ndim, grad->shape, &own)) < 0) {
        return;
    }
    copy_whole(ddp, own, grad);
    (void)dtr__ddp_device_synchronize(ddp);
    dtr__tensor_rebind(grad, own);
    dtr_tensor_release(own);
}

void dtr__ddp_layout_drop(dtr_ddp *ddp) {
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        if (ddp->set.view && atomic_load(&p->grad) != NULL) {
            dtr__ddp_leave_bucket(ddp, p);
            dtr_tensor_release(atomic_exchange(&p->grad, NULL));
        }
        dtr_tensor_release(take(&p->slot));
        p->bucket = DTR__NONE;
    }
    free_buckets(ddp->buckets, ddp->n_buckets);
    ddp->buckets = NULL;
    ddp->n_buckets = 0;
}

/* ---- gradients ---- */

dtr_status dtr__ddp_grad_make(const dtr_ddp *ddp, const dtr__ddp_param *p, dtr_dtype dtype,
                              dtr_tensor **grad) {
    int64_t strides[DTR_MAX_NDIM], count = (int64_t)p->value->numel;
    dtr__ddp_dense_strides(p->value, strides);
    dtr_tensor *memory = NULL;
    bool plain, device = dtr__ddp_on_device(ddp);
    DTR_TRY(device ? ddp->mover->make(ddp->world, ddp->device, dtype, count, &memory, &plain)
                   : dtr__tensor_new(dtype, 1, &count, &memory));
    if (count > 0 && !device) {
        memset(memory->data, 0, p->value->numel * dtr_dtype_size(memory->dtype));
    }
    dtr_status s = dtr__tensor_view(memory, 0, p->value->ndim, p->value->shape, strides, grad);
    dtr_tensor_release(memory);
    return s;
}

dtr_status dtr__ddp_grad_get(dtr_ddp *ddp, size_t i, dtr_tensor **grad) {
    dtr__ddp_param *p = &ddp->params[i];
    *grad = atomic_load_explicit(&p->grad, memory_order_acquire);
    if (*grad != NULL) {
        return DTR_OK;
    }
    pthread_mutex_lock(&ddp->lock);
    dtr_status s = DTR_OK;
    *grad = atomic_load(&p->grad);
    if (*grad == NULL) {
        s = dtr__ddp_grad_make(ddp, p, dtr__ddp_grad_dtype(ddp, p), grad);
        if (s == DTR_OK) {
            p->same_layout = p->slot != NULL && same_strides(*grad, p->slot);
            atomic_store_explicit(&p->grad, *grad, memory_order_release);
        }
    }
    pthread_mutex_unlock(&ddp->lock);
    return s;
}
