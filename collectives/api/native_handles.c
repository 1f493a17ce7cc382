/* Native handles of a group, for programs that call MPI or NCCL beside this library. */
#include <dtr/mpi.h>
#include <dtr/nccl.h>

#include "agreement/mailbox.h"
#include "api/issue.h"
#include "api_internal.h"
#include "backends/nccl/nccl_calls.h"
#include "core/team.h"
#include "memory/device.h"

/* ---- MPI ---- */

static int duplicate(const dtr_group *g, MPI_Comm *dup) {
    int code = MPI_Comm_dup(g->comm, dup);
    if (code == MPI_SUCCESS) {
        MPI_Comm_set_errhandler(*dup, MPI_ERRORS_RETURN);
    }
    return code;
}

/* MPI waits without a limit, so the members meet first, as those of a new group do. Not in a
 * barrier, which would wait for this rank's messages under way. */
static dtr_status await_all(dtr_group *g, const char *entry, void *return_address) {
    uint8_t here = 1;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.label = entry;
    const dtr__request r = { .kind = DTR__K_ALLREDUCE,
                             .op = DTR_MAX,
                             .root = -1,
                             .in = dtr_cpu(&here, 1, DTR_U8),
                             .out = dtr_cpu(&here, 1, DTR_U8),
                             .options = &o,
                             .tag_word = dtr__mix(0, DTR__K_COUNT),
                             .return_address = return_address };
    return dtr__coll_issue(g, &r, NULL);
}

static dtr_status make_comm(dtr_group *g, const char *entry, void *return_address) {
    dtr__error_context ctx = { .world = g->world, .operation = entry, .group = g->name };
    MPI_Comm dup = MPI_COMM_NULL;
    DTR_TRY(await_all(g, entry, return_address));
    dtr__mpi_lock(g->world);
    int code = duplicate(g, &dup);
    dtr_status s = code == MPI_SUCCESS
                       ? DTR_OK
                       : dtr__error_mpi(&ctx, code, "MPI_Comm_dup", __FILE__, __LINE__);
    s = dtr__agree_status(dtr__members_of_group(g), s, entry);
    if (s < 0 && dup != MPI_COMM_NULL) {
        dtr__mpi_keep(g->world, &dup);
    }
    dtr__mpi_unlock(g->world);
    g->lent = dup;
    return s;
}

static dtr_status mpi_comm(dtr_group *g, MPI_Comm *comm, void *return_address) {
    static const char entry[] = "dtr_group_mpi_comm";
    dtr_status s = dtr__may_block_in(g, entry, entry);
    if (s == DTR_NOT_MEMBER && comm != NULL) {
        *comm = MPI_COMM_NULL;
    }
    if (s != DTR_OK) {
        return s;
    }
    dtr__error_context ctx = { .world = g->world, .operation = entry, .group = g->name };
    DTR_REQUIRE(comm != NULL, &ctx, DTR_ERR_ARG, "%s: comm is NULL, the result has no place",
                entry);
    DTR_REQUIRE(g->world->mpi.inbox == NULL, &ctx, DTR_ERR_UNSUPPORTED,
                "%s: there are no communicators: " DTR__WHY_NO_MPI, entry);
    DTR_REQUIRE(dtr__mpi_alive(), &ctx, DTR_ERR_STATE,
                "%s: MPI_Finalize has been called, so there are no communicators any more", entry);
    pthread_mutex_lock(&g->world->groups->creation);
    s = g->lent == MPI_COMM_NULL ? make_comm(g, entry, return_address) : DTR_OK;
    if (s == DTR_OK) {
        *comm = g->lent;
    }
    pthread_mutex_unlock(&g->world->groups->creation);
    return s;
}

dtr_status dtr_group_mpi_comm(dtr_group *group, MPI_Comm *comm) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_group_mpi_comm", group->name,
                      mpi_comm(group, comm, __builtin_return_address(0)));
}

/* ---- NCCL ---- */

static dtr_status nccl_comm(dtr_group *g, dtr_device device, void **comm) {
    static const char entry[] = "dtr_group_nccl_comm";
    dtr_status s = dtr__group_check(g, entry);
    if (s == DTR_NOT_MEMBER && comm != NULL) {
        *comm = NULL;
    }
    if (s != DTR_OK) {
        return s;
    }
    dtr__error_context ctx = { .world = g->world, .operation = entry, .group = g->name };
    DTR_REQUIRE(comm != NULL, &ctx, DTR_ERR_ARG, "%s: comm is NULL, the result has no place",
                entry);
    const dtr__nccl_library *l = dtr__nccl_get();
    DTR_REQUIRE(l->ops != NULL, &ctx, DTR_ERR_UNSUPPORTED, "%s: there is no NCCL: %s", entry,
                l->reason);
    DTR_TRY(dtr__device_check(device, entry));
    DTR_REQUIRE(device.type == DTR_CUDA, &ctx, DTR_ERR_DEVICE,
                "%s: NCCL serves CUDA devices, not the host", entry);
    if (atomic_load(&g->status) != DTR_OK) {
        return dtr__group_broken(g);
    }
    return dtr__nccl_handle(g, device.index, entry, comm);
}

dtr_status dtr_group_nccl_comm(dtr_group *group, dtr_device device, void **comm) {
    return DTR_TRACED(dtr__group_trace(group), "dtr_group_nccl_comm", group->name,
                      nccl_comm(group, device, comm));
}
