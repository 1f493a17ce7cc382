/* Agreements. The lowest rank that takes part is the coordinator: it gets the entry of every rank
 * and proposes what agreement/decide.c decides. No rank returns DTR_OK before all have accepted, so
 * a rank that gave up at its deadline is never counted in. Entries, proposals and acceptances
 * travel by a tree (agreement/tree.c).
 *
 * A tree says nothing of who is below a rank that has not come. So a rank that has waited for half
 * of its limit enters directly: it sends its entry to the coordinator and to the second lowest
 * rank, the backup, which answers where the coordinator is missing. Whoever of these two gets such
 * an entry asks all who have not come to enter directly too, and a rank that comes later finds the
 * question. So when the first limit is reached it is known who has come.
 *
 * A rank whose end of the world has failed waits for nobody: it enters directly and leaves. The
 * coordinator reports the failure to all ranks, also to those whose entries are still on the way or
 * that have not come: such a report is kept until they come.
 *
 * A rank whose limit is reached withdraws, and that ends the agreement for all who came. What a
 * rank sent to an agreement that has ended counts for nothing: a withdrawn entry is dropped, and
 * every answer carries the number of the entry it answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/peers.h"
#include "coordinator.h"
#include "core/team.h"
#include "tree.h"

/* A rank that came this much later than the one whose limit was reached waits for its own: equal
 * limits then end at the limit everywhere, never a moment before. */
#define SKEW_S 0.1

/* ---- state ---- */

dtr__agreements *dtr__agreements_new(const dtr_world *world, uint64_t epoch) {
    dtr__agreements *ms = calloc(1, sizeof(*ms));
    dtr__kept **waiting = calloc((size_t)world->size, sizeof *waiting);
    uint64_t *gone = calloc((size_t)world->size, sizeof *gone);
    if (ms == NULL || waiting == NULL || gone == NULL) {
        free(ms);
        free(waiting);
        free(gone);
        return NULL;
    }
    ms->waiting = waiting;
    ms->gone = gone;
    ms->n_waiting = world->size;
    ms->epoch = epoch;
    /* The coordinator of an agreement hands out uids; its rank in them keeps them apart. */
    ms->next_uid = ((uint64_t)world->rank << 40) + DTR__WORLD_UID + 1;
    return ms;
}

void dtr__agreements_free(dtr__agreements *ms, bool mpi_alive) {
    if (ms == NULL) {
        return;
    }
    if (mpi_alive) {
        dtr__mailbox_flush(&ms->out);
        dtr__mailbox_close(&ms->in_up);
        dtr__mailbox_close(&ms->in_down);
    }
    for (int i = 0; i < ms->n_waiting; i++) {
        dtr__kept_free(ms->waiting[i]);
    }
    dtr__shared_entry_leave(ms->last);
    free(ms->waiting);
    free(ms->gone);
    free(ms);
}

int dtr__first_failed_peer(const dtr_world *world, const int *world_ranks, int n,
                           const char **text) {
    for (int i = 0; i < n && dtr__ranks_failed(world) > 0; i++) {
        if (dtr__rank_failed(world, world_ranks[i])) {
            *text = dtr__rank_failure(world, world_ranks[i]);
            return world_ranks[i];
        }
    }
    return -1;
}

/* ---- receiving ---- */

