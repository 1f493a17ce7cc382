/* One operation under way, and queues of them. */
#ifndef DTR_CORE_WORK_H
#define DTR_CORE_WORK_H

#include <stdatomic.h>

#include <dtr/work.h>

#include "base/error.h"
#include "core/call.h"

#define DTR__WORK_MAGIC UINT64_C(0x6474725f776f726b)

typedef enum dtr__recording_state {
    DTR__RECORDING_NOT,
    DTR__RECORDING_SCOPE, /* a combined work before the end of its scope */
    DTR__RECORDING_GRAPH  /* captured: runs with a graph of the program, never by itself */
} dtr__recording_state;
typedef struct dtr__callback dtr__callback;
typedef struct dtr__pool dtr__pool;
typedef struct dtr__scope dtr__scope;
typedef struct dtr__composite dtr__composite;

/* How long it may take. */
typedef struct dtr__work_limit {
    _Atomic double deadline; /* as dtr__now, INFINITY: none */
    _Atomic double seconds;  /* it was made of, for messages */
} dtr__work_limit;

/* What was found in its data. */
typedef struct dtr__work_input {
    dtr_status status; /* what success becomes: DTR_ERR_NAN, or what a last step of a scope's call
                          gave; the work's error is its record then; queue_lock once issued */
    size_t nan_index;
    uint64_t hash; /* with DTR_HASH=1 */
} dtr__work_input;

/* What a coalescing scope, or a graph, has made of it. */
typedef struct dtr__work_scope {
    _Atomic int recording; /* dtr__recording_state: what cannot be waited for as others can */
    uint32_t part, parts;  /* of a call in a scope: its position from 1, how many there are */
    size_t nbytes;         /* of a scope: of all its calls */
} dtr__work_scope;

/* What is told of it. */
typedef struct dtr__work_report {
    uint64_t record;  /* flight recorder number, 0: none */
    bool follows;     /* it has none because it follows others; queue_lock once it is listed */
    int64_t ended_ns; /* as call.issued_ns; set before `ended` of works that have a handle, and of
                         those that the group's hook is told of */
    bool wanted;      /* by that hook; queue_lock */
} dtr__work_report;

/* Its place among those that are to be moved. */
typedef struct dtr__work_run {
    struct dtr_work *next, *prev; /* incoming: queue_lock; running: progress lock */
    _Atomic bool linked; /* in a running list: not cancelled; written with the progress lock */
    bool bound;          /* moving it calls MPI, or a function of the program; progress lock */
} dtr__work_run;

/* What it holds, and where its memory comes from. */
typedef struct dtr__work_memory {
    dtr__pool *pool; /* where it goes back to; outlives the group */
    void *arrays;    /* storage of the call's counts or batch, kept for reuse */
    size_t size;
    /* NULL; or a message's that described it, and the number this had then: most of it is right for
     * the next one, for which it is kept; the one who has the work alone. */
    struct dtr__fast_path *like;
    uint64_t like_id;
    bool holds_op; /* its operator is the program's and stays until it ends; with `ended`, or the
                      one who has it alone */
} dtr__work_memory;

struct dtr_work {
    uint64_t magic;
    _Atomic int refs;  /* one of the handle (or the blocked caller), one of the engine */
    _Atomic int ended; /* set under queue_lock by its one ender: status, error, source are final */
    _Atomic int done;  /* set last, with release, when the callbacks have run */
    dtr_status status;
    dtr__error_copy *error;
    dtr_group *group; /* not touched any more once done */
    dtr_world *world;
    dtr__call call;
    dtr__finish *finish; /* taken out by the one who runs it; progress lock */
    uint64_t seq;        /* collective number or p2p count, from 1 */
    uint64_t issue;      /* position among all works of the group on this rank, from 1 */
    _Atomic int source;  /* group rank, set by the backend of a receive before it is done */
    dtr__work_report report;
    dtr__work_limit limit;
    const struct dtr__backend *backend;
    void *backend_state;
    void *request; /* the backend's, NULL when it needs none; progress lock */
    bool started;  /* handed to the backend; progress lock */
    bool moved;    /* set by the backend in progress when data moved without finishing: the waiter
                      then polls on instead of napping; progress lock */
    bool inline_call;
    bool paired; /* messages whose fingerprint is their number, equal at both ends; those of a batch
                    are where the numbers of their records will be */
    dtr__work_input input;
    dtr__composite *composite; /* NULL, or what a work made of other works consists of */
    dtr__work_scope scope;
    dtr__callback *callbacks;     /* queue_lock, closed by `ended` */
    struct dtr_work *next, *prev; /* in the engine's list of unfinished works; queue_lock */
    dtr__work_run run;
    dtr__work_memory memory;
};

typedef struct dtr__queue {
    dtr_work *head, *tail;
} dtr__queue;

/* Error context of an operation for DTR_FAIL. */
dtr__error_context dtr__work_context(const dtr_work *w);

/* "allreduce #17 f32 x 1024 sum 'grad.3' group 'world'" into `text`; returns text. */
const char *dtr__work_title(const dtr_work *w, char *text, size_t cap);

#endif /* DTR_CORE_WORK_H */
