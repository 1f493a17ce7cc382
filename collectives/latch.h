/* The lock of whoever moves a group: given back by a plain store, which spares a small call the
 * second locked instruction of a mutex. Who has to wait for it yields.
 *
 * A repeated call (repeat.c) takes it NUMBERING until it has the numbers of its operation. Who
 * numbers an operation under the queue's lock only has made the group active before and waits until
 * nobody is NUMBERING; a repeated call that finds the group active takes no numbers. So the two
 * never meet, and the counters need no locked additions there. */
#ifndef DTR_LATCH_H
#define DTR_LATCH_H

#include <stdatomic.h>
#include <stdbool.h>

#include "rt_world.h"

enum { DTR__LATCH_FREE, DTR__LATCH_HELD, DTR__LATCH_NUMBERING };
typedef struct dtr__latch {
    _Atomic int state;
} dtr__latch;

static inline bool dtr__latch_try_as(dtr__latch *l, int state) {
    int expected = DTR__LATCH_FREE;
    return atomic_compare_exchange_strong_explicit(&l->state, &expected, state,
                                                   memory_order_seq_cst, memory_order_relaxed);
}
static inline bool dtr__latch_try(dtr__latch *l) {
    return dtr__latch_try_as(l, DTR__LATCH_HELD);
}
static inline void dtr__latch_take(const dtr_world *world, dtr__latch *l) {
    dtr__backoff wait = { 0 };
    while (!dtr__latch_try(l)) {
        dtr__backoff_pause(world, &wait);
    }
}
/* False: another thread has had it for all of `limit_s`. */
static inline bool dtr__latch_take_within(const dtr_world *world, dtr__latch *l, double limit_s) {
    dtr__backoff wait = { 0 };
    const double end = dtr__now() + limit_s;
    while (!dtr__latch_try(l)) {
        if (dtr__now() >= end) {
            return false;
        }
        dtr__backoff_pause(world, &wait);
    }
    return true;
}
static inline void dtr__latch_drop(dtr__latch *l) {
    atomic_store_explicit(&l->state, DTR__LATCH_FREE, memory_order_release);
}

/* NUMBERING is over, the latch is held on. */
static inline void dtr__latch_numbered(dtr__latch *l) {
    atomic_store_explicit(&l->state, DTR__LATCH_HELD, memory_order_release);
}
static inline void dtr__latch_wait_numbered(const dtr_world *world, dtr__latch *l) {
    dtr__backoff wait = { 0 };
    while (atomic_load_explicit(&l->state, memory_order_seq_cst) == DTR__LATCH_NUMBERING) {
        dtr__backoff_pause(world, &wait);
    }
}

#endif /* DTR_LATCH_H */
