/* Notifications of broken groups: a rank that breaks a group notifies the other members, so that
 * all end with the same error instead of each at its own deadline. */
#ifndef DTR_NOTIFY_H
#define DTR_NOTIFY_H

#include "core/work.h"

/* broken: notify the other members, with this thread's last error as the cause; from any thread,
 * under any lock, it sends nothing itself. poll: send what is to be sent and receive what has come,
 * which may break groups; the caller may call MPI (below MPI_THREAD_MULTIPLE it holds the progress
 * lock) and runs the callbacks of `called` once it holds no lock. visit: the same for callers
 * without a lock, who need do nothing else. Both return at once when the last poll was a moment
 * ago. */
void dtr__notify_broken(dtr_group *group, dtr_status s);
void dtr__notify_nan(dtr_group *group); /* the same when this rank gave NaN, which breaks nothing */
/* The same to tell that this rank lets go of the group (failure/released.h). */
typedef struct dtr__release_message {
    uint64_t epoch, uid;
    uint64_t seq; /* collectives that the sender has called */
    uint64_t finished;
    char site[64];
} dtr__release_message;
void dtr__notify_released(dtr_group *group, const dtr__release_message *message);
void dtr__notifier_poll(dtr_world *world, dtr__queue *called);
void dtr__notifier_visit(dtr_world *world);
void dtr__notifier_visit_at(dtr_world *world, int64_t now_ns); /* the caller knows the time */
void dtr__notifier_visit_now(dtr_world *world); /* visit, whenever the last one was */

typedef struct dtr__notifier dtr__notifier;
dtr__notifier *dtr__notifier_new(dtr_world *world, uint64_t epoch); /* NULL: out of memory */
/* DTR_OK: no thread is inside any more; DTR_ERR_TIMEOUT: one still is after `limit_s`. */
dtr_status dtr__notifier_stop(dtr__notifier *ns, double limit_s);
void dtr__notifier_free(dtr__notifier *ns, bool mpi_alive);
/* Apply notifications that came before this rank had made the group. */
void dtr__notifier_claim(dtr_group *group);

/* Whether that status is the same on all members; else it is the failing rank's own, and REMOTE for
 * the others with this text: its group rank, world rank and status in front of its own. */
bool dtr__status_shared(dtr_status s);
#define DTR__PEER_FAILED "rank %d (world rank %d) failed with %s: "

#endif /* DTR_NOTIFY_H */
