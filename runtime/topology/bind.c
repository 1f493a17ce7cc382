/* Binds the progress thread to a core of its own where the node has one to spare. */
#include "topology/bind.h"
#include "base/log.h"
#include "base/world.h"
#include "topology.h"

#include <unistd.h>

void dtr__bind_check_gpu(dtr_world *world, int device) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (world->local_rank != world->cpus.first_narrow || world->cpus.n >= online ||
        atomic_exchange(&world->cpus.narrow_warned, true)) {
        return;
    }
    DTR_WARN(world,
             "this rank uses cuda:%d and is bound to %d of %ld CPUs, where its own thread, the "
             "progress thread and those of CUDA and NCCL share them; give each rank %d or more "
             "(mpirun --bind-to none, or --map-by slot:pe=%d)",
             device, world->cpus.n, online, DTR__GPU_CPUS, DTR__GPU_CPUS);
}

#ifdef DTR_HAVE_HWLOC

/* The core number `index` of those that lie completely within `set`; `*n` becomes how many there
 * are. */
static hwloc_obj_t core_within(hwloc_topology_t t, hwloc_const_cpuset_t set, int index, int *n) {
    hwloc_obj_t core = NULL, found = NULL;
    for (*n = 0; (core = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_CORE, core)) != NULL;) {
        if (hwloc_bitmap_isincluded(core->cpuset, set)) {
            found = *n == index ? core : found;
            (*n)++;
        }
    }
    return found;
}

/* Ranks that share a set of cores compute on the first ones, so their threads take the last. */
static void bind_within(dtr_world *world, hwloc_topology_t t, hwloc_bitmap_t set,
                        pthread_t thread) {
    int n;
    if (hwloc_get_cpubind(t, set, HWLOC_CPUBIND_PROCESS) != 0) {
        return;
    }
    core_within(t, set, -1, &n);
    if (n < 2 * world->cpus.sharers) {
        return;
    }
    hwloc_obj_t core = core_within(t, set, n - 1 - world->cpus.turn, &n);
    if (hwloc_set_thread_cpubind(t, thread, core->cpuset, 0) == 0) {
        DTR_INFO(world, "progress thread bound to core %u", core->os_index);
    }
}

static void keep_cores(hwloc_topology_t t) {
    hwloc_topology_set_all_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(t, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
}

void dtr__bind_thread(dtr_world *world, pthread_t thread) {
    hwloc_topology_t t =
        world->cpus.sharers > 0 && world->cpus.spare_cores ? dtr__topology_load(keep_cores) : NULL;
    if (t == NULL) {
        return;
    }
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (set != NULL && hwloc_topology_is_thissystem(t)) {
        bind_within(world, t, set, thread);
    }
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(t);
}

#else

void dtr__bind_thread(dtr_world *world, pthread_t thread) {
    (void)world, (void)thread; /* built without hwloc: the scheduler places it */
}

#endif
