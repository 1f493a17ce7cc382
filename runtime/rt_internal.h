/* What the files of the runtime share among themselves and nobody above includes. */
#ifndef DTR_RT_INTERNAL_H
#define DTR_RT_INTERNAL_H

#include "rt_world.h"

/* ---- MPI of the process (rt_mpi.c) ---- */

/* Count one more user of MPI, initialising it when `may_initialise` and nobody has. `level` becomes
 * what MPI provides, `own` whether this library initialised it, `serial` a number of this use. */
dtr_status dtr__mpi_acquire(bool may_initialise, int *level, bool *own, uint32_t *serial);
/* Collective over `comm`: DTR_OK once all of its ranks have come, DTR_ERR_TIMEOUT where they have
 * not within the limit, also for a rank that comes after others have given up. What was begun stays
 * in the communicator, so that no further collective call on it would match. */
dtr_status dtr__mpi_meet(MPI_Comm comm, double limit_s);
/* One user less. With `finish`, MPI that this library initialised ends when no other is left. */
dtr_status dtr__mpi_release(bool finish);

/* ---- parts of a world: open is local unless it says otherwise; close accepts NULL ---- */

dtr_status dtr__log_open(dtr_world *world, const dtr_world_options *o);
void dtr__log_close(dtr_world *world);
/* From now on this thread drops a line that would have to wait for a full pipe or a held terminal.
 */
void dtr__log_never_wait(void);
/* The path that a pattern with %r, %h and %p stands for on this rank. */
void dtr__log_expand(const dtr_world *world, const char *pattern, char *path, size_t cap);

dtr_status dtr__trace_open(dtr_world *world);
void dtr__trace_close(dtr_world *world);

dtr_status dtr__recorder_open(dtr_world *world);
void dtr__recorder_close(dtr_world *world);

dtr_status dtr__progress_open(dtr_world *world);
void dtr__progress_close(dtr_world *world);

dtr_status dtr__memory_open(dtr_world *world);
void dtr__memory_close(dtr_world *world); /* frees what is left, with one warning */

/* Collective over the node, and agreed there: all ranks have an arena or none has. Having none is
 * no failure: it is said in one warning. */
dtr_status dtr__arena_open(dtr_world *world);
/* The same with a choice of ways to share, for tests. */
enum { DTR__ARENA_UNNAMED = 1 /* memfd through /proc */, DTR__ARENA_NAMED = 2 /* /dev/shm */ };
dtr_status dtr__arena_open_ways(dtr_world *world, unsigned ways);
void dtr__arena_close(dtr_world *world);

/* Collective over `comm` or the world: DTR_ERR_MISMATCH with one text on all ranks, naming each
 * value and its ranks, where they run different versions, or differ in a setting that must be the
 * same. The version comes first of all, in a form that every version understands. */
dtr_status dtr__agree_version(MPI_Comm comm, int version);
dtr_status dtr__agree_settings(const dtr_world *world);

/* Huge pages under the whole ones in a new, unused block, whose pages are taken now: 0, also where
 * it is too small or too large for that, or errno. Then in a line what this machine gives. */
int dtr__huge_back(void *ptr, size_t nbytes);
void dtr__huge_say(char *text, size_t cap);

/* Collective over the node: local rank 0 reads the thresholds for all; its error is its own. */
dtr_status dtr__tune_open(dtr_world *world);

/* Collective over the node, and agreed there: all ranks may read each other's memory or none does.
 * _as: with this rank's own ability spelled out, for tests. */
dtr_status dtr__cma_open(dtr_world *world);
dtr_status dtr__cma_open_as(dtr_world *world, bool able);
void dtr__cma_close(dtr_world *world);

/* Which CPUs the ranks of this node may use, for the wait policy. Collective over the node.
 * `scratch` has DTR__WAIT_SCRATCH bytes per local rank. */
enum { DTR__WAIT_SCRATCH = 128 };
dtr_status dtr__wait_open(dtr_world *world, void *scratch);
/* Bind the progress thread to a core that no rank computes on, where there is one (rt_bind.c). */
void dtr__bind_thread(dtr_world *world, pthread_t thread);

#endif /* DTR_RT_INTERNAL_H */
