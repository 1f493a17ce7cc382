/* The stage backend: device buffers travel through pinned memory of the host and the CPU backends
 * of the group. An operation is cut into chunks, each of which is loaded from the device, given to
 * a CPU backend as a part, and stored to the device; while one is with the CPU backend the next is
 * being loaded and the one before stored. */
#ifndef DTR_STAGE_INTERNAL_H
#define DTR_STAGE_INTERNAL_H

#include "core/call.h"
#include "engine/engine.h"
#include "memory/device.h"

/* One is loaded while one is with the CPU backend and one is stored. */
enum { DTR__STAGE_SLOTS = 3 };
enum { DTR__STAGE_FACTOR = 64 }; /* bytes kept for a factor that lies on the device, a cache line */

typedef enum dtr__slot_state {
    DTR__SLOT_FREE,
    DTR__SLOT_LOADING, /* the copy from the device is under way */
    DTR__SLOT_RUNNING, /* the part is with a CPU backend */
    DTR__SLOT_STORING  /* the copy to the device is under way */
} dtr__slot_state;

/* Pinned memory of one chunk with its events. */
typedef struct dtr__slot {
    struct dtr__slot *next; /* in the pool: its lock */
    char *memory;
    size_t cap;
    bool shared; /* memory is the node's, where a CPU backend needs no copy of its own */
    void *dependency, *loaded, *stored; /* events */
    /* Of the operation that has it; progress lock. */
    dtr__slot_state state;
    char *in, *out, *factor; /* inside memory; NULL where this rank has none */
    int64_t asked_ns;        /* last look at its event */
    size_t first, n;         /* elements; all of them where the operation is not cut */
    dtr_work *part;
} dtr__slot;

/* Of a group and a device: streams and pinned memory. */
typedef struct dtr__stage {
    struct dtr__stage *next; /* of the group: for its other devices; lock of the list */
    dtr_world *world;
    int device;
    const dtr__device_ops *ops;
    void *load, *store; /* streams */
    pthread_mutex_t lock;
    dtr__slot *idle;       /* lock */
    dtr__slot *lost;       /* of operations that failed: free when the streams have ended; lock */
    uint64_t issued, turn; /* point to point operations: started, next to send; progress lock */
} dtr__stage;

/* Of a group: the backend's state. */
typedef struct dtr__stages {
    dtr_world *world;
    pthread_mutex_t lock;
    dtr__stage *first;
} dtr__stages;

typedef struct dtr__stage_op {
    dtr__composite composite;
    dtr_group *group;
    dtr__stage *stage;
    bool reads, writes; /* the device's memory */
    bool cut;           /* into chunks of `chunk` elements */
    size_t esize, chunk, chunks;
    const void *factor; /* on the device, NULL: the call has it */
    dtr__slot *slot[DTR__STAGE_SLOTS];
    int n_slots;
    dtr_p2p *batch;                       /* the entries with addresses in the pinned memory */
    size_t next_load, next_run, next_end; /* chunks; progress lock */
    uint64_t ticket;                      /* point to point */
} dtr__stage_op;

/* stage_pool.c. The backend's members of these names; of: the group's stage for a device, made when
 * first asked for. take: a slot with room for nbytes. All fail without a trace in the group. */
dtr_status dtr__stage_open(dtr_group *g, void **state);
void dtr__stage_close(dtr_group *g, void *state);
dtr_status dtr__stage_of(dtr__stages *stages, int device, dtr__stage **stage);
dtr_status dtr__stage_take(dtr__stage *s, size_t nbytes, dtr__slot **slot);
void dtr__stage_give(dtr__stage *s, dtr__slot *slot, bool clean);

/* stage_collectives.c: do what can be done of the chunks. */
dtr_status dtr__stage_move(dtr__stage_op *op, dtr_work *whole, bool *done);

/* stage_backend.c: bytes of a chunk of n elements on each side. */
size_t dtr__stage_in_bytes(const dtr__stage_op *op, const dtr__call *c, size_t n);
size_t dtr__stage_out_bytes(const dtr__stage_op *op, const dtr__call *c, size_t n);

#endif /* DTR_STAGE_INTERNAL_H */
