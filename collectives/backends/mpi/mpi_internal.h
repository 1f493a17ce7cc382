/* What the files of the mpi backend share: the per-group state, the schedule of one collective and
 * the point-to-point operations. All of it is guarded by the group's progress lock. */
#ifndef DTR_MPI_INTERNAL_H
#define DTR_MPI_INTERNAL_H

#include <mpi.h>

#include "backends/mpi/mpi_transport.h"
#include "core/call.h"
#include "core/message.h"

/* ---- tags on the group's private communicator ----
 * [class:2][value:15], all below 131072, which both MPI libraries allow. */
enum {
    DTR__MPI_TAG_HEADER = 0 << 15,     /* value: the user's tag */
    DTR__MPI_TAG_PAYLOAD = 1 << 15,    /* value: the sender's counter, DTR__MPI_REFUSAL kept out */
    DTR__MPI_TAG_COLLECTIVE = 2 << 15, /* value: hash of what both sides must agree on */
    DTR__MPI_TAG_END = 3 << 15,        /* from here on: not this backend's */
    DTR__MPI_TAG_VALUES = 1 << 15,
    DTR__MPI_REFUSAL = DTR__MPI_TAG_PAYLOAD | (DTR__MPI_TAG_VALUES - 1) /* receiver to sender */
};

/* ---- cutting of large transfers (mpi_schedule.c) ----
 * A message is at most 1 GiB, so that its byte count fits an int; both sides cut alike. A transfer
 * of no bytes is one empty message. */
#define DTR__MPI_PIECE_MAX ((size_t)1 << 30)
size_t dtr__mpi_piece_count(size_t nbytes);
int dtr__mpi_piece(size_t nbytes, size_t index, size_t *offset); /* its length */

static inline size_t dtr__mpi_min(size_t a, size_t b) {
    return a < b ? a : b;
}

/* ---- tuning: sizes at which one algorithm takes over from another; equal on all ranks ---- */
typedef struct dtr__mpi_tuning {
    size_t reduce_direct; /* reductions: up to this many received bytes per rank everybody (or the
                             root) takes the whole inputs in one round trip */
    int reduce_ranks;     /* ... directly up to this group size, in log2 rounds above */
    size_t staging;       /* most staging memory of one collective */
    size_t gather_log;    /* allgather: results up to this many bytes go in log2 rounds */
    int gather_ranks;     /* ... from this group size on */
    size_t message;       /* longest message, of a reduction's slices too */
    int window;           /* transfers under way at once where there could be one per rank */
    /* allreduces whose order is free: */
    size_t doubling, ring, segment; /* DTR__TUNE_NODES_... of base/tune.def */
    size_t block; /* likewise, of allgathers and reduce_scatters: in log2 rounds from gather_ranks
                     on */
    size_t piece; /* likewise: an allreduce of few ranks is as if its order were not free */
    size_t whole; /* up to this, divided by the ranks, data is one segment */
    size_t inline_most; /* payload of a message that travels in its header */
    /* Gather and scatter: of more ranks than these, blocks of up to so many bytes go along a tree,
     * in parts of which those of all ranks have at most so many. */
    int tree_ranks;
    size_t tree_block, tree_parts;
} dtr__mpi_tuning;
extern const dtr__mpi_tuning dtr__mpi_tuning_default;

/* ---- pace: how eagerly an unfinished transfer is polled ----
 * MPI moves the fragments of a large message only while it is called, and does not say whether it
 * moved any. A transfer that is not complete counts as moving now and then for as long as its size
 * explains, so that the waiter does not nap between fragments, but does when the peer is absent. */
typedef struct dtr__mpi_pace {
    unsigned polls;
    double until; /* 0: not begun */
} dtr__mpi_pace;
/* After a poll that found nbytes still under way. */
bool dtr__mpi_pace_moves(dtr__mpi_pace *pace, size_t nbytes);

/* ---- schedule: the steps of one collective on this rank, executed in order ---- */
typedef enum dtr__mpi_step_kind {
    DTR__MPI_SEND,
    DTR__MPI_RECV,
    DTR__MPI_WAIT,   /* until transfers [first, last) are complete */
    DTR__MPI_COPY,   /* n bytes */
    DTR__MPI_PACK,   /* `first` rows of n bytes, which begin `pitch` apart, one behind the other */
    DTR__MPI_UNPACK, /* back */
    DTR__MPI_REDUCE, /* n elements of sources [first, last) */
    DTR__MPI_PREMUL, /* n elements */
    DTR__MPI_FILL,   /* n elements: the identity of the operator */
    DTR__MPI_COMPARE /* what the ranks signatures */
} dtr__mpi_step_kind;

