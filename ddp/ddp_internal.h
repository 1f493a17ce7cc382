/* What a module is inside, and what the files of this layer share.
 *
 * Life of an iteration: the opening call fixes its flags (ddp_iteration.c); dtr_ddp_grad_ready puts
 * gradients into slots and launches complete buckets (ddp_backward.c); dtr_ddp_backward_end settles
 * what is missing, launches the rest, waits and copies out (ddp_finish.c). A rank with an error
 * notes it as its verdict and goes on with zeros, so that no peer waits; the verdicts meet in the
 * last bucket (ddp_verdict.c). */
#ifndef DTR_DDP_INTERNAL_H
#define DTR_DDP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#define DTR_NO_CALL_SITE
#include <dtr/ddp.h>

#include "coll_internal.h"
#include "ddp_move.h"
#include "ddp_text.h"
#include "plan_internal.h"
#include "rt_device.h"
#include "tensor_internal.h"

enum { DTR__NO_PARAM = -1 };
#define DTR__NONE SIZE_MAX

typedef enum dtr__ddp_state {
    DTR__DDP_IDLE,
    DTR__DDP_FORWARD,  /* between forward_begin and forward_end */
    DTR__DDP_ARMED,    /* forward ended, synchronised, nothing ready yet */
    DTR__DDP_LOCAL,    /* backward without sync */
    DTR__DDP_REDUCING, /* backward with sync */
    DTR__DDP_BUSY,     /* a collective call of the module is running */
    DTR__DDP_FAILED
} dtr__ddp_state;

/* How dtr_ddp_grad_ready treats a call in a synchronised iteration. */
typedef enum dtr__ddp_mode {
    DTR__MODE_PLAIN,   /* every parameter once */
    DTR__MODE_DYNAMIC, /* every parameter at most once, the used map is exchanged */
    DTR__MODE_LEARN,   /* first iteration of a static graph: calls are counted */
    DTR__MODE_LATE,    /* the same on a rank that only shadowed the first one: no map */
    DTR__MODE_STATIC   /* a parameter is ready at its learned number of calls */
} dtr__ddp_mode;

/* Where a parameter stands in the open backward; the value of dtr__ddp_param.mark. */
enum {
    DTR__MARK_OPEN,   /* not ready */
    DTR__MARK_READY,  /* its gradient is in the slot */
    DTR__MARK_LISTED, /* declared unused at forward_end */
    DTR__MARK_SETTLED /* filled in by backward_end */
};

/* On a device: what its bucket takes for a parameter when it is gathered; dtr__ddp_param.put. */
enum { DTR__PUT_NOTHING, DTR__PUT_GRADIENT, DTR__PUT_ZERO };

typedef struct dtr__ddp_param {
    char *name;
    dtr_tensor *value; /* retained; NULL for ignored ones */
    uint32_t flags;
    size_t same_as; /* first entry with the same memory, its own index when it is the first */
    bool trainable; /* managed, not frozen, not delayed, not an alias */
    bool delayed;   /* averaged apart; its slot is in a block of ddp->delayed */
    /* Gradient. The handle is made by the library or retained from the caller; `parked` is the
     * caller's own memory while a view has replaced it. */
    dtr_tensor *_Atomic grad; /* made under ddp->lock */
    dtr_tensor *parked;
    bool grad_given;
    /* Mixed precision (ddp_cast.c): the value in param_dtype while an iteration is open, the
     * average in the value's own type. A buffer's `full` is its cast copy until create puts it in
     * place. */
    dtr_tensor *shadow, *full;
    size_t cast; /* on a device: which event follows the cast of its value */
    /* Sparse gradient (ddp_sparse.c), in place of all that; ddp->lock. */
    bool sparse;
    bool rows_given;               /* since the last synchronised iteration */
    dtr_tensor *rows, *row_values; /* what this rank gave, afterwards the average */
    int64_t *agreed;               /* rows all ranks have named, NULL: none */
    size_t n_agreed;
    struct dtr__ddp_room *room; /* on a device; ddp_device_sparse.c */
    /* Slot; changed by the rebuild only. */
    size_t bucket;    /* DTR__NONE: in no bucket */
    dtr_tensor *slot; /* the gradient's shape in the bucket, dense; the same memory as grad in view
                         mode */
    bool same_layout; /* grad and slot differ in dtype at most: block copies */
    /* One backward. */
    _Atomic int put;
    _Atomic bool look; /* on a device: for NaN, before its bucket travels */
    _Atomic uint32_t mark;
    _Atomic uint32_t calls; /* static graph */
    _Atomic uint64_t stamp; /* position of its last call in the ready order, 0: none */
    uint32_t learned;       /* static graph: calls per iteration */
    _Atomic bool defined;   /* has a gradient */
    _Atomic bool used;      /* since the last synchronised iteration */
    bool listed;            /* in the list of forward_end */
    bool step, stepped;     /* in the list of set_step; stepped in this iteration */
    bool was_used;          /* in the synchronised iteration before: can_set_static_graph */
    bool used_anywhere;     /* by the map of this iteration; static graph: of the first */
    uint64_t seen;          /* hash of the gradient when it became ready; check_writes */
    dtr_tensor *kept;       /* that copy of a slot on a device, kept from then on */
    size_t saved;           /* offset of its slot's copy in ddp->saved, DTR__NONE: not saved */
} dtr__ddp_param;

