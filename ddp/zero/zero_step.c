/* A step of a sharded optimizer: buckets are reduce-scattered during backward, the update runs on
 * this rank's slices, and parameters are gathered in the memory of the buckets, whose gradients are
 * used up by then. No value is written before every rank's update has succeeded. */
#include <stdlib.h>

#include "api/issue.h"
#include "core/call.h"
#include "core/call_site.h"
#include "zero.h"

/* ---- backward ---- */

static size_t all_buckets(const dtr_ddp *ddp) {
    return ddp->n_buckets; /* errors travel apart */
}

static dtr_status launch(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    size_t slice = ddp->zero->buckets[b->index].slice, size = dtr_dtype_size(b->plan->dtype);
    dtr__request r = {
        .kind = DTR__K_REDUCE_SCATTER,
        .op = dtr__ddp_op(ddp),
        .divisor = ddp->it.divisor,
        .root = -1,
        .in = { b->data, slice * (size_t)ddp->size, b->plan->dtype, ddp->device },
        .out = { b->data + slice * (size_t)ddp->rank * size, slice, b->plan->dtype, ddp->device },
        .finish = dtr__ddp_on_device(ddp) ? NULL : &b->finish,
    };
    b->launched_ns = dtr__now_ns();
    dtr__ddp_timing_ready(ddp, b->index);
    return dtr__ddp_issue(ddp, &r, b->label, b->index, &b->work);
}

static dtr_status may_open(dtr_ddp *ddp, const char *entry) {
    dtr_zero *z = ddp->zero;
    if (atomic_load(&z->n_pending) == 0) {
        return DTR_OK;
    }
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    return dtr__ddp_failed(
        ddp, DTR_FAIL(&ctx, DTR_ERR_STATE,
                      "%s: parameters of %zu buckets of the last dtr_zero_step have not been "
                      "waited for; call dtr_zero_wait for each before it is used",
                      entry, atomic_load(&z->n_pending)));
}

const dtr__ddp_strategy dtr__zero_strategy = {
    .early = all_buckets,
    .launch = launch,
    .collect = dtr__ddp_collect_works,
    .copy_out = dtr__zero_copy_out,
    .may_open = may_open,
};
const dtr__ddp_strategy dtr__zero_strategy_alone = {
    .collect = dtr__ddp_collect_alone,
    .copy_out = dtr__zero_copy_out,
    .may_open = may_open,
};

/* ---- gathering ---- */

dtr_status dtr__zero_gather(dtr_zero *z, size_t b) {
    dtr_ddp *ddp = z->ddp;
    dtr__zero_bucket *zb = &z->buckets[b];
    zb->pending = true;
    atomic_fetch_add(&z->n_pending, 1);
    if (ddp->size == 1) {
        return DTR_OK;
    }
    DTR_TRY(dtr__ddp_device_follow(ddp, ddp->out.stream));
    size_t nbytes = zb->slice * dtr_dtype_size(zb->dtype);
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = z->o.timeout_s > 0 ? z->o.timeout_s : ddp->set.timeout_s;
    o.label = ddp->buckets[b].label;
    o.stream = ddp->at.stream;
    dtr__request r = {
        .kind = DTR__K_ALLGATHER,
        .root = -1,
        .in = { zb->data + nbytes * (size_t)ddp->rank, zb->slice, zb->dtype, ddp->device },
        .out = { zb->data, zb->slice * (size_t)ddp->size, zb->dtype, ddp->device },
        .options = &o,
        .return_address = __builtin_return_address(0),
        .tag_word = dtr__ddp_tag(ddp, DTR__PART_ZERO),
    };
    return dtr__coll_issue(ddp->group, &r, &zb->work);
}

/* On a device buckets are filled again behind that. */
static dtr_status write_values(dtr_zero *z, size_t b) {
    dtr_ddp *ddp = z->ddp;
    dtr__zero_copies c = { ddp, ddp->buckets[b].pieces, 0 };
    const dtr_plan_bucket *plan = z->ddp->buckets[b].plan;
    const dtr__zero_bucket *zb = &z->buckets[b];
    size_t size = dtr_dtype_size(plan->dtype), to = dtr_dtype_size(zb->dtype);
    for (size_t k = 0; k < plan->n_slots; k++) {
        const dtr__ddp_param *p = &z->ddp->params[plan->slots[k].param];
        dtr__zero_copy_from(&c, p->value, p->slot, 0, p->value->numel,
                            zb->data + plan->slots[k].offset / size * to);
    }
    DTR_TRY(dtr__zero_copies_end(&c));
    return dtr__ddp_device_follow(ddp, ddp->out.stream);
}

