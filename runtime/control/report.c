/* Reports of what the ranks of this node do, made from their recordings. */
#include <string.h>

#include "base/clock.h"
#include "control/control.h"
#include "control/peers.h"

/* The newest groups come first: the oldest is the world's, which has a place kept. */
static void add_groups(const dtr__recording *r, dtr__rank_report *d) {
    for (size_t k = 0; k < r->n_groups && d->n_groups < DTR__REPORT_GROUPS; k++) {
        const dtr__rec_group *g = &r->groups[k == 0 ? 0 : r->n_groups - k];
        uint64_t seq = 0;
        if (g->gone == 0 && dtr__recording_entered(r, g, &seq)) {
            d->group[d->n_groups].uid = g->uid;
            d->group[d->n_groups++].seq = seq;
        }
    }
}

static bool is_message(const dtr__record *rec, bool open) {
    return (rec->flags & DTR__REC_PAIRED) != 0 && !(open && dtr__record_over(rec));
}

/* There is room for one: any of those that have not ended, which their other ends may wait for, or
 * of the last ones, so that each has its turn in one report or another. */
static void add_message(const dtr__recording *r, dtr__rank_report *d) {
    enum { LAST = 8 };
    size_t open = 0, all = 0;
    for (size_t i = 0; i < r->n_records; i++) {
        open += is_message(&r->records[i], true);
        all += is_message(&r->records[i], false);
    }
    size_t n = open > 0 ? open : all < LAST ? all : LAST;
    size_t pick = n > 0 ? (size_t)(dtr__now_ns() >> 8) % n + 1 : 0;
    for (size_t i = r->n_records; i > 0 && pick > 0; i--) {
        const dtr__record *rec = &r->records[i - 1];
        if (is_message(rec, open > 0) && --pick == 0) {
            (void)dtr__record_message(r, rec, &d->message);
        }
    }
}

/* Ranks may have disagreed on one of these, and agree again. */
static void add_before(const dtr__recording *r, const dtr__record *shown, dtr__rank_report *d) {
    uint64_t below = d->called.seq;
    int n = 0;
    for (size_t i = r->n_records; i > 0 && below > 0 && n < DTR__REPORT_BEFORE; i--) {
        const dtr__record *rec = &r->records[i - 1];
        if (rec->group == shown->group && rec->seq < below &&
            dtr__record_called(r, rec, &d->before[n])) {
            below = d->before[n++].seq;
        }
    }
}

/* What dtr-top shows of it. */
static void add_rates(const dtr__recording *r, int64_t now, dtr__rank_report *d) {
    const dtr__record *open = dtr__recording_open(r), *last = dtr__recording_last(r, true);
    const bool left = atomic_load(&r->head.phase) >= DTR__PHASE_DESTROYING;
    d->state = left ? 0 : (uint64_t)(unsigned char)r->state;
    d->since_s = open != NULL   ? (double)(now - open->t_issued) * 1e-9
                 : last != NULL ? (double)(now - last->t_finished) * 1e-9
                                : -1;
    dtr__recording_rates(r, now, 1, &d->rates);
}

bool dtr__rank_report_make(const dtr_world *world, int world_rank, dtr__rank_report *d) {
    dtr__recording *r = dtr__peer_glance(world, world_rank);
    memset(d, 0, sizeof *d);
    d->rank = world_rank;
    if (r == NULL) {
        return false;
    }
    const dtr__record *open = dtr__recording_open(r);
    const dtr__record *in = dtr__recording_waited(r);
    const dtr__rec_group *of = in != NULL ? dtr__recording_group(r, in->group) : NULL;
    if (of != NULL && in->seq != 0) {
        d->in_uid = of->uid;
        d->in_seq = in->seq;
        d->in_over = in != open;
    }
    const dtr__record *shown = open;
    for (size_t i = r->n_records; (shown == NULL || shown->seq == 0) && i > 0; i--) {
        shown = &r->records[i - 1];
    }
    if (dtr__record_called(r, shown, &d->called)) {
        add_before(r, shown, d);
    }
    add_message(r, d);
    add_groups(r, d);
    const int64_t now = dtr__now_ns();
    add_rates(r, now, d);
    dtr__recording_doing(r, now, d->doing, sizeof d->doing);
    dtr__recording_free(r);
    return true;
}
