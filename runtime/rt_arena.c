/* Node-shared memory: one sparse file without a name per rank, mapped by every rank of the node at
 * world creation, and blocks in the own one handed out at any time without telling anybody.
 *
 * All arenas lie in one reserved stretch of address space at equal distances, so that a pointer
 * becomes (local rank, offset) with one division. Ranks find each other's file through /proc, or,
 * where the kernel forbids that, by a name in /dev/shm that is removed as soon as all have it. A
 * job killed in between leaves names behind; the next one of the same user removes them. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "rt_heap.h"
#include "rt_internal.h"

#define HUGE_PAGE ((uint64_t)2 << 20)
#define SMALL_PAGE ((uint64_t)4096)
#define NAME_PREFIX "dtr-arena-" /* of names in /dev/shm; 16 digits of the nonce follow */
#define HEX "0123456789abcdef"
#define LEAST_SIZE ((uint64_t)64 << 20) /* smaller only when asked for, or in /dev/shm */
#define HUGE_FROM ((size_t)4 << 20)     /* blocks from here on get huge pages */
#define HOLE_FROM ((uint64_t)64 << 10)  /* freed blocks from here on give their pages back */

struct dtr__arena {
    char *base; /* of local rank 0's arena */
    uint64_t stride;
    int n;
    uint64_t *size; /* [n] */
    void *reserved; /* the stretch of address space, and its length */
    size_t reserved_bytes;
    int local_rank, fd; /* fd: the own file */
    atomic_bool huge;   /* large blocks get huge pages, not yet refused */
    bool named;         /* in /dev/shm, whose space is limited: pages are taken when allocated */
    pthread_mutex_t lock;
    dtr__heap *heap; /* of the own arena; lock */
};

/* How far an attempt came on this rank; the node goes by the worst. */
typedef enum outcome { NO_WAY, TOO_BIG, SHARED } outcome;

enum { NONCE_DIGITS = 16 };

/* What a rank tells the others of its file. */
typedef struct offer {
    int pid, fd;
    uint64_t size;
    unsigned char nonce[16];
    char name[40]; /* in /dev/shm; "" for a file without a name */
    int outcome, last_size;
} offer;

/* ---- the own file ---- */

static outcome classify(int code) {
    return code == ENOMEM || code == EFBIG || code == ENOSPC || code == EINVAL ? TOO_BIG : NO_WAY;
}

static uint64_t wanted_size(const dtr_world *world) {
    uint64_t size = dtr__opt_number(&world->options, DTR__OPT_ARENA);
    if (size == 0) {
        size = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    }
    struct rlimit limit; /* growing a file beyond it would raise SIGXFSZ */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        size > limit.rlim_cur) {
        size = limit.rlim_cur;
    }
    return size;
}

/* The k-th size to try: a quarter of the one before, down to LEAST_SIZE. */
static uint64_t size_to_try(const dtr_world *world, int k, bool *last) {
    uint64_t wanted = wanted_size(world), least = wanted < LEAST_SIZE ? wanted : LEAST_SIZE;
    uint64_t size = k < 32 ? wanted >> (2 * k) : 0;
    *last = size <= least;
    size = *last ? least : size;
    size = (size + HOLE_FROM - 1) / HOLE_FROM * HOLE_FROM;
    return size < 2 * HOLE_FROM ? 2 * HOLE_FROM : size;
}

