/* Whether a handle is a world. */
#include "base/world.h"

#include "base/private_fd.h"

dtr_status dtr__world_check(const dtr_world *world) {
    DTR_REQUIRE(world != NULL, NULL, DTR_ERR_ARG, "the world is NULL");
    DTR_TRY(dtr__fork_check(NULL));
    DTR_REQUIRE(world->magic != DTR__WORLD_GONE, NULL, DTR_ERR_STATE,
                "the world has been destroyed (dtr_world_destroy)");
    DTR_REQUIRE(world->magic == DTR__WORLD_MAGIC, NULL, DTR_ERR_ARG,
                "the pointer %p is not a world", (const void *)world);
    return DTR_OK;
}
