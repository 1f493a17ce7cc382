/* What the launcher says of how many processes it has started, against what MPI found. */
#ifndef DTR_RT_LAUNCHER_H
#define DTR_RT_LAUNCHER_H

#include "world/world.h"

/* A launcher that has started more processes than MPI_COMM_WORLD has. */
typedef struct dtr__launcher {
    const char *variable; /* what says so; NULL: nothing does */
    const char *name, *cure;
    int count, rank; /* rank -1: not known */
    bool at_least;   /* `count` is made of a rank or of one host's processes */
} dtr__launcher;

/* Look into the environment; `size` is that of MPI_COMM_WORLD. */
dtr__launcher dtr__launcher_find(int size);

/* With DTR_LAUNCHER_CHECK=error a world of fewer ranks than were started is DTR_ERR_STATE. */
dtr_status dtr__launcher_check(const dtr_world *w);
/* Else one warning of the launcher's first rank, of the first world of a process. */
void dtr__launcher_warn(const dtr_world *w);

#endif /* DTR_RT_LAUNCHER_H */
