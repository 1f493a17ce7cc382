/* Reductions whose ranks add up partial sums on the way, where the order of additions is free, and
 * an allgather alike.
 *
 * Doubling: ranks at distance 1, 2, 4, ... exchange all they have and add it. Where the ranks are
 * no power of two, some hand their input to a neighbour first and get the result last.
 *
 * Else the data is cut into blocks, one a rank. In each round a rank sends sums of some blocks on,
 * until everybody has the whole sum of its own block, which is a reduce_scatter; the same rounds
 * backwards bring the blocks to all, which is an allgather; one after the other is an allreduce. By
 * halves of what is left that is lg rounds of any number of ranks; round a ring one block a round.
 * Every byte is sent as seldom as can be. Long data goes in segments, of which some are under way
 * at once. */
#include "mpi_internal.h"

enum { ALIGN = 64 /* bytes: blocks begin on cache lines */, LANES = 8 };

/* ---- doubling ---- */

/* All of the data goes to `to` and what comes from `from` lies in `stage` then; -1: nobody. */
static void exchange_whole(const dtr__mpi_build *b, const void *data, int to, char *stage,
                           int from) {
    const size_t mark = dtr__mpi_mark(b->s), nbytes = b->call->in_count * b->esize;
    if (from >= 0) {
        dtr__mpi_recv(b->s, stage, nbytes, from);
    }
    if (to >= 0) {
        dtr__mpi_send(b->s, data, nbytes, to);
    }
    dtr__mpi_wait(b->s, mark, dtr__mpi_mark(b->s));
}

/* Both sides of an exchange add in the order of their ranks, so that they get the same bits. */
static void add_whole(const dtr__mpi_build *b, const void *mine, const void *theirs,
                      bool mine_first, int divisor) {
    dtr__mpi_reduce(b->s, b->call->out, b->call->in_count, 2, divisor);
    dtr__mpi_source(b->s, mine_first ? mine : theirs);
    dtr__mpi_source(b->s, mine_first ? theirs : mine);
}

static void build_doubling(const dtr__mpi_build *b, const void *in) {
    int power = 1;
    while (2 * power <= b->size) {
        power *= 2;
    }
    /* The first 2 * rest ranks make pairs, whose odd ranks take part for both. */
    const int rest = b->size - power, pairs = 2 * rest;
    const bool paired = b->rank < pairs;
    char *stage = dtr__mpi_stage(b->s, b->call->in_count * b->esize);
    if (stage == NULL) {
        return;
    }
    if (paired && b->rank % 2 == 0) {
        exchange_whole(b, in, b->rank + 1, NULL, -1);
        exchange_whole(b, NULL, -1, b->call->out, b->rank + 1);
        return;
    }
    if (paired) {
        exchange_whole(b, NULL, -1, stage, b->rank - 1);
        add_whole(b, in, stage, false, power == 1 ? b->s->divisor : 1);
        in = b->call->out;
    }
    const int me = paired ? b->rank / 2 : b->rank - rest;
    for (int mask = 1; mask < power; mask *= 2) {
        const int other = me ^ mask, peer = other < rest ? 2 * other + 1 : other + rest;
        exchange_whole(b, in, peer, stage, peer);
        add_whole(b, in, stage, me < other, 2 * mask == power ? b->s->divisor : 1);
        in = b->call->out;
    }
    if (paired) {
        exchange_whole(b, b->call->out, b->rank - 1, NULL, -1);
    }
}

/* ---- blocks ---- */

typedef struct plan {
    const dtr__mpi_build *b;
    bool ring, scatters; /* scatters: a reduce_scatter, whose sums are made in staging memory */
    size_t *left;        /* halves: blocks that a rank still has after so many rounds */
    int rounds;          /* of one direction */
    int first, end;      /* those that are made, of both directions */
    size_t segment, n_segments; /* elements: of the data, in a reduce_scatter of each block */
} plan;

/* A segment under way: so much of every block. */
typedef struct lane {
    bool active;
    size_t *bound;               /* [size + 1] elements: where its blocks begin, and the end */
    const char *in;              /* the own input, which is not changed unless it lies in `sums` */
    char *sums;                  /* of the same layout; results in the end */
    char *own;                   /* where the own block's last sum goes */
    char *stage;                 /* what comes to be added */
    int round;                   /* under way */
    size_t mark, received, sent; /* its transfers */
} lane;

