/* Below MPI_THREAD_MULTIPLE a second thread that calls while another is inside is told so, with
 * both calls (INI25, NAT3); after it, and one after the other, calls go on as ever. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "engine/turn.h"
#include "harness.h"

typedef struct second {
    dtr_group *group;
    dtr_status sum, bytes;
    char text[1024];
} second;

static void await_main(void) {
    while (!dtr__turn_taken(th_world())) {
        th_sleep(0.001);
    }
}

/* Main is in dtr_work_wait, or in a blocking call, until the group is aborted. */
static void *meanwhile(void *arg) {
    second *me = arg;
    int32_t x = 1;
    dtr_bytes in = { "abc", 3 }, out[64];
    await_main();
    me->sum = dtr_allreduce(th_group(), dtr_cpu(&x, 1, DTR_I32), dtr_cpu(&x, 1, DTR_I32), DTR_SUM,
                            NULL, NULL);
    snprintf(me->text, sizeof me->text, "%s", dtr_last_error_message());
    me->bytes = dtr_allgather_bytes(th_group(), in, NULL, out);
    dtr_group_abort(me->group, "the test has seen enough");
    return NULL;
}

static void calls_meanwhile(bool waits) {
    second me = { 0 };
    pthread_t thread;
    int32_t x = 0;
    dtr_work *w = NULL;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_I32);
    uint64_t seq = dtr_group_seq(th_group());
    TH_OK(dtr_group_split(th_group(), th_rank(), 0, NULL, &me.group)); /* of this rank alone */
    TH_IS(waits ? dtr_recv(me.group, b, DTR_ANY_SOURCE, 1, NULL, &w) : DTR_OK, DTR_OK);
    pthread_create(&thread, NULL, meanwhile, &me);
    TH_IS(waits ? dtr_work_wait(w, -1) : dtr_recv(me.group, b, DTR_ANY_SOURCE, 1, NULL, NULL),
          DTR_ERR_ABORTED);
    pthread_join(thread, NULL);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(me.sum == DTR_ERR_STATE && me.bytes == DTR_ERR_STATE, "status %d and %d", me.sum,
             me.bytes);
    const char *words[] = { "dtr_allreduce, called at one_thread.c:",
                            waits ? "inside dtr_work_wait of the recv, called at one_thread.c:"
                                  : "inside dtr_recv, called at one_thread.c:",
                            strcmp(th_thread_level(), "serialized") == 0
                                ? "MPI_THREAD_SERIALIZED one thread at a time"
                                : "MPI_THREAD_FUNNELED only the thread" };
    for (int i = 0; i < 3; i++) {
        TH_CHECK(strstr(me.text, words[i]) != NULL, "no \"%s\" in: %s", words[i], me.text);
    }
    TH_CHECK(dtr_group_seq(th_group()) == seq, "a refused call moved the sequence");
    TH_AGREE();
    TH_IS(dtr_group_destroy(me.group), DTR_OK);
    th_good_allreduce(th_group());
}

START_TEST(while_main_waits) {
    calls_meanwhile(true);
}
END_TEST

START_TEST(while_main_blocks) {
    calls_meanwhile(false);
}
END_TEST

static void *alone(void *arg) {
    int32_t x = 1;
    dtr_work *w = NULL;
    dtr_status s = dtr_allreduce(th_group(), dtr_cpu(&x, 1, DTR_I32), dtr_cpu(&x, 1, DTR_I32),
                                 DTR_SUM, NULL, &w);
    s = s == DTR_OK ? dtr_work_wait(w, -1) : s;
    (void)dtr_work_release(w);
    *(dtr_status *)arg = x == th_size() ? s : DTR_ERR_MISMATCH;
    return NULL;
}

/* At SERIALIZED it is any thread's turn once nobody is inside. */
START_TEST(one_after_the_other) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        dtr_status s = DTR_ERR_STATE;
        th_good_allreduce(th_group());
        pthread_create(&thread, NULL, alone, &s);
        pthread_join(thread, NULL);
        TH_IS(s, DTR_OK);
        TH_AGREE();
    }
}
END_TEST

static void call_again(dtr_work *w, dtr_status s, void *arg) {
    static int32_t x;
    (void)w, (void)s;
    *(dtr_status *)arg = dtr_allreduce(th_group(), dtr_cpu(&x, 1, DTR_I32), dtr_cpu(&x, 1, DTR_I32),
                                       DTR_SUM, NULL, NULL); /* it would block */
}

/* A callback runs inside of the call that moved the work, on the same thread. */
START_TEST(in_a_callback) {
    int32_t x = 1;
    dtr_status inner = DTR_OK;
    dtr_work *w = NULL;
    dtr_buffer b = dtr_cpu(&x, 1, DTR_I32);
    TH_IS(dtr_allreduce(th_group(), b, b, DTR_SUM, NULL, &w), DTR_OK);
    TH_IS(dtr_work_on_complete(w, call_again, &inner), DTR_OK);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_CHECK(inner == DTR_ERR_STATE && !dtr__turn_taken(th_world()), "status %d", inner);
    TH_AGREE();
    th_good_allreduce(th_group());
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "one thread", 60);
    th_add(tc, while_main_waits, 0, 0);
    th_add(tc, while_main_blocks, 0, 0);
    th_add(tc, in_a_callback, 0, 0);
    if (strcmp(th_thread_level(), "serialized") == 0) {
        th_add(tc, one_after_the_other, 0, 0);
    }
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "one_thread", make);
}
