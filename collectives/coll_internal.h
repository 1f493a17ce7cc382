/* What the parts of the collectives layer share: the description of one call, the work under way,
 * the group, and the interface every backend folder implements. */
#ifndef DTR_COLL_INTERNAL_H
#define DTR_COLL_INTERNAL_H

#include <stdatomic.h>

#include <dtr/coll.h>

#include "latch.h"
#include "rt_world.h"

typedef enum dtr__kind {
    DTR__K_BROADCAST,
    DTR__K_REDUCE,
    DTR__K_ALLREDUCE,
    DTR__K_ALLGATHER,
    DTR__K_ALLGATHERV,
    DTR__K_GATHER,
    DTR__K_GATHERV,
    DTR__K_SCATTER,
    DTR__K_SCATTERV,
    DTR__K_REDUCE_SCATTER,
    DTR__K_REDUCE_SCATTERV,
    DTR__K_ALLTOALL,
    DTR__K_ALLTOALLV,
    DTR__K_BARRIER,
    DTR__K_SEND,
    DTR__K_RECV,
    DTR__K_BATCH,
    DTR__K_COALESCED,     /* a scope with a collective; backends see its calls only */
    DTR__K_COALESCED_P2P, /* a scope without */
    DTR__K_BROADCAST_BYTES,
    DTR__K_ALLGATHER_BYTES,
    DTR__K_GATHER_BYTES,
    DTR__K_SCATTER_BYTES,
    DTR__K_SEND_BYTES,
    DTR__K_RECV_BYTES,
    DTR__K_MONITORED_BARRIER,
    DTR__K_SPARSE_ALLREDUCE, /* tensor layer */
    DTR__K_CONNECT,          /* making a communicator of a device: a record, no work */
    DTR__K_COUNT
} dtr__kind;

const char *dtr__kind_name(dtr__kind k);  /* "reduce_scatterv" */
const char *dtr__kind_entry(dtr__kind k); /* "dtr_reduce_scatterv" */
const char *dtr__op_name(dtr_op op);      /* "premul_sum" */
static inline bool dtr__kind_is_p2p(dtr__kind k) {
    return k == DTR__K_SEND || k == DTR__K_RECV || k == DTR__K_BATCH || k == DTR__K_COALESCED_P2P ||
           k == DTR__K_SEND_BYTES || k == DTR__K_RECV_BYTES;
}

static inline bool dtr__kind_reduces(dtr__kind k) {
    return k == DTR__K_REDUCE || k == DTR__K_ALLREDUCE || k == DTR__K_REDUCE_SCATTER ||
           k == DTR__K_REDUCE_SCATTERV;
}

/* One checked operation. Arrays are owned by the work. The single-buffer calls (broadcast, send,
 * recv) have in == out. */
typedef struct dtr__call {
    dtr__kind kind;
    dtr_dtype dtype;
    dtr_op op;
    int root; /* root or peer, -1 where none, DTR_ANY_SOURCE */
    int tag;
    const void *in;
    void *out;
    size_t in_count, out_count; /* elements */
    size_t *in_counts,
        *out_counts; /* [N] of the v-forms; see dtr__blocks_in/out, which serve equal forms too */
    dtr_p2p *batch;
    size_t n_batch;
    dtr_device device;         /* of the buffers; the host where there is none */
    void *stream;              /* the caller's, of buffers on a device */
    const void *premul_device; /* factor of PREMUL_SUM on that device; NULL: it is premul */
    int divisor;               /* of AVG: the group size, unless a layer above gave another */
    double premul;             /* factor of PREMUL_SUM, premul_device resolved; 1 otherwise */
    double timeout_s;
    const char *file; /* call site: file:line, or return address when file is NULL */
    int line;
    void *return_address;
    char label[40];
    int64_t issued_ns;    /* monotonic; set by the engine */
    uint64_t fingerprint; /* what ranks must agree on: kind, dtype, op, root, counts as the table in
                             dtr/coll.h says, tag word */
    const struct dtr__call *told; /* NULL, or the program's call that this one is a step of: what
                                     messages speak of */
} dtr__call;
static inline const dtr__call *dtr__call_told(const dtr__call *c) {
    return c->told != NULL ? c->told : c;
}

