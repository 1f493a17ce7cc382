/* What the two kinds of votes share: the tables in node-shared memory, and merging. */
#ifndef DTR_RT_VOTE_INTERNAL_H
#define DTR_RT_VOTE_INTERNAL_H

#include "control/vote.h"

enum { VOTE_WORDS = sizeof(dtr__vote) / sizeof(uint64_t), AT_UID = 0, AT_STEP = 1 };
_Static_assert(offsetof(dtr__vote, step) == AT_STEP * sizeof(uint64_t), "found by its first words");

/* In shared memory, one writer at a time. */
typedef struct entry {
    _Atomic uint64_t version;
    _Atomic uint64_t word[VOTE_WORDS];
} entry;

/* Of one rank, in memory that the node shares, zeroed at first. Behind it, where there are several
 * nodes, as many sums as entries with a version each: what the rank's watchdog has received. */
typedef struct table {
    _Atomic uint64_t first[DTR__FAILURE_RECORDS]; /* local rank 0's are the node's */
    entry own[DTR__VOTE_ENTRIES];                 /* step votes, then failure records */
} table;

/* Votes merged, who has voted, and who of them with a bad status: world ranks in a step vote, nodes
 * in that on a failure. */
typedef struct sum {
    dtr__vote vote;
    uint64_t voter[]; /* [2][voter_words]: have voted, badly */
} sum;

struct dtr__votes {
    pthread_mutex_t lock; /* own entries, which any thread may write, and `busy` */
    int voter_words;
    size_t sum_words;                 /* of a sum */
    bool busy[DTR__VOTES];            /* somebody waits for what belongs to that own entry */
    bool shared, steps;               /* steps: the world has step votes */
    _Atomic int64_t patience_ns;      /* with other nodes, in the vote on a failure */
    sum *received[DTR__VOTE_ENTRIES]; /* what is in shared memory too; the watchdog's */
    uint64_t *scratch; /* memory of all those, and then two sums for each of DTR__VOTES that wait
                          for an own entry, and two for who judges a failure record (`lock`) */
    table *table[];    /* [local size] */
};

void dtr__vote_end_texts(dtr__vote *v);
static inline sum *dtr__votes_scratch(const dtr__votes *vs, int k, int which) {
    return (sum *)(vs->scratch + (size_t)(DTR__VOTE_ENTRIES + 2 * k + which) * vs->sum_words);
}
bool dtr__vote_read(const entry *e, dtr__vote *v); /* false: there is no whole one */
void dtr__vote_write(entry *e, const dtr__vote *v);
bool dtr__has_voted(const uint64_t *voter, int i);
/* Adds what this node's ranks have received of others; `one` is scratch memory. */
void dtr__votes_gather(const dtr_world *world, uint64_t uid, uint64_t step, sum *one, sum *all);
void dtr__votes_add(const dtr__votes *vs, sum *s, const dtr__vote *one, int voter);
/* Merges a vote and its voters, `n` words from that word on of who has voted and then of who of
 * them badly. True: the sum has changed. */
bool dtr__votes_merge(const dtr__votes *vs, sum *s, const dtr__vote *v, int from, int n,
                      const uint64_t *words);
/* Merges into the k-th sum that this rank's watchdog has received. */
void dtr__votes_receive_at(dtr_world *world, int k, const sum *from);
/* Votes on a step; the record that all nodes in the sum have of a group with members here. */
void dtr__vote_receive(dtr_world *world, const sum *s);
void dtr__failure_record_receive_sum(dtr_world *world, const sum *s);
/* Local rank of who has written this node's record of the group, -1: there is none. */
int dtr__failure_writer(const dtr__votes *vs, uint64_t uid);

#endif /* DTR_RT_VOTE_INTERNAL_H */
