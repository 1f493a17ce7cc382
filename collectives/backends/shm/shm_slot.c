/* The own slot of an operation: what this rank says about it, and where the others find its data.
 */
#include <stdlib.h>
#include <string.h>

#include "core/call_site.h"
#include "core/check.h"
#include "core/signature.h"
#include "shm_internal.h"

static bool writes_over_input(const dtr__call *c) {
    return (c->kind == DTR__K_ALLTOALL || c->kind == DTR__K_ALLTOALLV) && c->in == c->out;
}

/* What is in the slot stays as it is until the operation has ended, the own block included, which
 * an alltoallv in place may move over itself. */
void dtr__shm_keep_input(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    const dtr__shm_slot *slot = dtr__shm_slot_of(s, g->rank);
    const bool shown = slot->mode == DTR__SHM_IN_LINE || slot->mode == DTR__SHM_IN_SLOT;
    s->op.in = shown && writes_over_input(c) ? dtr__shm_shown(s, g->rank) : s->op.in;
}

/* Write the own table of a v-form, or only look; whether it was the same before. */
static bool put_table(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, bool write) {
    uint64_t *row = dtr__shm_table_row(g, s, g->rank);
    const int n = c->kind == DTR__K_ALLTOALLV ? 2 * g->size + 1 : g->size + 1;
    size_t offset = 0, nbytes = 0;
    bool same = true;
    for (int i = 0; i < n; i++) {
        nbytes = i < g->size ? dtr__shm_piece(g, c, (size_t)i, &offset) : nbytes;
        const uint64_t now = i < g->size    ? offset
                             : i == g->size ? offset + nbytes
                                            : dtr__shm_wanted(g, c, i - g->size - 1);
        same = same && row[i] == now;
        if (write) {
            row[i] = now;
        }
    }
    return same;
}

void dtr__shm_write_table(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    (void)put_table(g, s, c, true);
}

bool dtr__shm_show(const dtr_group *g, const dtr__shm_state *s, uint64_t mark) {
    const bool good = !dtr__shm_has_withdrawn(s->boards[g->rank], DTR__SHM_BUFFERS);
    if (good) {
        atomic_store_explicit(&dtr__shm_slot_of(s, g->rank)->posted, mark, memory_order_release);
    }
    return good;
}

void dtr__shm_describe(dtr__shm_slot *slot, const dtr__call *c) {
    slot->fingerprint = c->fingerprint;
    slot->shift = slot->zero_copy = slot->sliced = slot->in_raw = slot->out_raw = slot->left = 0;
}

void dtr__shm_describe_detail(dtr__shm_detail *detail, const dtr__call *c) {
    const dtr__call *user = dtr__user_call(c);
    detail->kind = (int32_t)user->kind;
    detail->dtype = (int32_t)user->dtype;
    detail->op = (int32_t)dtr__op_code(user->op);
    detail->root = user->root;
    detail->count_in = user->in_count;
    detail->count_out = user->out_count;
    detail->premul = c->premul;
}

/* Who has shown operation m has finished m - 1. Where many slots are in use this waits for half of
 * them, so that it reads the others' lines rarely. ahead: slots before this one that need
 * not be free. */
bool dtr__shm_is_free(const dtr_group *g, dtr__shm_state *s, uint64_t ahead) {
    const uint64_t n = s->op.n;
    if (s->seen + ahead >= n) {
        return true;
    }
    const uint64_t m = n - (ahead + 1) / 2;
    for (int r = 0; r < g->size; r++) {
        if (!dtr__shm_has_posted(&s->rank[r]->slot[m % DTR__SHM_SLOT_COUNT], dtr__shm_mark(m, 0))) {
            return false;
        }
    }
    s->seen = m;
    return true;
}

static bool shared_at(const dtr_group *g, const void *p, size_t nbytes, uint64_t *at) {
    int owner = 0;
    uint64_t offset = 0;
    if (!dtr__arena_find(g->world, p, nbytes, &owner, &offset)) {
        return false;
    }
    *at = dtr__shm_pack(owner, offset);
    return true;
}

/* Only in the own arena can this rank take an output back from who stores into it. */
bool dtr__shm_lies_shared(const dtr_group *g, const dtr__call *c, size_t nbytes, uint64_t *in_at,
                          uint64_t *out_at) {
    const bool takes_out = c->kind != DTR__K_REDUCE || g->rank == c->root;
    *out_at = DTR__SHM_NOWHERE;
    return nbytes > DTR__SHM_BESIDE && nbytes >= g->world->tune.value[DTR__TUNE_ZERO_COPY] &&
           dtr__shm_zero_fits(g, c) && shared_at(g, c->in, nbytes, in_at) &&
           (!takes_out ||
            (shared_at(g, c->out, nbytes, out_at) && (int)(*out_at >> 48) == g->world->local_rank));
}

