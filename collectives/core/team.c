/* A group as every room sees it: handle checks, and what broke it. */
#include <stdlib.h>
#include <string.h>

#include "core/team.h"

/* ---- handle checks ---- */

/* Entry points that have warned about a NULL group in this process. A table of the names' addresses
 * would miss equal literals of two files, so the names are compared. */
static pthread_mutex_t warned_lock = PTHREAD_MUTEX_INITIALIZER;
static const char *warned[96]; /* guarded by warned_lock */

static bool first_warning(const char *entry) {
    bool first = false;
    pthread_mutex_lock(&warned_lock);
    for (size_t i = 0; i < sizeof(warned) / sizeof(warned[0]); i++) {
        if (warned[i] == NULL) {
            warned[i] = entry;
            first = true;
            break;
        }
        if (strcmp(warned[i], entry) == 0) {
            break;
        }
    }
    pthread_mutex_unlock(&warned_lock);
    return first;
}

dtr_status dtr__group_check(const dtr_group *group, const char *entry) {
    DTR_TRY(dtr__fork_check(entry));
    if (group == NULL) {
        if (first_warning(entry)) {
            DTR_WARN(NULL,
                     "%s on a NULL group: this process is not in that group, nothing is done "
                     "(DTR_NOT_MEMBER; further calls do not warn)",
                     entry);
        }
        return DTR_NOT_MEMBER;
    }
    dtr__error_context ctx = { .operation = entry };
    DTR_REQUIRE(group->magic == DTR__GROUP_MAGIC, &ctx, DTR_ERR_STATE,
                "%s: the group is destroyed; make a new one with dtr_group_create or "
                "dtr_group_split",
                entry);
    return DTR_OK;
}

dtr_status dtr__group_closing(const dtr_group *group, const char *entry) {
    dtr__error_context ctx = { .operation = entry, .group = group->name };
    DTR_REQUIRE(!dtr__group_is_closing(group), &ctx, DTR_ERR_STATE,
                "%s on group '%s': its destruction has begun on this rank (dtr_group_destroy or "
                "dtr_world_destroy), so nothing more can be issued",
                entry, group->name);
    return DTR_OK;
}

dtr_status dtr__group_broken(const dtr_group *g) {
    return dtr__error_restore(g->error,
                              (dtr_status)atomic_load_explicit(&g->status, memory_order_acquire));
}

void dtr__group_set_limits(dtr_group *g, double cpu_s, double cuda_s) {
    g->timeout_s = cpu_s;
    g->timeout_cuda_s = cuda_s;
    g->limit_ns = cpu_s < 1e9 ? (int64_t)(cpu_s * 1e9) : 0;
}

dtr__members dtr__members_of_group(const dtr_group *g) {
    dtr__members m = dtr__members_of(g->world);
    m.comm = g->comm;
    m.rank = g->rank;
    m.size = g->size;
    m.uid = g->uid;
    m.world_ranks = g->world_ranks;
    return m;
}

bool dtr__group_retire_comm(dtr_group *g, MPI_Comm *comm) {
    enum { MOST = sizeof g->release.retired->comm / sizeof g->release.retired->comm[0] };
    if (g->release.retired == NULL || g->release.retired->n == MOST) {
        return false;
    }
    g->release.retired->comm[g->release.retired->n++] = *comm;
    *comm = MPI_COMM_NULL;
    return true;
}

bool dtr__group_is_released(const dtr_world *world, uint64_t uid) {
    dtr__groups *gs = world->groups;
    if (atomic_load(&gs->n_parked) == 0) {
        return false;
    }
    pthread_mutex_lock(&gs->lock);
    const dtr_group *g = gs->first;
    while (g != NULL && g->uid != uid) {
        g = g->next;
    }
    bool released = g != NULL && g->release.here;
    pthread_mutex_unlock(&gs->lock);
    return released;
}

int dtr__group_rank_of(const dtr_group *g, int world_rank) {
    int i = g->size - 1;
    while (i >= 0 && g->world_ranks[i] != world_rank) {
        i--;
    }
    return i;
}
