/* Which nodes are connected: each with those that are a power of two away from it, on a ring of all
 * nodes in both directions. With up to five nodes that is each with each. */
#ifndef DTR_RT_RING_H
#define DTR_RT_RING_H

#include <stdbool.h>

enum { DTR__RING_MOST = 128 }; /* neighbours of a node, with those that stand in for others */

/* How far, the shorter way round. */
int dtr__ring_distance(int n, int a, int b);
/* They are a power of two apart: while all nodes live, those are the neighbours. */
bool dtr__ring_is_near(int n, int a, int b);
/* Of what began at node `from` and `me` has: whether `me` passes it on to its neighbour `to`. While
 * all nodes live each gets it once that way, after lg(n) hops at most. */
bool dtr__ring_passes_on(int n, int from, int me, int to);
/* Lists the neighbours of `me`, each once. A node that is out is left out, and the next one beyond
 * it that is not stands in for it. `near`: room for DTR__RING_MOST. */
typedef bool (*dtr__ring_out)(const void *arg, int node);
int dtr__ring_neighbours(int n, int me, dtr__ring_out is_out, const void *arg, int *near);

#endif /* DTR_RT_RING_H */
