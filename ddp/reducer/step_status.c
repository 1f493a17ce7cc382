/* How one rank's error becomes every rank's error. A rank notes what went wrong (core/note.c) and
 * carries on with zeros; a flag in the status slot of the last bucket, or where no such bucket
 * travels one round of small messages, says to all ranks that somebody has an error; only then are
 * the texts exchanged, as a vote on the control plane (control/vote.h). The number of collectives
 * is the same with and without an error. */
#include "control/vote.h"
#include "core/team.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "reducer_internal.h"

enum { TAG_FLAG = 1, TAG_STATUS = 2, TAG_AGREED = 3 };

/* ---- the flag ---- */

/* Not zero, and neither lost nor infinite in any bucket type when it is averaged over 100,000
 * ranks. */
static const double bad_flag = 256.0;

void dtr__ddp_status_write(dtr_ddp *ddp, bool bad) {
    dtr_ddp_bucket *b = &ddp->buckets[ddp->reducer->carrier];
    double value = bad ? bad_flag : 0.0;
    char *at = b->data + b->plan->nbytes;
    memset(at, 0, DTR__PLAN_ALIGN);
    dtr__convert(at, b->plan->dtype, &value, DTR_F64, 1);
}

bool dtr__ddp_status_bad(const dtr_ddp *ddp) {
    static const char good[16] = { 0 };
    const dtr_ddp_bucket *b = &ddp->buckets[ddp->reducer->carrier];
    return memcmp(b->data + b->plan->nbytes, good, dtr_dtype_size(b->plan->dtype)) != 0;
}

dtr_status dtr__ddp_any_bad(dtr_ddp *ddp, bool mine, bool *any) {
    uint8_t all = mine;
    dtr_coll_options o = dtr__ddp_options(ddp, "ddp status");
    for (int step = 1; step < ddp->size; step *= 2) {
        uint8_t sent = all, got = 0;
        dtr_p2p ops[] = {
            { true, dtr_cpu(&sent, 1, DTR_U8), (ddp->rank + step) % ddp->size, TAG_FLAG },
            { false, dtr_cpu(&got, 1, DTR_U8), (ddp->rank - step + ddp->size) % ddp->size,
              TAG_FLAG },
        };
        DTR_TRY(dtr_batch_p2p(ddp->group, ops, 2, &o, NULL));
        all |= got;
    }
    *any = all != 0;
    return DTR_OK;
}

dtr_status dtr__ddp_step_fail(const dtr_ddp *ddp, const dtr__step_status *v, dtr_status s,
                              const char *more) {
    dtr__error_context ctx = { .world = ddp->world,
                               .operation = "ddp",
                               .group = ddp->group->name,
                               .native = (dtr_native)v->native,
                               .native_code = v->native_code,
                               .native_text =
                                   v->native != DTR_NATIVE_NONE ? v->native_text : NULL };
    return DTR_FAIL(&ctx, s, "%s%s", v->text, more);
}

/* ---- the exchange ---- */

/* The lowest rank counts, but one that only saw the failure of another after all others. */
static dtr__vote vote_of(const dtr_ddp *ddp, const dtr__step_status *mine) {
    dtr__vote v = { .uid = ddp->group->uid,
                    .step = ddp->reducer->agreements,
                    .low = mine->hash,
                    .high = mine->hash,
                    .bits = mine->gave_up,
                    .value = mine->others << 1 | (mine->callers != 0),
                    .status = mine->status,
                    .origin = ddp->group->world_ranks[ddp->rank],
                    .order = ddp->rank + (mine->status == DTR_ERR_REMOTE ? ddp->size : 0),
                    .native = mine->native,
                    .native_code = mine->native_code,
                    .n_bad = mine->status != DTR_OK ? 1 : 0 };
    _Static_assert(sizeof v.text == sizeof mine->text, "whole");
    _Static_assert(sizeof v.native_text == sizeof mine->native_text, "whole");
    memcpy(v.text, mine->text, sizeof v.text);
    memcpy(v.native_text, mine->native_text, sizeof v.native_text);
    return v;
}

static void status_of(const dtr_ddp *ddp, const dtr__vote *v, dtr__step_status *all) {
    *all = (dtr__step_status){ .status = v->status,
                               .rank = dtr_group_rank_of(ddp->group, v->origin),
                               .others = v->value >> 1,
                               .callers = v->value & 1,
                               .bad_ranks = v->n_bad,
                               .hash = v->low,
                               .gave_up = v->bits,
                               .native = v->native,
                               .native_code = v->native_code };
    memcpy(all->text, v->text, sizeof all->text);
    memcpy(all->native_text, v->native_text, sizeof all->native_text);
    if (v->status == DTR_OK && v->low != v->high) {
        all->status = DTR_ERR_INTERNAL;
        snprintf(all->text, sizeof all->text,
                 "the ranks have rebuilt their buckets to different plans (hashes %016llx to "
                 "%016llx)",
                 (unsigned long long)v->low, (unsigned long long)v->high);
    }
}

