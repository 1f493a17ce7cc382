/* What travels by the tree of an agreement: up the entries of subtrees, down what is proposed, with
 * 16 bytes for each rank of a subtree. agreement/tree.c states the rules. */
#ifndef DTR_TREE_H
#define DTR_TREE_H

#include "coordinator.h"

/* How many children a rank has at most. It sends a list of n members to each, so more of them are
 * fewer rounds and more bytes; and 7 ranks, as in tests, are more than a star. */
enum { DTR__TREE_WIDTH = 4 };

/* Some positions in a row: how far behind the root above them, and how many. */
typedef struct dtr__subtree {
    int at, n;
} dtr__subtree;
dtr__subtree dtr__tree_child(int n, int j); /* the j-th child in a subtree of n; n 0: none */

typedef struct dtr__tree_node {
    int parent, child; /* its position, -1: none; which of its children this is */
    int n;             /* of the subtree, its root among them */
} dtr__tree_node;
dtr__tree_node dtr__tree_node_at(int i, int n); /* of position i in a tree of n */

/* One rank: `of` is the variant (up) or the answer (down) that is its. */
typedef struct dtr__slot {
    uint64_t number; /* of its agreement */
    int32_t rank, of;
} dtr__slot;

/* Where a rank goes in an entry that it shares with others. */
typedef struct dtr__variant {
    int64_t key;
    int32_t index, entry;
} dtr__variant;

/* Followed by n_slots slots, n_variants variants and n_entries entries. */
typedef struct dtr__batch {
    uint64_t epoch, number; /* as dtr__up has them */
    int32_t kind, n_slots;
    int32_t n_variants, n_entries;
} dtr__batch;

typedef struct dtr__group_answer {
    dtr__answer answer;
    int32_t begin, n; /* which of the members are those of this group; n 0: none was asked for */
} dtr__group_answer;

/* Followed by n_answers dtr__group_answer, n_members ranks, which are an even number, and n_slots
 * slots: those of the receiver and its subtree, in the order of positions. It has the answers and
 * members that these need. */
typedef struct dtr__proposal {
    uint64_t epoch;
    uint64_t number; /* the coordinator's */
    int32_t kind, round, n_answers, n_members, n_slots, root;
} dtr__proposal;

/* One entry of a batch. */
typedef struct dtr__arrival {
    uint64_t number;
    int rank, index;
    int64_t key;
    const dtr__entry *entry; /* but for key and index */
} dtr__arrival;

/* A message of these entries, malloc'ed; NULL: no memory. */
dtr__batch *dtr__batch_new(uint64_t epoch, uint64_t number, const dtr__arrival *all, int n,
                           size_t *nbytes);
/* Note the entries of a message. */
void dtr__tree_take_batch(dtr__agreement *m, const dtr__batch *b, size_t nbytes);
/* Send the entries of this rank's subtree to its parent, once all of them are there. */
void dtr__tree_gather(dtr__agreement *m);

/* Coordinator: what a decision comes to, malloc'ed; place[k] and members[k] belong together, and
 * answer and entry go by position. NULL: no memory. */
dtr__proposal *dtr__proposal_new(const dtr__agreement *m, const dtr__entry *const *entry,
                                 const dtr__answer *answer, const dtr__sort_key *place,
                                 const int *members);
/* Take one that has come: pass it on, and accept it where it is for this rank. */
void dtr__tree_take_proposal(dtr__agreement *m, const dtr__proposal *p, size_t nbytes, int from);
/* Send a proposal of a subtree to the subtrees below. */
void dtr__tree_propose(dtr__agreement *m, const dtr__proposal *p);
/* Coordinator: send its own once more to each rank that has not accepted. */
void dtr__tree_propose_again(dtr__agreement *m);
/* The subtree of rank `from` has accepted. */
void dtr__tree_take_accepted(dtr__agreement *m, uint64_t number, int round, int from);
/* Pass on that all have accepted. How often this rank will hear it once more. */
int dtr__tree_commit(dtr__agreement *m);

#endif /* DTR_TREE_H */
