/* Bodies of the kernels that step parameters, and of those that add up squares without rounding. */
#ifndef DTR_DEVICE_STEP_H
#define DTR_DEVICE_STEP_H

#include "device_bodies.h"

#define REAL float
#define NAME(x) x##_float
#define ROOT sqrtf
#include "kernels/optim_rule.h"
#undef REAL
#undef NAME
#undef ROOT
#define REAL double
#define NAME(x) x##_double
#define ROOT sqrt
#include "kernels/optim_rule.h"
#undef REAL
#undef NAME
#undef ROOT

#ifdef __CUDACC__
DTR__BODY void dtr__add_to(uint64_t *at, uint64_t v) {
    (void)atomicAdd((unsigned long long *)at, (unsigned long long)v);
}
#else
DTR__BODY void dtr__add_to(uint64_t *at, uint64_t v) {
    *at += v;
}
#endif

/* ---- one element of a parameter ---- */

/* The number to step: of a type of 16 bits the master copy, unless somebody else has changed the
 * parameter. And what the parameter becomes. */
#define DTR__DEFINE_NARROW(t)                                        \
    DTR__BODY float dtr__number_##t(dtr__cell_##t p, float master) { \
        return t##_encode(master) == p ? master : dtr__get_##t(p);   \
    }                                                                \
    DTR__BODY dtr__cell_##t dtr__rounded_##t(float v) {              \
        return t##_encode(v);                                        \
    }
DTR__DEFINE_NARROW(f16)
DTR__DEFINE_NARROW(bf16)
#define DTR__DEFINE_PLAIN(t)                                                         \
    DTR__BODY dtr__cell_##t dtr__number_##t(dtr__cell_##t p, dtr__cell_##t master) { \
        (void)master;                                                                \
        return p;                                                                    \
    }                                                                                \
    DTR__BODY dtr__cell_##t dtr__rounded_##t(dtr__cell_##t v) {                      \
        return v;                                                                    \
    }
DTR__DEFINE_PLAIN(f32)
DTR__DEFINE_PLAIN(f64)

/* ---- stretches of parameters ---- */

/* 16 bytes of the state, and as many elements of parameters. */
typedef uint64_t dtr__line_words_f16;
typedef uint64_t dtr__line_words_bf16;
typedef dtr__words dtr__line_words_f32;
typedef dtr__words dtr__line_words_f64;
#define DTR__DEFINE_LINE(t, c)                                                               \
    enum { DTR__LINE_##t = 16 / sizeof(c) };                                                 \
    typedef union dtr__line_##t {                                                            \
        dtr__line_words_##t words;                                                           \
        dtr__cell_##t cell[DTR__LINE_##t];                                                   \
    } dtr__line_##t;                                                                         \
    typedef union dtr__state_##t {                                                           \
        dtr__words words;                                                                    \
        c cell[DTR__LINE_##t];                                                               \
    } dtr__state_##t;                                                                        \
    DTR__BODY c *dtr__array_##t(void *array, uint64_t at) {                                  \
        return (c *)DTR__TOUCH(array) + at;                                                  \
    }                                                                                        \
    DTR__BODY void dtr__load_state_##t(dtr__state_##t *s, void *array, uint64_t at) {        \
        const dtr__words none = { 0, 0, 0, 0 };                                              \
        s->words = array != NULL ? *(const dtr__words *)dtr__array_##t(array, at) : none;    \
    }                                                                                        \
    DTR__BODY void dtr__store_state_##t(void *array, uint64_t at, const dtr__state_##t *s) { \
        if (array != NULL) {                                                                 \
            *(dtr__words *)dtr__array_##t(array, at) = s->words;                             \
        }                                                                                    \
    }                                                                                        \
    DTR__BODY c dtr__get_state_##t(void *array, uint64_t at) {                               \
        return array != NULL ? *dtr__array_##t(array, at) : 0;                               \
    }                                                                                        \
    DTR__BODY void dtr__put_state_##t(void *array, uint64_t at, c v) {                       \
        if (array != NULL) {                                                                 \
            *dtr__array_##t(array, at) = v;                                                  \
        }                                                                                    \
    }
