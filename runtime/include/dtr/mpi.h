/* For programs that have an MPI communicator of their own. The only public header that includes
 * <mpi.h>. */
#ifndef DTR_MPI_H
#define DTR_MPI_H

#include <mpi.h>

#include <dtr/world.h>

DTR_BEGIN_DECLS

/** Create a world over a duplicate of `comm`, whose ranks become world ranks. The caller's MPI may
 * have any thread level; below MPI_THREAD_MULTIPLE operations progress inside the caller's own
 * library calls. `comm` may be freed afterwards.
 *  @collective all ranks of comm
 *  @blocking   until all ranks have entered
 *  @gpu        as dtr_world_create
 *  @errors     as dtr_world_create; DTR_ERR_ARG for MPI_COMM_NULL or an inter-communicator,
 * DTR_ERR_STATE when MPI is not initialised or already finalised
 *  @since 0.1 */
DTR_API dtr_status dtr_world_create_from_comm(MPI_Comm comm, const dtr_world_options *options,
                                              dtr_world **world);

DTR_END_DECLS

#endif /* DTR_MPI_H */
