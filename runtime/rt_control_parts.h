/* What the files of the control plane share: rt_control.c opens and closes it, rt_control_talk.c is
 * its work on the watchdog thread. */
#ifndef DTR_RT_CONTROL_PARTS_H
#define DTR_RT_CONTROL_PARTS_H

#include "rt_ballot.h"
#include "rt_internal.h"
#include "rt_link.h"
#include "rt_peers.h"
#include "rt_verdict.h"

#define MS INT64_C(1000000)
enum {
    ADDRESSES = 6,
    LINKS_MOST = 8192,
    STRANGERS_MOST = 64,   /* connections that have not said HELLO, beside one per node */
    REPORTS_PER_ROUND = 16 /* links that get the full report in one period */
};
#define DETAILS_NS (1000 * MS) /* how long a death waits for what its node knows of it */
#define STRANGER_NS (5000 * MS)
#define NEVER_MET_NS (10000 * MS)
#define EARLY_NS (30000 * MS) /* how long a verdict waits for its group to be made here */

/* What a rank tells the others at world creation. */
typedef struct offer {
    uint32_t pid;
    uint16_t port; /* 0: it takes no part */
    uint16_t n_addresses;
    struct in6_addr address[ADDRESSES];
    uint64_t machine; /* equal where loopback leads from one to the other */
    char host[64];
} offer;

typedef struct node {
    dtr__link *link;     /* with one of its ranks, the newest; NULL: none */
    dtr__link *call;     /* being dialed */
    int turn, address;   /* local rank and its address to be dialed next */
    int n_ranks, lowest; /* world rank */
    int64_t dial_ns;     /* not before */
    int64_t first_ns;    /* this rank has tried since then; 0: it never had to */
    bool refuses;        /* so did an address of the rank that is being dialed */
    bool met, warned;    /* there was a connection; its absence has been told */
    char why[64];        /* of the last failure */
} node;

/* A verdict on a group that no rank of this node has yet: its members elsewhere may be out of the
 * creation before those here. until_ns 0: none. */
typedef struct early_verdict {
    dtr__verdict verdict;
    int node; /* that sent it */
    int64_t until_ns;
} early_verdict;

/* All of it but `board`, `ended` and `serves` is constant or belongs to the watchdog thread. */
struct dtr__control {
    offer *offer; /* [world size] */
    uint64_t key[2];
    int epoll, listener;
    int wake;            /* eventfd: another thread has something to tell; open to the end */
    _Atomic bool serves; /* rounds are made */
    uint64_t told[DTR__VERDICTS]; /* verdicts, by the number they had */
    uint64_t *told_ballots;       /* [local size][DTR__BALLOTS] the same of words */
    early_verdict early[DTR__VERDICTS];
    int64_t period_ns, beat_ns; /* beat: the next one */
    double silence_s;
    _Atomic bool ended;  /* all ranks have agreed to end the world */
    bool alone;          /* the node shares no memory: each of its ranks acts for itself */
    dtr__board *board;   /* own, of dtr__arena_alloc unless alone; see rt_digest.c */
    dtr__board **boards; /* [local size], NULL: not to be seen */
    uint32_t *read;      /* [local size] deaths of that board that have been passed on */
    dtr__link *links;
    int n_links, turn;   /* of the links that get a report */
    node *node;          /* [node count] */
    int64_t *suspect_ns; /* [world size] its connection ended without LEAVE; 0: no */
    bool *refused;       /* [world size] and its port refuses */
    bool *gone;          /* [world size] it has left in order */
    int n_suspects;
    dtr__control_lost lost; /* of the round that is being made */
};

/* After so long without a message another rank of that node is tried. */
static inline int64_t dtr__control_silent_ns(const dtr__control *c) {
    return 2 * c->period_ns + 200 * MS;
}

static inline dtr__control *dtr__control_in_use(const dtr_world *world) {
    dtr__control *c = world->control;
    return c != NULL && c->epoll >= 0 ? c : NULL;
}

static inline bool dtr__control_theirs(const dtr_world *world, const dtr__link *l, int32_t rank) {
    return rank >= 0 && rank < world->size && world->node_of[rank] == world->node_of[l->rank];
}

void dtr__control_free_links(dtr__control *c);
void dtr__control_close_sockets(dtr__control *c);

/* ---- rt_control_tell.c ---- */
void dtr__control_tell_verdicts(dtr_world *world, dtr__control *c);
void dtr__control_tell_ballots(dtr_world *world, dtr__control *c);
void dtr__control_take_early(dtr_world *world, dtr__control *c, int64_t now);
void dtr__control_take_verdict(dtr_world *world, const dtr__link *l, const void *data,
                               size_t nbytes);
void dtr__control_take_ballot(dtr_world *world, const dtr__link *l, const void *data,
                              size_t nbytes);

#endif /* DTR_RT_CONTROL_PARTS_H */
