/* Operators of the program (dtr_op_create): the slots of the process that hold them, and reducing
 * with one. A handle is DTR_USER_OP, a serial number that is never used twice, and its slot, so
 * that one which has been freed is known as such. */
#ifndef DTR_USER_OPS_H
#define DTR_USER_OPS_H

#include <dtr/coll.h>

enum { DTR__USER_OPS = 64 }; /* slots */

typedef struct dtr__user_op {
    void (*fn)(void *inout, const void *in, size_t count, dtr_dtype dtype, void *arg);
    void *arg;
    bool commutes;
    const dtr_world *world;
    uint32_t number; /* of those its world has made: what ranks agree on */
} dtr__user_op;

static inline bool dtr__op_is_user(dtr_op op) {
    return __builtin_expect((unsigned)op >= DTR_USER_OP, 0);
}

/* Into a free slot; false: there is none. */
bool dtr__user_op_make(const dtr__user_op *facts, dtr_op *op);
/* False: it has been freed, or there never was such an operator. */
bool dtr__user_op_find(dtr_op op, dtr__user_op *facts);
/* Between the two it cannot be freed. False: it has been. What a world's end has freed may still be
 * given back. */
bool dtr__user_op_take(dtr_op op);
void dtr__user_op_give(dtr_op op);
/* False: something uses it, and it stays. */
bool dtr__user_op_free(dtr_op op);
/* All of a world, which is about to end. */
void dtr__user_ops_free(const dtr_world *world);

/* What ranks must have alike, as one number. */
uint64_t dtr__user_op_agreed(dtr_op op);
bool dtr__user_op_commutes(dtr_op op);

/* dtr__reduce_piece for such an operator: one application after the other in the order of the
 * sources. Of one that is no longer there, as after the failure of a group, nothing is done. */
void dtr__user_reduce(void *const *dst, int n_dst, const void *const *src, int n, size_t count,
                      dtr_dtype dtype, dtr_op op);
/* How many of them this thread is inside. */
extern _Thread_local unsigned dtr__user_op_depth
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

#endif /* DTR_USER_OPS_H */
