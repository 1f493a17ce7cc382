/* dtr-ddp-bench: what its files share. */
#ifndef DTR_DDP_BENCH_H
#define DTR_DDP_BENCH_H

#include <stdio.h>

#include <dtr/ddp.h>

#include "model.h"

typedef enum compute_kind { COMPUTE_DEVICE, COMPUTE_CPU, COMPUTE_NONE } compute_kind;

typedef struct ddp_bench_options {
    const char *model, *hook, *json;
    size_t bucket_bytes, first_bytes;
    int steps, warmup, runs;
    bool view, copy, peer, gauge, strict, has_reduce_dtype,
        list;    /* view and copy: as asked for, then as it is */
    bool cuda;   /* parameters and gradients in device memory, and times by events there */
    int builtin; /* dtr_ddp_builtin, -1: none */
    dtr_dtype reduce_dtype;
    compute_kind compute;
    double compute_s; /* of a whole backward; negative: as long as the slowest sync alone */
} ddp_bench_options;

/* Contenders of both phases. NONE is the backward pass without any communication. */
typedef enum who { WHO_DTR, WHO_MPI, WHO_INLINE, WHO_NONE, WHO_COUNT } who;
typedef enum phase { PHASE_SYNC, PHASE_BACKWARD, PHASES } phase;

/* Plain MPI_Allreduce of the same buckets: one block of private memory per bucket of the plan. */
typedef struct mpi_bucket {
    float *data;
    size_t count;   /* elements, padding included */
    size_t n_slots; /* parameters in it */
} mpi_bucket;

typedef struct mpi_peer {
    mpi_bucket *buckets;
    size_t n;
    size_t *bucket_of; /* [params] */
    float **slot;      /* [params] where the gradient lies in its bucket */
    float **grad;      /* [params] where backward writes it; the slot itself with bucket views */
    size_t *left;      /* [buckets] gradients still missing in this step */
    size_t next;       /* first bucket not reduced yet */
} mpi_peer;

typedef struct ddp_bench {
    const ddp_bench_options *o;
    model model;
    dtr_world *world;
    dtr_group *group;
    dtr_param *params;
    dtr_ddp *ddp;
    mpi_peer peer;
    int rank, size;
    double compute_s;                   /* length of the compute of one backward */
    double loops_per_s;                 /* CPU compute: speed of the arithmetic loop */
    double *samples[PHASES][WHO_COUNT]; /* [steps] seconds, slowest rank */
    size_t wrong[WHO_COUNT];
    bool checked;       /* whether `wrong` means something: not with lossy hooks */
    uint64_t allocated; /* in steps so far, this rank */
    double allocations; /* per steady step of dtr, most of any rank; negative: not counted */
    dtr_ddp_stats stats;
    double gauge[2];
    bool calm;
    dtr_device device;
    float *pinned; /* device: one gradient as the host writes and reads it */
    double *host;  /* device: [steps] seconds until dtr's calls had returned, without compute */
} ddp_bench;

/* ddp_bench_run.c */
void bench_open(ddp_bench *b, const ddp_bench_options *o, dtr_world *w);
void bench_close(ddp_bench *b);
void bench_run(ddp_bench *b);                       /* fills samples, wrong, allocations, stats */
void bench_require(dtr_status s, const char *what); /* ends the job where s is an error */
void *bench_memory(size_t nbytes);
void bench_arithmetic(double loops); /* keeps the calling thread busy */

/* ddp_bench_device.c */
void device_open(ddp_bench *b); /* ends the job where this rank has no device */
void device_close(ddp_bench *b);
/* One step of dtr, or of nobody: seconds by events, of the slowest rank; *host: until all calls had
 * returned. */
double device_step(const ddp_bench *b, who w, double *host);
void device_write(const ddp_bench *b, float *to, const float *from, size_t n);
void device_read(const ddp_bench *b, float *to, const float *from, size_t n);

/* ddp_bench_mpi.c */
void peer_open(mpi_peer *p, const dtr_plan *plan, size_t n_params, bool view);
void peer_close(mpi_peer *p, size_t n_params, bool view);
void peer_begin(mpi_peer *p);
/* Parameter i is final; reduces the buckets that are complete where `at_once`. */
void peer_ready(mpi_peer *p, const model *m, size_t i, bool at_once);
void peer_end(mpi_peer *p, const model *m); /* reduces what is left, copies back */

/* ddp_bench_report.c */
void report_head(const ddp_bench *b);
void report_run(const ddp_bench *b, int run);
void report_json(FILE *to, const ddp_bench *b, int run);

#endif /* DTR_DDP_BENCH_H */
