/* Going over the averages of a module. */
#include "grads.h"

#include "clip_device.h"
#include "core/call.h"
#include "core/walk.h"
#include "kernels/kernels.h"

/* ---- elements ---- */

static uint64_t nonfinite_16(const void *data, size_t n, uint16_t exponent) {
    const uint16_t *x = data;
    uint64_t found = 0;
    for (size_t k = 0; k < n; k++) {
        found += (x[k] & exponent) == exponent;
    }
    return found;
}

static uint64_t nonfinite_32(const void *data, size_t n) {
    const uint32_t exponent = 0x7f800000, *x = data;
    uint64_t found = 0;
    for (size_t k = 0; k < n; k++) {
        found += (x[k] & exponent) == exponent;
    }
    return found;
}

static uint64_t nonfinite_64(const void *data, size_t n) {
    const uint64_t exponent = UINT64_C(0x7ff) << 52, *x = data;
    uint64_t found = 0;
    for (size_t k = 0; k < n; k++) {
        found += (x[k] & exponent) == exponent;
    }
    return found;
}

/* By their bits: looking at a number may trap. */
static uint64_t n_nonfinite(const void *data, size_t n, dtr_dtype dtype) {
    dtr__squares sum = { { 0 }, 0, 0 };
    switch (dtype) {
    case DTR_F16:
        return nonfinite_16(data, n, 0x7c00);
    case DTR_BF16:
        return nonfinite_16(data, n, 0x7f80);
    case DTR_F32:
    case DTR_C64:
        return nonfinite_32(data, dtype == DTR_C64 ? 2 * n : n);
    case DTR_F64:
    case DTR_C128:
        return nonfinite_64(data, dtype == DTR_C128 ? 2 * n : n);
    default:
        dtr__squares_add(&sum, data, n, dtype);
        return sum.nan + sum.infinite;
    }
}

static void add_squares(dtr__grads_pass *p, const void *data, size_t count) {
    dtr__squares_add(p->sum, data, count, p->dtype);
    p->n_nonfinite = p->sum->nan + p->sum->infinite;
}

static void visit(dtr__grads_pass *p, void *data, size_t count) {
    switch (p->what) {
    case DTR__GRADS_SQUARES:
        add_squares(p, data, count);
        break;
    case DTR__GRADS_FINITE:
        p->n_nonfinite += n_nonfinite(data, count, p->dtype);
        break;
    case DTR__GRADS_SCALE:
        dtr__premul(data, data, count, p->dtype, p->factor);
        break;
    }
}

/* ---- whole gradients ---- */

static void visit_run(void *arg, char *a, ptrdiff_t step, char *b, ptrdiff_t b_step, size_t n) {
    dtr__grads_pass *p = arg;
    size_t size = dtr_dtype_size(p->dtype);
    char packed[DTR__WALK_BYTES];
    (void)b;
    (void)b_step;
    if (step == (ptrdiff_t)size) {
        visit(p, a, n);
        return;
    }
    for (size_t at = 0; at < n; at += DTR__WALK_BLOCK) {
        size_t some = n - at < DTR__WALK_BLOCK ? n - at : DTR__WALK_BLOCK;
        char *from = a + (ptrdiff_t)at * step;
        dtr__gather_run(packed, from, step, some, size);
        visit(p, packed, some);
        if (p->what == DTR__GRADS_SCALE) {
            dtr__scatter_run(from, step, packed, some, size);
        }
    }
}

static void visit_whole(dtr__grads_pass *p, const dtr_tensor *t) {
    p->dtype = t->dtype;
    dtr__walk(t, NULL, visit_run, p);
}

/* `device` is NULL where the module is on the host. */
static dtr_status over_all(dtr_ddp *ddp, dtr__grads_pass *p, dtr__device_pass *device) {
    for (size_t i = 0; i < ddp->n; i++) {
        const dtr__ddp_param *param = &ddp->params[i];
        const dtr_tensor *t = dtr__ddp_final_grad(param);
        const uint64_t before = p->n_nonfinite;
        if (param->same_as != i || !(param->trainable || param->delayed) || t == NULL ||
            t->numel == 0 || !atomic_load(&param->defined)) {
            continue;
        }
        if (device != NULL) { /* gradients there are dense */
            DTR_TRY(dtr__device_pass_add(device, i, t->data, t->numel, t->dtype));
            continue;
        }
        visit_whole(p, t);
        p->nonfinite = p->n_nonfinite > before && i < p->nonfinite ? i : p->nonfinite;
    }
    return DTR_OK;
}

/* ---- this rank's stretches ---- */

