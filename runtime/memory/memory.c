/* Memory handed to the program: dtr_alloc and dtr_free, what is left at the end, and what outlives
 * its world. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/log.h"
#include "base/map.h"
#include "base/private_fd.h"
#include "base/world.h"
#include "memory/arena.h"
#include "memory/device.h"

struct dtr__memory {
    pthread_mutex_t lock;
    dtr__map blocks;                /* pointer -> block; lock */
    size_t nbytes;                  /* handed out; lock */
    uint64_t n_shared;              /* calls for node-shared memory so far; lock */
    const dtr__memory_hooks *hooks; /* of device blocks, or NULL; constant once the world is made */
    struct block *later; /* given back by the program, used by operations under way; lock */
};

typedef enum place { PLAIN, ARENA, PINNED, ON_DEVICE } place;

typedef struct block {
    size_t nbytes;
    place place;
    uint64_t number;   /* which call for node-shared memory it was, 1 is the first; else 0 */
    int device;        /* of ON_DEVICE; of PINNED: where it was made */
    bool lent;         /* its memory comes from the hooks */
    dtr_world *world;  /* of retained ones, NULL when it has ended; retained.lock */
    dtr__arena *arena; /* of retained ones of PLACE ARENA whose world has ended */
    const dtr__memory_hooks *hooks; /* likewise of lent ones */
    struct block *next;             /* of those that are freed later, with ptr */
    void *ptr;
} block;

/* Blocks that outlive their worlds. The lock is taken before that of a world's blocks. */
static struct {
    pthread_mutex_t lock;
    dtr__map blocks; /* pointer -> block; lock */
} retained = { .lock = PTHREAD_MUTEX_INITIALIZER };

dtr_status dtr__memory_open(dtr_world *world) {
    dtr__memory *m = calloc(1, sizeof *m);
    DTR_REQUIRE(m != NULL, NULL, DTR_ERR_NOMEM, "no memory for the table of allocations");
    pthread_mutex_init(&m->lock, NULL);
    world->memory.blocks = m;
    return DTR_OK;
}

/* Memory that needs no world to be given back. */
static dtr_status release_own(void *ptr, const block *b) {
    if (b->place == PLAIN) {
        free(ptr);
        return DTR_OK;
    }
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    DTR_CUDA_TRY(b->place == PINNED ? ops->pinned_free(b->device, ptr) : ops->free(b->device, ptr),
                 DTR_ERR_CUDA);
    return DTR_OK;
}

/* Gives the memory back; on failure the block is gone all the same. */
static dtr_status release(dtr_world *world, void *ptr, block *b) {
    const dtr__memory_hooks *hooks = world->memory.blocks->hooks;
    block was = *b;
    free(b);
    if (was.place == ARENA) {
        dtr__arena_unnumber(world, was.number); /* nobody finds it when its place is another's */
        dtr__arena_free(world, ptr);
        return DTR_OK;
    }
    if (was.place == ON_DEVICE && hooks != NULL && hooks->ends != NULL) {
        hooks->ends(world, ptr, was.nbytes);
    }
    return was.lent ? hooks->give(was.device, ptr) : release_own(ptr, &was);
}

/* ---- blocks that outlive their world ---- */

dtr_status dtr_retain(dtr_world *w, void *ptr) {
    DTR_TRY(dtr__world_check(w));
    dtr__error_context ctx = { .world = w, .operation = "retain" };
    pthread_mutex_lock(&retained.lock);
    pthread_mutex_lock(&w->memory.blocks->lock);
    block *b = dtr__map_get(&w->memory.blocks->blocks, (uintptr_t)ptr);
    bool known = b != NULL, noted = known && b->world != NULL;
    if (known && !noted) {
        noted = dtr__map_put(&retained.blocks, (uintptr_t)ptr, b);
        b->world = noted ? w : NULL;
    }
    pthread_mutex_unlock(&w->memory.blocks->lock);
    pthread_mutex_unlock(&retained.lock);
    DTR_REQUIRE(known, &ctx, DTR_ERR_ARG,
                "dtr_retain: %p is not a live pointer from dtr_alloc of this world", ptr);
    DTR_REQUIRE(noted, &ctx, DTR_ERR_NOMEM, "dtr_retain: no memory for the table of blocks");
    return DTR_OK;
}

