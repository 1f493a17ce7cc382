/* What broke a group, agreed among its members before anybody is released. On a node whoever is
 * first is right: a word per group in memory that the node shares says who was. Nodes tell each
 * other theirs over the control plane, and all take the same of them. */
#ifndef DTR_RT_VERDICT_H
#define DTR_RT_VERDICT_H

#include "rt_world.h"

/* Sent and shared as it is: no pointers, whole words. */
typedef struct dtr__verdict {
    int64_t put_ns;    /* when it was put, on this host's clock */
    uint64_t uid, seq; /* of the group; of the operation */
    uint64_t also;     /* the group that breaks with it, 0: none */
    int32_t status;    /* as the origin has it */
    int32_t origin;    /* world rank */
    int32_t lost;      /* world rank + 1 whose death it is, 0: none */
    uint32_t far;      /* the group has members on other nodes */
    char operation[40], text[1880];
} dtr__verdict;
_Static_assert(sizeof(dtr__verdict) % sizeof(uint64_t) == 0, "kept word by word");

typedef struct dtr__verdicts dtr__verdicts;

/* Collective over the node; only MPI can fail. Where a node of several ranks shares no memory, it
 * does without. */
dtr_status dtr__verdicts_open(dtr_world *world);
void dtr__verdicts_close(dtr_world *world);

/* ---- any thread ---- */

/* This rank's account of what broke a group, unless the node has one already. False: it does
 * without. */
bool dtr__verdict_put(dtr_world *world, const dtr__verdict *v);
/* Whether the node has an account of that group: one look at a word. */
bool dtr__verdict_is_put(const dtr_world *world, uint64_t uid);
#define DTR__VERDICT_PATIENCE_NS INT64_C(1000000000)               /* with nodes that say nothing */
void dtr__verdict_wait_for(dtr_world *world, int64_t patience_ns); /* another one */
int64_t dtr__verdict_patience(const dtr_world *world);             /* there are verdicts */
/* True when it is settled: the nodes of all living members have said theirs, also of the group that
 * breaks with it, or patience is over. */
bool dtr__verdict_settled(const dtr_world *world, uint64_t uid, const int *world_ranks, int n,
                          dtr__verdict *out);

/* ---- for the control plane, on the watchdog thread ---- */
enum { DTR__VERDICTS = 8 }; /* groups at a time; later ones take the place of earlier ones */
/* The node's k-th for other nodes; 0: none, else a number that changes with it. */
uint64_t dtr__verdict_to_tell(const dtr_world *world, int k, dtr__verdict *out);
/* What another node says of a group with members here. */
void dtr__verdict_heard(dtr_world *world, int node, const dtr__verdict *v);

#endif /* DTR_RT_VERDICT_H */
