/* Devices, and memory handed to the program: dtr_alloc and dtr_free, and what is left at the end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>

#include "rt_internal.h"
#include "rt_map.h"

struct dtr__memory {
    pthread_mutex_t lock;
    dtr__map blocks; /* pointer -> block; lock */
    size_t nbytes;   /* handed out; lock */
};

typedef struct block {
    size_t nbytes;
    bool in_arena;
} block;

int dtr_device_count(dtr_device_type type) {
    return type == DTR_CPU ? 1 : 0;
}

dtr_status dtr__device_check(dtr_device d, const char *what) {
    switch (d.type) {
    case DTR_CPU:
        DTR_REQUIRE(d.index == 0, NULL, DTR_ERR_DEVICE,
                    "%s is {DTR_CPU, %d}; the only CPU device is {DTR_CPU, 0}", what, d.index);
        return DTR_OK;
    case DTR_CUDA:
        return DTR_FAIL(NULL, DTR_ERR_DEVICE,
                        "%s is {DTR_CUDA, %d}, but this build of the library has no CUDA", what,
                        d.index);
    }
    return DTR_FAIL(NULL, DTR_ERR_DEVICE, "%s has type %d, which is neither DTR_CPU nor DTR_CUDA",
                    what, (int)d.type);
}

dtr_status dtr__memory_open(dtr_world *world) {
    dtr__memory *m = calloc(1, sizeof *m);
    DTR_REQUIRE(m != NULL, NULL, DTR_ERR_NOMEM, "no memory for the table of allocations");
    pthread_mutex_init(&m->lock, NULL);
    world->memory = m;
    return DTR_OK;
}

static void release(dtr_world *world, void *ptr, block *b) {
    if (b->in_arena) {
        dtr__arena_free(world, ptr);
    } else {
        free(ptr);
    }
    free(b);
}

void dtr__memory_close(dtr_world *world) {
    dtr__memory *m = world->memory;
    if (m == NULL) {
        return;
    }
    if (dtr__map_size(&m->blocks) > 0) {
        DTR_WARN(world,
                 "%zu blocks of dtr_alloc (%zu bytes) were not given back before the world "
                 "ended; freeing them",
                 dtr__map_size(&m->blocks), m->nbytes);
    }
    uintptr_t key;
    void *value;
    for (size_t at = 0; dtr__map_next(&m->blocks, &at, &key, &value);) {
        release(world, (void *)key, value);
    }
    dtr__map_free(&m->blocks);
    pthread_mutex_destroy(&m->lock);
    free(m);
    world->memory = NULL;
}

/* Small blocks by cache lines, larger ones by pages, the largest by huge pages. */
static size_t alignment_of(size_t nbytes) {
    return nbytes >= (size_t)4 << 20 ? (size_t)2 << 20 : nbytes >= (size_t)64 << 10 ? 4096 : 64;
}

/* More than the machine has would be granted by an overcommitting kernel, and paid for later. */
static bool beyond_machine(size_t nbytes) {
    struct sysinfo si;
    if (nbytes < (size_t)1 << 30) {
        return false;
    }
    if (nbytes > PTRDIFF_MAX || sysinfo(&si) != 0) {
        return nbytes > PTRDIFF_MAX;
    }
    return nbytes / si.mem_unit > (size_t)si.totalram + si.totalswap;
}

static void *get_memory(dtr_world *world, dtr_mem kind, size_t nbytes, bool *in_arena) {
    size_t align = alignment_of(nbytes);
    *in_arena = kind == DTR_MEM_SHARED && dtr__arena_usable(world);
    if (beyond_machine(nbytes)) {
        return NULL;
    }
    if (*in_arena) {
        return dtr__arena_alloc(world, nbytes, align);
    }
    void *ptr = NULL;
    return posix_memalign(&ptr, align, nbytes > 0 ? nbytes : 1) == 0 ? ptr : NULL;
}

dtr_status dtr_alloc(dtr_world *w, dtr_device d, dtr_mem kind, size_t nbytes, void **ptr) {
    DTR_TRY(dtr__world_check(w));
    dtr__error_context ctx = { .world = w, .operation = "alloc" };
    DTR_REQUIRE(ptr != NULL, &ctx, DTR_ERR_ARG, "dtr_alloc: ptr is NULL");
    DTR_REQUIRE(kind == DTR_MEM_DEFAULT || kind == DTR_MEM_PINNED || kind == DTR_MEM_SHARED, &ctx,
                DTR_ERR_ARG,
                "dtr_alloc: kind is %d; accepted are DTR_MEM_DEFAULT, DTR_MEM_PINNED and "
                "DTR_MEM_SHARED",
                (int)kind);
    DTR_TRY(dtr__device_check(d, "dtr_alloc: the device"));
    block *b = malloc(sizeof *b);
    DTR_REQUIRE(b != NULL, &ctx, DTR_ERR_NOMEM, "dtr_alloc: no memory for the entry of a block");
    void *p = get_memory(w, kind, nbytes, &b->in_arena);
    if (p == NULL) {
        bool shared = b->in_arena;
        free(b);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "dtr_alloc: cannot get %zu bytes of %s memory%s",
                        nbytes, shared ? "node-shared" : "host",
                        shared ? ": free some, or raise DTR_ARENA" : "");
    }
    b->nbytes = nbytes;
    pthread_mutex_lock(&w->memory->lock);
    bool kept = dtr__map_put(&w->memory->blocks, (uintptr_t)p, b);
    w->memory->nbytes += kept ? nbytes : 0;
    pthread_mutex_unlock(&w->memory->lock);
    if (!kept) {
        release(w, p, b);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "dtr_alloc: no memory for the table of blocks");
    }
    *ptr = p;
    return DTR_OK;
}

dtr_status dtr_free(dtr_world *w, void *ptr) {
    DTR_TRY(dtr__world_check(w));
    if (ptr == NULL) {
        return DTR_OK;
    }
    pthread_mutex_lock(&w->memory->lock);
    block *b = dtr__map_take(&w->memory->blocks, (uintptr_t)ptr);
    w->memory->nbytes -= b != NULL ? b->nbytes : 0;
    pthread_mutex_unlock(&w->memory->lock);
    dtr__error_context ctx = { .world = w, .operation = "free" };
    DTR_REQUIRE(b != NULL, &ctx, DTR_ERR_ARG,
                "dtr_free: %p is not a live pointer from dtr_alloc of this world (freed twice, or "
                "from another allocator?)",
                ptr);
    release(w, ptr, b);
    return DTR_OK;
}
