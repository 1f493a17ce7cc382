/* What the files of agreements share: the messages, one agreement as a rank sees it, and what the
 * coordinator does. agreement/agree.c states the rules. */
#ifndef DTR_COORDINATOR_H
#define DTR_COORDINATOR_H

#include "agreement/agree.h"
#include "agreement/mailbox.h"

/* To the coordinator and the backup. */
typedef enum dtr__up_kind { DTR__UP_ENTER = 1, DTR__UP_WITHDRAW, DTR__UP_ACCEPT } dtr__up_kind;
typedef struct dtr__up {
    uint64_t epoch;  /* of the world: messages to an earlier one are dropped */
    uint64_t number; /* of the sender's agreement, ascending */
    int32_t kind;
    int32_t detail;   /* ACCEPT: which proposal; WITHDRAW: who had answered, SAW_ flags */
    dtr__entry entry; /* ENTER */
} dtr__up;

/* Who a withdrawing rank knew to take part. */
enum { DTR__SAW_COORDINATOR = 1, DTR__SAW_BACKUP = 2 };

/* From the coordinator; HERE and FINAL also from the backup while the coordinator is missing. */
typedef enum dtr__down_kind {
    DTR__DOWN_HERE = 1, /* the sender takes part; after PROPOSE: the proposal is off */
    DTR__DOWN_PROPOSE,  /* agreed, if all still wait: answer with ACCEPT */
    DTR__DOWN_COMMIT,
    DTR__DOWN_FINAL /* ended with answer.status and text */
} dtr__down_kind;
typedef struct dtr__down {
    uint64_t epoch;
    uint64_t number; /* the receiver's */
    int32_t kind;
    int32_t round;     /* PROPOSE: which proposal */
    int32_t n_members; /* follow the struct; FINAL: the text does */
    int32_t unused;
    dtr__answer answer;
} dtr__down;

/* Of a world, whose creation lock guards it. */
struct dtr__agreements {
    uint64_t epoch, number, next_uid;
    dtr__control_message *out;
    dtr__arriving *in_up, *in_down;
    int n_waiting;
    dtr__up **waiting; /* [world size] newest ENTER of each rank, not withdrawn, not used up */
};

/* How long a rank waits: after its limit, for the names of the missing ranks; for a coordinator to
 * finish what it has proposed; for what a coordinator sent before it left. */
#define DTR__LISTEN_S 0.1
#define DTR__FINISH_S 10.0
#define DTR__LEFT_S 1.0

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
    bool end_failed; /* an entry for the end of something has brought a failure */
    int saw;         /* of all but the coordinator: who has answered, SAW_ flags */
    int round;       /* of proposals, from 1 */
    dtr__phase phase;
    uint64_t number;
    double began, deadline;
    double held_since; /* coordinator: all have come, but a rank may be about to leave; 0: not so */
    double left_at;    /* others: the coordinator is known to have left; 0: not so */
    dtr_status status; /* once DTR__ENDED */
    char text[DTR__AGREEMENT_TEXT];
    dtr__outcome *out;
} dtr__agreement;

/* What rank i has sent, NULL: nothing that counts. */
static inline const dtr__up *dtr__entry_of(const dtr__agreement *m, int i) {
    return m->ms->waiting[m->ranks[i]];
}

dtr_status dtr__agreement_alloc(dtr__agreement *m, int n); /* n ranks, of which nothing is known */
/* The entry of rank i has come, or come anew, or is gone. */
void dtr__agreement_changed(dtr__agreement *m, int i);
/* Whether an entry is for this agreement. */
bool dtr__agreement_is_for(const dtr__agreement *m, const dtr__entry *e);
/* Note who has come, in steps for what has changed; the coordinator answers each once with HERE,
 * and so does the backup while the coordinator is missing. True when all have come. */
bool dtr__agreement_all_came(dtr__agreement *m);
void dtr__agreement_send_up(dtr__agreement *m, int to, dtr__up_kind kind);
bool dtr__agreement_coordinator_missing(const dtr__agreement *m); /* as far as this rank knows */
/* To the backup and then to the coordinator: the backup keeps the list in case the coordinator is
 * missing. */
void dtr__agreement_send_up_all(dtr__agreement *m, dtr__up_kind kind);
/* End on this rank, with m->text: the entries of those who came are used up. */
void dtr__agreement_end(dtr__agreement *m, dtr_status s);
/* The same after reporting it to every rank that came. */
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
