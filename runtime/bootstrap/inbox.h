/* Small messages between the ranks of a world without MPI, through memory that the ranks of a node
 * share and over TCP between nodes: from each rank to each other one in order, kept here until they
 * fit, received when a rank polls. */
#ifndef DTR_RT_INBOX_H
#define DTR_RT_INBOX_H

#include "base/exchange.h"
#include "tcp/tcp.h"

typedef struct dtr__inbox dtr__inbox;

/* Bytes of shared memory for so many ranks of a node, zeroed, the first 64 not used. */
size_t dtr__inbox_bytes(int n_local);
/* A rank's side of it, which owns the mapping from here on; NULL: no memory. `members`: the ranks
 * that share it, this one among them. `limit_s`: how long an exchange waits for a rank. */
dtr__inbox *dtr__inbox_new(void *memory, size_t nbytes, int rank, int size, const int *members,
                           int n_members, double limit_s);
/* How ranks of other nodes are reached, and (malloc'ed) which ranks are on this host, of several
 * nodes maybe; both are freed with it. */
void dtr__inbox_use_tcp(dtr__inbox *b, dtr__tcp *tcp);
void dtr__inbox_set_host(dtr__inbox *b, int *ranks, int n);
/* Waits a moment for messages that have not left yet. NULL: nothing. */
void dtr__inbox_free(dtr__inbox *b);

/* World ranks of this node, and of this host. */
const int *dtr__inbox_members(const dtr__inbox *b, int *n);
const int *dtr__inbox_host(const dtr__inbox *b, int *n);
dtr__tcp *dtr__inbox_tcp(const dtr__inbox *b); /* NULL: there is one node */

/* This process is the one of its rank; else the pid of another one that says so too. */
int dtr__inbox_claim(dtr__inbox *b);
/* The pid of the process of a rank, 0: it has not come. */
int dtr__inbox_pid(const dtr__inbox *b, int rank);
/* The process of a rank has come, and has ended. */
bool dtr__inbox_has_ended(const dtr__inbox *b, int rank);

enum { DTR__TAG_EXCHANGE = 0x4d06 }; /* all others: collectives/agreement/mailbox.h */

/* Any thread. Head and tail are one message; `uid` tells those of one tag apart. */
dtr_status dtr__inbox_send(dtr__inbox *b, int to, int tag, uint64_t uid, const void *head,
                           size_t head_nbytes, const void *tail, size_t tail_nbytes);
/* The oldest message of that tag and uid, from any rank where `from` is -1: malloc'ed, with its
 * sender; NULL: there is none. */
dtr_status dtr__inbox_receive(dtr__inbox *b, int tag, uint64_t uid, int from, void **data,
                              size_t *nbytes, int *source);

/* Moves what goes between nodes, now and then. NULL: nothing. */
void dtr__inbox_poll(dtr__inbox *b);

/* dtr__members with an inbox; a rank that ends meanwhile is DTR_ERR_REMOTE. */
double dtr__inbox_limit(const dtr__inbox *b);
extern const dtr__exchange_ops dtr__exchange_over_inbox DTR__HIDDEN;

#endif /* DTR_RT_INBOX_H */
