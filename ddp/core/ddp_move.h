/* Touching the memory of gradients and buckets: one table per kind of device. Nothing else in this
 * layer reads or writes that memory, hooks, sparse rows and sharded optimizers of the host apart.
 */
#ifndef DTR_DDP_MOVE_H
#define DTR_DDP_MOVE_H

#include "core/tensor_device.h"

typedef dtr__piece dtr__ddp_piece; /* one stretch without gaps */

/* Where a move runs. On the host all is done on return and nobody looks at it; a device queues its
 * work on the stream, one launch per call however many pieces there are. */
typedef struct dtr__ddp_at {
    int device;
    void *stream;
} dtr__ddp_at;
typedef struct dtr__ddp_mover {
    /* Zeroed memory of a bucket; *plain: not of the kind that collectives use without a copy, and
     * the last error says why. */
    dtr_status (*make)(dtr_world *world, dtr_device device, dtr_dtype dtype, int64_t count,
                       dtr_tensor **memory, bool *plain);
    /* to = from * scale, cast where the types differ. Pieces do not overlap. */
    dtr_status (*move)(const dtr__ddp_piece *pieces, size_t n, double scale, const dtr__ddp_at *at);
    /* The same of one whole tensor whose strides differ. */
    dtr_status (*walk)(dtr_tensor *to, const dtr_tensor *from, const dtr__ddp_at *at);
    dtr_status (*zero)(void *to, size_t nbytes, const dtr__ddp_at *at);
    /* Index of the first NaN, count when there is none; and a hash. Of the host only. */
    size_t (*find_nan)(const void *at, size_t count, dtr_dtype dtype);
    uint64_t (*hash)(const void *at, size_t nbytes);
} dtr__ddp_mover;
#endif /* DTR_DDP_MOVE_H */
