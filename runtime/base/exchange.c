/* Exchanging facts over MPI, and how ranks agree on a status over whatever carries them. */
#include <stdio.h>

#include "base/exchange.h"

/* ---- over MPI ---- */

static dtr_status mpi_allgather(const dtr__members *m, const void *mine, void *all, size_t nbytes) {
    const dtr__error_context ctx = { .world = m->world };
    const int n = (int)nbytes;
    DTR_MPI(&ctx, MPI_Allgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, m->comm));
    return DTR_OK;
}

static dtr_status mpi_broadcast(const dtr__members *m, void *data, size_t nbytes, int root) {
    const dtr__error_context ctx = { .world = m->world };
    DTR_MPI(&ctx, MPI_Bcast(data, (int)nbytes, MPI_BYTE, root, m->comm));
    return DTR_OK;
}

static dtr_status mpi_min(const dtr__members *m, const uint64_t *mine, uint64_t *least, int n) {
    const dtr__error_context ctx = { .world = m->world };
    DTR_MPI(&ctx, MPI_Allreduce(mine, least, n, MPI_UINT64_T, MPI_MIN, m->comm));
    return DTR_OK;
}

static const dtr__exchange_ops over_mpi = { mpi_allgather, mpi_broadcast, mpi_min };

/* ---- members ---- */

dtr__members dtr__members_over(MPI_Comm comm, int rank, int size) {
    return (dtr__members){ .ops = &over_mpi, .comm = comm, .rank = rank, .size = size };
}

static dtr__members in_world(const dtr_world *world, MPI_Comm comm, int rank, int size,
                             uint64_t uid) {
    dtr__members m = dtr__members_over(comm, rank, size);
    m.world = world;
    m.uid = uid;
    if (world->mpi.inbox != NULL) {
        m.inbox = world->mpi.inbox;
        m.ops = world->mpi.exchange;
    }
    return m;
}

dtr__members dtr__members_of(const dtr_world *world) {
    return in_world(world, world->mpi.comm, world->rank, world->size, DTR__MEMBERS_OF_WORLD);
}

dtr__members dtr__members_of_node(const dtr_world *world) {
    dtr__members m = in_world(world, world->mpi.node_comm, world->local_rank, world->local_size,
                              DTR__MEMBERS_OF_NODE);
    m.world_ranks = world->local_world;
    return m;
}

/* ---- calls ---- */

dtr_status dtr__exchange_allgather(dtr__members m, const void *mine, void *all, size_t nbytes) {
    return m.ops->allgather(&m, mine, all, nbytes);
}

dtr_status dtr__exchange_broadcast(dtr__members m, void *data, size_t nbytes, int root) {
    return m.ops->broadcast(&m, data, nbytes, root);
}

dtr_status dtr__exchange_min(dtr__members m, const uint64_t *mine, uint64_t *least, int n) {
    return m.ops->min(&m, mine, least, n);
}

dtr_status dtr__exchange_min_of(dtr__members m, int mine, int *least) {
    const uint64_t own = (uint64_t)mine;
    uint64_t all = 0;
    DTR_TRY(m.ops->min(&m, &own, &all, 1));
    *least = (int)all;
    return DTR_OK;
}

/* ---- agreement ---- */

typedef struct failed_rank {
    int status, world_rank;
    char host[64], text[1024];
} failed_rank;

dtr_status dtr__agree_status(dtr__members m, dtr_status mine, const char *what) {
    const dtr__error_context ctx = { .world = m.world };
    int first = m.size;
    DTR_TRY(dtr__exchange_min_of(m, mine < 0 ? m.rank : m.size, &first));
    if (first == m.size) {
        return mine;
    }
    failed_rank v = { 0 };
    if (first == m.rank) {
        dtr_error e = DTR_ERROR_INIT;
        dtr_last_error(&e);
        v.status = mine;
        v.world_rank = m.world != NULL ? m.world->rank : m.rank;
        snprintf(v.host, sizeof v.host, "%s", e.host);
        snprintf(v.text, sizeof v.text, "%s", e.message);
    }
    DTR_TRY(dtr__exchange_broadcast(m, &v, sizeof v, first));
    if (mine < 0) {
        return mine;
    }
    return DTR_FAIL(&ctx, DTR_ERR_REMOTE, "%s failed on rank %d (host %s) with %s: %s", what,
                    v.world_rank, v.host, dtr_status_name((dtr_status)v.status), v.text);
}
