/* What a module is, and what every room of this layer uses.
 *
 * Life of an iteration: the opening call fixes its flags (reducer/iteration.c); dtr_ddp_grad_ready
 * puts gradients into slots and launches complete buckets (reducer/backward.c);
 * dtr_ddp_backward_end settles what is missing, launches the rest, waits and copies out
 * (reducer/finish.c). A rank with an error notes it (core/note.c) and goes on with zeros, so that
 * no peer waits; the ranks agree on errors at the end (reducer/step_status.c). */
#ifndef DTR_DDP_INTERNAL_H
#define DTR_DDP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#define DTR_NO_CALL_SITE
#include <dtr/ddp.h>

#include "core/call.h"
#include "core/team.h"
#include "core/tensor_internal.h"
#include "ddp_move.h"
#include "plan/ddp_text.h"
#include "plan/plan.h"

#define DTR__NONE SIZE_MAX

/* Whether invariants are looked at (reducer/invariant.c). */
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { DTR__DDP_CHECKS = 1 };
#else
enum { DTR__DDP_CHECKS = 0 };
#endif

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
    bool delayed;   /* averaged apart; its slot is in a block of its own */
    /* Gradient. The handle is made by the library or retained from the caller; `parked` is the
     * caller's own memory while a view has replaced it. */
    dtr_tensor *_Atomic grad; /* made under ddp->lock */
    dtr_tensor *parked;
    bool grad_given;
    /* Mixed precision (reducer/cast.c): the value in param_dtype while an iteration is open, the
     * average in the value's own type. A buffer's `full` is its cast copy until create puts it in
     * place. */
    dtr_tensor *cast, *full;
    size_t cast_event; /* on a device: which event follows the cast of its value */
    /* Sparse gradient (reducer/sparse.c), in place of all that; ddp->lock. */
    bool sparse;
    bool rows_given;               /* since the last synchronised iteration */
    dtr_tensor *rows, *row_values; /* what this rank gave, afterwards the average */
    int64_t *agreed;               /* rows all ranks have named, NULL: none */
    size_t n_agreed;
    struct dtr__ddp_rows *staging; /* on a device; device/device_sparse.c */
    /* Slot; changed by the rebuild only. */
    size_t bucket;    /* DTR__NONE: in no bucket */
    dtr_tensor *slot; /* the gradient's shape in the bucket, dense; the same memory as grad in view
                         mode */
    bool same_layout; /* grad and slot differ in dtype at most: block copies */
    /* One backward. */
    _Atomic int put;
    _Atomic bool find_nan; /* on a device: before its bucket travels */
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
    size_t saved;           /* offset of its slot's copy in reducer->saved, DTR__NONE: not saved */
} dtr__ddp_param;

/* On a device: streams that wrote gradients which travel together (device/device.c); gpu->lock. */
typedef struct dtr__ddp_feeds {
    struct dtr__ddp_feed *list;
    size_t n, cap;
} dtr__ddp_feeds;

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
    dtr__ddp_feeds feeds;   /* on a device: who contributed */
    _Atomic bool under_way; /* for reducer/invariant.c */
    dtr__ddp_piece *pieces; /* [2 * n_slots] for copying out; backward_end's */
    dtr_work *work;         /* launch_lock, then backward_end; with a hook: pump_lock */
    int64_t launched_ns;
    /* Of a sparse parameter, which has the bucket for itself; the tensors as `work`, but what goes
     * in is put there before the launch; NULL: nothing. */
    dtr__ddp_param *sparse;
    dtr_tensor *in_rows, *in_values, *out_rows, *out_values;
    _Atomic int64_t finished_ns; /* when the average was there, waited for or not; 0: not yet */
    /* On a device: what steps are queued on goes on behind the average (reducer/step.c). */
    _Atomic bool averaged;
    _Atomic uint64_t range; /* of a profiler, since the launch; 0: none */
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

/* How the buckets of a module travel. The reducer has ways of its own; hooks and sharded optimizers
 * bring theirs. What is NULL has nothing to do. */
