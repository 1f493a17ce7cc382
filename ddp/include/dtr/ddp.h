/** @file
 * Distributed data parallel: every rank holds the same parameters, runs its own forward and
 * backward, and this module averages the gradients while the backward pass is still running.
 *
 * One iteration is
 *     dtr_ddp_forward_begin, forward, dtr_ddp_forward_end,
 *     backward: dtr_ddp_grad_ready(i) as each gradient becomes final,
 *     dtr_ddp_backward_end, optimizer.
 * The two forward calls may be left out; then the first dtr_ddp_grad_ready (or dtr_ddp_backward_end
 * where nothing was used) opens the iteration and no buffers are broadcast.
 *
 * Gradients are collected in buckets by a plan (dtr/plan.h) that starts in reverse order of the
 * parameters and is rebuilt once from the order in which rank 0 found them ready. Buckets are
 * averaged in index order on every rank, each as soon as it and all before it are complete; the
 * last one waits for dtr_ddp_backward_end, because it also carries each rank's status of the step.
 * So an error of one rank becomes the same error on every rank, and nobody waits for a deadline.
 *
 * Errors are local (this call on this rank, nothing else happened) or agreed (on every rank, with
 * the same status and message but where @errors says otherwise). After an agreed error of
 * class DTR_CLASS_OP the next iteration works and gradient values are unspecified; after an error
 * that broke the group only dtr_ddp_destroy is legal and every other call returns the same status.
 * The module writes parameters in dtr_ddp_create and dtr_ddp_join_end only; optimizers write them
 * when they step or load a checkpoint (dtr/zero.h, dtr/optim.h).
 *
 * With the flag DTR_DDP_LATE_ERRORS a module on a CUDA device asks no other rank for errors in
 * dtr_ddp_backward_end, so that the host runs up to one step ahead of the device: each rank's
 * status is on the device, too. An error is returned by the call of its own rank alone, as ever,
 * and by all ranks at the end of the next synchronised backward pass, or from dtr_ddp_check_equal
 * before that, with a text that begins "in the synchronised step before". The averages of both
 * iterations are there; in the one with the error, gradients that failed on that rank count as
 * zeros. That rank steps like the others, or all go back to older values. dtr_ddp_destroy and
 * dtr_ddp_set_group drop what is not known yet. In the first iteration, with find_unused, sparse
 * parameters, communication and buffer hooks, dtr_ddp_set_step, dtr_zero, in a join, with
 * DTR_DDP_PER_PARAM and DTR_DDP_CHECK_NAN errors are agreed in the same step all the same; and on
 * the host always, where that costs nothing. */
#ifndef DTR_DDP_H
#define DTR_DDP_H

#include <dtr/callsite.h>
#include <dtr/group.h>
#include <dtr/plan.h>
#include <dtr/tensor.h>

DTR_BEGIN_DECLS

/** Flags of a parameter or buffer. */
enum {
    DTR_PARAM_FROZEN = 1,  /**< synchronised at create, has no gradient */
    DTR_PARAM_IGNORED = 2, /**< never read, sent or shape-checked */
    DTR_PARAM_SPARSE = 4   /**< parameters only: its gradient is a list of rows, given with
                              dtr_ddp_set_sparse_grad; reduce_dtype does not apply */
};

/** Parameters are known by their index in the array given to create. Two entries with the same
 * memory, shape and dtype are one shared parameter: the second stands for the first. The size of an
 * entry is fixed: what more there is to say of parameters is an array in dtr_ddp_options. */
typedef struct dtr_param {
    const char *name;  /**< unique among parameters, among buffers; copied */
    dtr_tensor *value; /**< kept by the module */
    dtr_tensor *grad;  /**< same dtype (or param_dtype) and shape; NULL: the library makes it */
    uint32_t flags;    /**< DTR_PARAM_... */
} dtr_param;

