/* Meetings. The lowest rank that takes part is the chair: everybody enters there, and it proposes
 * what meet_decide.c decides. Nobody leaves with DTR_OK before all have accepted, so a rank that
 * gave up at its deadline can never be counted in. The second lowest rank, the deputy, hears who
 * enters too: it speaks where the chair is the one who is missing.
 *
 * A rank whose limit is reached withdraws, and that ends the meeting for all who came. What a rank
 * sent to a meeting that has ended counts for nothing: a withdrawn entry is dropped, and every
 * answer carries the number of the entry it answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "death.h"
#include "ending.h"
#include "meet_chair.h"
#include "rt_peers.h"

/* A rank that came this much later than the one whose limit was reached waits for its own: equal
 * limits then end at the limit everywhere, never a moment before. */
#define SKEW_S 0.1

/* ---- state ---- */

dtr__meetings *dtr__meetings_new(const dtr_world *world, uint64_t epoch) {
    dtr__meetings *ms = calloc(1, sizeof(*ms));
    dtr__up **waiting = calloc((size_t)world->size, sizeof(dtr__up *));
    if (ms == NULL || waiting == NULL) {
        free(ms);
        free(waiting);
        return NULL;
    }
    ms->waiting = waiting;
    ms->n_waiting = world->size;
    ms->epoch = epoch;
    /* Uids are handed out by the chair of a meeting; the rank keeps them apart. */
    ms->next_uid = ((uint64_t)world->rank << 40) + DTR__WORLD_UID + 1;
    return ms;
}

void dtr__meetings_free(dtr__meetings *ms, bool mpi_alive) {
    if (ms == NULL) {
        return;
    }
    if (mpi_alive) {
        dtr__post_end(&ms->out);
    }
    for (int i = 0; i < ms->n_waiting; i++) {
        free(ms->waiting[i]);
    }
    free(ms->waiting);
    free(ms);
}

/* ---- receiving ---- */

static int position(const dtr__meeting *m, int rank) {
    for (int i = 0; i < m->n; i++) {
        if (m->ranks[i] == rank) {
            return i;
        }
    }
    return -1;
}

/* The rank `from` has given up the entry that lies here. Where it knew that this rank is in the
 * meeting, the meeting is over for all; else it left before, and its entry counts for nothing. */
static void withdrawn(dtr__meeting *m, int from, int saw) {
    dtr__up *up = m->ms->waiting[from];
    int i = position(m, from);
    bool part = i >= 0 && m->phase != DTR__ENDED && dtr__meeting_is_for(m, &up->entry);
    double limit_s = up->entry.limit_s;
    bool knew = (saw & (m->me == 0 ? DTR__SAW_CHAIR : DTR__SAW_DEPUTY)) != 0;
    if (part && m->me == 0 && knew) {
        dtr__meeting_all_came(m);
        if (m->phase == DTR__AGREEING) {
            snprintf(m->text, sizeof(m->text), "%s: rank %d gave up after its limit of %g s",
                     m->what, from, limit_s);
            dtr__meeting_end_all(m, DTR_ERR_TIMEOUT, DTR_ERR_TIMEOUT);
        } else {
            dtr__meeting_time_out(m, limit_s);
        }
        return;
    }
    if (part && m->me == 1 && knew && m->phase == DTR__GATHERING && dtr__meeting_chair_missing(m)) {
        dtr__meeting_all_came(m);
        dtr__meeting_send_up(m, 0, DTR__UP_WITHDRAW);
        dtr__meeting_time_out(m, limit_s);
        return;
    }
    free(up);
    m->ms->waiting[from] = NULL;
    if (part && m->me == 0 && m->phase == DTR__AGREEING) {
        dtr__chair_regather(m);
    }
}

