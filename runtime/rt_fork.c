#include "rt_fork.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

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
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void) {
    (void)pthread_atfork(before_fork, after_fork, in_child);
}

void dtr__private_fd_begin(void) {
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
}

static bool make_room(void) {
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
    if (fd >= 0 && make_room()) {
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
