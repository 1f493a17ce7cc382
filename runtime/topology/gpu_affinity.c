/* How near each GPU is to the cores that this rank may run on. */
#include "topology/gpu_affinity.h"

#include <stdbool.h>

#include "topology.h"

#ifdef DTR_HAVE_HWLOC

/* Levels from the GPU's place among the cores up to what it has in common with the rank's cores. */
static int levels(hwloc_topology_t t, hwloc_obj_t cores, const dtr__pci *gpu) {
    hwloc_obj_t pci = hwloc_get_pcidev_by_busid(t, (unsigned)gpu->domain, (unsigned)gpu->bus,
                                                (unsigned)gpu->device, 0);
    hwloc_obj_t at = pci != NULL ? hwloc_get_non_io_ancestor_obj(t, pci) : NULL;
    if (at == NULL) {
        return DTR__DISTANCE_UNKNOWN;
    }
    int n = at->depth - hwloc_get_common_ancestor_obj(t, cores, at)->depth;
    return n < DTR__DISTANCE_UNKNOWN ? n : DTR__DISTANCE_UNKNOWN;
}

static void look(hwloc_topology_t t, hwloc_bitmap_t set, const dtr__pci *gpus, int n,
                 uint8_t *distance) {
    hwloc_obj_t cores = NULL;
    if (hwloc_topology_is_thissystem(t) && hwloc_get_cpubind(t, set, HWLOC_CPUBIND_PROCESS) == 0) {
        cores = hwloc_get_obj_covering_cpuset(t, set);
    }
    for (int i = 0; cores != NULL && i < n; i++) {
        distance[i] = (uint8_t)levels(t, cores, &gpus[i]);
    }
}

/* No other kind of device: hwloc would ask CUDA's driver for those. */
static void keep_devices(hwloc_topology_t t) {
    hwloc_topology_set_type_filter(t, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
}

void dtr__gpu_affinity_read(const dtr__pci *gpus, int n, uint8_t *distance) {
    for (int i = 0; i < n; i++) {
        distance[i] = DTR__DISTANCE_UNKNOWN;
    }
    hwloc_topology_t t = n >= 2 ? dtr__topology_load(keep_devices) : NULL;
    if (t == NULL) { /* or nothing to choose from */
        return;
    }
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (set != NULL) {
        look(t, set, gpus, n, distance);
    }
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(t);
}

#else

void dtr__gpu_affinity_read(const dtr__pci *gpus, int n, uint8_t *distance) {
    (void)gpus;
    for (int i = 0; i < n; i++) { /* built without hwloc: all are as far */
        distance[i] = DTR__DISTANCE_UNKNOWN;
    }
}

#endif

int dtr__nearest_pick(const int *users, const uint8_t *distance, int n) {
    int best = -1;
    for (int i = 0; i < n; i++) {
        bool freer = best < 0 || users[i] < users[best];
        if (freer || (users[i] == users[best] && distance[i] < distance[best])) {
            best = i;
        }
    }
    return best;
}
