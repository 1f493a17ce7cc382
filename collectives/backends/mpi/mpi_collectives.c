/* Movement: allgather(v), gather(v), scatter(v), alltoall(v) and the barrier. Data is
 * received straight into the caller's buffers; staging serves small log2-round forms and the
 * in-place alltoall(v) only. */
#include "mpi_internal.h"

const dtr__mpi_tuning dtr__mpi_tuning_default = {
    .reduce_direct = 128 << 10,
    .reduce_ranks = 8,
    .staging = 8 << 20,
    .gather_log = 32 << 10,
    .gather_ranks = 5,
    .message = 56 << 10,
    .window = 16,
    .doubling = 32 << 10,
    .ring = SIZE_MAX,
    .segment = 7 << 10,
    .block = 64 << 10,
    .piece = 60 << 10,
    .whole = 64 << 10,
    .tree_ranks = 128,
    .tree_block = 8 << 10,
    .tree_parts = 1 << 20,
};

static int ahead(const dtr__mpi_build *b, int distance) {
    return (b->rank + distance) % b->size;
}

static int behind(const dtr__mpi_build *b, int distance) {
    return (b->rank - distance + b->size) % b->size;
}

/* Limits how much is under way: window_next before an exchange is posted waits until no more than
 * width - 1 others are. */
enum { WINDOW_MAX = 32 };
typedef struct window {
    size_t mark[WINDOW_MAX]; /* where the last `width` exchanges begin */
    size_t width, count;
} window;

static window window_of(const dtr__mpi_build *b) {
    int width = b->state->tuning.window;
    return (window){ .width = (size_t)(width < 1 ? 1 : width > WINDOW_MAX ? WINDOW_MAX : width) };
}

static void window_next(const dtr__mpi_build *b, window *w) {
    if (w->count >= w->width) {
        /* The oldest exchange ends where the second oldest begins. */
        size_t oldest = w->count - w->width;
        size_t end = w->width == 1 ? dtr__mpi_mark(b->s) : w->mark[(oldest + 1) % w->width];
        dtr__mpi_wait(b->s, w->mark[oldest % w->width], end);
    }
    w->mark[w->count++ % w->width] = dtr__mpi_mark(b->s);
}

/* What a rank exchanges with one or two others. */
typedef struct trade {
    void *take;
    const void *give;
    size_t n_take, n_give; /* bytes */
    int from, to;          /* -1: nobody */
    char *stage;           /* what is given goes out from here: a slot for each of the window */
} trade;

/* Bytes of a message: so short that MPI sends it unasked, or where so many ranks may send to one
 * that is late, as long as the staging memory allows. */
static size_t message_of(const dtr__mpi_build *b) {
    enum { MANY = 64 };
    const size_t most = b->size > MANY ? b->state->tuning.staging / 4 : b->state->tuning.message;
    return most > 0 ? most : 1;
}

/* What comes unasked takes memory of a receiver that is late: so the first message of each window
 * is over only when it has been received. */
static void exchange(const dtr__mpi_build *b, window *w, const trade *t) {
    const size_t most = message_of(b), longest = t->n_take > t->n_give ? t->n_take : t->n_give;
    size_t at = 0;
    do {
        const size_t n_give = at < t->n_give ? dtr__mpi_min(t->n_give - at, most) : 0;
        const char *give = n_give > 0 ? (const char *)t->give + at : t->give;
        char *slot = t->stage == NULL ? NULL : t->stage + w->count % w->width * most;
        window_next(b, w);
        if (slot != NULL) {
            dtr__mpi_copy(b->s, slot, give, n_give);
            give = slot;
        }
        if (t->from >= 0 && (at < t->n_take || at == 0)) {
            dtr__mpi_recv(b->s, (char *)t->take + at, dtr__mpi_min(t->n_take - at, most), t->from);
        }
        if (t->to >= 0 && (at < t->n_give || at == 0)) {
            const bool first = longest > most && at / most % w->width == 0;
            (first ? dtr__mpi_send_accepted : dtr__mpi_send)(b->s, give, n_give, t->to);
        }
        at += most;
    } while (at < longest);
}

/* ---- allgather ---- */

/* Bytes of `n` blocks from rank `first` on, with wrap-around. */
static size_t span(const dtr__mpi_build *b, const dtr__blocks *blocks, int first, int n) {
    size_t count = 0;
    if (blocks->counts == NULL) {
        count = blocks->equal * (size_t)n;
    } else {
        for (int i = 0; i < n; i++) {
            count += blocks->counts[(first + i) % b->size];
        }
    }
    return count * b->esize;
}

