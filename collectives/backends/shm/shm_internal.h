/* The shm backend: collectives of ranks on one node through the memory they share.
 *
 * Each rank has a ring of slots. It describes an operation in the next one: the operation's number,
 * a fingerprint of the call, and where its data is - in the slot, in the caller's node-shared
 * buffer, or in a staging buffer that is filled chunk by chunk. A rank waits until all have filled
 * their slots, compares the fingerprints, and then copies ("pulls") what it needs. A rank that
 * fills the slot of operation n has finished operation n - 1. That is why details of slots and
 * staging buffers, of which there are two, can be used in turn without a further handshake.
 *
 * When calls with a root, or prefixes, of little data repeat, a rank does not wait for those that
 * it takes nothing from (shm_fast_path.c, shm_slot.c). It runs ahead of them by at most the number
 * of slots, and as far as its staging buffers are free. */
#ifndef DTR_SHM_INTERNAL_H
#define DTR_SHM_INTERNAL_H

#include <string.h>

#include "core/call.h"
#include "core/team.h"
#include "shm.h"

enum {
    DTR__SHM_INLINE = 8192,   /* bytes of data in the details of a slot */
    DTR__SHM_BESIDE = 32,     /* bytes of data in the slot itself */
    DTR__SHM_SLOT_COUNT = 32, /* a power of two */
    /* Bytes of calls in which ranks run ahead by all slots, and by fewer. */
    DTR__SHM_RUN_AHEAD = 512,
    DTR__SHM_RUN_AHEAD_MOST = 4096,
    DTR__SHM_RUN_AHEAD_AFTER = 8,          /* calls that wait for everybody before ranks do */
    DTR__SHM_INLINE_OVERSUBSCRIBED = 2048, /* see dtr__shm_inline_most */
    DTR__SHM_BUDGET = 4 * 1024 * 1024,     /* bytes moved before other groups get a turn */
    DTR__SHM_AT_ONCE = 256 * 1024,         /* bytes of each buffer that are reduced at one go */
    DTR__SHM_STRETCH = 4,                  /* times the usual chunk is a long one, */
    DTR__SHM_STRETCH_MOST = 8,             /* ... for data of at most so many long ones */
    DTR__SHM_STAGES_USUAL = 8,             /* staging buffers at most, */
    DTR__SHM_STAGES_LAPPED = 4,            /* ... of two ranks that change memory, */
    DTR__SHM_STAGES = 32,                  /* ... and of calls whose data goes one way */
    DTR__SHM_MAX_RANKS = 1024,
    DTR__SHM_SIZES = 12 /* powers of two from 16 KiB on whose results are written alike */
};

/* Where a rank's data is. */
typedef enum dtr__shm_mode {
    DTR__SHM_NOTHING, /* nobody reads from it */
    DTR__SHM_IN_LINE,
    DTR__SHM_IN_SLOT,
    DTR__SHM_DIRECT, /* in node-shared memory: read from there */
    DTR__SHM_ATTACH, /* in plain memory that the kernel reads for the others */
    DTR__SHM_STAGED
} dtr__shm_mode;

/* One operation as its rank describes it. `posted` is written last, with release: operation << 20 |
 * chunks that can be read. */
typedef struct dtr__shm_slot {
    _Alignas(64) _Atomic uint64_t posted;
    uint64_t fingerprint;
    uint64_t at;         /* DIRECT: in; STAGED: the two buffers; dtr__shm_pack. IN_SLOT: offset */
    uint8_t mode, first; /* first: staging buffer of chunk 0 */
    uint8_t shift;       /* 1: chunk c counts as c + 1, because the slot was filled without data */
    uint8_t zero_copy;   /* in and out are both node-shared */
    uint8_t sliced;      /* in and out can be read by all: allreduce by slices */
    uint8_t in_raw, out_raw; /* in_at, out_at: addresses in plain memory */
    uint8_t left;            /* its rank has left the operation; it was called from `left_site` */
    unsigned char data[DTR__SHM_BESIDE];
} dtr__shm_slot;
_Static_assert(sizeof(dtr__shm_slot) == 64, "one cache line carries a small operation");

