/** @file
 * Devices and memory. */
#ifndef DTR_DEVICE_H
#define DTR_DEVICE_H

#include <dtr/status.h>

DTR_BEGIN_DECLS

typedef enum dtr_device_type { DTR_CPU = 0, DTR_CUDA = 1 } dtr_device_type;

/** {DTR_CPU, 0} is the host; there is no other CPU index. */
typedef struct dtr_device {
    dtr_device_type type;
    int index;
} dtr_device;

typedef enum dtr_mem {
    DTR_MEM_DEFAULT,
    DTR_MEM_PINNED, /**< page-locked for device copies; plain memory on a host without CUDA */
    DTR_MEM_SHARED /**< node-shared: the ranks of the node read it where it lies; plain memory where
                      the node cannot share */
} dtr_mem;

/** Number of usable devices of a type: 1 for DTR_CPU, the number of visible GPUs for DTR_CUDA (0
 * without CUDA).
 *  @collective no  @blocking no
 *  @gpu counts devices, touches none
 *  @errors none; 0 for a type outside the enum  @since 0.1 */
DTR_API int dtr_device_count(dtr_device_type type);

/** Allocate `nbytes` of memory of a kind, aligned to 64 bytes, zeroed only where the kernel gives
 * fresh pages. nbytes == 0 gives a valid pointer to nothing.
 *  @collective no; any thread  @blocking no
 *  @gpu makes the device current for the call only
 *  @errors DTR_ERR_ARG (NULL, kind), DTR_ERR_DEVICE (no such device), DTR_ERR_UNSUPPORTED (kind on
 * that device), DTR_ERR_NOMEM (naming the size, and for shared memory the option that raises the
 * limit)
 *  @since 0.1 */
DTR_API dtr_status dtr_alloc(dtr_world *w, dtr_device d, dtr_mem kind, size_t nbytes, void **ptr);

/** Give back memory of dtr_alloc; NULL is DTR_OK. Memory still held at dtr_world_destroy is freed
 * there with one warning. A block that dtr_retain was called for needs no world: w may be NULL.
 *  @collective no; any thread. No operation may still use host memory; a block of a device that one
 * uses is freed later, when it has ended
 *  @blocking device and pinned memory: until the device has finished what was given to it before;
 * not where the block is freed later
 *  @gpu makes the device current for the call only
 *  @errors DTR_ERR_ARG when the pointer is not from dtr_alloc of this world, or w is NULL and the
 * block is not a retained one; DTR_ERR_CUDA
 *  @since 0.1 */
DTR_API dtr_status dtr_free(dtr_world *w, void *ptr);

/** Let a block of dtr_alloc outlive its world, for owners that are not told when the world ends
 * (collectors of garbage, caches): dtr_world_destroy neither frees it nor warns of it, its pointer
 * stays good, and dtr_free(NULL, ptr) gives it back, before that or after, but not while another
 * thread is in dtr_world_destroy. To the worlds that follow it is plain memory. A second call for a
 * block is DTR_OK.
 *  @collective no; any thread  @blocking no
 *  @gpu no
 *  @errors DTR_ERR_ARG when the pointer is not from dtr_alloc of this world; DTR_ERR_NOMEM
 *  @since 0.1 */
DTR_API dtr_status dtr_retain(dtr_world *w, void *ptr);

/** Where a rank of this node has its part of what `shared` points into, as an address of this
 * process: plain loads and stores reach the peer's memory. `shared` is any address in a block that
 * dtr_alloc gave this rank as DTR_MEM_SHARED in this world; when that was its n-th call for such
 * memory, the result is the same offset in the block of the n-th call of the peer, so that ranks
 * which allocate the same blocks in the same order reach each other's without an exchange. Tensors
 * in node-shared memory, and what modules and sharded optimizers take of it, count as well.
 *
 * NULL where the node cannot share memory, where `shared` lies in no such block, and where the peer
 * has no block of that number yet or any more, or one of another size; dtr_last_error_message says
 * which. dtr_alloc is a local call: between it and this one the ranks need a dtr_node_barrier. For
 * the own rank the result is `shared`.
 *
 * The address stays mapped until dtr_world_destroy on this rank, also when the peer has ended. What
 * is there is the peer's block until the peer frees it; let a dtr_node_barrier stand before that,
 * because its place may be given to another block. When an operation that stores into the block has
 * failed, pages of it may be the peer's alone afterwards (a warning says so): ask again.
 *  @collective no; any thread  @blocking no
 *  @gpu no
 *  @errors NULL, with the reason as the thread's last error: DTR_ERR_ARG (NULL world, `shared`),
 * DTR_ERR_RANK (no rank of the node), DTR_ERR_UNSUPPORTED, DTR_ERR_STATE (no such block, destroyed
 * world), DTR_ERR_MISMATCH (another size)
 *  @since 0.1 */
DTR_API void *dtr_peer_pointer(dtr_world *world, const void *shared, int local_rank);

DTR_END_DECLS

#endif /* DTR_DEVICE_H */
