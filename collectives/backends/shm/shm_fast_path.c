/* The fast path on shared memory: a slot with all the data in it, and the others' slots polled
 * until they are filled. Slots say the same as in shm_collectives.c, so that each rank may go
 * either way. What does not fit into slots takes the steps of that file, without a work.
 */
#include <sched.h>
#include <string.h>

#include "core/call_site.h"
#include "core/check.h"
#include "core/signature.h"
#include "core/work.h"
#include "engine/fast_entry.h"
#include "kernels/kernels.h"
#include "kernels/user_ops.h"
#include "shm_p2p.h"

enum {
    EXPECTED = 1024,         /* bytes of the next slot that are fetched ahead, */
    EXPECTED_LATER = 4096,   /* ... and up to here once the data of this one has come */
    TOGETHER = 256,          /* bytes beside a slot that are fetched with it */
    WHOLE_MOST = 256 * 1024, /* bytes of calls that do not fit into slots */
    FEW_RANKS = 8,           /* whose next slots are fetched ahead */
    AHEAD = 3,               /* slots from the present one to the own one that is fetched while
                                others lag behind: to fetch one takes longer than such a call */
    POLLS_ELSEWHERE = 400,   /* at single ranks, while all that are missing run elsewhere */
};

static bool scatters(dtr__kind k) {
    return dtr__root_gives(k) && dtr__shm_scatters(k);
}

/* Whether a rank may leave such a call before all have come: it takes from some of them only. That
 * is safe because the first ones of such calls wait for everybody: on the first operation on which
 * ranks disagree, some rank calls something else than before, and compares the slots of all. The
 * others learn of it at their next call. */
static bool may_run_ahead(const dtr_group *g, const dtr__call *c, const dtr__moves *m) {
    return dtr__shm_one_way(c->kind) && (!m->gives || m->give <= DTR__SHM_RUN_AHEAD_MOST) &&
           !dtr__at_detail(g->world);
}

/* Bytes of the details that each slot of such calls may use, so that there are enough of them. */
static size_t place_bytes(const dtr__moves *m) {
    size_t nbytes = DTR__SHM_RUN_AHEAD;
    while (m->runs_ahead && nbytes < m->give) {
        nbytes *= 2;
    }
    return nbytes;
}

static uint64_t places(const dtr__moves *m) {
    return 2 * DTR__SHM_INLINE / m->place;
}

static size_t place_of(const dtr__moves *m, uint64_t n) {
    return m->runs_ahead ? (size_t)(n % places(m) / 2) * m->place : 0;
}

/* Whether all data of such calls fits into slots. Of v-forms a rank may not know what the others
 * give, but what has just ended has shown it. */
static bool is_small(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, size_t give) {
    size_t most = c->kind == DTR__K_SCATTER ? c->out_count * dtr_dtype_size(c->dtype) : 0;
    most = most * (size_t)g->size > give ? most * (size_t)g->size : give;
    if (dtr__rules[c->kind].arrays) {
        return most <= dtr__shm_inline_most(g, c->kind) && s->op.quiet;
    }
    return most <= dtr__shm_inline_most(g, c->kind) && (most == 0) == (c->kind == DTR__K_BARRIER);
}

static void set_part(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, int r,
                     dtr__part *part) {
    bool own = r == g->rank, own_of_root = own && scatters(c->kind);
    *part = (dtr__part){ .take = own_of_root ? c->out_count * dtr_dtype_size(c->dtype)
                                             : dtr__shm_wanted(g, c, r) };
    if (part->take == 0) {
        return;
    }
    part->to = (size_t)(dtr__shm_target(g, c, r) - (unsigned char *)c->out);
    if (own) {
        (void)dtr__shm_piece(g, c, (size_t)r, &part->at);
    } else if (!dtr__shm_has_table(c->kind)) {
        part->at = dtr__shm_wanted_at(g, s, c, r);
    }
}

/* A prefix over one rank, where the operator leaves a single input as it is. */
static bool is_copy_of_one(const dtr__call *c, const dtr__moves *m) {
    const bool plain =
        c->op == DTR_SUM || c->op == DTR_PROD || c->op == DTR_MIN || c->op == DTR_MAX;
    return dtr__rules[c->kind].prefix != NO_PREFIX && m->until - m->from == 1 && plain &&
           c->dtype != DTR_BOOL;
}

