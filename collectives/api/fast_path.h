/* The fast path: blocking operations of little data that a program calls again and again.
 *
 * The first call with a signature goes the ordinary way. What that found out - that its arguments
 * are good, its fingerprint, its backend, the text of its record - stays with the group. The next
 * call from the same call site with the same arguments only takes its numbers, shows its data, is
 * noted in the recording while the others' data is on its way, and looks for them for a moment.
 * Whatever is not over by then, and whatever is unusual, becomes an ordinary work that the engine
 * ends. */
#ifndef DTR_FAST_PATH_H
#define DTR_FAST_PATH_H

#include "core/call.h"
#include "engine/fast_entry.h"

/* True when the call has been served here, with its status. No lock held. */
bool dtr__fast_path_call(dtr_group *g, const dtr__request *r, dtr_status *status);
/* The same of a message whose caller gets a work. Below, nothing waits for others: what cannot be
 * over at once is moved like any other work. */
bool dtr__fast_path_issue(dtr_group *g, const dtr__request *r, dtr_work **work, dtr_status *status);
/* Such a message that `w` has begun may come again. No lock held. */
void dtr__fast_path_learn_message(dtr_group *g, const dtr__request *r, const dtr_work *w,
                                  int backend);
/* A call that `w` has just ended well may come again. Progress lock held. */
void dtr__fast_path_learn(dtr_group *g, const dtr__request *r, const dtr_work *w, int backend);

#endif /* DTR_FAST_PATH_H */
