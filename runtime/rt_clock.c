/* Time stamps for records, several per microsecond: the processor's own counter, where the kernel
 * keeps its time by it too, tied to CLOCK_MONOTONIC anew every few milliseconds. */
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rt_internal.h"

int64_t dtr__now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double dtr__now(void) {
    return (double)dtr__now_ns() * 1e-9;
}

#if defined(__x86_64__)

enum {
    TIE_NS = 8000000,      /* how long a tie serves */
    LEARN_NS = 1000000,    /* between two ties that tell the rate, at least */
    FORGET_NS = 1000000000 /* and at most: the machine may have slept */
};

/* Each thread has its own tie, so that nothing is shared. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
    uint64_t tsc, span; /* counter at the tie, and how far beyond it serves; 0: not at all */
    uint64_t rate;      /* nanoseconds per count, times 2^32 */
    int64_t ns;
} tie;

/* Whether the kernel trusts the counter: equal on all processors, at one rate. */
static bool counter_is_clock(void) {
    static _Atomic int known; /* 0: not asked, 1: no, 2: yes */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == 0) {
        char source[16] = "";
        int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                      O_RDONLY | O_CLOEXEC);
        ssize_t n = fd >= 0 ? read(fd, source, sizeof source - 1) : 0;
        if (fd >= 0) {
            close(fd);
        }
        answer = n >= 4 && strncmp(source, "tsc\n", 4) == 0 ? 2 : 1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}

/* Look at both clocks. The rate is that of the time since the last tie, once that was long enough
 * for the error of looking at one after the other not to matter. Never goes back. */
static __attribute__((noinline)) int64_t tie_anew(uint64_t now) {
    int64_t ns = dtr__now_ns();
    if (!counter_is_clock()) {
        return ns;
    }
    uint64_t counts = now - tie.tsc, before = tie.span;
    if (now < tie.tsc || ns - tie.ns > FORGET_NS) {
        tie.span = 0;
    } else if (ns - tie.ns < LEARN_NS) {
        return ns;
    } else {
        int64_t told =
            before > 0 && counts < 2 * before ? tie.ns + (int64_t)((counts * tie.rate) >> 32) : 0;
        double rate = (double)(ns - tie.ns) / (double)counts;
        tie.rate = (uint64_t)(rate * 4294967296.0);
        tie.span = (uint64_t)((double)TIE_NS / rate);
        ns = told > ns ? told : ns;
    }
    tie.tsc = now;
    tie.ns = ns;
    return ns;
}

int64_t dtr__stamp_ns(void) {
    uint64_t now = __builtin_ia32_rdtsc(), counts = now - tie.tsc;
    return counts < tie.span ? tie.ns + (int64_t)((counts * tie.rate) >> 32) : tie_anew(now);
}

#else

int64_t dtr__stamp_ns(void) {
    return dtr__now_ns();
}

#endif
