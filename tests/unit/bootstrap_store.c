#include "bootstrap_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void store_new(store *s) {
    memset(s, 0, sizeof *s);
    strcpy(s->folder, "/tmp/dtr-bootstrap-XXXXXX");
    if (mkdtemp(s->folder) == NULL) {
        perror("mkdtemp");
        exit(1);
    }
}

void store_remove(const store *s) {
    DIR *d = opendir(s->folder);
    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        (void)unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d != NULL) {
        closedir(d);
    }
    rmdir(s->folder);
}

/* The file of a key; keys have one '/'. */
static void path_of(const store *s, const char *key, const char *end, char *path, size_t cap) {
    snprintf(path, cap, "%s/%s%s", s->folder, key, end);
    for (char *c = path + strlen(s->folder) + 1; *c != '\0'; c++) {
        *c = (char)(*c == '/' ? '_' : *c);
    }
}

static dtr_status put(void *arg, const char *key, const void *value, size_t nbytes) {
    char path[256], new[256];
    path_of(arg, key, "", path, sizeof path);
    path_of(arg, key, ".new", new, sizeof new);
    const int fd = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const bool ok = fd >= 0 && nbytes <= 4096 && strlen(key) < 64 &&
                    write(fd, value, nbytes) == (ssize_t)nbytes && rename(new, path) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return ok ? DTR_OK : DTR_ERR_IO;
}

static bool ends_with(const char *key, const char *end) {
    const size_t n = end != NULL ? strlen(end) : 0;
    return n > 0 && strlen(key) >= n && strcmp(key + strlen(key) - n, end) == 0;
}

static dtr_status get(void *arg, const char *key, void *value, size_t cap, size_t *nbytes,
                      double timeout_s) {
    const store *s = arg;
    char path[256];
    if (ends_with(key, s->die_at_key)) {
        kill(getpid(), SIGKILL);
    }
    const double limit_s = s->patience_s > 0 ? s->patience_s : timeout_s, end = now_s() + limit_s;
    path_of(s, key, "", path, sizeof path);
    int fd;
    while ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) {
        if (now_s() > end) {
            return DTR_ERR_TIMEOUT;
        }
        const struct timespec nap = { 0, 1000000 };
        nanosleep(&nap, NULL);
    }
    const ssize_t got = read(fd, value, cap);
    close(fd);
    *nbytes = got > 0 ? (size_t)got : 0;
    if (ends_with(key, s->spoil_key) && *nbytes >= 2 * sizeof(int32_t)) {
        memcpy((char *)value + sizeof(int32_t), &(int32_t){ -1 }, sizeof(int32_t));
    }
    return got >= 0 ? DTR_OK : DTR_ERR_IO;
}

dtr_bootstrap store_bootstrap(store *s, const char *prefix, int rank, int size) {
    dtr_bootstrap b = DTR_BOOTSTRAP_INIT;
    b.rank = rank;
    b.size = size;
    b.prefix = prefix;
    b.arg = s;
    b.put = put;
    b.get = get;
    return b;
}

int store_run(int n, int stopped, void (*fn)(int rank, int n, void *arg), void *arg) {
    enum { MOST = 16, LIMIT_S = 120 };
    pid_t pid[MOST];
    int bad = 0;
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            alarm(LIMIT_S);
            fn(r, n, arg);
            _exit(0);
        }
    }
    for (int k = 0; k < n; k++) {
        const int r = stopped < 0 ? k : (stopped + 1 + k) % n; /* the stopped one last */
        int status = 0;
        if (r == stopped) {
            kill(pid[r], SIGKILL);
        }
        while (waitpid(pid[r], &status, 0) < 0 && errno == EINTR) {
        }
        const bool by_signal = WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL;
        if (by_signal) {
            fprintf(stderr, "rank %d was ended by signal %d\n", r, WTERMSIG(status));
        }
        bad += by_signal || (WIFEXITED(status) && WEXITSTATUS(status) != 0);
    }
    return bad;
}
