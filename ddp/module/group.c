/* Moving a module to another group: the ranks that go on compare their models there, and the
 * module starts anew on duplicates of it; parameters and gradients stay as they are. */
#include <stdlib.h>

#include "core/call_site.h"
#include "core/team.h"
#include "engine/engine.h"
#include "group/groups.h"
#include "module.h"

dtr_status dtr__ddp_group_dup(dtr_group *parent, dtr_group **group) {
    char name[64];
    snprintf(name, sizeof name, "%.55s.ddp", parent->name);
    return dtr__group_dup(parent, name, group);
}

char *dtr__ddp_backend_of(const dtr_group *group) {
    return strdup(group->backends.chosen != NULL ? group->backends.chosen : "");
}

void dtr__ddp_group_adopt(dtr_ddp *ddp, const dtr_group *parent) {
    if (ddp->set.timeout_s > 0) {
        dtr__group_set_limits(ddp->group, ddp->set.timeout_s, ddp->set.timeout_s);
    }
    if (dtr__ddp_on_device(ddp) && (ddp->set.flags & DTR_DDP_CHECK_NAN) == 0) {
        return; /* the collectives look for NaN themselves, and nobody waits */
    }
    if (parent->asked.nan_check > 0 ||
        (parent->asked.nan_check == 0 &&
         dtr__opt_number(&ddp->world->options, DTR__OPT_NAN_CHECK) != 0)) {
        ddp->set.flags |= DTR_DDP_CHECK_NAN; /* here, where the parameter can be named */
    }
    ddp->group->asked.nan_check = -1;
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
    dtr__ddp_hook_groups_break(ddp);
    dtr__ddp_hook_groups_free(ddp);
    if (ddp->reducer->delayed.group != NULL) {
        dtr__group_break(ddp->reducer->delayed.group, DTR_ERR_ABORTED);
        (void)dtr_group_destroy(ddp->reducer->delayed.group);
    }
    dtr__group_break(old, DTR_ERR_ABORTED);
    (void)dtr_group_destroy(old);
}

/* What was learned of the old group's ranks. */
static void forget(dtr_ddp *ddp) {
    ddp->reducer->late.pending = false; /* whoever had an error was told there */
    ddp->reducer->learned = ddp->reducer->learned_here = false;
    ddp->reducer->rebuild_due = !ddp->set.find_unused && ddp->n_trainable > 0;
    ddp->reducer->used_set_constant = true;
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        p->learned = 0;
        p->used_anywhere = p->was_used = false;
        atomic_store(&p->used, false);
    }
    dtr__ddp_hook_reset(ddp);
    if (ddp->hook == NULL) {
        dtr__ddp_choose_strategy(ddp);
    }
}

static dtr_status move(dtr_ddp *ddp, dtr_group *group, const char *entry) {
    dtr__error_context ctx = { .world = ddp->world, .operation = entry, .group = group->name };
    DTR_REQUIRE(group->world == ddp->world, &ctx, DTR_ERR_ARG,
                "%s: group '%s' belongs to another world than the module", entry, group->name);
    dtr_group *fresh = NULL, *old = ddp->group;
    DTR_TRY(dtr__ddp_group_dup(group, &fresh));
    use(ddp, fresh);
    char *backend = dtr__ddp_backend_of(group);
    dtr_status s =
        backend != NULL ? DTR_OK : DTR_FAIL(&ctx, DTR_ERR_NOMEM, "%s: out of memory", entry);
    s = dtr__ddp_verify(ddp, s);
    dtr_group *apart = NULL;
    s = s == DTR_OK ? dtr__ddp_delayed_connect(ddp, &apart) : s;
    if (s < 0) {
        dtr__error_copy *cause = dtr__error_save();
        (void)dtr_group_destroy(fresh);
        use(ddp, old);
        free(backend);
        return dtr__error_put_back(cause, s);
    }
    end_old(ddp, old);
    ddp->reducer->delayed.group = apart;
    dtr__ddp_group_adopt(ddp, group);
    forget(ddp);
    pthread_mutex_lock(&ddp->stats.lock);
    free(ddp->stats.backend);
    ddp->stats.backend = backend;
    pthread_mutex_unlock(&ddp->stats.lock);
    dtr__ddp_label_buckets(ddp);
    (void)dtr__ddp_describe(ddp); /* without memory the older text stays */
    return dtr__ddp_device_register(ddp);
}

/* This rank takes no further part. */
static void leave(dtr_ddp *ddp, const char *entry) {
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    dtr_status s = DTR_FAIL(&ctx, DTR_ERR_STATE,
                            "this rank has left the module (dtr_ddp_set_group with NULL); only "
                            "dtr_ddp_destroy is left");
    pthread_mutex_lock(&ddp->lock);
    ddp->errors.failure = dtr__error_save();
    ddp->errors.failure_status = s;
    atomic_store(&ddp->state, DTR__DDP_FAILED);
    pthread_mutex_unlock(&ddp->lock);
}

static dtr_status ddp_set_group(dtr_ddp *ddp, dtr_group *group) {
    static const char entry[] = "dtr_ddp_set_group";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    if (group != NULL) {
        dtr_status s = dtr__group_check(group, entry);
        if (s != DTR_OK) {
            return dtr__ddp_result(ddp, s);
        }
    }
    if (ddp->reducer->join.begun) {
        return dtr__ddp_refuse(ddp, entry, "a join is open, end it first");
    }
    DTR_TRY(dtr__ddp_result(ddp, dtr__ddp_refuse_sharded(ddp, entry)));
    DTR_TRY(dtr__ddp_occupy(ddp, entry, "change the group between iterations"));
    if (group == NULL) {
        leave(ddp, entry);
        return DTR_OK;
    }
    (void)dtr__ddp_buffers_finish(ddp); /* of a forward pass that was dropped */
    dtr_status s = move(ddp, group, entry);
    atomic_store(&ddp->state, DTR__DDP_IDLE);
    return dtr__ddp_result(ddp, s);
}

dtr_status dtr_ddp_set_group(dtr_ddp *ddp, dtr_group *group) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_set_group", ddp_set_group(ddp, group));
}
