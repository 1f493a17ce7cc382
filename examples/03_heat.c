/* A numerical code of its own that adopts the library: 1-D heat equation, explicit steps, rod cut
 * into one piece per rank. The program owns MPI; the library gets a communicator through dtr/mpi.h
 * and does the halo exchange and the norms. The start sin(pi x) decays as exp(-pi^2 t), so the
 * result can be checked. Run: mpirun -n 4 ./heat */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <dtr/dtr.h>
#include <dtr/mpi.h>

enum { CELLS = 240, STEPS = 4000, REPORT = 1000 };
static const double PI = 3.14159265358979323846;

typedef struct rod {
    dtr_group *group;
    int rank, size;
    size_t first, count; /* own cells */
    double *u, *next;    /* with one halo cell at each end: [0] and [count + 1] */
} rod;

/* Neighbours swap their outermost cells; the ends of the rod stay at zero. */
static dtr_status exchange_halo(rod *r) {
    dtr_p2p ops[4];
    size_t n = 0;
    if (r->rank > 0) {
        ops[n++] = (dtr_p2p){ true, dtr_cpu(&r->u[1], 1, DTR_F64), r->rank - 1, 0 };
        ops[n++] = (dtr_p2p){ false, dtr_cpu(&r->u[0], 1, DTR_F64), r->rank - 1, 1 };
    }
    if (r->rank < r->size - 1) {
        ops[n++] = (dtr_p2p){ true, dtr_cpu(&r->u[r->count], 1, DTR_F64), r->rank + 1, 1 };
        ops[n++] = (dtr_p2p){ false, dtr_cpu(&r->u[r->count + 1], 1, DTR_F64), r->rank + 1, 0 };
    }
    return dtr_batch_p2p(r->group, ops, n, NULL, NULL);
}

/* One step of u += a * (left - 2 u + right); the squared change is summed for the residual. */
static double advance(rod *r, double a) {
    double change = 0;
    for (size_t i = 1; i <= r->count; i++) {
        double d = a * (r->u[i - 1] - 2 * r->u[i] + r->u[i + 1]);
        r->next[i] = r->u[i] + d;
        change += d * d;
    }
    double *swap = r->u;
    r->u = r->next;
    r->next = swap;
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
    for (size_t i = 1; i <= r->count; i++) {
        r->u[i] = sin(PI * position(r, i));
    }
    for (int step = 1; step <= STEPS; step++) {
        dtr_status s = exchange_halo(r);
        if (s != DTR_OK) {
            return s;
        }
        double change = advance(r, a);
        if (step % REPORT == 0) {
            double residual = 0;
            s = norm(r, change, &residual);
            if (s != DTR_OK) {
                return s;
            }
            if (r->rank == 0) {
                printf("step %4d  residual %.3e\n", step, residual);
            }
        }
    }
    double worst = 0, decay = exp(-PI * PI * STEPS * dt);
    for (size_t i = 1; i <= r->count; i++) {
        worst = fmax(worst, fabs(r->u[i] - decay * sin(PI * position(r, i))));
    }
    dtr_buffer b = dtr_cpu(&worst, 1, DTR_F64);
    dtr_status s = dtr_allreduce(r->group, b, b, DTR_MAX, NULL, NULL);
    *error = worst;
    return s;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv); /* thread level single: the library works inside our calls */
    dtr_world *world = NULL;
    if (dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &world) != DTR_OK) {
        fprintf(stderr, "%s\n", dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    rod r = { .group = dtr_world_group(world),
              .rank = dtr_world_rank(world),
              .size = dtr_world_size(world) };
    size_t low = (size_t)r.rank * CELLS / (size_t)r.size,
           high = (size_t)(r.rank + 1) * CELLS / (size_t)r.size;
    r.first = low;
    r.count = high - low;
    r.u = calloc(r.count + 2, sizeof *r.u);
    r.next = calloc(r.count + 2, sizeof *r.next);
    double error = 1;
    dtr_status s = r.u != NULL && r.next != NULL ? solve(&r, &error) : DTR_ERR_NOMEM;
    if (s != DTR_OK) {
        fprintf(stderr, "rank %d: %s: %s\n", r.rank, dtr_status_name(s), dtr_last_error_message());
    } else if (r.rank == 0) {
        printf("largest error against exp(-pi^2 t) sin(pi x): %.2e on %d ranks\n", error, r.size);
    }
    free(r.u);
    free(r.next);
    dtr_world_destroy(world);
    MPI_Finalize();
    return s == DTR_OK && error < 1e-4 ? 0 : 1;
}
