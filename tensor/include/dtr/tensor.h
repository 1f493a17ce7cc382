/** @file
 * A small tensor: element type, shape, strides and device on top of somebody's memory.
 *
 * Handles are reference counted (atomic; any thread may retain and release). A view shares the
 * memory of its base and keeps it alive. Strides count elements. 0 to 16 dimensions; a size of 0
 * is legal anywhere. A tensor is contiguous when its elements lie row-major without gaps; sizes of
 * 1 and empty tensors put no condition on strides.
 *
 * The functions are not synchronised with each other: two threads may read one tensor, not write
 * it. Functions that write refuse a tensor in which several indices share memory (stride 0). */
#ifndef DTR_TENSOR_H
#define DTR_TENSOR_H

#include <dtr/buffer.h>
#include <dtr/coll.h>

DTR_BEGIN_DECLS

enum { DTR_MAX_NDIM = 16 };

/** Make a tensor with memory of its own, contents undefined. The memory of each kind lives as long
 * as the tensor or its last view, whether or not the world still does; release none while another
 * thread is in dtr_world_destroy. What is made of such a tensor afterwards is in plain memory.
 *  @collective no  @blocking no
 *  @gpu allocates on the device
 *  @errors DTR_ERR_ARG (NULL, ndim, kind), DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE
 * (negative size), DTR_ERR_OVERFLOW (bytes beyond what memory can hold), DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_tensor_empty(dtr_world *world, dtr_dtype dtype, dtr_device device,
                                    dtr_mem kind, int ndim, const int64_t *shape,
                                    dtr_tensor **tensor);

/** Make a tensor over the caller's memory; nothing is copied. `strides` NULL means row-major. All
 * elements must lie inside the buffer, which must not be one to read only. `deleter` (NULL: none)
 * is called with the buffer's data pointer and `arg` exactly once, when the last tensor over the
 * memory is released, on the releasing thread; never when this call fails.
 *  @collective no  @blocking no  @gpu touches no memory
 *  @errors DTR_ERR_ARG (NULL, ndim, DTR_READ_ONLY), DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE
 * (negative size; elements outside the buffer), DTR_ERR_OVERFLOW, DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_tensor_from_buffer(dtr_buffer buffer, int ndim, const int64_t *shape,
                                          const int64_t *strides,
                                          void (*deleter)(void *data, void *arg), void *arg,
                                          dtr_tensor **tensor);

/** Add a reference and return the tensor; NULL gives NULL.
 *  @collective no; any thread  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_tensor *dtr_tensor_retain(dtr_tensor *tensor);

/** Drop a reference; the last one frees the tensor, and its memory when no view is left. NULL does
 * nothing. A tensor used by an unfinished operation must be kept until that has completed.
 *  @collective no; any thread  @blocking no  @gpu may free device memory  @errors none
 *  @since 0.1 */
DTR_API void dtr_tensor_release(dtr_tensor *tensor);

/** Address of the element with all indices 0; NULL for NULL. The address of a gradient inside a DDP
 * bucket may change when buckets are rebuilt.
 *  @collective no  @blocking no
 *  @gpu a device address for a tensor on a device
 *  @errors none  @since 0.1 */
DTR_API void *dtr_tensor_data(const dtr_tensor *tensor);

