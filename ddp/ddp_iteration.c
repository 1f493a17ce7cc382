/* The states of a module outside of reduction: forward passes, flags, opening a backward pass, and
 * what is refused when. */
#include <stdlib.h>

#include "ddp_internal.h"

const char *dtr__ddp_state_name(int state) {
    static const char *const names[] = {
        [DTR__DDP_IDLE] = "no iteration is open",
        [DTR__DDP_FORWARD] = "a forward pass is open",
        [DTR__DDP_ARMED] = "the forward pass has ended",
        [DTR__DDP_LOCAL] = "a backward pass without sync is open",
        [DTR__DDP_REDUCING] = "a backward pass is open",
        [DTR__DDP_BUSY] = "another call of the module is running",
        [DTR__DDP_FAILED] = "the module has failed",
    };
    return names[state];
}

static dtr__error_context context(const dtr_ddp *ddp, const char *entry) {
    return (
        dtr__error_context){ .world = ddp->world, .operation = entry, .group = ddp->group->name };
}

dtr_status dtr__ddp_refuse(dtr_ddp *ddp, const char *entry, const char *hint) {
    dtr__error_context ctx = context(ddp, entry);
    return dtr__ddp_failed(ddp, DTR_FAIL(&ctx, DTR_ERR_STATE, "%s: %s; %s", entry,
                                         dtr__ddp_state_name(atomic_load(&ddp->state)), hint));
}

/* ---- who is not ready ---- */

static bool is_ready(const dtr_ddp *ddp, size_t i) {
    const dtr__ddp_param *p = &ddp->params[i];
    if (p->bucket == DTR__NONE) {
        return true;
    }
    return ddp->mode == DTR__MODE_LEARN || ddp->mode == DTR__MODE_LATE
               ? atomic_load(&p->calls) > 0
               : atomic_load(&p->mark) != DTR__MARK_OPEN;
}

/* "'fc1' (0), 'fc2' (1) and 3 more" */
static size_t list_missing(const dtr_ddp *ddp, char *text, size_t cap) {
    enum { NAMED = 8 };
    dtr__text t = { text, cap, 0 };
    size_t n = 0;
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        size_t i = ddp->trainable[k];
        if (!is_ready(ddp, i) && n++ < NAMED) {
            dtr__text_add(&t, "%s'%s' (%zu)", n > 1 ? ", " : "", ddp->params[i].name, i);
        }
    }
    if (dtr__ddp_delayed_missing(ddp) && n++ < NAMED) {
        dtr__text_add(&t, "%s'%s' (%zu)", n > 1 ? ", " : "", ddp->params[ddp->delayed.trigger].name,
                      ddp->delayed.trigger);
    }
    if (n > NAMED) {
        dtr__text_add(&t, " and %zu more", n - NAMED);
    }
    return n;
}

static dtr_status refuse_open_backward(dtr_ddp *ddp, const char *entry) {
    char missing[600] = "";
    size_t n = list_missing(ddp, missing, sizeof missing);
    dtr__error_context ctx = context(ddp, entry);
    return dtr__ddp_failed(
        ddp, DTR_FAIL(&ctx, DTR_ERR_STATE,
                      "%s: a backward pass is open, end it with dtr_ddp_backward_end; not ready "
                      "yet: %s",
                      entry, n > 0 ? missing : "none, all gradients are there"));
}

dtr_status dtr_ddp_check_finalized(dtr_ddp *ddp) {
    static const char entry[] = "dtr_ddp_check_finalized";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    int state = atomic_load(&ddp->state);
    if (state != DTR__DDP_REDUCING && state != DTR__DDP_ARMED) {
        return DTR_OK;
    }
    char missing[600] = "";
    size_t n = list_missing(ddp, missing, sizeof missing);
    if (n == 0) {
        return DTR_OK;
    }
    dtr__error_context ctx = context(ddp, entry);
    return dtr__ddp_failed(
        ddp, DTR_FAIL(&ctx, DTR_ERR_STATE, "not ready in this iteration: %s", missing));
}

/* ---- opening ---- */

/* Steps run on averages: an iteration without sync has none. */
static dtr_status check_step(dtr_ddp *ddp, const char *entry, bool sync, bool eval) {
    if (ddp->step.fn == NULL || sync || eval) {
        return DTR_OK;
    }
    dtr__error_context ctx = context(ddp, entry);
    return dtr__ddp_failed(ddp,
                           DTR_FAIL(&ctx, DTR_ERR_STATE,
                                    "%s: sync is off, but the module steps its parameters itself "
                                    "(dtr_ddp_set_step): there would be no average to step with",
                                    entry));
}

