/* Movement: broadcast, allgather(v), gather(v), scatter(v), alltoall(v) and the barrier. Data is
 * received straight into the caller's buffers; staging serves small log2-round forms and the
 * in-place alltoall(v) only. */
#include "mpi_internal.h"

const dtr__mpi_tuning dtr__mpi_tuning_default = {
    .reduce_direct = 128 << 10,
    .reduce_ranks = 8,
    .reduce_slice = 256 << 10,
    .staging = 8 << 20,
    .gather_log = 32 << 10,
    .gather_ranks = 5,
    .tree_max = 64 << 10,
    .chain_segment = 128 << 10,
    .window = 16,
    .doubling = 32 << 10,
    .ring = SIZE_MAX,
    .segment = 7 << 10,
    .block = 64 << 10,
    .piece = 60 << 10,
    .whole = 64 << 10,
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

/* ---- broadcast ---- */

static void broadcast_tree(const dtr__mpi_build *b, char *data, size_t nbytes) {
    int me = (b->rank - b->call->root + b->size) % b->size, mask = 1;
    while (mask < b->size && (me & mask) == 0) {
        mask <<= 1;
    }
    if (me != 0) {
        dtr__mpi_recv(b->s, data, nbytes, (me - mask + b->call->root) % b->size);
        dtr__mpi_wait_all(b->s);
    }
    for (mask >>= 1; mask > 0; mask >>= 1) {
        if (me + mask < b->size) {
            dtr__mpi_send(b->s, data, nbytes, (me + mask + b->call->root) % b->size);
        }
    }
    dtr__mpi_wait_all(b->s);
}

/* Every rank passes segment after segment on to the next: each byte crosses each link once. */
static void broadcast_chain(const dtr__mpi_build *b, char *data, size_t nbytes) {
    int me = (b->rank - b->call->root + b->size) % b->size;
    size_t segment = b->size == 2 ? nbytes : b->state->tuning.chain_segment;
    size_t n = (nbytes - 1) / segment + 1, received = 0;
    window sends = window_of(b);
    size_t posted[WINDOW_MAX] = { 0 }, depth = sends.width;
    for (size_t k = 0; k < n; k++) {
        for (; me != 0 && received < n && received < k + depth; received++) {
            size_t at = received * segment, left = nbytes - at;
            posted[received % depth] = dtr__mpi_mark(b->s);
            dtr__mpi_recv(b->s, data + at, left < segment ? left : segment, behind(b, 1));
        }
        size_t at = k * segment, length = nbytes - at < segment ? nbytes - at : segment;
        if (me != 0) {
            size_t first = posted[k % depth];
            dtr__mpi_wait(b->s, first, first + dtr__mpi_piece_count(length));
        }
        if (me != b->size - 1) {
            window_next(b, &sends);
            dtr__mpi_send(b->s, data + at, length, ahead(b, 1));
        }
    }
    dtr__mpi_wait_all(b->s);
}

void dtr__mpi_build_broadcast(const dtr__mpi_build *b) {
    size_t nbytes = b->call->in_count * b->esize;
    if (b->size == 1) {
        return;
    }
    /* The root's memory is only read: `data` is not written there. */
    if (nbytes <= b->state->tuning.tree_max) {
        broadcast_tree(b, b->call->out, nbytes);
    } else {
        broadcast_chain(b, b->call->out, nbytes);
    }
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
        window_next(b, &w);
        dtr__mpi_recv(b->s, out + span(b, blocks, 0, from), span(b, blocks, from, 1), from);
        dtr__mpi_send(b->s, b->call->in, own, ahead(b, i));
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

void dtr__mpi_build_gather(const dtr__mpi_build *b) {
    size_t own = b->call->in_count * b->esize;
    char *out = b->call->out;
    if (b->rank != b->call->root) {
        dtr__mpi_send(b->s, b->call->in, own, b->call->root);
    } else {
        dtr__blocks blocks = dtr__blocks_out(b->call, b->size);
        for (int i = 1; i < b->size; i++) {
            int from = ahead(b, i);
            dtr__mpi_recv(b->s, out + span(b, &blocks, 0, from), span(b, &blocks, from, 1), from);
        }
        dtr__mpi_copy(b->s, out + span(b, &blocks, 0, b->rank), b->call->in, own);
    }
    dtr__mpi_wait_all(b->s);
}

void dtr__mpi_build_scatter(const dtr__mpi_build *b) {
    size_t own = b->call->out_count * b->esize;
    const char *in = b->call->in;
    if (b->rank != b->call->root) {
        dtr__mpi_recv(b->s, b->call->out, own, b->call->root);
    } else {
        dtr__blocks blocks = dtr__blocks_in(b->call, b->size);
        for (int i = 1; i < b->size; i++) {
            int to = ahead(b, i);
            dtr__mpi_send(b->s, in + span(b, &blocks, 0, to), span(b, &blocks, to, 1), to);
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
static void exchange_equal(const dtr__mpi_build *b, window *w, int peer, size_t nbytes,
                           size_t chunk, char *stage) {
    size_t at = 0;
    const char *give = (const char *)b->call->in + nbytes * (size_t)peer;
    char *take = (char *)b->call->out + nbytes * (size_t)peer;
    do {
        size_t n = nbytes - at < chunk ? nbytes - at : chunk;
        char *slot = stage == NULL ? NULL : stage + w->count % w->width * chunk;
        window_next(b, w);
        if (slot != NULL) {
            dtr__mpi_copy(b->s, slot, give + at, n);
        }
        dtr__mpi_recv(b->s, take + at, n, peer);
        dtr__mpi_send(b->s, slot != NULL ? slot : give + at, n, peer);
        at += n;
    } while (at < nbytes);
}

static void alltoall_equal(const dtr__mpi_build *b) {
    size_t nbytes = b->call->in_count / (size_t)b->size * b->esize;
    size_t staging = b->state->tuning.staging, chunk = staging / 4;
    window w = window_of(b);
    char *stage = NULL;
    chunk = chunk < nbytes ? chunk : nbytes;
    size_t fits = chunk == 0 ? w.width : staging / chunk;
    w.width = fits > 0 && fits < w.width ? fits : w.width;
    if (b->call->in == b->call->out && nbytes != 0) {
        stage = dtr__mpi_stage(b->s, chunk * w.width);
        if (stage == NULL) {
            return;
        }
    }
    for (int round = 0; round < b->size; round++) {
        if (partner(b, round) != b->rank) {
            exchange_equal(b, &w, partner(b, round), nbytes, chunk, stage);
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
            window_next(b, &w);
            dtr__mpi_recv(b->s, out, n_out, peer);
            dtr__mpi_send(b->s, in, n_in, peer);
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
