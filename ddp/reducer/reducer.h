/* One iteration: gradients into buckets, averages back. What other rooms see of it. */
#ifndef DTR_DDP_REDUCER_H
#define DTR_DDP_REDUCER_H

#include "base/dtype.h"
#include "core/ddp_internal.h"

/* Uneven inputs (join.c); used by the thread that runs the iterations only. */
typedef struct dtr__ddp_join {
    bool begun, by_active, stop_early;
    dtr_ddp *leader; /* NULL: no headers, no shadowing */
    uint64_t shadows;
    /* of a leader */
    dtr_ddp **modules;
    size_t n_modules;
    uint64_t headers;
    int source; /* highest rank that was active in the newest step */
    bool over;
} dtr__ddp_join;

/* Gradients that are averaged apart from the buckets (delayed.c), one block per type. */
enum { DTR__FLATS = DTR__N_DTYPES };
typedef struct dtr__ddp_flat {
    dtr_dtype dtype;
    size_t nbytes, padded;
    dtr_tensor *memory;
    dtr_work *work; /* written by who launches, then by backward_end */
} dtr__ddp_flat;
typedef struct dtr__ddp_delayed {
    size_t n, *list; /* first entries, in the order given */
    size_t trigger;  /* DTR__NONE: nothing is delayed */
    size_t n_flat;
    dtr__ddp_flat flat[DTR__FLATS];
    dtr_group *group; /* own: its place among the buckets depends on the rank; NULL on a device */
    dtr__ddp_feeds feeds; /* there: who has reported the trigger */
    _Atomic bool launched;
    bool behind;       /* launched there, by backward_end */
    dtr_status status; /* of launching; written by who launches, read by backward_end */
    dtr__error_copy *error;
} dtr__ddp_delayed;

/* Optimizer steps run per bucket (step.c). */
typedef struct dtr__ddp_stepper {
    dtr_ddp_step_fn fn; /* NULL: none */
    void *state;
    pthread_mutex_t lock; /* next, n_stepped, failed; held while fn runs */
    _Atomic int calls, callbacks;
    size_t next; /* buckets before it have been stepped */
    size_t n_stepped;
    bool failed;
} dtr__ddp_stepper;

/* State that is no parameter (buffer.c). */
typedef struct dtr__ddp_buffers {
    size_t n;
    dtr__ddp_param *list; /* name, value, flags only */
    size_t n_sync;        /* those not ignored */
    dtr_tensor **sync;
    dtr_ddp_buffer_hook hook; /* NULL: rank 0's buffers are broadcast */
    void *state;
    dtr_ddp_when when;
    dtr_work *work; /* of the hook, not yet waited for */
} dtr__ddp_buffers;

/* Errors that are known one step later (late.c); used by the thread that runs the iterations only.
 */
typedef struct dtr__ddp_late {
    bool travels;            /* the flag of the iteration that ends goes with its last bucket */
    bool flagged;            /* and this rank has set it */
    bool pending;            /* that of an iteration before has not been read: */
    int newest;              /* where it is on the host */
    dtr__step_status before; /* what this rank had to say there */
} dtr__ddp_late;

/* Used by the thread that runs the iterations, unless a comment states otherwise. */
typedef struct dtr__ddp_reducer {
    _Atomic bool sync, eval; /* for the next opening call */
    _Atomic int inside;      /* threads in grad_ready, so that backward_end can wait for them */
    size_t carrier;          /* the bucket with the status slot, DTR__NONE: none */
    bool rebuild_due;
    bool learned;           /* static graph: the first iteration has ended */
    bool learned_here;      /* and this rank took part in one with its own gradients */
    bool begun;             /* an iteration has been opened: too late for set_static_graph */
    bool used_set_constant; /* can_set_static_graph */
    bool check_writes;      /* DTR_DEBUG=detail: gradients must not change once they are ready */
    uint64_t agreements;    /* times the ranks have agreed on errors */
    pthread_mutex_t launch_lock; /* it.next, works of the buckets, and these: */
    dtr_status launch_status;
    dtr__error_copy *launch_error;
    dtr_tensor *map_memory;
    int32_t *map;    /* used map as it is sent, node-shared; [n_trainable] */
    uint64_t *order; /* ready order as it is sent; [n_trainable] */
    char *saved;     /* slots kept over a reduction that may turn out to concern nobody */
    size_t saved_size, saved_cap;
    dtr_tensor *casts;      /* memory of the parameters' casts, NULL: none are made */
    dtr_tensor **sync_list; /* what create broadcasts */
    size_t n_sync;
    dtr__ddp_buffers buffers;
    dtr__ddp_stepper step;
    dtr__ddp_join join;
    dtr__ddp_delayed delayed;
    dtr__ddp_late late;
} dtr__ddp_reducer;

