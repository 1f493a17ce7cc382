/* The world as the layers above see it. Plain facts are set before the world is handed out and
 * constant afterwards. */
#ifndef DTR_RT_WORLD_H
#define DTR_RT_WORLD_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

#include <dtr/device.h>
#include <dtr/dtype.h>
#include <dtr/mpi.h>
#include <dtr/world.h>

#include "rt_error.h"
#include "rt_options.h"
#include "rt_tune.h"

typedef struct dtr__arena dtr__arena;
typedef struct dtr__cma dtr__cma;
typedef struct dtr__recorder dtr__recorder;
typedef struct dtr__progress dtr__progress;
typedef struct dtr__log dtr__log;
typedef struct dtr__trace dtr__trace;
typedef struct dtr__metrics dtr__metrics;
typedef struct dtr__memory dtr__memory;
typedef struct dtr__groups dtr__groups; /* collectives layer */

struct dtr__control;
struct dtr__peers;
struct dtr__watchdog;
struct dtr_world {
    uint64_t magic; /* DTR__WORLD_MAGIC while live */
    uint32_t serial;
    uint64_t job_id; /* of this world, equal on all ranks */
    /* MPI: private duplicates, errors returned. node_comm holds the ranks of this node in world
     * order. */
    MPI_Comm comm, node_comm;
    int thread_level; /* what MPI provides */
    int tag_ub;
    bool own_mpi, keep_mpi;
    /* Who and where. node_of and local_rank_of are indexed by world rank; local_world by local
     * rank. */
    int rank, size, local_rank, local_size, node, node_count;
    int *node_of, *local_rank_of, *local_world;
    char host[64];
    int cpus;        /* this process may use */
    bool crowded;    /* the node's ranks may use fewer CPUs than there are ranks */
    bool roomy;      /* ... at least two CPUs per rank: a progress thread takes nobody's */
    bool mpi_yields; /* a call that finds nothing to do in MPI has given the processor away */
    /* Local ranks with exactly this rank's CPUs, and which of them this one is; 0 where sets of
     * CPUs overlap in part. */
    int cpu_sharers, cpu_turn;
    dtr_device device;
    bool bound;               /* the device was named by the program */
    double timeout_s;         /* 0: not set anywhere, the device's default applies; set by code or
                                 DTR_TIMEOUT */
    const char *backend_text; /* owned by options */
    dtr__options options;
    dtr__tune tune; /* equal on all ranks of a node */
    dtr__log *log;
    dtr__trace *trace;     /* of public calls; NULL: off */
    dtr__metrics *metrics; /* NULL: off */
    dtr__arena
        *arena;    /* node-shared memory, NULL when this node cannot share (one warning given) */
    dtr__cma *cma; /* cross-memory attach, NULL where it is off or the kernel forbids it */
    dtr__memory *memory;      /* live dtr_alloc blocks */
    dtr__recorder *recorder;  /* flight recorder */
    bool hashes, timing;      /* DTR_HASH, DTR_TIMING */
    bool each_in_full;        /* no short way and no shared record for repeated calls */
    bool unrecorded;          /* set by dtr-recorder-cost only: repeated calls leave no record */
    struct dtr__peers *peers; /* what is known of the other ranks without their help */
    struct dtr__control *control;   /* NULL where there is one node */
    struct dtr__verdicts *verdicts; /* NULL where the node shares no memory */
    struct dtr__ballots *ballots;   /* of upper layers; NULL: the world does without */
    struct dtr__watchdog *watchdog; /* NULL before the groups are there */
    struct dtr__dump *dump;         /* what asks for dumps */
    dtr__progress *progress;        /* never NULL; without a thread it only keeps the list */
    dtr__groups *groups;
    struct dtr__tenant *tenants; /* newest first; lock of rt_tenant.c */
};

#define DTR__WORLD_MAGIC UINT64_C(0x6474725f776f726c)

/* Everything below the groups. Collective; agreed: when one rank fails, all do (DTR_ERR_REMOTE
 * naming it elsewhere). */
