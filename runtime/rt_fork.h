/* Descriptors that a forked child must not keep: as long as one is open anywhere, the other end
 * does not learn that this process has ended. */
#ifndef DTR_RT_FORK_H
#define DTR_RT_FORK_H

#include <stdbool.h>

/* Around the call that makes a descriptor, so that no fork comes between it and its being known.
 * `fd` below 0: it was not made. Returns it, or -1 with ENOMEM after closing it. */
void dtr__private_fd_begin(void);
int dtr__private_fd_end(int fd);
void dtr__private_fd_close(int fd);

#endif /* DTR_RT_FORK_H */
