/* The backends mpi and tcp, as others know them: their tables, which differ in when they serve. */
#ifndef DTR_MPI_H
#define DTR_MPI_H

#include "core/backend.h"

extern const dtr__backend dtr__backend_mpi, dtr__backend_tcp;

#endif /* DTR_MPI_H */
