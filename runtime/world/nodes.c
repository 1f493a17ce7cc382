/* Numbering of nodes: a pure function of what the ranks have told each other. */
#include "world/nodes.h"

void dtr__number_nodes(dtr_world *w, const dtr__rank_facts *facts) {
    w->node_count = 0;
    for (int r = 0; r < w->size; r++) {
        const int leader = facts[r].leader;
        if (leader == r) {
            w->node_of[r] = w->node_count++;
            w->local_rank_of[r] = 0; /* until the end, how many of its node have followed it */
        } else {
            w->node_of[r] = w->node_of[leader];
            w->local_rank_of[r] = ++w->local_rank_of[leader];
        }
        if (leader == facts[w->rank].leader) {
            w->local_world[leader == r ? 0 : w->local_rank_of[r]] = r;
        }
    }
    for (int r = 0; r < w->size; r++) {
        w->local_rank_of[r] = facts[r].leader == r ? 0 : w->local_rank_of[r];
    }
    w->node = w->node_of[w->rank];
}
