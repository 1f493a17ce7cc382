/* Node-shared memory: one sparse file without a name per rank, mapped by every rank of the node at
 * world creation, and blocks in the own one handed out at any time without notifying other ranks.
 *
 * All arenas are in one reserved stretch of address space at equal distances, so that a pointer
 * becomes (local rank, offset) with one division. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arena_file.h"
#include "base/exchange.h"
#include "base/log.h"
#include "base/private_fd.h"
#include "heap.h"
#include "memory/arena.h"
#include "numbers.h"

#define HUGE_PAGE ((uint64_t)2 << 20)
#define SMALL_PAGE ((uint64_t)4096)
#define HUGE_FROM ((size_t)4 << 20) /* blocks from here on get huge pages */
#define HOLE_FROM DTR__ARENA_GRAIN  /* freed blocks from here on give their pages back */
#define NUMBERS_AT ((uint64_t)64)   /* in the first page, behind the nonce */
_Static_assert(64 + sizeof(dtr__numbers) <= 4096, "blocks begin behind the first page");

struct dtr__arena {
    char *base; /* of local rank 0's arena */
    uint64_t stride;
    int n;
    uint64_t *size; /* [n] */
    uint64_t *at;   /* [n] what dtr__arena_share has exchanged and found, one call at a time */
    void **each;
    void *reserved; /* the stretch of address space, and its length */
    size_t reserved_bytes;
    int local_rank, fd; /* fd: the own file */
    atomic_bool huge;   /* large blocks get huge pages, not yet refused */
    int holders;        /* blocks that outlive the world; lock */
    bool named;         /* in /dev/shm, whose space is limited: pages are taken when allocated */
    pthread_mutex_t lock;
    dtr__heap *heap; /* of the own arena; lock */
    /* Pages of the own arena that are private to this process; lock. n_kept is their number, which
     * grows before they are made so. */
    struct kept {
        uint64_t from, to;
    } * kept;
    _Atomic uint64_t n_kept;
};

