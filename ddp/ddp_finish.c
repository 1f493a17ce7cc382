/* The end of a backward pass: settle what is missing, launch the rest, wait, agree on the verdict,
 * give gradients back. */
#include <stdlib.h>

#include "ddp_internal.h"

static const char entry[] = "dtr_ddp_backward_end";

/* ---- gradients that did not come ---- */

/* Room for a copy of the slot; its present contents move there. */
static dtr_status save_slot(dtr_ddp *ddp, dtr__ddp_param *p) {
    size_t nbytes = p->slot->numel * dtr_dtype_size(p->slot->dtype);
    if (dtr__ddp_on_device(ddp)) {
        DTR_TRY(p->kept != NULL ? DTR_OK : dtr__ddp_grad_make(ddp, p, p->slot->dtype, &p->kept));
        p->saved = 0;
        dtr__ddp_slot_keep(ddp, p, p->kept->data, false);
        return DTR_OK;
    }
    if (nbytes > ddp->saved_cap - ddp->saved_size) {
        size_t cap = ddp->saved_size + nbytes;
        char *grown = realloc(ddp->saved, cap);
        DTR_REQUIRE(grown != NULL, NULL, DTR_ERR_NOMEM,
                    "no memory to keep %zu bytes of gradients of unused parameters", cap);
        ddp->saved = grown;
        ddp->saved_cap = cap;
    }
    p->saved = ddp->saved_size;
    dtr__ddp_slot_keep(ddp, p, ddp->saved + p->saved, false);
    ddp->saved_size += nbytes;
    return DTR_OK;
}

/* An unused parameter contributes the gradient it has, or zeros (U3). In view mode its slot is kept
 * in case nobody used it. */
void dtr__ddp_put_unused(dtr_ddp *ddp, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    bool defined = atomic_load(&p->defined);
    dtr_status s = DTR_OK;
    if (p->sparse) {
        dtr__ddp_sparse_put_unused(ddp, i);
        return;
    }
    if (ddp->set.view) {
        s = save_slot(ddp, p);
    } else if (defined) {
        dtr_tensor
            *grad; /* a local step may have had it ready before anybody asked for its memory */
        s = dtr__ddp_grad_get(ddp, i, &grad);
        if (s == DTR_OK) {
            dtr__ddp_copy_in(ddp, p);
        }
    }
    if (s < 0) {
        dtr__ddp_note_last(ddp, s, i);
    }
    if (!defined) {
        dtr__ddp_fill_zero(ddp, p);
    }
}

typedef struct missing {
    size_t first, n;
} missing;

static void miss(dtr_ddp *ddp, missing *m, size_t i) {
    m->first = m->n++ == 0 ? i : m->first;
    if (!ddp->params[i].sparse) { /* those contribute nothing unless they were put */
        dtr__ddp_fill_zero(ddp, &ddp->params[i]);
    }
}

static void note_missing(dtr_ddp *ddp, const missing *m) {
    if (m->n == 0) {
        return;
    }
    const dtr__ddp_param *p = &ddp->params[m->first];
    char more[48] = "";
    if (m->n > 1) {
        snprintf(more, sizeof more, " (%zu more)", m->n - 1);
    }
    if (ddp->mode == DTR__MODE_STATIC) {
        dtr__ddp_note(ddp, DTR_ERR_GRAPH, m->first,
                      "parameter '%s' (%zu) was reported %u times on rank %d%s, but %u times in "
                      "the first iteration: with static_graph that must not change",
                      p->name, m->first, (unsigned)atomic_load(&p->calls), ddp->rank, more,
                      (unsigned)p->learned);
    } else {
        dtr__ddp_note(ddp, DTR_ERR_STATE, m->first,
                      "parameter '%s' (%zu) was not ready on rank %d%s; set find_unused or report "
                      "it",
                      p->name, m->first, ddp->rank, more);
    }
}

/* With skip_unused a parameter may have left the plan; the graph is learned again only after
 * dtr_ddp_set_group. */
static void note_outside(dtr_ddp *ddp, size_t i) {
    if (ddp->mode == DTR__MODE_LEARN && atomic_load(&ddp->params[i].calls) > 0) {
        dtr__ddp_note(ddp, DTR_ERR_GRAPH, i,
                      "parameter '%s' (%zu) became ready on rank %d, but no rank used it in the "
                      "first iteration and skip_unused took it out of the buckets for good",
                      ddp->params[i].name, i, ddp->rank);
    }
}

