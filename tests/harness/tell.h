/* One rank lets another go on, by a message that the library has no part in. */
#ifndef TH_TELL_H
#define TH_TELL_H

#include <mpi.h>

#include "harness.h"

enum { TELL_TAG = 77 };

static inline void tell(int rank) {
    int word = 0;
    MPI_Send(&word, 1, MPI_INT, rank, TELL_TAG, MPI_COMM_WORLD);
}

/* MPI's own wait would spin, and some wait for seconds. */
static inline void hear(int rank) {
    int word = 0, done = 0;
    MPI_Request request;
    MPI_Irecv(&word, 1, MPI_INT, rank, TELL_TAG, MPI_COMM_WORLD, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        th_sleep(0.0002);
    }
}

#endif /* TH_TELL_H */
