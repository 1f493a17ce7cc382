/* Errors that all ranks of a group share: who finds ranks disagreeing, or gives up, says so in the
 * control block, and every other rank ends with the same status and text at its next look. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/call_site.h"
#include "core/signature.h"
#include "core/work.h"
#include "failure/notify.h"
#include "shm_internal.h"

/* What `broken` says beside the operation. */
enum { WRITING = 1, WRITTEN = 2 };

/* For peers to fill their slots and to say where they called from, unless the limit of the work is
 * nearer; and for the one who writes the text. */
static const double PEERS_PATIENCE_S = 5, TEXT_PATIENCE_S = 10;

/* The one who may write the text: the first. Operations before number `n` may still be finished. */
static bool claim(dtr__shm_control *control, uint64_t n) {
    uint64_t none = 0;
    return atomic_compare_exchange_strong(&control->broken, &none, n << 2 | WRITING);
}

static void reveal(const dtr_group *g, dtr__shm_control *control, uint64_t n, dtr_status status,
                   const char *text) {
    control->status = status;
    control->origin = g->rank;
    snprintf(control->text, sizeof control->text, "%s", text);
    atomic_store_explicit(&control->broken, n << 2 | WRITTEN, memory_order_release);
}

static bool written(const dtr__shm_control *control) {
    return (atomic_load_explicit(&control->broken, memory_order_acquire) & WRITTEN) != 0;
}

bool dtr__shm_publish(dtr_group *g, dtr__shm_state *s, dtr_status status, const char *text) {
    char shared[sizeof s->control->text];
    if (!dtr__status_shared(status)) {
        snprintf(shared, sizeof shared, DTR__PEER_FAILED "%.900s", dtr__reported_rank(g, g->rank),
                 g->world_ranks[g->rank], dtr_status_name(status), text);
        status = DTR_ERR_REMOTE;
        text = shared;
    }
    bool first = claim(s->control, 0);
    if (first) {
        reveal(g, s->control, 0, status, text);
    }
    return first;
}

/* Where this rank called from, for the rank that writes the text. */
static void publish_site(const dtr_group *g, dtr__shm_state *s, const dtr_work *w) {
    dtr__shm_rank *me = s->rank[g->rank];
    (void)dtr__call_site_text(&w->call, me->site, sizeof me->site);
    atomic_store_explicit(&me->site_for, s->op.n, memory_order_release);
}

dtr_status dtr__shm_broken(dtr_group *g, dtr__shm_state *s, const dtr_work *w) {
    dtr__shm_control *control = s->control;
    dtr__error_context ctx = dtr__work_context(w);
    dtr__backoff wait = { 0 };
    double limit = dtr__now() + TEXT_PATIENCE_S;
    if (!written(control)) {
        publish_site(g, s, w);
    }
    while (!written(control) && dtr__now() < limit) {
        dtr__shm_fill_slot_broken(g, s, &w->call); /* once its slot is free */
        dtr__backoff_pause(g->world, &wait);
    }
    if (!written(control)) {
        return DTR_FAIL(&ctx, DTR_ERR_REMOTE,
                        "group '%s': a rank of this node died while it reported an error", g->name);
    }
    s->agreed_break = true;
    return DTR_FAIL(&ctx, (dtr_status)control->status, "%s", control->text);
}

/* ---- ranks disagree ---- */

/* Where rank `r` called from, if it says so before `limit`. */
static const char *site_of(const dtr_group *g, const dtr__shm_state *s, int r, double limit) {
    dtr__backoff wait = { 0 };
    const dtr__shm_rank *peer = s->rank[r];
    uint64_t of;
    while ((of = atomic_load_explicit(&peer->site_for, memory_order_acquire)) < s->op.n) {
        if (dtr__now() >= limit) {
            return "an unknown place";
        }
        dtr__backoff_pause(g->world, &wait);
    }
    return of == s->op.n ? peer->site : "a place it has left";
}

static bool everybody_posted(const dtr_group *g, const dtr__shm_state *s) {
    for (int r = 0; r < g->size; r++) {
        if (!dtr__shm_has_posted(dtr__shm_slot_of(s, r), dtr__shm_mark(s->op.n, 0))) {
            return false;
        }
    }
    return true;
}

