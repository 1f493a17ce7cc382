/* Channels: a ring of cells from one rank to another. The sender zeroes the mark of the next cell
 * before it shows one, so that what is left of older cells is never taken for a new one; one line
 * therefore always stays free. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/kernels.h"
#include "shm_p2p.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

enum {
    CHANNEL_LEAST = 20 << 10,
    CHANNEL_MOST = 512 << 10,
    SHORT_MOST = 64 << 10, /* bytes of a message that is copied through the ring unasked */
    BLOCK_LEAST = 1 << 10, /* of one that goes in a block */
    HELPED_TIMES = 64, /* cma_p2p, up to which a sender that only waits copies half of the way */
    PIECE_MOST = 32 << 10,
    EXPECTED_MOST = 80, /* lines: 4 KiB and what is beside them */
    EARLY_KEPT = 2      /* small messages of each peer that may come early without an allocation */
};

size_t dtr__shm_channel_bytes(int size, uint64_t limit) {
    size_t share = (size_t)(limit / 2) / (size_t)size / DTR__SHM_LINE * DTR__SHM_LINE;
    return share < CHANNEL_LEAST ? 0 : share > CHANNEL_MOST ? CHANNEL_MOST : share;
}

static inline size_t at_most(size_t n, size_t most) {
    return n < most ? n : most;
}

dtr_status dtr__shm_p2p_need(const dtr_group *g, dtr__shm_state *s) {
    if (s->p2p != NULL) {
        return DTR_OK;
    }
    const size_t n = (size_t)g->size;
    dtr__shm_p2p *p = calloc(1, sizeof *p);
    if (p != NULL) {
        p->out = calloc(n, sizeof *p->out);
        p->in = calloc(n, sizeof *p->in);
        p->n_kept = EARLY_KEPT * n;
        p->kept = aligned_alloc(DTR__SHM_LINE, p->n_kept * sizeof *p->kept);
    }
    if (p == NULL || p->out == NULL || p->in == NULL || p->kept == NULL) {
        if (p != NULL) {
            free(p->out);
            free(p->in);
            free(p->kept);
        }
        free(p);
        return DTR_FAIL(NULL, DTR_ERR_NOMEM, "group '%s': no memory for its %d channels", g->name,
                        g->size);
    }
    p->channel_bytes = dtr__shm_channel_bytes(
        s->sharers, dtr__opt_number(&g->world->options, DTR__OPT_SHM_STAGING));
    p->block_bytes = at_most(p->channel_bytes / 8 / DTR__SHM_LINE * DTR__SHM_LINE, SHORT_MOST);
    const size_t ring = p->channel_bytes - p->block_bytes - sizeof(dtr__shm_channel);
    p->short_max = at_most(ring / 4, SHORT_MOST + sizeof(dtr__shm_cell)) - sizeof(dtr__shm_cell);
    p->piece = at_most(ring / 4, PIECE_MOST + DTR__SHM_LINE) - DTR__SHM_LINE;
    for (size_t i = 0; i < p->n_kept; i++) {
        dtr__shm_early_free(p, &p->kept[i]);
    }
    p->trial.buffers = (int)(ring / (p->piece + DTR__SHM_LINE));
    p->stage_nontemporal = g->world->tune.value[DTR__TUNE_STAGE_NONTEMPORAL];
    p->boards = s->boards;
    p->own = s->boards[g->rank];
    s->p2p = p;
    return DTR_OK;
}

void dtr__shm_p2p_free(dtr_group *g, dtr__shm_state *s, bool healthy) {
    dtr__shm_p2p *p = s->p2p;
    if (p == NULL) {
        return;
    }
    for (int r = 0; healthy && r < g->size; r++) {
        dtr__arena_free(g->world, p->out[r].channel);
    }
    for (dtr__shm_early *e = p->early, *next; e != NULL; e = next) {
        next = e->next;
        dtr__shm_early_free(p, e);
    }
    free(p->kept);
    dtr__message_pool_close(&p->pool);
    free(p->out);
    free(p->in);
    free(p);
    s->p2p = NULL;
}

/* ---- channels for the messages of a larger group ---- */

