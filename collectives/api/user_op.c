/* Operators of the program: making and freeing them. What they do is kernels/user_ops.h. */
#include "core/op.h"
#include "core/team.h"
#include "kernels/user_ops.h"

dtr_status dtr_op_create(dtr_world *world,
                         void (*fn)(void *inout, const void *in, size_t count, dtr_dtype dtype,
                                    void *arg),
                         void *arg, bool commutes, dtr_op *op) {
    DTR_TRY(dtr__world_check(world));
    dtr__error_context ctx = { .world = world, .operation = "dtr_op_create" };
    DTR_REQUIRE(fn != NULL, &ctx, DTR_ERR_ARG, "dtr_op_create: fn is NULL");
    DTR_REQUIRE(op != NULL, &ctx, DTR_ERR_ARG, "dtr_op_create: op is NULL");
    dtr__groups *gs = world->groups;
    dtr__user_op is = { .fn = fn, .arg = arg, .commutes = commutes, .world = world };
    pthread_mutex_lock(&gs->lock);
    is.number = gs->user_ops;
    const bool made = dtr__user_op_make(&is, op);
    gs->user_ops += made;
    pthread_mutex_unlock(&gs->lock);
    DTR_REQUIRE(made, &ctx, DTR_ERR_NOMEM,
                "dtr_op_create: this process has %d operators of its own already; free some with "
                "dtr_op_free",
                DTR__USER_OPS);
    return DTR_OK;
}

dtr_status dtr_op_free(dtr_world *world, dtr_op op) {
    DTR_TRY(dtr__world_check(world));
    dtr__error_context ctx = { .world = world, .operation = "dtr_op_free" };
    dtr__user_op is;
    DTR_REQUIRE(dtr__op_is_user(op), &ctx, DTR_ERR_ARG,
                "dtr_op_free: op is %d (%s), which dtr_op_create has not made", (int)op,
                dtr__op_name(op));
    DTR_REQUIRE(dtr__user_op_find(op, &is), &ctx, DTR_ERR_ARG,
                "dtr_op_free: op is 0x%x, an operator that has been freed, or none of "
                "dtr_op_create",
                (unsigned)op);
    DTR_REQUIRE(is.world == world, &ctx, DTR_ERR_ARG, "dtr_op_free: op is %s of another world",
                dtr__op_name(op));
    DTR_REQUIRE(dtr__user_op_free(op), &ctx, DTR_ERR_STATE,
                "dtr_op_free: an unfinished operation uses %s; wait for it first",
                dtr__op_name(op));
    return DTR_OK;
}
