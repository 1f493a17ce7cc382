/* What the threads of each kernel do, as C that nvcc compiles into the kernels and gcc into the
 * stand-in. `tid` of `threads` numbers the threads of the whole grid. */
#ifndef DTR_DEVICE_BODIES_H
#define DTR_DEVICE_BODIES_H

#include <float.h>

#include "cuda/device_kernels.h"
#include "kernels/formats.h"

#ifdef __CUDACC__
#define DTR__BODY static __device__ __forceinline__
#define DTR__TOUCH(p) (p)
#define DTR__UNROLL_1 _Pragma("unroll 1")
#define DTR__UNROLL_4 _Pragma("unroll 4")
#define DTR__UNROLL_ALL _Pragma("unroll")
typedef uint4 dtr__words;
DTR__BODY void dtr__keep_least(uint64_t *at, uint64_t v) {
    (void)atomicMin((unsigned long long *)at, (unsigned long long)v);
}
#else
#include "device_touch.h"
#define DTR__BODY static inline
#define DTR__TOUCH(p) fake_touch(p)
#define DTR__UNROLL_1
#define DTR__UNROLL_4
#define DTR__UNROLL_ALL
typedef struct dtr__words {
    uint32_t x, y, z, w;
} dtr__words;
DTR__BODY void dtr__keep_least(uint64_t *at, uint64_t v) {
    *at = v < *at ? v : *at;
}
#endif
/* What other threads change atomically meanwhile: a plain read of it would be a data race. */
DTR__BODY uint64_t dtr__least_yet(const uint64_t *at) {
    return *(const volatile uint64_t *)at;
}

typedef uint16_t dtr__cell_f16;
typedef uint16_t dtr__cell_bf16;
typedef float dtr__cell_f32;
typedef double dtr__cell_f64;
typedef dtr__words dtr__cell_words;

/* ---- one element to and from the type of computation ---- */

DTR__BODY float dtr__get_f16(uint16_t v) {
    return f16_decode(v);
}
DTR__BODY float dtr__get_bf16(uint16_t v) {
    return bf16_decode(v);
}
DTR__BODY float dtr__get_f32(float v) {
    return v;
}
DTR__BODY double dtr__get_f64(double v) {
    return v;
}

/* A double is rounded once: what reaches a 16-bit type through float32 is rounded to odd there. */
DTR__BODY uint16_t dtr__put_f16(double v) {
    return f16_encode(f32_odd_from_f64(v));
}
DTR__BODY uint16_t dtr__put_bf16(double v) {
    return bf16_encode(f32_odd_from_f64(v));
}
DTR__BODY float dtr__put_f32(double v) {
    return (float)v;
}
DTR__BODY double dtr__put_f64(double v) {
    return v;
}
DTR__BODY dtr__words dtr__put_words(dtr__words v) {
    return v;
}

/* ---- groups ---- */

#define DTR__DEFINE_GROUP(t)                                                           \
    typedef union dtr__group_##t {                                                     \
        dtr__words words[sizeof(dtr__cell_##t) / 2];                                   \
        dtr__cell_##t cell[DTR__GROUP];                                                \
    } dtr__group_##t;                                                                  \
    DTR__BODY dtr__group_##t dtr__load_##t(const void *from, uint64_t group) {         \
        dtr__group_##t g;                                                              \
        const dtr__words *words = (const dtr__words *)from + group * (sizeof g / 16);  \
        for (unsigned i = 0; i < sizeof g / 16; i++) {                                 \
            g.words[i] = words[i];                                                     \
        }                                                                              \
        return g;                                                                      \
    }                                                                                  \
    DTR__BODY void dtr__store_##t(void *to, uint64_t group, const dtr__group_##t *g) { \
        dtr__words *words = (dtr__words *)to + group * (sizeof *g / 16);               \
        for (unsigned i = 0; i < sizeof *g / 16; i++) {                                \
            words[i] = g->words[i];                                                    \
        }                                                                              \
    }
#define DTR__DEFINE_GROUP_OF(t, c) DTR__DEFINE_GROUP(t)
DTR__KERNEL_TYPES(DTR__DEFINE_GROUP_OF)

/* ---- element by element ---- */

/* dtr__map_NAME: y[i] = value, which is made of v = x[i], alpha and, where it `reads`, w = y[i]; x
 * may be y. The first `whole` elements go by units, 16 bytes of the wider type: threads beside each
 * other take units beside each other, so that a warp moves whole sectors. A thread loads two units
 * before it stores, as many as 32 registers hold, with which a multiprocessor runs all the threads
 * that it can have; of 16-bit types one. The other elements go one by one. */
