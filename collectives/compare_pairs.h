/* Messages whose two ends are compared by their records (nccl/nccl_pairs.c), because what carries
 * them does not. */
#ifndef DTR_COMPARE_PAIRS_H
#define DTR_COMPARE_PAIRS_H

#include "coll_internal.h"

/* DTR_ERR_MISMATCH as this thread's last error where the ends of one of this rank's last messages
 * differ, naming both; DTR_OK: none is known. Asks nobody. */
dtr_status dtr__pairs_find_odd(const dtr_group *g);

/* The watchdog's look at those that have come since the last one; lock of the world's groups. */
void dtr__pairs_watch(dtr_group *g, int64_t now, dtr__queue *called);

#endif /* DTR_COMPARE_PAIRS_H */