bool dtr__shm_fast_path_accept(dtr_group *g, void *state, const dtr__call *c, dtr__moves *m) {
    const dtr__shm_state *s = state;
    size_t give = c->in_count * dtr_dtype_size(c->dtype);
    dtr__part *parts = m->parts;
    if (dtr__kind_is_p2p(c->kind)) {
        return dtr__shm_p2p_fast_accept(s, c);
    }
    const bool zero = c->kind == DTR__K_ALLREDUCE && s->op.zero_copy && give <= WHOLE_MOST;
    if (c->op == DTR_PREMUL_SUM) {
        return false;
    }
    if (!zero && !is_small(g, s, c, give)) {
        *m = (dtr__moves){ .parts = parts, .whole = true };
        return give <= WHOLE_MOST && c->out_count * dtr_dtype_size(c->dtype) <= WHOLE_MOST;
    }
    if (zero && c->in == c->out && dtr__shm_stage_need(g, state) != DTR_OK) {
        return false; /* such a call had no use for it if its data fits into a slot */
    }
    *m = (dtr__moves){ .gives = !zero && give > 0 && dtr__shm_gives(g, c, g->rank),
                       .give = give,
                       .zero = zero,
                       .parts = parts,
                       .pairs = c->kind == DTR__K_GATHERV || dtr__shm_has_table(c->kind) };
    m->runs_ahead = may_run_ahead(g, c, m);
    m->place = place_bytes(m);
    if (!dtr__shm_reads(g, c, g->rank) && !(scatters(c->kind) && g->rank == c->root)) {
        return true;
    }
    bool one = dtr__root_gives(c->kind);
    m->from = one ? c->root : 0;
    m->until = c->out_count == 0 ? m->from
               : one             ? c->root + 1
                                 : dtr__n_sources(c->kind, g->rank, g->size);
    m->reduces = dtr__kind_reduces(c->kind) && m->until > m->from;
    m->fills = dtr__kind_reduces(c->kind) && c->out_count > 0 && !m->reduces &&
               !dtr__op_is_user(c->op); /* which has no identity */
    if (m->fills && give <= sizeof m->identity) {
        dtr__fill_identity(m->identity, c->out_count, c->out_count, c->dtype, c->op);
    }
    if (m->reduces && is_copy_of_one(c, m)) {
        m->reduces = false;
        parts[m->from] = (dtr__part){ .at = dtr__shm_wanted_at(g, s, c, m->from),
                                      .take = c->out_count * dtr_dtype_size(c->dtype) };
        return true;
    }
    if (m->reduces) {
        m->at = dtr__shm_wanted_at(g, s, c, m->from);
        if (!dtr__reduce_keep(&m->reducer, c->out_count, c->dtype, dtr__kernel_op(g, c))) {
            m->reducer.loop = NULL;
        }
        return true;
    }
    for (int r = m->from; r < m->until && !m->fills; r++) {
        set_part(g, s, c, r, &parts[r]);
    }
    return true;
}

static bool runs_ahead(const dtr__shm_state *s, const dtr__fast_path *p) {
    return p->moves.runs_ahead && s->row_count >= DTR__SHM_RUN_AHEAD_AFTER;
}

static void describe(const dtr_group *g, dtr__shm_state *s, const dtr__fast_path *p) {
    const uint64_t n = s->op.n;
    const dtr__moves *m = &p->moves;
    dtr__shm_slot *slot = &s->me->slot[n % DTR__SHM_SLOT_COUNT];
    dtr__shm_describe(slot, &p->call);
    slot->mode = !m->gives                    ? DTR__SHM_NOTHING
                 : m->give <= DTR__SHM_BESIDE ? DTR__SHM_IN_LINE
                                              : DTR__SHM_IN_SLOT;
    slot->at = place_of(m, n);
    s->described[n % DTR__SHM_SLOT_COUNT] = p->id;
    if (s->described_detail[n & 1] == p->id) {
        return;
    }
    dtr__shm_describe_detail(&s->me->detail[n & 1], &p->call);
    if (p->call.kind == DTR__K_ALLTOALLV || (m->gives && dtr__shm_has_table(p->call.kind))) {
        dtr__shm_write_table(g, s, &p->call);
    }
    s->described_detail[n & 1] = p->id;
}

/* The same slot as that of a call that goes the ordinary way. */
static void show_places(dtr__shm_state *s, const dtr__call *c, dtr__shm_slot *slot) {
    dtr__shm_detail *detail = &s->me->detail[s->op.n & 1];
    const bool same = c->in == c->out;
    slot->zero_copy = 1;
    slot->mode = same ? DTR__SHM_STAGED : DTR__SHM_DIRECT;
    slot->shift = same;
    slot->at = same ? s->stage_at : s->in_at;
    slot->first = (uint8_t)s->stage_next;
    atomic_store_explicit(&s->lent_out[s->op.n & 1], s->out_at, memory_order_relaxed);
    if (detail->in_at != s->in_at ||
        detail->out_at != s->out_at) { /* else the others have the line */
        detail->in_at = s->in_at;
        detail->out_at = s->out_at;
    }
    dtr__shm_expect_to_write(&s->me->finished);
}

