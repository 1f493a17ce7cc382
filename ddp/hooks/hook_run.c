/* Running communication hooks. The hook of each bucket is called in index order by whoever
 * completes buckets; steps that follow its work run in bucket order per depth, on the thread that
 * sees the work end. Steps that need a group which is not there yet wait for backward_end, where
 * all ranks can make it together. */
#include "core/team.h"
#include "hooks.h"

/* ---- failures ---- */

/* This rank cannot go on with the hook. Its peers wait in operations this rank will never join:
 * breaking the hook's groups sets them free, and the step status carries the reason to them. */
static void give_up(dtr_ddp *ddp) {
    if (atomic_exchange(&ddp->errors.gave_up, true)) {
        return;
    }
    dtr__error_context ctx = { .world = ddp->world, .operation = "ddp hook" };
    dtr__error_copy *cause = dtr__error_save();
    (void)DTR_FAIL(&ctx, DTR_ERR_ABORTED, "the hook '%s' failed on rank %d; see the module's error",
                   ddp->hook->name, ddp->rank);
    dtr__ddp_hook_groups_break(ddp);
    (void)dtr__error_put_back(cause, DTR_ERR_ABORTED);
}

static void hook_error(dtr_ddp *ddp, dtr_ddp_bucket *b, dtr_status s, const char *why) {
    char cause[1500];
    snprintf(cause, sizeof cause, "%s", why);
    b->failed = true;
    b->done = true;
    dtr__ddp_note_caller(ddp, s, DTR__NONE, "hook '%s' failed on bucket %zu on rank %d: %s",
                         ddp->hook->name, b->index, ddp->rank, cause);
    give_up(ddp);
}

/* What broke the hook's groups, if they are broken. */
static dtr_status broken_status(const dtr_ddp *ddp) {
    dtr_status s = DTR_OK;
    for (int d = 0; d < DTR__HOOK_DEPTHS && s == DTR_OK; d++) {
        s = ddp->hook->group[d] != NULL ? dtr_group_status(ddp->hook->group[d]) : DTR_OK;
    }
    return s;
}

/* A work of the hook ended badly. When a peer has given up, its step status says why. */
static void work_error(dtr_ddp *ddp, dtr_ddp_bucket *b, dtr_status s) {
    b->failed = true;
    b->done = true;
    if (s != DTR_ERR_ABORTED && !atomic_load(&ddp->errors.gave_up)) {
        dtr__ddp_note_last(ddp, s, DTR__NONE);
    }
    give_up(ddp);
}

/* ---- one step ---- */

static void pump(dtr_ddp *ddp, bool may_block);

static void work_ended(dtr_work *work, dtr_status status, void *arg) {
    dtr_ddp *ddp = arg;
    (void)work;
    (void)status;
    pump(ddp, false);
    atomic_fetch_sub(&ddp->hook->callbacks, 1);
}

static bool result_fits(const dtr_ddp_bucket *b) {
    return b->result.count == b->shown.count && b->result.dtype == b->shown.dtype &&
           b->result.device.type == b->shown.device.type &&
           b->result.device.index == b->shown.device.index &&
           (b->result.data != NULL || b->result.count == 0);
}

/* Call a hook or one of its steps. */
static void call(dtr_ddp *ddp, dtr_ddp_bucket *b, dtr_ddp_hook fn, void *state, int depth) {
    dtr_work *work = NULL;
    char why[160];
    b->depth = depth;
    b->then = NULL;
    b->running = true;
    dtr__call_site before = dtr__call_site_hold_at(&ddp->hook->from);
    dtr_status s = fn(state, b, &work);
    dtr__call_site_unhold(&before);
    b->running = false;
    b->work = work;
    if (s < 0 && s == broken_status(ddp)) {
        work_error(ddp, b, s);
    } else if (s < 0) {
        hook_error(ddp, b, s, dtr_last_error_message());
    } else if (depth == 0 && work == NULL && !b->has_result && b->out_rows == NULL &&
               b->then == NULL) {
        hook_error(ddp, b, DTR_ERR_STATE, "it returned DTR_OK with neither a work nor a result");
    } else if (b->has_result && !result_fits(b)) {
        snprintf(why, sizeof why, "its result is %s x %zu, the bucket %s x %zu",
                 dtr_dtype_name(b->result.dtype), b->result.count, dtr_dtype_name(b->shown.dtype),
                 b->shown.count);
        hook_error(ddp, b, DTR_ERR_STATE, why);
    }
}

