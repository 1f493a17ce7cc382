/* What the files of meetings share: the messages, one meeting as a rank sees it, and what the chair
 * does. The rules are told in meet.c. */
#ifndef DTR_MEET_CHAIR_H
#define DTR_MEET_CHAIR_H

#include "groups.h"
#include "meet.h"
#include "post.h"

/* To the chair and the deputy. */
typedef enum dtr__up_kind { DTR__UP_ENTER = 1, DTR__UP_WITHDRAW, DTR__UP_ACCEPT } dtr__up_kind;
typedef struct dtr__up {
    uint64_t epoch;  /* of the world: messages to an earlier one are dropped */
    uint64_t number; /* of the sender's meeting, ascending */
    int32_t kind;
    int32_t detail;   /* ACCEPT: which proposal; WITHDRAW: who had answered, SAW_ flags */
    dtr__entry entry; /* ENTER */
} dtr__up;

/* Who a withdrawing rank knew to be in the meeting. */
enum { DTR__SAW_CHAIR = 1, DTR__SAW_DEPUTY = 2 };

/* From the chair; HERE and FINAL also from the deputy while the chair is missing. */
typedef enum dtr__down_kind {
    DTR__DOWN_HERE = 1, /* the sender is in this meeting; after PROPOSE: the proposal is off */
    DTR__DOWN_PROPOSE,  /* agreed, if all still wait: answer with ACCEPT */
    DTR__DOWN_COMMIT,
    DTR__DOWN_FINAL /* ended with answer.status and text */
} dtr__down_kind;
typedef struct dtr__down {
    uint64_t epoch;
    uint64_t number; /* the receiver's */
    int32_t kind;
    int32_t round;     /* PROPOSE: which proposal */
    int32_t n_members; /* follow the struct */
    int32_t unused;
    dtr__answer answer;
    char text[DTR__MEET_TEXT];
} dtr__down;

/* Of a world; belongs to whoever holds its creation lock. */
struct dtr__meetings {
    uint64_t epoch, number, next_uid;
    dtr__letter *out;
    int n_waiting;
    dtr__up **waiting; /* [world size] newest ENTER of each rank, not withdrawn, not used up */
};

/* How long after its limit a rank listens for the names of those who are missing, how long a chair
 * is given to finish what it has proposed, and what a chair has sent to come once it has left. */
#define DTR__LISTEN_S 0.1
#define DTR__FINISH_S 10.0
#define DTR__LEFT_S 1.0

typedef enum dtr__phase {
    DTR__GATHERING, /* entries are coming in */
    DTR__LISTENING, /* withdrawn: only the explanation is awaited */
    DTR__AGREEING,  /* proposed (chair) or accepted (others): the end is near */
    DTR__ENDED
} dtr__phase;

/* One meeting on this rank. Ranks are known by their position in the sorted list. */
typedef struct dtr__meeting {
    dtr__meetings *ms;
    dtr_world *world;
    const char *what;
    const dtr__entry *mine;
    const dtr_group *watch; /* NULL: none */
    bool watch_broke;
    int *ranks, n, me; /* sorted; ranks[0] is the chair, ranks[1] the deputy */
    bool *came, *accepted, *greeted;
    int saw;   /* others than the chair: who has answered, SAW_ flags */
    int round; /* of proposals, from 1 */
    dtr__phase phase;
    uint64_t number;
    double began, deadline;
    double held_since; /* the chair: all have come, but somebody may be about to leave; 0: not so */
    double left_at;    /* others: the chair was seen to have left; 0: not so */
    dtr_status status; /* once DTR__ENDED */
    char text[DTR__MEET_TEXT];
    dtr__outcome *out;
} dtr__meeting;

/* What rank i of the meeting has sent, NULL: nothing that counts. */
static inline const dtr__up *dtr__entry_of(const dtr__meeting *m, int i) {
    return m->ms->waiting[m->ranks[i]];
}

dtr_status dtr__meeting_alloc(dtr__meeting *m, int n); /* flags of n ranks, all false */
/* Whether an entry is to this meeting. */
bool dtr__meeting_is_for(const dtr__meeting *m, const dtr__entry *e);
/* Note who has come; the chair answers each once with HERE, and so does the deputy while the chair
 * is missing. True when all have. */
bool dtr__meeting_all_came(dtr__meeting *m);
void dtr__meeting_send_up(dtr__meeting *m, int to, dtr__up_kind kind);
bool dtr__meeting_chair_missing(const dtr__meeting *m); /* as far as this rank knows */
/* To the chair, and before that to the deputy, which keeps the list for the case that the chair is
 * missing. */
void dtr__meeting_send_up_all(dtr__meeting *m, dtr__up_kind kind);
/* End here, with m->text: the entries of those who came are used up. */
void dtr__meeting_end(dtr__meeting *m, dtr_status s);
/* The same after telling everybody who came. */
void dtr__meeting_end_all(dtr__meeting *m, dtr_status mine, dtr_status others);
/* The same with TIMEOUT and who is missing. */
void dtr__meeting_time_out(dtr__meeting *m, double limit_s);
/* The chair: a rank whose entry was counted had left before it heard of the chair. */
void dtr__chair_regather(dtr__meeting *m);
void dtr__meeting_take_answer(dtr__meeting *m, const dtr__answer *a, int *members, int n_members);
/* What the chair does between two looks for messages. */
dtr_status dtr__chair_step(dtr__meeting *m);

#endif /* DTR_MEET_CHAIR_H */
