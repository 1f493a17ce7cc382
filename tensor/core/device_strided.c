/* Copies in device memory between tensors whose elements have gaps between them. */
#include "core/tensor_device.h"
#include "core/walk.h"
#include "memory/device.h"

_Static_assert(DTR__STRIDED_DIMS >= DTR_MAX_NDIM + 1, "an element may take a dimension of its own");

static void put_dim(dtr__strided_args *a, int64_t size, ptrdiff_t y_step, ptrdiff_t x_step) {
    a->size[a->ndim] = (uint64_t)size;
    a->y_step[a->ndim] = y_step;
    a->x_step[a->ndim++] = x_step;
    a->n *= (uint64_t)size;
}

/* The widest cell that everything is a multiple of; its run is the first dimension where that is
 * without gaps in both, else one element. */
static size_t cell_of(const dtr__dims *d, size_t run, int from) {
    uint64_t all = (uint64_t)run | (uint64_t)(uintptr_t)d->a | (uint64_t)(uintptr_t)d->b;
    size_t cell = 16;
    for (int k = from; k < d->ndim; k++) {
        all |= (uint64_t)d->a_step[k] | (uint64_t)d->b_step[k];
    }
    while (all % cell != 0) {
        cell /= 2;
    }
    return cell;
}

static int copy_args(const dtr__dims *d, size_t size, dtr__strided_args *a) {
    static const int kernels[] = { [1] = DTR__KERNEL_strided_u8,
                                   [2] = DTR__KERNEL_strided_u16,
                                   [4] = DTR__KERNEL_strided_u32,
                                   [8] = DTR__KERNEL_strided_u64,
                                   [16] = DTR__KERNEL_strided_u128 };
    const bool dense = d->a_step[0] == (ptrdiff_t)size && d->b_step[0] == (ptrdiff_t)size;
    const size_t run = dense ? (size_t)d->size[0] * size : size, cell = cell_of(d, run, dense);
    if (run > cell) {
        put_dim(a, (int64_t)(run / cell), (ptrdiff_t)cell, (ptrdiff_t)cell);
    }
    for (int k = dense; k < d->ndim; k++) {
        put_dim(a, d->size[k], d->a_step[k], d->b_step[k]);
    }
    return kernels[cell];
}

dtr_status dtr__device_strided_copy(dtr_tensor *dst, const dtr_tensor *src, void *stream) {
    const dtr__dims d = dtr__walk_dims(dst, src);
    dtr__strided_args a = { .y = d.a, .x = d.b, .n = 1 };
    int kernel = DTR__KERNEL_strided_cast;
    if (dst->dtype == src->dtype) {
        kernel = copy_args(&d, dtr_dtype_size(dst->dtype), &a);
    } else {
        DTR_TRY(dtr__device_check_cast(dst->dtype, src->dtype));
        a.to = (uint32_t)dtr__kernel_type(dst->dtype);
        a.from = (uint32_t)dtr__kernel_type(src->dtype);
        for (int k = 0; k < d.ndim; k++) {
            put_dim(&a, d.size[k], d.a_step[k], d.b_step[k]);
        }
    }
    a.narrow = a.n <= UINT32_MAX;
    DTR_CUDA_TRY(dtr__cuda_get()->ops->launch(dst->device.index, kernel, &a,
                                              dtr__device_blocks(a.n), stream),
                 DTR_ERR_CUDA);
    return DTR_OK;
}