typedef struct dtr__ddp_strategy {
    bool hooked;         /* a hook sees buckets and their sparse rows where they lie */
    bool carries_status; /* the last bucket can carry the status slot; padding stays zero */
    /* How many buckets may leave before backward_end. */
    size_t (*early)(const dtr_ddp *ddp);
    /* Start one that is complete and packed; NULL: all of them wait for `collect`. launch_lock. */
    dtr_status (*launch)(dtr_ddp *ddp, dtr_ddp_bucket *b);
    /* In backward_end: have every average, given out by `copy_out`. */
    dtr_status (*collect)(dtr_ddp *ddp, int64_t *waited_ns);
    void (*copy_out)(dtr_ddp *ddp, dtr_ddp_bucket *b);
    /* Errors that show only then are noted, before the ranks agree. */
    void (*judge)(dtr_ddp *ddp);
    /* After an agreed error: what broke its groups, as the last error, or DTR_OK; new ones. */
    dtr_status (*broken)(const dtr_ddp *ddp);
    dtr_status (*renew)(dtr_ddp *ddp);
    void (*rearm)(dtr_ddp *ddp);  /* for the next iteration */
    void (*forget)(dtr_ddp *ddp); /* the buckets are others now */
    /* DTR_ERR_STATE while no iteration may be opened. */
    dtr_status (*may_open)(dtr_ddp *ddp, const char *entry);
    uint64_t (*seq)(const dtr_ddp *ddp); /* collectives started on groups of its own */
} dtr__ddp_strategy;

/* A rank's status of an iteration: the record that the ranks exchange. */
typedef struct dtr__step_status {
    int32_t status; /* DTR_OK: no error */
    int32_t rank;
    uint64_t param;     /* lowest parameter concerned, UINT64_MAX: none */
    uint64_t others;    /* further errors on that rank */
    uint64_t callers;   /* != 0: an error of a function of the caller, which breaks nothing */
    uint64_t bad_ranks; /* in the agreed one */
    uint64_t hash;      /* rebuild: of the new plan */
    uint64_t gave_up;   /* groups of the strategy have to be made anew */
    int32_t native, native_code; /* a dtr_native; of the failing call, where one failed */
    char native_text[120], text[1800];
} dtr__step_status;

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

/* The open iteration; written by the opening call and backward_end alone where nothing else is
 * said. */
typedef struct dtr__ddp_iteration {
    bool sync, eval, list, forward; /* list: of unused ones, given; forward: it began with one */
    bool shadow;                    /* this rank has joined and contributes zeros */
    bool averaged;   /* the newest one ended well and with sync: gradients are averages */
    bool copies_out; /* the averages are somewhere else than the gradients' own values */
    dtr__ddp_mode mode;
    uint64_t number;    /* backwards so far, with and without sync */
    int divisor;        /* of averages; 0: the group size */
    int buffer_source;  /* whose buffers all ranks take */
    size_t next;        /* buckets before it have been launched; reducer->launch_lock */
    uint64_t seq_begun; /* collectives started before */
    size_t unused_bytes;
    int64_t t_forward, t_forward_end, t_backward; /* monotonic ns */
    _Atomic uint64_t stamps;                      /* ready calls so far */
    _Atomic size_t copied_in, copied_out; /* bytes of slots written from and read to elsewhere */
    struct {                              /* for reducer/invariant.c */
        int divisor;
        bool mapped;
        _Atomic uint64_t issued;
    } check;
} dtr__ddp_iteration;

/* What went wrong. */
typedef struct dtr__ddp_errors {
    pthread_mutex_t lock;
    dtr__step_status mine; /* of the open iteration; lock */
    _Atomic bool bad;      /* mine.status != DTR_OK */
    _Atomic bool gave_up;  /* this rank has broken the strategy's groups in this iteration */
    /* What led to FAILED; written under ddp->lock, before the state. */
    dtr__error_copy *failure;
    _Atomic int failure_status;
} dtr__ddp_errors;

typedef struct dtr__ddp_counters {
    uint64_t steps, local_steps, forwards, rebuilds, shadow_steps, errors;
    size_t unused_bytes, copied_in_bytes, copied_out_bytes;
    dtr_ddp_step last, average;
    uint64_t timed;
    bool has_error;
    char error[sizeof(((dtr__step_status *)0)->text) + 128];
} dtr__ddp_counters;

/* What a module reports of itself; `lock` guards all of it and is never held while waiting. */
typedef struct dtr__ddp_stats {
    pthread_mutex_t lock;
    dtr__ddp_counters count;
    uint32_t warned; /* bits of dtr__ddp_warning */
    char *backend;
    char *description, *description_before; /* the older one may still be read */
} dtr__ddp_stats;

