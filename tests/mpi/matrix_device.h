/* Where the buffers of the matrix lie: on the host, or with DTR_TEST_DEVICE=cuda on a device. */
#ifndef MATRIX_DEVICE_H
#define MATRIX_DEVICE_H

#include "data.h"
#include "harness.h"
#include "memory/device.h"

extern const dtr__device_ops *device; /* NULL: buffers of the host */
extern void *stream;
/* False: a device is asked for that cannot be used. */
bool find_device(void);
/* Nothing but NCCL may serve them, by DTR_BACKEND. */
bool nccl_is_alone(void);
/* As th_differs, but an average that NCCL has made may be a little off. */
size_t matrix_differs(const void *got, const void *want, dtr_dtype d, size_t count, bool average);

/* A buffer with its guard words on the device, and pinned memory on the way there and back. */
typedef struct mirror {
    th_buf *host;
    void *pinned, *there;
} mirror;

mirror mirror_new(th_buf *b);
/* Bring the contents back and free the device's. */
void mirror_end(const mirror *m);
/* The buffer to call with: p lies in one of the two. One without elements is NULL. */
dtr_buffer located(void *p, size_t count, dtr_dtype d, const mirror *a, const mirror *b);

#endif /* MATRIX_DEVICE_H */
