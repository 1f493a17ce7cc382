/* How one rank's error becomes every rank's error. A rank notes what went wrong and carries on with
 * zeros; a flag in the status slot of the last bucket, or where no such bucket travels one round of
 * small messages, tells all ranks that somebody has a verdict; only then are the texts exchanged,
 * as words of the control plane (rt_ballot.h) or, where the world does without, by messages. The
 * number of collectives is the same with and without an error. */
#include "ddp_internal.h"
#include "kernels/kernels.h"
#include "rt_ballot.h"

enum { TAG_FLAG = 1, TAG_VERDICT = 2, TAG_DECISION = 3 };

/* ---- noting ---- */

/* The lowest parameter is named, the others are counted. */
static void keep(dtr_ddp *ddp, dtr_status s, size_t param, bool callers, const dtr_error *native,
                 const char *text) {
    pthread_mutex_lock(&ddp->verdict_lock);
    dtr__verdict *v = &ddp->verdict;
    uint64_t at = param == DTR__NONE ? UINT64_MAX : param;
    uint64_t others = v->status != DTR_OK ? v->others + 1 : 0;
    if (v->status == DTR_OK || at < v->param) {
        *v = (dtr__verdict){ .status = s,
                             .rank = ddp->rank,
                             .param = at,
                             .callers = callers,
                             .native = (int32_t)native->native,
                             .native_code = native->native_code };
        snprintf(v->native_text, sizeof v->native_text, "%s", native->native_text);
        if ((size_t)snprintf(v->text, sizeof v->text, "%s", text) >= sizeof v->text - 1) {
            memcpy(v->text + sizeof v->text - 5, " ...", 5);
        }
    }
    v->others = others;
    atomic_store(&ddp->bad, true);
    pthread_mutex_unlock(&ddp->verdict_lock);
}

/* The native call that led to `s`, if this thread's last error knows one. */
static dtr_error native_of(dtr_status s) {
    dtr_error e = DTR_ERROR_INIT;
    (void)dtr_last_error(&e);
    return e.status == s ? e : (dtr_error){ .native_text = "" };
}

static dtr_status note(dtr_ddp *ddp, dtr_status s, size_t param, bool callers, const char *fmt,
                       va_list ap) {
    char text[sizeof ddp->verdict.text];
    vsnprintf(text, sizeof text, fmt, ap);
    dtr_error native = native_of(s);
    dtr__error_context ctx = { .world = ddp->world,
                               .operation = "ddp",
                               .group = ddp->group->name,
                               .native = native.native,
                               .native_code = native.native_code,
                               .native_text = native.native_text };
    DTR_FAIL(&ctx, s, "%s", text);
    native = native_of(s); /* the text has moved */
    keep(ddp, s, param, callers, &native, text);
    return dtr__ddp_failed(ddp, s);
}

dtr_status dtr__ddp_note(dtr_ddp *ddp, dtr_status s, size_t param, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    s = note(ddp, s, param, false, fmt, ap);
    va_end(ap);
    return s;
}

dtr_status dtr__ddp_note_caller(dtr_ddp *ddp, dtr_status s, size_t param, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    s = note(ddp, s, param, true, fmt, ap);
    va_end(ap);
    return s;
}

void dtr__ddp_note_last(dtr_ddp *ddp, dtr_status s, size_t param) {
    char text[sizeof ddp->verdict.text];
    const dtr_error native = native_of(s);
    snprintf(text, sizeof text, "rank %d: %s", ddp->rank, dtr_last_error_message());
    keep(ddp, s, param, false, &native, text);
    (void)dtr__ddp_failed(ddp, s);
}

/* ---- the flag ---- */

/* Not zero, and neither lost nor infinite in any bucket type when it is averaged over 100,000
 * ranks. */
static const double bad_flag = 256.0;

void dtr__ddp_status_write(dtr_ddp *ddp, bool bad) {
    dtr_ddp_bucket *b = &ddp->buckets[ddp->carrier];
    double value = bad ? bad_flag : 0.0;
    char *at = b->data + b->plan->nbytes;
    memset(at, 0, DTR__PLAN_ALIGN);
    dtr__convert(at, b->plan->dtype, &value, DTR_F64, 1);
}

bool dtr__ddp_status_bad(const dtr_ddp *ddp) {
    static const char good[16] = { 0 };
    const dtr_ddp_bucket *b = &ddp->buckets[ddp->carrier];
    return memcmp(b->data + b->plan->nbytes, good, dtr_dtype_size(b->plan->dtype)) != 0;
}

static dtr_coll_options message_options(const dtr_ddp *ddp) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = ddp->set.timeout_s;
    o.label = "ddp verdict";
    return o;
}

