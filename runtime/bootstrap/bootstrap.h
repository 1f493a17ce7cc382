/* Ranks that find each other by keys and values of the program. */
#ifndef DTR_RT_BOOTSTRAP_H
#define DTR_RT_BOOTSTRAP_H

#include "bootstrap/inbox.h"

typedef struct dtr__bootstrap_settings {
    int most;       /* DTR_NODE_RANKS */
    double limit_s; /* how long the ranks wait for each other */
    const char *interface;
    double silence_s; /* of the connections between nodes */
} dtr__bootstrap_settings;

/* Collective over the ranks of `given`, a dtr_bootstrap: how they reach each other, once all have
 * come: the memory of each node, and TCP between nodes. What fails on one rank fails on all, with
 * one text, but for what is wrong with this rank's own arguments. */
dtr_status dtr__bootstrap_open(const dtr_bootstrap *given, const dtr__bootstrap_settings *set,
                               dtr__inbox **inbox);

#endif /* DTR_RT_BOOTSTRAP_H */
