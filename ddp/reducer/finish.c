/* The end of a backward pass: settle what is missing, launch the rest, wait, agree on errors, give
 * gradients back. */
#include "core/call.h"
#include "core/call_site.h"
#include "device/device.h"
#include "reducer_internal.h"

static const char entry[] = "dtr_ddp_backward_end";

/* ---- the used map ---- */

static bool has_map(const dtr_ddp *ddp) {
    return ddp->it.mode == DTR__MODE_DYNAMIC || ddp->it.mode == DTR__MODE_LEARN;
}

/* A snapshot of the flags is sent: they may be set again before the memory is free. */
static dtr_status send_map(dtr_ddp *ddp, dtr_work **work) {
    ddp->it.check.mapped = true;
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        bool used = !ddp->it.shadow && atomic_load(&ddp->params[ddp->trainable[k]].used);
        ddp->reducer->map[k] = used ? 1 : 0;
    }
    if (ddp->size == 1) {
        return DTR_OK;
    }
    dtr_buffer map = dtr_cpu(ddp->reducer->map, ddp->n_trainable, DTR_I32);
    dtr__request r = { .kind = DTR__K_ALLREDUCE, .op = DTR_SUM, .root = -1, .in = map, .out = map };
    return dtr__ddp_issue(ddp, &r, "ddp used map", DTR__PART_MAP, work);
}

static void read_map(dtr_ddp *ddp) {
    bool all_used = true;
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        p->used_anywhere = ddp->reducer->map[k] > 0;
        all_used = all_used && ddp->reducer->map[k] == ddp->size;
    }
    if (all_used && ddp->set.unused_asked && ddp->it.mode == DTR__MODE_DYNAMIC) {
        dtr__ddp_warn(ddp, DTR__WARN_NOTHING_UNUSED,
                      "find_unused is set, but every rank used every parameter in iteration %llu; "
                      "without it an iteration saves one collective",
                      (unsigned long long)ddp->it.number);
    }
}

/* ---- everything that travels ---- */

static void write_status(dtr_ddp *ddp, bool bad) {
    if (dtr__ddp_on_device(ddp)) {
        dtr__ddp_late_write(ddp, bad);
    } else {
        dtr__ddp_status_write(ddp, bad);
    }
}

/* A map goes behind the buckets, and where they are all in flight at once with them; in a static
 * graph's first iteration it goes before them. */
static dtr_status reduce(dtr_ddp *ddp, int64_t *waited_ns) {
    const dtr__ddp_strategy *way = ddp->strategy;
    bool first = ddp->it.mode == DTR__MODE_LEARN, in_flight = way->launch != NULL && !way->hooked;
    dtr_work *map = NULL;
    if (first) {
        DTR_TRY(send_map(ddp, &map));
    }
    if (in_flight) {
        if (way->carries_status && ddp->reducer->carrier != DTR__NONE) {
            write_status(ddp, atomic_load(&ddp->errors.bad));
        }
        dtr__ddp_launch(ddp, true);
        dtr__ddp_delayed_behind(ddp);
    }
    bool early = has_map(ddp) && !first && in_flight && ddp->reducer->launch_status == DTR_OK;
    dtr_status s = early ? send_map(ddp, &map) : DTR_OK;
    dtr_status buckets = way->collect(ddp, waited_ns);
    dtr__ddp_step_finish(ddp);
    s = s == DTR_OK ? buckets : s;
    if (s == DTR_OK) {
        dtr__ddp_delayed_behind(ddp);
    }
    if (s == DTR_OK && has_map(ddp) && !first && !early) {
        s = send_map(ddp, &map);
    }
    dtr_status last = dtr__ddp_wait_work(ddp, &map, "ddp used map", waited_ns);
    return s == DTR_OK ? last : s;
}

/* Does any rank have an error? The carrier cannot say it where errors may come after it has left.
 */
