/* Faults in which nobody dies: ranks that stay away, disagree, refuse or give up (reliability: FI1,
 * FI8 to FI11, FI13, FI15, FI17), and what every rank is told. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_internal.h"
#include "engine.h"
#include "exchange.h"
#include "rt_control.h"
#include "rt_verdict.h"
#include "table.h"
#include "verdict.h"

static int victim(void) {
    return th_size() > 2 ? 2 : 1;
}

static bool is_victim(void) {
    return th_rank() == victim();
}

static const char *victim_name(void) {
    static char text[32];
    snprintf(text, sizeof text, "rank %d (host ", victim());
    return text;
}

/* What other nodes do is reported now and then, which these short limits do not wait for. */
static bool sees_all(void) {
    return dtr_world_node_count(th_world()) == 1;
}

/* ---- FI1: the victim computes, and calls when all is over ---- */

static void absent(spot *s) {
    call c = table_call(s);
    c.limit_s = 0.3;
    if (!is_victim()) {
        TABLE_IS(s, table_do(s, &c), DTR_ERR_TIMEOUT);
        TABLE_WORDS(s, "did not finish within 0.3 s", "table.c:", "is broken",
                    s->way == SCOPE ? "coalesced #" : "'grad.3'");
    }
    if (!is_victim() && sees_all()) {
        TABLE_WORDS(s, " has not entered ", "it is outside the library since",
                    "its last finished operation is");
        /* With many ranks on few cores others may be late too, and four are described. */
        TABLE_WORDS(s, th_size() <= 5 ? victim_name() : "behind)");
    }
    th_barrier();
    if (is_victim()) { /* EA4 */
        c.limit_s = 600;
        TABLE_IS(s, table_do(s, &c), DTR_ERR_TIMEOUT);
        TABLE_WORDS(s, "did not finish within 0.3 s");
    }
}

START_TEST(FI1_a_rank_stays_away) {
    dtr_world *w = table_world("off");
    table_each(w, SCOPE, absent);
    table_end(w);
}
END_TEST

/* ---- FI9, FI10, T3: the victim calls something else ---- */

static const struct {
    const char *field, *most, *odd;
    kind kind; /* of both */
} fields[] = { { "kind", "allreduce", "broadcast", ALLREDUCE },
               { "count", "", "", ALLREDUCE },
               { "dtype", "f32", "i32", ALLREDUCE },
               { "op", "sum", "max", ALLREDUCE },
               { "root", "0", "1", BROADCAST } };
enum { FIELDS = sizeof fields / sizeof fields[0] };
static size_t field;
static bool detail; /* the level of DTR_DEBUG */

static void differ(spot *s) {
    char most[32], odd[32], text[64];
    call c = table_call(s);
    c.kind = fields[field].kind;
    snprintf(most, sizeof most, "%s", fields[field].most);
    snprintf(odd, sizeof odd, "%s", fields[field].odd);
    if (fields[field].most[0] == '\0') {
        snprintf(most, sizeof most, "%zu", c.count);
        snprintf(odd, sizeof odd, "%zu", c.count - 1);
    }
    if (is_victim()) {
        c.kind = field == 0 ? BROADCAST : c.kind;
        c.count -= field == 1;
        c.dtype = field == 2 ? DTR_I32 : c.dtype;
        c.op = field == 3 ? DTR_MAX : c.op;
        c.root = field == 4;
    }
    dtr_status e = table_do(s, &c);
    if (e == DTR_OK && !detail) { /* its part was over before anybody could look */
        e = dtr_barrier(s->group, NULL, NULL);
    }
    TABLE_IS(s, e, DTR_ERR_MISMATCH);
    if (!detail && !sees_all()) {
        return; /* mpi may find out before a report has come */
    }
    snprintf(text, sizeof text, "rank %d", victim());
    TABLE_WORDS(s, text, "table.c:", detail ? "No data was moved" : "");
    if (s->way != SCOPE) {
        TABLE_WORDS(s, fields[field].field, most, odd, "'grad.3'");
    }
    TABLE_IS(s, dtr_group_status(s->group), s->way == BACKWARD ? DTR_OK : DTR_ERR_MISMATCH);
}

START_TEST(FI9_FI10_a_rank_calls_something_else) {
    dtr_world *w = table_world("detail");
    detail = true;
    for (field = 0; field < FIELDS; field++) {
        table_each(w, BACKWARD, differ);
    }
    table_end(w);
    /* N4: without it the watchdog finds out where the backend does not. */
    w = table_world("off");
    detail = false;
    for (field = 0; field < FIELDS; field++) {
        if (th_size() > 2 || fields[field].kind != BROADCAST) { /* two roots do not wait */
            table_each(w, ASYNC, differ);
        }
    }
    table_end(w);
}
END_TEST