/* What else belongs to a slot, read only where needed. */
typedef struct dtr__shm_detail {
    _Alignas(64) unsigned char data[DTR__SHM_INLINE];
    uint64_t in_at, out_at;
    double premul;
    uint64_t count_in, count_out;
    uint64_t step; /* STAGED: bytes of each piece per chunk */
    int32_t kind, dtype, op, root;
} dtr__shm_detail;
_Static_assert(DTR__SHM_RUN_AHEAD *(DTR__SHM_SLOT_COUNT / 2) == DTR__SHM_INLINE,
               "a place for each slot");

typedef struct dtr__shm_rank {
    dtr__shm_slot slot[DTR__SHM_SLOT_COUNT]; /* operation n uses n % DTR__SHM_SLOT_COUNT */
    dtr__shm_detail detail[2];               /* and n & 1 */
    _Alignas(64) _Atomic uint64_t
        finished; /* operation << 20 | chunks pulled from everybody; all ones: whole */
    _Alignas(64) _Atomic uint64_t reduced; /* operation << 20 | pieces of the own slice (sliced),
                                              own slices (by_slices) that are ready */
    _Alignas(64) _Atomic uint64_t
        site_for; /* operation that `site` belongs to, filled when ranks disagree */
    char site[120];
    char left_site[120];          /* of the repeated calls in which this rank runs ahead */
    _Alignas(64) _Atomic int cpu; /* where its last fast path call began; if oversubscribed */
} dtr__shm_rank;

/* The control block of the group, in the arena of group rank 0. Those of the ranks lie behind it,
 * as many as fit into DTR_SHM_CONTROL; the further ones in the arenas of later ranks. */
typedef struct dtr__shm_control {
    _Alignas(64) _Atomic uint64_t
        broken;             /* 0, or operation << 2 | 1 while the text is written, 2 when it is */
    int32_t status, origin; /* group rank */
    char text[1024];
} dtr__shm_control;

/* shm_backend.c: how many ranks' blocks one rank keeps within `limit` bytes (0: the usual ones), 0:
 * not even its own; and the bytes that this comes to at a rank, tables included. */
int dtr__shm_keeps(int size, uint64_t limit);
size_t dtr__shm_kept_bytes(int size, int keeps, int rank);
/* Bytes of a staging chunk and of all pieces read from peers, which together stay in `limit`. */
size_t dtr__shm_chunk_bytes(int size, uint64_t wish, uint64_t limit);
size_t dtr__shm_bounce_bytes(uint64_t limit);
/* Bytes of a channel for messages to one rank (shm_p2p.h), of which each rank may have one to every
 * other within half of `limit`; 0: too little to be of use, and the group has no channels. */
size_t dtr__shm_channel_bytes(int size, uint64_t limit);
bool dtr__shm_has_channels(const dtr_group *g);

/* What of a rank's memory the others must not trust any more. */
enum { DTR__SHM_KEPT, DTR__SHM_BUFFERS, DTR__SHM_EVERYTHING };

/* What a rank publishes apart from operations. */
typedef struct dtr__shm_board {
    /* DTR__SHM_BUFFERS: the group is broken there, and buffers of its works may be written to at
     * any time; DTR__SHM_EVERYTHING: so may what it has copied them to. Grows only. By any thread
     * of that rank without a lock, before works end and before memory is given back: who has read
     * looks here once more and then knows that what it read was good. */
    _Atomic uint64_t withdrawn;
    /* What of everybody's outputs this rank stores into now, 0: nothing; and, for its own other
     * threads only, whose copies go into the program's memory. See shm_withdraw.c. */
    _Alignas(64) _Atomic uint64_t writing;
    _Atomic uint64_t copying;
    /* [from]: where the channel from that rank to this one is, + 1; 0: there is none yet. Its
     * sender writes it once, with release. */
    _Alignas(64) _Atomic uint64_t channel[];
} dtr__shm_board;

/* What of an operation this rank has done. */
typedef enum dtr__shm_phase {
    DTR__SHM_NEW,
    DTR__SHM_SHOW,
    DTR__SHM_ARRIVE,
    DTR__SHM_PULL,
    DTR__SHM_LEAVE
} dtr__shm_phase;

/* Why an operation cannot go on, or has not ended well: to be reported by its work. */
typedef enum dtr__shm_wrong {
    DTR__SHM_NOTHING_WRONG,
    DTR__SHM_DISAGREE,   /* another rank calls something else */
    DTR__SHM_UNREADABLE, /* a peer's plain buffer */
    DTR__SHM_LOST        /* the own output, for another group */
} dtr__shm_wrong;

