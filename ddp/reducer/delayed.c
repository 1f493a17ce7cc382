/* Parameters that are averaged apart from the buckets: their gradients lie in one block per type,
 * which travels as soon as the trigger is ready. When that is depends on the rank, so the blocks
 * have a group of their own. On a device they travel behind the buckets instead, in backward_end
 * and on the module's group: kernels of two of NCCL's communicators may wait for each other, so all
 * ranks have to launch them in one order. */
#include <stdlib.h>

#include "core/call.h"
#include "core/team.h"
#include "device/device.h"
#include "engine/engine.h"
#include "reducer_internal.h"

/* ---- create, local ---- */

static dtr_status check_one(dtr_ddp *ddp, const char *what, size_t i, size_t *first) {
    DTR_REQUIRE(i < ddp->n, NULL, DTR_ERR_ARG, "%s is %zu, but there are %zu parameters", what, i,
                ddp->n);
    *first = ddp->params[i].same_as;
    const dtr__ddp_param *p = &ddp->params[*first];
    DTR_REQUIRE((p->trainable || p->delayed) && !p->sparse, NULL, DTR_ERR_ARG,
                "%s is '%s' (%zu), which is %s and has no gradient to delay", what,
                ddp->params[i].name, i, p->sparse ? "sparse" : dtr__ddp_why_no_grad(p));
    return DTR_OK;
}

dtr_status dtr__ddp_delayed_read(dtr_ddp *ddp, const dtr_ddp_options *o) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    char what[64];
    d->trigger = DTR__NONE;
    if (o->n_delayed == 0) {
        return DTR_OK;
    }
    d->list = calloc(o->n_delayed, sizeof d->list[0]);
    DTR_REQUIRE(d->list != NULL, NULL, DTR_ERR_NOMEM, "no memory to list %zu delayed parameters",
                o->n_delayed);
    for (size_t k = 0; k < o->n_delayed; k++) {
        size_t i;
        snprintf(what, sizeof what, "delayed[%zu]", k);
        DTR_TRY(check_one(ddp, what, o->delayed[k], &i));
        dtr__ddp_param *p = &ddp->params[i];
        DTR_REQUIRE(!p->delayed, NULL, DTR_ERR_ARG,
                    "%s is '%s' (%zu), which is in the list already", what, p->name, i);
        p->delayed = true;
        p->trainable = false;
        d->list[d->n++] = i;
    }
    return check_one(ddp, "delayed_trigger", o->delayed_trigger, &d->trigger);
}

static dtr__ddp_flat *flat_of(dtr__ddp_delayed *d, dtr_dtype dtype) {
    dtr__ddp_flat *f = d->flat;
    while (f < d->flat + d->n_flat && f->dtype != dtype) {
        f++;
    }
    d->n_flat += f == d->flat + d->n_flat ? 1 : 0;
    f->dtype = dtype;
    return f;
}

/* Sizes of the blocks, then their memory; node-shared where the node can. */
static dtr_status make_flats(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    for (size_t k = 0; k < d->n; k++) {
        const dtr__ddp_param *p = &ddp->params[d->list[k]];
        dtr__ddp_flat *f = flat_of(d, dtr__ddp_grad_dtype(ddp, p));
        size_t nbytes = p->value->numel * dtr_dtype_size(f->dtype);
        f->nbytes += nbytes;
        f->padded += dtr__plan_round(nbytes);
    }
    for (dtr__ddp_flat *f = d->flat; f < d->flat + d->n_flat; f++) {
        int64_t count = (int64_t)(f->padded / dtr_dtype_size(f->dtype));
        bool plain;
        DTR_TRY(ddp->mover->make(ddp->world, ddp->device, f->dtype, count, &f->memory, &plain));
    }
    return DTR_OK;
}