/* False while somebody may still read what was in the slot last. */
static bool show(const dtr_group *g, dtr__shm_state *s, const dtr__fast_path *p) {
    const uint64_t n = s->op.n;
    const dtr__moves *m = &p->moves;
    dtr__shm_slot *slot = &s->me->slot[n % DTR__SHM_SLOT_COUNT];
    const bool line = !m->gives || m->give <= DTR__SHM_BESIDE;
    const bool many = (line || m->runs_ahead) && !m->zero && s->described_detail[n & 1] == p->id;
    if (!dtr__shm_is_free(g, s, !many ? 1 : (line ? DTR__SHM_SLOT_COUNT : places(m)) - 1)) {
        return false;
    }
    if (s->described[n % DTR__SHM_SLOT_COUNT] != p->id || s->described_detail[n & 1] != p->id) {
        describe(g, s, p);
    }
    if (m->gives) {
        dtr__shm_copy(dtr__shm_shown(s, g->rank), p->call.in, m->give);
    } else if (m->zero) {
        show_places(s, &p->call, slot);
    }
    slot->left = runs_ahead(s, p);
    atomic_store_explicit(&slot->posted, dtr__shm_mark(n, 0), memory_order_release);
    return true;
}

/* Whether these buffers are in node-shared memory, too. */
static bool lies_shared(const dtr_group *g, dtr__shm_state *s, const dtr__fast_path *p) {
    const dtr__call *c = &p->call;
    s->shared_as_of = dtr__arena_version(g->world);
    return dtr__shm_lies_shared(g, c, p->moves.give, &s->in_at, &s->out_at) &&
           (c->in != c->out || s->own_stage != NULL);
}

/* The line stays with all ranks as long as nobody moves. */
static void show_cpu(dtr__shm_state *s) {
    const int here = sched_getcpu();
    if (atomic_load_explicit(&s->me->cpu, memory_order_relaxed) != here) {
        atomic_store_explicit(&s->me->cpu, here, memory_order_relaxed);
    }
}

bool dtr__shm_fast_path_start(dtr_group *g, void *state, const dtr__fast_path *p) {
    dtr__shm_state *s = state;
    if (p->p2p) {
        return dtr__shm_p2p_fast_start(s, &p->call, dtr__p2p_all(&p->call), p->record.site);
    }
    if (p->moves.zero && !lies_shared(g, s, p)) {
        return false;
    }
    if (g->world->cpus.oversubscribed) {
        show_cpu(s);
    }
    if (p->moves.whole) {
        dtr__shm_begin(s, &p->call);
        return true;
    }
    s->op.n = ++s->n;
    s->op.phase = DTR__SHM_ARRIVE;
    s->op.whole = false;
    dtr__shm_count_row(s, p->id);
    s->op.arrived = runs_ahead(s, p) ? p->moves.from : 0;
    if (p->moves.pairs || p->moves.zero) {
        s->op.size = dtr_dtype_size(p->call.dtype);
        s->op.zero_copy = p->moves.zero;
        s->op.pulled = 0;
        s->op.quiet = s->op.sliced = false;
    }
    if (p->moves.runs_ahead && s->row_count == DTR__SHM_RUN_AHEAD_AFTER) {
        (void)dtr__call_site_text(&p->call, s->me->left_site, sizeof s->me->left_site);
    }
    s->unshown = !show(g, s, p);
    return true;
}

static void reduce(const dtr_group *g, const dtr__shm_state *s, const dtr__fast_path *p) {
    const dtr__moves *m = &p->moves;
    const dtr__call *c = &p->call;
    const unsigned char *from[DTR__SHM_MAX_RANKS];
    for (int r = 0; r < m->until; r++) {
        from[r] = (r == g->rank ? c->in : dtr__shm_shown(s, r)) + m->at;
    }
    if (m->reducer.loop != NULL) {
        dtr__reduce_kept(&m->reducer, c->out, (const void *const *)from, m->until, c->divisor);
        return;
    }
    dtr__reduce(c->out, (const void *const *)from, m->until, c->out_count, c->dtype,
                dtr__kernel_op(g, c), c->divisor, NULL);
}

