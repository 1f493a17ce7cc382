/* What the control plane knows of the ranks of other hosts, in a file beside a rank's recording:
 * the answer to dtr-top, which asks by a word in the recording. Nothing is asked of other hosts for
 * it; it is what they report anyway. */
#ifndef DTR_RT_REMOTE_RANKS_H
#define DTR_RT_REMOTE_RANKS_H

#include "control/control.h"

#define DTR__REMOTE_RANKS_MAGIC UINT64_C(0x31306b6e72527444) /* "DtRrnk01", little-endian */

typedef struct dtr__remote_rank {
    int32_t rank, node; /* of the world */
    uint32_t pid;
    int32_t status;  /* it has failed: what its groups end with; 0: it has not */
    uint32_t silent; /* 1: nothing has come from its node for longer than reports take */
    uint32_t unused;
    char host[64];
    dtr__rank_report report; /* seen_ns 0: none has come before it failed */
} dtr__remote_rank;

typedef struct dtr__remote_ranks {
    uint64_t magic, job_id;
    int64_t now_ns;    /* it was made then, on this host's clock */
    uint32_t answered; /* dtr__rec_header.remote_asked */
    uint32_t n;
    dtr__remote_rank rank[]; /* of which anything is known */
} dtr__remote_ranks;

/* For the watchdog: answers what has not been answered yet. `answered` is the caller's, 0 at first.
 */
void dtr__remote_ranks_round(dtr_world *world, uint32_t *answered);

/* Whether these bytes, aligned as memory of malloc is, are an answer of that job; all its texts end
 * then, and all numbers are in range. */
bool dtr__remote_ranks_take(dtr__remote_ranks *all, size_t nbytes, uint64_t job_id, int world_size);
/* The answer beside that recording; the caller frees it. NULL: none. */
dtr__remote_ranks *dtr__remote_ranks_load(const char *recording, uint64_t job_id, int world_size);

#endif /* DTR_RT_REMOTE_RANKS_H */
