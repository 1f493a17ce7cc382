/* Plain buffers of peers, read by the kernel straight out of their process: one copy instead of
 * two. Movement reads from there as it would from node-shared memory. An allreduce is cut into one
 * slice per rank: each reduces its slice piece by piece and says how far it is, and everyone
 * fetches the finished pieces of the others. Nobody ever writes into a peer's plain memory, so a
 * rank that has given up and gone on is safe from those that have not noticed yet. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/work.h"
#include "failure/failure.h"
#include "kernels/kernels.h"
#include "shm_internal.h"

static int local_rank_of(const dtr_group *g, int rank) {
    return g->world->local_rank_of[g->world_ranks[rank]];
}

/* Each byte goes to one rank, and the giver has more to do meanwhile: in an exscan it fills its
 * output, whose non-temporal stores gain nothing beside reads by the kernel. */
static bool deals_out(const dtr_group *g, dtr__kind kind, size_t nbytes) {
    return (dtr__shm_scatters(kind) && !dtr__kind_reduces(kind)) ||
           (kind == DTR__K_EXSCAN && g->size == 2 && nbytes < DTR__FILL_NONTEMPORAL);
}

bool dtr__shm_attach_fits(const dtr_group *g, const dtr__call *c, size_t nbytes) {
    const uint64_t *tune = g->world->tune.value;
    if (!dtr__cma_usable(g->world)) {
        return false;
    }
    if (c->kind == DTR__K_ALLREDUCE) {
        return nbytes >= tune[DTR__TUNE_CMA_REDUCE] && nbytes < tune[DTR__TUNE_CMA_END];
    }
    return nbytes >= tune[DTR__TUNE_CMA_COPY] ||
           (nbytes >= tune[DTR__TUNE_CMA_DEAL] && deals_out(g, c->kind, nbytes));
}

/* One end of a call: in node-shared memory, or where the kernel can read it. */
static bool show_end(const dtr_group *g, const void *p, size_t nbytes, uint64_t *at, uint8_t *raw) {
    int owner = 0;
    uint64_t offset = 0;
    *raw = !dtr__arena_find(g->world, p, nbytes, &owner, &offset);
    *at = *raw ? (uint64_t)(uintptr_t)p : dtr__shm_pack(owner, offset);
    return !*raw || dtr__cma_reaches(p, nbytes);
}

void dtr__shm_attach_offer(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c,
                           size_t nbytes) {
    dtr__shm_slot *slot = dtr__shm_slot_of(s, g->rank);
    dtr__shm_detail *detail = dtr__shm_detail_of(s, g->rank);
    slot->sliced = dtr__shm_attach_fits(g, c, nbytes) &&
                   show_end(g, c->in, nbytes, &detail->in_at, &slot->in_raw) &&
                   show_end(g, c->out, nbytes, &detail->out_at, &slot->out_raw);
}

static bool read_peer(const dtr_group *g, dtr__shm_state *s, int rank, void *to, uint64_t from,
                      size_t nbytes) {
    if (dtr__cma_read(g->world, local_rank_of(g, rank), to, from, nbytes)) {
        return true;
    }
    s->op.attach_errno = errno;
    s->op.attach_rank = rank;
    return false;
}

bool dtr__shm_attach_copy(const dtr_group *g, dtr__shm_state *s, int rank, void *to, size_t offset,
                          size_t nbytes) {
    return read_peer(g, s, rank, to, dtr__shm_slot_of(s, rank)->at + offset, nbytes);
}

size_t dtr__shm_attach_piece(const dtr_group *g) {
    const uint64_t limit = dtr__opt_number(&g->world->options, DTR__OPT_SHM_STAGING);
    size_t most = dtr__shm_bounce_bytes(limit) / (size_t)g->size / 64 * 64;
    size_t wish = g->world->tune.value[DTR__TUNE_CMA_PIECE] / 64 * 64;
    return most < wish ? most : wish;
}

unsigned char *dtr__shm_attach_bounce(const dtr_group *g, dtr__shm_state *s) {
    if (s->bounce == NULL) {
        s->bounce = aligned_alloc(64, dtr__shm_attach_piece(g) * (size_t)g->size);
        s->op.attach_errno = s->bounce == NULL ? ENOMEM : 0;
        s->op.attach_rank = g->rank;
    }
    return s->bounce;
}

/* Cut at multiples of 64 bytes. */
size_t dtr__shm_slice_at(const dtr_group *g, size_t nbytes, int r) {
    size_t lines = (nbytes + 63) / 64, at = lines * (size_t)r / (size_t)g->size * 64;
    return at < nbytes ? at : nbytes;
}

typedef struct span {
    size_t at, nbytes; /* nbytes 0: there is no such piece */
} span;

static span piece_of(const dtr_group *g, const dtr__call *c, size_t size, int r, size_t k) {
    size_t nbytes = c->in_count * size, step = dtr__shm_attach_piece(g);
    size_t at = dtr__shm_slice_at(g, nbytes, r) + k * step,
           end = dtr__shm_slice_at(g, nbytes, r + 1);
    return (span){ at, at >= end ? 0 : end - at < step ? end - at : step };
}

