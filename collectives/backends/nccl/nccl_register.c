/* Blocks of device memory that NCCL knows of (DTR_NCCL_REGISTER=1): they come from its own
 * allocator, and every communicator of their device knows them, as long as both last. A world has a
 * list of its blocks, numbered; a communicator knows all up to a number, and registers newer
 * ones with NCCL when they are made and before a launch. */
#include <stdlib.h>

#include "core/team.h"
#include "nccl_internal.h"

enum { TRIES = 1000 }; /* of a millisecond, while another thread is inside NCCL */

typedef struct memory_block {
    struct memory_block *next; /* older */
    void *ptr;
    size_t nbytes;
    int device;
    bool own;        /* from NCCL's allocator */
    uint64_t number; /* from 1 */
} memory_block;

/* Held by its world, and by each communicator in the list: one may end on a thread that outlives
 * the world. Locks: that of a communicator before this one. */
struct dtr__nccl_blocks {
    _Atomic int refs;
    dtr_world *world;
    pthread_mutex_t lock; /* all that follows; held briefly */
    memory_block *newest;
    _Atomic uint64_t last; /* number; written with lock */
    dtr__nccl_comm *comms; /* that may know blocks */
    uint64_t joined;
};
typedef dtr__nccl_blocks block_list;

typedef struct dtr__nccl_registration {
    struct dtr__nccl_registration *next;
    const void *ptr;
    void *native; /* NULL: NCCL took note of nothing */
    void *window; /* NULL: none */
} registration;

/* ---- the table of a communicator ---- */

static void put_entry(dtr__nccl_comm *c, registration *e) {
    pthread_mutex_lock(&c->pool_lock);
    e->next = c->entries;
    c->entries = e;
    pthread_mutex_unlock(&c->pool_lock);
}

/* pool_lock held: where the entry is linked, or would be. */
static registration **find_entry(dtr__nccl_comm *c, const void *ptr) {
    registration **at = &c->entries;
    while (*at != NULL && (*at)->ptr != ptr) {
        at = &(*at)->next;
    }
    return at;
}

static registration *take_entry(dtr__nccl_comm *c, const void *ptr) {
    pthread_mutex_lock(&c->pool_lock);
    registration **at = find_entry(c, ptr), *e = *at;
    if (e != NULL) {
        *at = e->next;
    }
    pthread_mutex_unlock(&c->pool_lock);
    return e;
}

/* ---- calls of NCCL ---- */

static bool busy(const dtr__nccl_comm *c) {
    int state = 0;
    return c->handle != NULL && c->ops->state(c->handle, &state) == 0 &&
           state == c->ops->in_progress;
}

/* The lock, while NCCL is doing nothing else for the communicator. */
static bool take_lock(dtr__nccl_comm *c) {
    for (int i = 0; i < TRIES; i++) {
        if (pthread_mutex_trylock(&c->lock) == 0) {
            if (dtr__nccl_aborted(c) || !busy(c)) {
                return true;
            }
            pthread_mutex_unlock(&c->lock);
        }
        dtr__nccl_nap_ms();
    }
    return false;
}

/* lock held */
static int settle(const dtr__nccl_comm *c, int code) {
    while (code == c->ops->in_progress && !dtr__nccl_aborted(c)) {
        int state = 0, r = c->ops->state(c->handle, &state);
        code = r != 0 ? r : state;
        if (code == c->ops->in_progress) {
            dtr__nccl_nap_ms();
        }
    }
    return code;
}

/* What NCCL does not take is moved all the same. lock held. */
static void add(const block_list *b, dtr__nccl_comm *c, const memory_block *m) {
    registration *e = calloc(1, sizeof *e);
    int code = e == NULL ? -1
                         : settle(c, DTR_INSIDE_AS("ncclCommRegister",
                                                   c->ops->memory_add(c->device, c->handle, m->ptr,
                                                                      m->nbytes, &e->native)));
    if (e == NULL || code != 0) {
        if (!c->warned && !dtr__nccl_aborted(c)) {
            DTR_WARN(b->world,
                     "NCCL was not told of a block of %zu bytes on cuda:%d: %s; its data are "
                     "copied as without DTR_NCCL_REGISTER",
                     m->nbytes, c->device, e == NULL ? "out of memory" : c->ops->error_text(code));
            c->warned = true;
        }
        free(e);
        return;
    }
    e->ptr = m->ptr;
    put_entry(c, e);
}

