/* Ranks that died or ended without leaving the world, and what is reported of ranks that others
 * wait for. */
#ifndef DTR_PEER_FAILURE_H
#define DTR_PEER_FAILURE_H

#include "core/work.h"

/* A rank of this node has ended: called by the watchdog. Breaks every group that it is in. */
void dtr__peer_ended(dtr_world *world, int world_rank);
/* The same, with the text of the rank that found it: of a rank of another node, as the control
 * plane reports, or of one that lives but does not move (DTR_ERR_TIMEOUT). */
void dtr__peer_reported(dtr_world *world, int world_rank, dtr_status status, const char *text);
/* The same of a rank of any node. `notify`: notify the others. This thread's last error stays. */
void dtr__peer_failed(dtr_world *world, int world_rank, dtr_status status, const char *text,
                      bool notify, dtr__queue *called);
/* Whether all is known of who has come to a work that can be known: else asks the nodes of those
 * who seem not to have. Nobody is to be named by what was reported before `since_ns`, the limit of
 * the work, unless the node does not answer. False: call it again; true within about a second. */
bool dtr__ask_missing(const dtr_group *g, const dtr_work *w, int64_t since_ns);
/* ". rank 2 (host a, pid 17): it is outside the library since 2.1 s; ..." for the members that have
 * not entered a work whose limit has passed, as far as they can be seen; "" for none. */
const char *dtr__name_missing(const dtr_group *g, const dtr_work *w, char *text, size_t cap);

#endif /* DTR_PEER_FAILURE_H */
