/* One call on byte strings: a work of its own whose parts move lengths, then contents. */
#ifndef DTR_BYTES_H
#define DTR_BYTES_H

#include "engine.h"

enum { DTR__BYTES_PACK = 256 * 1024 /* contents up to this many bytes travel in one message */ };

typedef struct dtr__bytes_op {
    dtr__composite composite;
    dtr__finish finish; /* frees the rest when the transport may have touched it until the end */
    dtr_group *group;
    /* What was asked for. */
    dtr__kind kind;
    const dtr_bytes *in;
    dtr_bytes own; /* the string of allgather and gather; `in` points here then */
    size_t n;      /* strings of this rank's call */
    int root;      /* or peer */
    int tag;
    bool wants_out;
    /* What has come; the caller takes `got` over. */
    dtr_bytes *got;
    size_t n_got;
    int source;
    /* Under way; progress lock. */
    int stage;
    bool complete;     /* nothing touches its memory any more */
    uint64_t head[4];  /* send, recv: magic, n, total, unused; else this rank's n or length */
    uint64_t *lengths; /* of the strings that move */
    size_t n_lengths;
    size_t *counts; /* the same as counts of a collective */
    uint64_t total;
    char *pack;
    dtr_work **parts; /* of this stage, all under way at once where they are point to point */
    size_t n_parts, cap_parts, left;
} dtr__bytes_op;

extern const dtr__backend dtr__backend_bytes;
dtr__bytes_op *dtr__bytes_new(dtr_group *g, const dtr__bytes_op *asked); /* NULL: out of memory */

#endif /* DTR_BYTES_H */
