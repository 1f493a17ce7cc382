/* Command line of dtr-bench. */
#include <getopt.h>
#include <string.h>

#include "bench.h"

static const char help[] =
    "dtr-bench - times collectives against the MPI beneath, contenders taking turns in one run\n"
    "  mpirun -n 2 --bind-to core dtr-bench [options] [call ...]\n\n"
    "calls: allreduce (default) reduce broadcast allgather(v) reduce_scatter(v) alltoall(v)\n"
    "  gather(v) scatter(v) barrier, sendrecv (a ring), pingpong (there and back), or all\n\n"
    "  -b, --min SIZE     smallest size in bytes, as 8, 4K, 1M (8)\n"
    "  -e, --max SIZE     largest size (64M)\n"
    "  -f, --factor N     from one size to the next (4)\n"
    "  -s, --sizes LIST   these sizes instead, as 8,4K,25M\n"
    "  -d, --dtype LIST   element types, as f32,bf16, or all (f32); reductions of types that MPI "
    "lacks\n"
    "                     are paired with our own f32\n"
    "  -o, --op NAME      sum avg prod min max band bor bxor (sum); stock MPI sums for avg\n"
    "      --root N       of broadcast, reduce, gather and scatter (0)\n"
    "  -r, --rounds N     samples per contender (21)\n"
    "      --calls N      calls in a row per sample (200 up to 4 KiB, fewer above, 1 from 256 "
    "KiB)\n"
    "  -R, --runs N       times the whole is run; from 2 on a summary shows the spread (1)\n"
    "  -D, --device NAME  cpu, or cuda: device memory through nccl or stage (DTR_BACKEND); the "
    "peer is\n"
    "                     the bare call of NCCL in the same run; times by the host's clock, of "
    "the\n"
    "                     calls alone (host) and by events of the device (cpu)\n"
    "  -m, --memory NAME  plain, shared or both (both)\n"
    "  -M, --mode NAME    blocking; async (call and wait); overlap (call, compute, wait); or "
    "dispatch:\n"
    "                     what call and wait add to the blocking form of the same memory "
    "(blocking)\n"
    "      --compute NAME overlap: device (leaves the core free) or cpu (device)\n"
    "      --in-place     allreduce in place\n"
    "      --read-back    read the result inside the timing\n"
    "      --no-peer      leave stock MPI out\n"
    "      --no-gauge     do not measure memory bandwidth at both ends; nothing is void\n"
    "      --threads NAME MPI's thread level: single funneled serialized multiple (multiple)\n"
    "  -j, --json FILE    write all rows as JSON too\n"
    "      --tune=FILE    measure the thresholds of this kind of node up to --max, write them "
    "for\n"
    "                     DTR_TUNE_FILE, and do nothing else (without the = Open MPI's launcher\n"
    "                     takes the file for its own)\n"
    "  -h, --help         this text\n\n"
    "Exit status: 0; 1 wrong results or a failure; 2 wrong options; 3 void, the memory bandwidth\n"
    "before and after the run differs by more than 20 %.\n";

