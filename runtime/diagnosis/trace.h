/* The trace of public calls (DTR_TRACE and DTR_NVTX). */
#ifndef DTR_RT_TRACE_H
#define DTR_RT_TRACE_H

#include "base/world.h"

dtr_status dtr__trace_open(dtr_world *world);
void dtr__trace_close(dtr_world *world);

/* ---- trace of public calls (diagnosis/trace.c, DTR_TRACE and DTR_NVTX) ----
 * DTR_TRACED is the status of `expression`, which makes the public call `call`; unless `trace` is
 * NULL a line says how it went. `on`: the group's name, or what else it is about; "" for nothing.
 * A call made inside another on the same thread has a level above 0. */
void dtr__trace_begin(dtr__trace *trace, const char *call, const char *on);
dtr_status dtr__trace_end(dtr_status status);
#define DTR_TRACED(trace, call, on, expression) \
    ((trace) == NULL ? (expression)             \
                     : (dtr__trace_begin((trace), (call), (on)), dtr__trace_end(expression)))
/* The creation of this world, which could not be traced before. */
void dtr__trace_created(const dtr_world *world, const char *call, int64_t began_ns);
/* A line that is no call, at the present level. */
void dtr__trace_note(const dtr__trace *trace, const char *what, double seconds, const char *fmt,
                     ...) DTR_PRINTF(4, 5);
/* With DTR_NVTX, a range of a profiler that may end on another thread; 0 where there is none. */
uint64_t dtr__trace_range_begin(const dtr__trace *trace, const char *what, const char *label);
void dtr__trace_range_end(uint64_t range);
static inline dtr__trace *dtr__trace_of(const dtr_world *world) {
    return world != NULL && world->magic == DTR__WORLD_MAGIC ? world->diagnosis.trace : NULL;
}

#endif /* DTR_RT_TRACE_H */
