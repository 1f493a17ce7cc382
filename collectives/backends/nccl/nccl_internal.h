/* The nccl backend. A call is launched by the thread that makes it, on the stream of its
 * communicator: after what the caller's stream holds by then, and with an event behind it. The
 * engine only watches that event; nothing of an operation runs on its thread. */
#ifndef DTR_NCCL_INTERNAL_H
#define DTR_NCCL_INTERNAL_H

#include "core/work.h"
#include "engine/engine.h"
#include "memory/device.h"
#include "nccl_calls.h"

typedef struct dtr__nccl_event {
    struct dtr__nccl_event *next;
    void *event;
} dtr__nccl_event;

/* Searches the inputs of an operation for NaN. */
typedef struct dtr__nccl_nan_checks dtr__nccl_nan_checks;

/* Graphs that hold operations of a communicator, for whose end NCCL's waits. Outlives both. */
typedef struct dtr__nccl_graphs {
    _Atomic int refs; /* of the communicator and of each graph */
    _Atomic int live;
} dtr__nccl_graphs;

struct dtr__nccl_comm;

/* A native call that waits for the other ranks, made by a thread of its own where communicators
 * block: the caller has a limit, and must see that its group breaks. */
typedef struct dtr__nccl_apart {
    int (*make)(struct dtr__nccl_comm *comm);
    _Atomic int stage; /* DTR__NCCL_APART_... */
    int code;          /* of the call; before its end is known */
    /* What the calls are given; turn, and constant while one is under way. */
    unsigned char id[DTR__NCCL_ID];
    int color, key;
    dtr__nccl_config config;     /* of this communicator, whatever made it */
    struct dtr__nccl_comm *into; /* of a split: whose config is taken; a reference */
    void *block, **window;
    size_t nbytes;
} dtr__nccl_apart;
enum { DTR__NCCL_APART_NONE, DTR__NCCL_APART_MADE, DTR__NCCL_APART_ENDED };

/* Of a group and a device, or of a pair of ranks and a device. Outlives the group while a handle of
 * one of its works does. Locks: `turn` of the group before `lock`. */
typedef struct dtr__nccl_comm {
    struct dtr__nccl_comm *next; /* of the group; its lock */
    _Atomic int refs;
    dtr_group *group; /* neither is read once the group has ended */
    struct dtr__nccl *owner;
    const dtr__nccl_ops *ops;
    const dtr__device_ops *cuda;
    int device;
    int low, high;        /* group ranks of a pair; -1: all members */
    int rank, size;       /* in the communicator */
    uint32_t number;      /* of this group's communicators of its kind, the same on all its ranks */
    bool local;           /* a group of one rank: a stream, and no NCCL */
    bool ready;           /* turn */
    bool replaced;        /* by another one for the same ranks; lock of the group's table */
    pthread_mutex_t lock; /* handle; one native call at a time, which may not return */
    void *handle;
    /* Where NCCL puts what is split from it, which may be as late as its end; turn, then the end.
     */
    void *split;
    dtr__nccl_apart apart;
    pthread_mutex_t pool_lock; /* idle, nan_checks; held briefly */
    dtr__nccl_event *idle;
    dtr__nccl_nan_checks *nan_checks;
    _Atomic double aborted_at;  /* monotonic seconds, 0: not yet */
    _Atomic int aborted, ended; /* to be used no more; the native end has returned */
    struct dtr__nccl_comm
        *with; /* to be ended by the same thread, which alone looks at these two */
    bool end_locked;
    void *stream;
    void *scratch[32]; /* for copies of inputs, each twice the size of the one before; turn */
    size_t scratch_size;
    int n_scratch;
    _Atomic(const char *) inside; /* the native call that a thread is in; NULL: none */
    _Atomic int64_t inside_ns;    /* since when */
    uint64_t *messages;           /* from and to each of its ranks; turn */
    uint64_t launched;            /* works; turn */
    uint64_t seen;                /* of them that have ended; progress lock */
    int64_t asked_ns;             /* last look at the communicator's state; progress lock */
    int64_t event_asked_ns;       /* and at the event of its oldest work; progress lock */
    bool captured;                /* its stream may be part of a capture; turn */
    dtr__nccl_graphs *graphs;     /* constant; NULL: it is local */
    dtr__nccl_event *kept;        /* of captured works: not to be used again; pool_lock */
    /* Memory that is registered with it (nccl_register.c). */
    dtr__nccl_blocks *blocks;          /* a reference, NULL: of none, or no longer; pool_lock */
    struct dtr__nccl_comm *next_known; /* lock of blocks */
    bool learns;                       /* of new ones; lock of blocks */
    uint64_t joined;                   /* number among those of the world; constant then */
    _Atomic uint64_t blocks_seen;      /* written with lock */
    struct dtr__nccl_registration *entries;   /* pool_lock */
    bool warned;                              /* of a failure; lock */
    struct dtr__nccl_window_set *window_sets; /* turn; its end */
    uint32_t agreements;                      /* about windows; turn */
} dtr__nccl_comm;

