/* How one rank's error becomes every rank's error. A rank notes what went wrong and carries on with
 * zeros; a flag in the status slot of the last bucket, or where no such bucket travels one round of
 * small messages, tells all ranks that somebody has a verdict; only then are the texts exchanged.
 * All of it is point to point: the number of collectives is the same with and without an error. */
#include "ddp_internal.h"
#include "kernels/kernels.h"

enum { TAG_FLAG = 1, TAG_VERDICT = 2, TAG_DECISION = 3 };

/* ---- noting ---- */

/* The lowest parameter is named, the others are counted. */
static void keep(dtr_ddp *ddp, dtr_status s, size_t param, bool callers, const char *text) {
    pthread_mutex_lock(&ddp->verdict_lock);
    dtr__verdict *v = &ddp->verdict;
    uint64_t at = param == DTR__NONE ? UINT64_MAX : param;
    uint64_t others = v->status != DTR_OK ? v->others + 1 : 0;
    if (v->status == DTR_OK || at < v->param) {
        *v = (dtr__verdict){ .status = s, .rank = ddp->rank, .param = at, .callers = callers };
        snprintf(v->text, sizeof v->text, "%s", text);
    }
    v->others = others;
    atomic_store(&ddp->bad, true);
    pthread_mutex_unlock(&ddp->verdict_lock);
}

static dtr_status note(dtr_ddp *ddp, dtr_status s, size_t param, bool callers, const char *fmt,
                       va_list ap) {
    char text[sizeof ddp->verdict.text];
    vsnprintf(text, sizeof text, fmt, ap);
    dtr__error_context ctx = { .world = ddp->world, .operation = "ddp", .group = ddp->group->name };
    DTR_FAIL(&ctx, s, "%s", text);
    keep(ddp, s, param, callers, text);
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
    snprintf(text, sizeof text, "rank %d: %.460s", ddp->rank, dtr_last_error_message());
    keep(ddp, s, param, false, text);
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

/* ---- the exchange ---- */

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

dtr_status dtr__ddp_agree(dtr_ddp *ddp, const dtr__verdict *mine, dtr__verdict *agreed) {
    dtr__verdict all = *mine;
    all.rank = ddp->rank;
    all.bad_ranks = mine->status != DTR_OK ? 1 : 0;
    DTR_TRY(ddp->rank == 0 ? collect(ddp, &all) : ask(ddp, &all));
    *agreed = all;
    if (all.status == DTR_OK) {
        return DTR_OK;
    }
    dtr__error_context ctx = { .world = ddp->world, .operation = "ddp", .group = ddp->group->name };
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
    return DTR_FAIL(&ctx, s, "%s%s", all.text, more);
}
