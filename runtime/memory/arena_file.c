/* Making and mapping the file behind an arena. Ranks find each other's file through /proc, or,
 * where the kernel forbids that, by a name in /dev/shm that is removed as soon as all have it. A
 * job killed in between leaves names behind; the next one of the same user removes them. */
#include "arena_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define NAME_PREFIX "dtr-arena-" /* of names in /dev/shm; 16 digits of the nonce follow */
#define HEX "0123456789abcdef"
#define LEAST_SIZE ((uint64_t)64 << 20) /* smaller only when asked for, or in /dev/shm */
enum { NONCE_DIGITS = 16 };

outcome dtr__arena_outcome(int code) {
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

uint64_t dtr__arena_file_size(const dtr_world *world, int k, bool *last) {
    uint64_t wanted = wanted_size(world), least = wanted < LEAST_SIZE ? wanted : LEAST_SIZE;
    uint64_t size = k < 32 ? wanted >> (2 * k) : 0;
    *last = size <= least;
    size = *last ? least : size;
    size = (size + DTR__ARENA_GRAIN - 1) / DTR__ARENA_GRAIN * DTR__ARENA_GRAIN;
    return size < 2 * DTR__ARENA_GRAIN ? 2 * DTR__ARENA_GRAIN : size;
}

/* Names that a killed job has left: their maker would hold the lock, which ends with it. */
void dtr__arena_files_sweep(void) {
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

/* A new file that dtr__arena_files_sweep of another job leaves alone: locked, and not yet taken for
 * one. */
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
        share = share / DTR__ARENA_GRAIN * DTR__ARENA_GRAIN;
        o->size = share >= 2 * DTR__ARENA_GRAIN && share < o->size ? share : o->size;
    }
    return fd;
}

int dtr__arena_file_make(offer *o, bool named, int local_size, char *why, size_t cap) {
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
    o->outcome = dtr__arena_outcome(errno);
    snprintf(why, cap, "%s of %llu MiB: %s", step, (unsigned long long)(o->size >> 20),
             strerror(errno));
    if (fd >= 0) {
        close(fd);
    }
    return -1;
}

/* ---- the others' ---- */

int dtr__arena_file_open(const offer *o) {
    char path[64];
    if (o->name[0] != '\0') {
        return shm_open(o->name, O_RDWR, 0600);
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", o->pid, o->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Map a file over its place in the reserved stretch. */
outcome dtr__arena_file_map(char *at, const offer *o, int fd, bool own, char *why, size_t cap) {
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
        return dtr__arena_outcome(errno);
    }
    if (memcmp(at, o->nonce, sizeof o->nonce) != 0) {
        snprintf(why, cap, "the memory of process %d is not visible here", o->pid);
        return NO_WAY;
    }
    if (!own) {
        madvise(at, o->size, MADV_DONTDUMP); /* its owner's core file has it */
    }
    /* A forked child would write into the ranks' memory without a word; without the mapping it
     * ends by SIGSEGV instead, and keeps no memory of the node. */
    madvise(at, o->size, MADV_DONTFORK);
    return SHARED;
}