/* The operation under way; one per group at a time. */
typedef struct dtr__shm_op {
    uint64_t n;
    dtr__shm_phase phase;
    dtr__shm_wrong wrong;
    bool whole;            /* goes all of the steps in shm_collectives.c */
    int arrived;           /* ranks 0..arrived-1 have described the same call */
    size_t size;           /* of an element */
    size_t n_blocks;       /* pieces of `in` that different readers want: 1 or the group size */
    size_t step;           /* bytes of each piece per chunk */
    size_t chunks_out;     /* that this rank stages */
    size_t posted, pulled; /* chunks so far */
    size_t chunks_in;      /* that this rank pulls */
    int copied;            /* sources of the chunk being copied that are done */
    bool zero_copy;        /* all buffers are node-shared: slices, no copies */
    bool sliced;           /* allreduce of plain buffers: slices, reduced here and fetched */
    size_t fetched;        /* sliced: pieces of the other slices that are here */
    bool by_slices;        /* staged allreduce whose chunks are reduced by slices */
    bool swaps;            /* two ranks have staged something for each other, */
    bool laps;             /* ... as many chunks: each time round they change memory */
    size_t made;           /* by_slices: chunks whose own slice is reduced */
    int nontemporal;       /* zero_copy: dtr__nontemporal of this operation */
    int attach_errno;      /* reading a peer's plain buffer failed, */
    int attach_rank;       /* ... that of this rank */
    bool among_long;       /* in the operation before some data was too long for a slot */
    bool ahead;            /* this rank waits for those only that it reads from */
    bool lost;             /* who it was read from had given up: it does not finish */
    bool quiet; /* all data is in slots: the next operation says that this one is finished */
    const unsigned char *in; /* the call's, or `copy` */
    void *copy;              /* private copy of the input where in and out overlap */
} dtr__shm_op;

/* How staging buffers and results are written: timed in turn, see shm_staging.c. */
typedef struct dtr__shm_trial {
    int buffers; /* that are filled in turn; 0: two */
    int step;
    bool nontemporal;                /* whether the last trial found such stores faster */
    int64_t next;                    /* when to try again */
    double cached, nontemporal_cost; /* best nanoseconds per byte of this trial */
} dtr__shm_trial;

typedef struct dtr__shm_state {
    dtr__shm_control *control;
    dtr__shm_rank **rank; /* [size] everybody's */
    void *own_control;    /* what this rank keeps */
    dtr__shm_rank *me;
    size_t chunk;             /* the longest, half of the staging memory; the same on all ranks */
    size_t chunk_least;       /* the usual one, of which long ones are a multiple */
    unsigned char *own_stage; /* staging memory in the own arena, made when first needed */
    uint64_t stage_at;        /* where this rank stages: there, or in the other rank's */
    uint64_t stage_used[DTR__SHM_STAGES]; /* mark of the chunk that used the buffer last */
    size_t stage_bytes;                   /* of a buffer, when they were used last */
    size_t stage_next;
    dtr__shm_trial trial;
    dtr__shm_trial spread[DTR__SHM_SIZES]; /* of results reduced where they lie, by their size */
    unsigned char *bounce; /* what has been read of peers' plain buffers, to be reduced */
    uint64_t *table;       /* [2][2 * size + 1] byte offsets of the own blocks, for v-forms, and the
                              bytes that an alltoallv takes from each rank; own arena; behind it
                              the own one of `boards` */
    uint64_t **tables;     /* [size] everybody's */
    dtr__shm_board **boards; /* [size] everybody's */
    int *place;  /* NULL; or, of a state for messages only, the place of each group rank among the
                    boards, -1: it is on another node */
    int sharers; /* ranks that channels lead between */
    bool lent;   /* the channels carry another state's messages */
    struct dtr__shm_p2p *p2p; /* NULL until the first message */
    unsigned polls;           /* that moved nothing to its end */
    uint64_t n;               /* operations so far */
    uint64_t seen;            /* all ranks have shown this operation, or a later one */
    uint64_t
        described[DTR__SHM_SLOT_COUNT]; /* fast path entry that the own slot describes, 0: none */
    uint64_t described_detail[2];       /* the same of what belongs to it */
    uint64_t row;           /* the row of equal calls that the last operation was one of, */
    uint64_t row_count;     /* ... and how many of them came before it */
    bool unshown;           /* the fast path call waits until its slot is free */
    uint64_t in_at, out_at; /* where its buffers lie, if they are reduced there */
    dtr__shm_op op;
    bool agreed_break;            /* the control block says so already */
    _Atomic uint64_t lent_out[2]; /* own outputs of operations n & 1 that others store into; for
                                     dtr__shm_take_back */
    uint64_t shared_as_of;        /* dtr__arena_version before the own buffers were looked up */
    _Atomic int n_kept, n_open;   /* writers that did not answer; pages of which stay shared */
    _Atomic int n_stuck;          /* own threads that did not */
} dtr__shm_state;

