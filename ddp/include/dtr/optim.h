/** @file
 * Optimizers for the parameters of a module: SGD, Adam and AdamW, with their state on every rank or
 * sharded; and clipping, for these and for optimizers of one's own.
 *
 * Arithmetic is float32 for parameters of up to 32 bits and double for f64, element by element in a
 * fixed order, so the sharded and the whole form give the same bits for the same gradients.
 * Parameters of 16 bits have a float32 master copy in the state; where a parameter was changed by
 * somebody else the copy follows it. */
#ifndef DTR_OPTIM_H
#define DTR_OPTIM_H

#include <dtr/safetensors.h>
#include <dtr/zero.h>

DTR_BEGIN_DECLS

DTR_BEGIN_SITED

/** Scale all averages by max_norm / norm where their norm is larger than max_norm, in place and
 * before the optimizer's step: dtr_ddp_full_grad, rows of dtr_ddp_sparse_grad, delayed gradients
 * and, with a sharded optimizer, which is given as `zero` (else NULL), what dtr_zero_step will
 * read. The norm is the root of the sum of squares of every defined gradient, summed without
 * rounding: the same bits on all ranks, sharded or not. `*norm` (may be NULL) is the one before
 * scaling. max_norm 0 only measures. With param_dtype dtr_ddp_grad, another tensor, stays as it
 * was. Where a hook leaves ranks with different gradients each rank has its own norm.
 *  @collective with `zero`: all members; else no
 *  @blocking with `zero`: until all have entered; else no
 *  @gpu queued on the stream of the newest dtr_ddp_backward_end; the host waits there for the sum
 * of squares, about a kilobyte, and not for the scaling
 *  @errors DTR_ERR_NAN (an element is NaN or infinite; names the first parameter; with `zero`
 * on all ranks): nothing was scaled, leave the step out. DTR_ERR_ARG (max_norm, `zero` is not the
 * module's), DTR_ERR_STATE (no dtr_ddp_backward_end with sync before it, or the step has been
 * made), DTR_ERR_UNSUPPORTED (step callbacks), agreed: DTR_ERR_MISMATCH (another max_norm); those
 * of the group end the module
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_clip_grad_norm(dtr_ddp *ddp, dtr_zero *zero, double max_norm,
                                          double *norm);

DTR_END_SITED

typedef struct dtr_optim dtr_optim;

/** How a step changes a parameter p with average g. */
typedef enum dtr_optim_rule {
    DTR_OPTIM_SGD,  /**< g += decay p; m = momentum m + g; p -= rate m (nesterov: g + momentum m) */
    DTR_OPTIM_ADAM, /**< g += decay p, then Adam with bias correction */
    DTR_OPTIM_ADAMW /**< p -= rate decay p, then the same */
} dtr_optim_rule;

/** Options of dtr_optim_create; zero means the default. */
typedef struct dtr_optim_options {
    size_t struct_size;  /**< set by DTR_OPTIM_OPTIONS_INIT */
    dtr_optim_rule rule; /**< SGD where not given */
    double rate;         /**< 0: 0.001 */
    double momentum;     /**< SGD; 0: none, and no state */
    double beta1, beta2; /**< Adam; 0: 0.9, 0.999 */
    double epsilon;      /**< Adam; 0: 1e-8 */
    double weight_decay; /**< 0: none */
    int decay_min_ndim;  /**< parameters of fewer dimensions do not decay; 2: matrices only */
    bool nesterov;       /**< SGD with momentum */
    double max_norm;     /**< clip to this norm first (dtr_ddp_clip_grad_norm); 0: never */
} dtr_optim_options;
#ifdef __cplusplus
#define DTR_OPTIM_OPTIONS_INIT \
    { sizeof(dtr_optim_options), DTR_OPTIM_SGD, 0, 0, 0, 0, 0, 0, 0, false, 0 }
#else
#define DTR_OPTIM_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_optim_options) }
#endif

