/* Worlds that are made under settings of the environment. */
#ifndef TH_SETTINGS_H
#define TH_SETTINGS_H

#include <stdlib.h>

#include <dtr/mpi.h>

#include "harness.h"

/* set: NAME, value, ..., NULL, for the time of the creation. Collective. */
static inline dtr_world *th_world_with(const dtr_world_options *o, const char *const *set) {
    dtr_world *w = NULL;
    for (int i = 0; set[i] != NULL; i += 2) {
        setenv(set[i], set[i + 1], 1);
    }
    TH_IS(dtr_world_create_from_comm(MPI_COMM_WORLD, o, &w), DTR_OK);
    for (int i = 0; set[i] != NULL; i += 2) {
        unsetenv(set[i]);
    }
    return w;
}
#define TH_WORLD_WITH(options, ...) \
    th_world_with((options), (const char *const[]){ __VA_ARGS__, NULL })

#endif /* TH_SETTINGS_H */
