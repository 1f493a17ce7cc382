/* Breaking a group by agreement. On a node the first failure record counts, between nodes that of
 * the weightiest kind, and no rank is released before that is settled (control/vote.c). */
#include "failure/failure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/signature.h"
#include "engine/engine.h"
#include "failure/early_destroy.h"
#include "failure/mismatch.h"
#include "failure/notify.h"
#include "failure/peer_failure.h"
#include "failure/released.h"

static bool spans_nodes(const dtr_group *g) {
    bool remote = false;
    for (int i = 0; i < g->size; i++) {
        remote = remote || g->world->node_of[g->world_ranks[i]] != g->world->node;
    }
    return remote;
}

void dtr__failure_describe(const dtr_group *g, dtr_status s, dtr__failure_record *v) {
    dtr_error e = DTR_ERROR_INIT;
    dtr_last_error(&e);
    *v = (dtr__failure_record){ .uid = g->uid,
                                .seq = e.seq,
                                .status = (int32_t)s,
                                .origin = g->world->rank,
                                .failed_rank = atomic_load(&g->failure->failed_peer) };
    snprintf(v->operation, sizeof v->operation, "%s", e.operation);
    if ((size_t)snprintf(v->text, sizeof v->text, "%s", e.message) >= sizeof v->text) {
        memcpy(v->text + sizeof v->text - 5, " ...", 5);
    }
    v->remote = spans_nodes(g);
}

dtr_status dtr__failure_adopt(const dtr_group *g, const dtr__failure_record *v) {
    dtr__error_context ctx = {
        .world = g->world, .operation = v->operation, .group = g->name, .seq = v->seq
    };
    dtr_status s = (dtr_status)v->status;
    if (dtr__status_shared(s) || v->origin == g->world->rank) {
        return DTR_FAIL(&ctx, s, "%s", v->text);
    }
    return DTR_FAIL(&ctx, DTR_ERR_REMOTE, DTR__PEER_FAILED "%s", dtr__group_rank_of(g, v->origin),
                    v->origin, dtr_status_name(s), v->text);
}

/* A failure that this rank found itself keeps all that it knows of it. */
static dtr_status take(const dtr_group *g, const dtr__failure_record *v) {
    const dtr__error_copy *own = atomic_load(&g->failure->reported);
    if (v->origin == g->world->rank && own != NULL) {
        return dtr__error_restore(own, (dtr_status)v->status);
    }
    return dtr__failure_adopt(g, v);
}

void dtr__failure_apply(dtr_group *g, const dtr__failure_record *v, dtr__queue *called) {
    if (atomic_load(&g->status) != DTR_OK) {
        return;
    }
    atomic_store(&g->failure->failed_peer, v->failed_rank);
    if (v->origin != g->world->rank) {
        atomic_store(&g->failure->notified, 1); /* the rank that found it notifies the others */
    }
    DTR_CLEAN_UP(dtr__error_last(), dtr__group_release_all(g, take(g, v), called));
}

/* The failure record of this rank is gone: so many groups break that others took its place. */
static bool is_forgotten(const dtr_group *g) {
    const int64_t since = atomic_load(&g->failure->reported_ns);
    if (since == 0) {
        return false;
    }
    return (!spans_nodes(g) && !dtr__failure_record_is_put(g->world, g->uid)) ||
           dtr__now_ns() - since >= 3 * dtr__failure_record_patience(g->world);
}

void dtr__group_settle_failure(dtr_group *g, dtr__queue *called) {
    dtr__failure_record v;
    if (dtr__failure_record_settled(g->world, g->uid, g->world_ranks, g->size, &v)) {
        dtr__failure_apply(g, &v, called);
    } else if (atomic_load(&g->status) == DTR_OK && is_forgotten(g)) {
        dtr_status s = (dtr_status)atomic_load(&g->failure->status);
        DTR_CLEAN_UP(dtr__error_last(),
                     dtr__group_release_all(
                         g, dtr__error_restore(atomic_load(&g->failure->reported), s), called));
    }
}

