/* A rank that destroys its world while others still work in it: they wait for operations that it
 * will never call, and get an error for that before their deadlines. */
#include "failure/early_destroy.h"
#include "core/call.h"
#include "core/call_site.h"

#include <inttypes.h>
#include <stdio.h>

#include "control/peers.h"
#include "engine/engine.h"
#include "failure/failure.h"

enum { FIRST_LOOK_MS = 200, LOOK_EVERY_MS = 500 };

void dtr__early_destroy_begin(dtr_world *world, const void *return_address) {
    dtr__groups *gs = world->groups;
    dtr__call c = { .return_address = (void *)(uintptr_t)return_address };
    (void)dtr__call_site_text(&c, gs->early_destroy_at, sizeof gs->early_destroy_at);
    gs->early_destroy_look_ns = dtr__now_ns() + FIRST_LOOK_MS * INT64_C(1000000);
}

/* The group of that operation, where this rank has not called it and never will. gs->lock held. */
static dtr_group *left_behind(const dtr__groups *gs, uint64_t uid, uint64_t seq) {
    dtr_group *g = gs->first;
    while (g != NULL && g->uid != uid) {
        g = g->next;
    }
    return g != NULL && atomic_load(&g->status) == DTR_OK && seq > atomic_load(&g->count.seq)
               ? g
               : NULL;
}

static void break_behind(dtr_group *g, int peer, dtr__queue *called) {
    dtr_world *world = g->world;
    dtr__groups *gs = world->groups;
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_destroy", .group = g->name };
    char own[128], name[128], doing[900];
    (void)DTR_FAIL(
        &ctx, DTR_ERR_MISMATCH,
        "%s called dtr_world_destroy at %s, but %s is in an operation of group '%s' that "
        "it has not called: %s. Group '%s' is broken: outputs of its unfinished "
        "operations are undefined",
        dtr__peer_name(world, world->rank, own, sizeof own), gs->early_destroy_at,
        dtr__peer_name(world, peer, name, sizeof name), g->name,
        dtr__peer_doing(world, peer, doing, sizeof doing), g->name);
    if (gs->early_destroy_error == NULL) {
        gs->early_destroy_error = dtr__error_save();
    }
    dtr__group_report_failure(g, DTR_ERR_MISMATCH, called);
}

void dtr__early_destroy_check(dtr_world *world) {
    dtr__groups *gs = world->groups;
    dtr__queue called = { NULL, NULL };
    int64_t now = dtr__now_ns();
    if (gs->early_destroy_at[0] == '\0' || now < gs->early_destroy_look_ns) {
        return;
    }
    gs->early_destroy_look_ns = now + LOOK_EVERY_MS * INT64_C(1000000);
    for (int r = 0; r < world->size; r++) {
        uint64_t uid = 0, seq = 0;
        if (r == world->rank || !dtr__peer_inside(world, r, &uid, &seq)) {
            continue;
        }
        pthread_mutex_lock(&gs->lock);
        dtr_group *g = left_behind(gs, uid, seq);
        if (g != NULL) {
            break_behind(g, r, &called);
        }
        pthread_mutex_unlock(&gs->lock);
    }
    dtr__callbacks_run(&called);
}

dtr_status dtr__early_destroy_result(dtr_world *world, dtr_status s) {
    dtr__groups *gs = world->groups;
    if (gs->early_destroy_error != NULL) {
        s = dtr__error_put_back(gs->early_destroy_error, DTR_ERR_MISMATCH);
        gs->early_destroy_error = NULL;
    }
    return s;
}
