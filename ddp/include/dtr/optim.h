/* Optimizers for the parameters of a module: SGD, Adam and AdamW, with their state on every rank or
 * sharded.
 *
 * Arithmetic is float32 for parameters of up to 32 bits and double for f64, element by element in a
 * fixed order, so the sharded and the whole form give the same bits for the same gradients.
 * Parameters of 16 bits have a float32 master copy in the state; where a parameter was changed by
 * somebody else the copy follows it. */
#ifndef DTR_OPTIM_H
#define DTR_OPTIM_H

#include <dtr/zero.h>

DTR_BEGIN_DECLS

typedef struct dtr_optim dtr_optim;

typedef enum dtr_optim_rule {
    DTR_OPTIM_SGD,  /* g += decay p; m = momentum m + g; p -= rate m (nesterov: g + momentum m) */
    DTR_OPTIM_ADAM, /* g += decay p, then Adam with bias correction */
    DTR_OPTIM_ADAMW /* p -= rate decay p, then the same */
} dtr_optim_rule;

typedef struct dtr_optim_options {
    size_t struct_size; /* set by DTR_OPTIM_OPTIONS_INIT */
    dtr_optim_rule rule;
    double rate;         /* 0: 0.001 */
    double momentum;     /* SGD; 0: none, and no state */
    double beta1, beta2; /* Adam; 0: 0.9, 0.999 */
    double epsilon;      /* Adam; 0: 1e-8 */
    double weight_decay;
    int decay_min_ndim; /* parameters of fewer dimensions do not decay; 2: matrices only */
    bool nesterov;
} dtr_optim_options;
#ifdef __cplusplus
#define DTR_OPTIM_OPTIONS_INIT \
    { sizeof(dtr_optim_options), DTR_OPTIM_SGD, 0, 0, 0, 0, 0, 0, 0, false }
#else
#define DTR_OPTIM_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_optim_options) }
#endif

/** Make an optimizer for the trainable parameters of a module. With `zero` its state is this rank's
 * shard, without (NULL) it is whole. `options` may be NULL. Destroy it before `zero` and `ddp`.
 *  @collective no, but all ranks must make it alike
 *  @blocking   no
 *  @gpu        parameters in host memory only
 *  @errors     DTR_ERR_ARG (NULL, an option out of range, `zero` of another module),
 * DTR_ERR_UNSUPPORTED (parameters other than f16, bf16, f32 and f64), DTR_ERR_STATE (handle),
 * DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_create(dtr_ddp *ddp, dtr_zero *zero, const dtr_optim_options *options,
                                    dtr_optim **optim);

/** Step every parameter with its average, after dtr_ddp_backward_end. The whole form leaves
 * parameters without a defined gradient alone; the sharded form is dtr_zero_step.
 *  @collective sharded: all members; whole: no
 *  @blocking   as dtr_zero_step; whole: no
 *  @gpu        host memory only
 *  @errors     DTR_ERR_ARG, DTR_ERR_STATE (an iteration is open); those of dtr_zero_step. After an
 * error the step is not counted
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_step(dtr_optim *optim);

/** Set the learning rate for the steps to come.
 *  @collective no, but all ranks must set it alike
 *  @blocking   no
 *  @gpu        no
 *  @errors     DTR_ERR_ARG (not finite, negative)
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_set_rate(dtr_optim *optim, double rate);

/** Steps so far; 0 for NULL.
 *  @collective no
 *  @blocking   no
 *  @gpu        no
 *  @errors     none
 *  @since 0.1 */
DTR_API uint64_t dtr_optim_steps(const dtr_optim *optim);

/** Bytes of state on this rank; 0 for NULL.
 *  @collective no
 *  @blocking   no
 *  @gpu        no
 *  @errors     none
 *  @since 0.1 */
DTR_API size_t dtr_optim_state_nbytes(const dtr_optim *optim);

/** The k-th array of the state, "m.f32" for instance, in the optimizer's own memory: with `zero`
 * one element per element of the shard of param_dtype, else the parameters of that type one behind
 * the other. The name belongs to the optimizer. Changing the contents changes the optimizer.
 *  @collective no
 *  @blocking   no
 *  @gpu        no
 *  @errors     DTR_ERR_ARG (NULL; k is not below their number)
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_state(const dtr_optim *optim, size_t k, dtr_zero_state *state);

/** Number of arrays of the state; 0 for NULL.
 *  @collective no
 *  @blocking   no
 *  @gpu        no
 *  @errors     none
 *  @since 0.1 */
DTR_API size_t dtr_optim_n_states(const dtr_optim *optim);

/** Set the number of steps, on which the bias correction of Adam depends, for one who restores the
 * arrays himself.
 *  @collective no, but all ranks must set it alike
 *  @blocking   no
 *  @gpu        no
 *  @errors     DTR_ERR_ARG (NULL)
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_set_steps(dtr_optim *optim, uint64_t steps);

/** Write parameters, state and number of steps of a sharded optimizer: dtr_zero_save.
 *  @collective all members, between iterations, with the same path
 *  @blocking   until all files are on disk
 *  @gpu        no
 *  @errors     DTR_ERR_UNSUPPORTED (the state is not sharded: dtr_safetensors_save writes its
 * arrays); those of dtr_zero_save
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_save(dtr_optim *optim, const char *path);

/** Read what dtr_optim_save wrote, at any number of ranks: dtr_zero_load.
 *  @collective all members, between iterations, with the same path
 *  @blocking   until the parameters are here
 *  @gpu        no
 *  @errors     DTR_ERR_UNSUPPORTED (the state is not sharded); those of dtr_zero_load
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_load(dtr_optim *optim, const char *path);

/** Free an optimizer. NULL is DTR_OK.
 *  @collective no
 *  @blocking   no
 *  @gpu        no
 *  @errors     DTR_ERR_ARG (handle)
 *  @since 0.1 */
DTR_API dtr_status dtr_optim_destroy(dtr_optim *optim);

#ifndef DTR_NO_CALL_SITE /* what these start was called from the caller's file and line */
#define dtr_optim_step(...) (dtr_call_site(__FILE__, __LINE__), dtr_optim_step(__VA_ARGS__))
#define dtr_optim_save(...) (dtr_call_site(__FILE__, __LINE__), dtr_optim_save(__VA_ARGS__))
#define dtr_optim_load(...) (dtr_call_site(__FILE__, __LINE__), dtr_optim_load(__VA_ARGS__))
#endif

DTR_END_DECLS

#endif /* DTR_OPTIM_H */
