/* Repeats on shared memory: a post with all the data in it, and everybody else's looked at until
 * they are there. What the posts say is the same as in shm_pull.c, so that ranks may go either
 * way. */
#include <sched.h>
#include <string.h>

#include "coll_check.h"
#include "declare.h"
#include "kernels/kernels.h"
#include "repeat.h"
#include "shm/shm_p2p.h"

enum {
    EXPECTED = 1024,        /* bytes of the next post that are fetched ahead, */
    EXPECTED_LATER = 4096,  /* ... and up to here once the data of this one has come */
    TOGETHER = 256,         /* bytes beside a post that are fetched with it */
    ZERO_MOST = 256 * 1024, /* bytes reduced where they lie, which is done at one go */
    ROW_BEGINS = 8,         /* calls of a row that wait for everybody */
    FEW_RANKS = 8,          /* whose next posts are fetched ahead */
    LOOKS_ELSEWHERE = 400,  /* at single ranks, while all that are missing run elsewhere */
};

static bool scatters(dtr__kind k) {
    return k == DTR__K_SCATTER || k == DTR__K_SCATTERV;
}

/* Whether a rank may leave such a call before all have come. What makes a row of calls safe is that
 * its first ones wait for everybody: the first operation on which ranks disagree is not that of a
 * row on some rank, and that one compares the posts of all. The others learn of it at their next
 * call. */
static bool may_lead(const dtr_group *g, const dtr__call *c, const dtr__moves *m) {
    const bool rooted = c->kind == DTR__K_BROADCAST || scatters(c->kind) ||
                        c->kind == DTR__K_REDUCE || c->kind == DTR__K_GATHER ||
                        c->kind == DTR__K_GATHERV;
    const size_t most = g->world->crowded ? DTR__SHM_LEAD_CROWDED : DTR__SHM_LEAD;
    return rooted && (!m->gives || m->give <= most) && !dtr__at_detail(g->world);
}

/* Bytes of the place that each of these has beside the posts, so that there are enough of them. */
static size_t place_bytes(const dtr__moves *m) {
    size_t nbytes = DTR__SHM_LEAD;
    while (m->leads && nbytes < m->give) {
        nbytes *= 2;
    }
    return nbytes;
}

static uint64_t places(const dtr__moves *m) {
    return 2 * DTR__SHM_INLINE / m->place;
}

static size_t place_of(const dtr__moves *m, uint64_t n) {
    return m->leads ? (size_t)(n % places(m) / 2) * m->place : 0;
}

/* Whether all data of such calls fits into posts. Of v-forms a rank may not know what the others
 * give, but what has just ended has shown it. */
