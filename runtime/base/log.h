/* The log of a world: "[rankN]: level: text", one write per line, to log_fn, DTR_LOG_FILE or
 * stderr. */
#ifndef DTR_RT_LOG_H
#define DTR_RT_LOG_H

#include "base/world.h"

dtr_status dtr__log_open(dtr_world *world, const dtr_world_options *o);
void dtr__log_close(dtr_world *world);
/* From now on this thread drops a line that would have to wait for a full pipe or a held terminal.
 */
void dtr__log_never_wait(void);
bool dtr__log_may_wait(void); /* false on such a thread */
/* The path that a pattern with %r, %h and %p stands for on this rank. */
void dtr__log_expand(const dtr_world *world, const char *pattern, char *path, size_t cap);

void dtr__log_line(const dtr_world *world /* NULL: stderr, no rank */, int level, const char *fmt,
                   ...) DTR_PRINTF(3, 4);
bool dtr__log_on(const dtr_world *world, int level);
#define DTR_WARN(world, ...) dtr__log_line((world), DTR_LOG_WARN, __VA_ARGS__)
#define DTR_INFO(world, ...)                                   \
    do {                                                       \
        if (dtr__log_on((world), DTR_LOG_INFO)) {              \
            dtr__log_line((world), DTR_LOG_INFO, __VA_ARGS__); \
        }                                                      \
    } while (0)

#endif /* DTR_RT_LOG_H */
