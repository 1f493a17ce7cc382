/* Taking samples: contenders in turn, a barrier before each, fresh data, the slowest rank counts.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* Small operations are far below the clock's and the barrier's noise: time many in a row. */
static int calls_per_sample(size_t bytes) {
    return bytes <= 4096 ? 200 : bytes <= 65536 ? 40 : bytes <= 1 << 20 ? 4 : 1;
}

/* Reading the result is part of the cost where it stays in another cache. */
static double read_all(const bench_case *c, const contender *who) {
    const unsigned char *p = c->in_place || c->kind == BENCH_BROADCAST ? who->in : who->out;
    uint64_t sum = 0, word = 0;
    for (size_t i = 0; i + 8 <= c->out_count * dtr_dtype_size(who->dtype); i += 8) {
        memcpy(&word, p + i, 8);
        sum += word;
    }
    return (double)sum;
}

static volatile double sink; /* keeps the compiler from dropping the reads */

static double sample(const bench_case *c, const contender *who, dtr_group *g, int round) {
    int calls = calls_per_sample(c->bytes);
    bench_fill(c, who, round);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = measure_now();
    for (int i = 0; i < calls; i++) {
        if (c->in_count > 0 && i > 0 && !c->in_place) { /* fresh data each call */
            ((volatile unsigned char *)who->in)[0] = ((volatile unsigned char *)who->in)[0];
        }
        bench_call(c, who, g);
        if (c->read_back) {
            sink = read_all(c, who);
        }
    }
    return measure_slowest((measure_now() - start) / calls);
}

void bench_run(const bench_case *c, contender *who, int n, int rounds, dtr_world *w) {
    dtr_group *g = dtr_world_group(w);
    for (int i = 0; i < n; i++) {
        unsigned long long wrong = 0, all = 0;
        bench_fill(c, &who[i], 0);
        MPI_Barrier(MPI_COMM_WORLD);
        bench_case plain = *c;
        plain.compute_s = 0;
        bench_call(&plain, &who[i], g); /* warms up, and is checked */
        wrong = bench_check(c, &who[i], 0);
        MPI_Allreduce(&wrong, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
        who[i].wrong = all;
    }
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < n; i++) {
            contender *now = &who[(i + round) % n];
            now->sample[round] = sample(c, now, g, round + 1);
        }
    }
}
