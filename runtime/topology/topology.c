#include "topology.h"

#ifdef DTR_HAVE_HWLOC
#include <stddef.h>

hwloc_topology_t dtr__topology_load(void (*keep)(hwloc_topology_t)) {
    hwloc_topology_t t;
    if (hwloc_topology_init(&t) != 0) {
        return NULL;
    }
    keep(t);
#if HWLOC_API_VERSION >= 0x00020500
    hwloc_topology_set_flags(t, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
#endif
    if (hwloc_topology_load(t) != 0) {
        hwloc_topology_destroy(t);
        return NULL;
    }
    return t;
}

#else
typedef int dtr__no_topology; /* a file needs something */
#endif