/* Calls in which data goes one way, one after the other: a giver whose data is copied need not wait
 * until it has been read. One that comes alone finds its readers there, and they get it sooner if
 * they read it where it is. */
static bool goes_ahead(const dtr__shm_state *s, const dtr__call *c, size_t nbytes) {
    const dtr__shm_detail *last = &s->me->detail[(s->op.n - 1) & 1];
    return dtr__shm_one_way(c->kind) && nbytes <= s->chunk_least &&
           last->kind == (int32_t)dtr__user_call(c)->kind;
}

static bool in_row(const dtr__shm_state *s, const dtr__call *c) {
    return s->row_count >= DTR__SHM_RUN_AHEAD_AFTER && dtr__shm_one_way(c->kind);
}

/* Where the data is shown. */
typedef struct place {
    dtr__shm_mode mode;
    bool zero_copy;
    uint64_t at, in_at, out_at;
} place;

static place choose(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c) {
    const size_t nbytes = c->in_count * s->op.size;
    place p = { .mode = DTR__SHM_STAGED };
    /* What is written over is read from a copy, see copy_input. */
    const bool shared = !writes_over_input(c) && shared_at(g, c->in, nbytes, &p.at);
    p.zero_copy = dtr__shm_lies_shared(g, c, nbytes, &p.in_at, &p.out_at);
    if (!dtr__shm_gives(g, c, g->rank) || nbytes == 0) {
        p.mode = DTR__SHM_NOTHING;
    } else if (nbytes <= dtr__shm_inline_most(g, c->kind) && !(in_row(s, c) && s->op.among_long)) {
        p.mode = nbytes <= DTR__SHM_BESIDE ? DTR__SHM_IN_LINE : DTR__SHM_IN_SLOT;
        p.at = 0;
    } else if (shared && !dtr__overwrites_input(c) &&
               (p.zero_copy || (!dtr__shm_slices_fit(g, c) && !goes_ahead(s, c, nbytes)))) {
        p.mode = DTR__SHM_DIRECT;
    } else if (c->kind != DTR__K_ALLREDUCE && !dtr__overwrites_input(c) &&
               dtr__shm_attach_fits(g, c, nbytes) && dtr__cma_reaches(c->in, nbytes)) {
        p.mode = DTR__SHM_ATTACH;
    }
    return p;
}

static dtr_status show_place(dtr_group *g, dtr__shm_state *s, const dtr__call *c, const place *p) {
    dtr__shm_op *op = &s->op;
    dtr__shm_slot *slot = dtr__shm_slot_of(s, g->rank);
    size_t longest = 0, offset = 0;
    slot->mode = (uint8_t)p->mode;
    slot->zero_copy = p->zero_copy;
    slot->at = p->mode == DTR__SHM_ATTACH ? (uint64_t)(uintptr_t)op->in : p->at;
    op->chunks_out = 0;
    if (p->mode == DTR__SHM_IN_LINE || p->mode == DTR__SHM_IN_SLOT) {
        memcpy(dtr__shm_shown(s, g->rank), op->in, c->in_count * op->size);
        dtr__shm_keep_input(g, s, c);
    }
    if (p->mode != DTR__SHM_STAGED) {
        return DTR_OK;
    }
    DTR_TRY(dtr__shm_stage_need(g, s));
    dtr__shm_stage_cut(s, op->step * op->n_blocks);
    slot->at = s->stage_at;
    slot->first = (uint8_t)s->stage_next;
    slot->shift = slot->zero_copy || slot->sliced; /* most likely no copy will be needed */
    for (size_t b = 0; b < op->n_blocks; b++) {
        size_t n = dtr__shm_piece(g, c, b, &offset);
        longest = n > longest ? n : longest;
    }
    op->chunks_out = dtr__shm_chunks(longest, op->step);
    return DTR_OK;
}

