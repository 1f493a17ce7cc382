/* Reductions: the rank that reduces an element takes it from all ranks and adds in rank order, so
 * results have the same bits on all ranks, from run to run, at every size and on every layout.
 *
 * One builder serves them all. Rank j reduces block j of the input: everybody sends each rank its
 * block and reduces the own one straight from the receive buffers, in segments with two staging
 * banks, so that segment k+1 travels while k is reduced. What the blocks are makes the operation:
 *   reduce_scatter(v)   the caller's blocks
 *   allreduce           equal slices, then every slice goes to all ranks; small: everybody's block
 *                       is the whole input, one round trip and nothing to distribute
 *   reduce              equal slices, then every slice goes to the root; small or two ranks: the
 *                       root's block is the whole input, the others' are empty
 *   scan, exscan        equal slices, of which each owner makes the results of all ranks; small:
 *                       everybody sends the whole input to the ranks above */
#include "core/check.h"
#include "mpi_internal.h"

enum { SLICE_ALIGN = 64 }; /* bytes: slices keep the vector kernels on whole cache lines */

typedef enum distribution { KEEP, TO_ALL, TO_ROOT, TO_EACH } distribution;

typedef struct plan {
    const dtr__mpi_build *b;
    size_t *offset, *length; /* block of each rank, elements of the input */
    bool whole;              /* every block is the whole input */
    distribution then;
    char *out;      /* result of the own block in the caller's memory, NULL: staging only */
    size_t segment; /* elements of a block per segment */
    size_t n_segments;
    bool premul;
    char *bank[2];
    size_t exchanged[2][2], distributed[2][2]; /* transfers [first, last) per bank */
} plan;

static size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* Elements of segment k of rank j's block, and where they begin in the input. */
static size_t piece(const plan *p, size_t k, int j, size_t *at) {
    size_t from = dtr__mpi_min(k * p->segment, p->length[j]);
    *at = p->offset[j] + from;
    return dtr__mpi_min(p->segment, p->length[j] - from);
}

/* A bank: [size] received slices, the result (TO_EACH: [size]), then with a factor [size] (or 1)
 * scaled slices. */
static char *slot(const plan *p, size_t k, int i) {
    return p->bank[k & 1] + (size_t)i * round_up(p->segment * p->b->esize, SLICE_ALIGN);
}

static int results(const plan *p) {
    return p->then == TO_EACH ? p->b->size : 1;
}

static char *result_slot(const plan *p, size_t k, int i) {
    return slot(p, k, p->b->size + (p->then == TO_EACH ? i : 0));
}

static char *scaled_slot(const plan *p, size_t k, int j) {
    return slot(p, k, p->b->size + results(p) + (p->whole ? 0 : j));
}

static int slots(const plan *p) {
    int n = p->b->size;
    return n + results(p) + (!p->premul ? 0 : p->whole ? 1 : n);
}

/* Of how many ranks the result of rank i is made. */
static int sources(const plan *p, int i) {
    return dtr__n_sources(p->b->call->kind, i, p->b->size);
}

/* The own input of rank j's piece, scaled where the operator asks for it. */
static const char *input(const plan *p, size_t k, int j) {
    size_t at;
    piece(p, k, j, &at);
    return p->premul ? scaled_slot(p, k, j) : (const char *)p->b->call->in + at * p->b->esize;
}

static void scale(const plan *p, size_t k) {
    for (int j = 0; j < (p->whole ? 1 : p->b->size); j++) {
        size_t at, count = piece(p, k, j, &at);
        dtr__mpi_premul(p->b->s, scaled_slot(p, k, j),
                        (const char *)p->b->call->in + at * p->b->esize, count);
    }
}

/* Segment k of every block goes to the rank that reduces it. */
static void exchange(plan *p, size_t k) {
    const dtr__mpi_build *b = p->b;
    size_t at, mine = piece(p, k, b->rank, &at);
    p->exchanged[k & 1][0] = dtr__mpi_mark(b->s);
    if (mine != 0) {
        for (int i = 1; i < b->size; i++) {
            int from = (b->rank - i + b->size) % b->size;
            dtr__mpi_recv(b->s, slot(p, k, from), mine * b->esize, from);
        }
    }
    if (p->premul) {
        scale(p, k);
    }
    for (int i = 1; i < b->size; i++) {
        int to = (b->rank + i) % b->size;
        size_t theirs = piece(p, k, to, &at);
        if (theirs != 0) {
            dtr__mpi_send(b->s, input(p, k, to), theirs * b->esize, to);
        }
    }
    p->exchanged[k & 1][1] = dtr__mpi_mark(b->s);
}

