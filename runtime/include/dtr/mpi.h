/** @file
 * For programs that have an MPI communicator of their own. The only public header that includes
 * <mpi.h>. */
#ifndef DTR_MPI_H
#define DTR_MPI_H

#include <mpi.h>

#include <dtr/world.h>

DTR_BEGIN_DECLS

/** Create a world over a duplicate of `comm`, whose ranks become world ranks. The caller's MPI may
 * have any thread level; below MPI_THREAD_MULTIPLE steps of operations that need MPI progress
 * inside the caller's own library calls. `comm` may be freed afterwards.
 *  @collective all ranks of comm
 *  @blocking until all ranks have entered
 *  @gpu as dtr_world_create
 *  @errors as dtr_world_create; DTR_ERR_ARG for MPI_COMM_NULL or an inter-communicator,
 * DTR_ERR_STATE when MPI is not initialised or already finalised
 *  @since 0.1 */
DTR_API dtr_status dtr_world_create_from_comm(MPI_Comm comm, const dtr_world_options *options,
                                              dtr_world **world);

/** Give a communicator with the members of the group, in group-rank order: `*comm`, for the
 * program's own calls of MPI beside this library. It is a duplicate of the library's, so neither
 * disturbs the other; errors return (MPI_ERRORS_RETURN) unless the program sets something else. The
 * first call makes it, later ones give the same. The group keeps it and frees it when it ends; a
 * program that needs it longer duplicates it. What runs on it has no time limit, and is not known
 * to the flight recorder. A failed call leaves `*comm` as it was.
 *  @collective all members, in the same order as groups are made; the first call meets in an
 * allreduce, which counts as one of the group
 *  @blocking the first call, until all have come, up to the group's timeout
 *  @gpu no
 *  @errors DTR_ERR_ARG (comm NULL), DTR_ERR_UNSUPPORTED (a world without MPI), DTR_ERR_STATE
 * (destroyed, inside a callback, an open scope, MPI finalised), those of dtr_allreduce; DTR_ERR_MPI
 * on all; on a NULL group `*comm` is MPI_COMM_NULL
 *  @since 0.2 */
DTR_API dtr_status dtr_group_mpi_comm(dtr_group *group, MPI_Comm *comm);

DTR_END_DECLS

#endif /* DTR_MPI_H */
