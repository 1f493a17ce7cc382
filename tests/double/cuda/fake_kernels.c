/* The library's kernels by the names that nvcc registers, as host functions. */
#include "fake.h"

#include <string.h>

#include "cuda/device_factor.h"
#include "cuda/device_step.h"
#include "cuda/device_strided.h"

#define DTR__KERNEL(name)                                                            \
    static void run_##name(const void *argument, unsigned tid, unsigned n_threads) { \
        dtr__body_##name(argument, tid, n_threads);                                  \
    }
DTR__ALL_KERNELS
#undef DTR__KERNEL

#define DTR__MANY_SIZED(size, name)                                                           \
    static void run_##size##_##name(const void *argument, unsigned tid, unsigned n_threads) { \
        const dtr__##size##_args *a = argument;                                               \
        dtr__many_##name(&a->head, a->stretch, tid, n_threads);                               \
    }
#define DTR__MANY(name) DTR__MANY_SIZED(few, name) DTR__MANY_SIZED(most, name)
DTR__MANY_KERNELS(DTR__MANY)
#undef DTR__MANY
#undef DTR__MANY_SIZED

#define DTR__MANY_SIZED(size, name)                                                           \
    static void run_##size##_##name(const void *argument, unsigned tid, unsigned n_threads) { \
        const dtr__##size##_step *a = argument;                                               \
        dtr__steps_##name(&a->head, a->stretch, a->number, tid, n_threads);                   \
    }
#define DTR__MANY(name) DTR__MANY_SIZED(few, name) DTR__MANY_SIZED(most, name)
DTR__STEP_KERNELS(DTR__MANY)
#undef DTR__MANY
#undef DTR__MANY_SIZED

#define DTR__STEP(name)                                                 \
    { "dtr_kernel_few_" #name, sizeof(dtr__few_step), run_few_##name }, \
        { "dtr_kernel_most_" #name, sizeof(dtr__most_step), run_most_##name },
#define DTR__FACTOR(name)                                                                   \
    static void run_factor_##name(const void *argument, unsigned tid, unsigned n_threads) { \
        dtr__body_factor_##name(argument, tid, n_threads);                                  \
    }
DTR__FACTOR_KERNELS(DTR__FACTOR)
#undef DTR__FACTOR

#define DTR__STRIDED(name)                                                                   \
    static void run_strided_##name(const void *argument, unsigned tid, unsigned n_threads) { \
        dtr__body_strided_##name(argument, tid, n_threads);                                  \
    }
DTR__STRIDED_KERNELS(DTR__STRIDED)
#undef DTR__STRIDED

#define DTR__STRIDED(name) \
    { "dtr_kernel_strided_" #name, sizeof(dtr__strided_args), run_strided_##name },
#define DTR__FACTOR(name) \
    { "dtr_kernel_factor_" #name, sizeof(dtr__factor_args), run_factor_##name },
#define DTR__MANY(name)                                                 \
    { "dtr_kernel_few_" #name, sizeof(dtr__few_args), run_few_##name }, \
        { "dtr_kernel_most_" #name, sizeof(dtr__most_args), run_most_##name },
#define DTR__KERNEL(name) { "dtr_kernel_" #name, sizeof(dtr__kernel_args), run_##name },
static const fake_kernel kernels[] = { DTR__ALL_KERNELS DTR__MANY_KERNELS(DTR__MANY)
                                           DTR__FACTOR_KERNELS(DTR__FACTOR)
                                               DTR__STRIDED_KERNELS(DTR__STRIDED)
                                                   DTR__STEP_KERNELS(DTR__STEP) };
#undef DTR__STEP
#undef DTR__STRIDED
#undef DTR__FACTOR
#undef DTR__KERNEL
#undef DTR__MANY

enum { MORE = 32 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fake_kernel more[MORE]; /* lock; entries stay as they are */
static size_t n_more;          /* lock */

API void dtr_fake_cuda_kernel(const char *name, size_t nbytes,
                              void (*body)(const void *argument, unsigned tid,
                                           unsigned n_threads)) {
    fake_lock(&lock);
    if (n_more == MORE) {
        fake_die("more than %d kernels of other objects", MORE);
    }
    more[n_more++] = (fake_kernel){ name, nbytes, body };
    fake_unlock(&lock);
}

bool fake_kernels_of_others(void) {
    fake_lock(&lock);
    const bool some = n_more > 0;
    fake_unlock(&lock);
    return some;
}

static const fake_kernel *added_kernel(const char *name) {
    const fake_kernel *found = NULL;
    fake_lock(&lock);
    for (size_t i = 0; i < n_more && found == NULL; i++) {
        found = strcmp(more[i].name, name) == 0 ? &more[i] : NULL;
    }
    fake_unlock(&lock);
    return found;
}

const fake_kernel *fake_kernel_named(const char *name) {
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            return &kernels[i];
        }
    }
    return added_kernel(name);
}