/** Make an optimizer for the trainable parameters of a module. With `zero` its state is this rank's
 * shard, without (NULL) it is whole. `options` may be NULL. Destroy it before `zero` and `ddp`.
 *  @collective no, but all ranks must make it alike
 *  @blocking no
 *  @gpu the state is in the memory of the parameters' device; those of a whole optimizer are
 * contiguous there
 *  @errors DTR_ERR_ARG (NULL, an option out of range, `zero` of another module),
 * DTR_ERR_UNSUPPORTED (parameters other than f16, bf16, f32 and f64; layout on a device),
 * DTR_ERR_STATE (handle), DTR_ERR_NOMEM, DTR_ERR_CUDA
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_create(dtr_ddp *ddp, dtr_zero *zero, const dtr_optim_options *options,
                                    dtr_optim **optim);

DTR_BEGIN_SITED

/** Step every parameter with its average, delayed ones too, after dtr_ddp_backward_end. The whole
 * form leaves alone parameters without a defined gradient and sparse ones, whose rows are the
 * caller's to step; the sharded form is dtr_zero_step.
 *  @collective sharded: all members; whole: no
 *  @blocking as dtr_zero_step; whole: no
 *  @gpu one kernel for each type (768 parameters at a time) on the stream of the newest
 * dtr_ddp_backward_end, with the host's arithmetic and its bits; the host waits only where it clips
 *  @errors DTR_ERR_ARG, DTR_ERR_STATE (an iteration is open); those of dtr_zero_step and, with
 * max_norm, of dtr_ddp_clip_grad_norm: DTR_ERR_NAN is a step to leave out. After an error the step
 * is not counted and no parameter has changed, unless the device has failed (DTR_ERR_CUDA)
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_step(dtr_optim *optim);

DTR_END_SITED

/** Set the learning rate for the steps to come.
 *  @collective no, but all ranks must set it alike
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (not finite, negative)  @since 0.1 */
DTR_API dtr_status dtr_optim_set_rate(dtr_optim *optim, double rate);

/** Steps so far; 0 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API uint64_t dtr_optim_steps(const dtr_optim *optim);

/** Bytes of state on this rank; 0 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API size_t dtr_optim_state_nbytes(const dtr_optim *optim);

/** The k-th array of the state, "m.f32" for instance, in the optimizer's own memory: with `zero`
 * one element per element of the shard of param_dtype, else the parameters of that type one behind
 * the other; on the parameters' device. The name belongs to the optimizer. Changing the contents
 * changes the optimizer.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL; k is not below their number)  @since 0.1 */
DTR_API dtr_status dtr_optim_state(const dtr_optim *optim, size_t k, dtr_zero_state *state);

/** Number of arrays of the state; 0 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.2 */
DTR_API size_t dtr_optim_state_count(const dtr_optim *optim);

/** Set the number of steps, on which the bias correction of Adam depends, for one who restores the
 * arrays himself.
 *  @collective no, but all ranks must set it alike
 *  @blocking no  @gpu no  @errors DTR_ERR_ARG (NULL)  @since 0.1 */
DTR_API dtr_status dtr_optim_set_steps(dtr_optim *optim, uint64_t steps);

DTR_BEGIN_SITED

/** Write a checkpoint of parameters, state and number of steps: `path` is its index, in JSON, and
 * the rest is in safetensors files beside it, of every rank its shard at the same time, or of a
 * whole optimizer all from rank 0. A checkpoint of the same name is replaced: until the new index
 * is there the old one stays whole. Frozen parameters are not written.
 *  @collective all members, between iterations, with the same path; one file system
 *  @blocking until all files are on disk
 *  @gpu through copies in host memory, behind the stream of the newest dtr_ddp_backward_end
 *  @errors those of dtr_zero_save; DTR_ERR_STATE (whole, of a module that is sharded by now)
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_save(dtr_optim *optim, const char *path);

/** Read what dtr_optim_save wrote, at any number of ranks; a whole optimizer reads what a sharded
 * one wrote, and the reverse. On failure nothing has changed; gradients count as undefined
 * afterwards.
 *  @collective all members, between iterations, with the same path; every rank reads
 *  @blocking until the parameters are here
 *  @gpu through copies in host memory, behind the stream of the newest dtr_ddp_backward_end
 *  @errors those of dtr_zero_load; DTR_ERR_STATE (whole, of a module that is sharded by now)
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_load(dtr_optim *optim, const char *path);

/** dtr_optim_save with bytes of the program, in the same atomic step: random generators, the place
 * in the data (dtr_sampler_get_state), settings. Every rank gives its own, of any length, or none.
 *  @collective as dtr_optim_save
 *  @blocking as dtr_optim_save  @gpu no
 *  @errors as dtr_optim_save; DTR_ERR_ARG (NULL with a length)  @since 0.1 */
DTR_API dtr_status dtr_optim_save_with(dtr_optim *optim, const char *path, dtr_bytes own);

/** dtr_optim_load, and the bytes that the rank of this number gave; where fewer ranks have written
 * files, those of this number modulo theirs. A whole optimizer's checkpoint has a file of each rank
 * up to the last that gave any: where only rank 0 did, all ranks get its bytes. `*own` is allocated
 * by the library (dtr_bytes_free), and empty where there are none.
 *  @collective as dtr_optim_load
 *  @blocking as dtr_optim_load  @gpu no
 *  @errors as dtr_optim_load; DTR_ERR_ARG (NULL)  @since 0.1 */
DTR_API dtr_status dtr_optim_load_with(dtr_optim *optim, const char *path, dtr_bytes *own);

DTR_END_SITED

