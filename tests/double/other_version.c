/* Stands in the place of libdtr_cuda, as one that was built from another version of the library. */
#include "memory/device.h"

extern const dtr__device_ops dtr_cuda_device_ops;
__attribute__((visibility("default")))
const dtr__device_ops dtr_cuda_device_ops = { .abi = DTR__DEVICE_ABI + 1 };
