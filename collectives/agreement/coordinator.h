/* What the files of agreements share: the messages, one agreement as a rank sees it, and what the
 * coordinator does. agreement/agree.c states the rules. */
#ifndef DTR_COORDINATOR_H
#define DTR_COORDINATOR_H

#include <stddef.h>

#include "agreement/agree.h"
#include "agreement/mailbox.h"
#include "kept.h"

/* To the coordinator and the backup, and by the tree (tree.c) to the parent. */
typedef enum dtr__up_kind {
    DTR__UP_ENTER = 1,
    DTR__UP_WITHDRAW,  /* to the parent too */
    DTR__UP_ACCEPT,    /* to the coordinator */
    DTR__UP_BATCH,     /* by the tree: a dtr__batch, the entries of a whole subtree */
    DTR__UP_ACCEPT_ALL /* by the tree: a whole subtree has accepted; number: the coordinator's */
} dtr__up_kind;
typedef struct dtr__up {
    uint64_t epoch;  /* of the world: messages to an earlier one are dropped */
    uint64_t number; /* of the sender's agreement, ascending */
    int32_t kind;
    int32_t detail;   /* ENTER: DTR__ENTER_ flags; ACCEPT: which proposal */
    uint64_t saw;     /* WITHDRAW: number of the receiver's agreement, if it has answered; else 0 */
    dtr__entry entry; /* ENTER */
} dtr__up;

/* ASKED: the rank enters directly because it was asked to. NEXT, noted by the receiver: the rank
 * had come before and knows already how this agreement has ended, so this is for a later one. */
enum { DTR__ENTER_ASKED = 1, DTR__ENTER_NEXT = 2 };

/* Number of a FINAL for a rank whose entry has not come: the end of the world has failed. */
enum { DTR__OF_WORLD_END = 0 };

/* From the coordinator; HERE, ASK and FINAL also from the backup while the coordinator is missing.
 */
typedef enum dtr__down_kind {
    DTR__DOWN_HERE = 1, /* the sender takes part; proposals up to `round` are off */
    DTR__DOWN_PROPOSE,  /* by the tree, a dtr__proposal: agreed, if all still wait: accept it */
    DTR__DOWN_COMMIT,   /* by two trees */
    DTR__DOWN_FINAL,    /* ended with status and text */
    DTR__DOWN_ASK       /* enter directly: `number` is the scope of who asks */
} dtr__down_kind;
typedef struct dtr__down {
    uint64_t epoch;
    uint64_t
        number; /* HERE, FINAL: the receiver's, or DTR__OF_WORLD_END; COMMIT: the coordinator's */
    int32_t kind;
    int32_t round;  /* which proposal */
    int32_t status; /* FINAL, which the text follows */
    int32_t root;   /* COMMIT: rank of the coordinator */
    uint64_t own;   /* HERE, FINAL: the sender's */
} dtr__down;

/* Of a world, whose creation lock guards it. */
struct dtr__agreements {
    uint64_t epoch, number, next_uid;
    uint64_t asked; /* scope of agreements whose coordinator asked this rank too early; 0: none */
    dtr__control_message *out;
    dtr__arriving *in_up, *in_down;
    int n_owed; /* commits that are still to come, by the tree that was slower */
    int n_waiting;
    dtr__kept **waiting; /* [world size] newest entry of each rank, not withdrawn, not used up */
    dtr__shared_entry *last; /* that came directly: the next may ask for the same; NULL: none */
    uint64_t *gone;          /* [world size] number of the newest that is: it may come once more */
    dtr_status end; /* what the coordinator reported of the world's end, with text; OK: nothing */
    char end_text[DTR__AGREEMENT_TEXT];
};

/* How long a rank waits: after its limit, for the names of the missing ranks; for a coordinator to
 * finish what it has proposed; for what a coordinator sent before it left. */
#define DTR__LISTEN_S 0.1
#define DTR__FINISH_S 10.0
#define DTR__LEFT_S 1.0
/* How long the end of a world waits for commits that a rank may have kept by dying. */
#define DTR__OWED_S 0.2
/* When a coordinator proposes once more, to each rank directly: an inner rank of the tree may be
 * stopped. */
#define DTR__AGAIN_S 2.5
/* Which part of its limit a rank waits for the tree before it enters directly. */
#define DTR__PATIENCE 0.5

typedef enum dtr__phase {
    DTR__GATHERING, /* entries are coming in */
    DTR__LISTENING, /* withdrawn: only the explanation is awaited */
    DTR__AGREEING,  /* proposed (coordinator) or accepted (others) */
    DTR__ENDED
} dtr__phase;