/* Of sums: n blocks from `upper` on go ahead, those from `lower` on come from behind. */
typedef struct exchange {
    int ahead, behind, upper, lower, n;
} exchange;

static exchange exchange_of(const plan *p, int round) {
    const int rank = p->b->rank, size = p->b->size;
    const int keeps = p->ring ? 1 : (int)p->left[round + 1];
    exchange e = { .ahead = (rank + keeps) % size, .behind = (rank - keeps + size) % size };
    if (p->ring) {
        e.n = 1;
        e.upper = rank + size - 1 - round;
        e.lower = e.upper - 1;
    } else if ((size & (size - 1)) == 0) { /* by pairs, whose halves never go over the end */
        e.n = keeps;
        e.ahead = e.behind = rank ^ keeps;
        e.upper = e.ahead & ~(keeps - 1);
        e.lower = rank & ~(keeps - 1);
    } else {
        e.n = (int)p->left[round] - keeps;
        e.upper = rank + keeps;
        e.lower = rank;
    }
    return e;
}

/* n blocks from `first` on, which may go over the end: then they are two parts. */
typedef struct parts {
    size_t at[2], nbytes[2];
} parts;

static parts parts_of(const plan *p, const lane *l, int first, int n) {
    const int size = p->b->size, begin = first % size, end = begin + n;
    const size_t *bound = l->bound, esize = p->b->esize;
    const size_t to = bound[end < size ? end : size], over = end > size ? bound[end - size] : 0;
    return (parts){ .at = { bound[begin] * esize, bound[0] * esize },
                    .nbytes = { (to - bound[begin]) * esize,
                                (over > bound[0] ? over - bound[0] : 0) * esize } };
}

/* What a round sends and receives. Results are received where they belong. */
static void post(const plan *p, lane *l) {
    const dtr__mpi_build *b = p->b;
    const bool back = l->round >= p->rounds;
    const exchange e = exchange_of(p, back ? 2 * p->rounds - 1 - l->round : l->round);
    const parts upper = parts_of(p, l, e.upper, e.n), lower = parts_of(p, l, e.lower, e.n);
    const parts *take = back ? &upper : &lower, *give = back ? &lower : &upper;
    const char *from = l->round == 0 ? l->in : l->sums;
    char *to = l->stage;
    l->mark = dtr__mpi_mark(b->s);
    for (int i = 0; i < 2; i++) {
        if (take->nbytes[i] != 0) {
            dtr__mpi_recv(b->s, back ? l->sums + take->at[i] : to, take->nbytes[i],
                          back ? e.ahead : e.behind);
            to += back ? 0 : take->nbytes[i];
        }
    }
    l->received = dtr__mpi_mark(b->s);
    for (int i = 0; i < 2; i++) {
        if (give->nbytes[i] != 0) {
            dtr__mpi_send(b->s, from + give->at[i], give->nbytes[i], back ? e.behind : e.ahead);
        }
    }
    l->sent = dtr__mpi_mark(b->s);
}

/* Adds what has come to what this rank has. */
static void add(const plan *p, const lane *l) {
    const dtr__mpi_build *b = p->b;
    const exchange e = exchange_of(p, l->round);
    const parts lower = parts_of(p, l, e.lower, e.n);
    const bool last = l->round + 1 == p->rounds;
    const char *mine = p->ring || l->round == 0 ? l->in : l->sums, *came = l->stage;
    for (int i = 0; i < 2; i++) {
        if (lower.nbytes[i] != 0) { /* the last round's is the own block, of one part */
            dtr__mpi_reduce(b->s, last ? l->own : l->sums + lower.at[i], lower.nbytes[i] / b->esize,
                            2, last ? b->s->divisor : 1);
            dtr__mpi_source(b->s, mine + lower.at[i]);
            dtr__mpi_source(b->s, came);
            came += lower.nbytes[i];
        }
    }
    if (!p->ring && l->round == 0 && b->size % 2 != 0) { /* of the middle block nothing has come */
        const parts middle = parts_of(p, l, b->rank + e.n, 1);
        dtr__mpi_copy(b->s, l->sums + middle.at[0], mine + middle.at[0], middle.nbytes[0]);
    }
}

/* The round that is under way ends. What it sends from may be written by the next one, and by the
 * last sum of a reduce_scatter, whose input may be in the same memory. */
static void finish(const plan *p, const lane *l) {
    dtr__mpi_wait(p->b->s, l->mark, p->scatters ? l->sent : l->received);
    if (l->round < p->rounds) {
        add(p, l);
    }
    if (!p->scatters) {
        dtr__mpi_wait(p->b->s, l->received, l->sent);
    }
}

