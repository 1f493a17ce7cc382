/* What DTR_METRICS_FILE shows of a rank: counters that the layers raise, written as a text file in
 * the form of Prometheus. Every function does nothing where world->diagnosis.metrics is NULL. */
#ifndef DTR_RT_METRICS_H
#define DTR_RT_METRICS_H

#include "base/world.h"

/* Local. A file that cannot be written is one warning and no failure. */
dtr_status dtr__metrics_open(dtr_world *world);
/* Frees the counters; the file stays as it was last written. */
void dtr__metrics_close(dtr_world *world);
/* Writes the file when it is time. By the watchdog. */
void dtr__metrics_round(dtr_world *world);
/* Writes it a last time, or removes it where DTR_METRICS_KEEP says so. The watchdog has ended; the
 * recorder and the peers are still there. */
void dtr__metrics_last(dtr_world *world);

#endif /* DTR_RT_METRICS_H */
