/* Sending and ending of agreements, and the coordinator: it waits for all, proposes what
 * agreement/decide.c decides, and commits when all have accepted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "control/peers.h"
#include "coordinator.h"
#include "core/team.h"
#include "tree.h"

/* How long the end of a group waits where other ranks make another call. */
#define HOLD_S 0.1

/* ---- sending ---- */

/* A message that cannot be sent is dropped: the deadline ends what it was for. */
static void send_up(dtr__agreement *m, int to, dtr__up_kind kind, int detail, uint64_t saw) {
    dtr__up up = { .epoch = m->ms->epoch,
                   .number = m->number,
                   .kind = (int32_t)kind,
                   .detail = detail,
                   .saw = saw };
    size_t nbytes = offsetof(dtr__up, entry);
    if (kind == DTR__UP_ENTER) {
        up.entry = *m->mine;
        nbytes = sizeof(up);
    }
    (void)dtr__mailbox_send(m->world, &m->ms->out, m->ranks[to], DTR__TAG_AGREE_UP, &up, nbytes,
                            NULL, 0);
}

void dtr__agreement_accept(dtr__agreement *m) {
    send_up(m, 0, DTR__UP_ACCEPT, m->round, 0);
}

void dtr__agreement_withdraw(dtr__agreement *m) {
    const int parent = dtr__tree_node_at(m->me, m->n).parent;
    if (parent > 1) {
        send_up(m, parent, DTR__UP_WITHDRAW, 0, 0);
    }
    if (m->me > 1 && !m->withdrawn) {
        send_up(m, 1, DTR__UP_WITHDRAW, 0, m->saw[1]);
    }
    send_up(m, 0, DTR__UP_WITHDRAW, 0, m->saw[0]);
    m->withdrawn = true;
}

/* The backup may keep the entry of a rank whose agreement has failed, if it had no part in it, or
 * which had entered directly, if it got that late: it would count the rank as one that has come to
 * the next. */
static void withdraw_from_backup(dtr__agreement *m) {
    const bool has_it = m->me > 1 && (m->direct || dtr__tree_node_at(m->me, m->n).parent == 1);
    if (has_it && !m->withdrawn && !dtr__brings_failed_end(m->mine)) {
        send_up(m, 1, DTR__UP_WITHDRAW, 0, 0);
    }
    m->withdrawn = true;
}

/* To the backup and then to the coordinator: the backup keeps the list in case the coordinator is
 * missing. */
void dtr__agreement_enter(dtr__agreement *m, bool asked) {
    const int detail = asked ? DTR__ENTER_ASKED : 0;
    if (m->direct) {
        return;
    }
    m->direct = true;
    m->direct_at = dtr__now();
    if (m->ms->asked == m->mine->scope) {
        m->ms->asked = 0;
    }
    if (m->me > 1) {
        send_up(m, 1, DTR__UP_ENTER, detail, 0);
    }
    send_up(m, 0, DTR__UP_ENTER, detail, 0);
}

static void send_down(dtr__agreement *m, int to, dtr__down_kind kind, uint64_t number,
                      dtr_status s) {
    const dtr__down down = { .epoch = m->ms->epoch,
                             .number = number,
                             .kind = (int32_t)kind,
                             .round = m->round,
                             .status = (int32_t)s,
                             .root = m->ranks[m->me],
                             .own = m->number };
    const bool final = kind == DTR__DOWN_FINAL;
    (void)dtr__mailbox_send(m->world, &m->ms->out, m->ranks[to], DTR__TAG_AGREE_DOWN, &down,
                            sizeof(down), final ? m->text : NULL, final ? strlen(m->text) + 1 : 0);
}

static void send_here(dtr__agreement *m, int to) {
    send_down(m, to, DTR__DOWN_HERE, dtr__entry_of(m, to)->number, DTR_OK);
}

static void send_final(dtr__agreement *m, int to, dtr_status s) {
    const uint64_t number = m->came[to] ? dtr__entry_of(m, to)->number : DTR__OF_WORLD_END;
    send_down(m, to, DTR__DOWN_FINAL, number, s);
}

void dtr__agreement_ask(dtr__agreement *m) {
    for (int i = 0; i < m->n && !m->asked; i++) {
        if (i != m->me && !m->came[i]) {
            send_down(m, i, DTR__DOWN_ASK, m->mine->scope, DTR_OK);
        }
    }
    m->asked = true;
}

/* ---- ends ---- */

