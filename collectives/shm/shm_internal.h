/* The shm backend: collectives of ranks on one node through the memory they share.
 *
 * Every rank shows each operation in its own post: a number, a fingerprint, and where its data is -
 * in the post itself, in the caller's node-shared buffer, or in a staging buffer that is filled
 * chunk by chunk. All ranks wait until all have posted and compare fingerprints; then everyone
 * pulls what it needs. A post of operation n says that its rank has finished operation n - 1, so
 * what belongs to posts and the staging buffers of two operations in turn need no further
 * handshake.
 *
 * In a row of equal small calls with a root, ranks that get nothing, or only the root's data, leave
 * without waiting for the others (shm_repeat.c). They run ahead of those they did not wait for, by
 * as many posts as there are. */
#ifndef DTR_SHM_INTERNAL_H
#define DTR_SHM_INTERNAL_H

#include "coll_internal.h"

enum {
    DTR__SHM_INLINE = 8192, /* bytes that travel inside a post */
    DTR__SHM_BESIDE = 32,   /* that travel beside its head, in the same cache line */
    DTR__SHM_POSTS = 32,    /* a power of two */
    DTR__SHM_LEAD = 512,    /* bytes of a call in whose rows ranks may be ahead of each other, */
    DTR__SHM_LEAD_CROWDED = 4096,      /* ... and where ranks share CPUs and take turns */
    DTR__SHM_BUDGET = 4 * 1024 * 1024, /* bytes moved before other groups get a turn */
    DTR__SHM_STRETCH = 4,              /* times the usual chunk is a long one, */
    DTR__SHM_STRETCH_MOST = 8,         /* ... for data of at most so many long ones */
    DTR__SHM_MAX_RANKS = 1024,
    DTR__SHM_SIZES = 12 /* powers of two from 16 KiB on whose results are written alike */
};

/* Where a rank's data is. */
typedef enum dtr__shm_mode {
    DTR__SHM_NOTHING, /* nobody reads from it */
    DTR__SHM_IN_LINE,
    DTR__SHM_IN_POST,
    DTR__SHM_DIRECT, /* in node-shared memory: read from there */
    DTR__SHM_ATTACH, /* in plain memory that the kernel reads for the others */
    DTR__SHM_STAGED
} dtr__shm_mode;

/* One operation as its rank shows it. `posted` is written last, with release: operation << 20 |
 * chunks posted. */
typedef struct dtr__shm_post {
    _Alignas(64) _Atomic uint64_t posted;
    uint64_t fingerprint;
    uint64_t at;         /* DIRECT: in; STAGED: the two buffers; dtr__shm_pack. IN_POST: offset */
    uint8_t mode, first; /* first: staging buffer of chunk 0 */
    uint8_t shift;       /* 1: chunk c is posted as c + 1, because the first post carried no data */
    uint8_t zero_copy;   /* in and out are both node-shared */
    uint8_t sliced;      /* in and out can be read by all: allreduce by slices */
    uint8_t in_raw, out_raw; /* in_at, out_at: addresses in plain memory */
    uint8_t left;            /* its rank has left the operation; it was called from `left_site` */
    unsigned char data[DTR__SHM_BESIDE];
} dtr__shm_post;
_Static_assert(sizeof(dtr__shm_post) == 64, "one cache line carries a small operation");

/* What else belongs to a post, read only where needed. */
typedef struct dtr__shm_more {
    _Alignas(64) unsigned char data[DTR__SHM_INLINE];
    uint64_t in_at, out_at;
    double premul;
    uint64_t count_in, count_out;
    uint64_t step; /* STAGED: bytes of each piece per chunk */
    int32_t kind, dtype, op, root;
} dtr__shm_more;
_Static_assert(DTR__SHM_LEAD *(DTR__SHM_POSTS / 2) == DTR__SHM_INLINE, "a place for each post");

