/* Mixed precision: compute sees parameters in param_dtype and writes gradients in it, the caller
 * keeps values and takes averages in their own type. Buffers are cast once, at create. */
#include "device/device.h"
#include "kernels/kernels.h"
#include "reducer_internal.h"

static bool has_cast(const dtr_ddp *ddp, const dtr__ddp_param *p) {
    return p->value != NULL && dtr__ddp_grad_dtype(ddp, p) != p->value->dtype;
}

static size_t aligned_count(const dtr_ddp *ddp, const dtr__ddp_param *p) {
    size_t size = dtr_dtype_size(ddp->set.param_dtype);
    return dtr__plan_round(p->value->numel * size) / size;
}

static int64_t cast_count(const dtr_ddp *ddp) {
    int64_t count = 0;
    for (size_t i = 0; i < ddp->n; i++) {
        const dtr__ddp_param *p = &ddp->params[i];
        count += has_cast(ddp, p) && p->same_as == i ? (int64_t)aligned_count(ddp, p) : 0;
    }
    return count;
}

/* ---- create ---- */

dtr_status dtr__ddp_cast_prepare(dtr_ddp *ddp) {
    for (size_t i = 0; i < ddp->n; i++) {
        dtr__ddp_param *p = &ddp->params[i];
        if ((p->trainable || p->delayed) && !p->sparse && has_cast(ddp, p)) {
            DTR_TRY(dtr__ddp_grad_make(ddp, p, p->value->dtype, &p->full));
        }
    }
    for (size_t k = 0; k < ddp->reducer->buffers.n && ddp->set.has_buffer_dtype; k++) {
        dtr__ddp_param *b = &ddp->reducer->buffers.list[k];
        if (b->value != NULL && dtr__ddp_is_float(b->value->dtype) &&
            b->value->dtype != ddp->set.buffer_dtype) {
            DTR_TRY(dtr__ddp_on_device(ddp)
                        ? dtr__ddp_grad_make(ddp, b, ddp->set.buffer_dtype, &b->full)
                        : dtr__tensor_new(ddp->set.buffer_dtype, b->value->ndim, b->value->shape,
                                          &b->full));
        }
    }
    return dtr__ddp_on_device(ddp) && ddp->set.has_param_dtype
               ? dtr__ddp_device_cast_open(ddp, cast_count(ddp))
               : DTR_OK;
}

/* Done on return, on a device too: the caller's memory goes. */
static dtr_status cast_buffer(dtr_ddp *ddp, const dtr__ddp_param *b) {
    if (!dtr__ddp_on_device(ddp)) {
        dtr__tensor_copy_raw(b->full, b->value);
        return DTR_OK;
    }
    const dtr__ddp_piece piece = { b->full->data, b->value->data, b->value->numel, b->full->dtype,
                                   b->value->dtype };
    const dtr__ddp_at at = ddp->at;
    DTR_TRY(ddp->mover->move(&piece, 1, 1, &at));
    return dtr__ddp_device_synchronize(ddp);
}

/* The caller's handle stays and has the new type and memory from here on. */
dtr_status dtr__ddp_cast_buffers(dtr_ddp *ddp) {
    dtr_status s = DTR_OK;
    for (size_t k = 0; k < ddp->reducer->buffers.n; k++) {
        dtr__ddp_param *b = &ddp->reducer->buffers.list[k];
        if (b->full != NULL && s == DTR_OK &&
            b->value->dtype != b->full->dtype) { /* a handle listed twice: once */
            s = cast_buffer(ddp, b);
            if (s == DTR_OK) {
                dtr__tensor_rebind(b->value, b->full);
            }
        }
        dtr_tensor_release(b->full);
        b->full = NULL;
    }
    return s;
}

/* ---- parameters of one iteration ---- */

