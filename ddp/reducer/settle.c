/* What this rank contributes to a reduction when the backward pass ends, gradients that did not
 * come included, and what it takes of the result. */
#include <stdlib.h>

#include "device/device.h"
#include "reducer_internal.h"

/* Room for a copy of the slot; its present contents move there. */
static dtr_status save_slot(dtr_ddp *ddp, dtr__ddp_param *p) {
    size_t nbytes = p->slot->numel * dtr_dtype_size(p->slot->dtype);
    if (dtr__ddp_on_device(ddp)) {
        DTR_TRY(p->kept != NULL ? DTR_OK : dtr__ddp_grad_make(ddp, p, p->slot->dtype, &p->kept));
        p->saved = 0;
        dtr__ddp_slot_keep(ddp, p, p->kept->data, false);
        return DTR_OK;
    }
    if (nbytes > ddp->reducer->saved_cap - ddp->reducer->saved_size) {
        size_t cap = ddp->reducer->saved_size + nbytes;
        char *grown = realloc(ddp->reducer->saved, cap);
        DTR_REQUIRE(grown != NULL, NULL, DTR_ERR_NOMEM,
                    "no memory to keep %zu bytes of gradients of unused parameters", cap);
        ddp->reducer->saved = grown;
        ddp->reducer->saved_cap = cap;
    }
    p->saved = ddp->reducer->saved_size;
    dtr__ddp_slot_keep(ddp, p, ddp->reducer->saved + p->saved, false);
    ddp->reducer->saved_size += nbytes;
    return DTR_OK;
}

/* In view mode its slot is kept in case nobody used it. */
void dtr__ddp_put_unused(dtr_ddp *ddp, size_t i) {
    dtr__ddp_param *p = &ddp->params[i];
    bool defined = atomic_load(&p->defined);
    if (p->sparse) {
        dtr__ddp_sparse_put_unused(ddp, i);
        return;
    }
    if (ddp->set.view) {
        (void)dtr__ddp_note_last(ddp, save_slot(ddp, p), i);
    } else if (defined) { /* a local step may have had it ready before its memory was asked for */
        dtr_tensor *grad;
        if (dtr__ddp_note_last(ddp, dtr__ddp_grad_get(ddp, i, &grad), i) == DTR_OK) {
            dtr__ddp_copy_in(ddp, p);
        }
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
    if (ddp->it.mode == DTR__MODE_STATIC) {
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
    if (ddp->it.mode == DTR__MODE_LEARN && atomic_load(&ddp->params[i].calls) > 0) {
        dtr__ddp_note(ddp, DTR_ERR_GRAPH, i,
                      "parameter '%s' (%zu) became ready on rank %d, but no rank used it in the "
                      "first iteration and skip_unused took it out of the buckets for good",
                      ddp->params[i].name, i, ddp->rank);
    }
}

/* A view that travels already is the library's to change. */
static void check_written(dtr_ddp *ddp) {
    for (size_t k = 0; k < ddp->n_trainable && ddp->reducer->check_writes; k++) {
        size_t i = ddp->trainable[k];
        const dtr__ddp_param *p = &ddp->params[i];
        if (atomic_load(&p->mark) == DTR__MARK_READY && !p->sparse &&
            (!ddp->set.view || p->bucket >= ddp->it.next) &&
            dtr__ddp_grad_hash(ddp, p) != p->seen) {
            dtr__ddp_note(ddp, DTR_ERR_STATE, i,
                          "the gradient of parameter '%s' (%zu) was written on rank %d after "
                          "dtr_ddp_grad_ready; until dtr_ddp_backward_end it is the library's",
                          p->name, i, ddp->rank);
        }
    }
}

static void settle_own(dtr_ddp *ddp) {
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
        if (ddp->it.mode == DTR__MODE_LEARN || ddp->it.mode == DTR__MODE_LATE) {
            p->learned = atomic_load(&p->calls);
            used = p->learned > 0;
            if (used) {
                (void)dtr__ddp_put(ddp, i); /* a failure is noted */
                atomic_store(&p->mark, DTR__MARK_READY);
            } else {
                dtr__ddp_put_unused(ddp, i);
            }
        } else if (mark == DTR__MARK_OPEN) {
            if (ddp->it.mode == DTR__MODE_DYNAMIC && !ddp->it.list) {
                dtr__ddp_put_unused(ddp, i);
            } else {
                miss(ddp, &m, i);
            }
            atomic_store(&p->mark, DTR__MARK_SETTLED);
        }
        unused += used || p->sparse ? 0 : p->value->numel * dtr_dtype_size(p->value->dtype);
    }
    note_missing(ddp, &m);
    ddp->it.unused_bytes = unused;
}

/* What a rank that has joined contributes. */
static void settle_shadow(dtr_ddp *ddp) {
    for (size_t b = 0; b < ddp->n_buckets; b++) {
        if (ddp->buckets[b].sparse == NULL) {
            dtr__ddp_zero(ddp, ddp->buckets[b].data, ddp->buckets[b].plan->nbytes);
        }
    }
    ddp->it.unused_bytes = 0;
}

/* Where the average may have to go: every gradient exists before anything is on its way, so that a
 * lack of memory is part of the status. */
static void make_gradients(dtr_ddp *ddp) {
    for (size_t k = 0; k < ddp->n_trainable; k++) {
        size_t i = ddp->trainable[k];
        dtr_tensor *grad;
        if (!ddp->params[i].sparse &&
            atomic_load_explicit(&ddp->params[i].grad, memory_order_relaxed) == NULL) {
            (void)dtr__ddp_note_last(ddp, dtr__ddp_grad_get(ddp, i, &grad), i);
        }
    }
}

void dtr__ddp_settle(dtr_ddp *ddp) {
    if (ddp->it.shadow) {
        settle_shadow(ddp);
    } else {
        settle_own(ddp);
        make_gradients(ddp);
    }
    dtr__ddp_delayed_settle(ddp);
}

/* ---- and what comes back ---- */

static void restore_slot(dtr_ddp *ddp, dtr__ddp_param *p) {
    if (p->saved != DTR__NONE) {
        dtr__ddp_slot_keep(ddp, p, p->kept != NULL ? p->kept->data : ddp->reducer->saved + p->saved,
                           true);
    }
}

void dtr__ddp_give_back(dtr_ddp *ddp) {
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
            } else if (ddp->it.copies_out && !p->step) {
                dtr__ddp_copy_out(ddp, p);
            }
        }
        atomic_store(&p->defined, !p->step); /* a stepped gradient is used up */
    }
    ddp->reducer->used_set_constant =
        (ddp->stats.count.steps == 0 || same) && ddp->reducer->used_set_constant;
    dtr__ddp_delayed_give_back(ddp);
}
