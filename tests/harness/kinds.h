/* The collective calls, for tests that go through all of them. */
#ifndef TH_KINDS_H
#define TH_KINDS_H

#include <stdbool.h>

typedef enum kind {
    BROADCAST,
    REDUCE,
    ALLREDUCE,
    SCAN,
    EXSCAN,
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

static const char *const kind_names[COLLECTIVES_WITH_DATA]
    __attribute__((unused)) = { "broadcast",       "reduce",    "allreduce",  "scan",
                                "exscan",          "allgather", "allgatherv", "gather",
                                "gatherv",         "scatter",   "scatterv",   "reduce_scatter",
                                "reduce_scatterv", "alltoall",  "alltoallv" };

static inline bool is_prefix(kind k) {
    return k == SCAN || k == EXSCAN;
}

/* Ranks 0 .. n-1 whose inputs the result of rank r of W is made of. */
static inline int sources(kind k, int r, int W) {
    return k == SCAN ? r + 1 : k == EXSCAN ? r : W;
}

static inline bool reduces(kind k) {
    return k == REDUCE || k == ALLREDUCE || is_prefix(k) || k == REDUCE_SCATTER ||
           k == REDUCE_SCATTERV;
}

#endif
