/* The coordinator of an agreement of many ranks, which are pretended: what it sends is counted and
 * answered here, and each of its polls finds one message. Its children send the entries of whole
 * subtrees; where a rank is missing, the others of its subtree wait to be asked. Steps are counted
 * as in many_ranks.c. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../collectives/agreement/tree.h"
#include "base/backoff.h"
#include "base/world.h"
#include "core/team.h"
#include "steps.h"
#include "unit.h"

enum { LIMIT_S = 5, NOBODY = -1 };

/* ---- the other ranks ---- */

static struct {
    int n, missing;      /* ranks, and the one that does not come */
    int child;           /* the next one that speaks; below 0: none does */
    int *asked, n_asked; /* to enter directly */
    int n_entered;       /* of those */
    int *proposed, n_proposed, n_accepted;
    bool polled; /* this poll has had its message */
    double now;
    size_t sent[DTR__DOWN_ASK + 1], received, nbytes_in, nbytes, n_members, n_slots;
    struct {
        dtr__batch head;
        char rest[4096];
    } up;                  /* what went to the parent */
    size_t before, memory; /* bytes: before the agreement, and the most on top */
    dtr__entry (*entry_of)(int rank);
    char text[DTR__AGREEMENT_TEXT];
} others;

static void take_proposal(const dtr__proposal *p) {
    const dtr__group_answer *answer = (const dtr__group_answer *)(p + 1);
    const int32_t *members = (const int32_t *)(answer + p->n_answers);
    const dtr__slot *slot = (const dtr__slot *)(members + p->n_members);
    others.proposed[others.n_proposed++] = slot[0].rank;
    for (int k = 0; k < p->n_slots; k++) {
        ck_assert_int_eq(slot[k].rank, slot[0].rank + k);
        others.n_members += (size_t)answer[slot[k].of].n;
    }
    others.n_slots += (size_t)p->n_slots;
}

/* Bytes; 0 where the library does not tell. */
static size_t allocated(void) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
#else
    return 0;
#endif
}

__typeof__(dtr__mailbox_send) __wrap_dtr__mailbox_send;
dtr_status __wrap_dtr__mailbox_send(dtr_world *world, dtr__control_message **out, int to, int tag,
                                    const void *head, size_t head_nbytes, const void *tail,
                                    size_t tail_nbytes) {
    (void)world, (void)out;
    const dtr__down *down = head;
    if (tag == DTR__TAG_AGREE_UP) {
        ck_assert_uint_le(head_nbytes, sizeof others.up);
        memcpy(&others.up, head, head_nbytes);
        return DTR_OK;
    }
    others.sent[down->kind]++;
    const size_t now = allocated();
    others.memory = now > others.before + others.memory ? now - others.before : others.memory;
    others.nbytes += head_nbytes + tail_nbytes;
    if (down->kind == DTR__DOWN_PROPOSE) {
        take_proposal(head);
    } else if (down->kind == DTR__DOWN_FINAL) {
        snprintf(others.text, sizeof others.text, "%s", (const char *)tail);
    } else if (down->kind == DTR__DOWN_ASK && to != others.missing) {
        others.asked[others.n_asked++] = to;
    }
    return DTR_OK;
}

/* The entries of n ranks from `rank` on. */
static void *batch_of(int rank, int n, size_t *nbytes) {
    dtr__arrival *all = malloc((size_t)n * sizeof *all);
    dtr__entry *entry = malloc((size_t)n * sizeof *entry);
    ck_assert(all != NULL && entry != NULL);
    for (int k = 0; k < n; k++) {
        entry[k] = others.entry_of(rank + k);
        all[k] = (dtr__arrival){ 1, rank + k, entry[k].index, entry[k].key, &entry[k] };
    }
    dtr__batch *batch = dtr__batch_new(1, 1, all, n, nbytes);
    ck_assert_ptr_nonnull(batch);
    free(all);
    free(entry);
    return batch;
}

static void *up_of(dtr__up_kind kind, int rank, size_t *nbytes) {
    dtr__up *up = calloc(1, sizeof *up);
    ck_assert_ptr_nonnull(up);
    *up = (dtr__up){ .epoch = 1, .number = 1, .kind = kind, .detail = 1 };
    if (kind == DTR__UP_ENTER) {
        up->entry = others.entry_of(rank);
    }
    *nbytes = kind == DTR__UP_ENTER ? sizeof *up : offsetof(dtr__up, entry);
    return up;
}