/* Names that a killed job has left: their maker would hold the lock, which ends with it. */
static void remove_stale(void) {
    DIR *dir = opendir("/dev/shm");
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        const size_t n = strlen(NAME_PREFIX);
        if (strncmp(e->d_name, NAME_PREFIX, n) != 0 || strspn(e->d_name + n, HEX) != NONCE_DIGITS) {
            continue;
        }
        int fd = openat(dirfd(dir), e->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            unlinkat(dirfd(dir), e->d_name, 0);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
}

/* A new file that remove_stale of another job leaves alone: locked, and not yet taken for one. */
static int open_locked(offer *o) {
    enum { TRIES = 16 };
    char digits[NONCE_DIGITS + 1];
    int fd = -1;
    for (int i = 0; i < NONCE_DIGITS; i++) {
        digits[i] = HEX[o->nonce[i / 2] >> (i % 2 * 4) & 15];
    }
    digits[NONCE_DIGITS] = '\0';
    for (int i = 0; fd < 0 && i < TRIES; i++) {
        struct stat st;
        snprintf(o->name, sizeof o->name, "/" NAME_PREFIX "%s.%d", digits, i);
        fd = shm_open(o->name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd < 0) {
            return -1;
        }
        const bool taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (taken || fstat(fd, &st) != 0 || st.st_nlink == 0) {
            close(fd);
            shm_unlink(o->name);
            fd = -1;
            errno = EAGAIN;
        }
    }
    return fd;
}

static int make_named(offer *o, int local_size) {
    int fd = open_locked(o);
    struct statvfs space;
    if (fd >= 0 && fstatvfs(fd, &space) == 0) {
        uint64_t share = (uint64_t)space.f_bavail * space.f_frsize / (uint64_t)local_size;
        share = share / HOLE_FROM * HOLE_FROM;
        o->size = share >= 2 * HOLE_FROM && share < o->size ? share : o->size;
    }
    return fd;
}

/* Make the file, set its size and write the nonce by which the others recognise it. */
static int make_file(offer *o, bool named, int local_size, char *why, size_t cap) {
    int fd = -1;
    const char *step = "getrandom";
    if (getrandom(o->nonce, sizeof o->nonce, 0) == (ssize_t)sizeof o->nonce) {
        step = named ? "shm_open" : "memfd_create";
        fd = named ? make_named(o, local_size) : memfd_create("dtr-arena", MFD_CLOEXEC);
    }
    if (fd >= 0) {
        step = "ftruncate";
        if (ftruncate(fd, (off_t)o->size) == 0) {
            step = "pwrite";
            if (pwrite(fd, o->nonce, sizeof o->nonce, 0) == (ssize_t)sizeof o->nonce) {
                o->outcome = SHARED;
                o->fd = fd;
                return fd;
            }
        }
    }
    o->outcome = classify(errno);
    snprintf(why, cap, "%s of %llu MiB: %s", step, (unsigned long long)(o->size >> 20),
             strerror(errno));
    if (fd >= 0) {
        close(fd);
    }
    return -1;
}

/* ---- mapping everybody's ---- */

static int open_peer(const offer *o) {
    char path[64];
    if (o->name[0] != '\0') {
        return shm_open(o->name, O_RDWR, 0600);
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", o->pid, o->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Map a file over its place in the reserved stretch. */
static outcome map_file(char *at, const offer *o, int fd, bool own, char *why, size_t cap) {
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        snprintf(why, cap, "opening the memory of process %d: %s", o->pid, strerror(errno));
        return NO_WAY;
    }
    /* Through another pid namespace the path may name some other file. */
    if ((uint64_t)st.st_size != o->size) {
        snprintf(why, cap, "the memory of process %d is not visible here", o->pid);
        return NO_WAY;
    }
    if (mmap(at, o->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) ==
        MAP_FAILED) {
        snprintf(why, cap, "mmap of %llu MiB: %s", (unsigned long long)(o->size >> 20),
                 strerror(errno));
        return classify(errno);
    }
    if (memcmp(at, o->nonce, sizeof o->nonce) != 0) {
        snprintf(why, cap, "the memory of process %d is not visible here", o->pid);
        return NO_WAY;
    }
    if (!own) {
        madvise(at, o->size, MADV_DONTDUMP); /* its owner's core file has it */
    }
    return SHARED;
}

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
        return classify(errno);
    }
    a->reserved = p;
    a->base = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    return SHARED;
}

