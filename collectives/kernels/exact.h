/* Sums without rounding: the exact sum of any numbers in any order, rounded once at the end, so its
 * bits do not depend on the order, nor on how the numbers were cut into parts.
 *
 * After Demmel and Nguyen, "Fast reproducible floating-point summation" (2013), a block of numbers
 * is cut at bit positions that its largest exponent gives: each cut leaves multiples of one power
 * of two that are added without rounding by plain vector arithmetic. They keep a fixed number of
 * cuts and bound what is lost. Here cutting goes on until nothing is left, which after two cuts is
 * all but always so, and the sums of the cuts go into a fixed-point number that spans all doubles.
 */
#ifndef DTR_EXACT_H
#define DTR_EXACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DTR__EXACT_RADIX = 40,  /* bits of a digit: 2^22 of them can be added before carries are due */
    DTR__EXACT_DIGITS = 55, /* 2^-1074 .. 2^1024, and 2^64 of those */
    DTR__EXACT_WORDS = DTR__EXACT_DIGITS + 5
};

/* Zeroed: the empty sum. Settled, its words may be added up over ranks, as 64-bit integers. */
typedef struct dtr__exact_sum {
    int64_t digit[DTR__EXACT_DIGITS]; /* digit i counts 2^(40 i - 1074) */
    /* Whether there was any: of ranks added up, on how many. */
    int64_t nan, plus_infinity, minus_infinity, minus_zero, other;
    int64_t unsettled; /* additions since the last carries; not sent */
} dtr__exact_sum;

/* Add n doubles, of any alignment. */
void dtr__exact_add(dtr__exact_sum *sum, const double *x, size_t n);
void dtr__exact_add_one(dtr__exact_sum *sum, double x);
/* All carries: every digit but the last is below 2^40 and not negative. */
void dtr__exact_settle(dtr__exact_sum *sum);

/* The exact sum rounded to nearest even. NaN where there was one, or both infinities; -0 where
 * there was nothing but -0. */
double dtr__exact_value(const dtr__exact_sum *sum);
/* Rounded to odd: to be rounded once more, to a shorter type, as if there had been one rounding. */
double dtr__exact_value_odd(const dtr__exact_sum *sum);

/* to[k] = (scale a[k]) (scale b[k]), rounded as written. */
void dtr__exact_products(double *to, const double *a, const double *b, double scale, size_t n);
/* The largest magnitude; NaN is passed over, 0 where there is nothing else. */
double dtr__exact_top(const double *x, size_t n);

#endif /* DTR_EXACT_H */