/* Once per rank and group. False: there is no rank to agree with. */
static bool report_once(dtr_group *g, const dtr_group *also, dtr_status s,
                        dtr__failure_record *mine) {
    dtr__error_copy *none = NULL;
    dtr__failure_describe(g, s, mine);
    mine->also = also != NULL ? also->uid : 0;
    if (g->size == 1 || !dtr__failure_records_serve(g->world)) {
        return false;
    }
    dtr__error_copy *copy = dtr__error_save();
    if (!atomic_compare_exchange_strong(&g->failure->reported, &none, copy)) {
        dtr__error_copy_free(copy);
        return true;
    }
    (void)dtr__failure_record_put(g->world, mine);
    atomic_store(&g->failure->status, (int)s);
    atomic_store(&g->failure->reported_ns, dtr__now_ns());
    return true;
}

/* Before the watchdogs, which know who it was and in what. */
static bool mpi_noticed_peer_failure(const dtr_group *g, dtr_status s) {
    dtr_error e = DTR_ERROR_INIT;
    dtr_last_error(&e);
    return s == DTR_ERR_MPI && dtr__mpi_peer_died(e.native_code) &&
           dtr__failure_records_serve(g->world);
}

void dtr__group_record_failure(dtr_group *g, dtr_status s) {
    dtr__failure_record mine;
    if (g->failure != NULL && atomic_load(&g->status) == DTR_OK &&
        !mpi_noticed_peer_failure(g, s)) {
        (void)report_once(g, NULL, s, &mine);
    }
}

void dtr__group_report_failure(dtr_group *g, dtr_status s, dtr__queue *called) {
    dtr__groups_report_failure(g, NULL, s, called);
}

void dtr__groups_report_failure(dtr_group *g, dtr_group *also, dtr_status s, dtr__queue *called) {
    enum { ENDED, ALONE, ASKED };
    dtr_group *both[2] = { g, also };
    int how[2] = { ENDED, ENDED };
    dtr__failure_record mine;
    for (int i = 0; i < 2; i++) {
        if (both[i] != NULL && atomic_load(&both[i]->status) == DTR_OK) {
            how[i] = report_once(both[i], both[1 - i], s, &mine) ? ASKED : ALONE;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (how[i] == ASKED) {
            dtr__group_settle_failure(both[i], called);
        } else if (how[i] == ALONE) {
            dtr__group_release_all(both[i], s, called);
        }
    }
}

static void settle_until(dtr_group *g, double end, dtr__queue *called) {
    dtr__backoff backoff = { 0 };
    for (dtr__group_settle_failure(g, called);
         atomic_load(&g->status) == DTR_OK && dtr__now() < end;
         dtr__group_settle_failure(g, called)) {
        dtr__progress_rest(g->world);
        dtr__backoff_pause(NULL, &backoff);
    }
}

void dtr__group_break_with(dtr_group *g, dtr_status s, dtr__queue *called) {
    enum { WATCHDOGS_S = 3 };
    dtr__failure_record mine;
    if (mpi_noticed_peer_failure(g, s)) {
        settle_until(g, dtr__now() + WATCHDOGS_S, called);
    }
    if (atomic_load(&g->status) == DTR_OK && report_once(g, NULL, s, &mine)) {
        settle_until(g, INFINITY, called);
    }
    /* Another thread that breaks it may still be ending its works: wait for that. */
    dtr__group_release_all(g, s, called);
}

bool dtr__group_look_for_failure(dtr_group *g, dtr__queue *called) {
    dtr__backoff backoff = { 0 };
    while (atomic_load(&g->status) == DTR_OK && dtr__failure_record_is_put(g->world, g->uid)) {
        dtr__group_settle_failure(g, called);
        if (atomic_load(&g->status) == DTR_OK) {
            dtr__progress_rest(g->world);
            dtr__backoff_pause(NULL, &backoff);
        }
    }
    return atomic_load(&g->status) != DTR_OK;
}

const dtr__failure_ops dtr__failure_functions = { .break_with = dtr__group_break_with,
                                                  .record = dtr__group_record_failure,
                                                  .look = dtr__group_look_for_failure,
                                                  .notify_broken = dtr__notify_broken,
                                                  .notify_nan = dtr__notify_nan,
                                                  .find_mismatch = dtr__find_mismatch,
                                                  .ask_missing = dtr__ask_missing,
                                                  .name_missing = dtr__name_missing,
                                                  .poll = dtr__notifier_poll,
                                                  .visit = dtr__notifier_visit,
                                                  .check_early_destroy = dtr__early_destroy_check,
                                                  .break_released = dtr__release_break };