dtr_status dtr__shm_lend(const dtr_group *g, const dtr_group *node, dtr__shm_state *lender,
                         dtr__shm_state **state) {
    dtr__shm_state *s = calloc(1, sizeof *s);
    if (s != NULL) {
        s->place = malloc((size_t)g->size * sizeof *s->place);
        s->boards = calloc((size_t)g->size, sizeof *s->boards);
    }
    if (s == NULL || s->place == NULL || s->boards == NULL) {
        if (s != NULL) {
            free(s->place);
            free(s->boards);
        }
        free(s);
        return DTR_FAIL(NULL, DTR_ERR_NOMEM, "group '%s': no memory for the channels of its nodes",
                        g->name);
    }
    for (int r = 0; r < g->size; r++) {
        s->place[r] = -1;
    }
    for (int i = 0; i < node->size; i++) {
        s->place[node->reported_ranks[i]] = i;
        s->boards[node->reported_ranks[i]] = lender->boards[i];
    }
    s->sharers = node->size;
    lender->lent = true;
    *state = s;
    return DTR_OK;
}

void dtr__shm_lend_end(dtr_group *g, dtr__shm_state *s) {
    dtr__shm_p2p_free(g, s, dtr__group_is_over(g));
    free(s->place);
    free(s->boards);
    free(s);
}

/* A channel's pages are mapped at one go: a page fault takes as long as several messages, and the
 * first turn of a ring would have one every 32 of them. Where the kernel does not know how (before
 * Linux 5.14) or has no memory they come one by one. */
static void map_pages(dtr__shm_channel *channel, size_t nbytes, int how) {
    (void)madvise(channel, nbytes, how);
}

static dtr__shm_cell *cell_at(const dtr__shm_channel *channel, uint64_t line) {
    return (dtr__shm_cell *)(void *)((unsigned char *)(uintptr_t)channel->ring +
                                     line * DTR__SHM_LINE);
}

/* ---- the sender's end ---- */

dtr_status dtr__shm_out_open(const dtr_group *g, dtr__shm_state *s, int peer) {
    dtr__shm_out *out = &s->p2p->out[peer];
    if (out->channel != NULL) {
        return DTR_OK;
    }
    const size_t nbytes = s->p2p->channel_bytes;
    int owner = 0;
    uint64_t offset = 0;
    dtr__shm_channel *channel = dtr__arena_alloc(g->world, nbytes, 4096);
    DTR_REQUIRE(channel != NULL && dtr__arena_find(g->world, channel, nbytes, &owner, &offset),
                NULL, DTR_ERR_NOMEM,
                "group '%s': no node-shared memory for a channel of %zu bytes to rank %d: raise "
                "DTR_ARENA, or make room in /dev/shm",
                g->name, nbytes, peer);
    map_pages(channel, nbytes, MADV_POPULATE_WRITE);
    memset(channel, 0, sizeof *channel + DTR__SHM_LINE); /* and the mark of the first cell */
    const size_t ring = nbytes - s->p2p->block_bytes - sizeof *channel;
    channel->lines = ring / DTR__SHM_LINE;
    out->channel = channel;
    out->block[out->n_blocks++] =
        (dtr__shm_block){ .at = dtr__shm_pack(owner, offset + sizeof *channel + ring),
                          .data = channel->ring + ring };
    atomic_store_explicit(dtr__shm_offer(s, peer, g->rank), dtr__shm_pack(owner, offset) + 1,
                          memory_order_release);
    return DTR_OK;
}

/* `lines` one behind the other for the next cell, and one for the mark behind it; NULL while they
 * are taken. */
static inline dtr__shm_cell *reserve(dtr__shm_out *out, uint64_t lines) {
    dtr__shm_channel *channel = out->channel;
    const uint64_t pad = out->at + lines > channel->lines ? channel->lines - out->at : 0;
    const uint64_t until = out->pushed + pad + lines + 1;
    if (until - out->taken > channel->lines) {
        out->taken = atomic_load_explicit(&channel->taken, memory_order_acquire);
        if (until - out->taken > channel->lines) {
            return NULL;
        }
    }
    if (pad > 0) {
        dtr__shm_cell *rest = cell_at(channel, out->at);
        atomic_store_explicit(&cell_at(channel, 0)->mark, 0, memory_order_relaxed);
        atomic_store_explicit(&rest->mark, pad << 8 | DTR__SHM_PAD, memory_order_release);
        out->pushed += pad;
        out->at = 0;
    }
    /* Before the cell is written to: a receiver that looks meanwhile takes its line away. */
    const uint64_t next = out->at + lines;
    atomic_store_explicit(&cell_at(channel, next == channel->lines ? 0 : next)->mark, 0,
                          memory_order_relaxed);
    return cell_at(channel, out->at);
}

