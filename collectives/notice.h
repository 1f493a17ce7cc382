/* News of broken groups: whoever breaks a group tells its other members, so that all end with the
 * same error instead of each at its own deadline. */
#ifndef DTR_NOTICE_H
#define DTR_NOTICE_H

#include "coll_internal.h"

typedef struct dtr__notices dtr__notices;
dtr__notices *dtr__notices_new(dtr_world *world, uint64_t epoch); /* NULL: out of memory */
/* Nobody is inside any more, or DTR_ERR_TIMEOUT: somebody still is after `limit_s`. */
dtr_status dtr__notices_stop(dtr__notices *ns, double limit_s);
void dtr__notices_free(dtr__notices *ns, bool mpi_alive);
/* News of a group that had not been made here when they came. */
void dtr__notices_claim(dtr_group *group);

/* Whether that status is the same on all members; else it is the failing rank's own, and REMOTE for
 * the others with this text: its group rank, world rank and status in front of its own. */
bool dtr__status_shared(dtr_status s);
#define DTR__PEER_FAILED "rank %d (world rank %d) failed with %s: "

#endif /* DTR_NOTICE_H */