/* pump_lock is held: a callback that comes at once only asks the holder to look again. */
static void follow(dtr_ddp *ddp, dtr_work *work) {
    if (work != NULL && !dtr__ddp_on_device(ddp)) { /* there backward_end orders the streams */
        atomic_fetch_add(&ddp->hook->callbacks, 1);
        if (dtr_work_on_complete(work, work_ended, ddp) < 0) {
            atomic_fetch_sub(&ddp->hook->callbacks, 1); /* backward_end will see it */
        }
    }
}

/* Bring the result into the bucket. */
static void settle_result(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    dtr_buffer from = b->has_result ? b->result : b->shown;
    if (b->sparse != NULL) {
        if (b->out_rows == NULL && !b->failed) {
            hook_error(
                ddp, b, DTR_ERR_STATE,
                "it gave no result for a sparse parameter (dtr_ddp_bucket_set_sparse_result)");
        }
    } else if (from.data != b->data && !b->failed) {
        dtr__ddp_bucket_take(b, from);
    }
    dtr__ddp_timing_done(ddp, b->index, NULL);
    atomic_store(&b->finished_ns, dtr__now_ns());
    dtr__ddp_range_end(b);
    b->done = true;
    dtr__ddp_step_averaged(ddp, b);
}

/* Has the step that ran last ended? Takes the work back when it has. On a device it is over when
 * the module's stream goes on behind it, which backward_end can ask for. */
static bool step_over(dtr_ddp *ddp, dtr_ddp_bucket *b, bool may_block) {
    bool over = true;
    if (b->work != NULL) {
        dtr_status s = dtr__ddp_on_device(ddp) && may_block
                           ? dtr_work_wait_stream(b->work, ddp->at.stream)
                           : dtr_work_test(b->work, &over);
        if (over) {
            if (s < 0 && !b->failed) {
                work_error(ddp, b, s);
            }
            (void)dtr_work_release(b->work);
            b->work = NULL;
        }
    }
    return over;
}

/* ---- the pump ---- */

/* Depth d of the next bucket, if its step before has ended. False: it cannot move now. */
static bool advance(dtr_ddp *ddp, int d, bool may_block) {
    dtr_ddp_bucket *b = &ddp->buckets[ddp->hook->next[d]];
    if (!b->done && (b->depth != d - 1 || !step_over(ddp, b, may_block))) {
        return false;
    }
    if (b->done) {
        if (b->work != NULL && !step_over(ddp, b, may_block)) { /* a failed step's work */
            return false;
        }
    } else if (b->then == NULL) {
        settle_result(ddp, b);
    } else {
        if (!b->then_local && ddp->hook->group[d] == NULL) {
            if (!may_block) {
                return false;
            }
            dtr_status s = dtr__ddp_hook_group_make(ddp, d);
            if (s < 0) {
                work_error(ddp, b, s);
                ddp->hook->next[d]++;
                return true;
            }
        }
        call(ddp, b, b->then, b->then_state, d);
        follow(ddp, b->work);
    }
    ddp->hook->next[d]++;
    return true;
}

static void run_stages(dtr_ddp *ddp, bool may_block) {
    size_t launched = atomic_load(&ddp->hook->launched);
    for (int d = 1; d < DTR__HOOK_DEPTHS; d++) {
        while (ddp->hook->next[d] < launched && advance(ddp, d, may_block)) {
        }
    }
}

/* Whoever holds the lock looks again when others have come meanwhile. */
static void pump(dtr_ddp *ddp, bool may_block) {
    dtr__ddp_hook *h = ddp->hook;
    int seen;
    atomic_fetch_add(&h->pump_calls, 1);
    do {
        if (pthread_mutex_trylock(&h->pump_lock) != 0) {
            return;
        }
        do {
            seen = atomic_load(&h->pump_calls);
            run_stages(ddp, may_block);
        } while (seen != atomic_load(&h->pump_calls));
        pthread_mutex_unlock(&h->pump_lock);
    } while (seen != atomic_load(&h->pump_calls));
}

/* ---- from outside ---- */