static dtr_status is_broken(void *arg) {
    const dtr_group *g = arg;
    const dtr_status s = dtr_group_status(g);
    return s < 0 ? dtr__error_restore(g->error, s) : DTR_OK;
}

static dtr_status by_vote(dtr_ddp *ddp, dtr__vote *v) {
    dtr_group *g = ddp->group;
    const double limit_s = ddp->set.timeout_s > 0 ? ddp->set.timeout_s : g->timeout_s;
    const dtr__vote mine = *v;
    dtr_status s = dtr__vote_put(ddp->world, g->world_ranks, g->size, &mine);
    if (s == DTR_OK) {
        s = dtr__vote_get(ddp->world, g->world_ranks, g->size, mine.uid, mine.step, limit_s,
                          is_broken, g, v);
    }
    if (s != DTR_OK) {
        dtr__group_break(g, s); /* for ranks that wait for this rank's vote */
    }
    return s;
}

/* The same votes through rank 0, for worlds whose control plane takes none. */
static dtr_status by_messages(dtr_ddp *ddp, dtr__vote *v) {
    const dtr_coll_options o = dtr__ddp_options(ddp, "ddp status");
    const dtr_buffer all = dtr_cpu(v, sizeof *v, DTR_U8);
    if (ddp->rank != 0) {
        DTR_TRY(dtr_send(ddp->group, all, 0, TAG_STATUS, &o, NULL));
        return dtr_recv(ddp->group, all, 0, TAG_AGREED, &o, NULL);
    }
    for (int r = 1; r < ddp->size; r++) {
        dtr__vote one;
        DTR_TRY(dtr_recv(ddp->group, dtr_cpu(&one, sizeof one, DTR_U8), r, TAG_STATUS, &o, NULL));
        const uint32_t n_bad = v->n_bad + one.n_bad;
        dtr__vote_merge(v, &one);
        v->n_bad = n_bad;
    }
    for (int r = 1; r < ddp->size; r++) {
        DTR_TRY(dtr_send(ddp->group, all, r, TAG_AGREED, &o, NULL));
    }
    return DTR_OK;
}

dtr_status dtr__ddp_agree(dtr_ddp *ddp, const dtr__step_status *mine, dtr__step_status *agreed) {
    ddp->reducer->agreements++;
    dtr__vote vote = vote_of(ddp, mine);
    DTR_TRY(dtr__votes_serve(ddp->world) ? by_vote(ddp, &vote) : by_messages(ddp, &vote));
    dtr__step_status all;
    status_of(ddp, &vote, &all);
    *agreed = all;
    if (all.status == DTR_OK) {
        return DTR_OK;
    }
    dtr_status s = (dtr_status)all.status;
    if (dtr__ddp_own_failure(s) && all.rank != ddp->rank) {
        s = dtr__ddp_own_failure((dtr_status)mine->status) ? (dtr_status)mine->status
                                                           : DTR_ERR_REMOTE;
    }
    char more[96] = "";
    dtr__text t = { more, sizeof more, 0 };
    if (all.others > 0) {
        dtr__text_add(&t, " (%llu more on that rank)", (unsigned long long)all.others);
    }
    if (all.bad_ranks > 1) {
        dtr__text_add(&t, " (and on %llu more of %d ranks)", (unsigned long long)all.bad_ranks - 1,
                      ddp->size);
    }
    return dtr__ddp_step_fail(ddp, &all, s, more);
}

dtr_status dtr__ddp_break(dtr_ddp *ddp, dtr_status s) {
    (void)dtr__ddp_failed(ddp, s);
    /* What this rank could not start or finish others wait for, whatever the reason. */
    dtr__group_break(ddp->group, s);
    if (ddp->reducer->delayed.group != NULL) {
        dtr__group_break(ddp->reducer->delayed.group, s);
    }
    pthread_mutex_lock(&ddp->lock);
    if (ddp->errors.failure_status == DTR_OK) {
        ddp->errors.failure = dtr__error_save();
        ddp->errors.failure_status = s;
    }
    atomic_store(&ddp->state, DTR__DDP_FAILED);
    pthread_mutex_unlock(&ddp->lock);
    return s;
}

dtr_status dtr__ddp_leave(dtr_ddp *ddp, dtr_status s) {
    if (s < 0 && dtr_group_status(ddp->group) < 0) {
        return dtr__ddp_break(ddp, s);
    }
    atomic_store(&ddp->state, DTR__DDP_IDLE);
    return dtr__ddp_result(ddp, s);
}
