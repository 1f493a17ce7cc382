/* One operation from post to leave. Every step does what it can without waiting and is called
 * again. */
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "shm/shm_internal.h"

static bool writes_over_input(const dtr__call *c) {
    return c->kind == DTR__K_ALLTOALL && c->in == c->out;
}

static size_t chunks(size_t nbytes, size_t step) {
    return (nbytes + step - 1) / step;
}

/* ---- post ---- */

void dtr__shm_write_table(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    uint64_t *row = dtr__shm_table_row(g, s, g->rank);
    size_t offset = 0, nbytes = 0;
    for (int i = 0; i < g->size; i++) {
        nbytes = dtr__shm_piece(g, c, (size_t)i, &offset);
        row[i] = offset;
    }
    row[g->size] = offset + nbytes;
    for (int i = 0; c->kind == DTR__K_ALLTOALLV && i < g->size; i++) {
        row[g->size + 1 + i] = dtr__shm_wanted(g, c, i);
    }
}

/* False: the program may have changed its data while it was copied into the post or beside it. */
static bool show(const dtr_group *g, const dtr__shm_state *s, uint64_t mark) {
    const bool good = !dtr__shm_has_withdrawn(s->rows[g->rank], DTR__SHM_BUFFERS);
    if (good) {
        atomic_store_explicit(&dtr__shm_post_of(s, g->rank)->posted, mark, memory_order_release);
    }
    return good;
}

void dtr__shm_describe(dtr__shm_post *post, const dtr__call *c) {
    post->fingerprint = c->fingerprint;
    post->shift = post->zero_copy = post->sliced = post->in_raw = post->out_raw = post->left = 0;
}

void dtr__shm_describe_more(dtr__shm_more *more, const dtr__call *c) {
    const dtr__call *told = dtr__call_told(c);
    more->kind = (int32_t)told->kind;
    more->dtype = (int32_t)told->dtype;
    more->op = (int32_t)told->op;
    more->root = told->root;
    more->count_in = told->in_count;
    more->count_out = told->out_count;
    more->premul = c->premul;
}

/* Who has shown operation m has finished m - 1. Where many posts are taken the half of them is
 * waited for, so that the others' lines are looked at rarely. lead: posts before this one that need
 * not be free. */
