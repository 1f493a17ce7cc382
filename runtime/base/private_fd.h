/* What a forked child may do with what it has inherited: nothing. Every handle is dead there, and
 * descriptors that it must not keep are closed. */
#ifndef DTR_RT_FORK_H
#define DTR_RT_FORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <dtr/status.h>

/* Points to 1 in a process that is a rank, or none yet, and to 0 in what was forked from one: the
 * kernel clears that page in a child however it was made. */
extern const _Atomic uint32_t *dtr__own_process __attribute__((visibility("hidden")));
static inline bool dtr__is_forked(void) {
    return __builtin_expect(atomic_load_explicit(dtr__own_process, memory_order_relaxed) == 0, 0);
}
/* DTR_ERR_STATE in a forked child, with a message that begins with `entry` unless it is NULL. */
dtr_status dtr__fork_error(const char *entry);
static inline dtr_status dtr__fork_check(const char *entry) {
    return dtr__is_forked() ? dtr__fork_error(entry) : DTR_OK;
}
/* From here on a forked child is recognised as one. Called before a world owns anything. */
void dtr__fork_watch(int world_rank);

/* Descriptors that a forked child must not keep: as long as one is open anywhere, the other end
 * does not learn that this process has ended, and memory of the node is not given back.
 * Around the call that makes a descriptor, so that no fork comes between it and its being known.
 * `fd` below 0: it was not made. Returns it, or -1 with ENOMEM after closing it. */
void dtr__private_fd_begin(void);
int dtr__private_fd_end(int fd);
void dtr__private_fd_close(int fd);

#endif /* DTR_RT_FORK_H */