extern const dtr__ddp_mover dtr__ddp_host_mover;

/* ---- bucket.c ---- */
/* Memory and slots for a plan; local. Nothing of the module is changed before success. */
typedef struct dtr__ddp_layout {
    dtr_plan *plan;
    size_t n_buckets, carrier;
    dtr_ddp_bucket *buckets;
    size_t n;                              /* of the module's parameters */
    dtr_tensor **slots, **grads, **parked; /* [n], NULL where there is nothing to do */
} dtr__ddp_layout;
dtr_status dtr__ddp_layout_make(dtr_ddp *ddp, dtr_plan *plan /* taken over */,
                                dtr__ddp_layout *layout);
/* Values of gradients move along in view mode; frees what was there before. */
void dtr__ddp_layout_use(dtr_ddp *ddp, dtr__ddp_layout *layout);
void dtr__ddp_layout_free(dtr__ddp_layout *layout);
/* Views go back into the caller's memory, the buckets lose the module's references. */
void dtr__ddp_layout_drop(dtr_ddp *ddp);
/* A view whose handle somebody else still holds moves to memory of its own. */
void dtr__ddp_leave_bucket(dtr_ddp *ddp, dtr__ddp_param *p);
void dtr__ddp_label_buckets(dtr_ddp *ddp);
/* The memory that a wrapper of hooks has made for its copy of a bucket. */
void dtr__ddp_bucket_drop_copy(dtr_ddp_bucket *b);
/* The plan for an order of trainable parameters (n_order of them). */
dtr_status dtr__ddp_plan_for(const dtr_ddp *ddp, const size_t *order, size_t n_order,
                             dtr_plan **plan);

/* ---- move.c ----
 * Nothing is copied where the gradient lies in its slot */
void dtr__ddp_copy_in(dtr_ddp *ddp, dtr__ddp_param *p);
void dtr__ddp_copy_out(dtr_ddp *ddp, dtr__ddp_param *p);
/* Pieces at once; `nbytes` of buckets are read by them and, since `begin`, by others before. */
void dtr__ddp_move_out(dtr_ddp *ddp, const dtr__ddp_piece *pieces, size_t n, size_t nbytes,
                       const char *label, int64_t begin);
bool dtr__ddp_concerns_all(const dtr_ddp *ddp, const dtr__ddp_param *p);
void dtr__ddp_fill_zero(dtr_ddp *ddp, dtr__ddp_param *p); /* its slot */
void dtr__ddp_zero(dtr_ddp *ddp, void *at, size_t nbytes);
/* A hook's result comes into its bucket. */
void dtr__ddp_bucket_take(dtr_ddp_bucket *b, dtr_buffer from);

/* ---- cast.c ---- */
/* Of create, local: tensors for full gradients and cast buffers. */
dtr_status dtr__ddp_cast_prepare(dtr_ddp *ddp);
dtr_status dtr__ddp_cast_buffers(dtr_ddp *ddp);
/* Of forward_begin: every managed parameter in param_dtype. Of the iteration's end: free them. */
dtr_status dtr__ddp_cast_params(dtr_ddp *ddp);
void dtr__ddp_cast_drop(dtr_ddp *ddp);

/* ---- iteration.c ---- */
/* Every rank gets the root's contents of these tensors. */
dtr_status dtr__ddp_send_all(dtr_ddp *ddp, dtr_tensor *const *list, size_t n, int root);
/* Ready for the next iteration: marks and pending counts as new. */
void dtr__ddp_rearm(dtr_ddp *ddp);

/* ---- backward.c ---- */
/* Launch complete buckets in index order, up to the one that must wait for backward_end; with
 * `all`, every bucket. */
void dtr__ddp_launch(dtr_ddp *ddp, bool all);