/* Element count and offset of rank i's block on the side that is cut into blocks (equal and v-forms
 * alike). */
typedef struct dtr__blocks {
    const size_t *counts; /* NULL: equal blocks */
    size_t equal;
} dtr__blocks;
static inline size_t dtr__block_count(const dtr__blocks *b, int i) {
    return b->counts != NULL ? b->counts[i] : b->equal;
}
static inline size_t dtr__block_offset(const dtr__blocks *b, int i) {
    if (b->counts == NULL) {
        return b->equal * (size_t)i;
    }
    size_t at = 0;
    for (int j = 0; j < i; j++) {
        at += b->counts[j];
    }
    return at;
}
dtr__blocks dtr__blocks_in(const dtr__call *c,
                           int size); /* scatter(v), reduce_scatter(v), alltoall(v) */
dtr__blocks dtr__blocks_out(const dtr__call *c,
                            int size); /* allgather(v), gather(v), alltoall(v) */

/* A last step of an operation, given by a layer above (a strided tensor is unpacked, temporary
 * memory freed). dtr__coll_issue takes it over when it returns DTR_OK or the call has got its
 * number; a refused call leaves it with the caller. The engine calls fn exactly once, under the
 * group's progress lock: after success before the work counts as ended, and a negative result (with
 * error record) then becomes the status of this work alone; after a failure with that status, once
 * nothing can touch the buffers any more, at the latest when the group is closed. fn frees `self`,
 * must not block and must not call into the group. */
typedef struct dtr__finish {
    dtr_status (*fn)(struct dtr__finish *self, dtr_status status);
    struct dtr__finish *next; /* the engine's: failed ones wait in group->late */
    bool taken;               /* set by the engine when it takes the step over */
} dtr__finish;

/* Memory that a call reads or writes outside its buffers. */
typedef struct dtr__touch {
    const void *data;
    size_t nbytes;
    bool writes;
} dtr__touch;

/* What a public call was given, unchecked: filled by coll_api.c and by layers above, which may set
 * `tag_word`. Single-buffer calls give `in` only. */
typedef struct dtr__request {
    dtr__kind kind;
    dtr_op op;
    int root; /* root or peer */
    int tag;
    dtr_buffer in, out;
    const size_t *in_counts, *out_counts;
    const dtr_p2p *batch;
    size_t n_batch;
    const dtr_coll_options *options;
    uint64_t tag_word;         /* part of the fingerprint; 0 in public calls */
    int divisor;               /* of AVG, equal on all ranks; 0: the group size */
    dtr__finish *finish;       /* NULL: no last step */
    const char *name;          /* for messages; NULL: the kind's */
    const dtr__touch *touched; /* strided tensors whose packed copies the buffers are: what calls of
                                  a scope must not share */
    size_t n_touched;
    void *return_address; /* of the public call */
} dtr__request;

/* The one way into the engine: handle and membership, broken group, arguments (coll_check.c), then
 * issue. `work` NULL blocks until complete. */
dtr_status dtr__coll_issue(dtr_group *group, const dtr__request *r, dtr_work **work);

/* Check arguments in the order of dtr/coll.h and describe the call; nothing is changed on failure.
 * Arrays and batch of `c` still point at the caller's. Needs group->rank, size and name only. */
dtr_status dtr__coll_check(const dtr_group *group, const dtr__request *r, bool blocking,
                           dtr__call *c);
/* Whether its buffers are on a device, as far as one look shows before the check. */
bool dtr__request_on_device(const dtr__request *r);
/* The first of these steps (options; enum ranges; root, peer, tag) for a layer above that looks at
 * pointers, devices, layout and shapes itself before it hands buffers on. */
