/* The stage backend, as others know it: its table. */
#ifndef DTR_STAGE_H
#define DTR_STAGE_H

#include "core/backend.h"

extern const dtr__backend dtr__backend_stage;

#endif /* DTR_STAGE_H */
