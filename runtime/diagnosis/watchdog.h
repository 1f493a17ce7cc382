/* The watchdog thread: it beats, sees peers end, and writes what is asked for. */
#ifndef DTR_RT_WATCHDOG_H
#define DTR_RT_WATCHDOG_H

#include "control/control.h"

/* On that thread `died` is called once per rank of this node, `rank_failed` for ranks of others and
 * for those that live but do not move, `round` every time. They must not block. */
dtr_status dtr__watchdog_start(dtr_world *world, void (*died)(dtr_world *world, int world_rank),
                               dtr__control_rank_failed rank_failed,
                               void (*round)(dtr_world *world));
void dtr__watchdog_stop(dtr_world *world); /* joins; nothing happens where there is none */

#endif /* DTR_RT_WATCHDOG_H */
