/* What hwloc knows of this machine. */
#ifndef DTR_RT_TOPOLOGY_H
#define DTR_RT_TOPOLOGY_H

#ifdef DTR_HAVE_HWLOC
#include <hwloc.h>

/* The topology with what `keep` asks of it before it is loaded; hwloc_topology_destroy ends it.
 * NULL where it cannot be had. The caller's binding is left alone: Linux tells what hwloc would
 * otherwise find out by visiting each CPU in turn, all ranks of a node at once. */
hwloc_topology_t dtr__topology_load(void (*keep)(hwloc_topology_t));
#endif

#endif /* DTR_RT_TOPOLOGY_H */