typedef struct dtr__mpi_step {
    dtr__mpi_step_kind kind;
    uint32_t first, last; /* SEND, RECV: `first` is the transfer */
    int divisor;          /* REDUCE */
    size_t n, pitch;
    void *dst; /* or what is sent */
    const void *src;
} dtr__mpi_step;

typedef struct dtr__mpi_transfer {
    dtr__pending request; /* none: not posted yet, or complete */
    int peer, nbytes, tag;
    bool is_send;
    bool accepted; /* send: over when a receive has it */
    bool doubted;  /* receive: cancelled to see whether the peer had sent it */
} dtr__mpi_transfer;

/* Kept by the group between collectives; the arrays only grow, so that later calls allocate
 * nothing. */
typedef struct dtr__mpi_sched {
    dtr__mpi_step *steps;
    dtr__mpi_transfer *transfers;
    const void **sources;
    size_t *slices; /* scratch of the builders of reductions */
    char *staging;
    struct dtr__signature *signatures; /* at DTR_DEBUG=detail: [size] for and [size] from the others
                                        */
    size_t n_steps, n_transfers, n_sources;
    size_t cap_steps, cap_transfers, cap_sources, cap_slices, cap_staging, cap_signatures;
    bool no_memory; /* a builder could not grow an array */
    /* Execution. */
    size_t at;      /* step */
    size_t waiting; /* transfer the WAIT at `at` looks at, SIZE_MAX when it has not begun */
    dtr__mpi_pace pace;
    uint64_t seed;   /* of the transfers' tags: sequence number and fingerprint */
    bool unexpected; /* a transfer has not ended as it should: what was reported is in */
    int code;        /* ... and, of a message that could not be posted, this alone */
    dtr__arrival arrival;
    dtr_dtype dtype;
    dtr_op op;
    int divisor;
    double premul;
    uint64_t built_for; /* the fast path entry whose steps these are, with these buffers; 0: none */
    const void *built_in;
    void *built_out;
    struct dtr__mpi_sched *next; /* left behind: MPI may still touch its memory */
} dtr__mpi_sched;

/* A tree over a row of n, the root's place first: behind a place come the halves of all that is
 * below it, each a tree. No place has more than two messages to send, and one that is k from the
 * end of a row is reached in about lg(k) hops. */
typedef struct dtr__mpi_tree_place {
    int parent; /* -1: it is the root's */
    int n;      /* places of the own tree, the own one included */
    int child[2], n_below[2], n_children;
} dtr__mpi_tree_place;
dtr__mpi_tree_place dtr__mpi_tree_place_of(int at, int n);

typedef struct dtr__mpi_p2p dtr__mpi_p2p;
typedef struct dtr__mpi_loose dtr__mpi_loose;

/* Per group. */
typedef struct dtr__mpi_state {
    dtr__mpi_tuning tuning;
    const struct dtr__nodes *nodes; /* of the group; NULL: it is one, or each rank has its own */
    bool ring;                      /* several nodes with several ranks each: allgather as a ring */
    dtr__mpi_sched *sched;          /* the collective under way, or ready for the next one */
    dtr__mpi_sched *left;   /* schedules of cancelled works with transfers that did not end */
    dtr__message_pool pool; /* of point-to-point operations */
    dtr__mpi_p2p *live;     /* those under way, also of batches */
    dtr__mpi_p2p *stuck;    /* cancelled ones whose transfers did not end */
    void *repeating;        /* those of a call of the fast path, which has no work yet */
    uint64_t sends;         /* payloads sent, gives the payload tag */
    dtr__mpi_loose *loose;  /* refusals under way and refused payloads being swallowed */
    size_t n_loose, cap_loose;
    double cancel_patience; /* seconds that cancelling may still wait in this group */
    unsigned warnings;      /* works left behind */
} dtr__mpi_state;

/* Everything a builder needs; bytes = elements * esize. */
typedef struct dtr__mpi_build {
    const dtr__mpi_state *state;
    const dtr__call *call;
    dtr__mpi_sched *s;
    int rank, size;
    size_t esize;
    bool free_order; /* partial sums may be added up in any order */
} dtr__mpi_build;

