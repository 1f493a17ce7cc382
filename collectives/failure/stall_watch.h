/* What the watchdog checks in a world's groups: operations that take long, ranks that disagree
 * where the backend does not compare, broken groups that the log does not show yet, and the status
 * line. */
#ifndef DTR_STALL_WATCH_H
#define DTR_STALL_WATCH_H

#include <dtr/group.h>

/* One round, on the watchdog thread. */
void dtr__stall_watch_round(dtr_world *world);
/* Log the error of a group that leaves the world's list, whose lock is held. */
void dtr__stall_watch_log_broken(dtr_group *g);

#endif /* DTR_STALL_WATCH_H */
