/* The one rebuild of the buckets: rank 0's ready order becomes everybody's. Gradients are final
 * when it begins and keep their values. */
#include <stdlib.h>

#include "core/call.h"
#include "device/device.h"
#include "reducer_internal.h"

typedef struct stamped {
    uint64_t stamp;
    size_t param;
} stamped;

static int by_stamp(const void *a, const void *b) {
    const stamped *x = a, *y = b;
    return (x->stamp > y->stamp) - (x->stamp < y->stamp);
}

/* A parameter that no rank used may leave the plan for good. */
static bool stays(const dtr_ddp *ddp, const dtr__ddp_param *p) {
    return p->bucket != DTR__NONE && (!ddp->set.skip_unused || p->used_anywhere);
}

/* Instead of an order: rank 0 has joined and knows none, the plan stays. */
#define KEEP_PLAN UINT64_MAX

/* Rank 0's order: as they became ready, then those it did not use as the plan has them. */
static dtr_status own_order(dtr_ddp *ddp) {
    if (ddp->it.shadow) {
        ddp->reducer->order[0] = KEEP_PLAN;
        return DTR_OK;
    }
    stamped *list = malloc((ddp->n_trainable + 1) * sizeof *list);
    DTR_REQUIRE(list != NULL, NULL, DTR_ERR_NOMEM, "no memory to sort %zu parameters",
                ddp->n_trainable);
    size_t n = 0;
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        const dtr_plan_bucket *plan = ddp->buckets[b].plan;
        for (size_t s = 0; s < plan->n_slots; s++) {
            const dtr__ddp_param *p = &ddp->params[plan->slots[s].param];
            uint64_t stamp = atomic_load(&p->stamp);
            if (stays(ddp, p)) {
                /* behind every stamp, in the order they have here */
                list[n] =
                    (stamped){ stamp != 0 ? stamp : UINT64_MAX / 2 + n, plan->slots[s].param };
                n++;
            }
        }
    }
    qsort(list, n, sizeof *list, by_stamp);
    for (size_t k = 0; k < n; k++) {
        ddp->reducer->order[k] = list[k].param;
    }
    free(list);
    return DTR_OK;
}

/* What arrived must be a permutation of the parameters that stay. */
static dtr_status check_order(const dtr_ddp *ddp, size_t n, size_t *order) {
    unsigned char *seen = calloc(ddp->n + 1, 1);
    DTR_REQUIRE(seen != NULL, NULL, DTR_ERR_NOMEM, "no memory to check the order of %zu parameters",
                n);
    bool good = true;
    for (size_t k = 0; k < n && good; k++) {
        size_t i = (size_t)ddp->reducer->order[k];
        good = i < ddp->n && !seen[i] && ddp->params[i].trainable && stays(ddp, &ddp->params[i]);
        if (good) {
            seen[i] = 1;
            order[k] = i;
        }
    }
    free(seen);
    DTR_REQUIRE(good, NULL, DTR_ERR_INTERNAL,
                "the ready order received from rank 0 is no permutation of this rank's %zu "
                "parameters",
                n);
    return DTR_OK;
}

static dtr_status make(dtr_ddp *ddp, dtr__ddp_layout *layout, bool *changed, uint64_t *hash) {
    size_t n = 0;
    if (ddp->reducer->order[0] == KEEP_PLAN) {
        *changed = false;
        *hash = dtr_plan_hash(ddp->plan);
        return DTR_OK;
    }
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        n += stays(ddp, &ddp->params[ddp->trainable[k]]) ? 1 : 0;
    }
    size_t *order = malloc((n + 1) * sizeof *order);
    DTR_REQUIRE(order != NULL, NULL, DTR_ERR_NOMEM, "no memory for the order of %zu parameters", n);
    dtr_plan *plan = NULL;
    dtr_status s = check_order(ddp, n, order);
    if (s == DTR_OK) {
        s = dtr__ddp_plan_for(ddp, order, n, &plan);
    }
    free(order);
    DTR_TRY(s);
    *hash = dtr_plan_hash(plan);
    *changed = *hash != dtr_plan_hash(ddp->plan);
    if (!*changed) {
        (void)dtr_plan_destroy(plan);
        return DTR_OK;
    }
    return dtr__ddp_layout_make(ddp, plan, layout);
}

static dtr_status share_order(dtr_ddp *ddp) {
    if (ddp->size == 1) {
        return DTR_OK;
    }
    dtr__request r = {
        .kind = DTR__K_BROADCAST,
        .root = 0,
        .in =
            dtr_cpu(ddp->reducer->order, ddp->n_trainable * sizeof ddp->reducer->order[0], DTR_U8),
    };
    return dtr__ddp_issue(ddp, &r, "ddp ready order", DTR__PART_ORDER, NULL);
}

dtr_status dtr__ddp_rebuild(dtr_ddp *ddp) {
    dtr__step_status mine = { .rank = ddp->rank };
    int64_t start = dtr__now_ns();
    dtr_status s = ddp->rank == 0 ? own_order(ddp) : DTR_OK;
    if (s < 0) {
        mine.status = s;
        snprintf(mine.text, sizeof mine.text, "rank %d: %.1600s", ddp->rank,
                 dtr_last_error_message());
    }
    DTR_TRY(share_order(ddp));
    dtr__ddp_layout layout = { 0 };
    bool changed = false;
    if (s == DTR_OK) {
        s = make(ddp, &layout, &changed, &mine.hash);
        if (s < 0) {
            mine.status = s;
            snprintf(mine.text, sizeof mine.text, "rank %d: buckets not rebuilt: %.1600s",
                     ddp->rank, dtr_last_error_message());
        }
    }
    dtr__step_status agreed;
    s = dtr__ddp_agree(ddp, &mine, &agreed);
    if (s < 0) {
        DTR_CLEAN_UP(s, dtr__ddp_layout_free(&layout));
        return s;
    }
    pthread_mutex_lock(&ddp->stats.lock);
    if (changed) {
        (void)dtr__ddp_device_leave(ddp); /* values move behind their way out */
        dtr__ddp_layout_use(ddp, &layout);
        if (ddp->strategy->forget != NULL) {
            ddp->strategy->forget(ddp);
        }
    }
    ddp->stats.count.rebuilds++;
    pthread_mutex_unlock(&ddp->stats.lock);
    ddp->reducer->rebuild_due = false;
    DTR_TRY(changed ? dtr__ddp_device_register(ddp) : DTR_OK);
    (void)dtr__ddp_describe(ddp); /* without memory the older text stays */
    dtr__ddp_span(ddp, "ddp_rebuild", ddp->label, start, 0);
    return DTR_OK;
}
