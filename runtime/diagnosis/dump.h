/* Dumps: what a rank's recorder holds and what the rank sees of its node, as JSON beside the
 * recording. Made by the watchdog thread, or by who calls dtr_world_dump, and written by a thread
 * of its own (diagnosis/writer.h); no lock that an issuing thread needs is held, and neither MPI
 * nor a peer is asked. */
#ifndef DTR_RT_DUMP_H
#define DTR_RT_DUMP_H

#include <stdio.h>

#include "recorder/recording.h"

/* Local; may fail where DTR_DUMP_SIGNAL names a signal that cannot be used. */
dtr_status dtr__dump_open(dtr_world *world);
void dtr__dump_close(dtr_world *world); /* the watchdog has ended; NULL state is fine */

/* One look of the watchdog at all that asks for a dump: a first error here or on a peer of the
 * node, a signal, a request in the recording, a peer that was asked. */
void dtr__dump_round(dtr_world *world);
/* The same, which waits a few seconds for what is being written. */
void dtr__dump_last_round(dtr_world *world);

/* ---- DTR_ON_ERROR=abort (diagnosis/abort.c) ----
 * A look of the watchdog after dtr__dump_round: once a group of this rank has broken, other than by
 * dtr_group_abort, it waits for the dumps of the node and ends the process by SIGABRT. `last`: the
 * watchdog ends, so that nothing is waited for. `since_ns` is the caller's, 0 at first. */
void dtr__abort_round(const dtr_world *world, int64_t *since_ns, bool last);

/* As JSON, in quotes; never invalid UTF-8, because texts may be damaged. */
void dtr__json_string(FILE *to, const char *text);

/* ---- signals (diagnosis/signal.c) ---- */

/* Count arrivals of a signal instead of its default action, until as many calls of _drop. False,
 * with errno, when it cannot be; true also where the program has a handler of its own, which stays:
 * then *theirs. */
bool dtr__signal_take(int number, bool *theirs);
void dtr__signal_drop(int number);
uint32_t dtr__signal_count(int number); /* arrivals so far */

#endif /* DTR_RT_DUMP_H */
