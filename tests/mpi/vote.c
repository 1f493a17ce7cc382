/* Votes of the control plane, on which the members of a group agree (reliability: CP10). */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "control/vote.h"
#include "core/team.h"
#include "harness.h"

#define LIMIT_S 50.0

static dtr__vote vote_of(uint64_t uid, uint64_t step, dtr_status s) {
    const uint64_t number = 100 + (uint64_t)th_rank();
    dtr__vote b = { .uid = uid,
                    .step = step,
                    .low = number,
                    .high = number,
                    .bits = UINT64_C(1) << th_rank(),
                    .value = step * 1000 + (uint64_t)th_rank(),
                    .status = s,
                    .order = dtr__vote_order(s),
                    .native = s < 0 ? DTR_NATIVE_MPI : DTR_NATIVE_NONE,
                    .native_code = s < 0 ? 16 + th_rank() : 0 };
    snprintf(b.text, sizeof b.text, "%s of rank %d in step %llu", dtr_status_name(s), th_rank(),
             (unsigned long long)step);
    snprintf(b.native_text, sizeof b.native_text, "native %d", th_rank());
    return b;
}

static dtr_status put(const dtr_group *g, const dtr__vote *b) {
    return dtr__vote_put(g->world, g->world_ranks, g->size, b);
}

static dtr_status get(const dtr_group *g, const dtr__vote *b, double limit_s, dtr__vote *all) {
    return dtr__vote_get(g->world, g->world_ranks, g->size, b->uid, b->step, limit_s, NULL, NULL,
                         all);
}

static dtr_status agree(const dtr_group *g, const dtr__vote *b, dtr__vote *all) {
    dtr_status s = put(g, b);
    return s == DTR_OK ? get(g, b, LIMIT_S, all) : s;
}

/* What rank `origin` put with `s` is what this rank got, of `n_bad` bad ones. */
static void is_vote_of(const dtr__vote *all, int origin, dtr_status s, int n_bad) {
    char text[64];
    snprintf(text, sizeof text, "%s of rank %d in step %llu", dtr_status_name(s), origin,
             (unsigned long long)all->step);
    TH_CHECK(all->status == (int32_t)s && all->origin == origin && strcmp(all->text, text) == 0,
             "%s of rank %d: %s, want %s", dtr_status_name((dtr_status)all->status), all->origin,
             all->text, text);
    TH_CHECK(all->value == all->step * 1000 + (uint64_t)origin && (int)all->n_bad == n_bad &&
                 all->low == 100 && all->high == 100 + (uint64_t)th_size() - 1 &&
                 all->bits == (UINT64_C(1) << th_size()) - 1,
             "step %d: value %d, %d bad, numbers %d to %d, bits %x", (int)all->step,
             (int)all->value, (int)all->n_bad, (int)all->low, (int)all->high, (unsigned)all->bits);
    TH_CHECK(s == DTR_OK || (all->native == DTR_NATIVE_MPI && all->native_code == 16 + origin),
             "native %d, code %d", (int)all->native, (int)all->native_code);
}

/* CP5's rule: kinds before ranks. Every rank is the bad one in turn, then two of them at once. */
START_TEST(CP10_two_votes_at_once) {
    static const dtr_status kind[] = { DTR_ERR_MISMATCH, DTR_ERR_SYSTEM, DTR_ERR_TIMEOUT,
                                       DTR_ERR_ABORTED };
    const dtr_group *g = th_group();
    const int n = th_size(), last = n - 1;
    dtr__vote all = { .uid = 0 };
    uint64_t step = 0;
    for (int bad = 0; bad < n; bad++) {
        dtr__vote b = vote_of(g->uid, ++step, th_rank() == bad ? DTR_ERR_NAN : DTR_OK);
        TH_IS(agree(g, &b, &all), DTR_OK);
        is_vote_of(&all, bad, DTR_ERR_NAN, 1);
    }
    for (int a = 0; a < 4 && n > 1; a++) {
        for (int z = 0; z < 4; z++) {
            dtr_status s = th_rank() == 0 ? kind[a] : th_rank() == last ? kind[z] : DTR_OK;
            dtr__vote b = vote_of(g->uid, ++step, s);
            TH_IS(agree(g, &b, &all), DTR_OK);
            is_vote_of(&all, z < a ? last : 0, z < a ? kind[z] : kind[a], 2);
        }
    }
    dtr__vote b = vote_of(g->uid, ++step, DTR_OK);
    TH_IS(agree(g, &b, &all), DTR_OK);
    is_vote_of(&all, 0, DTR_OK, 0);
    TH_AGREE();
}
END_TEST