/* H5. A view that travels already is the library's to change. */
static void check_written(dtr_ddp *ddp) {
    for (size_t k = 0; k < ddp->n_trainable && ddp->check_writes; k++) {
        size_t i = ddp->trainable[k];
        const dtr__ddp_param *p = &ddp->params[i];
        if (atomic_load(&p->mark) == DTR__MARK_READY && !p->sparse &&
            (!ddp->set.view || p->bucket >= ddp->next) && dtr__ddp_grad_hash(ddp, p) != p->seen) {
            dtr__ddp_note(ddp, DTR_ERR_STATE, i,
                          "the gradient of parameter '%s' (%zu) was written on rank %d after "
                          "dtr_ddp_grad_ready; until dtr_ddp_backward_end it is the library's",
                          p->name, i, ddp->rank);
        }
    }
}

/* After this every slot holds what this rank contributes (Y2). */
static void settle(dtr_ddp *ddp) {
    missing m = { DTR__NONE, 0 };
    size_t unused = 0;
    check_written(ddp);
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        size_t i = ddp->trainable[k];
        dtr__ddp_param *p = &ddp->params[i];
        uint32_t mark = atomic_load(&p->mark);
        bool used = mark == DTR__MARK_READY;
        if (p->bucket == DTR__NONE) {
            note_outside(ddp, i);
            continue;
        }
        if (ddp->mode == DTR__MODE_LEARN || ddp->mode == DTR__MODE_LATE) {
            p->learned = atomic_load(&p->calls);
            used = p->learned > 0;
            if (used) {
                (void)dtr__ddp_put(ddp, i); /* a failure is noted */
                atomic_store(&p->mark, DTR__MARK_READY);
            } else {
                dtr__ddp_put_unused(ddp, i);
            }
        } else if (mark == DTR__MARK_OPEN) {
            if (ddp->mode == DTR__MODE_DYNAMIC && !ddp->it_list) {
                dtr__ddp_put_unused(ddp, i);
            } else {
                miss(ddp, &m, i);
            }
            atomic_store(&p->mark, DTR__MARK_SETTLED);
        }
        unused += used || p->sparse ? 0 : p->value->numel * dtr_dtype_size(p->value->dtype);
    }
    note_missing(ddp, &m);
    ddp->it_unused_bytes = unused;
}

/* What a rank that has joined contributes. */
static void settle_shadow(dtr_ddp *ddp) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        if (ddp->buckets[b].sparse == NULL) {
            dtr__ddp_zero(ddp, ddp->buckets[b].data, ddp->buckets[b].plan->nbytes);
        }
    }
    ddp->it_unused_bytes = 0;
}

/* Where the average may have to go: every gradient exists before anything is on its way, so that a
 * lack of memory is part of the verdict. */
static void make_gradients(dtr_ddp *ddp) {
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        size_t i = ddp->trainable[k];
        dtr_tensor *grad;
        if (!ddp->params[i].sparse &&
            atomic_load_explicit(&ddp->params[i].grad, memory_order_relaxed) == NULL) {
            dtr_status s = dtr__ddp_grad_get(ddp, i, &grad);
            if (s < 0) {
                dtr__ddp_note_last(ddp, s, i);
            }
        }
    }
}

/* ---- the used map ---- */

static bool has_map(const dtr_ddp *ddp) {
    return ddp->mode == DTR__MODE_DYNAMIC || ddp->mode == DTR__MODE_LEARN;
}

/* A snapshot of the flags is sent: they may be set again before the memory is free. */
static dtr_status send_map(dtr_ddp *ddp, dtr_work **work) {
    ddp->check.mapped = true;
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        bool used = !ddp->shadow && atomic_load(&ddp->params[ddp->trainable[k]].used);
        ddp->map[k] = used ? 1 : 0;
    }
    if (ddp->size == 1) {
        return DTR_OK;
    }
    dtr_buffer map = dtr_cpu(ddp->map, ddp->n_trainable, DTR_I32);
    dtr__request r = { .kind = DTR__K_ALLREDUCE, .op = DTR_SUM, .root = -1, .in = map, .out = map };
    return dtr__ddp_issue(ddp, &r, "ddp used map", DTR__PART_MAP, work);
}

