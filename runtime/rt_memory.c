/* Memory handed to the program: dtr_alloc and dtr_free, and what is left at the end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>

#include "rt_device.h"
#include "rt_internal.h"
#include "rt_map.h"

struct dtr__memory {
    pthread_mutex_t lock;
    dtr__map blocks;                /* pointer -> block; lock */
    size_t nbytes;                  /* handed out; lock */
    const dtr__memory_hooks *hooks; /* of device blocks, or NULL; constant once the world is made */
    struct block *later; /* given back by the program, used by operations under way; lock */
};

typedef enum place { PLAIN, ARENA, PINNED, ON_DEVICE } place;

typedef struct block {
    size_t nbytes;
    place place;
    int device;         /* of ON_DEVICE */
    bool lent;          /* its memory comes from the hooks */
    struct block *next; /* of those that are freed later, with ptr */
    void *ptr;
} block;

dtr_status dtr__memory_open(dtr_world *world) {
    dtr__memory *m = calloc(1, sizeof *m);
    DTR_REQUIRE(m != NULL, NULL, DTR_ERR_NOMEM, "no memory for the table of allocations");
    pthread_mutex_init(&m->lock, NULL);
    world->memory = m;
    return DTR_OK;
}

static dtr_status release_device(dtr_world *world, void *ptr, const block *b) {
    const dtr__memory_hooks *hooks = world->memory->hooks;
    if (hooks != NULL && hooks->ends != NULL) {
        hooks->ends(world, ptr, b->nbytes);
    }
    if (b->lent) {
        return hooks->give(b->device, ptr);
    }
    DTR_CUDA_TRY(dtr__cuda_get()->ops->free(b->device, ptr), DTR_ERR_CUDA);
    return DTR_OK;
}

/* Gives the memory back; on failure the block is gone all the same. */
static dtr_status release(dtr_world *world, void *ptr, block *b) {
    block was = *b;
    free(b);
    switch (was.place) {
    case ARENA:
        dtr__arena_free(world, ptr);
        break;
    case PINNED:
        DTR_CUDA_TRY(dtr__cuda_get()->ops->pinned_free(ptr), DTR_ERR_CUDA);
        break;
    case ON_DEVICE:
        return release_device(world, ptr, &was);
    case PLAIN:
        free(ptr);
        break;
    }
    return DTR_OK;
}

/* ---- blocks that operations still use ---- */

void dtr__memory_hook(dtr_world *world, const dtr__memory_hooks *hooks) {
    world->memory->hooks = hooks;
}

static bool in_use(dtr_world *world, const void *ptr, const block *b) {
    return b->place == ON_DEVICE && world->memory->hooks != NULL &&
           world->memory->hooks->used(world, ptr, b->nbytes);
}

static void keep_for_later(dtr__memory *m, void *ptr, block *b) {
    b->ptr = ptr;
    pthread_mutex_lock(&m->lock);
    b->next = m->later;
    m->later = b;
    pthread_mutex_unlock(&m->lock);
}

/* Free those that no operation uses any more; all: whether or not. True: one was freed. */
static bool sweep(dtr_world *world, bool all) {
    dtr__memory *m = world->memory;
    bool freed = false;
    pthread_mutex_lock(&m->lock);
    block *list = m->later;
    m->later = NULL;
    pthread_mutex_unlock(&m->lock);
    for (block *b = list, *next; b != NULL; b = next) {
        next = b->next;
        if (!all && in_use(world, b->ptr, b)) {
            keep_for_later(m, b->ptr, b);
        } else {
            (void)release(world, b->ptr, b);
            freed = true;
        }
    }
    return freed;
}