/* The flags of an iteration are read once, here (F3, N2). */
static dtr_status read_flags(dtr_ddp *ddp, const char *entry, bool *sync, bool *eval) {
    *eval = atomic_load(&ddp->eval);
    *sync = atomic_load(&ddp->sync);
    if (ddp->set.static_graph && !ddp->learned && !*sync && !*eval) {
        dtr__error_context ctx = context(ddp, entry);
        return dtr__ddp_failed(
            ddp, DTR_FAIL(&ctx, DTR_ERR_STATE,
                          "%s: with static_graph the first iteration must be synchronised, that is "
                          "where the graph is learned; sync is off",
                          entry));
    }
    return check_step(ddp, entry, *sync, *eval);
}

static void set_flags(dtr_ddp *ddp, bool sync, bool eval) {
    ddp->it_sync = sync;
    ddp->it_eval = eval;
    ddp->mode = ddp->set.find_unused     ? DTR__MODE_DYNAMIC
                : !ddp->set.static_graph ? DTR__MODE_PLAIN
                : !ddp->learned          ? DTR__MODE_LEARN
                : !ddp->learned_here     ? DTR__MODE_LATE
                                         : DTR__MODE_STATIC;
    ddp->begun = true;
    ddp->divisor = 0;
    ddp->buffer_source = 0;
    ddp->seq_begun = dtr__ddp_seq(ddp);
}

void dtr__ddp_shadow_flags(dtr_ddp *ddp, bool sync) {
    int divisor = ddp->divisor, source = ddp->buffer_source;
    set_flags(ddp, sync, false);
    ddp->divisor = divisor;
    ddp->buffer_source = source;
    ddp->it_forward = ddp->it_list = false;
    ddp->t_backward = dtr__now_ns();
}

/* Gradients that will not come: listed as unused, or unused when the static graph was learned. Each
 * contributes what it has (U3). */
static void ready_unused(dtr_ddp *ddp) {
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        size_t i = ddp->trainable[k];
        dtr__ddp_param *p = &ddp->params[i];
        bool unused = ddp->mode == DTR__MODE_STATIC ? p->learned == 0 : ddp->it_list && p->listed;
        if (unused && p->bucket != DTR__NONE) {
            dtr__ddp_put_unused(ddp, i);
            atomic_store(&p->mark, DTR__MARK_LISTED);
            dtr__ddp_check_pending(ddp, atomic_fetch_sub(&ddp->buckets[p->bucket].pending, 1));
        }
    }
}

dtr_status dtr__ddp_open_backward(dtr_ddp *ddp, const char *entry, void *stream) {
    int state = atomic_load(&ddp->state);
    DTR_TRY(dtr__zero_may_open(ddp, entry));
    if (state == DTR__DDP_IDLE) {
        bool sync, eval;
        DTR_TRY(read_flags(ddp, entry, &sync, &eval));
        if (eval) {
            return dtr__ddp_refuse(ddp, entry,
                                   "the module evaluates (dtr_ddp_set_eval), so no "
                                   "gradient is expected");
        }
        if (dtr__ddp_joined(ddp)) {
            return dtr__ddp_refuse(ddp, entry,
                                   "during a join every iteration starts with "
                                   "dtr_ddp_forward_begin, which tells the ranks that have joined");
        }
        set_flags(ddp, sync, eval);
        ddp->it_forward = false;
        ddp->it_list = false;
        ddp->t_backward = dtr__now_ns();
        dtr__ddp_timing_open(ddp, DTR__AT_OPEN, stream);
    } else if (state != DTR__DDP_ARMED) {
        return dtr__ddp_refuse(ddp, entry,
                               state == DTR__DDP_FORWARD
                                   ? "call dtr_ddp_forward_end first"
                                   : "gradients of this iteration can no longer become ready");
    } else {
        dtr__ddp_timing_open(ddp, DTR__AT_OPEN, stream);
    }
    if (ddp->it_sync && (ddp->it_list || ddp->mode == DTR__MODE_STATIC)) {
        dtr_status s = dtr__ddp_device_follow(ddp, stream);
        if (s < 0) {
            dtr__ddp_note_last(ddp, s, DTR__NONE);
        }
        ready_unused(ddp);
    }
    atomic_store(&ddp->state, ddp->it_sync ? DTR__DDP_REDUCING : DTR__DDP_LOCAL);
    return DTR_OK;
}