/* Of a module on a CUDA device (ddp_device.c). */
typedef struct dtr__ddp_gpu {
    const dtr__device_ops *ops; /* NULL: the module is on the host */
    int index;
    void *stream;         /* buckets are gathered there and reduced behind it */
    void *out;            /* of the newest backward_end: averages go out there */
    bool has_out;         /* there was one */
    pthread_mutex_t lock; /* event, and the feeds of all buckets */
    void *event;
    dtr_tensor *staging; /* what many small tensors are sent from; made when needed */
    const char *way;     /* how NCCL knows the buckets, NULL: not; stats_lock */
    /* Times of steps (ddp_timing.c). The lock guards all but `now`, which is the open iteration's:
     * set before anybody adds to it and taken after. */
    void *watch;                            /* follows the buckets on their way */
    struct dtr__ddp_sample *now;            /* NULL: this step is not timed */
    struct dtr__ddp_sample *waiting, *idle; /* oldest first; to be used again */
    size_t n_waiting;
    /* Casts of parameters: their own stream, an event for each MiB or so, memory for all. */
    void *caster, **cast;
    size_t n_cast;
    dtr_tensor *shadows;
    void *ferry; /* the stream on which sparse gradients come to the host; NULL: there are none */
    /* The first NaN of each parameter (ddp_device_nan.c); NULL: nobody asked. */
    uint64_t *nan_there, *nan_here;
} dtr__ddp_gpu;

/* A stream that wrote gradients of a bucket, and the point where it had done so. */
typedef struct dtr__ddp_feed {
    void *stream, *event;
} dtr__ddp_feed;

struct dtr_ddp_bucket {
    dtr__finish finish; /* first: the engine calls it with its address */
    dtr_ddp *ddp;
    size_t index;
    const dtr_plan_bucket *plan;
    char label[40];
    size_t nbytes;      /* unpadded */
    dtr_tensor *memory; /* the plan's size, and behind it the status slot */
    char *data;
    size_t count;           /* elements that travel, padding and status slot included */
    _Atomic size_t pending; /* parameters not ready */
    dtr__ddp_feed *feeds;   /* of this backward; gpu.lock */
    size_t n_feeds, cap_feeds;
    _Atomic bool under_way; /* for ddp_invariant.c */
    dtr__ddp_piece *pieces; /* [2 * n_slots] for copying out; backward_end's */
    dtr_work *work;         /* launch_lock, then backward_end; with a hook: pump_lock */
    int64_t launched_ns;
    /* Of a sparse parameter, which has the bucket for itself; the tensors as `work`, but what goes
     * in is put there before the launch; NULL: nothing. */
    dtr__ddp_param *sparse;
    dtr_tensor *in_rows, *in_values, *out_rows, *out_values;
    _Atomic int64_t finished_ns; /* when the average was there, waited for or not; 0: not yet */
    _Atomic uint64_t range;      /* of a profiler, since the launch; 0: none */
    /* Communication hook; pump_lock. */
    int depth;          /* of the step that ran last */
    dtr_buffer shown;   /* what the hook sees: the bucket, or a wrapper's copy in another type */
    dtr_tensor *copy;   /* a wrapper's memory, kept */
    dtr_tensor **views; /* [n_slots] of `copy`, made when asked for */
    dtr_ddp_hook then;  /* the step that follows the work */
    void *then_state;
    bool then_local; /* that step has no collective */
    bool has_result, running, done, failed;
    dtr_buffer result;
};

/* The communication hook of a module. */
enum { DTR__HOOK_DEPTHS = 8 };
typedef struct dtr__ddp_hook {
    dtr_ddp_hook fn; /* NULL: none */
    void *state;
    char name[64];
    /* What built-in hooks add. setup: collective, in the first hooked backward_end; forget: the
     * buckets have changed. */
    dtr_status (*setup)(dtr_ddp *ddp, void *state);
    void (*forget)(void *state);
    void (*drop)(void *state);
    void (*judge)(dtr_ddp *ddp, void *state); /* notes errors before the ranks agree on them */
    dtr_status (*save)(dtr_ddp *ddp, void *state, dtr_bytes *out);
    dtr_status (*restore)(dtr_ddp *ddp, void *state, dtr_bytes in);
    bool ready; /* set up: names are compared, the first group is there */
    dtr_group *group[DTR__HOOK_DEPTHS];
    /* pump_lock: steps of the hooks. pump_calls grows with every reason to look again. */
    pthread_mutex_t pump_lock;
    _Atomic int pump_calls, callbacks;
    size_t next[DTR__HOOK_DEPTHS]; /* buckets before it have run that step, or never will */
    _Atomic size_t launched;       /* buckets whose hook has been called */
    dtr__place from;               /* the call that launched the newest of them; pump_lock */
    _Atomic bool failed;
} dtr__ddp_hook;

