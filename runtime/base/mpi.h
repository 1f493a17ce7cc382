/* MPI as a resource of the process: who initialises it, and who ends it. */
#ifndef DTR_RT_BASE_MPI_H
#define DTR_RT_BASE_MPI_H

#include "base/world.h"

/* Count one more user of MPI, initialising it when `may_initialise` and nobody has. `level` becomes
 * what MPI provides, `own` whether this library initialised it, `serial` a number of this use. */
dtr_status dtr__mpi_acquire(bool may_initialise, int *level, bool *own, uint32_t *serial);
/* Collective over `comm`: DTR_OK once all of its ranks have come, DTR_ERR_TIMEOUT where they have
 * not within the limit, also for a rank that comes after others have given up. What was begun stays
 * in the communicator, so that no further collective call on it would match. */
dtr_status dtr__mpi_await_all(MPI_Comm comm, double limit_s);
/* One user less. With `finish`, MPI that this library initialised ends when no other is left. */
dtr_status dtr__mpi_release(bool finish);

/* True while MPI may be called: initialised and not finalised by somebody else. */
bool dtr__mpi_alive(void);
/* The same for a world; one without MPI needs none. */
bool dtr__ranks_reachable(const dtr_world *world);
/* A number of this use without MPI, as dtr__mpi_acquire gives. */
uint32_t dtr__mpi_pass(void);
/* Instead of freeing it: the communicator of a broken group stays, because a message left over in
 * it would turn up in a later one, to which some MPI libraries give the same identity. The world's
 * own stay then too: others may still be telling of the failure there. */
void dtr__mpi_keep(dtr_world *world, MPI_Comm *comm);
/* Free a communicator in which no rank sends any more, with what was sent and not received;
 * MPI_COMM_NULL is none. */
int dtr__mpi_free(MPI_Comm *comm);

/* Whether a call of MPI has failed with `code` because a rank has died. */
bool dtr__mpi_peer_died(int code);
/* After it: a rank can ask for messages from any rank again. False where that is not why. */
bool dtr__mpi_acknowledge(MPI_Comm comm, int code);

#endif /* DTR_RT_BASE_MPI_H */
