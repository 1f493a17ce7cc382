/* Watchdog thread of the test harness (HR3). */
#include "watchdog.h"

#include <check.h>
#include <errno.h>
#include <execinfo.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "world/world.h"

static struct {
    pthread_mutex_t lock; /* guards running and the condition */
    pthread_cond_t wake;
    bool running;
    pthread_t thread;
    pthread_t tested; /* the thread that runs the test */
    int rank, limit_s;
} dog = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };

static void show_stack(int signal) {
    void *at[48];
    (void)signal;
    backtrace_symbols_fd(at, backtrace(at, 48), STDERR_FILENO);
}

static void report(void) {
    dtr__record last[8];
    size_t n = dtr__rec_read(th_world(), last, 8);
    fprintf(stderr, "[rank%d] test '%s' is stuck after %d s; last operations:\n", dog.rank,
            tcase_name(), dog.limit_s);
    for (size_t i = 0; i < n; i++) {
        fprintf(stderr, "[rank%d]   #%llu kind %d group %u seq %llu state %d status %d at %s\n",
                dog.rank, (unsigned long long)last[i].number, last[i].kind, last[i].group,
                (unsigned long long)last[i].seq, last[i].state, last[i].status, last[i].site);
    }
    fprintf(stderr, "[rank%d] its stack, for addr2line -f -e:\n", dog.rank);
    fflush(NULL);
    if (signal(SIGRTMAX - 1, show_stack) != SIG_ERR &&
        pthread_kill(dog.tested, SIGRTMAX - 1) == 0) {
        th_sleep(2); /* until this rank and the others have shown theirs */
    }
}

static void *watch(void *arg) {
    (void)arg;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += dog.limit_s;
    pthread_mutex_lock(&dog.lock);
    int rc = 0;
    while (dog.running && rc != ETIMEDOUT) {
        rc = pthread_cond_timedwait(&dog.wake, &dog.lock, &end);
    }
    bool stuck = dog.running;
    pthread_mutex_unlock(&dog.lock);
    if (stuck) {
        report();
        MPI_Abort(MPI_COMM_WORLD, 86);
    }
    return NULL;
}

void th_watchdog_limit(int seconds) {
    if (seconds > dog.limit_s) {
        dog.limit_s = seconds;
    }
}

void th_watchdog_start(int rank) {
    th_watchdog_stop(); /* of a test that ended by a failed assertion in its set-up */
    dog.rank = rank;
    dog.running = true;
    dog.tested = pthread_self();
    pthread_create(&dog.thread, NULL, watch, NULL);
}

void th_watchdog_stop(void) {
    pthread_mutex_lock(&dog.lock);
    bool was = dog.running;
    dog.running = false;
    pthread_cond_signal(&dog.wake);
    pthread_mutex_unlock(&dog.lock);
    if (was) {
        pthread_join(dog.thread, NULL);
    }
}