dtr_status dtr__world_open(MPI_Comm comm /* MPI_COMM_NULL: MPI_COMM_WORLD, initialising MPI */,
                           const dtr_world_options *o, dtr_world **world);
/* Ends it: progress, recorder, arena, communicators, MPI if ours and last. */
dtr_status dtr__world_close(dtr_world *world);
/* Instead, where the progress thread is stuck: what it may hold or touch stays, MPI too. */
void dtr__world_abandon(dtr_world *world);

/* DTR_OK, or DTR_ERR_ARG/DTR_ERR_STATE for NULL and destroyed handles, with message. */
dtr_status dtr__world_check(const dtr_world *world);

/* True while MPI may be called: initialised and not finalised by somebody else. */
bool dtr__mpi_alive(void);
/* Instead of freeing it: the communicator of a broken group stays until MPI ends, because a message
 * left over in it would turn up in a later one, to which some MPI libraries give the same identity.
 */
void dtr__mpi_keep(MPI_Comm *comm);

/* All ranks of `comm` agree on one status: when any rank has a negative one, it keeps its own and
 * every other rank returns DTR_ERR_REMOTE naming the lowest failing rank with its status and text.
 * Blocking allreduce+broadcast: only where all ranks of comm are known to come (world and group
 * creation). `what` names the creation in the message. */
dtr_status dtr__agree_status(const dtr_world *world, MPI_Comm comm, dtr_status mine,
                             const char *what);

/* ---- log (rt_log.c): "[rankN]: level: text", one write per line, to log_fn, DTR_LOG_FILE or
 * stderr ---- */
void dtr__log_line(const dtr_world *world /* NULL: stderr, no rank */, int level, const char *fmt,
                   ...) DTR_PRINTF(3, 4);
bool dtr__log_on(const dtr_world *world, int level);
#define DTR_WARN(world, ...) dtr__log_line((world), DTR_LOG_WARN, __VA_ARGS__)
#define DTR_INFO(world, ...)                                   \
    do {                                                       \
        if (dtr__log_on((world), DTR_LOG_INFO)) {              \
            dtr__log_line((world), DTR_LOG_INFO, __VA_ARGS__); \
        }                                                      \
    } while (0)

/* ---- trace of public calls (rt_trace.c, DTR_TRACE and DTR_NVTX) ----
 * DTR_TRACED is the status of `expression`, which makes the public call `call`; unless `trace` is
 * NULL a line says how it went. `on`: the group's name, or what else it is about; "" for nothing.
 * A call made inside another on the same thread has a level above 0. */
void dtr__trace_begin(dtr__trace *trace, const char *call, const char *on);
dtr_status dtr__trace_end(dtr_status status);
#define DTR_TRACED(trace, call, on, expression) \
    ((trace) == NULL ? (expression)             \
                     : (dtr__trace_begin((trace), (call), (on)), dtr__trace_end(expression)))
/* The creation of this world, which could not be traced before. */
void dtr__trace_created(const dtr_world *world, const char *call, int64_t began_ns);
/* A line that is no call, at the present level. */
void dtr__trace_note(const dtr__trace *trace, const char *what, double seconds, const char *fmt,
                     ...) DTR_PRINTF(4, 5);
/* With DTR_NVTX, a range of a profiler that may end on another thread; 0 where there is none. */
uint64_t dtr__trace_range_begin(const dtr__trace *trace, const char *what, const char *label);
void dtr__trace_range_end(uint64_t range);
static inline dtr__trace *dtr__trace_of(const dtr_world *world) {
    return world != NULL && world->magic == DTR__WORLD_MAGIC ? world->trace : NULL;
}

/* ---- time ---- */
double dtr__now(void);     /* monotonic seconds */
int64_t dtr__now_ns(void); /* monotonic nanoseconds */
/* The same clock for records of what happened: cheaper, within a microsecond of it, never back in
 * one thread. */
int64_t dtr__stamp_ns(void);

