/* Operators of a program, with what they give: two that do not commute, one that does, and one
 * whose bits tell in which order it was applied. */
#ifndef TH_USER_OPS_H
#define TH_USER_OPS_H

#include <fenv.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "data.h"
#include "harness.h"

/* What a function found wrong with what it was given. */
static _Atomic(const char *) wrong;
static int mark; /* its address is `arg` */

static inline void look(const void *inout, const void *in, size_t count, size_t size,
                        const void *arg) {
    const uintptr_t a = (uintptr_t)inout, b = (uintptr_t)in;
    if (a % 16 != 0 || b % 16 != 0) {
        wrong = "not on 16 bytes";
    } else if (count == 0 || (a < b + count * size && b < a + count * size)) {
        wrong = "nothing, or both the same";
    } else if (arg != &mark) {
        wrong = "another arg";
    } else if (fegetround() != FE_TONEAREST) {
        wrong = "another rounding";
    }
}

/* x -> value * x + index over whole numbers that wrap: first what the lower ranks do. */
static inline dtr_i64_index affine(dtr_i64_index first, dtr_i64_index then) {
    const uint64_t a = (uint64_t)first.value, b = (uint64_t)first.index, c = (uint64_t)then.value,
                   d = (uint64_t)then.index;
    return (dtr_i64_index){ (int64_t)(c * a), (int64_t)(c * b + d) };
}

static inline void affine_of(void *inout, const void *in, size_t count, dtr_dtype d, void *arg) {
    dtr_i64_index *x = inout;
    const dtr_i64_index *y = in;
    look(inout, in, count, sizeof *x, arg);
    wrong = d != DTR_I64_INDEX ? "another dtype" : wrong;
    for (size_t k = 0; k < count; k++) {
        x[k] = affine(x[k], y[k]);
    }
}

/* The last that is not 0. */
static inline void last_of(void *inout, const void *in, size_t count, dtr_dtype d, void *arg) {
    unsigned char *x = inout;
    const unsigned char *y = in;
    look(inout, in, count, 1, arg);
    wrong = d != DTR_U8 ? "another dtype" : wrong;
    for (size_t k = 0; k < count; k++) {
        x[k] = y[k] != 0 ? y[k] : x[k];
    }
}

static inline uint32_t gcd(uint32_t a, uint32_t b) {
    return b == 0 ? a : gcd(b, a % b);
}

/* The greatest common divisor, which commutes. */
static inline void gcd_of(void *inout, const void *in, size_t count, dtr_dtype d, void *arg) {
    uint32_t *x = inout;
    const uint32_t *y = in;
    look(inout, in, count, sizeof *x, arg);
    wrong = d != DTR_U32 ? "another dtype" : wrong;
    for (size_t k = 0; k < count; k++) {
        x[k] = gcd(x[k], y[k]);
    }
}

/* In another order it rounds otherwise. */
static inline void added_of(void *inout, const void *in, size_t count, dtr_dtype d, void *arg) {
    float *x = inout;
    const float *y = in;
    look(inout, in, count, sizeof *x, arg);
    wrong = d != DTR_F32 ? "another dtype" : wrong;
    for (size_t k = 0; k < count; k++) {
        x[k] = x[k] + y[k];
    }
}

typedef struct sort {
    void (*fn)(void *, const void *, size_t, dtr_dtype, void *);
    dtr_dtype dtype;
    bool commutes;
} sort;
enum { AFFINE, LAST, GCD, ADDED, SORTS };
static const sort sorts[SORTS] = { [AFFINE] = { affine_of, DTR_I64_INDEX, false },
                                   [LAST] = { last_of, DTR_U8, false },
                                   [GCD] = { gcd_of, DTR_U32, true },
                                   [ADDED] = { added_of, DTR_F32, false } };

/* Element k of rank r. */
static inline void element(void *to, const sort *s, int r, size_t k) {
    const uint64_t n = ((uint64_t)k * 31 + (uint64_t)r * 7 + 1) * UINT64_C(0x9e3779b97f4a7c15);
    const dtr_i64_index map = { (int64_t)(n | 1), (int64_t)(n >> 7) };
    const unsigned char some = (unsigned char)(n >> 40 & 1 ? n >> 56 : 0);
    const uint32_t multiple = (uint32_t)((n >> 60) + 1) * 12;
    const float fraction = (float)(n >> 41) * (float)(1U << (n >> 20 & 15));
    const void *const of[SORTS] = { &map, &some, &multiple, &fraction };
    memcpy(to, of[s - sorts], dtr_dtype_size(s->dtype));
}

/* The same over the ranks below n, one after the other. */
static inline void expected(void *to, const sort *s, int n, size_t k) {
    _Alignas(16) unsigned char x[16], y[16];
    element(x, s, 0, k);
    for (int r = 1; r < n; r++) {
        element(y, s, r, k);
        s->fn(x, y, 1, s->dtype, &mark);
    }
    memcpy(to, x, dtr_dtype_size(s->dtype));
}

static inline dtr_op op_of(dtr_world *w, const sort *s) {
    dtr_op op = DTR_SUM;
    TH_IS(dtr_op_create(w, s->fn, &mark, s->commutes, &op), DTR_OK);
    TH_CHECK(op >= DTR_USER_OP, "operator %d", (int)op);
    return op;
}

#endif /* TH_USER_OPS_H */
