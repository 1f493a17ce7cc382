/* The tree by which an agreement is made where nothing goes wrong. It is over the positions of the
 * sorted list: a subtree is a row of positions, the lowest is its root, and the others are dealt
 * out evenly to its DTR__TREE_WIDTH children. Up to 1 + DTR__TREE_WIDTH ranks it is a star. Each
 * rank sends the entries of its subtree up when they are complete; proposals go down, and
 * acceptances up. Nobody depends on a rank between it and the coordinator for longer than a while:
 * ranks enter directly in time before their limit, the coordinator proposes again to each rank
 * directly, and commits go down two trees that share no inner rank on the way to any other. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "core/team.h"
#include "tree.h"

/* ---- the shape ---- */

dtr__subtree dtr__tree_child(int n, int j) {
    const int each = (n - 1) / DTR__TREE_WIDTH, more = (n - 1) % DTR__TREE_WIDTH;
    return (dtr__subtree){ 1 + j * each + (j < more ? j : more), each + (j < more) };
}

dtr__tree_node dtr__tree_node_at(int i, int n) {
    dtr__tree_node p = { .parent = -1, .n = n };
    for (int at = 0, j = 0; at != i;) {
        const dtr__subtree c = dtr__tree_child(p.n, j);
        if (i < at + c.at + c.n) {
            p = (dtr__tree_node){ .parent = at, .child = j, .n = c.n };
            at += c.at;
            j = 0;
        } else {
            j++;
        }
    }
    return p;
}

/* ---- entries, up ---- */

/* How many of the newest different ones an entry is compared with. */
enum { LOOK_BACK = 8 };

static int32_t entry_index(const dtr__entry **seen, int *n, const dtr__entry *e) {
    for (int k = *n - 1; k >= 0 && k >= *n - LOOK_BACK; k--) {
        if (dtr__entries_alike(seen[k], e)) {
            return k;
        }
    }
    seen[*n] = e;
    return (*n)++;
}

static int32_t variant_index(dtr__variant *seen, int *n, const dtr__variant *v) {
    for (int k = *n - 1; k >= 0 && k >= *n - LOOK_BACK; k--) {
        if (memcmp(&seen[k], v, sizeof *v) == 0) {
            return k;
        }
    }
    seen[*n] = *v;
    return (*n)++;
}

static size_t batch_nbytes(const dtr__batch *b) {
    return sizeof *b + (size_t)b->n_slots * sizeof(dtr__slot) +
           (size_t)b->n_variants * sizeof(dtr__variant) + (size_t)b->n_entries * sizeof(dtr__entry);
}

/* The parts of a batch that has room for n slots; variants and entries follow those there are. */
static dtr__slot *slots_of(const dtr__batch *b) {
    return (dtr__slot *)(b + 1);
}

static dtr__batch *batch_write(dtr__batch head, const dtr__slot *slot, const dtr__variant *variant,
                               const dtr__entry *const *entry, size_t *nbytes) {
    *nbytes = batch_nbytes(&head);
    dtr__batch *b = malloc(*nbytes);
    if (b == NULL) {
        return NULL;
    }
    *b = head;
    dtr__slot *slots = slots_of(b);
    dtr__variant *variants = (dtr__variant *)(slots + head.n_slots);
    dtr__entry *entries = (dtr__entry *)(variants + head.n_variants);
    memcpy(slots, slot, (size_t)head.n_slots * sizeof *slots);
    memcpy(variants, variant, (size_t)head.n_variants * sizeof *variants);
    for (int k = 0; k < head.n_entries; k++) {
        entries[k] = *entry[k];
    }
    return b;
}

dtr__batch *dtr__batch_new(uint64_t epoch, uint64_t number, const dtr__arrival *all, int n,
                           size_t *nbytes) {
    dtr__batch head = { .epoch = epoch, .number = number, .kind = DTR__UP_BATCH, .n_slots = n };
    dtr__slot *slot = malloc((size_t)n * sizeof *slot);
    dtr__variant *variant = malloc((size_t)n * sizeof *variant);
    const dtr__entry **entry = malloc((size_t)n * sizeof *entry);
    dtr__batch *b = NULL;
    if (slot != NULL && variant != NULL && entry != NULL) {
        for (int k = 0; k < n; k++) {
            const dtr__variant v = { .key = all[k].key,
                                     .index = all[k].index,
                                     .entry = entry_index(entry, &head.n_entries, all[k].entry) };
            slot[k] = (dtr__slot){ .number = all[k].number,
                                   .rank = all[k].rank,
                                   .of = variant_index(variant, &head.n_variants, &v) };
        }
        b = batch_write(head, slot, variant, entry, nbytes);
    }
    free(slot);
    free(variant);
    free((void *)entry);
    return b;
}

