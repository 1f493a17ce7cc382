/* Launches over many stretches of parameters and gradients. */
#include "step_device.h"

static dtr_status launch(const dtr_ddp *ddp, int kernel, const void *args, uint32_t chunks) {
    const dtr__ddp_gpu *g = ddp->gpu;
    const unsigned blocks = dtr__device_blocks((uint64_t)chunks * DTR__KERNEL_THREADS);
    DTR_CUDA_TRY(g->ops->launch(g->index, kernel, args, blocks, ddp->out.stream), DTR_ERR_CUDA);
    return DTR_OK;
}

dtr_status dtr__stretches_launch(const dtr_ddp *ddp, dtr__stretches *t) {
    const dtr__most_step *a = &t->args;
    const uint32_t n = a->head.n;
    dtr_status s = DTR_OK;
    if (n > DTR__FEW) {
        s = launch(ddp, t->kernel + 1, a, a->stretch[n - 1].end);
    } else if (n > 0) {
        dtr__few_step few = { .head = a->head };
        memcpy(few.stretch, a->stretch, n * sizeof few.stretch[0]);
        memcpy(few.number, a->number, n * sizeof few.number[0]);
        s = launch(ddp, t->kernel, &few, a->stretch[n - 1].end);
    }
    t->args.head.n = 0;
    return s;
}

dtr_status dtr__stretches_add(const dtr_ddp *ddp, dtr__stretches *t, void *to, const void *from,
                              size_t count, uint64_t number) {
    dtr__most_step *a = &t->args;
    if (count == 0) {
        return DTR_OK;
    }
    while (!dtr__stretch_put(a->stretch, &a->head.n, DTR__STEP_MOST, DTR__CHUNK, to, from, count)) {
        DTR_TRY(dtr__stretches_launch(ddp, t));
    }
    a->number[a->head.n - 1] = number;
    return DTR_OK;
}
