/* What the files of this room share. All of it but constants is guarded by the lock of dtr__tcp.
 *
 * A connection carries frames one way, from who dialed to who accepted: so two ranks that begin to
 * talk at once need not settle which of two connections counts, and what one has sent before it
 * closes arrives whatever it has left unread. */
#ifndef DTR_TCP_INTERNAL_H
#define DTR_TCP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "tcp/tcp.h"

#define DTR__TCP_MAGIC UINT64_C(0x3130706374725464)
enum {
    DTR__TCP_EAGER = 64 << 10,  /* bytes of a message that is sent without being asked for */
    DTR__TCP_WINDOW = 1 << 20,  /* and of all of them that a receiver has not matched yet */
    DTR__TCP_CHUNK = 256 << 10, /* of a longer one, so that other frames come between */
    DTR__TCP_BUFFER = 16 << 10  /* of an accepted connection */
};

typedef enum dtr__frame_kind {
    DTR__FRAME_EAGER = 1, /* a message, which follows */
    DTR__FRAME_OFFER,     /* a message that is to be asked for by `from_op` */
    DTR__FRAME_ACCEPT,    /* nbytes of `to_op` are to come, to `from_op`; 0: it is of no use */
    DTR__FRAME_DATA,      /* for `to_op`; follow */
    DTR__FRAME_NOTE,      /* follows */
    DTR__FRAME_CREDIT     /* nbytes of eager messages have been matched, since the beginning */
} dtr__frame_kind;

typedef struct dtr__frame {
    uint32_t kind;
    int32_t tag;
    uint64_t channel, nbytes, from_op, to_op;
} dtr__frame;

typedef enum dtr__op_state {
    DTR__OP_QUEUED,    /* its frame waits, in peer.frames, or is being written */
    DTR__OP_OFFERED,   /* in peer.offered */
    DTR__OP_SENDING,   /* in peer.sending */
    DTR__OP_POSTED,    /* in tcp.posted */
    DTR__OP_FILLING,   /* a receive that has its message, which is being read */
    DTR__OP_RECEIVING, /* in peer.receiving */
    DTR__OP_DONE
} dtr__op_state;

typedef struct dtr__op_list {
    dtr__tcp_op *first, *last;
} dtr__op_list;

struct dtr__tcp_op {
    dtr__tcp_op *next, *prev;
    dtr__op_list *in; /* NULL: in none */
    dtr__op_state state;
    dtr__frame_kind frame;       /* of QUEUED */
    int peer, tag;               /* of a receive maybe any, until it has its message */
    uint64_t channel, id, other; /* other: the other side's op */
    char *data;
    size_t nbytes, done;   /* done: bytes sent, or received */
    size_t got;            /* of a receive: length of its message */
    size_t wanted;         /* what of it is to come */
    bool owned, cancelled; /* owned: nobody tests it, and its data are freed with it */
};

/* A message that no receive has met, or one that is met before it is here. */
typedef struct dtr__arrived {
    struct dtr__arrived *next;
    int from, tag;
    uint64_t channel, offer; /* offer: sender's op; 0: it is an eager one */
    size_t nbytes;
    bool whole, dropped;
    dtr__tcp_op *op; /* that waits until it is whole */
    char data[];
} dtr__arrived;

typedef struct dtr__conn {
    struct dtr__conn *next;
    int fd;             /* -1: closed, to be freed */
    int rank, greeting; /* rank -1: a stranger; greeting: step of the handshake */
    bool dialed, connecting, ready, waits_to_write;
    int64_t since_ns;
    dtr__proof_of proof;
    /* What is read: the frame at hand, how much of what follows it is to come, and where to. */
    dtr__frame frame;
    size_t left;
    uint64_t n_frames;
    dtr__tcp_op *op; /* one of these, or NULL all: it is of no use */
    dtr__arrived *into;
    char *note;
    size_t n_in, cap_in;
    char in[];
} dtr__conn;

typedef struct dtr__peer {
    dtr__tcp_place place;
    bool is_known; /* place is set */
    dtr__conn *out, *in;
    int address;               /* to be dialed next */
    bool answers;              /* one of them did other than refuse */
    int64_t dial_ns, first_ns; /* not before; first try, 0: none yet */
    dtr__op_list frames, offered, sending, receiving;
    /* What is being written: head, then payload. Its op stays the first of its list meanwhile. */
    struct {
        dtr__frame head;
        size_t head_left, payload_left;
        const char *payload;
        dtr__tcp_op *op; /* NULL: given up, or none */
        char *spill;     /* its payload then */
    } writing;
    uint64_t sent, matched_there;       /* bytes of eager messages, to it */
    uint64_t matched, matched_reported; /* from it */
    int64_t ended_ns;                   /* 0: no */
    char why[96];
} dtr__peer;

struct dtr__tcp {
    pthread_mutex_t lock;
    int rank, size; /* constant, as all up to epoll */
    double silence_s;
    unsigned char key[DTR__KEY_BYTES];
    bool hmac;
    dtr__tcp_take take;
    void *take_arg;
    dtr__ports ports;
    int epoll;
    dtr__peer *peer; /* [size] */
    dtr__conn *conns;
    int n_strangers, n_closed;
    bool wanting; /* some peer has something to write and no connection */
    int n_notes;  /* that have not left */
    dtr__op_list posted;
    dtr__tcp_op *idle;
    dtr__arrived *arrived, **arrived_end;
    uint64_t last_id;
    _Atomic int64_t polled_ns; /* no lock */
};

/* tcp.c */
void dtr__tcp_end_peer(dtr__tcp *t, int rank, const char *why);
void dtr__tcp_close(dtr__tcp *t, dtr__conn *c);
dtr__conn *dtr__tcp_add_conn(dtr__tcp *t, int fd, bool dialed, uint32_t events);
void dtr__tcp_want_to_write(const dtr__tcp *t, dtr__conn *c, bool want);

/* tcp_greet.c */
void dtr__tcp_accept(dtr__tcp *t, int64_t now);
void dtr__tcp_dial(dtr__tcp *t, int64_t now);
void dtr__tcp_greet(dtr__tcp *t, dtr__conn *c); /* it can be read, or is there */

/* tcp_stream.c: frames out and in */
static inline bool dtr__tcp_has_frames(const dtr__peer *p) {
    return p->frames.first != NULL || p->sending.first != NULL || p->writing.head_left > 0 ||
           p->writing.payload_left > 0 || p->matched - p->matched_reported >= DTR__TCP_WINDOW / 4;
}
void dtr__tcp_write(dtr__tcp *t, int rank); /* as much as the connection takes */
void dtr__tcp_read(dtr__tcp *t, dtr__conn *c);
bool dtr__tcp_spill(dtr__peer *p); /* what is written no longer needs its op; false: no memory */

/* tcp_match.c: what comes in finds its receive */
void dtr__op_append(dtr__op_list *list, dtr__tcp_op *op);
void dtr__op_unlink(dtr__tcp_op *op);
void dtr__op_done(dtr__tcp *t, dtr__tcp_op *op);
/* The frame in c->frame has come: where does what follows go? False: it makes no sense. */
bool dtr__tcp_begin(dtr__tcp *t, dtr__conn *c);
void dtr__tcp_finish(dtr__tcp *t, dtr__conn *c); /* what follows is here */
/* Takes it, which no receive has met, off the list of what has come. */
void dtr__tcp_forget(dtr__tcp *t, const dtr__arrived *a);

#endif /* DTR_TCP_INTERNAL_H */
