/* What each rank says of an operation, and the message for ranks that do not say the same. The
 * backends differ in how and when they compare; the answer reads alike. */
#ifndef DTR_DECLARE_H
#define DTR_DECLARE_H

#include "coll_internal.h"

typedef struct dtr__declaration {
    uint64_t fingerprint;
    uint64_t count_in, count_out;
    uint64_t gives, takes; /* elements to and from the rank it is made for, where only the two know;
                              else 0 */
    int32_t kind, dtype, op, root;
    int32_t absent, unused; /* 1: what this rank says is not known */
    char site[120];         /* of the call */
} dtr__declaration;

/* Is the world at DTR_DEBUG=detail, where all compare before data moves? */
bool dtr__at_detail(const dtr_world *w);

/* What this rank says of `w` to group rank `to`. */
void dtr__declare(const dtr_work *w, int to, dtr__declaration *d);

/* The same of a call, without what only pairs of ranks know. */
void dtr__declare_call(const dtr__call *c, dtr__declaration *d);

/* DTR_ERR_MISMATCH as this thread's last error: which field, what most ranks have and which do not,
 * and where both called from. `all` has one declaration per rank and not all fingerprints are
 * equal; in a tie the lowest rank counts as the majority. `moved`: data may have been. */
dtr_status dtr__disagreement(const dtr_work *w, const dtr__declaration *all, bool moved);

/* What all ranks say of `w` according to recordings and reports, which asks nobody (compare.c).
 * Whether they disagree; `all` has room for all, *missing of them have not been seen to enter it.
 * Of `w` only call, without its arrays, group, world and number are looked at. */
bool dtr__compare(const dtr_work *w, dtr__declaration *all, int *missing);

/* Operations before the one in question that are compared too: who is past more has met a message
 * that does not fit, or nobody will know. */
enum { DTR__LOOK_BACK = 16 };

/* Whether that may be asked about operations of this kind. */
bool dtr__is_compared(dtr__kind kind);
/* What this rank's own recording says of an earlier operation, for dtr__compare, which writes no
 * site: that goes to `site`, as large as a declaration's. False: it is not known any more. */
bool dtr__recall(dtr_group *g, uint64_t seq, dtr_work *like, char *site);
/* DTR_ERR_MISMATCH as dtr__disagreement, about `w` or the first of the last few operations before
 * it on which the ranks have disagreed; DTR_OK: none is known. */
dtr_status dtr__find_odd(const dtr_work *w);

/* The same for one pair, of which one gives more or less than the other takes. */
dtr_status dtr__pair_disagreement(const dtr_work *w, int peer, const dtr__declaration *theirs,
                                  const dtr__declaration *mine);

/* What each rank has told this one, against what this one has told each: DTR_OK, or one of the two
 * errors above. */
dtr_status dtr__declared_alike(const dtr_work *w, const dtr__declaration *mine,
                               const dtr__declaration *theirs);

#endif /* DTR_DECLARE_H */
