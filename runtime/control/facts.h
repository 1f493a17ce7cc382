/* The facts that a rank keeps for the other nodes; belongs to the watchdog's thread. */
#ifndef DTR_RT_FACTS_H
#define DTR_RT_FACTS_H

#include "control_internal.h"
#include "vote_internal.h"

typedef enum fact_kind { FACT_FAILURE, FACT_DUMP, FACT_SUM } fact_kind;

struct fact {
    fact *older, *newer; /* by version; a change makes a fact the newest one */
    uint64_t version;    /* of all changes, from 1 on; 0: not to be sent yet */
    uint64_t before;     /* the version that it had before the newest ones that are being spread */
    uint64_t sent_all;   /* the newest version that has gone to all neighbours */
    fact_kind kind;
    int rank;         /* of a failure */
    bool own;         /* its own node has said so */
    bool delivered;   /* a failure record: the node's ranks have it */
    int64_t until_ns; /* that long it waits for ranks that have its group; 0: no longer */
    uint64_t word[];  /* of a reason for dumps its text, of votes their sum */
};

static inline char *dtr__fact_cause(const fact *f) {
    return (char *)f->word;
}

static inline sum *dtr__fact_sum(const fact *f) {
    return (sum *)f->word;
}

/* In a sum behind the voters: those that are not in what has been spread. */
static inline uint64_t *dtr__fact_fresh(const dtr__votes *vs, const fact *f) {
    return (uint64_t *)f->word + vs->sum_words;
}

/* With so many words; NULL: no memory. */
fact *dtr__facts_add(dtr__control *c, fact_kind kind, size_t n_words);
void dtr__facts_remove(dtr__control *c, fact *f);
void dtr__facts_changed(dtr__control *c, fact *f);

void dtr__facts_send_sum(const dtr_world *world, dtr__link *l, const fact *f);

#endif /* DTR_RT_FACTS_H */