static void fill(const dtr__fast_path *p) {
    const dtr__call *c = &p->call;
    const size_t nbytes = c->out_count * dtr_dtype_size(c->dtype);
    if (nbytes <= sizeof p->moves.identity) {
        dtr__shm_copy(c->out, p->moves.identity, nbytes);
    } else {
        dtr__fill_identity(c->out, c->out_count, c->out_count, c->dtype, c->op);
    }
}

static void move(const dtr_group *g, const dtr__shm_state *s, const dtr__fast_path *p) {
    const dtr__moves *m = &p->moves;
    const dtr__call *c = &p->call;
    bool table = m->pairs && dtr__shm_has_table(c->kind);
    /* In place the own block may move over the own input, which is in the slot too. */
    const unsigned char *own = m->gives && c->in == c->out ? dtr__shm_shown(s, g->rank) : c->in;
    for (int r = m->from; r < m->until; r++) {
        const dtr__part *part = &m->parts[r];
        if (part->take == 0) {
            continue;
        }
        const unsigned char *from =
            r == g->rank
                ? own + part->at
                : dtr__shm_shown(s, r) + (table ? dtr__shm_wanted_at(g, s, c, r) : part->at);
        unsigned char *to = (unsigned char *)c->out + part->to;
        if (to != from) {
            dtr__shm_copy(to, from, part->take);
        }
    }
}

/* Where only giver and taker know how much it is. What is not in a slot goes the ordinary way. */
static bool fits(const dtr_group *g, const dtr__shm_state *s, const dtr__fast_path *p, int r) {
    const dtr__moves *m = &p->moves;
    bool taken = r >= m->from && r < m->until && r != g->rank;
    return dtr__shm_slot_of(s, r)->mode <= DTR__SHM_IN_SLOT &&
           (!taken || dtr__shm_given(g, s, &p->call, r) == m->parts[r].take) &&
           (r == g->rank || dtr__shm_gives_asked(g, s, &p->call, r));
}

/* The next slot's lines: everybody has finished the operation that read them last, and to get them
 * back takes as long as a small operation. */
static void expect_data_lines(const dtr__shm_state *s, const dtr__moves *m, uint64_t ahead,
                              size_t from, size_t until) {
    const size_t give = m->gives && m->give > DTR__SHM_BESIDE ? m->give : 0;
    const uint64_t n = s->n + ahead;
    unsigned char *data = s->me->detail[n & 1].data + place_of(m, n);
    for (size_t at = from; at < give && at < until; at += 64) {
        dtr__shm_expect_to_write(&data[at]);
    }
}

static void expect_slot(const dtr__shm_state *s, uint64_t ahead) {
    dtr__shm_expect_to_write(&s->me->slot[(s->n + ahead) % DTR__SHM_SLOT_COUNT]);
}

/* Little data in the details of operation n comes with the slot instead of after it. */
static void expect_data(const dtr__shm_state *s, const dtr__moves *m, int r, uint64_t n) {
    const unsigned char *data = s->rank[r]->detail[n & 1].data + place_of(m, n);
    for (size_t at = 0; at < m->give; at += 64) {
        __builtin_prefetch(&data[at]);
    }
}

/* The next slots of those who may be ahead. */
static void expect_others(const dtr_group *g, const dtr__shm_state *s, const dtr__moves *m,
                          bool beside) {
    for (int r = m->from; g->size <= FEW_RANKS && r < m->until; r++) {
        if (r == g->rank) {
            continue;
        }
        __builtin_prefetch(&s->rank[r]->slot[(s->n + 2) % DTR__SHM_SLOT_COUNT]);
        if (beside) {
            expect_data(s, m, r, s->n + 2);
        }
    }
}

/* Whether everybody's slice is done; -1: in vain, which the ordinary way reports. */
static int leave_places(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    const bool done = dtr__shm_may_leave(g, s, c);
    return done && dtr__shm_lost_out(g, s, c) ? -1 : done;
}

static int reduce_places(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    bool moved = false;
    (void)dtr__shm_zero_pull(g, s, c, SIZE_MAX, &moved);
    dtr__shm_publish_finished(g, s, c);
    s->op.phase = DTR__SHM_LEAVE;
    return leave_places(g, s, c);
}

static bool has_posted(const dtr__shm_state *s, int r) {
    return dtr__shm_has_posted(dtr__shm_slot_of(s, r), dtr__shm_mark(s->op.n, 0));
}

static bool is_missing(const dtr_group *g, const dtr__shm_state *s, int r) {
    if (s->op.phase != DTR__SHM_LEAVE) {
        return !has_posted(s, r);
    }
    return r != g->rank && !dtr__shm_has_finished(s, r, dtr__shm_mark(s->op.n, DTR__SHM_WHOLE));
}

