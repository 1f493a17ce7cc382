/* Exact sums by another way than the library's (Shewchuk's partial sums). */
#ifndef TH_EXACT_REF_H
#define TH_EXACT_REF_H

#include <math.h>
#include <stddef.h>

/* The exact sum rounded to nearest even, of finite numbers without overflow: partial sums that do
 * not overlap, each the error of the one before. */
static inline double th_exact_sum(const double *x, size_t n) {
    static double part[2200]; /* bits of a double, at most */
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        double v = x[i];
        size_t kept = 0;
        for (size_t j = 0; j < used; j++) {
            double a = v, b = part[j];
            if (fabs(a) < fabs(b)) {
                a = part[j];
                b = v;
            }
            const double sum = a + b, error = b - (sum - a);
            if (error != 0) {
                part[kept++] = error;
            }
            v = sum;
        }
        part[kept++] = v;
        used = kept;
    }
    double sum = 0, error = 0;
    while (used > 0 && error == 0) {
        const double a = sum;
        sum = a + part[--used];
        error = part[used] - (sum - a);
    }
    /* Half way between two doubles, as far as these two know: the next one decides. */
    if (used > 0 && ((error < 0 && part[used - 1] < 0) || (error > 0 && part[used - 1] > 0))) {
        const double twice = error * 2, other = sum + twice;
        sum = twice == other - sum ? other : sum;
    }
    return sum;
}

#endif /* TH_EXACT_REF_H */
