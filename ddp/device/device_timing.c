/* Times of steps on a CUDA device. The host only queues events there, so what it measures itself is
 * how fast it queues. A timed step records events where its parts begin and end, and is counted by
 * a later call that finds them all done; nobody waits for them. */
#include <stdlib.h>

#include "device.h"

enum { FIRST_STEPS = 10, MOST_WAITING = 16 };

typedef struct dtr__ddp_sample {
    struct dtr__ddp_sample *next;
    uint64_t n; /* number of the step */
    dtr_ddp_step step;
    void *at[DTR__N_POINTS];
    bool marked[DTR__N_POINTS];
    size_t n_buckets, n_ready, n_done, cap; /* counted: recorded in this step */
    void **ready, **done;                   /* [cap] events */
    _Atomic bool bad;                       /* an event failed: the step is not counted */
} dtr__ddp_sample;

/* ---- samples ---- */

static void sample_free(const dtr_ddp *ddp, dtr__ddp_sample *s) {
    const dtr__device_ops *ops = ddp->gpu->ops;
    for (int k = 0; k < DTR__N_POINTS; k++) {
        if (s->at[k] != NULL) {
            (void)ops->event_free(ddp->at.device, s->at[k]);
        }
    }
    for (size_t b = 0; b < s->cap; b++) {
        if (s->ready[b] != NULL) {
            (void)ops->event_free(ddp->at.device, s->ready[b]);
        }
        if (s->done[b] != NULL) {
            (void)ops->event_free(ddp->at.device, s->done[b]);
        }
    }
    free(s->ready);
    free(s->done);
    free(s);
}

