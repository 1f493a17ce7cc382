/* Gradients: their type, how they lie, and making those that the caller gave no tensor for. */
#include "ddp_internal.h"

bool dtr__ddp_is_float(dtr_dtype d) {
    return d == DTR_F8E4M3 || d == DTR_F8E5M2 || d == DTR_F16 || d == DTR_BF16 || d == DTR_F32 ||
           d == DTR_F64;
}

dtr_dtype dtr__ddp_grad_dtype(const dtr_ddp *ddp, const dtr__ddp_param *p) {
    return ddp->set.has_param_dtype && dtr__ddp_is_float(p->value->dtype) ? ddp->set.param_dtype
                                                                          : p->value->dtype;
}

/* The value's strides when its elements lie without gaps, else row-major. */
void dtr__ddp_dense_strides(const dtr_tensor *t, int64_t *strides) {
    bool taken[DTR_MAX_NDIM] = { false };
    int64_t expect = 1;
    int k = 0, found = 0;
    memcpy(strides, t->strides, sizeof t->strides);
    for (; t->numel > 0 && k < t->ndim && found >= 0; k++) {
        found = -1;
        for (int d = 0; d < t->ndim && found < 0; d++) {
            found = !taken[d] && (t->shape[d] == 1 || t->strides[d] == expect) ? d : -1;
        }
        if (found >= 0) {
            taken[found] = true;
            expect *= t->shape[found];
        }
    }
    if (t->numel == 0 || found < 0) {
        dtr__shape_strides(t->ndim, t->shape, strides);
    }
}

bool dtr__ddp_same_strides(const dtr_tensor *a, const dtr_tensor *b) {
    for (int d = 0; d < a->ndim && a->numel > 0; d++) {
        if (a->shape[d] > 1 && a->strides[d] != b->strides[d]) {
            return false;
        }
    }
    return true;
}

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
            p->same_layout = p->slot != NULL && dtr__ddp_same_strides(*grad, p->slot);
            atomic_store_explicit(&p->grad, *grad, memory_order_release);
        }
    }
    pthread_mutex_unlock(&ddp->lock);
    return s;
}

/* ---- calls ---- */

dtr_tensor *dtr_ddp_grad(dtr_ddp *ddp, size_t i) {
    static const char entry[] = "dtr_ddp_grad";
    dtr_tensor *grad = NULL;
    if (dtr__ddp_check(ddp, entry) < 0 || dtr__ddp_grad_index(ddp, entry, &i) < 0) {
        return NULL;
    }
    dtr_status s =
        ddp->params[i].sparse
            ? DTR_FAIL(NULL, DTR_ERR_ARG,
                       "%s: parameter '%s' (%zu) is sparse; use dtr_ddp_set_sparse_grad and "
                       "dtr_ddp_sparse_grad",
                       entry, ddp->params[i].name, i)
            : dtr__ddp_grad_get(ddp, i, &grad);
    if (s < 0) {
        (void)dtr__ddp_failed(ddp, s);
        return NULL;
    }
    return grad;
}

bool dtr_ddp_grad_defined(const dtr_ddp *ddp, size_t i) {
    return ddp != NULL && ddp->magic == DTR__DDP_MAGIC && ddp->world != NULL && i < ddp->n &&
           atomic_load(&ddp->params[ddp->params[i].same_as].defined);
}

dtr_status dtr_ddp_grad_clear(dtr_ddp *ddp, size_t i) {
    static const char entry[] = "dtr_ddp_grad_clear";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    int state = atomic_load(&ddp->state);
    if (state == DTR__DDP_REDUCING || state == DTR__DDP_BUSY) {
        return dtr__ddp_refuse(ddp, entry, "the gradients are the library's until it has ended");
    }
    if (i != SIZE_MAX) {
        DTR_TRY(dtr__ddp_grad_index(ddp, entry, &i));
        atomic_store(&ddp->params[i].defined, false);
        return DTR_OK;
    }
    for (size_t k = 0; k < ddp->n; k++) {
        atomic_store(&ddp->params[k].defined, false);
    }
    return DTR_OK;
}
