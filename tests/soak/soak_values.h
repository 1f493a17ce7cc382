/* An operation of the soak, what its members give and what must come out. */
#ifndef SOAK_VALUES_H
#define SOAK_VALUES_H

#include "soak.h"

enum { GUARD = 64, TITLE = 160 };

typedef enum kind {
    BROADCAST,
    REDUCE,
    ALLREDUCE,
    ALLGATHER,
    GATHER,
    SCATTER,
    REDUCE_SCATTER,
    ALLTOALL,
    BARRIER,
    RING,
    KINDS
} kind;

/* One operation that every member has been given alike. */
typedef struct operation {
    uint64_t number;
    kind kind;
    dtr_dtype dtype;
    dtr_op op;
    size_t count; /* per block */
    int root, size, me;
    unsigned salt;
    dtr_buffer in, out; /* out.data is followed by GUARD bytes; in place: the same memory */
    dtr_work *work[2];
    bool in_place;
    char title[TITLE];
} operation;

/* Element k of what member r gives. */
int soak_value(const operation *o, int r, size_t k);
void soak_put(const operation *o, void *data, size_t k, int v);
double soak_get(const operation *o, const void *data, size_t k);
/* What element k of this rank's output must be. */
int soak_expected(const operation *o, size_t k);

#endif /* SOAK_VALUES_H */
