/** @file
 * Collectives and point to point on typed buffers. What this page says holds for every call below;
 * the calls say only what is theirs.
 *
 * @par Who calls
 * "all members": every member of the group calls, and all call the collectives of a group in the
 * same order, with the same values of what is named. Messages need their two ranks only. A rank
 * that is no member (a NULL group) gets DTR_NOT_MEMBER, see dtr/group.h.
 *
 * @par Order of the checks
 * Arguments are checked on each rank alone, before anything moves: options; enum ranges; root,
 * peer, tag; pointers; devices; dtypes; counts; overlap. The first that is wrong is reported. A
 * refused call changes nothing: neither outputs, nor `*work`, nor the sequence number.
 *
 * @par Blocking
 * "without a work": with work == NULL the call returns when its result is there. Otherwise it
 * returns at once with a handle (dtr/work.h). A blocking broadcast, reduce, scan, exscan, gather(v)
 * or scatter(v) may return before other ranks have entered it, once this rank has given its data or
 * got it. In a row of equal ones of up to 64 KiB a mismatch between ranks may then be the error of
 * a later call here; not so at DTR_DEBUG=detail.
 *
 * @par Buffers on a CUDA device
 * "in stream order": the operation begins after what options.stream holds at the call. Where NCCL
 * serves it, a call without a work returns once the operation is queued (the first one on a device
 * once all members have come): options.stream then waits for the result, and the host does not.
 * Where it goes through host memory, the host waits. A work counts as complete when the result is
 * in device memory, for every stream; dtr_work_wait lets the stream wait, or the host, in the same
 * way, and dtr_work_synchronize the host.
 *
 * @par Errors of every call
 * - Before anything moves: DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE,
 *   DTR_ERR_OVERFLOW, DTR_ERR_NOMEM, and DTR_ERR_RANK where a root or a peer is named;
 *   DTR_ERR_UNSUPPORTED where the backend that was named cannot serve the call; DTR_ERR_STATE for a
 *   call that blocks inside a completion callback of the same world, and in a group or world that
 *   another thread is destroying.
 * - These break the group: DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED, DTR_ERR_REMOTE,
 *   DTR_ERR_MPI; on a device DTR_ERR_CUDA and DTR_ERR_NCCL. Later calls on it return the error that
 *   broke it.
 * - DTR_ERR_NAN with DTR_NAN_CHECK, where this rank gives NaN: it breaks nothing.
 *
 * @par Counts
 * N is the group size, r the own rank; blocks lie in group-rank order without gaps;
 * "sum" is that of the counts array.
 *
 *   | call            | in.count          | out.count             | counts array            |
 *   |-----------------|-------------------|-----------------------|-------------------------|
 *   | broadcast       | c (buf)           |                       |                         |
 *   | reduce          | c                 | root: c, else ignored |                         |
 *   | allreduce       | c                 | c                     |                         |
 *   | scan, exscan    | c                 | c                     |                         |
 *   | allgather       | c                 | N*c                   |                         |
 *   | allgatherv      | counts[r]         | sum                   | [N], equal on all ranks |
 *   | gather          | c                 | root: N*c, else 0     |                         |
 *   | gatherv         | own count         | root: sum, else 0     | [N], read at the root   |
 *   | scatter         | root: N*c, else 0 | c                     |                         |
 *   | scatterv        | root: sum, else 0 | own count             | [N], read at the root   |
 *   | reduce_scatter  | N*c               | c                     |                         |
 *   | reduce_scatterv | sum               | counts[r]             | [N], equal on all ranks |
 *   | alltoall        | N*c               | N*c                   |                         |
 *   | alltoallv       | sum(in_counts)    | sum(out_counts)       | [N]; NULL: equal split  |
 *
 * @par Overlap
 * allreduce, scan, exscan, reduce at the root and alltoall(v) take in.data == out.data, though the
 * two sides of an alltoallv differ in length and layout, and the memory must hold the longer one;
 * allgather(v), and gather(v) at the root, take `in` as this rank's block of `out`;
 * reduce_scatter(v), and scatter(v) at the root, `out` as this rank's block of `in`. Any other
 * overlap is DTR_ERR_ARG. */
