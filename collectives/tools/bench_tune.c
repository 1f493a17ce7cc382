/* dtr-bench --tune: from which size on each way of the shm backend is the faster one here. Two
 * worlds with different thresholds take turns; what wins is written as a file for DTR_TUNE_FILE. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/mpi.h>

#include "bench.h"

enum {
    LEAST = 64 << 10,
    LEAST_SHARED = 12 << 10, /* up to 8 KiB the data travels in the posts */
    MOST_ROUNDS = 64
};
static const double WINS = 1.05; /* less is noise */

typedef struct tuner {
    MPI_Comm node;
    int rounds;
    size_t most;
} tuner;

static void stop(const char *what) {
    fprintf(stderr, "dtr-bench: --tune: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

/* A world of this node with these thresholds; attach: may it read plain memory of peers? */
static dtr_world *world_with(const tuner *t, const char *thresholds, bool attach) {
    dtr_world *w = NULL;
    unsetenv("DTR_TUNE_FILE");
    setenv("DTR_TUNE", thresholds, 1);
    setenv("DTR_CMA", attach ? "auto" : "off", 1);
    if (dtr_world_create_from_comm(t->node, NULL, &w) != DTR_OK) {
        stop(dtr_last_error_message());
    }
    unsetenv("DTR_TUNE");
    unsetenv("DTR_CMA");
    return w;
}

typedef struct tuned {
    dtr_world *world;
    float *in, *out;
    double sample[MOST_ROUNDS];
} tuned;

static void take_memory(tuned *a, dtr_mem memory, size_t nbytes) {
    void *in = NULL, *out = NULL;
    if (dtr_alloc(a->world, (dtr_device){ DTR_CPU, 0 }, memory, nbytes, &in) != DTR_OK ||
        dtr_alloc(a->world, (dtr_device){ DTR_CPU, 0 }, memory, nbytes, &out) != DTR_OK) {
        stop(dtr_last_error_message());
    }
    a->in = in;
    a->out = out;
    memset(out, 0, nbytes);
}

/* Seconds of the slowest rank, on fresh data. */
static double once(const tuner *t, const tuned *a, bench_kind kind, size_t nbytes) {
    const int calls = nbytes <= 1 << 20 ? 8 : 1;
    const size_t count = nbytes / sizeof(float), block = count / (size_t)dtr_world_size(a->world);
    dtr_group *g = dtr_world_group(a->world);
    dtr_status s = DTR_OK;
    memset(a->in, 0, nbytes);
    MPI_Barrier(t->node);
    const double from = measure_now();
    for (int i = 0; i < calls && s == DTR_OK; i++) {
        s = kind == BENCH_ALLREDUCE
                ? dtr_allreduce(g, dtr_cpu(a->in, count, DTR_F32), dtr_cpu(a->out, count, DTR_F32),
                                DTR_SUM, NULL, NULL)
                : dtr_allgather(g, dtr_cpu(a->in, block, DTR_F32),
                                dtr_cpu(a->out, block * (size_t)dtr_world_size(a->world), DTR_F32),
                                NULL, NULL);
    }
    if (s != DTR_OK) {
        stop(dtr_last_error_message());
    }
    double mine = (measure_now() - from) / calls, slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, t->node);
    return slowest;
}

/* How many times faster the second way is. */
static double gain(const tuner *t, tuned *way, bench_kind kind, dtr_mem memory, size_t nbytes) {
    for (int i = 0; i < 2; i++) {
        take_memory(&way[i], memory, nbytes);
        (void)once(t, &way[i], kind, nbytes);
    }
    for (int round = 0; round < t->rounds; round++) {
        for (int i = 0; i < 2; i++) {
            tuned *now = &way[(i + round) % 2];
            now->sample[round] = once(t, now, kind, nbytes);
        }
    }
    for (int i = 0; i < 2; i++) {
        dtr_free(way[i].world, way[i].in);
        dtr_free(way[i].world, way[i].out);
    }
    double ratio = measure_ratio(way[0].sample, way[1].sample, t->rounds);
    MPI_Bcast(&ratio, 1, MPI_DOUBLE, 0, t->node);
    return ratio;
}

/* The smallest size from `least` on from which on the second way wins up to the largest; 0: it does
 * not. */
static size_t crossing(const tuner *t, const char *name, tuned *way, bench_kind kind,
                       dtr_mem memory, size_t least, bool talk) {
    size_t from = 0;
    for (size_t nbytes = least; nbytes <= t->most; nbytes *= 4) {
        const double ratio = gain(t, way, kind, memory, nbytes);
        from = ratio < WINS ? 0 : from != 0 ? from : nbytes;
        if (talk) {
            printf("# %-10s %10zu bytes: %.2f times as fast\n", name, nbytes, ratio);
            fflush(stdout);
        }
    }
    for (int i = 0; i < 2; i++) {
        dtr_world_destroy(way[i].world);
    }
    return from;
}

/* The staging chunk that is fastest at a middle and a large size. */
static size_t best_chunk(const tuner *t, bool talk) {
    size_t best = 128 << 10;
    const size_t middle = t->most < 1 << 20 ? t->most : 1 << 20;
    const size_t large = t->most < 16 << 20 ? t->most : 16 << 20;
    for (size_t chunk = 32 << 10; chunk <= 512 << 10; chunk *= 2) {
        char before[64], after[64];
        if (chunk == best) {
            continue;
        }
        snprintf(before, sizeof before, "chunk=%zu", best);
        snprintf(after, sizeof after, "chunk=%zu", chunk);
        tuned way[2] = { { .world = world_with(t, before, false) },
                         { .world = world_with(t, after, false) } };
        const double ratio = gain(t, way, BENCH_ALLREDUCE, DTR_MEM_DEFAULT, middle) *
                             gain(t, way, BENCH_ALLREDUCE, DTR_MEM_DEFAULT, large);
        for (int i = 0; i < 2; i++) {
            dtr_world_destroy(way[i].world);
        }
        best = ratio > WINS * WINS ? chunk : best;
        if (talk) {
            printf("# chunk      %10zu bytes: %s now\n", chunk,
                   best == chunk ? "best" : "not best");
            fflush(stdout);
        }
    }
    return best;
}

static void write_threshold(FILE *to, const char *name, size_t nbytes) {
    if (nbytes == 0) {
        fprintf(to, "%s never\n", name);
    } else {
        fprintf(to, "%s %zuKiB\n", name, nbytes / 1024);
    }
}

int bench_tune(const bench_options *o) {
    tuner t = { .rounds = o->rounds < MOST_ROUNDS ? o->rounds : MOST_ROUNDS,
                .most = o->max_bytes > LEAST ? o->max_bytes : LEAST };
    int rank = 0, ranks = 1;
    FILE *to = NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &t.node);
    MPI_Comm_size(t.node, &ranks);
    const bool talk = rank == 0;
    if (ranks < 2) {
        stop("give each node two ranks at least");
    }
    if (talk && (to = fopen(o->tune, "w")) == NULL) {
        perror(o->tune);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    tuned reduce[2] = { { .world = world_with(&t, "stream=0", false) },
                        { .world = world_with(&t, "cma_reduce=1", true) } };
    const size_t cma_reduce =
        crossing(&t, "cma_reduce", reduce, BENCH_ALLREDUCE, DTR_MEM_DEFAULT, LEAST, talk);
    tuned copy[2] = { { .world = world_with(&t, "stream=0", false) },
                      { .world = world_with(&t, "cma_copy=1", true) } };
    const size_t cma_copy =
        crossing(&t, "cma_copy", copy, BENCH_ALLGATHER, DTR_MEM_DEFAULT, LEAST, talk);
    tuned past[2] = { { .world = world_with(&t, "stream=never", false) },
                      { .world = world_with(&t, "stream=1", false) } };
    const size_t stream =
        crossing(&t, "stream", past, BENCH_ALLREDUCE, DTR_MEM_SHARED, LEAST, talk);
    tuned zero[2] = { { .world = world_with(&t, "zero_copy=never", false) },
                      { .world = world_with(&t, "zero_copy=1", false) } };
    const size_t zero_copy =
        crossing(&t, "zero_copy", zero, BENCH_ALLREDUCE, DTR_MEM_SHARED, LEAST_SHARED, talk);
    const size_t chunk = best_chunk(&t, talk);
    if (talk) {
        char cpu[128], mpi[128];
        measure_cpu_name(cpu, sizeof cpu);
        measure_mpi_name(mpi, sizeof mpi);
        fprintf(to,
                "dtr-tune 1\n# Thresholds in bytes of one rank's buffer, measured by dtr-bench "
                "--tune under %s.\n# DTR_TUNE_FILE names this file; sections of other nodes may "
                "be added.\nnode \"%s\" %d\n",
                mpi, cpu, ranks);
        write_threshold(to, "zero_copy", zero_copy);
        write_threshold(to, "cma_reduce", cma_reduce);
        write_threshold(to, "cma_copy", cma_copy);
        write_threshold(to, "stream", stream);
        write_threshold(to, "chunk", chunk);
        const bool written = ferror(to) == 0;
        if (fclose(to) != 0 || !written) {
            stop("the file could not be written");
        }
        printf("# written to %s\n", o->tune);
    }
    MPI_Comm_free(&t.node);
    return 0;
}