/** Element type; a value outside the enum, (dtr_dtype)-1, for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_dtype dtr_tensor_dtype(const dtr_tensor *tensor);

/** Where the memory is; {DTR_CPU, 0} for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_device dtr_tensor_device(const dtr_tensor *tensor);

/** Number of dimensions, -1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API int dtr_tensor_ndim(const dtr_tensor *tensor);

/** The ndim sizes, valid as long as the tensor; NULL for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const int64_t *dtr_tensor_shape(const dtr_tensor *tensor);

/** The ndim strides in elements, valid as long as the tensor; NULL for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const int64_t *dtr_tensor_strides(const dtr_tensor *tensor);

/** Number of elements (1 with no dimensions), 0 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API size_t dtr_tensor_numel(const dtr_tensor *tensor);

/** Whether the elements lie row-major without gaps; false for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API bool dtr_tensor_is_contiguous(const dtr_tensor *tensor);

/** The tensor's memory as a typed buffer. Of a tensor that is not contiguous the data pointer is
 * NULL and the count is kept; of NULL the dtype is outside the enum: every collective refuses
 * these.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_buffer dtr_tensor_buffer(const dtr_tensor *tensor);

/** View with another shape and the same elements in row-major order. Also of tensors that are not
 * contiguous where strides can express it.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL, ndim), DTR_ERR_SHAPE (negative size, other number of elements),
 * DTR_ERR_OVERFLOW, DTR_ERR_LAYOUT (no view can do it: make it contiguous first), DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_tensor_reshape(dtr_tensor *tensor, int ndim, const int64_t *shape,
                                      dtr_tensor **view);

/** View of the indices start .. start + length - 1 of one dimension; length 0 is legal.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL; dim, start or length out of range), DTR_ERR_NOMEM  @since 0.1 */
DTR_API dtr_status dtr_tensor_narrow(dtr_tensor *tensor, int dim, int64_t start, int64_t length,
                                     dtr_tensor **view);

/** View with two dimensions exchanged.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL; a dimension out of range), DTR_ERR_NOMEM  @since 0.1 */
DTR_API dtr_status dtr_tensor_transpose(dtr_tensor *tensor, int dim0, int dim1, dtr_tensor **view);

/** The tensor itself with one more reference when it is contiguous, else a contiguous copy, as
 * dtr_tensor_clone makes it.
 *  @collective no  @blocking as dtr_tensor_clone  @gpu as dtr_tensor_clone
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_NOMEM, DTR_ERR_CUDA  @since 0.1 */
DTR_API dtr_status dtr_tensor_contiguous(dtr_tensor *tensor, dtr_tensor **out);

/** A contiguous copy in memory of its own, of the same kind as the original's.
 *  @collective no  @blocking until copied
 *  @gpu copied on the default stream, for which the host waits; what a stream that does not wait
 * for that one writes must be there before. dtr_tensor_empty and dtr_tensor_copy do it on a stream
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_NOMEM, DTR_ERR_CUDA  @since 0.1 */
DTR_API dtr_status dtr_tensor_clone(const dtr_tensor *tensor, dtr_tensor **out);

/** Copy element by element into a tensor of the same shape, with conversion. Floats round to
 * nearest even; float to integer truncates and saturates, NaN gives 0; integers wrap; to bool is
 * != 0; complex to real takes the real part. Equal types copy bits. Tensors that overlap are copied
 * as if through a third one. `stream` is ignored on the CPU.
 *  @collective no
 *  @blocking until copied; on a device only where plain host memory takes part: until it is
 * copied there, or may be written again
 *  @gpu in order on the stream, NULL the default one. Equal types, or f16, bf16, f32 and f64 on
 * one device; between host and device contiguous tensors; else DTR_ERR_UNSUPPORTED. Tensors on one
 * device may have any strides, but not overlap
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_LAYOUT (elements of dst share memory), DTR_ERR_SHAPE,
 * DTR_ERR_UNSUPPORTED, DTR_ERR_DEVICE, DTR_ERR_CUDA, DTR_ERR_NOMEM (overlap only)
 *  @since 0.1 */
DTR_API dtr_status dtr_tensor_copy(dtr_tensor *dst, const dtr_tensor *src, void *stream);

/** Set every element to `value`, converted as dtr_tensor_copy converts a float64.
 *  @collective no
 *  @blocking until done; not on a device
 *  @gpu one kernel on the stream, NULL the default one; contiguous tensors
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_LAYOUT (elements share memory), DTR_ERR_UNSUPPORTED,
 * DTR_ERR_CUDA
 *  @since 0.1 */
DTR_API dtr_status dtr_tensor_fill(dtr_tensor *tensor, double value, void *stream);

