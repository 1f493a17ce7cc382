/* Operations that were begun and left alone end while the program calls nothing, at every thread
 * level of MPI, where they need no MPI (INI25, WRK1); MPI and the program's own functions are
 * called by its own threads below MPI_THREAD_MULTIPLE all the same: a call of MPI by another one
 * ends the process (mpi_threads.sh). */
#include <pthread.h>
#include <string.h>

#include "harness.h"
#include "left_alone.h"

enum { N = 1 << 20 };

static float in[N], out[N];

static void fill(void) {
    for (int i = 0; i < N; i++) {
        in[i] = (float)(th_rank() + i % 7);
    }
    memset(out, 0, sizeof out);
}

static float sum_at(int i) {
    const int p = th_size();
    return (float)(p * (p - 1) / 2 + p * (i % 7));
}

static void check_sums(void) {
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        wrong += out[i] != sum_at(i);
    }
    TH_CHECK(wrong == 0, "%d sums are wrong", wrong);
}

START_TEST(collective) {
    dtr_work *w = NULL;
    fill();
    TH_IS(dtr_allreduce(th_group(), dtr_cpu_in(in, N, DTR_F32), dtr_cpu(out, N, DTR_F32), DTR_SUM,
                        NULL, &w),
          DTR_OK);
    TH_CHECK(end_by_themselves(1), "not over %d s after it was left alone", LIMIT_S);
    TH_IS(dtr_work_wait(w, 0), DTR_OK);
    check_sums();
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* Several at once, of two groups, with messages among them. */
START_TEST(mixed) {
    enum { WORKS = 4 };
    const int p = th_size(), next = (th_rank() + 1) % p, last = (th_rank() + p - 1) % p;
    dtr_group *twin = NULL;
    dtr_work *w[WORKS] = { NULL };
    int32_t sent = 100 + th_rank(), got = 0, most = th_rank();
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &twin));
    fill();
    TH_IS(dtr_recv(twin, dtr_cpu(&got, 1, DTR_I32), last, 3, NULL, &w[0]), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), dtr_cpu_in(in, N, DTR_F32), dtr_cpu(out, N, DTR_F32), DTR_SUM,
                        NULL, &w[1]),
          DTR_OK);
    TH_IS(dtr_send(twin, dtr_cpu(&sent, 1, DTR_I32), next, 3, NULL, &w[2]), DTR_OK);
    TH_IS(dtr_allreduce(twin, dtr_cpu(&most, 1, DTR_I32), dtr_cpu(&most, 1, DTR_I32), DTR_MAX, NULL,
                        &w[3]),
          DTR_OK);
    TH_CHECK(end_by_themselves(WORKS), "not over %d s after they were left alone", LIMIT_S);
    TH_IS(dtr_work_wait_all(w, WORKS, 0), DTR_OK);
    check_sums();
    TH_CHECK(got == 100 + last && most == p - 1, "%d from %d, largest %d", got, last, most);
    for (int i = 0; i < WORKS; i++) {
        TH_IS(dtr_work_release(w[i]), DTR_OK);
    }
    TH_AGREE();
    TH_IS(dtr_group_destroy(twin), DTR_OK);
}
END_TEST

typedef struct told {
    pthread_t by;
    int times;
} told;

static void tell(dtr_work *w, dtr_status s, void *arg) {
    told *t = arg;
    (void)w;
    t->by = pthread_self();
    t->times += s == DTR_OK;
}

/* It is told of by the next call of the program, not by the thread that may not call MPI. That call
 * is the registration itself where the operation is over by then. */
START_TEST(callback) {
    dtr_work *w = NULL;
    told t = { .times = 0 };
    bool done = false;
    fill();
    TH_IS(dtr_allreduce(th_group(), dtr_cpu_in(in, N, DTR_F32), dtr_cpu(out, N, DTR_F32), DTR_SUM,
                        NULL, &w),
          DTR_OK);
    TH_IS(dtr_work_on_complete(w, tell, &t), DTR_OK);
    if (helps_only()) {
        TH_CHECK(end_by_themselves(1), "not over %d s after it was left alone", LIMIT_S);
        TH_CHECK(t.times == 0 || pthread_equal(t.by, pthread_self()),
                 "the program was called by another thread");
        TH_IS(dtr_work_test(w, &done), DTR_OK);
        TH_CHECK(done && t.times == 1 && pthread_equal(t.by, pthread_self()), "done %d, told %d",
                 done, t.times);
    }
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(t.times == 1, "told %d times", t.times);
    check_sums();
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
}
END_TEST

/* A group that ends while something is left to be told. */
START_TEST(callback_at_the_end) {
    dtr_group *g = NULL;
    dtr_work *w = NULL;
    told t = { .times = 0 };
    TH_OK(dtr_group_split(th_group(), 0, th_rank(), NULL, &g));
    fill();
    TH_IS(dtr_allreduce(g, dtr_cpu_in(in, N, DTR_F32), dtr_cpu(out, N, DTR_F32), DTR_SUM, NULL, &w),
          DTR_OK);
    TH_IS(dtr_work_on_complete(w, tell, &t), DTR_OK);
    TH_CHECK(end_by_themselves(1), "not over %d s after it was left alone", LIMIT_S);
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_IS(dtr_group_destroy(g), DTR_OK);
    TH_CHECK(t.times == 1, "told %d times", t.times);
    TH_AGREE();
}
END_TEST

static pthread_t operator_by;

static void larger(void *inout, const void *source, size_t n, dtr_dtype type, void *arg) {
    const int32_t *a = source;
    int32_t *b = inout;
    (void)type, (void)arg;
    operator_by = pthread_self();
    for (size_t i = 0; i < n; i++) {
        b[i] = a[i] > b[i] ? a[i] : b[i];
    }
}

START_TEST(operator_of_the_program) {
    dtr_op op;
    dtr_work *w = NULL;
    int32_t x = th_rank();
    operator_by = pthread_self();
    TH_IS(dtr_op_create(th_world(), larger, NULL, true, &op), DTR_OK);
    TH_IS(dtr_allreduce(th_group(), dtr_cpu(&x, 1, DTR_I32), dtr_cpu(&x, 1, DTR_I32), op, NULL, &w),
          DTR_OK);
    th_sleep(0.05);
    TH_IS(dtr_work_wait(w, -1), DTR_OK);
    TH_CHECK(x == th_size() - 1, "%d", x);
    TH_CHECK(!helps_only() || pthread_equal(operator_by, pthread_self()),
             "another thread has called the operator");
    TH_IS(dtr_work_release(w), DTR_OK);
    TH_AGREE();
    TH_IS(dtr_op_free(th_world(), op), DTR_OK);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "left alone", 300);
    th_add(tc, collective, 0, 0);
    th_add(tc, mixed, 0, 0);
    th_add(tc, callback, 0, 0);
    th_add(tc, callback_at_the_end, 0, 0);
    th_add(tc, operator_of_the_program, 0, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "left alone", make);
}