dtr_status dtr__coll_check_head(const dtr_group *group, const dtr__request *r, bool blocking);

/* DTR_OK for a live handle; DTR_NOT_MEMBER for NULL, with one warning per `entry` (name of the
 * public call) and process; DTR_ERR_STATE for a destroyed one. Whether the group is broken is not
 * looked at. In group.c. */
dtr_status dtr__group_check(const dtr_group *group, const char *entry);
/* Refuses what would be issued once the end of the group has begun on this rank. */
dtr_status dtr__group_ending(const dtr_group *group, const char *entry);

/* ---- work ---- */
typedef enum dtr__recording_state {
    DTR__RECORDING_NOT,
    DTR__RECORDING_SCOPE, /* a combined work before the end of its scope */
    DTR__RECORDING_GRAPH  /* captured: runs with a graph of the program, never by itself */
} dtr__recording_state;
typedef struct dtr__callback dtr__callback;
typedef struct dtr__pool dtr__pool;
typedef struct dtr__scope dtr__scope;
typedef struct dtr__composite dtr__composite;
struct dtr_work {
    uint64_t magic;
    _Atomic int refs; /* one of the handle (or the blocked caller), one of the engine */
    _Atomic int
        ended;        /* set under queue_lock by the one who ends it: status, error, source final */
    _Atomic int done; /* set last, with release, when the callbacks have run */
    dtr_status status;
    dtr__error_copy *error;
    dtr_group *group; /* not touched any more once done */
    dtr_world *world;
    dtr__call call;
    dtr__finish *finish;     /* taken out by the one who runs it; progress_lock */
    uint64_t seq;            /* collective number or p2p count, from 1 */
    uint64_t issue;          /* position among all works of the group on this rank, from 1 */
    _Atomic int source;      /* group rank, set by the backend of a receive before it is done */
    uint64_t hash_in;        /* with DTR_HASH=1 */
    uint64_t record;         /* flight recorder number */
    _Atomic double deadline; /* absolute monotonic seconds, INFINITY: none */
    _Atomic double limit;    /* the seconds it was made of, for messages */
    const struct dtr__backend *backend;
    void *backend_state;
    void *request; /* the backend's, NULL when it needs none; guarded by progress_lock */
    bool started;  /* handed to the backend; progress_lock */
    bool moved;    /* set by the backend in progress when data moved without finishing: the waiter
                      then polls on instead of napping; progress_lock */
    bool linked;   /* in a running list; progress_lock */
    bool inline_call;
    bool paired; /* messages whose fingerprint is their number, equal at both ends; those of a batch
                    are where the numbers of their records will be */
    dtr_status own_status; /* what success becomes: DTR_ERR_NAN, or what a last step of a scope's
                              call gave; `error` is its record then */
    size_t nan_index;
    dtr__composite *composite; /* NULL, or what a work made of other works consists of */
    _Atomic int recording;     /* dtr__recording_state: what cannot be waited for as others can */
    uint32_t part, parts; /* of a call in a scope: its position from 1, and how many there are */
    dtr__callback *callbacks;             /* guarded by queue_lock, closed by `ended` */
    struct dtr_work *next, *prev;         /* in group->works; queue_lock */
    struct dtr_work *run_next, *run_prev; /* incoming: queue_lock; running: progress_lock */
    dtr__pool *pool;                      /* where its memory goes back to; outlives the group */
    void *arrays; /* storage of the call's counts or batch, kept for reuse */
    size_t arrays_size;
};

/* ---- backend interface ----
 * A backend turns calls into finished calls without ever blocking: `start` begins one, `progress`
 * moves it. The engine calls them under the group's progress lock, one thread at a time per group.
 * Collectives of a group are started strictly in issue order and at most one is under way per group
 * (several p2p may be), so a backend needs no ordering of its own. Buffers, counts and operators
 * have been checked. NULL members are optional and mean "nothing to do". */
