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
    BENCH_REDUCE_SCATTER,
    BENCH_ALLTOALL,
    BENCH_GATHER,
    BENCH_SCATTER,
    BENCH_BARRIER,
    BENCH_KINDS
} bench_kind;

typedef enum bench_mode { BENCH_BLOCKING, BENCH_ASYNC, BENCH_OVERLAP } bench_mode;

typedef struct bench_options {
    bool kind[BENCH_KINDS];
    bool dtype[14];
    dtr_op op;
    size_t min_bytes, max_bytes;
    int factor, rounds, runs, root;
    bool plain, shared, read_back, cpu_compute, peer, in_place;
    bench_mode mode;
    const char *json;
} bench_options;

/* One operation, size and type. Counts are elements per rank; bytes is what the size column says.
 */
typedef struct bench_case {
    bench_kind kind;
    dtr_dtype dtype;
    dtr_op op;
    bench_mode mode;
    int root, rank, size;
    size_t bytes, in_count, out_count, count;
    bool read_back, cpu_compute, in_place;
    double compute_s; /* overlap mode: length of the compute part */
} bench_case;

typedef struct contender {
    const char *name;
    bool mpi, shared;
    dtr_dtype dtype; /* differs from the case's for the float32 peer of 16-bit reductions */
    void *in, *out;
    double *sample; /* [rounds] seconds, maximum over ranks */
    double hidden;  /* overlap mode: share of the communication behind compute */
    size_t wrong;
} contender;

/* bench_ops.c */
const char *bench_kind_name(bench_kind k);
bool bench_reduces(bench_kind k);
void bench_shape(bench_case *c); /* sets counts from bytes */
double bench_bus_factor(const bench_case *c);
bool bench_has_mpi_type(dtr_dtype d);
/* One call of a contender; exits on failure through MPI_Abort, as a benchmark may. */
void bench_call(const bench_case *c, const contender *who, dtr_group *g);
void bench_fill(const bench_case *c, const contender *who, int round);
size_t bench_check(const bench_case *c, const contender *who, int round);

/* bench_run.c: samples of all contenders of one case, taken in turn. */
void bench_run(const bench_case *c, contender *who, int n, int rounds, dtr_world *w);

/* bench_report.c */
void bench_header(FILE *to, const bench_options *o, const dtr_world *w);
typedef struct bench_row {
    const bench_case *c;
    const contender *who, *peer; /* peer NULL: none */
    int run, rounds;
} bench_row;
void bench_print(const bench_row *r);
void bench_json(FILE *to, const bench_row *r, bool first);

#endif /* DTR_BENCH_H */
