/** @file
 * Sharded optimizer state (ZeRO stage 1): the state of an optimizer is as large as the model or
 * twice as large, and each rank keeps only its share of it.
 *
 * From dtr_zero_create on the module's buckets are reduce-scattered in place of being averaged
 * everywhere: after dtr_ddp_backward_end a rank has the averages of its own slice of every bucket,
 * the other gradients are unspecified. dtr_ddp_clip_grad_norm clips them by the norm of all.
 * dtr_zero_step then has a function update the parameters of these slices and gathers the results,
 * so that every rank has all new parameters. One step moves as many bytes as averaging does, and
 * the sums have the same bits.
 *
 * A rank's slice of a bucket of n bytes is 64 ceil(n / (64 size)) bytes. Its slices of one element
 * type, bucket after bucket, are its shard: dtr_zero_shard_count elements, the length of the
 * arrays of an optimizer. The bucket plan is the one found at create and stays as it is. */
#ifndef DTR_ZERO_H
#define DTR_ZERO_H

#include <dtr/ddp.h>

DTR_BEGIN_DECLS

/** Flags of dtr_zero_options. */
enum {
    DTR_ZERO_OVERLAP = 1 /**< dtr_zero_step returns while parameters are still being gathered; the
                            next forward pass waits for each with dtr_zero_wait */
};

/** Options of dtr_zero_create; zero means the default. */
typedef struct dtr_zero_options {
    size_t struct_size; /**< set by DTR_ZERO_OPTIONS_INIT */
    double timeout_s;   /**< of gathering a bucket's parameters; 0 or negative: the module's */
    uint32_t flags;     /**< DTR_ZERO_... */
} dtr_zero_options;
#ifdef __cplusplus
#define DTR_ZERO_OPTIONS_INIT \
    { sizeof(dtr_zero_options), 0, 0 }
#else
#define DTR_ZERO_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_zero_options) }
#endif

DTR_BEGIN_SITED

/** Shard the optimizer of a module, between iterations. `options` may be NULL. The bucket plan is
 * frozen: before the first iteration no rebuild follows. Takes scratch memory of one slice.
 *  @collective all members of the module's group
 *  @blocking until all have entered
 *  @gpu scratch memory and slices are on the parameters' device; the host waits for it
 *  @errors agreed: DTR_ERR_ARG (options), DTR_ERR_MISMATCH (options differ),
 * DTR_ERR_UNSUPPORTED (find_unused, DTR_DDP_PER_PARAM, a hook, step callbacks, a join; parameters
 * of several types in one bucket), DTR_ERR_STATE (sharded already), DTR_ERR_NOMEM there and
 * DTR_ERR_REMOTE elsewhere. Local: DTR_ERR_ARG (NULL), DTR_ERR_STATE (an iteration is open)
 *  @since 0.1 */
DTR_API dtr_status dtr_zero_create(dtr_ddp *ddp, const dtr_zero_options *options, dtr_zero **zero);

DTR_END_SITED

/** Update one slice: `param` and `grad` have the same count and the parameters' type, padding
 * between parameters is zero, and `first` is the slice's first element in the shard of that type,
 * where its optimizer state lies. Called on the thread that called dtr_zero_step. On a device both
 * are there, and what it queues goes to the stream of the newest dtr_ddp_backward_end. */
typedef dtr_status (*dtr_zero_update)(void *state, size_t first, dtr_buffer param, dtr_buffer grad);

DTR_BEGIN_SITED

/** Step: call `fn` once per bucket for this rank's slice, in bucket order, and give every rank all
 * new parameters. Bucket b travels while fn works on b + 1. The gradients are used up: their
 * contents are unspecified and they count as undefined.
 *  @collective all members, after a dtr_ddp_backward_end with sync
 *  @blocking until the parameters are here; with DTR_ZERO_OVERLAP until fn has succeeded
 *              everywhere; not until a device has done it
 *  @gpu queued behind the stream of the newest dtr_ddp_backward_end, where fn queues its work too
 * and the parameters arrive
 *  @errors agreed: the status of fn, naming the rank, and no parameter has changed anywhere
 * (what fn did to its own state has happened). Local: DTR_ERR_ARG, DTR_ERR_STATE (no averages to
 * step with: before dtr_ddp_backward_end, a second time, after an iteration without sync, or the
 * module is gone). Those of the group end the module
 *  @since 0.1 */
DTR_API dtr_status dtr_zero_step(dtr_zero *zero, dtr_zero_update fn, void *state);

DTR_END_SITED

/** With DTR_ZERO_OVERLAP: wait until parameter i (SIZE_MAX: every one) has its new value, before
 * its layer's forward pass. Returns at once when it has. Every parameter must have been waited for
 * before the backward pass begins.
 *  @collective no; any thread
 *  @blocking until the bucket of parameter i is here
 *  @gpu the stream of the newest dtr_ddp_backward_end waits for it, not the host
 *  @errors DTR_ERR_ARG (handle, index), DTR_ERR_STATE (the module is gone); those of the group,
 * which end the module
 *  @since 0.1 */
DTR_API dtr_status dtr_zero_wait(dtr_zero *zero, size_t i);

/** Elements of this rank's shard of parameters of one type, padding included; 0 where there are
 * none.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API size_t dtr_zero_shard_count(const dtr_zero *zero, dtr_dtype dtype);

/** A named array that has one element for each element of this rank's shard of one type: the
 * optimizer's state. Its size is fixed: what more there is to say of states is a call of its own.
 */
