/* Messages between ranks over TCP, matched by channel, sender and tag in the order in which they
 * were sent, and notes beside them, which nobody has asked for. Nothing blocks and there is no
 * thread: whoever tests or polls moves all of it. Any thread, but for the making and the end. */
#ifndef DTR_RT_TCP_H
#define DTR_RT_TCP_H

#include "base/error.h"
#include "tcp/proof.h"
#include "tcp/sockets.h"

typedef struct dtr__tcp dtr__tcp;
typedef struct dtr__tcp_op dtr__tcp_op; /* a message under way */

/* Where a rank is, as ranks send each other: no pointers, no gaps that are not zero. */
typedef struct dtr__tcp_place {
    uint64_t machine;
    struct in6_addr address[DTR__ADDRESSES];
    uint16_t port[DTR__ADDRESSES];
    uint16_t n_addresses;
    uint8_t any, hmac; /* listens on all addresses; was built with HMAC */
    uint32_t pid;
    char host[64];
} dtr__tcp_place;

/* Listens on the interface, or on all where its name is "". */
dtr_status dtr__tcp_new(int rank, int size, const char *interface, const char *host,
                        double silence_s, dtr__tcp **out);
const dtr__tcp_place *dtr__tcp_place_of(const dtr__tcp *t, int rank);
void dtr__tcp_set_place(dtr__tcp *t, int rank, const dtr__tcp_place *place);
/* By what ranks know each other, before the first message: the same on all. */
void dtr__tcp_set_key(dtr__tcp *t, const unsigned char key[DTR__KEY_BYTES], bool hmac);
/* Who gets the notes: called with the lock of `t` held, so it may not call anything here. */
typedef void (*dtr__tcp_take)(void *arg, int from, int tag, uint64_t channel, const void *data,
                              size_t nbytes);
void dtr__tcp_on_note(dtr__tcp *t, dtr__tcp_take take, void *arg);
/* Waits a moment for notes that have not left yet. NULL: nothing. */
void dtr__tcp_free(dtr__tcp *t);

void dtr__tcp_poll(dtr__tcp *t);
/* Nobody has polled for a little while. */
bool dtr__tcp_is_due(const dtr__tcp *t);
/* A connection with that rank has ended. */
bool dtr__tcp_has_ended(dtr__tcp *t, int rank);

/* ---- messages; each returns 0, or a code for dtr__tcp_failed ---- */

enum { DTR__TCP_ANY = -1 }; /* sender, or tag */
typedef enum dtr__tcp_mode {
    DTR__TCP_PLAIN,    /* complete when the data may change */
    DTR__TCP_ACCEPTED, /* complete when a receive has it */
    DTR__TCP_AT_ONCE   /* small, and never waits for a receive: few of them */
} dtr__tcp_mode;
int dtr__tcp_send(dtr__tcp *t, uint64_t channel, int to, int tag, const void *data, size_t nbytes,
                  dtr__tcp_mode mode, dtr__tcp_op **out);
/* A message that is longer than `nbytes` is dropped, and its length said. */
int dtr__tcp_recv(dtr__tcp *t, uint64_t channel, int from, int tag, void *data, size_t nbytes,
                  dtr__tcp_op **out);

typedef struct dtr__tcp_arrival {
    int source, tag;
    size_t nbytes;
    bool cancelled;
} dtr__tcp_arrival;
/* What is complete is gone: *at is NULL then. A message to or from a rank whose connection has
 * ended is a failure after some seconds, in which others may say what became of it. */
int dtr__tcp_test(dtr__tcp *t, dtr__tcp_op **at, int *complete, dtr__tcp_arrival *a);
/* The same where others have just been tested, which has moved this one too. */
int dtr__tcp_look(dtr__tcp *t, dtr__tcp_op **at, int *complete, dtr__tcp_arrival *a);
/* Is a message here that no receive has? */
bool dtr__tcp_probe(dtr__tcp *t, uint64_t channel, int from, int tag, dtr__tcp_arrival *a);
/* A receive that no message has met is complete then, and cancelled. */
void dtr__tcp_cancel(dtr__tcp *t, dtr__tcp_op *op);
/* Ends it in any case: its memory is not touched afterwards. */
void dtr__tcp_abandon(dtr__tcp *t, dtr__tcp_op **at);

/* Data are copied, and sent in order behind what was sent to that rank before. */
dtr_status dtr__tcp_note(dtr__tcp *t, int to, int tag, uint64_t channel, const void *head,
                         size_t head_nbytes, const void *tail, size_t tail_nbytes);

dtr_status dtr__tcp_failed(dtr__tcp *t, const dtr__error_context *ctx, int code);

#endif /* DTR_RT_TCP_H */
