/* dtr-bench --tune: from which size on each way of the shm backend is the faster one here, and, on
 * several nodes, each way of an allreduce between them. Two worlds with different thresholds take
 * turns; what wins is written as a file for DTR_TUNE_FILE. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dtr/mpi.h>

#include "bench.h"

enum {
    SLICED_FROM = 4, /* ranks of a node; more may reduce by slices, `slices` counts those beyond */
    LEAST = 64 << 10,
    LEAST_NODES = 4 << 10,
    LEAST_SHARED = 12 << 10, /* below, results of the way through slots are read back faster */
    /* What it is unasked over TCP, where MPI sends every message of it without asking first. */
    SEGMENT = 7 << 10,
    SEGMENT_LEAST = 7 << 10,
    SEGMENT_MOST = 448 << 10,
    INLINE_LEAST = 4 << 10, /* of messages in one, and the most that nodes_inline takes */
    INLINE_MOST = 128 << 10,
    MOST_ROUNDS = 64
};
static const double WINS = 1.05; /* less is noise */

typedef struct tuner {
    MPI_Comm node; /* or one rank of each node */
    int rounds;
    size_t most;
    bool talks; /* says how far it is */
} tuner;

static void stop(const char *what) {
    fprintf(stderr, "dtr-bench: --tune: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

/* A world of these ranks with these thresholds; attach: may it read plain memory of peers? */
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

/* There and back between neighbours; of an odd number the last one looks on. */
static dtr_status there_and_back(const tuned *a, dtr_buffer in, dtr_buffer out) {
    dtr_group *g = dtr_world_group(a->world);
    const int rank = dtr_world_rank(a->world), peer = rank ^ 1;
    dtr_status s = DTR_OK;
    for (int turn = 0; s == DTR_OK && turn < 2 && peer < dtr_world_size(a->world); turn++) {
        s = turn == rank % 2 ? dtr_send(g, in, peer, 0, NULL, NULL)
                             : dtr_recv(g, out, peer, 0, NULL, NULL);
    }
    return s;
}

static dtr_status call(const tuned *a, bench_kind kind, size_t count) {
    dtr_group *g = dtr_world_group(a->world);
    const int rank = dtr_world_rank(a->world), size = dtr_world_size(a->world);
    const size_t block = count / (size_t)size;
    const dtr_buffer in = dtr_cpu(a->in, count, DTR_F32), out = dtr_cpu(a->out, count, DTR_F32);
    switch (kind) {
    case BENCH_ALLREDUCE:
        return dtr_allreduce(g, in, out, DTR_SUM, NULL, NULL);
    case BENCH_SENDRECV:
        return dtr_batch_p2p(g,
                             (dtr_p2p[]){ { true, in, (rank + 1) % size, 0 },
                                          { false, out, (rank + size - 1) % size, 0 } },
                             2, NULL, NULL);
    case BENCH_PINGPONG:
        return there_and_back(a, in, out);
    case BENCH_ALLTOALL:
        return dtr_alltoall(g, dtr_cpu(a->in, block * (size_t)size, DTR_F32),
                            dtr_cpu(a->out, block * (size_t)size, DTR_F32), NULL, NULL);
    default:
        return dtr_allgather(g, dtr_cpu(a->in, block, DTR_F32),
                             dtr_cpu(a->out, block * (size_t)size, DTR_F32), NULL, NULL);
    }
}

/* Seconds of the slowest rank, on fresh data. */
static double once(const tuner *t, const tuned *a, bench_kind kind, size_t nbytes) {
    const int calls = nbytes <= 1 << 20 ? 8 : 1;
    dtr_status s = DTR_OK;
    memset(a->in, 0, nbytes);
    MPI_Barrier(t->node);
    const double from = measure_now();
    for (int i = 0; i < calls && s == DTR_OK; i++) {
        s = call(a, kind, nbytes / sizeof(float));
    }
    if (s != DTR_OK) {
        stop(dtr_last_error_message());
    }
    double seconds = (measure_now() - from) / calls;
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, t->node);
    return seconds;
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

/* Sizes at which the second of two ways is to be taken; bytes, 0: never. */
typedef struct span {
    size_t from, end;
} span;

/* What is compared: the second world has the way that the threshold is about. */
typedef struct contest {
    const char *name, *before, *after;
    bool attach_before, attach_after;
    bench_kind kind;
    dtr_mem memory;
    size_t least;
} contest;

/* The last sizes in a row at which the second way wins. */
static span winning(const tuner *t, const contest *c) {
    tuned way[2] = { { .world = world_with(t, c->before, c->attach_before) },
                     { .world = world_with(t, c->after, c->attach_after) } };
    span won = { 0, 0 };
    for (size_t nbytes = c->least; nbytes <= t->most; nbytes *= 4) {
        const double ratio = gain(t, way, c->kind, c->memory, nbytes);
        if (ratio >= WINS && (won.from == 0 || won.end != 0)) {
            won = (span){ nbytes, 0 };
        } else if (ratio < WINS && won.from != 0 && won.end == 0) {
            won.end = nbytes;
        }
        if (t->talks) {
            printf("# %-10s %10zu bytes: %.2f times as fast\n", c->name, nbytes, ratio);
            fflush(stdout);
        }
    }
    for (int i = 0; i < 2; i++) {
        dtr_world_destroy(way[i].world);
    }
    return won;
}

/* The smallest size from which on the second way wins up to the largest; 0: it does not. */
static size_t crossing(const tuner *t, const contest *c) {
    const span won = winning(t, c);
    return won.end == 0 ? won.from : 0;
}

/* The piece that is fastest at a middle and a large size of plain buffers: of `least` to `most`
 * bytes, `best` before. */
static size_t best_piece(const tuner *t, const char *name, const char *others, bool attach,
                         size_t best, size_t least, size_t most) {
    const size_t middle = t->most < 1 << 20 ? t->most : 1 << 20;
    const size_t large = t->most < 16 << 20 ? t->most : 16 << 20;
    for (size_t piece = least; piece <= most; piece *= 2) {
        char before[64], after[64];
        if (piece == best) {
            continue;
        }
        snprintf(before, sizeof before, "%s%s=%zu", others, name, best);
        snprintf(after, sizeof after, "%s%s=%zu", others, name, piece);
        tuned way[2] = { { .world = world_with(t, before, attach) },
                         { .world = world_with(t, after, attach) } };
        const double ratio = gain(t, way, BENCH_ALLREDUCE, DTR_MEM_DEFAULT, middle) *
                             gain(t, way, BENCH_ALLREDUCE, DTR_MEM_DEFAULT, large);
        for (int i = 0; i < 2; i++) {
            dtr_world_destroy(way[i].world);
        }
        best = ratio > WINS * WINS ? piece : best;
        if (t->talks) {
            printf("# %-10s %10zu bytes: %s now\n", name, piece,
                   best == piece ? "best" : "not best");
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

static const contest reduced = { "cma_reduce", "stream=0",      "cma_reduce=1",  false,
                                 true,         BENCH_ALLREDUCE, DTR_MEM_DEFAULT, LEAST };
static const contest copied = { "cma_copy", "stream=0",      "cma_copy=1",    false,
                                true,       BENCH_ALLGATHER, DTR_MEM_DEFAULT, LEAST };
static const contest dealt = { "cma_deal", "cma_deal=never", "cma_deal=1",    true,
                               true,       BENCH_ALLTOALL,   DTR_MEM_DEFAULT, LEAST };
static const contest sent = { "cma_p2p", "cma_p2p=never", "cma_p2p=1",     true,
                              true,      BENCH_PINGPONG,  DTR_MEM_DEFAULT, LEAST };
static const contest exchanged = { "cma_exchange",
                                   "cma_p2p=never,cma_exchange=never",
                                   "cma_p2p=never,cma_exchange=1",
                                   true,
                                   true,
                                   BENCH_SENDRECV,
                                   DTR_MEM_DEFAULT,
                                   LEAST };
static const contest nontemporal = { "stream", "stream=never",  "stream=1",     false,
                                     false,    BENCH_ALLREDUCE, DTR_MEM_SHARED, LEAST };
static const contest zero = { "zero_copy", "zero_copy=never", "zero_copy=1",  false,
                              false,       BENCH_ALLREDUCE,   DTR_MEM_SHARED, LEAST_SHARED };
static const contest sliced = { "slices", "slices=never",  "slices=0",      false,
                                false,    BENCH_ALLREDUCE, DTR_MEM_DEFAULT, LEAST };

/* By halves against all at once: from where they win on the latter is not taken any more. */
static const contest halved = { "nodes_doubling",
                                "nodes_piece=0,nodes_doubling=never",
                                "nodes_piece=0,nodes_doubling=0",
                                false,
                                false,
                                BENCH_ALLREDUCE,
                                DTR_MEM_DEFAULT,
                                LEAST_NODES };
/* With the segments that are best for both. */
static size_t ring_crossing(const tuner *t, size_t segment) {
    char before[128], after[sizeof before + sizeof ",nodes_ring=1"];
    contest c = { "nodes_ring", before,          after,           false,
                  false,        BENCH_ALLREDUCE, DTR_MEM_DEFAULT, LEAST_NODES };
    snprintf(before, sizeof before, "nodes_piece=0,nodes_doubling=0,nodes_segment=%zu", segment);
    snprintf(after, sizeof after, "%s,nodes_ring=1", before);
    return crossing(t, &c);
}

/* Up to which size messages in one are not slower than those that the receiver asks for. */
static size_t inline_most(const tuner *t) {
    tuned way[2] = { { .world = world_with(t, "nodes_inline=4KiB", false) },
                     { .world = world_with(t, "nodes_inline=128KiB", false) } };
    size_t most = INLINE_LEAST;
    double ratio = WINS;
    for (size_t nbytes = 2 * INLINE_LEAST; nbytes <= INLINE_MOST && ratio >= 1; nbytes *= 2) {
        ratio = gain(t, way, BENCH_SENDRECV, DTR_MEM_DEFAULT, nbytes);
        most = ratio >= 1 ? nbytes : most;
        if (t->talks) {
            printf("# %-10s %10zu bytes: %.2f times as fast\n", "nodes_inline", nbytes, ratio);
            fflush(stdout);
        }
    }
    for (int i = 0; i < 2; i++) {
        dtr_world_destroy(way[i].world);
    }
    return most;
}

/* Between nodes, of which one rank each takes part; the others wait. */
static void measure_between(const tuner *t, FILE *to) {
    int rank = 0, nodes = 1, all = 0;
    tuner between = *t;
    MPI_Request done;
    MPI_Comm_rank(t->node, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 0 : MPI_UNDEFINED, 0, &between.node);
    if (between.node != MPI_COMM_NULL) {
        MPI_Comm_size(between.node, &nodes);
        if (nodes > 1) {
            const size_t doubling = crossing(&between, &halved);
            const size_t segment = best_piece(&between, "nodes_segment", "nodes_piece=0,", false,
                                              SEGMENT, SEGMENT_LEAST, SEGMENT_MOST);
            const size_t ring = ring_crossing(&between, segment), most = inline_most(&between);
            if (to != NULL) {
                write_threshold(to, "nodes_doubling", doubling / 4);
                write_threshold(to, "nodes_ring", ring);
                write_threshold(to, "nodes_segment", segment);
                write_threshold(to, "nodes_inline", most);
            }
        }
        MPI_Comm_free(&between.node);
    }
    MPI_Ibarrier(MPI_COMM_WORLD, &done);
    for (; !all; usleep(1000)) { /* a core is left to who measures */
        MPI_Test(&done, &all, MPI_STATUS_IGNORE);
    }
}

/* Inside a node; measures in turn and writes what it finds. */
static void measure_node(const tuner *t, FILE *to, int ranks) {
    const span attached = winning(t, &reduced);
    const size_t cma_copy = crossing(t, &copied), cma_deal = crossing(t, &dealt);
    const size_t cma_p2p = crossing(t, &sent), cma_exchange = crossing(t, &exchanged);
    const size_t stream = crossing(t, &nontemporal), zero_copy = crossing(t, &zero);
    const size_t slices = ranks > SLICED_FROM ? crossing(t, &sliced) : 0;
    const size_t chunk = best_piece(t, "chunk", "", false, 128 << 10, 32 << 10, 512 << 10);
    const size_t cma_piece =
        best_piece(t, "cma_piece", "cma_reduce=1,", true, 512 << 10, 64 << 10, 1 << 20);
    if (to == NULL) {
        return;
    }
    write_threshold(to, "zero_copy", zero_copy);
    write_threshold(to, "cma_reduce", attached.from);
    write_threshold(to, "cma_end", attached.end);
    write_threshold(to, "cma_piece", cma_piece);
    write_threshold(to, "cma_copy", cma_copy);
    write_threshold(to, "cma_deal", cma_deal);
    write_threshold(to, "cma_p2p", cma_p2p);
    write_threshold(to, "cma_exchange", cma_exchange);
    write_threshold(to, "stream", stream);
    write_threshold(to, "chunk", chunk);
    if (ranks > SLICED_FROM) {
        write_threshold(to, "slices", slices * (size_t)(ranks - SLICED_FROM));
    }
}

static void write_head(FILE *to, int ranks) {
    char cpu[128], mpi[128];
    measure_cpu_name(cpu, sizeof cpu);
    measure_mpi_name(mpi, sizeof mpi);
    fprintf(to,
            "dtr-tune 1\n# Thresholds in bytes of one rank's buffer, measured by dtr-bench "
            "--tune under %s.\n# DTR_TUNE_FILE names this file; sections of other nodes may "
            "be added.\nnode \"%s\" %d\n",
            mpi, cpu, ranks);
}

int bench_tune(const bench_options *o) {
    tuner t = { .rounds = o->rounds < MOST_ROUNDS ? o->rounds : MOST_ROUNDS,
                .most = o->max_bytes > LEAST ? o->max_bytes : LEAST };
    int rank = 0, size = 1, ranks = 1;
    FILE *to = NULL; /* NULL on ranks that only take part */
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &t.node);
    MPI_Comm_size(t.node, &ranks);
    t.talks = rank == 0;
    if (size < 2) {
        stop("give it two ranks at least");
    }
    if (t.talks && (to = fopen(o->tune, "w")) == NULL) {
        perror(o->tune);
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    if (to != NULL) {
        write_head(to, ranks);
    }
    if (ranks > 1) {
        measure_node(&t, to, ranks);
    }
    measure_between(&t, to);
    if (to != NULL) {
        const bool written = ferror(to) == 0;
        if (fclose(to) != 0 || !written) {
            stop("the file could not be written");
        }
        printf("# written to %s\n", o->tune);
    }
    MPI_Comm_free(&t.node);
    return 0;
}