/** Multiply every element by `alpha`. 8- and 16-bit floats compute in float32 and f32, c64 with
 * alpha rounded to float32; integers compute in float64 (i64, u64: long double), truncate toward
 * zero and saturate.
 *  @collective no
 *  @blocking until done; not on a device
 *  @gpu one kernel on the stream, NULL the default one; contiguous tensors of f16, bf16,
 * f32, f64, c64, c128
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_LAYOUT (elements share memory), DTR_ERR_DTYPE (bool),
 * DTR_ERR_UNSUPPORTED, DTR_ERR_CUDA
 *  @since 0.1 */
DTR_API dtr_status dtr_tensor_scale(dtr_tensor *tensor, double alpha, void *stream);

/** y += alpha * x for tensors of one shape. Both are floats, both integers, or both complex; the
 * types may differ. Computed in the wider of the two computation types of dtr_tensor_scale and
 * rounded once to y's type. x and y may overlap.
 *  @collective no
 *  @blocking until done; not on a device
 *  @gpu one kernel on the stream, NULL the default one; types as dtr_tensor_scale, the same
 * for both, on one device, contiguous and without overlap
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_LAYOUT (elements of y share memory), DTR_ERR_DTYPE,
 * DTR_ERR_SHAPE, DTR_ERR_UNSUPPORTED, DTR_ERR_DEVICE, DTR_ERR_CUDA, DTR_ERR_NOMEM (overlap only)
 *  @since 0.1 */
DTR_API dtr_status dtr_tensor_axpy(dtr_tensor *y, double alpha, const dtr_tensor *x, void *stream);

/** Euclidean norm of all elements (complex: of their magnitudes), accumulated in float64 and
 * guarded against overflow and underflow of the squares. NaN if an element is; 0 when empty.
 *  @collective no  @blocking until done
 *  @gpu kernels on the stream, NULL the default one; the host waits for the stream. Types as
 * dtr_tensor_scale, contiguous
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_STATE (the stream captures a graph), DTR_ERR_UNSUPPORTED,
 * DTR_ERR_NOMEM, DTR_ERR_CUDA  @since 0.2 */
DTR_API dtr_status dtr_tensor_norm(const dtr_tensor *tensor, void *stream, double *out);

/** @name Collectives on tensors
 * As the calls of dtr/coll.h, whose contract holds here too: work == NULL blocks, on failure
 * `*work` is untouched, and arguments are checked locally before anything moves, in the order given
 * there (layout before dtypes; NULL tensors count as pointers). N is the group size.
 *
 * Tensors need not be contiguous: a strided input is packed when the call is made, a strided output
 * is filled before the work counts as complete, and the memory between its elements is left alone.
 * What packing needs is freed at completion. Contiguous tensors move without a copy and follow the
 * overlap rules of dtr/coll.h. Strided tensors on a device are refused. All tensors must be kept
 * until completion.
 *
 * Errors of every call: DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_SHAPE, DTR_ERR_LAYOUT,
 * DTR_ERR_OVERFLOW, DTR_ERR_NOMEM before anything moves, and DTR_ERR_RANK where a root or a peer is
 * named; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED, DTR_ERR_REMOTE, DTR_ERR_MPI, which
 * break the group.
 * @{ */

DTR_BEGIN_SITED