static bool begin(plan *p, const dtr__mpi_build *b, bool ring, lane *lanes) {
    const size_t size = (size_t)b->size;
    size_t *numbers = dtr__mpi_slices(b->s, (LANES + 1) * (b->size + 1));
    *p = (plan){ .b = b, .ring = ring, .left = numbers };
    if (numbers == NULL) {
        return false;
    }
    for (size_t i = 0; i < LANES; i++) {
        lanes[i] = (lane){ .bound = numbers + (i + 1) * (size + 1) };
    }
    p->left[0] = size;
    for (; !ring && p->left[p->rounds] > 1; p->rounds++) {
        p->left[p->rounds + 1] = (p->left[p->rounds] + 1) / 2;
    }
    p->rounds = ring ? b->size - 1 : p->rounds;
    p->end = 2 * p->rounds;
    return true;
}

/* Segments take turns on the lanes, a round each, so that one travels while another is added. */
static void run_lanes(const plan *p, lane *lanes, size_t n_lanes,
                      void (*take)(const plan *p, lane *l, size_t k)) {
    size_t next = 0, active = 0;
    do {
        for (size_t i = 0; i < n_lanes; i++) {
            lane *l = &lanes[i];
            if (l->active) {
                finish(p, l);
                l->active = ++l->round < p->end;
                active -= !l->active;
            }
            if (!l->active && next < p->n_segments) {
                take(p, l, next++);
                l->round = p->first;
                l->active = true;
                active++;
            }
            if (l->active) {
                post(p, l);
            }
        }
    } while (active != 0);
}

/* Cuts `count` elements, `n_blocks` times as many of which are all data, into segments. Their
 * messages are so short that MPI sends them unasked, or the answers would wait behind data on a
 * slow link; of many ranks the blocks are not shorter for it, as each message has its cost, which
 * is why little data goes whole, too. Memory bounds it: of an allreduce half of each lane's segment
 * is staged. */
static void cut(plan *p, size_t count, size_t n_blocks) {
    enum { FEW = 16 /* ranks: half of their segment is one message */ };
    const dtr__mpi_build *b = p->b;
    const dtr__mpi_tuning *t = &b->state->tuning;
    const size_t size = (size_t)b->size, unit = ALIGN / b->esize;
    const size_t nbytes = n_blocks * count * b->esize;
    const size_t limit =
        nbytes / size <= t->whole ? nbytes : (size < FEW ? FEW : size) * t->segment;
    const size_t n = (nbytes - 1) / dtr__mpi_min(limit, 2 * t->staging / LANES) + 1;
    p->segment = ((count - 1) / n / unit + 1) * unit;
    p->n_segments = (count - 1) / p->segment + 1;
}

/* ---- allreduce ---- */

static void take_allreduce(const plan *p, lane *l, size_t k) {
    const dtr__mpi_build *b = p->b;
    const size_t size = (size_t)b->size, unit = ALIGN / b->esize;
    const size_t from = k * p->segment, count = dtr__mpi_min(p->segment, b->call->in_count - from);
    const size_t each = ((count - 1) / size / unit + 1) * unit;
    for (size_t j = 0; j <= size; j++) {
        l->bound[j] = from + dtr__mpi_min(j * each, count);
    }
    l->in = dtr__mpi_prepares(b->call) ? b->call->out : b->call->in;
    l->sums = b->call->out;
    l->own = l->sums + l->bound[b->rank] * b->esize;
}

static void build_blocks(const dtr__mpi_build *b, bool ring) {
    const size_t size = (size_t)b->size, unit = ALIGN / b->esize;
    lane lanes[LANES];
    plan p;
    if (!begin(&p, b, ring, lanes)) {
        return;
    }
    cut(&p, b->call->in_count, 1);
    const size_t each = ((p.segment - 1) / size / unit + 1) * unit;
    const size_t n_lanes = dtr__mpi_min(p.n_segments, LANES);
    const size_t stage = dtr__mpi_min((ring ? 1 : size / 2) * each, p.segment) * b->esize;
    lanes[0].stage = dtr__mpi_stage(b->s, n_lanes * stage);
    if (lanes[0].stage == NULL) {
        return;
    }
    for (size_t i = 1; i < n_lanes; i++) {
        lanes[i].stage = lanes[i - 1].stage + stage;
    }
    run_lanes(&p, lanes, n_lanes, take_allreduce);
}

