/* Divides a range of offsets among blocks. Knows nothing of the memory behind it: all of its notes
 * are private to the process. Not thread-safe. */
#ifndef DTR_RT_HEAP_H
#define DTR_RT_HEAP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct dtr__heap dtr__heap;

/* The range [begin, end), multiples of 64, begin > 0. NULL: no memory. */
dtr__heap *dtr__heap_new(uint64_t begin, uint64_t end);
void dtr__heap_delete(dtr__heap *h);

/* A block of at least nbytes (0 counts as 1) at a multiple of align (a power of two, at least 64).
 * False: no such range is free, or no memory for the note. */
bool dtr__heap_take(dtr__heap *h, uint64_t nbytes, uint64_t align, uint64_t *offset);
/* Give a block back; returns its size, 0 when there is none at that offset. */
uint64_t dtr__heap_give(dtr__heap *h, uint64_t offset);
uint64_t dtr__heap_size_of(const dtr__heap *h, uint64_t offset); /* 0: no block there */
uint64_t dtr__heap_used(const dtr__heap *h);                     /* bytes in blocks */

#endif /* DTR_RT_HEAP_H */
