/* How the ranks of a communicator come to one outcome, over the group's key-value exchange. */
#include "nccl_agree.h"
#include "core/team.h"
#include "failure/notify.h"

#include <stdio.h>

enum { LATER_MS = 300 }; /* the first rank, who knows more, is to be the one who gives up */

/* ---- messages ---- */

int dtr__nccl_agreement_rank(const dtr__nccl_comm *c, int rank) {
    return c->low < 0 ? rank : rank == 0 ? c->low : c->high;
}

static const char *key_of(const dtr__nccl_agreement *m, const char *what, int rank,
                          char key[DTR__KEY_SIZE]) {
    snprintf(key, DTR__KEY_SIZE, "%s%s/%d", m->prefix, what, rank);
    return key;
}

dtr_status dtr__nccl_agreement_send(const dtr__nccl_agreement *m, int rank, const char *what,
                                    int about, const void *value, size_t nbytes) {
    char key[DTR__KEY_SIZE];
    return dtr__key_value_put_to(m->group, DTR_CUDA, dtr__nccl_agreement_rank(m->comm, rank),
                                 key_of(m, what, about, key), value, nbytes);
}

dtr_status dtr__nccl_agreement_send_all(const dtr__nccl_agreement *m, const char *what,
                                        const void *value, size_t nbytes) {
    for (int r = 1; r < m->comm->size; r++) {
        DTR_TRY(dtr__nccl_agreement_send(m, r, what, 0, value, nbytes));
    }
    return DTR_OK;
}

dtr_status dtr__nccl_agreement_poll(const dtr__nccl_agreement *m, const char *what, int about,
                                    void *value, size_t nbytes, bool *found) {
    char key[DTR__KEY_SIZE];
    dtr__error_context ctx = { .world = m->group->world, .group = m->group->name };
    size_t got = 0;
    DTR_TRY(dtr__key_value_poll(m->group, DTR_CUDA, key_of(m, what, about, key), value, nbytes,
                                &got, found));
    DTR_REQUIRE(!*found || got == nbytes, &ctx, DTR_ERR_INTERNAL,
                "group '%s': key \"%s\" has %zu bytes instead of %zu", m->group->name, key, got,
                nbytes);
    return DTR_OK;
}

/* ---- waiting ---- */

static dtr_status wait_a_moment(dtr__nccl_agreement *m) {
    double limit = m->limit_s + (m->comm->rank != 0 ? LATER_MS * 1e-3 : 0);
    DTR_TRY(dtr__nccl_pause(m->group, &m->backoff));
    return dtr__now() - m->began >= limit ? m->expired(m) : DTR_OK;
}

dtr_status dtr__nccl_agreement_await(dtr__nccl_agreement *m, const char *what, int about,
                                     void *value, size_t nbytes) {
    bool found = false;
    for (;;) {
        DTR_TRY(dtr__nccl_agreement_poll(m, what, about, value, nbytes, &found));
        if (found) {
            return DTR_OK;
        }
        DTR_TRY(wait_a_moment(m));
    }
}

/* ---- outcomes ---- */

/* One look: whether another rank has had the worst outcome. */
static dtr_status worst_seen(const dtr__nccl_agreement *m, dtr__nccl_outcome *o) {
    bool found = false;
    if (m->comm->rank != 0) {
        dtr__nccl_outcome all = { 0 };
        DTR_TRY(dtr__nccl_agreement_poll(m, "all", 0, &all, sizeof all, &found));
        if (found && all.refused >= m->worst) {
            *o = all;
        }
        return DTR_OK;
    }
    for (int r = 1; r < m->comm->size && o->refused < m->worst; r++) {
        dtr__nccl_outcome one = { 0 };
        DTR_TRY(dtr__nccl_agreement_poll(m, "own", r, &one, sizeof one, &found));
        if (found && one.refused >= m->worst) {
            *o = one;
        }
    }
    return DTR_OK;
}

dtr_status dtr__nccl_agreement_settle(dtr__nccl_agreement *m, int *code, dtr__nccl_outcome *o) {
    dtr__nccl_comm *c = m->comm;
    while (*code == c->ops->in_progress) {
        DTR_TRY(worst_seen(m, o));
        if (o->refused >= m->worst) {
            return DTR_OK;
        }
        if (!dtr__nccl_poll(c, code)) {
            return dtr__group_broken(m->group);
        }
        if (*code == c->ops->in_progress) { /* who is ready when asked has not come too late */
            DTR_TRY(wait_a_moment(m));
        }
    }
    return DTR_OK;
}

dtr_status dtr__nccl_agreement_conclude(dtr__nccl_agreement *m, dtr__nccl_outcome *o) {
    const dtr__nccl_comm *c = m->comm;
    if (c->rank != 0) {
        DTR_TRY(dtr__nccl_agreement_send(m, 0, "own", c->rank, o, sizeof *o));
        return dtr__nccl_agreement_await(m, "all", 0, o, sizeof *o);
    }
    for (int r = 1; r < c->size && o->refused < m->worst; r++) {
        dtr__nccl_outcome one = { 0 };
        DTR_TRY(dtr__nccl_agreement_await(m, "own", r, &one, sizeof one));
        *o = one.refused > o->refused ? one : *o;
    }
    return dtr__nccl_agreement_send_all(m, "all", o, sizeof *o);
}
