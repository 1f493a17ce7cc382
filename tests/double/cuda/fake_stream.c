/* Streams: one worker thread each, tasks run in the order they were given. Events: a number counts
 * up with each record; a wait takes the number that is current when it is called. Neither is ever
 * freed, so that a use after its destruction is seen. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct task {
    struct task *next;
    const char *name;
    void (*run)(void *arg);
    void *arg;
} task;

struct fake_stream {
    fake_stream *next; /* list lock */
    int number, device, priority;
    unsigned flags;
    bool is_default;
    bool gone; /* lock: destroyed by the program */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    task *first, **last;    /* lock */
    uint64_t pushed, ended; /* lock: tasks */
};

typedef struct fake_event {
    struct fake_event *next; /* list lock */
    int device;
    bool timed;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool gone, held;   /* lock */
    uint64_t recorded; /* lock: number of the newest record, */
    uint64_t
        *open; /* lock: ... and those that have not come, in no order: a later one on another */
    size_t n_open, cap; /* lock: ... stream may come first, which ends no wait for an earlier one */
    int64_t at_ns;      /* lock: of the newest record that has come */
    uint64_t at;        /* lock: its number */
} fake_event;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static fake_stream *streams;                /* list lock */
static fake_event *events;                  /* list lock */
static fake_stream *defaults[FAKE_DEVICES]; /* list lock */
static int n_streams;                       /* list lock */

/* ---- workers ---- */

static void *work(void *arg) {
    fake_stream *s = arg;
    for (;;) {
        fake_lock(&s->lock);
        while (s->first == NULL && !s->gone) {
            fake_wait(&s->moved, &s->lock);
        }
        task *t = s->first;
        if (t == NULL) { /* destroyed, and nothing left to do */
            fake_unlock(&s->lock);
            return NULL;
        }
        s->first = t->next;
        s->last = s->first == NULL ? &s->first : s->last;
        fake_unlock(&s->lock);
        dtr_fake_cuda_delay();
        int64_t begin = fake_now_ns();
        fake_after(t);
        t->run(t->arg);
        fake_trace(s->number, t->name, begin, fake_now_ns());
        fake_before(s); /* the task happens before what finds the stream drained */
        fake_lock(&s->lock);
        s->ended++;
        fake_wake(&s->moved);
        fake_unlock(&s->lock);
        free(t);
    }
}

static fake_stream *stream_new(int device, unsigned flags, int priority) {
    fake_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        fake_die("no memory for a stream");
    }
    s->device = device;
    s->flags = flags;
    s->priority = priority;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    s->number = n_streams++;
    s->next = streams;
    streams = s;
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, s) != 0) {
        fake_die("cannot start the worker of stream %d", s->number);
    }
    pthread_detach(thread);
    return s;
}

static bool is_default(cudaStream_t h) {
    return h == NULL || h == cudaStreamLegacy || h == cudaStreamPerThread;
}

fake_stream *fake_stream_of(cudaStream_t handle) {
    fake_stream *s = NULL;
    fake_lock(&list_lock);
    if (is_default(handle)) {
        int device = fake_device();
        if (defaults[device] == NULL) {
            defaults[device] = stream_new(device, 0, 0);
            defaults[device]->is_default = true;
        }
        s = defaults[device];
    } else {
        for (s = streams; s != NULL && s != (fake_stream *)(void *)handle;) {
            s = s->next;
        }
    }
    fake_unlock(&list_lock);
    if (s != NULL) {
        fake_lock(&s->lock);
        bool gone = s->gone;
        fake_unlock(&s->lock);
        s = gone ? NULL : s;
    }
    return s;
}

int fake_stream_device(const fake_stream *s) {
    return s->device;
}

void fake_stream_strict(const fake_stream *s, const char *work_name) {
    if (s->is_default && fake_set()->strict) {
        fake_die("%s in the default stream (strict mode)", work_name);
    }
}

bool fake_stream_is_default(const fake_stream *s) {
    return s->is_default;
}

cudaError_t fake_push(fake_stream *s, const char *name, void (*run)(void *arg), void *arg,
                      size_t nbytes) {
    if (fake_capture_push(s, name, run, arg, nbytes)) {
        return cudaSuccess;
    }
    task *t = malloc(sizeof *t);
    if (t == NULL) {
        fake_die("no memory for a task");
    }
    *t = (task){ .name = name, .run = run, .arg = arg };
    fake_before(t); /* what the program did before the call happens before the task */
    fake_lock(&s->lock);
    *s->last = t;
    s->last = &t->next;
    s->pushed++;
    fake_wake(&s->moved);
    fake_unlock(&s->lock);
    return cudaSuccess;
}

