/* What is counted of operations where DTR_METRICS_FILE asks for it: the recorder counts, because
 * every operation passes it, and diagnosis/metrics.c writes the file. No function does anything
 * where world->recording.counters is NULL. */
#ifndef DTR_RT_COUNTERS_H
#define DTR_RT_COUNTERS_H

#include <pthread.h>
#include <stdatomic.h>

#include "recorder/recording.h"

/* A value of a higher layer, summed up over the world's life; the texts live for ever. */
typedef struct dtr__counter {
    const char *name, *help; /* the name of a counter, "dtr_..._total" */
} dtr__counter;

enum { DTR__COUNTED_STATUSES = 32, DTR__COUNTERS_MOST = 32 };

typedef struct dtr__counted_kind {
    _Atomic uint64_t issued, nbytes, ended, ns;
} dtr__counted_kind;

/* Zeroed at first, but for the lock. */
struct dtr__counters {
    dtr__counted_kind kind[DTR__RECORDING_KINDS];
    _Atomic uint64_t failed[DTR__COUNTED_STATUSES], broken[DTR__COUNTED_STATUSES]; /* by -status */
    _Atomic uint64_t waits, wait_ns;
    pthread_mutex_t lock; /* added, n_added */
    struct {
        const dtr__counter *of;
        double value;
    } added[DTR__COUNTERS_MOST]; /* in the order in which they came first */
    int n_added;
};

/* ---- any thread ---- */

void dtr__count_issued(const dtr_world *world, const dtr__record *r);
/* An operation of that kind has ended so long after its issue. */
void dtr__count_ended(const dtr_world *world, unsigned kind, int64_t ns);
void dtr__count_failed(const dtr_world *world, dtr_status s); /* an operation */
void dtr__count_broken(const dtr_world *world, dtr_status s); /* a group */
void dtr__count_waited(const dtr_world *world, int64_t ns);   /* a thread of the program */
void dtr__count_add(const dtr_world *world, const dtr__counter *which, double value);

#endif /* DTR_RT_COUNTERS_H */
