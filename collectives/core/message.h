/* Point to point: what the backends that carry messages share. */
#ifndef DTR_P2P_H
#define DTR_P2P_H

#include "core/call.h"

enum { DTR__SITE_MAX = 48 };

/* What one side of a pair says about itself. */
typedef struct dtr__terms {
    uint64_t count;
    uint32_t dtype;
    char site[DTR__SITE_MAX];
} dtr__terms;

static inline bool dtr__terms_fit(const dtr__terms *a, const dtr__terms *b) {
    return a->dtype == b->dtype && a->count == b->count;
}

/* A message of a work: the first member of what a backend keeps of it. */
typedef struct dtr__message {
    void *sibling; /* of the same work, or free */
    bool is_send;
    bool announced; /* receive: the sender has announced it */
    int peer, tag;
    size_t index; /* in the batch */
    char *data;
    size_t nbytes;
    dtr__terms own, other; /* other: what the other side has sent */
} dtr__message;

/* Messages of one group and backend, some of which are kept for reuse. */
typedef struct dtr__message_pool {
    void *idle;
    size_t n_idle, nbytes; /* nbytes: of each */
} dtr__message_pool;
/* A new message for `op`, of `nbytes` of which the first `zeroed` are zero; NULL: no memory. */
void *dtr__message_new(dtr__message_pool *pool, size_t nbytes, size_t zeroed, const dtr_p2p *op,
                       size_t index);
void dtr__message_free(dtr__message_pool *pool, void *message);
void dtr__message_pool_close(dtr__message_pool *pool);
/* The error where dtr__message_new has given NULL. */
dtr_status dtr__message_no_memory(const dtr_work *w, size_t index, size_t nbytes);

/* The messages of a call; `single` is where a call of one message puts it. */
const dtr_p2p *dtr__p2p_list(const dtr__call *c, dtr_p2p *single, size_t *n);
/* The same one by one, receives first, so that what a rank sends to itself finds them; in the order
 * of the list within each. */
typedef struct dtr__p2p_walk {
    const dtr_p2p *list; /* NULL: `single` */
    dtr_p2p single;
    size_t n, step, index; /* index: in the list, of what dtr__p2p_next gave last */
} dtr__p2p_walk;
dtr__p2p_walk dtr__p2p_begin(const dtr__call *c);
const dtr_p2p *dtr__p2p_next(dtr__p2p_walk *walk); /* NULL: that was all */

/* Nothing is to be done: a message of DTR_PEER_NONE, a batch without entries. */
bool dtr__p2p_is_nothing(const dtr__call *c);
/* Whether a list has entries of DTR_PEER_NONE; the others of a list, in order, and how many. */
bool dtr__p2p_has_nothing(const dtr__request *r);
size_t dtr__p2p_leave_out(const dtr__request *r, dtr_p2p *list);

/* Some messages of a call that is repeated, bit i for the i-th of its list. */
typedef uint32_t dtr__p2p_set;
enum { DTR__P2P_SET_MOST = 32 };
dtr__p2p_set dtr__p2p_all(const dtr__call *c);
size_t dtr__p2p_set_size(dtr__p2p_set which);
static inline bool dtr__p2p_set_has(dtr__p2p_set which, size_t i) {
    return (which >> i & 1) != 0;
}

/* Both sides have sent their terms, and these differ: DTR_ERR_MISMATCH. */
dtr_status dtr__p2p_mismatch(const dtr_work *w, const dtr__message *m);
/* What it waits for, put behind what is in `text`; `used` so far. Returns what is used then. */
size_t dtr__p2p_waits_for(const dtr_group *group, const dtr__message *m, char *text, size_t cap,
                          size_t used);
/* The same of the first few messages of a work, `first` and its siblings, into `text`. */
void dtr__messages_wait_for(const dtr_group *group, const void *first, char *text, size_t cap);

#endif /* DTR_P2P_H */
