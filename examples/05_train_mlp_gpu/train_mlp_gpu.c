/* Train a small network of dense layers on a GPU for each rank, gradients averaged by DDP while the
 * backward pass runs; on the CPU where there is no usable GPU.
 * Run: mpirun -n 2 ./train_mlp_gpu --verify */
#include <dlfcn.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlp.h"

static const char help[] =
    "train_mlp_gpu - train a small network on GPUs, one rank per GPU\n"
    "  mpirun -n 2 train_mlp_gpu [options]\n\n"
    "  --device cuda|cpu  where to train (default cuda; the CPU where there is no usable GPU)\n"
    "  --steps N          optimizer steps (default 200)\n"
    "  --batch N          samples per rank and step (default 64)\n"
    "  --width N          size of the hidden layers (default 64)\n"
    "  --rate X           learning rate (default 0.05)\n"
    "  --verify           first train on one rank with the same global batches; compare every "
    "loss\n"
    "                     and the parameters at the end\n"
    "  --help             this text\n";

typedef struct options {
    bool cuda, verify;
    long steps;
    int batch, width;
    float rate;
} options;

typedef struct trainer {
    options o;
    dtr_world *world;
    dtr_group *group;
    int rank, size;
    dtr_device device;
    mlp_arith arith;
    void *library;                /* libmlp_cuda */
    float *losses;                /* [--verify] of one rank, by step */
    dtr_tensor *want[MLP_PARAMS]; /* [--verify] its parameters at the end, in host memory */
} trainer;

/* ---- command line ---- */

static long whole(const char *name, const char *text, long most) {
    char *end = NULL;
    long v = strtol(text, &end, 10);
    if (end == text || *end != '\0' || v < 1 || v > most) {
        fprintf(stderr, "train_mlp_gpu: --%s takes a whole number from 1 to %ld, not '%s'\n", name,
                most, text);
        exit(2);
    }
    return v;
}

static float rate_of(const char *text) {
    char *end = NULL;
    float v = strtof(text, &end);
    if (end == text || *end != '\0' || !(v > 0 && v < 1)) {
        fprintf(stderr, "train_mlp_gpu: --rate takes a number between 0 and 1, not '%s'\n", text);
        exit(2);
    }
    return v;
}

