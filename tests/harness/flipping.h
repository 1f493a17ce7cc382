/* A custom backend of one kind of call, whose third allreduce gives one rank a bit that the others
 * do not have. */
#ifndef TH_FLIPPING_H
#define TH_FLIPPING_H

#include <stdbool.h>
#include <string.h>

#include <dtr/backend.h>

static bool flips_here;
static int flip_calls;

static dtr_status flip_create(const dtr_backend_args *a, void **state) {
    (void)a;
    *state = &flip_calls;
    return DTR_OK;
}

static dtr_status flip_allreduce(void *state, const dtr_backend_call *c, void **request) {
    (void)state;
    *request = NULL;
    memmove(c->out.data, c->in.data, c->in.count * dtr_dtype_size(c->in.dtype));
    ((unsigned char *)c->out.data)[7] ^= (unsigned char)(++flip_calls == 3 && flips_here);
    return DTR_OK;
}

/* here: this rank is the one. */
static inline dtr_backend_ops flipping_backend(bool here) {
    dtr_backend_ops ops = DTR_BACKEND_OPS_INIT;
    flips_here = here;
    ops.create = flip_create;
    ops.allreduce = flip_allreduce;
    return ops;
}

#endif /* TH_FLIPPING_H */
