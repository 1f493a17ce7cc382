/* Objects of higher layers that must let go of a world before it ends. */
#include "world/world.h"

/* One lock for all worlds: listeners come and go rarely. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void dtr__on_destroy_add(dtr_world *world, dtr__destroy_listener *t) {
    pthread_mutex_lock(&lock);
    t->prev = NULL;
    t->next = world->listeners;
    if (t->next != NULL) {
        t->next->prev = t;
    }
    world->listeners = t;
    pthread_mutex_unlock(&lock);
}

static void unlink_listener(dtr_world *world, dtr__destroy_listener *t) {
    *(t->prev != NULL ? &t->prev->next : &world->listeners) = t->next;
    if (t->next != NULL) {
        t->next->prev = t->prev;
    }
    t->next = t->prev = NULL;
}

void dtr__on_destroy_remove(dtr_world *world, dtr__destroy_listener *t) {
    pthread_mutex_lock(&lock);
    if (t->prev != NULL || world->listeners == t) { /* not called meanwhile */
        unlink_listener(world, t);
    }
    pthread_mutex_unlock(&lock);
}

dtr__destroy_listener *dtr__on_destroy_find(dtr_world *world,
                                            bool (*fn)(const dtr__destroy_listener *t,
                                                       const void *arg),
                                            const void *arg) {
    pthread_mutex_lock(&lock);
    dtr__destroy_listener *t = world->listeners;
    while (t != NULL && !fn(t, arg)) {
        t = t->next;
    }
    pthread_mutex_unlock(&lock);
    return t;
}

void dtr__on_destroy_call(dtr_world *world) {
    for (;;) {
        pthread_mutex_lock(&lock);
        dtr__destroy_listener *t = world->listeners;
        if (t != NULL) {
            unlink_listener(world, t);
        }
        pthread_mutex_unlock(&lock);
        if (t == NULL) {
            return;
        }
        t->on_destroy(t);
    }
}
