/* Sums in rank order of what many ranks bring: a step of a collective over nodes. Each rank brings
 * the inputs of its node's ranks, in their order, as rows. A chain goes through the ranks, each of
 * which adds its rows to what those before it have made: a link carries every byte once, where an
 * exchange of inputs carries each node's as often as it has ranks. The last rank has the result and
 * sends it to the root; of an exscan each keeps what has come. Data goes in segments, of which one
 * travels while another is added. */
#include "mpi_internal.h"

enum {
    ALIGN = 64,    /* bytes: segments begin on cache lines */
    SLOTS = 16,    /* segments under way at once */
    AHEAD = 8,     /* of which so many may yet have to come */
    HOP = 10 << 10 /* bytes that travel in the time that a message costs */
};

typedef struct chain {
    const dtr__mpi_build *b;
    int from, to;      /* ranks: -1 before the first, and behind a last one that keeps the result */
    bool keeps;        /* what comes is the own result */
    size_t most, slot; /* of a segment: elements, bytes */
    char *stage;       /* [SLOTS] */
    size_t received[SLOTS], sent[SLOTS]; /* transfers */
} chain;

/* Segment number k: elements [at, at + n) of a block that begins at `begin`. Each block has its
 * rows in one piece. */
typedef struct part {
    size_t k, block, begin, at, n;
} part;

static size_t length_of(const chain *c, size_t block) {
    const dtr__call *call = c->b->call;
    return call->in_counts != NULL ? call->in_counts[block] : call->in_count;
}

/* The one behind it; at first it has no elements. False: there is none. */
static bool advance(const chain *c, part *p) {
    const size_t n_blocks = c->b->call->in_counts != NULL ? (size_t)c->b->size : 1;
    p->k += p->n != 0;
    p->at += p->n;
    for (; p->block < n_blocks; p->block++) {
        const size_t length = length_of(c, p->block);
        if (p->at < length) {
            p->n = dtr__mpi_min(c->most, length - p->at);
            return true;
        }
        p->begin += length;
        p->at = 0;
    }
    return false;
}

static char *slot_of(const chain *c, const part *p) {
    return c->stage + p->k % SLOTS * c->slot;
}

static char *result_of(const chain *c, const part *p) {
    return (char *)c->b->call->out + (p->begin + p->at) * c->b->esize;
}

/* Its slot is free. */
static void await_slot(const chain *c, const part *p) {
    const size_t mark = c->sent[p->k % SLOTS];
    if (p->k >= SLOTS && c->to >= 0) {
        dtr__mpi_wait(c->b->s, mark, mark + 1);
    }
}

static void receive(chain *c, const part *p) {
    if (c->from >= 0) {
        await_slot(c, p);
        c->received[p->k % SLOTS] = dtr__mpi_mark(c->b->s);
        dtr__mpi_recv(c->b->s, c->keeps ? result_of(c, p) : slot_of(c, p), p->n * c->b->esize,
                      c->from);
    }
}

/* What has come, then the own rows. */
static void add(const chain *c, const part *p, char *sum, const char *came) {
    const dtr__mpi_build *b = c->b;
    const int rows = b->call->rows;
    const char *row = (const char *)b->call->in + (p->begin * (size_t)rows + p->at) * b->esize;
    dtr__mpi_reduce(b->s, sum, p->n, (came != NULL) + rows,
                    b->rank == b->size - 1 ? b->s->divisor : 1);
    if (came != NULL) {
        dtr__mpi_source(b->s, came);
    }
    for (int i = 0; i < rows; i++) {
        dtr__mpi_source(b->s, row);
        row += length_of(c, p->block) * b->esize;
    }
}

/* What goes on takes memory of a receiver that is late, so one of each window is over only when it
 * has been received. */
static void pass(chain *c, const part *p) {
    const dtr__mpi_build *b = c->b;
    const size_t mark = c->received[p->k % SLOTS];
    const char *came = c->from < 0 ? NULL : c->keeps ? result_of(c, p) : slot_of(c, p);
    if (came != NULL) {
        dtr__mpi_wait(b->s, mark, mark + 1);
    } else {
        await_slot(c, p);
    }
    if (c->to >= 0) {
        add(c, p, slot_of(c, p), came);
        c->sent[p->k % SLOTS] = dtr__mpi_mark(b->s);
        (p->k % SLOTS == 0 ? dtr__mpi_send_accepted : dtr__mpi_send)(b->s, slot_of(c, p),
                                                                     p->n * b->esize, c->to);
    } else if (!c->keeps) {
        add(c, p, result_of(c, p), came);
    }
    if (!c->keeps && b->rank == b->call->root && b->rank != b->size - 1) {
        dtr__mpi_recv(b->s, result_of(c, p), p->n * b->esize, b->size - 1);
    }
}

/* So long that messages cost what their bytes take to fill the chain; in whole lines. */
static size_t elements_of_segment(const dtr__mpi_build *b) {
    const size_t nbytes = b->call->in_count * b->esize, unit = ALIGN / b->esize;
    size_t n = 1;
    while (n * n < nbytes / HOP * (size_t)b->size) {
        n++;
    }
    const size_t most = dtr__mpi_min(nbytes / n, b->state->tuning.message) / b->esize / unit;
    return (most > 0 ? most : 1) * unit;
}

void dtr__mpi_build_ordered(const dtr__mpi_build *b) {
    const int last = b->size - 1;
    chain c = { .b = b,
                .keeps = b->call->kind == DTR__K_EXSCAN,
                .from = b->rank - 1,
                .most = elements_of_segment(b) };
    c.to = b->rank != last ? b->rank + 1 : c.keeps || b->call->root == last ? -1 : b->call->root;
    c.slot = c.most * b->esize;
    c.stage = dtr__mpi_stage(b->s, SLOTS * c.slot);
    if (c.stage == NULL) {
        return;
    }
    part coming = { 0 }, p = { 0 };
    bool more = advance(&c, &coming);
    while (advance(&c, &p)) {
        for (; more && coming.k < p.k + AHEAD; more = advance(&c, &coming)) {
            receive(&c, &coming);
        }
        pass(&c, &p);
    }
    dtr__mpi_wait_all(b->s);
}
