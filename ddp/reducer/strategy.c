/* How buckets travel. One rank alone sends nothing, the reference mode sends one parameter at a
 * time, everybody else sends each bucket as soon as it is complete. Hooks and sharded optimizers
 * bring strategies of their own. */
#include "core/call.h"
#include "device/device.h"
#include "reducer_internal.h"

dtr_status dtr__ddp_wait_work(const dtr_ddp *ddp, dtr_work **work, const char *label,
                              int64_t *waited_ns) {
    if (*work == NULL) {
        return DTR_OK;
    }
    int64_t start = dtr__now_ns();
    dtr_status s = dtr__ddp_on_device(ddp) ? dtr_work_wait_stream(*work, ddp->out.stream)
                                           : dtr_work_wait(*work, -1);
    int64_t end = dtr__now_ns();
    *waited_ns += end - start;
    dtr__ddp_span_between(ddp, "ddp_wait", label, start, end, 0);
    (void)dtr_work_release(*work);
    *work = NULL;
    return s;
}

void dtr__ddp_copy_out_bucket(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    if (b->sparse == NULL) {
        dtr__ddp_bucket_out(ddp, b);
    } else if (dtr__ddp_concerns_all(ddp, b->sparse)) {
        dtr__ddp_sparse_take(ddp, b);
    }
}

/* The averages are there. */
static void all_finished(dtr_ddp *ddp) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        atomic_store(&ddp->buckets[b].finished_ns, dtr__now_ns());
        atomic_store(&ddp->buckets[b].averaged, true);
        ddp->strategy->copy_out(ddp, &ddp->buckets[b]);
    }
}

/* ---- one rank ---- */

/* Rows given several times are added up all the same. */
dtr_status dtr__ddp_collect_alone(dtr_ddp *ddp, int64_t *waited_ns) {
    (void)waited_ns;
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        if (ddp->buckets[b].sparse != NULL) {
            DTR_TRY(dtr__ddp_sparse_launch(ddp, &ddp->buckets[b], NULL));
        }
    }
    DTR_TRY(dtr__ddp_device_alone(ddp, ddp->reducer->step.fn != NULL));
    all_finished(ddp);
    return DTR_OK;
}

/* ---- one blocking collective per parameter, in index order ---- */

static dtr_status reduce_params(dtr_ddp *ddp) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        DTR_TRY(dtr__ddp_device_pack(ddp, &ddp->buckets[b]));
        dtr__ddp_timing_ready(ddp, b);
    }
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        if (p->sparse && p->bucket != DTR__NONE) {
            DTR_TRY(dtr__ddp_sparse_launch(ddp, &ddp->buckets[p->bucket], NULL));
        }
        if (p->slot != NULL) {
            dtr__request r = dtr__ddp_average(
                ddp, (dtr_buffer){ p->slot->data, p->slot->numel, p->slot->dtype, ddp->device });
            DTR_TRY(dtr__ddp_issue(ddp, &r, p->name, ddp->trainable[k], NULL));
        }
    }
    for (size_t b = 0; b < ddp->n_buckets; b++) { /* all at once */
        dtr__ddp_timing_done(ddp, b, NULL);
    }
    return DTR_OK;
}

static dtr_status collect_params(dtr_ddp *ddp, int64_t *waited_ns) {
    int64_t start = dtr__now_ns();
    DTR_TRY(reduce_params(ddp));
    *waited_ns += dtr__now_ns() - start;
    DTR_TRY(dtr__ddp_device_lead(ddp, ddp->out.stream));
    all_finished(ddp);
    return DTR_OK;
}

/* ---- whole buckets ---- */

/* The carrier of the status waits for backward_end. */
static size_t before_carrier(const dtr_ddp *ddp) {
    const bool carries = !dtr__ddp_on_device(ddp) || dtr__ddp_late_can(ddp);
    return carries && ddp->reducer->carrier < ddp->n_buckets ? ddp->reducer->carrier
                                                             : ddp->n_buckets;
}

static dtr_status launch_bucket(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    b->launched_ns = dtr__now_ns();
    dtr__ddp_timing_ready(ddp, b->index);
    if (b->sparse != NULL) {
        return dtr__ddp_sparse_launch(ddp, b, &b->work);
    }
    dtr__request r =
        dtr__ddp_average(ddp, (dtr_buffer){ b->data, b->count, b->plan->dtype, ddp->device });
    r.finish = dtr__ddp_on_device(ddp) ? NULL : &b->finish; /* streams wait for no step here */
    DTR_TRY(dtr__ddp_issue(ddp, &r, b->label, b->index, &b->work));
    dtr__ddp_step_follow(ddp, b);
    return DTR_OK;
}

/* All works end here, whatever happens: their memory is the module's. */
dtr_status dtr__ddp_collect_works(dtr_ddp *ddp, int64_t *waited_ns) {
    dtr_status s = dtr__error_put_back(ddp->reducer->launch_error, ddp->reducer->launch_status);
    ddp->reducer->launch_error = NULL;
    for (size_t k = 0; k < ddp->n_buckets; k++) {
        dtr_ddp_bucket *b = &ddp->buckets[k];
        dtr__ddp_timing_done(ddp, k, b->work);
        dtr_status one = dtr__ddp_wait_work(ddp, &b->work, b->label, waited_ns);
        if (s == DTR_OK && one == DTR_OK) {
            if (b->sparse != NULL) { /* of the others the end of the work has reported it */
                atomic_store(&b->finished_ns, dtr__now_ns());
            }
            atomic_store(&b->averaged, true);
            ddp->strategy->copy_out(ddp, b);
        }
        s = s == DTR_OK ? one : s;
    }
    return s;
}

/* ---- the choice ---- */

void dtr__ddp_choose_strategy(dtr_ddp *ddp) {
    static const dtr__ddp_strategy alone = {
        .carries_status = true,
        .collect = dtr__ddp_collect_alone,
        .copy_out = dtr__ddp_copy_out_bucket,
    };
    static const dtr__ddp_strategy params = {
        .carries_status = true,
        .collect = collect_params,
        .copy_out = dtr__ddp_copy_out_bucket,
    };
    static const dtr__ddp_strategy buckets = {
        .carries_status = true,
        .early = before_carrier,
        .launch = launch_bucket,
        .collect = dtr__ddp_collect_works,
        .copy_out = dtr__ddp_copy_out_bucket,
    };
    ddp->strategy = ddp->size == 1 ? &alone : dtr__ddp_per_param(ddp) ? &params : &buckets;
}

uint64_t dtr__ddp_seq(const dtr_ddp *ddp) {
    return dtr_group_seq(ddp->group) + dtr_group_seq(ddp->reducer->delayed.group) +
           (ddp->strategy->seq != NULL ? ddp->strategy->seq(ddp) : 0);
}