static bool is_small(const dtr_group *g, const dtr__shm_state *s, const dtr__call *c, size_t give) {
    size_t most = c->kind == DTR__K_SCATTER ? c->out_count * dtr_dtype_size(c->dtype) : 0;
    most = most * (size_t)g->size > give ? most * (size_t)g->size : give;
    if (dtr__rules[c->kind].arrays) {
        return most <= DTR__SHM_INLINE && s->op.quiet;
    }
    return most <= DTR__SHM_INLINE && (most == 0) == (c->kind == DTR__K_BARRIER);
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

bool dtr__shm_repeat_accept(dtr_group *g, void *state, const dtr__call *c, dtr__moves *m) {
    const dtr__shm_state *s = state;
    size_t give = c->in_count * dtr_dtype_size(c->dtype);
    dtr__part *parts = m->parts;
    if (dtr__kind_is_p2p(c->kind)) {
        return s->mpi == NULL && dtr__shm_p2p_repeat_accept(s, c);
    }
    const bool zero = c->kind == DTR__K_ALLREDUCE && s->op.zero_copy && give <= ZERO_MOST;
    if (c->op == DTR_PREMUL_SUM || (!zero && !is_small(g, s, c, give))) {
        return false;
    }
    if (zero && c->in == c->out && dtr__shm_stage_need(g, state) != DTR_OK) {
        return false; /* such a call had no use for it if its data fits into a post */
    }
    *m = (dtr__moves){ .gives = !zero && give > 0 && dtr__shm_gives(g, c, g->rank),
                       .give = give,
                       .zero = zero,
                       .parts = parts,
                       .pairs = c->kind == DTR__K_GATHERV || dtr__shm_has_table(c->kind) };
    m->leads = may_lead(g, c, m);
    m->place = place_bytes(m);
    if (!dtr__shm_reads(g, c, g->rank) && !(scatters(c->kind) && g->rank == c->root)) {
        return true;
    }
    bool one = c->kind == DTR__K_BROADCAST || scatters(c->kind);
    m->from = one ? c->root : 0;
    m->until = c->out_count == 0 ? m->from : one ? c->root + 1 : g->size;
    m->reduces = dtr__kind_reduces(c->kind) && c->out_count > 0;
    if (m->reduces) {
        m->at = dtr__shm_wanted_at(g, s, c, m->from);
        if (!dtr__reduce_keep(&m->reducer, c->out_count, c->dtype, c->op)) {
            m->reducer.loop = NULL;
        }
        return true;
    }
    for (int r = m->from; r < m->until; r++) {
        set_part(g, s, c, r, &parts[r]);
    }
    return true;
}

/* The first and the last piece, which may overlap. */
#define COPY_ENDS(type)                                     \
    do {                                                    \
        type first, last;                                   \
        memcpy(&first, from, sizeof first);                 \
        memcpy(&last, from + n - sizeof last, sizeof last); \
        memcpy(to, &first, sizeof first);                   \
        memcpy(to + n - sizeof last, &last, sizeof last);   \
    } while (0)

/* A call of memcpy costs as much as the rest of a small post. */
static inline void copy(unsigned char *to, const unsigned char *from, size_t n) {
    typedef struct {
        uint64_t word[2];
    } pair;
    if (n > 32 || n < 4) {
        memcpy(to, from, n);
    } else if (n >= 16) {
        COPY_ENDS(pair);
    } else if (n >= 8) {
        COPY_ENDS(uint64_t);
    } else {
        COPY_ENDS(uint32_t);
    }
}

static bool leads(const dtr__shm_state *s, const dtr__repeat *p) {
    return p->moves.leads && s->row >= ROW_BEGINS;
}

static void describe(const dtr_group *g, dtr__shm_state *s, const dtr__repeat *p) {
    const uint64_t n = s->op.n;
    const dtr__moves *m = &p->moves;
    dtr__shm_post *post = &s->me->post[n % DTR__SHM_POSTS];
    dtr__shm_describe(post, &p->call);
    post->mode = !m->gives                    ? DTR__SHM_NOTHING
                 : m->give <= DTR__SHM_BESIDE ? DTR__SHM_IN_LINE
                                              : DTR__SHM_IN_POST;
    post->at = place_of(m, n);
    s->described[n % DTR__SHM_POSTS] = p->id;
    if (s->described_more[n & 1] == p->id) {
        return;
    }
    dtr__shm_describe_more(&s->me->more[n & 1], &p->call);
    if (p->call.kind == DTR__K_ALLTOALLV || (m->gives && dtr__shm_has_table(p->call.kind))) {
        dtr__shm_write_table(g, s, &p->call);
    }
    s->described_more[n & 1] = p->id;
}

/* The same post as that of a call that goes the ordinary way. */
static void show_places(dtr__shm_state *s, const dtr__call *c, dtr__shm_post *post) {
    dtr__shm_more *more = &s->me->more[s->op.n & 1];
    const bool same = c->in == c->out;
    post->zero_copy = 1;
    post->mode = same ? DTR__SHM_STAGED : DTR__SHM_DIRECT;
    post->shift = same;
    post->at = same ? s->stage_at : s->in_at;
    post->first = (uint8_t)s->stage_next;
    if (more->in_at != s->in_at || more->out_at != s->out_at) { /* else the others have the line */
        more->in_at = s->in_at;
        more->out_at = s->out_at;
    }
    dtr__shm_expect_to_write(&s->me->finished);
}

/* False while somebody may still read what the post, or what belongs to it, showed last. */
static bool show(const dtr_group *g, dtr__shm_state *s, const dtr__repeat *p) {
    const uint64_t n = s->op.n;
    const dtr__moves *m = &p->moves;
    dtr__shm_post *post = &s->me->post[n % DTR__SHM_POSTS];
    const bool line = !m->gives || m->give <= DTR__SHM_BESIDE;
    const bool many = (line || m->leads) && !m->zero && s->described_more[n & 1] == p->id;
    if (!dtr__shm_is_free(g, s, !many ? 1 : (line ? DTR__SHM_POSTS : places(m)) - 1)) {
        return false;
    }
    if (s->described[n % DTR__SHM_POSTS] != p->id || s->described_more[n & 1] != p->id) {
        describe(g, s, p);
    }
    if (m->gives) {
        copy(dtr__shm_shown(s, g->rank), p->call.in, m->give);
    } else if (m->zero) {
        show_places(s, &p->call, post);
    }
    post->left = leads(s, p);
    atomic_store_explicit(&post->posted, dtr__shm_mark(n, 0), memory_order_release);
    return true;
}

/* Whether these buffers are in node-shared memory, too. */
static bool lies_shared(const dtr_group *g, dtr__shm_state *s, const dtr__repeat *p) {
    const dtr__call *c = &p->call;
    return dtr__shm_lies_shared(g, c, p->moves.give, &s->in_at, &s->out_at) &&
           (c->in != c->out || s->stage != NULL);
}

/* The line stays with all ranks as long as nobody moves. */
static void show_cpu(dtr__shm_state *s) {
    const int here = sched_getcpu();
    if (atomic_load_explicit(&s->me->cpu, memory_order_relaxed) != here) {
        atomic_store_explicit(&s->me->cpu, here, memory_order_relaxed);
    }
}

bool dtr__shm_repeat_post(dtr_group *g, void *state, const dtr__repeat *p) {
    dtr__shm_state *s = state;
    if (p->p2p) {
        return dtr__shm_p2p_repeat_post(s, &p->call, dtr__p2p_all(&p->call));
    }
    if (p->moves.zero && !lies_shared(g, s, p)) {
        return false;
    }
    if (g->world->crowded) {
        show_cpu(s);
    }
    s->op.n = ++s->n;
    s->op.phase = DTR__SHM_ARRIVE;
    s->row = s->row_of == p->id ? s->row + 1 : 0;
    s->row_of = p->id;
    s->op.arrived = leads(s, p) ? p->moves.from : 0;
    if (p->moves.pairs || p->moves.zero) {
        s->op.size = dtr_dtype_size(p->call.dtype);
        s->op.zero_copy = p->moves.zero;
        s->op.pulled = 0;
        s->op.quiet = s->op.sliced = false;
    }
    if (p->moves.leads && s->row == ROW_BEGINS) {
        (void)dtr__call_site_text(&p->call, s->me->left_site, sizeof s->me->left_site);
    }
    s->unshown = !show(g, s, p);
    return true;
}

static void reduce(const dtr_group *g, const dtr__shm_state *s, const dtr__repeat *p) {
    const dtr__moves *m = &p->moves;
    const dtr__call *c = &p->call;
    const unsigned char *from[DTR__SHM_MAX_RANKS];
    for (int r = 0; r < g->size; r++) {
        from[r] = (r == g->rank ? c->in : dtr__shm_shown(s, r)) + m->at;
    }
    if (m->reducer.loop != NULL) {
        dtr__reduce_kept(&m->reducer, c->out, (const void *const *)from, g->size, c->divisor);
        return;
    }
    dtr__reduce(c->out, (const void *const *)from, g->size, c->out_count, c->dtype, c->op,
                c->divisor, NULL);
}

static void move(const dtr_group *g, const dtr__shm_state *s, const dtr__repeat *p) {
    const dtr__moves *m = &p->moves;
    const dtr__call *c = &p->call;
    bool table = m->pairs && dtr__shm_has_table(c->kind);
    for (int r = m->from; r < m->until; r++) {
        const dtr__part *part = &m->parts[r];
        if (part->take == 0) {
            continue;
        }
        const unsigned char *from =
            r == g->rank
                ? (const unsigned char *)c->in + part->at
                : dtr__shm_shown(s, r) + (table ? dtr__shm_wanted_at(g, s, c, r) : part->at);
        unsigned char *to = (unsigned char *)c->out + part->to;
        if (to != from) {
            copy(to, from, part->take);
        }
    }
}

/* Where only giver and taker know how much it is. What is not in a post goes the ordinary way. */
static bool fits(const dtr_group *g, const dtr__shm_state *s, const dtr__repeat *p, int r) {
    const dtr__moves *m = &p->moves;
    bool taken = r >= m->from && r < m->until && r != g->rank;
    return dtr__shm_post_of(s, r)->mode <= DTR__SHM_IN_POST &&
           (!taken || dtr__shm_given(g, s, &p->call, r) == m->parts[r].take) &&
           (r == g->rank || dtr__shm_gives_asked(g, s, &p->call, r));
}

/* The next post's lines: everybody has finished the operation that read them last, and to get them
 * back takes as long as a small operation. */
static void expect_room(const dtr__shm_state *s, const dtr__moves *m, size_t from, size_t until) {
    const size_t give = m->gives && m->give > DTR__SHM_BESIDE ? m->give : 0;
    unsigned char *data = s->me->more[(s->n + 1) & 1].data + place_of(m, s->n + 1);
    for (size_t at = from; at < give && at < until; at += 64) {
        dtr__shm_expect_to_write(&data[at]);
    }
}

static void expect_post(const dtr__shm_state *s, const dtr__moves *m) {
    dtr__shm_expect_to_write(&s->me->post[(s->n + 1) % DTR__SHM_POSTS]);
    expect_room(s, m, 0, EXPECTED);
}

/* Little data beside a post comes with it instead of after it. */
static void expect_data(const dtr__shm_more *more, size_t give) {
    for (size_t at = 0; at < give; at += 64) {
        __builtin_prefetch(&more->data[at]);
    }
}

/* The next posts of those who may be ahead. */
static void expect_others(const dtr_group *g, const dtr__shm_state *s, const dtr__moves *m) {
    for (int r = m->from; g->size <= FEW_RANKS && r < m->until; r++) {
        __builtin_prefetch(&s->rank[r]->post[(s->n + 2) % DTR__SHM_POSTS]);
    }
}

/* The own slice, and whether everybody's is done. */
static bool reduce_places(const dtr_group *g, dtr__shm_state *s, const dtr__call *c) {
    bool moved = false;
    (void)dtr__shm_zero_pull(g, s, c, SIZE_MAX, &moved);
    dtr__shm_tell_finished(g, s);
    s->op.phase = DTR__SHM_LEAVE;
    return dtr__shm_may_leave(g, s, c);
}

static bool has_posted(const dtr__shm_state *s, int r) {
    return atomic_load_explicit(&dtr__shm_post_of(s, r)->posted, memory_order_acquire) >=
           dtr__shm_mark(s->op.n, 0);
}

static bool is_missing(const dtr_group *g, const dtr__shm_state *s, int r) {
    if (s->op.phase != DTR__SHM_LEAVE) {
        return !has_posted(s, r);
    }
    return r != g->rank && atomic_load_explicit(&s->rank[r]->finished, memory_order_acquire) <
                               dtr__shm_mark(s->op.n, DTR__SHM_WHOLE);
}

/* Where ranks share processors: whether ranks `from` to `until` - 1 come while this one looks,
 * which it does as long as all that are missing were last seen on other processors. One of its own
 * cannot come before this processor is given away; the others would be met later by that, and
 * calls then take two such changes instead of one. */
static bool come_meanwhile(const dtr_group *g, const dtr__shm_state *s, int from, int until) {
    const int here = g->world->crowded ? sched_getcpu() : 0;
    for (int left = g->world->crowded ? LOOKS_ELSEWHERE : 0; left > 0; left -= until - from) {
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

int dtr__shm_repeat_look(dtr_group *g, void *state, const dtr__repeat *p) {
    dtr__shm_state *s = state;
    if (p->p2p) {
        return dtr__shm_p2p_repeat_look(g, s, &p->call);
    }
    if (atomic_load_explicit(&s->control->broken, memory_order_acquire) != 0) {
        return -1; /* the others may have waited, posted, for a rank that comes too late */
    }
    if (s->unshown && !show(g, s, p)) {
        return 0;
    }
    s->unshown = false;
    if (s->op.phase == DTR__SHM_LEAVE) {
        (void)come_meanwhile(g, s, 0, g->size);
        return dtr__shm_may_leave(g, s, &p->call);
    }
    const bool ahead = leads(s, p);
    const bool beside = p->moves.give > DTR__SHM_BESIDE && p->moves.give <= TOGETHER;
    const int until = ahead ? p->moves.until : g->size;
    for (; s->op.arrived < until; s->op.arrived++) {
        const dtr__shm_post *post = dtr__shm_post_of(s, s->op.arrived);
        if (beside) {
            expect_data(dtr__shm_more_of(s, s->op.arrived), p->moves.give);
        }
        if (!has_posted(s, s->op.arrived) && !come_meanwhile(g, s, s->op.arrived, until)) {
            return 0;
        }
        if (post->fingerprint != p->call.fingerprint || (p->moves.zero && post->zero_copy == 0) ||
            (p->moves.pairs && !fits(g, s, p, s->op.arrived))) {
            return -1;
        }
    }
    if (!ahead) {
        s->seen = s->n;
    } else {
        expect_others(g, s, &p->moves);
    }
    expect_post(s, &p->moves);
    if (p->moves.zero) {
        return reduce_places(g, s, &p->call);
    }
    if (p->moves.reduces) {
        reduce(g, s, p);
    } else {
        move(g, s, p);
    }
    expect_room(s, &p->moves, EXPECTED, EXPECTED_LATER);
    return 1;
}

void dtr__shm_repeat_go_on(dtr_group *g, void *state, dtr_work *w) {
    dtr__shm_state *s = state;
    const dtr__call *c = &w->call;
    if (dtr__kind_is_p2p(c->kind)) {
        dtr__shm_p2p_repeat_go_on(g, s, w);
        return;
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
    dtr__shm_set_steps(g, s, c);
    if (dtr__shm_post_of(s, g->rank)->mode == DTR__SHM_STAGED) { /* if somebody's lie elsewhere */
        s->op.chunks_out = (c->in_count * s->op.size + s->op.step - 1) / s->op.step;
    }
}
