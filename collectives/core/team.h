/* The facts of a group, and of all groups of a world. */
#ifndef DTR_CORE_TEAM_H
#define DTR_CORE_TEAM_H

#include <pthread.h>
#include <stdatomic.h>

#include <dtr/coll.h>

#include "core/backend.h"
#include "core/work.h"
#include "kernels/kernels.h"
#include "world/world.h"

enum { DTR__MAX_BACKENDS = 8, DTR__WORLD_UID = 1 };
/* What serves a group. Constant once the group is made. */
typedef struct dtr__group_backends {
    /* Candidates for CPU calls in descending preference, with their state; behind them, up to
     * `served`, those for device buffers. */
    const dtr__backend *table[DTR__MAX_BACKENDS];
    void *state[DTR__MAX_BACKENDS];
    int n, served;
    bool named;                       /* by the caller: it never falls back */
    bool takes_devices;               /* device buffers may come */
    bool windows;                     /* all members are to have windows of NCCL, and can */
    const dtr__backend *device_named; /* and then the one for them that the caller named, if any */
    char *asked, *chosen;             /* texts of dtr_group_info */
    struct dtr__nodes *nodes;         /* core/nodes.h; NULL: it is one, or each rank has its own */
    uint64_t channel; /* of messages over TCP: the uid, with other high bits in a part of a group */
} dtr__group_backends;

/* What its creator asked for, beside what has a place of its own. */
typedef struct dtr__group_request {
    bool bound;         /* the device was named: CUDA buffers live there */
    bool deterministic; /* also where `reproducible` is */
    bool reproducible;
    int nan_check;
    /* While the group is being made: the caller's, and the group it is a part of, if any. */
    const dtr_group_options *options;
    const dtr_group *parent;
} dtr__group_request;

/* How a world finds a group. tag_refs, listed: lock of the world's groups; the rest is constant. */
typedef struct dtr__group_label {
    char *desc, *tag;
    int tag_refs;
    bool listed; /* false: no list, count or look-up of the world shows it: a duplicate, or one that
                    this rank has released */
} dtr__group_label;

typedef struct dtr__group_count {
    _Atomic uint64_t seq, p2p_seq;
    _Atomic uint64_t monitored; /* monitored barriers entered */
    _Atomic uint64_t errors;    /* works that ended with one */
    _Atomic uint64_t comms_by_init, comms_by_split;
} dtr__group_count;

/* Communicators of a group that its members took down at times of their own. MPI has them freed
 * together: that waits for an agreement of all members. Lock of the world's groups. */
typedef struct dtr__retired {
    struct dtr__retired *next; /* ascending uid */
    uint64_t uid;
    int size, *world_ranks;
    int n;
    MPI_Comm comm[4]; /* of hier, lent, and its own */
} dtr__retired;

/* What is known of members that have let go of the group (failure/released.c). Lock of the world's
 * groups where no other is given. */
typedef struct dtr__group_release {
    bool here;             /* this rank has: its handle is gone */
    _Atomic bool reported; /* ... and its works have ended, as the others know */
    bool taken;            /* a thread takes it down, at a time of its own */
    char site[64];         /* where it called dtr_group_release */
    _Atomic int n_others;  /* other members that have */
    int n_finished;        /* of them, whose works have ended */
    _Atomic(struct dtr__release_others *) others; /* NULL until the first; failure/released.c */
    dtr__retired *retired; /* where its communicators go when it is taken down; NULL: nowhere */
} dtr__group_release;

/* What the public calls keep with a group. */
typedef struct dtr__group_calls {
    _Atomic(dtr__scope *) scope;        /* open coalescing scope; written by its owner thread */
    struct dtr__fast_paths *fast_paths; /* NULL until the first; progress lock */
    dtr__rec_run run;                   /* of the fast paths' records; progress lock */
    /* What ends them with the group, set with the first of each. */
    void (*drop_scope)(dtr_group *g);
    void (*free_fast_paths)(dtr_group *g);
} dtr__group_calls;

/* The facts of a group, constant once it is made unless a comment states otherwise. Each part of
 * the library keeps what it does with the group in a struct of its own. */