typedef struct dtr__shm_rank {
    dtr__shm_post post[DTR__SHM_POSTS]; /* operation n uses n % DTR__SHM_POSTS */
    dtr__shm_more more[2];              /* and n & 1 */
    _Alignas(64) _Atomic uint64_t
        finished; /* operation << 20 | chunks pulled from everybody; all ones: whole */
    _Alignas(64) _Atomic uint64_t reduced; /* operation << 20 | pieces of the own slice (sliced),
                                              own slices (by_slices) that are ready */
    _Alignas(64) _Atomic uint64_t
        site_for; /* operation that `site` belongs to, filled when ranks disagree */
    char site[120];
    char left_site[120];          /* of the calls in a row that this rank leaves early */
    _Alignas(64) _Atomic int cpu; /* where it was when it began its last repeat; in a crowd only */
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
 * other within half of `limit`; 0: too little to be of use, messages go through MPI. */
size_t dtr__shm_channel_bytes(int size, uint64_t limit);

/* What of a rank's memory the others must not trust any more. */
enum { DTR__SHM_KEPT, DTR__SHM_BUFFERS, DTR__SHM_EVERYTHING };

/* What a rank shows of itself apart from operations. */
typedef struct dtr__shm_row {
    /* DTR__SHM_BUFFERS: the group is broken there, and buffers of its works may be written to at
     * any time; DTR__SHM_EVERYTHING: so may what it has copied them to. Grows only. By any thread
     * of that rank without a lock, before works end and before memory is given back: who has read
     * looks here once more and then knows that what it read was good. */
    _Atomic uint64_t withdrawn;
    _Atomic uint64_t channel[]; /* [from]: where the channel that leads here is, + 1; 0: not made
                                   yet; by its sender, once, with release */
} dtr__shm_row;

/* What of an operation this rank has done. */
typedef enum dtr__shm_phase {
    DTR__SHM_NEW,
    DTR__SHM_POST,
    DTR__SHM_ARRIVE,
    DTR__SHM_PULL,
    DTR__SHM_LEAVE
} dtr__shm_phase;

/* The operation under way; one per group at a time. */
typedef struct dtr__shm_op {
    uint64_t n;
    dtr__shm_phase phase;
    int arrived;           /* ranks 0..arrived-1 have posted alike */
    size_t size;           /* of an element */
    size_t n_blocks;       /* pieces of `in` that different readers want: 1 or the group size */
    size_t step;           /* bytes of each piece per chunk */
    size_t chunks_out;     /* this rank posts */
    size_t posted, pulled; /* chunks so far */
    size_t chunks_in;      /* this rank pulls */
    int copied;            /* sources of the chunk being copied that are done */
    bool zero_copy;        /* all buffers are node-shared: slices, no copies */
    bool sliced;           /* allreduce of plain buffers: slices, reduced here and fetched */
    size_t fetched;        /* sliced: pieces of the other slices that are here */
    bool by_slices;        /* staged allreduce whose chunks are reduced by slices */
    size_t made;           /* by_slices: chunks whose own slice is reduced */
    int past;              /* zero_copy: dtr__past of this operation */
    int attach_errno;      /* reading a peer's plain buffer failed, */
    int attach_rank;       /* ... that of this rank */
    bool lost;             /* who it was read from had given up: it does not finish */
    bool quiet; /* all data is in the posts: the next operation says that this one is finished */
    const unsigned char *in; /* the call's, or `copy` */
    void *copy;              /* private copy of the input where in and out overlap */
} dtr__shm_op;

/* How staging buffers and results are written: timed in turn, see shm_stage.c. */
typedef struct dtr__shm_trial {
    int buffers; /* that are filled in turn; 0: two */
    int step;
    bool past;              /* past the caches, as the last trial found */
    int64_t next;           /* when to try again */
    double cached, by_past; /* best nanoseconds per byte of this trial */
} dtr__shm_trial;

typedef struct dtr__shm_state {
    dtr__shm_control *control;
    dtr__shm_rank **rank; /* [size] everybody's */
    void *own_control;    /* what this rank keeps */
    dtr__shm_rank *me;
    size_t chunk;         /* of a staging buffer; the same on all ranks */
    size_t chunk_least;   /* the usual one, of which long ones are a multiple */
    unsigned char *stage; /* two chunks in the own arena, made when first needed */
    uint64_t stage_at;
    uint64_t stage_used[2]; /* post that used the buffer last */
    int stage_next;
    dtr__shm_trial trial;
    dtr__shm_trial spread[DTR__SHM_SIZES]; /* of results reduced where they lie, by their size */
    unsigned char *bounce; /* what has been read of peers' plain buffers, to be reduced */
    uint64_t *table;       /* [2][2 * size + 1] byte offsets of the own blocks, for v-forms, and the
                              bytes that an alltoallv takes from each rank; own arena; behind it
                              the own one of `rows` */
    uint64_t **tables;     /* [size] everybody's */
    dtr__shm_row **rows;   /* [size] everybody's */
    int *place;  /* NULL; or, of a state for messages only, the place of each group rank in the
                    rows, -1: it is on another node */
    int sharers; /* ranks that channels lead between */
    bool lent;   /* the channels carry another state's messages */
    struct dtr__shm_p2p *p2p;           /* NULL until the first message */
    unsigned polls;                     /* that moved nothing to its end */
    uint64_t n;                         /* operations so far */
    uint64_t seen;                      /* all ranks have shown this operation, or a later one */
    uint64_t described[DTR__SHM_POSTS]; /* repeat that the own post describes; 0: something else */
    uint64_t described_more[2];         /* the same of what belongs to it */
    uint64_t row_of;                    /* repeat that the last operations were, 0: another call, */
    uint64_t row;                       /* ... and how many of them there were before the last */
    bool unshown;                       /* the repeat under way waits until its post is free */
    uint64_t in_at, out_at;             /* where its buffers lie, if they are reduced there */
    dtr__shm_op op;
    bool agreed_break; /* the control block says so already */
    void *mpi;         /* state of the mpi backend where that carries messages, else NULL */
} dtr__shm_state;

static inline void dtr__shm_expect_to_write(const void *line) {
#if defined(__x86_64__)
    __asm__ volatile(
        "prefetchw %0" ::"m"(*(const char *)line)); /* the built-in one means reading */
#else
    __builtin_prefetch(line, 1);
#endif
}

static inline uint64_t dtr__shm_mark(uint64_t n, size_t chunk) {
    return n << 20 | (chunk + 1);
}
static inline uint64_t dtr__shm_break(uint64_t n, int how) {
    return n << 2 | (uint64_t)how;
}
/* Where the channel from one rank to another is written down; NULL: they do not share a node. */
static inline _Atomic uint64_t *dtr__shm_offer(const dtr__shm_state *s, int to, int from) {
    if (s->place == NULL) {
        return &s->rows[to]->channel[from];
    }
    return s->place[to] < 0 || s->place[from] < 0 ? NULL : &s->rows[to]->channel[s->place[from]];
}
static inline void dtr__shm_withdraw(dtr__shm_row *own, uint64_t what) {
    atomic_store_explicit(&own->withdrawn, what, memory_order_release);
}
/* After the data has been read or, from the own buffers, copied. */
static inline bool dtr__shm_has_withdrawn(const dtr__shm_row *row, uint64_t what) {
#ifndef __SANITIZE_THREAD__ /* which does not know fences and warns of each */
    atomic_thread_fence(memory_order_acquire);
#endif
    return atomic_load_explicit(&row->withdrawn, memory_order_relaxed) >= what;
}
#define DTR__SHM_WHOLE ((size_t)0xffffe) /* as a chunk number: all of the operation */

static inline dtr__shm_post *dtr__shm_post_of(const dtr__shm_state *s, int rank) {
    return &s->rank[rank]->post[s->op.n % DTR__SHM_POSTS];
}
static inline dtr__shm_more *dtr__shm_more_of(const dtr__shm_state *s, int rank) {
    return &s->rank[rank]->more[s->op.n & 1];
}
/* What a rank shows in its post. */
static inline unsigned char *dtr__shm_shown(const dtr__shm_state *s, int rank) {
    dtr__shm_post *post = dtr__shm_post_of(s, rank);
    return post->mode == DTR__SHM_IN_LINE ? post->data : dtr__shm_more_of(s, rank)->data + post->at;
}
/* (local rank, offset) in one word. */
static inline uint64_t dtr__shm_pack(int local_rank, uint64_t offset) {
    return (uint64_t)local_rank << 48 | offset;
}
static inline void *dtr__shm_unpack(const dtr_world *w, uint64_t at) {
    return dtr__arena_at(w, (int)(at >> 48), at & ((UINT64_C(1) << 48) - 1));
}

/* shm_move.c: which bytes of whose input this rank wants, and where they go. */
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

/* shm_pull.c: bytes that rank `r` shows for this one. */
size_t dtr__shm_given(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r);

/* shm_pull.c: where chunk `k` of what this rank wants from `r` can be read, NULL: not yet; where it
 * is, or was, in the staging buffer of a rank. */
const unsigned char *dtr__shm_source(const dtr_group *g, const dtr__shm_state *s,
                                     const dtr__call *c, int r, size_t k);
unsigned char *dtr__shm_staged(const dtr_group *g, const dtr__shm_state *s, int r, size_t k);

/* shm_pull.c: begin an operation, move what can be moved now (*done when this rank's part is
 * complete), forget it. */
void dtr__shm_begin(dtr__shm_state *s, const dtr__call *c);
dtr_status dtr__shm_advance(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done);
void dtr__shm_end(dtr__shm_state *s);
void dtr__shm_post_late(dtr_group *g, dtr__shm_state *s, const dtr__call *c);
void dtr__shm_describe(dtr__shm_post *post, const dtr__call *c);
void dtr__shm_describe_more(dtr__shm_more *more, const dtr__call *c);
/* Whether everybody is through with what the own post and, where `lead` is 1, what belongs to it
 * showed last, so that the operation under way may be shown there. */
bool dtr__shm_is_free(const dtr_group *g, dtr__shm_state *s, uint64_t lead);
/* Whether the buffers of a call of so many bytes are in node-shared memory and may be reduced where
 * they lie if everybody's are; where that is. */
bool dtr__shm_lies_shared(const dtr_group *g, const dtr__call *c, size_t nbytes, uint64_t *in_at,
                          uint64_t *out_at);
/* Tell how far this rank has read; may it leave, or is something of it still read? */
void dtr__shm_tell_finished(const dtr_group *g, dtr__shm_state *s);
bool dtr__shm_may_leave(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c);
void dtr__shm_write_table(const dtr_group *g, dtr__shm_state *s, const dtr__call *c);

/* What a rank's table says of the running operation. */
static inline uint64_t *dtr__shm_table_row(const dtr_group *g, const dtr__shm_state *s, int r) {
    return s->tables[r] + (s->op.n & 1) * (2 * (size_t)g->size + 1);
}

/* Bytes that rank `r`, which has posted, takes from this one in an alltoallv. */
size_t dtr__shm_asked(const dtr_group *g, const dtr__shm_state *s, int r);

/* Whether that is what this rank gives it; true of every other call. */
bool dtr__shm_gives_asked(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r);
void dtr__shm_set_steps(const dtr_group *g, dtr__shm_state *s, const dtr__call *c);

/* shm_stage.c: make the staging buffers; copy the next chunk of every piece of the input into one,
 * false while it is being read; which way comes next in a trial, and what it took;
 * the one past the caches is chosen if the other takes more than `worth` times as long. */
dtr_status dtr__shm_stage_need(dtr_group *g, dtr__shm_state *s);
bool dtr__shm_stage_chunk(dtr_group *g, dtr__shm_state *s, const dtr__call *c, dtr__shm_post *post);
bool dtr__shm_trial_past(dtr__shm_trial *t, int64_t now);
bool dtr__shm_trial_over(const dtr__shm_trial *t); /* nothing is timed until the next one */
void dtr__shm_trial_took(dtr__shm_trial *t, int64_t from, int64_t until, size_t nbytes,
                         double worth);
/* One copy that either way serves: past the caches from `from_on` bytes on; 0: as trials find. */
void dtr__shm_trial_copy(dtr__shm_trial *t, uint64_t from_on, void *to, const void *from,
                         size_t nbytes);

/* shm_slices.c: is a staged call worth it, which all ranks see alike; the next slices, true when
 * the chunk that comes next is whole. */
bool dtr__shm_slices_fit(const dtr_group *g, const dtr__call *c);
bool dtr__shm_slices_pull(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t *moved);

/* shm_repeat.c: see dtr__backend. */
bool dtr__shm_repeat_accept(dtr_group *g, void *state, const dtr__call *c, struct dtr__moves *m);
bool dtr__shm_repeat_post(dtr_group *g, void *state, const struct dtr__repeat *p);
int dtr__shm_repeat_look(dtr_group *g, void *state, const struct dtr__repeat *p);
void dtr__shm_repeat_go_on(dtr_group *g, void *state, dtr_work *w);

/* shm_zero.c: does this kind have the form without copies, and the next pieces of it; true when the
 * slice is complete. */
bool dtr__shm_streams(const dtr_group *g, dtr__kind kind, size_t nbytes); /* past the caches? */
bool dtr__shm_streams_reduced(const dtr_group *g, dtr__kind kind, size_t nbytes);
bool dtr__shm_zero_fits(const dtr_group *g, const dtr__call *c);
bool dtr__shm_zero_pull(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t budget,
                        bool *moved);

/* shm_attach.c: plain buffers that the kernel reads for the peers. fits: is the way open and worth
 * it; offer: note in the post where in and out of an allreduce are; copy: some of what rank shows;
 * bounce: room for a chunk of every rank; slice_at: where rank r's slice of so many bytes begins,
 * the end for r = size; pull: the next pieces of a sliced allreduce, true when
 * all is done. After a failure attach_errno is set. */
bool dtr__shm_attach_fits(const dtr_group *g, const dtr__call *c, size_t nbytes);
void dtr__shm_attach_offer(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                           size_t nbytes);
bool dtr__shm_attach_copy(const dtr_group *g, dtr__shm_state *s, int rank, void *to, size_t offset,
                          size_t nbytes);
size_t dtr__shm_attach_piece(const dtr_group *g);
unsigned char *dtr__shm_attach_bounce(const dtr_group *g, dtr__shm_state *s);
size_t dtr__shm_slice_at(const dtr_group *g, size_t nbytes, int r);
bool dtr__shm_attach_pull(dtr_group *g, dtr__shm_state *s, dtr_work *w, size_t budget);
dtr_status dtr__shm_attach_failed(dtr_group *g, dtr__shm_state *s, const dtr_work *w);

/* shm_error.c: errors that all ranks of the group share. The first one published wins; true: this
 * one. What is this rank's own failure is DTR_ERR_REMOTE for the others. */
dtr_status dtr__shm_mismatch(dtr_group *g, dtr__shm_state *s, dtr_work *w);
dtr_status dtr__shm_broken(dtr_group *g, dtr__shm_state *s, const dtr_work *w);
bool dtr__shm_publish(dtr_group *g, dtr__shm_state *s, dtr_status status, const char *text);
const char *dtr__shm_missing(const dtr_group *g, const dtr__shm_state *s, char *text, size_t cap);

#endif /* DTR_SHM_INTERNAL_H */
