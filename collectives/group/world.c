/* Creating, moving and destroying a world: the runtime's part, then the groups on top of it. */
#include "core/call_site.h"
#include "core/work.h"
#include "engine/engine.h"
#include "engine/turn.h"
#include "group/groups.h"

static dtr_status create(MPI_Comm comm, const dtr_world_options *o, const char *entry,
                         dtr_world **world) {
    int64_t began_ns = dtr__now_ns();
    if (world == NULL) { /* refused on all ranks together: nobody may be left waiting */
        return dtr__world_open(comm, o, NULL);
    }
    dtr_world *w = NULL;
    DTR_TRY(dtr__world_open(comm, o, &w));
    dtr_status s = dtr__groups_open(w);
    if (s < 0) {
        DTR_CLEAN_UP(s, dtr__world_close(w));
        return s;
    }
    dtr__trace_created(w, entry, began_ns);
    *world = w;
    return DTR_OK;
}

dtr_status dtr_world_create(const dtr_world_options *options, dtr_world **world) {
    return create(MPI_COMM_NULL, options, "dtr_world_create", world);
}

dtr_status dtr_world_create_from_comm(MPI_Comm comm, const dtr_world_options *options,
                                      dtr_world **world) {
    static const char entry[] = "dtr_world_create_from_comm";
    dtr__error_context ctx = { .operation = entry };
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    DTR_REQUIRE(initialised, &ctx, DTR_ERR_STATE,
                "%s: MPI is not initialised, so there is no communicator to use; call MPI_Init "
                "first, or dtr_world_create, which does",
                entry);
    DTR_REQUIRE(!finalised, &ctx, DTR_ERR_STATE,
                "%s: MPI_Finalize has been called; MPI cannot be started again in this process",
                entry);
    DTR_REQUIRE(comm != MPI_COMM_NULL, &ctx, DTR_ERR_ARG,
                "%s: comm is MPI_COMM_NULL; only the ranks of a communicator can make its world",
                entry);
    return create(comm, options, entry, world);
}

/* It is called in loops, so a trace has no line of it. */
dtr_status dtr_world_progress(dtr_world *world) {
    DTR_TRY(dtr__world_check(world));
    if (world->turn != NULL) {
        const dtr__call here = { .return_address = __builtin_return_address(0) };
        char site[64];
        DTR_TRY(dtr__turn_begin(world, "dtr_world_progress",
                                dtr__call_site_text(&here, site, sizeof site)));
    }
    dtr__progress_poll_all(world);
    dtr__groups_sweep(world);
    if (world->turn != NULL) {
        dtr__turn_end(world);
    }
    return DTR_OK;
}

static dtr_status world_destroy(dtr_world *world, const void *return_address) {
    if (world == NULL) {
        return DTR_OK;
    }
    DTR_TRY(dtr__world_check(world));
    dtr__error_context ctx = { .world = world, .operation = "dtr_world_destroy" };
    DTR_REQUIRE(!dtr__in_callback(world), &ctx, DTR_ERR_STATE,
                "dtr_world_destroy inside a completion callback of the same world would wait for "
                "itself; call it from the program's own thread");
    dtr__on_destroy_call(world);
    if (dtr__progress_stuck(world)) {
        dtr__world_abandon(world);
        return DTR_OK;
    }
    dtr_status s = dtr__groups_close(world, dtr__ranks_reachable(world), return_address);
    if (dtr__progress_stuck(world)) { /* it has hung meanwhile, inside what was to be closed */
        dtr__world_abandon(world);
        return s;
    }
    dtr__error_copy *cause = s < 0 ? dtr__error_save() : NULL;
    dtr_status closed = dtr__world_close(world);
    return s < 0 ? dtr__error_put_back(cause, s) : closed;
}

dtr_status dtr_world_destroy(dtr_world *world) {
    return DTR_TRACED(dtr__trace_of(world), "dtr_world_destroy", "",
                      world_destroy(world, __builtin_return_address(0)));
}