/* One rank sets local_sync and another does not, for the same list: they mean the same group
 * although they expect different ranks to come. The agreement then waits for all ranks, so that all
 * learn of it. */
static bool differs(const dtr__agreement *m, const dtr__entry *e) {
    const dtr__field *a = &m->mine->field[DTR__FIELD_LOCAL_SYNC];
    const dtr__field *b = &e->field[DTR__FIELD_LOCAL_SYNC];
    return m->mine->list_set != 0 && m->mine->list_set == e->list_set && a->hash != b->hash;
}

/* Who ends a group that this rank has released is about to learn that, and withdraws. */
bool dtr__agreement_is_for(const dtr__agreement *m, const dtr__entry *e) {
    if (e->ends != 0 && e->ends != m->mine->ends && dtr__group_is_released(m->world, e->ends)) {
        return false;
    }
    return e->scope == m->mine->scope || differs(m, e);
}

/* Who gives up with the group that it watches does not end the agreement of those who have learned
 * before that it is over, and have come to another one. */
static bool is_used_up(const dtr__agreement *m, const dtr__entry *e) {
    const dtr__field *a = m->mine->field, *b = e->field;
    bool same = a[DTR__FIELD_CALL].hash == b[DTR__FIELD_CALL].hash &&
                a[DTR__FIELD_NAME].hash == b[DTR__FIELD_NAME].hash && e->scope == m->mine->scope;
    return m->gave_up ? same : dtr__agreement_is_for(m, e);
}

static void use_up(dtr__agreement *m, bool all) {
    for (int i = 0; i < m->n; i++) {
        dtr__kept **kept = &m->ms->waiting[m->ranks[i]];
        const bool counts = i != m->me && *kept != NULL && ((*kept)->detail & DTR__ENTER_NEXT) == 0;
        if (counts && is_used_up(m, &(*kept)->shared->entry) &&
            (all || dtr__brings_failed_end(&(*kept)->shared->entry))) {
            m->ms->gone[m->ranks[i]] = (*kept)->number;
            dtr__kept_free(*kept);
            *kept = NULL;
        }
    }
}

/* sure: this rank knows the entries of the agreement from those of later ones. */
static void end(dtr__agreement *m, dtr_status s, bool sure) {
    use_up(m, sure);
    if (!sure || (m->direct && !dtr__agreement_ends_world(m))) {
        withdraw_from_backup(m);
    }
    m->status = s;
    m->phase = DTR__ENDED;
}

/* Of an agreement that has failed only the coordinator knows them. The others keep them: it takes
 * none for a second time. */
void dtr__agreement_end(dtr__agreement *m, dtr_status s) {
    end(m, s, m->me == 0 || s == DTR_OK);
}

void dtr__agreement_end_all(dtr__agreement *m, dtr_status mine, dtr_status others) {
    const bool to_all = dtr__agreement_ends_world(m);
    for (int i = 0; i < m->n; i++) {
        if (i != m->me && (m->came[i] || to_all)) {
            send_final(m, i, others);
        }
    }
    end(m, mine, true);
}

/* "...; rank 2 is in dtr_group_split" for ranks whose entry for another agreement is here. */
static void append_elsewhere(dtr__agreement *m) {
    for (int i = 0; i < m->n; i++) {
        const dtr__kept *kept = m->came[i] || i == m->me ? NULL : dtr__entry_of(m, i);
        size_t at = strlen(m->text);
        if (at >= sizeof(m->text) - 1) {
            return;
        }
        if (kept != NULL) {
            const dtr__field *field = kept->shared->entry.field;
            snprintf(m->text + at, sizeof(m->text) - at, "; rank %d waits in another call: %s %s",
                     m->ranks[i], field[DTR__FIELD_CALL].text, field[DTR__FIELD_LIST].text);
        }
    }
}

/* What the first of the ranks that have not come do instead. */
static void append_doing(dtr__agreement *m) {
    enum { NAMED = 2 };
    char name[128], doing[900];
    for (int i = 0, named = 0; i < m->n && named < NAMED; i++) {
        bool away = i != m->me && !m->came[i] && dtr__entry_of(m, i) == NULL;
        size_t at = strlen(m->text);
        if (away && dtr__peer_doing(m->world, m->ranks[i], doing, sizeof doing)[0] != '\0') {
            snprintf(m->text + at, sizeof(m->text) - at, ". %s: %s",
                     dtr__peer_name(m->world, m->ranks[i], name, sizeof name), doing);
            named++;
        }
    }
}