bool dtr__shm_is_free(const dtr_group *g, dtr__shm_state *s, uint64_t lead) {
    const uint64_t n = s->op.n;
    if (s->seen + lead >= n) {
        return true;
    }
    const uint64_t m = n - (lead + 1) / 2;
    for (int r = 0; r < g->size; r++) {
        if (atomic_load_explicit(&s->rank[r]->post[m % DTR__SHM_POSTS].posted,
                                 memory_order_acquire) < dtr__shm_mark(m, 0)) {
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

bool dtr__shm_lies_shared(const dtr_group *g, const dtr__call *c, size_t nbytes, uint64_t *in_at,
                          uint64_t *out_at) {
    const bool takes_out = c->kind != DTR__K_REDUCE || g->rank == c->root;
    return nbytes > DTR__SHM_BESIDE && nbytes >= g->world->tune.value[DTR__TUNE_ZERO_COPY] &&
           dtr__shm_zero_fits(g, c) && shared_at(g, c->in, nbytes, in_at) &&
           (!takes_out || shared_at(g, c->out, nbytes, out_at));
}

/* Choose where the data is shown. */
static dtr_status place(dtr_group *g, dtr__shm_state *s, const dtr__call *c, dtr__shm_post *post,
                        size_t nbytes) {
    dtr__shm_op *op = &s->op;
    dtr__shm_more *more = dtr__shm_more_of(s, g->rank);
    bool gives = dtr__shm_gives(g, c, g->rank), shared = shared_at(g, op->in, nbytes, &post->at);
    op->chunks_out = 0;
    post->zero_copy = dtr__shm_lies_shared(g, c, nbytes, &more->in_at, &more->out_at);
    if (!post->zero_copy && c->kind == DTR__K_ALLREDUCE && nbytes > 0) {
        dtr__shm_attach_offer(g, s, c, nbytes);
    }
    if (!gives || nbytes == 0) {
        post->mode = DTR__SHM_NOTHING;
    } else if (nbytes <= DTR__SHM_INLINE) {
        post->mode = nbytes <= DTR__SHM_BESIDE ? DTR__SHM_IN_LINE : DTR__SHM_IN_POST;
        post->at = 0;
        memcpy(dtr__shm_shown(s, g->rank), op->in, nbytes);
    } else if (shared && !(c->in == c->out && c->kind == DTR__K_ALLREDUCE) &&
               (post->zero_copy || !dtr__shm_slices_fit(g, c))) {
        post->mode = DTR__SHM_DIRECT;
    } else if (c->kind != DTR__K_ALLREDUCE && dtr__shm_attach_fits(g, c, nbytes) &&
               dtr__cma_reaches(op->in, nbytes)) {
        post->mode = DTR__SHM_ATTACH;
        post->at = (uint64_t)(uintptr_t)op->in;
    } else {
        DTR_TRY(dtr__shm_stage_need(g, s));
        post->mode = DTR__SHM_STAGED;
        post->at = s->stage_at;
        post->first = (uint8_t)s->stage_next;
        post->shift = post->zero_copy || post->sliced; /* most likely no copy will be needed */
        size_t longest = 0, offset = 0;
        for (size_t b = 0; b < op->n_blocks; b++) {
            size_t n = dtr__shm_piece(g, c, b, &offset);
            longest = n > longest ? n : longest;
        }
        op->chunks_out = chunks(longest, op->step);
        more->step = op->step;
    }
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
                        "alltoall in place on group '%s': out of memory for a copy of %zu bytes",
                        g->name, nbytes);
    }
    memcpy(op->copy, c->in, nbytes);
    op->in = op->copy;
    return DTR_OK;
}

/* Every chunk is a hand-over for which ranks wait, so few long ones are faster, about twice at
 * 1 MiB between two ranks that share a cache, until the data no longer stays in the caches.
 * Of a broadcast, where one copies what others wait for, there are two at least, of an allreduce by
 * slices, where all wait twice, four; other allreduces, of which each rank reads all chunks of all,
 * take twice the usual one. All ranks must come to the same size: it follows from counts
 * that they compare and from thresholds alone. Only an alltoallv has as many as it has givers
 * (step_of). */
static size_t chunk_of(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c) {
    size_t nbytes = c->in_count * s->op.size, wish = s->chunk;
    if (c->kind == DTR__K_ALLGATHER || c->kind == DTR__K_ALLGATHERV) {
        nbytes = c->out_count * s->op.size;
    } else if (c->kind == DTR__K_BROADCAST) {
        nbytes = c->out_count * s->op.size;
        wish = nbytes / 2 / 64 * 64;
    } else if (dtr__shm_slices_fit(g, c)) {
        wish = nbytes / 4 / 64 * 64;
    } else if (c->kind == DTR__K_ALLREDUCE) {
        wish = 2 * s->chunk_least < wish ? 2 * s->chunk_least : wish;
    } else if (c->kind != DTR__K_ALLTOALL && c->kind != DTR__K_ALLTOALLV) {
        return s->chunk_least;
    }
    if (nbytes > DTR__SHM_STRETCH_MOST * s->chunk || wish < s->chunk_least) {
        return s->chunk_least;
    }
    return wish < s->chunk ? wish : s->chunk;
}

/* What rank `r` puts of each piece into a chunk; of others only once they have posted. */
static size_t step_of(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r) {
    const bool told = c->kind == DTR__K_ALLTOALLV && r != g->rank &&
                      dtr__shm_post_of(s, r)->mode == DTR__SHM_STAGED;
    return told ? dtr__shm_more_of(s, r)->step : s->op.step;
}

static void count_chunks(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, bool posted) {
    s->op.chunks_in = 0;
    for (int r = 0; r < g->size; r++) {
        const size_t step = posted ? step_of(g, s, c, r) : s->op.step,
                     n = chunks(dtr__shm_wanted(g, c, r), step);
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
    count_chunks(g, s, c, false);
}

static dtr_status prepare(dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    dtr__shm_op *op = &s->op;
    dtr__shm_post *post = dtr__shm_post_of(s, g->rank);
    size_t nbytes = c->in_count * op->size;
    dtr__shm_set_steps(g, s, c);
    DTR_TRY(copy_input(g, op, c, nbytes));
    dtr__shm_describe(post, c);
    dtr__shm_describe_more(dtr__shm_more_of(s, g->rank), c);
    s->described[op->n % DTR__SHM_POSTS] = s->described_more[op->n & 1] = 0;
    DTR_TRY(place(g, s, c, post, nbytes));
    if (c->kind == DTR__K_ALLTOALLV ||
        (post->mode != DTR__SHM_NOTHING && dtr__shm_has_table(c->kind))) {
        dtr__shm_write_table(g, s, c);
    }
    return DTR_OK;
}

/* First post; a staged one carries chunk 0, so it waits until its buffer is free. */
static bool post_first(dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    dtr__shm_post *post = dtr__shm_post_of(s, g->rank);
    if (post->mode == DTR__SHM_STAGED && !post->shift && !dtr__shm_stage_chunk(g, s, c, post)) {
        return false;
    }
    return show(g, s, dtr__shm_mark(s->op.n, 0));
}

/* In a broken group, for whoever compares: what the call is, no data. */
void dtr__shm_post_late(dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    if (s->op.phase <= DTR__SHM_POST && dtr__shm_is_free(g, s, 1)) {
        dtr__shm_post *post = dtr__shm_post_of(s, g->rank);
        dtr__shm_describe(post, c);
        dtr__shm_describe_more(dtr__shm_more_of(s, g->rank), c);
        post->mode = DTR__SHM_NOTHING;
        atomic_store_explicit(&post->posted, dtr__shm_mark(s->op.n, 0), memory_order_release);
        s->op.phase = DTR__SHM_ARRIVE;
    }
}

/* ---- arrive ---- */

size_t dtr__shm_given(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r) {
    const dtr__shm_post *post = dtr__shm_post_of(s, r);
    if (c->kind == DTR__K_GATHERV) {
        return dtr__shm_more_of(s, r)->count_in * s->op.size;
    }
    if (!dtr__shm_has_table(c->kind)) {
        return dtr__shm_wanted(g, c, r);
    }
    if (post->mode == DTR__SHM_NOTHING) {
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
    return c->told != NULL || r == g->rank || !dtr__shm_reads(g, c, g->rank) ||
           !dtr__shm_gives(g, c, r) ||
           (dtr__shm_given(g, s, c, r) == dtr__shm_wanted(g, c, r) &&
            dtr__shm_gives_asked(g, s, c, r));
}

static dtr_status arrive(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *all) {
    dtr__shm_op *op = &s->op;
    uint64_t mark = dtr__shm_mark(op->n, 0);
    for (; op->arrived < g->size; op->arrived++) {
        const dtr__shm_post *post = dtr__shm_post_of(s, op->arrived);
        if (atomic_load_explicit(&post->posted, memory_order_acquire) < mark) {
            *all = false;
            return DTR_OK;
        }
        if (post->fingerprint != w->call.fingerprint || !counts_fit(g, s, &w->call, op->arrived)) {
            return dtr__shm_mismatch(g, s, w);
        }
    }
    op->zero_copy = dtr__shm_zero_fits(g, &w->call);
    bool in_posts = true;
    op->sliced = true;
    op->by_slices = dtr__shm_slices_fit(g, &w->call);
    for (int r = 0; r < g->size; r++) {
        const dtr__shm_post *post = dtr__shm_post_of(s, r);
        op->zero_copy = op->zero_copy && post->zero_copy;
        op->sliced = op->sliced && (post->sliced || post->zero_copy);
        op->by_slices = op->by_slices && post->mode == DTR__SHM_STAGED;
        in_posts = in_posts && post->mode <= DTR__SHM_IN_POST;
    }
    op->sliced = op->sliced && w->call.kind == DTR__K_ALLREDUCE && !op->zero_copy;
    op->by_slices = op->by_slices && !op->zero_copy && !op->sliced;
    op->quiet = in_posts && !op->zero_copy && !op->sliced;
    if (w->call.kind == DTR__K_ALLTOALLV) {
        count_chunks(g, s, &w->call, true);
    }
    s->seen = op->n;
    *all = true;
    return DTR_OK;
}

/* ---- pull ---- */

static const unsigned char attached[1]; /* source: to be read through the kernel */

unsigned char *dtr__shm_staged(const dtr_group *g, const dtr__shm_state *s, int r, size_t k) {
    const dtr__shm_post *post = dtr__shm_post_of(s, r);
    const size_t buffer = (post->first + (k & 1)) & 1;
    return (unsigned char *)dtr__shm_unpack(g->world, post->at) + buffer * s->chunk;
}

const unsigned char *dtr__shm_source(const dtr_group *g, const dtr__shm_state *s,
                                     const dtr__call *c, int r, size_t k) {
    const dtr__shm_op *op = &s->op;
    const size_t step = step_of(g, s, c, r), at = k * step;
    if (r == g->rank) {
        size_t offset = 0;
        if (k >= op->posted && k < op->chunks_out) {
            return NULL; /* in place, the result would overwrite what the others have yet to get */
        }
        (void)dtr__shm_piece(g, c, (size_t)r, &offset);
        return op->in + offset + at;
    }
    const dtr__shm_post *post = dtr__shm_post_of(s, r);
    if (post->mode == DTR__SHM_IN_LINE || post->mode == DTR__SHM_IN_POST) {
        return dtr__shm_shown(s, r) + dtr__shm_wanted_at(g, s, c, r) + at;
    }
    if (post->mode == DTR__SHM_DIRECT) {
        return (unsigned char *)dtr__shm_unpack(g->world, post->at) +
               dtr__shm_wanted_at(g, s, c, r) + at;
    }
    if (post->mode == DTR__SHM_ATTACH) {
        return attached;
    }
    if (atomic_load_explicit(&post->posted, memory_order_acquire) <
        dtr__shm_mark(op->n, k + post->shift)) {
        return NULL;
    }
    return dtr__shm_staged(g, s, r, k) + (op->n_blocks > 1 ? (size_t)g->rank : 0) * step;
}

static size_t clip(size_t nbytes, size_t at, size_t step) {
    return at >= nbytes ? 0 : nbytes - at < step ? nbytes - at : step;
}

/* Chunks at `at` of all plain buffers that the kernel reads, into `bounce`. */
static bool read_attached(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t at,
                          size_t nbytes, const void **from) {
    for (int r = 0; r < g->size; r++) {
        if (r == g->rank || dtr__shm_post_of(s, r)->mode != DTR__SHM_ATTACH) {
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

static bool reduce_chunk(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t *moved) {
    const dtr__shm_op *op = &s->op;
    const void *from[DTR__SHM_MAX_RANKS];
    double factors[DTR__SHM_MAX_RANKS];
    size_t at = op->pulled * op->step, n = clip(c->out_count * op->size, at, op->step);
    for (int r = 0; r < g->size; r++) {
        from[r] = dtr__shm_source(g, s, c, r, op->pulled);
        if (from[r] == NULL) {
            return false;
        }
        factors[r] = c->op == DTR_PREMUL_SUM ? dtr__shm_more_of(s, r)->premul : 1;
    }
    if (!read_attached(g, s, c, at, n, from)) {
        return false;
    }
    void *to = (unsigned char *)c->out + at;
    dtr__reduce_piece(&to, 1, from, g->size, n / op->size, c->dtype, c->op, c->divisor,
                      c->op == DTR_PREMUL_SUM ? factors : NULL,
                      dtr__shm_streams_reduced(g, c->kind, c->out_count * op->size)
                          ? DTR__PAST_ALL
                          : DTR__PAST_NONE);
    *moved = n * (size_t)g->size;
    return true;
}

static bool copy_chunk(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t *moved) {
    dtr__shm_op *op = &s->op;
    const bool stream = dtr__shm_streams(g, c->kind, c->out_count * op->size);
    for (; op->copied < g->size;
         op->copied++) { /* starts behind oneself, so that not all read from the same rank */
        int r = (g->rank + op->copied) % g->size;
        const size_t step = step_of(g, s, c, r), at = op->pulled * step,
                     n = clip(dtr__shm_wanted(g, c, r), at, step);
        if (n == 0) {
            continue;
        }
        const unsigned char *from = dtr__shm_source(g, s, c, r, op->pulled);
        unsigned char *to = dtr__shm_target(g, c, r) + at;
        if (from == NULL) {
            return false;
        }
        if (from == attached) {
            if (!dtr__shm_attach_copy(g, s, r, to, dtr__shm_wanted_at(g, s, c, r) + at, n)) {
                return false;
            }
        } else if (from != to) {
            (stream ? dtr__copy_past : dtr__copy)(to, from, n);
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
        if (n > 0) {
            dtr__copy(c->out, s->op.in + offset, n);
        }
    }
}

/* Whether what was read, or reduced for others, may have changed under the reader. */
static bool is_lost(const dtr_group *g, const dtr__shm_state *s) {
    const dtr__shm_op *op = &s->op;
    const bool all = op->zero_copy || op->sliced;
    for (int r = 0; r < g->size; r++) {
        const uint8_t mode = dtr__shm_post_of(s, r)->mode;
        const bool in_place = all || mode == DTR__SHM_DIRECT || mode == DTR__SHM_ATTACH;
        if ((all || op->chunks_in > 0) && (in_place || mode == DTR__SHM_STAGED) &&
            dtr__shm_has_withdrawn(s->rows[r], in_place ? DTR__SHM_BUFFERS : DTR__SHM_EVERYTHING)) {
            return true;
        }
    }
    return false;
}

/* Tell how far this rank has read; whole as soon as it wants no more, though it may still have
 * chunks to post. Where somebody had given up before, the news of it ends the operation. */
void dtr__shm_tell_finished(const dtr_group *g, dtr__shm_state *s) {
    dtr__shm_op *op = &s->op;
    bool whole = op->zero_copy || op->sliced || op->pulled >= op->chunks_in;
    op->lost = op->lost || (whole && !op->quiet && is_lost(g, s));
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
    dtr__shm_tell_finished(g, s);
    return true;
}

static bool post_chunk(dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    dtr__shm_post *post = dtr__shm_post_of(s, g->rank);
    if (s->op.posted >= s->op.chunks_out || !dtr__shm_stage_chunk(g, s, c, post)) {
        return false;
    }
    return show(g, s, dtr__shm_mark(s->op.n, s->op.posted - 1 + post->shift));
}

/* True when nothing is left to post and to pull. */
static bool pull(dtr_group *g, dtr__shm_state *s, dtr_work *w, size_t budget) {
    dtr__shm_op *op = &s->op;
    const dtr__call *c = &w->call;
    if (op->zero_copy) {
        return dtr__shm_zero_pull(g, s, c, budget, &w->moved);
    }
    if (op->sliced) {
        return dtr__shm_attach_pull(g, s, w, budget);
    }
    for (size_t total = 0; op->posted < op->chunks_out || op->pulled < op->chunks_in;) {
        size_t moved = 0;
        bool posted = post_chunk(g, s, c);
        bool pulled = op->pulled < op->chunks_in && pull_chunk(g, s, c, &moved);
        total += moved + (posted ? op->step : 0);
        w->moved = w->moved || posted || pulled || moved > 0;
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
    const uint8_t mode = dtr__shm_post_of(s, g->rank)->mode;
    if (op->lost) {
        return false;
    }
    if (!all && mode != DTR__SHM_DIRECT && mode != DTR__SHM_ATTACH) {
        return true;
    }
    for (int r = 0; r < g->size; r++) {
        bool waits = all || dtr__shm_reads(g, c, r);
        if (waits && r != g->rank &&
            atomic_load_explicit(&s->rank[r]->finished, memory_order_acquire) <
                dtr__shm_mark(op->n, DTR__SHM_WHOLE)) {
            return false;
        }
    }
    return true;
}

void dtr__shm_begin(dtr__shm_state *s, const dtr__call *c) {
    s->op = (dtr__shm_op){ .n = ++s->n, .size = dtr_dtype_size(c->dtype) };
    s->row_of = 0;
}

static dtr_status move(dtr_group *g, dtr__shm_state *s, dtr_work *w, bool *done) {
    dtr__shm_op *op = &s->op;
    if (op->phase == DTR__SHM_NEW) {
        if (!dtr__shm_is_free(g, s, 1)) {
            return DTR_OK;
        }
        DTR_TRY(prepare(g, s, &w->call));
        op->phase = DTR__SHM_POST;
    }
    if (op->phase == DTR__SHM_POST) {
        if (!post_first(g, s, &w->call)) {
            return DTR_OK;
        }
        op->phase = DTR__SHM_ARRIVE;
    }
    if (op->phase == DTR__SHM_ARRIVE) {
        bool all = false;
        DTR_TRY(arrive(g, s, w, &all));
        if (!all) {
            return DTR_OK;
        }
        copy_own(g, s, &w->call);
        if (!op->zero_copy && !op->sliced && op->chunks_in == 0) {
            dtr__shm_tell_finished(g, s);
        }
        op->phase = DTR__SHM_PULL;
    }
    if (op->phase == DTR__SHM_PULL) {
        bool complete = pull(g, s, w, DTR__SHM_BUDGET);
        if (op->attach_errno != 0) {
            return dtr__shm_attach_failed(g, s, w);
        }
        if (!complete) {
            return DTR_OK;
        }
        if (op->zero_copy || op->sliced) {
            dtr__shm_tell_finished(g, s);
        }
        op->phase = DTR__SHM_LEAVE;
    }
    *done = dtr__shm_may_leave(g, s, &w->call);
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
    return move(g, s, w, done);
}