struct dtr_group {
    uint64_t magic; /* DTR__GROUP_MAGIC while its handle is live, then DTR__GROUP_GONE */
    dtr_world *world;
    struct dtr__group_engine *engine; /* engine/engine.h; NULL: facts only, in no list */
    dtr__group_calls calls;
    dtr__group_count count;
    _Atomic int status;     /* DTR_OK or what broke it; the first wins; set under queue_lock */
    dtr__error_copy *error; /* set under queue_lock before status; read once status is set */
    _Atomic unsigned aside; /* DTR__CLOSING and so on: why no call takes the fast path; no lock,
                               the end waits for what was being issued */
    bool left_alone;        /* it ends here without all others having come, who may go on; no lock,
                               written and read by the thread that ends it */
    dtr__group_release release;
    int rank, size;
    dtr__group_backends backends;
    dtr__group_request asked;
    uint32_t id;   /* per world, from 1; equal on members only by accident */
    uint64_t uid;  /* agreed at creation: equal on all members, never used twice in a world; not 0,
                      which says "of no group" in tables and messages */
    MPI_Comm comm; /* members in group-rank order, errors returned */
    MPI_Comm lent; /* a duplicate for the program, once asked for; lock of creations */
    int *world_ranks;
    int *reported_ranks; /* NULL, or the ranks messages give: those of the group this is part of */
    char name[64];
    /* Limits of its operations where a call gives none, on the host and on CUDA buffers, and the
     * first of them in nanoseconds, 0: none. Written by dtr__group_set_limits. */
    _Atomic double timeout_s, timeout_cuda_s;
    _Atomic int64_t limit_ns;
    dtr_device device; /* its own, else the world's */
    dtr__group_label label;
    struct dtr__group_failure *failure; /* failure/failure.h */
    struct dtr__devices *devices;       /* group/device_select.c; NULL: it takes no such buffers */
    struct dtr_group *next, *prev;      /* in the world's list, creation order; its lock */
};

enum {
    DTR__CLOSING = 1, /* its end has begun here: nothing more is issued */
    DTR__HOOKED = 2,  /* the program is told of every operation; set under queue_lock */
    DTR__LEFT = 4     /* other members have let go of it */
};
static inline bool dtr__group_is_closing(const dtr_group *g) {
    return (atomic_load_explicit(&g->aside, memory_order_acquire) & DTR__CLOSING) != 0;
}

/* A sum that must not depend on the order of ranks, which a backend may not add in its own way. */
static inline bool dtr__is_reproducible(const dtr_group *g, const dtr__call *c) {
    const bool sum = c->op == DTR_SUM || c->op == DTR_AVG || c->op == DTR_PREMUL_SUM;
    const bool is_float = c->dtype >= DTR_F8E4M3 && c->dtype <= DTR_C128;
    return g->asked.reproducible && dtr__kind_reduces(c->kind) && sum && is_float;
}
/* Whether a reduction is to be made in the order of ranks. The library's operators give integers
 * the same bits in any. */
bool dtr__keeps_rank_order(const dtr_group *g, const dtr__call *c);
#define DTR__WHY_NO_MPI "the world was made without MPI, by dtr_world_options.bootstrap"
#define DTR__WHY_REPRODUCIBLE "the group is reproducible: sums are exact"

/* The operator for dtr__reduce. */
static inline dtr_op dtr__kernel_op(const dtr_group *g, const dtr__call *c) {
    return dtr__is_reproducible(g, c) ? (dtr_op)((unsigned)c->op | DTR__EXACT) : c->op;
}

/* Of the members, while something of the group is made. */
dtr__members dtr__members_of_group(const dtr_group *g);

static inline bool dtr__group_is_world(const dtr_group *g) {
    return g->uid == DTR__WORLD_UID;
}

/* Its end is that of all members: nobody looks at, or stores into, memory of its backends here. */
static inline bool dtr__group_is_over(const dtr_group *g) {
    return atomic_load_explicit(&g->status, memory_order_acquire) == DTR_OK && !g->left_alone;
}

/* What people are shown: 0 is the world's own group. */
static inline uint64_t dtr__group_number(const dtr_group *g) {
    return g->uid - DTR__WORLD_UID;
}

static inline int dtr__reported_rank(const dtr_group *g, int rank) {
    return g->reported_ranks != NULL ? g->reported_ranks[rank] : rank;
}

/* What failure/ does for the rooms below it, where its functions are described; set with
 * the world's groups. */
