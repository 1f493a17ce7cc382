/* Ranks that died or ended without leaving the world, and what is told of ranks that others wait
 * for. */
#ifndef DTR_DEATH_H
#define DTR_DEATH_H

#include "coll_internal.h"

/* A rank of this node has ended: called by the watchdog. Breaks every group that it is in. */
void dtr__rank_ended(dtr_world *world, int world_rank);
/* The same, with the text of whoever saw it: of a rank of another node, as the control plane tells,
 * or of one that lives but does not move (DTR_ERR_TIMEOUT). */
void dtr__rank_reported(dtr_world *world, int world_rank, dtr_status status, const char *text);
/* The same of a rank of any node. `tell`: tell the other members. This thread's last error stays.
 */
void dtr__rank_lost(dtr_world *world, int world_rank, dtr_status status, const char *text,
                    bool tell, dtr__queue *called);
/* The first dead rank of a list, with what is known of it; -1: none. */
int dtr__first_dead(const dtr_world *world, const int *world_ranks, int n, const char **text);

/* ". rank 2 (host a, pid 17): it is outside the library since 2.1 s; ..." for the members that have
 * not entered a work whose limit has passed, as far as they can be seen; "" for none. */
const char *dtr__blame(const dtr_group *g, const dtr_work *w, char *text, size_t cap);

#endif /* DTR_DEATH_H */
