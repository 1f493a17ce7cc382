/* How a group breaks: what this rank has found is put beside what others have, and everybody ends
 * with the same of them. */
#ifndef DTR_VERDICT_H
#define DTR_VERDICT_H

#include "coll_internal.h"
#include "rt_verdict.h"

/* This thread's last error, with status `s`, as what broke the group. */
void dtr__verdict_say(const dtr_group *g, dtr_status s, dtr__verdict *v);
/* The reverse: as this thread's last error. The status on this rank: a failure of another rank
 * alone is DTR_ERR_REMOTE here. */
dtr_status dtr__verdict_take(const dtr_group *g, const dtr__verdict *v);
/* The group breaks by it at once: it is settled elsewhere, or nobody else is asked. This thread's
 * last error stays. */
void dtr__verdict_execute(dtr_group *g, const dtr__verdict *v, dtr__queue *called);
/* For whoever must not wait, with this thread's last error: the watchdog sees to the rest. */
void dtr__group_accuse(dtr_group *g, dtr_status s, dtr__queue *called);
/* The same of two groups that break together (NULL: of one): nobody is released from either before
 * all have heard of both. */
void dtr__groups_accuse(dtr_group *g, dtr_group *also, dtr_status s, dtr__queue *called);
/* Breaks the group where it is settled what broke it. */
void dtr__group_settle(dtr_group *g, dtr__queue *called);

#endif /* DTR_VERDICT_H */
