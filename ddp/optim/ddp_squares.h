/* Sums of squares without rounding: every square is added as a whole number of the smallest unit
 * that a square of a double can have. So a sum does not depend on the order of its terms, nor on
 * which rank adds which of them, and the norm has the same bits on all ranks, sharded or not. */
#ifndef DTR_DDP_SQUARES_H
#define DTR_DDP_SQUARES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <dtr/dtype.h>

#include "cuda/device_kernels.h"

/* The digits of dtr__squares: sums of sums may be added up digit by digit, by an allreduce too. */
/* Add elements without gaps; floating or complex. */
void dtr__squares_add(dtr__squares *sum, const void *data, size_t count, dtr_dtype dtype);
/* The square root; NaN or infinite where an element is. */
double dtr__squares_root(const dtr__squares *sum);
/* What scales a root down to `most`, 1 where it is no more, or where `most` is 0; with the same
 * bits in any floating-point mode. */
double dtr__squares_factor(double root, double most);

#endif /* DTR_DDP_SQUARES_H */
