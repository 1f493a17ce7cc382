/* The mailbox of monitored barriers: one per world, for all its groups. */
#ifndef DTR_MONITOR_H
#define DTR_MONITOR_H

#include "coll_internal.h"

typedef struct dtr__monitors dtr__monitors;

dtr__monitors *dtr__monitors_new(uint64_t epoch); /* NULL: out of memory */
void dtr__monitors_free(dtr__monitors *m, bool mpi_alive);

#endif /* DTR_MONITOR_H */