dtr_world *dtr__memory_world(const void *ptr) {
    pthread_mutex_lock(&retained.lock);
    const block *b = dtr__map_get(&retained.blocks, (uintptr_t)ptr);
    dtr_world *world = b != NULL ? b->world : NULL;
    pthread_mutex_unlock(&retained.lock);
    return world;
}

static void forget_retained(void *ptr, const block *b) {
    pthread_mutex_lock(&retained.lock);
    if (b->world != NULL) {
        (void)dtr__map_take(&retained.blocks, (uintptr_t)ptr);
    }
    pthread_mutex_unlock(&retained.lock);
}

/* The world ends without this block: true when it is one that stays. */
static bool outlives(dtr_world *world, void *ptr, block *b) {
    const dtr__memory_hooks *hooks = world->memory.blocks->hooks;
    pthread_mutex_lock(&retained.lock);
    const bool stays = b->world != NULL;
    if (stays) {
        b->world = NULL;
        b->arena = b->place == ARENA ? dtr__arena_hold(world) : NULL;
        b->hooks = hooks;
    }
    pthread_mutex_unlock(&retained.lock);
    if (stays && b->place == ARENA) {
        dtr__arena_unnumber(world, b->number);
    } else if (stays && b->place == ON_DEVICE && hooks != NULL && hooks->ends != NULL) {
        hooks->ends(world, ptr, b->nbytes);
    }
    return stays;
}

/* dtr_free without a world. */
static dtr_status free_retained(void *ptr) {
    DTR_TRY(dtr__fork_check("dtr_free"));
    pthread_mutex_lock(&retained.lock);
    block *b = dtr__map_get(&retained.blocks, (uintptr_t)ptr);
    dtr_world *world = b != NULL ? b->world : NULL;
    if (b != NULL && world == NULL) {
        (void)dtr__map_take(&retained.blocks, (uintptr_t)ptr);
    }
    pthread_mutex_unlock(&retained.lock);
    DTR_REQUIRE(b != NULL, NULL, DTR_ERR_ARG,
                "dtr_free: the world is NULL, and %p is no memory that dtr_retain let outlive its "
                "world",
                ptr);
    if (world != NULL) {
        return dtr_free(world, ptr);
    }
    block was = *b;
    free(b);
    if (was.place == ARENA) {
        dtr__arena_drop(was.arena, ptr);
    } else if (was.lent) {
        return was.hooks->give(was.device, ptr);
    } else {
        return release_own(ptr, &was);
    }
    return DTR_OK;
}

/* ---- blocks that operations still use ---- */

void dtr__memory_hook(dtr_world *world, const dtr__memory_hooks *hooks) {
    world->memory.blocks->hooks = hooks;
}

static bool in_use(dtr_world *world, const void *ptr, const block *b) {
    return b->place == ON_DEVICE && world->memory.blocks->hooks != NULL &&
           world->memory.blocks->hooks->used(world, ptr, b->nbytes);
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
    dtr__memory *m = world->memory.blocks;
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
    dtr__memory *m = world->memory.blocks;
    if (m == NULL) {
        return;
    }
    (void)sweep(world, true);
    size_t left = 0, nbytes = 0;
    uintptr_t key;
    void *value;
    for (size_t at = 0; dtr__map_next(&m->blocks, &at, &key, &value);) {
        block *b = value;
        const size_t size = b->nbytes;
        if (!outlives(world, (void *)key, b)) {
            left++;
            nbytes += size;
            (void)release(world, (void *)key, b); /* the driver may be gone, its memory with it */
        }
    }
    if (left > 0) {
        DTR_WARN(world,
                 "%zu blocks of dtr_alloc (%zu bytes) were not given back before the world ended; "
                 "they are freed",
                 left, nbytes);
    }
    dtr__map_free(&m->blocks);
    pthread_mutex_destroy(&m->lock);
    free(m);
    world->memory.blocks = NULL;
}

