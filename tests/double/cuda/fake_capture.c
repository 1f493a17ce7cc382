/* Graph capture: which streams record instead of run, what a graph holds, and calls that would ruin
 * a capture. A graph is the list of its tasks in the order in which they were recorded, and a
 * launch runs them in that order on one stream; whether the program had ordered its streams well is
 * judged while it records: each stream has a clock of what it comes after, and the end of a capture
 * fails where a stream that took part was not waited for. */
#include "fake.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CAPTURES = 16, MEMBERS = 16, MARKS = 256 };

typedef struct node {
    const char *name;
    void (*run)(void *arg);
    void *arg; /* the node's own, copied for each run */
    size_t nbytes;
} node;

typedef struct graph {
    node *nodes;
    size_t n, room;
    fake_held *held;
} graph;

typedef struct clocks {
    unsigned at[MEMBERS];
} clocks;

/* A capture under way, or one whose marked events are still about. */
typedef struct capture {
    unsigned id; /* 0: free */
    bool active, invalid;
    enum cudaStreamCaptureMode mode;
    pid_t thread; /* that began it */
    graph *recorded;
    int n_members;
    fake_stream *member[MEMBERS]; /* the first is the one it began with */
    clocks clock[MEMBERS];
} capture;

/* An event that was last recorded in a capture. */
typedef struct captured_mark {
    const void *event; /* NULL: free */
    unsigned capture;
    clocks clock;
} captured_mark;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static capture captures[CAPTURES];   /* lock */
static captured_mark marks[MARKS];   /* lock */
static unsigned last_id;             /* lock */
static int n_disturbed;              /* lock */
static _Atomic int n_active, n_mark; /* nothing to look for while both are 0 */
static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* ---- looking up; lock held ---- */

static int member_index(const capture *c, const fake_stream *s) {
    for (int i = 0; i < c->n_members; i++) {
        if (c->member[i] == s) {
            return i;
        }
    }
    return -1;
}

static capture *capture_of(const fake_stream *s) {
    for (int i = 0; i < CAPTURES; i++) {
        if (captures[i].active && member_index(&captures[i], s) >= 0) {
            return &captures[i];
        }
    }
    return NULL;
}

static capture *capture_numbered(unsigned id) {
    for (int i = 0; i < CAPTURES; i++) {
        if (captures[i].active && captures[i].id == id) {
            return &captures[i];
        }
    }
    return NULL;
}

static captured_mark *mark_of(const void *event) {
    for (int i = 0; i < MARKS && atomic_load(&n_mark) > 0; i++) {
        if (marks[i].event == event) {
            return &marks[i];
        }
    }
    return NULL;
}

/* ---- disturbances ---- */

static void note_disturbed(const char *function, const char *why) {
    fake_lock(&lock);
    n_disturbed++;
    fake_unlock(&lock);
    fprintf(stderr, "stand-in CUDA: %s on thread %d disturbs a capture: %s\n", function,
            (int)gettid(), why);
    dtr_fake_cuda_log("disturbs-capture", "%s: %s", function, why);
}

static bool may_disturb(const char *function) {
    static const char *const unsafe[] = {
        "cudaMalloc",     "cudaFree",        "cudaHostAlloc",         "cudaFreeHost",
        "cudaEventQuery", "cudaStreamQuery", "cudaEventSynchronize",  "cudaStreamSynchronize",
        "cudaMemcpy",     "cudaMemset",      "cudaDeviceSynchronize", NULL
    };
    int i = 0;
    while (unsafe[i] != NULL && strcmp(unsafe[i], function) != 0) {
        i++;
    }
    return unsafe[i] != NULL;
}

/* As CUDA has it: a capture in global mode forbids these calls to threads of global mode, one in
 * thread-local mode to the thread that captures; a relaxed thread may do anything. */
