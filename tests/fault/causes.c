/* Several ranks find what broke a group, or groups, each in its own way: all members name the same
 * cause (reliability: CP4, CP5, EA6, M9). */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "agreement/key_value.h"
#include "control/control.h"
#include "control/vote.h"
#include "core/team.h"
#include "engine/engine.h"
#include "failure/failure.h"
#include "harness.h"

static int victim(void) {
    return th_size() > 2 ? 2 : 1;
}

static bool is_victim(void) {
    return th_rank() == victim();
}

/* ---- CP5, EA6, M9: all ranks fail at once, each in its own way ---- */

static void fail_in_own_way(dtr_group *g) {
    char own[64];
    dtr__error_context ctx = { .world = th_world(), .operation = "test" };
    const dtr_status ways[] = { DTR_ERR_TIMEOUT, DTR_ERR_ABORTED, DTR_ERR_MISMATCH };
    snprintf(own, sizeof own, "what rank %d has found", th_rank());
    if (th_rank() % 2 == 1) {
        TH_IS(dtr_group_abort(g, own), DTR_OK);
    } else {
        dtr_status s = ways[th_rank() % 3];
        dtr__group_break(g, DTR_FAIL(&ctx, s, "%s", own));
    }
}

START_TEST(CP5_EA6_all_name_the_same_cause) {
    enum { ROUNDS = 12 };
    float x = 1;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_F32);
    dtr__failure_record_wait_for(th_world(), INT64_MAX / 8); /* however slow the machine is */
    for (int i = 0; i < ROUNDS; i++) {
        dtr_group *g = NULL;
        dtr_work *w = NULL;
        char text[2][1024] = { "", "" };
        TH_IS(dtr_group_split(dtr_world_group(th_world()), 0, 0, NULL, &g), DTR_OK);
        if (th_rank() == 0) { /* the others never call it */
            TH_IS(dtr_allreduce(g, b, b, DTR_SUM, NULL, &w), DTR_OK);
        }
        th_barrier();
        fail_in_own_way(g);
        dtr_status s = w != NULL ? dtr_work_wait(w, -1) : dtr_barrier(g, NULL, NULL), all = s;
        snprintf(text[0], sizeof text[0], "%s", dtr_last_error_message());
        memcpy(text[1], text[0], sizeof text[1]);
        MPI_Bcast(&all, (int)sizeof all, MPI_BYTE, 0, MPI_COMM_WORLD);
        MPI_Bcast(text[1], sizeof text[1], MPI_CHAR, 0, MPI_COMM_WORLD);
        TH_CHECK(s == all && dtr_group_status(g) == all && strcmp(text[0], text[1]) == 0,
                 "%s, on rank 0 %s: %s", dtr_status_name(s), dtr_status_name(all), text[0]);
        TH_CHECK(strstr(text[0], "what rank ") != NULL, "another cause: %s", text[0]);
        TH_IS(dtr_work_release(w), DTR_OK);
        TH_IS(dtr_group_destroy(g), DTR_OK);
    }
    dtr__failure_record_wait_for(th_world(), DTR__FAILURE_PATIENCE_NS);
    TH_AGREE();
}
END_TEST

/* Takes places of failure records away as fast as it can. */
typedef struct thief {
    uint64_t uid;
    atomic_bool stop;
} thief;

static void *steal(void *arg) {
    thief *t = arg;
    dtr__failure_record v = { .status = DTR_ERR_ABORTED };
    for (uint64_t n = 0; !atomic_load(&t->stop); n++) {
        v.uid = t->uid + n % (64 * DTR__FAILURE_RECORDS); /* of no group */
        (void)dtr__failure_record_put(th_world(), &v);
    }
    return NULL;
}

