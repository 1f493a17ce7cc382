/* What the argument checks and the description of a checked call share: one table that says what
 * each kind of call is. */
#ifndef DTR_COLL_CHECK_H
#define DTR_COLL_CHECK_H

#include "engine.h"

typedef enum dtr__where { NOWHERE, EVERYWHERE, AT_ROOT, AT_ROOT_ELSE_IGNORED } dtr__where;
typedef enum dtr__block_side { NO_BLOCKS, IN_BLOCKS, OUT_BLOCKS, BOTH_BLOCKS } dtr__block_side;
typedef enum dtr__overlap { NO_OVERLAP, SAME_BUFFER, OWN_BLOCK } dtr__overlap;
typedef enum dtr__agreed { AGREE_NO_COUNT, AGREE_IN, AGREE_OUT, AGREE_ARRAY } dtr__agreed;

/* What a kind of call is. `blocks`: the side that consists of one block per rank; `arrays`: their
 * sizes are given; `agreed`: the count that is the same on all ranks. */
typedef struct dtr__rule {
    bool one_buffer, rooted, reduces, peer, arrays;
    dtr__where in, out;
    dtr__block_side blocks;
    dtr__overlap overlap;
    dtr__agreed agreed;
} dtr__rule;

extern const dtr__rule dtr__rules[DTR__K_COUNT];

/* One call (or batch entry) while it is looked at. */
typedef struct dtr__check {
    const dtr_group *group;
    const dtr__request *r;
    const dtr__rule *rule;
    dtr_coll_options options;
    char entry[32];        /* "ops[3]." in a batch, else "" */
    bool blocking;         /* a peer may not be this rank itself */
    bool at_root, in, out; /* which buffers count on this rank */
} dtr__check;

static inline dtr_dtype dtype_of(const dtr__check *k) {
    return k->in ? k->r->in.dtype : k->out ? k->r->out.dtype : DTR_U8;
}

/* Fill in what backends and messages need to know of a call that has been found good. */
void dtr__coll_describe(const dtr__check *k, dtr__call *c);

#endif /* DTR_COLL_CHECK_H */
