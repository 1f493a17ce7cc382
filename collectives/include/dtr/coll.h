/* Collectives and point to point on typed buffers.
 *
 * work == NULL: the call blocks. Otherwise it returns at once with a handle. GPU buffers travel
 * through host memory, after what the stream of the options holds when the call is made; a work
 * has ended when the result is in GPU memory, for every stream. On failure `*work` is untouched.
 * Arguments are checked locally, in one order, before anything moves: options; enum ranges; root,
 * peer, tag; pointers; devices; dtypes; counts; overlap. A refused call does not move the sequence
 * number.
 *
 * Counts, with N = group size, r = own rank:
 *   call              in.count         out.count          counts array
 *   broadcast         c (buf)
 *   reduce            c                root: c            (out is ignored elsewhere)
 *   allreduce         c                c
 *   allgather         c                N*c
 *   allgatherv        counts[r]        sum(counts)        N entries, equal on all ranks
 *   gather            c                root: N*c, else 0
 *   gatherv           own count        root: sum, else 0  read at the root
 *   scatter           root: N*c, else 0   c
 *   scatterv          root: sum, else 0   own count       read at the root
 *   reduce_scatter    N*c              c
 *   reduce_scatterv   sum(counts)      counts[r]          N entries, equal on all ranks
 *   alltoall          N*c              N*c
 *   alltoallv         sum(in_counts)   sum(out_counts)    N entries each; NULL: equal split of that
 * side Blocks lie in group-rank order without gaps.
 *
 * A blocking broadcast, reduce, gather(v) or scatter(v) may return before other ranks have entered
 * it, once this rank has given its data or got it. In a row of equal small ones a disagreement
 * between ranks may then be the error of the next call here; not so at DTR_DEBUG=detail.
 *
 * Overlap: allreduce, reduce at the root and alltoall take in.data == out.data; allgather(v) takes
 * `in` as this rank's block of `out`, reduce_scatter(v) `out` as this rank's block of `in`. Any
 * other overlap is DTR_ERR_ARG. */
#ifndef DTR_COLL_H
#define DTR_COLL_H

#include <dtr/buffer.h>
#include <dtr/callsite.h>
#include <dtr/group.h>
#include <dtr/work.h>

DTR_BEGIN_DECLS

/* Integers wrap; AVG of integers divides the wrapped sum toward zero; SUM of bool is OR. f16, bf16
 * and fp8 accumulate in float32 and are rounded once. */
typedef enum dtr_op {
    DTR_SUM,
    DTR_AVG,
    DTR_PROD,
    DTR_MIN,
    DTR_MAX,
    DTR_BAND,
    DTR_BOR,
    DTR_BXOR,
    DTR_PREMUL_SUM /* sums factor * input; factors may differ per rank */
} dtr_op;

typedef struct dtr_coll_options {
    size_t struct_size;        /* set by DTR_COLL_OPTIONS_INIT */
    double timeout_s;          /* 0: the group's; INFINITY: none */
    void *stream;              /* CUDA stream of the caller; NULL: default stream; ignored on CPU */
    double premul;             /* DTR_PREMUL_SUM: the factor; 0: not given */
    const void *premul_device; /* one element on the buffers' device, wins over premul; real part's
                                  type for complex */
    const char *label;         /* shown in errors, logs and the flight recorder; copied */
    uint32_t flags;            /* none defined: 0 */
} dtr_coll_options;
#ifdef __cplusplus
#define DTR_COLL_OPTIONS_INIT \
    { sizeof(dtr_coll_options), 0, 0, 0, 0, 0, 0 }
#else
#define DTR_COLL_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_coll_options) }
#endif

#define DTR_ANY_SOURCE                                                                        \
    (-2) /* dtr_recv, dtr_recv_bytes; not -1, which dtr_group_rank_of returns for "not in the \
            group" */

/** Whether an operator is defined for an element type; the same on every backend.
 *  @collective no
 *  @blocking   no
 *  @gpu        no
 *  @errors     none
 *  @since 0.1 */
DTR_API bool dtr_op_supports(dtr_op op, dtr_dtype dtype);