/* Optimizer steps run per bucket (ddp_step.c). */
typedef struct dtr__ddp_stepper {
    dtr_ddp_step_fn fn; /* NULL: none */
    void *state;
    pthread_mutex_t lock; /* next, n_stepped, failed; held while fn runs */
    _Atomic int calls, callbacks;
    size_t next; /* buckets before it have been stepped */
    size_t n_stepped;
    bool failed;
} dtr__ddp_stepper;

/* Gradients of one type that are averaged apart from the buckets (ddp_delayed.c). */
enum { DTR__FLATS = DTR_C128 + 1 };
typedef struct dtr__ddp_flat {
    dtr_dtype dtype;
    size_t nbytes, padded;
    dtr_tensor *memory;
    dtr_work *work; /* written by who launches, then by backward_end */
} dtr__ddp_flat;

/* A rank's error in an iteration: the record that is exchanged. Fixed size, no padding. */
typedef struct dtr__verdict {
    int32_t status; /* DTR_OK: none */
    int32_t rank;
    uint64_t param;       /* lowest parameter concerned, UINT64_MAX: none */
    uint64_t others;      /* further errors on that rank */
    uint64_t callers;     /* != 0: an error of a function of the caller, which breaks nothing */
    uint64_t bad_ranks;   /* in the agreed one */
    uint64_t hash;        /* rebuild: of the new plan */
    uint64_t hook_broken; /* the hook's groups have to be made anew */
    int32_t native, native_code; /* a dtr_native; of the failing call, where one failed */
    char native_text[120], text[1800];
} dtr__verdict;

/* Options after defaults, all checked. */
typedef struct dtr__ddp_settings {
    size_t *limits;
    size_t n_limits;
    bool find_unused, static_graph, view, no_init_sync, no_buffers, skip_unused;
    bool unused_asked, first_reduced; /* for warnings: given, but overruled */
    bool has_reduce_dtype, has_param_dtype, has_buffer_dtype;
    dtr_dtype reduce_dtype, param_dtype, buffer_dtype;
    double timeout_s;
    uint32_t flags;
} dtr__ddp_settings;

typedef struct dtr__ddp_counters {
    uint64_t steps, local_steps, forwards, rebuilds, shadow_steps, errors;
    size_t unused_bytes, copied_in_bytes, copied_out_bytes;
    dtr_ddp_step last, average;
    uint64_t timed;
    bool has_error;
    char error[sizeof(((dtr__verdict *)0)->text) + 128];
} dtr__ddp_counters;

struct dtr_ddp {
    uint64_t magic; /* DTR__DDP_MAGIC while live */
    dtr_world *world;
    dtr_group *group; /* own duplicate */
    int rank, size;
    unsigned id; /* equal on all ranks, in labels and tag words */
    char label[16];
    dtr_device device; /* of all its tensors */
    const dtr__ddp_mover *mover;
    dtr__ddp_gpu gpu;
    dtr__ddp_settings set;
    dtr__tenant tenant; /* told when the world ends */

    /* Constant after create, apart from slots and plan. */
    size_t n;
    dtr__ddp_param *params;
    size_t n_trainable, *trainable; /* indices, ascending */
    size_t n_buffers;
    dtr__ddp_param *buffers; /* name, value, flags only */
    dtr_tensor **sync_buffers;
    size_t n_sync_buffers; /* those not ignored */
    dtr_plan *plan;
    size_t n_buckets;
    dtr_ddp_bucket *buckets;
    size_t carrier; /* the bucket with the status slot, DTR__NONE: none, messages instead */
    bool rebuild_due;
    dtr_tensor **sync_list; /* what create broadcasts */
    size_t n_sync;
    char *backend;

    /* lock: state changes, the list of unused ones, making of gradients. Held briefly. `state` is
     * also read without it; `inside` counts threads in grad_ready, so that backward_end can wait
     * for them. */
    pthread_mutex_t lock;
    _Atomic int state, inside;
    _Atomic bool sync, eval; /* for the next opening call */
    pthread_mutex_t verdict_lock;
    dtr__verdict verdict;     /* of the open iteration; verdict_lock */
    _Atomic bool bad;         /* verdict.status != DTR_OK */
    uint64_t agreements;      /* times the ranks have agreed on verdicts */
    dtr__error_copy *failure; /* what led to FAILED; written before the state */
    _Atomic int failure_status;

