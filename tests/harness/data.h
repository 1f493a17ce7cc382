/* Exact test data (HR9, HR10): inputs whose reduction is the same in any order and with any partial
 * rounding, the expected values by brute force, and buffers with guard words and poison. */
#ifndef TH_DATA_H
#define TH_DATA_H

#include <dtr/coll.h>

/* Write a number as element k of an array, rounded to nearest even by an own slow encoder. */
void th_set(void *array, dtr_dtype d, size_t k, double re, double im);
double th_get(const void *array, dtr_dtype d, size_t k, bool imag);

/* Input of rank r of W for an operator (elements first .. first+count of the conceptual vector). */
void th_fill(void *dst, dtr_dtype d, dtr_op op, size_t first, size_t count, int r, int W);
/* Expected result of reducing th_fill of all W ranks. PREMUL_SUM: every rank passes premul 0.5. */
void th_expect(void *dst, dtr_dtype d, dtr_op op, size_t first, size_t count, int W);
/* The same of ranks 0 .. n-1; n 0: the identity of the operator. */
void th_expect_prefix(void *dst, dtr_dtype d, dtr_op op, size_t first, size_t count, int n, int W);
/* Block data: element k of block b of rank j is 10000 j + 100 b + k, folded into the type's exact
 * range. */
void th_fill_block(void *dst, dtr_dtype d, size_t count, int j, int b);
/* Index of the first element that differs bitwise, count when none. */
size_t th_differs(const void *a, const void *b, dtr_dtype d, size_t count);

/* count elements between guard words, poisoned (0xA5 bytes). shift: bytes off the natural alignment
 * of 64. */
typedef struct th_buf {
    unsigned char *base;
    void *data;
    size_t nbytes, total;
    bool shared;
} th_buf;
th_buf th_buf_new(size_t count, dtr_dtype d, dtr_mem kind, size_t shift);
/* Guards intact? With `whole`, the contents must still be poison too. */
bool th_buf_ok(const th_buf *b, bool whole);
void th_buf_free(th_buf *b);

/* Fixed generator, the same on every rank for the same seed. */
typedef struct th_rng {
    uint64_t s;
} th_rng;
uint64_t th_next(th_rng *g);
double th_uniform(th_rng *g); /* [0, 1) */
void th_random_floats(void *dst, dtr_dtype d, size_t count, th_rng *g, int min_exp, int max_exp);

/* All element types, numbers first, then pairs; and all operators. */
enum { TH_NUMBERS = 17, TH_DTYPES = 20, TH_OPS = 14 };
extern const dtr_dtype th_all_dtypes[TH_DTYPES];
extern const dtr_op th_all_ops[TH_OPS];

#endif /* TH_DATA_H */
