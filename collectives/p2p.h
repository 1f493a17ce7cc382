/* Point to point: what the backends that carry messages share. */
#ifndef DTR_P2P_H
#define DTR_P2P_H

#include "coll_internal.h"

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

/* One message of a call, for texts. */
typedef struct dtr__message {
    bool is_send;
    bool announced; /* receive: the sender has told of it */
    int peer, tag;
    size_t index; /* in the batch */
} dtr__message;

/* The messages of a call; `room` is for a single one. */
const dtr_p2p *dtr__p2p_list(const dtr__call *c, dtr_p2p *room, size_t *n);

/* Some messages of a call that is repeated, bit i for the i-th of its list. */
typedef uint32_t dtr__p2p_set;
enum { DTR__P2P_SET_MOST = 32 };
dtr__p2p_set dtr__p2p_all(const dtr__call *c);
size_t dtr__p2p_set_size(dtr__p2p_set which);
static inline bool dtr__p2p_set_has(dtr__p2p_set which, size_t i) {
    return (which >> i & 1) != 0;
}

/* Both sides have said what they want, and it is not the same: DTR_ERR_MISMATCH. */
dtr_status dtr__p2p_mismatch(const dtr_work *w, const dtr__message *m, const dtr__terms *own,
                             const dtr__terms *other);
/* What it waits for, put behind what is in `text`; `used` so far. Returns what is used then. */
size_t dtr__p2p_waits_for(const dtr_group *group, const dtr__message *m, char *text, size_t cap,
                          size_t used);
enum { DTR__P2P_WAITS_MAX = 8 }; /* messages of a batch that such a text names */

#endif /* DTR_P2P_H */