void dtr__memory_close(dtr_world *world) {
    dtr__memory *m = world->memory;
    if (m == NULL) {
        return;
    }
    (void)sweep(world, true);
    if (dtr__map_size(&m->blocks) > 0) {
        DTR_WARN(world,
                 "%zu blocks of dtr_alloc (%zu bytes) were not given back before the world "
                 "ended; freeing them",
                 dtr__map_size(&m->blocks), m->nbytes);
    }
    uintptr_t key;
    void *value;
    for (size_t at = 0; dtr__map_next(&m->blocks, &at, &key, &value);) {
        (void)release(world, (void *)key,
                      value); /* the driver may be gone, and its memory with it */
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

static void *plain_memory(size_t nbytes, size_t align) {
    void *ptr = NULL;
    return posix_memalign(&ptr, align, nbytes > 0 ? nbytes : 1) == 0 ? ptr : NULL;
}

/* Host memory of a kind; notes in `b` where it came from. */
static dtr_status host_memory(dtr_world *world, dtr_mem kind, block *b, void **ptr) {
    dtr__error_context ctx = { .world = world, .operation = "alloc" };
    size_t align = alignment_of(b->nbytes);
    void *p = NULL;
    b->place = kind == DTR_MEM_SHARED && dtr__arena_usable(world) ? ARENA : PLAIN;
    if (beyond_machine(b->nbytes)) {
        p = NULL;
    } else if (kind == DTR_MEM_PINNED && dtr__cuda_get()->state == DTR__CUDA_OK) {
        b->place = PINNED;
        DTR_CUDA_TRY(dtr__cuda_get()->ops->pinned_alloc(b->nbytes, &p), DTR_ERR_NOMEM);
    } else {
        p = b->place == ARENA ? dtr__arena_alloc(world, b->nbytes, align)
                              : plain_memory(b->nbytes, align);
    }
    bool shared = b->place == ARENA;
    DTR_REQUIRE(p != NULL, &ctx, DTR_ERR_NOMEM, "dtr_alloc: cannot get %zu bytes of %s memory%s",
                b->nbytes, shared ? "node-shared" : "host",
                shared ? ": free some, or raise DTR_ARENA" : "");
    *ptr = p;
    return DTR_OK;
}

static dtr_status device_memory(dtr_world *world, dtr_mem kind, block *b, void **ptr) {
    dtr__error_context ctx = { .world = world, .operation = "alloc" };
    DTR_REQUIRE(kind == DTR_MEM_DEFAULT, &ctx, DTR_ERR_UNSUPPORTED,
                "dtr_alloc: pinned and node-shared memory are kinds of host memory; take "
                "DTR_MEM_DEFAULT for {DTR_CUDA, %d}, or {DTR_CPU, 0} for them",
                b->device);
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    const dtr__memory_hooks *hooks = world->memory->hooks;
    void *p =
        hooks != NULL && hooks->take != NULL ? hooks->take(world, b->device, b->nbytes) : NULL;
    b->place = ON_DEVICE;
    b->lent = p != NULL;
    int code = b->lent ? 0 : ops->alloc(b->device, b->nbytes, &p);
    if (code != 0 && sweep(world, false)) {
        code = ops->alloc(b->device, b->nbytes, &p);
    }
    if (code != 0) {
        ctx.native = DTR_NATIVE_CUDA;
        ctx.native_code = code;
        ctx.native_text = ops->error_text(code);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM,
                        "dtr_alloc: cannot get %zu bytes of memory of {DTR_CUDA, %d}: CUDA error "
                        "%d (%s)",
                        b->nbytes, b->device, code, ctx.native_text);
    }
    if (hooks != NULL && hooks->begins != NULL) {
        hooks->begins(world, b->device, p, b->nbytes, b->lent);
    }
    *ptr = p;
    return DTR_OK;
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
    *b = (block){ .nbytes = nbytes, .device = d.index };
    void *p = NULL;
    dtr_status status =
        d.type == DTR_CUDA ? device_memory(w, kind, b, &p) : host_memory(w, kind, b, &p);
    if (status < 0) {
        free(b);
        return status;
    }
    pthread_mutex_lock(&w->memory->lock);
    bool kept = dtr__map_put(&w->memory->blocks, (uintptr_t)p, b);
    w->memory->nbytes += kept ? nbytes : 0;
    pthread_mutex_unlock(&w->memory->lock);
    if (!kept) {
        (void)release(w, p, b);
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
    if (in_use(w, ptr, b)) {
        keep_for_later(w->memory, ptr, b);
        return DTR_OK;
    }
    (void)sweep(w, false); /* CUDA is about to wait for the device anyway */
    return release(w, ptr, b);
}
