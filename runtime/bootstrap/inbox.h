/* Small messages between the ranks of a world without MPI, through memory that they share: from
 * each rank to each other one in order, kept here until they fit, received when a rank polls. */
#ifndef DTR_RT_INBOX_H
#define DTR_RT_INBOX_H

#include "base/exchange.h"

typedef struct dtr__inbox dtr__inbox;

/* Bytes of shared memory for so many ranks, zeroed, the first 64 not used. */
size_t dtr__inbox_bytes(int size);
/* A rank's side of it, which owns the mapping from here on; NULL: no memory. `limit_s`: how long an
 * exchange waits for a rank. */
dtr__inbox *dtr__inbox_new(void *memory, size_t nbytes, int rank, int size, double limit_s);
/* Waits a moment for messages that have not left yet. NULL: nothing. */
void dtr__inbox_free(dtr__inbox *b);

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

/* dtr__members with an inbox; a rank that ends meanwhile is DTR_ERR_REMOTE. */
double dtr__inbox_limit(const dtr__inbox *b);
extern const dtr__exchange_ops dtr__exchange_over_inbox DTR__HIDDEN;

#endif /* DTR_RT_INBOX_H */