void fake_drain(fake_stream *s) {
    fake_lock(&s->lock);
    uint64_t until = s->pushed;
    while (s->ended < until) {
        fake_wait(&s->moved, &s->lock);
    }
    fake_unlock(&s->lock);
    fake_after(s);
}

void fake_drain_device(int device) {
    fake_lock(&list_lock);
    fake_stream *first = streams;
    fake_unlock(&list_lock);
    for (fake_stream *s = first; s != NULL;
         s = s->next) { /* links of listed streams are constant */
        if (s->device == device) {
            fake_drain(s);
        }
    }
}

API int dtr_fake_cuda_enqueue(void *stream, const char *name, void (*run)(void *arg), void *arg,
                              size_t nbytes) {
    fake_stream *s = fake_stream_of((cudaStream_t)stream);
    if (s == NULL) {
        return fake_result(cudaErrorInvalidResourceHandle);
    }
    fake_stream_strict(s, name);
    dtr_fake_cuda_log(name, "stream=%p", stream);
    return fake_push(s, name, run, arg, nbytes);
}

void fake_cost(int64_t begin_ns, size_t nbytes) {
    const fake_settings *set = fake_set();
    if (set->cost_bytes_per_s <= 0) {
        return;
    }
    double seconds = set->cost_latency_s + (double)nbytes / set->cost_bytes_per_s;
    int64_t end = begin_ns + (int64_t)(seconds * 1e9);
    struct timespec t = { .tv_sec = end / 1000000000, .tv_nsec = end % 1000000000 };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {
    }
}

/* ---- calls on streams ---- */

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    cudaError_t e =
        fake_enter("cudaStreamCreateWithPriority", "flags=%u priority=%d", flags, priority);
    if (e != cudaSuccess) {
        return fake_result(e);
    }
    priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    fake_lock(&list_lock);
    *stream = (cudaStream_t)(void *)stream_new(fake_device(), flags, priority);
    fake_unlock(&list_lock);
    dtr_fake_cuda_log("cudaStreamCreateWithPriority", "gives stream=%p", (void *)*stream);
    return cudaSuccess;
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

API cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaError_t e = fake_enter("cudaStreamDestroy", "stream=%p", (void *)stream);
    fake_stream *s = e == cudaSuccess ? fake_stream_of(stream) : NULL;
    if (s == NULL || s->is_default) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidResourceHandle);
    }
    fake_lock(&s->lock);
    s->gone = true;
    fake_wake(&s->moved);
    fake_unlock(&s->lock);
    return cudaSuccess;
}

static cudaError_t find_stream(const char *function, cudaStream_t stream, fake_stream **s) {
    cudaError_t e = fake_enter(function, "stream=%p", (void *)stream);
    if (e == cudaSuccess) {
        *s = fake_stream_of(stream);
        e = *s != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle;
    }
    return fake_result(e);
}

API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    fake_stream *s = NULL;
    cudaError_t e = find_stream("cudaStreamGetPriority", stream, &s);
    if (e == cudaSuccess) {
        *priority = s->priority;
    }
    return e;
}

API cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    fake_stream *s = NULL;
    cudaError_t e = find_stream("cudaStreamGetDevice", stream, &s);
    e = e == cudaSuccess ? fake_capture_stream_use("cudaStreamGetDevice", s) : e; /* as seen */
    if (e == cudaSuccess) {
        *device = s->device;
    }
    return e;
}

API cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    fake_stream *s = NULL;
    cudaError_t e = find_stream("cudaStreamGetFlags", stream, &s);
    if (e == cudaSuccess) {
        *flags = s->flags;
    }
    return e;
}

API cudaError_t cudaStreamQuery(cudaStream_t stream) {
    fake_stream *s = NULL;
    cudaError_t e = find_stream("cudaStreamQuery", stream, &s);
    e = e == cudaSuccess ? fake_capture_stream_use("cudaStreamQuery", s) : e;
    if (e == cudaSuccess) {
        fake_lock(&s->lock);
        e = s->ended == s->pushed ? cudaSuccess : cudaErrorNotReady;
        fake_unlock(&s->lock);
        if (e == cudaSuccess) {
            fake_after(s);
        }
    }
    return fake_result(e);
}

API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    fake_stream *s = NULL;
    cudaError_t e = find_stream("cudaStreamSynchronize", stream, &s);
    e = e == cudaSuccess ? fake_capture_stream_use("cudaStreamSynchronize", s) : e;
    if (e == cudaSuccess) {
        fake_drain(s);
    }
    return fake_result(e);
}

