/* NCCL behind a table of functions, as CUDA is in memory/device.h: the table is a symbol of
 * libdtr_cuda, which opens libnccl.so.2 when it is asked to. Nothing here needs NCCL's header. */
#ifndef DTR_NCCL_OPS_H
#define DTR_NCCL_OPS_H

#include <stdbool.h>
#include <stddef.h>

#include <dtr/coll.h>

enum { DTR__NCCL_ABI = 7, DTR__NCCL_ID = 128 };
enum { DTR__NCCL_FLOOR = 21800 };     /* oldest version that has split and non-blocking mode */
enum { DTR__NCCL_REGISTERS = 21900 }; /* oldest one to which memory can be made known */
enum { DTR__NCCL_WINDOWS = 22700 };   /* oldest one that makes windows of memory */
enum { DTR__NCCL_ABORTS = 22200 };    /* oldest one that aborts several communicators as a group */
enum { DTR__NCCL_TRAFFIC = 22600, DTR__NCCL_POLICY = 22700 }; /* oldest ones with these settings */

/* Limits of thread blocks are 0 where NCCL is to choose. */
enum { DTR__NCCL_NETWORK = 64 };
typedef struct dtr__nccl_config {
    int min_ctas, max_ctas, cga_cluster, cta_policy, nvls_ctas, traffic_class;
    bool split_share;
    char network[DTR__NCCL_NETWORK]; /* "": NCCL chooses */
    bool blocking; /* calls return when they are done, and not while a thread of NCCL's does it */
    char name[64]; /* lies where it is as long as the communicator lives */
} dtr__nccl_config;

typedef enum dtr__nccl_kind {
    DTR__NCCL_ALLREDUCE,
    DTR__NCCL_BROADCAST,
    DTR__NCCL_REDUCE,
    DTR__NCCL_ALLGATHER,
    DTR__NCCL_REDUCE_SCATTER,
    DTR__NCCL_ALLTOALL, /* this one and the two below: only where `has` says so */
    DTR__NCCL_GATHER,
    DTR__NCCL_SCATTER,
    DTR__NCCL_SEND,
    DTR__NCCL_RECV
} dtr__nccl_kind;

/* One native call. Elements are those of dtr_dtype; what NCCL does not know travels as something it
 * does. */
typedef struct dtr__nccl_move {
    dtr__nccl_kind kind;
    const void *in;
    void *out;
    size_t count;
    dtr_dtype dtype;
    int op;   /* of reductions: from `op` or `premul_new` */
    int root; /* or peer */
} dtr__nccl_move;

/* Results are NCCL's own codes, 0 is success. Functions that are given a device make it current and
 * put the caller's back. */
typedef struct dtr__nccl_ops {
    int abi, built; /* DTR__NCCL_ABI; NCCL of the build, as 22809 */
    /* NULL, or why NCCL cannot be used; `version` is set if the library reports it. */
    const char *(*load)(int *version);
    const char *(*error_text)(int code);
    const char *(*last_error)(void *comm);
    int in_progress, invalid_usage, remote_error;
    bool (*has)(dtr__nccl_kind kind);
    int (*unique_id)(void *id); /* DTR__NCCL_ID bytes */
    int (*init)(int device, void **comm, int size, const void *id, int rank,
                const dtr__nccl_config *config);
    /* *child may be set later, before the parent's state is no longer in progress. color < 0: this
     * rank gets none. */
    int (*split)(int device, void *comm, int color, int key, void **child,
                 const dtr__nccl_config *config);
    int (*finalize)(int device, void *comm);
    int (*destroy)(int device, void *comm);
    int (*abandon)(int device, void *comm);
    int (*state)(void *comm, int *code); /* of the communicator: in progress, or its first error */
    int (*group_start)(void);
    int (*group_end)(int device);
    int (*op)(dtr_op op, dtr_dtype dtype); /* -1: NCCL has none */
    int (*premul_new)(int device, void *comm, const void *factor, bool on_device, dtr_dtype dtype,
                      int *op);
    int (*premul_free)(int device, void *comm, int op);
    int (*move)(int device, void *comm, const dtr__nccl_move *m, void *stream);
    const char *(*move_name)(dtr__nccl_kind kind); /* "ncclAllReduce" */
    /* NCCL's own memory, and memory registered with a communicator; only where `registers` says so:
     * 2.19, when built and when run. */
    bool (*registers)(void);
    int (*memory_new)(int device, size_t nbytes, void **ptr);
    int (*memory_free)(int device, void *ptr); /* waits for the device, as cudaFree does */
    int (*memory_wait)(int device);            /* the same wait alone */
    int (*memory_add)(int device, void *comm, void *ptr, size_t nbytes, void **registration);
    int (*memory_remove)(int device, void *comm, void *registration);
    /* Memory of `memory_new` as a window that all ranks can reach, at the same place of the blocks
     * of all; only where `windows` says so: 2.27, when built and when run. All ranks of the
     * communicator add one; each removes its own. *window may be set until the communicator's state
     * is no longer in progress; NULL then: NCCL has none here. */
    bool (*windows)(void);
    int (*window_add)(int device, void *comm, void *ptr, size_t nbytes, void **window);
    int (*window_remove)(int device, void *comm, void *window);
} dtr__nccl_ops;

/* Symbol of libdtr_cuda. */
#define DTR__NCCL_SYMBOL "dtr_cuda_nccl_ops"

#endif /* DTR_NCCL_OPS_H */
