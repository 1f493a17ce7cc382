/* Which rank keeps the others waiting, from the recordings of several ranks side by side. */
#ifndef DTR_RT_LATE_H
#define DTR_RT_LATE_H

#include "rt_recording.h"

typedef struct dtr__late_rank {
    uint64_t operations; /* that this rank took part in and that all members seen have finished */
    uint64_t last;       /* into how many of them it was the last */
    double lag_s;        /* median of its lag behind the median member where it was the last */
    double longest_s;    /* the largest of these lags */
} dtr__late_rank;

typedef struct dtr__late {
    uint64_t operations;
    double each_s; /* time from the first operation to the last, per operation */
} dtr__late;

/* What is looked at: the newest collectives of each group, as far as the recordings hold them.
 * DTR__LATE_ALL_MEMBERS leaves out groups with a member that has no recording. */
enum { DTR__LATE_ALL_MEMBERS = 1 };

/* `rec` and `out` have `size` entries, by world rank; a recording may be NULL. False: no memory. */
bool dtr__late_find(dtr__recording *const *rec, int size, uint64_t newest, unsigned flags,
                    dtr__late_rank *out, dtr__late *all);

/* Looks at the ranks of this node; `whole`: at all that their recordings hold, else at the newest
 * records only, which costs little. False: no memory, or nothing to compare. `out` as above. */
bool dtr__late_look(const dtr_world *world, bool whole, dtr__late_rank *out, dtr__late *all);

/* At level info local rank 0 says it of the ranks of its node: a line per rank that was ever last.
 * Before the peers are let go of. */
void dtr__late_report(const dtr_world *world);

#endif /* DTR_RT_LATE_H */