    /* The open iteration; written by the opening call and backward_end only. */
    bool it_sync, it_eval, it_list, it_forward;
    dtr__ddp_mode mode;
    _Atomic uint64_t stamps;
    uint64_t iteration; /* backwards so far, with and without sync */
    bool learned;       /* static graph: the first iteration has ended */
    bool learned_here;  /* and this rank took part in one with its own gradients */
    bool shadow;        /* this rank has joined and contributes zeros */
    int divisor;        /* of averages in this iteration; 0: the group size */
    int buffer_source;  /* whose buffers all ranks take */
    bool begun;         /* an iteration has been opened: too late for set_static_graph */
    dtr_tensor *map_memory;
    int32_t *map;    /* used map as it is sent, node-shared; [n_trainable] */
    uint64_t *order; /* ready order as it is sent; [n_trainable] */
    char *saved;     /* slots kept over a reduction that may turn out to concern nobody */
    size_t saved_size, saved_cap;
    bool copies_out;     /* the averages are somewhere else than the gradients' own values */
    dtr_tensor *shadows; /* memory of the parameters' casts, NULL: none are made */
    size_t it_unused_bytes;
    _Atomic size_t copied_in, copied_out; /* bytes of slots written from and read to elsewhere */
    struct {                              /* for ddp_invariant.c, of this iteration */
        int divisor;
        bool mapped;
        _Atomic uint64_t issued;
    } check;
    bool used_set_constant;
    bool check_writes; /* DTR_DEBUG=detail: gradients must not change once they are ready (H5) */

    struct {
        size_t n, *list; /* first entries, in the order given */
        size_t trigger;  /* DTR__NONE: nothing is delayed */
        size_t n_flat;
        dtr__ddp_flat flat[DTR__FLATS];
        dtr_group *group; /* own: its place among the buckets depends on the rank */
        _Atomic bool launched;
        dtr_status status; /* of launching; read by backward_end */
        dtr__error_copy *error;
    } delayed;

    dtr__ddp_hook hook;
    dtr__ddp_stepper step;
    dtr_zero *zero; /* NULL: not sharded; changes between iterations only */
    /* Uneven inputs (ddp_join.c); used by the thread that runs the iterations only. */
    struct {
        bool begun, by_active, stop_early;
        dtr_ddp *leader; /* NULL: no headers, no shadowing */
        uint64_t shadows;
        /* of a leader */
        dtr_ddp **modules;
        size_t n_modules;
        uint64_t headers;
        int source; /* highest rank that was active in the newest step */
        bool over;
    } join;
    struct {
        dtr_ddp_buffer_hook fn; /* NULL: rank 0's buffers are broadcast */
        void *state;
        dtr_ddp_when when;
        dtr_work *work; /* not yet waited for */
    } buffer_hook;

    /* launch_lock: next, works of the buckets, launch failure. */
    pthread_mutex_t launch_lock;
    size_t next;
    dtr_status launch_status;
    dtr__error_copy *launch_error;

    /* Times of the open iteration, monotonic ns; see dtr__ddp_counters. */
    int64_t t_forward, t_forward_end, t_backward;
    uint64_t seq_begun; /* of the group at the opening call */

    /* stats_lock: counters, texts and warned. Never held while waiting. */
    pthread_mutex_t stats_lock;
    dtr__ddp_counters count;
    uint32_t warned;                        /* bits of dtr__ddp_warning */
    char *description, *description_before; /* the older one may still be read */
};

/* The reference mode: no bucket travels as a whole. */
static inline bool dtr__ddp_per_param(const dtr_ddp *ddp) {
    return (ddp->set.flags & DTR_DDP_PER_PARAM) != 0;
}

static inline bool dtr__ddp_on_device(const dtr_ddp *ddp) {
    return ddp->gpu.ops != NULL;
}

#define DTR__DDP_MAGIC UINT64_C(0x6474725f64647031)

/* ---- ddp_create.c ---- */
/* First line of every call on a module: DTR_ERR_ARG for NULL and strange pointers, DTR_ERR_STATE
 * when its world has gone, the status and message that made it fail. */
dtr_status dtr__ddp_check(const dtr_ddp *ddp, const char *entry);

/* For DTR_TRACED. */
static inline dtr__trace *dtr__ddp_trace(const dtr_ddp *ddp) {
    return ddp != NULL && ddp->magic == DTR__DDP_MAGIC ? dtr__trace_of(ddp->world) : NULL;
}
#define DTR_DDP_TRACED(ddp, call, expression)                                             \
    DTR_TRACED(dtr__ddp_trace(ddp), call, (ddp)->group != NULL ? (ddp)->group->name : "", \
               expression)