typedef struct dtr_zero_state {
    const char *name;      /**< unique, without '/' */
    dtr_dtype param_dtype; /**< whose shard */
    dtr_buffer data;       /**< dtr_zero_shard_count(zero, param_dtype) elements of any type */
} dtr_zero_state;

DTR_BEGIN_SITED

/** Write a checkpoint: `path` is its index, in JSON, and beside it every rank writes one
 * safetensors file with its slices of the parameters and of the states, all at once. A checkpoint
 * of the same name is replaced: until the new index is there the old one stays whole, and its files
 * are removed afterwards. `step` is kept for the reader. Parameters that are frozen or in no bucket
 * are not written.
 *  @collective all members, between iterations, with the same path, step and states; one file
 * system
 *  @blocking until all files are on disk
 *  @gpu parameters through host memory, behind the stream of the newest dtr_ddp_backward_end;
 * states in host memory
 *  @errors agreed: DTR_ERR_ARG, DTR_ERR_SHAPE, DTR_ERR_DTYPE (a state), DTR_ERR_MISMATCH
 * (arguments differ), DTR_ERR_IO (naming rank and file; nothing new is left behind unless a rank
 * was lost), DTR_ERR_NOMEM there and DTR_ERR_REMOTE elsewhere, DTR_ERR_UNSUPPORTED (built without
 * jansson). Local: DTR_ERR_STATE
 *  @since 0.1 */
DTR_API dtr_status dtr_zero_save(dtr_zero *zero, const char *path, const dtr_zero_state *states,
                                 size_t n, uint64_t step);

/** Read a checkpoint of any number of ranks into the parameters of all ranks and the states of
 * this one; gradients count as undefined afterwards. On failure nothing has changed. States of the
 * checkpoint that are not asked for are left out. `step` may be NULL.
 *  @collective all members, between iterations; every rank reads
 *  @blocking until the parameters are here
 *  @gpu parameters through host memory, behind the stream of the newest dtr_ddp_backward_end;
 * states in host memory
 *  @errors agreed: as dtr_zero_save; DTR_ERR_IO (naming a file that is missing, cut or
 * damaged), DTR_ERR_MISMATCH (a file of another checkpoint; a parameter or state of another type or
 * shape, or not there)
 *  @since 0.1 */
DTR_API dtr_status dtr_zero_load(dtr_zero *zero, const char *path, const dtr_zero_state *states,
                                 size_t n, uint64_t *step);

/** Make a sharded state whole: full[i] gets the state of parameter i on every rank. Entries that
 * are NULL, and parameters of other types than state->param_dtype, are left alone. A portable form
 * for files of one's own.
 *  @collective all members, between iterations
 *  @blocking until gathered
 *  @gpu state and tensors on the parameters' device, behind the stream of the newest
 * dtr_ddp_backward_end; tensors lie as the parameters do. The host waits for it
 *  @errors agreed: DTR_ERR_ARG (NULL, n is not the number of parameters), DTR_ERR_SHAPE,
 * DTR_ERR_DTYPE, DTR_ERR_DEVICE, DTR_ERR_UNSUPPORTED (other strides on a device), DTR_ERR_NOMEM
 * there and DTR_ERR_REMOTE elsewhere. Local: DTR_ERR_STATE
 *  @since 0.1 */
DTR_API dtr_status dtr_zero_gather(dtr_zero *zero, const dtr_zero_state *state,
                                   dtr_tensor *const *full, size_t n);

DTR_END_SITED

/** The reverse of dtr_zero_gather: take this rank's elements out of whole tensors.
 *  @collective no  @blocking on a device until taken  @gpu as dtr_zero_gather
 *  @errors as dtr_zero_gather, local  @since 0.1 */
DTR_API dtr_status dtr_zero_slice(dtr_zero *zero, dtr_tensor *const *full, size_t n,
                                  const dtr_zero_state *state);

/** Give the module back to plain averaging. Parameters on their way are waited for. Also legal
 * after the module or the world has gone. NULL is DTR_OK.
 *  @collective all members, between iterations
 *  @blocking until its operations have finished
 *  @gpu no
 *  @errors DTR_ERR_ARG (handle), DTR_ERR_STATE (an iteration is open; nothing has happened),
 * those of operations in flight (the handle is gone all the same)
 *  @since 0.1 */
DTR_API dtr_status dtr_zero_destroy(dtr_zero *zero);

DTR_END_DECLS

#if DTR_CALL_SITES == 1 /* what these start was called from the caller's file and line */
#define dtr_zero_create(...) DTR_AT(dtr_zero_create, __VA_ARGS__)
#define dtr_zero_step(...) DTR_AT(dtr_zero_step, __VA_ARGS__)
#define dtr_zero_save(...) DTR_AT(dtr_zero_save, __VA_ARGS__)
#define dtr_zero_load(...) DTR_AT(dtr_zero_load, __VA_ARGS__)
#define dtr_zero_gather(...) DTR_AT(dtr_zero_gather, __VA_ARGS__)
#elif DTR_CALL_SITES == 2
DTR_SITED(dtr_zero_create);
DTR_SITED(dtr_zero_step);
DTR_SITED(dtr_zero_save);
DTR_SITED(dtr_zero_load);
DTR_SITED(dtr_zero_gather);
#endif

#endif /* DTR_ZERO_H */
