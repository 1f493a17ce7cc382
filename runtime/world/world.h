/* A world below its groups: opening and closing it. With what every layer above needs of the rooms
 * below. */
#ifndef DTR_RT_WORLD_H
#define DTR_RT_WORLD_H

#include <pthread.h>
#include <stdatomic.h>

#include <dtr/dtype.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/exchange.h"
#include "base/log.h"
#include "base/mpi.h"
#include "base/private_fd.h"
#include "base/world.h"
#include "diagnosis/trace.h"
#include "memory/arena.h"
#include "memory/cma.h"
#include "progress/progress.h"
#include "recorder/recorder.h"
#include "world/on_destroy.h"

/* Everything below the groups. Collective; agreed: when one rank fails, all do (DTR_ERR_REMOTE
 * naming it elsewhere). */
dtr_status dtr__world_open(MPI_Comm comm /* MPI_COMM_NULL: MPI_COMM_WORLD, initialising MPI */,
                           const dtr_world_options *o, dtr_world **world);
/* Ends it: progress, recorder, arena, communicators, MPI if ours and last. */
dtr_status dtr__world_close(dtr_world *world);
/* Instead, where the progress thread is stuck: what it may hold or touch stays, MPI too. */
void dtr__world_abandon(dtr_world *world);

/* Collective over the members or the world: DTR_ERR_MISMATCH with one text on all ranks, naming
 * each value and its ranks, where they run different versions, or differ in a setting that must be
 * the same. The version comes first of all, in a form that every version understands. */
dtr_status dtr__agree_version(dtr__members m, int version);
dtr_status dtr__agree_settings(const dtr_world *world);

#endif /* DTR_RT_WORLD_H */