/* Where ranks share processors: whether ranks `from` to `until` - 1 come while this one polls. It
 * polls as long as all that are missing were last seen on other processors. A rank of this
 * processor cannot come before this one yields; to yield for the others would cost a second change
 * of ranks per call. */
static bool come_meanwhile(const dtr_group *g, const dtr__shm_state *s, int from, int until) {
    const int here = g->world->cpus.oversubscribed ? sched_getcpu() : 0;
    for (int left = g->world->cpus.oversubscribed ? POLLS_ELSEWHERE : 0; left > 0;
         left -= until - from) {
        bool missing = false;
        for (int r = from; r < until; r++) {
            if (!is_missing(g, s, r)) {
                continue;
            }
            missing = true;
            if (atomic_load_explicit(&s->rank[r]->cpu, memory_order_relaxed) == here) {
                return false;
            }
        }
        if (!missing) {
            return true;
        }
        dtr__relax();
    }
    return false;
}

int dtr__shm_fast_path_poll(dtr_group *g, void *state, const dtr__fast_path *p) {
    dtr__shm_state *s = state;
    if (p->p2p) {
        return dtr__shm_p2p_fast_poll(g, s, &p->call);
    }
    if (p->moves.whole) {
        return dtr__shm_poll_call(g, s, &p->call);
    }
    if (atomic_load_explicit(&s->control->broken, memory_order_acquire) != 0) {
        return -1; /* the others may have waited for a rank that comes too missing */
    }
    if (s->unshown && !show(g, s, p)) {
        return 0;
    }
    s->unshown = false;
    if (s->op.phase == DTR__SHM_LEAVE) {
        (void)come_meanwhile(g, s, 0, g->size);
        return leave_places(g, s, &p->call);
    }
    const bool ahead = runs_ahead(s, p);
    const bool beside = p->moves.give > DTR__SHM_BESIDE && p->moves.give <= TOGETHER;
    const int until = ahead ? p->moves.until : g->size;
    for (; s->op.arrived < until; s->op.arrived++) {
        const dtr__shm_slot *slot = dtr__shm_slot_of(s, s->op.arrived);
        if (beside) {
            expect_data(s, &p->moves, s->op.arrived, s->op.n);
        }
        if (!has_posted(s, s->op.arrived) && !come_meanwhile(g, s, s->op.arrived, until)) {
            return 0;
        }
        if (slot->fingerprint != p->call.fingerprint ||
            (p->moves.zero ? slot->zero_copy == 0 : slot->mode > DTR__SHM_IN_SLOT) ||
            (p->moves.pairs && !fits(g, s, p, s->op.arrived))) {
            return -1;
        }
    }
    if (!ahead) {
        s->seen = s->n;
        expect_slot(s, 1);
    } else {
        expect_others(g, s, &p->moves, beside);
        expect_slot(s, AHEAD);
    }
    expect_data_lines(s, &p->moves, ahead ? AHEAD : 1, 0, EXPECTED);
    if (p->moves.zero) {
        return reduce_places(g, s, &p->call);
    }
    if (p->moves.reduces) {
        reduce(g, s, p);
    } else if (p->moves.fills) {
        fill(p);
    } else {
        move(g, s, p);
    }
    expect_data_lines(s, &p->moves, ahead ? AHEAD : 1, EXPECTED, EXPECTED_LATER);
    return 1;
}

void dtr__shm_fast_path_to_work(dtr_group *g, void *state, dtr_work *w) {
    dtr__shm_state *s = state;
    const dtr__call *c = &w->call;
    if (dtr__kind_is_p2p(c->kind)) {
        dtr__shm_p2p_fast_to_work(g, s, w);
        return;
    }
    if (s->op.whole) {
        return; /* it goes on where it is */
    }
    const bool leaves = s->op.phase == DTR__SHM_LEAVE;
    s->op = (dtr__shm_op){ .n = s->n,
                           .size = dtr_dtype_size(c->dtype),
                           .zero_copy = leaves,
                           .lost = s->op.lost,
                           .phase = leaves       ? DTR__SHM_LEAVE
                                    : s->unshown ? DTR__SHM_NEW
                                                 : DTR__SHM_ARRIVE };
    s->unshown = false;
    s->op.in = c->in;
    dtr__shm_keep_input(g, s, c);
    dtr__shm_set_steps(g, s, c);
    if (dtr__shm_slot_of(s, g->rank)->mode == DTR__SHM_STAGED) { /* if somebody's lie elsewhere */
        dtr__shm_stage_cut(s, s->op.step * s->op.n_blocks);
        s->op.chunks_out = dtr__shm_chunks(c->in_count * s->op.size, s->op.step);
    }
}
