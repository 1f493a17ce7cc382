/* Steps of a collective over nodes: building the two lanes, and running them side by side. */
#include <stdlib.h>

#include "backends/shm/shm.h"
#include "core/work.h"
#include "engine/engine.h"
#include "hier_internal.h"
#include "kernels/kernels.h"

/* ---- building ---- */

bool dtr__hier_has_inter(const dtr__hier_state *s) {
    return s->local < s->nodes->least;
}

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

dtr__hier_range dtr__hier_slice(const dtr__hier_state *s, size_t n, size_t esize, int i) {
    size_t unit = DTR__HIER_LINE / esize, width = (size_t)s->nodes->least;
    size_t each = n == 0 ? 0 : ((n - 1) / width / unit + 1) * unit;
    size_t least = s->least_slice / esize;
    each = each < least ? least : each;
    size_t at = i < s->nodes->least ? min_size((size_t)i * each, n) : n;
    return (dtr__hier_range){ at, min_size(each, n - at) };
}

size_t dtr__hier_chunk(size_t esize) {
    return DTR__HIER_CHUNK / esize;
}

size_t dtr__hier_chunk_of_region(dtr__hier_state *s, size_t esize, bool rows) {
    const size_t n = (size_t)s->nodes->n, width = (size_t)s->nodes->least;
    const size_t share = DTR__HIER_CHUNK / n, slices = width * DTR__HIER_LEAST_SLICE;
    const size_t most = DTR__HIER_REGIONS_CHUNK / n / (rows ? width : 1);
    const size_t chunk = min_size(share > slices ? share : slices, most);
    const size_t lines = chunk / width / DTR__HIER_LINE;
    const size_t slice = (lines > 0 ? lines : 1) * DTR__HIER_LINE;
    s->least_slice = min_size(slice, DTR__HIER_LEAST_SLICE);
    return width * slice / esize;
}

dtr__hier_range dtr__hier_common(dtr__hier_range a, dtr__hier_range b) {
    size_t at = a.at > b.at ? a.at : b.at, end = min_size(a.at + a.n, b.at + b.n);
    return (dtr__hier_range){ at, end > at ? end - at : 0 };
}

dtr__hier_range dtr__hier_region(const dtr__hier_build *b, const dtr__blocks *blocks, int d) {
    const int first = dtr__nodes_member(b->s->nodes, d, 0);
    dtr__hier_range r = { dtr__block_offset(blocks, first), 0 };
    for (int i = 0; i < dtr__nodes_count(b->s->nodes, d); i++) {
        r.n += dtr__block_count(blocks, first + i);
    }
    return r;
}

size_t dtr__hier_n_chunks(const dtr__hier_build *b, const dtr__blocks *blocks, size_t chunk) {
    size_t longest = 0;
    for (int d = 0; d < b->s->nodes->n; d++) {
        size_t n = dtr__hier_region(b, blocks, d).n;
        longest = n > longest ? n : longest;
    }
    return longest == 0 ? 1 : (longest - 1) / chunk + 1;
}

/* The array with room for `more` entries behind n; unchanged, with no_memory set, when there is
 * none. */
static void *grow(dtr__hier_state *s, void *array, size_t *cap, size_t n, size_t more,
                  size_t entry) {
    if (n + more <= *cap) {
        return array;
    }
    size_t want = n + n / 2 + more + 16;
    void *larger = realloc(array, want * entry);
    if (larger == NULL) {
        s->no_memory = true;
        return array;
    }
    *cap = want;
    return larger;
}

size_t *dtr__hier_numbers(dtr__hier_state *s, size_t n, size_t *index) {
    s->numbers = grow(s, s->numbers, &s->cap_numbers, s->n_numbers, n, sizeof *s->numbers);
    if (s->no_memory) {
        return NULL;
    }
    *index = s->n_numbers + 1;
    s->n_numbers += n;
    return s->numbers + *index - 1;
}

size_t dtr__hier_slices(const dtr__hier_build *b, size_t n, size_t esize) {
    size_t index = 0, *counts = dtr__hier_numbers(b->s, (size_t)b->intra, &index);
    for (int i = 0; counts != NULL && i < b->intra; i++) {
        counts[i] = dtr__hier_slice(b->s, n, esize, i).n;
    }
    return index;
}

void dtr__hier_add(dtr__hier_state *s, dtr__hier_name lane, dtr__hier_step step) {
    dtr__hier_lane *l = &s->lane[lane];
    l->steps = grow(s, l->steps, &l->cap, l->n, 1, sizeof *l->steps);
    if (!s->no_memory) {
        l->steps[l->n++] = step;
    }
}

size_t dtr__hier_mark(const dtr__hier_state *s, dtr__hier_name lane) {
    return s->lane[lane].n;
}

char *dtr__hier_scratch(const dtr__hier_build *b, size_t nbytes) {
    dtr__hier_state *s = b->s;
    dtr_world *world = s->lane[DTR__HIER_INTRA].group.world;
    if (nbytes <= s->cap_scratch && s->scratch != NULL) {
        return s->scratch;
    }
    if (s->scratch_shared) {
        dtr__arena_free(world, s->scratch);
    } else {
        free(s->scratch);
    }
    size_t pages = (nbytes / 4096 + 1) * 4096;
    s->scratch = dtr__arena_usable(world) ? dtr__arena_alloc(world, pages, 4096) : NULL;
    s->scratch_shared = s->scratch != NULL;
    if (s->scratch == NULL) {
        s->scratch = aligned_alloc(4096, pages);
    }
    s->cap_scratch = s->scratch != NULL ? pages : 0;
    s->no_memory |= s->scratch == NULL;
    return s->scratch;
}

/* ---- running ---- */