#ifndef DTR_COLL_H
#define DTR_COLL_H

#include <dtr/buffer.h>
#include <dtr/callsite.h>
#include <dtr/group.h>
#include <dtr/work.h>

DTR_BEGIN_DECLS

/** Operators of a reduction. Integers wrap; AVG of integers divides the wrapped sum toward zero;
 * SUM of bool is OR. Bitwise and logical operators take whole numbers and bool. f16, bf16 and fp8
 * accumulate in float32 and are rounded once, except where NCCL adds: it rounds after every step.
 */
typedef enum dtr_op {
    DTR_SUM,
    DTR_AVG,
    DTR_PROD,
    DTR_MIN,
    DTR_MAX,
    DTR_BAND,
    DTR_BOR,
    DTR_BXOR,
    DTR_PREMUL_SUM, /**< sums factor * input; factors may differ per rank */
    DTR_LAND,       /**< logical operators: what is not 0 is true, results are 0 and 1 */
    DTR_LOR,
    DTR_LXOR,
    DTR_MINLOC, /**< of pairs: the smallest or largest value, and of equal ones the smallest index;
                   NaN wins over numbers */
    DTR_MAXLOC,
    DTR_USER_OP = 1 << 30 /**< itself none: what dtr_op_create gives is this and more */
} dtr_op;

/** What every call takes; NULL stands for the defaults. */
typedef struct dtr_coll_options {
    size_t struct_size; /**< set by DTR_COLL_OPTIONS_INIT */
    double timeout_s;   /**< 0 or negative: the group's; see dtr/status.h */
    void *stream;       /**< CUDA stream of the caller; NULL: default stream; ignored on CPU */
    double premul;      /**< DTR_PREMUL_SUM: the factor; 0: not given */
    const void *premul_device; /**< one element on the buffers' device, wins over premul; real
                                  part's type for complex */
    const char *label;         /**< shown in errors, logs and the flight recorder; copied */
    uint32_t flags;            /**< none defined: 0 */
} dtr_coll_options;
#ifdef __cplusplus
#define DTR_COLL_OPTIONS_INIT \
    { sizeof(dtr_coll_options), 0, 0, 0, 0, 0, 0 }
#else
#define DTR_COLL_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_coll_options) }
#endif

/** For dtr_recv and dtr_recv_bytes: the first message with that tag. Neither this nor DTR_PEER_NONE
 * is a constant of any MPI: what MPI_Cart_shift gives is refused with the constant's name, and
 * never taken for something else. */
#define DTR_ANY_SOURCE (-1000001)
/** A send or receive that is nothing, at the edge of a grid: checked as others, then complete at
 * once, with neither a number nor a record. A receive leaves its buffer as it is, and its source is
 * DTR_PEER_NONE. */
#define DTR_PEER_NONE (-1000002)

/** Whether an operator is defined for an element type; the same on every backend. One of
 * dtr_op_create is for all of them.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API bool dtr_op_supports(dtr_op op, dtr_dtype dtype);

/** @name Operators of the program
 * @{ */

