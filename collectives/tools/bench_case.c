/* The operations of dtr-bench: names, counts, and the factor from algorithm to bus bandwidth. */
#include <stdlib.h>

#include "bench.h"

/* What a rank gives or gets: a buffer of `count`; its block of all; all blocks; at the root alone.
 */
typedef enum side { NOTHING, WHOLE, OWN, ALL, ROOT_WHOLE, ROOT_ALL } side;

static const struct {
    const char *name;
    bool reduces, varies;
    side in, out;
} kinds[BENCH_KINDS] = {
    [BENCH_ALLREDUCE] = { "allreduce", true, false, WHOLE, WHOLE },
    [BENCH_REDUCE] = { "reduce", true, false, WHOLE, ROOT_WHOLE },
    [BENCH_BROADCAST] = { "broadcast", false, false, WHOLE, WHOLE },
    [BENCH_ALLGATHER] = { "allgather", false, false, OWN, ALL },
    [BENCH_ALLGATHERV] = { "allgatherv", false, true, OWN, ALL },
    [BENCH_REDUCE_SCATTER] = { "reduce_scatter", true, false, ALL, OWN },
    [BENCH_REDUCE_SCATTERV] = { "reduce_scatterv", true, true, ALL, OWN },
    [BENCH_ALLTOALL] = { "alltoall", false, false, ALL, ALL },
    [BENCH_ALLTOALLV] = { "alltoallv", false, true, ALL, ALL },
    [BENCH_GATHER] = { "gather", false, false, OWN, ROOT_ALL },
    [BENCH_GATHERV] = { "gatherv", false, true, OWN, ROOT_ALL },
    [BENCH_SCATTER] = { "scatter", false, false, ROOT_ALL, OWN },
    [BENCH_SCATTERV] = { "scatterv", false, true, ROOT_ALL, OWN },
    [BENCH_SENDRECV] = { "sendrecv", false, false, WHOLE, WHOLE },
    [BENCH_PINGPONG] = { "pingpong", false, false, WHOLE, WHOLE },
    [BENCH_BARRIER] = { "barrier", false, false, NOTHING, NOTHING },
    [BENCH_SCAN] = { "scan", true, false, WHOLE, WHOLE },
    [BENCH_EXSCAN] = { "exscan", true, false, WHOLE, WHOLE },
    [BENCH_WAITALL] = { "waitall", false, false, WHOLE, WHOLE },
};

const char *bench_kind_name(bench_kind k) {
    return kinds[k].name;
}

bool bench_reduces(bench_kind k) {
    return kinds[k].reduces;
}

int bench_sources(const bench_case *c) {
    return c->kind == BENCH_SCAN ? c->rank + 1 : c->kind == BENCH_EXSCAN ? c->rank : c->size;
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

static size_t elements(const bench_case *c, side s) {
    const bool root = c->rank == c->root,
               none = c->kind == BENCH_PINGPONG && (c->rank ^ 1) >= c->size;
    const size_t of[] = { [WHOLE] = none ? 0 : c->count, /* an odd last rank has no partner */
                          [OWN] = bench_block(c, 0, c->rank),
                          [ALL] = bench_block_at(c, c->rank, c->size),
                          [ROOT_WHOLE] = root ? c->count : 0,
                          [ROOT_ALL] = root ? bench_block_at(c, c->rank, c->size) : 0 };
    return of[s];
}

/* The size column is the larger side of one rank, as in nccl-tests. */
void bench_case_open(bench_case *c) {
    size_t size = dtr_dtype_size(c->dtype), n = c->bytes / size, N = (size_t)c->size;
    n = c->kind == BENCH_WAITALL ? n / BENCH_MESSAGES * BENCH_MESSAGES : n;
    n = n > 0 ? n : c->kind == BENCH_WAITALL ? BENCH_MESSAGES : 1;
    c->count = kinds[c->kind].in == NOTHING ? 0 : !in_blocks(c->kind) ? n : n / N > 0 ? n / N : 1;
    c->bytes = (in_blocks(c->kind) ? c->count * N : c->count) * size;
    c->in_count = elements(c, kinds[c->kind].in);
    c->out_count = elements(c, kinds[c->kind].out);
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
    case BENCH_SCAN:
    case BENCH_EXSCAN:
    case BENCH_WAITALL:
        return 1;
    case BENCH_PINGPONG: /* there and back */
        return 2;
    default:
        return (n - 1) / n;
    }
}
