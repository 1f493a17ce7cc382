/* A typed view of somebody's memory, passed by value. */
#ifndef DTR_BUFFER_H
#define DTR_BUFFER_H

#include <dtr/device.h>
#include <dtr/dtype.h>

DTR_BEGIN_DECLS

typedef struct dtr_buffer {
    void *data;   /* may be NULL when count is 0 */
    size_t count; /* elements */
    dtr_dtype dtype;
    dtr_device device;
} dtr_buffer;

/* Buffer of `count` elements in host memory. */
static inline dtr_buffer dtr_cpu(void *data, size_t count, dtr_dtype dtype) {
    dtr_buffer b = { data, count, dtype, { DTR_CPU, 0 } };
    return b;
}

DTR_END_DECLS

#endif /* DTR_BUFFER_H */
