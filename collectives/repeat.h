/* Repeats: small blocking operations that a program calls again and again.
 *
 * The first call of a sort goes the ordinary way. What that found out - that its arguments are
 * good, its fingerprint, its backend, the text of its record - stays with the group. The next call
 * from the same place with the same arguments only takes its numbers, shows its data, is noted in
 * the recording while the others' data is on its way, and looks for them for a moment. Whatever is
 * not over by then, and whatever is unusual, becomes an ordinary work that the engine ends. */
#ifndef DTR_REPEAT_H
#define DTR_REPEAT_H

#include "engine.h"
#include "kernels/kernels.h"

/* What is copied of one rank's data: where it begins there and in the output, how many bytes. */
typedef struct dtr__part {
    size_t at, to, take;
} dtr__part;

/* What the backend found out, once: whose data goes where. */
typedef struct dtr__moves {
    bool gives;   /* shows its input */
    bool reduces; /* all inputs become the output, by `reducer` if there is one */
    bool pairs;   /* only giver and taker know how much it is: to be compared */
    bool leads;   /* in a row of such calls it waits for nobody but those it takes from */
    bool zero;    /* everybody's buffers are in node-shared memory and are reduced there */
    dtr__reducer reducer;
    int from, until;  /* group ranks whose data it copies otherwise; empty: nobody's */
    size_t give;      /* bytes it shows */
    size_t place;     /* leads: bytes of the place that an operation's data has beside its post */
    size_t at;        /* reduces: where this rank's part begins in what each shows */
    dtr__part *parts; /* [group size], the repeat's; else: of `from` to `until` - 1 */
} dtr__moves;

typedef struct dtr__repeat {
    uint64_t id;                /* never used twice in a group; 0: empty */
    dtr__request asked;         /* compared with what is asked now */
    size_t in_bytes, out_bytes; /* that must be there and apart; 0: not looked at */
    bool one_buffer, may_be_same, arrays, p2p;
    int backend;
    size_t *counts;     /* [2][group size], what the arrays of `call` are in, once needed */
    dtr_p2p *batch;     /* the same of a batch, and behind it the numbers of its last records */
    dtr__call call;     /* in, out and issued_ns are the last one's */
    dtr__record record; /* the numbers and times are the last one's */
    int64_t limit_ns;   /* from issue to deadline; 0: none */
    dtr__moves moves;
} dtr__repeat;

/* True when the call has been served here, with its status. No lock held. */
bool dtr__repeat_call(dtr_group *g, const dtr__request *r, dtr_status *status);
/* A call that `w` has just ended well may come again. Progress lock held. */
void dtr__repeat_learn(dtr_group *g, const dtr__request *r, const dtr_work *w, int backend);
void dtr__repeats_free(dtr_group *g); /* progress lock held */

#endif /* DTR_REPEAT_H */
