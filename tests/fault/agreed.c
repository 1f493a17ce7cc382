/* Faults in which nobody dies: ranks that stay away, disagree, refuse or give up (reliability: FI1,
 * FI8 to FI11, FI13, FI15, FI17), and what every rank is told. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/team.h"
#include "engine/engine.h"
#include "table.h"

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
    const th_start since = th_begin();
    dtr_work *work = NULL;
    dtr_status e = scope ? dtr_coalesce_begin(s->group) : DTR_OK;
    e = e == DTR_OK ? differing_ends(s, s->group, s->way == ASYNC ? &work : NULL) : e;
    e = e == DTR_OK && scope ? dtr_coalesce_end(s->group, &work) : e;
    e = e == DTR_OK && work != NULL ? dtr_work_wait(work, -1) : e;
    dtr_work_release(work);
    table_in_time(s, since, 0);
    return e;
}

static void differ_in_message(spot *s) {
    const call good = table_call(s);
    const bool step = s->way == BACKWARD;
    s->inside = message_inside;
    dtr_status e = step ? table_do(s, &good) : message_alone(s);
    if (is_victim() || step || (th_rank() == 0 && s->count > 100)) {
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
    const th_start since = th_begin();
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
    table_in_time(s, since, 0);
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
        const th_start since = th_begin();
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
        TH_CHECK(th_in_time(since, 3), "the end took %.1f s", th_now() - since.at);
        TH_AGREE();
    }
}
END_TEST

/* ---- FI1: a rank comes to the end of the world when the others have given it up ---- */

static void come_late(int late) {
    enum { LIMIT_S = 1, OWN_LIMIT_S = 60, SOON_S = 10 };
    dtr_world *w = table_world("off");
    const bool is_late = th_rank() == late;
    TH_OK(dtr_group_set_timeout(dtr_world_group(w), is_late ? OWN_LIMIT_S : LIMIT_S));
    th_good_allreduce(dtr_world_group(w));
    if (is_late) {
        th_barrier(); /* over MPI: until the others have failed */
    }
    const th_start since = th_begin();
    TH_IS(dtr_world_destroy(w), DTR_ERR_TIMEOUT);
    TH_CHECK(th_in_time(since, SOON_S), "the end took %.1f s", th_now() - since.at);
    TH_MESSAGE("dtr_world_destroy");
    if (!is_late) {
        char text[32];
        snprintf(text, sizeof text, "rank %d", late);
        TH_MESSAGE(text);
        th_barrier();
    }
    TH_AGREE();
}

START_TEST(FI1_a_rank_is_late_for_the_end) {
    for (int late = 0; late < th_size(); late++) {
        come_late(late);
    }
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
    th_add(tc, FI1_a_rank_is_late_for_the_end, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "fault_agreed", make);
}