dtr_status dtr__zero_take(dtr_zero *z, size_t b, bool drop) {
    dtr__zero_bucket *zb = &z->buckets[b];
    dtr_status s = DTR_OK;
    if (zb->work != NULL) {
        s = dtr__ddp_on_device(z->ddp) ? dtr_work_wait_stream(zb->work, z->ddp->out.stream)
                                       : dtr_work_wait(zb->work, -1);
        (void)dtr_work_release(zb->work);
        zb->work = NULL;
    }
    if (zb->pending) {
        if (s == DTR_OK && !drop) {
            s = write_values(z, b);
        }
        zb->pending = false;
        atomic_fetch_sub(&z->n_pending, 1);
    }
    return s;
}

dtr_status dtr__zero_take_all(dtr_zero *z, bool drop) {
    dtr_status s = DTR_OK;
    dtr__error_copy *cause = NULL;
    pthread_mutex_lock(&z->lock);
    for (size_t b = 0; b < z->n_buckets; b++) {
        dtr_status one = dtr__zero_take(z, b, drop || s < 0);
        if (s == DTR_OK && one < 0) {
            s = one;
            cause = dtr__error_save();
        }
    }
    pthread_mutex_unlock(&z->lock);
    return dtr__error_put_back(cause, s);
}

static dtr_status zero_wait(dtr_zero *z, size_t i) {
    static const char entry[] = "dtr_zero_wait";
    DTR_TRY(dtr__zero_check(z, entry));
    dtr_ddp *ddp = z->ddp;
    dtr_status s = DTR_OK;
    if (i == SIZE_MAX) {
        s = dtr__zero_take_all(z, false);
    } else {
        if (i >= ddp->n) {
            return dtr__zero_fail(z, DTR_ERR_ARG,
                                  "%s: there is no parameter %zu, the module has %zu", entry, i,
                                  ddp->n);
        }
        size_t b = ddp->params[ddp->params[i].same_as].bucket;
        pthread_mutex_lock(&z->lock);
        s = b != DTR__NONE ? dtr__zero_take(z, b, false) : DTR_OK;
        pthread_mutex_unlock(&z->lock);
    }
    return s < 0 ? dtr__ddp_break(ddp, s) : s;
}

dtr_status dtr_zero_wait(dtr_zero *z, size_t i) {
    return DTR_ZERO_TRACED(z, "dtr_zero_wait", zero_wait(z, i));
}

/* ---- one slice ---- */

/* Whether the gradients of this rank's slice are the slice itself. */
static bool lie_in_bucket(const dtr_zero *z, size_t b) {
    const dtr_ddp *ddp = z->ddp;
    dtr__zero_piece piece;
    for (size_t s = 0; dtr__zero_next(z, b, ddp->rank, &s, &piece);) {
        const dtr__ddp_param *p = &ddp->params[piece.param];
        const dtr_tensor *grad = dtr__ddp_final_grad(p);
        if (grad == NULL || grad->data != p->slot->data || grad->dtype != p->slot->dtype) {
            return false;
        }
    }
    return true;
}

/* The average of this rank's slice in the parameters' type. It is read from the gradients that the
 * program sees, so what it has changed in them since the end of backward takes effect. */
static dtr_status slice_gradient(dtr_zero *z, size_t b, char **gradient) {
    const dtr_ddp *ddp = z->ddp;
    dtr__zero_copies c = { ddp, ddp->buckets[b].pieces, 0 };
    const dtr__zero_bucket *zb = &z->buckets[b];
    size_t size = dtr_dtype_size(zb->dtype);
    bool inside = lie_in_bucket(z, b);
    char *to = inside ? ddp->buckets[b].data + zb->slice * (size_t)ddp->rank * size : z->grad;
    dtr__zero_piece piece;
    *gradient = to;
    if (!inside) {
        DTR_TRY(dtr__zero_clear(ddp, to, zb->slice * size));
    }
    for (size_t s = 0; dtr__zero_next(z, b, ddp->rank, &s, &piece);) {
        const dtr__ddp_param *p = &ddp->params[piece.param];
        const dtr_tensor *grad = dtr__ddp_final_grad(p);
        if (!dtr__zero_is_stepped(ddp, piece.param)) { /* a gradient of nobody */
            DTR_TRY(dtr__zero_clear(ddp, to + piece.at * size, piece.count * size));
        } else if (!inside && grad != NULL) {
            dtr__zero_copy_to(&c, grad, p->slot, piece.from, piece.count, to + piece.at * size);
        }
    }
    return dtr__zero_copies_end(&c);
}