static outcome reserve_stretch(dtr__arena *a, const offer *offers, char *why, size_t cap) {
    for (int i = 0; i < a->n; i++) {
        a->size[i] = offers[i].size;
        a->stride = offers[i].size > a->stride ? offers[i].size : a->stride;
    }
    a->stride = (a->stride + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    unsigned __int128 all = (unsigned __int128)a->stride * (unsigned)a->n + HUGE_PAGE;
    if (all > SIZE_MAX / 2) {
        snprintf(why, cap, "%d arenas of %llu MiB exceed the address space", a->n,
                 (unsigned long long)(a->stride >> 20));
        return TOO_BIG;
    }
    a->reserved_bytes = (size_t)all;
    void *p = mmap(NULL, a->reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        snprintf(why, cap, "mmap of %zu MiB of address space: %s", a->reserved_bytes >> 20,
                 strerror(errno));
        return dtr__arena_outcome(errno);
    }
    a->reserved = p;
    a->base = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    return SHARED;
}

static outcome map_all(dtr__arena *a, const offer *offers, char *why, size_t cap) {
    outcome result = reserve_stretch(a, offers, why, cap);
    for (int i = 0; i < a->n && result == SHARED; i++) {
        bool own = i == a->local_rank;
        int fd = own ? a->fd : dtr__arena_file_open(&offers[i]);
        result =
            dtr__arena_file_map(a->base + (uint64_t)i * a->stride, &offers[i], fd, own, why, cap);
        if (!own && fd >= 0) {
            close(fd);
        }
    }
    if (result == SHARED) { /* the first page holds the nonce */
        a->heap = dtr__heap_new(SMALL_PAGE, a->size[a->local_rank]);
        if (a->heap == NULL) {
            snprintf(why, cap, "no memory");
            result = NO_WAY;
        }
    }
    return result;
}

static void destroy(dtr__arena *a) {
    if (a == NULL) {
        return;
    }
    if (a->reserved != NULL) {
        munmap(a->reserved, a->reserved_bytes);
    }
    if (a->fd >= 0) {
        dtr__private_fd_close(a->fd);
    }
    dtr__heap_delete(a->heap);
    pthread_mutex_destroy(&a->lock);
    free(a->kept);
    free(a->size);
    free((void *)a->each);
    free(a);
}

static dtr__arena *new_arena(const dtr_world *world) {
    dtr__arena *a = calloc(1, sizeof *a);
    if (a == NULL) {
        return NULL;
    }
    a->fd = -1;
    a->n = world->local_size;
    a->local_rank = world->local_rank;
    pthread_mutex_init(&a->lock, NULL);
    a->size = calloc(2 * (size_t)a->n, sizeof *a->size);
    a->at = a->size != NULL ? a->size + a->n : NULL;
    a->each = calloc((size_t)a->n, sizeof *a->each);
    if (a->size == NULL || a->each == NULL) {
        destroy(a);
        return NULL;
    }
    return a;
}

/* ---- agreement over the node ---- */

typedef struct attempt {
    outcome worst;  /* on any rank of the node */
    bool last_size; /* every rank has tried its smallest */
    char why[160];  /* this rank's reason; "" when the failure is another's */
} attempt;

/* One try with one way and one size. All ranks of the node make the same tries. */
static dtr_status attempt_share(dtr_world *world, bool named, int k, offer *offers, attempt *t) {
    offer mine = { .pid = (int)getpid(), .fd = -1, .outcome = NO_WAY };
    bool last;
    mine.size = dtr__arena_file_size(world, k, &last);
    mine.last_size = last;
    t->why[0] = '\0';
    dtr__arena *a = new_arena(world);
    if (a != NULL) {
        a->named = named;
        a->huge = !named;
        dtr__private_fd_begin();
        a->fd = dtr__private_fd_end(
            dtr__arena_file_make(&mine, named, world->local_size, t->why, sizeof t->why));
    }
    dtr_status s = dtr__exchange_allgather(dtr__members_of_node(world), &mine, offers, sizeof mine);
    t->worst = SHARED;
    t->last_size = true;
    for (int i = 0; s == DTR_OK && i < world->local_size; i++) {
        t->worst = (outcome)offers[i].outcome < t->worst ? (outcome)offers[i].outcome : t->worst;
        t->last_size = t->last_size && offers[i].last_size;
    }
    if (s == DTR_OK && t->worst == SHARED && a != NULL) {
        int result = map_all(a, offers, t->why, sizeof t->why), worst = NO_WAY;
        s = dtr__exchange_min_of(dtr__members_of_node(world), result, &worst);
        t->worst = (outcome)worst;
    }
    if (mine.name[0] != '\0') {
        shm_unlink(mine.name); /* all have it, or nobody will */
    }
    if (s != DTR_OK) {
        destroy(a);
        return s;
    }
    if (t->worst == SHARED) {
        world->memory.arena = a;
    } else {
        destroy(a);
    }
    return DTR_OK;
}

/* Local rank 0 says why, in the words of the first rank that has a reason. */
static dtr_status warn_none(dtr_world *world, attempt *t) {
    int mine = t->why[0] != '\0' ? world->local_rank : world->local_size, first = 0;
    DTR_TRY(dtr__exchange_min_of(dtr__members_of_node(world), mine, &first));
    first = first < world->local_size ? first : 0;
    DTR_TRY(dtr__exchange_broadcast(dtr__members_of_node(world), t->why, sizeof t->why, first));
    if (world->local_rank == 0) {
        DTR_WARN(world,
                 "no node-shared memory on host %s, DTR_MEM_SHARED gives plain memory and "
                 "collectives copy; rank %d: %s",
                 world->host, world->local_world[first], t->why);
    }
    return DTR_OK;
}

dtr_status dtr__arena_open_ways(dtr_world *world, unsigned ways) {
    offer *offers = calloc((size_t)world->local_size, sizeof *offers);
    int able = offers != NULL, all_able = 0;
    attempt t = { .worst = NO_WAY };
    dtr_status s = dtr__exchange_min_of(dtr__members_of_node(world), able, &all_able);
    if (s != DTR_OK) {
        free(offers);
        return s;
    }
    snprintf(t.why, sizeof t.why, "%s", able ? "" : "no memory");
    for (int named = 0; offers != NULL && all_able && named < 2 && t.worst != SHARED && s == DTR_OK;
         named++) {
        bool more = (ways & (named ? DTR__ARENA_NAMED : DTR__ARENA_UNNAMED)) != 0;
        if (more && named && world->local_rank == 0) {
            dtr__arena_files_sweep();
        }
        for (int k = 0; more && s == DTR_OK; k++) {
            s = attempt_share(world, named, k, offers, &t);
            more = t.worst == TOO_BIG && !t.last_size;
        }
    }
    free(offers);
    if (s == DTR_OK && t.worst != SHARED) {
        s = warn_none(world, &t);
    } else if (s == DTR_OK) {
        DTR_INFO(world, "node-shared memory: %llu MiB of address space per rank%s",
                 (unsigned long long)(world->memory.arena->size[world->local_rank] >> 20),
                 world->memory.arena->named ? ", in /dev/shm" : "");
    }
    return s;
}

dtr_status dtr__arena_open(dtr_world *world) {
    return dtr__arena_open_ways(world, DTR__ARENA_UNNAMED | DTR__ARENA_NAMED);
}

/* Of the stretch only the own arena stays, for the blocks in it that outlive the world. */
static void unmap_peers(dtr__arena *a) {
    char *begin = a->reserved, *end = begin + a->reserved_bytes;
    char *own = a->base + (uint64_t)a->local_rank * a->stride, *behind = own + a->stride;
    if (own > begin) {
        munmap(begin, (size_t)(own - begin));
    }
    if (end > behind) {
        munmap(behind, (size_t)(end - behind));
    }
    a->reserved = own;
    a->reserved_bytes = a->stride;
}

void dtr__arena_close(dtr_world *world) {
    dtr__arena *a = world->memory.arena;
    world->memory.arena = NULL;
    if (a != NULL && a->holders > 0) {
        unmap_peers(a);
    } else {
        destroy(a);
    }
}

dtr__arena *dtr__arena_hold(dtr_world *world) {
    dtr__arena *a = world->memory.arena;
    pthread_mutex_lock(&a->lock);
    a->holders++;
    pthread_mutex_unlock(&a->lock);
    return a;
}

/* ---- blocks ---- */

bool dtr__arena_usable(const dtr_world *world) {
    return world->memory.arena != NULL;
}

/* Pages of /dev/shm are taken now: touching them when it is full would raise SIGBUS. */
static bool back_pages(const dtr__arena *a, uint64_t offset, uint64_t nbytes) {
    uint64_t from = offset / SMALL_PAGE * SMALL_PAGE;
    return !a->named || nbytes == 0 ||
           fallocate(a->fd, 0, (off_t)from, (off_t)(offset + nbytes - from)) == 0;
}

/* `huge`: by huge pages where it is large. */
static void *take(dtr_world *world, size_t nbytes, size_t align, bool huge) {
    dtr__arena *a = world->memory.arena;
    uint64_t offset;
    if (a == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&a->lock);
    bool got = dtr__heap_take(a->heap, nbytes, align < 64 ? 64 : align, &offset);
    if (got && !back_pages(a, offset, nbytes)) {
        dtr__heap_give(a->heap, offset);
        got = false;
    }
    pthread_mutex_unlock(&a->lock);
    void *p = got ? dtr__arena_at(world, a->local_rank, offset) : NULL;
    if (got && huge && nbytes >= HUGE_FROM &&
        atomic_load_explicit(&a->huge, memory_order_relaxed) &&
        dtr__huge_back(p, nbytes) == EINVAL) {
        atomic_store_explicit(&a->huge, false, memory_order_relaxed); /* a kernel without */
    }
    return p;
}

void *dtr__arena_alloc(dtr_world *world, size_t nbytes, size_t align) {
    return take(world, nbytes, align, true);
}

static bool locate(const dtr__arena *a, const void *ptr, size_t nbytes, int *local_rank,
                   uint64_t *offset) {
    if (a == NULL) {
        return false;
    }
    uint64_t from_base = (uint64_t)(uintptr_t)ptr - (uint64_t)(uintptr_t)a->base;
    uint64_t index = from_base / a->stride;
    if (index >= (uint64_t)a->n) {
        return false;
    }
    uint64_t inside = from_base - index * a->stride, size = a->size[index];
    if (inside > size || nbytes > size - inside) {
        return false;
    }
    *local_rank = (int)index;
    *offset = inside;
    return true;
}

/* Whether a part of it is private. lock held. */
static bool is_kept(const dtr__arena *a, uint64_t offset, uint64_t nbytes) {
    const uint64_t n = atomic_load_explicit(&a->n_kept, memory_order_relaxed);
    uint64_t i = 0;
    while (i < n && (a->kept[i].to <= offset || a->kept[i].from >= offset + nbytes)) {
        i++;
    }
    return i < n;
}

static bool punch(const dtr__arena *a, uint64_t offset, uint64_t nbytes) {
    uint64_t from = (offset + SMALL_PAGE - 1) / SMALL_PAGE * SMALL_PAGE;
    uint64_t to = (offset + nbytes) / SMALL_PAGE * SMALL_PAGE;
    return to > from && fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                                  (off_t)(to - from)) == 0;
}

