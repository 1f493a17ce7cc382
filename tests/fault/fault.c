/* One program for all faults: fault CASE FOLDER. Every rank that gets to judge writes what it saw
 * to FOLDER/rankN: a line per call, "NAME STATUS MESSAGE". tests/fault/run.py starts it and judges.
 */
#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <dtr/coll.h>
#include <dtr/work.h>
#include <dtr/world.h>

enum { WARM = 20, N = 1000 };

static dtr_world *world;
static dtr_group *group;
static int rank, size, victim;
static const char *folder;
static FILE *out;
static float data[N];

static void note(const char *name, dtr_status s) {
    fprintf(out, "%s %s %s\n", name, dtr_status_name(s), s < 0 ? dtr_last_error_message() : "");
    fflush(out);
}

static void nap(double seconds) {
    struct timespec t = { (time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds)) };
    while (nanosleep(&t, &t) != 0) {
    }
}

static dtr_status allreduce(const char *label, double limit_s) {
    dtr_coll_options o = { .struct_size = sizeof o, .label = label, .timeout_s = limit_s };
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    return dtr_allreduce(group, b, b, DTR_MAX, &o, NULL);
}

/* Until `name` exists in the folder: how ranks outside the library wait for others. */
static void await_file(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    while (access(path, F_OK) != 0) {
        nap(0.02);
    }
}

static void put_file(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (f != NULL) {
        fclose(f);
    }
}

/* ---- the faults; a case returns when its rank may end in order ---- */

static void healthy(void) {
    note("allreduce", allreduce("last", 0));
}

static void slow(void) {
    dtr_coll_options o = { .struct_size = sizeof o, .label = "slow" };
    dtr_buffer buf = dtr_cpu(data, N, DTR_F32);
    for (int i = 0; i < 60; i++) {
        dtr_work *w = NULL;
        if (rank != victim) {
            (void)dtr_allreduce(group, buf, buf, DTR_MAX, &o, &w);
        }
        MPI_Barrier(MPI_COMM_WORLD); /* the victim is last however the others are held up */
        if (rank == victim) {
            nap(0.01);
            (void)dtr_allreduce(group, buf, buf, DTR_MAX, &o, NULL);
        } else {
            (void)dtr_work_wait(w, -1);
            (void)dtr_work_release(w);
        }
    }
    note("allreduce", DTR_OK);
}

/* FI1: the victim computes until the others have given up. */
static void absent(void) {
    if (rank == victim) {
        await_file(victim == 0 ? "done1" : "done0");
        return;
    }
    char name[32];
    note("allreduce", allreduce("grad.3", 1.0));
    snprintf(name, sizeof name, "done%d", rank);
    put_file(name);
}

/* FI9 */
static void kind(void) {
    dtr_buffer b = dtr_cpu(data, N, DTR_F32);
    note("call", rank == victim ? dtr_broadcast(group, b, 0, NULL, NULL) : allreduce("grad.3", 0));
}

/* FI5: the victim is killed while the others wait. */
static void killed(void) {
    if (rank == victim) {
        raise(SIGKILL);
    }
    note("allreduce", allreduce("grad.3", 0));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = { { "healthy", healthy },
              { "slow", slow },
              { "absent", absent },
              { "kind", kind },
              { "killed", killed } };

int main(int argc, char **argv) {
    char path[512];
    if (argc != 3 || dtr_world_create(NULL, &world) != DTR_OK) {
        return 2;
    }
    group = dtr_world_group(world);
    rank = dtr_world_rank(world);
    size = dtr_world_size(world);
    victim = size > 2 ? 2 : 1;
    folder = argv[2];
    snprintf(path, sizeof path, "%s/rank%d", folder, rank);
    out = fopen(path, "w");
    if (out == NULL) {
        return 2;
    }
    for (int i = 0; i < WARM; i++) {
        (void)allreduce("warm", 0);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
        }
    }
    note("destroy", dtr_world_destroy(world));
    fclose(out);
    return 0;
}