dtr_status dtr__ddp_any_bad(dtr_ddp *ddp, bool mine, bool *any) {
    uint8_t all = mine;
    dtr_coll_options o = message_options(ddp);
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

dtr_status dtr__ddp_verdict_fail(const dtr_ddp *ddp, const dtr__verdict *v, dtr_status s,
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

/* ---- the exchange by messages ---- */

bool dtr__ddp_own_failure(dtr_status s) {
    return s == DTR_ERR_NOMEM || s == DTR_ERR_SYSTEM || s == DTR_ERR_MPI || s == DTR_ERR_CUDA ||
           s == DTR_ERR_NCCL;
}

/* Whether the one is what the other heard of: a group that a failure broke is REMOTE elsewhere. */
static bool is_cause(const dtr__verdict *one, const dtr__verdict *all) {
    return all->status == DTR_ERR_REMOTE && dtr__ddp_own_failure((dtr_status)one->status);
}

/* Rank 0: the lowest bad rank decides, the others are counted. */
static void merge(dtr__verdict *all, const dtr__verdict *one) {
    uint64_t hash = all->hash, hook_broken = all->hook_broken | one->hook_broken;
    if (one->status != DTR_OK && (all->status == DTR_OK || is_cause(one, all))) {
        uint64_t before = all->status != DTR_OK ? all->bad_ranks : 0;
        *all = *one;
        all->hash = hash;
        all->bad_ranks = before + 1;
    } else if (one->status != DTR_OK) {
        all->bad_ranks++;
    } else if (all->status == DTR_OK && one->hash != all->hash) {
        all->status = DTR_ERR_INTERNAL;
        all->rank = one->rank;
        all->bad_ranks = 1;
        snprintf(all->text, sizeof all->text,
                 "rank %d has rebuilt its buckets to another plan than rank 0 (hash %016llx, not "
                 "%016llx)",
                 one->rank, (unsigned long long)one->hash, (unsigned long long)all->hash);
    }
    all->hook_broken = hook_broken;
}

static dtr_buffer verdict_buffer(dtr__verdict *v) {
    return dtr_cpu(v, sizeof *v, DTR_U8);
}

static dtr_status collect(dtr_ddp *ddp, dtr__verdict *all) {
    dtr_coll_options o = message_options(ddp);
    for (int r = 1; r < ddp->size; r++) {
        dtr__verdict one;
        DTR_TRY(dtr_recv(ddp->group, verdict_buffer(&one), r, TAG_VERDICT, &o, NULL));
        merge(all, &one);
    }
    for (int r = 1; r < ddp->size; r++) {
        DTR_TRY(dtr_send(ddp->group, verdict_buffer(all), r, TAG_DECISION, &o, NULL));
    }
    return DTR_OK;
}

static dtr_status ask(dtr_ddp *ddp, dtr__verdict *all) {
    dtr_coll_options o = message_options(ddp);
    DTR_TRY(dtr_send(ddp->group, verdict_buffer(all), 0, TAG_VERDICT, &o, NULL));
    return dtr_recv(ddp->group, verdict_buffer(all), 0, TAG_DECISION, &o, NULL);
}

/* ---- the exchange by words of the control plane ---- */

/* The lowest rank counts, but one that only heard of a failure after all others. */
static dtr__ballot ballot_of(const dtr_ddp *ddp, const dtr__verdict *mine) {
    dtr__ballot b = { .uid = ddp->group->uid,
                      .step = ddp->agreements,
                      .low = mine->hash,
                      .high = mine->hash,
                      .bits = mine->hook_broken,
                      .value = mine->others << 1 | (mine->callers != 0),
                      .status = mine->status,
                      .order = ddp->rank + (mine->status == DTR_ERR_REMOTE ? ddp->size : 0),
                      .native = mine->native,
                      .native_code = mine->native_code };
    _Static_assert(sizeof b.text == sizeof mine->text, "whole");
    _Static_assert(sizeof b.native_text == sizeof mine->native_text, "whole");
    memcpy(b.text, mine->text, sizeof b.text);
    memcpy(b.native_text, mine->native_text, sizeof b.native_text);
    return b;
}

static void verdict_of(const dtr_ddp *ddp, const dtr__ballot *b, dtr__verdict *all) {
    *all = (dtr__verdict){ .status = b->status,
                           .rank = dtr_group_rank_of(ddp->group, b->origin),
                           .others = b->value >> 1,
                           .callers = b->value & 1,
                           .bad_ranks = b->n_bad,
                           .hash = b->low,
                           .hook_broken = b->bits,
                           .native = b->native,
                           .native_code = b->native_code };
    memcpy(all->text, b->text, sizeof all->text);
    memcpy(all->native_text, b->native_text, sizeof all->native_text);
    if (b->status == DTR_OK && b->low != b->high) {
        all->status = DTR_ERR_INTERNAL;
        snprintf(all->text, sizeof all->text,
                 "the ranks have rebuilt their buckets to different plans (hashes %016llx to "
                 "%016llx)",
                 (unsigned long long)b->low, (unsigned long long)b->high);
    }
}

static dtr_status is_broken(void *arg) {
    const dtr_group *g = arg;
    const dtr_status s = dtr_group_status(g);
    return s < 0 ? dtr__error_restore(g->error, s) : DTR_OK;
}

static dtr_status by_ballot(dtr_ddp *ddp, dtr__verdict *all) {
    dtr_group *g = ddp->group;
    const double limit_s = ddp->set.timeout_s > 0 ? ddp->set.timeout_s : g->timeout_s;
    const dtr__ballot mine = ballot_of(ddp, all);
    dtr__ballot agreed;
    dtr_status s = dtr__ballot_put(ddp->world, g->world_ranks, g->size, &mine);
    if (s == DTR_OK) {
        s = dtr__ballot_get(ddp->world, g->world_ranks, g->size, mine.uid, mine.step, limit_s,
                            is_broken, g, &agreed);
    }
    if (s != DTR_OK) {
        dtr__group_break(g, s); /* whoever waits for this rank's word */
        return s;
    }
    verdict_of(ddp, &agreed, all);
    return DTR_OK;
}

dtr_status dtr__ddp_agree(dtr_ddp *ddp, const dtr__verdict *mine, dtr__verdict *agreed) {
    dtr__verdict all = *mine;
    all.rank = ddp->rank;
    all.bad_ranks = mine->status != DTR_OK ? 1 : 0;
    ddp->agreements++;
    if (dtr__ballots_serve(ddp->world)) {
        DTR_TRY(by_ballot(ddp, &all));
    } else {
        DTR_TRY(ddp->rank == 0 ? collect(ddp, &all) : ask(ddp, &all));
    }
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
    return dtr__ddp_verdict_fail(ddp, &all, s, more);
}