/* The end of a window may wait for the device, which may never have done what a communicator that
 * is aborted was doing: NCCL then ends its windows with it. */
static void remove_native(const dtr__nccl_comm *c, registration *e) {
    if (e->window != NULL && c->handle != NULL && !dtr__nccl_aborted(c)) {
        (void)settle(c, DTR_INSIDE_AS("ncclCommWindowDeregister",
                                      c->ops->window_remove(c->device, c->handle, e->window)));
    }
    if (e->native != NULL && c->handle != NULL) {
        (void)settle(c, DTR_INSIDE_AS("ncclCommDeregister",
                                      c->ops->memory_remove(c->device, c->handle, e->native)));
    }
    free(e);
}

/* ---- the list of a world ---- */

static void unref(block_list *b) {
    if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (memory_block *m = b->newest, *next; m != NULL; m = next) {
        next = m->next;
        free(m);
    }
    pthread_mutex_destroy(&b->lock);
    free(b);
}

/* lock held: where the block is linked, or would be. */
static memory_block **find_block(block_list *b, const void *ptr) {
    memory_block **at = &b->newest;
    while (*at != NULL && (*at)->ptr != ptr) {
        at = &(*at)->next;
    }
    return at;
}

/* The oldest block of its device that a communicator does not know; its lock is held. */
static bool next_block(block_list *b, dtr__nccl_comm *c, memory_block *found) {
    uint64_t seen = atomic_load(&c->blocks_seen);
    const memory_block *oldest = NULL;
    pthread_mutex_lock(&b->lock);
    for (const memory_block *m = b->newest; m != NULL && m->number > seen; m = m->next) {
        oldest = m->device == c->device ? m : oldest;
    }
    bool any = oldest != NULL && c->learns;
    if (any) {
        *found = *oldest;
    }
    atomic_store(&c->blocks_seen, any ? oldest->number : atomic_load(&b->last));
    pthread_mutex_unlock(&b->lock);
    return any;
}

static void catch_up(block_list *b, dtr__nccl_comm *c) {
    memory_block m;
    if (!take_lock(c)) {
        return; /* before the next launch, then */
    }
    while (!dtr__nccl_aborted(c) && c->handle != NULL && next_block(b, c, &m)) {
        add(b, c, &m);
    }
    pthread_mutex_unlock(&c->lock);
}

