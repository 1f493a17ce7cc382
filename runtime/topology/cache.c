/* hwloc is asked first: the C library's figure may be that of all such caches of a processor. */
#include "topology/cache.h"

#include <stdatomic.h>
#include <unistd.h>

#include "topology.h"

#ifdef DTR_HAVE_HWLOC

static size_t size_behind(hwloc_topology_t t, hwloc_const_cpuset_t set) {
    static const hwloc_obj_type_t levels[] = { HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE,
                                               HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE };
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        hwloc_obj_t cache = NULL;
        while ((cache = hwloc_get_next_obj_by_type(t, levels[i], cache)) != NULL) {
            if (hwloc_bitmap_intersects(cache->cpuset, set)) {
                return (size_t)cache->attr->cache.size;
            }
        }
    }
    return 0;
}

static void keep_caches(hwloc_topology_t t) {
    hwloc_topology_set_all_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_cache_types_filter(t, HWLOC_TYPE_FILTER_KEEP_ALL);
}

static size_t ask_hwloc(void) {
    hwloc_topology_t t = dtr__topology_load(keep_caches);
    size_t nbytes = 0;
    if (t == NULL) {
        return 0;
    }
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (set != NULL && hwloc_topology_is_thissystem(t) &&
        hwloc_get_cpubind(t, set, HWLOC_CPUBIND_PROCESS) == 0) {
        nbytes = size_behind(t, set);
    }
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(t);
    return nbytes;
}

#else

static size_t ask_hwloc(void) {
    return 0; /* built without it */
}

#endif

static size_t ask_libc(void) {
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long nbytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return nbytes > 0 ? (size_t)nbytes : 0;
#else
    return 0;
#endif
}

size_t dtr__last_cache(void) {
    static _Atomic size_t known;
    size_t nbytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (nbytes == 0) {
        nbytes = ask_hwloc();
        nbytes = nbytes > 0 ? nbytes : ask_libc();
        nbytes = nbytes > 0 ? nbytes : (size_t)32 << 20;
        atomic_store_explicit(&known, nbytes, memory_order_relaxed);
    }
    return nbytes;
}
