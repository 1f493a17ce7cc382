/* Point to point of the shm backend.
 *
 * From every rank to every other one of the group leads a channel: a ring of cells in the arena of
 * the sender, made when it first sends there. A short message is a cell. A long one is a cell that
 * says where the data is; the receiver copies it from there, or asks for pieces, which then come
 * through the ring. Every cell can be taken out of the ring at any time - a message that nobody has
 * asked for yet is put aside - so nothing in it keeps what is behind it waiting. */
#ifndef DTR_SHM_P2P_H
#define DTR_SHM_P2P_H

#include "core/message.h"
#include "shm_internal.h"

enum {
    DTR__SHM_LINE = 64,
    DTR__SHM_LONG_MESSAGES = 64, /* long messages of a channel under way at once */
    DTR__SHM_CELL_FIRST = 40, /* bytes of a message beside its head: one cache line carries both */
};

typedef enum dtr__shm_cell_kind {
    DTR__SHM_PAD = 1, /* the next cell is at the beginning of the ring */
    DTR__SHM_SHORT,
    DTR__SHM_LONG,
    DTR__SHM_PIECE /* `count` bytes of the long message in `slot` */
} dtr__shm_cell_kind;

/* Where the data of a message is; of a short one behind its cell unless it is in a block. */
typedef enum dtr__shm_where {
    DTR__SHM_IN_CELL = 0,
    DTR__SHM_BY_PIECES = 1, /* it comes through the ring when the receiver asks for it */
    DTR__SHM_IN_ARENA,
    DTR__SHM_BY_KERNEL, /* in plain memory that the kernel reads for the receiver */
    DTR__SHM_BY_EITHER, /* the same, if the receiver sends meanwhile; by pieces otherwise */
    DTR__SHM_OWN,       /* sender and receiver are one process */
    DTR__SHM_IN_BLOCK   /* in a block, which is the receiver's from now on */
} dtr__shm_where;

/* Whole lines; `mark` is written last, with release. */
typedef struct dtr__shm_cell {
    _Alignas(64) _Atomic uint64_t mark; /* lines << 8 | kind; 0: not there yet */
    uint64_t count;
    int32_t tag;
    uint8_t dtype, where, slot, reserved;
    unsigned char first[DTR__SHM_CELL_FIRST];
    char site[DTR__SITE_MAX]; /* read only if the two disagree */
    uint64_t at;
} dtr__shm_cell; /* behind it the data of a short message that does not fit into `first` */

/* What the receiver says about a long message. */
typedef enum dtr__shm_answer {
    DTR__SHM_SILENT,
    DTR__SHM_SEND_PIECES,
    DTR__SHM_HAS_IT,
    DTR__SHM_REFUSES
} dtr__shm_answer;

typedef struct dtr__shm_channel {
    _Alignas(64) _Atomic uint64_t taken; /* lines; by the receiver */
    _Alignas(64) _Atomic uint32_t
        answer[DTR__SHM_LONG_MESSAGES]; /* by the receiver, zeroed by the sender */
    _Alignas(64) dtr__terms refused;    /* of the first message that the receiver refused */
    _Alignas(64) uint64_t lines;        /* of the ring */
    _Alignas(64) unsigned char ring[];
} dtr__shm_channel;

/* A message that this rank sends or receives; guarded by the progress lock, as all below. */
typedef struct dtr__shm_msg {
    dtr__message base; /* announced, of a receive: a message is here, base.other says what */
    struct dtr__shm_msg *next;   /* in a queue of sends, or of receives not yet matched */
    struct dtr__shm_msg **watch; /* NULL, or set to NULL when it leaves its queue */
    bool queued;
    bool differs; /* what is here does not fit; send: the receiver has refused it */
    bool done;
    bool waits; /* send: its caller has nothing else to do */
    uint8_t where, slot;
    uint8_t polls; /* since it differs */
    size_t moved;
    uint64_t at;
} dtr__shm_msg;

/* A message that came before its receive. */
typedef struct dtr__shm_early {
    struct dtr__shm_early *next;
    int source;
    dtr__shm_cell cell; /* its head; short: the data behind it */
} dtr__shm_early;

typedef struct dtr__shm_queue {
    dtr__shm_msg *head, *tail;
} dtr__shm_queue;

/* Memory behind a ring for one short message. Who has read one puts its own next message to that
 * rank there: what it has just read is in its cache, and costs less to write than its ring, which
 * the other has read. */
typedef struct dtr__shm_block {
    uint64_t at; /* packed */
    unsigned char *data;
} dtr__shm_block;

/* The two ends of channels. `at`: line of the next cell. */
typedef struct dtr__shm_out {
    dtr__shm_channel *channel;  /* NULL until the first message */
    uint64_t at, pushed, taken; /* taken: as seen last */
    dtr__shm_block block[2];    /* those of the two ranks that this one has, the newest last */
    int n_blocks;
    dtr__shm_queue queue; /* not in the ring yet */
    uint64_t busy;        /* slots, one bit each */
    dtr__shm_msg *slot[DTR__SHM_LONG_MESSAGES];
} dtr__shm_out;

