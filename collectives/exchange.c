/* Key-value exchange: a value is sent to all members at once and kept by them until the group's
 * backends are open, so that asking needs no answer from a rank that may be busy. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "exchange.h"
#include "groups.h"
#include "post.h"

typedef struct item {
    struct item *next;
    uint64_t epoch, uid;
    int32_t device;
    uint32_t nbytes;
    char key[DTR__KEY_SIZE];
    unsigned char value[];
} item;

/* What travels: an item without its list pointer. */
enum { WIRE = offsetof(item, epoch), WIRE_HEAD = sizeof(item) - WIRE };

struct dtr__exchange {
    dtr_world *world;
    uint64_t epoch;
    pthread_mutex_t lock; /* guards the rest */
    item *items;
    dtr__letter *letters;
};

dtr__exchange *dtr__exchange_new(dtr_world *world, uint64_t epoch) {
    dtr__exchange *x = calloc(1, sizeof(*x));
    if (x != NULL) {
        x->world = world;
        x->epoch = epoch;
        pthread_mutex_init(&x->lock, NULL);
    }
    return x;
}

void dtr__exchange_free(dtr__exchange *x, bool mpi_alive) {
    if (x == NULL) {
        return;
    }
    if (mpi_alive) {
        dtr__post_end(&x->letters);
    }
    while (x->items != NULL) {
        item *next = x->items->next;
        free(x->items);
        x->items = next;
    }
    pthread_mutex_destroy(&x->lock);
    free(x);
}

static bool same_key(const item *a, uint64_t uid, dtr_device_type device, const char *key) {
    return a->uid == uid && a->device == (int32_t)device && strcmp(a->key, key) == 0;
}

/* The newest value of a key counts; x->lock is held. */
static void keep(dtr__exchange *x, item *new) {
    for (item **at = &x->items; *at != NULL; at = &(*at)->next) {
        item *old = *at;
        if (same_key(old, new->uid, (dtr_device_type) new->device, new->key)) {
            *at = old->next;
            free(old);
            break;
        }
    }
    new->next = x->items;
    x->items = new;
}

static item *find(const dtr__exchange *x, uint64_t uid, dtr_device_type device, const char *key) {
    item *i = x->items;
    while (i != NULL && !same_key(i, uid, device, key)) {
        i = i->next;
    }
    return i;
}

static dtr_status new_item(const dtr_group *g, dtr_device_type device, const char *key,
                           const void *value, size_t nbytes, item **out) {
    dtr__error_context ctx = { .world = g->world, .operation = "key exchange", .group = g->name };
    size_t length = key != NULL ? strlen(key) : 0;
    DTR_REQUIRE(length > 0 && length < DTR__KEY_SIZE, &ctx, DTR_ERR_ARG,
                "a key of the exchange has 1 to %d bytes, not %zu", DTR__KEY_SIZE - 1, length);
    DTR_REQUIRE(nbytes <= DTR__VALUE_MAX, &ctx, DTR_ERR_ARG,
                "the value of key \"%s\" has %zu bytes, at most %d travel", key, nbytes,
                DTR__VALUE_MAX);
    DTR_REQUIRE(value != NULL || nbytes == 0, &ctx, DTR_ERR_ARG,
                "the value of key \"%s\" is NULL although it has %zu bytes", key, nbytes);
    item *i = calloc(1, sizeof(*i) + nbytes);
    DTR_REQUIRE(i != NULL, &ctx, DTR_ERR_NOMEM, "no memory for key \"%s\"", key);
    i->epoch = g->world->groups->exchange->epoch;
    i->uid = g->uid;
    i->device = (int32_t)device;
    i->nbytes = (uint32_t)nbytes;
    memcpy(i->key, key, length + 1);
    if (nbytes > 0) {
        memcpy(i->value, value, nbytes);
    }
    *out = i;
    return DTR_OK;
}

/* To one member, or with -1 to all. */
static dtr_status put(dtr_group *g, dtr_device_type device, int to, const char *key,
                      const void *value, size_t nbytes) {
    dtr__exchange *x = g->world->groups->exchange;
    item *i = NULL;
    dtr_status s = DTR_OK;
    DTR_TRY(new_item(g, device, key, value, nbytes, &i));
    dtr__mpi_lock(g->world);
    pthread_mutex_lock(&x->lock);
    for (int r = 0; r < g->size && s == DTR_OK; r++) {
        if (r != g->rank && (to < 0 || r == to)) {
            s = dtr__post(g->world, &x->letters, g->world_ranks[r], DTR__TAG_EXCHANGE, &i->epoch,
                          WIRE_HEAD, i->value, nbytes);
        }
    }
    keep(x, i);
    dtr__post_reap(&x->letters);
    pthread_mutex_unlock(&x->lock);
    dtr__mpi_unlock(g->world);
    return s;
}

