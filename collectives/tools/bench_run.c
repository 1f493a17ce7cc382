/* Taking samples: contenders in turn, fresh data before each call, the slowest rank counts. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

void *bench_memory(size_t nbytes) {
    void *p = calloc(nbytes > 0 ? nbytes : 1, 1);
    if (p == NULL) {
        fprintf(stderr, "dtr-bench: no memory for %zu bytes\n", nbytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    return p;
}

/* Small operations are far below the noise of the clock and of a barrier: many in a row are timed.
 */
static int calls_per_sample(const bench_case *c) {
    size_t bytes = c->bytes;
    return c->calls > 0       ? c->calls
           : bytes <= 4096    ? 200
           : bytes <= 65536   ? 40
           : bytes <= 1 << 18 ? 10
                              : 1;
}

static volatile uint64_t sink; /* keeps the compiler from dropping the reads */

/* Reading the result is part of the cost where it stays in another cache. */
static void read_all(const bench_case *c, const contender *who) {
    const unsigned char *p = c->in_place || c->kind == BENCH_BROADCAST ? who->in : who->out;
    const size_t nbytes = c->out_count * dtr_dtype_size(who->dtype); /* not asked for each word */
    uint64_t sum = 0, word = 0;
    for (size_t i = 0; i + 8 <= nbytes; i += 8) {
        memcpy(&word, p + i, 8);
        sum += word;
    }
    sink = sum;
}

static void write_input(const bench_case *c, const contender *who) {
    if (c->kind != BENCH_BROADCAST || c->rank == c->root) {
        memcpy(who->in, who->fresh, c->in_count * dtr_dtype_size(who->dtype));
    }
}

/* Where calls are timed in a row, the time that writing the input alone takes is taken off again.
 */
static double time_of_writing(const bench_case *c, const contender *who, int calls) {
    double start = measure_now();
    for (int i = 0; calls > 1 && i < calls; i++) {
        write_input(c, who);
        sink = ((volatile unsigned char *)who->in)[0];
    }
    return calls > 1 ? measure_now() - start : 0;
}

static double sample(const bench_case *c, const contender *who, dtr_group *g) {
    int calls = calls_per_sample(c);
    double writing = time_of_writing(c, who, calls);
    write_input(c, who);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = measure_now();
    for (int i = 0; i < calls; i++) {
        if (i > 0) {
            write_input(c, who);
        }
        bench_call(c, who, g);
        if (c->read_back) {
            read_all(c, who);
        }
    }
    double all = measure_now() - start;
    return measure_slowest((all > 2 * writing ? all - writing : all / 2) / calls);
}

static void device_sample(const bench_case *c, const contender *who, dtr_group *g, int round) {
    double seconds[3];
    int calls = calls_per_sample(c);
    bench_device->upload(c, who);
    MPI_Barrier(MPI_COMM_WORLD);
    bench_device->sample(c, who, g, calls, seconds);
    who->host[round] = measure_slowest(seconds[0] / calls);
    who->events[round] = measure_slowest(seconds[1] / calls);
    who->sample[round] = measure_slowest(seconds[2] / calls);
}

/* One call outside the clock, and its result. */
static void warm_up(const bench_case *c, contender *who, dtr_group *g) {
    unsigned long long wrong = 0, all = 0;
    bench_case plain = *c;
    plain.compute_s = 0;
    contender seen = *who;
    bool device = c->device.type == DTR_CUDA;
    bench_fill(c, who, 0);
    if (device) {
        bench_device->upload(c, who);
        seen.in = seen.out = who->back;
    } else {
        write_input(c, who);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    bench_call(&plain, who, g);
    if (device) {
        bench_device->download(c, who);
    }
    wrong = bench_check(c, &seen, 0);
    MPI_Allreduce(&wrong, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    who->wrong = (size_t)all;
}

void bench_run(const bench_case *c, contender *who, int n, int rounds, dtr_group *g) {
    for (int i = 0; i < n; i++) {
        warm_up(c, &who[i], g);
    }
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < n; i++) {
            contender *now = &who[(i + round) % n];
            bench_fill(c, now, round + 1);
            if (c->device.type == DTR_CUDA) {
                device_sample(c, now, g, round);
            } else {
                now->sample[round] = sample(c, now, g);
            }
        }
    }
}
