/* Many nodes in one process. Their control planes are the library's; what they send goes through
 * the memory of this program, one hop in each round, and it moves the clock. */
#ifndef TEST_NODES_UNIT_H
#define TEST_NODES_UNIT_H

#include "control/control_internal.h"

#define NODES_UID UINT64_C(77) /* of the group that reports are about */
enum { NODES_SEQ = 5 };        /* and the rank, which it has entered in it */

typedef struct message {
    struct message *next;
    int round; /* in which it was sent */
    dtr__wire_kind kind;
    size_t nbytes;
    char data[];
} message;

/* One end of a connection: the library's link first, which it frees. */
typedef struct end {
    dtr__link link;
    struct end *other; /* NULL: closed */
    int node, peer;
    message *first, *last; /* on the way to this end */
} end;

typedef struct pretended {
    dtr_world world;
    dtr__control plane;
    int local_world[1];
    uint32_t read[2];
    uint64_t sent_votes[DTR__VOTE_ENTRIES];
    dtr__board *boards[1];
    bool dead;
    bool *lost;     /* [n] what it has been told of */
    int n_lost;     /* that are true */
    int64_t cut_ns; /* no host answers any more since then; 0: they do */
    int n_sent, n_votes;
} pretended;

typedef struct pretended_net {
    int n, round;
    bool reports;               /* there are some */
    int64_t now_ns, connect_ns; /* connect: how long a connection takes */
    pretended *node;
    pretended *at; /* whose round it is */
    int *node_of, *local_rank_of, *all;
    dtr__directory directory;
} pretended_net;
extern pretended_net net;

void begin(int n); /* nodes, all connected */
void finish(void);
void rounds(int n, int64_t ns); /* of every living node; the clock moves on before each */
void kill_node(int i);          /* its connections are closed, and its port refuses */
void cut_link(int a, int b);    /* between two: reset */
void close_links(int i);        /* as if they had been reset */

#endif /* TEST_NODES_UNIT_H */
