/* Which ranks of a world are on which node. */
#ifndef DTR_RT_NODES_H
#define DTR_RT_NODES_H

#include "base/world.h"

/* What each rank sends the others at the world's creation. */
typedef struct dtr__rank_facts {
    int leader;  /* lowest world rank of the node */
    uint64_t id; /* rank 0's becomes the world's */
} dtr__rank_facts;

/* Fill the world's tables: nodes in the order of their lowest ranks, and the ranks of each in that
 * of the world. A few steps for each rank of the world. */
void dtr__number_nodes(dtr_world *w, const dtr__rank_facts *facts);

#endif /* DTR_RT_NODES_H */
