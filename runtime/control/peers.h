/* The other ranks as seen without their help: of this node by their recordings, mapped at world
 * creation, and their processes; of other nodes by what the control plane reports. Works while a
 * peer hangs, is stopped or is dead. */
#ifndef DTR_RT_PEERS_H
#define DTR_RT_PEERS_H

#include "control/control.h"
#include "recorder/recording.h"

/* Collective over the node. A peer that cannot be seen (another pid namespace, no /proc) is only
 * not watched; what fails is MPI. */
dtr_status dtr__peers_open(dtr_world *world);
void dtr__peers_close(dtr_world *world);

/* A copy of what the rank has recorded, the caller frees it; NULL: on another node, or not to be
 * seen. `alive` says whether its process runs. */
dtr__recording *dtr__peer_look(const dtr_world *world, int world_rank);
/* The same with its newest records only. */
dtr__recording *dtr__peer_glance(const dtr_world *world, int world_rank);
/* What the rank is doing or did last, in words: "it is outside the library since 2.1 s; its last
 * finished operation is ..., called at train.c:15"; "" when it cannot be seen. */
const char *dtr__peer_doing(const dtr_world *world, int world_rank, char *text, size_t cap);
/* "rank 2 (host a, pid 17)"; without host and pid when it cannot be seen. */
const char *dtr__peer_name(const dtr_world *world, int world_rank, char *text, size_t cap);
/* Newest collective number of the group with this uid that the rank has entered; false when it
 * cannot be seen, its recording is too short to say, or the newest report of its node is older than
 * `since_ns` although its node is not silent. */
bool dtr__peer_entered(const dtr_world *world, int world_rank, uint64_t group_uid, int64_t since_ns,
                       uint64_t *seq);
/* Group and number of the collective that the rank is inside; false: none, or not known. */
bool dtr__peer_inside(const dtr_world *world, int world_rank, uint64_t *group_uid, uint64_t *seq);
/* The same, or where it is in none of the one that it gave up last for a time-out. */
bool dtr__peer_waited(const dtr_world *world, int world_rank, uint64_t *group_uid, uint64_t *seq);
/* What it has called as collective `seq` of that group; false: it has not, or that is not known.
 * `label`, unless NULL: with its label (as long as a record's), known of this node's ranks only,
 * else "". */
bool dtr__peer_called(const dtr_world *world, int world_rank, uint64_t group_uid, uint64_t seq,
                      dtr__called *called, char *label);
/* The watchdog of a local rank has moved since then, or cannot be seen. */
bool dtr__peer_beats(const dtr_world *world, int local_rank, int64_t since_ns);

/* It has left the world and will call nothing more; false where it cannot be seen. */
bool dtr__peer_has_left(const dtr_world *world, int world_rank);

/* A rank of the world is known to have died, or to have ended without dtr_world_destroy. */
bool dtr__rank_failed(const dtr_world *world, int world_rank);
/* Notes it and what is known of it; true the first time. Any thread. `status`: what its groups end
 * with, DTR_ERR_REMOTE; DTR_ERR_TIMEOUT of a rank that lives but does not move. */
bool dtr__rank_set_failed(dtr_world *world, int world_rank, dtr_status status, const char *text);
dtr_status dtr__rank_failure_status(const dtr_world *world, int world_rank);
const char *dtr__rank_failure(const dtr_world *world, int world_rank); /* the text */
int dtr__ranks_failed(const dtr_world *world);                         /* how many */

/* For the watchdog: a descriptor that becomes readable when the local rank's process ends, -1:
 * none; and whether it has ended without having left the world. */
int dtr__peer_fd(const dtr_world *world, int local_rank);
bool dtr__peer_gone(const dtr_world *world, int local_rank);
/* A rank of this node runs another program in its process, which exec has begun: seen a few seconds
 * later. Such a one is gone. */
bool dtr__peer_execed(const dtr_world *world, int world_rank);
/* Its process is there and runs, is not stopped by a signal or a debugger. */
bool dtr__peer_runs(const dtr_world *world, int local_rank);
/* The peer's header as it is now, NULL: not to be seen. */
const dtr__rec_header *dtr__peer_header(const dtr_world *world, int local_rank);

#endif /* DTR_RT_PEERS_H */
