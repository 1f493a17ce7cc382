/* Which rank keeps the others waiting, from the recordings of several ranks side by side. */
#ifndef DTR_RT_STRAGGLERS_H
#define DTR_RT_STRAGGLERS_H

#include "recorder/recording.h"

typedef struct dtr__straggler {
    uint64_t operations; /* that this rank took part in and that all members seen have finished */
    uint64_t last;       /* into how many of them it was the last */
    double lag_s;        /* median of its lag behind the median member where it was the last */
    double longest_s;    /* the largest of these lags */
} dtr__straggler;

typedef struct dtr__stragglers {
    uint64_t operations;
    double each_s; /* time from the first operation to the last, per operation */
} dtr__stragglers;

/* What is examined: the newest collectives of each group, as far as the recordings hold them.
 * DTR__STRAGGLERS_ALL_MEMBERS leaves out groups with a member that has no recording. */
enum { DTR__STRAGGLERS_ALL_MEMBERS = 1 };

/* `rec` and `out` have `size` entries, by world rank; a recording may be NULL. False: no memory. */
bool dtr__stragglers_find(dtr__recording *const *rec, int size, uint64_t newest, unsigned flags,
                          dtr__straggler *out, dtr__stragglers *all);

/* Looks at the ranks of this node; `whole`: at all that their recordings hold, else at the newest
 * records only, which costs little. False: no memory, or nothing to compare. `out` as above. */
bool dtr__stragglers_read(const dtr_world *world, bool whole, dtr__straggler *out,
                          dtr__stragglers *all);

/* At level info local rank 0 says it of the ranks of its node: a line per rank that was ever last.
 * Before the peers are let go of. */
void dtr__stragglers_report(const dtr_world *world);

#endif /* DTR_RT_STRAGGLERS_H */