/** Make an operator of a function of the program, for every reduction of this world: reduce,
 * allreduce, reduce_scatter(v), scan and exscan, and those of tensors.
 *
 * `fn` computes inout[k] = inout[k] op in[k] for all k < count. **inout holds what the lower ranks
 * have come to, and `in` the input of a higher one. A function written for MPI has its arguments
 * the other way round** (there inoutvec[k] = invec[k] op inoutvec[k]): where the operator does not
 * commute, exchange the operands. It gets any count from 1 on, as often as the data is cut; an
 * element is what the call's dtype says, and both arrays lie on 16 bytes and do not overlap. It has
 * to be associative and to give the same on all ranks for the same bits. `arg` is handed through.
 *
 * commutes false: the result is ((x0 op x1) op x2) ..., rank after rank, on every backend. With
 * true, groups over several nodes may combine inside the nodes first. A group of one rank, and rank
 * 0 of a scan, get their input as it is; `out` of rank 0 of an exscan, for which there is no
 * identity, is left as it was: set it before.
 *
 * The function runs in whatever thread moves the operation, which may be one of the library, and in
 * several at once for different groups, with floating point to nearest, denormals kept and no
 * traps. It must return (no longjmp, no exception), and calls that block are DTR_ERR_STATE inside.
 *
 * Ranks that create operators in the same order mean the same one; what `fn` is, nobody can
 * compare. Ranks that call a reduction with different ones, or disagree on `commutes`, are told as
 * with other operators. It reduces in host memory: on a device the call goes through it, and where
 * nccl was named is DTR_ERR_UNSUPPORTED, as are backends of the program and sparse rows.
 *  @collective no, but all ranks that use it create it in the same order
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (fn or op NULL), DTR_ERR_NOMEM (64 per process); op is untouched then
 *  @since 0.2 */
DTR_API dtr_status dtr_op_create(dtr_world *world,
                                 void (*fn)(void *inout, const void *in, size_t count,
                                            dtr_dtype dtype, void *arg),
                                 void *arg, bool commutes, dtr_op *op);

/** End an operator that nothing uses any more; what is left of them ends with the world.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (a built-in operator, one that has been freed, one of another world),
 * DTR_ERR_STATE (an unfinished operation uses it, which goes on)
 *  @since 0.2 */
DTR_API dtr_status dtr_op_free(dtr_world *world, dtr_op op);

/** @} */

/** @name Collectives
 * @{ */

DTR_BEGIN_SITED

