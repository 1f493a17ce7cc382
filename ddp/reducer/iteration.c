/* The states of a module outside of reduction: forward passes, flags, opening a backward pass, and
 * what is refused when. */
#include "collectives/coalesced.h"
#include "core/call_site.h"
#include "core/team.h"
#include "device/device.h"
#include "engine/engine.h"
#include "reducer_internal.h"

/* ---- who is not ready ---- */

static bool is_ready(const dtr_ddp *ddp, size_t i) {
    const dtr__ddp_param *p = &ddp->params[i];
    if (p->bucket == DTR__NONE) {
        return true;
    }
    return ddp->it.mode == DTR__MODE_LEARN || ddp->it.mode == DTR__MODE_LATE
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
        dtr__text_add(&t, "%s'%s' (%zu)", n > 1 ? ", " : "",
                      ddp->params[ddp->reducer->delayed.trigger].name,
                      ddp->reducer->delayed.trigger);
    }
    if (n > NAMED) {
        dtr__text_add(&t, " and %zu more", n - NAMED);
    }
    return n;
}

static dtr_status refuse_open_backward(dtr_ddp *ddp, const char *entry) {
    char missing[600] = "";
    size_t n = list_missing(ddp, missing, sizeof missing);
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
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
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    return dtr__ddp_failed(
        ddp, DTR_FAIL(&ctx, DTR_ERR_STATE, "not ready in this iteration: %s", missing));
}

/* ---- opening ---- */

/* Steps run on averages: an iteration without sync has none. */
static dtr_status check_step(dtr_ddp *ddp, const char *entry, bool sync, bool eval) {
    if (ddp->reducer->step.fn == NULL || sync || eval) {
        return DTR_OK;
    }
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    return dtr__ddp_failed(ddp,
                           DTR_FAIL(&ctx, DTR_ERR_STATE,
                                    "%s: sync is off, but the module steps its parameters itself "
                                    "(dtr_ddp_set_step): there would be no average to step with",
                                    entry));
}

/* The flags of an iteration are read once, here. */
static dtr_status read_flags(dtr_ddp *ddp, const char *entry, bool *sync, bool *eval) {
    *eval = atomic_load(&ddp->reducer->eval);
    *sync = atomic_load(&ddp->reducer->sync);
    if (ddp->set.static_graph && !ddp->reducer->learned && !*sync && !*eval) {
        dtr__error_context ctx = dtr__ddp_context(ddp, entry);
        return dtr__ddp_failed(
            ddp, DTR_FAIL(&ctx, DTR_ERR_STATE,
                          "%s: with static_graph the first iteration must be synchronised, that is "
                          "where the graph is learned; sync is off",
                          entry));
    }
    return check_step(ddp, entry, *sync, *eval);
}

static void set_flags(dtr_ddp *ddp, bool sync, bool eval) {
    ddp->it.sync = sync;
    ddp->it.eval = eval;
    ddp->it.mode = ddp->set.find_unused          ? DTR__MODE_DYNAMIC
                   : !ddp->set.static_graph      ? DTR__MODE_PLAIN
                   : !ddp->reducer->learned      ? DTR__MODE_LEARN
                   : !ddp->reducer->learned_here ? DTR__MODE_LATE
                                                 : DTR__MODE_STATIC;
    ddp->reducer->begun = true;
    ddp->it.divisor = 0;
    ddp->it.buffer_source = 0;
    ddp->it.seq_begun = dtr__ddp_seq(ddp);
}

void dtr__ddp_shadow_flags(dtr_ddp *ddp, bool sync) {
    int divisor = ddp->it.divisor, source = ddp->it.buffer_source;
    set_flags(ddp, sync, false);
    ddp->it.divisor = divisor;
    ddp->it.buffer_source = source;
    ddp->it.forward = ddp->it.list = false;
    ddp->it.t_backward = dtr__now_ns();
}

/* Gradients that will not come: listed as unused, or unused when the static graph was learned. Each
 * contributes what it has. */
static void ready_unused(dtr_ddp *ddp) {
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        size_t i = ddp->trainable[k];
        dtr__ddp_param *p = &ddp->params[i];
        bool unused =
            ddp->it.mode == DTR__MODE_STATIC ? p->learned == 0 : ddp->it.list && p->listed;
        if (unused && p->bucket != DTR__NONE) {
            dtr__ddp_put_unused(ddp, i);
            atomic_store(&p->mark, DTR__MARK_LISTED);
            dtr__ddp_check_pending(ddp, atomic_fetch_sub(&ddp->buckets[p->bucket].pending, 1));
        }
    }
}

dtr_status dtr__ddp_open_backward(dtr_ddp *ddp, const char *entry, void *stream) {
    int state = atomic_load(&ddp->state);
    DTR_TRY(ddp->strategy->may_open != NULL ? ddp->strategy->may_open(ddp, entry) : DTR_OK);
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
        ddp->it.forward = false;
        ddp->it.list = false;
        ddp->it.t_backward = dtr__now_ns();
    } else if (state != DTR__DDP_ARMED) {
        return dtr__ddp_refuse(ddp, entry,
                               state == DTR__DDP_FORWARD
                                   ? "call dtr_ddp_forward_end first"
                                   : "gradients of this iteration can no longer become ready");
    }
    dtr__ddp_timing_open(ddp, DTR__AT_OPEN, stream);
    if (ddp->it.sync && (ddp->it.list || ddp->it.mode == DTR__MODE_STATIC)) {
        (void)dtr__ddp_note_last(ddp, dtr__ddp_device_follow(ddp, stream), DTR__NONE);
        ready_unused(ddp);
    }
    atomic_store(&ddp->state, ddp->it.sync ? DTR__DDP_REDUCING : DTR__DDP_LOCAL);
    return DTR_OK;
}

