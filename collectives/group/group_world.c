/* The groups of a world as a whole: the world's own group, the list and its look-ups, and the end
 * of them all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/nccl/nccl_calls.h"
#include "control/peers.h"
#include "diagnosis/watchdog.h"
#include "engine/engine.h"
#include "engine/turn.h"
#include "failure/early_destroy.h"
#include "failure/peer_failure.h"
#include "failure/stall_watch.h"
#include "group/device_select.h"
#include "group/gpus.h"
#include "group/groups.h"
#include "kernels/operators.h"
#include "kernels/user_ops.h"
#include "memory/device.h"

/* ---- the world's own group ---- */

static dtr_status make_own(dtr_world *world, dtr_group **own) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_create", .group = "world" };
    int *ranks = malloc(sizeof(int) * (size_t)world->size);
    DTR_REQUIRE(ranks != NULL, &ctx, DTR_ERR_NOMEM, "no memory for a list of %d ranks",
                world->size);
    for (int i = 0; i < world->size; i++) {
        ranks[i] = i;
    }
    const char *backend = dtr__opt_text(&world->options, DTR__OPT_BACKEND);
    dtr__group_spec spec = {
        .world_ranks = ranks,
        .size = world->size,
        .name = "world",
        .uid = DTR__WORLD_UID,
        .backend = backend != NULL && backend[0] != '\0' ? backend : DTR__DEFAULT_BACKENDS,
        .timeout_cpu_s = dtr__world_limit(world, DTR__TIMEOUT_CPU),
        .timeout_cuda_s = dtr__world_limit(world, DTR__TIMEOUT_CUDA),
        .device = world->bound ? world->device : (dtr_device){ DTR_CPU, 0 },
        .bound = world->bound,
        .listed = true,
    };
    dtr_status s = dtr__group_new(world, &spec, own);
    free(ranks);
    return s;
}

/* Collective over the world; what fails on one rank fails on all. */
static dtr_status connect_own(dtr_world *world, dtr_group *own) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_create", .group = "world" };
    if (world->mpi.inbox == NULL) {
        DTR_MPI(&ctx, MPI_Comm_dup(world->mpi.comm, &own->comm));
    }
    dtr_status s = dtr__group_connect(own);
    dtr_status agreed = dtr__agree_status(dtr__members_of(world), s, "world creation");
    if (agreed < 0) {
        if (s >= 0) {
            (void)dtr__group_disconnect(own, true, own->timeout_s);
        } else {
            dtr__mpi_free(&own->comm);
        }
    }
    return agreed;
}

static dtr__groups *new_groups(void) {
    dtr__groups *gs = calloc(1, sizeof(*gs));
    if (gs != NULL) {
        pthread_mutex_init(&gs->lock, NULL);
        pthread_mutex_init(&gs->creation, NULL);
        gs->failure = &dtr__failure_functions;
    }
    return gs;
}

static void free_groups(const dtr_world *world) {
    dtr__groups *gs = world->groups;
    if (gs == NULL) {
        return;
    }
    while (gs->gone != NULL) {
        dtr_group *next = gs->gone->next;
        dtr__group_free(gs->gone);
        gs->gone = next;
    }
    const bool reachable = dtr__ranks_reachable(world);
    dtr__agreements_free(gs->agreements, reachable);
    dtr__notifier_free(gs->notifier, reachable);
    dtr__key_values_free(gs->key_values, reachable);
    dtr__user_backends_free(gs->user_backends);
    dtr__gpus_free(gs->gpus);
    dtr__nccl_blocks_free(gs->blocks);
    pthread_mutex_destroy(&gs->lock);
    pthread_mutex_destroy(&gs->creation);
    free(gs);
}

/* Number that no other world of this job has, for messages that may arrive late. */
static uint64_t own_epoch(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((uint64_t)now.tv_sec << 30 | (uint64_t)now.tv_nsec) ^ (uint64_t)getpid() << 48;
}

static const char *kind_name(int k) {
    return dtr__kind_name((dtr__kind)k);
}

static const char *op_name(int op) {
    return dtr__op_name((dtr_op)op);
}

static dtr_status open_messages(dtr_world *world, dtr__groups *gs, uint64_t epoch) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_create" };
    gs->agreements = dtr__agreements_new(world, epoch);
    gs->notifier = dtr__notifier_new(world, epoch);
    gs->key_values = dtr__key_values_new(world, epoch);
    bool all = gs->agreements != NULL && gs->notifier != NULL && gs->key_values != NULL;
    DTR_REQUIRE(all, &ctx, DTR_ERR_NOMEM, "no memory for the messages of %d ranks", world->size);
    return DTR_OK;
}

/* Everything local; nobody is waited for but a thread that is inside some group, so long as that
 * would be for an operation. DTR_ERR_TIMEOUT: it still is, and what is left stays. */
