/* The progress thread of a world, and the pollers that it serves. */
#ifndef DTR_RT_PROGRESS_H
#define DTR_RT_PROGRESS_H

#include "base/backoff.h"
#include "base/world.h"

/* Local. `beat` is where the thread counts its moves, for those who watch it; NULL: nobody does. */
dtr_status dtr__progress_open(dtr_world *world, _Atomic uint64_t *beat);
void dtr__progress_close(dtr_world *world); /* accepts a world without */

/* ---- progress (progress/progress.c) ----
 * A part that has unfinished operations registers a poller. The thread sleeps while no poller has
 * work; dtr__progress_wake after handing out work is never lost. A poller returns how much it
 * moved, DTR__POLL_LEFT where another thread moves it, or DTR__POLL_IDLE when it has no work. */
enum { DTR__POLL_IDLE, DTR__POLL_LEFT, DTR__POLL_WAITING, DTR__POLL_MOVED };
typedef struct dtr__poller {
    int (*poll)(struct dtr__poller
                    *self); /* progress thread or a caller inside the library; must try-lock */
    bool without_mpi;       /* calls no MPI; set before dtr__progress_add */
    /* The rest belongs to progress/progress.c, guarded by its list lock; dtr__progress_add sets it.
     */
    struct dtr__poller *next, *prev;
    int inside; /* threads in poll */
    bool listed, leaving;
} dtr__poller;
void dtr__progress_add(dtr_world *world, dtr__poller *p);
/* Returns once no thread is inside p->poll: must not be called from there. False: one still is
 * after `limit_s`, and p stays linked, though nobody enters it any more; try again, or leave it. */
bool dtr__progress_remove(dtr_world *world, dtr__poller *p, double limit_s);
/* Whether it is the progress thread that is inside p->poll. */
bool dtr__progress_is_at(dtr_world *world, const dtr__poller *p);
void dtr__progress_wake(dtr_world *world);
/* The same where a few milliseconds do not matter, because the caller is likely to wait soon: it
 * makes no system call unless the thread has been idle for that long. */
void dtr__progress_wake_soon(dtr_world *world);
/* Whether there is a thread that moves everything. Below MPI_THREAD_MULTIPLE there is one that
 * serves pollers without MPI only. */
bool dtr__progress_has_thread(const dtr_world *world);
/* Whether the caller is such a one: it calls neither MPI nor the program. */
bool dtr__progress_only_helps(const dtr_world *world);
bool dtr__progress_in_thread(const dtr_world *world); /* is the caller the progress thread? */
/* The native call that the thread is inside; NULL: none. */
const char *dtr__progress_inside(const dtr_world *world);
/* It has not moved for DTR_HEARTBEAT_LIMIT, or the end of a group has waited for it in vain: what
 * it may hold or touch is left in place from now on, and nobody waits for it. for_good: it is
 * another thread that hangs, and no thread can know whether it has come back. */
void dtr__progress_give_up(dtr_world *world);
void dtr__progress_give_up_for_good(dtr_world *world);
bool dtr__progress_stuck(dtr_world *world);
/* The thread is left to itself for good, and ends when it comes back. */
void dtr__progress_forget(dtr_world *world);
/* The caller waits for other ranks: a progress thread that does so does not count as hanging. */
void dtr__progress_rest(dtr_world *world);
/* One pass over all pollers from a caller's thread: what keeps other groups alive where there is no
 * progress thread. */
void dtr__progress_poll_all(dtr_world *world);

#endif /* DTR_RT_PROGRESS_H */