/** Copy the root's elements to all ranks; the root's buffer is only read.
 *  @collective all members, same order, same root, count and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_broadcast(dtr_group *group, dtr_buffer buf, int root,
                                 const dtr_coll_options *options, dtr_work **work);

/** Reduce `in` of all ranks into `out` at the root; `out` of the others is ignored.
 *  @collective all members, same order, same root, op, count and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_reduce(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op, int root,
                              const dtr_coll_options *options, dtr_work **work);

/** Reduce `in` of all ranks into `out` of all ranks: bitwise the same everywhere.
 *  @collective all members, same order, same op, count and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_allreduce(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                                 const dtr_coll_options *options, dtr_work **work);

/** Concatenate `in` of all ranks, in rank order, in `out` of all ranks.
 *  @collective all members, same order, same count and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_allgather(dtr_group *group, dtr_buffer in, dtr_buffer out,
                                 const dtr_coll_options *options, dtr_work **work);

/** As dtr_allgather with counts[i] elements from rank i.
 *  @collective all members, same order, same counts and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_allgatherv(dtr_group *group, dtr_buffer in, dtr_buffer out,
                                  const size_t *counts, const dtr_coll_options *options,
                                  dtr_work **work);

/** Concatenate `in` of all ranks in `out` of the root.
 *  @collective all members, same order, same root, count and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_gather(dtr_group *group, dtr_buffer in, dtr_buffer out, int root,
                              const dtr_coll_options *options, dtr_work **work);

/** As dtr_gather with counts[i] elements from rank i; counts is read at the root only.
 *  @collective all members, same order, same root and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_gatherv(dtr_group *group, dtr_buffer in, dtr_buffer out,
                               const size_t *counts, int root, const dtr_coll_options *options,
                               dtr_work **work);

/** Send block i of the root's `in` to `out` of rank i.
 *  @collective all members, same order, same root, count and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_scatter(dtr_group *group, dtr_buffer in, dtr_buffer out, int root,
                               const dtr_coll_options *options, dtr_work **work);

/** As dtr_scatter with counts[i] elements to rank i; counts is read at the root only.
 *  @collective all members, same order, same root and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_scatterv(dtr_group *group, dtr_buffer in, const size_t *counts,
                                dtr_buffer out, int root, const dtr_coll_options *options,
                                dtr_work **work);

/** Reduce `in` of all ranks and leave block r on rank r.
 *  @collective all members, same order, same op, count and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_reduce_scatter(dtr_group *group, dtr_buffer in, dtr_buffer out, dtr_op op,
                                      const dtr_coll_options *options, dtr_work **work);

/** As dtr_reduce_scatter with counts[i] elements for rank i.
 *  @collective all members, same order, same op, counts and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_reduce_scatterv(dtr_group *group, dtr_buffer in, const size_t *counts,
                                       dtr_buffer out, dtr_op op, const dtr_coll_options *options,
                                       dtr_work **work);

/** Send block j of `in` to rank j, which puts it into its block r.
 *  @collective all members, same order, same count and dtype
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_alltoall(dtr_group *group, dtr_buffer in, dtr_buffer out,
                                const dtr_coll_options *options, dtr_work **work);

/** As dtr_alltoall with in_counts[j] elements to and out_counts[j] from rank j; NULL: that side is
 * split evenly.
 *  @collective all members, same order, same dtype; in_counts[j] on i equals out_counts[i] on j
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_alltoallv(dtr_group *group, dtr_buffer in, const size_t *in_counts,
                                 dtr_buffer out, const size_t *out_counts,
                                 const dtr_coll_options *options, dtr_work **work);

/** Complete when all members have entered; first waits for this rank's unfinished works of the
 * group.
 *  @collective all members, same order, counted like the other collectives
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_barrier(dtr_group *group, const dtr_coll_options *options, dtr_work **work);

/** Wait until all members have come, or say who has not. The earliest limit among those who came
 * ends it for all of them with the same list: `missing` (room for the group size) gets the missing
 * group ranks, ascending, or with wait_all false the lowest one, and `*n_missing` their number, 0
 * on success; both may be NULL. A rank that comes later gets the verdict of the call it missed at
 * once. A member known to have died ends it for all with DTR_ERR_REMOTE and is listed as missing.
 * The group stays usable and its sequence number where it is.
 *  @collective all members; not counted
 *  @blocking   until all have come or timeout_s has passed; <= 0: the group's limit
 *  @gpu        host only
 *  @errors     DTR_ERR_TIMEOUT (the group is unharmed), DTR_ERR_ARG, DTR_ERR_STATE (inside a
 * coalescing scope, which it aborts, or a callback), DTR_ERR_NOMEM; what broke the group
 *  @since 0.1 */
DTR_API dtr_status dtr_monitored_barrier(dtr_group *group, double timeout_s, bool wait_all,
                                         int *missing, int *n_missing);

/** Send a buffer to a peer. Tags 0..32767 match sends to receives; dtype and count must equal the
 * receiver's.
 *  @collective the peer receives; a rank may send to itself only with a work
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_send(dtr_group *group, dtr_buffer buf, int peer, int tag,
                            const dtr_coll_options *options, dtr_work **work);

/** Receive a buffer from a peer or DTR_ANY_SOURCE; with a work, dtr_work_source names the sender.
 *  @collective the peer sends
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group; DTR_ERR_MISMATCH when dtype or count differ from
 * what was sent (the buffer is untouched)
 *  @since 0.1 */
