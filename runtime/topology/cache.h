/* The cache that a rank's cores share last. */
#ifndef DTR_RT_CACHE_H
#define DTR_RT_CACHE_H

#include <stddef.h>

/* Bytes of the last cache before memory behind the first core that this process may run on, 32 MiB
 * where nobody knows. Found out by the first call, which takes some milliseconds; any thread. */
size_t dtr__last_cache(void);

#endif /* DTR_RT_CACHE_H */