/* ---- node-shared memory (rt_arena.c) ----
 * Each rank owns one sparse anonymous file (memfd, no name in /dev/shm) of DTR_ARENA bytes that
 * every rank of the node has mapped since world creation. A pointer into any arena translates to
 * (local rank, offset) and back, so a peer reaches memory allocated at any time without an
 * exchange. Allocation is local and thread-safe (arena's own mutex). */
bool dtr__arena_usable(const dtr_world *world);
void *dtr__arena_alloc(dtr_world *world, size_t nbytes,
                       size_t align); /* from the own arena; NULL when full */
void dtr__arena_free(dtr_world *world, void *ptr);
/* Which arena [ptr, ptr + nbytes) lies in completely; false for other memory. Lock-free, a few
 * compares. */
bool dtr__arena_find(const dtr_world *world, const void *ptr, size_t nbytes, int *local_rank,
                     uint64_t *offset);
void *dtr__arena_at(const dtr_world *world, int local_rank, uint64_t offset);
/* Collective over the node: as many zeroed bytes of every rank's arena, where all ranks see them in
 * each[local rank]. False on all: some rank has none, or asked for 0. */
bool dtr__arena_share(dtr_world *world, size_t nbytes, void **each, int *mpi_code);
size_t dtr__arena_used(const dtr_world *world); /* bytes handed out of the own arena */

/* ---- reading the memory of local peers by address (rt_cma.c) ----
 * Usable on all ranks of a node or on none. */
bool dtr__cma_usable(const dtr_world *world);
/* Can the kernel read the ends of this rank's [ptr, ptr + nbytes), nbytes > 0? Device memory mapped
 * into the process is of a kind it cannot. */
bool dtr__cma_reaches(const void *ptr, size_t nbytes);
/* Copy from an address in the process of a local rank; false with errno on failure. */
bool dtr__cma_read(const dtr_world *world, int local_rank, void *to, uint64_t from, size_t nbytes);

/* ---- progress (rt_progress.c) ----
 * Whoever has unfinished operations registers a poller. The thread sleeps while no poller has work;
 * dtr__progress_wake after handing out work is never lost. A poller returns how much it moved, or
 * DTR__POLL_IDLE when it has no work. */
enum { DTR__POLL_IDLE = -1, DTR__POLL_WAITING = 0, DTR__POLL_MOVED = 1 };
typedef struct dtr__poller {
    int (*poll)(struct dtr__poller
                    *self); /* progress thread or a caller inside the library; must try-lock */
    /* The rest belongs to rt_progress.c, guarded by its list lock; dtr__progress_add sets it. */
    struct dtr__poller *next, *prev;
    int inside; /* threads in poll */
    bool listed, leaving;
} dtr__poller;
void dtr__progress_add(dtr_world *world, dtr__poller *p);
/* Returns once no thread is inside p->poll: must not be called from there. False: one still is
 * after `limit_s`, and p stays linked, though nobody enters it any more; try again, or leave it. */
bool dtr__progress_remove(dtr_world *world, dtr__poller *p, double limit_s);
/* Whether it is the progress thread that is inside p->poll. */
bool dtr__progress_is_at(dtr_world *world, const dtr__poller *p);
void dtr__progress_wake(dtr_world *world);
bool dtr__progress_has_thread(const dtr_world *world);
bool dtr__progress_in_thread(const dtr_world *world); /* is the caller the progress thread? */
/* The native call that the thread is inside; NULL: none. */
const char *dtr__progress_inside(const dtr_world *world);
/* It has not moved for DTR_HEARTBEAT_LIMIT, or the end of a group has waited for it in vain: what
 * it may hold or touch is left in place from now on, and nobody waits for it. for_good: it is
 * another thread that hangs, of which nobody can tell whether it has come back. */
void dtr__progress_give_up(dtr_world *world);
void dtr__progress_give_up_for_good(dtr_world *world);
bool dtr__progress_stuck(dtr_world *world);
/* The thread is left to itself for good, and ends when it comes back. */
void dtr__progress_forget(dtr_world *world);
/* Whoever calls it waits for other ranks, and hangs nowhere if it is the progress thread. */
void dtr__progress_rest(dtr_world *world);
/* One pass over all pollers from a caller's thread: what keeps other groups alive where there is no
 * progress thread. */
