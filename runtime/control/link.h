/* Connections of the control plane: bounded messages over non-blocking TCP sockets. Everything here
 * belongs to the watchdog thread of one world, and to the thread that opens or closes the world. */
#ifndef DTR_RT_LINK_H
#define DTR_RT_LINK_H

#include <netinet/in.h>

#include "control/control.h"
#include "control/vote.h"
#include "tcp/proof.h"
#include "tcp/sockets.h"

typedef enum dtr__wire_kind {
    DTR__WIRE_HELLO = 1,    /* hello: the dialer's first */
    DTR__WIRE_CHALLENGE,    /* nonce: the listener's answer */
    DTR__WIRE_PROOF,        /* proof: the dialer's, then the listener's; all else comes after it */
    DTR__WIRE_BEAT,         /* nothing */
    DTR__WIRE_REPORT,       /* report: for one node, to be passed on to it */
    DTR__WIRE_RANK_FAILURE, /* failure: of any rank; for all nodes */
    DTR__WIRE_DUMP,         /* text, ends in 0: what broke a group on some node; for all nodes */
    DTR__WIRE_VOTE,         /* vote: some of all votes of one step or failure; for all nodes */
    DTR__WIRE_ASK,          /* ask: for a report of a rank, to be passed on to its node */
    DTR__WIRE_LEAVE,        /* uint64_t, a dtr__wire_leave: the sender closes the connection */
} dtr__wire_kind;

typedef enum dtr__wire_leave {
    DTR__LEAVE_SWITCH = 1, /* for a connection to another rank of that node */
    DTR__LEAVE_RANK,       /* its world is destroyed */
    DTR__LEAVE_WORLD       /* the same, and all ranks have agreed to it */
} dtr__wire_leave;

/* Eight bytes in front of every message. */
typedef struct dtr__wire_head {
    uint32_t nbytes; /* of what follows */
    uint32_t kind;
} dtr__wire_head;

typedef struct dtr__wire_hello {
    uint64_t magic; /* also tells another byte order */
    int32_t rank;
    uint32_t version; /* of the library */
    unsigned char nonce[DTR__NONCE_BYTES];
} dtr__wire_hello;

typedef struct dtr__wire_rank_failure {
    int32_t rank, status; /* DTR_ERR_REMOTE; DTR_ERR_TIMEOUT: it lives but does not move */
    int32_t own, unused;  /* 1: its own node has said so */
    char text[DTR__RANK_FAILURE_TEXT + 4];
} dtr__wire_rank_failure;

typedef struct dtr__wire_ask {
    int64_t asked_ns; /* on the clock of who asks; comes back as fresh_ns */
    int32_t rank;     /* of the world, that is asked about */
    int32_t from;     /* rank that asks */
    int32_t hops;     /* how often it may still be passed on */
    int32_t unused;
} dtr__wire_ask;

typedef struct dtr__wire_report {
    int32_t to;   /* a rank of the node that it is for */
    int32_t hops; /* how often it may still be passed on */
    dtr__rank_report report;
} dtr__wire_report;

/* In front of the merged vote, as far as its text goes, and of two times `n` words, 64 voters each:
 * who has voted, and who of them badly. The vote may know of more voters than these. */
typedef struct dtr__wire_vote {
    uint32_t vote_bytes, from, n, unused; /* from: the first word's number */
} dtr__wire_vote;

enum { DTR__WIRE_DUMP_TEXT = 256 };
enum { DTR__WIRE_MOST = 4096, DTR__WIRE_QUEUE = 4 << 20 };
_Static_assert(sizeof(dtr__wire_vote) + sizeof(dtr__vote) + 128 * sizeof(uint64_t) <=
                   DTR__WIRE_MOST,
               "a vote travels whole, with 4,096 voters");
_Static_assert(sizeof(dtr__wire_report) <= DTR__WIRE_MOST, "reports travel whole");
#define DTR__WIRE_MAGIC UINT64_C(0x3330746e6f436474)

typedef struct dtr__link {
    struct dtr__link *next; /* in the control plane's list */
    int fd;                 /* -1: closed, to be freed */
    int epoll;
    int rank;    /* of the world, proved or dialed; -1: a stranger */
    int claimed; /* rank that a stranger claims to be; -1: none yet */
    bool dialed, connecting, left, waits_to_write;
    bool greeted;                  /* the other side has proved who it is */
    struct in6_addr address;       /* dialed, or of the other side */
    dtr__proof_of proof;           /* what both have sent before that */
    int failure;                   /* errno of the end; 0: closed by the other side */
    int64_t since_ns, received_ns; /* made; last message */
    uint64_t sent;                 /* facts to this version have been sent: control/facts.c */
    size_t n_in, n_out, cap_out;
    char *out; /* what the socket has not taken yet */
    char in[sizeof(dtr__wire_head) + DTR__WIRE_MOST];
} dtr__link;

/* `silence_s`: after how long without an answer of its host the kernel gives the connection up. */
dtr__link *dtr__link_accept(int listener, int epoll, double silence_s);
dtr__link *dtr__link_dial(const struct in6_addr *address, uint16_t port, int epoll,
                          double silence_s, int *failure);
/* The connection of a dialed link is there or has failed. */
void dtr__link_connected(dtr__link *l);
/* Queues a message; what cannot be queued is lost, and the next report makes up for it. */
void dtr__link_send(dtr__link *l, dtr__wire_kind kind, const void *data, size_t nbytes);
void dtr__link_flush(dtr__link *l);
/* Reads what is there; calls `take` for each message. Afterwards fd is -1 if that was the end. */
typedef void (*dtr__link_take)(void *arg, dtr__link *l, dtr__wire_kind kind, const void *data,
                               size_t nbytes);
void dtr__link_read(dtr__link *l, dtr__link_take take, void *arg);
void dtr__link_close(dtr__link *l, int failure);
void dtr__link_free(dtr__link *l);

#endif /* DTR_RT_LINK_H */