/* Of a group: the backend's state. */
struct dtr__nccl {
    dtr_group *group;
    const dtr__nccl_ops *ops; /* NULL: NCCL is not needed, see copies */
    const dtr__device_ops *cuda;
    dtr__nccl_config config;
    int stream_priority; /* as asked */
    bool high_priority;
    bool automatic;       /* nobody named nccl */
    bool copies;          /* one rank, automatic: copies on its stream, and not NCCL itself */
    char reason[400];     /* of `refused`, before it */
    pthread_mutex_t turn; /* of issuing: operations are launched in the order of their numbers */
    pthread_mutex_t lock; /* comms */
    dtr__nccl_comm *comms;
    uint32_t made;           /* communicators of all members; turn */
    _Atomic int refused;     /* NCCL does not take these devices: agreed */
    bool windowless;         /* NCCL makes no windows for this group: agreed; turn */
    _Atomic uint64_t paired; /* works with messages that have been numbered */
    struct {
        uint64_t paired; /* so many of them need no look any more, */
        uint64_t record; /* ... and no record up to this one */
        int64_t look_ns; /* the next look */
    } watched;           /* the watchdog's */
};

/* The kinds that NCCL serves, each with the functions of nccl_collectives.c that prepare and make
 * it. */
#define DTR__NCCL_FORMS(X)                       \
    X(BROADCAST, nothing, broadcast)             \
    X(REDUCE, nothing, reduce)                   \
    X(ALLREDUCE, nothing, allreduce)             \
    X(ALLGATHER, nothing, allgather)             \
    X(ALLGATHERV, nothing, allgather)            \
    X(GATHER, own_block, gather)                 \
    X(GATHERV, own_block, gather)                \
    X(SCATTER, own_block, scatter)               \
    X(SCATTERV, own_block, scatter)              \
    X(REDUCE_SCATTER, nothing, reduce_scatter)   \
    X(REDUCE_SCATTERV, nothing, reduce_scatterv) \
    X(ALLTOALL, exchange, alltoall)              \
    X(ALLTOALLV, exchange, alltoall)             \
    X(SEND, nothing, lone_message)               \
    X(RECV, nothing, lone_message)               \
    X(BATCH, messages, batch)
#define DTR__NCCL_KIND(KIND, preparation, function) | DTR__KIND_BIT(KIND)
#define DTR__NCCL_KINDS (0 DTR__NCCL_FORMS(DTR__NCCL_KIND))

/* What a call has before NCCL is asked for it. */
typedef struct dtr__nccl_ready_call {
    int op;         /* the communicator's, -1: none */
    const void *in; /* its input, or a copy of that */
} dtr__nccl_ready_call;

/* A work: kept in its `composite`. */
typedef struct dtr__nccl_op {
    dtr__composite composite;
    dtr__nccl_comm *comm; /* a reference */
    dtr__nccl_event *dependency, *end;
    dtr__nccl_event *start;           /* with DTR_TIMING=1 */
    uint64_t record;                  /* of the work or the scope */
    dtr__nccl_nan_checks *nan_checks; /* NULL: its inputs are not searched */
    uint64_t number;                  /* among the works of the communicator */
    _Atomic int launched;             /* `end` has been recorded */
    bool host_only;         /* a last step of the host follows: streams cannot wait for it */
    bool paired;            /* has messages that have been numbered */
    bool captured;          /* kept in a graph: its events are never polled, nor used again */
    dtr_work *whole;        /* these three until the launch: the work, or that of its scope, */
    dtr_work *const *calls; /* ... and the work itself, or the scope's calls, of which */
    size_t n;               /* ... those whose backend nccl is belong to it */
    dtr__nccl_ready_call ready[];
} dtr__nccl_op;

/* ---- nccl_backend.c ---- */
struct dtr__nccl *dtr__nccl_of(const dtr_group *g); /* NULL: it is not among its backends */
/* The right to issue; fails once the group is broken. */
dtr_status dtr__nccl_take_turn(struct dtr__nccl *n);

