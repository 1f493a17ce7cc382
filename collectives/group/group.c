/* The group object: what is local about it (memory, texts, backends, handle checks), and the
 * queries. Making groups together with other ranks is in group_create.c. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agreement/mailbox.h"
#include "core/nodes.h"
#include "engine/engine.h"
#include "failure/stall_watch.h"
#include "group/device_select.h"
#include "group/groups.h"

/* ---- making and freeing the local part ---- */

static bool copy_text(char **to, const char *from) {
    *to = strdup(from != NULL ? from : "");
    return *to != NULL;
}

static bool copy_facts(dtr_group *g, const dtr__group_spec *spec) {
    g->world_ranks = malloc(sizeof(int) * (size_t)spec->size);
    if (g->world_ranks == NULL || !copy_text(&g->label.desc, spec->desc) ||
        !copy_text(&g->label.tag, spec->tag) || !copy_text(&g->backends.asked, spec->backend)) {
        return false;
    }
    memcpy(g->world_ranks, spec->world_ranks, sizeof(int) * (size_t)spec->size);
    for (char *c = g->backends.asked; *c != '\0'; c++) {
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
    }
    strncpy(g->name, spec->name, sizeof(g->name) - 1);
    return true;
}

/* A group and what the rooms below keep with it, in one piece of memory. */
typedef struct whole {
    dtr_group group;
    dtr__group_engine engine;
    dtr__group_failure failure;
} whole;

dtr_status dtr__group_new(dtr_world *world, const dtr__group_spec *spec, dtr_group **group) {
    dtr__error_context ctx = { .world = world, .group = spec->name };
    whole *all = calloc(1, sizeof(*all));
    DTR_REQUIRE(all != NULL, &ctx, DTR_ERR_NOMEM, "no memory for a group of %d ranks", spec->size);
    dtr_group *g = &all->group;
    g->engine = &all->engine;
    g->engine->group = g;
    g->failure = &all->failure;
    g->world = world;
    g->size = spec->size;
    g->uid = g->backends.channel = spec->uid;
    dtr__group_set_limits(g, spec->timeout_cpu_s, spec->timeout_cuda_s);
    g->device = spec->device;
    g->asked.bound = spec->bound;
    g->asked.deterministic = spec->deterministic || spec->reproducible;
    g->asked.reproducible = spec->reproducible;
    g->label.listed = spec->listed;
    g->asked.nan_check = spec->nan_check;
    g->asked.options = spec->options;
    g->asked.parent = spec->parent;
    g->comm = g->lent = MPI_COMM_NULL;
    g->rank = -1;
    for (int i = 0; i < spec->size; i++) {
        g->rank = spec->world_ranks[i] == world->rank ? i : g->rank;
    }
    if (!copy_facts(g, spec) || !dtr__nodes_new(g, &g->backends.nodes)) {
        dtr__group_free(g);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory for a group of %d ranks", spec->size);
    }
    dtr_status s = dtr__select(g);
    if (s < 0) {
        dtr__group_free(g);
        return s;
    }
    *group = g;
    return DTR_OK;
}

void dtr__group_strip(dtr_group *group) {
    free(group->world_ranks);
    free(group->backends.nodes);
    free(group->label.desc);
    free(group->label.tag);
    free(group->backends.asked);
    free(group->backends.chosen);
    free(atomic_exchange(&group->release.others, NULL));
    free(atomic_exchange(&group->failure->come, NULL));
    dtr__error_copy_free(group->error);
    dtr__error_copy_free(atomic_exchange(&group->failure->reported, NULL));
    group->world_ranks = NULL;
    group->backends.nodes = NULL;
    group->label.desc = group->label.tag = group->backends.asked = group->backends.chosen = NULL;
    group->error = NULL;
}

void dtr__group_free(dtr_group *group) {
    if (group != NULL) {
        group->magic = 0;
        dtr__group_strip(group);
        free(group); /* its first member: the whole */
    }
}

static void close_backends(dtr_group *g, int n) {
    dtr__mpi_lock(g->world);
    while (n-- > 0) {
        if (g->backends.table[n]->close != NULL) {
            g->backends.table[n]->close(g, g->backends.state[n]);
        }
        g->backends.state[n] = NULL;
    }
    dtr__mpi_unlock(g->world);
}

