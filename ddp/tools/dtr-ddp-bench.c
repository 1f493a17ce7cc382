/* dtr-ddp-bench: gradient averaging of a whole model against plain MPI_Allreduce of its buckets. */
#include <getopt.h>
#include <mpi.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/mpi.h>

#include "ddp_bench.h"
#include "measure.h"
#include "measure_cuda.h"

static const char help[] =
    "dtr-ddp-bench - times data-parallel steps of a model's gradients, paired with plain MPI\n"
    "  mpirun -n 2 --bind-to none dtr-ddp-bench [options]\n\n"
    "  -m, --model NAME      gpt2 (124M, 148 tensors), resnet50 (161 tensors), or a file with one\n"
    "                        parameter a line: name and sizes, as \"fc.weight 1000 2048\" (gpt2)\n"
    "  -D, --device NAME     cpu, or cuda: gradients in device memory, device compute is copies "
    "there,\n"
    "                        times are those of events, and there is no peer (cpu)\n"
    "  -b, --bucket SIZE     bytes per bucket, as 512K, 25M (25M)\n"
    "      --first-bucket SIZE   of the first one (1M)\n"
    "  -g, --grads NAME      view: gradients lie in the buckets; copy: in memory of their own "
    "(view)\n"
    "  -d, --reduce-dtype NAME   element type of buckets and communication, as bf16 (f32)\n"
    "  -k, --hook NAME       none allreduce fp16 bf16 q8 powersgd (none)\n"
    "  -s, --steps N         samples per contender and phase (11)\n"
    "  -w, --warmup N        steps before that, at least 2 (3)\n"
    "  -R, --runs N          times the whole is run (1)\n"
    "  -c, --compute NAME    backward is device (the core is free meanwhile), cpu (arithmetic in "
    "the\n"
    "                        calling thread) or none: sync alone (device)\n"
    "  -t, --compute-ms X    length of one backward (as long as the slowest sync alone)\n"
    "      --no-peer         leave plain MPI out\n"
    "      --no-gauge        do not measure memory bandwidth at both ends; nothing is void\n"
    "  -j, --json FILE       write the figures as JSON too\n"
    "  -l, --list            print the model's parameters, in the form that --model reads, and "
    "end\n"
    "      --strict          tell wrong results and void runs by the exit status too\n"
    "      --version         version of the library and its MPI\n"
    "  -h, --help            this text\n\n"
    "Phases: \"sync\" hands over all gradients at once, \"backward\" one by one as compute makes "
    "them.\n"
    "A run is void where the memory bandwidth before and after it differs by more than 20 %.\n"
    "Exit status: 0 when it could measure, whatever came out; 1 a failure; 2 wrong options. With\n"
    "--strict also 1 for wrong results and 3 for a void run.\n";

static bool take_dtype(void *to, const char *text) {
    ddp_bench_options *o = to;
    static const dtr_dtype floats[] = { DTR_F16, DTR_BF16, DTR_F32, DTR_F64 };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        if (strcmp(text, dtr_dtype_name(floats[i])) == 0) {
            o->reduce_dtype = floats[i];
            o->has_reduce_dtype = floats[i] != DTR_F32;
            return true;
        }
    }
    return false;
}

static bool take_hook(void *to, const char *text) {
    ddp_bench_options *o = to;
    static const char *const names[] = {
        "none", "allreduce", "fp16", "bf16", "q8", "powersgd", NULL
    };
    static const int hooks[] = { -1,          DTR_HOOK_ALLREDUCE, DTR_HOOK_FP16, DTR_HOOK_BF16,
                                 DTR_HOOK_Q8, DTR_HOOK_POWERSGD };
    int i = measure_word(text, names);
    if (i >= 0) {
        o->hook = names[i];
        o->builtin = hooks[i];
    }
    return i >= 0;
}

static bool take_milliseconds(void *to, const char *text) {
    ddp_bench_options *o = to;
    char *end = NULL;
    double ms = strtod(text, &end);
    o->compute_s = ms * 1e-3;
    return end != text && *end == '\0' && ms >= 0 && ms <= 1e6;
}

static bool take_grads(void *to, const char *text) {
    static const char *const grads[] = { "view", "copy", NULL };
    ddp_bench_options *o = to;
    int i = measure_word(text, grads);
    o->view = i == 0;
    o->copy = i == 1;
    return i >= 0;
}

static const char *const computes[] = { "device", "cpu", "none", NULL };
static const char *const devices[] = { "cpu", "cuda", NULL };

#define AT(field) .at = offsetof(ddp_bench_options, field)
static const measure_option options[] = {
    { "model", 'm', MEASURE_TEXT, AT(model) },
    { "device", 'D', MEASURE_SECOND, AT(cuda), .words = devices },
    { "bucket", 'b', MEASURE_SIZE, AT(bucket_bytes), .least = 1 },
    { "first-bucket", 0, MEASURE_SIZE, AT(first_bytes), .least = 1 },
    { "grads", 'g', MEASURE_OTHER, .take = take_grads },
    { "reduce-dtype", 'd', MEASURE_OTHER, .take = take_dtype },
    { "hook", 'k', MEASURE_OTHER, .take = take_hook },
    { "steps", 's', MEASURE_COUNT, AT(steps), .least = 1 },
    { "warmup", 'w', MEASURE_COUNT, AT(warmup), .least = 2 },
    { "runs", 'R', MEASURE_COUNT, AT(runs), .least = 1 },
    { "compute", 'c', MEASURE_WORD, AT(compute), .words = computes },
    { "compute-ms", 't', MEASURE_OTHER, .take = take_milliseconds },
    { "no-peer", 0, MEASURE_CLEAR, AT(peer) },
    { "no-gauge", 0, MEASURE_CLEAR, AT(gauge) },
    { "json", 'j', MEASURE_TEXT, AT(json) },
    { "list", 'l', MEASURE_SET, AT(list) },
    { "strict", 0, MEASURE_SET, AT(strict) },
    { NULL },
};

