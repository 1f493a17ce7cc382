/* What a step reads, and scaling it before. */
#ifndef DTR_DDP_CLIP_H
#define DTR_DDP_CLIP_H

#include "core/ddp_internal.h"

/* dtr_ddp_clip_grad_norm in the name of `entry`. */
dtr_status dtr__ddp_clip(dtr_ddp *ddp, dtr_zero *zero, double max_norm, double *norm,
                         const char *entry);

#endif /* DTR_DDP_CLIP_H */
