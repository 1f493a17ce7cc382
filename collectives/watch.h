/* What the watchdog looks at in a world's groups: operations that take long, ranks that disagree
 * where the backend does not compare, broken groups that the log has not been told of, and the
 * status line. */
#ifndef DTR_WATCH_H
#define DTR_WATCH_H

#include "coll_internal.h"

/* One look, on the watchdog thread. */
void dtr__watch_round(dtr_world *world);
/* A group that leaves the world's list, whose lock is held: its error is in the log from now on. */
void dtr__watch_broken(dtr_group *g);

#endif /* DTR_WATCH_H */
