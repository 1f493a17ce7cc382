/* Works whose parts come in stages: the next stage begins when all parts of the last one have
 * ended. */
#ifndef DTR_STAGED_H
#define DTR_STAGED_H

#include "engine/engine.h"

typedef struct dtr__staged {
    dtr__composite composite;
    dtr_group *group;
    /* Adds the parts of stage `stage`, which may be none, or sets *done. */
    dtr_status (*next)(dtr_work *whole, struct dtr__staged *self, bool *done);
    void (*free)(struct dtr__staged *self); /* all but the parts */
    /* Progress lock. */
    uint64_t stage;
    int source;       /* whom the first part of the last stage has received from */
    dtr_work **parts; /* of this stage */
    size_t n_parts, cap_parts, left;
} dtr__staged;

void dtr__staged_init(dtr__staged *s, dtr_group *g,
                      dtr_status (*next)(dtr_work *whole, dtr__staged *self, bool *done),
                      void (*free)(dtr__staged *self));
/* One more part, called where the whole was. Point to point parts of a stage run all at once,
 * collectives one after another. */
dtr_status dtr__staged_add(const dtr_work *whole, dtr__staged *s, dtr__call c);

/* Members of the table of a backend of such works, whose `start` is progress, too. */
dtr_status dtr__staged_progress(dtr_group *g, void *state, dtr_work *whole, bool *done);
void dtr__staged_cancel(dtr_group *g, void *state, dtr_work *whole);
const char *dtr__staged_waits_for(dtr_group *g, void *state, dtr_work *whole, char *text,
                                  size_t cap);

#endif /* DTR_STAGED_H */