static void take_up(dtr__meeting *m, dtr__up *up, int from) {
    dtr__up **slot = &m->ms->waiting[from];
    bool current = *slot != NULL && (*slot)->number == up->number;
    if (up->kind == DTR__UP_ENTER) {
        free(*slot);
        *slot = up;
        int i = position(m, from);
        if (i >= 0) { /* a new attempt: nothing said to the former one counts */
            m->greeted[i] = false;
            m->accepted[i] = false;
        }
        return;
    }
    if (current && up->kind == DTR__UP_WITHDRAW) {
        withdrawn(m, from, up->detail);
    } else if (current && m->phase == DTR__AGREEING && up->detail == m->round) {
        int i = position(m, from);
        if (i >= 0) {
            m->accepted[i] = true;
        }
    }
    free(up);
}

static void take_down(dtr__meeting *m, const dtr__down *down, size_t nbytes, int from) {
    if (down->number != m->number || m->phase == DTR__ENDED) {
        return;
    }
    m->saw |= from == m->ranks[0] ? DTR__SAW_CHAIR : DTR__SAW_DEPUTY;
    if (down->kind == DTR__DOWN_HERE && from == m->ranks[0] && m->phase == DTR__AGREEING) {
        free(m->out->members);
        *m->out = (dtr__outcome){ 0 };
        m->phase = DTR__GATHERING;
        m->deadline = m->began + m->mine->limit_s;
    } else if (down->kind == DTR__DOWN_FINAL) {
        if (from != m->ranks[0] && m->phase == DTR__GATHERING) {
            dtr__meeting_send_up(
                m, 0, DTR__UP_WITHDRAW); /* the chair does not know what the deputy said */
        }
        memcpy(m->text, down->text, sizeof(m->text));
        dtr__meeting_end(m, down->answer.status);
    } else if (down->kind == DTR__DOWN_PROPOSE && m->phase == DTR__GATHERING) {
        size_t n_members = (size_t)down->n_members;
        int *members = NULL;
        if (n_members > 0 && nbytes == sizeof(*down) + sizeof(int) * n_members) {
            members = malloc(sizeof(int) * n_members);
            if (members == NULL) {
                return; /* not accepted: the chair's deadline ends it */
            }
            memcpy(members, down + 1, sizeof(int) * n_members);
        }
        dtr__meeting_take_answer(m, &down->answer, members, down->n_members);
        m->phase = DTR__AGREEING;
        m->round = down->round;
        /* The chair has promised to come back within its own DTR__FINISH_S. */
        m->deadline = dtr__now() + 2 * DTR__FINISH_S;
        dtr__meeting_send_up(m, 0, DTR__UP_ACCEPT);
    } else if (down->kind == DTR__DOWN_COMMIT && m->phase == DTR__AGREEING) {
        dtr__meeting_end(m, DTR_OK);
    }
}

/* Everything that has arrived; `moved` when there was something. */
static dtr_status receive_all(dtr__meeting *m, bool *moved) {
    void *message = NULL;
    size_t nbytes = 0;
    int from = -1;
    *moved = false;
    for (;;) {
        DTR_TRY(dtr__receive(m->world, DTR__TAG_MEET_UP, &message, &nbytes, &from));
        dtr__up *up = message;
        if (up == NULL) {
            break;
        }
        *moved = true;
        bool whole = nbytes == sizeof(*up) ||
                     (nbytes == offsetof(dtr__up, entry) && up->kind != DTR__UP_ENTER);
        if (whole && up->epoch == m->ms->epoch) {
            take_up(m, up, from);
        } else {
            free(up);
        }
    }
    for (;;) {
        DTR_TRY(dtr__receive(m->world, DTR__TAG_MEET_DOWN, &message, &nbytes, &from));
        dtr__down *down = message;
        if (down == NULL) {
            return DTR_OK;
        }
        *moved = true;
        if (nbytes >= sizeof(*down) && down->epoch == m->ms->epoch) {
            take_down(m, down, nbytes, from);
        }
        free(down);
    }
}

/* ---- deadlines ---- */

