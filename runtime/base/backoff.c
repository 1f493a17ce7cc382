/* The one wait policy of the library. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/exchange.h"
#include "base/world.h"

enum {
    PAUSES = 4000,          /* before the first yield, where every rank has a core */
    YIELDS_PER_LOOK = 16,   /* between two readings of the clock */
    NAP_AFTER_NS = 1000000, /* without movement */
    NAP_NS = 50000,
    LONG_NAP_NS = 1000000, /* at most, where ranks share CPUs: who wakes takes one from who works */
    NAP_SHARE = 16         /* such naps are a fraction of the time waited */
};

_Static_assert(sizeof(cpu_set_t) <= DTR__WAIT_SCRATCH, "one set per local rank");

/* Who else runs on this rank's CPUs. */
static void count_sharers(dtr_world *world, const cpu_set_t *sets) {
    const cpu_set_t *mine = &sets[world->local_rank];
    cpu_set_t common;
    world->cpus.sharers = world->cpus.turn = 0;
    for (int i = 0; i < world->local_size; i++) {
        CPU_AND(&common, mine, &sets[i]);
        if (CPU_EQUAL(mine, &sets[i])) {
            world->cpus.turn += i < world->local_rank;
            world->cpus.sharers++;
        } else if (CPU_COUNT(&common) > 0) {
            world->cpus.sharers = world->cpus.turn = 0;
            return;
        }
    }
}

#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5
/* A control variable of MPI with one value, true or false. */
static bool variable_is_set(const char *name) {
    int provided, index, count = 0, value[16] = { 0 };
    MPI_T_cvar_handle handle;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) {
        return false;
    }
    if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
        if (count != 1 || MPI_T_cvar_read(handle, value) != MPI_SUCCESS) {
            value[0] = 0;
        }
        MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
    return value[0] != 0;
}
#endif

/* Open MPI yields in each poll that finds nothing, where its launcher finds too few cores or it is
 * told to. In version 4 both travel in the environment; its tools interface would say it too, but
 * loads all of Open MPI's components to do so. Later ones have the launcher's finding from PMIx,
 * and their interface is cheap. Where it is told otherwise, or by another MPI, both yield. */
static bool mpi_yields(void) {
#ifdef OPEN_MPI
    const char *value = getenv("OMPI_MCA_mpi_yield_when_idle");
    value = value != NULL ? value : getenv("OMPI_MCA_mpi_oversubscribe");
    if (value != NULL) {
        return atoi(value) != 0 || value[0] == 't' || value[0] == 'y';
    }
#if OMPI_MAJOR_VERSION >= 5
    return variable_is_set("mpi_yield_when_idle");
#endif
#endif
    return false;
}

dtr_status dtr__wait_open(dtr_world *world, void *scratch) {
    cpu_set_t mine, all, *sets = scratch;
    CPU_ZERO(&mine);
    world->cpus.n = 1;
    if (sched_getaffinity(0, sizeof mine, &mine) == 0) { /* fails on more than 1024 CPUs */
        world->cpus.n = CPU_COUNT(&mine);
    } else {
        memset(&mine, 0xff, sizeof mine);
    }
    DTR_TRY(dtr__exchange_allgather(dtr__members_of_node(world), &mine, sets, sizeof mine));
    CPU_ZERO(&all);
    world->cpus.first_narrow = -1;
    for (int i = world->local_size; i-- > 0;) {
        CPU_OR(&all, &all, &sets[i]);
        if (CPU_COUNT(&sets[i]) < DTR__GPU_CPUS) {
            world->cpus.first_narrow = i;
        }
    }
    world->cpus.oversubscribed = CPU_COUNT(&all) < world->local_size;
    world->cpus.spare_cores = CPU_COUNT(&all) >= 2 * world->local_size && world->cpus.n >= 2;
    count_sharers(world, sets);
    world->cpus.mpi_yields = world->mpi.inbox == NULL && mpi_yields();
    return DTR_OK;
}

static int32_t nap_after(const dtr_world *world, int64_t waited_ns) {
    if (world != NULL && !world->cpus.oversubscribed) {
        return NAP_NS;
    }
    const int64_t ns = waited_ns / NAP_SHARE;
    return ns < NAP_NS ? NAP_NS : ns > LONG_NAP_NS ? LONG_NAP_NS : (int32_t)ns;
}

bool dtr__backoff_due(const dtr_world *world, dtr__backoff *b) {
    uint32_t pauses = world == NULL || world->cpus.oversubscribed ? 0 : PAUSES;
    if (b->spins < pauses) {
        b->spins++;
        dtr__relax();
        return false;
    }
    uint32_t yields = b->spins - pauses;
    b->spins++;
    if (yields == 0) {
        b->since_ns = dtr__now_ns();
    } else if (yields % YIELDS_PER_LOOK == 0) {
        const int64_t waited = dtr__now_ns() - b->since_ns;
        if (waited > NAP_AFTER_NS) {
            b->nap_ns = nap_after(world, waited);
            b->spins--; /* look again next time */
            return true;
        }
    }
    if (!b->elsewhere) {
        sched_yield();
    }
    return false;
}

void dtr__backoff_pause(const dtr_world *world, dtr__backoff *b) {
    if (dtr__backoff_due(world, b)) {
        const struct timespec nap = { 0, b->nap_ns };
        nanosleep(&nap, NULL);
    }
}