/* Where the reduced piece k of the own block goes, of each: for rank i. */
static char *result(const plan *p, size_t k, int i) {
    size_t at;
    if (p->then == TO_EACH && i == p->b->rank) {
        piece(p, k, i, &at);
        return (char *)p->b->call->out + at * p->b->esize;
    }
    return p->out != NULL ? p->out + k * p->segment * p->b->esize : result_slot(p, k, i);
}

static void reduce_for(const plan *p, size_t k, int rank, size_t count, int divisor) {
    const dtr__mpi_build *b = p->b;
    int n = sources(p, rank);
    if (n == 0) {
        return;
    }
    dtr__mpi_reduce(b->s, result(p, k, rank), count, n, divisor);
    for (int i = 0; i < n; i++) {
        dtr__mpi_source(b->s, i == b->rank ? input(p, k, i) : slot(p, k, i));
    }
}

/* The own result comes last: in place it takes the place of the own input. */
static void reduce_own(const plan *p, size_t k) {
    const dtr__mpi_build *b = p->b;
    size_t at, mine = piece(p, k, b->rank, &at);
    for (int i = 1; i < b->size && p->then == TO_EACH && mine != 0; i++) {
        int rank = (b->rank + i) % b->size;
        reduce_for(p, k, rank, mine, sources(p, rank));
    }
    if (mine != 0) {
        reduce_for(p, k, b->rank, mine, b->s->divisor);
    }
}

/* Whether rank `to` takes what is reduced elsewhere. */
static bool takes(const plan *p, int to) {
    return p->then == TO_ALL || (p->then == TO_ROOT && to == p->b->call->root) ||
           (p->then == TO_EACH && sources(p, to) > 0);
}

/* The reduced pieces of segment k go to those who take them. */
static void distribute(plan *p, size_t k) {
    const dtr__mpi_build *b = p->b;
    size_t at, mine = piece(p, k, b->rank, &at);
    p->distributed[k & 1][0] = dtr__mpi_mark(b->s);
    for (int i = 1; i < b->size && takes(p, b->rank); i++) {
        int from = (b->rank - i + b->size) % b->size;
        size_t theirs = piece(p, k, from, &at);
        if (theirs != 0) {
            dtr__mpi_recv(b->s, (char *)b->call->out + at * b->esize, theirs * b->esize, from);
        }
    }
    for (int i = 1; i < b->size && mine != 0; i++) {
        int to = (b->rank + i) % b->size;
        if (takes(p, to)) {
            dtr__mpi_send(b->s, result(p, k, to), mine * b->esize, to);
        }
    }
    p->distributed[k & 1][1] = dtr__mpi_mark(b->s);
}

/* Segments are as large as tuning and staging allow; all ranks come to the same numbers. */
static bool divide(plan *p) {
    const dtr__mpi_build *b = p->b;
    const dtr__mpi_tuning *t = &b->state->tuning;
    size_t longest = 0;
    for (int j = 0; j < b->size; j++) {
        longest = p->length[j] > longest ? p->length[j] : longest;
    }
    size_t unit = SLICE_ALIGN / b->esize, n_slots = (size_t)slots(p);
    size_t most = dtr__mpi_min(t->message, t->staging / (2 * n_slots)) / SLICE_ALIGN * unit;
    most = most < unit ? unit : most;
    if (p->whole || longest <= most) {
        p->segment = longest; /* direct forms fit by choice */
    } else {
        size_t n = (longest - 1) / most + 1;
        p->segment = round_up((longest - 1) / n + 1, unit);
    }
    p->n_segments = longest == 0 ? 0 : (longest - 1) / p->segment + 1;
    size_t bank = n_slots * round_up(p->segment * b->esize, SLICE_ALIGN);
    p->bank[0] = dtr__mpi_stage(b->s, bank * (p->n_segments > 1 ? 2 : 1));
    if (p->bank[0] == NULL) {
        return false;
    }
    p->bank[1] = p->n_segments > 1 ? p->bank[0] + bank : p->bank[0];
    return true;
}