DTR_API dtr_status dtr_recv(dtr_group *group, dtr_buffer buf, int peer, int tag,
                            const dtr_coll_options *options, dtr_work **work);

/* One entry of a batch. */
typedef struct dtr_p2p {
    bool is_send;
    dtr_buffer buf;
    int peer;
    int tag;
} dtr_p2p;

/** Start all sends and receives of a list together under one work; entries match in list order per
 * pair and tag.
 *  @collective the peers named in the list
 *  @blocking   without work: until complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_RANK,
 * DTR_ERR_OVERFLOW before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group; a bad entry starts nothing
 *  @since 0.1 */
DTR_API dtr_status dtr_batch_p2p(dtr_group *group, const dtr_p2p *ops, size_t n,
                                 const dtr_coll_options *options, dtr_work **work);

/** Open a coalescing scope: the group's calls of this thread are checked and recorded, and started
 * together by dtr_coalesce_end. A work asked for inside stands for the whole scope and may be
 * waited after its end. What one call of a scope writes must not overlap what another reads or
 * writes. A failing call aborts the scope, which is still ended once.
 *  @collective no; the recorded calls are, in the same order
 *  @blocking   no
 *  @gpu        one launch at the end
 *  @errors     DTR_ERR_STATE when a scope of the group is open; DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_coalesce_begin(dtr_group *group);

/** Start the recorded calls of the scope, in order, as one operation: it counts as one collective
 * if it holds any, an empty scope as none. CPU backends fuse small neighbours of one kind, dtype
 * and op.
 *  @collective all members, if the scope holds a collective
 *  @blocking   without work: until all calls are complete
 *  @gpu        after what the stream holds; without a work the host waits
 *  @errors     the first failure of a recorded call; DTR_ERR_STATE without an open scope or on
 * another thread; DTR_ERR_NOMEM; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_coalesce_end(dtr_group *group, dtr_work **work);

/* A string of bytes of any length. */
typedef struct dtr_bytes {
    void *data; /* NULL when nbytes is 0 */
    size_t nbytes;
} dtr_bytes;

/** Free what the library put into each entry and zero the entries; zeroed entries and NULL are
 * passed over.
 *  @collective no
 *  @blocking   no
 *  @gpu        no
 *  @errors     none
 *  @since 0.1 */
DTR_API void dtr_bytes_free(dtr_bytes *list, size_t n);

/** Copy the root's n strings to all ranks, into entries allocated by the library. `in` is read at
 * the root only; `out` may be NULL there, else it gets copies.
 *  @collective all members, same order, same n and root; counted like the other collectives
 *  @blocking   until complete
 *  @gpu        host memory on every group
 *  @errors     DTR_ERR_ARG, DTR_ERR_RANK, DTR_ERR_OVERFLOW, DTR_ERR_STATE (inside a coalescing
 * scope, which it aborts, or a callback) before anything moves; DTR_ERR_MISMATCH (n differs),
 * DTR_ERR_NOMEM, DTR_ERR_TIMEOUT, DTR_ERR_ABORTED, DTR_ERR_REMOTE, DTR_ERR_MPI break the group,
 * `out` untouched
 *  @since 0.1 */
DTR_API dtr_status dtr_broadcast_bytes(dtr_group *group, const dtr_bytes *in, size_t n, int root,
                                       const dtr_coll_options *options, dtr_bytes *out);

/** Give every rank every rank's string: out[i] is rank i's, allocated by the library.
 *  @collective all members, same order; counted like the other collectives
 *  @blocking   until complete
 *  @gpu        host memory on every group
 *  @errors     as dtr_broadcast_bytes
 *  @since 0.1 */
DTR_API dtr_status dtr_allgather_bytes(dtr_group *group, dtr_bytes in,
                                       const dtr_coll_options *options, dtr_bytes *out);

/** Give the root every rank's string; `out` has an entry per rank there and is NULL elsewhere.
 *  @collective all members, same order, same root; counted like the other collectives
 *  @blocking   until complete
 *  @gpu        host memory on every group
 *  @errors     as dtr_broadcast_bytes
 *  @since 0.1 */
DTR_API dtr_status dtr_gather_bytes(dtr_group *group, dtr_bytes in, int root,
                                    const dtr_coll_options *options, dtr_bytes *out);

/** Give rank i the root's string in[i] in `*out`. `in` and `n`, the group size, are read at the
 * root only.
 *  @collective all members, same order, same root; counted like the other collectives
 *  @blocking   until complete
 *  @gpu        host memory on every group
 *  @errors     as dtr_broadcast_bytes
 *  @since 0.1 */
DTR_API dtr_status dtr_scatter_bytes(dtr_group *group, const dtr_bytes *in, size_t n, int root,
                                     const dtr_coll_options *options, dtr_bytes *out);