/* Whole pages become holes, which take memory when they are first touched; not in /dev/shm, which
 * may be full by then. */
static void zero(const dtr__arena *a, char *p, uint64_t offset, uint64_t nbytes) {
    const uint64_t head = (SMALL_PAGE - offset % SMALL_PAGE) % SMALL_PAGE;
    const uint64_t tail = (offset + nbytes) % SMALL_PAGE;
    if (!a->named && punch(a, offset, nbytes)) {
        memset(p, 0, head);
        memset(p + nbytes - tail, 0, tail);
    } else {
        memset(p, 0, nbytes);
    }
}

/* The memory of a block that has private pages. A stopped rank may still store into those of the
 * file: in /dev/shm they stay, because a store into a hole fails there when no room is left. lock
 * held. */
static void drop_kept(const dtr__arena *a, uint64_t offset, uint64_t nbytes) {
    for (uint64_t i = 0; i < atomic_load_explicit(&a->n_kept, memory_order_relaxed); i++) {
        const struct kept *k = &a->kept[i];
        if (k->from >= offset && k->to <= offset + nbytes) {
            (void)madvise(a->base + (uint64_t)a->local_rank * a->stride + k->from, k->to - k->from,
                          MADV_DONTNEED);
        }
    }
    if (!a->named) {
        punch(a, offset, nbytes);
    }
}