/** Options of dtr_ddp_create; zero means the default. */
typedef struct dtr_ddp_options {
    size_t struct_size;        /**< set by DTR_DDP_OPTIONS_INIT */
    size_t bucket_cap_bytes;   /**< 0: 25 MiB */
    size_t first_bucket_bytes; /**< 0: 1 MiB; lowered to the cap */
    bool find_unused;          /**< some ranks leave out some parameters: exchange who used what */
    bool static_graph;         /**< the used set and calls per parameter never change: learn them */
    bool grad_as_bucket_view;  /**< gradients lie in the buckets: no copies, less memory. Tensors
                                  given as dtr_param.grad are moved there until destroy */
    bool no_init_sync;         /**< skip the broadcast of parameters and buffers from rank 0 */
    bool no_broadcast_buffers; /**< buffers stay as each rank has them */
    const dtr_param *buffers;  /**< state that follows rank 0 at every dtr_ddp_forward_begin */
    size_t n_buffers;
    dtr_dtype reduce_dtype; /**< of buckets and communication; read when has_reduce_dtype */
    bool has_reduce_dtype;
    double timeout_s;          /**< of each of its collectives; 0 or negative: the group's */
    uint32_t flags;            /**< DTR_DDP_... */
    const size_t *plan_limits; /**< NULL: {first, cap}; the last repeats */
    size_t n_plan_limits;
    const size_t *delayed; /**< parameters averaged apart from the buckets, as soon as the trigger,
                              one of them or another, is ready; only the trigger is reported. Their
                              gradients are moved into one block per type until destroy. On a CUDA
                              device the blocks are averaged behind the buckets instead, in
                              dtr_ddp_backward_end: when the trigger is ready depends on the rank,
                              and NCCL needs one order on all ranks */
    size_t n_delayed, delayed_trigger; /**< the trigger is read when has_delayed_trigger */
    dtr_dtype param_dtype;  /**< what compute reads (dtr_ddp_param) and writes gradients in */
    dtr_dtype buffer_dtype; /**< floating-point buffers are cast to it at create; their tensors stay
                               and get new memory */
    bool has_delayed_trigger, has_param_dtype, has_buffer_dtype; /**< those above are given */
    bool skip_unused; /**< with static_graph: what no rank used in iteration 1 leaves the plan */
} dtr_ddp_options;
#ifdef __cplusplus
#define DTR_DDP_OPTIONS_INIT                                                                     \
    {                                                                                            \
        sizeof(dtr_ddp_options), 0, 0, false, false, false, false, false, 0, 0, DTR_BOOL, false, \
            0, 0, 0, 0, 0, 0, 0, DTR_BOOL, DTR_BOOL, false, false, false, false                  \
    }
#else
#define DTR_DDP_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_ddp_options) }
#endif

DTR_BEGIN_SITED

/** Make a module over a group: check the parameters, compare them and the options across ranks,
 * give every rank the values of rank 0, plan and allocate the buckets. The module works on its own
 * duplicate of the group, so the caller's collectives on `group` never meet its own. `options` may
 * be NULL. Memory beyond the parameters: one copy of the gradients in node-shared memory.
 *  @collective all members of the group
 *  @blocking until all have entered
 *  @gpu all on one device, with contents that are complete there; the host waits for it
 *  @errors agreed: DTR_ERR_ARG, DTR_ERR_DTYPE, DTR_ERR_SHAPE, DTR_ERR_DEVICE, DTR_ERR_STATE,
 * DTR_ERR_UNSUPPORTED (naming rank and parameter or option), DTR_ERR_MISMATCH (models or options
 * differ), DTR_ERR_NOMEM there and DTR_ERR_REMOTE elsewhere; those of the group
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_create(dtr_group *group, const dtr_param *params, size_t n,
                                  const dtr_ddp_options *options, dtr_ddp **ddp);

DTR_END_SITED

/** Free a module; parameters and the caller's gradients stay, those moved into buckets return to
 * their memory with their values. Buckets in flight are waited for up to their deadline. Also legal
 * after the group or the world has gone. NULL is DTR_OK.
 *  @collective all members; on one rank in an open iteration it ends the others' with an error
 *  @blocking until its operations have finished
 *  @gpu the host waits for what the module has given the device
 *  @errors DTR_ERR_TIMEOUT (unfinished work was given up; the handle is gone all the same)
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_destroy(dtr_ddp *ddp);

/** The tensor where backward writes parameter i's gradient, the same handle for the module's life.
 * With grad_as_bucket_view its data pointer changes once, at the end of the first synchronised
 * iteration. NULL on error.
 *  @collective no; any thread  @blocking no  @gpu no
 *  @errors NULL with DTR_ERR_ARG (index; frozen, ignored or sparse), DTR_ERR_NOMEM or
 * DTR_ERR_STATE as last error
 *  @since 0.1 */