/** Send n strings to another rank, which receives as many with dtr_recv_bytes; they never meet
 * dtr_recv.
 *  @collective the peer receives
 *  @blocking   until complete
 *  @gpu        host memory on every group
 *  @errors     as dtr_broadcast_bytes; DTR_ERR_RANK to oneself
 *  @since 0.1 */
DTR_API dtr_status dtr_send_bytes(dtr_group *group, const dtr_bytes *in, size_t n, int peer,
                                  int tag, const dtr_coll_options *options);

/** Receive n strings from a peer or DTR_ANY_SOURCE into entries allocated by the library; `source`,
 * unless NULL, gets the sender's group rank.
 *  @collective the peer sends
 *  @blocking   until complete
 *  @gpu        host memory on every group
 *  @errors     as dtr_broadcast_bytes; DTR_ERR_RANK from oneself
 *  @since 0.1 */
DTR_API dtr_status dtr_recv_bytes(dtr_group *group, size_t n, int peer, int tag,
                                  const dtr_coll_options *options, dtr_bytes *out, int *source);

#ifndef DTR_NO_CALL_SITE /* remember file:line of the caller for errors and the flight recorder */
#define dtr_broadcast(...) (dtr_call_site(__FILE__, __LINE__), dtr_broadcast(__VA_ARGS__))
#define dtr_reduce(...) (dtr_call_site(__FILE__, __LINE__), dtr_reduce(__VA_ARGS__))
#define dtr_allreduce(...) (dtr_call_site(__FILE__, __LINE__), dtr_allreduce(__VA_ARGS__))
#define dtr_allgather(...) (dtr_call_site(__FILE__, __LINE__), dtr_allgather(__VA_ARGS__))
#define dtr_allgatherv(...) (dtr_call_site(__FILE__, __LINE__), dtr_allgatherv(__VA_ARGS__))
#define dtr_gather(...) (dtr_call_site(__FILE__, __LINE__), dtr_gather(__VA_ARGS__))
#define dtr_gatherv(...) (dtr_call_site(__FILE__, __LINE__), dtr_gatherv(__VA_ARGS__))
#define dtr_scatter(...) (dtr_call_site(__FILE__, __LINE__), dtr_scatter(__VA_ARGS__))
#define dtr_scatterv(...) (dtr_call_site(__FILE__, __LINE__), dtr_scatterv(__VA_ARGS__))
#define dtr_reduce_scatter(...) (dtr_call_site(__FILE__, __LINE__), dtr_reduce_scatter(__VA_ARGS__))
#define dtr_reduce_scatterv(...) \
    (dtr_call_site(__FILE__, __LINE__), dtr_reduce_scatterv(__VA_ARGS__))
#define dtr_alltoall(...) (dtr_call_site(__FILE__, __LINE__), dtr_alltoall(__VA_ARGS__))
#define dtr_alltoallv(...) (dtr_call_site(__FILE__, __LINE__), dtr_alltoallv(__VA_ARGS__))
#define dtr_barrier(...) (dtr_call_site(__FILE__, __LINE__), dtr_barrier(__VA_ARGS__))
#define dtr_send(...) (dtr_call_site(__FILE__, __LINE__), dtr_send(__VA_ARGS__))
#define dtr_recv(...) (dtr_call_site(__FILE__, __LINE__), dtr_recv(__VA_ARGS__))
#define dtr_batch_p2p(...) (dtr_call_site(__FILE__, __LINE__), dtr_batch_p2p(__VA_ARGS__))
#define dtr_broadcast_bytes(...) \
    (dtr_call_site(__FILE__, __LINE__), dtr_broadcast_bytes(__VA_ARGS__))
#define dtr_allgather_bytes(...) \
    (dtr_call_site(__FILE__, __LINE__), dtr_allgather_bytes(__VA_ARGS__))
#define dtr_gather_bytes(...) (dtr_call_site(__FILE__, __LINE__), dtr_gather_bytes(__VA_ARGS__))
#define dtr_scatter_bytes(...) (dtr_call_site(__FILE__, __LINE__), dtr_scatter_bytes(__VA_ARGS__))
#define dtr_send_bytes(...) (dtr_call_site(__FILE__, __LINE__), dtr_send_bytes(__VA_ARGS__))
#define dtr_recv_bytes(...) (dtr_call_site(__FILE__, __LINE__), dtr_recv_bytes(__VA_ARGS__))
#define dtr_monitored_barrier(...) \
    (dtr_call_site(__FILE__, __LINE__), dtr_monitored_barrier(__VA_ARGS__))
#define dtr_coalesce_end(...) (dtr_call_site(__FILE__, __LINE__), dtr_coalesce_end(__VA_ARGS__))
#endif

DTR_END_DECLS

#endif /* DTR_COLL_H */