static inline void dtr__shm_expect_to_write(const void *line) {
#if defined(__x86_64__)
    __asm__ volatile(
        "prefetchw %0" ::"m"(*(const char *)line)); /* the built-in one means reading */
#else
    __builtin_prefetch(line, 1);
#endif
}

/* The first and the last piece, which may overlap. */
#define DTR__SHM_COPY_ENDS(type)                            \
    do {                                                    \
        type first, last;                                   \
        memcpy(&first, from, sizeof first);                 \
        memcpy(&last, from + n - sizeof last, sizeof last); \
        memcpy(to, &first, sizeof first);                   \
        memcpy(to + n - sizeof last, &last, sizeof last);   \
    } while (0)

/* A call of memcpy costs as much as the rest of a small slot. */
static inline void dtr__shm_copy(void *target, const void *source, size_t n) {
    unsigned char *to = target;
    const unsigned char *from = source;
    typedef struct {
        uint64_t word[2];
    } pair;
    if (n > 32 || n < 4) {
        memcpy(to, from, n);
    } else if (n >= 16) {
        DTR__SHM_COPY_ENDS(pair);
    } else if (n >= 8) {
        DTR__SHM_COPY_ENDS(uint64_t);
    } else {
        DTR__SHM_COPY_ENDS(uint32_t);
    }
}

/* The operation that begins is of this row: the fast path's entry, or the call and its place with
 * the highest bit set. */
static inline void dtr__shm_count_row(dtr__shm_state *s, uint64_t row) {
    s->row_count = s->row == row ? s->row_count + 1 : 0;
    s->row = row;
}
static inline uint64_t dtr__shm_mark(uint64_t n, size_t chunk) {
    return n << 20 | (chunk + 1);
}
/* Where the channel from one rank to another is written down; NULL: they do not share a node. */
static inline _Atomic uint64_t *dtr__shm_offer(const dtr__shm_state *s, int to, int from) {
    if (s->place == NULL) {
        return &s->boards[to]->channel[from];
    }
    return s->place[to] < 0 || s->place[from] < 0 ? NULL : &s->boards[to]->channel[s->place[from]];
}
static inline void dtr__shm_withdraw(dtr__shm_board *own, uint64_t what) {
    atomic_store_explicit(&own->withdrawn, what, memory_order_seq_cst);
#ifndef __SANITIZE_THREAD__ /* which does not know fences and warns of each */
    /* Before what the program puts there next, which its readers must not find without this. */
    atomic_thread_fence(memory_order_seq_cst);
#endif
}
/* After the data has been read or, from the own buffers, copied. */
static inline bool dtr__shm_has_withdrawn(const dtr__shm_board *board, uint64_t what) {
#ifndef __SANITIZE_THREAD__ /* which does not know fences and warns of each */
    atomic_thread_fence(memory_order_acquire);
#endif
    return atomic_load_explicit(&board->withdrawn, memory_order_relaxed) >= what;
}
#define DTR__SHM_WHOLE ((size_t)0xffffe) /* as a chunk number: all of the operation */

