/* Stand-in for NCCL over shared memory: what its files share. One segment per communicator holds,
 * for every rank, a page of facts, a staging slot for collectives, and a mailbox from every other
 * rank. Operations run as tasks on the streams of the CUDA stand-in. */
#ifndef DOUBLE_NCCL_H
#define DOUBLE_NCCL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What this library defines is for everybody. */
#pragma GCC visibility push(default)
#include <nccl.h>
#pragma GCC visibility pop

#include "fake_cuda.h"
#include "fake_order.h"

/* nccl.h declares these two without a prototype. */
#pragma GCC visibility push(default)
ncclResult_t ncclGroupStart(void); /* NOLINT(readability-redundant-declaration) */
ncclResult_t ncclGroupEnd(void);   /* NOLINT(readability-redundant-declaration) */
#pragma GCC visibility pop

enum { DN_MAX_RANKS = 64, DN_SLOT = 128 * 1024, DN_MAIL = 32 * 1024, DN_MAX_OPS = 64 };

typedef enum dn_kind {
    DN_ALLREDUCE,
    DN_BROADCAST,
    DN_REDUCE,
    DN_ALLGATHER,
    DN_REDUCE_SCATTER,
    DN_ALLTOALL,
    DN_GATHER,
    DN_SCATTER,
    DN_SEND,
    DN_RECV
} dn_kind;

/* What ranks must agree on; compared before an operation moves anything. */
typedef struct dn_signature {
    uint32_t kind, type, op;
    int32_t root;
    uint64_t count;
} dn_signature;

/* What ranks must agree on of a window: its place in the block of each, and the call's number. */
typedef struct dn_extent {
    uint64_t nbytes, offset, number;
    int32_t flags;
} dn_extent;

typedef struct dn_rank {
    _Atomic uint32_t joined; /* the facts below are there */
    _Atomic uint32_t left;   /* aborted */
    int32_t pid, version;
    uint64_t host;
    unsigned char uuid[16];
    _Atomic uint64_t stream_phase, control_phase; /* barriers passed: of tasks, of host calls */
    dn_signature signature;
    int32_t color, key; /* of the split under way */
    dn_extent window;   /* of the window under way */
} dn_rank;

/* One chunk on its way: `sent` is one ahead of `taken` while it waits. */
typedef struct dn_mail {
    _Atomic uint64_t sent, taken;
    uint64_t nbytes, count; /* of this chunk; elements of the whole message */
    uint32_t type;
    char data[DN_MAIL];
} dn_mail;

typedef struct dn_shared {
    _Atomic uint32_t nranks; /* set by the first who comes */
    _Atomic uint32_t joined;
    dn_rank rank[];
} dn_shared;

typedef enum dn_op_kind { DN_SUM, DN_PROD, DN_MAX, DN_MIN, DN_AVG, DN_PREMUL } dn_op_kind;

typedef struct dn_op {
    dn_op_kind kind;
    ncclDataType_t type;     /* of a premultiplied sum's factor */
    unsigned char factor[8]; /* DN_PREMUL with an immediate factor */
    const void *device;      /* DN_PREMUL: where the factor lies, read when the operation runs */
} dn_op;

/* One call, as it is run. Addresses are the host's aliases of device memory. */
typedef struct dn_call {
    const char *name;
    dn_kind kind;
    const char *in;
    char *out;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t given_op;
    dn_op op;
    int root; /* or peer */
    struct ncclComm *comm;
    void *stream;
    uint64_t number; /* of this process, from 1: what faults count */
} dn_call;

struct ncclComm {
    struct ncclComm *next; /* list of live communicators, its lock */
    int rank, nranks, device;
    unsigned char uuid[16];
    bool blocking, finalized;
    char name[48]; /* of the segment */
    uint64_t nonce;
    dn_shared *shared;
    size_t shared_size;
    _Atomic int state;              /* ncclResult_t: success, in progress, or the first error */
    _Atomic int aborted;            /* tasks, threads and host calls of this communicator give up */
    _Atomic uint64_t tickets, turn; /* tasks run in the order of their launch, over all streams */
    _Atomic int unfinished;         /* tasks enqueued, not ended */
    _Atomic int inside;             /* threads in calls that block; its end waits for them */
    _Atomic int graphs;             /* launches kept in graphs that are there */
    uint64_t stream_phase, control_phase, splits, windows;
    pthread_mutex_t lock;
    pthread_t late;         /* thread of the non-blocking call under way; lock */
    bool has_late;          /* lock */
    struct ncclComm *child; /* of the split under way, which an abort ends; lock */
    char error[512];        /* lock */
    dn_op ops[DN_MAX_OPS];  /* lock */
    bool op_used[DN_MAX_OPS];
};