/* "x: 3 of 4 ranks came within 1 s, missing: rank 2" */
static void write_missing(dtr__agreement *m, double limit_s) {
    dtr__some_ranks missing = { 0 };
    for (int i = 0; i < m->n; i++) {
        if (i != m->me && !m->came[i]) {
            dtr__some_ranks_add(&missing, m->ranks[i]);
        }
    }
    snprintf(m->text, sizeof(m->text), "%s: %d of %d ranks came within %g s, missing: ", m->what,
             m->n - missing.n, m->n, limit_s);
    dtr__append_ranks(m->text, sizeof(m->text), &missing);
    append_elsewhere(m);
    append_doing(m);
}

void dtr__agreement_time_out(dtr__agreement *m, double limit_s) {
    write_missing(m, limit_s);
    dtr__agreement_end_all(m, DTR_ERR_TIMEOUT, DTR_ERR_TIMEOUT);
}

/* ---- the coordinator ---- */

/* Of a rank that has come, or of this one. */
static const dtr__entry *entry_at(const dtr__agreement *m, int i) {
    return i == m->me ? m->mine : &dtr__entry_of(m, i)->shared->entry;
}

dtr_status dtr__agreement_alloc(dtr__agreement *m, int n) {
    dtr__error_context ctx = { .world = m->world, .operation = m->what };
    m->ranks = malloc(2 * sizeof(int) * (size_t)n);
    m->came = calloc(4 * (size_t)n, sizeof(bool));
    DTR_REQUIRE(m->ranks != NULL && m->came != NULL, &ctx, DTR_ERR_NOMEM,
                "%s: no memory for an agreement of %d ranks", m->what, n);
    m->accepted = m->came + n;
    m->greeted = m->accepted + n;
    m->listed = m->greeted + n;
    m->changed = m->ranks + n;
    m->n_came = m->n_accepted = m->n_changed = 0;
    m->all_changed = true;
    m->n = n;
    return DTR_OK;
}

void dtr__agreement_changed(dtr__agreement *m, int i) {
    if (!m->listed[i]) {
        m->listed[i] = true;
        m->changed[m->n_changed++] = i;
    }
}

static int n_to_look_at(const dtr__agreement *m) {
    return m->all_changed ? m->n : m->n_changed;
}

static int to_look_at(const dtr__agreement *m, int k) {
    return m->all_changed ? k : m->changed[k];
}

/* From now on all ranks of the world are expected. */
static dtr_status widen(dtr__agreement *m) {
    if (m->n == m->world->size) {
        return DTR_OK;
    }
    dtr__agreement wide = *m;
    wide.ranks = NULL;
    wide.came = NULL;
    dtr_status s = dtr__agreement_alloc(&wide, m->world->size);
    if (s < 0) {
        free(wide.ranks);
        free(wide.came);
        return s;
    }
    for (int i = 0; i < wide.n; i++) {
        wide.ranks[i] = i;
    }
    for (int i = 0; i < m->n; i++) {
        wide.greeted[m->ranks[i]] = m->greeted[i];
    }
    wide.me = m->world->rank;
    wide.asked = false;
    free(m->ranks);
    free(m->came);
    *m = wide;
    return DTR_OK;
}

static bool needs_widening(const dtr__agreement *m) {
    for (int k = 0; k < n_to_look_at(m); k++) {
        const int i = to_look_at(m, k);
        const dtr__kept *kept = i == m->me ? NULL : dtr__entry_of(m, i);
        if (kept != NULL && differs(m, &kept->shared->entry)) {
            return true;
        }
    }
    return m->differing;
}

bool dtr__agreement_needs_all(const dtr__agreement *m) {
    return m->differing || (m->some_unasked && m->me <= 1) ||
           dtr__now() >= m->began + DTR__PATIENCE * m->mine->limit_s;
}

bool dtr__agreement_coordinator_missing(const dtr__agreement *m) {
    return m->me != 0 && m->saw[0] == 0;
}

/* What follows from the ways by which those have come who are here. */
static void note_way(dtr__agreement *m, int i, const dtr__kept *kept) {
    const bool greets = m->me == 0 || (m->me == 1 && dtr__agreement_coordinator_missing(m));
    m->some_unasked |= kept->directly && (kept->detail & DTR__ENTER_ASKED) == 0;
    m->differing |= differs(m, &kept->shared->entry);
    if (greets && kept->directly && !m->greeted[i]) {
        m->greeted[i] = true;
        send_here(m, i);
    }
}