/* mpi_schedule.c */
dtr__mpi_sched *dtr__mpi_sched_new(void);
void dtr__mpi_sched_free(dtr__mpi_sched *s);
void dtr__mpi_sched_begin(dtr__mpi_sched *s, const dtr_group *group, const dtr__call *c,
                          uint64_t seq);
/* The steps are through and are run once more, for the next call of the same sort. */
void dtr__mpi_sched_again(dtr__mpi_sched *s, const dtr_group *group, const dtr__call *c,
                          uint64_t seq);
/* Staging memory of this collective; NULL (and no_memory) when there is none. */
char *dtr__mpi_stage(dtr__mpi_sched *s, size_t nbytes);
/* n numbers of scratch. */
size_t *dtr__mpi_slices(dtr__mpi_sched *s, int n);
void dtr__mpi_send(dtr__mpi_sched *s, const void *src, size_t nbytes, int peer);
void dtr__mpi_send_accepted(dtr__mpi_sched *s, const void *src, size_t nbytes, int peer);
void dtr__mpi_recv(dtr__mpi_sched *s, void *dst, size_t nbytes, int peer);
/* Number of transfers so far: the bounds of a WAIT. */
size_t dtr__mpi_mark(const dtr__mpi_sched *s);
void dtr__mpi_wait(dtr__mpi_sched *s, size_t first, size_t last);
void dtr__mpi_wait_all(dtr__mpi_sched *s);
void dtr__mpi_copy(dtr__mpi_sched *s, void *dst, const void *src, size_t nbytes);
/* kind: PACK or UNPACK. */
void dtr__mpi_copy_rows(dtr__mpi_sched *s, dtr__mpi_step_kind kind, void *dst, const void *src,
                        size_t n_rows, size_t nbytes, size_t pitch);
/* The own input is prepared before it is sent: it has a factor, or holds bytes that nobody has set.
 */
static inline bool dtr__mpi_prepares(const dtr__call *c) {
    return c->op == DTR_PREMUL_SUM || c->dtype == DTR_F32_INDEX;
}
void dtr__mpi_premul(dtr__mpi_sched *s, void *dst, const void *src, size_t count);
void dtr__mpi_fill(dtr__mpi_sched *s, void *dst, size_t count);
/* Sources are added in rank order after this, with dtr__mpi_source. `divisor`: of AVG. */
void dtr__mpi_reduce(dtr__mpi_sched *s, void *dst, size_t count, int n_sources, int divisor);
void dtr__mpi_source(dtr__mpi_sched *s, const void *src);
void dtr__mpi_compare(dtr__mpi_sched *s);
/* One step of PACK or UNPACK. */
void dtr__mpi_run_rows(const dtr__mpi_step *step);
/* Moves on until a WAIT is not satisfied: 1 when all steps are through, 0 when they are not, -1
 * when a work must see to it, which can then run the schedule. */
int dtr__mpi_sched_poll(dtr__mpi_sched *s, const dtr_group *group);
/* The same for a work; *done when all steps are through. */
dtr_status dtr__mpi_sched_run(dtr__mpi_sched *s, const dtr_group *group, dtr_work *w, bool *done);
/* Cancels receives; true when no transfer is left. */
bool dtr__mpi_sched_cancel(const dtr_group *g, dtr__mpi_sched *s, dtr__mpi_state *state);
/* Frees a cancelled schedule, but not staging memory that a transfer left behind still uses. */
void dtr__mpi_sched_abandon(dtr__mpi_sched *s);

/* "rank 2 (world 5) has not sent its part", from the transfers the current wait is for. */
void dtr__mpi_sched_waits_for(const dtr__mpi_sched *s, const dtr_group *group, char *text,
                              size_t cap);

/* Requests that are to end without their work: false when MPI still owns it after the patience of
 * the group is used up. */
bool dtr__mpi_request_end(const dtr_group *g, dtr__pending *request, bool is_send,
                          dtr__mpi_state *state);

/* mpi_signature.c: begin a schedule with an exchange of what each rank is about to do; the
 * comparison when it is complete. */
void dtr__mpi_exchange_signatures(dtr__mpi_sched *s, const dtr_work *w);
dtr_status dtr__mpi_compare_signatures(dtr__mpi_sched *s, const dtr_work *w);

