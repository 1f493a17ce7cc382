/* What the files of the reducer share among themselves. */
#ifndef DTR_DDP_REDUCER_INTERNAL_H
#define DTR_DDP_REDUCER_INTERNAL_H

#include "reducer.h"

/* ---- bucket.c ---- */
/* A gradient's values to other memory; on a device both of one layout, and done once the module's
 * stream has been waited for. */
void dtr__ddp_copy_whole(dtr_ddp *ddp, const dtr_tensor *to, const dtr_tensor *from);

/* ---- move.c ---- */
/* Averages of parameters this rank used go back at once, the others wait for the map. */
void dtr__ddp_bucket_out(dtr_ddp *ddp, dtr_ddp_bucket *b);
/* Copy a slot to memory of its size, or back. */
void dtr__ddp_slot_keep(dtr_ddp *ddp, const dtr__ddp_param *p, void *kept, bool back);
/* Of a gradient's memory; 0 where it has gaps. */
uint64_t dtr__ddp_grad_hash(const dtr_ddp *ddp, const dtr__ddp_param *p);
/* Where DTR_DDP_CHECK_NAN asks for it, note a NaN in parameter i's slot; on a device it is looked
 * for with the bucket. */
void dtr__ddp_check_nan(dtr_ddp *ddp, size_t i);

/* ---- invariant.c ---- */
/* A bucket is launched: in index order, once, with the divisor of the others. */
void dtr__ddp_check_launch(dtr_ddp *ddp, dtr_ddp_bucket *b);
/* A slot is about to be written: its bucket is not under way. */
void dtr__ddp_check_unsent(dtr_ddp *ddp, size_t bucket);
/* A bucket has one parameter less to wait for than before. */
void dtr__ddp_check_pending(dtr_ddp *ddp, size_t before);
/* A good iteration is about to end; `mapped`: a used map belongs to it. */
void dtr__ddp_check_end(dtr_ddp *ddp, bool mapped);
/* Counts are as new, buckets as the plan has them. */
void dtr__ddp_check_idle(dtr_ddp *ddp);

/* ---- iteration.c ---- */
/* Open a backward pass from IDLE or ARMED; lock held. */
dtr_status dtr__ddp_open_backward(dtr_ddp *ddp, const char *entry, void *stream);

/* ---- backward.c ---- */
/* Put parameter i's gradient into its slot; failures are noted. */
dtr_status dtr__ddp_put(dtr_ddp *ddp, size_t i);

/* ---- settle.c: what this rank contributes, and what comes back ---- */
/* An unused parameter contributes what it has, or zeros. */
void dtr__ddp_put_unused(dtr_ddp *ddp, size_t i);
/* In backward_end: after this every slot holds what this rank contributes. */
void dtr__ddp_settle(dtr_ddp *ddp);
/* Once all ranks have agreed that nothing failed: flags, and the parameters that only other ranks
 * used, or nobody. */
void dtr__ddp_give_back(dtr_ddp *ddp);

/* ---- strategy.c: how buckets travel ---- */
/* Collectives started on the module's groups. */
uint64_t dtr__ddp_seq(const dtr_ddp *ddp);

/* ---- sparse.c ---- */
/* As dtr__ddp_put and dtr__ddp_put_unused. */
dtr_status dtr__ddp_sparse_put(dtr_ddp *ddp, size_t i);
void dtr__ddp_sparse_put_unused(dtr_ddp *ddp, size_t i);

/* ---- delayed.c ---- */
/* Of forward_end: gradients that were cleared start from zero. */
void dtr__ddp_delayed_forward(dtr_ddp *ddp);
/* All of them have a gradient: the trigger was reported in an iteration without sync. */
void dtr__ddp_delayed_define(dtr_ddp *ddp);
/* The trigger is ready; nothing the second time. Has it not been reported, and must be? */
void dtr__ddp_delayed_launch(dtr_ddp *ddp);
bool dtr__ddp_delayed_missing(const dtr_ddp *ddp);
/* Of backward_end, on a device: all buckets have been launched. Nothing the second time. */
void dtr__ddp_delayed_behind(dtr_ddp *ddp);

/* ---- step_status.c ---- */
/* A status as this thread's last error. */
dtr_status dtr__ddp_step_fail(const dtr_ddp *ddp, const dtr__step_status *v, dtr_status s,
                              const char *more);
/* Status slot of the carrying bucket. */
void dtr__ddp_status_write(dtr_ddp *ddp, bool bad);
bool dtr__ddp_status_bad(const dtr_ddp *ddp);

/* ---- late.c: nothing happens without DTR_DDP_LATE_ERRORS ---- */
bool dtr__ddp_late_can(const dtr_ddp *ddp); /* the open iteration's flag can travel */
/* In backward_end: whether it does; then before the last bucket leaves, behind its
 * average, and when all is queued: the error of the iteration before, else this rank's own. */
void dtr__ddp_late_begin(dtr_ddp *ddp);
void dtr__ddp_late_write(dtr_ddp *ddp, bool bad);
void dtr__ddp_late_fetch(dtr_ddp *ddp);
dtr_status dtr__ddp_late_end(dtr_ddp *ddp, bool *broken);

/* ---- join.c ---- */
bool dtr__ddp_joined(const dtr_ddp *ddp); /* between join_begin and join_end, with headers */
/* The step of others, as reducer/iteration.c and reducer/finish.c do it. */
void dtr__ddp_shadow_flags(dtr_ddp *ddp, bool sync);
dtr_status dtr__ddp_shadow_backward(dtr_ddp *ddp);

/* ---- buffer.c ---- */
bool dtr__ddp_buffers_due(const dtr_ddp *ddp); /* in training with sync, where there are any */

/* ---- step.c ---- */
/* The work of a launched bucket: step when it has ended; on a device what steps are queued on goes
 * on behind it. */
void dtr__ddp_step_follow(dtr_ddp *ddp, dtr_ddp_bucket *b);
/* Step the parameters of finished buckets, in order; any thread. */
void dtr__ddp_step_run(dtr_ddp *ddp);
/* In backward_end: all that is left, and the parameters only other ranks used. Then its stream goes
 * on behind the steps. */
void dtr__ddp_step_finish(dtr_ddp *ddp);
void dtr__ddp_step_rest(dtr_ddp *ddp);
void dtr__ddp_step_lead(dtr_ddp *ddp);
void dtr__ddp_step_rearm(dtr_ddp *ddp);

/* ---- rebuild.c ---- */
dtr_status dtr__ddp_rebuild(dtr_ddp *ddp);

#endif /* DTR_DDP_REDUCER_INTERNAL_H */
