/* What the files of the public calls share. */
#ifndef DTR_API_INTERNAL_H
#define DTR_API_INTERNAL_H

#include "core/call.h"

/* First in a call that always blocks: DTR_OK where the group is live and whole, no scope is open
 * and this thread may wait. DTR_NOT_MEMBER for NULL. */
dtr_status dtr__may_block(dtr_group *g, dtr__kind kind);
dtr_status dtr__may_block_in(dtr_group *g, const char *entry, const char *operation);

/* A checked call with device buffers, which takes its limit (api/issue_device.c). */
dtr_status dtr__issue_on_device(dtr_group *g, dtr__call *c, const dtr__request *r, const char *site,
                                dtr_work **work);

#endif /* DTR_API_INTERNAL_H */