/* ---- nccl_capture.c ---- */
/* Whether a described work is to become part of a graph, and whether it can. */
static inline bool dtr__nccl_is_captured(const dtr_work *w) {
    return atomic_load_explicit(&w->scope.recording, memory_order_relaxed) == DTR__RECORDING_GRAPH;
}
dtr_status dtr__nccl_capture_check(const dtr_work *w, const dtr__nccl_comm *comm);
/* Whether the communicator's stream still belongs to a capture, of another stream than the call's.
 * turn held. */
dtr_status dtr__nccl_capture_over(const dtr__call *c, dtr__nccl_comm *comm);
/* The graph that the stream captures is about to hold an operation of the communicator. */
dtr_status dtr__nccl_graph_begin(const dtr__nccl_comm *comm, void *stream);
bool dtr__nccl_has_graphs(const dtr__nccl_comm *comm);
void dtr__nccl_graphs_unref(dtr__nccl_graphs *graphs);

/* ---- nccl_comm.c ---- */
/* The communicator for these ranks and this device, NULL: there is none yet. */
dtr__nccl_comm *dtr__nccl_comm_find(struct dtr__nccl *n, int device, int low, int high);
/* The same, made without NCCL's help when first asked for.
 * turn held. */
dtr_status dtr__nccl_comm_of(struct dtr__nccl *n, int device, int low, int high,
                             dtr__nccl_comm **comm);
void dtr__nccl_comm_unref(dtr__nccl_comm *comm);
/* An event that nothing has recorded since it was last given back. */
dtr_status dtr__nccl_event_take(dtr__nccl_comm *comm, dtr__nccl_event **event);
void dtr__nccl_event_give(dtr__nccl_comm *comm, dtr__nccl_event *event);
void dtr__nccl_event_keep(dtr__nccl_comm *comm, dtr__nccl_event *event); /* until comm's end */
/* Give NCCL's part up from any thread: it may not be used any more, and a short-lived thread ends
 * it. wait: at most `limit_s` seconds for that; false: the thread is left behind. */
void dtr__nccl_abort(dtr__nccl_comm *comm);
bool dtr__nccl_ended(const dtr__nccl_comm *comm, double limit_s);
/* The backend's members of these names, and its `close`. */
void dtr__nccl_stop(dtr_group *g, void *state);
void dtr__nccl_await_stop(dtr_group *g, void *state);
void dtr__nccl_close(dtr_group *g, void *state);
/* The record of a native failure, with its status. */
dtr_status dtr__nccl_failed(dtr__nccl_comm *comm, const dtr_work *w, const char *function,
                            int code);
/* Make a call that waits for other ranks: its code, or that it is in progress, until dtr__nccl_poll
 * tells how it ended. The arguments are in comm->apart, and in `into` of a split, else NULL: both
 * live until the call has returned, also if nobody waits for it any more. turn held. */
int dtr__nccl_make_apart(dtr__nccl_comm *comm, dtr__nccl_comm *into,
                         int (*make)(dtr__nccl_comm *comm));
/* After a native call: wait until the communicator has done what it was asked for. */
dtr_status dtr__nccl_settle(dtr__nccl_comm *comm, const dtr_work *w, const char *function,
                            int code);
/* Between two polls of a thread that waits while it issues: progress what can move without it.
 * Fails once the group is broken. */
dtr_status dtr__nccl_pause(dtr_group *g, dtr__backoff *backoff);
static inline bool dtr__nccl_aborted(const dtr__nccl_comm *comm) {
    return atomic_load_explicit(&comm->aborted, memory_order_acquire) != 0;
}
void dtr__nccl_nap_ms(void); /* a millisecond */
/* Take the lock for native calls; false, without it, once the communicator is used no more. */
bool dtr__nccl_enter(dtr__nccl_comm *comm);
/* State of the communicator, asked once, unless another thread is in a native call; false once it
 * is used no more. */
bool dtr__nccl_poll(dtr__nccl_comm *comm, int *code);

/* ---- nccl_connect.c ---- */
/* Make NCCL's communicator together with its other ranks; turn held. A failure breaks the group;
 * DTR_OK too where NCCL refused
 * the devices, which `refused` of the group says then. */
dtr_status dtr__nccl_connect_or_break(dtr__nccl_comm *comm);
/* The ranks give a communicator of all members up, together, and make another; turn held. A failure
 * breaks the group. */
dtr_status dtr__nccl_renew(dtr__nccl_comm *comm, dtr__nccl_comm **fresh);
/* Seconds that making a communicator may take. */
double dtr__nccl_init_limit(const dtr_group *g);
/* The record of making one, and the line about one that has been made. */
uint64_t dtr__nccl_record(const dtr_group *g, int device, const char *label);
void dtr__nccl_log_made(const dtr__nccl_comm *c, const char *how, double exchange_s,
                        double start_s);