/* nccl_fault.c: settings and faults. */
int dn_version(void);
bool dn_multi_rank(void); /* several ranks may share a GPU */
bool dn_remote_errors(void);
bool dn_blocks_in_call(void);
bool dn_odd_ends_hang(void); /* of a message, as with NCCL */
bool dn_init_fails(int rank), dn_init_hangs(int rank);
/* 0, or the code that this call of the function returns; counts the call. */
ncclResult_t dn_injected(const char *function);
typedef enum dn_fault { DN_FAULT_HANG, DN_FAULT_KILL, DN_FAULT_ASYNC } dn_fault;
bool dn_fault_here(dn_fault f, int rank, const dn_call *c);
long dn_slow_us(int rank);
/* Aborts the process when the version posed as has no such function. */
void dn_since(const char *function, int version);
void dn_set_error(struct ncclComm *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* nccl_shared.c: the segment. */
uint64_t dn_nonce(void);
void dn_sweep(void); /* remove the segments of processes that are gone */
ncclResult_t dn_attach(struct ncclComm *c);
void dn_detach(struct ncclComm *c);
void dn_unlink(const struct ncclComm *c);
char *dn_slot(const struct ncclComm *c, int rank);
dn_mail *dn_mailbox(const struct ncclComm *c, int from, int to);
/* One pause of a wait; true when the communicator was aborted and the wait must end. */
bool dn_pause(struct ncclComm *c, unsigned turn);
/* False: aborted. */
bool dn_stream_barrier(struct ncclComm *c);
bool dn_control_barrier(struct ncclComm *c);

/* nccl_reduce.c */
size_t dn_type_size(ncclDataType_t t);
void dn_reduce(void *out, const char *const *in, int n, size_t count, ncclDataType_t t,
               const dn_op *op);

/* nccl_run.c: calls of one communicator that were made in one group, as one task. */
ncclResult_t dn_launch(struct ncclComm *c, const dn_call *calls, size_t n);

/* nccl_comm.c */
void dn_graphs_end(const struct ncclComm *c); /* waits for them, whatever happens */
ncclResult_t dn_check_live(struct ncclComm *c, const char *function);
ncclResult_t dn_check_comm(struct ncclComm *c, const char *function); /* and without an error */
void dn_fail(struct ncclComm *c, ncclResult_t r);                     /* the first error stays */
/* Run fn in a thread of its own, whose end makes the state success; in progress until then. */
ncclResult_t dn_run_late(struct ncclComm *c, void *(*fn)(void *), void *arg);

/* nccl_memory.c: a communicator ends; registrations that it still has are logged, except windows
 * that go with an aborted one. */
void dn_notes_end(const struct ncclComm *c, const char *function, bool aborted);
/* Whether the memory lies in a window of the communicator. */
bool dn_in_window(const struct ncclComm *c, const void *ptr, size_t nbytes);

/* nccl_comm.c: now, late, or at the end of a group, whatever the communicator is. */
ncclResult_t dn_start(struct ncclComm *c, void *(*fn)(void *), void *arg);
/* A thread enters (1) or leaves (-1) a call that blocks. */
void dn_inside(struct ncclComm *c, int more);

/* nccl_group.c: what a group holds back until its end. */
bool dn_in_group(void);
ncclResult_t dn_group_add_thread(struct ncclComm *c, void *(*fn)(void *), void *arg);
ncclResult_t dn_group_failed(ncclResult_t r); /* remembered for the end; returns r */

#define DN_ENTER(function)                             \
    do {                                               \
        dtr_fake_cuda_log(function, "%s", "");         \
        ncclResult_t injected = dn_injected(function); \
        if (injected != ncclSuccess) {                 \
            return injected;                           \
        }                                              \
    } while (0)

#endif /* DOUBLE_NCCL_H */