static const measure_command command = { "dtr-ddp-bench", help, options };

/* -1: go on; else the exit status. */
static int parse(ddp_bench_options *o, int argc, char **argv, bool loud) {
    int done = measure_parse(&command, o, argc, argv, loud);
    if (done >= 0) {
        return done;
    }
    bool no_cuda = o->cuda && measure_cuda == NULL;
    if (optind < argc || no_cuda || (o->has_reduce_dtype && o->view)) {
        if (loud && no_cuda) {
            fprintf(stderr, "dtr-ddp-bench: --device cuda needs a build with CUDA (DTR_CUDA=ON)\n");
        } else if (loud && optind < argc) {
            fprintf(stderr, "dtr-ddp-bench: cannot make sense of \"%s\"; see --help\n",
                    argv[optind]);
        } else if (loud) {
            fprintf(stderr, "dtr-ddp-bench: --grads view needs buckets of the gradients' own type; "
                            "use --grads copy with --reduce-dtype\n");
        }
        return 2;
    }
    o->view = !o->copy && !o->has_reduce_dtype;
    o->peer = o->peer && !o->cuda;
    return -1;
}

/* Needs no MPI. */
static int print_list(const ddp_bench_options *o, bool talk) {
    char error[512] = "";
    model m;
    bool good = model_open(o->model, &m, error, sizeof error);
    if (!good && talk) {
        fprintf(stderr, "dtr-ddp-bench: %s\n", error);
    }
    for (size_t i = 0; good && talk && i < m.n; i++) {
        printf("%s", m.params[i].name);
        for (int d = 0; d < m.params[i].ndim; d++) {
            printf(" %lld", (long long)m.params[i].shape[d]);
        }
        printf("\n");
    }
    model_close(&m);
    return good ? 0 : 2;
}

static int run(const ddp_bench_options *o, model m, dtr_world *w, FILE *json) {
    ddp_bench b = { .model = m };
    bool talk = dtr_world_rank(w) == 0, calm = true;
    size_t wrong = 0;
    bench_open(&b, o, w);
    if (talk) {
        report_head(&b);
    }
    for (int i = 1; i <= o->runs; i++) {
        bench_run(&b);
        calm = calm && b.calm;
        wrong += b.wrong[WHO_DTR] + b.wrong[WHO_MPI] + b.wrong[WHO_INLINE];
        if (talk) {
            report_run(&b, i);
        }
        if (json != NULL) {
            report_json(json, &b, i);
        }
    }
    bench_close(&b);
    return measure_status("dtr-ddp-bench", o->strict, talk, wrong, calm);
}

/* Every rank reads the model, so that a file missing on one host is reported before anything runs.
 */
static int prepare_and_run(const ddp_bench_options *o) {
    char error[512] = "";
    model m;
    dtr_world *w = NULL;
    FILE *json = NULL;
    int rank = 0, bad = 0, any = 0, status = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    bad = !model_open(o->model, &m, error, sizeof error);
    if (!bad && rank == 0 && o->json != NULL && (json = fopen(o->json, "w")) == NULL) {
        snprintf(error, sizeof error, "cannot write %s", o->json);
        bad = 1;
    }
    MPI_Allreduce(&bad, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (bad) {
        fprintf(stderr, "dtr-ddp-bench: rank %d: %s\n", rank, error);
    }
    if (any == 0) {
        dtr_world_options wo = DTR_WORLD_OPTIONS_INIT;
        wo.device.type = o->cuda ? DTR_CUDA : DTR_CPU;
        wo.device.index = o->cuda ? measure_cuda_index(dtr_device_count(DTR_CUDA)) : 0;
        wo.has_device = true;
        bench_require(dtr_world_create_from_comm(MPI_COMM_WORLD, &wo, &w),
                      "dtr_world_create_from_comm");
        status = run(o, m, w, json);
        bench_require(dtr_world_destroy(w), "dtr_world_destroy");
    }
    if (json != NULL) {
        fclose(json);
    }
    model_close(&m);
    return any != 0 ? 2 : status;
}

int main(int argc, char **argv) {
    ddp_bench_options o = { .model = "gpt2",
                            .hook = "none",
                            .bucket_bytes = 25 << 20,
                            .first_bytes = 1 << 20,
                            .steps = 11,
                            .warmup = 3,
                            .runs = 1,
                            .peer = true,
                            .gauge = true,
                            .builtin = -1,
                            .compute_s = -1 };
    int status = parse(&o, argc, argv, measure_speaks());
    if (status >= 0 || o.list) {
        return status >= 0 ? status : print_list(&o, measure_speaks());
    }
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &(int){ 0 });
    status = prepare_and_run(&o);
    MPI_Finalize();
    return status;
}
