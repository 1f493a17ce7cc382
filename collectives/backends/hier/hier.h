/* The hier backend, as others know it: its table. */
#ifndef DTR_HIER_H
#define DTR_HIER_H

#include "core/backend.h"

extern const dtr__backend dtr__backend_hier;

#endif /* DTR_HIER_H */