static void give_block(dtr__arena *a, void *ptr) {
    uint64_t offset;
    int owner;
    if (!locate(a, ptr, 0, &owner, &offset) || owner != a->local_rank) {
        return;
    }
    pthread_mutex_lock(&a->lock);
    uint64_t nbytes = dtr__heap_size_of(a->heap, offset);
    if (is_kept(a, offset, nbytes)) {
        drop_kept(a, offset, nbytes); /* its place is given to nobody any more */
    } else {
        if (nbytes >= HOLE_FROM) { /* before anybody else can get the range */
            punch(a, offset, nbytes);
        }
        dtr__heap_give(a->heap, offset);
    }
    pthread_mutex_unlock(&a->lock);
}

void dtr__arena_free(dtr_world *world, void *ptr) {
    give_block(world->memory.arena, ptr);
}

void dtr__arena_drop(dtr__arena *a, void *ptr) {
    give_block(a, ptr);
    pthread_mutex_lock(&a->lock);
    const bool last = --a->holders == 0;
    pthread_mutex_unlock(&a->lock);
    if (last) {
        destroy(a);
    }
}

/* ---- pages that are not shared any more ---- */

static dtr__numbers *numbers_of(const dtr_world *world, int local_rank) {
    return dtr__arena_at(world, local_rank, NUMBERS_AT);
}

bool dtr__arena_keep(dtr_world *world, uint64_t offset, uint64_t nbytes) {
    dtr__arena *a = world->memory.arena;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = offset / page * page,
                   to = (offset + nbytes + page - 1) / page * page;
    char *at = dtr__arena_at(world, a->local_rank, from);
    pthread_mutex_lock(&a->lock);
    const uint64_t n = atomic_load_explicit(&a->n_kept, memory_order_relaxed);
    struct kept *all = realloc(a->kept, (n + 1) * sizeof *all);
    bool done = all != NULL && to <= a->size[a->local_rank];
    if (all != NULL) {
        a->kept = all;
    }
    if (done) { /* published first: who finds the number unchanged after a store stored for all */
        all[n] = (struct kept){ from, to };
        atomic_store_explicit(&a->n_kept, n + 1, memory_order_seq_cst);
        done = mmap(at, to - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                    a->fd, (off_t)from) != MAP_FAILED;
    }
    /* A page is copied when it is first written to: now, by an addition of nothing that loses no
     * store of another thread. */
    for (uint64_t i = 0; done && i < to - from; i += page) {
        (void)__atomic_fetch_or(at + i, 0, __ATOMIC_SEQ_CST);
    }
    if (done) {
        dtr__numbers_drop_range(numbers_of(world, a->local_rank), from - NUMBERS_AT,
                                to - NUMBERS_AT);
    }
    pthread_mutex_unlock(&a->lock);
    return done;
}