static void read_map(dtr_ddp *ddp) {
    bool all_used = true;
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        p->used_anywhere = ddp->map[k] > 0;
        all_used = all_used && ddp->map[k] == ddp->size;
    }
    if (all_used && ddp->set.unused_asked && ddp->mode == DTR__MODE_DYNAMIC) {
        dtr__ddp_warn(ddp, DTR__WARN_NOTHING_UNUSED,
                      "find_unused is set, but every rank used every parameter in iteration %llu; "
                      "without it an iteration saves one collective",
                      (unsigned long long)ddp->iteration);
    }
}

/* ---- waiting ---- */

static void copy_out_bucket(dtr_ddp *ddp, dtr_ddp_bucket *b) {
    if (ddp->zero != NULL) {
        dtr__zero_copy_out(ddp, b);
        return;
    }
    if (b->sparse != NULL) {
        if (dtr__ddp_concerns_all(ddp, b->sparse)) {
            dtr__ddp_sparse_take(ddp, b);
        }
        return;
    }
    dtr__ddp_bucket_out(ddp, b);
}

static dtr_status wait_work(const dtr_ddp *ddp, dtr_work **work, const char *label,
                            int64_t *waited_ns) {
    if (*work == NULL) {
        return DTR_OK;
    }
    int64_t start = dtr__now_ns();
    dtr_status s = dtr__ddp_on_device(ddp) ? dtr_work_wait_stream(*work, ddp->gpu.out)
                                           : dtr_work_wait(*work, -1);
    int64_t end = dtr__now_ns();
    *waited_ns += end - start;
    dtr__ddp_span_between(ddp, "ddp_wait", label, start, end, 0);
    (void)dtr_work_release(*work);
    *work = NULL;
    return s;
}

/* Nothing travelled: the averages are there. */
static void all_finished(dtr_ddp *ddp) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        atomic_store(&ddp->buckets[b].finished_ns, dtr__now_ns());
        copy_out_bucket(ddp, &ddp->buckets[b]);
    }
}

/* A hook's failure is this rank's verdict, never a status. */
static void wait_hooks(dtr_ddp *ddp, int64_t *waited_ns) {
    int64_t start = dtr__now_ns();
    dtr__ddp_hook_wait(ddp);
    int64_t end = dtr__now_ns();
    *waited_ns += end - start;
    dtr__ddp_span_between(ddp, "ddp_wait", ddp->hook.name, start, end, 0);
    dtr_status s = dtr__ddp_device_lead(ddp, ddp->gpu.out);
    if (s < 0) {
        dtr__ddp_note_last(ddp, s, DTR__NONE);
    }
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        if (!ddp->buckets[b].failed) {
            copy_out_bucket(ddp, &ddp->buckets[b]);
        }
    }
}

/* All works end here, whatever happens: their memory is the module's. */
static dtr_status wait_buckets(dtr_ddp *ddp, int64_t *waited_ns) {
    dtr_status s = ddp->launch_status;
    if (s < 0) {
        dtr__error_restore(ddp->launch_error, s);
        dtr__error_copy_free(ddp->launch_error);
        ddp->launch_error = NULL;
    }
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        dtr__ddp_timing_done(ddp, b, ddp->buckets[b].work);
        dtr_status one = wait_work(ddp, &ddp->buckets[b].work, ddp->buckets[b].label, waited_ns);
        if (s == DTR_OK && one == DTR_OK) {
            if (ddp->buckets[b].sparse != NULL) { /* the others' works have told it */
                atomic_store(&ddp->buckets[b].finished_ns, dtr__now_ns());
            }
            copy_out_bucket(ddp, &ddp->buckets[b]);
        }
        s = s == DTR_OK ? one : s;
    }
    return s;
}

