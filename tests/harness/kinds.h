/* The collective calls, for tests that go through all of them. */
#ifndef TH_KINDS_H
#define TH_KINDS_H

#include <stdbool.h>

typedef enum kind {
    BROADCAST,
    REDUCE,
    ALLREDUCE,
    ALLGATHER,
    ALLGATHERV,
    GATHER,
    GATHERV,
    SCATTER,
    SCATTERV,
    REDUCE_SCATTER,
    REDUCE_SCATTERV,
    ALLTOALL,
    ALLTOALLV,
    COLLECTIVES_WITH_DATA,
    BARRIER = COLLECTIVES_WITH_DATA,
    SEND,
    RECV,
    KINDS
} kind;

static inline bool reduces(kind k) {
    return k == REDUCE || k == ALLREDUCE || k == REDUCE_SCATTER || k == REDUCE_SCATTERV;
}

#endif