/** Copy the root's elements to all ranks; the root's buffer is only read.
 *  @collective all members, same root, count and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_broadcast(dtr_group *group, dtr_buffer buf, int root,
                                 const dtr_coll_options *options, dtr_work **work);

/** Reduce `in` of all ranks into `out` at the root; `out` of the others is ignored.
 *  @collective all members, same root, op, count and dtype
 *  @blocking without a work  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_reduce(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op, int root,
                              const dtr_coll_options *options, dtr_work **work);

/** Reduce `in` of all ranks into `out` of all ranks: bitwise the same everywhere.
 *  @collective all members, same op, count and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_allreduce(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                                 const dtr_coll_options *options, dtr_work **work);

/** Reduce `in` of the ranks 0 to r, in rank order, into `out` of rank r (an inclusive prefix). AVG
 * divides by r+1; with PREMUL_SUM each rank's own factor scales its input. The bits are the same in
 * every run, and where `deterministic` is set, those of one addition after the other from rank 0
 * on.
 *  @collective all members, same op, count and dtype  @blocking without a work, and until the ranks
 * below have come
 *  @gpu in stream order, through host memory  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_scan(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                            const dtr_coll_options *options, dtr_work **work);

/** As dtr_scan over the ranks 0 to r-1 (an exclusive prefix); AVG divides by r. Rank 0 gets the
 * identity of the operator: 0 for sums, AVG, BOR and BXOR, 1 for PROD, all bits set (bool: true)
 * for BAND, the largest value of the type for MIN and the smallest for MAX, infinities where it has
 * them (pairs: with the largest index). With an operator of the program its `out` is left as it
 * was.
 *  @collective all members, same op, count and dtype  @blocking without a work, and until the ranks
 * below have come
 *  @gpu in stream order, through host memory  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_exscan(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                              const dtr_coll_options *options, dtr_work **work);

/** Concatenate `in` of all ranks, in rank order, in `out` of all ranks.
 *  @collective all members, same count and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_allgather(dtr_group *group, dtr_buffer in, dtr_buffer out,
                                 const dtr_coll_options *options, dtr_work **work);

/** As dtr_allgather with counts[i] elements from rank i.
 *  @collective all members, same counts and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_allgatherv(dtr_group *group, dtr_buffer in, dtr_buffer out,
                                  const size_t *counts, const dtr_coll_options *options,
                                  dtr_work **work);

/** Concatenate `in` of all ranks in `out` of the root.
 *  @collective all members, same root, count and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_gather(dtr_group *group, dtr_buffer in, dtr_buffer out, int root,
                              const dtr_coll_options *options, dtr_work **work);

/** As dtr_gather with counts[i] elements from rank i; counts is read at the root only.
 *  @collective all members, same root and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_gatherv(dtr_group *group, dtr_buffer in, dtr_buffer out,
                               const size_t *counts, int root, const dtr_coll_options *options,
                               dtr_work **work);

/** Send block i of the root's `in` to `out` of rank i.
 *  @collective all members, same root, count and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_scatter(dtr_group *group, dtr_buffer in, dtr_buffer out, int root,
                               const dtr_coll_options *options, dtr_work **work);

/** As dtr_scatter with counts[i] elements to rank i; counts is read at the root only.
 *  @collective all members, same root and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_scatterv(dtr_group *group, dtr_buffer in, const size_t *counts,
                                dtr_buffer out, int root, const dtr_coll_options *options,
                                dtr_work **work);

/** Reduce `in` of all ranks and leave block r on rank r.
 *  @collective all members, same op, count and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_reduce_scatter(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                                      const dtr_coll_options *options, dtr_work **work);

/** As dtr_reduce_scatter with counts[i] elements for rank i.
 *  @collective all members, same op, counts and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_reduce_scatterv(dtr_group *group, dtr_buffer in, const size_t *counts,
                                       dtr_buffer out, dtr_op op, const dtr_coll_options *options,
                                       dtr_work **work);

/** Send block j of `in` to rank j, which puts it into its block r.
 *  @collective all members, same count and dtype  @blocking without a work
 *  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_alltoall(dtr_group *group, dtr_buffer in, dtr_buffer out,
                                const dtr_coll_options *options, dtr_work **work);

/** As dtr_alltoall with in_counts[j] elements to and out_counts[j] from rank j; NULL: that side is
 * split evenly.
 *  @collective all members, same dtype; in_counts[j] on i equals out_counts[i] on j
 *  @blocking without a work  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_alltoallv(dtr_group *group, dtr_buffer in, const size_t *in_counts,
                                 dtr_buffer out, const size_t *out_counts,
                                 const dtr_coll_options *options, dtr_work **work);

/** Complete when all members have entered; first waits for this rank's unfinished works of the
 * group.
 *  @collective all members; counted like the other collectives
 *  @blocking without work: until complete
 *  @gpu the host's; with options.stream set, after what that stream holds
 *  @errors DTR_ERR_ARG (options), DTR_ERR_DEVICE (a stream, and it is not clear of which device)
 * before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED, DTR_ERR_REMOTE,
 * DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_barrier(dtr_group *group, const dtr_coll_options *options, dtr_work **work);

/** Wait until all ranks of the node have called it. What they stored before into node-shared memory
 * (dtr_peer_pointer) is what each reads afterwards: a release before and an acquire behind. The
 * ranks have a group "node" of their own for it, which no list shows; the first call of a world
 * makes it and is slow. When that group breaks, later calls return its error.
 *  @collective all ranks of the node, in the same order as their other collectives; one thread of
 * each at a time
 *  @blocking until all have come, up to the world's timeout
 *  @gpu no
 *  @errors those of every call; of the first also those of dtr_group_create
 *  @since 0.1 */
DTR_API dtr_status dtr_node_barrier(dtr_world *world);