typedef struct dtr__shm_in {
    dtr__shm_channel *channel; /* NULL until it is seen */
    uint64_t at, taken;
    bool refused;
    dtr__shm_msg *slot[DTR__SHM_LONG_MESSAGES]; /* those whose pieces are coming */
} dtr__shm_in;

typedef struct dtr__shm_p2p {
    dtr__shm_board *const *boards; /* the state's */
    const dtr__shm_board *own;
    dtr__shm_out *out;                  /* [size] */
    dtr__shm_in *in;                    /* [size] */
    dtr__shm_queue posted;              /* receives without a message, as they were called */
    dtr__shm_early *early, *last_early; /* messages without a receive, as they came */
    dtr__shm_early *kept, *spare;       /* memory for small ones; what is free of it */
    size_t n_kept;
    dtr__message_pool pool;
    size_t channel_bytes, block_bytes, short_max, piece;
    uint64_t stage_nontemporal; /* the threshold; 0: pieces go nontemporal the caches where `trial`
                                   finds it fast */
    dtr__shm_trial trial;
    uint64_t moves;       /* grows with everything that happens */
    dtr__p2p_set pending; /* messages of the fast path call that are not through */
} dtr__shm_p2p;

/* shm_p2p_channel.c */
dtr_status dtr__shm_p2p_need(const dtr_group *g, dtr__shm_state *s);
void dtr__shm_p2p_free(dtr_group *g, dtr__shm_state *s, bool healthy);
/* A state that carries messages of `g` between its ranks on this node, over the channels of
 * `lender`, which is the state of `node`, the group of those ranks; and its end, before the
 * lender's. */
dtr_status dtr__shm_lend(const dtr_group *g, const dtr_group *node, dtr__shm_state *lender,
                         dtr__shm_state **state);
void dtr__shm_lend_end(dtr_group *g, dtr__shm_state *s);
dtr_status dtr__shm_out_open(const dtr_group *g, dtr__shm_state *s, int peer);
/* A short message into the ring; false while the ring is full. */
bool dtr__shm_push_short(dtr__shm_p2p *p, dtr__shm_out *out, const dtr_p2p *op, size_t nbytes,
                         const char *site);
/* The announcement of a long one, in a free slot. */
bool dtr__shm_push_long(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_out *out, dtr__shm_msg *m);
/* More pieces of a long one, as many as the ring takes. */
void dtr__shm_push_pieces(dtr__shm_p2p *p, dtr__shm_out *out, dtr__shm_msg *m);
/* The next cell of a channel, NULL while there is none; and that it has been used. */
const dtr__shm_cell *dtr__shm_cell_next(const dtr_group *g, dtr__shm_state *s, int peer);
void dtr__shm_cell_taken(const dtr_group *g, dtr__shm_p2p *p, int peer, const dtr__shm_cell *cell);
static inline dtr__shm_cell_kind dtr__shm_cell_kind_of(const dtr__shm_cell *cell) {
    return (dtr__shm_cell_kind)(atomic_load_explicit(&cell->mark, memory_order_relaxed) & 0xff);
}
/* Of a short message. */
const void *dtr__shm_cell_data(const dtr_group *g, const dtr__shm_cell *cell, size_t nbytes);

/* shm_p2p_match.c: receives and messages find each other. queue_receive: it looks among the
 * messages that came early. take: what is in the channel from `peer`. */
void dtr__shm_p2p_queue_receive(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_msg *m);
void dtr__shm_unpost(dtr__shm_queue *q, dtr__shm_msg *m);
dtr_status dtr__shm_take(const dtr_group *g, dtr__shm_state *s, int peer);
void dtr__shm_early_free(dtr__shm_p2p *p, dtr__shm_early *e);
/* More of a long message out of the sender's memory. */
void dtr__shm_fetch(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_msg *m);

/* shm_p2p.c: as in dtr__backend. */
dtr_status dtr__shm_p2p_start(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done);
dtr_status dtr__shm_p2p_progress(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done);
void dtr__shm_p2p_cancel(dtr__shm_state *s, dtr_work *w);
/* One more message for a work, begun; and a receive that nothing has come for is taken back. */
dtr_status dtr__shm_p2p_add(const dtr_group *g, dtr__shm_state *s, dtr_work *w, const dtr_p2p *op,
                            size_t index, dtr__shm_msg **message);
void dtr__shm_p2p_take_back(dtr__shm_state *s, dtr_work *w, dtr__shm_msg *m);
/* Take what has come from anybody, so that senders can go on while this rank waits for others. */
void dtr__shm_p2p_relieve(const dtr_group *g, dtr__shm_state *s);
bool dtr__shm_p2p_fast_accept(const dtr__shm_state *s, const dtr__call *c);
bool dtr__shm_p2p_fast_start(dtr__shm_state *s, const dtr__call *c, dtr__p2p_set which,
                             const char *site);
int dtr__shm_p2p_fast_poll(const dtr_group *g, dtr__shm_state *s, const dtr__call *c);
int dtr__shm_fast_path_message(dtr_group *g, void *state, const struct dtr__fast_path *entry);
void dtr__shm_p2p_fast_to_work(const dtr_group *g, dtr__shm_state *s, dtr_work *w);

#endif /* DTR_SHM_P2P_H */