/* From the last child on, so that no order of the list helps. */
static void *next_message(int *from, size_t *nbytes) {
    while (others.child >= 0) {
        const dtr__subtree c = dtr__tree_child(others.n, others.child--);
        if (c.n > 0 && (others.missing < c.at || others.missing >= c.at + c.n)) {
            *from = c.at;
            return batch_of(c.at, c.n, nbytes);
        }
    }
    if (others.n_entered < others.n_asked) {
        *from = others.asked[others.n_entered++];
        return up_of(DTR__UP_ENTER, *from, nbytes);
    }
    if (others.n_accepted < others.n_proposed) {
        *from = others.proposed[others.n_accepted++];
        return up_of(DTR__UP_ACCEPT_ALL, *from, nbytes);
    }
    others.now += LIMIT_S / 2.0; /* nobody says more */
    return NULL;
}

dtr_status __wrap_dtr__mailbox_receive(dtr_world *world, dtr__arriving **in, int tag,
                                       void **message, size_t *nbytes, int *from);
dtr_status __wrap_dtr__mailbox_receive(dtr_world *world, dtr__arriving **in, int tag,
                                       void **message, size_t *nbytes, int *from) {
    (void)world, (void)in;
    others.polled = tag == DTR__TAG_AGREE_UP && !others.polled;
    *message = others.polled ? next_message(from, nbytes) : NULL;
    if (*message != NULL) {
        others.received++;
        others.nbytes_in += *nbytes;
    }
    return DTR_OK;
}

/* ---- the world around ---- */

double __wrap_dtr__now(void);
double __wrap_dtr__now(void) {
    return others.now;
}

int __wrap_dtr__ranks_failed(const dtr_world *world);
int __wrap_dtr__ranks_failed(const dtr_world *world) {
    (void)world;
    return 0;
}

void __wrap_dtr__mailbox_reap(dtr__control_message **out);
void __wrap_dtr__mailbox_reap(dtr__control_message **out) {
    (void)out;
}

bool __wrap_dtr__progress_has_thread(const dtr_world *world);
bool __wrap_dtr__progress_has_thread(const dtr_world *world) {
    (void)world;
    return true;
}

void __wrap_dtr__backoff_pause(const dtr_world *world, dtr__backoff *backoff);
void __wrap_dtr__backoff_pause(const dtr_world *world, dtr__backoff *backoff) {
    (void)world, (void)backoff;
}

const char *__wrap_dtr__peer_doing(const dtr_world *world, int rank, char *text, size_t cap);
const char *__wrap_dtr__peer_doing(const dtr_world *world, int rank, char *text, size_t cap) {
    (void)world, (void)rank, (void)cap;
    text[0] = '\0';
    return text;
}

static void nothing(dtr_world *world) {
    (void)world;
}

/* One agreement, as rank 0 of n. */
static dtr_status agree(int n, int missing, dtr__entry (*entry_of)(int rank), dtr__outcome *out) {
    static const dtr__failure_ops failure = { .visit = nothing, .check_early_destroy = nothing };
    dtr__groups groups = { .failure = &failure };
    dtr_world world = { .size = n, .groups = &groups };
    world.mpi.thread_level = MPI_THREAD_MULTIPLE;
    groups.agreements = dtr__agreements_new(&world, 1);
    int *ranks = malloc((size_t)n * sizeof *ranks), *asked = malloc((size_t)n * sizeof *ranks);
    int *proposed = malloc((size_t)n * sizeof *ranks);
    ck_assert(groups.agreements != NULL && ranks != NULL && asked != NULL && proposed != NULL);
    for (int i = 0; i < n; i++) {
        ranks[i] = i;
    }
    memset(&others, 0, sizeof others);
    others.n = n;
    others.missing = missing;
    others.asked = asked;
    others.proposed = proposed;
    others.child = DTR__TREE_WIDTH - 1;
    others.entry_of = entry_of;
    others.before = allocated();
    const dtr__entry mine = entry_of(0);
    const dtr_status s = dtr__agree(&world, "a call", ranks, n, &mine, NULL, out);
    dtr__agreements_free(groups.agreements, false);
    free(ranks);
    free(asked);
    free(proposed);
    return s;
}

/* ---- what they bring ---- */

static dtr__entry alike(int rank) {
    (void)rank;
    dtr__entry e = { .scope = 1, .limit_s = LIMIT_S, .unnamed = 1, .counter = 7, .index = 0 };
    for (int f = 0; f < DTR__FIELD_COUNT; f++) {
        dtr__field_set(&e.field[f], "same");
    }
    e.retired[0].uid = 55; /* all of them could free it */
    e.retired[0].size = (uint64_t)others.n;
    return e;
}

static dtr__entry with_tag(int rank) {
    dtr__entry e = alike(rank);
    e.found = 99;
    return e;
}

/* Pairs, whose members are listed for them. */
static dtr__entry of_pair(int rank) {
    dtr__entry e = alike(rank);
    e.index = rank / 2;
    e.key = -rank;
    e.send_members = 1;
    return e;
}

static dtr__entry of_half(int rank) {
    dtr__entry e = of_pair(rank);
    e.index = rank % 2;
    return e;
}

