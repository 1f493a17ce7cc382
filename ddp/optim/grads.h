/* Going over the averages of a module: the very memory that an optimizer's step reads, which is the
 * gradient in the value's own type, or with a sharded optimizer this rank's stretches of it. */
#ifndef DTR_DDP_GRADS_H
#define DTR_DDP_GRADS_H

#include "ddp_squares.h"
#include "zero/zero.h"

typedef struct dtr__grads_pass {
    enum { DTR__GRADS_SQUARES, DTR__GRADS_FINITE, DTR__GRADS_SCALE } what;
    dtr__squares *sum; /* of SQUARES: sums them up */
    double factor;     /* of SCALE */
    /* Of SQUARES and FINITE: elements that are NaN or infinite, and the first parameter that has
     * one, DTR__NONE: none. */
    uint64_t n_nonfinite;
    size_t nonfinite;
    dtr_dtype dtype; /* of the tensor under way */
} dtr__grads_pass;

/* Nobody else uses the module until dtr__ddp_leave. Refuses a module that steps parameters while
 * backward runs (their `need` cannot be known then), and one that has no averages now. */
dtr_status dtr__grads_enter(dtr_ddp *ddp, const dtr_zero *z, const char *need, const char *entry);
dtr_status dtr__grads_over(dtr_ddp *ddp, const dtr_zero *z, dtr__grads_pass *p);
/* Reduce numbers over the module's ranks, in place. */
dtr_status dtr__grads_reduce(dtr_ddp *ddp, uint64_t *numbers, size_t n, dtr_op op,
                             const char *label, uint64_t part);

#endif /* DTR_DDP_GRADS_H */
