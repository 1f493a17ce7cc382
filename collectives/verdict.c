/* Breaking a group by agreement: the first account of a node counts there, that of the weightiest
 * kind between nodes, and nobody is released before it is settled (rt_verdict.c). */
#include "verdict.h"

#include <stdio.h>
#include <string.h>

#include "engine.h"
#include "notice.h"

static bool is_far(const dtr_group *g) {
    bool far = false;
    for (int i = 0; i < g->size; i++) {
        far = far || g->world->node_of[g->world_ranks[i]] != g->world->node;
    }
    return far;
}

void dtr__verdict_say(const dtr_group *g, dtr_status s, dtr__verdict *v) {
    dtr_error e = DTR_ERROR_INIT;
    dtr_last_error(&e);
    *v = (dtr__verdict){ .uid = g->uid,
                         .seq = e.seq,
                         .status = (int32_t)s,
                         .origin = g->world->rank,
                         .lost = atomic_load(&g->lost) };
    snprintf(v->operation, sizeof v->operation, "%s", e.operation);
    if ((size_t)snprintf(v->text, sizeof v->text, "%s", e.message) >= sizeof v->text) {
        memcpy(v->text + sizeof v->text - 5, " ...", 5);
    }
    v->far = is_far(g);
}

dtr_status dtr__verdict_take(const dtr_group *g, const dtr__verdict *v) {
    dtr__error_context ctx = {
        .world = g->world, .operation = v->operation, .group = g->name, .seq = v->seq
    };
    dtr_status s = (dtr_status)v->status;
    if (dtr__status_shared(s) || v->origin == g->world->rank) {
        return DTR_FAIL(&ctx, s, "%s", v->text);
    }
    return DTR_FAIL(&ctx, DTR_ERR_REMOTE, DTR__PEER_FAILED "%s", dtr_group_rank_of(g, v->origin),
                    v->origin, dtr_status_name(s), v->text);
}

/* This thread's last error as it is, to be put back. */
typedef struct kept {
    dtr_status status;
    dtr__error_copy *copy;
} kept;

static kept keep_last(void) {
    dtr_error e = DTR_ERROR_INIT;
    dtr_last_error(&e);
    return (kept){ e.status, e.status < 0 ? dtr__error_save() : NULL };
}

static void put_back(kept k) {
    if (k.copy != NULL) {
        (void)dtr__error_restore(k.copy, k.status);
        dtr__error_copy_free(k.copy);
    }
}

/* What this rank found itself keeps all it knows of it. */
static dtr_status take(const dtr_group *g, const dtr__verdict *v) {
    const dtr__error_copy *own = atomic_load(&g->accusation);
    if (v->origin == g->world->rank && own != NULL) {
        return dtr__error_restore(own, (dtr_status)v->status);
    }
    return dtr__verdict_take(g, v);
}

void dtr__verdict_execute(dtr_group *g, const dtr__verdict *v, dtr__queue *called) {
    if (atomic_load(&g->status) != DTR_OK) {
        return;
    }
    kept before = keep_last();
    dtr_status s = take(g, v);
    atomic_store(&g->lost, v->lost);
    if (v->origin != g->world->rank) {
        atomic_store(&g->told, 1); /* whoever found it tells */
    }
    dtr__group_release_all(g, s, called);
    put_back(before);
}

/* What this rank has said does not count any more: so many groups break that others took its place.
 */
static bool is_lost(const dtr_group *g) {
    const int64_t since = atomic_load(&g->accused_ns);
    if (since == 0) {
        return false;
    }
    return (!is_far(g) && !dtr__verdict_is_put(g->world, g->uid)) ||
           dtr__now_ns() - since >= 3 * dtr__verdict_patience(g->world);
}

void dtr__group_settle(dtr_group *g, dtr__queue *called) {
    dtr__verdict v;
    if (dtr__verdict_settled(g->world, g->uid, g->world_ranks, g->size, &v)) {
        dtr__verdict_execute(g, &v, called);
    } else if (atomic_load(&g->status) == DTR_OK && is_lost(g)) {
        kept before = keep_last();
        dtr_status s = (dtr_status)atomic_load(&g->accused);
        dtr__group_release_all(g, dtr__error_restore(atomic_load(&g->accusation), s), called);
        put_back(before);
    }
}

/* Once per rank and group. False: there is nobody to agree with. */
static bool accuse(dtr_group *g, const dtr_group *also, dtr_status s, dtr__verdict *mine) {
    dtr__error_copy *none = NULL;
    dtr__verdict_say(g, s, mine);
    mine->also = also != NULL ? also->uid : 0;
    if (g->size == 1 || g->world->verdicts == NULL) {
        return false;
    }
    dtr__error_copy *copy = dtr__error_save();
    if (!atomic_compare_exchange_strong(&g->accusation, &none, copy)) {
        dtr__error_copy_free(copy);
        return true;
    }
    (void)dtr__verdict_put(g->world, mine);
    atomic_store(&g->accused, (int)s);
    atomic_store(&g->accused_ns, dtr__now_ns());
    return true;
}

void dtr__group_accuse(dtr_group *g, dtr_status s, dtr__queue *called) {
    dtr__groups_accuse(g, NULL, s, called);
}

void dtr__groups_accuse(dtr_group *g, dtr_group *also, dtr_status s, dtr__queue *called) {
    enum { ENDED, ALONE, ASKED };
    dtr_group *both[2] = { g, also };
    int how[2] = { ENDED, ENDED };
    dtr__verdict mine;
    for (int i = 0; i < 2; i++) {
        if (both[i] != NULL && atomic_load(&both[i]->status) == DTR_OK) {
            how[i] = accuse(both[i], both[1 - i], s, &mine) ? ASKED : ALONE;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (how[i] == ASKED) {
            dtr__group_settle(both[i], called);
        } else if (how[i] == ALONE) {
            dtr__group_release_all(both[i], s, called);
        }
    }
}

void dtr__group_break_with(dtr_group *g, dtr_status s, dtr__queue *called) {
    dtr__verdict mine;
    if (atomic_load(&g->status) == DTR_OK && accuse(g, NULL, s, &mine)) {
        dtr__backoff backoff = { 0 };
        for (dtr__group_settle(g, called); atomic_load(&g->status) == DTR_OK;
             dtr__group_settle(g, called)) {
            dtr__progress_rest(g->world);
            dtr__backoff_pause(NULL, &backoff);
        }
    }
    /* Another thread that breaks it may still be ending its works: wait for that. */
    dtr__group_release_all(g, s, called);
}
