/* The backward pass: gradients become ready on any thread, complete buckets start to travel in
 * index order. Nothing here waits for communication, and in the steady state nothing allocates. */
#include "core/call_site.h"
#include "core/team.h"
#include "device/device.h"
#include "engine/engine.h"
#include "reducer_internal.h"

static const char entry[] = "dtr_ddp_grad_ready";

/* ---- launching ---- */

static dtr_status launch_bucket(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    dtr__ddp_check_launch(ddp, b);
    DTR_TRY(dtr__ddp_device_pack(ddp, b));
    return ddp->strategy->launch(ddp, b);
}

/* On a device the steps of a bucket are queued while it travels, by the thread that launched it.
 * launch_lock is held, and given up meanwhile. */
static void step_behind(dtr_ddp *ddp) {
    if (dtr__ddp_on_device(ddp) && ddp->reducer->step.fn != NULL) {
        pthread_mutex_unlock(&ddp->reducer->launch_lock);
        dtr__ddp_step_run(ddp);
        pthread_mutex_lock(&ddp->reducer->launch_lock);
    }
}

void dtr__ddp_launch(dtr_ddp *ddp, bool all) {
    const bool learns = ddp->it.mode == DTR__MODE_LEARN || ddp->it.mode == DTR__MODE_LATE;
    if (ddp->strategy->launch == NULL || (learns && !all)) {
        return;
    }
    size_t stop = all ? ddp->n_buckets : ddp->strategy->early(ddp);
    dtr_status failed = DTR_OK;
    pthread_mutex_lock(&ddp->reducer->launch_lock);
    while (ddp->it.next < stop && ddp->reducer->launch_status == DTR_OK &&
           (all || atomic_load(&ddp->buckets[ddp->it.next].pending) == 0)) {
        dtr_ddp_bucket *b = &ddp->buckets[ddp->it.next];
        int64_t begin = dtr__stamp_ns();
        atomic_store(&b->range,
                     dtr__trace_range_begin(ddp->world->diagnosis.trace, "ddp_bucket", b->label));
        dtr_status s = launch_bucket(ddp, b);
        dtr__ddp_span(ddp, "ddp_launch", b->label, begin, b->nbytes);
        if (s < 0) {
            ddp->reducer->launch_status = failed = s;
            ddp->reducer->launch_error = dtr__error_save();
        } else {
            ddp->it.next++;
            step_behind(ddp);
        }
    }
    pthread_mutex_unlock(&ddp->reducer->launch_lock);
    if (failed < 0) { /* the others wait for that bucket, and this rank may come late to the end */
        dtr__group_break(ddp->group, failed);
    }
}

/* ---- one gradient ---- */

/* The gradient exists and is in its slot. */
dtr_status dtr__ddp_put(dtr_ddp *ddp, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    dtr_tensor *grad;
    if (p->sparse) {
        return dtr__ddp_sparse_put(ddp, i);
    }
    dtr_status s = dtr__ddp_note_last(ddp, dtr__ddp_grad_get(ddp, i, &grad), i);
    if (s < 0) {
        dtr__ddp_fill_zero(ddp, p);
        return s;
    }
    dtr__ddp_copy_in(ddp, p);
    if (ddp->reducer->check_writes) {
        p->seen = dtr__ddp_grad_hash(ddp, p);
    }
    dtr__ddp_check_nan(ddp, i);
    return DTR_OK;
}

static bool is_trigger(const dtr_ddp *ddp, const dtr__ddp_param *p) {
    return ddp->reducer->delayed.n > 0 && p == &ddp->params[ddp->reducer->delayed.trigger];
}

static void count_ready(dtr_ddp *ddp, dtr__ddp_param *p) {
    if (is_trigger(ddp, p)) {
        dtr__ddp_delayed_launch(ddp);
    }
    size_t before =
        atomic_fetch_sub_explicit(&ddp->buckets[p->bucket].pending, 1, memory_order_acq_rel);
    dtr__ddp_check_pending(ddp, before);
    if (before == 1) {
        dtr__ddp_launch(ddp, false);
    }
}

static void mark_used(dtr_ddp *ddp, dtr__ddp_param *p) {
    uint64_t stamp = atomic_fetch_add_explicit(&ddp->it.stamps, 1, memory_order_relaxed) + 1;
    atomic_store_explicit(&p->stamp, stamp, memory_order_relaxed);
    atomic_store_explicit(&p->used, true, memory_order_relaxed);
    atomic_store_explicit(&p->defined, true, memory_order_relaxed);
}

static dtr_status not_open(dtr_ddp *ddp, size_t i, uint32_t mark) {
    const dtr__ddp_param *p = &ddp->params[i];
    if (mark == DTR__MARK_LISTED) {
        return dtr__ddp_note(ddp, DTR_ERR_STATE, i,
                             "parameter '%s' (%zu) became ready on rank %d, although it was listed "
                             "as unused at dtr_ddp_forward_end; take it out of that list",
                             p->name, i, ddp->rank);
    }
    return dtr__ddp_note(ddp, DTR_ERR_STATE, i,
                         "parameter '%s' (%zu) became ready twice on rank %d in one iteration; "
                         "report it once, when its gradient is final, or set static_graph",
                         p->name, i, ddp->rank);
}