/* True when whether the entry counts may change by itself: what its rank ends may be released. */
static bool look_at(dtr__agreement *m, int i) {
    dtr__kept *kept = i == m->me ? NULL : m->ms->waiting[m->ranks[i]];
    const dtr__entry *e = kept != NULL ? &kept->shared->entry : NULL;
    const bool came = e != NULL && dtr__agreement_is_for(m, e);
    const bool anew = came && !m->came[i];
    m->n_came += came - m->came[i];
    m->came[i] = came;
    m->end_failed |= came && dtr__brings_failed_end(e);
    if (anew) {
        kept->detail &= ~DTR__ENTER_NEXT;
    }
    if (came) {
        note_way(m, i, kept);
    }
    return e != NULL && e->ends != 0 && e->ends != m->mine->ends;
}

bool dtr__agreement_all_came(dtr__agreement *m) {
    bool again = false;
    for (int k = 0; k < n_to_look_at(m); k++) {
        again |= look_at(m, to_look_at(m, k));
    }
    for (int k = 0; k < m->n_changed; k++) {
        m->listed[m->changed[k]] = false;
    }
    m->n_changed = 0;
    m->all_changed = again;
    return m->n_came == m->n - 1;
}

void dtr__agreement_take_answer(dtr__agreement *m, const dtr__answer *a, int *members,
                                int n_members) {
    *m->out = (dtr__outcome){ .counter = a->counter,
                              .number = a->number,
                              .uid = a->uid,
                              .reuse = a->reuse,
                              .split = a->split,
                              .members = members,
                              .n_members = n_members };
    memcpy(m->out->free_uid, a->free_uid, sizeof(m->out->free_uid));
}

/* What a decision needs that grows with the ranks: on the heap, as a stack is too small. */
typedef struct decision {
    const dtr__entry **entry;
    dtr__answer *answer;
    dtr__sort_key *place; /* by group */
    int *members;         /* in that order */
} decision;

static bool decision_new(decision *d, size_t n) {
    *d = (decision){ malloc(n * sizeof(dtr__entry *)), malloc(n * sizeof *d->answer),
                     malloc(n * sizeof *d->place), malloc(n * sizeof *d->members) };
    return d->entry != NULL && d->answer != NULL && d->place != NULL && d->members != NULL;
}

static void decision_free(decision *d) {
    free((void *)d->entry);
    free(d->answer);
    free(d->place);
    free(d->members);
}

static void no_memory(dtr__agreement *m) {
    snprintf(m->text, sizeof(m->text), "%s: rank %d has no memory for the answers to %d ranks",
             m->what, m->ranks[m->me], m->n);
    dtr__agreement_end_all(m, DTR_ERR_NOMEM, DTR_ERR_REMOTE);
}

/* The coordinator's own answer; place[begin..end) is its group. */
static bool take_own(dtr__agreement *m, const decision *d, int begin, int end) {
    const dtr__entry *mine = m->mine;
    const int n = mine->send_members && mine->index >= 0 ? end - begin : 0;
    int *own = n > 0 ? malloc(sizeof(int) * (size_t)n) : NULL;
    if (n > 0 && own == NULL) {
        return false;
    }
    if (own != NULL) {
        memcpy(own, d->members + begin, sizeof(int) * (size_t)n);
    }
    dtr__agreement_take_answer(m, &d->answer[m->me], own, n);
    return true;
}

static bool take_own_of(dtr__agreement *m, const decision *d) {
    for (int begin = 0, end; begin < m->n; begin = end) {
        end = dtr__agreement_group_end(d->place, m->n, begin);
        for (int k = begin; k < end; k++) {
            if (d->place[k].at == m->me) {
                return take_own(m, d, begin, end);
            }
        }
    }
    return true;
}

static void propose(dtr__agreement *m, const decision *d) {
    for (int k = 0; k < m->n; k++) {
        d->members[k] = m->ranks[d->place[k].at];
    }
    free(m->proposal);
    m->proposal = dtr__proposal_new(m, d->entry, d->answer, d->place, d->members);
    if (m->proposal == NULL || !take_own_of(m, d)) {
        no_memory(m);
        return;
    }
    dtr__tree_propose(m, m->proposal);
    m->phase = DTR__AGREEING;
    m->proposed_at = dtr__now();
    m->deadline = m->proposed_at + DTR__FINISH_S;
}

