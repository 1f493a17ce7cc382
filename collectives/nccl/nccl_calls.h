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

/* Whether NCCL can serve a group, found while it is made: all members are here, group->comm is
 * ready. DTR_ERR_UNSUPPORTED, on all members, where it was named and cannot. */
dtr_status dtr__nccl_open(dtr_group *g);
/* The group is broken: what runs on its devices is to end. Any thread, any lock; does not wait. */
void dtr__nccl_stop(dtr_group *g);
/* With the group's end, after the engine's. */
void dtr__nccl_close(dtr_group *g);

/* A checked call with device buffers, through nccl or stage. */
dtr_status dtr__device_issue(dtr_group *g, const dtr__call *c, const dtr__request *r,
                             const char *site, dtr_work **work);
/* dtr-info --why: prints which of the two a group would take, and why; `wanted` is the text's name
 * for CUDA. Status of the program. */
int dtr__device_why(dtr_group *g, const dtr__call *c, const char *wanted, bool one_gpu);
/* Make `stream` wait for a work that a backend of device buffers serves. True: it does, or has to
 * no longer; false: only the host can wait for it. */
bool dtr__device_stream_wait(dtr_work *w, void *stream, dtr_status *s);

#endif /* DTR_NCCL_CALLS_H */
