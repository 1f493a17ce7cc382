/* How the library starts its threads. */
#ifndef DTR_RT_THREAD_H
#define DTR_RT_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* Start `run`(arg) in a thread called `name` (at most 15 bytes): 0, or the code of the failure.
 * Signals that are sent to the process go to the program's own threads; those that an instruction
 * raises are left alone, because a program may handle them and go on, as one that notes which pages
 * are written. `detached`: nobody joins it; `thread` may be NULL then, and the name is not used. */
int dtr__thread_start(pthread_t *thread, const char *name, bool detached, void *(*run)(void *),
                      void *arg);

#endif /* DTR_RT_THREAD_H */