dtr_status dtr__exchange_put(dtr_group *g, dtr_device_type device, const char *key,
                             const void *value, size_t nbytes) {
    return put(g, device, -1, key, value, nbytes);
}

dtr_status dtr__exchange_tell(dtr_group *g, dtr_device_type device, int rank, const char *key,
                              const void *value, size_t nbytes) {
    return put(g, device, rank, key, value, nbytes);
}

/* x->lock and the right to call MPI are held. */
static dtr_status take_in(dtr__exchange *x) {
    void *message = NULL;
    size_t nbytes = 0;
    int from = -1;
    for (;;) {
        DTR_TRY(dtr__receive(x->world, DTR__TAG_EXCHANGE, &message, &nbytes, &from));
        if (message == NULL) {
            return DTR_OK;
        }
        item *i = nbytes >= WIRE_HEAD ? calloc(1, WIRE + nbytes) : NULL;
        if (i != NULL) {
            memcpy(&i->epoch, message, nbytes);
        }
        free(message);
        if (i != NULL && i->epoch == x->epoch && nbytes == WIRE_HEAD + i->nbytes) {
            keep(x, i);
        } else {
            free(i);
        }
    }
}

/* True when the key was there and its value has been copied. */
static bool look(dtr__exchange *x, const dtr_group *g, dtr_device_type device, const char *key,
                 void *value, size_t cap, size_t *nbytes, dtr_status *s) {
    dtr__mpi_lock(g->world);
    pthread_mutex_lock(&x->lock);
    item *i = find(x, g->uid, device, key);
    if (i == NULL) {
        *s = take_in(x);
        i = find(x, g->uid, device, key);
    }
    if (i != NULL) {
        memcpy(value, i->value, i->nbytes < cap ? i->nbytes : cap);
        *nbytes = i->nbytes;
    }
    dtr__post_reap(&x->letters);
    pthread_mutex_unlock(&x->lock);
    dtr__mpi_unlock(g->world);
    return i != NULL;
}

dtr_status dtr__exchange_look(dtr_group *g, dtr_device_type device, const char *key, void *value,
                              size_t cap, size_t *nbytes, bool *found) {
    dtr_status s = DTR_OK;
    *found = look(g->world->groups->exchange, g, device, key, value, cap, nbytes, &s);
    return s;
}

dtr_status dtr__exchange_get(dtr_group *g, dtr_device_type device, const char *key, void *value,
                             size_t cap, size_t *nbytes, double timeout_s) {
    dtr__error_context ctx = { .world = g->world, .operation = "key exchange", .group = g->name };
    DTR_REQUIRE(key != NULL && nbytes != NULL && (value != NULL || cap == 0), &ctx, DTR_ERR_ARG,
                "an argument of the key exchange is NULL");
    DTR_REQUIRE(timeout_s >= 0, &ctx, DTR_ERR_ARG,
                "the limit for key \"%s\" is %g s, it must be >= 0", key, timeout_s);
    dtr__exchange *x = g->world->groups->exchange;
    dtr__backoff backoff = { 0 };
    dtr_status s = DTR_OK;
    size_t found = 0;
    double end = dtr__now() + timeout_s;
    while (!look(x, g, device, key, value, cap, &found, &s)) {
        DTR_TRY(s);
        if (atomic_load(&g->status) < 0) { /* a member that may have had it is dead, or gave up */
            return dtr__group_broken(g);
        }
        DTR_REQUIRE(dtr__now() < end, &ctx, DTR_ERR_TIMEOUT,
                    "group \"%s\": no member has put key \"%s\" within %g s", g->name, key,
                    timeout_s);
        if (!dtr__progress_has_thread(g->world)) {
            dtr__progress_poll_all(g->world);
        }
        dtr__backoff_pause(g->world, &backoff);
    }
    *nbytes = found;
    return DTR_OK;
}

void dtr__exchange_forget(dtr_group *g, const char *prefix) {
    dtr__exchange *x = g->world->groups->exchange;
    size_t n = strlen(prefix);
    pthread_mutex_lock(&x->lock);
    for (item **at = &x->items; *at != NULL;) {
        item *i = *at;
        if (i->uid == g->uid && strncmp(i->key, prefix, n) == 0) {
            *at = i->next;
            free(i);
        } else {
            at = &i->next;
        }
    }
    pthread_mutex_unlock(&x->lock);
}

void dtr__exchange_drop(dtr_group *g) {
    dtr__exchange_forget(g, "");
}
