/* What a module reports of itself: counters, times, texts, warnings, and the error it keeps. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "ddp_internal.h"
#include "recorder/counters.h"
#include "recorder/recording.h"

/* ---- warnings and errors ---- */

void dtr__ddp_warn(dtr_ddp *ddp, dtr__ddp_warning which, const char *fmt, ...) {
    pthread_mutex_lock(&ddp->stats.lock);
    bool first = (ddp->stats.warned & which) == 0;
    ddp->stats.warned |= which;
    pthread_mutex_unlock(&ddp->stats.lock);
    if (first) {
        char text[512];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        DTR_WARN(ddp->world, "ddp%u: %s", ddp->id, text);
    }
}

void dtr__ddp_warn_static(dtr_ddp *ddp) {
    dtr__ddp_warn(ddp, DTR__WARN_STATIC_UNUSED,
                  "static_graph and find_unused are both set; static_graph learns the unused "
                  "parameters and wins");
}

dtr_status dtr__ddp_failed(dtr_ddp *ddp, dtr_status s) {
    static const dtr__counter errors = { "dtr_ddp_errors_total",
                                         "Steps and calls of gradient averaging that failed." };
    dtr__count_add(ddp->world, &errors, 1);
    pthread_mutex_lock(&ddp->stats.lock);
    ddp->stats.count.errors++;
    ddp->stats.count.has_error = true;
    snprintf(ddp->stats.count.error, sizeof ddp->stats.count.error, "%.*s",
             (int)sizeof ddp->stats.count.error - 1, dtr_last_error_message());
    pthread_mutex_unlock(&ddp->stats.lock);
    return s;
}

void dtr__ddp_count(dtr_ddp *ddp, uint64_t *counter) {
    pthread_mutex_lock(&ddp->stats.lock);
    ++*counter;
    pthread_mutex_unlock(&ddp->stats.lock);
}

/* ---- spans ---- */

void dtr__ddp_span_between(const dtr_ddp *ddp, const char *what, const char *label,
                           int64_t begin_ns, int64_t end_ns, size_t nbytes) {
    dtr__rec_span_add(ddp->world, what, label, begin_ns, end_ns, nbytes);
    if (ddp->world->diagnosis.trace != NULL) {
        dtr__trace_note(ddp->world->diagnosis.trace, what, (double)(end_ns - begin_ns) * 1e-9,
                        "%s: %zu bytes", label, nbytes);
    }
}

void dtr__ddp_span(const dtr_ddp *ddp, const char *what, const char *label, int64_t begin_ns,
                   size_t nbytes) {
    dtr__ddp_span_between(ddp, what, label, begin_ns, dtr__stamp_ns(), nbytes);
}

/* ---- steps ---- */

/* Running mean of n values; a difference below zero is a clock's fault and skipped. */
static void mean(double *old, double x, uint64_t n) {
    if (x >= 0) {
        *old = (x + *old * (double)(n - 1)) / (double)n;
    }
}

static double positive(double s) {
    return s > 0 ? s : 0;
}

static void mean_count(size_t *old, size_t x, uint64_t n) {
    *old = (size_t)(((double)x + (double)*old * (double)(n - 1)) / (double)n + 0.5);
}

static void count_metrics(const dtr_ddp *ddp, const dtr_ddp_step *step) {
    static const dtr__counter steps = { "dtr_ddp_steps_total",
                                        "Synchronised steps of gradient averaging." };
    static const dtr__counter bytes = { "dtr_ddp_bytes_total", "Bytes of gradients averaged." };
    dtr__count_add(ddp->world, &steps, 1);
    dtr__count_add(ddp->world, &bytes, (double)step->bytes);
}

static void time_metrics(const dtr_ddp *ddp, const dtr_ddp_step *step) {
    static const dtr__counter of[] = {
        { "dtr_ddp_forward_seconds_total", "Forward passes of synchronised steps." },
        { "dtr_ddp_backward_seconds_total", "Backward passes of synchronised steps." },
        { "dtr_ddp_comm_seconds_total", "Time with a bucket under way." },
        { "dtr_ddp_exposed_comm_seconds_total", "The part that dtr_ddp_backward_end waited for." },
    };
    const double value[] = { step->forward_s, step->backward_s, step->comm_s,
                             step->exposed_comm_s };
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        dtr__count_add(ddp->world, &of[i], positive(value[i]));
    }
}