void dtr__progress_poll_all(dtr_world *world);

/* Tells the processor that its rank looks at memory until another one writes there. */
static inline void dtr__relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* One wait policy for the whole library: pauses while there is a core per rank, else yields at
 * once; naps after a while without movement. Keep one dtr__backoff per wait, zero it when something
 * moved. */
typedef struct dtr__backoff {
    uint32_t spins;
    int64_t since_ns; /* of the first yield */
    bool elsewhere;   /* who is asked between two steps gives the processor away: no step does */
} dtr__backoff;
void dtr__backoff_pause(const dtr_world *world, dtr__backoff *b); /* world NULL: as crowded */
/* One step of it; true instead of a nap, for a caller who has something else to do by then. */
bool dtr__backoff_due(const dtr_world *world, dtr__backoff *b);

/* ---- flight recorder (rt_recorder.c) ---- one fixed 256-byte record per operation in a ring, slot
 * = number mod size */
typedef enum dtr__rec_state {
    DTR__REC_ISSUED = 1,
    DTR__REC_ENQUEUED,
    DTR__REC_STARTED,
    DTR__REC_FINISHED,
    DTR__REC_FAILED
} dtr__rec_state;
typedef struct dtr__record {
    uint64_t number; /* position since the start of the world, from 1; in the ring 0 before the
                        first use and UINT64_MAX while being written */
    uint32_t group, world_serial;
    uint64_t seq, p2p_seq, op_id;
    uint8_t kind, backend, state, dtype_op; /* dtype in the low, op in the high four bits */
    uint16_t flags;
    int16_t device;
    int32_t root_or_peer, tag; /* -1: none; of a batch or scope `tag` says of how many operations */
    uint64_t count_in, count_out, nbytes, fingerprint;
    char label[40], site[48]; /* cut with a trailing '~' */
    uint32_t thread;
    int32_t status;
    int64_t t_issued, t_enqueued, t_started, t_finished, deadline; /* monotonic ns, 0 = not yet */
    /* In the ring: how many calls have followed it closely (dtr__rec_follow), and when the last of
     * them was issued. Readers make records of those, which have the number of the one they
     * followed, and their place behind it here; times are estimates. 0: not one of those. */
    uint64_t follower;
    int64_t t_follower;
    uint64_t hash_in, hash_out; /* of the bytes, with DTR_HASH=1; 0: none */
} dtr__record;
_Static_assert(sizeof(dtr__record) == 256, "the ring is read by other programs");
/* Starts a record; the fields that describe the operation are copied from `r`. Returns its number
 * (from 1). */
uint64_t dtr__rec_begin(dtr_world *world, const dtr__record *r);
/* Notes a state and its time; does nothing when the slot was reused. */
void dtr__rec_mark(dtr_world *world, uint64_t number, dtr__rec_state state, dtr_status status);
/* With DTR_HASH=1: the bytes that the operation has given, before its end is noted. */
void dtr__rec_hash_out(dtr_world *world, uint64_t number, uint64_t hash);
/* With DTR_RECORDER_STACK=1, else nothing: who called the public function that returns to
 * `return_address`, by the thread that is inside it. */
void dtr__rec_stack(dtr_world *world, uint64_t number, const void *return_address);
/* Success at a time just looked at, noted by the thread that issued the operation. */
void dtr__rec_finish(dtr_world *world, uint64_t number, int64_t now_ns);

/* A call that is made again and again, each time right after the one before, does not need a record
 * each time, nor do the entries of a batch: of those that follow one the recording has the last
 * one's number and time, which are a few words per group. What makes a difference ends the run:
 * another record of any group, another thread, a pause, a call that takes long. So does every
 * DTR__REC_RUN_MOST'th number, so that all ranks have records of the same calls. With metrics there
 * are no runs. */
