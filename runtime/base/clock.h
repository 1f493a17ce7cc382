/* Three clocks: monotonic time, the same without the time in which this process was stopped, for
 * limits, and a cheap one for records. */
#ifndef DTR_RT_CLOCK_H
#define DTR_RT_CLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

int64_t dtr__now_ns(void); /* monotonic nanoseconds: the same for all processes of a host */
/* For limits: seconds of the same clock without the time in which this process was stopped. Only
 * this process can make use of it. */
double dtr__now(void);
double dtr__now_at(int64_t monotonic_ns);        /* what it was then */
int64_t dtr__monotonic_at(double now_s);         /* the other way, if nothing stops it meanwhile */
int64_t dtr__hidden_since(int64_t monotonic_ns); /* left out since then */
/* Somebody calls dtr__now at least so often, as long as the process runs. */
void dtr__clock_watched(int64_t every_ns);
/* The same clock for records of what happened: cheaper, within a microsecond of it, never back in
 * one thread. */
int64_t dtr__stamp_ns(void);

#endif /* DTR_RT_CLOCK_H */