static outcome map_all(dtr__arena *a, const offer *offers, char *why, size_t cap) {
    outcome result = reserve_stretch(a, offers, why, cap);
    for (int i = 0; i < a->n && result == SHARED; i++) {
        bool own = i == a->local_rank;
        int fd = own ? a->fd : open_peer(&offers[i]);
        result = map_file(a->base + (uint64_t)i * a->stride, &offers[i], fd, own, why, cap);
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
        close(a->fd);
    }
    dtr__heap_delete(a->heap);
    pthread_mutex_destroy(&a->lock);
    free(a->size);
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
    a->size = calloc((size_t)a->n, sizeof *a->size);
    if (a->size == NULL) {
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
    dtr__error_context ctx = { .world = world };
    offer mine = { .pid = (int)getpid(), .fd = -1, .outcome = NO_WAY };
    bool last;
    mine.size = size_to_try(world, k, &last);
    mine.last_size = last;
    t->why[0] = '\0';
    dtr__arena *a = new_arena(world);
    if (a != NULL) {
        a->named = named;
        a->huge = !named;
        a->fd = make_file(&mine, named, world->local_size, t->why, sizeof t->why);
    }
    int code = MPI_Allgather(&mine, (int)sizeof mine, MPI_BYTE, offers, (int)sizeof mine, MPI_BYTE,
                             world->node_comm);
    t->worst = SHARED;
    t->last_size = true;
    for (int i = 0; code == MPI_SUCCESS && i < world->local_size; i++) {
        t->worst = (outcome)offers[i].outcome < t->worst ? (outcome)offers[i].outcome : t->worst;
        t->last_size = t->last_size && offers[i].last_size;
    }
    if (code == MPI_SUCCESS && t->worst == SHARED && a != NULL) {
        int result = map_all(a, offers, t->why, sizeof t->why), worst = NO_WAY;
        code = MPI_Allreduce(&result, &worst, 1, MPI_INT, MPI_MIN, world->node_comm);
        t->worst = (outcome)worst;
    }
    if (mine.name[0] != '\0') {
        shm_unlink(mine.name); /* all have it, or nobody will */
    }
    if (code != MPI_SUCCESS) {
        destroy(a);
        return dtr__error_mpi(&ctx, code, "MPI_Allgather", __FILE__, __LINE__);
    }
    if (t->worst == SHARED) {
        world->arena = a;
    } else {
        destroy(a);
    }
    return DTR_OK;
}

/* Local rank 0 says why, in the words of the first rank that has a reason. */
static dtr_status warn_none(dtr_world *world, attempt *t) {
    dtr__error_context ctx = { .world = world };
    int mine = t->why[0] != '\0' ? world->local_rank : world->local_size, first = 0;
    DTR_MPI(&ctx, MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, world->node_comm));
    first = first < world->local_size ? first : 0;
    DTR_MPI(&ctx, MPI_Bcast(t->why, (int)sizeof t->why, MPI_BYTE, first, world->node_comm));
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
    dtr__error_context ctx = { .world = world };
    attempt t = { .worst = NO_WAY };
    dtr_status s = DTR_OK;
    int code = MPI_Allreduce(&able, &all_able, 1, MPI_INT, MPI_MIN, world->node_comm);
    if (code != MPI_SUCCESS) {
        free(offers);
        return dtr__error_mpi(&ctx, code, "MPI_Allreduce", __FILE__, __LINE__);
    }
    snprintf(t.why, sizeof t.why, "%s", able ? "" : "no memory");
    for (int named = 0; offers != NULL && all_able && named < 2 && t.worst != SHARED && s == DTR_OK;
         named++) {
        bool more = (ways & (named ? DTR__ARENA_NAMED : DTR__ARENA_UNNAMED)) != 0;
        if (more && named && world->local_rank == 0) {
            remove_stale();
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
                 (unsigned long long)(world->arena->size[world->local_rank] >> 20),
                 world->arena->named ? ", in /dev/shm" : "");
    }
    return s;
}

dtr_status dtr__arena_open(dtr_world *world) {
    return dtr__arena_open_ways(world, DTR__ARENA_UNNAMED | DTR__ARENA_NAMED);
}