typedef struct host_call {
    cudaHostFn_t fn;
    void *arg;
} host_call;

static void run_host(void *arg) {
    host_call c = *(host_call *)arg;
    free(arg);
    c.fn(c.arg);
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg) {
    fake_stream *s = NULL;
    cudaError_t e = find_stream("cudaLaunchHostFunc", stream, &s);
    if (e != cudaSuccess) {
        return e;
    }
    fake_stream_strict(s, "a host function");
    host_call *c = malloc(sizeof *c);
    if (c == NULL) {
        return fake_result(cudaErrorMemoryAllocation);
    }
    *c = (host_call){ fn, arg };
    return fake_push(s, "host", run_host, c, sizeof *c);
}

/* ---- events ---- */

static fake_event *event_of(cudaEvent_t handle) {
    fake_event *e = NULL;
    fake_lock(&list_lock);
    for (e = events; e != NULL && e != (fake_event *)(void *)handle;) {
        e = e->next;
    }
    fake_unlock(&list_lock);
    if (e != NULL) {
        fake_lock(&e->lock);
        bool gone = e->gone;
        fake_unlock(&e->lock);
        e = gone ? NULL : e;
    }
    return e;
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    cudaError_t e = fake_enter("cudaEventCreateWithFlags", "flags=%u", flags);
    if (e != cudaSuccess) {
        return fake_result(e);
    }
    fake_event *v = calloc(1, sizeof *v);
    if (v == NULL) {
        return fake_result(cudaErrorMemoryAllocation);
    }
    v->device = fake_device();
    v->timed = (flags & cudaEventDisableTiming) == 0;
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->moved, NULL);
    fake_lock(&list_lock);
    v->next = events;
    events = v;
    fake_unlock(&list_lock);
    *event = (cudaEvent_t)(void *)v;
    dtr_fake_cuda_log("cudaEventCreateWithFlags", "gives event=%p", (void *)v);
    return cudaSuccess;
}

API cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

static cudaError_t find_event(const char *function, cudaEvent_t event, fake_event **v) {
    cudaError_t e = fake_enter(function, "event=%p", (void *)event);
    if (e == cudaSuccess) {
        *v = event_of(event);
        e = *v != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle;
    }
    return fake_result(e);
}

API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    fake_event *v = NULL;
    cudaError_t e = find_event("cudaEventDestroy", event, &v);
    if (e == cudaSuccess) {
        fake_lock(&v->lock);
        v->gone = true;
        fake_unlock(&v->lock);
    }
    return e;
}

typedef struct mark {
    fake_event *event;
    uint64_t number;
} mark;

/* Whether that record has come; lock held. */
static bool has_come(const fake_event *v, uint64_t number) {
    size_t i = 0;
    while (i < v->n_open && v->open[i] != number) {
        i++;
    }
    return i == v->n_open;
}

/* lock held */
static uint64_t open_record(fake_event *v) {
    if (v->n_open == v->cap) {
        v->cap = 2 * v->cap + 4;
        v->open = realloc(v->open, v->cap * sizeof *v->open);
        if (v->open == NULL) {
            fake_die("no memory for the records of an event");
        }
    }
    v->open[v->n_open++] = ++v->recorded;
    return v->recorded;
}

/* lock held */
static void close_record(fake_event *v, uint64_t number) {
    for (size_t i = 0; i < v->n_open; i++) {
        if (v->open[i] == number) {
            v->open[i] = v->open[--v->n_open];
            break;
        }
    }
    if (number > v->at) {
        v->at = number;
        v->at_ns = fake_now_ns();
    }
}

static mark *mark_new(fake_event *v, uint64_t number) {
    mark *m = malloc(sizeof *m);
    if (m == NULL) {
        fake_die("no memory for a task");
    }
    *m = (mark){ v, number };
    return m;
}

static void run_record(void *arg) {
    mark m = *(mark *)arg;
    free(arg);
    fake_lock(&m.event->lock);
    while (m.event->held) {
        fake_wait(&m.event->moved, &m.event->lock);
    }
    fake_before(m.event); /* what the stream has done happens before what waits for the record */
    close_record(m.event, m.number);
    fake_wake(&m.event->moved);
    fake_unlock(&m.event->lock);
}

