/* Moving a module to another group: the ranks that go on compare their models there, and the
 * module starts anew on duplicates of it; parameters and gradients stay as they are. */
#include <stdlib.h>

#include "ddp_internal.h"

void dtr__ddp_group_adopt(dtr_ddp *ddp, const dtr_group *parent) {
    if (ddp->set.timeout_s > 0) {
        ddp->group->timeout_s = ddp->group->timeout_cuda_s = ddp->set.timeout_s;
    }
    if (dtr__ddp_on_device(ddp) && (ddp->set.flags & DTR_DDP_CHECK_NAN) == 0) {
        return; /* the collectives look for NaN themselves, and nobody waits */
    }
    if (parent->nan_check > 0 || (parent->nan_check == 0 &&
                                  dtr__opt_number(&ddp->world->options, DTR__OPT_NAN_CHECK) != 0)) {
        ddp->set.flags |= DTR_DDP_CHECK_NAN; /* here, where the parameter can be named */
    }
    ddp->group->nan_check = -1;
}

static void use(dtr_ddp *ddp, dtr_group *group) {
    ddp->group = group;
    ddp->rank = group->rank;
    ddp->size = group->size;
    ddp->id = (unsigned)(dtr__group_number(group) & 0xffff);
}

/* Those left out may come much later: the old group ends on this rank now, and is broken for them.
 * Everybody who goes on has left its last iteration. */
static void end_old(dtr_ddp *ddp, dtr_group *old) {
    dtr__error_context ctx = { .world = ddp->world, .operation = "dtr_ddp_set_group" };
    (void)DTR_FAIL(&ctx, DTR_ERR_ABORTED,
                   "the module has been moved to another group by dtr_ddp_set_group on rank %d",
                   old->rank);
    for (int d = 0; d < DTR__HOOK_DEPTHS; d++) {
        if (ddp->hook.group[d] != NULL) {
            dtr__group_break(ddp->hook.group[d], DTR_ERR_ABORTED);
        }
    }
    dtr__ddp_hook_groups_free(ddp);
    if (ddp->delayed.group != NULL) {
        dtr__group_break(ddp->delayed.group, DTR_ERR_ABORTED);
        (void)dtr_group_destroy(ddp->delayed.group);
    }
    dtr__group_break(old, DTR_ERR_ABORTED);
    (void)dtr_group_destroy(old);
}

/* What was learned of the old group's ranks. */
static void forget(dtr_ddp *ddp) {
    ddp->learned = ddp->learned_here = false;
    ddp->rebuild_due = !ddp->set.find_unused && ddp->n_trainable > 0;
    ddp->used_set_constant = true;
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        p->learned = 0;
        p->used_anywhere = p->was_used = false;
        atomic_store(&p->used, false);
    }
    if (ddp->hook.forget != NULL) {
        ddp->hook.forget(ddp->hook.state);
    }
    ddp->hook.ready = false;
}

static dtr_status move(dtr_ddp *ddp, dtr_group *group, const char *entry) {
    dtr__error_context ctx = { .world = ddp->world, .operation = entry, .group = group->name };
    DTR_REQUIRE(group->world == ddp->world, &ctx, DTR_ERR_ARG,
                "%s: group '%s' belongs to another world than the module", entry, group->name);
    char name[64];
    snprintf(name, sizeof name, "%.55s.ddp", group->name);
    dtr_group *fresh = NULL, *old = ddp->group;
    DTR_TRY(dtr__group_dup(group, name, &fresh));
    use(ddp, fresh);
    char *backend = strdup(group->backend_chosen != NULL ? group->backend_chosen : "");
    dtr_status s =
        backend != NULL ? DTR_OK : DTR_FAIL(&ctx, DTR_ERR_NOMEM, "%s: out of memory", entry);
    s = dtr__ddp_verify(ddp, s);
    dtr_group *apart = NULL;
    s = s == DTR_OK ? dtr__ddp_delayed_connect(ddp, &apart) : s;
    if (s < 0) {
        dtr__error_copy *cause = dtr__error_save();
        (void)dtr_group_destroy(fresh);
        use(ddp, old);
        s = dtr__error_restore(cause, s);
        dtr__error_copy_free(cause);
        free(backend);
        return s;
    }
    end_old(ddp, old);
    ddp->delayed.group = apart;
    dtr__ddp_group_adopt(ddp, group);
    forget(ddp);
    pthread_mutex_lock(&ddp->stats_lock);
    free(ddp->backend);
    ddp->backend = backend;
    pthread_mutex_unlock(&ddp->stats_lock);
    dtr__ddp_label_buckets(ddp);
    (void)dtr__ddp_describe(ddp); /* without memory the older text stays */
    return dtr__ddp_device_tell(ddp);
}

/* This rank takes no further part. */
static void leave(dtr_ddp *ddp, const char *entry) {
    dtr__error_context ctx = { .world = ddp->world, .operation = entry, .group = ddp->group->name };
    dtr_status s = DTR_FAIL(&ctx, DTR_ERR_STATE,
                            "this rank has left the module (dtr_ddp_set_group with NULL); only "
                            "dtr_ddp_destroy is left");
    pthread_mutex_lock(&ddp->lock);
    ddp->failure = dtr__error_save();
    ddp->failure_status = s;
    atomic_store(&ddp->state, DTR__DDP_FAILED);
    pthread_mutex_unlock(&ddp->lock);
}

static dtr_status ddp_set_group(dtr_ddp *ddp, dtr_group *group) {
    static const char entry[] = "dtr_ddp_set_group";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    if (group != NULL) {
        dtr_status s = dtr__group_check(group, entry);
        if (s != DTR_OK) {
            return s < 0 ? dtr__ddp_failed(ddp, s) : s;
        }
    }
    if (ddp->join.begun) {
        return dtr__ddp_refuse(ddp, entry, "a join is open, end it first");
    }
    dtr_status sharded = dtr__zero_refuse(ddp, entry);
    if (sharded < 0) {
        return dtr__ddp_failed(ddp, sharded);
    }
    if (ddp->zero != NULL) {
        return dtr__ddp_refuse(ddp, entry,
                               "its sharded optimizer belongs to the old group, destroy it first");
    }
    int idle = DTR__DDP_IDLE;
    if (!atomic_compare_exchange_strong(&ddp->state, &idle, DTR__DDP_BUSY)) {
        return dtr__ddp_refuse(ddp, entry, "change the group between iterations");
    }
    if (group == NULL) {
        leave(ddp, entry);
        return DTR_OK;
    }
    (void)dtr__ddp_buffers_wait(ddp); /* of a forward pass that was dropped */
    dtr_status s = move(ddp, group, entry);
    atomic_store(&ddp->state, DTR__DDP_IDLE);
    return s < 0 ? dtr__ddp_failed(ddp, s) : s;
}

dtr_status dtr_ddp_set_group(dtr_ddp *ddp, dtr_group *group) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_set_group", ddp_set_group(ddp, group));
}