cudaError_t fake_capture_enter(const char *function) {
    if (atomic_load(&n_active) == 0 || thread_mode == cudaStreamCaptureModeRelaxed ||
        !may_disturb(function)) {
        return cudaSuccess;
    }
    bool hit = false;
    fake_lock(&lock);
    for (int i = 0; i < CAPTURES; i++) {
        capture *c = &captures[i];
        bool own = c->thread == gettid() && c->mode != cudaStreamCaptureModeRelaxed;
        bool other =
            c->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
        if (c->active && (own || other)) {
            c->invalid = hit = true;
        }
    }
    fake_unlock(&lock);
    if (hit) {
        note_disturbed(function, "such a call is not allowed while a stream captures");
    }
    return hit ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t fake_capture_stream_use(const char *function, const fake_stream *s) {
    if (atomic_load(&n_active) == 0) {
        return cudaSuccess;
    }
    fake_lock(&lock);
    capture *c = capture_of(s);
    if (c != NULL) {
        c->invalid = true;
    }
    fake_unlock(&lock);
    if (c != NULL) {
        note_disturbed(function, "the stream captures and runs nothing");
    }
    return c != NULL ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t fake_capture_event_use(const char *function, const void *event) {
    if (atomic_load(&n_mark) == 0) {
        return cudaSuccess;
    }
    fake_lock(&lock);
    captured_mark *m = mark_of(event);
    capture *c = m != NULL ? capture_numbered(m->capture) : NULL;
    if (c != NULL) {
        c->invalid = true;
    }
    fake_unlock(&lock);
    if (m != NULL) {
        note_disturbed(function, "the event was last recorded in a capture");
    }
    return m != NULL ? cudaErrorCapturedEvent : cudaSuccess;
}

API int dtr_fake_cuda_disturbed(void) {
    fake_lock(&lock);
    int n = n_disturbed;
    fake_unlock(&lock);
    return n;
}

/* ---- recording ---- */

static void add_node(graph *g, node n) {
    if (g->n == g->room) {
        g->room = 2 * g->room + 16;
        g->nodes = realloc(g->nodes, g->room * sizeof *g->nodes);
        if (g->nodes == NULL) {
            fake_die("no memory for a graph");
        }
    }
    g->nodes[g->n++] = n;
}

bool fake_capture_push(fake_stream *s, const char *name, void (*run)(void *arg), void *arg,
                       size_t nbytes) {
    if (atomic_load(&n_active) == 0) {
        return false;
    }
    fake_lock(&lock);
    capture *c = capture_of(s);
    if (c != NULL) {
        if (nbytes == 0) {
            fake_die("%s on a capturing stream: its argument cannot be copied", name);
        }
        int i = member_index(c, s);
        fake_before(arg); /* what was recorded happens before what is made of it */
        add_node(c->recorded, (node){ name, run, arg, nbytes });
        c->clock[i].at[i]++;
    }
    fake_unlock(&lock);
    return c != NULL;
}

bool fake_capture_record(const fake_stream *s, const void *event) {
    if (atomic_load(&n_active) == 0 && atomic_load(&n_mark) == 0) {
        return false;
    }
    fake_lock(&lock);
    capture *c = capture_of(s);
    captured_mark *m = mark_of(event);
    if (c != NULL) {
        for (int i = 0; i < MARKS && m == NULL; i++) {
            m = marks[i].event == NULL ? &marks[i] : NULL;
        }
        if (m == NULL) {
            fake_die("more than %d events were recorded in captures", MARKS);
        }
        if (m->event == NULL) {
            atomic_fetch_add(&n_mark, 1);
        }
        *m = (captured_mark){ event, c->id, c->clock[member_index(c, s)] };
    } else if (m != NULL) {
        m->event = NULL;
        atomic_fetch_sub(&n_mark, 1);
    }
    fake_unlock(&lock);
    return c != NULL;
}

static void merge(clocks *into, const clocks *from) {
    for (int i = 0; i < MEMBERS; i++) {
        into->at[i] = into->at[i] > from->at[i] ? into->at[i] : from->at[i];
    }
}

/* lock held. The stream becomes part of the capture, if it is of none. */
static cudaError_t join(capture *c, fake_stream *s, const captured_mark *m) {
    capture *other = capture_of(s);
    if (c == NULL || (other != NULL && other != c)) {
        return cudaErrorStreamCaptureIsolation;
    }
    if (other == NULL) {
        if (c->n_members == MEMBERS) {
            fake_die("more than %d streams take part in a capture", MEMBERS);
        }
        c->member[c->n_members++] = s;
    }
    merge(&c->clock[member_index(c, s)], &m->clock);
    return cudaSuccess;
}

bool fake_capture_wait(fake_stream *s, const void *event, bool recorded, cudaError_t *e) {
    if (atomic_load(&n_active) == 0 && atomic_load(&n_mark) == 0) {
        return false;
    }
    *e = cudaSuccess;
    fake_lock(&lock);
    capture *own = capture_of(s);
    const captured_mark *m = mark_of(event);
    if (m != NULL) {
        *e = join(capture_numbered(m->capture), s, m);
    } else if (own != NULL && recorded) {
        *e = cudaErrorStreamCaptureIsolation; /* a graph cannot wait for what is outside it */
    }
    if (*e != cudaSuccess && own != NULL) {
        own->invalid = true;
    }
    fake_unlock(&lock);
    return m != NULL || own != NULL;
}

/* ---- CUDA's calls ---- */

static void *copy_argument(const node *n) {
    void *p = malloc(n->nbytes);
    if (p == NULL) {
        fake_die("no memory for a task");
    }
    fake_after(n->arg);
    memcpy(p, n->arg, n->nbytes);
    fake_before(p);
    return p;
}

static graph *copy_graph(const graph *from) {
    graph *g = calloc(1, sizeof *g);
    if (g == NULL) {
        fake_die("no memory for a graph");
    }
    for (size_t i = 0; i < from->n; i++) {
        node n = from->nodes[i];
        n.arg = copy_argument(&n);
        add_node(g, n);
    }
    fake_hold_same(&g->held, from->held);
    return g;
}

static void free_graph(graph *g) {
    for (size_t i = 0; i < g->n; i++) {
        fake_after(g->nodes[i].arg);
        free(g->nodes[i].arg);
    }
    fake_let_go(g->held);
    free(g->nodes);
    free(g);
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    cudaError_t e = fake_enter("cudaThreadExchangeStreamCaptureMode", "mode=%d", (int)*mode);
    if (e == cudaSuccess) {
        enum cudaStreamCaptureMode before = thread_mode;
        thread_mode = *mode;
        *mode = before;
    }
    return fake_result(e);
}

/* lock held */
static cudaError_t begin(fake_stream *s, enum cudaStreamCaptureMode mode) {
    int at = 0;
    while (at < CAPTURES && captures[at].active) {
        at++;
    }
    if (capture_of(s) != NULL || at == CAPTURES) {
        return cudaErrorIllegalState;
    }
    graph *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return cudaErrorMemoryAllocation;
    }
    captures[at] = (capture){ .id = ++last_id,
                              .active = true,
                              .mode = mode,
                              .thread = gettid(),
                              .recorded = g,
                              .n_members = 1,
                              .member = { s } };
    atomic_fetch_add(&n_active, 1);
    return cudaSuccess;
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    cudaError_t e =
        fake_enter("cudaStreamBeginCapture", "stream=%p mode=%d", (void *)stream, (int)mode);
    fake_stream *s = e == cudaSuccess ? fake_stream_of(stream) : NULL;
    if (s == NULL || fake_stream_is_default(s)) {
        return fake_result(e != cudaSuccess ? e
                           : s != NULL      ? cudaErrorStreamCaptureUnsupported
                                            : cudaErrorInvalidResourceHandle);
    }
    fake_lock(&lock);
    e = begin(s, mode);
    fake_unlock(&lock);
    return fake_result(e);
}

/* lock held; ends the capture in any case but that of a wrong caller */
static cudaError_t end(capture *c, const fake_stream *s, graph **made) {
    if (c == NULL) {
        return cudaErrorIllegalState;
    }
    if (c->member[0] != s) {
        c->invalid = true;
        return cudaErrorStreamCaptureUnmatched;
    }
    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != gettid()) {
        c->invalid = true;
        return cudaErrorStreamCaptureWrongThread;
    }
    cudaError_t e = c->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    for (int i = 1; i < c->n_members && e == cudaSuccess; i++) {
        bool joined = c->clock[0].at[i] == c->clock[i].at[i];
        e = joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
    }
    if (e == cudaSuccess) {
        *made = c->recorded;
    } else {
        free_graph(c->recorded);
    }
    c->active = false;
    atomic_fetch_sub(&n_active, 1);
    return e;
}

