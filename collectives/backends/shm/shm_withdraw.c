/* Memory that a rank lends to its peers while an operation lasts, and has back when it ends.
 *
 * A reduction of node-shared buffers is the one place where a rank stores into memory of another
 * one's program. When a group breaks, each rank ends its works by itself, also while a peer that
 * does not know of it yet is in the midst of its slice. So the two agree, piece by piece:
 *
 *   who stores                               who takes its memory back
 *   A1  writing = this piece                 B1  withdrawn = 1
 *   A2  is anybody's withdrawn set?          B2  whose writing is set?
 *   A3  no: store the piece                  B3  wait until that has changed
 *   A4  writing = nothing, or the next       B4  the memory is the program's again
 *
 * A1, A2, B1 and B2 are sequentially consistent: in the one order of them either A1 comes before
 * B2, and B waits, or B1 comes before A2, and A stores nothing. That is what a plain store and a
 * load behind it do not give on any processor, x86 included, whose store buffer lets A2 be done
 * before others see A1. On x86 A1 is an exchange, which empties that buffer, once per 256 KiB; on
 * ARM STLR and LDAR. A3 cannot move up before A2, which acquires, nor down behind A4, which
 * releases; non-temporal stores, which a release does not order on x86, are fenced by the kernel
 * that makes them. B3 acquires, so that what B does next comes after A3. Any change of `writing`
 * is enough: B has not seen the next piece at B2, so B1 comes before that piece's A2.
 * tests/unit/shm_lent_model.c tries all orders of these steps, with store buffers.
 *
 * B does not wait for ever. A writer that is stopped, or has died, will at most store the piece
 * that it has announced when it goes on. The pages of that piece become private to this process:
 * its own pointers stay good, what the writer stores goes to pages that nobody reads any more,
 * and their place is never given to anybody else (dtr__arena_keep).
 *
 * All else that a rank stores into memory of others belongs to the library: slots, marks and texts
 * in the blocks that a rank keeps for others, the ends of channels, answers to messages, and what
 * two ranks hand to each other to write into, staging memory and blocks of channels. Of a broken
 * group that stays where it is until the world ends. */
#include "control/peers.h"
#include "core/work.h"
#include "shm_internal.h"

/* A piece takes some 50 us, longer where many ranks share a core. */
static const double PATIENCE_S = 0.5, FIRST_LOOK_S = 0.02;
/* An own thread is alive as long as this one: it waits for a core, at worst for many seconds. */
static const double OWN_PATIENCE_S = 10;

enum { LINE = 64 };
_Static_assert(DTR__SHM_AT_ONCE / LINE < 1 << 15, "lines of a piece in a mark");

/* `writing`: from which line of every output on, how many, and which slot says where those are. */
static uint64_t mark_of(uint64_t n, size_t at, size_t nbytes) {
    return (uint64_t)(at / LINE) << 17 | (uint64_t)((nbytes + LINE - 1) / LINE) << 2 |
           (n & 1) << 1 | 1;
}

bool dtr__shm_may_write(const dtr_group *g, const dtr__shm_state *s, size_t at, size_t nbytes) {
    dtr__shm_board *own = s->boards[g->rank];
    atomic_store_explicit(&own->writing, mark_of(s->op.n, at, nbytes), memory_order_seq_cst);
    for (int r = 0; r < g->size; r++) {
        if (atomic_load_explicit(&s->boards[r]->withdrawn, memory_order_seq_cst) != DTR__SHM_KEPT) {
            dtr__shm_has_written(g, s);
            return false;
        }
    }
    return true;
}

void dtr__shm_has_written(const dtr_group *g, const dtr__shm_state *s) {
    atomic_store_explicit(&s->boards[g->rank]->writing, 0, memory_order_release);
}

/* ---- the own threads ---- */

static _Thread_local __attribute__((tls_model("initial-exec"))) char this_thread;

bool dtr__shm_enter(dtr__shm_board *own) {
    const uint64_t me = (uint64_t)(uintptr_t)&this_thread;
    atomic_store_explicit(&own->copying, me, memory_order_seq_cst);
    if (atomic_load_explicit(&own->withdrawn, memory_order_seq_cst) == DTR__SHM_KEPT) {
        return true;
    }
    dtr__shm_leave(own);
    return false;
}

void dtr__shm_leave(dtr__shm_board *own) {
    atomic_store_explicit(&own->copying, 0, memory_order_release);
}

/* ---- taking it back ---- */

/* What all waiting for writers together may take, and apart from that for own threads. */
typedef struct patience {
    double limit_s, end, look; /* 0: nothing has been waited for */
} patience;