DTR_API dtr_tensor *dtr_ddp_grad(dtr_ddp *ddp, size_t i);

/** Parameter i as compute should read it: with param_dtype a copy in that type, made anew by every
 * dtr_ddp_forward_begin and gone after dtr_ddp_backward_end (after dtr_ddp_forward_end when
 * evaluating); else the parameter itself. The module's. NULL on error.
 *  @collective no  @blocking no
 *  @gpu `stream` goes on when the cast is there
 *  @errors NULL with DTR_ERR_ARG (index, ignored) or DTR_ERR_STATE (outside of an iteration) as
 * last error
 *  @since 0.1 */
DTR_API dtr_tensor *dtr_ddp_param(dtr_ddp *ddp, size_t i, void *stream);

/** The average of parameter i's gradient in the parameter's own dtype, filled by
 * dtr_ddp_backward_end; without param_dtype the same tensor as dtr_ddp_grad. The module's. With a
 * sharded optimizer this rank's slices of it are averages, the rest is unspecified: dtr_zero_step
 * reads the slices, so a change to each element by itself, such as scaling, takes effect, but a
 * norm needs dtr_ddp_clip_grad_norm. NULL on error.
 *  @collective no  @blocking no  @gpu no  @errors as dtr_ddp_grad  @since 0.1 */
DTR_API dtr_tensor *dtr_ddp_full_grad(dtr_ddp *ddp, size_t i);