static void build(plan *p) {
    const dtr__mpi_build *b = p->b;
    if (!divide(p)) {
        return;
    }
    if (p->n_segments > 0) {
        exchange(p, 0);
    }
    for (size_t k = 0; k < p->n_segments; k++) {
        if (k + 1 < p->n_segments) {
            exchange(p, k + 1);
        }
        dtr__mpi_wait(b->s, p->exchanged[k & 1][0], p->exchanged[k & 1][1]);
        if (k >= 2 && p->out == NULL) { /* the result slot of this bank is free again */
            dtr__mpi_wait(b->s, p->distributed[k & 1][0], p->distributed[k & 1][1]);
        }
        reduce_own(p, k);
        if (p->then != KEEP) {
            distribute(p, k);
        }
    }
    dtr__mpi_wait_all(b->s);
}

static bool begin(plan *p, const dtr__mpi_build *b, distribution then) {
    *p = (plan){ .b = b, .then = then, .premul = dtr__mpi_prepares(b->call) };
    p->offset = dtr__mpi_slices(b->s, 2 * b->size);
    p->length = p->offset == NULL ? NULL : p->offset + b->size;
    return p->offset != NULL;
}

/* Equal slices of the whole input, on cache lines. */
static void slice_evenly(plan *p, size_t count) {
    size_t n = (size_t)p->b->size, unit = SLICE_ALIGN / p->b->esize;
    size_t each = count == 0 ? 0 : round_up((count - 1) / n + 1, unit);
    for (size_t j = 0; j < n; j++) {
        p->offset[j] = dtr__mpi_min(j * each, count);
        p->length[j] = dtr__mpi_min(each, count - p->offset[j]);
    }
}

/* Small inputs of many ranks: everybody collects all inputs in log2(size) rounds. */
static void build_collected(const dtr__mpi_build *b) {
    size_t nbytes = b->call->in_count * b->esize;
    dtr__blocks blocks = { NULL, b->call->in_count };
    char *stage = dtr__mpi_stage(b->s, nbytes * (size_t)b->size);
    if (stage == NULL) {
        return;
    }
    if (dtr__mpi_prepares(b->call)) {
        dtr__mpi_premul(b->s, stage, b->call->in, b->call->in_count);
    } else {
        dtr__mpi_copy(b->s, stage, b->call->in, nbytes);
    }
    dtr__mpi_collect(b, &blocks, stage);
    dtr__mpi_wait_all(b->s);
    int n = dtr__n_sources(b->call->kind, b->rank, b->size);
    if (n == 0) {
        dtr__mpi_fill(b->s, b->call->out, b->call->in_count);
        return;
    }
    dtr__mpi_reduce(b->s, b->call->out, b->call->in_count, n, b->s->divisor);
    for (int i = 0; i < n; i++) {
        size_t place = (size_t)((i - b->rank + b->size) % b->size);
        dtr__mpi_source(b->s, stage + place * nbytes);
    }
}

/* Pieces that are neither so small that their number counts nor so large that MPI asks the receiver
 * first: two rounds of some messages then are less than many rounds of few. */
static bool takes_pieces(const dtr__mpi_build *b) {
    enum { RANKS = 4, PART = 2 };
    const dtr__mpi_tuning *t = &b->state->tuning;
    const size_t nbytes = b->call->in_count * b->esize, piece = nbytes / (size_t)b->size;
    return b->size <= RANKS && nbytes > t->doubling && piece > t->piece / PART && piece <= t->piece;
}

void dtr__mpi_build_allreduce(const dtr__mpi_build *b) {
    const dtr__mpi_tuning *t = &b->state->tuning;
    size_t count = b->call->in_count;
    bool direct = !b->free_order && count * b->esize <= t->reduce_direct / (size_t)b->size;
    plan p;
    if (count == 0) {
        return;
    }
    if (b->free_order && b->size > 1 && !takes_pieces(b)) {
        dtr__mpi_build_partial_sums(b);
        return;
    }
    if (direct && b->size > t->reduce_ranks) {
        build_collected(b);
        return;
    }
    if (!begin(&p, b, direct ? KEEP : TO_ALL)) {
        return;
    }
    if (direct) {
        p.whole = true;
        for (int j = 0; j < b->size; j++) {
            p.offset[j] = 0;
            p.length[j] = count;
        }
    } else {
        slice_evenly(&p, count);
    }
    p.out = (char *)b->call->out + p.offset[b->rank] * b->esize;
    build(&p);
}

