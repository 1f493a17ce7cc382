/* What must hold in every iteration, checked in debug builds and under sanitizers; elsewhere
 * nothing is done here. A violation is this library's fault and ends the iteration with
 * DTR_ERR_INTERNAL. */
#include "reducer_internal.h"

enum { TAG_CHECK = 4 };

static void hold(dtr_ddp *ddp, bool good, const char *which) {
    if (!good) {
        (void)dtr__ddp_note(ddp, DTR_ERR_INTERNAL, DTR__NONE, "on rank %d this does not hold: %s",
                            ddp->rank, which);
    }
}

void dtr__ddp_check_launch(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    if (!DTR__DDP_CHECKS) {
        return;
    }
    int divisor = ddp->it.divisor != 0 ? ddp->it.divisor : ddp->size;
    hold(ddp, b->index == ddp->it.next, "buckets leave in index order");
    hold(ddp, !atomic_exchange(&b->under_way, true), "a bucket leaves once");
    hold(ddp, divisor > 0 && (ddp->it.check.divisor == 0 || ddp->it.check.divisor == divisor),
         "one divisor per iteration");
    ddp->it.check.divisor = divisor;
}

void dtr__ddp_check_unsent(dtr_ddp *ddp, size_t bucket) {
    if (!DTR__DDP_CHECKS) {
        return;
    }
    hold(ddp, bucket == DTR__NONE || !atomic_load(&ddp->buckets[bucket].under_way),
         "no write to a bucket under way");
}

void dtr__ddp_check_pending(dtr_ddp *ddp, size_t before) {
    hold(ddp, !DTR__DDP_CHECKS || before > 0, "a bucket counts each gradient once");
}

/* From rank to rank, without a collective. A group that breaks meanwhile shows at the next call. */
void dtr__ddp_check_end(dtr_ddp *ddp, bool mapped) {
    if (!DTR__DDP_CHECKS) {
        return;
    }
    hold(ddp, !mapped || ddp->it.check.mapped, "the used map is sent before it is cleared");
    if (ddp->size == 1 || ddp->reducer->late.travels) { /* there the host waits for nobody */
        return;
    }
    uint64_t mine = atomic_load(&ddp->it.check.issued), theirs = mine;
    dtr_coll_options o = dtr__ddp_options(ddp, "ddp invariants");
    dtr_p2p ops[] = {
        { true, dtr_cpu(&mine, sizeof mine, DTR_U8), (ddp->rank + 1) % ddp->size, TAG_CHECK },
        { false, dtr_cpu(&theirs, sizeof theirs, DTR_U8), (ddp->rank + ddp->size - 1) % ddp->size,
          TAG_CHECK },
    };
    dtr_status s = dtr_batch_p2p(ddp->group, ops, 2, &o, NULL);
    hold(ddp, s < 0 || mine == theirs, "all ranks issue the same collectives");
}

static bool all_zero(const char *at, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i++) {
        if (at[i] != 0) {
            return false;
        }
    }
    return true;
}

/* What a hook or a slice of a sharded optimizer puts there is its own matter. */
static bool padding_is_zero(const dtr_ddp *ddp, const dtr_ddp_bucket *b) {
    size_t at = 0;
    bool zero = true;
    if (dtr__ddp_on_device(ddp) || b->sparse != NULL || !ddp->strategy->carries_status) {
        return true;
    }
    for (size_t s = 0; s < b->plan->n_slots; s++) {
        const dtr_plan_slot *slot = &b->plan->slots[s];
        zero = zero && slot->offset >= at && all_zero(b->data + at, slot->offset - at);
        at = slot->offset + slot->nbytes;
    }
    return zero && (at == 0 || all_zero(b->data + at, b->plan->nbytes - at));
}

void dtr__ddp_check_idle(dtr_ddp *ddp) {
    if (!DTR__DDP_CHECKS) {
        return;
    }
    bool counts = true, padding = true;
    for (size_t k = 0; k < ddp->n_buckets; k++) {
        const dtr_ddp_bucket *b = &ddp->buckets[k];
        counts = counts && atomic_load(&b->pending) == b->plan->n_slots;
        padding = padding && padding_is_zero(ddp, b);
    }
    if (!counts || !padding) {
        (void)dtr__ddp_break(ddp, DTR_FAIL(NULL, DTR_ERR_INTERNAL,
                                           "on rank %d this does not hold: %s", ddp->rank,
                                           counts ? "slots are apart, padding is zero"
                                                  : "counts are full between iterations"));
    }
}