void dtr__ddp_rearm(dtr_ddp *ddp) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        atomic_store(&ddp->buckets[b].pending, ddp->buckets[b].plan->n_slots);
        atomic_store(&ddp->buckets[b].finished_ns, 0);
        atomic_store(&ddp->buckets[b].averaged, false);
        dtr__ddp_range_end(&ddp->buckets[b]); /* of a sparse parameter, or one that failed */
        atomic_store(&ddp->buckets[b].under_way, false);
        ddp->buckets[b].feeds.n = 0;
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
    if (ddp->strategy->rearm != NULL) {
        ddp->strategy->rearm(ddp);
    }
    dtr__ddp_step_rearm(ddp);
    atomic_store(&ddp->it.stamps, 0);
    atomic_store(&ddp->it.copied_in, 0);
    atomic_store(&ddp->it.copied_out, 0);
    ddp->it.check.divisor = 0;
    ddp->it.check.mapped = false;
    atomic_store(&ddp->it.check.issued, 0);
    ddp->it.next = 0;
    ddp->reducer->launch_status = DTR_OK;
    pthread_mutex_lock(&ddp->errors.lock);
    ddp->errors.mine = (dtr__step_status){ 0 };
    atomic_store(&ddp->errors.bad, false);
    atomic_store(&ddp->errors.gave_up, false);
    pthread_mutex_unlock(&ddp->errors.lock);
}

/* ---- forward ---- */

dtr_status dtr__ddp_send_all(dtr_ddp *ddp, dtr_tensor *const *list, size_t n, int root) {
    dtr_coll_options o = dtr__ddp_options(ddp, "ddp sync");
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
        ddp->it.forward = true;
        ddp->it.list = false;
        ddp->it.t_forward = dtr__now_ns();
        if (dtr__ddp_has_out(ddp)) {
            dtr__ddp_timing_open(ddp, DTR__AT_FORWARD, ddp->out.stream);
        }
        atomic_store(&ddp->state, DTR__DDP_BUSY);
    }
    pthread_mutex_unlock(&ddp->lock);
    DTR_TRY(s);
    bool broken = false;
    s = ddp->it.eval ? DTR_OK : dtr__ddp_join_header(ddp, &broken);
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
    dtr__ddp_count(ddp, &ddp->stats.count.forwards);
    atomic_store(&ddp->state, DTR__DDP_FORWARD);
    return s;
}

dtr_status dtr_ddp_forward_begin(dtr_ddp *ddp) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_forward_begin", ddp_forward_begin(ddp));
}

static dtr_status check_list(dtr_ddp *ddp, const size_t *unused, size_t n, const char *entry) {
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
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
        ddp->it.list = unused != NULL && ddp->it.mode == DTR__MODE_DYNAMIC;
        ddp->it.t_forward_end = ddp->it.t_backward = dtr__now_ns();
        if (dtr__ddp_has_out(ddp)) {
            dtr__ddp_timing_mark(ddp, DTR__AT_FORWARD_END, ddp->out.stream);
        }
        atomic_store(&ddp->state, DTR__DDP_BUSY);
    }
    pthread_mutex_unlock(&ddp->lock);
    DTR_TRY(s);
    dtr__ddp_span_between(ddp, "ddp_forward", ddp->label, ddp->it.t_forward, ddp->it.t_forward_end,
                          0);
    bool broken;
    if (!ddp->it.eval) {
        dtr__ddp_delayed_forward(ddp);
    }
    s = dtr__ddp_buffers_sync(ddp, DTR_POST_FORWARD, &broken);
    if (ddp->it.eval) {
        dtr__ddp_cast_drop(ddp);
    }
    atomic_store(&ddp->state, ddp->it.eval   ? DTR__DDP_IDLE
                              : ddp->it.sync ? DTR__DDP_ARMED
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
    atomic_store(&ddp->reducer->sync, sync);
    return DTR_OK;
}

bool dtr_ddp_sync(const dtr_ddp *ddp) {
    return ddp != NULL && ddp->magic == DTR__DDP_MAGIC && atomic_load(&ddp->reducer->sync);
}

dtr_status dtr_ddp_set_eval(dtr_ddp *ddp, bool eval) {
    DTR_TRY(dtr__ddp_check(ddp, "dtr_ddp_set_eval"));
    atomic_store(&ddp->reducer->eval, eval);
    return DTR_OK;
}

dtr_status dtr_ddp_set_static_graph(dtr_ddp *ddp) {
    static const char entry[] = "dtr_ddp_set_static_graph";
    DTR_TRY(dtr__ddp_check(ddp, entry));
    pthread_mutex_lock(&ddp->lock);
    dtr_status s = DTR_OK;
    bool twice = ddp->set.static_graph, unused = ddp->set.find_unused;
    if (ddp->reducer->begun) {
        s = dtr__ddp_refuse(ddp, entry, "it must be called before the first iteration");
    } else {
        ddp->set.static_graph = true;
        ddp->set.find_unused = false;
        ddp->reducer->rebuild_due = true;
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