static dtr_status any_bad(dtr_ddp *ddp, bool *bad) {
    const dtr__ddp_reducer *r = ddp->reducer;
    *bad = atomic_load(&ddp->errors.bad);
    if (ddp->size == 1) {
        return DTR_OK;
    }
    if (r->late.travels) { /* nobody is asked */
        *bad = false;
        return DTR_OK;
    }
    if (dtr__ddp_on_device(ddp) || !ddp->strategy->carries_status || r->carrier == DTR__NONE ||
        r->step.fn != NULL || r->buffers.hook != NULL) {
        return dtr__ddp_any_bad(ddp, *bad || atomic_load(&ddp->errors.gave_up), bad);
    }
    *bad = dtr__ddp_status_bad(ddp);
    return DTR_OK;
}

/* ---- counting ---- */

static double seconds(int64_t ns) {
    return ns > 0 ? (double)ns * 1e-9 : 0;
}

/* Time with at least one bucket in flight: they start in index order. */
static int64_t union_of_flights(const dtr_ddp *ddp) {
    int64_t total = 0, end = 0;
    for (size_t b = 0; b < ddp->n_buckets && ddp->size > 1; b++) {
        int64_t from = ddp->buckets[b].launched_ns;
        int64_t to = atomic_load(&ddp->buckets[b].finished_ns);
        from = from > end ? from : end;
        total += to > from ? to - from : 0;
        end = to > end ? to : end;
    }
    return total;
}

static void count_step(dtr_ddp *ddp, int64_t t_enter, int64_t waited_ns) {
    dtr_ddp_step step = { .buckets = ddp->n_buckets };
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        step.bytes += ddp->buckets[b].sparse != NULL ? dtr__ddp_sparse_bytes(&ddp->buckets[b])
                                                     : ddp->buckets[b].nbytes;
    }
    step.bytes += dtr__ddp_delayed_bytes(ddp);
    step.collectives = (size_t)(dtr__ddp_seq(ddp) - ddp->it.seq_begun);
    step.forward_s = ddp->it.forward ? seconds(ddp->it.t_forward_end - ddp->it.t_forward) : 0;
    step.backward_s = seconds(t_enter - ddp->it.t_backward);
    step.comm_s = seconds(dtr__ddp_per_param(ddp) ? waited_ns : union_of_flights(ddp));
    step.exposed_comm_s = ddp->size > 1 ? seconds(waited_ns) : 0;
    double hidden = step.comm_s > 0 ? 1 - step.exposed_comm_s / step.comm_s : 1;
    step.overlap = hidden < 0 ? 0 : hidden;
    dtr__ddp_timing_close(ddp, &step, dtr__ddp_count_step(ddp, &step));
    dtr__ddp_timing_collect(ddp);
    for (size_t b = 0; b < ddp->n_buckets && ddp->size > 1; b++) {
        const dtr_ddp_bucket *k = &ddp->buckets[b];
        int64_t end = atomic_load(&k->finished_ns);
        if (end > k->launched_ns) {
            dtr__ddp_span_between(ddp, "ddp_bucket", k->label, k->launched_ns, end, k->nbytes);
        }
    }
}

/* ---- the call ---- */

/* Ready for the next iteration. */
static dtr_status close_iteration(dtr_ddp *ddp, dtr_status s) {
    dtr_status left = ddp->it.sync ? dtr__ddp_device_leave(ddp) : DTR_OK;
    if (left < 0) {
        return dtr__ddp_break(ddp, left);
    }
    dtr__ddp_timing_close(ddp, NULL, 0);
    ddp->it.number++;
    ddp->reducer->saved_size = 0;
    dtr__ddp_cast_drop(ddp);
    dtr__ddp_rearm(ddp);
    ddp->it.averaged =
        (s == DTR_OK || ddp->reducer->late.travels) && ddp->it.sync && !ddp->it.shadow;
    atomic_store(&ddp->state, DTR__DDP_IDLE);
    dtr__ddp_check_idle(ddp);
    return s;
}

