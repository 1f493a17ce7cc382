/* dtr-sum-cost: what exact sums take beside plain ones: dtr_sum and dtr_dot against vectorised
 * loops with an allreduce of their results, and an allreduce of a reproducible group against that
 * of another. Contenders take turns. */
#include <getopt.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/coll.h>
#include <dtr/mpi.h>

#include "measure.h"

enum { LANES = 32 }; /* sums that do not wait for each other, as vectors of any width */

typedef struct settings {
    int count, rounds;
    const char *json;
} settings;

static const char help[] =
    "dtr-sum-cost - exact sums beside plain ones\n"
    "  mpirun -n 2 --bind-to core dtr-sum-cost [options]\n\n"
    "  -c, --count N    elements of each rank, 16777216; of an allreduce a 16th of that\n"
    "  -r, --rounds N   samples of each contender, 21\n"
    "      --json FILE  the figures as JSON\n"
    "  -h, --help\n"
    "      --version\n";
static const measure_option choices[] = {
    { "count", 'c', MEASURE_COUNT, offsetof(settings, count), .least = 1 },
    { "rounds", 'r', MEASURE_COUNT, offsetof(settings, rounds), .least = 1 },
    { "json", 0, MEASURE_TEXT, offsetof(settings, json) },
    { NULL },
};

