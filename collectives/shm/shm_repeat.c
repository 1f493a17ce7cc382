/* Repeats on shared memory: a post with all the data in it, and everybody else's looked at until
 * they are there. What the posts say is the same as in shm_pull.c, so that ranks may go either
 * way. */
#include <string.h>

#include "coll_check.h"
#include "kernels/kernels.h"
#include "repeat.h"
#include "shm/shm_p2p.h"

enum { EXPECTED = 1024 }; /* bytes of the next post that are fetched ahead */

static bool scatters(dtr__kind k) {
    return k == DTR__K_SCATTER || k == DTR__K_SCATTERV;
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
    if (c->op == DTR_PREMUL_SUM || !is_small(g, s, c, give)) {
        return false;
    }
    *m = (dtr__moves){ .gives = give > 0 && dtr__shm_gives(g, c, g->rank),
                       .give = give,
                       .parts = parts,
                       .pairs = c->kind == DTR__K_GATHERV || dtr__shm_has_table(c->kind) };
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

bool dtr__shm_repeat_post(dtr_group *g, void *state, const dtr__repeat *p) {
    dtr__shm_state *s = state;
    if (p->p2p) {
        return dtr__shm_p2p_repeat_post(s, &p->call);
    }
    uint64_t n = ++s->n;
    dtr__shm_post *post = &s->me->post[n & 1];
    s->op.n = n;
    s->op.arrived = 0;
    if (p->moves.pairs) {
        s->op.size = dtr_dtype_size(p->call.dtype);
    }
    if (s->described[n & 1] != p->id) {
        dtr__shm_describe(post, &p->call);
        post->mode = p->moves.gives ? DTR__SHM_IN_POST : DTR__SHM_NOTHING;
        if (p->moves.gives && dtr__shm_has_table(p->call.kind)) {
            dtr__shm_write_table(g, s, &p->call);
        }
        s->described[n & 1] = p->id;
    }
    if (p->moves.gives) {
        copy(post->data, p->call.in, p->moves.give);
    }
    atomic_store_explicit(&post->posted, dtr__shm_mark(n, 0), memory_order_release);
    return true;
}

static void reduce(const dtr_group *g, const dtr__shm_state *s, const dtr__repeat *p) {
    const dtr__moves *m = &p->moves;
    const dtr__call *c = &p->call;
    const unsigned char *from[DTR__SHM_MAX_RANKS];
    for (int r = 0; r < g->size; r++) {
        from[r] = (r == g->rank ? c->in : dtr__shm_post_of(s, r)->data) + m->at;
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
        const unsigned char *from = r == g->rank
                                        ? (const unsigned char *)c->in + part->at
                                        : dtr__shm_post_of(s, r)->data +
                                              (table ? dtr__shm_wanted_at(g, s, c, r) : part->at);
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
           (!taken || dtr__shm_given(g, s, &p->call, r) == m->parts[r].take);
}

/* The next post's lines: everybody has finished the operation that read them last, and to get them
 * back takes as long as a small operation. */
static void expect_post(const dtr__shm_state *s, size_t give) {
    const char *line = (const char *)&s->me->post[(s->n + 1) & 1];
    size_t nbytes = offsetof(dtr__shm_post, data) + give;
    for (size_t at = 0; at < nbytes && at < EXPECTED; at += 64) {
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" ::"m"(line[at])); /* the built-in one means reading */
#else
        __builtin_prefetch(&line[at], 1);
#endif
    }
}

int dtr__shm_repeat_look(dtr_group *g, void *state, const dtr__repeat *p) {
    dtr__shm_state *s = state;
    uint64_t mark = dtr__shm_mark(s->n, 0);
    if (p->p2p) {
        return dtr__shm_p2p_repeat_look(g, s, &p->call);
    }
    if (atomic_load_explicit(&s->control->broken, memory_order_acquire) != 0) {
        return -1; /* the others may have waited, posted, for a rank that comes too late */
    }
    for (; s->op.arrived < g->size; s->op.arrived++) {
        const dtr__shm_post *post = dtr__shm_post_of(s, s->op.arrived);
        if (atomic_load_explicit(&post->posted, memory_order_acquire) < mark) {
            return 0;
        }
        if (post->fingerprint != p->call.fingerprint ||
            (p->moves.pairs && !fits(g, s, p, s->op.arrived))) {
            return -1;
        }
    }
    if (p->moves.gives) {
        expect_post(s, p->moves.give);
    }
    if (p->moves.reduces) {
        reduce(g, s, p);
    } else {
        move(g, s, p);
    }
    return 1;
}

void dtr__shm_repeat_go_on(dtr_group *g, void *state, dtr_work *w) {
    dtr__shm_state *s = state;
    const dtr__call *c = &w->call;
    if (dtr__kind_is_p2p(c->kind)) {
        dtr__shm_p2p_repeat_go_on(g, s, w);
        return;
    }
    s->op = (dtr__shm_op){ .n = s->n, .size = dtr_dtype_size(c->dtype), .phase = DTR__SHM_ARRIVE };
    s->op.in = c->in;
    dtr__shm_set_steps(g, s, c);
}