/* What the next cell of this size writes, with the mark that it zeroes, is fetched while this rank
 * has other things to do: most likely its receiver has these lines from the last turn. */
static inline void expect_next(const dtr__shm_out *out, uint64_t lines) {
    if (out->at + lines >= out->channel->lines) {
        return;
    }
    for (uint64_t i = 0; i < lines && i < EXPECTED_MOST; i++) {
        dtr__shm_expect_to_write(cell_at(out->channel, out->at + i));
    }
    dtr__shm_expect_to_write(cell_at(out->channel, out->at + lines));
}

static inline void show(dtr__shm_p2p *p, dtr__shm_out *out, dtr__shm_cell *cell, uint64_t lines,
                        dtr__shm_cell_kind kind) {
    out->at += lines;
    out->pushed += lines;
    if (out->at == out->channel->lines) {
        out->at = 0;
    }
    atomic_store_explicit(&cell->mark, lines << 8 | (uint64_t)kind, memory_order_release);
    p->moves++;
    expect_next(out, lines);
}

static uint64_t lines_of(size_t nbytes) {
    return (nbytes + DTR__SHM_LINE - 1) / DTR__SHM_LINE;
}

static void describe(dtr__shm_cell *cell, size_t count, uint32_t dtype, int tag, const char *site) {
    if (memcmp(cell->site, site, sizeof cell->site) != 0) { /* else the line can stay shared */
        memcpy(cell->site, site, sizeof cell->site);
    }
    cell->count = count;
    cell->tag = tag;
    cell->dtype = (uint8_t)dtype;
}

bool dtr__shm_push_short(dtr__shm_p2p *p, dtr__shm_out *out, const dtr_p2p *op, size_t nbytes,
                         const char *site) {
    const bool small = nbytes <= DTR__SHM_CELL_FIRST,
               blocked = out->n_blocks > 0 && nbytes >= BLOCK_LEAST && nbytes <= p->block_bytes;
    const uint64_t lines = lines_of(sizeof(dtr__shm_cell) + (small || blocked ? 0 : nbytes));
    dtr__shm_cell *cell = reserve(out, lines);
    if (cell == NULL) {
        return false;
    }
    describe(cell, op->buf.count, (uint32_t)op->buf.dtype, op->tag, site);
    const dtr__shm_block *block = blocked ? &out->block[out->n_blocks - 1] : NULL;
    cell->where = blocked ? DTR__SHM_IN_BLOCK : DTR__SHM_IN_CELL;
    if (blocked) {
        cell->at = block->at;
        dtr__copy(block->data, op->buf.data, nbytes);
    } else if (nbytes > 0) {
        dtr__shm_copy(small ? (void *)cell->first : (void *)(cell + 1), op->buf.data, nbytes);
    }
    if (dtr__shm_has_withdrawn(p->own, DTR__SHM_BUFFERS)) {
        return false; /* it may have changed meanwhile */
    }
    out->n_blocks -= blocked;
    show(p, out, cell, lines, DTR__SHM_SHORT);
    return true;
}

/* Then two copies of each rank follow each other, where one by the kernel takes less. */
static bool receives_meanwhile(const dtr__shm_p2p *p, size_t least) {
    const dtr__shm_msg *m = p->posted.head;
    while (m != NULL && m->base.nbytes < least) {
        m = m->next;
    }
    return m != NULL;
}

/* Where the receiver can get at it. What the kernel will not read for it comes by pieces, too. */
static dtr__shm_where place(const dtr_group *g, const dtr__shm_p2p *p, const dtr__shm_msg *m,
                            uint64_t *at) {
    int owner = 0;
    uint64_t offset = 0;
    *at = (uint64_t)(uintptr_t)m->base.data;
    if (m->base.peer == g->rank) {
        return DTR__SHM_OWN;
    }
    if (dtr__arena_find(g->world, m->base.data, m->base.nbytes, &owner, &offset)) {
        *at = dtr__shm_pack(owner, offset);
        return DTR__SHM_IN_ARENA;
    }
    const uint64_t least = g->world->tune.value[DTR__TUNE_CMA_P2P],
                   exchange = g->world->tune.value[DTR__TUNE_CMA_EXCHANGE];
    const bool helps =
        m->waits && !g->world->cpus.oversubscribed && m->base.nbytes / HELPED_TIMES < least;
    if (!dtr__cma_usable(g->world)) {
        return DTR__SHM_BY_PIECES;
    }
    if (m->base.nbytes >= least && !helps) {
        return DTR__SHM_BY_KERNEL;
    }
    if (m->base.nbytes < exchange || m->waits) {
        return DTR__SHM_BY_PIECES;
    }
    return receives_meanwhile(p, exchange) ? DTR__SHM_BY_KERNEL : DTR__SHM_BY_EITHER;
}

