/* Launches over many stretches of parameters and gradients on a module's device, behind the stream
 * of the newest backward_end. */
#ifndef DTR_STEP_DEVICE_H
#define DTR_STEP_DEVICE_H

#include "cuda/device_kernels.h"
#include "device/device.h"

/* Stretches of one type that one launch is to take. */
typedef struct dtr__stretches {
    int kernel; /* for a small table; the one behind it takes a large one */
    dtr__most_step args;
} dtr__stretches;
/* Of the kernels for each type, the one of `dtype`. */
#define DTR__STEP_KERNEL(rule, dtype)                      \
    ((dtype) == DTR_F16    ? DTR__KERNEL_few_##rule##_f16  \
     : (dtype) == DTR_BF16 ? DTR__KERNEL_few_##rule##_bf16 \
     : (dtype) == DTR_F32  ? DTR__KERNEL_few_##rule##_f32  \
                           : DTR__KERNEL_few_##rule##_f64)

/* Launches what there is. */
dtr_status dtr__stretches_launch(const dtr_ddp *ddp, dtr__stretches *t);
/* One stretch more; launches a full table first. */
dtr_status dtr__stretches_add(const dtr_ddp *ddp, dtr__stretches *t, void *to, const void *from,
                              size_t count, uint64_t number);

#endif /* DTR_STEP_DEVICE_H */
