/* Votes: what the members of a group decide without an operation of the group, in memory that the
 * node shares and, between nodes, over the control plane. There are two kinds.
 *
 * A step vote: each member puts a small vote for a step, and every member gets the same one of them
 * all. A failure record: what broke a group, agreed among its members before anybody is released.
 * On a node the first record counts; between nodes the most serious one counts. */
#ifndef DTR_RT_VOTE_H
#define DTR_RT_VOTE_H

#include "base/world.h"

/* Sent and shared as it is: no pointers, whole words. */
typedef struct dtr__vote {
    uint64_t uid, step; /* of the group; steps of a group grow */
    int64_t put_ns;     /* when it was put, on this host's clock; between hosts how long ago */
    /* Of all votes: the lowest and the highest number, every bit that is set in any `bits`. */
    uint64_t low, high, bits;
    /* This and what follows belong to the vote that counts. */
    union {
        uint64_t value;
        uint64_t also; /* of a failure record: the group that breaks with it, 0: none */
    };
    uint64_t seq;   /* of a failure record: of the operation */
    int32_t status; /* DTR_OK: nothing is wrong; a bad one counts more */
    int32_t origin; /* world rank */
    int32_t order;  /* among these the lowest counts, then the lowest rank */
    int32_t native;
    union {
        int32_t native_code;
        int32_t failed_rank; /* of a failure record: world rank + 1 whose failure it is, 0: none */
    };
    uint32_t remote; /* the group has members on other nodes */
    uint32_t n_bad;  /* of the agreed one: members whose status is bad */
    uint32_t n_node; /* of one: members on the voter's node */
    union {
        char native_text[120];
        char operation[120]; /* of a failure record */
    };
    char text[1800];
} dtr__vote;
_Static_assert(sizeof(dtr__vote) % sizeof(uint64_t) == 0, "kept word by word");

typedef dtr__vote dtr__failure_record;
typedef struct dtr__votes dtr__votes;
#define DTR__FAILURE_STEP UINT64_MAX /* `step` of failure records */

enum {
    DTR__VOTES = 8,           /* step votes of a rank at a time */
    DTR__FAILURE_RECORDS = 8, /* groups at a time; later ones take the place of earlier ones */
    DTR__VOTE_ENTRIES = DTR__VOTES + DTR__FAILURE_RECORDS
};

/* Collective over the world; only MPI can fail. Where a node of several ranks shares no memory,
 * that node has no failure records; where any node has none, or there are several nodes and no
 * control plane, the whole world does without step votes. */
dtr_status dtr__votes_open(dtr_world *world);
void dtr__votes_close(dtr_world *world);

/* ---- step votes: any thread ---- */

bool dtr__votes_serve(const dtr_world *world); /* the same on all ranks */
/* Kinds of errors, the most serious first: what `order` is where a layer has no rule of its own. */
int32_t dtr__vote_order(dtr_status s);
/* Of two votes for one step: the one that counts, with the numbers and bits of both. */
void dtr__vote_merge(dtr__vote *all, const dtr__vote *one);
/* This rank's vote; `origin`, `put_ns` and `remote` are filled in. A second one for a step does not
 * count. A member puts the next step's only after it has got this one's. */
dtr_status dtr__vote_put(dtr_world *world, const int *world_ranks, int n, const dtr__vote *mine);
/* What may end the wait for votes: a status < 0, whose message is the thread's last error. */
typedef dtr_status (*dtr__vote_stop)(void *arg);
/* The vote that all agree on, once all of the n members have put theirs, this rank too.
 * DTR_ERR_TIMEOUT after limit_s, naming who has not; at once what its failure means
 * (DTR_ERR_REMOTE) where one that has failed has not. `agreed` is untouched then. */
dtr_status dtr__vote_get(dtr_world *world, const int *world_ranks, int n, uint64_t uid,
                         uint64_t step, double limit_s, dtr__vote_stop stop, void *arg,
                         dtr__vote *agreed);

/* ---- failure records: any thread ---- */

bool dtr__failure_records_serve(const dtr_world *world); /* this node has some */
/* This rank's record of what broke a group, unless the node has one already. False: it does
 * without. */
bool dtr__failure_record_put(dtr_world *world, const dtr__failure_record *v);
/* Whether the node has a record of that group: one load. */
bool dtr__failure_record_is_put(const dtr_world *world, uint64_t uid);
/* A word in the node's memory that changes when a record of that group is put, and may when one of
 * another group is. NULL: there are no records. */
const _Atomic uint64_t *dtr__failure_record_mark(const dtr_world *world, uint64_t uid);
#define DTR__FAILURE_PATIENCE_NS INT64_C(1000000000) /* with nodes that say nothing */
void dtr__failure_record_wait_for(dtr_world *world, int64_t patience_ns); /* another one */
int64_t dtr__failure_record_patience(const dtr_world *world);             /* there are records */
/* True when it is settled: the nodes of all living members have sent theirs, also of the group that
 * breaks with it, or patience is over. */
bool dtr__failure_record_settled(const dtr_world *world, uint64_t uid, const int *world_ranks,
                                 int n, dtr__failure_record *out);

/* ---- for the control plane, on the watchdog thread ---- */

/* The k-th of DTR__VOTE_ENTRIES of a rank of this node, for other nodes; 0: none, or that number
 * has been sent, else a number that changes with it. */
uint64_t dtr__vote_to_propagate(const dtr_world *world, int local_rank, int k, uint64_t sent,
                                dtr__vote *out);
size_t dtr__vote_bytes(const dtr__vote *v); /* without what lies behind its text */
/* The record of node `from` on a group with members here. */
void dtr__failure_record_receive(dtr_world *world, int from, const dtr__failure_record *v);

#endif /* DTR_RT_VOTE_H */
