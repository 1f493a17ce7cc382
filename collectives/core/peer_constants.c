/* The constants of MPI that are no ranks: none is one of ours, and a call that gives one is told
 * what it is. */
#include <mpi.h>
#include <stddef.h>

#include "core/check.h"

#if defined(OPEN_MPI)
#define MPI_NAME "Open MPI"
#elif defined(I_MPI_VERSION)
#define MPI_NAME "Intel MPI"
#elif defined(MPICH) || defined(MPICH_VERSION)
#define MPI_NAME "MPICH"
#else
#define MPI_NAME "this MPI"
#endif

#define NO_CONSTANT(peer)                                                            \
    ((peer) != MPI_PROC_NULL && (peer) != MPI_ANY_SOURCE && (peer) != MPI_ANY_TAG && \
     (peer) != MPI_ROOT && (peer) != MPI_UNDEFINED)
_Static_assert(NO_CONSTANT(DTR_ANY_SOURCE), "DTR_ANY_SOURCE is a constant of MPI");
_Static_assert(NO_CONSTANT(DTR_PEER_NONE), "DTR_PEER_NONE is a constant of MPI");

const char *dtr__peer_meant(int peer) {
    static const struct {
        int value;
        const char *is;
    } known[] = {
        { MPI_PROC_NULL, "MPI_PROC_NULL of " MPI_NAME
                         ": use DTR_PEER_NONE for a send or receive that is nothing" },
        { MPI_ANY_SOURCE,
          "MPI_ANY_SOURCE of " MPI_NAME ": use DTR_ANY_SOURCE to receive from any rank" },
        { MPI_ROOT, "MPI_ROOT of " MPI_NAME ", which is no peer" },
        { MPI_UNDEFINED, "MPI_UNDEFINED of " MPI_NAME ", which is no peer" },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].value == peer) {
            return known[i].is;
        }
    }
    return NULL;
}
