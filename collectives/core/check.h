/* What the argument checks and the description of a checked call share: one table that says what
 * each kind of call is. */
#ifndef DTR_COLL_CHECK_H
#define DTR_COLL_CHECK_H

#include "core/call.h"

typedef enum dtr__where { NOWHERE, EVERYWHERE, AT_ROOT, AT_ROOT_ELSE_IGNORED } dtr__where;
typedef enum dtr__block_side { NO_BLOCKS, IN_BLOCKS, OUT_BLOCKS, BOTH_BLOCKS } dtr__block_side;
typedef enum dtr__overlap { NO_OVERLAP, SAME_BUFFER, OWN_BLOCK } dtr__overlap;
typedef enum dtr__prefix { NO_PREFIX, INCLUSIVE, EXCLUSIVE } dtr__prefix;
typedef enum dtr__agreed { AGREE_NO_COUNT, AGREE_IN, AGREE_OUT, AGREE_ARRAY } dtr__agreed;

/* What a kind of call is. `blocks`: the side that consists of one block per rank; `arrays`: their
 * sizes are given; `agreed`: the count that is the same on all ranks; `prefix`: a reduction over
 * the ranks below the own one, with or without that. */
typedef struct dtr__rule {
    bool one_buffer, rooted, reduces, peer, arrays;
    dtr__where in, out;
    dtr__block_side blocks;
    dtr__overlap overlap;
    dtr__agreed agreed;
    dtr__prefix prefix;
} dtr__rule;

extern const dtr__rule dtr__rules[DTR__K_COUNT];

/* Which way data goes, for backends and whoever looks at data: of a kind that is added, as its rule
 * says. */
static inline bool dtr__root_gives(dtr__kind k) {
    const dtr__rule *rule = &dtr__rules[k];
    return rule->rooted && (rule->one_buffer || rule->in == AT_ROOT);
}

static inline bool dtr__root_takes(dtr__kind k) {
    return dtr__rules[k].rooted && !dtr__root_gives(k);
}

static inline bool dtr__has_blocks(dtr__kind k, dtr__block_side side) {
    return dtr__rules[k].blocks == side || dtr__rules[k].blocks == BOTH_BLOCKS;
}

/* Every element of the result is made of those at the same place in the inputs. */
static inline bool dtr__has_no_blocks(dtr__kind k) {
    return dtr__rules[k].blocks == NO_BLOCKS && dtr__rules[k].in == EVERYWHERE &&
           !dtr__rules[k].peer;
}

/* Ranks 0 .. n-1 whose inputs a reduction makes into the result of `rank`; 0: the identity of the
 * operator. */
static inline int dtr__n_sources(dtr__kind k, int rank, int size) {
    const dtr__prefix prefix = dtr__rules[k].prefix;
    return prefix == NO_PREFIX ? size : prefix == INCLUSIVE ? rank + 1 : rank;
}

/* Its result lies where others still read the input. */
static inline bool dtr__overwrites_input(const dtr__call *c) {
    const dtr__rule *rule = &dtr__rules[c->kind];
    return c->in == c->out && rule->reduces && !rule->rooted && rule->blocks == NO_BLOCKS;
}

/* One call (or batch entry) while it is checked. */
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

static inline const char *dtr__check_in_name(const dtr__check *k) {
    return k->rule->one_buffer ? "buf" : "in";
}

/* An error that begins with the call and the group; REFUSE returns it. */
dtr_status DTR_PRINTF(5, 6) dtr__check_refuse(const dtr__check *k, dtr_status s, const char *file,
                                              int line, const char *fmt, ...);
#define REFUSE(k, s, ...) return dtr__check_refuse((k), (s), __FILE__, __LINE__, __VA_ARGS__)

/* check_counts.c: the seventh step. */
dtr_status dtr__check_counts(const dtr__check *k);

/* Fill in what backends and messages need to know of a call that has been found good. */
void dtr__coll_describe(const dtr__check *k, dtr__call *c);

/* What a number that is no rank is in MPI, and what to give instead; NULL: nothing known. */
const char *dtr__peer_meant(int peer);

#endif /* DTR_COLL_CHECK_H */
