#include "base/thread.h"

#include <signal.h>

#include "base/error.h"

_Thread_local _Atomic(const char *) *dtr__inside_at;

static void block_foreign(sigset_t *before) {
    static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        sigdelset(&all, own[i]);
    }
    pthread_sigmask(SIG_SETMASK, &all, before);
}

int dtr__thread_start(pthread_t *thread, const char *name, bool detached, void *(*run)(void *),
                      void *arg) {
    sigset_t before;
    pthread_attr_t how;
    pthread_t started;
    int code = pthread_attr_init(&how);
    if (code != 0) {
        return code;
    }
    pthread_attr_setdetachstate(&how, detached ? PTHREAD_CREATE_DETACHED : PTHREAD_CREATE_JOINABLE);
    block_foreign(&before);
    code = pthread_create(&started, &how, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&how);
    if (code == 0 && !detached) {
        *thread = started;
        pthread_setname_np(started, name); /* a detached one may be gone */
    }
    return code;
}
