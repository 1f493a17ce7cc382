/* At DTR_DEBUG=detail a collective on device memory is launched once all its ranks have come and
 * say the same of it. Who waits there in vain while the ranks that are missing wait for it in
 * another group has found an order of launches that NCCL would never come back from. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "agreement/key_value.h"
#include "control/peers.h"
#include "core/call_site.h"
#include "core/signature.h"
#include "core/team.h"
#include "failure/failure.h"
#include "failure/notify.h"
#include "nccl_internal.h"

#define MS INT64_C(1000000)
enum { CROSSED_EVERY_MS = 50, CROSSED_FOR_MS = 500 };

/* Where a rank that has not come has been seen. */
typedef struct crossing {
    int member; /* of this group, -1: none */
    uint64_t uid, seq;
    int64_t since_ns;
} crossing;

typedef struct comparison {
    dtr_group *group;
    const dtr_work *work;
    dtr__signature *mine, *theirs; /* to and from each rank */
    bool *come;
    int n_come;
    dtr__backoff backoff;
    int64_t next_ns;
    crossing seen;
} comparison;

/* ---- another order ---- */

/* The first rank that has not come, and the collective it is inside of. */
static crossing find_absent(const comparison *m, int64_t now) {
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

static dtr_status fail_crossed(const comparison *m, const dtr_group *other,
                               const dtr__called *theirs_called) {
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
                    dtr__reported_rank(g, g->rank), dtr__work_title(w, title, sizeof title),
                    dtr__call_site_text(&w->call, site, sizeof site),
                    dtr__kind_name((dtr__kind)theirs_called->kind), m->seen.seq, other->name,
                    dtr__reported_rank(g, m->seen.member), g->name, theirs_called->site);
}

/* A member waits for this rank in another group, as this one for it, and neither moves. */
static void report_crossed(const comparison *m, dtr__queue *called) {
    dtr_group *g = m->group;
    dtr__groups *gs = g->world->groups;
    dtr__called theirs_called;
    const crossing *c = &m->seen;
    if (!dtr__peer_called(g->world, g->world_ranks[c->member], c->uid, c->seq, &theirs_called,
                          NULL) ||
        theirs_called.kind >= DTR__K_COUNT) {
        return;
    }
    pthread_mutex_lock(&gs->lock);
    for (dtr_group *other = gs->first; other != NULL; other = other->next) {
        if (other->uid == c->uid && atomic_load(&other->count.seq) < c->seq) {
            dtr__groups_report_failure(g, other, fail_crossed(m, other, &theirs_called), called);
        }
    }
    pthread_mutex_unlock(&gs->lock);
}

static void find_crossed(comparison *m) {
    dtr__queue called = { NULL, NULL };
    int64_t now = dtr__now_ns();
    if (now < m->next_ns) {
        return;
    }
    m->next_ns = now + CROSSED_EVERY_MS * MS;
    crossing c = find_absent(m, now);
    bool same = c.member == m->seen.member && c.uid == m->seen.uid && c.seq == m->seen.seq;
    if (c.member < 0 || !same) {
        m->seen = c;
    } else if (now - m->seen.since_ns >= CROSSED_FOR_MS * MS) {
        report_crossed(m, &called);
        dtr__callbacks_run(&called);
    }
}

/* ---- comparing ---- */

static const char *key_of(const comparison *m, int rank, char key[DTR__KEY_SIZE]) {
    snprintf(key, DTR__KEY_SIZE, "detail/%" PRIu64 "/%d", m->work->seq, rank);
    return key;
}

static dtr_status send_all(const comparison *m) {
    const dtr_group *g = m->group;
    char key[DTR__KEY_SIZE];
    for (int i = 0; i < g->size; i++) {
        dtr__signature_of(m->work, i, &m->mine[i]);
        if (i != g->rank) {
            DTR_TRY(dtr__key_value_put_to(m->group, DTR_CUDA, i, key_of(m, g->rank, key),
                                          &m->mine[i], sizeof m->mine[i]));
        }
    }
    m->theirs[g->rank] = m->mine[g->rank];
    m->come[g->rank] = true;
    return DTR_OK;
}

static dtr_status poll_all(comparison *m) {
    char key[DTR__KEY_SIZE];
    size_t nbytes = 0;
    for (int i = 0; i < m->group->size; i++) {
        if (!m->come[i]) {
            DTR_TRY(dtr__key_value_poll(m->group, DTR_CUDA, key_of(m, i, key), &m->theirs[i],
                                        sizeof m->theirs[i], &nbytes, &m->come[i]));
            m->n_come += m->come[i];
        }
    }
    return DTR_OK;
}

/* The limit is the operation's, which the engine watches. Once a member is known to have found what
 * breaks the group, nothing is launched, no matter which ranks have come. */
static dtr_status wait_for_all(comparison *m) {
    dtr_world *world = m->group->world;
    dtr__progress_wake(world);
    for (;;) {
        DTR_TRY(poll_all(m));
        if (m->n_come == m->group->size - 1 && !dtr__failure_record_is_put(world, m->group->uid)) {
            return DTR_OK;
        }
        DTR_TRY(dtr__nccl_pause(m->group, &m->backoff));
        find_crossed(m);
    }
}

static dtr_status compare(comparison *m) {
    char prefix[DTR__KEY_SIZE];
    DTR_TRY(send_all(m));
    DTR_TRY(wait_for_all(m));
    snprintf(prefix, sizeof prefix, "detail/%" PRIu64 "/", m->work->seq);
    dtr__key_value_forget(m->group, prefix);
    return dtr__signatures_match(m->work, m->mine, m->theirs);
}

dtr_status dtr__nccl_compare(const dtr__nccl_comm *c, const dtr_work *w) {
    size_t n = (size_t)c->group->size;
    if (!dtr__at_detail(c->group->world) || c->local || dtr__kind_is_p2p(w->call.kind)) {
        return DTR_OK;
    }
    comparison m = { .group = c->group, .work = w, .seen = { .member = -1 } };
    m.mine = calloc(2 * n, sizeof *m.mine);
    m.come = calloc(n, sizeof *m.come);
    m.theirs = m.mine + n;
    dtr_status s = DTR_OK;
    if (m.mine == NULL || m.come == NULL) {
        dtr__error_context ctx = dtr__work_context(w);
        s = DTR_FAIL(&ctx, DTR_ERR_NOMEM, "no memory to compare an operation of %zu ranks", n);
    }
    s = s == DTR_OK ? compare(&m) : s;
    free(m.mine);
    free(m.come);
    return s;
}