static void read_slot(const dtr_group *g, const dtr__shm_state *s, int r, double limit,
                      dtr__signature *d) {
    const dtr__shm_slot *slot = dtr__shm_slot_of(s, r);
    const dtr__shm_detail *detail = dtr__shm_detail_of(s, r);
    *d = (dtr__signature){ .fingerprint = slot->fingerprint,
                           .count_in = detail->count_in,
                           .count_out = detail->count_out,
                           .kind = detail->kind,
                           .dtype = detail->dtype,
                           .op = detail->op,
                           .root = detail->root };
    snprintf(d->site, sizeof d->site, "%s",
             slot->left ? s->rank[r]->left_site : site_of(g, s, r, limit));
}

/* The rank whose part of the data does not fit what this one wants of it. */
static dtr_status pair_mismatch(const dtr_group *g, const dtr__shm_state *s, const dtr_work *w,
                                double limit) {
    dtr__signature mine, theirs;
    int peer = s->op.arrived;
    dtr__signature_of(w, peer, &mine);
    read_slot(g, s, peer, limit, &theirs);
    theirs.gives = dtr__shm_given(g, s, &w->call, peer) / s->op.size;
    if (w->call.kind == DTR__K_ALLTOALLV) {
        theirs.takes = dtr__shm_asked(g, s, peer) / s->op.size;
    }
    return dtr__pair_mismatch(w, peer, &theirs, &mine);
}

static dtr_status group_mismatch(const dtr_group *g, const dtr__shm_state *s, const dtr_work *w,
                                 double limit) {
    dtr__signature *all = malloc((size_t)g->size * sizeof *all);
    if (all == NULL) {
        dtr__error_context ctx = dtr__work_context(w);
        return DTR_FAIL(&ctx, DTR_ERR_MISMATCH, "ranks of group '%s' disagree", g->name);
    }
    for (int r = 0; r < g->size; r++) {
        read_slot(g, s, r, limit, &all[r]);
    }
    dtr_status status = dtr__mismatch(w, all, false);
    free(all);
    return status;
}

dtr_status dtr__shm_mismatch(dtr_group *g, dtr__shm_state *s, dtr_work *w) {
    if (!claim(s->control, s->op.n)) {
        return dtr__shm_broken(g, s, w);
    }
    dtr__backoff wait = { 0 };
    double limit = dtr__now() + PEERS_PATIENCE_S;
    limit = fmin(limit, atomic_load_explicit(&w->limit.deadline, memory_order_relaxed));
    publish_site(g, s, w);
    while (!everybody_posted(g, s) && dtr__now() < limit) {
        dtr__backoff_pause(g->world, &wait); /* the majority is that of all, if they come */
    }
    bool pair = dtr__shm_slot_of(s, s->op.arrived)->fingerprint == w->call.fingerprint;
    dtr_status status = pair ? pair_mismatch(g, s, w, limit) : group_mismatch(g, s, w, limit);
    reveal(g, s->control, s->op.n, status, dtr_last_error_message());
    s->agreed_break = true;
    return status;
}

/* ---- ranks that have not come ---- */

const char *dtr__shm_missing(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                             char *text, size_t cap) {
    size_t at = 0;
    text[0] = '\0';
    bool arriving = s->op.phase <= DTR__SHM_ARRIVE;
    for (int r = 0; r < g->size && at < cap; r++) {
        if (s->op.phase == DTR__SHM_ARRIVE && !dtr__shm_awaits(g, s, c, r)) {
            continue;
        }
        const bool missing =
            arriving ? !dtr__shm_has_posted(dtr__shm_slot_of(s, r), dtr__shm_mark(s->op.n, 0))
                     : !dtr__shm_has_finished(s, r, dtr__shm_mark(s->op.n, DTR__SHM_WHOLE));
        if (missing && r != g->rank) {
            at += (size_t)snprintf(text + at, cap - at, "%srank %d (world %d)", at > 0 ? ", " : "",
                                   dtr__reported_rank(g, r), g->world_ranks[r]);
        }
    }
    if (at > 0 && at < cap) {
        snprintf(text + at, cap - at,
                 arriving ? " has not entered it" : " has not finished its part");
    }
    return text;
}
