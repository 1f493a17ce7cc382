/* The loops for AArch64, where NEON is the baseline; what this adds is the f16 conversion. */
#include <arm_neon.h>

#define VECTOR_BYTES 16
#include "vectors.h"

static ALWAYS_INLINE u32_v u16_widen(half_v h) {
    return (u32_v)vmovl_u16((uint16x4_t)h);
}

static ALWAYS_INLINE half_v u32_narrow(u32_v u) {
    return (half_v)vmovn_u32((uint32x4_t)u);
}

#define HAVE_F16
static ALWAYS_INLINE f32_v f16_widen(half_v h) {
    return (f32_v)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)h));
}

static ALWAYS_INLINE half_v f16_narrow(f32_v f) {
    return (half_v)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)f));
}

#define KERNEL_SET dtr__kernels_neon
#define KERNEL_NAME "neon"
#include "kernels_body.h"
