/* One call: as the program or a layer above gave it (the request), and checked. */
#ifndef DTR_CORE_CALL_H
#define DTR_CORE_CALL_H

#include "core/op.h"

/* One checked operation. Arrays are owned by the work. The single-buffer calls (broadcast, send,
 * recv) have in == out. */
typedef struct dtr__call {
    dtr__kind kind;
    dtr_dtype dtype;
    dtr_op op;
    int root; /* root or peer, -1 where none, DTR_ANY_SOURCE */
    int tag;
    const void *in;
    void *out;
    size_t in_count, out_count; /* elements */
    size_t *in_counts,
        *out_counts; /* [N] of the v-forms; see dtr__blocks_in/out, which serve equal forms too */
    dtr_p2p *batch;
    size_t n_batch;
    dtr_device device;         /* of the buffers; the host where there is none */
    void *stream;              /* the caller's, of buffers on a device */
    const void *premul_device; /* factor of PREMUL_SUM on that device; NULL: it is premul */
    int divisor;               /* of AVG: the group size, unless a layer above gave another */
    double premul;             /* factor of PREMUL_SUM, premul_device resolved; 1 otherwise */
    int rows; /* 0; of a step of a call over nodes, whose sums are made in rank order: `in` is so
                 many inputs of in_count, those of a node's ranks, block after block */
    double timeout_s;
    const char *file; /* call site: file:line, or return address when file is NULL */
    int line;
    void *return_address;
    char label[40];
    int64_t issued_ns;    /* monotonic; set by the engine */
    uint64_t fingerprint; /* what ranks must agree on: kind, dtype, op, root, counts as the table in
                             dtr/coll.h says, tag word */
    const struct dtr__call *user_call; /* NULL, or the program's call that this one is a step of:
                                     what messages speak of */
} dtr__call;
static inline const dtr__call *dtr__user_call(const dtr__call *c) {
    return c->user_call != NULL ? c->user_call : c;
}

/* Element count and offset of rank i's block on the side that is cut into blocks (equal and v-forms
 * alike). */
typedef struct dtr__blocks {
    const size_t *counts; /* NULL: equal blocks */
    size_t equal;
} dtr__blocks;
static inline size_t dtr__block_count(const dtr__blocks *b, int i) {
    return b->counts != NULL ? b->counts[i] : b->equal;
}
static inline size_t dtr__block_offset(const dtr__blocks *b, int i) {
    if (b->counts == NULL) {
        return b->equal * (size_t)i;
    }
    size_t at = 0;
    for (int j = 0; j < i; j++) {
        at += b->counts[j];
    }
    return at;
}
dtr__blocks dtr__blocks_in(const dtr__call *c,
                           int size); /* scatter(v), reduce_scatter(v), alltoall(v) */
dtr__blocks dtr__blocks_out(const dtr__call *c,
                            int size); /* allgather(v), gather(v), alltoall(v) */

/* A last step of an operation, given by a layer above (a strided tensor is unpacked, temporary
 * memory freed). dtr__coll_issue takes it over when it returns DTR_OK or the call has got its
 * number; a refused call leaves it with the caller. The engine calls fn exactly once, under the
 * group's progress lock: after success before the work counts as ended, and a negative result (with
 * error record) then becomes the status of this work alone; after a failure with that status, once
 * nothing can touch the buffers any more, at the latest when the group is closed. fn frees `self`,
 * must not block and must not call into the group. */
typedef struct dtr__finish {
    dtr_status (*fn)(struct dtr__finish *self, dtr_status status);
    struct dtr__finish *next; /* the engine's: failed ones wait in engine->deferred */
    bool taken;               /* set by the engine when it takes the step over */
} dtr__finish;

/* Memory that a call reads or writes outside its buffers. */
typedef struct dtr__touch {
    const void *data;
    size_t nbytes;
    bool writes;
} dtr__touch;

/* What a public call was given, unchecked: filled by coll_api.c and by layers above, which may set
 * `tag_word`. Single-buffer calls give `in` only. */
typedef struct dtr__request {
    dtr__kind kind;
    dtr_op op;
    int root; /* root or peer */
    int tag;
    dtr_buffer in, out;
    const size_t *in_counts, *out_counts;
    const dtr_p2p *batch;
    size_t n_batch;
    const dtr_coll_options *options;
    uint64_t tag_word;         /* part of the fingerprint; 0 in public calls */
    int divisor;               /* of AVG, equal on all ranks; 0: the group size */
    dtr__finish *finish;       /* NULL: no last step */
    const char *name;          /* for messages; NULL: the kind's */
    const dtr__touch *touched; /* strided tensors whose packed copies the buffers are: what calls of
                                  a scope must not share */
    size_t n_touched;
    void *return_address; /* of the public call */
} dtr__request;

/* Check arguments in the order of dtr/coll.h and describe the call; nothing is changed on failure.
 * Arrays and batch of `c` still point at the caller's. Needs group->rank, size and name only. */
dtr_status dtr__coll_check(const dtr_group *group, const dtr__request *r, bool blocking,
                           dtr__call *c);
/* Whether its buffers are on a device, as far as one look shows before the check. */
bool dtr__request_on_device(const dtr__request *r);
/* The first of these steps (options; enum ranges; root, peer, tag) for a layer above that looks at
 * pointers, devices, layout and shapes itself before it hands buffers on. */
dtr_status dtr__coll_check_head(const dtr_group *group, const dtr__request *r, bool blocking);

uint64_t dtr__mix(uint64_t h, uint64_t v); /* of fingerprints */

/* Tags of calls inside the library, beside those of users (0..32767) and of the mpi backend. */
enum { DTR__TAG_BYTES = 3 << 15, DTR__TAG_BYTES_BODY = 4 << 15, DTR__TAG_PARTS = 5 << 15 };

#endif /* DTR_CORE_CALL_H */
