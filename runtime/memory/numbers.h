/* Blocks of node-shared memory by number: a table that one process writes and all processes of the
 * node read, without a lock between them. A reader waits for nobody, also when the writer has
 * stopped or died in the midst of a change.
 *
 * The table is a part of an arena and points to other parts of it by offsets. */
#ifndef DTR_RT_NUMBERS_H
#define DTR_RT_NUMBERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dtr__number_slot {
    /* 0: never used, UINT64_MAX: not used any more; else the number of the block, whose place and
     * length are below. No number comes twice. */
    _Atomic uint64_t number, offset, nbytes;
} dtr__number_slot;

typedef struct dtr__number_table {
    uint64_t capacity; /* a power of two; constant once others can see the table */
    dtr__number_slot slot[];
} dtr__number_table;

enum { DTR__NUMBERS_FIRST = 128 }; /* capacity of the first table */

/* At the beginning of an arena; all zero is an empty one. */
typedef struct dtr__numbers {
    _Atomic uint64_t table; /* its offset from here, 0: none. One that has been left stays as it
                               is, for those who still read it */
    uint64_t live;          /* the writer's */
    uint64_t first_capacity;
    dtr__number_slot first[DTR__NUMBERS_FIRST];
} dtr__numbers;

/* ---- the writer: one thread at a time ---- */
/* How many bytes of the arena the next put needs for a larger table; 0: none. */
size_t dtr__numbers_grow(const dtr__numbers *n);
/* The larger table: `offset` bytes from here, as many as were asked for. */
void dtr__numbers_move(dtr__numbers *n, uint64_t offset);
void dtr__numbers_put(dtr__numbers *n, uint64_t number, uint64_t offset, uint64_t nbytes);
void dtr__numbers_drop(dtr__numbers *n, uint64_t number);
/* Drop all blocks that have bytes in [from, to). */
void dtr__numbers_drop_range(dtr__numbers *n, uint64_t from, uint64_t to);

/* ---- readers ---- */
bool dtr__numbers_find(const dtr__numbers *n, uint64_t number, uint64_t *offset, uint64_t *nbytes);

#endif /* DTR_RT_NUMBERS_H */