/** Whether parameter i has a gradient: set by dtr_ddp_grad_ready and by averaging, dropped by
 * dtr_ddp_grad_clear. false where there is none to have.
 *  @collective no; any thread  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API bool dtr_ddp_grad_defined(const dtr_ddp *ddp, size_t i);

/** Forget that parameter i (SIZE_MAX: every one) has a gradient; the memory is left alone.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (index), DTR_ERR_STATE (between the first ready gradient and
 * dtr_ddp_backward_end)
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_grad_clear(dtr_ddp *ddp, size_t i);

/** Give sparse parameter i its gradient on this rank: `indices` i64 [nnz] are row numbers, which
 * may repeat and come in any order, `values` [nnz, ...] the rows. To be called before
 * dtr_ddp_grad_ready(i); the last call counts. The module keeps references, and both tensors belong
 * to the library until dtr_ddp_backward_end.
 *  @collective no  @blocking no
 *  @gpu both on the module's device, final behind the stream of dtr_ddp_grad_ready, which
 * waits for them; a row number is looked at there
 *  @errors DTR_ERR_ARG (no sparse parameter, NULL, a row number), DTR_ERR_DTYPE, DTR_ERR_SHAPE,
 * DTR_ERR_LAYOUT, DTR_ERR_DEVICE, DTR_ERR_STATE (reported already)
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_set_sparse_grad(dtr_ddp *ddp, size_t i, dtr_tensor *indices,
                                           dtr_tensor *values);

/** The gradient of sparse parameter i: after dtr_ddp_backward_end every row that any rank gave,
 * once, ascending, averaged over all ranks (a rank without that row counts as zeros). The tensors
 * are the module's and stay until the next gradient takes their place; retain them to keep them.
 *  @collective no  @blocking no
 *  @gpu the average is there behind the stream of dtr_ddp_backward_end. The next one is
 * written behind the stream of the next call of it, unless they are retained: what reads them on
 * other streams must come before
 *  @errors DTR_ERR_ARG (no sparse parameter, NULL), DTR_ERR_STATE (there is none yet)
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_sparse_grad(dtr_ddp *ddp, size_t i, dtr_tensor **indices,
                                       dtr_tensor **values);

/** Name the rows that sparse parameter i's gradients may have in the next backward pass, ascending
 * and the same on all ranks: they are averaged as one dense block, and the result has exactly these
 * rows. Forgotten at dtr_ddp_backward_end; rows NULL takes it back. Not during a join.
 *  @collective all members must name the same rows, no communication here
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (no sparse parameter, a row number, not ascending), DTR_ERR_STATE
 * (reported already, a join is open), DTR_ERR_NOMEM. Other rows in a gradient are DTR_ERR_STATE at
 * dtr_ddp_grad_ready and, agreed, at dtr_ddp_backward_end; other rows named on another rank end the
 * module with DTR_ERR_MISMATCH
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_set_sparse_rows(dtr_ddp *ddp, size_t i, const int64_t *rows, size_t n);

DTR_BEGIN_SITED

/** Begin an iteration: fixes its sync and evaluation flags and gives every rank the buffers of
 * rank 0 (not when evaluating, not without sync). Legal again before any gradient is ready: the
 * forward pass before is dropped.
 *  @collective all members when buffers are broadcast, else no
 *  @blocking until the buffers are here
 *  @gpu buffers and casts are sent behind the stream of the last dtr_ddp_backward_end, which
 * goes on behind them; the host waits for buffers before the first one
 *  @errors DTR_ERR_STATE in an open backward pass, naming the parameters not ready, and without
 * sync where static_graph is to be learned or dtr_ddp_set_step is on; those of the broadcast
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_forward_begin(dtr_ddp *ddp);

/** End the forward pass. With find_unused, `unused` lists the parameters that backward will not
 * reach; NULL: found out at dtr_ddp_backward_end, at the price of overlap. Without find_unused the
 * list must be empty.
 *  @collective no  @blocking no
 *  @gpu cleared gradients of delayed parameters become zero behind the stream of the last
 * dtr_ddp_backward_end; the host waits for that before the first one
 *  @errors DTR_ERR_ARG (an index), DTR_ERR_STATE (no forward pass is open; a list without
 * find_unused)
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_forward_end(dtr_ddp *ddp, const size_t *unused, size_t n_unused);

/** Say that parameter i's gradient is final. It is copied into its bucket (with
 * grad_as_bucket_view it is there already) and full buckets start to travel. Until
 * dtr_ddp_backward_end the gradient belongs to the library. With static_graph a parameter may be
 * reported several times per iteration, the last one counts.
 *  @collective no; any order, any thread
 *  @blocking no
 *  @gpu the gradient is final behind what `stream` holds now; several streams may take part, and
 * last until dtr_ddp_backward_end returns. The trigger stands for the gradients of all delayed
 * parameters. A sparse one the host waits for
 *  @errors local: DTR_ERR_ARG (index, frozen, ignored); DTR_ERR_STATE (twice, listed as unused,
 * evaluating, too late) and DTR_ERR_GRAPH (static_graph: more often than learned), which
 * dtr_ddp_backward_end returns again on every rank
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_grad_ready(dtr_ddp *ddp, size_t i, void *stream);

/** End the iteration: wait until every gradient is the average over all ranks. Without sync it only
 * ends the iteration. Another thread's dtr_ddp_grad_ready must have returned.
 *  @collective all members, unless sync is off for this iteration; several modules in one order
 *  @blocking until the averages are in the gradients; on a GPU until all ranks have called, with
 * DTR_DDP_LATE_ERRORS until the averages of the synchronised iteration before are there
 *  @gpu averages are there behind what `stream` holds on return (host memory: at once)
 *  @errors agreed: DTR_ERR_STATE (a parameter was not ready, or ready twice; names it and the
 * rank), DTR_ERR_GRAPH, DTR_ERR_NAN; DTR_ERR_TIMEOUT, DTR_ERR_MISMATCH, DTR_ERR_ABORTED,
 * DTR_ERR_REMOTE, DTR_ERR_MPI end the module. Local: DTR_ERR_STATE (no iteration can end here)
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_backward_end(dtr_ddp *ddp, void *stream);

DTR_END_SITED

/** Turn averaging on or off from the next iteration on ("no_sync"): without it gradients stay local
 * and the caller adds them up; the next synchronised iteration averages the sum.
 *  @collective no, but all ranks must set it alike
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG, DTR_ERR_STATE (handle)  @since 0.1 */
DTR_API dtr_status dtr_ddp_set_sync(dtr_ddp *ddp, bool sync);

/** The flag set by dtr_ddp_set_sync; false for NULL.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API bool dtr_ddp_sync(const dtr_ddp *ddp);

/** Evaluate from the next forward pass on: nothing is broadcast, no gradient may become ready. One
 * rank may do so alone.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG, DTR_ERR_STATE (handle)  @since 0.1 */
DTR_API dtr_status dtr_ddp_set_eval(dtr_ddp *ddp, bool eval);

