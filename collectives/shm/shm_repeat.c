/* Repeats on shared memory: a post with all the data in it, and everybody else's looked at until
 * they are there. What the posts say is the same as in shm_pull.c, so that ranks may go either
 * way. */
#include <string.h>

#include "kernels/kernels.h"
#include "repeat.h"
#include "shm/shm_internal.h"

bool dtr__shm_repeat_accept(dtr_group *g, void *state, const dtr__call *c, dtr__moves *m) {
    const dtr__shm_state *s = state;
    size_t size = dtr_dtype_size(c->dtype), give = c->in_count * size;
    size_t most = c->kind == DTR__K_SCATTER ? c->out_count * size * (size_t)g->size : give;
    if (c->op == DTR_PREMUL_SUM || most > DTR__SHM_INLINE ||
        (most == 0) != (c->kind == DTR__K_BARRIER)) {
        return false;
    }
    *m = (dtr__moves){ .gives = give > 0 && dtr__shm_gives(g, c, g->rank), .give = give };
    bool scatters = c->kind == DTR__K_SCATTER;
    if (!dtr__shm_reads(g, c, g->rank) && !(scatters && g->rank == c->root)) {
        return true;
    }
    bool one = c->kind == DTR__K_BROADCAST || scatters;
    m->reduces = dtr__kind_reduces(c->kind);
    if (!m->reduces || !dtr__reduce_keep(&m->reducer, c->out_count, c->dtype, c->op)) {
        m->reducer.loop = NULL;
    }
    m->from = one ? c->root : 0;
    m->until = one ? c->root + 1 : g->size;
    m->take = scatters ? c->out_count * size : dtr__shm_wanted(g, c, m->from);
    m->at = dtr__shm_wanted_at(g, s, c, m->from);
    if (!one && !m->reduces) {
        m->stride = (size_t)(dtr__shm_target(g, c, 1) - dtr__shm_target(g, c, 0));
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

void dtr__shm_repeat_post(dtr_group *g, void *state, const dtr__repeat *p) {
    dtr__shm_state *s = state;
    uint64_t n = ++s->n;
    dtr__shm_post *post = &s->me->post[n & 1];
    (void)g;
    s->op.n = n;
    s->op.arrived = 0;
    if (s->described[n & 1] != p->id) {
        dtr__shm_describe(post, &p->call);
        post->mode = p->moves.gives ? DTR__SHM_IN_POST : DTR__SHM_NOTHING;
        s->described[n & 1] = p->id;
    }
    if (p->moves.gives) {
        copy(post->data, p->call.in, p->moves.give);
    }
    atomic_store_explicit(&post->posted, dtr__shm_mark(n, 0), memory_order_release);
}

static void move(const dtr_group *g, const dtr__shm_state *s, const dtr__repeat *p) {
    const dtr__moves *m = &p->moves;
    const dtr__call *c = &p->call;
    const unsigned char *from[DTR__SHM_MAX_RANKS];
    for (int r = m->from; r < m->until; r++) {
        from[r] = (r == g->rank ? c->in : dtr__shm_post_of(s, r)->data) + m->at;
    }
    if (m->reducer.loop != NULL) {
        dtr__reduce_kept(&m->reducer, c->out, (const void *const *)from, g->size, c->divisor);
        return;
    }
    if (m->reduces) {
        dtr__reduce(c->out, (const void *const *)from, g->size, c->out_count, c->dtype, c->op,
                    c->divisor, NULL);
        return;
    }
    unsigned char *to = c->out;
    for (int r = m->from; r < m->until; r++, to += m->stride) {
        if (to != from[r]) {
            copy(to, from[r], m->take);
        }
    }
}

int dtr__shm_repeat_look(dtr_group *g, void *state, const dtr__repeat *p) {
    dtr__shm_state *s = state;
    uint64_t mark = dtr__shm_mark(s->n, 0);
    if (atomic_load_explicit(&s->control->broken, memory_order_acquire) != 0) {
        return -1; /* the others may have waited, posted, for a rank that comes too late */
    }
    for (; s->op.arrived < g->size; s->op.arrived++) {
        const dtr__shm_post *post = dtr__shm_post_of(s, s->op.arrived);
        if (atomic_load_explicit(&post->posted, memory_order_acquire) < mark) {
            return 0;
        }
        if (post->fingerprint != p->call.fingerprint) {
            return -1;
        }
    }
    move(g, s, p);
    return 1;
}

void dtr__shm_repeat_go_on(dtr_group *g, void *state, const dtr__call *c) {
    dtr__shm_state *s = state;
    s->op = (dtr__shm_op){ .n = s->n, .size = dtr_dtype_size(c->dtype), .phase = DTR__SHM_ARRIVE };
    s->op.in = c->in;
    dtr__shm_set_steps(g, s, c);
}
