/* A loss scale on which all ranks agree: what one rank finds in its averages goes to all in one
 * reduction, together with the scale itself. */
#define DTR_NO_CALL_SITE
#include <dtr/loss_scale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "core/call_site.h"
#include "grads.h"
#include "kernels/kernels.h"
#include "optim_internal.h"

#define MAGIC UINT64_C(0x6474725f7363616c)

struct dtr_loss_scale {
    uint64_t magic;
    dtr_ddp *ddp;
    dtr_loss_scale_options o;
    dtr_loss_scale_state now;
    enum { NOT_LOOKED, FINITE, NOT_FINITE } found; /* in the averages, since the last update */
    double divided;                                /* by what the averages have been divided: 1 or
                                                      the scale */
};

static dtr_status check(const dtr_loss_scale *l, const char *entry) {
    DTR_TRY(dtr__fork_check(entry));
    DTR_REQUIRE(l != NULL && l->magic == MAGIC, NULL, DTR_ERR_ARG,
                "%s: the pointer %p is no loss scale, or a destroyed one", entry, (const void *)l);
    return DTR_OK;
}

/* ---- options ---- */

static dtr_status need(bool good, const char *name, double x, const char *what) {
    DTR_REQUIRE(good, NULL, DTR_ERR_ARG, "dtr_loss_scale_options.%s is %g: give %s", name, x, what);
    return DTR_OK;
}

static dtr_status read_options(const dtr_loss_scale_options *given, dtr_loss_scale_options *o) {
    DTR_TRY(dtr__options_copy(given, o, sizeof *o, "dtr_loss_scale_options"));
    o->initial = o->initial == 0 ? 65536 : o->initial;
    o->growth = o->growth == 0 ? 2 : o->growth;
    o->backoff = o->backoff == 0 ? 0.5 : o->backoff;
    o->interval = o->interval == 0 ? 2000 : o->interval;
    o->least = o->least == 0 ? 1 : o->least;
    o->most = o->most == 0 ? 1 << 24 : o->most;
    DTR_TRY(need(o->growth > 1 && isfinite(o->growth), "growth", o->growth, "a number above 1"));
    DTR_TRY(
        need(o->backoff > 0 && o->backoff < 1, "backoff", o->backoff, "a number between 0 and 1"));
    /* So that dividing by it is exact in float where it is a power of two. */
    DTR_TRY(need(o->least >= 0x1p-100 && o->least <= 0x1p100, "least", o->least,
                 "a number from 2^-100 to 2^100"));
    DTR_TRY(need(o->most >= o->least && o->most <= 0x1p100, "most", o->most,
                 "a number from `least` to 2^100"));
    return need(o->initial >= o->least && o->initial <= o->most, "initial", o->initial,
                "a number from `least` to `most`");
}

dtr_status dtr_loss_scale_create(dtr_ddp *ddp, const dtr_loss_scale_options *options,
                                 dtr_loss_scale **scale) {
    static const char entry[] = "dtr_loss_scale_create";
    dtr_loss_scale_options o;
    DTR_TRY(dtr__ddp_check(ddp, entry));
    DTR_TRY(read_options(options, &o));
    DTR_REQUIRE(scale != NULL, NULL, DTR_ERR_ARG, "%s: scale is NULL, the result has no place",
                entry);
    dtr_loss_scale *l = malloc(sizeof *l);
    DTR_REQUIRE(l != NULL, NULL, DTR_ERR_NOMEM, "%s: no memory", entry);
    *l = (dtr_loss_scale){ .magic = MAGIC,
                           .ddp = ddp,
                           .o = o,
                           .now = { .struct_size = sizeof l->now, .value = o.initial } };
    *scale = l;
    return DTR_OK;
}

dtr_status dtr_loss_scale_destroy(dtr_loss_scale *l) {
    if (l == NULL) {
        return DTR_OK;
    }
    DTR_TRY(check(l, "dtr_loss_scale_destroy"));
    l->magic = 0;
    free(l);
    return DTR_OK;
}

