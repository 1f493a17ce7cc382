/* Conjugate gradients whose residuals are the same, bit for bit, on any number of ranks.
 *
 * The equations are those of a grid of SIDE * SIDE points. Neighbours i < j are joined by a weight
 * w(i, j) = 1 + (7 i + 13 j) mod 17; row i of the matrix has -w(i, j) for each neighbour and, on
 * the diagonal, their sum and 1/16. The solution is chosen, x(i) = i mod 11 - 5, and the right-hand
 * side made of it, without rounding, as all of these are whole numbers of sixteenths.
 *
 * Two things make the residuals independent of ranks. Rows are dealt to ranks whole, and the sum of
 * a row is made by one rank, in the order of its columns. All other sums are dtr_dot, which
 * adds without rounding, whoever has which elements. With --plain each rank sums up its own
 * elements in a loop instead, and the digits depend on the number of ranks.
 * Run: mpirun -n 4 ./cg [--plain] */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/dtr.h>

enum { SIDE = 96, POINTS = SIDE * SIDE, MOST = 2000, REPORT = 50 };
static const double LIMIT = 1e-10; /* of the residual, as a part of the first one */

typedef struct solver {
    dtr_group *group;
    bool plain;
    size_t first, count;   /* own rows */
    size_t *counts;        /* of all ranks, for dtr_allgatherv */
    double *x, *r, *p, *q; /* own part of each vector */
    double *whole;         /* p of all ranks */
    int iterations;
    uint64_t hash; /* of the bits of all residuals */
} solver;

/* ---- the matrix ---- */

static double weight(size_t a, size_t b) {
    return 1 + (double)((a < b ? 7 * a + 13 * b : 7 * b + 13 * a) % 17);
}

/* Row i times a vector, in the order of the columns: above, left, the point itself, right, below.
 */
static double row_times(size_t i, const double *v) {
    const size_t line = i / SIDE, column = i % SIDE;
    const size_t near[4] = { i - SIDE, i - 1, i + 1, i + SIDE };
    const bool there[4] = { line > 0, column > 0, column + 1 < SIDE, line + 1 < SIDE };
    double diagonal = 1.0 / 16, sum = 0;
    for (int k = 0; k < 4; k++) {
        diagonal += there[k] ? weight(i, near[k]) : 0;
    }
    for (int k = 0; k < 4; k++) {
        sum += k == 2 ? diagonal * v[i] : 0;
        sum -= there[k] ? weight(i, near[k]) * v[near[k]] : 0;
    }
    return sum;
}

static double solution(size_t i) {
    return (double)(i % 11) - 5;
}

/* ---- sums over all ranks ---- */

static dtr_status dot(const solver *s, double *a, double *b, double *out) {
    if (!s->plain) {
        return dtr_dot(s->group, dtr_cpu(a, s->count, DTR_F64), dtr_cpu(b, s->count, DTR_F64), NULL,
                       out);
    }
    double sum = 0;
    for (size_t i = 0; i < s->count; i++) {
        sum += a[i] * b[i];
    }
    return dtr_allreduce(s->group, dtr_cpu(&sum, 1, DTR_F64), dtr_cpu(out, 1, DTR_F64), DTR_SUM,
                         NULL, NULL);
}

/* q = A p, for which every rank needs the whole of p. */
static dtr_status multiply(solver *s) {
    dtr_status status = dtr_allgatherv(s->group, dtr_cpu(s->p, s->count, DTR_F64),
                                       dtr_cpu(s->whole, POINTS, DTR_F64), s->counts, NULL, NULL);
    for (size_t i = 0; !DTR_FAILED(status) && i < s->count; i++) {
        s->q[i] = row_times(s->first + i, s->whole);
    }
    return status;
}

/* ---- the method ---- */

static void note(solver *s, double residual) {
    uint64_t bits;
    memcpy(&bits, &residual, sizeof bits);
    s->hash = (s->hash ^ bits) * UINT64_C(0x100000001b3);
    s->hash ^= s->hash >> 29;
    if (dtr_group_rank(s->group) == 0 && s->iterations % REPORT == 0) {
        printf("iteration %4d  residual %.17g\n", s->iterations, residual);
    }
}

