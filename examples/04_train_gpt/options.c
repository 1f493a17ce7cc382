/* Command line of train_gpt. */
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "train_gpt - train a small transformer on text, one MPI rank per shard of each batch;\n"
    "train_gpt_gpu - the same on a GPU for each rank\n"
    "  mpirun -n 2 train_gpt [options]\n\n"
    "  --data PATH        text file, or directory of text files (default "
    "/usr/share/common-licenses)\n"
    "  --steps N          optimizer steps (default 400)\n"
    "  --batch N          sequences per rank and step (default 8)\n"
    "  --context N        bytes per sequence (default 64)\n"
    "  --layers N --heads N --width N   size of the model (default 3, 6, 96)\n"
    "  --rate X           peak learning rate (default 0.003)\n"
    "  --clip X           scale gradients down to norm X where theirs is larger\n"
    "  --seed N           of weights and data order (default 1)\n"
    "  --verify [N]       first train N steps (default 20) on one rank with the same global "
    "batches and compare the losses\n"
    "  --checkpoint FILE  resume from FILE if it exists, save there at the end (an index; tensors "
    "beside it); after SIGUSR2, which a scheduler may send before the time is up, save at once and "
    "end with status 75\n"
    "  --resume FILE      start from FILE, which must exist; it may have been written on another "
    "number of ranks, with --zero or without\n"
    "  --save-every N     also save every N steps\n"
    "  --stop-at N        stop after step N of the planned ones\n"
    "  --zero             shard the optimizer state; every rank writes its part of a checkpoint\n"
    "  --accumulate N     backward passes per optimizer step (default 1)\n"
    "  --hook NAME        communication hook: allreduce, fp16, bf16, q8 or powersgd\n"
    "  --mixed TYPE       average gradients in bf16 or f16\n"
    "  --uneven           rank r has r batches more than rank 0; a checkpoint is of the last step "
    "that all make\n"
    "  --deterministic    the same bits whatever backend moves the data\n"
    "  --curve FILE       rank 0 writes every step's loss there\n"
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
    CLIP,
    SEED,
    VERIFY,
    CHECKPOINT,
    SAVE,
    STOP,
    SAMPLE,
    RESUME,
    ZERO,
    ACCUMULATE,
    HOOK,
    MIXED,
    UNEVEN,
    DETERMINISTIC,
    CURVE,
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
    { "clip", required_argument, NULL, CLIP },
    { "seed", required_argument, NULL, SEED },
    { "verify", optional_argument, NULL, VERIFY },
    { "checkpoint", required_argument, NULL, CHECKPOINT },
    { "save-every", required_argument, NULL, SAVE },
    { "stop-at", required_argument, NULL, STOP },
    { "sample", required_argument, NULL, SAMPLE },
    { "resume", required_argument, NULL, RESUME },
    { "zero", no_argument, NULL, ZERO },
    { "accumulate", required_argument, NULL, ACCUMULATE },
    { "hook", required_argument, NULL, HOOK },
    { "mixed", required_argument, NULL, MIXED },
    { "uneven", no_argument, NULL, UNEVEN },
    { "deterministic", no_argument, NULL, DETERMINISTIC },
    { "curve", required_argument, NULL, CURVE },
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

static bool clip_of(const char *text, float *out, bool loud) {
    char *end = NULL;
    float v = strtof(text, &end);
    if (end == text || *end != '\0' || !(v > 0 && v < 1e30f)) {
        if (loud) {
            fprintf(stderr, "train_gpt: --clip takes a number above 0, not '%s'\n", text);
        }
        return false;
    }
    *out = v;
    return true;
}

static bool hook_of(const char *text, train_options *o, bool loud) {
    static const struct {
        const char *name;
        dtr_ddp_builtin which;
    } hooks[] = {
        { "allreduce", DTR_HOOK_ALLREDUCE }, { "fp16", DTR_HOOK_FP16 },
        { "bf16", DTR_HOOK_BF16 },           { "q8", DTR_HOOK_Q8 },
        { "powersgd", DTR_HOOK_POWERSGD },
    };
    for (size_t k = 0; k < sizeof hooks / sizeof hooks[0]; k++) {
        if (strcmp(hooks[k].name, text) == 0) {
            o->hook = hooks[k].name;
            o->builtin = hooks[k].which;
            return true;
        }
    }
    if (loud) {
        fprintf(stderr, "train_gpt: --hook takes allreduce, fp16, bf16, q8 or powersgd, not '%s'\n",
                text);
    }
    return false;
}

static bool mixed_of(const char *text, train_options *o, bool loud) {
    o->mixed = strcmp(text, "bf16") == 0 || strcmp(text, "f16") == 0;
    o->mixed_dtype = strcmp(text, "f16") == 0 ? DTR_F16 : DTR_BF16;
    if (!o->mixed && loud) {
        fprintf(stderr, "train_gpt: --mixed takes bf16 or f16, not '%s'\n", text);
    }
    return o->mixed;
}

/* What does not go together. */
static bool fits(const train_options *o, bool loud) {
    const char *why = NULL;
    if (o->zero && o->hook != NULL) {
        why = "--zero does not go with --hook: a hook takes the place of the reduction";
    } else if (o->uneven && (o->zero || o->accumulate > 1)) {
        why = "--uneven does not go with --zero and --accumulate";
    }
    if (why != NULL && loud) {
        fprintf(stderr, "train_gpt: %s\n", why);
    }
    return why == NULL;
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
    case RESUME:
        o->resume = text;
        return true;
    case CURVE:
        o->curve = text;
        return true;
    case DETERMINISTIC:
        o->deterministic = true;
        return true;
    case ZERO:
        o->zero = true;
        return true;
    case UNEVEN:
        o->uneven = true;
        return true;
    case ACCUMULATE:
        return whole_int(name, text, 1, 65536, &o->accumulate, loud);
    case HOOK:
        return hook_of(text, o, loud);
    case MIXED:
        return mixed_of(text, o, loud);
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
    case CLIP:
        return clip_of(text, &o->clip, loud);
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
                          .accumulate = 1,
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
    return fits(o, loud) ? 0 : 2;
}
