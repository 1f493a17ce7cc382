/* Backends registered by the program, behind the library's own interface. */
#ifndef DTR_USER_BACKEND_H
#define DTR_USER_BACKEND_H

#include <dtr/backend.h>

#include "core/backend.h"

enum { DTR__BACKEND_NAME = 16 }; /* bytes of a name */

typedef struct dtr__user_backend {
    dtr__backend backend; /* first: what the engine sees */
    dtr_backend_ops ops;
    uint32_t mask; /* of the devices whose buffers it takes */
    char name[DTR__BACKEND_NAME];
    struct dtr__user_backend *next; /* of the world's list, which select.c keeps */
} dtr__user_backend;

/* Checks the arguments of dtr_backend_register and makes of them a backend that is in no list yet;
 * freed with free. */
dtr_status dtr__user_backend_new(const dtr_world *world, const char *name,
                                 const dtr_backend_ops *ops, uint32_t mask,
                                 dtr__user_backend **result);
bool dtr__user_backend_is(const dtr__backend *backend);

#endif /* DTR_USER_BACKEND_H */
