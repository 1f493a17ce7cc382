/* The loops for the compiler's baseline, whatever it is; what every other set must agree with. */
#define VECTOR_BYTES 16
#include "vectors.h"

static ALWAYS_INLINE u32_v u16_widen(half_v h) {
    return __builtin_convertvector(h, u32_v);
}

static ALWAYS_INLINE half_v u32_narrow(u32_v u) {
    return __builtin_convertvector(u, half_v);
}

#define KERNEL_SET dtr__kernels_scalar
#define KERNEL_NAME "scalar"
#include "kernels_body.h"