/** Wait until all members have come, or say who has not. The earliest limit among those who came
 * ends it for all of them with the same list: `missing` (room for the group size) gets the missing
 * group ranks, ascending, or with wait_all false the lowest one, and `*n_missing` their number, 0
 * on success; both may be NULL. A rank that comes later gets the answer of the call it missed at
 * once. A member known to have died ends it for all with DTR_ERR_REMOTE and is listed as missing.
 * The group stays usable and its sequence number where it is.
 *  @collective all members; not counted
 *  @blocking until all have come or timeout_s has passed (dtr/status.h): 0 counts who is here, a
 * negative one is the group's limit
 *  @gpu host only
 *  @errors DTR_ERR_TIMEOUT (the group is unharmed), DTR_ERR_ARG, DTR_ERR_STATE (inside a
 * coalescing scope, which it aborts, or a callback), DTR_ERR_NOMEM; what broke the group
 *  @since 0.1 */
DTR_API dtr_status dtr_monitored_barrier(dtr_group *group, double timeout_s, bool wait_all,
                                         int *missing, int *n_missing);

DTR_END_SITED

/** @}
 * @name Exact sums
 * Sums over the elements of all ranks' buffers together. They are made without rounding, and the
 * result is rounded once, to the nearest double: it has the same bits however the elements are
 * dealt to ranks, in whatever order, on any group, with or without `reproducible`. Counts and
 * dtypes may differ between ranks; a rank may have none.
 *
 * dtypes: f64, f32, f16, bf16, fp8; dtr_norm2 also c64, c128. Elements that are NaN, or infinities
 * of both signs, give NaN; overflow is that of the exact sum. Each call returns when the result is
 * there; it travels as an allreduce of 496 bytes, twice more where squares would overflow.
 *
 * Errors of every call: DTR_ERR_ARG (out, data), DTR_ERR_DTYPE, DTR_ERR_OVERFLOW,
 * DTR_ERR_UNSUPPORTED (a buffer on a device) and DTR_ERR_STATE (inside a coalescing scope, which it
 * aborts, or a callback) before anything moves; those of dtr_allreduce that break the group.
 * @{ */

DTR_BEGIN_SITED

/** Sum of all elements of all ranks. 0 of none.
 *  @collective all members  @blocking until complete  @gpu host memory
 *  @errors those of every exact sum  @since 0.1 */
DTR_API dtr_status dtr_sum(dtr_group *group, dtr_buffer in, const dtr_coll_options *options,
                           double *out);

/** Sum of a[i] * b[i] over all elements of all ranks. Each product is rounded to double, which of
 * f32 and shorter types it is exactly; so the error is at most 2^-53 times the sum of all |a[i]
 * b[i]| and half a unit in the last place, barring underflow.
 *  @collective all members  @blocking until complete  @gpu host memory
 *  @errors those of every exact sum; DTR_ERR_SHAPE (a and b differ in count)  @since 0.1 */
DTR_API dtr_status dtr_dot(dtr_group *group, dtr_buffer a, dtr_buffer b,
                           const dtr_coll_options *options, double *out);

/** Euclidean norm of all elements of all ranks, of complex ones of their magnitudes. Squares are
 * rounded to double and do not overflow or vanish.
 *  @collective all members  @blocking until complete  @gpu host memory
 *  @errors those of every exact sum  @since 0.1 */
DTR_API dtr_status dtr_norm2(dtr_group *group, dtr_buffer in, const dtr_coll_options *options,
                             double *out);

DTR_END_SITED

/** @}
 * @name Point to point
 * @{ */

DTR_BEGIN_SITED

/** Send a buffer to a peer, or nothing to DTR_PEER_NONE. Tags 0..32767 match sends to receives;
 * dtype and count must equal the receiver's.
 *  @collective the peer receives; a rank may send to itself only with a work
 *  @blocking without a work  @gpu in stream order  @errors those of every call  @since 0.1 */
DTR_API dtr_status dtr_send(dtr_group *group, dtr_buffer buf, int peer, int tag,
                            const dtr_coll_options *options, dtr_work **work);

