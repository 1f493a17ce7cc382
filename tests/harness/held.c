/* How much the machine holds this process up (th_begin, th_in_time). */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "harness.h"

#define NAP_S 0.02
#define WORK_S 0.0002 /* of processor time: whoever only sleeps is let in first */
#define GRACE_S (TH_SANITIZED ? 50.0 : 10.0)

static _Atomic int64_t late_ns;   /* that turns took too long, so far */
static _Atomic int64_t turned_ns; /* when the last turn ended */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t late_by(int64_t now_ns) {
    const int64_t late =
        now_ns - atomic_load(&turned_ns) - (int64_t)(1e9 * NAP_S) - (int64_t)(1e9 * WORK_S);
    return late > 0 ? late : 0;
}

static void *beat(void *arg) {
    (void)arg;
    for (;;) {
        th_sleep(NAP_S);
        const int64_t worked = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < worked + (int64_t)(1e9 * WORK_S)) {
        }
        const int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
        atomic_fetch_add(&late_ns, late_by(now_ns));
        atomic_store(&turned_ns, now_ns);
    }
    return NULL;
}

static void start(void) {
    pthread_t thread;
    atomic_store(&turned_ns, clock_ns(CLOCK_MONOTONIC));
    if (pthread_create(&thread, NULL, beat, NULL) == 0) {
        pthread_detach(thread);
    }
}

th_start th_begin(void) {
    pthread_once(&once, start);
    return (th_start){ th_now(), 1e-9 * (double)atomic_load(&late_ns) };
}

bool th_in_time(th_start since, double limit_s) {
    const int64_t late = atomic_load(&late_ns) + late_by(clock_ns(CLOCK_MONOTONIC));
    return th_now() - since.at <= limit_s + GRACE_S + 1e-9 * (double)late - since.held;
}