/* All return the error; one that only this operation suffered from leaves the module usable. */
dtr_status dtr__ddp_agree_bad(dtr_ddp *ddp, const dtr__step_status *mine, bool *broken) {
    dtr__step_status agreed = { 0 };
    dtr_status s = dtr__ddp_agree(ddp, mine, &agreed);
    *broken = true;
    if (s == DTR_OK) { /* nobody knows why: what broke the strategy's group does */
        s = ddp->strategy->broken != NULL ? ddp->strategy->broken(ddp) : DTR_OK;
        return dtr__ddp_break(ddp, s < 0 ? s
                                         : DTR_FAIL(NULL, DTR_ERR_INTERNAL,
                                                    "a rank reported an error without naming it"));
    }
    /* Judged by what happened, not by what this rank returns: all must judge alike. */
    dtr_error_class blast = dtr_status_class((dtr_status)agreed.status);
    bool fatal = !agreed.callers && (blast == DTR_CLASS_GROUP || blast == DTR_CLASS_PROCESS);
    if (dtr_group_status(ddp->group) < 0 || fatal) {
        return dtr__ddp_break(ddp, s);
    }
    if (agreed.gave_up && ddp->strategy->renew != NULL) {
        dtr__error_copy *cause = dtr__error_save();
        dtr_status renewed = ddp->strategy->renew(ddp);
        if (renewed < 0) {
            dtr__error_copy_free(cause);
            return dtr__ddp_break(ddp, renewed);
        }
        s = dtr__error_put_back(cause, s);
    }
    *broken = false;
    return s;
}

static dtr_status finish_bad(dtr_ddp *ddp) {
    bool broken;
    ddp->errors.mine.gave_up = atomic_load(&ddp->errors.gave_up);
    dtr_status s = dtr__ddp_agree_bad(ddp, &ddp->errors.mine, &broken);
    return broken ? s : close_iteration(ddp, dtr__ddp_failed(ddp, s));
}

/* What went wrong after the ranks had agreed, when it can no longer be agreed on. */
static dtr_status late_failure(dtr_ddp *ddp) {
    if (!atomic_load(&ddp->errors.bad) || ddp->reducer->late.flagged) {
        return DTR_OK;
    }
    const dtr__step_status *v = &ddp->errors.mine;
    return dtr__ddp_break(ddp, dtr__ddp_step_fail(ddp, v, (dtr_status)v->status, ""));
}

/* Up to here every rank does its part whatever went wrong. *bad: on some rank something did. */
static dtr_status exchange(dtr_ddp *ddp, int64_t *waited_ns, bool *bad) {
    ddp->it.copies_out =
        (ddp->size > 1 || ddp->strategy->hooked || ddp->set.has_param_dtype) && !ddp->it.shadow;
    dtr__ddp_late_begin(ddp);
    dtr__ddp_settle(ddp);
    dtr_status s = reduce(ddp, waited_ns);
    if (s == DTR_OK) {
        dtr__ddp_device_note_nans(ddp);
        if (ddp->strategy->judge != NULL) {
            ddp->strategy->judge(ddp);
        }
    }
    (void)dtr__ddp_note_last(ddp, dtr__ddp_buffers_wait(ddp), DTR__NONE);
    dtr_status apart = dtr__ddp_delayed_wait(ddp);
    s = s == DTR_OK ? apart : s;
    DTR_TRY(s);
    dtr__ddp_late_fetch(ddp);
    if (has_map(ddp)) {
        read_map(ddp);
    }
    if (!ddp->it.shadow && !atomic_load(&ddp->errors.bad)) {
        dtr__ddp_step_rest(ddp);
    }
    dtr__ddp_step_lead(ddp);
    return any_bad(ddp, bad);
}

static void warn_no_forward(dtr_ddp *ddp) {
    if (ddp->reducer->buffers.n_sync > 0 && !ddp->set.no_buffers &&
        ddp->stats.count.forwards == 0) {
        dtr__ddp_warn(ddp, DTR__WARN_NO_FORWARD,
                      "the module has buffers, but dtr_ddp_forward_begin is never called: they are "
                      "not synchronised");
    }
}