/** Turn on the option static_graph in a module that is made already, by a library for instance, and
 * find_unused off; before the first iteration only. Twice is one warning.
 *  @collective all members must do it, no communication
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_STATE after the first iteration has begun  @since 0.1 */
DTR_API dtr_status dtr_ddp_set_static_graph(dtr_ddp *ddp);

DTR_BEGIN_SITED

/** Move the module to another group of the same world, such as what is left after some ranks have
 * gone: models and options are compared there, averages are over its ranks from now on, and what
 * was learned (static graph, ready order, unused parameters, memory of hooks) is learned again.
 * Parameters and gradients stay as they are. Ranks that are not in it pass NULL and may only
 * destroy the module afterwards. On an error the module stays with its old group.
 *  @collective all members of `group`; no, with NULL
 *  @blocking until they have entered
 *  @gpu makes windows of the buckets where DTR_NCCL_REGISTER asks for them
 *  @errors DTR_ERR_STATE (an iteration or a join is open), DTR_ERR_ARG (another world), agreed:
 * DTR_ERR_MISMATCH, DTR_ERR_NOMEM there and DTR_ERR_REMOTE elsewhere; those of the group
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_set_group(dtr_ddp *ddp, dtr_group *group);

DTR_END_SITED

/** Is every parameter ready in the open iteration? DTR_OK as well when none is open.
 *  @collective no  @blocking no  @gpu no
 *  @errors DTR_ERR_STATE naming the parameters that are not  @since 0.1 */
DTR_API dtr_status dtr_ddp_check_finalized(dtr_ddp *ddp);

DTR_BEGIN_SITED

/** Do all ranks hold bitwise equal parameters? Reports, repairs nothing. With
 * DTR_DDP_LATE_ERRORS an error
 * of the last synchronised iteration that is not known yet comes first.
 *  @collective all members, no iteration open
 *  @blocking until compared
 *  @gpu behind what the stream of the newest dtr_ddp_backward_end holds now
 *  @errors DTR_ERR_MISMATCH naming the first parameter that differs and the ranks,
 * DTR_ERR_STATE (an iteration is open), DTR_ERR_NOMEM; those of the group, and late ones of
 * dtr_ddp_backward_end
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_check_equal(dtr_ddp *ddp);

DTR_END_SITED

/** The module's bucket plan, valid until its rebuild at the end of the first synchronised
 * iteration; NULL for NULL. dtr_plan_print makes a table of it.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API const dtr_plan *dtr_ddp_plan(const dtr_ddp *ddp);

/** One synchronised iteration; times in seconds. Its size is fixed. */
typedef struct dtr_ddp_step {
    size_t bytes; /**< reduced, unpadded */
    size_t buckets, collectives;
    double forward_s;      /**< dtr_ddp_forward_begin to _end */
    double backward_s;     /**< from there (or the opening call) to entering dtr_ddp_backward_end */
    double comm_s;         /**< time with a bucket in flight */
    double exposed_comm_s; /**< the part of it that dtr_ddp_backward_end waited for */
    double overlap;        /**< 1 - exposed/comm, in 0..1; 1 without communication */
    double reserved[4];    /**< 0; room for more */
} dtr_ddp_step;

/** The module owns the texts: `error` until its next error, `description` until its end. */
typedef struct dtr_ddp_stats {
    size_t struct_size; /**< set by DTR_DDP_STATS_INIT */
    uint64_t steps;     /**< synchronised iterations that ended well */
    uint64_t local_steps, forwards, rebuilds, shadow_steps, errors;
    size_t buckets, unused_bytes; /**< of the last step: gradients this rank did not use */
    dtr_ddp_step last, average;
    bool can_set_static_graph; /**< this rank's used set has been the same in every step so far */
    bool has_error;
    const char *hook, *error, *description; /**< never NULL */
    /** Of the last step: bytes of bucket memory that were copied from gradients and back to them; 0
     * where gradients lie in the buckets, dtr_ddp_step.bytes where they do not. */
    size_t copied_in_bytes, copied_out_bytes;
    /** Steps whose times are known: all on the host. On a CUDA device the first ten, and every
     * DTR_DDP_STATS_EVERY-th after them, once the device has done them; `last` then has the times
     * of the newest of them. */
    uint64_t timed_steps;
    /** How NCCL knows the memory of the buckets: "windows", "registered", or "" where it does not;
     * see DTR_NCCL_REGISTER. Never NULL. */
    const char *bucket_memory;
} dtr_ddp_stats;
#ifdef __cplusplus
#define DTR_DDP_STATS_INIT                                                                         \
    {                                                                                              \
        sizeof(dtr_ddp_stats), 0, 0, 0, 0, 0, 0, 0, 0, { 0, 0, 0, 0, 0, 0, 0, 0, { 0, 0, 0, 0 } }, \
            { 0, 0, 0, 0, 0, 0, 0, 0, { 0, 0, 0, 0 } }, false, false, 0, 0, 0, 0, 0, 0, 0          \
    }