/* The collectives, and which function of mpi_collectives_reduce.c and mpi_collectives.c builds the
 * schedule of each, for equal and v-forms: a kind that is not named here is not served. */
#define DTR__MPI_COLLECTIVES(X)        \
    X(BROADCAST, broadcast)            \
    X(REDUCE, reduce)                  \
    X(ALLREDUCE, allreduce)            \
    X(ALLGATHER, allgather)            \
    X(ALLGATHERV, allgather)           \
    X(GATHER, gather)                  \
    X(GATHERV, gather)                 \
    X(SCATTER, scatter)                \
    X(SCATTERV, scatter)               \
    X(REDUCE_SCATTER, reduce_scatter)  \
    X(REDUCE_SCATTERV, reduce_scatter) \
    X(ALLTOALL, alltoall)              \
    X(ALLTOALLV, alltoall)             \
    X(BARRIER, barrier)                \
    X(SCAN, scan)                      \
    X(EXSCAN, scan)
#define DTR__MPI_BUILDER(KIND, name) void dtr__mpi_build_##name(const dtr__mpi_build *b);
DTR__MPI_COLLECTIVES(DTR__MPI_BUILDER)
#undef DTR__MPI_BUILDER

/* mpi_collectives_tree.c. fits: small enough, the same answer on all ranks. build: true when it has
 * built the whole schedule. */
bool dtr__mpi_tree_fits(const dtr__mpi_tuning *t, const dtr__call *c, int size);
bool dtr__mpi_build_tree(const dtr__mpi_build *b);

/* mpi_collectives_halving.c: allreduces of free order that are too large to collect all inputs. */
void dtr__mpi_build_partial_sums(const dtr__mpi_build *b);
/* ... small reduces of more ranks than two; a reduce_scatter(v) and allgather(v) of more ranks than
 * two in log2 rounds. */
void dtr__mpi_build_reduce_whole(const dtr__mpi_build *b);
void dtr__mpi_build_reduce_scatter_halves(const dtr__mpi_build *b);
void dtr__mpi_build_allgather_doubling(const dtr__mpi_build *b);

/* mpi_collectives_ordered.c: a call with rows, a reduce or an exscan, of which rank 0 gets nothing.
 */
void dtr__mpi_build_ordered(const dtr__mpi_build *b);

/* Collects the blocks of all ranks in `stage`, beginning with the own one (already there) and going
 * up in rank with wrap-around, in log2(size) rounds. */
void dtr__mpi_collect(const dtr__mpi_build *b, const dtr__blocks *blocks, char *stage);

/* mpi_p2p.c */
dtr_status dtr__mpi_p2p_start(dtr_group *group, dtr__mpi_state *state, dtr_work *w, bool *done);
dtr_status dtr__mpi_p2p_progress(dtr_group *group, dtr__mpi_state *state, dtr_work *w, bool *done);
/* One more message for a work, begun. claim: a receive from anybody, if a message for it is here.
 */
dtr_status dtr__mpi_p2p_add(const dtr_group *group, dtr__mpi_state *state, dtr_work *w,
                            const dtr_p2p *op, size_t index);
dtr_status dtr__mpi_p2p_claim(const dtr_group *group, dtr__mpi_state *state, dtr_work *w,
                              const dtr_p2p *op, size_t index, bool *claimed);
/* True when nothing is left behind. */
bool dtr__mpi_p2p_cancel(const dtr_group *group, dtr__mpi_state *state, dtr_work *w);
/* See dtr__backend; what is in state->repeating becomes a work's. */
bool dtr__mpi_p2p_fast_accept(const dtr__mpi_state *state, const dtr__call *c);
bool dtr__mpi_p2p_fast_start(const dtr_group *group, dtr__mpi_state *state, const dtr__call *c,
                             dtr__p2p_set which);
int dtr__mpi_p2p_fast_poll(const dtr_group *group, dtr__mpi_state *state);
int dtr__mpi_p2p_fast_message(const dtr_group *group, dtr__mpi_state *state, const dtr__call *c);
/* alive false: MPI is gone, nothing can be cancelled and nothing is touched any more. */
void dtr__mpi_p2p_close(const dtr_group *group, dtr__mpi_state *state, bool alive);

#endif /* DTR_MPI_INTERNAL_H */
