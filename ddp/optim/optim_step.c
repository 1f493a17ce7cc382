/* Steps of the library's optimizers. */
#include <math.h>

#include "base/float_mode.h"
#include "core/call_site.h"
#include "ddp_clip.h"
#include "kernels/kernels.h"
#include "optim_internal.h"

#define REAL float
#define NAME(x) x##_float
#define ROOT sqrtf
#include "optim_rule.h"
#undef REAL
#undef NAME
#undef ROOT

#define REAL double
#define NAME(x) x##_double
#define ROOT sqrt
#include "optim_rule.h"
#undef REAL
#undef NAME
#undef ROOT

/* ---- one stretch, all of it with decay or without ---- */

static float *floats(const dtr__optim_part *part, int array, size_t at) {
    return part->array[array] != NULL ? (float *)part->array[array] + at : NULL;
}

static double *doubles(const dtr__optim_part *part, int array, size_t at) {
    return part->array[array] != NULL ? (double *)part->array[array] + at : NULL;
}

/* Parameters of 16 bits are rounded from their master copies, which follow changes of others. */
static void run_narrow(const dtr_optim *o, const dtr__optim_part *part, bool decays, size_t at,
                       dtr_buffer param, dtr_buffer grad) {
    enum { BLOCK = 512 };
    const float factor = (float)o->grad_factor;
    float g[BLOCK], seen[BLOCK];
    uint16_t own[BLOCK];
    for (size_t from = 0; from < param.count; from += BLOCK) {
        size_t n = param.count - from < BLOCK ? param.count - from : BLOCK;
        uint16_t *p = (uint16_t *)param.data + from;
        float *master = floats(part, 2, at + from);
        dtr__convert(own, param.dtype, master, DTR_F32, n);
        dtr__convert(seen, DTR_F32, p, param.dtype, n);
        for (size_t k = 0; k < n; k++) {
            master[k] = own[k] == p[k] ? master[k] : seen[k];
        }
        dtr__convert(g, DTR_F32, (const uint16_t *)grad.data + from, grad.dtype, n);
        for (size_t k = 0; factor != 1 && k < n; k++) {
            g[k] *= factor;
        }
        run_float(o, decays, master, g, floats(part, 0, at + from), floats(part, 1, at + from), n);
        dtr__convert(p, param.dtype, master, DTR_F32, n);
    }
}

static dtr_buffer cut(dtr_buffer b, size_t from, size_t to) {
    b.data = (char *)b.data + from * dtr_dtype_size(b.dtype);
    b.count = to - from;
    return b;
}

static void run_part(const dtr_optim *o, const dtr__optim_part *part, bool decays, size_t at,
                     dtr_buffer param, dtr_buffer grad) {
    if (param.dtype == DTR_F64) {
        run_double(o, decays, param.data, grad.data, doubles(part, 0, at), doubles(part, 1, at),
                   param.count);
    } else if (param.dtype == DTR_F32) {
        run_float(o, decays, param.data, grad.data, floats(part, 0, at), floats(part, 1, at),
                  param.count);
    } else {
        run_narrow(o, part, decays, at, param, grad);
    }
}

/* Averages that are scaled stay so: a copy of some of them is divided. Those of 16 bits are divided
 * when they have 32. */
static __attribute__((noinline)) void run(const dtr_optim *o, const dtr__optim_part *part,
                                          bool decays, size_t at, dtr_buffer param,
                                          dtr_buffer grad) {
    enum { BLOCK = 512 };
    double some[BLOCK];
    if (o->grad_factor == 1 || dtr_dtype_size(param.dtype) == 2) {
        run_part(o, part, decays, at, param, grad);
        return;
    }
    for (size_t from = 0; from < param.count; from += BLOCK) {
        const size_t to = param.count - from < BLOCK ? param.count : from + BLOCK;
        const dtr_buffer own = { some, to - from, grad.dtype, grad.device };
        dtr__premul(some, cut(grad, from, to).data, to - from, grad.dtype, o->grad_factor);
        run_part(o, part, decays, at + from, cut(param, from, to), own);
    }
}

/* One more stretch for the launch. */
static dtr_status put(const dtr_optim *o, const dtr__optim_part *part, bool decays, size_t at,
                      dtr_buffer param, dtr_buffer grad) {
    return dtr__stretches_add(o->ddp, part->table, param.data, grad.data, param.count,
                              at | (decays ? 0 : DTR__STEP_PLAIN));
}

/* Elements `first` and up of one part, cut where decay begins and ends. */
static dtr_status update(const dtr_optim *o, size_t first, dtr_buffer param, dtr_buffer grad) {
    const dtr__optim_part *part = &o->part[param.dtype];
    size_t end = first + param.count, r = 0;
    dtr_status s = DTR_OK;
    const dtr__float_mode mode = dtr__float_enter();
    for (size_t at = first; at < end && s == DTR_OK;) {
        while (r < part->n_undecayed && part->undecayed[r].end <= at) {
            r++;
        }
        bool plain = r < part->n_undecayed && part->undecayed[r].begin <= at;
        size_t to = r >= part->n_undecayed ? end
                    : plain                ? part->undecayed[r].end
                                           : part->undecayed[r].begin;
        to = to < end ? to : end;
        const dtr_buffer p = cut(param, at - first, to - first);
        const dtr_buffer g = cut(grad, at - first, to - first);
        if (part->table != NULL) {
            s = put(o, part, !plain, at, p, g);
        } else {
            run(o, part, !plain, at, p, g);
        }
        at = to;
    }
    dtr__float_leave(mode);
    return s;
}