/* The communicator that joined after number `joined`, with a reference. */
static dtr__nccl_comm *next_comm(block_list *b, uint64_t joined) {
    dtr__nccl_comm *found = NULL;
    pthread_mutex_lock(&b->lock);
    for (dtr__nccl_comm *c = b->comms; c != NULL; c = c->next_known) {
        found = c->joined > joined && (found == NULL || c->joined < found->joined) ? c : found;
    }
    if (found != NULL) {
        atomic_fetch_add_explicit(&found->refs, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&b->lock);
    return found;
}

dtr_status dtr__nccl_block_add(block_list *b, int device, void *ptr, size_t nbytes, bool own) {
    memory_block *m = malloc(sizeof *m), *same;
    DTR_REQUIRE(m != NULL, NULL, DTR_ERR_NOMEM, "no memory for the entry of a block on cuda:%d",
                device);
    pthread_mutex_lock(&b->lock);
    same = *find_block(b, ptr);
    if (same == NULL) {
        uint64_t number = atomic_load(&b->last) + 1;
        *m = (memory_block){ b->newest, ptr, nbytes, device, own, number };
        b->newest = m;
        atomic_store(&b->last, number);
    }
    pthread_mutex_unlock(&b->lock);
    if (same != NULL) {
        free(m);
        return DTR_FAIL(NULL, DTR_ERR_INTERNAL,
                        "block %p of %zu bytes on cuda:%d is to be made known to NCCL twice", ptr,
                        nbytes, device);
    }
    dtr__nccl_comm *c;
    for (uint64_t after = 0; (c = next_comm(b, after)) != NULL;) {
        after = c->joined;
        if (c->device == device) {
            catch_up(b, c);
        }
        dtr__nccl_comm_unref(c);
    }
    return DTR_OK;
}

/* NCCL forgets it, before anybody else can. A thread that hangs inside NCCL is waited for until its
 * communicator has been given up. */
static void forget(dtr__nccl_comm *c, const void *ptr) {
    bool locked = take_lock(c);
    while (!locked && !dtr__nccl_aborted(c)) {
        locked = take_lock(c);
    }
    registration *e = take_entry(c, ptr);
    if (e != NULL && locked) {
        remove_native(c, e);
    } else {
        free(e);
    }
    if (locked) {
        pthread_mutex_unlock(&c->lock);
    }
}

dtr_status dtr__nccl_block_remove(block_list *b, const void *ptr) {
    pthread_mutex_lock(&b->lock);
    memory_block **at = find_block(b, ptr), *m = *at;
    if (m != NULL) {
        *at = m->next;
    }
    pthread_mutex_unlock(&b->lock);
    DTR_REQUIRE(m != NULL, NULL, DTR_ERR_INTERNAL,
                "block %p is to be forgotten by NCCL, which does not know of it", ptr);
    dtr__nccl_comm *c;
    for (uint64_t after = 0; (c = next_comm(b, after)) != NULL;) {
        after = c->joined;
        if (c->device == m->device) {
            forget(c, ptr);
        }
        dtr__nccl_comm_unref(c);
    }
    free(m);
    return DTR_OK;
}

/* ---- communicators ---- */

static block_list *of_world(const dtr_world *world) {
    return world->groups != NULL ? world->groups->blocks : NULL;
}

void dtr__nccl_blocks_join(dtr__nccl_comm *c) {
    block_list *b = of_world(c->group->world);
    if (b == NULL) {
        return;
    }
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    pthread_mutex_lock(&c->pool_lock);
    c->blocks = b;
    pthread_mutex_lock(&b->lock);
    c->joined = ++b->joined;
    c->learns = true;
    c->next_known = b->comms;
    b->comms = c;
    pthread_mutex_unlock(&b->lock);
    pthread_mutex_unlock(&c->pool_lock);
    catch_up(b, c);
}

void dtr__nccl_blocks_poll(dtr__nccl_comm *c) {
    block_list *b = of_world(c->group->world);
    if (b != NULL && !c->local && atomic_load(&c->blocks_seen) != atomic_load(&b->last)) {
        catch_up(b, c);
    }
}

void dtr__nccl_blocks_leave(dtr__nccl_comm *c) {
    pthread_mutex_lock(&c->pool_lock);
    if (c->blocks != NULL) {
        pthread_mutex_lock(&c->blocks->lock);
        c->learns = false;
        pthread_mutex_unlock(&c->blocks->lock);
    }
    pthread_mutex_unlock(&c->pool_lock);
}

static void unlist(block_list *b, const dtr__nccl_comm *c) {
    pthread_mutex_lock(&b->lock);
    dtr__nccl_comm **at = &b->comms;
    while (*at != NULL && *at != c) {
        at = &(*at)->next_known;
    }
    if (*at != NULL) {
        *at = c->next_known;
    }
    pthread_mutex_unlock(&b->lock);
}

void dtr__nccl_blocks_drop(dtr__nccl_comm *c, bool native) {
    pthread_mutex_lock(&c->pool_lock);
    block_list *b = c->blocks;
    registration *list = c->entries;
    c->blocks = NULL;
    c->entries = NULL;
    pthread_mutex_unlock(&c->pool_lock);
    for (registration *e = list, *next; e != NULL; e = next) {
        next = e->next;
        if (native) {
            remove_native(c, e);
        } else {
            free(e);
        }
    }
    if (b != NULL) {
        unlist(b, c);
        unref(b);
    }
}

/* ---- what is known ---- */

bool dtr__nccl_block_fits(const dtr__nccl_comm *c, const void *ptr, size_t *nbytes) {
    block_list *b = of_world(c->group->world);
    pthread_mutex_lock(&b->lock);
    const memory_block *m = *find_block(b, ptr);
    bool fits = m != NULL && m->own && m->device == c->device;
    *nbytes = fits ? m->nbytes : 0;
    pthread_mutex_unlock(&b->lock);
    return fits;
}

bool dtr__nccl_block_window(dtr__nccl_comm *c, const void *ptr, void *window) {
    registration *e = take_entry(c, ptr); /* none: NCCL has not registered it */
    if (e == NULL) {
        e = calloc(1, sizeof *e);
        if (e == NULL) {
            return false;
        }
        e->ptr = ptr;
    }
    e->window = window;
    put_entry(c, e);
    return true;
}

void dtr__nccl_blocks_count(dtr__nccl_comm *c, uint64_t *registered, uint64_t *windows) {
    pthread_mutex_lock(&c->pool_lock);
    for (const registration *e = c->entries; e != NULL; e = e->next) {
        *registered += e->native != NULL;
        *windows += e->window != NULL;
    }
    pthread_mutex_unlock(&c->pool_lock);
}

bool dtr__nccl_block_registered(dtr__nccl_comm *c, const void *ptr) {
    pthread_mutex_lock(&c->pool_lock);
    const registration *e = *find_entry(c, ptr);
    bool is = e != NULL && e->native != NULL;
    pthread_mutex_unlock(&c->pool_lock);
    return is;
}

/* ---- what the runtime calls for blocks of dtr_alloc ---- */

void *dtr__nccl_memory_take(dtr_world *world, int device, size_t nbytes) {
    void *ptr = NULL;
    if (of_world(world) == NULL || nbytes == 0) {
        return NULL;
    }
    if (nbytes < DTR__NCCL_SMALL) {
        return dtr__nccl_small_take(world, device, nbytes);
    }
    int code = dtr__nccl_get()->ops->memory_new(device, nbytes, &ptr);
    return code == 0 ? ptr : NULL; /* CUDA may have some */
}

/* A small one is free when the streams of the program have done with it, as a large one is. */
dtr_status dtr__nccl_memory_give(int device, void *ptr) {
    const dtr__nccl_ops *ops = dtr__nccl_get()->ops;
    const bool small = dtr__nccl_small_has(ptr);
    int code = small ? ops->memory_wait(device) : ops->memory_free(device, ptr);
    dtr__error_context ctx = { .native = DTR_NATIVE_NCCL, .native_code = code };
    if (code == 0) {
        return small ? dtr__nccl_small_give(ptr) : DTR_OK;
    }
    ctx.native_text = ops->error_text(code);
    return DTR_FAIL(&ctx, DTR_ERR_NCCL, "ncclMemFree of %p on cuda:%d: NCCL error %d (%s)", ptr,
                    device, code, ctx.native_text);
}

static void warn_of(dtr_world *world, dtr_status s) {
    if (s < 0) {
        DTR_WARN(world, "%s; its data are moved all the same", dtr_last_error_message());
    }
}

void dtr__nccl_memory_begins(dtr_world *world, int device, void *ptr, size_t nbytes, bool own) {
    block_list *b = of_world(world);
    if (b != NULL && nbytes > 0 && !dtr__nccl_small_has(ptr)) {
        warn_of(world, dtr__nccl_block_add(b, device, ptr, nbytes, own));
    }
}

void dtr__nccl_memory_ends(dtr_world *world, void *ptr, size_t nbytes) {
    block_list *b = of_world(world);
    if (b != NULL && nbytes > 0 && !dtr__nccl_small_has(ptr)) {
        warn_of(world, dtr__nccl_block_remove(b, ptr));
    }
}

/* One line, of the first rank, where the setting has no effect. */
static bool wanted(dtr_world *world) {
    char built[16], found[16];
    const dtr__nccl_library *l = dtr__nccl_get();
    if (dtr__opt_number(&world->options, DTR__OPT_NCCL_REGISTER) == 0) {
        return false;
    }
    bool can = l->ops != NULL && l->ops->registers();
    if (!can && world->rank == 0 && l->ops != NULL) {
        DTR_INFO(world,
                 "DTR_NCCL_REGISTER=1 has no effect: it needs NCCL 2.19 when the library is built "
                 "and when it runs; built with %s, found %s",
                 dtr__nccl_version_text(l->ops->built, built),
                 dtr__nccl_version_text(l->version, found));
    } else if (!can && world->rank == 0) {
        DTR_INFO(world, "DTR_NCCL_REGISTER=1 has no effect: %s", l->reason);
    }
    return can;
}

dtr_status dtr__nccl_blocks_open(dtr_world *world, block_list **blocks) {
    *blocks = NULL;
    if (!wanted(world)) {
        return DTR_OK;
    }
    block_list *b = calloc(1, sizeof *b);
    DTR_REQUIRE(b != NULL, NULL, DTR_ERR_NOMEM, "no memory for the list of blocks of NCCL");
    b->world = world;
    atomic_init(&b->refs, 1);
    pthread_mutex_init(&b->lock, NULL);
    *blocks = b;
    return DTR_OK;
}

void dtr__nccl_blocks_free(block_list *b) {
    if (b != NULL) {
        dtr__nccl_small_end(b->world);
        unref(b);
    }
}

size_t dtr__nccl_whole(const dtr_world *world, size_t nbytes) {
    return of_world(world) != NULL && nbytes < DTR__NCCL_SMALL ? DTR__NCCL_SMALL : nbytes;
}