/* ---- FI11, FT4: the victim leaves one out and goes on ---- */

static bool alike; /* the operations; the last one then misses the one left out */

static call nth_call(const spot *s, int i) {
    call c = table_call(s);
    c.op = i == 1 && !alike ? DTR_MAX : DTR_SUM;
    c.limit_s = i == 2 && alike && !is_victim() ? 0.3 : 600;
    return c;
}

/* In a backward pass: what a hook starts for one bucket, of which the module gets the last. */
static dtr_status calls_inside(spot *s, dtr_group *g, dtr_work **work) {
    dtr_status e = DTR_OK;
    for (int i = is_victim() ? 1 : 0; i < 3 && e == DTR_OK; i++) {
        const call c = nth_call(s, i);
        dtr_work_release(*work);
        *work = NULL;
        e = table_issue(g, &c, s->spare, work);
    }
    return e;
}

static dtr_status leave_one_out(spot *s) {
    const bool step = s->way == BACKWARD;
    dtr_status e = DTR_OK;
    s->inside = calls_inside;
    for (int i = is_victim() && !step ? 1 : 0; i < (step ? 1 : 3) && e == DTR_OK; i++) {
        const call c = nth_call(s, i);
        e = table_do(s, &c);
    }
    return e;
}

static void skip_one(spot *s) {
    dtr_status e = leave_one_out(s);
    if (!is_victim() || s->way == BACKWARD) {
        TABLE_IS(s, e, DTR_ERR_TIMEOUT);
        TABLE_WORDS(s, " #4 ", "did not finish within 0.3 s");
    }
    /* What a module's ranks agree on has less room. */
    if (!is_victim() && s->way != BACKWARD) {
        TABLE_WORDS(s, "is broken");
        if (sees_all()) {
            TABLE_WORDS(s, "has not entered", " #4 (1 behind)");
        }
    }
    th_barrier();
}

static void skip_among_others(spot *s) {
    dtr_status e = leave_one_out(s);
    TABLE_IS(s, e, DTR_ERR_MISMATCH);
    TABLE_WORDS(s, "#2", ".c:");
    if (s->way != SCOPE) {
        TABLE_WORDS(s, "the op of allreduce", "sum", "max");
    }
}

START_TEST(FI11_a_rank_leaves_one_out) {
    dtr_world *w = table_world("detail");
    alike = false;
    table_each(w, BACKWARD, skip_among_others);
    table_end(w);
    w = table_world("off");
    alike = true;
    table_each(w, BACKWARD, skip_one);
    table_end(w);
}
END_TEST

/* ---- FI13: the two ends of a message differ ---- */

static dtr_status differing_ends(const spot *s, dtr_group *g, dtr_work **work) {
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.label = "halo";
    size_t n = s->count - (is_victim() && field == 0);
    dtr_buffer b = dtr_cpu(s->spare, n, is_victim() && field == 1 ? DTR_I32 : DTR_F32);
    if (th_rank() == 0) {
        return dtr_send(g, b, victim(), 7, &o, work);
    }
    return is_victim() ? dtr_recv(g, b, 0, 7, &o, work) : DTR_OK;
}

/* In a backward pass: a message, and what all ranks have to start for the bucket. */
static dtr_status message_inside(spot *s, dtr_group *g, dtr_work **work) {
    dtr_work *message = NULL;
    dtr_status e = differing_ends(s, g, &message);
    dtr_work_release(message);
    return e == DTR_OK ? dtr_barrier(g, NULL, work) : e;
}

static dtr_status message_alone(const spot *s) {
    const bool scope = s->way == SCOPE;
    dtr_work *work = NULL;
    dtr_status e = scope ? dtr_coalesce_begin(s->group) : DTR_OK;
    e = e == DTR_OK ? differing_ends(s, s->group, s->way == ASYNC ? &work : NULL) : e;
    e = e == DTR_OK && scope ? dtr_coalesce_end(s->group, &work) : e;
    e = e == DTR_OK && work != NULL ? dtr_work_wait(work, -1) : e;
    dtr_work_release(work);
    return e;
}

