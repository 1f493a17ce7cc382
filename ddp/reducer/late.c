/* Errors that are known one synchronised step later (DTR_DDP_LATE_ERRORS), so that the host of a
 * module on a device asks nobody: whether a rank has one is a flag in the status slot of the last
 * bucket, which the device averages and the host reads when the next such iteration has been
 * queued. Where it is set all ranks see that and exchange the texts, as they do in the same step
 * where no flag travels (step_status.c). */
#include "device/device.h"
#include "reducer_internal.h"

/* All of it is alike on all ranks. Whatever may note an error after the bucket has left, or makes
 * the host wait for other ranks anyway, keeps the round of messages. */
bool dtr__ddp_late_can(const dtr_ddp *ddp) {
    const dtr__ddp_reducer *r = ddp->reducer;
    return (ddp->set.flags & DTR_DDP_LATE_ERRORS) != 0 && dtr__ddp_on_device(ddp) &&
           ddp->size > 1 && ddp->strategy->carries_status && ddp->strategy->launch != NULL &&
           r->carrier != DTR__NONE && r->step.fn == NULL && r->buffers.hook == NULL &&
           ddp->it.mode != DTR__MODE_DYNAMIC && ddp->it.mode != DTR__MODE_LEARN &&
           !r->rebuild_due && !ddp->it.shadow && !dtr__ddp_joined(ddp) &&
           ddp->gpu->rows_stream == NULL && (ddp->set.flags & DTR_DDP_CHECK_NAN) == 0;
}

void dtr__ddp_late_begin(dtr_ddp *ddp) {
    dtr__ddp_late *l = &ddp->reducer->late;
    l->travels = dtr__ddp_late_can(ddp);
    l->flagged = false;
    if (!l->travels && l->pending) { /* this step's round says it instead */
        l->pending = false;
        if (l->before.status != DTR_OK) {
            dtr__ddp_note_again(ddp, &l->before);
        }
    }
}

void dtr__ddp_late_write(dtr_ddp *ddp, bool bad) {
    dtr__ddp_late *l = &ddp->reducer->late;
    if (l->travels) {
        l->flagged = bad;
        dtr_status s = dtr__ddp_device_flag_write(ddp, &ddp->buckets[ddp->reducer->carrier], bad);
        if (dtr__ddp_note_last(ddp, s, DTR__NONE) < 0) {
            l->flagged = false;
        }
    }
}

void dtr__ddp_late_fetch(dtr_ddp *ddp) {
    dtr__ddp_late *l = &ddp->reducer->late;
    if (l->travels) {
        dtr_status s =
            dtr__ddp_device_flag_fetch(ddp, &ddp->buckets[ddp->reducer->carrier], 1 - l->newest);
        (void)dtr__ddp_note_last(ddp, s, DTR__NONE);
    }
}

/* The flag of the step before is read. Where it is set the ranks exchange the texts. */
static dtr_status take(dtr_ddp *ddp, bool *broken) {
    dtr__ddp_late *l = &ddp->reducer->late;
    bool bad = false;
    const dtr_dtype type = ddp->buckets[ddp->reducer->carrier].plan->dtype;
    dtr_status s = dtr__ddp_device_flag_read(ddp, dtr_dtype_size(type), l->newest, &bad);
    l->pending = false;
    if (s < 0) {
        *broken = true;
        return dtr__ddp_break(ddp, s);
    }
    return bad ? dtr__ddp_agree_bad(ddp, &l->before, broken) : DTR_OK;
}

dtr_status dtr__ddp_late_take(dtr_ddp *ddp, bool *broken) {
    *broken = false;
    return ddp->reducer->late.pending ? take(ddp, broken) : DTR_OK;
}

/* This rank's own status becomes that of the step before. */
static dtr_status keep(dtr_ddp *ddp) {
    dtr__ddp_late *l = &ddp->reducer->late;
    const dtr__step_status *mine = &ddp->errors.mine;
    l->pending = true;
    l->newest = 1 - l->newest;
    l->before.status = DTR_OK;
    if (!l->flagged) {
        return DTR_OK;
    }
    l->before = *mine;
    snprintf(l->before.text, sizeof l->before.text, "in the synchronised step before: %.1760s",
             mine->text);
    return dtr__ddp_step_fail(ddp, mine, (dtr_status)mine->status, "");
}

dtr_status dtr__ddp_late_end(dtr_ddp *ddp, bool *broken) {
    *broken = false;
    if (!ddp->reducer->late.travels) {
        return DTR_OK;
    }
    dtr_status before = dtr__ddp_late_take(ddp, broken);
    if (*broken) {
        return before;
    }
    dtr__error_copy *why = before < 0 ? dtr__error_save() : NULL;
    dtr_status own = keep(ddp); /* counted when it was noted */
    return before < 0 ? dtr__ddp_failed(ddp, dtr__error_put_back(why, before)) : own;
}
