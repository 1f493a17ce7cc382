/* What the files of the control plane share: control/control.c opens and closes it,
 * control/control_talk.c is its work on the watchdog thread. */
#ifndef DTR_RT_CONTROL_INTERNAL_H
#define DTR_RT_CONTROL_INTERNAL_H

#include "base/clock.h"
#include "base/log.h"
#include "base/mpi.h"
#include "base/world.h"
#include "control/peers.h"
#include "control/vote.h"
#include "directory.h"
#include "link.h"
#include "ring.h"

#define MS INT64_C(1000000)
enum {
    STRANGERS_MOST = 64,   /* connections that have proved nothing, beside one per node */
    ACCEPTED_MOST = 256,   /* in one round */
    REPORTS_PER_ROUND = 16 /* nodes that get the full report in one period */
};
#define DETAILS_NS \
    (1000 * MS) /* how long the failure of a rank waits for what its node knows of it */
#define STRANGER_NS (5000 * MS) /* however much they say */
#define REST_NS (200 * MS)      /* of listening, when there is no descriptor or memory */
#define NEVER_MET_NS (10000 * MS)
#define EARLY_NS (30000 * MS)  /* how long a failure record waits for its group to be made here */
#define CUT_OFF_NS (1000 * MS) /* beyond the silence of all neighbours */

/* What has become of a rank of another node. */
typedef struct rank_notes {
    struct in6_addr known; /* where its port has been reached; all 0: nowhere yet */
    int64_t suspect_ns;    /* its connection ended without LEAVE; 0: no */
    uint32_t lost;         /* it has failed: its place on the board + 1; 0: no */
    bool refused;          /* its port refuses */
    bool gone;             /* it has left in order */
} rank_notes;

typedef struct node {
    dtr__link *link;        /* with one of its ranks, the newest; NULL: none */
    dtr__link *call;        /* being dialed */
    int turn, address;      /* local rank and its address to be dialed next */
    int n_tried, n_refused; /* of the addresses of that rank */
    int n_suspects, n_out;  /* of its ranks; out: failed, or left */
    bool near;              /* this node wants a connection to it: c->near */
    int64_t dial_ns;        /* not before */
    int64_t first_ns;       /* this rank has tried since then; 0: it never had to */
    bool refuses;           /* the rank that is being dialed does: see control_dial.c */
    bool met, warned;       /* there was a connection; its absence has been reported */
    char why[64];           /* of the last failure */
} node;

/* What all nodes must know: control/facts.c. */
typedef struct fact fact;
typedef struct fact_list {
    fact *oldest, *newest; /* by version */
    uint64_t version;      /* of the newest change; 0: there has been none */
    uint64_t spread;       /* the newest that has been sent to all that take it */
    int n_sums;
} fact_list;

/* All of it but `board`, `lock`, `ended` and `serves` is constant or belongs to the watchdog
 * thread. */
struct dtr__control {
    dtr__directory directory;
    introduction *received; /* [world size], and */
    node_ranks *numbered;   /* [node count], while it is opened */
    unsigned char key[DTR__KEY_BYTES];
    bool hmac; /* proofs are made with it; else they are the key itself */
    int epoll;
    dtr__ports ports;
    int64_t rest_until_ns; /* no connection is taken; 0: they are */
    int wake;              /* eventfd: another thread has something to report; open to the end */
    _Atomic bool serves;   /* rounds are made */
    uint64_t *sent_votes;  /* [local size][DTR__VOTE_ENTRIES] by the number they had */
    fact_list facts;
    int near[2 * DTR__RING_MOST]; /* nodes that this one wants connections to */
    int n_near, near_for;         /* near_for: by how many that are out, and whether any speaks */
    int n_out;                    /* ranks that have failed or left, of other nodes */
    int64_t received_ns;          /* the newest message of any node; 0: none yet */
    bool cut;                     /* a connection has ended because its host is silent */
    int64_t period_ns, beat_ns;   /* beat: the next one */
    int64_t round_ns;             /* the last one */
    double silence_s;
    _Atomic bool ended;      /* all ranks have agreed to end the world */
    bool alone;              /* the node shares no memory: each of its ranks acts for itself */
    dtr__board *board;       /* own, of dtr__arena_alloc unless alone; see control/report.c */
    dtr__board **boards;     /* [local size], NULL: not to be seen */
    uint32_t *read;          /* [local size] failures of that board that have been passed on */
    uint32_t *asked;         /* [local size] wants of that board that have been passed on */
    dtr__want *sent;         /* [local size][places] of which, and when */
    pthread_mutex_t lock;    /* of the wants on `board`: any thread has some */
    int64_t ask_until_ns;    /* there was no connection for one of them; 0: there was */
    dtr__wire_ask *question; /* of this round [n_questions] */
    size_t n_questions, cap_questions;
    dtr__link *links;
    int n_links, turn; /* turn: of the nodes that get a report */
    node *node;        /* [node count], and */
    rank_notes *notes; /* [world size]: memory is taken where there is something to note */
    int n_suspects;
    dtr__control_rank_failed rank_failed; /* of the round that is being made */
};

