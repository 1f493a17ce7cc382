/* The shm backend, as others know it: its table. */
#ifndef DTR_SHM_H
#define DTR_SHM_H

#include "core/backend.h"

extern const dtr__backend dtr__backend_shm;

#endif /* DTR_SHM_H */
