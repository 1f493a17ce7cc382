/* The norm of the averages, and scaling them to a largest norm. */
#include <math.h>

#include <dtr/optim.h>

#include "core/call_site.h"
#include "ddp_clip.h"
#include "grads.h"

#define LABEL "ddp grad norm"

/* ---- across ranks, where each has its stretches ---- */

/* Sums go together with the bytes of max_norm and their squares: the ranks' bytes are equal where
 * the number of ranks times the sum of squares is the square of the sum, which all ranks find
 * alike. */
enum { SUMS = sizeof(dtr__squares) / sizeof(uint64_t), BYTES = sizeof(double) };
typedef struct sums {
    dtr__squares sum;
    uint64_t byte[BYTES], square[BYTES];
} sums;

static dtr_status add_across(dtr_ddp *ddp, dtr__squares *sum, double max_norm, const char *entry) {
    sums all = { .sum = *sum };
    unsigned char bytes[BYTES];
    bool same = true;
    memcpy(bytes, &max_norm, sizeof bytes);
    for (size_t k = 0; k < BYTES; k++) {
        all.byte[k] = bytes[k];
        all.square[k] = (uint64_t)bytes[k] * bytes[k];
    }
    uint64_t *numbers = (uint64_t *)(void *)&all;
    DTR_TRY(dtr__grads_reduce(ddp, numbers, sizeof all / sizeof *numbers, DTR_SUM, LABEL,
                              DTR__PART_ZERO));
    for (size_t k = 0; k < BYTES; k++) {
        same = same && all.square[k] * (uint64_t)ddp->size == all.byte[k] * all.byte[k];
    }
    DTR_REQUIRE(same, NULL, DTR_ERR_MISMATCH,
                "%s: max_norm is %g on rank %d and another number on another rank; give all ranks "
                "the same",
                entry, max_norm, ddp->rank);
    *sum = all.sum;
    return DTR_OK;
}

/* ---- the call ---- */

static dtr_status not_finite(dtr_ddp *ddp, const dtr_zero *z, const dtr__grads_pass *p,
                             const char *entry) {
    uint64_t first = p->nonfinite == DTR__NONE ? INT64_MAX : p->nonfinite;
    if (z != NULL) {
        DTR_TRY(dtr__grads_reduce(ddp, &first, 1, DTR_MIN, LABEL, DTR__PART_ZERO));
    }
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    if (first >= ddp->n) {
        return DTR_FAIL(&ctx, DTR_ERR_NAN,
                        "%s: the norm of the averages is more than a double can hold; nothing was "
                        "scaled. Leave this step out, or lower the learning rate",
                        entry);
    }
    return DTR_FAIL(&ctx, DTR_ERR_NAN,
                    "%s: the averages have %llu NaN and %llu infinite elements, the first in "
                    "parameter '%s' (%zu); nothing was scaled. Leave this step out: clear the "
                    "gradients and go on; DTR_DDP_CHECK_NAN names the rank that a NaN comes from",
                    entry, (unsigned long long)p->sum->nan, (unsigned long long)p->sum->infinite,
                    ddp->params[first].name, (size_t)first);
}

static dtr_status clip(dtr_ddp *ddp, const dtr_zero *z, double max_norm, double *norm,
                       const char *entry) {
    dtr__squares sum = { { 0 }, 0, 0 };
    dtr__grads_pass p = { .what = DTR__GRADS_SQUARES, .sum = &sum, .nonfinite = DTR__NONE };
    DTR_TRY(dtr__grads_over(ddp, z, &p));
    if (z != NULL) {
        DTR_TRY(add_across(ddp, &sum, max_norm, entry));
    }
    double root = dtr__squares_root(&sum);
    if (!isfinite(root)) {
        return not_finite(ddp, z, &p, entry);
    }
    dtr__grads_pass scale = { .what = DTR__GRADS_SCALE,
                              .factor = dtr__squares_factor(root, max_norm) };
    if (scale.factor != 1) {
        DTR_TRY(dtr__grads_over(ddp, z, &scale));
    }
    if (norm != NULL) {
        *norm = root;
    }
    return DTR_OK;
}

static dtr_status check(dtr_ddp *ddp, const dtr_zero *z, double max_norm, const char *entry) {
    dtr__error_context ctx = dtr__ddp_context(ddp, entry);
    DTR_REQUIRE(z == ddp->zero, &ctx, DTR_ERR_ARG, "%s: zero is %s", entry,
                z == NULL           ? "NULL, but the module is sharded; give its dtr_zero"
                : ddp->zero == NULL ? "given, but the module is not sharded; give NULL"
                                    : "that of another module");
    DTR_REQUIRE(max_norm >= 0, &ctx, DTR_ERR_ARG, /* NaN too */
                "%s: max_norm is %g: give a number > 0, or 0 to measure the norm alone", entry,
                max_norm);
    return DTR_OK;
}

dtr_status dtr__ddp_clip(dtr_ddp *ddp, dtr_zero *z, double max_norm, double *norm,
                         const char *entry) {
    DTR_TRY(dtr__ddp_check(ddp, entry));
    if (z != NULL) {
        DTR_TRY(dtr__zero_check(z, entry));
    }
    dtr_status s = check(ddp, z, max_norm, entry);
    if (s < 0) {
        return dtr__ddp_failed(ddp, s);
    }
    DTR_TRY(dtr__grads_enter(ddp, z, "their norm", entry));
    return dtr__ddp_leave(ddp, clip(ddp, z, max_norm, norm, entry));
}

dtr_status dtr_ddp_clip_grad_norm(dtr_ddp *ddp, dtr_zero *zero, double max_norm, double *norm) {
    DTR_HOLD_CALL_SITE;
    return DTR_DDP_TRACED(ddp, "dtr_ddp_clip_grad_norm",
                          dtr__ddp_clip(ddp, zero, max_norm, norm, "dtr_ddp_clip_grad_norm"));
}
