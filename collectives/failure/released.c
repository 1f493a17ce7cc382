/* Releases as ranks report them to each other. Each member sends every other one up to two
 * messages: that it has let go, with how many collectives it has called, and that its works have
 * ended. Who has called more collectives than that waits in vain and breaks the group; who has the
 * second message of all others may take the group down. */
#include "failure/released.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/peers.h"
#include "core/call.h"
#include "core/call_site.h"
#include "engine/engine.h"
#include "failure/failure.h"

enum { STAYS, LET_GO, FINISHED };

/* What the other members have reported; lock of the world's groups. */
typedef struct dtr__release_others {
    int first; /* the one that has called fewest collectives, */
    uint64_t seq;
    char site[64];                  /* ... and where it let go; "": it destroys the group */
    _Atomic unsigned char member[]; /* any thread reads it */
} dtr__release_others;

/* ---- reporting; gs->lock held ---- */

static void report(dtr_group *g, bool finished) {
    dtr__release_message n = { .uid = g->uid,
                               .seq = atomic_load(&g->count.seq),
                               .finished = finished };
    memcpy(n.site, g->release.site, sizeof n.site);
    g->release.reported = finished;
    dtr__notify_released(g, &n);
}

void dtr__release_begin(dtr_group *g, const void *return_address) {
    dtr__groups *gs = g->world->groups;
    dtr__call c = { .return_address = (void *)(uintptr_t)return_address };
    (void)dtr__call_site_text(&c, g->release.site, sizeof g->release.site);
    bool rests = dtr__engine_at_rest(g);
    g->release.here = true;
    atomic_fetch_add(&gs->n_parked, 1);
    atomic_fetch_add(&gs->n_unreported, !rests);
    report(g, rests);
}

void dtr__release_finished(dtr_group *g) {
    dtr__groups *gs = g->world->groups;
    pthread_mutex_lock(&gs->lock);
    report(g, true);
    pthread_mutex_unlock(&gs->lock);
}

void dtr__release_poll(dtr_world *world) {
    dtr__groups *gs = world->groups;
    if (atomic_load(&gs->n_unreported) == 0 || pthread_mutex_trylock(&gs->lock) != 0) {
        return;
    }
    for (dtr_group *g = gs->first; g != NULL; g = g->next) {
        if (g->release.here && !g->release.reported && dtr__engine_at_rest(g)) {
            atomic_fetch_sub(&gs->n_unreported, 1);
            report(g, true);
        }
    }
    pthread_mutex_unlock(&gs->lock);
}

/* ---- what others tell ---- */

void dtr__release_receive(dtr_group *g, int from, const dtr__release_message *n) {
    dtr__groups *gs = g->world->groups;
    dtr__release_others *o = atomic_load(&g->release.others);
    int r = dtr__group_rank_of(g, from);
    if (o == NULL) {
        o = calloc(1, sizeof *o + (size_t)g->size);
        atomic_store(&g->release.others, o);
    }
    if (o == NULL || r < 0) {
        return; /* the group stays until its world ends */
    }
    if (o->member[r] == STAYS) {
        atomic_fetch_or(&g->aside, DTR__LEFT);
        atomic_fetch_add(&gs->n_released, atomic_fetch_add(&g->release.n_others, 1) == 0);
        if (o->seq == 0 || n->seq + 1 < o->seq) {
            o->seq = n->seq + 1; /* the first that it will not call */
            o->first = r;
            memcpy(o->site, n->site, sizeof o->site);
        }
        o->member[r] = LET_GO;
    }
    if (n->finished && o->member[r] != FINISHED) {
        o->member[r] = FINISHED;
        g->release.n_finished++;
    }
}

bool dtr__release_is_over(const dtr_group *g) {
    return g->release.reported && g->release.n_finished == g->size - 1;
}

static int state_of(const dtr_group *g, int r) {
    const dtr__release_others *o = atomic_load(&g->release.others);
    return o != NULL ? atomic_load(&o->member[r]) : STAYS;
}

bool dtr__release_has(const dtr_group *g, int rank) {
    return state_of(g, rank) != STAYS;
}

const char *dtr__release_missing(const dtr_group *g, char *text, size_t cap) {
    enum { NAMED = 4 };
    int missing = 0;
    text[0] = '\0';
    for (int r = 0; r < g->size; r++) {
        int state = r == g->rank ? FINISHED : state_of(g, r);
        size_t at = strlen(text);
        if (state != FINISHED && missing++ < NAMED) {
            snprintf(text + at, cap - at, "%srank %d (world rank %d) %s", at > 0 ? ", " : "", r,
                     g->world_ranks[r],
                     state == STAYS ? "has not let go of it" : "has unfinished operations in it");
        }
    }
    if (missing > NAMED) {
        size_t at = strlen(text);
        snprintf(text + at, cap - at, ", and %d more", missing - NAMED);
    }
    return text;
}

/* ---- who waits in vain ---- */

/* "rank 1 (world rank 1, host a, pid 17) called dtr_group_release of group 'x' at t.c:12" */
static void describe(const dtr_group *g, char *text, size_t cap) {
    const dtr__release_others *o = atomic_load(&g->release.others);
    char name[128];
    snprintf(text, cap, "%s called %s of group '%s'%s%s after %" PRIu64 " collectives",
             dtr__peer_name(g->world, g->world_ranks[o->first], name, sizeof name),
             o->site[0] != '\0' ? "dtr_group_release" : "dtr_group_destroy", g->name,
             o->site[0] != '\0' ? " at " : "", o->site, o->seq - 1);
}

static void break_group(dtr_group *g, const char *call, dtr__queue *called) {
    dtr__error_context ctx = { .world = g->world, .operation = call, .group = g->name };
    char who[400], own[128];
    describe(g, who, sizeof who);
    (void)DTR_FAIL(
        &ctx, DTR_ERR_MISMATCH,
        "%s, but %s has called %s, which needs all members. Group '%s' is broken: outputs "
        "of its unfinished operations are undefined",
        who, dtr__peer_name(g->world, g->world->rank, own, sizeof own), call, g->name);
    dtr__group_report_failure(g, DTR_ERR_MISMATCH, called);
}

void dtr__release_check(dtr_world *world, dtr__queue *called) {
    dtr__groups *gs = world->groups;
    const dtr_status kept = dtr__error_last();
    dtr__error_copy *copy = kept < 0 ? dtr__error_save() : NULL;
    for (dtr_group *g = gs->first; g != NULL; g = g->next) {
        const dtr__release_others *o = atomic_load(&g->release.others);
        if (o != NULL && atomic_load(&g->status) == DTR_OK &&
            atomic_load(&g->failure->reported_ns) == 0 && atomic_load(&g->count.seq) >= o->seq) {
            char call[64];
            snprintf(call, sizeof call, "collective #%" PRIu64, o->seq);
            break_group(g, call, called);
        }
    }
    (void)dtr__error_put_back(copy, kept);
}

void dtr__release_break(dtr_group *g, const char *call) {
    dtr__groups *gs = g->world->groups;
    dtr__queue called = { NULL, NULL };
    pthread_mutex_lock(&gs->lock);
    if (atomic_load(&g->release.others) != NULL && atomic_load(&g->status) == DTR_OK &&
        atomic_load(&g->failure->reported_ns) == 0) {
        break_group(g, call, &called);
    }
    pthread_mutex_unlock(&gs->lock);
    dtr__callbacks_run(&called);
}
