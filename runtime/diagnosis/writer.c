#include "diagnosis/writer.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/thread.h"

typedef struct job {
    char *bytes; /* NULL: none */
    size_t nbytes;
    mode_t mode;
    char path[4096];
    uint64_t number;
} job;

struct dtr__writer {
    pthread_mutex_t lock;   /* everything below */
    pthread_cond_t changed; /* a job, the end of one, the end of all */
    job next[DTR__WRITTEN_KINDS], now;
    uint64_t last[DTR__WRITTEN_KINDS], done[DTR__WRITTEN_KINDS];
    int code[DTR__WRITTEN_KINDS]; /* of the last one done */
    pthread_t thread;
    bool has_thread, stop;
    bool over;      /* the thread has nothing left to do with this */
    bool abandoned; /* the thread frees it */
};

dtr__writer *dtr__writer_new(void) {
    dtr__writer *w = calloc(1, sizeof *w);
    if (w != NULL) {
        pthread_condattr_t monotonic;
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->changed, &monotonic);
        pthread_condattr_destroy(&monotonic);
    }
    return w;
}

static void destroy(dtr__writer *w) {
    for (int k = 0; k < DTR__WRITTEN_KINDS; k++) {
        free(w->next[k].bytes);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ---- the thread; lock held but in between ---- */

static bool take(dtr__writer *w, int *kind) {
    for (*kind = 0; *kind < DTR__WRITTEN_KINDS; (*kind)++) {
        if (w->next[*kind].bytes != NULL) {
            w->now = w->next[*kind];
            w->next[*kind].bytes = NULL;
            return true;
        }
    }
    return false;
}

static void write_next(dtr__writer *w, int kind) {
    pthread_mutex_unlock(&w->lock);
    int code = dtr__replace_file(w->now.path, w->now.mode, w->now.bytes, w->now.nbytes) ? 0 : errno;
    free(w->now.bytes);
    pthread_mutex_lock(&w->lock);
    w->code[kind] = code == EINPROGRESS ? EIO : code;
    w->done[kind] = w->now.number;
    pthread_cond_broadcast(&w->changed);
}

static void *thread_main(void *arg) {
    dtr__writer *w = arg;
    int kind;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        if (take(w, &kind)) {
            write_next(w, kind);
        } else if (w->stop) {
            break;
        } else {
            pthread_cond_wait(&w->changed, &w->lock);
        }
    }
    w->over = true;
    bool mine = w->abandoned;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (mine) {
        destroy(w);
    }
    return NULL;
}

/* ---- those who hand over ---- */

static struct timespec after(double seconds) {
    enum { SECOND_NS = 1000000000 };
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + (int64_t)(seconds * SECOND_NS);
    t.tv_sec += (time_t)(ns / SECOND_NS);
    t.tv_nsec = (long)(ns % SECOND_NS);
    return t;
}

uint64_t dtr__writer_put(dtr__writer *w, dtr__written kind, const char *path, mode_t mode,
                         char *bytes, size_t nbytes) {
    pthread_mutex_lock(&w->lock);
    job *j = &w->next[kind];
    free(j->bytes);
    j->bytes = bytes;
    j->nbytes = nbytes;
    j->mode = mode;
    j->number = ++w->last[kind];
    snprintf(j->path, sizeof j->path, "%s", path);
    uint64_t number = j->number;
    if (!w->has_thread) {
        w->has_thread = dtr__thread_start(&w->thread, "dtr-writer", false, thread_main, w) == 0;
    }
    if (!w->has_thread) { /* then the caller waits after all */
        int of;
        (void)take(w, &of);
        write_next(w, of);
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return number;
}

int dtr__writer_wait(dtr__writer *w, dtr__written kind, uint64_t number, double limit_s) {
    const struct timespec end = after(limit_s);
    pthread_mutex_lock(&w->lock);
    int code = 0;
    while (w->done[kind] < number && code == 0) {
        code = pthread_cond_timedwait(&w->changed, &w->lock, &end);
    }
    code = w->done[kind] >= number ? w->code[kind] : EINPROGRESS;
    pthread_mutex_unlock(&w->lock);
    return code;
}

bool dtr__writer_close(dtr__writer *w, double limit_s) {
    if (w == NULL) {
        return true;
    }
    const struct timespec end = after(limit_s);
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->changed);
    for (int code = 0; w->has_thread && !w->over && code == 0;) {
        code = pthread_cond_timedwait(&w->changed, &w->lock, &end);
    }
    bool over = !w->has_thread || w->over, joined = w->has_thread && over;
    pthread_t thread = w->thread;
    w->abandoned = !over;
    pthread_mutex_unlock(&w->lock);
    if (joined) {
        pthread_join(thread, NULL);
    } else if (!over) {
        pthread_detach(thread);
        return false;
    }
    destroy(w);
    return true;
}
