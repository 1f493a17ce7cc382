/* One operation, from its slot to its end. Every step does what it can without waiting and is
 * called again. */
#include <stdlib.h>

#include "core/check.h"
#include "core/work.h"
#include "kernels/kernels.h"
#include "shm_internal.h"

/* ---- arrive ---- */

size_t dtr__shm_given(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r) {
    const dtr__shm_slot *slot = dtr__shm_slot_of(s, r);
    if (c->kind == DTR__K_GATHERV) {
        return dtr__shm_detail_of(s, r)->count_in * s->op.size;
    }
    if (!dtr__shm_has_table(c->kind)) {
        return dtr__shm_wanted(g, c, r);
    }
    if (slot->mode == DTR__SHM_NOTHING) {
        return 0;
    }
    const uint64_t *row = dtr__shm_table_row(g, s, r);
    return row[g->rank + 1] - row[g->rank];
}

size_t dtr__shm_asked(const dtr_group *g, const dtr__shm_state *s, int r) {
    return dtr__shm_table_row(g, s, r)[g->size + 1 + g->rank];
}

bool dtr__shm_gives_asked(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r) {
    if (c->kind != DTR__K_ALLTOALLV) {
        return true;
    }
    dtr__blocks b = dtr__blocks_in(c, g->size);
    return dtr__shm_asked(g, s, r) == dtr__block_count(&b, r) * dtr_dtype_size(c->dtype);
}

/* Counts that each side knows for itself, compared here. */
static bool counts_fit(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r) {
    /* Those of a step follow from what the fingerprint covers. */
    return c->user_call != NULL || r == g->rank || !dtr__shm_reads(g, c, g->rank) ||
           !dtr__shm_gives(g, c, r) ||
           (dtr__shm_given(g, s, c, r) == dtr__shm_wanted(g, c, r) &&
            dtr__shm_gives_asked(g, s, c, r));
}

bool dtr__shm_awaits(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r) {
    return !s->op.ahead || r == g->rank || dtr__shm_reads_from(g, c, g->rank, r);
}

/* False: not all have come, or one of them calls something else. */
static bool arrive(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    dtr__shm_op *op = &s->op;
    uint64_t mark = dtr__shm_mark(op->n, 0);
    for (; op->arrived < g->size; op->arrived++) {
        const dtr__shm_slot *slot = dtr__shm_slot_of(s, op->arrived);
        if (!dtr__shm_awaits(g, s, c, op->arrived)) {
            continue;
        }
        if (!dtr__shm_has_posted(slot, mark)) {
            return false;
        }
        if (slot->fingerprint != c->fingerprint || !counts_fit(g, s, c, op->arrived)) {
            op->wrong = DTR__SHM_DISAGREE;
            return false;
        }
    }
    op->zero_copy = dtr__shm_zero_fits(g, c);
    bool in_slots = true;
    op->sliced = true;
    op->swaps = g->size == 2 && !op->ahead;
    op->by_slices = dtr__shm_slices_fit(g, c);
    for (int r = 0; r < g->size; r++) {
        const dtr__shm_slot *slot = dtr__shm_slot_of(s, r);
        if (!dtr__shm_awaits(g, s, c, r)) {
            continue;
        }
        op->zero_copy = op->zero_copy && slot->zero_copy;
        op->sliced = op->sliced && (slot->sliced || slot->zero_copy);
        op->by_slices = op->by_slices && slot->mode == DTR__SHM_STAGED;
        op->swaps = op->swaps && slot->mode == DTR__SHM_STAGED;
        in_slots = in_slots && slot->mode <= DTR__SHM_IN_SLOT;
    }
    op->sliced = op->sliced && c->kind == DTR__K_ALLREDUCE && !op->zero_copy;
    op->by_slices = op->by_slices && !op->zero_copy && !op->sliced;
    op->swaps = op->swaps && !op->zero_copy && !op->sliced;
    op->laps = op->swaps && !op->by_slices && dtr__shm_may_lap(g, c->kind) &&
               dtr__shm_slot_of(s, 0)->first == dtr__shm_slot_of(s, 1)->first;
    op->quiet = in_slots && !op->zero_copy && !op->sliced;
    if (c->kind == DTR__K_ALLTOALLV) {
        dtr__shm_count_chunks(g, s, c, true);
    }
    s->seen = op->ahead ? s->seen : op->n;
    return true;
}

