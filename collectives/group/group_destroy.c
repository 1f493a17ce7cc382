/* Destroying groups. A healthy group ends when all of its members have come; a broken one ends
 * alone and at once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/nccl/nccl_calls.h"
#include "core/work.h"
#include "engine/engine.h"
#include "failure/peer_failure.h"
#include "group/groups.h"

dtr_status dtr__agree_to_end(dtr_group *g, dtr_status drained, double limit_s) {
    bool world = dtr__group_is_world(g);
    const char *call = world ? "dtr_world_destroy" : "dtr_group_destroy";
    dtr__error_context ctx = { .world = g->world, .operation = call };
    char what[128];
    dtr__outcome out;
    dtr__entry *entry = calloc(1, sizeof(*entry));
    DTR_REQUIRE(entry != NULL, &ctx, DTR_ERR_NOMEM, "%s: no memory for the call", call);
    snprintf(what, sizeof(what), world ? "%s" : "%s of group \"%s\"", call, g->name);
    dtr__field_set(&entry->field[DTR__FIELD_CALL], call);
    dtr__field_set(&entry->field[DTR__FIELD_NAME], world ? "" : g->name);
    entry->scope = dtr__hash_set(g->world_ranks, g->size);
    entry->index = -1;
    entry->end = 1;
    entry->ends = g->uid;
    dtr__retired_offer(g->world, g->world_ranks, g->size, entry);
    entry->limit_s = limit_s;
    entry->status = (int32_t)drained;
    if (drained < 0) {
        snprintf(entry->text, sizeof(entry->text), "%s", dtr_last_error_message());
    }
    pthread_mutex_lock(&g->world->groups->creation);
    dtr_status s =
        dtr__agree(g->world, what, g->world_ranks, g->size, entry, world ? NULL : g, &out);
    if (s == DTR_OK) {
        dtr__retired_free_agreed(g->world, &out);
    }
    pthread_mutex_unlock(&g->world->groups->creation);
    free(entry);
    return s;
}

dtr_status dtr__group_take_down(dtr_group *g, double left_s) {
    dtr__group_unlist(g); /* first, so that nobody finds it half taken apart */
    dtr_status s = dtr__group_disconnect(g, dtr__ranks_reachable(g->world), left_s);
    if (s == DTR_OK) {
        dtr__group_strip(g);
        return DTR_OK;
    }
    char text[1024];
    snprintf(text, sizeof(text), "%s", dtr_last_error_message());
    dtr__peer_reported(g->world, g->world->rank, s, text);
    dtr__notifier_visit_now(g->world);
    return s;
}

/* Agree with the other members, or wait for them where some release it instead: *apart. */
static dtr_status agree_or_await(dtr_group *g, double end, bool *apart) {
    dtr_status s = DTR_ERR_STATE;
    if (atomic_load(&g->release.n_others) == 0) {
        s = dtr__agree_to_end(g, DTR_OK, fmax(end - dtr__now(), 0.0));
        dtr__notifier_visit_now(g->world);
    }
    *apart = s < 0 && atomic_load(&g->status) == DTR_OK && atomic_load(&g->release.n_others) > 0;
    return *apart ? dtr__group_await_released(g, fmax(end - dtr__now(), 0.0)) : s;
}

static dtr_status destroy_healthy(dtr_group *g) {
    double began = dtr__now(), left;
    dtr_status s = dtr__engine_drain(g, g->timeout_s);
    bool broken = atomic_load(&g->status) != DTR_OK, apart = false;
    if (s >= 0 && !broken) {
        s = agree_or_await(g, began + g->timeout_s, &apart);
        if (s == DTR_ERR_MISMATCH) { /* the members do different things: the group stays as it is */
            atomic_fetch_and(&g->aside, ~(unsigned)DTR__CLOSING);
            return s;
        }
        if (s < 0 && atomic_load(&g->status) != DTR_OK) {
            s = DTR_OK; /* broke while we waited: ends alone, as a broken group does */
        }
    }
    g->left_alone = s < 0;
    dtr__notifier_visit(g->world); /* others may wait to be notified that it broke here */
    dtr__error_copy *cause = s < 0 ? dtr__error_save() : NULL;
    left = fmax(g->timeout_s - (dtr__now() - began), 0.0);
    dtr_status down = apart ? dtr__group_take_down_apart(g, left) : dtr__group_take_down(g, left);
    (void)dtr__error_put_back(cause, down < 0 ? DTR_OK : s);
    return down < 0 ? down : s; /* what hangs is why the rest has not finished */
}

/* One reference less; true when it was not the last. */
static bool still_referenced(dtr_group *g) {
    pthread_mutex_lock(&g->world->groups->lock);
    bool referenced = g->label.tag_refs > 1;
    g->label.tag_refs -= referenced;
    pthread_mutex_unlock(&g->world->groups->lock);
    return referenced;
}

static dtr_status group_destroy(dtr_group *group) {
    if (group == NULL) {
        return DTR_OK;
    }
    DTR_TRY(dtr__group_check(group, "dtr_group_destroy"));
    dtr__error_context ctx = { .world = group->world,
                               .operation = "dtr_group_destroy",
                               .group = group->name };
    DTR_REQUIRE(!dtr__group_is_world(group), &ctx, DTR_ERR_ARG,
                "dtr_group_destroy: the world's own group ends with dtr_world_destroy");
    DTR_REQUIRE(!dtr__in_callback(group->world), &ctx, DTR_ERR_STATE,
                "dtr_group_destroy inside a completion callback would wait for itself; call it "
                "from the program's own thread");
    if (still_referenced(group)) {
        return DTR_OK;
    }
    DTR_REQUIRE(atomic_load(&group->status) != DTR_OK || !dtr__nccl_in_graphs(group), &ctx,
                DTR_ERR_STATE,
                "dtr_group_destroy: a graph of CUDA holds operations of group '%s', for which NCCL "
                "would wait; destroy the graph and all made of it first",
                group->name);
    dtr__groups_sweep(group->world);
    if (dtr__progress_stuck(group->world)) {
        dtr__group_unlist(group); /* all else may be in the hands of that thread */
        return DTR_OK;
    }
    if (!dtr__ranks_reachable(group->world)) {
        (void)dtr__group_take_down(group, group->timeout_s);
        return DTR_FAIL(&ctx, DTR_ERR_STATE,
                        "dtr_group_destroy: MPI_Finalize has been called before; what is local was "
                        "freed");
    }
    dtr__notifier_visit_now(group->world); /* others may have found it broken */
    if (atomic_load(&group->status) == DTR_OK) {
        return destroy_healthy(group);
    }
    (void)dtr__engine_drain(group, 0);
    return dtr__group_take_down(group, 0);
}

dtr_status dtr_group_destroy(dtr_group *group) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_group_destroy", group->name,
                      group_destroy(group));
}
