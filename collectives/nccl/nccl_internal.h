/* The nccl backend. A call is launched by the thread that makes it, on the stream of its
 * communicator: after what the caller's stream holds by then, and with an event behind it. The
 * engine only watches that event; nothing of an operation runs on its thread. */
#ifndef DTR_NCCL_INTERNAL_H
#define DTR_NCCL_INTERNAL_H

#include "engine.h"
#include "nccl/nccl_calls.h"
#include "rt_device.h"

typedef struct dtr__nccl_event {
    struct dtr__nccl_event *next;
    void *event;
} dtr__nccl_event;

/* Looks at the inputs of an operation for NaN. */
typedef struct dtr__nccl_looks dtr__nccl_looks;

/* Of a group and a device, or of a pair of ranks and a device. Outlives the group while a handle of
 * one of its works does. Locks: `turn` of the group before `lock`. */
typedef struct dtr__nccl_comm {
    struct dtr__nccl_comm *next; /* of the group; its lock */
    _Atomic int refs;
    dtr_group *group; /* not looked at once the group has ended */
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
    pthread_mutex_t pool_lock; /* idle, looks; held briefly */
    dtr__nccl_event *idle;
    dtr__nccl_looks *looks;
    _Atomic double aborted_at;  /* monotonic seconds, 0: not yet */
    _Atomic int aborted, ended; /* to be used no more; the native end has returned */
    struct dtr__nccl_comm
        *with; /* to be ended by the same thread, which alone looks at these two */
    bool end_locked;
    void *stream;
    void *room[32]; /* for copies of inputs, each twice the size of the one before; turn */
    size_t room_size;
    int n_rooms;
    _Atomic(const char *) inside; /* the native call that a thread is in; NULL: none */
    _Atomic int64_t inside_ns;    /* since when */
    uint64_t *messages;           /* from and to each of its ranks; turn */
    uint64_t launched;            /* works; turn */
    uint64_t seen;                /* of them that have ended; progress lock */
    int64_t asked_ns;             /* last look at the communicator's state; progress lock */
    bool captured;                /* its stream may be part of a capture; turn */
    dtr__nccl_event *kept;        /* of captured works: not to be used again; pool_lock */
    /* Memory that it is told of (nccl_register.c). */
    dtr__nccl_blocks *blocks;         /* a reference, NULL: of none, or no longer; pool_lock */
    struct dtr__nccl_comm *next_told; /* lock of blocks */
    bool learns;                      /* of new ones; lock of blocks */
    uint64_t joined;                  /* number among those of the world; constant then */
    _Atomic uint64_t blocks_seen;     /* written with lock */
    struct dtr__nccl_registration *entries; /* pool_lock */
    bool told;                              /* of a failure; lock */
    struct dtr__nccl_places *places;        /* turn; its end */
    uint32_t meetings;                      /* about windows; turn */
} dtr__nccl_comm;

struct dtr__nccl {
    dtr_group *group;
    const dtr__nccl_ops *ops; /* NULL: NCCL cannot serve this group, for this reason */
    const dtr__device_ops *cuda;
    dtr__nccl_config config;
    char reason[400];
    pthread_mutex_t turn; /* of issuing: operations are launched in the order of their numbers */
    pthread_mutex_t lock; /* comms, warned */
    dtr__nccl_comm *comms;
    const char *warned[8]; /* reasons that have been told */
    uint32_t made;         /* communicators of all members; turn */
    _Atomic int refused;   /* NCCL does not take these devices: agreed */
    bool windowless;       /* NCCL makes no windows for this group: agreed; turn */
};

/* What a call has before NCCL is asked for it. */
typedef struct dtr__nccl_ready_call {
    int op;         /* the communicator's, -1: none */
    const void *in; /* its input, or a copy of that */
} dtr__nccl_ready_call;