/* The reference mode: one blocking collective per parameter, in index order. */
static dtr_status reduce_params(dtr_ddp *ddp, int64_t *waited_ns) {
    int64_t start = dtr__now_ns();
    for (size_t b = 0; b < ddp->n_buckets && ddp->size > 1; b++) {
        DTR_TRY(dtr__ddp_device_pack(ddp, &ddp->buckets[b]));
        dtr__ddp_timing_ready(ddp, b);
    }
    for (size_t k = 0; k < ddp->n_trainable && ddp->size > 1; k++) {
        dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        if (p->sparse && p->bucket != DTR__NONE) {
            DTR_TRY(dtr__ddp_sparse_launch(ddp, &ddp->buckets[p->bucket], NULL));
        }
        if (p->slot == NULL) {
            continue;
        }
        dtr_buffer slot = { p->slot->data, p->slot->numel, p->slot->dtype, ddp->device };
        dtr__request r = {
            .kind = DTR__K_ALLREDUCE,
            .op = ddp->set.flags & DTR_DDP_SUM ? DTR_SUM : DTR_AVG,
            .divisor = ddp->divisor,
            .root = -1,
            .in = slot,
            .out = slot,
        };
        DTR_TRY(dtr__ddp_issue(ddp, &r, p->name, ddp->trainable[k], NULL));
    }
    for (size_t b = 0; b < ddp->n_buckets && ddp->size > 1; b++) { /* all at once */
        dtr__ddp_timing_done(ddp, b, NULL);
    }
    *waited_ns += dtr__now_ns() - start;
    return dtr__ddp_device_lead(ddp, ddp->gpu.out);
}

/* One rank alone: rows given several times are added up all the same. */
static dtr_status merge_rows(dtr_ddp *ddp) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        if (ddp->buckets[b].sparse != NULL) {
            DTR_TRY(dtr__ddp_sparse_launch(ddp, &ddp->buckets[b], NULL));
        }
    }
    return DTR_OK;
}

/* The buckets themselves. */
static dtr_status reduce_buckets(dtr_ddp *ddp, int64_t *waited_ns) {
    dtr_status s = DTR_OK;
    if (ddp->hook.fn != NULL) {
        DTR_TRY(dtr__ddp_hook_setup(ddp));
        dtr__ddp_launch(ddp, true);
        wait_hooks(ddp, waited_ns);
    } else if (ddp->size == 1) {
        DTR_TRY(merge_rows(ddp));
        DTR_TRY(dtr__ddp_device_alone(ddp));
        all_finished(ddp);
    } else if (dtr__ddp_per_param(ddp)) {
        DTR_TRY(reduce_params(ddp, waited_ns));
        all_finished(ddp);
    } else {
        s = wait_buckets(ddp, waited_ns);
    }
    dtr__ddp_step_finish(ddp);
    return s;
}

/* Everything that travels in one synchronised iteration. Of a static graph's first one the map goes
 * before the buckets (S2), else after them. */
static dtr_status reduce(dtr_ddp *ddp, int64_t *waited_ns) {
    dtr_work *map = NULL;
    bool first = ddp->mode == DTR__MODE_LEARN,
         carried = ddp->hook.fn == NULL && ddp->size > 1 && !dtr__ddp_per_param(ddp);
    if (first) {
        DTR_TRY(send_map(ddp, &map));
    }
    if (carried) {
        if (ddp->zero == NULL && ddp->carrier != DTR__NONE) {
            dtr__ddp_status_write(ddp, atomic_load(&ddp->bad));
        }
        dtr__ddp_launch(ddp, true);
    }
    /* Behind buckets in flight the map can be under way at once. */
    bool early = has_map(ddp) && !first && carried && ddp->launch_status == DTR_OK;
    dtr_status s = early ? send_map(ddp, &map) : DTR_OK;
    dtr_status buckets = reduce_buckets(ddp, waited_ns);
    s = s == DTR_OK ? buckets : s;
    if (s == DTR_OK && has_map(ddp) && !first && !early) {
        s = send_map(ddp, &map);
    }
    dtr_status last = wait_work(ddp, &map, "ddp used map", waited_ns);
    return s == DTR_OK ? last : s;
}

/* ---- verdict and result ---- */