void dtr__hier_begin(dtr__hier_state *s) {
    for (int l = 0; l < DTR__HIER_LANES; l++) {
        s->lane[l].n = s->lane[l].at = s->lane[l].calls = 0;
        s->lane[l].under_way = false;
    }
    s->n_numbers = 0;
    s->no_memory = false;
    s->least_slice = DTR__HIER_LEAST_SLICE;
}

/* The step as a call of the lane's group; what messages speak of is the program's call. */
static void describe(dtr__hier_state *s, dtr__hier_lane *l, const dtr_work *whole) {
    const dtr__hier_step *step = &l->steps[l->at];
    dtr_work *w = &l->work;
    *w = (dtr_work){ .magic = DTR__WORK_MAGIC,
                     .group = &l->group,
                     .world = whole->world,
                     .call = whole->call,
                     .seq = whole->seq,
                     .limit.deadline =
                         atomic_load_explicit(&whole->limit.deadline, memory_order_relaxed),
                     .issue = whole->issue,
                     .scope.part = whole->scope.part,
                     .scope.parts = whole->scope.parts };
    dtr__call *c = &w->call;
    c->user_call = &whole->call;
    c->kind = step->kind;
    c->dtype = step->dtype;
    c->op = step->op;
    c->root = step->root;
    c->premul = step->premul;
    c->rows = step->rows;
    c->in = step->in;
    c->out = step->out;
    c->in_count = step->in_count;
    c->out_count = step->out_count;
    c->in_counts = step->in_counts != 0 ? s->numbers + step->in_counts - 1 : NULL;
    c->out_counts = step->out_counts != 0 ? s->numbers + step->out_counts - 1 : NULL;
    c->fingerprint = dtr__mix(whole->call.fingerprint, ++l->calls);
}

static void convert(const dtr__hier_step *step) {
    dtr__convert(step->out, step->dtype, step->in, step->from, step->in_count);
    if (step->op == DTR_PREMUL_SUM) {
        dtr__premul(step->out, step->out, step->in_count, step->dtype, step->premul);
    }
}

static void reduce(const dtr__hier_step *step, int divisor) {
    const void *const from[2] = { step->in, step->with };
    const double factors[2] = { 1, step->premul };
    dtr__reduce(step->out, from, step->with != NULL ? 2 : 1, step->in_count, step->dtype, step->op,
                divisor, step->op == DTR_PREMUL_SUM ? factors : NULL);
}

/* Whether the lane has a step that need not wait for the other one. */
static bool is_due(const dtr__hier_lane *l, const dtr__hier_lane *other) {
    return l->at < l->n && other->at >= l->steps[l->at].after;
}

/* ... and that calls no MPI. */
static bool is_free(const dtr__hier_lane *l) {
    const dtr__hier_step *step = &l->steps[l->at];
    return step->converts || step->reduces || l->backend->without_mpi;
}

bool dtr__hier_steps_need_mpi(const dtr__hier_state *s) {
    const dtr__hier_lane *intra = &s->lane[DTR__HIER_INTRA], *inter = &s->lane[DTR__HIER_INTER];
    return !(is_due(intra, inter) && is_free(intra)) && !(is_due(inter, intra) && is_free(inter));
}

/* One look at a lane; *moved when a step was finished. */
static dtr_status move_lane(dtr__hier_state *s, dtr__hier_lane *l, const dtr__hier_lane *other,
                            dtr_work *whole, bool *moved) {
    bool done = false;
    if (!is_due(l, other) || (dtr__progress_only_helps(whole->world) && !is_free(l))) {
        return DTR_OK;
    }
    const dtr__hier_step *step = &l->steps[l->at];
    if (step->converts) {
        convert(step);
        done = true;
    } else if (step->reduces) {
        reduce(step, whole->call.divisor);
        done = true;
    } else {
        dtr_status status;
        l->work.moved = false;
        if (!l->under_way) {
            describe(s, l, whole);
            status = l->backend->start(&l->group, l->state, &l->work, &done);
        } else {
            status = l->backend->progress(&l->group, l->state, &l->work, &done);
        }
        l->under_way = status >= 0 && !done;
        whole->moved |= l->work.moved || done;
        DTR_TRY(status);
    }
    l->at += done;
    *moved |= done;
    return DTR_OK;
}

dtr_status dtr__hier_run(dtr__hier_state *s, dtr_work *w, bool *done) {
    dtr__hier_lane *intra = &s->lane[DTR__HIER_INTRA], *inter = &s->lane[DTR__HIER_INTER];
    bool moved;
    do {
        moved = false;
        DTR_TRY(move_lane(s, inter, intra, w, &moved));
        DTR_TRY(move_lane(s, intra, inter, w, &moved));
    } while (moved);
    *done = intra->at == intra->n && inter->at == inter->n;
    return DTR_OK;
}

void dtr__hier_give_up(dtr__hier_state *s, dtr_status status) {
    dtr__error_copy *cause = dtr__error_save();
    const bool helps = dtr__progress_only_helps(s->lane[DTR__HIER_INTRA].group.world);
    for (int i = 0; i < DTR__HIER_LANES; i++) {
        dtr__hier_lane *l = &s->lane[i];
        if (l->open && helps && !l->backend->without_mpi) {
            continue; /* for a thread that may */
        }
        /* Neighbours may wait for this rank's next step on the intra-node lane, so they learn of it
         * even between steps. */
        bool informs = l->open && (l->under_way || l->backend == &dtr__backend_shm);
        if (informs && l->backend->cancel != NULL) {
            l->group.error = cause;
            atomic_store(&l->group.status, status);
            s->scratch_lost |= i == DTR__HIER_INTER;
            l->backend->cancel(&l->group, l->state, &l->work);
            l->group.error = NULL;
        }
        l->under_way = false;
    }
    (void)dtr__error_put_back(cause, status);
}
