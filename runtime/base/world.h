/* struct dtr_world: the facts that every room may read, and one pointer per subsystem, whose struct
 * is defined in the room that owns it. */
#ifndef DTR_RT_BASE_WORLD_H
#define DTR_RT_BASE_WORLD_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <dtr/device.h>
#include <dtr/mpi.h>
#include <dtr/world.h>

#include "base/error.h"
#include "base/options.h"
#include "base/tune.h"

typedef struct dtr__arena dtr__arena;
typedef struct dtr__cma dtr__cma;
typedef struct dtr__recorder dtr__recorder;
typedef struct dtr__progress dtr__progress;
typedef struct dtr__log dtr__log;
typedef struct dtr__trace dtr__trace;
typedef struct dtr__metrics dtr__metrics;
typedef struct dtr__counters dtr__counters;
typedef struct dtr__memory dtr__memory;
typedef struct dtr__groups dtr__groups; /* collectives layer */

/* MPI as this world uses it, or what is there in its place; constant. Both communicators are
 * private duplicates that return errors; node_comm holds the ranks of this node in world order. */
typedef struct dtr__world_mpi {
    MPI_Comm comm, node_comm;
    int thread_level; /* what MPI provides */
    int tag_ub;
    bool own, keep;    /* this library has initialised MPI; it does not end it */
    _Atomic bool kept; /* a communicator was kept, see dtr__mpi_keep */
    /* Both NULL, but in a world without MPI: messages between ranks, and facts exchanged by them.
     */
    struct dtr__inbox *inbox;
    const struct dtr__exchange_ops *exchange;
    struct dtr__tcp *tcp; /* of the inbox, between nodes; NULL where there is one */
} dtr__world_mpi;

/* The CPUs of this process, which decide how it waits; constant. */
typedef struct dtr__cpus {
    int n;               /* that this process may use */
    bool oversubscribed; /* the node's ranks may use fewer CPUs than there are ranks */
    bool spare_cores;    /* at least two CPUs per rank: a progress thread takes nobody's */
    bool mpi_yields;     /* a call that finds nothing to do in MPI has given the processor away */
    /* Local ranks with exactly this rank's CPUs, and which of them this one is; 0 where sets of
     * CPUs overlap in part. */
    int sharers, turn;
    int first_narrow; /* local rank, the first that may use fewer than DTR__GPU_CPUS; -1: none */
    _Atomic bool narrow_warned; /* not constant: once */
} dtr__cpus;
enum { DTR__GPU_CPUS = 4 };

/* How operations are recorded; constant. */
typedef struct dtr__recording_mode {
    dtr__counters *counters; /* NULL: nothing is counted */
    bool hashes, timing;     /* DTR_HASH, DTR_TIMING */
    bool each_in_full;       /* no fast path and no shared record for repeated calls */
    bool unrecorded;         /* set by dtr-recorder-cost only: repeated calls leave no record */
} dtr__recording_mode;

/* Memory for the program and for backends; room memory. */
typedef struct dtr__world_memory {
    dtr__arena *arena;   /* NULL where this node cannot share memory (one warning given) */
    dtr__cma *cma;       /* NULL where it is off or the kernel forbids it */
    dtr__memory *blocks; /* live blocks of dtr_alloc */
} dtr__world_memory;

/* What ranks know of each other; room control. */
typedef struct dtr__world_control {
    struct dtr__peers *peers;   /* what is known of the other ranks without their help */
    struct dtr__control *plane; /* NULL where there is one node */
    struct dtr__votes *votes;   /* NULL where the node shares no memory */
} dtr__world_control;

/* What a person gets to see; room diagnosis. */
typedef struct dtr__world_diagnosis {
    dtr__trace *trace;              /* of public calls; NULL: off */
    dtr__metrics *metrics;          /* the file of them; NULL: off */
    struct dtr__writer *writer;     /* of dumps and metrics */
    struct dtr__dump *dump;         /* who asks for dumps */
    struct dtr__watchdog *watchdog; /* NULL before the groups are there */
} dtr__world_diagnosis;

/* Facts are set before the world is handed out and constant afterwards. Each pointer belongs to
 * the room that its comment names, which defines the struct and its locks. */
struct dtr_world {
    uint64_t magic; /* DTR__WORLD_MAGIC while live */
    uint32_t serial;
    uint64_t job_id; /* of this world, equal on all ranks */
    dtr__world_mpi mpi;
    /* Who and where. node_of and local_rank_of are indexed by world rank; local_world by local
     * rank. */
    int rank, size, local_rank, local_size, node, node_count;
    int *node_of, *local_rank_of, *local_world;
    char host[64];
    dtr__cpus cpus;
    dtr_device device;
    bool bound;       /* the device was named by the program */
    double timeout_s; /* 0: not set anywhere, the device's default applies; set by code or
                         DTR_TIMEOUT */
    dtr__options options;
    dtr__tune tune; /* equal on all ranks of a node */
    dtr__log *log;  /* base */
    dtr__world_memory memory;
    dtr__progress *progress; /* never NULL; without a thread it only keeps the list */
    dtr__recorder *recorder;
    dtr__recording_mode recording;
    dtr__world_control control;
    dtr__world_diagnosis diagnosis;
    dtr__groups *groups;                     /* collectives */
    struct dtr__turn *turn;                  /* collectives: who is inside; NULL: not checked */
    struct dtr__destroy_listener *listeners; /* newest first; lock of world/on_destroy.c */
};

#define DTR__WORLD_MAGIC UINT64_C(0x6474725f776f726c)
#define DTR__WORLD_GONE UINT64_C(0x6474725f676f6e65) /* of a destroyed world */

/* DTR_OK, or DTR_ERR_ARG/DTR_ERR_STATE for NULL and destroyed handles, with message. */
dtr_status dtr__world_check(const dtr_world *world);

#define DTR__HIDDEN __attribute__((visibility("hidden")))

#endif /* DTR_RT_BASE_WORLD_H */
