/* What DTR_METRICS_FILE tells of a rank: counters that the layers raise, written as a text file in
 * the form of Prometheus. Every function does nothing where world->metrics is NULL. */
#ifndef DTR_RT_METRICS_H
#define DTR_RT_METRICS_H

#include "rt_world.h"

/* Local. A file that cannot be written is one warning and no failure. */
dtr_status dtr__metrics_open(dtr_world *world);
/* Frees the counters; the file stays as it was last written. */
void dtr__metrics_close(dtr_world *world);
/* Writes the file when it is time. By the watchdog. */
void dtr__metrics_round(dtr_world *world);
/* Writes it now. The watchdog has ended; the recorder and the peers are still there. */
void dtr__metrics_write(dtr_world *world);

/* ---- counting, any thread ---- */

void dtr__metrics_issued(dtr__metrics *m, const dtr__record *r);
/* `kind` of an operation that has ended so long after its issue. */
void dtr__metrics_ended(dtr__metrics *m, unsigned kind, int64_t ns);
void dtr__metrics_failed(dtr__metrics *m, dtr_status s); /* an operation */
void dtr__metrics_broken(dtr__metrics *m, dtr_status s); /* a group */
void dtr__metrics_waited(dtr__metrics *m, int64_t ns);   /* a thread of the program */

/* A value of a higher layer, summed up over the world's life; `name` and `help` live for ever. */
typedef struct dtr__metric {
    const char *name, *help; /* the name of a counter, "dtr_..._total" */
} dtr__metric;
void dtr__metrics_add(const dtr_world *world, const dtr__metric *which, double value);

#endif /* DTR_RT_METRICS_H */
