/* Reading the memory of local peers by address (cross-memory attach), usable on all ranks of a node
 * or on none. */
#ifndef DTR_RT_CMA_H
#define DTR_RT_CMA_H

#include "base/world.h"

/* Collective over the node, and agreed there: all ranks may read each other's memory or none does.
 * _as: with this rank's own ability spelled out, for tests. */
dtr_status dtr__cma_open(dtr_world *world);
dtr_status dtr__cma_open_as(dtr_world *world, bool able);
void dtr__cma_close(dtr_world *world);

bool dtr__cma_usable(const dtr_world *world);
/* Can the kernel read the ends of this rank's [ptr, ptr + nbytes), nbytes > 0? Device memory mapped
 * into the process is of a kind it cannot. */
bool dtr__cma_reaches(const void *ptr, size_t nbytes);
/* Copy from an address in the process of a local rank; false with errno on failure. */
bool dtr__cma_read(const dtr_world *world, int local_rank, void *to, uint64_t from, size_t nbytes);

#endif /* DTR_RT_CMA_H */
