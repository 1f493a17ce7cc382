/* What a module tells about itself: counters, times, texts, warnings, and the error it keeps. */
#include <inttypes.h>
#include <stdlib.h>

#include "ddp_internal.h"
#include "rt_metrics.h"
#include "rt_recording.h"

/* ---- warnings and errors ---- */

void dtr__ddp_warn(dtr_ddp *ddp, dtr__ddp_warning which, const char *fmt, ...) {
    pthread_mutex_lock(&ddp->stats_lock);
    bool first = (ddp->warned & which) == 0;
    ddp->warned |= which;
    pthread_mutex_unlock(&ddp->stats_lock);
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
    static const dtr__metric errors = { "dtr_ddp_errors_total",
                                        "Steps and calls of gradient averaging that failed." };
    dtr__metrics_add(ddp->world, &errors, 1);
    pthread_mutex_lock(&ddp->stats_lock);
    ddp->count.errors++;
    ddp->count.has_error = true;
    snprintf(ddp->count.error, sizeof ddp->count.error, "%.*s", (int)sizeof ddp->count.error - 1,
             dtr_last_error_message());
    pthread_mutex_unlock(&ddp->stats_lock);
    return s;
}

dtr_status dtr__ddp_break(dtr_ddp *ddp, dtr_status s) {
    (void)dtr__ddp_failed(ddp, s);
    /* What this rank could not start or finish others wait for, whatever the reason. */
    dtr__group_break(ddp->group, s);
    if (ddp->delayed.group != NULL) {
        dtr__group_break(ddp->delayed.group, s);
    }
    pthread_mutex_lock(&ddp->lock);
    if (ddp->failure_status == DTR_OK) {
        ddp->failure = dtr__error_save();
        ddp->failure_status = s;
    }
    atomic_store(&ddp->state, DTR__DDP_FAILED);
    pthread_mutex_unlock(&ddp->lock);
    return s;
}

/* ---- spans ---- */

