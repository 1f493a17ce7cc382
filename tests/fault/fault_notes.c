/* What a rank tells the judge (tests/fault/run.py) in files, and how ranks wait for each other
 * outside the library. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "fault.h"

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void note_since(const char *name, double begun, dtr_status s) {
    fprintf(out, "%s %s @%.6f-%.6f %s\n", name, dtr_status_name(s), begun, now(),
            s < 0 ? dtr_last_error_message() : "");
    fflush(out);
}

void mark_fault(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/fault%d", folder, rank);
    FILE *f = fopen(path, "w");
    if (f != NULL) {
        fprintf(f, "%.6f\n", now());
        fclose(f);
    }
}

void die(void) {
    mark_fault();
    raise(SIGKILL);
}

void nap(double seconds) {
    struct timespec t = { (time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds)) };
    while (nanosleep(&t, &t) != 0) {
    }
}

void await_file(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    while (access(path, F_OK) != 0) {
        nap(0.02);
    }
}

void put_file(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (f != NULL) {
        fclose(f);
    }
}

void meet_by_files(const char *name) {
    char path[64];
    snprintf(path, sizeof path, "%s%d", name, rank);
    put_file(path);
    for (int r = 0; r < size; r++) {
        snprintf(path, sizeof path, "%s%d", name, r);
        await_file(path);
    }
}

/* The others say that they are about to call; the victim gives them a moment to get inside. */
void go_ahead(void) {
    char name[32];
    snprintf(name, sizeof name, "in%d", rank);
    put_file(name);
    for (int i = 0; i < size && rank == victim; i++) {
        snprintf(name, sizeof name, "in%d", i);
        await_file(name);
    }
    nap(rank == victim ? 0.1 : 0);
}

void wake_victim(void) {
    char path[512];
    int pid = 0;
    snprintf(path, sizeof path, "%s/pid", folder);
    FILE *f = fopen(path, "r");
    if (f != NULL && fscanf(f, "%d", &pid) == 1 && pid > 0) {
        kill((pid_t)pid, SIGCONT);
    }
    if (f != NULL) {
        fclose(f);
    }
}

/* Rank 0 goes on when all but the victim have come here. */
void await_others(void) {
    char name[32];
    snprintf(name, sizeof name, "done%d", rank);
    put_file(name);
    for (int r = 0; r < size && rank == 0; r++) {
        snprintf(name, sizeof name, "done%d", r);
        if (r != victim) {
            await_file(name);
        }
    }
}