static void decide_with(dtr__agreement *m, const decision *d) {
    m->round++;
    for (int i = 0; i < m->n; i++) {
        const dtr__kept *kept = i == m->me ? NULL : dtr__entry_of(m, i);
        d->entry[i] = entry_at(m, i);
        d->place[i] = kept != NULL ? dtr__agreement_place(kept->index, kept->key, i)
                                   : dtr__agreement_place(m->mine->index, m->mine->key, i);
    }
    dtr__agreement_decide(m->what, m->ranks, d->entry, m->n, &m->ms->next_uid, d->answer, d->place,
                          m->text);
    bool agreed = true;
    for (int i = 0; i < m->n; i++) {
        agreed &= d->answer[i].status == DTR_OK;
    }
    if (agreed) {
        propose(m, d);
        return;
    }
    for (int i = 0; i < m->n; i++) {
        if (i != m->me) {
            send_final(m, i, d->answer[i].status);
        }
    }
    dtr__agreement_end(m, d->answer[m->me].status);
}

static void decide(dtr__agreement *m) {
    decision d;
    if (decision_new(&d, (size_t)m->n)) {
        decide_with(m, &d);
    } else {
        no_memory(m);
    }
    decision_free(&d);
}

static void coordinator_accepted(dtr__agreement *m) {
    if (m->n_accepted == m->n - 1) {
        (void)dtr__tree_commit(m);
        dtr__agreement_end(m, DTR_OK);
    } else if (m->proposed_at > 0 && dtr__now() >= m->proposed_at + DTR__AGAIN_S) {
        m->proposed_at = 0;
        dtr__tree_propose_again(m);
    }
}

void dtr__coordinator_regather(dtr__agreement *m) {
    m->n_accepted = 0;
    for (int i = 0; i < m->n; i++) {
        m->accepted[i] = false;
        if (i != m->me && dtr__entry_of(m, i) != NULL && m->came[i]) {
            send_here(m, i);
        }
    }
    free(m->out->members);
    *m->out = (dtr__outcome){ 0 };
    m->phase = DTR__GATHERING;
    m->deadline = m->began + m->mine->limit_s;
}

/* The first rank whose end has failed, of those that have come; -1: none. */
static int first_failed_end(const dtr__agreement *m) {
    if (m->mine->end == 0 || !(m->end_failed || m->mine->status < 0)) {
        return -1;
    }
    for (int i = 0; i < m->n; i++) {
        if ((i == m->me || m->came[i]) && dtr__brings_failed_end(entry_at(m, i))) {
            return i;
        }
    }
    return -1;
}

static void end_with_failure(dtr__agreement *m, int i) {
    const dtr__entry *e = entry_at(m, i);
    snprintf(m->text, sizeof(m->text), "%s: rank %d failed with %s: %s", m->what, m->ranks[i],
             dtr_status_name((dtr_status)e->status), e->text);
    dtr_status others = e->status == DTR_ERR_TIMEOUT ? DTR_ERR_TIMEOUT : DTR_ERR_REMOTE;
    dtr__agreement_end_all(m, m->mine->status < 0 ? (dtr_status)m->mine->status : others, others);
}

/* A rank that destroys a group while the others do something else may be about to learn that the
 * group has broken, and then leaves. So the coordinator waits a moment before it reports a
 * mismatch. */
static bool hold(dtr__agreement *m) {
    bool differ = false, ends = m->mine->end != 0;
    for (int i = 0; i < m->n; i++) {
        if (i != m->me) {
            const dtr__entry *e = &dtr__entry_of(m, i)->shared->entry;
            differ |= e->field[DTR__FIELD_CALL].hash != m->mine->field[DTR__FIELD_CALL].hash ||
                      e->field[DTR__FIELD_NAME].hash != m->mine->field[DTR__FIELD_NAME].hash;
            ends |= e->end != 0;
        }
    }
    if (!differ || !ends) {
        return false;
    }
    m->held_since = m->held_since > 0 ? m->held_since : dtr__now();
    return dtr__now() - m->held_since < HOLD_S;
}

dtr_status dtr__coordinator_step(dtr__agreement *m) {
    if (m->phase == DTR__GATHERING && needs_widening(m)) {
        DTR_TRY(widen(m));
    }
    if (m->phase == DTR__GATHERING) {
        bool all = dtr__agreement_all_came(m);
        m->held_since = all ? m->held_since : 0;
        const int failed = first_failed_end(m);
        if (failed >= 0) {
            end_with_failure(m, failed);
        } else if (all && !hold(m)) {
            decide(m);
        } else if (!all && dtr__agreement_needs_all(m)) {
            dtr__agreement_ask(m);
        }
    }
    if (m->phase == DTR__AGREEING) {
        coordinator_accepted(m);
    }
    return DTR_OK;
}