bool dtr__shm_push_long(const dtr_group *g, dtr__shm_p2p *p, dtr__shm_out *out, dtr__shm_msg *m) {
    const uint64_t lines = lines_of(sizeof(dtr__shm_cell));
    const int slot = __builtin_ctzll(~out->busy);
    dtr__shm_cell *cell = reserve(out, lines);
    if (cell == NULL) {
        return false;
    }
    describe(cell, m->base.own.count, m->base.own.dtype, m->base.tag, m->base.own.site);
    cell->where = (uint8_t)place(g, p, m, &cell->at);
    cell->slot = m->slot = (uint8_t)slot;
    out->slot[slot] = m;
    out->busy |= UINT64_C(1) << slot;
    atomic_store_explicit(&out->channel->answer[slot], DTR__SHM_SILENT, memory_order_relaxed);
    show(p, out, cell, lines, DTR__SHM_LONG);
    return true;
}

void dtr__shm_push_pieces(dtr__shm_p2p *p, dtr__shm_out *out, dtr__shm_msg *m) {
    while (m->moved < m->base.nbytes) {
        const size_t nbytes = at_most(m->base.nbytes - m->moved, p->piece);
        const uint64_t lines = 1 + lines_of(nbytes);
        dtr__shm_cell *cell = reserve(out, lines);
        if (cell == NULL) {
            return;
        }
        cell->count = nbytes;
        cell->slot = m->slot;
        dtr__shm_trial_copy(&p->trial, p->stage_nontemporal, (unsigned char *)cell + DTR__SHM_LINE,
                            m->base.data + m->moved, nbytes);
        if (dtr__shm_has_withdrawn(p->own, DTR__SHM_BUFFERS)) {
            return;
        }
        m->moved += nbytes;
        show(p, out, cell, lines, DTR__SHM_PIECE);
    }
}

/* ---- the receiver's end ---- */

const dtr__shm_cell *dtr__shm_cell_next(const dtr_group *g, dtr__shm_state *s, int peer) {
    dtr__shm_in *in = &s->p2p->in[peer];
    if (in->channel == NULL) {
        const _Atomic uint64_t *offer = dtr__shm_offer(s, g->rank, peer);
        uint64_t at = offer == NULL ? 0 : atomic_load_explicit(offer, memory_order_acquire);
        if (at == 0) {
            return NULL;
        }
        in->channel = dtr__shm_unpack(g->world, at - 1);
        map_pages(in->channel, s->p2p->channel_bytes, MADV_POPULATE_READ);
    }
    for (;;) {
        const dtr__shm_cell *cell = cell_at(in->channel, in->at);
        uint64_t mark = atomic_load_explicit(&cell->mark, memory_order_acquire);
        if ((mark & 0xff) != DTR__SHM_PAD) {
            return mark == 0 ? NULL : cell;
        }
        dtr__shm_cell_taken(g, s->p2p, peer, cell);
    }
}

const void *dtr__shm_cell_data(const dtr_group *g, const dtr__shm_cell *cell, size_t nbytes) {
    return cell->where == DTR__SHM_IN_BLOCK ? dtr__shm_unpack(g->world, cell->at)
           : nbytes <= DTR__SHM_CELL_FIRST  ? (const void *)cell->first
                                            : (const void *)(cell + 1);
}

void dtr__shm_cell_taken(const dtr_group *g, dtr__shm_p2p *p, int peer, const dtr__shm_cell *cell) {
    dtr__shm_in *in = &p->in[peer];
    dtr__shm_out *out = &p->out[peer];
    if (dtr__shm_cell_kind_of(cell) == DTR__SHM_SHORT && cell->where == DTR__SHM_IN_BLOCK) {
        out->block[out->n_blocks++] =
            (dtr__shm_block){ .at = cell->at, .data = dtr__shm_unpack(g->world, cell->at) };
    }
    const uint64_t lines = atomic_load_explicit(&cell->mark, memory_order_relaxed) >> 8;
    in->at += lines;
    in->taken += lines;
    if (in->at == in->channel->lines) {
        in->at = 0;
    }
    atomic_store_explicit(&in->channel->taken, in->taken, memory_order_release);
    p->moves++;
}