static int by_rank(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

int dtr__agreement_position(const dtr__agreement *m, int rank) {
    const int *at = bsearch(&rank, m->ranks, (size_t)m->n, sizeof rank, by_rank);
    return at != NULL ? (int)(at - m->ranks) : -1;
}

/* The rank `from` has given up the entry that this rank keeps. If this rank had answered it in this
 * very agreement, that is over for all; else the entry counts for nothing. */
static void withdrawn(dtr__agreement *m, int from, uint64_t saw) {
    dtr__kept *kept = m->ms->waiting[from];
    const dtr__entry *e = &kept->shared->entry;
    int i = dtr__agreement_position(m, from);
    bool part = i >= 0 && m->phase != DTR__ENDED && dtr__agreement_is_for(m, e);
    double limit_s = e->limit_s;
    const bool knew = saw == m->number;
    if (part && m->me == 0 && knew) {
        dtr__agreement_all_came(m);
        if (m->phase == DTR__AGREEING) {
            snprintf(m->text, sizeof(m->text), "%s: rank %d gave up after its limit of %g s",
                     m->what, from, limit_s);
            dtr__agreement_end_all(m, DTR_ERR_TIMEOUT, DTR_ERR_TIMEOUT);
        } else {
            dtr__agreement_time_out(m, limit_s);
        }
        return;
    }
    if (part && m->me == 1 && knew && m->phase == DTR__GATHERING &&
        dtr__agreement_coordinator_missing(m)) {
        dtr__agreement_all_came(m);
        dtr__agreement_withdraw(m);
        dtr__agreement_time_out(m, limit_s);
        return;
    }
    dtr__kept_free(kept);
    m->ms->waiting[from] = NULL;
    if (i >= 0) {
        dtr__agreement_changed(m, i);
    }
    if (part && m->me == 0 && m->phase == DTR__AGREEING) {
        dtr__coordinator_regather(m);
    }
}

void dtr__agreement_arrived(dtr__agreement *m, const dtr__kept *kept, int from) {
    dtr__kept **slot = &m->ms->waiting[from];
    const uint64_t known = *slot != NULL ? (*slot)->number : 0;
    if (kept->number <= m->ms->gone[from] || kept->number < known ||
        (kept->number == known && !kept->directly)) {
        return; /* it has come by another way */
    }
    dtr__kept *own = malloc(sizeof *own);
    if (own == NULL) {
        return; /* its rank counts as one that has not come */
    }
    kept->shared->n_uses++;
    *own = *kept;
    dtr__kept_free(*slot);
    *slot = own;
    int i = dtr__agreement_position(m, from);
    const bool had_come = i >= 0 && m->came[i] && known > 0; /* and has not withdrawn since */
    if (m->me != 0 && own->number > known && (m->phase == DTR__AGREEING || had_come)) {
        own->detail |= DTR__ENTER_NEXT; /* it knows already how this agreement has ended */
    }
    if (i >= 0 && own->number > known) { /* a new attempt: answers to the former one do not count */
        m->greeted[i] = false;
        m->n_accepted -= m->accepted[i];
        m->accepted[i] = false;
        m->subtree_changed = true;
    }
    if (i >= 0) {
        dtr__agreement_changed(m, i);
    }
}

static void take_entry(dtr__agreement *m, const dtr__up *up, int from) {
    dtr__shared_entry **last = &m->ms->last;
    if (*last == NULL || !dtr__entries_alike(&(*last)->entry, &up->entry)) {
        dtr__shared_entry_leave(*last);
        *last = dtr__shared_entry_new(&up->entry);
    }
    if (*last != NULL) {
        dtr__agreement_arrived(m,
                               &(dtr__kept){ .number = up->number,
                                             .key = up->entry.key,
                                             .index = up->entry.index,
                                             .detail = up->detail & DTR__ENTER_ASKED,
                                             .directly = true,
                                             .shared = *last },
                               from);
    }
}

static void take_up(dtr__agreement *m, const dtr__up *up, int from) {
    const dtr__kept *entered = m->ms->waiting[from];
    const bool current = entered != NULL && entered->number == up->number;
    if (up->kind == DTR__UP_ENTER) {
        take_entry(m, up, from);
    } else if (up->kind == DTR__UP_WITHDRAW) {
        if (current) {
            withdrawn(m, from, up->saw);
        }
        if (m->ms->gone[from] < up->number) { /* the tree may yet bring its entry */
            m->ms->gone[from] = up->number;
        }
    } else if (up->kind == DTR__UP_ACCEPT_ALL) {
        dtr__tree_take_accepted(m, up->number, up->detail, from);
    } else if (current && m->phase == DTR__AGREEING && up->detail == m->round) {
        int i = dtr__agreement_position(m, from);
        if (i >= 0) {
            m->n_accepted += !m->accepted[i];
            m->accepted[i] = true;
        }
    }
}

/* It may have come before this rank has begun what it is asked for. */
static void take_question(dtr__agreement *m, uint64_t scope) {
    if (scope != m->mine->scope) {
        m->ms->asked = scope;
    }
    if (m->phase == DTR__GATHERING && m->me != 0) {
        dtr__agreement_enter(m, true);
    }
}

static void take_commit(dtr__agreement *m, const dtr__down *down) {
    if (m->phase == DTR__AGREEING && m->me != 0 && down->root == m->ranks[0] &&
        down->number == m->root_number && down->round == m->round) {
        m->ms->n_owed += dtr__tree_commit(m);
        dtr__agreement_end(m, DTR_OK);
    } else if (m->ms->n_owed > 0) { /* by the other tree */
        m->ms->n_owed--;
    }
}

static void take_text(char *text, const dtr__down *final, size_t nbytes) {
    snprintf(text, DTR__AGREEMENT_TEXT, "%.*s", (int)(nbytes - sizeof *final),
             (const char *)(final + 1));
}

static void take_down(dtr__agreement *m, const dtr__down *down, size_t nbytes, int from) {
    if (down->kind == DTR__DOWN_ASK) {
        take_question(m, down->number);
        return;
    }
    if (down->kind == DTR__DOWN_COMMIT) {
        take_commit(m, down);
        return;
    }
    if (down->kind == DTR__DOWN_FINAL && down->number == DTR__OF_WORLD_END) {
        m->ms->end = (dtr_status)down->status;
        take_text(m->ms->end_text, down, nbytes);
        return;
    }
    if (down->number != m->number || m->phase == DTR__ENDED) {
        return;
    }
    m->saw[from != m->ranks[0]] = down->own;
    if (down->kind == DTR__DOWN_HERE && from == m->ranks[0]) {
        m->off_round = down->round > m->off_round ? down->round : m->off_round;
        if (m->phase == DTR__AGREEING && m->round <= m->off_round) {
            free(m->out->members);
            *m->out = (dtr__outcome){ 0 };
            m->phase = DTR__GATHERING;
            m->deadline = m->began + m->mine->limit_s;
        }
    } else if (down->kind == DTR__DOWN_FINAL) {
        if (from != m->ranks[0] && m->phase == DTR__GATHERING) {
            dtr__agreement_withdraw(m); /* the coordinator does not know this answer */
        }
        take_text(m->text, down, nbytes);
        dtr__agreement_end(m, (dtr_status)down->status);
    }
}

static void receive_up(dtr__agreement *m, dtr__up *up, size_t nbytes, int from) {
    enum { SHORT = offsetof(dtr__up, entry) };
    const bool ours = nbytes >= SHORT && up->epoch == m->ms->epoch;
    if (ours && up->kind == DTR__UP_BATCH) {
        dtr__tree_take_batch(m, (const dtr__batch *)up, nbytes);
    } else if (ours && nbytes == (up->kind == DTR__UP_ENTER ? sizeof(*up) : SHORT)) {
        take_up(m, up, from);
    }
    free(up);
}

static void receive_down(dtr__agreement *m, dtr__down *down, size_t nbytes, int from) {
    if (nbytes >= sizeof(*down) && down->epoch == m->ms->epoch) {
        if (down->kind == DTR__DOWN_PROPOSE) {
            dtr__tree_take_proposal(m, (dtr__proposal *)down, nbytes, from);
        } else {
            take_down(m, down, nbytes, from);
        }
    }
    free(down);
}

/* Receive everything that has arrived; `moved`: there was something. */
static dtr_status receive_all(dtr__agreement *m, bool *moved) {
    void *message = NULL;
    size_t nbytes = 0;
    int from = -1;
    *moved = false;
    for (;;) {
        DTR_TRY(dtr__mailbox_receive(m->world, &m->ms->in_up, DTR__TAG_AGREE_UP, &message, &nbytes,
                                     &from));
        if (message == NULL) {
            break;
        }
        *moved = true;
        receive_up(m, message, nbytes, from);
    }
    for (;;) {
        DTR_TRY(dtr__mailbox_receive(m->world, &m->ms->in_down, DTR__TAG_AGREE_DOWN, &message,
                                     &nbytes, &from));
        if (message == NULL) {
            return DTR_OK;
        }
        *moved = true;
        receive_down(m, message, nbytes, from);
    }
}

/* ---- deadlines ---- */

/* The limit is reached. */
static void expire(dtr__agreement *m) {
    bool coordinates = m->me == 0;
    if (m->phase == DTR__AGREEING) {
        int silent = -1;
        for (int i = 0; i < m->n && coordinates; i++) {
            silent = silent < 0 && i != m->me && !m->accepted[i] ? i : silent;
        }
        snprintf(m->text, sizeof(m->text),
                 "%s: all %d ranks came, but then rank %d did not answer for %g s", m->what, m->n,
                 m->ranks[coordinates ? silent : 0],
                 coordinates ? DTR__FINISH_S : 2 * DTR__FINISH_S);
        if (coordinates) {
            dtr__agreement_end_all(m, DTR_ERR_TIMEOUT, DTR_ERR_TIMEOUT);
        } else {
            dtr__agreement_end(m, DTR_ERR_TIMEOUT);
        }
        return;
    }
    if (coordinates || (m->me == 1 && dtr__agreement_coordinator_missing(m))) {
        dtr__agreement_all_came(m);
        if (!coordinates) {
            dtr__agreement_withdraw(m);
        }
        dtr__agreement_time_out(m, m->mine->limit_s);
        return;
    }
    if (m->phase == DTR__GATHERING) {
        dtr__agreement_withdraw(m);
        m->phase = DTR__LISTENING;
        m->deadline = dtr__now() + DTR__LISTEN_S;
        return;
    }
    snprintf(m->text, sizeof(m->text),
             "%s: not all of %d ranks came within %g s; who is missing is not known, because "
             "rank %d%s, which keeps the list of callers, did not answer",
             m->what, m->n, m->mine->limit_s, m->ranks[0],
             dtr__agreement_coordinator_missing(m) ? " is missing too" : "");
    dtr__agreement_end(m, DTR_ERR_TIMEOUT);
}

/* The watched group has broken, or a member has released it. All of its members learn that by
 * themselves, so this rank only withdraws its entry. */
static void give_up(dtr__agreement *m) {
    if (m->me != 0) {
        m->saw[0] = m->saw[1] = 0;
        dtr__agreement_withdraw(m);
    }
    m->gave_up = true;
    m->watch_broke = atomic_load(&m->watch->status) != DTR_OK;
    snprintf(m->text, sizeof(m->text), "%s: a member has released it", m->what);
    dtr__agreement_end(m,
                       m->watch_broke ? (dtr_status)atomic_load(&m->watch->status) : DTR_ERR_STATE);
}

/* The coordinator's end of the world has failed, or that of the backup which has not found the
 * coordinator: it reports that to all, if it can, and waits for nobody. */
static void follow_coordinator(dtr__agreement *m) {
    if (m->ms->end < 0 && dtr__agreement_ends_world(m)) {
        memcpy(m->text, m->ms->end_text, sizeof m->text);
        dtr__agreement_end(m, m->ms->end);
        return;
    }
    if (m->me == 0 || m->mine->end == 0) {
        return;
    }
    if (m->phase != DTR__GATHERING || !dtr__peer_has_left(m->world, m->ranks[0])) {
        return;
    }
    if (m->left_at == 0) {
        m->left_at = dtr__now();
    } else if (dtr__now() - m->left_at >= DTR__LEFT_S) {
        snprintf(m->text, sizeof(m->text),
                 "%s: rank %d, which keeps the list of callers, has ended its world with a failure "
                 "before this rank came",
                 m->what, m->ranks[0]);
        dtr__agreement_end(m, DTR_ERR_TIMEOUT);
    }
}

/* How long a backup waits for the coordinator before it asks for it. */
static double coordinator_has(const dtr__agreement *m) {
    const double part = m->mine->limit_s / 16;
    return part < 0.1 ? part : 0.1;
}

/* While entries come in, of all but the coordinator. */
static void gather(dtr__agreement *m) {
    (void)dtr__agreement_all_came(m);
    dtr__tree_gather(m);
    if (dtr__agreement_needs_all(m)) {
        dtr__agreement_enter(m, false);
        if (m->me == 1 && dtr__agreement_coordinator_missing(m) &&
            dtr__now() >= m->direct_at + coordinator_has(m)) {
            dtr__agreement_ask(m);
        }
    }
}

/* One round. The caller holds the right to call MPI. */
static dtr_status step(dtr__agreement *m, bool *moved) {
    DTR_TRY(receive_all(m, moved));
    if (m->me == 0 && m->phase != DTR__ENDED) {
        DTR_TRY(dtr__coordinator_step(m));
    } else if (m->me != 0 && m->phase == DTR__GATHERING) {
        gather(m);
    }
    if (m->phase == DTR__ENDED) {
        return DTR_OK;
    }
    const char *failure = NULL;
    if (dtr__first_failed_peer(m->world, m->ranks, m->n, &failure) >= 0) {
        snprintf(m->text, sizeof(m->text), "%s: %.900s", m->what, failure);
        dtr__agreement_end(m, DTR_ERR_REMOTE);
        return DTR_OK;
    }
    follow_coordinator(m);
    if (m->phase == DTR__ENDED) {
        return DTR_OK;
    }
    bool off = m->watch != NULL && m->phase != DTR__AGREEING &&
               (atomic_load(&m->watch->status) != DTR_OK || m->watch_released);
    if (off) {
        give_up(m);
    } else if (dtr__now() >= m->deadline) {
        expire(m);
    }
    return DTR_OK;
}

/* Between two rounds, progress other groups. */
static void pause_between(dtr__agreement *m, bool moved, dtr__backoff *backoff) {
    dtr__failure_of(m->world)->visit(m->world);
    if (m->mine->end != 0) {
        dtr__failure_of(m->world)->check_early_destroy(m->world);
    }
    if (m->watch != NULL && atomic_load(&m->watch->release.n_others) > 0) {
        m->watch_released = m->mine->end != 0;
        if (!m->watch_released) {
            dtr__failure_of(m->world)->break_released(m->watch,
                                                      m->mine->field[DTR__FIELD_CALL].text);
        }
    }
    if (!dtr__progress_has_thread(m->world)) {
        dtr__progress_poll_all(m->world);
    }
    if (moved) {
        *backoff = (dtr__backoff){ 0 };
    }
    dtr__backoff_pause(m->world, backoff);
}

/* Before a world ends its communicator has to be empty: MPI may take what comes later for a message
 * of the next one. */
static dtr_status await_owed(dtr__agreement *m, dtr__backoff *backoff) {
    const double until = dtr__now() + DTR__OWED_S;
    dtr_status s = DTR_OK;
    while (dtr__agreement_ends_world(m) && m->ms->n_owed > 0 && dtr__now() < until && s >= 0) {
        bool moved = false;
        dtr__mpi_lock(m->world);
        s = receive_all(m, &moved);
        dtr__mpi_unlock(m->world);
        pause_between(m, moved, backoff);
    }
    return s;
}

/* Where the tree would be in vain. */
static void enter_at_once(dtr__agreement *m) {
    const bool failed = dtr__brings_failed_end(m->mine);
    if (failed || m->ms->asked == m->mine->scope) {
        dtr__agreement_enter(m, !failed);
    }
    if (failed) {
        dtr__agreement_end(m, (dtr_status)m->mine->status);
    }
}

static dtr_status run(dtr__agreement *m) {
    dtr__backoff backoff = { 0 };
    DTR_TRY(await_owed(m, &backoff));
    for (bool first = true;; first = false) {
        bool moved = false;
        dtr__mpi_lock(m->world);
        if (first && m->me != 0) {
            enter_at_once(m);
        }
        dtr_status s = step(m, &moved);
        if (s < 0 || m->phase == DTR__ENDED) {
            dtr__mailbox_reap(&m->ms->out);
        }
        dtr__mpi_unlock(m->world);
        DTR_TRY(s);
        if (m->phase == DTR__ENDED) {
            break;
        }
        pause_between(m, moved, &backoff);
    }
    if (m->status == DTR_OK) {
        DTR_TRY(await_owed(m, &backoff));
    }
    double limit = m->began + m->mine->limit_s;
    while (m->status == DTR_ERR_TIMEOUT && limit - dtr__now() < SKEW_S && dtr__now() < limit) {
        dtr__backoff_pause(m->world, &backoff);
    }
    return m->status;
}

/* ---- entry ---- */

static dtr_status prepare(dtr__agreement *m, const int *ranks, int n) {
    DTR_TRY(dtr__agreement_alloc(m, n));
    memcpy(m->ranks, ranks, sizeof(int) * (size_t)n);
    qsort(m->ranks, (size_t)n, sizeof(int), by_rank);
    m->me = dtr__agreement_position(m, m->world->rank);
    m->began = dtr__now();
    m->deadline = m->began + m->mine->limit_s;
    m->number = ++m->ms->number;
    m->subtree_changed = true;
    return DTR_OK;
}

/* The coordinator wrote the message; a rank that brought a failure of its own keeps that one. */
static dtr_status finish(dtr__agreement *m, dtr_status s) {
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

dtr_status dtr__agree(dtr_world *world, const char *what, const int *ranks, int n,
                      const dtr__entry *mine, dtr_group *watch, dtr__outcome *out) {
    *out = (dtr__outcome){ 0 };
    dtr__agreement m = { .ms = world->groups->agreements,
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
    (void)dtr__error_put_back(own, s == (dtr_status)mine->status ? s : DTR_OK);
    free(m.ranks);
    free(m.came);
    free(m.proposal);
    return s;
}