/* One step; *square is that of the residual's norm, before and after. */
static dtr_status step(solver *s, double *square) {
    double curvature = 0, before = *square;
    dtr_status status = multiply(s);
    status = DTR_FAILED(status) ? status : dot(s, s->p, s->q, &curvature);
    const double along = before / curvature;
    for (size_t i = 0; !DTR_FAILED(status) && i < s->count; i++) {
        s->x[i] += along * s->p[i];
        s->r[i] -= along * s->q[i];
    }
    status = DTR_FAILED(status) ? status : dot(s, s->r, s->r, square);
    const double keep = *square / before;
    for (size_t i = 0; !DTR_FAILED(status) && i < s->count; i++) {
        s->p[i] = s->r[i] + keep * s->p[i];
    }
    return status;
}

static dtr_status solve(solver *s) {
    double square = 0, limit = 0;
    for (size_t i = 0; i < POINTS; i++) {
        s->whole[i] = solution(i);
    }
    for (size_t i = 0; i < s->count; i++) {
        s->x[i] = 0;
        s->r[i] = s->p[i] = row_times(s->first + i, s->whole);
    }
    dtr_status status = dot(s, s->r, s->r, &square);
    limit = LIMIT * sqrt(square);
    for (; !DTR_FAILED(status) && sqrt(square) > limit && s->iterations < MOST; s->iterations++) {
        note(s, sqrt(square));
        status = step(s, &square);
    }
    note(s, sqrt(square));
    return status;
}

/* The largest error of any element, on all ranks. */
static dtr_status error_of(const solver *s, double *worst) {
    double own = 0;
    for (size_t i = 0; i < s->count; i++) {
        own = fmax(own, fabs(s->x[i] - solution(s->first + i)));
    }
    return dtr_allreduce(s->group, dtr_cpu(&own, 1, DTR_F64), dtr_cpu(worst, 1, DTR_F64), DTR_MAX,
                         NULL, NULL);
}

/* Rank r has the rows from POINTS r / size on. */
static size_t begin_of(int r, int size) {
    return (size_t)POINTS * (size_t)r / (size_t)size;
}

static bool prepare(solver *s, dtr_world *world) {
    const int rank = dtr_world_rank(world), size = dtr_world_size(world);
    s->group = dtr_world_group(world);
    s->first = begin_of(rank, size);
    s->count = begin_of(rank + 1, size) - s->first;
    s->counts = malloc((size_t)size * sizeof *s->counts);
    s->x = malloc((POINTS + 4 * s->count) * sizeof *s->x);
    if (s->counts == NULL || s->x == NULL) {
        return false;
    }
    s->r = s->x + s->count;
    s->p = s->r + s->count;
    s->q = s->p + s->count;
    s->whole = s->q + s->count;
    for (int r = 0; r < size; r++) {
        s->counts[r] = begin_of(r + 1, size) - begin_of(r, size);
    }
    return true;
}

int main(int argc, char **argv) {
    dtr_world *world = NULL;
    if (DTR_FAILED(dtr_world_create(NULL, &world))) {
        fprintf(stderr, "%s\n", dtr_last_error_message());
        return 1;
    }
    solver s = { .plain = argc > 1 && strcmp(argv[1], "--plain") == 0 };
    double error = 1;
    dtr_status status = prepare(&s, world) ? solve(&s) : DTR_ERR_NOMEM;
    status = DTR_FAILED(status) ? status : error_of(&s, &error);
    if (DTR_FAILED(status)) {
        fprintf(stderr, "rank %d: %s: %s\n", dtr_world_rank(world), dtr_status_name(status),
                dtr_last_error_message());
    } else if (dtr_world_rank(world) == 0) {
        printf("%d iterations on %d ranks, largest error %.1e\n", s.iterations,
               dtr_world_size(world), error);
        printf("all residuals: %016llx\n", (unsigned long long)s.hash);
    }
    free(s.x);
    free(s.counts);
    dtr_world_destroy(world);
    return !DTR_FAILED(status) && error < 1e-6 ? 0 : 1;
}