typedef struct dtr__failure_ops {
    /* Break with this thread's last error, once all members agree on what broke it, which may be
     * what another one found: at once on one node, after a second at most between several. The
     * progress lock may be held. */
    void (*break_with)(dtr_group *g, dtr_status s, dtr__queue *called);
    void (*record)(dtr_group *g, dtr_status s); /* before peers can see the failure */
    /* Whether the group is broken, also by what a member on this node has reported. The progress
     * lock may be held. */
    bool (*look)(dtr_group *g, dtr__queue *called);
    void (*notify_broken)(dtr_group *g, dtr_status s);
    void (*notify_nan)(dtr_group *g);
    dtr_status (*find_mismatch)(const dtr_work *w);
    /* False while other nodes are asked who has come to a work since then: call it again before
     * anybody is named. True within about a second. */
    bool (*ask_missing)(const dtr_group *g, const dtr_work *w, int64_t since_ns);
    const char *(*name_missing)(const dtr_group *g, const dtr_work *w, char *text, size_t cap);
    void (*poll)(dtr_world *world, dtr__queue *called);
    void (*visit)(dtr_world *world);
    void (*check_early_destroy)(dtr_world *world);
    /* A member has let go of the group, and this rank is in `call`, which needs all of them. */
    void (*break_released)(dtr_group *g, const char *call);
} dtr__failure_ops;

/* The groups of one world on this rank. `lock` guards everything but `creation` and `agreements`,
 * which belong to the holder of `creation`: one creation or destruction at a time. Order: creation
 * before lock. */
struct dtr__groups {
    pthread_mutex_t lock, creation;
    dtr_group *first, *last;     /* live, in creation order, the unlisted ones included */
    dtr_group *gone, *last_gone; /* destroyed and still recognised, oldest first; linked by next */
    int n_gone;
    dtr_group *own;            /* the world's */
    _Atomic(dtr_group *) node; /* of this node's ranks, made by the first dtr_node_barrier */
    _Atomic int n_parked;      /* of the live ones, released here and not taken down yet */
    _Atomic int n_unreported;  /* of these, whose works have not ended */
    _Atomic int n_released;    /* live ones that another member has released */
    dtr__retired *retired;
    uint64_t counter; /* number of the newest unnamed group these callers have agreed on */
    uint32_t last_id;
    const dtr__failure_ops *failure; /* constant */
    struct dtr__agreements *agreements;
    struct dtr__notifier *notifier;     /* its own lock */
    struct dtr__key_values *key_values; /* its own lock */
    uint32_t user_ops;                  /* operators of the program that were made; lock */
    struct dtr__user_backend
        *user_backends;              /* registered backends; they stay until the world ends */
    struct dtr__gpus *gpus;          /* of all ranks; constant */
    struct dtr__nccl_blocks *blocks; /* of device memory, registered with NCCL; NULL: not so */
    _Atomic int helpers;             /* of destroyed groups, left behind inside NCCL */
    int64_t status_ns;               /* of the next status line; the watchdog's */
    /* Of the thread that ends the world (failure/early_destroy.c). */
    char early_destroy_at[128]; /* call site; "": the world goes on */
    int64_t early_destroy_look_ns;
    dtr__error_copy *early_destroy_error;
};

static inline const dtr__failure_ops *dtr__failure_of(const dtr_world *world) {
    return world->groups->failure;
}

#define DTR__GROUP_MAGIC UINT64_C(0x6474725f67726f75)

/* For DTR_TRACED. */
static inline dtr__trace *dtr__group_trace(const dtr_group *group) {
    return group != NULL && group->magic == DTR__GROUP_MAGIC ? group->world->diagnosis.trace : NULL;
}
#define DTR__GROUP_GONE UINT64_C(0x6474725f676f6e65)
/* DTR_OK for a live handle; DTR_NOT_MEMBER for NULL, with one warning per `entry` (name of the
 * public call) and process; DTR_ERR_STATE for a destroyed one. It does not check whether the
 * group is broken. In team.c. */
dtr_status dtr__group_check(const dtr_group *group, const char *entry);
/* Refuses what would be issued once the end of the group has begun on this rank. */
dtr_status dtr__group_closing(const dtr_group *group, const char *entry);
dtr_status dtr__group_broken(const dtr_group *g); /* the error that broke it, as this thread's */
int dtr__group_rank_of(const dtr_group *g, int world_rank); /* -1: no member */
/* Limits for later operations. Of a group that others may use, queue_lock is held. */
void dtr__group_set_limits(dtr_group *g, double cpu_s, double cuda_s);
/* Hand over a communicator that is to be freed with the group's others; false: the caller frees
 * it. */
bool dtr__group_retire_comm(dtr_group *g, MPI_Comm *comm);
/* This rank has released the live group with that uid. */
bool dtr__group_is_released(const dtr_world *world, uint64_t uid);

#endif /* DTR_CORE_TEAM_H */
