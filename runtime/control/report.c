/* Reports of what ranks do: making them from the recordings of this node's ranks, and the boards on
 * which those of other nodes are kept. A board has one writer, its owner's watchdog thread;
 * readers, in all processes of the node, take no lock and wait for nobody. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "control/control.h"
#include "control/peers.h"
#include "seqlock.h"

enum { WORDS = sizeof(dtr__rank_report) / sizeof(uint64_t) };

typedef struct entry {
    _Atomic uint64_t version; /* odd while the words change, 0 before the first report */
    _Atomic uint64_t word[WORDS];
    char failure[DTR__RANK_FAILURE_TEXT]; /* complete and stays once its rank is dead */
} entry;

/* Zeroed at first. Who has written nothing has counts of 0, and then nobody touches the rest: the
 * kernel gives it no memory before. */
struct dtr__board {
    _Atomic uint32_t failures, reports, wants;
    int32_t n_ranks, n_nodes; /* constant; written before any of these counts */
    _Atomic int64_t time[];   /* wanted [n_ranks], received [n_nodes]; behind: */
};

size_t dtr__board_bytes(int n_ranks, int n_nodes) {
    return sizeof(dtr__board) + sizeof(int64_t) * (2 * (size_t)n_ranks + (size_t)n_nodes) +
           sizeof(entry) * (size_t)n_ranks;
}

void dtr__board_init(dtr__board *b, int n_ranks, int n_nodes) {
    b->n_ranks = n_ranks;
    b->n_nodes = n_nodes;
}

/* [n_ranks] a dtr_status < 0 of those that have failed, 0 of others. */
static _Atomic int64_t *dead_of(const dtr__board *b, int world_rank) {
    return &((dtr__board *)b)->time[b->n_ranks + b->n_nodes + world_rank];
}

/* [n_ranks], the last. */
static entry *entry_of(const dtr__board *b, int world_rank) {
    return (entry *)dead_of(b, b->n_ranks) + world_rank;
}

void dtr__board_put(dtr__board *b, int world_rank, const dtr__rank_report *d) {
    entry *e = entry_of(b, world_rank);
    dtr__seqlock_write(&e->version, e->word, d, WORDS);
    atomic_store(&b->reports, 1);
}

/* A writer that was stopped in the middle leaves the entry odd: then there is no report here. */
bool dtr__board_get(const dtr__board *b, int world_rank, dtr__rank_report *d) {
    const entry *e = atomic_load(&b->reports) != 0 ? entry_of(b, world_rank) : NULL;
    bool found = e != NULL && dtr__seqlock_read(&e->version, e->word, d, WORDS);
    if (found) {
        d->doing[sizeof d->doing - 1] = '\0';
        d->called.site[sizeof d->called.site - 1] = '\0';
        d->message.site[sizeof d->message.site - 1] = '\0';
        for (int i = 0; i < DTR__REPORT_BEFORE; i++) {
            d->before[i].site[sizeof d->before[i].site - 1] = '\0';
        }
    }
    return found;
}

void dtr__board_put_failure(dtr__board *b, int world_rank, dtr_status status, const char *text) {
    entry *e = entry_of(b, world_rank);
    if (atomic_load(dead_of(b, world_rank)) == 0) {
        snprintf(e->failure, sizeof e->failure, "%s", text);
        atomic_store(dead_of(b, world_rank), (int64_t)status);
        atomic_fetch_add(&b->failures, 1);
    }
}

const char *dtr__board_failure(const dtr__board *b, int world_rank, dtr_status *status) {
    const bool any = atomic_load(&b->failures) != 0;
    *status = any ? (dtr_status)atomic_load(dead_of(b, world_rank)) : DTR_OK;
    return *status != DTR_OK ? entry_of(b, world_rank)->failure : NULL;
}

uint32_t dtr__board_failures(const dtr__board *b) {
    return atomic_load(&b->failures);
}

void dtr__board_want(dtr__board *b, int world_rank, int64_t ns) {
    int64_t had = atomic_load(&b->time[world_rank]);
    while (had < ns && !atomic_compare_exchange_weak(&b->time[world_rank], &had, ns)) {
    }
    atomic_fetch_add(&b->wants, 1);
}

int64_t dtr__board_wanted(const dtr__board *b, int world_rank) {
    return atomic_load(&b->wants) != 0 ? atomic_load(&b->time[world_rank]) : 0;
}

uint32_t dtr__board_wants(const dtr__board *b) {
    return atomic_load(&b->wants);
}

void dtr__board_put_received(dtr__board *b, int node, int64_t ns) {
    atomic_store(&b->time[b->n_ranks + node], ns);
    atomic_store(&b->reports, 1);
}

int64_t dtr__board_received(const dtr__board *b, int node) {
    return atomic_load(&b->reports) != 0 ? atomic_load(&b->time[b->n_ranks + node]) : 0;
}

/* ---- making ---- */

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
