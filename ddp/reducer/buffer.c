/* Buffers: state that is no parameter (running means, counters) and follows rank 0, or whatever a
 * buffer hook makes of it. */
#include "device/device.h"
#include "reducer_internal.h"

dtr_status dtr_ddp_set_buffer(dtr_ddp *ddp, size_t k, dtr_tensor *t) {
    static const char entry[] = "dtr_ddp_set_buffer";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    dtr_status s = dtr__tensor_check(t, "tensor");
    if (s == DTR_OK && k >= ddp->reducer->buffers.n) {
        s = DTR_FAIL(&ctx, DTR_ERR_ARG, "%s: there is no buffer %zu, the module has %zu", entry, k,
                     ddp->reducer->buffers.n);
    }
    if (s < 0) {
        return dtr__ddp_failed(ddp, s);
    }
    dtr__ddp_param *b = &ddp->reducer->buffers.list[k];
    char want[DTR__SHAPE_TEXT], got[DTR__SHAPE_TEXT];
    if (b->flags & DTR_PARAM_IGNORED) {
        return DTR_OK; /* never looked at */
    }
    if (atomic_load(&ddp->state) == DTR__DDP_BUSY) {
        return dtr__ddp_refuse(ddp, entry, "wait until it has returned");
    }
    if (t->dtype != b->value->dtype) {
        s = DTR_FAIL(&ctx, DTR_ERR_DTYPE, "%s: buffer '%s' (%zu) is %s, the new one %s", entry,
                     b->name, k, dtr_dtype_name(b->value->dtype), dtr_dtype_name(t->dtype));
    } else if (!dtr__same_shape(t, b->value)) {
        s = DTR_FAIL(&ctx, DTR_ERR_SHAPE, "%s: buffer '%s' (%zu) has shape %s, the new one %s",
                     entry, b->name, k, dtr__shape_text(b->value->ndim, b->value->shape, want),
                     dtr__shape_text(t->ndim, t->shape, got));
    } else if (t->device.type != ddp->device.type || t->device.index != ddp->device.index ||
               (t->data == NULL && t->numel > 0) || dtr__tensor_self_overlap(t)) {
        s = DTR_FAIL(&ctx, DTR_ERR_ARG,
                     "%s: buffer '%s' (%zu): the new one has no memory on the module's device, or "
                     "elements that share memory",
                     entry, b->name, k);
    } else if (dtr__ddp_on_device(ddp) && !dtr__ddp_same_strides(t, b->value)) {
        s = DTR_FAIL(&ctx, DTR_ERR_UNSUPPORTED,
                     "%s: buffer '%s' (%zu) is on a CUDA device and the new one has other strides; "
                     "give one that lies as the old one does",
                     entry, b->name, k);
    }
    if (s < 0) {
        return dtr__ddp_failed(ddp, s);
    }
    for (size_t i = 0; i < ddp->reducer->buffers.n_sync; i++) {
        if (ddp->reducer->buffers.sync[i] == b->value) {
            ddp->reducer->buffers.sync[i] = t;
            break;
        }
    }
    dtr_tensor_retain(t);
    dtr_tensor_release(b->value);
    b->value = t;
    return DTR_OK;
}

dtr_status dtr_ddp_register_buffer_hook(dtr_ddp *ddp, dtr_ddp_buffer_hook fn, void *state,
                                        dtr_ddp_when when) {
    static const char entry[] = "dtr_ddp_register_buffer_hook";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    pthread_mutex_lock(&ddp->lock);
    dtr_status s = DTR_OK;
    if (fn == NULL || (when != DTR_PRE_FORWARD && when != DTR_POST_FORWARD)) {
        s = DTR_FAIL(&ctx, DTR_ERR_ARG, "%s: %s", entry,
                     fn == NULL ? "fn is NULL"
                                : "when is neither DTR_PRE_FORWARD nor DTR_POST_FORWARD");
    } else if (ddp->reducer->buffers.hook != NULL) {
        s = DTR_FAIL(&ctx, DTR_ERR_STATE, "%s: the module already has a buffer hook", entry);
    } else if (atomic_load(&ddp->state) != DTR__DDP_IDLE) {
        s = DTR_FAIL(&ctx, DTR_ERR_STATE, "%s: %s; register hooks between iterations", entry,
                     dtr__ddp_state_name(atomic_load(&ddp->state)));
    } else {
        ddp->reducer->buffers.hook = fn;
        ddp->reducer->buffers.state = state;
        ddp->reducer->buffers.when = when;
    }
    pthread_mutex_unlock(&ddp->lock);
    return dtr__ddp_result(ddp, s);
}

bool dtr__ddp_buffers_due(const dtr_ddp *ddp) {
    return ddp->it.sync && !ddp->it.eval && !ddp->set.no_buffers &&
           ddp->reducer->buffers.n_sync > 0;
}

/* ---- the hook's work ---- */

static dtr_work *take_work(dtr_ddp *ddp) {
    dtr_work *work = ddp->reducer->buffers.work;
    ddp->reducer->buffers.work = NULL;
    return work;
}

dtr_status dtr__ddp_buffers_wait(dtr_ddp *ddp) {
    dtr_work *work = take_work(ddp);
    dtr_status s = dtr__ddp_on_device(ddp) ? dtr_work_wait_stream(work, ddp->out.stream)
                                           : dtr_work_wait(work, -1);
    (void)dtr_work_release(work);
    return s;
}

dtr_status dtr__ddp_buffers_finish(dtr_ddp *ddp) {
    dtr_work *work = take_work(ddp);
    dtr_status s = dtr_work_synchronize(work, -1);
    (void)dtr_work_release(work);
    return s;
}

/* The forward pass that it belongs to was dropped. On a device the stream that the hook gave it
 * waits: what the hook queues there next comes behind. */
static dtr_status wait_dropped(dtr_ddp *ddp) {
    dtr_work *work = take_work(ddp);
    dtr_status s = dtr_work_wait(work, -1);
    (void)dtr_work_release(work);
    return s;
}

/* A failing hook is noted: the ranks agree on it at backward_end. */
static dtr_status call_hook(dtr_ddp *ddp) {
    DTR_TRY(wait_dropped(ddp));
    dtr_status s =
        ddp->reducer->buffers.hook(ddp->reducer->buffers.state, ddp->reducer->buffers.sync,
                                   ddp->reducer->buffers.n_sync, &ddp->reducer->buffers.work);
    if (s < 0) {
        char cause[256];
        snprintf(cause, sizeof cause, "%s", dtr_last_error_message());
        return dtr__ddp_note_caller(ddp, s, DTR__NONE,
                                    "the buffer hook failed on rank %d with %s: %s", ddp->rank,
                                    dtr_status_name(s), cause);
    }
    return DTR_OK;
}

dtr_status dtr__ddp_buffers_sync(dtr_ddp *ddp, dtr_ddp_when when, bool *broken) {
    *broken = false;
    if (!dtr__ddp_buffers_due(ddp)) {
        return DTR_OK;
    }
    if (ddp->reducer->buffers.hook != NULL) {
        return ddp->reducer->buffers.when == when ? call_hook(ddp) : DTR_OK;
    }
    if (when != DTR_PRE_FORWARD || ddp->size == 1) {
        return DTR_OK;
    }
    dtr_status s = dtr__ddp_send_all(ddp, ddp->reducer->buffers.sync, ddp->reducer->buffers.n_sync,
                                     ddp->it.buffer_source);
    *broken = s < 0;
    return s;
}