struct dtr__repeat;
struct dtr__moves;
typedef struct dtr__backend {
    const char *name;
    dtr_device_type device;
    bool overlaps; /* its collectives are watched all at once, as messages are */
    bool asks_mpi; /* each look at a repeated collective that has not finished calls MPI */
    /* 0: cannot serve this call (why, if given, says so in a few words); else preference, highest
     * wins under auto. `call` NULL asks for the group as a whole. */
    int (*score)(const dtr_group *group, const dtr__call *call, const char **why);
    /* Per-group state, made inside group creation: all members are here, group->comm is ready. */
    dtr_status (*open)(dtr_group *group, void **state);
    void (*close)(dtr_group *group, void *state);
    /* Begin w->call. *done true: already finished (small or local). An error breaks the group;
     * then, as after *done, w->request must be NULL again and cancel is not called. */
    dtr_status (*start)(dtr_group *group, void *state, dtr_work *w, bool *done);
    dtr_status (*progress)(dtr_group *group, void *state, dtr_work *w, bool *done);
    /* Give up an unfinished work (deadline, abort, destroy): cancel what can be cancelled, free
     * what no transport can touch any more, leave the rest with a warning naming it. */
    void (*cancel)(dtr_group *group, void *state, dtr_work *w);
    /* The group is broken, and its works are about to end: from then on their buffers are the
     * program's again, though another thread may still be inside `progress`. Tell the ranks that
     * read them not to trust what they read. Any thread, with queue_lock, and the progress lock or
     * not: it reads what `open` has made and writes atomics only. Optional. */
    void (*withdraw)(dtr_group *group, void *state);
    /* A coalescing scope on this backend alone: its calls are all started between these two. `end`
     * may leave whole->request, which stands for the calls that left none; progress and cancel take
     * the whole then. Both or neither, optional. */
    dtr_status (*coalesce_begin)(dtr_group *group, void *state, dtr_work *whole);
    dtr_status (*coalesce_end)(dtr_group *group, void *state, dtr_work *whole);
    /* What an unfinished work waits for, as far as this rank can know, for the message of a
     * time-out: "rank 2 (world 5) has not sent its part". Returns text, "" when nothing is known.
     * Optional. */
    const char *(*waits_for)(dtr_group *group, void *state, dtr_work *w, char *text, size_t cap);
    /* Small operations that are called again and again (repeat.h), all four or none. accept: can
     * this call be repeated, and what goes where. post: begin it with the data of p->call; false:
     * nothing was begun, it is to start as others do. look: 1 when it has finished; 0 while others
     * have not come; -1 when the engine must see to it. go_on: from here on it is an ordinary
     * started work. */
    bool (*repeat_accept)(dtr_group *group, void *state, const dtr__call *c, struct dtr__moves *m);
    bool (*repeat_post)(dtr_group *group, void *state, const struct dtr__repeat *p);
    int (*repeat_look)(dtr_group *group, void *state, const struct dtr__repeat *p);
    void (*repeat_go_on)(dtr_group *group, void *state, dtr_work *w);
} dtr__backend;

/* Whether inputs of such a call are to be looked at for NaN on this rank. */
bool dtr__wants_nan_check(const dtr_group *g, const dtr__call *c);

extern const dtr__backend dtr__backend_self; /* collectives/self/ */
extern const dtr__backend dtr__backend_mpi;  /* collectives/mpi/ */
extern const dtr__backend dtr__backend_shm;  /* collectives/shm/ */
extern const dtr__backend dtr__backend_hier; /* collectives/hier/ */

/* ---- group ---- */
enum { DTR__MAX_BACKENDS = 8, DTR__WORLD_UID = 1 };
typedef struct dtr__queue {
    dtr_work *head, *tail;
} dtr__queue;

