/* How the library waits, everywhere by the same policy. */
#ifndef DTR_RT_BACKOFF_H
#define DTR_RT_BACKOFF_H

#include "base/clock.h"
#include "base/world.h"

/* Which CPUs the ranks of this node may use, for the wait policy. Collective over the node.
 * `scratch` has DTR__WAIT_SCRATCH bytes per local rank. */
enum { DTR__WAIT_SCRATCH = 128 };
dtr_status dtr__wait_open(dtr_world *world, void *scratch);

/* Hint to the processor: this rank polls memory until another one writes there. */
static inline void dtr__relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* One wait policy for the whole library: pauses while there is a core per rank, else yields at
 * once; naps after a while without movement, longer and longer ones where ranks share CPUs. Keep
 * one dtr__backoff per wait, zero it when something moved. */
typedef struct dtr__backoff {
    uint32_t spins;
    int32_t nap_ns;   /* set where a nap is due */
    int64_t since_ns; /* of the first yield */
    bool elsewhere;   /* who is asked between two steps gives the processor away: no step does */
} dtr__backoff;
void dtr__backoff_pause(const dtr_world *world,
                        dtr__backoff *b); /* world NULL: as where CPUs are oversubscribed */
/* One step of it; true instead of a nap, for a caller who has something else to do by then. */
bool dtr__backoff_due(const dtr_world *world, dtr__backoff *b);

#endif /* DTR_RT_BACKOFF_H */
