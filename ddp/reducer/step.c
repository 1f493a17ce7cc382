/* Optimizer steps per bucket: as soon as a bucket has its average, the caller's function runs for
 * its parameters, in launch order and never twice at a time, on whichever thread saw it end. On a
 * device it runs when the bucket has been launched, on the thread that did that, and queues its
 * work on a stream of the module that goes on behind the average: nobody waits there. Where the
 * average goes through host memory no stream can wait, and the function runs in backward_end. */
#include <stdlib.h>

#include "device/device.h"
#include "engine/engine.h"
#include "reducer_internal.h"

/* ---- registration ---- */

static dtr_status check(dtr_ddp *ddp, const char *entry, dtr_ddp_step_fn fn, const size_t *params,
                        size_t n) {
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    DTR_REQUIRE(fn != NULL || n == 0, &ctx, DTR_ERR_ARG, "%s: fn is NULL for %zu parameters", entry,
                n);
    DTR_REQUIRE(params != NULL || n == 0, &ctx, DTR_ERR_ARG, "%s: params is NULL, n is %zu", entry,
                n);
    DTR_REQUIRE(atomic_load(&ddp->state) == DTR__DDP_IDLE, &ctx, DTR_ERR_STATE,
                "%s: %s; set steps between iterations", entry,
                dtr__ddp_state_name(atomic_load(&ddp->state)));
    DTR_REQUIRE(n == 0 || !ddp->set.has_param_dtype, &ctx, DTR_ERR_STATE,
                "%s: the module was created with param_dtype %s: step after dtr_ddp_backward_end, "
                "with dtr_ddp_full_grad",
                entry, dtr_dtype_name(ddp->set.param_dtype));
    DTR_TRY(dtr__ddp_refuse_sharded(ddp, entry));
    for (size_t k = 0; k < n; k++) {
        size_t i = params[k];
        DTR_TRY(dtr__ddp_trainable_index(ddp, entry, &i));
        DTR_REQUIRE(!ddp->params[i].sparse, &ctx, DTR_ERR_UNSUPPORTED,
                    "%s: parameter '%s' (%zu) is sparse: step it after dtr_ddp_backward_end", entry,
                    ddp->params[i].name, i);
    }
    return n > 0 ? dtr__ddp_device_step_open(ddp) : DTR_OK;
}

dtr_status dtr_ddp_set_step(dtr_ddp *ddp, dtr_ddp_step_fn fn, void *state, const size_t *params,
                            size_t n) {
    static const char entry[] = "dtr_ddp_set_step";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    pthread_mutex_lock(&ddp->lock);
    dtr_status s = check(ddp, entry, fn, params, n);
    if (s == DTR_OK) {
        for (size_t k = 0; k < ddp->n_trainable; k++) {
            ddp->params[ddp->trainable[k]].step = false;
        }
        for (size_t k = 0; k < n; k++) {
            ddp->params[ddp->params[params[k]].same_as].step = true;
        }
        ddp->reducer->step.fn = n > 0 ? fn : NULL;
        ddp->reducer->step.state = state;
    }
    pthread_mutex_unlock(&ddp->lock);
    return dtr__ddp_result(ddp, s);
}

void dtr__ddp_step_rearm(dtr_ddp *ddp) {
    ddp->reducer->step.next = ddp->reducer->step.n_stepped = 0;
    ddp->reducer->step.failed = false;
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        ddp->params[ddp->trainable[k]].stepped = false;
    }
}

/* ---- stepping; step.lock is held ---- */

/* The error names which parameters have been changed. */
static void note_failure(dtr_ddp *ddp, size_t i, dtr_status s) {
    enum { NAMED = 6 };
    char list[200] = "none";
    char cause[160];
    dtr__text t = { list, sizeof list, 0 };
    size_t named = 0;
    snprintf(cause, sizeof cause, "%s", dtr_last_error_message());
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        const dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        if (p->stepped && named++ < NAMED) {
            dtr__text_add(&t, "%s'%.24s'", named > 1 ? ", " : "", p->name);
        }
    }
    if (named > NAMED) {
        dtr__text_add(&t, " and %zu more", named - NAMED);
    }
    ddp->reducer->step.failed = true;
    dtr__ddp_note_caller(
        ddp, s, i,
        "the step of parameter '%s' (%zu) failed on rank %d with %s%s%s; stepped on that "
        "rank before: %s",
        ddp->params[i].name, i, ddp->rank, dtr_status_name(s), cause[0] ? ": " : "", cause, list);
}

static void step_param(dtr_ddp *ddp, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    if (!p->step || p->stepped || ddp->reducer->step.failed || ddp->it.shadow) {
        return;
    }
    void *stream = dtr__ddp_on_device(ddp) ? ddp->gpu->step_stream : NULL;
    dtr_status s = ddp->reducer->step.fn(ddp->reducer->step.state, i, p->value, p->slot, stream);
    if (s < 0) {
        note_failure(ddp, i, s);
        return;
    }
    p->stepped = true;
    ddp->reducer->step.n_stepped++;
}

/* Parameters this rank used, or that are known to be used somewhere; the others wait for the map.
 */