/* ---- ddp_settings.c, ddp_params.c: what one rank can judge alone (K1-K4) ---- */
bool dtr__ddp_is_float(dtr_dtype d);
dtr_status dtr__ddp_settings_read(const dtr_ddp_options *given, dtr_ddp_options *o,
                                  dtr__ddp_settings *set);
dtr_status dtr__ddp_params_read(dtr_ddp *ddp, const dtr_param *params, size_t n,
                                const dtr_ddp_options *o);
void dtr__ddp_params_free(dtr_ddp *ddp);
/* The plan for an order of trainable parameters (n_order of them). */
dtr_status dtr__ddp_plan_for(const dtr_ddp *ddp, const size_t *order, size_t n_order,
                             dtr_plan **plan);

/* ---- ddp_verify.c ---- */
/* Compare this rank's verdict, parameters, options and plan with all others'; agreed. */
dtr_status dtr__ddp_verify(dtr_ddp *ddp, dtr_status mine);

/* ---- ddp_bucket.c ---- */
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
/* A zeroed gradient of parameter p. */
dtr_status dtr__ddp_grad_make(const dtr_ddp *ddp, const dtr__ddp_param *p, dtr_dtype dtype,
                              dtr_tensor **grad);
/* Gradient tensor of trainable parameter i, made at the first call. */
dtr_status dtr__ddp_grad_get(dtr_ddp *ddp, size_t i, dtr_tensor **grad);

/* The strides of a gradient of value t where its elements lie without gaps. */
void dtr__ddp_dense_strides(const dtr_tensor *t, int64_t *strides);

/* ---- ddp_move.c ---- nothing is copied where the gradient lies in its slot */
void dtr__ddp_copy_in(dtr_ddp *ddp, dtr__ddp_param *p);
void dtr__ddp_copy_out(dtr_ddp *ddp, dtr__ddp_param *p);
/* Averages of parameters this rank used go back at once, the others wait for the map. */
void dtr__ddp_bucket_out(dtr_ddp *ddp, dtr_ddp_bucket *b);
/* Pieces at once; `nbytes` of buckets are read by them and, since `begin`, by others before. */
void dtr__ddp_move_out(dtr_ddp *ddp, const dtr__ddp_piece *pieces, size_t n, size_t nbytes,
                       const char *label, int64_t begin);
bool dtr__ddp_concerns_all(const dtr_ddp *ddp, const dtr__ddp_param *p);
void dtr__ddp_fill_zero(dtr_ddp *ddp, dtr__ddp_param *p); /* its slot */
void dtr__ddp_zero(dtr_ddp *ddp, void *at, size_t nbytes);
/* A hook's result comes into its bucket. */
void dtr__ddp_bucket_take(dtr_ddp_bucket *b, dtr_buffer from);
/* Copy a slot to memory of its size, or back. */
void dtr__ddp_slot_keep(dtr_ddp *ddp, const dtr__ddp_param *p, void *kept, bool back);
/* Of a gradient's memory; 0 where it has gaps. */
uint64_t dtr__ddp_grad_hash(const dtr_ddp *ddp, const dtr__ddp_param *p);
/* Where DTR_DDP_CHECK_NAN asks for it, note a NaN in parameter i's slot; on a device it is looked
 * for with the bucket. */
void dtr__ddp_check_nan(dtr_ddp *ddp, size_t i);
void dtr__ddp_note_nan(dtr_ddp *ddp, size_t i, size_t element);

/* ---- ddp_invariant.c ---- */
/* A bucket is launched: in index order, once, with the divisor of the others (IV1, IV4). */
void dtr__ddp_check_launch(dtr_ddp *ddp, dtr_ddp_bucket *b);
/* A slot is about to be written: its bucket is not under way (IV8). */
void dtr__ddp_check_unsent(dtr_ddp *ddp, size_t bucket);
/* A bucket has one parameter less to wait for than before (IV2). */
void dtr__ddp_check_pending(dtr_ddp *ddp, size_t before);
/* A collective goes on a group of the module: part of what the ranks compare (IV3, IV6). */
void dtr__ddp_check_issued(dtr_ddp *ddp, const dtr__request *r, const char *label);
/* A good iteration is about to end; `mapped`: a used map belongs to it (IV3, IV5). */
void dtr__ddp_check_end(dtr_ddp *ddp, bool mapped);
/* Counts are as new, buckets as the plan has them (IV2, IV7). */
void dtr__ddp_check_idle(dtr_ddp *ddp);