/* ---- on a device ---- */

static __attribute__((noinline)) void set_numbers(const dtr_optim *o, dtr__step_head *h) {
    h->with_float = numbers_of_float(o);
    h->with_double = numbers_of_double(o);
}

/* What the kernels of this step read. */
static void begin(const dtr_optim *o) {
    dtr__step_head head = { .factor = o->grad_factor, .decay = o->o.weight_decay };
    head.flags = (o->o.nesterov ? DTR__STEP_NESTEROV : 0) |
                 (o->o.rule == DTR_OPTIM_ADAMW ? DTR__STEP_APART : 0);
    const dtr__float_mode mode = dtr__float_enter();
    set_numbers(o, &head);
    dtr__float_leave(mode);
    for (int d = 0; d < DTR__ZERO_TYPES; d++) {
        const dtr__optim_part *part = &o->part[d];
        if (part->table != NULL) {
            head.m = part->array[0];
            head.v = part->array[1];
            head.master = part->array[2];
            part->table->args.head = head;
        }
    }
}

/* A dtr_zero_update. */
static dtr_status update_slice(void *state, size_t first, dtr_buffer param, dtr_buffer grad) {
    const dtr_optim *o = state;
    DTR_TRY(update(o, first, param, grad));
    dtr__stretches *t = o->part[param.dtype].table;
    return t != NULL ? dtr__stretches_launch(o->ddp, t) : DTR_OK;
}

static dtr_status launch_all(const dtr_optim *o) {
    dtr_status s = DTR_OK;
    for (int d = 0; d < DTR__ZERO_TYPES; d++) {
        if (o->part[d].table != NULL && s == DTR_OK) {
            s = dtr__stretches_launch(o->ddp, o->part[d].table);
        }
    }
    return s;
}

/* ---- whole ---- */

/* Value and gradient lie element by element alike: in place. Else both are packed. */
static dtr_status step_param(dtr_optim *o, size_t i) {
    const dtr__ddp_param *p = &o->ddp->params[i];
    dtr_tensor *grad = dtr__ddp_final_grad(p), *value = p->value;
    bool alike = value->contiguous && grad->contiguous;
    dtr_tensor *packed = NULL, *packed_grad = NULL;
    dtr_status s = DTR_OK;
    if (!alike) {
        s = dtr__tensor_new(value->dtype, value->ndim, value->shape, &packed);
        s = s < 0 ? s : dtr__tensor_new(value->dtype, value->ndim, value->shape, &packed_grad);
    }
    if (s == DTR_OK && !alike) {
        dtr__tensor_copy_raw(packed, value);
        dtr__tensor_copy_raw(packed_grad, grad);
    }
    if (s == DTR_OK) {
        s = update(o, o->begin[i], dtr_tensor_buffer(alike ? value : packed),
                   dtr_tensor_buffer(alike ? grad : packed_grad));
    }
    if (s == DTR_OK && !alike) {
        dtr__tensor_copy_raw(value, packed);
    }
    dtr_tensor_release(packed);
    dtr_tensor_release(packed_grad);
    return s;
}

static dtr_status step_whole(dtr_optim *o, const char *entry) {
    dtr_ddp *ddp = o->ddp;
    DTR_TRY(dtr__ddp_check(ddp, entry));
    if (atomic_load(&ddp->state) != DTR__DDP_IDLE) {
        return dtr__ddp_refuse(ddp, entry, "it follows dtr_ddp_backward_end");
    }
    DTR_TRY(dtr__ddp_refuse_sharded(ddp, entry));
    for (size_t i = 0; i < ddp->n; i++) {
        const dtr__ddp_param *p = &ddp->params[i];
        if (dtr__optim_has(ddp, i) && atomic_load(&p->defined) &&
            (p->full != NULL || atomic_load(&p->grad) != NULL)) {
            DTR_TRY(step_param(o, i));
        }
    }
    return launch_all(o);
}

dtr_status dtr__optim_step(dtr_optim *o, double scale, const char *entry) {
    DTR_TRY(dtr__optim_check(o, entry));
    if (o->o.max_norm > 0) {
        DTR_TRY(dtr__ddp_clip(o->ddp, o->zero, dtr__product(o->o.max_norm, scale), NULL, entry));
    }
    o->grad_factor = dtr__quotient(1, scale);
    o->steps++;
    begin(o);
    dtr_status s = o->zero != NULL ? dtr_zero_step(o->zero, update_slice, o) : step_whole(o, entry);
    o->steps -= s < 0 ? 1 : 0;
    return s;
}

dtr_status dtr_optim_step(dtr_optim *o) {
    DTR_HOLD_CALL_SITE;
    return dtr__optim_step(o, 1, "dtr_optim_step");
}