/* A private copy of the input of an all-to-all in place. */
static dtr_status copy_input(dtr_group *g, dtr__shm_op *op, const dtr__call *c, size_t nbytes) {
    op->in = c->in;
    if (!writes_over_input(c) || nbytes <= DTR__SHM_INLINE) {
        return DTR_OK;
    }
    op->copy = malloc(nbytes);
    if (op->copy == NULL) {
        return DTR_FAIL(NULL, DTR_ERR_NOMEM,
                        "%s in place on group '%s': out of memory for a copy of %zu bytes",
                        dtr__kind_name(c->kind), g->name, nbytes);
    }
    memcpy(op->copy, c->in, nbytes);
    op->in = op->copy;
    return DTR_OK;
}

/* Data that is only moved goes in two chunks at least, so that one is read while the next is
 * written, and in short ones, of which all buffers together stay in the cache of a core. A chunk
 * that is dealt out to many has some for each. */
static size_t moved_chunk_of(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c) {
    const bool gives_all =
        c->kind == DTR__K_ALLTOALL || c->kind == DTR__K_ALLTOALLV || c->kind == DTR__K_GATHER;
    const bool only_some_know = c->kind == DTR__K_GATHERV || c->kind == DTR__K_SCATTERV;
    const size_t parts = dtr__shm_scatters(c->kind) && g->size > 2 ? (size_t)g->size / 2 : 1,
                 most = s->chunk_least / 2 * parts, least = most / 2,
                 a_line_each = (size_t)64 * (size_t)g->size;
    size_t wish = (gives_all ? c->in_count : c->out_count) * s->op.size / 2;
    wish = c->kind == DTR__K_SCATTER ? wish * (size_t)g->size : wish;
    wish = only_some_know || wish > most ? most : wish < least ? least : wish;
    wish = (wish > a_line_each ? wish : a_line_each) / 64 * 64;
    return wish < s->chunk ? wish : s->chunk;
}

/* In a reduction all wait at every chunk, so few long ones are faster, about twice at 1 MiB between
 * two ranks that share a cache, until the data no longer stays in the caches. Of an allreduce by
 * slices, where all wait twice, there are four at least; other allreduces, of which each rank reads
 * all chunks of all, take twice the usual one, but of two ranks, see dtr__shm_stages. Of a prefix,
 * in which the higher rank waits for all below it at each hand-over and nobody waits for it, the
 * long ones are faster for any size. All ranks must come to the same size: it follows from counts
 * that they compare and from thresholds alone. Only an alltoallv has as many as it has givers
 * (step_of). */
static size_t chunk_of(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c) {
    size_t nbytes = c->in_count * s->op.size, wish = s->chunk;
    if (dtr__rules[c->kind].prefix != NO_PREFIX) {
        wish = nbytes / 2 / 64 * 64;
        wish = wish < s->chunk_least ? s->chunk_least : wish;
        return wish < s->chunk ? wish : s->chunk;
    }
    if (!dtr__kind_reduces(c->kind)) {
        return moved_chunk_of(g, s, c);
    }
    if (dtr__shm_slices_fit(g, c)) {
        wish = nbytes / 4 / 64 * 64;
    } else if (c->kind == DTR__K_ALLREDUCE) {
        const size_t most = (g->size > 2 ? 2 : 1) * s->chunk_least;
        wish = most < wish ? most : wish;
    } else {
        return s->chunk_least;
    }
    if (nbytes > DTR__SHM_STRETCH_MOST * s->chunk || wish < s->chunk_least) {
        return s->chunk_least;
    }
    return wish < s->chunk ? wish : s->chunk;
}

size_t dtr__shm_step_of(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r) {
    const bool own_steps = c->kind == DTR__K_ALLTOALLV && r != g->rank &&
                           dtr__shm_slot_of(s, r)->mode == DTR__SHM_STAGED;
    return own_steps ? dtr__shm_detail_of(s, r)->step : s->op.step;
}

void dtr__shm_count_chunks(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, bool filled) {
    s->op.chunks_in = 0;
    for (int r = 0; r < g->size; r++) {
        const size_t step = filled ? dtr__shm_step_of(g, s, c, r) : s->op.step,
                     n = dtr__shm_chunks(dtr__shm_wanted(g, c, r), step);
        s->op.chunks_in = n > s->op.chunks_in ? n : s->op.chunks_in;
    }
}

/* Into how many pieces and chunks the data is cut. */
void dtr__shm_set_steps(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    dtr__shm_op *op = &s->op;
    op->n_blocks = dtr__shm_scatters(c->kind) ? (size_t)g->size : 1;
    op->step = chunk_of(g, s, c) / op->n_blocks / 64 * 64;
    if (c->kind != DTR__K_ALLREDUCE && dtr__kind_reduces(c->kind) &&
        op->step > dtr__shm_attach_piece(g)) {
        op->step = dtr__shm_attach_piece(g); /* chunks of all peers fit in `bounce` */
    }
    dtr__shm_count_chunks(g, s, c, false);
}