static dtr_status agreed(dtr_ddp *ddp, bool *bad) {
    if (ddp->size == 1) {
        *bad = atomic_load(&ddp->bad);
    } else if (ddp->carrier == DTR__NONE || ddp->hook.fn != NULL || ddp->step.fn != NULL ||
               ddp->buffer_hook.fn != NULL ||
               ddp->zero != NULL) { /* errors may come after the last bucket has left */
        bool mine = atomic_load(&ddp->bad) || atomic_load(&ddp->hook.failed);
        DTR_TRY(dtr__ddp_any_bad(ddp, mine, bad));
    } else {
        *bad = dtr__ddp_status_bad(ddp);
    }
    return DTR_OK;
}

static void restore_slot(dtr_ddp *ddp, dtr__ddp_param *p) {
    if (p->saved != DTR__NONE) {
        dtr__ddp_slot_keep(ddp, p, p->kept != NULL ? p->kept->data : ddp->saved + p->saved, true);
    }
}

/* Flags, and the parameters that only other ranks used, or nobody (U5). */
static void give_back(dtr_ddp *ddp) {
    bool same = true;
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        dtr__ddp_param *p = &ddp->params[ddp->trainable[k]];
        bool used = atomic_load(&p->used);
        same = same && used == p->was_used;
        p->was_used = used;
        atomic_store(&p->used, false);
        if (p->bucket == DTR__NONE) {
            continue;
        }
        if (!dtr__ddp_concerns_all(ddp, p)) {
            if (!p->used_anywhere) {
                restore_slot(ddp, p);
                continue;
            }
            if (p->sparse) {
                dtr__ddp_sparse_take(ddp, &ddp->buckets[p->bucket]);
            } else if (ddp->copies_out && !p->step) {
                dtr__ddp_copy_out(ddp, p);
            }
        }
        atomic_store(&p->defined, !p->step); /* Z3: a stepped gradient is used up */
    }
    ddp->used_set_constant = (ddp->count.steps == 0 || same) && ddp->used_set_constant;
}

static double seconds(int64_t ns) {
    return ns > 0 ? (double)ns * 1e-9 : 0;
}

/* Time with at least one bucket in flight: they start in index order. */
static int64_t union_of_flights(const dtr_ddp *ddp) {
    int64_t total = 0, end = 0;
    for (size_t b = 0; b < ddp->n_buckets && ddp->size > 1; b++) {
        int64_t from = ddp->buckets[b].launched_ns;
        int64_t to = atomic_load(&ddp->buckets[b].finished_ns);
        from = from > end ? from : end;
        total += to > from ? to - from : 0;
        end = to > end ? to : end;
    }
    return total;
}

static void count_step(dtr_ddp *ddp, int64_t t_enter, int64_t waited_ns) {
    dtr_ddp_step step = { .buckets = ddp->n_buckets };
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        step.bytes += ddp->buckets[b].sparse != NULL ? dtr__ddp_sparse_bytes(&ddp->buckets[b])
                                                     : ddp->buckets[b].nbytes;
    }
    step.bytes += dtr__ddp_delayed_bytes(ddp);
    step.collectives = (size_t)(dtr__ddp_seq(ddp) - ddp->seq_begun);
    step.forward_s = ddp->it_forward ? seconds(ddp->t_forward_end - ddp->t_forward) : 0;
    step.backward_s = seconds(t_enter - ddp->t_backward);
    step.comm_s = seconds(dtr__ddp_per_param(ddp) ? waited_ns : union_of_flights(ddp));
    step.exposed_comm_s = ddp->size > 1 ? seconds(waited_ns) : 0;
    double hidden = step.comm_s > 0 ? 1 - step.exposed_comm_s / step.comm_s : 1;
    step.overlap = hidden < 0 ? 0 : hidden;
    dtr__ddp_count_step(ddp, &step);
    for (size_t b = 0; b < ddp->n_buckets && ddp->size > 1; b++) {
        const dtr_ddp_bucket *k = &ddp->buckets[b];
        int64_t end = atomic_load(&k->finished_ns);
        if (end > k->launched_ns) {
            dtr__ddp_span_between(ddp, "ddp_bucket", k->label, k->launched_ns, end, k->nbytes);
        }
    }
}

/* ---- the call ---- */

