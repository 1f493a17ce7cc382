/* The backward pass: gradients become ready on any thread, complete buckets start to travel in
 * index order. Nothing here waits for communication, and in the steady state nothing allocates. */
#include "ddp_internal.h"

static const char entry[] = "dtr_ddp_grad_ready";

/* ---- launching ---- */

uint64_t dtr__ddp_tag(const dtr_ddp *ddp, uint64_t part) {
    return (uint64_t)ddp->id << 48 | (ddp->iteration & UINT32_MAX) << 16 | (part & 0xffff);
}

dtr_status dtr__ddp_issue_on(dtr_ddp *ddp, dtr_group *group, dtr__request *r, const char *label,
                             dtr_work **work) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = ddp->set.timeout_s;
    o.label = label;
    o.stream = r->in.device.type != DTR_CPU ? ddp->gpu.stream : NULL;
    dtr__ddp_check_issued(ddp, r, label);
    r->options = &o;
    r->return_address = __builtin_return_address(0);
    return dtr__coll_issue(group, r, work);
}

dtr_status dtr__ddp_issue(dtr_ddp *ddp, dtr__request *r, const char *label, uint64_t part,
                          dtr_work **work) {
    r->tag_word = dtr__ddp_tag(ddp, part);
    return dtr__ddp_issue_on(ddp, ddp->group, r, label, work);
}

static dtr_status launch_bucket(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    dtr__ddp_check_launch(ddp, b);
    DTR_TRY(dtr__ddp_device_pack(ddp, b));
    if (ddp->hook.fn != NULL) {
        b->launched_ns = dtr__now_ns();
        dtr__ddp_timing_ready(ddp, b->index);
        dtr__ddp_hook_launch(ddp, b);
        return DTR_OK;
    }
    if (ddp->zero != NULL) {
        b->launched_ns = dtr__now_ns();
        return dtr__zero_launch(ddp, b);
    }
    if (b->sparse != NULL) {
        b->launched_ns = dtr__now_ns();
        dtr__ddp_timing_ready(ddp, b->index);
        return dtr__ddp_sparse_launch(ddp, b, &b->work);
    }
    dtr_buffer buffer = { b->data, b->count, b->plan->dtype, ddp->device };
    dtr__request r = {
        .kind = DTR__K_ALLREDUCE,
        .op = ddp->set.flags & DTR_DDP_SUM ? DTR_SUM : DTR_AVG,
        .divisor = ddp->divisor,
        .root = -1,
        .in = buffer,
        .out = buffer,
        .finish = dtr__ddp_on_device(ddp) ? NULL : &b->finish, /* streams wait for no step here */
    };
    b->launched_ns = dtr__now_ns();
    dtr__ddp_timing_ready(ddp, b->index);
    DTR_TRY(dtr__ddp_issue(ddp, &r, b->label, b->index, &b->work));
    dtr__ddp_step_follow(ddp, b->work);
    return DTR_OK;
}

/* How far buckets may travel before backward_end: the carrier of the verdict waits for it; a hook
 * carries none, but has to be set up first. */
static size_t early_buckets(const dtr_ddp *ddp) {
    if (ddp->mode == DTR__MODE_LEARN || ddp->mode == DTR__MODE_LATE) {
        return 0;
    }
    if (ddp->zero != NULL) { /* its verdict travels apart */
        return ddp->n_buckets;
    }
    if (ddp->hook.fn != NULL) {
        return ddp->hook.ready ? ddp->n_buckets : 0;
    }
    return ddp->carrier < ddp->n_buckets ? ddp->carrier : ddp->n_buckets;
}