/* A work: kept in its `composite`. */
typedef struct dtr__nccl_op {
    dtr__composite composite;
    dtr__nccl_comm *comm; /* a reference */
    dtr__nccl_event *fence, *end;
    dtr__nccl_event *start;      /* with DTR_TIMING=1 */
    uint64_t record;             /* of the work or the scope */
    dtr__nccl_looks *looks;      /* NULL: its inputs are not looked at */
    uint64_t number;             /* among the works of the communicator */
    _Atomic int launched;        /* `end` has been recorded */
    dtr__nccl_ready_call *ready; /* of a scope: room for its calls */
    bool host_only;              /* a last step of the host follows: streams cannot wait for it */
    bool paired;                 /* has messages that have been numbered */
    bool captured; /* kept in a graph: its events are never looked at, nor used again */
} dtr__nccl_op;

/* ---- nccl_backend.c ---- */
/* The right to issue; fails once the group is broken. */
dtr_status dtr__nccl_take_turn(dtr_group *g);
/* A described work without a number. turn held for these two. */
dtr_status dtr__nccl_make_work(dtr_group *g, dtr__nccl_comm *c, const dtr__call *call,
                               const dtr__request *r, dtr_work **work);
/* Behind what the caller's stream holds now, with the end event behind it. */
dtr_status dtr__nccl_launch(dtr__nccl_comm *c, dtr_work *w);
/* Ranks of the communicator that serves a call; -1: all. */
void dtr__nccl_ranks_of(const dtr_group *g, const dtr__call *c, int *low, int *high);

/* ---- nccl_capture.c ---- */
/* Whether the call's stream captures a graph. Asked before anything else is done (AB4). */
dtr_status dtr__nccl_capture_look(const dtr_group *g, const dtr__call *c, bool *captured);
dtr_status dtr__nccl_capture_issue(dtr_group *g, const dtr__call *c, const dtr__request *r,
                                   const char *site, dtr_work **work);
/* Whether the communicator's stream still belongs to a capture, of another stream than the call's.
 * turn held. */
dtr_status dtr__nccl_capture_over(const dtr_group *g, const dtr__call *c, dtr__nccl_comm *comm);

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
void dtr__nccl_abort_all(struct dtr__nccl *n);
/* The record of a native failure, with its status. */
dtr_status dtr__nccl_failed(dtr__nccl_comm *comm, const dtr_work *w, const char *function,
                            int code);
/* After a native call: wait until the communicator has done what it was asked for. */
dtr_status dtr__nccl_settle(dtr__nccl_comm *comm, const dtr_work *w, const char *function,
                            int code);
/* Take the lock for native calls; false, without it, once the communicator is used no more. */
bool dtr__nccl_enter(dtr__nccl_comm *comm);
/* State of the communicator, one look, unless another thread is in a native call; false once it is
 * used no more. */
bool dtr__nccl_look(dtr__nccl_comm *comm, int *code);

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
void dtr__nccl_tell(const dtr__nccl_comm *c, const char *how, double exchange_s, double start_s);

/* ---- nccl_detail.c ---- */
/* At DTR_DEBUG=detail: wait for the other ranks of a collective that has its number, and compare;
 * DTR_OK at once otherwise. Fails once the group is broken; turn held. */
dtr_status dtr__nccl_meet(const dtr__nccl_comm *comm, const dtr_work *w);

/* ---- nccl_move.c ---- */
/* Everything between the fence and the end event. */
dtr_status dtr__nccl_run(dtr__nccl_comm *comm, dtr_work *w);
/* The same for those of the calls of a scope whose backend nccl is, in one native group. `ready`
 * has room for `n`. */
dtr_status dtr__nccl_run_all(dtr__nccl_comm *comm, dtr_work *whole, dtr_work *const *calls,
                             size_t n, dtr__nccl_ready_call *ready);

/* ---- nccl_pairs.c ---- */
/* Number the messages of a work that is about to get its record; false: it has none. turn held. */
bool dtr__nccl_number(const dtr__nccl_comm *comm, dtr_work *w);

