/** @file
 * Handles of asynchronous operations. Any thread may wait, test or release; a handle is waited as
 * often as wanted and released exactly once. The input must not change and the output must not be
 * read before completion. */
#ifndef DTR_WORK_H
#define DTR_WORK_H

#include <dtr/status.h>

DTR_BEGIN_DECLS

/** Wait for an operation and return its final status, the same on every later call. When that is an
 * error its buffers are the program's again, but for those that a warning names. timeout_s 0
 * only looks (DTR_IN_PROGRESS when unfinished), negative uses the operation's own deadline; a
 * positive limit replaces it, and reaching it fails the operation and breaks the group. NULL is
 * DTR_OK.
 *  @collective no; any thread  @blocking until complete or the limit
 *  @gpu NCCL: the stream of the call waits, the host goes on, and a limit counts from the call;
 * through host memory: blocks the host
 *  @errors the operation's; DTR_ERR_TIMEOUT, DTR_ERR_ARG (NaN, no handle), DTR_ERR_STATE (it
 * would block inside a completion callback of the same world, or the work belongs to a
 * coalescing scope that is still open)
 *  @since 0.1 */
DTR_API dtr_status dtr_work_wait(dtr_work *work, double timeout_s);

/** Wait for all of `n` works, of any groups and worlds; NULL entries are passed over. The status is
 * DTR_OK, or that of the first entry, in the order of the array, that failed: the others are waited
 * for all the same, and each keeps its own status. timeout_s is as for dtr_work_wait and holds for
 * all together: 0 only looks (DTR_IN_PROGRESS while any is unfinished), negative leaves every
 * operation its own deadline, a positive limit replaces those of the unfinished ones, and reaching
 * it fails them and breaks their groups. Complete works cost a look, one that stands there twice
 * too. A refused call waits for none.
 *  @collective no; any thread  @blocking until all are complete or the limit
 *  @gpu as dtr_work_wait for each  @errors as dtr_work_wait; DTR_ERR_ARG names the entry that is no
 * handle (as far as that can be seen of one that was released), and a NULL array with n > 0
 *  @since 0.1 */
DTR_API dtr_status dtr_work_wait_all(dtr_work *const *works, size_t n, double timeout_s);

/** Wait until one of `n` works is complete: `*index` becomes the lowest one that is, and the status
 * is that of the work. Works may be of any groups and worlds; NULL entries are passed over. None is
 * given back: leave a complete one out (NULL) of the next call. timeout_s 0 only looks
 * (DTR_IN_PROGRESS, `*index` untouched), negative leaves every operation its own deadline. Within a
 * positive limit none of them expires; reaching it before any is complete fails all of them and
 * breaks their groups. The others keep their deadlines, or the limit where that is later.
 *  @collective no; any thread  @blocking until one is complete or the limit  @gpu blocks the host
 *  @errors the operation's; DTR_ERR_TIMEOUT, DTR_ERR_ARG (NaN, no handle, no entry that is not
 * NULL, index NULL), DTR_ERR_STATE as dtr_work_wait, and for a part of a captured graph
 *  @since 0.1 */
DTR_API dtr_status dtr_work_wait_any(dtr_work *const *works, size_t n, double timeout_s,
                                     size_t *index);

/** Make `stream` (NULL: the default stream) of the operation's device wait for it; several streams
 * may. A work that no stream can wait for, such as one on host memory, blocks the host as
 * dtr_work_wait does.
 *  @collective no; any thread  @blocking no on a device with NCCL; else until complete
 *  @gpu orders the stream behind the operation  @errors as dtr_work_wait  @since 0.1 */
DTR_API dtr_status dtr_work_wait_stream(dtr_work *work, void *stream);

/** As dtr_work_wait, but blocks the host on either device.
 *  @collective no; any thread  @blocking until complete or the limit  @gpu blocks the host
 *  @errors as dtr_work_wait  @since 0.1 */
DTR_API dtr_status dtr_work_synchronize(dtr_work *work, double timeout_s);

/** Look without waiting: `*done` false and DTR_OK while in progress, else true and the final
 * status. NULL is done.
 *  @collective no; any thread  @blocking no  @gpu looks at events
 *  @errors the operation's; DTR_ERR_ARG (done is NULL, no handle), DTR_ERR_STATE (an open
 * coalescing scope; part of a captured graph)
 *  @since 0.1 */
DTR_API dtr_status dtr_work_test(dtr_work *work, bool *done);

/** Number of the operation in its group, from 1: of a collective as dtr_group_seq counts, of point
 * to point this rank's own count. 0 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API uint64_t dtr_work_seq(const dtr_work *work);

/** Group rank a completed receive came from, DTR_PEER_NONE of one that is nothing; -1 for other
 * works, before completion and for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_work_source(const dtr_work *work);

/** Seconds from the call to the end of the operation on this rank, the wait for earlier ones
 * included. The end is when the library saw it: where it was waited for, or the progress thread
 * came by. A work of a coalescing scope stands for all of its calls, from dtr_coalesce_end on. NaN
 * before completion, for a part of a captured graph, and for NULL.
 *  @collective no; any thread  @blocking no  @gpu the end of the operation there, as seen by the
 * host  @errors none  @since 0.2 */
DTR_API double dtr_work_duration(const dtr_work *work);

/** Call fn(work, final status, arg) exactly once: on a thread of the library or on any thread of
 * the program that is inside one of its calls, or before returning when already complete. Inside fn
 * asynchronous calls are legal; a blocking call on that world is DTR_ERR_STATE.
 *  @collective no; any thread  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL, no handle), DTR_ERR_STATE (part of a captured graph), DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_work_on_complete(dtr_work *work,
                                        void (*fn)(dtr_work *work, dtr_status status, void *arg),
                                        void *arg);

/** Give the handle back. Legal before completion: the operation goes on, and its buffers must
 * outlive it. NULL is DTR_OK.
 *  @collective no; any thread  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (no handle, as far as that can be seen)  @since 0.1 */
DTR_API dtr_status dtr_work_release(dtr_work *work);

DTR_END_DECLS

#endif /* DTR_WORK_H */
