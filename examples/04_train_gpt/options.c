/* Command line of train_gpt. */
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static const char help[] =
    "train_gpt - train a small transformer on text, one MPI rank per shard of each batch\n"
    "  mpirun -n 2 train_gpt [options]\n\n"
    "  --data PATH        text file, or directory of text files (default "
    "/usr/share/common-licenses)\n"
    "  --steps N          optimizer steps (default 400)\n"
    "  --batch N          sequences per rank and step (default 8)\n"
    "  --context N        bytes per sequence (default 64)\n"
    "  --layers N --heads N --width N   size of the model (default 3, 6, 96)\n"
    "  --rate X           peak learning rate (default 0.003)\n"
    "  --seed N           of weights and data order (default 1)\n"
    "  --verify [N]       first train N steps (default 20) on one rank with the same global "
    "batches and compare the losses\n"
    "  --checkpoint FILE  resume from FILE if it exists, save there at the end (safetensors)\n"
    "  --save-every N     also save every N steps\n"
    "  --stop-at N        stop after step N of the planned ones\n"
    "  --sample N         bytes of text to generate at the end (default 240)\n"
    "  --help             this text\n";

enum {
    DATA = 256,
    STEPS,
    BATCH,
    CONTEXT,
    LAYERS,
    HEADS,
    WIDTH,
    RATE,
    SEED,
    VERIFY,
    CHECKPOINT,
    SAVE,
    STOP,
    SAMPLE,
    HELP
};

static const struct option table[] = {
    { "data", required_argument, NULL, DATA },
    { "steps", required_argument, NULL, STEPS },
    { "batch", required_argument, NULL, BATCH },
    { "context", required_argument, NULL, CONTEXT },
    { "layers", required_argument, NULL, LAYERS },
    { "heads", required_argument, NULL, HEADS },
    { "width", required_argument, NULL, WIDTH },
    { "rate", required_argument, NULL, RATE },
    { "seed", required_argument, NULL, SEED },
    { "verify", optional_argument, NULL, VERIFY },
    { "checkpoint", required_argument, NULL, CHECKPOINT },
    { "save-every", required_argument, NULL, SAVE },
    { "stop-at", required_argument, NULL, STOP },
    { "sample", required_argument, NULL, SAMPLE },
    { "help", no_argument, NULL, HELP },
    { NULL, 0, NULL, 0 },
};

/* Whole number in low..high; complains and returns false otherwise. */
static bool whole(const char *name, const char *text, long low, long high, long *out, bool loud) {
    char *end = NULL;
    long v = strtol(text, &end, 10);
    if (end == text || *end != '\0' || v < low || v > high) {
        if (loud) {
            fprintf(stderr, "train_gpt: --%s takes a whole number from %ld to %ld, not '%s'\n",
                    name, low, high, text);
        }
        return false;
    }
    *out = v;
    return true;
}

static bool whole_int(const char *name, const char *text, long low, long high, int *out,
                      bool loud) {
    long v = 0;
    if (!whole(name, text, low, high, &v, loud)) {
        return false;
    }
    *out = (int)v;
    return true;
}

static bool rate_of(const char *text, float *out, bool loud) {
    char *end = NULL;
    float v = strtof(text, &end);
    if (end == text || *end != '\0' || !(v > 0 && v < 1)) {
        if (loud) {
            fprintf(stderr, "train_gpt: --rate takes a number between 0 and 1, not '%s'\n", text);
        }
        return false;
    }
    *out = v;
    return true;
}

/* --verify N and --verify=N both work, as does --verify alone. */
static const char *optional_value(int argc, char **argv) {
    if (optarg == NULL && optind < argc && argv[optind][0] != '-') {
        return argv[optind++];
    }
    return optarg;
}

static bool take(train_options *o, int which, const char *name, const char *text, bool loud) {
    long seed = 0;
    switch (which) {
    case DATA:
        o->data = text;
        return true;
    case CHECKPOINT:
        o->checkpoint = text;
        return true;
    case STEPS:
        return whole(name, text, 1, 100000000, &o->steps, loud);
    case VERIFY:
        o->verify = 20;
        return text == NULL || whole(name, text, 1, 100000000, &o->verify, loud);
    case SAVE:
        return whole(name, text, 1, 100000000, &o->save_every, loud);
    case STOP:
        return whole(name, text, 1, 100000000, &o->stop_at, loud);
    case BATCH:
        return whole_int(name, text, 1, 65536, &o->batch, loud);
    case CONTEXT:
        return whole_int(name, text, 2, 4096, &o->model.context, loud);
    case LAYERS:
        return whole_int(name, text, 1, 256, &o->model.layers, loud);
    case HEADS:
        return whole_int(name, text, 1, 256, &o->model.heads, loud);
    case WIDTH:
        return whole_int(name, text, 1, 16384, &o->model.width, loud);
    case SAMPLE:
        return whole_int(name, text, 0, 1000000, &o->sample, loud);
    case RATE:
        return rate_of(text, &o->rate, loud);
    default:
        if (!whole(name, text, 0, 1000000000, &seed, loud)) {
            return false;
        }
        o->seed = (uint64_t)seed;
        return true;
    }
}

int train_options_parse(train_options *o, int argc, char **argv, bool loud) {
    *o = (train_options){ .data = "/usr/share/common-licenses",
                          .model = { 64, 3, 6, 96 },
                          .batch = 8,
                          .steps = 400,
                          .rate = 0.003f,
                          .seed = 1,
                          .sample = 240 };
    opterr = loud;
    int which = 0, index = 0;
    while ((which = getopt_long(argc, argv, "", table, &index)) != -1) {
        if (which == HELP) {
            if (loud) {
                fputs(help, stdout);
            }
            return 1;
        }
        if (which == '?') {
            return 2;
        }
        const char *text = which == VERIFY ? optional_value(argc, argv) : optarg;
        if (!take(o, which, table[index].name, text, loud)) {
            return 2;
        }
    }
    if (optind < argc || o->model.width % o->model.heads != 0) {
        if (loud && optind < argc) {
            fprintf(stderr, "train_gpt: '%s' is no option; see --help\n", argv[optind]);
        } else if (loud) {
            fprintf(stderr, "train_gpt: --width %d is no multiple of --heads %d\n", o->model.width,
                    o->model.heads);
        }
        return 2;
    }
    return 0;
}