/** What a program keeps in its checkpoints beside parameters and optimizer; zero means none. */
typedef struct dtr_optim_extra {
    size_t struct_size; /**< set by DTR_OPTIM_EXTRA_INIT */
    dtr_bytes *own;     /**< this rank's, as in dtr_optim_save_with and dtr_optim_load_with */
    const dtr_named_tensor *tensors; /**< the same on all ranks: names, types, shapes, contents */
    size_t n_tensors;
    const dtr_text_pair *metadata; /**< the same on all ranks; loading does not look at it */
    size_t n_metadata;
} dtr_optim_extra;
#ifdef __cplusplus
#define DTR_OPTIM_EXTRA_INIT \
    { sizeof(dtr_optim_extra), NULL, NULL, 0, NULL, 0 }
#else
#define DTR_OPTIM_EXTRA_INIT \
    { .struct_size = sizeof(dtr_optim_extra) }
#endif

DTR_BEGIN_SITED

/** dtr_optim_save with what `extra` names (may be NULL), in the same atomic step. Tensors are in
 * rank 0's file as "program/NAME", in row-major order, text is in the index. Names have 1 to 399
 * bytes.
 *  @collective as dtr_optim_save
 *  @blocking as dtr_optim_save
 *  @gpu DTR_ERR_UNSUPPORTED for tensors on a device
 *  @errors as dtr_optim_save, agreed: DTR_ERR_ARG (extra: NULL with a number; a name, key or value
 * that is NULL, empty, twice or no UTF-8), DTR_ERR_DTYPE (c128, which files have not),
 * DTR_ERR_MISMATCH (naming the tensor whose contents differ between ranks)
 *  @since 0.2 */
DTR_API dtr_status dtr_optim_save_extra(dtr_optim *optim, const char *path,
                                        const dtr_optim_extra *extra);

/** dtr_optim_load, and into the tensors of `extra` (may be NULL) those of the same names, at any
 * number of ranks; tensors of the checkpoint that are not asked for are left out.
 *  @collective as dtr_optim_load; each rank may ask for other tensors
 *  @blocking as dtr_optim_load
 *  @gpu DTR_ERR_UNSUPPORTED for tensors on a device
 *  @errors as dtr_optim_load, agreed: DTR_ERR_ARG (as dtr_optim_save_extra), DTR_ERR_LAYOUT
 * (elements of a tensor share memory), DTR_ERR_MISMATCH (naming a tensor that is not there, or of
 * another type or shape): nothing has changed
 *  @since 0.2 */
DTR_API dtr_status dtr_optim_load_extra(dtr_optim *optim, const char *path,
                                        const dtr_optim_extra *extra);

DTR_END_SITED

/** Value of a key in the metadata of the checkpoint that `optim` has loaded last; NULL where there
 * is none. Valid until the next load, and until `optim` is destroyed.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.2 */
DTR_API const char *dtr_optim_metadata(const dtr_optim *optim, const char *key);

/** Key i of this metadata, in the order they were given; NULL outside.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.2 */
DTR_API const char *dtr_optim_metadata_key(const dtr_optim *optim, size_t i);

/** Free an optimizer. NULL is DTR_OK.
 *  @collective no  @blocking no  @gpu no  @errors DTR_ERR_ARG (handle)  @since 0.1 */
DTR_API dtr_status dtr_optim_destroy(dtr_optim *optim);

DTR_END_DECLS

#if DTR_CALL_SITES == 1 /* what these start was called from the caller's file and line */
#define dtr_ddp_clip_grad_norm(...) DTR_AT(dtr_ddp_clip_grad_norm, __VA_ARGS__)
#define dtr_optim_step(...) DTR_AT(dtr_optim_step, __VA_ARGS__)
#define dtr_optim_save(...) DTR_AT(dtr_optim_save, __VA_ARGS__)
#define dtr_optim_load(...) DTR_AT(dtr_optim_load, __VA_ARGS__)
#define dtr_optim_save_with(...) DTR_AT(dtr_optim_save_with, __VA_ARGS__)
#define dtr_optim_load_with(...) DTR_AT(dtr_optim_load_with, __VA_ARGS__)
#define dtr_optim_save_extra(...) DTR_AT(dtr_optim_save_extra, __VA_ARGS__)
#define dtr_optim_load_extra(...) DTR_AT(dtr_optim_load_extra, __VA_ARGS__)
#elif DTR_CALL_SITES == 2
DTR_SITED(dtr_ddp_clip_grad_norm);
DTR_SITED(dtr_optim_step);
DTR_SITED(dtr_optim_save);
DTR_SITED(dtr_optim_load);
DTR_SITED(dtr_optim_save_with);
DTR_SITED(dtr_optim_load_with);
DTR_SITED(dtr_optim_save_extra);
DTR_SITED(dtr_optim_load_extra);
#endif

#endif /* DTR_OPTIM_H */
