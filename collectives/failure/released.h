/* Members that let go of a group while others still use it: the group goes on until all have, and
 * who calls a collective of it that needs one of them gets an error. */
#ifndef DTR_RELEASED_H
#define DTR_RELEASED_H

#include "core/team.h"
#include "failure/notify.h"

/* This rank lets go of the group: report it to the other members, and again (here or later, by
 * _poll) that its works have ended, unless they have already. `return_address`: of the call. The
 * lock of the world's groups is held. */
void dtr__release_begin(dtr_group *g, const void *return_address);
/* The same of a rank whose works have ended and that waits for the others to let go. */
void dtr__release_finished(dtr_group *g);
/* Look whether works of released groups have ended; for the progress thread and for waiters. */
void dtr__release_poll(dtr_world *world);
/* All members have let go and nothing of theirs is unfinished: nobody looks at this rank's memory
 * any more. The lock of the world's groups is held. */
bool dtr__release_is_over(const dtr_group *g);
/* "rank 1 has not released it, rank 2 has unfinished operations in it" */
const char *dtr__release_missing(const dtr_group *g, char *text, size_t cap);
/* Whether that member has told that it lets go; any lock may be held. */
bool dtr__release_has(const dtr_group *g, int rank);
/* Another member has told that. The lock of the world's groups is held. */
void dtr__release_receive(dtr_group *g, int from, const dtr__release_message *n);
/* Groups in which this rank has called more collectives than a member that let go break with
 * DTR_ERR_MISMATCH. The lock of the world's groups is held. */
void dtr__release_check(dtr_world *world, dtr__queue *called);
/* So does this one, of which this rank is in another `call` of all members. */
void dtr__release_break(dtr_group *g, const char *call);

#endif /* DTR_RELEASED_H */
