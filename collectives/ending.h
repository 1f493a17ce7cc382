/* What a rank that ends its world looks at while it waits for the others to do the same. */
#ifndef DTR_ENDING_H
#define DTR_ENDING_H

#include "coll_internal.h"

/* From here on this rank calls no operation any more; where dtr_world_destroy returns to. */
void dtr__ending_begin(dtr_world *world, const void *return_address);
/* Now and then: a group in which another rank is inside an operation that this one has not called
 * breaks with DTR_ERR_MISMATCH. Only the thread that ends the world calls it; nothing happens
 * before _begin. */
void dtr__ending_look(dtr_world *world);
/* That error, if there was one, in place of `s`. */
dtr_status dtr__ending_result(dtr_world *world, dtr_status s);

#endif /* DTR_ENDING_H */