#else
#define DTR_DDP_STATS_INIT \
    { .struct_size = sizeof(dtr_ddp_stats) }
#endif

/** Copy the statistics. Works in every state, also after a failure.
 *  @collective no; any thread  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (NULL, struct_size 0)  @since 0.1 */
DTR_API dtr_status dtr_ddp_get_stats(const dtr_ddp *ddp, dtr_ddp_stats *stats);

/* ---- buffers ---- */

/** Replace buffer k by another tensor of the same dtype and shape.
 *  @collective no, but all ranks must do it alike
 *  @blocking no  @gpu on the module's device, with the strides of the one before
 *  @errors DTR_ERR_ARG (index, tensor), DTR_ERR_DTYPE, DTR_ERR_SHAPE, DTR_ERR_UNSUPPORTED (other
 * strides on a device), DTR_ERR_STATE (another call is running)
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_set_buffer(dtr_ddp *ddp, size_t k, dtr_tensor *tensor);

/** Where a buffer hook runs: in dtr_ddp_forward_begin or in dtr_ddp_forward_end. */
typedef enum dtr_ddp_when { DTR_PRE_FORWARD, DTR_POST_FORWARD } dtr_ddp_when;

/** Does what it likes with the buffers that are not ignored. It may leave a work in `*work`, which
 * dtr_ddp_backward_end waits for and releases. Its collectives need a group of their own. On a
 * device it queues what it does on streams of the program, which the hook orders by itself behind
 * what has written the buffers; a work is waited for by the stream of dtr_ddp_backward_end. */
typedef dtr_status (*dtr_ddp_buffer_hook)(void *state, dtr_tensor *const *buffers, size_t n,
                                          dtr_work **work);

/** Run a function on the buffers in place of the broadcast from rank 0, under the same conditions.
 *  @collective all members must register alike, no communication
 *  @blocking no
 *  @gpu the buffers are final behind what the stream of dtr_ddp_backward_end holds on return, as
 * far as the hook's work is concerned; the host does not wait
 *  @errors DTR_ERR_ARG (NULL, when), DTR_ERR_STATE (there is one already, or an iteration is
 * open)
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_register_buffer_hook(dtr_ddp *ddp, dtr_ddp_buffer_hook fn, void *state,
                                                dtr_ddp_when when);

/* ---- uneven inputs ---- */

/** Options of dtr_ddp_join_begin; zero means the default. */
typedef struct dtr_join_options {
    size_t struct_size;    /**< set by DTR_JOIN_OPTIONS_INIT */
    bool divide_by_active; /**< averages are over the ranks that still have inputs, not over all */
    bool stop_early;       /**< end on all ranks when the first has no more inputs */
    bool disable;          /**< inputs are even: no headers, nothing is shadowed */
} dtr_join_options;
#ifdef __cplusplus
#define DTR_JOIN_OPTIONS_INIT \
    { sizeof(dtr_join_options), false, false, false }
#else
#define DTR_JOIN_OPTIONS_INIT \
    { .struct_size = sizeof(dtr_join_options) }
#endif

DTR_BEGIN_SITED