/* False: `word` is what it was. */
static bool has_changed(const dtr_group *g, int r, const _Atomic uint64_t *word, uint64_t from,
                        patience *p) {
    dtr__backoff wait = { 0 };
    const int local = g->world->local_rank_of[g->world_ranks[r]];
    while (atomic_load_explicit(word, memory_order_acquire) == from) {
        const double now = dtr__now();
        p->end = p->end != 0 ? p->end : now + p->limit_s;
        p->look = p->look != 0 ? p->look : now + FIRST_LOOK_S;
        if (now >= p->end) {
            return false;
        }
        if (now >= p->look && r != g->rank && g->world->control.peers != NULL) {
            if (!dtr__peer_runs(g->world, local)) { /* it will be no sooner than that goes on */
                return atomic_load_explicit(word, memory_order_acquire) != from;
            }
            p->look = now + FIRST_LOOK_S;
        }
        dtr__backoff_pause(g->world, &wait);
    }
    return true;
}

/* `lent_out` stays that operation's until the writer has shown that it has finished. */
static bool keep(const dtr_group *g, const dtr__shm_state *s, uint64_t mark) {
    const uint64_t out_at = atomic_load_explicit(&s->lent_out[mark >> 1 & 1], memory_order_relaxed);
    const uint64_t lines = mark >> 2 & ((1 << 15) - 1);
    return out_at == DTR__SHM_NOWHERE ||
           dtr__arena_keep(g->world, dtr__shm_offset(out_at) + (mark >> 17) * LINE, lines * LINE);
}

void dtr__shm_take_back(const dtr_group *g, dtr__shm_state *s) {
    dtr__shm_board *own = s->boards[g->rank];
    patience p = { PATIENCE_S, 0, 0 }, own_p = { OWN_PATIENCE_S, 0, 0 };
    dtr__shm_withdraw(own, DTR__SHM_BUFFERS);
    for (int r = 0; r < g->size; r++) {
        const uint64_t mark = atomic_load_explicit(&s->boards[r]->writing, memory_order_seq_cst);
        if (r != g->rank && mark != 0 && !has_changed(g, r, &s->boards[r]->writing, mark, &p)) {
            atomic_fetch_add(keep(g, s, mark) ? &s->n_kept : &s->n_open, 1);
        }
    }
    /* The other threads of this rank, which copy results into the program's memory. */
    const uint64_t thread = atomic_load_explicit(&own->copying, memory_order_seq_cst);
    if (thread != 0 && thread != (uint64_t)(uintptr_t)&this_thread &&
        !has_changed(g, g->rank, &own->copying, thread, &own_p)) {
        atomic_fetch_add(&s->n_stuck, 1);
    }
}

void dtr__shm_warn_kept(const dtr_group *g, dtr__shm_state *s) {
    const int kept = atomic_exchange(&s->n_kept, 0), open = atomic_exchange(&s->n_open, 0);
    if (atomic_exchange(&s->n_stuck, 0) > 0) {
        DTR_WARN(g->world,
                 "group '%s': another thread of this rank has stood still for %g s in the midst of "
                 "a copy: when it goes on it finishes that piece, in buffers of works that have "
                 "ended",
                 g->name, OWN_PATIENCE_S);
    }
    if (kept > 0) {
        DTR_WARN(
            g->world,
            "group '%s': %d rank%s stopped, or died, while %s stored results here; the pages of "
            "that are no longer shared with the node",
            g->name, kept, kept > 1 ? "s" : "", kept > 1 ? "they" : "it");
    }
    if (open > 0) {
        DTR_WARN(
            g->world,
            "group '%s': %d rank%s stopped while %s stored results here, and the kernel has no "
            "memory to make these pages private: up to 256 KiB of the outputs may still change",
            g->name, open, open > 1 ? "s" : "", open > 1 ? "they" : "it");
    }
}

bool dtr__shm_lost_out(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c) {
    const bool others_use_it = s->op.zero_copy ? c->kind != DTR__K_REDUCE || g->rank == c->root
                                               : dtr__shm_slot_of(s, g->rank)->out_raw == 0;
    int owner = 0;
    uint64_t offset = 0;
    return dtr__arena_version(g->world) != s->shared_as_of && others_use_it &&
           !dtr__arena_find(g->world, c->out, c->out_count * dtr_dtype_size(c->dtype), &owner,
                            &offset);
}

dtr_status dtr__shm_fail_lost_out(const dtr_group *g, const dtr_work *w) {
    dtr__error_context ctx = dtr__work_context(w);
    return DTR_FAIL(&ctx, DTR_ERR_SYSTEM,
                    "group '%s': the output begins or ends in a page that a stopped rank may still "
                    "store into for another group that has broken; the page is no longer shared "
                    "with the node, and the result did not arrive in it",
                    g->name);
}
