/* The stage backend, as others know it: its table. */
#ifndef DTR_STAGE_H
#define DTR_STAGE_H

#include "core/backend.h"

extern const dtr__backend dtr__backend_stage;

/* Take the pinned memory of operations that are cut into chunks before there are any: CUDA may wait
 * for the device while it makes some, and with it for other ranks. */
dtr_status dtr__stage_ahead(dtr_group *g, void *state, int device);

#endif /* DTR_STAGE_H */
