/* How a group breaks: each rank puts its failure record beside those of the others, and all ranks
 * end with the same one. */
#ifndef DTR_FAILURE_H
#define DTR_FAILURE_H

#include "control/vote.h"
#include "core/team.h"
#include "core/work.h"

/* How far a member on another node has come, for who wants to name those that have not: its report
 * may have given its place to another one's meanwhile. */
typedef struct dtr__come {
    _Atomic uint64_t seq;     /* the newest collective that it is known to have entered */
    _Atomic int64_t asked_ns; /* its node was asked for what it does after that, and answered or
                               * will not; 0: no */
    _Atomic bool known;       /* how far was in the answer */
} dtr__come;

/* What this rank knows of how a group broke, or may be about to. */
typedef struct dtr__group_failure {
    _Atomic(dtr__error_copy *) reported; /* the error that this rank reports, NULL: none yet */
    _Atomic int status;                  /* with which status; before reported_ns */
    _Atomic int64_t reported_ns;         /* when it had reported it, 0: not yet */
    _Atomic int failed_peer;   /* world rank + 1 of the member whose failure broke it, 0: none */
    _Atomic int notified;      /* the other members know that it is broken, or notified this rank */
    _Atomic int nan_notified;  /* they know that this rank gave NaN */
    _Atomic int64_t ask_ns;    /* evidence of who is missing: not to be looked at again before */
    _Atomic(dtr__come *) come; /* [size] NULL: nobody has been asked yet */
    struct {
        uint64_t warned, agreed; /* newest operation reported as slow; collective all agree on */
        int64_t look_ns,
            mismatch_ns; /* the next comparison; since when ranks differ, 0: they do not */
        uint64_t last;   /* the newest collective when no one was open, since last_ns */
        int64_t last_ns;
        bool logged; /* that it is broken */
    } watched;       /* lock of the world's groups */
} dtr__group_failure;

extern const dtr__failure_ops dtr__failure_functions;

/* Break with this thread's last error, once all members agree on what broke it (failure/failure.c),
 * which may be what another one found: at once on one node, after a second at most between several.
 * The progress lock may be held. */
void dtr__group_break_with(dtr_group *g, dtr_status s, dtr__queue *called);
/* This thread's last error, with status `s`, as what broke the group. */
void dtr__failure_describe(const dtr_group *g, dtr_status s, dtr__failure_record *v);
/* The reverse: as this thread's last error. The status on this rank: a failure of another rank
 * alone is DTR_ERR_REMOTE here. */
dtr_status dtr__failure_adopt(const dtr_group *g, const dtr__failure_record *v);
/* Break the group by it at once: it is settled elsewhere, or no other rank is asked. This thread's
 * last error stays. */
void dtr__failure_apply(dtr_group *g, const dtr__failure_record *v, dtr__queue *called);
/* Only puts this thread's last error beside what others have found; the caller breaks the group
 * next. A backend calls it before peers can see its failure: what they make of that must not come
 * first. Lanes, which have no engine, are passed over. */
void dtr__group_record_failure(dtr_group *g, dtr_status s);
/* For callers that must not wait, with this thread's last error: the watchdog does the rest. */
void dtr__group_report_failure(dtr_group *g, dtr_status s, dtr__queue *called);
/* The same of two groups that break together (NULL: of one): no rank is released from either before
 * all know of both. */
void dtr__groups_report_failure(dtr_group *g, dtr_group *also, dtr_status s, dtr__queue *called);
/* Break the group if it is settled what broke it. */
void dtr__group_settle_failure(dtr_group *g, dtr__queue *called);
/* Whether the group is broken, also by what a member on this node has reported and this rank has
 * not been notified of yet: it is broken here then, between nodes once that is settled, after a
 * second at most. The progress lock may be held. */
bool dtr__group_look_for_failure(dtr_group *g, dtr__queue *called);

#endif /* DTR_FAILURE_H */
