/* dtr-recorder-cost: what the flight recorder takes of a small allreduce. Calls with a record and
 * calls without take turns in one run; the difference is the cost. Users cannot turn the recorder
 * off. What finds mismatches is in both: the fingerprint of a repeated call is kept, and comparing
 * it is one word of a line that is read anyway. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/coll.h>
#include <dtr/mpi.h>
#include <dtr/version.h>

#include "measure.h"
#include "world/world.h"

enum { CALLS = 500 };

static const char help[] =
    "dtr-recorder-cost - the flight recorder's share of an allreduce of 8 bytes\n"
    "  mpirun -n 2 --bind-to core dtr-recorder-cost [--rounds N] [--json FILE | --version]\n\n"
    "Times calls that leave a record and calls that leave none in turn, and prints the median of\n"
    "the differences and of their shares of the whole call.\n";

static double time_calls(dtr_world *w, bool recorded) {
    float in[2] = { 1, 2 }, out[2];
    dtr_group *g = dtr_world_group(w);
    w->recording.unrecorded = !recorded;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = measure_now();
    for (int i = 0; i < CALLS; i++) {
        if (dtr_allreduce(g, dtr_cpu(in, 2, DTR_F32), dtr_cpu(out, 2, DTR_F32), DTR_SUM, NULL,
                          NULL) != DTR_OK) {
            fprintf(stderr, "dtr-recorder-cost: %s\n", dtr_last_error_message());
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    return measure_slowest(measure_now() - start) / CALLS;
}

static int report(const double *with, const double *without, double *cost, int rounds,
                  const char *path) {
    for (int i = 0; i < rounds; i++) {
        cost[i] = with[i] - without[i];
    }
    double call = measure_median(with, rounds) * 1e9, record = measure_median(cost, rounds) * 1e9;
    double share = 100 * measure_ratio(cost, with, rounds);
    printf(
        "allreduce of 8 bytes: %.0f ns; its record: %.0f ns; share, median of %d rounds: %.1f %%\n",
        call, record, rounds, share);
    FILE *json = path != NULL ? fopen(path, "w") : NULL;
    if (path != NULL && json == NULL) {
        fprintf(stderr, "dtr-recorder-cost: cannot write %s\n", path);
        return 2;
    }
    if (json != NULL) {
        fprintf(json,
                "{\"tool\": \"dtr-recorder-cost\", \"call_ns\": %.1f, \"record_ns\": %.1f, "
                "\"share_percent\": %.3f}\n",
                call, record, share);
        fclose(json);
    }
    return 0;
}

static int run(int rounds, const char *path) {
    dtr_world *w = NULL;
    double *with = malloc(3 * (size_t)rounds * sizeof *with);
    double *without = with + rounds, *cost = without + rounds;
    int status = 0;
    if (with == NULL || dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w) != DTR_OK) {
        fprintf(stderr, "dtr-recorder-cost: %s\n", dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    time_calls(w, true); /* warms up */
    for (int i = 0; i < rounds; i++) {
        bool first = i % 2 == 0;
        with[i] = first ? time_calls(w, true) : 0;
        without[i] = time_calls(w, false);
        with[i] = first ? with[i] : time_calls(w, true);
    }
    w->recording.unrecorded = false;
    if (dtr_world_rank(w) == 0) {
        status = report(with, without, cost, rounds, path);
    }
    dtr_world_destroy(w);
    free(with);
    return status;
}

/* The first argument that it cannot make sense of, NULL: none. */
static const char *read_arguments(int argc, char **argv, int *rounds, const char **path) {
    for (int i = 1; i < argc; i++) {
        bool value = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0 && value) {
            *path = argv[++i];
        } else if (strcmp(argv[i], "--rounds") == 0 && value &&
                   measure_parse_count(argv[i + 1], 1, rounds)) {
            i++;
        } else {
            return argv[i];
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    int rounds = 201, rank = 0, status = 2;
    const char *path = NULL;
    const char *other = read_arguments(argc, argv, &rounds, &path);
    bool version = other != NULL && strcmp(other, "--version") == 0;
    if (version || (other != NULL && (strcmp(other, "--help") == 0 || strcmp(other, "-h") == 0))) {
        fputs(version ? dtr_version_string() : help, stdout); /* also where MPI cannot start */
        fputs(version ? "\n" : "", stdout);
        return 0;
    }
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &(int){ 0 });
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (other == NULL) {
        status = run(rounds, path);
    } else if (rank == 0) {
        fprintf(stderr, "dtr-recorder-cost: cannot make sense of \"%s\"; see --help\n", other);
    }
    MPI_Finalize();
    return status;
}
