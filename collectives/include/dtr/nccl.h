/** @file
 * For programs that call NCCL themselves. Includes nothing of NCCL: its handles are void * here. */
#ifndef DTR_NCCL_H
#define DTR_NCCL_H

#include <dtr/world.h>

DTR_BEGIN_DECLS

/** Version of the loaded NCCL as major << 32 | minor << 16 | patch, 0 without NCCL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API uint64_t dtr_nccl_version(void);

/** Give the communicator of all members (an ncclComm_t) by which the group serves buffers on
 * `device`, once dtr_group_connect or a first operation has made it. Ranks of the communicator are
 * group ranks, and it does not block (ncclConfig_t.blocking is 0). The library uses it as well:
 * what the program launches must stand at the same place among the group's operations on all ranks,
 * so call NCCL where no other thread uses the group, and neither finalize, abort nor destroy it. It
 * is gone when the group ends or breaks. What runs on it has no time limit, and is not known to the
 * flight recorder.
 *  @collective no  @blocking until an operation that another thread is launching has been
 *  @gpu no
 *  @errors DTR_ERR_ARG (comm NULL), DTR_ERR_UNSUPPORTED (no NCCL, or it does not serve the group:
 * of one rank, of ranks that share a GPU, of another backend), DTR_ERR_DEVICE, DTR_ERR_STATE (not
 * connected, destroyed), the error of a broken group; on a NULL group `*comm` is NULL
 *  @since 0.2 */
DTR_API dtr_status dtr_group_nccl_comm(dtr_group *group, dtr_device device, void **comm);

DTR_END_DECLS

#endif /* DTR_NCCL_H */
