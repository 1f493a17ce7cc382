/* Inside of a bucket plan. */
#ifndef DTR_DDP_PLAN_H
#define DTR_DDP_PLAN_H

#include <dtr/plan.h>

enum { DTR__PLAN_ALIGN = 64 };

struct dtr_plan {
    size_t n_params, n_slots, n_buckets;
    dtr_plan_slot *slots; /* all of them, bucket by bucket */
    dtr_plan_bucket *buckets;
    char **names; /* [n_params], one allocation behind the pointers */
};

static inline size_t dtr__plan_round(size_t nbytes) {
    return (nbytes + DTR__PLAN_ALIGN - 1) / DTR__PLAN_ALIGN * DTR__PLAN_ALIGN;
}

/* dtr_plan_compute on a subset: only the n_order parameters listed in `order` enter the plan, slots
 * keep the indices of `params`. */
dtr_status dtr__plan_build(const dtr_plan_param *params, size_t n, const size_t *order,
                           size_t n_order, const size_t *limits, size_t n_limits, uint32_t flags,
                           dtr_plan **out);

#endif /* DTR_DDP_PLAN_H */