enum { COMPUTE = 256, IN_PLACE, READ_BACK, NO_PEER, NO_GAUGE, THREADS, ROOT, CALLS, TUNE };
static const struct option table[] = {
    { "min", 1, NULL, 'b' },
    { "max", 1, NULL, 'e' },
    { "factor", 1, NULL, 'f' },
    { "sizes", 1, NULL, 's' },
    { "dtype", 1, NULL, 'd' },
    { "op", 1, NULL, 'o' },
    { "root", 1, NULL, ROOT },
    { "rounds", 1, NULL, 'r' },
    { "calls", 1, NULL, CALLS },
    { "runs", 1, NULL, 'R' },
    { "device", 1, NULL, 'D' },
    { "memory", 1, NULL, 'm' },
    { "mode", 1, NULL, 'M' },
    { "compute", 1, NULL, COMPUTE },
    { "in-place", 0, NULL, IN_PLACE },
    { "read-back", 0, NULL, READ_BACK },
    { "no-peer", 0, NULL, NO_PEER },
    { "no-gauge", 0, NULL, NO_GAUGE },
    { "threads", 1, NULL, THREADS },
    { "json", 1, NULL, 'j' },
    { "tune", 1, NULL, TUNE },
    { "help", 0, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

/* Next word of a list with commas, copied; false at its end or where a word is too long. */
static bool next_word(const char **list, char *word, size_t cap) {
    size_t n = strcspn(*list, ",");
    if (n == 0 || n >= cap) {
        return false;
    }
    memcpy(word, *list, n);
    word[n] = '\0';
    *list += n;
    *list += **list == ',' && (*list)[1] != '\0';
    return true;
}

static bool take_dtypes(const char *list, bool *dtype) {
    char word[16];
    bool all = strcmp(list, "all") == 0;
    for (int d = 0; d < BENCH_DTYPES; d++) {
        dtype[d] = all;
    }
    while (!all && next_word(&list, word, sizeof word)) {
        int d = 0;
        while (d < BENCH_DTYPES && strcmp(dtr_dtype_name((dtr_dtype)d), word) != 0) {
            d++;
        }
        if (d == BENCH_DTYPES) {
            return false;
        }
        dtype[d] = true;
    }
    return all || *list == '\0';
}

static bool take_sizes(const char *list, bench_options *o) {
    char word[24];
    o->n_sizes = 0;
    while (o->n_sizes < BENCH_SIZES && next_word(&list, word, sizeof word)) {
        if (!measure_parse_size(word, &o->sizes[o->n_sizes++])) {
            return false;
        }
    }
    return o->n_sizes > 0 && *list == '\0';
}

static bool take_word(bench_options *o, int which) {
    static const char *const ops[] = { "sum",  "avg", "prod", "min", "max",
                                       "band", "bor", "bxor", NULL };
    static const char *const devices[] = { "cpu", "cuda", NULL };
    static const char *const memories[] = { "plain", "shared", "both", NULL };
    static const char *const modes[] = { "blocking", "async", "overlap", "dispatch", NULL };
    static const char *const computes[] = { "device", "cpu", NULL };
    static const char *const levels[] = { "single", "funneled", "serialized", "multiple", NULL };
    static const int threads[] = { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                                   MPI_THREAD_MULTIPLE };
    const char *const *words = which == 'o'       ? ops
                               : which == 'D'     ? devices
                               : which == 'm'     ? memories
                               : which == 'M'     ? modes
                               : which == COMPUTE ? computes
                                                  : levels;
    int i = measure_word(optarg, words);
    if (i < 0) {
        return false;
    }
    if (which == 'o') {
        o->op = (dtr_op)i;
    } else if (which == 'D') {
        o->cuda = i == 1;
    } else if (which == 'm') {
        o->plain = i != 1;
        o->shared = i != 0;
    } else if (which == 'M') {
        o->mode = (bench_mode)i;
    } else if (which == COMPUTE) {
        o->cpu_compute = i == 1;
    } else {
        o->threads = threads[i];
    }
    return true;
}

static bool take(void *to, int which) {
    bench_options *o = to;
    switch (which) {
    case 'b':
        return measure_parse_size(optarg, &o->min_bytes);
    case 'e':
        return measure_parse_size(optarg, &o->max_bytes);
    case 'f':
        return measure_parse_count(optarg, 2, &o->factor);
    case 's':
        return take_sizes(optarg, o);
    case 'd':
        return take_dtypes(optarg, o->dtype);
    case 'r':
        return measure_parse_count(optarg, 1, &o->rounds);
    case 'R':
        return measure_parse_count(optarg, 1, &o->runs);
    case CALLS:
        return measure_parse_count(optarg, 1, &o->calls);
    case ROOT:
        return measure_parse_count(optarg, 0, &o->root);
    case IN_PLACE:
        o->in_place = true;
        return true;
    case READ_BACK:
        o->read_back = true;
        return true;
    case NO_PEER:
        o->peer = false;
        return true;
    case NO_GAUGE:
        o->gauge = false;
        return true;
    case 'j':
        o->json = optarg;
        return true;
    case TUNE:
        o->tune = optarg;
        return true;
    default:
        return take_word(o, which);
    }
}

static bool take_call(bench_options *o, const char *name) {
    bool found = false;
    for (int k = 0; k < BENCH_KINDS; k++) {
        bool this = strcmp(name, "all") == 0 || strcmp(name, bench_kind_name((bench_kind)k)) == 0;
        o->kind[k] = o->kind[k] || this;
        found = found || this;
    }
    return found;
}

static const measure_command command = { "dtr-bench", help, "b:e:f:s:d:o:r:R:D:m:M:j:h", table,
                                         take };

int bench_parse(bench_options *o, int argc, char **argv, bool loud) {
    int done = measure_parse(&command, o, argc, argv, loud);
    if (done >= 0) {
        return done;
    }
    if (o->cuda && (bench_device == NULL || o->read_back || o->tune != NULL)) {
        if (loud) {
            fprintf(stderr, "dtr-bench: --device cuda %s\n",
                    bench_device == NULL ? "needs a build with CUDA and nccl.h (DTR_CUDA=ON)"
                                         : "does not go with --read-back or --tune");
        }
        return 2;
    }
    o->kind[BENCH_ALLREDUCE] = optind == argc;
    for (; optind < argc; optind++) {
        if (!take_call(o, argv[optind])) {
            if (loud) {
                fprintf(stderr, "dtr-bench: \"%s\" is no call; see --help\n", argv[optind]);
            }
            return 2;
        }
    }
    return -1;
}