/* Small blocks by cache lines, larger ones by pages, the largest by huge pages. */
static size_t alignment_of(size_t nbytes) {
    return nbytes >= (size_t)4 << 20 ? (size_t)2 << 20 : nbytes >= (size_t)64 << 10 ? 4096 : 64;
}

/* Node-shared blocks share no page with each other, nor with memory of the library, so that pages
 * of a block can be taken away from the node (dtr__arena_keep). */
static void *shared_memory(dtr_world *world, size_t nbytes, size_t align) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t all = (nbytes + (nbytes == 0) + page - 1) / page * page;
    return all < nbytes ? NULL : dtr__arena_alloc(world, all, align < page ? page : align);
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

/* Calls that fail count too, so that ranks that made the same calls have the same numbers. */
static uint64_t next_number(dtr__memory *m) {
    pthread_mutex_lock(&m->lock);
    const uint64_t number = ++m->n_shared;
    pthread_mutex_unlock(&m->lock);
    return number;
}

/* Pages of an arena that the ranks of the node find by `number`. */
static void *numbered_memory(dtr_world *world, size_t nbytes, size_t align, uint64_t number) {
    void *p = shared_memory(world, nbytes, align);
    if (p != NULL && !dtr__arena_number(world, number, p, nbytes)) {
        dtr__arena_free(world, p);
        p = NULL;
    }
    return p;
}

/* On the world's device, or on the thread's: a context on another would be the first one there. */
static dtr_status pinned_memory(const dtr_world *world, block *b, void **ptr) {
    const dtr__device_ops *ops = dtr__cuda_get()->ops;
    b->place = PINNED;
    b->device = world->device.index;
    if (world->device.type != DTR_CUDA) {
        DTR_CUDA_TRY(ops->current(&b->device), DTR_ERR_NOMEM);
    }
    DTR_CUDA_TRY(ops->pinned_alloc(b->device, b->nbytes, ptr), DTR_ERR_NOMEM);
    return DTR_OK;
}