/* ---- pull ---- */

static const unsigned char attached[1]; /* source: to be read through the kernel */

unsigned char *dtr__shm_staged(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                               int r, size_t k) {
    const dtr__shm_slot *slot = dtr__shm_slot_of(s, r);
    const size_t nbytes = dtr__shm_step_of(g, s, c, r) * s->op.n_blocks,
                 n = dtr__shm_stages(g, s, c, nbytes), at = dtr__shm_round(slot, k, n);
    const int owner = s->op.laps && at / n % 2 != 0 ? 1 - r : r;
    return (unsigned char *)dtr__shm_unpack(g->world, dtr__shm_slot_of(s, owner)->at) +
           at % n * nbytes;
}

const unsigned char *dtr__shm_source(const dtr_group *g, const dtr__shm_state *s,
                                     const dtr__call *c, int r, size_t k) {
    const dtr__shm_op *op = &s->op;
    const size_t step = dtr__shm_step_of(g, s, c, r), at = k * step;
    if (r == g->rank) {
        size_t offset = 0;
        if (k >= op->posted && k < op->chunks_out) {
            return NULL; /* in place, the result would overwrite what the others have yet to get */
        }
        (void)dtr__shm_piece(g, c, (size_t)r, &offset);
        return op->in + offset + at;
    }
    const dtr__shm_slot *slot = dtr__shm_slot_of(s, r);
    if (slot->mode == DTR__SHM_IN_LINE || slot->mode == DTR__SHM_IN_SLOT) {
        return dtr__shm_shown(s, r) + dtr__shm_wanted_at(g, s, c, r) + at;
    }
    if (slot->mode == DTR__SHM_DIRECT) {
        return (unsigned char *)dtr__shm_unpack(g->world, slot->at) +
               dtr__shm_wanted_at(g, s, c, r) + at;
    }
    if (slot->mode == DTR__SHM_ATTACH) {
        return attached;
    }
    if (!dtr__shm_has_posted(slot, dtr__shm_mark(op->n, k + slot->shift))) {
        return NULL;
    }
    return dtr__shm_staged(g, s, c, r, k) + dtr__shm_place_of(g, s, r, g->rank) * step;
}

static size_t clip(size_t nbytes, size_t at, size_t step) {
    return at >= nbytes ? 0 : nbytes - at < step ? nbytes - at : step;
}

/* Chunks at `at` of all plain buffers that the kernel reads, into `bounce`. */
static bool read_attached(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, int n_from,
                          size_t at, size_t nbytes, const void **from) {
    for (int r = 0; r < n_from; r++) {
        if (r == g->rank || dtr__shm_slot_of(s, r)->mode != DTR__SHM_ATTACH) {
            continue;
        }
        unsigned char *bounce = dtr__shm_attach_bounce(g, s);
        if (bounce == NULL || !dtr__shm_attach_copy(g, s, r, bounce + (size_t)r * s->op.step,
                                                    dtr__shm_wanted_at(g, s, c, r) + at, nbytes)) {
            return false;
        }
        from[r] = bounce + (size_t)r * s->op.step;
    }
    return true;
}

/* The result is one input as it is. */
static bool reads_only_one(const dtr__call *c, int n_from) {
    return n_from == 1 && c->dtype != DTR_BOOL && c->op <= DTR_BXOR && c->op != DTR_AVG;
}