static options parse(int argc, char **argv) {
    enum { DEVICE = 256, STEPS, BATCH, WIDTH, RATE, VERIFY, HELP };
    static const struct option table[] = {
        { "device", required_argument, NULL, DEVICE }, { "steps", required_argument, NULL, STEPS },
        { "batch", required_argument, NULL, BATCH },   { "width", required_argument, NULL, WIDTH },
        { "rate", required_argument, NULL, RATE },     { "verify", no_argument, NULL, VERIFY },
        { "help", no_argument, NULL, HELP },           { NULL, 0, NULL, 0 },
    };
    options o = { .cuda = true, .steps = 200, .batch = 64, .width = 64, .rate = 0.05f };
    for (int which; (which = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        switch (which) {
        case DEVICE:
            o.cuda = strcmp(optarg, "cuda") == 0;
            if (!o.cuda && strcmp(optarg, "cpu") != 0) {
                fprintf(stderr, "train_mlp_gpu: --device takes cuda or cpu, not '%s'\n", optarg);
                exit(2);
            }
            break;
        case STEPS:
            o.steps = whole("steps", optarg, 100000000);
            break;
        case BATCH:
            o.batch = (int)whole("batch", optarg, 65536);
            break;
        case WIDTH:
            o.width = (int)whole("width", optarg, 16384);
            break;
        case RATE:
            o.rate = rate_of(optarg);
            break;
        case VERIFY:
            o.verify = true;
            break;
        case HELP:
            fputs(help, stdout);
            exit(0);
        default:
            exit(2);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "train_mlp_gpu: '%s' is no option; see --help\n", argv[optind]);
        exit(2);
    }
    return o;
}

/* ---- where to train ---- */

/* cuBLAS and the kernels are in a library of their own, beside the program: without a GPU the
 * program needs none of CUDA. NULL, or why it cannot be used. */
static const char *open_cuda(trainer *t) {
    mlp_arith_open *open = NULL;
    if (dtr_device_count(DTR_CUDA) == 0) {
        return "the library finds no CUDA device, dtr-info says why";
    }
    t->library = dlopen(MLP_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (t->library == NULL) {
        return dlerror();
    }
    void *symbol = dlsym(t->library, "mlp_arith_cuda");
    if (symbol == NULL) {
        return dlerror();
    }
    memcpy(&open, &symbol, sizeof open);
    t->device = dtr_world_device(t->world);
    if (t->device.type != DTR_CUDA) { /* none was chosen: the ranks of a node share its GPUs out */
        t->device =
            (dtr_device){ DTR_CUDA, dtr_world_local_rank(t->world) % dtr_device_count(DTR_CUDA) };
    }
    return open(&t->arith, t->device.index);
}

/* All ranks train on GPUs, or none does. */
static void choose(trainer *t) {
    const char *why = t->o.cuda ? open_cuda(t) : NULL;
    int here = t->o.cuda && why == NULL, everywhere = 0;
    mlp_try(dtr_allreduce(t->group, dtr_cpu(&here, 1, DTR_I32), dtr_cpu(&everywhere, 1, DTR_I32),
                          DTR_MIN, NULL, NULL),
            "choosing a device");
    if (everywhere) {
        return;
    }
    if (here) {
        t->arith.close(&t->arith);
    }
    if (t->o.cuda && t->rank == 0) {
        printf("no usable GPU (%s): training on the CPU\n", why != NULL ? why : "on another rank");
    }
    t->device = (dtr_device){ DTR_CPU, 0 };
    mlp_arith_cpu(&t->arith);
}

/* ---- training ---- */

/* The same training without DDP on this rank alone: what the ranks together have to arrive at. */
static void train_alone(trainer *t) {
    mlp n;
    t->losses = calloc((size_t)t->o.steps, sizeof *t->losses);
    if (t->losses == NULL) {
        mlp_die("--verify", "no memory for the losses");
    }
    mlp_open(&n, t->world, t->device, &t->arith, t->o.width, t->o.batch * t->size);
    for (long step = 0; step < t->o.steps; step++) {
        mlp_load(&n, step, 0);
        mlp_forward(&n);
        mlp_backward(&n, NULL);
        mlp_update(&n, NULL, t->o.rate);
        t->losses[step] = (float)mlp_loss_of(&n);
    }
    for (int i = 0; i < MLP_PARAMS; i++) {
        t->want[i] = mlp_fetch(&n, i);
    }
    mlp_close(&n);
}

/* Mean over ranks; the largest difference to the losses of one rank in *worst. */
static double global_loss(trainer *t, long step, double mine, double *worst) {
    double sum = 0;
    mlp_try(dtr_allreduce(t->group, dtr_cpu(&mine, 1, DTR_F64), dtr_cpu(&sum, 1, DTR_F64), DTR_AVG,
                          NULL, NULL),
            "averaging the loss");
    if (t->losses != NULL) {
        *worst = fmax(*worst, fabs(sum - (double)t->losses[step]));
    }
    return sum;
}

static double param_difference(const trainer *t, const mlp *n) {
    double worst = 0;
    for (int i = 0; i < MLP_PARAMS; i++) {
        dtr_tensor *got = mlp_fetch(n, i);
        const float *a = dtr_tensor_data(got), *b = dtr_tensor_data(t->want[i]);
        for (size_t k = 0; k < dtr_tensor_numel(got); k++) {
            double d = fabs((double)a[k] - (double)b[k]);
            worst = d <= worst ? worst : d; /* a NaN stays */
        }
        dtr_tensor_release(got);
    }
    return worst;
}

/* false: the ranks together did not do what one rank does. */
static bool judge(const trainer *t, const mlp *n, double loss_difference) {
    const double limit = 1e-3;
    double params = param_difference(t, n);
    bool agrees = loss_difference <= limit && params <= limit;
    printf("one rank with the same global batch: losses differ by at most %.2e, parameters by "
           "%.2e: %s\n",
           loss_difference, params, agrees ? "agrees" : "DOES NOT AGREE");
    return agrees;
}

static dtr_ddp *make_ddp(trainer *t, const mlp *n) {
    dtr_param params[MLP_PARAMS];
    dtr_ddp_options o = DTR_DDP_OPTIONS_INIT;
    dtr_ddp *ddp = NULL;
    for (int i = 0; i < MLP_PARAMS; i++) {
        params[i] = (dtr_param){ mlp_param_name(i), n->value[i], NULL, 0 };
    }
    o.bucket_cap_bytes = o.first_bucket_bytes = 16
                                                << 10; /* several, although the network is small */
    o.grad_as_bucket_view = true; /* gradients are written where they travel from */
    mlp_try(dtr_ddp_create(t->group, params, MLP_PARAMS, &o, &ddp), "dtr_ddp_create");
    return ddp;
}

static bool train(trainer *t) {
    mlp n;
    double worst = 0;
    long often = t->o.steps < 10 ? 1 : t->o.steps / 10;
    mlp_open(&n, t->world, t->device, &t->arith, t->o.width, t->o.batch);
    dtr_ddp *ddp = make_ddp(t, &n);
    for (long step = 0; step < t->o.steps; step++) {
        mlp_load(&n, step, (long)t->rank * t->o.batch);
        mlp_forward(&n);
        mlp_backward(&n, ddp);
        mlp_update(&n, ddp, t->o.rate);
        if (t->o.verify || (step + 1) % often == 0) {
            double loss = global_loss(t, step, mlp_loss_of(&n), &worst);
            if (t->rank == 0 && (step + 1) % often == 0) {
                printf("step %ld/%ld  loss %.4f\n", step + 1, t->o.steps, loss);
            }
        }
    }
    mlp_try(t->arith.wait(&t->arith) == NULL ? DTR_OK : DTR_ERR_CUDA, "the last step");
    dtr_status equal = dtr_ddp_check_equal(ddp);
    bool good = equal == DTR_OK;
    if (t->rank == 0) {
        printf("parameters on %d ranks: %s\n", t->size,
               good ? "bitwise equal" : dtr_last_error_message());
        good = (!t->o.verify || judge(t, &n, worst)) && good;
    }
    mlp_try(dtr_ddp_destroy(ddp), "dtr_ddp_destroy");
    mlp_close(&n);
    return good;
}

int main(int argc, char **argv) {
    trainer t = { .o = parse(argc, argv) };
    mlp_try(dtr_world_create(NULL, &t.world), "dtr_world_create");
    t.group = dtr_world_group(t.world);
    t.rank = dtr_group_rank(t.group);
    t.size = dtr_group_size(t.group);
    choose(&t);
    if (t.rank == 0) {
        printf("%d ranks on %s, %d samples per rank and step, width %d\n", t.size, t.arith.name,
               t.o.batch, t.o.width);
        if (t.o.verify) {
            train_alone(&t);
        }
    }
    int good = train(&t), all = 0;
    mlp_try(dtr_allreduce(t.group, dtr_cpu(&good, 1, DTR_I32), dtr_cpu(&all, 1, DTR_I32), DTR_MIN,
                          NULL, NULL),
            "agreeing on the result");
    for (int i = 0; i < MLP_PARAMS; i++) {
        dtr_tensor_release(t.want[i]);
    }
    free(t.losses);
    t.arith.close(&t.arith);
    mlp_try(dtr_world_destroy(t.world), "dtr_world_destroy");
    return all ? 0 : 1;
}