/* Slot s of a batch makes sense. */
static bool slot_sound(const dtr__agreement *m, const dtr__batch *b, const dtr__slot *s,
                       const dtr__variant *variant) {
    return s->rank >= 0 && s->rank < m->ms->n_waiting && s->of >= 0 && s->of < b->n_variants &&
           variant[s->of].entry >= 0 && variant[s->of].entry < b->n_entries;
}

void dtr__tree_take_batch(dtr__agreement *m, const dtr__batch *b, size_t nbytes) {
    if (nbytes < sizeof *b || b->n_slots < 0 || b->n_variants < 0 || b->n_entries < 1 ||
        nbytes != batch_nbytes(b)) {
        return;
    }
    const dtr__slot *slot = slots_of(b);
    const dtr__variant *variant = (const dtr__variant *)(slot + b->n_slots);
    const dtr__entry *entry = (const dtr__entry *)(variant + b->n_variants);
    dtr__shared_entry **shared = calloc((size_t)b->n_entries, sizeof(dtr__shared_entry *));
    for (int k = 0; shared != NULL && k < b->n_entries; k++) {
        shared[k] = dtr__shared_entry_new(&entry[k]);
    }
    /* Without memory a rank counts as one that has not come. */
    for (int k = 0; shared != NULL && k < b->n_slots; k++) {
        if (!slot_sound(m, b, &slot[k], variant)) {
            continue;
        }
        const dtr__variant *v = &variant[slot[k].of];
        if (shared[v->entry] != NULL) {
            dtr__agreement_arrived(m,
                                   &(dtr__kept){ .number = slot[k].number,
                                                 .key = v->key,
                                                 .index = v->index,
                                                 .shared = shared[v->entry] },
                                   slot[k].rank);
        }
    }
    for (int k = 0; shared != NULL && k < b->n_entries; k++) {
        dtr__shared_entry_leave(shared[k]);
    }
    free((void *)shared);
}

void dtr__tree_gather(dtr__agreement *m) {
    const dtr__tree_node place = dtr__tree_node_at(m->me, m->n);
    const int n = place.n;
    for (int k = 1; k < n; k++) {
        if (!m->came[m->me + k]) {
            return;
        }
    }
    dtr__arrival *all = m->subtree_changed ? malloc((size_t)n * sizeof *all) : NULL;
    if (all == NULL) {
        return; /* it enters directly in time */
    }
    all[0] = (dtr__arrival){ m->number, m->world->rank, m->mine->index, m->mine->key, m->mine };
    for (int k = 1; k < n; k++) {
        const dtr__kept *kept = dtr__entry_of(m, m->me + k);
        all[k] = (dtr__arrival){ kept->number, m->ranks[m->me + k], kept->index, kept->key,
                                 &kept->shared->entry };
    }
    size_t nbytes = 0;
    dtr__batch *b = dtr__batch_new(m->ms->epoch, m->number, all, n, &nbytes);
    if (b != NULL) {
        (void)dtr__mailbox_send(m->world, &m->ms->out, m->ranks[place.parent], DTR__TAG_AGREE_UP, b,
                                nbytes, NULL, 0);
        m->subtree_changed = false;
    }
    free(b);
    free(all);
}

/* ---- proposals, down ---- */

static size_t before_slots(const dtr__proposal *p) {
    return sizeof *p + (size_t)p->n_answers * sizeof(dtr__group_answer) +
           (size_t)p->n_members * sizeof(int32_t);
}

static dtr__group_answer *answers_of(const dtr__proposal *p) {
    return (dtr__group_answer *)(p + 1);
}

static int32_t *members_of(const dtr__proposal *p) {
    return (int32_t *)(answers_of(p) + p->n_answers);
}

static dtr__slot *proposed_to(const dtr__proposal *p) {
    return (dtr__slot *)((char *)p + before_slots(p));
}

/* The different answers of the ranks in the order of groups; `of`, by position, gets whose is
 * which. */