static bool reduce_chunk(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t *moved) {
    const dtr__shm_op *op = &s->op;
    const void *from[DTR__SHM_MAX_RANKS];
    double factors[DTR__SHM_MAX_RANKS];
    size_t at = op->pulled * op->step, n = clip(c->out_count * op->size, at, op->step);
    const int n_from = dtr__n_sources(c->kind, g->rank, g->size);
    from[0] = NULL;
    if (dtr__shm_source(g, s, c, g->rank, op->pulled) == NULL) {
        return false;
    }
    for (int r = 0; r < n_from; r++) {
        from[r] = dtr__shm_source(g, s, c, r, op->pulled);
        if (from[r] == NULL) {
            return false;
        }
        factors[r] = c->op == DTR_PREMUL_SUM ? dtr__shm_detail_of(s, r)->premul : 1;
    }
    void *to = (unsigned char *)c->out + at;
    *moved = n * (size_t)(n_from + 1);
    if (n_from == 0) {
        dtr__fill_identity(to, n / op->size, c->out_count, c->dtype, c->op);
        return true;
    }
    if (reads_only_one(c, n_from) && from[0] == attached) {
        return dtr__shm_attach_copy(g, s, 0, to, at, n);
    }
    if (!read_attached(g, s, c, n_from, at, n, from)) {
        return false;
    }
    dtr__reduce_piece(&to, 1, from, n_from, n / op->size, c->dtype, dtr__kernel_op(g, c),
                      c->divisor, c->op == DTR_PREMUL_SUM ? factors : NULL,
                      dtr__shm_streams_reduced(g, c->kind, c->out_count * op->size)
                          ? DTR__NONTEMPORAL_ALL
                          : DTR__NONTEMPORAL_NONE);
    return true;
}

/* Of a buffer that the kernel reads: several chunks at once, and then none, as each read costs a
 * system call. */
static size_t attached_bytes(const dtr_group *g, size_t k, size_t wanted, size_t step) {
    const size_t fit = (size_t)g->world->tune.value[DTR__TUNE_CMA_PIECE] / step,
                 n_chunks = fit > 0 ? fit : 1;
    return k % n_chunks == 0 ? clip(wanted, k * step, n_chunks * step) : 0;
}

static bool copy_chunk(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t *moved) {
    dtr__shm_op *op = &s->op;
    const bool stream = dtr__shm_streams(g, c->kind, c->out_count * op->size);
    for (; op->copied < g->size;
         op->copied++) { /* starts behind oneself, so that not all read from the same rank */
        int r = (g->rank + op->copied) % g->size;
        const size_t step = dtr__shm_step_of(g, s, c, r), at = op->pulled * step,
                     wanted = dtr__shm_wanted(g, c, r);
        size_t n = clip(wanted, at, step);
        if (n == 0) {
            continue;
        }
        const unsigned char *from = dtr__shm_source(g, s, c, r, op->pulled);
        unsigned char *to = dtr__shm_target(g, c, r) + at;
        if (from == NULL) {
            return false;
        }
        if (from == attached) {
            n = attached_bytes(g, op->pulled, wanted, step);
            if (n > 0 &&
                !dtr__shm_attach_copy(g, s, r, to, dtr__shm_wanted_at(g, s, c, r) + at, n)) {
                return false;
            }
        } else if (from != to) {
            (stream ? dtr__copy_nontemporal : dtr__copy)(to, from, n);
        }
        *moved += n;
    }
    op->copied = 0;
    return true;
}

/* The root's own block of a scatter comes from nobody. */
static void copy_own(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    if ((c->kind == DTR__K_SCATTER || c->kind == DTR__K_SCATTERV) && g->rank == c->root) {
        size_t offset = 0, n = dtr__shm_piece(g, c, (size_t)g->rank, &offset);
        if (n > 0 && c->out != s->op.in + offset) {
            dtr__copy(c->out, s->op.in + offset, n);
        }
    }
}

/* Whether what was read, or reduced for others, may have changed under the reader. */
static bool is_lost(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c) {
    const dtr__shm_op *op = &s->op;
    const bool all = op->zero_copy || op->sliced;
    for (int r = 0; r < g->size; r++) {
        if (!dtr__shm_awaits(g, s, c, r)) {
            continue;
        }
        const uint8_t mode = dtr__shm_slot_of(s, r)->mode;
        const bool in_place = all || mode == DTR__SHM_DIRECT || mode == DTR__SHM_ATTACH;
        if ((all || op->chunks_in > 0) && (in_place || mode == DTR__SHM_STAGED) &&
            dtr__shm_has_withdrawn(s->boards[r],
                                   in_place ? DTR__SHM_BUFFERS : DTR__SHM_EVERYTHING)) {
            return true;
        }
    }
    return false;
}