void dtr__ddp_hook_rearm(dtr_ddp *ddp) {
    dtr__ddp_hook *h = ddp->hook;
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        dtr_ddp_bucket *k = &ddp->buckets[b];
        k->depth = 0;
        k->then = NULL;
        k->has_result = k->done = k->failed = false;
        size_t nbytes = k->sparse != NULL ? 0 : k->plan->nbytes;
        k->shown = (dtr_buffer){ k->data, nbytes / dtr_dtype_size(k->plan->dtype), k->plan->dtype,
                                 ddp->device };
    }
    for (int d = 0; d < DTR__HOOK_DEPTHS; d++) {
        h->next[d] = 0;
    }
    atomic_store(&h->launched, 0);
}

/* Call the hook for one bucket. */
static dtr_status launch(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    dtr__ddp_hook *h = ddp->hook;
    b->launched_ns = dtr__now_ns();
    dtr__ddp_timing_ready(ddp, b->index);
    pthread_mutex_lock(&h->pump_lock);
    h->from = dtr__call_site_held();
    if (atomic_load(&ddp->errors.gave_up)) {
        b->failed = b->done = true;
    } else if (b->sparse != NULL && dtr__ddp_sparse_input(ddp, b) < 0) {
        hook_error(ddp, b, DTR_ERR_NOMEM, dtr_last_error_message());
    } else {
        call(ddp, b, h->fn, h->state, 0);
    }
    atomic_store(&h->launched, b->index + 1);
    follow(ddp, b->work);
    pthread_mutex_unlock(&h->pump_lock);
    pump(ddp, false);
    return DTR_OK;
}

/* ---- the strategy ---- */

static size_t early(const dtr_ddp *ddp) {
    return ddp->hook->ready ? ddp->n_buckets : 0;
}

static bool all_done(const dtr_ddp *ddp) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        if (!ddp->buckets[b].done || ddp->buckets[b].work != NULL) {
            return false;
        }
    }
    return true;
}

/* Until every bucket has its result or this rank has given up. */
static void wait_all(dtr_ddp *ddp) {
    dtr__backoff pause = { 0 };
    for (;;) {
        pump(ddp, true);
        pthread_mutex_lock(&ddp->hook->pump_lock);
        bool over = all_done(ddp);
        pthread_mutex_unlock(&ddp->hook->pump_lock);
        if (over && atomic_load(&ddp->hook->callbacks) == 0) {
            return;
        }
        if (!dtr__progress_has_thread(ddp->world)) {
            dtr__progress_poll_all(ddp->world);
        }
        dtr__backoff_pause(ddp->world, &pause);
    }
}

/* A hook's failure is noted by this rank, never a status. */
static dtr_status collect(dtr_ddp *ddp, int64_t *waited_ns) {
    DTR_TRY(dtr__ddp_hook_setup(ddp));
    dtr__ddp_launch(ddp, true);
    int64_t start = dtr__now_ns();
    wait_all(ddp);
    int64_t end = dtr__now_ns();
    *waited_ns += end - start;
    dtr__ddp_span_between(ddp, "ddp_wait", ddp->hook->name, start, end, 0);
    (void)dtr__ddp_note_last(ddp, dtr__ddp_device_lead(ddp, ddp->out.stream), DTR__NONE);
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        if (!ddp->buckets[b].failed) {
            dtr__ddp_copy_out_bucket(ddp, &ddp->buckets[b]);
        }
    }
    return DTR_OK;
}

static void judge(dtr_ddp *ddp) {
    if (ddp->hook->judge != NULL) {
        ddp->hook->judge(ddp, ddp->hook->state);
    }
}

static void forget(dtr_ddp *ddp) {
    if (ddp->hook->forget != NULL) {
        ddp->hook->forget(ddp->hook->state);
    }
}

static dtr_status broken(const dtr_ddp *ddp) {
    const dtr_group *g = ddp->hook->group[0];
    const dtr_status s = g != NULL ? dtr_group_status(g) : DTR_OK;
    return s < 0 ? dtr__error_restore(g->error, s) : DTR_OK;
}

static uint64_t seq(const dtr_ddp *ddp) {
    uint64_t all = 0;
    for (int d = 0; d < DTR__HOOK_DEPTHS; d++) {
        all += dtr_group_seq(ddp->hook->group[d]);
    }
    return all;
}

const dtr__ddp_strategy dtr__ddp_hook_strategy = {
    .hooked = true,
    .early = early,
    .launch = launch,
    .collect = collect,
    .copy_out = dtr__ddp_copy_out_bucket,
    .judge = judge,
    .broken = broken,
    .renew = dtr__ddp_hook_renew,
    .rearm = dtr__ddp_hook_rearm,
    .forget = forget,
    .seq = seq,
};
