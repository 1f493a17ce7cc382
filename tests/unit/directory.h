/* A directory of pretended ranks, in one part. */
#ifndef UNIT_DIRECTORY_H
#define UNIT_DIRECTORY_H

#include <check.h>
#include <stdlib.h>

#include "control/control_internal.h"

/* `said`: [world size], NULL: nothing. */
static inline dtr__directory directory_new(const dtr_world *w, introduction *said) {
    introduction *all = said != NULL ? said : calloc((size_t)w->size, sizeof *all);
    node_ranks *nodes = calloc((size_t)w->node_count, sizeof *nodes);
    dtr__directory d = { .part = calloc(1, sizeof *d.part) };
    ck_assert(all != NULL && nodes != NULL && d.part != NULL);
    d.part[0] = calloc(1, dtr__directory_plan(&d, w, all, nodes, 1));
    ck_assert_ptr_nonnull(d.part[0]);
    dtr__directory_write(&d, w, all, nodes, 0);
    free(nodes);
    if (said == NULL) {
        free(all);
    }
    return d;
}

static inline void directory_free(dtr__directory *d) {
    free(d->part[0]);
    free((void *)d->part);
}

#endif /* UNIT_DIRECTORY_H */
