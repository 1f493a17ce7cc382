/* Releasing groups: a member lets go of one without waiting for the others. The group is parked:
 * its handle and name are gone, its works go on. It is taken down when all members have let go of
 * it, by the next call here that makes, ends or issues something; what has broken, alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agreement/mailbox.h"
#include "core/work.h"
#include "engine/engine.h"
#include "failure/released.h"
#include "group/groups.h"

/* ---- communicators, whose end MPI wants to be that of all members ---- */

void dtr__retire_begin(dtr_group *g) {
    if (g->size == 1) {
        return;
    }
    dtr__retired *r = calloc(1, sizeof(*r));
    int *ranks = malloc(sizeof(int) * (size_t)g->size);
    if (r == NULL || ranks == NULL) {
        free(r);
        free(ranks);
        return; /* freed here and now, as almost every MPI allows */
    }
    r->uid = g->uid;
    r->size = g->size;
    r->world_ranks = memcpy(ranks, g->world_ranks, sizeof(int) * (size_t)g->size);
    g->release.retired = r;
}

static void drop(dtr__retired *r) {
    free(r->world_ranks);
    free(r);
}

void dtr__retire_end(dtr_group *g) {
    dtr__groups *gs = g->world->groups;
    dtr__retired *r = g->release.retired;
    g->release.retired = NULL;
    if (r != NULL && r->n == 0) {
        drop(r);
    } else if (r != NULL) {
        pthread_mutex_lock(&gs->lock);
        dtr__retired **at = &gs->retired;
        while (*at != NULL && (*at)->uid < r->uid) {
            at = &(*at)->next;
        }
        r->next = *at;
        *at = r;
        pthread_mutex_unlock(&gs->lock);
    }
}

static bool all_in(const dtr__retired *r, const bool *in) {
    for (int i = 0; i < r->size; i++) {
        if (!in[r->world_ranks[i]]) {
            return false;
        }
    }
    return true;
}

void dtr__retired_offer(dtr_world *world, const int *world_ranks, int n, dtr__entry *entry) {
    dtr__groups *gs = world->groups;
    pthread_mutex_lock(&gs->lock);
    bool *in = gs->retired != NULL ? calloc((size_t)world->size, sizeof(bool)) : NULL;
    for (int i = 0; in != NULL && i < n; i++) {
        in[world_ranks[i]] = true;
    }
    int k = 0;
    for (const dtr__retired *r = in != NULL ? gs->retired : NULL;
         r != NULL && k < DTR__RETIRED_AT_ONCE; r = r->next) {
        if (all_in(r, in)) {
            entry->retired[k].uid = r->uid;
            entry->retired[k++].size = (uint64_t)r->size;
        }
    }
    pthread_mutex_unlock(&gs->lock);
    free(in);
}

/* One with a member that has failed is left to the end of MPI. */
static void free_comms(dtr_world *world, dtr__retired *r) {
    const char *why;
    bool whole = dtr__first_failed_peer(world, r->world_ranks, r->size, &why) < 0;
    for (int i = 0; i < r->n; i++) {
        if (whole) {
            dtr__mpi_free(&r->comm[i]);
        } else {
            dtr__mpi_keep(world, &r->comm[i]);
        }
    }
    drop(r);
}

static dtr__retired *take_out(dtr__groups *gs, uint64_t uid) {
    pthread_mutex_lock(&gs->lock);
    dtr__retired **at = &gs->retired;
    while (*at != NULL && (*at)->uid != uid) {
        at = &(*at)->next;
    }
    dtr__retired *r = *at;
    if (r != NULL) {
        *at = r->next;
    }
    pthread_mutex_unlock(&gs->lock);
    return r;
}

void dtr__retired_free_agreed(dtr_world *world, const dtr__outcome *out) {
    for (int k = 0; k < DTR__RETIRED_AT_ONCE && out->free_uid[k] != 0; k++) {
        dtr__retired *r = take_out(world->groups, out->free_uid[k]);
        if (r != NULL) {
            dtr__mpi_lock(world);
            free_comms(world, r);
            dtr__mpi_unlock(world);
        }
    }
}

void dtr__retired_free_all(dtr_world *world, bool mpi_alive) {
    dtr__groups *gs = world->groups;
    while (gs->retired != NULL) {
        dtr__retired *r = gs->retired;
        gs->retired = r->next;
        if (mpi_alive) {
            free_comms(world, r);
        } else {
            drop(r);
        }
    }
}

/* ---- taking down ---- */

dtr_status dtr__group_take_down_apart(dtr_group *g, double left_s) {
    g->release.taken = true;
    dtr__retire_begin(g);
    dtr_status s = dtr__group_take_down(g, left_s);
    dtr__retire_end(g);
    return s;
}

