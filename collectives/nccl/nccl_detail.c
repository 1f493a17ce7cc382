/* At DTR_DEBUG=detail a collective on device memory is launched once all its ranks have come and
 * say the same of it. Who waits there in vain while the ranks that are missing wait for it in
 * another group has found an order of launches that NCCL would never come back from. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "declare.h"
#include "exchange.h"
#include "groups.h"
#include "nccl/nccl_internal.h"
#include "rt_peers.h"
#include "verdict.h"

#define MS INT64_C(1000000)
enum { CROSSED_EVERY_MS = 50, CROSSED_FOR_MS = 500 };

/* Where a rank that has not come has been seen. */
typedef struct crossing {
    int member; /* of this group, -1: none */
    uint64_t uid, seq;
    int64_t since_ns;
} crossing;

typedef struct meeting {
    dtr_group *group;
    const dtr_work *work;
    dtr__declaration *mine, *theirs; /* to and from each rank */
    bool *come;
    int n_come;
    dtr__backoff backoff;
    int64_t look_ns;
    crossing seen;
} meeting;

/* ---- another order ---- */

/* The first rank that has not come, and the collective it is inside of. */
static crossing look_for_absent(const meeting *m, int64_t now) {
    crossing c = { .member = -1, .since_ns = now };
    const dtr_group *g = m->group;
    for (int r = 0; r < g->size; r++) {
        if (!m->come[r] && dtr__peer_inside(g->world, g->world_ranks[r], &c.uid, &c.seq) &&
            c.uid != g->uid) {
            c.member = r;
            return c;
        }
    }
    return c;
}

static dtr_status fail_crossed(const meeting *m, const dtr_group *other, const dtr__said *said) {
    char title[256], site[128];
    const dtr_work *w = m->work;
    const dtr_group *g = m->group;
    dtr__error_context ctx = dtr__work_context(w);
    return DTR_FAIL(&ctx, DTR_ERR_MISMATCH,
                    "ranks launch operations of several groups in different orders, which NCCL "
                    "would never end: rank %d is in %s (called at %s) and has not called %s "
                    "#%" PRIu64 " of group '%s', in which rank %d of group '%s' is (called at "
                    "%.48s) without having called the other; all ranks must call those of several "
                    "groups in one order. Both groups are broken",
                    dtr__rank_told(g, g->rank), dtr__work_title(w, title, sizeof title),
                    dtr__call_site_text(&w->call, site, sizeof site),
                    dtr__kind_name((dtr__kind)said->kind), m->seen.seq, other->name,
                    dtr__rank_told(g, m->seen.member), g->name, said->site);
}

/* A member waits for this rank in another group, as this one for it, and neither moves. */
static void accuse_crossed(const meeting *m, dtr__queue *called) {
    dtr_group *g = m->group;
    dtr__groups *gs = g->world->groups;
    dtr__said said;
    const crossing *c = &m->seen;
    if (!dtr__peer_said(g->world, g->world_ranks[c->member], c->uid, c->seq, &said) ||
        said.kind >= DTR__K_COUNT) {
        return;
    }
    pthread_mutex_lock(&gs->lock);
    for (dtr_group *other = gs->first; other != NULL; other = other->next) {
        if (other->uid == c->uid && atomic_load(&other->seq) < c->seq) {
            dtr__groups_accuse(g, other, fail_crossed(m, other, &said), called);
        }
    }
    pthread_mutex_unlock(&gs->lock);
}

static void look_for_crossed(meeting *m) {
    dtr__queue called = { NULL, NULL };
    int64_t now = dtr__now_ns();
    if (now < m->look_ns) {
        return;
    }
    m->look_ns = now + CROSSED_EVERY_MS * MS;
    crossing c = look_for_absent(m, now);
    bool same = c.member == m->seen.member && c.uid == m->seen.uid && c.seq == m->seen.seq;
    if (c.member < 0 || !same) {
        m->seen = c;
    } else if (now - m->seen.since_ns >= CROSSED_FOR_MS * MS) {
        accuse_crossed(m, &called);
        dtr__callbacks_run(&called);
    }
}

/* ---- meeting ---- */

static const char *key_of(const meeting *m, int rank, char key[DTR__KEY_SIZE]) {
    snprintf(key, DTR__KEY_SIZE, "detail/%" PRIu64 "/%d", m->work->seq, rank);
    return key;
}

static dtr_status tell_all(const meeting *m) {
    const dtr_group *g = m->group;
    char key[DTR__KEY_SIZE];
    for (int i = 0; i < g->size; i++) {
        dtr__declare(m->work, i, &m->mine[i]);
        if (i != g->rank) {
            DTR_TRY(dtr__exchange_tell(m->group, DTR_CUDA, i, key_of(m, g->rank, key), &m->mine[i],
                                       sizeof m->mine[i]));
        }
    }
    m->theirs[g->rank] = m->mine[g->rank];
    m->come[g->rank] = true;
    return DTR_OK;
}

static dtr_status look_for_all(meeting *m) {
    char key[DTR__KEY_SIZE];
    size_t nbytes = 0;
    for (int i = 0; i < m->group->size; i++) {
        if (!m->come[i]) {
            DTR_TRY(dtr__exchange_look(m->group, DTR_CUDA, key_of(m, i, key), &m->theirs[i],
                                       sizeof m->theirs[i], &nbytes, &m->come[i]));
            m->n_come += m->come[i];
        }
    }
    return DTR_OK;
}

/* The limit is the operation's, which the engine watches. Once a member is known to have found what
 * breaks the group, nothing is launched, whoever has come. */
static dtr_status wait_for_all(meeting *m) {
    dtr_world *world = m->group->world;
    dtr__progress_wake(world);
    for (;;) {
        DTR_TRY(look_for_all(m));
        if (m->n_come == m->group->size - 1 && !dtr__verdict_is_put(world, m->group->uid)) {
            return DTR_OK;
        }
        dtr__notices_visit(world);
        if (atomic_load_explicit(&m->group->status, memory_order_acquire) != DTR_OK) {
            return dtr__group_broken(m->group);
        }
        if (!dtr__progress_has_thread(world)) {
            dtr__progress_poll_all(world);
        }
        look_for_crossed(m);
        dtr__backoff_pause(world, &m->backoff);
    }
}

static dtr_status meet(meeting *m) {
    char prefix[DTR__KEY_SIZE];
    DTR_TRY(tell_all(m));
    DTR_TRY(wait_for_all(m));
    snprintf(prefix, sizeof prefix, "detail/%" PRIu64 "/", m->work->seq);
    dtr__exchange_forget(m->group, prefix);
    return dtr__declared_alike(m->work, m->mine, m->theirs);
}

dtr_status dtr__nccl_meet(const dtr__nccl_comm *c, const dtr_work *w) {
    size_t n = (size_t)c->group->size;
    if (!dtr__at_detail(c->group->world) || c->local || dtr__kind_is_p2p(w->call.kind)) {
        return DTR_OK;
    }
    meeting m = { .group = c->group, .work = w, .seen = { .member = -1 } };
    m.mine = calloc(2 * n, sizeof *m.mine);
    m.come = calloc(n, sizeof *m.come);
    m.theirs = m.mine + n;
    dtr_status s = DTR_OK;
    if (m.mine == NULL || m.come == NULL) {
        dtr__error_context ctx = dtr__work_context(w);
        s = DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory to compare an operation of %zu ranks", n);
    }
    s = s == DTR_OK ? meet(&m) : s;
    free(m.mine);
    free(m.come);
    return s;
}
