/* Meetings of the ranks of a communicator, over the group's exchange of keys. */
#include "nccl/nccl_meeting.h"

#include <stdio.h>

enum { LATE_MS = 300 }; /* the first rank, who knows more, is to be the one who gives up */

/* ---- messages ---- */

int dtr__nccl_meeting_rank(const dtr__nccl_comm *c, int rank) {
    return c->low < 0 ? rank : rank == 0 ? c->low : c->high;
}

static const char *key_of(const dtr__nccl_meeting *m, const char *what, int rank,
                          char key[DTR__KEY_SIZE]) {
    snprintf(key, DTR__KEY_SIZE, "%s%s/%d", m->prefix, what, rank);
    return key;
}

dtr_status dtr__nccl_meeting_tell(const dtr__nccl_meeting *m, int rank, const char *what, int about,
                                  const void *value, size_t nbytes) {
    char key[DTR__KEY_SIZE];
    return dtr__exchange_tell(m->group, DTR_CUDA, dtr__nccl_meeting_rank(m->comm, rank),
                              key_of(m, what, about, key), value, nbytes);
}

dtr_status dtr__nccl_meeting_tell_all(const dtr__nccl_meeting *m, const char *what,
                                      const void *value, size_t nbytes) {
    for (int r = 1; r < m->comm->size; r++) {
        DTR_TRY(dtr__nccl_meeting_tell(m, r, what, 0, value, nbytes));
    }
    return DTR_OK;
}

dtr_status dtr__nccl_meeting_look(const dtr__nccl_meeting *m, const char *what, int about,
                                  void *value, size_t nbytes, bool *found) {
    char key[DTR__KEY_SIZE];
    dtr__error_context ctx = { .world = m->group->world, .group = m->group->name };
    size_t got = 0;
    DTR_TRY(dtr__exchange_look(m->group, DTR_CUDA, key_of(m, what, about, key), value, nbytes, &got,
                               found));
    DTR_REQUIRE(!*found || got == nbytes, &ctx, DTR_ERR_INTERNAL,
                "group '%s': key \"%s\" has %zu bytes instead of %zu", m->group->name, key, got,
                nbytes);
    return DTR_OK;
}

/* ---- waiting ---- */

dtr_status dtr__nccl_meeting_rest(dtr__nccl_meeting *m) {
    dtr_world *w = m->group->world;
    double limit = m->limit_s + (m->comm->rank != 0 ? LATE_MS * 1e-3 : 0);
    dtr__notices_visit(w);
    if (atomic_load_explicit(&m->group->status, memory_order_acquire) != DTR_OK) {
        return dtr__group_broken(m->group);
    }
    if (dtr__now() - m->began >= limit) {
        return m->expired(m);
    }
    if (!dtr__progress_has_thread(w)) {
        dtr__progress_poll_all(w);
    }
    dtr__backoff_pause(w, &m->backoff);
    return DTR_OK;
}

dtr_status dtr__nccl_meeting_await(dtr__nccl_meeting *m, const char *what, int about, void *value,
                                   size_t nbytes) {
    bool found = false;
    for (;;) {
        DTR_TRY(dtr__nccl_meeting_look(m, what, about, value, nbytes, &found));
        if (found) {
            return DTR_OK;
        }
        DTR_TRY(dtr__nccl_meeting_rest(m));
    }
}

/* ---- outcomes ---- */

dtr_status dtr__nccl_meeting_seen(const dtr__nccl_meeting *m, dtr__nccl_outcome *o) {
    bool found = false;
    if (m->comm->rank != 0) {
        dtr__nccl_outcome all = { 0 };
        DTR_TRY(dtr__nccl_meeting_look(m, "all", 0, &all, sizeof all, &found));
        if (found && all.refused >= m->worst) {
            *o = all;
        }
        return DTR_OK;
    }
    for (int r = 1; r < m->comm->size && o->refused < m->worst; r++) {
        dtr__nccl_outcome one = { 0 };
        DTR_TRY(dtr__nccl_meeting_look(m, "own", r, &one, sizeof one, &found));
        if (found && one.refused >= m->worst) {
            *o = one;
        }
    }
    return DTR_OK;
}

dtr_status dtr__nccl_meeting_agree(dtr__nccl_meeting *m, dtr__nccl_outcome *o) {
    const dtr__nccl_comm *c = m->comm;
    if (c->rank != 0) {
        DTR_TRY(dtr__nccl_meeting_tell(m, 0, "own", c->rank, o, sizeof *o));
        return dtr__nccl_meeting_await(m, "all", 0, o, sizeof *o);
    }
    for (int r = 1; r < c->size && o->refused < m->worst; r++) {
        dtr__nccl_outcome one = { 0 };
        DTR_TRY(dtr__nccl_meeting_await(m, "own", r, &one, sizeof one));
        *o = one.refused > o->refused ? one : *o;
    }
    return dtr__nccl_meeting_tell_all(m, "all", o, sizeof *o);
}