static dtr_status close_all(dtr_world *world, bool mpi_alive) {
    dtr__groups *gs = world->groups;
    dtr__watchdog_stop(world);
    dtr__rec_phase(world, DTR__PHASE_DESTROYING);
    while (gs->last != NULL) {
        dtr_group *g = gs->last;
        dtr__group_unlist(g);
        dtr__retire_begin(g);
        DTR_TRY(dtr__group_disconnect(g, mpi_alive, g->timeout_s));
        dtr__retire_end(g);
    }
    for (dtr_group *g = gs->gone; g != NULL; g = g->next) {
        if (g->engine->open) { /* a thread hung in it, and has come back */
            DTR_TRY(dtr__group_disconnect(g, mpi_alive, 0));
        }
    }
    dtr__retired_free_all(world, mpi_alive);
    DTR_TRY(dtr__notifier_stop(gs->notifier, dtr__engine_patience(gs->own, gs->own->timeout_s)));
    dtr__user_ops_free(world);
    free_groups(world);
    world->groups = NULL;
    return DTR_OK;
}

/* What the runtime calls for blocks on a device, with NCCL's allocator and without. */
static dtr_status open_blocks(dtr_world *world, dtr__groups *gs) {
    static const dtr__memory_hooks plain = { .used = dtr__device_memory_used },
                                   nccl = { .used = dtr__device_memory_used,
                                            .take = dtr__nccl_memory_take,
                                            .give = dtr__nccl_memory_give,
                                            .begins = dtr__nccl_memory_begins,
                                            .ends = dtr__nccl_memory_ends };
    dtr_status s = dtr__nccl_blocks_open(world, &gs->blocks);
    dtr__memory_hook(world, gs->blocks != NULL ? &nccl : &plain);
    return s;
}

/* A device that the program named is set up with the world: what is wrong with it shows here. */
static dtr_status connect_own_device(dtr_world *world, dtr_group *own) {
    dtr_status s = dtr__devices_eager(own) ? dtr__nccl_ready(own, own->device.index) : DTR_OK;
    return dtr__agree_status(dtr__members_of(world), s, "world creation");
}

dtr_status dtr__groups_open(dtr_world *world) {
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_create" };
    dtr_group *own = NULL;
    dtr_status s = DTR_OK;
    uint64_t epoch = own_epoch();
    DTR_TRY(dtr__exchange_broadcast(dtr__members_of(world), &epoch, sizeof epoch, 0));
    dtr__gpus *gpus = NULL;
    DTR_TRY(dtr__gpus_open(world, &gpus));
    world->groups = new_groups();
    if (world->groups == NULL) {
        dtr__gpus_free(gpus);
        s = DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for the list of groups");
    } else {
        world->groups->gpus = gpus;
        s = open_blocks(world, world->groups);
        s = s == DTR_OK ? dtr__turn_open(world) : s;
        s = s == DTR_OK ? make_own(world, &own) : s;
    }
    if (s >= 0) {
        s = open_messages(world, world->groups, epoch);
    }
    s = dtr__agree_status(dtr__members_of(world), s, "world creation");
    if (s >= 0) {
        world->groups->own = own; /* backends and engine may ask for it */
        s = connect_own(world, own);
    }
    if (s < 0) {
        dtr__group_free(own);
        free_groups(world);
        world->groups = NULL;
        dtr__turn_close(world);
        return s;
    }
    dtr__rec_names(world, kind_name, DTR__K_COUNT, op_name, DTR__N_OPS);
    dtr__group_list(own);
    dtr__rec_phase(world, DTR__PHASE_RUNNING);
    s = dtr__agree_status(
        dtr__members_of(world),
        dtr__watchdog_start(world, dtr__peer_ended, dtr__peer_reported, dtr__stall_watch_round),
        "world creation");
    if (s >= 0 && dtr__gpus_all_named(gpus)) {
        s = connect_own_device(world, own);
    }
    if (s < 0) {
        DTR_CLEAN_UP(s, (void)close_all(world, true));
    }
    return s;
}

/* ---- the end ---- */

/* Finish this rank's works, newest group first, with a warning for every group the caller has
 * left. */
static dtr_status drain_all(dtr_world *world) {
    dtr__groups *gs = world->groups;
    dtr_status s = DTR_OK;
    for (dtr_group *g = gs->last; g != NULL; g = g->prev) {
        atomic_fetch_or(&g->aside, DTR__CLOSING);
    }
    for (dtr_group *g = gs->last; g != NULL; g = g->prev) {
        if (!dtr__group_is_world(g) && g->label.listed) {
            DTR_WARN(world, "dtr_world_destroy: group \"%s\" was not destroyed; destroying it now",
                     g->name);
        }
        DTR_KEEP_FIRST(s, dtr__engine_drain(g, g->timeout_s));
    }
    return s;
}

