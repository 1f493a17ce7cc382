/* The program's own malloc family takes the place of the C library's in every library it loads; the
 * C library keeps its own under a second name. Sanitizers do the same, so they go without. */
#include "allocations.h"

#include <stdatomic.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#if defined(__GLIBC__) && !defined(SANITIZED)

static _Atomic uint64_t count;

/* Names that the C library reserves, its own and those of its header. */
extern void *__libc_malloc(size_t nbytes);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t nbytes);

void *malloc(size_t __size) {
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    return __libc_malloc(__size);
}

void *calloc(size_t __nmemb, size_t __size) {
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    return __libc_calloc(__nmemb, __size);
}

void *realloc(void *__ptr, size_t __size) {
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    return __libc_realloc(__ptr, __size);
}

bool allocations_counted(void) {
    return true;
}

uint64_t allocations(void) {
    return atomic_load_explicit(&count, memory_order_relaxed);
}

#else

bool allocations_counted(void) {
    return false;
}

uint64_t allocations(void) {
    return 0;
}

#endif