double dtr_loss_scale_value(const dtr_loss_scale *l) {
    return l != NULL && l->magic == MAGIC ? l->now.value : 1;
}

/* ---- looking ---- */

/* What ranks bring to the reduction by MAX: how near to the beginning of the list the first bad
 * parameter is, and the bits of the scale, which is positive, in two ways: they are equal where the
 * scales are. */
static dtr_status agree(dtr_loss_scale *l, size_t nonfinite, size_t *first, const char *entry) {
    dtr_ddp *ddp = l->ddp;
    uint64_t bits, n[3];
    memcpy(&bits, &l->now.value, sizeof bits);
    n[0] = nonfinite == DTR__NONE ? 0 : ddp->n - nonfinite;
    n[1] = bits;
    n[2] = ~bits; /* -1 - bits as a signed number */
    DTR_TRY(dtr__grads_reduce(ddp, n, 3, DTR_MAX, "ddp loss scale", DTR__PART_SCALE));
    DTR_REQUIRE(n[1] == ~n[2], NULL, DTR_ERR_MISMATCH,
                "%s: the scale is %g on rank %d and another number on another rank; make it, and "
                "restore it, alike on all ranks",
                entry, l->now.value, ddp->rank);
    *first = n[0] == 0 ? DTR__NONE : ddp->n - (size_t)n[0];
    return DTR_OK;
}

static dtr_status look_inside(dtr_loss_scale *l, bool divide, const char *entry) {
    dtr_ddp *ddp = l->ddp;
    dtr__grads_pass p = { .what = DTR__GRADS_FINITE, .nonfinite = DTR__NONE };
    size_t first = DTR__NONE;
    DTR_TRY(dtr__grads_over(ddp, ddp->zero, &p));
    DTR_TRY(agree(l, p.nonfinite, &first, entry));
    if (first != DTR__NONE) {
        DTR_INFO(ddp->world,
                 "the averages of parameter '%s' (%zu) are not finite at a loss scale of %g: the "
                 "step is left out",
                 ddp->params[first].name, first, l->now.value);
    } else if (divide) {
        dtr__grads_pass scale = { .what = DTR__GRADS_SCALE,
                                  .factor = dtr__quotient(1, l->now.value) };
        DTR_TRY(dtr__grads_over(ddp, ddp->zero, &scale));
    }
    l->found = first == DTR__NONE ? FINITE : NOT_FINITE;
    l->divided = divide ? l->now.value : 1;
    return DTR_OK;
}

static dtr_status look(dtr_loss_scale *l, bool divide, const char *entry) {
    dtr_ddp *ddp = l->ddp;
    DTR_TRY(dtr__grads_enter(ddp, ddp->zero, "whether they are finite", entry));
    return dtr__ddp_leave(ddp, look_inside(l, divide, entry));
}

/* ---- the calls of an iteration ---- */

static dtr_status check_types(const dtr_ddp *ddp, const char *entry) {
    for (size_t i = 0; i < ddp->n; i++) {
        const dtr__ddp_param *p = &ddp->params[i];
        DTR_REQUIRE(!dtr__optim_has(ddp, i) || p->value->dtype != DTR_F16, NULL,
                    DTR_ERR_UNSUPPORTED,
                    "%s: parameter '%s' (%zu) is f16, in which small averages vanish when they are "
                    "divided: dtr_loss_scale_step divides them while it steps",
                    entry, p->name, i);
    }
    return DTR_OK;
}

static dtr_status unscale(dtr_loss_scale *l, bool *finite) {
    static const char entry[] = "dtr_loss_scale_unscale";
    DTR_TRY(check(l, entry));
    DTR_TRY(dtr__ddp_check(l->ddp, entry));
    DTR_REQUIRE(finite != NULL, NULL, DTR_ERR_ARG, "%s: finite is NULL", entry);
    DTR_REQUIRE(l->found == NOT_LOOKED, NULL, DTR_ERR_STATE,
                "%s: called a second time; dtr_loss_scale_update, or dtr_loss_scale_step, ends an "
                "iteration",
                entry);
    DTR_TRY(check_types(l->ddp, entry));
    DTR_TRY(look(l, true, entry));
    *finite = l->found == FINITE;
    return DTR_OK;
}

