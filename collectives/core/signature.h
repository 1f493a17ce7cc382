/* What each rank says of an operation, and the message for ranks that do not say the same. The
 * backends differ in how and when they compare; the answer reads alike. */
#ifndef DTR_SIGNATURE_H
#define DTR_SIGNATURE_H

#include "core/call.h"

typedef struct dtr__signature {
    uint64_t fingerprint;
    uint64_t count_in, count_out;
    uint64_t gives, takes; /* elements to and from the rank it is made for, where only the two know;
                              else 0 */
    int32_t kind, dtype, op, root;
    int32_t absent, unused; /* 1: what this rank says is not known */
    char site[120];         /* of the call */
} dtr__signature;

/* Is the world at DTR_DEBUG=detail, where all compare before data moves? */
bool dtr__at_detail(const dtr_world *w);

/* What this rank says of `w` to group rank `to`. */
void dtr__signature_of(const dtr_work *w, int to, dtr__signature *d);

/* The same of a call, without what only pairs of ranks know. */
void dtr__signature_of_call(const dtr__call *c, dtr__signature *d);

/* DTR_ERR_MISMATCH as this thread's last error: which field, what most ranks have and which do not,
 * and where both called from. `all` has one declaration per rank and not all fingerprints are
 * equal; in a tie the lowest rank counts as the majority. `moved`: data may have been. */
dtr_status dtr__mismatch(const dtr_work *w, const dtr__signature *all, bool moved);

/* The same for one pair, of which one gives more or less than the other takes. */
dtr_status dtr__pair_mismatch(const dtr_work *w, int peer, const dtr__signature *theirs,
                              const dtr__signature *mine);

/* Compare what each rank has sent this one with what this one has sent each: DTR_OK, or one of the
 * two errors above. */
dtr_status dtr__signatures_match(const dtr_work *w, const dtr__signature *mine,
                                 const dtr__signature *theirs);

#endif /* DTR_SIGNATURE_H */