uint64_t dtr__arena_version(const dtr_world *world) {
    return world->memory.arena == NULL
               ? 0
               : atomic_load_explicit(&world->memory.arena->n_kept, memory_order_acquire);
}

bool dtr__arena_find(const dtr_world *world, const void *ptr, size_t nbytes, int *local_rank,
                     uint64_t *offset) {
    dtr__arena *a = world->memory.arena;
    if (!locate(a, ptr, nbytes, local_rank, offset)) {
        return false;
    }
    if (atomic_load_explicit(&a->n_kept, memory_order_acquire) == 0 ||
        *local_rank != a->local_rank) {
        return true;
    }
    pthread_mutex_lock(&a->lock);
    const bool shared = !is_kept(a, *offset, nbytes);
    pthread_mutex_unlock(&a->lock);
    return shared;
}

void *dtr__arena_at(const dtr_world *world, int local_rank, uint64_t offset) {
    const dtr__arena *a = world->memory.arena;
    return a->base + (uint64_t)local_rank * a->stride + offset;
}

/* ---- blocks by number; offsets in the table count from the table ---- */

bool dtr__arena_number(dtr_world *world, uint64_t number, const void *ptr, size_t nbytes) {
    dtr__arena *a = world->memory.arena;
    dtr__numbers *n = numbers_of(world, a->local_rank);
    uint64_t at = 0;
    pthread_mutex_lock(&a->lock);
    const size_t more = dtr__numbers_grow(n);
    const bool got =
        more == 0 || (dtr__heap_take(a->heap, more, 64, &at) && back_pages(a, at, more));
    if (got && more > 0) {
        dtr__numbers_move(n, at - NUMBERS_AT);
    }
    if (got) {
        dtr__numbers_put(n, number, (uint64_t)((const char *)ptr - (const char *)n), nbytes);
    } else if (at != 0) {
        dtr__heap_give(a->heap, at);
    }
    pthread_mutex_unlock(&a->lock);
    return got;
}

void dtr__arena_unnumber(dtr_world *world, uint64_t number) {
    dtr__arena *a = world->memory.arena;
    pthread_mutex_lock(&a->lock);
    dtr__numbers_drop(numbers_of(world, a->local_rank), number);
    pthread_mutex_unlock(&a->lock);
}

void *dtr__arena_numbered(const dtr_world *world, int local_rank, uint64_t number, size_t *nbytes) {
    const dtr__numbers *n = numbers_of(world, local_rank);
    uint64_t offset, length;
    if (!dtr__numbers_find(n, number, &offset, &length)) {
        return NULL;
    }
    *nbytes = (size_t)length;
    return dtr__arena_at(world, local_rank, NUMBERS_AT + offset);
}

void **dtr__arena_share(dtr_world *world, size_t nbytes, dtr_status *s) {
    dtr__arena *a = world->memory.arena;
    *s = DTR_OK;
    if (a == NULL) { /* then no rank of the node has one */
        return NULL;
    }
    uint64_t mine = UINT64_MAX;
    int here = 0;
    bool all = true;
    void *p = nbytes > 0 ? take(world, nbytes, 64, false) : NULL;
    if (p != NULL && !dtr__arena_find(world, p, nbytes, &here, &mine)) {
        mine = UINT64_MAX;
    }
    if (p != NULL && mine != UINT64_MAX) {
        zero(a, p, mine, nbytes);
    }
    *s = dtr__exchange_allgather(dtr__members_of_node(world), &mine, a->at, sizeof mine);
    for (int i = 0; i < a->n && *s == DTR_OK; i++) {
        all = all && a->at[i] != UINT64_MAX;
    }
    all = all && *s == DTR_OK;
    for (int i = 0; i < a->n && all; i++) {
        a->each[i] = dtr__arena_at(world, i, a->at[i]);
    }
    if (!all && p != NULL) {
        dtr__arena_free(world, p);
    }
    return all ? a->each : NULL;
}

size_t dtr__arena_used(const dtr_world *world) {
    dtr__arena *a = world->memory.arena;
    if (a == NULL) {
        return 0;
    }
    pthread_mutex_lock(&a->lock);
    uint64_t used = dtr__heap_used(a->heap);
    pthread_mutex_unlock(&a->lock);
    return (size_t)used;
}
