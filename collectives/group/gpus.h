/* What the ranks of a world and of a group have sent each other about their GPUs when it was made,
 * constant from then on. Every decision about device buffers follows from it, so all ranks decide
 * alike. */
#ifndef DTR_GPUS_H
#define DTR_GPUS_H

#include <stdbool.h>
#include <stddef.h>

#include <dtr/group.h>

typedef struct dtr__gpus dtr__gpus;
dtr_status dtr__gpus_open(dtr_world *world, dtr__gpus **gpus); /* collective, agreed */
void dtr__gpus_free(dtr__gpus *gpus);
bool dtr__gpus_all_named(const dtr__gpus *gpus); /* every rank's options have a GPU */

/* ---- of a group ---- */
bool dtr__gpus_usable(const dtr_group *g); /* this rank can have a device buffer */
/* Whether NCCL can serve the group; `why` not; and backends.windows. Collective, because which
 * devices the members use is known to each of them only. */
dtr_status dtr__gpus_serve_nccl(dtr_group *g, char *why, size_t cap, bool *serve);

#endif /* DTR_GPUS_H */
