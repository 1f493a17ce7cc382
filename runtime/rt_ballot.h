/* Words of upper layers: each member of a group puts a small one for a step, and every member gets
 * the same one of them all. They lie in memory that the node shares and travel between nodes over
 * the control plane, as what breaks a group does (rt_verdict.h); no operation of the group is
 * needed. docs/internals.md tells how. */
#ifndef DTR_RT_BALLOT_H
#define DTR_RT_BALLOT_H

#include "rt_world.h"

/* Sent and shared as it is: no pointers, whole words. */
typedef struct dtr__ballot {
    uint64_t uid, step; /* of the group; steps of a group grow */
    int64_t put_ns;     /* when it was put, on this host's clock; between hosts how long ago */
    /* Of all words put: the lowest and the highest number, every bit that is set in any `bits`. */
    uint64_t low, high, bits;
    uint64_t value; /* this and what follows: of the word that counts */
    int32_t status; /* DTR_OK: nothing is wrong; a bad one counts more */
    int32_t origin; /* world rank */
    int32_t order;  /* among these the lowest counts, then the lowest rank */
    int32_t native, native_code;
    uint32_t far;   /* the group has members on other nodes */
    uint32_t n_bad; /* of the agreed one: members whose status is bad */
    uint32_t unused;
    char native_text[120], text[1800];
} dtr__ballot;
_Static_assert(sizeof(dtr__ballot) % sizeof(uint64_t) == 0, "kept word by word");

typedef struct dtr__ballots dtr__ballots;

/* Collective over the world; only MPI can fail. Where a node of several ranks shares no memory, or
 * there are several nodes and no control plane, the whole world does without. */
dtr_status dtr__ballots_open(dtr_world *world);
void dtr__ballots_close(dtr_world *world);
bool dtr__ballots_serve(const dtr_world *world); /* the same on all ranks */

/* ---- any thread ---- */

/* Kinds of errors, the most serious first: what `order` is where a layer has no rule of its own. */
int32_t dtr__ballot_order(dtr_status s);
/* This rank's word; `origin`, `put_ns` and `far` are filled in. A second one for a step does not
 * count. A member puts the next step's only after it has got this one's. */
dtr_status dtr__ballot_put(dtr_world *world, const int *world_ranks, int n,
                           const dtr__ballot *mine);
/* What may end the wait for words: a status < 0, whose message is the thread's last error. */
typedef dtr_status (*dtr__ballot_stop)(void *arg);
/* The word that all agree on, once all of the n members have put theirs. DTR_ERR_TIMEOUT after
 * limit_s, naming who has not; at once what a death means (DTR_ERR_REMOTE) where one that has died
 * has not. `agreed` is untouched then. */
dtr_status dtr__ballot_get(dtr_world *world, const int *world_ranks, int n, uint64_t uid,
                           uint64_t step, double limit_s, dtr__ballot_stop stop, void *arg,
                           dtr__ballot *agreed);

/* ---- for the control plane, on the watchdog thread ---- */
enum { DTR__BALLOTS = 8 }; /* of a rank at a time; later ones take the place of earlier ones */
/* The k-th of a rank of this node for other nodes; 0: none, or that number has been told, else a
 * number that changes with it. */
uint64_t dtr__ballot_to_tell(const dtr_world *world, int local_rank, int k, uint64_t told,
                             dtr__ballot *out);
size_t dtr__ballot_bytes(const dtr__ballot *w); /* without what lies behind its text */
/* One of a rank of another node; put_ns on this host's clock. */
void dtr__ballot_heard(dtr_world *world, const dtr__ballot *w);

#endif /* DTR_RT_BALLOT_H */
