/** @file
 * Communication hooks of a module: what is done with a bucket in place of averaging it. Included by
 * dtr/ddp.h. */
#ifndef DTR_HOOKS_H
#define DTR_HOOKS_H

#include <dtr/ddp.h>

DTR_BEGIN_DECLS

/** A hook takes the place of the averaging: it is called once per bucket and synchronised
 * iteration, in index order, with this rank's gradients, and nothing is divided after it. It either
 * starts an operation on the bucket and leaves the handle in `*work` (the bucket's buffer is the
 * result when it completes), or gives a result at once with dtr_ddp_bucket_set_result. It may add a
 * step to run after the work with dtr_ddp_bucket_then; such a step may start one more work and add
 * one more step. Collectives go on dtr_ddp_bucket_group, so that all ranks start them in one order.
 * Steps run on a thread of the library or inside one of its calls and must not block.
 *
 * A hook that fails on one rank ends the iteration with the same error on all. */
typedef dtr_status (*dtr_ddp_hook)(void *state, dtr_ddp_bucket *bucket, dtr_work **work);

/** Give the module a communication hook; `name` (NULL: "user") shows in statistics and errors and
 * must be the same on all ranks, which is checked in the first synchronised iteration: that one
 * starts its buckets in dtr_ddp_backward_end.
 *  @collective all members must register the same hook, no communication here
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_STATE (there is one already, which stays; an iteration
 * is open; DTR_DDP_PER_PARAM; param_dtype)
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_register_hook(dtr_ddp *ddp, dtr_ddp_hook fn, void *state,
                                         const char *name);

/** The hooks that the library has. */
typedef enum dtr_ddp_builtin {
    DTR_HOOK_ALLREDUCE,     /**< the average, as without a hook */
    DTR_HOOK_FP16,          /**< cast to f16, averaged with float32 accumulation, cast back */
    DTR_HOOK_BF16,          /**< the same with bf16 */
    DTR_HOOK_Q8,            /**< 8-bit codes, one scale per rank and bucket */
    DTR_HOOK_POWERSGD,      /**< low-rank factors with error feedback */
    DTR_HOOK_NOOP,          /**< nothing: gradients stay local and undivided */
    DTR_HOOK_POST_LOCAL_SGD /**< average over all until an iteration, then over a subgroup */
} dtr_ddp_builtin;

/** Options of the built-in hooks; zero means the default. */
typedef struct dtr_hook_options {
    size_t struct_size;       /**< set by DTR_HOOK_OPTIONS_INIT */
    dtr_group *subgroup;      /**< POST_LOCAL_SGD; NULL: no communication after the start */
    uint64_t start_iteration; /**< POWERSGD, 0: 1000; POST_LOCAL_SGD */
    uint64_t generator_start; /**< POWERSGD: of the first factors, equal on all ranks */
    int rank;                 /**< POWERSGD, 0: 1 */
    double min_rate;          /**< POWERSGD: compress matrices that shrink by more; 0: 2 */
    double epsilon;           /**< POWERSGD: added to norms */
    bool no_error_feedback, no_warm_start; /**< POWERSGD */
} dtr_hook_options;
#ifdef __cplusplus
#define DTR_HOOK_OPTIONS_INIT \
    { sizeof(dtr_hook_options), 0, 0, 0, 0, 0, 0, false, false }
#else
#define DTR_HOOK_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_hook_options) }
#endif

/** Give the module one of the library's hooks. `options` may be NULL.
 *  @collective as dtr_ddp_register_hook
 *  @blocking no  @gpu no
 *  @errors as dtr_ddp_register_hook; DTR_ERR_ARG (unknown hook, options), DTR_ERR_UNSUPPORTED
 * (gradients of a type it does not serve), DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_register_builtin_hook(dtr_ddp *ddp, dtr_ddp_builtin which,
                                                 const dtr_hook_options *options);

/** Make a hook that shows another one the bucket cast to f16 or bf16 and casts its result back. The
 * state belongs to the module it is registered with.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL, another dtype), DTR_ERR_NOMEM  @since 0.1 */
DTR_API dtr_status dtr_ddp_wrap_hook(dtr_dtype dtype, dtr_ddp_hook inner, void *inner_state,
                                     dtr_ddp_hook *hook, void **state);