void dtr__mpi_collect(const dtr__mpi_build *b, const dtr__blocks *blocks, char *stage) {
    for (int have = 1; have < b->size; have *= 2) {
        int n = have < b->size - have ? have : b->size - have;
        size_t mark = dtr__mpi_mark(b->s);
        dtr__mpi_recv(b->s, stage + span(b, blocks, b->rank, have),
                      span(b, blocks, ahead(b, have), n), ahead(b, have));
        dtr__mpi_send(b->s, stage, span(b, blocks, b->rank, n), behind(b, have));
        /* Sends read what no later round writes; they are waited for at the end. */
        dtr__mpi_wait(b->s, mark, mark + dtr__mpi_piece_count(span(b, blocks, ahead(b, have), n)));
    }
}

static void allgather_log(const dtr__mpi_build *b, const dtr__blocks *blocks) {
    size_t own = span(b, blocks, b->rank, 1);
    size_t upper = span(b, blocks, b->rank, b->size - b->rank);
    size_t lower = span(b, blocks, 0, b->rank);
    char *stage = dtr__mpi_stage(b->s, upper + lower);
    if (stage == NULL) {
        return;
    }
    dtr__mpi_copy(b->s, stage, b->call->in, own);
    dtr__mpi_collect(b, blocks, stage);
    dtr__mpi_copy(b->s, (char *)b->call->out + lower, stage, upper);
    dtr__mpi_copy(b->s, b->call->out, stage + upper, lower);
    dtr__mpi_wait_all(b->s);
}

/* Blocks travel round the ring: between nodes each block crosses a link once. */
static void allgather_ring(const dtr__mpi_build *b, const dtr__blocks *blocks) {
    char *out = b->call->out;
    dtr__mpi_copy(b->s, out + span(b, blocks, 0, b->rank), b->call->in,
                  span(b, blocks, b->rank, 1));
    for (int k = 0; k + 1 < b->size; k++) {
        int give = behind(b, k), take = behind(b, k + 1);
        size_t mark = dtr__mpi_mark(b->s), nbytes = span(b, blocks, take, 1);
        dtr__mpi_recv(b->s, out + span(b, blocks, 0, take), nbytes, behind(b, 1));
        dtr__mpi_send(b->s, out + span(b, blocks, 0, give), span(b, blocks, give, 1), ahead(b, 1));
        dtr__mpi_wait(b->s, mark, mark + dtr__mpi_piece_count(nbytes));
    }
    dtr__mpi_wait_all(b->s);
}

static void allgather_direct(const dtr__mpi_build *b, const dtr__blocks *blocks) {
    size_t own = span(b, blocks, b->rank, 1);
    char *out = b->call->out;
    window w = window_of(b);
    for (int i = 1; i < b->size; i++) {
        int from = behind(b, i);
        exchange(b, &w,
                 &(trade){ .take = out + span(b, blocks, 0, from),
                           .n_take = span(b, blocks, from, 1),
                           .from = from,
                           .give = b->call->in,
                           .n_give = own,
                           .to = ahead(b, i) });
    }
    dtr__mpi_copy(b->s, out + span(b, blocks, 0, b->rank), b->call->in, own);
    dtr__mpi_wait_all(b->s);
}

void dtr__mpi_build_allgather(const dtr__mpi_build *b) {
    const dtr__mpi_tuning *t = &b->state->tuning;
    dtr__blocks blocks = dtr__blocks_out(b->call, b->size);
    if (b->size >= t->gather_ranks && b->call->out_count * b->esize <= t->gather_log) {
        allgather_log(b, &blocks);
    } else if (b->size >= t->gather_ranks && b->size > 2 &&
               b->call->out_count * b->esize / (size_t)b->size <= t->block) {
        dtr__mpi_build_allgather_doubling(b);
    } else if (b->state->ring) {
        allgather_ring(b, &blocks);
    } else {
        allgather_direct(b, &blocks);
    }
}

/* ---- gather, scatter ---- */

/* The next message of each rank, one after the other, so that all send at once. */
static void take_from_all(const dtr__mpi_build *b, window *w, const dtr__blocks *blocks) {
    const size_t most = message_of(b);
    bool more = true;
    for (size_t at = 0; more; at += most) {
        window_next(b, w);
        more = false;
        char *block = b->call->out;
        for (int from = 0; from < b->size; from++) {
            const size_t nbytes = span(b, blocks, from, 1);
            if (from != b->rank && (at < nbytes || at == 0)) {
                dtr__mpi_recv(b->s, block + at, dtr__mpi_min(nbytes - at, most), from);
                more = more || at + most < nbytes;
            }
            block += nbytes;
        }
    }
}

void dtr__mpi_build_gather(const dtr__mpi_build *b) {
    size_t own = b->call->in_count * b->esize;
    char *out = b->call->out;
    window w = window_of(b);
    if (b->rank != b->call->root) {
        exchange(b, &w,
                 &(trade){ .from = -1, .give = b->call->in, .n_give = own, .to = b->call->root });
    } else {
        const dtr__blocks blocks = dtr__blocks_out(b->call, b->size);
        take_from_all(b, &w, &blocks);
        dtr__mpi_copy(b->s, out + span(b, &blocks, 0, b->rank), b->call->in, own);
    }
    dtr__mpi_wait_all(b->s);
}

