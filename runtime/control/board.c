/* Boards: what is known of the ranks of other nodes, one board for each rank of this one, its
 * owner's to write, in memory that the node shares. Readers, in all processes of the node, take no
 * lock and wait for nobody. In a world of many ranks those whose numbers differ by a multiple of
 * the places share a place: the newest report has it, but an answer to a question keeps it for a
 * second. */
#include <stdio.h>

#include "base/clock.h"
#include "control/control.h"
#include "seqlock.h"

enum { REPORT_WORDS = sizeof(dtr__rank_report) / sizeof(uint64_t), WANT_WORDS = 2 };

typedef struct report_place {
    _Atomic uint64_t version; /* odd while the words change, 0 before the first report */
    _Atomic uint64_t word[REPORT_WORDS];
} report_place;

typedef struct want_place {
    _Atomic uint64_t version;
    _Atomic uint64_t word[WANT_WORDS]; /* a dtr__want */
} want_place;
_Static_assert(sizeof(dtr__want) == WANT_WORDS * sizeof(uint64_t), "kept word by word");

typedef struct failed_rank {
    int32_t rank, status;
} failed_rank;

/* Zeroed at first. Who has written nothing has counts of 0, and then nobody touches the rest: the
 * kernel gives it no memory before. */
struct dtr__board {
    _Atomic uint32_t failures, reports, wants;
    int32_t n_ranks, n_nodes;   /* constant; written before any of these counts */
    _Atomic int64_t received[]; /* [n_nodes]; behind it what the functions below find */
};

static size_t at_most(int n_ranks, size_t most) {
    return (size_t)n_ranks < most ? (size_t)n_ranks : most;
}

static want_place *wants_of(const dtr__board *b) {
    return (want_place *)&((dtr__board *)b)->received[b->n_nodes];
}

static report_place *reports_of(const dtr__board *b) {
    return (report_place *)(wants_of(b) + dtr__board_n_wants(b->n_ranks));
}

/* [n_ranks] as they come. */
static failed_rank *failures_of(const dtr__board *b) {
    return (failed_rank *)(reports_of(b) + at_most(b->n_ranks, DTR__BOARD_REPORTS));
}

/* Of the first of those. */
static char (*texts_of(const dtr__board *b))[DTR__RANK_FAILURE_TEXT] {
    return (char(*)[DTR__RANK_FAILURE_TEXT])(failures_of(b) + b->n_ranks);
}

size_t dtr__board_bytes(int n_ranks, int n_nodes) {
    return sizeof(dtr__board) + sizeof(int64_t) * (size_t)n_nodes +
           sizeof(want_place) * dtr__board_n_wants(n_ranks) +
           sizeof(report_place) * at_most(n_ranks, DTR__BOARD_REPORTS) +
           sizeof(failed_rank) * (size_t)n_ranks +
           DTR__RANK_FAILURE_TEXT * at_most(n_ranks, DTR__BOARD_TEXTS);
}

void dtr__board_init(dtr__board *b, int n_ranks, int n_nodes) {
    b->n_ranks = n_ranks;
    b->n_nodes = n_nodes;
}

/* ---- reports ---- */

static report_place *place_of(const dtr__board *b, int world_rank) {
    return reports_of(b) + (size_t)world_rank % at_most(b->n_ranks, DTR__BOARD_REPORTS);
}

static bool read_place(const report_place *e, dtr__rank_report *d) {
    return dtr__seqlock_read(&e->version, e->word, d, REPORT_WORDS);
}

void dtr__board_put(dtr__board *b, int world_rank, const dtr__rank_report *d) {
    report_place *e = place_of(b, world_rank);
    dtr__rank_report has;
    const bool answers = dtr__now_ns() - d->fresh_ns < DTR__ANSWER_NS;
    if (!answers && read_place(e, &has) && has.rank != world_rank &&
        dtr__now_ns() - has.fresh_ns < DTR__ANSWER_NS) {
        return;
    }
    dtr__seqlock_write(&e->version, e->word, d, REPORT_WORDS);
    atomic_store(&b->reports, 1);
}

/* A writer that was stopped in the middle leaves the place odd: then there is no report here. */
bool dtr__board_get(const dtr__board *b, int world_rank, dtr__rank_report *d) {
    const bool found = atomic_load(&b->reports) != 0 && read_place(place_of(b, world_rank), d) &&
                       d->rank == world_rank;
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

void dtr__board_put_received(dtr__board *b, int node, int64_t ns) {
    atomic_store(&b->received[node], ns);
    atomic_store(&b->reports, 1);
}

int64_t dtr__board_received(const dtr__board *b, int node) {
    return atomic_load(&b->reports) != 0 ? atomic_load(&b->received[node]) : 0;
}

/* ---- failures ---- */

void dtr__board_put_failure(dtr__board *b, int world_rank, dtr_status status, const char *text) {
    const uint32_t n = atomic_load(&b->failures);
    if (n < (uint32_t)b->n_ranks) {
        failures_of(b)[n] = (failed_rank){ world_rank, (int32_t)status };
        if (n < DTR__BOARD_TEXTS) {
            snprintf(texts_of(b)[n], DTR__RANK_FAILURE_TEXT, "%s", text);
        }
        atomic_store(&b->failures, n + 1);
    }
}

uint32_t dtr__board_failures(const dtr__board *b) {
    return (uint32_t)at_most(b->n_ranks, atomic_load(&b->failures));
}

const char *dtr__board_failure(const dtr__board *b, uint32_t i, int *world_rank,
                               dtr_status *status) {
    const failed_rank f = failures_of(b)[i];
    *world_rank = f.rank;
    *status = (dtr_status)f.status;
    return i < DTR__BOARD_TEXTS ? texts_of(b)[i] : NULL;
}

/* ---- wants ---- */

size_t dtr__board_n_wants(int n_ranks) {
    return at_most(n_ranks, DTR__BOARD_WANTS);
}

static want_place *want_place_of(const dtr__board *b, int world_rank) {
    return wants_of(b) + (size_t)world_rank % dtr__board_n_wants(b->n_ranks);
}

void dtr__board_want(dtr__board *b, int world_rank, int64_t ns) {
    want_place *e = want_place_of(b, world_rank);
    const dtr__want w = { .ns = ns, .rank = world_rank };
    dtr__seqlock_write(&e->version, e->word, &w, WANT_WORDS);
    atomic_fetch_add(&b->wants, 1);
}

dtr__want dtr__board_wanted(const dtr__board *b, size_t place) {
    const want_place *e = wants_of(b) + place;
    dtr__want w = { 0 };
    const bool found =
        atomic_load(&b->wants) != 0 && dtr__seqlock_read(&e->version, e->word, &w, WANT_WORDS);
    return found ? w : (dtr__want){ 0 };
}

uint32_t dtr__board_wants(const dtr__board *b) {
    return atomic_load(&b->wants);
}
