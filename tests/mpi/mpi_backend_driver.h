/* Drives a backend directly, without engine and groups: a group filled by hand on its own
 * communicator, works made on the stack, start and progress called in a loop. */
#ifndef MPI_BACKEND_DRIVER_H
#define MPI_BACKEND_DRIVER_H

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "backends/mpi/mpi.h"
#include "backends/mpi/mpi_internal.h"
#include "core/backend.h"
#include "core/nodes.h"
#include "core/team.h"
#include "core/work.h"
#include "data.h"
#include "engine/engine.h"
#include "harness.h"

typedef struct driver {
    dtr_group group;
    dtr__group_engine engine; /* the number of its passes alone */
    dtr__mpi_state *state;
    int world_ranks[64];
} driver;

static inline void driver_open(driver *d) {
    memset(d, 0, sizeof *d);
    d->group.world = th_world();
    d->group.engine = &d->engine;
    d->group.rank = th_rank();
    d->group.size = th_size();
    d->group.world_ranks = d->world_ranks;
    for (int i = 0; i < 64; i++) {
        d->world_ranks[i] = i;
    }
    strcpy(d->group.name, "driver");
    static uint64_t groups;
    d->group.uid = ++groups;
    MPI_Comm_dup(MPI_COMM_WORLD, &d->group.comm);
    MPI_Comm_set_errhandler(d->group.comm, MPI_ERRORS_RETURN);
    void *state = NULL;
    TH_CHECK(dtr__nodes_new(&d->group, &d->group.backends.nodes), "no memory for its nodes");
    TH_IS(dtr__backend_mpi.open(&d->group, &state), DTR_OK);
    d->state = state;
    TH_AGREE();
}

static inline void driver_close(driver *d) {
    dtr__backend_mpi.close(&d->group, d->state);
    free(d->group.backends.nodes);
    MPI_Comm_free(&d->group.comm);
}

/* A work of this group; the caller completes w->call. */
static inline void driver_work(driver *d, dtr_work *w, dtr__kind kind) {
    memset(w, 0, sizeof *w);
    w->group = &d->group;
    w->world = d->group.world;
    w->call.kind = kind;
    w->call.file = __FILE__;
    w->call.line = __LINE__;
    w->call.premul = 1;
    w->source = -1;
    w->seq = dtr__kind_is_p2p(kind) ? ++d->group.count.p2p_seq : ++d->group.count.seq;
}

static inline dtr_status driver_start(driver *d, dtr_work *w, bool *done) {
    return dtr__backend_mpi.start(&d->group, d->state, w, done);
}

/* Until all are done or one fails; after the limit the unfinished are cancelled. Each work's status
 * is left in it. */
static inline dtr_status driver_finish(driver *d, dtr_work *w, bool *done, size_t n,
                                       double limit_s) {
    double end = th_now() + limit_s;
    dtr_status status = DTR_OK;
    for (size_t left = 1; left != 0 && status == DTR_OK;) {
        left = 0;
        d->engine.pass++;
        for (size_t i = 0; i < n; i++) {
            if (!done[i] && w[i].status == DTR_OK) {
                w[i].status = dtr__backend_mpi.progress(&d->group, d->state, &w[i], &done[i]);
                status = status == DTR_OK ? w[i].status : status;
                left += !done[i];
            }
        }
        if (left != 0 && th_now() > end) {
            status = DTR_ERR_TIMEOUT;
        }
        sched_yield();
    }
    for (size_t i = 0; i < n; i++) {
        dtr__backend_mpi.cancel(&d->group, d->state, &w[i]);
    }
    return status;
}

static inline dtr_status driver_run_for(driver *d, dtr_work *w, double limit_s) {
    bool done = false;
    w->status = driver_start(d, w, &done);
    return w->status < 0 || done ? w->status : driver_finish(d, w, &done, 1, limit_s);
}

static inline dtr_status driver_run(driver *d, dtr_work *w) {
    return driver_run_for(d, w, 20);
}

#endif /* MPI_BACKEND_DRIVER_H */