static dtr__entry with_own_name(int rank) {
    char name[16];
    dtr__entry e = alike(rank);
    snprintf(name, sizeof name, "%d", rank);
    dtr__field_set(&e.field[DTR__FIELD_NAME], name);
    return e;
}

static dtr__entry with_live_name(int rank) {
    dtr__entry e = alike(rank);
    e.name_live = rank % 2 == 0;
    return e;
}

static dtr__entry of_end(int rank) {
    dtr__entry e = alike(rank);
    e.end = 1;
    e.ends = 77;
    e.index = -1;
    return e;
}

static dtr__entry of_failed_end(int rank) {
    dtr__entry e = of_end(rank);
    if (rank == others.n / 3) {
        e.status = DTR_ERR_STATE;
        snprintf(e.text, sizeof e.text, "no way");
    }
    return e;
}

/* ---- what comes of it ---- */

static size_t sent_in_all(void) {
    size_t n = 0;
    for (size_t k = 0; k < sizeof others.sent / sizeof others.sent[0]; k++) {
        n += others.sent[k];
    }
    return n;
}

/* Of each child: entries, a proposal, an acceptance, and two commits, less where both of their
 * trees meet; 16 bytes for each rank, and a fixed part for each message. */
static void few_messages(int n) {
    ck_assert_uint_eq(others.sent[DTR__DOWN_PROPOSE], DTR__TREE_WIDTH);
    ck_assert_uint_le(others.sent[DTR__DOWN_COMMIT], 2 * DTR__TREE_WIDTH);
    ck_assert_uint_le(sent_in_all() + others.received, 5 * DTR__TREE_WIDTH);
    ck_assert_uint_eq(others.n_slots, n - 1);
}

/* Of each rank that asks for the same as others, its place and number, and an answer. */
static void little_memory(int n) {
    ck_assert_uint_le(others.memory, 450 * (size_t)n + 65536);
}

static void one_group(int n) {
    dtr__outcome out;
    ck_assert_int_eq(agree(n, NOBODY, alike, &out), DTR_OK);
    ck_assert_uint_eq(out.number, 8);
    ck_assert_uint_eq(out.free_uid[0], 55);
    few_messages(n);
    ck_assert_uint_le(others.nbytes, 16 * (size_t)n + 8192);
    ck_assert_uint_le(others.nbytes_in, 16 * (size_t)n + 32768);
    little_memory(n);
}

static void live_group(int n) {
    dtr__outcome out;
    ck_assert_int_eq(agree(n, NOBODY, with_tag, &out), DTR_OK);
    ck_assert(out.reuse && out.uid == 99);
}

static void pairs(int n) {
    dtr__outcome out;
    ck_assert_int_eq(agree(n, NOBODY, of_pair, &out), DTR_OK);
    ck_assert_int_eq(out.n_members, 2);
    ck_assert_int_eq(out.members[0], 1);
    ck_assert_int_eq(out.members[1], 0);
    ck_assert_uint_eq(out.counter, 7 + (size_t)n / 2);
    ck_assert_uint_eq(others.n_members, 2 * ((size_t)n - 1));
    few_messages(n);
    free(out.members);
}

/* The list of n members goes to each child, and where each rank goes comes from it. */
static void halves(int n) {
    dtr__outcome out;
    ck_assert_int_eq(agree(n, NOBODY, of_half, &out), DTR_OK);
    ck_assert_int_eq(out.n_members, n / 2);
    for (int k = 0; k < n / 2; k++) {
        ck_assert_int_eq(out.members[k], n - 2 - 2 * k);
    }
    ck_assert_uint_le(others.nbytes, (16 + 4 * DTR__TREE_WIDTH) * (size_t)n + 8192);
    ck_assert_uint_le(others.nbytes_in, 32 * (size_t)n + 32768);
    little_memory(n);
    few_messages(n);
    free(out.members);
}

static void the_end(int n) {
    dtr__outcome out;
    ck_assert_int_eq(agree(n, NOBODY, of_end, &out), DTR_OK);
    few_messages(n);
}

/* All are told, also those who have not come. */
static void the_end_has_failed(int n) {
    dtr__outcome out;
    ck_assert_int_eq(agree(n, NOBODY, of_failed_end, &out), DTR_ERR_REMOTE);
    ck_assert_uint_eq(others.sent[DTR__DOWN_FINAL], n - 1);
    ck_assert_int_lt(others.received, DTR__TREE_WIDTH);
    ck_assert_ptr_nonnull(strstr(others.text, "no way"));
}

static void names_differ(int n) {
    dtr__outcome out;
    ck_assert_int_eq(agree(n, NOBODY, with_own_name, &out), DTR_ERR_MISMATCH);
    ck_assert_uint_eq(others.sent[DTR__DOWN_FINAL], n - 1);
    ck_assert_ptr_nonnull(strstr(others.text, "name: 0 on rank 0, but 1 on rank 1, but 2 on"));
}

