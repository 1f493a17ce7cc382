/* What a rank that destroys its world checks while it waits for the others to do the same. */
#ifndef DTR_EARLY_DESTROY_H
#define DTR_EARLY_DESTROY_H

#include <dtr/world.h>

/* From here on this rank calls no operation any more; where dtr_world_destroy returns to. */
void dtr__early_destroy_begin(dtr_world *world, const void *return_address);
/* Now and then: a group in which another rank is inside an operation that this one has not called
 * breaks with DTR_ERR_MISMATCH. Only the thread that ends the world calls it; nothing happens
 * before _begin. */
void dtr__early_destroy_check(dtr_world *world);
/* That error, if there was one, in place of `s`. */
dtr_status dtr__early_destroy_result(dtr_world *world, dtr_status s);

#endif /* DTR_EARLY_DESTROY_H */
