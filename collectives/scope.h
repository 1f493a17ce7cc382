/* A coalescing scope: calls recorded between dtr_coalesce_begin and _end, run as one work. */
#ifndef DTR_SCOPE_H
#define DTR_SCOPE_H

#include "engine.h"

/* Memory that a recorded call reads or writes. */
typedef struct dtr__span {
    uintptr_t from, to;
    size_t call;
    bool writes;
} dtr__span;

/* Memory of a pack. After a failure it waits for the group's end like the last steps of calls,
 * because the transport may still touch it. */
typedef struct dtr__pack {
    dtr__finish finish;
    _Alignas(64) char data[];
} dtr__pack;

/* A collective to run: one call, or several small neighbours packed into one. */
typedef struct dtr__run {
    dtr_work *work;
    size_t first, count; /* of scope->calls */
    dtr__pack *pack;     /* of several calls, whose run owns its work */
} dtr__run;

struct dtr__scope {
    dtr__composite composite;
    dtr_group *group;
    pthread_t owner;
    dtr_work *whole; /* the combined work; one reference until the end of the scope */
    /* Recording; the owner's. */
    dtr_work **calls;
    size_t n, cap;
    dtr__span *spans;
    size_t n_spans, cap_spans;
    dtr_status status; /* what aborted it */
    dtr__error_copy *error;
    /* Running; progress lock. */
    dtr__run *runs;
    size_t n_runs, next_run, p2p_left;
};

extern const dtr__backend dtr__backend_scope;

/* Cut the recorded collectives into runs. DTR_ERR_NOMEM. */
dtr_status dtr__scope_plan(dtr__scope *scope);

#endif /* DTR_SCOPE_H */
