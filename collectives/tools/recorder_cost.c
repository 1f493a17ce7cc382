/* dtr-recorder-cost: what the flight recorder takes of a small allreduce. The recorder cannot be
 * turned off, so the writing of one operation's record is timed by itself, in turn with the
 * operation. The fingerprints that ranks compare are mixed by themselves as well; comparing them is
 * one word of a message that is read anyway. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include <dtr/mpi.h>

#include "engine.h"
#include "measure.h"
#include "rt_world.h"

enum { CALLS = 1000, FINGERPRINT_WORDS = 8, RECORD_MARKS = 2 /* started and finished */ };

static const char help[] =
    "dtr-recorder-cost - the flight recorder's share of an allreduce of 8 bytes\n"
    "  mpirun -n 2 --bind-to core dtr-recorder-cost [--rounds N] [--json FILE]\n\n"
    "Writes the record of one operation, with its times of start and end, and mixes a "
    "fingerprint,\n"
    "as every call does, and compares with the time of the whole call: an upper bound, since "
    "inside\n"
    "a call part of it overlaps with waiting for the other ranks.\n";

static double time_calls(dtr_group *g) {
    float in[2] = { 1, 2 }, out[2];
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

static volatile uint64_t sink; /* keeps the compiler from dropping the mixing */

static double time_records(dtr_world *w, const dtr__record *like) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = measure_now();
    for (int i = 0; i < CALLS; i++) {
        uint64_t mixed = 0;
        for (uint64_t k = 0; k < FINGERPRINT_WORDS; k++) {
            mixed = dtr__mix(mixed, k);
        }
        sink = mixed;
        dtr__record r = *like;
        uint64_t number = dtr__rec_begin(w, &r);
        for (int k = 0; k < RECORD_MARKS; k++) {
            dtr__rec_mark(w, number, k == 0 ? DTR__REC_STARTED : DTR__REC_FINISHED, DTR_OK);
        }
    }
    return measure_slowest(measure_now() - start) / CALLS;
}

static int report(const double *calls, const double *records, int rounds, const char *path) {
    double call = measure_median(calls, rounds) * 1e9,
           record = measure_median(records, rounds) * 1e9;
    double share = 100 * measure_ratio(records, calls, rounds);
    printf("allreduce of 8 bytes: %.0f ns; its record and fingerprint: %.0f ns; share, median of "
           "%d rounds: %.1f %%\n",
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
    dtr__record last = { 0 };
    double *calls = malloc((size_t)rounds * sizeof *calls);
    double *records = malloc((size_t)rounds * sizeof *records);
    int status = 0;
    if (calls == NULL || records == NULL ||
        dtr_world_create_from_comm(MPI_COMM_WORLD, NULL, &w) != DTR_OK) {
        fprintf(stderr, "dtr-recorder-cost: %s\n", dtr_last_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    time_calls(dtr_world_group(w)); /* warms up, and leaves a record to copy */
    dtr__rec_read(w, &last, 1);
    last.t_issued = 0;
    last.t_started = last.t_finished = 0;
    last.state = 0;
    for (int i = 0; i < rounds; i++) {
        bool first = i % 2 == 0;
        calls[i] = first ? time_calls(dtr_world_group(w)) : 0;
        records[i] = time_records(w, &last);
        calls[i] = first ? calls[i] : time_calls(dtr_world_group(w));
    }
    if (dtr_world_rank(w) == 0) {
        status = report(calls, records, rounds, path);
    }
    dtr_world_destroy(w);
    free(calls);
    free(records);
    return status;
}

int main(int argc, char **argv) {
    int rounds = 21, rank = 0, status = -1;
    const char *path = NULL;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &(int){ 0 });
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 1; i < argc && status < 0; i++) {
        bool value = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0 && value) {
            path = argv[++i];
        } else if (strcmp(argv[i], "--rounds") == 0 && value &&
                   measure_parse_count(argv[i + 1], 1, &rounds)) {
            i++;
        } else {
            bool asked = strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
            status = asked ? 0 : 2;
            if (rank == 0 && asked) {
                fputs(help, stdout);
            } else if (rank == 0) {
                fprintf(stderr, "dtr-recorder-cost: cannot make sense of \"%s\"; see --help\n",
                        argv[i]);
            }
        }
    }
    status = status < 0 ? run(rounds, path) : status;
    MPI_Finalize();
    return status;
}
