/* Tensors in device memory: what the operations of core/ops.c and core/copy.c do there. */
#ifndef DTR_TENSOR_DEVICE_H
#define DTR_TENSOR_DEVICE_H

#include "core/tensor_internal.h"
#include "cuda/device_kernels.h"

static inline bool dtr__tensor_on_device(const dtr_tensor *t) {
    return t->device.type != DTR_CPU;
}

/* DTR_ERR_UNSUPPORTED for tensors that are not contiguous, DTR_ERR_DEVICE for two on different
 * devices. The tensors are checked otherwise; shapes are equal. */
dtr_status dtr__device_tensor_fill(dtr_tensor *t, double value, void *stream);
dtr_status dtr__device_tensor_scale(dtr_tensor *t, double alpha, void *stream);
dtr_status dtr__device_tensor_axpy(dtr_tensor *y, double alpha, const dtr_tensor *x, void *stream);
dtr_status dtr__device_tensor_norm(const dtr_tensor *t, void *stream, double *out);
/* One of them may be in host memory. */
dtr_status dtr__device_tensor_copy(dtr_tensor *dst, const dtr_tensor *src, void *stream);

/* On the default stream, for which the host waits. */
dtr_status dtr__device_tensor_clone(dtr_tensor *copy, const dtr_tensor *t);
/* Of tensors on one device, apart, that are not both contiguous. */
dtr_status dtr__device_strided_copy(dtr_tensor *dst, const dtr_tensor *src, void *stream);

/* The real type that kernels work on, a DTR__KERNEL_TYPE; of a complex type that of its parts, -1:
 * none. */
int dtr__kernel_type(dtr_dtype d);
/* DTR_ERR_UNSUPPORTED where no kernel converts one to the other. */
dtr_status dtr__device_check_cast(dtr_dtype to, dtr_dtype from);
/* Blocks for so many threads, as far as one launch takes. */
static inline unsigned dtr__device_blocks(uint64_t threads) {
    enum { MOST_BLOCKS = 1056 };
    const uint64_t blocks = (threads + DTR__KERNEL_THREADS - 1) / DTR__KERNEL_THREADS;
    return blocks == 0 ? 1 : blocks < MOST_BLOCKS ? (unsigned)blocks : MOST_BLOCKS;
}

/* One stretch without gaps. */
typedef struct dtr__piece {
    void *to;
    const void *from;
    size_t count;
    dtr_dtype to_type, from_type;
} dtr__piece;

/* to = from * scale for many pieces of one device, cast where the types differ: one launch for each
 * pair of types and DTR__MOST pieces of it. Equal types and a scale of 1 keep every bit, of any
 * type; else the types are floating. Pieces do not overlap. */
dtr_status dtr__device_move_many(int device, const dtr__piece *pieces, size_t n, double scale,
                                 void *stream);

/* *first, on the device, becomes the number of the first NaN if that is less, counted in floats:
 * two of them in a complex element. Types that have no NaN are left alone. */
dtr_status dtr__device_find_nan(int device, const void *data, size_t count, dtr_dtype dtype,
                                uint64_t *first, void *stream);
/* The element that such a number is in. */
size_t dtr__device_nan_element(uint64_t number, dtr_dtype dtype);

#endif /* DTR_TENSOR_DEVICE_H */
