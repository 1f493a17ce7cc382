#include "base/private_fd.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

static const _Atomic uint32_t always = 1;
const _Atomic uint32_t *dtr__own_process = &always;

static _Atomic uint32_t *page;        /* NULL before the first world, or without memory */
static _Atomic uint32_t not_page = 1; /* then */
static _Atomic int first_rank = -1;   /* of the process that was forked */
static _Atomic int first_pid;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held over every fork */
static int *fds, n_fds, cap_fds;                         /* lock */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&lock);
}

/* Only what is safe between fork and exec of a program with threads. */
static void in_child(void) {
    for (int i = 0; i < n_fds; i++) {
        close(fds[i]);
    }
    n_fds = 0;
    atomic_store(page != NULL ? page : &not_page, 0);
    pthread_mutex_unlock(&lock);
}

/* The handler alone would miss children of _Fork and clone. Where the kernel cannot clear a page in
 * them the handler does what can be done. */
static void watch_forks(void) {
    const size_t nbytes = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    page = p != MAP_FAILED ? p : NULL;
    if (page != NULL) {
        (void)madvise(page, nbytes, MADV_WIPEONFORK);
        atomic_store(page, 1);
    }
    atomic_store(&first_pid, (int)getpid());
    dtr__own_process = page != NULL ? page : &not_page;
    (void)pthread_atfork(before_fork, after_fork, in_child);
}

void dtr__fork_watch(int world_rank) {
    pthread_once(&once, watch_forks);
    int none = -1;
    (void)atomic_compare_exchange_strong(&first_rank, &none, world_rank);
}

dtr_status dtr__fork_error(const char *entry) {
    return DTR_FAIL(
        NULL, DTR_ERR_STATE,
        "%s%sthis process (%d) was forked from rank %d (process %d): the world, its groups, "
        "works and memory belong to that rank, and nothing of them works here. Call the "
        "library in the rank itself; a child may exec another program, or exit",
        entry != NULL ? entry : "", entry != NULL ? ": " : "", (int)getpid(),
        atomic_load(&first_rank), atomic_load(&first_pid));
}

void dtr__private_fd_begin(void) {
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
}

static bool reserve(void) {
    if (n_fds < cap_fds) {
        return true;
    }
    int cap = cap_fds > 0 ? 2 * cap_fds : 16;
    int *more = realloc(fds, (size_t)cap * sizeof *fds);
    if (more != NULL) {
        fds = more;
        cap_fds = cap;
    }
    return more != NULL;
}

int dtr__private_fd_end(int fd) {
    int code = errno;
    if (fd >= 0 && reserve()) {
        fds[n_fds++] = fd;
    } else if (fd >= 0) {
        close(fd);
        fd = -1;
        code = ENOMEM;
    }
    pthread_mutex_unlock(&lock);
    errno = code;
    return fd;
}

void dtr__private_fd_close(int fd) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_fds; i++) {
        if (fds[i] == fd) {
            fds[i--] = fds[--n_fds];
        }
    }
    close(fd);
    if (n_fds == 0) {
        free(fds);
        fds = NULL;
        cap_fds = 0;
    }
    pthread_mutex_unlock(&lock);
}