#define DTR__DEFINE_UNIT(name, t, each) \
    typedef struct name {               \
        dtr__cell_##t cell[each];       \
    } __attribute__((aligned(each * sizeof(dtr__cell_##t)))) name;
#define DTR__MAP_UNITS(name, n, reads)                                               \
    for (; u + (n - 1) * threads < units; u += n * threads) {                        \
        dtr__from_##name v[n];                                                       \
        dtr__to_##name w[n] = { 0 };                                                 \
        DTR__UNROLL_ALL                                                              \
        for (unsigned k = 0; k < n; k++) {                                           \
            v[k] = ((const dtr__from_##name *)x)[u + k * threads];                   \
            if (reads) {                                                             \
                w[k] = ((const dtr__to_##name *)y)[u + k * threads];                 \
            }                                                                        \
        }                                                                            \
        DTR__UNROLL_ALL                                                              \
        for (unsigned k = 0; k < n; k++) {                                           \
            DTR__UNROLL_ALL                                                          \
            for (unsigned i = 0; i < EACH; i++) {                                    \
                w[k].cell[i] = dtr__value_##name(v[k].cell[i], w[k].cell[i], alpha); \
            }                                                                        \
            ((dtr__to_##name *)y)[u + k * threads] = w[k];                           \
        }                                                                            \
    }
#define DTR__DEFINE_MAP(name, to, from, c, reads, value)                                         \
    enum {                                                                                       \
        DTR__EACH_##name =                                                                       \
            16 / (sizeof(dtr__cell_##to) > sizeof(dtr__cell_##from) ? sizeof(dtr__cell_##to)     \
                                                                    : sizeof(dtr__cell_##from))  \
    };                                                                                           \
    DTR__DEFINE_UNIT(dtr__to_##name, to, DTR__EACH_##name)                                       \
    DTR__DEFINE_UNIT(dtr__from_##name, from, DTR__EACH_##name)                                   \
    DTR__BODY dtr__cell_##to dtr__value_##name(dtr__cell_##from v, dtr__cell_##to w, c alpha) {  \
        (void)w, (void)alpha;                                                                    \
        return dtr__put_##to(value);                                                             \
    }                                                                                            \
    DTR__BODY void dtr__map_##name(dtr__cell_##to *y, const dtr__cell_##from *x, c alpha,        \
                                   uint64_t whole, uint64_t n, uint64_t tid, uint64_t threads) { \
        enum { EACH = DTR__EACH_##name, AHEAD = EACH < 8 ? 2 : 1 };                              \
        const uint64_t units = whole / EACH;                                                     \
        uint64_t u = tid;                                                                        \
        if (AHEAD > 1) {                                                                         \
            DTR__UNROLL_1                                                                        \
            DTR__MAP_UNITS(name, AHEAD, reads)                                                   \
        }                                                                                        \
        DTR__UNROLL_1                                                                            \
        DTR__MAP_UNITS(name, 1, reads)                                                           \
        DTR__UNROLL_1                                                                            \
        for (uint64_t i = EACH * units + tid; i < n; i += threads) {                             \
            const dtr__cell_##to none = { 0 };                                                   \
            y[i] = dtr__value_##name(x[i], reads ? y[i] : none, alpha);                          \
        }                                                                                        \
    }

/* ---- bodies ---- */

DTR__BODY void dtr__body_fill(const dtr__kernel_args *a, uint64_t tid, uint64_t threads) {
    unsigned char *y = (unsigned char *)DTR__TOUCH(a->y);
    dtr__words pattern;
    pattern.x = (uint32_t)a->pattern[0];
    pattern.y = (uint32_t)(a->pattern[0] >> 32);
    pattern.z = (uint32_t)a->pattern[1];
    pattern.w = (uint32_t)(a->pattern[1] >> 32);
    dtr__words *words = (dtr__words *)(y + a->head);
    for (uint64_t i = tid; i < a->groups; i += threads) {
        words[i] = pattern;
    }
    /* The bytes before and after: the pattern counts from the first multiple of 16. */
    uint64_t end = a->head + 16 * a->groups;
    for (uint64_t i = tid; i < a->head + (a->n - end); i += threads) {
        uint64_t at = i < a->head ? i : end + (i - a->head), k = (at - a->head) & 15;
        y[at] = (unsigned char)((k & 8 ? a->pattern[1] : a->pattern[0]) >> (8 * (k & 7)));
    }
}

/* The body of a kernel that takes all elements of two tensors, or of one. */
#define DTR__DEFINE_MAP_BODY(name, to, from, c, source, reads, value)                            \
    DTR__DEFINE_MAP(name, to, from, c, reads, value)                                             \
    DTR__BODY void dtr__body_##name(const dtr__kernel_args *a, uint64_t tid, uint64_t threads) { \
        dtr__map_##name((dtr__cell_##to *)DTR__TOUCH(a->y),                                      \
                        (const dtr__cell_##from *)DTR__TOUCH(a->source), (c)a->alpha,            \
                        DTR__GROUP * a->groups, a->n, tid, threads);                             \
    }
#define DTR__DEFINE_CAST(to, from) \
    DTR__DEFINE_MAP_BODY(to##_from_##from, to, from, double, x, false, dtr__get_##from(v))
DTR__KERNEL_CASTS(DTR__DEFINE_CAST)

#define DTR__DEFINE_BODIES(t, c)                                                                \
    DTR__DEFINE_MAP_BODY(scale_##t, t, t, c, y, false, dtr__get_##t(v) * alpha)                 \
    DTR__DEFINE_MAP_BODY(axpy_##t, t, t, c, x, true, dtr__get_##t(w) + alpha * dtr__get_##t(v)) \
    DTR__BODY void dtr__body_squares_##t(const dtr__kernel_args *a, uint64_t tid,               \
                                         uint64_t threads) {                                    \
        const dtr__cell_##t *x = (const dtr__cell_##t *)DTR__TOUCH(a->x);                       \
        double sum = 0;                                                                         \
        for (uint64_t g = tid; g < a->groups; g += threads) {                                   \
            dtr__group_##t v = dtr__load_##t(x, g);                                             \
            for (int i = 0; i < DTR__GROUP; i++) {                                              \
                const double d = (double)dtr__get_##t(v.cell[i]) * a->alpha;                    \
                sum += d * d;                                                                   \
            }                                                                                   \
        }                                                                                       \
        for (uint64_t i = DTR__GROUP * a->groups + tid; i < a->n; i += threads) {               \
            const double d = (double)dtr__get_##t(x[i]) * a->alpha;                             \
            sum += d * d;                                                                       \
        }                                                                                       \
        ((double *)DTR__TOUCH(a->y))[tid] = sum;                                                \
    }                                                                                           \
    DTR__BODY void dtr__body_largest_##t(const dtr__kernel_args *a, uint64_t tid,               \
                                         uint64_t threads) {                                    \
        const dtr__cell_##t *x = (const dtr__cell_##t *)DTR__TOUCH(a->x);                       \
        double most = 0;                                                                        \
        for (uint64_t i = tid; i < a->n; i += threads) {                                        \
            const double d = fabs((double)dtr__get_##t(x[i]));                                  \
            most = d > most || d != d ? d : most; /* a NaN stays */                             \
        }                                                                                       \
        ((double *)DTR__TOUCH(a->y))[tid] = most;                                               \
    }
DTR__KERNEL_TYPES(DTR__DEFINE_BODIES)

/* ---- whole numbers, and bits ---- */

#define DTR__DEFINE_DIVIDE(t, c, wide)                                           \
    DTR__BODY void dtr__body_divide_##t(const dtr__kernel_args *a, uint64_t tid, \
                                        uint64_t threads) {                      \
        enum { EACH = 16 / sizeof(c) };                                          \
        c *y = (c *)DTR__TOUCH(a->y);                                            \
        const wide by = (wide)a->pattern[0];                                     \
        for (uint64_t g = tid; g < a->groups; g += threads) {                    \
            union {                                                              \
                dtr__words words;                                                \
                c cell[EACH];                                                    \
            } v;                                                                 \
            v.words = ((const dtr__words *)y)[g];                                \
            for (int i = 0; i < (int)EACH; i++) {                                \
                v.cell[i] = (c)(v.cell[i] / by);                                 \
            }                                                                    \
            ((dtr__words *)y)[g] = v.words;                                      \
        }                                                                        \
        for (uint64_t i = EACH * a->groups + tid; i < a->n; i += threads) {      \
            y[i] = (c)(y[i] / by);                                               \
        }                                                                        \
    }
DTR__KERNEL_INTEGERS(DTR__DEFINE_DIVIDE)

/* A thread's numbers rise, so its first NaN is its last look. */
#define DTR__DEFINE_NAN(bits)                                                       \
    DTR__BODY bool dtr__is_nan_##bits(uint##bits##_t v, uint64_t limit) {           \
        return (v & (uint##bits##_t) ~((uint##bits##_t)1 << (bits - 1))) > limit;   \
    }                                                                               \
    DTR__BODY void dtr__body_nan_##bits(const dtr__kernel_args *a, uint64_t tid,    \
                                        uint64_t threads) {                         \
        enum { EACH = 128 / bits };                                                 \
        const uint##bits##_t *x = (const uint##bits##_t *)DTR__TOUCH(a->x);         \
        uint64_t *first = (uint64_t *)DTR__TOUCH(a->y);                             \
        for (uint64_t g = tid; g < a->groups; g += threads) {                       \
            union {                                                                 \
                dtr__words words;                                                   \
                uint##bits##_t cell[EACH];                                          \
            } v;                                                                    \
            v.words = ((const dtr__words *)x)[g];                                   \
            for (int i = 0; i < (int)EACH; i++) {                                   \
                if (dtr__is_nan_##bits(v.cell[i], a->pattern[1])) {                 \
                    dtr__keep_least(first, a->pattern[0] + EACH * g + (uint64_t)i); \
                    return;                                                         \
                }                                                                   \
            }                                                                       \
        }                                                                           \
        for (uint64_t i = EACH * a->groups + tid; i < a->n; i += threads) {         \
            if (dtr__is_nan_##bits(x[i], a->pattern[1])) {                          \
                dtr__keep_least(first, a->pattern[0] + i);                          \
                return;                                                             \
            }                                                                       \
        }                                                                           \
    }
DTR__KERNEL_WIDTHS(DTR__DEFINE_NAN)

/* ---- the 8-bit code ---- */

/* Of two floats the less has the less order. */
DTR__BODY uint64_t dtr__q8_order(float v) {
    const uint32_t bits = f32_bits(v);
    return bits & 0x80000000u ? (uint32_t)~bits : bits | 0x80000000u;
}
/* 0 where there was none, as the range always holds that. */
DTR__BODY float dtr__q8_least(uint64_t order) {
    const uint32_t o = (uint32_t)order;
    return order > UINT32_MAX ? 0 : f32_from_bits(o & 0x80000000u ? o & 0x7fffffffu : ~o);
}

typedef struct dtr__q8_range {
    float low, high;
    uint64_t bad;
} dtr__q8_range;
DTR__BODY void dtr__q8_look(dtr__q8_range *r, float v, uint64_t at) {
    if (fabsf(v) <= FLT_MAX) {
        r->low = v < r->low ? v : r->low;
        r->high = v > r->high ? v : r->high;
    } else if (at < r->bad) {
        r->bad = at;
    }
}

/* The same arithmetic as on the host. */
DTR__BODY dtr__q8_head dtr__q8_choose(const uint64_t *found) {
    const float low = dtr__q8_least(found[0]), high = -dtr__q8_least(found[1]);
    dtr__q8_head h;
    h.unused = 0;
    h.scale = high / 255 - low / 255;
    h.scale = h.scale < FLT_MIN ? FLT_MIN : h.scale;
    h.zero = rintf(-low / h.scale);
    if (low == 0 && high == 0) {
        h.scale = 1;
        h.zero = 0;
    }
    return h;
}
DTR__BODY unsigned char dtr__q8_code(dtr__q8_head h, float v) {
    const float level = rintf(v / h.scale) + h.zero;
    return (unsigned char)(level > 0 ? level < 255 ? level : 255 : 0);
}

typedef union dtr__q8_codes {
    dtr__words words;
    unsigned char code[2 * DTR__GROUP];
} dtr__q8_codes;

#define DTR__DEFINE_Q8(t, c)                                                                      \
    DTR__BODY void dtr__body_q8_range_##t(const dtr__kernel_args *a, uint64_t tid,                \
                                          uint64_t threads) {                                     \
        const dtr__cell_##t *x = (const dtr__cell_##t *)DTR__TOUCH(a->x);                         \
        uint64_t *found = (uint64_t *)DTR__TOUCH(a->y);                                           \
        dtr__q8_range r = { 0, 0, UINT64_MAX };                                                   \
        for (uint64_t g = tid; g < 2 * a->groups; g += threads) {                                 \
            dtr__group_##t v = dtr__load_##t(x, g);                                               \
            for (int i = 0; i < DTR__GROUP; i++) {                                                \
                dtr__q8_look(&r, (float)dtr__get_##t(v.cell[i]), DTR__GROUP *g + i);              \
            }                                                                                     \
        }                                                                                         \
        for (uint64_t i = 16 * a->groups + tid; i < a->n; i += threads) {                         \
            dtr__q8_look(&r, (float)dtr__get_##t(x[i]), i);                                       \
        }                                                                                         \
        const uint64_t low = dtr__q8_order(r.low), high = dtr__q8_order(-r.high);                 \
        if (r.low < 0 && low < dtr__least_yet(found)) {                                           \
            dtr__keep_least(found, low);                                                          \
        }                                                                                         \
        if (r.high > 0 && high < dtr__least_yet(found + 1)) {                                     \
            dtr__keep_least(found + 1, high);                                                     \
        }                                                                                         \
        if (r.bad != UINT64_MAX) {                                                                \
            dtr__keep_least(found + 2, r.bad);                                                    \
        }                                                                                         \
    }                                                                                             \
    DTR__BODY void dtr__body_q8_encode_##t(const dtr__kernel_args *a, uint64_t tid,               \
                                           uint64_t threads) {                                    \
        const dtr__cell_##t *x = (const dtr__cell_##t *)DTR__TOUCH(a->x);                         \
        dtr__q8_head *to = (dtr__q8_head *)DTR__TOUCH(a->y);                                      \
        unsigned char *codes = (unsigned char *)(to + 1);                                         \
        const dtr__q8_head h =                                                                    \
            dtr__q8_choose((const uint64_t *)DTR__TOUCH((const void *)(uintptr_t)a->pattern[0])); \
        if (tid == 0) {                                                                           \
            *to = h;                                                                              \
        }                                                                                         \
        for (uint64_t g = tid; g < a->groups; g += threads) {                                     \
            dtr__group_##t v = dtr__load_##t(x, 2 * g), w = dtr__load_##t(x, 2 * g + 1);          \
            dtr__q8_codes k;                                                                      \
            for (int i = 0; i < DTR__GROUP; i++) {                                                \
                k.code[i] = dtr__q8_code(h, (float)dtr__get_##t(v.cell[i]));                      \
                k.code[DTR__GROUP + i] = dtr__q8_code(h, (float)dtr__get_##t(w.cell[i]));         \
            }                                                                                     \
            ((dtr__words *)codes)[g] = k.words;                                                   \
        }                                                                                         \
        for (uint64_t i = 16 * a->groups + tid; i < a->n; i += threads) {                         \
            codes[i] = dtr__q8_code(h, (float)dtr__get_##t(x[i]));                                \
        }                                                                                         \
    }                                                                                             \
    DTR__BODY void dtr__body_q8_decode_##t(const dtr__kernel_args *a, uint64_t tid,               \
                                           uint64_t threads) {                                    \
        dtr__cell_##t *y = (dtr__cell_##t *)DTR__TOUCH(a->y);                                     \
        const char *x = (const char *)DTR__TOUCH(a->x);                                           \
        const uint64_t ranks = a->pattern[1];                                                     \
        for (uint64_t g = tid; g < a->groups; g += threads) {                                     \
            float sum[2 * DTR__GROUP] = { 0 };                                                    \
            for (uint64_t r = 0; r < ranks; r++) {                                                \
                const dtr__q8_head *h = (const dtr__q8_head *)(x + r * a->pattern[0]);            \
                const float scale = h->scale, zero = h->zero;                                     \
                dtr__q8_codes k;                                                                  \
                k.words = ((const dtr__words *)(h + 1))[g];                                       \
                for (int i = 0; i < 2 * DTR__GROUP; i++) {                                        \
                    sum[i] += ((float)k.code[i] - zero) * scale;                                  \
                }                                                                                 \
            }                                                                                     \
            dtr__group_##t v, w;                                                                  \
            for (int i = 0; i < DTR__GROUP; i++) {                                                \
                v.cell[i] = dtr__put_##t(sum[i] / (float)ranks);                                  \
                w.cell[i] = dtr__put_##t(sum[DTR__GROUP + i] / (float)ranks);                     \
            }                                                                                     \
            dtr__store_##t(y, 2 * g, &v);                                                         \
            dtr__store_##t(y, 2 * g + 1, &w);                                                     \
        }                                                                                         \
        for (uint64_t i = 16 * a->groups + tid; i < a->n; i += threads) {                         \
            float sum = 0;                                                                        \
            for (uint64_t r = 0; r < ranks; r++) {                                                \
                const dtr__q8_head *h = (const dtr__q8_head *)(x + r * a->pattern[0]);            \
                sum += ((float)((const unsigned char *)(h + 1))[i] - h->zero) * h->scale;         \
            }                                                                                     \
            y[i] = dtr__put_##t(sum / (float)ranks);                                              \
        }                                                                                         \
    }
DTR__KERNEL_TYPES(DTR__DEFINE_Q8)

/* ---- many stretches ---- */

/* What a block does at a time: elements of one stretch. */
typedef struct dtr__part {
    const dtr__stretch *of;
    uint64_t at;    /* its first element */
    unsigned count; /* of elements */
    bool aligned;   /* both sides, to 16 bytes */
} dtr__part;

/* Chunk c of all, `size` elements each but a stretch's last. */
DTR__BODY dtr__part dtr__part_of(unsigned n, const dtr__stretch *s, unsigned c, unsigned size) {
    unsigned lo = 0, hi = n - 1;
    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;
        if (c < s[mid].end) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    dtr__part p;
    p.of = &s[lo];
    p.at = (uint64_t)(c - (lo > 0 ? s[lo - 1].end : 0)) * size;
    p.count = c + 1 == s[lo].end ? s[lo].last : size;
    p.aligned = (((uint64_t)(uintptr_t)s[lo].to | (uint64_t)(uintptr_t)s[lo].from) & 15) == 0;
    return p;
}

DTR__DEFINE_MAP(words, words, words, double, false, v)
DTR__BODY void dtr__part_bytes(const dtr__part *p, double alpha, unsigned lane) {
    unsigned char *y = (unsigned char *)DTR__TOUCH(p->of->to) + p->at;
    const unsigned char *x = (const unsigned char *)DTR__TOUCH(p->of->from) + p->at;
    const unsigned words = p->aligned ? p->count / 16 : 0;
    dtr__map_words((dtr__words *)y, (const dtr__words *)x, alpha, words, words, lane,
                   DTR__KERNEL_THREADS);
    DTR__UNROLL_1
    for (unsigned i = 16 * words + lane; i < p->count; i += DTR__KERNEL_THREADS) {
        y[i] = x[i];
    }
}

#define DTR__DEFINE_PART(to_, from_, c)                                                           \
    DTR__DEFINE_MAP(part_##to_##_from_##from_, to_, from_, c, false, dtr__get_##from_(v) * alpha) \
    DTR__BODY void dtr__part_##to_##_from_##from_(const dtr__part *p, double alpha,               \
                                                  unsigned lane) {                                \
        dtr__map_part_##to_##_from_##from_(                                                       \
            (dtr__cell_##to_ *)DTR__TOUCH(p->of->to) + p->at,                                     \
            (const dtr__cell_##from_ *)DTR__TOUCH(p->of->from) + p->at, (c)alpha,                 \
            p->aligned ? p->count : 0, p->count, lane, DTR__KERNEL_THREADS);                      \
    }
/* The type of computation is that of the source. */
#define DTR__DEFINE_PARTS(from_, c) \
    DTR__DEFINE_PART(f16, from_, c) \
    DTR__DEFINE_PART(bf16, from_, c) DTR__DEFINE_PART(f32, from_, c) DTR__DEFINE_PART(f64, from_, c)
DTR__KERNEL_TYPES(DTR__DEFINE_PARTS)

#define DTR__DEFINE_MANY_SIZED(name, size)                                                        \
    DTR__BODY void dtr__many_##name(const dtr__many_head *h, const dtr__stretch *s, uint64_t tid, \
                                    uint64_t threads) {                                           \
        const unsigned block = (unsigned)(tid / DTR__KERNEL_THREADS);                             \
        const unsigned blocks = (unsigned)(threads / DTR__KERNEL_THREADS);                        \
        for (unsigned c = block; c < s[h->n - 1].end; c += blocks) {                              \
            const dtr__part p = dtr__part_of(h->n, s, c, size);                                   \
            dtr__part_##name(&p, h->alpha, (unsigned)(tid % DTR__KERNEL_THREADS));                \
        }                                                                                         \
    }
#define DTR__DEFINE_MANY(name) DTR__DEFINE_MANY_SIZED(name, DTR__CHUNK)
DTR__DEFINE_MANY_SIZED(bytes, DTR__CHUNK_BYTES)
DTR__MANY_CASTS(DTR__DEFINE_MANY)

#endif /* DTR_DEVICE_BODIES_H */