/* Publish how far this rank has read; whole as soon as it wants no more, though it may still have
 * chunks to stage. Where somebody had given up before, the group breaks and ends the operation. */
void dtr__shm_publish_finished(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    dtr__shm_op *op = &s->op;
    bool whole = op->zero_copy || op->sliced || op->pulled >= op->chunks_in;
    op->lost = op->lost || (whole && !op->quiet && is_lost(g, s, c));
    if (!op->quiet && !op->lost) {
        atomic_store_explicit(&s->me->finished,
                              dtr__shm_mark(op->n, whole ? DTR__SHM_WHOLE : op->pulled - 1),
                              memory_order_release);
    }
}

static bool pull_chunk(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t *moved) {
    if (!(s->op.by_slices              ? dtr__shm_slices_pull(g, s, c, moved)
          : dtr__kind_reduces(c->kind) ? reduce_chunk(g, s, c, moved)
                                       : copy_chunk(g, s, c, moved))) {
        return false;
    }
    s->op.pulled++;
    dtr__shm_publish_finished(g, s, c);
    return true;
}

static bool show_chunk(dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    dtr__shm_slot *slot = dtr__shm_slot_of(s, g->rank);
    if (s->op.posted >= s->op.chunks_out || !dtr__shm_stage_chunk(g, s, c, slot)) {
        return false;
    }
    return dtr__shm_show(g, s, dtr__shm_mark(s->op.n, s->op.posted - 1 + slot->shift));
}

/* True when nothing is left to stage and to pull. */
static bool pull(dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t budget,
                 bool *any_moved) {
    dtr__shm_op *op = &s->op;
    if (op->zero_copy) {
        return dtr__shm_zero_pull(g, s, c, budget, any_moved);
    }
    if (op->sliced) {
        return dtr__shm_attach_pull(g, s, c, budget, any_moved);
    }
    for (size_t total = 0; op->posted < op->chunks_out || op->pulled < op->chunks_in;) {
        size_t moved = 0;
        bool posted = show_chunk(g, s, c);
        bool pulled = op->pulled < op->chunks_in && pull_chunk(g, s, c, &moved);
        total += moved + (posted ? op->step : 0);
        *any_moved = *any_moved || posted || pulled || moved > 0;
        if ((!posted && !pulled) || total >= budget) {
            return op->posted >= op->chunks_out && op->pulled >= op->chunks_in;
        }
    }
    return true;
}

/* ---- leave ---- */

/* A rank whose memory others read stays until they are through. */
bool dtr__shm_may_leave(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c) {
    const dtr__shm_op *op = &s->op;
    const bool all = op->zero_copy || op->sliced;
    const uint8_t mode = dtr__shm_slot_of(s, g->rank)->mode;
    if (op->lost) {
        return false;
    }
    if (!all && mode != DTR__SHM_DIRECT && mode != DTR__SHM_ATTACH) {
        return true;
    }
    for (int r = 0; r < g->size; r++) {
        bool waits = all || dtr__shm_reads_from(g, c, r, g->rank);
        if (waits && r != g->rank &&
            !dtr__shm_has_finished(s, r, dtr__shm_mark(op->n, DTR__SHM_WHOLE))) {
            return false;
        }
    }
    return true;
}

void dtr__shm_begin(dtr__shm_state *s, const dtr__call *c) {
    const uint64_t place = c->file != NULL ? (uint64_t)(uintptr_t)c->file + (uint64_t)c->line
                                           : (uint64_t)(uintptr_t)c->return_address;
    s->op = (dtr__shm_op){
        .n = ++s->n, .size = dtr_dtype_size(c->dtype), .whole = true, .among_long = !s->op.quiet
    };
    dtr__shm_count_row(s, dtr__mix(c->fingerprint, place) | UINT64_C(1) << 63);
}

