/* Key-value exchange: a value is sent to all members at once and kept by them until it is
 * forgotten, at the latest with the group, so that asking needs no answer from a rank that may be
 * busy. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agreement/key_value.h"
#include "agreement/mailbox.h"
#include "core/team.h"
#include "engine/engine.h"
#include "recorder/hash.h"

typedef struct item {
    struct item *next;
    uint64_t epoch, uid;
    int32_t device;
    uint32_t nbytes;
    char key[DTR__KEY_SIZE];
    unsigned char value[];
} item;

/* The first rank of a communicator of NCCL keeps a key of each rank at once, and looks for each. */
enum { BUCKETS = 1024 };

/* What travels: an item without its list pointer. */
enum { WIRE = offsetof(item, epoch), WIRE_HEAD = sizeof(item) - WIRE };

struct dtr__key_values {
    dtr_world *world;
    uint64_t epoch;
    pthread_mutex_t lock; /* guards the rest */
    item *items[BUCKETS]; /* by the hash of their keys */
    dtr__control_message *messages;
    dtr__arriving *in;
};

dtr__key_values *dtr__key_values_new(dtr_world *world, uint64_t epoch) {
    dtr__key_values *x = calloc(1, sizeof(*x));
    if (x != NULL) {
        x->world = world;
        x->epoch = epoch;
        pthread_mutex_init(&x->lock, NULL);
    }
    return x;
}

void dtr__key_values_free(dtr__key_values *x, bool mpi_alive) {
    if (x == NULL) {
        return;
    }
    if (mpi_alive) {
        dtr__mailbox_flush(&x->messages);
        dtr__mailbox_close(&x->in);
    }
    for (size_t b = 0; b < BUCKETS; b++) {
        for (item *i = x->items[b], *next; i != NULL; i = next) {
            next = i->next;
            free(i);
        }
    }
    pthread_mutex_destroy(&x->lock);
    free(x);
}

static bool same_key(const item *a, uint64_t uid, dtr_device_type device, const char *key) {
    return a->uid == uid && a->device == (int32_t)device && strcmp(a->key, key) == 0;
}

/* Where the pointer to an item is, or would be. x->lock is held. */
static item **place_of(dtr__key_values *x, uint64_t uid, dtr_device_type device, const char *key) {
    item **at = &x->items[dtr__hash_bytes(key, strlen(key)) % BUCKETS];
    while (*at != NULL && !same_key(*at, uid, device, key)) {
        at = &(*at)->next;
    }
    return at;
}

/* The newest value of a key counts; x->lock is held. */
static void keep(dtr__key_values *x, item *new) {
    item **at = place_of(x, new->uid, (dtr_device_type) new->device, new->key);
    item *old = *at;
    new->next = old != NULL ? old->next : NULL;
    *at = new;
    free(old);
}

