/* What the collectives layer knows of the nccl backend, beside its table. */
#ifndef DTR_NCCL_CALLS_H
#define DTR_NCCL_CALLS_H

#include "backends/nccl/nccl_ops.h"
#include "core/backend.h"
#include "core/call.h"

extern const dtr__backend dtr__backend_nccl;

/* NCCL of this process; looked for once, when a CUDA device can be used. */
typedef struct dtr__nccl_library {
    const dtr__nccl_ops *ops; /* NULL: cannot be used, for this reason */
    int version;              /* as 22809, 0: not known */
    char reason[256];
} dtr__nccl_library;
const dtr__nccl_library *dtr__nccl_get(void);
const char *dtr__nccl_version_text(int version, char text[16]); /* "2.28.9" */

/* Blocks of device memory, which are registered with NCCL if the settings ask for that; NULL: they
 * are not. */
typedef struct dtr__nccl_blocks dtr__nccl_blocks;
dtr_status dtr__nccl_blocks_open(dtr_world *world, dtr__nccl_blocks **blocks);
/* What the runtime then calls for blocks on a device, see memory/device.h. */
void *dtr__nccl_memory_take(dtr_world *world, int device, size_t nbytes);
dtr_status dtr__nccl_memory_give(int device, void *ptr);
void dtr__nccl_memory_begins(dtr_world *world, int device, void *ptr, size_t nbytes, bool own);
void dtr__nccl_memory_ends(dtr_world *world, void *ptr, size_t nbytes);
void dtr__nccl_blocks_free(dtr__nccl_blocks *blocks);
/* The size of a block that holds so many bytes and can become a window. */
size_t dtr__nccl_whole(const dtr_world *world, size_t nbytes);

/* Make blocks of dtr_alloc windows of the communicator of all members for this device, if they are
 * wanted: group/device_select.h says how. `way`: how NCCL knows the blocks now. */
#define DTR__NCCL_WAY_WINDOWS "windows"
#define DTR__NCCL_WAY_REGISTERED "registered"
dtr_status dtr__nccl_windows(dtr_group *g, int device, void *const *blocks, size_t n, bool wanted,
                             const char **way);
/* Adds up what the communicators of the group know. */
void dtr__nccl_memory_stats(const dtr_group *g, uint64_t *registered, uint64_t *windows);

/* Whether it serves a call in a group of `size` ranks; `copies`: a group of one that names no
 * backend, for which NCCL itself (`ops`) is not needed. `why`: what it says against it. */
bool dtr__nccl_can(const dtr__nccl_ops *ops, int size, bool copies, const dtr__call *c,
                   const char **why);

/* What was given of NCCL's limits for this group, into the options of a duplicate. */
void dtr__nccl_limits(const dtr_group *g, dtr_group_options *o);

/* Helper threads of this group left behind inside NCCL. Any thread. */
uint64_t dtr__nccl_helpers(const dtr_group *g);

/* Whether a graph of the program holds operations of this group. CUDA tells of a graph's end a
 * while later, for which this waits a second. */
bool dtr__nccl_in_graphs(const dtr_group *g);

/* Make the communicator of all members for this device, unless it is there; collective. A failure
 * breaks the group. */
dtr_status dtr__nccl_ready(dtr_group *g, int device);

/* NCCL's handle of that communicator; DTR_ERR_STATE where it is not there yet. */
dtr_status dtr__nccl_handle(dtr_group *g, int device, const char *entry, void **handle);

/* Whether this rank's communicator of all members for this device is ready to be split. */
bool dtr__nccl_can_split(const dtr_group *g, int device);
/* Split the parent's communicator of this device: all its ranks call this. The child, where this
 * rank is in one that NCCL serves, gets one with the ranks of `color`. */
dtr_status dtr__nccl_split(dtr_group *parent, int device, dtr_group *child, int color);

/* Whether the call's stream captures a graph. Asked before anything else is done. */
dtr_status dtr__nccl_capture_poll(const dtr_group *g, const dtr__call *c, bool *captured);

#endif /* DTR_NCCL_CALLS_H */