/** Receive a buffer from a peer or DTR_ANY_SOURCE, or nothing from DTR_PEER_NONE; with a work,
 * dtr_work_source names the sender.
 *  @collective the peer sends  @blocking without a work  @gpu in stream order
 *  @errors those of every call; DTR_ERR_MISMATCH when dtype or count differ from what was sent (a
 * buffer in host memory is untouched)
 *  @since 0.1 */
DTR_API dtr_status dtr_recv(dtr_group *group, dtr_buffer buf, int peer, int tag,
                            const dtr_coll_options *options, dtr_work **work);

DTR_END_SITED

/** One entry of a batch. Its size is fixed: what more there is to say of entries is an array in
 * dtr_coll_options. */
typedef struct dtr_p2p {
    bool is_send;
    dtr_buffer buf;
    int peer;
    int tag;
} dtr_p2p;

DTR_BEGIN_SITED

/** Start all sends and receives of a list together under one work; entries match in list order per
 * pair and tag. Those of DTR_PEER_NONE are left out; a list without others is complete at once.
 *  @collective the peers named in the list  @blocking without a work  @gpu in stream order
 *  @errors those of every call; a bad entry starts nothing  @since 0.1 */
DTR_API dtr_status dtr_batch_p2p(dtr_group *group, const dtr_p2p *ops, size_t n,
                                 const dtr_coll_options *options, dtr_work **work);

DTR_END_SITED

/** @}
 * @name Coalescing
 * @{ */

/** Open a coalescing scope: the group's calls of this thread are checked and recorded, and started
 * together by dtr_coalesce_end. A work asked for inside stands for the whole scope and may be
 * waited after its end. What one call of a scope writes must not overlap what another reads or
 * writes. A failing call aborts the scope, which is still ended once.
 *  @collective no; the recorded calls are, in the same order  @blocking no
 *  @gpu all on one device and one stream; what NCCL serves is launched at the end as one
 *  @errors DTR_ERR_STATE when a scope of the group is open; DTR_ERR_NOMEM  @since 0.1 */
DTR_API dtr_status dtr_coalesce_begin(dtr_group *group);

DTR_BEGIN_SITED

/** Start the recorded calls of the scope, in order, as one operation: it counts as one collective
 * if it holds any, an empty scope as none. CPU backends fuse small neighbours of one kind, dtype
 * and op.
 *  @collective all members, if the scope holds a collective
 *  @blocking without a work  @gpu in stream order
 *  @errors the first failure of a recorded call; DTR_ERR_STATE without an open scope or on another
 * thread; those of every call that break the group  @since 0.1 */
DTR_API dtr_status dtr_coalesce_end(dtr_group *group, dtr_work **work);

DTR_END_SITED

/** @}
 * @name Byte strings
 * Each call returns when it is over; there is no work to ask for. The strings are in host memory on
 * every group, whatever serves its buffers, and those that come are allocated by the library: give
 * them back with dtr_bytes_free. After a failure `out` is untouched.
 *
 * Errors of every call: DTR_ERR_ARG, DTR_ERR_OVERFLOW, DTR_ERR_STATE (inside a coalescing scope,
 * which it aborts, or a callback) before anything moves, and DTR_ERR_RANK where a root or a peer is
 * named; DTR_ERR_MISMATCH (n differs), DTR_ERR_NOMEM, DTR_ERR_TIMEOUT, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group.
 * @{ */

/** A string of bytes of any length. */
typedef struct dtr_bytes {
    void *data; /**< NULL when nbytes is 0 */
    size_t nbytes;
} dtr_bytes;

/** A string to give to a call, which only reads it; not for dtr_bytes_free. */
static inline dtr_bytes dtr_bytes_in(const void *data, size_t nbytes) {
    dtr_bytes b = { NULL, nbytes };
    memcpy(&b.data, &data, sizeof b.data);
    return b;
}

