/* Command line of dtr-bench. */
#include <getopt.h>
#include <stddef.h>
#include <string.h>

#include "bench.h"

const char *const bench_op_names[] = { "sum",  "avg",  "prod",   "min",        "max",
                                       "band", "bor",  "bxor",   "premul_sum", "land",
                                       "lor",  "lxor", "minloc", "maxloc",     NULL };

static const char help[] =
    "dtr-bench - times collectives against the MPI beneath, contenders taking turns in one run\n"
    "  mpirun -n 2 --bind-to core dtr-bench [options] [call ...]\n\n"
    "calls: allreduce (default) reduce broadcast allgather(v) reduce_scatter(v) alltoall(v)\n"
    "  gather(v) scatter(v) barrier scan exscan, sendrecv (a ring), pingpong (there and back),\n"
    "  waitall (a ring of 16 messages, waited for together), or all\n\n"
    "  -b, --min SIZE     smallest size in bytes, as 8, 4K, 1M (8)\n"
    "  -e, --max SIZE     largest size (64M)\n"
    "  -f, --factor N     from one size to the next (4)\n"
    "  -s, --sizes LIST   these sizes instead, as 8,4K,25M\n"
    "  -d, --dtype LIST   element types, as f32,bf16, or all (f32); reductions of types that MPI "
    "lacks\n"
    "                     are paired with our own f32\n"
    "  -o, --op NAME      sum avg prod min max band bor bxor land lor lxor minloc maxloc\n"
    "                     (sum); stock MPI sums for avg; minloc and maxloc take pairs (f64_index,\n"
    "                     i64_index), stock MPI's of the same size have an index of 32 bits\n"
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
    "      --in-place     allreduce, scan and exscan in place\n"
    "      --deterministic  on a group whose sums are made in rank order\n"
    "      --read-back    read the result inside the timing\n"
    "      --no-peer      leave stock MPI out\n"
    "      --no-gauge     do not measure memory bandwidth at both ends; nothing is void\n"
    "      --threads NAME MPI's thread level: single funneled serialized multiple (multiple)\n"
    "  -j, --json FILE    write all rows as JSON too\n"
    "      --tune=FILE    measure the thresholds of this kind of node up to --max, write them "
    "for\n"
    "                     DTR_TUNE_FILE, and do nothing else (without the = Open MPI's launcher\n"
    "                     takes the file for its own)\n"
    "      --strict       tell wrong results and void runs by the exit status too\n"
    "      --version      version of the library and its MPI\n"
    "  -h, --help         this text\n\n"
    "A run is void where the memory bandwidth before and after it differs by more than 20 %.\n"
    "Exit status: 0 when it could measure, whatever came out; 1 a failure; 2 wrong options. With\n"
    "--strict also 1 for wrong results and 3 for a void run.\n";

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

static bool take_dtypes(void *to, const char *list) {
    bool *dtype = ((bench_options *)to)->dtype;
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

static bool take_sizes(void *to, const char *list) {
    bench_options *o = to;
    char word[24];
    o->n_sizes = 0;
    while (o->n_sizes < BENCH_SIZES && next_word(&list, word, sizeof word)) {
        if (!measure_parse_size(word, &o->sizes[o->n_sizes++])) {
            return false;
        }
    }
    return o->n_sizes > 0 && *list == '\0';
}

static bool take_op(void *to, const char *text) {
    int i = measure_word(text, bench_op_names);
    ((bench_options *)to)->op = (dtr_op)i;
    return i >= 0 && i != DTR_PREMUL_SUM;
}

static bool take_memory(void *to, const char *text) {
    static const char *const memories[] = { "plain", "shared", "both", NULL };
    bench_options *o = to;
    int i = measure_word(text, memories);
    o->plain = i != 1;
    o->shared = i != 0;
    return i >= 0;
}

static bool take_threads(void *to, const char *text) {
    static const char *const levels[] = { "single", "funneled", "serialized", "multiple", NULL };
    static const int threads[] = { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                                   MPI_THREAD_MULTIPLE };
    int i = measure_word(text, levels);
    ((bench_options *)to)->threads = i >= 0 ? threads[i] : 0;
    return i >= 0;
}

static const char *const devices[] = { "cpu", "cuda", NULL };
static const char *const modes[] = { "blocking", "async", "overlap", "dispatch", NULL };
static const char *const computes[] = { "device", "cpu", NULL };

#define AT(field) .at = offsetof(bench_options, field)
static const measure_option options[] = {
    { "min", 'b', MEASURE_SIZE, AT(min_bytes) },
    { "max", 'e', MEASURE_SIZE, AT(max_bytes) },
    { "factor", 'f', MEASURE_COUNT, AT(factor), .least = 2 },
    { "sizes", 's', MEASURE_OTHER, .take = take_sizes },
    { "dtype", 'd', MEASURE_OTHER, .take = take_dtypes },
    { "op", 'o', MEASURE_OTHER, .take = take_op },
    { "root", 0, MEASURE_COUNT, AT(root) },
    { "rounds", 'r', MEASURE_COUNT, AT(rounds), .least = 1 },
    { "calls", 0, MEASURE_COUNT, AT(calls), .least = 1 },
    { "runs", 'R', MEASURE_COUNT, AT(runs), .least = 1 },
    { "device", 'D', MEASURE_SECOND, AT(cuda), .words = devices },
    { "memory", 'm', MEASURE_OTHER, .take = take_memory },
    { "mode", 'M', MEASURE_WORD, AT(mode), .words = modes },
    { "compute", 0, MEASURE_SECOND, AT(cpu_compute), .words = computes },
    { "in-place", 0, MEASURE_SET, AT(in_place) },
    { "deterministic", 0, MEASURE_SET, AT(deterministic) },
    { "read-back", 0, MEASURE_SET, AT(read_back) },
    { "no-peer", 0, MEASURE_CLEAR, AT(peer) },
    { "no-gauge", 0, MEASURE_CLEAR, AT(gauge) },
    { "threads", 0, MEASURE_OTHER, .take = take_threads },
    { "json", 'j', MEASURE_TEXT, AT(json) },
    { "tune", 0, MEASURE_TEXT, AT(tune) },
    { "strict", 0, MEASURE_SET, AT(strict) },
    { NULL },
};

static bool take_call(bench_options *o, const char *name) {
    bool found = false;
    for (int k = 0; k < BENCH_KINDS; k++) {
        bool host_only = k == BENCH_SCAN || k == BENCH_EXSCAN || k == BENCH_WAITALL;
        bool this = (strcmp(name, "all") == 0 && !(o->cuda && host_only)) ||
                    strcmp(name, bench_kind_name((bench_kind)k)) == 0;
        o->kind[k] = o->kind[k] || this;
        found = found || this;
    }
    return found;
}

static const measure_command command = { "dtr-bench", help, options };

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
    if (o->cuda && o->kind[BENCH_WAITALL]) { /* messages outside of a batch, which NCCL orders */
        if (loud) {
            fprintf(stderr, "dtr-bench: waitall is for host memory\n");
        }
        return 2;
    }
    return -1;
}