static void must(dtr_status s) {
    if (s != DTR_OK) {
        fprintf(stderr, "dtr-sum-cost: %s\n", dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* ---- contenders ---- */

typedef struct data {
    dtr_group *plain, *exact; /* all ranks; exact: reproducible */
    double *x, *out;
    size_t count;
    double result;
    FILE *json; /* rank 0, NULL: not asked for */
    int rows;
} data;

static double plain_dot(const double *x, const double *y, size_t count) {
    double part[LANES] = { 0 }, sum = 0;
    size_t k = 0;
    for (; k + LANES <= count; k += LANES) {
        for (size_t i = 0; i < LANES; i++) {
            part[i] += y != NULL ? x[k + i] * y[k + i] : x[k + i];
        }
    }
    for (; k < count; k++) {
        part[0] += y != NULL ? x[k] * y[k] : x[k];
    }
    for (size_t i = 0; i < LANES; i++) {
        sum += part[i];
    }
    return sum;
}

static void add_up(data *d, double sum) {
    must(dtr_allreduce(d->plain, dtr_cpu(&sum, 1, DTR_F64), dtr_cpu(&d->result, 1, DTR_F64),
                       DTR_SUM, NULL, NULL));
}

static void sum_plain(data *d) {
    add_up(d, plain_dot(d->x, NULL, d->count));
}
static void sum_exact(data *d) {
    must(dtr_sum(d->plain, dtr_cpu(d->x, d->count, DTR_F64), NULL, &d->result));
}
static void dot_plain(data *d) {
    add_up(d, plain_dot(d->x, d->out, d->count));
}
static void dot_exact(data *d) {
    must(dtr_dot(d->plain, dtr_cpu(d->x, d->count, DTR_F64), dtr_cpu(d->out, d->count, DTR_F64),
                 NULL, &d->result));
}
static void reduce(data *d, dtr_group *g, dtr_dtype dtype) {
    const size_t n = d->count / 16;
    must(dtr_allreduce(g, dtr_cpu(d->x, n, dtype), dtr_cpu(d->out, n, dtype), DTR_SUM, NULL, NULL));
}
static void f64_plain(data *d) {
    reduce(d, d->plain, DTR_F64);
}
static void f64_exact(data *d) {
    reduce(d, d->exact, DTR_F64);
}
static void f32_plain(data *d) {
    reduce(d, d->plain, DTR_F32);
}
static void f32_exact(data *d) {
    reduce(d, d->exact, DTR_F32);
}

/* ---- rounds ---- */

static double sample(void (*run)(data *), data *d) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = measure_now();
    run(d);
    return measure_slowest(measure_now() - start);
}

static void compare(const char *what, void (*plain)(data *), void (*exact)(data *), data *d,
                    int rounds) {
    double *a = malloc(2 * (size_t)rounds * sizeof *a), *b = a + rounds;
    int rank;
    if (a == NULL) {
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    (void)sample(plain, d);
    (void)sample(exact, d);
    for (int i = 0; i < rounds; i++) {
        const bool first = i % 2 == 0;
        a[i] = first ? sample(plain, d) : 0;
        b[i] = sample(exact, d);
        a[i] = first ? a[i] : sample(plain, d);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const double plain_us = 1e6 * measure_median(a, rounds),
                 exact_us = 1e6 * measure_median(b, rounds), ratio = measure_ratio(b, a, rounds);
    if (rank == 0) {
        printf("%-40s %10.1f %10.1f %8.2f\n", what, plain_us, exact_us, ratio);
    }
    if (d->json != NULL) {
        fprintf(d->json, "%s\n  {\"what\": ", d->rows++ > 0 ? "," : "");
        measure_json_text(d->json, what);
        fprintf(d->json, ", \"plain_us\": %.3f, \"exact_us\": %.3f, \"ratio\": %.4f}", plain_us,
                exact_us, ratio);
    }
    free(a);
}

/* Numbers around 1, or of 16 decades. Never both signs, so that plain sums are near the exact ones.
 */
static void fill(data *d, bool decades) {
    uint64_t s = 1 + (uint64_t)dtr_group_rank(d->plain);
    for (size_t k = 0; k < d->count; k++) {
        s = s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        d->x[k] = 0.5 + (double)(s >> 11) * 0x1p-53;
        for (unsigned i = 0; decades && i < (unsigned)(s >> 33) % 16; i++) {
            d->x[k] *= 10;
        }
        d->out[k] = d->x[k];
    }
}

static void fill_f32(data *d) {
    float *x = (float *)(void *)d->x;
    for (size_t k = 0; k < d->count / 16; k++) {
        const float v = 1 + (float)(k * 7919 % 4001) / 4001;
        memcpy(x + k, &v, sizeof v);
    }
}

static void open_json(data *d, const settings *s, const dtr_world *w) {
    if (s->json == NULL || dtr_world_rank(w) != 0) {
        return;
    }
    d->json = fopen(s->json, "w");
    if (d->json == NULL) {
        fprintf(stderr, "dtr-sum-cost: cannot write %s\n", s->json);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    fprintf(d->json, "{\"tool\": \"dtr-sum-cost\", \"ranks\": %d, \"count\": %zu, \"rows\": [",
            dtr_world_size(w), d->count);
}

static int run(const settings *s) {
    dtr_world *w = NULL;
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    data d = { .count = (size_t)s->count };
    must(dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w));
    d.plain = dtr_world_group(w);
    o.reproducible = true;
    must(dtr_group_create(w, NULL, dtr_world_size(w), &o, &d.exact));
    d.x = malloc(d.count * sizeof *d.x);
    d.out = malloc(d.count * sizeof *d.out);
    if (d.x == NULL || d.out == NULL) {
        fprintf(stderr, "dtr-sum-cost: no memory for %zu elements\n", d.count);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (dtr_world_rank(w) == 0) {
        printf("%-40s %10s %10s %8s\n", "median, in microseconds", "plain", "exact", "ratio");
    }
    open_json(&d, s, w);
    fill(&d, false);
    compare("sum", sum_plain, sum_exact, &d, s->rounds);
    compare("dot", dot_plain, dot_exact, &d, s->rounds);
    compare("allreduce f64", f64_plain, f64_exact, &d, s->rounds);
    fill(&d, true);
    compare("sum, of 16 decades", sum_plain, sum_exact, &d, s->rounds);
    fill_f32(&d);
    compare("allreduce f32", f32_plain, f32_exact, &d, s->rounds);
    d.count = 1;
    compare("sum of one element", sum_plain, sum_exact, &d, 100 * s->rounds);
    if (d.json != NULL) {
        fprintf(d.json, "\n]}\n");
        fclose(d.json);
    }
    free(d.x);
    free(d.out);
    must(dtr_group_destroy(d.exact));
    must(dtr_world_destroy(w));
    return 0;
}

int main(int argc, char **argv) {
    settings s = { 1 << 24, 21, NULL };
    const measure_command command = { "dtr-sum-cost", help, choices };
    int status = measure_parse(&command, &s, argc, argv, measure_speaks());
    if (status < 0 && optind < argc) {
        fprintf(stderr, "dtr-sum-cost: cannot make sense of \"%s\"; see --help\n", argv[optind]);
        status = 2;
    }
    if (status >= 0) {
        return status;
    }
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &(int){ 0 });
    status = run(&s);
    MPI_Finalize();
    return status;
}
