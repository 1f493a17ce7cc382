/* The coordinator of an agreement of many ranks, which are pretended: what it sends is counted and
 * answered here, and each of its polls finds one message. Steps are counted as in many_ranks.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../collectives/agreement/coordinator.h"
#include "base/backoff.h"
#include "base/world.h"
#include "core/team.h"
#include "steps.h"
#include "unit.h"

enum { LIMIT_S = 5, NOBODY = -1 };

/* ---- the other ranks ---- */

static struct {
    int n, missing;      /* ranks, and the one that does not come */
    int entered;         /* how many have */
    int *asked, n_asked; /* with a proposal, to be accepted */
    int n_accepted;
    bool polled; /* this poll has had its message */
    double now;
    size_t sent[DTR__DOWN_FINAL + 1], nbytes, n_members;
    dtr__entry (*entry_of)(int rank);
    char text[DTR__AGREEMENT_TEXT];
} others;

dtr_status __wrap_dtr__mailbox_send(dtr_world *world, dtr__control_message **out, int to, int tag,
                                    const void *head, size_t head_nbytes, const void *tail,
                                    size_t tail_nbytes);
dtr_status __wrap_dtr__mailbox_send(dtr_world *world, dtr__control_message **out, int to, int tag,
                                    const void *head, size_t head_nbytes, const void *tail,
                                    size_t tail_nbytes) {
    (void)world, (void)out;
    const dtr__down *down = head;
    ck_assert_int_eq(tag, DTR__TAG_AGREE_DOWN);
    ck_assert_uint_eq(head_nbytes, sizeof *down);
    others.sent[down->kind]++;
    others.nbytes += head_nbytes + tail_nbytes;
    if (down->kind == DTR__DOWN_PROPOSE) {
        others.asked[others.n_asked++] = to;
        others.n_members += (size_t)down->n_members;
    } else if (down->kind == DTR__DOWN_FINAL) {
        snprintf(others.text, sizeof others.text, "%s", (const char *)tail);
    }
    return DTR_OK;
}

/* From rank 1 on; from the last to the first, so that no order of the list helps. */
static dtr__up *next_message(int *from) {
    dtr__up up = { .epoch = 1, .number = 1 };
    if (others.n - 1 - others.entered == others.missing) {
        others.entered++;
    }
    if (others.entered < others.n - 1) {
        *from = others.n - 1 - others.entered++;
        up.kind = DTR__UP_ENTER;
        up.entry = others.entry_of(*from);
    } else if (others.n_accepted < others.n_asked) {
        *from = others.asked[others.n_accepted++];
        up.kind = DTR__UP_ACCEPT;
        up.detail = 1;
    } else {
        others.now += LIMIT_S;
        return NULL;
    }
    dtr__up *message = malloc(sizeof *message);
    ck_assert_ptr_nonnull(message);
    *message = up;
    return message;
}

dtr_status __wrap_dtr__mailbox_receive(dtr_world *world, dtr__arriving **in, int tag,
                                       void **message, size_t *nbytes, int *from);
dtr_status __wrap_dtr__mailbox_receive(dtr_world *world, dtr__arriving **in, int tag,
                                       void **message, size_t *nbytes, int *from) {
    (void)world, (void)in;
    others.polled = tag == DTR__TAG_AGREE_UP && !others.polled;
    *message = others.polled ? next_message(from) : NULL;
    *nbytes = sizeof(dtr__up);
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
    static const dtr__failure_ops failure = { .visit = nothing };
    dtr__groups groups = { .failure = &failure };
    dtr_world world = { .size = n, .groups = &groups };
    world.mpi.thread_level = MPI_THREAD_MULTIPLE;
    groups.agreements = dtr__agreements_new(&world, 1);
    int *ranks = malloc((size_t)n * sizeof *ranks), *asked = malloc((size_t)n * sizeof *ranks);
    ck_assert(groups.agreements != NULL && ranks != NULL && asked != NULL);
    for (int i = 0; i < n; i++) {
        ranks[i] = i;
    }
    memset(&others, 0, sizeof others);
    others.n = n;
    others.missing = missing;
    others.asked = asked;
    others.entry_of = entry_of;
    const dtr__entry mine = entry_of(0);
    const dtr_status s = dtr__agree(&world, "a call", ranks, n, &mine, NULL, out);
    dtr__agreements_free(groups.agreements, false);
    free(ranks);
    free(asked);
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

/* ---- what comes of it ---- */

static void one_group(int n) {
    dtr__outcome out;
    ck_assert_int_eq(agree(n, NOBODY, alike, &out), DTR_OK);
    ck_assert_uint_eq(out.number, 8);
    ck_assert_uint_eq(out.free_uid[0], 55);
    ck_assert_uint_eq(others.sent[DTR__DOWN_PROPOSE], n - 1);
    ck_assert_uint_eq(others.sent[DTR__DOWN_COMMIT], n - 1);
    ck_assert_uint_eq(others.nbytes, 3 * sizeof(dtr__down) * ((size_t)n - 1));
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
    free(out.members);
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
}

static void (*const runs[])(int n) = { one_group,    live_group,   pairs,
                                       names_differ, name_is_live, one_is_missing };

START_TEST(steps_grow_like_ranks) {
    grows_like_ranks(runs[_i]);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("agreement");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, steps_grow_like_ranks, 0, sizeof runs / sizeof runs[0]);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("many ranks agree", make);
}
