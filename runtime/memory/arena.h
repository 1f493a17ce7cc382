/* Memory that the ranks of a node share, and huge pages under it.
 *
 * Each rank owns one sparse anonymous file (memfd, no name in /dev/shm) of DTR_ARENA bytes that
 * every rank of the node has mapped since world creation. A pointer into any arena translates to
 * (local rank, offset) and back, so a peer reaches memory allocated at any time without an
 * exchange. Allocation is local and thread-safe (arena's own mutex). */
#ifndef DTR_RT_ARENA_H
#define DTR_RT_ARENA_H

#include "base/world.h"

/* Collective over the node, and agreed there: all ranks have an arena or none has. Having none is
 * no failure and gives one warning. */
dtr_status dtr__arena_open(dtr_world *world);
/* The same with a choice of ways to share, for tests. */
enum { DTR__ARENA_UNNAMED = 1 /* memfd through /proc */, DTR__ARENA_NAMED = 2 /* /dev/shm */ };
dtr_status dtr__arena_open_ways(dtr_world *world, unsigned ways);
void dtr__arena_close(dtr_world *world);

bool dtr__arena_usable(const dtr_world *world);
void *dtr__arena_alloc(dtr_world *world, size_t nbytes,
                       size_t align); /* from the own arena; NULL when full */
void dtr__arena_free(dtr_world *world, void *ptr);
/* A block of the own arena outlives the world: the own arena stays when the world ends, until the
 * last of them is dropped. */
dtr__arena *dtr__arena_hold(dtr_world *world);
void dtr__arena_drop(dtr__arena *a, void *ptr);
/* Makes the pages of these bytes of the own arena private to this process, with what is in them:
 * its pointers stay good, what others store there is lost, and the block's place is never given
 * away again. They must share no page with another block. False: no memory for it. */
bool dtr__arena_keep(dtr_world *world, uint64_t offset, uint64_t nbytes);
/* Grows before the first of them becomes private. */
uint64_t dtr__arena_version(const dtr_world *world);
/* Which arena [ptr, ptr + nbytes) lies in completely; false for other memory, private pages too. A
 * few compares, and no lock where there are no such pages. */
bool dtr__arena_find(const dtr_world *world, const void *ptr, size_t nbytes, int *local_rank,
                     uint64_t *offset);
void *dtr__arena_at(const dtr_world *world, int local_rank, uint64_t offset);
/* Give a block of the own arena a number that it alone ever has, by which all ranks of the node
 * find its place and nbytes until it is taken away, which dtr__arena_keep does too. False: no
 * memory. */
bool dtr__arena_number(dtr_world *world, uint64_t number, const void *ptr, size_t nbytes);
void dtr__arena_unnumber(dtr_world *world, uint64_t number);
void *dtr__arena_numbered(const dtr_world *world, int local_rank, uint64_t number,
                          size_t *nbytes); /* NULL: that rank has none; waits for nobody */
/* Collective over the node: as many zeroed bytes of every rank's arena, where all ranks see them:
 * by local rank, to be read before the next such call. NULL on all: some rank has none, or asked
 * for 0. */
void **dtr__arena_share(dtr_world *world, size_t nbytes, dtr_status *s);
size_t dtr__arena_used(const dtr_world *world); /* bytes handed out of the own arena */

/* Huge pages under the whole ones in a new, unused block, whose pages are taken now: 0, also where
 * it is too small or too large for that, or errno. Then in a line what this machine gives. */
int dtr__huge_back(void *ptr, size_t nbytes);
void dtr__huge_say(char *text, size_t cap);

#endif /* DTR_RT_ARENA_H */
