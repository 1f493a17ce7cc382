/* Time stamps for records, several per microsecond: the processor's own counter, where the kernel
 * keeps its time by it too, tied to CLOCK_MONOTONIC anew every few milliseconds. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* What this file asks: a test that puts its own function in the place of dtr__now_ns, which not all
 * linkers do inside this file, changes neither. */
static int64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t dtr__now_ns(void) {
    return monotonic_ns();
}

/* ---- the clock of limits ----
 *
 * A job that its batch system stops, or whose virtual machine does not run, must not find all of
 * its limits passed afterwards. So limits are kept by a clock that leaves out the time in which no
 * thread of the library has looked at it, though the watchdog does so many times a second. Each
 * process does this by itself: where all are stopped all leave out the same, and who waits for one
 * that is stopped alone leaves out nothing. */

enum { GAPS = 16 };
static _Atomic int64_t seen_ns;            /* somebody has looked at the clock */
static _Atomic int64_t hidden_ns;          /* left out so far */
static _Atomic int64_t last_end_ns;        /* of the newest gap */
static _Atomic int64_t gap_ns = 500000000; /* what is longer is one */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { int64_t end, ns; } gaps[GAPS]; /* lock; the newest ones, in a ring */
static unsigned n_gaps;

void dtr__clock_watched(int64_t every_ns) {
    int64_t gap = atomic_load(&gap_ns);
    while (gap < 2 * every_ns && !atomic_compare_exchange_weak(&gap_ns, &gap, 2 * every_ns)) {
    }
}

static __attribute__((noinline)) int64_t look_for_gap(void) {
    pthread_mutex_lock(&lock);
    const int64_t now = monotonic_ns(), passed = now - atomic_load(&seen_ns);
    int64_t hidden = atomic_load(&hidden_ns);
    if (passed > atomic_load(&gap_ns) && atomic_load(&seen_ns) != 0) {
        hidden += passed;
        gaps[n_gaps % GAPS].end = now;
        gaps[n_gaps++ % GAPS].ns = passed;
        atomic_store(&hidden_ns, hidden);
        atomic_store(&last_end_ns, now);
    }
    if (passed > 0) {
        atomic_store(&seen_ns, now); /* last: who sees it sees the rest */
    }
    pthread_mutex_unlock(&lock);
    return now - hidden;
}

/* Reads what belongs to the time before the time: a stop in between is seen as a gap then. */
static int64_t awake_ns(void) {
    const int64_t often = 10000000;
    int64_t seen = atomic_load_explicit(&seen_ns, memory_order_acquire);
    const int64_t hidden = atomic_load_explicit(&hidden_ns, memory_order_acquire);
    const int64_t now = monotonic_ns(), passed = now - seen;
    if (passed > often) {
        if (passed > atomic_load_explicit(&gap_ns, memory_order_relaxed)) {
            return look_for_gap();
        }
        (void)atomic_compare_exchange_strong(&seen_ns, &seen, now);
    }
    return now - hidden;
}

double dtr__now(void) {
    return (double)awake_ns() * 1e-9;
}

int64_t dtr__hidden_since(int64_t monotonic_ns) {
    int64_t ns = 0;
    if (monotonic_ns >= atomic_load_explicit(&last_end_ns, memory_order_acquire)) {
        return 0;
    }
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n_gaps && i < GAPS; i++) {
        ns += gaps[i].end > monotonic_ns ? gaps[i].ns : 0;
    }
    pthread_mutex_unlock(&lock);
    return ns;
}

double dtr__now_at(int64_t monotonic_ns) {
    const int64_t hidden = atomic_load_explicit(&hidden_ns, memory_order_acquire);
    return (double)(monotonic_ns - hidden + dtr__hidden_since(monotonic_ns)) * 1e-9;
}

int64_t dtr__monotonic_at(double now_s) {
    return (int64_t)(now_s * 1e9) + atomic_load_explicit(&hidden_ns, memory_order_relaxed);
}

/* ---- stamps ---- */

#if defined(__x86_64__)

enum {
    TIE_NS = 8000000,       /* how long a tie serves */
    LEARN_NS = 1000000,     /* between two ties that tell the rate, at least */
    FORGET_NS = 1000000000, /* and at most: the machine may have slept */
    LOOK_COUNTS = 10000 /* between the two clocks, some microseconds: else this thread has waited */
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
    int64_t ns = monotonic_ns();
    const bool waited = __builtin_ia32_rdtsc() - now > LOOK_COUNTS;
    if (!counter_is_clock()) {
        return ns;
    }
    const uint64_t counts = now - tie.tsc, before = tie.span;
    const int64_t shown =
        before > 0 && counts < 2 * before ? tie.ns + (int64_t)((counts * tie.rate) >> 32) : 0;
    if (waited) {
        return shown > ns ? shown : ns;
    }
    if (now < tie.tsc || ns - tie.ns > FORGET_NS) {
        tie.span = 0;
    } else if (ns - tie.ns < LEARN_NS) {
        return ns;
    } else {
        double rate = (double)(ns - tie.ns) / (double)counts;
        tie.rate = (uint64_t)(rate * 4294967296.0);
        tie.span = (uint64_t)((double)TIE_NS / rate);
        ns = shown > ns ? shown : ns;
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
    return monotonic_ns();
}

#endif
