/* Objects of higher layers that must let go of a world before it ends. */
#include "rt_world.h"

/* One lock for all worlds: tenants come and go rarely. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void dtr__tenant_add(dtr_world *world, dtr__tenant *t) {
    pthread_mutex_lock(&lock);
    t->prev = NULL;
    t->next = world->tenants;
    if (t->next != NULL) {
        t->next->prev = t;
    }
    world->tenants = t;
    pthread_mutex_unlock(&lock);
}

static void unlink_tenant(dtr_world *world, dtr__tenant *t) {
    *(t->prev != NULL ? &t->prev->next : &world->tenants) = t->next;
    if (t->next != NULL) {
        t->next->prev = t->prev;
    }
    t->next = t->prev = NULL;
}

void dtr__tenant_remove(dtr_world *world, dtr__tenant *t) {
    pthread_mutex_lock(&lock);
    if (t->prev != NULL || world->tenants == t) { /* not evicted meanwhile */
        unlink_tenant(world, t);
    }
    pthread_mutex_unlock(&lock);
}

dtr__tenant *dtr__tenant_find(dtr_world *world, bool (*fn)(const dtr__tenant *t, const void *arg),
                              const void *arg) {
    pthread_mutex_lock(&lock);
    dtr__tenant *t = world->tenants;
    while (t != NULL && !fn(t, arg)) {
        t = t->next;
    }
    pthread_mutex_unlock(&lock);
    return t;
}

void dtr__tenants_evict(dtr_world *world) {
    for (;;) {
        pthread_mutex_lock(&lock);
        dtr__tenant *t = world->tenants;
        if (t != NULL) {
            unlink_tenant(world, t);
        }
        pthread_mutex_unlock(&lock);
        if (t == NULL) {
            return;
        }
        t->evict(t);
    }
}