dtr_status dtr_loss_scale_unscale(dtr_loss_scale *l, bool *finite) {
    DTR_HOLD_CALL_SITE;
    return unscale(l, finite);
}

static double within(const dtr_loss_scale *l, double value) {
    return fmin(fmax(value, l->o.least), l->o.most);
}

dtr_status dtr_loss_scale_update(dtr_loss_scale *l) {
    DTR_TRY(check(l, "dtr_loss_scale_update"));
    DTR_REQUIRE(l->found != NOT_LOOKED, NULL, DTR_ERR_STATE,
                "dtr_loss_scale_update: nothing is known of the averages of this iteration: it "
                "follows dtr_loss_scale_unscale");
    if (l->found == NOT_FINITE) {
        l->now.value = within(l, dtr__product(l->now.value, l->o.backoff));
        l->now.good = 0;
        l->now.skipped++;
    } else if (++l->now.good >= l->o.interval) {
        l->now.value = within(l, dtr__product(l->now.value, l->o.growth));
        l->now.good = 0;
    }
    l->found = NOT_LOOKED;
    return DTR_OK;
}

static dtr_status step(dtr_loss_scale *l, dtr_optim *optim, bool *stepped) {
    static const char entry[] = "dtr_loss_scale_step";
    DTR_TRY(check(l, entry));
    DTR_TRY(dtr__optim_check(optim, entry));
    DTR_TRY(dtr__ddp_check(l->ddp, entry));
    DTR_REQUIRE(optim->ddp == l->ddp, NULL, DTR_ERR_ARG,
                "%s: the optimizer is of another module than the loss scale", entry);
    if (l->found == NOT_LOOKED) {
        DTR_TRY(look(l, false, entry));
    }
    const bool good = l->found == FINITE;
    dtr_status s =
        good ? dtr__optim_step(optim, l->divided == 1 ? l->now.value : 1, entry) : DTR_OK;
    if (s < 0) {
        l->found = l->divided == 1 ? NOT_LOOKED : l->found;
        return s;
    }
    if (stepped != NULL) {
        *stepped = good;
    }
    return dtr_loss_scale_update(l);
}

dtr_status dtr_loss_scale_step(dtr_loss_scale *l, dtr_optim *optim, bool *stepped) {
    DTR_HOLD_CALL_SITE;
    return step(l, optim, stepped);
}

/* ---- going on later ---- */

dtr_status dtr_loss_scale_get_state(const dtr_loss_scale *l, dtr_loss_scale_state *state) {
    DTR_TRY(check(l, "dtr_loss_scale_get_state"));
    DTR_REQUIRE(state != NULL && state->struct_size > 0, NULL, DTR_ERR_ARG,
                "dtr_loss_scale_get_state: state is NULL, or its struct_size 0: begin with "
                "DTR_LOSS_SCALE_STATE_INIT");
    dtr_loss_scale_state own = l->now;
    own.struct_size = state->struct_size;
    memcpy(state, &own, own.struct_size < sizeof own ? own.struct_size : sizeof own);
    return DTR_OK;
}

dtr_status dtr_loss_scale_set_state(dtr_loss_scale *l, const dtr_loss_scale_state *state) {
    DTR_TRY(check(l, "dtr_loss_scale_set_state"));
    DTR_REQUIRE(state != NULL && state->struct_size >= sizeof *state, NULL, DTR_ERR_ARG,
                "dtr_loss_scale_set_state: state is NULL, or its struct_size too small: begin with "
                "DTR_LOSS_SCALE_STATE_INIT");
    DTR_REQUIRE(state->value >= l->o.least && state->value <= l->o.most, NULL, DTR_ERR_ARG,
                "dtr_loss_scale_set_state: value is %g, and the scale stays between %g and %g",
                state->value, l->o.least, l->o.most);
    l->now = *state;
    l->now.struct_size = sizeof l->now;
    l->found = NOT_LOOKED;
    return DTR_OK;
}