enum { DTR__REC_RUN_MOST = 64, DTR__REC_RUN_ENTRIES = 8 /* of a batch in a run */ };
typedef struct dtr__rec_followers { /* in the recording; one writer, atomic words */
    _Atomic uint64_t record;        /* number of the one they follow, 0: none; written last */
    _Atomic uint64_t begun, ended;  /* sequence numbers of the last ones; at first the record's */
    _Atomic int64_t t_begun;
    uint64_t reserved[4];
} dtr__rec_followers;
typedef struct dtr__rec_run {
    dtr__rec_followers *words; /* NULL: the recording has no room for the group's */
    uint64_t sort, number;     /* of calls; of the record */
    uint64_t last;             /* number of its last entry's record, without entries its own */
    uint64_t first, next;      /* sequence numbers: the record's, and what may follow */
    int64_t t;                 /* of the last call */
    uint32_t thread;
} dtr__rec_run;
/* A record for a call of some sort, by which a run begins; those of its `entries` are to come right
 * behind it. Returns its number. */
uint64_t dtr__rec_lead(dtr_world *world, dtr__rec_run *run, uint64_t sort, const dtr__record *r,
                       uint64_t entries);
/* Whether call `seq`, of messages its number among these, follows closely; then it is noted as
 * begun, and dtr__rec_follower_ended or dtr__rec_lead is to come. */
bool dtr__rec_follow(const dtr_world *world, dtr__rec_run *run, uint64_t sort, uint64_t seq,
                     int64_t now_ns);
static inline void dtr__rec_follower_ended(const dtr__rec_run *run, uint64_t seq) {
    atomic_store_explicit(&run->words->ended, seq, memory_order_release);
}

/* Copies the newest records, oldest first; returns how many (at most cap). For dumps and tests. */
size_t dtr__rec_read(const dtr_world *world, dtr__record *out, size_t cap);

typedef enum dtr__world_phase {
    DTR__PHASE_OPENING = 1,
    DTR__PHASE_RUNNING,
    DTR__PHASE_EXITED, /* exit() or return from main while the world was open */
    DTR__PHASE_ENDING, /* inside dtr_world_destroy, all peers have agreed or cannot */
    DTR__PHASE_CLOSED
} dtr__world_phase;

/* The rest of a recording (rt_recorder_file.c). Groups as they are made and destroyed; what kinds
 * and operators are called; with this thread's last error: what broke a group, and a call that was
 * refused. */
void dtr__rec_phase(dtr_world *world, dtr__world_phase phase);
dtr__rec_followers *dtr__rec_group_add(dtr_world *world, uint32_t id, uint64_t uid,
                                       const char *name, int own_rank, int size,
                                       const int *world_ranks);
void dtr__rec_group_end(dtr_world *world, uint32_t id);
void dtr__rec_names(dtr_world *world, const char *(*kind)(int), int kinds, const char *(*op)(int),
                    int ops);
void dtr__rec_failure(dtr_world *world, uint32_t group, dtr_status s);
void dtr__rec_refused(dtr_world *world, dtr_status s);

/* ---- tenants (rt_tenant.c) ----
 * An object of a higher layer whose handle may outlive the world, and which must let go of it. */
typedef struct dtr__tenant {
    /* On the thread that destroys the world, before anything is taken down. The tenant is no longer
     * in the list. */
    void (*evict)(struct dtr__tenant *self);
    struct dtr__tenant *next, *prev; /* lock of rt_tenant.c */
} dtr__tenant;
void dtr__tenant_add(dtr_world *world, dtr__tenant *t);
void dtr__tenant_remove(dtr_world *world, dtr__tenant *t);
/* The newest tenant for which fn answers true, NULL: none. fn runs under the lock. */
dtr__tenant *dtr__tenant_find(dtr_world *world, bool (*fn)(const dtr__tenant *t, const void *arg),
                              const void *arg);
/* All of them, newest first: what dtr_world_destroy begins with. */
void dtr__tenants_evict(dtr_world *world);

/* ---- handles ---- */
#define DTR__HIDDEN __attribute__((visibility("hidden")))

#endif /* DTR_RT_WORLD_H */
