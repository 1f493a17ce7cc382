/* What the collectives layer knows of the stage backend. */
#ifndef DTR_STAGE_H
#define DTR_STAGE_H

#include "coll_internal.h"

extern const dtr__backend dtr__backend_stage;

/* A checked call with device buffers, as an asynchronous work. */
dtr_status dtr__stage_issue(dtr_group *g, const dtr__call *c, const dtr__request *r,
                            const char *site, dtr_work **work);
/* Give a described call of a scope to stage, as a part. */
dtr_status dtr__stage_part(dtr_group *g, dtr_work *w);
/* With the group's end, after the engine's. */
void dtr__stage_close(dtr_group *g);

#endif /* DTR_STAGE_H */