/* One that nothing holds any more, taken by the caller; NULL: none. */
static dtr_group *next_over(dtr__groups *gs) {
    pthread_mutex_lock(&gs->lock);
    dtr_group *g = gs->first;
    while (g != NULL && !(g->release.here && !g->release.taken &&
                          (atomic_load(&g->status) != DTR_OK || dtr__release_is_over(g)))) {
        g = g->next;
    }
    if (g != NULL) {
        g->release.taken = true;
        atomic_fetch_sub(&gs->n_unreported, !g->release.reported);
        g->release.reported = true;
        atomic_fetch_sub(&gs->n_parked, 1);
    }
    pthread_mutex_unlock(&gs->lock);
    return g;
}

void dtr__groups_sweep(dtr_world *world) {
    dtr__groups *gs = world->groups;
    if (atomic_load(&gs->n_parked) == 0 || dtr__in_callback(world) || dtr__progress_stuck(world) ||
        !dtr__ranks_reachable(world)) {
        return;
    }
    const dtr_status kept = dtr__error_last();
    dtr__error_copy *copy = kept < 0 ? dtr__error_save() : NULL;
    dtr__release_poll(world);
    dtr__notifier_visit(world);
    for (dtr_group *g = next_over(gs); g != NULL; g = next_over(gs)) {
        if (atomic_load(&g->status) != DTR_OK) {
            (void)dtr__engine_drain(g, 0);
        }
        (void)dtr__group_take_down_apart(g, g->timeout_s);
    }
    (void)dtr__error_put_back(copy, kept);
}

dtr_status dtr__group_await_released(dtr_group *g, double limit_s) {
    dtr__groups *gs = g->world->groups;
    dtr__backoff backoff = { 0 };
    const double end = dtr__now() + limit_s;
    dtr__release_finished(g);
    for (;;) {
        dtr__notifier_visit_now(g->world);
        pthread_mutex_lock(&gs->lock);
        bool over = dtr__release_is_over(g);
        pthread_mutex_unlock(&gs->lock);
        if (over) {
            return DTR_OK;
        }
        if (atomic_load(&g->status) != DTR_OK) {
            return dtr__group_broken(g);
        }
        if (dtr__now() >= end) {
            break;
        }
        if (!dtr__progress_has_thread(g->world)) {
            dtr__progress_poll_all(g->world);
        }
        dtr__backoff_pause(g->world, &backoff);
    }
    char who[600];
    dtr__error_context ctx = { .world = g->world,
                               .operation = "dtr_group_destroy",
                               .group = g->name };
    return DTR_FAIL(&ctx, DTR_ERR_TIMEOUT,
                    "dtr_group_destroy of group \"%s\", which other members have released: not all "
                    "have within %g s: %s",
                    g->name, g->timeout_s, dtr__release_missing(g, who, sizeof who));
}

/* ---- the public call ---- */

/* From here on nobody finds it by name or tag. False: another reference is left. */
static bool last_reference(dtr_group *g) {
    dtr__groups *gs = g->world->groups;
    pthread_mutex_lock(&gs->lock);
    bool last = g->label.tag_refs <= 1;
    g->label.tag_refs -= last ? g->label.tag_refs : 1;
    if (last) {
        g->label.listed = false;
        g->magic = DTR__GROUP_GONE;
        atomic_fetch_or(&g->aside, DTR__CLOSING);
    }
    pthread_mutex_unlock(&gs->lock);
    return last;
}

static void park(dtr_group *g, const void *return_address) {
    dtr__groups *gs = g->world->groups;
    if (atomic_load(&g->calls.scope) != NULL) {
        g->calls.drop_scope(g);
    }
    pthread_mutex_lock(&gs->lock);
    dtr__release_begin(g, return_address);
    pthread_mutex_unlock(&gs->lock);
}

static dtr_status group_release(dtr_group *group, const void *return_address) {
    static const char entry[] = "dtr_group_release";
    if (group == NULL) {
        return DTR_OK;
    }
    DTR_TRY(dtr__group_check(group, entry));
    dtr_world *world = group->world;
    dtr__error_context ctx = { .world = world, .operation = entry, .group = group->name };
    DTR_REQUIRE(!dtr__group_is_world(group), &ctx, DTR_ERR_ARG,
                "dtr_group_release: the world's own group ends with dtr_world_destroy");
    if (!dtr__ranks_reachable(world)) {
        (void)dtr__group_take_down(group, group->timeout_s);
        return DTR_FAIL(&ctx, DTR_ERR_STATE,
                        "dtr_group_release: MPI_Finalize has been called before; what is local was "
                        "freed");
    }
    if (!last_reference(group)) {
        return DTR_OK;
    }
    park(group, return_address);
    dtr__notifier_visit_now(world);
    dtr__groups_sweep(world);
    return DTR_OK;
}

dtr_status dtr_group_release(dtr_group *group) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_group_release",
                      group != NULL ? group->name : "",
                      group_release(group, __builtin_return_address(0)));
}
