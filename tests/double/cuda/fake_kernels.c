/* The library's kernels by the names that nvcc registers, as host functions. */
#include "fake.h"

#include <string.h>

#include "cuda/device_bodies.h"

#define DTR__KERNEL(name)                                                            \
    static void run_##name(const void *argument, unsigned tid, unsigned n_threads) { \
        dtr__body_##name(argument, tid, n_threads);                                  \
    }
DTR__ALL_KERNELS
#undef DTR__KERNEL

#define DTR__KERNEL(name) { "dtr_kernel_" #name, sizeof(dtr__kernel_args), run_##name },
static const fake_kernel kernels[] = { DTR__ALL_KERNELS };
#undef DTR__KERNEL

const fake_kernel *fake_kernel_named(const char *name) {
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            return &kernels[i];
        }
    }
    return NULL;
}