static void differ_in_message(spot *s) {
    const call good = table_call(s);
    const bool step = s->way == BACKWARD;
    s->inside = message_inside;
    dtr_status e = step ? table_do(s, &good) : message_alone(s);
    if (is_victim() || step) {
        TABLE_IS(s, e, DTR_ERR_MISMATCH);
    }
    th_barrier(); /* a small send may be over before anybody looks at it */
    if (!step) {
        TABLE_IS(s, dtr_barrier(s->group, NULL, NULL), DTR_ERR_MISMATCH);
    }
    char most[32], odd[32];
    snprintf(most, sizeof most, "sends f32 x %zu", s->count);
    snprintf(odd, sizeof odd, "receives %s x %zu", field == 1 ? "i32" : "f32",
             s->count - (field == 0));
    TABLE_WORDS(s, most, odd, "(at agreed.c:");
}

START_TEST(FI13_the_ends_of_a_message_differ) {
    dtr_world *w = table_world("off");
    for (field = 0; field < 2; field++) {
        table_each(w, BACKWARD, differ_in_message);
    }
    table_end(w);
}
END_TEST

/* ---- FI15, EA1: a call is refused once and made again ---- */

static void refused_once(spot *s) {
    call c = table_call(s), bad = c;
    bad.kind = BROADCAST;
    bad.root = th_size();
    if (is_victim() && s->way == BACKWARD) {
        TABLE_IS(s, dtr_ddp_grad_ready(s->ddp, 1, NULL), DTR_ERR_ARG);
        TABLE_WORDS(s, "1");
    } else if (is_victim()) {
        TABLE_IS(s, table_do(s, &bad), DTR_ERR_RANK);
        TABLE_WORDS(s, "root is", "group ranks are 0..");
    }
    TABLE_IS(s, table_do(s, &c), DTR_OK);
    TABLE_IS(s, dtr_group_status(s->group), DTR_OK);
}

START_TEST(FI15_a_call_is_refused_once) {
    dtr_world *w = table_world("off");
    table_each(w, BACKWARD, refused_once);
    table_end(w);
}
END_TEST

/* ---- FI17, FT5: the victim's second thread aborts what the others wait for ---- */

static const char reason[] = "the loss is not a number";

static void *abort_group(void *arg) {
    (void)dtr_group_abort(arg, reason);
    return NULL;
}

static void abort_beside(dtr_group *g) {
    pthread_t thread;
    TH_CHECK(pthread_create(&thread, NULL, abort_group, g) == 0, "no thread");
    pthread_join(thread, NULL);
}

static dtr_status abort_inside(spot *s, dtr_group *g, dtr_work **work) {
    if (is_victim()) {
        abort_beside(g);
    }
    return table_issue(g, s->now, s->spare, work);
}

static void abort_from_a_thread(spot *s) {
    enum { PENDING = 10 };
    dtr_work *work[PENDING] = { NULL };
    call c = table_call(s);
    char text[32];
    snprintf(text, sizeof text, "rank %d", victim());
    if (s->way == BACKWARD) {
        s->inside = abort_inside;
        TABLE_IS(s, table_do(s, &c), DTR_ERR_ABORTED);
        TABLE_WORDS(s, reason, text);
        return;
    }
    dtr_buffer b = dtr_cpu(s->spare, s->count, DTR_F32);
    for (int i = 0; i < PENDING && s->way == ASYNC && !is_victim(); i++) {
        (void)dtr_allreduce(s->group, b, b, DTR_SUM, NULL, &work[i]);
    }
    if (is_victim()) {
        abort_beside(s->group);
    }
    TABLE_IS(s, table_do(s, &c), DTR_ERR_ABORTED);
    for (int i = 0; i < PENDING; i++) {
        if (work[i] != NULL) {
            TABLE_IS(s, dtr_work_wait(work[i], -1), DTR_ERR_ABORTED);
            TABLE_WORDS(s, reason);
        }
        dtr_work_release(work[i]);
    }
    TABLE_IS(s, dtr_barrier(s->group, NULL, NULL), DTR_ERR_ABORTED);
    TABLE_WORDS(s, reason, text);
}

START_TEST(FI17_another_thread_aborts) {
    dtr_world *w = table_world("off");
    table_each(w, BACKWARD, abort_from_a_thread);
    table_end(w);
}
END_TEST

/* ---- FI8: the victim ends the world while the others work in it ---- */

static const char *const transports[] = { "cpu:shm", "cpu:mpi", "cpu:auto" };

