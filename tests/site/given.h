/* What the pieces of code on a page presuppose, made when a piece first asks for it (pieces.py),
 * and what runs them. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/dtr.h>
#include <dtr/mpi.h>

struct piece {
    const char *name; /* of its program; "" where it has none */
    const char *where;
    int (*run)(void);
};

enum { N = 1024 };

static struct {
    dtr_world *world;
    dtr_group *pairs;
    dtr_ddp *ddp;
    dtr_zero *zero;
    dtr_optim *optim;
    dtr_sampler *sampler;
    dtr_tensor *weight, *bias;
    MPI_Comm grid;
} made = { .grid = MPI_COMM_NULL };

/* Ready for use: values that a piece only reads or overwrites. */
static float storage[N], *values = storage, rate = 0.1f;
static size_t n = N;
static int steps = 4, up, down, columns = 3;

/* ---- what pieces call ---- */

static dtr_status put(void *arg, const char *key, const void *value, size_t nbytes) {
    (void)arg, (void)key, (void)value, (void)nbytes;
    return DTR_OK;
}
static dtr_status get(void *arg, const char *key, void *value, size_t cap, size_t *nbytes,
                      double timeout_s) {
    (void)arg, (void)key, (void)value, (void)cap, (void)nbytes, (void)timeout_s;
    return DTR_ERR_TIMEOUT;
}
static void compute_something_else(void) {
}
static void forward(void) {
}
static void optimizer_step(void) {
}

static void fill(float *gradient, size_t count, float value) {
    for (size_t i = 0; i < count; i++) {
        gradient[i] = value;
    }
}

static void backward_weight(void *gradient) {
    fill(gradient, 12, 0.5f);
}

static void backward_bias(void *gradient) {
    fill(gradient, 3, 0.25f);
}

/* A backward pass that hands its gradients over; at a loss that is not finite they are not either.
 */
static void backward(dtr_ddp *ddp, float loss) {
    fill(dtr_tensor_data(dtr_ddp_grad(ddp, 1)), 3, loss);
    dtr_ddp_grad_ready(ddp, 1, NULL);
    fill(dtr_tensor_data(dtr_ddp_grad(ddp, 0)), 12, loss);
    dtr_ddp_grad_ready(ddp, 0, NULL);
}

/* Rank 1 comes to an infinite one in step 1. */
static float loss_of(int step) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank == 1 && step == 1 ? INFINITY : 1.0f;
}

static void train(dtr_ddp *ddp, dtr_optim *optim, int count) {
    for (int step = 0; step < count; step++) {
        backward(ddp, 1);
        dtr_ddp_backward_end(ddp, NULL);
        dtr_optim_step(optim);
    }
}

/* ---- what pieces use ---- */

static dtr_world *given_world(void) {
    if (made.world == NULL) {
        dtr_world_create(NULL, &made.world);
    }
    return made.world;
}

static dtr_group *given_group(void) {
    return dtr_world_group(given_world());
}

static dtr_group *given_pairs(void) {
    dtr_group_split(given_group(), dtr_group_rank(given_group()) / 2, 0, NULL, &made.pairs);
    return made.pairs;
}

static dtr_tensor *tensor(dtr_tensor **kept, int ndim, float value) {
    if (*kept == NULL) {
        dtr_tensor_empty(given_world(), DTR_F32, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, ndim,
                         (int64_t[]){ ndim == 2 ? 4 : 3, 3 }, kept);
        dtr_tensor_fill(*kept, value, NULL);
    }
    return *kept;
}

static dtr_tensor *given_weight(void) {
    return tensor(&made.weight, 2, 1);
}

static dtr_tensor *given_bias(void) {
    return tensor(&made.bias, 1, 0);
}

static dtr_tensor *mean_of_weights(void) {
    return dtr_tensor_fill(given_weight(), 0.75, NULL) == DTR_OK ? given_weight() : NULL;
}

static dtr_ddp *given_ddp(void) {
    if (made.ddp == NULL) {
        dtr_param params[] = { { "weight", given_weight(), NULL, 0 },
                               { "bias", given_bias(), NULL, 0 } };
        dtr_ddp_create(given_group(), params, 2, NULL, &made.ddp);
    }
    return made.ddp;
}

static dtr_zero *given_zero(void) {
    if (made.zero == NULL) {
        dtr_zero_create(given_ddp(), NULL, &made.zero);
    }
    return made.zero;
}

static dtr_optim *given_optim(void) {
    if (made.optim == NULL) {
        dtr_optim_create(given_ddp(), made.zero, NULL, &made.optim);
    }
    return made.optim;
}

/* Every rank has read two batches of 8 samples. */
static dtr_sampler *given_sampler(void) {
    uint64_t batch[8];
    size_t count;
    dtr_sampler_create(100, dtr_group_rank(given_group()), dtr_group_size(given_group()), NULL,
                       &made.sampler);
    dtr_sampler_next(made.sampler, 8, batch, &count);
    dtr_sampler_next(made.sampler, 8, batch, &count);
    return made.sampler;
}

static float given_loss(void) {
    return (float[]){ 2.5f, 1.5f, 3.5f }[dtr_group_rank(given_group()) % 3];
}

static MPI_Comm given_my_comm(void) {
    return MPI_COMM_WORLD;
}

static MPI_Comm given_grid(void) {
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Cart_create(MPI_COMM_WORLD, 1, &size, (int[]){ 0 }, 0, &made.grid);
    return made.grid;
}

/* ---- running ---- */

static void end_given(void) {
    dtr_optim_destroy(made.optim);
    dtr_zero_destroy(made.zero);
    dtr_ddp_destroy(made.ddp);
    dtr_sampler_destroy(made.sampler);
    dtr_tensor_release(made.weight);
    dtr_tensor_release(made.bias);
    if (made.world != NULL) {
        dtr_world_destroy(made.world);
    }
    if (made.grid != MPI_COMM_NULL) {
        MPI_Comm_free(&made.grid);
    }
    memset(&made, 0, sizeof made);
    made.grid = MPI_COMM_NULL;
}

/* Run the pieces of the name by which the program was started, or all that have none; these must
 * not fail in any call. */
static int run_pieces(int argc, char **argv, const struct piece *pieces, size_t count) {
    static char lines[4096];
    const char *slash = strrchr(argv[0], '/'), *name = slash != NULL ? slash + 1 : argv[0];
    int level, status = 0;
    name = strcmp(name, "pieces") == 0 ? "" : name;
    columns = argc > 1 ? atoi(argv[1]) : columns;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    setvbuf(stdout, lines, _IOLBF, sizeof lines); /* MPICH made it unbuffered: lines would mix */
    for (size_t i = 0; i < count && status == 0; i++) {
        if (strcmp(pieces[i].name, name) == 0) {
            status = pieces[i].run();
            if (name[0] == 0 && (status != 0 || dtr_last_error_message()[0] != 0)) {
                fprintf(stderr, "%s: status %d: %s\n", pieces[i].where, status,
                        dtr_last_error_message());
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
            end_given();
        }
    }
    MPI_Finalize();
    return status;
}