/* The slot of a gradient, and in the end the gradient itself: the caller's handle moves there. */
static dtr_status make_view(dtr_ddp *ddp, dtr__ddp_param *p, const dtr__ddp_flat *f, size_t *at) {
    size_t size = dtr_dtype_size(f->dtype);
    int64_t strides[DTR_MAX_NDIM];
    dtr__ddp_dense_strides(p->value, strides);
    DTR_TRY(dtr__tensor_view(f->memory, (ptrdiff_t)(*at / size), p->value->ndim, p->value->shape,
                             strides, &p->slot));
    *at += dtr__plan_round(p->value->numel * size);
    dtr_tensor *grad = atomic_load(&p->grad);
    if (grad == NULL) {
        DTR_TRY(
            dtr__tensor_view(p->slot, 0, p->slot->ndim, p->slot->shape, p->slot->strides, &grad));
        atomic_store(&p->grad, grad);
        return DTR_OK;
    }
    DTR_TRY(dtr__tensor_view(grad, 0, grad->ndim, grad->shape, grad->strides, &p->parked));
    dtr__ddp_copy_whole(ddp, p->slot, grad);
    dtr__tensor_rebind(grad, p->slot);
    return DTR_OK;
}

dtr_status dtr__ddp_delayed_prepare(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    size_t at[DTR__FLATS] = { 0 };
    DTR_TRY(make_flats(ddp));
    for (size_t k = 0; k < d->n; k++) {
        dtr__ddp_param *p = &ddp->params[d->list[k]];
        const dtr__ddp_flat *f = flat_of(d, dtr__ddp_grad_dtype(ddp, p));
        DTR_TRY(make_view(ddp, p, f, &at[f - d->flat]));
    }
    return d->n > 0 ? dtr__ddp_device_synchronize(ddp) : DTR_OK;
}

void dtr__ddp_delayed_drop(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    for (size_t k = 0; k < d->n; k++) {
        dtr__ddp_param *p = &ddp->params[d->list[k]];
        dtr_tensor *grad = atomic_load(&p->grad);
        if (grad != NULL && p->slot != NULL && grad->data == p->slot->data) {
            dtr__ddp_leave_bucket(ddp, p);
            dtr_tensor_release(atomic_exchange(&p->grad, NULL));
        }
        dtr_tensor_release(p->slot);
        p->slot = NULL;
    }
    for (size_t k = 0; k < d->n_flat; k++) {
        dtr_tensor_release(d->flat[k].memory);
        d->flat[k].memory = NULL;
    }
    dtr__ddp_device_feeds_free(ddp, &d->feeds);
    free(d->list);
    d->list = NULL;
    d->n = d->n_flat = 0;
}

/* ---- the group ---- */

dtr_status dtr__ddp_delayed_connect(dtr_ddp *ddp, dtr_group **group) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    *group = NULL;
    return d->n > 0 && !dtr__ddp_on_device(ddp) ? dtr__ddp_dup(ddp, "delayed", group) : DTR_OK;
}

/* ---- one iteration ---- */

/* On a device behind the stream of the newest backward_end, which is the one that the averages went
 * out on; before there was one, done on return. */
void dtr__ddp_delayed_forward(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    const dtr__ddp_at at = { ddp->at.device, ddp->out.stream };
    dtr_status s = DTR_OK;
    for (size_t k = 0; k < d->n && s == DTR_OK; k++) {
        const dtr__ddp_param *p = &ddp->params[d->list[k]];
        if (!atomic_load(&p->defined)) {
            s = ddp->mover->zero(p->slot->data, p->slot->numel * dtr_dtype_size(p->slot->dtype),
                                 &at);
        }
    }
    if (s == DTR_OK && d->n > 0 && !dtr__ddp_has_out(ddp)) {
        s = dtr__ddp_device_synchronize(ddp);
    }
    (void)dtr__ddp_note_last(ddp, s, DTR__NONE);
}

void dtr__ddp_delayed_define(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    for (size_t k = 0; k < d->n; k++) {
        atomic_store(&ddp->params[d->list[k]].defined, true);
    }
}

static dtr_status launch(dtr_ddp *ddp, dtr_group *group) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    for (size_t k = 0; k < d->n_flat; k++) {
        dtr__ddp_flat *f = &d->flat[k];
        dtr_buffer block = dtr_tensor_buffer(f->memory);
        dtr__request r = dtr__ddp_average(ddp, block);
        r.tag_word = dtr__ddp_tag(ddp, DTR__PART_DELAYED);
        DTR_TRY(dtr__ddp_issue_on(ddp, group, &r, "ddp delayed", &f->work));
    }
    return DTR_OK;
}

