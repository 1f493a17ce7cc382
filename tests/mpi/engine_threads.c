/* Several threads of a rank issue works at a time, each on a group of its own or all on one. */
#include <pthread.h>

#include "data.h"
#include "harness.h"

static dtr_buffer i32s(int32_t *x, size_t n) {
    return dtr_cpu(x, n, DTR_I32);
}

static int32_t triangle(int n) {
    return n * (n + 1) / 2;
}

enum { THREADS = 4, ROUNDS = 200 };

typedef struct issuer {
    dtr_group *group;
    pthread_mutex_t *turn; /* NULL: a group of its own */
    int bad;
} issuer;

static void *issue_many(void *arg) {
    issuer *me = arg;
    for (int i = 0; i < ROUNDS; i++) {
        int32_t x = i, y = -1, z = 1;
        dtr_work *w = NULL;
        if (me->turn != NULL) {
            pthread_mutex_lock(me->turn);
        }
        /* the two threads of one group do the same, so that any order of them matches */
        me->bad += dtr_allreduce(me->group, i32s(&z, 1), i32s(&z, 1), DTR_SUM, NULL, &w) != DTR_OK;
        if (me->turn == NULL) {
            me->bad +=
                dtr_allreduce(me->group, i32s(&x, 1), i32s(&y, 1), DTR_SUM, NULL, NULL) != DTR_OK;
            me->bad += y != i * th_size();
        }
        if (me->turn != NULL) {
            pthread_mutex_unlock(me->turn);
        }
        me->bad += dtr_work_wait(w, -1) != DTR_OK || z != th_size();
        (void)dtr_work_release(w);
    }
    return NULL;
}

/* T127: a group per thread; one group from two threads that take turns. */
START_TEST(several_threads) {
    dtr_group *groups[THREADS];
    issuer me[THREADS + 2];
    pthread_t threads[THREADS + 2];
    pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    if (strcmp(th_thread_level(), "multiple") != 0) {
        return;
    }
    for (int i = 0; i < THREADS; i++) {
        TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &groups[i]));
    }
    for (int i = 0; i < THREADS + 2; i++) {
        me[i] = (issuer){ i < THREADS ? groups[i] : th_group(), i < THREADS ? NULL : &turn, 0 };
        pthread_create(&threads[i], NULL, issue_many, &me[i]);
    }
    for (int i = 0; i < THREADS + 2; i++) {
        pthread_join(threads[i], NULL);
        TH_CHECK(me[i].bad == 0, "thread %d: %d failures", i, me[i].bad);
    }
    TH_AGREE();
    for (int i = 0; i < THREADS; i++) {
        TH_OK(dtr_group_destroy(groups[i]));
    }
}
END_TEST

/* A thousand works at once from several threads, each on a group of its own: every third handle is
 * given back before completion, the others are waited for in an order of each rank's own. */
enum { PILE = 1000 / THREADS };

typedef struct pile {
    dtr_group *group;
    int number, bad;
    int32_t x[PILE], y[PILE];
    dtr_work *works[PILE];
} pile;

static void *heap_up(void *arg) {
    pile *me = arg;
    th_rng g = { (uint64_t)(10 * me->number + th_rank()) };
    int order[PILE];
    for (int i = 0; i < PILE; i++) {
        me->x[i] = i + th_rank();
        me->bad += dtr_allreduce(me->group, i32s(&me->x[i], 1), i32s(&me->y[i], 1), DTR_SUM, NULL,
                                 &me->works[i]) != DTR_OK;
        if (i % 3 == 0) {
            me->bad += dtr_work_release(me->works[i]) != DTR_OK;
        }
        const int at = (int)(th_next(&g) % (uint64_t)(i + 1));
        order[i] = i;
        order[i] = order[at];
        order[at] = i;
    }
    for (int i = 0; i < PILE; i++) {
        dtr_work *w = me->works[order[i]];
        if (order[i] % 3 != 0) {
            me->bad += dtr_work_wait(w, -1) != DTR_OK || dtr_work_release(w) != DTR_OK;
        }
    }
    me->bad += dtr_barrier(me->group, NULL, NULL) != DTR_OK; /* waits for the others too */
    for (int i = 0; i < PILE; i++) {
        me->bad += me->y[i] != i * th_size() + triangle(th_size() - 1);
    }
    return NULL;
}

START_TEST(a_thousand_from_several_threads) {
    static pile me[THREADS];
    pthread_t threads[THREADS];
    if (strcmp(th_thread_level(), "multiple") != 0) {
        return;
    }
    for (int i = 0; i < THREADS; i++) {
        me[i].number = i;
        me[i].bad = 0;
        TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &me[i].group));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, heap_up, &me[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        TH_CHECK(me[i].bad == 0, "thread %d: %d failures", i, me[i].bad);
    }
    TH_AGREE();
    for (int i = 0; i < THREADS; i++) {
        TH_OK(dtr_group_destroy(me[i].group));
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "threads", 60);
    th_add(tc, several_threads, 0, 0);
    th_add(tc, a_thousand_from_several_threads, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "engine_threads", make);
}
