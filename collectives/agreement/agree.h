/* Agreements: how the ranks that take part in a creation or destruction find each other under a
 * deadline, compare what they ask for, and return with one result. */
#ifndef DTR_AGREE_H
#define DTR_AGREE_H

#include <stdbool.h>
#include <stdint.h>

#include <dtr/group.h>

/* What all callers must ask for alike. Compared by length and hash, shown by `text`. */
typedef enum dtr__field_id {
    DTR__FIELD_CALL, /* which function, and on which parent or group */
    DTR__FIELD_LIST,
    DTR__FIELD_NAME,
    DTR__FIELD_TAG,
    DTR__FIELD_BACKEND,
    DTR__FIELD_LOCAL_SYNC,
    DTR__FIELD_DETERMINISTIC,
    DTR__FIELD_REPRODUCIBLE,
    DTR__FIELD_COUNT
} dtr__field_id;

typedef struct dtr__field {
    uint64_t hash, length;
    char text[80]; /* cut with "..." */
} dtr__field;
void dtr__field_set(dtr__field *f, const char *text);

/* Communicators of taken down groups, one uid for those of each (core/team.h, dtr__retired). */
enum { DTR__RETIRED_AT_ONCE = 8 };

/* What one rank brings to an agreement. It is sent as it is, so it holds no pointers. */
typedef struct dtr__entry {
    dtr__field field[DTR__FIELD_COUNT];
    uint64_t scope;    /* hash of the sorted ranks that this rank expects to come */
    uint64_t list_set; /* list creation: hash of the sorted list, else 0 */
    uint64_t counter;  /* number of the newest unnamed group here */
    uint64_t found;    /* uid of the live group with that tag and list, 0: none */
    int64_t key;       /* place in the group this rank goes to */
    int32_t index;     /* which of the groups that is, -1: none */
    int32_t status;    /* what failed here already, with text */
    int32_t can_split; /* the parent's communicator of this rank's device is ready */
    uint8_t unnamed, name_live, end, send_members;
    double limit_s;
    uint64_t ends; /* uid of the group that is to end, 0: none */
    struct {
        uint64_t uid; /* ascending, 0 behind the last one */
        uint64_t size;
    } retired[DTR__RETIRED_AT_ONCE]; /* whose communicators this rank could free */
    char text[256];
} dtr__entry;

/* What a rank gets from an agreement that succeeded. */
typedef struct dtr__outcome {
    uint64_t counter; /* new value for all callers */
    uint64_t number;  /* name of this rank's group when it has none of its own */
    uint64_t uid;     /* of this rank's group */
    bool reuse;       /* the live group found by tag serves */
    bool split;       /* all callers take part in splitting the parent's communicators */
    uint64_t free_uid[DTR__RETIRED_AT_ONCE]; /* all members free these now, in this order; 0: end */
    int *members; /* with send_members: world ranks in group-rank order; the caller frees it */
    int n_members;
} dtr__outcome;

/* Agree with the `n` world ranks of `ranks` (the caller among them, any order, each once). No rank
 * returns DTR_OK before all have come and agreed. Otherwise all who came return the same: MISMATCH
 * with the differing values, STATE (a name in use), TIMEOUT naming who is missing; and where ranks
 * brought a failure, REMOTE naming the first of them, while they keep their own. `what` begins the
 * message. `watch`, where given, ends the wait when that group breaks, with the error that broke
 * it, or, at its end, when a member has released it (DTR_ERR_STATE). The caller holds the world's
 * creation lock. */
dtr_status dtr__agree(dtr_world *world, const char *what, const int *ranks, int n,
                      const dtr__entry *mine, dtr_group *watch, dtr__outcome *out);

/* A world's agreements; `epoch` is the same on all its ranks and differs between worlds. */
typedef struct dtr__agreements dtr__agreements;
dtr__agreements *dtr__agreements_new(const dtr_world *world, uint64_t epoch); /* NULL: no memory */
void dtr__agreements_free(dtr__agreements *ms, bool mpi_alive);

/* The first failed rank of a list, with what is known of it; -1: none. */
int dtr__first_failed_peer(const dtr_world *world, const int *world_ranks, int n,
                           const char **text);

uint64_t dtr__hash(const void *data, size_t nbytes);
uint64_t dtr__hash_set(const int *ranks, int n); /* order does not matter; 0 when out of memory */

/* ---- the decision (agreement/decide.c): a pure function of what everybody brought ---- */
enum { DTR__AGREEMENT_TEXT = 1024 };
typedef struct dtr__answer {
    dtr_status status;
    uint64_t counter, number, uid;
    bool reuse, split;
    uint64_t free_uid[DTR__RETIRED_AT_ONCE];
} dtr__answer;
/* A position in some order: by a, then b, then the position. */
typedef struct dtr__sort_key {
    uint64_t a, b;
    int32_t at;
} dtr__sort_key;
enum { DTR__NO_GROUP = 0 }; /* a: in no group */
/* Of position i, whose rank goes to group `index`, or to none, by `key`. */
dtr__sort_key dtr__agreement_place(int index, int64_t key, int i);
/* ranks[i] brought entry[i], but for its key and index, which place[i] has; answer[i] is filled for
 * it. `next_uid` is moved by the groups made. `place`, of n, is left in the order of groups where
 * all agree: first those of no group, and in a group by key, then by position. `text` gets the
 * message of the failure, with `what` in front. Steps: about n lg n. */
void dtr__agreement_decide(const char *what, const int *ranks, const dtr__entry *const *entry,
                           int n, uint64_t *next_uid, dtr__answer *answer, dtr__sort_key *place,
                           char *text);
/* Where the group ends whose first place is `begin`. */
int dtr__agreement_group_end(const dtr__sort_key *place, int n, int begin);

/* "ranks 0, 1 and 5 more": as many as are shown, and how many there are. */
enum { DTR__RANKS_SHOWN = 16 };
typedef struct dtr__some_ranks {
    int n, rank[DTR__RANKS_SHOWN];
} dtr__some_ranks;
static inline void dtr__some_ranks_add(dtr__some_ranks *some, int rank) {
    if (some->n < DTR__RANKS_SHOWN) {
        some->rank[some->n] = rank;
    }
    some->n++;
}
void dtr__append_ranks(char *text, size_t cap, const dtr__some_ranks *some);

#endif /* DTR_AGREE_H */