static int different_answers(const dtr__agreement *m, const dtr__entry *const *entry,
                             const dtr__answer *answer, const dtr__sort_key *place,
                             dtr__group_answer *out, int32_t *of) {
    int n_out = 0;
    for (int begin = 0, end; begin < m->n; begin = end) {
        end = dtr__agreement_group_end(place, m->n, begin);
        for (int k = begin; k < end; k++) {
            const int i = place[k].at;
            const bool wants = entry[i]->send_members && place[k].a != DTR__NO_GROUP;
            dtr__group_answer a;
            memset(&a, 0, sizeof a); /* they are compared as bytes */
            memcpy(&a.answer, &answer[i], sizeof a.answer);
            a.begin = wants ? begin : 0;
            a.n = wants ? end - begin : 0;
            if (n_out == 0 ||
                memcmp((const char *)&out[n_out - 1], (const char *)&a, sizeof a) != 0) {
                memcpy(&out[n_out++], &a, sizeof a);
            }
            of[i] = n_out - 1;
        }
    }
    return n_out;
}

static dtr__proposal *proposal_write(const dtr__agreement *m, const dtr__group_answer *answer,
                                     int n_answers, const int32_t *of, const int *members) {
    bool wanted = false;
    for (int k = 0; k < n_answers; k++) {
        wanted = wanted || answer[k].n > 0;
    }
    const dtr__proposal head = { .epoch = m->ms->epoch,
                                 .number = m->number,
                                 .kind = DTR__DOWN_PROPOSE,
                                 .round = m->round,
                                 .n_answers = n_answers,
                                 .n_members = wanted ? m->n + m->n % 2 : 0,
                                 .n_slots = m->n,
                                 .root = m->world->rank };
    dtr__proposal *p = calloc(1, before_slots(&head) + (size_t)m->n * sizeof(dtr__slot));
    if (p == NULL) {
        return NULL;
    }
    *p = head;
    memcpy(answers_of(p), answer, (size_t)n_answers * sizeof *answer);
    for (int k = 0; wanted && k < m->n; k++) {
        members_of(p)[k] = members[k];
    }
    for (int i = 0; i < m->n; i++) {
        const uint64_t number = i == m->me ? m->number : dtr__entry_of(m, i)->number;
        proposed_to(p)[i] = (dtr__slot){ number, m->ranks[i], of[i] };
    }
    return p;
}

dtr__proposal *dtr__proposal_new(const dtr__agreement *m, const dtr__entry *const *entry,
                                 const dtr__answer *answer, const dtr__sort_key *place,
                                 const int *members) {
    dtr__group_answer *different = malloc((size_t)m->n * sizeof *different);
    int32_t *of = malloc((size_t)m->n * sizeof *of);
    dtr__proposal *p = NULL;
    if (different != NULL && of != NULL) {
        const int n = different_answers(m, entry, answer, place, different, of);
        p = proposal_write(m, different, n, of, members);
    }
    free(different);
    free(of);
    return p;
}

/* Which answers `count` slots need: their new places, in the order of answers; -1: not needed. */
static int32_t *needed_answers(const dtr__proposal *p, const dtr__slot *slot, int count) {
    int32_t *to = malloc((size_t)p->n_answers * sizeof *to);
    int32_t n = 0;
    for (int k = 0; to != NULL && k < p->n_answers; k++) {
        to[k] = -1;
    }
    for (int k = 0; to != NULL && k < count; k++) {
        to[slot[k].of] = 0;
    }
    for (int k = 0; to != NULL && k < p->n_answers; k++) {
        to[k] = to[k] == 0 ? n++ : -1;
    }
    return to;
}

/* Write the needed answers to `out`, and their members to `members`, each list once. The numbers of
 * both are left in `head`; NULL: only count. */
static void take_needed(const dtr__proposal *p, const int32_t *to, dtr__proposal *head,
                        dtr__group_answer *out, int32_t *members) {
    const dtr__group_answer *last = NULL;
    int begin = 0, n_members = 0, n_answers = 0;
    for (int k = 0; k < p->n_answers; k++) {
        const dtr__group_answer *a = answers_of(p) + k;
        if (to[k] < 0) {
            continue;
        }
        if (a->n > 0 && (last == NULL || last->begin != a->begin)) {
            last = a;
            begin = n_members;
            n_members += a->n;
            if (members != NULL) {
                memcpy(members + begin, members_of(p) + a->begin, (size_t)a->n * sizeof *members);
            }
        }
        if (out != NULL) {
            out[n_answers] = *a;
            out[n_answers].begin = a->n > 0 ? begin : 0;
        }
        n_answers++;
    }
    head->n_answers = n_answers;
    head->n_members = n_members + n_members % 2;
}

