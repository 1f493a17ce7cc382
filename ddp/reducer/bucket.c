/* Bucket memory and the slots in it, and the gradients that look into it. */
#include <stdlib.h>

#include "core/call.h"
#include "device/device.h"
#include "reducer_internal.h"

/* ---- slots ---- */

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
    size_t wanted = sliced > b->count ? sliced : b->count;
    int64_t count = (int64_t)(dtr__ddp_device_whole(ddp, wanted * size) / size);
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
    /* The host reads no bucket of a device, unless it may read it later. */
    bool none = dtr__ddp_per_param(ddp) ||
                (dtr__ddp_on_device(ddp) && (ddp->set.flags & DTR_DDP_LATE_ERRORS) == 0);
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
        DTR_CLEAN_UP(s, dtr__ddp_layout_free(l));
    }
    return s;
}

static void free_handles(dtr_tensor **list, size_t n) {
    for (size_t i = 0; list != NULL && i < n; i++) {
        dtr_tensor_release(list[i]);
    }
    free(list);
}

void dtr__ddp_bucket_drop_copy(dtr_ddp_bucket *b) {
    for (size_t k = 0; b->views != NULL && k < b->plan->n_slots; k++) {
        dtr_tensor_release(b->views[k]);
    }
    free(b->views);
    b->views = NULL;
    dtr_tensor_release(b->copy);
    b->copy = NULL;
}

static void free_buckets(dtr_ddp_bucket *buckets, size_t n) {
    for (size_t b = 0; buckets != NULL && b < n; b++) {
        dtr__ddp_bucket_drop_copy(&buckets[b]);
        dtr__ddp_sparse_bucket_free(&buckets[b]);
        dtr__ddp_device_feeds_free(buckets[b].ddp, &buckets[b].feeds);
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
    (void)dtr_plan_destroy(l->plan);
    *l = (dtr__ddp_layout){ 0 };
}

dtr_status dtr__ddp_plan_for(const dtr_ddp *ddp, const size_t *order, size_t n_order,
                             dtr_plan **plan) {
    dtr_plan_param *p = calloc(ddp->n, sizeof *p);
    DTR_REQUIRE(p != NULL, NULL, DTR_ERR_NOMEM, "no memory to plan %zu parameters", ddp->n);
    for (size_t i = 0; i < ddp->n; i++) {
        const dtr__ddp_param *q = &ddp->params[i];
        dtr_dtype own = q->value != NULL ? dtr__ddp_grad_dtype(ddp, q) : DTR_U8;
        p[i] = (dtr_plan_param){
            .name = q->name,
            .numel = q->trainable ? q->value->numel : 0,
            .dtype = ddp->set.has_reduce_dtype && !q->sparse ? ddp->set.reduce_dtype : own,
            .sparse = q->sparse,
            .device = ddp->device,
        };
    }
    dtr_status s = dtr__plan_build(p, ddp->n, order, n_order, ddp->set.limits, ddp->set.n_limits,
                                   ddp->set.flags & DTR_DDP_SMALL_LAST, plan);
    free(p);
    return s;
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

void dtr__ddp_copy_whole(dtr_ddp *ddp, const dtr_tensor *to, const dtr_tensor *from) {
    if (!dtr__ddp_on_device(ddp)) {
        dtr__tensor_copy_raw(to, from);
        return;
    }
    const dtr__ddp_piece piece = { to->data, from->data, to->numel, to->dtype, from->dtype };
    const dtr__ddp_at at = ddp->at;
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
            dtr__ddp_copy_whole(ddp, slot, grad);
            dtr__tensor_rebind(grad, slot);
        }
    }
    dtr_tensor_release(p->slot);
    p->slot = slot;
    p->bucket = DTR__NONE;
    p->same_layout = slot != NULL && grad != NULL && dtr__ddp_same_strides(grad, slot);
}

void dtr__ddp_layout_use(dtr_ddp *ddp, dtr__ddp_layout *l) {
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        move_param(ddp, l, ddp->trainable[k]);
    }
    (void)dtr__ddp_device_synchronize(ddp); /* nothing uses the old memory any more */
    free_buckets(ddp->buckets, ddp->n_buckets);
    (void)dtr_plan_destroy(ddp->plan);
    ddp->plan = l->plan;
    ddp->buckets = l->buckets;
    ddp->n_buckets = l->n_buckets;
    ddp->reducer->carrier = l->carrier;
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
    dtr__ddp_copy_whole(ddp, own, grad);
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