/* Ready for the next iteration. */
static dtr_status close_iteration(dtr_ddp *ddp, dtr_status s) {
    if (ddp->it_sync) {
        dtr_status left = dtr__ddp_device_leave(ddp);
        if (left < 0) {
            return dtr__ddp_break(ddp, left);
        }
    }
    dtr__ddp_timing_close(ddp, NULL, 0);
    ddp->iteration++;
    ddp->saved_size = 0;
    dtr__ddp_cast_drop(ddp);
    dtr__ddp_rearm(ddp);
    dtr__zero_closed(ddp, s == DTR_OK && ddp->it_sync);
    atomic_store(&ddp->state, DTR__DDP_IDLE);
    dtr__ddp_check_idle(ddp);
    return s;
}

/* P5: also without sync, of a forward pass before. */
static void wait_buffers(dtr_ddp *ddp) {
    dtr_status s = dtr__ddp_buffers_wait(ddp);
    if (s < 0) {
        dtr__ddp_note_last(ddp, s, DTR__NONE);
    }
}

/* Some rank has an error. All return it; one that only this operation suffered from leaves the
 * module usable. */
static dtr_status finish_bad(dtr_ddp *ddp) {
    dtr__verdict agreed = { 0 };
    ddp->verdict.hook_broken = atomic_load(&ddp->hook.failed);
    dtr_status s = dtr__ddp_agree(ddp, &ddp->verdict, &agreed);
    if (s == DTR_OK) { /* nobody knows why: what broke the hook's group does */
        dtr_group *g = ddp->hook.group[0];
        s = g != NULL && dtr_group_status(g) < 0
                ? dtr__error_restore(g->error, dtr_group_status(g))
                : DTR_FAIL(NULL, DTR_ERR_INTERNAL, "a rank reported an error without naming it");
        return dtr__ddp_break(ddp, s);
    }
    /* Judged by what happened, not by what this rank was told: all must judge alike. */
    dtr_error_class blast = dtr_status_class((dtr_status)agreed.status);
    bool fatal = !agreed.callers && (blast == DTR_CLASS_GROUP || blast == DTR_CLASS_PROCESS);
    if (dtr_group_status(ddp->group) < 0 || fatal) {
        return dtr__ddp_break(ddp, s);
    }
    if (agreed.hook_broken) {
        dtr__error_copy *cause = dtr__error_save();
        dtr_status renewed = dtr__ddp_hook_renew(ddp);
        s = renewed < 0 ? renewed : dtr__error_restore(cause, s);
        dtr__error_copy_free(cause);
        if (renewed < 0) {
            return dtr__ddp_break(ddp, renewed);
        }
    }
    return close_iteration(ddp, dtr__ddp_failed(ddp, s));
}

/* What went wrong after the verdicts had travelled, when it can no longer be agreed on. */
static dtr_status late_failure(dtr_ddp *ddp) {
    if (!atomic_load(&ddp->bad)) {
        return DTR_OK;
    }
    const dtr__verdict *v = &ddp->verdict;
    return dtr__ddp_break(ddp, dtr__ddp_verdict_fail(ddp, v, (dtr_status)v->status, ""));
}

/* Up to here every rank does its part whatever went wrong. *bad: on some rank something did. */
static dtr_status exchange(dtr_ddp *ddp, int64_t *waited_ns, bool *bad) {
    ddp->copies_out =
        (ddp->size > 1 || ddp->hook.fn != NULL || ddp->set.has_param_dtype) && !ddp->shadow;
    if (ddp->shadow) {
        settle_shadow(ddp);
    } else {
        settle(ddp);
        make_gradients(ddp);
    }
    dtr__ddp_delayed_settle(ddp);
    dtr_status s = reduce(ddp, waited_ns);
    if (s == DTR_OK) {
        dtr__ddp_device_nan_tell(ddp);
        if (ddp->hook.judge != NULL) {
            ddp->hook.judge(ddp, ddp->hook.state);
        }
    }
    wait_buffers(ddp);
    dtr_status apart = dtr__ddp_delayed_wait(ddp);
    s = s == DTR_OK ? apart : s;
    DTR_TRY(s);
    if (has_map(ddp)) {
        read_map(ddp);
    }
    if (!ddp->shadow && !atomic_load(&ddp->bad)) {
        dtr__ddp_step_rest(ddp);
    }
    return agreed(ddp, bad);
}