static inline dtr__shm_slot *dtr__shm_slot_of(const dtr__shm_state *s, int rank) {
    return &s->rank[rank]->slot[s->op.n % DTR__SHM_SLOT_COUNT];
}
static inline dtr__shm_detail *dtr__shm_detail_of(const dtr__shm_state *s, int rank) {
    return &s->rank[rank]->detail[s->op.n & 1];
}
/* Whether so much of an operation is in its rank's slot; and whether a rank has read so much. */
static inline bool dtr__shm_has_posted(const dtr__shm_slot *slot, uint64_t mark) {
    return atomic_load_explicit(&slot->posted, memory_order_acquire) >= mark;
}
static inline bool dtr__shm_has_finished(const dtr__shm_state *s, int rank, uint64_t mark) {
    return atomic_load_explicit(&s->rank[rank]->finished, memory_order_acquire) >= mark;
}
/* The data that a rank has put into its slot. */
static inline unsigned char *dtr__shm_shown(const dtr__shm_state *s, int rank) {
    dtr__shm_slot *slot = dtr__shm_slot_of(s, rank);
    return slot->mode == DTR__SHM_IN_LINE ? slot->data
                                          : dtr__shm_detail_of(s, rank)->data + slot->at;
}
/* (local rank, offset) in one word. */
static inline uint64_t dtr__shm_pack(int local_rank, uint64_t offset) {
    return (uint64_t)local_rank << 48 | offset;
}
static inline uint64_t dtr__shm_offset(uint64_t at) {
    return at & ((UINT64_C(1) << 48) - 1);
}
static inline void *dtr__shm_unpack(const dtr_world *w, uint64_t at) {
    return dtr__arena_at(w, (int)(at >> 48), dtr__shm_offset(at));
}
#define DTR__SHM_NOWHERE UINT64_MAX /* in place of such a word: this rank has no output */

/* shm_withdraw.c. may_write: announce that the next `nbytes` of everybody's output from `at` on are
 * stored into; false: somebody has taken its memory back, nothing may be stored. has_written: all
 * of it is there. */
bool dtr__shm_may_write(const dtr_group *g, const dtr__shm_state *s, size_t at, size_t nbytes);
void dtr__shm_has_written(const dtr_group *g, const dtr__shm_state *s);
/* Around copies into memory of works of this rank that another of its threads may end meanwhile;
 * enter is false where they have ended. */
bool dtr__shm_enter(dtr__shm_board *own);
void dtr__shm_leave(dtr__shm_board *own);
/* The works of this rank are about to end: afterwards nobody stores into their buffers any more.
 * Waits for writers, half a second at most; what one that does not answer may still store goes
 * nowhere. Waits for another thread of this rank, ten seconds at most. Any thread. warn_kept: warn
 * of that. */
void dtr__shm_take_back(const dtr_group *g, dtr__shm_state *s);
void dtr__shm_warn_kept(const dtr_group *g, dtr__shm_state *s);
/* The own output, of which the others know, has been kept from them meanwhile for the sake of
 * another group: they stored into, or read, pages that are not its any more. */
bool dtr__shm_lost_out(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c);
dtr_status dtr__shm_fail_lost_out(const dtr_group *g, const dtr_work *w);

/* shm_layout.c: which bytes of whose input this rank wants, and where they go. */
size_t dtr__shm_wanted(const dtr_group *g, const dtr__call *c, int source); /* bytes */
size_t dtr__shm_wanted_at(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                          int source);
/* Different readers want different pieces of an input; of different sizes, and only the giver knows
 * where they are. */
bool dtr__shm_scatters(dtr__kind k);
bool dtr__shm_has_table(dtr__kind k);
unsigned char *dtr__shm_target(const dtr_group *g, const dtr__call *c, int source);
/* Bytes and offset of piece `block` of the own input. */
size_t dtr__shm_piece(const dtr_group *g, const dtr__call *c, size_t block, size_t *offset);
bool dtr__shm_gives(const dtr_group *g, const dtr__call *c,
                    int rank); /* does anyone read from it? */
bool dtr__shm_reads(const dtr_group *g, const dtr__call *c,
                    int rank); /* does it read from others? */
bool dtr__shm_reads_from(const dtr_group *g, const dtr__call *c, int reader, int source);
/* Data goes one way: to a root, from it, or up the ranks. */
bool dtr__shm_one_way(dtr__kind k);
/* Bytes of an input that go into its rank's slot. Where ranks share processors and some could be
 * ahead of others fewer changes of ranks are faster, and staging buffers hold more calls. */
size_t dtr__shm_inline_most(const dtr_group *g, dtr__kind k);

/* shm_collectives.c: bytes that rank `r` shows for this one. */
size_t dtr__shm_given(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r);

/* shm_collectives.c: where chunk `k` of what this rank wants from `r` can be read, NULL: not yet;
 * where it is, or was, in the staging buffer of a rank. */
const unsigned char *dtr__shm_source(const dtr_group *g, const dtr__shm_state *s,
                                     const dtr__call *c, int r, size_t k);