/** Free what the library put into each entry and zero the entries; zeroed entries and NULL are
 * passed over.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API void dtr_bytes_free(dtr_bytes *list, size_t n);

DTR_BEGIN_SITED

/** Copy the root's n strings to all ranks. `in` is read at
 * the root only; `out` may be NULL there, else it gets copies.
 *  @collective all members, same n and root; counted like the other collectives
 *  @blocking until complete  @gpu host memory
 *  @errors those of every call on byte strings  @since 0.1 */
DTR_API dtr_status dtr_broadcast_bytes(dtr_group *group, const dtr_bytes *in, size_t n, int root,
                                       const dtr_coll_options *options, dtr_bytes *out);

/** Give every rank every rank's string: out[i] is rank i's.
 *  @collective all members; counted like the other collectives
 *  @blocking until complete  @gpu host memory  @errors those of every call on byte strings
 *  @since 0.1 */
DTR_API dtr_status dtr_allgather_bytes(dtr_group *group, dtr_bytes in,
                                       const dtr_coll_options *options, dtr_bytes *out);

/** Give the root every rank's string; `out` has an entry per rank there and is NULL elsewhere.
 *  @collective all members, same root; counted like the other collectives
 *  @blocking until complete  @gpu host memory  @errors those of every call on byte strings
 *  @since 0.1 */
DTR_API dtr_status dtr_gather_bytes(dtr_group *group, dtr_bytes in, int root,
                                    const dtr_coll_options *options, dtr_bytes *out);

/** Give rank i the root's string in[i] in `*out`. `in` and `n`, the group size, are read at the
 * root only.
 *  @collective all members, same root; counted like the other collectives
 *  @blocking until complete  @gpu host memory  @errors those of every call on byte strings
 *  @since 0.1 */
DTR_API dtr_status dtr_scatter_bytes(dtr_group *group, const dtr_bytes *in, size_t n, int root,
                                     const dtr_coll_options *options, dtr_bytes *out);

/** Send n strings to another rank, which receives as many with dtr_recv_bytes; they never meet
 * dtr_recv. Nothing is sent to DTR_PEER_NONE.
 *  @collective the peer receives  @blocking until complete  @gpu host memory
 *  @errors those of every call on byte strings; DTR_ERR_RANK to oneself  @since 0.1 */
DTR_API dtr_status dtr_send_bytes(dtr_group *group, const dtr_bytes *in, size_t n, int peer,
                                  int tag, const dtr_coll_options *options);

/** Receive n strings from a peer or DTR_ANY_SOURCE; `source`,
 * unless NULL, gets the sender's group rank. From DTR_PEER_NONE come n empty strings.
 *  @collective the peer sends  @blocking until complete  @gpu host memory
 *  @errors those of every call on byte strings; DTR_ERR_RANK from oneself  @since 0.1 */
DTR_API dtr_status dtr_recv_bytes(dtr_group *group, size_t n, int peer, int tag,
                                  const dtr_coll_options *options, dtr_bytes *out, int *source);

DTR_END_SITED

/** @} */

DTR_END_DECLS

