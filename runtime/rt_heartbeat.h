/* Threads that should move and do not: the watchdog looks at its own rank's progress thread and at
 * both threads of the node's other ranks. */
#ifndef DTR_RT_HEARTBEAT_H
#define DTR_RT_HEARTBEAT_H

#include "rt_control.h"

typedef struct dtr__heartbeats dtr__heartbeats;

dtr__heartbeats *dtr__heartbeats_new(const dtr_world *world); /* NULL: no memory */
void dtr__heartbeats_free(dtr__heartbeats *hs);
/* One look, on the watchdog thread. `lost` is told once of a rank of this node whose thread has not
 * moved for DTR_HEARTBEAT_LIMIT; its own progress thread is given up before. */
void dtr__heartbeats_round(dtr_world *world, dtr__heartbeats *hs, dtr__control_lost lost);

#endif /* DTR_RT_HEARTBEAT_H */
