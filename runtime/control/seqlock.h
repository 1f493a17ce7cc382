/* A value that one writer replaces while others, in other processes too, copy it: word by word
 * between two counts, so that nobody takes a lock or waits. */
#ifndef DTR_RT_SEQLOCK_H
#define DTR_RT_SEQLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* `version` is odd while the words change, 0 before the first value. */
static inline void dtr__seqlock_write(_Atomic uint64_t *version, _Atomic uint64_t *word,
                                      const void *from, size_t n_words) {
    uint64_t v = atomic_load_explicit(version, memory_order_relaxed);
    atomic_store(version, v + 1 + v % 2);
    for (size_t i = 0; i < n_words; i++) {
        uint64_t one;
        memcpy(&one, (const char *)from + i * sizeof one, sizeof one);
        atomic_store_explicit(&word[i], one, memory_order_release);
    }
    atomic_store(version, v + 2 + v % 2);
}

/* False: nothing yet, or a writer that was stopped in the middle. */
static inline bool dtr__seqlock_read(const _Atomic uint64_t *version, const _Atomic uint64_t *word,
                                     void *to, size_t n_words) {
    enum { TRIES = 4 };
    for (int t = 0; t < TRIES; t++) {
        uint64_t v = atomic_load(version);
        if (v == 0) {
            return false;
        }
        for (size_t i = 0; i < n_words; i++) {
            uint64_t one = atomic_load_explicit(&word[i], memory_order_acquire);
            memcpy((char *)to + i * sizeof one, &one, sizeof one);
        }
        if (v % 2 == 0 && atomic_load(version) == v) {
            return true;
        }
    }
    return false;
}

#endif /* DTR_RT_SEQLOCK_H */