dtr_status dtr__groups_close(dtr_world *world, bool mpi_alive, const void *return_address) {
    dtr__groups *gs = world->groups;
    if (gs == NULL) {
        return DTR_OK;
    }
    dtr_status s = DTR_OK;
    if (mpi_alive) {
        s = drain_all(world);
        dtr__early_destroy_begin(world, return_address);
        dtr__notifier_visit_now(world);
        if (dtr__ranks_failed(world) == 0) {
            /* All ranks have drained, so nobody's messages are cut off when the communicators go. A
             * rank that does something else instead does not keep this one from ending. */
            dtr_status agreed = dtr__agree_to_end(gs->own, s, gs->own->timeout_s);
            if (agreed >= 0) {
                dtr__control_ended(world);
            }
            /* A peer failure that is found now leaves this rank to end alone, as one found before.
             */
            s = agreed == DTR_ERR_REMOTE && dtr__ranks_failed(world) > 0 ? s : agreed;
            s = dtr__early_destroy_result(world, s);
        }
    }
    dtr__error_copy *cause = s < 0 ? dtr__error_save() : NULL;
    dtr_status closed = close_all(world, mpi_alive);
    dtr__turn_close(world);
    return s < 0 ? dtr__error_put_back(cause, s) : closed;
}

/* ---- look-ups ---- */

dtr_group *dtr_world_group(dtr_world *world) {
    return world != NULL && world->magic == DTR__WORLD_MAGIC && world->groups != NULL
               ? world->groups->own
               : NULL;
}

/* NULL unless the world is live; else its groups, locked. In a forked child the lock may be held by
 * a thread that is not there. */
static dtr__groups *lock_groups(const dtr_world *world) {
    if (dtr__is_forked() || world == NULL || world->magic != DTR__WORLD_MAGIC ||
        world->groups == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&world->groups->lock);
    return world->groups;
}

int dtr_world_group_count(const dtr_world *world) {
    dtr__groups *gs = lock_groups(world);
    if (gs == NULL) {
        return -1;
    }
    int n = 0;
    for (dtr_group *g = gs->first; g != NULL; g = g->next) {
        n += g->label.listed;
    }
    pthread_mutex_unlock(&gs->lock);
    return n;
}

dtr_status dtr_world_list_groups(const dtr_world *world, dtr_group **list, int cap, int *n) {
    DTR_TRY(dtr__world_check(world));
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_list_groups" };
    DTR_REQUIRE(cap >= 0, &ctx, DTR_ERR_ARG, "dtr_world_list_groups: cap is %d, it must be >= 0",
                cap);
    DTR_REQUIRE(list != NULL || cap == 0, &ctx, DTR_ERR_ARG,
                "dtr_world_list_groups: list is NULL although cap is %d", cap);
    DTR_REQUIRE(n != NULL, &ctx, DTR_ERR_ARG, "dtr_world_list_groups: n is NULL");
    dtr__groups *gs = lock_groups(world);
    int found = 0;
    for (dtr_group *g = gs->first; g != NULL; g = g->next) {
        if (!g->label.listed) {
            continue;
        }
        if (found < cap) {
            list[found] = g;
        }
        found++;
    }
    pthread_mutex_unlock(&gs->lock);
    *n = found;
    return DTR_OK;
}

dtr_group *dtr__find_name(dtr__groups *gs, const char *name) {
    dtr_group *g = gs->first;
    while (g != NULL && !(g->label.listed && strcmp(g->name, name) == 0)) {
        g = g->next;
    }
    return g;
}

dtr_group *dtr__find_tagged(dtr__groups *gs, const char *tag, const int *world_ranks, int n) {
    size_t nbytes = sizeof(int) * (size_t)n;
    dtr_group *g = gs->first;
    while (g != NULL && !(g->label.tag_refs > 0 && g->size == n && strcmp(g->label.tag, tag) == 0 &&
                          memcmp(g->world_ranks, world_ranks, nbytes) == 0)) {
        g = g->next;
    }
    return g;
}

dtr_group *dtr_world_find_group(const dtr_world *world, const char *name) {
    dtr__groups *gs = name == NULL ? NULL : lock_groups(world);
    if (gs == NULL) {
        return NULL;
    }
    dtr_group *g = dtr__find_name(gs, name);
    pthread_mutex_unlock(&gs->lock);
    return g;
}

dtr_group *dtr_world_find_tagged(const dtr_world *world, const char *tag, const int *world_ranks,
                                 int n) {
    bool asked = tag != NULL && tag[0] != '\0' && world_ranks != NULL && n > 0;
    dtr__groups *gs = asked ? lock_groups(world) : NULL;
    if (gs == NULL) {
        return NULL;
    }
    dtr_group *g = dtr__find_tagged(gs, tag, world_ranks, n);
    pthread_mutex_unlock(&gs->lock);
    return g;
}
