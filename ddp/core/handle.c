/* What every call on a module begins with: is it one, in which state is it, does the parameter
 * exist. */
#include "ddp_internal.h"

dtr_status dtr__ddp_check(const dtr_ddp *ddp, const char *entry) {
    DTR_TRY(dtr__fork_check(entry));
    DTR_REQUIRE(ddp != NULL, NULL, DTR_ERR_ARG, "%s: ddp is NULL", entry);
    DTR_REQUIRE(ddp->magic == DTR__DDP_MAGIC, NULL, DTR_ERR_ARG,
                "%s: the pointer %p is no module, or a destroyed one", entry, (const void *)ddp);
    DTR_REQUIRE(ddp->world != NULL, NULL, DTR_ERR_STATE,
                "%s: the world of this module has been destroyed; only dtr_ddp_destroy is left",
                entry);
    if (atomic_load(&ddp->state) == DTR__DDP_FAILED) {
        return dtr__error_restore(ddp->errors.failure, (dtr_status)ddp->errors.failure_status);
    }
    return DTR_OK;
}

const char *dtr__ddp_state_name(int state) {
    static const char *const names[] = {
        [DTR__DDP_IDLE] = "no iteration is open",
        [DTR__DDP_FORWARD] = "a forward pass is open",
        [DTR__DDP_ARMED] = "the forward pass has ended",
        [DTR__DDP_LOCAL] = "a backward pass without sync is open",
        [DTR__DDP_REDUCING] = "a backward pass is open",
        [DTR__DDP_BUSY] = "another call of the module is running",
        [DTR__DDP_FAILED] = "the module has failed",
    };
    return names[state];
}

dtr_status dtr__ddp_refuse(dtr_ddp *ddp, const char *entry, const char *hint) {
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    return dtr__ddp_failed(ddp, DTR_FAIL(&ctx, DTR_ERR_STATE, "%s: %s; %s", entry,
                                         dtr__ddp_state_name(atomic_load(&ddp->state)), hint));
}

dtr_status dtr__ddp_refuse_sharded(const dtr_ddp *ddp, const char *entry) {
    DTR_REQUIRE(ddp->zero == NULL, NULL, DTR_ERR_STATE,
                "%s: the module has a sharded optimizer (dtr_zero_create), which does not work "
                "with it",
                entry);
    return DTR_OK;
}

dtr_status dtr__ddp_occupy(dtr_ddp *ddp, const char *entry, const char *hint) {
    int idle = DTR__DDP_IDLE;
    return atomic_compare_exchange_strong(&ddp->state, &idle, DTR__DDP_BUSY)
               ? DTR_OK
               : dtr__ddp_refuse(ddp, entry, hint);
}

/* ---- parameters ---- */

const char *dtr__ddp_why_no_grad(const dtr__ddp_param *p) {
    return p->flags & DTR_PARAM_IGNORED ? "ignored" : p->delayed ? "delayed" : "frozen";
}

/* A shared parameter stands for its first entry. */
static dtr_status find(dtr_ddp *ddp, const char *where, size_t *i, bool delayed_too) {
    dtr__error_context ctx = dtr__ddp_context(ddp, where);
    if (*i >= ddp->n) {
        return dtr__ddp_failed(ddp, DTR_FAIL(&ctx, DTR_ERR_ARG,
                                             "%s: there is no parameter %zu, the module has %zu",
                                             where, *i, ddp->n));
    }
    size_t first = ddp->params[*i].same_as;
    const dtr__ddp_param *p = &ddp->params[first];
    if (!p->trainable && !(p->delayed && delayed_too)) {
        return dtr__ddp_failed(
            ddp, DTR_FAIL(&ctx, DTR_ERR_ARG, "%s: parameter '%s' (%zu) is %s and has no gradient%s",
                          where, ddp->params[*i].name, *i, dtr__ddp_why_no_grad(p),
                          p->delayed ? " of its own there: report the trigger" : ""));
    }
    *i = first;
    return DTR_OK;
}

dtr_status dtr__ddp_grad_index(dtr_ddp *ddp, const char *where, size_t *i) {
    return find(ddp, where, i, true);
}

dtr_status dtr__ddp_trainable_index(dtr_ddp *ddp, const char *where, size_t *i) {
    return find(ddp, where, i, false);
}
