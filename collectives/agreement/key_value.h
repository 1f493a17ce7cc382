/* Key-value exchange among the members of a group: while its backends are set up, and for the
 * monitored barrier. */
#ifndef DTR_KEY_VALUE_H
#define DTR_KEY_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <dtr/group.h>

enum { DTR__KEY_SIZE = 64, DTR__VALUE_MAX = 4096 };

typedef struct dtr__key_values dtr__key_values;
dtr__key_values *dtr__key_values_new(dtr_world *world, uint64_t epoch); /* NULL: no memory */
void dtr__key_values_free(dtr__key_values *x, bool mpi_alive);

/* Keys are scoped by the group's uid and the device type. The right to call MPI is not held. */
dtr_status dtr__key_value_put(dtr_group *group, dtr_device_type device, const char *key,
                              const void *value, size_t nbytes);
/* The same for one member only. */
dtr_status dtr__key_value_put_to(dtr_group *group, dtr_device_type device, int rank,
                                 const char *key, const void *value, size_t nbytes);
/* Poll once: `found` tells whether the key was there. */
dtr_status dtr__key_value_poll(dtr_group *group, dtr_device_type device, const char *key,
                               void *value, size_t cap, size_t *nbytes, bool *found);
dtr_status dtr__key_value_get(dtr_group *group, dtr_device_type device, const char *key,
                              void *value, size_t cap, size_t *nbytes, double timeout_s);
/* For callers with a limit of their own, who must not wait for a thread that may hang: keys of the
 * CPU, values of any length; false where the right to call MPI is not free just now. try_put: to
 * one member, or with -1 to all; what cannot be sent is lost. */
bool dtr__key_value_try_put(dtr_group *group, int rank, const char *key, const void *value,
                            size_t nbytes);
bool dtr__key_value_try_poll(dtr_group *group, const char *key, void *value, size_t cap,
                             size_t *nbytes, bool *found);
/* True when nothing that any group has put is on its way any more. */
bool dtr__key_value_sent(dtr_group *group);
/* Forget the group's keys that begin so; all of them. */
void dtr__key_value_forget(dtr_group *group, const char *prefix);
void dtr__key_value_drop(dtr_group *group);

#endif /* DTR_KEY_VALUE_H */
