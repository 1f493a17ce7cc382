/* The operations of dtr-bench: names, counts, and the factor from algorithm to bus bandwidth. */
#include <stdlib.h>

#include "bench.h"

static const struct {
    const char *name;
    bool reduces, varies;
} kinds[BENCH_KINDS] = {
    [BENCH_ALLREDUCE] = { "allreduce", true, false },
    [BENCH_REDUCE] = { "reduce", true, false },
    [BENCH_BROADCAST] = { "broadcast", false, false },
    [BENCH_ALLGATHER] = { "allgather", false, false },
    [BENCH_ALLGATHERV] = { "allgatherv", false, true },
    [BENCH_REDUCE_SCATTER] = { "reduce_scatter", true, false },
    [BENCH_REDUCE_SCATTERV] = { "reduce_scatterv", true, true },
    [BENCH_ALLTOALL] = { "alltoall", false, false },
    [BENCH_ALLTOALLV] = { "alltoallv", false, true },
    [BENCH_GATHER] = { "gather", false, false },
    [BENCH_GATHERV] = { "gatherv", false, true },
    [BENCH_SCATTER] = { "scatter", false, false },
    [BENCH_SCATTERV] = { "scatterv", false, true },
    [BENCH_SENDRECV] = { "sendrecv", false, false },
    [BENCH_PINGPONG] = { "pingpong", false, false },
    [BENCH_BARRIER] = { "barrier", false, false },
};

const char *bench_kind_name(bench_kind k) {
    return kinds[k].name;
}

bool bench_reduces(bench_kind k) {
    return kinds[k].reduces;
}

static bool in_blocks(bench_kind k) {
    return k >= BENCH_ALLGATHER && k <= BENCH_SCATTERV;
}

/* The v-forms get a quarter less and a quarter more in turn; between two ranks the same both ways.
 */
size_t bench_block(const bench_case *c, int i, int j) {
    int turn = c->kind == BENCH_ALLTOALLV ? i + j : j;
    return !kinds[c->kind].varies ? c->count
           : turn % 2 == 0        ? c->count - c->count / 4
                                  : c->count + c->count / 4;
}

size_t bench_block_at(const bench_case *c, int i, int j) {
    size_t at = 0;
    for (int k = 0; k < j; k++) {
        at += bench_block(c, i, k);
    }
    return at;
}

static void make_counts(bench_case *c) {
    size_t n = (size_t)c->size;
    c->counts = bench_memory(n * sizeof *c->counts);
    c->mpi_counts = bench_memory(n * sizeof *c->mpi_counts);
    c->mpi_at = bench_memory(n * sizeof *c->mpi_at);
    for (int j = 0; j < c->size; j++) {
        c->counts[j] = bench_block(c, c->rank, j);
        c->mpi_counts[j] = (int)c->counts[j];
        c->mpi_at[j] = (int)bench_block_at(c, c->rank, j);
    }
}

/* The size column is the larger side of one rank, as in nccl-tests. */
void bench_case_open(bench_case *c) {
    size_t n = c->bytes / dtr_dtype_size(c->dtype), N = (size_t)c->size;
    bool root = c->rank == c->root;
    n = n > 0 ? n : 1;
    c->count = !in_blocks(c->kind) ? n : n / N > 0 ? n / N : 1;
    size_t mine = bench_block(c, 0, c->rank), all = bench_block_at(c, c->rank, c->size);
    c->bytes = (in_blocks(c->kind) ? c->count * N : n) * dtr_dtype_size(c->dtype);
    c->in_count = c->out_count = all;
    switch (c->kind) {
    case BENCH_ALLGATHER:
    case BENCH_ALLGATHERV:
        c->in_count = mine;
        break;
    case BENCH_REDUCE_SCATTER:
    case BENCH_REDUCE_SCATTERV:
        c->out_count = mine;
        break;
    case BENCH_GATHER:
    case BENCH_GATHERV:
        c->in_count = mine;
        c->out_count = root ? all : 0;
        break;
    case BENCH_SCATTER:
    case BENCH_SCATTERV:
        c->in_count = root ? all : 0;
        c->out_count = mine;
        break;
    case BENCH_ALLTOALL:
    case BENCH_ALLTOALLV:
        break;
    case BENCH_REDUCE:
        c->in_count = n;
        c->out_count = root ? n : 0;
        break;
    case BENCH_PINGPONG: /* an odd last rank has no partner */
        c->in_count = c->out_count = (c->rank ^ 1) < c->size ? n : 0;
        break;
    case BENCH_BARRIER:
        c->in_count = c->out_count = c->count = c->bytes = 0;
        break;
    default:
        c->in_count = c->out_count = n;
        break;
    }
    make_counts(c);
}

void bench_case_close(bench_case *c) {
    free(c->counts);
    free(c->mpi_counts);
    free(c->mpi_at);
}

double bench_bus_factor(const bench_case *c) {
    double n = c->size;
    switch (c->kind) {
    case BENCH_ALLREDUCE:
        return 2 * (n - 1) / n;
    case BENCH_REDUCE:
    case BENCH_BROADCAST:
    case BENCH_SENDRECV:
        return 1;
    case BENCH_PINGPONG: /* there and back */
        return 2;
    default:
        return (n - 1) / n;
    }
}