static void visit_piece(const dtr__ddp_param *param, dtr__grads_pass *p,
                        const dtr__zero_piece *piece) {
    enum { SOME = 512 };
    _Alignas(16) char packed[SOME * 16];
    const dtr_tensor *t = dtr__ddp_final_grad(param);
    char *there = t != NULL ? dtr__zero_stretch(t, param->slot, piece->from) : NULL;
    if (t == NULL) {
        return;
    }
    p->dtype = t->dtype;
    if (there != NULL) {
        visit(p, there, piece->count);
        return;
    }
    for (size_t at = 0; at < piece->count; at += SOME) {
        size_t n = piece->count - at < SOME ? piece->count - at : SOME;
        dtr__zero_read(t, param->slot, piece->from + at, n, packed);
        visit(p, packed, n);
        if (p->what == DTR__GRADS_SCALE) {
            dtr__zero_write(t, param->slot, piece->from + at, n, packed);
        }
    }
}

static dtr_status add_piece(const dtr_ddp *ddp, const dtr__zero_piece *piece,
                            dtr__device_pass *device) {
    const dtr__ddp_param *param = &ddp->params[piece->param];
    const dtr_tensor *t = dtr__ddp_final_grad(param);
    return t != NULL ? dtr__device_pass_add(device, piece->param,
                                            dtr__zero_stretch(t, param->slot, piece->from),
                                            piece->count, t->dtype)
                     : DTR_OK;
}

static dtr_status over_shard(const dtr_zero *z, dtr__grads_pass *p, dtr__device_pass *device) {
    const dtr_ddp *ddp = z->ddp;
    for (size_t b = 0; b < z->n_buckets; b++) {
        dtr__zero_piece piece;
        for (size_t s = 0; dtr__zero_next(z, b, ddp->rank, &s, &piece);) {
            const uint64_t before = p->n_nonfinite;
            if (!dtr__zero_is_stepped(ddp, piece.param)) {
                continue;
            }
            if (device != NULL) {
                DTR_TRY(add_piece(ddp, &piece, device));
                continue;
            }
            visit_piece(&ddp->params[piece.param], p, &piece);
            p->nonfinite =
                p->n_nonfinite > before && piece.param < p->nonfinite ? piece.param : p->nonfinite;
        }
    }
    return DTR_OK;
}

dtr_status dtr__grads_over(dtr_ddp *ddp, const dtr_zero *z, dtr__grads_pass *p) {
    dtr__device_pass there = { .ddp = ddp }, *device = dtr__ddp_on_device(ddp) ? &there : NULL;
    dtr_status s = z == NULL ? over_all(ddp, p, device) : over_shard(z, p, device);
    s = s == DTR_OK && device != NULL ? dtr__device_pass_run(device, p) : s;
    dtr__device_pass_free(&there);
    return s;
}

/* ---- the module ---- */

dtr_status dtr__grads_reduce(dtr_ddp *ddp, uint64_t *numbers, size_t n, dtr_op op,
                             const char *label, uint64_t part) {
    dtr__request r = {
        .kind = DTR__K_ALLREDUCE,
        .op = op,
        .root = -1,
        .in = dtr_cpu(numbers, n, DTR_I64),
        .out = dtr_cpu(numbers, n, DTR_I64),
    };
    return ddp->size > 1 ? dtr__ddp_issue(ddp, &r, label, part, NULL) : DTR_OK;
}

dtr_status dtr__grads_enter(dtr_ddp *ddp, const dtr_zero *z, const char *need, const char *entry) {
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    if (ddp->reducer->step.fn != NULL) {
        return dtr__ddp_failed(
            ddp, DTR_FAIL(&ctx, DTR_ERR_UNSUPPORTED,
                          "%s: the module steps parameters while backward runs "
                          "(dtr_ddp_set_step), before %s can be known; step them after "
                          "dtr_ddp_backward_end",
                          entry, need));
    }
    int idle = DTR__DDP_IDLE;
    if (!atomic_compare_exchange_strong(&ddp->state, &idle, DTR__DDP_BUSY)) {
        return dtr__ddp_refuse(ddp, entry, "it follows dtr_ddp_backward_end");
    }
    if (!ddp->it.averaged || (z != NULL && !dtr__zero_is_due(z))) {
        return dtr__ddp_leave(
            ddp, DTR_FAIL(NULL, DTR_ERR_STATE,
                          "%s: there are no averages: it follows a dtr_ddp_backward_end with sync "
                          "that succeeded, and comes before the step",
                          entry));
    }
    return DTR_OK;
}