/* What `count` ranks from position `at` of a proposal on have to know. NULL: no memory. */
static dtr__proposal *cut(const dtr__proposal *p, int at, int count) {
    const dtr__slot *slot = proposed_to(p) + at;
    int32_t *to = needed_answers(p, slot, count);
    if (to == NULL) {
        return NULL;
    }
    dtr__proposal head = *p;
    head.n_slots = count;
    take_needed(p, to, &head, NULL, NULL);
    dtr__proposal *part = calloc(1, before_slots(&head) + (size_t)count * sizeof *slot);
    if (part != NULL) {
        *part = head;
        take_needed(p, to, &head, answers_of(part), members_of(part));
        for (int k = 0; k < count; k++) {
            proposed_to(part)[k] = slot[k];
            proposed_to(part)[k].of = to[slot[k].of];
        }
    }
    free(to);
    return part;
}

/* `count` slots from position `at` of the proposal on, to the rank of the first of them. */
static void send_slots(dtr__agreement *m, const dtr__proposal *p, int at, int count) {
    dtr__proposal *part = cut(p, at, count);
    if (part != NULL) { /* else the coordinator's deadline ends it */
        (void)dtr__mailbox_send(m->world, &m->ms->out, proposed_to(part)->rank, DTR__TAG_AGREE_DOWN,
                                part, before_slots(part) + (size_t)count * sizeof(dtr__slot), NULL,
                                0);
    }
    free(part);
}

void dtr__tree_propose(dtr__agreement *m, const dtr__proposal *p) {
    for (int j = 0; j < DTR__TREE_WIDTH; j++) {
        const dtr__subtree c = dtr__tree_child(p->n_slots, j);
        if (c.n > 0) {
            send_slots(m, p, c.at, c.n);
        }
    }
}

void dtr__tree_propose_again(dtr__agreement *m) {
    for (int i = 0; i < m->n; i++) {
        if (i != m->me && !m->accepted[i]) {
            send_slots(m, m->proposal, i, 1);
        }
    }
}

static bool proposal_sound(const dtr__agreement *m, const dtr__proposal *p, size_t nbytes) {
    if (nbytes < sizeof *p || p->n_answers < 1 || p->n_members < 0 || p->n_slots < 1 ||
        nbytes != before_slots(p) + (size_t)p->n_slots * sizeof(dtr__slot)) {
        return false;
    }
    for (int k = 0; k < p->n_answers; k++) {
        const dtr__group_answer *a = answers_of(p) + k;
        if (a->begin < 0 || a->n < 0 || a->begin > p->n_members - a->n) {
            return false;
        }
    }
    for (int k = 0; k < p->n_slots; k++) {
        const dtr__slot *s = proposed_to(p) + k;
        if (s->rank < 0 || s->rank >= m->world->size || s->of < 0 || s->of >= p->n_answers) {
            return false;
        }
    }
    return proposed_to(p)->rank == m->world->rank;
}

static void accept_when_all_have(dtr__agreement *m) {
    if (m->below != 0) {
        return;
    }
    const dtr__up up = { .epoch = m->ms->epoch,
                         .number = m->root_number,
                         .kind = DTR__UP_ACCEPT_ALL,
                         .detail = m->round };
    (void)dtr__mailbox_send(m->world, &m->ms->out, m->ranks[dtr__tree_node_at(m->me, m->n).parent],
                            DTR__TAG_AGREE_UP, &up, offsetof(dtr__up, entry), NULL, 0);
}

/* False without memory: it is not accepted, and the coordinator's deadline ends it. */
static bool take_answer(dtr__agreement *m, const dtr__proposal *p) {
    const dtr__group_answer *a = answers_of(p) + proposed_to(p)->of;
    int *members = NULL;
    if (a->n > 0) {
        members = malloc((size_t)a->n * sizeof *members);
        if (members == NULL) {
            return false;
        }
        for (int k = 0; k < a->n; k++) {
            members[k] = members_of(p)[a->begin + k];
        }
    }
    dtr__agreement_take_answer(m, &a->answer, members, a->n);
    return true;
}