/* Host memory of a kind; notes in `b` where it came from. */
static dtr_status host_memory(dtr_world *world, dtr_mem kind, block *b, void **ptr) {
    dtr__error_context ctx = { .world = world, .operation = "alloc" };
    size_t align = alignment_of(b->nbytes);
    void *p = NULL;
    b->place = kind == DTR_MEM_SHARED && dtr__arena_usable(world) ? ARENA : PLAIN;
    b->number = kind == DTR_MEM_SHARED ? next_number(world->memory.blocks) : 0;
    if (beyond_machine(b->nbytes)) {
        p = NULL;
    } else if (kind == DTR_MEM_PINNED && dtr__cuda_get()->state == DTR__CUDA_OK) {
        DTR_TRY(pinned_memory(world, b, &p));
    } else {
        p = b->place == ARENA ? numbered_memory(world, b->nbytes, align, b->number)
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
    const dtr__memory_hooks *hooks = world->memory.blocks->hooks;
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
    pthread_mutex_lock(&w->memory.blocks->lock);
    bool kept = dtr__map_put(&w->memory.blocks->blocks, (uintptr_t)p, b);
    w->memory.blocks->nbytes += kept ? nbytes : 0;
    pthread_mutex_unlock(&w->memory.blocks->lock);
    if (!kept) {
        (void)release(w, p, b);
        return DTR_FAIL(&ctx, DTR_ERR_NOMEM, "dtr_alloc: no memory for the table of blocks");
    }
    *ptr = p;
    return DTR_OK;
}

dtr_status dtr_free(dtr_world *w, void *ptr) {
    if (w == NULL && ptr != NULL) {
        return free_retained(ptr);
    }
    DTR_TRY(dtr__world_check(w));
    if (ptr == NULL) {
        return DTR_OK;
    }
    pthread_mutex_lock(&w->memory.blocks->lock);
    block *b = dtr__map_take(&w->memory.blocks->blocks, (uintptr_t)ptr);
    w->memory.blocks->nbytes -= b != NULL ? b->nbytes : 0;
    pthread_mutex_unlock(&w->memory.blocks->lock);
    dtr__error_context ctx = { .world = w, .operation = "free" };
    DTR_REQUIRE(b != NULL, &ctx, DTR_ERR_ARG,
                "dtr_free: %p is not a live pointer from dtr_alloc of this world (freed twice, or "
                "from another allocator?)",
                ptr);
    forget_retained(ptr, b);
    if (in_use(w, ptr, b)) {
        keep_for_later(w->memory.blocks, ptr, b);
        return DTR_OK;
    }
    (void)sweep(w, false); /* CUDA is about to wait for the device anyway */
    return release(w, ptr, b);
}

/* ---- blocks of other ranks ---- */

/* The node-shared block of this rank that `ptr` points into, and where it begins. */
static bool find_shared(dtr__memory *m, const void *ptr, block *found, uintptr_t *begin) {
    uintptr_t key = (uintptr_t)ptr;
    void *value = dtr__map_get(&m->blocks, key); /* mostly it is the beginning of one */
    bool inside = value != NULL;
    for (size_t at = 0; !inside && dtr__map_next(&m->blocks, &at, &key, &value);) {
        inside = (uintptr_t)ptr >= key && (uintptr_t)ptr - key < ((const block *)value)->nbytes;
    }
    if (!inside || ((const block *)value)->number == 0) {
        return false;
    }
    *found = *(const block *)value;
    *begin = key;
    return true;
}

static dtr_status peer_pointer(dtr_world *w, const void *shared, int local_rank, void **peer) {
    DTR_TRY(dtr__world_check(w));
    dtr__error_context ctx = { .world = w, .operation = "peer_pointer" };
    block mine;
    uintptr_t begin = 0;
    size_t nbytes = 0;
    DTR_REQUIRE(local_rank >= 0 && local_rank < w->local_size, &ctx, DTR_ERR_RANK,
                "dtr_peer_pointer: local_rank is %d; the ranks of this node are 0 to %d",
                local_rank, w->local_size - 1);
    pthread_mutex_lock(&w->memory.blocks->lock);
    const bool found = find_shared(w->memory.blocks, shared, &mine, &begin);
    pthread_mutex_unlock(&w->memory.blocks->lock);
    DTR_REQUIRE(found, &ctx, DTR_ERR_ARG,
                "dtr_peer_pointer: %p lies in no block that dtr_alloc gave this rank as "
                "DTR_MEM_SHARED",
                shared);
    if (local_rank == w->local_rank) {
        *peer = (void *)(uintptr_t)shared;
        return DTR_OK;
    }
    DTR_REQUIRE(mine.place == ARENA, &ctx, DTR_ERR_UNSUPPORTED,
                "dtr_peer_pointer: the ranks of this node cannot share memory (see the warning at "
                "world creation), so DTR_MEM_SHARED gives plain memory");
    char *theirs = dtr__arena_numbered(w, local_rank, mine.number, &nbytes);
    DTR_REQUIRE(theirs != NULL, &ctx, DTR_ERR_STATE,
                "dtr_peer_pointer: local rank %d has no node-shared block %llu: it has not "
                "allocated it yet (dtr_node_barrier after dtr_alloc), or has freed it",
                local_rank, (unsigned long long)mine.number);
    DTR_REQUIRE(nbytes == mine.nbytes, &ctx, DTR_ERR_MISMATCH,
                "dtr_peer_pointer: node-shared block %llu has %zu bytes here and %zu on local rank "
                "%d: allocate the blocks in the same order on all ranks of the node",
                (unsigned long long)mine.number, mine.nbytes, nbytes, local_rank);
    *peer = theirs + ((uintptr_t)shared - begin);
    return DTR_OK;
}

void *dtr_peer_pointer(dtr_world *world, const void *shared, int local_rank) {
    void *peer = NULL;
    return peer_pointer(world, shared, local_rank, &peer) == DTR_OK ? peer : NULL;
}