void dtr__ddp_launch(dtr_ddp *ddp, bool all) {
    if (dtr__ddp_per_param(ddp) || (ddp->size == 1 && ddp->hook.fn == NULL)) {
        return;
    }
    size_t stop = all ? ddp->n_buckets : early_buckets(ddp);
    dtr_status failed = DTR_OK;
    pthread_mutex_lock(&ddp->launch_lock);
    while (ddp->next < stop && ddp->launch_status == DTR_OK &&
           (all || atomic_load(&ddp->buckets[ddp->next].pending) == 0)) {
        dtr_ddp_bucket *b = &ddp->buckets[ddp->next];
        int64_t begin = dtr__stamp_ns();
        atomic_store(&b->range, dtr__trace_range_begin(ddp->world->trace, "ddp_bucket", b->label));
        dtr_status s = launch_bucket(ddp, b);
        dtr__ddp_span(ddp, "ddp_launch", b->label, begin, b->nbytes);
        if (s < 0) {
            ddp->launch_status = failed = s;
            ddp->launch_error = dtr__error_save();
        } else {
            ddp->next++;
        }
    }
    pthread_mutex_unlock(&ddp->launch_lock);
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
    dtr_status s = dtr__ddp_grad_get(ddp, i, &grad);
    if (s < 0) {
        dtr__ddp_fill_zero(ddp, p);
        dtr__ddp_note_last(ddp, s, i);
        return s;
    }
    dtr__ddp_copy_in(ddp, p);
    if (ddp->check_writes) {
        p->seen = dtr__ddp_grad_hash(ddp, p);
    }
    dtr__ddp_check_nan(ddp, i);
    return DTR_OK;
}

static bool is_trigger(const dtr_ddp *ddp, const dtr__ddp_param *p) {
    return ddp->delayed.n > 0 && p == &ddp->params[ddp->delayed.trigger];
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
    uint64_t stamp = atomic_fetch_add_explicit(&ddp->stamps, 1, memory_order_relaxed) + 1;
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
    if (ddp->mode == DTR__MODE_LEARN || ddp->mode == DTR__MODE_LATE) {
        atomic_fetch_add(&p->calls, 1);
        mark_used(ddp, p);
        return DTR_OK;
    }
    return ddp->mode == DTR__MODE_STATIC ? ready_counted(ddp, i) : ready_once(ddp, i);
}

/* ---- the call ---- */

const char *dtr__ddp_why_no_grad(const dtr__ddp_param *p) {
    return p->flags & DTR_PARAM_IGNORED ? "ignored" : p->delayed ? "delayed" : "frozen";
}

/* M1. A shared parameter stands for its first entry. */
static dtr_status find(dtr_ddp *ddp, const char *where, size_t *i, bool delayed_too) {
    dtr__error_context ctx = { .world = ddp->world, .operation = where, .group = ddp->group->name };
    if (*i >= ddp->n) {
        return dtr__ddp_failed(ddp, DTR_FAIL(&ctx, DTR_ERR_ARG,
                                             "%s: there is no parameter %zu, the module has %zu",
                                             where, *i, ddp->n));
    }
    size_t first = ddp->params[*i].same_as;
    const dtr__ddp_param *p = &ddp->params[first];
    if (!p->trainable && !(p->delayed && delayed_too)) {
        return dtr__ddp_failed(
            ddp, DTR_FAIL(&ctx, DTR_ERR_ARG, "%s: parameter '%s' (%zu) is %s and has no gradient%s",
                          where, ddp->params[*i].name, *i, dtr__ddp_why_no_grad(p),
                          p->delayed ? " of its own there: report the trigger" : ""));
    }
    *i = first;
    return DTR_OK;
}

dtr_status dtr__ddp_grad_index(dtr_ddp *ddp, const char *where, size_t *i) {
    return find(ddp, where, i, true);
}

dtr_status dtr__ddp_trainable_index(dtr_ddp *ddp, const char *where, size_t *i) {
    return find(ddp, where, i, false);
}

/* Counts the caller in while the backward pass is open; opens it when it is not. */
static dtr_status enter(dtr_ddp *ddp, int *state, void *stream) {
    for (;;) {
        atomic_fetch_add(&ddp->inside, 1);
        *state = atomic_load(&ddp->state);
        if (*state == DTR__DDP_REDUCING || *state == DTR__DDP_LOCAL) {
            return DTR_OK;
        }
        atomic_fetch_sub(&ddp->inside, 1);
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
    DTR_TRY(find(ddp, entry, &i, trigger));
    int state;
    DTR_TRY(enter(ddp, &state, stream));
    if (state == DTR__DDP_REDUCING) {
        dtr__ddp_device_feed(ddp, i, stream);
    }
    dtr_status s = ready(ddp, i, state);
    if (state == DTR__DDP_REDUCING && !dtr__progress_has_thread(ddp->world)) {
        dtr__progress_poll_all(ddp->world);
    }
    atomic_fetch_sub(&ddp->inside, 1);
    return s;
}

dtr_status dtr_ddp_grad_ready(dtr_ddp *ddp, size_t i, void *stream) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_grad_ready", ddp_grad_ready(ddp, i, stream));
}
