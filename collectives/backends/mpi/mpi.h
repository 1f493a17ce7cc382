/* The mpi backend, as others know it: its table. */
#ifndef DTR_MPI_H
#define DTR_MPI_H

#include "core/backend.h"

extern const dtr__backend dtr__backend_mpi;

#endif /* DTR_MPI_H */
