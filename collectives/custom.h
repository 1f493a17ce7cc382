/* Backends registered by the program, behind the library's own interface. */
#ifndef DTR_CUSTOM_H
#define DTR_CUSTOM_H

#include <dtr/backend.h>

#include "coll_internal.h"

/* Registrations of a world, guarded by groups->lock; freed with the world. */
typedef struct dtr__custom dtr__custom;

/* The registered backend of that name (any case), NULL: none. Its device mask in *mask. */
const dtr__backend *dtr__custom_find(const dtr_world *world, const char *name, uint32_t *mask);
/* "toy, other" appended behind what is in `text`. */
void dtr__custom_names(const dtr_world *world, char *text, size_t cap);
bool dtr__custom_is(const dtr__backend *backend);
void dtr__custom_free(dtr__custom *list);

#endif /* DTR_CUSTOM_H */
