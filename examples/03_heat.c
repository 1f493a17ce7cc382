/* A numerical code of its own that adopts the library: 1-D heat equation, explicit steps, rod cut
 * into one piece per rank. The program owns MPI; the library gets a communicator through dtr/mpi.h.
 * A neighbour on the same node is read where it lies, by a peer pointer; messages carry the halo
 * only between nodes, and where a node cannot share memory. The start sin(pi x) decays as
 * exp(-pi^2 t), so the result can be checked. Run: mpirun -n 4 ./heat */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <dtr/dtr.h>
#include <dtr/mpi.h>

enum { CELLS = 240, STEPS = 4000, REPORT = 1000, LEFT = 0, RIGHT = 1 };
static const double PI = 3.14159265358979323846;

typedef struct rod {
    dtr_world *world;
    dtr_group *group;
    int rank, size;
    size_t first, count; /* own cells */
    int now;             /* which of the two is the present one; the other one is being computed */
    double *u[2];        /* node-shared, with one halo cell at each end: [0] and [count + 1] */
    const double *outermost[2][2]; /* of the left and right neighbour, in either of its two; NULL:
                                      by messages */
} rod;

static size_t first_cell(const rod *r, int rank) {
    return (size_t)rank * CELLS / (size_t)r->size;
}

/* The arrays have the same size on all ranks: the largest piece decides. Who is a neighbour, and
 * where, is asked once. */
static dtr_status make_rod(rod *r) {
    const size_t length = CELLS / (size_t)r->size + 3, nbytes = 2 * length * sizeof(double);
    const int own[2] = { dtr_world_node(r->world), dtr_world_local_rank(r->world) };
    int(*all)[2] = calloc((size_t)r->size, sizeof *all);
    void *block = NULL;
    r->first = first_cell(r, r->rank);
    r->count = first_cell(r, r->rank + 1) - r->first;
    dtr_status s = all == NULL
                       ? DTR_ERR_NOMEM
                       : dtr_allgather(r->group, dtr_cpu_in(own, 2, DTR_I32),
                                       dtr_cpu(all, 2 * (size_t)r->size, DTR_I32), NULL, NULL);
    if (!DTR_FAILED(s)) {
        s = dtr_alloc(r->world, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_SHARED, nbytes, &block);
    }
    if (!DTR_FAILED(s)) {
        s = dtr_node_barrier(r->world); /* now all neighbours have allocated theirs */
    }
    for (int i = 0; i < 2 && !DTR_FAILED(s); i++) {
        r->u[i] = (double *)block + (size_t)i * length;
        for (int side = LEFT; side <= RIGHT; side++) {
            const int peer = side == LEFT ? r->rank - 1 : r->rank + 1;
            if (peer >= 0 && peer < r->size && all[peer][0] == own[0]) {
                const size_t last = first_cell(r, peer + 1) - first_cell(r, peer);
                r->outermost[side][i] =
                    dtr_peer_pointer(r->world, &r->u[i][side == LEFT ? last : 1], all[peer][1]);
            }
        }
    }
    free(all);
    return s;
}

/* The barrier lets this rank read what its node neighbours have computed. They overwrite it only in
 * the step after the next barrier, which this rank enters when it has read. The ends of the rod
 * stay at zero. */
static dtr_status exchange_halo(rod *r) {
    double *u = r->u[r->now], *halo[2] = { &u[0], &u[r->count + 1] };
    dtr_p2p ops[4];
    size_t n = 0;
    dtr_status s = dtr_node_barrier(r->world);
    for (int side = LEFT; side <= RIGHT && !DTR_FAILED(s); side++) {
        const int peer = side == LEFT ? r->rank - 1 : r->rank + 1;
        const double *edge = &u[side == LEFT ? 1 : r->count];
        if (r->outermost[side][r->now] != NULL) {
            *halo[side] = *r->outermost[side][r->now];
        } else if (peer >= 0 && peer < r->size) {
            ops[n++] = (dtr_p2p){ true, dtr_cpu_in(edge, 1, DTR_F64), peer, side };
            ops[n++] = (dtr_p2p){ false, dtr_cpu(halo[side], 1, DTR_F64), peer, 1 - side };
        }
    }
    return !DTR_FAILED(s) && n > 0 ? dtr_batch_p2p(r->group, ops, n, NULL, NULL) : s;
}

/* One step of u += a * (left - 2 u + right); the squared change is summed for the residual. */
static double advance(rod *r, double a) {
    const double *u = r->u[r->now];
    double *next = r->u[1 - r->now], change = 0;
    for (size_t i = 1; i <= r->count; i++) {
        double d = a * (u[i - 1] - 2 * u[i] + u[i + 1]);
        next[i] = u[i] + d;
        change += d * d;
    }
    r->now = 1 - r->now;
    return change;
}

static dtr_status norm(rod *r, double squared, double *out) {
    dtr_buffer b = dtr_cpu(&squared, 1, DTR_F64);
    dtr_status s = dtr_allreduce(r->group, b, b, DTR_SUM, NULL, NULL);
    *out = sqrt(squared);
    return s;
}

static double position(const rod *r, size_t i) {
    return (double)(r->first + i) / (CELLS + 1); /* cells 1..CELLS between the fixed ends 0 and 1 */
}

static dtr_status solve(rod *r, double *error) {
    const double dx = 1.0 / (CELLS + 1), a = 0.4, dt = a * dx * dx;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i <= r->count + 1;
             i++) { /* the ends matter in the first and last piece */
            r->u[k][i] = i == 0 || i > r->count ? 0 : sin(PI * position(r, i));
        }
    }
    for (int step = 1; step <= STEPS; step++) {
        dtr_status s = exchange_halo(r);
        if (DTR_FAILED(s)) {
            return s;
        }
        double change = advance(r, a);
        if (step % REPORT == 0) {
            double residual = 0;
            s = norm(r, change, &residual);
            if (DTR_FAILED(s)) {
                return s;
            }
            if (r->rank == 0) {
                printf("step %4d  residual %.3e\n", step, residual);
            }
        }
    }
    double worst = 0, decay = exp(-PI * PI * STEPS * dt);
    for (size_t i = 1; i <= r->count; i++) {
        worst = fmax(worst, fabs(r->u[r->now][i] - decay * sin(PI * position(r, i))));
    }
    dtr_buffer b = dtr_cpu(&worst, 1, DTR_F64);
    dtr_status s = dtr_allreduce(r->group, b, b, DTR_MAX, NULL, NULL);
    *error = worst;
    return s;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv); /* thread level single: the library works inside our calls */
    dtr_world *world = NULL;
    if (DTR_FAILED(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &world))) {
        fprintf(stderr, "%s\n", dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    rod r = { .world = world,
              .group = dtr_world_group(world),
              .rank = dtr_world_rank(world),
              .size = dtr_world_size(world) };
    double error = 1;
    dtr_status s = make_rod(&r);
    if (!DTR_FAILED(s)) {
        s = solve(&r, &error);
    }
    if (DTR_FAILED(s)) {
        fprintf(stderr, "rank %d: %s: %s\n", r.rank, dtr_status_name(s), dtr_last_error_message());
    } else if (r.rank == 0) {
        printf("largest error against exp(-pi^2 t) sin(pi x): %.2e on %d ranks\n", error, r.size);
    }
    (void)dtr_node_barrier(world); /* nobody reads any more */
    (void)dtr_free(world, r.u[0]);
    dtr_world_destroy(world);
    MPI_Finalize();
    return !DTR_FAILED(s) && error < 1e-4 ? 0 : 1;
}
