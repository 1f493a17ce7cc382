/** @file
 * Names of older versions: each is one call by its present name, and goes in 1.0.
 *
 * dtr/dtr.h includes them unless DTR_NO_DEPRECATED is defined. Programs that include single headers
 * and use one of them include this one as well. */
#ifndef DTR_DEPRECATED_H
#define DTR_DEPRECATED_H

#include <dtr/ddp.h>
#include <dtr/hooks.h>
#include <dtr/optim.h>
#include <dtr/plan.h>
#include <dtr/sampler.h>
#include <dtr/tensor.h>

DTR_BEGIN_DECLS

/** Use dtr_plan_print(dtr_ddp_plan(ddp), text, cap); removed in 1.0. */
static inline size_t dtr_ddp_print_plan(const dtr_ddp *ddp, char *text, size_t cap) {
    return dtr_plan_print(dtr_ddp_plan(ddp), text, cap);
}

/** Use dtr_tensor_norm, which takes a stream; removed in 1.0. */
static inline dtr_status dtr_tensor_norm2(const dtr_tensor *tensor, double *out) {
    return dtr_tensor_norm(tensor, NULL, out);
}

/** Use dtr_plan_destroy; removed in 1.0. */
static inline void dtr_plan_free(dtr_plan *plan) {
    (void)dtr_plan_destroy(plan);
}

/** Use dtr_plan_bucket_count; removed in 1.0. */
static inline size_t dtr_plan_n_buckets(const dtr_plan *plan) {
    return dtr_plan_bucket_count(plan);
}

/** Use dtr_ddp_bucket_param_count; removed in 1.0. */
static inline size_t dtr_ddp_bucket_n_params(const dtr_ddp_bucket *bucket) {
    return dtr_ddp_bucket_param_count(bucket);
}

/** Use dtr_optim_state_count; removed in 1.0. */
static inline size_t dtr_optim_n_states(const dtr_optim *optim) {
    return dtr_optim_state_count(optim);
}

/** Use dtr_sampler_count; removed in 1.0. */
static inline uint64_t dtr_sampler_size(const dtr_sampler *sampler) {
    return dtr_sampler_count(sampler);
}

DTR_END_DECLS

#endif /* DTR_DEPRECATED_H */