/* Constant after create where nothing else is said; the members of a group change in
 * dtr_ddp_set_group, the plan in the rebuild, both between iterations. */
struct dtr_ddp {
    uint64_t magic; /* DTR__DDP_MAGIC while live */
    dtr_world *world;
    dtr_group *group; /* own duplicate */
    int rank, size;
    unsigned id; /* equal on all ranks, in labels and tag words */
    char label[16];
    dtr_device device; /* of all its tensors */
    dtr__ddp_at at;    /* where buckets are filled and reduced */
    dtr__ddp_at out;   /* where the averages go, the stream of the newest backward_end, which writes
                          it; no lock: its own while the state is BUSY */
    const dtr__ddp_mover *mover;
    const dtr__ddp_strategy *strategy; /* no lock: changes between iterations only, before
                                          another can begin (hooks: under lock; zero: BUSY) */
    dtr__ddp_settings set;
    dtr__destroy_listener listener; /* called when the world ends */
    size_t n;
    dtr__ddp_param *params;
    size_t n_trainable, *trainable; /* indices, ascending */
    dtr_plan *plan;
    size_t n_buckets;
    dtr_ddp_bucket *buckets;
    /* lock: state changes, the list of unused ones, making of gradients. Held briefly; `state` is
     * also read without it. */
    pthread_mutex_t lock;
    _Atomic int state;
    dtr__ddp_iteration it;
    dtr__ddp_errors errors;
    dtr__ddp_stats stats;
    struct dtr__ddp_reducer *reducer; /* reducer/reducer.h */
    struct dtr__ddp_gpu *gpu;         /* device/device.h; NULL: the module is on the host */
    struct dtr__ddp_hook *hook;       /* hooks/hooks.h; NULL: none */
    dtr_zero *zero;                   /* zero/zero.h; NULL: not sharded */
};

/* The reference mode: no bucket travels as a whole. */
static inline bool dtr__ddp_per_param(const dtr_ddp *ddp) {
    return (ddp->set.flags & DTR_DDP_PER_PARAM) != 0;
}

static inline bool dtr__ddp_on_device(const dtr_ddp *ddp) {
    return ddp->gpu != NULL;
}

static inline dtr_op dtr__ddp_op(const dtr_ddp *ddp) {
    return ddp->set.flags & DTR_DDP_SUM ? DTR_SUM : DTR_AVG;
}

/* What a step reads of a parameter between iterations: its average in the value's own type, rows of
 * a sparse one; NULL: there is none. */
static inline dtr_tensor *dtr__ddp_final_grad(const dtr__ddp_param *p) {
    return p->sparse ? p->row_values : p->full != NULL ? p->full : atomic_load(&p->grad);
}

#define DTR__DDP_MAGIC UINT64_C(0x6474725f64647031)

/* ---- handle.c ---- */
/* First line of every call on a module: DTR_ERR_ARG for NULL and strange pointers, DTR_ERR_STATE
 * when its world has gone, the status and message that made it fail. */
dtr_status dtr__ddp_check(const dtr_ddp *ddp, const char *entry);
/* "no iteration is open" */
const char *dtr__ddp_state_name(int state);
/* DTR_ERR_STATE: the state the module is in, and what to do. */
dtr_status dtr__ddp_refuse(dtr_ddp *ddp, const char *entry, const char *hint);
/* DTR_ERR_STATE where the module is sharded. */
dtr_status dtr__ddp_refuse_sharded(const dtr_ddp *ddp, const char *entry);
/* From IDLE to BUSY, or refuse. */
dtr_status dtr__ddp_occupy(dtr_ddp *ddp, const char *entry, const char *hint);
/* Of a call `entry`. */
static inline dtr__error_context dtr__ddp_context(const dtr_ddp *ddp, const char *entry) {
    return (
        dtr__error_context){ .world = ddp->world, .operation = entry, .group = ddp->group->name };
}
/* The index of a parameter that has a gradient, shared ones as their first entry, or
 * DTR_ERR_ARG. */
const char *dtr__ddp_why_no_grad(const dtr__ddp_param *p);                  /* "frozen" */
dtr_status dtr__ddp_grad_index(dtr_ddp *ddp, const char *where, size_t *i); /* delayed ones too */
dtr_status dtr__ddp_trainable_index(dtr_ddp *ddp, const char *where, size_t *i);