/* ---- nccl_signature.c ---- */
/* At DTR_DEBUG=detail: wait for the other ranks of a collective that has its number, and compare;
 * DTR_OK at once otherwise. Fails once the group is broken; turn held. */
dtr_status dtr__nccl_compare(const dtr__nccl_comm *comm, const dtr_work *w);

/* ---- nccl_collectives.c ---- */
/* Everything between the stream dependency and the end event. */
dtr_status dtr__nccl_run(dtr__nccl_op *op);

/* ---- nccl_p2p.c ---- */
/* Number the messages of a work that is about to get its record; false: it has none. turn held. */
bool dtr__nccl_number(const dtr__nccl_comm *comm, dtr_work *w);
dtr_status dtr__nccl_find_mismatch(dtr_group *g, void *state, int64_t now_ns);

/* ---- nccl_register.c ---- */
/* The communicator is ready: from here on the world's blocks of its device are registered with it.
 * turn held.
 */
void dtr__nccl_blocks_join(dtr__nccl_comm *comm);
/* Before a launch: registers those that it does not know yet. turn held. */
void dtr__nccl_blocks_poll(dtr__nccl_comm *comm);
/* It is about to end: no block is added any more. Any thread, any lock; does not wait. */
void dtr__nccl_blocks_leave(dtr__nccl_comm *comm);
/* After that, before NCCL's part ends: empties the table; `native`, with lock held: at NCCL too. */
void dtr__nccl_blocks_drop(dtr__nccl_comm *comm, bool native);
/* A block of memory begins and ends; DTR_ERR_INTERNAL where it is there already, or is not. own: it
 * is memory of NCCL's allocator. */
dtr_status dtr__nccl_block_add(dtr__nccl_blocks *blocks, int device, void *ptr, size_t nbytes,
                               bool own);
dtr_status dtr__nccl_block_remove(dtr__nccl_blocks *blocks, const void *ptr);
/* A block that can become a window: of NCCL's own memory, on its device; its size. */
bool dtr__nccl_block_fits(const dtr__nccl_comm *comm, const void *ptr, size_t *nbytes);
/* From here on, as long as the communicator knows the block, it is this window of it; false: no
 * memory to note that. */
bool dtr__nccl_block_window(dtr__nccl_comm *comm, const void *ptr, void *window);
/* Of the blocks that the communicator knows: how many NCCL has registered, and has as windows. */
void dtr__nccl_blocks_count(dtr__nccl_comm *comm, uint64_t *registered, uint64_t *windows);
bool dtr__nccl_block_registered(dtr__nccl_comm *comm, const void *ptr);

/* ---- nccl_small.c ---- */
/* Blocks of less than this share slabs of NCCL's memory. take: NULL where NCCL has none; give: once
 * nothing uses the block; end: of their world. */
#define DTR__NCCL_SMALL ((size_t)1 << 20)
void *dtr__nccl_small_take(dtr_world *world, int device, size_t nbytes);
bool dtr__nccl_small_has(const void *ptr);
dtr_status dtr__nccl_small_give(void *ptr);
void dtr__nccl_small_end(const dtr_world *world);

/* ---- nccl_window.c ---- */
void dtr__nccl_window_sets_free(dtr__nccl_comm *comm);

/* ---- nccl_kernel.c ---- */
/* Whether NCCL only adds up, and the sums are divided behind it; the division of a call's output,
 * where this rank has one. */
bool dtr__nccl_divides(const dtr__call *c);
dtr_status dtr__nccl_divide(const dtr__nccl_comm *comm, const dtr__call *c);
/* Memory for searching the inputs of these works, as far as nccl serves them and they are wanted;
 * *nan_checks stays NULL where they are not. */
dtr_status dtr__nccl_nan_checks_ahead(dtr__nccl_comm *c); /* with the communicator */
dtr_status dtr__nccl_nan_checks_take(const dtr_group *g, dtr__nccl_comm *comm,
                                     dtr_work *const *works, size_t n,
                                     dtr__nccl_nan_checks **nan_checks);
dtr_status dtr__nccl_nan_checks_launch(const dtr__nccl_comm *c, dtr__nccl_nan_checks *l);
/* The end event has come: works whose input has a NaN get their status, unless they have ended. */
void dtr__nccl_nan_checks_report(const dtr__nccl_nan_checks *l);
void dtr__nccl_nan_checks_give(dtr__nccl_comm *c, dtr__nccl_nan_checks *l);
void dtr__nccl_nan_checks_free(const dtr__nccl_comm *c); /* those given back */

#endif /* DTR_NCCL_INTERNAL_H */