static void keep_status(dtr__ddp_delayed *d, dtr_status s) {
    d->status = s;
    d->error = s < 0 ? dtr__error_save() : NULL;
}

void dtr__ddp_delayed_launch(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    if (d->n == 0 || atomic_exchange(&d->launched, true)) {
        return;
    }
    for (size_t k = 0; k < d->n; k++) {
        dtr__ddp_check_nan(ddp, d->list[k]);
    }
    if (ddp->size > 1 && !dtr__ddp_on_device(ddp)) {
        keep_status(d, launch(ddp, d->group));
    }
}

/* The module's stream goes on behind who reported the trigger, and behind the stream of
 * backward_end, which knows of what nobody reported. Then so does that one: a rank alone has its
 * averages there. */
static dtr_status gather(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    DTR_TRY(dtr__ddp_device_wait_for_feeds(ddp, &d->feeds, ddp->at.stream));
    DTR_TRY(dtr__ddp_device_follow(ddp, ddp->out.stream));
    for (size_t k = 0; k < d->n; k++) {
        DTR_TRY(dtr__ddp_device_find_nan(ddp, d->list[k]));
    }
    return ddp->size > 1 ? launch(ddp, ddp->group) : dtr__ddp_device_lead(ddp, ddp->out.stream);
}

void dtr__ddp_delayed_behind(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    if (d->n == 0 || d->behind || !dtr__ddp_on_device(ddp) ||
        ddp->reducer->launch_status != DTR_OK) {
        return;
    }
    d->behind = true;
    keep_status(d, gather(ddp));
    if (d->status < 0) {
        dtr__group_break(ddp->group, d->status); /* the others wait for these blocks */
    }
}

bool dtr__ddp_delayed_missing(const dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    size_t i = d->trigger;
    return i != DTR__NONE && ddp->params[i].delayed &&
           atomic_load(&ddp->params[i].mark) == DTR__MARK_OPEN;
}

void dtr__ddp_delayed_settle(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    for (size_t k = 0; k < d->n_flat && ddp->it.shadow; k++) {
        dtr__ddp_flat *f = &d->flat[k];
        dtr__ddp_zero(ddp, f->memory->data, f->padded);
    }
    if (dtr__ddp_delayed_missing(ddp) && !ddp->it.shadow) {
        size_t i = d->trigger;
        dtr__ddp_note(ddp, DTR_ERR_STATE, i,
                      "parameter '%s' (%zu) was not ready on rank %d; it is the trigger of the "
                      "delayed parameters: report it when all their gradients are final",
                      ddp->params[i].name, i, ddp->rank);
    }
    dtr__ddp_delayed_launch(ddp);
}

dtr_status dtr__ddp_delayed_wait(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    dtr_status s = dtr__error_put_back(d->error, d->status);
    d->error = NULL;
    for (size_t k = 0; k < d->n_flat; k++) {
        dtr__ddp_flat *f = &d->flat[k];
        if (f->work != NULL) {
            dtr_status one = dtr__ddp_on_device(ddp)
                                 ? dtr_work_wait_stream(f->work, ddp->out.stream)
                                 : dtr_work_wait(f->work, -1);
            (void)dtr_work_release(f->work);
            f->work = NULL;
            s = s == DTR_OK ? one : s;
        }
    }
    return s;
}

void dtr__ddp_delayed_give_back(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    for (size_t k = 0; k < d->n; k++) {
        dtr__ddp_copy_out(ddp, &ddp->params[d->list[k]]);
    }
    dtr__ddp_delayed_define(ddp);
}

void dtr__ddp_delayed_rearm(dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    atomic_store(&d->launched, false);
    d->behind = false;
    d->feeds.n = 0;
    d->status = DTR_OK;
    if (d->trigger != DTR__NONE) {
        atomic_store(&ddp->params[d->trigger].mark, DTR__MARK_OPEN);
    }
}

size_t dtr__ddp_delayed_bytes(const dtr_ddp *ddp) {
    dtr__ddp_delayed *d = &ddp->reducer->delayed;
    size_t nbytes = 0;
    for (size_t k = 0; k < d->n_flat; k++) {
        nbytes += d->flat[k].nbytes;
    }
    return nbytes;
}