static bool known_used(const dtr_ddp *ddp, const dtr__ddp_param *p) {
    return ddp->it.mode == DTR__MODE_PLAIN || atomic_load(&p->mark) == DTR__MARK_READY ||
           (ddp->it.mode == DTR__MODE_STATIC && p->used_anywhere);
}

static void step_bucket(dtr_ddp *ddp, const dtr_ddp_bucket *b) {
    for (size_t s = 0; s < b->plan->n_slots; s++) {
        size_t i = b->plan->slots[s].param;
        if (known_used(ddp, &ddp->params[i])) {
            step_param(ddp, i);
        }
    }
}

/* Rows are not stepped, so nobody waits for them. */
static bool is_final(const dtr_ddp *ddp, const dtr_ddp_bucket *b) {
    return dtr__ddp_on_device(ddp) ? b->sparse != NULL || atomic_load(&b->averaged)
                                   : atomic_load(&b->finished_ns) != 0;
}

static void step_finished(dtr_ddp *ddp) {
    while (ddp->reducer->step.next < ddp->n_buckets &&
           is_final(ddp, &ddp->buckets[ddp->reducer->step.next])) {
        step_bucket(ddp, &ddp->buckets[ddp->reducer->step.next++]);
    }
}

/* ---- from outside ---- */

void dtr__ddp_step_run(dtr_ddp *ddp) {
    dtr__ddp_stepper *st = &ddp->reducer->step;
    if (st->fn == NULL) {
        return;
    }
    int seen;
    atomic_fetch_add(&st->calls, 1);
    do {
        if (pthread_mutex_trylock(&st->lock) != 0) {
            return; /* the holder does it again */
        }
        do {
            seen = atomic_load(&st->calls);
            step_finished(ddp);
        } while (seen != atomic_load(&st->calls));
        pthread_mutex_unlock(&st->lock);
    } while (seen != atomic_load(&st->calls));
}

/* The steps' stream goes on behind what `stream` holds now. False: it does not, which is noted. */
static bool follow_stream(dtr_ddp *ddp, void *stream) {
    return !dtr__ddp_on_device(ddp) ||
           dtr__ddp_note_last(ddp, dtr__ddp_device_order(ddp, stream, ddp->gpu->step_stream),
                              DTR__NONE) == DTR_OK;
}

void dtr__ddp_step_averaged(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    if (ddp->reducer->step.fn != NULL && follow_stream(ddp, ddp->at.stream)) {
        atomic_store(&b->averaged, true);
        dtr__ddp_step_run(ddp);
    }
}

static void bucket_ended(dtr_work *work, dtr_status status, void *arg) {
    dtr_ddp *ddp = arg;
    (void)work;
    (void)status; /* finished_ns is set after success only */
    dtr__ddp_step_run(ddp);
    atomic_fetch_sub(&ddp->reducer->step.callbacks, 1);
}

/* What no stream can wait for is stepped in backward_end; what fails is not. */
static void order_behind(const dtr_ddp *ddp, dtr_ddp_bucket *b) {
    dtr_status s = DTR_OK;
    bool ordered = dtr__work_order_stream(b->work, ddp->gpu->step_stream, &s);
    atomic_store(&b->averaged, ordered && s == DTR_OK);
}

void dtr__ddp_step_follow(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    if (ddp->reducer->step.fn == NULL || b->work == NULL) {
        return;
    }
    if (dtr__ddp_on_device(ddp)) {
        order_behind(ddp, b);
        return;
    }
    atomic_fetch_add(&ddp->reducer->step.callbacks, 1);
    if (dtr_work_on_complete(b->work, bucket_ended, ddp) < 0) {
        atomic_fetch_sub(&ddp->reducer->step.callbacks, 1); /* backward_end does it */
    }
}

void dtr__ddp_step_finish(dtr_ddp *ddp) {
    if (ddp->reducer->step.fn == NULL) {
        return;
    }
    dtr__backoff pause = { 0 };
    while (atomic_load(&ddp->reducer->step.callbacks) > 0) {
        dtr__backoff_pause(ddp->world, &pause);
    }
    pthread_mutex_lock(&ddp->reducer->step.lock);
    if (follow_stream(ddp, ddp->out.stream)) {
        step_finished(ddp);
    } else {
        ddp->reducer->step.failed = true;
    }
    pthread_mutex_unlock(&ddp->reducer->step.lock);
}

void dtr__ddp_step_lead(dtr_ddp *ddp) {
    if (ddp->reducer->step.fn != NULL && dtr__ddp_on_device(ddp)) {
        dtr_status s = dtr__ddp_device_order(ddp, ddp->gpu->step_stream, ddp->out.stream);
        (void)dtr__ddp_note_last(ddp, s, DTR__NONE);
    }
}

void dtr__ddp_step_rest(dtr_ddp *ddp) {
    if (ddp->reducer->step.fn == NULL) {
        return;
    }
    pthread_mutex_lock(&ddp->reducer->step.lock);
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        const dtr_plan_bucket *plan = ddp->buckets[b].plan;
        for (size_t s = 0; s < plan->n_slots; s++) {
            size_t i = plan->slots[s].param;
            if (ddp->params[i].used_anywhere) {
                step_param(ddp, i);
            }
        }
    }
    pthread_mutex_unlock(&ddp->reducer->step.lock);
}
