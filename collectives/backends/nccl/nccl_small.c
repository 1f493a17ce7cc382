/* Small blocks out of NCCL's memory, of which each block of its own would take 2 MiB: they share
 * slabs. NCCL is told of a slab as one block, not of what is in it. */
#include <stdlib.h>
#include <string.h>

#include "core/team.h"
#include "nccl_internal.h"

enum { UNIT = 4096, UNITS = 512, SLAB = UNIT * UNITS }; /* bytes, but for UNITS */

/* Blocks may outlive their world: the list is that of the process. */
typedef struct slab {
    struct slab *next;
    dtr_world *world; /* NULL: it has ended */
    int device;
    char *memory;
    size_t used;           /* units */
    uint16_t taken[UNITS]; /* where a block begins: its units; those behind it: UINT16_MAX */
} slab;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list and all in it */
static slab *slabs;

static size_t units_of(size_t nbytes) {
    return (nbytes + UNIT - 1) / UNIT;
}

/* The first free run of n units, UNITS: there is none. lock held. */
static size_t find_run(const slab *s, size_t n) {
    size_t run = 0;
    for (size_t i = 0; i < UNITS; i++) {
        run = s->taken[i] == 0 ? run + 1 : 0;
        if (run == n) {
            return i + 1 - n;
        }
    }
    return UNITS;
}

/* lock held */
static void *take_run(slab *s, size_t n) {
    const size_t at = UNITS - s->used >= n ? find_run(s, n) : UNITS;
    if (at == UNITS) {
        return NULL;
    }
    memset(s->taken + at, 0xff, n * sizeof s->taken[0]);
    s->taken[at] = (uint16_t)n;
    s->used += n;
    return s->memory + at * UNIT;
}

static void *take(const dtr_world *world, int device, size_t n) {
    void *ptr = NULL;
    pthread_mutex_lock(&lock);
    for (slab *s = slabs; s != NULL && ptr == NULL; s = s->next) {
        ptr = s->world == world && s->device == device ? take_run(s, n) : NULL;
    }
    pthread_mutex_unlock(&lock);
    return ptr;
}

/* Two threads may each make one. */
void *dtr__nccl_small_take(dtr_world *world, int device, size_t nbytes) {
    const size_t n = units_of(nbytes);
    void *memory = NULL, *ptr = take(world, device, n);
    if (ptr != NULL) {
        return ptr;
    }
    slab *s = calloc(1, sizeof *s);
    if (s == NULL || dtr__nccl_get()->ops->memory_new(device, SLAB, &memory) != 0) {
        free(s);
        return NULL;
    }
    *s = (slab){ .world = world, .device = device, .memory = memory };
    dtr__nccl_memory_begins(world, device, memory, SLAB, false);
    pthread_mutex_lock(&lock);
    ptr = take_run(s, n);
    s->next = slabs;
    slabs = s;
    pthread_mutex_unlock(&lock);
    return ptr;
}

/* lock held */
static slab *slab_of(const void *ptr) {
    slab *s = slabs;
    while (s != NULL && ((const char *)ptr < s->memory || (const char *)ptr >= s->memory + SLAB)) {
        s = s->next;
    }
    return s;
}

bool dtr__nccl_small_has(const void *ptr) {
    pthread_mutex_lock(&lock);
    const bool has = slab_of(ptr) != NULL;
    pthread_mutex_unlock(&lock);
    return has;
}

/* lock held */
static void unlink_slab(slab *s) {
    slab **at = &slabs;
    while (*at != s) {
        at = &(*at)->next;
    }
    *at = s->next;
}

/* Its world, where that is there, keeps one empty slab of a device. lock held. */
static bool is_wanted(const slab *s) {
    const slab *other = slabs;
    while (other != NULL && (other == s || other->used > 0 || other->world != s->world ||
                             other->device != s->device)) {
        other = other->next;
    }
    return s->used > 0 || (s->world != NULL && other == NULL);
}

dtr_status dtr__nccl_small_give(void *ptr) {
    pthread_mutex_lock(&lock);
    slab *s = slab_of(ptr);
    const size_t at = (size_t)((const char *)ptr - s->memory) / UNIT, n = s->taken[at];
    memset(s->taken + at, 0, n * sizeof s->taken[0]);
    s->used -= n;
    const bool stays = is_wanted(s);
    if (!stays) {
        unlink_slab(s);
    }
    pthread_mutex_unlock(&lock);
    if (stays) {
        return DTR_OK;
    }
    const slab was = *s;
    free(s);
    if (was.world != NULL) {
        dtr__nccl_memory_ends(was.world, was.memory, SLAB);
    }
    return dtr__nccl_memory_give(was.device, was.memory);
}

void dtr__nccl_small_end(const dtr_world *world) {
    slab *empty = NULL;
    pthread_mutex_lock(&lock);
    for (slab *s = slabs, *next; s != NULL; s = next) {
        next = s->next;
        if (s->world == world) {
            s->world = NULL;
            if (s->used == 0) {
                unlink_slab(s);
                s->next = empty;
                empty = s;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    for (slab *s = empty, *next; s != NULL; s = next) {
        next = s->next;
        (void)dtr__nccl_memory_give(s->device, s->memory);
        free(s);
    }
}
