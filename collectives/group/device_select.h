/* Which backend serves buffers on a device: the candidates of a group, behind those for buffers of
 * the host in its table, and the choice for a call. */
#ifndef DTR_DEVICE_SELECT_H
#define DTR_DEVICE_SELECT_H

#include "core/call.h"

/* Find the group's candidates and open them while it is made: all members are here, group->comm is
 * ready. DTR_ERR_UNSUPPORTED, on all members, where a backend was named and cannot serve it. */
dtr_status dtr__devices_open(dtr_group *g);
/* With the group's end, after the engine's. */
void dtr__devices_close(dtr_group *g);
/* Whether creation of this group is to connect it: a CUDA device was named, and NCCL can serve. */
bool dtr__devices_eager(const dtr_group *g);

/* The backend of a checked call, by its place in the group's table, and the call's limit where none
 * was given; `captured`: the call's stream captures a graph. Refuses what no backend takes. */
dtr_status dtr__device_select(dtr_group *g, dtr__call *c, const dtr__request *r, bool in_scope,
                              int *backend, bool *captured);
/* The same once that backend has found out that it cannot serve the devices. */
dtr_status dtr__device_select_again(dtr_group *g, const dtr__call *c, int *backend);
/* Name of what serves device buffers: in this call or, without one, in general; "" where there can
 * be none. `why`: the reason that it is one that goes through host memory; "" if there is none. */
const char *dtr__device_backend(const dtr_group *g, const dtr__call *c, const char **why);

/* Make blocks of dtr_alloc windows of NCCL, where it has such, on all ranks or on none: collective,
 * with the same blocks as far as the program knows, none of them in use (NULL: there was no memory
 * for the list). A failure breaks the group; that there are no windows is none. `way`: how NCCL
 * knows the blocks now, "" where it does not know all of them. */
dtr_status dtr__device_windows(dtr_group *g, int device, void *const *blocks, size_t n,
                               const char **way);

/* The size of a block that holds so many bytes and can become such a window. */
size_t dtr__device_whole(const dtr_world *world, size_t nbytes);

/* Whether operations under way use memory of a device: what dtr_free asks. */
bool dtr__call_uses(const dtr__call *c, const void *block, size_t nbytes);
bool dtr__device_memory_used(dtr_world *world, const void *block, size_t nbytes);

/* dtr-info --why: prints which backend a group would take, and why; `wanted` is the text's name for
 * CUDA. Status of the program. */
int dtr__device_explain(dtr_group *g, const dtr__call *c, const char *wanted, bool one_gpu);

#endif /* DTR_DEVICE_SELECT_H */
