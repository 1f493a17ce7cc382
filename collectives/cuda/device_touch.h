/* What bodies of kernels touch when they run in the stand-in for CUDA. */
#ifndef DTR_DEVICE_TOUCH_H
#define DTR_DEVICE_TOUCH_H

/* The alias of device memory, pinned memory itself. Anything else ends the process, as a kernel
 * would fail. */
void *fake_touch(const void *p);

#endif /* DTR_DEVICE_TOUCH_H */