/* ---- ddp_cast.c ---- */
/* The type backward writes parameter p's gradient in. */
dtr_dtype dtr__ddp_grad_dtype(const dtr_ddp *ddp, const dtr__ddp_param *p);
/* Of create, local: tensors for full gradients and cast buffers. */
dtr_status dtr__ddp_cast_prepare(dtr_ddp *ddp);
dtr_status dtr__ddp_cast_buffers(dtr_ddp *ddp);
/* Of forward_begin: every managed parameter in param_dtype. Of the iteration's end: free them. */
dtr_status dtr__ddp_cast_params(dtr_ddp *ddp);
void dtr__ddp_cast_drop(dtr_ddp *ddp);

/* ---- ddp_iteration.c ---- */
const char *dtr__ddp_state_name(int state);
/* DTR_ERR_STATE: the state the module is in, and what to do. */
dtr_status dtr__ddp_refuse(dtr_ddp *ddp, const char *entry, const char *hint);
/* Every rank gets the root's contents of these tensors. */
dtr_status dtr__ddp_send_all(dtr_ddp *ddp, dtr_tensor *const *list, size_t n, int root);
/* Open a backward pass from IDLE or ARMED; lock held. */
dtr_status dtr__ddp_open_backward(dtr_ddp *ddp, const char *entry, void *stream);
/* Ready for the next iteration: marks and pending counts as new. */
void dtr__ddp_rearm(dtr_ddp *ddp);

/* ---- ddp_backward.c ---- */
/* Launch complete buckets in index order, up to the one that must wait for backward_end; with
 * `all`, every bucket. */
void dtr__ddp_launch(dtr_ddp *ddp, bool all);
/* The index of a parameter that has a gradient, shared ones as their first entry, or
 * DTR_ERR_ARG. */
const char *dtr__ddp_why_no_grad(const dtr__ddp_param *p);                  /* "frozen" */
dtr_status dtr__ddp_grad_index(dtr_ddp *ddp, const char *where, size_t *i); /* delayed ones too */
dtr_status dtr__ddp_trainable_index(dtr_ddp *ddp, const char *where, size_t *i);
/* Put parameter i's gradient into its slot; failures are noted. */
dtr_status dtr__ddp_put(dtr_ddp *ddp, size_t i);
/* One issue of a module's collective with its label, deadline and tag word. `part` is the bucket
 * index or one of these. */
enum {
    DTR__PART_MAP = 0xffff,
    DTR__PART_ORDER = 0xfffe,
    DTR__PART_SYNC = 0xfffd,
    DTR__PART_HOOK = 0xfffc,
    DTR__PART_JOIN = 0xfffb,
    DTR__PART_DELAYED = 0xfff0,
    DTR__PART_ZERO = 0xfffa
};
uint64_t dtr__ddp_tag(const dtr_ddp *ddp, uint64_t part);
dtr_status dtr__ddp_issue(dtr_ddp *ddp, dtr__request *r, const char *label, uint64_t part,
                          dtr_work **work);

/* The same on another group, with r's tag word. */
dtr_status dtr__ddp_issue_on(dtr_ddp *ddp, dtr_group *group, dtr__request *r, const char *label,
                             dtr_work **work);

/* ---- ddp_sparse.c ---- */
/* As dtr__ddp_put and dtr__ddp_put_unused. */
dtr_status dtr__ddp_sparse_put(dtr_ddp *ddp, size_t i);
void dtr__ddp_sparse_put_unused(dtr_ddp *ddp, size_t i);
/* What this rank contributes to a bucket, for a hook; the reduction itself. */
dtr_status dtr__ddp_sparse_input(dtr_ddp *ddp, dtr_ddp_bucket *b);
dtr_status dtr__ddp_sparse_launch(dtr_ddp *ddp, dtr_ddp_bucket *b, dtr_work **work);
void dtr__ddp_sparse_take(dtr_ddp *ddp, dtr_ddp_bucket *b);
size_t dtr__ddp_sparse_bytes(const dtr_ddp_bucket *b);
void dtr__ddp_sparse_bucket_free(dtr_ddp_bucket *b);
void dtr__ddp_sparse_rearm(dtr_ddp *ddp);

/* ---- ddp_delayed.c ---- */
/* Of create: the list, the blocks, the group. */
dtr_status dtr__ddp_delayed_read(dtr_ddp *ddp, const dtr_ddp_options *o);
dtr_status dtr__ddp_delayed_prepare(dtr_ddp *ddp);
dtr_status dtr__ddp_delayed_connect(dtr_ddp *ddp, dtr_group **group);
void dtr__ddp_delayed_drop(dtr_ddp *ddp);
/* Of forward_end: gradients that were cleared start from zero. */
void dtr__ddp_delayed_forward(dtr_ddp *ddp);
/* All of them have a gradient: the trigger was reported in an iteration without sync. */
void dtr__ddp_delayed_define(dtr_ddp *ddp);
/* The trigger is ready; nothing the second time. Has it not been reported, and must be? */
void dtr__ddp_delayed_launch(dtr_ddp *ddp);
bool dtr__ddp_delayed_missing(const dtr_ddp *ddp);
/* Of backward_end: before the rest is launched, at its end, after the verdict. */
void dtr__ddp_delayed_settle(dtr_ddp *ddp);
dtr_status dtr__ddp_delayed_wait(dtr_ddp *ddp);
void dtr__ddp_delayed_give_back(dtr_ddp *ddp);
void dtr__ddp_delayed_rearm(dtr_ddp *ddp);
size_t dtr__ddp_delayed_bytes(const dtr_ddp *ddp);

