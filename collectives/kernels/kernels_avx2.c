/* The loops for AVX2 and F16C. */
#include <immintrin.h>
#include <stdbool.h>

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

static ALWAYS_INLINE void stream_half(void *aligned, const void *src) {
    _mm_stream_si128(aligned, _mm_loadu_si128(src));
}

/* A vector of which only a part is in memory is put together in registers: one that goes through
 * the stack is read back before its pieces have been written, which costs more than the rest of a
 * small reduction. */
#define HAVE_PARTS
static uint64_t load_less_than_8(const uint8_t *p, size_t n) {
    if (n >= 4) {
        uint32_t first, last;
        memcpy(&first, p, 4);
        memcpy(&last, p + n - 4, 4);
        return first | (uint64_t)last << 8 * (n - 4);
    }
    uint64_t word = 0;
    for (size_t i = 0; i < n; i++) {
        word |= (uint64_t)p[i] << 8 * i;
    }
    return word;
}

static __attribute__((noinline)) __m128i load_less_than_16(const uint8_t *p, size_t n) {
    uint64_t first = 0, second = 0;
    if (n >= 8) {
        memcpy(&first, p, 8);
        second = load_less_than_8(p + 8, n - 8);
    } else {
        first = load_less_than_8(p, n);
    }
    return _mm_set_epi64x((long long)second, (long long)first);
}

static __attribute__((noinline)) void store_less_than_16(uint8_t *p, size_t n, __m128i v) {
    uint64_t word = (uint64_t)_mm_cvtsi128_si64(v);
    if (n >= 8) {
        memcpy(p, &word, 8);
        word = (uint64_t)_mm_extract_epi64(v, 1);
        p += 8;
        n -= 8;
    }
    if (n >= 4) {
        uint32_t half = (uint32_t)word;
        memcpy(p, &half, 4);
        word >>= 32;
        p += 4;
        n -= 4;
    }
    for (; n > 0; n--, word >>= 8) {
        *p++ = (uint8_t)word;
    }
}

static ALWAYS_INLINE void load_part(void *vector, size_t size, const void *p, size_t nbytes) {
    const uint8_t *from = p;
    if (nbytes == size) {
        memcpy(vector, p, size);
    } else if (size == 16) {
        const __m128i v = load_less_than_16(from, nbytes);
        memcpy(vector, &v, sizeof v);
    } else {
        const bool more = nbytes >= 16;
        const __m128i low = more ? _mm_loadu_si128(p) : load_less_than_16(from, nbytes);
        const __m128i high = more ? load_less_than_16(from + 16, nbytes - 16) : _mm_setzero_si128();
        const __m256i v = _mm256_set_m128i(high, low);
        memcpy(vector, &v, sizeof v);
    }
}

static ALWAYS_INLINE void store_part(void *p, size_t nbytes, const void *vector, size_t size) {
    uint8_t *to = p;
    if (nbytes == size) {
        memcpy(p, vector, size);
    } else if (size == 16) {
        __m128i v;
        memcpy(&v, vector, sizeof v);
        store_less_than_16(to, nbytes, v);
    } else {
        __m256i v;
        memcpy(&v, vector, sizeof v);
        __m128i part = _mm256_castsi256_si128(v);
        if (nbytes >= 16) {
            _mm_storeu_si128(p, part);
            part = _mm256_extracti128_si256(v, 1);
            to += 16;
            nbytes -= 16;
        }
        store_less_than_16(to, nbytes, part);
    }
}

/* The compiler takes the functions above to have done this, as any other function would, although
 * they are given the upper halves in use; all later SSE code would wait for them. */
#define HAVE_LEAVE
static ALWAYS_INLINE void leave_vectors(void) {
    _mm256_zeroupper();
}

#define KERNEL_SET dtr__kernels_avx2
#define KERNEL_NAME "avx2"
#include "kernels_body.h"