#if DTR_CALL_SITES == 1 /* what these start was called from the caller's file and line */
#define dtr_broadcast(...) DTR_AT(dtr_broadcast, __VA_ARGS__)
#define dtr_reduce(...) DTR_AT(dtr_reduce, __VA_ARGS__)
#define dtr_allreduce(...) DTR_AT(dtr_allreduce, __VA_ARGS__)
#define dtr_scan(...) DTR_AT(dtr_scan, __VA_ARGS__)
#define dtr_exscan(...) DTR_AT(dtr_exscan, __VA_ARGS__)
#define dtr_allgather(...) DTR_AT(dtr_allgather, __VA_ARGS__)
#define dtr_allgatherv(...) DTR_AT(dtr_allgatherv, __VA_ARGS__)
#define dtr_gather(...) DTR_AT(dtr_gather, __VA_ARGS__)
#define dtr_gatherv(...) DTR_AT(dtr_gatherv, __VA_ARGS__)
#define dtr_scatter(...) DTR_AT(dtr_scatter, __VA_ARGS__)
#define dtr_scatterv(...) DTR_AT(dtr_scatterv, __VA_ARGS__)
#define dtr_reduce_scatter(...) DTR_AT(dtr_reduce_scatter, __VA_ARGS__)
#define dtr_reduce_scatterv(...) DTR_AT(dtr_reduce_scatterv, __VA_ARGS__)
#define dtr_alltoall(...) DTR_AT(dtr_alltoall, __VA_ARGS__)
#define dtr_alltoallv(...) DTR_AT(dtr_alltoallv, __VA_ARGS__)
#define dtr_barrier(...) DTR_AT(dtr_barrier, __VA_ARGS__)
#define dtr_node_barrier(...) DTR_AT(dtr_node_barrier, __VA_ARGS__)
#define dtr_sum(...) DTR_AT(dtr_sum, __VA_ARGS__)
#define dtr_dot(...) DTR_AT(dtr_dot, __VA_ARGS__)
#define dtr_norm2(...) DTR_AT(dtr_norm2, __VA_ARGS__)
#define dtr_send(...) DTR_AT(dtr_send, __VA_ARGS__)
#define dtr_recv(...) DTR_AT(dtr_recv, __VA_ARGS__)
#define dtr_batch_p2p(...) DTR_AT(dtr_batch_p2p, __VA_ARGS__)
#define dtr_broadcast_bytes(...) DTR_AT(dtr_broadcast_bytes, __VA_ARGS__)
#define dtr_allgather_bytes(...) DTR_AT(dtr_allgather_bytes, __VA_ARGS__)
#define dtr_gather_bytes(...) DTR_AT(dtr_gather_bytes, __VA_ARGS__)
#define dtr_scatter_bytes(...) DTR_AT(dtr_scatter_bytes, __VA_ARGS__)
#define dtr_send_bytes(...) DTR_AT(dtr_send_bytes, __VA_ARGS__)
#define dtr_recv_bytes(...) DTR_AT(dtr_recv_bytes, __VA_ARGS__)
#define dtr_monitored_barrier(...) DTR_AT(dtr_monitored_barrier, __VA_ARGS__)
#define dtr_coalesce_end(...) DTR_AT(dtr_coalesce_end, __VA_ARGS__)
#elif DTR_CALL_SITES == 2
DTR_SITED(dtr_broadcast);
DTR_SITED(dtr_reduce);
DTR_SITED(dtr_allreduce);
DTR_SITED(dtr_scan);
DTR_SITED(dtr_exscan);
DTR_SITED(dtr_allgather);
DTR_SITED(dtr_allgatherv);
DTR_SITED(dtr_gather);
DTR_SITED(dtr_gatherv);
DTR_SITED(dtr_scatter);
DTR_SITED(dtr_scatterv);
DTR_SITED(dtr_reduce_scatter);
DTR_SITED(dtr_reduce_scatterv);
DTR_SITED(dtr_alltoall);
DTR_SITED(dtr_alltoallv);
DTR_SITED(dtr_barrier);
DTR_SITED(dtr_node_barrier);
DTR_SITED(dtr_sum);
DTR_SITED(dtr_dot);
DTR_SITED(dtr_norm2);
DTR_SITED(dtr_send);
DTR_SITED(dtr_recv);
DTR_SITED(dtr_batch_p2p);
DTR_SITED(dtr_broadcast_bytes);
DTR_SITED(dtr_allgather_bytes);
DTR_SITED(dtr_gather_bytes);
DTR_SITED(dtr_scatter_bytes);
DTR_SITED(dtr_send_bytes);
DTR_SITED(dtr_recv_bytes);
DTR_SITED(dtr_monitored_barrier);
DTR_SITED(dtr_coalesce_end);
#endif

#endif /* DTR_COLL_H */
