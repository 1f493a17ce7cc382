/** @file
 * A typed view of somebody's memory, passed by value. */
#ifndef DTR_BUFFER_H
#define DTR_BUFFER_H

#include <string.h>

#include <dtr/device.h>
#include <dtr/dtype.h>

DTR_BEGIN_DECLS

/** Value of dtr_buffer.access. */
enum { DTR_READ_ONLY = 0x72642d6f };

/** Memory, how many elements of which type it holds, and where it is. */
typedef struct dtr_buffer {
    void *data;   /**< may be NULL when count is 0 */
    size_t count; /**< elements */
    dtr_dtype dtype;
    dtr_device device;
    uint32_t access; /**< DTR_READ_ONLY: a call that would write here is DTR_ERR_ARG; anything else:
                        read and write. A buffer set up without it means the same */
} dtr_buffer;

/** Buffer of `count` elements in host memory. */
static inline dtr_buffer dtr_cpu(void *data, size_t count, dtr_dtype dtype) {
    dtr_buffer b = { data, count, dtype, { DTR_CPU, 0 }, 0 };
    return b;
}

/** Buffer of `count` elements in memory of CUDA device `index`. */
static inline dtr_buffer dtr_cuda(void *data, size_t count, dtr_dtype dtype, int index) {
    dtr_buffer b = { data, count, dtype, { DTR_CUDA, 0 }, 0 };
    b.device.index = index;
    return b;
}

/** As dtr_cpu, of memory that is only read: an input, the buffer of a send, of a broadcast at its
 * root. */
static inline dtr_buffer dtr_cpu_in(const void *data, size_t count, dtr_dtype dtype) {
    dtr_buffer b = { NULL, count, dtype, { DTR_CPU, 0 }, DTR_READ_ONLY };
    memcpy(&b.data, &data, sizeof b.data); /* a cast would be a warning of some compilers */
    return b;
}

/** As dtr_cuda, of memory that is only read. */
static inline dtr_buffer dtr_cuda_in(const void *data, size_t count, dtr_dtype dtype, int index) {
    dtr_buffer b = dtr_cpu_in(data, count, dtype);
    b.device.type = DTR_CUDA;
    b.device.index = index;
    return b;
}

DTR_END_DECLS

#endif /* DTR_BUFFER_H */
