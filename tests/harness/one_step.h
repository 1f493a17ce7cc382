/* One backward pass of a module of one parameter, for tests of what the library tells of its calls.
 */
#ifndef TH_ONE_STEP_H
#define TH_ONE_STEP_H

#include <dtr/ddp.h>
#include <dtr/tensor.h>

#include "harness.h"

/* more: a call on the tensor before it, and one that is refused. */
static inline void th_one_step(dtr_group *g, bool more) {
    const int64_t shape[] = { 8 };
    dtr_ddp *ddp = NULL;
    dtr_tensor *value = NULL;
    TH_IS(dtr_tensor_empty(th_world(), DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1,
                           shape, &value),
          DTR_OK);
    TH_IS(dtr_tensor_fill(value, 1, NULL), DTR_OK);
    if (more) {
        TH_IS(dtr_tensor_allreduce(g, value, DTR_MAX, NULL, NULL), DTR_OK);
    }
    dtr_param p = { "w", value, NULL, 0 };
    TH_IS(dtr_ddp_create(g, &p, 1, NULL, &ddp), DTR_OK);
    TH_IS(dtr_tensor_fill(dtr_ddp_grad(ddp, 0), 1, NULL), DTR_OK);
    if (more) {
        TH_IS(dtr_ddp_grad_ready(ddp, 1, NULL), DTR_ERR_ARG);
    }
    TH_IS(dtr_ddp_grad_ready(ddp, 0, NULL), DTR_OK);
    TH_IS(dtr_ddp_backward_end(ddp, NULL), DTR_OK);
    TH_IS(dtr_ddp_destroy(ddp), DTR_OK);
    dtr_tensor_release(value);
}

#endif /* TH_ONE_STEP_H */