struct dtr_group {
    uint64_t magic; /* DTR__GROUP_MAGIC while live, DTR__GROUP_GONE until its world ends */
    dtr_world *world;
    uint32_t id;   /* per world, from 1; equal on members only by accident */
    uint64_t uid;  /* agreed at creation: equal on all members, never used twice in a world; not 0,
                      which says "of no group" in tables and messages */
    MPI_Comm comm; /* members in group-rank order, errors returned */
    int rank, size;
    int *world_ranks;
    int *told_ranks; /* NULL, or the ranks messages give: those of the group this is a part of */
    char name[64];
    char *desc, *tag, *backend_asked, *backend_chosen;
    int tag_refs;
    _Atomic(dtr__scope *) scope; /* open coalescing scope; written by its owner thread */
    double timeout_s;            /* CPU default resolved: call option 0 falls back to this */
    double timeout_cuda_s;
    dtr_device device; /* its own, else the world's */
    bool deterministic, is_world;
    bool bound;  /* the device was named: CUDA buffers live there */
    bool listed; /* false: a duplicate, which no list, count or look-up of the world shows */
    int nan_check;
    /* Candidates for CPU calls in descending preference, with their state. */
    const dtr__backend *backend[DTR__MAX_BACKENDS];
    void *backend_state[DTR__MAX_BACKENDS];
    int n_backends;
    bool explicit_backend;     /* named: never falls back */
    char cuda_use;             /* device buffers: 'a' automatic, 'n' nccl, 's' stage, 0 none */
    struct dtr__nccl *nccl;    /* NULL: 'n' and 'a' have no device here */
    struct dtr__stage *stages; /* of the stage backend, one per device; queue_lock */
    /* While the group is being made: the caller's, and the group it is a part of, if any. */
    const dtr_group_options *options;
    const dtr_group *parent;

    _Atomic uint64_t seq, p2p_seq;
    _Atomic uint64_t monitored; /* monitored barriers entered */
    _Atomic uint64_t errors;    /* works that ended with one */
    _Atomic uint64_t comms_by_init, comms_by_split;
    _Atomic int status;                    /* DTR_OK or what broke it; the first wins */
    _Atomic bool ending;                   /* its end has begun here: nothing more is issued */
    dtr__error_copy *error;                /* set before status */
    _Atomic(dtr__error_copy *) accusation; /* what this rank says broke it, NULL: nothing yet */
    _Atomic int accused;                   /* with which status; before accused_ns */
    _Atomic int64_t accused_ns;            /* when it had said so, 0: not yet */
    _Atomic int lost;     /* world rank + 1 of the member whose death broke it, 0: none */
    _Atomic int nan_told; /* they know that this rank gave NaN */
    _Atomic int told;     /* the other members know that it is broken, or told us */

    /* Engine (engine.c). queue_lock: works, incoming, callbacks, counters; held briefly, never
     * while a backend runs. progress_lock: the running lists, backend state and requests; whoever
     * holds it moves the group. Order: progress_lock before queue_lock. Below MPI_THREAD_MULTIPLE
     * all groups of a world share the world group's progress_lock, which `progress` points to. */
    pthread_mutex_t queue_lock;
    dtr__latch progress_lock, *progress;
    dtr__queue works;    /* all unfinished works, issue order; queue_lock */
    dtr__queue incoming; /* issued, not yet taken into a running list, by run_next; queue_lock */
    dtr__queue collectives, p2p; /* running lists in issue order, first collective under way */
    _Atomic int active;     /* works in incoming and the running lists, inline calls excepted */
    int running;            /* those of them in the running lists; progress_lock */
    _Atomic int open_works; /* issued asynchronously, callbacks not yet run */
    dtr_work *p2p_unstarted, *p2p_cursor; /* first not started; next to be polled; progress_lock */
    dtr_work *spare;                      /* kept for the next blocking call; progress_lock */
    struct dtr__repeats *repeats;         /* NULL until the first; progress_lock */
    dtr__rec_run run;                     /* of repeats; progress_lock */
    _Atomic uint64_t issued;              /* works of this rank */
    _Atomic uint64_t paired;              /* of them, messages that have been numbered */
    double next_deadline;                 /* no running work expires before; progress_lock */
    atomic_bool sooner;                   /* a work's limit was shortened since it was found */
    uint32_t passes;                      /* progress_lock */
    bool engine_open;                     /* progress_lock */
    _Atomic int waiters; /* callers that poll this group: the progress thread leaves it alone */
    dtr__pool *pool;
    dtr__poller poller;
    struct {
        uint64_t warned, agreed; /* newest operation told to be slow; collective all agree on */
        int64_t look_ns,
            odd_ns;    /* the next comparison; since when ranks disagree, 0: they do not */
        uint64_t last; /* the newest collective when no one was open, since last_ns */
        int64_t last_ns;
        bool told; /* that it is broken */
        /* So many numbered messages are no longer looked at; no record up to `pair` is; next look
         */
        uint64_t paired, pair;
        int64_t pair_ns;
    } watched;         /* watch.c; lock of the world's groups */
    dtr__finish *late; /* last steps of failed works, run by dtr__engine_close; queue_lock */
    struct dtr_group *next, *prev; /* in the world's list, creation order */
};