void dtr__arena_close(dtr_world *world) {
    destroy(world->arena);
    world->arena = NULL;
}

/* ---- blocks ---- */

bool dtr__arena_usable(const dtr_world *world) {
    return world->arena != NULL;
}

/* Pages of /dev/shm are taken now: touching them when it is full would raise SIGBUS. */
static bool back_pages(const dtr__arena *a, uint64_t offset, uint64_t nbytes) {
    uint64_t from = offset / SMALL_PAGE * SMALL_PAGE;
    return !a->named || nbytes == 0 ||
           fallocate(a->fd, 0, (off_t)from, (off_t)(offset + nbytes - from)) == 0;
}

void *dtr__arena_alloc(dtr_world *world, size_t nbytes, size_t align) {
    dtr__arena *a = world->arena;
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
    if (got && nbytes >= HUGE_FROM && atomic_load_explicit(&a->huge, memory_order_relaxed) &&
        dtr__huge_back(p, nbytes) == EINVAL) {
        atomic_store_explicit(&a->huge, false, memory_order_relaxed); /* a kernel without */
    }
    return p;
}

void dtr__arena_free(dtr_world *world, void *ptr) {
    dtr__arena *a = world->arena;
    uint64_t offset;
    int owner;
    if (!dtr__arena_find(world, ptr, 0, &owner, &offset) || owner != a->local_rank) {
        return;
    }
    pthread_mutex_lock(&a->lock);
    uint64_t nbytes = dtr__heap_size_of(a->heap, offset);
    if (nbytes >= HOLE_FROM) { /* before anybody else can get the range */
        uint64_t from = (offset + SMALL_PAGE - 1) / SMALL_PAGE * SMALL_PAGE;
        uint64_t to = (offset + nbytes) / SMALL_PAGE * SMALL_PAGE;
        fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                  (off_t)(to - from));
    }
    dtr__heap_give(a->heap, offset);
    pthread_mutex_unlock(&a->lock);
}

bool dtr__arena_find(const dtr_world *world, const void *ptr, size_t nbytes, int *local_rank,
                     uint64_t *offset) {
    const dtr__arena *a = world->arena;
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

void *dtr__arena_at(const dtr_world *world, int local_rank, uint64_t offset) {
    const dtr__arena *a = world->arena;
    return a->base + (uint64_t)local_rank * a->stride + offset;
}

bool dtr__arena_share(dtr_world *world, size_t nbytes, void **each, int *mpi_code) {
    uint64_t mine = UINT64_MAX, at[world->local_size];
    int here = 0;
    bool all = true;
    void *p = nbytes > 0 && dtr__arena_usable(world) ? dtr__arena_alloc(world, nbytes, 64) : NULL;
    if (p != NULL && !dtr__arena_find(world, p, nbytes, &here, &mine)) {
        mine = UINT64_MAX;
    }
    if (p != NULL) {
        memset(p, 0, nbytes);
    }
    memset(each, 0, sizeof *each * (size_t)world->local_size);
    *mpi_code = MPI_Allgather(&mine, 1, MPI_UINT64_T, at, 1, MPI_UINT64_T, world->node_comm);
    for (int i = 0; i < world->local_size && *mpi_code == MPI_SUCCESS; i++) {
        all = all && at[i] != UINT64_MAX;
    }
    for (int i = 0; i < world->local_size && *mpi_code == MPI_SUCCESS && all; i++) {
        each[i] = dtr__arena_at(world, i, at[i]);
    }
    if ((!all || *mpi_code != MPI_SUCCESS) && p != NULL) {
        dtr__arena_free(world, p);
    }
    return all && *mpi_code == MPI_SUCCESS;
}

size_t dtr__arena_used(const dtr_world *world) {
    dtr__arena *a = world->arena;
    if (a == NULL) {
        return 0;
    }
    pthread_mutex_lock(&a->lock);
    uint64_t used = dtr__heap_used(a->heap);
    pthread_mutex_unlock(&a->lock);
    return (size_t)used;
}