START_TEST(FI8_a_rank_ends_the_world) {
    for (int k = dtr_world_node_count(th_world()) > 1; k < 3; k++) {
        setenv("DTR_BACKEND", transports[k], 1);
        dtr_world *w = table_world("off");
        unsetenv("DTR_BACKEND");
        dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
        float x[4] = { 0 };
        o.label = "grad.3";
        dtr_buffer b = dtr_cpu(x, 4, DTR_F32);
        dtr_group *g = dtr_world_group(w);
        th_good_allreduce(g);
        if (is_victim()) {
            TH_IS(dtr_world_destroy(w), DTR_ERR_MISMATCH);
        } else {
            TH_IS(dtr_allreduce(g, b, b, DTR_SUM, &o, NULL), DTR_ERR_MISMATCH);
        }
        TH_MESSAGE("dtr_world_destroy");
        TH_MESSAGE("allreduce #2");
        TH_MESSAGE("agreed.c:");
        if (!is_victim()) {
            TH_IS(dtr_world_destroy(w), DTR_OK);
        }
        TH_AGREE();
    }
}
END_TEST

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
    dtr__verdict_wait_for(th_world(), INT64_MAX / 8); /* however slow the machine is */
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
    dtr__verdict_wait_for(th_world(), DTR__VERDICT_PATIENCE_NS);
    TH_AGREE();
}
END_TEST

/* Takes places of verdicts away as fast as it can. */
typedef struct thief {
    uint64_t uid;
    atomic_bool stop;
} thief;

static void *steal(void *arg) {
    thief *t = arg;
    dtr__verdict v = { .status = DTR_ERR_ABORTED };
    for (uint64_t n = 0; !atomic_load(&t->stop); n++) {
        v.uid = t->uid + n % (64 * DTR__VERDICTS); /* of no group */
        (void)dtr__verdict_put(th_world(), &v);
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
            dtr__group_accuse(g[i], s, &called);
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
        TH_IS(dtr__exchange_get(g, DTR_CPU, "never put", &value, 1, &nbytes, 600), DTR_ERR_REMOTE);
        TH_MESSAGE("has it");
    }
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_AGREE();
}
END_TEST

/* CP5: what a node hears of a group that none of its ranks has yet, being slower out of its
 * creation, counts once one has it. */