/* Whether the own details of the operation before the last, which others may still read, say of
 * this call what is to be said. The fingerprint has the rest. */
static bool is_described(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, bool gives) {
    const dtr__shm_detail *detail = dtr__shm_detail_of(s, g->rank);
    return detail->count_in == c->in_count && detail->count_out == c->out_count &&
           (!gives || !dtr__shm_has_table(c->kind) || put_table(g, s, c, false));
}

/* In a row of equal calls whose data goes one way a rank need not wait for those that it does not
 * read from, as in the fast path (may_run_ahead there says why), if its own data is copied. Of more
 * data too few calls find room in the staging buffers. */
static bool runs_ahead(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, const place *p) {
    return in_row(s, c) && c->in_count * s->op.size <= s->chunk_least / 2 && c->user_call == NULL &&
           c->op != DTR_PREMUL_SUM && !p->zero_copy &&
           (p->mode == DTR__SHM_STAGED || p->mode == DTR__SHM_NOTHING) &&
           !dtr__at_detail(g->world) && is_described(g, s, c, p->mode != DTR__SHM_NOTHING);
}

static void describe_new(dtr_group *g, dtr__shm_state *s, const dtr__call *c, const place *p) {
    dtr__shm_detail *detail = dtr__shm_detail_of(s, g->rank);
    dtr__shm_describe_detail(detail, c);
    detail->in_at = p->in_at;
    detail->out_at = p->out_at;
    detail->step = s->op.step;
    atomic_store_explicit(&s->lent_out[s->op.n & 1], p->out_at, memory_order_relaxed);
    if (c->kind == DTR__K_ALLREDUCE && !p->zero_copy && c->in_count > 0) {
        dtr__shm_attach_offer(g, s, c, c->in_count * s->op.size);
    }
    if (c->kind == DTR__K_ALLTOALLV ||
        (p->mode != DTR__SHM_NOTHING && dtr__shm_has_table(c->kind))) {
        dtr__shm_write_table(g, s, c);
    }
}

dtr_status dtr__shm_prepare(dtr_group *g, dtr__shm_state *s, const dtr__call *c, bool *prepared) {
    dtr__shm_op *op = &s->op;
    dtr__shm_slot *slot = dtr__shm_slot_of(s, g->rank);
    s->shared_as_of = dtr__arena_version(g->world);
    place p = choose(g, s, c);
    op->ahead = runs_ahead(g, s, c, &p);
    *prepared = dtr__shm_is_free(g, s, op->ahead ? DTR__SHM_SLOT_COUNT - 1 : 1);
    if (!*prepared) {
        return DTR_OK;
    }
    dtr__shm_set_steps(g, s, c);
    DTR_TRY(copy_input(g, op, c, c->in_count * op->size));
    dtr__shm_describe(slot, c);
    slot->left = op->ahead;
    if (!op->ahead) {
        describe_new(g, s, c, &p);
    }
    if (in_row(s, c) && s->row_count == DTR__SHM_RUN_AHEAD_AFTER) {
        (void)dtr__call_site_text(c, s->me->left_site, sizeof s->me->left_site);
    }
    s->described[op->n % DTR__SHM_SLOT_COUNT] = s->described_detail[op->n & 1] = 0;
    return show_place(g, s, c, &p);
}

bool dtr__shm_fill_slot(dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    dtr__shm_slot *slot = dtr__shm_slot_of(s, g->rank);
    if (slot->mode == DTR__SHM_STAGED && !slot->shift && !dtr__shm_stage_chunk(g, s, c, slot)) {
        return false;
    }
    return dtr__shm_show(g, s, dtr__shm_mark(s->op.n, 0));
}

/* In a broken group, for ranks that compare: what the call is, no data. */
void dtr__shm_fill_slot_broken(dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    if (s->op.phase <= DTR__SHM_SHOW && dtr__shm_is_free(g, s, 1)) {
        dtr__shm_slot *slot = dtr__shm_slot_of(s, g->rank);
        dtr__shm_describe(slot, c);
        dtr__shm_describe_detail(dtr__shm_detail_of(s, g->rank), c);
        slot->mode = DTR__SHM_NOTHING;
        atomic_store_explicit(&slot->posted, dtr__shm_mark(s->op.n, 0), memory_order_release);
        s->op.phase = DTR__SHM_ARRIVE;
    }
}
