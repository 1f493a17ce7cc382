/* Below MPI_THREAD_MULTIPLE one thread at a time may be inside the library, because it calls MPI
 * there. At DTR_DEBUG=detail, and in debug builds, a second one is refused; else world->turn is
 * NULL and nothing is checked. */
#ifndef DTR_TURN_H
#define DTR_TURN_H

#include <stdbool.h>

#include <dtr/world.h>

dtr_status dtr__turn_open(dtr_world *world);
void dtr__turn_close(dtr_world *world);

/* This thread enters the public call `entry`, made at `site`; DTR_ERR_STATE, which names both,
 * while another thread is inside. Calls inside a call are counted. Each that was let in ends with
 * `end`. */
dtr_status dtr__turn_begin(dtr_world *world, const char *entry, const char *site);
void dtr__turn_end(dtr_world *world);
bool dtr__turn_taken(dtr_world *world); /* by any thread */

#endif /* DTR_TURN_H */
