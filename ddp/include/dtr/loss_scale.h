/** @file
 * A loss scale that adapts itself, for gradients of 16 bits: small gradients vanish in f16, so the
 * loss is multiplied by a large factor before backward, and what a step reads is divided by it.
 * Where the factor is too large some average becomes infinite or NaN: then the step is left out on
 * all ranks, and the factor shrinks on all ranks. After many good steps it grows again.
 *
 * Per iteration: multiply the loss by dtr_loss_scale_value, run backward, and call
 * dtr_loss_scale_step in place of dtr_optim_step. With an optimizer of one's own:
 * dtr_loss_scale_unscale, the step where it said `finite`, dtr_loss_scale_update. */
#ifndef DTR_LOSS_SCALE_H
#define DTR_LOSS_SCALE_H

#include <dtr/optim.h>

DTR_BEGIN_DECLS

typedef struct dtr_loss_scale dtr_loss_scale;

/** Options of dtr_loss_scale_create; zero means the default. */
typedef struct dtr_loss_scale_options {
    size_t struct_size; /**< set by DTR_LOSS_SCALE_OPTIONS_INIT */
    double initial;     /**< 0: 65536 */
    double growth;      /**< factor, above 1; 0: 2 */
    double backoff;     /**< factor, below 1; 0: 0.5 */
    uint64_t interval;  /**< grow after so many good steps in a row; 0: 2000 */
    double least, most; /**< it stays between them; 0: 1 and 2^24 */
} dtr_loss_scale_options;
#ifdef __cplusplus
#define DTR_LOSS_SCALE_OPTIONS_INIT \
    { sizeof(dtr_loss_scale_options), 0, 0, 0, 0, 0, 0 }
#else
#define DTR_LOSS_SCALE_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_loss_scale_options) }
#endif

/** What of a loss scale changes: plain data for a checkpoint. */
typedef struct dtr_loss_scale_state {
    size_t struct_size; /**< set by DTR_LOSS_SCALE_STATE_INIT */
    double value;
    uint64_t good;    /**< good steps since it last changed */
    uint64_t skipped; /**< steps left out so far */
} dtr_loss_scale_state;
#ifdef __cplusplus
#define DTR_LOSS_SCALE_STATE_INIT \
    { sizeof(dtr_loss_scale_state), 0, 0, 0 }
#else
#define DTR_LOSS_SCALE_STATE_INIT \
    { .struct_size = sizeof(dtr_loss_scale_state) }
#endif

/** Make a loss scale for a module. `options` may be NULL. Destroy it before the module.
 *  @collective no, but all ranks must make it alike
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL, an option out of range), DTR_ERR_STATE (handle), DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_loss_scale_create(dtr_ddp *ddp, const dtr_loss_scale_options *options,
                                         dtr_loss_scale **scale);

/** What the next loss is to be multiplied by; 1 for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API double dtr_loss_scale_value(const dtr_loss_scale *scale);

DTR_BEGIN_SITED

/** dtr_optim_step with the averages divided by the scale, if they are finite on all ranks; then
 * dtr_loss_scale_update. Otherwise no parameter and no state of the optimizer changes on any rank,
 * and `*stepped` (may be NULL) becomes false. Gradients stay as they are, scaled: the division
 * takes place in the arithmetic of the step, so that nothing vanishes in 16 bits. The optimizer's
 * max_norm is that of the divided averages. After dtr_loss_scale_unscale the step takes what that
 * left.
 *  @collective all members, after a dtr_ddp_backward_end with sync
 *  @blocking until all have entered; then as dtr_optim_step
 *  @gpu host memory only
 *  @errors DTR_ERR_ARG (handle; an optimizer of another module), DTR_ERR_MISMATCH (agreed: the
 * ranks' scales differ), those of dtr_loss_scale_unscale but for f16, those of dtr_optim_step: the
 * scale has not changed then
 *  @since 0.1 */
DTR_API dtr_status dtr_loss_scale_step(dtr_loss_scale *scale, dtr_optim *optim, bool *stepped);

/** Find out whether all averages are finite on all ranks, and divide them by the scale if so:
 * dtr_ddp_full_grad, rows of dtr_ddp_sparse_grad, delayed gradients, and with a sharded optimizer
 * what dtr_zero_step will read, as dtr_ddp_clip_grad_norm does, which may follow. `*finite` is the
 * same on all ranks.
 *  @collective all members, after a dtr_ddp_backward_end with sync
 *  @blocking until all have entered
 *  @gpu as dtr_ddp_clip_grad_norm
 *  @errors DTR_ERR_ARG (handle, NULL), DTR_ERR_UNSUPPORTED (parameters of f16, whose averages would
 * vanish: dtr_loss_scale_step; step callbacks), DTR_ERR_STATE (no averages; a second time before
 * dtr_loss_scale_update), agreed: DTR_ERR_MISMATCH (the ranks' scales differ); those of the group
 * end the module
 *  @since 0.1 */
DTR_API dtr_status dtr_loss_scale_unscale(dtr_loss_scale *scale, bool *finite);

DTR_END_SITED

/** Adapt the scale to what dtr_loss_scale_unscale has found.
 *  @collective no, but all ranks must call it alike
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (handle), DTR_ERR_STATE (no dtr_loss_scale_unscale since the last one)
 *  @since 0.1 */
DTR_API dtr_status dtr_loss_scale_update(dtr_loss_scale *scale);

/** Write down what changes; only the leading struct_size bytes of `state` are written.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (handle, NULL, struct_size 0)  @since 0.1 */
DTR_API dtr_status dtr_loss_scale_get_state(const dtr_loss_scale *scale,
                                            dtr_loss_scale_state *state);

/** Go on where the loss scale that gave `state` stood.
 *  @collective no, but all ranks must set it alike
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (handle, NULL, struct_size too small, a value that is no positive number)
 *  @since 0.1 */
DTR_API dtr_status dtr_loss_scale_set_state(dtr_loss_scale *scale,
                                            const dtr_loss_scale_state *state);

/** Free a loss scale. NULL is DTR_OK.
 *  @collective no  @blocking no  @gpu no  @errors DTR_ERR_ARG (handle)  @since 0.1 */
DTR_API dtr_status dtr_loss_scale_destroy(dtr_loss_scale *scale);

DTR_END_DECLS

#if DTR_CALL_SITES == 1 /* what these start was called from the caller's file and line */
#define dtr_loss_scale_step(...) DTR_AT(dtr_loss_scale_step, __VA_ARGS__)
#define dtr_loss_scale_unscale(...) DTR_AT(dtr_loss_scale_unscale, __VA_ARGS__)
#elif DTR_CALL_SITES == 2
DTR_SITED(dtr_loss_scale_step);
DTR_SITED(dtr_loss_scale_unscale);
#endif

#endif /* DTR_LOSS_SCALE_H */
