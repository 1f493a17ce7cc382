/* What a rank keeps of what others have brought to an agreement. */
#ifndef DTR_KEPT_H
#define DTR_KEPT_H

#include "agreement/agree.h"

/* What ranks brought that asked for the same: most do, so it is kept once. Key and index are those
 * of any of them. */
typedef struct dtr__shared_entry {
    int n_uses;
    dtr__entry entry;
} dtr__shared_entry;

/* The newest entry of a rank. */
typedef struct dtr__kept {
    uint64_t number;
    int64_t key; /* of the entry, as index */
    int32_t index;
    int32_t detail; /* as dtr__up has it */
    bool directly;  /* by ENTER, not by the tree */
    dtr__shared_entry *shared;
} dtr__kept;

/* Whether both ask for the same, but for where their ranks go. */
bool dtr__entries_alike(const dtr__entry *a, const dtr__entry *b);
dtr__shared_entry *dtr__shared_entry_new(const dtr__entry *e); /* of one use; NULL: no memory */
void dtr__shared_entry_leave(dtr__shared_entry *shared);       /* one use less; NULL: nothing */
void dtr__kept_free(dtr__kept *kept);                          /* NULL: nothing */

#endif /* DTR_KEPT_H */