/* Memory for all of them in one allocation, and views into it. */
static dtr_status make_casts(dtr_ddp *ddp) {
    int64_t count = cast_count(ddp), strides[DTR_MAX_NDIM];
    if (dtr__ddp_on_device(ddp)) {
        ddp->reducer->casts = dtr_tensor_retain(ddp->gpu->casts);
    } else {
        DTR_TRY(dtr__tensor_new(ddp->set.param_dtype, 1, &count, &ddp->reducer->casts));
    }
    ptrdiff_t at = 0;
    for (size_t i = 0; i < ddp->n; i++) {
        dtr__ddp_param *p = &ddp->params[i];
        if (has_cast(ddp, p) && p->same_as == i) {
            dtr__ddp_dense_strides(p->value, strides);
            DTR_TRY(dtr__tensor_view(ddp->reducer->casts, at, p->value->ndim, p->value->shape,
                                     strides, &p->cast));
            at += (ptrdiff_t)aligned_count(ddp, p);
        }
    }
    return DTR_OK;
}

dtr_status dtr__ddp_cast_params(dtr_ddp *ddp) {
    if (!ddp->set.has_param_dtype) {
        return DTR_OK;
    }
    dtr_status s = ddp->reducer->casts == NULL ? make_casts(ddp) : DTR_OK;
    if (s == DTR_OK && dtr__ddp_on_device(ddp)) {
        s = dtr__ddp_device_cast_params(ddp);
    }
    if (s < 0) {
        dtr__ddp_cast_drop(ddp);
        if (ddp->it.eval) {
            return dtr__ddp_failed(ddp, s);
        }
        dtr__ddp_note_last(ddp, s, DTR__NONE); /* the ranks agree on it at backward_end */
        return s;
    }
    for (size_t i = 0; i < ddp->n && !dtr__ddp_on_device(ddp); i++) {
        if (ddp->params[i].cast != NULL) {
            dtr__tensor_copy_raw(ddp->params[i].cast, ddp->params[i].value);
        }
    }
    return DTR_OK;
}

void dtr__ddp_cast_drop(dtr_ddp *ddp) {
    if (ddp->reducer->casts == NULL) {
        return;
    }
    for (size_t i = 0; i < ddp->n; i++) {
        dtr_tensor_release(ddp->params[i].cast);
        ddp->params[i].cast = NULL;
    }
    dtr_tensor_release(ddp->reducer->casts);
    ddp->reducer->casts = NULL;
}

/* ---- calls ---- */

static dtr_status find_param(dtr_ddp *ddp, size_t i, void *stream, dtr_tensor **found) {
    static const char entry[] = "dtr_ddp_param";
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    DTR_REQUIRE(i < ddp->n, &ctx, DTR_ERR_ARG, "%s: there is no parameter %zu, the module has %zu",
                entry, i, ddp->n);
    const dtr__ddp_param *p = &ddp->params[ddp->params[i].same_as];
    DTR_REQUIRE(p->value != NULL, &ctx, DTR_ERR_ARG,
                "%s: parameter '%s' (%zu) is ignored, the module never reads it", entry,
                ddp->params[i].name, i);
    DTR_REQUIRE(!has_cast(ddp, p) || p->cast != NULL, &ctx, DTR_ERR_STATE,
                "%s: parameter '%s' (%zu) is there in %s from dtr_ddp_forward_begin to "
                "dtr_ddp_backward_end only; now %s",
                entry, ddp->params[i].name, i, dtr_dtype_name(ddp->set.param_dtype),
                dtr__ddp_state_name(atomic_load(&ddp->state)));
    *found = p->cast != NULL ? p->cast : p->value;
    return p->cast != NULL && dtr__ddp_on_device(ddp) ? dtr__ddp_device_cast_wait(ddp, p, stream)
                                                      : DTR_OK;
}

dtr_tensor *dtr_ddp_param(dtr_ddp *ddp, size_t i, void *stream) {
    dtr_tensor *found = NULL;
    if (dtr__ddp_check(ddp, "dtr_ddp_param") < 0) {
        return NULL;
    }
    dtr_status s = find_param(ddp, i, stream, &found);
    if (s < 0) {
        (void)dtr__ddp_failed(ddp, s);
        return NULL;
    }
    return found;
}

dtr_tensor *dtr_ddp_full_grad(dtr_ddp *ddp, size_t i) {
    static const char entry[] = "dtr_ddp_full_grad";
    if (dtr__ddp_check(ddp, entry) < 0 || dtr__ddp_grad_index(ddp, entry, &i) < 0) {
        return NULL;
    }
    return ddp->params[i].full != NULL ? ddp->params[i].full : dtr_ddp_grad(ddp, i);
}
