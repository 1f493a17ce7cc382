/* How the kernels that look for NaN see each type: as floats of so many bits. */
#ifndef DTR_DEVICE_NAN_H
#define DTR_DEVICE_NAN_H

#include "base/dtype.h"
#include "cuda/device_kernels.h"

/* Without its sign a number is NaN if its bits are more than `limit`. */
static const struct {
    int kernel;
    unsigned size, per; /* bytes of a float; floats of an element, 0: not looked at */
    uint64_t limit;
} dtr__nan_formats[DTR__N_DTYPES] = {
    [DTR_F8E4M3] = { DTR__KERNEL_nan_8, 1, 1, 0x7e },
    [DTR_F8E5M2] = { DTR__KERNEL_nan_8, 1, 1, 0x7c },
    [DTR_F16] = { DTR__KERNEL_nan_16, 2, 1, 0x7c00 },
    [DTR_BF16] = { DTR__KERNEL_nan_16, 2, 1, 0x7f80 },
    [DTR_F32] = { DTR__KERNEL_nan_32, 4, 1, 0x7f800000 },
    [DTR_F64] = { DTR__KERNEL_nan_64, 8, 1, UINT64_C(0x7ff0000000000000) },
    [DTR_C64] = { DTR__KERNEL_nan_32, 4, 2, 0x7f800000 },
    [DTR_C128] = { DTR__KERNEL_nan_64, 8, 2, UINT64_C(0x7ff0000000000000) },
};
enum { DTR__NAN_BLOCKS = 24 }; /* at most, of DTR__KERNEL_THREADS */

/* The argument for `count` elements of a type that is looked at; *first is on the device and
 * becomes the number of the first NaN, counted in floats, if that is less. */
static inline dtr__kernel_args dtr__nan_args(const void *data, size_t count, dtr_dtype d,
                                             uint64_t *first) {
    dtr__kernel_args a = { .y = first, .x = data, .n = count * dtr__nan_formats[d].per };
    a.groups = (uintptr_t)data % 16 == 0 ? a.n * dtr__nan_formats[d].size / 16 : 0;
    a.pattern[1] = dtr__nan_formats[d].limit;
    return a;
}

#endif /* DTR_DEVICE_NAN_H */
