/* Gradients on a CUDA device, behind the stream of the newest backward_end. */
#ifndef DTR_CLIP_DEVICE_H
#define DTR_CLIP_DEVICE_H

#include "ddp_squares.h"
#include "device/device.h"

/* Add the squares of a tensor's elements; the host waits. */
dtr_status dtr__clip_device_squares(dtr_ddp *ddp, const dtr_tensor *t, dtr__squares *sum);
dtr_status dtr__clip_device_scale(dtr_ddp *ddp, const dtr_tensor *t, double factor);

#endif /* DTR_CLIP_DEVICE_H */
