/* Threads that should move and do not: the watchdog looks at its own rank's progress thread and at
 * both threads of the node's other ranks. */
#ifndef DTR_RT_HEARTBEAT_H
#define DTR_RT_HEARTBEAT_H

#include "control/control.h"

typedef struct dtr__heartbeats dtr__heartbeats;

dtr__heartbeats *dtr__heartbeats_new(const dtr_world *world); /* NULL: no memory */
void dtr__heartbeats_free(dtr__heartbeats *hs);
/* One round, on the watchdog thread. It calls `rank_failed` once for a rank of this node whose
 * thread has not moved for DTR_HEARTBEAT_LIMIT; its own progress thread is given up before. */
void dtr__heartbeats_round(dtr_world *world, dtr__heartbeats *hs,
                           dtr__control_rank_failed rank_failed);

#endif /* DTR_RT_HEARTBEAT_H */
