/* Key-value exchange among the members of a group, while its backends are set up. */
#ifndef DTR_EXCHANGE_H
#define DTR_EXCHANGE_H

#include "coll_internal.h"

enum { DTR__KEY_SIZE = 64, DTR__VALUE_MAX = 4096 };

typedef struct dtr__exchange dtr__exchange;
dtr__exchange *dtr__exchange_new(dtr_world *world, uint64_t epoch); /* NULL: no memory */
void dtr__exchange_free(dtr__exchange *x, bool mpi_alive);

/* Keys are scoped by the group's uid and the device type. The right to call MPI is not held. */
dtr_status dtr__exchange_put(dtr_group *group, dtr_device_type device, const char *key,
                             const void *value, size_t nbytes);
/* The same for one member only. */
dtr_status dtr__exchange_tell(dtr_group *group, dtr_device_type device, int rank, const char *key,
                              const void *value, size_t nbytes);
/* One look: `found` says whether the key was there. */
dtr_status dtr__exchange_look(dtr_group *group, dtr_device_type device, const char *key,
                              void *value, size_t cap, size_t *nbytes, bool *found);
dtr_status dtr__exchange_get(dtr_group *group, dtr_device_type device, const char *key, void *value,
                             size_t cap, size_t *nbytes, double timeout_s);
/* Forget the group's keys that begin so; all of them. */
void dtr__exchange_forget(dtr_group *group, const char *prefix);
void dtr__exchange_drop(dtr_group *group);

#endif /* DTR_EXCHANGE_H */