static dtr_status new_item(const dtr_group *g, dtr_device_type device, const char *key,
                           const void *value, size_t nbytes, item **out) {
    dtr__error_context ctx = { .world = g->world, .operation = "key exchange", .group = g->name };
    size_t length = key != NULL ? strlen(key) : 0;
    DTR_REQUIRE(length > 0 && length < DTR__KEY_SIZE, &ctx, DTR_ERR_ARG,
                "a key of the exchange has 1 to %d bytes, not %zu", DTR__KEY_SIZE - 1, length);
    DTR_REQUIRE(value != NULL || nbytes == 0, &ctx, DTR_ERR_ARG,
                "the value of key \"%s\" is NULL although it has %zu bytes", key, nbytes);
    item *i = calloc(1, sizeof(*i) + nbytes);
    DTR_REQUIRE(i != NULL, &ctx, DTR_ERR_NOMEM, "no memory for key \"%s\"", key);
    i->epoch = g->world->groups->key_values->epoch;
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

/* The right to call MPI, then the table. False where that right is not free and `wait` is not set.
 */
static bool enter(dtr__key_values *x, bool wait) {
    if (wait) {
        dtr__mpi_lock(x->world);
    } else if (!dtr__mpi_trylock(x->world)) {
        return false;
    }
    pthread_mutex_lock(&x->lock);
    return true;
}

static void leave(dtr__key_values *x) {
    dtr__mailbox_reap(&x->messages);
    pthread_mutex_unlock(&x->lock);
    dtr__mpi_unlock(x->world);
}

/* To one member, or with -1 to all. */
static dtr_status put(dtr_group *g, dtr_device_type device, int to, const char *key,
                      const void *value, size_t nbytes, bool wait, bool *entered) {
    dtr__key_values *x = g->world->groups->key_values;
    item *i = NULL;
    dtr_status s = DTR_OK;
    *entered = enter(x, wait);
    if (!*entered) {
        return DTR_OK;
    }
    s = new_item(g, device, key, value, nbytes, &i);
    for (int r = 0; r < g->size && s == DTR_OK; r++) {
        if (r != g->rank && (to < 0 || r == to)) {
            s = dtr__mailbox_send(g->world, &x->messages, g->world_ranks[r], DTR__TAG_KEY_VALUE,
                                  &i->epoch, WIRE_HEAD, i->value, nbytes);
        }
    }
    if (i != NULL) {
        keep(x, i);
    }
    leave(x);
    return s;
}

dtr_status dtr__key_value_put(dtr_group *g, dtr_device_type device, const char *key,
                              const void *value, size_t nbytes) {
    return dtr__key_value_put_to(g, device, -1, key, value, nbytes);
}

dtr_status dtr__key_value_put_to(dtr_group *g, dtr_device_type device, int rank, const char *key,
                                 const void *value, size_t nbytes) {
    dtr__error_context ctx = { .world = g->world, .operation = "key exchange", .group = g->name };
    bool entered;
    DTR_REQUIRE(nbytes <= DTR__VALUE_MAX, &ctx, DTR_ERR_ARG,
                "the value of key \"%s\" has %zu bytes, at most %d travel", key != NULL ? key : "",
                nbytes, DTR__VALUE_MAX);
    return put(g, device, rank, key, value, nbytes, true, &entered);
}

bool dtr__key_value_try_put(dtr_group *g, int rank, const char *key, const void *value,
                            size_t nbytes) {
    bool entered;
    (void)put(g, DTR_CPU, rank, key, value, nbytes, false, &entered);
    return entered;
}

bool dtr__key_value_sent(dtr_group *g) {
    dtr__key_values *x = g->world->groups->key_values;
    bool sent = false;
    if (enter(x, false)) {
        dtr__mailbox_reap(&x->messages);
        sent = x->messages == NULL;
        leave(x);
    }
    return sent;
}

/* x->lock and the right to call MPI are held. */
static dtr_status take_in(dtr__key_values *x) {
    void *message = NULL;
    size_t nbytes = 0;
    int from = -1;
    for (;;) {
        DTR_TRY(
            dtr__mailbox_receive(x->world, &x->in, DTR__TAG_KEY_VALUE, &message, &nbytes, &from));
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

/* True when the key was there and its value has been copied. enter() has been called. */
static bool look(dtr__key_values *x, const dtr_group *g, dtr_device_type device, const char *key,
                 void *value, size_t cap, size_t *nbytes, dtr_status *s) {
    const item *i = *place_of(x, g->uid, device, key);
    if (i == NULL) {
        *s = take_in(x);
        i = *place_of(x, g->uid, device, key);
    }
    if (i != NULL) {
        if (cap > 0) {
            memcpy(value, i->value, i->nbytes < cap ? i->nbytes : cap);
        }
        *nbytes = i->nbytes;
    }
    leave(x);
    return i != NULL;
}

dtr_status dtr__key_value_poll(dtr_group *g, dtr_device_type device, const char *key, void *value,
                               size_t cap, size_t *nbytes, bool *found) {
    dtr__key_values *x = g->world->groups->key_values;
    dtr_status s = DTR_OK;
    *found = enter(x, true) && look(x, g, device, key, value, cap, nbytes, &s);
    return s;
}

bool dtr__key_value_try_poll(dtr_group *g, const char *key, void *value, size_t cap, size_t *nbytes,
                             bool *found) {
    dtr__key_values *x = g->world->groups->key_values;
    dtr_status s = DTR_OK;
    bool entered = enter(x, false);
    *found = entered && look(x, g, DTR_CPU, key, value, cap, nbytes, &s);
    return entered;
}

dtr_status dtr__key_value_get(dtr_group *g, dtr_device_type device, const char *key, void *value,
                              size_t cap, size_t *nbytes, double timeout_s) {
    dtr__error_context ctx = { .world = g->world, .operation = "key exchange", .group = g->name };
    DTR_REQUIRE(key != NULL && nbytes != NULL && (value != NULL || cap == 0), &ctx, DTR_ERR_ARG,
                "an argument of the key exchange is NULL");
    DTR_TRY(dtr__limit_check(&ctx, "get", timeout_s));
    timeout_s = timeout_s >= 0 ? timeout_s : g->timeout_s;
    dtr__key_values *x = g->world->groups->key_values;
    dtr__backoff backoff = { 0 };
    dtr_status s = DTR_OK;
    size_t found = 0;
    double end = dtr__now() + timeout_s;
    while (enter(x, true) && !look(x, g, device, key, value, cap, &found, &s)) {
        DTR_TRY(s);
        if (atomic_load(&g->status) < 0) { /* a member that may have had it has failed or gave up */
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

void dtr__key_value_forget(dtr_group *g, const char *prefix) {
    dtr__key_values *x = g->world->groups->key_values;
    size_t n = strlen(prefix);
    pthread_mutex_lock(&x->lock);
    for (size_t b = 0; b < BUCKETS; b++) {
        for (item **at = &x->items[b]; *at != NULL;) {
            item *i = *at;
            if (i->uid == g->uid && strncmp(i->key, prefix, n) == 0) {
                *at = i->next;
                free(i);
            } else {
                at = &i->next;
            }
        }
    }
    pthread_mutex_unlock(&x->lock);
}

void dtr__key_value_drop(dtr_group *g) {
    dtr__key_value_forget(g, "");
}