/** Copy the root's elements to all ranks; the root's tensor is only read.
 *  @collective all members, same order, same root, shape and dtype
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_broadcast(dtr_group *group, dtr_tensor *tensor, int root,
                                        const dtr_coll_options *options, dtr_work **work);

/** Reduce the tensors of all ranks into the root's, in place; the others' are only read.
 *  @collective all members, same order, same root, op, shape and dtype
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_reduce(dtr_group *group, dtr_tensor *tensor, dtr_op op, int root,
                                     const dtr_coll_options *options, dtr_work **work);

/** Reduce the tensors of all ranks, in place on every rank.
 *  @collective all members, same order, same op, shape and dtype
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_allreduce(dtr_group *group, dtr_tensor *tensor, dtr_op op,
                                        const dtr_coll_options *options, dtr_work **work);

/** Collect `in` of all ranks in `out`, in rank order: either concatenated along dimension 0 (out is
 * [N * s0, rest of in]) or stacked (out is [N, in's shape]).
 *  @collective all members, same order, same shape and dtype of in
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_allgather(dtr_group *group, dtr_tensor *in, dtr_tensor *out,
                                        const dtr_coll_options *options, dtr_work **work);

/** Collect `in` of all ranks in a list of N tensors, outs[i] from rank i. The tensors may differ in
 * size and shape; outs[own rank] has the shape of in.
 *  @collective all members, same order, same sizes in the list, same dtype
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_allgather_list(dtr_group *group, dtr_tensor *in,
                                             dtr_tensor *const *outs,
                                             const dtr_coll_options *options, dtr_work **work);

/** As dtr_tensor_allgather, at the root only; elsewhere `out` is NULL or empty.
 *  @collective all members, same order, same root, shape and dtype of in
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_gather(dtr_group *group, dtr_tensor *in, dtr_tensor *out, int root,
                                     const dtr_coll_options *options, dtr_work **work);

/** As dtr_tensor_allgather_list, at the root only; elsewhere `outs` is NULL.
 *  @collective all members, same order, same root and dtype
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_gather_list(dtr_group *group, dtr_tensor *in, dtr_tensor *const *outs,
                                          int root, const dtr_coll_options *options,
                                          dtr_work **work);

/** Cut the root's `in` (concatenated or stacked as in dtr_tensor_allgather) into N parts and give
 * part i to `out` of rank i; elsewhere `in` is NULL or empty.
 *  @collective all members, same order, same root, shape and dtype of out
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_scatter(dtr_group *group, dtr_tensor *in, dtr_tensor *out, int root,
                                      const dtr_coll_options *options, dtr_work **work);

/** Give ins[i] of the root to `out` of rank i, whose shape it has; sizes may differ. Elsewhere
 * `ins` is NULL.
 *  @collective all members, same order, same root and dtype
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_scatter_list(dtr_group *group, dtr_tensor *const *ins,
                                           dtr_tensor *out, int root,
                                           const dtr_coll_options *options, dtr_work **work);

/** Reduce `in` (concatenated or stacked as in dtr_tensor_allgather) of all ranks and leave part r
 * in `out` of rank r.
 *  @collective all members, same order, same op, shape and dtype
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_reduce_scatter(dtr_group *group, dtr_tensor *in, dtr_tensor *out,
                                             dtr_op op, const dtr_coll_options *options,
                                             dtr_work **work);

/** Reduce ins[i] of all ranks into `out` of rank i, whose shape it has; sizes in the list may
 * differ.
 *  @collective all members, same order, same op, same sizes in the list, same dtype
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_reduce_scatter_list(dtr_group *group, dtr_tensor *const *ins,
                                                  dtr_tensor *out, dtr_op op,
                                                  const dtr_coll_options *options, dtr_work **work);

/** Cut `in` into N equal parts along dimension 0 and send part j to rank j, which puts it into its
 * part r of `out`. Both have the same shape.
 *  @collective all members, same order, same shape and dtype
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_alltoall(dtr_group *group, dtr_tensor *in, dtr_tensor *out,
                                       const dtr_coll_options *options, dtr_work **work);

/** As dtr_tensor_alltoall with in_rows[j] indices of dimension 0 to rank j and out_rows[j] from it;
 * NULL splits that side evenly. Both tensors have at least one dimension and the same sizes after
 * the first.
 *  @collective all members, same order, same row shape and dtype; in_rows[j] on i equals
 * out_rows[i] on j
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_alltoallv(dtr_group *group, dtr_tensor *in, const size_t *in_rows,
                                        dtr_tensor *out, const size_t *out_rows,
                                        const dtr_coll_options *options, dtr_work **work);

/** Send ins[j] to rank j and receive outs[j] from it; N tensors of any sizes in each list.
 *  @collective all members, same order, same dtype; ins[j] on i has as many elements as outs[i] on
 * j
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_alltoall_list(dtr_group *group, dtr_tensor *const *ins,
                                            dtr_tensor *const *outs,
                                            const dtr_coll_options *options, dtr_work **work);

/** Send a tensor's elements in row-major order; tags, dtype and number of elements as in dtr_send,
 * DTR_PEER_NONE too.
 *  @collective the peer receives; a rank may send to itself only with a work
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_send(dtr_group *group, dtr_tensor *tensor, int peer, int tag,
                                   const dtr_coll_options *options, dtr_work **work);

/** Receive a tensor's elements from a peer or DTR_ANY_SOURCE; from DTR_PEER_NONE nothing comes.
 *  @collective the peer sends
 *  @blocking see above  @gpu see above  @errors see above  @since 0.1 */
