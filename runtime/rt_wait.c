/* The one wait policy of the library. */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "rt_internal.h"

enum {
    PAUSES = 4000,          /* before the first yield, where every rank has a core */
    YIELDS_PER_LOOK = 16,   /* between two looks at the clock */
    NAP_AFTER_NS = 1000000, /* without movement */
    NAP_NS = 50000
};

_Static_assert(sizeof(cpu_set_t) <= DTR__WAIT_SCRATCH, "one set per local rank");

/* Who else runs on this rank's CPUs. */
static void count_sharers(dtr_world *world, const cpu_set_t *sets) {
    const cpu_set_t *mine = &sets[world->local_rank];
    cpu_set_t common;
    world->cpu_sharers = world->cpu_turn = 0;
    for (int i = 0; i < world->local_size; i++) {
        CPU_AND(&common, mine, &sets[i]);
        if (CPU_EQUAL(mine, &sets[i])) {
            world->cpu_turn += i < world->local_rank;
            world->cpu_sharers++;
        } else if (CPU_COUNT(&common) > 0) {
            world->cpu_sharers = world->cpu_turn = 0;
            return;
        }
    }
}

/* Open MPI yields in each look that finds nothing, where it is told to, and shows that as a control
 * variable. MPI libraries without one are taken not to. */
static bool mpi_yields(void) {
    int level = MPI_THREAD_SINGLE, index, count = 0, verbosity, binding, scope, length = 0,
        none = 0;
    int on[4] = { 0 };
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_T_cvar_handle handle;
    MPI_T_enum names;
    /* Open MPI takes the level that is asked for here as that of the process from now on. */
    if (MPI_Query_thread(&level) != MPI_SUCCESS ||
        MPI_T_init_thread(level, &level) != MPI_SUCCESS) {
        return false;
    }
    if (MPI_T_cvar_get_index("mpi_yield_when_idle", &index) == MPI_SUCCESS &&
        MPI_T_cvar_get_info(index, NULL, &length, &verbosity, &type, &names, NULL, &none, &binding,
                            &scope) == MPI_SUCCESS &&
        (type == MPI_INT || type == MPI_C_BOOL) &&
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
        if (count != 1 || MPI_T_cvar_read(handle, on) != MPI_SUCCESS) {
            on[0] = 0;
        }
        MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
    return on[0] != 0;
}

dtr_status dtr__wait_open(dtr_world *world, void *scratch) {
    dtr__error_context ctx = { .world = world };
    cpu_set_t mine, all, *sets = scratch;
    const int nbytes = (int)sizeof mine;
    CPU_ZERO(&mine);
    world->cpus = 1;
    if (sched_getaffinity(0, sizeof mine, &mine) == 0) { /* fails on more than 1024 CPUs */
        world->cpus = CPU_COUNT(&mine);
    } else {
        memset(&mine, 0xff, sizeof mine);
    }
    DTR_MPI(&ctx, MPI_Allgather(&mine, nbytes, MPI_BYTE, sets, nbytes, MPI_BYTE, world->node_comm));
    CPU_ZERO(&all);
    for (int i = 0; i < world->local_size; i++) {
        CPU_OR(&all, &all, &sets[i]);
    }
    world->crowded = CPU_COUNT(&all) < world->local_size;
    world->roomy = CPU_COUNT(&all) >= 2 * world->local_size && world->cpus >= 2;
    count_sharers(world, sets);
    world->mpi_yields = mpi_yields();
    return DTR_OK;
}

static inline void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

bool dtr__backoff_due(const dtr_world *world, dtr__backoff *b) {
    uint32_t pauses = world == NULL || world->crowded ? 0 : PAUSES;
    if (b->spins < pauses) {
        b->spins++;
        cpu_relax();
        return false;
    }
    uint32_t yields = b->spins - pauses;
    b->spins++;
    if (yields == 0) {
        b->since_ns = dtr__now_ns();
    } else if (yields % YIELDS_PER_LOOK == 0 && dtr__now_ns() - b->since_ns > NAP_AFTER_NS) {
        b->spins--; /* look again next time */
        return true;
    }
    if (!b->elsewhere) {
        sched_yield();
    }
    return false;
}

void dtr__backoff_pause(const dtr_world *world, dtr__backoff *b) {
    if (dtr__backoff_due(world, b)) {
        struct timespec nap = { 0, NAP_NS };
        nanosleep(&nap, NULL);
    }
}
