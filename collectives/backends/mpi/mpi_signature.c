/* At DTR_DEBUG=detail a schedule begins with an exchange: every rank sends every other what it is
 * about to do, so that a missing rank is named and ranks that disagree stop before data moves. */
#include <stdlib.h>

#include "core/signature.h"
#include "core/team.h"
#include "core/work.h"
#include "mpi_internal.h"

/* Like the other arrays of a schedule, the declarations are kept for the next one. */
static bool grow_signatures(dtr__mpi_sched *s, int size) {
    size_t n = 2 * (size_t)size;
    if (n > s->cap_signatures) {
        free(s->signatures);
        s->signatures = calloc(n, sizeof *s->signatures);
        s->cap_signatures = s->signatures != NULL ? n : 0;
        s->no_memory |= s->signatures == NULL;
    }
    return s->signatures != NULL;
}

void dtr__mpi_exchange_signatures(dtr__mpi_sched *s, const dtr_work *w) {
    const dtr_group *g = w->group;
    if (g->size == 1 || !grow_signatures(s, g->size)) {
        return;
    }
    dtr__signature *mine = s->signatures, *theirs = s->signatures + g->size;
    uint64_t seed = s->seed;
    s->seed = g->uid; /* whatever the calls are, these messages must meet */
    for (int i = 0; i < g->size; i++) {
        dtr__signature_of(w, i, &mine[i]);
        if (i != g->rank) {
            dtr__mpi_recv(s, &theirs[i], sizeof *theirs, i);
        }
    }
    for (int i = 1; i < g->size; i++) {
        int peer = (g->rank + i) % g->size;
        dtr__mpi_send(s, &mine[peer], sizeof *mine, peer);
    }
    s->seed = seed;
    dtr__mpi_wait_all(s);
    dtr__mpi_compare(s);
}

dtr_status dtr__mpi_compare_signatures(dtr__mpi_sched *s, const dtr_work *w) {
    const dtr_group *g = w->group;
    const dtr__signature *mine = s->signatures;
    dtr__signature *theirs = s->signatures + g->size;
    theirs[g->rank] = mine[g->rank];
    return dtr__signatures_match(w, mine, theirs);
}
