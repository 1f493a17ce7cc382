/* The log of a world: one write per line, "[rankN]: level: text". */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/world.h"

enum { LINE_MAX_BYTES = 4096 };

struct dtr__log {
    int level; /* least severe that is logged */
    int fd;    /* STDERR_FILENO or our own file */
    void (*fn)(void *arg, int level, const char *line);
    void *arg;
    /* Lines of one world reach log_fn one at a time; recursive, because log_fn may call the
     * library. */
    pthread_mutex_t lock;
};

static const char *const level_names[] = { "error", "warning", "info", "debug" };

static _Thread_local bool never_waits;

void dtr__log_never_wait(void) {
    never_waits = true;
}

bool dtr__log_may_wait(void) {
    return !never_waits;
}

static void write_all(int fd, const char *text, size_t n) {
    struct pollfd capacity = { .fd = fd, .events = POLLOUT };
    if (never_waits && poll(&capacity, 1, 0) == 0) {
        return;
    }
    while (n > 0) {
        ssize_t done = write(fd, text, n);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return; /* there is nowhere to report it */
        }
        text += done;
        n -= (size_t)done;
    }
}

/* "%r" rank, "%h" host, "%p" pid, "%%" a per cent sign. */
void dtr__log_expand(const dtr_world *world, const char *pattern, char *path, size_t cap) {
    size_t n = 0;
    for (const char *c = pattern; *c != '\0' && n + 1 < cap; c++) {
        int added = 0;
        if (c[0] != '%' || c[1] == '\0') {
            path[n++] = *c;
            continue;
        }
        c++;
        if (*c == 'r') {
            added = snprintf(path + n, cap - n, "%d", world->rank);
        } else if (*c == 'h') {
            added = snprintf(path + n, cap - n, "%s", world->host);
        } else if (*c == 'p') {
            added = snprintf(path + n, cap - n, "%d", (int)getpid());
        } else {
            added = snprintf(path + n, cap - n, "%s%c", *c == '%' ? "" : "%", *c);
        }
        n += (size_t)added < cap - n ? (size_t)added : cap - n - 1;
    }
    path[n] = '\0';
}

dtr_status dtr__log_open(dtr_world *world, const dtr_world_options *o) {
    dtr__log *log = calloc(1, sizeof *log);
    DTR_REQUIRE(log != NULL, NULL, DTR_ERR_NOMEM, "no memory for the log");
    log->fd = STDERR_FILENO;
    log->fn = o->log_fn;
    log->arg = o->log_arg;
    log->level = (int)dtr__opt_number(&world->options, DTR__OPT_LOG);
    int debug = (int)dtr__opt_number(&world->options, DTR__OPT_DEBUG); /* off, info, detail */
    if (debug > 0 && log->level < DTR_LOG_WARN + debug) {
        log->level = DTR_LOG_WARN + debug;
    }
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&log->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    world->log = log;

    const char *pattern = dtr__opt_text(&world->options, DTR__OPT_LOG_FILE);
    if (pattern[0] != '\0' && log->fn == NULL) {
        char path[4096];
        dtr__log_expand(world, pattern, path, sizeof path);
        int fd = dtr__append_file(path);
        if (fd >= 0) {
            log->fd = fd;
        } else {
            DTR_WARN(world, "cannot open the log file %s (DTR_LOG_FILE): %s; logging to stderr",
                     path, strerror(errno));
        }
    }
    return DTR_OK;
}

void dtr__log_close(dtr_world *world) {
    dtr__log *log = world->log;
    if (log == NULL) {
        return;
    }
    world->log = NULL;
    if (log->fd != STDERR_FILENO) {
        close(log->fd);
    }
    pthread_mutex_destroy(&log->lock);
    free(log);
}

bool dtr__log_on(const dtr_world *world, int level) {
    return level <= (world != NULL && world->log != NULL ? world->log->level : DTR_LOG_WARN);
}

void dtr__log_line(const dtr_world *world, int level, const char *fmt, ...) {
    if (!dtr__log_on(world, level)) {
        return;
    }
    int saved = errno;
    const char *name = level_names[level < 0 ? 0 : level > DTR_LOG_DEBUG ? DTR_LOG_DEBUG : level];
    char line[LINE_MAX_BYTES];
    int head = world != NULL ? snprintf(line, sizeof line, "[rank%d]: %s: ", world->rank, name)
                             : snprintf(line, sizeof line, "dtr: %s: ", name);
    size_t capacity = sizeof line - (size_t)head - 1; /* one byte for the newline */
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line + head, capacity, fmt, args);
    va_end(args);
    if (n >= (int)capacity) {
        memcpy(line + head + capacity - 5, " ...", 5);
    }
    size_t length = strlen(line);
    for (size_t i = 0; i < length; i++) {
        line[i] = line[i] == '\n' ? ' ' : line[i];
    }
    const dtr__log *log = world != NULL ? world->log : NULL;
    if (log != NULL && log->fn != NULL) {
        pthread_mutex_lock(&world->log->lock);
        log->fn(log->arg, level, line);
        pthread_mutex_unlock(&world->log->lock);
    } else {
        line[length] = '\n';
        write_all(log != NULL ? log->fd : STDERR_FILENO, line, length + 1);
    }
    errno = saved;
}
