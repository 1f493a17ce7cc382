/* Ranks that find each other by keys and values of the program. */
#ifndef DTR_RT_BOOTSTRAP_H
#define DTR_RT_BOOTSTRAP_H

#include "bootstrap/inbox.h"

/* Collective over the ranks of `given`, a dtr_bootstrap: the memory that they share, once all have
 * come and have it. `most`: DTR_NODE_RANKS. What fails on one rank fails on all, with one text,
 * but for what is wrong with this rank's own arguments. DTR_ERR_UNSUPPORTED: ranks are on several
 * nodes. */
dtr_status dtr__bootstrap_open(const dtr_bootstrap *given, int most, double limit_s,
                               dtr__inbox **inbox);

#endif /* DTR_RT_BOOTSTRAP_H */