/* ---- nccl_register.c ---- */
/* The communicator is ready: from here on it is told of the world's blocks of its device. turn
 * held.
 */
void dtr__nccl_blocks_join(dtr__nccl_comm *comm);
/* Before a launch: of those that it has not been told of yet. turn held. */
void dtr__nccl_blocks_look(dtr__nccl_comm *comm);
/* It is about to end: no block is added any more. Any thread, any lock; does not wait. */
void dtr__nccl_blocks_leave(dtr__nccl_comm *comm);
/* After that, before NCCL's part ends: empties the table; `native`, with lock held: at NCCL too. */
void dtr__nccl_blocks_drop(dtr__nccl_comm *comm, bool native);
/* A block of memory begins and ends; DTR_ERR_INTERNAL where it is there already, or is not. */
/* own: it is memory of NCCL's allocator. */
dtr_status dtr__nccl_block_add(dtr__nccl_blocks *blocks, int device, void *ptr, size_t nbytes,
                               bool own);
dtr_status dtr__nccl_block_remove(dtr__nccl_blocks *blocks, const void *ptr);
/* A block that can become a window: of NCCL's own memory, on this device; its size. */
bool dtr__nccl_block_fits(dtr__nccl_blocks *blocks, int device, const void *ptr, size_t *nbytes);
/* From here on, as long as the communicator knows the block, it is this window of it; false: no
 * memory to note that. */
bool dtr__nccl_block_window(dtr__nccl_comm *comm, const void *ptr, void *window);
/* Of the blocks that the communicator knows: how many NCCL has registered, and has as windows. */
void dtr__nccl_blocks_count(dtr__nccl_comm *comm, uint64_t *registered, uint64_t *windows);
bool dtr__nccl_block_registered(dtr__nccl_comm *comm, const void *ptr);

/* ---- nccl_window.c ---- */
void dtr__nccl_places_free(dtr__nccl_comm *comm);

/* ---- nccl_use.c ---- */
bool dtr__device_memory_used(dtr_world *world, const void *block, size_t nbytes);

/* ---- nccl_kernel.c ---- */
/* Whether NCCL only adds up, and the sums are divided behind it; the division of a call's output,
 * where this rank has one. */
bool dtr__nccl_divides(const dtr__call *c);
dtr_status dtr__nccl_divide(const dtr__nccl_comm *comm, const dtr__call *c);
/* Memory for looks at the inputs of these works, as far as nccl serves them and they are wanted;
 * *looks stays NULL where they are not. */
dtr_status dtr__nccl_looks_for(const dtr_group *g, dtr__nccl_comm *comm, dtr_work *const *works,
                               size_t n, dtr__nccl_looks **looks);
dtr_status dtr__nccl_looks_launch(const dtr__nccl_comm *comm, dtr__nccl_looks *looks);
/* The end event has come: works whose input has a NaN get their status, unless they have ended. */
void dtr__nccl_looks_tell(const dtr__nccl_looks *looks);
void dtr__nccl_looks_give(dtr__nccl_comm *comm, dtr__nccl_looks *looks);
void dtr__nccl_looks_free(const dtr__nccl_comm *comm); /* those given back */

/* ---- nccl_choice.c ---- */
/* Whether every member is to have windows, and its NCCL can make them. */
bool dtr__nccl_windows_wanted(const dtr_group *g);
/* Whether nccl serves a group at all, and a call; where it does not, `why` says for what reason. */
bool dtr__nccl_serves_group(const dtr_group *g, const char **why);
bool dtr__nccl_serves(const dtr_group *g, const dtr__call *c, const char **why);
/* A group of one rank that names no backend: a copy on its stream, and not NCCL itself. */
static inline bool dtr__nccl_alone(const dtr_group *g) {
    return g->size == 1 && g->cuda_use == 'a';
}

#endif /* DTR_NCCL_INTERNAL_H */
