/* Which members of a group are on which node; nodes in the order of their lowest ranks. */
#ifndef DTR_CORE_NODES_H
#define DTR_CORE_NODES_H

#include "core/team.h"

/* Constant. What the world knows of its ranks is not kept once more. */
typedef struct dtr__nodes {
    int n, least;     /* nodes, and the ranks that each of them has at least */
    bool contiguous;  /* the ranks of every node follow each other in the group */
    const int *in;    /* [world size] node of the world that a rank of it is on */
    const int *ranks; /* [group size] of the world */
    int *number;      /* by node of the world: the group's, plus one; 0: none */
    int *first;       /* [n + 1] ranks of the nodes before it */
    int *place;       /* [group size] of a rank on its node; NULL: contiguous */
    int *member;      /* [group size] ranks, node after node; NULL: contiguous */
} dtr__nodes;

/* *nodes is freed with free, after the group; NULL where it is one node, or each rank has its own.
 * False: no memory. */
bool dtr__nodes_new(const dtr_group *group, dtr__nodes **nodes);

static inline int dtr__nodes_of(const dtr__nodes *nodes, int rank) {
    return nodes->number[nodes->in[nodes->ranks[rank]]] - 1;
}

static inline int dtr__nodes_count(const dtr__nodes *nodes, int d) {
    return nodes->first[d + 1] - nodes->first[d];
}

/* Of a rank among those of its node. */
static inline int dtr__nodes_place(const dtr__nodes *nodes, int rank) {
    return nodes->contiguous ? rank - nodes->first[dtr__nodes_of(nodes, rank)] : nodes->place[rank];
}

static inline int dtr__nodes_member(const dtr__nodes *nodes, int d, int place) {
    const int at = nodes->first[d] + place;
    return nodes->contiguous ? at : nodes->member[at];
}

#endif /* DTR_CORE_NODES_H */
