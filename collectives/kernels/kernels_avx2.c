/* The loops for AVX2 and F16C. */
#include <immintrin.h>

#define VECTOR_BYTES 32
#include "vectors.h"

static ALWAYS_INLINE u32_v u16_widen(half_v h) {
    return (u32_v)_mm256_cvtepu16_epi32((__m128i)h);
}

static ALWAYS_INLINE half_v u32_narrow(u32_v u) {
    const __m256i v = (__m256i)u;
    return (half_v)_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

#define HAVE_F16
static ALWAYS_INLINE f32_v f16_widen(half_v h) {
    return (f32_v)_mm256_cvtph_ps((__m128i)h);
}

static ALWAYS_INLINE half_v f16_narrow(f32_v f) {
    return (half_v)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT);
}

#define HAVE_STREAM
static ALWAYS_INLINE void stream_vector(void *aligned, const void *src) {
    _mm256_stream_si256(aligned, _mm256_loadu_si256(src));
}

#define KERNEL_SET dtr__kernels_avx2
#define KERNEL_NAME "avx2"
#include "kernels_body.h"