/* What people are shown: 0 is the world's own group. */
static inline uint64_t dtr__group_number(const dtr_group *g) {
    return g->uid - DTR__WORLD_UID;
}

static inline int dtr__rank_told(const dtr_group *g, int rank) {
    return g->told_ranks != NULL ? g->told_ranks[rank] : rank;
}

#define DTR__GROUP_MAGIC UINT64_C(0x6474725f67726f75)

/* For DTR_TRACED. */
static inline dtr__trace *dtr__group_trace(const dtr_group *group) {
    return group != NULL && group->magic == DTR__GROUP_MAGIC ? group->world->trace : NULL;
}
#define DTR__GROUP_GONE UINT64_C(0x6474725f676f6e65)
#define DTR__WORK_MAGIC UINT64_C(0x6474725f776f726b)

/* World side of the groups (group_create.c): the world's own group, names, tombstones. */
dtr_status dtr__groups_open(dtr_world *world);
dtr_status dtr__groups_close(dtr_world *world, bool mpi_alive, const void *return_address);

/* Duplicate a group for a layer above (same members, own communicator, not listed, no name used).
 * Collective. */
dtr_status dtr__group_dup(dtr_group *group, const char *name, dtr_group **dup);

/* Break a group: every unfinished work ends with `s` and the calling thread's error record. The
 * first break wins. Any thread, no lock of the group held. dtr_group_abort is made of it. */
void dtr__group_break(dtr_group *group, dtr_status s);

/* Engine side of a group's life, for group creation and destruction. open: the group's facts and
 * backends are ready; `world_group` is the world's own (the group itself when it is that).
 * Operations are legal from then on. drain: finish everything issued and all callbacks, at most
 * `limit_s` seconds; then the group is aborted and the result DTR_ERR_TIMEOUT. On a broken group it
 * only cleans up. close: after drain; cancels what is left, and no thread touches the group any
 * more; DTR_ERR_TIMEOUT where one is still inside it after `limit_s`: the group stays as it is, and
 * the world can only be abandoned unless that thread comes back. Handles of works stay valid.
 * patience: how long to wait for such a thread, of which `left_s` are left of a healthy group's
 * limit. */
dtr_status dtr__engine_open(dtr_group *group, dtr_group *world_group);
dtr_status dtr__engine_drain(dtr_group *group, double limit_s);
dtr_status dtr__engine_close(dtr_group *group, double limit_s);
double dtr__engine_patience(const dtr_group *group, double left_s);

/* A call that needs an answer at once and cannot be recorded: DTR_OK where no scope is open; else
 * DTR_ERR_STATE, which aborts the scope unless another thread owns it. */
dtr_status dtr__scope_refuse(dtr_group *group, const char *entry);
/* For a layer above that refuses calls itself. look: DTR_OK unless an open scope takes no call from
 * this thread (DTR_ERR_STATE). fail: a refusal with this thread's last error aborts the open scope
 * as that of a recorded call would; returns s, with the call's position in the message. */