/* Which of the entries here are those that have been agreed on. */
static void note_agreed(dtr__agreement *m, const dtr__proposal *p) {
    for (int k = 0; k < p->n_slots; k++) {
        const dtr__slot *s = proposed_to(p) + k;
        dtr__kept *kept = m->ms->waiting[s->rank];
        if (kept != NULL && kept->number > s->number) {
            kept->detail |= DTR__ENTER_NEXT;
        } else if (kept != NULL) {
            kept->detail &= ~DTR__ENTER_NEXT;
        }
    }
}

void dtr__tree_take_proposal(dtr__agreement *m, const dtr__proposal *p, size_t nbytes, int from) {
    if (!proposal_sound(m, p, nbytes)) {
        return;
    }
    dtr__tree_propose(m, p); /* whatever has become of this rank meanwhile */
    if (proposed_to(p)->number != m->number || m->phase == DTR__ENDED || p->root != m->ranks[0]) {
        return;
    }
    const bool directly = from == p->root && p->n_slots == 1;
    m->saw[0] = p->number;
    if (m->phase == DTR__AGREEING && p->round == m->round && directly) {
        dtr__agreement_accept(m);
        return;
    }
    if (m->phase != DTR__GATHERING || p->round <= m->off_round || !take_answer(m, p)) {
        return;
    }
    note_agreed(m, p);
    m->phase = DTR__AGREEING;
    m->round = p->round;
    m->root_number = p->number;
    /* The coordinator answers within its own DTR__FINISH_S. */
    m->deadline = dtr__now() + 2 * DTR__FINISH_S;
    m->below = 0;
    for (int j = 0; j < DTR__TREE_WIDTH; j++) {
        m->below |= dtr__tree_child(p->n_slots, j).n > 0 ? 1U << j : 0;
    }
    if (directly) {
        dtr__agreement_accept(m);
    } else {
        accept_when_all_have(m);
    }
}

/* ---- acceptances, up, and the commit, down ---- */

void dtr__tree_take_accepted(dtr__agreement *m, uint64_t number, int round, int from) {
    const int i = dtr__agreement_position(m, from);
    if (m->phase != DTR__AGREEING || round != m->round || i < 0) {
        return;
    }
    const dtr__tree_node place = dtr__tree_node_at(i, m->n);
    if (place.parent != m->me) {
        return;
    }
    if (m->me == 0 && number == m->number) {
        for (int k = i; k < i + place.n; k++) {
            m->n_accepted += !m->accepted[k];
            m->accepted[k] = true;
        }
    } else if (m->me != 0 && number == m->root_number && m->below != 0) {
        m->below &= ~(1U << place.child);
        accept_when_all_have(m);
    }
}

static void commit_to(dtr__agreement *m, int i) {
    const dtr__down down = { .epoch = m->ms->epoch,
                             .number = m->me == 0 ? m->number : m->root_number,
                             .kind = DTR__DOWN_COMMIT,
                             .round = m->round,
                             .root = m->ranks[0] };
    (void)dtr__mailbox_send(m->world, &m->ms->out, m->ranks[i], DTR__TAG_AGREE_DOWN, &down,
                            sizeof down, NULL, 0);
}

/* The position that has the place of i in the mirror image of the tree. */
static int mirror(int i, int n) {
    return i == 0 ? 0 : n - i;
}

/* By the tree, and by its mirror image. Who lies under a rank lies behind it in the one and before
 * it in the other, so one that is stopped keeps the commit from nobody else. */
int dtr__tree_commit(dtr__agreement *m) {
    const int mirrored = mirror(m->me, m->n);
    for (int j = 0; j < DTR__TREE_WIDTH; j++) {
        const dtr__subtree c = dtr__tree_child(dtr__tree_node_at(m->me, m->n).n, j);
        if (c.n > 0) {
            commit_to(m, m->me + c.at);
        }
    }
    for (int j = 0; j < DTR__TREE_WIDTH; j++) {
        const dtr__subtree c = dtr__tree_child(dtr__tree_node_at(mirrored, m->n).n, j);
        const int i = mirror(mirrored + c.at, m->n);
        if (c.n > 0 && dtr__tree_node_at(i, m->n).parent != m->me) {
            commit_to(m, i);
        }
    }
    const int other = dtr__tree_node_at(mirrored, m->n).parent;
    return m->me != 0 && dtr__tree_node_at(m->me, m->n).parent != mirror(other, m->n);
}
