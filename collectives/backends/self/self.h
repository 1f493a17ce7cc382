/* The self backend, as others know it: its table. */
#ifndef DTR_SELF_H
#define DTR_SELF_H

#include "core/backend.h"

extern const dtr__backend dtr__backend_self;

#endif /* DTR_SELF_H */
