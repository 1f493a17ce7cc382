/* Entries of others: ranks that ask for the same share one, so that a coordinator of many does not
 * keep more than a line of each. */
#include "kept.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

bool dtr__entries_alike(const dtr__entry *a, const dtr__entry *b) {
    enum { KEY = offsetof(dtr__entry, key), REST = offsetof(dtr__entry, status) };
    return memcmp(a, b, KEY) == 0 &&
           memcmp((const char *)a + REST, (const char *)b + REST, sizeof *a - REST) == 0;
}

dtr__shared_entry *dtr__shared_entry_new(const dtr__entry *e) {
    dtr__shared_entry *shared = malloc(sizeof *shared);
    if (shared != NULL) {
        shared->n_uses = 1;
        memcpy(&shared->entry, e, sizeof *e); /* with what lies between its parts */
    }
    return shared;
}

void dtr__shared_entry_leave(dtr__shared_entry *shared) {
    if (shared != NULL && --shared->n_uses == 0) {
        free(shared);
    }
}

void dtr__kept_free(dtr__kept *kept) {
    if (kept != NULL) {
        dtr__shared_entry_leave(kept->shared);
        free(kept);
    }
}
