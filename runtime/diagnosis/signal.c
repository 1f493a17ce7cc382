/* The only signal handler that the library ever installs, and only where DTR_DUMP_SIGNAL asks for
 * it. It counts; the watchdogs look at the count in their next round, so the handler needs no
 * descriptor that could be closed under it. */
#include <signal.h>

#include "diagnosis/dump.h"

enum { SIGNALS = 65 };
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "a signal handler may use lock-free atomics only");
static _Atomic uint32_t arrived[SIGNALS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users[SIGNALS];               /* lock */
static struct sigaction before[SIGNALS]; /* lock; while there are users */

static void count(int number) {
    atomic_fetch_add_explicit(&arrived[number], 1, memory_order_relaxed);
}

static bool is_ours(const struct sigaction *a) {
    return (a->sa_flags & SA_SIGINFO) == 0 && a->sa_handler == count;
}

static bool is_free(const struct sigaction *a) {
    return (a->sa_flags & SA_SIGINFO) == 0 &&
           (a->sa_handler == SIG_DFL || a->sa_handler == SIG_IGN);
}

/* After these the program cannot go on where it was. */
static bool is_fatal(int number) {
    return number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL ||
           number == SIGABRT || number == SIGTRAP || number == SIGSYS;
}

static bool install(int number, bool *theirs) {
    struct sigaction ours = { .sa_handler = count, .sa_flags = SA_RESTART };
    sigemptyset(&ours.sa_mask);
    if (sigaction(number, NULL, &before[number]) != 0) {
        return false;
    }
    *theirs = !is_free(&before[number]);
    return *theirs || sigaction(number, &ours, NULL) == 0;
}

bool dtr__signal_take(int number, bool *theirs) {
    *theirs = false;
    if (number <= 0 || number >= SIGNALS || is_fatal(number)) {
        errno = EINVAL;
        return false;
    }
    pthread_mutex_lock(&lock);
    bool fine = users[number] > 0 || install(number, theirs);
    users[number] += fine && !*theirs;
    pthread_mutex_unlock(&lock);
    return fine;
}

void dtr__signal_drop(int number) {
    struct sigaction now;
    pthread_mutex_lock(&lock);
    if (--users[number] == 0 && sigaction(number, NULL, &now) == 0 && is_ours(&now)) {
        sigaction(number, &before[number], NULL);
    }
    pthread_mutex_unlock(&lock);
}

uint32_t dtr__signal_count(int number) {
    return atomic_load_explicit(&arrived[number], memory_order_relaxed);
}
