/* What the collectives layer knows of the nccl backend, and of the choice between it and stage. */
#ifndef DTR_NCCL_CALLS_H
#define DTR_NCCL_CALLS_H

#include "coll_internal.h"
#include "nccl/nccl_ops.h"

extern const dtr__backend dtr__backend_nccl;

/* NCCL of this process; looked for once, when a CUDA device can be used. */
typedef struct dtr__nccl_library {
    const dtr__nccl_ops *ops; /* NULL: cannot be used, for this reason */
    int version;              /* as 22809, 0: not known */
    char reason[256];
} dtr__nccl_library;
const dtr__nccl_library *dtr__nccl_get(void);
const char *dtr__nccl_version_text(int version, char text[16]); /* "2.28.9" */

/* What the ranks of a world have told each other of their GPUs at its creation, constant from then
 * on: all that is decided about device buffers follows from it, on every rank alike. */
typedef struct dtr__gpus dtr__gpus;
dtr_status dtr__gpus_open(dtr_world *world, dtr__gpus **gpus); /* collective, agreed */
void dtr__gpus_free(dtr__gpus *gpus);
bool dtr__gpus_all_named(const dtr__gpus *gpus); /* every rank's options have a GPU */

/* Blocks of device memory, of which NCCL is told if the settings ask for that; NULL: it is not. */
typedef struct dtr__nccl_blocks dtr__nccl_blocks;
dtr_status dtr__nccl_blocks_open(dtr_world *world, dtr__nccl_blocks **blocks);
void dtr__nccl_blocks_free(dtr__nccl_blocks *blocks);
/* Make blocks of dtr_alloc windows of the communicator of all members for this device, where NCCL
 * has such, on all ranks or on none: collective, with the same blocks as far as the program knows,
 * none of them in use (NULL: there was no memory for the list). A failure breaks the group; that
 * there are no windows is none. `way`: how NCCL knows the blocks now, "" where it does not know
 * all of them. */
#define DTR__NCCL_WAY_WINDOWS "windows"
#define DTR__NCCL_WAY_REGISTERED "registered"
dtr_status dtr__nccl_windows(dtr_group *g, int device, void *const *blocks, size_t n,
                             const char **way);
/* Adds up what the communicators of the group know. */
void dtr__nccl_memory_stats(const dtr_group *g, uint64_t *registered, uint64_t *windows);

/* Whether NCCL can serve a group, found while it is made: all members are here, group->comm is
 * ready. DTR_ERR_UNSUPPORTED, on all members, where it was named and cannot. */
dtr_status dtr__nccl_open(dtr_group *g);
/* The group is broken: what runs on its devices is to end. Any thread, any lock; does not wait. */
void dtr__nccl_stop(dtr_group *g);
/* Until NCCL has ended what it was told to stop, at most a second from then on. For waiters, which
 * keep the group from ending. */
void dtr__nccl_await_stop(dtr_group *g);
/* With the group's end, after the engine's. */
void dtr__nccl_close(dtr_group *g);

/* What was given of NCCL's limits for this group, into the options of a duplicate. */
void dtr__nccl_limits(const dtr_group *g, dtr_group_options *o);

/* Helper threads of this group left behind inside NCCL. Any thread. */
uint64_t dtr__nccl_helpers(const dtr_group *g);
/* Whether creation of this group is to connect it: a CUDA device was named, and NCCL can serve. */
bool dtr__nccl_eager(const dtr_group *g);
/* Make the communicator of all members for this device, unless it is there; collective. A failure
 * breaks the group. */
dtr_status dtr__nccl_ready(dtr_group *g, int device);

/* Whether this rank's communicator of all members for this device is ready to be split. */
bool dtr__nccl_can_split(const dtr_group *g, int device);
/* Split the parent's communicator of this device: all its ranks call this. The child, where this
 * rank is in one that NCCL serves, gets one with the ranks of `color`. */
dtr_status dtr__nccl_split(dtr_group *parent, int device, dtr_group *child, int color);

/* A checked call with device buffers, through nccl or stage. */
dtr_status dtr__device_issue(dtr_group *g, const dtr__call *c, const dtr__request *r,
                             const char *site, dtr_work **work);
/* Name of what serves device buffers: in this call or, without one, in general; "" where there can
 * be none. `why`: the reason that it is not nccl; "" if there is none to tell. */
const char *dtr__device_backend(const dtr_group *g, const dtr__call *c, const char **why);
/* dtr-info --why: prints which of the two a group would take, and why; `wanted` is the text's name
 * for CUDA. Status of the program. */
int dtr__device_why(dtr_group *g, const dtr__call *c, const char *wanted, bool one_gpu);
/* Device buffers in a coalescing scope. choose: nccl or stage for a checked call, whose limit is
 * set by that; refused as outside a scope. */
dtr_status dtr__device_choose(dtr_group *g, dtr__call *c, const dtr__request *r,
                              const dtr__backend **backend);
/* Issuing what nccl serves of a scope. begin: wait for the turn, which `end` gives back. open: a
 * part that stands for these calls, its communicator ready; NULL where NCCL refused the device.
 * launch: those of the calls whose backend nccl is, in one native group. */
dtr_status dtr__native_begin(dtr_group *g);
dtr_status dtr__native_open(dtr_group *g, int device, void *stream, dtr_work *const *calls,
                            size_t n, dtr_work **part);
dtr_status dtr__native_launch(dtr_work *part, dtr_work *whole, dtr_work *const *calls, size_t n);
void dtr__native_end(dtr_group *g);
/* dtr__device_stream_wait for a scope that has nothing but a native part. */
bool dtr__scope_stream_wait(dtr_work *whole, void *stream, dtr_status *s);

/* Make `stream` wait for a work that a backend of device buffers serves. True: it does, or has to
 * no longer; false: only the host can wait for it. */
bool dtr__device_stream_wait(dtr_work *w, void *stream, dtr_status *s);

#endif /* DTR_NCCL_CALLS_H */
