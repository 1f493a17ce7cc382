/* One call on byte strings: a work of its own whose parts move lengths, then contents. */
#ifndef DTR_BYTE_STRINGS_H
#define DTR_BYTE_STRINGS_H

#include "core/backend.h"
#include "core/call.h"
#include "engine/staged.h"

enum { DTR__BYTES_PACK = 256 * 1024 /* contents up to this many bytes travel in one message */ };

_Static_assert(sizeof(size_t) == sizeof(int64_t), "lengths travel as they are");

typedef struct dtr__bytes_op {
    dtr__staged staged;
    /* What was asked for. */
    dtr__kind kind;
    const dtr_bytes *in; /* of allgather and gather: `own` */
    dtr_bytes own;
    size_t n; /* strings of this rank's call */
    int root; /* or peer */
    int tag;
    bool wants_out;
    /* What has come; the caller takes `got` over: strings `first` to first + n_got - 1. */
    dtr_bytes *got;
    size_t first, n_got;
    int source;
    /* Under way; progress lock. */
    uint64_t head[2]; /* send, recv: n and total; else this rank's n or length */
    size_t *lengths;  /* of the strings that move, 0 where this rank has nothing to do with one */
    size_t n_lengths;
    size_t total;
    char *pack;
} dtr__bytes_op;

extern const dtr__backend dtr__backend_bytes;
dtr__bytes_op *dtr__bytes_new(dtr_group *g, const dtr__bytes_op *asked); /* NULL: out of memory */

#endif /* DTR_BYTE_STRINGS_H */