/* The limit is reached. */
static void expire(dtr__meeting *m) {
    bool chair = m->me == 0;
    if (m->phase == DTR__AGREEING) {
        int silent = -1;
        for (int i = 0; i < m->n && chair; i++) {
            silent = silent < 0 && i != m->me && !m->accepted[i] ? i : silent;
        }
        snprintf(m->text, sizeof(m->text),
                 "%s: all %d ranks came, but then rank %d did not answer for %g s", m->what, m->n,
                 m->ranks[chair ? silent : 0], chair ? DTR__FINISH_S : 2 * DTR__FINISH_S);
        if (chair) {
            dtr__meeting_end_all(m, DTR_ERR_TIMEOUT, DTR_ERR_TIMEOUT);
        } else {
            dtr__meeting_end(m, DTR_ERR_TIMEOUT);
        }
        return;
    }
    if (chair || (m->me == 1 && dtr__meeting_chair_missing(m))) {
        dtr__meeting_all_came(m);
        if (!chair) {
            dtr__meeting_send_up(m, 0, DTR__UP_WITHDRAW);
        }
        dtr__meeting_time_out(m, m->mine->limit_s);
        return;
    }
    if (m->phase == DTR__GATHERING) {
        dtr__meeting_send_up_all(m, DTR__UP_WITHDRAW);
        m->phase = DTR__LISTENING;
        m->deadline = dtr__now() + DTR__LISTEN_S;
        return;
    }
    snprintf(m->text, sizeof(m->text),
             "%s: not all of %d ranks came within %g s; who is missing is not known, because "
             "rank %d%s, which keeps the list of callers, did not answer",
             m->what, m->n, m->mine->limit_s, m->ranks[0],
             dtr__meeting_chair_missing(m) ? " is missing too" : "");
    dtr__meeting_end(m, DTR_ERR_TIMEOUT);
}

/* The watched group has broken. All of its members learn that by themselves, so nothing is said
 * here but that this rank's entry is void. */
static void give_up(dtr__meeting *m) {
    if (m->me != 0) {
        m->saw = 0;
        dtr__meeting_send_up_all(m, DTR__UP_WITHDRAW);
    }
    dtr__meeting_end(m, (dtr_status)atomic_load(&m->watch->status));
    m->watch_broke = true;
}

/* A chair whose end of the world has failed tells whoever has come, and waits for nobody: who comes
 * later would wait for it in vain. What it may have sent is waited for a moment. */
static void follow_chair(dtr__meeting *m) {
    if (m->mine->end == 0 || m->me == 0 || m->phase != DTR__GATHERING ||
        !dtr__peer_has_left(m->world, m->ranks[0])) {
        return;
    }
    if (m->left_at == 0) {
        m->left_at = dtr__now();
    } else if (dtr__now() - m->left_at >= DTR__LEFT_S) {
        snprintf(m->text, sizeof(m->text),
                 "%s: rank %d, which keeps the list of callers, has ended its world with a failure "
                 "before this rank came",
                 m->what, m->ranks[0]);
        dtr__meeting_end(m, DTR_ERR_TIMEOUT);
    }
}

/* One round; the right to call MPI is held. */
static dtr_status step(dtr__meeting *m, bool *moved) {
    DTR_TRY(receive_all(m, moved));
    if (m->me == 0 && m->phase != DTR__ENDED) {
        DTR_TRY(dtr__chair_step(m));
    } else if (m->me == 1 && m->phase == DTR__GATHERING && dtr__meeting_chair_missing(m)) {
        dtr__meeting_all_came(m);
    }
    if (m->phase == DTR__ENDED) {
        return DTR_OK;
    }
    const char *death = NULL;
    if (dtr__first_dead(m->world, m->ranks, m->n, &death) >= 0) {
        snprintf(m->text, sizeof(m->text), "%s: %.900s", m->what, death);
        dtr__meeting_end(m, DTR_ERR_REMOTE);
        return DTR_OK;
    }
    follow_chair(m);
    if (m->phase == DTR__ENDED) {
        return DTR_OK;
    }
    bool broke =
        m->watch != NULL && m->phase != DTR__AGREEING && atomic_load(&m->watch->status) != DTR_OK;
    if (broke) {
        give_up(m);
    } else if (dtr__now() >= m->deadline) {
        expire(m);
    }
    return DTR_OK;
}