void dtr__ddp_span_between(const dtr_ddp *ddp, const char *what, const char *label,
                           int64_t begin_ns, int64_t end_ns, size_t nbytes) {
    dtr__rec_span_add(ddp->world, what, label, begin_ns, end_ns, nbytes);
    if (ddp->world->trace != NULL) {
        dtr__trace_note(ddp->world->trace, what, (double)(end_ns - begin_ns) * 1e-9,
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

static void mean_count(size_t *old, size_t x, uint64_t n) {
    *old = (size_t)(((double)x + (double)*old * (double)(n - 1)) / (double)n + 0.5);
}

static void count_metrics(const dtr_ddp *ddp, const dtr_ddp_step *step) {
    static const dtr__metric steps = { "dtr_ddp_steps_total",
                                       "Synchronised steps of gradient averaging." };
    static const dtr__metric bytes = { "dtr_ddp_bytes_total", "Bytes of gradients averaged." };
    dtr__metrics_add(ddp->world, &steps, 1);
    dtr__metrics_add(ddp->world, &bytes, (double)step->bytes);
}

static void time_metrics(const dtr_ddp *ddp, const dtr_ddp_step *step) {
    static const dtr__metric of[] = {
        { "dtr_ddp_forward_seconds_total", "Forward passes of synchronised steps." },
        { "dtr_ddp_backward_seconds_total", "Backward passes of synchronised steps." },
        { "dtr_ddp_comm_seconds_total", "Time with a bucket under way." },
        { "dtr_ddp_exposed_comm_seconds_total", "The part that dtr_ddp_backward_end waited for." },
    };
    const double value[] = { step->forward_s, step->backward_s, step->comm_s,
                             step->exposed_comm_s };
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        dtr__metrics_add(ddp->world, &of[i], value[i] > 0 ? value[i] : 0);
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
    if (ddp->world->trace != NULL) {
        dtr__trace_note(ddp->world->trace, what,
                        step->forward_s + step->backward_s + step->exposed_comm_s,
                        "ddp%u step %" PRIu64 ": %zu bytes, %zu buckets, %zu collectives, forward "
                        "%.6f s, backward %.6f s, communication %.6f s, exposed %.6f s, overlap "
                        "%.3f",
                        ddp->id, n, step->bytes, step->buckets, step->collectives, step->forward_s,
                        step->backward_s, step->comm_s, step->exposed_comm_s, step->overlap);
    }
}

void dtr__ddp_count_step(dtr_ddp *ddp, const dtr_ddp_step *step) {
    bool device = dtr__ddp_on_device(ddp);
    count_metrics(ddp, step);
    pthread_mutex_lock(&ddp->stats_lock);
    dtr__ddp_counters *c = &ddp->count;
    uint64_t n = ++c->steps;
    c->last.bytes = step->bytes;
    c->last.buckets = step->buckets;
    c->last.collectives = step->collectives;
    c->unused_bytes = ddp->it_unused_bytes;
    c->copied_in_bytes = atomic_load(&ddp->copied_in);
    c->copied_out_bytes = atomic_load(&ddp->copied_out);
    mean_count(&c->average.bytes, step->bytes, n);
    mean_count(&c->average.buckets, step->buckets, n);
    mean_count(&c->average.collectives, step->collectives, n);
    if (!device) {
        add_times(c, step);
    }
    pthread_mutex_unlock(&ddp->stats_lock);
    if (!device) {
        time_metrics(ddp, step);
        trace_times(ddp, step, "ddp_step", n);
    } else if (ddp->world->trace != NULL) {
        dtr__trace_note(ddp->world->trace, "ddp_step", step->forward_s + step->backward_s,
                        "ddp%u step %" PRIu64 ": %zu bytes, %zu buckets, %zu collectives", ddp->id,
                        n, step->bytes, step->buckets, step->collectives);
    }
    dtr__ddp_timing_close(ddp, step, n);
    dtr__ddp_timing_collect(ddp);
}

void dtr__ddp_count_times(dtr_ddp *ddp, const dtr_ddp_step *step, uint64_t n) {
    time_metrics(ddp, step);
    pthread_mutex_lock(&ddp->stats_lock);
    add_times(&ddp->count, step);
    pthread_mutex_unlock(&ddp->stats_lock);
    trace_times(ddp, step, "ddp_step_times", n);
}

static dtr_ddp_stats snapshot(const dtr_ddp *ddp) {
    const dtr__ddp_counters *c = &ddp->count;
    return (dtr_ddp_stats){
        .steps = c->steps,
        .local_steps = c->local_steps,
        .forwards = c->forwards,
        .rebuilds = c->rebuilds,
        .shadow_steps = c->shadow_steps,
        .errors = c->errors,
        .buckets = ddp->n_buckets,
        .unused_bytes = c->unused_bytes,
        .last = c->last,
        .average = c->average,
        .can_set_static_graph = c->steps > 0 && ddp->used_set_constant,
        .has_error = c->has_error,
        .hook = ddp->hook.name,
        .error = c->error,
        .description = ddp->description != NULL ? ddp->description : "",
        .copied_in_bytes = c->copied_in_bytes,
        .copied_out_bytes = c->copied_out_bytes,
        .timed_steps = c->timed,
        .bucket_memory = ddp->gpu.way != NULL ? ddp->gpu.way : "",
    };
}

dtr_status dtr_ddp_get_stats(const dtr_ddp *ddp, dtr_ddp_stats *stats) {
    DTR_REQUIRE(ddp != NULL && ddp->magic == DTR__DDP_MAGIC, NULL, DTR_ERR_ARG,
                "dtr_ddp_get_stats: ddp is %s", ddp == NULL ? "NULL" : "no module");
    DTR_REQUIRE(stats != NULL, NULL, DTR_ERR_ARG, "dtr_ddp_get_stats: stats is NULL");
    DTR_REQUIRE(stats->struct_size >= sizeof stats->struct_size, NULL, DTR_ERR_ARG,
                "dtr_ddp_get_stats: stats->struct_size is %zu; set it to sizeof(dtr_ddp_stats)",
                stats->struct_size);
    dtr_ddp *d = (dtr_ddp *)(uintptr_t)ddp; /* the lock is no part of what is read */
    dtr__ddp_timing_collect(d);
    pthread_mutex_lock(&d->stats_lock);
    dtr_ddp_stats all = snapshot(ddp);
    pthread_mutex_unlock(&d->stats_lock);
    size_t given = stats->struct_size;
    all.struct_size = given;
    memset(stats, 0, given);
    memcpy(stats, &all, given < sizeof all ? given : sizeof all);
    return DTR_OK;
}

/* ---- the description ---- */

static void add_dtypes(const dtr_ddp *ddp, dtr__text *t) {
    unsigned seen = 0;
    for (size_t i = 0; i < ddp->n; i++) {
        if (ddp->params[i].value != NULL) {
            seen |= 1u << ddp->params[i].value->dtype;
        }
    }
    for (int d = 0; d <= DTR_C128; d++) {
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
    dtr__text_add(t, "options:%s%s%s%s%s%s%s%s%s%s", s->find_unused ? " find_unused" : "",
                  s->static_graph ? " static_graph" : "", s->view ? " grad_as_bucket_view" : "",
                  s->no_init_sync ? " no_init_sync" : "",
                  s->no_buffers ? " no_broadcast_buffers" : "",
                  s->skip_unused ? " skip_unused" : "", s->flags & DTR_DDP_SUM ? " sum" : "",
                  s->flags & DTR_DDP_PER_PARAM ? " per_param" : "",
                  s->flags & DTR_DDP_SMALL_LAST ? " small_last" : "",
                  s->flags & DTR_DDP_CHECK_NAN ? " check_nan" : "");
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
        snprintf(device, sizeof device, "cuda:%d", ddp->gpu.index);
    }
    dtr__text_add(t, "ranks: %d\ndevice: %s\nbackend: %s\n", ddp->size, device,
                  ddp->backend != NULL ? ddp->backend : "");
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
    const char *at = ddp->description != NULL ? strstr(ddp->description, key) : NULL;
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
    pthread_mutex_lock(&ddp->stats_lock);
    free(ddp->description_before);
    ddp->description_before = ddp->description; /* somebody may be reading it */
    ddp->description = text;
    pthread_mutex_unlock(&ddp->stats_lock);
    return DTR_OK;
}

/* ---- the plan ---- */

const dtr_plan *dtr_ddp_plan(const dtr_ddp *ddp) {
    return ddp != NULL && ddp->magic == DTR__DDP_MAGIC ? ddp->plan : NULL;
}

size_t dtr_ddp_print_plan(const dtr_ddp *ddp, char *text, size_t cap) {
    return dtr_plan_print(dtr_ddp_plan(ddp), text, cap);
}