/* After so long without a message another rank of that node is tried. */
static inline int64_t dtr__control_silent_ns(const dtr__control *c) {
    return 2 * c->period_ns + 200 * MS;
}

static inline dtr__control *dtr__control_in_use(const dtr_world *world) {
    dtr__control *c = world->control.plane;
    return c != NULL && c->epoll >= 0 ? c : NULL;
}

static inline bool dtr__control_theirs(const dtr_world *world, const dtr__link *l, int32_t rank) {
    return rank >= 0 && rank < world->size && world->node_of[rank] == world->node_of[l->rank];
}

static inline bool dtr__control_is_silent(const dtr__control *c, const dtr__link *l, int64_t now) {
    return now - l->received_ns > dtr__control_silent_ns(c);
}

static inline const location *dtr__control_place(const dtr_world *world, int rank) {
    return dtr__directory_place(&world->control.plane->directory, rank);
}

static inline const offer *dtr__control_offer(const dtr_world *world, int rank) {
    return dtr__directory_offer(&world->control.plane->directory, rank);
}

static inline const node_ranks *dtr__control_members(const dtr__control *c, int at) {
    return dtr__directory_node(&c->directory, at);
}

/* Loopback leads to ranks of the same host and network namespace only. */
static inline bool dtr__control_same_machine(const dtr_world *world, int rank) {
    const location *to = dtr__control_place(world, rank);
    return to->any && to->machine == dtr__control_place(world, world->rank)->machine;
}

void dtr__control_free_links(dtr__control *c);
void dtr__control_close_sockets(dtr__control *c);

/* ---- control/control_greet.c ---- */
dtr__link *dtr__control_add_link(dtr__control *c, dtr__link *l); /* l, which may be NULL */
void dtr__control_accept(const dtr_world *world, dtr__control *c, int64_t now);
void dtr__control_end_rest(dtr__control *c, int64_t now);
void dtr__control_send_hello(const dtr_world *world, dtr__link *l);
/* A message before the proof. True when the other side has proved who it is just now. */
bool dtr__control_greet(const dtr_world *world, dtr__link *l, dtr__wire_kind kind, const void *data,
                        size_t nbytes);

/* ---- control/control_dial.c ---- */
/* The kernel of its host has taken the connection: a process has the port open. */
bool dtr__control_is_listening(const dtr__link *l);
void dtr__control_dial_failed(dtr_world *world, const dtr__link *l, int code, int64_t now);
void dtr__control_forget_tries(node *n); /* the next one is dialed from its first address on */
void dtr__control_dial_nodes(dtr_world *world, dtr__control *c, int64_t now);

/* ---- control/control_ask.c ---- */
void dtr__control_send_asks(const dtr_world *world, dtr__control *c, int64_t now);
void dtr__control_take_ask(const dtr_world *world, const dtr__link *l, const void *data,
                           size_t nbytes);
void dtr__control_answer(const dtr_world *world, dtr__control *c);

/* ---- control/control_route.c ---- */
/* The connection over which a message for a rank of another node goes, NULL: none. `from`: node
 * that it has come from, -1: this one. */
dtr__link *dtr__control_way(const dtr_world *world, const dtr__control *c, int to, int from);
int dtr__control_hops(const dtr_world *world); /* the most that a message may take */
/* A message that has come over `l` and is for rank `to` of another node goes on; `hops`, inside of
 * it, is what it may still take. */
void dtr__control_pass_on(const dtr_world *world, const dtr__link *l, int to, int32_t *hops,
                          dtr__wire_kind kind, const void *message, size_t nbytes);
void dtr__control_take_report(const dtr_world *world, const dtr__link *l, const void *data,
                              size_t nbytes);
/* Reports of all ranks of this node to the nodes whose turn it is. */
void dtr__control_send_reports(const dtr_world *world, dtr__control *c, int64_t now);

/* ---- control/facts.c ---- */
/* Adds that a rank has failed, which it did not know; `own`: its node has said so. */
void dtr__facts_add_failure(dtr__control *c, int rank, bool own);
/* Adds a reason for dumps; false: it was there. */
bool dtr__facts_add_dump(dtr__control *c, const char *cause);
/* Sends to each connection what it has not been sent of what has changed. */
void dtr__facts_spread(const dtr_world *world, dtr__control *c);
void dtr__facts_free(dtr__control *c);

/* ---- control/control_propagate.c ---- */
/* Makes the votes of this node's ranks that are new a part of the facts. */
void dtr__control_propagate_votes(dtr_world *world, dtr__control *c);
/* Once per period: what has waited for others of its node, or for its group to be made here. */
void dtr__control_propagate_waiting(dtr_world *world, dtr__control *c, int64_t now);
void dtr__control_receive_vote(dtr_world *world, const dtr__link *l, const void *data,
                               size_t nbytes);

#endif /* DTR_RT_CONTROL_INTERNAL_H */