/* ---- ddp_finish.c ---- */
void dtr__ddp_put_unused(dtr_ddp *ddp, size_t i);

/* ---- ddp_verdict.c ---- */
/* Failures of one rank's own (memory, system, MPI, ...): that rank keeps its status, the others get
 * DTR_ERR_REMOTE. */
bool dtr__ddp_own_failure(dtr_status s);
/* Record and return a local error that the ranks will agree on at backward_end. */
dtr_status dtr__ddp_note(dtr_ddp *ddp, dtr_status s, size_t param, const char *fmt, ...)
    DTR_PRINTF(4, 5);
/* The same for an error that a function of the caller returned: whatever its status, the module
 * goes on afterwards. */
dtr_status dtr__ddp_note_caller(dtr_ddp *ddp, dtr_status s, size_t param, const char *fmt, ...)
    DTR_PRINTF(4, 5);
/* Note the calling thread's last error. */
void dtr__ddp_note_last(dtr_ddp *ddp, dtr_status s, size_t param);
/* Does any rank have an error? One round trip by point to point, no collective. */
dtr_status dtr__ddp_any_bad(dtr_ddp *ddp, bool mine, bool *any);
/* Exchange verdicts; every rank returns the agreed error, and `agreed` is the same on all of them.
 */
dtr_status dtr__ddp_agree(dtr_ddp *ddp, const dtr__verdict *mine, dtr__verdict *agreed);
/* A verdict as this thread's last error. */
dtr_status dtr__ddp_verdict_fail(const dtr_ddp *ddp, const dtr__verdict *v, dtr_status s,
                                 const char *more);
/* Status slot of the carrying bucket. */
void dtr__ddp_status_write(dtr_ddp *ddp, bool bad);
bool dtr__ddp_status_bad(const dtr_ddp *ddp);

/* ---- ddp_join.c ---- */
bool dtr__ddp_joined(const dtr_ddp *ddp); /* between join_begin and join_end, with headers */
/* Of forward_begin: the header of this step. *broken: the error is the group's. */
dtr_status dtr__ddp_join_header(dtr_ddp *ddp, bool *broken);
void dtr__ddp_join_drop(dtr_ddp *ddp);
/* The step of others, as ddp_iteration.c and ddp_finish.c do it. */
void dtr__ddp_shadow_flags(dtr_ddp *ddp, bool sync);
dtr_status dtr__ddp_shadow_backward(dtr_ddp *ddp);

/* ---- ddp_buffer.c ---- */
bool dtr__ddp_buffers_due(const dtr_ddp *ddp); /* P1 */
/* Broadcast or hook, if due here. *broken: the error is the group's. */
dtr_status dtr__ddp_buffers_sync(dtr_ddp *ddp, dtr_ddp_when when, bool *broken);
dtr_status dtr__ddp_buffers_wait(dtr_ddp *ddp);

/* ---- ddp_hook.c, ddp_hook_run.c ---- */
/* Register a hook; `h` gives fn, state, setup, forget and drop. */
dtr_status dtr__ddp_hook_set(dtr_ddp *ddp, const char *entry, const dtr__ddp_hook *h,
                             const char *name);
/* What registering a wrapper of dtr_ddp_wrap_hook adds to `h`. */
void dtr__ddp_hook_of_wrapper(dtr_ddp_hook fn, void *state, dtr__ddp_hook *h);
dtr_status dtr__ddp_hook_group_make(dtr_ddp *ddp, int depth);
void dtr__ddp_hook_init(dtr_ddp *ddp);
/* End of the module, or of its buckets. */
void dtr__ddp_hook_groups_free(dtr_ddp *ddp);
void dtr__ddp_hook_free(dtr_ddp *ddp);
void dtr__ddp_hook_bucket_free(dtr_ddp_bucket *b);
void dtr__ddp_hook_rearm(dtr_ddp *ddp);
/* Call the hook for one bucket, under launch_lock. */
void dtr__ddp_hook_launch(dtr_ddp *ddp, dtr_ddp_bucket *b);
/* In backward_end: the first time compare hooks across ranks and make the group. */
dtr_status dtr__ddp_hook_setup(dtr_ddp *ddp);
/* In backward_end: until every bucket has its result or this rank has given up. */
void dtr__ddp_hook_wait(dtr_ddp *ddp);
/* After an agreed error: new groups where the old ones were broken. */
dtr_status dtr__ddp_hook_renew(dtr_ddp *ddp);
/* As dtr_ddp_bucket_then for a step without collectives. */
dtr_status dtr__ddp_bucket_then_local(dtr_ddp_bucket *b, dtr_ddp_hook fn, void *state);
/* Collectives started on the module's groups. */
uint64_t dtr__ddp_seq(const dtr_ddp *ddp);

