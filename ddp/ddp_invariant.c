/* What must hold in every iteration, looked at in debug builds and under sanitizers; elsewhere
 * nothing is done here. A violation is this library's fault and ends the iteration with
 * DTR_ERR_INTERNAL. */
#include "ddp_internal.h"

#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ON = 1 };
#else
enum { ON = 0 };
#endif
enum { TAG_CHECK = 4 };

static void hold(dtr_ddp *ddp, bool good, const char *which) {
    if (!good) {
        (void)dtr__ddp_note(ddp, DTR_ERR_INTERNAL, DTR__NONE, "%s does not hold on rank %d", which,
                            ddp->rank);
    }
}

void dtr__ddp_check_launch(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    if (!ON) {
        return;
    }
    int divisor = ddp->divisor != 0 ? ddp->divisor : ddp->size;
    hold(ddp, b->index == ddp->next, "IV1 (buckets leave in index order)");
    hold(ddp, !atomic_exchange(&b->under_way, true), "IV1 (a bucket leaves once)");
    hold(ddp, divisor > 0 && (ddp->check.divisor == 0 || ddp->check.divisor == divisor),
         "IV4 (one divisor per iteration)");
    ddp->check.divisor = divisor;
}

void dtr__ddp_check_unsent(dtr_ddp *ddp, size_t bucket) {
    if (!ON) {
        return;
    }
    hold(ddp, bucket == DTR__NONE || !atomic_load(&ddp->buckets[bucket].under_way),
         "IV8 (no write to a bucket under way)");
}

void dtr__ddp_check_pending(dtr_ddp *ddp, size_t before) {
    hold(ddp, !ON || before > 0, "IV2 (a bucket waits for none too few)");
}

/* A sum, because the group of delayed parameters has its place at another time on each rank. */
void dtr__ddp_check_issued(dtr_ddp *ddp, const dtr__request *r, const char *label) {
    if (!ON) {
        return;
    }
    const uint64_t what[] = { (uint64_t)r->kind, (uint64_t)r->in.dtype, r->in.count };
    uint64_t h = dtr__hash_bytes(DTR__HASH_START, what, sizeof what);
    atomic_fetch_add(&ddp->check.issued, dtr__hash_bytes(h, label, strlen(label)));
}

/* From rank to rank, without a collective. A group that breaks meanwhile shows at the next call. */
void dtr__ddp_check_end(dtr_ddp *ddp, bool mapped) {
    if (!ON) {
        return;
    }
    hold(ddp, !mapped || ddp->check.mapped, "IV5 (the used map is sent before it is cleared)");
    if (ddp->size == 1) {
        return;
    }
    uint64_t mine = atomic_load(&ddp->check.issued), theirs = mine;
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = ddp->set.timeout_s;
    o.label = "ddp invariants";
    dtr_p2p ops[] = {
        { true, dtr_cpu(&mine, sizeof mine, DTR_U8), (ddp->rank + 1) % ddp->size, TAG_CHECK },
        { false, dtr_cpu(&theirs, sizeof theirs, DTR_U8), (ddp->rank + ddp->size - 1) % ddp->size,
          TAG_CHECK },
    };
    dtr_status s = dtr_batch_p2p(ddp->group, ops, 2, &o, NULL);
    hold(ddp, s < 0 || mine == theirs, "IV3, IV6 (all ranks issue the same collectives)");
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
    for (size_t s = 0; !dtr__ddp_on_device(ddp) && b->sparse == NULL && ddp->hook.fn == NULL &&
                       ddp->zero == NULL && s < b->plan->n_slots;
         s++) {
        const dtr_plan_slot *slot = &b->plan->slots[s];
        zero = zero && slot->offset >= at && all_zero(b->data + at, slot->offset - at);
        at = slot->offset + slot->nbytes;
    }
    return zero &&
           (dtr__ddp_on_device(ddp) || at == 0 || all_zero(b->data + at, b->plan->nbytes - at));
}

void dtr__ddp_check_idle(dtr_ddp *ddp) {
    if (!ON) {
        return;
    }
    bool counts = true, padding = true;
    for (size_t k = 0; k < ddp->n_buckets; k++) {
        const dtr_ddp_bucket *b = &ddp->buckets[k];
        counts = counts && atomic_load(&b->pending) == b->plan->n_slots;
        padding = padding && padding_is_zero(ddp, b);
    }
    if (!counts || !padding) {
        (void)dtr__ddp_break(ddp, DTR_FAIL(NULL, DTR_ERR_INTERNAL, "%s does not hold on rank %d",
                                           counts ? "IV7 (slots are apart, padding is zero)"
                                                  : "IV2 (counts are full between iterations)",
                                           ddp->rank));
    }
}