/* ---- strategy.c: how buckets travel ---- */
/* The way that the module's options ask for, without hook and sharded optimizer. */
void dtr__ddp_choose_strategy(dtr_ddp *ddp);
/* For strategies of other rooms: as members of dtr__ddp_strategy. */
void dtr__ddp_copy_out_bucket(dtr_ddp *ddp, dtr_ddp_bucket *b);
dtr_status dtr__ddp_collect_alone(dtr_ddp *ddp, int64_t *waited_ns);
dtr_status dtr__ddp_collect_works(dtr_ddp *ddp, int64_t *waited_ns);
dtr_status dtr__ddp_wait_work(const dtr_ddp *ddp, dtr_work **work, const char *label,
                              int64_t *waited_ns);

/* ---- sparse.c ---- */
/* What this rank contributes to a bucket, for a hook; the reduction itself. */
dtr_status dtr__ddp_sparse_input(dtr_ddp *ddp, dtr_ddp_bucket *b);
dtr_status dtr__ddp_sparse_launch(dtr_ddp *ddp, dtr_ddp_bucket *b, dtr_work **work);
void dtr__ddp_sparse_take(dtr_ddp *ddp, dtr_ddp_bucket *b);
size_t dtr__ddp_sparse_bytes(const dtr_ddp_bucket *b);
void dtr__ddp_sparse_bucket_free(dtr_ddp_bucket *b);
void dtr__ddp_sparse_rearm(dtr_ddp *ddp);

/* ---- delayed.c ---- */
/* Of create: the list, the blocks, the group. */
dtr_status dtr__ddp_delayed_read(dtr_ddp *ddp, const dtr_ddp_options *o);
dtr_status dtr__ddp_delayed_prepare(dtr_ddp *ddp);
dtr_status dtr__ddp_delayed_connect(dtr_ddp *ddp, dtr_group **group);
void dtr__ddp_delayed_drop(dtr_ddp *ddp);
/* Of backward_end: before the rest is launched, at its end, once the ranks have agreed. */
void dtr__ddp_delayed_settle(dtr_ddp *ddp);
dtr_status dtr__ddp_delayed_wait(dtr_ddp *ddp);
void dtr__ddp_delayed_give_back(dtr_ddp *ddp);
void dtr__ddp_delayed_rearm(dtr_ddp *ddp);
size_t dtr__ddp_delayed_bytes(const dtr_ddp *ddp);

/* ---- step_status.c ---- */
/* Does any rank have an error? One round trip by point to point, no collective. */
dtr_status dtr__ddp_any_bad(dtr_ddp *ddp, bool mine, bool *any);
/* Exchange statuses; every rank returns the agreed error, and `agreed` is the same on all of them.
 */
dtr_status dtr__ddp_agree(dtr_ddp *ddp, const dtr__step_status *mine, dtr__step_status *agreed);
/* Some rank has an error, `mine` is this rank's: agree. *broken: it has ended the module. */
dtr_status dtr__ddp_agree_bad(dtr_ddp *ddp, const dtr__step_status *mine, bool *broken);
/* The group is gone: remember why and refuse everything from now on. Returns s. */
dtr_status dtr__ddp_break(dtr_ddp *ddp, dtr_status s);
/* From BUSY to IDLE at the end of a call; an error of the group ends the module. Returns s. */
dtr_status dtr__ddp_leave(dtr_ddp *ddp, dtr_status s);

/* ---- late.c ---- */
/* The error of the newest synchronised iteration, where it is not known yet; collective, the host
 * waits. *broken: it has ended the module. */
dtr_status dtr__ddp_late_take(dtr_ddp *ddp, bool *broken);

/* ---- join.c ---- */
/* Of forward_begin: the header of this step. *broken: the error is the group's. */
dtr_status dtr__ddp_join_header(dtr_ddp *ddp, bool *broken);
void dtr__ddp_join_drop(dtr_ddp *ddp);

/* ---- buffer.c ---- */
/* Broadcast or hook, if due here. *broken: the error is the group's. */
dtr_status dtr__ddp_buffers_sync(dtr_ddp *ddp, dtr_ddp_when when, bool *broken);
/* The hook's work, if there is one. Of backward_end: on a device its stream waits. Between
 * iterations: the host waits. */
dtr_status dtr__ddp_buffers_wait(dtr_ddp *ddp);
dtr_status dtr__ddp_buffers_finish(dtr_ddp *ddp);

/* ---- step.c ---- */
/* A bucket has its average, on a device behind what the module's stream holds: step its parameters
 * once those of the buckets before have been; any thread. */
void dtr__ddp_step_averaged(dtr_ddp *ddp, dtr_ddp_bucket *b);

#endif /* DTR_DDP_REDUCER_H */