/* For DTR_TRACED. */
static inline dtr__trace *dtr__ddp_trace(const dtr_ddp *ddp) {
    return ddp != NULL && ddp->magic == DTR__DDP_MAGIC ? dtr__trace_of(ddp->world) : NULL;
}
#define DTR_DDP_TRACED(ddp, call, expression)                                             \
    DTR_TRACED(dtr__ddp_trace(ddp), call, (ddp)->group != NULL ? (ddp)->group->name : "", \
               expression)

/* ---- grad.c ---- */
bool dtr__ddp_is_float(dtr_dtype d);
/* The type backward writes parameter p's gradient in. */
dtr_dtype dtr__ddp_grad_dtype(const dtr_ddp *ddp, const dtr__ddp_param *p);
/* The strides of a gradient of value t where its elements lie without gaps. */
void dtr__ddp_dense_strides(const dtr_tensor *t, int64_t *strides);
bool dtr__ddp_same_strides(const dtr_tensor *a, const dtr_tensor *b);
/* A zeroed gradient of parameter p. */
dtr_status dtr__ddp_grad_make(const dtr_ddp *ddp, const dtr__ddp_param *p, dtr_dtype dtype,
                              dtr_tensor **grad);
/* Gradient tensor of trainable parameter i, made at the first call. */
dtr_status dtr__ddp_grad_get(dtr_ddp *ddp, size_t i, dtr_tensor **grad);

/* ---- issue.c ---- */
/* One issue of a module's collective with its label, deadline and tag word. `part` is the bucket
 * index or one of these. */
enum {
    DTR__PART_MAP = 0xffff,
    DTR__PART_ORDER = 0xfffe,
    DTR__PART_SYNC = 0xfffd,
    DTR__PART_HOOK = 0xfffc,
    DTR__PART_JOIN = 0xfffb,
    DTR__PART_DELAYED = 0xfff0,
    DTR__PART_ZERO = 0xfffa,
    DTR__PART_SCALE = 0xfff9
};
uint64_t dtr__ddp_tag(const dtr_ddp *ddp, uint64_t part);
dtr_status dtr__ddp_issue(dtr_ddp *ddp, dtr__request *r, const char *label, uint64_t part,
                          dtr_work **work);
/* The same on another group, with r's tag word. */
dtr_status dtr__ddp_issue_on(dtr_ddp *ddp, dtr_group *group, dtr__request *r, const char *label,
                             dtr_work **work);
/* The average of a buffer in place, as the module's options and the iteration's divisor have it. */
dtr__request dtr__ddp_average(const dtr_ddp *ddp, dtr_buffer buffer);
/* `mine` of every rank. */
dtr_status dtr__ddp_gather(dtr_ddp *ddp, const void *mine, void *all, size_t nbytes,
                           const char *label, uint64_t part);
/* The options of a call outside of dtr__ddp_issue. */
dtr_coll_options dtr__ddp_options(const dtr_ddp *ddp, const char *label);
/* A group of the module's own beside ddp->group: "NAME.SUFFIX", same limits. */
dtr_status dtr__ddp_dup(dtr_ddp *ddp, const char *suffix, dtr_group **group);

/* ---- note.c ---- */
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
/* An error that was noted in an iteration before is one of the open iteration's. */
void dtr__ddp_note_again(dtr_ddp *ddp, const dtr__step_status *before);
/* Note the calling thread's last error where `s` is one. Returns s. */
dtr_status dtr__ddp_note_last(dtr_ddp *ddp, dtr_status s, size_t param);
void dtr__ddp_note_nan(dtr_ddp *ddp, size_t i, size_t element);

/* ---- stats.c ---- */
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
/* The same for a status that may be none. */
static inline dtr_status dtr__ddp_result(dtr_ddp *ddp, dtr_status s) {
    return s < 0 ? dtr__ddp_failed(ddp, s) : s;
}
void dtr__ddp_count(dtr_ddp *ddp, uint64_t *counter); /* one more, of stats.count */
/* Returns the number of the step. */
uint64_t dtr__ddp_count_step(dtr_ddp *ddp, const dtr_ddp_step *step);
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

#endif /* DTR_DDP_INTERNAL_H */