void dtr__ddp_rearm(dtr_ddp *ddp) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        atomic_store(&ddp->buckets[b].pending, ddp->buckets[b].plan->n_slots);
        atomic_store(&ddp->buckets[b].finished_ns, 0);
        dtr__ddp_range_end(&ddp->buckets[b]); /* of a sparse parameter, or one that failed */
        atomic_store(&ddp->buckets[b].under_way, false);
        ddp->buckets[b].n_feeds = 0;
    }
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        atomic_store(&p->mark, DTR__MARK_OPEN);
        atomic_store(&p->put, DTR__PUT_NOTHING);
        atomic_store(&p->calls, 0);
        atomic_store(&p->stamp, 0);
        p->listed = false;
        p->saved = DTR__NONE;
    }
    dtr__ddp_sparse_rearm(ddp);
    dtr__ddp_delayed_rearm(ddp);
    dtr__ddp_hook_rearm(ddp);
    dtr__ddp_step_rearm(ddp);
    atomic_store(&ddp->stamps, 0);
    atomic_store(&ddp->copied_in, 0);
    atomic_store(&ddp->copied_out, 0);
    ddp->check.divisor = 0;
    ddp->check.mapped = false;
    atomic_store(&ddp->check.issued, 0);
    ddp->next = 0;
    ddp->launch_status = DTR_OK;
    pthread_mutex_lock(&ddp->verdict_lock);
    ddp->verdict = (dtr__verdict){ 0 };
    atomic_store(&ddp->bad, false);
    pthread_mutex_unlock(&ddp->verdict_lock);
}

/* ---- forward ---- */

dtr_status dtr__ddp_send_all(dtr_ddp *ddp, dtr_tensor *const *list, size_t n, int root) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = ddp->set.timeout_s;
    o.label = "ddp sync";
    dtr_status s = dtr__ddp_on_device(ddp)
                       ? dtr__ddp_device_send(ddp, list, n, root)
                       : dtr__broadcast_coalesced(ddp->group, list, n, root, 0, &o,
                                                  dtr__ddp_tag(ddp, DTR__PART_SYNC));
    if (s < 0) {
        dtr__group_break(ddp->group, s); /* also for an error of this rank alone: others wait */
    }
    return s;
}

static dtr_status ddp_forward_begin(dtr_ddp *ddp) {
    static const char entry[] = "dtr_ddp_forward_begin";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    pthread_mutex_lock(&ddp->lock);
    int state = atomic_load(&ddp->state);
    bool sync = false, eval = false;
    dtr_status s = DTR_OK;
    if (state == DTR__DDP_REDUCING) {
        pthread_mutex_unlock(&ddp->lock);
        return refuse_open_backward(ddp, entry);
    }
    if (state == DTR__DDP_BUSY) {
        s = dtr__ddp_refuse(ddp, entry, "wait until it has returned");
    } else if (state != DTR__DDP_IDLE && dtr__ddp_joined(ddp)) {
        s = dtr__ddp_refuse(ddp, entry,
                            "during a join no forward pass can be dropped: ranks that "
                            "have joined already take part in its backward pass");
    }
    if (s == DTR_OK && (s = read_flags(ddp, entry, &sync, &eval)) == DTR_OK) {
        set_flags(ddp, sync, eval);
        ddp->it_forward = true;
        ddp->it_list = false;
        ddp->t_forward = dtr__now_ns();
        if (ddp->gpu.has_out) {
            dtr__ddp_timing_open(ddp, DTR__AT_FORWARD, ddp->gpu.out);
        }
        atomic_store(&ddp->state, DTR__DDP_BUSY);
    }
    pthread_mutex_unlock(&ddp->lock);
    DTR_TRY(s);
    bool broken = false;
    s = ddp->it_eval ? DTR_OK : dtr__ddp_join_header(ddp, &broken);
    if (s < 0) {
        atomic_store(&ddp->state, DTR__DDP_IDLE);
        return broken ? dtr__ddp_break(ddp, s) : dtr__ddp_failed(ddp, s);
    }
    s = dtr__ddp_buffers_sync(ddp, DTR_PRE_FORWARD, &broken);
    if (broken) {
        return dtr__ddp_break(ddp, s);
    }
    dtr_status cast = dtr__ddp_cast_params(ddp);
    s = s == DTR_OK ? cast : s;
    pthread_mutex_lock(&ddp->stats_lock);
    ddp->count.forwards++;
    pthread_mutex_unlock(&ddp->stats_lock);
    atomic_store(&ddp->state, DTR__DDP_FORWARD);
    return s;
}

dtr_status dtr_ddp_forward_begin(dtr_ddp *ddp) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_forward_begin", ddp_forward_begin(ddp));
}

