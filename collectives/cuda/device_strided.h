/* Bodies of the kernels that go over elements with gaps between them. */
#ifndef DTR_DEVICE_STRIDED_H
#define DTR_DEVICE_STRIDED_H

#include "device_bodies.h"

/* Where cell i lies in both, in bytes. */
DTR__BODY void dtr__strided_place(const dtr__strided_args *a, uint64_t i, int64_t *y, int64_t *x) {
    *y = *x = 0;
    DTR__UNROLL_1
    for (uint32_t d = 0; d + 1 < a->ndim; d++) {
        const uint64_t size = a->size[d];
        const uint64_t rest = a->narrow ? (uint32_t)i / (uint32_t)size : i / size;
        const int64_t index = (int64_t)(i - rest * size);
        *y += index * a->y_step[d];
        *x += index * a->x_step[d];
        i = rest;
    }
    if (a->ndim > 0) {
        *y += (int64_t)i * a->y_step[a->ndim - 1];
        *x += (int64_t)i * a->x_step[a->ndim - 1];
    }
}

typedef dtr__words dtr__cell_u128;
typedef uint64_t dtr__cell_u64;
typedef uint32_t dtr__cell_u32;
typedef uint16_t dtr__cell_u16;
typedef uint8_t dtr__cell_u8;

#define DTR__DEFINE_STRIDED(name, statement)                                          \
    DTR__BODY void dtr__body_strided_##name(const dtr__strided_args *a, uint64_t tid, \
                                            uint64_t threads) {                       \
        char *to = (char *)DTR__TOUCH(a->y);                                          \
        const char *from = (const char *)DTR__TOUCH(a->x);                            \
        for (uint64_t i = tid; i < a->n; i += threads) {                              \
            int64_t y, x;                                                             \
            dtr__strided_place(a, i, &y, &x);                                         \
            statement;                                                                \
        }                                                                             \
    }
#define DTR__DEFINE_STRIDED_COPY(name) \
    DTR__DEFINE_STRIDED(name, *(dtr__cell_##name *)(to + y) = *(const dtr__cell_##name *)(from + x))
DTR__DEFINE_STRIDED_COPY(u8)
DTR__DEFINE_STRIDED_COPY(u16)
DTR__DEFINE_STRIDED_COPY(u32)
DTR__DEFINE_STRIDED_COPY(u64)
DTR__DEFINE_STRIDED_COPY(u128)

/* A double holds a number of each type. */
#define DTR__CASE_GET(t, c)    \
    case DTR__KERNEL_TYPE_##t: \
        return dtr__get_##t(*(const dtr__cell_##t *)at);
#define DTR__CASE_PUT(t, c)                     \
    case DTR__KERNEL_TYPE_##t:                  \
        *(dtr__cell_##t *)at = dtr__put_##t(v); \
        break;
DTR__BODY double dtr__get_any(uint32_t type, const char *at) {
    switch (type) {
        DTR__KERNEL_TYPES(DTR__CASE_GET)
    default:
        return 0;
    }
}
DTR__BODY void dtr__put_any(uint32_t type, char *at, double v) {
    switch (type) {
        DTR__KERNEL_TYPES(DTR__CASE_PUT)
    default:
        break;
    }
}
DTR__DEFINE_STRIDED(cast, dtr__put_any(a->to, to + y, dtr__get_any(a->from, from + x)))

#endif /* DTR_DEVICE_STRIDED_H */
