/* What the fast path (api/fast_path.h) keeps of a call that may come again, and what the backend
 * that serves it has found out about it. */
#ifndef DTR_FAST_ENTRY_H
#define DTR_FAST_ENTRY_H

#include "engine.h"
#include "kernels/kernels.h"

/* What is copied of one rank's data: where it begins there and in the output, how many bytes. */
typedef struct dtr__part {
    size_t at, to, take;
} dtr__part;

/* What the backend found out, once: whose data goes where. */
typedef struct dtr__moves {
    bool gives;      /* shows its input */
    bool reduces;    /* all inputs become the output, by `reducer` if there is one */
    bool fills;      /* no input becomes the output: the operator's identity */
    bool pairs;      /* only giver and taker know how much it is: to be compared */
    bool runs_ahead; /* in a run of such calls it waits only for ranks it takes from */
    bool whole;      /* takes all steps of other calls, only without a work */
    bool zero;       /* everybody's buffers are in node-shared memory and are reduced there */
    dtr__reducer reducer;
    int from, until; /* group ranks whose data it copies otherwise; empty: nobody's */
    size_t give;     /* bytes it shows */
    size_t place; /* runs_ahead: bytes of the place that an operation's data has beside its slot */
    size_t at;    /* reduces: where this rank's part begins in what each shows */
    dtr__part *parts;           /* [group size], the entry's; else: of `from` to `until` - 1 */
    unsigned char identity[32]; /* fills: the output, if so little is enough */
} dtr__moves;

typedef struct dtr__fast_path {
    uint64_t id;                /* never used twice in a group; 0: empty */
    dtr__request asked;         /* compared with what is asked now */
    size_t in_bytes, out_bytes; /* that must be there and apart; 0: not checked */
    bool one_buffer, may_be_same, arrays, p2p;
    bool async; /* a message whose caller gets a work */
    int backend;
    size_t *counts;     /* [2][group size], what the arrays of `call` are in, once needed */
    dtr_p2p *batch;     /* the same of a batch, and behind it the numbers of its last records */
    dtr__call call;     /* in, out and issued_ns are the last one's */
    dtr__record record; /* the numbers and times are the last one's */
    dtr__moves moves;
    /* Where a rank may end a call without the others: changes when one has reported a failure.
     * NULL: it may not. */
    const _Atomic uint64_t *failures;
    uint64_t failures_seen;
    dtr_work *ready; /* works that it described, for the next messages; progress lock */
} dtr__fast_path;

#endif /* DTR_FAST_ENTRY_H */
