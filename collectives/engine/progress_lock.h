/* The lock of the thread that moves a group. Its release is a plain store, which saves a small call
 * the second locked instruction of a mutex. A thread that waits for it yields.
 *
 * A call on the fast path (api/fast_path.c) holds it as NUMBERING until it has the numbers of its
 * operation. A thread that numbers an operation under the queue lock alone first makes the group
 * active and then waits until no thread is NUMBERING; a call on the fast path that finds the group
 * active takes no numbers. So no two threads number at once, and the fast path counts without
 * locked additions. */
#ifndef DTR_PROGRESS_LOCK_H
#define DTR_PROGRESS_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "world/world.h"

enum { DTR__PROGRESS_LOCK_FREE, DTR__PROGRESS_LOCK_HELD, DTR__PROGRESS_LOCK_NUMBERING };
typedef struct dtr__progress_lock {
    _Atomic int state;
} dtr__progress_lock;

static inline bool dtr__progress_lock_try_as(dtr__progress_lock *l, int state) {
    int expected = DTR__PROGRESS_LOCK_FREE;
    return atomic_compare_exchange_strong_explicit(&l->state, &expected, state,
                                                   memory_order_seq_cst, memory_order_relaxed);
}
static inline bool dtr__progress_lock_try(dtr__progress_lock *l) {
    return dtr__progress_lock_try_as(l, DTR__PROGRESS_LOCK_HELD);
}
static inline void dtr__progress_lock_acquire(const dtr_world *world, dtr__progress_lock *l) {
    dtr__backoff wait = { 0 };
    while (!dtr__progress_lock_try(l)) {
        dtr__backoff_pause(world, &wait);
    }
}
/* False: another thread has had it for all of `limit_s`. */
static inline bool dtr__progress_lock_acquire_within(const dtr_world *world, dtr__progress_lock *l,
                                                     double limit_s) {
    dtr__backoff wait = { 0 };
    const double end = dtr__now() + limit_s;
    while (!dtr__progress_lock_try(l)) {
        if (dtr__now() >= end) {
            return false;
        }
        dtr__backoff_pause(world, &wait);
    }
    return true;
}
static inline void dtr__progress_lock_release(dtr__progress_lock *l) {
    atomic_store_explicit(&l->state, DTR__PROGRESS_LOCK_FREE, memory_order_release);
}

/* NUMBERING is over; the lock stays held. */
static inline void dtr__progress_lock_numbered(dtr__progress_lock *l) {
    atomic_store_explicit(&l->state, DTR__PROGRESS_LOCK_HELD, memory_order_release);
}
static inline void dtr__progress_lock_wait_numbered(const dtr_world *world, dtr__progress_lock *l) {
    dtr__backoff wait = { 0 };
    while (atomic_load_explicit(&l->state, memory_order_seq_cst) == DTR__PROGRESS_LOCK_NUMBERING) {
        dtr__backoff_pause(world, &wait);
    }
}

#endif /* DTR_PROGRESS_LOCK_H */