void dtr__mpi_build_reduce(const dtr__mpi_build *b) {
    const dtr__mpi_tuning *t = &b->state->tuning;
    size_t count = b->call->in_count, nbytes = count * b->esize;
    bool direct = nbytes <= t->reduce_direct / (size_t)b->size;
    const bool short_one = direct && nbytes <= t->message && b->size <= t->reduce_ranks;
    if (b->free_order && b->size > 1 && count != 0 && !short_one) {
        dtr__mpi_build_reduce_whole(b);
        return;
    }
    direct = direct || b->size <= 2;
    plan p;
    if (!begin(&p, b, direct ? KEEP : TO_ROOT)) {
        return;
    }
    if (direct) {
        for (int j = 0; j < b->size; j++) {
            p.offset[j] = 0;
            p.length[j] = j == b->call->root ? count : 0;
        }
    } else {
        slice_evenly(&p, count);
    }
    if (b->rank == b->call->root) {
        p.out = (char *)b->call->out + p.offset[b->rank] * b->esize;
    }
    build(&p);
}

void dtr__mpi_build_reduce_scatter(const dtr__mpi_build *b) {
    const dtr__mpi_tuning *t = &b->state->tuning;
    dtr__blocks blocks = dtr__blocks_in(b->call, b->size);
    plan p;
    if (b->free_order && b->size >= t->gather_ranks && b->size > 2 &&
        b->call->in_count * b->esize / (size_t)b->size <= t->block) {
        dtr__mpi_build_reduce_scatter_halves(b);
        return;
    }
    if (!begin(&p, b, KEEP)) {
        return;
    }
    size_t at = 0;
    for (int j = 0; j < b->size; j++) {
        p.offset[j] = at;
        p.length[j] = dtr__block_count(&blocks, j);
        at += p.length[j];
    }
    p.out = b->call->out;
    build(&p);
}

/* ---- prefixes ---- */

/* Small: what the ranks below send. */
static void build_prefix_direct(const dtr__mpi_build *b) {
    const dtr__call *c = b->call;
    size_t nbytes = c->in_count * b->esize, padded = round_up(nbytes, SLICE_ALIGN);
    int n = dtr__n_sources(c->kind, b->rank, b->size);
    char *stage = dtr__mpi_stage(b->s, padded * (size_t)(b->rank + 1));
    if (stage == NULL) {
        return;
    }
    const char *own = c->in;
    for (int i = 0; i < b->rank; i++) {
        dtr__mpi_recv(b->s, stage + (size_t)i * padded, nbytes, i);
    }
    if (c->op == DTR_PREMUL_SUM) {
        own = stage + (size_t)b->rank * padded;
        dtr__mpi_premul(b->s, stage + (size_t)b->rank * padded, c->in, c->in_count);
    }
    for (int i = b->rank + 1; i < b->size; i++) {
        dtr__mpi_send(b->s, own, nbytes, i);
    }
    dtr__mpi_wait_all(b->s);
    if (n == 0) {
        dtr__mpi_fill(b->s, c->out, c->in_count);
        return;
    }
    dtr__mpi_reduce(b->s, c->out, c->in_count, n, b->s->divisor);
    for (int i = 0; i < n; i++) {
        dtr__mpi_source(b->s, i == b->rank ? own : stage + (size_t)i * padded);
    }
}

void dtr__mpi_build_scan(const dtr__mpi_build *b) {
    const dtr__mpi_tuning *t = &b->state->tuning;
    size_t count = b->call->in_count;
    plan p;
    if (count == 0) {
        return;
    }
    if (count * b->esize <= t->reduce_direct / (size_t)b->size) {
        (b->size > t->reduce_ranks ? build_collected : build_prefix_direct)(b);
        return;
    }
    if (!begin(&p, b, TO_EACH)) {
        return;
    }
    slice_evenly(&p, count);
    build(&p);
    if (sources(&p, b->rank) == 0) {
        dtr__mpi_fill(b->s, b->call->out, count);
    }
}