DTR_API dtr_status dtr_tensor_recv(dtr_group *group, dtr_tensor *tensor, int peer, int tag,
                                   const dtr_coll_options *options, dtr_work **work);

DTR_END_SITED

/** One entry of a batch of tensors. The list grows by new functions: its entries stay as they are.
 */
typedef struct dtr_tensor_p2p {
    bool is_send;
    dtr_tensor *tensor;
    int peer; /**< rank of the group, or DTR_PEER_NONE: the entry is left out */
    int tag;  /**< 0..32767 */
} dtr_tensor_p2p;

DTR_BEGIN_SITED

/** Start all sends and receives of a list of tensors together under one work, as dtr_batch_p2p does
 * for buffers: a halo exchange with the columns of an array (dtr_tensor_narrow) is one call.
 * Strided tensors are packed when the call is made, so what is sent may be overwritten by what is
 * received; received ones are filled before the work counts as complete, and must not share
 * elements.
 *  @collective the peers named in the list
 *  @blocking see above  @gpu see above  @errors see above; a bad entry starts nothing  @since 0.1
 */
DTR_API dtr_status dtr_tensor_batch_p2p(dtr_group *group, const dtr_tensor_p2p *ops, size_t n,
                                        const dtr_coll_options *options, dtr_work **work);

/** Copy the root's tensors to all ranks, put together in pieces: tensors of one dtype and device
 * are added in list order until a piece has at least piece_nbytes (0: 250 MiB). Empty tensors are
 * skipped, two pieces are in flight at most, the root's tensors are only read. Uses one collective
 * per piece.
 *  @collective all members, same order, same root, piece size, list of shapes and dtypes
 *  @blocking until complete
 *  @gpu DTR_ERR_UNSUPPORTED for tensors on a device
 *  @errors DTR_ERR_ARG (NULL; n == 0), DTR_ERR_LAYOUT, DTR_ERR_RANK, DTR_ERR_UNSUPPORTED,
 * DTR_ERR_NOMEM before anything moves; those of dtr_broadcast
 *  @since 0.1 */
DTR_API dtr_status dtr_broadcast_coalesced(dtr_group *group, dtr_tensor *const *tensors, size_t n,
                                           int root, size_t piece_nbytes);

/** Sum (or average) rows of a large tensor of which each rank has some: `indices` holds row numbers
 * 0..n_rows-1 in any order, repeats add up, `values` their rows. Every rank gets every row that any
 * rank gave exactly once, ascending, in two new contiguous tensors that the caller releases. Rows
 * are summed over ranks in rank order, within a rank in list order, and rounded once: bitwise the
 * same everywhere. The number of entries is free on each rank and may be 0. The two handles are
 * written before the work counts as complete, and not at all on failure; their places must outlive
 * the operation like the tensors. Counts as one collective.
 *  @collective all members, same order, same n_rows, op, dtype and shape of a row
 *  @blocking without work: as the call of dtr/coll.h
 *  @gpu the host waits for what the stream holds and for the copies to and from the device;
 * rows travel through host memory; the results are on the inputs' device and complete with the work
 *  @errors DTR_ERR_ARG (NULL, an index out of range), DTR_ERR_DEVICE, DTR_ERR_LAYOUT (not
 * contiguous), DTR_ERR_DTYPE (indices not i64; values without SUM or AVG), DTR_ERR_UNSUPPORTED
 * (other operators), DTR_ERR_SHAPE, DTR_ERR_STATE (inside a coalescing scope), of a device also
 * DTR_ERR_CUDA and DTR_ERR_NOMEM before anything moves; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH,
 * DTR_ERR_NOMEM, DTR_ERR_ABORTED, DTR_ERR_REMOTE, DTR_ERR_MPI break the group
 *  @since 0.1 */