/** What a built-in hook remembers, as bytes of this rank; freed with dtr_bytes_free. Empty for
 * hooks without memory.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_STATE (no hook, an iteration is open), DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_hook_state(dtr_ddp *ddp, dtr_bytes *out);

/** Put back what dtr_ddp_hook_state gave, into a module with the same hook and bucket plan.
 *  @collective all members must do it alike, no communication
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (no such state), DTR_ERR_MISMATCH (another plan), DTR_ERR_STATE,
 * DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_set_hook_state(dtr_ddp *ddp, dtr_bytes in);

/** Index of a bucket in the plan; SIZE_MAX for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API size_t dtr_ddp_bucket_index(const dtr_ddp_bucket *bucket);

/** Number of parameters in a bucket.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.2 */
DTR_API size_t dtr_ddp_bucket_param_count(const dtr_ddp_bucket *bucket);

/** Whether no bucket follows.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API bool dtr_ddp_bucket_is_last(const dtr_ddp_bucket *bucket);

/** Number of backward passes before this one, with and without sync.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API uint64_t dtr_ddp_bucket_iteration(const dtr_ddp_bucket *bucket);

/** The gradients of the bucket as one buffer, padding between them zero.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_buffer dtr_ddp_bucket_buffer(const dtr_ddp_bucket *bucket);

/** The stream to work on; NULL on the CPU.
 *  @collective no  @blocking no
 *  @gpu the communication stream
 *  @errors none  @since 0.1 */
DTR_API void *dtr_ddp_bucket_stream(const dtr_ddp_bucket *bucket);

/** Index of the k-th parameter of a bucket, and where its elements lie in the bucket's buffer, in
 * elements; either output may be NULL. SIZE_MAX when out of range.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API size_t dtr_ddp_bucket_param(const dtr_ddp_bucket *bucket, size_t k, size_t *offset,
                                    size_t *count);

/** The k-th gradient of a bucket as a tensor with the parameter's shape; the module's. NULL when
 * out of range.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_tensor *dtr_ddp_bucket_grad(const dtr_ddp_bucket *bucket, size_t k);

/** The group for collectives of the running step: one per step depth, steps run in bucket order.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API dtr_group *dtr_ddp_bucket_group(const dtr_ddp_bucket *bucket);

/** Give the bucket's result, in any memory that stays until dtr_ddp_backward_end returns; same
 * count and dtype as the bucket's buffer.
 *  @collective no; inside the hook or one of its steps
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG, DTR_ERR_STATE (outside); a wrong count or dtype fails the iteration
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_bucket_set_result(dtr_ddp_bucket *bucket, dtr_buffer result);

/** What this rank contributes to the bucket of a sparse parameter: row numbers and rows, none where
 * it did not use the parameter. The module's.
 *  @collective no  @blocking no
 *  @gpu on the module's device, final on the bucket's stream
 *  @errors DTR_ERR_ARG (NULL, a dense bucket)  @since 0.1 */
DTR_API dtr_status dtr_ddp_bucket_sparse(const dtr_ddp_bucket *bucket, dtr_tensor **indices,
                                         dtr_tensor **values);

/** Give the result of a sparse parameter's bucket, which every hook must do for it, at the latest
 * in its last step. The module keeps references.
 *  @collective no; inside the hook or one of its steps
 *  @blocking no
 *  @gpu on the module's device, final on the bucket's stream; row numbers are not looked at
 *  @errors as dtr_ddp_set_sparse_grad; DTR_ERR_STATE (outside, or a dense bucket)  @since 0.1 */
DTR_API dtr_status dtr_ddp_bucket_set_sparse_result(dtr_ddp_bucket *bucket, dtr_tensor *indices,
                                                    dtr_tensor *values);

/** Run another step after the running one and its work.
 *  @collective no; inside the hook or one of its steps
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL), DTR_ERR_STATE (outside, or a second one), DTR_ERR_UNSUPPORTED
 * (more than 7 steps)
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_bucket_then(dtr_ddp_bucket *bucket, dtr_ddp_hook fn, void *state);

DTR_END_DECLS

#endif /* DTR_HOOKS_H */
