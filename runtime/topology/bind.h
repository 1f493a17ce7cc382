/* Binds the progress thread. */
#ifndef DTR_RT_BIND_H
#define DTR_RT_BIND_H

#include <pthread.h>

#include "base/world.h"

/* Bind the progress thread to a core that no rank computes on, where there is one
 * (topology/bind.c). */
void dtr__bind_thread(dtr_world *world, pthread_t thread);

#endif /* DTR_RT_BIND_H */