DTR__KERNEL_TYPES(DTR__DEFINE_LINE)

#define DTR__ONE_SGD(c, h, decay, w, g, m, v)                                                     \
    sgd_one_##c(&(h)->with_##c, decay, (h)->m != NULL, ((h)->flags & DTR__STEP_NESTEROV) != 0, w, \
                g, m)
#define DTR__ONE_ADAM(c, h, decay, w, g, m, v) \
    adam_one_##c(&(h)->with_##c, decay, ((h)->flags & DTR__STEP_APART) != 0, w, g, m, v)

/* One element in registers, and a part in memory. What an array that is not there would hold is 0,
 * and nobody reads it. Where lines are taken `here` is their multiple: saying so lets the compiler
 * store 16 bytes at a time. */
#define DTR__DEFINE_STEP(rule, ONE, t, c)                                                       \
    DTR__BODY void dtr__step_##rule##_##t(const dtr__step_head *h, c decay, dtr__cell_##t *p,   \
                                          dtr__cell_##t grad, c *m, c *v, c *master) {          \
        *master = dtr__number_##t(*p, *master);                                                 \
        (void)v;                                                                                \
        ONE(c, h, decay, master, dtr__get_##t(grad) * (c)h->factor, m, v);                      \
        *p = dtr__rounded_##t(*master);                                                         \
    }                                                                                           \
    DTR__BODY void dtr__part_##rule##_##t(const dtr__step_head *h, const dtr__part *part,       \
                                          uint64_t number, unsigned lane) {                     \
        const uint64_t at = (number & ~DTR__STEP_PLAIN) + part->at;                             \
        const c decay = (number & DTR__STEP_PLAIN) == 0 ? (c)h->decay : 0;                      \
        dtr__cell_##t *p = (dtr__cell_##t *)DTR__TOUCH(part->of->to) + part->at;                \
        const dtr__cell_##t *x = (const dtr__cell_##t *)DTR__TOUCH(part->of->from) + part->at;  \
        const unsigned lines =                                                                  \
            part->aligned && (at & (DTR__LINE_##t - 1)) == 0 ? part->count / DTR__LINE_##t : 0; \
        DTR__UNROLL_1                                                                           \
        for (unsigned g = lane; g < lines; g += DTR__KERNEL_THREADS) {                          \
            const uint64_t here = (at + g * DTR__LINE_##t) & ~(uint64_t)(DTR__LINE_##t - 1);    \
            dtr__line_##t a, b;                                                                 \
            dtr__state_##t m, v, master;                                                        \
            a.words = ((const dtr__line_words_##t *)p)[g];                                      \
            b.words = ((const dtr__line_words_##t *)x)[g];                                      \
            dtr__load_state_##t(&m, h->m, here);                                                \
            dtr__load_state_##t(&v, h->v, here);                                                \
            dtr__load_state_##t(&master, h->master, here);                                      \
            for (int i = 0; i < DTR__LINE_##t; i++) {                                           \
                dtr__step_##rule##_##t(h, decay, &a.cell[i], b.cell[i], &m.cell[i], &v.cell[i], \
                                       &master.cell[i]);                                        \
            }                                                                                   \
            dtr__store_state_##t(h->m, here, &m);                                               \
            dtr__store_state_##t(h->v, here, &v);                                               \
            dtr__store_state_##t(h->master, here, &master);                                     \
            ((dtr__line_words_##t *)p)[g] = a.words;                                            \
        }                                                                                       \
        DTR__UNROLL_1                                                                           \
        for (unsigned i = DTR__LINE_##t * lines + lane; i < part->count;                        \
             i += DTR__KERNEL_THREADS) {                                                        \
            c m = dtr__get_state_##t(h->m, at + i), v = dtr__get_state_##t(h->v, at + i);       \
            c master = dtr__get_state_##t(h->master, at + i);                                   \
            dtr__step_##rule##_##t(h, decay, p + i, x[i], &m, &v, &master);                     \
            dtr__put_state_##t(h->m, at + i, m);                                                \
            dtr__put_state_##t(h->v, at + i, v);                                                \
            dtr__put_state_##t(h->master, at + i, master);                                      \
        }                                                                                       \
    }
#define DTR__DEFINE_RULES(t, c)               \
    DTR__DEFINE_STEP(sgd, DTR__ONE_SGD, t, c) \
    DTR__DEFINE_STEP(adam, DTR__ONE_ADAM, t, c)
DTR__KERNEL_TYPES(DTR__DEFINE_RULES)

/* ---- squares ---- */

/* A thread's sum as a number of 256 bits, of which the lowest is bit `low` of all the digits that
 * there are. Squares that do not lie in it send it to the digits and begin another. */
typedef struct dtr__window {
    uint64_t word[4];
    unsigned low;
} dtr__window;

DTR__BODY void dtr__window_send(const dtr__window *w, uint64_t *digits) {
    for (unsigned k = 0; k < 4; k++) {
        const uint64_t low = w->word[k] & UINT32_MAX, high = w->word[k] >> 32;
        if (low != 0) {
            dtr__add_to(digits + w->low / 32 + 2 * k, low);
        }
        if (high != 0) {
            dtr__add_to(digits + w->low / 32 + 2 * k + 1, high);
        }
    }
}

/* 2^40 squares of up to 106 bits stay below 2^256. */
DTR__BODY void dtr__window_add(dtr__window *w, uint64_t *digits, uint64_t low, uint64_t high,
                               unsigned bit) {
    if (bit < w->low || bit - w->low > 110) {
        dtr__window_send(w, digits);
        w->word[0] = w->word[1] = w->word[2] = w->word[3] = 0;
        w->low = (bit < 64 ? bit / 32 : bit / 32 - 1) * 32;
    }
    const unsigned up = bit - w->low, shift = up & 63;
    const uint64_t over = shift != 0 ? low >> (64 - shift) : 0;
    const uint64_t a = low << shift, b = high << shift | over;
    const uint64_t c = shift != 0 ? high >> (64 - shift) : 0;
    const bool next = up >= 64;
    const uint64_t add[4] = { next ? 0 : a, next ? a : b, next ? b : c, next ? c : 0 };
    uint64_t carry = 0;
    for (int k = 0; k < 4; k++) {
        const uint64_t some = add[k] + carry;
        carry = some < carry ? 1 : 0;
        w->word[k] += some;
        carry += w->word[k] < some ? 1 : 0;
    }
}

/* What one thread has found. */
typedef struct dtr__found {
    dtr__window w;
    uint64_t nan, infinite;
} dtr__found;

DTR__BODY void dtr__bad(dtr__found *f, dtr__exact_squares *to, bool nan, uint64_t number) {
    f->nan += nan ? 1 : 0;
    f->infinite += nan ? 0 : 1;
    dtr__keep_least(&to->first, number);
}

/* The bits are those of DTR__SQUARES_LEAST. */
DTR__BODY void dtr__square_float(dtr__found *f, dtr__exact_squares *to, float x, uint64_t number) {
    const uint32_t bits = f32_bits(x), exponent = bits >> 23 & 0xff;
    const uint64_t m = (bits & 0x7fffff) | (exponent > 0 ? 0x800000u : 0);
    if (exponent == 0xff) {
        dtr__bad(f, to, (bits & 0x7fffff) != 0, number);
    } else if (m != 0) {
        dtr__window_add(&f->w, to->sum.digit, m * m, 0, 1848 + 2 * (exponent > 0 ? exponent : 1));
    }
}

DTR__BODY void dtr__square_double(dtr__found *f, dtr__exact_squares *to, double x,
                                  uint64_t number) {
    const uint64_t bits = f64_bits(x), fraction = bits & ((UINT64_C(1) << 52) - 1);
    const uint32_t exponent = (uint32_t)(bits >> 52) & 0x7ff;
    const uint64_t m = fraction | (exponent > 0 ? UINT64_C(1) << 52 : 0);
    if (exponent == 0x7ff) {
        dtr__bad(f, to, fraction != 0, number);
    } else if (m != 0) {
        const uint64_t little = m & UINT32_MAX, big = m >> 32, both = little * big;
        const uint64_t low = little * little + (both << 33);
        const uint64_t carry = low < both << 33 ? 1 : 0;
        dtr__window_add(&f->w, to->sum.digit, low, big * big + (both >> 31) + carry,
                        2 * (exponent > 0 ? exponent : 1) - 2);
    }
}

#define DTR__DEFINE_SQUARES(t, c)                                                                  \
    DTR__BODY void dtr__part_exact_##t(dtr__found *f, dtr__exact_squares *to,                      \
                                       const dtr__part *part, uint64_t number, unsigned lane) {    \
        const dtr__cell_##t *x = (const dtr__cell_##t *)DTR__TOUCH(part->of->from) + part->at;     \
        const unsigned groups = part->aligned ? part->count / DTR__GROUP : 0;                      \
        DTR__UNROLL_1                                                                              \
        for (unsigned g = lane; g < groups; g += DTR__KERNEL_THREADS) {                            \
            const dtr__group_##t v = dtr__load_##t(x, g);                                          \
            for (int i = 0; i < DTR__GROUP; i++) {                                                 \
                dtr__square_##c(f, to, dtr__get_##t(v.cell[i]), number);                           \
            }                                                                                      \
        }                                                                                          \
        DTR__UNROLL_1                                                                              \
        for (unsigned i = DTR__GROUP * groups + lane; i < part->count; i += DTR__KERNEL_THREADS) { \
            dtr__square_##c(f, to, dtr__get_##t(x[i]), number);                                    \
        }                                                                                          \
    }
DTR__KERNEL_TYPES(DTR__DEFINE_SQUARES)

/* ---- all stretches ---- */

#define DTR__EACH_PART(statement)                                      \
    const unsigned block = (unsigned)(tid / DTR__KERNEL_THREADS);      \
    const unsigned blocks = (unsigned)(threads / DTR__KERNEL_THREADS); \
    const unsigned lane = (unsigned)(tid % DTR__KERNEL_THREADS);       \
    for (unsigned i = block; i < s[h->n - 1].end; i += blocks) {       \
        const dtr__part p = dtr__part_of(h->n, s, i, DTR__CHUNK);      \
        statement;                                                     \
    }
#define DTR__DEFINE_STEP_MANY(rule)                                                            \
    DTR__BODY void dtr__steps_##rule(const dtr__step_head *h, const dtr__stretch *s,           \
                                     const uint64_t *number, uint64_t tid, uint64_t threads) { \
        DTR__EACH_PART(dtr__part_##rule(h, &p, number[p.of - s], lane))                        \
    }
#define DTR__DEFINE_STEPS(t, c)                                                                   \
    DTR__DEFINE_STEP_MANY(sgd_##t)                                                                \
    DTR__DEFINE_STEP_MANY(adam_##t)                                                               \
    DTR__BODY void dtr__steps_exact_##t(const dtr__step_head *h, const dtr__stretch *s,           \
                                        const uint64_t *number, uint64_t tid, uint64_t threads) { \
        dtr__exact_squares *to = (dtr__exact_squares *)DTR__TOUCH(h->m);                          \
        dtr__found f;                                                                             \
        f.w.low = 0;                                                                              \
        f.w.word[0] = f.w.word[1] = f.w.word[2] = f.w.word[3] = 0;                                \
        f.nan = f.infinite = 0;                                                                   \
        DTR__EACH_PART(dtr__part_exact_##t(&f, to, &p, number[p.of - s], lane))                   \
        dtr__window_send(&f.w, to->sum.digit);                                                    \
        if (f.nan + f.infinite > 0) {                                                             \
            dtr__add_to(&to->sum.nan, f.nan);                                                     \
            dtr__add_to(&to->sum.infinite, f.infinite);                                           \
        }                                                                                         \
    }
DTR__KERNEL_TYPES(DTR__DEFINE_STEPS)

#endif /* DTR_DEVICE_STEP_H */
