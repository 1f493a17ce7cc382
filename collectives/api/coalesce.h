/* A coalescing scope: calls recorded between dtr_coalesce_begin and _end, run as one work. */
#ifndef DTR_COALESCE_H
#define DTR_COALESCE_H

#include "core/backend.h"
#include "core/call.h"
#include "engine/engine.h"

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
    bool placed; /* device and stream are those of its first call with buffers */
    dtr_device device;
    void *stream;
    dtr_status status; /* what aborted it */
    dtr__error_copy *error;
    bool left; /* a thread that hangs may have the group's lock: last steps are left out */
    /* Running; progress lock. */
    dtr__run *runs;
    size_t n_runs, next_run, p2p_left;
    bool together;    /* p2p_left: calls of all kinds, which their backend runs as one */
    bool begun;       /* together, and started */
    dtr_work *native; /* NULL, or the calls that are launched at once; constant */
    bool host_only;   /* a call has a last step: streams cannot wait for it */
};

/* The second one has nothing but a native part. */
extern const dtr__backend dtr__backend_scope, dtr__backend_scope_native;

/* A call while a scope is open. */
dtr_status dtr__scope_record(dtr_group *g, dtr__scope *scope, const dtr__request *r,
                             dtr_work **work);
/* A call of a scope has run. */
void dtr__scope_end_call(dtr_work *whole, dtr_work *w);

/* ---- api/coalesce_device.c ---- */
/* The backend of a call, by its place in the group's table. */
dtr_status dtr__scope_choose(dtr__scope *scope, dtr__call *c, const dtr__request *r, int *backend);
/* stream_wait of a scope that has nothing but a native part. */
bool dtr__scope_stream_wait(dtr_work *whole, void *stream, dtr_status *s);
bool dtr__scope_uses(const dtr_work *whole, const void *block, size_t nbytes);
/* From the plan to the launch of what is launched here; the whole is with the engine then. A
 * failure of the launch breaks the group, and is the whole's; after any other nothing has begun. */
dtr_status dtr__scope_launch_device(dtr__scope *scope);
dtr_status dtr__scope_move_native(dtr_group *g, dtr_work *whole, dtr__scope *scope);

/* Cut the recorded collectives into runs. DTR_ERR_NOMEM. */
dtr_status dtr__scope_plan(dtr__scope *scope);

#endif /* DTR_COALESCE_H */