void dtr__mpi_build_scatter(const dtr__mpi_build *b) {
    size_t own = b->call->out_count * b->esize;
    const char *in = b->call->in;
    window w = window_of(b);
    if (b->rank != b->call->root) {
        exchange(b, &w,
                 &(trade){ .take = b->call->out, .n_take = own, .from = b->call->root, .to = -1 });
    } else {
        dtr__blocks blocks = dtr__blocks_in(b->call, b->size);
        for (int i = 1; i < b->size; i++) {
            int to = ahead(b, i);
            exchange(b, &w,
                     &(trade){ .from = -1,
                               .give = in + span(b, &blocks, 0, to),
                               .n_give = span(b, &blocks, to, 1),
                               .to = to });
        }
        dtr__mpi_copy(b->s, b->call->out, in + span(b, &blocks, 0, b->rank), own);
    }
    dtr__mpi_wait_all(b->s);
}

/* ---- alltoall ---- */

/* Round i pairs the ranks whose sum is i (mod size): both sides exchange in the same round, which
 * the in-place form needs. */
static int partner(const dtr__mpi_build *b, int round) {
    return (round - b->rank + b->size) % b->size;
}

/* Equal blocks may be exchanged in place on some ranks and not on others, so all cut them alike: in
 * place, what goes out is copied to one of the window's slots and what comes in takes its place. */
static void alltoall_equal(const dtr__mpi_build *b) {
    const size_t nbytes = b->call->in_count / (size_t)b->size * b->esize;
    const size_t slot = message_of(b), fits = b->state->tuning.staging / slot;
    window w = window_of(b);
    char *stage = NULL;
    w.width = fits > 0 && fits < w.width ? fits : w.width;
    if (b->call->in == b->call->out && nbytes != 0) {
        stage = dtr__mpi_stage(b->s, slot * w.width);
        if (stage == NULL) {
            return;
        }
    }
    for (int round = 0; round < b->size; round++) {
        const int peer = partner(b, round);
        if (peer != b->rank) {
            exchange(b, &w,
                     &(trade){ .take = (char *)b->call->out + nbytes * (size_t)peer,
                               .n_take = nbytes,
                               .from = peer,
                               .give = (const char *)b->call->in + nbytes * (size_t)peer,
                               .n_give = nbytes,
                               .to = peer,
                               .stage = stage });
        }
    }
    size_t own = nbytes * (size_t)b->rank;
    dtr__mpi_copy(b->s, (char *)b->call->out + own, (const char *)b->call->in + own, nbytes);
}

/* In place nothing can be put down before all of the input is aside: what comes in lies elsewhere
 * and is of another length than what went out to that rank. */
static void alltoall_uneven(const dtr__mpi_build *b) {
    dtr__blocks give = dtr__blocks_in(b->call, b->size), take = dtr__blocks_out(b->call, b->size);
    window w = window_of(b);
    const char *all = b->call->in;
    const size_t nbytes = b->call->in_count * b->esize;
    if (b->call->in == b->call->out && nbytes != 0) {
        char *stage = dtr__mpi_stage(b->s, nbytes);
        if (stage == NULL) {
            return;
        }
        dtr__mpi_copy(b->s, stage, all, nbytes);
        all = stage;
    }
    for (int round = 0; round < b->size; round++) {
        int peer = partner(b, round);
        const char *in = all + span(b, &give, 0, peer);
        char *out = (char *)b->call->out + span(b, &take, 0, peer);
        size_t n_in = span(b, &give, peer, 1), n_out = span(b, &take, peer, 1);
        if (peer == b->rank) {
            dtr__mpi_copy(b->s, out, in, n_in);
        } else {
            exchange(b, &w,
                     &(trade){ .take = out,
                               .n_take = n_out,
                               .from = peer,
                               .give = in,
                               .n_give = n_in,
                               .to = peer });
        }
    }
}

void dtr__mpi_build_alltoall(const dtr__mpi_build *b) {
    if (b->call->kind == DTR__K_ALLTOALL) {
        alltoall_equal(b);
    } else {
        alltoall_uneven(b);
    }
    dtr__mpi_wait_all(b->s);
}

/* ---- barrier ---- */

/* After round k a rank knows of the 2^(k+1) - 1 ranks behind it. */
void dtr__mpi_build_barrier(const dtr__mpi_build *b) {
    for (int distance = 1; distance < b->size; distance *= 2) {
        size_t mark = dtr__mpi_mark(b->s);
        dtr__mpi_recv(b->s, NULL, 0, behind(b, distance));
        dtr__mpi_send(b->s, NULL, 0, ahead(b, distance));
        dtr__mpi_wait(b->s, mark, mark + 1);
    }
    dtr__mpi_wait_all(b->s);
}