unsigned char *dtr__shm_staged(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                               int r, size_t k);
static inline size_t dtr__shm_chunks(size_t nbytes, size_t step) {
    return (nbytes + step - 1) / step;
}
/* How many buffers chunk `k` of a slot lies behind buffer 0 of a ring of `n`. */
static inline size_t dtr__shm_round(const dtr__shm_slot *slot, size_t k, size_t n) {
    return slot->first % n + k;
}

/* shm_collectives.c: whether the operation under way waits for rank r to show it. */
bool dtr__shm_awaits(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r);

/* shm_collectives.c: begin an operation, move what can be moved now (*done when this rank's part is
 * complete), forget it. poll_call: advance for the fast path, as its poll. */
void dtr__shm_begin(dtr__shm_state *s, const dtr__call *c);
dtr_status dtr__shm_advance(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done);
int dtr__shm_poll_call(dtr_group *g, dtr__shm_state *s, const dtr__call *c);
void dtr__shm_end(dtr__shm_state *s);

/* shm_slot.c. prepare: choose where the data is to be and describe it in the own slot, *prepared
 * once that is free. keep_input: where the result takes the place of an input that is in the slot,
 * read it there. fill_slot: the slot is complete for the others; false: a staged one carries chunk
 * 0, whose buffer is in use. show: that much of it can be read; false: the program may have changed
 * its data while it was copied. fill_slot_broken: in a broken group, what the call is and no data.
 */
dtr_status dtr__shm_prepare(dtr_group *g, dtr__shm_state *s, const dtr__call *c, bool *prepared);
void dtr__shm_keep_input(const dtr_group *g, dtr__shm_state *s, const dtr__call *c);
bool dtr__shm_fill_slot(dtr_group *g, dtr__shm_state *s, const dtr__call *c);
bool dtr__shm_show(const dtr_group *g, const dtr__shm_state *s, uint64_t mark);
void dtr__shm_fill_slot_broken(dtr_group *g, dtr__shm_state *s, const dtr__call *c);
void dtr__shm_describe(dtr__shm_slot *slot, const dtr__call *c);
void dtr__shm_describe_detail(dtr__shm_detail *detail, const dtr__call *c);
/* What rank `r` puts of each piece into a chunk, and how many chunks this rank pulls; of others
 * only once they have filled their slots. */
size_t dtr__shm_step_of(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r);
void dtr__shm_count_chunks(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, bool filled);
/* Whether everybody is through with what was last in the own slot and, where `ahead` is 1, in its
 * details, so that the operation under way may be described there. */
bool dtr__shm_is_free(const dtr_group *g, dtr__shm_state *s, uint64_t ahead);
/* Whether the buffers of a call of so many bytes are in node-shared memory and may be reduced where
 * they lie if everybody's are; where that is. */
bool dtr__shm_lies_shared(const dtr_group *g, const dtr__call *c, size_t nbytes, uint64_t *in_at,
                          uint64_t *out_at);
/* Publish how far this rank has read; whether it may leave, as no rank still reads from it. */
void dtr__shm_publish_finished(const dtr_group *g, dtr__shm_state *s, const dtr__call *c);
bool dtr__shm_may_leave(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c);
void dtr__shm_write_table(const dtr_group *g, dtr__shm_state *s, const dtr__call *c);

/* What a rank's table says of the running operation. */
static inline uint64_t *dtr__shm_table_row(const dtr_group *g, const dtr__shm_state *s, int r) {
    return s->tables[r] + (s->op.n & 1) * (2 * (size_t)g->size + 1);
}

/* Bytes that rank `r`, which has filled its slot, takes from this one in an alltoallv. */
size_t dtr__shm_asked(const dtr_group *g, const dtr__shm_state *s, int r);

/* Whether that is what this rank gives it; true of every other call. */
bool dtr__shm_gives_asked(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r);
void dtr__shm_set_steps(const dtr_group *g, dtr__shm_state *s, const dtr__call *c);

/* shm_staging.c: make the staging memory; into how many buffers of so many bytes a call cuts it;
 * prepare the own ones for buffers of that size; copy the next chunk of every piece of the input
 * into one, false while it is being read; in which calls two ranks may change memory each time
 * round their buffers; at the end of an operation that swaps, take the other's; of the pieces in a
 * buffer, which one is a reader's: they go round from the giver's next rank on, so that of two
 * ranks each has the same place; which way comes next in a trial, and what it took; the one with
 * non-temporal stores is chosen if the other takes more than `worth` times as long. */