static dtr_status check_list(dtr_ddp *ddp, const size_t *unused, size_t n, const char *entry) {
    dtr__error_context ctx = context(ddp, entry);
    DTR_REQUIRE(unused != NULL || n == 0, &ctx, DTR_ERR_ARG,
                "%s: unused is NULL, but n_unused is %zu", entry, n);
    DTR_REQUIRE(n == 0 || ddp->set.unused_asked, &ctx, DTR_ERR_STATE,
                "%s: %zu unused parameters are listed, but the module was created without "
                "find_unused",
                entry, n);
    for (size_t k = 0; k < n; k++) {
        DTR_REQUIRE(unused[k] < ddp->n, &ctx, DTR_ERR_ARG,
                    "%s: unused[%zu] is %zu, but there are %zu parameters", entry, k, unused[k],
                    ddp->n);
        size_t i = ddp->params[unused[k]].same_as;
        DTR_REQUIRE(ddp->params[i].trainable, &ctx, DTR_ERR_ARG,
                    "%s: unused[%zu] is '%s' (%zu), which is %s and has no gradient anyway", entry,
                    k, ddp->params[unused[k]].name, unused[k],
                    dtr__ddp_why_no_grad(&ddp->params[i]));
    }
    return DTR_OK;
}

static dtr_status ddp_forward_end(dtr_ddp *ddp, const size_t *unused, size_t n_unused) {
    static const char entry[] = "dtr_ddp_forward_end";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    pthread_mutex_lock(&ddp->lock);
    dtr_status s = DTR_OK;
    if (atomic_load(&ddp->state) != DTR__DDP_FORWARD) {
        s = dtr__ddp_refuse(ddp, entry, "it follows dtr_ddp_forward_begin");
    } else {
        s = check_list(ddp, unused, n_unused, entry);
        s = s < 0 ? dtr__ddp_failed(ddp, s) : s;
    }
    if (s == DTR_OK) {
        for (size_t k = 0; k < ddp->n_trainable; k++) {
            ddp->params[ddp->trainable[k]].listed = false;
        }
        for (size_t k = 0; k < n_unused; k++) {
            ddp->params[ddp->params[unused[k]].same_as].listed = true;
        }
        ddp->it_list = unused != NULL && ddp->mode == DTR__MODE_DYNAMIC;
        ddp->t_forward_end = ddp->t_backward = dtr__now_ns();
        if (ddp->gpu.has_out) {
            dtr__ddp_timing_mark(ddp, DTR__AT_FORWARD_END, ddp->gpu.out);
        }
        atomic_store(&ddp->state, DTR__DDP_BUSY);
    }
    pthread_mutex_unlock(&ddp->lock);
    DTR_TRY(s);
    dtr__ddp_span_between(ddp, "ddp_forward", ddp->label, ddp->t_forward, ddp->t_forward_end, 0);
    bool broken;
    if (!ddp->it_eval) {
        dtr__ddp_delayed_forward(ddp);
    }
    s = dtr__ddp_buffers_sync(ddp, DTR_POST_FORWARD, &broken);
    if (ddp->it_eval) {
        dtr__ddp_cast_drop(ddp);
    }
    atomic_store(&ddp->state, ddp->it_eval   ? DTR__DDP_IDLE
                              : ddp->it_sync ? DTR__DDP_ARMED
                                             : DTR__DDP_LOCAL);
    return s;
}

dtr_status dtr_ddp_forward_end(dtr_ddp *ddp, const size_t *unused, size_t n_unused) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_forward_end", ddp_forward_end(ddp, unused, n_unused));
}

/* ---- flags ---- */

dtr_status dtr_ddp_set_sync(dtr_ddp *ddp, bool sync) {
    DTR_TRY(dtr__ddp_check(ddp, "dtr_ddp_set_sync"));
    atomic_store(&ddp->sync, sync);
    return DTR_OK;
}

bool dtr_ddp_sync(const dtr_ddp *ddp) {
    return ddp != NULL && ddp->magic == DTR__DDP_MAGIC && atomic_load(&ddp->sync);
}

dtr_status dtr_ddp_set_eval(dtr_ddp *ddp, bool eval) {
    DTR_TRY(dtr__ddp_check(ddp, "dtr_ddp_set_eval"));
    atomic_store(&ddp->eval, eval);
    return DTR_OK;
}

dtr_status dtr_ddp_set_static_graph(dtr_ddp *ddp) {
    static const char entry[] = "dtr_ddp_set_static_graph";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    pthread_mutex_lock(&ddp->lock);
    dtr_status s = DTR_OK;
    bool twice = ddp->set.static_graph, unused = ddp->set.find_unused;
    if (ddp->begun) {
        s = dtr__ddp_refuse(ddp, entry, "it must be called before the first iteration");
    } else {
        ddp->set.static_graph = true;
        ddp->set.find_unused = false;
        ddp->rebuild_due = true;
    }
    pthread_mutex_unlock(&ddp->lock);
    if (s == DTR_OK && twice) {
        dtr__ddp_warn(ddp, DTR__WARN_STATIC_TWICE, "the static graph was set already");
    }
    if (s == DTR_OK && unused) {
        dtr__ddp_warn_static(ddp);
    }
    return s;
}