/* stats_lock is held. */
static void add_times(dtr__ddp_counters *c, const dtr_ddp_step *step) {
    uint64_t n = ++c->timed;
    c->last.forward_s = step->forward_s;
    c->last.backward_s = step->backward_s;
    c->last.comm_s = step->comm_s;
    c->last.exposed_comm_s = step->exposed_comm_s;
    c->last.overlap = step->overlap;
    mean(&c->average.forward_s, step->forward_s, n);
    mean(&c->average.backward_s, step->backward_s, n);
    mean(&c->average.comm_s, step->comm_s, n);
    mean(&c->average.exposed_comm_s, step->exposed_comm_s, n);
    mean(&c->average.overlap, step->overlap, n);
}

static void trace_times(const dtr_ddp *ddp, const dtr_ddp_step *step, const char *what,
                        uint64_t n) {
    if (ddp->world->diagnosis.trace != NULL) {
        dtr__trace_note(ddp->world->diagnosis.trace, what,
                        step->forward_s + step->backward_s + step->exposed_comm_s,
                        "ddp%u step %" PRIu64 ": %zu bytes, %zu buckets, %zu collectives, forward "
                        "%.6f s, backward %.6f s, communication %.6f s, exposed %.6f s, overlap "
                        "%.3f",
                        ddp->id, n, step->bytes, step->buckets, step->collectives, step->forward_s,
                        step->backward_s, step->comm_s, step->exposed_comm_s, step->overlap);
    }
}

uint64_t dtr__ddp_count_step(dtr_ddp *ddp, const dtr_ddp_step *step) {
    bool device = dtr__ddp_on_device(ddp);
    count_metrics(ddp, step);
    pthread_mutex_lock(&ddp->stats.lock);
    dtr__ddp_counters *c = &ddp->stats.count;
    uint64_t n = ++c->steps;
    c->last.bytes = step->bytes;
    c->last.buckets = step->buckets;
    c->last.collectives = step->collectives;
    c->unused_bytes = ddp->it.unused_bytes;
    c->copied_in_bytes = atomic_load(&ddp->it.copied_in);
    c->copied_out_bytes = atomic_load(&ddp->it.copied_out);
    mean_count(&c->average.bytes, step->bytes, n);
    mean_count(&c->average.buckets, step->buckets, n);
    mean_count(&c->average.collectives, step->collectives, n);
    if (!device) {
        add_times(c, step);
    }
    pthread_mutex_unlock(&ddp->stats.lock);
    dtr__rec_step_add(ddp->world, 1, device ? 0 : positive(step->comm_s),
                      device ? 0 : positive(step->exposed_comm_s));
    if (!device) {
        time_metrics(ddp, step);
        trace_times(ddp, step, "ddp_step", n);
    } else if (ddp->world->diagnosis.trace != NULL) {
        dtr__trace_note(ddp->world->diagnosis.trace, "ddp_step", step->forward_s + step->backward_s,
                        "ddp%u step %" PRIu64 ": %zu bytes, %zu buckets, %zu collectives", ddp->id,
                        n, step->bytes, step->buckets, step->collectives);
    }
    return n;
}

void dtr__ddp_count_times(dtr_ddp *ddp, const dtr_ddp_step *step, uint64_t n) {
    dtr__rec_step_add(ddp->world, 0, positive(step->comm_s), positive(step->exposed_comm_s));
    time_metrics(ddp, step);
    pthread_mutex_lock(&ddp->stats.lock);
    add_times(&ddp->stats.count, step);
    pthread_mutex_unlock(&ddp->stats.lock);
    trace_times(ddp, step, "ddp_step_times", n);
}

/* ---- the description ---- */

static void add_dtypes(const dtr_ddp *ddp, dtr__text *t) {
    unsigned seen = 0;
    for (size_t i = 0; i < ddp->n; i++) {
        if (ddp->params[i].value != NULL) {
            seen |= 1u << ddp->params[i].value->dtype;
        }
    }
    for (int d = 0; d < DTR__N_DTYPES; d++) {
        if (seen & 1u << d) {
            dtr__text_add(t, " %s", dtr_dtype_name((dtr_dtype)d));
        }
    }
}

static void add_sizes(const dtr_ddp *ddp, dtr__text *t) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        dtr__text_add(t, " %zu", ddp->buckets[b].nbytes);
    }
    dtr__text_add(t, "\n");
}

