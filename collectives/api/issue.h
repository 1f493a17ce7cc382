/* What layers above use to issue calls of their own. */
#ifndef DTR_API_ISSUE_H
#define DTR_API_ISSUE_H

#include "core/call.h"

/* The one way into the engine: handle and membership, broken group, arguments (core/check.c), then
 * issue. `work` NULL blocks until complete. */
dtr_status dtr__coll_issue(dtr_group *group, const dtr__request *r, dtr_work **work);

/* A call that needs an answer at once and cannot be recorded: DTR_OK where no scope is open; else
 * DTR_ERR_STATE, which aborts the scope unless another thread owns it. */
dtr_status dtr__scope_refuse(dtr_group *group, const char *entry);
/* For a layer above that refuses calls itself. look: DTR_OK unless an open scope takes no call from
 * this thread (DTR_ERR_STATE). fail: a refusal with this thread's last error aborts the open scope
 * as that of a recorded call would; returns s, with the call's position in the message. */
dtr_status dtr__scope_look(const dtr_group *group, const char *entry);
dtr_status dtr__scope_fail(dtr_group *group, dtr_status s, dtr__kind kind);

#endif /* DTR_API_ISSUE_H */
