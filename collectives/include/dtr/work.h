/* Handles of asynchronous operations. Any thread may wait, test or release; a handle is waited as
 * often as wanted and released exactly once. The input must not change and the output must not be
 * read before completion. */
#ifndef DTR_WORK_H
#define DTR_WORK_H

#include <dtr/status.h>

DTR_BEGIN_DECLS

/** Wait for an operation and return its final status, the same on every later call. timeout_s 0
 * only looks (DTR_IN_PROGRESS when unfinished), negative uses the operation's own deadline; a
 * positive limit replaces it, and reaching it fails the operation and breaks the group. NULL is
 * DTR_OK.
 *  @collective no; any thread
 *  @blocking   until complete or the limit
 *  @gpu        NCCL: the stream of the call waits, the host goes on, and a limit counts from the
 * call; through host memory: blocks the host
 *  @errors     the operation's; DTR_ERR_TIMEOUT, DTR_ERR_ARG (NaN)
 *  @since 0.1 */
DTR_API dtr_status dtr_work_wait(dtr_work *work, double timeout_s);

/** Make `stream` (NULL: the default stream) of the operation's device wait for it; several streams
 * may. A work that no stream can wait for, such as one on host memory, blocks the host as
 * dtr_work_wait does.
 *  @collective no; any thread
 *  @blocking   no on a device with NCCL; else until complete
 *  @gpu        orders the stream behind the operation
 *  @errors     as dtr_work_wait
 *  @since 0.1 */
DTR_API dtr_status dtr_work_wait_stream(dtr_work *work, void *stream);

/** As dtr_work_wait, but blocks the host on either device.
 *  @collective no; any thread
 *  @blocking   until complete or the limit
 *  @gpu        blocks the host
 *  @errors     as dtr_work_wait
 *  @since 0.1 */
DTR_API dtr_status dtr_work_synchronize(dtr_work *work, double timeout_s);

/** Look without waiting: `*done` false and DTR_OK while in progress, else true and the final
 * status.
 *  @collective no; any thread
 *  @blocking   no
 *  @gpu        looks at events
 *  @errors     the operation's; DTR_ERR_ARG when done is NULL
 *  @since 0.1 */
DTR_API dtr_status dtr_work_test(dtr_work *work, bool *done);

/** Number of the operation in its group, from 1: of a collective as dtr_group_seq counts, of point
 * to point this rank's own count. 0 for NULL.
 *  @collective no
 *  @blocking   no
 *  @gpu        no
 *  @errors     none
 *  @since 0.1 */
DTR_API uint64_t dtr_work_seq(const dtr_work *work);

/** Group rank a completed receive came from; -1 for other works, before completion and for NULL.
 *  @collective no
 *  @blocking   no
 *  @gpu        no
 *  @errors     none
 *  @since 0.1 */
DTR_API int dtr_work_source(const dtr_work *work);

/** Call fn(work, final status, arg) exactly once: on a library thread, or before returning when
 * already complete. Inside fn asynchronous calls are legal; a blocking call on that world is
 * DTR_ERR_STATE.
 *  @collective no; any thread
 *  @blocking   no
 *  @gpu        no
 *  @errors     DTR_ERR_ARG (NULL), DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_work_on_complete(dtr_work *work,
                                        void (*fn)(dtr_work *work, dtr_status status, void *arg),
                                        void *arg);

/** Give the handle back. Legal before completion: the operation goes on, and its buffers must
 * outlive it. NULL is DTR_OK.
 *  @collective no; any thread
 *  @blocking   no
 *  @gpu        no
 *  @errors     none
 *  @since 0.1 */
DTR_API dtr_status dtr_work_release(dtr_work *work);

DTR_END_DECLS

#endif /* DTR_WORK_H */