/** Begin a stretch of iterations of which every rank may run a different number. Each forward pass
 * then starts with one small collective, every iteration has forward calls, and no forward pass may
 * be dropped. Several modules with the same members may be joined together.
 *  @collective all members, no communication here
 *  @blocking no  @gpu no
 *  @errors DTR_ERR_ARG (options), DTR_ERR_STATE (begun already, an iteration is open, a buffer
 * hook after forward, static_graph with find_unused before the first iteration), DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_join_begin(dtr_ddp *ddp, const dtr_join_options *options);

/** This rank has no more inputs: take part in the others' iterations with zeros until all have
 * none, then take parameters and buffers from the highest rank that was last.
 *  @collective all members
 *  @blocking until all have called it
 *  @gpu gradients in buckets and blocks are overwritten behind what the stream of the last
 * dtr_ddp_backward_end holds
 *  @errors DTR_ERR_STATE (nothing has begun, an iteration is open; agreed: stop_early ended the
 * join, here and in the others' next dtr_ddp_forward_begin); an error that the active ranks agreed
 * on meanwhile; those of the group
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_join_end(dtr_ddp *ddp);

DTR_END_SITED

/* ---- optimizer steps during backward ---- */

/** Step parameter i: `value` is the caller's, `grad` its final average, valid during the call. Runs
 * on a thread of the library or inside one of its calls, never twice at a time, and must not make
 * blocking calls on the module's world. On a device it runs on the program's threads alone, inside
 * dtr_ddp_grad_ready and dtr_ddp_backward_end, and queues all that it does with both tensors on
 * `stream`, which is NULL on the host; `grad` is valid for what is queued there. */
typedef dtr_status (*dtr_ddp_step_fn)(void *state, size_t i, dtr_tensor *value, dtr_tensor *grad,
                                      void *stream);

/** Have a function run for each of the listed parameters as soon as its bucket is final, in launch
 * order. Their gradients are not copied back and are undefined afterwards. n == 0 turns it off.
 *  @collective all members must set it alike, no communication
 *  @blocking no
 *  @gpu fn is called when the bucket begins to travel, with a stream of the module that goes on
 * behind the average, and behind what the bucket's gradients were reported with; where the average
 * goes through host memory, and with a hook, in dtr_ddp_backward_end at the latest. Values are
 * stepped behind what its stream holds on return; the host does not wait. Nobody knows by then
 * whether the averages will be there: values are unspecified once the module's group has broken
 *  @errors DTR_ERR_ARG (NULL, an index), DTR_ERR_STATE (an iteration is open;
 * param_dtype), DTR_ERR_UNSUPPORTED (a sparse parameter), DTR_ERR_CUDA. Iterations without sync
 * are refused while it is on. An error of fn is agreed at dtr_ddp_backward_end, whose message says
 * which parameters that rank had stepped
 *  @since 0.1 */
DTR_API dtr_status dtr_ddp_set_step(dtr_ddp *ddp, dtr_ddp_step_fn fn, void *state,
                                    const size_t *params, size_t n);

DTR_END_DECLS

#if DTR_CALL_SITES == 1 /* what these start was called from the caller's file and line */
#define dtr_ddp_create(...) DTR_AT(dtr_ddp_create, __VA_ARGS__)
#define dtr_ddp_forward_begin(...) DTR_AT(dtr_ddp_forward_begin, __VA_ARGS__)
#define dtr_ddp_forward_end(...) DTR_AT(dtr_ddp_forward_end, __VA_ARGS__)
#define dtr_ddp_grad_ready(...) DTR_AT(dtr_ddp_grad_ready, __VA_ARGS__)
#define dtr_ddp_backward_end(...) DTR_AT(dtr_ddp_backward_end, __VA_ARGS__)
#define dtr_ddp_set_group(...) DTR_AT(dtr_ddp_set_group, __VA_ARGS__)
#define dtr_ddp_check_equal(...) DTR_AT(dtr_ddp_check_equal, __VA_ARGS__)
#define dtr_ddp_join_begin(...) DTR_AT(dtr_ddp_join_begin, __VA_ARGS__)
#define dtr_ddp_join_end(...) DTR_AT(dtr_ddp_join_end, __VA_ARGS__)
#elif DTR_CALL_SITES == 2
DTR_SITED(dtr_ddp_create);
DTR_SITED(dtr_ddp_forward_begin);
DTR_SITED(dtr_ddp_forward_end);
DTR_SITED(dtr_ddp_grad_ready);
DTR_SITED(dtr_ddp_backward_end);
DTR_SITED(dtr_ddp_set_group);
DTR_SITED(dtr_ddp_check_equal);
DTR_SITED(dtr_ddp_join_begin);
DTR_SITED(dtr_ddp_join_end);
#endif

#include <dtr/hooks.h>
#include <dtr/zero.h>

#endif /* DTR_DDP_H */
