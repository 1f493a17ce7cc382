/** @file
 * Everything that needs neither MPI's nor CUDA's headers; with DTR_NO_DEPRECATED without the names
 * that go in 1.0. */
#ifndef DTR_DTR_H
#define DTR_DTR_H

#include <dtr/backend.h>
#include <dtr/buffer.h>
#include <dtr/callsite.h>
#include <dtr/coll.h>
#include <dtr/ddp.h>
#include <dtr/device.h>
#include <dtr/dlpack.h>
#include <dtr/dtype.h>
#include <dtr/export.h>
#include <dtr/group.h>
#include <dtr/hooks.h>
#include <dtr/loss_scale.h>
#include <dtr/nccl.h>
#include <dtr/npy.h>
#include <dtr/optim.h>
#include <dtr/plan.h>
#include <dtr/safetensors.h>
#include <dtr/sampler.h>
#include <dtr/status.h>
#include <dtr/tensor.h>
#include <dtr/version.h>
#include <dtr/work.h>
#include <dtr/world.h>
#include <dtr/zero.h>

#ifndef DTR_NO_DEPRECATED
#include <dtr/deprecated.h>
#endif

#endif /* DTR_DTR_H */
