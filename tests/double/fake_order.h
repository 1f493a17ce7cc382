/* What ThreadSanitizer learns from the stand-ins (DB8): only the order that CUDA promises. Their
 * own locks are hidden from it, or a lock that two streams happen to take would hide that a program
 * forgot to order them. Such a build compiles the files that hold locks and atomics without the
 * sanitizer, and the bodies of kernels and sums with it; copies are seen through memmove. */
#ifndef DTR_FAKE_ORDER_H
#define DTR_FAKE_ORDER_H

#include <pthread.h>

#ifdef DTR_FAKE_TSAN
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
void AnnotateHappensBefore(const char *file, int line, const volatile void *what);
void AnnotateHappensAfter(const char *file, int line, const volatile void *what);
#define FAKE_TELL(what) Annotate##what(__FILE__, __LINE__)
#else
#define FAKE_TELL(what) ((void)0)
#endif

/* All that this thread did before happens before what follows fake_after of the same address. */
static inline void fake_before(const volatile void *what) {
#ifdef DTR_FAKE_TSAN
    AnnotateHappensBefore(__FILE__, __LINE__, what);
#else
    (void)what;
#endif
}

static inline void fake_after(const volatile void *what) {
#ifdef DTR_FAKE_TSAN
    AnnotateHappensAfter(__FILE__, __LINE__, what);
#else
    (void)what;
#endif
}

/* What a hidden lock guards is hidden as well: the sanitizer sees the C library's copies and
 * allocations even in files that it does not look into. */
static inline void fake_lock(pthread_mutex_t *lock) {
    FAKE_TELL(IgnoreSyncBegin);
    pthread_mutex_lock(lock);
    FAKE_TELL(IgnoreSyncEnd);
    FAKE_TELL(IgnoreReadsBegin);
    FAKE_TELL(IgnoreWritesBegin);
}

static inline void fake_unlock(pthread_mutex_t *lock) {
    FAKE_TELL(IgnoreWritesEnd);
    FAKE_TELL(IgnoreReadsEnd);
    FAKE_TELL(IgnoreSyncBegin);
    pthread_mutex_unlock(lock);
    FAKE_TELL(IgnoreSyncEnd);
}

static inline void fake_wait(pthread_cond_t *moved, pthread_mutex_t *lock) {
    FAKE_TELL(IgnoreSyncBegin);
    pthread_cond_wait(moved, lock);
    FAKE_TELL(IgnoreSyncEnd);
}

static inline void fake_wake(pthread_cond_t *moved) {
    FAKE_TELL(IgnoreSyncBegin);
    pthread_cond_broadcast(moved);
    FAKE_TELL(IgnoreSyncEnd);
}

#endif /* DTR_FAKE_ORDER_H */
