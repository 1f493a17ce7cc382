/* Operations that ranks have called differently, as recordings, reports and backends tell. */
#ifndef DTR_FAILURE_MISMATCH_H
#define DTR_FAILURE_MISMATCH_H

#include "core/signature.h"

/* What all ranks say of `w` according to recordings and reports, which asks nobody Whether they
 * disagree; `all` has room for all, *missing of them have not been seen to enter it. Of `w` only
 * call, without its arrays, group, world and number are looked at. */
bool dtr__compare(const dtr_work *w, dtr__signature *all, int *missing);

/* Operations before the one in question that are compared too: who is past more has met a message
 * that does not fit, or nobody will know. */
enum { DTR__LOOK_BACK = 16 };

/* Whether that may be asked about operations of this kind. */
bool dtr__is_compared(dtr__kind kind);
/* What the group's backends know of calls that differ; see find_mismatch of the table. */
dtr_status dtr__backends_find_mismatch(dtr_group *g, int64_t now_ns);
/* What this rank's own recording says of an earlier operation, for dtr__compare, which writes no
 * site: that goes to `site`, as large as a declaration's. False: it is not known any more. */
bool dtr__recall(dtr_group *g, uint64_t seq, dtr_work *like, char *site);
/* DTR_ERR_MISMATCH as dtr__mismatch, about `w` or the first of the last few operations before
 * it on which the ranks have disagreed; DTR_OK: none is known. */
dtr_status dtr__find_mismatch(const dtr_work *w);

#endif /* DTR_FAILURE_MISMATCH_H */
