/* What every backend folder implements, and what the CPU backends serve. */
#ifndef DTR_CORE_BACKEND_H
#define DTR_CORE_BACKEND_H

#include "core/call.h"
#include "core/op.h"
#include "core/work.h"

/* What the CPU backends of the library and stage serve. A kind that is added to ops.def is not
 * among these: each backend that has it adds it to its own `kinds`. */
#define DTR__KINDS_BASIC                                                                        \
    (DTR__KIND_BIT(BROADCAST) | DTR__KIND_BIT(REDUCE) | DTR__KIND_BIT(ALLREDUCE) |              \
     DTR__KIND_BIT(ALLGATHER) | DTR__KIND_BIT(ALLGATHERV) | DTR__KIND_BIT(GATHER) |             \
     DTR__KIND_BIT(GATHERV) | DTR__KIND_BIT(SCATTER) | DTR__KIND_BIT(SCATTERV) |                \
     DTR__KIND_BIT(REDUCE_SCATTER) | DTR__KIND_BIT(REDUCE_SCATTERV) | DTR__KIND_BIT(ALLTOALL) | \
     DTR__KIND_BIT(ALLTOALLV) | DTR__KIND_BIT(BARRIER) | DTR__KIND_BIT(SEND) |                  \
     DTR__KIND_BIT(RECV) | DTR__KIND_BIT(BATCH) | DTR__KIND_BIT(SCAN) | DTR__KIND_BIT(EXSCAN))

/* A backend turns calls into finished calls without ever blocking: `start` begins one, `progress`
 * moves it. The engine calls them under the group's progress lock, one thread at a time per group.
 * Collectives of a group are started strictly in issue order and at most one is under way per group
 * (several p2p may be), so a backend needs no ordering of its own. Buffers, counts and operators
 * have been checked. NULL members are optional and mean "nothing to do". */
struct dtr__fast_path;
struct dtr__moves;
typedef struct dtr__backend {
    const char *name;
    dtr_device_type device;
    uint64_t kinds;       /* bits of what it serves; it is never handed another kind */
    bool overlaps;        /* its collectives are watched all at once, as messages are */
    bool compares_itself; /* a collective that ranks have called differently ends on none of them */
    bool ends_alone;      /* such a one may end on some ranks, which the watchdog then finds out */
    bool asks_mpi;        /* each poll of an unfinished collective on the fast path calls MPI */
    bool without_mpi;     /* start, progress and cancel never call MPI */
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
    /* Whether a work, begun or not, can go on only with MPI. Where not, a progress thread that may
     * not call it calls `start` and `progress` too, which then do what needs none
     * (dtr__progress_only_helps), and when they fail another thread calls `cancel`. NULL: always,
     * unless `without_mpi`. */
    bool (*needs_mpi)(dtr_group *group, void *state, const dtr_work *w);
    /* The group is broken, and its works are about to end: from then on their buffers are the
     * program's again, though another thread may still be inside `progress`. Warn the ranks
     * that read them not to trust what they read, and wait for those that store into them, half a
     * second at most, ten for a thread of this process. Any thread, with queue_lock, and the
     * progress lock or not: it reads what `open` has made and writes atomics only. Optional. */
    void (*withdraw)(dtr_group *group, void *state);
    /* The group is broken: what runs by itself, on a device, is to end. Called where withdraw is,
     * and does not wait. await_stop: until that has ended, a second at most; for waiters, whose
     * callers may free the buffers then. Optional. */
    void (*stop)(dtr_group *group, void *state);
    void (*await_stop)(dtr_group *group, void *state);
    /* DTR_ERR_MISMATCH as this thread's last error where members are known to have called
     * differently, of calls that the backend's transport does not compare; DTR_OK: none is known.
     * Asks nobody. now_ns: the watchdog's round, which looks at what has come since the last one;
     * 0: at everything. Optional. */
    dtr_status (*find_mismatch)(dtr_group *group, void *state, int64_t now_ns);
    /* A coalescing scope on this backend alone: its calls are all started between these two. `end`
     * may leave whole->request, which stands for the calls that left none; progress and cancel take
     * the whole then. Both or neither, optional. */
    dtr_status (*coalesce_begin)(dtr_group *group, void *state, dtr_work *whole);
    dtr_status (*coalesce_end)(dtr_group *group, void *state, dtr_work *whole);
    /* ---- backends of device buffers ----
     * The thread that makes a call brings it onto the device and holds no lock of the engine
     * meanwhile, because native calls may hang; `start` and `progress` then watch it. In this
     * order, all but `prepare` optional: check refuses a call for reasons that other ranks cannot
     * know. issue_begin: from here to issue_end no other thread issues; fails once the group is
     * broken. connect: have ready what the call needs of other ranks, which may wait for them;
     * *served false: they have found together that these devices cannot be served. prepare:
     * everything else that may refuse the call, into w->composite, before it has a number;
     * `whole` is the work that gets number and record, `calls` what w stands for, both w itself
     * outside of scopes. launch: onto the stream, with `calls` as they were given. */
    dtr_status (*check)(const dtr_group *group, const dtr__call *call);
    dtr_status (*issue_begin)(dtr_group *group, void *state);
    void (*issue_end)(dtr_group *group, void *state);
    dtr_status (*connect)(dtr_group *group, void *state, const dtr__call *call, bool *served);
    dtr_status (*prepare)(dtr_group *group, void *state, dtr_work *w, dtr_work *whole,
                          dtr_work *const *calls, size_t n);
    dtr_status (*launch)(dtr_group *group, void *state, dtr_work *w);
    /* Make `stream` wait for a work, whose group may have ended. True: it does, or has to no
     * longer; false: only the host can wait for it. Optional. */
    bool (*stream_wait)(dtr_work *w, void *stream, dtr_status *s);
    /* What an unfinished work waits for, as far as this rank can know, for the message of a
     * time-out: "rank 2 (world 5) has not sent its part". Returns text, "" when nothing is known.
     * Optional. */
    const char *(*waits_for)(dtr_group *group, void *state, dtr_work *w, char *text, size_t cap);
    /* The fast path of small operations that are called again (api/fast_path.h), all four or none.
     * accept: whether this call can take it, and what goes where. start: begin it with the data of
     * p->call; false: nothing was begun, it is to start as others do. poll: 1 when it has finished;
     * 0 while others have not come; -1 when the engine must see to it. to_work: from here on it is
     * an ordinary started work. message: of a message whose caller gets a work, instead of start
     * and poll, while others may be under way: 1 when it is over, 0 when to_work is to follow, -1
     * when it is to start as others do; optional. */
    bool (*fast_path_accept)(dtr_group *group, void *state, const dtr__call *c,
                             struct dtr__moves *m);
    bool (*fast_path_start)(dtr_group *group, void *state, const struct dtr__fast_path *p);
    int (*fast_path_poll)(dtr_group *group, void *state, const struct dtr__fast_path *p);
    int (*fast_path_message)(dtr_group *group, void *state, const struct dtr__fast_path *p);
    void (*fast_path_to_work)(dtr_group *group, void *state, dtr_work *w);
} dtr__backend;

#endif /* DTR_CORE_BACKEND_H */