static void name_is_live(int n) {
    dtr__outcome out;
    char rest[32];
    ck_assert_int_eq(agree(n, NOBODY, with_live_name, &out), DTR_ERR_STATE);
    snprintf(rest, sizeof rest, "28, 30 and %d more;", n / 2 - DTR__RANKS_SHOWN);
    ck_assert_ptr_nonnull(strstr(others.text, rest));
}

static void one_is_missing(int n) {
    dtr__outcome out;
    char named[96];
    ck_assert_int_eq(agree(n, n / 3, alike, &out), DTR_ERR_TIMEOUT);
    snprintf(named, sizeof named, "%d of %d ranks came within 5 s, missing: rank %d", n - 1, n,
             n / 3);
    ck_assert_ptr_nonnull(strstr(others.text, named));
    ck_assert_uint_eq(others.sent[DTR__DOWN_FINAL], n - 2);
    ck_assert_uint_eq(others.sent[DTR__DOWN_ASK], others.n_asked + 1); /* who is below it, and it */
    ck_assert_uint_eq(others.sent[DTR__DOWN_HERE], others.n_asked);
}

static void (*const runs[])(int n) = { one_group,    live_group,   pairs,
                                       halves,       the_end,      the_end_has_failed,
                                       names_differ, name_is_live, one_is_missing };

START_TEST(steps_grow_like_ranks) {
    grows_like_ranks(runs[_i]);
}
END_TEST

/* ---- an inner rank ---- */

/* Rank 1 of 21 has those behind it below; they share an entry, but go to places of their own. */
START_TEST(places_are_passed_on) {
    enum { N = 21, BELOW = 4 };
    dtr__groups groups = { 0 };
    dtr_world world = { .size = N, .rank = 1, .groups = &groups };
    groups.agreements = dtr__agreements_new(&world, 1);
    memset(&others, 0, sizeof others);
    others.entry_of = of_half;
    size_t nbytes = 0;
    const dtr__entry mine = of_half(1);
    void *batch = batch_of(2, BELOW, &nbytes);
    dtr__agreement m = { .ms = groups.agreements,
                         .world = &world,
                         .mine = &mine,
                         .me = 1,
                         .number = 1,
                         .subtree_changed = true };
    ck_assert_int_eq(dtr__agreement_alloc(&m, N), DTR_OK);
    for (int i = 0; i < N; i++) {
        m.ranks[i] = i;
    }
    dtr__tree_take_batch(&m, batch, nbytes);
    ck_assert(!dtr__agreement_all_came(&m));
    dtr__tree_gather(&m);
    const dtr__slot *slot = (const dtr__slot *)(const void *)others.up.rest;
    const dtr__variant *variant = (const dtr__variant *)(slot + others.up.head.n_slots);
    ck_assert_int_eq(others.up.head.n_slots, 1 + BELOW);
    ck_assert_int_eq(others.up.head.n_entries, 1);
    for (int k = 0; k < 1 + BELOW; k++) {
        const dtr__entry should = of_half(slot[k].rank);
        ck_assert_int_eq(slot[k].rank, 1 + k);
        ck_assert_int_eq(variant[slot[k].of].key, should.key);
        ck_assert_int_eq(variant[slot[k].of].index, should.index);
    }
    dtr__agreements_free(groups.agreements, false);
    free(batch);
    free(m.ranks);
    free(m.came);
}
END_TEST

/* ---- the shape of the tree ---- */

static bool is_below(int i, int other, int n) {
    while (i > 0 && i != other) {
        i = dtr__tree_node_at(i, n).parent;
    }
    return i == other;
}

/* The commit goes by the tree and by its mirror image: nobody is below the same rank in both. */
static void two_trees(int n, int i) {
    const dtr__tree_node p = dtr__tree_node_at(i, n);
    const dtr__subtree c = dtr__tree_child(dtr__tree_node_at(p.parent, n).n, p.child);
    ck_assert_int_eq(p.parent + c.at, i);
    ck_assert_int_eq(c.n, p.n);
    for (int other = 1; other < n; other++) {
        ck_assert(other == i || !is_below(i, other, n) || !is_below(n - i, n - other, n));
    }
}

START_TEST(no_rank_is_below_another_in_both_trees) {
    for (int n = 2; n <= 90; n++) {
        for (int i = 1; i < n; i++) {
            two_trees(n, i);
        }
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("agreement");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, steps_grow_like_ranks, 0, sizeof runs / sizeof runs[0]);
    tcase_add_test(tc, places_are_passed_on);
    tcase_add_test(tc, no_rank_is_below_another_in_both_trees);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("many ranks agree", make);
}
