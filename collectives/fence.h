/* A barrier that was given a stream starts when the device has done what that stream held. */
#ifndef DTR_FENCE_H
#define DTR_FENCE_H

#include "engine.h"

/* Whether a call is to wait for the stream of its options. */
bool dtr__fence_wanted(const dtr__request *r);
/* An event behind what the stream holds now, for a described work without a number. */
dtr_status dtr__fence_make(dtr_group *g, dtr_work *w);
/* Progress lock held. waits: the event has not come. status: why it never will; ask when nothing
 * waits. */
bool dtr__fence_waits(const dtr_work *w);
dtr_status dtr__fence_status(const dtr_work *w);
/* What one that waits waits for; returns text. */
const char *dtr__fence_text(const dtr_work *w, char *text, size_t cap);

#endif /* DTR_FENCE_H */
