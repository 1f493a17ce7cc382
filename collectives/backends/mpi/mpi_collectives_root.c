/* Broadcast, and reduce where the order of additions is free. All of the data goes along a tree
 * below the root, or along a chain, in segments: one travels while another is added or sent on. A
 * message is so short that MPI sends it unasked. */
#include "mpi_internal.h"

enum { ALIGN = 64 /* bytes: segments begin on cache lines */, SLOTS = 16 /* under way at once */ };

/* ---- trees ---- */

dtr__mpi_tree_place dtr__mpi_tree_place_of(int at, int n) {
    dtr__mpi_tree_place p = { .parent = -1, .n = n };
    for (int root = 0;;) {
        p.child[0] = root + 1;
        p.n_below[0] = p.n / 2;
        p.child[1] = p.child[0] + p.n_below[0];
        p.n_below[1] = p.n - 1 - p.n_below[0];
        p.n_children = (p.n_below[0] > 0) + (p.n_below[1] > 0);
        if (at == root) {
            return p;
        }
        const int half = at >= p.child[1];
        p.parent = root;
        p.n = p.n_below[half];
        root = p.child[half];
    }
}

static dtr__mpi_tree_place chain_place_of(int at, int n) {
    return (dtr__mpi_tree_place){ .parent = at - 1,
                                  .n = n - at,
                                  .child = { at + 1 },
                                  .n_below = { n - at - 1 },
                                  .n_children = at < n - 1 };
}

/* Of a chain each rank sends every byte once, but its end is n - 1 messages away; of a tree the
 * inner ranks send twice, and its leaves are about lg n messages away. */
static bool prefers_chain(size_t n_segments, int n) {
    int more = n - 2;
    for (int k = 1; k < n; k *= 2) {
        more -= 2;
    }
    return n_segments > 1 && (int64_t)n_segments >= more;
}

/* ---- passing it on ---- */

/* A rank's part in it. */
typedef struct passage {
    const dtr__mpi_build *b;
    dtr__mpi_tree_place me;
    size_t most, n; /* elements of a segment, segments */
    size_t n_slots;
    size_t slot, received[SLOTS], sent[SLOTS]; /* bytes; the transfers of each */
    char *stage;                               /* reduce: [n_slots] sums, and those of each child */
} passage;

static passage passage_of(const dtr__mpi_build *b) {
    const size_t count = b->call->in_count, message = b->state->tuning.message / b->esize;
    const int at = (b->rank - b->call->root + b->size) % b->size;
    passage p = { .b = b, .most = dtr__mpi_min(message > 0 ? message : 1, count > 0 ? count : 1) };
    p.n = count > 0 ? (count - 1) / p.most + 1 : 1;
    p.n_slots = dtr__mpi_min(p.n, SLOTS);
    p.me = prefers_chain(p.n, b->size) ? chain_place_of(at, b->size)
                                       : dtr__mpi_tree_place_of(at, b->size);
    return p;
}

static int peer_of(const passage *p, int place) {
    return (place + p->b->call->root) % p->b->size;
}

static size_t count_of(const passage *p, size_t k) {
    return dtr__mpi_min(p->most, p->b->call->in_count - k * p->most);
}

/* The k-th segment has come. */
static void await(const passage *p, size_t k, int n) {
    const size_t mark = p->received[k % p->n_slots];
    dtr__mpi_wait(p->b->s, mark, mark + (size_t)n);
}

/* What has been sent from the k-th one's slot may be written. */
static void await_sent(const passage *p, size_t k, int n) {
    if (k >= p->n_slots) {
        const size_t mark = p->sent[k % p->n_slots];
        dtr__mpi_wait(p->b->s, mark, mark + (size_t)n);
    }
}