void dtr__mpi_build_partial_sums(const dtr__mpi_build *b) {
    const dtr__mpi_tuning *t = &b->state->tuning;
    const dtr__call *c = b->call;
    const size_t nbytes = c->in_count * b->esize;
    if (dtr__mpi_prepares(c)) {
        dtr__mpi_premul(b->s, c->out, c->in, c->in_count);
    }
    if (nbytes <= t->doubling) {
        build_doubling(b, dtr__mpi_prepares(c) ? c->out : c->in);
    } else {
        build_blocks(b, nbytes >= t->ring);
    }
}

/* ---- reduce_scatter, allgather ---- */

/* The input as it lies, where one segment is all of it; else a copy of its part. */
static void take_reduce_scatter(const plan *p, lane *l, size_t k) {
    const dtr__mpi_build *b = p->b;
    const dtr__blocks blocks = dtr__blocks_in(b->call, b->size);
    const bool whole = p->n_segments == 1 && !dtr__mpi_prepares(b->call);
    const char *in = b->call->in;
    size_t at = 0;
    for (int j = 0; j < b->size; j++) {
        const size_t count = dtr__block_count(&blocks, j),
                     from = dtr__mpi_min(k * p->segment, count);
        const size_t n = dtr__mpi_min(p->segment, count - from);
        const char *part = in + from * b->esize;
        if (j == b->rank) {
            l->own = (char *)b->call->out + from * b->esize;
        }
        if (!whole && dtr__mpi_prepares(b->call)) {
            dtr__mpi_premul(b->s, l->sums + at * b->esize, part, n);
        } else if (!whole) {
            dtr__mpi_copy(b->s, l->sums + at * b->esize, part, n * b->esize);
        }
        l->bound[j] = at;
        at += n;
        in += count * b->esize;
    }
    l->bound[b->size] = at;
    l->in = whole ? b->call->in : l->sums;
}

void dtr__mpi_build_reduce_scatter_halves(const dtr__mpi_build *b) {
    const dtr__blocks blocks = dtr__blocks_in(b->call, b->size);
    size_t longest = 0, all = 0, half = 0; /* all, half: of the first segment */
    lane lanes[LANES];
    plan p;
    for (int j = 0; j < b->size; j++) {
        const size_t count = dtr__block_count(&blocks, j);
        longest = count > longest ? count : longest;
    }
    if (longest == 0 || !begin(&p, b, false, lanes)) {
        return;
    }
    p.scatters = true;
    p.end = p.rounds;
    cut(&p, longest, (size_t)b->size);
    const exchange e = exchange_of(&p, 0);
    for (int j = 0; j < b->size; j++) {
        const size_t n = dtr__mpi_min(p.segment, dtr__block_count(&blocks, j));
        all += n;
        half += (j - e.lower + b->size) % b->size < e.n ? n : 0;
    }
    const size_t n_lanes = dtr__mpi_min(p.n_segments, LANES), line = ALIGN / b->esize;
    all = (all / line + 1) * ALIGN;
    half = (half / line + 1) * ALIGN;
    char *memory = dtr__mpi_stage(b->s, n_lanes * (all + half));
    for (size_t i = 0; i < n_lanes && memory != NULL; i++) {
        lanes[i].sums = memory + i * (all + half);
        lanes[i].stage = lanes[i].sums + all;
    }
    if (memory != NULL) {
        run_lanes(&p, lanes, n_lanes, take_reduce_scatter);
    }
}

static void take_allgather(const plan *p, lane *l, size_t k) {
    const dtr__mpi_build *b = p->b;
    const dtr__blocks blocks = dtr__blocks_out(b->call, b->size);
    (void)k;
    l->bound[0] = 0;
    for (int j = 0; j < b->size; j++) {
        l->bound[j + 1] = l->bound[j] + dtr__block_count(&blocks, j);
    }
    l->sums = b->call->out;
    dtr__mpi_copy(b->s, l->sums + l->bound[b->rank] * b->esize, b->call->in,
                  (l->bound[b->rank + 1] - l->bound[b->rank]) * b->esize);
}

void dtr__mpi_build_allgather_doubling(const dtr__mpi_build *b) {
    lane lanes[LANES];
    plan p;
    if (begin(&p, b, false, lanes)) {
        p.first = p.rounds;
        p.n_segments = 1;
        run_lanes(&p, lanes, 1, take_allgather);
    }
}