START_TEST(CP5_a_verdict_before_its_group) {
    enum { ID = 1000000 }; /* of no group */
    dtr_world *w = th_world();
    dtr_group *g = NULL;
    const uint64_t uid = (uint64_t)(th_size() + 3) << 40;
    const int members[] = { 0, 2 };
    dtr__verdict v = { .status = DTR_ERR_TIMEOUT, .origin = victim(), .far = 1 };
    bool nodes = dtr_world_node_count(w) == 2 && th_size() == 4;
    TH_IS(dtr_group_split(dtr_world_group(w), 0, 0, NULL, &g), DTR_OK);
    for (int i = 0; i < 2 && nodes && is_victim(); i++) { /* the break of g may take one's place */
        v.uid = uid + (uint64_t)i;
        (void)dtr__verdict_put(w, &v);
    }
    if (is_victim()) {
        TH_IS(dtr_group_abort(g, reason), DTR_OK);
    }
    while (dtr_group_status(g) == DTR_OK) { /* what was told before has come then */
        th_sleep(0.01);
    }
    if (nodes && th_rank() == 0) {
        (void)dtr__rec_group_add(w, ID, uid, "early", 0, 2, members);
        (void)dtr__rec_group_add(w, ID + 1, uid + 1, "early", 0, 2, members);
        while (!dtr__verdict_is_put(w, uid) && !dtr__verdict_is_put(w, uid + 1)) {
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
    dtr__verdict v = { .uid = uid, .also = uid + 1, .status = DTR_ERR_MISMATCH }, out;
    dtr_world *w = th_world();
    if (dtr_world_local_rank(w) == 0) {
        dtr__verdict_wait_for(w, INT64_MAX / 8);
        TH_CHECK(dtr__verdict_put(w, &v), "no verdicts");
        TH_CHECK(!dtr__verdict_settled(w, uid, members, 1, &out), "settled by one of two");
        dtr__verdict_wait_for(w, 0); /* who found it has died in between */
        TH_CHECK(dtr__verdict_settled(w, uid, members, 1, &out), "it waits for ever");
        dtr__verdict_wait_for(w, INT64_MAX / 8);
        v.uid = uid + 1;
        v.also = uid;
        TH_CHECK(dtr__verdict_put(w, &v), "no verdicts");
        TH_CHECK(dtr__verdict_settled(w, uid, members, 1, &out), "the first");
        TH_CHECK(dtr__verdict_settled(w, uid + 1, members, 1, &out), "the second");
        dtr__verdict_wait_for(w, DTR__VERDICT_PATIENCE_NS);
    }
    TH_AGREE();
}
END_TEST

/* What two nodes have found, and whose counts. */
static void settle(uint64_t uid, dtr_status here, int here_by, dtr_status there, int there_by,
                   int want) {
    const int members[] = { 0, 1, 2, 3 };
    dtr__verdict mine = { .uid = uid, .status = here, .origin = here_by, .far = 1 }, out;
    dtr__verdict theirs = { .uid = uid, .status = there, .origin = there_by, .far = 1 };
    TH_CHECK(dtr__verdict_put(th_world(), &mine), "no verdicts");
    TH_CHECK(!dtr__verdict_settled(th_world(), uid, members, 4, &out), "settled by one node");
    dtr__verdict_heard(th_world(), 1, &theirs);
    TH_CHECK(dtr__verdict_settled(th_world(), uid, members, 4, &out) && out.origin == want,
             "%s of rank %d and %s of rank %d: %d", dtr_status_name(here), here_by,
             dtr_status_name(there), there_by, out.origin);
}

START_TEST(CP5_which_cause_counts) {
    uint64_t uid = (uint64_t)(th_size() + 1) << 40; /* of no group */
    const int members[] = { 0, 1, 2, 3 };
    dtr__verdict v = { .uid = uid, .status = DTR_ERR_ABORTED, .origin = 1 }, out;
    if (th_rank() == 0) { /* on a node whoever is first */
        TH_CHECK(!dtr__verdict_is_put(th_world(), uid), "there is one");
        TH_CHECK(dtr__verdict_put(th_world(), &v), "no verdicts");
        v = (dtr__verdict){ .uid = uid, .status = DTR_ERR_MISMATCH, .origin = 0 };
        TH_CHECK(dtr__verdict_put(th_world(), &v), "no verdicts");
        TH_CHECK(dtr__verdict_settled(th_world(), uid, members, 2, &out) && out.origin == 1,
                 "the second one counts");
    }
    if (th_rank() == 0 && th_size() == 4 && dtr_world_node_count(th_world()) == 2) {
        while (!dtr__control_serves(th_world())) {
            th_sleep(0.01);
        }
        dtr__verdict_wait_for(th_world(), INT64_MAX / 8);
        settle(++uid, DTR_ERR_ABORTED, 0, DTR_ERR_TIMEOUT, 3, 3);
        settle(++uid, DTR_ERR_TIMEOUT, 1, DTR_ERR_TIMEOUT, 2, 1);
        settle(++uid, DTR_ERR_TIMEOUT, 0, DTR_ERR_REMOTE, 3, 3);
        settle(++uid, DTR_ERR_REMOTE, 1, DTR_ERR_MPI, 2, 1);
        settle(++uid, DTR_ERR_CUDA, 0, DTR_ERR_MISMATCH, 3, 3);
        settle(++uid, DTR_ERR_MISMATCH, 1, DTR_ERR_ABORTED, 2, 1);
        v = (dtr__verdict){ .uid = ++uid, .status = DTR_ERR_TIMEOUT, .origin = 1, .far = 1 };
        TH_CHECK(dtr__verdict_put(th_world(), &v), "no verdicts");
        dtr__verdict_wait_for(th_world(), 0); /* the other node says nothing for too long */
        TH_CHECK(dtr__verdict_settled(th_world(), uid, members, 4, &out) && out.origin == 1,
                 "it waits for ever");
        dtr__verdict_wait_for(th_world(), DTR__VERDICT_PATIENCE_NS);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "agreed", 110);
    th_add(tc, FI1_a_rank_stays_away, 2, 0);
    th_add(tc, FI9_FI10_a_rank_calls_something_else, 2, 0);
    th_add(tc, FI11_a_rank_leaves_one_out, 2, 0);
    th_add(tc, FI13_the_ends_of_a_message_differ, 2, 0);
    th_add(tc, FI15_a_call_is_refused_once, 2, 0);
    th_add(tc, FI8_a_rank_ends_the_world, 2, 0);
    th_add(tc, FI17_another_thread_aborts, 2, 0);
    tc = th_case(s, "causes", 110);
    th_add(tc, CP5_EA6_all_name_the_same_cause, 2, 0);
    th_add(tc, CP5_more_groups_than_places, 2, 0);
    th_add(tc, CP5_a_verdict_before_its_group, 2, 0);
    th_add(tc, CP5_which_cause_counts, 2, 0);
    th_add(tc, NEW36_two_groups_together, 2, 0);
    th_add(tc, CP4_key_of_a_broken_group, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "fault_agreed", make);
}
