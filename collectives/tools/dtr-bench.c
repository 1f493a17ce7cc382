/* dtr-bench: collectives against the stock MPI call of the same build, paired in one run. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/mpi.h>

#include "bench.h"

static const char help[] =
    "dtr-bench - times collectives against the MPI beneath, contenders taking turns in one run\n"
    "  mpirun -n 2 --bind-to core dtr-bench [options] [call ...]\n\n"
    "calls: allreduce (default) reduce broadcast allgather reduce_scatter alltoall gather scatter "
    "barrier, or all\n\n"
    "  -b, --min SIZE     smallest size in bytes, as 8, 4K, 1M (8)\n"
    "  -e, --max SIZE     largest size (64M)\n"
    "  -f, --factor N     from one size to the next (4)\n"
    "  -d, --dtype LIST   element types, as f32,bf16 (f32); 16-bit reductions are paired with our "
    "own f32\n"
    "  -o, --op NAME      sum avg prod min max (sum)\n"
    "  -r, --rounds N     samples per contender (21)\n"
    "  -R, --runs N       times the whole is run (1)\n"
    "  -m, --memory NAME  plain, shared or both (both)\n"
    "  -M, --mode NAME    blocking, async or overlap (blocking)\n"
    "      --compute NAME overlap: device (leaves the core free) or cpu (device)\n"
    "      --in-place     allreduce in place\n"
    "      --read-back    read the result inside the timing\n"
    "      --no-peer      leave stock MPI out\n"
    "  -j, --json FILE    write all rows as JSON too\n"
    "  -h, --help         this text\n\n"
    "The run is void, exit status 3, when the memory bandwidth before and after it differs by more "
    "than 20 %.\n";

static bool parse_dtypes(char *list, bool *dtype) {
    memset(dtype, 0, 14 * sizeof *dtype);
    for (char *name = strtok(list, ","); name != NULL; name = strtok(NULL, ",")) {
        int d = 0;
        while (d < 14 && strcmp(dtr_dtype_name((dtr_dtype)d), name) != 0) {
            d++;
        }
        if (d == 14) {
            return false;
        }
        dtype[d] = true;
    }
    return true;
}

enum { COMPUTE = 256, IN_PLACE, READ_BACK, NO_PEER };
static const struct option table[] = {
    { "min", 1, NULL, 'b' },
    { "max", 1, NULL, 'e' },
    { "factor", 1, NULL, 'f' },
    { "dtype", 1, NULL, 'd' },
    { "op", 1, NULL, 'o' },
    { "rounds", 1, NULL, 'r' },
    { "runs", 1, NULL, 'R' },
    { "memory", 1, NULL, 'm' },
    { "mode", 1, NULL, 'M' },
    { "compute", 1, NULL, COMPUTE },
    { "in-place", 0, NULL, IN_PLACE },
    { "read-back", 0, NULL, READ_BACK },
    { "no-peer", 0, NULL, NO_PEER },
    { "json", 1, NULL, 'j' },
    { "help", 0, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

static bool take(bench_options *o, int which) {
    static const char *const ops[] = { "sum", "avg", "prod", "min", "max", NULL };
    static const char *const memories[] = { "plain", "shared", "both", NULL };
    static const char *const modes[] = { "blocking", "async", "overlap", NULL };
    static const char *const computes[] = { "device", "cpu", NULL };
    int i = 0;
    switch (which) {
    case 'b':
        return measure_parse_size(optarg, &o->min_bytes);
    case 'e':
        return measure_parse_size(optarg, &o->max_bytes);
    case 'f':
        return measure_parse_count(optarg, 2, &o->factor);
    case 'd':
        return parse_dtypes(optarg, o->dtype);
    case 'r':
        return measure_parse_count(optarg, 1, &o->rounds);
    case 'R':
        return measure_parse_count(optarg, 1, &o->runs);
    case 'o':
        i = measure_word(optarg, ops);
        o->op = (dtr_op)i;
        return i >= 0;
    case 'm':
        i = measure_word(optarg, memories);
        o->plain = i != 1;
        o->shared = i != 0;
        return i >= 0;
    case 'M':
        i = measure_word(optarg, modes);
        o->mode = (bench_mode)i;
        return i >= 0;
    case COMPUTE:
        i = measure_word(optarg, computes);
        o->cpu_compute = i == 1;
        return i >= 0;
    case IN_PLACE:
        o->in_place = true;
        return true;
    case READ_BACK:
        o->read_back = true;
        return true;
    case NO_PEER:
        o->peer = false;
        return true;
    case 'j':
        o->json = optarg;
        return true;
    default:
        return false;
    }
}

/* 0: go on; else the exit status + 1. */
static int parse(bench_options *o, int argc, char **argv, bool loud) {
    int which = 0;
    opterr = loud;
    while ((which = getopt_long(argc, argv, "b:e:f:d:o:r:R:m:M:j:h", table, NULL)) != -1) {
        if (which == 'h') {
            if (loud) {
                fputs(help, stdout);
            }
            return 1;
        }
        if (!take(o, which)) {
            if (loud && which != '?') {
                measure_bad_option("dtr-bench", table, which, optarg);
            }
            return 3;
        }
    }
    o->kind[BENCH_ALLREDUCE] = optind == argc;
    for (; optind < argc; optind++) {
        bool found = false;
        for (int k = 0; k < BENCH_KINDS; k++) {
            bool this = strcmp(argv[optind], "all") == 0 ||
                        strcmp(argv[optind], bench_kind_name((bench_kind)k)) == 0;
            o->kind[k] = o->kind[k] || this;
            found = found || this;
        }
        if (!found) {
            if (loud) {
                fprintf(stderr, "dtr-bench: '%s' is no call; see --help\n", argv[optind]);
            }
            return 3;
        }
    }
    return 0;
}