API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    cudaError_t e = fake_enter("cudaStreamEndCapture", "stream=%p", (void *)stream);
    fake_stream *s = e == cudaSuccess ? fake_stream_of(stream) : NULL;
    if (s == NULL) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidResourceHandle);
    }
    graph *made = NULL;
    fake_lock(&lock);
    e = end(capture_of(s), s, &made);
    fake_unlock(&lock);
    *out = (cudaGraph_t)(void *)made;
    return fake_result(e);
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    cudaError_t e = fake_enter("cudaStreamIsCapturing", "stream=%p", (void *)stream);
    fake_stream *s = e == cudaSuccess ? fake_stream_of(stream) : NULL;
    if (s == NULL) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidResourceHandle);
    }
    fake_lock(&lock);
    const capture *c = atomic_load(&n_active) > 0 ? capture_of(s) : NULL;
    *status = c == NULL    ? cudaStreamCaptureStatusNone
              : c->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    fake_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                         unsigned long long *id, cudaGraph_t *out,
                                         const cudaGraphNode_t **from,
                                         const cudaGraphEdgeData **edges, size_t *n) {
    cudaError_t e = fake_enter("cudaStreamGetCaptureInfo", "stream=%p", (void *)stream);
    fake_stream *s = e == cudaSuccess ? fake_stream_of(stream) : NULL;
    if (s == NULL || id != NULL || from != NULL || edges != NULL || n != NULL) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidValue);
    }
    fake_lock(&lock);
    const capture *c = capture_of(s);
    *status = c == NULL    ? cudaStreamCaptureStatusNone
              : c->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    *out = c != NULL ? (cudaGraph_t)(void *)c->recorded : NULL;
    fake_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaGraphRetainUserObject(cudaGraph_t g, cudaUserObject_t o, unsigned refs,
                                          unsigned flags) {
    cudaError_t e = fake_enter("cudaGraphRetainUserObject", "graph=%p", (void *)g);
    if (e == cudaSuccess && (g == NULL || refs != 1 || flags != cudaGraphUserObjectMove)) {
        e = cudaErrorInvalidValue;
    }
    if (e == cudaSuccess) {
        fake_lock(&lock);
        fake_hold(&((graph *)(void *)g)->held, (void *)o);
        fake_unlock(&lock);
    }
    return fake_result(e);
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g,
                                     unsigned long long flags) {
    cudaError_t e = fake_enter("cudaGraphInstantiate", "graph=%p flags=%llu", (void *)g, flags);
    if (e == cudaSuccess && g == NULL) {
        e = cudaErrorInvalidValue;
    }
    if (e == cudaSuccess) {
        *exec = (cudaGraphExec_t)(void *)copy_graph((const graph *)(void *)g);
    }
    return fake_result(e);
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    cudaError_t e =
        fake_enter("cudaGraphLaunch", "exec=%p stream=%p", (void *)exec, (void *)stream);
    const graph *g = (const graph *)(void *)exec;
    fake_stream *s = e == cudaSuccess && g != NULL ? fake_stream_of(stream) : NULL;
    if (s == NULL) {
        return fake_result(e != cudaSuccess ? e : cudaErrorInvalidValue);
    }
    for (size_t i = 0; i < g->n; i++) {
        const node *n = &g->nodes[i];
        fake_push(s, n->name, n->run, copy_argument(n), n->nbytes);
    }
    return cudaSuccess;
}

API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    cudaError_t e = fake_enter("cudaGraphExecDestroy", "exec=%p", (void *)exec);
    if (e == cudaSuccess && exec != NULL) {
        free_graph((graph *)(void *)exec);
    }
    return fake_result(e);
}

API cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    cudaError_t e = fake_enter("cudaGraphDestroy", "graph=%p", (void *)g);
    if (e == cudaSuccess && g != NULL) {
        free_graph((graph *)(void *)g);
    }
    return fake_result(e);
}

API int dtr_fake_cuda_capturing(void *stream) {
    fake_stream *s = atomic_load(&n_active) > 0 ? fake_stream_of((cudaStream_t)stream) : NULL;
    fake_lock(&lock);
    bool yes = s != NULL && capture_of(s) != NULL;
    fake_unlock(&lock);
    return yes;
}