dtr_status dtr__shm_stage_need(dtr_group *g, dtr__shm_state *s);
size_t dtr__shm_stages(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                       size_t nbytes);
void dtr__shm_stage_cut(dtr__shm_state *s, size_t nbytes);
bool dtr__shm_stage_chunk(dtr_group *g, dtr__shm_state *s, const dtr__call *c, dtr__shm_slot *slot);
bool dtr__shm_may_lap(const dtr_group *g, dtr__kind k);
void dtr__shm_stage_swap(const dtr_group *g, dtr__shm_state *s, const dtr__call *c);
size_t dtr__shm_place_of(const dtr_group *g, const dtr__shm_state *s, int giver, int reader);
bool dtr__shm_trial_nontemporal(dtr__shm_trial *t, int64_t now);
bool dtr__shm_trial_over(const dtr__shm_trial *t); /* nothing is timed until the next one */
void dtr__shm_trial_took(dtr__shm_trial *t, int64_t from, int64_t until, size_t nbytes,
                         double worth);
/* One copy that either way serves: by non-temporal stores from `from_on` bytes on; 0: as trials
 * find. */
void dtr__shm_trial_copy(dtr__shm_trial *t, uint64_t from_on, void *to, const void *from,
                         size_t nbytes);

/* shm_collectives_sliced.c: is a staged call worth it, which all ranks see alike; the next slices,
 * true when the chunk that comes next is whole. */
bool dtr__shm_slices_fit(const dtr_group *g, const dtr__call *c);
bool dtr__shm_slices_pull(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t *moved);

/* shm_fast_path.c: see dtr__backend. */
bool dtr__shm_fast_path_accept(dtr_group *g, void *state, const dtr__call *c, struct dtr__moves *m);
bool dtr__shm_fast_path_start(dtr_group *g, void *state, const struct dtr__fast_path *p);
int dtr__shm_fast_path_poll(dtr_group *g, void *state, const struct dtr__fast_path *p);
void dtr__shm_fast_path_to_work(dtr_group *g, void *state, dtr_work *w);

/* shm_collectives_zero_copy.c: does this kind have the form without copies, and the next pieces of
 * it; true when the slice is complete. */
bool dtr__shm_streams(const dtr_group *g, dtr__kind kind,
                      size_t nbytes); /* by non-temporal stores? */
bool dtr__shm_streams_reduced(const dtr_group *g, dtr__kind kind, size_t nbytes);
bool dtr__shm_zero_fits(const dtr_group *g, const dtr__call *c);
bool dtr__shm_zero_pull(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t budget,
                        bool *moved);

/* shm_collectives_cma.c: plain buffers that the kernel reads for the peers. fits: is the way open
 * and worth it; offer: note in the slot where in and out of an allreduce are; copy: some of what
 * rank shows; bounce: room for a chunk of every rank; slice_at: where rank r's slice of so many
 * bytes begins, the end for r = size; pull: the next pieces of a sliced allreduce, true when all is
 * done. After a failure attach_errno is set. */
bool dtr__shm_attach_fits(const dtr_group *g, const dtr__call *c, size_t nbytes);
void dtr__shm_attach_offer(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                           size_t nbytes);
bool dtr__shm_attach_copy(const dtr_group *g, dtr__shm_state *s, int rank, void *to, size_t offset,
                          size_t nbytes);
size_t dtr__shm_attach_piece(const dtr_group *g);
unsigned char *dtr__shm_attach_bounce(const dtr_group *g, dtr__shm_state *s);
size_t dtr__shm_slice_at(const dtr_group *g, size_t nbytes, int r);
bool dtr__shm_attach_pull(dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t budget,
                          bool *moved);
dtr_status dtr__shm_attach_failed(dtr_group *g, dtr__shm_state *s, const dtr_work *w);

/* shm_error.c: errors that all ranks of the group share. The first one published wins; true: this
 * one. What is this rank's own failure is DTR_ERR_REMOTE for the others. */
dtr_status dtr__shm_mismatch(dtr_group *g, dtr__shm_state *s, dtr_work *w);
dtr_status dtr__shm_broken(dtr_group *g, dtr__shm_state *s, const dtr_work *w);
bool dtr__shm_publish(dtr_group *g, dtr__shm_state *s, dtr_status status, const char *text);
const char *dtr__shm_missing(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                             char *text, size_t cap);

#endif /* DTR_SHM_INTERNAL_H */
