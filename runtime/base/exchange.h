/* How ranks exchange facts while a world or a group is made. All members make the same calls in the
 * same order and wait for each other, so only where all are known to come. What carries the facts,
 * MPI or something else, is a table of three functions. */
#ifndef DTR_RT_BASE_EXCHANGE_H
#define DTR_RT_BASE_EXCHANGE_H

#include "base/world.h"

typedef struct dtr__members {
    const struct dtr__exchange_ops *ops;
    const dtr_world *world; /* of messages; NULL: there is none yet */
    int rank, size;
    MPI_Comm comm;            /* over MPI, else: */
    struct dtr__inbox *inbox; /* what carries messages, */
    uint64_t uid;             /* what tells those of these members apart, */
    const int *world_ranks;   /* and who they are; NULL: all of the world */
} dtr__members;

typedef struct dtr__exchange_ops {
    dtr_status (*allgather)(const dtr__members *m, const void *mine, void *all, size_t nbytes);
    dtr_status (*broadcast)(const dtr__members *m, void *data, size_t nbytes, int root);
    dtr_status (*min)(const dtr__members *m, const uint64_t *mine, uint64_t *least, int n);
} dtr__exchange_ops;

enum { DTR__MEMBERS_OF_WORLD = 1, DTR__MEMBERS_OF_NODE = -1 }; /* uid; a group's is its own */

/* The ranks of a communicator, before there is a world; all ranks of the world, and those of its
 * node. */
dtr__members dtr__members_over(MPI_Comm comm, int rank, int size);
dtr__members dtr__members_of(const dtr_world *world);
dtr__members dtr__members_of_node(const dtr_world *world);

/* `all`: nbytes of each rank, its `mine`. */
dtr_status dtr__exchange_allgather(dtr__members m, const void *mine, void *all, size_t nbytes);
dtr_status dtr__exchange_broadcast(dtr__members m, void *data, size_t nbytes, int root);
/* The least of each of n numbers. */
dtr_status dtr__exchange_min(dtr__members m, const uint64_t *mine, uint64_t *least, int n);
/* The same of one that is not negative, such as a flag; on failure `*least` is untouched. */
dtr_status dtr__exchange_min_of(dtr__members m, int mine, int *least);

/* All agree on one status: when any rank has a negative one, it keeps its own and every other rank
 * returns DTR_ERR_REMOTE naming the lowest failing rank with its status and text. `what` names the
 * creation in the message. */
dtr_status dtr__agree_status(dtr__members m, dtr_status mine, const char *what);

#endif /* DTR_RT_BASE_EXCHANGE_H */
