/* Objects of higher layers whose handles may outlive a world, and which must let go of it before
 * it ends. */
#ifndef DTR_RT_ON_DESTROY_H
#define DTR_RT_ON_DESTROY_H

#include "base/world.h"

typedef struct dtr__destroy_listener {
    /* On the thread that destroys the world, before anything is taken down. The listener is no
     * longer in the list. */
    void (*on_destroy)(struct dtr__destroy_listener *self);
    struct dtr__destroy_listener *next, *prev; /* lock of world/on_destroy.c */
} dtr__destroy_listener;
void dtr__on_destroy_add(dtr_world *world, dtr__destroy_listener *t);
void dtr__on_destroy_remove(dtr_world *world, dtr__destroy_listener *t);
/* The newest listener for which fn answers true, NULL: none. fn runs under the lock. */
dtr__destroy_listener *dtr__on_destroy_find(
    dtr_world *world, bool (*fn)(const dtr__destroy_listener *t, const void *arg), const void *arg);
/* All of them, newest first: what dtr_world_destroy begins with. */
void dtr__on_destroy_call(dtr_world *world);

#endif /* DTR_RT_ON_DESTROY_H */
