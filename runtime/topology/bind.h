/* Binds the progress thread. */
#ifndef DTR_RT_BIND_H
#define DTR_RT_BIND_H

#include <pthread.h>

#include "base/world.h"

/* Bind the progress thread to a core that no rank computes on, where there is one
 * (topology/bind.c). */
void dtr__bind_thread(dtr_world *world, pthread_t thread);

/* Something goes through a GPU: one warning a node, where a rank is bound to so few CPUs that
 * threads of NCCL, CUDA and this library take them from the one that launches. */
void dtr__bind_check_gpu(dtr_world *world, int device);

#endif /* DTR_RT_BIND_H */
