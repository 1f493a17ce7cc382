/* Hashes of operations' bytes (DTR_HASH=1), and where they say that ranks went apart. */
#ifndef DTR_RT_HASH_H
#define DTR_RT_HASH_H

#include "recorder/recording.h"

/* Never 0. Blocks of the same bytes have the same one on all ranks of a job. */
uint64_t dtr__hash_bytes(const void *data, size_t nbytes);

/* A sentence about the first collective of `group` whose outputs differ between these members
 * although all get the same; "" where there is none. rec[i] may be NULL. */
const char *dtr__hash_difference(const dtr__recording *const *rec, int n, uint64_t group_uid,
                                 char *text, size_t cap);

#endif /* DTR_RT_HASH_H */