/* Slots are used again; a vote of another step or group is never taken for this one's. */
static void steps_of(const dtr_group *g, uint64_t uid, unsigned seed) {
    enum { STEPS = TH_SANITIZED ? 60 : 200 };
    for (uint64_t step = 1; step <= STEPS; step++) {
        const int bad = (int)((step * 7 + seed) % (unsigned)(2 * th_size()));
        dtr__vote b = vote_of(uid, step, th_rank() == bad ? DTR_ERR_STATE : DTR_OK);
        dtr__vote all = { .uid = 0 };
        TH_IS(agree(g, &b, &all), DTR_OK);
        TH_CHECK(all.uid == uid && all.step == step, "step %d", (int)step);
        is_vote_of(&all, bad < th_size() ? bad : 0, bad < th_size() ? DTR_ERR_STATE : DTR_OK,
                   bad < th_size());
    }
}

START_TEST(CP10_slots_are_used_again) {
    steps_of(th_group(), th_group()->uid, 0);
    for (uint64_t other = 1; other <= 3 * DTR__VOTES; other++) {
        dtr__vote b = vote_of(th_group()->uid + (other << 20), 1, DTR_OK), all = { .uid = 0 };
        TH_IS(agree(th_group(), &b, &all), DTR_OK);
        is_vote_of(&all, 0, DTR_OK, 0);
    }
    TH_AGREE();
}
END_TEST

static void *in_a_thread(void *arg) {
    const dtr_group *g = th_group();
    const unsigned k = *(const unsigned *)arg;
    steps_of(g, g->uid + ((uint64_t)(k + 1) << 20), k);
    return NULL;
}

START_TEST(CP10_groups_at_once) {
    enum { THREADS = 2 };
    static const unsigned number[THREADS] = { 0, 1 };
    pthread_t thread[THREADS];
    for (int k = 0; k < THREADS; k++) {
        ck_assert_int_eq(pthread_create(&thread[k], NULL, in_a_thread, (void *)&number[k]), 0);
    }
    steps_of(th_group(), th_group()->uid, 5);
    for (int k = 0; k < THREADS; k++) {
        pthread_join(thread[k], NULL);
    }
    TH_AGREE();
}
END_TEST

static dtr_status end_it(void *arg) {
    dtr__error_context ctx = { .operation = arg };
    return DTR_FAIL(&ctx, DTR_ERR_ABORTED, "asked to");
}

/* One that does not put its vote is named at the limit, and once it has all get the same. */
START_TEST(CP10_absent) {
    const dtr_group *g = th_group();
    const int absent = th_size() - 1;
    char name[32];
    dtr__vote b = vote_of(g->uid, 1, th_rank() == 0 ? DTR_ERR_GRAPH : DTR_OK), all = { .uid = 9 };
    snprintf(name, sizeof name, "rank %d", absent);
    if (th_rank() != absent) {
        TH_IS(put(g, &b), DTR_OK);
        dtr_status s;
        do { /* the first one missing is named: until the votes of the others have come */
            s = get(g, &b, 0.1, &all);
        } while (s == DTR_ERR_TIMEOUT && strstr(dtr_last_error_message(), name) == NULL);
        TH_IS(s, DTR_ERR_TIMEOUT);
        TH_MESSAGE("has not put");
        TH_IS(dtr__vote_get(g->world, g->world_ranks, g->size, b.uid, b.step, LIMIT_S, end_it,
                            "test", &all),
              DTR_ERR_ABORTED);
        TH_CHECK(all.uid == 9, "the output was touched");
    }
    TH_AGREE();
    dtr__vote second = vote_of(g->uid, 1, DTR_ERR_MISMATCH); /* only the first one counts */
    TH_IS(put(g, th_rank() == absent ? &b : &second), DTR_OK);
    TH_IS(get(g, &b, LIMIT_S, &all), DTR_OK);
    is_vote_of(&all, 0, DTR_ERR_GRAPH, 1);
    TH_AGREE();
}
END_TEST

/* A text of full length comes whole. */
START_TEST(CP10_whole_text) {
    const dtr_group *g = th_group();
    dtr__vote b = vote_of(g->uid, 1, th_rank() == th_size() - 1 ? DTR_ERR_STATE : DTR_OK), all;
    memset(b.text, 'a' + th_rank(), sizeof b.text - 1);
    b.text[sizeof b.text - 1] = '\0';
    all = b;
    memset(all.text, 0, sizeof all.text);
    TH_IS(agree(g, &b, &all), DTR_OK);
    TH_CHECK(strlen(all.text) == sizeof all.text - 1 &&
                 strspn(all.text, (char[]){ (char)('a' + th_size() - 1), '\0' }) ==
                     sizeof all.text - 1,
             "%.60s...", all.text);
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "vote", 60);
    if (!dtr__votes_serve(th_world())) {
        th_skip("CP10", "this world has no votes: no memory to share, or no control plane");
        return;
    }
    th_add(tc, CP10_two_votes_at_once, 1, 0);
    th_add(tc, CP10_slots_are_used_again, 1, 0);
    th_add(tc, CP10_groups_at_once, 1, 0);
    th_add(tc, CP10_absent, 2, 0);
    th_add(tc, CP10_whole_text, 1, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "vote", make);
}