static void add_flags(const dtr_ddp *ddp, dtr__text *t) {
    const dtr__ddp_settings *s = &ddp->set;
    dtr__text_add(t, "options:%s%s%s%s%s%s%s%s%s%s%s", s->find_unused ? " find_unused" : "",
                  s->static_graph ? " static_graph" : "", s->view ? " grad_as_bucket_view" : "",
                  s->no_init_sync ? " no_init_sync" : "",
                  s->no_buffers ? " no_broadcast_buffers" : "",
                  s->skip_unused ? " skip_unused" : "", s->flags & DTR_DDP_SUM ? " sum" : "",
                  s->flags & DTR_DDP_PER_PARAM ? " per_param" : "",
                  s->flags & DTR_DDP_SMALL_LAST ? " small_last" : "",
                  s->flags & DTR_DDP_CHECK_NAN ? " check_nan" : "",
                  s->flags & DTR_DDP_LATE_ERRORS ? " late_errors" : "");
    if (s->has_reduce_dtype) {
        dtr__text_add(t, " reduce_dtype=%s", dtr_dtype_name(s->reduce_dtype));
    }
    if (s->has_param_dtype) {
        dtr__text_add(t, " param_dtype=%s", dtr_dtype_name(s->param_dtype));
    }
    if (s->has_buffer_dtype) {
        dtr__text_add(t, " buffer_dtype=%s", dtr_dtype_name(s->buffer_dtype));
    }
    dtr__text_add(t, "\n");
}

static void write_description(const dtr_ddp *ddp, const char *before, dtr__text *t) {
    size_t bytes = 0;
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        const dtr_tensor *v = ddp->params[ddp->trainable[k]].value;
        bytes += v->numel * dtr_dtype_size(v->dtype);
    }
    char device[32] = "cpu";
    if (dtr__ddp_on_device(ddp)) {
        snprintf(device, sizeof device, "cuda:%d", ddp->at.device);
    }
    dtr__text_add(t, "ranks: %d\ndevice: %s\nbackend: %s\n", ddp->size, device,
                  ddp->stats.backend != NULL ? ddp->stats.backend : "");
    dtr__text_add(t, "parameters: %zu, trainable %zu with %zu bytes, dtypes", ddp->n,
                  ddp->n_trainable, bytes);
    add_dtypes(ddp, t);
    dtr__text_add(t, "\nlimits:");
    for (size_t k = 0; k < ddp->set.n_limits; k++) {
        dtr__text_add(t, " %zu", ddp->set.limits[k]);
    }
    dtr__text_add(t, "\n");
    add_flags(ddp, t);
    if (before == NULL) {
        dtr__text_add(t, "bucket bytes:");
        add_sizes(ddp, t);
        return;
    }
    dtr__text_add(t, "bucket bytes before the rebuild:%s\nbucket bytes:", before);
    add_sizes(ddp, t);
    dtr__text_add(t, "ready order:");
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        for (size_t s = 0; s < ddp->buckets[b].plan->n_slots; s++) {
            dtr__text_add(t, " %zu", ddp->buckets[b].plan->slots[s].param);
        }
    }
    dtr__text_add(t, "\n");
}

/* " 2800 80" out of the first description: what the buckets were. */
static char *sizes_before(const dtr_ddp *ddp) {
    static const char key[] = "\nbucket bytes:";
    const char *at = ddp->stats.description != NULL ? strstr(ddp->stats.description, key) : NULL;
    if (at == NULL) {
        return NULL;
    }
    at += sizeof key - 1;
    return strndup(at, strcspn(at, "\n"));
}

dtr_status dtr__ddp_describe(dtr_ddp *ddp) {
    char *before = sizes_before(ddp);
    dtr__text t = { NULL, 0, 0 };
    write_description(ddp, before, &t);
    size_t cap = t.len + 1;
    char *text = malloc(cap);
    if (text != NULL) {
        t = (dtr__text){ text, cap, 0 };
        write_description(ddp, before, &t);
    }
    free(before);
    DTR_REQUIRE(text != NULL, NULL, DTR_ERR_NOMEM, "no memory to describe a module");
    pthread_mutex_lock(&ddp->stats.lock);
    free(ddp->stats.description_before);
    ddp->stats.description_before = ddp->stats.description; /* somebody may be reading it */
    ddp->stats.description = text;
    pthread_mutex_unlock(&ddp->stats.lock);
    return DTR_OK;
}
