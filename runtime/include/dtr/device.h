/* Devices and memory. */
#ifndef DTR_DEVICE_H
#define DTR_DEVICE_H

#include <dtr/status.h>

DTR_BEGIN_DECLS

typedef enum dtr_device_type { DTR_CPU = 0, DTR_CUDA = 1 } dtr_device_type;

/* {DTR_CPU, 0} is the host; there is no other CPU index. */
typedef struct dtr_device {
    dtr_device_type type;
    int index;
} dtr_device;

typedef enum dtr_mem {
    DTR_MEM_DEFAULT,
    DTR_MEM_PINNED, /* page-locked for device copies; plain memory on a host without CUDA */
    DTR_MEM_SHARED  /* node-shared: collectives on one node run without copies */
} dtr_mem;

/** Number of usable devices of a type: 1 for DTR_CPU, the number of visible GPUs for DTR_CUDA (0
 * without CUDA).
 *  @collective no
 *  @blocking no
 *  @gpu counts devices, touches none
 *  @errors none; 0 for a type outside the enum
 *  @since 0.1 */
DTR_API int dtr_device_count(dtr_device_type type);

/** Allocate `nbytes` of memory of a kind, aligned to 64 bytes, zeroed only where the kernel gives
 * fresh pages. nbytes == 0 gives a valid pointer to nothing.
 *  @collective no; any thread
 *  @blocking no
 *  @gpu makes the device current for the call only
 *  @errors DTR_ERR_ARG (NULL, kind), DTR_ERR_DEVICE (no such device), DTR_ERR_UNSUPPORTED (kind on
 * that device), DTR_ERR_NOMEM (naming the size, and for shared memory the option that raises the
 * limit)
 *  @since 0.1 */
DTR_API dtr_status dtr_alloc(dtr_world *w, dtr_device d, dtr_mem kind, size_t nbytes, void **ptr);

/** Give back memory of dtr_alloc; NULL is DTR_OK. Memory still held at dtr_world_destroy is freed
 * there with one warning.
 *  @collective no; any thread, no operation may still use the memory
 *  @blocking device and pinned memory: until the device has finished what was given to it before
 *  @gpu makes the device current for the call only
 *  @errors DTR_ERR_ARG when w is NULL or the pointer is not from dtr_alloc of this world;
 * DTR_ERR_CUDA
 *  @since 0.1 */
DTR_API dtr_status dtr_free(dtr_world *w, void *ptr);

DTR_END_DECLS

#endif /* DTR_DEVICE_H */