static dtr_status finish_synced(dtr_ddp *ddp) {
    int64_t t_enter = dtr__now_ns(), waited_ns = 0;
    bool bad = false;
    dtr_status s = exchange(ddp, &waited_ns, &bad);
    if (s < 0) {
        return dtr__ddp_break(ddp, s);
    }
    if (bad) {
        return finish_bad(ddp);
    }
    if (!ddp->it.shadow) {
        dtr__ddp_give_back(ddp);
    }
    dtr__ddp_check_end(ddp, has_map(ddp));
    DTR_TRY(late_failure(ddp));
    if (ddp->set.static_graph) {
        ddp->reducer->learned = true;
        ddp->reducer->learned_here = ddp->reducer->learned_here || !ddp->it.shadow;
    }
    bool rebuilds = ddp->reducer->rebuild_due && ddp->it.mode != DTR__MODE_DYNAMIC;
    s = rebuilds ? dtr__ddp_rebuild(ddp) : DTR_OK;
    if (s < 0) {
        return dtr__ddp_break(ddp, s);
    }
    if (!ddp->it.shadow) {
        count_step(ddp, t_enter, waited_ns);
        warn_no_forward(ddp);
    }
    s = dtr__ddp_late_end(ddp, &bad);
    return bad ? s : close_iteration(ddp, s);
}

static dtr_status finish_local(dtr_ddp *ddp) {
    dtr_status s = dtr__ddp_buffers_wait(ddp); /* of a forward pass before */
    dtr__ddp_count(ddp, &ddp->stats.count.local_steps);
    return close_iteration(ddp, dtr__ddp_result(ddp, s));
}

dtr_status dtr__ddp_shadow_backward(dtr_ddp *ddp) {
    dtr__ddp_count(ddp, &ddp->stats.count.shadow_steps);
    int64_t start = dtr__now_ns();
    ddp->it.shadow = true;
    if (dtr__ddp_has_out(ddp)) { /* what read the gradients, some of which are written now */
        (void)dtr__ddp_note_last(ddp, dtr__ddp_device_follow(ddp, ddp->out.stream), DTR__NONE);
    }
    dtr__ddp_device_forget_out(ddp); /* this rank's streams are not known here */
    dtr_status s = ddp->it.sync ? finish_synced(ddp) : close_iteration(ddp, DTR_OK);
    ddp->it.shadow = false;
    dtr__ddp_span(ddp, "ddp_shadow", ddp->label, start, 0);
    return s;
}

/* From here on no gradient of this iteration may become ready, and nobody is about to. */
static dtr_status begin(dtr_ddp *ddp, void *stream) {
    dtr_status s = DTR_OK;
    pthread_mutex_lock(&ddp->lock);
    int state = atomic_load(&ddp->state);
    if (state != DTR__DDP_REDUCING && state != DTR__DDP_LOCAL) {
        s = dtr__ddp_open_backward(ddp, entry, stream);
    }
    if (s == DTR_OK) {
        atomic_store(&ddp->state, DTR__DDP_BUSY);
    }
    pthread_mutex_unlock(&ddp->lock);
    DTR_TRY(s);
    dtr__backoff pause = { 0 };
    while (atomic_load(&ddp->reducer->inside) > 0) {
        dtr__backoff_pause(ddp->world, &pause);
    }
    return DTR_OK;
}

static dtr_status ddp_backward_end(dtr_ddp *ddp, void *stream) {
    DTR_TRY(dtr__ddp_check(ddp, entry));
    DTR_TRY(begin(ddp, stream));
    dtr__ddp_span(ddp, "ddp_backward", ddp->label, ddp->it.t_backward, 0);
    (void)dtr__ddp_note_last(ddp, dtr__ddp_device_enter(ddp, stream), DTR__NONE);
    return ddp->it.sync ? finish_synced(ddp) : finish_local(ddp);
}

dtr_status dtr_ddp_backward_end(dtr_ddp *ddp, void *stream) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_backward_end", ddp_backward_end(ddp, stream));
}
