/* What the threads of a launch have done to each byte of memory, so that a read of what nobody has
 * written, and two threads of which nothing says who comes first, are found (fake_shadow.c). */
#ifndef DTR_FAKE_SHADOW_H
#define DTR_FAKE_SHADOW_H

#include <stdbool.h>
#include <stdint.h>

#include "ptx/ptx.h"

/* One for each launch; only its thread uses it. */
typedef struct fake_shadow fake_shadow;
fake_shadow *fake_shadow_open(unsigned blocks, unsigned shared_bytes);
void fake_shadow_close(fake_shadow *s);
/* What comes belongs to another block, whose shared memory nobody has written. */
void fake_shadow_block(fake_shadow *s, unsigned block);
/* What comes is after all that the block has done. */
void fake_shadow_barrier(fake_shadow *s);
/* Where the bytes are; an access that is wrong ends the process. */
void *fake_shadow_global(ptx_thread *t, uint64_t address, unsigned size, ptx_use use,
                         const char *what);
void *fake_shadow_shared(ptx_thread *t, uint64_t address, unsigned size, ptx_use use,
                         const char *what);

#endif /* DTR_FAKE_SHADOW_H */