/* Who has not come yet finds it there. */
static void stage_ahead(dtr_group *g, dtr__shm_state *s, const dtr__call *c, bool *moved) {
    const bool staged = dtr__shm_slot_of(s, g->rank)->mode == DTR__SHM_STAGED;
    while (staged && !dtr__kind_reduces(c->kind) && show_chunk(g, s, c)) {
        *moved = true;
    }
}

/* Where something is wrong, which op->wrong says, it comes to the same place when called again. */
static dtr_status move(dtr_group *g, dtr__shm_state *s, const dtr__call *c, bool *moved,
                       bool *done) {
    dtr__shm_op *op = &s->op;
    op->wrong = DTR__SHM_NOTHING_WRONG;
    if (op->phase == DTR__SHM_NEW) {
        bool prepared = false;
        DTR_TRY(dtr__shm_prepare(g, s, c, &prepared));
        if (!prepared) {
            return DTR_OK;
        }
        op->phase = DTR__SHM_SHOW;
    }
    if (op->phase == DTR__SHM_SHOW) {
        if (!dtr__shm_fill_slot(g, s, c)) {
            return DTR_OK;
        }
        op->phase = DTR__SHM_ARRIVE;
    }
    if (op->phase == DTR__SHM_ARRIVE) {
        if (!arrive(g, s, c)) {
            if (op->wrong == DTR__SHM_NOTHING_WRONG) {
                stage_ahead(g, s, c, moved);
            }
            return DTR_OK;
        }
        if (!dtr__shm_enter(s->boards[g->rank])) {
            return DTR_OK;
        }
        copy_own(g, s, c);
        dtr__shm_leave(s->boards[g->rank]);
        if (!op->zero_copy && !op->sliced && op->chunks_in == 0) {
            dtr__shm_publish_finished(g, s, c);
        }
        op->phase = DTR__SHM_PULL;
    }
    if (op->phase == DTR__SHM_PULL) {
        if (!dtr__shm_enter(s->boards[g->rank])) {
            return DTR_OK;
        }
        bool complete = pull(g, s, c, DTR__SHM_BUDGET, moved);
        dtr__shm_leave(s->boards[g->rank]);
        if (op->attach_errno != 0) {
            op->wrong = DTR__SHM_UNREADABLE;
            return DTR_OK;
        }
        if (!complete) {
            return DTR_OK;
        }
        if (op->zero_copy || op->sliced) {
            dtr__shm_publish_finished(g, s, c);
        }
        op->phase = DTR__SHM_LEAVE;
    }
    *done = dtr__shm_may_leave(g, s, c);
    if (*done && op->swaps) {
        dtr__shm_stage_swap(g, s, c);
    }
    if (*done && op->zero_copy && dtr__shm_lost_out(g, s, c)) {
        op->wrong = DTR__SHM_LOST;
    }
    return DTR_OK;
}

void dtr__shm_end(dtr__shm_state *s) {
    free(s->op.copy);
    s->op.copy = NULL;
}

dtr_status dtr__shm_advance(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done) {
    uint64_t broken = atomic_load_explicit(&s->control->broken, memory_order_acquire);
    if (broken != 0 && s->op.n >= broken >> 2) { /* earlier ones can still be finished */
        return dtr__shm_broken(g, s, w);
    }
    DTR_TRY(move(g, s, &w->call, &w->moved, done));
    switch (s->op.wrong) {
    case DTR__SHM_DISAGREE:
        return dtr__shm_mismatch(g, s, w);
    case DTR__SHM_UNREADABLE:
        return dtr__shm_attach_failed(g, s, w);
    case DTR__SHM_LOST:
        return dtr__shm_fail_lost_out(g, w);
    default:
        return DTR_OK;
    }
}

int dtr__shm_poll_call(dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    bool moved = false, done = false;
    if (atomic_load_explicit(&s->control->broken, memory_order_acquire) != 0 ||
        move(g, s, c, &moved, &done) < 0 || s->op.wrong != DTR__SHM_NOTHING_WRONG) {
        return -1;
    }
    if (done) {
        dtr__shm_end(s);
    }
    return done;
}