/* ---- ddp_step.c ---- */
void dtr__ddp_step_init(dtr_ddp *ddp);
void dtr__ddp_step_free(dtr_ddp *ddp);
/* Step the parameters of finished buckets, in order; any thread. */
void dtr__ddp_step_run(dtr_ddp *ddp);
/* The work of a launched bucket: step when it has ended. */
void dtr__ddp_step_follow(dtr_ddp *ddp, dtr_work *work);
/* In backward_end: all that is left, and the parameters only other ranks used. */
void dtr__ddp_step_finish(dtr_ddp *ddp);
void dtr__ddp_step_rest(dtr_ddp *ddp);
void dtr__ddp_step_rearm(dtr_ddp *ddp);

/* ---- ddp_group.c ---- */
/* Settings of the module's new group, a duplicate of `parent`. */
void dtr__ddp_group_adopt(dtr_ddp *ddp, const dtr_group *parent);

/* ---- ddp_rebuild.c ---- */
dtr_status dtr__ddp_rebuild(dtr_ddp *ddp);

/* ---- zero.c, zero_step.c: what a sharded optimizer changes in an iteration ---- */
dtr_status dtr__zero_launch(dtr_ddp *ddp, dtr_ddp_bucket *b);
void dtr__zero_copy_out(dtr_ddp *ddp, const dtr_ddp_bucket *b);
/* An iteration has ended; `averaged`: the slices hold averages. */
void dtr__zero_closed(dtr_ddp *ddp, bool averaged);
/* DTR_ERR_STATE while parameters of the last step are still on their way. */
dtr_status dtr__zero_may_open(dtr_ddp *ddp, const char *entry);
/* DTR_ERR_STATE where the module is sharded. */
dtr_status dtr__zero_refuse(const dtr_ddp *ddp, const char *entry);
/* The module ends. */
void dtr__zero_detach(dtr_ddp *ddp);

/* ---- ddp_stats.c ---- */
typedef enum dtr__ddp_warning {
    DTR__WARN_STATIC_TWICE = 1,
    DTR__WARN_STATIC_UNUSED = 2,
    DTR__WARN_NOTHING_UNUSED = 4,
    DTR__WARN_STRIDES = 8,
    DTR__WARN_SHADOW = 16,
    DTR__WARN_NO_FORWARD = 32,
    DTR__WARN_FIRST_LIMIT = 64,
    DTR__WARN_MEMORY = 128
} dtr__ddp_warning;
/* Once per module. */
void dtr__ddp_warn(dtr_ddp *ddp, dtr__ddp_warning which, const char *fmt, ...) DTR_PRINTF(3, 4);
void dtr__ddp_warn_static(dtr_ddp *ddp);
/* Every error a call of the module returns passes through here: counts it, keeps its text, and
 * returns it. */
dtr_status dtr__ddp_failed(dtr_ddp *ddp, dtr_status s);
/* The group is gone: remember why and refuse everything from now on. Returns s. */
dtr_status dtr__ddp_break(dtr_ddp *ddp, dtr_status s);
void dtr__ddp_count_step(dtr_ddp *ddp, const dtr_ddp_step *step);
/* On a device the times come later, those of step `n` as counted. */
void dtr__ddp_count_times(dtr_ddp *ddp, const dtr_ddp_step *step, uint64_t n);
static inline void dtr__ddp_range_end(dtr_ddp_bucket *b) { /* once, by whoever comes first */
    dtr__trace_range_end(atomic_exchange(&b->range, 0));
}
/* A stretch of the module's work that ends now: in the recording, and in the trace of calls. Times
 * are dtr__stamp_ns. */
void dtr__ddp_span(const dtr_ddp *ddp, const char *what, const char *label, int64_t begin_ns,
                   size_t nbytes);
void dtr__ddp_span_between(const dtr_ddp *ddp, const char *what, const char *label,
                           int64_t begin_ns, int64_t end_ns, size_t nbytes);
dtr_status dtr__ddp_describe(dtr_ddp *ddp);

#include "ddp_device.h"

#endif /* DTR_DDP_INTERNAL_H */