/* CP5: a group whose place others have taken ends all the same, found by whom it may be. */
START_TEST(CP5_more_groups_than_places) {
    enum { GROUPS = 4 };
    dtr_group *g[GROUPS];
    thief t = { .uid = (uint64_t)(th_size() + 2) << 40 };
    dtr__error_context ctx = { .world = th_world(), .operation = "test" };
    pthread_t thread;
    for (int i = 0; i < GROUPS; i++) {
        TH_IS(dtr_group_split(dtr_world_group(th_world()), 0, 0, NULL, &g[i]), DTR_OK);
    }
    pthread_create(&thread, NULL, steal, &t);
    for (int i = 0; i < GROUPS; i++) {
        dtr__queue called = { NULL, NULL };
        dtr_status s = DTR_FAIL(&ctx, DTR_ERR_TIMEOUT, "what rank %d has found", th_rank());
        if (i % 2 == 0) {
            dtr__group_break(g[i], s);
        } else { /* as the watchdog does, which does not wait */
            dtr__group_report_failure(g[i], s, &called);
            dtr__callbacks_run(&called);
        }
    }
    for (int i = 0; i < GROUPS; i++) {
        dtr_status s;
        do { /* until it is broken, which takes longer between nodes */
            s = dtr_barrier(g[i], NULL, NULL);
        } while (s == DTR_OK);
        TH_IS(s, DTR_ERR_TIMEOUT);
        TH_MESSAGE("what rank ");
    }
    atomic_store(&t.stop, true);
    pthread_join(thread, NULL);
    th_barrier();
    for (int i = 0; i < GROUPS; i++) {
        TH_IS(dtr_group_destroy(g[i]), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

/* CP4: who waits for a key hears at once that its group ended, here as after a death. */
START_TEST(CP4_key_of_a_broken_group) {
    dtr_group *g = NULL;
    size_t nbytes = 0;
    char value;
    TH_IS(dtr_group_split(dtr_world_group(th_world()), 0, 0, NULL, &g), DTR_OK);
    if (th_rank() == victim()) {
        dtr__error_context ctx = { .world = th_world(), .operation = "test" };
        dtr__group_break(g, DTR_FAIL(&ctx, DTR_ERR_REMOTE, "rank %d has it", th_rank()));
    } else { /* longer than the test may take */
        TH_IS(dtr__key_value_get(g, DTR_CPU, "never put", &value, 1, &nbytes, 600), DTR_ERR_REMOTE);
        TH_MESSAGE("has it");
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* CP5: what a node hears of a group that none of its ranks has yet, being slower out of its
 * creation, counts once one has it. */
START_TEST(CP5_a_record_before_its_group) {
    enum { ID = 1000000 }; /* of no group */
    dtr_world *w = th_world();
    dtr_group *g = NULL;
    const uint64_t uid = (uint64_t)(th_size() + 3) << 40;
    const int members[] = { 0, 2 };
    dtr__failure_record v = { .status = DTR_ERR_TIMEOUT, .origin = victim(), .remote = 1 };
    bool nodes = dtr_world_node_count(w) == 2 && th_size() == 4;
    TH_IS(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g), DTR_OK);
    for (int i = 0; i < 2 && nodes && is_victim(); i++) { /* the break of g may take one's place */
        v.uid = uid + (uint64_t)i;
        (void)dtr__failure_record_put(w, &v);
    }
    if (is_victim()) {
        TH_IS(dtr_group_abort(g, "the loss is not a number"), DTR_OK);
    }
    while (dtr_group_status(g) == DTR_OK) { /* what was told before has come then */
        th_sleep(0.01);
    }
    if (nodes && th_rank() == 0) {
        (void)dtr__rec_group_add(w, ID, uid, "early", 0, 2, members);
        (void)dtr__rec_group_add(w, ID + 1, uid + 1, "early", 0, 2, members);
        while (!dtr__failure_record_is_put(w, uid) && !dtr__failure_record_is_put(w, uid + 1)) {
            th_sleep(0.01);
        }
        dtr__rec_group_end(w, ID);
        dtr__rec_group_end(w, ID + 1);
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* NEW36: of two groups that break together none does before both are known for it. */
START_TEST(NEW36_two_groups_together) {
    const uint64_t uid = (uint64_t)(th_size() + 4) << 40; /* of no group */
    const int members[] = { th_rank() };
    dtr__failure_record v = { .uid = uid, .also = uid + 1, .status = DTR_ERR_MISMATCH }, out;
    dtr_world *w = th_world();
    if (dtr_world_local_rank(w) == 0) {
        dtr__failure_record_wait_for(w, INT64_MAX / 8);
        TH_CHECK(dtr__failure_record_put(w, &v), "no failure records");
        TH_CHECK(!dtr__failure_record_settled(w, uid, members, 1, &out), "settled by one of two");
        dtr__failure_record_wait_for(w, 0); /* who found it has died in between */
        TH_CHECK(dtr__failure_record_settled(w, uid, members, 1, &out), "it waits for ever");
        dtr__failure_record_wait_for(w, INT64_MAX / 8);
        v.uid = uid + 1;
        v.also = uid;
        TH_CHECK(dtr__failure_record_put(w, &v), "no failure records");
        TH_CHECK(dtr__failure_record_settled(w, uid, members, 1, &out), "the first");
        TH_CHECK(dtr__failure_record_settled(w, uid + 1, members, 1, &out), "the second");
        dtr__failure_record_wait_for(w, DTR__FAILURE_PATIENCE_NS);
    }
    TH_AGREE();
}
END_TEST

/* What two nodes have found, and whose counts. */
static void settle(uint64_t uid, dtr_status here, int here_by, dtr_status there, int there_by,
                   int want) {
    const int members[] = { 0, 1, 2, 3 };
    dtr__failure_record mine = { .uid = uid, .status = here, .origin = here_by, .remote = 1 }, out;
    dtr__failure_record theirs = { .uid = uid, .status = there, .origin = there_by, .remote = 1 };
    TH_CHECK(dtr__failure_record_put(th_world(), &mine), "no failure records");
    TH_CHECK(!dtr__failure_record_settled(th_world(), uid, members, 4, &out), "by one node");
    dtr__failure_record_receive(th_world(), 1, &theirs);
    TH_CHECK(dtr__failure_record_settled(th_world(), uid, members, 4, &out) && out.origin == want,
             "%s of rank %d and %s of rank %d: %d", dtr_status_name(here), here_by,
             dtr_status_name(there), there_by, out.origin);
}

START_TEST(CP5_which_cause_counts) {
    uint64_t uid = (uint64_t)(th_size() + 1) << 40; /* of no group */
    const int members[] = { 0, 1, 2, 3 };
    dtr__failure_record v = { .uid = uid, .status = DTR_ERR_ABORTED, .origin = 1 }, out;
    if (th_rank() == 0) { /* on a node whoever is first */
        TH_CHECK(!dtr__failure_record_is_put(th_world(), uid), "there is one");
        TH_CHECK(dtr__failure_record_put(th_world(), &v), "no failure records");
        v = (dtr__failure_record){ .uid = uid, .status = DTR_ERR_MISMATCH, .origin = 0 };
        TH_CHECK(dtr__failure_record_put(th_world(), &v), "no failure records");
        TH_CHECK(dtr__failure_record_settled(th_world(), uid, members, 2, &out) && out.origin == 1,
                 "the second one counts");
    }
    if (th_rank() == 0 && th_size() == 4 && dtr_world_node_count(th_world()) == 2) {
        while (!dtr__control_serves(th_world())) {
            th_sleep(0.01);
        }
        dtr__failure_record_wait_for(th_world(), INT64_MAX / 8);
        settle(++uid, DTR_ERR_ABORTED, 0, DTR_ERR_TIMEOUT, 3, 3);
        settle(++uid, DTR_ERR_TIMEOUT, 1, DTR_ERR_TIMEOUT, 2, 1);
        settle(++uid, DTR_ERR_TIMEOUT, 0, DTR_ERR_REMOTE, 3, 3);
        settle(++uid, DTR_ERR_REMOTE, 1, DTR_ERR_MPI, 2, 1);
        settle(++uid, DTR_ERR_CUDA, 0, DTR_ERR_MISMATCH, 3, 3);
        settle(++uid, DTR_ERR_MISMATCH, 1, DTR_ERR_ABORTED, 2, 1);
        v = (dtr__failure_record){ .status = DTR_ERR_TIMEOUT, .origin = 1, .remote = 1 };
        v.uid = ++uid;
        TH_CHECK(dtr__failure_record_put(th_world(), &v), "no failure records");
        dtr__failure_record_wait_for(th_world(), 0); /* the other node says nothing for too long */
        TH_CHECK(dtr__failure_record_settled(th_world(), uid, members, 4, &out) && out.origin == 1,
                 "it waits for ever");
        dtr__failure_record_wait_for(th_world(), DTR__FAILURE_PATIENCE_NS);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "causes", 110);
    th_add(tc, CP5_EA6_all_name_the_same_cause, 2, 0);
    th_add(tc, CP5_more_groups_than_places, 2, 0);
    th_add(tc, CP5_a_record_before_its_group, 2, 0);
    th_add(tc, CP5_which_cause_counts, 2, 0);
    th_add(tc, NEW36_two_groups_together, 2, 0);
    th_add(tc, CP4_key_of_a_broken_group, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "fault_causes", make);
}