/* Reduce a piece of the own slice into the own output. */
static bool reduce_piece(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, span p) {
    const void *from[DTR__SHM_MAX_RANKS];
    double factors[DTR__SHM_MAX_RANKS];
    unsigned char *bounce = dtr__shm_attach_bounce(g, s);
    if (bounce == NULL) {
        return false;
    }
    for (int r = 0; r < g->size; r++) {
        const dtr__shm_slot *slot = dtr__shm_slot_of(s, r);
        const dtr__shm_detail *detail = dtr__shm_detail_of(s, r);
        factors[r] = detail->premul;
        if (r == g->rank) {
            from[r] = (const char *)c->in + p.at;
        } else if (!slot->in_raw) {
            from[r] = (const char *)dtr__shm_unpack(g->world, detail->in_at) + p.at;
        } else {
            from[r] = bounce + (size_t)r * dtr__shm_attach_piece(g);
            if (!read_peer(g, s, r, bounce + (size_t)r * dtr__shm_attach_piece(g),
                           detail->in_at + p.at, p.nbytes)) {
                return false;
            }
        }
    }
    /* No non-temporal stores: the others fetch it from the caches. */
    dtr__reduce((char *)c->out + p.at, from, g->size, p.nbytes / s->op.size, c->dtype,
                dtr__kernel_op(g, c), c->divisor, c->op == DTR_PREMUL_SUM ? factors : NULL);
    return true;
}

/* Fetch piece `k` of all other slices as far as they are reduced; *moved bytes. True when all of it
 * is here. */
static bool fetch_pieces(const dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t *moved) {
    dtr__shm_op *op = &s->op;
    for (; op->copied < g->size; op->copied++) {
        int r = (g->rank + op->copied) % g->size;
        span p = piece_of(g, c, op->size, r, op->fetched);
        if (p.nbytes == 0 || r == g->rank) {
            continue;
        }
        if (atomic_load_explicit(&s->rank[r]->reduced, memory_order_acquire) <
            dtr__shm_mark(op->n, op->fetched)) {
            return false;
        }
        const dtr__shm_slot *slot = dtr__shm_slot_of(s, r);
        const uint64_t out_at = dtr__shm_detail_of(s, r)->out_at;
        char *to = (char *)c->out + p.at;
        if (!slot->out_raw) {
            memcpy(to, (const char *)dtr__shm_unpack(g->world, out_at) + p.at, p.nbytes);
        } else if (!read_peer(g, s, r, to, out_at + p.at, p.nbytes)) {
            return false;
        }
        *moved += p.nbytes;
    }
    op->copied = 0;
    op->fetched++;
    return true;
}

bool dtr__shm_attach_pull(dtr_group *g, dtr__shm_state *s, const dtr__call *c, size_t budget,
                          bool *any_moved) {
    dtr__shm_op *op = &s->op;
    size_t longest = 0; /* of all slices; they differ by a cache line */
    for (int r = 0; r < g->size; r++) {
        size_t n = dtr__shm_slice_at(g, c->in_count * op->size, r + 1) -
                   dtr__shm_slice_at(g, c->in_count * op->size, r);
        longest = n > longest ? n : longest;
    }
    const size_t pieces = (longest + dtr__shm_attach_piece(g) - 1) / dtr__shm_attach_piece(g);
    for (size_t total = 0; op->attach_errno == 0 && total < budget;) {
        span p = piece_of(g, c, op->size, g->rank, op->pulled);
        size_t moved = 0;
        if (p.nbytes > 0) {
            if (!reduce_piece(g, s, c, p)) {
                return false;
            }
            if (dtr__shm_lost_out(g, s, c)) {
                op->attach_errno = ESTALE; /* the others would read what was there before */
                return false;
            }
            atomic_store_explicit(&s->me->reduced, dtr__shm_mark(op->n, op->pulled),
                                  memory_order_release);
            op->pulled++;
            moved = p.nbytes * (size_t)g->size;
        }
        bool fetched = op->fetched < pieces && fetch_pieces(g, s, c, &moved);
        *any_moved = *any_moved || moved > 0;
        total += moved;
        if (p.nbytes == 0 && op->fetched >= pieces) {
            return true;
        }
        if (p.nbytes == 0 && !fetched) {
            return false;
        }
    }
    return false;
}

dtr_status dtr__shm_attach_failed(dtr_group *g, dtr__shm_state *s, const dtr_work *w) {
    dtr__error_context ctx = dtr__work_context(w);
    const dtr__shm_op *op = &s->op;
    int peer = op->attach_rank;
    dtr_status status =
        op->attach_errno == ENOMEM && peer == g->rank
            ? DTR_FAIL(&ctx, DTR_ERR_NOMEM, "rank %d of group '%s': no memory for %zu bytes", peer,
                       g->name, dtr__shm_attach_piece(g) * (size_t)g->size)
        : op->attach_errno == ESTALE ? dtr__shm_fail_lost_out(g, w)
        : op->attach_errno == ESRCH
            ? DTR_FAIL(&ctx, DTR_ERR_REMOTE,
                       "rank %d (world %d) of group '%s' has ended while rank %d read its buffer",
                       peer, g->world_ranks[peer], g->name, g->rank)
            : DTR_FAIL(&ctx, DTR_ERR_SYSTEM,
                       "rank %d of group '%s' could not read the buffer of rank %d (world %d): %s; "
                       "DTR_CMA=off makes such buffers go through a staging buffer",
                       g->rank, g->name, peer, g->world_ranks[peer], strerror(op->attach_errno));
    dtr__group_record_failure(g, status);
    if (!dtr__shm_publish(g, s, status, dtr_last_error_message())) {
        return dtr__shm_broken(g, s, w); /* another was first */
    }
    s->agreed_break = true;
    return status;
}
