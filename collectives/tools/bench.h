/* dtr-bench: what its files share. Contenders of one operation and size take turns in one run. */
#ifndef DTR_BENCH_H
#define DTR_BENCH_H

#include <mpi.h>
#include <stdio.h>

#include <dtr/coll.h>

#include "measure.h"

typedef enum bench_kind {
    BENCH_ALLREDUCE,
    BENCH_REDUCE,
    BENCH_BROADCAST,
    BENCH_ALLGATHER,
    BENCH_ALLGATHERV,
    BENCH_REDUCE_SCATTER,
    BENCH_REDUCE_SCATTERV,
    BENCH_ALLTOALL,
    BENCH_ALLTOALLV,
    BENCH_GATHER,
    BENCH_GATHERV,
    BENCH_SCATTER,
    BENCH_SCATTERV,
    BENCH_SENDRECV,
    BENCH_PINGPONG,
    BENCH_BARRIER,
    BENCH_SCAN,
    BENCH_EXSCAN,
    BENCH_WAITALL,
    BENCH_KINDS
} bench_kind;

typedef enum bench_mode { BENCH_BLOCKING, BENCH_ASYNC, BENCH_OVERLAP, BENCH_DISPATCH } bench_mode;

enum { BENCH_DTYPES = DTR_I64_INDEX + 1, BENCH_SIZES = 64, BENCH_CONTENDERS = 6 };

typedef struct bench_options {
    bool kind[BENCH_KINDS];
    bool dtype[BENCH_DTYPES];
    dtr_op op;
    size_t min_bytes, max_bytes, sizes[BENCH_SIZES];
    int n_sizes; /* 0: from min to max by factor */
    int factor, rounds, runs, root, threads, calls;
    bool plain, shared, read_back, cpu_compute, peer, in_place, deterministic, gauge, strict;
    bool cuda; /* device memory, and NCCL for a peer */
    bench_mode mode;
    const char *json, *tune; /* files; NULL: none */
} bench_options;

/* One operation, size and type. Counts are elements per rank; bytes is what the size column says.
 */
typedef struct bench_case {
    bench_kind kind;
    dtr_dtype dtype;
    dtr_op op;
    bench_mode mode;
    int root, rank, size, calls; /* calls in a sample; 0: by size */
    size_t bytes, in_count, out_count, count;
    size_t *counts;           /* v-forms: of each rank, or to and from each rank (alltoallv) */
    int *mpi_counts, *mpi_at; /* the same and the offsets, for MPI */
    bool read_back, cpu_compute, in_place;
    double compute_s;                /* overlap mode: length of the compute part */
    dtr_device device;               /* where the buffers of all contenders are */
    const dtr_coll_options *options; /* of each call; NULL: none */
} bench_case;

typedef struct contender {
    const char *name;
    bool mpi, nccl, shared, async;
    int peer;        /* index of the contender it is compared with; -1: none */
    bool shown;      /* has a row of its own */
    dtr_dtype dtype; /* differs from the case's for the float32 peer of types that MPI lacks */
    void *in, *out, *fresh; /* fresh: what `in` is written with before each call */
    void *back;             /* device: the result as the host reads it */
    double *sample;         /* [rounds] seconds, maximum over ranks */
    double *host, *events;  /* device: of these the part until the calls returned; by events */
    double hidden;          /* overlap mode: share of the communication behind compute */
    size_t wrong;
    bool checked;
} contender;

/* bench_case.c */
const char *bench_kind_name(bench_kind k);
bool bench_reduces(bench_kind k);
/* Sets counts from bytes; to be freed with bench_case_close. */
void bench_case_open(bench_case *c);
void bench_case_close(bench_case *c);
/* Elements of block j of rank i: what i sends to j (alltoallv), the share of rank j (other calls).
 */
size_t bench_block(const bench_case *c, int i, int j);
size_t bench_block_at(const bench_case *c, int i, int j); /* elements before it */
double bench_bus_factor(const bench_case *c);

/* Ranks 0 .. n-1 whose inputs the result of this rank is made of. */
int bench_sources(const bench_case *c);
enum { BENCH_MESSAGES = 16 }; /* each way, that a waitall waits for */

/* bench_ops.c */
bool bench_has_mpi_type(dtr_dtype d);
/* One call of a contender; exits on failure through MPI_Abort, as a benchmark may. */
void bench_call(const bench_case *c, const contender *who, dtr_group *g);

/* bench_data.c */
void bench_fill(const bench_case *c, const contender *who, int round); /* writes who->fresh */
bool bench_checkable(const bench_case *c, dtr_dtype d);
size_t bench_check(const bench_case *c, const contender *who, int round);

/* bench_device.c: what --device cuda needs of CUDA and NCCL, used as a program without this library
 * uses them. Failures end the program. NULL: not in this build. */
typedef struct bench_device_ops {
    void (*open)(dtr_world *w, dtr_device d, bool peer); /* collective */
    void (*close)(void);
    const char *(*name)(void);             /* of the device */
    const char *(*peer)(void);             /* "NCCL 2.28.9", or why there is none */
    bool (*has_peer)(const bench_case *c); /* whether NCCL has this call */
    void (*call)(const bench_case *c, const contender *who);     /* of NCCL */
    void (*upload)(const bench_case *c, const contender *who);   /* `fresh` to `in` */
    void (*download)(const bench_case *c, const contender *who); /* the result to `back` */
    /* One sample: time until the calls have returned, by events, until the stream is empty. */
    void (*sample)(const bench_case *c, const contender *who, dtr_group *g, int calls,
                   double seconds[3]);
    void (*compute)(double seconds); /* occupies the stream */
    const dtr_coll_options *(*options)(void);
} bench_device_ops;
extern const bench_device_ops *const bench_device;

/* bench_run.c: samples of all contenders of one case, taken in turn. */
void bench_run(const bench_case *c, contender *who, int n, int rounds, dtr_group *g);
void *bench_memory(size_t nbytes); /* zeroed */

/* bench_options.c. parse: -1: go on; else the exit status. */
extern const char *const bench_op_names[]; /* by dtr_op */
int bench_parse(bench_options *o, int argc, char **argv, bool loud);

/* bench_report.c */
typedef struct bench_result { /* of one row in all runs */
    bench_kind kind;
    dtr_dtype dtype;
    const char *who, *peer;
    size_t bytes;
    double *time, *ratio; /* [runs] */
} bench_result;

typedef struct bench_report {
    const bench_options *o;
    dtr_group *g;
    FILE *json; /* NULL: none */
    int run;    /* from 1 */
    size_t row, n_results, wrong;
    bench_result *results;
    bool first; /* no row in the JSON yet */
} bench_report;

void bench_report_head(bench_report *r, dtr_world *w);
void bench_report_row(bench_report *r, const bench_case *c, const contender *all, int i);
void bench_report_end(bench_report *r, const double *gauge, bool calm);

/* bench_tune.c: measure the thresholds of this kind of node and write them; exit status. */
int bench_tune(const bench_options *o);

#endif /* DTR_BENCH_H */
