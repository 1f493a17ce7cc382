/* The trace of public calls. DTR_TRACE: one line per call, written when it returns, with one write,
 * so that ranks and threads may share a file. DTR_NVTX: a profiler's range from begin to end. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/private_fd.h"
#include "base/world.h"
#include "diagnosis/trace.h"
#include "nvtx.h"

enum { ON_BYTES = 240 };

struct dtr__trace {
    atomic_int refs; /* one of the world, one of each call under way: a call may end the world */
    int fd, rank;    /* -1: no file */
    bool nvtx;
};

typedef struct span {
    struct span *outer;
    int level;
    dtr__trace *trace;
    const char *call;
    char on[ON_BYTES];
    struct timespec wall;
    int64_t began_ns;
} span;

/* Calls of this thread under way, in the heap, because a library that is loaded at run time has
 * little thread-local memory. */
static _Thread_local span *innermost;
static _Thread_local int depth;

static void unref(dtr__trace *t) {
    if (atomic_fetch_sub(&t->refs, 1) == 1) {
        if (t->fd >= 0) {
            close(t->fd);
        }
        free(t);
    }
}

/* -1 where none is asked for, or none can be had. */
static int open_file(const dtr_world *world) {
    const char *pattern = dtr__opt_text(&world->options, DTR__OPT_TRACE);
    char path[4096];
    if (pattern[0] == '\0') {
        return -1;
    }
    dtr__log_expand(world, pattern, path, sizeof path);
    int fd = dtr__append_file(path);
    if (fd < 0) {
        DTR_WARN(world, "cannot open the trace of calls %s (DTR_TRACE): %s; calls are not traced",
                 path, strerror(errno));
    }
    return fd;
}

static bool open_nvtx(const dtr_world *world) {
    bool wanted = dtr__opt_number(&world->options, DTR__OPT_NVTX) != 0;
    if (wanted && !dtr__nvtx_open()) {
        DTR_WARN(world, "DTR_NVTX is set, but this build of the library has no NVTX: configure it "
                        "with DTR_CUDA=ON");
        return false;
    }
    return wanted;
}

dtr_status dtr__trace_open(dtr_world *world) {
    bool nvtx = open_nvtx(world);
    int fd = open_file(world);
    if (fd < 0 && !nvtx) {
        return DTR_OK;
    }
    dtr__trace *t = malloc(sizeof *t);
    if (t == NULL && fd >= 0) {
        close(fd);
    }
    DTR_REQUIRE(t != NULL, NULL, DTR_ERR_NOMEM, "no memory for the trace of calls");
    *t = (dtr__trace){ .fd = fd, .rank = world->rank, .nvtx = nvtx };
    atomic_init(&t->refs, 1);
    world->diagnosis.trace = t;
    return DTR_OK;
}

void dtr__trace_close(dtr_world *world) {
    if (world->diagnosis.trace != NULL) {
        unref(world->diagnosis.trace);
        world->diagnosis.trace = NULL;
    }
}

/* What a range is called: "dtr_allreduce world". */
static const char *range_text(const char *what, const char *on, char text[ON_BYTES]) {
    snprintf(text, ON_BYTES, "%s%s%s", what, on[0] != '\0' ? " " : "", on);
    return text;
}

static void write_line(const span *s, dtr_status status, int64_t ns) {
    char line[480];
    if (s->trace->fd < 0 || dtr__is_forked()) {
        return;
    }
    const locale_t was = dtr__point_begin();
    int n = snprintf(line, sizeof line, "%lld.%06ld\t%d\t%ld\t%d\t%s\t%s\t%s\t%.3f\n",
                     (long long)s->wall.tv_sec, s->wall.tv_nsec / 1000, s->trace->rank,
                     (long)syscall(SYS_gettid), s->level, s->call, s->on[0] != '\0' ? s->on : "-",
                     dtr_status_name(status), (double)ns * 1e-3);
    dtr__point_end(was);
    ssize_t done = write(s->trace->fd, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
    (void)done; /* a full disk must not fail the call */
}

void dtr__trace_begin(dtr__trace *trace, const char *call, const char *on) {
    /* The trace is NULL when what the call is about has ended since the caller looked. */
    span *s = trace != NULL && !dtr__is_forked() ? malloc(sizeof *s) : NULL;
    if (s != NULL) { /* else this call has no line */
        atomic_fetch_add(&trace->refs, 1);
        s->outer = innermost;
        s->level = depth;
        s->trace = trace;
        s->call = call;
        snprintf(s->on, sizeof s->on, "%s", on);
        clock_gettime(CLOCK_REALTIME, &s->wall);
        s->began_ns = dtr__now_ns();
        innermost = s;
        if (trace->nvtx) {
            char text[ON_BYTES];
            dtr__nvtx_push(range_text(call, on, text));
        }
    }
    depth++;
}

dtr_status dtr__trace_end(dtr_status status) {
    int saved = errno;
    span *s = innermost;
    depth--;
    if (s != NULL && s->level == depth) {
        write_line(s, status, dtr__now_ns() - s->began_ns);
        if (s->trace->nvtx) {
            dtr__nvtx_pop();
        }
        innermost = s->outer;
        unref(s->trace);
        free(s);
    }
    errno = saved;
    return status;
}

void dtr__trace_created(const dtr_world *world, const char *call, int64_t began_ns) {
    span s = { .level = depth, .trace = world->diagnosis.trace, .call = call };
    if (world->diagnosis.trace != NULL) {
        int64_t second = 1000000000, ns = dtr__now_ns() - began_ns;
        clock_gettime(CLOCK_REALTIME, &s.wall);
        int64_t began = s.wall.tv_sec * second + s.wall.tv_nsec - ns;
        s.wall = (struct timespec){ (time_t)(began / second), (long)(began % second) };
        write_line(&s, DTR_OK, ns);
    }
}

void dtr__trace_note(const dtr__trace *trace, const char *what, double seconds, const char *fmt,
                     ...) {
    span s = { .level = depth, .trace = (dtr__trace *)(uintptr_t)trace, .call = what };
    va_list args;
    va_start(args, fmt);
    const locale_t was = dtr__point_begin();
    (void)vsnprintf(s.on, sizeof s.on, fmt, args);
    dtr__point_end(was);
    va_end(args);
    clock_gettime(CLOCK_REALTIME, &s.wall);
    write_line(&s, DTR_OK, (int64_t)(seconds * 1e9));
}

uint64_t dtr__trace_range_begin(const dtr__trace *trace, const char *what, const char *label) {
    char text[ON_BYTES];
    return trace != NULL && trace->nvtx ? dtr__nvtx_start(range_text(what, label, text)) : 0;
}

void dtr__trace_range_end(uint64_t range) {
    if (range != 0) {
        dtr__nvtx_end(range);
    }
}