/* Between two rounds other groups move on. */
static void pause_between(dtr__meeting *m, bool moved, dtr__backoff *backoff) {
    dtr__notices_visit(m->world);
    if (m->mine->end != 0) {
        dtr__ending_look(m->world);
    }
    if (!dtr__progress_has_thread(m->world)) {
        dtr__progress_poll_all(m->world);
    }
    if (moved) {
        *backoff = (dtr__backoff){ 0 };
    }
    dtr__backoff_pause(m->world, backoff);
}

static dtr_status run(dtr__meeting *m) {
    dtr__backoff backoff = { 0 };
    for (bool first = true;; first = false) {
        bool moved = false;
        dtr__mpi_lock(m->world);
        if (first && m->me != 0) {
            dtr__meeting_send_up_all(m, DTR__UP_ENTER);
            if (m->mine->end != 0 && m->mine->status < 0) { /* nor does the chair wait then */
                dtr__meeting_end(m, (dtr_status)m->mine->status);
            }
        }
        dtr_status s = step(m, &moved);
        if (s < 0 || m->phase == DTR__ENDED) {
            dtr__post_reap(&m->ms->out);
        }
        dtr__mpi_unlock(m->world);
        DTR_TRY(s);
        if (m->phase == DTR__ENDED) {
            break;
        }
        pause_between(m, moved, &backoff);
    }
    double limit = m->began + m->mine->limit_s;
    while (m->status == DTR_ERR_TIMEOUT && limit - dtr__now() < SKEW_S && dtr__now() < limit) {
        dtr__backoff_pause(m->world, &backoff);
    }
    return m->status;
}

/* ---- entry ---- */

static int by_rank(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static dtr_status prepare(dtr__meeting *m, const int *ranks, int n) {
    DTR_TRY(dtr__meeting_alloc(m, n));
    memcpy(m->ranks, ranks, sizeof(int) * (size_t)n);
    qsort(m->ranks, (size_t)n, sizeof(int), by_rank);
    m->me = position(m, m->world->rank);
    m->began = dtr__now();
    m->deadline = m->began + m->mine->limit_s;
    m->number = ++m->ms->number;
    return DTR_OK;
}

/* The message was written by the chair; a rank that brought its own failure keeps its own. */
static dtr_status finish(dtr__meeting *m, dtr_status s) {
    dtr__error_context ctx = { .world = m->world, .operation = m->what };
    if (s >= 0) {
        return DTR_OK;
    }
    free(m->out->members);
    *m->out = (dtr__outcome){ 0 };
    if (m->phase != DTR__ENDED) {
        return s; /* MPI or memory, with its own message */
    }
    if (m->watch_broke) {
        return dtr__error_restore(m->watch->error, s);
    }
    return DTR_FAIL(&ctx, s, "%s", m->text);
}

dtr_status dtr__meet(dtr_world *world, const char *what, const int *ranks, int n,
                     const dtr__entry *mine, const dtr_group *watch, dtr__outcome *out) {
    *out = (dtr__outcome){ 0 };
    dtr__meeting m = { .ms = world->groups->meetings,
                       .world = world,
                       .what = what,
                       .mine = mine,
                       .watch = watch,
                       .out = out };
    dtr__error_copy *own = mine->status < 0 ? dtr__error_save() : NULL;
    dtr_status s = prepare(&m, ranks, n);
    if (s >= 0) {
        s = run(&m);
    }
    s = finish(&m, s);
    if (own != NULL && s == (dtr_status)mine->status) {
        dtr__error_restore(own, s);
    }
    dtr__error_copy_free(own);
    free(m.ranks);
    free(m.came);
    return s;
}