/* Registered backends exchange keys while they are set up, which takes the right to call MPI by
 * itself. */
static dtr_status open_backend(dtr_group *g, int i) {
    const dtr__backend *b = g->backends.table[i];
    if (b->open == NULL) {
        return DTR_OK;
    }
    if (dtr__user_backend_is(b)) {
        return b->open(g, &g->backends.state[i]);
    }
    dtr__mpi_lock(g->world);
    dtr_status s = b->open(g, &g->backends.state[i]);
    dtr__mpi_unlock(g->world);
    return s;
}

/* Backend `i` is of no use: the next best takes its place. */
static dtr_status drop_backend(dtr_group *g, int i) {
    const char *name = g->backends.table[i]->name;
    for (g->backends.n--; i < g->backends.n; i++) {
        g->backends.table[i] = g->backends.table[i + 1];
    }
    if (g->rank == 0) {
        DTR_WARN(g->world, "group '%s': %s serves it instead of %s: %s", g->name,
                 g->backends.table[0]->name, name, dtr_last_error_message());
    }
    return dtr__select_describe(g);
}

/* Sets `n` to how many have been opened. One that fails on any rank fails on all; where another is
 * left and none was named by the caller, the group does without it. */
static dtr_status open_backends(dtr_group *g, int *n) {
    char what[48];
    dtr_status named = DTR_OK;
    for (*n = 0; *n < g->backends.n;) {
        dtr_status s = open_backend(g, *n);
        if (!dtr__user_backend_is(g->backends.table[*n])) {
            dtr_status mine = s;
            snprintf(what, sizeof what, "opening backend %s", g->backends.table[*n]->name);
            dtr__mpi_lock(g->world);
            s = dtr__agree_status(dtr__members_of_group(g), s, what);
            if (s < 0 && mine >= 0 && g->backends.table[*n]->close != NULL) {
                g->backends.table[*n]->close(g, g->backends.state[*n]);
            }
            dtr__mpi_unlock(g->world);
        }
        if (s >= 0) {
            (*n)++;
        } else if (g->backends.named || g->backends.n == 1) {
            return s;
        } else {
            g->backends.state[*n] = NULL;
            DTR_KEEP_FIRST(named, drop_backend(g, *n)); /* go on, the others do */
        }
    }
    return named;
}

static void log_group(const dtr_group *g) {
    const char *why, *device = dtr__device_backend(g, NULL, &why);
    char own[32] = "cpu";
    if (g->device.type == DTR_CUDA) {
        snprintf(own, sizeof own, "cuda:%d", g->device.index);
    }
    DTR_INFO(g->world,
             "group '%s' (id %" PRIu64 "): %d ranks, this is rank %d on %s; limits %g s, %g s on "
             "CUDA buffers; served by cpu:%s%s%s as \"%s\" asks%s%s",
             g->name, dtr__group_number(g), g->size, g->rank, own, g->timeout_s, g->timeout_cuda_s,
             g->backends.table[0]->name, device[0] != '\0' ? ", cuda:" : "", device,
             g->backends.asked, why[0] != '\0' ? ": " : "", why);
}

dtr_status dtr__group_connect(dtr_group *group) {
    int n = 0;
    dtr_status s = open_backends(group, &n);
    if (s >= 0) {
        s = dtr__devices_open(group);
    }
    if (s >= 0) {
        s = dtr__engine_open(group,
                             dtr__group_is_world(group) ? group : dtr_world_group(group->world));
    }
    if (s < 0) {
        dtr__devices_close(group);
        close_backends(group, n);
        return s;
    }
    group->asked.options = NULL; /* the caller's memory */
    group->asked.parent = NULL;
    group->magic = DTR__GROUP_MAGIC;
    log_group(group);
    return DTR_OK;
}