/* New parameters into their place for gathering; what the update left in the padding is not. */
static dtr_status publish(dtr_zero *z, size_t b) {
    const dtr__zero_bucket *zb = &z->buckets[b];
    const dtr__ddp_at at = dtr__zero_at(z->ddp);
    dtr__ddp_piece *pieces = z->ddp->buckets[b].pieces;
    size_t n = 0;
    size_t size = dtr_dtype_size(zb->dtype);
    char *to = zb->data + zb->slice * (size_t)z->ddp->rank * size;
    dtr__zero_piece p;
    DTR_TRY(dtr__zero_clear(z->ddp, to, zb->slice * size));
    for (size_t s = 0; dtr__zero_next(z, b, z->ddp->rank, &s, &p);) {
        pieces[n++] = (dtr__ddp_piece){ to + p.at * size, z->param + p.at * size, p.count,
                                        zb->dtype, zb->dtype };
    }
    return n > 0 ? z->ddp->mover->move(pieces, n, 1, &at) : DTR_OK;
}

static dtr_status update(dtr_zero *z, size_t b, dtr_zero_update fn, void *state) {
    const dtr__zero_bucket *zb = &z->buckets[b];
    const dtr_device device = z->ddp->device;
    char *grad = NULL;
    if (zb->slice == 0) {
        return DTR_OK;
    }
    DTR_TRY(dtr__zero_read_slice(z, b, z->param));
    DTR_TRY(slice_gradient(z, b, &grad));
    dtr_status s = fn(state, zb->first, (dtr_buffer){ z->param, zb->slice, zb->dtype, device },
                      (dtr_buffer){ grad, zb->slice, zb->dtype, device });
    return s >= 0 ? publish(z, b) : s;
}

void dtr__zero_used_up(dtr_zero *z) {
    z->used = z->ddp->it.number;
    for (size_t k = 0; k < z->ddp->n_trainable; k++) {
        dtr__ddp_param *p = &z->ddp->params[z->ddp->trainable[k]];
        atomic_store(&p->defined, p->bucket == DTR__NONE && atomic_load(&p->defined));
    }
}

/* ---- the step ---- */

/* Every rank launches every bucket, whatever its own update returned. */
static dtr_status step(dtr_zero *z, dtr_zero_update fn, void *state) {
    dtr_ddp *ddp = z->ddp;
    dtr_status mine = DTR_OK, s = DTR_OK;
    char text[400] = "";
    for (size_t b = 0; b < z->n_buckets && s == DTR_OK; b++) {
        if (mine == DTR_OK) {
            mine = update(z, b, fn, state);
            mine = mine > 0 ? DTR_OK : mine;
            if (mine < 0) {
                const char *cause = dtr_last_error_message();
                snprintf(
                    text, sizeof text,
                    "dtr_zero_step: the update of bucket %zu failed on rank %d with %s%s%.240s; "
                    "no parameter has changed",
                    b, ddp->rank, dtr_status_name(mine), cause[0] != '\0' ? ": " : "", cause);
            }
        }
        s = dtr__zero_gather(z, b);
    }
    if (s == DTR_OK) {
        s = dtr__zero_agree(ddp, mine, text, true);
    }
    if (s < 0) {
        DTR_CLEAN_UP(s, (void)dtr__zero_take_all(z, true));
        return s;
    }
    return z->o.flags & DTR_ZERO_OVERLAP ? DTR_OK : dtr__zero_take_all(z, false);
}

static dtr_status check_due(dtr_zero *z, const char *entry) {
    if (!dtr__zero_is_due(z)) {
        return dtr__zero_fail(z, DTR_ERR_STATE,
                              "%s: there are no averages to step with: it follows a "
                              "dtr_ddp_backward_end with sync that succeeded, once",
                              entry);
    }
    return DTR_OK;
}

static dtr_status zero_step(dtr_zero *z, dtr_zero_update fn, void *state) {
    static const char entry[] = "dtr_zero_step";
    DTR_TRY(dtr__zero_check(z, entry));
    if (fn == NULL) {
        return dtr__zero_fail(z, DTR_ERR_ARG, "%s: fn is NULL", entry);
    }
    DTR_TRY(dtr__zero_begin(z, entry));
    dtr_status s = check_due(z, entry);
    if (s < 0) {
        atomic_store(&z->ddp->state, DTR__DDP_IDLE);
        return s;
    }
    s = step(z, fn, state);
    dtr__zero_used_up(z);
    return dtr__zero_end(z, s);
}

dtr_status dtr_zero_step(dtr_zero *z, dtr_zero_update fn, void *state) {
    DTR_HOLD_CALL_SITE;
    return DTR_ZERO_TRACED(z, "dtr_zero_step", zero_step(z, fn, state));
}