DTR_API dtr_status dtr_sparse_allreduce(dtr_group *group, dtr_tensor *indices, dtr_tensor *values,
                                        int64_t n_rows, dtr_op op, const dtr_coll_options *options,
                                        dtr_tensor **out_indices, dtr_tensor **out_values,
                                        dtr_work **work);

DTR_END_SITED

/** @} */

DTR_END_DECLS

#if DTR_CALL_SITES == 1 /* what these start was called from the caller's file and line */
#define dtr_tensor_broadcast(...) DTR_AT(dtr_tensor_broadcast, __VA_ARGS__)
#define dtr_tensor_reduce(...) DTR_AT(dtr_tensor_reduce, __VA_ARGS__)
#define dtr_tensor_allreduce(...) DTR_AT(dtr_tensor_allreduce, __VA_ARGS__)
#define dtr_tensor_allgather(...) DTR_AT(dtr_tensor_allgather, __VA_ARGS__)
#define dtr_tensor_allgather_list(...) DTR_AT(dtr_tensor_allgather_list, __VA_ARGS__)
#define dtr_tensor_gather(...) DTR_AT(dtr_tensor_gather, __VA_ARGS__)
#define dtr_tensor_gather_list(...) DTR_AT(dtr_tensor_gather_list, __VA_ARGS__)
#define dtr_tensor_scatter(...) DTR_AT(dtr_tensor_scatter, __VA_ARGS__)
#define dtr_tensor_scatter_list(...) DTR_AT(dtr_tensor_scatter_list, __VA_ARGS__)
#define dtr_tensor_reduce_scatter(...) DTR_AT(dtr_tensor_reduce_scatter, __VA_ARGS__)
#define dtr_tensor_reduce_scatter_list(...) DTR_AT(dtr_tensor_reduce_scatter_list, __VA_ARGS__)
#define dtr_tensor_alltoall(...) DTR_AT(dtr_tensor_alltoall, __VA_ARGS__)
#define dtr_tensor_alltoallv(...) DTR_AT(dtr_tensor_alltoallv, __VA_ARGS__)
#define dtr_tensor_alltoall_list(...) DTR_AT(dtr_tensor_alltoall_list, __VA_ARGS__)
#define dtr_tensor_send(...) DTR_AT(dtr_tensor_send, __VA_ARGS__)
#define dtr_tensor_recv(...) DTR_AT(dtr_tensor_recv, __VA_ARGS__)
#define dtr_tensor_batch_p2p(...) DTR_AT(dtr_tensor_batch_p2p, __VA_ARGS__)
#define dtr_broadcast_coalesced(...) DTR_AT(dtr_broadcast_coalesced, __VA_ARGS__)
#define dtr_sparse_allreduce(...) DTR_AT(dtr_sparse_allreduce, __VA_ARGS__)
#elif DTR_CALL_SITES == 2
DTR_SITED(dtr_tensor_broadcast);
DTR_SITED(dtr_tensor_reduce);
DTR_SITED(dtr_tensor_allreduce);
DTR_SITED(dtr_tensor_allgather);
DTR_SITED(dtr_tensor_allgather_list);
DTR_SITED(dtr_tensor_gather);
DTR_SITED(dtr_tensor_gather_list);
DTR_SITED(dtr_tensor_scatter);
DTR_SITED(dtr_tensor_scatter_list);
DTR_SITED(dtr_tensor_reduce_scatter);
DTR_SITED(dtr_tensor_reduce_scatter_list);
DTR_SITED(dtr_tensor_alltoall);
DTR_SITED(dtr_tensor_alltoallv);
DTR_SITED(dtr_tensor_alltoall_list);
DTR_SITED(dtr_tensor_send);
DTR_SITED(dtr_tensor_recv);
DTR_SITED(dtr_tensor_batch_p2p);
DTR_SITED(dtr_broadcast_coalesced);
DTR_SITED(dtr_sparse_allreduce);
#endif

#endif /* DTR_TENSOR_H */