static void run_wait(void *arg) {
    mark m = *(mark *)arg;
    free(arg);
    fake_lock(&m.event->lock);
    while (!has_come(m.event, m.number)) {
        fake_wait(&m.event->moved, &m.event->lock);
    }
    fake_unlock(&m.event->lock);
    fake_after(m.event);
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    cudaError_t e =
        fake_enter("cudaEventRecord", "event=%p stream=%p", (void *)event, (void *)stream);
    fake_event *v = e == cudaSuccess ? event_of(event) : NULL;
    fake_stream *s = v != NULL ? fake_stream_of(stream) : NULL;
    if (s == NULL || s->device != v->device) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidResourceHandle);
    }
    if (fake_capture_record(s, v)) {
        return cudaSuccess;
    }
    fake_lock(&v->lock);
    mark *m = mark_new(v, open_record(v));
    fake_unlock(&v->lock);
    return fake_push(s, "record", run_record, m, sizeof *m);
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    cudaError_t e = fake_enter("cudaStreamWaitEvent", "stream=%p event=%p flags=%u", (void *)stream,
                               (void *)event, flags);
    fake_event *v = e == cudaSuccess ? event_of(event) : NULL;
    fake_stream *s = v != NULL ? fake_stream_of(stream) : NULL;
    if (s == NULL) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidResourceHandle);
    }
    fake_lock(&v->lock);
    uint64_t number = v->recorded;
    fake_unlock(&v->lock);
    if (fake_capture_wait(s, v, number > 0, &e)) {
        return fake_result(e);
    }
    return number == 0 ? cudaSuccess
                       : fake_push(s, "wait", run_wait, mark_new(v, number), sizeof(mark));
}

API cudaError_t cudaEventQuery(cudaEvent_t event) {
    fake_event *v = NULL;
    cudaError_t e = find_event("cudaEventQuery", event, &v);
    e = e == cudaSuccess ? fake_capture_event_use("cudaEventQuery", v) : e;
    if (e == cudaSuccess) {
        fake_lock(&v->lock);
        e = has_come(v, v->recorded) ? cudaSuccess : cudaErrorNotReady;
        fake_unlock(&v->lock);
        if (e == cudaSuccess) {
            fake_after(v);
        }
    }
    return fake_result(e);
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    fake_event *v = NULL;
    cudaError_t e = find_event("cudaEventSynchronize", event, &v);
    e = e == cudaSuccess ? fake_capture_event_use("cudaEventSynchronize", v) : e;
    if (e == cudaSuccess) {
        fake_lock(&v->lock);
        for (uint64_t number = v->recorded; !has_come(v, number);) {
            fake_wait(&v->moved, &v->lock);
        }
        fake_unlock(&v->lock);
        fake_after(v);
    }
    return fake_result(e);
}

/* Nanoseconds of the newest record; cudaErrorInvalidResourceHandle without timing or record. */
static cudaError_t time_of(fake_event *v, int64_t *at) {
    fake_lock(&v->lock);
    cudaError_t e = !v->timed || v->recorded == 0 ? cudaErrorInvalidResourceHandle
                    : !has_come(v, v->recorded)   ? cudaErrorNotReady
                                                  : cudaSuccess;
    *at = v->at_ns;
    fake_unlock(&v->lock);
    return e;
}

API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    fake_event *a = NULL, *b = NULL;
    cudaError_t e = find_event("cudaEventElapsedTime", start, &a);
    b = e == cudaSuccess ? event_of(end) : NULL;
    if (b == NULL) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidResourceHandle);
    }
    int64_t from = 0, to = 0;
    e = time_of(a, &from);
    e = e == cudaSuccess ? time_of(b, &to) : e;
    if (e == cudaSuccess) {
        *ms = (float)((double)(to - from) * 1e-6);
    }
    return fake_result(e);
}

/* ---- for tests ---- */

API int dtr_fake_cuda_hold(void *event, int hold) {
    fake_event *v = event_of((cudaEvent_t)event);
    if (v == NULL) {
        return cudaErrorInvalidResourceHandle;
    }
    fake_lock(&v->lock);
    v->held = hold != 0;
    fake_wake(&v->moved);
    fake_unlock(&v->lock);
    return cudaSuccess;
}

API size_t dtr_fake_cuda_live(const char *what) {
    size_t n = 0;
    if (strcmp(what, "device") == 0 || strcmp(what, "pinned") == 0) {
        return fake_blocks(*what == 'p', false);
    }
    bool want_streams = strcmp(what, "stream") == 0;
    fake_lock(&list_lock);
    for (fake_stream *s = want_streams ? streams : NULL; s != NULL; s = s->next) {
        n += !s->gone && !s->is_default ? 1 : 0;
    }
    for (fake_event *v = want_streams ? NULL : events; v != NULL; v = v->next) {
        n += !v->gone ? 1 : 0;
    }
    fake_unlock(&list_lock);
    return n;
}
