/* Going over gradients on a CUDA device, behind the stream of the newest backward_end. */
#ifndef DTR_CLIP_DEVICE_H
#define DTR_CLIP_DEVICE_H

#include "grads.h"

/* Stretches of gradients, all of which one pass takes. */
typedef struct dtr__device_pass {
    dtr_ddp *ddp;
    dtr__ddp_piece *pieces; /* in place */
    size_t *params;
    size_t n, cap;
} dtr__device_pass;

/* `count` elements of parameter i's gradient from `data` on. */
dtr_status dtr__device_pass_add(dtr__device_pass *pass, size_t i, void *data, size_t count,
                                dtr_dtype dtype);
/* Does what p says. The host waits for sums, which are a few bytes, and for nothing else. */
dtr_status dtr__device_pass_run(const dtr__device_pass *pass, dtr__grads_pass *p);
void dtr__device_pass_free(dtr__device_pass *pass);

#endif /* DTR_CLIP_DEVICE_H */