/* ---- contenders ---- */

static void *room(dtr_world *w, bool shared, size_t nbytes) {
    void *p = NULL;
    if (dtr_alloc(w, (dtr_device){ DTR_CPU, 0 }, shared ? DTR_MEM_SHARED : DTR_MEM_DEFAULT, nbytes,
                  &p) != DTR_OK) {
        fprintf(stderr, "dtr-bench: %s\n", dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(p, 0, nbytes);
    return p;
}

static contender make(const bench_case *c, dtr_world *w, const char *name, bool mpi, bool shared,
                      dtr_dtype d, int rounds) {
    size_t size = dtr_dtype_size(d);
    contender who = { .name = name, .mpi = mpi, .shared = shared, .dtype = d };
    who.in = room(w, shared, c->in_count * size + 64);
    who.out = room(w, shared, c->out_count * size + 64);
    who.sample = calloc((size_t)rounds, sizeof *who.sample);
    return who;
}

/* The peer comes first: stock MPI, or our float32 for the reduction of a type that MPI lacks. */
static int gather_contenders(const bench_options *o, const bench_case *c, dtr_world *w,
                             contender *who, bool *has_peer) {
    int n = 0;
    bool own_type = !bench_has_mpi_type(c->dtype) && bench_reduces(c->kind);
    *has_peer = o->peer;
    if (o->peer && own_type) {
        who[n++] = make(c, w, "dtr f32", false, o->shared, DTR_F32, o->rounds);
    } else if (o->peer) {
        who[n++] = make(c, w, "mpi", true, false, c->dtype, o->rounds);
    }
    if (o->plain) {
        who[n++] = make(c, w, "plain", false, false, c->dtype, o->rounds);
    }
    if (o->shared) {
        who[n++] = make(c, w, "shared", false, true, c->dtype, o->rounds);
    }
    return n;
}

/* Overlap: compute as long as the operation alone takes; what is longer than compute was not
 * hidden. */
static void run_overlap(bench_case *c, contender *who, int n, int rounds, dtr_world *w) {
    double alone[4] = { 0 };
    c->mode = BENCH_BLOCKING;
    bench_run(c, who, n, rounds, w);
    for (int i = 0; i < n; i++) {
        alone[i] = measure_median(who[i].sample, rounds);
        c->compute_s = alone[i] > c->compute_s ? alone[i] : c->compute_s;
    }
    MPI_Bcast(&c->compute_s, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    c->mode = BENCH_OVERLAP;
    bench_run(c, who, n, rounds, w);
    for (int i = 0; i < n; i++) {
        double exposed = measure_median(who[i].sample, rounds) - c->compute_s;
        who[i].hidden = exposed <= 0 ? 1 : exposed >= alone[i] ? 0 : 1 - exposed / alone[i];
    }
}

typedef struct output {
    FILE *json;
    bool first;
    int run;
    size_t wrong;
} output;

static void bench_one(const bench_options *o, bench_case c, dtr_world *w, output *out) {
    contender who[4];
    bool has_peer = false;
    int n = gather_contenders(o, &c, w, who, &has_peer);
    if (c.mode == BENCH_OVERLAP) {
        run_overlap(&c, who, n, o->rounds, w);
    } else {
        bench_run(&c, who, n, o->rounds, w);
    }
    for (int i = has_peer ? 1 : 0; i < n; i++) {
        bench_row row = { &c, &who[i], has_peer ? &who[0] : NULL, out->run, o->rounds };
        out->wrong += who[i].wrong;
        if (c.rank == 0) {
            bench_print(&row);
            if (out->json != NULL) {
                bench_json(out->json, &row, out->first);
                out->first = false;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        dtr_free(w, who[i].in);
        dtr_free(w, who[i].out);
        free(who[i].sample);
    }
}

static void bench_all(const bench_options *o, dtr_world *w, output *out) {
    for (int k = 0; k < BENCH_KINDS; k++) {
        for (int d = 0; o->kind[k] && d < 14; d++) {
            bool legal = !bench_reduces((bench_kind)k) || dtr_op_supports(o->op, (dtr_dtype)d);
            for (size_t bytes = o->min_bytes; o->dtype[d] && legal && bytes <= o->max_bytes;
                 bytes *= (size_t)o->factor) {
                bench_case c = { .kind = (bench_kind)k,
                                 .dtype = (dtr_dtype)d,
                                 .op = o->op,
                                 .mode = o->mode,
                                 .root = o->root,
                                 .bytes = bytes,
                                 .read_back = o->read_back,
                                 .cpu_compute = o->cpu_compute };
                c.rank = dtr_world_rank(w);
                c.size = dtr_world_size(w);
                c.in_place = o->in_place && k == BENCH_ALLREDUCE;
                bench_shape(&c);
                bench_one(o, c, w, out);
                if (k == BENCH_BARRIER || bytes == 0) {
                    break;
                }
            }
        }
    }
}

static int run(const bench_options *o, dtr_world *w) {
    output out = { .first = true };
    bool talk = dtr_world_rank(w) == 0;
    if (talk && o->json != NULL) {
        out.json = fopen(o->json, "w");
        if (out.json == NULL) {
            perror(o->json);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        fprintf(out.json, "[");
    }
    if (talk) {
        bench_header(stdout, o, w);
    }
    double before = measure_gauge();
    for (out.run = 1; out.run <= o->runs; out.run++) {
        bench_all(o, w, &out);
    }
    double after = measure_gauge();
    bool calm = measure_calm(before, after);
    if (talk) {
        measure_print_gauge(before, after, calm);
        printf("# wrong elements: %zu\n", out.wrong);
    }
    if (out.json != NULL) {
        fprintf(out.json, "\n]\n");
        fclose(out.json);
    }
    return out.wrong > 0 ? 1 : calm ? 0 : 3;
}

int main(int argc, char **argv) {
    bench_options o = { .op = DTR_SUM,
                        .min_bytes = 8,
                        .max_bytes = 64 << 20,
                        .factor = 4,
                        .rounds = 21,
                        .runs = 1,
                        .plain = true,
                        .shared = true,
                        .peer = true };
    dtr_world *w = NULL;
    int rank = 0;
    o.dtype[DTR_F32] = true;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &(int){ 0 });
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int status = parse(&o, argc, argv, rank == 0);
    if (status == 0) {
        if (dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w) != DTR_OK) {
            fprintf(stderr, "dtr-bench: %s\n", dtr_last_error_message());
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        status = run(&o, w);
        dtr_world_destroy(w);
    } else {
        status--;
    }
    MPI_Finalize();
    return status;
}