static bool grow(dtr__ddp_sample *s, size_t n) {
    for (int side = 0; side < 2 && n > s->cap; side++) {
        void ***list = side == 0 ? &s->ready : &s->done;
        void **grown = realloc(*list, n * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        *list = grown;
    }
    for (; s->cap < n; s->cap++) {
        s->ready[s->cap] = s->done[s->cap] = NULL;
    }
    return true;
}

static dtr__ddp_sample *take(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    pthread_mutex_lock(&g->lock);
    dtr__ddp_sample *s = g->idle;
    if (s != NULL) {
        g->idle = s->next;
    }
    bool full = g->n_waiting >= MOST_WAITING;
    pthread_mutex_unlock(&g->lock);
    s = s == NULL && !full ? calloc(1, sizeof *s) : s;
    if (s == NULL) {
        return NULL; /* the step is not timed */
    }
    memset(s->marked, 0, sizeof s->marked);
    s->bad = !grow(s, ddp->n_buckets);
    s->n_buckets = ddp->n_buckets;
    s->n_ready = s->n_done = 0;
    return s;
}

/* ---- one step ---- */

static bool due(const dtr_ddp *ddp) {
    uint64_t every = dtr__opt_number(&ddp->world->options, DTR__OPT_DDP_STATS_EVERY);
    uint64_t n =
        ddp->stats.count.steps + 1; /* written by the thread that runs the iterations only */
    return ddp->it.sync && !ddp->it.eval && (n <= FIRST_STEPS || (every > 0 && n % every == 0));
}

static void record(dtr_ddp *ddp, void **event, void *stream) {
    const dtr__ddp_gpu *g = ddp->gpu;
    int code = *event != NULL ? 0 : g->ops->event_new(g->index, true, event);
    code = code == 0 ? g->ops->event_record(g->index, *event, stream) : code;
    ddp->gpu->now->bad = ddp->gpu->now->bad || code != 0;
}

/* Of the open iteration; NULL: it is not timed. */
static dtr__ddp_sample *current(const dtr_ddp *ddp) {
    return ddp->gpu != NULL ? ddp->gpu->now : NULL;
}

void dtr__ddp_timing_open(dtr_ddp *ddp, dtr__ddp_point point, void *stream) {
    if (!dtr__ddp_on_device(ddp)) {
        return;
    }
    if (point == DTR__AT_FORWARD) { /* one before may have been dropped */
        dtr__ddp_timing_close(ddp, NULL, 0);
    }
    if (ddp->gpu->now == NULL && due(ddp)) {
        ddp->gpu->now = take(ddp);
    }
    dtr__ddp_timing_mark(ddp, point, stream);
}

void dtr__ddp_timing_mark(dtr_ddp *ddp, dtr__ddp_point point, void *stream) {
    dtr__ddp_sample *s = current(ddp);
    if (s != NULL) {
        record(ddp, &s->at[point], stream);
        s->marked[point] = true;
    }
}

void dtr__ddp_timing_ready(dtr_ddp *ddp, size_t b) {
    dtr__ddp_sample *s = current(ddp);
    if (s != NULL && b < s->n_buckets && !s->bad) {
        record(ddp, &s->ready[b], ddp->at.stream);
        s->n_ready++;
    }
}

/* A stream of its own goes behind each work, so that its end is seen whatever else is queued. */
void dtr__ddp_timing_done(dtr_ddp *ddp, size_t b, dtr_work *work) {
    dtr__ddp_gpu *g = ddp->gpu;
    dtr__ddp_sample *s = current(ddp);
    if (s == NULL || b >= s->n_buckets || s->bad) {
        return;
    }
    if (work != NULL && g->timing_stream == NULL) {
        s->bad = g->ops->stream_new(g->index, false, &g->timing_stream) != 0;
    }
    if (work != NULL && !s->bad) { /* the wait that follows reports a failure */
        s->bad = dtr_work_wait_stream(work, g->timing_stream) < 0;
    }
    if (!s->bad) {
        record(ddp, &s->done[b], work != NULL ? g->timing_stream : g->stream);
        s->n_done++;
    }
}

void dtr__ddp_timing_close(dtr_ddp *ddp, const dtr_ddp_step *step, uint64_t n) {
    dtr__ddp_gpu *g = ddp->gpu;
    dtr__ddp_sample *s = current(ddp), **at = NULL;
    if (s == NULL) {
        return;
    }
    at = &g->idle;
    g->now = NULL;
    bool whole = step != NULL && !s->bad && s->marked[DTR__AT_OPEN] && s->marked[DTR__AT_ENTER] &&
                 s->n_ready == s->n_done;
    if (whole) {
        s->step = *step;
        s->n = n;
    }
    pthread_mutex_lock(&g->lock);
    if (whole) {
        for (at = &g->waiting; *at != NULL; at = &(*at)->next) {
        }
        g->n_waiting++;
    }
    s->next = *at;
    *at = s;
    pthread_mutex_unlock(&g->lock);
}

/* ---- what the device has done ---- */

/* 0 when all is done, not_ready, or an error. */
static int query(const dtr_ddp *ddp, const dtr__ddp_sample *s) {
    const dtr__ddp_gpu *g = ddp->gpu;
    int code = 0;
    for (int k = 0; k < DTR__N_POINTS && code == 0; k++) {
        code = s->marked[k] ? g->ops->event_query(g->index, s->at[k]) : 0;
    }
    for (size_t b = s->n_done; b-- > 0 && code == 0;) { /* the last one is the latest */
        code = g->ops->event_query(g->index, s->done[b]);
        code = code == 0 ? g->ops->event_query(g->index, s->ready[b]) : code;
    }
    return code;
}

static double between(const dtr_ddp *ddp, void *from, void *to) {
    float ms = 0;
    return ddp->gpu->ops->event_elapsed(from, to, &ms) == 0 ? ms * 1e-3 : 0;
}

/* Time with a bucket under way, and the part of it after `enter`: they start in index order. */
static void flights(const dtr_ddp *ddp, const dtr__ddp_sample *s, void *base, double enter,
                    dtr_ddp_step *step) {
    double end = 0, late = 0;
    for (size_t b = 0; b < s->n_done; b++) {
        double from = between(ddp, base, s->ready[b]), to = between(ddp, base, s->done[b]);
        from = from > end ? from : end;
        step->comm_s += to > from ? to - from : 0;
        from = from > enter ? from : enter;
        late += to > from ? to - from : 0;
        end = to > end ? to : end;
    }
    step->exposed_comm_s = late < step->comm_s ? late : step->comm_s;
    step->overlap = step->comm_s > 0 ? 1 - step->exposed_comm_s / step->comm_s : 1;
}

static void count(dtr_ddp *ddp, dtr__ddp_sample *s) {
    bool forward = s->marked[DTR__AT_FORWARD] && s->marked[DTR__AT_FORWARD_END];
    void *base = s->at[forward ? DTR__AT_FORWARD_END : DTR__AT_OPEN];
    double enter = between(ddp, base, s->at[DTR__AT_ENTER]);
    dtr_ddp_step step = s->step;
    if (forward) { /* else the host's own time, or 0 */
        step.forward_s = between(ddp, s->at[DTR__AT_FORWARD], base);
    }
    step.backward_s = enter > 0 ? enter : 0;
    step.comm_s = 0;
    flights(ddp, s, base, enter, &step);
    dtr__ddp_count_times(ddp, &step, s->n);
}

/* The oldest sample whose events are all done; *drop: one of them failed. */
static dtr__ddp_sample *finished(dtr_ddp *ddp, bool *drop) {
    dtr__ddp_gpu *g = ddp->gpu;
    dtr__ddp_sample *s = g->waiting;
    int code = s != NULL ? query(ddp, s) : g->ops->not_ready;
    if (code == g->ops->not_ready) {
        return NULL;
    }
    *drop = code != 0;
    g->waiting = s->next;
    g->n_waiting--;
    return s;
}

void dtr__ddp_timing_collect(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    while (dtr__ddp_on_device(ddp)) {
        bool drop = false;
        pthread_mutex_lock(&g->lock);
        dtr__ddp_sample *s = finished(ddp, &drop);
        pthread_mutex_unlock(&g->lock);
        if (s == NULL) {
            return;
        }
        if (!drop) {
            count(ddp, s);
        }
        pthread_mutex_lock(&g->lock);
        s->next = g->idle;
        g->idle = s;
        pthread_mutex_unlock(&g->lock);
    }
}

void dtr__ddp_timing_free(dtr_ddp *ddp) {
    dtr__ddp_gpu *g = ddp->gpu;
    dtr__ddp_timing_close(ddp, NULL, 0);
    for (int k = 0; k < 2; k++) {
        dtr__ddp_sample **list = k == 0 ? &g->waiting : &g->idle;
        while (*list != NULL) {
            dtr__ddp_sample *s = *list;
            *list = s->next;
            sample_free(ddp, s);
        }
    }
    if (g->timing_stream != NULL) {
        (void)g->ops->stream_free(g->index, g->timing_stream);
        g->timing_stream = NULL;
    }
}
