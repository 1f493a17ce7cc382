/* How a program waits for works: what dtr_work_wait and the calls for several works share. */
#ifndef DTR_ENGINE_WAIT_H
#define DTR_ENGINE_WAIT_H

#include "core/work.h"
#include "diagnosis/trace.h"

typedef struct dtr__waiter {
    const char *entry;
    bool host; /* on a device too, where a wait orders streams */
    void *stream;
    dtr_work *const *others; /* NULL, or works of other worlds that must move as well */
    size_t n_others;
} dtr__waiter;

static inline bool dtr__work_is_done(const dtr_work *w) {
    return atomic_load_explicit(&w->done, memory_order_acquire) != 0;
}
bool dtr__work_is_final(const dtr_work *w);
bool dtr__work_is_captured(const dtr_work *w);

/* The refusals of a wait; `entry` is the call that they name. */
dtr_status dtr__work_check_recorded(const dtr_work *w, const char *entry);
dtr_status dtr__work_check_callback(const dtr_work *w, const char *entry);
dtr_status dtr__work_refuse_captured(const dtr_work *w, const char *entry);
/* Below MPI_THREAD_MULTIPLE; what was taken ends with dtr__turn_end. */
dtr_status dtr__work_take_turn(const dtr_work *w, const char *entry);

/* One work, any of the ways of dtr/work.h. */
dtr_status dtr__work_wait(dtr_work *w, double timeout_s, const dtr__waiter *how);
/* The limit of an unfinished work becomes timeout_s seconds from `from` on, which for a wait that
 * only orders streams is when the operation was called. */
void dtr__work_set_limit(dtr_work *w, double timeout_s, double from);
double dtr__work_limit_counts_from(const dtr_work *w, bool host);
/* The program is about to hear that `w`, which is done, has failed: wait until what it has posted
 * is cancelled, a second at most, for which another thread may be on its way. */
void dtr__work_let_go(dtr_work *w);
/* Block until `w` is done, and move the worlds of the others, too. */
void dtr__work_block_among(dtr_work *w, dtr_work *const *others, size_t n_others);

/* NULL for what needs no communication any more. */
dtr__trace *dtr__work_trace(const dtr_work *w);
void *dtr__work_own_stream(const dtr_work *w);

#endif /* DTR_ENGINE_WAIT_H */
