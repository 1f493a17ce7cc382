/* Reductions of pairs of a value and its index, and copies of them without what lies between the
 * two: bytes that nobody has set are neither given on nor looked at. Loops that exist once. */
#include "kernels_set.h"
#include "loops.h"
#include "operators.h"

enum { INDEX_AT = offsetof(dtr_f64_index, index), PAIR = sizeof(dtr_f64_index) };
_Static_assert(offsetof(dtr_f32_index, index) == INDEX_AT && sizeof(dtr_f32_index) == PAIR &&
                   offsetof(dtr_i64_index, index) == INDEX_AT && sizeof(dtr_i64_index) == PAIR,
               "pairs have one layout");

/* Whether b wins over a, which came earlier: NaN over numbers, as MIN and MAX have it, then the
 * value, then the smaller index. */
#define DEFINE_PAIR(name, C)                                                                    \
    typedef struct name {                                                                       \
        C value;                                                                                \
        int64_t index;                                                                          \
    } name;                                                                                     \
    static ALWAYS_INLINE name load_##name(const void *from, size_t k) {                         \
        const char *at = (const char *)from + k * PAIR;                                         \
        name p;                                                                                 \
        memcpy(&p.value, at, sizeof p.value);                                                   \
        memcpy(&p.index, at + INDEX_AT, sizeof p.index);                                        \
        return p;                                                                               \
    }                                                                                           \
    static ALWAYS_INLINE void store_##name(void *to, size_t k, name p) {                        \
        char *at = (char *)to + k * PAIR;                                                       \
        memset(at, 0, INDEX_AT);                                                                \
        memcpy(at, &p.value, sizeof p.value);                                                   \
        memcpy(at + INDEX_AT, &p.index, sizeof p.index);                                        \
    }                                                                                           \
    static ALWAYS_INLINE name choose_##name(name a, name b, const bool largest) {               \
        const bool a_nan = a.value != a.value, b_nan = b.value != b.value;                      \
        const bool beyond = largest ? b.value > a.value : b.value < a.value;                    \
        const bool equal = (b.value == a.value) | (a_nan & b_nan);                              \
        const bool wins = (beyond & !a_nan) | (b_nan & !a_nan) | (equal & (b.index < a.index)); \
        return (name){ wins ? b.value : a.value, wins ? b.index : a.index };                    \
    }                                                                                           \
    static ALWAYS_INLINE void pairs_##name(void *const *dst, int n_dst, const void *const *src, \
                                           int n, size_t count, const bool largest) {           \
        for (size_t k = 0; k < count; k++) {                                                    \
            name p = load_##name(src[0], k);                                                    \
            for (int i = 1; i < n; i++) {                                                       \
                p = choose_##name(p, load_##name(src[i], k), largest);                          \
            }                                                                                   \
            for (int j = 0; j < n_dst; j++) {                                                   \
                store_##name(dst[j], k, p);                                                     \
            }                                                                                   \
        }                                                                                       \
    }                                                                                           \
    static ALWAYS_INLINE void either_##name(const dtr__reduce_job *job, size_t count,           \
                                            const bool largest) {                               \
        const void *const both[2] = { job->src[0], job->src[job->n - 1] };                      \
        void *const one = job->dst[0];                                                          \
        if (job->n == 2 && job->n_dst == 1) {                                                   \
            pairs_##name(&one, 1, both, 2, count, largest);                                     \
        } else {                                                                                \
            pairs_##name(job->dst, job->n_dst, job->src, job->n, count, largest);               \
        }                                                                                       \
    }                                                                                           \
    void dtr__reduce_##name(const dtr__reduce_job *job, size_t count) {                         \
        if (job->op == DTR_MAXLOC) {                                                            \
            either_##name(job, count, true);                                                    \
        } else {                                                                                \
            either_##name(job, count, false);                                                   \
        }                                                                                       \
    }
DEFINE_PAIR(f32_index, float)
DEFINE_PAIR(f64_index, double)
DEFINE_PAIR(i64_index, int64_t)

void dtr__copy_clean(void *dst, const void *src, size_t count, dtr_dtype dtype) {
    if (dtype == DTR_F32_INDEX) {
        for (size_t k = 0; k < count; k++) {
            store_f32_index(dst, k, load_f32_index(src, k));
        }
    } else if (dst != src) {
        memcpy(dst, src, count * dtr_dtype_size(dtype));
    }
}