static void end_comm(dtr_group *g, MPI_Comm *comm, bool mpi_alive) {
    if (mpi_alive && *comm != MPI_COMM_NULL) {
        dtr__mpi_lock(g->world);
        if (g->size > 1 && atomic_load(&g->status) != DTR_OK) {
            dtr__mpi_keep(g->world, comm);
        } else if (!dtr__group_retire_comm(g, comm)) {
            dtr__mpi_free(comm);
        }
        dtr__mpi_unlock(g->world);
    }
    *comm = MPI_COMM_NULL;
}

dtr_status dtr__group_disconnect(dtr_group *group, bool mpi_alive, double left_s) {
    DTR_TRY(dtr__engine_close(group, dtr__engine_patience(group, left_s)));
    dtr__devices_close(group);
    close_backends(group, group->backends.n);
    dtr__key_value_drop(group);
    end_comm(group, &group->lent, mpi_alive);
    end_comm(group, &group->comm, mpi_alive);
    return DTR_OK;
}

/* ---- the world's list ---- */

void dtr__group_list(dtr_group *group) {
    dtr__groups *gs = group->world->groups;
    pthread_mutex_lock(&gs->lock);
    group->id = ++gs->last_id;
    group->prev = gs->last;
    group->next = NULL;
    *(gs->last != NULL ? &gs->last->next : &gs->first) = group;
    gs->last = group;
    pthread_mutex_unlock(&gs->lock);
    group->calls.run.words = dtr__rec_group_add(group->world, group->id, group->uid, group->name,
                                                group->rank, group->size, group->world_ranks);
    dtr__notifier_claim(group);
}

/* A destroyed handle is recognised for as long as a job is likely to hold on to it, not for ever: a
 * program that makes a group in every step would lose a kilobyte in each. */
enum { GONE_KEPT = 1024 };

static void bury(dtr__groups *gs, dtr_group *group) {
    group->magic = DTR__GROUP_GONE;
    group->prev = group->next = NULL;
    *(gs->gone != NULL ? &gs->last_gone->next : &gs->gone) = group;
    gs->last_gone = group;
    if (++gs->n_gone > GONE_KEPT) {
        dtr_group *oldest = gs->gone;
        gs->gone = oldest->next;
        gs->n_gone--;
        if (!oldest->engine->open) { /* else a thread hangs in it, which may come back */
            dtr__group_free(oldest);
        }
    }
}

void dtr__group_unlist(dtr_group *group) {
    dtr__groups *gs = group->world->groups;
    pthread_mutex_lock(&gs->lock);
    dtr__stall_watch_log_broken(group);
    atomic_fetch_sub(&gs->n_released, atomic_load(&group->release.n_others) > 0);
    *(group->prev != NULL ? &group->prev->next : &gs->first) = group->next;
    *(group->next != NULL ? &group->next->prev : &gs->last) = group->prev;
    bury(gs, group);
    pthread_mutex_unlock(&gs->lock);
    dtr__rec_group_end(group->world, group->id);
}

/* ---- queries ---- */

static bool is_live(const dtr_group *group) {
    return group != NULL && group->magic == DTR__GROUP_MAGIC;
}

int dtr_group_rank(const dtr_group *group) {
    return is_live(group) ? group->rank : -1;
}

int dtr_group_size(const dtr_group *group) {
    return is_live(group) ? group->size : -1;
}

int dtr_group_world_rank(const dtr_group *group, int group_rank) {
    bool in_range = is_live(group) && group_rank >= 0 && group_rank < group->size;
    return in_range ? group->world_ranks[group_rank] : -1;
}

int dtr_group_rank_of(const dtr_group *group, int world_rank) {
    return is_live(group) ? dtr__group_rank_of(group, world_rank) : -1;
}

uint64_t dtr_group_seq(const dtr_group *group) {
    return is_live(group) ? atomic_load(&group->count.seq) : 0;
}

const char *dtr_group_name(const dtr_group *group) {
    return is_live(group) ? group->name : "";
}

/* Calls that any thread may make at any time: below MPI_THREAD_MULTIPLE only the main thread can be
 * sure that nobody else is inside MPI. */
static void visit_from_any_thread(dtr_world *world) {
    int is_main = 1;
    if (world->mpi.thread_level != MPI_THREAD_MULTIPLE && dtr__mpi_alive()) {
        MPI_Is_thread_main(&is_main);
    }
    if (is_main) {
        dtr__notifier_visit(world);
    }
}

