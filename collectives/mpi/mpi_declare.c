/* At DTR_DEBUG=detail a schedule begins with an exchange: every rank tells every other what it is
 * about to do, so that a missing rank is named and ranks that disagree stop before data moves. */
#include <stdlib.h>

#include "declare.h"
#include "mpi/mpi_internal.h"

/* Like the other arrays of a schedule, the declarations are kept for the next one. */
static bool grow_declarations(dtr__mpi_sched *s, int size) {
    size_t n = 2 * (size_t)size;
    if (n > s->cap_declared) {
        free(s->declared);
        s->declared = calloc(n, sizeof *s->declared);
        s->cap_declared = s->declared != NULL ? n : 0;
        s->no_memory |= s->declared == NULL;
    }
    return s->declared != NULL;
}

void dtr__mpi_declare(dtr__mpi_sched *s, const dtr_work *w) {
    const dtr_group *g = w->group;
    if (g->size == 1 || !grow_declarations(s, g->size)) {
        return;
    }
    dtr__declaration *mine = s->declared, *theirs = s->declared + g->size;
    uint64_t seed = s->seed;
    s->seed = g->uid; /* whatever the calls are, these messages must meet */
    for (int i = 0; i < g->size; i++) {
        dtr__declare(w, i, &mine[i]);
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

dtr_status dtr__mpi_declared(dtr__mpi_sched *s, const dtr_work *w) {
    const dtr_group *g = w->group;
    const dtr__declaration *mine = s->declared;
    dtr__declaration *theirs = s->declared + g->size;
    theirs[g->rank] = mine[g->rank];
    return dtr__declared_alike(w, mine, theirs);
}
