/* A barrier that was given a stream starts when the device has done what that stream held. */
#ifndef DTR_STREAM_DEPENDENCY_H
#define DTR_STREAM_DEPENDENCY_H

#include "engine/engine.h"

/* Whether a call is to wait for the stream of its options. */
bool dtr__stream_dependency_wanted(const dtr__request *r);
/* An event behind what the stream holds now, for a described work without a number. */
dtr_status dtr__stream_dependency_make(dtr_group *g, dtr_work *w);
/* Progress lock held. waits: the event has not come. status: why it never will; ask when nothing
 * waits. */
bool dtr__stream_dependency_waits(const dtr_work *w);
dtr_status dtr__stream_dependency_status(const dtr_work *w);
/* What one that waits waits for; returns text. */
const char *dtr__stream_dependency_text(const dtr_work *w, char *text, size_t cap);

#endif /* DTR_STREAM_DEPENDENCY_H */