dtr_status dtr_group_status(const dtr_group *group) {
    dtr_status s = dtr__group_check(group, "dtr_group_status");
    if (s == DTR_OK) {
        visit_from_any_thread(group->world);
        s = (dtr_status)atomic_load(&group->status);
    }
    return s;
}

dtr_status dtr_group_get_info(const dtr_group *group, dtr_group_info *info) {
    dtr_status s = dtr__group_check(group, "dtr_group_get_info");
    if (s != DTR_OK) {
        return s;
    }
    dtr__error_context ctx = { .world = group->world,
                               .operation = "dtr_group_get_info",
                               .group = group->name };
    DTR_REQUIRE(info != NULL, &ctx, DTR_ERR_ARG, "dtr_group_get_info: info is NULL");
    DTR_REQUIRE(info->struct_size != 0, &ctx, DTR_ERR_ARG,
                "dtr_group_get_info: info->struct_size is 0; begin with DTR_GROUP_INFO_INIT");
    dtr_group_info all = {
        .struct_size = info->struct_size,
        .name = group->name,
        .desc = group->label.desc,
        .tag = group->label.tag,
        .backend_asked = group->backends.asked,
        .backend = group->backends.chosen,
        .rank = group->rank,
        .size = group->size,
        .world_ranks = group->world_ranks,
        .timeout_cpu_s = group->timeout_s,
        .timeout_cuda_s = group->timeout_cuda_s,
        .seq = atomic_load(&group->count.seq),
        .status = (dtr_status)atomic_load(&group->status),
    };
    memcpy(info, &all, info->struct_size < sizeof(all) ? info->struct_size : sizeof(all));
    return DTR_OK;
}

static dtr_status group_set_timeout(dtr_group *group, double timeout_s) {
    dtr_status s = dtr__group_check(group, "dtr_group_set_timeout");
    if (s != DTR_OK) {
        return s;
    }
    dtr__error_context ctx = { .world = group->world,
                               .operation = "dtr_group_set_timeout",
                               .group = group->name };
    DTR_REQUIRE(!isnan(timeout_s), &ctx, DTR_ERR_ARG,
                "dtr_group_set_timeout: timeout_s is not a number; give seconds, INFINITY for no "
                "limit, or 0 or a negative value for the world's");
    const bool given = timeout_s > 0;
    const dtr_world *world = group->world;
    pthread_mutex_lock(&group->engine->queue_lock);
    dtr__group_set_limits(group, given ? timeout_s : dtr__world_limit(world, DTR__TIMEOUT_CPU),
                          given ? timeout_s : dtr__world_limit(world, DTR__TIMEOUT_CUDA));
    pthread_mutex_unlock(&group->engine->queue_lock);
    DTR_INFO(world, "group '%s': limits are %g s, %g s on CUDA buffers from here on", group->name,
             group->timeout_s, group->timeout_cuda_s);
    return DTR_OK;
}

dtr_status dtr_group_set_timeout(dtr_group *group, double timeout_s) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_group_set_timeout", group->name,
                      group_set_timeout(group, timeout_s));
}

static dtr_status group_abort(dtr_group *group, const char *reason) {
    dtr_status s = dtr__group_check(group, "dtr_group_abort");
    if (s != DTR_OK || atomic_load(&group->status) != DTR_OK) {
        return s; /* already broken: the first reason stays */
    }
    dtr__error_context ctx = { .world = group->world,
                               .operation = "dtr_group_abort",
                               .group = group->name };
    int world_rank = group->world->rank;
    s = DTR_FAIL(&ctx, DTR_ERR_ABORTED, "group \"%s\" was aborted by rank %d (world rank %d): %s",
                 group->name, group->rank, world_rank,
                 reason != NULL && reason[0] != '\0' ? reason : "no reason was given");
    dtr__group_break(group, s);
    visit_from_any_thread(group->world);
    return DTR_OK;
}

dtr_status dtr_group_abort(dtr_group *group, const char *reason) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_group_abort", group->name,
                      group_abort(group, reason));
}
