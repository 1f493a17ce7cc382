/* The loops for AVX-512 (F, BW, DQ, VL). The bfloat16 instructions are not used: they flush
 * subnormal numbers. */
#include <immintrin.h>

#define VECTOR_BYTES 64
#include "vectors.h"

static ALWAYS_INLINE u32_v u16_widen(half_v h) {
    return (u32_v)_mm512_cvtepu16_epi32((__m256i)h);
}

static ALWAYS_INLINE half_v u32_narrow(u32_v u) {
    return (half_v)_mm512_cvtepi32_epi16((__m512i)u);
}

#define HAVE_F16
static ALWAYS_INLINE f32_v f16_widen(half_v h) {
    return (f32_v)_mm512_cvtph_ps((__m256i)h);
}

static ALWAYS_INLINE half_v f16_narrow(f32_v f) {
    return (half_v)_mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT);
}

/* To nearest even with masks: two operations fewer than without. */
#define HAVE_BF16_ROUND
static ALWAYS_INLINE u32_v bf16_round(f32_v f) {
    const __m512i bits = (__m512i)f, half = _mm512_set1_epi32(0x8000);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)f, (__m512)f, _CMP_UNORD_Q);
    const __m512i less = _mm512_set1_epi32(0x7fff), all = _mm512_set1_epi32(-1);
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_mask_blend_epi32(odd, less, half));
    return (u32_v)_mm512_mask_mov_epi32(rounded, nan, all);
}

#define HAVE_STREAM
static ALWAYS_INLINE void stream_vector(void *aligned, const void *src) {
    _mm512_stream_si512(aligned, _mm512_loadu_si512(src));
}

static ALWAYS_INLINE void stream_half(void *aligned, const void *src) {
    _mm256_stream_si256(aligned, _mm256_loadu_si256(src));
}

#define HAVE_PARTS
static ALWAYS_INLINE void load_part(void *vector, size_t size, const void *p, size_t nbytes) {
    if (nbytes == size) {
        memcpy(vector, p, size);
    } else if (size == 64) {
        const __m512i v = _mm512_maskz_loadu_epi8(((__mmask64)1 << nbytes) - 1, p);
        memcpy(vector, &v, sizeof v);
    } else {
        const __m256i v = _mm256_maskz_loadu_epi8((__mmask32)(((uint64_t)1 << nbytes) - 1), p);
        memcpy(vector, &v, sizeof v);
    }
}

static ALWAYS_INLINE void store_part(void *p, size_t nbytes, const void *vector, size_t size) {
    if (nbytes == size) {
        memcpy(p, vector, size);
    } else if (size == 64) {
        __m512i v;
        memcpy(&v, vector, sizeof v);
        _mm512_mask_storeu_epi8(p, ((__mmask64)1 << nbytes) - 1, v);
    } else {
        __m256i v;
        memcpy(&v, vector, sizeof v);
        _mm256_mask_storeu_epi8(p, (__mmask32)(((uint64_t)1 << nbytes) - 1), v);
    }
}

#define KERNEL_SET dtr__kernels_avx512
#define KERNEL_NAME "avx512"
#include "kernels_body.h"