dtr_status dtr__scope_look(const dtr_group *group, const char *entry);
dtr_status dtr__scope_fail(dtr_group *group, dtr_status s, dtr__kind kind);

/* Tags of calls inside the library, beside those of users (0..32767) and of the mpi backend. */
enum { DTR__TAG_BYTES = 3 << 15, DTR__TAG_BYTES_BODY = 4 << 15, DTR__TAG_PARTS = 5 << 15 };

/* dtr__record.flags */
enum {
    DTR__REC_P2P = 1,
    DTR__REC_MEMBER = 2, /* of the coalesced record with the same sequence number before it */
    DTR__REC_CAPTURED = 4,
    DTR__REC_BLOCKING = 8,
    DTR__REC_FALLBACK = 16,
    DTR__REC_TOGETHER = 32, /* of a batch's entries: they end when its own record says so */
    DTR__REC_PAIRED = 64    /* a message with a number: see dtr_work.paired */
};

/* True on a thread that is inside a completion callback of this world: it must not block. */
bool dtr__in_callback(const dtr_world *world);

/* Call sites (callsite.c). take: what dtr_call_site noted, else the return address. is: whether
 * take would give what `c` has. text: "train.c:88", or "libfoo.so+0x1f2c", cut to `cap`. */
void dtr__call_site_take(dtr__call *c, void *return_address);
bool dtr__call_site_is(const dtr__call *c, void *return_address);
const char *dtr__call_site_text(const dtr__call *c, char *text, size_t cap);
const char *dtr__call_site_cached(const dtr__call *c); /* 48 bytes, of this thread, soon reused */
void dtr__call_site_drop(void);

/* At the start of a public function that starts operations of its own: until it returns, those of
 * this thread were called from where it was called. Inside of another such function, that one's
 * place stays. */
typedef struct dtr__place {
    const char *file; /* NULL: known by the address only */
    int line;
    void *address;
} dtr__place;
dtr__place dtr__call_site_hold(void *return_address);
/* For what a call has another thread, or a callback, start later: its place, and to be inside it.
 */
dtr__place dtr__call_site_held(void);
dtr__place dtr__call_site_hold_at(const dtr__place *at);
void dtr__call_site_unhold(const dtr__place *before);
#define DTR_HOLD_CALL_SITE                                                                 \
    __attribute__((cleanup(dtr__call_site_unhold), unused)) dtr__place dtr_place_before_ = \
        dtr__call_site_hold(__builtin_return_address(0))

/* News of broken groups (notice.c). broken: tell the other members, with this thread's last error
 * as the cause; any thread, any lock, sends nothing itself. poll: send what is to be sent and take
 * what has come, which may break groups; the caller may call MPI (below MPI_THREAD_MULTIPLE it
 * holds the progress lock) and runs the callbacks of `called` once it holds no lock. visit: the
 * same for callers without a lock, who need do nothing else. Both return at once when they have
 * looked a moment ago. */
void dtr__notice_broken(dtr_group *group, dtr_status s);
void dtr__notice_nan(dtr_group *group); /* this rank gave NaN, which breaks nothing; as broken */
void dtr__notices_poll(dtr_world *world, dtr__queue *called);
void dtr__notices_visit(dtr_world *world);
void dtr__notices_visit_at(dtr_world *world, int64_t now_ns); /* for who has just read the clock */
void dtr__notices_look(dtr_world *world);                     /* visit, whenever the last one was */

/* Error context of an operation for DTR_FAIL. */
dtr__error_context dtr__work_context(const dtr_work *w);

/* "allreduce #17 f32 x 1024 sum 'grad.3' group 'world'" into `text`; returns text. */
const char *dtr__work_title(const dtr_work *w, char *text, size_t cap);

#endif /* DTR_COLL_INTERNAL_H */