static void warn_no_forward(dtr_ddp *ddp) {
    if (ddp->n_sync_buffers > 0 && !ddp->set.no_buffers && ddp->count.forwards == 0) {
        dtr__ddp_warn(ddp, DTR__WARN_NO_FORWARD,
                      "the module has buffers, but dtr_ddp_forward_begin is never called: they are "
                      "not synchronised");
    }
}

static dtr_status finish_synced(dtr_ddp *ddp) {
    int64_t t_enter = dtr__now_ns(), waited_ns = 0;
    bool bad = false;
    dtr_status s = exchange(ddp, &waited_ns, &bad);
    if (s < 0) {
        return dtr__ddp_break(ddp, s);
    }
    if (bad) {
        return finish_bad(ddp);
    }
    if (!ddp->shadow) {
        give_back(ddp);
        dtr__ddp_delayed_give_back(ddp);
    }
    dtr__ddp_check_end(ddp, has_map(ddp));
    DTR_TRY(late_failure(ddp));
    if (ddp->set.static_graph) {
        ddp->learned = true;
        ddp->learned_here = ddp->learned_here || !ddp->shadow;
    }
    if (ddp->rebuild_due && ddp->mode != DTR__MODE_DYNAMIC) {
        s = dtr__ddp_rebuild(ddp);
        if (s < 0) {
            return dtr__ddp_break(ddp, s);
        }
    }
    if (!ddp->shadow) {
        count_step(ddp, t_enter, waited_ns);
        warn_no_forward(ddp);
    }
    return close_iteration(ddp, DTR_OK);
}

static dtr_status finish_local(dtr_ddp *ddp) {
    dtr_status s = dtr__ddp_buffers_wait(ddp);
    pthread_mutex_lock(&ddp->stats_lock);
    ddp->count.local_steps++;
    pthread_mutex_unlock(&ddp->stats_lock);
    return close_iteration(ddp, s < 0 ? dtr__ddp_failed(ddp, s) : DTR_OK);
}

dtr_status dtr__ddp_shadow_backward(dtr_ddp *ddp) {
    pthread_mutex_lock(&ddp->stats_lock);
    ddp->count.shadow_steps++;
    pthread_mutex_unlock(&ddp->stats_lock);
    int64_t start = dtr__now_ns();
    ddp->shadow = true;
    ddp->gpu.out = ddp->gpu.stream; /* this rank's streams are not known here */
    ddp->gpu.has_out = false;
    dtr_status s = ddp->it_sync ? finish_synced(ddp) : close_iteration(ddp, DTR_OK);
    ddp->shadow = false;
    dtr__ddp_span(ddp, "ddp_shadow", ddp->label, start, 0);
    return s;
}

/* From here on no gradient of this iteration may become ready, and nobody is about to. */
static dtr_status begin(dtr_ddp *ddp, void *stream) {
    dtr_status s = DTR_OK;
    pthread_mutex_lock(&ddp->lock);
    int state = atomic_load(&ddp->state);
    if (state != DTR__DDP_REDUCING && state != DTR__DDP_LOCAL) {
        s = dtr__ddp_open_backward(ddp, entry, stream);
    }
    if (s == DTR_OK) {
        atomic_store(&ddp->state, DTR__DDP_BUSY);
    }
    pthread_mutex_unlock(&ddp->lock);
    DTR_TRY(s);
    dtr__backoff pause = { 0 };
    while (atomic_load(&ddp->inside) > 0) {
        dtr__backoff_pause(ddp->world, &pause);
    }
    return DTR_OK;
}

static dtr_status ddp_backward_end(dtr_ddp *ddp, void *stream) {
    DTR_TRY(dtr__ddp_check(ddp, entry));
    DTR_TRY(begin(ddp, stream));
    dtr__ddp_span(ddp, "ddp_backward", ddp->label, ddp->t_backward, 0);
    dtr_status s = dtr__ddp_device_enter(ddp, stream);
    if (s < 0) {
        dtr__ddp_note_last(ddp, s, DTR__NONE);
    }
    return ddp->it_sync ? finish_synced(ddp) : finish_local(ddp);
}

dtr_status dtr_ddp_backward_end(dtr_ddp *ddp, void *stream) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_backward_end", ddp_backward_end(ddp, stream));
}