/* One agreement on this rank. A rank is named by its position in the sorted list. */
typedef struct dtr__agreement {
    dtr__agreements *ms;
    dtr_world *world;
    const char *what;
    const dtr__entry *mine;
    dtr_group *watch; /* NULL: none */
    bool watch_broke;
    bool watch_released; /* by a member, which does not come to its end */
    bool gave_up;        /* for one of both */
    int *ranks, n, me;   /* sorted; ranks[0]: coordinator, ranks[1]: backup */
    bool *came, *accepted, *greeted;
    int n_came, n_accepted; /* of the others */
    /* What has become of the entries since they were last looked at: positions, each once (listed),
     * or anything. */
    int *changed, n_changed;
    bool *listed, all_changed;
    bool end_failed;      /* an entry for the end of something has brought a failure */
    bool subtree_changed; /* since its entries were sent up */
    bool direct;          /* this rank has entered directly */
    double direct_at;
    bool asked;                   /* has asked those who have not come */
    bool some_unasked, differing; /* what has come, as far as it was looked at */
    uint64_t saw[2];              /* numbers of coordinator and backup; 0: no answer yet */
    bool withdrawn;               /* the backup knows that it has not this rank's entry any more */
    int round;                    /* of proposals, from 1 */
    int off_round;                /* proposals up to this one are off */
    uint64_t root_number;         /* AGREEING: the coordinator's */
    unsigned below;               /* AGREEING: children that have not accepted, a bit each */
    struct dtr__proposal *proposal; /* the coordinator's own, to be sent again */
    double proposed_at;             /* 0: it was sent again */
    dtr__phase phase;
    uint64_t number;
    double began, deadline;
    double held_since; /* coordinator: all have come, but a rank may be about to leave; 0: not so */
    double left_at;    /* others: the coordinator is known to have left; 0: not so */
    dtr_status status; /* once DTR__ENDED */
    char text[DTR__AGREEMENT_TEXT];
    dtr__outcome *out;
} dtr__agreement;

/* Its rank waits for nobody, so this is its last message. */
static inline bool dtr__brings_failed_end(const dtr__entry *e) {
    return e->end != 0 && e->status < 0;
}

static inline bool dtr__agreement_ends_world(const dtr__agreement *m) {
    return m->mine->end != 0 && m->watch == NULL;
}

/* What rank i has sent, NULL: nothing that counts. */
static inline const dtr__kept *dtr__entry_of(const dtr__agreement *m, int i) {
    return m->ms->waiting[m->ranks[i]];
}

dtr_status dtr__agreement_alloc(dtr__agreement *m, int n); /* n ranks, of which nothing is known */
int dtr__agreement_position(const dtr__agreement *m, int rank); /* -1: it takes no part */
/* An entry of rank `from` has come; if it is kept, its shared part has one use more. */
void dtr__agreement_arrived(dtr__agreement *m, const dtr__kept *kept, int from);
/* The entry of rank i has come, or come anew, or is gone. */
void dtr__agreement_changed(dtr__agreement *m, int i);
/* Whether an entry is for this agreement. */
bool dtr__agreement_is_for(const dtr__agreement *m, const dtr__entry *e);
/* Note who has come, in steps for what has changed; the coordinator answers each that has entered
 * directly once with HERE, and so does the backup while the coordinator is missing. True when all
 * have come. */
bool dtr__agreement_all_came(dtr__agreement *m);
/* Whether all have to enter directly now: a limit comes near, or they do different things. */
bool dtr__agreement_needs_all(const dtr__agreement *m);
/* Ask those who have not come, once. */
void dtr__agreement_ask(dtr__agreement *m);
void dtr__agreement_enter(dtr__agreement *m, bool asked); /* directly, once */
void dtr__agreement_accept(dtr__agreement *m);            /* what was proposed */
/* Take this rank's entry back from coordinator, backup and parent, who may have it. */
void dtr__agreement_withdraw(dtr__agreement *m);
bool dtr__agreement_coordinator_missing(const dtr__agreement *m); /* as far as this rank knows */
/* End on this rank, with m->text. At success, and on the coordinator, the entries of those who came
 * are used up; elsewhere each rank takes its own back where it has failed. */
void dtr__agreement_end(dtr__agreement *m, dtr_status s);
/* The same after reporting it to every rank that came, whose entries are used up. Where a world
 * ends the coordinator reports it to all: it leaves, and nobody else keeps the list. */
void dtr__agreement_end_all(dtr__agreement *m, dtr_status mine, dtr_status others);
/* The same with TIMEOUT and who is missing. */
void dtr__agreement_time_out(dtr__agreement *m, double limit_s);
/* Coordinator: a rank whose entry was counted had left before it received an answer. */
void dtr__coordinator_regather(dtr__agreement *m);
void dtr__agreement_take_answer(dtr__agreement *m, const dtr__answer *a, int *members,
                                int n_members);
/* What the coordinator does between two polls for messages. */
dtr_status dtr__coordinator_step(dtr__agreement *m);

#endif /* DTR_COORDINATOR_H */