static dtr_status ready_once(dtr_ddp *ddp, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    uint32_t mark = DTR__MARK_OPEN;
    if (!atomic_compare_exchange_strong(&p->mark, &mark, DTR__MARK_READY)) {
        return not_open(ddp, i, mark);
    }
    dtr_status s = dtr__ddp_put(ddp, i);
    mark_used(ddp, p);
    count_ready(ddp, p);
    return s;
}

/* static_graph after the first iteration: the learned number of calls, the last one counts. */
static dtr_status ready_counted(dtr_ddp *ddp, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    uint32_t calls = atomic_fetch_add(&p->calls, 1) + 1;
    if (calls > p->learned) {
        return dtr__ddp_note(ddp, DTR_ERR_GRAPH, i,
                             "parameter '%s' (%zu) was reported %u times on rank %d, but %u times "
                             "in the first iteration: with static_graph that must not change",
                             p->name, i, (unsigned)calls, ddp->rank, (unsigned)p->learned);
    }
    if (calls < p->learned) {
        return DTR_OK;
    }
    dtr_status s = dtr__ddp_put(ddp, i);
    mark_used(ddp, p);
    atomic_store(&p->mark, DTR__MARK_READY);
    count_ready(ddp, p);
    return s;
}

/* The trigger, where it is delayed itself: it stands for all of them. */
static dtr_status ready_trigger(dtr_ddp *ddp, size_t i) {
    uint32_t mark = DTR__MARK_OPEN;
    if (!atomic_compare_exchange_strong(&ddp->params[i].mark, &mark, DTR__MARK_READY)) {
        return not_open(ddp, i, mark);
    }
    dtr__ddp_delayed_launch(ddp);
    return DTR_OK;
}

static dtr_status ready(dtr_ddp *ddp, size_t i, int state) {
    dtr__ddp_param *p = &ddp->params[i];
    if (p->delayed && state != DTR__DDP_LOCAL) {
        return ready_trigger(ddp, i);
    }
    if (state == DTR__DDP_LOCAL) {
        atomic_store(&p->used, true);
        atomic_store(&p->defined, true);
        if (is_trigger(ddp, p)) {
            dtr__ddp_delayed_define(ddp);
        }
        return DTR_OK;
    }
    if (ddp->it.mode == DTR__MODE_LEARN || ddp->it.mode == DTR__MODE_LATE) {
        atomic_fetch_add(&p->calls, 1);
        mark_used(ddp, p);
        return DTR_OK;
    }
    return ddp->it.mode == DTR__MODE_STATIC ? ready_counted(ddp, i) : ready_once(ddp, i);
}

/* ---- the call ---- */

/* Counts the caller in while the backward pass is open; opens it when it is not. */
static dtr_status enter(dtr_ddp *ddp, int *state, void *stream) {
    for (;;) {
        atomic_fetch_add(&ddp->reducer->inside, 1);
        *state = atomic_load(&ddp->state);
        if (*state == DTR__DDP_REDUCING || *state == DTR__DDP_LOCAL) {
            return DTR_OK;
        }
        atomic_fetch_sub(&ddp->reducer->inside, 1);
        pthread_mutex_lock(&ddp->lock);
        int now = atomic_load(&ddp->state);
        dtr_status s = now == DTR__DDP_REDUCING || now == DTR__DDP_LOCAL
                           ? DTR_OK
                           : dtr__ddp_open_backward(ddp, entry, stream);
        pthread_mutex_unlock(&ddp->lock);
        DTR_TRY(s);
        dtr__ddp_launch(ddp, false); /* buckets of nothing but unused parameters */
    }
}

static dtr_status ddp_grad_ready(dtr_ddp *ddp, size_t i, void *stream) {
    DTR_TRY(dtr__ddp_check(ddp, entry));
    bool trigger = i < ddp->n && is_trigger(ddp, &ddp->params[ddp->params[i].same_as]);
    DTR_TRY(trigger ? dtr__ddp_grad_index(ddp, entry, &i)
                    : dtr__ddp_trainable_index(ddp, entry, &i));
    int state;
    DTR_TRY(enter(ddp, &state, stream));
    if (state == DTR__DDP_REDUCING && ddp->params[i].bucket != DTR__NONE) {
        dtr__ddp_device_feed(ddp, &ddp->buckets[ddp->params[i].bucket].feeds, i, stream);
    }
    if (state == DTR__DDP_REDUCING && trigger) {
        dtr__ddp_device_feed(ddp, &ddp->reducer->delayed.feeds, i, stream);
    }
    dtr_status s = ready(ddp, i, state);
    if (state == DTR__DDP_REDUCING && !dtr__progress_has_thread(ddp->world)) {
        dtr__progress_poll_all(ddp->world);
    }
    atomic_fetch_sub(&ddp->reducer->inside, 1);
    return s;
}

dtr_status dtr_ddp_grad_ready(dtr_ddp *ddp, size_t i, void *stream) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_grad_ready", ddp_grad_ready(ddp, i, stream));
}
