/* Cases in which a rank does not come to the creation of a group or of a world, or dies in it. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "base/mpi.h"
#include "fault.h"

/* FI22 */
void creation(void) {
    dtr_group *half = NULL;
    go_ahead();
    if (rank == victim) {
        die();
    }
    NOTE("split", dtr_group_split(group, 0, 0, NULL, &half));
    fprintf(out, "half %s\n", half == NULL ? "none" : "some");
}

/* Rank 0 comes when the others wait in the creation and the fault has happened among them. */
static void create_with(void (*fault)(void)) {
    dtr_group *g = NULL;
    char name[32];
    snprintf(name, sizeof name, "fault%d", victim);
    if (rank == 0) {
        await_file(name);
        nap(0.3); /* it is marked just before it happens */
    }
    if (rank == victim) {
        fault();
    }
    NOTE("create", dtr_group_create(world, NULL, size, NULL, &g));
    fprintf(out, "made %s\n", g == NULL ? "none" : "some");
}

static void *die_soon(void *unused) {
    nap(0.3);
    die();
    return unused;
}

static void *stop_soon(void *unused) {
    nap(0.3);
    mark_fault();
    raise(SIGSTOP);
    return unused;
}

static void kill_within(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, die_soon, NULL);
}

static void stop_within(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, stop_soon, NULL);
    pthread_detach(thread);
}

/* FI22: the victim has come, and others wait for what it should pass on. */
void killed_creation(void) {
    create_with(kill_within);
}

/* FI3: the same, and it goes on when the others have given up. */
void stopped_creation(void) {
    create_with(stop_within);
    if (rank != victim) {
        await_others();
    }
    if (rank == 0) {
        wake_victim();
    }
}

/* FI21, CP8: the victim does not come to the creation of a group. */
void no_creation(void) {
    dtr_group *half = NULL;
    char name[32];
    if (rank == victim) {
        for (int r = 0; r < size; r++) {
            snprintf(name, sizeof name, "done%d", r);
            if (r != victim) {
                await_file(name);
            }
        }
        return;
    }
    dtr_group_options o = DTR_GROUP_OPTIONS_INIT;
    o.timeout_s = 1.0;
    NOTE("split", dtr_group_split(group, 0, 0, &o, &half));
    fprintf(out, "half %s\n", half == NULL ? "none" : "some");
    snprintf(name, sizeof name, "done%d", rank);
    put_file(name);
}

/* INI26, CP8: the victim does not come to the creation of a world; later it does, and is not left
 * alone for ever either. */
void no_world(void) {
    char name[32];
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    for (int r = 0; rank == victim && r < size; r++) {
        snprintf(name, sizeof name, "done%d", r);
        if (r != victim) {
            await_file(name);
        }
    }
    NOTE("meet", dtr__mpi_await_all(comm, 1.0));
    snprintf(name, sizeof name, "done%d", rank);
    put_file(name);
    snprintf(name, sizeof name, "done%d", victim);
    await_file(name);
}