static void run(passage *p, void (*receive)(passage *p, size_t k),
                void (*pass)(passage *p, size_t k)) {
    size_t received = 0;
    for (size_t k = 0; k < p->n; k++) {
        for (; received < p->n && received < k + p->n_slots; received++) {
            p->received[received % p->n_slots] = dtr__mpi_mark(p->b->s);
            receive(p, received);
        }
        pass(p, k);
    }
    dtr__mpi_wait_all(p->b->s);
}

/* A segment goes on. It takes memory of a receiver that is late, so one of each window is over only
 * when it has been received. */
static void send_part(const passage *p, const void *data, size_t k, int place) {
    const bool first = p->n > 1 && k % SLOTS == 0;
    (first ? dtr__mpi_send_accepted : dtr__mpi_send)(p->b->s, data, count_of(p, k) * p->b->esize,
                                                     peer_of(p, place));
}

/* ---- broadcast ---- */

static void receive_data(passage *p, size_t k) {
    const dtr__mpi_build *b = p->b;
    if (p->me.parent >= 0) { /* the root's memory is only read */
        dtr__mpi_recv(b->s, (char *)b->call->out + k * p->most * b->esize,
                      count_of(p, k) * b->esize, peer_of(p, p->me.parent));
    }
}

static void pass_data(passage *p, size_t k) {
    const dtr__mpi_build *b = p->b;
    await(p, k, p->me.parent >= 0);
    await_sent(p, k, p->me.n_children);
    p->sent[k % p->n_slots] = dtr__mpi_mark(b->s);
    for (int i = 0; i < p->me.n_children; i++) {
        send_part(p, (const char *)b->call->out + k * p->most * b->esize, k, p->me.child[i]);
    }
}

void dtr__mpi_build_broadcast(const dtr__mpi_build *b) {
    passage p = passage_of(b);
    run(&p, receive_data, pass_data);
}

/* ---- reduce ---- */

/* What child `i` sends, or for -1 the own sum. */
static char *slot_of(const passage *p, size_t k, int i) {
    return p->stage + ((size_t)(i + 1) * p->n_slots + k % p->n_slots) * p->slot;
}

static void receive_sums(passage *p, size_t k) {
    for (int i = 0; i < p->me.n_children; i++) {
        dtr__mpi_recv(p->b->s, slot_of(p, k, i), count_of(p, k) * p->b->esize,
                      peer_of(p, p->me.child[i]));
    }
}

static void pass_sum(passage *p, size_t k) {
    const dtr__mpi_build *b = p->b;
    const bool root = p->me.parent < 0;
    const size_t at = k * p->most * b->esize, count = count_of(p, k);
    const char *own = (const char *)b->call->in + at;
    char *sum = root ? (char *)b->call->out + at : slot_of(p, k, -1);
    await(p, k, p->me.n_children);
    await_sent(p, k, !root);
    if (dtr__mpi_prepares(b->call)) {
        dtr__mpi_premul(b->s, sum, own, count);
        own = sum;
    }
    if (p->me.n_children > 0) {
        dtr__mpi_reduce(b->s, sum, count, 1 + p->me.n_children, root ? b->s->divisor : 1);
        dtr__mpi_source(b->s, own);
        for (int i = 0; i < p->me.n_children; i++) {
            dtr__mpi_source(b->s, slot_of(p, k, i));
        }
        own = sum;
    }
    p->sent[k % p->n_slots] = dtr__mpi_mark(b->s);
    if (!root) {
        send_part(p, own, k, p->me.parent);
    }
}

void dtr__mpi_build_reduce_whole(const dtr__mpi_build *b) {
    passage p = passage_of(b);
    const size_t most = b->state->tuning.staging;
    p.slot = (p.most * b->esize / ALIGN + 1) * ALIGN;
    p.n_slots = dtr__mpi_min(p.n_slots, most / (3 * p.slot) + 1);
    p.stage = dtr__mpi_stage(b->s, (1 + (size_t)p.me.n_children) * p.n_slots * p.slot);
    if (p.stage != NULL) {
        run(&p, receive_sums, pass_sum);
    }
}
